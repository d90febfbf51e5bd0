/* 0_serial: the training loop that the next eight steps distribute over ranks.
 *
 * What is here
 *     One process and a loop over steps: samples, forward through the blocks, a loss, backward, an update. A batch
 *     already has four shards, and a block two slices. The loop computes each part alone and adds the parts by a fixed
 *     tree. Later steps move shards, slices and blocks to other ranks, but change no part and no order, so the hash of
 *     the weights stays the same.
 *
 * Build and run it, in this folder
 *     cc -O2 -I../.. 0_serial.c -o 0_serial -lm -lpthread
 *     ./0_serial
 *
 * What it prints
 *     ranks: 1, loss: 0.2313; rank 0 keeps 49152 numbers and sends 0 bytes in a step
 *     hash e452cf305ce4fd06
 *     ok: 20 updates on 1 ranks end with the hash of one process
 *
 * Predict first: how many bytes does a model of a billion weights keep if it is trained like this one, in fp32? */
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

int main(void)
{
    float x[BLOCKS + 1][SHARDS][FLOATS], target[SHARDS][FLOATS], dy[SHARDS][FLOATS], dw[SHARDS * BLOCK], loss[SHARDS];
    int64_t kept = 0;
    float *w = floats(WEIGHTS, &kept);
    float *v = floats(WEIGHTS, &kept);
    float *g = floats(WEIGHTS, &kept);
    int status;
    first_weights(w, 0, WEIGHTS);
    for (int step = 0; step < STEPS; step++) {
        for (int s = 0; s < SHARDS; s++) samples(step, s, x[0][s], target[s]);
        for (int b = 0; b < BLOCKS; b++)
            for (int s = 0; s < SHARDS; s++) forward(w + b * BLOCK, x[b][s], x[b + 1][s]);
        for (int s = 0; s < SHARDS; s++) loss[s] = shard_loss(x[BLOCKS][s], target[s], dy[s]);
        for (int b = BLOCKS; b-- > 0;) {
            for (int s = 0; s < SHARDS; s++) backward(w + b * BLOCK, x[b][s], dy[s], dw + s * BLOCK);
            tree_sum(dw, SHARDS, BLOCK);
            memcpy(g + b * BLOCK, dw, sizeof(float) * BLOCK);
        }
        update(w, v, g, WEIGHTS);
    }
    tree_sum(loss, SHARDS, 1);
    status = report(NULL, w, loss[0], kept, 0);
    free(w), free(v), free(g);
    return status;
}
