/* 26_buffers: what happens to a collective whose data does not fit into its buffers?
 *
 * What you learn
 *     - A fast all-gather on k nodes: every rank copies its input to a scratch buffer, and gathers the inputs of the
 *       ranks with its local rank on other nodes into a sort buffer. Then the ranks of a node read each other's sort
 *       buffers. A rank receives k-1 inputs by messages instead of n-1, and needs S bytes of scratch and k S to sort.
 *     - AWS documents SMDDP's AllGather this way: 16 MB of scratch, 128 MB to sort. A call with a larger input goes by
 *       NCCL, without an error and with the same bits; only the time tells. Count the calls that leave the fast path.
 *     - All ranks must take the same path, or one waits for ranks that never come. Here all have the same buffers.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 26_buffers.c -o 26_buffers -lm -lpthread
 *     ./26_buffers --ranks 4 --nodes 2          (buffers are a thousandth of SMDDP's)
 *     ./26_buffers --ranks 8 --nodes 4
 *
 * What it prints (4 ranks)
 *       scratch      sort   fast    too large   too large   bytes sent      formula
 *        buffer    buffer         for scratch    for sort    by a rank
 *         16 KB    128 KB      3            5           0       700288       700288
 *        128 KB    512 KB      8            0           0       239232       239232
 *     ok: 32 gathers, 12 by the slow path, have the bits of dt_all_gather
 *
 * Predict first: with 8 ranks on 4 nodes, in which rows do more calls leave the fast path? The sort buffer holds k S.
 * Exercise: cut inputs that are too large into pieces that fit instead of falling back. How many pieces per row?
 *
 * Read on: 41_zero.c for who gathers weights, 27_trees.c for hierarchies, 58_nodes.c for nodes. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <string.h>

enum { KB = 1024, WIDTH = 128, TENSORS = 8, MOST = 4 * WIDTH * WIDTH + 4 * WIDTH };
enum { FAST, SCRATCH, SORT, PATHS }; /* path of a call: fast, or the buffer that is too small for it */
static int64_t slow; /* calls that left the fast path */
static const int64_t tensors[TENSORS] = {/* tables of tokens and positions, two norms, the four products */
    256 * WIDTH, 64 * WIDTH, 2 * WIDTH, 2 * WIDTH, 3 * WIDTH * WIDTH + 3 * WIDTH, WIDTH * WIDTH + WIDTH, MOST,
    4 * WIDTH * WIDTH + WIDTH};

typedef struct gatherer {
    dt_comm *all, *near, *far; /* everyone; this node; one rank of each node */
    int64_t scratch_bytes, sort_bytes, count[PATHS];
    float *scratch, *sort;
} gatherer;

static dt_result gatherer_open(gatherer *g, dt_comm *c, int64_t scratch, int64_t sort)
{
    int rank = dt_comm_rank(c), each = dt_comm_size(c) / dt_comm_nodes(c);
    void *memory[2] = {NULL, NULL};
    memset(g, 0, sizeof *g), g->all = c, g->scratch_bytes = scratch, g->sort_bytes = sort;
    dt_result e = dt_comm_split(c, rank / each, &g->near);
    if (!e) e = dt_comm_split(c, rank % each, &g->far);
    if (!e) e = dt_comm_alloc(g->far, g->scratch_bytes, &memory[0]);
    if (!e) e = dt_comm_alloc(g->near, g->sort_bytes, &memory[1]);
    g->scratch = (float *)memory[0], g->sort = (float *)memory[1];
    return e;
}

/* The slow way: each input goes around all ranks. Even ranks send first, odd ones receive first. */
static dt_result ring(dt_comm *c, const float *in, float *out, int64_t count)
{
    int n = dt_comm_size(c), me = dt_comm_rank(c), right = (me + 1) % n, left = (me + n - 1) % n;
    dt_result e = DT_OK;
    memmove(out + me * count, in, (size_t)count * sizeof *out);
    for (int k = 0; k < n - 1 && !e; k++) {
        float *mine = out + (me - k + n) % n * count, *other = out + (me - k - 1 + n) % n * count;
        if (me % 2 == 0) e = dt_send(c, mine, count, right);
        if (!e) e = dt_recv(c, other, count, left);
        if (!e && me % 2) e = dt_send(c, mine, count, right);
    }
    return e;
}

/* in (count), out (size,count). */
static dt_result gather(gatherer *g, const float *in, float *out, int64_t count)
{
    int nodes = dt_comm_size(g->far), each = dt_comm_size(g->near);
    int64_t bytes = 4 * count;
    int path = bytes > g->scratch_bytes ? SCRATCH : bytes * nodes > g->sort_bytes ? SORT : FAST;
    g->count[path]++, slow += path != FAST;
    if (path != FAST) return ring(g->all, in, out, count);
    memcpy(g->scratch, in, (size_t)bytes);
    dt_result e = ring(g->far, g->scratch, g->sort, count);
    if (!e) e = dt_barrier(g->near); /* all ranks of the node have theirs .. */
    for (int i = 0; i < each && !e; i++) {
        const float *sorted = (const float *)dt_comm_peer(g->near, g->sort, i);
        for (int k = 0; k < nodes; k++) memcpy(out + (k * each + i) * count, sorted + k * count, (size_t)bytes);
    }
    return e ? e : dt_barrier(g->near); /* .. and have read all of them before one is overwritten */
}

static double sent_by(const dt_comm *c)
{
    double bytes = 0;
    for (int q = 0; q < dt_comm_size(c); q++) bytes += (double)dt_comm_sent(c, q);
    return bytes;
}

/* Gathers every tensor and checks bits, counters and bytes. */
static dt_result row(dt_comm *c, int64_t scratch, int64_t sort, float *memory, int *good)
{
    int rank = dt_comm_rank(c), n = dt_comm_size(c), nodes = dt_comm_nodes(c);
    int64_t fits = scratch < sort / nodes ? scratch : sort / nodes, fit = 0;
    float *in = memory, *out = in + MOST, *exact = out + MOST + n;
    double before, sent, formula = 0;
    gatherer g;
    dt_result e = gatherer_open(&g, c, scratch, sort);
    before = sent_by(c);
    for (int t = 0; t < TENSORS && !e; t++) {
        int64_t count = (tensors[t] + n - 1) / n;
        for (int64_t i = 0; i < count; i++) in[i] = (float)((i * 7919 + t * 104729 + rank * 1299709) % 65536) / 3;
        memset(out, 0, (size_t)(n * count) * sizeof *out);
        e = gather(&g, in, out, count);
        before -= sent_by(c);
        if (!e) e = dt_all_gather(c, in, exact, count); /* this call does not count */
        before += sent_by(c);
        if (!e && memcmp(out, exact, (size_t)(n * count) * sizeof *out)) *good = 0;
        fit += 4 * count <= fits;
        formula += 4.0 * (double)count * (4 * count <= fits ? nodes - 1 : n - 1);
    }
    sent = sent_by(c) - before;
    *good = *good && g.count[FAST] == fit && sent >= formula && sent <= formula;
    if (!e && !rank)
        printf("%6lld KB %6lld KB %6lld %12lld %11lld %12.0f %12.0f\n", (long long)scratch / KB, (long long)sort / KB,
               (long long)g.count[FAST], (long long)g.count[SCRATCH], (long long)g.count[SORT], sent, formula);
    dt_comm_close(&g.far), dt_comm_close(&g.near);
    return e;
}

int main(int argc, char **argv)
{
    static const int64_t buffers[4][2] = {
        {16 * KB, 128 * KB}, {64 * KB, 128 * KB}, {64 * KB, 32 * KB}, {128 * KB, 512 * KB}};
    dt_comm *c = NULL;
    static float memory[3 * MOST + 2 * 1024];
    int root, n, good = 1;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("26_buffers");
    root = !dt_comm_rank(c), n = dt_comm_size(c);
    if (argc > 1 || n % dt_comm_nodes(c) || n > 1024)
        return fprintf(stderr, "26_buffers: the options are --ranks and --nodes, which divides it\n"), 2;
    if (root)
        printf("  scratch      sort   fast    too large   too large   bytes sent      formula\n"
               "   buffer    buffer         for scratch    for sort    by a rank\n");
    for (int i = 0; i < 4 && !e; i++) e = row(c, buffers[i][0], buffers[i][1], memory, &good);
    dt_comm_close(&c);
    if (e) return dt_fail("26_buffers");
    if (!good) return fprintf(stderr, "FAILED: a bit, a count of calls or a number of bytes is wrong\n"), 1;
    if (root) printf("ok: %d gathers, %d by the slow path, have the bits of dt_all_gather\n", 4 * TENSORS, (int)slow);
    return 0;
}
