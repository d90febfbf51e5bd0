/* exact matrix product against OpenBLAS: median of ratios over interleaved rounds. cc -O2 bench_gemm.c -o bench_gemm
 * -lopenblas -lpthread -lm && OPENBLAS_NUM_THREADS=1 ./bench_gemm [threads] [rounds] [filter] */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <cblas.h>
extern void openblas_set_num_threads(int n);

typedef void (*run_fn)(dt_pool *pool, const dt__gemm *g);
typedef struct shape {
    const char *name;
    int64_t m, n, k;
    int ta, tb;
} shape;

static const shape shapes[] = {
    {"square", 512, 512, 512, 0, 0}, {"square", 1024, 1024, 1024, 0, 0}, {"square", 2048, 2048, 2048, 0, 0},
    {"forward", 256, 384, 384, 0, 0}, {"forward", 256, 1152, 384, 0, 0}, {"forward", 256, 1536, 384, 0, 0},
    {"forward", 256, 384, 1536, 0, 0}, {"forward", 256, 256, 384, 0, 0}, {"forward", 64, 768, 768, 0, 0},
    {"forward", 256, 768, 768, 0, 0}, {"forward", 256, 2304, 768, 0, 0}, {"forward", 256, 3072, 768, 0, 0},
    {"forward", 256, 768, 3072, 0, 0}, {"forward", 256, 50257, 768, 0, 0},
    {"dX", 256, 384, 384, 0, 1}, {"dX", 256, 384, 1152, 0, 1}, {"dX", 256, 384, 1536, 0, 1},
    {"dX", 256, 1536, 384, 0, 1}, {"dX", 256, 384, 256, 0, 1}, {"dX", 256, 768, 3072, 0, 1},
    {"dX", 256, 3072, 768, 0, 1}, {"dX", 256, 768, 50257, 0, 1},
    {"head tied", 256, 50257, 768, 0, 1},
    {"dW", 384, 384, 256, 1, 0}, {"dW", 384, 1152, 256, 1, 0}, {"dW", 384, 1536, 256, 1, 0},
    {"dW", 1536, 384, 256, 1, 0}, {"dW", 768, 3072, 256, 1, 0}, {"dW", 3072, 768, 256, 1, 0},
    {"dW", 768, 50257, 256, 1, 0}, {"decode", 1, 1536, 384, 0, 0}, {"decode", 1, 3072, 768, 0, 0},
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, compare);
    return x[n / 2];
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1, rounds = argc > 2 ? atoi(argv[2]) : 15;
    const char *filter = argc > 3 ? argv[3] : NULL;
    run_fn run = argc > 4 && atoi(argv[4]) == 1 ? dt__gemm_run_avx2 : dt__gemm_run_avx512;
    dt_pool *pool = NULL;
    double total[3] = {0, 0, 0};
    dt__pool_open(&pool, threads);
    dt__pool_reserve(pool, dt__max(dt__gemm_scratch_avx512(), dt__gemm_scratch_avx2()));
    openblas_set_num_threads(threads);
    dt__fp_enter();
    printf("%-10s %6s %6s %6s %9s %9s %7s   (GFLOP/s, %d thread%s, %d rounds)\n", "", "m", "n", "k", "exact",
           "openblas", "ratio", threads, threads > 1 ? "s" : "", rounds);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        shape h = shapes[s];
        double flop = 2.0 * (double)h.m * (double)h.n * (double)h.k, ours[99], blas[99], ratio[99];
        int reps = (int)dt__min(200000, dt__max(1, (int64_t)(6e8 * threads / flop)));
        float *a = (float *)dt__alloc(h.m * h.k * 4, "a"), *b = (float *)dt__alloc(h.k * h.n * 4, "b");
        float *c = (float *)dt__alloc(h.m * h.n * 4, "c"), *d = (float *)dt__alloc(h.m * h.n * 4, "d");
        dt__gemm g;
        int count = flop > 5e9 ? (int)dt__min(rounds, 5) : rounds;
        if (filter && strcmp(filter, h.name)) continue;
        for (int64_t i = 0; i < h.m * h.k; i++) a[i] = (float)(i * 7 % 13) - 6.0f;
        for (int64_t i = 0; i < h.n * h.k; i++) b[i] = (float)(i * 5 % 11) - 5.0f;
        memset(&g, 0, sizeof g);
        g.m = h.m, g.n = h.n, g.k = h.k, g.a = a, g.b = b, g.c = c, g.ldc = h.n;
        g.ars = h.ta ? 1 : h.k, g.acs = h.ta ? h.m : 1;
        g.brs = h.tb ? 1 : h.n, g.bcs = h.tb ? h.k : 1;
        for (int i = -1; i < count; i++) {
            double t0 = dt__now(), t1, t2;
            for (int r = 0; r < reps; r++) run(pool, &g);
            t1 = dt__now();
            for (int r = 0; r < reps; r++) {
                cblas_sgemm(CblasRowMajor, h.ta ? CblasTrans : CblasNoTrans, h.tb ? CblasTrans : CblasNoTrans, (int)h.m,
                            (int)h.n, (int)h.k, 1.0f, a, (int)(h.ta ? h.m : h.k), b, (int)(h.tb ? h.k : h.n), 0.0f, d,
                            (int)h.n);
            }
            t2 = dt__now();
            if (i < 0) continue;
            ours[i] = flop * reps / (t1 - t0) * 1e-9;
            blas[i] = flop * reps / (t2 - t1) * 1e-9;
            ratio[i] = ours[i] / blas[i];
        }
        /* small integers: both are exact below 2^24 */
        if (memcmp(c, d, (size_t)(h.m * h.n) * 4)) printf("(values differ) ");
        printf("%-10s %6d %6d %6d %9.1f %9.1f %7.2f\n", h.name, (int)h.m, (int)h.n, (int)h.k, median(ours, count),
               median(blas, count), median(ratio, count));
        fflush(stdout);
        total[0] += median(ratio, count), total[1] += 1;
        dt__free(a), dt__free(b), dt__free(c), dt__free(d);
    }
    printf("mean ratio %.3f\n", total[0] / total[1]);
    dt__pool_close(&pool);
    return 0;
}
