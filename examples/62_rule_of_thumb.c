/* 62_rule_of_thumb: "below 100 million weights and a batch of 64, several GPUs rarely pay": how often is that right?
 *
 * What you learn
 *     - Work is 6 P u b / F for b samples that use a weight u times; the exchange is 2 (n-1)/n 2 P / B. P cancels.
 *       Four ranks are at least twice as fast as one if u b >= 2 F / B.
 *     - The rule knows P and b and lacks u, F and B. u is 1 for a row of a table, 512 for a text of 512 tokens, 160
 *       for an image of 224 pixels in a ResNet-50, 640 for one of 448, 0.01 for an embedding model. A CNN of 25
 *       million weights on large images pays with a batch of 32; an embedding model of a billion does not with 256.
 *     - The rule is right in its corner where networks are slow: in all of it at 10 Gbit/s, in four fifths by EFA, in
 *       less than half inside a node. The counts are those of this grid.
 *     - Read the other way, "else it pays", the rule is right in a quarter, a half and two thirds. Ask for
 *       communication / computing instead.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 62_rule_of_thumb.c -o 62_rule_of_thumb -lm -lpthread
 *     ./62_rule_of_thumb
 *     ./62_rule_of_thumb --speed 4               (GPUs so many times as fast)
 *
 * What it prints
 *     TCP, 10 Gbit/s           model: yes     no
 *       u b >= 2 F / B = 80000 agrees in 100 %
 *     EFA, 100 Gbit/s          model: yes     no
 *       u b >= 2 F / B = 8000 agrees in 98 %
 *     NVLink                   model: yes     no
 *       u b >= 2 F / B = 333 agrees in 99 %
 *     ok: the rule agrees with the model in less than 60 %, u b >= 2 F / B in at least 95 %, on each link
 *
 * Predict first: GPUs of four times the speed: does the rule get better or worse?
 * Exercise: put the kind of sample you train on into the table. From which batch on do four ranks pay by EFA?
 *
 * Read on: 63_instances.c for the machines, 67_decisions.c for the order of decisions. */
#include "option.h"
#include <math.h>

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
static double flops = 0.4 * 125e12;

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

int main(int argc, char **argv)
{
    double speed = 1;
    option list[] = {{"--speed", 0.01, 100, &speed}};
    int good;
    if (!options_read(argc, argv, list, 1)) return 2;
    flops *= speed, good = confusion();
    if (argc > 1) return printf("ok: by your number; other inputs: not checked\n"), 0;
    if (!cancels() || !good) return fprintf(stderr, "FAILED: a count or a cell is not what it should be\n"), 1;
    printf("ok: the rule agrees with the model in less than 60 %%, u b >= 2 F / B in at least 95 %%, on each link\n");
    return 0;
}
