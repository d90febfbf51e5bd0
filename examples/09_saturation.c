/* 09_saturation: a batch eight times as large is eight times the work, not eight times the data per second.
 *
 * What you learn
 *     A step has a part that does not depend on the batch (the optimizer passes over all weights and its state; weights
 *     are read; kernels are started) and a part for each sample:
 *         t(b) = t0 + b s                   samples per second: b / (t0 + b s)
 *     Throughput grows almost with b while t0 is the larger part, is half of what there is to have at the knee
 *     b = t0 / s, and no batch gets more than 1 / s. From the knee on, "raise the batch from 32 to 256 on the same
 *     machine for 8 times the data per second" gives the same samples per second in steps that take 8 times as long,
 *     and fewer updates for the same data. It is right far below the knee alone.
 *     On a GPU t0 is larger beside s, since thousands of units wait for work: its knee lies at larger batches, and a
 *     small batch leaves it idle. There a larger batch is the first remedy, before more machines. Find the knee first:
 *     two measured steps give t0 and s, as below.
 *     What the larger batch leaves is memory (43_memory.c) and learning (37_growing_batch.c).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 09_saturation.c -o 09_saturation -lm -lpthread
 *     ./09_saturation
 *
 * What you should see
 *     Milliseconds of a step and samples per second of a GPT of 1.6 million weights for batches of 1 to 256 samples of
 *     4 tokens, beside t0 + b s from the first and the last; what 8 times the batch gives from 1, from 4 and from 32;
 *     the knee.
 *
 * Read on: 33_accumulation.c for large batches in small memory, 60_when_not.c for batches over several ranks. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCHES = 9, STEPS = 8, SEQUENCE = 4 }; /* 1, 2, 4 .. 256 samples */

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
    recipe.model.vocabulary = 100, recipe.model.width = 256, recipe.model.layers = 2;
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
    double seconds[BATCHES], each, fixed;
    int64_t used;
    int good = 1;
    dt_result r = dt_launch(&argc, &argv);
    if (argc > 1) return fprintf(stderr, "09_saturation: it has no options\n"), 2;
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
    printf("ok: beyond the knee, 8 times the batch gives less than 8 times the samples per second\n");
    return 0;
}
