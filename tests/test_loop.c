/* test_loop.c: what a program's own training loop stands on: recorded graphs, their parameters, the optimizers on arrays,
 * and tensors saved and loaded. References are eager graphs, the trainer, and formulas in double. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tap.h"

#include <sys/stat.h>

enum { B = 8, IN = 5, CLASSES = 4 };
static const char *folder;

/* A test that prints the error of what it did. */
#define told(pass, ...)                  \
    do {                                 \
        int passed = (pass) ? 1 : 0;     \
        tap_ok(passed, __VA_ARGS__);     \
    } while (0)

static void numbers(float *x, int64_t n, uint32_t stream)
{
    dt__rng r = dt__rng_make(7, DT__RNG_INIT, stream, 0, 0);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(2 * dt__uniform(&r, (uint64_t)i) - 1);
}

/* A model with dropout, norms, attention over the batch and ignored targets. */
typedef struct built {
    dt_graph *g;
    dt_tensor x, targets, loss;
} built;
static dt_tensor model(dt_graph *g, dt_tensor x)
{
    dt_attention_options how;
    dt_tensor none, h = dt_linear_with(g, x, "in", 12, 0.5f, 0);
    memset(&how, 0, sizeof how);
    none.id = 0, how.heads = 2;
    h = dt_dropout(g, dt_gelu(g, h), 0.25f);
    h = dt_layernorm(g, dt_reshape(g, h, dt_shape3(2, B / 2, 12)), "norm", 1e-5f);
    h = dt_attend(g, dt_linear_with(g, h, "qkv", 36, 0.3f, DT_NO_BIAS), none, none, none, &how);
    return dt_linear_with(g, dt_reshape(g, h, dt_shape2(B, 12)), "out", CLASSES, 0.5f, 0);
}
static void build(built *b, const float *x, const int32_t *targets)
{
    b->x = dt_tensor_of(b->g, DT_F32, dt_shape2(B, IN), x);
    b->targets = dt_tensor_of(b->g, DT_I32, dt_shape1(B), targets);
    b->loss = dt_cross_entropy(b->g, model(b->g, b->x), b->targets, 0);
    if (dt_backward(b->g, b->loss)) tap_bail("%s", dt_last_error());
}

static int same_gradients(const built *a, const built *b)
{
    dt_parameter p[8], q[8];
    int64_t n = dt_graph_parameters(a->g, p, 8), fine = n == 7 && dt_graph_parameters(b->g, q, 8) == n;
    for (int64_t i = 0; i < n && fine; i++)
        fine = !strcmp(p[i].name, q[i].name) && p[i].gradient && q[i].gradient &&
               !memcmp(p[i].gradient, q[i].gradient, 4 * (size_t)dt_shape_count(p[i].shape));
    return (int)fine;
}

static void test_graphs(void)
{
    float x[B * IN], first;
    int32_t targets[B] = {0, 1, 2, 3, -1, 1, 0, 2}, other[B] = {3, -1, -1, 0, 1, 1, 0, 2};
    built eager, r;
    for (int threads = 0; threads < 4; threads += 3) {
        numbers(x, B * IN, 1);
        dt_graph_open(&eager.g, 3);
        build(&eager, x, targets);
        tap_ok(!dt_graph_record(&r.g, 3, threads), "a recorded graph, %d threads", threads);
        build(&r, x, targets);
        tap_ok(*dt_value(r.g, r.loss) == 0, "  computes nothing before it runs");
        tap_ok(!dt_graph_run(r.g) && *dt_value(r.g, r.loss) == *dt_value(eager.g, eager.loss) && same_gradients(&eager, &r),
               "  then it has the eager graph's bits");
        first = *dt_value(r.g, r.loss);
        tap_ok(!dt_graph_run(r.g) && *dt_value(r.g, r.loss) != first, "  dropout draws anew in the second run");
        dt_graph_close(&eager.g);
        numbers(x, B * IN, 2);
        dt_graph_open(&eager.g, 3);
        eager.g->runs = 2;
        build(&eager, x, other);
        tap_ok(!dt_graph_set(r.g, r.x, x) && !dt_graph_set(r.g, r.targets, other) && !dt_graph_run(r.g) &&
               *dt_value(r.g, r.loss) == *dt_value(eager.g, eager.loss) && same_gradients(&eager, &r),
               "  new data, with more ignored targets: the bits of a graph built for them");
        tap_ok(!dt_graph_run(eager.g) && !dt_graph_run(r.g) && *dt_value(r.g, r.loss) != first &&
               same_gradients(&eager, &r), "  an eager graph runs again, too");
        other[2] = CLASSES;
        told(!dt_graph_set(r.g, r.targets, other) && dt_graph_run(r.g) == DT_E_SHAPE &&
               strstr(dt_last_error(), "index 4 at 2 is outside [0, 4)"), "  a target out of range: %s", dt_last_error());
        other[2] = -1;
        told(dt_graph_set(eager.g, eager.loss, x) == DT_E_USAGE, "  a result cannot be set: %s", dt_last_error());
        dt_graph_close(&eager.g);
        dt_graph_close(&r.g);
    }
}

static void test_names(void)
{
    dt_graph *g = NULL;
    dt_parameter one;
    dt_tensor a, b, t;
    float x[2] = {1, 2};
    dt_graph_open(&g, 1);
    a = dt_param(g, "/shared", dt_shape1(2), DT_INIT_ONES, 0);
    b = dt_param(g, "/shared", dt_shape1(2), DT_INIT_ONES, 0);
    tap_ok(a.id && a.id == b.id && dt_graph_parameters(g, &one, 1) == 1 && !strcmp(one.name, "shared") && !one.gradient,
           "a shared parameter is one");
    t = dt_add(g, dt_mul(g, a, dt_tensor_of(g, DT_F32, dt_shape1(2), x)), b);
    dt_backward(g, dt_sum(g, t, DT_ALL));
    dt_graph_parameters(g, &one, 1);
    tap_ok(one.gradient && one.gradient[0] == 2 && one.gradient[1] == 3, "  and its gradient that of both uses");
    t = dt_param(g, "shared", dt_shape1(2), DT_INIT_ONES, 0);
    told(!t.id && dt_graph_result(g) == DT_E_USAGE, "another one of its name is refused: %s", dt_last_error());
    dt_graph_close(&g);
    tap_ok(!dt_graph_open(&g, 1) && dt_param(g, "w", dt_shape1(2), DT_INIT_ONES, 0).id &&
           !dt_param(g, "w", dt_shape1(2), DT_INIT_ONES, 0).id && dt_graph_result(g) == DT_E_USAGE,
           "two without '/' are refused");
    dt_graph_close(&g);
}

/* ---- the optimizer: the trainer's bits ---- */

static dt_result fetch(void *user, dt_split split, int64_t i, void *in, void *out)
{
    (void)user, (void)split, (void)i; /* every sample is the same: the trainer shuffles them */
    numbers((float *)in, IN, 5), numbers((float *)out, 1, 6);
    return DT_OK;
}
static dt_tensor net(dt_graph *g, dt_tensor x)
{
    return dt_linear_with(g, dt_tanh(g, dt_linear_with(g, x, "a", 700, 0.5f, 0)), "b", 1, 0.5f, 0);
}
static dt_tensor segment(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_error_loss(g, DT_MSE, net(g, x), dt_targets(g));
}
static void test_optimizer(int kind, const char *name)
{
    static const char *const names[] = {"a.weight", "a.bias", "b.weight", "b.bias"};
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_segment one;
    dt_source source;
    dt_trainer *t = NULL;
    dt_step_info info = dt_step_info_zero(), own = info;
    dt_graph *g = NULL;
    dt_optimizer *o = NULL;
    dt_parameter p[4];
    float x[B * IN], y[B];
    dt_tensor loss;
    int fine = 1;
    memset(&one, 0, sizeof one), memset(&source, 0, sizeof source);
    one.name = "", one.build = segment;
    source.samples[0] = B, source.inputs = IN, source.targets = 1, source.fetch = fetch;
    recipe.model = dt_model_segments(&one, 1, 0), recipe.source = &source;
    recipe.batch = B, recipe.steps = 12, recipe.warmup = 3, recipe.data_shards = 1, recipe.validation = 0;
    recipe.optimizer = kind, recipe.momentum = kind == DT_SGD ? 0.9f : 0, recipe.nesterov = kind == DT_SGD, recipe.clip = 0.5f, recipe.clip_value = 0.1f;
    layout.output.quiet = 1, layout.threads = 1;
    for (int i = 0; i < B; i++) fetch(NULL, DT_TRAIN, i, x + i * IN, y + i);
    if (dt_trainer_open(&t, &recipe, &layout) || dt_graph_record(&g, (uint64_t)recipe.seed, 2)) tap_bail("%s", dt_last_error());
    loss = dt_error_loss(g, DT_MSE, net(g, dt_tensor_of(g, DT_F32, dt_shape2(B, IN), x)), dt_tensor_of(g, DT_F32, dt_shape2(B, 1), y));
    dt_backward(g, loss);
    if (dt_optimizer_open(&o, &recipe, p, dt_graph_parameters(g, p, 4))) tap_bail("%s", dt_last_error());
    for (int step = 0; step < 12 && fine; step++) {
        fine = !dt_graph_run(g) && !dt_optimizer_step(o, NULL, &own) && !dt_trainer_step(t, &info);
        fine = fine && *dt_value(g, loss) == info.loss && own.norm == info.norm && own.learning_rate == info.learning_rate &&
               own.step == info.step;
        for (int i = 0; i < 4 && fine; i++) {
            int64_t n;
            const float *w = dt_trainer_parameter(t, names[i], &n);
            fine = n == dt_shape_count(p[i].shape) && !memcmp(w, p[i].values, 4 * (size_t)n);
        }
        if (!fine) tap_note("step %d: loss %.9g, %.9g; norm %.9g, %.9g", step, (double)*dt_value(g, loss), (double)info.loss, (double)own.norm, (double)info.norm);
    }
    tap_ok(fine, "%s: an own loop has the trainer's loss, norm, rate and weights, bit by bit", name);
    dt_optimizer_close(&o);
    dt_graph_close(&g);
    dt_trainer_close(&t);
}

static void test_refusals(void)
{
    dt_recipe recipe = dt_recipe_default();
    float w[2] = {1, 2}, gradient[2] = {0, 0};
    dt_parameter p;
    dt_optimizer *o = NULL;
    p.name = "w", p.shape = dt_shape1(2), p.values = w, p.gradient = NULL;
    told(dt_optimizer_open(&o, &recipe, &p, 1) == DT_E_USAGE && !o && strstr(dt_last_error(), "dt_backward"),
           "no gradient: %s", dt_last_error());
    p.gradient = gradient, recipe.beta1 = 1;
    told(dt_optimizer_open(&o, &recipe, &p, 1) == DT_E_USAGE && !o && strstr(dt_last_error(), "beta1"),
           "a beta of 1: %s", dt_last_error());
    recipe = dt_recipe_default(), gradient[1] = __builtin_inff();
    told(!dt_optimizer_open(&o, &recipe, &p, 1) && dt_optimizer_step(o, NULL, NULL) == DT_E_NUMERIC && w[0] == 1 && w[1] == 2,
           "an infinite gradient: %s", dt_last_error());
    gradient[1] = 0, gradient[0] = 1;
    tap_ok(!dt_optimizer_step(o, NULL, NULL) && w[0] < 1, "  and the next step is the first");
    dt_optimizer_close(&o);
    tap_ok(!dt_optimizer_open(&o, &recipe, NULL, 0) && !dt_optimizer_step(o, NULL, NULL), "an optimizer of nothing");
    dt_optimizer_close(&o);
    dt_optimizer_close(&o);
}

/* ---- save and load ---- */

static void test_files(void)
{
    float a[6], b[3], c[6], zero[6] = {0};
    char path[300], none[300];
    dt_parameter p[2], q[2];
    struct stat is;
    snprintf(path, sizeof path, "%s/tensors.safetensors", folder);
    snprintf(none, sizeof none, "%s/none/tensors.safetensors", folder);
    numbers(a, 6, 8), numbers(b, 3, 9);
    memset(c, 0, sizeof c);
    p[0].name = "a \"quoted\" name", p[0].shape = dt_shape2(2, 3), p[0].values = a, p[0].gradient = NULL;
    p[1].name = "b", p[1].shape = dt_shape1(3), p[1].values = b, p[1].gradient = NULL;
    tap_ok(!dt_parameters_save(path, p, 2) && !stat(path, &is), "two tensors are saved");
    q[0] = p[0], q[0].values = c;
    tap_ok(!dt_parameters_load(path, q, 1) && !memcmp(a, c, sizeof a), "  one of them is loaded");
    memset(c, 0, sizeof c);
    q[1] = p[1], q[1].name = "c";
    told(dt_parameters_load(path, q, 2) == DT_E_DATA && strstr(dt_last_error(), "does not hold c, of shape") && !memcmp(c, zero, sizeof c),
           "a name that is not there: %s", dt_last_error());
    q[0].shape = dt_shape2(3, 2);
    told(dt_parameters_load(path, q, 1) == DT_E_DATA && strstr(dt_last_error(), "(2,3)"), "another shape: %s", dt_last_error());
    told(dt_parameters_load(none, q, 1) == DT_E_FILE, "no file: %s", dt_last_error());
    told(dt_parameters_save(none, p, 1) == DT_E_FILE, "no directory: %s", dt_last_error());
    tap_ok(!dt_parameters_save(path, p, 0) && !dt_parameters_load(path, p, 0), "no tensors at all");
}

/* The halves of PyTorch's golden file, as floats. */
static void write_halves(const char *path)
{
    static const char header[] = "{\"h\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,6]},\"g\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[6,8]}}";
    uint16_t values[4] = {0x3c00, 0xc100, 0x0001, 0x3fc0}; /* 1, -2.5, 2^-24; 1.5 */
    int64_t length = (int64_t)sizeof header - 1;
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(&length, 8, 1, f) != 1 || fwrite(header, (size_t)length, 1, f) != 1 || fwrite(values, 8, 1, f) != 1 || fclose(f))
        tap_bail("cannot write %s", path);
}
static void test_halves(void)
{
    char path[300];
    float h[3] = {0}, g[1] = {0};
    dt_parameter p[2];
    snprintf(path, sizeof path, "%s/halves.safetensors", folder);
    write_halves(path);
    p[0].name = "h", p[0].shape = dt_shape1(3), p[0].values = h, p[0].gradient = NULL;
    p[1].name = "g", p[1].shape = dt_shape1(1), p[1].values = g, p[1].gradient = NULL;
    tap_ok(!dt_parameters_load(path, p, 2) && h[0] == 1 && h[1] == -2.5f && h[2] == 5.9604644775390625e-8f && g[0] == 1.5f,
           "F16 and BF16 become floats");
}

/* A program that has forgotten dt_launch. */
/* ---- from a trainer ---- */

static dt_result plane(void *user, dt_split split, int64_t i, void *in, void *out)
{
    float *x = (float *)in;
    (void)user, (void)split;
    x[0] = (float)(i % 8) / 8.0f, x[1] = (float)(i / 8) / 8.0f;
    *(float *)out = x[0] - 2.0f * x[1];
    return DT_OK;
}
static dt_tensor height(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_error_loss(g, DT_MSE, dt_linear_with(g, x, "out", 1, 0.5f, 0), dt_targets(g));
}
static float cosine(void *user, int64_t step)
{
    dt_recipe r = *(const dt_recipe *)user;
    r.rate = NULL;
    return dt__learning_rate(&r, step - 1);
}
typedef struct seen {
    int64_t steps, last, stop;
    uint64_t moments; /* a digit for each */
    float rate;
} seen;
static dt_result look(dt_probe *p, dt_trainer *t, dt_moment when, const dt_step_info *info)
{
    seen *s = (seen *)p->user;
    (void)t;
    s->moments = s->moments * 10 + (when != DT_AT_STEP ? (uint64_t)when : 0);
    if (when != DT_AT_STEP) return DT_OK;
    s->steps++, s->last = info->step, s->rate = info->learning_rate;
    return info->step == s->stop ? dt__error(DT_E_STOPPED, "enough") : DT_OK;
}
static dt_result run_plane(dt_recipe recipe, dt_layout layout, char hash[65])
{
    static const dt_segment one = {"", height, NULL};
    dt_source source = {NULL, {64, 0}, 2, 1, DT_F32, DT_F32, plane};
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r;
    recipe.source = &source, recipe.model = dt_model_segments(&one, 1, 0);
    layout.output.quiet = 1, layout.output.eval_batches = 0, layout.output.sample_length = 0, layout.threads = 1;
    r = dt_trainer_open(&t, &recipe, &layout);
    if (!r) r = dt_trainer_run(t, &info);
    snprintf(hash, 65, "%s", t ? dt_trainer_hash(t) : "");
    dt_trainer_close(&t);
    return r;
}
/* Numbers of a program's own functions are checked where they enter, and calls that make no sense are refused. */
static float given(void *user, int64_t step)
{
    return step == 2 ? *(float *)user : 0.1f;
}
static int test_rate(float bad)
{
    float w[2] = {1, 2}, g[2] = {1, 1}, kept;
    dt_parameter p = {"w", dt_shape1(2), w, g};
    dt_recipe recipe = dt_recipe_default();
    dt_optimizer *o = NULL;
    dt_result r;
    recipe.optimizer = DT_SGD, recipe.rate = given, recipe.rate_user = &bad;
    r = dt_optimizer_open(&o, &recipe, &p, 1);
    if (!r) r = dt_optimizer_step(o, NULL, NULL);
    kept = w[0];
    if (!r && dt_optimizer_step(o, NULL, NULL) == DT_E_NUMERIC && w[0] == kept && strstr(dt_last_error(), "recipe.rate gives")) bad = 0.2f;
    if (!r) r = dt_optimizer_step(o, NULL, NULL); /* and goes on */
    dt_optimizer_close(&o);
    return !r && bad == 0.2f && w[0] < kept;
}
static int test_seek(float steps)
{
    float w[2] = {1, 2}, g[2] = {1, 1};
    dt_parameter p = {"w", dt_shape1(2), w, g}, state[4];
    dt_recipe recipe = dt_recipe_default();
    dt_optimizer *o = NULL;
    dt_result r = dt_optimizer_open(&o, &recipe, &p, 1);
    int64_t n = r ? 0 : dt_optimizer_parameters(o, state, 4);
    if (n) state[n - 1].values[0] = steps;
    if (n) r = dt_optimizer_step(o, NULL, NULL);
    dt_optimizer_close(&o);
    return n && r == DT_E_DATA && w[0] == 1.0f && strstr(dt_last_error(), "the optimizer's step is");
}
static void test_callbacks(dt_recipe recipe, dt_layout layout)
{
    static const dt_segment one = {"", height, NULL};
    static const float bad[] = {NAN, INFINITY, -INFINITY, -1.0f}, steps[] = {INFINITY, NAN, -1.0f, 0.5f, 1e30f};
    dt_source source = {NULL, {64, 16}, 2, 1, DT_F32, DT_F32, plane};
    dt_step_info info = dt_step_info_zero();
    char before[65], text[8];
    float loss = 7.0f, nan = NAN;
    dt_trainer *t = NULL;
    int good = 1;
    for (int i = 0; i < 4; i++) good &= test_rate(bad[i]);
    tap_ok(good, "a rate that is NaN, infinite or negative is refused, and the weights stay");
    good = 1;
    for (int i = 0; i < 5; i++) good &= test_seek(steps[i]);
    tap_ok(good, "an optimizer's step that is no whole number is refused, not counted up to");
    recipe.source = &source, recipe.model = dt_model_segments(&one, 1, 0), recipe.steps = 2;
    layout.output.quiet = 1, layout.output.sample_length = 0, layout.output.probes = NULL, layout.threads = 1;
    good = !dt_trainer_open(&t, &recipe, &layout) && !dt_trainer_run(t, &info);
    snprintf(before, 65, "%s", t ? dt_trainer_hash(t) : "");
    tap_ok(good && dt_trainer_step(t, &info) == DT_E_USAGE && strstr(dt_last_error(), "all 2 steps are done") && info.step == 2 &&
           !strcmp(before, dt_trainer_hash(t)), "a step after the last one is refused");
    tap_ok(dt_trainer_evaluate(t, -1, &loss) == DT_E_USAGE && loss == 7.0f && !dt_trainer_evaluate(t, INT64_MAX, &loss), "so is an evaluation of -1 batches; of very many it takes all");
    tap_ok(dt_trainer_sample(t, "x", -1, NULL, text) == DT_E_USAGE, "and a text of -1 bytes");
    dt_trainer_close(&t);
    recipe.rate = given, recipe.rate_user = &nan;
    good = !dt_trainer_open(&t, &recipe, &layout) && !dt_trainer_step(t, &info);
    snprintf(before, 65, "%s", t ? dt_trainer_hash(t) : "");
    tap_ok(good && dt_trainer_step(t, &info) == DT_E_NUMERIC && !strcmp(before, dt_trainer_hash(t)) && strstr(dt_last_error(), "gives nan for step 2"),
           "a trainer keeps its weights, too, when the rate is NaN");
    dt_trainer_close(&t);
}

/* dt_probe.call: plain SGD moves the first parameter by rate times gradient. */
static dt_result descends(dt_probe *p, dt_trainer *t, dt_moment when, const dt_step_info *info)
{
    static float before[64], gradient[64];
    int64_t count = 0;
    const char *name = when == DT_AT_START || when == DT_AT_STEP ? dt_trainer_parameter_at(t, 0, NULL) : NULL;
    const float *now = name ? dt_trainer_parameter(t, name, &count) : NULL;
    if (!now || count > 64) return DT_OK;
    if (when == DT_AT_STEP && dt_trainer_gradient(t, name, gradient)) return DT_E_DATA;
    for (int64_t i = 0; when == DT_AT_STEP && i < count; i++) {
        float moved = before[i] - now[i], should = info->learning_rate * gradient[i];
        p->number += fabsf(moved - should) <= 1e-6f + 1e-4f * fabsf(should) && should * should > 0.0f ? 1.0 : -100.0;
    }
    memcpy(before, now, (size_t)count * 4);
    return when == DT_AT_STEP && dt_trainer_gradient(t, "nothing", gradient) != DT_E_USAGE ? DT_E_DATA : DT_OK;
}

/* Options of probes, their numbers in the metrics, and what a program without the probe is told. */
static void test_probes(dt_recipe recipe, dt_layout layout)
{
    char list[4][16] = {"test", "--rules", "--mark=here", "--loud"}, *two[3] = {list[0], list[1], NULL}, **argv = two;
    char *own[4] = {list[0], list[2], list[3], NULL}, metrics[64], hash[65], line[4000] = "", *found = NULL;
    const dt_probe_option mark = {"mark", "WORD", "a word", NULL}, loud = {"loud", NULL, "a flag", NULL};
    int argc = 2;
    dt_probe probe;
    FILE *f;
    layout.output.probes = NULL;
    tap_ok(dt_args(&argc, &argv, &recipe, &layout) == DT_E_USAGE &&
           strstr(dt_last_error(), "--rules is an option of examples/rules.h: include it after dtrain.h, and call dt_rules_attach("),
           "a program without a companion names it at its option");
    memset(&probe, 0, sizeof probe);
    probe.call = descends, probe.option[0] = mark, probe.option[1] = loud, probe.metric = "right";
    layout.output.probes = &probe, argc = 3, argv = own;
    tap_ok(!dt_args(&argc, &argv, &recipe, &layout) && argc == 1 && probe.option[0].value && !strcmp(probe.option[0].value, "here") &&
           probe.option[1].value, "a probe has options");
    snprintf(metrics, sizeof metrics, "%s/probe.jsonl", folder);
    layout.output.metrics = metrics;
    recipe.optimizer = DT_SGD, recipe.momentum = 0, recipe.clip = 0, recipe.weight_decay = 0, recipe.steps = 2;
    tap_ok(!run_plane(recipe, layout, hash) && probe.number > 0.0, "SGD moves a parameter by its gradient times the rate");
    f = fopen(metrics, "r");
    while (f && fgets(line, sizeof line, f)) found = strstr(line, "\"right\":");
    tap_ok(found && atof(found + 8) > 0.0 && atof(found + 8) <= probe.number, "and its number in the metrics");
    if (f) fclose(f);
}

static void test_trainer(void)
{
    dt_recipe recipe = dt_recipe_default(), hooked;
    dt_layout layout = dt_layout_default();
    char plain[65], other[65];
    seen s = {0, 0, 0, 0, 0.0f};
    dt_probe probe;
    recipe.batch = 8, recipe.steps = 12, recipe.warmup = 3, recipe.schedule = DT_COSINE;
    tap_ok(!run_plane(recipe, layout, plain), "a plane is trained");
    hooked = recipe, hooked.rate = cosine, hooked.rate_user = &recipe;
    hooked.schedule = DT_CONSTANT, hooked.warmup = 0;
    memset(&probe, 0, sizeof probe);
    probe.call = look, probe.user = &s, layout.output.probes = &probe;
    tap_ok(!run_plane(hooked, layout, other) && !strcmp(plain, other), "a rate of the program's own has the bits of the schedule that it computes");
    tap_ok(s.steps == 12 && s.last == 12 && s.rate > 0.0f && s.rate < recipe.learning_rate, "a program's function is called after each step");
    tap_ok(s.moments == (uint64_t)(DT_AT_START * 100000000000000 + DT_AT_END * 10 + DT_AT_CLOSE) && !probe.layout, "  and when a run is opened, ends and is closed");
    test_callbacks(recipe, layout);
    test_probes(recipe, layout);
    s.stop = 5;
    tap_ok(run_plane(recipe, layout, other) == DT_E_STOPPED && s.last == 5 && strcmp(plain, other), "  and ends the run by what it returns");
}

/* Groups of two ranks by the first axis and by the second, beside a trainer: the sums of ranks' numbers. */
static dt_result beside(dt_comm *c, float sums[2])
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_trainer *t = NULL;
    dt_mesh m;
    dt_result r;
    char hash[65];
    recipe.batch = 4, recipe.data_shards = 2, recipe.tensor_shards = 2, recipe.steps = 1, layout.tp = 2;
    if (run_plane(recipe, layout, hash) != DT_E_USAGE || !strstr(dt_last_error(), "--tp 2: no product of this model can be cut")) return DT_E_SELFCHECK;
    recipe.data = "tests/golden/tokens/train.txt", recipe.model = dt_model_gpt2("nano"), recipe.steps = 2, recipe.tensor_shards = 2;
    recipe.data_shards = 2, recipe.batch = 4, recipe.sequence = 16;
    layout.tp = 2, layout.output.quiet = 1, layout.output.sample_length = 0, layout.output.eval_batches = 0, layout.threads = 1;
    r = dt_trainer_open(&t, &recipe, &layout);
    for (int step = 0; step < 2 && !r; step++) {
        static const int axes[2] = {DT_AXIS_DATA, DT_AXIS_TENSOR};
        dt_step_info info;
        r = dt_trainer_step(t, &info);
        m = dt_plan_mesh(dt_trainer_plan(t));
        for (int i = 0; i < 2 && !r; i++) {
            dt_comm *group = NULL;
            r = dt_comm_split(c, dt_comm_rank(c) - m.at[axes[i]] * m.stride[axes[i]], &group);
            sums[i] = (float)dt_comm_rank(c) + 1.0f;
            if (!r) r = dt_all_reduce(group, &sums[i], 1, DT_SUM);
            dt_comm_close(&group);
        }
    }
    dt_trainer_close(&t);
    return r;
}

/* ---- ops of the program's own ---- */

static void product(void *user, const float *const *in, const dt_shape *shape, float *y)
{
    (void)user;
    for (int64_t i = 0; i < dt_shape_count(shape[0]); i++) y[i] = in[0][i] * in[1][i];
}
static void product_slope(void *user, const float *const *in, const dt_shape *shape, int i, float *dx)
{
    ++*(int *)user;
    for (int64_t k = 0; k < dt_shape_count(shape[2]); k++) dx[k] = in[2][k] * in[1 - i][k];
}

/* sum((x w) v), by dt_mul or by the program's product: the gradients of both parameters. */
static int custom_gradients(const dt_custom_op *op, int eager, float loss[1], float slope[2][6])
{
    dt_graph *g = NULL;
    dt_parameter list[2];
    dt_result r = eager ? dt_graph_open(&g, 7) : dt_graph_record(&g, 7, 1);
    dt_tensor w = dt_param(g, "w", dt_shape2(2, 3), DT_INIT_NORMAL, 1.0f), v = dt_param(g, "v", dt_shape2(2, 3), DT_INIT_NORMAL, 1.0f), in[2], y;
    in[0] = dt_scale(g, w, 1.5f), in[1] = v;
    y = op ? dt_custom(g, op, in, 2, dt_shape2(2, 3)) : dt_mul(g, in[0], in[1]);
    y = dt_sum(g, y, 3);
    if (!r) r = dt_backward(g, y);
    if (!r && !eager) r = dt_graph_run(g);
    if (!r) *loss = *dt_value(g, y);
    if (!r && dt_graph_parameters(g, list, 2) != 2) r = DT_E_USAGE;
    for (int i = 0; i < 2 && !r; i++) {
        if (list[i].gradient) memcpy(slope[i], list[i].gradient, 24);
        else memset(slope[i], 0, 24);
    }
    dt_graph_close(&g);
    return r == DT_OK;
}
static void test_custom(void)
{
    int calls = 0;
    dt_custom_op op = { product, product_slope, &calls }, blind = { product, NULL, NULL }, none = { NULL, NULL, NULL };
    for (int eager = 0; eager < 2; eager++) {
        float loss[2], slope[2][2][6];
        int fine = custom_gradients(NULL, eager, &loss[0], slope[0]) && custom_gradients(&op, eager, &loss[1], slope[1]);
        tap_ok(fine && loss[0] == loss[1] && !memcmp(slope[0], slope[1], sizeof slope[0]) && slope[0][0][0] != 0.0f,
               "a product of the program's own has the value and the gradients of dt_mul, %s", eager ? "eager" : "recorded");
    }
    tap_ok(calls == 4, "backward is called once for each of two inputs");
    dt_graph *g = NULL;
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    dt_tensor x = dt_full(g, dt_shape1(3), 2.0f), many[8], y;
    for (int i = 0; i < 8; i++) many[i] = x;
    y = dt_custom(g, &blind, many, 2, dt_shape1(3));
    tap_ok(y.id && dt_value(g, y)[2] == 4.0f, "an op without backward has a value");
    tap_ok(!dt_custom(g, &none, many, 2, dt_shape1(3)).id && strstr(dt_last_error(), "1 to 7 tensors, a forward"), "no forward: %s", dt_last_error());
    dt_graph_close(&g);
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    x = dt_full(g, dt_shape1(3), 2.0f);
    for (int i = 0; i < 8; i++) many[i] = x;
    tap_ok(!dt_custom(g, &op, many, 8, dt_shape1(3)).id, "eight tensors are refused");
    dt_graph_close(&g);
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    many[0] = dt_cast(g, dt_full(g, dt_shape1(3), 2.0f), DT_BF16);
    tap_ok(!dt_custom(g, &op, many, 1, dt_shape1(3)).id && strstr(dt_last_error(), "must hold fp32"), "16-bit tensors are refused: %s", dt_last_error());
    dt_graph_close(&g);
}

static void test_launch(void)
{
    char *list[] = {(char *)"program", (char *)"--ranks", (char *)"2", NULL}, **argv = list;
    int argc = 3;
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    tap_ok(dt_args(&argc, &argv, &recipe, &layout) == DT_E_USAGE && strstr(dt_last_error(), "has not called dt_launch"),
           "--ranks without dt_launch: %s", dt_last_error());
}

/* Rank 1 is longer in a function of the program's own than --timeout, and then in work that says that it lives; silent
 * in neither is an error, silent in the last wait is one. */
/* Milliseconds after which a rank counts as frozen; sanitized programs need more to start. */
static unsigned patience(void) { return getenv("DT_SANITIZE") ? 2500 : 500; }
static dt_result linger(dt_probe *p, dt_trainer *t, dt_moment when, const dt_step_info *info)
{
    (void)t;
    if (when == DT_AT_STEP && *(int *)p->user == 1 && info->step == 1) usleep(3000 * patience());
    return DT_OK;
}
static int busy(dt_comm *c)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    int rank = dt_comm_rank(c);
    dt_probe probe;
    char hash[65];
    memset(&probe, 0, sizeof probe);
    probe.call = linger, probe.user = &rank;
    recipe.batch = 8, recipe.steps = 2, layout.output.probes = &probe;
    if (run_plane(recipe, layout, hash)) return 1;
    for (int i = 0; i < 9 && rank == 1; i++) usleep(333 * patience()), dt_comm_alive(c);
    if (dt_barrier(c)) return 2;
    if (rank == 1) usleep(3000 * patience());
    return rank == 0 && dt_barrier(c) == DT_E_PEER && strstr(dt_last_error(), "rank 1 has not moved for ") ? 42 : 0;
}

int main(int argc, char **argv)
{
    char name[] = "/tmp/dt_loop_XXXXXX", command[300];
    if (argc > 1) { /* "beside": a rank of the test below: neighbours share tensors, so ranks 0 and 2 share data group 0 */
        dt_comm *c = NULL;
        float sums[2] = {0.0f, 0.0f};
        if (dt_comm_open(&c, &argc, &argv)) return dt_fail("ranks");
        if (!strcmp(argv[1], "busy")) {
            int status = busy(c);
            dt_comm_close(&c);
            return status;
        }
        if (beside(c, sums)) return dt_fail("beside");
        argc = sums[0] != (dt_comm_rank(c) % 2 ? 6.0f : 4.0f) || sums[1] != (dt_comm_rank(c) < 2 ? 3.0f : 7.0f);
        dt_comm_close(&c);
        return argc;
    }
    folder = mkdtemp(name);
    if (!folder) tap_bail("no directory");
    test_graphs();
    test_names();
    test_optimizer(DT_ADAMW, "AdamW"), test_optimizer(DT_ADAM, "Adam"), test_optimizer(DT_SGD, "SGD"), test_optimizer(DT_LION, "Lion");
    test_refusals();
    test_files();
    test_halves();
    test_custom();
    test_launch();
    test_trainer();
    snprintf(command, sizeof command, "'%s' beside --ranks 4", argv[0]);
    tap_ok(!system(command), "a communicator of the program's own, and groups of its axes, beside a trainer");
    for (int i = 0; i < 3; i++) {
        static const char *const how[3] = {"", "--launch threads", "--nodes 2"};
        int status;
        snprintf(command, sizeof command, "'%s' busy --ranks 2 --timeout %g %s 2>/dev/null", argv[0], 1e-3 * patience(), how[i]);
        status = system(command);
        tap_ok(WIFEXITED(status) && WEXITSTATUS(status) == 42, "busy in a callback, or alive by a call, is not frozen; silent is %s", how[i]);
    }
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    if (system(command)) tap_note("%s stays", folder);
    return tap_done();
}
