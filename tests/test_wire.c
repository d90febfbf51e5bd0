/* test_wire.c: gradients in fewer bytes. What each format sends and what comes out again, against plain scalar texts, bit
 * for bit, at odd sizes and with numbers that are none; error feedback: what was sent and what is left of it are the sum
 * of the gradients; what PowerSGD's factors are, and when they are exact. test_wire.t trains with them. TAP. */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "reference.h"
#include "tap.h"

enum { MOST = 70001, SIZES = 14 };
static const int64_t sizes[SIZES] = {1, 2, 3, 31, 32, 33, 255, 256, 257, 511, 1000, 1024, 4099, MOST};
static const char *const names[] = {"fp32", "fp16", "bf16", "int8", "topk", "powersgd"};
static float x[MOST], y[MOST], want[MOST], payload[2 * MOST], expected[2 * MOST];
static const dt__kernels *k;

static uint32_t bits_of(float v)
{
    uint32_t b;
    memcpy(&b, &v, 4);
    return b;
}
static float of_bits(uint32_t b)
{
    float v;
    memcpy(&v, &b, 4);
    return v;
}

/* ---- numbers to send: many sizes, equals, zeros, subnormals; then some that are none ---- */

enum { PLAIN, EQUAL, TINY, LARGE, ZERO, BROKEN, KINDS };
static void draw(int kind, int64_t n)
{
    dt__rng r = dt__rng_make(7, DT__RNG_INIT, (uint32_t)kind, (uint32_t)n, 0);
    dt__normals(&r, 0, (uint64_t)n, 1.0f, x);
    for (int64_t i = 0; i < n; i++) {
        uint32_t word = dt__rng_word(&r, (uint64_t)(i + 2 * n + 8));
        if (kind == EQUAL) x[i] = (float)((int)(word % 7u) - 3);
        if (kind == TINY) x[i] = ldexpf(x[i], -120 - (int)(word % 30u));
        if (kind == LARGE) x[i] = ldexpf(x[i], (int)(word % 24u));
        if (kind == ZERO) x[i] = word & 1u ? 0.0f : -0.0f;
        if (kind == BROKEN && word % 50u == 0) x[i] = word & 64u ? NAN : word & 128u ? INFINITY : -INFINITY;
    }
    if (kind == BROKEN) x[n / 2] = NAN;
}

/* ---- the plain texts ---- */

/* The nearest number of `fraction` bits behind the point with exponents down to `least`, the even one of two. */
static float nearest(float v, int fraction, int least, float most)
{
    int e;
    double scaled, whole;
    if (isnan(v) || isinf(v) || v == 0.0f) return v;
    frexp((double)v, &e);
    e = e - 1 < least ? least : e - 1;
    scaled = ldexp((double)v, fraction - e);
    whole = nearbyint(scaled);
    v = (float)ldexp(whole, e - fraction);
    v = fabsf(v) > most ? copysignf(most, v) : v;
    return v == 0.0f ? copysignf(0.0f, (float)scaled) : v;
}

static void plain_int8(int64_t n, float *out, int8_t *codes, float *scales)
{
    for (int64_t b = 0; b < n; b += 256) {
        int64_t end = b + 256 < n ? b + 256 : n;
        float most = 0.0f, scale;
        int broken = 0;
        for (int64_t i = b; i < end; i++) {
            broken |= !isfinite(x[i]);
            most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        }
        scale = most / 127.0f;
        for (int64_t i = b; i < end; i++) {
            float q = broken || scale == 0.0f ? 0.0f : nearbyintf(x[i] / scale);
            q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
            codes[i] = (int8_t)q;
            out[i] = broken ? NAN : (float)codes[i] * scale;
        }
        scales[b / 256] = broken ? NAN : scale;
    }
}

static int by_size(const void *a, const void *b) /* the larger first, of equals the lower place; NaN above all */
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    uint32_t u = bits_of(x[i]) & 0x7fffffffu, v = bits_of(x[j]) & 0x7fffffffu;
    return u != v ? (u < v) - (u > v) : (i > j) - (i < j);
}
static void plain_topk(int64_t n, int64_t keep, float *out)
{
    static int32_t place[MOST];
    for (int32_t i = 0; i < n; i++) place[i] = i, out[i] = 0.0f;
    qsort(place, (size_t)n, sizeof *place, by_size);
    for (int64_t i = 0; i < keep; i++) out[place[i]] = out[place[i]] + x[place[i]];
}

/* ---- formats against them ---- */

static dt__wire_unit unit_of(int64_t n, int64_t keep)
{
    dt__wire_unit u;
    memset(&u, 0, sizeof u);
    u.count = n, u.keep = keep;
    return u;
}

/* NaN payloads are never compared. */
static void same(const float *got, const float *ref, int64_t n, const char *what, int kind, int64_t size, int *wrong)
{
    for (int64_t i = 0; i < n; i++)
        if (bits_of(got[i]) != bits_of(ref[i]) && !(isnan(got[i]) && isnan(ref[i]))) {
            if (!(*wrong)++) tap_note("%s, kind %d, size %lld: %lld is %a, not %a (%a)", what, kind, (long long)size,
                                      (long long)i, (double)got[i], (double)ref[i], (double)x[i]);
            return;
        }
}

static void plain(int wire, int64_t n, int64_t keep)
{
    static int8_t codes[MOST];
    static float scales[MOST / 256 + 1];
    if (wire == DT_WIRE_INT8) plain_int8(n, want, codes, scales);
    if (wire == DT_WIRE_TOPK) plain_topk(n, keep, want);
    for (int64_t i = 0; i < n && wire == DT_WIRE_FP16; i++) want[i] = nearest(x[i], 10, -14, 65504.0f);
    for (int64_t i = 0; i < n && wire == DT_WIRE_BF16; i++) want[i] = nearest(x[i], 7, -126, 3.3895314e38f);
    if (wire == DT_WIRE_INT8) /* the payload itself: scale and codes of each block */
        for (int64_t b = 0, at = 0; b < n; b += 256, at += 65) {
            expected[at] = scales[b / 256];
            memset(expected + at + 1, 0, 256);
            memcpy(expected + at + 1, codes + b, (size_t)(n - b < 256 ? n - b : 256));
        }
    if (wire == DT_WIRE_TOPK)
        for (int64_t i = 0, at = 0; i < n; i++)
            if (bits_of(want[i])) expected[keep + at] = x[i], expected[at++] = of_bits((uint32_t)i);
}

static void formats(void)
{
    for (int wire = DT_WIRE_FP16; wire <= DT_WIRE_TOPK; wire++) {
        int wrong = 0, payloads = 0, rising = 1;
        for (int kind = 0; kind < KINDS; kind++)
            for (int s = 0; s < SIZES; s++) {
                int64_t n = sizes[s], keep = n < 3 ? 1 : n / 3, words = wire == DT_WIRE_TOPK ? 2 * keep : dt__wire_words(wire, n);
                dt__wire_unit u = unit_of(n, keep);
                draw(kind, n);
                for (int64_t i = 0; i <= words; i++) payload[i] = of_bits(0x12345678u);
                dt__wire_encode(k, wire, &u, x, payload);
                wrong += bits_of(payload[words]) != 0x12345678u;
                plain(wire, n, keep);
                if (wire == DT_WIRE_INT8) payloads += kind != BROKEN && memcmp(payload, expected, 4 * (size_t)words) != 0;
                if (wire == DT_WIRE_TOPK && kind == PLAIN) payloads += memcmp(payload, expected, 4 * (size_t)words) != 0;
                for (int64_t i = 1; i < keep && wire == DT_WIRE_TOPK; i++) rising &= bits_of(payload[i]) > bits_of(payload[i - 1]);
                for (int64_t i = 0; i < n; i++) y[i] = -7.0f;
                dt__wire_decode(k, wire, &u, payload, y, DT__WIRE_SET);
                same(y, want, n, names[wire], kind, n, &wrong);
                for (int64_t i = 0; i < n; i++) y[i] = 3.0f, want[i] = 3.0f + want[i];
                dt__wire_decode(k, wire, &u, payload, y, DT__WIRE_ADD);
                same(y, want, n, "added", kind, n, &wrong);
            }
        tap_ok(!wrong, "%s: what comes out is the plain text's, set and added", names[wire]);
        if (wire >= DT_WIRE_INT8) tap_ok(!payloads && rising, "%s: and so is the payload", names[wire]);
    }
}

/* ---- error feedback, as the executor does it ---- */

static void feedback(int wire, int forget, dt_pool *pool)
{
    enum { ROWS = 43, COLS = 71, N = ROWS * COLS, STEPS = 40 };
    static float sums[N], error[N], start[2 * COLS];
    static double sent[N], all[N];
    double worst = 0.0, lost = 0.0;
    dt_recipe recipe = dt_recipe_default();
    dt__engine e;
    dt__wire_unit u = unit_of(N, 31);
    dt__wire_job j;
    memset(&e, 0, sizeof e);
    memset(sent, 0, sizeof sent), memset(all, 0, sizeof all), memset(error, 0, sizeof error);
    recipe.wire = wire, recipe.wire_forget = forget;
    recipe.wire_rank = 2;
    e.k = k, e.recipe = &recipe, e.wire.error = error, e.wire.mine = payload, e.wire.start = start;
    if (wire == DT_WIRE_POWERSGD) u.rows = ROWS, u.cols = COLS, u.right = 2 * ROWS;
    for (int i = 0; i < 2 * COLS; i++) start[i] = (float)(i % 5 - 2);
    j.e = &e, j.unit = &u, j.sum = sums, j.slot = 0, j.words = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        dt__rng r = dt__rng_make(11, DT__RNG_INIT, step, 0, 0);
        dt__normals(&r, 0, N, 1e-3f, sums);
        for (int64_t i = 0; i < N; i++) all[i] += (double)sums[i];
        if (wire == DT_WIRE_POWERSGD) { /* the product of the factors is in `sums` */
            dt__wire_lefts(&e, &j, 1, pool);
            dt__wire_rights(&e, &j, 1, pool);
            memcpy(y, sums, sizeof sums);
            dt__wire_keep(k, &u, 2, payload + u.right, start);
        } else {
            dt__wire_give(&j, 0, 0);
            dt__wire_decode(k, wire, &u, payload, y, DT__WIRE_SET);
        }
        for (int64_t i = 0; i < N; i++) sent[i] += (double)y[i];
    }
    for (int64_t i = 0; i < N; i++) {
        double gap = fabs(sent[i] + (double)error[i] - all[i]);
        worst = gap > worst ? gap : worst;
        lost = fabs(all[i] - sent[i]) > lost ? fabs(all[i] - sent[i]) : lost;
    }
    /* a sum of up to 40 numbers of about 1e-3 is rounded 40 times */
    if (!forget) tap_ok(worst < 40 * 1e-2 * 0x1p-24, "%s: sent and what is left are the sum of gradients: off by %.1e", names[wire], worst);
    else tap_ok(worst > 1e-3 && lost > 1e-3, "%s: without feedback they are not: off by %.1e", names[wire], worst);
}

/* ---- PowerSGD ---- */

static float plain_gram(float *v, int64_t r, int64_t n)
{
    float left = 0.0f;
    for (int64_t j = 0; j < r; j++) {
        float before = ref_row_dot(v + j * n, v + j * n, n), after;
        for (int64_t i = 0; i < j; i++) {
            float s = ref_row_dot(v + i * n, v + j * n, n);
            for (int64_t c = 0; c < n; c++) v[j * n + c] = fmaf(v[i * n + c], -s, v[j * n + c]);
        }
        after = ref_row_dot(v + j * n, v + j * n, n);
        for (int64_t c = 0; c < n; c++) v[j * n + c] = after == 0.0f || after < 1e-10f * before ? 0.0f : v[j * n + c] / sqrtf(after);
        left = after;
    }
    return left;
}

static void products(dt_pool *pool)
{
    static const int64_t shapes[][3] = {{2, 3, 1}, {31, 33, 1}, {33, 31, 4}, {64, 192, 4}, {257, 65, 7}, {5, 1000, 2}};
    static float left[8000], right[8000], other[8000];
    int same_bits = 1, orthogonal = 1;
    for (int s = 0; s < 6; s++) {
        int64_t rows = shapes[s][0], cols = shapes[s][1], r = shapes[s][2], n = rows * cols;
        dt__rng g = dt__rng_make(3, DT__RNG_WIRE, (uint32_t)s, 0, 0);
        dt__wire_unit u = unit_of(n, 0);
        u.rows = rows, u.cols = cols;
        draw(PLAIN, n);
        dt__normals(&g, 0, (uint64_t)(r * cols), 1.0f, right);
        dt__wire_left(k, pool, &u, r, x, right, left);
        for (int64_t j = 0; j < r; j++)
            for (int64_t i = 0; i < rows; i++) {
                float chain = 0.0f;
                for (int64_t c = 0; c < cols; c++) chain = fmaf(right[j * cols + c], x[i * cols + c], chain);
                other[j * rows + i] = chain;
            }
        same_bits &= !memcmp(left, other, 4 * (size_t)(r * rows));
        dt__wire_orthonormal(k, left, r, rows);
        (void)plain_gram(other, r, rows);
        same_bits &= !memcmp(left, other, 4 * (size_t)(r * rows));
        for (int64_t i = 0; i < r * r; i++)
            orthogonal &= fabs((double)ref_row_dot(left + i / r * rows, left + i % r * rows, rows) - (i / r == i % r)) < 1e-5;
        dt__wire_right(k, pool, &u, r, x, left, right);
        for (int64_t j = 0; j < r; j++)
            for (int64_t c = 0; c < cols; c++) {
                float chain = 0.0f;
                for (int64_t i = 0; i < rows; i++) chain = fmaf(left[j * rows + i], x[i * cols + c], chain);
                other[j * cols + c] = chain;
            }
        same_bits &= !memcmp(right, other, 4 * (size_t)(r * cols));
        dt__wire_join(k, pool, &u, r, left, right, y);
        for (int64_t i = 0; i < n; i++) {
            want[i] = 0.0f;
            for (int64_t j = 0; j < r; j++) want[i] = fmaf(left[j * rows + i / cols], right[j * cols + i % cols], want[i]);
        }
        same_bits &= !memcmp(y, want, 4 * (size_t)n);
    }
    tap_ok(same_bits, "powersgd: factors and their product are the plain text's, bit for bit");
    tap_ok(orthogonal, "powersgd: the left factor is orthonormal");
}

/* A matrix of rank 3 is sent whole by factors of rank 3 or more, whose further columns come to nothing, and never twice;
 * a start whose product comes to nothing stays for the next step. */
static void ranks(dt_pool *pool)
{
    enum { ROWS = 37, COLS = 53, TRUE_RANK = 3 };
    static float a[TRUE_RANK * ROWS], b[TRUE_RANK * COLS], left[8 * ROWS], right[8 * COLS], start[8 * COLS], old[8 * COLS];
    dt__wire_unit u = unit_of(ROWS * COLS, 0);
    dt__rng g = dt__rng_make(5, DT__RNG_WIRE, 0, 0, 0);
    u.rows = ROWS, u.cols = COLS;
    dt__normals(&g, 0, TRUE_RANK * ROWS, 1e-6f, a);
    dt__normals(&g, 5000, 5000 + TRUE_RANK * COLS, 1.0f, b);
    dt__wire_join(k, pool, &u, TRUE_RANK, a, b, x);
    for (int64_t r = 2; r <= 8; r += 3) {
        double gap = 0.0, largest = 0.0;
        int empty = 0, kept = 1;
        dt__normals(&g, 9000, (uint64_t)(9000 + r * COLS), 1.0f, start);
        memcpy(old, start, sizeof old);
        dt__wire_left(k, pool, &u, r, x, start, left);
        dt__wire_orthonormal(k, left, r, ROWS);
        dt__wire_right(k, pool, &u, r, x, left, right);
        dt__wire_join(k, pool, &u, r, left, right, y);
        dt__wire_keep(k, &u, r, right, start);
        for (int i = 0; i < ROWS * COLS; i++) {
            gap = fmax(gap, fabs((double)y[i] - (double)x[i]));
            largest = fmax(largest, fabs((double)x[i]));
        }
        for (int64_t j = 0; j < r; j++) {
            int none = ref_row_dot(right + j * COLS, right + j * COLS, COLS) == 0.0f;
            float length = ref_row_dot(start + j * COLS, start + j * COLS, COLS);
            empty += none;
            kept &= none ? !memcmp(start + j * COLS, old + j * COLS, 4 * COLS) : fabsf(length - 1.0f) < 1e-5f;
        }
        if (r < TRUE_RANK) tap_ok(gap > 1e-2 * largest && !empty, "powersgd: factors of rank %d leave something out of rank 3", (int)r);
        else tap_ok(gap < 1e-5 * largest && empty == r - TRUE_RANK && kept, "powersgd: factors of rank %d hold all of rank 3: off by %.1e", (int)r, gap / largest);
    }
    for (int64_t i = 0; i < u.count; i++) x[i] = 0.0f;
    x[7] = NAN;
    memcpy(start, old, sizeof start);
    dt__wire_left(k, pool, &u, 2, x, start, left);
    dt__wire_orthonormal(k, left, 2, ROWS);
    dt__wire_right(k, pool, &u, 2, x, left, right);
    dt__wire_join(k, pool, &u, 2, left, right, y);
    tap_ok(isnan(y[7]), "powersgd: not-a-number comes out as such");
}

int main(void)
{
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        dt_pool *pool = NULL;
        unsigned saved = dt__fp_enter();
        setenv("DT_ISA", isas[i], 1);
        if (dt__choose_kernels(&k)) {
            tap_skip(1, "this processor has no %s", isas[i]);
            continue;
        }
        if (dt__pool_open(&pool, 1) || dt__pool_reserve(pool, k->gemm_scratch())) return 1;
        tap_note("%s", k->name);
        formats();
        for (int wire = DT_WIRE_FP16; wire <= DT_WIRE_POWERSGD; wire++) feedback(wire, 0, pool);
        feedback(DT_WIRE_TOPK, 1, pool);
        feedback(DT_WIRE_POWERSGD, 1, pool);
        products(pool);
        ranks(pool);
        dt__pool_close(&pool);
        dt__fp_leave(saved);
    }
    return tap_done();
}
