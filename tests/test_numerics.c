/* test_numerics.c: the rules of exact numerics (R1..R16), by name. Every kernel is compared bit for bit with a plain
 * scalar text on each instruction set of this processor; math functions are measured in units of the last place (ulp);
 * step programs and memory plans are checked by running them on symbols instead of numbers.
 *
 *     cc -O2 -I.. test_numerics.c -lm -lpthread && ./a.out
 *
 * With DT_FULL=1 in the environment the math functions are measured on all floats, which takes some minutes of all cores. */
#include <stddef.h>

void *test_malloc(size_t size); /* so that the test of R15 and memory can count */
#define DT_MALLOC(size) test_malloc(size)
#define DT_FREE(pointer) free(pointer)
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/prose.h"
#include "reference.h"
#include "tap.h"
#include "slot.h"

static long allocations;
void *test_malloc(size_t size)
{
    __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
    return malloc(size);
}

/* ---- numbers ------------------------------------------------------------------------------- */

static uint64_t state = 88172645463325252u;

static uint64_t next64(void) /* xorshift (Marsaglia 2003) */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}
static uint32_t next32(void) { return (uint32_t)(next64() >> 32); }
static int64_t below(int64_t n) { return (int64_t)(next64() >> 1) % n; }
static float uniform(float scale) { return scale * ((float)(next32() >> 8) / 8388608.0f - 1.0f); }

/* Mostly ordinary numbers, with zeros of both signs, subnormals, and products that underflow or swamp. */
static float wild(void)
{
    float x = uniform(2.0f);
    switch (below(16)) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return x * 1e-24f;
    case 3: return x * 1e-39f;
    case 4: return x * 1e8f;
    case 5: return x * 1e-10f;
    default: return x;
    }
}

static void fill(float *x, int64_t n, float (*draw)(void))
{
    for (int64_t i = 0; i < n; i++) x[i] = draw();
}
static float tame(void) { return uniform(2.0f); }
static float positive(void) { return uniform(0.999f) + 1.0f; }

static float *floats(int64_t n)
{
    float *x = (float *)malloc(4 * (size_t)n);
    if (!x) tap_bail("no memory");
    memset(x, 0, 4 * (size_t)n);
    return x;
}

/* ---- comparing many small results in one test ------------------------------------------------ */

static int64_t bad;
static char first_bad[160];

static void compare_begin(void) { bad = 0; }

/* NaN equals NaN: payloads are not part of the contract (R14). */
static void compare(const float *got, const float *want, int64_t n, const char *what, int64_t size)
{
    for (int64_t i = 0; i < n; i++) {
        if (!memcmp(got + i, want + i, 4) || (got[i] != got[i] && want[i] != want[i])) continue;
        if (!bad++)
            snprintf(first_bad, sizeof first_bad, "%s, size %lld, [%lld]: got %a, want %a", what, (long long)size, (long long)i,
                     (double)got[i], (double)want[i]);
        return;
    }
}
static void expect(int condition, const char *what, int64_t at)
{
    if (!condition && !bad++) snprintf(first_bad, sizeof first_bad, "%s (%lld)", what, (long long)at);
}
__attribute__((format(printf, 1, 2))) static void compare_end(const char *format, ...)
{
    char text[160];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!tap_ok(!bad, "%s", text)) tap_note("%lld cases differ, the first: %s", (long long)bad, first_bad);
}

/* Outputs are followed by a fence that no kernel may touch. */
enum { MOST = 5000, FENCE = 32 };
static void fence(float *out, int64_t n)
{
    for (int64_t i = 0; i < FENCE; i++) out[n + i] = 12345.0f;
}
static void fence_check(const float *out, int64_t n, const char *what)
{
    for (int64_t i = 0; i < FENCE; i++) expect(out[n + i] == 12345.0f, what, n);
}

/* Sizes 1 to 100, then some around the blocks and vectors. */
static int64_t next_size(int64_t n)
{
    static const int64_t more[] = { 127, 128, 129, 255, 256, 257, 511, 1000, 1023, 1024, 1025, 2047, 4099 };
    if (n < 100) return n + 1;
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (more[i] > n) return more[i];
    return 0;
}

static const int unary_ops[] = { DT__OP_NEG, DT__OP_SCALE, DT__OP_EXP, DT__OP_LOG, DT__OP_TANH, DT__OP_SQRT, DT__OP_RSQRT, DT__OP_GELU,
                                 DT__OP_SILU, DT__OP_SIGMOID, DT__OP_RELU, DT__OP_ABS, DT__OP_SQUARE, DT__OP_RECIPROCAL };
static const int binary_ops[] = { DT__OP_ADD, DT__OP_SUB, DT__OP_MUL, DT__OP_DIV, DT__OP_MAXIMUM, DT__OP_MINIMUM, DT__OP_GREATER_EQUAL,
                                  DT__OP_GELU_GRAD0, DT__OP_SILU_GRAD0 };
enum { UNARY = (int)(sizeof unary_ops / sizeof *unary_ops), BINARY = (int)(sizeof binary_ops / sizeof *binary_ops) };

/* ---- kernels: R5, R9, R12, R14 ------------------------------------------------------------------- */

static float *A, *B, *C, *D, *E, *F; /* (MOST + FENCE) each: inputs, outputs and wants */

/* A row op on rows; s0 and s1 from stats (rows,2) and back, s2. */
static void run_rows(const dt__kernels *k, int op, float *out, float *stats, int given, const float *a, const float *b, int b_rows, const float *c, float s2, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) {
        const float *in[3] = { a + r * n, b + (b_rows ? r * n : 0), c };
        float s[4] = { given ? stats[2 * r] : 0.0f, given ? stats[2 * r + 1] : 0.0f, s2, 0.0f };
        k->row(op, out + r * n, in, s, n);
        memcpy(stats + 2 * r, s, 8);
    }
}

static void test_rows(const dt__kernels *k)
{
    compare_begin();
    for (int64_t n = 1; n; n = next_size(n)) {
        float got, want;
        fill(A, n, wild);
        got = dt__row_value(k, DT__OP_ROW_SUM, A, n), want = ref_row_sum(A, n);
        compare(&got, &want, 1, "row_sum", n);
    }
    compare_end("R5 row sum: lane i mod 32, then 16, 8, 4, 2, 1; %s", k->name);
    compare_begin();
    for (int64_t n = 1; n; n = next_size(n)) {
        float got, want;
        fill(A, n, wild), fill(B, n, wild);
        got = k->row_dot(A, B, n), want = ref_row_dot(A, B, n);
        compare(&got, &want, 1, "row_dot", n);
    }
    compare_end("R5 sum of products: fmaf into the same lanes; %s", k->name);
    compare_begin();
    for (int64_t n = 1; n; n = next_size(n)) {
        float got, want;
        fill(A, n, wild);
        for (int64_t i = 0; n % 3 == 0 && i < n; i++) A[i] = -fabsf(A[i]); /* the maximum is often a zero */
        if (n % 7 == 0) A[below(n)] = -INFINITY;
        got = dt__row_value(k, DT__OP_ROW_MAX, A, n), want = ref_row_max(A, n);
        compare(&got, &want, 1, "row_max", n);
    }
    A[0] = A[1] = -INFINITY;
    expect(dt__row_value(k, DT__OP_ROW_MAX, A, 2) == -INFINITY, "maximum of -inf", 2);
    compare_end("R14 row max: a > b ? a : b, zero is +0; %s", k->name);
    compare_begin();
    for (int64_t n = 1; n <= 100; n++) {
        int64_t rows = 1 + n % 17, ld = n + n % 3;
        fill(A, rows * ld, wild), fill(B, n, wild);
        memcpy(C, B, 4 * (size_t)n);
        fence(C, n);
        for (int64_t c = 0; c < n; c++)
            for (int64_t r = 0; r < rows; r++) B[c] = B[c] + A[r * ld + c];
        k->column(DT__OP_COL_SUM, C, A, NULL, NULL, rows, n, ld);
        compare(C, B, n, "col_sum", n);
        fence_check(C, n, "col_sum wrote behind its end");
    }
    compare_end("R3 R5 column sum: one chain per column, continued in row order; %s", k->name);
}

/* Any bits; half of them ordinary numbers. NaN and inf are among them. */
static float anything(void)
{
    uint32_t bits = next32();
    float x;
    memcpy(&x, &bits, sizeof x);
    return next32() & 1 ? x : uniform(12.0f);
}


static void test_elementwise(const dt__kernels *k)
{
    for (int o = 0; o < UNARY; o++) {
        compare_begin();
        for (int64_t n = 1; n; n = next_size(n)) {
            fill(A, n, o == 3 || o == 5 || o == 6 ? positive : o < 8 || n % 2 ? wild : anything);
            if (n % 5 == 0) A[below(n)] = wild(), A[below(n)] = uniform(120.0f);
            for (int64_t i = 0; i < n; i++) B[i] = ref_unary(unary_ops[o], A[i], 0.7f);
            fence(C, n);
            k->unary(unary_ops[o], C, A, n, 0.7f);
            compare(C, B, n, "out of place", n);
            fence_check(C, n, "wrote behind its end");
            k->unary(unary_ops[o], A, A, n, 0.7f);
            compare(A, B, n, "in place", n);
        }
        compare_end("R5 %s equals the scalar text; %s", dt__op_of(unary_ops[o])->name, k->name);
    }
    for (int o = 0; o < BINARY; o++) {
        compare_begin();
        for (int64_t n = 1; n; n = next_size(n))
            for (int steps = 0; steps < 4; steps++) {
                int as = steps & 1, bs = steps >> 1;
                int any = binary_ops[o] != DT__OP_GELU_GRAD0 && n % 2; /* the tanh form is for numbers */
                fill(A, n, any ? anything : wild), fill(B, n, any ? anything : wild);
                if (n % 3 == 0) memcpy(A, B, 4 * (size_t)(n / 2)); /* equal ones */
                for (int64_t i = 0; i < n; i++) D[i] = ref_binary(binary_ops[o], A[i * as], B[i * bs]);
                fence(C, n);
                k->binary(binary_ops[o], C, A, as, B, bs, n);
                compare(C, D, n, "out of place", n);
                fence_check(C, n, "wrote behind its end");
                if (as) k->binary(binary_ops[o], A, A, as, B, bs, n), compare(A, D, n, "in place of a", n);
                else if (bs) k->binary(binary_ops[o], B, A, as, B, bs, n), compare(B, D, n, "in place of b", n);
            }
        compare_end("R5 %s, each side whole or one element repeated; %s", dt__op_of(binary_ops[o])->name, k->name);
    }
}

static void ref_layernorm(float *out, float *stats, const float *x, const float *gamma, const float *beta, int64_t n)
{
    float mean = ref_row_sum(x, n) / (float)n, rstd;
    for (int64_t i = 0; i < n; i++) out[i] = x[i] - mean;
    rstd = 1.0f / sqrtf(ref_row_dot(out, out, n) / (float)n + 1e-5f);
    for (int64_t i = 0; i < n; i++) out[i] = fmaf(out[i] * rstd, gamma[i], beta[i]);
    stats[0] = mean;
    stats[1] = rstd;
}
static void ref_layernorm_dx(float *out, const float *dy, const float *x, const float *stats, const float *gamma, int64_t n)
{
    float g[MOST], xhat[MOST], mg, mx;
    memset(g, 0, sizeof g), memset(xhat, 0, sizeof xhat); /* gcc cannot see that n is above 0 */
    for (int64_t i = 0; i < n; i++) {
        g[i] = dy[i] * gamma[i];
        xhat[i] = (x[i] - stats[0]) * stats[1];
    }
    mg = ref_row_sum(g, n) / (float)n;
    mx = ref_row_dot(g, xhat, n) / (float)n;
    for (int64_t i = 0; i < n; i++) {
        float product = xhat[i] * mx;
        out[i] = stats[1] * (g[i] - mg - product);
    }
}

static void test_layernorm(const dt__kernels *k)
{
    float got_stats[64], want_stats[64];
    compare_begin();
    for (int64_t n = 1; n; n = next_size(n)) {
        int64_t rows = n < 200 ? 1 + n % 5 : 1;
        fill(A, rows * n, tame), fill(B, n, wild), fill(C, n, tame);
        for (int64_t r = 0; r < rows; r++) ref_layernorm(D + r * n, want_stats + 2 * r, A + r * n, B, C, n);
        fence(E, rows * n);
        run_rows(k, DT__OP_LAYERNORM, E, got_stats, 0, A, B, 0, C, 1e-5f, rows, n);
        compare(E, D, rows * n, "out", n);
        compare(got_stats, want_stats, 2 * rows, "mean and 1/deviation", n);
        fence_check(E, rows * n, "wrote behind its end");
        fill(C, rows * n, wild); /* dy */
        for (int64_t r = 0; r < rows; r++) ref_layernorm_dx(D + r * n, C + r * n, A + r * n, want_stats + 2 * r, B, n);
        fence(E, rows * n);
        run_rows(k, DT__OP_LAYERNORM_DX, E, want_stats, 1, C, A, 1, B, 0.0f, rows, n);
        compare(E, D, rows * n, "dx", n);
        fence_check(E, rows * n, "dx wrote behind its end");
    }
    compare_end("R5 layernorm, forward and dx; %s", k->name);
    compare_begin();
    for (int64_t n = 1; n <= 100; n++) {
        int64_t rows = 1 + n % 13, ld = n + n % 3;
        fill(A, rows * ld, tame), fill(B, rows * ld, wild), fill(C, n, tame), fill(want_stats, 2 * rows, tame);
        memcpy(D, C, 4 * (size_t)n);
        fence(D, n);
        for (int64_t c = 0; c < n; c++)
            for (int64_t r = 0; r < rows; r++)
                C[c] = fmaf(B[r * ld + c], (A[r * ld + c] - want_stats[2 * r]) * want_stats[2 * r + 1], C[c]);
        k->column(DT__OP_LAYERNORM_DGAMMA, D, B, A, want_stats, rows, n, ld);
        compare(D, C, n, "dgamma", n);
        fence_check(D, n, "dgamma wrote behind its end");
    }
    compare_end("R3 layernorm dgamma: one fmaf chain per column, continued in row order; %s", k->name);
}

/* A CROSS_ENTROPY node and its gradient on rows of logits, run as a plan runs them. */
static float entropy_losses[64], entropy_stats[64];
static void entropy_node(const dt__kernels *k, const float *x, const int32_t *target, float smoothing, float dloss, int64_t rows, int64_t n, float *grad)
{
    static float aux[256];
    dt_graph g;
    dt__node node[4];
    dt__env env;
    dt__call c;
    float loss;
    memset(&g, 0, sizeof g), memset(node, 0, sizeof node), memset(&env, 0, sizeof env), memset(&c, 0, sizeof c);
    g.nodes = node, g.tensor_shards = 1, env.k = k;
    node[1].shape = dt_shape2(rows, n), node[2].shape = dt_shape1(rows);
    node[3].op = DT__OP_CROSS_ENTROPY, node[3].in[0] = 1, node[3].in[1] = 2, node[3].inputs = 2, node[3].f = smoothing, node[3].slot = -1;
    node[3].i[0] = node[3].i[1] = n, node[3].i[3] = 1;
    c.g = &g, c.n = &node[3], c.env = &env, c.out = &loss, c.aux = aux, c.in[0] = x, c.in[1] = (const float *)target;
    dt__host_run(&c);
    memcpy(entropy_stats, aux, 8 * (size_t)rows), memcpy(entropy_losses, aux + 2 * rows, 4 * (size_t)rows);
    node[3].op = DT__OP_CROSS_ENTROPY_GRAD, node[3].shape = node[1].shape;
    c.out = grad, c.in[1] = aux, c.in[2] = (const float *)target, c.in[3] = &dloss;
    dt__host_run(&c);
}

static void test_cross_entropy(const dt__kernels *k)
{
    float want[64], want_stats[64];
    int32_t target[32];
    compare_begin();
    for (int64_t n = 1; n; n = next_size(n)) {
        int64_t rows = n < 200 ? 1 + n % 7 : 1;
        float dloss = 1.0f / (float)(n + 2); /* R12: 1.0f/(float)N times (p - onehot) */
        float smoothing = n % 3 ? 0.0f : 0.1f * (float)(n % 10), spread = smoothing / (float)n;
        fill(A, rows * n, n % 4 ? tame : wild);
        fence(D, rows * n);
        for (int64_t r = 0; r < rows; r++) {
            const float *x = A + r * n;
            float max = ref_row_max(x, n), sum;
            target[r] = (int32_t)below(n + 1) - 1;
            for (int64_t i = 0; i < n; i++) B[i] = ref_exp(x[i] - max);
            sum = ref_row_sum(B, n);
            want_stats[2 * r] = max, want_stats[2 * r + 1] = sum;
            want[r] = target[r] < 0 ? 0.0f : ref_log(sum) - (x[target[r]] - max);
            if (target[r] >= 0 && smoothing > 0.0f) {
                float shifted[MOST], rest, share;
                for (int64_t i = 0; i < n; i++) shifted[i] = x[i] - max;
                rest = ref_log(sum) - ref_row_sum(shifted, n) / (float)n;
                share = smoothing * rest;
                want[r] = (1.0f - smoothing) * want[r];
                want[r] = want[r] + share;
            }
            for (int64_t i = 0; i < n; i++) {
                float p = B[i] / sum;
                C[r * n + i] = target[r] < 0 ? 0.0f : (p - (i == target[r] ? 1.0f - smoothing + spread : spread)) * dloss;
            }
        }
        entropy_node(k, A, target, smoothing, dloss, rows, n, D);
        compare(entropy_losses, want, rows, "loss", n);
        compare(entropy_stats, want_stats, 2 * rows, "max and sum", n);
        compare(D, C, rows * n, "gradient", n);
        fence_check(D, rows * n, "wrote behind its end");
        entropy_node(k, A, target, smoothing, dloss, rows, n, A);
        compare(A, C, rows * n, "gradient in place", n);
    }
    compare_end("R9 R12 cross-entropy: true maximum, exp, sum, log; smoothing; ignored targets are +0; %s", k->name);
}

static void test_sums(const dt__kernels *k)
{
    static const int64_t sizes[] = { 1, 1023, 1024, 1025, 2048, 3000, 5000, 8192, 70001, 199999 };
    dt_pool *pool = NULL;
    float sums[256], want[256], part[64 * 7], got[7];
    if (dt__pool_open(&pool, 3)) tap_bail("%s", dt_last_error());
    compare_begin();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s], blocks = (n + 1023) / 1024;
        float *x = floats(n), sum;
        fill(x, n, wild);
        for (int64_t b = 0; b < blocks; b++) want[b] = ref_row_dot(x + 1024 * b, x + 1024 * b, n - 1024 * b < 1024 ? n - 1024 * b : 1024);
        for (int64_t step = 1; step < blocks; step *= 2) /* TREE: neighbours by index; one without a partner moves up */
            for (int64_t i = 0; i + step < blocks; i += 2 * step) want[i] = want[i] + want[i + step];
        dt__mem_squares(k, NULL, x, n, sums);
        sum = dt__tree(sums, blocks);
        compare(&sum, want, 1, "one worker", n);
        dt__mem_squares(k, pool, x, n, sums);
        sum = dt__tree(sums, blocks);
        compare(&sum, want, 1, "three workers", n);
        free(x);
    }
    compare_end("R5 R11 sum of squares: blocks of 1024, then TREE; %s", k->name);
    compare_begin();
    for (int64_t parts = 1; parts <= 64; parts *= 2) {
        float column[64];
        fill(part, parts * 7, wild);
        dt__tree_sum(k, got, part, parts, 7, 7);
        for (int c = 0; c < 7; c++) {
            for (int64_t p = 0; p < parts; p++) column[p] = part[p * 7 + c];
            want[c] = ref_tree(column, parts);
        }
        compare(got, want, 7, "tree_sum", parts);
    }
    compare_end("R1 COMBINE: pairs, then pairs of pairs; %s", k->name);
    dt__pool_close(&pool);
}

/* ---- ops that have no kernel of their own: through an eager graph -------------------------------- */

static dt_graph *eager(const dt__kernels *k, uint64_t seed)
{
    dt_graph *g = NULL;
    if (dt_graph_open(&g, seed)) tap_bail("%s", dt_last_error());
    g->kernels = k;
    return g;
}

static void test_embedding(const dt__kernels *k)
{
    enum { V = 7, ROWS = 61, COLS = 37 };
    int32_t token[ROWS];
    dt_graph *g = eager(k, 1);
    dt_tensor table, y;
    fill(A, V * COLS, tame), fill(B, ROWS * COLS, wild);
    for (int i = 0; i < ROWS; i++) token[i] = (int32_t)below(V - 1); /* the last row is never used */
    table = dt_tensor_of(g, DT_F32, dt_shape2(V, COLS), A);
    y = dt_embed(g, table, dt_tensor_of(g, DT_I32, dt_shape1(ROWS), token));
    dt_backward(g, dt_sum(g, dt_mul(g, y, dt_tensor_of(g, DT_F32, dt_shape2(ROWS, COLS), B)), DT_ALL));
    memset(C, 0, 4 * V * COLS);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++) C[token[r] * COLS + c] = C[token[r] * COLS + c] + B[r * COLS + c];
    compare_begin();
    if (dt_graph_result(g)) tap_bail("%s", dt_last_error());
    compare(dt_value(g, dt_grad(g, table)), C, V * COLS, "gradient of the table", COLS);
    compare_end("R3 embedding: scatter-add in token order; %s", k->name);
    dt_graph_close(&g);
}

/* The word that decides about one element, and what dropout makes of it. */
static uint32_t ref_word(uint64_t seed, int purpose, uint32_t a, uint32_t b, uint32_t c, uint64_t element)
{
    uint32_t counter[4], key[2], out[4];
    counter[0] = (uint32_t)(element / 4), counter[1] = a, counter[2] = b, counter[3] = c;
    key[0] = (uint32_t)seed, key[1] = (uint32_t)(seed >> 32) ^ (uint32_t)purpose << 24;
    dt__philox(counter, key, out);
    return out[element % 4];
}

static void test_dropout(const dt__kernels *k)
{
    const float p = 0.3f;
    const uint64_t seed = 0x123456789abcdef0u;
    enum { BATCH = 5 };
    compare_begin();
    for (int64_t n = 1; n <= 90; n += 13) {
        dt_graph *g = eager(k, seed);
        dt_tensor x, y, z;
        int64_t dropped = 0;
        fill(A, BATCH * n, wild), fill(B, BATCH * n, tame);
        x = dt_tensor_of(g, DT_F32, dt_shape2(BATCH, n), A);
        y = dt_dropout(g, x, p);
        z = dt_dropout(g, x, p); /* another site, another mask */
        dt_backward(g, dt_sum(g, dt_mul(g, z, dt_tensor_of(g, DT_F32, dt_shape2(BATCH, n), B)), DT_ALL));
        for (int site = 0; site < 2; site++)
            for (int64_t b = 0; b < BATCH; b++)
                for (int64_t i = 0; i < n; i++) {
                    uint32_t word = ref_word(seed, 2, (uint32_t)b, 0, (uint32_t)site, (uint64_t)i);
                    int drop = word < (uint32_t)((double)p * 4294967296.0);
                    float scale = 1.0f / (1.0f - p);
                    (site ? D : C)[b * n + i] = drop ? 0.0f : A[b * n + i] * scale;
                    if (site) E[b * n + i] = drop ? 0.0f : B[b * n + i] * scale;
                    dropped += drop;
                }
        compare(dt_value(g, y), C, BATCH * n, "first site", n);
        compare(dt_value(g, z), D, BATCH * n, "second site", n);
        compare(dt_value(g, dt_grad(g, x)), E, BATCH * n, "gradient", n);
        if (n > 50) expect(fabs((double)dropped / (double)(2 * BATCH * n) - (double)p) < 0.1, "share of dropped elements", n);
        dt_graph_close(&g);
    }
    compare_end("R16 dropout: integer compare of the word of (seed, step, sample, site, element), else +0; %s", k->name);
}

static void test_kernels(void)
{
    for (int i = 0; i < DT__ISA_COUNT; i++) {
        static const char *const names[] = { "portable", "avx2", "avx512", "neon" };
        const dt__kernels *k = dt__isa_table(i);
        if (!k || !dt__isa_runs(i)) {
            tap_skip(1, "kernels on %s: this processor does not have it", names[i]);
            continue;
        }
        test_rows(k);
        test_elementwise(k);
            test_layernorm(k);
        test_cross_entropy(k);
        test_sums(k);
        test_embedding(k);
        test_dropout(k);
    }
}

/* ---- R15: fma without the instruction --------------------------------------------------------------- */

#if !defined(__FMA__) && !defined(__ARM_FEATURE_FMA)
static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void soft_case(float a, float b, float c)
{
    float got = dt__fmaf_soft(a, b, c), want = fmaf(a, b, c);
    if (!memcmp(&got, &want, sizeof got) || (got != got && want != want)) return;
    if (!bad++)
        snprintf(first_bad, sizeof first_bad, "fma(%a, %a, %a): got %a, want %a", (double)a, (double)b, (double)c, (double)got, (double)want);
}

/* c such that a*b + c lies within a hair of the middle of two floats: c = (float nearest a*b) + half a step, or a tiny
 * number beside a product that is itself such a middle. */
static void soft_halfway(void)
{
    float a = ldexpf((float)(next32() >> 8 | 1u), -12), b = ldexpf((float)(next32() >> 20 | 1u), (int)below(20) - 6), middle, step;
    double product = (double)a * (double)b;
    middle = (float)product;
    step = nextafterf(middle, INFINITY) - middle;
    soft_case(a, b, step / 2);
    soft_case(a, b, -step / 2);
    soft_case(a, b, ldexpf(step, -(int)below(40)));
    soft_case(a, b, (float)((double)middle - product));
    soft_case(float_of((next32() & 0x7fffffu) | 0x3f800000u), 1.0f + ldexpf(1.0f, -(int)below(24)), ldexpf(next32() & 1 ? 1.0f : -1.0f, -24 - (int)below(60)));
}

static void test_soft_fma(void)
{
    static const uint32_t special[] = { 0, 0x80000000u, 1, 0x80000001u, 0x007fffffu, 0x00800000u, 0x00800001u, 0x3f800000u,
                                        0xbf800000u, 0x3f800001u, 0x3f7fffffu, 0x7f7fffffu, 0xff7fffffu, 0x7f800000u,
                                        0xff800000u, 0x7fc00000u, 0x33800000u, 0x34000000u, 0x4b800000u, 0x20000000u };
    const int specials = (int)(sizeof special / sizeof *special), cases = getenv("DT_FULL") ? 30000000 : 1000000;
    compare_begin();
    for (int i = 0; i < specials * specials * specials; i++)
        soft_case(float_of(special[i % specials]), float_of(special[i / specials % specials]), float_of(special[i / specials / specials]));
    compare_end("R15 fma in software on special numbers");
    compare_begin();
    for (int i = 0; i < cases; i++) soft_case(float_of(next32()), float_of(next32()), float_of(next32()));
    compare_end("R15 fma in software on random bits");
    compare_begin();
    for (int i = 0; i < cases; i++) { /* the sum cancels, or c lies around the product's last place */
        float a = uniform(2.0f), b = uniform(2.0f), c = ldexpf(a * b, (int)below(60) - 30);
        soft_case(a, b, i & 1 ? c : -(a * b));
    }
    compare_end("R15 fma in software where terms cancel or barely touch");
    compare_begin();
    for (int i = 0; i < cases; i++) { /* results around and below the smallest normal number */
        float a = ldexpf(uniform(2.0f), -70 - (int)below(10)), b = ldexpf(uniform(2.0f), -60 - (int)below(20));
        soft_case(a, b, float_of((next32() & 0x81ffffffu) >> (i & 7)));
    }
    compare_end("R15 fma in software with subnormal results");
    compare_begin();
    for (int i = 0; i < cases / 5; i++) soft_halfway();
    compare_end("R15 fma in software around ties");
}
#else
static void test_soft_fma(void) { tap_skip(5, "fma in software: this build has the instruction and does not compile it"); }
#endif

/* ---- error of the math functions ------------------------------------------------------------------- */

/* Size of the last place of the float nearest to x. */
static double ulp(double x)
{
    uint64_t bits, exponent;
    memcpy(&bits, &x, sizeof bits);
    exponent = bits >> 52 & 2047;
    bits = ((exponent < 1023 - 126 ? 1023 - 126 : exponent) - 23) << 52;
    memcpy(&x, &bits, sizeof bits);
    return x;
}
static double real_rsqrt(double x) { return 1.0 / sqrt(x); }
/* x/2 (1 + tanh(u)), written so that it does not cancel for negative x. */
static double real_gelu(double x) { return x / (1.0 + exp(-2.0 * 0.79788456080286535588 * (x + 0.044715 * x * x * x))); }
static double real_gelu_grad(double x)
{
    double s = 1.0 / (1.0 + exp(-2.0 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    return s + x * s * (1.0 - s) * 2.0 * 0.79788456080286535588 * (1.0 + 3.0 * 0.044715 * x * x);
}

static double real_reciprocal(double x) { return 1.0 / x; }
static double real_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
static double real_silu(double x) { return x / (1.0 + exp(-x)); }
static double real_silu_grad(double x)
{
    double e = exp(-fabs(x)), s = (x < 0.0 ? e : 1.0) / (1.0 + e);
    return s + x * (e / (1.0 + e) / (1.0 + e));
}

typedef struct function {
    int op;
    const char *name;
    double (*real)(double);
    float low, high;  /* where it is measured */
    double bound;     /* most ulp */
    double absolute;  /* added to an ulp: the error is |got - want| / (ulp(want) + absolute * max(|x|, 1)) */
} function;

typedef struct worst {
    double error;
    float x, got;
} worst;

static void measure_block(const dt__kernels *k, const function *f, const float *x, int64_t n, worst *w)
{
    float y[4096];
    if (f->op == DT__OP_GELU_GRAD0 || f->op == DT__OP_SILU_GRAD0) {
        float one = 1.0f;
        k->binary(f->op, y, x, 1, &one, 0, n);
    } else k->unary(f->op, y, x, n, 1.0f);
    for (int64_t i = 0; i < n; i++) {
        double want = f->real((double)x[i]), got = (double)y[i], error;
        if (isinf(got)) got = got > 0 ? 0x1p128 : -0x1p128; /* what the next float would be */
        if (fabs(want) > 0x1p128) want = copysign(0x1p128, want);
        error = fabs(got - want) / (ulp(want) + (isinf(x[i]) ? 0.0 : f->absolute * fmax(1.0, fabs((double)x[i]))));
        if (error > w->error || error != error) w->error = error != error ? INFINITY : error, w->x = x[i], w->got = y[i];
    }
}

/* Every stride-th float of a thread's part of all bit patterns. */
typedef struct range {
    const dt__kernels *k;
    const function *f;
    uint64_t begin, end;
    uint32_t stride;
    worst w;
} range;

static void *measure_range(void *context)
{
    range *p = context;
    float x[4096];
    int64_t n = 0;
    unsigned saved = dt__fp_enter();
    for (uint64_t bits = p->begin; bits < p->end; bits += p->stride) {
        uint32_t word = (uint32_t)bits;
        memcpy(&x[n], &word, sizeof word);
        if (!(x[n] >= p->f->low && x[n] <= p->f->high)) continue;
        if (++n == 4096) measure_block(p->k, p->f, x, n, &p->w), n = 0;
    }
    measure_block(p->k, p->f, x, n, &p->w);
    dt__fp_leave(saved);
    return NULL;
}

static void measure(const dt__kernels *k, const function *f, uint32_t stride)
{
    enum { PARTS = 64 };
    range list[PARTS];
    pthread_t thread[PARTS];
    worst w;
    int together = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (together > PARTS) together = PARTS;
    memset(list, 0, sizeof list);
    for (int i = 0; i < together; i++) {
        list[i].k = k, list[i].f = f, list[i].stride = stride;
        list[i].begin = ((0x100000000u / (uint64_t)together * (uint64_t)i) + stride - 1) / stride * stride;
        list[i].end = i + 1 < together ? 0x100000000u / (uint64_t)together * (uint64_t)(i + 1) : 0x100000000u;
        if (pthread_create(&thread[i], NULL, measure_range, &list[i])) tap_bail("no thread: %s", strerror(errno));
    }
    for (int i = 0; i < together; i++) pthread_join(thread[i], NULL);
    w = list[0].w;
    for (int i = 1; i < together; i++)
        if (list[i].w.error > w.error) w = list[i].w;
    tap_ok(w.error <= f->bound, "%s: error at most %g ulp", f->name, f->bound);
    tap_note("%-9s measured %.4f ulp%s, at x = %.9g (%a): got %a, true %a", f->name, w.error, f->absolute > 0 ? " (see the criterion)" : "",
             (double)w.x, (double)w.x, (double)w.got, f->real((double)w.x));
}

static void test_accuracy(void)
{
    static const function table[] = {
        { DT__OP_EXP, "exp", exp, -INFINITY, INFINITY, 1.0, 0 },
        { DT__OP_LOG, "log", log, 1e-45f, 3.402823466e38f, 2.0, 0 },
        { DT__OP_TANH, "tanh", tanh, -INFINITY, INFINITY, 2.0, 0 },
        { DT__OP_SQRT, "sqrt", sqrt, 0.0f, 3.402823466e38f, 0.5, 0 },
        { DT__OP_RSQRT, "rsqrt", real_rsqrt, 1e-45f, 3.402823466e38f, 1.5, 0 },
        { DT__OP_RECIPROCAL, "1/x", real_reciprocal, -3.402823466e38f, 3.402823466e38f, 0.5, 0 },
        { DT__OP_SIGMOID, "sigmoid", real_sigmoid, -INFINITY, INFINITY, 0.51, 0 },
        { DT__OP_SILU, "silu", real_silu, -3.402823466e38f, 3.402823466e38f, 0.51, 0 },
        { DT__OP_GELU, "gelu", real_gelu, -1e12f, 1e12f, 2.0, 0x1p-24 },
        { DT__OP_GELU_GRAD0, "gelu'", real_gelu_grad, -1e12f, 1e12f, 3.0, 0x1p-24 },
        { DT__OP_SILU_GRAD0, "silu'", real_silu_grad, -1e12f, 1e12f, 2.0, 0x1p-24 },
    };
    const dt__kernels *k;
    const char *full = getenv("DT_FULL");
    uint32_t stride = full && full[0] == '1' ? 1 : 2039;
    unsigned saved = dt__fp_enter();
    if (dt__choose_kernels(&k)) tap_bail("%s", dt_last_error());
    tap_note("every %u. float, %s kernels. gelu and its derivative: |error| <= bound * (ulp(value) + 2^-24 max(|x|, 1))", stride, k->name);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) measure(k, &table[i], stride);
    dt__fp_leave(saved);
}

static const float odd_numbers[] = { 0.0f, 1.0f, 0.5f, 2.0f, 3.0f, 2.5f, 0x1p-149f, 0x1.fffffcp-127f, 0x1p-126f, 0x1.fffffep-1f, 0x1.000002p0f, 16777215.0f,
                                     16777216.0f, 16777218.0f, 8388607.5f, 3.4028235e38f, INFINITY, 88.0f, 104.0f, 151.0f };
enum { ODD = (int)(sizeof odd_numbers / sizeof *odd_numbers) };

/* Is y the float of libm's double result: the same class and sign, and within an ulp? */
static void like_libm(float y, double want, const char *what, double a, double b)
{
    int ok = want != want ? y != y : !(y != y) && !signbit(y) == !signbit(want);
    if (want == want && (fabs(want) < 0x1p-160 || isinf((float)want))) ok = ok && y == (float)want;
    else if (want == want) ok = ok && fabs((double)y - want) <= 2.0 * ulp(want);
    if (!ok && !bad++) snprintf(first_bad, sizeof first_bad, "%s(%a, %a): got %a, want %a", what, a, b, (double)y, want);
}

static double real_square(double x) { return x * x; }
static double real_relu(double x) { return x <= 0.0 ? 0.0 : x; }

/* Signs of zeros, infinities, NaN and the edges of the ranges, as C's library has them. */
static void test_against_libm(void)
{
    static const struct { int op; double (*real)(double); } table[] = {
        { DT__OP_ABS, fabs }, { DT__OP_SQUARE, real_square }, { DT__OP_RECIPROCAL, real_reciprocal }, { DT__OP_RELU, real_relu }, { DT__OP_EXP, exp },
        { DT__OP_LOG, log }, { DT__OP_TANH, tanh }, { DT__OP_SQRT, sqrt }, { DT__OP_SIGMOID, real_sigmoid },
    };
    float x[2 * ODD + 1], y[2 * ODD + 1];
    const int n = 2 * ODD + 1;
    unsigned saved = dt__fp_enter();
    for (int i = 0; i < n / 2; i++) x[2 * i] = odd_numbers[i], x[2 * i + 1] = -x[2 * i];
    x[n - 1] = NAN;
    for (int isa = 0; isa < DT__ISA_COUNT; isa++) {
        const dt__kernels *k = dt__isa_table(isa);
        if (!k || !dt__isa_runs(isa)) continue;
        compare_begin();
        for (size_t f = 0; f < sizeof table / sizeof *table; f++) {
            k->unary(table[f].op, y, x, n, 1.0f);
            for (int i = 0; i < n; i++) like_libm(y[i], table[f].real((double)x[i]), dt__op_of(table[f].op)->name, (double)x[i], 0.0);
        }
        compare_end("special values as libm has them; %s", k->name);
    }
    dt__fp_leave(saved);
}

/* What stands for every row: op, argument, value. */
static void test_special_values(void)
{
    static const struct { int op; float x, y; } table[] = {
        { DT__OP_EXP, 0.0f, 1.0f }, { DT__OP_EXP, -0.0f, 1.0f }, { DT__OP_EXP, INFINITY, INFINITY }, { DT__OP_EXP, -INFINITY, 0.0f },
        { DT__OP_EXP, 1e-45f, 1.0f }, { DT__OP_EXP, 88.73f, INFINITY }, { DT__OP_EXP, 88.72f, 0x1.fe8c9p+127f },
        { DT__OP_EXP, -103.5f, 1.4012984e-45f }, { DT__OP_EXP, -104.0f, 0.0f }, { DT__OP_EXP, 3e38f, INFINITY }, { DT__OP_EXP, NAN, NAN },
        { DT__OP_LOG, 1.0f, 0.0f }, { DT__OP_LOG, 0.0f, -INFINITY }, { DT__OP_LOG, -0.0f, -INFINITY }, { DT__OP_LOG, -1.0f, NAN },
        { DT__OP_LOG, -1e-45f, NAN }, { DT__OP_LOG, -INFINITY, NAN }, { DT__OP_LOG, INFINITY, INFINITY }, { DT__OP_LOG, NAN, NAN },
        { DT__OP_LOG, 1.4012984643e-45f, -103.27893f }, { DT__OP_LOG, 3.402823466e38f, 88.722839f },
        { DT__OP_TANH, 0.0f, 0.0f }, { DT__OP_TANH, -0.0f, -0.0f }, { DT__OP_TANH, INFINITY, 1.0f }, { DT__OP_TANH, -INFINITY, -1.0f },
        { DT__OP_TANH, 1e-45f, 1e-45f }, { DT__OP_TANH, -1e-39f, -1e-39f }, { DT__OP_TANH, 20.0f, 1.0f }, { DT__OP_TANH, NAN, NAN },
        { DT__OP_SQRT, 0.0f, 0.0f }, { DT__OP_SQRT, -0.0f, -0.0f }, { DT__OP_SQRT, INFINITY, INFINITY }, { DT__OP_SQRT, -1.0f, NAN },
        { DT__OP_SQRT, 1.4012984643e-45f, 0x1.6a09e6p-75f }, { DT__OP_SQRT, NAN, NAN },
        { DT__OP_RSQRT, 0.0f, INFINITY }, { DT__OP_RSQRT, -0.0f, -INFINITY }, { DT__OP_RSQRT, INFINITY, 0.0f }, { DT__OP_RSQRT, 4.0f, 0.5f },
        { DT__OP_RSQRT, -1.0f, NAN }, { DT__OP_RSQRT, NAN, NAN },
        { DT__OP_GELU, 0.0f, 0.0f }, { DT__OP_GELU, -0.0f, -0.0f }, { DT__OP_GELU, INFINITY, INFINITY }, { DT__OP_GELU, -30.0f, -0.0f },
        { DT__OP_SILU, INFINITY, INFINITY }, { DT__OP_SILU, -INFINITY, -0.0f }, { DT__OP_SILU, -1e38f, -0.0f }, { DT__OP_SILU, -0.0f, -0.0f },
        { DT__OP_SILU, 0.0f, 0.0f }, { DT__OP_SILU, NAN, NAN },
        { DT__OP_GELU, -1e30f, -0.0f }, { DT__OP_GELU, 1e30f, 1e30f }, { DT__OP_GELU, NAN, NAN },
        { DT__OP_NEG, 0.0f, -0.0f }, { DT__OP_NEG, -INFINITY, INFINITY },
    };
    unsigned saved = dt__fp_enter();
    for (int isa = 0; isa < DT__ISA_COUNT; isa++) {
        const dt__kernels *k = dt__isa_table(isa);
        if (!k || !dt__isa_runs(isa)) continue;
        compare_begin();
        for (size_t i = 0; i < sizeof table / sizeof *table; i++)
            for (int64_t n = 1; n <= 33; n += 32) { /* in the tail, and in whole vectors */
                float x[33], y[33], want[33];
                for (int64_t j = 0; j < n; j++) x[j] = table[i].x, want[j] = table[i].y;
                k->unary(table[i].op, y, x, n, 1.0f);
                compare(y, want, n, dt__op_of(table[i].op)->name, (int64_t)i);
            }
        compare_end("zeros, infinities, NaN and subnormals; %s", k->name);
    }
    dt__fp_leave(saved);
}

/* ---- host numbers: Philox, SHA-256, normals, log, cos --------------------------------------------------- */

static void test_philox(void)
{
    /* known answers of the authors' Random123 library */
    static const struct { uint32_t counter[4], key[2], out[4]; } table[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u } },
        { { ~0u, ~0u, ~0u, ~0u }, { ~0u, ~0u }, { 0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu } },
        { { 0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u }, { 0xa4093822u, 0x299f31d0u }, { 0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u } },
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        dt__philox(table[i].counter, table[i].key, out);
        tap_ok(!memcmp(out, table[i].out, sizeof out), "R16 Philox4x32-10, known answer %d", i + 1);
    }
    {
        dt__rng r = dt__rng_make(0x0102030405060708u, DT__RNG_DROPOUT, 7, 8, 9);
        compare_begin();
        for (uint64_t e = 0; e < 1000; e++) expect(dt__rng_word(&r, e) == ref_word(0x0102030405060708u, 2, 7, 8, 9, e), "word", (int64_t)e);
        compare_end("R16 word e of a stream is word e mod 4 of block e / 4");
    }
}

static void hash_of(const char *data, int64_t bytes, int64_t piece, char hex[65])
{
    dt__sha256 h;
    dt__sha256_begin(&h);
    for (int64_t at = 0; at < bytes; at += piece) dt__sha256_add(&h, data + at, dt__min(piece, bytes - at));
    dt__sha256_end(&h, hex);
}

/* The same hashed by the processor's instructions, or not, in pieces of random length up to `most`; 0: in one. */
static void hash_by(int fast, const char *data, int64_t bytes, int64_t most, char hex[65])
{
    dt__sha256 h;
    dt__sha256_begin(&h);
    h.fast = fast;
    for (int64_t at = 0, n; at < bytes; at += n) {
        n = most ? dt__min(bytes - at, 1 + below(most)) : bytes;
        dt__sha256_add(&h, data + at, n);
    }
    dt__sha256_end(&h, hex);
}

static void test_sha256_ways(char *data)
{
    char want[65], hex[65];
    int same = 1;
    if (!dt__sha256_has()) {
        tap_skip(1, "this processor does not have SHA-256 instructions");
        return;
    }
    for (int i = 0; i < 100000; i++) data[i] = (char)below(256);
    for (int n = 0; n <= 1100 && same; n++) {
        hash_by(-1, data + n, n, 0, want);
        hash_by(1, data + n, n, 0, hex);
        same = !strcmp(hex, want);
    }
    for (int i = 0; i < 300 && same; i++) {
        int64_t n = below(100000);
        hash_by(-1, data, n, 0, want);
        hash_by(1, data, n, i % 2 ? 3000 : 70000, hex);
        same = !strcmp(hex, want);
    }
    tap_ok(same, "R17 the processor's SHA-256 instructions give what the plain text gives: any length, in pieces of any length");
}

static void test_sha256(void)
{
    char hex[65], *million = (char *)malloc(1000000);
    if (!million) tap_bail("no memory");
    hash_of("", 0, 1, hex);
    tap_ok(!strcmp(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"), "R17 SHA-256 of nothing");
    hash_of("abc", 3, 3, hex);
    tap_ok(!strcmp(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"), "R17 SHA-256 of abc");
    hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, 7, hex);
    tap_ok(!strcmp(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"), "R17 SHA-256 of two blocks");
    memset(million, 'a', 1000000);
    for (int64_t piece = 1; piece <= 1000000; piece = piece * 100 + 1) {
        hash_of(million, 1000000, piece, hex);
        tap_ok(!strcmp(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"), "R17 SHA-256 of a million a, %lld at a time", (long long)piece);
    }
    test_sha256_ways(million);
    free(million);
}

static int by_value(const void *a, const void *b)
{
    float x, y;
    memcpy(&x, a, 4), memcpy(&y, b, 4);
    return x < y ? -1 : x > y;
}

static void test_normals(void)
{
    enum { N = 1000000 };
    float *x = floats(N), *y = floats(N);
    double m[5] = { 0, 0, 0, 0, 0 }, distance = 0.0;
    dt__rng r = dt__rng_make(1, DT__RNG_INIT, 2, 3, 4);
    dt__normals(&r, 0, N, 1.0f, x);
    for (int64_t i = 0; i < N; i++)
        for (int p = 1; p <= 4; p++) m[p] += pow((double)x[i], p) / N;
    tap_ok(fabs(m[1]) < 0.004 && fabs(m[2] - 1.0) < 0.006 && fabs(m[3]) < 0.01 && fabs(m[4] - 3.0) < 0.04,
           "R16 normals: moments 0, 1, 0, 3 (%.4f %.4f %.4f %.4f)", m[1], m[2], m[3], m[4]);
    compare_begin();
    for (uint64_t begin = 0, end; begin < 5000; begin = end) {
        end = begin + 1 + (uint64_t)below(200);
        dt__normals(&r, begin, end, 1.0f, y + begin);
        compare(y + begin, x + begin, (int64_t)(end - begin), "a part", (int64_t)begin);
    }
    compare_end("R16 normals: any part of a stream has the bits of the whole");
    qsort(x, N, 4, by_value);
    for (int64_t i = 0; i < N; i++) distance = fmax(distance, fabs(0.5 * erfc(-(double)x[i] * 0.70710678118654752) - ((double)i + 0.5) / N));
    tap_ok(distance < 2e-3, "R16 normals: distribution (Kolmogorov-Smirnov %.1e)", distance); /* 1 in 10^3 exceeds 1.95e-3 */
    tap_ok(x[0] > -6.7f && x[N - 1] < 6.7f && x[0] < -4.2f && x[N - 1] > 4.2f, "R16 normals: tails (%.2f, %.2f)", (double)x[0], (double)x[N - 1]);
    free(x), free(y);
}

static void test_host_scalars(void)
{
    double worst_cos = 0.0, worst_log = 0.0;
    for (int i = 0; i <= 1000000; i++) {
        double x = (double)i / 1000000.0, y = ldexp(1.0 + x, (int)below(120) - 60);
        worst_cos = fmax(worst_cos, fabs(dt__cospi(x) - cos(3.14159265358979323846 * x)));
        worst_log = fmax(worst_log, fabs(dt__log_double(y) - log(y)) / fmax(1.0, fabs(log(y))));
    }
    tap_ok(worst_cos < 1e-14 && worst_log < 1e-14, "R13 own cos(pi x) and log in double: errors %.1e and %.1e, below 1e-14", worst_cos, worst_log);
}

/* Learning rates against the formulas of the declaration. */
static void test_schedules(void)
{
    dt_recipe r = dt_recipe_default();
    r.learning_rate = 0.01f, r.final_rate = 0.1f, r.steps = 100, r.warmup = 10, r.decay = 20;
    compare_begin();
    for (int schedule = DT_CONSTANT; schedule <= DT_WSD; schedule++) {
        r.schedule = schedule;
        for (int64_t step = 0; step < 130; step++) {
            double x = step < 10 ? 0 : fmin(1.0, (double)(step - 10) / 90.0), peak = (double)r.learning_rate, end = (double)r.final_rate, want;
            if (schedule == DT_WSD) x = step < 80 ? 0 : fmin(1.0, (double)(step - 80) / 20.0);
            want = schedule == DT_CONSTANT ? peak : schedule == DT_COSINE ? peak * (end + (1 - end) * 0.5 * (1 + cos(3.14159265358979 * x))) : peak * (1 - (1 - end) * x);
            if (step < 10) want = peak * (double)(step + 1) / 10.0;
            expect(fabs((double)dt__learning_rate(&r, step) / want - 1.0) < 1e-6, "learning rate", schedule * 1000 + step);
        }
    }
    compare_end("R13 schedules: constant, cosine, linear and warm-up-stable-decay with warm-up");
}

/* ---- R1, R2: who owns which shard ------------------------------------------------------------------------ */

/* The maximal aligned subtrees inside [lo, hi), left to right, by walking down the tree over `width` leaves. */
static int ref_parts(int64_t lo, int64_t hi, int64_t begin, int level, dt__partial *out)
{
    int64_t width = (int64_t)1 << level;
    int n = 0;
    if (begin >= hi || begin + width <= lo) return 0;
    if (begin >= lo && begin + width <= hi) {
        out->level = level;
        out->index = begin >> level;
        return 1;
    }
    n = ref_parts(lo, hi, begin, level - 1, out);
    return n + ref_parts(lo, hi, begin + width / 2, level - 1, out + n);
}

static void test_runs(void)
{
    compare_begin();
    for (int64_t v = 1; v <= 64; v *= 2)
        for (int ranks = 1; ranks <= v; ranks++) {
            int64_t expected = 0, lo, hi;
            for (int rank = 0; rank < ranks; rank++) {
                dt__run_of(v, ranks, rank, &lo, &hi);
                expect(lo == expected && hi > lo, "runs are contiguous and not empty", v * 100 + ranks);
                expect(hi - lo == v / ranks + (rank < v % ranks), "runs are even, longer ones first", v * 100 + ranks);
                expected = hi;
            }
            expect(expected == v, "runs cover all shards", v * 100 + ranks);
        }
    compare_end("R1 run of a rank: contiguous, as even as possible, any dp up to Vd (64)");
    compare_begin();
    for (int level = 0; level <= 6; level++)
        for (int64_t lo = 0; lo < 1 << level; lo++)
            for (int64_t hi = lo + 1; hi <= 1 << level; hi++) {
                dt__partial want[64];
                dt__stack s;
                uint64_t sets = 0;
                int n = ref_parts(lo, hi, 0, level, want), same;
                dt__run_parts(lo, hi, &s);
                same = s.count == n;
                for (int i = 0; same && i < n; i++) {
                    same = s.node[i].level == want[i].level && s.node[i].index == want[i].index && !(sets >> s.node[i].set & 1u);
                    sets |= (uint64_t)1 << s.node[i].set;
                }
                expect(same, "parts are the maximal aligned subtrees, each in a set of its own", lo * 100 + hi);
                expect(n <= (level > 1 ? 2 * level : level + 1), "at most 2 log2 Vd parts", lo * 100 + hi);
                if (((hi - lo) & (hi - lo - 1)) == 0 && lo % (hi - lo) == 0) {
                    int depth = 0;
                    while ((int64_t)1 << depth < hi - lo) depth++;
                    expect(s.count == 1 && s.sets == 1 + depth, "an aligned power of two is one part and 1 + log2 sets", lo * 100 + hi);
                }
            }
    compare_end("R1 parts of a run: maximal aligned subtrees, for every run inside 64 shards");
}

/* ---- step programs, run on symbols -------------------------------------------------------------------------
 * A gradient set holds, per segment and bucket, a hash of the expression that it stands for. The stages of a pipeline run
 * together, over queues as long as the executor's. */

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u + b;
    x ^= x >> 29;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 32;
}
/* A chain over the micro-batches [first, last] of a shard; the tree over shards. */
static uint64_t sym_chain(int64_t shard, int64_t first, int64_t last)
{
    uint64_t h = 1;
    for (int64_t m = first; m <= last; m++) h = mix(mix(h, (uint64_t)shard + 1), (uint64_t)m + 1);
    return h;
}
static uint64_t sym_tree(int level, int64_t index, int64_t first, int64_t last)
{
    if (level == 0) return sym_chain(index, first, last);
    return mix(mix(7, sym_tree(level - 1, 2 * index, first, last)), sym_tree(level - 1, 2 * index + 1, first, last));
}

enum { SYM_SETS = 16, SYM_CELLS = 32, SYM_MICROS = 4, SYM_SHARDS = 64, SYM_STAGES = 3, SYM_CHUNKS = 2, SYM_BLOCKS = 256, SYM_BUCKETS = 32,
       SYM_UNITS = SYM_MICROS * SYM_SHARDS };
typedef struct symbols {
    dt__engine e; /* mesh, layout and program of a rank; no memory */
    int each;
    int32_t at;   /* instructions done, or asked for */
    int late;     /* the other thread does what it is asked for when it is needed, else at once */
    int32_t left; /* it has done all before this instruction */
    struct { int32_t segment, bucket; } cell[SYM_CELLS];
    int cells;
    uint64_t value[SYM_SETS][SYM_CELLS];      /* 0: free */
    int done[3][SYM_CHUNKS][SYM_UNITS];       /* segments of a unit after forward, backward, gradients of weights */
    int64_t last_micro[SYM_CHUNKS][SYM_SHARDS];
    int holder[SYM_CHUNKS][SYM_UNITS];        /* 1 + unit in a slot; 0: free */
    int reduced[SYM_BUCKETS], totals[SYM_BUCKETS], gathered[SYM_BUCKETS];
    int64_t shard, micro;                     /* loaded */
    int arrived[2][SYM_CHUNKS];               /* 1 + unit of the last message */
    int32_t window[2];                        /* segments whose weights were gathered */
    int32_t values, values_unit;              /* segment and unit whose values backward finds when they are recomputed */
    uint64_t box[2][DT__OUTBOX];              /* messages to the next and the previous stage */
    int64_t sent[2], taken[2];
    int updated;
    uint64_t trace;                           /* the collective instructions, in order */
} symbols;

static int sym_unit(const dt_instr *i) { return i->shard * SYM_MICROS + i->micro; }

/* Is the sum of micro-batch [first, last] over all shards of the rank in its first set? */
static int sym_whole(const symbols *s, int cell, int64_t first, int64_t last)
{
    const dt__partial *part = &s->e.p.program.parts.node[0];
    if (s->e.p.shape.reduce) return s->value[part->set][cell] == mix(5, (uint64_t)last);
    return s->e.p.program.parts.count == 1 && s->value[part->set][cell] == sym_tree(part->level, part->index, first, last);
}

/* The memory that a unit has from its input to its last work. */
static void sym_hold(symbols *s, const dt_instr *i)
{
    int *holder = &s->holder[i->chunk][i->slot], unit = sym_unit(i);
    expect(i->slot >= 0 && i->slot < s->e.p.chunks[i->chunk].slots, "a unit has a slot of its chunk", i->slot);
    if (!*holder && !s->done[0][i->chunk][unit]) *holder = unit + 1;
    expect(*holder == unit + 1, "a slot holds the unit that is worked on", i->slot);
}

static void sym_forward(symbols *s, const dt_instr *i)
{
    const dt__chunk *c = &s->e.p.chunks[i->chunk];
    int unit = sym_unit(i), *f = &s->done[0][i->chunk][unit], b = s->done[1][i->chunk][unit];
    expect(i->op == DT_RECOMPUTE || !c->begin || s->arrived[0][i->chunk] == unit + 1, "forward of a later stage: after its input came", i->segment);
    if (i->op == DT_FORWARD) expect(c->begin + *f == i->segment && b == 0, "forward: segments in order, once", i->segment);
    else expect(*f == c->end - c->begin && c->end - 1 - b == i->segment, "values are computed again right before their backward", i->segment);
    *f += i->op == DT_FORWARD;
    s->values = i->segment, s->values_unit = unit;
}

/* The gradient of the weights of a segment goes to the set. */
static void sym_gradient(symbols *s, const dt_instr *i)
{
    expect(i->set >= 0 && i->set < s->e.p.program.parts.sets, "gradients go to a set that there is", i->set);
    if (i->fresh) expect(i->micro == (s->each ? i->micro : 0), "a chain is fresh in the first micro-batch", i->micro);
    for (int c = 0; c < s->cells; c++) {
        uint64_t *value = &s->value[i->set][c];
        if (s->cell[c].segment != i->segment) continue;
        for (int o = 0; o < s->cells && s->e.p.shape.buffered && i->fresh; o++) {
            const dt__bucket *a = &s->e.p.store.bucket[s->cell[o].bucket], *b = &s->e.p.store.bucket[s->cell[c].bucket];
            if (a->group != b->group && a->buffer < b->buffer + b->floats && b->buffer < a->buffer + a->floats)
                expect(!s->value[i->set][o], "a buffer holds the buckets of the same segments alone", i->segment);
        }
        if (i->fresh) expect(!*value, "a fresh chain starts in a free set", i->set), *value = 1;
        *value = mix(mix(*value, (uint64_t)i->shard + 1), (uint64_t)i->micro + 1);
    }
    if (i->segment != s->e.p.chunks[i->chunk].end - 1) return;
    expect(s->each || i->micro == s->last_micro[i->chunk][i->shard] + 1, "R3: micro-batches in order", i->micro);
    s->last_micro[i->chunk][i->shard] = i->micro;
}

static void sym_backward(symbols *s, const dt_instr *i)
{
    const dt__chunk *c = &s->e.p.chunks[i->chunk];
    int unit = sym_unit(i), segments = c->end - c->begin, weights = i->op == DT_WEIGHTS;
    int split = s->e.p.shape.pipe.kind == DT_ZERO_BUBBLE, *b = &s->done[1 + weights][i->chunk][unit];
    expect(s->done[weights][i->chunk][unit] == segments && i->segment == c->end - 1 - *b,
           "backward: segments in reverse order, once, after forward", i->segment);
    expect(weights || c->end == s->e.p.net.count || s->arrived[1][i->chunk] == unit + 1, "backward of an earlier stage: after its gradient came", i->segment);
    expect(s->e.p.shape.recompute != DT_RECOMPUTE_FULL || (s->values == i->segment && s->values_unit == unit),
           "backward finds the values of its segment", i->segment);
    expect(!!i->completes == (weights == split && (s->each || i->micro == s->e.p.micros - 1)), "the last micro-batch completes a leaf", i->segment);
    ++*b;
    if (weights == split) sym_gradient(s, i);
    if (weights == split && *b == segments) s->holder[i->chunk][i->slot] = 0;
}

static void sym_work(symbols *s, const dt_instr *i)
{
    expect(i->shard == s->shard && i->micro == s->micro && i->shard >= s->e.p.lo && i->shard < s->e.p.hi, "works on the unit that was loaded", i->shard);
    expect(s->e.p.shape.zero < 3 || s->window[i->window] == i->segment, "weights are gathered before their work", i->segment);
    sym_hold(s, i);
    if (i->op == DT_FORWARD || i->op == DT_RECOMPUTE) sym_forward(s, i);
    else sym_backward(s, i);
}

/* All of this rank's parts of the bucket must be complete trees; all but the first are free afterwards. */
static void sym_reduce(symbols *s, const dt_instr *i)
{
    const dt__stack *parts = &s->e.p.program.parts;
    int64_t first = s->each ? i->micro : 0, last = s->each ? i->micro : s->e.p.micros - 1;
    expect(s->e.p.shape.reduce, "only where there is another rank to sum with", i->bucket);
    expect(s->reduced[i->bucket]++ == (s->each ? i->micro : 0), "a bucket is reduced once, in micro-batch order", i->bucket);
    expect(i->set == parts->node[0].set, "the result is in the set of the first part", i->set);
    for (int c = 0; c < s->cells; c++)
        for (int n = 0; n < parts->count && s->cell[c].bucket == i->bucket; n++) {
            const dt__partial *part = &parts->node[n];
            expect(s->value[part->set][c] == sym_tree(part->level, part->index, first, last), "TREE over the shards of a part", c);
            s->value[part->set][c] = n ? 0 : mix(5, (uint64_t)last);
        }
}

static void sym_fold(symbols *s, const dt_instr *i)
{
    int set = s->e.p.program.parts.node[0].set, *totals = &s->totals[i->bucket];
    for (int c = 0; c < s->cells; c++) {
        uint64_t *from = &s->value[i->from][c];
        if (s->cell[c].bucket != i->bucket) continue;
        if (i->op == DT_FOLD) {
            uint64_t *to = &s->value[i->set][c];
            expect(*to && *from && i->set != i->from, "a fold adds two live sums", i->set);
            *to = mix(mix(7, *to), *from);
        } else expect(sym_whole(s, c, s->each ? *totals : 0, s->each ? *totals : s->e.p.micros - 1), "totals are added from the whole sum", i->bucket);
        *from = 0;
    }
    if (i->op == DT_FOLD) return;
    expect(s->e.p.shape.total && i->from == set, "totals are added from the set of the first part", i->bucket);
    expect(!s->e.p.shape.reduce || s->reduced[i->bucket] == *totals + 1, "each reduction is added once", i->bucket);
    expect((i->fresh != 0) == (*totals == 0), "the first one begins the totals", i->bucket);
    ++*totals;
}

/* Before the update the sum over the batch is there, and nothing else is. */
static void sym_tie(symbols *s)
{
    int sums = s->each ? (int)s->e.p.micros : 1;
    for (int b = 0; b < s->e.p.store.buckets; b++) {
        expect(s->reduced[b] == (s->e.p.shape.reduce ? sums : 0), "every bucket is reduced", b);
        expect(s->totals[b] == (s->e.p.shape.total ? sums : 0), "every reduction is added to the totals", b);
    }
    for (int c = 0; c < s->cells && !s->e.p.shape.total; c++) {
        expect(sym_whole(s, c, 0, s->e.p.micros - 1), "the whole sum is in the set of the first part", c);
        s->value[s->e.p.program.parts.node[0].set][c] = 0;
    }
    for (int set = 0; set < SYM_SETS; set++)
        for (int c = 0; c < s->cells; c++) expect(!s->value[set][c], "no sum is forgotten", set);
}

static void sym_gather(symbols *s, const dt_instr *i)
{
    expect(i->bucket < 0 ? s->e.p.shape.zero == 3 && !s->updated : s->e.p.shape.zero % 3 && s->updated,
           "segments are gathered before their work, buckets after the update", i->bucket);
    if (i->bucket < 0) s->window[i->window] = i->segment;
    else s->gathered[i->bucket]++;
}

/* A message names the unit and the place between two segments. Returns whether it must wait. */
static int sym_message(symbols *s, symbols *stages, const dt_instr *i)
{
    const dt__chunk *c = &s->e.p.chunks[i->chunk];
    int pp = s->e.p.shape.pipe.stages, sends = i->op == DT_SEND, ahead = sends == !i->back, unit = sym_unit(i);
    uint64_t message = mix((uint64_t)unit, (uint64_t)(ahead ? c->end : c->begin));
    symbols *from = sends ? s : &stages[(s->e.p.shape.stage + (ahead ? 1 : pp - 1)) % pp];
    if (sends ? from->sent[i->back] == from->taken[i->back] + DT__OUTBOX : from->sent[i->back] == from->taken[i->back]) return 1;
    expect(i->segment == (ahead ? c->end - 1 : c->begin) && (ahead ? c->end < s->e.p.net.count : c->begin > 0), "messages go over the ends of a chunk", i->segment);
    expect(i->shard == s->shard && i->micro == s->micro, "a message is of the unit that was loaded", i->shard);
    if (!sends || !i->back) sym_hold(s, i); /* a gradient leaves from shared memory */
    if (sends) {
        expect(s->done[i->back][i->chunk][unit] == c->end - c->begin, "what is sent was computed", i->segment);
        from->box[i->back][from->sent[i->back]++ % DT__OUTBOX] = message;
        return 0;
    }
    expect(from->box[i->back][from->taken[i->back]++ % DT__OUTBOX] == message, "a stage receives what its neighbour sends", i->segment);
    s->arrived[i->back][i->chunk] = unit + 1;
    return 0;
}

/* Runs an instruction of either line. */
static void sym_run(symbols *s, const dt_instr *i)
{
    if (i->op == DT_REDUCE || i->op == DT_GATHER) s->trace = mix(mix(s->trace, (uint64_t)i->op), mix((uint64_t)i->bucket, (uint64_t)i->segment));
    switch (i->op) {
    case DT_SEND:
    case DT_RECV: break;
    case DT_LOAD: s->shard = i->shard, s->micro = i->micro; break;
    case DT_FOLD:
    case DT_TOTAL: sym_fold(s, i); break;
    case DT_REDUCE: sym_reduce(s, i); break;
    case DT_GATHER: sym_gather(s, i); break;
    case DT_TIE: sym_tie(s); break;
    case DT_UPDATE:
        expect(!s->updated++ && i[-1].op == DT_TIE, "one UPDATE, after the uses of tied weights are added", s->at);
        break;
    default:
        expect(!s->updated, "no work after the update", s->at);
        sym_work(s, i);
        break;
    }
}

/* The other thread does what it was asked for, up to this instruction. */
static void sym_follow(symbols *s, int32_t last)
{
    for (; s->left <= last; s->left++)
        if (s->e.p.program.list[s->left].stream) sym_run(s, &s->e.p.program.list[s->left]);
}

/* Takes a thread's next step: runs an instruction, or asks for it; 0: it must wait for another stage. */
static int sym_step(symbols *s, symbols *stages)
{
    const dt_instr *list = s->e.p.program.list, *i = &list[s->at];
    int32_t other = i->after[1];
    expect(i->after[0] < s->at && (i->after[0] < 0 || list[i->after[0]].stream == i->stream), "an instruction waits for the one before it on its stream", s->at);
    expect(other < 0 || list[other].stream != i->stream, "and for one on the other", s->at);
    expect(other < s->at || (list[other].op == DT_GATHER && list[other].bucket >= 0 && i->op == DT_FORWARD), "forward waits for weights of the step before", s->at);
    expect(s->e.p.shape.overlap || (!i->stream && other < 0), "without overlap there is one stream", s->at);
    if ((i->op == DT_SEND || i->op == DT_RECV) && sym_message(s, stages, i)) return 0;
    if (!i->stream && other < s->at) sym_follow(s, other);
    if (!i->stream) sym_run(s, i);
    else if (!s->late) sym_follow(s, s->at);
    s->at++;
    return 1;
}

/* Buckets follow one another in whole blocks, in the sets, the parameters and the buffer, and are cut over their owners. */
static void sym_buckets(const symbols *s)
{
    const dt__store *store = &s->e.p.store;
    int64_t slot = 0, param = 0;
    for (int b = 0; b < store->buckets; b++) {
        const dt__bucket *k = &store->bucket[b];
        const int64_t *cut = dt__store_cut(store, b);
        expect(k->slot == slot && k->floats > 0 && k->floats % DT__BLOCK == 0, "buckets follow one another in whole blocks", b);
        expect(k->param < 0 || k->param == param, "and so do their parameters", b);
        slot += k->floats;
        param += k->param < 0 ? 0 : k->floats;
        expect(k->buffer + k->floats <= store->buffer_floats, "a bucket lies in the buffer", b);
        for (int o = 0; o < b; o++)
            expect(store->bucket[o].group != k->group || store->bucket[o].buffer + store->bucket[o].floats <= k->buffer, "buckets of the same segments lie side by side", b);
        expect(cut[0] == 0 && cut[store->shards] == k->floats, "the owners' pieces are the bucket", b);
        for (int j = 0; j < store->shards; j++) expect(cut[j] <= cut[j + 1] && cut[j] % DT__BLOCK == 0, "pieces are whole blocks", b);
    }
    expect(slot == store->slot_floats && param == store->param_floats, "buckets cover all gradients and parameters", store->buckets);
}

/* The bucket of slot k of a segment; its floats are there once. */
static int sym_bucket_of(symbols *s, const dt__built *seg, int32_t k, uint8_t *taken)
{
    const dt__net_param *p = &s->e.p.net.params[seg->use[k].param];
    int b = seg->use[k].bucket;
    int64_t at = seg->slot[k] + s->e.p.store.bucket[b].slot - dt__bucket_at(&s->e.p, b), floats = dt__round_up(p->count, DT__BLOCK);
    expect(at >= s->e.p.store.bucket[b].slot && at + floats <= s->e.p.store.bucket[b].slot + s->e.p.store.bucket[b].floats, "a gradient lies inside a bucket", b);
    for (int64_t i = at / DT__BLOCK; i < (at + floats) / DT__BLOCK; i++) expect(!taken[i]++, "gradients have memory of their own", b);
    if (s->e.p.store.bucket[b].param >= 0)
        expect(p->offset - s->e.p.store.bucket[b].param == at - s->e.p.store.bucket[b].slot, "a piece of a bucket is a piece of its parameters", b);
    return b;
}

/* Buckets are whole segments in backward order, and none but the last of a chunk is smaller than asked for; each use of a
 * tied weight has its own. Makes the list of cells. */
static void sym_slots(symbols *s, int64_t bytes)
{
    uint8_t taken[SYM_BLOCKS];
    int last = -1;
    memset(taken, 0, sizeof taken);
    expect(s->e.p.store.slot_floats <= SYM_BLOCKS * DT__BLOCK, "the test has room for all blocks", s->e.p.store.slot_floats);
    for (int c = s->e.p.shape.pipe.chunks; c-- > 0;)
        for (int32_t q = s->e.p.chunks[c].end; q-- > s->e.p.chunks[c].begin;) {
            const dt__built *seg = &s->e.p.net.segments[q];
            int plain = -1;
            for (int32_t k = 0; k < seg->plan->g->slot_count; k++) {
                int b = sym_bucket_of(s, seg, k, taken), tied = s->e.p.net.params[seg->use[k].param].uses > 1, known = 0;
                const dt__bucket *is = &s->e.p.store.bucket[b];
                expect(is->group >= s->e.p.chunks[c].begin && is->group <= q && is->last >= is->group, "a bucket is of one chunk", b);
                if (tied) expect(is->tied == seg->use[k].param && is->use == seg->use[k].nth && is->last == q, "a use of a tied weight has a bucket", b);
                else expect(is->tied < 0 && (plain < 0 || plain == b) && b >= last && is->last <= q, "buckets are whole segments in backward order", b);
                if (!tied) expect(is->last == s->e.p.chunks[c].begin || 4 * is->floats >= bytes, "a bucket is as large as asked for", b);
                if (!tied) plain = last = b;
                for (int i = 0; i < s->cells; i++) known |= s->cell[i].segment == q && s->cell[i].bucket == b;
                if (known) continue;
                s->cell[s->cells].segment = q;
                s->cell[s->cells++].bucket = b;
            }
        }
    for (int64_t i = 0; i < s->e.p.store.slot_floats / DT__BLOCK; i++) expect(taken[i], "buckets hold gradients and nothing else", i);
}

/* With ZeRO 1 and 2 a segment's forward waits for all buckets with its parameters, and those of the first come first. */
static void sym_readers(const symbols *s)
{
    const dt__program *p = &s->e.p.program;
    for (int32_t k = 0; k < p->count && s->e.p.shape.overlap && s->e.p.shape.zero % 3; k++) {
        const dt__built *seg = &s->e.p.net.segments[p->list[k].op == DT_FORWARD ? p->list[k].segment : 0];
        int32_t needed = -1;
        if (p->list[k].op != DT_FORWARD) continue;
        for (int32_t i = 0; i < seg->plan->g->param_count; i++)
            for (int32_t g = k; g < p->count; g++)
                if (p->list[g].op == DT_GATHER && p->list[g].bucket == s->e.p.net.params[seg->param_of[i]].bucket && g > needed)
                    needed = g;
        expect(p->list[k].after[1] == needed, "forward waits for the weights that it reads, and no others", p->list[k].segment);
    }
}

/* Mesh, partition, layout and program of a rank, without communicators and memory. */
static dt_result sym_open(symbols *s, const dt__net *net, const dt_recipe *r, const dt_layout *l, int ranks, int rank)
{
    dt__engine *e = &s->e;
    dt_result result;
    memset(s, 0, sizeof *s);
    e->p.recipe = r, e->p.layout = l, e->p.ranks = ranks, e->p.rank = rank;
    for (int c = 0; c < SYM_CHUNKS; c++)
        for (int i = 0; i < SYM_SHARDS; i++) s->last_micro[c][i] = -1;
    result = dt__layout_begin(&e->p);
    if (result) return result;
    e->p.net = *net;
    if (dt__layout_end(&e->p)) tap_bail("%s", dt_last_error());
    s->each = e->p.shape.accumulation == DT_EACH;
    s->window[0] = s->window[1] = -1;
    expect(e->p.program.parts.sets <= SYM_SETS && e->p.store.buckets <= SYM_BUCKETS, "the test has room", e->p.program.parts.sets);
    sym_buckets(s);
    sym_readers(s);
    sym_slots(s, e->p.shape.zero > 2 ? 1 : l->bucket);
    return DT_OK;
}

/* After the program: all was done. */
static void sym_close(symbols *s)
{
    dt__engine *e = &s->e;
    sym_follow(s, e->p.program.count - 1);
    expect(s->updated && s->at == e->p.program.count, "ends with UPDATE", s->at);
    for (int64_t shard = e->p.lo; shard < e->p.hi; shard++)
        for (int64_t m = 0; m < e->p.micros; m++)
            for (int c = 0; c < e->p.shape.pipe.chunks; c++)
                for (int kind = 0; kind < 2 + (e->p.shape.pipe.kind == DT_ZERO_BUBBLE); kind++)
                    expect(s->done[kind][c][shard * SYM_MICROS + m] == e->p.chunks[c].end - e->p.chunks[c].begin, "every unit ran forward and backward", shard);
    for (int b = 0; b < e->p.store.buckets; b++)
        expect(s->gathered[b] == (e->p.shape.zero % 3 && e->p.store.bucket[b].param >= 0), "new weights are gathered once", b);
    for (int c = 0; c < SYM_CHUNKS; c++)
        for (int i = 0; i < SYM_UNITS; i++) expect(!s->holder[c][i], "units leave their slots", i);
    for (int way = 0; way < 2; way++) expect(s->sent[way] == s->taken[way], "every message was received", way);
    memset(&e->p.net, 0, sizeof e->p.net); /* all plans share it */
    dt__layout_close(&e->p);
}

/* The programs of all ranks: pipeline by pipeline, its stages together. */
static int check_programs(const dt__net *net, const dt_recipe *r, const dt_layout *l, int ranks, int late)
{
    static symbols stages[SYM_STAGES];
    int pp = (int)l->pp, dp = ranks / pp;
    uint64_t trace[SYM_STAGES] = { 0 };
    for (int data = 0; data < dp; data++) {
        for (int p = 0; p < pp; p++) {
            if (sym_open(&stages[p], net, r, l, ranks, data * pp + p)) return 0;
            stages[p].late = late;
        }
        for (int moved = 1; moved;) {
            moved = 0;
            for (int p = 0; p < pp; p++)
                while (stages[p].at < stages[p].e.p.program.count && sym_step(&stages[p], stages)) moved = 1;
        }
        for (int p = 0; p < pp; p++) {
            sym_close(&stages[p]);
            expect(!data || trace[p] == stages[p].trace, "ranks that sum gradients do it in the same order", data);
            trace[p] = stages[p].trace;
        }
    }
    return 1;
}

/* A model of one's own with a segment that has no parameters, and sizes that differ. */
static dt_tensor own_embed(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_embed(g, dt_param(g, "table", dt_shape2(11, 8), DT_INIT_NORMAL, 0.5f), x);
}
static dt_tensor own_plain(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_tanh(g, x);
}
static dt_tensor own_wide(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_add(g, x, dt_linear(g, dt_gelu(g, dt_linear(g, x, "up", 300)), "down", 8));
}
static dt_tensor own_head(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_cross_entropy(g, dt_linear(g, x, "out", 11), dt_targets(g), 0.0f);
}
static const dt_segment own_list[] = { { "in", own_embed, NULL }, { "plain0", own_plain, NULL }, { "wide0", own_wide, NULL },
                                       { "plain1", own_plain, NULL }, { "wide1", own_wide, NULL }, { "head", own_head, NULL } };

static dt_model small_gpt2(int64_t layers, float dropout)
{
    dt_model m = dt_model_gpt2("nano");
    m.layers = layers, m.heads = 2, m.width = 16, m.vocabulary = 11, m.dropout = dropout;
    return m;
}

static dt_recipe program_recipe(int64_t v, int64_t micros, int accumulation)
{
    dt_recipe r = dt_recipe_default();
    r.data_shards = r.micro_batch = v, r.batch = v * micros, r.accumulation = accumulation;
    return r;
}

static void open_programs(dt__net *net, int own, int split)
{
    dt_model model = own ? dt_model_segments(own_list, 6, 11) : small_gpt2(3, 0.0f);
    memset(net, 0, sizeof *net);
    net->how = split ? DT__PLAN_SPLIT : 0;
    if (dt__net_open(net, &model, 1, 4)) tap_bail("%s", dt_last_error());
}

static void test_programs(void)
{
    for (int m = 0; m < 2; m++) {
        static const int64_t buckets[] = { 1, 20000, 70000, 1 << 30 };
        dt_layout l = dt_layout_default();
        dt__net net;
        int64_t programs = 0;
        open_programs(&net, m, 0);
        for (int each = 0; each < 2; each++) {
            compare_begin();
            for (int64_t v = 1; v <= 64; v *= 2)
                for (int ranks = 1; ranks <= v; ranks += v > 16 ? 5 : 1)
                    for (int64_t micros = 1; micros <= (v > 16 ? 2 : 4); micros++)
                        for (int b = 0; b < 4; b++, programs++) {
                            dt_recipe r = program_recipe(v, micros, each ? DT_EACH : DT_SHARD);
                            l.bucket = buckets[b], l.overlap = programs % 3 ? DT_OVERLAP_ON : DT_OVERLAP_OFF;
                            expect(check_programs(&net, &r, &l, ranks, programs % 3 == 2), "the layout is good", v * 100 + ranks);
                        }
            compare_end("R1 R2 R%d step programs of %s: every unit once, chains in micro-batch order, TREE over shards, each bucket reduced once",
                        each ? 4 : 3, m ? "an own model" : "GPT-2");
        }
        tap_note("%lld layouts", (long long)programs);
        dt__net_close(&net);
    }
}

/* Pipelines by ZeRO by recompute. An interleaved schedule needs groups of units; nothing else is refused. */
static void test_modes(void)
{
    static const char *const names[] = { "1F1B", "GPipe", "interleaved", "zero-bubble" };
    for (int kind = 0; kind < 4; kind++) {
        int64_t programs = 0;
        compare_begin();
        for (int i = 0; i < 2 * 2 * 2 * 4 * 3; i++) { /* model, stages, accumulation, ZeRO, recompute */
            dt_layout l = dt_layout_default();
            dt__net net;
            l.pipeline = kind, l.pp = 2 + (i >> 1 & 1), l.zero = i >> 3 & 3, l.recompute = i >> 5 ? DT_RECOMPUTE_FULL : DT_RECOMPUTE_NONE, l.bucket = 20000;
            if (kind == DT_ZERO_BUBBLE && l.recompute == DT_RECOMPUTE_FULL) continue;
            if (kind == DT_INTERLEAVED && l.pp * l.chunks > 5 + (i & 1)) continue;
            open_programs(&net, i & 1, kind == DT_ZERO_BUBBLE);
            for (int64_t v = 1; v <= 8; v *= 2)
                for (int dp = 1; dp <= v; dp++)
                    for (int64_t micros = 1; micros <= 4; micros++) {
                        dt_recipe r = program_recipe(v, micros, i & 4 ? DT_EACH : DT_SHARD);
                        int groups = dt__ceil_div(v, dp) * micros % l.pp == 0, good;
                        l.zero_group = l.zero && dp == 4 && micros == 2 ? 2 : 0;
                        l.overlap = (i + dp + micros) % 3 ? DT_OVERLAP_ON : DT_OVERLAP_OFF;
                        good = check_programs(&net, &r, &l, dp * (int)l.pp, (i + dp + micros) % 3 == 2);
                        expect(good == (kind != DT_INTERLEAVED || groups), "the layout is good when it should be", v * 100 + dp);
                        programs += good;
                    }
            dt__net_close(&net);
        }
        compare_end("R1 R2 R3 R4 step programs of %s pipelines, with ZeRO and recompute", names[kind]);
        tap_note("%lld layouts", (long long)programs);
    }
}

/* ---- memory plans, run on names -------------------------------------------------------------------------------
 * Every float of the planned memory remembers which value was written to it last; an op may only read what is still there. */

typedef struct shadow {
    const dt__segment_plan *p;
    int32_t *memory[DT__PLACES];
    int64_t size[DT__PLACES];
} shadow;

static int64_t shadow_size(const dt__segment_plan *p, int32_t id) { return dt__count(&p->g->nodes[id]); }

static void shadow_read(const shadow *s, int32_t reader, int32_t id)
{
    int32_t root = dt__root(s->p->g, id);
    const dt__home *h = &s->p->home[root];
    if (!s->memory[h->place]) return; /* bound by the executor */
    expect(h->offset >= 0 && h->offset + shadow_size(s->p, root) <= s->size[h->place], "a value lies inside the planned memory", id);
    for (int64_t i = 0; i < shadow_size(s->p, root); i++)
        if (s->memory[h->place][h->offset + i] != root) {
            expect(0, "a value is still there when an op reads it", reader * 1000 + id);
            return;
        }
}

/* May the op write over this input while it reads it? Only element by element, in the very same place. */
static void shadow_alias(const shadow *s, int32_t id, const dt__home *out, int64_t n)
{
    const dt__node *node = &s->p->g->nodes[id];
    for (int i = 0; i < node->inputs; i++) {
        int32_t root = dt__root(s->p->g, node->in[i]);
        const dt__home *in = &s->p->home[root];
        int64_t size = shadow_size(s->p, root);
        if (in->place != out->place || in->offset >= out->offset + n || out->offset >= in->offset + size) continue;
        expect(in->offset == out->offset && size == n && (dt__op_of(node->op)->in_place >> i & 1u) && out == &s->p->home[id],
               "an op overwrites its input only where it may", id);
    }
}

static void shadow_write(shadow *s, int32_t op, int32_t id)
{
    const dt__home *h = &s->p->home[id];
    if (!s->memory[h->place]) return;
    expect(h->offset >= 0 && h->offset + shadow_size(s->p, id) <= s->size[h->place], "a result lies inside the planned memory", id);
    shadow_alias(s, op, h, shadow_size(s->p, id));
    for (int64_t i = 0; i < shadow_size(s->p, id); i++) s->memory[h->place][h->offset + i] = id;
}

static void check_plan(const dt__segment_plan *p)
{
    static const int places[] = { DT__AT_SAVED, DT__AT_TEMP, DT__AT_OUTPUT, DT__AT_GRAD_IN };
    shadow s;
    memset(&s, 0, sizeof s);
    s.p = p;
    s.size[DT__AT_SAVED] = p->saved, s.size[DT__AT_TEMP] = p->temp;
    s.size[DT__AT_OUTPUT] = shadow_size(p, p->output.id), s.size[DT__AT_GRAD_IN] = p->grad_in.id ? shadow_size(p, p->grad_in.id) : 0;
    for (int i = 0; i < 4; i++) s.memory[places[i]] = (int32_t *)calloc((size_t)s.size[places[i]] + 1, 4);
    for (int32_t k = 0; k < p->forward_count + p->backward_count + p->weights_count; k++) {
        int32_t id = p->order[k];
        const dt__node *n = &p->g->nodes[id];
        if (k == p->forward_count || k == p->forward_count + p->backward_count) memset(s.memory[DT__AT_TEMP], 0, 4 * (size_t)p->temp); /* other units ran in between */
        expect(p->home[id].place != DT__AT_NOWHERE, "every value has a place", id);
        for (int i = 0; i < n->inputs; i++) shadow_read(&s, id, n->in[i]);
        shadow_write(&s, id, id);
        if (n->aux) shadow_write(&s, id, n->aux);
    }
    shadow_read(&s, 0, p->output.id);
    if (p->grad_in.id) shadow_read(&s, 0, p->grad_in.id);
    for (int i = 0; i < 4; i++) free(s.memory[places[i]]);
}

static void test_plans(void)
{
    for (int m = 0; m < 3; m++) {
        dt_model model = m == 2 ? dt_model_segments(own_list, 6, 11) : small_gpt2(2, m ? 0.1f : 0.0f);
        static const char *const names[] = { "GPT-2", "GPT-2 with dropout", "an own model" };
        for (int split = 0; split < 2; split++) {
            compare_begin();
            for (int64_t rows = 1; rows <= 3; rows++) {
                dt__net net;
                memset(&net, 0, sizeof net);
                net.how = split ? DT__PLAN_SPLIT : 0;
                if (dt__net_open(&net, &model, rows, 5 + rows)) tap_bail("%s", dt_last_error());
                for (int64_t s = 0; s < net.count; s++) check_plan(net.segments[s].plan);
                dt__net_close(&net);
            }
            compare_end("memory plan of %s%s: no two live values share memory", names[m], split ? ", weights' gradients later" : "");
        }
    }
}

/* ---- the engine on real numbers: R2, R3, R4, R8, R12, R15, R16 ---------------------------------------------------
 * A rig is a trainer without data: tokens of global sample i are a function of i. */

enum { SEQUENCE = 6, BATCH = 8 };
typedef struct rig {
    dt_trainer *t;
    int64_t first, stride; /* global sample of row r of unit (shard, micro): first + micro * stride + shard * rows + r */
    int32_t tokens[BATCH * SEQUENCE], targets[BATCH * SEQUENCE];
} rig;

static int32_t sample_token(int64_t sample, int64_t i) { return (int32_t)(((uint64_t)sample * 7919 + (uint64_t)i * 104729) >> 3) % 11; }

static void rig_load(void *owner, int64_t shard, int64_t micro)
{
    rig *r = (rig *)owner;
    dt__engine *e = &r->t->e;
    for (int64_t row = 0; row < e->p.rows; row++) {
        int64_t sample = r->first + micro * r->stride + shard * e->p.rows + row;
        for (int64_t i = 0; i < SEQUENCE; i++) {
            r->tokens[row * SEQUENCE + i] = sample_token(sample, i);
            r->targets[row * SEQUENCE + i] = (sample + i) % 5 ? sample_token(sample, i + 1) : -1;
        }
        e->env.rng[row] = dt__rng_make(3, DT__RNG_DROPOUT, (uint32_t)sample, 0, 0);
    }
    e->input = dt__upload(e->k, r->tokens, 0);
    e->target = dt__upload(e->k, r->targets, 0);
}

/* One step over `batch` samples from `first` on, in `micros` micro-batches of `v` shards. */
static void rig_run(rig *r, const dt_model *model, int64_t first, int64_t batch, int64_t micros, int64_t v, int accumulation, int threads)
{
    dt_trainer *t = (dt_trainer *)dt__alloc((int64_t)sizeof *t, "a rig");
    dt_result result;
    if (!t) tap_bail("no memory");
    memset(r, 0, sizeof *r);
    r->t = t;
    t->recipe = dt_recipe_default();
    t->recipe.model = *model;
    t->recipe.batch = batch, t->recipe.micro_batch = batch / micros, t->recipe.sequence = SEQUENCE, t->recipe.data_shards = v;
    t->recipe.accumulation = accumulation;
    t->layout = dt_layout_default();
    t->layout.output.sample_length = 0, t->layout.no_memory_check = 1, t->layout.bucket = 5000;
    r->first = first, r->stride = batch / micros;
    result = dt_comm_open(&t->comm, NULL, NULL);
    t->e.p.recipe = &t->recipe, t->e.p.layout = &t->layout, t->e.comm = t->comm;
    if (!result) result = dt__engine_begin(&t->e);
    if (!result) result = dt__pool_open(&t->pool, threads);
    if (!result) result = dt__choose_kernels(&t->e.k);
    t->counts = (float *)dt__alloc((int64_t)sizeof(dt_memory), "counts");
    if (!result) result = t->counts ? dt__trainer_model(t) : DT_E_MEMORY;
    if (!result) result = dt__trainer_engine(t);
    t->e.inv_valid = 1.0f / 37.0f; /* the same for every cut of the batch */
    if (!result) result = dt__engine_step(&t->e, rig_load, r);
    if (result) tap_bail("%s", dt_last_error());
}
static void rig_close(rig *r) { dt_trainer_close(&r->t); }

/* The gradients of all uses; reduced, and with the uses of tied weights added where the update finds them. */
static const float *rig_gradients(const rig *r)
{
    const dt__engine *e = &r->t->e;
    return e->p.shape.total ? e->total : e->sets + e->p.program.parts.node[0].set * e->p.set_floats;
}
static int64_t rig_floats(const rig *r) { return r->t->e.p.store.slot_floats; }
static int rig_same(const rig *a, const rig *b)
{
    return !memcmp(rig_gradients(a), rig_gradients(b), 4 * (size_t)rig_floats(a)) &&
           !memcmp(a->t->e.params, b->t->e.params, 4 * (size_t)a->t->e.p.store.param_floats);
}

/* Adds the uses of the tied weight in order, as before the update, which finds the sum in the place of one of them. */
static void add_uses(const rig *r, float *gradients)
{
    const dt__net *net = &r->t->e.p.net;
    for (int32_t i = 0; i < net->param_count; i++) {
        const dt__net_param *p = &net->params[i];
        int64_t to = dt__own_gradient(&r->t->e, p) - rig_gradients(r);
        for (int64_t k = 0; k < p->count && p->uses > 1; k++) {
            float sum = gradients[slot_of(net, p, 0) + k];
            for (int32_t u = 1; u < p->uses; u++) sum += gradients[slot_of(net, p, u) + k];
            gradients[to + k] = sum;
        }
    }
}
/* The gradients of each use alone: by running a rig again without the instructions that add them and update. */
static float *raw_gradients(const dt_model *model, int64_t first, int64_t batch, int64_t micros, float *loss)
{
    rig r;
    float *copy;
    dt__engine *e;
    rig_run(&r, model, first, batch, micros, 1, DT_SHARD, 1);
    e = &r.t->e;
    for (int32_t i = 0; i < e->p.net.param_count; i++) /* back to the parameters before the step */
        dt__init_param(&e->p.net.params[i].is, (uint64_t)r.t->recipe.seed, NULL, e->params + e->p.net.params[i].offset);
    e->p.program.count -= 2; /* without TIE and UPDATE */
    if (dt__engine_step(e, rig_load, &r)) tap_bail("%s", dt_last_error());
    e->p.program.count += 2;
    copy = floats(rig_floats(&r));
    memcpy(copy, rig_gradients(&r), 4 * (size_t)rig_floats(&r));
    *loss = e->shard_loss[0];
    rig_close(&r);
    return copy;
}

static void tree_into(float *left, const float *right, int64_t n)
{
    for (int64_t i = 0; i < n; i++) left[i] = left[i] + right[i];
}

/* R2 R3: V shards of the batch are the tree over V separate chains. With two micro-batches of 4 samples and V = 2, shard 0
 * owns samples 0, 1, 4, 5 and shard 1 owns 2, 3, 6, 7. */
static void test_shards(const dt_model *model)
{
    float *unit[8], loss[8], want_loss, *each, first_loss;
    rig whole, r;
    int64_t n;
    rig_run(&r, model, 0, 8, 1, 1, DT_SHARD, 1);
    for (int64_t micros = 2; micros <= 8; micros *= 2) {
        rig_run(&whole, model, 0, 8, micros, 1, DT_SHARD, 1);
        tap_ok(rig_same(&whole, &r), "R3 one chain per shard: 8 samples in %d micro-batches have the bits of one batch", (int)micros);
        rig_close(&whole);
    }
    n = rig_floats(&r);
    rig_close(&r);
    for (int i = 0; i < 4; i++) unit[i] = raw_gradients(model, 2 * i, 2, 1, &loss[i]); /* samples 2i, 2i+1 */

    rig_run(&r, model, 0, 8, 1, 4, DT_SHARD, 1); /* four leaves of two samples */
    tree_into(unit[0], unit[1], n), tree_into(unit[2], unit[3], n), tree_into(unit[0], unit[2], n);
    add_uses(&r, unit[0]);
    tap_same_bits(rig_gradients(&r), unit[0], n, "R2 R8 leaves of contiguous samples, TREE per use, then the uses of the tied weight added");
    if (dt__tree_loss(r.t, r.t->e.shard_loss, 1, &first_loss)) tap_bail("%s", dt_last_error());
    want_loss = ref_tree(loss, 4);
    tap_same_bits(&first_loss, &want_loss, 1, "R12 loss: sums of the leaves, then TREE");
    rig_close(&r);
    for (int i = 0; i < 4; i++) free(unit[i]);

    for (int i = 0; i < 4; i++) unit[i] = raw_gradients(model, 2 * i, 2, 1, &loss[i]);
    rig_run(&r, model, 0, 8, 2, 2, DT_EACH, 1); /* micro 0: leaves {0,1} {2,3}; micro 1: {4,5} {6,7} */
    each = unit[0];
    tree_into(unit[0], unit[1], n), tree_into(unit[2], unit[3], n), tree_into(each, unit[2], n);
    add_uses(&r, each);
    tap_same_bits(rig_gradients(&r), each, n, "R4 accumulation each: TREE per micro-batch, totals in micro-batch order");
    rig_run(&whole, model, 0, 8, 2, 2, DT_SHARD, 1);
    tap_ok(!rig_same(&r, &whole), "R4 accumulation each is not accumulation shard");
    want_loss = 0.0f; /* chain over micro-batches of each shard, then TREE */
    want_loss = (((0.0f + loss[0]) + loss[2]) + ((0.0f + loss[1]) + loss[3]));
    if (dt__tree_loss(whole.t, whole.t->e.shard_loss, 1, &first_loss)) tap_bail("%s", dt_last_error());
    tap_same_bits(&first_loss, &want_loss, 1, "R12 loss: chain over the micro-batches of a shard, then TREE");
    rig_close(&r), rig_close(&whole);
    for (int i = 0; i < 4; i++) free(unit[i]);
}

/* R8: adding the uses before the tree gives other bits, so the test above can fail. */
static void test_tied_order(const dt_model *model)
{
    float *a, *b, *swapped, loss;
    int64_t n;
    rig r;
    a = raw_gradients(model, 0, 4, 1, &loss), b = raw_gradients(model, 4, 4, 1, &loss);
    rig_run(&r, model, 0, 8, 1, 2, DT_SHARD, 1);
    n = rig_floats(&r);
    swapped = floats(2 * n);
    memcpy(swapped, a, 4 * (size_t)n), memcpy(swapped + n, b, 4 * (size_t)n);
    add_uses(&r, swapped), add_uses(&r, swapped + n);
    tree_into(swapped, swapped + n, n);
    tap_ok(memcmp(swapped, rig_gradients(&r), 4 * (size_t)n) != 0, "R8 each use is reduced alone: adding uses first gives other bits");
    rig_close(&r);
    free(a), free(b), free(swapped);
}

static void test_engine(void)
{
    dt_model plain = small_gpt2(2, 0.0f), dropping = small_gpt2(2, 0.2f);
    rig a, b;
    test_shards(&plain);
    test_shards(&dropping); /* R16: masks depend on the sample, not on the cut */
    test_tied_order(&plain);
    rig_run(&a, &dropping, 0, 8, 2, 4, DT_SHARD, 1);
    rig_run(&b, &dropping, 0, 8, 2, 4, DT_SHARD, 3);
    tap_ok(rig_same(&a, &b), "R5 threads split outputs: 1 and 3 threads have the same bits");
    rig_close(&b);
    rig_run(&b, &plain, 0, 8, 2, 4, DT_SHARD, 1);
    tap_ok(!rig_same(&a, &b), "R16 dropout does something");
    rig_close(&a), rig_close(&b);
}

static void test_init(void)
{
    dt__param p, q;
    float *whole = floats(200000), *threads = floats(200000);
    dt_pool *pool = NULL;
    dt_graph *g = eager(dt__isa_table(0), 5);
    dt_tensor t;
    memset(&p, 0, sizeof p);
    snprintf(p.name, sizeof p.name, "transformer.h.0.mlp.c_fc.weight");
    p.shape = dt_shape2(400, 500), p.init = DT_INIT_NORMAL, p.std = 0.02f, p.shards = p.own_shards = 1;
    q = p;
    q.name[14] = '1';
    if (dt__pool_open(&pool, 3)) tap_bail("%s", dt_last_error());
    dt__init_param(&p, 5, NULL, whole);
    dt__init_param(&p, 5, pool, threads);
    tap_same_bits(threads, whole, 200000, "R16 initialisation does not depend on threads");
    t = dt_param(g, "/transformer.h.0.mlp.c_fc.weight", p.shape, DT_INIT_NORMAL, 0.02f);
    tap_same_bits(dt_value(g, t), whole, 200000, "R16 initialisation is keyed by seed and name alone");
    memset(threads, 0, 4 * 200000);
    for (int64_t from = 0, n; from < 200000; from += n) { /* the owners of pieces of 1, 3, 5... blocks */
        n = dt__min((from / 4096 + 1) * DT__BLOCK, 200000 - from);
        dt__init_shards(&p, 5, pool, threads + from, from, n);
    }
    tap_same_bits(threads, whole, 200000, "R16 a piece of a parameter is drawn alone");
    dt__init_param(&q, 5, NULL, threads);
    tap_ok(memcmp(threads, whole, 4 * 200000) != 0, "R16 another name draws other numbers");
    dt__init_param(&p, 6, NULL, threads);
    tap_ok(memcmp(threads, whole, 4 * 200000) != 0, "R16 another seed draws other numbers");
    dt_graph_close(&g);
    dt__pool_close(&pool);
    free(whole), free(threads);
}

/* ---- R15: the caller's floating-point flags ------------------------------------------------------------------- */

#if defined(__x86_64__)
enum { PLAIN = 0x1f80 };
static unsigned get_flags(void) { return _mm_getcsr() & ~0x3fu; }
static void set_flags(unsigned flags) { _mm_setcsr(flags); }
static const struct { unsigned flags; const char *name; } odd_flags[] = { { 0x8000, "flush to zero" }, { 0x8040, "flush to zero, denormals are zero" }, { 0x4000, "rounding up" } };
#elif defined(__aarch64__)
enum { PLAIN = 0 };
static unsigned get_flags(void)
{
    uint64_t flags;
    __asm__ volatile("mrs %0, fpcr" : "=r"(flags));
    return (unsigned)flags;
}
static void set_flags(unsigned flags)
{
    uint64_t wide = flags;
    __asm__ volatile("msr fpcr, %0" : : "r"(wide) : "memory");
}
static const struct { unsigned flags; const char *name; } odd_flags[] = { { 1u << 24, "flush to zero" }, { 3u << 24, "flush to zero, default NaN" }, { 1u << 22, "rounding up" } };
#endif

#if defined(__x86_64__) || defined(__aarch64__)
/* An op on subnormals, and a step of training, under these flags. */
static void under_flags(unsigned flags, float out[4], rig *r, const dt_model *model)
{
    static const float tiny[4] = { 1e-39f, -2e-41f, 3e-38f, 1e-45f };
    unsigned saved = get_flags(), left;
    dt_graph *g;
    dt_tensor x;
    set_flags(PLAIN | flags);
    g = eager(dt__isa_table(0), 1);
    x = dt_tensor_of(g, DT_F32, dt_shape1(4), tiny);
    memcpy(out, dt_value(g, dt_add(g, dt_scale(g, x, 0.7f), x)), 16);
    dt_graph_close(&g);
    rig_run(r, model, 0, 8, 2, 4, DT_SHARD, 2);
    left = get_flags();
    set_flags(saved);
    tap_ok(left == (PLAIN | flags), "R15 flags 0x%04x of the caller are restored", flags);
}

static void test_flags(void)
{
    dt_model model = small_gpt2(2, 0.1f);
    float want[4], got[4];
    rig a, b;
    under_flags(0, want, &a, &model);
    for (int i = 0; i < 3; i++) {
        under_flags(odd_flags[i].flags, got, &b, &model);
        tap_same_bits(got, want, 4, "R15 ops on subnormals do not see the caller's flags");
        tap_ok(rig_same(&a, &b), "R15 training does not see them: %s", odd_flags[i].name);
        rig_close(&b);
    }
    rig_close(&a);
}
#else
static void test_flags(void) { tap_skip(1, "R15 flags of the caller: the test knows x86-64 and aarch64 only"); }
#endif

/* ---- a trainer: memory after step 1, hash ---------------------------------------------------------------------- */

static void test_trainer(void)
{
    char path[64], want[65];
    dt_recipe r = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    long before;
    dt__sha256 h;
    snprintf(path, sizeof path, "test_numerics.%d.txt", (int)getpid());
    if (prose_generate(path, 20000, 1)) tap_bail("%s", dt_last_error());
    r.data = path, r.model = small_gpt2(2, 0.1f), r.model.vocabulary = 256;
    r.steps = 6, r.batch = 8, r.micro_batch = 4, r.sequence = 16, r.data_shards = 4;
    l.output.quiet = 1, l.threads = 2, l.output.eval_every = 2, l.output.eval_batches = 2, l.output.sample_length = 0;
    if (dt_trainer_open(&t, &r, &l) || dt_trainer_step(t, &info)) {
        remove(path);
        tap_bail("%s", dt_last_error());
    }
    before = __atomic_load_n(&allocations, __ATOMIC_RELAXED);
    tap_ok(!dt_trainer_run(t, &info) && info.step == 6, "a trainer runs its steps");
    tap_ok(__atomic_load_n(&allocations, __ATOMIC_RELAXED) == before, "no allocation after step 1 (%ld before)", before);
    dt__sha256_begin(&h);
    for (int k = 0; k < 3; k++)
        for (int32_t i = 0; i < t->e.p.net.param_count; i++)
            dt__sha256_add(&h, (k == 0 ? t->e.params : (const float *)t->e.state[k - 1]) + t->e.p.net.params[i].offset, 4 * t->e.p.net.params[i].count);
    dt__sha256_end(&h, want);
    tap_ok(!strcmp(want, dt_trainer_hash(t)), "R17 hash: weights, then both moments, unpadded, in definition order");
    dt_trainer_close(&t);
    remove(path);
}

/* ---- R5: the sum over a whole tensor ---------------------------------------------------------------------------- */

static void test_whole_sum(void)
{
    static float x[9001];
    int same = 1;
    for (int i = 0; i < 9001; i++) x[i] = (float)((i * 7919) % 1000 - 500) * 0.0137f;
    for (int64_t n = 1; n <= 9001; n += 1000) {
        float blocks[9], got;
        int count = 0;
        dt_graph *g = eager(dt__isa_table(0), 1);
        for (int64_t at = 0; at < n; at += 1024) blocks[count++] = dt__row_value(dt__isa_table(0), DT__OP_ROW_SUM, x + at, n - at < 1024 ? n - at : 1024);
        for (int step = 1; step < count; step *= 2)
            for (int i = 0; i + step < count; i += 2 * step) blocks[i] = blocks[i] + blocks[i + step];
        got = dt_value(g, dt_sum(g, dt_tensor_of(g, DT_F32, dt_shape1(n), x), DT_ALL))[0];
        same = same && !memcmp(&got, blocks, 4);
        dt_graph_close(&g);
    }
    tap_ok(same, "R5 the sum of a whole tensor is the tree over its blocks of 1024");
}

int main(void)
{
    A = floats(MOST + FENCE), B = floats(MOST + FENCE), C = floats(MOST + FENCE);
    D = floats(MOST + FENCE), E = floats(MOST + FENCE), F = floats(MOST + FENCE);
    test_kernels();
    test_soft_fma();
    test_accuracy();
    test_special_values();
    test_against_libm();
    test_philox();
    test_sha256();
    test_normals();
    test_host_scalars();
    test_schedules();
    test_runs();
    test_programs();
    test_modes();
    test_plans();
    test_engine();
    test_init();
    test_flags();
    test_trainer();
    free(A), free(B), free(C), free(D), free(E), free(F);
    test_whole_sum();
    return tap_done();
}
