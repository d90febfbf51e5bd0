/* 13_forecaster: what is a forecast worth, and which loss is good?
 *
 * What you learn
 *     - A third domain with the same calls. The inputs are floats, a window of the last 60 values; the targets are the
 *       12 values that follow; the loss is the mean squared error. dt_prediction() marks what the model predicts.
 *     - An error means nothing until it is compared with that of a naive forecast. The series repeats every 12 values,
 *       so the naive forecast is the 12 values before. Its error has two noises, and the change of the slow season.
 *     - A model that has learned both seasons has little more error than the noise, which cannot be predicted.
 *     - The series is made of whole numbers. A whole number / 128 is exact in a float, so every machine sees the same
 *       data.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 13_forecaster.c -o 13_forecaster -lm -lpthread
 *     ./13_forecaster
 *     ./13_forecaster --ranks 4                  (up to 8; --quieter 2: half of the noise)
 *
 * What it prints
 *     model    2 segments of the program's own: 3068 parameters
 *     recipe   600 steps of 64 samples, micro-batch 64, 8 data shards, seed 1
 *     step 600/600  validation loss 0.025852
 *     squared error 0.0259; as in the last season 0.1529; noise alone 0.0208
 *     sha256   0102cc29cc622038f6eb11a066e80bb8d0a7f7d5ac0fd1191dbde16ce72236f9
 *     ok: the error is 0.17 of the naive forecast's, below 0.3, and the hash is the expected one
 *
 * Predict first: which of the three errors above changes if the noise of the series is halved, and to what?
 * Exercise: forecast 24 values instead of 12. How does the error of the last 12 compare with that of the first 12?
 *
 * Read on: 14_llama.c for the models that are largest today, 31_data_parallel.c for how ranks share such work. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"

#define EXPECTED "0102cc29cc622038f6eb11a066e80bb8d0a7f7d5ac0fd1191dbde16ce72236f9"

enum { WINDOW = 60, NEXT = 12, SEASON = 12, TRAINING = 2000, VALIDATION = 200 };

static double quieter = 1;

/* Noise of time n: the sum of four dice of -16 .. 15, so its variance is 4 (32 * 32 - 1) / 12 = 341. */
static int32_t noise(int64_t n)
{
    uint64_t bits = (uint64_t)(n + 1) * 0x9e3779b97f4a7c15u; /* the finaliser of splitmix64 (Vigna 2015) */
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    bits ^= bits >> 31;
    return ((int32_t)((bits & 31) + (bits >> 8 & 31) + (bits >> 16 & 31) + (bits >> 24 & 31)) - 64) / (int32_t)quieter;
}

/* The series: a season of 12 with two peaks, a slow one of 42 that rises and falls, and noise. In 128ths. */
static int32_t series(int64_t n)
{
    static const int32_t season[SEASON] = {-120, -60, 20, 90, 60, 0, -20, 40, 130, 80, -40, -110};
    return season[n % SEASON] + 4 * (abs((int32_t)(n % 42) - 21) - 10) + noise(n);
}

/* Where a sample's window begins. Those of validation come after all of training. */
static int64_t begin(dt_split split, int64_t sample)
{
    return split == DT_TRAIN ? sample : TRAINING + WINDOW + NEXT + sample;
}

/* Sample -> the window (60) and what follows (12). It depends on its arguments alone: any rank may ask. */
static dt_result window(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    int64_t first = begin(split, sample);
    (void)user;
    for (int i = 0; i < WINDOW; i++) ((float *)input)[i] = (float)series(first + i) / 128.0f;
    for (int i = 0; i < NEXT; i++) ((float *)target)[i] = (float)series(first + WINDOW + i) / 128.0f;
    return DT_OK;
}

/* (B,60) -> (B,60+32): the window as it is, and 32 hidden units that look at it */
static dt_tensor look(dt_graph *g, dt_tensor x, const void *user)
{
    dt_tensor both[2];
    (void)user;
    both[0] = x;
    both[1] = dt_gelu(g, dt_linear_with(g, x, "hidden", 32, 0.1f, 0));
    return dt_concat(g, both, 2, 1);
}

/* (B,92) -> the forecast (B,12) -> loss */
static dt_tensor forecast(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_error_loss(g, DT_MSE, dt_prediction(g, dt_linear(g, x, "next", NEXT)), dt_targets(g));
}

static const dt_segment net[] = {{"look", look, NULL}, {"forecast", forecast, NULL}};

/* Mean squared error of "as in the last season" over the validation samples. */
static double naive_error(void)
{
    double sum = 0;
    for (int64_t s = 0; s < VALIDATION; s++)
        for (int64_t i = 0, n = begin(DT_VALIDATION, s) + WINDOW; i < NEXT; i++)
            sum += (double)((series(n + i) - series(n + i - SEASON)) * (series(n + i) - series(n + i - SEASON)));
    return sum / (128.0 * 128.0 * VALIDATION * NEXT);
}

/* One window of the validation part: the truth o, the forecast x, both at one place *. */
static dt_result draw(dt_trainer *t)
{
    float past[WINDOW], truth[NEXT], guess[NEXT];
    dt_result e = window(NULL, DT_VALIDATION, 77, past, truth);
    if (!e) e = dt_trainer_predict(t, past, 1, guess, NEXT);
    if (!e) printf(" truth  guess  (o: the truth, x: the guess, *: both at one place; -3 to 3 from left to right)\n");
    for (int i = 0; i < NEXT && !e; i++) {
        int a = (int)(30 + 10 * truth[i]), b = (int)(30 + 10 * guess[i]);
        printf("%6.2f %6.2f  ", (double)truth[i], (double)guess[i]);
        for (int c = 0; c < 60; c++) putchar(c == a && c == b ? '*' : c == a ? 'o' : c == b ? 'x' : ' ');
        putchar('\n');
    }
    return e;
}

int main(int argc, char **argv)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_source source = {NULL, {TRAINING, VALIDATION}, WINDOW, NEXT, DT_F32, DT_F32, window};
    dt_trainer *t = NULL;
    option list[] = {{"--quieter", 1, 16, &quieter}};
    double naive;
    float error = 0;
    int fine = 0;
    dt_result e = dt_launch(&argc, &argv);
    if (!options_read(argc, argv, list, 1)) return dt_exit_code(DT_E_USAGE);
    quieter = (int)quieter, naive = naive_error();
    recipe.model = dt_model_segments(net, 2, 0);
    recipe.source = &source, recipe.batch = 64, recipe.steps = 600, recipe.learning_rate = 5e-3f;
    layout.threads = 1;
    if (!e) e = dt_trainer_open(&t, &recipe, &layout);
    if (!e) e = dt_trainer_run(t, &info);
    if (!e) e = dt_trainer_evaluate(t, 0, &error); /* the loss of all validation samples: every rank takes part */
    if (!e && dt_trainer_is_root(t)) e = draw(t);
    if (e) return dt_trainer_close(&t), dt_fail("13_forecaster");
    fine = error < 0.3 * naive && (quieter > 1 || !strcmp(dt_trainer_hash(t), EXPECTED));
    if (dt_trainer_is_root(t)) {
        printf("squared error %.4f; as in the last season %.4f; noise alone %.4f\n", (double)error, naive,
               341.0 / (128 * 128 * quieter * quieter));
        printf("sha256   %s\nexpected %s\n", dt_trainer_hash(t), EXPECTED);
        if (fine) printf("ok: the error is %.2f of the naive forecast's, below 0.3, and the hash is %s\n",
                         (double)error / naive, quieter > 1 ? "not checked" : "the expected one");
        else fprintf(stderr, "FAILED: another hash or a poor forecast; right if you changed the model\n");
    }
    dt_trainer_close(&t);
    return !fine;
}
