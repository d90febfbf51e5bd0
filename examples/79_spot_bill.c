/* 79_spot_bill: what does a Spot discount save after interruptions have been paid for?
 *
 * What you learn
 *     - A reclaim costs the work since the last checkpoint, and a restart. With checkpoints these are minutes. Without
 *       them it is the whole run so far, and a run longer than the mean time between reclaims, M, rarely finishes: its
 *       expected time grows as exp(hours / M).
 *     - Short jobs are cheap without checkpoints. Long ones need them: the break-even is where the repeated work costs
 *       as much as the discount saves.
 *     - The bill shows what was saved: (1 - billable / training) x 100 %. "Up to 90 %" is a discount, not a result.
 *     - SageMaker takes two limits: the longest training time, and the longest time including the wait for machines,
 *       which must be larger. A job without checkpoints may wait for an hour at most.
 *     - A notice of 120 s is enough for a checkpoint that is written in 120 s, and not for a larger one.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 79_spot_bill.c -o 79_spot_bill -lm -lpthread
 *     ./79_spot_bill
 *     ./79_spot_bill --mean-h 1                  (hours between reclaims)
 *
 * What it prints
 *     a reclaim every 4 h, a restart 5 min, a save 1 min every 22 min; Spot at 70 % less than 21.96 $/h
 *     hours of work   on demand   Spot, no checkpoints   Spot, checkpoints   reclaims    saved
 *               0.5        11 $                    4 $                 4 $        0.1   66.1 %
 *               2.0        44 $                   17 $                15 $        0.5   66.5 %
 *               8.0       176 $                  172 $                59 $        2.1   66.5 %
 *              24.0       527 $                10826 $               177 $        6.5   66.4 %
 *              72.0      1581 $           1766318803 $               531 $       19.6   66.4 %
 *     without checkpoints the discount is used up by jobs of 8.1 hours
 *     a bill of 100 s for 500 s of training: saved 80 %
 *     a save 1 min, a reclaim every 2 h: best every 15.5 min; 2 min and 4 h: 31 min
 *     run 24 h, wait 24 h: refused: the longest wait must be longer than the longest run
 *     run 24 h, wait 36 h, no checkpoints: refused: without checkpoints the longest wait is 1 hour
 *     run 24 h, wait 36 h, checkpoints: accepted
 *     980 GB of states of 70 billion weights in 120 s: 8.2 GB/s; rank 0 alone at 1 GB/s takes 980 s
 *     ok: with checkpoints the bill falls by 66.1 to 66.5 %; simulated hours within 0.3 % of the formula's
 *
 * Predict first: machines are reclaimed every hour instead of every four. Which of the two columns of dollars explodes?
 * Exercise: a new machine comes half an hour after a reclaim, which is not billed. Print the hours until the end.
 *
 * Read on: 80_doctor.c for jobs that are slow without being interrupted, 93_capacity.c for waiting. */
#include "option.h"
#include <math.h>
#include <stdint.h>

enum { JOBS = 2000 };
static double mean = 4; /* hours */
static const double restart = 5 / 60.0, save = 1 / 60.0, price = 21.96, discount = 0.7; /* hours, $/hour */
static const double billions = 70, bytes = 14, notice = 120, disk = 1; /* weights, per weight, seconds, GB/s */

/* Hours until the next reclaim (splitmix64: the same on every machine). */
static double reclaim(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return -mean * log(((double)((z ^ z >> 31) >> 11) + 0.5) * 0x1p-53);
}

/* Billed hours of a job of `work` hours that saves after every `interval`, on average. */
static double simulate(double work, double interval, double cost, int *interruptions)
{
    double all = 0;
    uint64_t state = 1;
    *interruptions = 0;
    for (int job = 0; job < JOBS; job++) {
        double left = work;
        for (double until = reclaim(&state); left > 0;) {
            double piece = fmin(left, interval) + cost;
            if (piece <= until) {
                all += piece, until -= piece, left -= fmin(left, interval);
            } else
                all += until + restart, until = reclaim(&state), ++*interruptions;
        }
    }
    return all / JOBS;
}

/* The same, expected: a piece succeeds with probability exp(-piece / mean), or begins again. */
static double expected(double work, double interval, double cost)
{
    return work / interval * (mean + restart) * (exp((interval + cost) / mean) - 1);
}

/* What SageMaker answers to the limits of a Spot job, in hours. */
static const char *limits(double run, double wait, int checkpoints)
{
    if (wait <= run) return "refused: the longest wait must be longer than the longest run";
    if (!checkpoints && wait > 1) return "refused: without checkpoints the longest wait is 1 hour";
    return "accepted";
}

int main(int argc, char **argv)
{
    option list[] = {{"--mean-h", 1, 48, &mean}};
    static const double works[] = {0.5, 2, 8, 24, 72};
    double young, low = 0.1, high = 100, least = 1, most = 0, apart = 0;
    int good = 1, n;
    if (!options_read(argc, argv, list, 1)) return 2;
    young = sqrt(2 * save * mean);
    printf("a reclaim every %.0f h, a restart 5 min, a save 1 min every %.0f min; Spot at %.0f %% less than %.2f $/h\n",
           mean, 60 * young, 100 * discount, price);
    printf("hours of work   on demand   Spot, no checkpoints   Spot, checkpoints   reclaims    saved\n");
    for (int i = 0; i < 5; i++) {
        double w = works[i], with = simulate(w, young, save, &n), bill = (1 - discount) * price;
        double formula = expected(w, young, save), none = expected(w, w, 0);
        printf("%13.1f %9.0f $ %20.0f $ %17.0f $ %10.1f %6.1f %%\n", w, w * price, none * bill, with * bill,
               (double)n / JOBS, 100 * (1 - with * bill / (w * price)));
        least = fmin(least, 1 - with * bill / (w * price)), most = fmax(most, 1 - with * bill / (w * price));
        apart = w < 8 ? apart : fmax(apart, fabs(with / formula - 1)); /* shorter jobs end within an interval */
        good = good && apart < 0.05 && with < none * 1.1;
    }
    for (int i = 0; i < 60; i++) {
        double w = (low + high) / 2;
        *(expected(w, w, 0) * (1 - discount) < w ? &low : &high) = w;
    }
    printf("without checkpoints the discount is used up by jobs of %.1f hours\n", low);
    printf("a bill of 100 s for 500 s of training: saved %.0f %%\n", 100 * (1 - 100.0 / 500));
    printf("a save 1 min, a reclaim every 2 h: best every %.1f min; 2 min and 4 h: %.0f min\n", 60 * sqrt(2 / 60.0 * 2),
           60 * sqrt(2 * 2 / 60.0 * 4));
    printf("run 24 h, wait 24 h: %s\n", limits(24, 24, 1));
    printf("run 24 h, wait 36 h, no checkpoints: %s\n", limits(24, 36, 0));
    printf("run 24 h, wait 36 h, checkpoints: %s\n", limits(24, 36, 1));
    printf("%.0f GB of states of %.0f billion weights in %.0f s: %.1f GB/s; rank 0 alone at %.0f GB/s takes %.0f s\n",
           bytes * billions, billions, notice, bytes * billions / notice, disk, bytes * billions / disk);
    if (!good) return fprintf(stderr, "FAILED: the simulation and the formula differ\n"), 1;
    return printf("ok: with checkpoints the bill falls by %.1f to %.1f %%; simulated hours within %.1f %% of the "
                  "formula's\n", 100 * least, 100 * most, 100 * apart), 0;
}
