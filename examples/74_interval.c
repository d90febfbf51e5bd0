/* 74_interval: how often should a run save?
 *
 * What you learn
 *     - A save costs C seconds. A failure costs the work since the last checkpoint, half an interval T on average, and
 *       R seconds to start again: wasted share = C/T + (T/2 + R)/M, with M the job's mean time between failures. It
 *       is least at T = sqrt(2 C M) (Young 1974).
 *     - The curve is flat around its lowest point: at twice or half the best interval, saving and repeating cost a
 *       quarter more, so rough numbers are enough. Daly (2006) has terms of higher order.
 *     - M is the job's, not the node's: a synchronous step ends when one of n nodes is lost, so M = M_node / n. The job
 *       survives t with probability exp(-t/M), which is 37 % for t = M.
 *     - "Save every epoch" and "lose at most 30 minutes" are policies. The first ignores C and M. The second is a cap:
 *       take the smaller of the two intervals.
 *     - An asynchronous save stops training for less than C. Then C is the time for which it does stop, and T is
 *       shorter.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 74_interval.c -o 74_interval -lm -lpthread
 *     ./74_interval
 *     ./74_interval --save-s 15
 *
 * What it prints
 *     a save costs 60 s, a restart 300 s, a failure every 6 h: sqrt(2 C M) = 1610 s
 *     interval s   formula  simulated
 *            402    17.23 %    15.02 % ############################################################
 *            805    10.71 %     9.96 % #######################################
 *           1610     8.84 %     8.31 % #################################  <- Young
 *           3220    10.71 %    10.21 % ########################################
 *           6440    17.23 %    15.47 % #############################################################
 *     nodes   job fails every   survives a day   interval   useful time
 *         1         43800.0 h           99.9 %     1800 s        96.8 %
 *       512            85.5 h           75.5 %     1800 s        96.4 %
 *     ok: of 9 simulated intervals 1610 s wastes least, 8.31 %; sqrt(2 C M) = 1610 s, by the formula 8.84 %
 *
 * Predict first: saves become four times as cheap. What becomes of the best interval, and of the wasted share there?
 * Exercise: let failures come in pairs, an hour apart, with the same mean. Does the best interval move?
 *
 * Read on: 75_spot.c for machines that are taken away. The trainer chooses its interval in this way with
 *     --checkpoint-every auto --mtbf SECONDS. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include <math.h>
#include <stdint.h>

static const double RESTART = 300, MTBF = 6 * 3600.0, WORK = 4e7; /* seconds */

/* An exponential waiting time, from a stream that every machine has (splitmix64). */
static double wait_for_failure(uint64_t *state, double mean)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return -mean * log(((double)((z ^ z >> 31) >> 11) + 0.5) * 0x1p-53);
}

/* Trains WORK seconds with a save after every `interval`. Returns the wasted share of the time that this took. */
static double simulate(double interval, double cost, double mtbf)
{
    uint64_t state = 1;
    double done = 0, now = 0, failure = wait_for_failure(&state, mtbf);
    while (done < WORK) {
        double end = now + interval + cost;
        if (failure >= end) { /* the interval and its save */
            now = end, done += interval;
            continue;
        }
        now = failure + RESTART; /* back to the last checkpoint */
        failure = now + wait_for_failure(&state, mtbf);
    }
    return 1 - done / now;
}
static double formula(double interval, double cost, double mtbf)
{
    return cost / interval + (interval / 2 + RESTART) / mtbf;
}

int main(int argc, char **argv)
{
    double cost = 60, young, best = 1, at = 0;
    option list[] = {{"--save-s", 1, 120, &cost}};
    int good;
    if (!options_read(argc, argv, list, 1)) return 2;
    young = sqrt(2 * cost * MTBF);
    printf("a save costs %.0f s, a restart %.0f s, a failure every %.0f h: sqrt(2 C M) = %.0f s\n", cost, RESTART,
           MTBF / 3600, young);
    printf("interval s   formula  simulated\n");
    for (int k = -4; k <= 4; k++) {
        double interval = young * pow(2, k / 2.0), wasted = simulate(interval, cost, MTBF);
        if (wasted < best) best = wasted, at = interval;
        printf("%10.0f   %6.2f %%   %6.2f %% ", interval, 100 * formula(interval, cost, MTBF), 100 * wasted);
        for (int i = 0; i < (int)(400 * wasted); i++) putchar('#');
        printf(k ? "\n" : "  <- Young\n");
    }
    good = at > young / 1.5 && at < young * 1.5 && fabs(best - formula(young, cost, MTBF)) < 0.02;
    printf("\nnodes   job fails every   survives a day   interval   useful time\n");
    for (int nodes = 1; nodes <= 4096; nodes *= 8) {
        double mtbf = 5 * 365 * 86400.0 / nodes, interval = fmin(sqrt(2 * cost * mtbf), 1800); /* as the trainer */
        printf("%5d %15.1f h %14.1f %% %8.0f s %11.1f %%\n", nodes, mtbf / 3600, 100 * exp(-86400 / mtbf), interval,
               100 * (1 - simulate(interval, cost, mtbf)));
    }
    printf("(an interval of 1800 s is the cap: at most 30 minutes are lost)\n");
    if (!good) return fprintf(stderr, "FAILED: the simulation has its lowest point elsewhere\n"), 1;
    printf("ok: of 9 simulated intervals %.0f s wastes least, %.2f %%; sqrt(2 C M) = %.0f s, by the formula %.2f %%\n",
           at, 100 * best, young, 100 * formula(young, cost, MTBF));
    return 0;
}
