/* 5_tensor: two neighbours compute each block together, a slice each.
 *
 * What changes
 *     A rank of a tensor group has one of the two slices of every block. All ranks of the group have the same shards,
 *     so each computes a part of y, and an all-reduce adds the parts; backward does the same for the gradient of x.
 *     The ranks with the same slice are a data group, in which nothing of step 4 changes. Weights do not travel in the
 *     tensor group, but activations do, twice per block and shard, and the whole group waits for them.
 *
 * Build and run it, in this folder
 *     cc -O2 -I../.. 5_tensor.c -o 5_tensor -lm -lpthread
 *     ./5_tensor --ranks 1
 *     ./5_tensor --ranks 2
 *     ./5_tensor --ranks 4
 *
 * What it prints
 *     ranks: 1, loss: 0.2313; rank 0 keeps 53248 numbers and sends 0 bytes in a step
 *     ranks: 2, loss: 0.2313; rank 0 keeps 26624 numbers and sends 8192 bytes in a step
 *     ranks: 4, loss: 0.2313; rank 0 keeps 14336 numbers and sends 53248 bytes in a step
 *     hash e452cf305ce4fd06
 *     ok: 20 updates on 4 ranks end with the hash of one process
 *
 * Predict first: on 2 ranks, which numbers of step 4 change, and why are gradients no longer sent? */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "staircase.h"

/* A block on a shard: y = x + the sum over its slices, which the ranks of the tensor group share. */
static void forward(dt_comm *tensor, const float *w, const float *x, float *y)
{
    float part[SLICES][FLOATS];
    int slices = SLICES / dt_comm_size(tensor);
    for (int t = 0; t < slices; t++) slice_forward(w + t * SLICE, x, part[t]);
    tree_sum(part[0], slices, FLOATS);
    must(dt_all_reduce(tensor, part[0], FLOATS, DT_SUM));
    for (int i = 0; i < FLOATS; i++) y[i] = x[i] + part[0][i];
}

/* dy: the gradient of y, then that of x. dw: that of the block's weights. */
static void backward(dt_comm *tensor, const float *w, const float *x, float *dy, float *dw)
{
    float part[SLICES][FLOATS];
    int slices = SLICES / dt_comm_size(tensor);
    for (int t = 0; t < slices; t++) slice_backward(w + t * SLICE, x, dy, dw + t * SLICE, part[t]);
    tree_sum(part[0], slices, FLOATS);
    must(dt_all_reduce(tensor, part[0], FLOATS, DT_SUM));
    for (int i = 0; i < FLOATS; i++) dy[i] += part[0][i];
}

int main(int argc, char **argv)
{
    dt_comm *c = start(&argc, &argv, 0, SLICES * SHARDS);
    int degree = dt_comm_size(c) > 1 ? SLICES : 1; /* so many neighbours share each block */
    dt_comm *tensor = group(c, dt_comm_rank(c) / degree);
    dt_comm *data = group(c, dt_comm_rank(c) % degree); /* the ranks with the same slices */
    int n = dt_comm_size(data), me = dt_comm_rank(data), own = SHARDS / n; /* shards [me * own, (me + 1) * own) */
    int part = BLOCK / degree, piece = part / n; /* this rank's slices of a block, and its piece of them */
    float x[BLOCKS + 1][SHARDS][FLOATS], target[SHARDS][FLOATS], dy[SHARDS][FLOATS], dw[SHARDS * BLOCK], loss[SHARDS];
    int64_t kept = 0, before = bytes_sent(c), sent;
    float *w = floats(BLOCKS * piece, &kept); /* the pieces, block after block */
    float *block = floats(part, &kept);       /* all slices of this rank, of the block at work */
    float *v = floats(BLOCKS * piece, &kept);
    float *sum = floats(BLOCKS * piece, &kept);
    float *all = floats(WEIGHTS, NULL); /* for the hash at the end */
    int status;
    for (int b = 0; b < BLOCKS; b++)
        first_weights(w + b * piece, b * BLOCK + dt_comm_rank(tensor) * part + me * piece, piece);
    for (int step = 0; step < STEPS; step++) {
        for (int s = 0; s < own; s++) samples(step, me * own + s, x[0][s], target[s]);
        for (int b = 0; b < BLOCKS; b++) {
            must(dt_all_gather(data, w + b * piece, block, piece));
            for (int s = 0; s < own; s++) forward(tensor, block, x[b][s], x[b + 1][s]);
        }
        for (int s = 0; s < own; s++) loss[s] = shard_loss(x[BLOCKS][s], target[s], dy[s]);
        for (int b = BLOCKS; b-- > 0;) {
            must(dt_all_gather(data, w + b * piece, block, piece));
            for (int s = 0; s < own; s++) backward(tensor, block, x[b][s], dy[s], dw + s * part);
            tree_sum(dw, own, part);
            must(dt_reduce_scatter(data, dw, sum + b * piece, piece, DT_SUM));
        }
        update(w, v, sum, BLOCKS * piece);
    }
    sent = (bytes_sent(c) - before) / STEPS;
    tree_sum(loss, own, 1);
    must(dt_all_reduce(data, loss, 1, DT_SUM));
    for (int b = 0; b < BLOCKS; b++) {
        must(dt_all_gather(data, w + b * piece, block, piece));
        must(dt_all_gather(tensor, block, all + b * BLOCK, part));
    }
    status = report(c, all, loss[0], kept, sent);
    free(w), free(block), free(v), free(sum), free(all);
    dt_comm_close(&tensor), dt_comm_close(&data), dt_comm_close(&c);
    return status;
}
