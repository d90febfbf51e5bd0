/* Optimizers (R11, R13, R17): every kernel against plain scalar text bit for bit, on each instruction set of this
 * processor; three steps against PyTorch and NumPy (golden/optim.safetensors, made by make_golden.py); the scalars of a
 * step, the memory that is planned and taken, the hash, the average of the weights, and what is refused. */
#include <stddef.h>

void *test_malloc(size_t size);
#define DT_MALLOC(size) test_malloc(size)
#define DT_FREE(pointer) free(pointer)
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/prose.h"
#include "tap.h"

/* The references below say a * b + c where they mean two roundings. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

enum { MOST = 3000, OPTIMIZERS = 4 };
static const char *const names[] = { "AdamW", "Adam", "SGD", "Lion" };

static int64_t allocated; /* bytes */
void *test_malloc(size_t size)
{
    __atomic_fetch_add(&allocated, (int64_t)size, __ATOMIC_RELAXED);
    return malloc(size);
}

static uint64_t state = 88172645463325252u;
static uint64_t next64(void) /* xorshift (Marsaglia 2003) */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}
static float uniform(void) { return (float)(next64() >> 40) / 8388608.0f - 1.0f; }
/* Mostly ordinary numbers, with zeros of both signs, subnormals, and some that dwarf their block. */
static float wild(void)
{
    float x = uniform();
    switch (next64() >> 60) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return x * 1e-6f;
    case 3: return x * 1e-39f;
    case 4: return x * 1e3f;
    case 5: return x * 1e-22f;
    default: return x;
    }
}

/* ---- the references ---------------------------------------------------------------------------- */

typedef struct weights {
    float w[MOST], average[MOST], m[MOST], v[MOST];
} weights;

static float clipped(float g, const dt__update *u)
{
    g = g * u->clip;
    g = g < u->limit ? g : u->limit;
    return g > -u->limit ? g : -u->limit;
}

/* One weight; returns the step's direction and moves the moments on. */
static float ref_direction(int optimizer, float g, float w, float *m, float *v, int momentum, const dt__update *u)
{
    float c;
    if (optimizer == DT_ADAM || optimizer == DT_SGD) g = fmaf(u->decay, w, g);
    if (optimizer == DT_SGD) {
        if (!momentum) return g;
        *m = fmaf(u->momentum, *m, g);
        return u->nesterov ? fmaf(u->momentum, *m, g) : *m;
    }
    c = fmaf(u->beta1, *m, u->one_minus_beta1 * g);
    if (optimizer == DT_LION) {
        *m = fmaf(u->beta2, *m, u->one_minus_beta2 * g);
        return c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : 0.0f;
    }
    *m = c;
    *v = fmaf(u->beta2, *v, u->one_minus_beta2 * (g * g));
    return *m / fmaf(sqrtf(*v), u->root_scale, u->eps);
}

static void ref_update(int optimizer, weights *p, const float *grad, int64_t n, int momentum, int average, const dt__update *u)
{
    for (int64_t i = 0; i < n; i++) {
        float direction = ref_direction(optimizer, clipped(grad[i], u), p->w[i], &p->m[i], &p->v[i], momentum, u);
        p->w[i] = fmaf(-u->step, direction, p->w[i] * u->keep);
        if (average) p->average[i] = fmaf(u->average, p->average[i], u->one_minus_average * p->w[i]);
    }
}

/* ---- kernels against the references ---------------------------------------------------------------- */

static void state_of(int optimizer, weights *p, int momentum, int average, float *at[DT__STATE_COUNT])
{
    memset(at, 0, sizeof *at * DT__STATE_COUNT);
    if (optimizer != DT_SGD || momentum) at[DT__STATE_FIRST] = p->m;
    if (optimizer <= DT_ADAM) at[DT__STATE_SECOND] = p->v;
    if (average) at[DT__STATE_AVERAGE] = p->average;
}

/* Three steps of n weights. variant: bit 0 SGD's momentum, 1 nesterov, 2 limit, 3 average. */
static int same_steps(const dt__kernels *k, int optimizer, int64_t n, int variant)
{
    static weights got, want;
    static float grad[MOST];
    int momentum = variant & 1, average = variant >> 3 & 1, same = 1;
    float *at[DT__STATE_COUNT];
    dt__update u;
    memset(&got, 0, sizeof got);
    memset(&u, 0, sizeof u);
    u.beta1 = 0.9f, u.one_minus_beta1 = 0.1f, u.beta2 = 0.95f, u.one_minus_beta2 = 0.05f, u.eps = 1e-8f;
    u.clip = 0.37f, u.keep = 0.9999f, u.step = 0.003f, u.root_scale = 1.7f, u.decay = 0.02f;
    u.momentum = momentum ? 0.8f : 0.0f, u.nesterov = momentum && (variant & 2);
    u.limit = variant & 4 ? 0.2f : INFINITY;
    u.average = 0.99f, u.one_minus_average = 0.01f;
    for (int64_t i = 0; i < n; i++) got.w[i] = wild(), got.average[i] = uniform();
    want = got;
    state_of(optimizer, &got, momentum, average, at);
    for (int step = 0; step < 3 && same; step++) {
        for (int64_t i = 0; i < n; i++) grad[i] = step == 1 && i < 700 ? grad[i] * 1e-4f : wild(); /* a block that fades */
        k->update(optimizer, got.w, at, grad, n, &u);
        ref_update(optimizer, &want, grad, n, momentum, average, &u);
        same = !memcmp(&got, &want, sizeof got); /* nothing is written behind the last weight either */
    }
    return same;
}

static void test_kernels(void)
{
    static const char *const isas[] = { "portable", "avx2", "avx512", "neon" };
    static const int64_t sizes[] = { 1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 100, 255, 256, 257, 511, 512, 513, 1000, 1023, 1024, 1025, 2999 };
    unsigned saved = dt__fp_enter();
    for (int isa = 0; isa < DT__ISA_COUNT; isa++) {
        const dt__kernels *k = dt__isa_table(isa);
        if (!k || !dt__isa_runs(isa)) {
            tap_skip(OPTIMIZERS, "optimizers on %s: this processor does not have it", isas[isa]);
            continue;
        }
        for (int optimizer = 0; optimizer < OPTIMIZERS; optimizer++) {
            int64_t bad = 0;
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                for (int variant = 0; variant < 16; variant++)
                    if (!same_steps(k, optimizer, sizes[i], variant) && !bad++) tap_note("size %lld, variant %d", (long long)sizes[i], variant);
            tap_ok(!bad, "R13 %s, one pass, as the scalar text; %s", names[optimizer], k->name);
        }
    }
    dt__fp_leave(saved);
}

/* ---- three steps against PyTorch and NumPy -------------------------------------------------------------- */

static void test_golden(void)
{
    static const char *const cases[] = { "adamw", "adam", "sgd", "momentum", "nesterov", "lion" };
    static const int kinds[] = { DT_ADAMW, DT_ADAM, DT_SGD, DT_SGD, DT_SGD, DT_LION };
    enum { N = 7 * 90 };
    tap_golden *golden = tap_golden_open("optim.safetensors");
    const float *rate = tap_golden_f32(golden, "rate", 3);
    const dt__kernels *k;
    unsigned saved = dt__fp_enter();
    if (dt__choose_kernels(&k)) tap_bail("%s", dt_last_error());
    for (int c = 0; c < 6; c++) {
        static weights p;
        char name[40], what[80];
        float *at[DT__STATE_COUNT];
        dt_recipe r = dt_recipe_default();
        dt__powers powers = dt__powers_first(&r);
        memset(&p, 0, sizeof p);
        r.optimizer = kinds[c], r.beta1 = 0.9f, r.beta2 = kinds[c] == DT_LION ? 0.99f : 0.95f, r.weight_decay = 0.1f;
        r.momentum = c == 3 || c == 4 ? 0.9f : 0.0f, r.nesterov = c == 4;
        state_of(kinds[c], &p, r.momentum > 0.0f, 0, at);
        memcpy(p.w, tap_golden_f32(golden, "w", N), 4 * N);
        for (int step = 0; step < 3; step++) {
            dt__update u;
            powers.power1 *= (double)r.beta1, powers.power2 *= (double)r.beta2;
            u = dt__update_of(&powers, &r, rate[step], 1.0f, 1);
            snprintf(name, sizeof name, "g%d", step + 1);
            k->update(kinds[c], p.w, at, tap_golden_f32(golden, name, N), N, &u);
            snprintf(name, sizeof name, "%s.step%d", cases[c], step + 1);
            snprintf(what, sizeof what, "%s as %s", name, c < 5 ? "PyTorch" : "NumPy from the paper's formulas");
            tap_near(p.w, tap_golden_f32(golden, name, N), N, 1e-5, what);
        }
    }
    dt__fp_leave(saved);
    tap_golden_close(golden);
}

/* ---- the scalars of a step --------------------------------------------------------------------------------- */

static void test_scalars(void)
{
    const float lr = 1e-3f;
    int good = 1;
    for (int optimizer = 0; optimizer < OPTIMIZERS; optimizer++) {
        dt_recipe r = dt_recipe_default();
        dt__powers p = dt__powers_first(&r);
        int adam = optimizer <= DT_ADAM, coupled = optimizer == DT_ADAM || optimizer == DT_SGD;
        r.optimizer = optimizer, r.ema = 0.999f, r.momentum = 0.5f;
        for (int step = 1; step <= 1000; step++) {
            dt__update decays, plain;
            p.power1 *= (double)r.beta1, p.power2 *= (double)r.beta2;
            decays = dt__update_of(&p, &r, lr, 0.5f, 1), plain = dt__update_of(&p, &r, lr, 0.5f, 0);
            good = good && decays.step == (adam ? (float)((double)lr / (1.0 - p.power1)) : lr) && decays.clip == 0.5f;
            good = good && decays.root_scale == (float)(1.0 / sqrt(1.0 - p.power2)) && decays.limit == INFINITY;
            good = good && decays.keep == (coupled ? 1.0f : (float)(1.0 - (double)lr * (double)r.weight_decay));
            good = good && decays.decay == (coupled ? r.weight_decay : 0.0f) && plain.decay == 0.0f && plain.keep == 1.0f;
            good = good && decays.one_minus_average == (float)(1.0 - (double)r.ema) && plain.step == decays.step;
        }
    }
    tap_ok(good, "R13 scalars of a step: beta^t is a running product in double; decay where it belongs");
}

/* ---- the loss scale (R18) ------------------------------------------------------------------------------------ */

static void test_loss_scale(void)
{
    dt_recipe r = dt_recipe_default();
    dt__powers p = dt__powers_first(&r), before;
    dt__update u[2], plain[2];
    float rate = 0.0f;
    int skip = 1;
    tap_ok(p.scale == 1.0 && !dt__update_check(&p, &r, 1.0f, 0, &rate, &skip) && !skip, "R18 in fp32 the scale is 1, and a finite norm no reason to skip");
    tap_ok(dt__update_check(&p, &r, INFINITY, 4, &rate, &skip) == DT_E_NUMERIC && strstr(dt_last_error(), "step 5 is not finite"), "a norm that is not finite is an error there");
    dt__update_begin(&p, &r, 1.0f, 4.0f, plain);
    r.precision = DT_PRECISION_FP16, p = dt__powers_first(&r);
    tap_ok(p.scale == 65536.0 && p.good == 0 && p.skipped == 0, "in fp16 it begins at 65536");
    dt__update_begin(&p, &r, 1.0f, 4.0f, u);
    tap_ok(u[1].clip * 65536.0f == plain[1].clip && p.power1 == (double)r.beta1 && p.good == 1, "a step divides by it and counts");
    before = p;
    tap_ok(!dt__update_check(&p, &r, NAN, 31, &rate, &skip) && skip && p.scale == 32768.0 && p.good == 0 && p.skipped == 1, "a NaN skips the step and halves it");
    tap_ok(p.power1 == before.power1 && p.power2 == before.power2, "beta^t stays");
    for (int step = 0; step < 2000; step++) dt__update_begin(&p, &r, 1.0f, 1.0f, u);
    tap_ok(p.scale == 65536.0 && p.good == 0, "after 2,000 good steps it doubles");
    p.scale = 16777216.0, p.good = 1999;
    dt__update_begin(&p, &r, 1.0f, 1.0f, u);
    tap_ok(p.scale == 16777216.0 && p.good == 0, "up to 2^24");
    for (int halvings = 0; halvings < 24; halvings++) skip = skip && !dt__update_check(&p, &r, INFINITY, 0, &rate, &skip) && skip;
    tap_ok(skip && p.scale == 1.0 && dt__update_check(&p, &r, INFINITY, 0, &rate, &skip) == DT_E_NUMERIC, "and down to 1, where nothing is left to halve");
    r.loss_scale = 1024.0f, p = dt__powers_first(&r);
    tap_ok(p.scale == 1024.0 && !dt__update_check(&p, &r, INFINITY, 0, &rate, &skip) && skip && p.scale == 1024.0 && p.skipped == 1, "a fixed scale skips, and stays");
    for (int step = 0; step < 2000; step++) dt__update_begin(&p, &r, 1.0f, 1.0f, u);
    tap_ok(p.scale == 1024.0 && p.good == 0, "and does not grow");
}

/* The rows of the state that the recipe keeps. */
static void add_state(dt_plan *plan, const dt_recipe *r)
{
    for (int k = 0; k < DT__STATE_COUNT; k++)
        if (dt__state_kept(r, k)) dt__row_add(plan, DT__ROW_FIRST + k, 4 * plan->store.param_floats);
}

/* ---- tasks: an array is cut at 65536 weights, which changes nothing ------------------------------------------ */

static void test_threads(void)
{
    enum { N = 200001, FLOATS = 200704 };
    for (int optimizer = 0; optimizer < OPTIMIZERS; optimizer++) {
        float *kept[2][DT__STATE_COUNT];
        float *w[2], *grad = (float *)malloc(4 * N);
        int same = 1;
        dt_recipe r = dt_recipe_default();
        dt__verb job;
        dt__update u;
        r.optimizer = optimizer, r.ema = 0.9f, r.momentum = optimizer == DT_SGD ? 0.9f : 0.0f;
        for (int i = 0; i < N; i++) grad[i] = wild();
        for (int threads = 0; threads < 2; threads++) {
            dt__engine e;
            memset(&e, 0, sizeof e);
            e.p.recipe = &r;
            e.p.store.param_floats = FLOATS;
            w[threads] = (float *)calloc(FLOATS, 4);
            if (dt__pool_open(&e.pool, threads ? 3 : 1) || dt__choose_kernels(&e.k)) tap_bail("%s", dt_last_error());
            add_state(&e.p, &r);
            if (dt__choose_kernels(&e.k) || dt__rows_open(&e)) tap_bail("%s", dt_last_error());
            e.powers.power1 = (double)r.beta1, e.powers.power2 = (double)r.beta2;
            u = dt__update_of(&e.powers, &r, 0.01f, 1.0f, 1);
            job.k = e.k, job.kind = DT__VERB_UPDATE, job.optimizer = optimizer, job.to = w[threads], job.from = grad, job.n = N, job.u = &u;
            for (int i = 0; i < DT__STATE_COUNT; i++) job.state[i] = e.state[i];
            for (int step = 0; step < 2; step++) {
                if (threads) dt__verb_run(e.pool, &job);
                else e.k->update(optimizer, w[0], e.state, grad, N, &u);
            }
            for (int i = 0; i < DT__STATE_COUNT; i++) kept[threads][i] = e.state[i];
            dt__pool_close(&e.pool);
        }
        same = !memcmp(w[0], w[1], 4 * FLOATS);
        for (int i = 0; i < DT__STATE_COUNT; i++) {
            if (kept[0][i]) same = same && !memcmp(kept[0][i], kept[1][i], 4 * FLOATS);
            dt__free(kept[0][i]), dt__free(kept[1][i]);
        }
        tap_ok(same, "%s: tasks on three threads make the weights and the state of one pass", names[optimizer]);
        free(w[0]), free(w[1]), free(grad);
    }
}

/* ---- memory: the formula, the plan and what is taken ---------------------------------------------------------- */

static void test_memory(void)
{
    static const double bytes[] = { 8, 8, 0, 4 };
    enum { FLOATS = 64 * 1024 };
    for (int i = 0; i < 2 * OPTIMIZERS + 1; i++) {
        dt_recipe r = dt_recipe_default();
        double want;
        int64_t before = allocated, arrays = 0;
        dt__engine e;
        memset(&e, 0, sizeof e);
        r.optimizer = i == 2 * OPTIMIZERS ? (int)DT_SGD : i % OPTIMIZERS;
        r.momentum = i == 2 * OPTIMIZERS ? 0.9f : 0.0f;
        r.ema = i / OPTIMIZERS == 1 ? 0.9f : 0.0f;
        want = bytes[r.optimizer] + (r.momentum > 0 ? 4 : 0) + (r.ema > 0 ? 4 : 0);
        e.p.recipe = &r, e.p.store.param_floats = FLOATS;
        add_state(&e.p, &r);
        if (dt__choose_kernels(&e.k) || dt__rows_open(&e)) tap_bail("%s", dt_last_error());
        for (int k = 0; k < DT__STATE_COUNT; k++) arrays += e.state[k] != NULL, dt__free(e.state[k]);
        tap_ok(dt__optimizer_bytes(&r) == want && (double)(allocated - before - 72 * arrays) == want * FLOATS,
               "%s%s%s keeps %g bytes per weight", names[r.optimizer], r.momentum > 0 ? " with momentum" : "", r.ema > 0 ? " and an average" : "", want);
    }
}

/* ---- a trainer ----------------------------------------------------------------------------------------------------- */

static char text_file[64];

static dt_recipe small_recipe(int optimizer)
{
    dt_recipe r = dt_recipe_default();
    r.model.layers = 1, r.model.heads = 2, r.model.width = 24;
    r.data = text_file, r.steps = 6, r.batch = 8, r.sequence = 16, r.data_shards = 4, r.warmup = 0;
    r.optimizer = optimizer;
    return r;
}
static dt_trainer *open_trainer(const dt_recipe *r)
{
    dt_layout l = dt_layout_default();
    dt_trainer *t = NULL;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 20;
    if (dt_trainer_open(&t, r, &l)) remove(text_file), tap_bail("%s", dt_last_error());
    return t;
}

/* R17: weights, then the arrays one after the other, without the padding of parameters. */
static void ref_hash(const dt_trainer *t, char hex[65])
{
    dt__sha256 h;
    dt__sha256_begin(&h);
    for (int a = -1; a < DT__STATE_COUNT; a++)
        for (int32_t i = 0; i < t->e.p.net.param_count; i++) {
            const dt__net_param *p = &t->e.p.net.params[i];
            const float *base = a < 0 ? t->e.params : t->e.state[a];
            if (base) dt__sha256_add(&h, base + p->offset, 4 * p->count);
        }
    dt__sha256_end(&h, hex);
}

static void test_trainers(void)
{
    for (int optimizer = 0; optimizer < OPTIMIZERS; optimizer++) {
        dt_recipe r = small_recipe(optimizer);
        dt_step_info info = dt_step_info_zero();
        dt_memory memory;
        char want[65];
        dt_trainer *t;
        float first;
        r.ema = optimizer % 2 ? 0.5f : 0.0f;
        r.steps = 30;
        r.learning_rate = optimizer == DT_SGD ? 0.3f : optimizer == DT_LION ? 1e-3f : 5e-3f;
        t = open_trainer(&r);
        tap_ok(!dt_trainer_step(t, &info), "%s: a step", names[optimizer]);
        first = info.loss;
        ref_hash(t, want);
        tap_ok(!strcmp(want, dt_trainer_hash(t)), "R17 %s: the hash is of weights and state, unpadded", names[optimizer]);
        memory = dt_trainer_memory(t);
        tap_ok((double)memory.optimizer == dt__optimizer_bytes(&r) * (double)t->e.p.store.param_floats,
               "%s: the plan has %g bytes of state per weight", names[optimizer], dt__optimizer_bytes(&r));
        if (dt_trainer_run(t, &info)) tap_bail("%s", dt_last_error());
        tap_ok(info.loss < first - 0.5f, "%s: the loss falls (%.3f to %.3f)", names[optimizer], (double)first, (double)info.loss);
        dt_trainer_close(&t);
    }
}

static const float *average_of(const dt_trainer *t, const char *name, int64_t *count)
{
    dt_trainer *use = (dt_trainer *)(uintptr_t)t;
    float *before = t->e.params;
    const float *average;
    use->e.params = t->e.state[DT__STATE_AVERAGE];
    average = dt_trainer_parameter(t, name, count);
    use->e.params = before;
    return average;
}

static void test_average(void)
{
    static const char name[] = "transformer.h.0.mlp.c_fc.weight";
    dt_recipe r = small_recipe(DT_ADAMW);
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t;
    int64_t n = 0, same_n = 0;
    float want[24 * 96], own = 0, averaged = 0, again = 0;
    char text[3][21];
    int good;
    r.ema = 0.75f, r.learning_rate = 0.01f, r.evaluate_ema = 1;
    t = open_trainer(&r);
    memcpy(want, dt_trainer_parameter(t, name, &n), sizeof want);
    good = n == 24 * 96 && average_of(t, name, &same_n) && same_n == n && !memcmp(want, average_of(t, name, NULL), sizeof want);
    tap_ok(good, "the average starts as the weights");
    for (int step = 0; step < 6; step++) {
        const float *w;
        if (dt_trainer_step(t, &info)) tap_bail("%s", dt_last_error());
        w = dt_trainer_parameter(t, name, NULL);
        for (int64_t i = 0; i < n; i++) want[i] = fmaf(0.75f, want[i], 0.25f * w[i]);
    }
    tap_same_bits(average_of(t, name, NULL), want, n, "six steps of the average");
    good = !dt_trainer_evaluate(t, 0, &averaged) && !dt_trainer_sample(t, "The ", 20, NULL, text[0]);
    t->recipe.evaluate_ema = 0;
    good = good && !dt_trainer_evaluate(t, 0, &own) && !dt_trainer_sample(t, "The ", 20, NULL, text[1]);
    memcpy(t->e.params, t->e.state[DT__STATE_AVERAGE], 4 * (size_t)t->e.p.store.param_floats);
    good = good && !dt_trainer_evaluate(t, 0, &again) && !dt_trainer_sample(t, "The ", 20, NULL, text[2]);
    tap_ok(good && averaged == again && averaged != own, "validation of the average is that of a model with these weights");
    tap_ok(!memcmp(text[0], text[2], 21) && memcmp(text[0], text[1], 21), "and so is a sample");
    dt_trainer_close(&t);
    r.ema = 0, r.evaluate_ema = 0;
    t = open_trainer(&r);
    tap_ok(!t->e.state[DT__STATE_AVERAGE], "without ema there is no average");
    dt_trainer_close(&t);
}

/* ---- what is refused --------------------------------------------------------------------------------------------------- */

static void refuse(const dt_recipe *r, const char *sentence)
{
    dt_layout l = dt_layout_default();
    dt_trainer *t = NULL;
    dt_result e;
    l.output.quiet = 1;
    e = dt_trainer_open(&t, r, &l);
    tap_ok(e == DT_E_USAGE && !t && strstr(dt_last_error(), sentence), "refused: %s", dt_last_error());
    dt_trainer_close(&t);
}

static void test_refused(void)
{
    dt_recipe good = small_recipe(DT_ADAMW), r = good;
    r.optimizer = 7, refuse(&r, "--optimizer 7: choose one of adamw,adam");
    r.optimizer = -1, refuse(&r, "--optimizer -1: choose one of");
    r = good, r.momentum = 0.9f, refuse(&r, "--momentum and --nesterov belong to --optimizer sgd");
    r = good, r.nesterov = 1, refuse(&r, "belong to --optimizer sgd");
    r.optimizer = DT_SGD, refuse(&r, "--nesterov looks ahead by the momentum: set --momentum");
    r.momentum = 1.0f, refuse(&r, "--momentum 1");
    r = good, r.ema = 1.0f, refuse(&r, "--ema 1: choose a number in [0,1)");
    r.ema = __builtin_nanf(""), refuse(&r, "--ema nan");
    r = good, r.clip_value = -1.0f, refuse(&r, "--clip-value -1: choose a number not below 0");
    r = good, r.evaluate_ema = 1, refuse(&r, "--evaluate-ema: there is no average of the weights: set --ema");
}

int main(void)
{
    test_kernels();
    test_golden();
    test_scalars();
    test_loss_scale();
    test_threads();
    test_memory();
    snprintf(text_file, sizeof text_file, "test_optim.%d.txt", (int)getpid());
    if (prose_generate(text_file, 20000, 1)) tap_bail("%s", dt_last_error());
    test_trainers();
    test_average();
    test_refused();
    remove(text_file);
    return tap_done();
}
