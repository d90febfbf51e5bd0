/* 18_use: how does another program use a model that you have trained?
 *
 * What you learn
 *     - A checkpoint holds the weights and the recipe, but not the segments: they are functions of your program. Both
 *       programs include them. The program that uses the model gives them to dt_predictor_open, which compares their
 *       parameters with the checkpoint's by name and shape.
 *     - The second program needs neither the training data nor an option of the recipe; dt_trainer_predict takes any
 *       number of samples. The predictions have the same bits as in the program that trained.
 *     - Inputs are scaled in a segment, so that the second program does not have to know how.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 18_use.c -o 18_use -lm -lpthread
 *     ./18_use train houses && ./18_use use houses 120 3 10
 *     ./18_use          (does both, in a folder that it removes; 32 after the three numbers: a model of 32 units)
 *     In a project of yours, model, train and use are three files, which share the implementation in a fourth.
 *
 * What it prints
 *     trained: 400 steps, validation error 0.14
 *     120 square metres, 3 rooms, 10 years: 4.23
 *     1000 houses in one call: the first one is the same
 *     ok: the checkpoint alone predicts 4.23, by itself and as one of 1000 houses
 *
 * Predict first: what happens if the hidden layer of the second program has 32 units instead of 16?
 * Exercise: write the houses into a CSV file and train from that file. Is the prediction the same?
 *
 * Read on: 10_own_model.c for segments, 08_generate.c for text, 72_checkpoint_tool.c for what a checkpoint holds. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FEATURES = 3, MANY = 1000 };
static int units = 16; /* of the hidden layer */

/* ---- model.h: what both programs include ---- */

static dt_tensor hidden(dt_graph *g, dt_tensor x, const void *user) /* (B,3) -> (B,16) */
{
    (void)user;
    return dt_tanh(g, dt_linear(g, dt_scale(g, x, 0.01f), "one", units));
}
static dt_tensor price(dt_graph *g, dt_tensor x, const void *user) /* (B,16) -> (B,1), in units of 10,000 */
{
    (void)user;
    x = dt_linear(g, x, "two", 1);
    dt_prediction(g, x);
    return dt_error_loss(g, DT_MSE, x, dt_targets(g));
}
static const dt_segment segments[] = {{"hidden", hidden, NULL}, {"price", price, NULL}};

/* ---- train.c ---- */

/* A table of houses: square metres, rooms, age; and the price with some noise. */
static dt_result house(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    float *x = (float *)input;
    int64_t i = 2 * sample + (int64_t)split;
    (void)user;
    x[0] = (float)(40 + i * 37 % 161), x[1] = (float)(1 + i * 11 % 6), x[2] = (float)(i * 53 % 101);
    *(float *)target = (300.0f * x[0] + 2000.0f * x[1] - 200.0f * x[2] + (float)(i * 71 % 41) * 100.0f) / 1e4f;
    return DT_OK;
}

static dt_result train(const char *place)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_source houses = {NULL, {2000, 200}, FEATURES, 1, DT_F32, DT_F32, house};
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r;
    recipe.model = dt_model_segments(segments, 2, 0);
    recipe.source = &houses;
    recipe.steps = 400, recipe.batch = 32, recipe.learning_rate = 0.03f;
    layout.checkpoint.place = place, layout.output.quiet = 1;
    r = dt_trainer_open(&t, &recipe, &layout);
    if (!r) r = dt_trainer_run(t, &info);
    if (!r) printf("trained: %lld steps, validation error %.2f\n", (long long)info.step, sqrt((double)info.validation));
    dt_trainer_close(&t);
    return r;
}

/* ---- use.c ---- */

static dt_result use(const char *place, const float *asked, float *one)
{
    static float many[MANY][FEATURES], prices[MANY];
    dt_model model = dt_model_segments(segments, 2, 0);
    dt_trainer *t = NULL;
    dt_result r = dt_predictor_open(&t, place, &model, NULL);
    if (!r) r = dt_trainer_predict(t, asked, 1, one, 1);
    if (!r) printf("%g square metres, %g rooms, %g years: %.2f\n", (double)asked[0], (double)asked[1], (double)asked[2],
                   (double)*one);
    for (int i = 0; i < MANY; i++) memcpy(many[i], asked, sizeof many[i]), many[i][2] += (float)i / 10.0f;
    if (!r) r = dt_trainer_predict(t, many, MANY, prices, 1);
    if (!r) printf("%d houses in one call: the first one is %s\n", MANY, prices[0] == *one ? "the same" : "another");
    if (!r && prices[0] != *one) *one = NAN;
    dt_trainer_close(&t);
    return r;
}

int main(int argc, char **argv)
{
    char place[] = "/tmp/18_use_XXXXXX", remove[64];
    float asked[FEATURES] = {120, 3, 10}, one = 0;
    dt_result r;
    for (int i = 3; i < argc && i < 3 + FEATURES; i++) asked[i - 3] = (float)atof(argv[i]);
    if (argc > 2 && !strcmp(argv[1], "train")) return train(argv[2]) ? dt_fail("18_use") : 0;
    if (argc > 6) units = atoi(argv[6]);
    if (argc > 2 && !strcmp(argv[1], "use")) return use(argv[2], asked, &one) ? dt_fail("18_use") : 0;
    if (argc > 1) return fprintf(stderr, "Usage: 18_use [train FOLDER | use FOLDER [METRES ROOMS YEARS [UNITS]]]\n"), 2;
    if (!mkdtemp(place)) return perror(place), 1;
    r = train(place);
    if (!r) r = use(place, asked, &one);
    snprintf(remove, sizeof remove, "rm -r '%s'", place);
    if (system(remove)) fprintf(stderr, "%s stays\n", place);
    if (r) return dt_fail("18_use");
    if (isnan(one)) return fprintf(stderr, "FAILED: one house has two prices\n"), 1;
    return printf("ok: the checkpoint alone predicts %.2f, by itself and as one of %d houses\n", (double)one, MANY), 0;
}
