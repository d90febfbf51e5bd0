/* 100_roofline: how fast can a kernel be, and how fast is this one? The two ceilings of a processor, by hand.
 *
 * What you learn
 *     - A kernel moves bytes and computes FLOPs. Memory has a rate of bytes per second, lanes have a rate of FLOPs: the
 *       longer of the two times is the bound. The quotient of the rates is the ridge, in FLOPs per byte. Kernels below
 *       it wait for memory, however many lanes there are.
 *     - Copies and sums are far below every ridge, so only fewer bytes make them faster (48_fusion.c). A product of
 *       n x n matrices that reads each of them once has n/6 FLOPs per byte, far above.
 *     - Read for each multiplication, both factors are 4 bytes per FLOP. Tiles that stay in shared memory and in
 *       registers divide that. Both products have one bound, and only the one in tiles comes near it.
 *     - Tensor cores raise the ceiling of FLOPs, not that of bytes. The ridge moves to the right, and more kernels wait
 *       for memory: a product with a single row, as generation makes them, uses 0.4 % of an H200's tensor cores.
 *     - CUDA is not needed to compile this: the program loads driver and compiler when it runs (gpu.h).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 100_roofline.c -o 100_roofline -lm -lpthread -ldl
 *     ./100_roofline                            (on a GPU; where none is found, on one core, and it says why)
 *     The side of the matrices, a multiple of 64: ./100_roofline 1024. The GPU's kernels: ./100_roofline --kernels
 *
 * What it prints (~: measured; the last lines compute with what an NVIDIA H200 has measured)
 *     ceilings: copies ~5.6 GB/s, ~115.1 GFLOP/s, ridge ~20.7 FLOP/byte
 *                         FLOP/byte  as it asks  bound, us   time, us
 *     copy                    0.000       0.000     ~27116     ~27116
 *     c = 3 x + c             0.167       0.167     ~40673     ~40425
 *     product, naive        ~64.000       0.250       ~984    ~324181
 *     product, in tiles     ~64.000      ~1.600       ~984      ~1947
 *     H200: copies 4209 GB/s, measured; lanes 67 TFLOP/s, tensor cores 989, data sheet: ridges 15.9 and 235.0
 *       c = 3 x + c           0.2 FLOP/byte, at most  0.7 TFLOP/s
 *       8192 x 50257 x 768  346.2 FLOP/byte, at most 67.0 TFLOP/s; the exact kernel 39.6, 59 %
 *       one row, in bf16      1.0 FLOP/byte, at most  4.2 TFLOP/s, 0.4 % of the tensor cores
 *     ok: 4 kernels give the exact results; in tiles ~170.5 times as fast as naive
 *
 * Predict first: in 16 bits, how many times as fast is c = 3 x + c, and how many times a product of 4096 x 4096?
 * Exercise: a model that writes r texts at once makes products with r rows. From which r on do an H200's tensor cores,
 *     and not its memory, limit a product with 4096 x 4096 weights in bf16? What share of them do 1 and 64 rows use?
 *
 * Read on: 101_exact_or_fast.c for the price of tensor cores, 102_copy_and_compute.c for bytes between host and GPU. */
#include "kernels.h"
#include <math.h>

typedef struct machine {
    gpu g;
    int is_gpu;
    int64_t n, length; /* sides of matrices; elements of c and x */
    float *host[3];    /* c, x, y */
    kernel_arguments on;
} machine;

/* Memory, with whole numbers in it, so that sums in any order are exact. Not 0: there is not enough. */
static int open_machine(machine *m, int64_t n)
{
    m->is_gpu = !gpu_open(&m->g, kernel_text);
    printf(m->is_gpu ? "%s computes\n" : "no GPU, so one core of the CPU: %s\n", m->is_gpu ? m->g.name : m->g.why);
    m->n = n ? n : m->is_gpu ? 2048 : 384, m->length = 128 * m->n * m->n;
    for (int i = 0; i < 3; i++) {
        const int64_t count = i == 2 || m->is_gpu ? m->n * m->n : m->length;
        if (!(m->host[i] = malloc((size_t)count * sizeof(float)))) return 1;
        for (int64_t k = 0; k < count; k++) m->host[i][k] = (float)((k * 7 + k / m->n * i) % 5 - 2);
    }
    if (!m->is_gpu) return 0;
    m->on.n = m->n, m->on.c = gpu_memory(&m->g, (size_t)m->length * 4);
    m->on.x = gpu_memory(&m->g, (size_t)m->length * 4), m->on.y = gpu_memory(&m->g, (size_t)(m->n * m->n) * 4);
    gpu_fill(&m->g, 0, m->on.x, 1, (size_t)m->length);
    gpu_put(&m->g, 0, m->on.x, m->host[1], (size_t)(m->n * m->n) * 4);
    gpu_put(&m->g, 0, m->on.y, m->host[2], (size_t)(m->n * m->n) * 4);
    return gpu_wait(&m->g);
}

/* The seconds of a kernel, the shortest of five. */
static double seconds(machine *m, int kernel)
{
    const int64_t blocks = (kernel < NAIVE ? m->length : m->n * m->n) / kernel_each[kernel];
    void *f = m->is_gpu ? gpu_kernel(&m->g, kernel_names[kernel]) : NULL;
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        double start = gpu_now();
        if (m->is_gpu) gpu_launch(&m->g, 0, f, blocks, 256, &m->on), gpu_wait(&m->g);
        else cpu_run(kernel, m->host[0], m->host[1], m->host[2], m->n, m->length);
        best = fmin(best, gpu_now() - start);
    }
    if (m->is_gpu) gpu_get(&m->g, 0, m->host[0], m->on.c, (size_t)(m->n * m->n) * 4), gpu_wait(&m->g);
    return best;
}

/* Are some elements of c what they should be? */
static int right(const machine *m, int kernel)
{
    const float *c = m->host[0], *x = m->host[1], *y = m->host[2];
    for (int64_t at = 0; at < m->n * m->n; at += 997) {
        float want = kernel == COPY ? x[at] : kernel == SUM ? 16 * x[at] : 0.0f; /* x, and 3 x five times */
        for (int64_t p = 0; p < m->n && kernel >= NAIVE; p++) want += x[at / m->n * m->n + p] * y[p * m->n + at % m->n];
        if (c[at] != want) return 0;
    }
    return 1;
}

static int measure(machine *m, double *gain) /* of the product in tiles */
{
    static const char *const what[KERNELS] = {"copy", "c = 3 x + c", "product, naive", "product, in tiles"};
    const double n = (double)m->n, size = (double)m->length, flop[] = {0, 2 * size, 2 * n * n * n, 2 * n * n * n};
    const double bytes[] = {8 * size, 12 * size, 12 * n * n, 12 * n * n};
    const double asked[] = {0, 1.0 / 6, 0.25, m->is_gpu ? 16 : 1.6}; /* FLOPs per byte of the instructions that read */
    double time[KERNELS], rate, flops = m->is_gpu ? 2.0 * m->g.processors * m->g.lanes * m->g.hertz : 0;
    int good = 1;
    for (int i = 0; i < 5 && !m->is_gpu; i++) {
        double start = gpu_now();
        good = cpu_peak(200000, 0.5f) > 0, flops = fmax(flops, 32e6 / (gpu_now() - start));
    }
    for (int k = 0; k < KERNELS; k++) time[k] = seconds(m, k), good = right(m, k) && good;
    if (m->is_gpu && m->g.failed) return fprintf(stderr, "100_roofline: %s\n", m->g.why), 0;
    rate = bytes[COPY] / time[COPY];
    printf("ceilings: copies %.1f GB/s, %.1f GFLOP/s, ridge %.1f FLOP/byte\n", 1e-9 * rate, 1e-9 * flops, flops / rate);
    printf("                    FLOP/byte  as it asks  bound, us   time, us\n");
    for (int k = 0; k < KERNELS; k++)
        printf("%-18s %10.3f %11.3f %10.0f %10.0f\n", what[k], flop[k] / bytes[k], asked[k],
               1e6 * fmax(bytes[k] / rate, flop[k] / flops), 1e6 * time[k]);
    return *gain = time[NAIVE] / time[TILED], good && (*gain > 1 || n < 256);
}

/* The same for an H200 (4209 GB/s and the last arguments are measured): a product of a GPT-2. */
static int product(const char *name, double rows, double columns, double depth, double measured)
{
    double each = rows * columns * depth / (2 * (rows * columns + columns * depth + rows * depth));
    double most = fmin(67, each * 4.209);
    printf("  %-18s  %5.1f FLOP/byte, at most %4.1f TFLOP/s; the exact kernel %.1f, %.0f %%\n", name, each, most,
           measured, 100 * measured / most);
    return most > measured;
}

int main(int argc, char **argv)
{
    static machine m;
    double gain = 0;
    int good, n = argc > 1 ? atoi(argv[1]) : 0;
    if (argc == 2 && !strcmp(argv[1], "--kernels")) return printf("%s", kernel_text), 0;
    if (argc > 2 || (argc > 1 && (n < 64 || n > 8192 || n % 64)))
        return fprintf(stderr, "100_roofline: a side of the matrices, a multiple of 64 up to 8192, or --kernels\n"), 2;
    if (open_machine(&m, n)) return fprintf(stderr, "100_roofline: too little memory. %s\n", m.g.why), 1;
    good = measure(&m, &gain);
    if (m.is_gpu) gpu_close(&m.g);
    for (int i = 0; i < 3; i++) free(m.host[i]);
    printf("H200: copies 4209 GB/s, measured; lanes 67 TFLOP/s, tensor cores 989, data sheet: ridges %.1f and %.1f\n",
           67 / 4.209, 989 / 4.209);
    printf("  c = 3 x + c           0.2 FLOP/byte, at most %4.1f TFLOP/s\n", 4.209 / 6);
    good = product("8192 x 2304 x 768", 8192, 2304, 768, 35.0) && good;
    good = product("8192 x 50257 x 768", 8192, 50257, 768, 39.6) && good;
    printf("  one row, in bf16      1.0 FLOP/byte, at most  4.2 TFLOP/s, %.1f %% of the tensor cores\n", 420.9 / 989);
    if (!good) return fprintf(stderr, "FAILED: a result or a bound is wrong\n"), 1;
    return printf("ok: %d kernels give the exact results; in tiles %.1f times as fast as naive\n", KERNELS, gain), 0;
}
