/* 54_ring_attention_by_hand: how can one sequence be too long for a rank, and be attended to as a whole?
 *
 * What you learn
 *     - Attention of T positions compares T x T pairs, but no rank needs all keys at once. Each of n ranks has the
 *       queries, keys and values of T / n positions. The queries stay; keys and values travel around a ring, and after
 *       n rounds every query has met every key.
 *     - A softmax can be added up piece by piece: keep the largest score so far, the sum of exponentials, and the
 *       weighted sum of values. A larger score rescales the two sums (Milakov and Gimelshein 2018; FlashAttention does
 *       the same with blocks of one rank's memory).
 *     - A rank sends its keys and values n - 1 times: 2 (n-1)/n T d floats, beside T x T / n pairs of work. The longer
 *       the sequence, the easier the ring is to hide.
 *     - A causal model needs only the keys before a query. With slices in order, the last rank has nearly all of the
 *       work. Cut into 2n slices, and give rank r slices r and 2n-1-r: then all have the same.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 54_ring_attention_by_hand.c -o 54_ring_attention_by_hand -lm -lpthread
 *     ./54_ring_attention_by_hand --ranks 4
 *
 * What it prints
 *     64 positions on 4 ranks; a rank sends 6144 bytes; by 2 (n-1)/n T d: 6144
 *       slices          busiest beside the mean  pairs of each rank
 *       in order                           1.74  136 392 648 904
 *       from both ends                     1.00  520 520 520 520
 *
 * Predict first: with 128 positions instead of 64, what becomes of the bytes, of the pairs, and of their ratio?
 * Exercise: skip the rounds in which all keys are later than all queries. What must still be sent?
 *
 * Read on: 55_ring_attention.c for training with it, 22_ring.c for the ring that adds. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { T = 64, D = 16, MOST = 8 };
enum { Q, K, V };

/* Number d of the query, key or value at a position. */
static float number(int what, int position, int d)
{
    return sinf((float)(1 + position * (what + 2) + d * (d + what)));
}

/* The position of row i of rank r: slices in order, or two slices from both ends. */
static int position(int balanced, int r, int n, int i)
{
    int half = T / (2 * n);
    if (!balanced) return r * (T / n) + i;
    return i < half ? r * half + i : (2 * n - 1 - r) * half + i - half;
}

/* What a query has met so far. */
typedef struct row {
    float most, sum, out[D];
} row;

static void meet(row *o, const float *q, const float *k, const float *v)
{
    float score = 0, most, before, weight;
    for (int d = 0; d < D; d++) score += q[d] * k[d];
    score /= sqrtf((float)D);
    most = fmaxf(o->most, score);
    before = expf(o->most - most), weight = expf(score - most);
    for (int d = 0; d < D; d++) o->out[d] = o->out[d] * before + weight * v[d];
    o->sum = o->sum * before + weight, o->most = most;
}

/* Passes keys and values to the next rank. Those with even numbers send first, or all would wait for each other. */
static dt_result pass_on(dt_comm *c, float *kv, float *fresh, int64_t count)
{
    int r = dt_comm_rank(c), n = dt_comm_size(c);
    dt_result e = DT_OK;
    for (int turn = 0; turn < 2 && !e; turn++)
        e = (r + turn) % 2 == 0 ? dt_send(c, kv, count, (r + 1) % n) : dt_recv(c, fresh, count, (r + n - 1) % n);
    if (!e) memcpy(kv, fresh, sizeof(float) * (size_t)count);
    return e;
}

/* Causal attention of this rank's queries. *pairs: of queries and keys that it compared. */
static dt_result ring(dt_comm *c, int balanced, row *out, int64_t *pairs)
{
    static float q[T][D], kv[2 * T * D], fresh[2 * T * D];
    int rank = dt_comm_rank(c), n = dt_comm_size(c), rows = T / n;
    dt_result r = DT_OK;
    *pairs = 0;
    for (int i = 0; i < rows; i++) {
        int at = position(balanced, rank, n, i);
        for (int d = 0; d < D; d++) {
            q[i][d] = number(Q, at, d);
            kv[i * D + d] = number(K, at, d), kv[(rows + i) * D + d] = number(V, at, d);
        }
        memset(&out[i], 0, sizeof out[i]);
        out[i].most = -INFINITY;
    }
    for (int round = 0; round < n && !r; round++) {
        int from = (rank - round + n) % n; /* whose keys these are */
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < rows; j++) {
                if (position(balanced, from, n, j) > position(balanced, rank, n, i)) continue;
                meet(&out[i], q[i], kv + j * D, kv + (rows + j) * D);
                ++*pairs;
            }
        if (round + 1 < n) r = pass_on(c, kv, fresh, 2 * rows * D);
    }
    for (int i = 0; i < rows; i++)
        for (int d = 0; d < D; d++) out[i].out[d] /= out[i].sum;
    return r;
}

/* The largest distance of this rank's rows from attention over the whole sequence, two passes, in double. */
static float distance(int balanced, int rank, int n, const row *out)
{
    double far = 0;
    for (int i = 0; i < T / n; i++) {
        int at = position(balanced, rank, n, i);
        double sum = 0, o[D] = {0};
        for (int j = 0; j <= at; j++) {
            double score = 0;
            for (int d = 0; d < D; d++) score += (double)number(Q, at, d) * (double)number(K, j, d);
            score = exp(score / sqrt((double)D)), sum += score;
            for (int d = 0; d < D; d++) o[d] += score * (double)number(V, j, d);
        }
        for (int d = 0; d < D; d++) far = fmax(far, fabs(o[d] / sum - (double)out[i].out[d]));
    }
    return (float)far;
}

int main(int argc, char **argv)
{
    static const char *const names[2] = {"in order", "from both ends"};
    static row out[T];
    int64_t pairs, sent = 0, formula;
    int rank, n, good = 1;
    dt_comm *c = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("54_ring_attention_by_hand");
    rank = dt_comm_rank(c), n = dt_comm_size(c), formula = 4 * 2 * (n - 1) * T * D / n;
    if (argc > 1 || n > MOST || T % (2 * n))
        return fprintf(stderr, "54_ring_attention_by_hand: the option is --ranks 1, 2, 4 or 8\n"), 2;
    for (int balanced = 0; balanced < 2 && !r; balanced++) {
        float mine, all[MOST], far, most = 0;
        int64_t before = dt_comm_sent(c, (rank + 1) % n);
        r = ring(c, balanced, out, &pairs);
        sent = dt_comm_sent(c, (rank + 1) % n) - before;
        mine = (float)pairs, far = distance(balanced, rank, n, out);
        if (!r) r = dt_all_gather(c, &mine, all, 1);
        if (!r) r = dt_all_reduce(c, &far, 1, DT_MAX);
        good = good && sent == formula && far < 1e-5f;
        if (!rank && !balanced)
            printf("%d positions on %d rank%s; a rank sends %lld bytes; by 2 (n-1)/n T d: %lld\n"
                   "  slices          busiest beside the mean  pairs of each rank\n", T, n, n > 1 ? "s" : "",
                   (long long)sent, (long long)formula);
        for (int q = 0; q < n; q++) most = fmaxf(most, all[q]);
        if (!rank) printf("  %-14s  %23.2f ", names[balanced], (double)(most * (float)n / (T * (T + 1) / 2)));
        for (int q = 0; q < n && !rank; q++) printf(" %.0f%s", (double)all[q], q + 1 == n ? "\n" : "");
        good = good && (!balanced || most * (float)n == T * (T + 1) / 2);
    }
    dt_comm_close(&c);
    if (r) return dt_fail("54_ring_attention_by_hand");
    if (!good) return fprintf(stderr, "FAILED: bytes, balance or numbers differ\n"), 1;
    if (!rank) printf("ok: the attention of the whole sequence, and no rank had all of it\n");
    return 0;
}
