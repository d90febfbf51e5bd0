#include "lab.h"

/* Rank r owns the floats [r * piece, (r + 1) * piece) of each layer. Its m and v, and in stage 3 its weights, are the
 * pieces of all layers in a row. A layer's update follows its backward at once, so there is one layer's gradient at a
 * time. */
struct zero {
    lab_comm *c;
    int whole;         /* stage 1: w has all weights */
    int64_t piece;
    float *w, *m, *v;
    float *window;     /* stage 3: the weights of the layer at work */
    int in_window;     /* which layer that is; -1: none */
    float *dw, *sum;   /* of the layer at work: this rank's gradient, and the piece of the sum */
};

zero *zero_open(lab_comm *c, int stage, const float *first)
{
    zero *z = lab_alloc(c, sizeof *z);
    int64_t piece = LAYER / lab_size(c), kept = stage == 1 ? LAYER : piece, from = stage == 1 ? 0 : lab_rank(c) * piece;
    z->c = c, z->whole = stage == 1, z->piece = piece, z->in_window = -1;
    z->w = lab_alloc(c, 4 * DEPTH * kept);
    z->m = lab_alloc(c, 4 * DEPTH * piece), z->v = lab_alloc(c, 4 * DEPTH * piece);
    z->window = stage == 1 ? NULL : lab_alloc(c, 4 * LAYER);
    z->dw = lab_alloc(c, 4 * LAYER), z->sum = lab_alloc(c, 4 * piece);
    for (int l = 0; l < DEPTH; l++) memcpy(z->w + l * kept, first + l * LAYER + from, 4 * (size_t)kept);
    return z;
}

/* The weights of a layer. Backward begins with the layer at which forward ends: that one is not gathered twice. */
static const float *weights(zero *z, int l)
{
    if (z->whole) return z->w + l * LAYER;
    if (z->in_window != l) lab_all_gather(z->c, z->w + l * z->piece, z->window, z->piece);
    z->in_window = l;
    return z->window;
}

static void update(zero *z, int l, int step)
{
    float *w = z->whole ? z->w + l * LAYER + lab_rank(z->c) * z->piece : z->w + l * z->piece;
    lab_reduce_scatter(z->c, z->dw, z->sum, z->piece);
    adam(w, z->sum, z->m + l * z->piece, z->v + l * z->piece, z->piece, step);
    if (z->whole) lab_all_gather(z->c, w, z->w + l * LAYER, z->piece);
}

void zero_step(zero *z, int step, lab_batch *b)
{
    float dy[SAMPLES * WIDTH];
    z->in_window = -1; /* what is there is older than the last update */
    for (int l = 0; l < DEPTH; l++) layer_forward(weights(z, l), b->x[l], b->n, b->x[l + 1]);
    lab_error(z->c, b, dy);
    for (int l = DEPTH - 1; l >= 0; l--) {
        layer_backward(weights(z, l), b->x[l], dy, b->n, z->dw, dy);
        update(z, l, step);
    }
}

void zero_weights(zero *z, float *all)
{
    z->in_window = -1;
    for (int l = 0; l < DEPTH; l++) memcpy(all + l * LAYER, weights(z, l), 4 * LAYER);
}

void zero_close(zero *z)
{
    lab_free(z->c, z->w), lab_free(z->c, z->m), lab_free(z->c, z->v);
    lab_free(z->c, z->window), lab_free(z->c, z->dw), lab_free(z->c, z->sum);
    lab_free(z->c, z);
}
