/* 92_placement: should the machines of a job stand close together, or so that no two fail together?
 *
 * What you learn
 *     - Placement decides time, not bits: the same job sends the same bytes and reaches the same hash on every link.
 *     - EC2's placement groups: cluster, close together in one zone, for training; partition, sets of racks that share
 *       nothing, at most 7 per zone, for systems that keep copies; spread, each instance on a rack of its own, at most
 *       7 running ones per zone. "Partition" is this strategy, no part of a zone and no cut network.
 *     - "Spread is safer" is half of the truth. The nodes lost on average are the same. Spread makes many small losses
 *       of few large ones: good for a service that lives while one copy lives, bad for training that stands still when
 *       any node is lost: 1 - (1-p)^racks (1-q)^nodes.
 *     - SageMaker chooses the place of a training job. On EC2 it is your work: 96_checklist.c.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 92_placement.c -o 92_placement -lm -lpthread
 *     ./92_placement --ranks 4 --nodes 2
 *
 * What it prints (~: measured)
 *     A job on 2 nodes:
 *     cluster         1e8      5e-5    ~116.3          ~0.74     1212576   90f4bee78650
 *     12 nodes, a day; drawn (exact):
 *                racks zones               any lost  lost on average        when any     half or more lost
 *     cluster        1     1    7.717 % ( 7.721 %)    0.299 (0.299)     3.87 (3.87)   2.0012 % (2.0000 %)
 *     partition      4     1   13.136 % (13.148 %)    0.299 (0.299)     2.28 (2.27)   0.2506 % (0.2337 %)
 *     spread        12     2   26.111 % (26.109 %)    0.298 (0.299)     1.14 (1.14)   0.0000 % (0.0000 %)
 *     ok: one hash, the same bytes, no time below the link's; failures as by formula
 *
 * Predict first: with 24 nodes instead of 12, which of the three chances of "any lost" grows least?
 * Exercise: give training a hot spare: a day is lost only with two nodes. Which strategy is best then?
 *
 * Read on: 93_capacity.c for waiting until there is room, 58_nodes.c for ranks on nodes. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPECTED "90f4bee7865012458eddfda6c685f7dff6b17124d62127b980b816aa7b0597f3"
enum { STEPS = 6, SUMS = 20, NODES = 12, BATCH = 4096, DAYS = 64 * BATCH, PER_ZONE = 7 };
static const float RACK = 0.02f, NODE = 0.005f; /* fail on a day with this probability */

typedef struct place {
    const char *name, *rate, *delay; /* of the link: bytes per second, seconds */
    int racks;                       /* of the 12 nodes */
} place;
static const place places[3] = {
    {"cluster", "1e8", "5e-5", 1}, {"partition", "2e7", "2e-4", 4}, {"spread", "2e6", "2e-3", NODES}};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Trains: seconds of all steps, and bytes of each to other nodes, of this rank. */
static dt_result train(const char *text, double *seconds, int64_t *bytes, double *weights, char hash[65])
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = text, recipe.sequence = 32, recipe.batch = 8, recipe.steps = STEPS, recipe.validation = 0;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0;
    e = dt_trainer_open(&t, &recipe, &l);
    while (!e && info.step < STEPS) {
        e = dt_trainer_step(t, &info);
        *seconds += info.seconds, *bytes = info.far_bytes;
    }
    if (!e) *weights = (double)dt_trainer_weights(t), memcpy(hash, dt_trainer_hash(t), 65);
    dt_trainer_close(&t);
    return e;
}

/* The job on this link, and a line about it. bytes: of a step, of all ranks; they must stay what they are. */
static dt_result measure(const place *p, const char *text, float *bytes, int *good)
{
    double seconds = 0, weights = 0, each = now();
    float fine, all, one = 1;
    int64_t mine = 0;
    char hash[65] = "";
    dt_comm *c = NULL;
    dt_result e;
    setenv("DT_LINK_RATE", p->rate, 1), setenv("DT_LINK_DELAY", p->delay, 1);
    e = train(text, &seconds, &mine, &weights, hash);
    if (!e) e = dt_comm_open(&c, NULL, NULL);
    if (!e) e = dt_barrier(c);
    each = now();
    for (int i = 0; i < SUMS && !e; i++) e = dt_all_reduce(c, &one, 1, DT_SUM);
    each = (now() - each) / SUMS;
    /* The least times that the link allows: a busy machine only makes them longer. Some bytes are of small calls. */
    fine = seconds >= 0.95 * STEPS * (double)mine / atof(p->rate) && each >= 0.9 * atof(p->delay) &&
           !strcmp(hash, EXPECTED);
    all = (float)mine;
    if (!e) e = dt_all_reduce(c, &all, 1, DT_SUM);
    if (!e) e = dt_all_reduce(c, &fine, 1, DT_MIN);
    if (!e && *bytes <= 0) *bytes = all;
    /* the gradients: 2 (N-1)/N S of each of N nodes */
    if (!e && ((double)all < 8 * weights * (dt_comm_nodes(c) - 1) || all < *bytes || all > *bytes)) fine = 0;
    if (!(fine > 0)) *good = 0;
    if (!e && !dt_comm_rank(c))
        printf("%-10s %8s %9s %9.1f %14.2f %11.0f   %.12s\n", p->name, p->rate, p->delay, STEPS / seconds, 1e3 * each,
               (double)all, hash);
    dt_comm_close(&c);
    return e;
}

/* How many of the nodes are lost on a day: the probability of 0 .. NODES. A rack takes all its nodes. */
static void distribution(int racks, double *d)
{
    int each = NODES / racks;
    double p = (double)RACK, q = (double)NODE, one[NODES + 1] = {0}, next[NODES + 1], ways = 1;
    for (int k = 0; k <= each; ways *= (double)(each - k) / (k + 1), k++)
        one[k] = (1 - p) * ways * pow(q, k) * pow(1 - q, each - k);
    one[each] += p;
    memset(d, 0, (NODES + 1) * sizeof *d);
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
    memset(d, 0, (NODES + 1) * sizeof *d);
    for (int day = 0; day < DAYS && !e; day += BATCH) {
        dt_graph *g = NULL;
        const float *rack, *node;
        if ((e = dt_graph_open(&g, (uint64_t)day)) != DT_OK) return e;
        rack = dt_value(g, dt_dropout(g, dt_full(g, dt_shape2(BATCH, racks), 1), RACK));
        node = dt_value(g, dt_dropout(g, dt_full(g, dt_shape2(BATCH, NODES), 1), NODE));
        e = dt_graph_result(g);
        for (int i = 0; i < BATCH && !e; i++) {
            int lost = 0;
            for (int k = 0; k < NODES; k++) lost += !(node[i * NODES + k] * rack[i * racks + k % racks] > 0);
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
    for (int k = 1; k <= NODES; k++) {
        double value[3] = {1, k, k >= NODES / 2};
        for (int i = 0; i < 3; i++) sum[i] += value[i] * d[k], square[i] += value[i] * value[i] * d[k];
    }
}

static dt_result failures(const place *p, int *good)
{
    double exact[NODES + 1], drawn[NODES + 1], want[3], have[3], square[3], unused[3];
    double closed = 1 - pow(1 - (double)RACK, p->racks) * pow(1 - (double)NODE, NODES);
    dt_result e = draw(p->racks, drawn);
    if (e) return e;
    distribution(p->racks, exact);
    look(exact, want, square), look(drawn, have, unused);
    for (int i = 0; i < 3; i++) /* within five standard deviations of a mean of so many days */
        if (!(fabs(have[i] - want[i]) <= 5 * sqrt((square[i] - want[i] * want[i]) / DAYS))) *good = 0;
    if (fabs(want[0] - closed) > 1e-12) *good = 0;
    printf("%-10s %5d %5d %8.3f %% (%6.3f %%) %8.3f (%.3f) %8.2f (%.2f) %8.4f %% (%.4f %%)\n", p->name, p->racks,
           p->racks == NODES ? (NODES + PER_ZONE - 1) / PER_ZONE : 1, 100 * have[0], 100 * closed, have[1], want[1],
           have[1] / have[0], want[1] / want[0], 100 * have[2], 100 * want[2]);
    return e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_comm *c = NULL;
    int root, nodes, good = 1;
    float bytes = 0;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("92_placement");
    root = !dt_comm_rank(c), nodes = dt_comm_nodes(c);
    dt_comm_close(&c);
    if (argc > 1 || nodes < 2)
        return fprintf(stderr, "92_placement: the options are --ranks N and --nodes N, 2 or more\n"), 2;
    e = prose_temporary(text, 20000);
    if (root)
        printf("A job on %d nodes:\n%-10s %8s %9s %9s %14s %11s\n", nodes, "", "bytes/s", "delay, s", "steps/s",
               "sum of 1, ms", "bytes/step");
    for (int i = 0; i < 3 && !e; i++) e = measure(&places[i], text, &bytes, &good);
    remove(text);
    if (root && !e)
        printf("\n%d nodes, a day; drawn (exact):\n%-10s %5s %5s %22s %16s %15s %21s\n", NODES, "", "racks", "zones",
               "any lost", "lost on average", "when any", "half or more lost");
    for (int i = 0; i < 3 && !e && root; i++) e = failures(&places[i], &good);
    if (e) return dt_fail("92_placement");
    if (!root) return 0; /* what is wrong anywhere rank 0 knows */
    if (good) return printf("ok: one hash, the same bytes, no time below the link's; failures as by formula\n"), 0;
    return fprintf(stderr, "FAILED: a hash, bytes, a time or a share of failures is not what it should be\n"), 1;
}
