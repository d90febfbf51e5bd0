/* 40_zero_by_hand: how can ranks that all train the same model keep only a part of it each?
 *
 * What you learn
 *     - Plain data parallel stores 16 bytes per weight on every rank: the weight, its gradient, Adam's m and v. With
 *       ZeRO, each rank updates and stores only its shard. Stage 1 shards m and v; stage 2 also the gradients; stage 3
 *       also the weights.
 *     - Stage 0 adds gradients by an all-reduce. Stages 1 and 2 use a reduce-scatter and gather the new weights.
 *       Stage 3 gathers one layer's weights at a time, in forward and again in backward, and drops them after use.
 *     - An all-reduce is a reduce-scatter and an all-gather. So stages 1 and 2 send as much as stage 0, and stage 3
 *       half as much again. "Sharding costs 50 % more traffic" is true of stage 3 alone.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 40_zero_by_hand.c -o 40_zero_by_hand -lm -lpthread
 *     ./40_zero_by_hand --ranks 4                (1, 2 or 4)
 *
 * What it prints
 *     4096 weights, ranks: 4; bytes of a rank
 *       ZeRO  weights  gradients  m and v  together  sent a step  formula     loss
 *          0    16384      16384    32768     65536        24576    24576  0.01403
 *          1    16384      16384     8192     40960        24576    24576  0.01403
 *          2    16384       4096     8192     28672        24576    24576  0.01403
 *          3     4096       4096     8192     16384        36864    36864  0.01403
 *     ok: 4 stages on 4 ranks: the same 4096 weights, bit for bit; bytes as computed
 *
 * Predict first: with 2 ranks instead of 4, which numbers of stage 3 are halved, doubled, or stay the same?
 * Exercise: stage 3 gathers the last layer twice in a row. Leave the second gather out. How many bytes does that save?
 *
 * Read on: 41_zero.c for the trainer's stages and groups, 43_memory.c for activations, which ZeRO does not shard. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "layers.h"
#include <stdlib.h>

/* What a rank stores. Of each layer, rank r owns numbers [r * piece, (r + 1) * piece). */
typedef struct rank {
    dt_comm *c;
    int stage;
    int64_t piece;        /* numbers of a layer that a rank owns */
    float *w, *g, *m, *v; /* all layers or their pieces, as the stage says */
    float window[LAYER], fresh[LAYER]; /* of the layer at work: weights in stage 3, a gradient in stages 1 to 3 */
    int64_t bytes[3], sent;
} rank;

/* Layer l in an array that is whole, or this rank's piece in one that is not; and this rank's piece in either. */
static float *at(const rank *k, float *array, int whole, int l) { return array + l * (whole ? LAYER : k->piece); }
static float *mine(const rank *k, float *array, int whole, int l)
{
    return at(k, array, whole, l) + (whole ? dt_comm_rank(k->c) * k->piece : 0);
}

/* The weights of a layer: stage 3 has to gather them. */
static const float *weights(rank *k, int l, dt_result *r)
{
    if (k->stage < 3) return at(k, k->w, 1, l);
    if (!*r) *r = dt_all_gather(k->c, at(k, k->w, 0, l), k->window, k->piece);
    return k->window;
}

static dt_result train_step(rank *k, int step, float x[DEPTH + 1][SAMPLES * WIDTH], const float *target, int64_t n,
                            float *loss)
{
    float dy[SAMPLES * WIDTH];
    int ranks = dt_comm_size(k->c), whole_w = k->stage < 3, whole_g = k->stage < 2, whole_m = k->stage < 1;
    dt_result r = DT_OK;
    for (int l = 0; l < DEPTH && !r; l++) {
        const float *w = weights(k, l, &r);
        if (!r) r = layer_forward(w, x[l], n, x[l + 1]);
    }
    *loss = layers_error(x[DEPTH], target, n, dy) / (float)ranks;
    for (int64_t i = 0; i < n * WIDTH; i++) dy[i] /= (float)ranks; /* the sum over ranks becomes a mean */
    for (int l = DEPTH; l-- > 0 && !r;) {
        const float *w = weights(k, l, &r);
        float *dw = whole_g ? at(k, k->g, 1, l) : k->fresh;
        if (!r) r = layer_backward(w, x[l], dy, n, dw, dy);
        if (!r && k->stage == 1) r = dt_reduce_scatter(k->c, dw, k->fresh, k->piece, DT_SUM);
        if (!r && k->stage == 1) memcpy(mine(k, k->g, 1, l), k->fresh, sizeof(float) * (size_t)k->piece);
        if (!r && k->stage > 1) r = dt_reduce_scatter(k->c, dw, at(k, k->g, 0, l), k->piece, DT_SUM);
    }
    if (!r && k->stage == 0) r = dt_all_reduce(k->c, k->g, WEIGHTS, DT_SUM);
    for (int l = 0; l < DEPTH && !r; l++) {
        float *m = at(k, k->m, whole_m, l), *v = at(k, k->v, whole_m, l);
        if (whole_m) adam(at(k, k->w, 1, l), at(k, k->g, 1, l), m, v, LAYER, step);
        else adam(mine(k, k->w, whole_w, l), mine(k, k->g, whole_g, l), m, v, k->piece, step);
        if (k->stage == 1 || k->stage == 2)
            r = dt_all_gather(k->c, mine(k, k->w, 1, l), at(k, k->w, 1, l), k->piece);
    }
    return r;
}

static dt_result train(dt_comm *c, int stage, const float *first, rank *k, float *end, float *loss)
{
    static float x[DEPTH + 1][SAMPLES * WIDTH], target[SAMPLES * WIDTH];
    int64_t n = SAMPLES / dt_comm_size(c), begin = n * dt_comm_rank(c), before;
    dt_result r = DT_OK;
    memset(k, 0, sizeof *k);
    k->c = c, k->stage = stage, k->piece = LAYER / dt_comm_size(c);
    for (int i = 0; i < 3; i++) /* weights, gradients, m and v */
        k->bytes[i] = (i < 2 ? 4 : 8) * DEPTH * (stage < 3 - i ? LAYER : k->piece);
    k->w = malloc((size_t)k->bytes[0]), k->g = malloc((size_t)k->bytes[1]);
    k->m = calloc(1, (size_t)k->bytes[2]), k->v = k->m ? k->m + k->bytes[2] / 8 : NULL;
    if (!k->w || !k->g || !k->m) return DT_E_MEMORY;
    for (int l = 0; l < DEPTH; l++) /* a rank begins with what it keeps */
        memcpy(at(k, k->w, stage < 3, l), first + l * LAYER + (stage < 3 ? 0 : dt_comm_rank(c) * k->piece),
               sizeof(float) * (size_t)(stage < 3 ? LAYER : k->piece));
    for (int64_t i = 0; i < n; i++) layers_sample(NULL, DT_TRAIN, begin + i, x[0] + i * WIDTH, target + i * WIDTH);
    before = layers_sent(c);
    for (int step = 1; step <= STEPS && !r; step++) r = train_step(k, step, x, target, n, loss);
    k->sent = (layers_sent(c) - before) / STEPS;
    for (int l = 0; l < DEPTH && !r; l++) /* to compare them */
        memcpy(end + l * LAYER, weights(k, l, &r), sizeof(float) * LAYER);
    if (!r) r = dt_all_reduce(c, loss, 1, DT_SUM);
    free(k->w), free(k->g), free(k->m);
    return r;
}

int main(int argc, char **argv)
{
    static float first[WEIGHTS], end[4][WEIGHTS];
    float loss[4], trainers;
    rank k[4];
    dt_comm *c = NULL;
    dt_layout l = dt_layout_default();
    int n, root, good = 1;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("40_zero_by_hand");
    n = dt_comm_size(c), root = !dt_comm_rank(c);
    if (argc > 1 || SAMPLES % n || n > 4)
        return fprintf(stderr, "40_zero_by_hand: the option is --ranks 1, 2 or 4\n"), 2;
    l.zero = 3;
    trainers = layers_trainers(&l, first);
    for (int stage = 0; stage < 4 && !r; stage++) r = train(c, stage, first, &k[stage], end[stage], &loss[stage]);
    if (r) return dt_fail("40_zero_by_hand");
    if (root)
        printf("%d weights, ranks: %d; bytes of a rank\n  ZeRO  weights  gradients  m and v  together  sent a step  "
               "formula     loss\n", WEIGHTS, n);
    for (int stage = 0; stage < 4; stage++) {
        int64_t formula = (stage < 3 ? 2 : 3) * (int64_t)4 * WEIGHTS * (n - 1) / n, *b = k[stage].bytes;
        good = good && k[stage].sent == formula && !memcmp(end[stage], end[0], sizeof end[0]);
        if (root)
            printf("  %4d  %7lld  %9lld  %7lld  %8lld  %11lld  %7lld  %.5f\n", stage, (long long)b[0], (long long)b[1],
                   (long long)b[2], (long long)(b[0] + b[1] + b[2]), (long long)k[stage].sent, (long long)formula,
                   (double)loss[stage]);
    }
    if (root) printf("the trainer, ZeRO 0 and 3: loss %.5f\n", (double)trainers);
    dt_comm_close(&c);
    good = good && fabsf(trainers - loss[0]) < 1e-4f * trainers;
    if (!good) return fprintf(stderr, "FAILED: bits, bytes or losses differ\n"), 1;
    if (root) printf("ok: 4 stages on %d ranks: the same %d weights, bit for bit; bytes as computed\n", n, WEIGHTS);
    return 0;
}
