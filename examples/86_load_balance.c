/* 86_load_balance: which rule sees that one rank has more work than the others?
 *
 * What you learn
 *     - LoadBalancing and LowUtilization look at the time that a rank works, not at the use of its processor: the
 *       seconds of a step less the seconds of waiting, for each rank.
 *     - Where LoadBalancing fires, the busiest rank needs less work, or its machine is slow. The ranks that wait for it
 *       are healthy, so LowUtilization is then not asked.
 *     - Low utilisation has more than one reason: data, communication, or a batch that is too small (80_doctor.c asks).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 86_load_balance.c -o 86_load_balance -lm -lpthread
 *     ./86_load_balance --ranks 2                (--times 1.5 instead of 8, 1 to 20)
 *
 * What it prints (~: measured)
 *     rank 1 takes 1 times as long   ~12.7 ms a step  no load balance rule fires
 *     rank 1 takes 8 times as long   ~80.8 ms a step  step 10  LoadBalancing  ~0.126 (0.5)  rank 1
 *         do: give the busiest rank less work, or look for what slows its machine
 *     ok: with equal work LoadBalancing is silent; with 8 times the work it names rank 1
 *
 * Predict first: rank 1 takes 1.5 times as long. Does the rule fire with its bound of 0.5?
 * Exercise: let the two ranks take turns being slow. What do the rule and the step time say?
 *
 * Read on: 90_launchers.c for clusters, 81_stragglers.c for the same seen in waiting times. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "rules.h"
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Ten steps of two ranks; rank 1 takes so many times the 10 ms of rank 0. *named: the rank that LoadBalancing names, or
 * -1; *waits: if it names none, the rank of LowUtilization. */
static dt_result ranks(dt_comm *c, double times, int *named, int *waits)
{
    int root = !dt_comm_rank(c), rule = DT_RULE_LOAD_BALANCING;
    dt_rules *rules = NULL;
    const dt_firing *f;
    double begin = now(), seconds;
    dt_result r = dt_rules_open(&rules, 2);
    for (int64_t number = 1; number <= 10 && !r; number++) {
        struct timespec work = {0, (long)(1e7 * (root ? 1 : times))};
        float own[2], all[4] = {0};
        double from = now(), ended;
        nanosleep(&work, NULL); /* stands for work */
        ended = now();
        r = dt_barrier(c); /* stands for an all-reduce */
        own[0] = (float)(now() - from), own[1] = (float)(now() - ended);
        if (!r) r = dt_all_gather(c, own, all, 2);
        for (int rank = 0; rank < 2 && !r; rank++) {
            dt_rank_step s;
            memset(&s, 0, sizeof s);
            s.step = number, s.rank = rank, s.seconds = (double)all[2 * rank], s.waiting = (double)all[2 * rank + 1];
            r = dt_rules_step(rules, &s);
        }
    }
    seconds = now() - begin;
    f = dt_rules_fired(rules, rule), *named = f ? f->rank : -1, *waits = -1;
    if (!f && times > 1) f = dt_rules_fired(rules, rule = DT_RULE_LOW_UTILIZATION), *waits = f ? f->rank : -1;
    if (root && !r) printf("rank 1 takes %g times as long %6.1f ms a step  ", times, 100 * seconds);
    if (root && !r && f)
        printf("step %2d  %s  %.3g (%g)  rank %d\n    do: %s\n", (int)f->step, dt_rule_name(rule), f->value, f->bound,
               (int)f->rank, dt_rule_advice(rule));
    else if (root && !r) printf("no load balance rule fires\n");
    dt_rules_close(&rules);
    return r;
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    double times = 8;
    option list[] = {{"--times", 1, 20, &times}};
    int root, even = -1, busy = -1, waits = -1;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("86_load_balance");
    root = !dt_comm_rank(c);
    if (!options_read(argc, argv, list, 1)) return 2;
    if (dt_comm_size(c) != 2) return fprintf(stderr, "86_load_balance: run it with --ranks 2\n"), 2;
    r = ranks(c, 1, &even, &waits);
    if (!r) r = ranks(c, times, &busy, &waits);
    dt_comm_close(&c);
    if (r) return dt_fail("86_load_balance");
    if (even >= 0 || (times > 2.2 && busy != 1) || (times < 1.8 && busy >= 0))
        return fprintf(stderr, "FAILED: the rule fires in balance, or not out of it\n"), 1;
    if (!root) return 0;
    if (busy < 0) printf("ok: LoadBalancing is silent at 1 and %g times; LowUtilization names rank %d\n", times, waits);
    else printf("ok: with equal work LoadBalancing is silent; with %g times the work it names rank %d\n", times, busy);
    return 0;
}
