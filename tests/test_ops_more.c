/* test_ops_more.c: reductions, softmax, normalisations, losses, shape and index ops, storage types. Finite differences with
 * the machinery of test_ops.c; the rows' kernels against plain scalar text, bit for bit, on every instruction set and with
 * 1 and 2 threads; every code of the storage types; values and gradients against PyTorch (golden/reduce.safetensors); errors;
 * planned segments, and small models of one's own that are trained to one hash on 1 and 2 ranks.
 *
 *     cc -O2 -I.. test_ops_more.c -lm -lpthread && ./a.out */
#define TEST_OPS_MORE
#pragma GCC diagnostic ignored "-Wunused-function" /* the tests of test_ops.c: its machinery is wanted */
#include "test_ops.c"
#include "reference.h"
#include "../examples/prose.h"

/* An op_case that is built and computed by `which`; i[1..] are its axes and sizes. */
static void more(const char *name, int inputs, dt_shape a, dt_shape b, dt_shape out, const int64_t *i, int n, float f,
                 dt_tensor (*build)(const op_case *, dt_graph *, const dt_tensor *), void (*real)(const op_case *, double *const *, double *))
{
    op_case c = shape_case(name, a, out);
    c.inputs = inputs, c.shape[1] = b, c.f = f;
    for (int k = 0; k < n; k++) c.i[k] = i[k];
    c.build = build, c.real = real;
    check(&c);
}

/* (outer, n, inner) around an axis. */
static void around(const dt_shape *s, int64_t axis, int64_t *outer, int64_t *n, int64_t *inner)
{
    *outer = *inner = 1;
    for (int i = 0; i < s->dims; i++) *(i < axis ? outer : i == axis ? n : inner) = i == axis ? s->n[i] : (i < axis ? *outer : *inner) * s->n[i];
}

/* ---- reductions: i: which, mask, unbiased ---- */

enum { MIN, VAR, LSE };
static dt_tensor build_reduction(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    unsigned mask = (unsigned)c->i[1];
    if (c->i[0] == MIN) return map_min(g, in[0], mask);
    return c->i[0] == VAR ? map_var(g, in[0], mask, (int)c->i[2]) : dt__logsumexp(g, in[0], mask);
}
static void real_reduction(const op_case *c, double *const *in, double *out)
{
    int64_t n = count(&c->out), all = count(&c->shape[0]), terms = all / n;
    double mean[512];
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < n; i++) {
            if (pass) mean[i] = c->i[0] == VAR ? out[i] / (double)terms : 0.0;
            out[i] = c->i[0] == MIN ? INFINITY : 0.0;
        }
        for (int64_t k = 0; k < all; k++) {
            int64_t at[DT_MAX_DIMS], i = 0;
            unravel(&c->shape[0], k, at);
            for (int a = 0; a < c->shape[0].dims; a++)
                if (!(c->i[1] >> a & 1)) i = i * c->shape[0].n[a] + at[a];
            if (c->i[0] == MIN) out[i] = fmin(out[i], in[0][k]);
            else if (c->i[0] == LSE) out[i] += exp(in[0][k]);
            else out[i] += pass ? (in[0][k] - mean[i]) * (in[0][k] - mean[i]) / (double)(terms - c->i[2]) : in[0][k];
        }
    }
    for (int64_t i = 0; i < n && c->i[0] == LSE; i++) out[i] = log(out[i]);
}
static void test_more_reductions(void)
{
    static const char *const names[] = { "min", "var", "logsumexp", "unbiased var" };
    static const int64_t sizes[] = { 3, 2, 5, 4 };
    for (int op = 0; op < 4; op++)
        for (int dims = 1; dims <= 4; dims++)
            for (int mask = 1; mask < 1 << dims; mask++)
                for (int keep = 0; keep < 2; keep++) {
                    dt_shape in = dt__shape(dims, sizes[0], sizes[1], sizes[2], sizes[3]), out = dt_shape0();
                    int64_t i[4] = { op % 3 == 0 && op ? VAR : op, (int64_t)(keep ? (unsigned)mask | DT_KEEP : (unsigned)mask), op == 3, 0 };
                    char name[96];
                    for (int a = 0; a < dims; a++)
                        if (!(mask >> a & 1) || keep) out.n[out.dims++] = mask >> a & 1 ? 1 : in.n[a];
                    snprintf(name, sizeof name, "%s of %d axes, mask 0x%x%s", names[op], dims, (unsigned)mask, keep ? ", kept" : "");
                    more(name, 1, in, dt_shape0(), out, i, 3, 0.0f, build_reduction, real_reduction);
                }
}

/* The bytes of a tensor of any type, and its type. */
static const void *elements(const dt_graph *g, dt_tensor t) { return dt__at(g, t)->data; }
static dt_dtype type_of(const dt_graph *g, dt_tensor t) { return (dt_dtype)dt__at(g, t)->dtype; }

/* ---- softmax: i: axis ---- */

static dt_tensor build_along(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    return dt_softmax(g, in[0], c->i[0] == -1 ? DT_LAST : 1u << (c->i[0] + 3) % 3);
}
static void real_along(const op_case *c, double *const *in, double *out)
{
    int64_t outer, n = 1, inner;
    around(&c->out, c->i[0] < 0 ? c->i[0] + c->out.dims : c->i[0], &outer, &n, &inner);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            double sum = 0.0;
            for (int64_t j = 0; j < n; j++) sum += exp(in[0][(o * n + j) * inner + i]);
            for (int64_t j = 0; j < n; j++) out[(o * n + j) * inner + i] = exp(in[0][(o * n + j) * inner + i]) / sum;
        }
}
static void test_along(void)
{
    static const int order[3] = { 1, 0, 2 };
    float values[4 * 5 * 7];
    dt_graph *g = NULL;
    dt_tensor x, both, rows;
    for (int axis = -3; axis < 3; axis++) {
        int64_t i[3] = { axis, 0, 0 };
        char name[96];
        snprintf(name, sizeof name, "softmax along axis %d", axis);
        more(name, 1, dt_shape3(4, 5, 7), dt_shape0(), dt_shape3(4, 5, 7), i, 1, 0.0f, build_along, real_along);
    }
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error()); /* over axes 0 and 2 together: those of the permuted matrix (5, 4 * 7) */
    for (int k = 0; k < 140; k++) values[k] = (float)(k * k % 23) * 0.25f;
    x = dt_tensor_of(g, DT_F32, dt_shape3(4, 5, 7), values);
    both = dt_softmax(g, x, 5u);
    rows = dt_softmax(g, dt_reshape(g, dt_permute(g, x, order), dt_shape2(5, 28)), DT_LAST);
    rows = dt_permute(g, dt_reshape(g, rows, dt_shape3(5, 4, 7)), order);
    tap_ok(!dt_graph_result(g) && !memcmp(dt_value(g, both), dt_value(g, rows), sizeof values), "softmax over two axes");
    dt_graph_close(&g);
}

/* ---- gather, top_k, concat: i: which, axis, sizes ---- */

static dt_shape along_with(dt_shape s, int64_t axis, int64_t n)
{
    s.n[axis] = n;
    return s;
}
static int32_t pick(int64_t k, int64_t n) { return (int32_t)((k * k + 3 * k) % 7 % n); }
static dt_tensor picks(dt_graph *g, dt_shape s, int64_t n)
{
    int32_t index[512];
    for (int64_t k = 0; k < dt_shape_count(s); k++) index[k] = pick(k, n);
    return dt_tensor_of(g, DT_I32, s, index);
}
static dt_tensor build_index(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    int axis = (int)c->i[1];
    dt_shape s = along_with(c->shape[0], axis, c->i[2]);
    if (c->i[0] == 0) return dt_gather(g, in[0], axis, picks(g, s, c->shape[0].n[axis]));
    return dt_top_k(g, in[0], c->i[2], NULL);
}
static void real_index(const op_case *c, double *const *in, double *out)
{
    int64_t outer, n = 1, inner, m = c->i[2];
    around(&c->shape[0], c->i[1], &outer, &n, &inner);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t j = 0; j < m; j++)
            for (int64_t i = 0; i < inner; i++) {
                int64_t at = (o * m + j) * inner + i, other = (o * n + pick(at, n)) * inner + i;
                if (c->i[0] == 2) { /* the j-th largest: as many as j are larger */
                    for (int64_t k = 0; k < n; k++) {
                        int64_t larger = 0;
                        for (int64_t l = 0; l < n; l++) larger += in[0][o * n + l] > in[0][o * n + k];
                        if (larger == j) out[at] = in[0][o * n + k];
                    }
                } else out[at] = in[0][other];
            }
}
static dt_tensor build_concat(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    dt_tensor all[16];
    for (int k = 0; k < 16; k++) all[k] = in[k % c->inputs];
    if (c->i[0] == 0) return dt_concat(g, all, c->i[2], (int)c->i[1]);
    map_chunk(g, in[0], (int)c->i[1], c->i[2], all); /* chunks in turned order */
    for (int64_t k = 0; k < c->i[2] / 2; k++) {
        dt_tensor t = all[k];
        all[k] = all[c->i[2] - 1 - k], all[c->i[2] - 1 - k] = t;
    }
    return dt_concat(g, all, c->i[2], (int)c->i[1]);
}
static void real_concat(const op_case *c, double *const *in, double *out)
{
    int64_t outer, n = 1, inner, at = 0;
    around(&c->out, c->i[1], &outer, &n, &inner);
    memset(out, 0, 8 * (size_t)count(&c->out));
    for (int64_t k = 0; k < c->i[2]; k++) {
        int source = c->i[0] ? 0 : (int)(k % c->inputs);
        int64_t length = c->i[0] == 2 ? n / c->i[2] : c->shape[source].n[c->i[1]], pitch = c->shape[source].n[c->i[1]];
        int64_t from = c->i[0] == 2 ? n - (k + 1) * length : 0;
        for (int64_t o = 0; o < outer; o++)
            for (int64_t e = 0; e < length * inner; e++) out[(o * n + at) * inner + e] = in[source][(o * pitch + from) * inner + e];
        at += length;
    }
}
static void test_indices(void)
{
    dt_shape s = dt_shape3(3, 5, 4);
    for (int axis = 0; axis < 3; axis++) {
        char name[96];
        int64_t i[5] = { 0, axis, 7, 2, 0 };
        snprintf(name, sizeof name, "gather along axis %d", axis);
        more(name, 1, s, s, along_with(s, axis, 7), i, 3, 0.0f, build_index, real_index);
        for (i[2] = 2; i[2] <= 11; i[2] += 3) {
            dt_shape b = along_with(s, axis, 2);
            snprintf(name, sizeof name, "concat of %d along axis %d", (int)i[2], axis);
            more(name, 2, s, b, along_with(s, axis, (i[2] + 1) / 2 * s.n[axis] + i[2] / 2 * 2), i, 3, 0.0f, build_concat, real_concat);
        }
        i[0] = 2, i[2] = s.n[axis] == 4 ? 2 : s.n[axis];
        snprintf(name, sizeof name, "chunks of axis %d, turned round", axis);
        more(name, 1, s, s, s, i, 3, 0.0f, build_concat, real_concat);
    }
    for (int64_t k = 1; k <= 9; k += 4) {
        int64_t i[4] = { 2, 1, k, 0 };
        more("top_k", 1, dt_shape2(6, 9), s, dt_shape2(6, k), i, 3, 0.0f, build_index, real_index);
    }
}

/* ---- normalisations: i: which; inputs x [, mean, var], parameters behind them ---- */

static dt_tensor build_norm(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    return c->i[0] ? dt_layernorm(g, in[0], "n", c->f) : dt_rmsnorm(g, in[0], "n", c->f);
}
static void real_norm(const op_case *c, double *const *in, double *out)
{
    int64_t n = c->out.n[c->out.dims - 1];
    const double *weight = in[c->inputs], *bias = in[c->inputs + 1];
    for (int64_t r = 0; r < count(&c->out) / n; r++) {
        const double *x = in[0] + r * n;
        double mean = 0.0, var = 0.0;
        for (int64_t k = 0; k < n && c->i[0]; k++) mean += x[k] / (double)n;
        for (int64_t k = 0; k < n; k++) var += (x[k] - mean) * (x[k] - mean) / (double)n;
        for (int64_t k = 0; k < n; k++) out[r * n + k] = (x[k] - mean) / sqrt(var + (double)c->f) * weight[k] + (c->i[0] ? bias[k] : 0.0);
    }
}
static void test_norms(void)
{
    for (int op = 0; op < 2; op++)
        for (int dims = 1; dims <= 4; dims++) {
            op_case c = shape_case("", dt__shape(dims, 4, 5, 3, 2), dt__shape(dims, 4, 5, 3, 2));
            snprintf(c.name, sizeof c.name, "%s, %d axes", op ? "layernorm" : "rmsnorm", dims);
            c.inputs = 1;
            c.i[0] = op, c.f = op == 1 ? 1e-2f : 1e-3f;
            c.build = build_norm, c.real = real_norm;
            check(&c);
        }
}

/* ---- losses: i: which ---- */

static dt_tensor build_loss(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    if (c->i[0] == 0) return dt_error_loss(g, DT_MSE, in[0], in[1]);
    if (c->i[0] == 1) return dt_error_loss(g, DT_BCE, dt_scale(g, in[0], 8.0f), in[1]);
    if (c->i[0] == 2) return dt_loss(g, in[0]);
    return dt_cross_entropy(g, in[0], dt_tensor_of(g, DT_I32, dt_shape2(2, 3), c->token), c->f);
}
static void real_loss(const op_case *c, double *const *in, double *out)
{
    int64_t n = count(&c->shape[0]), cols = c->shape[0].n[2], valid = 0;
    out[0] = 0.0;
    for (int64_t i = 0; i < n && c->i[0] < 3; i++) {
        double x = in[0][i], t = in[1] ? in[1][i] : 0.0;
        out[0] += (c->i[0] == 0 ? (x - t) * (x - t) : c->i[0] == 1 ? log1p(exp(-fabs(8.0 * x))) + fmax(8.0 * x, 0.0) - 8.0 * x * t : x) / (double)n;
    }
    for (int64_t r = 0; r < n / cols && c->i[0] == 3; r++) {
        const double *x = in[0] + r * cols;
        double sum = 0.0;
        if (c->token[r] < 0) continue;
        valid++;
        for (int64_t i = 0; i < cols; i++) sum += exp(x[i]);
        for (int64_t i = 0; i < cols; i++) out[0] += (log(sum) - x[i]) * ((double)c->f / (double)cols + (i == c->token[r] ? 1.0 - (double)c->f : 0.0));
    }
    if (c->i[0] == 3) out[0] /= (double)valid;
}
static void test_losses(void)
{
    static const char *const names[] = { "mse", "bce_logits", "loss", "cross_entropy, smoothing 0.2" };
    for (int op = 0; op < 4; op++) {
        op_case c = shape_case(names[op], dt_shape3(2, 3, 11), dt_shape0());
        c.inputs = op < 2 ? 2 : 1, c.shape[1] = c.shape[0], c.f = 0.2f, c.i[0] = op;
        for (int i = 0; i < 6; i++) c.token[i] = i == 2 ? -1 : 2 * i;
        c.build = build_loss, c.real = real_loss;
        check(&c);
    }
}

/* ---- scalar references, on every instruction set ---- */

enum { MOST = 1100 };
typedef struct ref_rows {
    float x[7 * MOST], dy[7 * MOST], gamma[MOST], y[7 * MOST], dx[7 * MOST], dgamma[MOST], scratch[MOST];
} ref_rows;

/* y and dx of one row: 0 softmax, 1 rmsnorm (and dgamma), 2 bce against gamma. */
static void ref_row(ref_rows *w, int op, int64_t r, int64_t n)
{
    const float *x = w->x + r * n, *dy = w->dy + r * n;
    float *y = w->y + r * n, *dx = w->dx + r * n, *e = w->scratch, max = ref_row_max(x, n), sum;
    if (op == 0) {
        for (int64_t i = 0; i < n; i++) e[i] = ref_expf(x[i] - max);
        sum = ref_row_sum(e, n);
        for (int64_t i = 0; i < n; i++) y[i] = e[i] / sum;
        sum = ref_row_dot(dy, y, n);
        for (int64_t i = 0; i < n; i++) dx[i] = (dy[i] - sum) * y[i];
    } else if (op == 1) {
        float r1 = 1.0f / sqrtf(ref_row_dot(x, x, n) / (float)n + 1e-5f), c, g[MOST];
        memset(g, 0, sizeof g);
        for (int64_t i = 0; i < n; i++) {
            e[i] = x[i] * r1;
            y[i] = e[i] * w->gamma[i];
            g[i] = dy[i] * w->gamma[i];
            w->dgamma[i] = fmaf(dy[i], e[i], w->dgamma[i]);
        }
        c = ref_row_dot(g, e, n) / (float)n;
        for (int64_t i = 0; i < n; i++) {
            float s = e[i] * c;
            dx[i] = (g[i] - s) * r1;
        }
    } else
        for (int64_t i = 0; i < n; i++) {
            float u = ref_expf(x[i] > 0.0f ? -x[i] : x[i]), v = 1.0f + u, lost = (u - (v - 1.0f)) / v, tail = ref_log(v) + lost, d;
            y[i] = fmaf(-x[i], w->gamma[i], x[i] > 0.0f ? x[i] : 0.0f) + tail;
            d = (x[i] > 0.0f ? 1.0f : u) / (1.0f + u) - w->gamma[i];
            dx[i] = dy[i] * d;
        }
}

static dt_tensor row_op(dt_graph *g, int op, dt_tensor x, dt_tensor gamma)
{
    dt_shape stats = dt_shape2(dt__rows(dt__at(g, x)), 2);
    dt__node n = dt__node_make(DT__OP_RMSNORM, dt_shape_of(g, x), x, gamma, dt__none());
    n.f = 1e-5f;
    if (op == 1) return dt__push(g, &n, &stats);
    return op ? dt__map_op(g, DT__OP_BCE, 0.0f, x, gamma) : dt_softmax(g, x, 2u);
}

/* An eager graph with the kernels of instruction set `isa` and `threads` threads. */
static dt_graph *graph_on(int isa, int threads)
{
    dt_graph *g = NULL;
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    g->kernels = dt__isa_table(isa);
    dt__pool_close(&g->pool);
    if (dt__pool_open(&g->pool, threads)) tap_bail("%s", dt_last_error());
    return g;
}

static void test_rows_exact(int isa, int threads)
{
    static const int64_t sizes[] = { 1, 3, 31, 32, 33, 64, 100, 1000, 1025 };
    static const char *const names[] = { "softmax", "rmsnorm", "bce" };
    static ref_rows w;
    for (int op = 0; op < 3; op++) {
        int same = 1;
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            int64_t n = sizes[k], rows = threads > 1 ? 7 : 5;
            dt_graph *g = graph_on(isa, threads);
            dt_tensor x, gamma, y;
            int broadcast = op == 1;
            for (int64_t i = 0; i < rows * n; i++) w.x[i] = 9.0f * draw(0), w.dy[i] = draw(0);
            for (int64_t i = 0; i < n; i++) w.gamma[i] = draw(1), w.dgamma[i] = 0.0f;
            if (!broadcast) w.gamma[0] = w.gamma[n - 1];
            for (int64_t r = 0; r < rows; r++) ref_row(&w, op, r, n);
            x = dt_tensor_of(g, DT_F32, dt_shape2(rows, n), w.x);
            gamma = dt_tensor_of(g, DT_F32, dt_shape1(n), w.gamma);
            y = row_op(g, op, x, op == 2 ? dt_expand(g, gamma, dt_shape2(rows, n)) : gamma);
            if (dt_backward(g, dt_sum(g, dt_mul(g, y, dt_tensor_of(g, DT_F32, dt_shape2(rows, n), w.dy)), DT_ALL))) tap_bail("%s", dt_last_error());
            same &= !memcmp(dt_value(g, y), w.y, 4 * (size_t)(rows * n)) && !memcmp(dt_value(g, dt_grad(g, x)), w.dx, 4 * (size_t)(rows * n));
            if (op == 1) same &= !memcmp(dt_value(g, dt_grad(g, gamma)), w.dgamma, 4 * (size_t)n);
            dt_graph_close(&g);
        }
        tap_ok(same, "R5 R9 %s, value and gradient, are the scalar text's bits; %s, %d threads", names[op], dt__isa_table(isa)->name, threads);
    }
}

/* Small probabilities keep their digits: the loss of x = 40, t = 1 is exp(-40). */
static void test_bce_digits(int isa)
{
    const dt__kernels *k = dt__isa_table(isa);
    double worst = 0.0;
    for (float x = -90.0f; x < 90.0f; x += 0.37f) {
        float t = x > 0.0f ? 1.0f : 0.0f, y;
        double want = log1p(exp(-fabs((double)x)));
        k->binary(DT__OP_BCE, &y, &x, 1, &t, 1, 1);
        if (fabs((double)x) < 87.0) worst = fmax(worst, fabs((double)y - want) / want);
    }
    tap_ok(worst < 4e-7, "bce of a sure right answer to its last digits, error %.1e; %s", worst, k->name);
}

/* The gradient of a gather is one chain per element in index order; ties of top_k go to the lower index. */
static void test_index_order(void)
{
    enum { N = 1000, M = 7 };
    static float x[N], zeros[M], want[M];
    static int32_t index[N];
    static const float tied[8] = { 1, 5, -2, 5, 5, -0.0f, 0, 1 };
    static const int32_t order[8] = { 1, 3, 4, 0, 7, 5, 6, 2 };
    dt_graph *g = graph_on(0, 1);
    dt_tensor t, places, y;
    for (int i = 0; i < N; i++) x[i] = 1e4f * draw(0), index[i] = pick(i, M);
    for (int i = 0; i < N; i++) want[index[i]] = want[index[i]] + x[i];
    t = dt_tensor_of(g, DT_F32, dt_shape1(M), zeros);
    y = dt_gather(g, t, 0, dt_tensor_of(g, DT_I32, dt_shape1(N), index));
    dt_backward(g, dt_sum(g, dt_mul(g, y, dt_tensor_of(g, DT_F32, dt_shape1(N), x)), DT_ALL));
    tap_same_bits(dt_value(g, dt_grad(g, t)), want, M, "R3 the gradient of a gather is a chain in token order");
    t = dt_tensor_of(g, DT_F32, dt_shape2(1, 8), tied);
    y = dt_top_k(g, t, 8, &places);
    tap_ok(!memcmp(elements(g, places), order, sizeof order) && dt_value(g, y)[3] == 1.0f && type_of(g, places) == DT_I32, "top_k: ties go to the lower index");
    dt_graph_close(&g);
}

/* ---- storage types ---- */

static uint32_t code_of(const dt__kernels *k, int dtype, float x)
{
    uint32_t code = 0; /* little-endian */
    k->convert(dtype, &code, DT_F32, &x, 1);
    return code;
}
static int is_nan_code(int dtype, uint32_t code) { return isnan(ref_number(dtype, code)) != 0; }

static void test_codes(const dt__kernels *k, int dtype)
{
    int bits = 8 * dt__format_of[dtype].bytes, wide = 1, back = 1, ties = 1;
    uint32_t half = 1u << (bits - 1);
    for (uint32_t code = 0; code < 1u << bits; code++) {
        float x;
        double want = ref_number(dtype, code);
        k->convert(DT_F32, &x, dtype, &code, 1);
        wide &= isnan(want) ? isnan(x) != 0 : (double)x == want && !signbit(x) == !(code & half);
        back &= is_nan_code(dtype, code) ? is_nan_code(dtype, code_of(k, dtype, x)) : code_of(k, dtype, x) == code;
    }
    for (uint32_t code = 0; code + 1 < half && !is_nan_code(dtype, code) && !isinf(ref_number(dtype, code)); code++) {
        double low = ref_number(dtype, code), high = ref_number(dtype, code + 1), step = code ? low - ref_number(dtype, code - 1) : high;
        float middle;
        uint32_t even = code & 1 ? code + 1 : code;
        if (!isfinite(high)) step = low - ref_number(dtype, code - 1), high = low + step; /* what would come next */
        middle = (float)((low + high) / 2.0);
        for (uint32_t sign = 0; sign < 2; sign++) {
            float m = sign ? -middle : middle;
            uint32_t s = sign * half;
            ties &= code_of(k, dtype, m) == (even | s);
            ties &= code_of(k, dtype, nextafterf(m, 0.0f)) == (code | s);
            ties &= code_of(k, dtype, nextafterf(m, m * INFINITY)) == ((code + 1) | s);
        }
    }
    tap_ok(wide, "%s: each of its %d codes widens to its number; %s", dt__format_of[dtype].name, 1 << bits, k->name);
    tap_ok(back, "%s: and rounds back to its code; %s", dt__format_of[dtype].name, k->name);
    tap_ok(ties, "%s: ties go to even, and each side of a tie to its neighbour; %s", dt__format_of[dtype].name, k->name);
    ties = isinf(ref_number(dtype, code_of(k, dtype, 3e38f * 2.0f))) || dtype == DT_F8_E4M3;
    ties = ties && is_nan_code(dtype, code_of(k, dtype, NAN)) && is_nan_code(dtype, code_of(k, dtype, -NAN));
    if (dtype == DT_F8_E4M3) /* 464 is the tie of 448 and the code of NaN */
        ties = ties && code_of(k, dtype, 464.0f) == 0x7e && code_of(k, dtype, 465.0f) == 0x7f && code_of(k, dtype, -INFINITY) == 0xff;
    if (dtype == DT_F16) ties = ties && code_of(k, dtype, 65519.99f) == 0x7bff && code_of(k, dtype, 65520.0f) == 0x7c00;
    tap_ok(ties, "%s: overflow and NaN; %s", dt__format_of[dtype].name, k->name);
}

/* Every 4099th float against the nearest of two neighbours in double, in long and odd runs. */
static void test_rounding(const dt__kernels *k, int dtype)
{
    static float x[1 << 20];
    static uint16_t wide[1 << 20];
    int64_t n = 0, wrong = 0, bytes = dt__format_of[dtype].bytes;
    for (uint64_t u = 0; u < 1ull << 32; u += 4099) {
        uint32_t word = (uint32_t)u;
        if (n < (1 << 20) - 3) memcpy(&x[n++], &word, 4);
    }
    k->convert(dtype, wide, DT_F32, x, n);
    for (int64_t i = 0; i < n; i++) {
        uint32_t code = bytes == 2 ? wide[i] : ((const uint8_t *)wide)[i], magnitude = code & ((1u << (8 * bytes - 1)) - 1u);
        double value = ref_number(dtype, magnitude), real = fabs((double)x[i]);
        double below = magnitude ? ref_number(dtype, magnitude - 1) : -INFINITY, above = ref_number(dtype, magnitude + 1);
        if (isnan(x[i])) wrong += !isnan(value);
        else if (isfinite(value)) wrong += (isfinite(below) && fabs(below - real) < fabs(value - real)) || (isfinite(above) && fabs(above - real) < fabs(value - real));
    }
    tap_ok(!wrong, "%s: every 4099th float goes to the nearest number; %s", dt__format_of[dtype].name, k->name);
}

static void test_integers(const dt__kernels *k)
{
    static const float x[9] = { 1.9f, -1.9f, 2147483520.0f, 2147483648.0f, -2147483648.0f, -3e9f, NAN, INFINITY, -0.5f };
    static const int32_t want[9] = { 1, -1, 2147483520, INT32_MAX, INT32_MIN, INT32_MIN, 0, INT32_MAX, 0 };
    static const int32_t from[5] = { 16777217, 16777219, -16777217, INT32_MAX, INT32_MIN };
    static const float to[5] = { 16777216.0f, 16777220.0f, -16777216.0f, 2147483648.0f, -2147483648.0f };
    int32_t got[9];
    float back[5];
    k->convert(DT_I32, got, DT_F32, x, 9);
    k->convert(DT_F32, back, DT_I32, from, 5);
    tap_same_bits(got, want, 9, "fp32 to int32 truncates, and ends at the ends");
    tap_same_bits(back, to, 5, "R14 int32 to fp32 rounds to nearest even");
}

/* Ops that move data do the same to every type as to fp32: values that all types hold. */
static void test_moving(int dtype)
{
    static const int order[3] = { 2, 0, 1 };
    float x[60], want[512], table[15];
    dt_graph *g = graph_on(0, 1);
    dt_tensor a, y[2], loss;
    for (int i = 0; i < 60; i++) x[i] = (float)(i * 5 % 13 - 6);
    for (int i = 0; i < 15; i++) table[i] = (float)(i % 8);
    for (int form = 0; form < 2; form++) {
        dt_tensor t[3], e;
        a = dt_tensor_of(g, DT_F32, dt_shape3(3, 4, 5), x);
        e = dt_tensor_of(g, DT_F32, dt_shape2(3, 5), table);
        t[0] = form ? dt_cast(g, a, (dt_dtype)dtype) : a;
        e = form ? dt_cast(g, e, (dt_dtype)dtype) : e;
        t[1] = dt_slice(g, dt_permute(g, t[0], order), 0, 1, 4); /* (3,3,4) */
        t[1] = dt_reshape(g, dt_concat(g, (dt_tensor[2]){ t[1], dt_slice(g, t[1], 2, 0, 1) }, 2, 2), dt_shape3(3, 3, 5));
        t[2] = dt_expand(g, dt_embed(g, e, picks(g, dt_shape1(3), 3)), dt_shape3(3, 3, 5));
        y[form] = dt_gather(g, dt_concat(g, t, 3, 1), 1, picks(g, dt_shape3(3, 7, 5), 10));
    }
    tap_ok(type_of(g, y[1]) == (dt_dtype)dtype, "%s goes through the ops that move data: %s", dt__format_of[dtype].name, dt_last_error());
    y[1] = dt_cast(g, y[1], DT_F32);
    memcpy(want, dt_value(g, y[0]), 4 * 105);
    tap_same_bits(dt_value(g, y[1]), want, 105, "and they do to it what they do to fp32");
    loss = dt_sum(g, dt_mul(g, y[1], y[0]), DT_ALL);
    dt_backward(g, loss);
    tap_ok(dtype == DT_I32 ? !dt__at(g, a)->grad : type_of(g, dt_grad(g, a)) == DT_F32 && !dt_graph_result(g),
           "its gradient is fp32, and stops at int32");
    dt_graph_close(&g);
}

/* The gradient of a cast passes unchanged; bytes go in and come out as they are. */
static void test_casts(void)
{
    static const float x[3] = { 1.0009765625f, 7.3f, -3.14159f }, w[3] = { 0.1f, -0.7f, 3e-9f };
    static const uint16_t half[3] = { 0x3c01, 0x0001, 0xfbff };
    dt_graph *g = graph_on(0, 1);
    dt_tensor t = dt_tensor_of(g, DT_F32, dt_shape1(3), x), h = dt_tensor_of(g, DT_F16, dt_shape1(3), half), y;
    tap_ok(dt_cast(g, t, DT_F32).id == t.id, "a cast to the type that it is does nothing");
    tap_ok(!memcmp(elements(g, h), half, sizeof half) && !dt_value(g, h) && dt_value(g, dt_cast(g, h, DT_F32))[0] == x[0], "fp16 from memory");
    y = dt_sum(g, dt_mul(g, dt_cast(g, dt_cast(g, t, DT_F8_E5M2), DT_F32), dt_tensor_of(g, DT_F32, dt_shape1(3), w)), DT_ALL);
    y = dt_add(g, y, dt_sum(g, dt_cast(g, h, DT_F32), DT_ALL));
    dt_backward(g, y);
    tap_same_bits(dt_value(g, dt_grad(g, t)), w, 3, "the gradient of a cast passes unchanged");
    tap_ok(dt_value(g, dt_grad(g, h))[2] == 1.0f, "a tensor of another type has an fp32 gradient");
    t = dt_tensor_of(g, DT_F32, dt_shape1(3), x);
    tap_ok(!dt__at(g, dt_detach(g, t))->needs_grad && dt__at(g, t)->needs_grad, "detach: a constant to the gradient");
    dt_graph_close(&g);
}

/* ---- PyTorch: golden/reduce.safetensors ---- */

static tap_golden *golden;
static const tap_tensor *gold(const char *name, const char *part)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", name, part);
    return tap_golden_find(golden, full);
}

/* `name` up to the point, and the axes behind it as a mask. */
static unsigned mask_of(const char *name)
{
    unsigned mask = 0;
    for (const char *p = strchr(name, '.'); p && p[1] >= '0' && p[1] <= '5'; p++) mask |= 1u << (p[1] - '0');
    return mask;
}
static int is(const char *name, const char *what) { return !strncmp(name, what, strlen(what)) && (name[strlen(what)] == '.' || !name[strlen(what)]); }

static dt_tensor torch_op(dt_graph *g, const char *name, const dt_tensor *in)
{
    unsigned mask = mask_of(name);
    int axis = strchr(name, '.') ? strchr(name, '.')[1] - '0' : 0;
    dt_tensor three[3];
    if (is(name, "min")) return map_min(g, in[0], mask);
    if (is(name, "var")) return map_var(g, in[0], mask, 0);
    if (is(name, "unbiased")) return map_var(g, in[0], mask, 1);
    if (is(name, "logsumexp")) return dt__logsumexp(g, in[0], mask);
    if (is(name, "softmax")) return dt_softmax(g, in[0], 1u << axis);
    if (is(name, "gather")) return dt_gather(g, in[0], axis, in[1]);
    if (is(name, "concat")) return three[0] = three[2] = in[0], three[1] = in[1], dt_concat(g, three, 3, axis);
    if (is(name, "top_k")) return dt_top_k(g, in[0], 3, NULL);
    if (is(name, "smooth")) return dt_cross_entropy(g, in[0], in[1], 0.1f);
    if (is(name, "mse")) return dt_error_loss(g, DT_MSE, in[0], in[1]);
    if (is(name, "bce")) return dt_error_loss(g, DT_BCE, in[0], in[1]);
    if (is(name, "cast")) return dt_cast(g, dt_cast(g, in[0], is(name, "cast.bf16") ? DT_BF16 : DT_F16), DT_F32);
    return is(name, "rmsnorm") ? row_op(g, 1, in[0], in[1]) : dt__none();
}

/* Returns whether the library has the op. */
static int torch_case(const char *name)
{
    static const char *const parts[] = { "x", "logits", "a", "target", "b", "index", "targets" };
    dt_graph *g = graph_on(0, 1);
    dt_tensor in[6], y, loss;
    const char *part[6];
    const tap_tensor *out = gold(name, "out");
    int n = 0;
    double worst;
    for (int p = 0; p < 7; p++) {
        const tap_tensor *t = gold(name, parts[p]);
        dt_shape s = dt_shape0();
        if (!t) continue;
        for (int i = 0; i < t->rank; i++) s.n[s.dims++] = t->shape[i];
        part[n] = parts[p];
        in[n++] = dt_tensor_of(g, t->dtype[0] == 'F' ? DT_F32 : DT_I32, s, t->data);
    }
    if (is(name, "rmsnorm")) part[n] = "weight", in[n++] = dt_tensor_of(g, DT_F32, dt_shape1(33), (const float *)gold(name, "weight")->data);
    y = torch_op(g, name, in);
    if (!y.id) return dt_graph_close(&g), 0;
    worst = tap_error(dt_value(g, y), (const float *)out->data, out->count, NULL);
    loss = dt_mul(g, dt_reshape(g, y, dt_shape1(out->count)), dt_tensor_of(g, DT_F32, dt_shape1(out->count), (const float *)gold(name, "w")->data));
    if (dt_backward(g, dt_sum(g, loss, DT_ALL))) tap_bail("%s: %s", name, dt_last_error());
    for (int i = 0; i < n; i++) {
        char full[40];
        snprintf(full, sizeof full, "grad.%s", part[i]);
        if (type_of(g, in[i]) == DT_I32) continue;
        worst = fmax(worst, tap_error(dt_value(g, dt_grad(g, in[i])), (const float *)gold(name, full)->data, gold(name, full)->count, NULL));
    }
    tap_ok(worst <= 1e-5, "%s and its gradients as PyTorch (error %.1e)", name, worst);
    dt_graph_close(&g);
    return 1;
}
static void test_torch(void)
{
    int cases = 0;
    golden = tap_golden_open("reduce.safetensors");
    for (int i = 0; i < golden->count; i++) {
        char name[TAP_NAME], *end;
        snprintf(name, sizeof name, "%s", golden->tensor[i].name);
        end = strstr(name, ".out");
        if (!end) continue;
        *end = 0;
        cases += torch_case(name);
    }
    tap_golden_close(golden);
    tap_ok(cases == 33, "PyTorch has been asked about %d ops and shapes", cases);
}

/* ---- errors ---- */

static dt_tensor more_wrong(dt_graph *g, int which)
{
    dt_tensor x = dt_tensor_of(g, DT_F32, dt_shape2(4, 3), ones), i = dt_tensor_of(g, DT_I32, dt_shape2(4, 1), tokens_good), v = dt_tensor_of(g, DT_F32, dt_shape1(4), ones);
    dt_tensor high = dt_tensor_of(g, DT_I32, dt_shape2(4, 1), tokens_bad), h = dt_cast(g, x, DT_BF16), list[2], parts[4];
    list[0] = x;
    switch (which) {
    case 0: return map_min(g, x, 4);
    case 1: return map_var(g, x, 4, 0);
    case 2: return dt_map2(g, DT_EXP, x, x);
    case 3: return dt__logsumexp(g, x, 8);
    case 4: return dt_softmax(g, x, 4u);
    case 5: return dt_softmax(g, h, 2u);
    case 6: return dt_rmsnorm(g, x, "n", -1.0f);
    case 7: return dt_layernorm(g, x, "n", NAN);
    case 8: return dt_map(g, DT_GREATER_EQUAL, x);
    case 9: return dt_cross_entropy(g, x, dt_reshape(g, i, dt_shape1(4)), 1.5f);
    case 10: return dt_error_loss(g, DT_MSE, x, v);
    case 11: return dt_error_loss(g, DT_MSE, dt_reshape(g, v, dt_shape2(4, 1)), i);
    case 12: return dt_error_loss(g, DT_BCE, x, v);
    case 13: return dt_loss(g, i);
    case 14: return dt_gather(g, x, 2, i);
    case 15: return dt_gather(g, x, 1, high);
    case 16: return dt_gather(g, x, 0, i);
    case 17: return dt_gather(g, x, 1, x);
    case 18: return dt_top_k(g, x, 4, NULL);
    case 19: return dt_top_k(g, i, 1, parts);
    case 20: return list[1] = v, dt_concat(g, list, 2, 0);
    case 21: return list[1] = h, dt_concat(g, list, 2, 0);
    case 22: return dt_concat(g, list, 1, 5);
    case 23: return dt_concat(g, list, 0, 0);
    case 24: return dt_map(g, DT_DIV, x);
    case 25: return dt_map2(g, (dt_function)99, x, x);
    case 26: return dt_cast(g, x, (dt_dtype)6);
    case 27: return dt_tensor_of(g, (dt_dtype)-1, dt_shape1(4), ones);
    case 28: return dt_full(g, dt_shape1(0), 1.0f);
    case 29: return dt_add(g, x, h);
    case 30: return dt_embed(g, h, dt_reshape(g, h, dt_shape1(12)));
    case 31: return dt_matmul(g, h, h, 0, 1);
    case 32: return dt_top_k(g, dt_sum(g, x, DT_ALL), 1, NULL);
    default: return dt_layernorm(g, h, "n", 1e-5f);
    }
}
static void test_more_errors(void)
{
    static const char *const want[] = { /* the op, and a word that only this sentence has */
        "max: axis mask", "mean: axis mask", "does not take 2 tensors", "logsumexp: axis mask", "softmax: axis mask 0x4 names an axis",
        "SOFTMAX: input 0 holds bf16 and must hold fp32: dt_cast it to DT_F32", "rmsnorm: eps", "layernorm: eps", "does not take 1 tensors", "smoothing 1.5",
        "mse: x (4,3) and target (4)", "SUB: input 1 holds int32 and must hold fp32", "bce: x (4,3)", "LOSS: input 0 holds int32", "gather: there is no axis 2",
        "GATHER: index 9 at 2 is outside [0, 3)", "gather: index, int32 (4,1), must be int32 and fit (4,3) in all axes but 0", "gather: index, fp32",
        "top_k: k = 4 is outside 1..3", "TOP_K: input 0 holds int32", "concat: tensor 1, fp32 (4)", "concat: tensor 1, bf16 (4,3)", "concat: there is no axis 5",
        "concat: needs at least one tensor", "does not take 1 tensors", "dt_function 99 does not take 2 tensors", "dt_cast: dtype is 6", "dt_tensor_of: dtype is -1",
        "FULL: shape (0)", "ADD: input 1 holds bf16", "embed: needs a table (V,C) and int32 tokens", "MATMUL: input 0 holds bf16", "top_k: there is no axis -1",
        "LAYERNORM: input 0 holds bf16",
    };
    for (int i = 0; i < (int)(sizeof want / sizeof *want); i++) {
        dt_graph *g = graph_on(0, 1);
        dt_tensor t = more_wrong(g, i);
        if (!tap_ok(!t.id && dt_graph_result(g) && strstr(dt_last_error(), want[i]), "error %d says \"%s\"", i, want[i])) tap_note("it says: %s", dt_last_error());
        dt_graph_close(&g);
    }
}
static dt_tensor returns_bf16(dt_graph *g, dt_tensor x, const void *user) { return (void)user, dt_cast(g, x, DT_BF16); }
static dt_tensor flat_loss(dt_graph *g, dt_tensor x, const void *user) { return (void)user, dt_loss(g, dt_reshape(g, x, dt_shape1(dt_shape_count(dt_shape_of(g, x))))); }
static void test_segment_errors(void)
{
    static const struct { dt_segment_fn build; const char *says; } bad[] = { { returns_bf16, "a segment returns fp32 numbers, this one bf16" }, { flat_loss, "loss: axis 0 must count" } };
    for (int i = 0; i < 2; i++) {
        dt__segment_plan *plan = NULL;
        dt_segment s;
        s.name = "bad", s.build = bad[i].build, s.user = NULL;
        tap_ok(segment_plan(dt__graph_new(0, 0), &s, dt_shape3(2, 4, 6), dt_shape2(2, 4), 0, 0, NULL, &plan) == DT_E_SHAPE && strstr(dt_last_error(), bad[i].says), "a segment's error: %s", bad[i].says);
        dt__segment_close(&plan);
    }
}

/* ---- planned segments ---- */

/* Every op of this file; small types live in saved and temporary memory. (B,T,8) -> (B,T,8) */
static dt_tensor second_zoo(dt_graph *g, dt_tensor x, const void *user)
{
    int64_t b = dt_dim(g, x, 0), t = dt_dim(g, x, 1);
    dt_tensor w = dt_param(g, "w", dt_shape2(8, 8), DT_INIT_NORMAL, 0.4f), part[4], places, y, z, all[6];
    (void)user;
    y = dt_rmsnorm(g, dt_sub(g, x, dt_mean(g, x, 3)), "rms", 1e-5f);
    y = dt_add(g, dt_softmax(g, y, 2u), dt_softmax(g, dt_matmul(g, y, w, 0, 0), DT_LAST));
    z = dt__logsumexp(g, dt_sub(g, y, map_min(g, y, 4u | DT_KEEP)), 4u | DT_KEEP);
    y = dt_add(g, y, dt_mul(g, z, map_var(g, x, 4u | DT_KEEP, 1)));
    part[0] = dt_top_k(g, y, 3, &places);                                            /* (B,T,3) */
    y = dt_add(g, y, dt_sum(g, part[0], 4 | DT_KEEP));
    z = dt_gather(g, dt_expand(g, dt_reshape(g, w, dt_shape3(1, 8, 8)), dt_shape3(b, 8, 8)), 1, dt_expand(g, dt_slice(g, places, 2, 0, 1), dt_shape3(b, t, 8)));
    y = dt_add(g, dt_add(g, y, z), dt_full(g, dt_shape1(8), 0.25f));
    z = dt_gather(g, w, 0, dt_slice(g, dt_reshape(g, dt_expand(g, dt_slice(g, places, 2, 0, 1), dt_shape3(b, t, 8)), dt_shape2(b * t, 8)), 0, 0, t)); /* a parameter's scatter */
    y = dt_add(g, y, z);
    map_chunk(g, y, 2, 4, part);
    for (int i = 0; i < 6; i++) all[i] = dt_cast(g, part[i % 4], i & 1 ? DT_BF16 : DT_F16);
    for (int i = 0; i < 6; i++) all[i] = dt_cast(g, all[i], DT_F8_E5M2);
    z = dt_cast(g, dt_concat(g, all, 6, 2), DT_F32); /* (B,T,12) */
    z = dt_slice(g, z, 2, 2, 10);
    y = dt_add(g, dt_mul(g, y, dt_detach(g, z)), dt_layernorm(g, z, "last", 1e-2f));
    return dt_rmsnorm(g, y, "out", 1e-5f);
}

/* ---- models of one's own, trained; the program calls itself with: train NAME FILE [launcher's options] ---- */

enum { LENGTH = 12, HORIZON = 4 };

/* (B,T) tokens -> (B,T,8) */
static dt_tensor all_in(dt_graph *g, dt_tensor x, const void *user)
{
    dt_tensor table = dt_param(g, "table", dt_shape2(256, 8), DT_INIT_NORMAL, 0.5f);
    (void)user;
    return dt_embed(g, table, x);
}
static dt_tensor all_out(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_cross_entropy(g, dt_linear(g, x, "head", 256), dt_targets(g), 0.1f);
}
/* A series of numbers: tokens / 256. */
static dt_tensor series(dt_graph *g, dt_tensor tokens) { return dt_scale(g, dt_cast(g, tokens, DT_F32), 1.0f / 256.0f); }
static dt_tensor series_in(dt_graph *g, dt_tensor x, const void *user) { return (void)user, series(g, x); } /* (B,T) -> (B,T) */
/* What comes next is a x + b; a = 1 and b = 0 at first. Loss of all places, or of the last HORIZON. */
static dt_tensor forecast(dt_graph *g, dt_tensor x, const void *user)
{
    dt_tensor target = series(g, dt_targets(g));
    int64_t t = dt_dim(g, x, 1);
    if (user) x = dt_slice(g, x, 1, t - HORIZON, t), target = dt_slice(g, target, 1, t - HORIZON, t);
    x = dt_mul(g, x, dt_param(g, "a", dt_shape1(1), DT_INIT_ONES, 0.0f));
    return dt_error_loss(g, DT_MSE, dt_add(g, x, dt_param(g, "b", dt_shape1(1), DT_INIT_ZEROS, 0.0f)), target);
}
/* Is a byte of the last HORIZON a letter after m? The target is a part of the input. */
static dt_tensor question(dt_graph *g, dt_tensor x, const void *user)
{
    int64_t t = dt_dim(g, x, 1);
    dt_tensor seen = dt_slice(g, x, 1, 0, t - HORIZON), asked = dt_slice(g, x, 1, t - HORIZON, t);
    (void)user;
    asked = dt_cast(g, dt_cast(g, dt_scale(g, asked, 256.0f / 109.0f), DT_I32), DT_F32); /* 0, 1, or 2 above 217 */
    return dt_error_loss(g, DT_BCE, dt_linear(g, seen, "guess", HORIZON), asked);
}

static const dt_segment all_ops[] = { { "in", all_in, NULL }, { "zoo", second_zoo, NULL }, { "zoo2", second_zoo, NULL }, { "out", all_out, NULL } };
static const dt_segment forecaster[] = { { "in", series_in, NULL }, { "out", forecast, NULL } }, horizon[] = { { "in", series_in, NULL }, { "out", forecast, all_ops } },
                        asker[] = { { "in", series_in, NULL }, { "out", question, NULL } };

/* What the forecaster's loss must be at first, in double: over one split's samples [0, n) or the first batch. */
static double persistence(const dt_trainer *t, dt_split split, int64_t n, int64_t from)
{
    int32_t tokens[LENGTH], targets[LENGTH];
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        int64_t sample = split == DT_TRAIN ? dt__sample_at(dt_data_samples(t->data, DT_TRAIN), (uint64_t)t->recipe.seed, i) : i;
        if (dt_data_fetch(t->data, split, sample, tokens, targets)) return NAN;
        for (int64_t k = from; k < LENGTH; k++) sum += pow((tokens[k] - targets[k]) / 256.0, 2.0) / (double)(n * (LENGTH - from));
    }
    return sum;
}

static int train(int argc, char **argv)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    float validation = 0.0f;
    char text[8];
    int kind = !strcmp(argv[2], "all") ? 0 : !strcmp(argv[2], "forecast") ? 1 : !strcmp(argv[2], "horizon") ? 2 : 3;
    static const dt_segment *const lists[] = { all_ops, forecaster, horizon, asker };
    dt_result r = dt_launch(&argc, &argv);
    recipe.model = dt_model_segments(lists[kind], kind ? 2 : 4, 256);
    recipe.data = argv[3], recipe.sequence = LENGTH, recipe.batch = 32, recipe.micro_batch = 16, recipe.data_shards = 4, recipe.steps = 2;
    recipe.validation = 0.1f;
    layout.threads = 1, layout.output.quiet = 1, layout.output.eval_every = 0;
    if (!r) r = dt_trainer_open(&t, &recipe, &layout);
    if (!r) r = dt_trainer_evaluate(t, 0, &validation);
    if (!r) r = dt_trainer_step(t, &info);
    if (r) return dt_fail("train");
    if (kind && (dt_trainer_sample(t, "The ", 5, NULL, text) != DT_E_USAGE || !strstr(dt_last_error(), "no logits"))) return 1;
    if (dt_trainer_is_root(t) && (kind == 1 || kind == 2)) {
        double want = persistence(t, DT_TRAIN, 32, kind == 2 ? LENGTH - HORIZON : 0);
        double seen = persistence(t, DT_VALIDATION, dt_data_samples(t->data, DT_VALIDATION), kind == 2 ? LENGTH - HORIZON : 0);
        printf("errors %.1e %.1e, units of %d, %d samples\n", fabs((double)info.loss - want) / want, fabs((double)validation - seen) / seen, (int)t->e.p.rows,
               (int)dt_data_samples(t->data, DT_VALIDATION));
        if (!(fabs((double)info.loss - want) <= 1e-5 * want) || !(fabs((double)validation - seen) <= 1e-5 * seen)) return 1;
        if (dt_data_samples(t->data, DT_VALIDATION) % t->e.p.rows == 0) return 1; /* the last unit is meant to be filled up */
    }
    r = dt_trainer_step(t, &info);
    if (r) return dt_fail("train");
    if (dt_trainer_is_root(t)) printf("loss %a validation %a sha256 %s\n", (double)info.loss, (double)validation, dt_trainer_hash(t));
    else dt_trainer_hash(t);
    dt_trainer_close(&t);
    return 0;
}

/* Runs this program again; its output, or nothing when it fails. */
static void run_train(const char *self, const char *name, const char *file, const char *options, char *text, size_t size)
{
    char command[1024];
    size_t used;
    FILE *p;
    snprintf(command, sizeof command, "'%s' train %s %s %s", self, name, file, options);
    p = popen(command, "r");
    if (!p) tap_bail("cannot run %s", command);
    used = fread(text, 1, size - 1, p);
    text[used] = 0;
    if (pclose(p)) text[0] = 0;
}
static void test_trained(const char *self)
{
    static const char *const names[] = { "all", "forecast", "horizon", "bce" };
    static const char *const layouts[] = { "--ranks 1", "--ranks 2 --launch threads", "--ranks 2 --launch processes", "--ranks 3 --launch threads" };
    char file[] = "/tmp/dtrain_XXXXXX", text[4][1024];
    int fd = mkstemp(file);
    if (fd < 0 || close(fd) || prose_generate(file, 20011, 1)) tap_bail("no data: %s", dt_last_error());
    for (int m = 0; m < 4; m++)
        for (int l = 0; l < 4; l++) {
#ifdef DT_NO_THREADS
            if (l % 2) continue;
#endif
            run_train(self, names[m], file, layouts[l], text[l], sizeof text[l]);
            if (!tap_ok(strstr(text[l], "sha256 ") && !strcmp(text[l], text[0]), "R12 model \"%s\" on %s: %s", names[m], layouts[l], l ? "the same bits" : "trains to the loss that it must have"))
                tap_note("%s", text[l]);
        }
    remove(file);
}

int main(int argc, char **argv)
{
    if (argc > 3 && !strcmp(argv[1], "train")) return train(argc, argv);
    test_more_reductions();
    test_along();
    test_indices();
    test_norms();
    test_losses();
    for (int isa = 0; isa < DT__ISA_COUNT; isa++) {
        if (!dt__isa_table(isa) || !dt__isa_runs(isa)) continue;
        test_rows_exact(isa, 1);
        test_rows_exact(isa, 2);
        test_bce_digits(isa);
        for (int dtype = DT_BF16; dtype <= DT_F8_E5M2; dtype++) test_codes(dt__isa_table(isa), dtype), test_rounding(dt__isa_table(isa), dtype);
        test_integers(dt__isa_table(isa));
    }
    for (int dtype = DT_I32; dtype <= DT_F8_E5M2; dtype++) test_moving(dtype);
    test_casts();
    test_index_order();
    test_torch();
    test_more_errors();
    test_segment_errors();
    test_planned("the other ops", second_zoo, NULL, dt_shape3(3, 5, 8), 0, 0);
    test_trained(argv[0]);
    return tap_done();
}
