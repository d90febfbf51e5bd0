/* 97_racks: should machines stand so that no two fail together?
 *
 * What you learn
 *     - A rack takes all its nodes with it. Cluster is one rack here, the worst case; partition has four racks, spread
 *       twelve, in two zones, since a zone runs at most seven.
 *     - On average the three lose equally many nodes. Spread replaces a few large losses by many small ones.
 *     - "Spread is safer" is half of the truth: it is for a service that lives while one copy lives. Training stands
 *       still when any node is lost, with probability 1 - (1-p)^racks (1-q)^nodes, and spread has most racks.
 *     - Cluster is the only one that often loses half of the nodes at once. Checkpoints elsewhere help against that
 *       (77_mirror.c).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 97_racks.c -o 97_racks -lm -lpthread
 *     ./97_racks
 *     ./97_racks --nodes 24                      (a multiple of 4)
 *
 * What it prints
 *     12 nodes, a day; drawn (exact):
 *                racks zones               any lost  lost on average        when any     half or more lost
 *     cluster        1     1    7.717 % ( 7.721 %)    0.299 (0.299)     3.87 (3.87)   2.0012 % (2.0000 %)
 *     partition      4     1   13.136 % (13.148 %)    0.299 (0.299)     2.28 (2.27)   0.2506 % (0.2337 %)
 *     spread        12     2   26.111 % (26.109 %)    0.298 (0.299)     1.14 (1.14)   0.0000 % (0.0000 %)
 *     ok: 262144 days drawn for each, as by formula; days with a loss: cluster 7.7 %, spread 26.1 %
 *
 * Predict first: with 24 nodes instead of 12, which of the three chances of "any lost" grows least?
 * Exercise: give training a hot spare: a day is lost only when two nodes or more are. Which strategy is best then?
 *
 * Read on: README.md, the list of programs; 74_interval.c for what failures cost. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include <math.h>

enum { MOST = 48, BATCH = 4096, DAYS = 64 * BATCH, PER_ZONE = 7 };
static const float RACK = 0.02f, NODE = 0.005f; /* fail on a day with this probability */

static int nodes = 12;

typedef struct place {
    const char *name;
    int racks; /* of the nodes */
} place;

/* How many of the nodes are lost on a day: the probability of 0 .. nodes. A rack takes all its nodes. */
static void distribution(int racks, double *d)
{
    int each = nodes / racks;
    double p = (double)RACK, q = (double)NODE, one[MOST + 1] = {0}, next[MOST + 1], ways = 1;
    for (int k = 0; k <= each; ways *= (double)(each - k) / (k + 1), k++)
        one[k] = (1 - p) * ways * pow(q, k) * pow(1 - q, each - k);
    one[each] += p;
    memset(d, 0, (MOST + 1) * sizeof *d);
    d[0] = 1;
    for (int r = 0; r < racks; r++) {
        memset(next, 0, sizeof next);
        for (int a = 0; a <= r * each; a++)
            for (int b = 0; b <= each; b++) next[a + b] += d[a] * one[b];
        memcpy(d, next, sizeof next);
    }
}

/* The same, drawn: dropout, the library's Philox, decides who fails, with the same numbers on every machine. */
static dt_result draw(int racks, double *d)
{
    dt_result e = DT_OK;
    memset(d, 0, (MOST + 1) * sizeof *d);
    for (int day = 0; day < DAYS && !e; day += BATCH) {
        dt_graph *g = NULL;
        const float *rack, *node;
        if ((e = dt_graph_open(&g, (uint64_t)day)) != DT_OK) return e;
        rack = dt_value(g, dt_dropout(g, dt_full(g, dt_shape2(BATCH, racks), 1), RACK));
        node = dt_value(g, dt_dropout(g, dt_full(g, dt_shape2(BATCH, nodes), 1), NODE));
        e = dt_graph_result(g);
        for (int i = 0; i < BATCH && !e; i++) {
            int lost = 0;
            for (int k = 0; k < nodes; k++) lost += !(node[i * nodes + k] * rack[i * racks + k % racks] > 0);
            d[lost] += 1.0 / DAYS;
        }
        dt_graph_close(&g);
    }
    return e;
}

/* Three sums over a distribution: any lost, how many, half of them. */
static void look(const double *d, double *sum, double *square)
{
    for (int i = 0; i < 3; i++) sum[i] = square[i] = 0;
    for (int k = 1; k <= nodes; k++) {
        double value[3] = {1, k, k >= nodes / 2};
        for (int i = 0; i < 3; i++) sum[i] += value[i] * d[k], square[i] += value[i] * value[i] * d[k];
    }
}

/* lost: the share of days with a loss, drawn. */
static dt_result failures(const place *p, double *lost, int *good)
{
    double exact[MOST + 1], drawn[MOST + 1], want[3], have[3], square[3], unused[3];
    double closed = 1 - pow(1 - (double)RACK, p->racks) * pow(1 - (double)NODE, nodes);
    dt_result e = draw(p->racks, drawn);
    if (e) return e;
    distribution(p->racks, exact);
    look(exact, want, square), look(drawn, have, unused);
    for (int i = 0; i < 3; i++) /* within five standard deviations of a mean of so many days */
        if (!(fabs(have[i] - want[i]) <= 5 * sqrt((square[i] - want[i] * want[i]) / DAYS))) *good = 0;
    if (fabs(want[0] - closed) > 1e-12) *good = 0;
    *lost = have[0];
    printf("%-10s %5d %5d %8.3f %% (%6.3f %%) %8.3f (%.3f) %8.2f (%.2f) %8.4f %% (%.4f %%)\n", p->name, p->racks,
           p->racks == nodes ? (nodes + PER_ZONE - 1) / PER_ZONE : 1, 100 * have[0], 100 * closed, have[1], want[1],
           have[1] / have[0], want[1] / want[0], 100 * have[2], 100 * want[2]);
    return e;
}

int main(int argc, char **argv)
{
    place places[3] = {{"cluster", 1}, {"partition", 4}, {"spread", 0}};
    double number = nodes, lost[3];
    option list[] = {{"--nodes", 4, MOST, &number}};
    int good = 1;
    dt_result e = DT_OK;
    if (!options_read(argc, argv, list, 1)) return 2;
    if (fmod(number, 4) > 0)
        return fprintf(stderr, "97_racks: --nodes %g is not a multiple of 4: partition has 4 equal racks\n", number), 2;
    places[2].racks = nodes = (int)number;
    printf("%d nodes, a day; drawn (exact):\n%-10s %5s %5s %22s %16s %15s %21s\n", nodes, "", "racks", "zones",
           "any lost", "lost on average", "when any", "half or more lost");
    for (int i = 0; i < 3 && !e; i++) e = failures(&places[i], &lost[i], &good);
    if (e) return dt_fail("97_racks");
    if (!good) return fprintf(stderr, "FAILED: a share of failures is not what it should be\n"), 1;
    return printf("ok: %d days drawn for each, as by formula; days with a loss: cluster %.1f %%, spread %.1f %%\n",
                  (int)DAYS, 100 * lost[0], 100 * lost[2]), 0;
}
