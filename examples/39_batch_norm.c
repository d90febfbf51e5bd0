/* 39_batch_norm: why does a model with batch normalisation change when only the number of ranks does?
 *
 * What you learn
 *     - Batch normalisation subtracts the mean of the samples in a batch and divides by their deviation. It is the one
 *       layer whose output for a sample depends on the other samples.
 *     - In data parallel a rank has only its own samples: 64 on 1 rank, 2 on each of 32. The global batch is the same,
 *       but statistics of 2 samples are noise, and no reduction of gradients repairs that.
 *     - Synchronised batch norm adds up the sums of all ranks before it divides: one more all-reduce each way. Layer
 *       norm, as in all transformers here, does not need it.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 39_batch_norm.c -o 39_batch_norm -lm -lpthread
 *     ./39_batch_norm
 *
 * What it prints (~: about; rounding grows in statistics of few samples)
 *     ranks  samples of a rank  validation loss, global batch 64
 *         1                 64            0.008
 *         8                  8            0.040
 *        16                  4            ~0.223
 *        32                  2            ~0.461
 *        32  2, synchronised           0.008
 *     ok: with 2 samples per rank the loss is ~61 times that of one rank; synchronised, ~0.0000000000000000 more
 *
 * Predict first: which row is equal to that of one rank to the last digit, and why?
 * Exercise: accumulate four micro-batches of 16 on one rank. Which row does that equal, and in what does it differ?
 *
 * Read on: 40_zero_by_hand.c for memory, 32_one_hash.c for models whose bits no number of ranks changes. */
#include <math.h>
#include <stdio.h>

enum { BATCH = 64, IN = 8, HIDDEN = 16, STEPS = 2000, SAMPLES = 4096, TEST = 1024 };
static const double rate = 0.05, epsilon = 1e-5, keep = 0.99;

typedef struct net {
    double w[HIDDEN][IN], gain[HIDDEN], shift[HIDDEN], v[HIDDEN];
    double mean[HIDDEN], variance[HIDDEN]; /* running averages, for evaluation */
} net;

/* Sample i: numbers between -1 and 1, and a sum of kinks to learn. */
static double sample(int i, double x[IN])
{
    double y = 0;
    for (int k = 0; k < IN; k++) x[k] = sin((i + 1) * (k + 2) * 12.9898 + k * 78.233);
    for (int k = 0; k < IN; k++) y += fmax(0, x[k] + x[(k + 1) % IN]) * (k % 2 ? 1 : -1);
    return y;
}

static double dot(const double *a, const double *b)
{
    double sum = 0;
    for (int k = 0; k < IN; k++) sum += a[k] * b[k];
    return sum;
}
static double output(const net *t, const double *n) /* of normalised units */
{
    double y = 0;
    for (int j = 0; j < HIDDEN; j++) y += t->v[j] * fmax(0, t->gain[j] * n[j] + t->shift[j]);
    return y;
}

/* Over n samples from `from` on, added up rank by rank, `own` samples each. */
static void statistics(double h[][HIDDEN], int from, int n, int own, int unit, double *mean, double *variance)
{
    double total[2] = {0, 0};
    for (int rank = from; rank < from + n; rank += own) {
        double sum = 0, squares = 0;
        for (int i = rank; i < rank + own; i++) sum += h[i][unit], squares += h[i][unit] * h[i][unit];
        total[0] += sum, total[1] += squares; /* with n > own this is the all-reduce */
    }
    *mean = total[0] / n, *variance = total[1] / n - *mean * *mean;
}

/* One step. Each `group` of samples is normalised by itself; a rank has `own` of them. */
static void step(net *t, int first, int group, int own)
{
    static double x[BATCH][IN], y[BATCH], h[BATCH][HIDDEN], n[BATCH][HIDDEN], dn[BATCH][HIDDEN];
    net g = {0};
    for (int i = 0; i < BATCH; i++) {
        y[i] = sample((first + i) % SAMPLES, x[i]);
        for (int j = 0; j < HIDDEN; j++) h[i][j] = dot(t->w[j], x[i]);
    }
    for (int j = 0; j < HIDDEN; j++)
        for (int from = 0; from < BATCH; from += group) {
            double mean, variance, take = from ? 0 : 1 - keep; /* rank 0's averages are kept, as in most frameworks */
            statistics(h, from, group, own, j, &mean, &variance);
            for (int i = from; i < from + group; i++) n[i][j] = (h[i][j] - mean) / sqrt(variance + epsilon);
            t->mean[j] += take * (mean - t->mean[j]);
            t->variance[j] += take * (variance * group / (group - 1.0) - t->variance[j]);
        }
    for (int i = 0; i < BATCH; i++) {
        double d = output(t, n[i]) - y[i];
        for (int j = 0; j < HIDDEN; j++) {
            double a = t->gain[j] * n[i][j] + t->shift[j], da = a > 0 ? 2 * d / BATCH * t->v[j] : 0;
            g.v[j] += 2 * d / BATCH * fmax(0, a);
            g.gain[j] += da * n[i][j], g.shift[j] += da, dn[i][j] = da * t->gain[j];
        }
    }
    for (int j = 0; j < HIDDEN; j++)
        for (int from = 0; from < BATCH; from += group) {
            double mean, variance, sum = 0, along = 0;
            statistics(h, from, group, own, j, &mean, &variance);
            for (int i = from; i < from + group; i++) sum += dn[i][j], along += dn[i][j] * n[i][j];
            for (int i = from; i < from + group; i++) {
                double dh = (dn[i][j] - sum / group - n[i][j] * along / group) / sqrt(variance + epsilon);
                for (int k = 0; k < IN; k++) g.w[j][k] += dh * x[i][k];
            }
        }
    for (int j = 0; j < HIDDEN; j++) {
        for (int k = 0; k < IN; k++) t->w[j][k] -= rate * g.w[j][k];
        t->gain[j] -= rate * g.gain[j], t->shift[j] -= rate * g.shift[j], t->v[j] -= rate * g.v[j];
    }
}

static double evaluate(const net *t)
{
    double loss = 0;
    for (int i = SAMPLES; i < SAMPLES + TEST; i++) {
        double x[IN], n[HIDDEN], d = -sample(i, x);
        for (int j = 0; j < HIDDEN; j++) n[j] = (dot(t->w[j], x) - t->mean[j]) / sqrt(t->variance[j] + epsilon);
        d += output(t, n), loss += d * d / TEST;
    }
    return loss;
}

static double train(int group, int own)
{
    net t = {0};
    for (int j = 0; j < HIDDEN; j++) {
        for (int k = 0; k < IN; k++) t.w[j][k] = 0.5 * sin((j * IN + k + 1) * 78.233);
        t.gain[j] = t.variance[j] = 1, t.v[j] = 0.3 * sin((j + 1) * 12.9898);
    }
    for (int i = 0; i < STEPS; i++) step(&t, i * BATCH, group, own);
    return evaluate(&t);
}

int main(void)
{
    double one = 0, noisy, validation = 0;
    printf("ranks  samples of a rank  validation loss, global batch %d\n", BATCH);
    for (int own = BATCH; own >= 2; own /= 2) {
        validation = train(own, own);
        printf("%5d %18d %16.3f\n", BATCH / own, own, validation);
        if (own == BATCH) one = validation;
    }
    noisy = validation, validation = train(BATCH, 2);
    printf("%5d  2, synchronised %15.3f\n", BATCH / 2, validation);
    if (noisy < 10 * one || fabs(validation - one) > 1e-3) return fprintf(stderr, "FAILED: a loss is wrong\n"), 1;
    return printf("ok: with 2 samples per rank the loss is %.0f times that of one rank; synchronised, %.16f more\n",
                  noisy / one, fabs(validation - one)), 0;
}
