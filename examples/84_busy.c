/* 84_busy: is a processor in full use doing something useful?
 *
 * What you learn
 *     - A rank that waits may look around all the time, as NCCL's do on a GPU. Then it is in use to 100 % and does
 *       nothing.
 *     - "High utilisation means good use" is as wrong as "low means slow input" (80_doctor.c). What counts is useful
 *       time by all time, or samples per second.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 84_busy.c -o 84_busy -lm -lpthread
 *     ./84_busy --ranks 2
 *
 * What it prints (above the measured shares)
 *     rank 0            in use   useful
 *     ok: waiting looks like work
 *
 * Predict first: rank 1 comes 1 ms later instead of 10. Which of the four numbers changes most?
 * Exercise: let rank 0 look around 100 times and sleep then. What do use and the time of a step say?
 *
 * Read on: 85_flight_recorder.c for ranks that hang, 81_stragglers.c for waiting times. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 24 };

typedef struct board { /* in memory that both ranks see */
    int waits, arrived; /* steps: begins to wait, is there */
} board;

static double clock_of(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Rank 0 works 5 ms of processor time per step; rank 1 comes 10 ms after it. Both meet, by looking around or by the
 * library's all-reduce, which soon sleeps. Processor time by all time of rank 0, and in *useful that of its work. */
static dt_result in_use(dt_comm *c, board *mine, int around, double *used, double *useful)
{
    board *first = (board *)dt_comm_peer(c, mine, 0), *second = (board *)dt_comm_peer(c, mine, 1);
    double all = clock_of(CLOCK_MONOTONIC), begin = clock_of(CLOCK_PROCESS_CPUTIME_ID), work = 0;
    float x = 1;
    dt_result r = DT_OK;
    for (int step = 1; step <= STEPS && !r; step++) {
        int now = around * STEPS + step;
        if (dt_comm_rank(c) == 0) {
            double from = clock_of(CLOCK_PROCESS_CPUTIME_ID), spent = 0;
            while (spent < 5e-3) spent = clock_of(CLOCK_PROCESS_CPUTIME_ID) - from;
            work += spent;
            __atomic_store_n(&first->waits, now, __ATOMIC_RELEASE);
            while (around && __atomic_load_n(&second->arrived, __ATOMIC_ACQUIRE) < now) continue;
        } else {
            while (__atomic_load_n(&first->waits, __ATOMIC_ACQUIRE) < now) usleep(100);
            usleep(10000);
            __atomic_store_n(&second->arrived, now, __ATOMIC_RELEASE);
        }
        if (!around) r = dt_all_reduce(c, &x, 1, DT_SUM);
    }
    all = clock_of(CLOCK_MONOTONIC) - all;
    *used = (clock_of(CLOCK_PROCESS_CPUTIME_ID) - begin) / all, *useful = work / all;
    return r;
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    void *mine = NULL;
    double around = 0, asleep = 0, useful[2] = {0, 0};
    int root;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("84_busy");
    root = dt_comm_rank(c) == 0;
    if (argc > 1 || dt_comm_size(c) != 2 || dt_comm_nodes(c) != 1)
        return fprintf(stderr, "84_busy: the option is --ranks 2, on one node\n"), 2;
    r = dt_comm_alloc(c, sizeof(board), &mine);
    if (!r) r = in_use(c, (board *)mine, 0, &asleep, &useful[0]);
    if (!r) r = in_use(c, (board *)mine, 1, &around, &useful[1]);
    dt_comm_close(&c);
    if (r) return dt_fail("84_busy");
    if (!root) return 0;
    printf("rank 0            in use   useful\n");
    printf("looks around      %4.0f %%   %4.0f %%\n", 100 * around, 100 * useful[1]);
    printf("sleeps            %4.0f %%   %4.0f %%\n", 100 * asleep, 100 * useful[0]);
    if (around - useful[1] <= 5 * (asleep - useful[0]))
        return fprintf(stderr, "FAILED: looking around takes no time of the processor\n"), 1;
    return printf("ok: waiting looks like work\n"), 0;
}
