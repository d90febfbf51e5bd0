/* 22_ring: all-reduce by hand, as a ring.
 *
 * What you learn
 *     Every rank has a vector; afterwards every rank shall have the sum. Nobody shouts to all others: each passes a
 *     page to the neighbour on the right, and after 2(n-1) rounds everybody has everything. The vector has n chunks.
 *       Rounds 1 .. n-1 (reduce-scatter): each rank sends one chunk to the right, and adds the chunk that comes from
 *       the left to its own; after that, each rank owns one finished chunk.
 *       Rounds n .. 2(n-1) (all-gather): the finished chunks travel once around, and replace instead of adding.
 *     Each rank sends 2(n-1) chunks of S/n bytes: 2(n-1)/n * S, less than 2 S for any n. Sending everything to one rank
 *     and back would put (n-1) S through that rank, both ways. The ring's price is 2(n-1) times the latency of a link.
 *
 *     What is equal, and what is not. Floating-point addition is not associative: the order of a sum decides its last
 *     bits. In a ring chunk k is summed in the order k, k+1, .. n-1, 0, .. k-1, each chunk in another. Every rank gets
 *     the same bits, since a chunk is finished on one rank and then copied; but another number of ranks means other
 *     chunks and orders. dt_all_reduce moves as many bytes and adds by one fixed tree of rank numbers, ((0+1) + (2+3))
 *     + .., for every element. At 2 ranks a+b = b+a and the two agree; from 3 on some elements differ in their last
 *     bits. That alone does not make training on 2 and on 4 ranks equal: what the ranks put in must be a part of the
 *     same tree (31_data_parallel.c).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 22_ring.c -o 22_ring -lm -lpthread
 *     ./22_ring --ranks 4                        (1 to 8 ranks; one rank has nobody to send to)
 *
 * What you should see
 *     The rounds drawn as text. Rank r begins with the digit 1 at place r (1, 10, 100, ..), so a number shows whose
 *     parts are in a sum: 0110 has those of ranks 1 and 2. Then a large vector of random numbers: the bytes against the
 *     formula (chunks are not quite equal), and in how many elements the ring and dt_all_reduce differ in their bits.
 *
 * Read on: 31_data_parallel.c. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = 1000003 }; /* no multiple of any rank count: chunks differ by one element */

typedef struct ring {
    dt_comm *c;
    int n, me, draw;
    float *data, *inbox; /* (count), (largest chunk) */
    int64_t count;
} ring;

/* Chunk k is [begin(k), begin(k+1)). */
static int64_t begin(const ring *r, int k) { return r->count * k / r->n; }

/* A ring of sends in which everybody sends first would wait for ever: here even ranks send first, odd ones receive. */
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
    float data[8], inbox[1], mine = 1, all = 0;
    dt_result e;
    for (int q = 0; q < r.me; q++) mine *= 10; /* powers of ten are exact up to 10^10 */
    for (int q = 0; q < r.n; q++) data[q] = mine, all = all * 10 + 1;
    r.data = data, r.inbox = inbox, r.count = r.n, r.draw = 1;
    e = all_reduce(&r);
    for (int k = 0; k < r.n; k++) *good = *good && data[k] == all; /* 1111 */
    return e;
}

/* Normal random numbers that depend on the rank, from the library's own generator: the same bits on every machine. */
static dt_result random_vector(int rank, float *to)
{
    dt_graph *g = NULL;
    dt_result e = dt_graph_open(&g, (uint64_t)rank + 1);
    const float *x = e ? NULL : dt_value(g, dt_param(g, "x", dt_shape1(LARGE), DT_INIT_NORMAL, 1.0f));
    if (x) memcpy(to, x, LARGE * sizeof *to);
    else if (!e) e = dt_graph_result(g);
    dt_graph_close(&g);
    return e;
}

/* Bytes of this rank that have reached the others, counted by the library. */
static int64_t sent(const ring *r)
{
    int64_t bytes = 0;
    for (int q = 0; q < r->n; q++) bytes += dt_comm_sent(r->c, q);
    return bytes;
}

/* Sums of n normal numbers in two orders differ by a few units in the last place, or something is wrong. */
static int compare(const ring *r, const float *by_tree, int64_t ring_bytes, int64_t tree_bytes)
{
    int64_t differ = 0, bytes = LARGE * 4, formula = 2 * (r->n - 1) * bytes / r->n;
    double worst = 0;
    for (int64_t i = 0; i < LARGE; i++) {
        differ += memcmp(&r->data[i], &by_tree[i], sizeof *by_tree) != 0;
        worst = fmax(worst, fabs((double)r->data[i] - (double)by_tree[i]));
    }
    if (!r->me) {
        printf("\n%d floats on each of %d ranks: S = %lld bytes\n", LARGE, r->n, (long long)bytes);
        printf("  2(n-1)/n S = %lld bytes; rank 0 sent %lld by the ring, %lld by dt_all_reduce\n", (long long)formula,
               (long long)ring_bytes, (long long)tree_bytes);
        printf("  ring and dt_all_reduce differ in %.1f %% of the elements, by at most %.1e\n",
               100.0 * (double)differ / LARGE, worst);
    }
    return worst < 1e-5 && (r->n > 2 || differ == 0) && llabs((long long)(ring_bytes - formula)) <= 8 * r->n;
}

static dt_result large(ring r, int *good)
{
    void *memory = NULL;
    float *by_tree;
    int64_t before, between;
    dt_result e = dt_comm_alloc(r.c, 3 * LARGE * (int64_t)sizeof(float), &memory); /* peers read it in place */
    if (e) return e;
    r.data = (float *)memory, r.inbox = r.data + LARGE, by_tree = r.data + 2 * LARGE, r.count = LARGE;
    e = random_vector(r.me, r.data);
    if (!e) memcpy(by_tree, r.data, LARGE * sizeof *by_tree);
    before = sent(&r);
    if (!e) e = all_reduce(&r);
    between = sent(&r);
    if (!e) e = dt_all_reduce(r.c, by_tree, LARGE, DT_SUM);
    if (!e) *good = compare(&r, by_tree, between - before, sent(&r) - between) && *good;
    return e;
}

int main(int argc, char **argv)
{
    ring r;
    int good = 1;
    dt_result e;
    memset(&r, 0, sizeof r);
    e = dt_comm_open(&r.c, &argc, &argv);
    if (e) return dt_fail("22_ring");
    r.n = dt_comm_size(r.c), r.me = dt_comm_rank(r.c);
    if (argc > 1 || r.n > 8) {
        if (!r.me) fprintf(stderr, "22_ring: the option is --ranks N, and the drawing has room for 8 ranks\n");
        return dt_exit_code(DT_E_USAGE);
    }
    if (r.n == 1) printf("one rank has nobody to send to: try ./22_ring --ranks 4\n");
    e = small(r, &good);
    if (!e) e = large(r, &good);
    if (!e) e = dt_barrier(r.c);
    dt_comm_close(&r.c);
    if (e) return dt_fail("22_ring");
    if (!good) return fprintf(stderr, "FAILED on rank %d: bytes or sums are not as they should be\n", r.me), 1;
    if (!r.me) printf("ok: the ring's sum is dt_all_reduce's, but for the last bits\n");
    return 0;
}
