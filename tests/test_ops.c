/* Every public op: its gradient against finite differences of its own value, value and gradient against PyTorch
 * (golden/ops.safetensors), planned evaluation against eager evaluation bit for bit, and the sentence of every wrong call. */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "tap.h"

enum { INPUTS = 3, MOST = 4096 };

/* ---- finite differences ------------------------------------------------------------------------- */

typedef struct test_case test_case;
typedef dt_tensor (*build_fn)(dt_graph *g, const dt_tensor *in, const test_case *c);
struct test_case {
    const char *name;
    build_fn build;
    int inputs;
    dt_shape shape[INPUTS];
    float low, high; /* range of the inputs */
    int64_t a, b;    /* the op's own arguments */
};

static float random_in(uint64_t element, uint32_t stream, float low, float high)
{
    dt__rng r = dt__rng_make(11, DT__RNG_INIT, stream, 0, 0);
    return low + (high - low) * (float)dt__uniform(&r, element);
}

/* sum(out * w) in double: out is float, so its rounding is all that disturbs the difference. */
static double evaluate(const test_case *c, float in[INPUTS][MOST], const float *w, float grad[INPUTS][MOST])
{
    dt_graph *g;
    dt_tensor t[INPUTS], out;
    double sum = 0.0;
    int64_t n;
    if (dt_graph_open(&g, 5)) tap_bail("%s", dt_last_error());
    for (int i = 0; i < c->inputs; i++) t[i] = dt_tensor_from(g, c->shape[i], in[i]);
    out = c->build(g, t, c);
    n = dt_shape_count(dt_shape_of(g, out));
    if (!out.id || n > MOST) tap_bail("%s: %s", c->name, dt_last_error());
    for (int64_t i = 0; i < n; i++) sum += (double)dt_value(g, out)[i] * (double)w[i];
    if (grad) {
        dt_tensor loss = dt_sum(g, dt_mul(g, out, dt_tensor_from(g, dt_shape_of(g, out), w)), DT_ALL);
        if (dt_backward(g, loss)) tap_bail("%s: %s", c->name, dt_last_error());
        for (int i = 0; i < c->inputs; i++) memcpy(grad[i], dt_value(g, dt_grad(g, t[i])), 4 * (size_t)dt_shape_count(c->shape[i]));
    }
    dt_graph_close(&g);
    return sum;
}

static void check_case(const test_case *c)
{
    static float in[INPUTS][MOST], grad[INPUTS][MOST], w[MOST];
    const double h = 0.02;
    double worst = 0.0;
    for (int i = 0; i < c->inputs; i++)
        for (int64_t k = 0; k < dt_shape_count(c->shape[i]); k++) in[i][k] = random_in((uint64_t)k, (uint32_t)i + 1, c->low, c->high);
    for (int k = 0; k < MOST; k++) w[k] = random_in((uint64_t)k, 9, -1.0f, 1.0f);
    evaluate(c, in, w, grad);
    for (int i = 0; i < c->inputs; i++) {
        double most = 1e-3;
        int64_t n = dt_shape_count(c->shape[i]);
        for (int64_t k = 0; k < n; k++) most = fmax(most, fabs((double)grad[i][k]));
        for (int64_t k = 0; k < n; k += n > 64 ? n / 37 : 1) {
            float x = in[i][k];
            double f[5], step[5];
            for (int s = 0; s < 5; s++) {
                in[i][k] = x + (float)(h * (s - 2));
                step[s] = (double)in[i][k] - (double)x;
                f[s] = s == 2 ? 0.0 : evaluate(c, in, w, NULL);
            }
            in[i][k] = x;
            f[0] = (8.0 * (f[3] - f[1]) / (step[3] - step[1]) * 2.0 - (f[4] - f[0]) / (step[4] - step[0]) * 4.0) / 12.0;
            worst = fmax(worst, fabs(f[0] - (double)grad[i][k]) / most);
        }
    }
    tap_ok(worst < 5e-4, "%s: gradient and finite differences, %.1e of the largest", c->name, worst);
}

#define BUILD(name, expression)                                                                              \
    static dt_tensor name(dt_graph *g, const dt_tensor *in, const test_case *c)                              \
    {                                                                                                        \
        (void)c;                                                                                             \
        return expression;                                                                                   \
    }
BUILD(b_neg, dt_neg(g, in[0]))
BUILD(b_scale, dt_scale(g, in[0], 1.7f))
BUILD(b_exp, dt_exp(g, in[0]))
BUILD(b_log, dt_log(g, in[0]))
BUILD(b_tanh, dt_tanh(g, in[0]))
BUILD(b_sqrt, dt_sqrt(g, in[0]))
BUILD(b_rsqrt, dt_rsqrt(g, in[0]))
BUILD(b_gelu, dt_gelu(g, in[0]))
BUILD(b_add, dt_add(g, in[0], in[1]))
BUILD(b_sub, dt_sub(g, in[0], in[1]))
BUILD(b_mul, dt_mul(g, in[0], in[1]))
BUILD(b_div, dt_div(g, in[0], in[1]))
BUILD(b_sum, dt_sum(g, in[0], (unsigned)c->a))
BUILD(b_mean, dt_mean(g, in[0], (unsigned)c->a))
BUILD(b_max, dt_max(g, in[0], (unsigned)c->a))
BUILD(b_reshape, dt_mul(g, dt_reshape(g, in[0], dt_shape2(6, 10)), dt_reshape(g, in[0], dt_shape2(6, 10))))
BUILD(b_slice, dt_slice(g, in[0], (int)c->a, c->b, c->b + 2))
BUILD(b_expand, dt_expand(g, in[0], dt_shape3(3, 4, 5)))
BUILD(b_matmul, dt_matmul(g, in[0], in[1], (int)c->a, (int)c->b))
BUILD(b_combine, dt_combine(g, in[0]))
BUILD(b_attention, dt_attention(g, in[0], 2, (int)c->a, (float)c->b / 10.0f))
BUILD(b_dropout, dt_dropout(g, in[0], 0.4f))
BUILD(b_layernorm, dt_layernorm(g, in[0], "n"))
BUILD(b_linear, dt_linear(g, in[0], "l", 6))
BUILD(b_twice, dt_add(g, dt_mul(g, in[0], dt_tanh(g, in[0])), dt_mul(g, in[0], in[0])))

static dt_tensor b_permute(dt_graph *g, const dt_tensor *in, const test_case *c)
{
    static const int axes[3] = {2, 0, 1};
    (void)c;
    return dt_permute(g, in[0], axes);
}
static dt_tensor b_embed(dt_graph *g, const dt_tensor *in, const test_case *c)
{
    static const int32_t tokens[6] = {3, 0, 3, 1, 3, 4};
    (void)c;
    return dt_embed(g, in[0], dt_tokens_from(g, dt_shape2(2, 3), tokens));
}
static dt_tensor b_cross_entropy(dt_graph *g, const dt_tensor *in, const test_case *c)
{
    static const int32_t targets[6] = {3, -1, 0, 6, -1, 2};
    (void)c;
    return dt_cross_entropy(g, in[0], dt_tokens_from(g, dt_shape2(2, 3), targets));
}
/* Row- and column-parallel products on four tensor shards: parts and COMBINE (R6). */
static dt_tensor b_parallel(dt_graph *g, const dt_tensor *in, const test_case *c)
{
    g->tensor_shards = c->a;
    return dt_linear_row(g, dt_linear_column(g, in[0], "column", 16, 0.3f), "row", 8, 0.3f);
}

static void check_gradients(void)
{
    const dt_shape x = dt_shape3(3, 4, 5);
    const test_case table[] = {
        {"neg", b_neg, 1, {x, x, x}, -2, 2, 0, 0}, {"scale", b_scale, 1, {x, x, x}, -2, 2, 0, 0},
        {"exp", b_exp, 1, {x, x, x}, -2, 2, 0, 0}, {"log", b_log, 1, {x, x, x}, 0.5f, 3, 0, 0},
        {"tanh", b_tanh, 1, {x, x, x}, -2, 2, 0, 0}, {"sqrt", b_sqrt, 1, {x, x, x}, 0.5f, 3, 0, 0},
        {"rsqrt", b_rsqrt, 1, {x, x, x}, 0.6f, 3, 0, 0}, {"gelu", b_gelu, 1, {x, x, x}, -4, 4, 0, 0},
        {"add", b_add, 2, {x, x, x}, -2, 2, 0, 0}, {"sub", b_sub, 2, {x, x, x}, -2, 2, 0, 0},
        {"mul", b_mul, 2, {x, x, x}, -2, 2, 0, 0}, {"div", b_div, 2, {x, x, x}, 0.7f, 2, 0, 0},
        {"add (C)", b_add, 2, {x, dt_shape1(5), x}, -2, 2, 0, 0}, {"mul (T,C)", b_mul, 2, {x, dt_shape2(4, 5), x}, -2, 2, 0, 0},
        {"mul (B,1,C)", b_mul, 2, {x, dt_shape3(3, 1, 5), x}, -2, 2, 0, 0},
        {"sub (B,T,1) on the left", b_sub, 2, {dt_shape3(3, 4, 1), x, x}, -2, 2, 0, 0},
        {"div by a scalar", b_div, 2, {x, dt_shape0(), x}, 0.7f, 2, 0, 0},
        {"outer product by broadcasting", b_mul, 2, {dt_shape2(4, 1), dt_shape2(1, 5), x}, -2, 2, 0, 0},
        {"reshape, used twice", b_reshape, 1, {x, x, x}, -2, 2, 0, 0}, {"permute", b_permute, 1, {x, x, x}, -2, 2, 0, 0},
        {"slice axis 0", b_slice, 1, {x, x, x}, -2, 2, 0, 1}, {"slice axis 2", b_slice, 1, {x, x, x}, -2, 2, 2, 3},
        {"expand", b_expand, 1, {dt_shape2(4, 1), x, x}, -2, 2, 0, 0},
        {"matmul", b_matmul, 2, {dt_shape2(5, 7), dt_shape2(7, 3), x}, -1, 1, 0, 0},
        {"matmul ^T.", b_matmul, 2, {dt_shape2(7, 5), dt_shape2(7, 3), x}, -1, 1, 1, 0},
        {"matmul .^T", b_matmul, 2, {dt_shape2(5, 7), dt_shape2(3, 7), x}, -1, 1, 0, 1},
        {"matmul ^T^T", b_matmul, 2, {dt_shape2(7, 5), dt_shape2(3, 7), x}, -1, 1, 1, 1},
        {"matmul batch", b_matmul, 2, {dt_shape4(2, 2, 5, 7), dt_shape4(2, 2, 7, 3), x}, -1, 1, 0, 0},
        {"matmul batch ^T^T", b_matmul, 2, {dt_shape3(2, 7, 5), dt_shape3(2, 3, 7), x}, -1, 1, 1, 1},
        {"matmul batch by a matrix", b_matmul, 2, {dt_shape3(2, 5, 7), dt_shape2(7, 3), x}, -1, 1, 0, 0},
        {"matmul batch by a matrix ^T", b_matmul, 2, {dt_shape3(2, 5, 7), dt_shape2(3, 7), x}, -1, 1, 0, 1},
        {"R6 combine", b_combine, 1, {dt_shape3(4, 3, 5), x, x}, -2, 2, 0, 0},
        {"R6 column and row parallel, Vt 1", b_parallel, 1, {dt_shape3(2, 3, 8), x, x}, -1, 1, 1, 0},
        {"R6 column and row parallel, Vt 4", b_parallel, 1, {dt_shape3(2, 3, 8), x, x}, -1, 1, 4, 0},
        {"attention causal", b_attention, 1, {dt_shape3(2, 5, 24), x, x}, -1, 1, 1, 0},
        {"attention full", b_attention, 1, {dt_shape3(2, 5, 24), x, x}, -1, 1, 0, 0},
        {"attention causal, dropout", b_attention, 1, {dt_shape3(2, 5, 24), x, x}, -1, 1, 1, 3},
        {"dropout", b_dropout, 1, {x, x, x}, -2, 2, 0, 0}, {"layernorm", b_layernorm, 1, {x, x, x}, -2, 2, 0, 0},
        {"linear", b_linear, 1, {x, x, x}, -2, 2, 0, 0}, {"embed", b_embed, 1, {dt_shape2(5, 7), x, x}, -2, 2, 0, 0},
        {"cross-entropy", b_cross_entropy, 1, {dt_shape2(6, 7), x, x}, -2, 2, 0, 0},
        {"a tensor used three times", b_twice, 1, {x, x, x}, -2, 2, 0, 0}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) check_case(&table[i]);
    for (unsigned mask = 1; mask < 16; mask++) { /* all sets of axes of four */
        static const build_fn build[3] = {b_sum, b_mean, b_max};
        static const char *const names[3] = {"sum", "mean", "max"};
        for (int k = 0; k < 3; k++) {
            char name[40];
            test_case c;
            memset(&c, 0, sizeof c);
            snprintf(name, sizeof name, "%s over axes 0x%x", names[k], mask);
            c.name = name, c.build = build[k], c.inputs = 1, c.shape[0] = dt_shape4(2, 3, 4, 2);
            c.low = k == 2 ? -40.0f : -2.0f, c.high = -c.low, c.a = mask; /* max: far apart, so that h changes no winner */
            check_case(&c);
        }
    }
}

/* ---- PyTorch ---------------------------------------------------------------------------------------- */

static tap_golden *golden;

static const float *gold(const char *name, const char *part, int64_t n)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", name, part);
    return tap_golden_f32(golden, full, n);
}

/* Value and the gradients of `in` (named by `parts`) of sum(out * w) against the golden file. */
static void against_torch(dt_graph *g, const char *name, dt_tensor out, const dt_tensor *in, const char *const *parts, int inputs)
{
    char what[96], part[40];
    int64_t n;
    dt_tensor loss;
    if (!out.id) tap_bail("%s: %s", name, dt_last_error());
    n = dt_shape_count(dt_shape_of(g, out));
    snprintf(what, sizeof what, "%s as PyTorch", name);
    tap_near(dt_value(g, out), gold(name, "out", n), n, 1e-5, what);
    loss = dt_sum(g, dt_mul(g, out, dt_tensor_from(g, dt_shape_of(g, out), gold(name, "w", n))), DT_ALL);
    if (dt_backward(g, loss)) tap_bail("%s: %s", name, dt_last_error());
    for (int i = 0; i < inputs; i++) {
        int64_t count = dt_shape_count(dt_shape_of(g, in[i]));
        snprintf(part, sizeof part, "grad.%s", parts[i]);
        snprintf(what, sizeof what, "%s, gradient of %s, as PyTorch", name, parts[i]);
        tap_near(dt_value(g, dt_grad(g, in[i])), gold(name, part, count), count, 1e-5, what);
    }
    dt_graph_close(&g);
}

static dt_graph *fresh(void)
{
    dt_graph *g;
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    return g;
}
static dt_tensor from(dt_graph *g, const char *name, const char *part, dt_shape s) { return dt_tensor_from(g, s, gold(name, part, dt_shape_count(s))); }

static void torch_elementwise(void)
{
    static const char *const ab[] = {"a", "b"}, *const x[] = {"x"};
    static const char *const names[] = {"same", "c", "tc", "b1c"};
    const dt_shape shapes[] = {dt_shape3(2, 5, 7), dt_shape1(7), dt_shape2(5, 7), dt_shape3(2, 1, 7)};
    dt_graph *g = fresh();
    dt_tensor in[2];
    in[0] = from(g, "gelu", "x", dt_shape1(301));
    against_torch(g, "gelu", dt_gelu(g, in[0]), in, x, 1);
    for (int k = 0; k < 8; k++) {
        char name[20];
        snprintf(name, sizeof name, "%s.%s", k / 4 ? "mul" : "add", names[k % 4]);
        g = fresh();
        in[0] = from(g, name, "a", shapes[0]);
        in[1] = from(g, name, "b", shapes[k % 4]);
        against_torch(g, name, k / 4 ? dt_mul(g, in[0], in[1]) : dt_add(g, in[0], in[1]), in, ab, 2);
    }
}

static void torch_reductions(void)
{
    static const char *const x[] = {"x"}, *const axes[] = {"0", "1", "2", "02", "012"};
    static const unsigned mask[] = {1, 2, 4, 5, 7};
    for (int k = 0; k < 15; k++) {
        char name[20];
        dt_graph *g = fresh();
        dt_tensor in;
        snprintf(name, sizeof name, "%s.%s", k / 5 == 0 ? "sum" : k / 5 == 1 ? "mean" : "max", axes[k % 5]);
        in = from(g, name, "x", dt_shape3(3, 5, 37));
        against_torch(g, name, k / 5 == 0 ? dt_sum(g, in, mask[k % 5]) : k / 5 == 1 ? dt_mean(g, in, mask[k % 5]) : dt_max(g, in, mask[k % 5]), &in, x, 1);
    }
}

static void torch_matrices(void)
{
    static const char *const ab[] = {"a", "b"}, *const flags[] = {"nn", "tn", "nt", "tt"};
    for (int k = 0; k < 8; k++) {
        int ta = k & 1, tb = k >> 1 & 1, batch = k >> 2;
        char name[20];
        dt_graph *g = fresh();
        dt_tensor in[2];
        dt_shape a = ta ? dt_shape2(33, 5) : dt_shape2(5, 33), b = tb ? dt_shape2(9, 33) : dt_shape2(33, 9);
        if (batch) a = dt_shape4(2, 3, a.n[0], a.n[1]), b = dt_shape4(2, 3, b.n[0], b.n[1]);
        snprintf(name, sizeof name, "%s.%s", batch ? "matmul" : "matmul2d", flags[k & 3]);
        in[0] = from(g, name, "a", a);
        in[1] = from(g, name, "b", b);
        against_torch(g, name, dt_matmul(g, in[0], in[1], ta, tb), in, ab, 2);
    }
}

/* (B,H,T,D) parts of the golden file as the op's rows [q | k | v]: permuted with the ops themselves. */
static void torch_attention(int causal)
{
    static const char *const qkv[] = {"q", "k", "v"};
    static const int heads_last[4] = {0, 2, 1, 3}, parts_last[4] = {1, 2, 0, 3}, back[4] = {0, 2, 1, 3};
    const char *name = causal ? "attention.causal" : "attention.full";
    dt_graph *g = fresh();
    dt_tensor in[3], rows = {0}, out;
    for (int i = 0; i < 3; i++) {
        dt_tensor one;
        float pick[3] = {0, 0, 0};
        pick[i] = 1.0f;
        in[i] = from(g, name, qkv[i], dt_shape4(2, 3, 7, 5));
        one = dt_reshape(g, dt_permute(g, in[i], heads_last), dt_shape4(1, 2, 7, 15));
        one = dt_mul(g, one, dt_tensor_from(g, dt_shape4(3, 1, 1, 1), pick)); /* into place i of 3 */
        rows = i ? dt_add(g, rows, one) : one;
    }
    rows = dt_reshape(g, dt_permute(g, rows, parts_last), dt_shape3(2, 7, 45));
    out = dt_attention(g, rows, 3, causal, 0.0f);
    out = dt_permute(g, dt_reshape(g, out, dt_shape4(2, 7, 3, 5)), back);
    against_torch(g, name, out, in, qkv, 3);
}

static void torch_models(void)
{
    static const char *const x[] = {"x"}, *const logits[] = {"logits"}, *const table[] = {"table"};
    dt_graph *g = fresh();
    dt_tensor in = from(g, "cross_entropy", "logits", dt_shape2(9, 61)), out;
    out = dt_cross_entropy(g, in, dt_tokens_from(g, dt_shape1(9), tap_golden_i32(golden, "cross_entropy.targets", 9)));
    against_torch(g, "cross_entropy", dt_reshape(g, out, dt_shape1(1)), &in, logits, 1);
    g = fresh();
    in = from(g, "embedding", "table", dt_shape2(13, 11));
    against_torch(g, "embedding", dt_embed(g, in, dt_tokens_from(g, dt_shape2(4, 9), tap_golden_i32(golden, "embedding.tokens", 36))), &in, table, 1);
    g = fresh(); /* softmax from its parts */
    in = from(g, "softmax", "x", dt_shape2(5, 45));
    out = dt_exp(g, dt_sub(g, in, dt_reshape(g, dt_max(g, in, 2), dt_shape2(5, 1))));
    against_torch(g, "softmax", dt_div(g, out, dt_reshape(g, dt_sum(g, out, 2), dt_shape2(5, 1))), &in, x, 1);
    g = fresh();
    in = from(g, "slice", "x", dt_shape3(4, 5, 7));
    against_torch(g, "slice", dt_slice(g, dt_slice(g, in, 0, 1, 3), 2, 2, 6), &in, x, 1);
}

/* ---- planned and eager ------------------------------------------------------------------------------- */

static const dt__gpt2 small = {2, 2, 8, 11, 0.0f};
static dt_tensor own_block(dt_graph *g, dt_tensor x, const void *user) { return dt__gpt2_block(g, x, user); }

/* A block as a plan and as an eager graph, on the same input, parameters and output gradient. */
static void planned_and_eager(void)
{
    dt_segment s;
    dt__plan *p = NULL;
    dt__bind b;
    dt__env env;
    dt_graph *g = fresh();
    dt_shape shape = dt_shape3(2, 6, 8);
    float *memory = (float *)dt__alloc(4 * 400000, "memory"), *params = memory, *slots = memory + 50000, x[96], dy[96];
    int64_t param[32], slot[32], at = 0;
    dt_tensor in, out, loss;
    int same = 1;
    s.name = "block", s.build = own_block, s.user = &small;
    if (dt__segment_plan(&s, shape, dt_shape2(2, 6), 0, 0, &p)) tap_bail("%s", dt_last_error());
    for (int i = 0; i < 96; i++) x[i] = random_in((uint64_t)i, 3, -1, 1), dy[i] = random_in((uint64_t)i, 4, -1, 1);
    snprintf(g->prefix, sizeof g->prefix, "block");
    in = dt_tensor_from(g, shape, x);
    out = own_block(g, in, &small);
    loss = dt_sum(g, dt_mul(g, out, dt_tensor_from(g, shape, dy)), DT_ALL);
    if (dt_backward(g, loss)) tap_bail("%s", dt_last_error());
    memset(&b, 0, sizeof b), memset(&env, 0, sizeof env);
    for (int32_t i = 0; i < p->g->param_count; i++) param[i] = at, at += 4096;
    for (int32_t i = 0; i < p->g->slot_count; i++) slot[i] = (int64_t)i * 4096;
    b.params = params, b.slots = slots, b.param = param, b.slot = slot;
    b.at[DT__AT_INPUT] = x, b.at[DT__AT_GRAD_OUT] = dy;
    b.at[DT__AT_OUTPUT] = memory + 100000, b.at[DT__AT_GRAD_IN] = memory + 110000;
    b.at[DT__AT_SAVED] = memory + 120000, b.at[DT__AT_TEMP] = memory + 260000;
    env.k = g->kernels, env.pool = g->pool;
    for (int32_t i = 0; i < p->g->param_count; i++) dt__init_param(&p->g->params[i], 1, NULL, params + param[i]);
    dt__pool_reserve(g->pool, 1 << 22);
    dt__plan_run(p, 0, p->forward_count, &b, &env, 0);
    dt__plan_run(p, p->forward_count, p->backward_count, &b, &env, 1);
    tap_same_bits(b.at[DT__AT_OUTPUT], dt_value(g, out), 96, "planned and eager GPT-2 block: output");
    tap_same_bits(b.at[DT__AT_GRAD_IN], dt_value(g, dt_grad(g, in)), 96, "planned and eager GPT-2 block: input gradient");
    for (int32_t i = 0, k = 0; i < g->count; i++)
        if (g->nodes[i].op == DT__OP_PARAM) {
            dt_tensor d = dt_grad(g, dt__tensor(i));
            int32_t j = 0;
            while (p->g->slots[j].param != k) j++;
            same = same && d.id && !memcmp(dt_value(g, d), slots + slot[j], 4 * (size_t)dt__count(&g->nodes[i]));
            k++;
        }
    tap_ok(same, "planned and eager GPT-2 block: all parameter gradients, bit for bit");
    dt__plan_close(&p);
    dt_graph_close(&g);
    dt__free(memory);
}

/* ---- wrong calls ------------------------------------------------------------------------------------------ */

/* The call poisoned the graph, and the sentence has these words. */
static void refused(dt_graph *g, dt_tensor t, const char *words)
{
    dt_tensor later = dt_add(g, t, t);
    tap_ok(!t.id && !later.id && dt_graph_result(g) != DT_OK && strstr(dt_last_error(), words), "refused: %s", dt_last_error());
    dt_graph_close(&g);
}

static void check_refusals(void)
{
    static const int32_t tokens[4] = {0, 1, 2, 9};
    static const int twice[3] = {0, 0, 1};
    static const float zeros[64] = {0};
    const dt_shape x = dt_shape3(2, 3, 4);
#define REFUSE(call, words)                                                                                  \
    do {                                                                                                     \
        dt_graph *g = fresh();                                                                               \
        dt_tensor a = dt_tensor_from(g, x, zeros), m = dt_tensor_from(g, dt_shape2(4, 5), zeros);            \
        dt_tensor ids = dt_tokens_from(g, dt_shape1(4), tokens);                                             \
        dt_tensor bad = call;                                                                                \
        (void)a, (void)m, (void)ids;                                                                         \
        refused(g, bad, words);                                                                              \
    } while (0)
    REFUSE(dt_add(g, a, m), "ADD: shapes (2,3,4) and (4,5) do not broadcast");
    REFUSE(dt_matmul(g, a, m, 0, 1), "matmul: (2,3,4) and (4,5)^T do not fit");
    REFUSE(dt_matmul(g, a, m, 1, 0), "matmul");
    REFUSE(dt_reshape(g, a, dt_shape1(23)), "reshape: (23) does not have as many elements as (2,3,4)");
    REFUSE(dt_permute(g, a, twice), "permute: axis 0");
    REFUSE(dt_slice(g, a, 1, 2, 5), "slice: [2, 5) of axis 1");
    REFUSE(dt_slice(g, a, 3, 0, 1), "slice");
    REFUSE(dt_expand(g, a, dt_shape3(2, 3, 5)), "expand: (2,3,4) does not broadcast to (2,3,5)");
    REFUSE(dt_sum(g, a, 8), "sum: axis mask 0x8");
    REFUSE(dt_embed(g, m, ids), "embed: token 9 at 3 is outside [0, 4)");
    REFUSE(dt_embed(g, a, ids), "embed: needs a table");
    REFUSE(dt_attention(g, a, 5, 1, 0.0f), "attention");
    REFUSE(dt_attention(g, dt_tensor_from(g, dt_shape3(1, 1, 12), zeros), 2, 1, 1.5f), "dropout 1.5");
    REFUSE(dt_dropout(g, a, -0.1f), "dropout -0.1");
    REFUSE(dt_cross_entropy(g, m, ids), "cross_entropy: target 9 is outside the 5 classes");
    REFUSE(dt_cross_entropy(g, a, ids), "cross_entropy: needs one int32 target per row");
    REFUSE(dt_combine(g, dt_tensor_from(g, dt_shape2(3, 4), zeros)), "combine: axis 0 holds 3 parts");
    REFUSE(dt_param(g, "p", dt_shape2(0, 4), DT_INIT_ZEROS, 0), "shape (0,4)");
    REFUSE(dt_targets(g), "dt_targets");
    REFUSE(dt_grad(g, a), "dt_grad");
#undef REFUSE
    {
        dt_graph *g = fresh();
        dt_tensor a = dt_tensor_from(g, x, zeros), first = dt_reshape(g, a, dt_shape1(7));
        dt_add(g, dt_slice(g, a, 9, 0, 1), first);
        tap_ok(dt_graph_result(g) == DT_E_SHAPE && strstr(dt_last_error(), "reshape"), "the first error is kept: %s", dt_last_error());
        tap_ok(dt_backward(g, a) == DT_E_SHAPE && !dt_value(g, first), "a poisoned graph has no gradient and no value");
        dt_graph_close(&g);
        g = fresh();
        a = dt_tensor_from(g, x, zeros);
        tap_ok(dt_backward(g, a) == DT_E_USAGE, "the loss must be a scalar: %s", dt_last_error());
        dt_graph_close(&g);
    }
}

int main(void)
{
    check_gradients();
    golden = tap_golden_open("ops.safetensors");
    if (!golden) tap_bail("no golden file");
    torch_elementwise();
    torch_reductions();
    torch_matrices();
    torch_attention(1);
    torch_attention(0);
    torch_models();
    planned_and_eager();
    check_refusals();
    tap_golden_close(golden);
    return tap_done();
}
