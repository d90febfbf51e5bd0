/* 62_rule_of_thumb: "below 100 million weights and a batch of 64, several GPUs rarely pay": how often is that right?
 *
 * What you learn
 *     Several ranks pay when the exchange is short beside the work. Both grow with the number of weights, it cancels:
 *         work      6 P u b / F               b samples, each of which uses a weight u times; F FLOP/s
 *         exchange  2 (n-1)/n 2 P / B         16-bit gradients; and 2 (n-1) alpha, which only small models notice
 *     Four ranks are at least twice as fast as one if the exchange takes at most a quarter of the work, that is, for
 *         u b >= 2 F / B                      uses of a weight in a batch; whatever P is
 *     The rule of thumb knows P and b, and lacks u, F and B. u is the work of a sample: 1 for a row of a table in dense
 *     layers, 512 for a text of 512 tokens, 160 for an image of 224 pixels in a ResNet-50, 640 for one of 448, and 0.01
 *     for a model that is an embedding table above all. So a CNN of 25 million weights on large images pays with a
 *     batch of 32, and an embedding model of a billion does not with 256. Ask for communication / computing instead.
 *     The rule speaks of its corner alone, and is right there where networks are slow: in all of it at 10 Gbit/s, in
 *     four fifths by EFA, in less than half inside a node. Read the other way, "else it pays", it is right in a
 *     quarter, a half and two thirds.
 *     The order of decisions, cheapest first: one GPU; if the model fits and is too slow, data parallel in one node,
 *     then over nodes; if it does not fit, its states sharded or the model cut, in as few nodes as hold it. "Horovod,
 *     for extreme scale" is no fourth step: it has replicas only, and does not make anything fit. DeepSpeed does, with
 *     ZeRO (41_zero.c). The same holds for SMDDP: it makes sums and gathers fast, and does not shard. For 50 billion
 *     weights on 64 GPUs it is half of an answer; the other half is sharded data parallel.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 62_rule_of_thumb.c -o 62_rule_of_thumb -lm -lpthread
 *     ./62_rule_of_thumb
 *
 * What you should see
 *     For three links a confusion table of the rule against the model over a grid, agreement by kind of sample, and
 *     the same grid with the rule u b >= 2 F / B. Agreement is a number of this grid, not of the world: what is checked
 *     are the counts and the cells named above. Then six jobs and where their decisions end.
 *
 * Read on: 60_when_not.c for the break-even batch measured, 61_scaling.c for large jobs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LINKS = 3, KINDS = 5, SIZES = 7, BATCHES = 6, CELLS = KINDS * SIZES * BATCHES, RANKS = 4 };
static const struct {
    const char *name;
    double alpha, bytes;
} links[LINKS] = {{"TCP, 10 Gbit/s", 50e-6, 1.25e9}, {"EFA, 100 Gbit/s", 20e-6, 12.5e9}, {"NVLink", 5e-6, 300e9}};
static const struct {
    const char *name;
    double uses;
} kinds[KINDS] = {
    {"embeddings", 0.01}, {"rows", 1}, {"images of 224", 160}, {"512 tokens", 512}, {"images of 448", 640}};
static const double sizes[SIZES] = {1e6, 1e7, 2.5e7, 9e7, 3e8, 1e9, 1e10};
static const double batches[BATCHES] = {4, 16, 32, 64, 256, 1024};
static const double flops = 0.4 * 125e12;

static double work(double weights, double uses, double batch) { return 6 * weights * uses * batch / flops; }

/* Are RANKS ranks at least twice as fast as one? */
static int pays(double weights, double uses, double batch, double alpha, double bytes)
{
    double alone = work(weights, uses, batch);
    double exchange = 2 * (RANKS - 1) * alpha + 2.0 * (RANKS - 1) / RANKS * 2 * weights / bytes;
    return alone / (alone / RANKS + exchange) >= 2;
}

static int rule_of_thumb(double weights, double batch) { return !(weights < 100e6 && batch < 64); }

/* The grid for one link. count[r][m]: the rule says r, the model m; kind: cells of each kind where they agree; ratio:
 * cells where u b >= 2 F / B agrees with the model. */
static void grid(int l, int count[2][2], int kind[KINDS], int *ratio)
{
    memset(count, 0, 4 * sizeof **count);
    memset(kind, 0, KINDS * sizeof *kind);
    *ratio = 0;
    for (int k = 0; k < KINDS; k++)
        for (int s = 0; s < SIZES; s++)
            for (int b = 0; b < BATCHES; b++) {
                int rule = rule_of_thumb(sizes[s], batches[b]);
                int model = pays(sizes[s], kinds[k].uses, batches[b], links[l].alpha, links[l].bytes);
                count[rule][model]++;
                kind[k] += rule == model;
                *ratio += model == (kinds[k].uses * batches[b] >= 2 * flops / links[l].bytes);
            }
}

static int confusion(void)
{
    int good = 1, before = -1;
    printf("%d cells. Rule: pays from 100 million weights or 64 samples on. Model: %d ranks are twice as fast.\n",
           CELLS, RANKS);
    for (int l = 0; l < LINKS; l++) {
        int count[2][2], kind[KINDS], ratio, agree, sum = 0;
        grid(l, count, kind, &ratio);
        agree = count[0][0] + count[1][1];
        printf("\n%-16s         model: yes     no\n", links[l].name);
        printf("    the rule says yes  %7d%7d\n", count[1][1], count[1][0]);
        printf("    the rule says no   %7d%7d   right in %.0f %% of its corner\n", count[0][1], count[0][0],
               100.0 * count[0][0] / (count[0][0] + count[0][1]));
        printf("  agree in %.0f %%:", 100.0 * agree / CELLS);
        for (int k = 0; k < KINDS; k++) {
            printf("%s %s %.0f", k ? "," : "", kinds[k].name, 100.0 * kind[k] / (SIZES * BATCHES));
            sum += kind[k];
        }
        printf("\n  u b >= 2 F / B = %.0f agrees in %.0f %%\n", 2 * flops / links[l].bytes, 100.0 * ratio / CELLS);
        good = good && agree == sum && agree + count[0][1] + count[1][0] == CELLS && ratio >= 0.95 * CELLS;
        good = good && agree < 0.6 * CELLS && count[0][1] > before; /* the faster the link, the more it misses */
        before = count[0][1];
    }
    return good;
}

/* Where messages cost nothing the number of weights does not matter, and the border is where it should be. */
static int cancels(void)
{
    int good = 1;
    for (int l = 0; l < LINKS; l++)
        for (double uses = 2 * flops / links[l].bytes, weights = 1e5; weights < 1e13; weights *= 10)
            good = good && pays(weights, uses * 1.001, 1, 0, links[l].bytes) &&
                   !pays(weights, uses * 0.999, 1, 0, links[l].bytes);
    return good && pays(25e6, 640, 32, links[1].alpha, links[1].bytes) && !rule_of_thumb(25e6, 32) &&
           !pays(1e9, 0.01, 256, links[1].alpha, links[1].bytes) && rule_of_thumb(1e9, 256);
}

/* Bytes: weights, gradients and AdamW's state in mixed precision; nine tenths of a GPU of 80 GB for them. */
static double states(double weights) { return 16 * weights; }
static const double gpu_memory = 0.9 * 80e9;

/* Nodes of 8 GPUs. */
static int decide(double weights, double hours, double deadline, char *text, size_t size)
{
    int nodes = (int)ceil(states(weights) / (8 * gpu_memory));
    if (states(weights) <= gpu_memory) {
        int gpus = 8;
        if (hours <= deadline) return snprintf(text, size, "fits, in time: one GPU"), 1;
        if (hours / (0.9 * 8) <= deadline) return snprintf(text, size, "fits, too slow: data parallel in one node"), 8;
        while (hours / (0.8 * gpus) > deadline) gpus += 8;
        return snprintf(text, size, "fits, too slow in one node: data parallel on %d nodes", gpus / 8), gpus;
    }
    snprintf(text, size, "%.0f GB of states do not fit: sharded or cut, nodes: %d", 1e-9 * states(weights), nodes);
    return 8 * nodes;
}

static int decisions(void)
{
    static const struct {
        double weights, hours, deadline;
        int gpus;
    } jobs[] = {{25e6, 3, 5, 1},    {1.5e9, 30, 5, 8},      {1.5e9, 50, 5, 16},
                {7e9, 400, 72, 8}, {70e9, 4000, 500, 16}, {175e9, 9000, 500, 40}};
    int good = 1;
    printf("\n%10s %14s %9s\n", "weights", "hours, 1 GPU", "deadline");
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        char text[100];
        good = good && decide(jobs[i].weights, jobs[i].hours, jobs[i].deadline, text, sizeof text) == jobs[i].gpus;
        printf("%10g %14.0f %9.0f   %s\n", jobs[i].weights, jobs[i].hours, jobs[i].deadline, text);
    }
    printf("50 billion weights on 64 GPUs: %.0f GB of states on each as replicas, %.1f GB sharded\n", 1e-9 * states(50e9),
           1e-9 * states(50e9) / 64);
    return good && fabs(states(50e9) - 800e9) < 1 && states(50e9) > gpu_memory && states(50e9) / 64 < gpu_memory;
}

int main(void)
{
    int good = confusion();
    good = cancels() && good;
    good = decisions() && good;
    if (!good) return fprintf(stderr, "FAILED: a count, a cell or a decision is not what it should be\n"), 1;
    printf("ok: the rule agrees with the model in less than 60 %%, u b >= 2 F / B in at least 95 %%, on each link\n");
    return 0;
}
