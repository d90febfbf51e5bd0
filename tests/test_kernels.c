/* R5, R9, R14, R16: the exact matrix product and attention against plain scalar text, bit for bit, on every instruction
 * set of this processor and on 1 and 2 workers. R19: fast products: dot products of 16-bit pairs, and tiles of AMX, whose
 * instructions are played here in C, since few machines have them (tests/test_precision.t trains with them). */
#include <stdint.h>
#include <string.h>

/* Eight tiles of 16 rows of 64 bytes. */
static struct { int open; float row[8][16][16]; } tiles;
#define DT__AMX_OPEN(shape) (tiles.open = (shape).palette == 1 && (shape).bytes[7] == 64 && (shape).rows[7] == 16)
#define DT__AMX_CLOSE() (tiles.open = 0)
#define DT__AMX_ZERO(t) memset(tiles.row[t], 0, sizeof tiles.row[t])
#define DT__AMX_LOAD(t, p, stride) tile_load(t, (const char *)(p), stride)
#define DT__AMX_STORE(t, p, stride) tile_store(t, (char *)(p), stride)
#define DT__AMX_DOT(c, a, b) tile_dot(c, a, b)
static void tile_load(int t, const char *p, int64_t stride)
{
    for (int i = 0; i < 16; i++) memcpy(tiles.row[t][i], p + i * stride, 64);
}
static void tile_store(int t, char *p, int64_t stride)
{
    for (int i = 0; i < 16; i++) memcpy(p + i * stride, tiles.row[t][i], 64);
}
static float half_of(float pair, int upper)
{
    uint32_t bits;
    memcpy(&bits, &pair, 4);
    bits = upper ? bits & 0xffff0000u : bits << 16;
    memcpy(&pair, &bits, 4);
    return pair;
}
static void tile_dot(int c, int a, int b)
{
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 16; j++)
                for (int upper = 0; upper < 2; upper++)
                    tiles.row[c][i][j] += half_of(tiles.row[a][i][k], upper) * half_of(tiles.row[b][k][j], upper);
}

#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "reference.h" /* and fp-contract=off for the references below: aarch64 would fuse a * b + c */
#include "tap.h"

typedef struct isa {
    const char *name;
    void (*gemm)(dt_pool *pool, const dt__gemm *g);
    int64_t (*gemm_scratch)(void);
    void (*attention)(dt_pool *pool, const dt__attention *a);
    int64_t (*attention_scratch)(int64_t t, int64_t d);
    void (*exp16)(float *y, const float *x);
    void (*words16)(uint32_t *words, const dt__rng *rng, uint32_t block);
    int width;
} isa;


static isa isas[3];
static int isa_count;
static uint32_t state = 1;

static uint32_t next(void)
{
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}
static int64_t below(int64_t n) { return (int64_t)(next() % (uint32_t)n); }

/* Mostly ordinary values, with zeros of both signs, values whose products underflow, and large ones. */
static float value(int wild)
{
    float x = ((float)(next() & 0xffff) - 32768.0f) / 16384.0f;
    if (!wild) return x;
    switch (next() % 12) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return x * 1e-24f;
    case 3: return x * 1e-39f;
    case 4: return x * 1e8f;
    case 5: return x * 1e-10f;
    default: return x;
    }
}
static float *values(int64_t n, int wild)
{
    float *p = (float *)dt__alloc(n * 4, "values");
    for (int64_t i = 0; i < n; i++) p[i] = value(wild);
    return p;
}
static void result(int ok, const char *what, const char *where) { tap_ok(ok, "%s, %s", what, where); }
static int same(const float *x, const float *y, int64_t n)
{
    if (!memcmp(x, y, (size_t)n * 4)) return 1;
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(x + i, y + i, 4)) {
            printf("# first difference at %d of %d: %a, expected %a\n", (int)i, (int)n, (double)x[i], (double)y[i]);
            break;
        }
    }
    return 0;
}

/* ---- references ---------------------------------------------------------------------------- */

static void gemm_reference(const dt__gemm *g, float *c)
{
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            float acc = g->accumulate ? c[i * g->ldc + j] : 0.0f;
            for (int64_t p = 0; p < g->k; p++)
                acc = fmaf(g->a[i * g->ars + p * g->acs], g->b[p * g->brs + j * g->bcs], acc);
            c[i * g->ldc + j] = g->bias ? acc + g->bias[j] : acc;
        }
    }
}

static float fold(float *lane)
{
    for (int half = 16; half; half /= 2) {
        for (int i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
    }
    return lane[0];
}

/* Does query i of sample s see key j? */
static int sees(const dt__attention *a, int64_t s, int64_t i, int64_t j)
{
    if (a->causal && j > i + a->s - a->t) return 0;
    return !a->mask || (a->mask[s * a->mask_step + i * a->s + j] & a->mask_bits);
}
/* Row i of a matrix of queries; of a matrix of keys, for query head h. */
static float *query(const dt__attention *a, const float *x, int64_t ld, int64_t s, int64_t h, int64_t i)
{
    return (float *)(uintptr_t)x + (s * a->t + i) * ld + h * a->d;
}
static float *key(const dt__attention *a, const float *x, int64_t s, int64_t h, int64_t j)
{
    return (float *)(uintptr_t)x + (s * a->room + j) * a->ldk + h / (a->h / a->hk) * a->d;
}
static int drops(const dt__attention *a, int64_t s, int64_t h, int64_t i, int64_t j)
{
    return a->drop_threshold && dt__rng_word(a->rng + s, (uint64_t)((h * a->t + i) * a->s + j)) < a->drop_threshold;
}

/* One head; p (t,s) receives exp(s - m). o, m, l as in the operand. */
static void forward_reference(const dt__attention *a, int64_t s, int64_t h, float *p)
{
    for (int64_t i = 0; i < a->t; i++, p += a->s) {
        int64_t at = (s * a->h + h) * a->t + i;
        const float *q = query(a, a->q, a->ld, s, h, i);
        float lane[32], m = -INFINITY;
        memset(lane, 0, sizeof lane);
        for (int64_t j = 0; j < a->s; j++) {
            const float *k = key(a, a->k, s, h, j);
            float acc = 0.0f;
            if (!sees(a, s, i, j)) continue;
            for (int64_t c = 0; c < a->d; c++) acc = fmaf(q[c], k[c], acc);
            p[j] = acc * a->scale;
            m = p[j] > m ? p[j] : m;
        }
        m = m == -INFINITY ? 0.0f : m + 0.0f;
        for (int64_t j = 0; j < a->s; j++) {
            if (!sees(a, s, i, j)) continue;
            p[j] = ref_expf(p[j] - m);
            lane[j % 32] = lane[j % 32] + p[j];
        }
        a->row_max[at] = m;
        a->row_sum[at] = fold(lane);
        if (a->row_sum[at] == 0.0f) a->row_sum[at] = 1.0f;
        for (int64_t c = 0; c < a->d; c++) {
            float acc = 0.0f;
            for (int64_t j = 0; j < a->s; j++) {
                float x = drops(a, s, h, i, j) ? 0.0f : a->drop_threshold ? p[j] * a->drop_scale : p[j];
                if (sees(a, s, i, j)) acc = fmaf(x, key(a, a->v, s, h, j)[c], acc);
            }
            query(a, a->o, a->ldo, s, h, i)[c] = acc / a->row_sum[at];
        }
    }
}

/* ds (t,s) and the dropped probabilities p (t,s) of one head. */
static void score_gradients(const dt__attention *a, int64_t s, int64_t h, float *p, float *ds)
{
    for (int64_t i = 0; i < a->t; i++) {
        const float *g = query(a, a->dout, a->lddo, s, h, i), *o = query(a, a->o, a->ldo, s, h, i);
        float lane[32], dot, l = a->row_sum[(s * a->h + h) * a->t + i];
        memset(lane, 0, sizeof lane);
        for (int64_t c = 0; c < a->d; c++) lane[c % 32] = fmaf(g[c], o[c], lane[c % 32]);
        dot = fold(lane);
        for (int64_t j = 0; j < a->s; j++) {
            const float *v = key(a, a->v, s, h, j);
            float prob = p[i * a->s + j] / l, grad = 0.0f;
            if (!sees(a, s, i, j)) continue;
            for (int64_t c = 0; c < a->d; c++) grad = fmaf(g[c], v[c], grad);
            if (a->drop_threshold) grad = drops(a, s, h, i, j) ? 0.0f : grad * a->drop_scale;
            ds[i * a->s + j] = prob * (grad - dot) * a->scale;
            if (a->drop_threshold) prob = drops(a, s, h, i, j) ? 0.0f : prob * a->drop_scale;
            p[i * a->s + j] = prob;
        }
    }
}

/* The first query head of a group begins the chains of dk and dv, the others go on. */
static void backward_reference(const dt__attention *a, int64_t s, int64_t h, float *p)
{
    float *ds = (float *)dt__alloc(a->t * a->s * 4, "ds");
    score_gradients(a, s, h, p, ds);
    for (int64_t c = 0; c < a->d; c++) {
        for (int64_t i = 0; i < a->t; i++) {
            float dq = 0.0f;
            for (int64_t j = 0; j < a->s; j++)
                if (sees(a, s, i, j)) dq = fmaf(ds[i * a->s + j], key(a, a->k, s, h, j)[c], dq);
            query(a, a->dq, a->lddq, s, h, i)[c] = dq;
        }
        for (int64_t j = 0; j < a->s; j++) {
            float *dk = key(a, a->dk, s, h, j) + c, *dv = key(a, a->dv, s, h, j) + c;
            if (h % (a->h / a->hk) == 0) *dk = *dv = 0.0f;
            for (int64_t i = 0; i < a->t; i++) {
                if (!sees(a, s, i, j)) continue;
                *dk = fmaf(ds[i * a->s + j], query(a, a->q, a->ld, s, h, i)[c], *dk);
                *dv = fmaf(p[i * a->s + j], query(a, a->dout, a->lddo, s, h, i)[c], *dv);
            }
        }
    }
    dt__free(ds);
}

/* ---- matrix product ------------------------------------------------------------------------ */

static dt_pool *pools[2];

/* One shape with random strides on every instruction set and worker count; 1 if all agree. */
static int gemm_case(int64_t m, int64_t n, int64_t k, int first_isa)
{
    int ta = (int)below(2), tb = (int)below(2), ok = 1;
    int64_t pa = below(3), pb = below(3), ldc = n + below(3);
    int64_t lda = (ta ? m : k) + pa, ldb = (tb ? k : n) + pb;
    float *a = values((ta ? k : m) * lda + 1, 1), *b = values((tb ? n : k) * ldb + 1, 1), *bias = values(n, 1);
    float *c0 = values(m * ldc, 1), *c = values(m * ldc, 0), *r = values(m * ldc, 0);
    dt__gemm g;
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k, g.a = a, g.b = b, g.ldc = ldc;
    g.ars = ta ? 1 : lda, g.acs = ta ? lda : 1, g.brs = tb ? 1 : ldb, g.bcs = tb ? ldb : 1;
    g.accumulate = (int)below(2);
    g.bias = below(2) ? bias : NULL;
    memcpy(r, c0, (size_t)(m * ldc) * 4);
    gemm_reference(&g, r);
    for (int i = first_isa; i < isa_count && ok; i++) {
        for (int w = 0; w < 2 && ok; w++) {
            memcpy(c, c0, (size_t)(m * ldc) * 4);
            g.c = c;
            isas[i].gemm(pools[w], &g);
            ok = same(c, r, m * ldc);
            if (!ok)
                printf("# %s m %d n %d k %d ta %d tb %d accumulate %d bias %d workers %d\n", isas[i].name, (int)m,
                       (int)n, (int)k, ta, tb, g.accumulate, !!g.bias, w + 1);
        }
    }
    dt__free(a), dt__free(b), dt__free(bias), dt__free(c0), dt__free(c), dt__free(r);
    return ok;
}

static void gemm_tests(void)
{
    static const int64_t ks[] = {0, 1, 2, 3, 4, 5, 7, 8, 31, 33};
    static const int64_t edges[] = {1,  7,  8,  9,  15, 16, 17, 31, 32,  33,  47,  48,
                                    49, 63, 64, 65, 79, 81, 95, 97, 145, 335, 337, 400};
    static const int64_t deep[] = {383, 384, 385, 767, 768, 769, 1200};
    int ok = 1;
    for (int64_t m = 1; m <= 40 && ok; m++) {
        for (int64_t n = 1; n <= 40 && ok; n++)
            ok = gemm_case(m, n, ks[below(10)], m * n > 300 && below(8) ? isa_count > 1 : 0);
    }
    result(ok, "R5 gemm", "m, n 1..40");
    ok = 1;
    for (size_t i = 0; i < sizeof edges / 8 && ok; i++) {
        for (int j = 0; j < 4 && ok; j++) {
            ok = gemm_case(edges[i], 1 + below(60), ks[below(10)], isa_count > 1) &&
                 gemm_case(1 + below(60), edges[i], ks[below(10)], isa_count > 1);
        }
        ok = ok && gemm_case(edges[i], edges[below(22)], ks[below(10)], 0);
    }
    result(ok, "R5 gemm", "edges of tiles and tasks");
    ok = 1;
    for (size_t i = 0; i < sizeof deep / 8 && ok; i++) {
        for (int j = 0; j < 6 && ok; j++) ok = gemm_case(1 + below(20), 1 + below(70), deep[i], j ? isa_count > 1 : 0);
    }
    result(ok, "R5 gemm", "edges of blocks of k");
    for (int v = 0, good = 1; v < 1; v++) {
        for (int j = 0; j < 24 && good; j++)
            good = gemm_case(100 + below(200), 300 + below(500), 20 + below(30), isa_count > 1);
        result(good, "R5 gemm", "many tasks");
    }
}

/* ---- attention ----------------------------------------------------------------------------- */

typedef struct attention_shape {
    int64_t b, t, s, h, hk, d, spare; /* spare: rows of the cache behind the keys */
    int causal, drop, mask; /* mask: 0 none, 1 random, 2 in blocks, 3 one for all samples and blind queries */
} attention_shape;

static uint32_t *mask_of(const attention_shape *z)
{
    uint32_t *mask = (uint32_t *)dt__alloc(z->b * z->t * z->s * 4, "mask");
    for (int64_t k = 0; z->mask && k < z->b * z->t * z->s; k++) {
        int64_t i = k / z->s % z->t, j = k % z->s, seen = z->mask == 2 ? i / 37 == j / 37 : below(4) != 0;
        if (z->mask == 3 && i % 5 == 2) seen = 0;
        mask[k] = seen ? 0x3f800000u : below(2) ? 0x80000000u : 0;
    }
    return mask;
}

/* q, k and v are columns of one row when the sizes allow it; so are the gradients. */
static int attention_case(const attention_shape *z, int wild, int first_isa)
{
    int64_t b = z->b, t = z->t, s = z->s, h = z->h, d = z->d, room = s + z->spare, C = h * d, K = z->hk * d;
    int64_t ld = C + 2 * K + below(3), ldo = C + below(3), nx = b * (t > room ? t : room) * ld, no = b * t * ldo,
            nr = b * h * t;
    float *x = values(nx, wild), *dout = values(no, wild), *p = values(t * s, 0);
    float *ro = values(no, 0), *rx = values(nx, 0), *rm = values(nr, 0), *rl = values(nr, 0);
    float *o = values(no, 0), *dx = values(nx, 0), *m = values(nr, 0), *l = values(nr, 0), *o0 = values(no, 0),
          *x0 = values(nx, 0);
    uint32_t *mask = mask_of(z);
    dt__rng rng[4];
    dt__attention a;
    int ok = 1;
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 5; j++) (j < 2 ? &rng[i].key[j] : &rng[i].counter[j - 2])[0] = next() * 257u;
    }
    memset(&a, 0, sizeof a);
    a.b = b, a.t = t, a.s = s, a.room = room, a.h = h, a.hk = z->hk, a.d = d, a.q = x, a.k = x + C, a.v = x + C + K;
    a.ld = a.ldk = a.lddq = a.lddk = ld, a.ldo = a.lddo = ldo;
    a.scale = 1.0f / sqrtf((float)d), a.causal = z->causal, a.rng = rng, a.dout = dout;
    a.mask = z->mask ? mask : NULL, a.mask_bits = 0x7fffffffu, a.mask_step = z->mask == 3 ? 0 : t * s;
    if (z->drop) a.drop_threshold = 0x33333333u, a.drop_scale = 1.25f;
    memcpy(ro, o0, (size_t)no * 4), memcpy(rx, x0, (size_t)nx * 4);
    a.o = ro, a.row_max = rm, a.row_sum = rl, a.dq = rx, a.dk = rx + C, a.dv = rx + C + K;
    for (int64_t k = 0; k < b * h; k++) forward_reference(&a, k / h, k % h, p), backward_reference(&a, k / h, k % h, p);
    for (int i = first_isa; i < isa_count && ok; i++) {
        for (int w = 0; w < 2 && ok; w++) {
            memcpy(o, o0, (size_t)no * 4), memcpy(dx, x0, (size_t)nx * 4);
            a.o = o, a.row_max = m, a.row_sum = l, a.dq = dx, a.dk = dx + C, a.dv = dx + C + K;
            dt__pool_reserve(pools[w], isas[i].attention_scratch(s, d));
            a.dout = NULL;
            isas[i].attention(pools[w], &a);
            a.dout = dout;
            isas[i].attention(pools[w], &a);
            ok = same(m, rm, nr) && same(l, rl, nr) && same(o, ro, no) && same(dx, rx, nx);
            if (!ok)
                printf("# %s b %d t %d s %d h %d hk %d d %d causal %d drop %d mask %d workers %d\n", isas[i].name, (int)b,
                       (int)t, (int)s, (int)h, (int)z->hk, (int)d, z->causal, z->drop, z->mask, w + 1);
        }
    }
    dt__free(x), dt__free(dout), dt__free(p), dt__free(ro), dt__free(rx), dt__free(rm), dt__free(rl), dt__free(o),
        dt__free(dx);
    dt__free(m), dt__free(l), dt__free(o0), dt__free(x0), dt__free(mask);
    return ok;
}

static void attention_tests(void)
{
    static const int64_t ts[] = {1, 2, 3, 7, 16, 31, 32, 33, 63, 64, 65, 100, 257}, ds[] = {1, 3, 8, 16, 33, 64};
    for (int variant = 0; variant < 4; variant++) {
        int ok = 1;
        for (size_t i = 0; i < sizeof ts / 8 && ok; i++) {
            for (size_t j = 0; j < sizeof ds / 8 && ok; j++) {
                int small = ts[i] <= 33 || (ts[i] <= 65 && ds[j] == 16) || (ts[i] == 100 && ds[j] == 8);
                attention_shape z;
                memset(&z, 0, sizeof z);
                z.b = z.h = z.hk = ts[i] > 100 ? 1 : 2, z.t = z.s = ts[i], z.d = ds[j];
                z.causal = variant & 1, z.drop = variant >> 1;
                ok = attention_case(&z, (i + j) % 2 != 0, small ? 0 : isa_count > 1);
            }
        }
        result(ok, "R5 R9 R16 attention",
               variant == 0   ? "full"
               : variant == 1 ? "causal"
               : variant == 2 ? "full, dropout"
                              : "causal, dropout");
    }
}

/* Fewer or more keys than queries, grouped heads, masks, caches with room. */
static void attention_general_tests(void)
{
    static const int64_t sizes[][2] = {{1, 1}, {1, 7}, {1, 100}, {7, 1}, {5, 9}, {9, 5}, {31, 33}, {33, 31}, {3, 64},
                                       {100, 37}, {97, 130}, {193, 64}, {40, 160}};
    static const char *const names[] = {"no mask", "a random mask", "blocks", "blind queries"};
    for (int mask = 0; mask < 4; mask++) {
        int ok = 1;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && ok; i++) {
            for (int form = 0; form < 8 && ok; form++) {
                attention_shape z;
                z.b = 1 + form % 2, z.t = sizes[i][0], z.s = sizes[i][1], z.d = 1 + below(40);
                z.h = form & 4 ? 6 : 2, z.hk = form & 4 ? 2 : 1 + form % 2, z.spare = form % 3 * 5;
                z.causal = form & 1, z.drop = form == 2 || form == 5, z.mask = mask;
                ok = attention_case(&z, form & 1, z.t * z.s <= 1100 ? 0 : isa_count > 1);
            }
        }
        result(ok, "R5 R9 attention, any keys and heads", names[mask]);
    }
}

/* A row of a causal pass has the same bits when it is computed alone against a cache of the keys up to it. */
static void decode_tests(void)
{
    enum { T = 75, H = 4, HK = 2, D = 20, C = H * D, K = HK * D, ROOM = 80 };
    float *q = values(2 * T * C, 1), *k = values(2 * ROOM * K, 1), *v = values(2 * ROOM * K, 1);
    float *all = values(2 * T * C, 0), *one = values(2 * T * C, 0), *row = values(2 * C, 0), *stats = values(4 * T * H, 0);
    for (int i = 0; i < isa_count; i++) {
        dt__attention a;
        memset(&a, 0, sizeof a);
        a.b = 2, a.t = a.s = T, a.room = ROOM, a.h = H, a.hk = HK, a.d = D, a.q = q, a.k = k, a.v = v;
        a.ld = a.ldo = C, a.ldk = K, a.scale = 0.25f, a.causal = 1;
        a.row_max = stats, a.row_sum = stats + 2 * T * H, a.o = all;
        dt__pool_reserve(pools[0], isas[i].attention_scratch(T, D));
        isas[i].attention(pools[0], &a);
        a.t = 1, a.o = row;
        for (int64_t n = 0; n < T; n++) {
            float now[2 * C];
            for (int64_t s = 0; s < 2; s++) memcpy(now + s * C, q + (s * T + n) * C, C * 4);
            a.q = now, a.s = n + 1;
            isas[i].attention(pools[0], &a);
            for (int64_t s = 0; s < 2; s++) memcpy(one + (s * T + n) * C, row + s * C, C * 4);
        }
        result(same(one, all, 2 * T * C), "R9 attention, one query at a time against a cache", isas[i].name);
    }
    dt__free(q), dt__free(k), dt__free(v), dt__free(all), dt__free(one), dt__free(row), dt__free(stats);
}

/* ---- exp and random words ------------------------------------------------------------------ */

static void exp_portable(float *y, const float *x) { dt__unary_portable(DT__OP_EXP, y, x, 16, 0.0f); }
#if defined(__x86_64__)
static void exp_avx2(float *y, const float *x) { dt__unary_avx2(DT__OP_EXP, y, x, 16, 0.0f); }
static void exp_avx512(float *y, const float *x) { dt__unary_avx512(DT__OP_EXP, y, x, 16, 0.0f); }
#elif defined(__aarch64__)
static void exp_neon(float *y, const float *x) { dt__unary_neon(DT__OP_EXP, y, x, 16, 0.0f); }
#endif

static void exp_tests(void)
{
    double worst = 0;
    float worst_at = 0;
    int ok = 1;
    for (uint32_t bits = 0; bits < 0xff000000u && ok; bits += 16 * 997) { /* a walk over all floats, both signs */
        float x[16], y[16], e[16];
        for (uint32_t i = 0; i < 16; i++) x[i] = dt__float_of_bits(bits + i * 997), e[i] = ref_expf(x[i]);
        for (int s = 0; s < isa_count && ok; s++) {
            isas[s].exp16(y, x);
            for (int i = 0; i < 16; i++) ok = ok && (x[i] != x[i] ? y[i] != y[i] : !memcmp(y + i, e + i, 4));
        }
        for (int i = 0; i < 16; i++) {
            double exact = exp((double)x[i]), ulp, error;
            if (!(exact < 3.4028235e38) || x[i] != x[i]) {
                if (x[i] == x[i] && exact > 3.4028236e38) ok = ok && e[i] == INFINITY;
                continue;
            }
            ulp = exact < 0x1p-126 ? 0x1p-149 : ldexp(1.0, ilogb(exact) - 23);
            error = fabs((double)e[i] - exact) / ulp;
            if (error > worst) worst = error, worst_at = x[i];
        }
    }
    printf("# exp: largest error %.3f ulp at %a\n", worst, (double)worst_at);
    result(ok && worst <= 1.0, "exp", "same bits everywhere, within 1 ulp");
    result(ref_expf(-INFINITY) == 0.0f && ref_expf(INFINITY) == INFINITY && ref_expf(-104.0f) == 0.0f &&
               ref_expf(0.0f) == 1.0f && ref_expf(-0.0f) == 1.0f && ref_expf(NAN) != ref_expf(NAN) &&
               ref_expf(-103.9f) > 0.0f && ref_expf(88.8f) == INFINITY && ref_expf(88.7f) < INFINITY,
           "exp", "special values");
}

static void philox_tests(void)
{
    uint32_t counter[4], key[2], out[4], words[64];
    dt__rng rng;
    int ok;
    memset(counter, 0, sizeof counter), memset(key, 0, sizeof key);
    dt__philox(counter, key, out);
    ok = out[0] == 0x6627e8d5u && out[1] == 0xe169c58du && out[2] == 0xbc57ac4cu && out[3] == 0x9b00dbd8u;
    memset(counter, 0xff, sizeof counter), memset(key, 0xff, sizeof key);
    dt__philox(counter, key, out);
    ok = ok && out[0] == 0x408f276du && out[1] == 0x41c83b0eu && out[2] == 0xa20bc7c6u && out[3] == 0x6d5451fdu;
    result(ok, "R16 Philox", "known answers");
    for (int i = 0; i < 5; i++) (i < 2 ? &rng.key[i] : &rng.counter[i - 2])[0] = next() * 257u;
    for (int s = 0; s < isa_count && ok; s++) {
        isas[s].words16(words, &rng, 0xfffffff9u);
        for (int e = 0; e < 4 * isas[s].width; e++)
            ok = ok && words[e] == dt__rng_word(&rng, ((uint64_t)0xfffffff9u << 2) + (uint64_t)e);
    }
    result(ok, "R16 Philox", "vectors");
}

/* ---- fast products ----
 * With small whole numbers every order of a sum gives the same bits, so that a fast product must equal the exact one; with
 * others it must be near the sum in double. Edges, strides, chains that go on, and bias. */

static float fast_value(int whole)
{
    if (whole) return (float)((int)(next() >> 20) - 8);
    return half_of((float)((int)next() - 8388608) / 8388608.0f, 1); /* of bf16 */
}

typedef struct product { int64_t m, n, k, ldc; int ta, tb, more, biased; } product;

/* The largest difference to the sum in double over the sum of magnitudes. */
static double fast_case(const dt__kernels *k, dt_pool *pool, const product *s, int dot, int whole, int *equal)
{
    enum { MOST = 1 << 18 };
    static float a[MOST], b[MOST], want[MOST], got[MOST], bias[1024];
    dt__gemm g;
    double worst = 0;
    memset(&g, 0, sizeof g);
    g.m = s->m, g.n = s->n, g.k = s->k, g.ldc = s->ldc, g.a = a, g.b = b, g.c = want, g.accumulate = s->more;
    g.ars = s->ta ? 1 : s->k, g.acs = s->ta ? s->m : 1, g.brs = s->tb ? 1 : s->n, g.bcs = s->tb ? s->k : 1;
    g.bias = s->biased ? bias : NULL;
    for (int64_t i = 0; i < s->m * s->k; i++) a[i] = fast_value(whole);
    for (int64_t i = 0; i < s->k * s->n; i++) b[i] = fast_value(whole);
    for (int64_t i = 0; i < s->n; i++) bias[i] = fast_value(whole);
    for (int64_t i = 0; i < s->m * s->ldc; i++) want[i] = got[i] = fast_value(whole);
    k->gemm(pool, &g);
    g.c = got, g.dot = dot;
    k->gemm(pool, &g);
    *equal = !memcmp(want, got, 4 * (size_t)(s->m * s->ldc));
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->ldc; j++) {
            double size = 1.0, far = fabs((double)want[i * s->ldc + j] - (double)got[i * s->ldc + j]);
            for (int64_t p = 0; p < s->k && j < s->n; p++) size += fabs((double)a[i * g.ars + p * g.acs] * (double)b[p * g.brs + j * g.bcs]);
            if (!(far <= worst * size)) worst = far / size;
        }
    return worst;
}

/* A NaN stays one, whatever its bits; the largest number rounds to infinity. */
static void fast_specials(void)
{
#if defined(__x86_64__)
    float numbers[2] = {0, 0x1.fffffep127f}, pair[32];
    uint32_t bits = 0x7fffffffu, first;
    memcpy(numbers, &bits, 4);
    dt__dot_row_avx512(pair, numbers, 2);
    memcpy(&first, pair, 4);
    tap_ok((first & 0x7f80u) == 0x7f80u && (first & 0x7fu), "a NaN stays a NaN");
    tap_ok(first >> 16 == 0x7f80u, "the largest number becomes infinity");
#endif
}

static void fast_tests(void)
{
    static const product all[] = {{1, 1, 1, 1, 0, 0, 0, 0}, {7, 5, 3, 9, 0, 1, 1, 1}, {33, 49, 31, 49, 1, 0, 0, 1},
        {100, 350, 400, 353, 0, 0, 1, 0}, {65, 17, 801, 17, 1, 1, 0, 0}, {32, 32, 32, 32, 0, 1, 0, 0}, {8, 700, 64, 700, 1, 0, 1, 1},
        {259, 48, 33, 48, 0, 1, 1, 1}};
    const dt__kernels *k;
    int kind;
    if (dt__choose_kernels(&k)) tap_bail("%s", dt_last_error());
    kind = dt__dot_kind(k);
    tap_ok(kind >= DT__DOT_NONE && kind <= DT__DOT_AMX && kind == dt__dot_kind(k), "this processor multiplies %s", dt__dot_names[kind]);
    if (kind == DT__DOT_NONE) return;
    for (int dot = DT__DOT_PAIRS; dot <= DT__DOT_AMX; dot++) {
        dt_pool *pool;
        if (dt__pool_open(&pool, dot == DT__DOT_AMX ? 1 : 2) || dt__pool_reserve(pool, k->gemm_scratch())) tap_bail("%s", dt_last_error()); /* one set of tiles */
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            const product *s = &all[i];
            int equal, other;
            double far = fast_case(k, pool, s, dot, 1, &equal);
            tap_ok(equal && far == 0.0, "R19 %s: (%d,%d,%d)%s%s%s%s with whole numbers is exact", dt__dot_names[dot], (int)s->m, (int)s->n, (int)s->k,
                   s->ta ? " A^T" : "", s->tb ? " B^T" : "", s->more ? " + C" : "", s->biased ? " + bias" : "");
            far = fast_case(k, pool, s, dot, 0, &other);
            tap_ok(far >= 0.0 && far < 1e-6 && !tiles.open, "  with others it is %.1e from exact", far);
        }
        dt__pool_close(&pool);
    }
    fast_specials();
}

#define ADD_ISA(suffix, w)                                                                                   \
    do {                                                                                                     \
        isa *i = &isas[isa_count++];                                                                         \
        i->name = #suffix, i->width = w;                                                                     \
        i->gemm = dt__gemm_run_##suffix, i->gemm_scratch = dt__gemm_scratch_##suffix;                        \
        i->attention = dt__attention_##suffix;                                                               \
        i->attention_scratch = dt__attention_scratch_##suffix;                                               \
        i->exp16 = exp_##suffix, i->words16 = dt__rng_words_##suffix;                                        \
    } while (0)

int main(void)
{
    double t0 = dt__now();
    ADD_ISA(portable, 4);
#if defined(__x86_64__)
    if (dt__isa_runs(1)) ADD_ISA(avx2, 8);
    else tap_skip(1, "avx2: this processor does not have it");
    if (dt__isa_runs(2)) ADD_ISA(avx512, 16);
    else tap_skip(1, "avx512: this processor does not have it");
#elif defined(__aarch64__)
    ADD_ISA(neon, 4);
#endif
    dt__fp_enter();
    for (int w = 0; w < 2; w++) {
        dt__pool_open(&pools[w], w + 1);
        for (int i = 0; i < isa_count; i++) dt__pool_reserve(pools[w], isas[i].gemm_scratch());
    }
    philox_tests();
    exp_tests();
    gemm_tests();
    attention_tests();
    attention_general_tests();
    decode_tests();
    for (int w = 0; w < 2; w++) dt__pool_close(&pools[w]);
    fast_tests();
    tap_note("%d instruction sets, %.1f s", isa_count, dt__now() - t0);
    return tap_done();
}
