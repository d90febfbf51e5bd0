/* 2_buckets: gradients travel during backward.
 *
 * What changes
 *     The gradient of the last block is complete before those of the other three are computed. A thread adds this
 *     bucket over ranks while backward computes the next block. The loop waits for a bucket before it starts the
 *     next one, because a communicator makes one call at a time. The step sends as many bytes as before, in four
 *     calls, and the sum of each number is the same, so no bit changes.
 *
 * Build and run it, in this folder
 *     cc -O2 -I../.. 2_buckets.c -o 2_buckets -lm -lpthread
 *     ./2_buckets --ranks 1
 *     ./2_buckets --ranks 2
 *     ./2_buckets --ranks 4
 *
 * What it prints
 *     ranks: 1, loss: 0.2313; rank 0 keeps 49152 numbers and sends 0 bytes in a step
 *     ranks: 2, loss: 0.2313; rank 0 keeps 49152 numbers and sends 65536 bytes in a step
 *     ranks: 4, loss: 0.2313; rank 0 keeps 49152 numbers and sends 98304 bytes in a step
 *     hash e452cf305ce4fd06
 *     ok: 20 updates on 4 ranks end with the hash of one process
 *
 * Predict first: which of the four buckets cannot overlap with anything? */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "staircase.h"
#include <pthread.h>

/* A bucket: gradients that are complete, and the thread that adds them up over ranks while backward goes on. */
typedef struct bucket {
    dt_comm *c;
    float *g;
    pthread_t thread;
} bucket;

static void *reduce(void *argument)
{
    bucket *k = (bucket *)argument;
    must(dt_all_reduce(k->c, k->g, BLOCK, DT_SUM));
    return NULL;
}

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
    bucket k = {c, NULL, 0};
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
            if (b < BLOCKS - 1) pthread_join(k.thread, NULL); /* a communicator makes one call at a time */
            k.g = g + b * BLOCK;
            if (pthread_create(&k.thread, NULL, reduce, &k)) must(dt_error(DT_E_SYSTEM, "no thread for a bucket"));
        }
        pthread_join(k.thread, NULL);
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
