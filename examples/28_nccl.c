/* 28_nccl: how do GPUs add up their numbers, and what happens when a rank is gone?
 *
 * What you learn
 *     - NCCL is to GPUs what MPI is to processes. Each call only queues work on a stream of the GPU and returns, so a
 *       failure shows later, when somebody waits. A rank that does not come leaves the other GPUs spinning, which a
 *       monitor shows as full use.
 *     - Who waits must look around: dt_nccl_wait asks NCCL for errors (ncclCommGetAsyncError) and the communicator for
 *       dead ranks (dt_comm_alive), and aborts NCCL when it finds one or DT_TIMEOUT seconds are over. Then
 *       dt_comm_fail tells the peers why: any device or library that ranks wait for can be watched so (dt_nccl.h).
 *     - Ranks find each other by an id that one makes and all others need before NCCL can talk. Here the communicator
 *       carries it, over shared memory, MPI or libfabric.
 *     - NCCL adds in an order of its own, so its last bits are not those of dt_all_reduce. Its "bus bandwidth" is data
 *       per second times 2(n-1)/n: that compares with the speed of the link for any n (23_race.c).
 *     - NCCL refuses two ranks on one GPU. With --one-gpu each rank gives its machine another name (NCCL_HOSTID); they
 *       then talk over a network interface.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 28_nccl.c -o 28_nccl -lm -lpthread
 *     ./28_nccl --ranks 2                       (a GPU for each; on machines without one it says what is missing)
 *
 * What it prints (on a machine without GPUs, after what is missing; with GPUs a table of sizes)
 *     ok: no sum on GPUs here
 *
 * Predict first: without a GPU, which sentence does the program print, and with which exit status does it end?
 * Exercise: kill one rank while the others wait. After how many seconds do they end, and what do they say?
 *
 * Read on: 30_drop_in.c for a training loop that uses such sums, 31_data_parallel.c for what they are for. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "dt_nccl.h"
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LARGEST = 1 << 22, ROUNDS = 10 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A CUDA program has cudaMalloc and cudaMemcpy. This one compiles without CUDA: it asks the driver for its own. */
typedef struct gpu {
    int (*allocate)(uintptr_t *, size_t);
    int (*put)(uintptr_t, const void *, size_t);
    int (*get)(void *, uintptr_t, size_t);
    uintptr_t memory;
} gpu;

static int gpu_open(gpu *g, size_t bytes)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *f[3] = {NULL, NULL, NULL};
    static const char *const names[3] = {"cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2"};
    for (int i = 0; driver && i < 3; i++)
        if (!(f[i] = dlsym(driver, names[i]))) return 0;
    memcpy(&g->allocate, &f[0], sizeof f[0]);
    memcpy(&g->put, &f[1], sizeof f[1]);
    memcpy(&g->get, &f[2], sizeof f[2]);
    return f[0] && !g->allocate(&g->memory, bytes);
}

/* One size: the seconds of a sum, and how far it is from the exact one. */
static dt_result measure(dt_comm *c, dt_nccl *n, gpu *g, float *x, float *sum, int64_t count, double *seconds,
                         double *error)
{
    float *there = NULL;
    dt_result r = DT_OK;
    memcpy(&there, &g->memory, sizeof there);
    *seconds = 1e9, *error = 0.0;
    for (int64_t i = 0; i < count; i++) x[i] = (float)((i * 37 + dt_comm_rank(c) * 11) % 1009) / 1009.0f;
    for (int k = 0; k < ROUNDS && !r; k++) {
        double begin;
        if (g->put(g->memory, x, (size_t)count * 4)) return DT_E_SYSTEM;
        r = dt_barrier(c);
        begin = now();
        if (!r) r = dt_nccl_collect(n, DT_ALL_REDUCE, there, there, count, DT_SUM, NULL);
        if (!r) r = dt_nccl_wait(n, NULL);
        if (now() - begin < *seconds) *seconds = now() - begin;
    }
    if (!r && g->get(sum, g->memory, (size_t)count * 4)) return DT_E_SYSTEM;
    if (!r) r = dt_all_reduce(c, x, count, DT_SUM); /* exact, in the CPU's memory */
    for (int64_t i = 0; i < count && !r; i++)
        *error = fmax(*error, fabs((double)(sum[i] - x[i])) / (1e-30 + fabs((double)x[i])));
    return r;
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    dt_nccl *n = NULL;
    gpu g;
    char name[16];
    int ranks, wrong = 0, one_gpu;
    double worst = 0.0;
    float *x = malloc(LARGEST * sizeof *x), *sum = malloc(LARGEST * sizeof *sum);
    dt_result r = x && sum ? dt_comm_open(&c, &argc, &argv) : DT_E_MEMORY;
    if (r) return dt_fail("28_nccl");
    ranks = dt_comm_size(c);
    one_gpu = argc > 1 && !strcmp(argv[1], "--one-gpu");
    snprintf(name, sizeof name, "rank-%d", dt_comm_rank(c));
    if (one_gpu) setenv("NCCL_HOSTID", name, 1);
    if (dt_nccl_open(&n, c, one_gpu ? 0 : -1)) {
        if (dt_comm_rank(c) == 0) printf("%s\nok: no sum on GPUs here\n", dt_last_error());
        dt_comm_close(&c);
        free(x), free(sum);
        return 0;
    }
    if (!gpu_open(&g, LARGEST * sizeof *x)) r = DT_E_SYSTEM;
    for (int64_t count = 1 << 8; count <= LARGEST && !r; count *= 8) {
        double seconds, error;
        r = measure(c, n, &g, x, sum, count, &seconds, &error);
        worst = fmax(worst, error);
        if (!r && dt_comm_rank(c) == 0) {
            double algbw = 4e-9 * (double)count / seconds;
            printf("%10lld B %10.1f us   algbw %8.2f GB/s   busbw %8.2f GB/s   off by %.1e\n", (long long)count * 4,
                   seconds * 1e6, algbw, algbw * 2 * (ranks - 1) / ranks, error);
        }
    }
    wrong = r || worst > 1e-5;
    if (!r && dt_comm_rank(c) == 0)
        printf(wrong ? "the sums differ by %.1e\n" : "ok: as dt_all_reduce, to %.1e\n", worst);
    dt_nccl_close(&n);
    dt_comm_close(&c);
    free(x), free(sum);
    return r ? dt_fail("28_nccl") : wrong;
}
