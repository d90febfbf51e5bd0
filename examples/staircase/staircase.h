/* staircase.h: what all steps of the staircase share: a model, its data, sums in one order, an optimizer, a report.
 * Include it after dtrain.h.
 *
 * The model is a stack of blocks, y = x + gelu(x A) B. A block is cut into SLICES by its hidden units: a slice has some
 * columns of A and the same rows of B, and gelu(x A) B is the sum over slices. A batch is cut into SHARDS. Both numbers
 * are the same in every step, so every step computes the same parts and adds them in the same order: no bit changes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 4, SLICES = 2, SHARDS = 4, ROWS = 4, WIDTH = 16, HIDDEN = 128, UNITS = HIDDEN / SLICES, STEPS = 20 };
enum {
    SLICE = 2 * WIDTH * UNITS, /* numbers of a slice: A (WIDTH,UNITS), then B (UNITS,WIDTH) */
    BLOCK = SLICES * SLICE,    /* of a block, slice after slice */
    WEIGHTS = BLOCKS * BLOCK,  /* of the model, block after block */
    FLOATS = ROWS * WIDTH      /* of a shard: what goes into a block, and what comes out */
};
#define EXPECTED 0xe452cf305ce4fd06ull /* the hash of the weights after STEPS steps */

/* Ends the program with the error's sentence, unless r is DT_OK. */
static inline void must(dt_result r)
{
    if (r) exit(dt_fail("staircase"));
}

/* The ranks of this job, at most `most`. words: how many words a command line may have beside the library's options. */
static inline dt_comm *start(int *argc, char ***argv, int words, int most)
{
    dt_comm *c = NULL;
    int n;
    must(dt_comm_open(&c, argc, argv));
    n = dt_comm_size(c);
    if (*argc > words + 1) must(dt_error(DT_E_USAGE, "what is %s? This step takes --ranks N", (*argv)[words + 1]));
    if (n > most || (n & (n - 1)))
        must(dt_error(DT_E_USAGE, "--ranks %d: this step runs on 1, 2, 4 .. %d ranks", n, most));
    return c;
}

/* The ranks of c with this color, as a communicator. */
static inline dt_comm *group(dt_comm *c, int color)
{
    dt_comm *sub = NULL;
    must(dt_comm_split(c, color, &sub));
    return sub;
}

/* Zeros. *kept, unless it is NULL, counts the numbers that a rank keeps. */
static inline float *floats(int64_t count, int64_t *kept)
{
    float *all = (float *)calloc((size_t)count, sizeof *all);
    if (!all) must(dt_error(DT_E_MEMORY, "no memory for %lld numbers", (long long)count));
    if (kept) *kept += count;
    return all;
}

/* ---- data and weights: whole numbers and powers of two, the same on every machine ---- */

static inline uint32_t scramble(int i)
{
    uint32_t h = ((uint32_t)i + 1) * 2654435761u;
    h = (h ^ h >> 15) * 2654435761u;
    return h ^ h >> 13;
}

/* A shard of the batch of a step: rows of +1 and -1, and as target the same rows rotated by one place. */
static inline void samples(int step, int shard, float *x, float *target)
{
    for (int i = 0; i < FLOATS; i++) x[i] = scramble((step * SHARDS + shard) * FLOATS + i) >> 31 ? 1.0f : -1.0f;
    for (int i = 0; i < FLOATS; i++) target[i] = x[i / WIDTH * WIDTH + (i + 1) % WIDTH];
}

/* The initial weights [first, first + count) of the model, between -1/8 and 1/8. */
static inline void first_weights(float *w, int first, int count)
{
    for (int i = 0; i < count; i++) w[i] = ((float)(scramble(-first - i) >> 8) / (1 << 24) - 0.5f) / 4;
}

/* ---- the model ---- */

/* dy NULL: y = gelu(x A) B. Else dw and, in y, the gradient of x, from dy. */
static inline void slice_run(const float *w, const float *x, const float *dy, float *dw, float *y)
{
    dt_graph *g = NULL;
    dt_tensor in, a, b, out;
    must(dt_graph_open(&g, 1));
    in = dt_tensor_of(g, DT_F32, dt_shape2(ROWS, WIDTH), x);
    a = dt_tensor_of(g, DT_F32, dt_shape2(WIDTH, UNITS), w);
    b = dt_tensor_of(g, DT_F32, dt_shape2(UNITS, WIDTH), w + WIDTH * UNITS);
    out = dt_matmul(g, dt_gelu(g, dt_matmul(g, in, a, 0, 0)), b, 0, 0);
    if (dy) {
        out = dt_mul(g, out, dt_tensor_of(g, DT_F32, dt_shape2(ROWS, WIDTH), dy));
        must(dt_backward(g, dt_sum(g, out, DT_ALL)));
        memcpy(dw, dt_value(g, dt_grad(g, a)), sizeof(float) * SLICE / 2);
        memcpy(dw + SLICE / 2, dt_value(g, dt_grad(g, b)), sizeof(float) * SLICE / 2);
        out = dt_grad(g, in);
    }
    must(dt_graph_result(g));
    memcpy(y, dt_value(g, out), sizeof(float) * FLOATS);
    dt_graph_close(&g);
}

/* A slice's part of y. */
static inline void slice_forward(const float *w, const float *x, float *y) { slice_run(w, x, NULL, NULL, y); }

/* The gradient dw of a slice's weights, and its part dx of the gradient of x. */
static inline void slice_backward(const float *w, const float *x, const float *dy, float *dw, float *dx)
{
    slice_run(w, x, dy, dw, dx);
}

/* A shard's part of the mean squared error, and the gradient of y. */
static inline float shard_loss(const float *y, const float *target, float *dy)
{
    float sum = 0;
    for (int i = 0; i < FLOATS; i++) {
        float miss = y[i] - target[i];
        dy[i] = miss * 2 / (SHARDS * FLOATS), sum += miss * miss;
    }
    return sum / (SHARDS * FLOATS);
}

/* The sum of `rows` rows of n numbers, in the first row: neighbours, then pairs of pairs, as dt_all_reduce does it. */
static inline void tree_sum(float *row, int rows, int n)
{
    for (int half = 1; half < rows; half *= 2)
        for (int r = 0; r < rows; r += 2 * half)
            for (int i = 0; i < n; i++) row[r * n + i] += row[(r + half) * n + i];
}

/* SGD with momentum. A product with a power of two is exact, so the bits do not depend on what a compiler fuses. */
static inline void update(float *w, float *v, const float *g, int n)
{
    for (int i = 0; i < n; i++) v[i] = v[i] / 2 + g[i], w[i] -= v[i] / 2;
}

/* ---- the report ---- */

/* Bytes of this rank that have reached others. */
static inline int64_t bytes_sent(const dt_comm *c)
{
    int64_t bytes = 0;
    for (int q = 0; q < dt_comm_size(c); q++) bytes += dt_comm_sent(c, q);
    return bytes;
}

/* Rank 0 prints the loss of the last step, what it kept and sent, and the hash of the weights. The exit status. */
static inline int report(dt_comm *c, const float *w, float loss, int64_t kept, int64_t sent)
{
    const unsigned char *byte = (const unsigned char *)w;
    uint64_t hash = 14695981039346656037ull;
    for (size_t i = 0; i < WEIGHTS * sizeof *w; i++) hash = (hash ^ byte[i]) * 1099511628211ull; /* FNV-1a */
    if (c && dt_comm_rank(c)) return hash != EXPECTED;
    printf("ranks: %d, loss: %.4f; rank 0 keeps %lld numbers and sends %lld bytes in a step\nhash %016llx\n",
           c ? dt_comm_size(c) : 1, (double)loss, (long long)kept, (long long)sent, (unsigned long long)hash);
    if (hash != EXPECTED) return puts("FAILED: the hash is not the one of staircase.h"), 1;
    return printf("ok: %d updates on %d ranks end with the hash of one process\n", STEPS, c ? dt_comm_size(c) : 1), 0;
}
