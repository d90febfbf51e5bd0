/* 86_load_balance: which rule sees that one rank has more work than the others?
 *
 * What you learn
 *     - LoadBalancing and LowUtilization look at the time that a rank works, not at the use of its processor: seconds
 *       of a step less seconds of waiting, for each rank.
 *     - Where the rule fires, the busiest rank wants less work, or its machine is slow.
 *     - Low utilisation has more than one reason: data, communication, or a batch that is too small (80_doctor.c
 *       asks).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 86_load_balance.c -o 86_load_balance -lm -lpthread
 *     ./86_load_balance --ranks 2
 *
 * What it prints (beside what is measured)
 *     two ranks in balance no load balance rule fires
 *         do: give the busiest rank less work, or look for what slows its machine
 *     ok: the rule names the rank that takes longer
 *
 * Predict first: rank 1 takes 1.5 times as long. Does the rule fire with its bound of 0.5?
 * Exercise: let both ranks take turns in being slow. What do the rule and the step time say?
 *
 * Read on: 90_launchers.c for clusters, 81_stragglers.c for the same seen in waiting times. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "rules.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Ten steps of two ranks, of which rank 1 takes so many times the 10 ms of rank 0. */
static dt_result ranks(dt_comm *c, int times, int *good)
{
    int root = !dt_comm_rank(c);
    dt_rules *rules = NULL;
    const dt_firing *f;
    dt_result r = dt_rules_open(&rules, 2);
    for (int64_t number = 1; number <= 10 && !r; number++) {
        struct timespec work = {0, 10000000L * (root ? 1 : times)};
        float own[2], all[4] = {0};
        double begin = now(), ended;
        nanosleep(&work, NULL); /* stands for work */
        ended = now();
        r = dt_barrier(c); /* stands for an all-reduce */
        own[0] = (float)(now() - begin), own[1] = (float)(now() - ended);
        if (!r) r = dt_all_gather(c, own, all, 2);
        for (int rank = 0; rank < 2 && !r; rank++) {
            dt_rank_step s;
            memset(&s, 0, sizeof s);
            s.step = number, s.rank = rank, s.seconds = (double)all[2 * rank], s.waiting = (double)all[2 * rank + 1];
            r = dt_rules_step(rules, &s);
        }
    }
    f = dt_rules_fired(rules, DT_RULE_LOAD_BALANCING);
    *good = *good && (times > 1 ? f && f->rank == 1 : !f);
    if (root && !r) printf("%-21s", times > 1 ? "rank 1 takes 8 times" : "two ranks in balance");
    if (root && !r && f)
        printf("step %2d  %s  %.3g (%g)  rank %d\n    do: %s\n", (int)f->step, dt_rule_name(DT_RULE_LOAD_BALANCING),
               f->value, f->bound, (int)f->rank, dt_rule_advice(DT_RULE_LOAD_BALANCING));
    else if (root && !r) printf("no load balance rule fires\n");
    dt_rules_close(&rules);
    return r;
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    int root, good = 1;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("86_load_balance");
    root = !dt_comm_rank(c);
    if (argc > 1 || dt_comm_size(c) != 2) return fprintf(stderr, "86_load_balance: the option is --ranks 2\n"), 2;
    r = ranks(c, 1, &good);
    if (!r) r = ranks(c, 8, &good);
    dt_comm_close(&c);
    if (r) return dt_fail("86_load_balance");
    if (!good) return fprintf(stderr, "FAILED: the rule fires in balance, or not out of it\n"), 1;
    if (root) printf("ok: the rule names the rank that takes longer\n");
    return 0;
}
