/* Values and gradients of the ops against PyTorch (golden/ops.safetensors and golden/elementwise.safetensors, made by
 * make_golden.py). Largest difference / largest value per tensor: at most 1e-5. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "maps.h"
#include "tap.h"

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
    loss = dt_sum(g, dt_mul(g, out, dt_tensor_of(g, DT_F32, dt_shape_of(g, out), gold(name, "w", n))), DT_ALL);
    if (inputs && dt_backward(g, loss)) tap_bail("%s: %s", name, dt_last_error());
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
static dt_tensor from(dt_graph *g, const char *name, const char *part, dt_shape s) { return dt_tensor_of(g, DT_F32, s, gold(name, part, dt_shape_count(s))); }

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
        one = dt_mul(g, one, dt_tensor_of(g, DT_F32, dt_shape4(3, 1, 1, 1), pick)); /* into place i of 3 */
        rows = i ? dt_add(g, rows, one) : one;
    }
    rows = dt_reshape(g, dt_permute(g, rows, parts_last), dt_shape3(2, 7, 45));
    out = attention(g, rows, 3, causal, 0.0f);
    out = dt_permute(g, dt_reshape(g, out, dt_shape4(2, 7, 3, 5)), back);
    against_torch(g, name, out, in, qkv, 3);
}

static void torch_models(void)
{
    static const char *const x[] = {"x"}, *const logits[] = {"logits"}, *const table[] = {"table"};
    dt_graph *g = fresh();
    dt_tensor in = from(g, "cross_entropy", "logits", dt_shape2(9, 61)), out;
    out = dt_cross_entropy(g, in, dt_tensor_of(g, DT_I32, dt_shape1(9), tap_golden_i32(golden, "cross_entropy.targets", 9)), 0.0f);
    against_torch(g, "cross_entropy", dt_reshape(g, out, dt_shape1(1)), &in, logits, 1);
    g = fresh();
    in = from(g, "embedding", "table", dt_shape2(13, 11));
    against_torch(g, "embedding", dt_embed(g, in, dt_tensor_of(g, DT_I32, dt_shape2(4, 9), tap_golden_i32(golden, "embedding.tokens", 36))), &in, table, 1);
    g = fresh(); /* softmax from its parts */
    in = from(g, "softmax", "x", dt_shape2(5, 45));
    out = map_exp(g, dt_sub(g, in, dt_reshape(g, dt_max(g, in, 2), dt_shape2(5, 1))));
    against_torch(g, "softmax", map_div(g, out, dt_reshape(g, dt_sum(g, out, 2), dt_shape2(5, 1))), &in, x, 1);
    g = fresh();
    in = from(g, "slice", "x", dt_shape3(4, 5, 7));
    against_torch(g, "slice", dt_slice(g, dt_slice(g, in, 0, 1, 3), 2, 2, 6), &in, x, 1);
}

/* ---- golden/elementwise.safetensors ---- */

static dt_tensor clamp_to(dt_graph *g, dt_tensor x) { return dt_clamp(g, x, -0.5f, 0.75f); }

static void torch_unary(void)
{
    static const struct { const char *name; dt_tensor (*op)(dt_graph *, dt_tensor); } table[] = {
        { "silu", dt_silu }, { "sigmoid", map_sigmoid }, { "relu", dt_relu },
        { "abs", map_abs }, { "square", map_square }, { "reciprocal", map_reciprocal },
        { "clamp", clamp_to },
    };
    static const char *const x[] = { "x" };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        dt_graph *g = fresh();
        dt_tensor in = from(g, table[i].name, "x", dt_shape1(61));
        against_torch(g, table[i].name, table[i].op(g, in), &in, x, 1);
    }
}

static void torch_binary(void)
{
    static const char *const ab[] = { "a", "b" }, *const ops[] = { "maximum", "minimum" }, *const forms[] = { "same", "c", "b1c", "t1" };
    const dt_shape shapes[] = { dt_shape3(2, 5, 7), dt_shape1(7), dt_shape3(2, 1, 7), dt_shape2(5, 1) };
    for (int k = 0; k < 8; k++) {
        int op = k / 4, form = k % 4;
        char name[40];
        dt_graph *g = fresh();
        dt_tensor in[2], y;
        snprintf(name, sizeof name, "%s.%s", ops[op], forms[form]);
        in[0] = from(g, name, "a", shapes[0]);
        in[1] = from(g, name, "b", shapes[form]);
        y = op ? map_minimum(g, in[0], in[1]) : map_maximum(g, in[0], in[1]);
        against_torch(g, name, y, in, ab, 2);
    }
}

static void torch_comparisons(void)
{
    dt_graph *g = fresh();
    dt_tensor a = from(g, "ge", "a", dt_shape2(5, 7)), b = from(g, "ge", "b", dt_shape1(7));
    against_torch(g, "ge", map_greater_equal(g, a, b), NULL, NULL, 0);
}

int main(void)
{
    golden = tap_golden_open("ops.safetensors");
    if (!golden) tap_bail("no golden file");
    torch_elementwise();
    torch_reductions();
    torch_matrices();
    torch_attention(1);
    torch_attention(0);
    torch_models();
    tap_golden_close(golden);
    golden = tap_golden_open("elementwise.safetensors");
    if (!golden) tap_bail("no golden file");
    torch_unary();
    torch_binary();
    torch_comparisons();
    tap_golden_close(golden);
    return tap_done();
}
