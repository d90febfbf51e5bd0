/* 60_when_not: when is one rank faster than several?
 *
 * What you learn
 *     - Every step of data parallel pays for its exchange, t seconds, for any number of samples. A batch of b samples
 *       of s seconds takes b s on one rank and b s / n + t on n. n ranks beat one when b > b* = n t / ((n-1) s), the
 *       break-even batch; at 4 b* two ranks are 1.6 times as fast.
 *     - t is known beforehand: 2 (n-1) alpha + 2 (n-1)/n S / B for S bytes of gradients; two sizes of an all-reduce
 *       give alpha and B. More ranks do not lower t: the second term tends to 2 S / B, the first one grows.
 *     - k micro-batches between two exchanges (accumulation) divide the price by k at the same memory, but there are
 *       fewer steps for the same samples. Where the model does not learn from larger batches, one rank is faster and
 *       cheaper.
 *     - So data parallel helps a run that spends its time computing. "Small models with small batches rarely pay" is a
 *       consequence; where it begins depends on S, s and B.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 60_when_not.c -o 60_when_not -lm -lpthread
 *     ./60_when_not --ranks 2                               (an emulated link of 10 Mbit/s)
 *     DT_LINK_RATE=1e8 ./60_when_not --ranks 4              (in bytes a second; else 1.25e6)
 *
 * What it prints (~: measured)
 *     8705 weights on 2 ranks: S = 34.8 kB; alpha ~0.2 us, B ~1.248 MB/s
 *       bytes sent by a rank       34820   2 (n-1)/n S = 34820
 *     A sample takes s = ~19.4 us: break-even b* = n t / ((n-1) s) = ~2880 samples
 *          batch     1 rank, ms    n ranks, ms  predicted   measured
 *           ~182          ~3.32         ~30.36     ~0.12x     ~0.11x
 *           ~722         ~17.72         ~37.29     ~0.40x     ~0.48x
 *          ~2882         ~70.64         ~64.73     ~1.00x     ~1.09x
 *         ~11522        ~259.10        ~148.70     ~1.60x     ~1.74x
 *     ok: 34820 bytes as by formula; ~182 samples, a sixteenth of break-even: ~0.11 times as fast as on one rank
 *
 * Predict first: on a link of ten times the rate, what is the break-even batch?
 * Exercise: train on 16 micro-batches, a sixteenth of the break-even batch each, with an exchange after each of them,
 *     and with one exchange for all. How many bytes does a rank send, and which of the two ways beats one rank?
 *
 * Read on: 61_scaling.c for many nodes, 62_rule_of_thumb.c for a rule that knows less; 80_doctor.c asks a real job. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { INPUTS = 32, HIDDEN = 256, N = HIDDEN * (INPUTS + 2) + 1 }; /* 8705 weights */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Adds the gradient of one sample's squared error to grad (N). */
static void backward(const float *w, float *grad, int sample)
{
    float x[INPUTS], h[HIDDEN], y = 0, d;
    for (int i = 0; i < INPUTS; i++) x[i] = (float)((sample * 7919 + i * 104729) % 1024) / 512.0f - 1.0f;
    for (int j = 0; j < HIDDEN; j++) {
        const float *row = w + j * (INPUTS + 2);
        float sum = row[INPUTS];
        for (int i = 0; i < INPUTS; i++) sum += row[i] * x[i];
        h[j] = tanhf(sum);
        y += row[INPUTS + 1] * h[j];
    }
    d = y + w[N - 1] - x[0] * x[1];
    grad[N - 1] += d;
    for (int j = 0; j < HIDDEN; j++) {
        float *row = grad + j * (INPUTS + 2), back = d * w[j * (INPUTS + 2) + INPUTS + 1] * (1 - h[j] * h[j]);
        for (int i = 0; i < INPUTS; i++) row[i] += back * x[i];
        row[INPUTS] += back;
        row[INPUTS + 1] += d * h[j];
    }
}

/* One step on `batch` samples shared by n ranks, the exchange left out when n is 1. */
static dt_result step(dt_comm *c, float *w, float *grad, int64_t batch, int rank, int n)
{
    dt_result r = DT_OK;
    memset(grad, 0, N * sizeof *grad);
    for (int64_t i = rank; i < batch; i += n) backward(w, grad, (int)i);
    if (n > 1) r = dt_all_reduce(c, grad, N, DT_SUM);
    for (int k = 0; k < N; k++) w[k] -= 0.01f * grad[k] / (float)batch;
    return r;
}

typedef struct job { /* a step on `batch` samples, of all ranks or of rank 0 alone; or an all-reduce of `floats` */
    float *w, *grad;
    int64_t batch, floats;
    int alone;
} job;

/* Seconds of a job, the fastest of some, the same on all ranks. */
static dt_result time_of(dt_comm *c, const job *j, float *seconds)
{
    int rank = j->alone ? 0 : dt_comm_rank(c), n = j->alone ? 1 : dt_comm_size(c);
    dt_result r = DT_OK;
    *seconds = 1e30f;
    for (int i = 0; i < (j->floats ? 5 : 3) && !r; i++) {
        double start;
        r = dt_barrier(c);
        start = now();
        if (!r && j->floats) r = dt_all_reduce(c, j->grad, j->floats, DT_SUM);
        else if (!r && (!j->alone || !dt_comm_rank(c))) r = step(c, j->w, j->grad, j->batch, rank, n);
        if (now() - start < (double)*seconds) *seconds = (float)(now() - start);
    }
    return r ? r : dt_broadcast(c, seconds, 1, 0);
}

/* The exchange of N floats: by alpha and B from two other sizes, and measured; and the bytes that a rank sends. */
static dt_result exchange(dt_comm *c, float *data, double *predicted, double *bytes, int *good)
{
    enum { LARGE = 16384 };
    const job jobs[3] = {{NULL, data, 0, 1, 0}, {NULL, data, 0, LARGE, 0}, {NULL, data, 0, N, 0}};
    double n = dt_comm_size(c), alpha, per_byte, formula = 2 * (n - 1) / n * 4.0 * N;
    float few = 0, many = 0, sent = 0, measured = 0;
    dt_result r = time_of(c, &jobs[0], &few);
    if (!r) r = time_of(c, &jobs[1], &many);
    for (int q = 0; q < (int)n; q++) sent -= (float)dt_comm_sent(c, q);
    if (!r) r = time_of(c, &jobs[2], &measured);
    for (int q = 0; q < (int)n; q++) sent += (float)dt_comm_sent(c, q);
    if (!r) r = dt_all_reduce(c, &sent, 1, DT_SUM);
    if (r) return r;
    alpha = (double)few / (2 * (n - 1));
    per_byte = (double)(many - few) / (2 * (n - 1) / n * 4.0 * LARGE);
    *predicted = 2 * (n - 1) * alpha + formula * per_byte;
    sent /= 5 * (float)n; /* exchanges of each rank; the seconds that were broadcast are few bytes */
    *bytes = (double)sent;
    *good = *good && fabs(*bytes - formula) <= 0.001 * formula;
    if (dt_comm_rank(c)) return r;
    printf("%d weights on %.0f ranks: S = %.1f kB; alpha %.1f us, B %.3f MB/s\n", N, n, 4e-3 * N, 1e6 * alpha,
           1e-6 / per_byte);
    printf("  bytes sent by a rank    %8.0f   2 (n-1)/n S = %.0f\n", *bytes, formula);
    printf("  exchange, ms            %8.2f   2 (n-1) alpha + 2 (n-1)/n S / B = %.2f\n\n", 1e3 * (double)measured,
           1e3 * *predicted);
    return r;
}

/* A line for each batch. ratio: how many times as fast n ranks are with the smallest one, *least. */
static dt_result sweep(dt_comm *c, float *w, float *grad, double each, double t, int64_t *least, double *ratio)
{
    int n = dt_comm_size(c), root = !dt_comm_rank(c);
    double even = n * t / ((n - 1) * each), last = 0, before = 0, found = 0;
    dt_result r = DT_OK;
    if (root) printf("A sample takes s = %.1f us: break-even b* = n t / ((n-1) s) = %.0f samples\n", 1e6 * each, even);
    if (root) printf("  %8s %14s %14s %10s %10s\n", "batch", "1 rank, ms", "n ranks, ms", "predicted", "measured");
    for (int i = 0; i < 4 && !r; i++) {
        static const double parts[4] = {1.0 / 16, 1.0 / 4, 1, 4};
        int64_t batch = n * (int64_t)ceil(parts[i] * even / n);
        const job jobs[2] = {{w, grad, batch, 0, 1}, {w, grad, batch, 0, 0}};
        float one = 0, all = 0;
        double gain;
        r = time_of(c, &jobs[0], &one);
        if (!r) r = time_of(c, &jobs[1], &all);
        gain = (double)(one / all);
        if (i == 0) *least = batch, *ratio = gain;
        if (i && last < 1 && gain >= 1) found = before * pow((double)batch / before, (1 - last) / (gain - last));
        last = gain, before = (double)batch;
        if (root && !r)
            printf("  %8lld %14.2f %14.2f %9.2fx %9.2fx\n", (long long)batch, 1e3 * (double)one, 1e3 * (double)all,
                   (double)batch * each / ((double)batch * each / n + t), gain);
    }
    if (!root || r) return r;
    printf("Break-even: predicted %.0f, ", even);
    printf(found > 0 ? "measured about %.0f samples. " : "not met here: the cores are busy. ", found);
    printf("In micro-batches of a sixteenth: 16 between two exchanges.\n\n");
    return r;
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    float *w = (float *)malloc(2 * 16384 * sizeof *w), *grad, each = 0;
    double predicted = 0, sent = 0, ratio = 0;
    int64_t least = 0;
    int root, good = 1;
    dt_result r;
    setenv("DT_LINK_RATE", "1.25e6", 0); /* 10 Mbit/s, where nothing else is said */
    r = dt_comm_open(&c, &argc, &argv);
    if (r || !w) return dt_fail("60_when_not");
    root = dt_comm_rank(c) == 0, grad = w + 16384;
    if (argc > 1 || dt_comm_size(c) < 2)
        return root ? fprintf(stderr, "60_when_not: the option is --ranks N, 2 or more\n"), 2 : 2;
    memset(grad, 0, 16384 * sizeof *grad);
    for (int k = 0; k < N; k++) w[k] = (float)((k * 37 + 11) % 64) / 512.0f - 0.0625f;
    r = exchange(c, grad, &predicted, &sent, &good);
    if (!r) r = time_of(c, &(job){w, grad, 512, 0, 1}, &each);
    if (!r) r = sweep(c, w, grad, (double)each / 512, predicted, &least, &ratio);
    dt_comm_close(&c);
    free(w);
    if (r) return dt_fail("60_when_not");
    good = good && ratio < 1.0; /* how much better larger batches are, other programs on these cores decide */
    if (!root) return !good;
    if (!good) return fprintf(stderr, "FAILED: bytes, or a ratio, are not what they should be\n"), 1;
    return printf("ok: %.0f bytes as by formula; %lld samples, a sixteenth of break-even: %.2f times as fast as on one "
                  "rank\n", sent, (long long)least, ratio), 0;
}
