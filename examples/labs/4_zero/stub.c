#include "lab.h"

/* Plain data parallel: stage 0, which keeps 16 bytes of each weight on every rank. */
struct zero {
    lab_comm *c;
    float *w, *g, *m, *v; /* (WEIGHTS) */
};

zero *zero_open(lab_comm *c, int stage, const float *first)
{
    zero *z = lab_alloc(c, sizeof *z);
    (void)stage;
    z->c = c;
    z->w = lab_alloc(c, 4 * WEIGHTS), z->g = lab_alloc(c, 4 * WEIGHTS);
    z->m = lab_alloc(c, 4 * WEIGHTS), z->v = lab_alloc(c, 4 * WEIGHTS);
    memcpy(z->w, first, 4 * WEIGHTS);
    return z;
}

void zero_step(zero *z, int step, lab_batch *b)
{
    float dy[SAMPLES * WIDTH];
    for (int l = 0; l < DEPTH; l++) layer_forward(z->w + l * LAYER, b->x[l], b->n, b->x[l + 1]);
    lab_error(z->c, b, dy);
    for (int l = DEPTH - 1; l >= 0; l--) layer_backward(z->w + l * LAYER, b->x[l], dy, b->n, z->g + l * LAYER, dy);
    lab_all_reduce(z->c, z->g, WEIGHTS);
    adam(z->w, z->g, z->m, z->v, WEIGHTS, step);
}

void zero_weights(zero *z, float *all) { memcpy(all, z->w, 4 * WEIGHTS); }

void zero_close(zero *z)
{
    lab_free(z->c, z->w), lab_free(z->c, z->g), lab_free(z->c, z->m), lab_free(z->c, z->v);
    lab_free(z->c, z);
}
