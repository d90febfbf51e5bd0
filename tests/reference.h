/* reference.h: what the kernels must compute, as plain scalar text written from the definitions in NUMERICS.md and in the
 * ops' docs; nothing here calls a kernel. Include it after dtrain.h. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The references say a * b + c where they mean two roundings. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#define REF_FN __attribute__((unused)) static

/* ---- R5 sums ---- */

REF_FN float ref_fold(float lane[32])
{
    for (int width = 16; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] = lane[i] + lane[i + width];
    return lane[0];
}
REF_FN float ref_row_sum(const float *x, int64_t n)
{
    float lane[32];
    for (int i = 0; i < 32; i++) lane[i] = 0.0f;
    for (int64_t i = 0; i < n; i++) lane[i % 32] = lane[i % 32] + x[i];
    return ref_fold(lane);
}
REF_FN float ref_row_dot(const float *a, const float *b, int64_t n)
{
    float lane[32];
    for (int i = 0; i < 32; i++) lane[i] = 0.0f;
    for (int64_t i = 0; i < n; i++) lane[i % 32] = fmaf(a[i], b[i], lane[i % 32]);
    return ref_fold(lane);
}
/* R14: a NaN is above all numbers. */
REF_FN int ref_above(float a, float b) { return a > b || (isnan(a) && !isnan(b)); }
/* A maximum of zero is +0: otherwise its sign would tell in which order the elements were looked at. */
REF_FN float ref_row_max(const float *x, int64_t n)
{
    float m = -INFINITY;
    for (int64_t i = 0; i < n; i++) m = m > x[i] || isnan(m) ? m : x[i];
    return m + 0.0f;
}
/* e^x as the kernels compute it: the same operations, one number at a time. */
REF_FN float ref_expf(float x)
{
    static const float c[] = {0x1.6b76p-10f, 0x1.12306ap-7f, 0x1.555682p-5f, 0x1.5554a2p-3f, 0.5f, 1.0f, 1.0f};
    float t, n, r, q;
    int32_t whole, half;
    uint32_t bits;
    x = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x;
    t = fmaf(x, 0x1.715476p+0f, 0x1.8p+23f), n = t - 0x1.8p+23f;
    r = fmaf(n, -0x1.7f7d1cp-20f, fmaf(n, -0x1.62e4p-1f, x));
    q = c[0];
    for (int i = 1; i < 7; i++) q = fmaf(q, r, c[i]);
    memcpy(&bits, &t, 4);
    whole = (int32_t)(bits - 0x4b400000u), half = whole >> 1;
    bits = (uint32_t)(half + 127) << 23, memcpy(&t, &bits, 4), q = q * t;
    bits = (uint32_t)(whole - half + 127) << 23, memcpy(&t, &bits, 4);
    return q * t;
}
REF_FN float ref_tree(const float *x, int64_t n) /* n a power of two */
{
    return n == 1 ? x[0] : ref_tree(x, n / 2) + ref_tree(x + n / 2, n / 2);
}
/* Blocks of 1024 elements, then TREE: neighbours by index, level by level; what has no neighbour waits. */
REF_FN float ref_whole_sum(const float *x, int64_t n)
{
    static __thread float part[1024];
    int64_t parts = 0;
    for (int64_t i = 0; i < n; i += 1024) part[parts++] = ref_row_sum(x + i, n - i < 1024 ? n - i : 1024);
    for (; parts > 1; parts = (parts + 1) / 2)
        for (int64_t i = 0; i < (parts + 1) / 2; i++) part[i] = 2 * i + 1 < parts ? part[2 * i] + part[2 * i + 1] : part[2 * i];
    return part[0];
}

/* ---- functions ---- */

REF_FN float ref_exp(float x)
{
    float n, r, q;
    int whole, half;
    if (x != x) return x;
    if (x > 89.0f) x = 89.0f;
    if (x < -104.0f) x = -104.0f;
    n = fmaf(x, 0x1.715476p+0f, 0x1.8p+23f) - 0x1.8p+23f;
    r = fmaf(n, -0x1.7f7d1cp-20f, fmaf(n, -0x1.62e4p-1f, x));
    q = fmaf(0x1.6b76p-10f, r, 0x1.12306ap-7f);
    q = fmaf(q, r, 0x1.555682p-5f);
    q = fmaf(q, r, 0x1.5554a2p-3f);
    q = fmaf(q, r, 0.5f);
    q = fmaf(q, r, 1.0f);
    q = fmaf(q, r, 1.0f);
    whole = (int)n;
    half = (whole - (whole < 0)) / 2; /* rounded down */
    return q * ldexpf(1.0f, half) * ldexpf(1.0f, whole - half);
}
REF_FN float ref_log(float x)
{
    static const float c[] = { -1.1514610310e-1f, 1.1676998740e-1f,  -1.2420140846e-1f, 1.4249322787e-1f,
                               -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f };
    float m, f, z, p = 7.0376836292e-2f, y;
    int e;
    if (x != x || x == INFINITY) return x;
    if (x <= 0.0f) return x < 0.0f ? NAN : -INFINITY;
    m = frexpf(x, &e);
    if (m < 0.707106781f) m = m + m, e--;
    f = m - 1.0f;
    z = f * f;
    for (int i = 0; i < 8; i++) p = fmaf(p, f, c[i]);
    y = fmaf(p * f, z, (float)e * -2.12194440e-4f);
    y = fmaf(-0.5f, z, y);
    return fmaf((float)e, 0.693359375f, f + y);
}
REF_FN float ref_tanh(float x)
{
    static const float c[] = { 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f };
    float a = fabsf(x), z = x * x, p = -5.70498872745e-3f;
    if (!(a < 0.625f)) return copysignf(1.0f - 2.0f / (ref_exp(a + a) + 1.0f), x);
    for (int i = 0; i < 4; i++) p = fmaf(p, z, c[i]);
    return copysignf(fmaf(p * z, a, a), x);
}
REF_FN float ref_gelu_exp(float x) { return ref_exp(x * fmaf(x * x, -0.0713548163f, -1.59576912f)); }
REF_FN float ref_gate(float x) { return 1.0f / (1.0f + ref_gelu_exp(x)); }
REF_FN float ref_gelu_grad(float x, float dy)
{
    float e = ref_gelu_exp(x), s = 1.0f / (1.0f + e), p = s * (e * s), slope = fmaf(x * x, 0.214064449f, 1.59576912f);
    return dy * (p > 0.0f ? fmaf(x * slope, p, s) : s);
}

REF_FN float ref_silu_grad(float x, float dy)
{
    float c = x < -120.0f ? -120.0f : x > 120.0f ? 120.0f : x, e = ref_exp(-fabsf(c)), d = 1.0f / (1.0f + e);
    return dy * fmaf(c * d, e * d, c < 0.0f ? e * d : d);
}

/* ---- functions in double: +, -, * and / alone ---- */

#define REF_LOG2E 0x1.71547652b82fep+0

REF_FN double ref_horner(double x, const double *c, int n) /* c[0] x^(n-1) + .. + c[n-1] */
{
    double p = c[0];
    for (int i = 1; i < n; i++) p = p * x + c[i];
    return p;
}
REF_FN double ref_exp2_parts(double v, double *s)
{
    static const double c[] = { 0x1.ffcc8f5d3cea2p-17, 0x1.443f95dd95260p-13, 0x1.5d88bd5d2e65cp-10, 0x1.3b2a1bf5ae4e6p-7,
                                0x1.c6b08cb169959p-5,  0x1.ebfbe045708dcp-3,  0x1.62e42fefd3471p-1 };
    if (v != v) return *s = v;
    if (v > 300.0) v = 300.0;
    if (v < -300.0) v = -300.0;
    *s = ldexp(1.0, (int)rint(v));
    return ref_horner(v - rint(v), c, 7) * (v - rint(v));
}
REF_FN double ref_exp2(double v)
{
    double s, p = ref_exp2_parts(v, &s);
    return p * s + s;
}
/* max(x,0) - x t + log(1 + exp(-|x|)), and what the rounding of 1 + u lost given back. */
REF_FN float ref_bce(float x, float t)
{
    float u = ref_exp(x > 0.0f ? -x : x), w = 1.0f + u, lost = (u - (w - 1.0f)) / w, tail = ref_log(w) + lost;
    return fmaf(-x, t, x > 0.0f ? x : 0.0f) + tail;
}
REF_FN float ref_bce_grad(float x, float t)
{
    float u = ref_exp(x > 0.0f ? -x : x), p = (x > 0.0f ? 1.0f : u) / (1.0f + u);
    return p - t;
}

REF_FN float ref_unary(int op, float x, float s)
{
    double p;
    switch (op) {
    case DT__OP_SILU: p = x < -1000.0f ? -1000.0 : (double)x; return (float)(p / (1.0 + ref_exp2(p * -REF_LOG2E)));
    case DT__OP_SIGMOID: return (float)(1.0 / (1.0 + ref_exp2((double)x * -REF_LOG2E)));
    case DT__OP_RELU: return x <= 0.0f ? 0.0f : x;
    case DT__OP_ABS: return fabsf(x);
    case DT__OP_SQUARE: return x * x;
    case DT__OP_RECIPROCAL: return 1.0f / x;
    case DT__OP_NEG: return -x;
    case DT__OP_SCALE: return x * s;
    case DT__OP_EXP: return ref_exp(x);
    case DT__OP_LOG: return ref_log(x);
    case DT__OP_TANH: return ref_tanh(x);
    case DT__OP_SQRT: return sqrtf(x);
    case DT__OP_RSQRT: return 1.0f / sqrtf(x);
    default: return x * ref_gate(x);
    }
}
REF_FN float ref_binary(int op, float a, float b)
{
    switch (op) {
    case DT__OP_ADD: return a + b;
    case DT__OP_SUB: return a - b;
    case DT__OP_MUL: return a * b;
    case DT__OP_DIV: return a / b;
    case DT__OP_MAXIMUM: return a > b || isnan(a) ? a : b;
    case DT__OP_MINIMUM: return a < b || isnan(a) ? a : b;
    case DT__OP_GREATER_EQUAL: return a >= b ? 1.0f : 0.0f;
    case DT__OP_SILU_GRAD0: return ref_silu_grad(a, b);
    case DT__OP_GELU_GRAD0: return ref_gelu_grad(a, b);
    default: return ref_bce(a, b);
    }
}

/* ---- storage types: sign, exponent, mantissa ---- */

typedef struct ref_format {
    int exponent, mantissa; /* bits */
} ref_format;
static const ref_format ref_formats[] = { { 8, 23 }, { 0, 0 }, { 8, 7 }, { 5, 10 }, { 4, 3 }, { 5, 2 } }; /* by dt_dtype */

/* The number that a code stands for: (-1)^s 2^(e - bias) 1.m, or 2^(1 - bias) 0.m. */
REF_FN double ref_number(int dtype, uint32_t code)
{
    int eb = ref_formats[dtype].exponent, mb = ref_formats[dtype].mantissa, bias = (1 << (eb - 1)) - 1;
    int e = (int)(code >> mb) & ((1 << eb) - 1), m = (int)code & ((1 << mb) - 1);
    double sign = code >> (eb + mb) & 1 ? -1.0 : 1.0;
    if (dtype == DT_F8_E4M3 && e == 15 && m == 7) return NAN;
    if (dtype != DT_F8_E4M3 && e == (1 << eb) - 1) return m ? NAN : sign * INFINITY;
    return sign * ldexp((e ? 1.0 : 0.0) + ldexp((double)m, -mb), (e ? e : 1) - bias);
}
/* The code of the nearest number, of two the even code: the place of the last bit is given by the size of x, and codes of
 * growing numbers count up. What is beyond the finite ones is infinity, in e4m3, which has none, NaN. */
REF_FN uint32_t ref_code(int dtype, float x)
{
    int eb = ref_formats[dtype].exponent, mb = ref_formats[dtype].mantissa, bias = (1 << (eb - 1)) - 1, e;
    uint32_t infinity = dtype == DT_F8_E4M3 ? 0x7fu : ((1u << eb) - 1u) << mb, sign = signbit(x) ? 1u << (eb + mb) : 0u;
    double code;
    if (isnan(x)) return sign | (dtype == DT_F8_E4M3 ? 0x7fu : infinity | 1u << (mb - 1));
    if (isinf(x)) return sign | infinity;
    e = x == 0.0f ? 1 - bias : ilogbf(x);
    if (e < 1 - bias) e = 1 - bias;
    code = (double)(e + bias - 1) * (double)(1 << mb) + rint(ldexp(fabs((double)x), mb - e));
    return sign | (code > (double)infinity ? infinity : (uint32_t)code);
}

#endif
