/* 4_zero3: a rank keeps only its piece of the weights and gradients, too.
 *
 * What changes
 *     An all-gather fills one buffer with the weights of the current block, before its forward and again before its
 *     backward. The gradient of a block is summed and scattered at once. Nothing is gathered after the update. So a
 *     step has three transfers of the model's size instead of two: a reduce-scatter and two all-gathers.
 *
 * Build and run it, in this folder
 *     cc -O2 -I../.. 4_zero3.c -o 4_zero3 -lm -lpthread
 *     ./4_zero3 --ranks 1
 *     ./4_zero3 --ranks 2
 *     ./4_zero3 --ranks 4
 *
 * What it prints
 *     ranks: 1, loss: 0.2313; rank 0 keeps 53248 numbers and sends 0 bytes in a step
 *     ranks: 2, loss: 0.2313; rank 0 keeps 28672 numbers and sends 98304 bytes in a step
 *     ranks: 4, loss: 0.2313; rank 0 keeps 16384 numbers and sends 147456 bytes in a step
 *     hash e452cf305ce4fd06
 *     ok: 20 updates on 4 ranks end with the hash of one process
 *
 * Predict first: on 2 ranks, does rank 0 keep fewer numbers than in step 3? Does it send more bytes, and how many? */
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
    int piece = BLOCK / n; /* of a block: numbers [me * piece, (me + 1) * piece) */
    float x[BLOCKS + 1][SHARDS][FLOATS], target[SHARDS][FLOATS], dy[SHARDS][FLOATS], dw[SHARDS * BLOCK], loss[SHARDS];
    int64_t kept = 0, before = bytes_sent(c), sent;
    float *w = floats(WEIGHTS / n, &kept); /* the pieces, block after block */
    float *block = floats(BLOCK, &kept);   /* all of the block at work */
    float *v = floats(WEIGHTS / n, &kept);
    float *sum = floats(WEIGHTS / n, &kept);
    float *all = floats(WEIGHTS, NULL); /* for the hash at the end */
    int status;
    for (int b = 0; b < BLOCKS; b++) first_weights(w + b * piece, b * BLOCK + me * piece, piece);
    for (int step = 0; step < STEPS; step++) {
        for (int s = 0; s < own; s++) samples(step, me * own + s, x[0][s], target[s]);
        for (int b = 0; b < BLOCKS; b++) {
            must(dt_all_gather(c, w + b * piece, block, piece));
            for (int s = 0; s < own; s++) forward(block, x[b][s], x[b + 1][s]);
        }
        for (int s = 0; s < own; s++) loss[s] = shard_loss(x[BLOCKS][s], target[s], dy[s]);
        for (int b = BLOCKS; b-- > 0;) {
            must(dt_all_gather(c, w + b * piece, block, piece));
            for (int s = 0; s < own; s++) backward(block, x[b][s], dy[s], dw + s * BLOCK);
            tree_sum(dw, own, BLOCK);
            must(dt_reduce_scatter(c, dw, sum + b * piece, piece, DT_SUM));
        }
        update(w, v, sum, WEIGHTS / n);
    }
    sent = (bytes_sent(c) - before) / STEPS;
    tree_sum(loss, own, 1);
    must(dt_all_reduce(c, loss, 1, DT_SUM));
    for (int b = 0; b < BLOCKS; b++) must(dt_all_gather(c, w + b * piece, all + b * BLOCK, piece));
    status = report(c, all, loss[0], kept, sent);
    free(w), free(block), free(v), free(sum), free(all);
    dt_comm_close(&c);
    return status;
}
