/* 61_scaling: how far does a job scale, and which numbers decide that?
 *
 * What you learn
 *     - A step is computing, 6 P T / F for P weights, T tokens per GPU and F FLOP/s, and an exchange: a ring inside
 *       each node and one between nodes. Efficiency is computing / (computing + what is not hidden).
 *     - 2 (n-1)/n of the bytes cross the network: with 4 nodes, three quarters of what any number of nodes pays. Beyond
 *       that the curve is flat until the latency term, alpha, bends it. "The sum costs more with every node" mixes up
 *       the two terms.
 *     - With EFA this job keeps 80 % on 64 nodes; without EFA it drops below 80 % on 2. Most of the loss comes
 *       with the first nodes.
 *     - P cancels: computing and bytes both grow with it. Large models scale well because their batches are large.
 *     - This formula hides nothing. The trainer's own programs, simulated, send fp32 gradients, which costs more; with
 *       --overlap on they hide almost all of them under the backward pass.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 61_scaling.c -o 61_scaling -lm -lpthread
 *     ./61_scaling
 *     ./61_scaling --gbit 50                     (the third link)
 *     Your job instead: ./61_scaling --params-b 7 --seq-len 2048 --micro-batch 8 --instance p5 --mfu-pct 40
 *
 * What it prints
 *     Efficiency, 1.5 billion weights, 8192 tokens per GPU; a: EFA, 400 Gbit/s, b: TCP, 100 Gbit/s, c: TCP, 25 Gbit/s
 *        nodes       1       2       4       8      16      32      64
 *       a        97.1%   88.4%   84.6%   82.8%   81.9%   81.4%   81.0%
 *       c        97.1%   37.7%   28.8%   25.8%   24.5%   23.9%   23.6%
 *       a, simulated, overlap off
 *                95.2%   83.3%   78.1%   75.5%   74.2%   73.4%   73.0%
 *       a, simulated, overlap on
 *                99.7%   98.7%   98.1%   97.8%   97.7%   97.6%   97.5%
 *     With alpha = 0 the exchange is 2.96 % of the computing of 8192 tokens, however many weights.
 *     ok: 64 nodes keep 81.0 % with EFA, by formula, and 73.0 or 97.5 % simulated; 2 nodes keep 69.6 without EFA
 *
 * Predict first: at 8192 tokens per GPU, what is the efficiency of 2 nodes on a link of 50 Gbit/s?
 * Exercise: read alpha and B of the formula back from the simulated steps of 1, 2 and 16 nodes without overlap. What
 *     do they predict for 64 nodes, and which of the two differs from the link's?
 *
 * Read on: 62_rule_of_thumb.c for when it pays at all, 64_hours_and_money.c for what it costs. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tools/plan.h"
#include "tools/simulate.h"
#include "option.h"
#include "simulated.h"

enum { GPUS = 8, LINKS = 3, POINTS = 7 }; /* 1, 2, 4 .. 64 nodes */
/* What a message costs and bytes per second, each way, of a node outside. alpha is assumed. */
typedef struct fabric {
    const char *name;
    double alpha, bytes;
} fabric;
static fabric links[LINKS] = {
    {"EFA, 400 Gbit/s", 20e-6, 50e9}, {"TCP, 100 Gbit/s", 50e-6, 12.5e9}, {"TCP, 25 Gbit/s", 50e-6, 3.125e9}};

static cost_catalogue catalogue;

/* GPUs of a node; bytes per second of a GPU to the others, each way; 40 % of an A100's 312 TFLOP/s. */
static double gpus = GPUS, inside = 300e9, flops = 0.4 * 312e12;

/* 16-bit gradients, nothing hidden. */
static double efficiency(double weights, double tokens, double nodes, const fabric *outside)
{
    double work = cost_computing(weights, tokens, flops);
    return work / (work + cost_nodes_sum(gpus, nodes, 2 * weights, inside, outside->alpha, outside->bytes));
}

/* Nothing hidden. */
static void curves(double weights, double tokens)
{
    printf("Efficiency, %g billion weights, %g tokens per GPU; a: %s, b: %s, c: %s\n", weights / 1e9, tokens,
           links[0].name, links[1].name, links[2].name);
    for (int row = 20; row >= 5; row--) { /* 5 % each */
        int at = printf(row % 4 ? "        |" : "  %3d %% |", 5 * row);
        for (int k = 0; k < POINTS; k++)
            for (int l = 0, seen = 0; l < LINKS; l++)
                if ((int)lround(20 * efficiency(weights, tokens, 1 << k, &links[l])) == row && !seen++)
                    at += printf("%*c", 16 + 8 * k - at, 'a' + l);
        printf("\n");
    }
    printf("%8s", "nodes");
    for (int k = 0; k < POINTS; k++) printf("%8d", 1 << k);
    for (int l = 0; l < LINKS; l++) {
        printf("\n  %c     ", 'a' + l);
        for (int k = 0; k < POINTS; k++) printf("%7.1f%%", 100 * efficiency(weights, tokens, 1 << k, &links[l]));
    }
    printf("\n\n");
}

/* The same job by the trainer's own plans, simulated. Gradients are fp32, twice the formula's bytes. */
static int simulate(double e[2][POINTS])
{
    sim_machine m;
    int good = 1;
    sim_machine_of(&m, cost_find(&catalogue, "p4d", 3), DT_PRECISION_BF16);
    for (int on = 0; on < 2; on++) {
        printf("  a, simulated, overlap %s\n%8s", on ? "on" : "off", "");
        for (int k = 0; k < POINTS; k++) {
            gpt g = {48, 1600, 25, 1024, 64 << k, 1, GPUS << k, GPUS, 1, 1, on};
            simulation s = simulated(&m, &g);
            e[on][k] = s.work / s.step;
            good = good && e[on][k] < (k ? e[on][k - 1] : 1) && (!on || e[1][k] > e[0][k]);
            printf("%7.1f%%", 100 * e[on][k]);
        }
        printf(on ? "\n\n" : "\n");
    }
    return good;
}

/* One node; and the share of the exchange where messages cost nothing: the number of weights cancels. */
static int one_node(void)
{
    double last = 0, ratio = cost_ring(GPUS, 2e6, 0, inside) / cost_computing(1e6, 8192, flops);
    int good = 1;
    printf("One node of 8 with NVLink, by tokens per GPU:\n ");
    for (int tokens = 512; tokens <= 16384; tokens *= 2) {
        double e = efficiency(1.5e9, tokens, 1, &links[0]);
        printf("%7d: %.1f %%", tokens, 100 * e);
        good = good && e > last && (tokens != 8192 || e >= 0.97) && (tokens != 1024 || e < 0.9);
        last = e;
    }
    printf("\nWith alpha = 0 the exchange is %.2f %% of the computing of 8192 tokens, however many weights.\n\n",
           100 * ratio);
    return good;
}

static int map(void)
{
    static const struct {
        const char *name;
        double weights, tokens;
    } jobs[] = {{"10 million, 512", 1e7, 512},     {"10 million, 16384", 1e7, 16384}, {"1.5 billion, 512", 1.5e9, 512},
                {"1.5 billion, 8192", 1.5e9, 8192}, {"7 billion, 16384", 7e9, 16384}};
    int good = 1;
    printf("Efficiency in %% by job (weights, tokens per GPU) and nodes; [80 %% and more]\n%-20s", "");
    for (int l = 0; l < 2; l++) printf("%32s", links[l].name);
    for (int i = 0; i < 5; i++) {
        printf("\n%-20s", jobs[i].name);
        for (int l = 0; l < 2; l++) {
            printf("  ");
            for (int k = 1; k < POINTS; k++) {
                double e = efficiency(jobs[i].weights, jobs[i].tokens, 1 << k, &links[l]);
                printf(e >= 0.8 ? " [%2.0f]" : "  %2.0f ", 100 * e);
                if (i == 0) good = good && e < 0.3;                            /* small: poor on 2 nodes already */
                if (i == 4 && k > 1) good = good && (l ? e < 0.8 : e >= 0.85); /* large: dozens, with EFA alone */
            }
        }
    }
    printf("\n%-20s%32s%32s\n", "nodes", "2    4    8   16   32   64 ", "2    4    8   16   32   64 ");
    return good;
}

/* The links of the type that the command line names, in place of EFA; its GPUs. */
static int own_job(const plan_job *j)
{
    const cost_type *t = plan_type(j, "p4d");
    cost_shape s = plan_shape(j);
    double weights = 1e9 * plan_or(j, in_params_b, 1.5), tokens = s.sequence * s.micro;
    if (!t) return 2;
    gpus = t->count, inside = cost_inside(t), flops = t->teraflops * 1e10 * plan_or(j, in_mfu_pct, 40);
    links[0].name = cost_short(t), links[0].alpha = cost_alpha(t), links[0].bytes = cost_outside(t);
    curves(weights, tokens);
    printf("ok: %.0f %% on 64 nodes of %s\n", 100 * efficiency(weights, tokens, 64, &links[0]), links[0].name);
    return 0;
}

int main(int argc, char **argv)
{
    static plan_job j;
    static char name[40];
    double e[2][POINTS], gbit = 25;
    const option list = {"--gbit", 0.1, 10000, &gbit};
    int good = !cost_open(&catalogue, NULL);
    if (!option_take(&argc, argv, &list) || !plan_arguments(&j, argc, argv)) return 2;
    links[2].bytes = gbit / 8 * 1e9, snprintf(name, sizeof name, "TCP, %g Gbit/s", gbit), links[2].name = name;
    if (argc > 1) return own_job(&j);
    good = good && cost_ring(2, 1e9, links[0].alpha, links[0].bytes) == 2 * 20e-6 + 1e9 / 50e9; /* a half each, twice */
    good = good && fabs(cost_nodes_sum(8, 4, 14e9, 300e9, 20e-6, 50e9) - 0.502) < 5e-4;
    curves(1.5e9, 8192);
    good = simulate(e) && good, good = one_node() && good, good = map() && good;
    if (!good || efficiency(1.5e9, 8192, 64, &links[0]) < 0.8 || efficiency(1.5e9, 8192, 2, &links[1]) > 0.8)
        return fprintf(stderr, "FAILED: a known point or an order is not what the formulas say\n"), 1;
    return printf("ok: 64 nodes keep %.1f %% with EFA, by formula, and %.1f or %.1f %% simulated; 2 nodes keep %.1f "
                  "without EFA\n", 100 * efficiency(1.5e9, 8192, 64, &links[0]), 100 * e[0][POINTS - 1],
                  100 * e[1][POINTS - 1], 100 * efficiency(1.5e9, 8192, 2, &links[1])), 0;
}
