/* 27_trees: when do two trees, or a hierarchy of nodes, beat a ring?
 *
 * What you learn
 *     - A collective is a list of messages in rounds. Each rank executes its own messages one at a time, in the order
 *       of the list. The list is the same on all ranks, so no two ranks wait for each other.
 *     - Double binary tree (Sanders, Speck, Traeff 2009; NCCL 2.4): in one tree half of the ranks are leaves, which
 *       send little. With two trees, each for half of the data, every rank is a leaf in one of them. A rank sends at
 *       most 2 S, in 2 log2 n rounds plus one per further piece, instead of the ring's 2(n-1).
 *     - Hierarchy of k nodes with g ranks: reduce-scatter inside nodes, a ring between nodes for each of the g
 *       sections, all-gather inside: 2(g-1) + 2(k-1) rounds. A node sends 2(k-1)/k S, with one ring 2(n-1)/n S.
 *     - Trees and hierarchies win where rounds cost most: small vectors, many ranks. The ring wins large vectors.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 27_trees.c -o 27_trees -lm -lpthread
 *     ./27_trees --ranks 8 --nodes 4
 *     DT_LINK_DELAY=0.002 DT_LINK_RATE=1e8 ./27_trees --ranks 16 --nodes 8     (slow emulated links: the one to read)
 *
 * What it prints (the second command; steps: messages one after the other, S: bytes of the vector; ~: measured here)
 *        bytes            rounds  steps  busiest rank  first node to        us
 *                                        sends, in S  others, in S
 *        20160 ring           30     60          1.88          1.88    ~73892
 *        20160 two trees       8     16          2.00          2.00    ~22763
 *        20160 hierarchy      16     32          1.88          1.75    ~64581
 *      2882880 ring           30     60          1.88          1.88   ~107811
 *      2882880 two trees      11     50          2.00          2.00   ~159744
 *      2882880 hierarchy      16     32          1.88          1.75   ~119351
 *     ok: 18 sums are right; bytes and rounds are those of the formulas
 *
 * Predict first: with 16 ranks on 4 nodes instead of 8, how many rounds does each of the three take?
 * Exercise: add the generator of balanced servers (25_balanced_buffers.c). Which column shows why they lose to a ring?
 *
 * Read on: 58_nodes.c for what crosses between nodes in training, 23_race.c for halving and doubling. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SMALL = 5040, LARGE = 720720, RANKS = 16, ROOM = 2048 }; /* floats; 2 .. 10, 12, 14, 15 and 16 divide both */

typedef struct message {
    int round, step, from, to, add; /* add to what the receiver has, or replace it */
    int64_t at, count;
} message;
typedef struct plan {
    dt_comm *c;
    int n, nodes, used;
    int64_t count;
    message list[ROOM];
} plan;

static void put(plan *p, int round, int from, int to, int add, int64_t at, int64_t end)
{
    message *m = &p->list[p->used++];
    m->round = round, m->step = 0, m->from = from, m->to = to, m->add = add, m->at = at, m->count = end - at;
}

/* The generators return the number of rounds. Ranks first, first + stride .. (n of them) sum [at, at + count). */
static int ring_of(plan *p, int first, int stride, int n, int round, int64_t at, int64_t count)
{
    for (int i = 0; i < 2 * (n - 1); i++)
        for (int q = 0; q < n; q++) {
            int64_t chunk = (q - i + 2 * n) % n, to = (q + 1) % n;
            put(p, round + i, first + q * stride, first + (int)to * stride, i < n - 1, at + count * chunk / n,
                at + count * (chunk + 1) / n);
        }
    return 2 * (n - 1);
}
static int ring(plan *p) { return ring_of(p, 0, 1, p->n, 0, 0, p->count); }

/* Places: 0 is the root; the parent of xx01[0..] and xx11[0..] is xx10[0..], or xx00[0..] if there is no xx10[0..]. */
static int parent(int place, int n)
{
    int bit = place & -place, up = (place ^ bit) | bit << 1;
    return up < n ? up : place ^ bit;
}
/* Odd places are leaves. A rank that has an odd place in one tree has an even one in the other. */
static int rank_at(int place, int tree, int n) { return !tree ? place : n % 2 ? (place + 1) % n : n - 1 - place; }
static int trees(plan *p)
{
    int n = p->n, pieces = p->count < LARGE ? 1 : 4, height[RANKS] = {0};
    for (int place = 1; place < n; place++)
        for (int below = place, d = 1; below; below = parent(below, n), d++)
            if (height[parent(below, n)] < d) height[parent(below, n)] = d;
    for (int i = 0; i < 2 * (n - 1) * pieces; i++) {
        int tree = i % 2, place = 1 + i / 2 % (n - 1), k = i / 2 / (n - 1), depth = 0;
        int me = rank_at(place, tree, n), up = rank_at(parent(place, n), tree, n);
        int64_t half = p->count / 2, at = tree * half + half * k / pieces, end = tree * half + half * (k + 1) / pieces;
        for (int q = place; q; q = parent(q, n)) depth++;
        put(p, k + height[place], me, up, 1, at, end);
        put(p, k + height[0] + depth - 1, up, me, 0, at, end);
    }
    return pieces - 1 + 2 * height[0];
}

/* Local rank s of each node sums section s of its node, then of all nodes, and gives it to its node. */
static int hierarchy(plan *p)
{
    int g = p->n / p->nodes, between = 2 * (p->nodes - 1);
    int64_t section = p->count / g;
    for (int i = 1; i < g; i++)
        for (int q = 0; q < p->n; q++) {
            int to = q / g * g + (q + i) % g;
            put(p, i - 1, q, to, 1, section * (to % g), section * (to % g + 1));
            put(p, g - 2 + between + i, q, to, 0, section * (q % g), section * (q % g + 1));
        }
    for (int s = 0; s < g; s++) (void)ring_of(p, s, g, p->nodes, g - 1, section * s, section);
    return 2 * (g - 1) + between;
}

static int in_order(const void *a, const void *b)
{
    const message *x = (const message *)a, *y = (const message *)b;
    if (x->round != y->round) return x->round - y->round;
    if (x->step != y->step) return x->step - y->step;
    if (x->from != y->from) return x->from - y->from;
    return x->to != y->to ? x->to - y->to : (x->at > y->at) - (x->at < y->at);
}

/* Gives every message the first step of its round in which its two ranks are free; returns the steps of all rounds. */
static int arrange(plan *p)
{
    uint32_t busy[RANKS];
    int round = -1, steps = 0, most = 0;
    qsort(p->list, (size_t)p->used, sizeof *p->list, in_order);
    for (message *m = p->list; m < p->list + p->used; m++) {
        if (m->round != round) memset(busy, 0, sizeof busy), steps += most, most = 0, round = m->round;
        while ((busy[m->from] | busy[m->to]) >> m->step & 1) m->step++;
        busy[m->from] |= 1u << m->step, busy[m->to] |= 1u << m->step;
        most = m->step >= most ? m->step + 1 : most;
    }
    qsort(p->list, (size_t)p->used, sizeof *p->list, in_order);
    return steps + most;
}

static dt_result execute(plan *p, float *data, float *inbox)
{
    int me = dt_comm_rank(p->c);
    dt_result e = DT_OK;
    for (const message *m = p->list; m < p->list + p->used && !e; m++) {
        if (m->from == me) e = dt_send(p->c, data + m->at, m->count, m->to);
        if (m->to != me) continue;
        e = dt_recv(p->c, m->add ? inbox : data + m->at, m->count, m->from);
        for (int64_t i = 0; i < m->count && m->add; i++) data[m->at + i] += inbox[i];
    }
    return e;
}

/* One vector by one generator: a line of the table, and whether everything is as it should be. */
static dt_result measure(plan *p, int way, float *data, int *good)
{
    static const char *const names[] = {"ring", "two trees", "hierarchy"};
    int (*const generators[])(plan *) = {ring, trees, hierarchy};
    int n = p->n, k = p->nodes, g = n / k, rounds, steps, log = 0;
    int64_t s = 4 * p->count, by[RANKS] = {0}, most = 0, far = 0, mine = 0;
    float us[2] = {1e30f, 0};
    dt_result e = DT_OK;
    p->used = 0, rounds = generators[way](p), steps = arrange(p);
    for (const message *m = p->list; m < p->list + p->used; m++) {
        by[m->from] += 4 * m->count, far += m->from / g == 0 && m->to / g ? 4 * m->count : 0;
        most = by[m->from] > most ? by[m->from] : most;
    }
    for (int trial = 0; trial < 3 && !e; trial++) {
        struct timespec a, b;
        for (int64_t i = 0; i < p->count; i++) data[i] = (float)(i % 7 + dt_comm_rank(p->c));
        e = dt_barrier(p->c);
        for (int q = 0; q < n; q++) mine -= dt_comm_sent(p->c, q);
        clock_gettime(CLOCK_MONOTONIC, &a);
        if (!e) e = execute(p, data, data + LARGE);
        clock_gettime(CLOCK_MONOTONIC, &b);
        for (int q = 0; q < n; q++) mine += dt_comm_sent(p->c, q);
        us[1] = (float)(b.tv_sec - a.tv_sec) * 1e6f + (float)(b.tv_nsec - a.tv_nsec) * 1e-3f;
        if (!e) e = dt_all_reduce(p->c, us + 1, 1, DT_MAX);
        us[0] = us[1] < us[0] ? us[1] : us[0];
        for (int64_t i = 0; i < p->count; i++) *good = *good && data[i] == (float)(n * (i % 7) + n * (n - 1) / 2);
    }
    while (1 << log < n) log++;
    *good = *good && mine == 3 * by[dt_comm_rank(p->c)]; /* the library counted what the list says */
    if (way == 0) *good = *good && rounds == 2 * (n - 1) && most == 2 * (n - 1) * s / n;
    if (way == 1) *good = *good && rounds <= (p->count < LARGE ? 0 : 3) + 2 * log && most <= 2 * s;
    if (way == 2) *good = *good && rounds == 2 * (g - 1) + 2 * (k - 1) && far == 2 * (k - 1) * s / k;
    if (!dt_comm_rank(p->c))
        printf("%8lld %-10s %6d %6d %13.2f %13.2f %9.0f\n", (long long)s, names[way], rounds, steps,
               (double)most / (double)s, (double)far / (double)s, (double)us[0]);
    return e;
}

int main(int argc, char **argv)
{
    plan *p = (plan *)calloc(1, sizeof *p);
    float *data = (float *)malloc(2 * LARGE * sizeof *data);
    int good = 1, me;
    dt_result e = DT_OK;
    if (!p || !data || dt_comm_open(&p->c, &argc, &argv)) return dt_fail("27_trees");
    p->n = dt_comm_size(p->c), p->nodes = dt_comm_nodes(p->c), me = dt_comm_rank(p->c);
    for (int q = 0; q < p->n; q++) good = good && dt_comm_node(p->c, q) == q / (p->n / p->nodes);
    if (argc > 1 || !good || p->n < 2 || p->n > RANKS || SMALL % p->n)
        return fprintf(stderr, "27_trees: use --ranks 2 to 10, 12, 14, 15 or 16, and --nodes that divide them\n"), 2;
    if (!me)
        printf("   bytes            rounds  steps  busiest rank  first node to        us\n"
               "                                   sends, in S  others, in S\n");
    for (p->count = SMALL; p->count <= LARGE && !e; p->count += LARGE - SMALL)
        for (int way = 0; way < 3 && !e; way++) e = measure(p, way, data, &good);
    dt_comm_close(&p->c);
    free(p), free(data);
    if (e) return dt_fail("27_trees");
    if (!good) return fprintf(stderr, "FAILED: a sum, or a number of bytes or rounds, is wrong\n"), 1;
    if (!me) printf("ok: 18 sums are right; bytes and rounds are those of the formulas\n");
    return 0;
}
