/* 12_cnn: how can 1,828 weights find a shape anywhere in an image?
 *
 * What you learn
 *     - A sample of the source is 144 grey values. The first segment gives them their shape, (B,1,12,12), and runs two
 *       convolutions, each followed by a max-pooling that halves the sides.
 *     - A convolution looks at 3x3 places at a time with the same few weights everywhere, so its features are the same
 *       wherever a shape lies.
 *     - Convolution and pooling are made of ops (conv.h): nine slices of the padded image are the columns of a matrix
 *       with a row per place, and the convolution is the product of this matrix and the weights.
 *     - Each image is one of four shapes over noise, drawn in integer arithmetic for the reason given in 11_mlp.c.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 12_cnn.c -o 12_cnn -lm -lpthread
 *     ./12_cnn
 *     ./12_cnn --ranks 2                         (up to 8; --mlp 32: a hidden layer instead of convolutions)
 *
 * What it prints
 *     model    2 segments of the program's own: 1828 parameters
 *     step 200/200  validation loss 0.0663 nats, 0.096 bits per target
 *     98.8 % of 400 unseen images recognised
 *     sha256   9b1a4c49ea9338fd3d635e699e6d51d0b2a264851e365020fd2fc6de221df17d
 *     ok: 395 of 400 new images are right, and the hash is the expected one
 *
 * Predict first: an MLP on the 144 values with 32 hidden units: how many weights does it have, and does it recognise a
 *     shape that has moved?
 * Exercise: train with shapes in the upper left quarter, and test with shapes everywhere. What share is recognised, and
 *     which layer depends on the place?
 *
 * Read on: 13_forecaster.c predicts numbers instead of classes. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "conv.h"
#include "option.h"

#define EXPECTED "9b1a4c49ea9338fd3d635e699e6d51d0b2a264851e365020fd2fc6de221df17d"

enum { SIDE = 12, PIXELS = SIDE * SIDE, SHAPES = 4, TRAINING = 2000, VALIDATION = 400 };

static const char *const names[SHAPES] = {"square", "cross", "diamond", "stripes"};
static const char *const drawn[SHAPES][5] = {{"#####", "#...#", "#...#", "#...#", "#####"},
                                             {"#...#", ".#.#.", "..#..", ".#.#.", "#...#"},
                                             {"..#..", ".#.#.", "#...#", ".#.#.", "..#.."},
                                             {"#####", ".....", "#####", ".....", "#####"}};

/* Mixes the bits of n (the finaliser of splitmix64, Vigna 2015): one random-looking number for each n. */
static uint64_t mix(uint64_t n)
{
    n = (n + 1) * 0x9e3779b97f4a7c15u;
    n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9u;
    n = (n ^ n >> 27) * 0x94d049bb133111ebu;
    return n ^ n >> 31;
}

/* Sample -> an image (12,12) of 0 .. 255 and its shape (1). It depends on its arguments alone: any rank may ask. */
static dt_result image(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    uint64_t key = (uint64_t)(sample + (split == DT_VALIDATION ? TRAINING : 0)) * 1024, random = mix(key);
    int32_t shape = (int32_t)(random % SHAPES), *pixel = (int32_t *)input;
    int top = (int)(random >> 16 & 7), left = (int)(random >> 24 & 7); /* 0 .. 7: 5 rows and columns fit in 12 */
    (void)user;
    for (int i = 0; i < PIXELS; i++) {
        int row = i / SIDE - top, column = i % SIDE - left;
        int inside = row >= 0 && row < 5 && column >= 0 && column < 5;
        int light = inside && drawn[shape][row][column] == '#' ? 160 : 0;
        pixel[i] = light + (int32_t)(mix(key + 1 + (uint64_t)i) % 96); /* noise all over */
    }
    *(int32_t *)target = shape;
    return DT_OK;
}

static double mlp; /* hidden units of an MLP; 0: convolutions */
/* whole numbers (B,144) -> (B,16*3*3) features */
static dt_tensor look(dt_graph *g, dt_tensor x, const void *user)
{
    static const conv_window three = {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}; /* size, stride, padding, dilation, groups */
    static const conv_window two = {{2, 2}, {2, 2}, {0, 0}, {1, 1}, 1};
    (void)user;
    x = dt_scale(g, dt_cast(g, x, DT_F32), 1.0f / 128.0f);
    if (mlp > 0) return dt_gelu(g, dt_linear_with(g, x, "hidden", (int64_t)mlp, 0.1f, 0));
    x = dt_reshape(g, x, dt_shape4(dt_dim(g, x, 0), 1, SIDE, SIDE));                  /* (B,1,12,12) */
    x = pool(g, dt_gelu(g, conv(g, x, "conv1", 8, &three)), 0, &two);                 /* (B,8,6,6) */
    x = pool(g, dt_gelu(g, conv(g, x, "conv2", 16, &three)), 0, &two);                /* (B,16,3,3) */
    return dt_reshape(g, x, dt_shape2(dt_dim(g, x, 0), dt_dim(g, x, 1) * 3 * 3));
}

/* (B,144) features -> one logit for each shape -> loss */
static dt_tensor head(dt_graph *g, dt_tensor x, const void *user)
{
    dt_tensor logits = dt_linear(g, x, "shapes", SHAPES);
    (void)user;
    dt_prediction(g, dt_softmax(g, logits, DT_LAST)); /* predict probabilities, not logits */
    return dt_cross_entropy(g, logits, dt_targets(g), 0.0f);
}

static const dt_segment net[] = {{"look", look, NULL}, {"head", head, NULL}};
enum { SHOWN = 3 };
/* Images side by side, what they are, and what the model believes. */
static void show(int32_t pixel[][PIXELS], float belief[][SHAPES], const int32_t *shape)
{
    for (int row = 0; row < SIDE; row++)
        for (int i = 0; i < SHOWN; i++) {
            printf("%*s", i ? 4 : 12, "");
            for (int x = 0; x < SIDE; x++) putchar(" .:-=+*#%@"[pixel[i][row * SIDE + x] / 26]);
            if (i == SHOWN - 1) putchar('\n');
        }
    printf("it is       ");
    for (int i = 0; i < SHOWN; i++) printf("%-12s%s", names[shape[i]], i < SHOWN - 1 ? "    " : "\n");
    for (int s = 0; s < SHAPES; s++) {
        printf("  %-10s", names[s]);
        for (int i = 0; i < SHOWN; i++)
            printf("%5.1f %%%s", 100 * (double)belief[i][s], i + 1 < SHOWN ? "         " : "\n");
    }
}

/* Share of the validation images that are recognised; rank 0 shows some of them. */
static double recognised(dt_trainer *t)
{
    static int32_t pixels[VALIDATION][PIXELS], shape[VALIDATION];
    static float belief[VALIDATION][SHAPES];
    int right = 0;
    for (int i = 0; i < VALIDATION; i++) image(NULL, DT_VALIDATION, i, pixels[i], &shape[i]);
    if (dt_trainer_predict(t, pixels, VALIDATION, belief[0], SHAPES)) return 0;
    for (int i = 0; i < VALIDATION; i++) {
        int best = 0;
        for (int s = 1; s < SHAPES; s++) best = belief[i][s] > belief[i][best] ? s : best;
        right += best == shape[i];
    }
    if (dt_trainer_is_root(t)) show(pixels, belief, shape);
    return (double)right / VALIDATION;
}

int main(int argc, char **argv)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_source source = {NULL, {TRAINING, VALIDATION}, PIXELS, 1, DT_I32, DT_I32, image};
    dt_trainer *t = NULL;
    double right = 0;
    option list[] = {{"--mlp", 1, 512, &mlp}};
    dt_result e = dt_launch(&argc, &argv);
    if (!options_read(argc, argv, list, 1)) return dt_exit_code(DT_E_USAGE);
    recipe.model = dt_model_segments(net, 2, 0), layout.threads = 1;
    recipe.source = &source, recipe.batch = 32, recipe.steps = 200, recipe.learning_rate = 1e-2f;
    if (!e) e = dt_trainer_open(&t, &recipe, &layout);
    if (!e) e = dt_trainer_run(t, &info);
    if (e) return dt_trainer_close(&t), dt_fail("12_cnn");
    right = recognised(t);
    int fine = mlp > 0 || (right > 0.95 && !strcmp(dt_trainer_hash(t), EXPECTED));
    if (dt_trainer_is_root(t)) {
        printf("%.1f %% of %d unseen images recognised\n", 100 * right, VALIDATION);
        printf("sha256   %s\nexpected %s\n", dt_trainer_hash(t), EXPECTED);
        if (fine) printf("ok: %.0f of %d new images are right, and the hash is %s\n", VALIDATION * right, VALIDATION,
                         mlp > 0 ? "not checked" : "the expected one");
        else fprintf(stderr, "FAILED: another hash or too many errors\n");
    }
    dt_trainer_close(&t);
    return !fine;
}
