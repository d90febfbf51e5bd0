/* 102_copy_and_compute: when does copying between host and GPU cost nothing?
 *
 * What you learn
 *     - A GPU has engines that work at the same time: one copies in, one copies out, multiprocessors compute. With a
 *       single stream two of the three are always idle.
 *     - With several streams, n chunks take the three times once and the longest of them n - 1 times more. Three
 *       streams, each with buffers of its own, are always enough; two are if the longest time is half of the sum.
 *     - The host's memory must be pinned: other memory is copied twice, and the call waits for it.
 *     - The faster a step, the less of a copy hides: activations are as many bytes on a fast GPU as on a slow one.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 102_copy_and_compute.c -o 102_copy_and_compute -lm -lpthread -ldl
 *     ./102_copy_and_compute                    (where no GPU is found, it says why, and computes the schedules alone)
 *     Chunks of another size, in kB: ./102_copy_and_compute 4096
 *     Other times, in ms: ./102_copy_and_compute --in 1 --run 5 --out 1
 *
 * What it prints
 *     6 chunks: 2 ms to copy in, 3 to compute, 2 to copy out. A digit is a millisecond of a chunk
 *     2 streams: 24 ms, computing 75 % of the time
 *     3 streams: 22 ms, computing 82 % of the time
 *       in    001122.33.44.55.......
 *       run   ..000111222333444555..
 *       out   .....00.11.22.33.44.55
 *     GPT-2 124M, 8 x 1024 tokens, --offload: 327 MB out in forward, 5.1 ms by PCIe 5 (64 GB/s by its name)
 *       an exact forward on an H200 (a third of 261 ms): 6 %; PyTorch's in bf16 (a third of 21.6): 71 %
 *     ok: 1 stream 42 ms, 2 streams 24, 3 streams 22: the three times once, 5 times the longest
 *
 * Predict first: copying in takes 1 ms, computing 5, copying out 1. How many streams does it take, and how long?
 * Exercise: cut the same work into 1 to 200 chunks, each copy and kernel 0.05 ms longer. How many are fastest?
 *
 * Read on: running.md for the trainer on a GPU; 43_memory.c for offload, and 34_overlap_by_hand.c for ranks. */
#include "kernels.h"
#include "option.h"
#include <math.h>

enum { CHUNKS = 6, MANY = 12 };
/* Seconds until n chunks are in, computed, and out. Engines and streams keep the order of the chunks; chunk i is of
 * stream i % streams. row: NULL, or three lines to draw in. */
static double schedule(const double t[3], int n, int streams, char row[3][80])
{
    double engine[3] = {0, 0, 0}, stream[GPU_STREAMS] = {0, 0, 0};
    for (int i = 0; i < n; i++)
        for (int e = 0; e < 3; e++) {
            double start = fmax(engine[e], stream[i % streams]);
            engine[e] = stream[i % streams] = start + t[e];
            for (int at = (int)start; row && at < (int)engine[e]; at++) row[e][at] = (char)('0' + i);
        }
    return engine[2];
}

/* t: ms of a chunk in each engine; time[1 .. 3]: of so many streams. */
static int by_hand(const double t[3], double time[4])
{
    static const char *const name[3] = {"in", "run", "out"};
    double ms = 13.0 * 8 * 1024 * 768 * 4 / 64e6, once = t[0] + t[1] + t[2]; /* inputs of 12 blocks and the head */
    char row[3][80];
    printf("6 chunks: %g ms to copy in, %g to compute, %g to copy out.", t[0], t[1], t[2]);
    printf(" A digit is a millisecond of a chunk\n");
    for (int s = 1; s <= 3; s++) {
        memset(row, '.', sizeof row);
        time[s] = schedule(t, CHUNKS, s, row);
        printf("%d stream%s: %g ms, ", s, s > 1 ? "s" : "", time[s]);
        printf("computing %.0f %% of the time\n", 100 * CHUNKS * t[1] / time[s]);
        for (int e = 0; e < 3 && s != 2; e++) printf("  %-5s %.*s\n", name[e], (int)time[s], row[e]);
    }
    printf("GPT-2 124M, 8 x 1024 tokens, --offload: %.0f MB out in forward, %.1f ms by PCIe 5 (64 GB/s by its name)\n"
           "  an exact forward on an H200 (a third of 261 ms): %.0f %%; PyTorch's in bf16 (a third of 21.6): %.0f %%\n",
           64 * ms, ms, 300 * ms / 261, 300 * ms / 21.6);
    return fabs(time[1] - CHUNKS * once) + fabs(time[3] - once - (CHUNKS - 1) * fmax(t[0], fmax(t[1], t[2]))) < 1e-9;
}

/* ---- on a GPU ---- */

typedef struct machine {
    gpu g;
    void *f; /* the kernel */
    gpu_address in[GPU_STREAMS], out[GPU_STREAMS];
    size_t count; /* floats of a chunk */
    int64_t rounds;
} machine;

/* Seconds of these steps (1: copy in, 2: compute, 4: copy out) of MANY chunks, the shortest of three times. */
static double run(machine *m, int steps, int streams, float *from, float *to)
{
    double best = 1e9;
    for (int again = 0; again < 3; again++) {
        double start = gpu_now();
        for (int i = 0; i < MANY; i++) {
            const int s = i % streams;
            kernel_arguments a = {m->out[s], m->in[s], 0, m->rounds};
            if (steps & 1) gpu_put(&m->g, s, m->in[s], from + (size_t)i * m->count, 4 * m->count);
            if (steps & 2) gpu_launch(&m->g, s, m->f, (int64_t)m->count / 256, 256, &a);
            if (steps & 4) gpu_get(&m->g, s, to + (size_t)i * m->count, m->out[s], 4 * m->count);
        }
        gpu_wait(&m->g);
        best = fmin(best, gpu_now() - start);
    }
    return best;
}

/* One stream, three, and three with memory that is not pinned. Not 0: a result is wrong, or the GPU failed. */
static int measure(machine *m)
{
    const size_t all = MANY * m->count;
    float *from = gpu_pinned(&m->g, 4 * all), *to = gpu_pinned(&m->g, 4 * all), *other = calloc(2 * all, 4);
    double t[3], time[3];
    int64_t wrong = 0;
    m->f = gpu_kernel(&m->g, "rounds"), m->rounds = 64;
    for (int s = 0; s < GPU_STREAMS; s++)
        m->in[s] = gpu_memory(&m->g, 4 * m->count), m->out[s] = gpu_memory(&m->g, 4 * m->count);
    if (m->g.failed || !other) return free(other), 1;
    for (size_t i = 0; i < all; i++) from[i] = other[i] = (float)(i % 1000);
    for (int e = 0; e < 3; e++) t[e] = run(m, 1 << e, 1, from, to);
    m->rounds = (int64_t)fmin(1e5, ceil(64 * t[0] / t[1])); /* so that computing takes about as long as a copy */
    t[1] = run(m, 2, 1, from, to);
    for (int way = 0; way < 3; way++) {
        float *result = way < 2 ? to : other + all;
        memset(result, 0, 4 * all);
        time[way] = run(m, 7, way ? 3 : 1, way < 2 ? from : other, result);
        for (size_t i = 0; i < all; i += 997) {
            for (int64_t k = 0; k < m->rounds; k++) other[i] = 0.5f * other[i] + 1.0f;
            wrong += result[i] != other[i], other[i] = from[i];
        }
    }
    free(other);
    printf("%s, %d chunks of %.1f MB: %.2f ms to copy in, %.2f to compute, %.2f to copy out\n", m->g.name, (int)MANY,
           4e-6 * (double)m->count, 1e3 * t[0], 1e3 * t[1], 1e3 * t[2]);
    for (int e = 0; e < 3; e++) t[e] /= MANY;
    printf("  1 stream %.2f ms, 3 streams %.2f (%.2f by the schedule), 3 and memory that is not pinned %.2f\n",
           1e3 * time[0], 1e3 * time[1], 1e3 * schedule(t, MANY, 3, NULL), 1e3 * time[2]);
    return wrong || m->g.failed;
}

int main(int argc, char **argv)
{
    static machine m;
    double t[3] = {2, 3, 2}, time[4];
    const option list[] = {{"--in", 0, 4, &t[0]}, {"--run", 0.1, 5, &t[1]}, {"--out", 0, 4, &t[2]}};
    int bad = 0, kb;
    for (int i = 0; i < 3; i++) bad |= !option_take(&argc, argv, &list[i]);
    if (bad) return 2;
    kb = argc > 1 ? atoi(argv[1]) : 32768;
    if (argc > 2 || kb < 1 || kb > 262144) return fprintf(stderr, "102_copy_and_compute: 1 to 262144 kB a chunk\n"), 2;
    bad = !by_hand(t, time), m.count = (size_t)kb << 8;
    if (gpu_open(&m.g, kernel_text)) printf("no GPU, so nothing is measured: %s\n", m.g.why);
    else bad |= measure(&m), gpu_close(&m.g);
    if (bad) return fprintf(stderr, "FAILED: a time or a result is wrong. %s\n", m.g.why), 1;
    return printf("ok: 1 stream %g ms, 2 streams %g, 3 streams %g: the three times once, %d times the longest\n",
                  time[1], time[2], time[3], CHUNKS - 1), 0;
}
