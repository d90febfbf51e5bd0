/* 84_busy: is a processor in full use doing something useful?
 *
 * What you learn
 *     - A rank may wait by polling a flag without a pause, as NCCL's kernels do on a GPU. Its processor is then in use
 *       for 100 % of the time and does nothing.
 *     - "High utilisation means good use" is as wrong as "low means slow input" (80_doctor.c). What counts is useful
 *       time by all time, or samples per second.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 84_busy.c -o 84_busy -lm -lpthread
 *     ./84_busy --ranks 2                        (--late-ms 1: rank 1 comes 1 ms later, up to 20)
 *
 * What it prints (~: measured)
 *     rank 0            in use   useful   ms per step
 *     polls             ~92 %   ~30 %   ~16.5
 *     sleeps            ~32 %   ~31 %   ~16.3
 *     ok: waiting takes ~62 % of the processor when rank 0 polls, ~1 % when it sleeps, in steps of ~16.5 and ~16.3 ms
 *
 * Predict first: rank 1 comes 1 ms later instead of 10. Which of the four shares changes least?
 * Exercise: let rank 0 poll 100 times and then sleep 0.1 ms after each look. How do use and step time change?
 *
 * Read on: 85_flight_recorder.c for ranks that hang, 81_stragglers.c for waiting times. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include <time.h>
#include <unistd.h>

enum { STEPS = 24 };
static double late_ms = 10; /* rank 1 */

typedef struct board { /* in memory that both ranks see */
    int waits, arrived; /* steps: begins to wait, is there */
} board;

static double clock_of(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct share {
    double used, useful, ms; /* processor time by all time, and its work by all time; of a step */
} share;

/* Rank 0 works 5 ms of processor time per step; rank 1 comes late_ms after it. They meet by polling or by the library's
 * all-reduce, which soon sleeps. */
static dt_result in_use(dt_comm *c, board *mine, int polls, share *s)
{
    board *first = (board *)dt_comm_peer(c, mine, 0), *second = (board *)dt_comm_peer(c, mine, 1);
    double all = clock_of(CLOCK_MONOTONIC), begin = clock_of(CLOCK_PROCESS_CPUTIME_ID), work = 0;
    float x = 1;
    dt_result r = DT_OK;
    for (int step = 1; step <= STEPS && !r; step++) {
        int now = polls * STEPS + step;
        if (dt_comm_rank(c) == 0) {
            double from = clock_of(CLOCK_PROCESS_CPUTIME_ID), spent = 0;
            while (spent < 5e-3) spent = clock_of(CLOCK_PROCESS_CPUTIME_ID) - from;
            work += spent;
            __atomic_store_n(&first->waits, now, __ATOMIC_RELEASE);
            while (polls && __atomic_load_n(&second->arrived, __ATOMIC_ACQUIRE) < now) continue;
        } else {
            while (__atomic_load_n(&first->waits, __ATOMIC_ACQUIRE) < now) usleep(100);
            usleep((useconds_t)(1000 * late_ms));
            __atomic_store_n(&second->arrived, now, __ATOMIC_RELEASE);
        }
        if (!polls) r = dt_all_reduce(c, &x, 1, DT_SUM);
    }
    all = clock_of(CLOCK_MONOTONIC) - all;
    s->used = 100 * (clock_of(CLOCK_PROCESS_CPUTIME_ID) - begin) / all, s->useful = 100 * work / all;
    s->ms = 1e3 * all / STEPS;
    return r;
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    void *mine = NULL;
    option list[] = {{"--late-ms", 1, 20, &late_ms}};
    static const char *const names[2] = {"sleeps", "polls"};
    share s[2];
    int root;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("84_busy");
    root = dt_comm_rank(c) == 0;
    if (!options_read(argc, argv, list, 1)) return 2;
    if (dt_comm_size(c) != 2 || dt_comm_nodes(c) != 1)
        return fprintf(stderr, "84_busy: run it with --ranks 2, on one node\n"), 2;
    r = dt_comm_alloc(c, sizeof(board), &mine);
    for (int polls = 0; polls < 2 && !r; polls++) r = in_use(c, (board *)mine, polls, &s[polls]);
    dt_comm_close(&c);
    if (r) return dt_fail("84_busy");
    if (!root) return 0;
    printf("rank 0            in use   useful   ms per step\n");
    for (int polls = 1; polls >= 0; polls--)
        printf("%-16s  %4.0f %%   %4.0f %%   %6.1f\n", names[polls], s[polls].used, s[polls].useful, s[polls].ms);
    if (s[1].used - s[1].useful <= 2 * (s[0].used - s[0].useful))
        return fprintf(stderr, "FAILED: polling takes no time of the processor\n"), 1;
    return printf("ok: waiting takes %.0f %% of the processor when rank 0 polls, %.0f %% when it sleeps, in steps of "
                  "%.1f and %.1f ms\n", s[1].used - s[1].useful, s[0].used - s[0].useful, s[1].ms, s[0].ms), 0;
}
