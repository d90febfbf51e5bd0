/* 22_ring: how do ranks add up their numbers if each rank talks only to its neighbours?
 *
 * What you learn
 *     - An all-reduce gives every rank the sum of all ranks' vectors. The ring cuts the vectors into n chunks.
 *       Reduce-scatter, n-1 rounds: each rank sends a chunk to the right and adds the chunk that arrives from the
 *       left; at the end it has one chunk of the complete sum. All-gather, n-1 rounds: the complete chunks are copied.
 *     - A rank sends 2(n-1)/n S bytes, fewer than 2 S for any n.
 *     - A send may wait for its receiver. If all ranks send first, all wait for ever; here even ranks send first and
 *       odd ranks receive first.
 *     - The ring adds each chunk in a different order of ranks, so the last bits of a sum depend on n. dt_all_reduce
 *       adds in one fixed tree: the same bits for every n.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 22_ring.c -o 22_ring -lm -lpthread
 *     ./22_ring --ranks 4                        (1 to 8 ranks; one rank has nobody to send to)
 *
 * What it prints
 *       round 3 of 6: reduce-scatter (add what comes)
 *         rank 0:  0001  1111  1101  1001   sent chunk 2 to rank 1
 *         rank 3:  1111  1110  1100  1000   sent chunk 1 to rank 0
 *     1000003 floats on each of 4 ranks: S = 4000012 bytes
 *       2(n-1)/n S = 6000018 bytes; rank 0 sent 6000016 by the ring, 5998860 by dt_all_reduce
 *     ok: 1000003 sums are dt_all_reduce's within 1e-5, 25.3 % of them with other last bits
 *
 * Predict first: with 8 ranks, how many rounds are there, and how many bytes does a rank send?
 * Exercise: send each chunk in three pieces, and count the messages of a rank. A chain of ranks that pass a vector on
 *     becomes faster in this way; does the ring?
 *
 * Read on: 23_race.c for algorithms with fewer rounds, 25_balanced_buffers.c for servers instead of a ring. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LARGE = 1000003 }; /* no multiple of any rank count: chunks differ by one element */

typedef struct ring {
    dt_comm *c;
    int n, me, draw;
    float *data, *inbox; /* (count), (largest chunk) */
    int64_t count;
} ring;

static int64_t begin(const ring *r, int k) { return r->count * k / r->n; } /* of chunk k */

/* Even ranks send first, odd ranks receive first. */
static dt_result exchange(ring *r, int out, int in)
{
    int right = (r->me + 1) % r->n, left = (r->me + r->n - 1) % r->n;
    int64_t n_out = begin(r, out + 1) - begin(r, out), n_in = begin(r, in + 1) - begin(r, in);
    const float *chunk = r->data + begin(r, out);
    dt_result e = r->me % 2 ? DT_OK : dt_send(r->c, chunk, n_out, right);
    if (!e) e = dt_recv(r->c, r->inbox, n_in, left);
    return e || r->me % 2 == 0 ? e : dt_send(r->c, chunk, n_out, right);
}

/* One frame: what each rank holds, chunk by chunk, and which chunk it just sent. */
static dt_result frame(ring *r, int round, const char *what)
{
    float all[8 * 8];
    dt_result e = r->draw ? dt_all_gather(r->c, r->data, all, r->count) : DT_OK; /* row q: rank q's vector */
    if (e || !r->draw || r->me) return e;
    printf("  round %d of %d: %s\n", round, 2 * (r->n - 1), what);
    for (int q = 0; q < r->n; q++) {
        printf("    rank %d:", q);
        for (int k = 0; k < r->n; k++) printf("  %0*.0f", r->n, (double)all[q * r->n + k]);
        if (round) printf("   sent chunk %d to rank %d", (q - round + 1 + 2 * r->n) % r->n, (q + 1) % r->n);
        printf("\n");
    }
    return e;
}

/* Round i = 1 .. 2(n-1): rank q sends chunk q - i + 1 and gets chunk q - i; the first n-1 rounds add. */
static dt_result all_reduce(ring *r)
{
    dt_result e = frame(r, 0, "before");
    for (int i = 1; i <= 2 * (r->n - 1) && !e; i++) {
        int out = (r->me - i + 1 + 2 * r->n) % r->n, in = (r->me - i + 2 * r->n) % r->n, add = i < r->n;
        float *to = r->data + begin(r, in);
        e = exchange(r, out, in);
        for (int64_t j = 0; j < begin(r, in + 1) - begin(r, in) && !e; j++)
            to[j] = add ? r->inbox[j] + to[j] : r->inbox[j];
        if (!e) e = frame(r, i, add ? "reduce-scatter (add what comes)" : "all-gather (take what comes)");
    }
    return e;
}

/* The drawing: n elements, one per chunk. */
static dt_result small(ring r, int *good)
{
    float data[8], inbox[1], all = 0;
    dt_result e;
    for (int q = 0; q < r.n; q++) data[q] = powf(10, (float)r.me), all = all * 10 + 1;
    r.data = data, r.inbox = inbox, r.count = r.n, r.draw = 1;
    e = all_reduce(&r);
    for (int k = 0; k < r.n; k++) *good = *good && data[k] == all; /* 1111 */
    return e;
}

/* Bytes of this rank that have reached the others, counted by the library. */
static int64_t sent(const ring *r)
{
    int64_t bytes = 0;
    for (int q = 0; q < r->n; q++) bytes += dt_comm_sent(r->c, q);
    return bytes;
}

/* A million fractions, by the ring and by dt_all_reduce: bytes beside the formula, and sums in two orders. */
static dt_result large(ring r, int *good, double *percent)
{
    static float data[LARGE], inbox[LARGE], by_tree[LARGE];
    int64_t differ = 0, bytes = LARGE * 4, formula = 2 * (r.n - 1) * bytes / r.n, before = sent(&r), between, after;
    dt_result e;
    r.data = data, r.inbox = inbox, r.count = LARGE;
    for (int64_t i = 0; i < LARGE; i++) data[i] = by_tree[i] = (float)(i * (r.me + 3) * 7919 % 65521) / 65521.0f;
    e = all_reduce(&r);
    between = sent(&r);
    if (!e) e = dt_all_reduce(r.c, by_tree, LARGE, DT_SUM);
    after = sent(&r);
    for (int64_t i = 0; i < LARGE; i++) {
        differ += memcmp(&data[i], &by_tree[i], sizeof *by_tree) != 0;
        *good = *good && data[i] - by_tree[i] < 1e-5f && by_tree[i] - data[i] < 1e-5f;
    }
    *percent = 100.0 * (double)differ / LARGE;
    if (!r.me)
        printf("\n%d floats on each of %d ranks: S = %d bytes\n  2(n-1)/n S = %d bytes; rank 0 sent %d by the ring, "
               "%d by dt_all_reduce\n", LARGE, r.n, (int)bytes, (int)formula, (int)(between - before),
               (int)(after - between));
    *good = *good && (r.n > 2 || !differ) && fabs((double)(between - before - formula)) <= 8 * r.n;
    return e;
}

int main(int argc, char **argv)
{
    ring r = {0};
    double percent = 0;
    int good = 1;
    dt_result e = dt_comm_open(&r.c, &argc, &argv);
    if (e) return dt_fail("22_ring");
    r.n = dt_comm_size(r.c), r.me = dt_comm_rank(r.c);
    if (argc > 1 || r.n > 8) return fprintf(stderr, "22_ring: the option is --ranks N, up to 8\n"), 2;
    e = small(r, &good);
    if (!e) e = large(r, &good, &percent);
    dt_comm_close(&r.c);
    if (e) return dt_fail("22_ring");
    if (good && !r.me)
        printf("ok: %d sums are dt_all_reduce's within 1e-5, %.1f %% of them with other last bits\n", LARGE, percent);
    return good ? 0 : (fprintf(stderr, "FAILED: a sum or a number of bytes is wrong\n"), 1);
}
