/* A link between two hosts, a rank and a core on each: how full messages and sums of 32 MB make it, and how much of an
 * all-reduce hides behind compute that takes twice as long and does not call the library. tests/hosts.sh makes the hosts:
 *     tests/hosts.sh mpi 1gbit build/bench/bench_link 1e9
 *     tests/hosts.sh 'tcp;ofi_rxm' 1gbit build/bench/bench_link 1e9         the number: the link's bits per second */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "bench.h"

enum { COUNT = 8 << 20, ROUNDS = 9 };
enum { MESSAGE, SUM, WAYS };
static const char *const names[WAYS] = {"a message, one way", "all-reduce"};

static dt_result once(dt_comm *c, int way, float *x)
{
    if (way == SUM) return dt_all_reduce(c, x, COUNT, DT_SUM);
    return dt_comm_rank(c) == 0 ? dt_send(c, x, COUNT, 1) : dt_recv(c, x, COUNT, 0);
}

typedef dt_result (*work)(dt_comm *, int, float *);

/* The slower rank's seconds. */
static dt_result timed(dt_comm *c, work job, int way, float *x, double *seconds)
{
    float mine = 0.0f;
    double start;
    dt_result r = dt_barrier(c);
    start = dt__now();
    if (!r) r = job(c, way, x);
    mine = (float)(dt__now() - start);
    if (!r) r = dt_all_reduce(c, &mine, 1, DT_MAX);
    *seconds = (double)mine;
    return r;
}
static dt_result timed_often(dt_comm *c, work job, int way, float *x, double *seconds)
{
    double time[ROUNDS];
    dt_result r = timed(c, job, way, x, seconds);
    for (int k = 0; k < ROUNDS && !r; k++) r = timed(c, job, way, x, &time[k]);
    *seconds = r ? 0.0 : median(time, ROUNDS);
    return r;
}

/* ---- compute and an all-reduce at the same time ---- */

static struct {
    int64_t turns;
    float kept;
    dt_comm *other; /* the communicator of the thread that adds */
    float *x;
    dt_result result;
} both;

/* 32 chains of additions and multiplications: nothing but the core. */
static dt_result compute(dt_comm *c, int way, float *x)
{
    float chain[32];
    (void)c, (void)way, (void)x;
    for (int k = 0; k < 32; k++) chain[k] = (float)k;
    for (int64_t i = 0; i < both.turns; i++)
        for (int k = 0; k < 32; k++) chain[k] = chain[k] * 0.999f + 0.001f;
    for (int k = 0; k < 32; k++) both.kept += chain[k];
    return DT_OK;
}
static void *add(void *unused)
{
    both.result = once(both.other, SUM, both.x);
    return unused;
}
static dt_result together(dt_comm *c, int way, float *x)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, add, NULL)) return DT_E_SYSTEM;
    (void)compute(c, way, x);
    pthread_join(thread, NULL);
    return both.result;
}

/* How much of the all-reduce is hidden. The speed of a core drifts: alone, alone and together take turns. */
static dt_result hidden(dt_comm *c, float *x)
{
    double sum[ROUNDS], alone[ROUNDS], all[ROUNDS], share[ROUNDS];
    dt_result r = timed(c, once, SUM, x, &sum[0]);
    both.turns = 10000000;
    if (!r) r = timed_often(c, compute, 0, x, &alone[0]);
    both.turns = (int64_t)((double)both.turns * 2 * sum[0] / alone[0]);
    both.x = x;
    if (!r) r = dt_comm_split(c, 0, &both.other);
    if (!r) both.other->stream = 1, both.other->spins = dt__spins(both.other->job, DT__STREAMS);
    for (int k = 0; k < ROUNDS && !r; k++) {
        r = timed(c, once, SUM, x, &sum[k]);
        if (!r) r = timed(c, compute, 0, x, &alone[k]);
        if (!r) r = timed(c, together, 0, x, &all[k]);
        share[k] = 100 * (sum[k] + alone[k] - all[k]) / sum[k];
    }
    if (!r && dt_comm_rank(c) == 0)
        printf("all-reduce %.3f s, compute %.3f s, together %.3f s: %.0f %% of the all-reduce is hidden\n",
               median(sum, ROUNDS), median(alone, ROUNDS), median(all, ROUNDS), median(share, ROUNDS));
    dt_comm_close(&both.other);
    return r;
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    float *x = (float *)calloc(COUNT, sizeof *x);
    double rate, seconds = 0.0;
    dt_result r = x ? dt_comm_open(&c, &argc, &argv) : DT_E_MEMORY;
    if (r) return dt_fail("bench_link");
    rate = argc > 1 ? strtod(argv[1], NULL) : 0.0;
    if (dt_comm_size(c) != 2 || dt_comm_nodes(c) != 2) return fprintf(stderr, "bench_link: two ranks on two hosts\n"), 2;
    if (dt_comm_rank(c) == 0) printf("%s; 32 MB\n%-30s %10s %10s %8s\n", c->link->name, "", "s", "MB/s", "link");
    for (int way = 0; way < WAYS && !r; way++) {
        r = timed_often(c, once, way, x, &seconds);
        if (!r && dt_comm_rank(c) == 0)
            printf("%-30s %10.3f %10.1f %7.1f%%\n", names[way], seconds, COUNT * 4e-6 / seconds, rate > 0 ? COUNT * 3200.0 / seconds / rate : 0.0);
    }
    if (!r) r = hidden(c, x);
    dt_comm_close(&c);
    free(x);
    return r ? dt_fail("bench_link") : 0;
}
