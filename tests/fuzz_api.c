/* Calls every public function with odd arguments: NULL, NaN, huge and negative numbers, tensors of other and of closed
 * graphs, names of all kinds, options out of range, and memory that runs out. Each batch of calls is a process of its
 * own, so that a crash, a hang (100 s of processor time) or what a sanitizer sees is reported with the calls that led to
 * it. First, every builder meets an allocation that fails, each in turn.
 *
 *     gcc -g -O1 -DDT_DEBUG -fsanitize=address,undefined -I. tests/fuzz_api.c -o fuzz -lm -lpthread
 *     ./fuzz 600 [SEED]        seconds; SEED repeats the batches of a run. ./fuzz 0 SEED BATCH: that batch alone
 *     ./fuzz names             the functions that are called: tests/test_api.t compares them with the declarations */
#define _GNU_SOURCE 1
#include <stddef.h>
void *test_malloc(size_t size);
void test_free(void *p);
#define DT_MALLOC(size) test_malloc(size)
#define DT_FREE(p) test_free(p)
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/rules.h"
#include <math.h>
#include <sys/resource.h>

/* ---- memory: no request above 2.6 MB, 200 MB in all; one of the next requests may fail ---- */

enum { REQUEST = 5 << 19, ALL = 200 << 20 };
static int64_t live, fail_at = -1, made;
void *test_malloc(size_t size)
{
    char *p = NULL;
    made++;
    if (size <= REQUEST + 4096 && __atomic_add_fetch(&live, (int64_t)size, __ATOMIC_RELAXED) <= ALL && made != fail_at) p = (char *)malloc(size + 16);
    else if (size <= REQUEST + 4096) __atomic_sub_fetch(&live, (int64_t)size, __ATOMIC_RELAXED);
    if (!p) return NULL;
    memcpy(p, &size, sizeof size);
    return p + 16;
}
void test_free(void *p)
{
    size_t size;
    memcpy(&size, (char *)p - 16, sizeof size);
    __atomic_sub_fetch(&live, (int64_t)size, __ATOMIC_RELAXED);
    free((char *)p - 16);
}

/* ---- the log of a batch, which outlives it, and the draws ---- */

enum { LINES = 40, LINE = 1000 };
static struct batch_log {
    int64_t calls, used;
    char line[LINES][LINE];
} *seen;
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    char *line = seen->line[seen->calls % LINES];
    va_list args;
    va_start(args, format);
    if (seen->used < LINE - 1) seen->used += vsnprintf(line + seen->used, (size_t)(LINE - seen->used), format, args);
    va_end(args);
}
static void begin(const char *name)
{
    seen->calls++, seen->used = 0;
    say("%s", name);
}

static uint64_t state;
static int wild; /* one argument in so many is odd */
static uint32_t draw(uint32_t n) /* 0..n-1 */
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}
static int odd(void) { return draw((uint32_t)wild) == 0; }
#define PICK(list) list[draw((uint32_t)(sizeof list / sizeof *list))]

static int64_t whole(void)
{
    static const int64_t strange[] = {0, -1, -2, INT64_MIN, INT64_MAX, INT64_MAX - 1, INT32_MAX, INT32_MIN, (int64_t)1 << 31, (int64_t)1 << 32, (int64_t)1 << 40, (int64_t)1 << 61, (int64_t)1 << 62,
                                      ((int64_t)1 << 62) + 1, 1000, 65536, 1 << 20, (1 << 24) + 1};
    int64_t n = odd() ? PICK(strange) : (int64_t)draw(9);
    say(" %lld", (long long)n);
    return n;
}
static int64_t few(void) /* a count of what a buffer holds, or a negative one */
{
    int64_t n = odd() ? -(int64_t)draw(3) * INT32_MAX : (int64_t)draw(9);
    say(" count %lld", (long long)n);
    return n;
}
static int small(void)
{
    static const int strange[] = {-1, -7, INT_MAX, INT_MIN, 100, 1000000, 255};
    int n = odd() ? PICK(strange) : (int)draw(6);
    say(" %d", n);
    return n;
}
static double number(void)
{
    static const double strange[] = {NAN, INFINITY, -INFINITY, -1, -0.0, 1e-45, 3e38, 1e300, -1e300, 1e9};
    static const double usual[] = {0, 1, 0.5, 0.1, 1e-5, 2};
    double x = odd() ? PICK(strange) : PICK(usual);
    say(" %g", x);
    return x;
}
#define REAL ((float)number())
static const char *text(void)
{
    static char longer[5][400];
    static const int length[5] = {63, 64, 95, 96, 300};
    static const char *const usual[] = {"a", "b", "c.d", "/shared", "w"};
    static const char *const strange[] = {"", "caf\xe9", "x\"\\\n\x01", "__metadata__", "/", "\xc3\xbc", "%s%n", "../x", "a b", longer[0], longer[1], longer[2], longer[3], longer[4], NULL};
    const char *t = odd() ? PICK(strange) : PICK(usual);
    for (int i = 0; i < 5; i++) memset(longer[i], 'n', (size_t)length[i]);
    say(" \"%.20s\"", t ? t : "NULL");
    return t;
}
static char folder[PATH_MAX];
static const char *file(void)
{
    static char longer[5000];
    static const char *const usual[] = {"text.txt", "tokenizer.json", "saved.safetensors", "checkpoints", "."};
    static const char *const strange[] = {"", "nowhere", "/nonexistent/x", "text.txt/x", "*", "a,b", longer, "config.json", "model.bin", NULL};
    const char *t = odd() ? PICK(strange) : PICK(usual);
    memset(longer, 'p', sizeof longer - 1);
    say(" \"%.20s\"", t ? t : "NULL");
    return t;
}
static dt_shape shape(void)
{
    dt_shape s = {(int32_t)draw(5), {1, 1, 1, 1, 1, 1}};
    say(" (");
    for (int i = 0; i < s.dims; i++) s.n[i] = odd() ? whole() : (int64_t)(1 + draw(5));
    if (odd()) s.dims = small();
    say(") dims %d", (int)s.dims);
    return s;
}
/* An address, or NULL where an odd argument is drawn. */
static void *some(void *p)
{
    if (odd()) return say(" NULL"), (void *)NULL;
    return p;
}

/* ---- what the calls work on ---- */

enum { KEPT = 24 };
static char data[REQUEST + 65536], room[REQUEST];
static dt_graph *graph, *other;
static dt_tensor kept[KEPT], stale;
static int keeps;
static dt_tokenizer *tokenizer;
static dt_data *texts;
static dt_rules *rules;
static dt_comm *comm;
static dt_trainer *trainer;
static dt_trainer *generator;
static dt_optimizer *optimizer;
static dt_plan *planned;
static dt_checkpoint *checkpoint;
static dt_parameter list[64];
static int64_t listed;

static dt_graph *g(void) { return draw(200) ? graph : (say(" g NULL"), (dt_graph *)NULL); }
static dt_tensor tensor(void)
{
    static const dt_tensor forged[] = {{0, 0}, {-1, 0}, {INT32_MAX, 0}, {1, -1}, {1, INT32_MAX}};
    dt_tensor t = keeps ? kept[draw((uint32_t)keeps)] : stale;
    if (odd()) t = draw(2) ? stale : PICK(forged);
    if (odd() && t.graph == 0 && keeps) t.graph = kept[0].graph; /* of this graph, which has no such id */
    say(" t%d:%d", (int)t.id, (int)t.graph);
    return t;
}
static void keep(dt_tensor t)
{
    if (t.id && keeps < KEPT) kept[keeps++] = t;
    else if (t.id) kept[draw(KEPT)] = t;
}
static dt_attention_options attention(void)
{
    dt_attention_options o;
    memset(&o, 0, sizeof o);
    o.heads = odd() ? whole() : 1 + draw(2), o.kv_heads = odd() ? whole() : 0, o.causal = small() & 1;
    if (odd()) o.dropout = REAL;
    if (odd()) o.scale = REAL;
    return o;
}
static dt_moe_options mixture(void)
{
    dt_moe_options o;
    memset(&o, 0, sizeof o);
    o.experts = odd() ? whole() : 1 + draw(4), o.active = odd() ? whole() : 1, o.width = odd() ? whole() : draw(4);
    o.gated = (int)draw(2), o.bias = (int)draw(2), o.raw_weights = (int)draw(2);
    if (odd()) o.capacity = REAL;
    if (odd()) o.balance = REAL;
    if (odd()) o.z_loss = REAL;
    if (odd()) o.down_std = REAL;
    return o;
}
static void op_forward(void *user, const float *const *in, const dt_shape *s, float *y) { (void)user, (void)s, y[0] = in[0][0]; }
static void op_backward(void *user, const float *const *in, const dt_shape *s, int i, float *dx) { (void)user, (void)s, (void)i, dx[0] = in[0][0]; }
static const dt_custom_op custom = {op_forward, op_backward, NULL}, hollow = {NULL, NULL, NULL};
static const int *axes(void)
{
    static int a[6];
    for (int i = 0; i < 6; i++) a[i] = odd() ? small() : i;
    return a;
}
static unsigned mask(void) { return odd() ? (unsigned)small() : draw(3) ? 1u << draw(3) | (draw(2) ? DT_KEEP : 0u) : draw(2) ? DT_ALL : DT_LAST; }
static const int32_t *ids(void)
{
    static int32_t id[16];
    for (int i = 0; i < 16; i++) id[i] = odd() ? (int32_t)whole() : (int32_t)draw(250);
    return id;
}
static const double *doubles(void)
{
    static double x[16];
    for (int i = 0; i < 16; i++) x[i] = number();
    return x;
}
static const dt_parameter *parameters(void) /* the graph's, or odd ones; there are 9 at least to look at */
{
    static dt_parameter p[9];
    for (int i = 0; i < 9; i++) {
        if (i < listed && draw(4)) p[i] = list[i];
        else p[i].name = text(), p[i].shape = shape(), p[i].values = (float *)some(room), p[i].gradient = (float *)some(room);
        if (dt_shape_count(p[i].shape) > REQUEST / 4) p[i].shape = dt_shape1(3);
    }
    return p;
}

/* ---- recipes, layouts, models ---- */

static dt_tensor built(dt_graph *g, dt_tensor x, const void *user);
static dt_tensor wanders(dt_graph *g, dt_tensor x, const void *user);
static dt_segment segments[4] = {{"first", built, NULL}, {"middle", wanders, NULL}, {"last", built, "last"}, {NULL, NULL, NULL}};
static dt_result fetch(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    (void)user, (void)split;
    for (int i = 0; i < 4; i++) ((float *)input)[i] = (float)(sample % 7 + i), ((int32_t *)target)[i] = (int32_t)(sample + i) % 3;
    return DT_OK;
}
static dt_source source = {NULL, {16, 4}, 4, 4, DT_F32, DT_I32, fetch};

/* Sets a member of an option to a value that no range was asked about. */
static void disturb(int group, void *of)
{
    const dt__option *o = &dt__options[draw((uint32_t)(sizeof dt__options / sizeof *dt__options) - 1)];
    char *at = (char *)of + o->offset;
    if (o->group != group || !strcmp(o->name, "threads") || !strcmp(o->name, "timeout")) return;
    say(" --%s", o->name);
    if (o->kind <= DT__KIND_AUTO) *(int64_t *)(void *)at = whole();
    else if (o->kind == DT__KIND_REAL) *(float *)(void *)at = REAL;
    else if (o->kind == DT__KIND_FLAG || o->kind == DT__KIND_WORD) *(int32_t *)(void *)at = small();
}
static dt_recipe *recipe(void)
{
    static dt_recipe r;
    r = dt_recipe_default();
    r.model = draw(2) ? dt_model_gpt2("nano") : dt_model_llama("llama-nano");
    r.model.layers = 1, r.model.width = 16, r.model.heads = 2, r.model.kv_heads = r.model.hidden = 0;
    r.data = "text.txt", r.steps = 2, r.batch = 8, r.sequence = 8;
    if (draw(2)) {
        r.model = dt_model_segments(segments, 3, 0), r.source = &source, r.data = NULL;
        segments[1].name = draw(4) ? "middle" : text();
        if (odd()) segments[draw(3)].build = NULL;
        if (odd()) r.model.segment_count = (int64_t)draw(4) - 2;
        source.samples[1] = odd() ? whole() : 4;
        source.inputs = source.targets = 4;
        if (odd()) source.inputs = whole();
        if (odd()) source.input_type = (dt_dtype)small();
        r.sequence = 4;
    }
    for (uint32_t i = draw(4); i > 0; i--) disturb(DT__GROUP_RECIPE, &r);
    if (odd()) r.tokenizer = file();
    if (odd()) r.data = file();
    if (odd()) r.weights = file();
    return (dt_recipe *)some(&r);
}
static dt_layout *layout(void)
{
    static dt_layout l;
    l = dt_layout_default();
    for (uint32_t i = draw(4); i > 0; i--) disturb(DT__GROUP_LAYOUT, &l);
    l.threads = 1 + draw(2), l.output.quiet = 1, l.output.sample_length = draw(2) ? 0 : 8, l.checkpoint.resume = draw(2) ? DT_RESUME_NEVER : DT_RESUME_AUTO;
    l.output.eval_batches = 1;
    if (odd()) l.checkpoint.place = file();
    return (dt_layout *)some(&l);
}
static int quick(void) /* has the trainer's recipe little work? */
{
    return trainer && trainer->recipe.batch * trainer->recipe.sequence <= 512 && trainer->recipe.steps <= 8 && trainer->recipe.model.layers <= 8;
}
static const dt_generation *generation(void)
{
    static dt_generation o;
    o = dt_generation_default();
    o.bytes = odd() ? -1 : (int64_t)draw(20);
    if (odd()) o.sampling.temperature = REAL;
    if (odd()) o.sampling.top_p = REAL;
    if (odd()) o.sampling.top_k = whole();
    return (dt_generation *)some(&o);
}
static char **words;
static int *options(void)
{
    static const char *const all[] = {"--steps", "--model", "nano", "--data", "text.txt", "--seed", "99999999999999999999", "-1", "1e999", "--learning-rate=nan", "--help", "--nope", "", "--", "--batch=", "=", "\xff"};
    static char *argument[8], copy[8][32];
    static int count;
    count = 1 + (int)draw(5);
    for (int i = 0; i < count; i++) snprintf(copy[i], 32, "%s", i ? PICK(all) : "fuzz"), argument[i] = copy[i], say(" %s", copy[i]);
    argument[count] = NULL, words = argument;
    return (int *)some(&count);
}
static dt_result piece(void *user, const char *p, int64_t bytes, const int32_t *id, int64_t count) { return (void)user, (void)p, (void)bytes, (void)id, draw(20) || !count ? DT_OK : DT_E_STOPPED; }
static const dt_model *own_model(void)
{
    static dt_model m;
    m = dt_model_segments(segments, 3, odd() ? whole() : 0);
    return &m;
}
static dt_step_info info;
static dt_compilation_report report;
static dt_mesh mesh;
static int64_t out64[16];
static int32_t out32[16];

/* ---- the calls: X(function, expression). Names of graphs' functions give a tensor that is kept ---- */

#define BUILDERS(X) \
    X(dt_tensor_of, dt_tensor_of(g(), (dt_dtype)(small() % 7), shape(), some(data))) X(dt_param, dt_param(g(), text(), shape(), (dt_init)small(), REAL)) \
    X(dt_full, dt_full(g(), shape(), REAL)) X(dt_reshape, dt_reshape(g(), tensor(), shape())) X(dt_permute, dt_permute(g(), tensor(), axes())) \
    X(dt_slice, dt_slice(g(), tensor(), small(), whole(), whole())) X(dt_expand, dt_expand(g(), tensor(), shape())) \
    X(dt_concat, dt_concat(g(), (tensor(), kept), odd() ? few() : (int64_t)draw((uint32_t)keeps + 1), small())) X(dt_detach, dt_detach(g(), tensor())) \
    X(dt_cast, dt_cast(g(), tensor(), (dt_dtype)small())) X(dt_gather, dt_gather(g(), tensor(), small(), tensor())) \
    X(dt_top_k, dt_top_k(g(), tensor(), whole(), draw(2) ? &kept[0] : NULL)) \
    X(dt_custom, dt_custom(g(), odd() ? (odd() ? NULL : &hollow) : &custom, kept, odd() ? few() : (int64_t)draw((uint32_t)(keeps < 8 ? keeps : 7) + 1), shape())) \
    X(dt_scale, dt_scale(g(), tensor(), REAL)) X(dt_tanh, dt_tanh(g(), tensor())) X(dt_silu, dt_silu(g(), tensor())) X(dt_gelu, dt_gelu(g(), tensor())) \
    X(dt_relu, dt_relu(g(), tensor())) X(dt_clamp, dt_clamp(g(), tensor(), REAL, REAL)) X(dt_add, dt_add(g(), tensor(), tensor())) X(dt_sub, dt_sub(g(), tensor(), tensor())) \
    X(dt_mul, dt_mul(g(), tensor(), tensor())) X(dt_map, dt_map(g(), (dt_function)draw(13), tensor())) \
    X(dt_map2, dt_map2(g(), (dt_function)(odd() ? small() : (int)draw(16)), tensor(), tensor())) \
    X(dt_sum, dt_sum(g(), tensor(), mask())) X(dt_mean, dt_mean(g(), tensor(), mask())) X(dt_max, dt_max(g(), tensor(), mask())) \
    X(dt_softmax, dt_softmax(g(), tensor(), mask())) X(dt_matmul, dt_matmul(g(), tensor(), tensor(), small(), small())) \
    X(dt_linear, dt_linear(g(), tensor(), text(), whole())) X(dt_linear_with, dt_linear_with(g(), tensor(), text(), whole(), REAL, odd() ? (unsigned)small() : draw(16))) \
    X(dt_combine, dt_combine(g(), tensor())) X(dt_embed, dt_embed(g(), tensor(), tensor())) \
    X(dt_layernorm, dt_layernorm(g(), tensor(), text(), REAL)) X(dt_rmsnorm, dt_rmsnorm(g(), tensor(), text(), REAL)) \
    X(dt_attend, (o = attention(), draw(2) ? dt_attend(g(), tensor(), tensor(), tensor(), draw(2) ? tensor() : kept[KEPT - 1], (dt_attention_options *)some(&o)) \
                                           : dt_attend(g(), tensor(), nothing, nothing, draw(2) ? tensor() : nothing, &o))) \
    X(dt_rope, dt_rope(g(), tensor(), whole(), number(), whole(), odd() ? &scaling : NULL)) X(dt_dropout, dt_dropout(g(), tensor(), REAL)) \
    X(dt_cross_entropy, dt_cross_entropy(g(), tensor(), tensor(), REAL)) X(dt_loss, dt_loss(g(), tensor())) X(dt_error_loss, dt_error_loss(g(), (dt_error_kind)small(), tensor(), tensor())) \
    X(dt_auxiliary_loss, dt_auxiliary_loss(g(), tensor(), tensor(), REAL)) X(dt_moe, (m = mixture(), dt_moe(g(), tensor(), text(), (dt_moe_options *)some(&m)))) \
    X(dt_prediction, dt_prediction(g(), tensor())) X(dt_targets, dt_targets(g())) X(dt_grad, dt_grad(g(), tensor()))
#define GRAPHS(X) \
    X(dt_shape0, (void)dt_shape0()) X(dt_shape1, (void)dt_shape1(whole())) X(dt_shape2, (void)dt_shape2(whole(), whole())) X(dt_shape3, (void)dt_shape3(whole(), whole(), whole())) \
    X(dt_shape4, (void)dt_shape4(whole(), whole(), whole(), whole())) X(dt_shape_count, (void)dt_shape_count(shape())) X(dt_shape_of, (void)dt_shape_of(g(), tensor())) \
    X(dt_value, (void)dt_value(g(), tensor())) X(dt_dim, (void)dt_dim(g(), tensor(), small())) \
    X(dt_graph_result, (void)dt_graph_result(g())) X(dt_backward, (void)dt_backward(g(), tensor())) X(dt_graph_run, (void)dt_graph_run(g())) \
    X(dt_graph_set, (void)dt_graph_set(g(), tensor(), some(data))) X(dt_graph_open, (void)(dt_graph_close(&other), dt_graph_open(odd() ? NULL : &other, state))) \
    X(dt_graph_record, (void)(dt_graph_close(&other), dt_graph_record(odd() ? NULL : &other, state, odd() ? INT_MAX : small() % 4))) X(dt_graph_close, dt_graph_close(odd() ? NULL : &other)) \
    X(dt_graph_parameters, (listed = dt_graph_parameters(g(), (dt_parameter *)some(list), odd() ? few() : 64), listed = listed < 64 ? listed : 64))
#define OWN(X) \
    X(dt_optimizer_open, (void)(dt_optimizer_close(&optimizer), dt_optimizer_open(odd() ? NULL : &optimizer, recipe(), odd() ? NULL : parameters(), few()))) \
    X(dt_optimizer_close, dt_optimizer_close(odd() ? NULL : &optimizer)) X(dt_optimizer_step, (void)dt_optimizer_step(optimizer, draw(2) ? comm : NULL, (dt_step_info *)some(&info))) \
    X(dt_optimizer_parameters, (void)dt_optimizer_parameters(optimizer, (dt_parameter *)some(room), few())) X(dt_parameters_save, (void)dt_parameters_save(odd() ? file() : "saved.safetensors", parameters(), few())) \
    X(dt_parameters_load, (void)dt_parameters_load(file(), parameters(), few())) X(dt_partition, (void)dt_partition((const double *)some((void *)(uintptr_t)doubles()), few(), few(), (int64_t *)some(room))) \
    X(dt_plan_open, (void)(dt_plan_close(&planned), dt_plan_open(odd() ? NULL : &planned, recipe(), layout(), small(), small()))) \
    X(dt_plan_close, dt_plan_close(odd() ? NULL : &planned)) X(dt_plan_program, (void)dt_plan_program(planned, (int64_t *)some(out64))) \
    X(dt_plan_memory, (void)dt_plan_memory(planned, (int64_t *)some(out64))) \
    X(dt_mesh_of, (void)dt_mesh_of(layout(), small(), small(), (dt_mesh *)some(&mesh))) \
    X(dt_last_error, (void)dt_last_error()) X(dt_fail, (void)dt_fail(text())) X(dt_result_name, (void)dt_result_name((dt_result)small())) X(dt_exit_code, (void)dt_exit_code((dt_result)small())) \
    X(dt_version, (void)dt_version()) X(dt_isa, (void)dt_isa()) X(dt_recipe_default, (void)dt_recipe_default()) X(dt_layout_default, (void)dt_layout_default()) \
    X(dt_generation_default, (void)dt_generation_default()) X(dt_step_info_zero, (void)dt_step_info_zero()) \
    X(dt_model_gpt2, (void)dt_model_gpt2(text())) X(dt_model_llama, (void)dt_model_llama(text())) X(dt_model_segments, (void)dt_model_segments(NULL, whole(), whole())) \
    X(dt_args, (void)dt_args(options(), odd() ? NULL : &words, recipe(), layout()))
#define DATA(X) \
    X(dt_tokenizer_open, (void)(dt_tokenizer_close(&tokenizer), dt_tokenizer_open(odd() ? NULL : &tokenizer, draw(2) ? "tokenizer.json" : file()))) \
    X(dt_tokenizer_close, dt_tokenizer_close(odd() ? NULL : &tokenizer)) X(dt_tokenizer_size, (void)dt_tokenizer_size(tokenizer)) \
    X(dt_tokenizer_token, (void)dt_tokenizer_token(tokenizer, whole(), (int64_t *)some(out64))) X(dt_tokenizer_merge, (void)dt_tokenizer_merge(tokenizer, whole(), (int32_t *)some(out32), out32 + 1)) \
    X(dt_tokenizer_encode, (void)dt_tokenizer_encode(tokenizer, some(data), few(), small(), (int32_t *)some(room), (int64_t *)some(out64))) \
    X(dt_tokenizer_decode, (void)dt_tokenizer_decode(tokenizer, ids(), few(), draw(2) ? room : NULL, (int64_t *)some(out64))) X(dt_tokenizer_walk, (void)dt_tokenizer_walk(tokenizer, some(data), few(), small(), odd() ? NULL : piece, NULL)) \
    X(dt_data_open, (void)(dt_data_close(&texts), dt_data_open(odd() ? NULL : &texts, draw(2) ? "text.txt" : file(), draw(2) ? tokenizer : NULL, whole(), number()))) \
    X(dt_data_close, dt_data_close(odd() ? NULL : &texts)) X(dt_data_samples, (void)dt_data_samples(texts, (dt_split)small())) X(dt_data_tokens, (void)dt_data_tokens(texts, (dt_split)small())) \
    X(dt_data_fetch, (void)dt_data_fetch(texts, (dt_split)small(), whole(), (int32_t *)some(data), (int32_t *)some(room))) \
    X(dt_rules_open, (void)(dt_rules_close(&rules), dt_rules_open(odd() ? NULL : &rules, (int32_t)small()))) X(dt_rules_close, dt_rules_close(odd() ? NULL : &rules)) \
    X(dt_rules_set, (void)dt_rules_set(rules, small(), small(), number())) X(dt_rules_on_fire, (void)dt_rules_on_fire(rules, NULL, NULL)) X(dt_rules_loss, (void)dt_rules_loss(rules, whole(), number())) \
    X(dt_rules_validation, (void)dt_rules_validation(rules, whole(), number())) X(dt_rules_tensor, (void)dt_rules_tensor(rules, whole(), text(), (dt_tensor_kind)small(), (const float *)some(data), few(), few())) \
    X(dt_rules_labels, (void)dt_rules_labels(rules, whole(), ids(), few(), (int32_t)small())) X(dt_rules_step, (s.step = whole(), s.rank = (int32_t)small(), s.seconds = number(), s.at = number(), (void)dt_rules_step(rules, (dt_rank_step *)some(&s)))) \
    X(dt_rules_clock, (void)dt_rules_clock(rules, number())) X(dt_rules_fired, (void)dt_rules_fired(rules, small())) X(dt_rules_text, (void)dt_rules_text(rules, (char *)some(room), odd() ? few() : DT_RULES_TEXT)) \
    X(dt_rule_name, (void)dt_rule_name(small())) X(dt_rule_advice, (void)dt_rule_advice(small()))
#define RANKS(X) \
    X(dt_launch, (void)dt_launch(options(), odd() ? NULL : &words)) X(dt_comm_open, (void)(dt_comm_close(&comm), dt_comm_open(odd() ? NULL : &comm, NULL, NULL))) \
    X(dt_comm_close, dt_comm_close(odd() ? NULL : &comm)) X(dt_comm_rank, (void)dt_comm_rank(comm)) X(dt_comm_size, (void)dt_comm_size(comm)) X(dt_barrier, (void)dt_barrier(comm)) \
    X(dt_broadcast, (void)dt_broadcast(comm, (float *)some(room), few(), small())) X(dt_all_reduce, (void)dt_all_reduce(comm, (float *)some(room), few(), (dt_op)small())) \
    X(dt_all_gather, (void)dt_all_gather(comm, (float *)some(data), (float *)some(room), few())) X(dt_reduce_scatter, (void)dt_reduce_scatter(comm, (float *)some(data), (float *)some(room), few(), (dt_op)small())) \
    X(dt_all_to_all, (void)dt_all_to_all(comm, (float *)some(data), (float *)some(room), few())) X(dt_send, (void)dt_send(comm, (float *)some(data), few(), odd() ? small() : 1)) \
    X(dt_recv, (void)dt_recv(comm, (float *)some(room), few(), odd() ? small() : 1)) X(dt_comm_alloc, (void)dt_comm_alloc(comm, odd() ? whole() : 100, (void **)some(out64))) \
    X(dt_comm_peer, (void)dt_comm_peer(comm, some(room), small())) \
    X(dt_comm_split, (sub = NULL, (void)dt_comm_split(comm, small(), odd() ? NULL : &sub), dt_comm_close(&sub))) X(dt_comm_launcher, (void)dt_comm_launcher(comm)) X(dt_comm_sent, (void)dt_comm_sent(comm, small())) \
    X(dt_comm_nodes, (void)dt_comm_nodes(comm)) X(dt_comm_network, (void)dt_comm_network(comm)) X(dt_comm_alive, (void)dt_comm_alive(comm)) X(dt_comm_agree, (void)dt_comm_agree(comm, odd() ? (dt_result)small() : DT_OK)) X(dt_comm_node, (void)dt_comm_node(comm, small())) \
    X(dt_comm_fail, (void)(odd() ? dt_comm_fail(comm, (dt_result)small()) : DT_OK))
#define TRAINERS(X) \
    X(dt_trainer_open, (void)(dt_trainer_close(&trainer), dt_trainer_open(odd() ? NULL : &trainer, recipe(), layout()))) X(dt_trainer_close, dt_trainer_close(odd() ? NULL : &trainer)) \
    X(dt_trainer_step, (void)(quick() || !trainer ? dt_trainer_step(trainer, (dt_step_info *)some(&info)) : DT_OK)) X(dt_trainer_run, (void)(quick() || !trainer ? dt_trainer_run(trainer, (dt_step_info *)some(&info)) : DT_OK)) \
    X(dt_trainer_is_root, (void)dt_trainer_is_root(trainer)) X(dt_trainer_hash, (void)dt_trainer_hash(trainer)) X(dt_trainer_comm, (void)dt_trainer_comm(trainer)) X(dt_trainer_event, (void)dt_trainer_event(trainer, whole(), (double *)some(room))) X(dt_trainer_gradient, (void)dt_trainer_gradient(trainer, text(), (float *)some(room))) X(dt_error, (void)dt_error(DT_E_DATA, "%s", text())) X(dt_trainer_save, (void)dt_trainer_save(trainer)) \
    X(dt_trainer_evaluate, (void)(quick() || !trainer ? dt_trainer_evaluate(trainer, few(), (float *)some(room)) : DT_OK)) \
    X(dt_trainer_sample, (void)(quick() || !trainer ? dt_trainer_sample(trainer, odd() ? text() : "The ", few(), (const dt_sampling *)(const void *)generation(), (char *)some(room)) : DT_OK)) \
    X(dt_trainer_predict, (void)dt_trainer_predict(trainer, some(data), few(), (float *)some(room), whole())) X(dt_trainer_experts, (void)dt_trainer_experts(trainer, whole(), (float *)some(room))) \
    X(dt_trainer_memory, (void)dt_trainer_memory(trainer)) X(dt_trainer_weights, (void)dt_trainer_weights(trainer)) X(dt_trainer_compilation, (void)dt_trainer_compilation(trainer, (dt_compilation_report *)some(&report))) \
    X(dt_trainer_parameter, (void)dt_trainer_parameter(trainer, text(), (int64_t *)some(out64))) X(dt_trainer_parameter_at, (void)dt_trainer_parameter_at(trainer, whole(), (dt_shape *)some(room))) \
    X(dt_trainer_own, (void)dt_trainer_own(trainer, text(), (float *)some(room), (int64_t *)some(out64))) X(dt_trainer_plan, (void)dt_trainer_plan(trainer)) X(dt_plan_mesh, (void)dt_plan_mesh(dt_trainer_plan(trainer))) \
    X(dt_predictor_open, (void)(draw(2) ? (dt_trainer_close(&generator), dt_predictor_open(odd() ? NULL : &generator, draw(2) ? "checkpoints" : file(), NULL, draw(2) ? NULL : layout())) : (dt_trainer_close(&trainer), dt_predictor_open(odd() ? NULL : &trainer, draw(2) ? "checkpoints" : file(), draw(2) ? NULL : own_model(), draw(2) ? NULL : layout())))) \
    X(dt_generate, (void)dt_generate(generator, odd() ? text() : "The ", generation(), (int64_t *)some(out64))) \
    X(dt_evaluate, (void)dt_evaluate(generator, odd() ? file() : "short.txt", (float *)some(room), (int64_t *)some(out64), out64 + 1)) X(dt_recipe_from, (void)dt_recipe_from((dt_recipe *)some(room), file())) \
    X(dt_checkpoint_open, (void)(dt_checkpoint_close(&checkpoint), dt_checkpoint_open(odd() ? NULL : &checkpoint, draw(2) ? "checkpoints" : file()))) X(dt_checkpoint_close, dt_checkpoint_close(odd() ? NULL : &checkpoint)) \
    X(dt_checkpoint_verify, (void)dt_checkpoint_verify(checkpoint)) X(dt_checkpoint_read, (void)dt_checkpoint_read(checkpoint, whole(), (float *)some(room))) \
    X(dt_checkpoint_convert, (void)dt_checkpoint_convert(checkpoint, odd() ? file() : "converted", (dt_checkpoint_kind)small()))

#define NAME(name, call) #name,
static const char *const names[] = {BUILDERS(NAME) GRAPHS(NAME) OWN(NAME) DATA(NAME) RANKS(NAME) TRAINERS(NAME)};
#define COUNT(name, call) +1
enum { N_BUILDERS = BUILDERS(COUNT), N_GRAPHS = GRAPHS(COUNT), N_OWN = OWN(COUNT), N_DATA = DATA(COUNT), N_RANKS = RANKS(COUNT), N_TRAINERS = TRAINERS(COUNT) };

static void build(int which)
{
    static const dt_tensor nothing = {0, 0};
    static dt_rope_scaling scaling;
    dt_attention_options o;
    dt_moe_options m;
    dt_tensor t = nothing;
    int k = 0;
    scaling.factor = 8, scaling.low_freq_factor = 1, scaling.high_freq_factor = odd() ? 0.5 : 4, scaling.original_context = odd() ? -1 : 16;
    begin(names[which]);
#define BUILD(name, call) if (which == k++) t = call;
    BUILDERS(BUILD)
    keep(t);
}
#define CALL(name, call) if (which == k++) call;
#define CALLER(function, LIST, first, locals) \
    static void function(int which) \
    { \
        locals \
        int k = 0; \
        begin(names[first + which]); \
        LIST(CALL) \
    }
CALLER(call_graph, GRAPHS, N_BUILDERS, )
CALLER(call_own, OWN, N_BUILDERS + N_GRAPHS, )
CALLER(call_data, DATA, N_BUILDERS + N_GRAPHS + N_OWN, static dt_rank_step s;)
CALLER(call_ranks, RANKS, N_BUILDERS + N_GRAPHS + N_OWN + N_DATA, dt_comm *sub;)
CALLER(call_trainer, TRAINERS, N_BUILDERS + N_GRAPHS + N_OWN + N_DATA + N_RANKS, )

/* ---- segments: one that builds what is right, one that calls at random and returns what comes ---- */

static dt_tensor built(dt_graph *of, dt_tensor x, const void *user)
{
    if (user) return dt_cross_entropy(of, dt_reshape(of, dt_linear(of, x, "out", 12), dt_shape3(dt_dim(of, x, 0), 4, 3)), dt_targets(of), 0.0f);
    return dt_linear(of, x, "in", 4);
}
static dt_tensor wanders(dt_graph *of, dt_tensor x, const void *user)
{
    dt_graph *before = graph;
    dt_tensor of_before[KEPT], y;
    int had = keeps;
    (void)user;
    memcpy(of_before, kept, sizeof kept);
    graph = of, keeps = 0, keep(x), keep(x);
    for (uint32_t i = draw(6); i > 0; i--) build((int)draw(N_BUILDERS));
    y = draw(3) ? dt_linear(of, x, "own", 4) : draw(2) ? tensor() : of_before[0];
    graph = before, keeps = had;
    memcpy(kept, of_before, sizeof kept);
    return y;
}

/* ---- batches ---- */

static void write_file(const char *name, const char *bytes, size_t size)
{
    FILE *f = fopen(name, "wb");
    if (!f || fwrite(bytes, 1, size, f) != size || fclose(f)) perror(name), exit(1);
}
/* The files that calls may read, and a checkpoint, in a directory of their own. */
static void prepare(void)
{
    dt_recipe r = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_trainer *t = NULL;
    char some_text[3000];
    for (int i = 0; i < 3000; i++) some_text[i] = "the cat sat on a mat. "[i * 7 % 22];
    write_file("text.txt", some_text, sizeof some_text);
    write_file("short.txt", some_text, 200);
    write_file("config.json", "{}", 2);
    write_file("model.bin", some_text, 1100);
    r.model = dt_model_gpt2("nano"), r.model.layers = 1, r.model.width = 16, r.model.heads = 2, r.data = "text.txt", r.steps = 1, r.batch = 8, r.sequence = 8;
    l.threads = 1, l.output.quiet = 1, l.output.sample_length = 0, l.checkpoint.place = "checkpoints", l.output.eval_batches = 1;
    if (dt_trainer_open(&t, &r, &l) || dt_trainer_run(t, &info)) exit(dt_fail("prepare"));
    dt_trainer_close(&t);
}

/* A new graph with tensors of both types; what was kept of the one before is stale. */
static void new_graph(void)
{
    begin("a new graph");
    if (keeps) stale = kept[0];
    dt_graph_close(&graph);
    keeps = 0;
    if (draw(2) ? dt_graph_open(&graph, 1) : dt_graph_record(&graph, 1, 1)) return;
    keep(dt_tensor_of(graph, DT_F32, dt_shape2(2, 3), data)), keep(dt_tensor_of(graph, DT_I32, dt_shape2(2, 3), data));
    keep(dt_tensor_of(graph, DT_F32, dt_shape3(2, 3, 6), data)), keep(dt_param(graph, "p", dt_shape2(3, 6), DT_INIT_NORMAL, 1.0f));
}
static void batch(uint64_t seed)
{
    int kind, builds = 0;
    state = seed * 2862933555777941757u + 3037000493u;
    for (int i = 0; i < 3; i++) draw(2);
    kind = (int)draw(8), wild = draw(2) ? 3 : 25;
    if (draw(3) == 0) fail_at = made + 1 + draw(kind < 5 ? 60 : 4000);
    if (kind > 3) (void)dt_comm_open(&comm, NULL, NULL);
    new_graph();
    for (int i = 0; i < (kind == 7 ? 25 : 150); i++) {
        if (kind <= 3) {
            if (++builds > 12 || !graph || graph->result) new_graph(), builds = 0;
            if (draw(6) || !graph) build((int)draw(N_BUILDERS));
            else call_graph((int)draw(N_GRAPHS));
        }
        if (kind == 4) draw(3) ? call_own((int)draw(N_OWN)) : call_graph((int)draw(N_GRAPHS));
        if (kind == 5) call_data((int)draw(N_DATA));
        if (kind == 6) call_ranks((int)draw(N_RANKS));
        if (kind == 7) call_trainer((int)draw(N_TRAINERS));
    }
    begin("closing");
    dt_graph_close(&graph), dt_graph_close(&other), dt_tokenizer_close(&tokenizer), dt_data_close(&texts), dt_rules_close(&rules);
    dt_optimizer_close(&optimizer), dt_trainer_close(&trainer), dt_trainer_close(&generator), dt_checkpoint_close(&checkpoint), dt_comm_close(&comm);
    begin("the end");
    if (live) say(": %lld bytes were not freed", (long long)live), abort();
}

/* Every builder, in an eager, a recorded and a segment's graph, with each of its allocations failing in turn. */
static int builder_of; /* what `starved` builds */
static dt_tensor starve(dt_graph *of, dt_tensor x, const void *user)
{
    static const dt_tensor nothing = {0, 0};
    dt_attention_options o = {2, 0, 1, 0.0f, 0.0f};
    dt_moe_options m = {4, 2, 0, 0, 1, 0, 1.0f, 0.1f, 0.1f, 0.0f};
    dt_tensor a = dt_linear(of, x, "a", 12), i = nothing, y = nothing;
    (void)user;
    a = dt_reshape(of, a, dt_shape3(dt_dim(of, x, 0), 2, 6));
    switch (builder_of) {
    case 0: y = dt_moe(of, a, "m", &m); break;
    case 1: m.gated = 1, y = dt_moe(of, a, "m", &m); break;
    case 2: y = dt_mul(of, dt_max(of, a, 4 | DT_KEEP), a); break;
    case 3: y = dt_map2(of, DT_GREATER_EQUAL, a, dt_silu(of, a)), y = dt_mul(of, y, a); break;
    case 4: y = dt_attend(of, dt_linear(of, a, "q", 18), nothing, nothing, nothing, &o); break;
    case 5: y = dt_attend(of, a, a, a, dt_full(of, dt_shape2(2, 2), 1.0f), &o); break;
    case 6: y = dt_linear_with(of, dt_linear_with(of, a, "l", 6, 0.1f, DT_COLUMNS), "r", 6, 0.1f, DT_ROWS); break;
    case 7: y = dt_layernorm(of, dt_rmsnorm(of, a, "r", 1e-5f), "l", 1e-5f); break;
    case 8: y = dt_map(of, DT_RSQRT, dt_mul(of, a, a)); break;
    case 9: dt_top_k(of, dt_reshape(of, a, dt_shape3(dt_dim(of, x, 0), 4, 3)), 1, &i), y = dt_embed(of, dt_param(of, "t", dt_shape2(4, 3), DT_INIT_NORMAL, 1.0f), i); break;
    case 10: y = dt_gather(of, a, 2, dt_cast(of, dt_full(of, dt_shape3(dt_dim(of, x, 0), 2, 2), 1.0f), DT_I32)); break;
    case 11: y = dt_top_k(of, dt_softmax(of, a, DT_LAST), 2, NULL); break;
    case 12: y = dt_softmax(of, dt_max(of, a, 2 | DT_KEEP), DT_LAST); break;
    case 13: y = dt_dropout(of, dt_gelu(of, dt_rope(of, a, 1, 10000.0, 0, NULL)), 0.5f); break;
    case 14: y = dt_concat(of, &a, 1, 0), y = dt_concat(of, (const dt_tensor[2]){dt_slice(of, y, 1, 0, 1), a}, 2, 1); break;
    case 15: y = dt_matmul(of, a, dt_permute(of, dt_expand(of, dt_param(of, "e", dt_shape2(5, 6), DT_INIT_ONES, 0.0f), dt_shape3(dt_dim(of, x, 0), 5, 6)), (const int[3]){0, 2, 1}), 0, 0); break;
    case 16: y = dt_auxiliary_loss(of, a, dt_mean(of, dt_mul(of, a, a), DT_ALL), 0.1f); break;
    case 17: y = dt_map2(of, DT_DIV, a, dt_clamp(of, a, 0.5f, 1.0f)); break;
    default: y = dt_custom(of, &custom, &a, 1, dt_shape3(dt_dim(of, x, 0), 2, 6));
    }
    return dt_loss(of, dt_reshape(of, dt_mean(of, dt_reshape(of, y, dt_shape2(dt_dim(of, x, 0), dt_shape_count(dt_shape_of(of, y)) / dt_dim(of, x, 0))), 2), dt_shape1(dt_dim(of, x, 0))));
}
enum { STARVED = 19 };
static dt_result starve_graph(int how)
{
    dt_graph *own = NULL;
    dt_result r = how ? dt_graph_record(&own, 1, 1) : dt_graph_open(&own, 1);
    if (!r) {
        dt_tensor x = dt_tensor_of(own, DT_F32, dt_shape2(2, 4), data);
        (void)dt_backward(own, x.id ? starve(own, x, NULL) : x);
        (void)dt_graph_run(own);
        (void)dt_graph_parameters(own, list, 64);
        r = dt_graph_result(own);
    }
    dt_graph_close(&own);
    return r;
}
static dt_result starve_segment(void)
{
    static const dt_segment one = {"s", starve, NULL};
    dt_recipe r = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_trainer *t = NULL;
    dt_result result;
    r.model = dt_model_segments(&one, 1, 0), r.source = &source, r.steps = 1, r.batch = 8, r.sequence = 4;
    l.threads = 1, l.output.quiet = 1, l.output.sample_length = 0;
    result = dt_trainer_open(&t, &r, &l);
    dt_trainer_close(&t);
    return result;
}
static void starve_all(uint64_t which)
{
    dt_result r = DT_E_MEMORY;
    int how = (int)(which % 3), every = how == 2 ? 7 : 1;
    builder_of = (int)(which / 3);
    for (int64_t n = 1; r && n < 20000; n += every) {
        int64_t before = live;
        begin("starved");
        say(": builder %d, %s graph, allocation %lld fails", builder_of, how == 2 ? "a segment's" : how ? "a recorded" : "an eager", (long long)n);
        fail_at = made + n;
        r = how == 2 ? starve_segment() : starve_graph(how);
        if (r && (made < fail_at || !strstr(dt_last_error(), "memory"))) say(": %s", dt_last_error()), abort();
        if (live != before) say(": %lld bytes were not freed", (long long)(live - before)), abort();
    }
    if (r) abort();
}

/* Runs one batch in a process of its own; what it printed is shown when it fails. */
static int run(void (*what)(uint64_t), uint64_t seed, const char *kind)
{
    struct rlimit cpu = {100, 110};
    int status = 0;
    pid_t pid;
    memset(seen, 0, sizeof *seen);
    fflush(stdout);
    pid = fork();
    if (pid < 0) return perror("fork"), 1;
    if (!pid) {
        if (!freopen("said", "wb", stdout) || dup2(1, 2) < 0) _exit(1);
        setrlimit(RLIMIT_CPU, &cpu);
        what(seed);
        exit(0);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (!status) return 0;
    printf("%s %llu ended with %s %d after %lld calls, the last of which were\n", kind, (unsigned long long)seed, WIFSIGNALED(status) ? "signal" : "status",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), (long long)seen->calls);
    for (int64_t i = seen->calls > LINES - 1 ? seen->calls - LINES + 2 : 0; i <= seen->calls; i++) if (seen->line[i % LINES][0]) printf("    %s\n", seen->line[i % LINES]);
    fflush(stdout);
    return system("grep -v '^ *$' said | head -60") || 1;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 3.0, start = dt__now();
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1, only = argc > 3 ? strtoull(argv[3], NULL, 0) : 0, batches = 0;
    char rm[PATH_MAX + 16];
    const char *slash = strrchr(__FILE__, '/');
    char *json = NULL;
    int64_t bytes = 0;
    int failed = 0;
    if (argc > 1 && !strcmp(argv[1], "names")) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) puts(names[i]);
        return 0;
    }
    snprintf(rm, sizeof rm, "%.*s/golden/tokens/gpt2.json", slash ? (int)(slash - __FILE__) : 1, slash ? __FILE__ : ".");
    if (dt__file_get(rm, 1 << 20, &json, &bytes)) return dt_fail(rm);
    seen = (struct batch_log *)mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(folder, sizeof folder, "%s/fuzz_api.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (seen == MAP_FAILED || !mkdtemp(folder) || chdir(folder)) return perror(folder), 1;
    write_file("tokenizer.json", json, (size_t)bytes);
    dt__free(json);
    prepare();
    if (only) failed = run(batch, seed + only, "batch");
    for (uint64_t i = 0; i < 3 * STARVED && !only; i++) failed += run(starve_all, i, "starved");
    start = dt__now();
    for (; !only && dt__now() - start < seconds && failed < 5; batches++) failed += run(batch, seed + batches, "batch");
    snprintf(rm, sizeof rm, "rm -rf '%s'", folder);
    if (chdir("/") || system(rm)) perror(folder);
    printf("seed %llu: %llu batches in %.0f s, %d failed\n", (unsigned long long)seed, (unsigned long long)batches, dt__now() - start, failed);
    return failed != 0;
}
