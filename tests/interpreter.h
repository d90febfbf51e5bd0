/* interpreter.h: every op of a graph as plain scalar text, gradient ops included, and a function that gives all nodes of a
 * graph their values. Written from the definitions (NUMERICS.md, the ops' docs); no kernel of the header is called.
 * Include it behind dtrain.h. */
#ifndef INTERPRETER_H
#define INTERPRETER_H

#include "reference.h"

/* One function per op: c->out, and c->aux where the op has a second output, from c->in. fresh: chains start from +0. */

typedef struct ref_call {
    const dt_graph *g;
    const dt__node *n;
    const void *in[DT__MAX_IN];
    void *out;
    float *aux;
    int fresh;
    uint64_t seed;
} ref_call;

static const dt__node *node_in(const ref_call *c, int i) { return &c->g->nodes[c->n->in[i]]; }
static const float *floats_in(const ref_call *c, int i) { return (const float *)c->in[i]; }
static const int32_t *ints_in(const ref_call *c, int i) { return (const int32_t *)c->in[i]; }
static float *floats_out(const ref_call *c) { return (float *)c->out; }
/* An operand of a product in a graph with operands in 16 bits (R18). */
static float rounded(const ref_call *c, float x) { return c->g->precision ? (float)ref_number(c->g->precision, ref_code(c->g->precision, x)) : x; }
static int64_t size_of(const dt__node *n) { return dt_shape_count(n->shape); }
static int64_t last_size(const dt__node *n) { return n->shape.dims ? n->shape.n[n->shape.dims - 1] : 1; }

static void unravel(const dt_shape *s, int64_t flat, int64_t *at)
{
    for (int i = s->dims - 1; i >= 0; i--) at[i] = flat % s->n[i], flat /= s->n[i];
}
/* The element at indices `at`; axes of size 1 have but one, and s may lack leading axes of the `dims` of at. */
static int64_t ravel(const dt_shape *s, const int64_t *at, int dims)
{
    int64_t flat = 0;
    for (int i = 0; i < s->dims; i++) flat = flat * s->n[i] + (s->n[i] == 1 ? 0 : at[i + dims - s->dims]);
    return flat;
}
/* Element `to` of the result is element `from` of input i. */
static void move_element(const ref_call *c, int64_t to, int i, int64_t from)
{
    size_t width = (size_t)dt__format_of[c->n->dtype].bytes;
    memcpy((char *)c->out + (size_t)to * width, (const char *)c->in[i] + (size_t)from * width, width);
}

/* A node whose shape its op cannot make out of its input's, seen since this was 0: sums of as many numbers may still come
 * out alike everywhere. */
static const dt__node *ref_misfit;
/* The result keeps the first axes of input 0 (or, not `first`, the last ones). */
static void keeps_axes(const ref_call *c, int first)
{
    const dt_shape *in = &node_in(c, 0)->shape, *out = &c->n->shape;
    int skip = first ? 0 : in->dims - out->dims, fits = out->dims <= in->dims;
    for (int i = 0; fits && i < out->dims; i++) fits = out->n[i] == in->n[skip + i];
    if (!fits) ref_misfit = c->n;
}

static void ref_op_copy(const ref_call *c)
{
    for (int64_t k = 0; k < size_of(c->n); k++) move_element(c, k, 0, k);
}
static void ref_op_permute(const ref_call *c)
{
    for (int64_t k = 0; k < size_of(c->n); k++) {
        int64_t at[DT_MAX_DIMS], from[DT_MAX_DIMS];
        unravel(&c->n->shape, k, at);
        for (int a = 0; a < c->n->shape.dims; a++) from[c->n->i[a]] = at[a];
        move_element(c, k, 0, ravel(&node_in(c, 0)->shape, from, c->n->shape.dims));
    }
}
static void ref_op_slice(const ref_call *c)
{
    for (int64_t k = 0; k < size_of(c->n); k++) {
        int64_t at[DT_MAX_DIMS];
        unravel(&c->n->shape, k, at);
        at[c->n->i[0]] += c->n->i[1];
        move_element(c, k, 0, ravel(&node_in(c, 0)->shape, at, c->n->shape.dims));
    }
}
/* Input i at `offset` of the axis i[0]. */
static void place_input(const ref_call *c, int i, int64_t offset)
{
    for (int64_t k = 0; k < size_of(node_in(c, i)); k++) {
        int64_t at[DT_MAX_DIMS];
        unravel(&node_in(c, i)->shape, k, at);
        at[c->n->i[0]] += offset;
        move_element(c, ravel(&c->n->shape, at, c->n->shape.dims), i, k);
    }
}
static void ref_op_pad(const ref_call *c)
{
    memset(c->out, 0, (size_t)(size_of(c->n) * dt__format_of[c->n->dtype].bytes));
    place_input(c, 0, c->n->i[1]);
}
static void ref_op_concat(const ref_call *c)
{
    int64_t at = 0;
    for (int i = 0; i < c->n->inputs; i++) place_input(c, i, at), at += node_in(c, i)->shape.n[c->n->i[0]];
}
static void ref_op_expand(const ref_call *c)
{
    for (int64_t k = 0; k < size_of(c->n); k++) {
        int64_t at[DT_MAX_DIMS];
        unravel(&c->n->shape, k, at);
        move_element(c, k, 0, ravel(&node_in(c, 0)->shape, at, c->n->shape.dims));
    }
}
static void ref_op_full(const ref_call *c)
{
    for (int64_t k = 0; k < size_of(c->n); k++) floats_out(c)[k] = c->n->f;
}
static void ref_op_cast(const ref_call *c)
{
    int to = c->n->dtype, from = node_in(c, 0)->dtype;
    for (int64_t k = 0; k < size_of(c->n); k++) {
        uint32_t code = 0;
        float x;
        size_t bytes = (size_t)dt__format_of[from].bytes;
        memcpy(&code, (const char *)c->in[0] + (size_t)k * bytes, bytes);
        if (from == DT_F32) memcpy(&x, &code, 4);
        else x = from == DT_I32 ? (float)(int32_t)code : (float)ref_number(from, code);
        if (to == DT_F32) memcpy(&code, &x, 4);
        else if (to == DT_I32) code = (uint32_t)(x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : x == x ? (int32_t)x : 0);
        else code = ref_code(to, x);
        bytes = (size_t)dt__format_of[to].bytes;
        memcpy((char *)c->out + (size_t)k * bytes, &code, bytes);
    }
}

/* ---- picking by index ---- */

static void ref_op_gather(const ref_call *c)
{
    int64_t axis = c->n->i[0], n = node_in(c, 0)->shape.n[axis];
    for (int64_t k = 0; k < size_of(c->n); k++) {
        int64_t at[DT_MAX_DIMS], place = ints_in(c, 1)[k];
        unravel(&c->n->shape, k, at);
        at[axis] = place;
        if (place < 0 || place >= n) memset((char *)c->out + k * dt__format_of[c->n->dtype].bytes, 0, (size_t)dt__format_of[c->n->dtype].bytes);
        else move_element(c, k, 0, ravel(&node_in(c, 0)->shape, at, c->n->shape.dims));
    }
}
/* in: index, x: in index order. */
static void ref_op_scatter_add(const ref_call *c)
{
    int64_t axis = c->n->i[0];
    float *out = floats_out(c);
    for (int64_t k = 0; c->fresh && k < size_of(c->n); k++) out[k] = 0.0f;
    for (int64_t k = 0; k < size_of(node_in(c, 0)); k++) {
        int64_t at[DT_MAX_DIMS], to;
        unravel(&node_in(c, 0)->shape, k, at);
        at[axis] = ints_in(c, 0)[k];
        if (at[axis] < 0 || at[axis] >= c->n->shape.n[axis]) continue;
        to = ravel(&c->n->shape, at, c->n->shape.dims);
        out[to] = out[to] + floats_in(c, 1)[k];
    }
}
/* The j-th place: of those not taken, the first of the largest. */
static void ref_op_top_k(const ref_call *c)
{
    int64_t k = last_size(c->n), n = last_size(node_in(c, 0));
    for (int64_t r = 0; r < size_of(c->n) / k; r++) {
        const float *x = floats_in(c, 0) + r * n;
        int32_t *best = (int32_t *)c->out + r * k;
        for (int64_t j = 0; j < k; j++) {
            int64_t top = -1;
            for (int64_t i = 0; i < n; i++) {
                int taken = 0;
                for (int64_t l = 0; l < j; l++) taken |= best[l] == i;
                if (!taken && (top < 0 || ref_above(x[i], x[top]))) top = i;
            }
            best[j] = (int32_t)top;
        }
    }
}
static void ref_op_embed(const ref_call *c)
{
    int64_t n = last_size(c->n);
    for (int64_t k = 0; k < size_of(c->n); k++) move_element(c, k, 0, ints_in(c, 1)[k / n] * n + k % n);
}
static void ref_op_embed_grad(const ref_call *c) /* in: tokens, dy */
{
    int64_t n = last_size(c->n);
    float *out = floats_out(c);
    for (int64_t k = 0; c->fresh && k < size_of(c->n); k++) out[k] = 0.0f;
    for (int64_t k = 0; k < size_of(node_in(c, 1)); k++) {
        float *to = out + ints_in(c, 0)[k / n] * n + k % n;
        *to = *to + floats_in(c, 1)[k];
    }
}

/* ---- elementwise ---- */

static void ref_op_unary(const ref_call *c)
{
    for (int64_t k = 0; k < size_of(c->n); k++) floats_out(c)[k] = ref_unary(c->n->op, floats_in(c, 0)[k], c->n->f);
}
static float broadcast_in(const ref_call *c, int i, const int64_t *at) { return floats_in(c, i)[ravel(&node_in(c, i)->shape, at, c->n->shape.dims)]; }
static void ref_op_binary(const ref_call *c)
{
    for (int64_t k = 0; k < size_of(c->n); k++) {
        int64_t at[DT_MAX_DIMS];
        unravel(&c->n->shape, k, at);
        floats_out(c)[k] = ref_binary(c->n->op, broadcast_in(c, 0, at), broadcast_in(c, 1, at));
    }
}
/* Gradients of map ops: the table's own expressions, compiled for single floats. Their values are checked where slopes
 * are, in test_ops.c and test_random.c; here it is the order of roundings that must be the kernels'. */
#undef dt__v_exp
#undef dt__v_log
#undef dt__v_abs
#undef dt__v_sign
#undef dt__v_sqrt
#undef dt__v_sigmoid
#undef dt__v_gelu_grad
#undef dt__v_silu_grad
#undef dt__v_bce_grad
#undef dt__v_where
#define dt__v_exp(x) ref_exp(x)
#define dt__v_log(x) ref_log(x)
#define dt__v_abs(x) fabsf(x)
#define dt__v_sign(x) ((x) > 0.0f ? 1.0f : (x) < 0.0f ? -1.0f : (x))
#define dt__v_sqrt(x) sqrtf(x)
#define dt__v_sigmoid(x) ref_unary(DT__OP_SIGMOID, x, 0.0f)
#define dt__v_gelu_grad(x, dy) ref_gelu_grad(x, dy)
#define dt__v_silu_grad(x, dy) ref_silu_grad(x, dy)
#define dt__v_bce_grad(x, t) ref_bce_grad(x, t)
#define dt__v_where(condition, a, b) ((condition) ? (a) : (b))
#define REF_GRAD(name, input, operands, expression) \
    case DT__OP_##name##_GRAD##input: return (expression);
#define REF_GRADS(name, operands, kind, builder, expression, ...) __VA_ARGS__
static float ref_grad(int op, float a, float b, float y, float dy, float s)
{
    const float zero = 0.0f;
    switch (op) {
        DT__OPS(DT__SKIP, REF_GRADS, REF_GRAD, DT__SKIP, DT__SKIP, DT__SKIP)
    default: return NAN;
    }
}
static void ref_op_grad(const ref_call *c)
{
    const char *operands = dt__op_of(c->n->op)->inputs;
    for (int64_t k = 0; k < size_of(c->n); k++) {
        int64_t at[DT_MAX_DIMS];
        float value[128];
        memset(value, 0, sizeof value);
        unravel(&c->n->shape, k, at);
        for (int i = 0; i < c->n->inputs; i++) value[(int)operands[i]] = broadcast_in(c, i, at);
        floats_out(c)[k] = ref_grad(c->n->op, value['A'], value['B'], value['Y'], value['D'], c->n->f);
    }
}
static void ref_op_accumulate(const ref_call *c)
{
    for (int64_t k = 0; k < size_of(c->n); k++) floats_out(c)[k] = c->fresh ? floats_in(c, 0)[k] : floats_out(c)[k] + floats_in(c, 0)[k];
}

/* ---- reductions ---- */

static void ref_op_combine(const ref_call *c)
{
    float part[64];
    int64_t parts = c->n->i[2], n = size_of(c->n);
    for (int64_t k = 0; k < n; k++) {
        for (int64_t p = 0; p < parts; p++) part[p] = floats_in(c, 0)[p * n + k];
        floats_out(c)[k] = ref_tree(part, parts);
    }
}
static void ref_op_row_sum(const ref_call *c)
{
    int64_t rows = size_of(c->n), n = size_of(node_in(c, 0)) / rows;
    keeps_axes(c, 1);
    for (int64_t r = 0; r < rows; r++) floats_out(c)[r] = c->n->shape.dims ? ref_row_sum(floats_in(c, 0) + r * n, n) : ref_whole_sum(floats_in(c, 0), n);
}
static void ref_op_col_sum(const ref_call *c)
{
    int64_t n = size_of(c->n), rows = size_of(node_in(c, 0)) / n;
    keeps_axes(c, 0);
    for (int64_t k = 0; k < n; k++) {
        float sum = c->fresh ? 0.0f : floats_out(c)[k];
        for (int64_t r = 0; r < rows; r++) sum = sum + floats_in(c, 0)[r * n + k];
        floats_out(c)[k] = sum;
    }
}
static int64_t first_of_largest(const float *x, int64_t n)
{
    int64_t top = 0;
    for (int64_t i = 1; i < n; i++) top = ref_above(x[i], x[top]) ? i : top;
    return top;
}
static void ref_op_row_max(const ref_call *c)
{
    int64_t rows = size_of(c->n), n = size_of(node_in(c, 0)) / rows;
    keeps_axes(c, 1);
    for (int64_t r = 0; r < rows; r++) floats_out(c)[r] = ref_row_max(floats_in(c, 0) + r * n, n);
}
static void ref_op_max_grad(const ref_call *c) /* in: x, y, dy */
{
    int64_t rows = size_of(node_in(c, 1)), n = size_of(c->n) / rows;
    for (int64_t k = 0; k < size_of(c->n); k++) floats_out(c)[k] = 0.0f;
    for (int64_t r = 0; r < rows; r++) floats_out(c)[r * n + first_of_largest(floats_in(c, 0) + r * n, n)] = floats_in(c, 2)[r];
}

/* ---- rows: R9 ---- */

enum { ROW_MOST = 8192 };

static void ref_op_softmax(const ref_call *c)
{
    int64_t n = last_size(c->n);
    for (int64_t r = 0; r < size_of(c->n) / n; r++) {
        const float *x = floats_in(c, 0) + r * n;
        float *y = floats_out(c) + r * n, max = ref_row_max(x, n), e[ROW_MOST], sum;
        for (int64_t i = 0; i < n; i++) e[i] = ref_exp(x[i] - max);
        sum = ref_row_sum(e, n);
        for (int64_t i = 0; i < n; i++) y[i] = e[i] / sum;
    }
}
static void ref_op_softmax_grad(const ref_call *c) /* in: y, dy */
{
    int64_t n = last_size(c->n);
    for (int64_t r = 0; r < size_of(c->n) / n; r++) {
        const float *y = floats_in(c, 0) + r * n, *dy = floats_in(c, 1) + r * n;
        float sum = ref_row_dot(dy, y, n);
        for (int64_t i = 0; i < n; i++) floats_out(c)[r * n + i] = (dy[i] - sum) * y[i];
    }
}
/* in: x, gamma [, beta]; aux: mean and 1/deviation, or +0 and 1/rms. */
static void ref_op_norm(const ref_call *c)
{
    int64_t n = last_size(c->n);
    int rms = c->n->op == DT__OP_RMSNORM;
    for (int64_t r = 0; r < size_of(c->n) / n; r++) {
        const float *x = floats_in(c, 0) + r * n, *gamma = floats_in(c, 1);
        float d[ROW_MOST], mean = rms ? 0.0f : ref_row_sum(x, n) / (float)n, scale;
        for (int64_t i = 0; i < n; i++) d[i] = rms ? x[i] : x[i] - mean;
        scale = 1.0f / sqrtf(ref_row_dot(d, d, n) / (float)n + c->n->f);
        for (int64_t i = 0; i < n; i++) {
            float hat = d[i] * scale;
            floats_out(c)[r * n + i] = rms ? hat * gamma[i] : fmaf(hat, gamma[i], floats_in(c, 2)[i]);
        }
        c->aux[2 * r] = mean, c->aux[2 * r + 1] = scale;
    }
}
static void ref_op_norm_dx(const ref_call *c) /* in: dy, x, stats, gamma */
{
    int64_t n = last_size(c->n);
    int rms = c->n->op == DT__OP_RMSNORM_DX;
    for (int64_t r = 0; r < size_of(c->n) / n; r++) {
        const float *dy = floats_in(c, 0) + r * n, *x = floats_in(c, 1) + r * n, *stats = floats_in(c, 2) + 2 * r;
        float g[ROW_MOST], hat[ROW_MOST], mean_g, mean_x;
        for (int64_t i = 0; i < n; i++) {
            g[i] = dy[i] * floats_in(c, 3)[i];
            hat[i] = (rms ? x[i] : x[i] - stats[0]) * stats[1];
        }
        mean_g = ref_row_sum(g, n) / (float)n;
        mean_x = ref_row_dot(g, hat, n) / (float)n;
        for (int64_t i = 0; i < n; i++) {
            float along = hat[i] * mean_x;
            floats_out(c)[r * n + i] = stats[1] * (rms ? g[i] - along : g[i] - mean_g - along);
        }
    }
}
static void ref_op_norm_dgamma(const ref_call *c) /* in: dy, x, stats */
{
    int64_t n = size_of(c->n), rows = size_of(node_in(c, 0)) / n;
    for (int64_t k = 0; k < n; k++) {
        float sum = c->fresh ? 0.0f : floats_out(c)[k];
        for (int64_t r = 0; r < rows; r++) {
            float hat = (floats_in(c, 1)[r * n + k] - floats_in(c, 2)[2 * r]) * floats_in(c, 2)[2 * r + 1];
            sum = fmaf(floats_in(c, 0)[r * n + k], hat, sum);
        }
        floats_out(c)[k] = sum;
    }
}

/* ---- matrix products ---- */

/* i: transposed a, transposed b. Leading axes broadcast. */
static void ref_op_matmul(const ref_call *c)
{
    dt_shape la = node_in(c, 0)->shape, lb = node_in(c, 1)->shape, lead = c->n->shape;
    int ta = (int)c->n->i[0], tb = (int)c->n->i[1];
    int64_t m = la.n[la.dims - 2 + ta], k = la.n[la.dims - 1 - ta], n = last_size(c->n);
    la.dims -= 2, lb.dims -= 2, lead.dims -= 2;
    for (int64_t e = 0; e < size_of(c->n); e++) {
        int64_t entry = e / (m * n), i = e / n % m, j = e % n, at[DT_MAX_DIMS];
        const float *a = floats_in(c, 0), *b = floats_in(c, 1);
        float sum = c->fresh ? 0.0f : floats_out(c)[e];
        unravel(&lead, entry, at);
        a += ravel(&la, at, lead.dims) * m * k, b += ravel(&lb, at, lead.dims) * k * n;
        for (int64_t p = 0; p < k; p++) {
            float weight = b[tb ? j * k + p : p * n + j];
            sum = fmaf(a[ta ? p * m + i : i * k + p], node_in(c, 1)->op == DT__OP_PARAM ? rounded(c, weight) : weight, sum);
        }
        floats_out(c)[e] = sum;
    }
}

/* ---- dropout and attention: R16 ---- */

/* The word of (seed, dropout, sample, site, element). */
static uint32_t drop_word(const ref_call *c, int64_t sample, int64_t site, uint64_t element)
{
    uint32_t counter[4], key[2], out[4];
    counter[0] = (uint32_t)(element / 4), counter[1] = (uint32_t)sample, counter[2] = 0, counter[3] = (uint32_t)site;
    key[0] = (uint32_t)c->seed, key[1] = (uint32_t)(c->seed >> 32) ^ (uint32_t)DT__RNG_DROPOUT << 24;
    dt__philox(counter, key, out);
    return out[element % 4];
}
/* x / (1 - p), or +0 when it is dropped. */
static float drop(const ref_call *c, int64_t sample, int64_t site, int64_t element, float x)
{
    if (c->n->f == 0.0f) return x;
    return drop_word(c, sample, site, (uint64_t)element) < (uint32_t)((double)c->n->f * 4294967296.0) ? 0.0f : x * (1.0f / (1.0f - c->n->f));
}
static void ref_op_dropout(const ref_call *c)
{
    int64_t each = size_of(c->n) / c->n->shape.n[0];
    for (int64_t k = 0; k < size_of(c->n); k++) floats_out(c)[k] = drop(c, k / each, c->n->i[2], k % each, floats_in(c, 0)[k]);
}

/* Heads j of q (b,t,h d) and of k, v (b,s,hk d): rows of ldq and ldk floats. */
typedef struct ref_heads {
    const float *q, *k, *v, *mask;
    int64_t b, t, s, h, hk, d, ldq, ldk, mask_step;
    float scale;
    int causal;
} ref_heads;
/* i: heads, causal, site, heads of k (0: q, k, v are thirds of one row), the scale's bits; `mask` is its input's number. */
static ref_heads heads_of(const ref_call *c, int mask)
{
    const dt__node *n = c->n, *q = node_in(c, 0), *k = n->i[3] ? node_in(c, 1) : q;
    uint32_t bits = (uint32_t)n->i[4];
    ref_heads w;
    memset(&w, 0, sizeof w);
    w.b = q->shape.n[0], w.t = q->shape.n[1], w.s = k->shape.n[1], w.h = n->i[0], w.hk = n->i[3] ? n->i[3] : w.h;
    w.ldq = last_size(q), w.ldk = last_size(k), w.d = n->i[3] ? w.ldk / w.hk : w.ldq / w.h / 3;
    w.q = floats_in(c, 0), w.k = n->i[3] ? floats_in(c, 1) : w.q + w.h * w.d, w.v = n->i[3] ? floats_in(c, 2) : w.k + w.h * w.d;
    memcpy(&w.scale, &bits, sizeof bits);
    w.causal = (int)n->i[1];
    if (n->i[3] && n->inputs > mask) w.mask = floats_in(c, mask), w.mask_step = node_in(c, mask)->shape.dims == 3 ? w.t * w.s : 0;
    return w;
}
/* A mask's int32 or float is 0: the query does not see the key. -0 is a 0 of a float; no int32 of these tests has its bits. */
static int sees(const ref_heads *w, int64_t b, int64_t i, int64_t j)
{
    uint32_t word = 1;
    if (w->mask) memcpy(&word, w->mask + b * w->mask_step + i * w->s + j, sizeof word);
    return (word & 0x7fffffffu) && (!w->causal || j <= i + w->s - w->t);
}
static int64_t query_at(const ref_heads *w, int64_t ld, int64_t b, int64_t h, int64_t i) { return (b * w->t + i) * ld + h * w->d; }
static int64_t key_at(const ref_heads *w, int64_t b, int64_t h, int64_t j) { return (b * w->s + j) * w->ldk + h / (w->h / w->hk) * w->d; }

/* One query: the exponentials e (s) of what it sees, their maximum and sum. */
static void attention_row(const ref_call *c, const ref_heads *w, int64_t b, int64_t h, int64_t i, float *e, float *max, float *sum)
{
    const float *q = w->q + query_at(w, w->ldq, b, h, i);
    float lane[32] = { 0 };
    *max = -INFINITY;
    for (int64_t j = 0; j < w->s; j++) {
        const float *k = w->k + key_at(w, b, h, j);
        float s = 0.0f;
        if (!sees(w, b, i, j)) continue;
        for (int64_t a = 0; a < w->d; a++) s = fmaf(q[a], k[a], s);
        e[j] = rounded(c, s) * w->scale;
        *max = e[j] > *max ? e[j] : *max;
    }
    *max = *max == -INFINITY ? 0.0f : *max + 0.0f;
    for (int64_t j = 0; j < w->s; j++) {
        if (!sees(w, b, i, j)) continue;
        e[j] = ref_exp(e[j] - *max);
        lane[j % 32] = lane[j % 32] + e[j];
    }
    *sum = ref_fold(lane);
    if (*sum == 0.0f) *sum = 1.0f;
}
/* aux: maxima and sums, (b,h,t) each. */
static void ref_op_attention(const ref_call *c)
{
    ref_heads w = heads_of(c, 3);
    for (int64_t row = 0; row < w.b * w.h * w.t; row++) {
        int64_t b = row / w.t / w.h, h = row / w.t % w.h, i = row % w.t;
        float e[ROW_MOST], *max = c->aux + row, *sum = c->aux + w.b * w.h * w.t + row;
        attention_row(c, &w, b, h, i, e, max, sum);
        for (int64_t a = 0; a < w.d; a++) {
            float o = 0.0f;
            for (int64_t j = 0; j < w.s; j++)
                if (sees(&w, b, i, j)) o = fmaf(rounded(c, drop(c, b, c->n->i[2], (h * w.t + i) * w.s + j, e[j])), w.v[key_at(&w, b, h, j) + a], o);
            floats_out(c)[query_at(&w, w.h * w.d, b, h, i) + a] = o / *sum;
        }
    }
}
/* in: those of the op, stats, o, dout [, mask]. Queries in order, so dk and dv are chains over heads and queries. */
static void ref_op_attention_grad(const ref_call *c)
{
    int first = c->n->i[3] ? 3 : 1;
    ref_heads w = heads_of(c, first + 3);
    int64_t width = w.h * w.d, queries = w.b * w.t * width, keys = w.b * w.s * w.hk * w.d;
    float *dq = floats_out(c), *dk = dq + (c->n->i[3] ? queries : width), *dv = dk + (c->n->i[3] ? keys : width);
    for (int64_t k = 0; k < size_of(c->n); k++) dq[k] = 0.0f;
    for (int64_t row = 0; row < w.b * w.h * w.t; row++) {
        int64_t b = row / w.t / w.h, h = row / w.t % w.h, i = row % w.t, q = query_at(&w, w.ldq, b, h, i);
        const float *o = floats_in(c, first + 1) + query_at(&w, width, b, h, i), *dout = floats_in(c, first + 2) + query_at(&w, width, b, h, i);
        float e[ROW_MOST], max, sum, dot = ref_row_dot(dout, o, w.d);
        attention_row(c, &w, b, h, i, e, &max, &sum);
        for (int64_t j = 0; j < w.s; j++) {
            int64_t k = key_at(&w, b, h, j), word = (h * w.t + i) * w.s + j;
            float p, grad = 0.0f, kept;
            if (!sees(&w, b, i, j)) continue;
            p = e[j] / sum;
            for (int64_t a = 0; a < w.d; a++) grad = fmaf(dout[a], w.v[k + a], grad);
            kept = rounded(c, drop(c, b, c->n->i[2], word, p));
            grad = rounded(c, p * (drop(c, b, c->n->i[2], word, rounded(c, grad)) - dot) * w.scale);
            for (int64_t a = 0; a < w.d; a++) {
                dq[q + a] = fmaf(grad, w.k[k + a], dq[q + a]);
                dk[k + a] = fmaf(grad, w.q[q + a], dk[k + a]);
                dv[k + a] = fmaf(kept, dout[a], dv[k + a]);
            }
        }
    }
}
/* The node's table: cosines and sines (t,2,d/2) of its angles. i: heads, direction. */
static void ref_op_rope(const ref_call *c)
{
    int64_t t = c->n->shape.n[1], width = last_size(c->n), d = width / c->n->i[0];
    for (int64_t k = 0; k < size_of(c->n); k++) {
        int64_t at = k % width % d, pair = at % (d / 2);
        const float *x = floats_in(c, 0) + k - at, *turn = c->n->table + k / width % t * d;
        float cosine = turn[pair], sine = turn[d / 2 + pair] * (c->n->i[1] ? -1.0f : 1.0f), low = x[pair], high = x[pair + d / 2];
        floats_out(c)[k] = at < d / 2 ? fmaf(-high, sine, low * cosine) : fmaf(low, sine, high * cosine);
    }
}

/* ---- losses: R12 ---- */

/* in: logits, targets; aux: (rows,2) maxima and sums, then each row's loss. */
static void ref_op_cross_entropy(const ref_call *c)
{
    int64_t n = last_size(node_in(c, 0)), rows = size_of(node_in(c, 0)) / n;
    float smoothing = c->n->f;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = floats_in(c, 0) + r * n;
        float e[ROW_MOST], max = ref_row_max(x, n), sum, loss, rest, share;
        int32_t target = ints_in(c, 1)[r];
        for (int64_t i = 0; i < n; i++) e[i] = ref_exp(x[i] - max);
        sum = ref_row_sum(e, n);
        for (int64_t i = 0; i < n; i++) e[i] = x[i] - max;
        c->aux[2 * r] = max, c->aux[2 * r + 1] = sum;
        loss = target < 0 ? 0.0f : ref_log(sum) - e[target];
        if (target >= 0 && smoothing > 0.0f) {
            rest = ref_log(sum) - ref_row_sum(e, n) / (float)n;
            share = smoothing * rest;
            loss = (1.0f - smoothing) * loss;
            loss = loss + share;
        }
        c->aux[2 * rows + r] = loss;
    }
    floats_out(c)[0] = ref_row_sum(c->aux + 2 * rows, rows);
}
static void ref_op_cross_entropy_grad(const ref_call *c) /* in: logits, stats, targets, dloss */
{
    int64_t n = last_size(c->n);
    float spread = c->n->f / (float)n, on = 1.0f - c->n->f + spread;
    for (int64_t k = 0; k < size_of(c->n); k++) {
        const float *stats = floats_in(c, 1) + k / n * 2;
        int32_t target = ints_in(c, 2)[k / n];
        float p = ref_exp(floats_in(c, 0)[k] - stats[0]) / stats[1];
        floats_out(c)[k] = target < 0 ? 0.0f : (p - (k % n == target ? on : spread)) * floats_in(c, 3)[0];
    }
}
/* Has sample b a target, or the node no targets? They are input 1. */
static int counts(const ref_call *c, int64_t b)
{
    int64_t each = c->n->inputs < 2 ? 0 : size_of(node_in(c, 1)) / c->n->i[0];
    int has = !each;
    for (int64_t k = b * each; k < (b + 1) * each; k++) has |= ints_in(c, 1)[k] >= 0;
    return has;
}
static void ref_op_loss(const ref_call *c)
{
    int64_t samples = c->n->i[0], each = size_of(node_in(c, 0)) / samples;
    for (int64_t b = 0; b < samples; b++) c->aux[b] = counts(c, b) ? ref_whole_sum(floats_in(c, 0) + b * each, each) : 0.0f;
    floats_out(c)[0] = ref_whole_sum(c->aux, samples);
}
static void ref_op_loss_grad(const ref_call *c)
{
    int64_t each = size_of(c->n) / c->n->i[0];
    for (int64_t k = 0; k < size_of(c->n); k++) floats_out(c)[k] = counts(c, k / each) ? floats_in(c, 0)[0] : 0.0f;
}

/* ---- the table ---- */

typedef void (*ref_fn)(const ref_call *c);
static const struct reference {
    int op;
    ref_fn run;
} references[] = {
    { DT__OP_RESHAPE, ref_op_copy }, { DT__OP_DETACH, ref_op_copy }, { DT__OP_PERMUTE, ref_op_permute }, { DT__OP_SLICE, ref_op_slice },
    { DT__OP_PAD, ref_op_pad }, { DT__OP_CONCAT, ref_op_concat }, { DT__OP_EXPAND, ref_op_expand }, { DT__OP_FULL, ref_op_full },
    { DT__OP_CAST, ref_op_cast }, { DT__OP_GATHER, ref_op_gather }, { DT__OP_SCATTER_ADD, ref_op_scatter_add }, { DT__OP_TOP_K, ref_op_top_k },
    { DT__OP_EMBED, ref_op_embed }, { DT__OP_EMBED_GRAD, ref_op_embed_grad }, { DT__OP_NEG, ref_op_unary }, { DT__OP_SCALE, ref_op_unary },
    { DT__OP_EXP, ref_op_unary }, { DT__OP_LOG, ref_op_unary }, { DT__OP_TANH, ref_op_unary }, { DT__OP_SQRT, ref_op_unary },
    { DT__OP_RSQRT, ref_op_unary }, { DT__OP_GELU, ref_op_unary }, { DT__OP_ADD, ref_op_binary }, { DT__OP_SUB, ref_op_binary },
    { DT__OP_MUL, ref_op_binary }, { DT__OP_DIV, ref_op_binary }, { DT__OP_BCE, ref_op_binary }, { DT__OP_SILU, ref_op_unary },
    { DT__OP_SIGMOID, ref_op_unary }, { DT__OP_RELU, ref_op_unary }, { DT__OP_ABS, ref_op_unary }, { DT__OP_SQUARE, ref_op_unary },
    { DT__OP_RECIPROCAL, ref_op_unary }, { DT__OP_MAXIMUM, ref_op_binary }, { DT__OP_MINIMUM, ref_op_binary }, { DT__OP_GREATER_EQUAL, ref_op_binary },
    { DT__OP_COMBINE, ref_op_combine }, { DT__OP_ROW_SUM, ref_op_row_sum }, { DT__OP_COL_SUM, ref_op_col_sum }, { DT__OP_ROW_MAX, ref_op_row_max },
    { DT__OP_MAX_GRAD, ref_op_max_grad }, { DT__OP_SOFTMAX, ref_op_softmax }, { DT__OP_SOFTMAX_GRAD, ref_op_softmax_grad },
    { DT__OP_MATMUL, ref_op_matmul }, { DT__OP_LAYERNORM, ref_op_norm }, { DT__OP_LAYERNORM_DX, ref_op_norm_dx },
    { DT__OP_LAYERNORM_DGAMMA, ref_op_norm_dgamma }, { DT__OP_RMSNORM, ref_op_norm }, { DT__OP_RMSNORM_DX, ref_op_norm_dx },
    { DT__OP_ATTENTION, ref_op_attention }, { DT__OP_ATTENTION_GRAD, ref_op_attention_grad }, { DT__OP_ROPE, ref_op_rope },
    { DT__OP_DROPOUT, ref_op_dropout }, { DT__OP_CROSS_ENTROPY, ref_op_cross_entropy }, { DT__OP_CROSS_ENTROPY_GRAD, ref_op_cross_entropy_grad },
    { DT__OP_LOSS, ref_op_loss }, { DT__OP_LOSS_GRAD, ref_op_loss_grad }, { DT__OP_ACCUMULATE, ref_op_accumulate },
};
/* Ops without a reference here, and why. */
static const struct exempt {
    int op;
    const char *why;
} exempts[] = {
    { DT__OP_NONE, "the poison" }, { DT__OP_CUSTOM, "the program's own" }, { DT__OP_CUSTOM_GRAD, "the program's own" }, { DT__OP_INPUT, "a leaf: given" }, { DT__OP_PARAM, "a leaf: given" }, { DT__OP_AUX, "the second output of its node" },
    /* on several ranks alone: test_shards.c compares their results with those of one rank */
    { DT__OP_ALL_ROWS, "split rows" }, { DT__OP_OWN_ROWS, "split rows" }, { DT__OP_SAME_ROWS, "split rows" },
    /* in decode graphs alone: test_generate.c compares their logits with those of whole sequences */
    { DT__OP_POSITIONS, "decode graphs" }, { DT__OP_CACHE, "decode graphs" },
    /* routes and their rows: test_moe.c has their scalar loops */
    { DT__OP_AUX_LOSS, "mixtures" }, { DT__OP_AUX_LOSS_GRAD, "mixtures" }, { DT__OP_MOE_ROUTE, "mixtures" }, { DT__OP_MOE_ROWS, "mixtures" },
    { DT__OP_MOE_LINEAR, "mixtures" }, { DT__OP_MOE_DW, "mixtures" }, { DT__OP_MOE_DB, "mixtures" }, { DT__OP_MOE_SUM, "mixtures" },
    { DT__OP_MOE_DOT, "mixtures" },
    /* experts on several ranks alone: test_shards.c compares their results with those of one rank */
    { DT__OP_MOE_BINS, "shared experts" }, { DT__OP_MOE_EXCHANGE, "shared experts" },
};
static ref_fn reference_of(int op)
{
    for (size_t i = 0; i < sizeof references / sizeof *references; i++)
        if (references[i].op == op) return references[i].run;
    return dt__op_of(op)->class_of == DT__CLASS_MAP && strchr(dt__op_of(op)->inputs, 'D') ? ref_op_grad : NULL;
}

/* ---- a graph ---- */

/* Gives the nodes of g below `count` their values: `leaf` those of the leaves. slots may be NULL in an eager graph. A node
 * that is cut over tensor shards has a value for each. */
static void interpret(const dt_graph *g, int32_t count, const float *const *leaf, float **value, float *room, float *slots, const int64_t *slot, int fresh, uint64_t seed)
{
    for (int32_t id = 1; id < count; id++) {
        const dt__node *n = &g->nodes[id];
        ref_call c;
        int64_t floats = dt__node_floats(g, id);
        value[id] = room, room += floats;
        if (leaf[id]) memcpy(value[id], leaf[id], 4 * (size_t)floats);
        if (leaf[id] || n->op == DT__OP_AUX) continue;
        if (n->slot >= 0 && !fresh) memcpy(value[id], slots + slot[n->slot], 4 * (size_t)floats);
        c.g = g, c.n = n, c.seed = seed;
        c.fresh = n->slot < 0 || fresh;
        for (int64_t v = 0; v < dt__copies(g, n); v++) {
            c.out = value[id] + v * dt__node_step(g, id);
            c.aux = n->aux ? room + v * dt__node_step(g, n->aux) : NULL; /* the next node */
            for (int i = 0; i < n->inputs; i++) c.in[i] = value[n->in[i]] + v * dt__node_step(g, n->in[i]);
            reference_of(n->op)(&c);
        }
        if (n->slot >= 0) memcpy(slots + slot[n->slot], value[id], 4 * (size_t)floats);
    }
}
static int64_t all_floats(const dt_graph *g)
{
    int64_t n = 0;
    for (int32_t id = 1; id < g->count; id++) n += dt__node_floats(g, id);
    return n;
}

#endif
