/* 68_hiding: is communication free when it is hidden behind computing?
 *
 * What you learn
 *     - A collective takes multiprocessors from the GPU while it runs: NCCL up to 24 of an A100's 108, SMDDP's
 *       all-gather fewer than 9.
 *     - If the collective takes a share s of the GPU, a step is longer by s times the exchange, even where backward,
 *       which is two thirds of the computing, hides all of the exchange. Kernels run in waves of one tile on each
 *       multiprocessor, so the loss is rounded up.
 *     - The last bucket is complete when backward ends, so nothing hides it: smaller buckets, less exposed.
 *     - An exchange that is longer than backward exposes the difference. If that is more than the share takes, it alone
 *       counts.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 68_hiding.c -o 68_hiding -lm -lpthread
 *     ./68_hiding
 *     ./68_hiding --exchange 1                   (times the computing)
 *     ./68_hiding --buckets 4
 *
 * What it prints
 *     16 nodes by EFA, buckets: 16, work 591 ms, exchange 131 ms; a step, by formula and by waves
 *       nothing hidden             721 ms  721 ms,  22.1 % longer than computing
 *       24 of 108 multiprocessors  626 ms  630 ms,   6.6 % longer than computing
 *       9 of 108                   609 ms  611 ms,   3.5 % longer than computing
 *       none taken                 599 ms  599 ms,   1.4 % longer than computing
 *     ok: hiding saves 92 of 131 ms; 24 multiprocessors cost 31 ms, the last bucket 8
 *
 * Predict first: the exchange is as long as the computing. Which of the four lines still gains, and how much?
 * Exercise: let every bucket pay for its messages, 30 of 20 us each. With how many buckets, 1 to 48, is the step
 *     shortest when 24 multiprocessors are taken, and when none are?
 *
 * Read on: 70_checkpoints.c, the next chapter; 35_overlap.c measures what hiding saves. */
#include "option.h"
#include "tools/cost.h"

enum { PROCESSORS = 108, LAYERS = 48, WAVES = 20 }; /* of an A100; waves of a layer's backward on all of them */

static double buckets = 16;

/* The exchange overlaps backward, two thirds of the computing, and takes a share of the GPU meanwhile: all of it
 * (taken = 1) if nothing is hidden. The last bucket has nothing to overlap. */
static double formula(double work, double exchange, double taken)
{
    double last = exchange / buckets, others = exchange - last;
    return taken >= 1 ? work + exchange : work + last + fmax(taken * others, others - 2.0 / 3 * work);
}

/* The same wave by wave: a multiprocessor computes a tile in a wave, a bucket leaves when its layers are done, and
 * while one is on its way, `taken` multiprocessors move it. */
static double simulate(double work, double exchange, int taken)
{
    const double wave = 2.0 / 3 * work / (LAYERS * WAVES);
    double now = work / 3, arrives = 0; /* forward; when the last bucket has arrived */
    for (int layer = 1, sent = 0; layer <= LAYERS; layer++) {
        for (int tiles = WAVES * PROCESSORS; tiles > 0; now += wave)
            tiles -= PROCESSORS - (now < arrives && taken < PROCESSORS ? taken : 0);
        if (taken < PROCESSORS && layer * buckets >= (sent + 1) * LAYERS)
            sent++, arrives = fmax(arrives, now) + exchange / buckets;
    }
    return taken < PROCESSORS ? fmax(now, arrives) : now + exchange;
}

int main(int argc, char **argv)
{
    static const int taken[4] = {PROCESSORS, 24, 9, 0};
    static const char *const names[4] = {"nothing hidden", "24 of 108 multiprocessors", "9 of 108", "none taken"};
    double work = cost_computing(1.5e9, 8192, 0.4 * 312e12), times = 0, step[4], last;
    double exchange = cost_nodes_sum(8, 16, 3e9, 300e9, 20e-6, 50e9);
    option list[] = {{"--exchange", 0.01, 10, &times}, {"--buckets", 1, LAYERS, &buckets}};
    int good = 1;
    if (!options_read(argc, argv, list, 2)) return 2;
    buckets = floor(buckets), exchange = times > 0 ? times * work : exchange, last = exchange / buckets;
    printf("16 nodes by EFA, buckets: %g, work %.0f ms, exchange %.0f ms; a step, by formula and by waves\n", buckets,
           1e3 * work, 1e3 * exchange);
    for (int i = 0; i < 4; i++) {
        double t = formula(work, exchange, (double)taken[i] / PROCESSORS);
        step[i] = simulate(work, exchange, taken[i]);
        printf("  %-26s %4.0f ms %4.0f ms, %5.1f %% longer than computing\n", names[i], 1e3 * t, 1e3 * step[i],
               100 * (step[i] / work - 1));
        /* the network waits for the first bucket, and each layer loses a wave at most */
        good = good && step[i] > t - 1e-9 && step[i] < t + last + 1e-9 + 2.0 / 3 * work / WAVES;
    }
    if (!good) return fprintf(stderr, "FAILED: a step is not as long as the formula says\n"), 1;
    return printf("ok: hiding saves %.0f of %.0f ms; 24 multiprocessors cost %.0f ms, the last bucket %.0f\n",
                  1e3 * (step[0] - step[1]), 1e3 * exchange, 1e3 * (step[1] - step[3]), 1e3 * last), 0;
}
