/* The Llama family: its sizes, the gradient of an input that several column-parallel weights share (R6), blocks cut into
 * tensor shards, and what is refused. Values against PyTorch are in test_golden.c, one hash in test_hash.t, text in
 * test_generate.c. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tap.h"

/* ---- sizes ----------------------------------------------------------------------------------------------- */

/* Parameters of the published models with their vocabularies. */
static void check_sizes(void)
{
    static const struct {
        const char *name;
        int64_t vocabulary, weights, hidden;
        float base;
        double slowing;
    } published[] = {{"llama-1.1B", 32000, 1100048384, 5632, 1e4f, 0},  {"llama-7B", 32000, 6738415616, 11008, 1e4f, 0},
                     {"llama-13B", 32000, 13015864320, 13824, 1e4f, 0}, {"llama3-8B", 128256, 8030261248, 14336, 5e5f, 0},
                     {"llama3.2-1B", 128256, 1235814400, 8192, 5e5f, 32}};
    for (int i = 0; i < 5; i++) {
        dt_model m = dt_model_llama(published[i].name);
        dt__net net;
        memset(&net, 0, sizeof net);
        m.vocabulary = published[i].vocabulary;
        if (dt__net_open(&net, &m, 1, 2)) tap_bail("%s", dt_last_error());
        tap_ok(net.weights == published[i].weights && net.model.hidden == published[i].hidden, "%s: %lld parameters, hidden %lld",
               published[i].name, (long long)net.weights, (long long)net.model.hidden);
        tap_ok(dt__net_find(&net, "model.layers.15.self_attn.k_proj.weight") >= 0 && dt__net_find(&net, "model.norm.weight") >= 0 &&
                   (dt__net_find(&net, "lm_head.weight") < 0) == m.tied,
               "%s: the names of Hugging Face", published[i].name);
        tap_ok(net.model.rope_base == published[i].base && net.model.rope_scaling.factor == published[i].slowing && net.model.norm_eps == 1e-5f,
               "%s: rotary base %g, slowed by %g, epsilon 1e-5", published[i].name, (double)published[i].base, published[i].slowing);
        dt__net_close(&net);
    }
    tap_ok(dt_model_llama("llama-huge").layers == 0 && dt_model_llama(NULL).layers == 0, "an unknown size has no layers");
}

/* Fields that are 0 have the values that their docs name. */
static void check_usual(void)
{
    dt_model m = dt_model_llama("llama-nano");
    m.kv_heads = m.hidden = 0, m.rope_base = m.norm_eps = 0.0f;
    m = dt__model_settled(m);
    tap_ok(m.kv_heads == m.heads && m.hidden == 192 && m.rope_base == 10000.0f && m.norm_eps == 1e-5f,
           "0 stands for as many heads of the keys, 8/3 of the width, base 10000, epsilon 1e-5");
}

/* FLOPs of a unit by formula, also where each rank has a part of the tensor shards: products, and attention, whose
 * scores do not shrink with the heads of the keys. */
static void check_flops(void)
{
    dt_model m = dt_model_llama("llama-nano");
    double B = 2, T = 16, C = 64, kv = 32, hidden = 192, V = 256, products, attention;
    m.vocabulary = 256;
    products = 2 * B * T * (2 * (2 * C * C + 2 * C * kv + 3 * C * hidden) + C * V);
    attention = 2 * 4 * B * (T * T / 2) * C;
    for (int shards = 1; shards <= 2; shards++) {
        dt__net net;
        memset(&net, 0, sizeof net);
        net.tensor_shards = shards, net.own_shards = 1;
        if (dt__net_open(&net, &m, 2, 16)) tap_bail("%s", dt_last_error());
        tap_ok(net.forward_flops == products + attention && net.backward_flops == 2 * products + 2 * attention,
               "FLOPs of a unit by formula, of %d ranks: forward %.0f, backward %.0f", shards, net.forward_flops,
               net.backward_flops);
        dt__net_close(&net);
    }
}

/* ---- several weights that share an input ------------------------------------------------------------------- */

enum { ROWS = 6, WIDE = 40, COUNT = 3 };
static const int64_t widths[COUNT] = {24, 8, 16};

static float tree(float *part, int64_t n)
{
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t i = 0; i + step < n; i += 2 * step) part[i] = part[i] + part[i + step];
    return part[0];
}

static void fill(float *x, int64_t n, uint32_t stream)
{
    dt__rng r = dt__rng_make(1, DT__RNG_INIT, stream, 0, 0);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(2.0 * dt__uniform(&r, (uint64_t)i) - 1.0);
}

/* dX element by element: per slice one chain through the slice's columns of every weight in order, then the tree. */
static void plain_dx(const float *const *dy, const float *const *w, int64_t shards, float *dx)
{
    float part[8];
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = 0; c < WIDE; c++) {
            for (int64_t v = 0; v < shards; v++) {
                part[v] = 0.0f;
                for (int i = 0; i < COUNT; i++)
                    for (int64_t j = v * widths[i] / shards; dy[i] && j < (v + 1) * widths[i] / shards; j++)
                        part[v] = fmaf(dy[i][r * widths[i] + j], w[i][c * widths[i] + j], part[v]);
            }
            dx[r * WIDE + c] = tree(part, shards);
        }
}

/* The values of a parameter, put together from tensor shards. */
static void whole(const dt_graph *g, dt_tensor t, float *values)
{
    dt__param_whole(&g->params[dt__at(g, t)->param], dt_value(g, t), values);
}

/* used: bit i when product i is; one that is not has no terms. */
static void check_shared(int64_t shards, int used)
{
    static const char *const names[COUNT] = {"q", "k", "v"};
    static float x[ROWS * WIDE], dy[COUNT][ROWS * 24], w[COUNT][WIDE * 24], want[ROWS * WIDE];
    const float *dys[COUNT], *weights[COUNT];
    char text[100];
    dt_graph *g;
    dt_tensor in, out[COUNT], loss = dt__none();
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    g->tensor_shards = g->own_shards = shards;
    fill(x, ROWS * WIDE, 1);
    in = dt_tensor_of(g, DT_F32, dt_shape3(2, 3, WIDE), x);
    dt__columns(g, in, names, widths, COUNT, 0, out);
    for (int i = 0; i < COUNT; i++) {
        dt_tensor part;
        dys[i] = NULL;
        if (!(used >> i & 1)) continue;
        dys[i] = dy[i], weights[i] = w[i];
        whole(g, dt__input(g, out[i].id, 1), w[i]);
        part = dt__param_cut(g, names[i], ".dy", dt_shape2(ROWS, widths[i]), DT_INIT_NORMAL, 1.0f, 1, 1); /* cut as out is */
        whole(g, part, dy[i]);
        part = dt_mul(g, out[i], dt__each_reshape(g, part, dt_shape3(2, 3, widths[i] / shards)));
        part = dt_sum(g, dt__combine_shards(g, part, 0), DT_ALL);
        loss = loss.id ? dt_add(g, loss, part) : part;
    }
    if (dt_backward(g, loss)) tap_bail("%s", dt_last_error());
    if (dt_grad(g, in).id == 0) tap_bail("used %d: %s", used, dt_last_error());
    plain_dx(dys, weights, shards, want);
    snprintf(text, sizeof text, "R6 three weights share an input, %d shards, used %d%d%d: one chain per slice, one tree",
             (int)shards, used & 1, used >> 1 & 1, used >> 2);
    tap_same_bits(dt_value(g, dt_grad(g, in)), want, ROWS * WIDE, text);
    dt_graph_close(&g);
}

/* ---- a block in tensor shards ------------------------------------------------------------------------------ */

static dt_tensor block(dt_graph **g, const dt_model *m, int64_t shards, dt_tensor *x)
{
    static float values[2 * 5 * 64];
    if (dt_graph_open(g, 1)) tap_bail("%s", dt_last_error());
    (*g)->tensor_shards = (*g)->own_shards = shards;
    fill(values, 2 * 5 * m->width, 9);
    *x = dt_tensor_of(*g, DT_F32, dt_shape3(2, 5, m->width), values);
    return dt__family_block(*g, *x, m);
}

static void check_block(void)
{
    dt_model m = dt__model_settled(dt_model_llama("llama-nano"));
    float y[2][640], dx[2][640];
    for (int i = 0; i < 2; i++) {
        dt_graph *g;
        dt_tensor x, out = block(&g, &m, i + 1, &x);
        if (dt_backward(g, dt_sum(g, dt_mul(g, out, out), DT_ALL))) tap_bail("%s", dt_last_error());
        memcpy(y[i], dt_value(g, out), sizeof y[i]);
        memcpy(dx[i], dt_value(g, dt_grad(g, x)), sizeof dx[i]);
        dt_graph_close(&g);
    }
    tap_near(y[1], y[0], 640, 1e-6, "a block of 2 tensor shards: the same function");
    tap_near(dx[1], dx[0], 640, 1e-6, "and the same gradient");
}

/* A block from public functions has the family's bits forward. */
static void check_public(void)
{
    dt_model m = dt__model_settled(dt_model_llama("llama-nano"));
    dt_graph *g, *h;
    dt_attention_options o;
    dt_tensor x, want = block(&g, &m, 1, &x), n, q, k, v, y;
    if (dt_graph_open(&h, 1)) tap_bail("%s", dt_last_error());
    memset(&o, 0, sizeof o);
    o.heads = m.heads, o.kv_heads = m.kv_heads, o.causal = 1;
    x = dt_tensor_of(h, DT_F32, dt_shape_of(g, x), dt_value(g, x));
    n = dt_rmsnorm(h, x, "input_layernorm", 1e-5f);
    q = dt_rope(h, dt_linear_with(h, n, "self_attn.q_proj", 64, 0.02f, DT_NO_BIAS), m.heads, 10000.0, 0, NULL);
    k = dt_rope(h, dt_linear_with(h, n, "self_attn.k_proj", 32, 0.02f, DT_NO_BIAS), m.kv_heads, 10000.0, 0, NULL);
    v = dt_linear_with(h, n, "self_attn.v_proj", 32, 0.02f, DT_NO_BIAS);
    y = dt_add(h, x, dt_linear_with(h, dt_attend(h, q, k, v, dt__none(), &o), "self_attn.o_proj", 64, 0.01f, DT_NO_BIAS));
    n = dt_rmsnorm(h, y, "post_attention_layernorm", 1e-5f);
    q = dt_silu(h, dt_linear_with(h, n, "mlp.gate_proj", m.hidden, 0.02f, DT_NO_BIAS));
    q = dt_mul(h, q, dt_linear_with(h, n, "mlp.up_proj", m.hidden, 0.02f, DT_NO_BIAS));
    y = dt_add(h, y, dt_linear_with(h, q, "mlp.down_proj", 64, 0.01f, DT_NO_BIAS));
    if (!y.id) tap_bail("%s", dt_last_error());
    tap_same_bits(dt_value(h, y), dt_value(g, want), 640, "a block of dt_linear_with, dt_rope and dt_attend has the family's bits");
    dt_graph_close(&g), dt_graph_close(&h);
}

/* ---- what is refused ---------------------------------------------------------------------------------------- */

static void check_refused(void)
{
    dt_model m = dt__model_settled(dt_model_llama("llama-nano"));
    static const int32_t ids[2];
    dt_graph *g;
    dt_tensor x;
    block(&g, &m, 4, &x);
    tap_ok(dt_graph_result(g) && strstr(dt_last_error(), "2 KV heads do not divide into 4 tensor shards"), "refused: %s", dt_last_error());
    dt_graph_close(&g);
    m.hidden = 99;
    block(&g, &m, 2, &x);
    tap_ok(dt_graph_result(g) && strstr(dt_last_error(), "99 hidden units do not divide into 2"), "refused: %s", dt_last_error());
    dt_graph_close(&g);
    m = dt__model_settled(dt_model_llama("llama-nano"));
    m.vocabulary = 5;
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    g->tensor_shards = g->own_shards = 4, g->targets = dt_tensor_of(g, DT_I32, dt_shape2(1, 2), ids);
    dt__family_head(g, dt_full(g, dt_shape3(1, 2, 64), 1.0f), &m);
    tap_ok(dt_graph_result(g) && strstr(dt_last_error(), "5 token ids are too few for 4 tensor shards"), "refused: %s", dt_last_error());
    dt_graph_close(&g);
}

int main(void)
{
    check_sizes();
    check_usual();
    check_flops();
    for (int64_t shards = 1; shards <= 8; shards *= 2) check_shared(shards, 7);
    for (int used = 1; used < 7; used++) check_shared(2, used);
    check_block();
    check_public();
    check_refused();
    return tap_done();
}
