/* 6_pipeline: a rank has half of the blocks, and shards pass through the stages as micro-batches.
 *
 * What changes
 *     A stage receives x from the stage before and sends y to the next; in backward a gradient travels the other way.
 *     All forwards come first, then all backwards (GPipe). ZeRO 3 would gather a block for every micro-batch, so a
 *     stage keeps all of its weights, and its data group divides the momentum as in step 3 (ZeRO 1). Each
 *     micro-batch keeps its gradient until the tree adds them. Tensor groups are left out; step 7 has them again.
 *
 * Build and run it, in this folder
 *     cc -O2 -I../.. 6_pipeline.c -o 6_pipeline -lm -lpthread
 *     ./6_pipeline --ranks 1
 *     ./6_pipeline --ranks 2
 *     ./6_pipeline --ranks 4
 *
 * What it prints
 *     ranks: 1, loss: 0.2313; rank 0 keeps 114688 numbers and sends 0 bytes in a step
 *     ranks: 2, loss: 0.2313; rank 0 keeps 57344 numbers and sends 1024 bytes in a step
 *     ranks: 4, loss: 0.2313; rank 0 keeps 32768 numbers and sends 33280 bytes in a step
 *     hash e452cf305ce4fd06
 *     ok: 20 updates on 4 ranks end with the hash of one process
 *
 * Predict first: on 2 ranks, what is sent in a step? Would twice as many blocks send more? */
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
    dt_comm *c = start(&argc, &argv, 0, 2 * SHARDS);
    int stages = dt_comm_size(c) > 1 ? 2 : 1; /* so many neighbours have all blocks */
    dt_comm *pipeline = group(c, dt_comm_rank(c) / stages);
    dt_comm *data = group(c, dt_comm_rank(c) % stages); /* the ranks with the same stage */
    int n = dt_comm_size(data), me = dt_comm_rank(data), own = SHARDS / n; /* shards [me * own, (me + 1) * own) */
    int stage = dt_comm_rank(pipeline), last = stages - 1, blocks = BLOCKS / stages;
    int numbers = blocks * BLOCK, piece = numbers / n; /* of this stage, and this rank's piece of them */
    float x[BLOCKS + 1][SHARDS][FLOATS], target[SHARDS][FLOATS], dy[SHARDS][FLOATS], loss[SHARDS] = {0};
    int64_t kept = 0, before = bytes_sent(c), sent;
    float *w = floats(numbers, &kept);
    float *v = floats(piece, &kept);
    float *g = floats(own * numbers, &kept); /* a shard is a micro-batch, and each has a gradient */
    float *sum = floats(piece, &kept);
    float *all = floats(WEIGHTS, NULL); /* for the hash at the end */
    int status;
    first_weights(w, stage * numbers, numbers);
    for (int step = 0; step < STEPS; step++) {
        for (int s = 0; s < own; s++) {
            samples(step, me * own + s, x[0][s], target[s]);
            if (stage > 0) must(dt_recv(pipeline, x[0][s], FLOATS, stage - 1));
            for (int b = 0; b < blocks; b++) forward(w + b * BLOCK, x[b][s], x[b + 1][s]);
            if (stage < last) must(dt_send(pipeline, x[blocks][s], FLOATS, stage + 1));
        }
        for (int s = 0; s < own; s++) {
            if (stage == last) loss[s] = shard_loss(x[blocks][s], target[s], dy[s]);
            else must(dt_recv(pipeline, dy[s], FLOATS, stage + 1));
            for (int b = blocks; b-- > 0;) backward(w + b * BLOCK, x[b][s], dy[s], g + s * numbers + b * BLOCK);
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
    must(dt_all_gather(pipeline, w, all, numbers));
    status = report(c, all, loss[0], kept, sent);
    free(w), free(v), free(g), free(sum), free(all);
    dt_comm_close(&pipeline), dt_comm_close(&data), dt_comm_close(&c);
    return status;
}
