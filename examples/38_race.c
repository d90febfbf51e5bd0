/* 38_race: one sum, eight ways to make it: how many messages, how many bytes, and which is fastest for which size.
 *
 * What you learn
 *     A message of s bytes takes about alpha + beta s seconds: alpha to be on its way at all, beta for each byte. Two
 *     numbers, fitted by least squares to a ping-pong over sizes, tell what a collective costs before it runs. Of S
 *     bytes on n ranks:
 *         ring        2(n-1) alpha + 2(n-1)/n S beta     few bytes, many messages: for large S
 *         halving     2 log2 n alpha + 2(n-1)/n S beta   the same bytes with fewer messages
 *         doubling    log2 n alpha + log2 n S beta       everything each time: for small S
 *         tree        about 2 log2 n alpha + 2 S beta    a stream up and down two trees: for many ranks
 *         servers     2 alpha + 2(n-1)/n S beta          the balanced parameter server: a rank hears n-1 at once
 *         hierarchy   inside nodes, between, inside      what leaves a node leaves it once
 *         exact       measured, not computed             one tree for all layouts; reads shared memory where it lies
 *         native      measured, not computed             the engine's own, here MPI_Allreduce
 *     What ranks do to each other who share cores, caches and wires is in none of these terms: the table shows how far
 *     they go. To predict which one wins takes less than to predict seconds.
 *     "A ring is optimal" is often read as "a ring is fastest". It is optimal in bytes alone; below about n alpha/beta
 *     bytes its 2(n-1) messages decide.
 *     All but `exact`, the library's default, round differently from each other and with every other number of ranks.
 *     An engine's own collective needs an engine: the column `native` is "-" where all ranks share memory, under mpirun
 *     too. It fills when messages go by MPI, on several hosts or on nodes that are played (DT_NODES).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 38_race.c -o 38_race -lm -lpthread
 *     ./38_race --ranks 4                     (one node)
 *     ./38_race --ranks 4 --nodes 2           (the one to read: two nodes of 2, played on this machine)
 *     mpicc -O2 -DDT_MPI -I.. 38_race.c -o 38_race -lm -lpthread && DT_NODES=2 mpirun --oversubscribe -n 4 ./38_race
 *
 * What you should see
 *     alpha, beta and R^2 of each kind of link. Then microseconds, measured and (predicted), for each size and
 *     algorithm, the fastest marked with *, and what DT_TUNED would take. Last, the messages and bytes of a rank beside
 *     the formulas.
 *
 * Read on: 33_nodes.c for what crosses between nodes, 03_ring.c for the ring by hand. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 1 << 20 };
static const dt_algorithm racers[] = {DT_EXACT, DT_RING,      DT_DOUBLING, DT_HALVING,
                                      DT_TREE,  DT_HIERARCHY, DT_SERVERS,  DT_NATIVE};
enum { RACERS = 8 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The least of five times, in microseconds, of the slowest rank; negative when this algorithm cannot run here. A first
 * sum is checked, and not timed. */
static double race(dt_comm *c, dt_algorithm a, float *data, int64_t count, int *wrong)
{
    dt_collective what = dt_collective_of(DT_ALL_REDUCE, data, data, count);
    int n = dt_comm_size(c), times = count < 10000 ? 20 : 2;
    float best = 1e30f;
    what.algorithm = a;
    for (int k = 0; k < 5; k++) {
        float slowest = 0;
        double start;
        for (int64_t i = 0; i < count; i++) data[i] = (float)(i % 7) + (float)dt_comm_rank(c);
        if (dt_collect(c, &what)) return -1;
        for (int64_t i = 0; i < count; i++) *wrong += data[i] != (float)(n * (i % 7) + n * (n - 1) / 2);
        if (dt_barrier(c)) return -1;
        start = now();
        for (int j = 0; j < times; j++)
            if (dt_collect(c, &what)) return -1;
        slowest = (float)((now() - start) * 1e6 / times);
        if (dt_all_reduce(c, &slowest, 1, DT_MAX)) return -1;
        if (slowest < best) best = slowest;
    }
    return (double)best;
}

static void print_link(const char *name, const dt_link *l)
{
    if (l->points)
        printf("%-14s alpha %8.2f us   beta %7.3f ns/byte (%6.2f GB/s)   R^2 %.4f   half speed at %.0f bytes\n", name,
               l->alpha * 1e6, l->beta * 1e9, 1e-9 / l->beta, l->r2, l->alpha / l->beta);
}

int main(int argc, char **argv)
{
    static float data[MOST];
    dt_comm *c = NULL;
    dt_tuning t;
    int wrong = 0, n, root;
    dt_result e = dt_comm_init(&c, &argc, &argv);
    if (!e) e = dt_comm_tune(c, &t);
    if (e) return dt_fail("38_race");
    n = dt_comm_size(c), root = dt_comm_rank(c) == 0;
    if (root) {
        printf("%d ranks on %d nodes; measured in %.2f s\n", n, dt_comm_nodes(c), t.seconds);
        print_link("inside a node", &t.near), print_link("between nodes", &t.far);
        printf("\nall-reduce, us (predicted)\n%10s", "bytes");
        for (int a = 0; a < RACERS; a++) printf("%19s", dt_algorithm_name(racers[a]));
        printf("   tuned takes\n");
    }
    for (int64_t count = 2; count <= MOST; count *= 8) {
        double us[RACERS], best = 1e30;
        dt_collective what = dt_collective_of(DT_ALL_REDUCE, data, data, count);
        dt_price price;
        for (int a = 0; a < RACERS; a++) {
            us[a] = race(c, racers[a], data, count, &wrong);
            if (us[a] >= 0 && us[a] < best) best = us[a];
        }
        if (root) printf("%10lld", (long long)(4 * count));
        for (int a = 0; a < RACERS && root; a++) {
            what.algorithm = racers[a];
            if (us[a] < 0)
                printf("%19s", "-");
            else if (!dt_comm_price(c, &what, &price))
                printf("%9.1f%s(%7.1f)", us[a], us[a] <= best ? "*" : " ", price.seconds * 1e6);
        }
        what.algorithm = DT_TUNED;
        if (root && !dt_comm_price(c, &what, &price)) printf("   %s\n", dt_algorithm_name(price.algorithm));
    }
    if (root)
        printf("\nof %d bytes, the rank that sends most: rounds, messages, bytes, bytes to other nodes\n", 4 * MOST);
    for (int a = 1; a + 1 < RACERS && root; a++) {
        dt_collective what = dt_collective_of(DT_ALL_REDUCE, data, data, MOST);
        dt_price p;
        what.algorithm = racers[a];
        if (dt_comm_price(c, &what, &p)) return dt_fail("38_race");
        printf("%12s %4lld %4lld %9lld %9lld\n", dt_algorithm_name(racers[a]), (long long)p.rounds,
               (long long)p.messages, (long long)p.bytes, (long long)p.far_bytes);
        if (racers[a] == DT_RING)
            wrong += p.rounds != 2 * (n - 1) || (double)p.bytes > 2.0 * (n - 1) / n * 4 * MOST + 64 * n;
    }
    if (root) printf(wrong ? "%d sums or formulas are wrong\n" : "ok: every algorithm has every sum\n", wrong);
    dt_comm_free(&c);
    return wrong != 0;
}
