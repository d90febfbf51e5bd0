/* 37_growing_batch: how large should a batch be, and why may it grow?
 *
 * What you learn
 *     - A batch's gradient is the true one plus noise, whose square falls as 1 / batch. Far from the goal the true
 *       gradient is large, and more samples per step are wasted. Near the goal noise keeps a small batch at a distance.
 *     - The gradient noise scale, tr(Sigma) / |G|^2 in samples (McCandlish et al. 2018), tells where a run is. A batch
 *       far below it needs half as many steps if it is doubled; a batch far above it needs as many as before.
 *     - Two norms give the scale: of the gradients of parts of the batch, |G|^2 + tr(Sigma) / part on average, and of
 *       the whole batch's, |G|^2 + tr(Sigma) / batch. A part is one sample here, and a rank's share in data parallel.
 *     - The scale grows during training. The third run doubles its batch when the scale is twice the batch. "A larger
 *       batch is faster" is true late in a run, "a small one learns better" early.
 *     - SMDDP is often said to do this. Its documentation has no such feature: it is a technique.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 37_growing_batch.c -o 37_growing_batch -lm -lpthread
 *     ./37_growing_batch
 *
 * What it prints
 *      samples    batch 4   batch 64    growing   its batch  steps  noise scale
 *        65536    0.07876    0.00232    0.00309          64   1086          464
 *     ok: the growing batch has 0.015 of the large one's loss first, 0.039 of the small one's last
 *
 * Predict first: which of the three has the lowest loss after 256 samples, and which after 65536?
 * Exercise: add a run that halves the learning rate instead of doubling the batch. What does it save, and cost?
 *
 * Read on: 38_parameter_server.c for ranks that do not wait, 60_when_not.c for what a batch costs on many ranks. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <string.h>

enum { INPUTS = 16, ROWS = 5, BATCH = 4, MOST = 64, WAIT = 20, SMALL = 0, LARGE, GROWING, RUNS };

typedef struct run { double loss[ROWS], scale[ROWS]; int batch[ROWS], steps[ROWS]; } run;

static uint64_t word(uint64_t n) /* the finaliser of splitmix64 (Vigna 2015) */
{
    n = (n + 1) * 0x9e3779b97f4a7c15u;
    n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9u;
    n = (n ^ n >> 27) * 0x94d049bb133111ebu;
    return n ^ n >> 31;
}

/* A target that is linear in 16 whole numbers, plus four dice of 32 sides: a variance of 4 (32^2 - 1) / 12 / 32^2. */
static const double noise = 341.0 / 1024.0;
static void sample(int64_t i, float x[INPUTS], float *y)
{
    uint64_t key = (uint64_t)i << 8, dice = word(key + 128);
    int sum = 32 * ((int)((dice & 31) + (dice >> 8 & 31) + (dice >> 16 & 31) + (dice >> 24 & 31)) - 62);
    for (int k = 0; k < INPUTS; k++) {
        int n = (int)(word(key + (uint64_t)k) & 127) - 64;
        x[k] = (float)n / 64.0f;
        sum += 16 * (k % 2 ? n : -n);
    }
    *y = (float)sum / 1024.0f;
}

/* The mean squared error above the noise, on samples that no step sees. */
static double above_noise(const dt_parameter *w)
{
    double sum = 0.0;
    for (int64_t i = 0; i < 2048; i++) {
        float x[INPUTS], y;
        sample(1 << 30 | i, x, &y);
        y -= w[1].values[0];
        for (int k = 0; k < INPUTS; k++) y -= w[0].values[k] * x[k];
        sum += (double)(y * y);
    }
    return sum / 2048.0 - noise;
}

/* Gradients of `batch` samples, one by one: their mean in the parameters' gradients; returns the mean of their squared
 * norms, and in *whole the squared norm of their mean. */
static double gradients(dt_graph *g, dt_tensor x, dt_tensor y, const dt_parameter *w, int64_t first, int batch,
                        double *whole)
{
    float mean[INPUTS + 1] = {0}, in[INPUTS], out;
    double parts = 0.0;
    for (int i = 0; i < batch; i++) {
        sample(first + i, in, &out);
        if (dt_graph_set(g, x, in) || dt_graph_set(g, y, &out) || dt_graph_run(g)) break;
        for (int k = 0; k <= INPUTS; k++) {
            float one = k < INPUTS ? w[0].gradient[k] : w[1].gradient[0];
            mean[k] += one / (float)batch;
            parts += (double)(one * one) / batch;
        }
    }
    *whole = 0.0;
    for (int k = 0; k <= INPUTS; k++) *whole += (double)(mean[k] * mean[k]);
    memcpy(w[0].gradient, mean, INPUTS * sizeof *mean);
    w[1].gradient[0] = mean[INPUTS];
    return parts;
}

/* Trains until 65536 samples are used, and looks after each power of four of them. */
static dt_result train(int which, run *out)
{
    dt_recipe recipe = dt_recipe_default();
    dt_parameter w[2];
    dt_graph *g = NULL;
    dt_optimizer *o = NULL;
    dt_tensor x, y;
    float zero[INPUTS] = {0};
    double variance = 0.0, square = 0.0; /* averages of tr(Sigma), of one sample, and |G|^2 over about 10 steps */
    int batch = which == LARGE ? MOST : BATCH, since = 0, steps = 0;
    dt_result r = dt_graph_record(&g, 1, 1);
    if (r) return r;
    x = dt_tensor_of(g, DT_F32, dt_shape2(1, INPUTS), zero);
    y = dt_tensor_of(g, DT_F32, dt_shape2(1, 1), zero);
    r = dt_backward(g, dt_error_loss(g, DT_MSE, dt_linear_with(g, x, "w", 1, 0.001f, 0), y));
    recipe.steps = 1 << 17, recipe.warmup = 0, recipe.schedule = DT_CONSTANT;
    recipe.optimizer = DT_SGD, recipe.learning_rate = 0.1f, recipe.weight_decay = 0, recipe.clip = 0;
    if (!r) r = dt_optimizer_open(&o, &recipe, w, dt_graph_parameters(g, w, 2));
    for (int64_t used = 0, row = 0; row < ROWS && !r;) {
        double whole, parts = gradients(g, x, y, w, used, batch, &whole), keep = steps ? 0.9 : 0.0;
        variance = keep * variance + (1.0 - keep) * (parts - whole) * batch / (batch - 1);
        square = keep * square + (1.0 - keep) * (batch * whole - parts) / (batch - 1);
        r = dt_optimizer_step(o, NULL, NULL);
        used += batch, steps++;
        if (used >= 256 << 2 * row) {
            out->loss[row] = above_noise(w), out->scale[row] = square > 0.0 ? variance / square : -1.0;
            out->batch[row] = batch, out->steps[row++] = steps;
        }
        if (which == GROWING && ++since >= WAIT && batch < MOST && variance >= 2.0 * batch * square)
            batch *= 2, since = 0;
    }
    dt_optimizer_close(&o);
    dt_graph_close(&g);
    return r;
}

int main(void)
{
    static run runs[RUNS];
    const run *small = &runs[SMALL], *large = &runs[LARGE], *growing = &runs[GROWING];
    int last = ROWS - 1;
    for (int k = 0; k < RUNS; k++)
        if (train(k, &runs[k])) return dt_fail("37_growing_batch");
    printf("loss above the noise\n%8s %10s %10s %10s   %9s %6s %12s\n", "samples", "batch 4", "batch 64", "growing",
           "its batch", "steps", "noise scale");
    for (int row = 0; row <= last; row++) {
        printf("%8d %10.5f %10.5f %10.5f   %9d %6d", 256 << 2 * row, small->loss[row], large->loss[row],
               growing->loss[row], growing->batch[row], growing->steps[row]);
        printf(growing->scale[row] > 0 ? " %12.0f\n" : "       beyond\n", growing->scale[row]);
    }
    if (growing->loss[0] < 0.1 * large->loss[0] && growing->loss[last] < 0.2 * small->loss[last])
        return printf("ok: the growing batch has %.3f of the large one's loss first, %.3f of the small one's last\n",
                      growing->loss[0] / large->loss[0], growing->loss[last] / small->loss[last]), 0;
    return fprintf(stderr, "FAILED: a loss is not what it should be\n"), 1;
}
