/* Attention of fast numerics on a GPU, or on what stands in for one (cuda_stand_in.cpp): forward, statistics and
 * gradients against doubles, for odd sizes, masks, dropout, grouped heads and slices; the same bits from 16-bit inputs.
 *
 *     cc -O1 -DDT_CUDA -I. tests/gpu_attention.c -o gpu_attention -lm -lpthread -ldl
 *     gpu_attention              the cases below
 *     gpu_attention speed        times forward and backward, for a real GPU
 *     gpu_attention SEED N       N cases of each type that are drawn from SEED */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tap.h"

static const dt__kernels *k;
static dt__rng draw = {{0, 0}, {0, 0, 0}};
static uint64_t drawn;
static double uniform(void) { return dt__uniform(&draw, drawn++); }

/* Memory of the device, and the host's beside it. */
typedef struct both {
    float *host, *mem;
} both;
static both all[24];
static int used;
static float *device(int64_t n, float size, int format)
{
    both *m = &all[used++];
    uint16_t *narrow = (uint16_t *)dt__alloc(2 * n, "a tensor in 16 bits");
    m->host = (float *)dt__alloc(4 * n, "a tensor");
    for (int64_t i = 0; i < n; i++) m->host[i] = size * (float)(2.0 * uniform() - 1.0);
    if (format) k->convert(format, narrow, DT_F32, m->host, n), k->convert(DT_F32, m->host, format, narrow, n);
    dt__free(narrow);
    m->mem = (float *)k->device->attach(k->device, DT__DEVICE, m->host, 4 * n);
    if (!m->mem) printf("Bail out! %s\n", dt_last_error()), exit(1);
    k->device->upload(k->device, m->host, n);
    return m->mem;
}
static float *host(const void *mem)
{
    for (int i = 0; i < used; i++)
        if (all[i].mem == mem) return all[i].host;
    return NULL;
}
static void release(void)
{
    while (used--) k->device->detach(k->device, all[used].mem), dt__free(all[used].host);
    used = 0;
}

static void compute(const dt__attention *a) { ((const dt__cuda *)(const void *)k->device)->run.attention(NULL, a); }

typedef struct shape {
    int64_t b, t, s, h, hk, d;
    int causal, mask; /* mask: 0, 1 for all samples, 2 for each */
    double drop;
    int64_t whole; /* of a slice: where t_at, s_at are a third of it */
} shape;

/* The job of a shape; q, k and v are columns of one row if they can be. */
static dt__attention job_of(const shape *c, int format)
{
    dt__attention a = DT__ZERO;
    int fused = c->t == c->s;
    int64_t own = c->h * c->d, keys = c->hk * c->d, row = own + 2 * keys, gap = c->whole ? 5 : 0;
    int64_t queries = c->b * (c->t + gap), room = c->s + (fused ? 0 : 3);
    a.b = c->b, a.t = c->t, a.s = c->s, a.h = c->h, a.hk = c->hk, a.d = c->d, a.gap = gap, a.room = room;
    a.causal = c->causal, a.scale = 1.0f / sqrtf((float)c->d), a.first_head = 3, a.round = format, a.dot = format == DT_F16 ? DT__DOT_FP16 : DT__DOT_BF16;
    if (fused) a.room = room = c->t + gap;
    if (fused) a.q = device(queries * row, 1.7f, format), a.k = a.q + own, a.v = a.k + keys, a.ld = a.ldk = row;
    else {
        a.q = device(queries * own, 1.7f, format), a.k = device(c->b * room * 2 * keys, 1.7f, format), a.v = a.k + keys;
        a.ld = own, a.ldk = 2 * keys;
    }
    a.o = device(queries * own, 0.0f, 0), a.dq = device(queries * own, 0.0f, 0), a.lddq = a.ldo = a.lddo = own;
    a.dk = device(c->b * room * keys, 0.0f, 0), a.dv = device(c->b * room * keys, 0.0f, 0), a.lddk = keys;
    a.row_max = device(queries * c->h, 0.0f, 0), a.row_sum = device(queries * c->h, 0.0f, 0);
    a.dout = device(queries * own, 1.0f, format);
    if (c->mask) {
        dt__word *word;
        a.mask = (const dt__word *)(void *)device(c->t * c->s * (c->mask > 1 ? c->b : 1), 1.0f, 0);
        a.mask_bits = 0x7fffffffu, a.mask_step = c->mask > 1 ? c->t * c->s : 0;
        word = (dt__word *)(void *)host(a.mask);
        for (int64_t i = 0; i < c->t * c->s * (c->mask > 1 ? c->b : 1); i++) if (uniform() < 0.3) word[i] = 0x80000000u;
        k->device->upload(k->device, word, c->t * c->s * (c->mask > 1 ? c->b : 1));
    }
    if (c->drop > 0.0) {
        dt__rng *rng = (dt__rng *)(void *)host(a.rng = (const dt__rng *)(void *)device(c->b * (int64_t)sizeof *rng / 4, 0.0f, 0));
        for (int64_t i = 0; i < c->b; i++) rng[i].key[0] = (uint32_t)i * 77, rng[i].key[1] = 5, rng[i].counter[0] = 9;
        k->device->upload(k->device, rng, c->b * (int64_t)sizeof *rng / 4);
        a.site = 6, a.drop_threshold = (uint32_t)(c->drop * 4294967296.0);
        a.drop_scale = (float)(1.0 / (1.0 - c->drop));
    }
    if (c->whole) a.whole = c->whole, a.t_at = a.s_at = c->whole / 3;
    return a;
}

/* Memory with n numbers in 16 bits. */
static const float *narrow(const float *x, int64_t n, int format)
{
    dt__recast r = DT__ZERO;
    r.x = x, r.out = dt__gpu_halves(device((n + 1) / 2, 0.0f, 0), format), r.rows = 1, r.cols = r.ld = r.out_ld = n;
    dt__gpu_recast((dt__cuda *)(void *)k->device, &r);
    return r.out;
}
/* The same job with inputs in 16 bits. */
static dt__attention narrowed(dt__attention a, int format)
{
    int64_t own = a.h * a.d, queries = a.b * (a.t + a.gap), fused = a.k == a.q + own;
    const float *q = narrow(a.q, queries * a.ld, format);
    a.k = fused ? q + own : narrow(a.k, a.b * a.room * a.ldk, format);
    a.q = q, a.v = a.k + a.hk * a.d, a.dout = narrow(a.dout, queries * a.lddo, format);
    return a;
}

typedef struct result {
    double *o, *top, *sum, *dq, *dk, *dv;
} result;
/* The same in doubles, from what the device was given. */
static result by_doubles(const dt__attention *a)
{
    int64_t queries = a->b * (a->t + a->gap), own = a->h * a->d, keys = a->hk * a->d, group = a->h / a->hk;
    int64_t t = a->whole ? a->whole : a->t, s = a->whole ? a->whole : a->s;
    const float *q = host(a->q), *kk = a->k == a->q + own ? q + own : host(a->k), *v = kk + keys, *dout = host(a->dout);
    const dt__rng *rng = (const dt__rng *)(void *)host(a->rng);
    const dt__word *mask = (const dt__word *)(void *)host(a->mask);
    double *p = DT__NEW(double, 3 * a->s, "p"), *g = p + a->s, *drop = g + a->s;
    result r;
    r.o = DT__NEW(double, queries * own, "o"), r.dq = DT__NEW(double, queries * own, "dq");
    r.dk = DT__NEW(double, a->b * a->room * keys, "dk"), r.dv = DT__NEW(double, a->b * a->room * keys, "dv");
    r.top = DT__NEW(double, queries * a->h, "top"), r.sum = DT__NEW(double, queries * a->h, "sum");
    for (int64_t x = 0; x < a->b * a->h * a->t; x++) {
        int64_t b = x / a->t / a->h, head = x / a->t % a->h, i = x % a->t, row = b * (a->t + a->gap) + i;
        int64_t stat = (b * a->h + head) * (a->t + a->gap) + i, seen = 0;
        const float *qi = q + row * a->ld + head * a->d, *di = dout + row * a->lddo + head * a->d;
        double top = -INFINITY, sum = 0.0, dot = 0.0, *oi = r.o + row * own + head * a->d;
        for (int64_t j = 0; j < a->s; j++) {
            const float *kj = kk + (b * a->room + j) * a->ldk + head / group * a->d;
            double score = 0.0;
            int64_t word = ((a->first_head + head) * t + a->t_at + i) * s + a->s_at + j;
            p[j] = -INFINITY;
            drop[j] = !a->drop_threshold ? 1.0
                      : dt__rng_word(&(dt__rng){{rng[b].key[0], rng[b].key[1]},
                                                {rng[b].counter[0], rng[b].counter[1], rng[b].counter[2] | a->site}},
                                     (uint64_t)word) >= a->drop_threshold ? (double)a->drop_scale : 0.0;
            if ((a->causal && j > i + a->s - a->t) || (mask && !(mask[b * a->mask_step + i * a->s + j] & a->mask_bits)))
                continue;
            for (int64_t c = 0; c < a->d; c++) score += (double)qi[c] * (double)kj[c];
            p[j] = score * (double)a->scale, seen++;
            if (p[j] > top) top = p[j];
        }
        for (int64_t j = 0; j < a->s; j++) sum += p[j] = seen ? exp(p[j] - top) : 0.0;
        r.top[stat] = seen ? top : 0.0, r.sum[stat] = seen ? sum : 1.0;
        for (int64_t j = 0; j < a->s && seen; j++) {
            const float *vj = v + (b * a->room + j) * a->ldk + head / group * a->d;
            p[j] /= sum, g[j] = 0.0;
            for (int64_t c = 0; c < a->d; c++) oi[c] += p[j] * drop[j] * (double)vj[c], g[j] += drop[j] * (double)di[c] * (double)vj[c];
            dot += p[j] * g[j];
        }
        for (int64_t j = 0; j < a->s && seen; j++) {
            int64_t at = b * a->room + j;
            double *dk = r.dk + at * keys + head / group * a->d, *dv = r.dv + at * keys + head / group * a->d;
            double ds = p[j] * (g[j] - dot) * (double)a->scale, *dq = r.dq + row * own + head * a->d;
            for (int64_t c = 0; c < a->d; c++) {
                dq[c] += ds * (double)kk[at * a->ldk + head / group * a->d + c], dk[c] += ds * (double)qi[c];
                dv[c] += p[j] * drop[j] * (double)di[c];
            }
        }
        if (a->part) for (int64_t c = 0; c < a->d; c++) oi[c] *= r.sum[stat];
    }
    dt__free(p);
    return r;
}

/* The largest difference to doubles, relative to the largest value. What nobody writes stays 0. */
static double apart(const float *mem, double *want, int64_t n)
{
    double far = 0.0, size = 1e-3;
    const float *got = host(mem);
    k->device->download(k->device, mem, n);
    for (int64_t i = 0; i < n; i++) {
        double x = fabs((double)got[i] - want[i]);
        if (x != x) x = INFINITY;
        if (x > far) far = x;
        if (fabs(want[i]) > size) size = fabs(want[i]);
    }
    dt__free(want);
    return far / size;
}

static void check(const shape *c, int format)
{
    static const char *const names[] = {"o", "largest", "sum", "dq", "dk", "dv"};
    double bound = format == DT_F16 ? 2e-3 : 1e-2, far[6];
    dt__attention a = job_of(c, format), forward = a;
    int64_t queries = a.b * (a.t + a.gap), own = a.h * a.d, keys = a.b * a.room * a.hk * a.d;
    float *dq = (float *)dt__alloc(4 * queries * own, "dq");
    result r;
    int good = 1, same;
    forward.dout = NULL;
    compute(&forward);
    compute(&a);
    if (k->device->failed) printf("Bail out! %s\n", k->device->why), exit(1);
    r = by_doubles(&a);
    far[0] = apart(a.o, r.o, queries * own), far[1] = apart(a.row_max, r.top, queries * a.h);
    far[2] = apart(a.row_sum, r.sum, queries * a.h), far[3] = apart(a.dq, r.dq, queries * own);
    far[4] = apart(a.dk, r.dk, keys), far[5] = apart(a.dv, r.dv, keys);
    memcpy(dq, host(a.dq), 4 * (size_t)(queries * own));
    a = narrowed(a, format);
    compute(&a);
    k->device->download(k->device, a.dq, queries * own);
    same = !memcmp(dq, host(a.dq), 4 * (size_t)(queries * own));
    for (int i = 0; i < 6; i++) good = good && far[i] < bound;
    tap_ok(good && same, "%s: %jd samples, %jd queries, %jd keys, %jd/%jd heads of %jd%s%s%s%s: errors %.1e %.1e %.1e",
           format == DT_F16 ? "fp16" : "bf16", c->b, c->t, c->s, c->h, c->hk, c->d, c->causal ? ", causal" : "",
           c->mask ? ", mask" : "", c->drop > 0.0 ? ", dropout" : "", c->whole ? ", a slice" : "", far[0], far[3], far[4]);
    for (int i = 0; i < 6 && !good; i++) tap_note("%s: %.2e, bound %.0e", names[i], far[i], bound);
    if (!same) tap_note("dq differs where the inputs are in 16 bits");
    dt__free(dq);
    release();
}

static void speed(const shape *c, int format)
{
    dt__attention a = narrowed(job_of(c, format), format), forward;
    double unit = 4.0 * (double)(c->b * c->h * c->t * c->s * c->d) * (c->causal ? 0.5 : 1.0);
    a.o = dt__gpu_halves(a.o, format), a.dq = dt__gpu_halves(a.dq, format);
    a.dk = dt__gpu_halves(a.dk, format), a.dv = dt__gpu_halves(a.dv, format);
    forward = a, forward.dout = NULL;
    for (int back = 0; back < 2; back++) {
        const dt__attention *job = back ? &a : &forward;
        int times = 20;
        double start;
        for (int i = 0; i < 3; i++) compute(job);
        dt__gpu_wait((dt__cuda *)(void *)k->device);
        start = dt__now();
        for (int i = 0; i < times; i++) compute(job);
        dt__gpu_wait((dt__cuda *)(void *)k->device);
        start = (dt__now() - start) / times;
        printf("row\tattention %s %s B%jd H%jd/%jd D%jd T%jd%s%s\t%.3f\tTFLOP/s\t%.3f ms\n", back ? "backward" : "forward",
               format == DT_F16 ? "fp16" : "bf16", c->b, c->h, c->hk, c->d, c->t, c->causal ? " causal" : "",
               c->drop > 0.0 ? " dropout" : "", unit * (back ? 2.5 : 1.0) / start / 1e12, 1e3 * start);
    }
    release();
}

int main(int argc, char **argv)
{
    static const shape cases[] = {
        {1, 64, 64, 1, 1, 64, 0, 0, 0.0, 0},    {2, 130, 130, 2, 1, 64, 1, 0, 0.0, 0},  {1, 70, 200, 4, 2, 128, 1, 0, 0.0, 0},
        {1, 33, 77, 2, 2, 64, 0, 0, 0.2, 0},    {2, 1, 75, 2, 1, 96, 1, 0, 0.0, 0},     {1, 100, 40, 2, 2, 40, 1, 0, 0.0, 0},
        {2, 50, 50, 2, 2, 8, 0, 2, 0.0, 0},     {1, 129, 129, 1, 1, 128, 1, 1, 0.3, 0}, {2, 37, 37, 2, 1, 40, 0, 0, 0.1, 111},
        {1, 200, 200, 1, 1, 96, 1, 0, 0.1, 0},
    }, timed[] = {
        {8, 1024, 1024, 12, 12, 64, 1, 0, 0.0, 0}, {4, 4096, 4096, 16, 16, 128, 1, 0, 0.0, 0},
        {4, 4096, 4096, 16, 16, 64, 1, 0, 0.0, 0}, {8, 1024, 1024, 12, 12, 64, 1, 0, 0.1, 0},
        {4, 4096, 4096, 16, 16, 128, 0, 0, 0.0, 0},
    };
    int fast = argc == 2 && !strcmp(argv[1], "speed");
    draw.key[0] = (uint32_t)(argc > 2 ? atoi(argv[1]) : 0);
    for (int format = DT_BF16; format <= DT_F16; format++) {
        dt_result r = dt__choose_kernels(&k);
        if (!r) r = dt__gpu_open(&k, -1, 0);
        if (r) return printf("Bail out! %s\n", dt_last_error()), 1;
        ((dt__cuda *)(void *)k->device)->precision = format;
        tap_note("%s", k->device->name);
        for (int i = 0; argc > 2 && i < atoi(argv[2]); i++) {
            static const int64_t widths[] = {8, 40, 64, 96, 128};
            shape c = DT__ZERO;
            c.b = 1 + (int64_t)(2 * uniform()), c.t = 1 + (int64_t)(150 * uniform()), c.s = uniform() < 0.5 ? c.t : 1 + (int64_t)(150 * uniform());
            c.hk = 1 + (int64_t)(2 * uniform()), c.h = c.hk * (1 + (int64_t)(2 * uniform())), c.d = widths[(int)(5 * uniform())];
            c.causal = uniform() < 0.5, c.mask = uniform() < 0.3 ? 1 + (int)(2 * uniform()) : 0;
            c.drop = uniform() < 0.3 ? 0.25 : 0.0;
            check(&c, format);
        }
        for (int i = 0; fast && format == DT_BF16 && i < (int)(sizeof timed / sizeof *timed); i++) speed(&timed[i], format);
        for (int i = 0; !fast && argc < 3 && i < (int)(sizeof cases / sizeof *cases); i++)
            if (i % 3 == format - DT_BF16 || i % 3 == 2) check(&cases[i], format);
        k->device->close(k->device);
    }
    return fast ? 0 : tap_done();
}
