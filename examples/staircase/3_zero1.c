/* 3_zero1: a rank updates one piece of each block, and keeps the momentum of that piece only.
 *
 * What changes
 *     Before, all ranks made the same update of all weights. Now a reduce-scatter gives each rank the sum of its piece,
 *     the rank updates the piece, and an all-gather gives the new weights to all. An all-reduce consists of these two,
 *     so the bytes stay the same, but the momentum is divided among the ranks. The thread of step 2 is left out to keep
 *     the programs short: it could make the reduce-scatter as well.
 *
 * Build and run it, in this folder
 *     cc -O2 -I../.. 3_zero1.c -o 3_zero1 -lm -lpthread
 *     ./3_zero1 --ranks 1
 *     ./3_zero1 --ranks 2
 *     ./3_zero1 --ranks 4
 *
 * What it prints
 *     ranks: 1, loss: 0.2313; rank 0 keeps 65536 numbers and sends 0 bytes in a step
 *     ranks: 2, loss: 0.2313; rank 0 keeps 49152 numbers and sends 65536 bytes in a step
 *     ranks: 4, loss: 0.2313; rank 0 keeps 40960 numbers and sends 98304 bytes in a step
 *     hash e452cf305ce4fd06
 *     ok: 20 updates on 4 ranks end with the hash of one process
 *
 * Predict first: with 4 ranks instead of 2, what happens to the numbers kept, and to the bytes sent? */
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
    float *w = floats(WEIGHTS, &kept);
    float *v = floats(WEIGHTS / n, &kept); /* for the pieces alone */
    float *g = floats(WEIGHTS, &kept);
    float *sum = floats(WEIGHTS / n, &kept); /* the pieces of g, over all ranks */
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
            must(dt_reduce_scatter(c, g + b * BLOCK, sum + b * piece, piece, DT_SUM));
        }
        for (int b = 0; b < BLOCKS; b++) {
            float *mine = w + b * BLOCK + me * piece;
            update(mine, v + b * piece, sum + b * piece, piece);
            must(dt_all_gather(c, mine, w + b * BLOCK, piece));
        }
    }
    sent = (bytes_sent(c) - before) / STEPS;
    tree_sum(loss, own, 1);
    must(dt_all_reduce(c, loss, 1, DT_SUM));
    status = report(c, w, loss[0], kept, sent);
    free(w), free(v), free(g), free(sum);
    dt_comm_close(&c);
    return status;
}
