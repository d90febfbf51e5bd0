/* 7_all_together: slices, stages and shards at the same time, on 8 ranks 2 x 2 x 2.
 *
 * What changes
 *     The lines of step 5 return. A stage is now a tensor group, and its ranks send and receive as in step 6. Rank =
 *     (data * stages + stage) * degree + slice. The ranks of a tensor group wait for each other in every block, so they
 *     are neighbours, which a launcher puts on one machine. Stages come next. The ranks of a data group wait for each
 *     other only at the end of a step, so they may be the farthest apart.
 *
 * Build and run it, in this folder
 *     cc -O2 -I../.. 7_all_together.c -o 7_all_together -lm -lpthread
 *     ./7_all_together --ranks 1
 *     ./7_all_together --ranks 2
 *     ./7_all_together --ranks 4
 *     ./7_all_together --ranks 8
 *
 * What it prints
 *     ranks: 1, loss: 0.2313; rank 0 keeps 114688 numbers and sends 0 bytes in a step
 *     ranks: 2, loss: 0.2313; rank 0 keeps 57344 numbers and sends 8192 bytes in a step
 *     ranks: 4, loss: 0.2313; rank 0 keeps 28672 numbers and sends 5120 bytes in a step
 *     ranks: 8, loss: 0.2313; rank 0 keeps 16384 numbers and sends 18944 bytes in a step
 *     hash e452cf305ce4fd06
 *     ok: 20 updates on 8 ranks end with the hash of one process
 *
 * Predict first: on 8 ranks, which group of rank 0 sends most bytes in a step: tensor, pipeline or data? */
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
    dt_comm *c = start(&argc, &argv, 0, 2 * SLICES * SHARDS);
    int degree = dt_comm_size(c) > 1 ? SLICES : 1;        /* so many neighbours share each block */
    int stages = dt_comm_size(c) > degree ? 2 : 1;        /* so many tensor groups have all blocks */
    int rank = dt_comm_rank(c), model = degree * stages; /* so many ranks have all weights */
    dt_comm *tensor = group(c, rank / degree);
    dt_comm *pipeline = group(c, rank / model * degree + rank % degree);
    dt_comm *data = group(c, rank % model); /* the ranks with the same stage and slices */
    int n = dt_comm_size(data), me = dt_comm_rank(data), own = SHARDS / n; /* shards [me * own, (me + 1) * own) */
    int stage = dt_comm_rank(pipeline), last = stages - 1, blocks = BLOCKS / stages;
    int part = BLOCK / degree, numbers = blocks * part, piece = numbers / n; /* of this rank's slices */
    int first = stage * blocks * BLOCK + dt_comm_rank(tensor) * part; /* the place of w[0] in the model */
    float x[BLOCKS + 1][SHARDS][FLOATS], target[SHARDS][FLOATS], dy[SHARDS][FLOATS], loss[SHARDS] = {0};
    int64_t kept = 0, before = bytes_sent(c), sent;
    float *w = floats(numbers, &kept);
    float *v = floats(piece, &kept);
    float *g = floats(own * numbers, &kept); /* a shard is a micro-batch, and each has a gradient */
    float *sum = floats(piece, &kept);
    float *all = floats(WEIGHTS, NULL); /* for the hash at the end */
    int status;
    for (int b = 0; b < blocks; b++) first_weights(w + b * part, first + b * BLOCK, part);
    for (int step = 0; step < STEPS; step++) {
        for (int s = 0; s < own; s++) {
            samples(step, me * own + s, x[0][s], target[s]);
            if (stage > 0) must(dt_recv(pipeline, x[0][s], FLOATS, stage - 1));
            for (int b = 0; b < blocks; b++) forward(tensor, w + b * part, x[b][s], x[b + 1][s]);
            if (stage < last) must(dt_send(pipeline, x[blocks][s], FLOATS, stage + 1));
        }
        for (int s = 0; s < own; s++) {
            if (stage == last) loss[s] = shard_loss(x[blocks][s], target[s], dy[s]);
            else must(dt_recv(pipeline, dy[s], FLOATS, stage + 1));
            for (int b = blocks; b-- > 0;) backward(tensor, w + b * part, x[b][s], dy[s], g + s * numbers + b * part);
            if (stage > 0) must(dt_send(pipeline, dy[s], FLOATS, stage - 1));
        }
        tree_sum(g, own, numbers);
        must(dt_reduce_scatter(data, g, sum, piece, DT_SUM));
        update(w + me * piece, v, sum, piece);
        must(dt_all_gather(data, w + me * piece, w, piece));
    }
    sent = (bytes_sent(c) - before) / STEPS;
    tree_sum(loss, own, 1);
    must(dt_all_reduce(data, loss, 1, DT_SUM));
    must(dt_broadcast(pipeline, loss, 1, last));
    for (int b = 0; b < blocks; b++)
        must(dt_all_gather(tensor, w + b * part, all + (stage * blocks + b) * BLOCK, part));
    must(dt_all_gather(pipeline, all + stage * blocks * BLOCK, all, blocks * BLOCK));
    status = report(c, all, loss[0], kept, sent);
    free(w), free(v), free(g), free(sum), free(all);
    dt_comm_close(&tensor), dt_comm_close(&pipeline), dt_comm_close(&data), dt_comm_close(&c);
    return status;
}
