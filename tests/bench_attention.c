/* exact attention: GFLOP/s (matrix work of existing terms only) against this machine's sgemm at 512^3, interleaved. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <cblas.h>
#include <math.h>
extern void openblas_set_num_threads(int n);

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
    static const int64_t shapes[][4] = {{4, 64, 12, 64},   {1, 256, 6, 64},  {8, 256, 6, 64}, {1, 512, 12, 64},
                                        {1, 1024, 12, 64}, {1, 256, 6, 128}, {1, 256, 12, 32}};
    int threads = argc > 1 ? atoi(argv[1]) : 1, rounds = argc > 2 ? atoi(argv[2]) : 3;
    int use_avx2 = argc > 3 && atoi(argv[3]) == 1;
    dt_pool *pool = NULL;
    float *x = (float *)dt__alloc(512 * 512 * 4, "x"), *z = (float *)dt__alloc(512 * 512 * 4, "z");
    dt__pool_open(&pool, threads);
    openblas_set_num_threads(threads);
    dt__fp_enter();
    for (int i = 0; i < 512 * 512; i++) x[i] = (float)(i % 7);
    printf("%3s %5s %3s %4s %7s %8s | %9s %9s %9s | %8s %8s   (GFLOP/s, %d thread%s)\n", "b", "t", "h", "d", "causal",
           "dropout", "forward", "backward", "sgemm", "fwd/blas", "bwd/blas", threads, threads > 1 ? "s" : "");
    for (int s = 0; s < 7; s++) {
        for (int v = 0; v < 3; v++) {
            int64_t b = shapes[s][0], t = shapes[s][1], h = shapes[s][2], d = shapes[s][3], C = h * d;
            float *qkv = (float *)dt__alloc(b * t * 3 * C * 4, "q"), *dqkv = (float *)dt__alloc(b * t * 3 * C * 4, "q"),
                  *o = (float *)dt__alloc(b * t * C * 4, "q");
            float *g = (float *)dt__alloc(b * t * C * 4, "q"), *m = (float *)dt__alloc(b * t * h * 4, "q"),
                  *l = (float *)dt__alloc(b * t * h * 4, "q");
            double f[99], w[99], r[99], rf[99], rb[99];
            dt__rng rng[8];
            dt__attention a;
            double unit = 2.0 * (double)(b * h * d) * (v ? 0.5 * (double)(t * (t + 1)) : (double)(t * t));
            int reps = (int)(5e8 / unit) + 1;
            memset(&a, 0, sizeof a), memset(rng, 0, sizeof rng);
            for (int64_t i = 0; i < b * t * 3 * C; i++) qkv[i] = sinf((float)i * 0.37f);
            for (int64_t i = 0; i < b * t * C; i++) g[i] = cosf((float)i * 0.73f);
            a.b = b, a.t = a.s = a.room = t, a.h = a.hk = h, a.d = d, a.q = qkv, a.k = qkv + C, a.v = qkv + 2 * C,
            a.ld = a.ldk = 3 * C, a.ldo = C,
            a.o = o, a.row_max = m, a.row_sum = l;
            a.scale = 1.0f / sqrtf((float)d), a.causal = v > 0, a.rng = rng, a.lddo = C, a.lddq = a.lddk = 3 * C,
            a.dq = dqkv, a.dk = dqkv + C, a.dv = dqkv + 2 * C;
            if (v == 2) a.drop_threshold = 429496730u, a.drop_scale = 1.0f / 0.9f;
            dt__pool_reserve(pool, dt__attention_scratch_avx512(t, d));
            dt__pool_reserve(pool, dt__attention_scratch_avx2(t, d));
            for (int i = -1; i < rounds; i++) {
                double t0 = dt__now(), t1, t2, t3;
                a.dout = NULL;
                for (int e = 0; e < reps; e++)
                    use_avx2 ? dt__attention_avx2(pool, &a) : dt__attention_avx512(pool, &a);
                a.dout = g;
                t1 = dt__now();
                for (int e = 0; e < reps; e++)
                    use_avx2 ? dt__attention_avx2(pool, &a) : dt__attention_avx512(pool, &a);
                t2 = dt__now();
                for (int e = 0; e < 8; e++)
                    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 512, 512, 512, 1.0f, x, 512, x, 512, 0.0f, z,
                                512);
                t3 = dt__now();
                if (i < 0) continue;
                f[i] = 2 * unit * reps / (t1 - t0) * 1e-9, w[i] = 5 * unit * reps / (t2 - t1) * 1e-9,
                r[i] = 8 * 2.0 * 512 * 512 * 512 / (t3 - t2) * 1e-9;
                rf[i] = f[i] / r[i], rb[i] = w[i] / r[i];
            }
            printf("%3d %5d %3d %4d %7s %8s | %9.1f %9.1f %9.1f | %8.2f %8.2f\n", (int)b, (int)t, (int)h, (int)d,
                   v ? "yes" : "no", v == 2 ? "yes" : "no", median(f, rounds), median(w, rounds), median(r, rounds),
                   median(rf, rounds), median(rb, rounds));
            fflush(stdout);
            dt__free(qkv), dt__free(dqkv), dt__free(o), dt__free(g), dt__free(m), dt__free(l);
        }
    }
    dt__pool_close(&pool);
    return 0;
}
