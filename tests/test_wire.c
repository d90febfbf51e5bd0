/* test_wire.c: gradients in fewer bytes. What each format sends and what comes out again, against plain scalar texts, bit
 * for bit, at odd sizes and with numbers that are none; error feedback: what was sent and what is left are the sum of
 * the gradients. test_wire.t trains with the formats. TAP. */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "reference.h"
#include "tap.h"

enum { MOST = 70001, SIZES = 14 };
static const int64_t sizes[SIZES] = {1, 2, 3, 31, 32, 33, 255, 256, 257, 511, 1000, 1024, 4099, MOST};
static const char *const names[] = {"fp32", "fp16", "bf16", "int8"};
static float x[MOST], y[MOST], want[MOST], payload[MOST + 1], expected[MOST + 1];
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

/* ---- formats against them ---- */

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

static void plain(int wire, int64_t n)
{
    static int8_t codes[MOST];
    static float scales[MOST / 256 + 1];
    if (wire == DT_WIRE_INT8) plain_int8(n, want, codes, scales);
    for (int64_t i = 0; i < n && wire == DT_WIRE_FP16; i++) want[i] = nearest(x[i], 10, -14, 65504.0f);
    for (int64_t i = 0; i < n && wire == DT_WIRE_BF16; i++) want[i] = nearest(x[i], 7, -126, 3.3895314e38f);
    if (wire == DT_WIRE_INT8) /* the payload itself: scale and codes of each block */
        for (int64_t b = 0, at = 0; b < n; b += 256, at += 65) {
            expected[at] = scales[b / 256];
            memset(expected + at + 1, 0, 256);
            memcpy(expected + at + 1, codes + b, (size_t)(n - b < 256 ? n - b : 256));
        }
}

static void formats(void)
{
    for (int wire = DT_WIRE_FP16; wire <= DT_WIRE_INT8; wire++) {
        int wrong = 0, payloads = 0;
        for (int kind = 0; kind < KINDS; kind++)
            for (int s = 0; s < SIZES; s++) {
                int64_t n = sizes[s], words = dt__wire_words(wire, n);
                draw(kind, n);
                for (int64_t i = 0; i <= words; i++) payload[i] = of_bits(0x12345678u);
                dt__wire_encode(k, wire, n, x, payload);
                wrong += bits_of(payload[words]) != 0x12345678u;
                plain(wire, n);
                if (wire == DT_WIRE_INT8) payloads += kind != BROKEN && memcmp(payload, expected, 4 * (size_t)words) != 0;
                for (int64_t i = 0; i < n; i++) y[i] = -7.0f;
                dt__wire_decode(k, wire, n, payload, y, DT__WIRE_SET);
                same(y, want, n, names[wire], kind, n, &wrong);
                for (int64_t i = 0; i < n; i++) y[i] = 3.0f, want[i] = 3.0f + want[i];
                dt__wire_decode(k, wire, n, payload, y, DT__WIRE_ADD);
                same(y, want, n, "added", kind, n, &wrong);
            }
        tap_ok(!wrong, "%s: what comes out is the plain text's, set and added", names[wire]);
        if (wire == DT_WIRE_INT8) tap_ok(!payloads, "%s: and so is the payload", names[wire]);
    }
}

/* ---- error feedback, as the executor does it ---- */

static void feedback(int wire, int forget)
{
    enum { N = 3053, STEPS = 40 };
    static float sums[N], error[N];
    static double sent[N], all[N];
    double worst = 0.0, lost = 0.0;
    dt_recipe recipe = dt_recipe_default();
    dt__engine e;
    dt__wire_job j;
    memset(&e, 0, sizeof e);
    memset(sent, 0, sizeof sent), memset(all, 0, sizeof all), memset(error, 0, sizeof error);
    recipe.wire = wire;
    e.k = k, e.recipe = &recipe, e.wire.mine = payload;
    j.e = &e, j.sum = sums, j.error = error, j.floats = N, j.words = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        dt__rng r = dt__rng_make(11, DT__RNG_INIT, step, 0, 0);
        dt__normals(&r, 0, N, 1e-3f, sums);
        for (int64_t i = 0; i < N; i++) all[i] += (double)sums[i];
        dt__wire_give(&j, 0, 0);
        if (forget) memset(error, 0, sizeof error);
        dt__wire_decode(k, wire, N, payload, y, DT__WIRE_SET);
        for (int64_t i = 0; i < N; i++) sent[i] += (double)y[i];
    }
    for (int64_t i = 0; i < N; i++) {
        double gap = fabs(sent[i] + (double)error[i] - all[i]);
        worst = gap > worst ? gap : worst;
        lost = fabs(all[i] - sent[i]) > lost ? fabs(all[i] - sent[i]) : lost;
    }
    /* a sum of up to 40 numbers of about 1e-3 is rounded 40 times */
    if (!forget) tap_ok(worst < 40 * 1e-2 * 0x1p-24, "%s: sent and what is left are the sum of gradients: off by %.1e", names[wire], worst);
    else tap_ok(worst > 1e-4 && lost > 1e-4, "%s: without feedback they are not: off by %.1e", names[wire], worst);
}

int main(void)
{
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        unsigned saved = dt__fp_enter();
        setenv("DT_ISA", isas[i], 1);
        if (dt__choose_kernels(&k)) {
            tap_skip(1, "this processor has no %s", isas[i]);
            continue;
        }
        tap_note("%s", k->name);
        formats();
        for (int wire = DT_WIRE_FP16; wire <= DT_WIRE_INT8; wire++) feedback(wire, 0);
        feedback(DT_WIRE_INT8, 1);
        dt__fp_leave(saved);
    }
    return tap_done();
}
