/* 31_data_parallel: which lines make a training loop data parallel, and what keeps the replicas equal?
 *
 * What you learn
 *     - Every rank has all weights (a replica) and takes its own part of the batch. After backward the ranks add up
 *       their gradients, divide by the number of ranks, and make the same update. Six lines, marked DP, do that. No
 *       weights are sent after the start.
 *     - Run 1, as most do it: each rank averages over its slice of the batch. The ranks have the same checksum of the
 *       weights. Other numbers of ranks give other last bits.
 *     - Run 2 leaves out one all-reduce. The replicas drift apart, silently: the loss still falls, and later
 *       all-reduces make gradients equal, not weights.
 *     - Run 3 cuts the batch into 8 shards for every number of ranks. A rank sums its shards as a part of one tree,
 *       and dt_all_reduce adds the ranks as the rest of the same tree. So 1, 2, 4 and 8 ranks get the same bits.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 31_data_parallel.c -o 31_data_parallel -lm -lpthread
 *     ./31_data_parallel --ranks 2               (1, 2, 4 or 8 ranks; run it with each, and compare)
 *
 * What it prints
 *     1 as most do it: loss and each rank's checksum
 *       step 59  loss 0.0334   b9d557  b9d557
 *     2 with one all-reduce left out: loss and each rank's checksum
 *       step 20  loss 0.1634   0c7c1b  ebd38b    DRIFT
 *       step 59  loss 0.0347   0b7aa8  2484d1    DRIFT
 *     3 with 8 shards and one tree: loss and each rank's checksum
 *       step 59  loss 0.0334   fb18cd  fb18cd
 *     at any rank count: fb18cd; here: fb18cd
 *     ok: ranks: 2, equal but for run 2; run 3 ends with fb18cd everywhere
 *
 * Predict first: does the loss of run 2 at step 59 show that something is wrong?
 * Exercise: leave out the all-reduce of step 0 instead, and broadcast the weights after step 20. Is the drift gone?
 *
 * Read on: 32_one_hash.c, the same for a GPT; 33_accumulation.c for which choices do change bits. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN = 8, HIDDEN = 16, BATCH = 64, SHARDS = 8, STEPS = 60, FAULT = 20, WEIGHTS = IN * HIDDEN + HIDDEN };
#define EXPECTED 0xfb18cdu /* the checksum at the end of run 3 */

/* Samples [first, first+n) of a step: eight bits as +1 or -1, and what most of the first three say. Integers alone. */
static void samples(int step, int first, int n, float *x, float *y)
{
    for (int i = 0; i < n; i++) {
        unsigned bits = ((unsigned)(step * BATCH + first + i) * 2654435761u) >> 24; /* scrambles the sample's number */
        for (int k = 0; k < IN; k++) x[i * IN + k] = bits >> k & 1u ? 1.0f : -1.0f;
        y[i] = (bits & 1u) + (bits >> 1 & 1u) + (bits >> 2 & 1u) >= 2 ? 1.0f : -1.0f;
    }
}

/* Copies t to `to` and closes the graph. */
static dt_result take(dt_graph *g, dt_tensor t, float *to)
{
    dt_result e = dt_graph_result(g);
    if (!e) memcpy(to, dt_value(g, t), (size_t)dt_shape_count(dt_shape_of(g, t)) * sizeof *to);
    dt_graph_close(&g);
    return e;
}

/* The model, a network of your own: mean over n samples of (tanh(x W1) W2 - y)^2, and its gradient. w is W1 and W2. */
static dt_result my_backward(const float *w, int step, int first, int n, float *gradient, float *loss)
{
    float x[BATCH * IN], y[BATCH];
    dt_graph *g = NULL;
    dt_tensor weights, w1, w2, out, miss, mean;
    dt_result e = dt_graph_open(&g, 1);
    if (e) return e;
    samples(step, first, n, x, y);
    weights = dt_tensor_of(g, DT_F32, dt_shape1(WEIGHTS), w);
    w1 = dt_reshape(g, dt_slice(g, weights, 0, 0, IN * HIDDEN), dt_shape2(IN, HIDDEN));
    w2 = dt_reshape(g, dt_slice(g, weights, 0, IN * HIDDEN, WEIGHTS), dt_shape2(HIDDEN, 1));
    out = dt_tanh(g, dt_matmul(g, dt_tensor_of(g, DT_F32, dt_shape2(n, IN), x), w1, 0, 0)); /* (n,HIDDEN) */
    out = dt_matmul(g, out, w2, 0, 0);                                                 /* (n,1) */
    miss = dt_sub(g, out, dt_tensor_of(g, DT_F32, dt_shape2(n, 1), y));
    mean = dt_mean(g, dt_mul(g, miss, miss), DT_ALL);
    if (!dt_backward(g, mean)) *loss = dt_value(g, mean)[0];
    return take(g, dt_grad(g, weights), gradient);
}

/* w -= rate * gradient, by the library's ops: in C a compiler may fuse the two operations, or not. */
static dt_result my_update(float *w, const float *gradient, float rate)
{
    dt_graph *g = NULL;
    dt_tensor move;
    if (dt_graph_open(&g, 1)) return DT_E_MEMORY;
    move = dt_scale(g, dt_tensor_of(g, DT_F32, dt_shape1(WEIGHTS), gradient), rate);
    return take(g, dt_sub(g, dt_tensor_of(g, DT_F32, dt_shape1(WEIGHTS), w), move), w);
}

static dt_result my_weights(float *w)
{
    dt_graph *g = NULL;
    dt_result e = dt_graph_open(&g, 7);
    return e ? e : take(g, dt_param(g, "w", dt_shape1(WEIGHTS), DT_INIT_NORMAL, 0.5f), w);
}

/* The sum over shards [first, first+n), n a power of two, as the fixed tree: left half + right half. */
static dt_result tree(const float *w, int step, int first, int n, float *gradient, float *loss)
{
    float right[WEIGHTS], right_loss;
    dt_result e;
    if (n == 1) return my_backward(w, step, first * (BATCH / SHARDS), BATCH / SHARDS, gradient, loss);
    e = tree(w, step, first, n / 2, gradient, loss);
    if (!e) e = tree(w, step, first + n / 2, n / 2, right, &right_loss);
    for (int i = 0; i < WEIGHTS && !e; i++) gradient[i] += right[i];
    if (!e) *loss += right_loss;
    return e;
}

/* FNV-1a over the bits of the weights (24 of its 32 bits: a float holds such whole numbers exactly). */
static float checksum(const float *w)
{
    const unsigned char *byte = (const unsigned char *)w;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < WEIGHTS * sizeof *w; i++) h = (h ^ byte[i]) * 16777619u;
    return (float)(h >> 8);
}

/* Are all replicas equal? Prints a line of the table. */
static dt_result look(dt_comm *c, const float *w, int step, float loss, int *equal)
{
    float mine = checksum(w), all[8];
    dt_result e = dt_all_gather(c, &mine, all, 1);
    *equal = 1;
    for (int q = 1; q < dt_comm_size(c) && !e; q++) *equal = *equal && all[q] == all[0];
    if (e || dt_comm_rank(c)) return e;
    printf("  step %2d  loss %.4f ", step, (double)loss);
    for (int q = 0; q < dt_comm_size(c); q++) printf("  %06x", (unsigned)all[q]);
    printf("  %s\n", *equal ? "" : "  DRIFT");
    return e;
}

/* kind 1: plain, 2: one all-reduce left out, 3: shards. DP marks the lines that data parallel adds to a serial loop. */
static dt_result train(dt_comm *c, int kind, int *equal, float *w)
{
    int n = dt_comm_size(c), me = dt_comm_rank(c), slice = BATCH / n; /* DP: a slice of the batch */
    float gradient[WEIGHTS], loss = 0, parts = (float)(kind < 3 ? n : SHARDS);
    dt_result e = my_weights(w);
    if (!e) e = dt_broadcast(c, w, WEIGHTS, 0); /* DP: everybody starts from rank 0's weights */
    for (int step = 0; step < STEPS && !e; step++) {
        if (kind < 3) e = my_backward(w, step, me * slice, slice, gradient, &loss);
        else e = tree(w, step, me * (SHARDS / n), SHARDS / n, gradient, &loss);
        if (!e && !(kind == 2 && step == FAULT)) e = dt_all_reduce(c, gradient, WEIGHTS, DT_SUM); /* DP */
        if (!e) e = my_update(w, gradient, 0.125f / parts);         /* DP: / n, a mean of means */
        if (!e) e = dt_all_reduce(c, &loss, 1, DT_SUM);             /* to print it */
        if (!e && (step == 0 || step == FAULT - 1 || step == FAULT || step == STEPS - 1))
            e = look(c, w, step, loss / parts, equal);
    }
    return e;
}

int main(int argc, char **argv)
{
    static const char *const what[] = {"as most do it", "with one all-reduce left out", "with 8 shards and one tree"};
    float w[WEIGHTS];
    dt_comm *c = NULL;
    int equal = 0, good = 1, n;
    dt_result e = dt_comm_open(&c, &argc, &argv); /* DP: starts the ranks and connects them */
    if (e) return dt_fail("31_data_parallel");
    n = dt_comm_size(c);
    if (argc > 1 || SHARDS % n) return fprintf(stderr, "31_data_parallel: the option is --ranks 1, 2, 4 or 8\n"), 2;
    for (int kind = 1; kind <= 3 && !e; kind++) {
        if (!dt_comm_rank(c)) printf("%d %s: loss and each rank's checksum\n", kind, what[kind - 1]);
        e = train(c, kind, &equal, w);
        good = good && equal == (kind != 2 || n == 1); /* drift is expected where it was provoked */
    }
    good = good && checksum(w) == (float)EXPECTED;
    if (!e && !dt_comm_rank(c)) printf("at any rank count: %06x; here: %06x\n", EXPECTED, (unsigned)checksum(w));
    if (e || dt_barrier(c)) return dt_fail("31_data_parallel");
    if (!good) return fprintf(stderr, "FAILED: replicas or checksums are not as expected\n"), 1;
    if (!dt_comm_rank(c)) printf("ok: ranks: %d, equal but for run 2; run 3 ends with %06x everywhere\n", n, EXPECTED);
    dt_comm_close(&c); /* DP */
    return 0;
}
