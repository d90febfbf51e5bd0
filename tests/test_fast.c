/* Products of fast numerics (R19): dot products of 16-bit pairs, and tiles of AMX, whose instructions are played here
 * in C, since few machines have them. With small whole numbers every order of a sum gives the same bits, so that both
 * must equal the exact product; with others they must be near the sum in double. Edges, strides, chains that go on,
 * and bias. tests/test_precision.t trains with them. */
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
#include "tap.h"

enum { MOST = 1 << 20 };
static float a[MOST], b[MOST], want[MOST], got[MOST], bias[4096];
static uint32_t state = 1;

static float draw(int whole)
{
    state = state * 1664525u + 1013904223u;
    if (whole) return (float)((int)(state >> 28) - 8);
    return half_of((float)((int)(state >> 8) - 8388608) / 8388608.0f, 1); /* of bf16 */
}

typedef struct shape { int64_t m, n, k, ldc; int ta, tb, more, biased; } shape;
static const shape shapes[] = {{1, 1, 1, 1, 0, 0, 0, 0}, {7, 5, 3, 9, 0, 1, 1, 1}, {33, 49, 31, 49, 1, 0, 0, 1},
    {100, 350, 400, 353, 0, 0, 1, 0}, {65, 17, 801, 17, 1, 1, 0, 0}, {32, 32, 32, 32, 0, 1, 0, 0}, {8, 700, 64, 700, 1, 0, 1, 1},
    {259, 48, 33, 48, 0, 1, 1, 1}};

/* The largest difference to the sum in double over the sum of magnitudes. */
static double run(const dt__kernels *k, dt_pool *pool, const shape *s, int dot, int whole, int *same)
{
    dt__gemm g;
    double worst = 0;
    memset(&g, 0, sizeof g);
    g.m = s->m, g.n = s->n, g.k = s->k, g.ldc = s->ldc, g.a = a, g.b = b, g.c = want, g.accumulate = s->more;
    g.ars = s->ta ? 1 : s->k, g.acs = s->ta ? s->m : 1, g.brs = s->tb ? 1 : s->n, g.bcs = s->tb ? s->k : 1;
    g.bias = s->biased ? bias : NULL;
    for (int64_t i = 0; i < s->m * s->k; i++) a[i] = draw(whole);
    for (int64_t i = 0; i < s->k * s->n; i++) b[i] = draw(whole);
    for (int64_t i = 0; i < s->n; i++) bias[i] = draw(whole);
    for (int64_t i = 0; i < s->m * s->ldc; i++) want[i] = got[i] = draw(whole);
    k->gemm(pool, &g);
    g.c = got, g.dot = dot;
    k->gemm(pool, &g);
    *same = !memcmp(want, got, 4 * (size_t)(s->m * s->ldc));
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->ldc; j++) {
            double size = 1.0, far = fabs((double)want[i * s->ldc + j] - (double)got[i * s->ldc + j]);
            for (int64_t p = 0; p < s->k && j < s->n; p++) size += fabs((double)a[i * g.ars + p * g.acs] * (double)b[p * g.brs + j * g.bcs]);
            if (!(far <= worst * size)) worst = far / size;
        }
    return worst;
}

int main(void)
{
    const dt__kernels *k;
    dt_pool *pool;
    int kind;
    if (dt__choose_kernels(&k) || dt__pool_open(&pool, 2)) tap_bail("%s", dt_last_error());
    kind = dt__dot_kind(k);
    tap_ok(kind >= DT__DOT_NONE && kind <= DT__DOT_AMX && kind == dt__dot_kind(k), "this processor multiplies %s", dt__dot_names[kind]);
    if (kind == DT__DOT_NONE) return dt__pool_close(&pool), tap_done();
    if (dt__pool_reserve(pool, k->gemm_scratch())) tap_bail("%s", dt_last_error());
    unsigned saved = dt__fp_enter();
    for (int dot = DT__DOT_PAIRS; dot <= DT__DOT_AMX; dot++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const shape *s = &shapes[i];
            int same, other;
            double far;
            if (dot == DT__DOT_AMX) dt__pool_close(&pool), (void)!(dt__pool_open(&pool, 1) || dt__pool_reserve(pool, k->gemm_scratch())); /* one set of tiles */
            far = run(k, pool, s, dot, 1, &same);
            tap_ok(same && far == 0.0, "R19 %s: (%d,%d,%d)%s%s%s%s with whole numbers is exact", dt__dot_names[dot], (int)s->m, (int)s->n, (int)s->k,
                   s->ta ? " A^T" : "", s->tb ? " B^T" : "", s->more ? " + C" : "", s->biased ? " + bias" : "");
            far = run(k, pool, s, dot, 0, &other);
            tap_ok(far >= 0.0 && far < 1e-6 && !tiles.open, "  with others it is %.1e from exact", far);
        }
    a[0] = NAN, a[1] = 0x1.fffffep127f;
    { /* a NaN stays one, whatever its bits; the largest number rounds to infinity */
        float pair[32];
        uint32_t bits = 0x7fffffffu, first;
        memcpy(a, &bits, 4);
        dt__dot_row_avx512(pair, a, 2);
        memcpy(&first, pair, 4);
        tap_ok((first & 0x7f80u) == 0x7f80u && (first & 0x7fu), "a NaN stays a NaN");
        tap_ok(first >> 16 == 0x7f80u, "the largest number becomes infinity");
    }
    dt__fp_leave(saved);
    dt__pool_close(&pool);
    return tap_done();
}
