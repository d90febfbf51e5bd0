/* test_source.c: samples of the program's own (dt_source) in the trainer: order, counting of targets, losses and
 * validations against double, one hash on 1 to 3 ranks that are processes or threads, fetches that fail, data and ids
 * that do not fit the model, predictions, and what the progress says.
 *
 *     cc -O2 -I.. test_source.c -lm -lpthread && ./a.out */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/prose.h"
#include "maps.h"
#include "tap.h"

enum { IN = 6, OUT = 3, TRAIN = 50, VALID = 13, CLASSES = 5, SLOW = 1500 };

static uint32_t mixed(int64_t n) /* any function of n will do */
{
    uint32_t x = (uint32_t)n * 2654435761u + 12345u;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    return x;
}

/* What a fetch does besides writing; zero: nothing. */
typedef struct habits {
    int64_t fail_at, calls;      /* the call, counted from 1, that fails; 0: none */
    int fail_kind;               /* 0: an own code, 1: of a dt_ function */
    int64_t no_validation;       /* this validation sample always fails; 0: none does */
    int64_t bad_sample;          /* this training sample has `bad` in its second input or target; -1: none */
    int bad_part;
    uint32_t bad;                /* bits */
    int64_t slow_sample;         /* this training sample takes SLOW milliseconds; 0: none does */
    int64_t seen[4 * TRAIN];     /* samples in the order of the first calls */
} habits;

static dt_result habit(habits *h, dt_split split, int64_t sample, uint32_t *input, uint32_t *target)
{
    int64_t call = __atomic_add_fetch(&h->calls, 1, __ATOMIC_SEQ_CST);
    if (split == DT_TRAIN && call <= 4 * TRAIN) h->seen[call - 1] = sample;
    if (split == DT_TRAIN && sample == h->bad_sample) (h->bad_part ? target : input)[1] = h->bad;
    if (split == DT_VALIDATION && h->no_validation && sample == h->no_validation) return DT_E_DATA;
    if (split == DT_TRAIN && h->slow_sample && sample == h->slow_sample) usleep(1000 * SLOW);
    if (call != h->fail_at) return DT_OK;
    if (!h->fail_kind) return DT_E_DATA;
    {
        dt_data *d;
        return dt_data_open(&d, "/nowhere/at all", NULL, 4, 0);
    }
}

/* Numbers (IN) -> numbers (OUT), all of them multiples of 1/16. */
static float number(dt_split split, int64_t sample, int64_t i)
{
    return (float)((int)(mixed(((int64_t)split * 1000 + sample) * 64 + i) & 255) - 128) / 16.0f;
}
static dt_result fetch_numbers(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    for (int i = 0; i < IN; i++) ((float *)input)[i] = number(split, sample, i);
    for (int i = 0; i < OUT; i++) ((float *)target)[i] = number(split, sample, IN + i);
    return user ? habit((habits *)user, split, sample, (uint32_t *)input, (uint32_t *)target) : DT_OK;
}

/* Ids (IN) below CLASSES -> classes (OUT), of which a third is ignored, and all of them in every seventh sample. */
static dt_result fetch_ids(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    int64_t base = ((int64_t)split * 1000 + sample) * 64;
    for (int i = 0; i < IN; i++) ((int32_t *)input)[i] = (int32_t)(mixed(base + i) % CLASSES);
    for (int i = 0; i < OUT; i++) {
        uint32_t random = mixed(base + IN + i);
        ((int32_t *)target)[i] = sample % 7 == 3 || random % 3 == 0 ? -1 : (int32_t)(random / 3 % CLASSES);
    }
    return user ? habit((habits *)user, split, sample, (uint32_t *)input, (uint32_t *)target) : DT_OK;
}

static dt_source source_of(dt_result (*fetch)(void *, dt_split, int64_t, void *, void *), dt_dtype type, habits *user)
{
    dt_source s;
    memset(&s, 0, sizeof s);
    s.user = user;
    s.samples[DT_TRAIN] = TRAIN, s.samples[DT_VALIDATION] = VALID;
    s.inputs = IN, s.targets = OUT;
    s.input_type = s.target_type = type;
    s.fetch = fetch;
    return s;
}

/* ---- models ---- */

static dt_tensor as_it_is(dt_graph *g, dt_tensor x, const void *user) { return (void)g, (void)user, x; }
static dt_tensor dense(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_dropout(g, dt_tanh(g, dt_linear_with(g, x, "up", 8, 0.3f, DT_COLUMNS)), 0.1f);
}
static dt_tensor squared(dt_graph *g, dt_tensor x, const void *user) /* what it predicts is not saved for backward */
{
    (void)user;
    return dt_error_loss(g, DT_MSE, map_neg(g, dt_prediction(g, map_neg(g, dt_linear(g, x, "out", OUT)))), dt_targets(g));
}
static dt_tensor first_three(dt_graph *g, dt_tensor x, const void *user) /* a x, a = 1 at first */
{
    dt_tensor a = dt_param(g, "a", dt_shape1(1), DT_INIT_ONES, 0.0f);
    (void)user;
    return dt_error_loss(g, DT_MSE, dt_prediction(g, dt_mul(g, dt_slice(g, x, 1, 0, OUT), a)), dt_targets(g));
}
static dt_tensor unmarked(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_error_loss(g, DT_MSE, dt_linear(g, x, "out", OUT), dt_targets(g));
}
static dt_tensor marked_ids(dt_graph *g, dt_tensor x, const void *user)
{
    dt_tensor places;
    dt_top_k(g, x, 1, &places);
    dt_prediction(g, places);
    return unmarked(g, x, user);
}
static dt_tensor lookup(dt_graph *g, dt_tensor x, const void *user) /* user: rows of the table */
{
    dt_tensor table = dt_param(g, "table", dt_shape2(user ? *(const int64_t *)user : CLASSES, 4), DT_INIT_NORMAL, 0.5f);
    x = dt_embed(g, table, dt_reshape(g, x, dt_shape3(dt_dim(g, x, 0), 2, IN / 2)));
    return dt_reshape(g, x, dt_shape2(dt_dim(g, x, 0), IN * 4));
}
static dt_tensor classes(dt_graph *g, dt_tensor x, const void *user) /* user: how many */
{
    int64_t n = user ? *(const int64_t *)user : CLASSES;
    x = dt_reshape(g, dt_linear(g, x, "out", OUT * n), dt_shape3(dt_dim(g, x, 0), OUT, n));
    return dt_cross_entropy(g, x, dt_targets(g), 0.0f);
}
static dt_tensor undecided(dt_graph *g, dt_tensor x, const void *user) /* every logit is 0 at first */
{
    dt_tensor w = dt_param(g, "w", dt_shape2(IN * 4, OUT * CLASSES), DT_INIT_ZEROS, 0.0f);
    (void)user;
    x = dt_reshape(g, dt_matmul(g, x, w, 0, 0), dt_shape3(dt_dim(g, x, 0), OUT, CLASSES));
    return dt_cross_entropy(g, x, dt_targets(g), 0.0f);
}
/* Ids far outside of the table, by arithmetic that nobody can follow. */
static dt_tensor astray(dt_graph *g, dt_tensor x, const void *user)
{
    dt_tensor table = dt_param(g, "table", dt_shape2(4, 4), DT_INIT_ONES, 0.0f);
    (void)user;
    x = dt_sub(g, dt_scale(g, dt_cast(g, x, DT_F32), 1e8f), dt_full(g, dt_shape1(1), 2e8f)); /* -2e8 .. 2e8 */
    x = dt_cast(g, x, DT_I32);
    return dt_reshape(g, dt_embed(g, table, x), dt_shape2(dt_dim(g, x, 0), IN * 4));
}
static dt_tensor class_astray(dt_graph *g, dt_tensor x, const void *user)
{
    dt_tensor far = dt_cast(g, dt_scale(g, dt_cast(g, dt_targets(g), DT_F32), 1e8f), DT_I32);
    (void)user;
    x = dt_reshape(g, dt_linear(g, x, "out", OUT * CLASSES), dt_shape3(dt_dim(g, x, 0), OUT, CLASSES));
    return dt_cross_entropy(g, x, far, 0.0f);
}

static const dt_segment numbers_net[] = {{"dense", dense, NULL}, {"out", squared, NULL}},
                        slope_net[] = {{"in", as_it_is, NULL}, {"out", first_three, NULL}},
                        ids_net[] = {{"in", lookup, NULL}, {"mid", dense, NULL}, {"out", classes, NULL}},
                        even_net[] = {{"in", lookup, NULL}, {"out", undecided, NULL}},
                        astray_net[] = {{"in", astray, NULL}, {"out", class_astray, NULL}};

static dt_recipe recipe_of(const dt_segment *net, int64_t count, const dt_source *source)
{
    dt_recipe r = dt_recipe_default();
    r.model = dt_model_segments(net, count, 0);
    r.source = source;
    r.steps = 3, r.batch = 16, r.micro_batch = 8, r.data_shards = 4;
    r.learning_rate = 1e-2f;
    return r;
}
static dt_layout layout_of(void)
{
    dt_layout l = dt_layout_default();
    l.threads = 1, l.output.quiet = 1, l.output.eval_every = 0;
    return l;
}
static dt_trainer *opened(const dt_recipe *r)
{
    dt_layout l = layout_of();
    dt_trainer *t = NULL;
    if (dt_trainer_open(&t, r, &l)) tap_bail("%s", dt_last_error());
    return t;
}

/* ---- order ---- */

static void test_order(void)
{
    static habits h;
    dt_source s = source_of(fetch_numbers, DT_F32, &h);
    dt_recipe r = recipe_of(numbers_net, 2, &s);
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t;
    int fine = 1, same = 1;
    s.samples[DT_VALIDATION] = 0;
    h.bad_sample = -1;
    r.steps = 12, r.micro_batch = r.batch, r.seed = 9; /* then the rows of a batch are in order */
    t = opened(&r);
    if (dt_trainer_run(t, &info)) tap_bail("%s", dt_last_error());
    dt_trainer_close(&t);
    for (int epoch = 0; epoch < 3; epoch++) {
        int count[TRAIN] = {0};
        for (int i = 0; i < TRAIN; i++) count[h.seen[epoch * TRAIN + i]]++;
        for (int i = 0; i < TRAIN; i++) fine = fine && count[i] == 1;
    }
    tap_ok(fine, "R16 every sample once per epoch, with batches across its end");
    for (int i = 0; i < 3 * TRAIN; i++) same = same && h.seen[i] == dt__sample_at(TRAIN, 9, i);
    tap_ok(same && memcmp(h.seen, h.seen + TRAIN, sizeof h.seen / 4), "in the order of files, another one in each epoch");
    tap_ok(info.tokens == 16 && info.validation != info.validation, "16 samples a step; no validation samples, no validation");
}

/* ---- rounding ---- */

#if defined(__x86_64__)
/* A number that flush-to-zero would lose, made by arithmetic. */
static dt_result fetch_tiny(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    volatile float tiny = 1e-30f;
    fetch_numbers(NULL, split, sample, input, target);
    ((float *)input)[0] = tiny * 1e-10f * 1e30f;
    __atomic_fetch_add((int64_t *)user, ((float *)input)[0] == 0.0f, __ATOMIC_SEQ_CST);
    return DT_OK;
}
static void test_rounding(void)
{
    int64_t lost = 0;
    unsigned saved = __builtin_ia32_stmxcsr();
    dt_source s = source_of(fetch_tiny, DT_F32, NULL);
    dt_recipe r = recipe_of(numbers_net, 2, &s);
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t;
    s.user = &lost;
    __builtin_ia32_ldmxcsr(saved | 0x8040u);
    t = opened(&r);
    if (dt_trainer_run(t, &info)) tap_bail("%s", dt_last_error());
    tap_ok(__builtin_ia32_stmxcsr() & 0x8000u, "flush-to-zero is the caller's again");
    __builtin_ia32_ldmxcsr(saved);
    dt_trainer_close(&t);
    tap_ok(lost == 0, "R15 the caller's flush-to-zero does not reach fetch");
}
#endif

/* ---- losses against double ---- */

static void test_losses(void)
{
    dt_source s = source_of(fetch_numbers, DT_F32, NULL);
    dt_recipe r = recipe_of(slope_net, 2, &s);
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = opened(&r);
    float loss = 0.0f;
    double want = 0.0;
    if (dt_trainer_evaluate(t, 0, &loss)) tap_bail("%s", dt_last_error());
    for (int k = 0; k < VALID * OUT; k++) want += pow((double)number(DT_VALIDATION, k / OUT, k % OUT) - (double)number(DT_VALIDATION, k / OUT, IN + k % OUT), 2) / (VALID * OUT);
    tap_ok(VALID % t->e.p.rows && fabs((double)loss - want) < 1e-6 * want, "R12 floats: the mean over %d samples in units of %d is %.6f", VALID, (int)t->e.p.rows, want);
    if (dt_trainer_step(t, &info)) tap_bail("%s", dt_last_error());
    want = 0.0;
    for (int k = 0; k < 16 * OUT; k++) {
        int64_t sample = dt__sample_at(TRAIN, 1, k / OUT);
        want += pow((double)number(DT_TRAIN, sample, k % OUT) - (double)number(DT_TRAIN, sample, IN + k % OUT), 2) / (16 * OUT);
    }
    tap_ok(fabs((double)info.loss - want) < 1e-6 * want, "R12 floats: the loss of a step is %.6f, %.6f in double", (double)info.loss, want);
    dt_trainer_close(&t);
    s = source_of(fetch_ids, DT_I32, NULL);
    r = recipe_of(even_net, 2, &s);
    t = opened(&r);
    for (int batches = 0; batches < 2; batches++) {
        if (dt_trainer_evaluate(t, batches, &loss)) tap_bail("%s", dt_last_error());
        tap_ok(fabs((double)loss - log(CLASSES)) < 1e-6, "R12 classes: the mean over targets that are not ignored is ln 5: %.6f", (double)loss);
    }
    if (dt_trainer_step(t, &info)) tap_bail("%s", dt_last_error());
    tap_ok(fabs((double)info.loss - log(CLASSES)) < 1e-6, "  and in training: %.6f", (double)info.loss);
    dt_trainer_close(&t);
}

/* ---- predictions ---- */

static void test_predictions(void)
{
    enum { MANY = 9 };
    dt_source s = source_of(fetch_numbers, DT_F32, NULL);
    dt_recipe r = recipe_of(numbers_net, 2, &s);
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = opened(&r);
    float input[VALID][IN], target[VALID][OUT], got[VALID + 1][OUT], one[OUT], loss = 0.0f;
    const float *up, *out, *bias, *shift;
    double error = 0.0, worst = 0.0;
    int same = 1;
    if (dt_trainer_run(t, &info) || dt_trainer_evaluate(t, 0, &loss)) tap_bail("%s", dt_last_error());
    for (int i = 0; i < VALID; i++) fetch_numbers(NULL, DT_VALIDATION, i, input[i], target[i]);
    got[MANY][0] = 77.0f;
    tap_ok(!dt_trainer_predict(t, input, MANY, got[0], OUT) && got[MANY][0] == 77.0f, "predictions of %d samples, not one more", MANY);
    tap_ok(!dt_trainer_predict(t, input, VALID, got[0], OUT), "and of all");
    for (int i = 0; i < VALID; i++) {
        same = same && !dt_trainer_predict(t, input[i], 1, one, OUT) && !memcmp(one, got[i], sizeof one);
        for (int k = 0; k < OUT; k++) error += pow((double)-got[i][k] - (double)target[i][k], 2) / (VALID * OUT);
    }
    tap_ok(same, "the same bits, alone or with others");
    tap_ok(fabs(error - (double)loss) < 1e-6 * error, "their squared error is the validation loss: %.6f", error);
    up = dt_trainer_parameter(t, "dense.up.weight", NULL), bias = dt_trainer_parameter(t, "dense.up.bias", NULL);
    out = dt_trainer_parameter(t, "out.out.weight", NULL), shift = dt_trainer_parameter(t, "out.out.bias", NULL);
    for (int k = 0; k < OUT; k++) {
        double sum = (double)shift[k];
        for (int j = 0; j < 8; j++) {
            double h = (double)bias[j];
            for (int i = 0; i < IN; i++) h += (double)input[2][i] * (double)up[i * 8 + j];
            sum += tanh(h) * (double)out[j * OUT + k];
        }
        worst = fmax(worst, fabs(sum + (double)got[2][k]));
    }
    tap_ok(worst < 1e-6, "what was marked, without dropout, against double: %.1e", worst);
    tap_ok(!dt_trainer_predict(t, NULL, 0, NULL, OUT), "none of none");
    tap_ok(dt_trainer_predict(t, input, 1, one, 2) == DT_E_USAGE && strstr(dt_last_error(), "3 numbers"), "another width is refused");
    input[0][1] = NAN;
    tap_ok(dt_trainer_predict(t, input, 1, one, OUT) == DT_E_DATA && strstr(dt_last_error(), "input 1"), "NaN is refused");
    dt_trainer_close(&t);
    {
        int32_t ids[2][IN] = {{0, 1, 2, 3, 4, 0}, {0, 0, 0, 0, 0, CLASSES}};
        float logits[2][OUT * CLASSES];
        s = source_of(fetch_ids, DT_I32, NULL);
        r = recipe_of(ids_net, 3, &s);
        t = opened(&r);
        tap_ok(!dt_trainer_predict(t, ids, 1, logits[0], OUT * CLASSES), "logits are predicted unasked");
        tap_ok(dt_trainer_predict(t, ids, 2, logits[0], OUT * CLASSES) == DT_E_DATA && strstr(dt_last_error(), "sample 1: input 5 is 5"), "an id outside is refused");
        dt_trainer_close(&t);
    }
    {
        static const dt_segment mute[] = {{"in", as_it_is, NULL}, {"out", unmarked, NULL}}, wrong[] = {{"in", as_it_is, NULL}, {"out", marked_ids, NULL}};
        dt_layout l = layout_of();
        s = source_of(fetch_numbers, DT_F32, NULL);
        r = recipe_of(mute, 2, &s);
        t = opened(&r);
        tap_ok(dt_trainer_predict(t, target, 1, one, OUT) == DT_E_USAGE && strstr(dt_last_error(), "mark what it predicts"), "nothing marked is refused");
        dt_trainer_close(&t);
        r.model.segments = wrong;
        tap_ok(dt_trainer_open(&t, &r, &l) == DT_E_SHAPE && strstr(dt_last_error(), "dt_prediction"), "ids marked are refused");
    }
}

/* ---- refusals ---- */

static void refuse(const dt_recipe *r, dt_result code, const char *part)
{
    dt_layout l = layout_of();
    dt_trainer *t = NULL;
    dt_result result = dt_trainer_open(&t, r, &l);
    dt_step_info info = dt_step_info_zero();
    if (!result) result = dt_trainer_run(t, &info); /* data is read as it is needed */
    if (!tap_ok(result == code && strstr(dt_last_error(), part), "%s: %s", code ? "refused" : "taken", code ? dt_last_error() : "what only looks wrong"))
        tap_note("%s, expected %s with \"%s\"", dt_result_name(result), dt_result_name(code), part);
    dt_trainer_close(&t);
}
static dt_result fetch_nothing(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    (void)user, (void)split, (void)sample, (void)input, (void)target;
    return DT_OK;
}

static void test_refusals(void)
{
    static const int64_t four = 4, many = 1000;
    static const dt_segment few_rows[] = {{"in", lookup, &four}, {"out", classes, NULL}}, few_classes[] = {{"in", lookup, &many}, {"out", classes, &four}};
    static habits h;
    dt_source good = source_of(fetch_numbers, DT_F32, NULL), s = good, ids = source_of(fetch_ids, DT_I32, &h);
    dt_recipe r = recipe_of(numbers_net, 2, &s);
    r.data = "text.txt";
    refuse(&r, DT_E_USAGE, "files (text.txt) and a source");
    r.data = NULL;
    s.fetch = NULL, refuse(&r, DT_E_USAGE, "no fetch"), s = good;
    s.samples[0] = 0, refuse(&r, DT_E_USAGE, "0 training"), s = good;
    s.samples[1] = -1, refuse(&r, DT_E_USAGE, "-1 validation"), s = good;
    s.inputs = 0, refuse(&r, DT_E_USAGE, "0 inputs"), s = good;
    s.targets = -2, refuse(&r, DT_E_USAGE, "-2 targets"), s = good;
    s.input_type = DT_BF16, refuse(&r, DT_E_USAGE, "DT_F32 or DT_I32"), s = good;
    s.target_type = DT_F16, refuse(&r, DT_E_USAGE, "DT_F32 or DT_I32"), s = good;
    s.targets = OUT + 1, refuse(&r, DT_E_SHAPE, "same shape"), s = good;
    s.input_type = DT_I32, refuse(&r, DT_E_SHAPE, "int32"), s = good;
    s.fetch = fetch_nothing, refuse(&r, DT_E_DATA, "write finite numbers, and all of them"), s = good;
    r.model = dt_model_gpt2("nano");
    refuse(&r, DT_E_USAGE, "set model.vocabulary");
    r.model.vocabulary = 5;
    refuse(&r, DT_E_SHAPE, "embed: needs");
    h.bad_sample = 17, h.bad_part = 0, h.bad = 0x7f800000u;
    s.user = &h;
    r = recipe_of(numbers_net, 2, &s), r.steps = 4;
    refuse(&r, DT_E_DATA, "training sample 17: input 1 is inf");
    h.bad_part = 1, refuse(&r, DT_E_DATA, "training sample 17: target 1 is inf");
    h.bad_sample = -1;
    r = recipe_of(few_rows, 2, &ids), refuse(&r, DT_E_DATA, "the model has 4 table rows");
    r = recipe_of(few_classes, 2, &ids), refuse(&r, DT_E_DATA, "the model has 4 classes");
    r = recipe_of(ids_net, 3, &ids), r.steps = 4;
    h.bad_sample = 5, h.bad = (uint32_t)-1, h.bad_part = 0;
    refuse(&r, DT_E_DATA, "sample 5: input 1 is -1");
    h.bad_sample = -1;
    r = recipe_of(astray_net, 2, &ids);
    refuse(&r, DT_OK, "");
}

/* ---- files ---- */

static dt_tensor text_in(dt_graph *g, dt_tensor x, const void *user) /* (B,T) -> (B,T,4) */
{
    x = dt_reshape(g, dt_permute(g, x, (const int[]){1, 0}), dt_shape2(dt_dim(g, x, 0), dt_dim(g, x, 1)));
    return dt_embed(g, dt_param(g, "table", dt_shape2(*(const int64_t *)user, 4), DT_INIT_NORMAL, 0.5f), x);
}
static dt_tensor text_out(dt_graph *g, dt_tensor x, const void *user)
{
    return dt_cross_entropy(g, dt_linear(g, x, "out", *(const int64_t *)user), dt_targets(g), 0.0f);
}

/* A text against a table and a head that are too small for it, or large enough for what it has; and the same text
 * through a source. */
static void test_files(void)
{
    static const int64_t few = 100, enough = 123;
    static const dt_segment table[] = {{"in", text_in, &few}, {"out", text_out, &enough}},
                            head[] = {{"in", text_in, &enough}, {"out", text_out, &few}},
                            both[] = {{"in", text_in, &enough}, {"out", text_out, &enough}};
    char file[] = "/tmp/dtrain_XXXXXX", hash[2][65], text[2][16];
    int fd = mkstemp(file);
    dt_data *d;
    dt_source s;
    dt_recipe r = recipe_of(table, 2, NULL);
    dt_layout l = layout_of();
    if (fd < 0 || close(fd) || prose_generate(file, 6000, 1) || dt_data_open(&d, file, NULL, 16, 0.1)) tap_bail("no data: %s", dt_last_error());
    r.data = file, r.sequence = 16;
    refuse(&r, DT_E_USAGE, "the model's table has 100");
    r.model.segments = head, refuse(&r, DT_E_USAGE, "the model's loss has 100");
    r.model.segments = both, refuse(&r, DT_OK, "");
    s = source_of(dt__file_fetch, DT_I32, NULL);
    s.user = d, s.inputs = s.targets = 16;
    s.samples[0] = dt_data_samples(d, DT_TRAIN), s.samples[1] = dt_data_samples(d, DT_VALIDATION);
    l.output.sample_length = 8;
    for (int k = 0; k < 2; k++) {
        dt_step_info info = dt_step_info_zero();
        dt_trainer *t = NULL;
        r = recipe_of(NULL, 0, k ? &s : NULL);
        r.model = dt_model_gpt2("nano"), r.model.vocabulary = 256;
        r.data = k ? NULL : file, r.sequence = k ? 5 : 16, r.validation = 0.1f;
        if (dt_trainer_open(&t, &r, &l) || dt_trainer_run(t, &info) || dt_trainer_sample(t, "The ", 8, NULL, text[k])) tap_bail("%s", dt_last_error());
        snprintf(hash[k], sizeof hash[k], "%s", dt_trainer_hash(t));
        tap_ok(info.tokens == (k ? 16 : 256) && info.validation > 1.0f, "%s: %d of a step, validation %.4f", k ? "source" : "file", (int)info.tokens, (double)info.validation);
        dt_trainer_close(&t);
    }
    tap_ok(!strcmp(hash[0], hash[1]) && !memcmp(text[0], text[1], 9), "a source that passes a file on has its hash and draws its text");
    dt_data_close(&d);
    remove(file);
}

/* ---- layouts: the program calls itself with: train NAME ACCUMULATION FAIL_AT KIND [launcher's options] ----
 * KIND: s speaks, w waits for a slow sample; d, o, v: how a fetch fails. */

static int train(int argc, char **argv)
{
    static __thread habits h; /* of this rank, which may be a thread */
    int numbers = !strcmp(argv[2], "numbers");
    dt_source s = numbers ? source_of(fetch_numbers, DT_F32, NULL) : source_of(fetch_ids, DT_I32, NULL);
    dt_recipe r = numbers ? recipe_of(numbers_net, 2, &s) : recipe_of(ids_net, 3, &s);
    dt_layout l = layout_of();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    float got[VALID][OUT * CLASSES], validation = 0.0f, input[VALID][IN], target[OUT];
    int64_t each = numbers ? OUT : OUT * CLASSES;
    uint32_t sum = 0, bits;
    dt_result e = dt_launch(&argc, &argv);
    r.accumulation = !strcmp(argv[3], "each") ? DT_EACH : DT_SHARD;
    r.steps = 5;
    l.output.quiet = argv[5][0] != 's';
    l.output.eval_every = 2;
    h.fail_at = atoi(argv[4]), h.bad_sample = -1, h.fail_kind = argv[5][0] == 'd', h.no_validation = argv[5][0] == 'v' ? 5 : 0;
    h.slow_sample = argv[5][0] == 'w' ? 7 : 0;
    if (h.fail_at || h.slow_sample) s.user = &h;
    if (!e) e = dt_trainer_open(&t, &r, &l);
    if (!e) e = dt_trainer_run(t, &info);
    if (!e) e = dt_trainer_evaluate(t, 0, &validation);
    for (int i = 0; i < VALID && !e; i++) e = s.fetch(NULL, DT_VALIDATION, i, input[i], target);
    if (!e) e = dt_trainer_predict(t, input, VALID, got[0], each);
    if (e) {
        dt_trainer_close(&t);
        if (e != DT_E_PEER) usleep(100000); /* the rank that knows why is late to say it */
        return dt_fail("train");
    }
    for (int64_t i = 0; i < VALID * each; i++) memcpy(&bits, got[0] + i, 4), sum = sum * 31 + bits;
    if (dt_trainer_is_root(t)) printf("loss %a validation %a predictions %u sha256 %s\n", (double)info.loss, (double)validation, sum, dt_trainer_hash(t));
    else dt_trainer_hash(t);
    dt_trainer_close(&t);
    return 0;
}

/* Runs this program again; its output and, with a failure, the exit status. */
static int run_train(const char *self, const char *words, const char *options, char *text, size_t size)
{
    char command[1024];
    size_t used;
    FILE *p;
    snprintf(command, sizeof command, "timeout 60 '%s' train %s %s 2>&1", self, words, options);
    p = popen(command, "r");
    if (!p) tap_bail("cannot run %s", command);
    used = fread(text, 1, size - 1, p);
    text[used] = 0;
    return WEXITSTATUS(pclose(p));
}

static const char *const layouts[] = {"--ranks 1", "--ranks 2 --launch processes", "--ranks 3 --launch processes", "--ranks 2 --launch threads", "--ranks 3 --launch threads"};
#ifdef DT_NO_THREADS
enum { LAYOUTS = 3 };
#else
enum { LAYOUTS = 5 };
#endif

static void test_layouts(const char *self)
{
    static const char *const runs[] = {"numbers shard 0 -", "numbers each 0 -", "ids shard 0 -", "ids each 0 -"};
    char text[4][LAYOUTS][2048];
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < LAYOUTS; i++) {
            int status = run_train(self, runs[k], layouts[i], text[k][i], sizeof text[k][i]);
            if (!tap_ok(!status && strstr(text[k][i], "sha256 ") && !strcmp(text[k][i], text[k][0]), "R1 R12 %s: %s gives %s", runs[k], layouts[i], i ? "the same bits" : "a hash"))
                tap_note("%d: %s", status, text[k][i]);
        }
    tap_ok(strcmp(text[0][0], text[1][0]) && strcmp(text[2][0], text[3][0]), "R4 the two accumulations differ");
}

static void test_failures(const char *self)
{
    static const char *const calls[] = {"1", "30", "40"}; /* all are needed, those of a later prefetch are not */
    char words[64], text[4096];
    for (int i = 0; i < LAYOUTS; i += i ? 2 : 1) /* 1 rank, 2 processes, 2 threads */
        for (int k = 0; k < 3; k++)
            for (int own = 0; own < 2; own++) {
                const char *said = own ? "fetch returned an error (DT_E_DATA)" : "cannot read /nowhere/at all";
                int status, lines = 0;
                snprintf(words, sizeof words, "numbers shard %s %c", calls[k], own ? 'o' : 'd');
                status = run_train(self, words, layouts[i], text, sizeof text);
                for (char *c = text; *c; c++) lines += *c == '\n';
                if (!tap_ok(status == 1 && strstr(text, said) && strstr(text, " sample ") && lines <= 2, "fetch fails at call %s, %s: %s", calls[k], layouts[i], said))
                    tap_note("%d: %s", status, text);
            }
    for (int i = 0; i < LAYOUTS; i += i ? 2 : 1) {
        int status = run_train(self, "numbers shard 9999 v", layouts[i], text, sizeof text);
        tap_ok(status == 1 && strstr(text, "train: validation sample 5: fetch returned an error (DT_E_DATA)"), "fetch fails in a validation, %s", layouts[i]);
    }
}

/* A rank that waits for its own data is alive, however long that takes. */
static void test_slow(const char *self)
{
#ifdef DT_NO_THREADS
    (void)self;
    tap_skip(2, "without threads a fetch may not take longer than --timeout");
#else
    static const char *const options[] = {"--ranks 2 --timeout 0.5", "--ranks 2 --timeout 0.5 --launch threads"};
    char want[2048], text[2048];
    run_train(self, "numbers shard 0 -", "--ranks 2", want, sizeof want);
    for (int i = 0; i < 2; i++) {
        double start = dt__now();
        int status = run_train(self, "numbers shard 0 w", options[i], text, sizeof text);
        if (!tap_ok(!status && !strcmp(text, want) && dt__now() - start > 1e-3 * SLOW, "a fetch of %d ms, %s: no fault, the same bits", SLOW, options[i]))
            tap_note("%d: %s", status, text);
    }
#endif
}

static void test_progress(const char *self)
{
    char text[8192];
    run_train(self, "numbers shard 0 s", "", text, sizeof text);
    tap_ok(strstr(text, "of the program's own: 50 training samples of 6 inputs and 3 targets, 13 for validation") && strstr(text, " samples/s") && !strstr(text, "tokens") && !strstr(text, "nats") &&
               !strstr(text, "bits"), "the progress of a squared error speaks of samples and of no nats");
    run_train(self, "ids shard 0 s", "", text, sizeof text);
    tap_ok(strstr(text, " nats, ") && strstr(text, "bits per target") && !strstr(text, "token"), "that of a cross-entropy of nats");
}

int main(int argc, char **argv)
{
    if (argc > 5 && !strcmp(argv[1], "train")) return train(argc, argv);
    test_order();
#if defined(__x86_64__)
    test_rounding();
#endif
    test_losses();
    test_predictions();
    test_refusals();
    test_files();
    test_layouts(argv[0]);
    test_failures(argv[0]);
    test_slow(argv[0]);
    test_progress(argv[0]);
    return tap_done();
}
