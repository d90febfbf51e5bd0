/* 09_saturation: does a batch eight times as large give eight times the samples per second?
 *
 * What you learn
 *     - A step has a part that does not depend on the batch (the optimizer's pass over all weights, reading them,
 *       starting kernels) and a part for each sample: t(b) = t0 + b s, so b / (t0 + b s) samples per second.
 *     - Throughput grows almost in proportion to b while t0 is the larger part. At the knee, b = t0 / s, it is half of
 *       its limit 1 / s.
 *     - "Raise the batch from 32 to 256 for 8 times the data per second" is right far below the knee. Beyond it steps
 *       take up to 8 times as long, and the same data makes fewer updates.
 *     - On a GPU t0 is larger in relation to s, because thousands of units wait for work. There a larger batch is the
 *       first remedy, before more machines. Two measured steps give t0 and s.
 *     - A larger batch costs memory (43_memory.c) and may cost learning (37_growing_batch.c).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 09_saturation.c -o 09_saturation -lm -lpthread
 *     ./09_saturation                           (--layers 4: a larger model)
 *
 * What it prints (~: measured)
 *     t0 = ~1.81 ms, s = ~0.222 ms
 *     1 to 8: ~4.70 times the samples per second
 *     32 to 256: ~1.18 times the samples per second
 *     ok: beyond the knee, 8 times the batch gives less than 8 times the samples per second: ~1.18 times
 *
 * Predict first: with twice as many layers, does the knee move to larger batches, to smaller ones, or not at all?
 * Exercise: measure sequences of 8, 16 and 32 tokens with a batch of 8. Do tokens per second grow as with the batch?
 *
 * Read on: 10_own_model.c for models of your own, 37_growing_batch.c for how large a batch should be. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include <math.h>
#include <time.h>

enum { BATCHES = 9, STEPS = 5, SEQUENCE = 4 }; /* 1, 2, 4 .. 256 samples */
static double layers = 2;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A sample: the digits of a counter. */
static dt_result fetch(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    (void)user, (void)split;
    for (int64_t i = 0; i < SEQUENCE; i++) {
        ((int32_t *)input)[i] = (int32_t)((sample * 31 + i * 7) % 100);
        ((int32_t *)target)[i] = (int32_t)((sample * 31 + i * 7 + 7) % 100);
    }
    return DT_OK;
}

/* Seconds of the fastest of some steps on one core. used: the samples of all of them. */
static dt_result fastest_step(int64_t batch, double *seconds, int64_t *used)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_source source;
    dt_result r;
    memset(&source, 0, sizeof source);
    source.fetch = fetch, source.samples[DT_TRAIN] = 4096;
    source.inputs = source.targets = SEQUENCE, source.input_type = source.target_type = DT_I32;
    recipe.model = dt_model_gpt2("nano");
    recipe.model.vocabulary = 100, recipe.model.width = 256, recipe.model.layers = (int)layers;
    recipe.source = &source, recipe.steps = STEPS, recipe.batch = batch, recipe.data_shards = 1;
    recipe.validation = 0;
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0;
    r = dt_trainer_open(&t, &recipe, &layout);
    *seconds = 1e30, *used = 0;
    while (!r && info.step < STEPS) {
        double start = now();
        r = dt_trainer_step(t, &info);
        *seconds = fmin(*seconds, now() - start);
        *used += info.tokens;
    }
    dt_trainer_close(&t);
    return r;
}

int main(int argc, char **argv)
{
    static const char marks[] = "##################################################";
    option list[] = {{"--layers", 1, 8, &layers}};
    double seconds[BATCHES], each, fixed;
    int64_t used;
    int good = 1;
    dt_result r = dt_launch(&argc, &argv);
    if (!options_read(argc, argv, list, 1)) return 2;
    for (int k = 0; k < BATCHES && !r; k++) {
        r = fastest_step(1 << k, &seconds[k], &used);
        good = good && used == (int64_t)STEPS << k;
    }
    if (r) return dt_fail("09_saturation");
    each = (seconds[BATCHES - 1] - seconds[0]) / ((1 << (BATCHES - 1)) - 1);
    fixed = fmax(0, seconds[0] - each);
    printf("t0 = %.2f ms, s = %.3f ms\n", 1e3 * fixed, 1e3 * each);
    printf("%8s %10s %10s %12s %10s\n", "batch", "ms", "t0 + b s", "samples/s", "of 1 / s");
    for (int k = 0; k < BATCHES; k++) {
        double batch = 1 << k, rate = batch / seconds[k];
        printf("%8.0f %10.2f %10.2f %12.0f %9.0f%%  %.*s\n", batch, 1e3 * seconds[k], 1e3 * (fixed + batch * each),
               rate, 100 * rate * each, (int)fmin(50, 40 * rate * each), marks);
    }
    for (int k = 0; k + 3 < BATCHES; k += k ? 3 : 2)
        printf("%d to %d: %.2f times the samples per second\n", 1 << k, 8 << k, 8 * seconds[k] / seconds[k + 3]);
    printf("The knee, half of 1 / s, is at b = t0 / s = %.1f samples of %d tokens.\n", fixed / each, SEQUENCE);
    good = good && seconds[8] > seconds[5] && seconds[7] > seconds[4]; /* else the rate would be 8 times as high */
    if (!good) return fprintf(stderr, "FAILED: 8 times the batch took no longer, or its samples were not used\n"), 1;
    return printf("ok: beyond the knee, 8 times the batch gives less than 8 times the samples per second: %.2f times\n",
                  8 * seconds[5] / seconds[8]), 0;
}
