/* 81_stragglers: who waits for whom, and how do you find out?
 *
 * What you learn
 *     - Ranks that are in step are as fast as the slowest one. Utilisation does not tell which: a rank that polls in
 *       an all-reduce, as NCCL's do on a GPU, is in use to 100 % and does nothing. What counts is useful time, or
 *       samples per second.
 *     - Waiting times tell: who comes last to an all-reduce does not wait in it. The rank that waits least is the slow
 *       one. Its median over steps names a straggler; a single late step is an outlier, by more than 3 standard
 *       deviations (StepOutlier in SageMaker's profiler).
 *     - A rank that makes another call than the rest stops all of them, often without a word. A flight recorder helps:
 *       each rank writes down number, name and size of a call before it makes it; the last entries of all show who is
 *       where.
 *     - PyTorch has such a recorder for NCCL. This library compares the calls itself, and its error is that entry.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 81_stragglers.c -o 81_stragglers -lm -lpthread
 *     ./81_stragglers --ranks 4
 *
 * What it prints (beside what is measured)
 *     waits, ms: under 1     4    16    64  more   median
 *     slow is rank 2, which waits least. Steps take ~30.6 ms, +- ~26.0; step ~15 is an outlier
 *     last calls
 *       rank 0  #5 all-reduce of 100 floats: failed
 *       rank 2  #5 broadcast of 100 floats: failed
 *     ok: waiting looks like work, waits point at rank 2, the record at rank 2
 *
 * Predict first: with two slow ranks of four, which ranks wait least?
 * Exercise: let rank 2 sleep in every second step only. Does the median still name it?
 *
 * Read on: 82_rules.c for rules on numbers, 83_report.c for a whole report. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 4, STEPS = 24, SLOW = 2, LATE = 15, BINS = 5 };

/* What a rank shows the others; it lies in memory that all see. */
typedef struct board {
    int waits, arrived; /* steps: begins to wait, is there */
    int calls, size;    /* the recorder: how many there were, and floats and name of the last */
    char name[16];
    int ended; /* it did, 1: well, 2: with an error */
} board;

static double clock_of(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static board *board_of(dt_comm *c, board *mine, int rank) { return (board *)dt_comm_peer(c, mine, rank); }

/* Rank 0 works 5 ms of processor time per step; rank 1 comes 10 ms after it. Both meet, by looking around or by the
 * library's all-reduce, which soon sleeps. Processor time by all time of rank 0, and in *useful that of its work. */
static dt_result in_use(dt_comm *two, dt_comm *c, board *mine, int around, double *used, double *useful)
{
    board *first = board_of(c, mine, 0), *second = board_of(c, mine, 1);
    double all = clock_of(CLOCK_MONOTONIC), begin = clock_of(CLOCK_PROCESS_CPUTIME_ID), work = 0;
    float x = 1;
    dt_result r = DT_OK;
    for (int step = 1; step <= STEPS && !r; step++) {
        int now = around * STEPS + step;
        if (dt_comm_rank(two) == 0) {
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
        if (!around) r = dt_all_reduce(two, &x, 1, DT_SUM);
    }
    all = clock_of(CLOCK_MONOTONIC) - all;
    *used = (clock_of(CLOCK_PROCESS_CPUTIME_ID) - begin) / all, *useful = work / all;
    return r;
}

static int by_size(const void *a, const void *b)
{
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

/* Steps of 5 ms, 20 more on rank SLOW; once 150 more on rank 1. *slow: the rank that waits less than half as long
 * as any other in the middle step; *late: the step that is more than 3 standard deviations longer than the average.
 * -1: none. */
static dt_result waiting(dt_comm *c, int *slow, int *late)
{
    static const float bounds[BINS - 1] = {1, 4, 16, 64};
    int me = dt_comm_rank(c);
    float wait[STEPS], all[RANKS * STEPS], took[STEPS], least = 0, next = 0;
    double mean = 0, variance = 0;
    dt_result r = dt_barrier(c);
    for (int step = 0; step < STEPS && !r; step++) {
        double begin = clock_of(CLOCK_MONOTONIC), there;
        usleep(me == SLOW ? 25000 : me == 1 && step == LATE ? 155000 : 5000);
        there = clock_of(CLOCK_MONOTONIC);
        r = dt_barrier(c);
        wait[step] = (float)(1e3 * (clock_of(CLOCK_MONOTONIC) - there));
        took[step] = (float)(1e3 * (clock_of(CLOCK_MONOTONIC) - begin));
        mean += (double)took[step] / STEPS;
    }
    if (!r) r = dt_all_gather(c, wait, all, STEPS);
    if (!me && !r) printf("\nwaits, ms: under 1     4    16    64  more   median\n");
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
        printf("slow is rank %d, which waits least. Steps take %.1f ms, +- %.1f; step %d is an outlier\n", *slow, mean,
               sqrt(variance), *late);
    return r;
}

/* Writes down, then calls. */
static dt_result call(dt_comm *c, board *mine, const char *name, float *data, int size)
{
    mine->calls++, mine->size = size;
    snprintf(mine->name, sizeof mine->name, "%s", name);
    return strcmp(name, "broadcast") ? dt_all_reduce(c, data, size, DT_SUM) : dt_broadcast(c, data, size, 0);
}

/* Five steps, four of rank SLOW, then a broadcast. *other: the rank whose last entry is not that of rank 0. */
static void mismatched(dt_comm *c, board *mine, int *other, int *told)
{
    float gradient[100] = {0};
    char sentence[64];
    dt_result r = DT_OK;
    for (int step = 0; step < (dt_comm_rank(c) == SLOW ? 4 : 5) && !r; step++)
        r = call(c, mine, "all-reduce", gradient, 100);
    if (!r) r = call(c, mine, "broadcast", gradient, 100);
    snprintf(sentence, sizeof sentence, "rank %d in broadcast", SLOW);
    *told = r == DT_E_PEER && strstr(dt_last_error(), sentence) != NULL;
    __atomic_store_n(&mine->ended, 1 + (r != DT_OK), __ATOMIC_RELEASE);
    if (dt_comm_rank(c)) return;
    printf("\nlast calls\n");
    for (int q = 0; q < RANKS; q++) {
        board *b = board_of(c, mine, q);
        for (int k = 0; k < 5000 && !__atomic_load_n(&b->ended, __ATOMIC_ACQUIRE); k++) usleep(1000);
        printf("  rank %d  #%d %s of %d floats%s\n", q, b->calls, b->name, b->size, b->ended > 1 ? ": failed" : "");
        if (b->calls != mine->calls || strcmp(b->name, mine->name)) *other = *other < 0 ? q : RANKS;
    }
    printf("the library: %s\n", dt_last_error());
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL, *two = NULL;
    void *mine = NULL;
    double around = 0, asleep = 0, useful[2] = {0, 0};
    int slow = -1, late = -1, other = -1, told = 0, root;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("81_stragglers");
    root = dt_comm_rank(c) == 0;
    if (argc > 1 || dt_comm_size(c) != RANKS || dt_comm_nodes(c) != 1)
        return root ? fprintf(stderr, "81_stragglers: the option is --ranks 4, on one node\n"), 2 : 2;
    r = dt_comm_alloc(c, sizeof(board), &mine);
    if (!r) r = dt_comm_split(c, dt_comm_rank(c) > 1, &two); /* ranks 0 and 1; the others sleep till then */
    if (!r && dt_comm_rank(c) < 2) r = in_use(two, c, (board *)mine, 0, &asleep, &useful[0]);
    if (!r && dt_comm_rank(c) < 2) r = in_use(two, c, (board *)mine, 1, &around, &useful[1]);
    if (root && !r)
        printf("rank 0 in use: %.0f %% when it looks around, %.0f %% when it sleeps; useful: %.0f and %.0f %%\n",
               100 * around, 100 * asleep, 100 * useful[1], 100 * useful[0]);
    for (int k = 0; k < 5 && !r && (slow != SLOW || late != LATE); k++) { /* others use this machine, too */
        float seen[2];
        r = waiting(c, &slow, &late);
        seen[0] = (float)slow, seen[1] = (float)late;
        if (!r) r = dt_broadcast(c, seen, 2, 0); /* clocks differ, the decision to look again must not */
        slow = (int)seen[0], late = (int)seen[1];
    }
    if (r) return dt_fail("81_stragglers");
    mismatched(c, (board *)mine, &other, &told);
    dt_comm_close(&two), dt_comm_close(&c);
    if (!root) return !told;
    if (!(around - useful[1] > 5 * (asleep - useful[0])) || slow != SLOW || late != LATE || other != SLOW || !told)
        return fprintf(stderr, "FAILED: use, the slow rank, the late step or the rank in another call\n"), 1;
    printf("ok: waiting looks like work, waits point at rank %d, the record at rank %d\n", slow, other);
    return 0;
}
