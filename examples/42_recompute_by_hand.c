/* 42_recompute_by_hand: why can a model train without keeping what its layers computed?
 *
 * What you learn
 *     - The backward pass of a layer needs the layer's input. A plain loop keeps the inputs of all N layers from
 *       forward to backward.
 *     - Recompute (activation checkpointing, Chen et al. 2016) keeps every k-th input. Backward takes k layers at a
 *       time: it computes their inputs again from the one that was kept, uses them, and frees them. At most N / k are
 *       kept at the boundaries and k - 1 inside a group. With k = sqrt(N) both numbers are about sqrt(N).
 *     - The price is a second forward of all layers but the last of each group: N - N / k. A step without recompute
 *       costs as much as three forwards, since backward costs two. So recompute adds at most a third; "recompute
 *       doubles the time" is wrong.
 *     - Inputs that are computed again have the same bits, and so have the gradients.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 42_recompute_by_hand.c -o 42_recompute_by_hand -lm -lpthread
 *     ./42_recompute_by_hand
 *     Another number of layers: cc -DDEPTH=64 -O2 -I.. 42_recompute_by_hand.c -o 42_recompute_by_hand -lm -lpthread
 *
 * What it prints
 *     16 layers: inputs kept at most, layers computed forward in a step
 *        k   kept  N/k + k - 1   forward  2N - N/k      loss
 *        1     16           16        16        16   0.02342
 *        2      9            9        24        24   0.02342
 *        4      7            7        28        28   0.02342
 *       16     16           16        31        31   0.02342
 *     the trainer, without and with recompute: loss 0.02342
 *     ok: 5 values of k, the same 16384 weights to the bit; the fewest inputs are 7, with k = 4
 *
 * Predict first: with 64 layers, which k keeps the fewest inputs, and how many?
 * Exercise: recompute recursively: halves, halves of halves, .. How few inputs are kept then, and what does it cost?
 *
 * Read on: 43_memory.c for recompute and offload in the trainer, 40_zero_by_hand.c for what weights cost. */
#ifndef DEPTH
#define DEPTH 16 /* a power of two up to 128: -DDEPTH=64 */
#endif
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "layers.h"
#include <stdlib.h>

enum { FLOATS = SAMPLES * WIDTH };
static int kept, most, forwards; /* inputs that are kept now, at most so far; layers computed forward */

/* Keeps a copy of an input until drop(). */
static float *keep(const float *x)
{
    float *copy = malloc(sizeof(float) * FLOATS);
    if (copy) memcpy(copy, x, sizeof(float) * FLOATS);
    most = ++kept > most ? kept : most;
    return copy;
}
static void drop(float **x)
{
    free(*x);
    *x = NULL, kept--;
}

/* Replaces x by what layer l makes of it. */
static dt_result forward(const float *w, int l, float *x)
{
    float y[FLOATS];
    dt_result r = layer_forward(w + l * LAYER, x, SAMPLES, y);
    memcpy(x, y, sizeof y);
    forwards++;
    return r;
}

/* One pass; every k-th input is kept. */
static dt_result gradients(const float *w, int k, const float *first, const float *target, float *g, float *loss)
{
    float *input[DEPTH] = {NULL}, x[FLOATS], dy[FLOATS];
    dt_result r = DT_OK;
    memcpy(x, first, sizeof x);
    for (int l = 0; l < DEPTH && !r; l++) {
        if (l % k == 0) input[l] = keep(x);
        r = forward(w, l, x);
    }
    *loss = layers_error(x, target, SAMPLES, dy);
    for (int begin = DEPTH - k; begin >= 0 && !r; begin -= k) {
        memcpy(x, input[begin], sizeof x);
        for (int l = begin + 1; l < begin + k && !r; l++) { /* again, from the input that was kept */
            r = forward(w, l - 1, x);
            input[l] = keep(x);
        }
        for (int l = begin + k; l-- > begin && !r;) {
            r = layer_backward(w + l * LAYER, input[l], dy, SAMPLES, g + l * LAYER, dy);
            drop(&input[l]);
        }
    }
    return r;
}

static dt_result train(const float *first, int k, float *w, float *loss)
{
    static float x[FLOATS], target[FLOATS], g[WEIGHTS], m[WEIGHTS], v[WEIGHTS];
    dt_result r = DT_OK;
    memcpy(w, first, sizeof(float) * WEIGHTS);
    memset(m, 0, sizeof m), memset(v, 0, sizeof v);
    for (int64_t i = 0; i < SAMPLES; i++) layers_sample(NULL, DT_TRAIN, i, x + i * WIDTH, target + i * WIDTH);
    for (int step = 1; step <= STEPS && !r; step++) {
        kept = most = forwards = 0;
        r = gradients(w, k, x, target, g, loss);
        adam(w, g, m, v, WEIGHTS, step);
    }
    return r;
}

int main(void)
{
    static float first[WEIGHTS], end[8][WEIGHTS];
    float loss[8], trainers;
    dt_layout l = dt_layout_default();
    int good = 1, runs = 0, best = 1, fewest = DEPTH;
    dt_result r = DT_OK;
    l.recompute = DT_RECOMPUTE_FULL;
    trainers = layers_trainers(&l, first);
    printf("%d layers: inputs kept at most, layers computed forward in a step\n", DEPTH);
    printf("   k   kept  N/k + k - 1   forward  2N - N/k      loss\n");
    for (int k = 1; k <= DEPTH && !r; k *= 2, runs++) {
        r = train(first, k, end[runs], &loss[runs]);
        if (most < fewest) fewest = most, best = k;
        printf("  %2d     %2d           %2d        %2d        %2d   %.5f\n", k, most, DEPTH / k + k - 1, forwards,
               2 * DEPTH - DEPTH / k, (double)loss[runs]);
        good = good && most == DEPTH / k + k - 1 && forwards == 2 * DEPTH - DEPTH / k;
        good = good && !kept && !memcmp(end[runs], end[0], sizeof end[0]);
    }
    if (r) return dt_fail("42_recompute_by_hand");
    printf("the trainer, without and with recompute: loss %.5f\n", (double)trainers);
    good = good && fabsf(trainers - loss[0]) < 1e-3f * trainers;
    if (!good) return fprintf(stderr, "FAILED: bits, counts or losses differ\n"), 1;
    printf("ok: %d values of k, the same %d weights to the bit; the fewest inputs are %d, with k = %d\n", runs, WEIGHTS,
           fewest, best);
    return 0;
}
