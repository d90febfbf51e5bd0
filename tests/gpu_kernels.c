/* Kernels on a GPU, for `./build.sh gpu-check`: gpu_kernels name | check | speed [small] | profile OPTIONS | curve FOLDER OPTIONS,
 * with the options of a trainer. `name` prints the GPU's, `check` compares products and attention of odd and of large shapes with the CPU's bits;
 * `speed` times products, attention and passes over memory; `profile` prints where the time of a step goes, by kind of op;
 * `curve` writes a run's first weights, its tokens and losses into a folder, from which gpu_torch.py makes the same run.
 * Lines of results are "row TAB name TAB ok|fail|value TAB unit"; others are for people. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "bench.h"

#ifndef DT_CUDA
int main(void) { return fprintf(stderr, "gpu_kernels: compile with -DDT_CUDA\n"), 1; }
#else
static const dt__kernels *cpu, *gpu; /* the second with a device; its table `run` has kernels of device memory */
static dt_pool *pool;
static int failed, small; /* small: what an emulated GPU does in seconds */

static const dt__kernels *on_device(void) { return &((dt__cuda *)(void *)gpu->device)->run; }
static float *device(int64_t n) { return (float *)gpu->device->attach(gpu->device, DT__DEVICE, NULL, 4 * n); }
static void put(float *to, const float *from, int64_t n)
{
    dt__gpu_copy((dt__cuda *)(void *)gpu->device, DT__GPU_OPS, to, from, n);
}
static void drop(float *mem) { gpu->device->detach(gpu->device, mem); }
static float *random_floats(int64_t n, uint32_t seed)
{
    float *x = (float *)dt__alloc(4 * n, "numbers");
    uint32_t s = seed * 2654435761u + 1;
    for (int64_t i = 0; x && i < n; i++) s = s * 1664525u + 1013904223u, x[i] = (float)(int32_t)s / 2147483648.0f;
    return x;
}
static void row(const char *name, int good)
{
    printf("row\t%s\t%s\n", name, good ? "ok" : "fail");
    failed |= !good;
    fflush(stdout);
}
static void value(const char *name, double x, const char *unit)
{
    printf("row\t%s\t%.2f\t%s\n", name, x, unit);
    fflush(stdout);
}

/* ---- bits ---- */

static void check_product(int64_t m, int64_t n, int64_t k, int ta, int tb, int accumulate, int round)
{
    float *a = random_floats(m * k, 1), *b = random_floats(k * n, 2), *want = random_floats(m * n, 3), *bias = random_floats(n, 4);
    float *got = random_floats(m * n, 3), *da = device(m * k), *db = device(k * n), *dc = device(m * n), *dbias = device(n);
    char name[128];
    int64_t differ = 0;
    dt__gemm g = DT__ZERO, d;
    put(da, a, m * k), put(db, b, k * n), put(dc, want, m * n), put(dbias, bias, n);
    g.m = m, g.n = n, g.k = k, g.a = a, g.b = b, g.c = want, g.ldc = n, g.bias = accumulate ? NULL : bias;
    g.ars = ta ? 1 : k, g.acs = ta ? m : 1, g.brs = tb ? 1 : n, g.bcs = tb ? k : 1;
    g.accumulate = accumulate, g.round = round;
    d = g, d.a = da, d.b = db, d.c = dc, d.bias = accumulate ? NULL : dbias;
    cpu->gemm(pool, &g);
    on_device()->gemm(pool, &d);
    put(got, dc, m * n);
    for (int64_t i = 0; i < m * n; i++) differ += memcmp(&got[i], &want[i], 4) != 0;
    DT__PRINT(name, "product %jd x %jd x %jd%s%s%s%s", m, n, k, ta ? ", A'" : "", tb ? ", B'" : "", accumulate ? ", accumulated" : "", round ? ", B rounded" : "");
    row(name, !differ && !gpu->device->failed);
    if (differ) printf("  %jd of %jd differ\n", differ, m * n);
    drop(da), drop(db), drop(dc), drop(dbias);
    dt__free(a), dt__free(b), dt__free(want), dt__free(bias), dt__free(got);
}

/* q, k, v are columns of one row, as in models. */
static void check_attention(int64_t b, int64_t t, int64_t h, int64_t hk, int64_t d, int causal, int dropout)
{
    const int64_t ld = (h + 2 * hk) * d, rows = b * t;
    const int64_t size[] = {rows * ld, rows * h * d, b * h * t, b * h * t, rows * h * d, rows * ld};
    float *host[6], *on[6], *got;
    const int64_t rng_words = b * (int64_t)sizeof(dt__rng) / 4;
    dt__rng *rng = (dt__rng *)dt__alloc(4 * rng_words, "streams"), *rng_there = (dt__rng *)(void *)device(rng_words);
    dt__attention a = DT__ZERO, c;
    int64_t differ[6] = {0};
    char name[128];
    for (int i = 0; i < 6; i++) host[i] = random_floats(size[i], (uint32_t)i + 5), on[i] = device(size[i]), put(on[i], host[i], size[i]);
    for (int64_t i = 0; i < b; i++) rng[i].key[0] = (uint32_t)i + 3, rng[i].key[1] = 17;
    put((float *)(void *)rng_there, (const float *)(const void *)rng, rng_words);
    a.b = b, a.t = a.s = a.room = t, a.h = h, a.hk = hk, a.d = d, a.ld = a.ldk = a.lddq = a.lddk = ld, a.ldo = a.lddo = h * d;
    a.scale = 0.125f, a.causal = causal;
    if (dropout) a.drop_threshold = 1u << 29, a.drop_scale = 8.0f / 7.0f;
    for (int back = 0; back < 2; back++) for (int side = 0; side < 2; side++) {
        float **x = side ? on : host;
        c = a, c.rng = side ? rng_there : rng, c.q = x[0], c.k = x[0] + h * d, c.v = x[0] + (h + hk) * d, c.o = x[1], c.row_max = x[2], c.row_sum = x[3];
        if (back) c.dout = x[4], c.dq = x[5], c.dk = x[5] + h * d, c.dv = x[5] + (h + hk) * d;
        (side ? on_device() : cpu)->attention(pool, &c);
    }
    for (int i = 1; i < 6; i++) {
        got = random_floats(size[i], 9);
        put(got, on[i], size[i]);
        for (int64_t j = 0; j < size[i]; j++) differ[i] += memcmp(&got[j], &host[i][j], 4) != 0;
        dt__free(got);
    }
    DT__PRINT(name, "attention B%jd T%jd H%jd/%jd D%jd%s%s", b, t, h, hk, d, causal ? ", causal" : "", dropout ? ", dropout" : "");
    row(name, !(differ[1] | differ[2] | differ[3] | differ[5]) && !gpu->device->failed);
    if (differ[1] | differ[2] | differ[3] | differ[5])
        printf("  differ: %jd of o, %jd of max, %jd of sum, %jd of gradients\n", differ[1], differ[2], differ[3], differ[5]);
    for (int i = 0; i < 6; i++) dt__free(host[i]), drop(on[i]);
    dt__free(rng), drop((float *)(void *)rng_there);
}

static void check(void)
{
    static const int64_t side[][3] = {{1, 1, 1}, {37, 41, 53}, {64, 64, 64}, {65, 129, 200}, {1000, 777, 333}, {2048, 1600, 256}, {1, 3000, 70}, {3000, 1, 70}};
    for (size_t i = 0; i < (small ? 4 : sizeof side / sizeof *side); i++)
        for (int way = 0; way < 4; way++) check_product(side[i][0], side[i][1], side[i][2], way & 1, way >> 1, way == 2 || i == 2, i == 3 ? DT_BF16 : 0);
    check_attention(1, 1, 1, 1, 8, 1, 0);
    check_attention(2, 39, 2, 2, 13, 1, 0);
    check_attention(2, small ? 70 : 200, 4, 2, 64, 1, 0);
    check_attention(1, 129, 2, 1, 96, 0, 1);
    if (small) return;
    check_attention(1, 300, 2, 2, 128, 1, 1);
    check_attention(2, 1024, 3, 3, 64, 1, 1);
    check_attention(1, 70, 2, 2, 256, 1, 0);
}

/* ---- speed ---- */

static double start_of(void)
{
    dt__gpu_wait((dt__cuda *)(void *)gpu->device);
    return dt__now();
}
/* The median seconds of one of `reps` calls, in 5 rounds. */
#define SECONDS(result, reps, call) do { \
    double round_[6], from_; \
    for (int r_ = 0; r_ < 6; r_++) { \
        from_ = start_of(); \
        for (int i_ = 0; i_ < (reps); i_++) call; \
        round_[r_] = (start_of() - from_) / (reps); \
    } \
    (result) = median(round_ + 1, 5); \
} while (0)

static void speed_product(const char *what, int64_t m, int64_t n, int64_t k, int ta, int tb)
{
    float *a = device(m * k), *b = device(k * n), *c = device(m * n), *x = random_floats(dt__max(m, n) * k, 1);
    double seconds, flop = 2.0 * (double)m * (double)n * (double)k;
    char name[128];
    dt__gemm g = DT__ZERO;
    put(a, x, m * k), put(b, x, k * n);
    g.m = m, g.n = n, g.k = k, g.a = a, g.b = b, g.c = c, g.ldc = n;
    g.ars = ta ? 1 : k, g.acs = ta ? m : 1, g.brs = tb ? 1 : n, g.bcs = tb ? k : 1;
    SECONDS(seconds, small ? 1 : (int)dt__max(1, (int64_t)(4e11 / flop)), on_device()->gemm(pool, &g));
    DT__PRINT(name, "exact product %s %jd x %jd x %jd", what, m, n, k);
    value(name, flop / seconds * 1e-12, "TFLOP/s");
    drop(a), drop(b), drop(c), dt__free(x);
}
static void speed_attention(int64_t b, int64_t t, int64_t h, int64_t d)
{
    const int64_t ld = 3 * h * d, rows = b * t;
    float *x = random_floats(rows * ld, 1), *q = device(rows * ld), *o = device(rows * h * d), *stat = device(2 * b * h * t), *grad = device(rows * ld);
    double seconds[2], flop = 2.0 * (double)(b * h * t * t * d); /* causal: half of the two products */
    char name[128];
    dt__attention a = DT__ZERO;
    put(q, x, rows * ld), put(o, x, rows * h * d);
    a.b = b, a.t = a.s = a.room = t, a.h = a.hk = h, a.d = d, a.ld = a.ldk = a.lddq = a.lddk = ld, a.ldo = a.lddo = h * d;
    a.scale = 0.125f, a.causal = 1, a.q = q, a.k = q + h * d, a.v = q + 2 * h * d, a.o = o, a.row_max = stat, a.row_sum = stat + b * h * t;
    SECONDS(seconds[0], 4, on_device()->attention(pool, &a));
    a.dout = o, a.dq = grad, a.dk = grad + h * d, a.dv = grad + 2 * h * d;
    SECONDS(seconds[1], 2, on_device()->attention(pool, &a));
    for (int back = 0; back < 2; back++) {
        DT__PRINT(name, "exact attention %s B%jd H%jd D%jd T%jd", back ? "backward" : "forward", b, h, d, t);
        value(name, flop * (back ? 2.5 : 1.0) / seconds[back] * 1e-12, "TFLOP/s");
    }
    drop(q), drop(o), drop(stat), drop(grad), dt__free(x);
}
static void speed(void)
{
    const int64_t n = small ? 1 << 16 : 1 << 28;
    float *a = device(n), *b = device(n), *c = device(n), *d = device(n);
    double copy, seconds;
    dt__verb v = DT__ZERO;
    dt__update u = DT__ZERO;
    SECONDS(copy, 5, dt__gpu_copy((dt__cuda *)(void *)gpu->device, DT__GPU_OPS, a, b, n));
    value("copy on the device", 8.0 * (double)n / copy * 1e-9, "GB/s");
    v.k = gpu, v.n = n, v.to = a, v.from = b, v.kind = DT__VERB_ADD;
    SECONDS(seconds, 5, gpu->device->verb(gpu->device, pool, &v));
    value("sum of two arrays", 12.0 * (double)n / seconds * 1e-9, "GB/s");
    u.beta1 = 0.9f, u.one_minus_beta1 = 0.1f, u.beta2 = 0.95f, u.one_minus_beta2 = 0.05f, u.eps = 1e-8f, u.clip = 1.0f;
    u.limit = __builtin_inff(), u.keep = 1.0f, u.step = 0.001f, u.root_scale = 1.0f;
    v.kind = DT__VERB_UPDATE, v.u = &u, v.optimizer = DT_ADAMW, v.state[0] = c, v.state[1] = d;
    SECONDS(seconds, 5, gpu->device->verb(gpu->device, pool, &v));
    value("AdamW", 28.0 * (double)n / seconds * 1e-9, "GB/s");
    drop(a), drop(b), drop(c), drop(d);
    if (small) {
        speed_product("small", 64, 96, 64, 0, 0);
        speed_attention(1, 64, 1, 64);
        return;
    }
    speed_product("QKV", 8192, 2304, 768, 0, 0);
    speed_product("QKV dX", 8192, 768, 2304, 0, 1);
    speed_product("QKV dW", 768, 2304, 8192, 1, 0);
    speed_product("MLP", 8192, 3072, 768, 0, 0);
    speed_product("MLP down", 8192, 768, 3072, 0, 0);
    speed_product("logits", 8192, 50257, 768, 0, 1);
    speed_product("small", 256, 768, 768, 0, 0);
    speed_attention(8, 1024, 12, 64);
    speed_attention(2, 2048, 16, 128);
}

/* ---- where a step's time goes ---- */

static double by_op[DT__OP_COUNT + 1];
static void (*run_op)(const dt__call *c);
static void timed_op(const dt__call *c)
{
    dt__cuda *d = (dt__cuda *)(void *)gpu->device;
    double start = dt__now();
    run_op(c);
    dt__gpu_wait(d);
    by_op[c->n->op] += dt__now() - start;
}

static dt_result open_trainer(dt_trainer **t, int argc, char **argv)
{
    static dt_recipe recipe;
    static dt_layout layout;
    dt_result r = dt_launch(&argc, &argv);
    recipe = dt_recipe_default(), layout = dt_layout_default();
    if (!r) r = dt_args(&argc, &argv, &recipe, &layout);
    return r ? r : dt_trainer_open(t, &recipe, &layout);
}
static int profile(int argc, char **argv)
{
    double all = 0.0, plain = 0.0;
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r = open_trainer(&t, argc, argv);
    for (int s = 0; s < 6 && !r; s++) {
        if (s == 5 && (gpu = t->e.k)->device) {
            dt__gpu_wait((dt__cuda *)(void *)gpu->device);
            run_op = gpu->device->run, gpu->device->run = timed_op;
        }
        r = dt_trainer_step(t, &info);
        if (!r) printf("step %d: loss %.6f, %.3f s, %.0f tokens/s, %.3f TFLOP/s\n", s + 1, (double)info.loss, info.seconds, (double)info.tokens / info.seconds, info.gflops * 1e-3);
        if (s == 4) plain = info.seconds;
        fflush(stdout);
    }
    if (r) return fprintf(stderr, "gpu_kernels: %s\n", dt_last_error()), 1;
    value("step", 1e3 * plain, "ms");
    value("model rate", info.gflops * 1e-3 * info.seconds / plain, "TFLOP/s");
    value("tokens per second", (double)info.tokens / plain, "1/s");
    for (int i = 0; i <= DT__OP_COUNT; i++) all += by_op[i];
    printf("  step with a wait after each op: %.1f ms, of which ops %.1f ms\n", 1e3 * info.seconds, 1e3 * all);
    for (int n = 0; n < 24; n++) {
        int most = 0;
        for (int i = 1; i <= DT__OP_COUNT; i++) most = by_op[i] > by_op[most] ? i : most;
        if (by_op[most] <= 0.0) break;
        printf("  %-24s %9.3f ms  %5.1f %%\n", most == DT__OP_COUNT ? "groups" : dt__op_of(most)->name, 1e3 * by_op[most], 100.0 * by_op[most] / all);
        by_op[most] = 0.0;
    }
    for (int i = 0; i <= DT__OP_COUNT; i++)
        if (gpu->device && gpu->device->on_host[i]) printf("  on the host: %jd of %s\n", gpu->device->on_host[i], i == DT__OP_COUNT ? "groups" : dt__op_of(i)->name);
    dt_trainer_close(&t);
    return 0;
}

/* FOLDER gets NAME.bin of each parameter, tokens.bin, int32 (steps, inputs then targets), and run.txt: the options of AdamW,
 * then a step's learning rate and loss a line. */
static int curve(const char *folder, int argc, char **argv)
{
    char path[PATH_MAX];
    const char *name;
    int64_t count;
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r = open_trainer(&t, argc, argv);
    FILE *run, *tokens, *file;
    for (int64_t i = 0; !r && (name = dt_trainer_parameter_at(t, i, NULL)); i++) {
        const float *x = dt_trainer_parameter(t, name, &count);
        DT__PRINT(path, "%s/%s.bin", folder, name);
        file = fopen(path, "wb");
        if (!x || !file || fwrite(x, 4, (size_t)count, file) != (size_t)count || fclose(file)) return perror(path), 1;
    }
    DT__PRINT(path, "%s/run.txt", folder);
    run = fopen(path, "w");
    DT__PRINT(path, "%s/tokens.bin", folder);
    tokens = fopen(path, "wb");
    if (!run || !tokens) return perror(path), 1;
    if (!r) fprintf(run, "%g %g %g %g\n", (double)t->recipe.beta1, (double)t->recipe.beta2, (double)t->recipe.epsilon, (double)t->recipe.clip);
    for (int64_t s = 0; !r && s < t->recipe.steps; s++) {
        size_t n;
        if ((r = dt_trainer_step(t, &info))) break;
        n = (size_t)(t->recipe.batch * t->recipe.sequence);
        fprintf(run, "%.9g %.9g\n", (double)info.learning_rate, (double)info.loss);
        if (fwrite(t->loader.input, 4, n, tokens) != n || fwrite(t->loader.target, 4, n, tokens) != n) return perror(path), 1;
    }
    if (fclose(run) || fclose(tokens)) return perror(folder), 1;
    if (r) return fprintf(stderr, "gpu_kernels: %s\n", dt_last_error()), 1;
    value("last loss of the curve", (double)info.loss, "nats");
    dt_trainer_close(&t);
    return 0;
}

int main(int argc, char **argv)
{
    double start = dt__now();
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "profile")) return profile(argc - 1, argv + 1);
    if (!strcmp(what, "curve") && argc > 2) return curve(argv[2], argc - 2, argv + 2);
    small = argc > 2 && !strcmp(argv[2], "small");
    if (dt__choose_kernels(&cpu)) return fprintf(stderr, "gpu_kernels: %s\n", dt_last_error()), 1;
    gpu = cpu;
    if (dt__gpu_open(&gpu, 0, 0)) return fprintf(stderr, "gpu_kernels: %s\n", dt_last_error()), 1;
    if (strcmp(what, "name")) value("opening, with the compiler or its cache", dt__now() - start, "s");
    dt__pool_open(&pool, 16);
    dt__pool_reserve(pool, dt__max(cpu->gemm_scratch(), cpu->attention_scratch(4096, 256)));
    dt__fp_enter();
    if (!strcmp(what, "name")) printf("%s\n", gpu->device->name);
    else if (!strcmp(what, "check")) check();
    else if (!strcmp(what, "speed")) speed();
    else return fprintf(stderr, "usage: gpu_kernels name | check | speed [small] | profile OPTIONS | curve FOLDER OPTIONS\n"), 2;
    if (gpu->device->failed) printf("%s\n", gpu->device->why);
    failed |= gpu->device->failed != DT_OK;
    dt__pool_close(&pool);
    gpu->device->close(gpu->device);
    return failed;
}
#endif
