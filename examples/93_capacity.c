/* 93_capacity: why must a job get all of its machines at once?
 *
 * What you learn
 *     - A job on k machines starts when k are free at the same time. With half of the pool idle on average, jobs still
 *       queue for hours.
 *     - All or nothing is gang scheduling. In order of arrival, a large job holds up all later ones. If small ones may
 *       overtake, they hardly wait, but the largest wait longer: for ever if small ones keep coming (starvation).
 *     - One by one, each job takes what is free and waits for the rest. Machines are held, and paid for, that do
 *       nothing, and two jobs that hold half of the pool each wait for ever: a deadlock.
 *     - Slurm and SageMaker start a job on all of its machines or not at all. On EC2 a request with MinCount = MaxCount
 *       does that; on Kubernetes, Kueue or Volcano.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 93_capacity.c -o 93_capacity -lm -lpthread
 *     ./93_capacity
 *     ./93_capacity --apart 90                   (minutes between jobs, on average)
 *
 * What it prints
 *     Two jobs of 16 machines, one by one: deadlock in minute 0; one holds 8 of 16, the other 8
 *     machines                 1       2       4       8      16   at work      held      free  deadlocks
 *     gang, in order         4.1     4.2     4.2     4.9     7.0     24054         0     23599          0
 *     gang, overtaking       0.8     0.6     0.9     1.4    16.4     24054         0     23606          0
 *     one by one           394.4   411.1   423.4   410.4   435.7     24054     35718       508        422
 *     ok: 4000 jobs had all of their machines each way; deadlocks: gangs 0, one by one 422
 *
 * Predict first: which jobs wait longer when overtaking is allowed, and by which factor?
 * Exercise: one by one, let a job give up what it has held for an hour without starting. Are there fewer deadlocks?
 *
 * Read on: 94_no_capacity.c for a pool that is empty, 78_elastic.c for jobs that go on with fewer. */
#include "option.h"
#include <math.h>
#include <stdint.h>

enum { POOL = 16, JOBS = 4000, LENGTH = 120, SIZES = 5 };
enum { ORDER, OVERTAKE, PIECES, WAYS }; /* gangs in the order of arrival; gangs that overtake; machine by machine */
static const char *const names[WAYS] = {"gang, in order", "gang, overtaking", "one by one"};

typedef struct job { int arrival, minutes, need, held, start; } job; /* start -1: waits */
typedef struct pool {
    long long busy, idle, spare; /* machine-minutes at work, held and not at work, free */
    int first, arrived, done, free, running, deadlocks, now;
} pool;

/* Between 0 and 1, the same on every machine. */
static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(*state >> 11) + 0.5) * 0x1p-53;
}

/* Exponential times; half of the jobs need one machine, a quarter two, and so on. */
static void make(job *jobs, double apart)
{
    uint64_t state = 1;
    for (int i = 0, now = 0; i < JOBS; i++) {
        job j = {0, 0, 1, 0, -1};
        j.arrival = now += (int)(-apart * log(uniform(&state)));
        j.minutes = 1 + (int)(-LENGTH * log(uniform(&state)));
        while (j.need < POOL && uniform(&state) < 0.5) j.need *= 2;
        jobs[i] = j;
    }
}
static int waits(const job *j) { return j->start < 0; }
static void take(pool *p, job *j, int machines)
{
    j->held += machines, p->free -= machines;
    if (j->held == j->need) j->start = p->now, p->running++;
}

/* Free machines to jobs that wait, those before `end`. Returns how many still wait. */
static int serve(pool *p, job *jobs, int way, int end)
{
    int waiting = 0;
    for (int i = p->first; way != PIECES && i < end; i++) {
        if (!waits(&jobs[i])) continue;
        if (jobs[i].need <= p->free) take(p, &jobs[i], jobs[i].need);
        else if (way == ORDER) break;
    }
    for (int given = 1; way == PIECES && given;) { /* rounds in which everyone gets one */
        given = 0;
        for (int i = p->first; i < end && p->free; i++)
            if (waits(&jobs[i])) take(p, &jobs[i], 1), given = 1;
    }
    for (int i = p->first; i < p->arrived; i++) waiting += waits(&jobs[i]);
    return waiting;
}

/* Nobody works, so nobody will give a machine back: the youngest that holds some must, until one can start. */
static void unlock(pool *p, job *jobs, int way, int only_count)
{
    p->deadlocks++;
    for (int i = p->arrived - 1; i > p->first && !p->running && !only_count; i--)
        p->free += jobs[i].held, jobs[i].held = 0, serve(p, jobs, way, i);
}

/* All jobs until they are done, minute by minute; with `stop` until the first deadlock. */
static void simulate(pool *p, job *jobs, int count, int way, int stop)
{
    memset(p, 0, sizeof *p);
    for (p->free = POOL; p->done < count; p->now++) {
        int waiting, busy = 0, idle = 0;
        for (int i = p->first; i < p->arrived; i++)
            if (jobs[i].held && !waits(&jobs[i]) && jobs[i].start + jobs[i].minutes == p->now)
                p->free += jobs[i].held, jobs[i].held = 0, p->running--, p->done++;
        while (p->first < p->arrived && !waits(&jobs[p->first]) && !jobs[p->first].held) p->first++;
        while (p->arrived < count && jobs[p->arrived].arrival <= p->now) p->arrived++;
        waiting = serve(p, jobs, way, p->arrived);
        if (waiting && !p->running) {
            unlock(p, jobs, way, stop);
            if (stop) return;
            waiting = serve(p, jobs, way, 0);
        }
        for (int i = p->first; i < p->arrived; i++) *(waits(&jobs[i]) ? &idle : &busy) += jobs[i].held;
        p->busy += busy, p->idle += idle, p->spare += p->free;
    }
}

int main(int argc, char **argv)
{
    static job jobs[WAYS][JOBS];
    static int number[WAYS][SIZES];
    static double mean[WAYS][SIZES];
    pool p[WAYS], two;
    job pair[2] = {{0, 60, POOL, 0, -1}, {0, 60, POOL, 0, -1}};
    double apart = 45;
    const option list[] = {{"--apart", 1, 1000, &apart}};
    if (!options_read(argc, argv, list, 1)) return 2;
    simulate(&two, pair, 2, PIECES, 1);
    printf("Two jobs of %d machines, one by one: deadlock in minute %d; one holds %d of %d, the other %d\n", POOL,
           two.now, pair[0].held, POOL, pair[1].held);
    for (int w = 0; w < WAYS; w++) {
        make(jobs[w], apart), simulate(&p[w], jobs[w], JOBS, w, 0);
        for (int i = 0; i < JOBS; i++) {
            int k = 0;
            while (1 << k < jobs[w][i].need) k++;
            number[w][k]++, mean[w][k] += (jobs[w][i].start - jobs[w][i].arrival) / 60.0;
        }
    }
    printf("\n%d jobs\n%-18s %39s %29s\n%-18s", JOBS, "", "mean wait, hours, of jobs on", "machine-hours", "machines");
    for (int k = 0; k < SIZES; k++) printf(" %7d", 1 << k);
    printf(" %9s %9s %9s %10s\n", "at work", "held", "free", "deadlocks");
    for (int w = 0; w < WAYS; w++) {
        printf("%-18s", names[w]);
        for (int k = 0; k < SIZES; k++) printf(" %7.1f", mean[w][k] / number[w][k]);
        printf(" %9lld %9lld %9lld %10d\n", p[w].busy / 60, p[w].idle / 60, p[w].spare / 60, p[w].deadlocks);
    }
    if (p[ORDER].deadlocks || p[OVERTAKE].deadlocks) return fprintf(stderr, "FAILED: a gang in a deadlock\n"), 1;
    return printf("ok: %d jobs had all of their machines each way; deadlocks: gangs 0, one by one %d\n", JOBS,
                  p[PIECES].deadlocks), 0;
}
