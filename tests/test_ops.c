/* test_ops.c: every public op of the graph, and those of examples/conv.h. Forward is compared with a plain text in double; the gradient with central
 * differences of that text in double, so that the only error in sight is that of the float op. Then: gradients that add
 * up, errors that stick, and planned segments, which must have the bits of eager graphs.
 *
 *     cc -O2 -I.. test_ops.c -lm -lpthread && ./a.out
 *
 * A new op gets a row in the list of cases: what it builds, and the same in double. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "segment.h"
#include "maps.h"
#include "tap.h"
#include "../examples/conv.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

/* Largest difference / largest value of a tensor. The gradients of normalisations cancel, so they get more room. */
#define FORWARD_LIMIT 1e-6
#define GRADIENT_LIMIT 1e-5

static const uint64_t seed = 0x0123456789abcdefu;

/* ---- cases ----------------------------------------------------------------------------------- */

enum { INPUTS = 6 };
typedef struct op_case op_case;
struct op_case {
    char name[96];
    int inputs; /* given; parameters that the op makes come behind them */
    dt_shape shape[INPUTS];
    int positive; /* bit i: input i is drawn from [0.5, 2) */
    dt_tensor (*build)(const op_case *c, dt_graph *g, const dt_tensor *in);
    void (*real)(const op_case *c, double *const *in, double *out);
    dt_shape out;
    int64_t i[DT_MAX_DIMS];
    float f;
    int32_t token[64];
    int shards; /* Vt of the graph */
};

static int64_t count(const dt_shape *s) { return dt_shape_count(*s); }

/* The indices of element `flat` of a shape. */
static void unravel(const dt_shape *s, int64_t flat, int64_t *at)
{
    for (int i = s->dims - 1; i >= 0; i--) {
        at[i] = flat % s->n[i];
        flat /= s->n[i];
    }
}
/* The element of `s` at indices `at` of the shape `to` that s broadcasts to. */
static int64_t element(const dt_shape *s, const dt_shape *to, const int64_t *at)
{
    int64_t flat = 0;
    for (int i = 0; i < s->dims; i++) {
        int64_t index = at[i + to->dims - s->dims];
        flat = flat * s->n[i] + (s->n[i] == 1 ? 0 : index);
    }
    return flat;
}

/* ---- the checker -------------------------------------------------------------------------------- */

static double loss_of(const op_case *c, double *const *in, const float *w, double *out)
{
    double loss = 0.0;
    c->real(c, in, out);
    for (int64_t i = 0; i < count(&c->out); i++) loss += out[i] * (double)w[i];
    return loss;
}

typedef struct run_state {
    dt_graph *g;
    dt_tensor in[INPUTS], y;
    int inputs;
    double *x[INPUTS];
} run_state;

static float draw(int positive)
{
    static uint32_t state = 54321;
    state = state * 1664525u + 1013904223u;
    return positive ? 0.5f + 1.5f * (float)(state >> 8) / 16777216.0f : 3.0f * ((float)(state >> 8) / 16777216.0f - 0.5f);
}

/* Elements of an input; and its values or (of: its gradient), those of a parameter put together from tensor shards. */
static int64_t size_of(const dt_graph *g, dt_tensor in)
{
    const dt__node *n = dt__at(g, in);
    return n->op == DT__OP_PARAM ? dt_shape_count(g->params[n->param].shape) : dt__count(n);
}
static void values_of(const dt_graph *g, dt_tensor in, dt_tensor of, float *values)
{
    const dt__node *n = dt__at(g, in);
    const dt__param *p = &g->params[n->param];
    static float shards[4 * 4096];
    if (n->op != DT__OP_PARAM) {
        memcpy(values, dt_value(g, of), 4 * (size_t)dt__count(n));
        return;
    }
    for (int64_t v = 0; v < p->own_shards; v++)
        memcpy(shards + v * dt__shard_step(p), dt_value(g, of) + v * dt__node_step(g, of.id), 4 * (size_t)dt__shard_floats(p));
    dt__param_whole(p, shards, values);
}

/* Builds y, and adds to the inputs the parameters that the op made. */
static void case_build(const op_case *c, run_state *s)
{
    memset(s, 0, sizeof *s);
    if (dt_graph_open(&s->g, seed)) tap_bail("%s", dt_last_error());
    s->g->tensor_shards = s->g->own_shards = c->shards ? c->shards : 1;
    for (int i = 0; i < c->inputs; i++) {
        float values[1024];
        for (int64_t k = 0; k < count(&c->shape[i]); k++) values[k] = draw(c->positive >> i & 1);
        s->in[i] = dt_tensor_of(s->g, DT_F32, c->shape[i], values);
    }
    s->inputs = c->inputs;
    s->y = c->build(c, s->g, s->in);
    for (int32_t id = 1; id < s->g->count; id++)
        if (s->g->nodes[id].op == DT__OP_PARAM) s->in[s->inputs++] = dt__tensor(s->g, id);
    if (dt_graph_result(s->g)) tap_bail("%s: %s", c->name, dt_last_error());
    for (int i = 0; i < s->inputs; i++) {
        int64_t n = size_of(s->g, s->in[i]);
        float values[4096];
        s->x[i] = (double *)malloc(8 * (size_t)n);
        values_of(s->g, s->in[i], s->in[i], values);
        for (int64_t k = 0; s->x[i] && k < n; k++) s->x[i][k] = (double)values[k];
        if (!s->x[i]) tap_bail("no memory");
    }
}

/* Largest difference of the gradient of input i and central differences, over the largest gradient of the case. */
static double case_gradient(const op_case *c, run_state *s, int i, const float *w, double *out, double *scale)
{
    dt_tensor of = dt_grad(s->g, s->in[i]);
    float grad[4096];
    double worst = 0.0;
    if (of.id) values_of(s->g, s->in[i], of, grad);
    for (int64_t k = 0; k < size_of(s->g, s->in[i]); k++) {
        double x = s->x[i][k], h = 1e-5, up, down, slope, error;
        s->x[i][k] = x + h, up = loss_of(c, s->x, w, out);
        s->x[i][k] = x - h, down = loss_of(c, s->x, w, out);
        s->x[i][k] = x;
        slope = (up - down) / (2.0 * h);
        error = of.id ? fabs((double)grad[k] - slope) : INFINITY;
        if (!(error <= worst)) worst = error;
        *scale = fmax(*scale, fabs(slope));
    }
    return worst;
}

static void check(const op_case *c)
{
    run_state s;
    dt_tensor weights;
    float w[4096], want[4096];
    double out[4096], forward, gradient = 0.0, scale = 1e-3;
    int64_t n;
    case_build(c, &s);
    n = dt__count(dt__at(s.g, s.y));
    if (!dt__same_shape(&dt__at(s.g, s.y)->shape, &c->out)) {
        tap_ok(0, "%s: wrong shape", c->name);
        return;
    }
    for (int64_t k = 0; k < n; k++) w[k] = draw(0);
    c->real(c, s.x, out);
    for (int64_t k = 0; k < n; k++) want[k] = (float)out[k];
    forward = tap_error(dt_value(s.g, s.y), want, n, NULL);
    weights = dt_tensor_of(s.g, DT_F32, c->out, w);
    if (dt_backward(s.g, dt_sum(s.g, dt_mul(s.g, s.y, weights), DT_ALL))) tap_bail("%s: %s", c->name, dt_last_error());
    for (int i = 0; i < s.inputs; i++) gradient = fmax(gradient, case_gradient(c, &s, i, w, out, &scale));
    gradient /= scale;
    tap_ok(forward <= FORWARD_LIMIT && gradient <= GRADIENT_LIMIT, "%s (forward %.0e, gradient %.0e)", c->name, forward, gradient);
    for (int i = 0; i < s.inputs; i++) free(s.x[i]);
    dt_graph_close(&s.g);
}

/* ---- elementwise ---------------------------------------------------------------------------------- */

static double real_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
static double real_neg(double x) { return -x; }
static double real_scale(double x) { return x * -1.75; }
static double real_rsqrt(double x) { return 1.0 / sqrt(x); }
static double real_gelu(double x) { return 0.5 * x * (1.0 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))); }
static double real_silu(double x) { return x * real_sigmoid(x); }
static double real_relu(double x) { return x > 0.0 ? x : 0.0; }
static double real_squared(double x) { return x * x; }
static double real_reciprocal(double x) { return 1.0 / x; }
static double real_clamp(double x) { return x < -0.5 ? -0.5 : x > 0.75 ? 0.75 : x; }

static dt_tensor scale_by(dt_graph *g, dt_tensor x) { return dt_scale(g, x, -1.75f); }
static dt_tensor clamp_to(dt_graph *g, dt_tensor x) { return dt_clamp(g, x, -0.5f, 0.75f); }

static const struct {
    const char *name;
    dt_tensor (*op)(dt_graph *, dt_tensor);
    double (*real)(double);
    int positive;
} unary[] = {
    { "neg", map_neg, real_neg, 0 }, { "scale", scale_by, real_scale, 0 }, { "exp", map_exp, exp, 0 }, { "log", map_log, log, 1 },
    { "tanh", dt_tanh, tanh, 0 }, { "sqrt", map_sqrt, sqrt, 1 }, { "rsqrt", map_rsqrt, real_rsqrt, 1 }, { "gelu", dt_gelu, real_gelu, 0 },
    { "silu", dt_silu, real_silu, 0 }, { "sigmoid", map_sigmoid, real_sigmoid, 0 }, { "relu", dt_relu, real_relu, 0 }, { "abs", map_abs, fabs, 0 },
    { "square", map_square, real_squared, 0 }, { "reciprocal", map_reciprocal, real_reciprocal, 1 },
    { "clamp", clamp_to, real_clamp, 0 },
};

static dt_tensor build_unary(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    dt_tensor x = c->i[1] ? dt_scale(g, in[0], 0.5f) : in[0];
    return unary[c->i[0]].op(g, x);
}
static void real_unary_all(const op_case *c, double *const *in, double *out)
{
    for (int64_t i = 0; i < count(&c->out); i++) out[i] = unary[c->i[0]].real(c->i[1] ? 0.5 * in[0][i] : in[0][i]);
}

static double real_add(double a, double b) { return a + b; }
static double real_sub(double a, double b) { return a - b; }
static double real_mul(double a, double b) { return a * b; }
static double real_div(double a, double b) { return a / b; }

static const struct {
    const char *name;
    dt_tensor (*op)(dt_graph *, dt_tensor, dt_tensor);
    double (*real)(double, double);
} binary[] = {
    { "add", dt_add, real_add }, { "sub", dt_sub, real_sub }, { "mul", dt_mul, real_mul }, { "div", map_div, real_div },
    { "maximum", map_maximum, fmax }, { "minimum", map_minimum, fmin },
};

static dt_tensor build_binary(const op_case *c, dt_graph *g, const dt_tensor *in) { return binary[c->i[0]].op(g, in[0], in[1]); }
static void real_binary(const op_case *c, double *const *in, double *out)
{
    for (int64_t i = 0; i < count(&c->out); i++) {
        int64_t at[DT_MAX_DIMS];
        unravel(&c->out, i, at);
        out[i] = binary[c->i[0]].real(in[0][element(&c->shape[0], &c->out, at)], in[1][element(&c->shape[1], &c->out, at)]);
    }
}

static const struct { int da, db, d; int64_t a[4], b[4], n[4]; } pair[] = {
    { 3, 3, 3, { 2, 5, 7 }, { 2, 5, 7 }, { 2, 5, 7 } }, { 3, 1, 3, { 2, 5, 7 }, { 7 }, { 2, 5, 7 } },
    { 3, 2, 3, { 2, 5, 7 }, { 5, 7 }, { 2, 5, 7 } },    { 3, 3, 3, { 2, 5, 7 }, { 2, 1, 7 }, { 2, 5, 7 } },
    { 3, 3, 3, { 2, 5, 7 }, { 2, 5, 1 }, { 2, 5, 7 } }, { 3, 3, 3, { 2, 1, 7 }, { 1, 5, 1 }, { 2, 5, 7 } },
    { 1, 3, 3, { 1 }, { 2, 5, 7 }, { 2, 5, 7 } },       { 0, 2, 2, { 0 }, { 3, 4 }, { 3, 4 } },
    { 2, 2, 2, { 3, 1 }, { 1, 4 }, { 3, 4 } },          { 4, 3, 4, { 2, 1, 3, 1 }, { 5, 1, 4 }, { 2, 5, 3, 4 } },
    { 0, 0, 0, { 0 }, { 0 }, { 0 } },                   { 2, 4, 4, { 1, 4 }, { 2, 3, 5, 1 }, { 2, 3, 5, 4 } },
    { 2, 2, 2, { 1, 7 }, { 1, 7 }, { 1, 7 } },          { 1, 1, 1, { 300 }, { 1 }, { 300 } },
    { 4, 4, 4, { 2, 3, 5, 4 }, { 2, 3, 1, 1 }, { 2, 3, 5, 4 } }, { 4, 4, 4, { 2, 1, 5, 4 }, { 2, 3, 1, 4 }, { 2, 3, 5, 4 } },
};
enum { PAIRS = (int)(sizeof pair / sizeof *pair) };
static op_case pair_case(int p)
{
    op_case c;
    memset(&c, 0, sizeof c);
    c.inputs = 2;
    c.shape[0] = dt__shape(pair[p].da, pair[p].a[0], pair[p].a[1], pair[p].a[2], pair[p].a[3]);
    c.shape[1] = dt__shape(pair[p].db, pair[p].b[0], pair[p].b[1], pair[p].b[2], pair[p].b[3]);
    c.out = dt__shape(pair[p].d, pair[p].n[0], pair[p].n[1], pair[p].n[2], pair[p].n[3]);
    return c;
}

static void test_elementwise(void)
{
    op_case c;
    for (size_t i = 0; i < sizeof unary / sizeof *unary; i++)
        for (int computed = 0; computed < 2; computed++) { /* of a leaf, and of a value that the backward pass needs again */
            memset(&c, 0, sizeof c);
            snprintf(c.name, sizeof c.name, "%s%s", unary[i].name, computed ? " of a value" : "");
            c.inputs = 1, c.shape[0] = c.out = dt_shape3(3, 5, 7);
            c.positive = unary[i].positive;
            c.build = build_unary, c.real = real_unary_all;
            c.i[0] = (int64_t)i, c.i[1] = computed;
            check(&c);
        }
    for (size_t i = 0; i < sizeof binary / sizeof *binary; i++)
        for (int p = 0; p < PAIRS; p++) {
            c = pair_case(p);
            snprintf(c.name, sizeof c.name, "%s, %.30s and %.30s", binary[i].name, dt__show(&c.shape[0]).at, dt__show(&c.shape[1]).at);
            c.positive = 2;
            c.build = build_binary, c.real = real_binary;
            c.i[0] = (int64_t)i;
            check(&c);
        }
}

/* Which side gets the gradient of maximum, minimum, clamp, relu and abs; +0 on the other, whatever stands there. */
static void taken(const char *name, dt_graph *g, dt_tensor y, dt_tensor t, const float *want, int64_t n)
{
    static const float w[6] = { 2, -3, 5, -7, 11, -13 };
    if (!y.id || dt_backward(g, dt_sum(g, dt_mul(g, y, dt_tensor_of(g, DT_F32, dt_shape1(n), w)), DT_ALL))) tap_bail("%s: %s", name, dt_last_error());
    tap_same_bits(dt_value(g, dt_grad(g, t)), want, n, name);
    dt_graph_close(&g);
}
static void test_taken(void)
{
    static const float a[6] = { 1, 2, 0.0f, NAN, -INFINITY, 4 }, b[6] = { 1, 3, -0.0f, 1, INFINITY, -4 };
    static const float to_a[6] = { 0, 0, 0, -7, 0, -13 }, to_b[6] = { 2, -3, 5, 0, 11, 0 }, min_a[6] = { 0, -3, 0, -7, 11, 0 }, min_b[6] = { 2, 0, 5, 0, 0, -13 };
    static const float x[6] = { -2, -1, 0.5f, 1, 2, -0.0f }, in_range[6] = { 0, -3, 5, -7, 0, -13 };
    static const float zeros[6] = { 0.0f, -0.0f, -1, 1, 1e-45f, -1e-45f }, relu[6] = { 0, 0, 0, -7, 11, 0 }, sign[6] = { 0, 0, -5, -7, 11, 13 };
    for (int which = 0; which < 6; which++) {
        dt_graph *g = NULL;
        dt_tensor s, t;
        if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
        s = dt_tensor_of(g, DT_F32, dt_shape1(6), a), t = dt_tensor_of(g, DT_F32, dt_shape1(6), b);
        if (which == 0) taken("R14 maximum: a gets it where a > b, or is NaN", g, map_maximum(g, s, t), s, to_a, 6);
        if (which == 1) taken("R14 maximum: else b", g, map_maximum(g, s, t), t, to_b, 6);
        if (which == 2) taken("R14 minimum: a gets it where a < b, or is NaN", g, map_minimum(g, s, t), s, min_a, 6);
        if (which == 3) taken("R14 minimum: else b", g, map_minimum(g, s, t), t, min_b, 6);
        if (which == 4) t = dt_tensor_of(g, DT_F32, dt_shape1(6), x), taken("clamp: the bounds belong to the range", g, dt_clamp(g, t, -1.0f, 1.0f), t, in_range, 6);
        if (which == 5) t = dt_tensor_of(g, DT_F32, dt_shape1(6), zeros), taken("relu: +0 at and below 0", g, dt_relu(g, t), t, relu, 6);
    }
    {
        dt_graph *g = NULL;
        dt_tensor t;
        if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
        t = dt_tensor_of(g, DT_F32, dt_shape1(6), zeros);
        taken("abs: +0 at 0", g, map_abs(g, t), t, sign, 6);
    }
}

/* A comparison passes nothing on. */
static void test_no_gradient(void)
{
    static const float a[4] = { 0, 0, 2, 3 }, b[4] = { 0, 2, 0, 1 }, to_a[4] = { 1, 1, 1, 1 };
    dt_graph *g = NULL;
    dt_tensor s, t;
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    s = dt_tensor_of(g, DT_F32, dt_shape1(4), a), t = map_greater_equal(g, s, dt_tensor_of(g, DT_F32, dt_shape1(4), b));
    if (dt_backward(g, dt_sum(g, dt_add(g, t, s), DT_ALL))) tap_bail("%s", dt_last_error());
    tap_ok(!dt__at(g, t)->needs_grad && !memcmp(dt_value(g, dt_grad(g, s)), to_a, sizeof to_a), "a comparison passes no gradient on");
    dt_graph_close(&g);
}

/* ---- shapes ------------------------------------------------------------------------------------------ */

static dt_tensor build_reshape(const op_case *c, dt_graph *g, const dt_tensor *in) { return dt_reshape(g, in[0], c->out); }
static void real_copy(const op_case *c, double *const *in, double *out) { memcpy(out, in[0], 8 * (size_t)count(&c->out)); }

static dt_tensor build_permute(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    int axes[DT_MAX_DIMS];
    for (int i = 0; i < c->out.dims; i++) axes[i] = (int)c->i[i];
    return dt_permute(g, in[0], axes);
}
static void real_permute(const op_case *c, double *const *in, double *out)
{
    for (int64_t i = 0; i < count(&c->out); i++) {
        int64_t at[DT_MAX_DIMS], from[DT_MAX_DIMS];
        unravel(&c->out, i, at);
        for (int a = 0; a < c->out.dims; a++) from[c->i[a]] = at[a];
        out[i] = in[0][element(&c->shape[0], &c->shape[0], from)];
    }
}

static dt_tensor build_slice(const op_case *c, dt_graph *g, const dt_tensor *in) { return dt_slice(g, in[0], (int)c->i[0], c->i[1], c->i[2]); }
static void real_slice(const op_case *c, double *const *in, double *out)
{
    int axis = (int)(c->i[0] < 0 ? c->i[0] + c->out.dims : c->i[0]);
    for (int64_t i = 0; i < count(&c->out); i++) {
        int64_t at[DT_MAX_DIMS];
        unravel(&c->out, i, at);
        at[axis] += c->i[1];
        out[i] = in[0][element(&c->shape[0], &c->shape[0], at)];
    }
}

static dt_tensor build_expand(const op_case *c, dt_graph *g, const dt_tensor *in) { return dt_expand(g, in[0], c->out); }
static void real_expand(const op_case *c, double *const *in, double *out)
{
    for (int64_t i = 0; i < count(&c->out); i++) {
        int64_t at[DT_MAX_DIMS];
        unravel(&c->out, i, at);
        out[i] = in[0][element(&c->shape[0], &c->out, at)];
    }
}

static dt_tensor build_combine(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    (void)c;
    return dt_combine(g, in[0]);
}
static void real_combine(const op_case *c, double *const *in, double *out)
{
    int64_t n = count(&c->out);
    for (int64_t i = 0; i < n; i++) {
        out[i] = 0.0;
        for (int64_t p = 0; p < c->shape[0].n[0]; p++) out[i] += in[0][p * n + i];
    }
}

static op_case shape_case(const char *name, dt_shape in, dt_shape out)
{
    op_case c;
    memset(&c, 0, sizeof c);
    snprintf(c.name, sizeof c.name, "%s", name);
    c.inputs = 1;
    c.shape[0] = in;
    c.out = out;
    return c;
}

/* All orders of four axes. */
static void test_permute(void)
{
    for (int code = 0; code < 256; code++) {
        int order[4], seen = 0;
        dt_shape in = dt_shape4(2, 3, 4, 5), out = in;
        op_case c;
        for (int i = 0; i < 4; i++) order[i] = code >> (2 * i) & 3, seen |= 1 << order[i];
        if (seen != 15) continue;
        for (int i = 0; i < 4; i++) out.n[i] = in.n[order[i]];
        c = shape_case("", in, out);
        snprintf(c.name, sizeof c.name, "permute by %d%d%d%d", order[0], order[1], order[2], order[3]);
        for (int i = 0; i < 4; i++) c.i[i] = order[i];
        c.build = build_permute, c.real = real_permute;
        check(&c);
    }
}

static void test_shapes(void)
{
    static const struct { int axis; int64_t begin, end; } cut[] = { { 0, 1, 3 }, { 1, 0, 2 }, { 2, 4, 7 }, { -1, 0, 1 }, { -2, 2, 5 }, { 0, 0, 4 } };
    op_case c = shape_case("reshape (3,4,5) to (2,30)", dt_shape3(3, 4, 5), dt_shape2(2, 30));
    c.build = build_reshape, c.real = real_copy;
    check(&c);
    c = shape_case("reshape (1,1) to ()", dt_shape2(1, 1), dt_shape0());
    c.build = build_reshape, c.real = real_copy;
    check(&c);
    test_permute();
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        dt_shape out = dt_shape3(4, 5, 7);
        out.n[cut[i].axis < 0 ? 3 + cut[i].axis : cut[i].axis] = cut[i].end - cut[i].begin;
        c = shape_case("", dt_shape3(4, 5, 7), out);
        snprintf(c.name, sizeof c.name, "slice [%d, %d) of axis %d", (int)cut[i].begin, (int)cut[i].end, cut[i].axis);
        c.i[0] = cut[i].axis, c.i[1] = cut[i].begin, c.i[2] = cut[i].end;
        c.build = build_slice, c.real = real_slice;
        check(&c);
    }
    for (int i = 0; i < 5; i++) {
        dt_shape from[5];
        from[0] = dt_shape0(), from[1] = dt_shape1(5), from[2] = dt_shape2(1, 5), from[3] = dt_shape3(3, 1, 5), from[4] = dt_shape4(1, 3, 4, 1);
        c = shape_case("", from[i], dt_shape4(2, 3, 4, 5));
        snprintf(c.name, sizeof c.name, "expand %.30s to (2,3,4,5)", dt__show(&from[i]).at);
        c.build = build_expand, c.real = real_expand;
        check(&c);
    }
    for (int64_t parts = 1; parts <= 8; parts *= 2) {
        c = shape_case("", dt_shape3(parts, 3, 5), dt_shape2(3, 5));
        snprintf(c.name, sizeof c.name, "combine of %d parts", (int)parts);
        c.build = build_combine, c.real = real_combine;
        check(&c);
    }
}

/* ---- reductions ------------------------------------------------------------------------------------------ */

static dt_tensor build_reduce(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    dt_tensor (*const op[])(dt_graph *, dt_tensor, unsigned) = { dt_sum, dt_mean, dt_max };
    return op[c->i[0]](g, in[0], (unsigned)c->i[1]);
}
static void real_reduce(const op_case *c, double *const *in, double *out)
{
    int64_t n = count(&c->out), all = count(&c->shape[0]);
    for (int64_t i = 0; i < n; i++) out[i] = c->i[0] == 2 ? -INFINITY : 0.0;
    for (int64_t k = 0; k < all; k++) {
        int64_t at[DT_MAX_DIMS], i = 0;
        unravel(&c->shape[0], k, at);
        for (int a = 0; a < c->shape[0].dims; a++)
            if (!(c->i[1] >> a & 1)) i = i * c->shape[0].n[a] + at[a];
        out[i] = c->i[0] == 2 ? fmax(out[i], in[0][k]) : out[i] + in[0][k] / (c->i[0] == 1 ? (double)(all / n) : 1.0);
    }
}

static void test_reductions(void)
{
    static const char *const names[] = { "sum", "mean", "max" };
    static const int64_t sizes[] = { 3, 2, 5, 4 };
    for (int op = 0; op < 3; op++)
        for (int dims = 0; dims <= 4; dims++)
            for (int mask = 0; mask < 1 << dims; mask++) {
                op_case c;
                dt_shape in = dt__shape(dims, sizes[0], sizes[1], sizes[2], sizes[3]), out = dt_shape0();
                for (int a = 0; a < dims; a++)
                    if (!(mask >> a & 1)) out.n[out.dims++] = in.n[a];
                c = shape_case("", in, out);
                snprintf(c.name, sizeof c.name, "%s of %d axes, mask 0x%x", names[op], dims, (unsigned)mask);
                c.i[0] = op, c.i[1] = mask == (1 << dims) - 1 && op == 0 ? (int64_t)DT_ALL : mask;
                c.build = build_reduce, c.real = real_reduce;
                check(&c);
            }
}

/* ---- matrix products ---------------------------------------------------------------------------------------- */

/* out (rows,n) = [out +] op(a) op(b) for one pair of matrices. */
static void real_product(double *out, const double *a, const double *b, int ta, int tb, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t p = 0; p < k; p++) sum += a[ta ? p * m + i : i * k + p] * b[tb ? j * k + p : p * n + j];
            out[i * n + j] = sum;
        }
}
static dt_tensor build_matmul(const op_case *c, dt_graph *g, const dt_tensor *in) { return dt_matmul(g, in[0], in[1], (int)c->i[0], (int)c->i[1]); }
static void real_matmul(const op_case *c, double *const *in, double *out)
{
    int64_t m = c->i[3], n = c->i[4], k = c->i[5];
    for (int64_t b = 0; b < c->i[2]; b++)
        real_product(out + b * m * n, in[0] + b * m * k, in[1] + (c->shape[1].dims > 2 ? b * k * n : 0), (int)c->i[0], (int)c->i[1], m, n, k);
}

/* `lead` axes of 2, 3 in front of both; or, when shared, of a alone. */
static void matmul_case(int ta, int tb, int lead, int shared, int64_t m, int64_t n, int64_t k)
{
    op_case c;
    dt_shape s = dt_shape0();
    memset(&c, 0, sizeof c);
    for (int i = 0; i < lead; i++) s.n[s.dims++] = 2 + i;
    c.i[0] = ta, c.i[1] = tb, c.i[2] = dt_shape_count(s), c.i[3] = m, c.i[4] = n, c.i[5] = k;
    c.shape[0] = c.out = s;
    c.shape[1] = shared ? dt_shape0() : s;
    c.shape[0].n[c.shape[0].dims++] = ta ? k : m, c.shape[0].n[c.shape[0].dims++] = ta ? m : k;
    c.shape[1].n[c.shape[1].dims++] = tb ? n : k, c.shape[1].n[c.shape[1].dims++] = tb ? k : n;
    c.out.n[c.out.dims++] = m, c.out.n[c.out.dims++] = n;
    c.inputs = 2;
    snprintf(c.name, sizeof c.name, "matmul %.30s%s %.30s%s", dt__show(&c.shape[0]).at, ta ? "^T" : "", dt__show(&c.shape[1]).at, tb ? "^T" : "");
    c.build = build_matmul, c.real = real_matmul;
    check(&c);
}

/* Any ranks: vectors, leading axes that broadcast. */
static void real_matmul_any(const op_case *c, double *const *in, double *out)
{
    dt_shape a = c->shape[0], b = c->shape[1], y = c->out;
    int ta = (int)c->i[0], tb = (int)c->i[1];
    int64_t m, n, k;
    if (a.dims == 1) a = dt_shape2(1, a.n[0]), ta = 0;
    if (b.dims == 1) b = dt_shape2(b.n[0], 1), tb = 0;
    m = a.n[a.dims - 2 + ta], k = a.n[a.dims - 1 - ta], n = b.n[b.dims - 1 - tb];
    y.dims = a.dims > b.dims ? a.dims - 2 : b.dims - 2; /* the leading axes */
    a.dims -= 2, b.dims -= 2;
    for (int64_t i = 0; i < count(&y); i++) {
        int64_t at[DT_MAX_DIMS];
        unravel(&y, i, at);
        real_product(out + i * m * n, in[0] + element(&a, &y, at) * m * k, in[1] + element(&b, &y, at) * k * n, ta, tb, m, n, k);
    }
}
static void test_matmul_ranks(void)
{
    static const struct { int da, db, dy; int64_t a[4], b[4], y[4]; int ta, tb; } row[] = {
        { 1, 1, 0, { 5 }, { 5 }, { 0 }, 0, 0 },
        { 1, 2, 1, { 5 }, { 5, 3 }, { 3 }, 1, 0 },
        { 2, 1, 1, { 5, 3 }, { 5 }, { 3 }, 1, 1 },
        { 3, 1, 2, { 2, 3, 5 }, { 5 }, { 2, 3 }, 0, 0 },
        { 1, 3, 2, { 5 }, { 2, 5, 3 }, { 2, 3 }, 0, 0 },
        { 1, 3, 2, { 5 }, { 2, 3, 5 }, { 2, 3 }, 0, 1 },
        { 2, 3, 3, { 3, 5 }, { 2, 5, 4 }, { 2, 3, 4 }, 0, 0 },
        { 2, 3, 3, { 5, 3 }, { 2, 4, 5 }, { 2, 3, 4 }, 1, 1 },
        { 3, 2, 3, { 2, 5, 3 }, { 5, 4 }, { 2, 3, 4 }, 1, 0 },
        { 3, 2, 3, { 2, 5, 3 }, { 4, 5 }, { 2, 3, 4 }, 1, 1 },
        { 3, 3, 3, { 1, 3, 5 }, { 2, 5, 4 }, { 2, 3, 4 }, 0, 0 },
        { 3, 3, 3, { 2, 3, 5 }, { 1, 5, 4 }, { 2, 3, 4 }, 0, 0 },
        { 4, 4, 4, { 2, 1, 3, 5 }, { 1, 3, 5, 4 }, { 2, 3, 3, 4 }, 0, 0 },
        { 4, 4, 4, { 2, 1, 5, 3 }, { 1, 3, 4, 5 }, { 2, 3, 3, 4 }, 1, 1 },
        { 4, 3, 4, { 2, 3, 3, 5 }, { 3, 4, 5 }, { 2, 3, 3, 4 }, 0, 1 },
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        op_case c;
        memset(&c, 0, sizeof c);
        c.shape[0] = dt__shape(row[i].da, row[i].a[0], row[i].a[1], row[i].a[2], row[i].a[3]);
        c.shape[1] = dt__shape(row[i].db, row[i].b[0], row[i].b[1], row[i].b[2], row[i].b[3]);
        c.out = dt__shape(row[i].dy, row[i].y[0], row[i].y[1], row[i].y[2], row[i].y[3]);
        c.i[0] = row[i].ta, c.i[1] = row[i].tb, c.inputs = 2;
        snprintf(c.name, sizeof c.name, "matmul %.30s%s %.30s%s", dt__show(&c.shape[0]).at, row[i].ta ? "^T" : "", dt__show(&c.shape[1]).at, row[i].tb ? "^T" : "");
        c.build = build_matmul, c.real = real_matmul_any;
        check(&c);
    }
}

enum { BETWEEN = 12 }; /* columns that tensor shards cut */
static dt_tensor build_linear(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    if (c->i[0] == 0) return dt_linear(g, in[0], "l", c->i[1]);
    if (c->i[0] == 2) return dt_linear_with(g, in[0], "l", c->i[1], 0.5f, DT_NO_BIAS);
    return dt_linear_with(g, dt_linear_with(g, in[0], "l", BETWEEN, 0.5f, DT_COLUMNS), "m", c->i[1], 0.5f, DT_ROWS);
}
static void real_linear(const op_case *c, double *const *in, double *out) /* in: x, then weights and biases */
{
    int64_t k = c->shape[0].n[c->shape[0].dims - 1], rows = count(&c->shape[0]) / k, n = c->i[1];
    double wide[1024];
    if (c->i[0] == 1) {
        real_product(wide, in[0], in[1], 0, 0, rows, BETWEEN, k);
        for (int64_t i = 0; i < rows * BETWEEN; i++) wide[i] += in[2][i % BETWEEN];
        real_product(out, wide, in[3], 0, 0, rows, n, BETWEEN);
    } else real_product(out, in[0], in[1], 0, 0, rows, n, k);
    for (int64_t i = 0; c->i[0] != 2 && i < rows * n; i++) out[i] += in[c->i[0] == 1 ? 4 : 2][i % n];
}

static void test_products(void)
{
    static const char *const forms[] = { "linear", "linears, of columns and of rows", "linear, no bias" };
    for (int ta = 0; ta < 2; ta++)
        for (int tb = 0; tb < 2; tb++) {
            for (int lead = 0; lead <= 2; lead++) matmul_case(ta, tb, lead, 0, 3, 4, 5);
            matmul_case(ta, tb, 0, 0, 1, 7, 1);
            if (!ta) matmul_case(0, tb, 1, 1, 3, 4, 5), matmul_case(0, tb, 2, 1, 3, 4, 5);
        }
    for (int form = 0; form < 3; form++)
        for (int shards = 1; shards <= 4; shards *= 2) {
            op_case c = shape_case("", dt_shape3(2, 3, 8), dt_shape3(2, 3, 4));
            if (form != 1 && shards > 1) continue;
            snprintf(c.name, sizeof c.name, "R6 %s, %d tensor shards", forms[form], shards);
            c.i[0] = form, c.i[1] = 4, c.shards = shards;
            c.build = build_linear, c.real = real_linear;
            check(&c);
        }
}

/* ---- embedding, normalisation, attention, dropout, loss -------------------------------------------------------- */

static dt_tensor build_embed(const op_case *c, dt_graph *g, const dt_tensor *in) { return dt_embed(g, in[0], dt_tensor_of(g, DT_I32, dt_shape2(3, 4), c->token)); }
static void real_embed(const op_case *c, double *const *in, double *out)
{
    int64_t cols = c->shape[0].n[1];
    for (int64_t i = 0; i < count(&c->out); i++) out[i] = in[0][c->token[i / cols] * cols + i % cols];
}

/* dt_layernorm with weights that are inputs instead of new parameters. */
static dt_tensor layernorm_of(dt_graph *g, dt_tensor x, dt_tensor weight, dt_tensor bias)
{
    dt__node n = dt__node_make(DT__OP_LAYERNORM, dt_shape_of(g, x), x, weight, bias);
    dt_shape stats = dt_shape2(dt__rows(dt__at(g, x)), 2);
    n.f = 1e-5f;
    return dt__push(g, &n, &stats);
}
static dt_tensor build_layernorm(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    return c->inputs == 1 ? dt_layernorm(g, in[0], "norm", 1e-5f) : layernorm_of(g, in[0], in[1], in[2]);
}
static void real_layernorm(const op_case *c, double *const *in, double *out)
{
    int64_t n = c->out.n[c->out.dims - 1];
    for (int64_t r = 0; r < count(&c->out) / n; r++) {
        const double *x = in[0] + r * n;
        double mean = 0.0, var = 0.0;
        for (int64_t i = 0; i < n; i++) mean += x[i] / (double)n;
        for (int64_t i = 0; i < n; i++) var += (x[i] - mean) * (x[i] - mean) / (double)n;
        for (int64_t i = 0; i < n; i++) out[r * n + i] = (x[i] - mean) / sqrt(var + 1e-5) * in[1][i] + in[2][i];
    }
}

/* 1/(1-p) or 0: what dropout multiplies element e of sample b with (R16). */
static double kept(float p, int64_t sample, int64_t site, int64_t e)
{
    dt__rng r = dt__rng_make(seed, DT__RNG_DROPOUT, (uint32_t)sample, 0, (uint32_t)site);
    if (p == 0.0f) return 1.0;
    return dt__rng_word(&r, (uint64_t)e) < (uint32_t)((double)p * 4294967296.0) ? 0.0 : (double)(1.0f / (1.0f - p));
}

static dt_tensor build_dropout(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    dt_dropout(g, in[0], 0.5f); /* takes site 0 */
    return dt_dropout(g, in[0], c->f);
}
static void real_dropout(const op_case *c, double *const *in, double *out)
{
    int64_t each = count(&c->out) / c->out.n[0];
    for (int64_t i = 0; i < count(&c->out); i++) out[i] = in[0][i] * kept(c->f, i / each, 1, i % each);
}

static dt_tensor build_attention(const op_case *c, dt_graph *g, const dt_tensor *in) { return attention(g, in[0], c->i[0], (int)c->i[1], c->f); }
static void real_attention_row(const op_case *c, const double *qkv, double *out, int64_t b, int64_t h, int64_t i)
{
    int64_t t = c->out.n[1], width = c->out.n[2], d = width / c->i[0], keys = c->i[1] ? i + 1 : t;
    const double *q = qkv + (b * t + i) * 3 * width + h * d;
    double score[64], max = -INFINITY, sum = 0.0, *o = out + (b * t + i) * width + h * d;
    for (int64_t j = 0; j < keys; j++) {
        const double *k = qkv + (b * t + j) * 3 * width + width + h * d;
        score[j] = 0.0;
        for (int64_t e = 0; e < d; e++) score[j] += q[e] * k[e] / sqrt((double)d);
        max = fmax(max, score[j]);
    }
    for (int64_t j = 0; j < keys; j++) sum += score[j] = exp(score[j] - max);
    for (int64_t e = 0; e < d; e++) o[e] = 0.0;
    for (int64_t j = 0; j < keys; j++) {
        const double *v = qkv + (b * t + j) * 3 * width + 2 * width + h * d;
        for (int64_t e = 0; e < d; e++) o[e] += score[j] / sum * kept(c->f, b, 0, (h * t + i) * t + j) * v[e];
    }
}
static void real_attention(const op_case *c, double *const *in, double *out)
{
    for (int64_t b = 0; b < c->out.n[0]; b++)
        for (int64_t h = 0; h < c->i[0]; h++)
            for (int64_t i = 0; i < c->out.n[1]; i++) real_attention_row(c, in[0], out, b, h, i);
}

/* i: heads, heads of the keys, causal, kind of mask: 0 none, 1 int32 (T,S), 2 float (B,T,S). */
static int sees(const op_case *c, int64_t b, int64_t i, int64_t j)
{
    int64_t t = c->shape[0].n[1], s = c->shape[1].n[1];
    if (c->i[2] && j > i + s - t) return 0;
    return !c->i[3] || (i != 2 && ((c->i[3] == 2 ? b * 7 : 0) + i * 5 + j * 3) % 4 != 0);
}
static dt_tensor build_attend(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    int64_t b = c->shape[0].n[0], t = c->shape[0].n[1], s = c->shape[1].n[1];
    dt_attention_options o;
    dt_tensor mask = dt__none();
    float numbers[512];
    int32_t words[512];
    op_case seen = *c;
    memset(&o, 0, sizeof o);
    o.heads = c->i[0], o.kv_heads = c->i[1], o.causal = (int)c->i[2], o.dropout = c->f, o.scale = c->i[4] ? 0.25f : 0.0f;
    seen.i[2] = 0;
    for (int64_t k = 0; k < b * t * s; k++) {
        words[k] = sees(&seen, k / (t * s), k / s % t, k % s) ? (k & 1 ? 7 : INT32_MIN) : 0;
        numbers[k] = words[k] ? 0.5f : k & 1 ? -0.0f : 0.0f;
    }
    if (c->i[3] == 1) mask = dt_tensor_of(g, DT_I32, dt_shape2(t, s), words);
    if (c->i[3] == 2) mask = dt_tensor_of(g, DT_F32, dt_shape3(b, t, s), numbers);
    return dt_attend(g, in[0], in[1], in[2], mask, &o);
}
static void real_attend(const op_case *c, double *const *in, double *out)
{
    int64_t batch = c->out.n[0], t = c->out.n[1], s = c->shape[1].n[1], heads = c->i[0], kv = c->i[1] ? c->i[1] : heads;
    int64_t width = c->out.n[2], d = width / heads, kv_width = kv * d;
    for (int64_t r = 0; r < batch * heads * t; r++) {
        int64_t b = r / (heads * t), h = r / t % heads, i = r % t, column = h / (heads / kv) * d;
        double score[64], max = -INFINITY, sum = 0.0, *o = out + (b * t + i) * width + h * d;
        for (int64_t j = 0; j < s; j++) {
            score[j] = 0.0;
            for (int64_t e = 0; e < d; e++) score[j] += in[0][(b * t + i) * width + h * d + e] * in[1][(b * s + j) * kv_width + column + e];
            score[j] = sees(c, b, i, j) ? score[j] * (c->i[4] ? 0.25 : 1.0 / sqrt((double)d)) : -INFINITY;
            max = fmax(max, score[j]);
        }
        for (int64_t j = 0; j < s; j++) sum += score[j] = score[j] > -INFINITY ? exp(score[j] - max) : 0.0;
        for (int64_t e = 0; e < d; e++) {
            o[e] = 0.0;
            for (int64_t j = 0; j < s; j++)
                if (score[j] > 0.0) o[e] += score[j] / sum * kept(c->f, b, 0, (h * t + i) * s + j) * in[2][(b * s + j) * kv_width + column + e];
        }
    }
}
static void test_attend(void)
{
    for (int form = 0; form < 48; form++) {
        int causal = form & 1, mask = form / 2 % 3, size = form / 6 % 4;
        int64_t t = size == 1 ? 1 : size == 2 ? 6 : 5, s = size == 0 ? 5 : size == 3 ? 3 : 6 + size, kv = form / 24 ? 2 : 4;
        op_case c = shape_case("", dt_shape3(2, t, 12), dt_shape3(2, t, 12));
        c.inputs = 3;
        c.shape[1] = c.shape[2] = dt_shape3(2, s, 3 * kv);
        c.i[0] = 4, c.i[1] = kv == 4 ? 0 : kv, c.i[2] = causal, c.i[3] = mask, c.i[4] = form % 5 == 0;
        c.f = form % 7 == 0 ? 0.3f : 0.0f;
        snprintf(c.name, sizeof c.name, "attend, %d queries, %d keys, %d of 4 heads, %s%s, dropout %g", (int)t, (int)s, (int)kv, causal ? "causal" : "full",
                 mask == 0 ? "" : mask == 1 ? ", int32 mask" : ", float mask", (double)c.f);
        c.build = build_attend, c.real = real_attend;
        check(&c);
    }
}

/* i: heads, offset, scaled. */
static const dt_rope_scaling llama3 = { 8.0, 1.0, 4.0, 8192, DT_ROPE_LLAMA3, 0, 0.0 };
static dt_tensor build_rope(const op_case *c, dt_graph *g, const dt_tensor *in) { return dt_rope(g, in[0], c->i[0], (double)c->f, c->i[1], c->i[2] ? &llama3 : NULL); }
static double rope_frequency(const op_case *c, int64_t which, int64_t d)
{
    double f = pow((double)c->f, -2.0 * (double)which / (double)d), wave = 2.0 * 3.14159265358979323846 / f, smooth;
    if (!c->i[2] || wave < 8192.0 / 4.0) return f;
    if (wave > 8192.0 / 1.0) return f / 8.0;
    smooth = (8192.0 / wave - 1.0) / (4.0 - 1.0);
    return (1.0 - smooth) * f / 8.0 + smooth * f;
}
static void real_rope(const op_case *c, double *const *in, double *out)
{
    int64_t t = c->out.n[1], d = c->out.n[2] / c->i[0], half = d / 2;
    for (int64_t r = 0; r < count(&c->out) / d; r++)
        for (int64_t k = 0; k < half; k++) {
            double angle = (double)(c->i[1] + r / c->i[0] % t) * rope_frequency(c, k, d), x = in[0][r * d + k], y = in[0][r * d + half + k];
            out[r * d + k] = x * cos(angle) - y * sin(angle);
            out[r * d + half + k] = y * cos(angle) + x * sin(angle);
        }
}
static void test_rope(void)
{
    for (int form = 0; form < 6; form++) {
        op_case c = shape_case("", dt_shape3(2, 5, 36), dt_shape3(2, 5, 36));
        c.i[0] = form & 1 ? 3 : 1, c.i[1] = form * 1000, c.i[2] = form & 2;
        c.f = form & 2 ? 500000.0f : 10000.0f;
        snprintf(c.name, sizeof c.name, "rope, %d heads, offset %d, base %g", (int)c.i[0], (int)c.i[1], (double)c.f);
        c.build = build_rope, c.real = real_rope;
        check(&c);
    }
}

/* i: stride, padding, dilation of the height, then of the width; one-dimensional cases use the last three. */
static conv_window window_of(const op_case *c)
{
    conv_window w;
    int one = c->out.dims == 3;
    memset(&w, 0, sizeof w);
    for (int k = 0; k < 2 - one; k++) {
        w.stride[k] = c->i[3 * (k + one)], w.padding[k] = c->i[3 * (k + one) + 1];
        w.dilation[k] = c->i[3 * (k + one) + 2];
    }
    return w;
}
static void plane_of(const dt_shape *s, int64_t *n) { n[0] = s->dims == 4 ? s->n[2] : 1, n[1] = s->n[s->dims - 1]; }
static dt_tensor build_conv(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    conv_window w = window_of(c);
    w.groups = c->shape[0].n[1] / c->shape[1].n[1];
    return conv_of(g, in[0], in[1], c->inputs > 2 ? in[2] : dt__none(), &w);
}
static void real_conv(const op_case *c, double *const *in, double *out)
{
    int64_t x[2], y[2], k[2], channels = c->shape[0].n[1], per = c->shape[1].n[1], made = c->out.n[1];
    plane_of(&c->shape[0], x), plane_of(&c->out, y), plane_of(&c->shape[1], k);
    for (int64_t at = 0; at < count(&c->out); at++) {
        int64_t ox = at % y[1], oy = at / y[1] % y[0], o = at / (y[1] * y[0]) % made, b = at / (y[1] * y[0] * made), first = o / (made / (channels / per)) * per;
        out[at] = c->inputs > 2 ? in[2][o] : 0.0;
        for (int64_t tap = 0; tap < per * k[0] * k[1]; tap++) {
            int64_t kx = tap % k[1], ky = tap / k[1] % k[0], ch = tap / (k[1] * k[0]);
            int64_t iy = oy * c->i[0] - c->i[1] + ky * c->i[2], ix = ox * c->i[3] - c->i[4] + kx * c->i[5];
            if (iy >= 0 && iy < x[0] && ix >= 0 && ix < x[1]) out[at] += in[0][((b * channels + first + ch) * x[0] + iy) * x[1] + ix] * in[1][o * per * k[0] * k[1] + tap];
        }
    }
}
static void test_conv(void)
{
    static const struct { int64_t c, o, groups, x[2], k[2], stride[2], padding[2], dilation[2]; int bias; } row[] = {
        { 2, 3, 1, { 5, 6 }, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 }, { 2, 3, 1, { 5, 6 }, { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 }, 1 },
        { 3, 2, 1, { 7, 6 }, { 3, 2 }, { 2, 3 }, { 1, 0 }, { 1, 1 }, 1 }, { 2, 2, 1, { 7, 8 }, { 2, 3 }, { 1, 2 }, { 2, 3 }, { 3, 2 }, 0 },
        { 4, 6, 2, { 4, 5 }, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 }, { 4, 4, 4, { 5, 4 }, { 3, 3 }, { 2, 2 }, { 1, 1 }, { 1, 1 }, 1 },
        { 1, 1, 1, { 3, 3 }, { 2, 2 }, { 3, 3 }, { 0, 0 }, { 1, 1 }, 0 }, { 2, 3, 1, { 3, 4 }, { 3, 4 }, { 1, 1 }, { 0, 0 }, { 1, 1 }, 1 },
        { 2, 2, 1, { 2, 2 }, { 3, 3 }, { 1, 1 }, { 3, 4 }, { 1, 1 }, 1 }, /* windows that see nothing at all */
        { 3, 4, 1, { 0, 9 }, { 0, 3 }, { 1, 1 }, { 0, 1 }, { 1, 1 }, 1 }, { 4, 2, 2, { 0, 9 }, { 0, 4 }, { 1, 3 }, { 0, 2 }, { 1, 2 }, 1 },
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        int one = row[i].x[0] == 0;
        int64_t y[2];
        op_case c;
        memset(&c, 0, sizeof c);
        for (int k = 0; k < 2; k++) {
            c.i[3 * k] = row[i].stride[k], c.i[3 * k + 1] = row[i].padding[k], c.i[3 * k + 2] = row[i].dilation[k];
            y[k] = (row[i].x[k] + 2 * row[i].padding[k] - row[i].dilation[k] * (row[i].k[k] - 1) - 1) / row[i].stride[k] + 1;
        }
        c.shape[0] = one ? dt_shape3(2, row[i].c, row[i].x[1]) : dt_shape4(2, row[i].c, row[i].x[0], row[i].x[1]);
        c.shape[1] = one ? dt_shape3(row[i].o, row[i].c / row[i].groups, row[i].k[1]) : dt_shape4(row[i].o, row[i].c / row[i].groups, row[i].k[0], row[i].k[1]);
        c.shape[2] = dt_shape1(row[i].o);
        c.out = one ? dt_shape3(2, row[i].o, y[1]) : dt_shape4(2, row[i].o, y[0], y[1]);
        c.inputs = 2 + row[i].bias;
        snprintf(c.name, sizeof c.name, "convolve %.30s with %.30s", dt__show(&c.shape[0]).at, dt__show(&c.shape[1]).at);
        c.build = build_conv, c.real = real_conv;
        check(&c);
    }
}

/* token: size of the height and the width, then 1 for a mean; i as for a convolution. */
static dt_tensor build_pool(const op_case *c, dt_graph *g, const dt_tensor *in)
{
    conv_window w = window_of(c);
    int one = c->out.dims == 3;
    for (int k = 0; k < 2 - one; k++) w.size[k] = c->token[k + one];
    return pool(g, in[0], c->token[2], &w);
}
static void real_pool(const op_case *c, double *const *in, double *out)
{
    int64_t x[2], y[2];
    plane_of(&c->shape[0], x), plane_of(&c->out, y);
    for (int64_t at = 0; at < count(&c->out); at++) {
        const double *plane = in[0] + at / (y[0] * y[1]) * x[0] * x[1];
        double sum = 0.0, max = -INFINITY;
        for (int64_t k = 0; k < c->token[0] * c->token[1]; k++) {
            int64_t iy = at / y[1] % y[0] * c->i[0] - c->i[1] + k / c->token[1], ix = at % y[1] * c->i[3] - c->i[4] + k % c->token[1];
            if (iy < 0 || iy >= x[0] || ix < 0 || ix >= x[1]) continue;
            sum += plane[iy * x[1] + ix];
            max = fmax(max, plane[iy * x[1] + ix]);
        }
        out[at] = c->token[2] ? sum / (double)(c->token[0] * c->token[1]) : max;
    }
}
static void test_pools(void)
{
    static const struct { int64_t x[2], size[2], stride[2], padding[2]; } row[] = {
        { { 6, 8 }, { 2, 2 }, { 2, 2 }, { 0, 0 } }, { { 7, 7 }, { 3, 3 }, { 2, 2 }, { 1, 1 } }, { { 5, 6 }, { 3, 2 }, { 1, 1 }, { 0, 1 } },
        { { 4, 5 }, { 1, 1 }, { 2, 3 }, { 0, 0 } }, { { 1, 9 }, { 1, 3 }, { 1, 2 }, { 0, 1 } },
    };
    for (size_t i = 0; i < 2 * sizeof row / sizeof *row; i++) {
        size_t r = i / 2;
        int64_t y[2];
        op_case c;
        memset(&c, 0, sizeof c);
        c.i[2] = c.i[5] = 1, c.token[2] = (int32_t)(i & 1);
        for (int k = 0; k < 2; k++) {
            c.i[3 * k] = row[r].stride[k], c.i[3 * k + 1] = row[r].padding[k], c.token[k] = (int32_t)row[r].size[k];
            y[k] = (row[r].x[k] + 2 * row[r].padding[k] - row[r].size[k]) / row[r].stride[k] + 1;
        }
        c.inputs = 1;
        c.shape[0] = r == 4 ? dt_shape3(2, 3, row[r].x[1]) : dt_shape4(2, 3, row[r].x[0], row[r].x[1]);
        c.out = r == 4 ? dt_shape3(2, 3, y[1]) : dt_shape4(2, 3, y[0], y[1]);
        snprintf(c.name, sizeof c.name, "%s pool, window (%d,%d)", i & 1 ? "avg" : "max", c.token[0], c.token[1]);
        c.build = build_pool, c.real = real_pool;
        check(&c);
    }
}

static dt_tensor build_cross_entropy(const op_case *c, dt_graph *g, const dt_tensor *in) { return dt_cross_entropy(g, in[0], dt_tensor_of(g, DT_I32, dt_shape2(2, 3), c->token), 0.0f); }
static void real_cross_entropy(const op_case *c, double *const *in, double *out)
{
    int64_t n = c->shape[0].n[2], valid = 0;
    out[0] = 0.0;
    for (int64_t r = 0; r < 6; r++) {
        const double *x = in[0] + r * n;
        double sum = 0.0;
        if (c->token[r] < 0) continue;
        for (int64_t i = 0; i < n; i++) sum += exp(x[i]);
        out[0] += log(sum) - x[c->token[r]];
        valid++;
    }
    out[0] /= (double)(valid ? valid : 1);
}

static void test_model_ops(void)
{
    op_case c = shape_case("embed", dt_shape2(7, 5), dt_shape3(3, 4, 5));
    for (int i = 0; i < 12; i++) c.token[i] = i * i % 6; /* some twice, 6 never */
    c.build = build_embed, c.real = real_embed;
    check(&c);
    for (int64_t n = 2; n <= 34; n += 16) {
        c = shape_case("layernorm", dt_shape3(2, 3, n), dt_shape3(2, 3, n));
        c.build = build_layernorm, c.real = real_layernorm;
        check(&c);
        snprintf(c.name, sizeof c.name, "layernorm with weights, width %d", (int)n);
        c.inputs = 3, c.shape[1] = c.shape[2] = dt_shape1(n);
        check(&c);
    }
    for (int i = 0; i < 3; i++) {
        c = shape_case("", dt_shape3(3, 4, 5), dt_shape3(3, 4, 5));
        c.f = 0.25f * (float)i;
        snprintf(c.name, sizeof c.name, "R16 dropout %g", (double)c.f);
        c.build = build_dropout, c.real = real_dropout;
        check(&c);
    }
    for (int form = 0; form < 8; form++) {
        int64_t heads = form & 4 ? 3 : 1;
        c = shape_case("", dt_shape3(2, 7, 18), dt_shape3(2, 7, 6));
        c.i[0] = heads, c.i[1] = form & 1, c.f = form & 2 ? 0.3f : 0.0f;
        snprintf(c.name, sizeof c.name, "attention, %s, %d heads, dropout %g", form & 1 ? "causal" : "full", (int)heads, (double)c.f);
        c.build = build_attention, c.real = real_attention;
        check(&c);
    }
    for (int ignored = 0; ignored < 3; ignored++) {
        c = shape_case("", dt_shape3(2, 3, 11), dt_shape0());
        for (int i = 0; i < 6; i++) c.token[i] = i % 3 < ignored ? -1 : i * 2;
        snprintf(c.name, sizeof c.name, "cross_entropy, %d of 6 targets ignored", 2 * ignored);
        c.build = build_cross_entropy, c.real = real_cross_entropy;
        check(&c);
    }
}

/* ---- gradients that meet --------------------------------------------------------------------------------------- */

static dt_tensor build_square(const op_case *c, dt_graph *g, const dt_tensor *in) /* x x^T . (x x^T) + x x^T, x at both sides */
{
    dt_tensor y = dt_matmul(g, in[0], in[0], 0, 1);
    (void)c;
    return dt_add(g, dt_mul(g, y, y), y);
}
static void real_square(const op_case *c, double *const *in, double *out)
{
    int64_t m = c->shape[0].n[0], k = c->shape[0].n[1];
    real_product(out, in[0], in[0], 0, 1, m, m, k);
    for (int64_t i = 0; i < m * m; i++) out[i] = out[i] * out[i] + out[i];
}

/* Three uses of x: the shares add in the order of the uses, ((a + b) + c), whatever order backward meets them in. */
static void test_order(void)
{
    enum { N = 64 };
    float x[N], share[3][N], want[N], other[N];
    dt_graph *g = NULL;
    dt_tensor t, y = dt__none();
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    for (int i = 0; i < N; i++) {
        x[i] = draw(0);
        share[0][i] = draw(0) * 1e4f;
        share[1][i] = -0.999f * share[0][i]; /* the first two cancel */
        share[2][i] = draw(0);
        want[i] = share[0][i] + share[1][i];
        want[i] = want[i] + share[2][i];
        other[i] = share[1][i] + share[2][i];
        other[i] = share[0][i] + other[i];
    }
    t = dt_tensor_of(g, DT_F32, dt_shape1(N), x);
    for (int u = 0; u < 3; u++) {
        dt_tensor z = dt_sum(g, dt_mul(g, t, dt_tensor_of(g, DT_F32, dt_shape1(N), share[u])), DT_ALL);
        y = u ? dt_add(g, z, y) : z;
    }
    if (dt_backward(g, y)) tap_bail("%s", dt_last_error());
    tap_same_bits(dt_value(g, dt_grad(g, t)), want, N, "R13 gradients of one value add in forward-use order");
    tap_ok(memcmp(want, other, sizeof want) != 0, "R13 another order has other bits");
    dt_graph_close(&g);
}

static void test_meeting(void)
{
    op_case c = shape_case("a tensor used twice by one op, and its value by three", dt_shape2(3, 4), dt_shape2(3, 3));
    c.build = build_square, c.real = real_square;
    check(&c);
    test_order();
}

/* The first of equal maxima gets the gradient. */
static void test_max_ties(void)
{
    static const float x[6] = { 1.0f, 3.0f, 3.0f, -0.0f, 0.0f, -1.0f }, want[6] = { 0, 1, 0, 1, 0, 0 };
    dt_graph *g = NULL;
    dt_tensor t;
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    t = dt_tensor_of(g, DT_F32, dt_shape2(2, 3), x);
    dt_backward(g, dt_sum(g, dt_max(g, t, 2), DT_ALL));
    tap_same_bits(dt_value(g, dt_grad(g, t)), want, 6, "R14 the gradient of max goes to the first maximum");
    dt_graph_close(&g);
}

/* ---- errors stick ------------------------------------------------------------------------------------------------ */

static const float ones[64] = { 1 };
static const int32_t tokens_bad[4] = { 0, 1, 9, 2 }, tokens_good[4] = { 0, 1, 2, 2 };

static const dt_rope_scaling bad_scaling = { 8.0, 4.0, 1.0, 8192, DT_ROPE_LLAMA3, 0, 0.0 };

static dt_tensor wrong_attention(dt_graph *g, int which)
{
    dt_tensor q = dt_tensor_of(g, DT_F32, dt_shape3(2, 4, 4), ones), k = dt_tensor_of(g, DT_F32, dt_shape3(2, 3, 2), ones);
    dt_attention_options o;
    memset(&o, 0, sizeof o);
    o.heads = 4;
    o.kv_heads = which == 0 ? 3 : 2;
    if (which == 2) o.dropout = 1.0f;
    if (which == 3) o.scale = -1.0f;
    return dt_attend(g, q, k, which == 1 ? q : k, which == 4 ? dt_tensor_of(g, DT_F32, dt_shape2(3, 4), ones) : dt__none(), &o);
}
static dt_tensor wrong(dt_graph *g, int which)
{
    static const int twice[2] = { 0, 0 }, outside[2] = { 0, 2 };
    dt_tensor x = dt_tensor_of(g, DT_F32, dt_shape2(4, 3), ones), y = dt_tensor_of(g, DT_F32, dt_shape1(4), ones), z = dt_tensor_of(g, DT_F32, dt_shape3(2, 4, 3), ones);
    dt_tensor tokens = dt_tensor_of(g, DT_I32, dt_shape1(4), tokens_good), high = dt_tensor_of(g, DT_I32, dt_shape1(4), tokens_bad);
    switch (which) {
    case 0: return dt_reshape(g, x, dt_shape1(11));
    case 1: return dt_permute(g, x, twice);
    case 2: return dt_permute(g, x, outside);
    case 3: return dt_slice(g, x, 1, 2, 4);
    case 4: return dt_slice(g, x, 2, 0, 1);
    case 5: return dt_slice(g, x, 0, 1, 1);
    case 6: return dt_expand(g, x, dt_shape2(4, 6));
    case 7: return dt_expand(g, x, dt_shape1(3));
    case 8: return dt_combine(g, dt_slice(g, x, 0, 0, 3));
    case 9: return dt_add(g, x, y);
    case 10: return dt_sub(g, x, y);
    case 11: return dt_mul(g, x, y);
    case 12: return map_div(g, x, y);
    case 13: return dt_sum(g, x, 4);
    case 14: return dt_mean(g, x, 8);
    case 15: return dt_max(g, x, 4);
    case 16: return dt_matmul(g, x, x, 0, 0);
    case 17: return dt_matmul(g, x, y, 0, 0);
    case 18: return dt_matmul(g, z, x, 0, 0);
    case 19: return dt_matmul(g, z, dt_tensor_of(g, DT_F32, dt_shape3(3, 3, 2), ones), 0, 0); /* leading axes 2 and 3 */
    case 20: return dt_embed(g, x, high);
    case 21: return dt_embed(g, z, tokens);
    case 22: return dt_embed(g, x, y);
    case 23: return attention(g, z, 2, 1, 0.0f);
    case 24: return attention(g, x, 1, 1, 0.0f);
    case 25: return attention(g, z, 1, 1, 1.0f);
    case 26: return dt_dropout(g, x, -0.1f);
    case 27: return dt_dropout(g, dt_sum(g, x, DT_ALL), 0.1f);
    case 28: return dt_cross_entropy(g, x, dt_tensor_of(g, DT_I32, dt_shape1(3), tokens_good), 0.0f);
    case 29: return dt_cross_entropy(g, x, high, 0.0f);
    case 30: return dt_cross_entropy(g, x, y, 0.0f);
    case 31: return dt_targets(g);
    case 32: return dt_tensor_of(g, DT_F32, dt_shape2(0, 3), ones);
    case 33: return dt_grad(g, x);
    case 34: return dt_add(g, tokens, x);
    case 35: return map_neg(g, tokens);
    case 36: return dt_matmul(g, tokens, x, 0, 0);
    case 37: return wrong_attention(g, 0);
    case 38: return wrong_attention(g, 1);
    case 39: return wrong_attention(g, 2);
    case 40: return wrong_attention(g, 3);
    case 41: return wrong_attention(g, 4);
    case 42: return dt_rope(g, z, 1, 1e4, 0, NULL); /* an odd width */
    case 43: return dt_rope(g, dt_tensor_of(g, DT_F32, dt_shape3(1, 2, 4), ones), 1, 0.5, 0, NULL);
    case 44: return dt_rope(g, dt_tensor_of(g, DT_F32, dt_shape3(1, 2, 4), ones), 1, 1e4, 0, &bad_scaling);
    case 45: return dt_matmul(g, z, z, 1, 1);
    case 46: return map_maximum(g, x, y);
    case 47: return map_greater_equal(g, x, y);
    case 48: return dt_clamp(g, x, 1.0f, 0.5f);
    case 49: return dt_clamp(g, x, NAN, 0.5f);
    default: return map_abs(g, tokens);
    }
}

static void test_errors(void)
{
    static const struct { const char *name; dt_result code; } want[] = {
        { "reshape", DT_E_SHAPE }, { "permute", DT_E_SHAPE }, { "permute", DT_E_SHAPE }, { "slice", DT_E_SHAPE }, { "slice", DT_E_SHAPE },
        { "slice", DT_E_SHAPE }, { "expand", DT_E_SHAPE }, { "expand", DT_E_SHAPE }, { "combine", DT_E_SHAPE }, { "add", DT_E_SHAPE },
        { "sub", DT_E_SHAPE }, { "mul", DT_E_SHAPE }, { "div", DT_E_SHAPE }, { "sum", DT_E_SHAPE }, { "mean", DT_E_SHAPE },
        { "max", DT_E_SHAPE }, { "matmul", DT_E_SHAPE }, { "matmul", DT_E_SHAPE }, { "matmul", DT_E_SHAPE }, { "matmul", DT_E_SHAPE },
        { "embed", DT_E_SHAPE }, { "embed", DT_E_SHAPE }, { "embed", DT_E_SHAPE }, { "attend", DT_E_SHAPE }, { "attend", DT_E_SHAPE },
        { "attention", DT_E_USAGE }, { "dropout", DT_E_USAGE }, { "dropout", DT_E_SHAPE }, { "cross_entropy", DT_E_SHAPE }, { "cross_entropy", DT_E_SHAPE },
        { "cross_entropy", DT_E_SHAPE }, { "dt_targets", DT_E_USAGE }, { "shape (0,3)", DT_E_SHAPE }, { "dt_grad", DT_E_USAGE },
        { "add", DT_E_SHAPE }, { "neg", DT_E_SHAPE }, { "matmul", DT_E_SHAPE }, { "attend", DT_E_SHAPE },
        { "attend", DT_E_SHAPE }, { "attention", DT_E_USAGE }, { "attention", DT_E_USAGE }, { "attend", DT_E_SHAPE }, { "rope", DT_E_SHAPE },
        { "rope", DT_E_USAGE }, { "rope", DT_E_USAGE }, { "matmul", DT_E_SHAPE }, { "maximum", DT_E_SHAPE },
        { "greater_equal", DT_E_SHAPE }, { "clamp", DT_E_USAGE }, { "clamp", DT_E_USAGE }, { "abs", DT_E_SHAPE },
    };
    for (int i = 0; i < (int)(sizeof want / sizeof *want); i++) {
        char first[1100];
        dt_graph *g = NULL;
        dt_tensor good, t, after;
        int ok;
        if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
        good = dt_tensor_of(g, DT_F32, dt_shape1(3), ones);
        t = wrong(g, i);
        ok = !t.id && dt_graph_result(g) == want[i].code && strcasestr(dt_last_error(), want[i].name);
        snprintf(first, sizeof first, "%s", dt_last_error());
        ok = ok && strlen(first) > strlen(want[i].name) + 10 && !dt_value(g, t);
        after = dt_add(g, map_exp(g, t), t); /* poison spreads, and a second mistake is not heard of */
        ok = ok && !after.id && !dt_reshape(g, good, dt_shape1(2)).id;
        ok = ok && dt_backward(g, after) == want[i].code && dt_graph_result(g) == want[i].code && !strcmp(dt_last_error(), first);
        if (!tap_ok(ok, "sticky error %d names %s", i, want[i].name)) tap_note("it says: %s", dt_last_error());
        dt_graph_close(&g);
    }
}

static void test_misuse(void)
{
    dt_graph *g = NULL;
    dt_tensor x, y;
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    x = dt_tensor_of(g, DT_F32, dt_shape1(3), ones);
    tap_ok(dt_backward(g, x) == DT_E_USAGE && strstr(dt_last_error(), "scalar"), "dt_backward of a vector is an error");
    dt_graph_close(&g);
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    x = dt_tensor_of(g, DT_F32, dt_shape1(3), ones);
    y = dt_sum(g, map_exp(g, x), DT_ALL);
    tap_ok(!dt_backward(g, y) && dt_backward(g, y) == DT_E_USAGE && strstr(dt_last_error(), "once"), "dt_backward twice is an error");
    dt_graph_close(&g);
}

/* int32 tensors keep what they are through shape ops. */
static void test_tokens(void)
{
    static const int order[2] = { 1, 0 };
    float table[12];
    dt_graph *g = NULL;
    dt_tensor t, y;
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    for (int i = 0; i < 12; i++) table[i] = (float)i;
    t = dt_permute(g, dt_reshape(g, dt_tensor_of(g, DT_I32, dt_shape1(4), tokens_good), dt_shape2(2, 2)), order);
    t = dt_expand(g, dt_slice(g, t, 0, 1, 2), dt_shape2(2, 2)); /* (1,2) twice */
    y = dt_embed(g, dt_tensor_of(g, DT_F32, dt_shape2(4, 3), table), t);
    tap_ok(!dt_graph_result(g) && dt_value(g, y)[0] == 3.0f && dt_value(g, y)[3] == 6.0f && dt_value(g, y)[9] == 6.0f, "tokens through reshape, permute, slice, expand");
    dt_graph_close(&g);
}

/* ---- planned segments have the bits of eager graphs ----------------------------------------------------------------- */

/* A segment that uses every op, some parameters several times, and values both in place and long after. */
static dt_tensor zoo(dt_graph *g, dt_tensor x, const void *user) /* (B,T,8) -> (B,T,8) */
{
    static const int swap[3] = { 0, 2, 1 };
    int64_t b = dt_dim(g, x, 0), t = dt_dim(g, x, 1);
    dt_tensor w = dt_param(g, "w", dt_shape2(8, 8), DT_INIT_NORMAL, 0.4f), v = dt_param(g, "v", dt_shape1(8), DT_INIT_NORMAL, 0.3f);
    dt_tensor p = map_exp(g, dt_scale(g, x, 0.3f)), q, r, s;
    (void)user;
    q = dt_matmul(g, dt_matmul(g, p, w, 0, 0), w, 0, 1); /* both uses of w */
    q = dt_add(g, dt_mul(g, q, v), v);
    r = dt_matmul(g, dt_permute(g, q, swap), p, 1, 1); /* (B,T,8)(B,8,T): (B,T,T) */
    s = dt_reshape(g, dt_add(g, dt_sum(g, p, 4), map_rsqrt(g, dt_mean(g, p, 4))), dt_shape3(b, t, 1));
    r = map_div(g, r, s);
    s = dt_matmul(g, dt_tanh(g, r), map_log(g, dt_add(g, p, map_sqrt(g, p))), 0, 0); /* (B,T,8) */
    s = dt_sub(g, map_neg(g, s), dt_expand(g, dt_reshape(g, dt_max(g, p, 2), dt_shape3(b, 1, 8)), dt_shape3(b, t, 8)));
    q = dt_layernorm(g, dt_dropout(g, dt_add(g, s, q), 0.2f), "norm", 1e-5f);
    q = dt_linear_with(g, dt_gelu(g, dt_linear_with(g, q, "up", 16, 0.3f, DT_COLUMNS)), "down", 8, 0.3f, DT_ROWS);
    r = attention(g, dt_linear(g, q, "qkv", 24), 2, 1, 0.1f);
    return dt_add(g, dt_mul(g, r, dt_slice(g, dt_linear(g, x, "wide", 12), 2, 3, 11)), dt_dropout(g, q, 0.1f));
}

/* Convolutions, pooling, rotary positions, grouped heads, products that broadcast. */
static dt_tensor nets(dt_graph *g, dt_tensor x, const void *user) /* (B,T,8) -> (B,T,8) */
{
    static const int swap[3] = { 0, 2, 1 };
    int64_t b = dt_dim(g, x, 0), t = dt_dim(g, x, 1);
    conv_window w;
    dt_attention_options o;
    dt_tensor y, q, k;
    (void)user;
    memset(&w, 0, sizeof w);
    memset(&o, 0, sizeof o);
    w.size[0] = w.size[1] = 3, w.padding[0] = w.padding[1] = 1;
    y = conv(g, dt_permute(g, x, swap), "one", 12, &w); /* (B,12,T) */
    w.groups = 2;
    y = dt_gelu(g, conv(g, dt_reshape(g, y, dt_shape4(b, 4, 3, t)), "two", 6, &w)); /* (B,6,3,T) */
    w.groups = 0, w.stride[0] = w.stride[1] = 1;
    y = dt_add(g, pool(g, y, 0, &w), pool(g, y, 1, &w));
    y = dt_permute(g, dt_reshape(g, y, dt_shape3(b, 18, t)), swap); /* (B,T,18) */
    q = dt_rope(g, dt_linear(g, y, "q", 8), 2, 1e4, 3, NULL);
    k = dt_rope(g, dt_linear(g, y, "k", 4), 1, 1e4, 3, NULL);
    o.heads = 2, o.kv_heads = 1, o.causal = 1, o.dropout = 0.1f;
    y = dt_attend(g, q, k, dt_linear(g, y, "v", 4), dt__none(), &o); /* (B,T,8) */
    return dt_matmul(g, y, dt_param(g, "mix", dt_shape3(b, 8, 8), DT_INIT_NORMAL, 0.5f), 0, 0);
}

/* The elementwise ops: values that are kept, in place, broadcast, and a parameter that only a comparison sees. */
static dt_tensor functions(dt_graph *g, dt_tensor x, const void *user) /* (B,T,8) -> (B,T,8) */
{
    dt_tensor w = dt_param(g, "w", dt_shape1(8), DT_INIT_NORMAL, 0.4f), v = dt_param(g, "v", dt_shape2(1, 1), DT_INIT_NORMAL, 0.3f);
    dt_tensor seen = dt_param(g, "seen", dt_shape1(8), DT_INIT_NORMAL, 0.3f), p = map_exp(g, dt_mul(g, x, w)), q, r;
    (void)user;
    q = dt_add(g, dt_gelu(g, x), dt_mul(g, map_neg(g, p), dt_tanh(g, dt_scale(g, x, 0.5f))));
    q = dt_add(g, q, map_div(g, p, dt_add(g, v, dt_full(g, dt_shape0(), 1.5f))));
    q = map_maximum(g, map_minimum(g, q, map_sqrt(g, p)), dt_mul(g, v, map_exp(g, x)));
    r = dt_add(g, dt_silu(g, q), dt_mul(g, dt_gelu(g, x), map_sigmoid(g, q)));
    r = dt_add(g, dt_relu(g, r), dt_mul(g, dt_tanh(g, w), map_abs(g, x)));
    r = dt_sub(g, map_square(g, r), map_reciprocal(g, map_exp(g, p)));
    r = dt_add(g, dt_clamp(g, r, -0.5f, 0.75f), map_log(g, p));
    q = dt_add(g, dt_mul(g, map_greater_equal(g, x, seen), q), dt_mul(g, v, p));
    return dt_add(g, dt_add(g, r, w), q);
}

typedef struct planned {
    dt__segment_plan *plan;
    float *params, *slots, *x, *w, *output, *grad_in, *saved, *temp;
    int64_t param[64], slot[64], slot_floats;
} planned;

static float *room(int64_t n)
{
    float *p = (float *)dt__alloc(4 * (n + 1), "a test");
    if (!p) tap_bail("%s", dt_last_error());
    for (int64_t i = 0; i < n; i++) p[i] = NAN; /* nothing may be read before it is written */
    return p;
}

static void draw_param(const dt__param *p, float *data) { dt__init_param(p, seed, NULL, data); }

/* Plans the segment, draws its parameters, and gives it memory. */
static void planned_open(planned *s, const dt_segment *segment, dt_shape shape, dt_shape tokens, int first, int last)
{
    int64_t n = 0;
    memset(s, 0, sizeof *s);
    if (segment_plan(dt__graph_new(0, 0), segment, shape, tokens, first, last, NULL, &s->plan)) tap_bail("%s", dt_last_error());
    for (int32_t i = 0; i < s->plan->g->param_count; i++) s->param[i] = n, n += dt_shape_count(s->plan->g->params[i].shape);
    s->params = room(n);
    for (int32_t i = 0; i < s->plan->g->param_count; i++) draw_param(&s->plan->g->params[i], s->params + s->param[i]);
    for (int32_t i = 0; i < s->plan->g->slot_count; i++) {
        s->slot[i] = s->slot_floats;
        s->slot_floats += dt_shape_count(s->plan->g->params[s->plan->g->slots[i]].shape);
    }
    s->slots = room(s->slot_floats);
    s->output = room(dt__count(dt__at(s->plan->g, s->plan->output)));
    s->w = room(dt__count(dt__at(s->plan->g, s->plan->output)));
    s->x = room(dt_shape_count(shape));
    s->grad_in = room(dt_shape_count(shape));
    s->saved = room(s->plan->saved);
    s->temp = room(s->plan->temp);
}
static void planned_close(planned *s)
{
    float *const all[] = { s->params, s->slots, s->output, s->w, s->x, s->grad_in, s->saved, s->temp };
    for (int i = 0; i < 8; i++) dt__free(all[i]);
    dt__segment_close(&s->plan);
}

static void planned_run(planned *s, const dt__kernels *k, int workers, int32_t *targets, int64_t samples)
{
    dt__bind b;
    dt__env env;
    unsigned saved = dt__fp_enter();
    const dt__segment_plan *p = s->plan;
    memset(&b, 0, sizeof b);
    memset(&env, 0, sizeof env);
    env.loss_scale = 1.0f;
    env.k = k;
    env.rng = (dt__rng *)room(samples * (int64_t)(sizeof *env.rng / 4));
    if (dt__pool_open(&env.pool, workers)) tap_bail("%s", dt_last_error());
    for (int32_t id = 1; id < p->g->count; id++)
        if (dt__pool_reserve(env.pool, dt__node_scratch(k, p->g, id))) tap_bail("%s", dt_last_error());
    for (int64_t i = 0; i < samples; i++) env.rng[i] = dt__rng_make(seed, DT__RNG_DROPOUT, (uint32_t)i, 0, 0);
    b.params = s->params, b.param = s->param, b.slots = s->slots, b.slot = s->slot;
    b.at[DT__AT_INPUT] = s->x, b.at[DT__AT_OUTPUT] = s->output, b.at[DT__AT_GRAD_OUT] = s->w, b.at[DT__AT_GRAD_IN] = s->grad_in;
    b.at[DT__AT_SAVED] = s->saved, b.at[DT__AT_TEMP] = s->temp;
    memcpy(&b.at[DT__AT_TARGETS], &targets, sizeof targets);
    dt__segment_run(p, 0, p->forward_count, &b, &env, 0);
    for (int64_t i = 0; i < p->temp; i++) s->temp[i] = NAN; /* other units run between forward and backward */
    dt__segment_run(p, p->forward_count, p->backward_count, &b, &env, 1);
    dt__pool_close(&env.pool);
    dt__free(env.rng);
    dt__fp_leave(saved);
}

/* The gradients of a parameter's uses, added in order of use. */
static const float *planned_gradient(planned *s, int32_t param, float *sum)
{
    int64_t n = dt_shape_count(s->plan->g->params[param].shape);
    int uses = 0;
    for (int32_t i = 0; i < s->plan->g->slot_count; i++) {
        if (s->plan->g->slots[i] != param) continue;
        for (int64_t k = 0; k < n; k++) sum[k] = uses ? sum[k] + s->slots[s->slot[i] + k] : s->slots[s->slot[i] + k];
        uses++;
    }
    return sum;
}

/* The same segment eagerly: the loss is sum(y w), so that the gradient of y is w; or, at the end of a model, the loss. */
static void compare_eager(planned *s, const dt_segment *segment, dt_shape shape, const int32_t *tokens, const char *name, int first, int last)
{
    static float sum[1 << 16];
    char what[256];
    dt_graph *g = NULL;
    dt_tensor x, y, loss;
    int32_t p = 0;
    if (dt_graph_open(&g, seed)) tap_bail("%s", dt_last_error());
    snprintf(g->prefix, sizeof g->prefix, "%s", segment->name);
    x = first ? dt_tensor_of(g, DT_I32, shape, tokens) : dt_tensor_of(g, DT_F32, shape, s->x);
    if (last) g->targets = dt_tensor_of(g, DT_I32, dt_shape2(shape.n[0], shape.n[1]), tokens);
    y = segment->build(g, x, segment->user);
    loss = last ? y : dt_sum(g, dt_mul(g, y, dt_tensor_of(g, DT_F32, dt_shape_of(g, y), s->w)), DT_ALL);
    if (dt_backward(g, loss)) tap_bail("%s: %s", name, dt_last_error());
    snprintf(what, sizeof what, "planned is eager, %s: output", name);
    tap_same_bits(s->output, last ? g->nodes[g->nodes[y.id].in[0]].data : dt_value(g, y), dt__count(dt__at(s->plan->g, s->plan->output)), what);
    snprintf(what, sizeof what, "planned is eager, %s: gradient of the input", name);
    if (!first) tap_same_bits(s->grad_in, dt_value(g, dt_grad(g, x)), dt_shape_count(shape), what);
    for (int32_t id = 1; id < g->forward_count; id++) {
        if (g->nodes[id].op != DT__OP_PARAM) continue;
        if (!g->nodes[id].grad) { /* no path to the loss has a derivative: its slot is not written */
            p++;
            continue;
        }
        snprintf(what, sizeof what, "planned is eager, %s: gradient of %s", name, s->plan->g->params[p].name);
        tap_same_bits(planned_gradient(s, p, sum), dt_value(g, dt_grad(g, dt__tensor(g, id))), dt__count(&g->nodes[id]), what);
        p++;
    }
    dt_graph_close(&g);
}

static void test_planned(const char *name, dt_segment_fn build, const void *user, dt_shape shape, int first, int last)
{
    enum { MOST = 64 };
    const dt__kernels *k;
    int32_t tokens[MOST];
    dt_segment segment;
    planned s;
    segment.name = "segment", segment.build = build, segment.user = user;
    for (int i = 0; i < MOST; i++) tokens[i] = i % 7 ? i * 5 % 11 : last ? -1 : 0;
    if (dt__choose_kernels(&k)) tap_bail("%s", dt_last_error());
    for (int workers = 1; workers <= 3; workers += 2) {
        char text[96];
        int64_t valid = 0, n = shape.n[0] * shape.n[1];
        planned_open(&s, &segment, shape, dt_shape2(shape.n[0], shape.n[1]), first, last);
        for (int64_t i = 0; i < n; i++) valid += tokens[i] >= 0;
        if (first) memcpy(s.x, tokens, 4 * (size_t)n);
        else
            for (int64_t i = 0; i < dt_shape_count(shape); i++) s.x[i] = draw(0);
        for (int64_t i = 0; i < dt__count(dt__at(s.plan->g, s.plan->output)); i++) s.w[i] = last ? 1.0f / (float)valid : draw(0);
        planned_run(&s, k, workers, tokens, shape.n[0]);
        snprintf(text, sizeof text, "%s, %d threads", name, workers);
        compare_eager(&s, &segment, shape, tokens, text, first, last);
        planned_close(&s);
    }
}

/* Two segments of one function on inputs of as many elements but other shapes do not share a plan. */
static dt_tensor turn(dt_graph *g, dt_tensor x, const void *user) /* (B,M,N) -> (B,N,M) */
{
    static const int swap[3] = { 0, 2, 1 };
    (void)user;
    return dt_permute(g, x, swap);
}
static dt_tensor turn_in(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_embed(g, dt_param(g, "table", dt_shape2(11, 5), DT_INIT_NORMAL, 1.0f), x);
}
static dt_tensor turn_out(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_cross_entropy(g, dt_linear(g, x, "head", 11), dt_targets(g), 0.0f);
}
static void test_shared_plans(void)
{
    static const dt_segment list[] = { { "in", turn_in, NULL }, { "a", turn, NULL }, { "b", turn, NULL }, { "c", turn, NULL }, { "d", turn, NULL }, { "out", turn_out, NULL } };
    dt_model m = dt_model_segments(list, 6, 11);
    dt__net net;
    memset(&net, 0, sizeof net);
    if (dt__net_open(&net, &m, 2, 3)) tap_bail("%s", dt_last_error());
    tap_ok(net.segments[2].plan != net.segments[1].plan, "segments with other shapes have plans of their own");
    tap_ok(net.segments[3].plan == net.segments[1].plan && !net.segments[3].owner, "segments with the same shapes share one plan");
    dt__net_close(&net);
}

/* Random streams are per sample of the unit: a tensor whose axis 0 counts something else must be refused. */
static dt_tensor flat_dropout(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_dropout(g, dt_reshape(g, x, dt_shape2(dt_dim(g, x, 0) * dt_dim(g, x, 1), dt_dim(g, x, 2))), 0.5f);
}
static dt_tensor flat_attention(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return attention(g, dt_reshape(g, x, dt_shape3(2 * dt_dim(g, x, 0), dt_dim(g, x, 1) / 2, dt_dim(g, x, 2))), 1, 1, 0.5f);
}
static void test_refused_segments(void)
{
    dt_segment s;
    dt__segment_plan *plan = NULL;
    s.name = "flat", s.build = flat_dropout, s.user = NULL;
    tap_ok(segment_plan(dt__graph_new(0, 0), &s, dt_shape3(2, 4, 6), dt_shape2(2, 4), 0, 0, NULL, &plan) == DT_E_SHAPE && strstr(dt_last_error(), "dropout"),
           "R16 dropout in a segment: axis 0 must be the samples");
    dt__segment_close(&plan);
    s.build = flat_attention;
    tap_ok(segment_plan(dt__graph_new(0, 0), &s, dt_shape3(2, 4, 6), dt_shape2(2, 4), 0, 0, NULL, &plan) == DT_E_SHAPE && strstr(dt_last_error(), "attention"),
           "R16 attention with dropout in a segment: axis 0 must be the samples");
    dt__segment_close(&plan);
}

/* Each op has one text and a domain that fits it; the host alone runs what calls the program. */
static void test_table(void)
{
    for (int op = 0; op < DT__OP_COUNT; op++) {
        const dt__op *o = dt__op_of(op);
        int given = o->class_of == DT__CLASS_LEAF || o->class_of == DT__CLASS_OUTPUT || o->class_of == DT__CLASS_ALIAS;
        int texts = (o->run != NULL) + (o->some != NULL), split = o->domain >= DT__OVER_ELEMENTS && o->domain <= DT__OVER_SAMPLES;
        int ok = given ? !texts && o->domain == DT__OVER_NOTHING : texts == 1 && o->domain != DT__OVER_NOTHING && (!o->some || split);
        if (op == DT__OP_CUSTOM) ok = ok && o->domain == DT__OVER_HOST;
        if (o->class_of == DT__CLASS_MAP) ok = ok && o->domain == DT__OVER_ELEMENTS;
        if (o->class_of == DT__CLASS_COLUMN) ok = ok && o->domain == DT__OVER_COLUMNS;
        if (!ok || op == DT__OP_COUNT - 1) tap_ok(ok, "the table says what %s iterates over, and by which text", ok ? "each op" : o->name);
    }
}

#ifndef TEST_OPS_MORE /* test_ops_more.c takes what is above */
int main(void)
{
    dt_model plain, dropping;
    memset(&plain, 0, sizeof plain);
    plain.layers = 2, plain.heads = 2, plain.width = 12, plain.vocabulary = 11;
    dropping = plain;
    dropping.dropout = 0.2f;
    test_table();
    test_elementwise();
    test_shapes();
    test_reductions();
    test_products();
    test_matmul_ranks();
    test_model_ops();
    test_attend();
    test_rope();
    test_conv();
    test_pools();
    test_meeting();
    test_max_ties();
    test_taken();
    test_no_gradient();
    test_errors();
    test_misuse();
    test_tokens();
    test_planned("every op", zoo, NULL, dt_shape3(3, 5, 8), 0, 0);
    test_planned("convolutions and grouped heads", nets, NULL, dt_shape3(3, 5, 8), 0, 0);
    test_planned("elementwise ops", functions, NULL, dt_shape3(3, 5, 8), 0, 0);
    test_planned("GPT-2 embedding", dt__family_embed, &dropping, dt_shape2(3, 5), 1, 0);
    test_planned("GPT-2 block", dt__family_block, &plain, dt_shape3(3, 5, 12), 0, 0);
    test_planned("GPT-2 block with dropout", dt__family_block, &dropping, dt_shape3(3, 5, 12), 0, 0);
    test_planned("GPT-2 head", dt__family_head, &plain, dt_shape3(3, 5, 12), 0, 1);
    test_shared_plans();
    test_refused_segments();
    return tap_done();
}
#endif
