/* Products of fast numerics on a GPU: how far they are from doubles, and how fast.
 *
 *     cc -O2 -DDT_CUDA -I. tests/gpu_fast.c -o gpu_fast -lm -lpthread -ldl && ./gpu_fast
 *
 * Prints a row per product and ends with "ok", or says what is wrong. `./gpu_fast speed` times large ones instead. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

static const dt__kernels *k;

/* n numbers in [-1, 1), which a 16-bit type can hold, on the device, and their copy on the host. */
static float *numbers(int64_t n, uint32_t seed, int type, float **host)
{
    float *x = *host = (float *)dt__alloc(4 * n, "numbers");
    uint16_t half;
    for (int64_t i = 0; x && i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed / 2147483648.0f;
        if (type) k->convert(type, &half, DT_F32, &x[i], 1), k->convert(DT_F32, &x[i], type, &half, 1);
    }
    x = (float *)dt__mem_attach(k, DT__DEVICE, x, 4 * n);
    return x ? dt__upload(k, *host, n) : NULL;
}

/* One product: ta, tb say which operands are read transposed. Returns whether it is right. */
static int product(int dot, int64_t m, int64_t n, int64_t depth, int ta, int tb, int how, int timed)
{
    static const char *const names[] = {"tf32", "bf16", "fp16"};
    const int type = dot > DT__DOT_TF32 ? dot - DT__DOT_BF16 + DT_BF16 : 0;
    const int64_t sizes[4] = {m * depth, depth * n, m * n, n};
    float *host[4], *mem[4];
    double most = 0.0, off = 0.0, bound = dot == DT__DOT_TF32 ? 1e-3 : 1e-2, seconds = 1e30, start;
    dt__gemm g = DT__ZERO;
    for (int i = 0; i < 4; i++)
        if (!(mem[i] = numbers(sizes[i], 17u * (uint32_t)i + 1u, i < 2 ? type : 0, &host[i])))
            return printf("%s\n", dt_last_error()), 0;
    float *before = (float *)dt__copied(host[2], 4 * sizes[2]);
    g.m = m, g.n = n, g.k = depth, g.a = mem[0], g.b = mem[1], g.c = mem[2], g.ldc = n, g.dot = dot;
    g.ars = ta ? 1 : depth, g.acs = ta ? m : 1, g.brs = tb ? 1 : n, g.bcs = tb ? depth : 1;
    g.accumulate = how & 1, g.bias = how & 2 ? mem[3] : NULL, g.round = how & 4 ? type : 0;
    ((dt__cuda *)(void *)k->device)->run.gemm(NULL, &g);
    (void)dt__download(k, g.c, sizes[2]);
    for (int64_t at = 0, step = dt__max(1, sizes[2] / 1009); at < sizes[2]; at += step) { /* some of the elements */
        const int64_t i = at / n, j = at % n;
        double sum = (how & 1 ? (double)before[at] : 0.0) + (how & 2 ? (double)host[3][j] : 0.0);
        for (int64_t p = 0; p < depth; p++)
            sum += (double)host[0][i * g.ars + p * g.acs] * (double)host[1][p * g.brs + j * g.bcs];
        most = __builtin_fmax(most, __builtin_fabs(sum));
        off = __builtin_fmax(off, __builtin_fabs(sum - (double)host[2][at]));
    }
    for (int round = 0; round < 5 && timed; round++) {
        dt__device *d = k->device;
        dt__gpu_wait((dt__cuda *)(void *)d), start = dt__now();
        for (int i = 0; i < 10; i++) ((dt__cuda *)(void *)d)->run.gemm(NULL, &g);
        dt__gpu_wait((dt__cuda *)(void *)d);
        seconds = __builtin_fmin(seconds, (dt__now() - start) / 10.0);
    }
    printf("row\tproduct %s %jd x %jd x %jd %c%c%s%s%s\t", names[dot - DT__DOT_TF32], m, n, depth, ta ? 'T' : 'N',
           tb ? 'T' : 'N', how & 1 ? ", adds" : "", how & 2 ? ", bias" : "", how & 4 ? ", weight" : "");
    if (off > bound * most) printf("fail\toff by %.1e of the largest\n", off / most);
    else if (timed) printf("%.1f\tTFLOP/s\toff by %.1e of the largest\n", 2e-12 * (double)m * (double)n * (double)depth / seconds, off / most);
    else printf("ok\toff by %.1e of the largest\n", off / most);
    if (k->device->failed) printf("%s\n", k->device->why);
    for (int i = 0; i < 4; i++) dt__free(dt__mem_detach(k, mem[i]));
    dt__free(before);
    return off <= bound * most && !k->device->failed;
}

int main(int argc, char **argv)
{
    static const int64_t small[][3] = {{1, 1, 1},    {3, 5, 7},     {17, 33, 65}, {64, 64, 64},
                                       {50, 129, 8}, {96, 257, 31}, {1, 96, 48},  {40, 1, 72},  {1031, 1027, 9}};
    static const int64_t large[][3] = {{8192, 2304, 768}, {8192, 768, 768}, {8192, 3072, 768}, {8192, 768, 3072},
                                       {2048, 50304, 768}, {2048, 50257, 768}, {4096, 4096, 4096}};
    const int slow = argc > 1 && !strcmp(argv[1], "speed"); /* the large ones, timed */
    char why[200];
    int good = 1, kind;
    dt_result r = dt__choose_kernels(&k);
    if (!r) r = dt__choose_device(&k, "cuda", 0, why, sizeof why);
    if (r) return printf("%s\n", dt_last_error()), 1;
    if (!(kind = k->device->dot(k->device, 0))) return printf("%s\n", dt_last_error()), 1;
    printf("%s\n", k->device->name);
    for (int dot = DT__DOT_TF32; dot <= DT__DOT_FP16 && !slow; dot++)
        for (int i = 0; i < 9; i++)
            for (int how = 0; how < 4; how++) {
                const int64_t *s = small[i];
                good &= product(dot, s[0], s[1], s[2], how & 1, how >> 1, how | (i % 2 ? 4 : 0), 0);
            }
    for (int dot = DT__DOT_TF32; dot <= DT__DOT_BF16 && slow; dot++)
        for (int i = 0; i < 7; i++) {
            const int64_t *s = large[i];
            good &= product(dot, s[0], s[1], s[2], 0, 0, 4, 1);      /* forward */
            good &= product(dot, s[0], s[2], s[1], 0, 1, 4, 1);      /* dX: dy (m,n) by the weight turned */
            good &= product(dot, s[2], s[1], s[0], 1, 0, 1, 1);      /* dW: continues its sum */
        }
    k->device->close(k->device);
    printf("%s\n", good ? "ok" : "wrong");
    return !good;
}
