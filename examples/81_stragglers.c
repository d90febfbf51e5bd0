/* 81_stragglers: which rank do the others wait for?
 *
 * What you learn
 *     - Synchronous ranks are as fast as the slowest one. The rank that comes last to an all-reduce does not wait in
 *       it, so the rank that waits least is the slow one.
 *     - The median over steps names a rank that is always slow (a straggler: a weaker machine, more work).
 *     - One late step does not make a straggler. It is an outlier among the durations, by more than 3 standard
 *       deviations (StepOutlier in SageMaker's profiler).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 81_stragglers.c -o 81_stragglers -lm -lpthread
 *     ./81_stragglers --ranks 4                  (--slow 2: rank 3 is slow as well)
 *
 * What it prints (~: measured)
 *     waits, ms: under 1     4    16    64  more   median
 *       rank 0          ~0    ~0    ~0   ~23    ~1    ~20.08
 *       rank 1          ~1    ~0    ~0   ~23    ~0    ~20.05
 *       rank 2         ~22    ~0    ~1    ~0    ~1     ~0.06
 *       rank 3          ~0    ~0    ~0   ~23    ~1    ~20.07
 *     ok: waits point at rank 2, durations at step 15
 *
 * Predict first: with two slow ranks of four, which ranks wait least?
 * Exercise: let rank 2 be slow in every third step only. The median misses it: which quantile names it, and why?
 *
 * Read on: 82_rules.c for rules on numbers, 84_busy.c for use that is not work, 85_flight_recorder.c for ranks that
 *     hang. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include <math.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 4, STEPS = 24, SLOW = 2, LATE = 15, BINS = 5 };
static double slow_ranks = 1; /* from rank SLOW on */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

/* Steps of 5 ms, 20 more on slow ranks; once 150 more on rank 1. *slow: the rank whose median wait is less than half
 * of any other's; *late: the step that is more than 3 standard deviations longer than the average. -1: none. */
static dt_result waiting(dt_comm *c, int *slow, int *late)
{
    static const float bounds[BINS - 1] = {1, 4, 16, 64};
    int me = dt_comm_rank(c);
    float wait[STEPS], all[RANKS * STEPS], took[STEPS], least = 0, next = 0;
    double mean = 0, variance = 0;
    dt_result r = dt_barrier(c);
    for (int step = 0; step < STEPS && !r; step++) {
        double begin = now(), there;
        usleep(me >= SLOW && me < SLOW + (int)slow_ranks ? 25000 : me == 1 && step == LATE ? 155000 : 5000);
        there = now();
        r = dt_barrier(c);
        wait[step] = (float)(1e3 * (now() - there));
        took[step] = (float)(1e3 * (now() - begin));
        mean += (double)took[step] / STEPS;
    }
    if (!r) r = dt_all_gather(c, wait, all, STEPS);
    if (!me && !r) printf("waits, ms: under 1     4    16    64  more   median\n");
    for (int q = 0; q < RANKS && !r; q++) {
        int bins[BINS] = {0};
        float *of = all + q * STEPS;
        for (int step = 0, b; step < STEPS; step++) {
            for (b = 0; b < BINS - 1 && of[step] >= bounds[b]; b++) continue;
            bins[b]++;
        }
        qsort(of, STEPS, sizeof *of, by_size);
        if (q == 0 || of[STEPS / 2] < least)
            next = q ? least : 1e9f, least = of[STEPS / 2], *slow = q;
        else if (of[STEPS / 2] < next)
            next = of[STEPS / 2];
        if (!me)
            printf("  rank %d   %8d%6d%6d%6d%6d %8.2f\n", q, bins[0], bins[1], bins[2], bins[3], bins[4],
                   (double)of[STEPS / 2]);
    }
    if (least > next / 2) *slow = -1;
    *late = -1;
    for (int step = 0; step < STEPS; step++) variance += pow((double)took[step] - mean, 2) / STEPS;
    for (int step = 0; step < STEPS; step++)
        if ((double)took[step] > mean + 3 * sqrt(variance) && (*late < 0 || took[step] > took[*late])) *late = step;
    if (!me && !r)
        printf("slow is rank %d (-1: none). Steps take %.1f ms, +- %.1f; step %d is an outlier\n", *slow, mean,
               sqrt(variance), *late);
    return r;
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    option list[] = {{"--slow", 1, 2, &slow_ranks}};
    int slow = -2, late = -1, expected, root;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("81_stragglers");
    root = dt_comm_rank(c) == 0;
    if (!options_read(argc, argv, list, 1)) return 2;
    if (dt_comm_size(c) != RANKS) return fprintf(stderr, "81_stragglers: run it with --ranks 4\n"), 2;
    expected = slow_ranks < 2 ? SLOW : -1; /* of two that are alike, none */
    for (int k = 0; k < 5 && !r && (slow != expected || late != LATE); k++) { /* others use this machine, too */
        float seen[2];
        r = waiting(c, &slow, &late);
        seen[0] = (float)slow, seen[1] = (float)late;
        if (!r) r = dt_broadcast(c, seen, 2, 0); /* clocks differ, the decision to look again must not */
        slow = (int)seen[0], late = (int)seen[1];
    }
    dt_comm_close(&c);
    if (r) return dt_fail("81_stragglers");
    if (slow != expected || late != LATE) return fprintf(stderr, "FAILED: the slow rank or the late step\n"), 1;
    if (root && slow < 0) printf("ok: of two slow ranks waits name none, durations point at step %d\n", late);
    else if (root) printf("ok: waits point at rank %d, durations at step %d\n", slow, late);
    return 0;
}
