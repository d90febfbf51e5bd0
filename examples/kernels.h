/* kernels.h: kernels as CUDA C++ (a text, for gpu.h) and in C for one core of a CPU. c = x; c = 3 x + c; c = x y, n x n
 * matrices, naive and in tiles; and, on the GPU alone, c = x after n rounds of x / 2 + 1. */
#ifndef KERNELS_H
#define KERNELS_H
#include "gpu.h"
#include <stdint.h>

enum { COPY, SUM, NAIVE, TILED, KERNELS };
static const char *const kernel_names[KERNELS] = {"copy", "scaled_sum", "naive", "tiled"};
static const int kernel_each[KERNELS] = {1024, 1024, 256, 64 * 64}; /* elements that a block of 256 threads makes */

typedef struct kernel_arguments {
    gpu_address c, x, y;
    int64_t n;
} kernel_arguments;

/* A block of `tiled` has 16 columns of x and 16 rows of y in shared memory at a time. */
#define KERNEL_TEXT(...) #__VA_ARGS__ "\n"
static const char kernel_text[] = KERNEL_TEXT(
typedef struct arguments { float *c; const float *x; const float *y; long long n; } arguments;
)KERNEL_TEXT(
extern "C" __global__ void copy(const arguments a)
{
    const long long at = 1024LL * blockIdx.x + threadIdx.x;
    float u[4]; /* four loads are on their way at the same time */
    for (int i = 0; i < 4; i++) u[i] = a.x[at + 256 * i];
    for (int i = 0; i < 4; i++) a.c[at + 256 * i] = u[i];
}
)KERNEL_TEXT(
extern "C" __global__ void scaled_sum(const arguments a)
{
    const long long at = 1024LL * blockIdx.x + threadIdx.x;
    float u[4];
    float v[4];
    for (int i = 0; i < 4; i++) u[i] = a.x[at + 256 * i];
    for (int i = 0; i < 4; i++) v[i] = a.c[at + 256 * i];
    for (int i = 0; i < 4; i++) a.c[at + 256 * i] = 3.0f * u[i] + v[i];
}
)KERNEL_TEXT(
extern "C" __global__ void naive(const arguments a)
{
    const long long at = 256LL * blockIdx.x + threadIdx.x;
    const long long row = at / a.n;
    const long long column = at % a.n;
    float sum = 0.0f;
    for (long long p = 0; p < a.n; p++) sum += a.x[row * a.n + p] * a.y[p * a.n + column];
    a.c[at] = sum;
}
)KERNEL_TEXT(
extern "C" __global__ void tiled(const arguments a)
{
    __shared__ float s[1040]; /* 16 x 65, the tile of x turned; the 65th number is there for the banks */
    __shared__ float r[1024]; /* 16 x 64, the tile of y */
    const int t = (int)threadIdx.x;
    const int i0 = t / 16;
    const int j0 = t % 16;
    const long long row = blockIdx.x / (a.n / 64) * 64;
    const long long column = blockIdx.x % (a.n / 64) * 64;
    float sum[4][4] = {};
    for (long long p = 0; p < a.n; p += 16) {
        for (int i = t; i < 1024; i += 256) s[i % 16 * 65 + i / 16] = a.x[(row + i / 16) * a.n + p + i % 16];
        for (int i = t; i < 1024; i += 256) r[i] = a.y[(p + i / 64) * a.n + column + i % 64];
        __syncthreads();
        for (int k = 0; k < 16; k++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sum[i][j] += s[k * 65 + i0 + 16 * i] * r[k * 64 + j0 + 16 * j];
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) a.c[(row + i0 + 16 * i) * a.n + column + j0 + 16 * j] = sum[i][j];
}
)KERNEL_TEXT(
extern "C" __global__ void rounds(const arguments a)
{
    const long long at = 256LL * blockIdx.x + threadIdx.x;
    float u = a.x[at];
    for (long long i = 0; i < a.n; i++) u = 0.5f * u + 1.0f;
    a.c[at] = u;
}
);

/* ---- the same on one core ---- */

typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
#define KERNEL_INLINE static inline __attribute__((always_inline))

/* 4 rows and 16 columns of c stay in registers. */
KERNEL_INLINE void kernel_tiled_body(float *c, const float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += 4)
        for (int64_t j = 0; j < n; j += 16) {
            const float *row = x + i * n;
            eight s00 = {0}, s01 = s00, s10 = s00, s11 = s00, s20 = s00, s21 = s00, s30 = s00, s31 = s00;
            for (int64_t p = 0; p < n; p++) {
                const eight u = *(const eight *)(y + p * n + j), v = *(const eight *)(y + p * n + j + 8);
                s00 += row[p] * u, s01 += row[p] * v, s10 += row[n + p] * u, s11 += row[n + p] * v;
                s20 += row[2 * n + p] * u, s21 += row[2 * n + p] * v;
                s30 += row[3 * n + p] * u, s31 += row[3 * n + p] * v;
            }
            eight *to = (eight *)(c + i * n + j);
            to[0] = s00, to[1] = s01;
            to = (eight *)(c + (i + 1) * n + j), to[0] = s10, to[1] = s11;
            to = (eight *)(c + (i + 2) * n + j), to[0] = s20, to[1] = s21;
            to = (eight *)(c + (i + 3) * n + j), to[0] = s30, to[1] = s31;
        }
}
/* 160 n FLOPs in registers alone: what the lanes can do. */
KERNEL_INLINE float kernel_peak_body(int64_t n, float scale)
{
    const eight m = {scale, scale, scale, scale, scale, scale, scale, scale};
    eight a = m, b = a + m, c = b + m, d = c + m, e = d + m, f = e + m, g = f + m, h = g + m, i = h + m, j = i + m;
    for (; n > 0; n--) {
        a = a * m + m, b = b * m + m, c = c * m + m, d = d * m + m, e = e * m + m;
        f = f * m + m, g = g * m + m, h = h * m + m, i = i * m + m, j = j * m + m;
    }
    a += b + c + d + e + f + g + h + i + j;
    return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}
#ifdef __x86_64__
#define KERNEL_WIDE __attribute__((target("avx2,fma"))) static inline
KERNEL_WIDE void kernel_tiled_wide(float *c, const float *x, const float *y, int64_t n)
{
    kernel_tiled_body(c, x, y, n);
}
KERNEL_WIDE float kernel_peak_wide(int64_t n, float x)
{
    return kernel_peak_body(n, x);
}
static inline int kernel_wide(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif

static inline void cpu_run(int kernel, float *c, const float *x, const float *y, int64_t n, int64_t length)
{
    if (kernel == COPY) memcpy(c, x, (size_t)length * sizeof *c);
    for (int64_t i = 0; i < length && kernel == SUM; i++) c[i] = 3.0f * x[i] + c[i];
    for (int64_t at = 0; at < n * n && kernel == NAIVE; at++) {
        float sum = 0.0f;
        for (int64_t p = 0; p < n; p++) sum += x[at / n * n + p] * y[p * n + at % n];
        c[at] = sum;
    }
    if (kernel != TILED) return;
#ifdef __x86_64__
    if (kernel_wide()) kernel_tiled_wide(c, x, y, n);
    else
#endif
        kernel_tiled_body(c, x, y, n);
}
static inline float cpu_peak(int64_t n, float x)
{
#ifdef __x86_64__
    if (kernel_wide()) return kernel_peak_wide(n, x);
#endif
    return kernel_peak_body(n, x);
}
#endif
