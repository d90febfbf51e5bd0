/* 62_rule_of_thumb: "below 100 million weights and a batch of 64, several GPUs rarely pay": how often is that right?
 *
 * What you learn
 *     - Work is 6 P u b / F for P weights, F FLOP/s and b samples that use a weight u times; the exchange is
 *       2 (n-1)/n 2 P / B at B bytes/s. P cancels. Four ranks are at least twice as fast as one if u b >= 2 F / B.
 *     - The rule knows P and b and lacks u, F and B. u is 1 for a row of a table, 512 for a text of 512 tokens, 160
 *       for an image of 224 pixels in a ResNet-50, 640 for one of 448, 0.01 for an embedding model. A CNN of 25
 *       million weights on large images pays with a batch of 32; an embedding model of a billion does not with 256.
 *     - The rule is right in its corner where networks are slow: in all of it at 10 Gbit/s, in four fifths by EFA, in
 *       less than half inside a node. The counts are those of this grid.
 *     - Read the other way, "else it pays", the rule is right in a quarter, a half and two thirds. Ask for
 *       communication / computing instead.
 *     - The trainer's own programs, simulated for texts on V100s, say the same as the model of two lines; less so
 *       inside a node, where small kernels and the update count as well.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 62_rule_of_thumb.c -o 62_rule_of_thumb -lm -lpthread
 *     ./62_rule_of_thumb
 *     ./62_rule_of_thumb --speed 4               (GPUs so many times as fast)
 *
 * What it prints
 *     TCP, 10 Gbit/s           model: yes     no
 *         the rule says yes       35    115
 *       u b >= 2 F / B = 80000 agrees in 100 %
 *     EFA, 100 Gbit/s          model: yes     no
 *         the rule says yes       74     76
 *         the rule says no        13     47   right in 78 % of its corner
 *       u b >= 2 F / B = 8000 agrees in 98 %
 *     80 cells of texts, simulated; fp32 gradients, so the border is 4 F / B
 *       TCP, 10 Gbit/s   the border agrees in 98 %, the rule in 29 %
 *       NVLink           the border agrees in 89 %, the rule in 69 %
 *     ok: the rule agrees in 45, 58 and 58 % of the cells, u b >= 2 F / B in 100, 98 and 99 %
 *
 * Predict first: GPUs of four times the speed: does the rule get better or worse?
 * Exercise: add sound to the kinds: an encoder that turns 30 seconds into 1500 frames uses each weight 1500 times. From
 *     which batch on do four ranks pay on each link? In how many cells of that kind is the rule right?
 *
 * Read on: 63_instances.c for the machines, 67_decisions.c for the order of decisions. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tools/simulate.h"
#include "option.h"
#include "simulated.h"

enum { LINKS = 3, KINDS = 5, SIZES = 7, BATCHES = 6, CELLS = KINDS * SIZES * BATCHES, RANKS = 4, TEXTS = 80 };
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

/* Are RANKS ranks at least twice as fast as one? */
static int pays(double weights, double uses, double batch, int l)
{
    double alone = cost_computing(weights, uses * batch, flops);
    return alone / (alone / RANKS + cost_ring(RANKS, 2 * weights, links[l].alpha, links[l].bytes)) >= 2;
}

static int rule_of_thumb(double weights, double batch) { return !(weights < 100e6 && batch < 64); }

/* percent: the cells of a link in which the rule, and the border, agree with the model. */
static int confusion(double percent[LINKS][2])
{
    int good = 1, before = -1;
    printf("%d cells. Rule: pays from 100 million weights or 64 samples on. Model: %d ranks are twice as fast.\n",
           CELLS, RANKS);
    for (int l = 0; l < LINKS; l++) {
        int count[2][2] = {{0}}, kind[KINDS] = {0}, agree; /* count[r][m]: the rule says r, the model m */
        double border = 2 * flops / links[l].bytes, ratio = 0;
        for (int i = 0; i < CELLS; i++) {
            int k = i / (SIZES * BATCHES);
            double weights = sizes[i / BATCHES % SIZES], batch = batches[i % BATCHES], uses = kinds[k].uses;
            int rule = rule_of_thumb(weights, batch), model = pays(weights, uses, batch, l);
            count[rule][model]++, kind[k] += rule == model, ratio += model == (uses * batch >= border);
        }
        agree = count[0][0] + count[1][1];
        percent[l][0] = 100.0 * agree / CELLS, percent[l][1] = 100 * ratio / CELLS;
        printf("\n%-16s         model: yes     no\n", links[l].name);
        printf("    the rule says yes  %7d%7d\n", count[1][1], count[1][0]);
        printf("    the rule says no   %7d%7d   right in %.0f %% of its corner\n", count[0][1], count[0][0],
               100.0 * count[0][0] / (count[0][0] + count[0][1]));
        printf("  agree in %.0f %%:", percent[l][0]);
        for (int k = 0; k < KINDS; k++)
            printf("%s %s %.0f", k ? "," : "", kinds[k].name, 100.0 * kind[k] / (SIZES * BATCHES));
        printf("\n  u b >= 2 F / B = %.0f agrees in %.0f %%\n", border, percent[l][1]);
        good = good && percent[l][1] >= 95 && percent[l][0] < percent[l][1] && count[0][1] > before;
        before = count[0][1]; /* the faster the link, the more the rule misses */
    }
    return good;
}

/* Large images that the rule refuses pay, and an embedding model that it admits does not. */
static int exceptions(void)
{
    return pays(25e6, 640, 32, 1) && !rule_of_thumb(25e6, 32) && !pays(1e9, 0.01, 256, 1) && rule_of_thumb(1e9, 256);
}

/* The same for texts on V100s, by the trainer's own plans, simulated. Gradients are fp32, so the border is 4 F / B. */
static int simulate(double speed, double percent[LINKS][2])
{
    static const int64_t shape[][3] = {{2, 128, 2}, {4, 256, 4}, {12, 768, 12}, {24, 1024, 16}, {48, 1600, 25}};
    static const int64_t lengths[] = {8, 64, 512, 2048}, texts[] = {4, 16, 64, 256};
    cost_catalogue c;
    sim_machine m;
    if (cost_open(&c, NULL)) return 0;
    sim_machine_of(&m, cost_find(&c, "p3dn", 4), DT_PRECISION_FP16);
    for (int k = 0; k < SIM_RATES; k++) m.rate[k].flop /= speed, m.rate[k].byte /= speed, m.rate[k].each /= speed;
    for (int i = 0; i < TEXTS; i++) {
        const int64_t *of = shape[i / 16], u = lengths[i / 4 % 4], b = texts[i % 4];
        gpt g = {of[0], of[1], of[2], u, b, 1, 1, 1, 1, 1, 0};
        double weights = (double)(12 * of[0] * of[1] * of[1] + 50304 * of[1]), alone = simulated(&m, &g).step;
        if (isnan(alone)) return 0;
        for (int l = 0; l < LINKS; l++) {
            int model, inside = l == LINKS - 1;
            g.gpus = RANKS, g.per_node = inside ? RANKS : 1;
            simulated_link(&m, !inside, links[l].alpha, links[l].bytes);
            model = alone / simulated(&m, &g).step >= 2;
            percent[l][0] += (model == rule_of_thumb(weights, (double)b)) * 100.0 / TEXTS;
            percent[l][1] += (model == ((double)(u * b) >= 4 * flops / links[l].bytes)) * 100.0 / TEXTS;
        }
    }
    return 1;
}

int main(int argc, char **argv)
{
    double speed = 1, of_model[LINKS][2], of_texts[LINKS][2] = {{0}};
    option list[] = {{"--speed", 0.01, 100, &speed}};
    int good;
    if (!options_read(argc, argv, list, 1)) return 2;
    flops *= speed, good = confusion(of_model), good = simulate(speed, of_texts) && good;
    printf("\n%d cells of texts, simulated; fp32 gradients, so the border is 4 F / B\n", TEXTS);
    for (int l = 0; l < LINKS; l++) {
        printf("  %-16s the border agrees in %.0f %%, the rule in %.0f %%\n", links[l].name, of_texts[l][1],
               of_texts[l][0]);
        good = good && of_texts[l][1] > of_texts[l][0];
    }
    if (argc == 1 && (!exceptions() || !good))
        return fprintf(stderr, "FAILED: a count or a cell is not what it should be\n"), 1;
    return printf("ok: the rule agrees in %.0f, %.0f and %.0f %% of the cells, u b >= 2 F / B in %.0f, %.0f and %.0f "
                  "%%%s\n", of_model[0][0], of_model[1][0], of_model[2][0], of_model[0][1], of_model[1][1],
                  of_model[2][1], argc > 1 ? "; other inputs: not checked" : ""), 0;
}
