/* 24_link: what is a link worth if it is ten times as good?
 *
 * What you learn
 *     - Two emulated links between two nodes: 10 MB/s with 4 ms per message, like a plain network, and 100 MB/s with
 *       0.4 ms, like a network card made for this (EFA, InfiniBand). Real links are about a thousand times faster, in
 *       the same ratio.
 *     - An all-reduce of S bytes takes about alpha + beta S. If both numbers are a tenth, so is the time of every size.
 *     - With ten times the bandwidth alone, large buckets gain tenfold and small ones nothing. The half-speed size
 *       alpha / beta separates them, and it grows with the bandwidth: faster links need larger buckets.
 *     - "EFA makes all-reduce N times faster" says nothing without a size. Fusing small tensors can gain more than a
 *       better network.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 24_link.c -o 24_link -lm -lpthread
 *     ./24_link --ranks 2                       (each rank is a node)
 *
 * What it prints (ms, measured, marked by ~, and predicted; emulated links overlap alpha and beta, and take less)
 *          bytes                       network                    10x better                 10x bandwidth
 *          65536       ~8.07 (   14.55)  ~1.0x       ~0.85 (    1.46)  ~9.5x       ~8.04 (    8.66)  ~1.0x
 *        1048576     ~105.10 (  112.86)  ~1.0x      ~10.70 (   11.29)  ~9.8x      ~10.83 (   18.49)  ~9.7x
 *     half-speed size                 80 kB                         80 kB                        800 kB
 *     64 tensors of 16 kB: 64 calls, fused 1
 *            network:  ~635.21 ms one by one,  ~105.20 fused: ~6.0 times faster
 *      10x bandwidth:  ~572.38 ms one by one,   ~12.11 fused: ~47.3 times faster
 *     ok: 45 all-reduces have the right sums; fused, 64 tensors are 1 call
 *
 * Predict first: with ten times the bandwidth alone, which sizes of the first column gain more than 5x?
 * Exercise: fuse into buckets of 64 kB instead of one. How many calls, and how much of the gain is left on each link?
 *
 * Read on: 23_race.c for algorithms, 35_overlap.c for hiding the rest. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINKS = 3, SIZES = 5, TENSORS = 64, SMALL = 4096 };
static const char *const names[LINKS] = {"network", "10x better", "10x bandwidth"};
static const double rate[LINKS] = {10e6, 100e6, 100e6}, delay[LINKS] = {4e-3, 0.4e-3, 4e-3};
static const int64_t sizes[SIZES] = {4096, 16384, 65536, 262144, 1048576}; /* floats */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Milliseconds of an all-reduce: the least of three, of the slower rank. */
static dt_result sum_time(dt_comm *c, float *data, int64_t count, int *wrong, double *ms)
{
    dt_result e = DT_OK;
    float least = 0;
    for (int k = 0; k < 3 && !e; k++) {
        float time;
        double start;
        for (int64_t i = 0; i < count; i++) data[i] = 1.0f;
        e = dt_barrier(c);
        start = now();
        if (!e) e = dt_all_reduce(c, data, count, DT_SUM);
        time = (float)((now() - start) * 1e3);
        for (int64_t i = 0; i < count; i++) *wrong += data[i] != (float)dt_comm_size(c);
        if (!e) e = dt_all_reduce(c, &time, 1, DT_MAX);
        if (k == 0 || time < least) least = time;
    }
    *ms = (double)least;
    return e;
}

/* The sum of many small tensors: one call each, or one call for a buffer into which all of them are packed. */
static dt_result tensors_time(dt_comm *c, float *tensors, float *buffer, int64_t *calls, double *ms)
{
    int64_t count = buffer ? TENSORS * SMALL : SMALL;
    double start;
    dt_result e = dt_barrier(c);
    start = now();
    if (buffer) memcpy(buffer, tensors, TENSORS * SMALL * sizeof *buffer);
    for (*calls = 0; *calls * count < TENSORS * SMALL && !e; ++*calls)
        e = dt_all_reduce(c, (buffer ? buffer : tensors) + *calls * count, count, DT_SUM);
    if (buffer) memcpy(tensors, buffer, TENSORS * SMALL * sizeof *buffer);
    *ms = (now() - start) * 1e3;
    return e;
}

int main(int argc, char **argv)
{
    static double ms[LINKS][SIZES], one[LINKS], fused[LINKS];
    int64_t calls[2] = {0, 0};
    float *data = (float *)malloc((size_t)sizes[SIZES - 1] * sizeof *data);
    int wrong = 0, root = 0, n = 1;
    char text[32];
    dt_result e = dt_launch(&argc, &argv);
    if (!e && argc > 1) return fprintf(stderr, "24_link: the option is --ranks N\n"), 2;
    for (int l = 0; l < LINKS && !e && data; l++) { /* the link is that of a communicator's opening */
        dt_comm *c = NULL;
        snprintf(text, sizeof text, "%g", rate[l]), setenv("DT_LINK_RATE", text, 1);
        snprintf(text, sizeof text, "%g", delay[l]), setenv("DT_LINK_DELAY", text, 1);
        setenv("DT_NODES", "1024", 1); /* each rank its own node */
        e = dt_comm_open(&c, NULL, NULL);
        if (!e) root = dt_comm_rank(c) == 0, n = dt_comm_size(c);
        if (!e && n < 2)
            return dt_comm_close(&c), fprintf(stderr, "24_link: one rank sends nothing: use --ranks 2 or more\n"), 2;
        for (int k = 0; k < SIZES && !e; k++) e = sum_time(c, data, sizes[k], &wrong, &ms[l][k]);
        if (!e) e = tensors_time(c, data, NULL, &calls[0], &one[l]);
        if (!e) e = tensors_time(c, data, data + TENSORS * SMALL, &calls[1], &fused[l]);
        dt_comm_close(&c);
    }
    free(data);
    if (e) return dt_fail("24_link");
    if (root) {
        printf("all-reduce between %d nodes: ms measured (predicted: alpha + beta S), times as fast as the first link\n"
               "%10s", n, "bytes");
        for (int l = 0; l < LINKS; l++) printf("%30s", names[l]);
        for (int k = 0; k < SIZES; k++) {
            printf("\n%10lld", (long long)(4 * sizes[k]));
            for (int l = 0; l < LINKS; l++) {
                double s = 2.0 * (n - 1) / n * 4 * (double)sizes[k];
                printf("%12.2f (%8.2f) %5.1fx", ms[l][k], (2 * delay[l] + s / rate[l]) * 1e3, ms[0][k] / ms[l][k]);
            }
        }
        printf("\nhalf-speed size ");
        for (int l = 0; l < LINKS; l++) printf("%18.0f kB         ", 2 * delay[l] * rate[l] / 1e3);
        printf("\n\n%d tensors of %d kB: %lld calls, fused %lld\n", TENSORS, SMALL * 4 / 1024, (long long)calls[0],
               (long long)calls[1]);
        for (int l = 0; l < LINKS; l++)
            printf("%14s: %8.2f ms one by one, %8.2f fused: %4.1f times faster\n", names[l], one[l], fused[l],
                   one[l] / fused[l]);
    }
    if (calls[0] != TENSORS || calls[1] != 1) wrong++;
    if (wrong) return fprintf(stderr, "FAILED: %d sums or counts are wrong\n", wrong), 1;
    if (root) printf("ok: %d all-reduces have the right sums; fused, %d tensors are %lld call\n", LINKS * SIZES * 3,
                     TENSORS, (long long)calls[1]);
    return 0;
}
