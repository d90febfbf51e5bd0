/* 1_data_parallel: every rank computes some of the shards, and an all-reduce adds the gradients.
 *
 * What changes
 *     Each of n ranks has all weights and computes 4/n of the shards (`me`, `own`). dt_all_reduce adds the sums of the
 *     ranks as the upper part of the tree that tree_sum() began. All ranks make the same update, so their weights stay
 *     equal and are never sent. A rank computes less, and keeps as much as before.
 *
 * Build and run it, in this folder
 *     cc -O2 -I../.. 1_data_parallel.c -o 1_data_parallel -lm -lpthread
 *     ./1_data_parallel --ranks 1
 *     ./1_data_parallel --ranks 2
 *     ./1_data_parallel --ranks 4
 *
 * What it prints
 *     ranks: 1, loss: 0.2313; rank 0 keeps 49152 numbers and sends 0 bytes in a step
 *     ranks: 2, loss: 0.2313; rank 0 keeps 49152 numbers and sends 65536 bytes in a step
 *     ranks: 4, loss: 0.2313; rank 0 keeps 49152 numbers and sends 98304 bytes in a step
 *     hash e452cf305ce4fd06
 *     ok: 20 updates on 4 ranks end with the hash of one process
 *
 * Predict first: of what rank 0 keeps and sends in a step, what does the number of ranks change? */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "staircase.h"

/* A block on a shard: y = x + the sum over its slices. */
static void forward(const float *w, const float *x, float *y)
{
    float part[SLICES][FLOATS];
    for (int t = 0; t < SLICES; t++) slice_forward(w + t * SLICE, x, part[t]);
    tree_sum(part[0], SLICES, FLOATS);
    for (int i = 0; i < FLOATS; i++) y[i] = x[i] + part[0][i];
}

/* dy: the gradient of y, then that of x. dw: that of the block's weights. */
static void backward(const float *w, const float *x, float *dy, float *dw)
{
    float part[SLICES][FLOATS];
    for (int t = 0; t < SLICES; t++) slice_backward(w + t * SLICE, x, dy, dw + t * SLICE, part[t]);
    tree_sum(part[0], SLICES, FLOATS);
    for (int i = 0; i < FLOATS; i++) dy[i] += part[0][i];
}

int main(int argc, char **argv)
{
    dt_comm *c = start(&argc, &argv, 0, SHARDS);
    int n = dt_comm_size(c), me = dt_comm_rank(c), own = SHARDS / n; /* shards [me * own, (me + 1) * own) */
    float x[BLOCKS + 1][SHARDS][FLOATS], target[SHARDS][FLOATS], dy[SHARDS][FLOATS], dw[SHARDS * BLOCK], loss[SHARDS];
    int64_t kept = 0, before = bytes_sent(c), sent;
    float *w = floats(WEIGHTS, &kept);
    float *v = floats(WEIGHTS, &kept);
    float *g = floats(WEIGHTS, &kept);
    int status;
    first_weights(w, 0, WEIGHTS);
    for (int step = 0; step < STEPS; step++) {
        for (int s = 0; s < own; s++) samples(step, me * own + s, x[0][s], target[s]);
        for (int b = 0; b < BLOCKS; b++)
            for (int s = 0; s < own; s++) forward(w + b * BLOCK, x[b][s], x[b + 1][s]);
        for (int s = 0; s < own; s++) loss[s] = shard_loss(x[BLOCKS][s], target[s], dy[s]);
        for (int b = BLOCKS; b-- > 0;) {
            for (int s = 0; s < own; s++) backward(w + b * BLOCK, x[b][s], dy[s], dw + s * BLOCK);
            tree_sum(dw, own, BLOCK);
            memcpy(g + b * BLOCK, dw, sizeof(float) * BLOCK);
        }
        must(dt_all_reduce(c, g, WEIGHTS, DT_SUM)); /* the rest of the tree */
        update(w, v, g, WEIGHTS);
    }
    sent = (bytes_sent(c) - before) / STEPS;
    tree_sum(loss, own, 1);
    must(dt_all_reduce(c, loss, 1, DT_SUM));
    status = report(c, w, loss[0], kept, sent);
    free(w), free(v), free(g);
    dt_comm_close(&c);
    return status;
}
