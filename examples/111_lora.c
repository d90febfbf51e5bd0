/* 111_lora: how few numbers have to change so that a trained model can do something new?
 *
 * What you learn
 *     - LoRA (Hu et al. 2021) leaves a matrix W (in,out) as it is and learns a product that is added to it: A (in,r)
 *       times B (r,out), r (in + out) numbers instead of in x out. At 4096 x 4096 and r = 8 these are 0.4 %.
 *     - Only A and B have gradients and optimizer state. Backward also avoids the product that gives W's gradient, at
 *       most a third of all arithmetic. Activations do not shrink.
 *     - A is random, B is zero, so the first prediction has the base's bits. With both zero, neither would learn.
 *     - r bounds what can be learned. Here sensors are swapped, and each swapped pair changes W by a matrix of rank 1.
 *     - For use, W + A B becomes one matrix again, and the merged model is as fast as the base.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 111_lora.c -o 111_lora -lm -lpthread
 *     ./111_lora                                 (--pairs 4: swaps so many pairs of sensors, 1 to 16)
 *     ./111_lora --ranks 2                       (up to 8)
 *
 * What it prints
 *     trained            numbers     m and v   before   after
 *     the base: W           1024   8192 bytes   0.3321  0.0026
 *     every number of W     1024   8192 bytes   0.0527  0.0026
 *     A and B of rank 1       64    512 bytes   0.0527  0.0230
 *     rank 2                 128   1024 bytes   0.0527  0.0026
 *     rank 4                 256   2048 bytes   0.0527  0.0026
 *     before the first step: 2048 predictions have the base's bits
 *     W + A B as one matrix: predictions differ by 4.2e-07 at most
 *     ok: rank 2 reaches 0.0026 with 128 numbers, all of W 0.0026 with 1024
 *
 * Predict first: two pairs of sensors are swapped. Which ranks are too small, and what does rank 4 add to rank 2?
 * Exercise: draw B as well. How does the first column of losses change, and why do its rows differ then?
 *
 * Read on: 44_fit.c for the bytes of large models (--optimizer lora), 17_custom_op.c for ops, cheatsheet.md. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include <math.h>

#define EXPECTED "ab6a640cb21b5f5aa4a5863fcef90d92493c1e05cc72ec74fe3985a643436c84"
enum { SENSORS = 32, GAUGES = 32, TRAINING = 4096, TESTS = 64, STEPS = 200 };
enum { BASE, FULL, RANK1, RANK2, RANK4, MERGED, RUNS, ALL = 0 };
static float W[SENSORS * GAUGES], A[SENSORS * 2], B[2 * GAUGES], after[RUNS]; /* of the base; of rank 2; losses */
static float tests[TESTS * SENSORS], first[RUNS][TESTS * GAUGES], last[RUNS][TESTS * GAUGES]; /* inputs; predictions */

static int drawn(int64_t n) /* -8 to 7; an integer, so that every compiler makes the same bits */
{
    uint32_t h = (uint32_t)n * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    return (int)((h ^ h >> 13) >> 28) - 8;
}
/* Sample -> 32 sensors, and 32 gauges: sums of sensors, with a limit. *user: how many pairs of sensors are swapped. */
static dt_result reading(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    int swapped = 2 * *(const int *)user;
    int64_t at = (sample + (split == DT_TRAIN ? 0 : TRAINING)) * SENSORS;
    for (int k = 0; k < SENSORS; k++) ((float *)input)[k < swapped ? k ^ 1 : k] = (float)drawn(at + k);
    for (int j = 0; j < GAUGES; j++) {
        int sum = 0;
        for (int k = 0; k < SENSORS; k++) sum += drawn(-1 - j * SENSORS - k) / 3 * drawn(at + k);
        ((float *)target)[j] = (float)(sum < -64 ? -64 : sum > 64 ? 64 : sum) / 64.0f;
    }
    return DT_OK;
}

/* x W with W frozen. A trainer updates every parameter; so W is not a parameter here, but data that an op reads. */
static void times_W(void *user, const float *const *in, const dt_shape *shape, float *y)
{
    (void)user;
    for (int64_t i = 0; i < shape[0].n[0] * GAUGES; i++) {
        const float *x = in[0] + i / GAUGES * SENSORS;
        y[i] = 0;
        for (int k = 0; k < SENSORS; k++) y[i] = fmaf(x[k], W[k * GAUGES + i % GAUGES], y[i]);
    }
}
static const dt_custom_op frozen = {times_W, NULL, NULL}; /* no gradient: before W there are only data */

static struct run {
    const char *name;
    int64_t rank; /* of A B; ALL: B has W's shape, without an A, and may change every number; -1: W itself is trained */
} runs[] = {{"the base: W", -1}, {"every number of W", ALL}, {"A and B of rank 1", 1}, {"rank 2", 2}, {"rank 4", 4},
            {"W + A B", 1}};
static int pairs[2] = {0, 2}; /* of sensors that are swapped: for the base, for the others */

/* tanh(x W + x A B), with the mean squared error */
static dt_tensor model(dt_graph *g, dt_tensor x, const void *user)
{
    int64_t rank = ((const struct run *)user)->rank, B_rows = rank == ALL ? SENSORS : rank;
    dt_tensor y, d = x = dt_scale(g, x, 0.125f);
    if (rank < 0) y = dt_linear_with(g, x, "W", GAUGES, 0.1f, DT_NO_BIAS);
    else y = dt_custom(g, &frozen, &x, 1, dt_shape2(dt_dim(g, x, 0), GAUGES));
    if (rank > 0) d = dt_matmul(g, x, dt_param(g, "A", dt_shape2(SENSORS, rank), DT_INIT_NORMAL, 0.1f), 0, 0);
    if (rank >= 0) d = dt_matmul(g, d, dt_param(g, "B", dt_shape2(B_rows, GAUGES), DT_INIT_ZEROS, 0), 0, 0);
    y = dt_tanh(g, rank < 0 ? y : dt_add(g, y, d));
    return dt_error_loss(g, DT_MSE, dt_prediction(g, y), dt_targets(g));
}

static dt_result train(int i, char hash[65])
{
    dt_segment one = {"m", model, &runs[i]};
    dt_source source = {&pairs[i > BASE], {TRAINING, 512}, SENSORS, GAUGES, DT_F32, DT_F32, reading};
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    float before = 0;
    int64_t held;
    dt_result r;
    recipe.model = dt_model_segments(&one, 1, 0), recipe.source = &source;
    recipe.batch = 64, recipe.steps = STEPS, recipe.learning_rate = 0.02f, recipe.weight_decay = 0;
    layout.threads = 1, layout.output.quiet = 1;
    r = dt_trainer_open(&t, &recipe, &layout);
    if (!r) r = dt_trainer_evaluate(t, 0, &before);
    if (!r) r = dt_trainer_predict(t, tests, TESTS, first[i], GAUGES);
    if (!r && i != MERGED) r = dt_trainer_run(t, &info);
    if (!r) r = dt_trainer_predict(t, tests, TESTS, last[i], GAUGES);
    if (!r && i == BASE) r = dt_trainer_own(t, "m.W.weight", W, &held);
    if (!r && i == RANK2) snprintf(hash, 65, "%s", dt_trainer_hash(t)), r = dt_trainer_own(t, "m.A", A, &held);
    if (!r && i == RANK2) r = dt_trainer_own(t, "m.B", B, &held);
    if (!r && i != MERGED && dt_trainer_is_root(t))
        printf("%-18s %7lld %6lld bytes %8.4f %7.4f\n", runs[i].name, (long long)dt_trainer_weights(t),
               8 * (long long)dt_trainer_weights(t), (double)before, (double)(after[i] = info.validation));
    dt_trainer_close(&t);
    return r;
}

int main(int argc, char **argv)
{
    char hash[65] = "";
    double swapped = 2;
    float far = 0, gauges[GAUGES];
    int same = 1, root;
    dt_result r = dt_launch(&argc, &argv);
    option list[] = {{"--pairs", 1, 16, &swapped}};
    if (!options_read(argc, argv, list, 1)) return 2;
    root = !getenv("RANK") || !strcmp(getenv("RANK"), "0"), pairs[1] = (int)swapped;
    for (int i = 0; i < TESTS; i++) reading(&pairs[1], DT_VALIDATION, i, tests + i * SENSORS, gauges);
    if (root) printf("trained            numbers     m and v   before   after\n");
    for (int i = 0; i < RUNS && !r; i++) {
        for (int k = 0; k < SENSORS * GAUGES * 2 && i == MERGED; k++) /* W += A B */
            W[k / 2] = fmaf(A[k / 2 / GAUGES * 2 + k % 2], B[k % 2 * GAUGES + k / 2 % GAUGES], W[k / 2]);
        r = train(i, hash);
        same = same && (!i || i == MERGED || !memcmp(first[i], last[BASE], sizeof first[i]));
    }
    if (r || !root) return r ? dt_fail("111_lora") : 0;
    for (int i = 0; i < TESTS * GAUGES; i++) far = fmaxf(far, fabsf(first[MERGED][i] - last[RANK2][i]));
    printf("before the first step: %d predictions %s the base's bits\n", TESTS * GAUGES, same ? "have" : "DO NOT HAVE");
    printf("W + A B as one matrix: predictions differ by %.1e at most\nsha256 of rank 2 %s\n", (double)far, hash);
    if (!same || far > 1e-5f || (pairs[1] == 2 && strcmp(hash, EXPECTED)))
        return fprintf(stderr, "FAILED: another hash, expected " EXPECTED ", or other predictions\n"), 1;
    return printf("ok: rank 2 reaches %.4f with %d numbers, all of W %.4f with %d\n", (double)after[RANK2],
                  2 * (SENSORS + GAUGES), (double)after[FULL], SENSORS * GAUGES), 0;
}
