/* Lab 4: a model of DEPTH layers (layers.h), and memory that is counted. */
#include "../ranks.h"
#include "dtrain.h"
#include "layers.h"
#include <stdlib.h>
#pragma GCC poison malloc calloc realloc dt_graph_open /* weights, gradients and moments are in lab_alloc's arrays */

/* A rank's share of the batch, and room for its activations, which do not count. */
typedef struct lab_batch {
    int64_t n;                           /* samples */
    float x[DEPTH + 1][SAMPLES * WIDTH]; /* x[0] is the input; x[l + 1] is for the output of layer l */
    float target[SAMPLES * WIDTH];
} lab_batch;

/* The gradient of the output x[DEPTH], so scaled that the sum over the ranks is that of the mean over all samples. */
void lab_error(lab_comm *c, const lab_batch *b, float *dy);

/* What you write. struct zero is yours, too: what a rank keeps between steps. stage 1: m and v are sharded. stage 3: so
 * are weights and gradients. first (WEIGHTS) are the initial weights, layer by layer; they do not count, and are gone
 * when zero_open has returned. */
typedef struct zero zero;
zero *zero_open(lab_comm *c, int stage, const float *first);
/* Forward, backward, and Adam's step number `step`, from 1. */
void zero_step(zero *z, int step, lab_batch *b);
/* Copies all weights to `all` (WEIGHTS), for the comparison. */
void zero_weights(zero *z, float *all);
void zero_close(zero *z);
