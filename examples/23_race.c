/* 23_race: which all-reduce is fastest for which size: ring, doubling, or halving and doubling?
 *
 * What you learn
 *     - A round in which a rank sends and receives s bytes takes about alpha + beta s seconds. dt_link_fit finds both
 *       numbers from measured rounds of several sizes.
 *     - With n ranks and S bytes, all-reduce algorithms differ in rounds and in the bytes that a rank sends:
 *           ring                   2(n-1) rounds     2(n-1)/n S   (Patarasuk and Yuan 2009)
 *           doubling               log2 n rounds     log2 n S
 *           halving and doubling   2 log2 n rounds   2(n-1)/n S   (Rabenseifner 2004)
 *     - The ring is optimal in bytes, not in time: below about n alpha / beta bytes its 2(n-1) rounds decide.
 *     - The winner is easier to predict than the seconds, because ranks also share cores, caches and wires.
 *     - Each of the three adds in another order, with other last bits. dt_all_reduce has the same bits in every layout,
 *       and is faster because it has many messages under way; the three wait for one before they start the next.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 23_race.c -o 23_race -lm -lpthread
 *     ./23_race --ranks 4                     (doubling needs a power of two)
 *     DT_LINK_DELAY=0.002 DT_LINK_RATE=1e8 ./23_race --ranks 8 --nodes 8     (slow emulated links: read these)
 *
 * What it prints (the second command; microseconds, measured and predicted; ~: measured here)
 *     alpha ~4325 us, beta ~14.25 ns per byte (R^2 ~1.00)
 *        bytes               ring           doubling            halving      dt_all_reduce
 *          256   ~64391  ~60556     ~13336  ~12986     ~27189  ~25956      ~2329*
 *      1048576   ~85579  ~86692     ~64649  ~57790     ~55899  ~52092     ~18568*
 *     ring, 1 MB: ~12 MB/s of data; a link carries 1.75 times that (bus bandwidth), ~21 MB/s
 *     ok: 20 sums are right; 14, 3 and 6 rounds and their bytes are those of the formulas
 *
 * Predict first: with 16 ranks instead of 8, which column grows most at 256 bytes, and by which factor?
 * Exercise: let `halving` run on any number of ranks: the ranks after the largest power of two give their vectors to
 *     the first ranks, and get the sum back. How much does rank 0 of 6 send?
 *
 * Read on: 27_trees.c for trees and hierarchies, 25_balanced_buffers.c for servers, 22_ring.c for the ring drawn. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "link.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 1 << 18, RACERS = 4, TRIALS = 5, SIZES = 5 }; /* MOST: floats */
typedef struct race {
    dt_comm *c;
    int n, me, rounds;
    float *data, *inbox;
    int64_t count;
} race;
typedef dt_result (*algorithm)(race *r);

/* One round: sends n_out floats from data + out, receives n_in floats into the inbox. dt_send may wait for the
 * receiver, so one of two ranks that exchange, and every other rank of a ring, receives first. */
static dt_result exchange(race *r, int64_t out, int64_t n_out, int to, int64_t n_in, int from)
{
    int first = to == from ? r->me < to : r->me % 2 == 0;
    dt_result e = first ? dt_send(r->c, r->data + out, n_out, to) : DT_OK;
    if (!e) e = dt_recv(r->c, r->inbox, n_in, from);
    r->rounds++;
    return e || first ? e : dt_send(r->c, r->data + out, n_out, to);
}
static void add(race *r, int64_t at, int64_t n)
{
    for (int64_t i = 0; i < n; i++) r->data[at + i] += r->inbox[i];
}

/* Every chunk travels around the ring once to be summed and once to be copied. */
static dt_result ring(race *r)
{
    int64_t n = r->count / r->n;
    dt_result e = DT_OK;
    for (int i = 1; i <= 2 * (r->n - 1) && !e; i++) {
        int out = (r->me - i + 1 + 2 * r->n) % r->n, in = (r->me - i + 2 * r->n) % r->n;
        e = exchange(r, out * n, n, (r->me + 1) % r->n, n, (r->me + r->n - 1) % r->n);
        if (!e && i < r->n) add(r, in * n, n);
        else if (!e) memcpy(r->data + in * n, r->inbox, (size_t)n * sizeof *r->data);
    }
    return e;
}

/* The whole vector is exchanged with the partners at distance 1, 2, 4 .. */
static dt_result doubling(race *r)
{
    dt_result e = DT_OK;
    for (int mask = 1; mask < r->n && !e; mask *= 2) {
        e = exchange(r, 0, r->count, r->me ^ mask, r->count, r->me ^ mask);
        if (!e) add(r, 0, r->count);
    }
    return e;
}

/* Each round halves the range [at, at + n) that a rank sums. The finished ranges grow together on the way back. */
static dt_result halving(race *r)
{
    int64_t at = 0, n = r->count;
    dt_result e = DT_OK;
    for (int mask = r->n / 2; mask && !e; mask /= 2) {
        int upper = (r->me & mask) != 0;
        n /= 2;
        e = exchange(r, upper ? at : at + n, n, r->me ^ mask, n, r->me ^ mask);
        at += upper ? n : 0;
        if (!e) add(r, at, n);
    }
    for (int mask = 1; mask < r->n && !e; mask *= 2, n *= 2) {
        int upper = (r->me & mask) != 0;
        e = exchange(r, at, n, r->me ^ mask, n, r->me ^ mask);
        if (!e) memcpy(r->data + (upper ? at - n : at + n), r->inbox, (size_t)n * sizeof *r->data);
        at -= upper ? n : 0;
    }
    return e;
}

static dt_result fixed_tree(race *r) { return dt_all_reduce(r->c, r->data, r->count, DT_SUM); }
/* What the formulas are about: one exchange of the first and the last rank. */
static dt_result one_round(race *r)
{
    int peer = r->n - 1 - r->me;
    return r->me && peer ? DT_OK : exchange(r, 0, r->count, peer, r->count, peer);
}

/* Microseconds: the shortest of some times of the slowest rank. *bytes: what this rank sent the last time. */
static dt_result run(race *r, algorithm sum, double *us, int64_t *bytes)
{
    dt_result e = DT_OK;
    *us = 1e30;
    for (int k = 0; k < TRIALS && !e; k++) {
        struct timespec a, b;
        float slowest;
        for (int64_t i = 0; i < r->count; i++) r->data[i] = (float)(i % 7 + r->me);
        e = dt_barrier(r->c);
        *bytes = r->rounds = 0;
        for (int q = 0; q < r->n; q++) *bytes -= dt_comm_sent(r->c, q);
        clock_gettime(CLOCK_MONOTONIC, &a);
        if (!e) e = sum(r);
        clock_gettime(CLOCK_MONOTONIC, &b);
        for (int q = 0; q < r->n; q++) *bytes += dt_comm_sent(r->c, q);
        slowest = (float)(b.tv_sec - a.tv_sec) * 1e6f + (float)(b.tv_nsec - a.tv_nsec) * 1e-3f;
        if (!e) e = dt_all_reduce(r->c, &slowest, 1, DT_MAX);
        if ((double)slowest < *us) *us = (double)slowest;
    }
    return e;
}

int main(int argc, char **argv)
{
    static const char *const names[RACERS] = {"ring", "doubling", "halving", "dt_all_reduce"};
    static const algorithm sums[RACERS] = {ring, doubling, halving, fixed_tree};
    race r = {0};
    dt_link link;
    double size[SIZES], seconds[SIZES], slowest = 0;
    int64_t bytes;
    int wrong = 0, log = 0, sums_made = 0;
    dt_result e;
    if (dt_comm_open(&r.c, &argc, &argv)) return dt_fail("23_race");
    r.n = dt_comm_size(r.c), r.me = dt_comm_rank(r.c);
    while (2 << log <= r.n) log++;
    if (argc > 1 || r.n == 1 || r.n != 1 << log) return fprintf(stderr, "23_race: use --ranks 2, 4, 8 or 16\n"), 2;
    r.data = (float *)malloc(2 * MOST * sizeof *r.data), r.inbox = r.data + MOST, r.count = MOST;
    if (!r.data) return 1;
    e = run(&r, one_round, &seconds[0], &bytes); /* not counted: the memory is new */
    for (int k = 0; k < SIZES && !e; k++) {
        r.count = (int64_t)64 << 3 * k, size[k] = 4.0 * (double)r.count;
        e = run(&r, one_round, &seconds[k], &bytes), seconds[k] *= 1e-6;
    }
    link = dt_link_fit(size, seconds, SIZES);
    if (!r.me)
        printf("alpha %.0f us, beta %.2f ns per byte (R^2 %.2f)\n   bytes", link.alpha * 1e6, link.beta * 1e9, link.r2);
    for (int k = 0; k < RACERS && !r.me; k++) printf("%19s", names[k]);
    for (r.count = 64; r.count <= MOST && !e; r.count *= 8) {
        int64_t s = 4 * r.count, few = 2 * (r.n - 1) * s / r.n;
        const int rounds[RACERS] = {2 * (r.n - 1), log, 2 * log, 0};
        const int64_t formula[RACERS] = {few, log * s, few, 0};
        double us[RACERS], best = 1e30;
        for (int k = 0; k < RACERS && !e; k++) {
            e = run(&r, sums[k], &us[k], &bytes);
            for (int64_t i = 0; i < r.count; i++) wrong += r.data[i] != (float)(r.n * (i % 7) + r.n * (r.n - 1) / 2);
            wrong += rounds[k] && (bytes != formula[k] || r.rounds != rounds[k]);
            best = us[k] < best ? us[k] : best, sums_made++;
            if (!k) slowest = us[k];
        }
        if (!r.me) printf("\n%8lld", (long long)s);
        for (int k = 0; k < RACERS && !r.me; k++) {
            printf("%9.0f%c", us[k], us[k] <= best ? '*' : ' ');
            if (rounds[k]) printf("%7.0f  ", (rounds[k] * link.alpha + (double)formula[k] * link.beta) * 1e6);
        }
    }
    free(r.data);
    dt_comm_close(&r.c);
    if (e) return dt_fail("23_race");
    if (wrong) return fprintf(stderr, "FAILED: %d sums, bytes or rounds are wrong\n", wrong), 1;
    if (r.me) return 0;
    printf("\nring, 1 MB: %.0f MB/s of data; a link carries %.2f times that (bus bandwidth), %.0f MB/s\n",
           4.0 * MOST / slowest, 2.0 * (r.n - 1) / r.n, 8.0 * (r.n - 1) / r.n * MOST / slowest);
    return printf("ok: %d sums are right; %d, %d and %d rounds and their bytes are those of the formulas\n", sums_made,
                  2 * (r.n - 1), log, 2 * log), 0;
}
