/* 54_buffers: collectives that need buffers, and what happens to the calls that do not fit.
 *
 * What you learn
 *     A fast all-gather of N nodes with L ranks each does not send round one ring. Each rank copies its input to a
 *     scratch buffer that the network card knows, gathers those of the ranks with its seat on the other nodes into a
 *     second buffer, and the ranks of a node read these of each other, sorted into the order of ranks. N - 1 rounds
 *     between nodes, not NL - 1, and fewer bytes. The price is memory: S bytes of scratch, N S bytes to sort.
 *     This is how AWS documents SMDDP's AllGather: scratch of 16 MB, a sort buffer of 128 MB (two environment variables
 *     change them), and an input that is larger than the scratch, or than the sort buffer / N, goes by NCCL. That call
 *     alone: there is no error, the result has the same bits, and only the time tells. Who counts on the fast path
 *     counts the calls that leave it, as here. Up to 8 nodes the scratch decides what fits, then the sort buffer.
 *     All ranks must decide alike, or one waits in a ring for ranks that are elsewhere. So what decides must be equal
 *     everywhere: here the smallest buffers that any rank could get, agreed on once.
 *     Which library runs at all is another question, asked once, at the start, in an order: a job that must not run
 *     slowly gives a list without the slow ones and is refused; others fall back, and should say so in one line. (The
 *     SageMaker SDK refuses SMDDP where it is not supported; falling back is what its collectives do, call by call.)
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 54_buffers.c -o 54_buffers -lm -lpthread
 *     ./54_buffers --ranks 4 --nodes 2          (buffers are a thousandth of SMDDP's)
 *     ./54_buffers --ranks 8 --nodes 4
 *     mpicc -O2 -DDT_MPI -I.. 54_buffers.c -o 54_buffers -lm -lpthread && DT_NODES=2 mpirun --oversubscribe -n 4 ./54_buffers
 *
 * What you should see
 *     The back ends asked for, what was missing, what was taken. Then the weights of a small GPT gathered with five
 *     pairs of buffers: calls on the fast path, calls too large for one buffer or the other, bytes sent beside the
 *     formula (which MPI's own algorithm does not show). The bits are those of one exact all-gather in every row.
 *
 * Read on: 20_zero.c for who gathers weights, 38_race.c for algorithms, 33_nodes.c for nodes. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KB = 1024, WIDTH = 128, TENSORS = 8, MOST = 4 * WIDTH * WIDTH + 4 * WIDTH };
enum { FAST, SCRATCH, SORT, PATHS }; /* the way of a call: the fast one, or the buffer for which it is too large */
static const int64_t tensors[TENSORS] = {/* weights: tables of tokens and positions, two norms, the four products */
    256 * WIDTH, 64 * WIDTH, 2 * WIDTH, 2 * WIDTH, 3 * WIDTH * WIDTH + 3 * WIDTH, WIDTH * WIDTH + WIDTH, MOST,
    4 * WIDTH * WIDTH + WIDTH};

typedef struct gatherer {
    dt_comm *all, *near, *far; /* everyone; this node; one rank of each node */
    int64_t scratch_bytes, sort_bytes, count[PATHS];
    float *scratch, *sort;
    dt_algorithm otherwise;
} gatherer;

/* Opens with the smallest buffers that a rank offers. */
static dt_result gatherer_open(gatherer *g, dt_comm *c, dt_algorithm otherwise, int64_t scratch, int64_t sort)
{
    int rank = dt_comm_rank(c), each = dt_comm_size(c) / dt_comm_nodes(c);
    float least[2] = {(float)scratch, (float)sort};
    void *memory[2] = {NULL, NULL};
    dt_result e = dt_all_reduce(c, least, 2, DT_MIN);
    memset(g, 0, sizeof *g);
    g->all = c, g->otherwise = otherwise, g->scratch_bytes = (int64_t)least[0], g->sort_bytes = (int64_t)least[1];
    if (!e) e = dt_comm_split(c, rank / each, &g->near);
    if (!e) e = dt_comm_split(c, rank % each, &g->far);
    if (!e) e = dt_comm_alloc(g->far, g->scratch_bytes, &memory[0]);
    if (!e) e = dt_comm_alloc(g->near, g->sort_bytes, &memory[1]);
    g->scratch = (float *)memory[0], g->sort = (float *)memory[1];
    return e;
}

static void gatherer_close(gatherer *g)
{
    dt_comm_free(&g->far);
    dt_comm_free(&g->near);
}

static dt_result gather_by(dt_comm *c, dt_algorithm how, const float *in, float *out, int64_t count)
{
    dt_collective what = dt_collective_of(DT_ALL_GATHER, in, out, count);
    what.algorithm = how;
    return dt_collect(c, &what);
}

/* in (count), out (size,count). */
static dt_result gather(gatherer *g, const float *in, float *out, int64_t count)
{
    int nodes = dt_comm_size(g->far), each = dt_comm_size(g->near);
    int64_t bytes = 4 * count;
    dt_result e;
    int path = bytes > g->scratch_bytes ? SCRATCH : bytes * nodes > g->sort_bytes ? SORT : FAST;
    g->count[path]++;
    if (path != FAST) return gather_by(g->all, g->otherwise, in, out, count);
    memcpy(g->scratch, in, (size_t)bytes);
    e = gather_by(g->far, DT_RING, g->scratch, g->sort, count);
    if (!e) e = dt_barrier(g->near); /* all of the node have theirs .. */
    for (int i = 0; i < each && !e; i++) {
        const float *seat = (const float *)dt_comm_peer(g->near, g->sort, i);
        for (int k = 0; k < nodes; k++) memcpy(out + (k * each + i) * count, seat + k * count, (size_t)bytes);
    }
    return e ? e : dt_barrier(g->near); /* .. and have read all, before anyone overwrites it */
}

/* NULL, or why a back end cannot be used here. */
static const char *lacks(dt_comm *c, const char *name, float *some)
{
    static char text[64];
    int version = 0;
    if (!strcmp(name, "nccl")) {
        if (dt_nccl_version(&version)) return dt_last_error();
        return snprintf(text, sizeof text, "NCCL %d is here, the buffers are not on a GPU", version), text;
    }
    return gather_by(c, strcmp(name, "native") ? DT_RING : DT_NATIVE, some, some + 1, 1) ? dt_last_error() : NULL;
}

/* The first of the list that works, and a line that says so; -1: none. */
static int choose(dt_comm *c, const char *const *names, int count, float *some)
{
    int root = !dt_comm_rank(c), taken = -1;
    if (root) printf("back end:");
    for (int i = 0; i < count && taken < 0; i++) {
        const char *why = lacks(c, names[i], some);
        if (!why) taken = i;
        else if (root) printf(" no %s (%s);", names[i], why);
    }
    if (root) printf(" %s%s\n", taken < 0 ? "refused" : "taken: ", taken < 0 ? "" : names[taken]);
    return taken;
}

static double sent_by(const dt_comm *c)
{
    double bytes = 0;
    for (int q = 0; q < dt_comm_size(c); q++) bytes += (double)dt_comm_sent(c, q);
    return bytes;
}

/* Gathers every tensor, and looks at bits, counters and bytes. last: what the last rank offers as scratch. */
static dt_result row(dt_comm *c, dt_algorithm otherwise, int64_t scratch, int64_t last, int64_t sort, float *memory,
                     int *good)
{
    int rank = dt_comm_rank(c), n = dt_comm_size(c), nodes = dt_comm_nodes(c);
    int64_t most = scratch < last ? scratch : last, fits = most < sort / nodes ? most : sort / nodes, fit = 0;
    float *in = memory, *out = in + MOST, *exact = out + MOST + n;
    double before, sent, formula = 0;
    gatherer g;
    dt_result e = gatherer_open(&g, c, otherwise, rank == n - 1 ? last : scratch, sort);
    before = sent_by(c);
    for (int t = 0; t < TENSORS && !e; t++) {
        int64_t count = (tensors[t] + n - 1) / n;
        for (int64_t i = 0; i < count; i++) in[i] = (float)((i * 7919 + t * 104729 + rank * 1299709) % 65536) / 3;
        memset(out, 0, (size_t)(n * count) * sizeof *out);
        e = gather(&g, in, out, count);
        sent = sent_by(c);
        if (!e) e = dt_all_gather(c, in, exact, count);
        before += sent_by(c) - sent; /* that one does not count */
        if (!e && memcmp(out, exact, (size_t)(n * count) * sizeof *out)) *good = 0;
        fit += 4 * count <= fits;
        formula += 4.0 * (double)count * (4 * count <= fits ? nodes - 1 : n - 1);
    }
    sent = sent_by(c) - before;
    if (g.count[FAST] != fit || g.count[SCRATCH] + g.count[SORT] != TENSORS - fit) *good = 0;
    if (otherwise == DT_RING && (sent > formula || sent < formula)) *good = 0;
    if (!e && !rank)
        printf("%6lld KB %6lld KB %6lld %12lld %11lld %12.0f %12.0f\n", (long long)most / KB, (long long)sort / KB,
               (long long)g.count[FAST], (long long)g.count[SCRATCH], (long long)g.count[SORT], sent, formula);
    gatherer_close(&g);
    return e;
}

int main(int argc, char **argv)
{
    static const char *const order[3] = {"nccl", "native", "ring"};
    static const int64_t buffers[5][3] = {
        {16 * KB, 16 * KB, 128 * KB}, {64 * KB, 64 * KB, 128 * KB}, {64 * KB, 64 * KB, 32 * KB},
        {128 * KB, 128 * KB, 512 * KB}, {128 * KB, 4 * KB, 512 * KB}};
    dt_comm *c = NULL;
    float *memory, verdict;
    int root, n, taken, good = 1;
    dt_result e = dt_comm_init(&c, &argc, &argv);
    if (e) return dt_fail("54_buffers");
    root = !dt_comm_rank(c), n = dt_comm_size(c);
    for (int q = 0; q < n; q++) good = good && dt_comm_node(c, q) == q / (n / dt_comm_nodes(c));
    if (argc > 1 || !good || n > 1024) return root ? fprintf(stderr, "54_buffers: --nodes divides --ranks\n"), 2 : 2;
    memory = (float *)calloc(3 * MOST + 2 * 1024, sizeof *memory);
    if (!memory) return fprintf(stderr, "54_buffers: no memory\n"), 1;
    taken = choose(c, order, 2, memory);
    good = taken < 0 || taken == 1;
    taken = choose(c, order, 3, memory);
    good = good && taken > 0;
    if (root)
        printf("\n%9s %9s %6s %12s %11s %12s %12s\n%9s %9s %6s %12s %11s %12s\n", "scratch", "sort", "fast",
               "too large", "too large", "bytes sent", "formula", "buffer", "buffer", "", "for scratch", "for sort",
               "by a rank");
    for (int i = 0; i < 5 && !e; i++)
        e = row(c, taken == 1 ? DT_NATIVE : DT_RING, buffers[i][0], buffers[i][1], buffers[i][2], memory, &good);
    verdict = (float)good;
    if (!e) e = dt_all_reduce(c, &verdict, 1, DT_MIN);
    dt_comm_free(&c);
    free(memory);
    if (e) return dt_fail("54_buffers");
    if (!root) return 0;
    if (verdict > 0) return printf("ok: fall-backs and bytes as by the list of sizes, and every bit is the same\n"), 0;
    return fprintf(stderr, "FAILED: a bit, a counter or a number of bytes is not what it should be\n"), 1;
}
