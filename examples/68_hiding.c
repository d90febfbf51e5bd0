/* 68_hiding: is communication free when it is hidden behind computing?
 *
 * What you learn
 *     - A collective takes multiprocessors from the GPU while it runs: NCCL up to 24 of an A100's 108, SMDDP's
 *       all-gather fewer than 9.
 *     - A share s taken makes a step longer by s times the exchange, even if all of it is overlapped with backward, two
 *       thirds of the computing.
 *     - What backward cannot hide is exposed as well, whatever the share is.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 68_hiding.c -o 68_hiding -lm -lpthread
 *     ./68_hiding
 *     ./68_hiding --exchange 1                   (times the computing)
 *
 * What it prints
 *     Overlapped with backward, 16 nodes by EFA: work 591 ms, exchange 131 ms
 *       nothing hidden             step  721 ms,  22.1 % longer than computing
 *       24 of 108 multiprocessors  step  620 ms,   4.9 % longer than computing
 *       9 of 108                   step  602 ms,   1.8 % longer than computing
 *       for nothing                step  591 ms,   0.0 % longer than computing
 *     ok: what is hidden costs the share of the GPU that it takes
 *
 * Predict first: the exchange is as long as the computing. Which of the four lines still gains, and how much?
 * Exercise: at which share is hiding worth nothing?
 *
 * Read on: 70_checkpoints.c, the next chapter; 35_overlap.c measures what hiding saves. */
#include "option.h"
#include <math.h>

enum { GPUS = 8 };

/* What a message costs and bytes per second, each way: of a GPU inside, of a node outside. alpha is assumed. */
typedef struct fabric {
    const char *name;
    double alpha, bytes;
} fabric;

static const fabric nvlink = {"NVLink", 5e-6, 300e9};
static const fabric efa = {"EFA, 400 Gbit/s", 20e-6, 50e9};

static double ring(double n, double bytes, const fabric *f)
{
    return 2 * (n - 1) * f->alpha + 2 * (n - 1) / n * bytes / f->bytes;
}

static double nodes_sum(double nodes, double bytes, const fabric *outside)
{
    return ring(GPUS, bytes, &nvlink) + ring(nodes, bytes, outside);
}

/* Forward 2 P T, backward 4 P T; 40 % of an A100's 312 TFLOP/s. */
static double computing(double weights, double tokens) { return 6 * weights * tokens / (0.4 * 312e12); }

/* The exchange overlaps backward, two thirds of the computing, and takes a share of the GPU meanwhile: all of it
 * (taken = 1) if nothing is hidden. */
static double step(double work, double exchange, double taken)
{
    return work + fmax(taken * exchange, exchange - 2.0 / 3 * work);
}

/* What it costs to hide: on 16 nodes by EFA. */
int main(int argc, char **argv)
{
    static const double taken[4] = {1, 24.0 / 108, 9.0 / 108, 0};
    static const char *const names[4] = {"nothing hidden", "24 of 108 multiprocessors", "9 of 108", "for nothing"};
    double work = computing(1.5e9, 8192), exchange = nodes_sum(16, 3e9, &efa), last = 1e9, times = 0;
    option list[] = {{"--exchange", 0.01, 10, &times}};
    int good = fabs(step(work, exchange, 1) - work - exchange) < 1e-12 && step(work, exchange, 0) == work;
    if (!options_read(argc, argv, list, 1)) return 2;
    if (times > 0) exchange = times * work;
    printf("Overlapped with backward, 16 nodes by EFA: work %.0f ms, exchange %.0f ms\n", 1e3 * work, 1e3 * exchange);
    for (int i = 0; i < 4; i++) {
        double t = step(work, exchange, taken[i]);
        printf("  %-26s step %4.0f ms, %5.1f %% longer than computing\n", names[i], 1e3 * t, 100 * (t / work - 1));
        good = good && t < last && fabs(t - work - taken[i] * exchange) < 1e-12; /* backward is long enough */
        last = t;
    }
    if (times > 0) return printf("ok: by your number; other inputs: not checked\n"), 0;
    good = good && fabs(step(1, 2, 0.1) - (1 + 2 - 2.0 / 3)) < 1e-12; /* and here it is not */
    if (!good) return fprintf(stderr, "FAILED: a step is not as long as the formula says\n"), 1;
    return printf("ok: what is hidden costs the share of the GPU that it takes\n"), 0;
}
