/* test_nn.c: convolutions, pooling, rotary positions, attention with separate tensors, products of any rank: the bits of
 * plain scalar loops on every instruction set and with 1 and 2 threads, and PyTorch's values (golden/nn.safetensors, made
 * by make_golden.py). Finite differences of these ops are in test_ops.c, the attention kernel's reference in
 * test_kernels.c. TAP. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tap.h"
#include "maps.h"
#include "../examples/conv.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

static uint32_t state = 77;
static float draw(void)
{
    state = state * 1664525u + 1013904223u;
    switch (state >> 28) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return 1e-30f * (float)(int32_t)(state << 4);
    default: return ((float)((state >> 4) & 0xffff) - 32768.0f) / 16384.0f;
    }
}
static float *drawn(int64_t n)
{
    float *x = (float *)malloc(4 * (size_t)(n + 1));
    if (!x) tap_bail("no memory");
    for (int64_t i = 0; i < n; i++) x[i] = draw();
    return x;
}

/* The machines that a case runs on: instruction set times workers. */
enum { MACHINES = 6 };
static dt_graph *machine(int which)
{
    dt_graph *g = NULL;
    if (!dt__isa_runs(which / 2)) return NULL;
    if (dt_graph_open(&g, 1)) tap_bail("%s", dt_last_error());
    g->kernels = dt__isa_table(which / 2);
    dt__pool_close(&g->pool);
    if (dt__pool_open(&g->pool, 1 + which % 2)) tap_bail("%s", dt_last_error());
    return g;
}

/* Do n floats have the same bits? Notes the first difference. */
static int same(const float *got, const float *want, int64_t n, const char *what)
{
    for (int64_t i = 0; got && i < n; i++) {
        if (!memcmp(got + i, want + i, 4)) continue;
        tap_note("%s [%lld] of %lld: %a, expected %a", what, (long long)i, (long long)n, (double)got[i], (double)want[i]);
        return 0;
    }
    return got != NULL;
}

/* The gradient of y is w: backward of sum(y w). */
static void backward_with(dt_graph *g, dt_tensor y, const float *w)
{
    dt_tensor loss = dt_sum(g, dt_mul(g, y, dt_tensor_of(g, DT_F32, dt_shape_of(g, y), w)), DT_ALL);
    if (dt_backward(g, loss)) tap_bail("%s", dt_last_error());
}

/* ---- convolution --------------------------------------------------------------------------------- */

typedef struct conv_case {
    int64_t b, c, o, groups, x[2], k[2], stride[2], padding[2], dilation[2], y[2];
} conv_case;

/* Place of tap t of output at along an axis, or -1. */
static int64_t place(const conv_case *z, int axis, int64_t at, int64_t t)
{
    int64_t p = at * z->stride[axis] - z->padding[axis] + t * z->dilation[axis];
    return p >= 0 && p < z->x[axis] ? p : -1;
}

static void conv_forward(const conv_case *z, const float *x, const float *w, const float *bias, float *y)
{
    int64_t per = z->c / z->groups, taps = z->k[0] * z->k[1];
    for (int64_t b = 0; b < z->b; b++)
        for (int64_t o = 0; o < z->o; o++)
            for (int64_t oy = 0; oy < z->y[0]; oy++)
                for (int64_t ox = 0; ox < z->y[1]; ox++) {
                    float acc = 0.0f;
                    for (int64_t k = 0; k < per * taps; k++) {
                        int64_t c = o / (z->o / z->groups) * per + k / taps, iy = place(z, 0, oy, k % taps / z->k[1]), ix = place(z, 1, ox, k % z->k[1]);
                        acc = fmaf(w[o * per * taps + k], iy >= 0 && ix >= 0 ? x[((b * z->c + c) * z->x[0] + iy) * z->x[1] + ix] : 0.0f, acc);
                    }
                    *y++ = acc + bias[o];
                }
}

/* dx: a chain over output channels for each position that read the place; these add by ascending position. */
static void conv_backward_x(const conv_case *z, const float *dy, const float *w, float *dx)
{
    int64_t per = z->c / z->groups, made = z->o / z->groups, taps = z->k[0] * z->k[1];
    memset(dx, 0, 4 * (size_t)(z->b * z->c * z->x[0] * z->x[1]));
    for (int64_t at = 0; at < z->b * z->c * z->y[0] * z->y[1]; at++) {
        int64_t ox = at % z->y[1], oy = at / z->y[1] % z->y[0], c = at / (z->y[0] * z->y[1]) % z->c, b = at / (z->y[0] * z->y[1] * z->c);
        for (int64_t k = 0; k < taps; k++) {
            int64_t iy = place(z, 0, oy, k / z->k[1]), ix = place(z, 1, ox, k % z->k[1]);
            float acc = 0.0f, *to;
            if (iy < 0 || ix < 0) continue;
            for (int64_t o = c / per * made; o < (c / per + 1) * made; o++)
                acc = fmaf(w[(o * per + c % per) * taps + k], dy[((b * z->o + o) * z->y[0] + oy) * z->y[1] + ox], acc);
            to = &dx[((b * z->c + c) * z->x[0] + iy) * z->x[1] + ix];
            *to = *to + acc;
        }
    }
}

/* dw: a chain over (sample, position); db likewise, of additions. Both go on from what is there. */
static void conv_backward_w(const conv_case *z, const float *x, const float *dy, float *dw, float *db)
{
    int64_t per = z->c / z->groups, made = z->o / z->groups, positions = z->y[0] * z->y[1];
    for (int64_t k = 0; k < z->o * per * z->k[0] * z->k[1]; k++) {
        int64_t kx = k % z->k[1], ky = k / z->k[1] % z->k[0], c = k / (z->k[1] * z->k[0]) % per, o = k / (z->k[1] * z->k[0] * per);
        for (int64_t at = 0; at < z->b * positions; at++) {
            int64_t iy = place(z, 0, at / z->y[1] % z->y[0], ky), ix = place(z, 1, at % z->y[1], kx), b = at / positions;
            dw[k] = fmaf(dy[(b * z->o + o) * positions + at % positions], iy < 0 || ix < 0 ? 0.0f : x[((b * z->c + o / made * per + c) * z->x[0] + iy) * z->x[1] + ix], dw[k]);
        }
    }
    for (int64_t at = 0; at < z->b * z->o * positions; at++) db[at / positions % z->o] = db[at / positions % z->o] + dy[at];
}

static int conv_machine(const conv_case *z, dt_graph *g, const float *x, const float *w, const float *bias, const float *dy, float *const want[4])
{
    conv_window o;
    dt_tensor t[3], y;
    int64_t per = z->c / z->groups, nx = z->b * z->c * z->x[0] * z->x[1], ny = z->b * z->o * z->y[0] * z->y[1], nw = z->o * per * z->k[0] * z->k[1];
    int one = z->x[0] == 1 && z->k[0] == 1, ok;
    memset(&o, 0, sizeof o);
    o.groups = z->groups;
    for (int k = one; k < 2; k++) o.stride[k - one] = z->stride[k], o.padding[k - one] = z->padding[k], o.dilation[k - one] = z->dilation[k];
    t[0] = dt_tensor_of(g, DT_F32, one ? dt_shape3(z->b, z->c, z->x[1]) : dt_shape4(z->b, z->c, z->x[0], z->x[1]), x);
    t[1] = dt_tensor_of(g, DT_F32, one ? dt_shape3(z->o, per, z->k[1]) : dt_shape4(z->o, per, z->k[0], z->k[1]), w);
    t[2] = dt_tensor_of(g, DT_F32, dt_shape1(z->o), bias);
    y = conv_of(g, t[0], t[1], t[2], &o);
    if (!y.id) tap_bail("%s", dt_last_error());
    backward_with(g, y, dy);
    ok = same(dt_value(g, y), want[0], ny, "y") && same(dt_value(g, dt_grad(g, t[0])), want[1], nx, "dx");
    ok = ok && same(dt_value(g, dt_grad(g, t[1])), want[2], nw, "dw") && same(dt_value(g, dt_grad(g, t[2])), want[3], z->o, "db");
    dt_graph_close(&g);
    return ok;
}

static void conv_bits(const conv_case *row)
{
    conv_case z = *row;
    int64_t nx, ny, nw, ok = 1;
    float *x, *w, *bias, *dy, *want[4];
    for (int k = 0; k < 2; k++) z.y[k] = (z.x[k] + 2 * z.padding[k] - z.dilation[k] * (z.k[k] - 1) - 1) / z.stride[k] + 1;
    nx = z.b * z.c * z.x[0] * z.x[1], ny = z.b * z.o * z.y[0] * z.y[1], nw = z.o * z.c / z.groups * z.k[0] * z.k[1];
    x = drawn(nx), w = drawn(nw), bias = drawn(z.o), dy = drawn(ny);
    want[0] = drawn(ny), want[1] = drawn(nx);
    want[2] = (float *)calloc((size_t)nw, 4), want[3] = (float *)calloc((size_t)z.o, 4);
    conv_forward(&z, x, w, bias, want[0]);
    conv_backward_x(&z, dy, w, want[1]);
    conv_backward_w(&z, x, dy, want[2], want[3]);
    for (int m = 0; m < MACHINES && ok; m++) {
        dt_graph *g = machine(m);
        if (g) ok = conv_machine(&z, g, x, w, bias, dy, want);
        if (!ok) tap_note("machine %d", m);
    }
    tap_ok((int)ok, "R3 R5 convolution: (%d,%d,%d,%d) to %d channels, %d groups, window (%d,%d), stride (%d,%d), padding (%d,%d), dilation (%d,%d)", (int)z.b, (int)z.c,
           (int)z.x[0], (int)z.x[1], (int)z.o, (int)z.groups, (int)z.k[0], (int)z.k[1], (int)z.stride[0], (int)z.stride[1], (int)z.padding[0], (int)z.padding[1],
           (int)z.dilation[0], (int)z.dilation[1]);
    free(x), free(w), free(bias), free(dy);
    for (int i = 0; i < 4; i++) free(want[i]);
}

static void test_conv(void)
{
    static const conv_case row[] = {
        { 2, 3, 5, 1, { 9, 7 }, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, { 0, 0 } },
        { 1, 1, 1, 1, { 1, 1 }, { 1, 1 }, { 1, 1 }, { 0, 0 }, { 1, 1 }, { 0, 0 } },
        { 3, 1, 33, 1, { 31, 33 }, { 5, 5 }, { 2, 2 }, { 2, 2 }, { 1, 1 }, { 0, 0 } },
        { 2, 17, 19, 1, { 6, 32 }, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, { 0, 0 } },
        { 2, 6, 9, 3, { 8, 9 }, { 2, 4 }, { 3, 2 }, { 1, 3 }, { 2, 1 }, { 0, 0 } },
        { 2, 8, 8, 8, { 10, 5 }, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, { 0, 0 } },
        { 1, 2, 2, 1, { 2, 3 }, { 3, 3 }, { 1, 1 }, { 4, 5 }, { 1, 1 }, { 0, 0 } },
        { 2, 3, 4, 1, { 7, 7 }, { 2, 2 }, { 3, 3 }, { 0, 0 }, { 1, 1 }, { 0, 0 } },
        { 2, 4, 6, 1, { 1, 1000 }, { 1, 7 }, { 1, 1 }, { 0, 3 }, { 1, 1 }, { 0, 0 } },
        { 3, 5, 3, 1, { 1, 65 }, { 1, 4 }, { 1, 3 }, { 0, 2 }, { 1, 5 }, { 0, 0 } },
        { 1, 1, 2, 1, { 1, 200 }, { 1, 64 }, { 1, 1 }, { 0, 63 }, { 1, 1 }, { 0, 0 } },
        { 1, 2, 1, 1, { 1, 90 }, { 1, 70 }, { 1, 2 }, { 0, 3 }, { 1, 1 }, { 0, 0 } },
        { 20, 150, 4, 1, { 9, 9 }, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, { 0, 0 } }, /* several chunks of positions */
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) conv_bits(&row[i]);
}

/* ---- pooling -------------------------------------------------------------------------------------- */

static void pool_reference(const int64_t x[2], const int64_t y[2], const conv_window *o, int mean, const float *plane, const float *dy, float *out, float *dx)
{
    memset(dx, 0, 4 * (size_t)(x[0] * x[1]));
    for (int64_t at = 0; at < y[0] * y[1]; at++) {
        float sum = 0.0f;
        int64_t best = -1;
        for (int64_t k = 0; k < o->size[0] * o->size[1]; k++) {
            int64_t iy = at / y[1] * o->stride[0] - o->padding[0] + k / o->size[1], ix = at % y[1] * o->stride[1] - o->padding[1] + k % o->size[1];
            if (iy < 0 || iy >= x[0] || ix < 0 || ix >= x[1]) continue;
            sum = sum + plane[iy * x[1] + ix];
            if (best < 0 || plane[iy * x[1] + ix] > plane[best]) best = iy * x[1] + ix;
            if (mean) dx[iy * x[1] + ix] = dx[iy * x[1] + ix] + dy[at] / (float)(o->size[0] * o->size[1]);
        }
        out[at] = mean ? sum / (float)(o->size[0] * o->size[1]) : plane[best];
        if (!mean) dx[best] = dx[best] + dy[at];
    }
}

static void test_pools(void)
{
    static const struct { int64_t x[2]; conv_window o; } row[] = {
        { { 9, 31 }, { { 2, 3 }, { 2, 3 }, { 0, 0 }, { 0, 0 }, 0 } }, { { 8, 33 }, { { 3, 3 }, { 2, 2 }, { 1, 1 }, { 0, 0 }, 0 } },
        { { 5, 5 }, { { 5, 4 }, { 1, 1 }, { 2, 2 }, { 0, 0 }, 0 } },  { { 1, 1 }, { { 1, 1 }, { 1, 1 }, { 0, 0 }, { 0, 0 }, 0 } },
    };
    for (size_t i = 0; i < 2 * sizeof row / sizeof *row; i++) {
        const int64_t *n = row[i / 2].x;
        const conv_window *o = &row[i / 2].o;
        int64_t y[2], planes = 6, nx = n[0] * n[1], ny;
        int mean = (int)(i & 1), ok = 1;
        float *x, *dy, *out, *dx;
        for (int k = 0; k < 2; k++) y[k] = (n[k] + 2 * o->padding[k] - o->size[k]) / o->stride[k] + 1;
        ny = y[0] * y[1];
        x = drawn(planes * nx), dy = drawn(planes * ny), out = drawn(planes * ny), dx = drawn(planes * nx);
        for (int64_t k = 0; k < planes * nx; k += 2) x[k] = (float)((int)(x[k] * 4.0f)) / 4.0f; /* equal maxima */
        for (int64_t p = 0; p < planes; p++) pool_reference(n, y, o, mean, x + p * nx, dy + p * ny, out + p * ny, dx + p * nx);
        for (int m = 0; m < MACHINES && ok; m++) {
            dt_graph *g = machine(m);
            dt_tensor t, z;
            if (!g) continue;
            t = dt_tensor_of(g, DT_F32, dt_shape4(2, 3, n[0], n[1]), x);
            z = pool(g, t, mean, o);
            if (!z.id) tap_bail("%s", dt_last_error());
            backward_with(g, z, dy);
            ok = same(dt_value(g, z), out, planes * ny, "y") && same(dt_value(g, dt_grad(g, t)), dx, planes * nx, "dx");
            dt_graph_close(&g);
        }
        tap_ok(ok, "R14 %s pooling of (%d,%d) by (%d,%d)", mean ? "mean" : "maximum", (int)n[0], (int)n[1], (int)o->size[0], (int)o->size[1]);
        free(x), free(dy), free(out), free(dx);
    }
}

/* ---- rotary positions ------------------------------------------------------------------------------- */

/* The table against long double; the rotation against one product and one fma; back again is the transpose. */
static void test_rope(void)
{
    static const int64_t width[] = { 2, 6, 30, 32, 34, 64, 66, 128 };
    static const dt_rope_scaling scaling = { 8.0, 1.0, 4.0, 8192, DT_ROPE_LLAMA3, 0, 0.0 };
    double worst = 0.0;
    for (size_t i = 0; i < sizeof width / sizeof *width; i++) {
        int64_t d = width[i], T = 5, n = 2 * T * 3 * d, offset = i % 2 ? 1 << 20 : 0, ok = 1;
        float *x = drawn(n), *dy = drawn(n), *y = drawn(n), *dx = drawn(n);
        for (int m = 0; m < MACHINES && ok; m++) {
            dt_graph *g = machine(m);
            dt_tensor t, z;
            const float *table;
            if (!g) continue;
            t = dt_tensor_of(g, DT_F32, dt_shape3(2, T, 3 * d), x);
            z = dt_rope(g, t, 3, 10000.0, offset, NULL);
            if (!z.id) tap_bail("%s", dt_last_error());
            table = dt__at(g, z)->table;
            for (int64_t r = 0; r < 2 * T * 3; r++)
                for (int64_t c = 0; c < d / 2; c++) {
                    const float *turn = table + r / 3 % T * d;
                    int64_t a = r * d + c, b = a + d / 2;
                    y[a] = fmaf(-x[b], turn[d / 2 + c], x[a] * turn[c]), y[b] = fmaf(x[a], turn[d / 2 + c], x[b] * turn[c]);
                    dx[a] = fmaf(dy[b], turn[d / 2 + c], dy[a] * turn[c]), dx[b] = fmaf(-dy[a], turn[d / 2 + c], dy[b] * turn[c]);
                }
            for (int64_t k = 0; k < T * d; k++) {
                long double angle = (long double)(offset + k / d) * powl(10000.0L, -2.0L * (long double)(k % (d / 2)) / (long double)d);
                long double real = k % d < d / 2 ? cosl(angle) : sinl(angle);
                worst = fmax(worst, fabs((double)(table[k] - real)));
            }
            backward_with(g, z, dy);
            ok = same(dt_value(g, z), y, n, "y") && same(dt_value(g, dt_grad(g, t)), dx, n, "dx");
            dt_graph_close(&g);
        }
        tap_ok((int)ok, "rotary positions, heads of %d, from position %d", (int)d, (int)offset);
        free(x), free(dy), free(y), free(dx);
    }
    for (int64_t c = 0; c < 64; c++) {
        double got = dt__rope_frequency(c, 128, 500000.0, &scaling) * 3.14159265358979323846, f = pow(500000.0, -(double)c / 64.0), w = 8192.0 * f / (2.0 * 3.14159265358979323846);
        double want = w < 1.0 ? f / 8.0 : w > 4.0 ? f : (1.0 - (w - 1.0) / 3.0) * f / 8.0 + (w - 1.0) / 3.0 * f;
        if (!(fabs(got - want) <= 1e-13 * want)) worst = INFINITY;
    }
    tap_ok(worst <= 0.51 * 0x1p-24, "rotary table: error %.4f * 2^-24 up to position 2^20", worst * 0x1p24);
}

/* ---- attention and products through the graph ---------------------------------------------------------- */

/* What hidden keys hold never reaches a result: not even infinities. */
static void test_hidden_keys(void)
{
    enum { B = 2, T = 37, S = 41, H = 4, HK = 2, D = 12 };
    float *q = drawn(B * T * H * D), *k = drawn(B * S * HK * D), *v = drawn(B * S * HK * D), *w = drawn(B * T * H * D);
    float *clean = drawn(B * T * H * D), *clean_q = drawn(B * T * H * D);
    int32_t mask[T * S];
    for (int i = 0; i < T * S; i++) mask[i] = i % S != 5 && i % S != 40 && (i / S != 3) && i * 7 % 5 != 0;
    for (int m = 0; m < MACHINES; m++) {
        for (int bad = 0; bad < 2; bad++) {
            dt_graph *g = machine(m);
            dt_tensor tq, y;
            dt_attention_options o;
            if (!g) continue;
            memset(&o, 0, sizeof o);
            o.heads = H, o.kv_heads = HK;
            for (int b = 0; b < B; b++)
                for (int c = 0; c < HK * D; c++) {
                    k[(b * S + 5) * HK * D + c] = bad ? INFINITY : 1.0f, v[(b * S + 5) * HK * D + c] = bad ? -INFINITY : 2.0f;
                    k[(b * S + 40) * HK * D + c] = bad ? NAN : 3.0f, v[(b * S + 40) * HK * D + c] = bad ? NAN : 4.0f;
                }
            tq = dt_tensor_of(g, DT_F32, dt_shape3(B, T, H * D), q);
            y = dt_attend(g, tq, dt_tensor_of(g, DT_F32, dt_shape3(B, S, HK * D), k), dt_tensor_of(g, DT_F32, dt_shape3(B, S, HK * D), v), dt_tensor_of(g, DT_I32, dt_shape2(T, S), mask), &o);
            if (!y.id) tap_bail("%s", dt_last_error());
            backward_with(g, y, w);
            if (!bad && !m) memcpy(clean, dt_value(g, y), 4 * B * T * H * D), memcpy(clean_q, dt_value(g, dt_grad(g, tq)), 4 * B * T * H * D);
            tap_ok(same(dt_value(g, y), clean, B * T * H * D, "y") && same(dt_value(g, dt_grad(g, tq)), clean_q, B * T * H * D, "dq"),
                   "R5 attention never multiplies a hidden key, machine %d%s", m, bad ? ", infinities there" : "");
            dt_graph_close(&g);
        }
    }
    tap_ok(clean[3 * H * D] == 0.0f && !signbit(clean[3 * H * D]) && clean_q[3 * H * D] == 0.0f, "a query that sees nothing gives +0 and no gradient");
    free(q), free(k), free(v), free(w), free(clean), free(clean_q);
}

/* The fused op and the one with separate tensors have the same bits, gradients included. */
static void test_fused(void)
{
    enum { B = 2, T = 35, C = 24 };
    float *x = drawn(B * T * 3 * C), *w = drawn(B * T * C);
    dt_graph *g = machine(0), *h = machine(0);
    dt_tensor a = dt_tensor_of(g, DT_F32, dt_shape3(B, T, 3 * C), x), b = dt_tensor_of(h, DT_F32, dt_shape3(B, T, 3 * C), x), y, z;
    dt_attention_options o;
    memset(&o, 0, sizeof o);
    o.heads = 3, o.causal = 1, o.dropout = 0.2f;
    y = attention(g, a, 3, 1, 0.2f);
    z = dt_attend(h, dt_slice(h, b, 2, 0, C), dt_slice(h, b, 2, C, 2 * C), dt_slice(h, b, 2, 2 * C, 3 * C), dt__none(), &o);
    if (!y.id || !z.id) tap_bail("%s", dt_last_error());
    backward_with(g, y, w), backward_with(h, z, w);
    tap_same_bits(dt_value(h, z), dt_value(g, y), B * T * C, "separate tensors have the bits of the fused op");
    for (int i = 0; i < B * T * 3 * C; i++) x[i] = dt_value(h, dt_grad(h, b))[i] + 0.0f, ((float *)(uintptr_t)dt_value(g, dt_grad(g, a)))[i] += 0.0f;
    tap_same_bits(x, dt_value(g, dt_grad(g, a)), B * T * 3 * C, "and of its gradient"); /* sums of slices lose the sign of a zero */
    free(x), free(w);
    dt_graph_close(&g), dt_graph_close(&h);
}

/* A product with broadcast leading axes is the product of expanded tensors. */
static void test_products(void)
{
    float *a = drawn(2 * 5 * 33), *b = drawn(3 * 33 * 7), *w = drawn(2 * 3 * 5 * 7);
    for (int m = 0; m < MACHINES; m++) {
        dt_graph *g = machine(m), *h = machine(m);
        dt_tensor x, y, p, q;
        if (!g || !h) continue;
        x = dt_tensor_of(g, DT_F32, dt_shape4(2, 1, 5, 33), a), y = dt_tensor_of(g, DT_F32, dt_shape3(3, 33, 7), b);
        p = dt_matmul(g, x, y, 0, 0);
        backward_with(g, p, w);
        q = dt_matmul(h, dt_expand(h, dt_tensor_of(h, DT_F32, dt_shape4(2, 1, 5, 33), a), dt_shape4(2, 3, 5, 33)), dt_expand(h, dt_tensor_of(h, DT_F32, dt_shape3(3, 33, 7), b), dt_shape4(2, 3, 33, 7)), 0, 0);
        tap_ok(same(dt_value(g, p), dt_value(h, q), 2 * 3 * 5 * 7, "matmul"), "R5 matmul with leading axes that broadcast, machine %d", m);
        dt_graph_close(&g), dt_graph_close(&h);
    }
    free(a), free(b), free(w);
}

/* Parameters of the builders: names, shapes, the width of the first values. */
static void test_builders(void)
{
    float x[2 * 4 * 8] = { 0 }, sum = 0.0f;
    dt_graph *g = machine(0);
    conv_window o;
    memset(&o, 0, sizeof o);
    o.size[0] = 3, o.groups = 2;
    conv(g, dt_tensor_of(g, DT_F32, dt_shape3(2, 4, 8), x), "c", 256, &o);
    tap_ok(!dt_graph_result(g) && g->param_count == 2 && !strcmp(g->params[0].name, "c.weight") && !strcmp(g->params[1].name, "c.bias") && g->params[0].shape.n[1] == 2,
           "conv makes c.weight (O,C/groups,K) and c.bias (O)");
    for (int i = 0; i < 256 * 6; i++) sum += dt__at(g, dt__tensor(g, 2))->data[i] * dt__at(g, dt__tensor(g, 2))->data[i] / (256.0f * 6.0f);
    tap_ok(fabsf(sum - 2.0f / 6.0f) < 0.05f, "its weights have variance 2 / inputs: %.3f of %.3f", (double)sum, 2.0 / 6.0);
    dt_graph_close(&g);
}

/* ---- PyTorch ------------------------------------------------------------------------------------------ */

static tap_golden *golden;
static dt_tensor gold(dt_graph *g, const char *name, const char *part)
{
    char full[96];
    const tap_tensor *t;
    dt_shape s;
    snprintf(full, sizeof full, "%s.%s", name, part);
    t = tap_golden_find(golden, full);
    if (!t) return dt__none();
    memset(&s, 0, sizeof s);
    s.dims = t->rank;
    memcpy(s.n, t->shape, sizeof(int64_t) * (size_t)t->rank);
    return strcmp(t->dtype, "I32") ? dt_tensor_of(g, DT_F32, s, (const float *)t->data) : dt_tensor_of(g, DT_I32, s, (const int32_t *)t->data);
}
static int64_t gold_int(const char *name, const char *part, int at)
{
    char full[96];
    const tap_tensor *t;
    snprintf(full, sizeof full, "%s.%s", name, part);
    t = tap_golden_find(golden, full);
    return t ? ((const int64_t *)t->data)[at] : 0;
}

static dt_tensor torch_op(dt_graph *g, const char *name, const dt_tensor *in)
{
    static const dt_rope_scaling scaling = { 8.0, 1.0, 4.0, 16, DT_ROPE_LLAMA3, 0, 0.0 };
    dt_attention_options a;
    conv_window o;
    memset(&a, 0, sizeof a);
    memset(&o, 0, sizeof o);
    a.heads = 4, a.kv_heads = gold_int(name, "attend", 0), a.causal = (int)gold_int(name, "attend", 1);
    for (int k = 0; k < 2; k++) {
        o.size[k] = gold_int(name, "size", k), o.stride[k] = gold_int(name, "stride", k);
        o.padding[k] = gold_int(name, "padding", k), o.dilation[k] = gold_int(name, "dilation", k);
    }
    o.groups = gold_int(name, "groups", 0);
    if (!strncmp(name, "attend", 6)) return dt_attend(g, in[0], in[1], in[2], gold(g, name, "mask"), &a);
    if (!strncmp(name, "rope", 4)) return dt_rope(g, in[0], 2, 10000.0, 7, strstr(name, "llama3") ? &scaling : NULL);
    if (!strncmp(name, "max_pool", 8)) return pool(g, in[0], 0, &o);
    if (!strncmp(name, "avg_pool", 8)) return pool(g, in[0], 1, &o);
    if (!strncmp(name, "matmul", 6)) return dt_matmul(g, in[0], in[1], 0, 0);
    return conv_of(g, in[0], in[1], in[2], &o);
}

static void torch_case(const char *name)
{
    static const char *const parts[3][3] = { { "q", "k", "v" }, { "x", "weight", "bias" }, { "a", "b", "" } };
    const char *const *part = parts[!strncmp(name, "attend", 6) ? 0 : !strncmp(name, "matmul", 6) ? 2 : 1];
    char what[160];
    dt_graph *g = machine(0);
    dt_tensor in[3], y, w, out;
    for (int i = 0; i < 3; i++) in[i] = gold(g, name, part[i]);
    w = gold(g, name, "w");
    out = gold(g, name, "out");
    y = torch_op(g, name, in);
    if (!y.id || !w.id) tap_bail("%s: %s", name, dt_last_error());
    snprintf(what, sizeof what, "%s as PyTorch", name);
    if (!dt__same_shape(&dt__at(g, y)->shape, &dt__at(g, out)->shape)) tap_ok(0, "%s: wrong shape", what);
    else tap_near(dt_value(g, y), dt_value(g, out), dt__count(dt__at(g, y)), 1e-5, what);
    backward_with(g, y, dt_value(g, w));
    for (int i = 0; i < 3; i++) {
        char name_of[40];
        if (!in[i].id) continue;
        snprintf(name_of, sizeof name_of, "grad.%s", part[i]);
        snprintf(what, sizeof what, "%s, gradient of %s, as PyTorch", name, part[i]);
        out = gold(g, name, name_of);
        tap_near(dt_value(g, dt_grad(g, in[i])), dt_value(g, out), dt__count(dt__at(g, out)), 1e-5, what);
    }
    dt_graph_close(&g);
}

static void test_torch(void)
{
    golden = tap_golden_open("nn.safetensors");
    for (int i = 0; i < golden->count; i++) {
        char name[TAP_NAME];
        size_t n = strlen(golden->tensor[i].name);
        if (n < 4 || strcmp(golden->tensor[i].name + n - 4, ".out")) continue;
        snprintf(name, sizeof name, "%.*s", (int)n - 4, golden->tensor[i].name);
        torch_case(name);
    }
    tap_golden_close(golden);
}

int main(void)
{
    test_conv();
    test_pools();
    test_rope();
    test_hidden_keys();
    test_fused();
    test_products();
    test_builders();
    test_torch();
    return tap_done();
}
