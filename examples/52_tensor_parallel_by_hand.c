/* 52_tensor_parallel_by_hand: how can several ranks compute one layer, each with a part of its weights?
 *
 * What you learn
 *     - An MLP is y = gelu(x A) B. Cut A by columns and B by rows, at the same hidden units. Then a rank computes
 *       gelu(x A_r) B_r alone, since gelu needs one hidden unit at a time. The sum over ranks is y: one all-reduce.
 *     - Backward is the mirror image. All ranks have dy; each computes the gradients of its A_r and B_r, and a part of
 *       dx. The sum over ranks is dx: the second all-reduce. Weights and their gradients are never sent.
 *     - Each sum is as large as x, and every rank waits for it. So tensor parallel needs the fastest link.
 *     - Cutting a sum changes its last bits. Here the weights are always cut into 4 shards, added as (0 + 1) + (2 + 3)
 *       on one, two or four ranks, so all of them end with the same bits.
 *     - All ranks of a group must read the same samples, or the sum adds outputs of different inputs. A data source is
 *       given the number of the data-parallel rank, not of the rank.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 52_tensor_parallel_by_hand.c -o 52_tensor_parallel_by_hand -lm -lpthread
 *     ./52_tensor_parallel_by_hand --ranks 4     (1, 2 or 4; compiled with -DHIDDEN=256: twice as wide)
 *
 * What it prints
 *     ranks  weights of a rank  all-reduces  floats in each     loss
 *         1               4096            0             256  0.09851
 *         2               2048            2             256  0.09851
 *         4               1024            2             256  0.09851
 *     each rank with samples of its own: 0.14182
 *     ok: on 1 to 4 ranks the loss is 0.09851, and dx is the same to the bit
 *
 * Predict first: with a hidden layer twice as wide, which of the columns double?
 * Exercise: cut A by rows and x by columns instead. How many floats is the sum, and how far off is gelu without it?
 *
 * Read on: 53_tensor_parallel.c for whole models and sequence parallel, 65_across_nodes.c for groups across nodes. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef HIDDEN
#define HIDDEN 128
#endif
enum { ROWS = 16, C = 16, SHARDS = 4, H = HIDDEN / SHARDS, STEPS = 30, BATCH = ROWS * C };
static const float rate = 64.0f / HIDDEN; /* a wider sum takes smaller steps */

/* Columns of A (C,H) and rows of B (H,C). A rank has SHARDS / n of them. */
typedef struct shard {
    float a[C * H], b[H * C];
} shard;

/* Row i: numbers, and what is to be learned of them. */
static void sample(int i, float *x, float *target)
{
    for (int k = 0; k < C; k++) x[k] = sinf((float)(i * 7 + k * k));
    for (int k = 0; k < C; k++) target[k] = x[k] * x[(k + 1) % C];
}

static void draw(shard *s, int first, int own) /* own shards, from the first of this rank on */
{
    for (int v = 0; v < own; v++)
        for (int i = 0; i < C * H; i++) {
            s[v].a[i] = 0.5f * sinf((float)(1 + i + (first + v) * C * H) * 12.9898f);
            s[v].b[i] = 0.1f * sinf((float)(1 + i + (first + v) * C * H) * 78.233f);
        }
}

/* One shard. dy NULL: y = gelu(x A) B. Else the gradients, of A and B times the rate and taken away, and dx in y. */
static dt_result run(float *a, float *b, const float *x, const float *dy, float *y)
{
    dt_graph *g = NULL;
    dt_tensor tx, ta, tb, out;
    dt_result r = dt_graph_open(&g, 1);
    if (r) return r;
    tx = dt_tensor_of(g, DT_F32, dt_shape2(ROWS, C), x);
    ta = dt_tensor_of(g, DT_F32, dt_shape2(C, H), a), tb = dt_tensor_of(g, DT_F32, dt_shape2(H, C), b);
    out = dt_matmul(g, dt_gelu(g, dt_matmul(g, tx, ta, 0, 0)), tb, 0, 0);
    if (dy) {
        out = dt_mul(g, out, dt_tensor_of(g, DT_F32, dt_shape2(ROWS, C), dy));
        r = dt_backward(g, dt_sum(g, out, 3u));
        for (int i = 0; i < C * H && !r; i++) {
            a[i] -= rate * dt_value(g, dt_grad(g, ta))[i];
            b[i] -= rate * dt_value(g, dt_grad(g, tb))[i];
        }
        out = dt_grad(g, tx);
    }
    if (!r) r = dt_graph_result(g);
    if (!r) memcpy(y, dt_value(g, out), sizeof(float) * BATCH);
    dt_graph_close(&g);
    return r;
}

/* The sum over all shards: a tree over this rank's, then over ranks. */
static dt_result all_shards(dt_comm *c, shard *s, const float *x, const float *dy, float *sum, int *calls)
{
    float part[SHARDS][BATCH] = {{0}};
    int own = SHARDS / dt_comm_size(c);
    dt_result r = DT_OK;
    for (int v = 0; v < own && !r; v++) r = run(s[v].a, s[v].b, x, dy, part[v]);
    for (int n = own; n > 1; n /= 2)
        for (int v = 0; v < n / 2; v++)
            for (int i = 0; i < BATCH; i++) part[v][i] = part[2 * v][i] + part[2 * v + 1][i];
    memcpy(sum, part[0], sizeof part[0]);
    *calls += dt_comm_size(c) > 1;
    return r ? r : dt_all_reduce(c, sum, BATCH, DT_SUM);
}

/* shift: how far the samples of a rank are from those of the rank before; 0, as it should be. weights: of this rank. */
static dt_result train(dt_comm *c, int shift, float dx[BATCH], float *loss, int *calls, int *weights)
{
    int own = SHARDS / dt_comm_size(c);
    shard *s = malloc((size_t)own * sizeof *s);
    float x[BATCH], target[BATCH], y[BATCH], dy[BATCH];
    dt_result r = s ? DT_OK : DT_E_MEMORY;
    if (s) draw(s, own * dt_comm_rank(c), own), *weights = own * (int)(sizeof *s / sizeof(float));
    for (int i = 0; i < ROWS; i++) sample(i + shift * dt_comm_rank(c), x + i * C, target + i * C);
    for (int step = 0; step < STEPS && !r; step++) {
        *calls = 0, *loss = 0;
        r = all_shards(c, s, x, NULL, y, calls);
        for (int i = 0; i < BATCH; i++) dy[i] = 2 * (y[i] - target[i]) / BATCH;
        for (int i = 0; i < BATCH; i++) *loss += (y[i] - target[i]) * (y[i] - target[i]) / BATCH;
        if (!r) r = all_shards(c, s, x, dy, dx, calls);
    }
    free(s);
    return r;
}

int main(int argc, char **argv)
{
    float dx[2][BATCH], loss[2], wrong;
    int rank, n, calls = 0, weights = 0, good = 1;
    dt_comm *c = NULL, *part = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("52_tensor_parallel_by_hand");
    rank = dt_comm_rank(c), n = dt_comm_size(c);
    if (argc > 1 || SHARDS % n)
        return fprintf(stderr, "52_tensor_parallel_by_hand: the option is --ranks 1, 2 or 4\n"), 2;
    if (!rank) printf("ranks  weights of a rank  all-reduces  floats in each     loss\n");
    for (int ranks = 1; ranks <= n && !r; ranks *= 2) {
        int which = ranks > 1;
        r = dt_comm_split(c, rank / ranks, &part); /* groups of so many ranks, which all do the same */
        if (!r) r = train(part, 0, dx[which], &loss[which], &calls, &weights);
        good = good && !memcmp(dx[which], dx[0], sizeof dx[0]) && loss[which] == loss[0];
        if (!rank) printf("%5d  %17d  %11d  %14d  %.5f\n", ranks, weights, calls, BATCH, (double)loss[which]);
        dt_comm_close(&part);
    }
    if (!r) r = train(c, 1, dx[1], &wrong, &calls, &weights);
    if (!rank && !r) printf("each rank with samples of its own: %.5f\n", (double)wrong);
    dt_comm_close(&c);
    if (r) return dt_fail("52_tensor_parallel_by_hand");
    if (!good) return fprintf(stderr, "FAILED: a bit differs\n"), 1;
    if (!rank) printf("ok: on 1 to %d ranks the loss is %.5f, and dx is the same to the bit\n", n, (double)loss[0]);
    return 0;
}
