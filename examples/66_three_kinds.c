/* 66_three_kinds: jobs, data or models in parallel: what does each make faster, and what does it send?
 *
 * What you learn
 *     - Parallel jobs: each rank trains a model of its own, here with a learning rate of its own. Nothing is sent, and
 *       no single training gets faster. A search and a catalogue of models are parallel jobs.
 *     - Parallel data: one model, a copy on each rank, half of the samples each. All gradients are sent in every step.
 *     - Parallel model: one model, half of the layers on each rank. A rank sends what passes the boundary, and keeps
 *       half of the weights.
 *     - The order of questions: are there several trainings? Then jobs. Does one model fit? Then data. Else the model.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 66_three_kinds.c -o 66_three_kinds -lm -lpthread
 *     ./66_three_kinds --ranks 2
 *     ./66_three_kinds --ranks 2 --samples 8     (of a step; else 16)
 *
 * What it prints
 *     parallel  models  weights of a rank  bytes that a rank sends a step     loss
 *     jobs           2               4096                               0  0.01137 and 0.15435
 *     data           1               4096                           16384  0.01137
 *     model          1               2048                            2048  0.01137
 *     ok: with 16 samples jobs send 0 bytes, data 16384, the model 2048; one loss, 0.01137
 *
 * Predict first: with half the samples per step, which of the numbers of bytes halves?
 * Exercise: search with two ranks per model: groups by dt_comm_split, data parallel inside each. What is sent?
 *
 * Read on: 70_checkpoints.c for what to save of all this, 62_rule_of_thumb.c for the order of decisions. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "layers.h"
#include "option.h"

enum { JOBS, DATA, MODEL, KINDS, HALF = DEPTH / 2 };

typedef struct run {
    dt_comm *c;
    int rank;
    float w[WEIGHTS], loss;
    int64_t kept, sent; /* weights of this rank; bytes in a step */
} run;

/* Forward and backward through layers [from, to). d: the gradient of the output, then of the input. */
static dt_result forward(const run *r, int from, int to, float x[][SAMPLES * WIDTH], int n)
{
    dt_result e = DT_OK;
    for (int l = from; l < to && !e; l++) e = layer_forward(r->w + l * LAYER, x[l], n, x[l + 1]);
    return e;
}
static dt_result backward(const run *r, int from, int to, float x[][SAMPLES * WIDTH], int n, float *d, float *g)
{
    dt_result e = DT_OK;
    for (int l = to; l-- > from && !e;) e = layer_backward(r->w + l * LAYER, x[l], d, n, g + l * LAYER, d);
    return e;
}

static int samples = SAMPLES;

static dt_result step(run *r, int kind, float rate)
{
    static float x[DEPTH + 1][SAMPLES * WIDTH], target[SAMPLES * WIDTH], d[SAMPLES * WIDTH], g[WEIGHTS];
    int n = kind == DATA ? samples / 2 : samples, at = kind == DATA ? n * r->rank : 0, size = n * WIDTH;
    int from = kind == MODEL ? HALF * r->rank : 0, to = kind == MODEL ? from + HALF : DEPTH;
    dt_result e = DT_OK;
    memset(g, 0, sizeof g);
    for (int i = 0; i < n; i++) layers_sample(NULL, DT_TRAIN, at + i, x[0] + i * WIDTH, target + i * WIDTH);
    if (from) e = dt_recv(r->c, x[from], size, 0);
    if (!e) e = forward(r, from, to, x, n);
    if (!e && to < DEPTH) e = dt_send(r->c, x[to], size, 1);
    if (!e && to < DEPTH) e = dt_recv(r->c, d, size, 1);
    if (to == DEPTH) r->loss = layers_error(x[DEPTH], target, n, d);
    if (!e) e = backward(r, from, to, x, n, d, g);
    if (!e && from) e = dt_send(r->c, d, size, 0);
    if (!e && kind == DATA) e = dt_all_reduce(r->c, g, WEIGHTS, DT_SUM);
    for (int i = 0; i < WEIGHTS; i++) r->w[i] -= rate * g[i] / (kind == DATA ? 2 : 1);
    r->kept = (to - from) * LAYER;
    return e;
}

static dt_result train(run *r, int kind, float rate)
{
    dt_result e = DT_OK;
    for (int i = 0; i < WEIGHTS; i++) r->w[i] = 0.2f * sinf((float)(i + 1) * 12.9898f);
    r->sent = -(int64_t)dt_comm_sent(r->c, 1 - r->rank);
    for (int i = 0; i < STEPS && !e; i++) e = step(r, kind, rate);
    r->sent = (r->sent + (int64_t)dt_comm_sent(r->c, 1 - r->rank)) / STEPS;
    return e;
}

int main(int argc, char **argv)
{
    static const char *const names[KINDS] = {"jobs", "data", "model"};
    static run r;
    float own[3], all[6], loss[KINDS] = {0}, sent[KINDS] = {0};
    double number = SAMPLES;
    const option list[] = {{"--samples", 2, SAMPLES, &number}};
    dt_result e = dt_comm_open(&r.c, &argc, &argv);
    if (e) return dt_fail("66_three_kinds");
    r.rank = dt_comm_rank(r.c);
    if (dt_comm_size(r.c) != 2) return fprintf(stderr, "66_three_kinds: the ranks are --ranks 2\n"), 2;
    if (!options_read(argc, argv, list, 1)) return 2;
    if (fmod(number, 2) > 0)
        return fprintf(stderr, "66_three_kinds: two ranks share the samples. Give --samples an even number\n"), 2;
    samples = (int)number;
    if (!r.rank) printf("parallel  models  weights of a rank  bytes that a rank sends a step     loss\n");
    for (int kind = 0; kind < KINDS && !e; kind++) {
        e = train(&r, kind, kind == JOBS && r.rank ? 0.3f : 1.0f);
        own[0] = (float)r.kept, own[1] = (float)r.sent, own[2] = r.loss;
        if (!e) e = dt_all_gather(r.c, own, all, 3);
        sent[kind] = all[1];
        loss[kind] = kind == JOBS ? all[2] : kind == DATA ? (all[2] + all[5]) / 2 : all[5];
        if (!r.rank && !e) printf("%-8s  %6d  %17.0f  %30.0f  %.5f", names[kind], kind ? 1 : 2, (double)all[0],
                                  (double)all[1], (double)loss[kind]);
        if (!r.rank && kind == JOBS) printf(" and %.5f", (double)all[5]);
        if (!r.rank) printf("\n");
    }
    dt_comm_close(&r.c);
    if (e) return dt_fail("66_three_kinds");
    if (fabsf(loss[MODEL] - loss[JOBS]) > 1e-6f || fabsf(loss[DATA] - loss[JOBS]) > 1e-4f * loss[JOBS])
        return fprintf(stderr, "FAILED: the three kinds train other models\n"), 1;
    if (!r.rank)
        printf("ok: with %d samples jobs send %.0f bytes, data %.0f, the model %.0f; one loss, %.5f\n", samples,
               (double)sent[JOBS], (double)sent[DATA], (double)sent[MODEL], (double)loss[JOBS]);
    return 0;
}
