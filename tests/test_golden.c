/* A tiny GPT-2, Llama and convolutional network against PyTorch (golden/gpt2_tiny.safetensors, llama_tiny.safetensors and
 * cnn_tiny.safetensors, made by make_golden.py): logits, loss, every gradient, and three steps of AdamW with clipping; in
 * one tensor shard and in several, on whole sequences and in slices of context shards.
 * Largest difference / largest value per tensor: at most 1e-5. Then the GPT-2 with operands in bf16 and fp16 against
 * torch.autocast (golden/gpt2_bf16.safetensors, gpt2_fp16.safetensors): a linear layer and a GELU within one unit in the
 * last place of the type, logits to 2 % of the largest, and the losses of 50 steps to 0.02 nats (R18). */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tap.h"
#include "slot.h"
#include "../examples/conv.h"

enum { B = 4, T = 12, LARGEST = 8192 };
#define LIMIT 1e-5

static dt__engine e;
static dt_recipe recipe;
static dt_layout layout;
static tap_golden *golden;
static int32_t precision;
static int64_t V, C, targets; /* vocabulary or classes, channels, targets of the batch */

static int64_t config(const char *name)
{
    char full[80];
    snprintf(full, sizeof full, "config.%s", name);
    return tap_golden_int(golden, full);
}

enum { CNN = -1, SIDE = 8, CLASSES = 5 };

static dt_tensor features(dt_graph *g, dt_tensor x, const void *user) /* (B,64) -> (B,32) */
{
    int64_t b = dt_dim(g, x, 0);
    conv_window pad, half;
    memset(&pad, 0, sizeof pad);
    memset(&half, 0, sizeof half);
    (void)user;
    pad.size[0] = pad.size[1] = 3, pad.padding[0] = pad.padding[1] = 1;
    half.size[0] = half.size[1] = 2;
    x = dt_gelu(g, conv(g, dt_reshape(g, x, dt_shape4(b, 1, SIDE, SIDE)), "first", 6, &pad));
    x = pool(g, x, 0, &half); /* (B,6,4,4) */
    pad.stride[0] = pad.stride[1] = 2;
    return dt_reshape(g, dt_relu(g, conv(g, x, "second", 8, &pad)), dt_shape2(b, 32));
}
static dt_tensor classify(dt_graph *g, dt_tensor x, const void *user) /* (B,32) -> loss */
{
    (void)user;
    return dt_cross_entropy(g, dt_linear(g, x, "out", CLASSES), dt_targets(g), 0.0f);
}

static dt_source images; /* only its sizes are asked for */

static dt_model the_model(int family)
{
    static const dt_segment network[] = { { "features", features, NULL }, { "head", classify, NULL } };
    dt_model m;
    if (family == CNN) return dt_model_segments(network, 2, CLASSES);
    memset(&m, 0, sizeof m);
    m.family = family;
    m.layers = config("layers"), m.heads = config("heads"), m.width = config("width"), m.vocabulary = config("vocabulary");
    if (family == DT_LLAMA) {
        const float *scaling = tap_golden_f32(golden, "config.rope_scaling", 4);
        m.kv_heads = config("kv_heads"), m.hidden = config("hidden");
        m.norm_eps = *tap_golden_f32(golden, "config.norm_eps", 1);
        m.rope_base = *tap_golden_f32(golden, "config.rope_base", 1);
        m.rope_scaling.factor = (double)scaling[0];
        m.rope_scaling.low_freq_factor = (double)scaling[1], m.rope_scaling.high_freq_factor = (double)scaling[2];
        m.rope_scaling.original_context = (int64_t)scaling[3];
    }
    return m;
}

/* The engine of a trainer, without its data: one unit of (B,T) is the batch, one data shard. */
static void open_engine(int family, int64_t shards, int64_t leaves)
{
    dt__net *n = &e.p.net;
    dt_model *m = &recipe.model;
    const float *decay = tap_golden_f32(golden, "config.decay", 1);
    memset(&e, 0, sizeof e);
    recipe = dt_recipe_default();
    *m = the_model(family);
    V = m->vocabulary, C = m->width;
    targets = family == CNN ? B : B * T;
    images.inputs = SIDE * SIDE, images.targets = 1, images.input_type = DT_F32, images.target_type = DT_I32;
    if (family == CNN) n->source = &images;
    recipe.schedule = DT_CONSTANT;
    recipe.warmup = 0;
    recipe.clip = 1.0f;
    recipe.beta1 = 0.9f, recipe.beta2 = 0.95f, recipe.epsilon = 1e-8f;
    recipe.weight_decay = decay ? *decay : 0.1f;
    recipe.batch = recipe.micro_batch = B, recipe.data_shards = 1;
    layout = dt_layout_default();
    layout.bucket = 1000;
    e.p.recipe = &recipe;
    recipe.precision = precision;
    recipe.tensor_shards = shards, recipe.context_shards = leaves;
    recipe.sequence = family == CNN ? SIDE * SIDE : T;
    e.p.layout = &layout;
    if (dt__choose_kernels(&e.k) || dt__pool_open(&e.pool, 1) || dt_comm_open(&e.comm, NULL, NULL) || dt__engine_begin(&e) ||
        dt__net_open(n, m, e.p.rows, T) || dt__pool_reserve(e.pool, dt__net_scratch(n, e.k)) || dt__engine_open(&e) || dt__engine_allocate(&e))
        tap_bail("%s", dt_last_error());
    e.env.k = e.k;
    e.env.pool = e.pool;
    dt__engine_samples(&e, family == CNN ? (const uint32_t *)(const void *)tap_golden_f32(golden, "tokens", B * SIDE * SIDE)
                                         : (const uint32_t *)(const void *)tap_golden_i32(golden, "tokens", B * T),
                       (const uint32_t *)(const void *)tap_golden_i32(golden, "targets", targets));
}

static void close_engine(void)
{
    dt__engine_close(&e);
    dt__pool_close(&e.pool);
    dt_comm_close(&e.comm);
}

static float forward_backward(void)
{
    float loss[2] = { 0.0f, 0.0f }; /* of context leaves */
    int64_t valid = 0;
    dt_instr back;
    unsigned saved = dt__fp_enter();
    for (int i = 0; i < targets; i++) valid += ((const int32_t *)e.target)[i] >= 0;
    e.inv_valid = 1.0f / (float)valid, e.powers.scale = e.env.loss_scale = precision == DT_PRECISION_FP16 ? 1024.0f : 1.0f;
    memset(&back, 0, sizeof back);
    back.op = DT_BACKWARD, back.fresh = back.completes = 1; /* slot 0, set 0 */
    for (int64_t s = 0; s < e.p.net.count; s++) dt__engine_forward(&e, s, 0);
    for (back.segment = (int32_t)e.p.net.count - 1; back.segment >= 0; back.segment--) dt__engine_backward(&e, &back);
    dt__fp_leave(saved);
    for (int pass = 0; pass < 2; pass++) dt__engine_reading(&e, pass), dt__engine_loss(&e, 0, loss); /* copied, then read */
    return (loss[0] + loss[1]) / (float)valid;
}

/* The logits are lost when the loss' gradient takes their place: forward alone. */
static void check_logits(double limit)
{
    const dt__built *head = &e.p.net.segments[e.p.net.count - 1];
    static float ordered[LARGEST];
    const float *logits;
    const dt__node *n;
    dt__bind b;
    for (int64_t s = 0; s < e.p.net.count; s++) dt__engine_forward(&e, s, 0);
    dt__engine_bind(&e, e.p.net.count - 1, 0, -1, &b);
    logits = dt__where(head->plan, &b, head->plan->g->logits.id);
    n = dt__at(head->plan->g, head->plan->g->logits);
    if ((e.p.net.context_shards || n->cut) && !dt__whole_rows(&e, head->plan->g, n, logits, B, ordered)) logits = ordered;
    tap_near(logits, tap_golden_f32(golden, "logits", targets * V), targets * V, limit, "logits");
}

/* A parameter or its gradient at `at`, put together from tensor shards. */
static const float *whole(const dt__net_param *p, const float *at)
{
    static float values[2][LARGEST];
    static int turn;
    turn = !turn;
    dt__param_whole(&p->is, at, values[turn]);
    return values[turn];
}

static void check_gradients(void)
{
    char name[160];
    static float sum[LARGEST];
    for (int32_t i = 0; i < e.p.net.param_count; i++) {
        const dt__net_param *p = &e.p.net.params[i];
        const float *g = whole(p, e.sets + slot_of(&e.p.net, p, 0));
        int64_t count = dt_shape_count(p->is.shape);
        snprintf(name, sizeof name, "grad.%s", p->is.name);
        if (p->uses == 2) { /* the tied weight: both uses apart, then added */
            const float *h = whole(p, e.sets + slot_of(&e.p.net, p, 1));
            tap_near(g, tap_golden_f32(golden, "grad.wte.embed", count), count, LIMIT, "R8 gradient of wte, embedding use");
            tap_near(h, tap_golden_f32(golden, "grad.wte.head", count), count, LIMIT, "R8 gradient of wte, head use");
            for (int64_t j = 0; j < count; j++) sum[j] = g[j] + h[j];
            g = sum;
        }
        tap_near(g, tap_golden_f32(golden, name, count), count, LIMIT, name);
    }
}

/* The key third of a qkv bias has no gradient but rounding noise, which AdamW blows up: it is left out. So it does
 * to the noise of any gradient that is nearly 0, and context slices make another noise. */
static void check_step(int step)
{
    const double limit = e.p.net.context_shards ? 3 * LIMIT : LIMIT;
    char name[160], what[200];
    for (int32_t i = 0; i < e.p.net.param_count; i++) {
        const dt__net_param *p = &e.p.net.params[i];
        const float *got = whole(p, e.params + p->offset), *want;
        int64_t count = dt_shape_count(p->is.shape);
        snprintf(name, sizeof name, "step%d.%s", step, p->is.name);
        want = tap_golden_f32(golden, name, count);
        if (strstr(name, "c_attn.bias")) {
            snprintf(what, sizeof what, "%s, queries", name);
            tap_near(got, want, C, limit, what);
            snprintf(what, sizeof what, "%s, values", name);
            tap_near(got + 2 * C, want + 2 * C, C, limit, what);
        } else tap_near(got, want, count, limit, name);
    }
}

static void start_there(void)
{
    for (int32_t i = 0; i < e.p.net.param_count; i++) {
        const dt__net_param *p = &e.p.net.params[i];
        const float *start = tap_golden_f32(golden, p->is.name, dt_shape_count(p->is.shape));
        if (!start) tap_bail("no %s in the golden file", p->is.name);
        cut_up(&p->is, start, e.params + p->offset);
    }
}

static void check_model(const char *file, int family, int64_t shards, int64_t leaves)
{
    const float *rate, *loss, *norm;
    golden = tap_golden_open(file);
    if (!golden) tap_bail("no golden file");
    tap_note("%s, %d tensor shards, %d context shards", file, (int)shards, (int)leaves);
    open_engine(family, shards, leaves);
    rate = tap_golden_f32(golden, "step.lr", 3);
    loss = tap_golden_f32(golden, "step.loss", 3);
    norm = tap_golden_f32(golden, "step.norm", 3);
    start_there();
    check_logits(LIMIT);
    for (int step = 0; step < 3; step++) {
        float got = forward_backward();
        if (!step) check_gradients();
        tap_near(&got, loss + step, 1, LIMIT, "loss at the start of the step");
        recipe.learning_rate = rate[step];
        if (dt__engine_tie(&e) || dt__engine_update(&e)) tap_bail("%s", dt_last_error());
        tap_near(&e.norm, norm + step, 1, LIMIT, "gradient norm");
        check_step(step + 1);
        e.step++;
    }
    close_engine();
    tap_golden_close(golden);
}

/* The largest distance in units in the last place of a type of so many bits, of which `more` may come from elsewhere. */
static double ulps(const float *got, const float *want, int64_t n, int bits, double more)
{
    double most = 0.0;
    for (int64_t i = 0; i < n; i++) {
        int exponent;
        frexp((double)want[i], &exponent);
        most = fmax(most, (fabs((double)got[i] - (double)want[i]) - more) / ldexp(1.0, exponent - bits));
    }
    return most;
}
static void check_mixed_ops(int half)
{
    enum { M = 33, K = 70, N = 45 };
    dt_graph *g;
    dt_tensor x, w, b, y, h;
    const char *name = half ? "fp16" : "bf16";
    int bits = half ? 11 : 8;
    double far;
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    g->precision = half ? DT_F16 : DT_BF16;
    x = dt_tensor_of(g, DT_F32, dt_shape2(M, K), tap_golden_f32(golden, "linear.x", M * K));
    w = dt_tensor_of(g, DT_F32, dt_shape2(K, N), tap_golden_f32(golden, "linear.w", K * N));
    b = dt_tensor_of(g, DT_F32, dt_shape1(N), tap_golden_f32(golden, "linear.b", N));
    y = dt__narrow(g, dt_add(g, dt__matmul(g, dt__narrow(g, x), dt__narrow(g, w), 0, 0), b));
    h = dt_gelu(g, dt__narrow(g, dt_tensor_of(g, DT_F32, dt_shape2(M, N), tap_golden_f32(golden, "gelu.x", M * N))));
    if (dt_graph_result(g)) tap_bail("%s", dt_last_error());
    far = ulps(dt_value(g, y), tap_golden_f32(golden, "linear.out", M * N), M * N, bits, ldexp(0.5, -bits - 1)); /* torch rounds the bias */
    tap_ok(far <= 1.0, "R18 a linear layer is within 1 ulp of %s (%.3f)", name, far);
    far = ulps(dt_value(g, h), tap_golden_f32(golden, "gelu.out", M * N), M * N, bits, 0.0);
    tap_ok(far <= 1.0, "R18 a GELU is within 1 ulp of %s (%.3f)", name, far);
    dt_graph_close(&g);
}
static void check_mixed(int half)
{
    enum { STEPS = 50 };
    tap_golden *start = tap_golden_open("gpt2_tiny.safetensors"), *mixed = tap_golden_open(half ? "gpt2_fp16.safetensors" : "gpt2_bf16.safetensors");
    const float *losses = mixed ? tap_golden_f32(mixed, "losses", STEPS) : NULL;
    double far = 0.0;
    if (!start || !losses) tap_bail("no golden file");
    precision = half ? DT_PRECISION_FP16 : DT_PRECISION_BF16;
    golden = start;
    open_engine(DT_GPT2, 1, 1);
    start_there();
    golden = mixed;
    check_mixed_ops(half);
    check_logits(0.02);
    recipe.learning_rate = 1e-3f;
    for (int step = 0; step < STEPS; step++) {
        far = fmax(far, fabs((double)forward_backward() - (double)losses[step]));
        if (dt__engine_tie(&e) || dt__engine_update(&e)) tap_bail("%s", dt_last_error());
        e.step++;
    }
    tap_ok(far < 0.02, "R18 the losses of %d steps in %s are those of torch's autocast to 0.02 nats (%.5f)", STEPS, half ? "fp16" : "bf16", far);
    close_engine();
    tap_golden_close(start);
    tap_golden_close(mixed);
}

int main(void)
{
    for (int64_t shards = 1; shards <= 2; shards *= 2)
        for (int64_t leaves = 1; leaves <= 2; leaves *= 2) {
            check_model("gpt2_tiny.safetensors", DT_GPT2, shards, leaves);
            check_model("llama_tiny.safetensors", DT_LLAMA, shards, leaves);
        }
    for (int64_t shards = 1; shards <= 4; shards *= 2) check_model("cnn_tiny.safetensors", CNN, shards, 1);
    check_mixed(0);
    check_mixed(1);
    return tap_done();
}
