/* 65_across_nodes: what does a tensor group lose when it leaves its node, and what does a pipeline lose?
 *
 * What you learn
 *     - A tensor group sends in every layer: two all-reduces forward and two backward of what the layer passes on. A
 *       pipeline sends at its boundaries alone, once forward and once back.
 *     - For 70 billion weights that is 10.7 GB against 67 MB per micro-batch. So "30 % of the speed of one node" with a
 *       tensor group over four nodes is what arithmetic gives for a network of about 15 GB/s. The trainer's own
 *       programs, simulated, say the same. (The group on one node is only the measure: it needs GPUs of 152 GB.)
 *     - The remedy is the placement: tensor groups inside a node, stages across nodes, data parallel on top. Degrees
 *       multiply to the number of GPUs.
 *     - A model needs tensor parallel when one layer with its states does not fit on a GPU.
 *     - Above a hundred billion weights the usual mesh is of three kinds; states sharded over all ranks fit as well.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 65_across_nodes.c -o 65_across_nodes -lm -lpthread
 *     ./65_across_nodes
 *     Yours instead: ./65_across_nodes --params-b 30 --layers 48 --hidden 7168 --seq-len 4096 --instance p5
 *
 * What it prints
 *     70 billion weights, 2048 tokens: a tensor group reduces 10.7 GB, two stages pass 67 MB
 *     a tensor group on 4 nodes beside one on 1: 0.79 times as fast with EFA, 0.27 with TCP
 *       30 % is what TCP at 14.7 GB/s gives; without exchange it would be 400 %
 *     simulated, 32 texts a step, times as fast as one node          EFA    TCP   GB of a GPU
 *       tp  8 x pp 1 on  8 GPUs,    0.0 GB cross in a step   1.00   1.00         151.8
 *       tp 32 x pp 1 on 32 GPUs, 4150.5 GB cross in a step   0.79   0.29          51.4
 *       tp  8 x pp 4 on 32 GPUs,  107.9 GB cross in a step   3.40   2.80          55.5
 *      70 billion weights, tp  8 x pp 2 x dp 2 on 32 GPUs:  70.0 GB of states on each, fits
 *     ok: on 4 nodes by EFA one tensor group is 0.79 times as fast as on 1, with 4 stages 3.40 times
 *
 * Predict first: with texts of 8192 tokens instead of 2048, does a tensor group across nodes lose more, less, or the
 *     same share of its speed?
 * Exercise: let half of each all-reduce overlap with computing. From which bandwidth on is the group on four nodes as
 *     fast as on one, with the overlap and without? How fast does it get with any bandwidth?
 *
 * Read on: 70_checkpoints.c for what such a job has to save. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tools/plan.h"
#include "tools/simulate.h"
#include "simulated.h"

/* 70 billion weights in 80 layers of width 8192, one text of 2048 tokens, 16 bits; A100 at half their peak. */
static double weights = 70e9, layers = 80, width = 8192, tokens = 2048, flops = 0.5 * 312e12, inside = 300e9;
static int gpus_of_a_node = 8;

static double passed(void) { return 2 * tokens * width; } /* bytes that a layer passes on */

/* A step of one tensor group: four all-reduces per layer. */
static double step(double gpus, double alpha, double rate)
{
    return cost_computing(weights, tokens, gpus * flops) + 4 * layers * cost_ring(gpus, passed(), alpha, rate);
}

/* Speed of a tensor group on four nodes, times that of a group on one. rate: bytes per second of a node. */
static double speed(double alpha, double rate)
{
    return step(gpus_of_a_node, 5e-6, inside) / step(4 * gpus_of_a_node, alpha, rate);
}

/* The rate at which this speed is `wanted`. */
static double rate_for(double wanted, double alpha)
{
    double low = 1e8, high = 1e12;
    for (int i = 0; i < 100; i++) *(speed(alpha, sqrt(low * high)) < wanted ? &low : &high) = sqrt(low * high);
    return low;
}

/* Does one layer with 16 bytes a weight fit on a GPU? Else the smallest tensor group that makes it fit. */
static int group_for(double layer_weights, double gb)
{
    int tp = 1;
    while (16 * layer_weights / tp > cost_usable * 1e9 * gb && tp < 1 << 20) tp *= 2;
    return tp;
}

/* Does a mesh fit on GPUs of 80 GB, with tensor groups inside nodes of 8? */
static int mesh(double p, int tp, int pp, int dp, int gpus)
{
    double gb = 16 * p / (tp * pp) / 1e9;
    int legal = tp <= 8 && tp * pp * dp == gpus;
    printf("%3.0f billion weights, tp %2d x pp %d x dp %d on %d GPUs: %5.1f GB of states on each, %s\n", p / 1e9, tp,
           pp, dp, gpus, gb, !legal ? "but groups leave their node" : gb <= 72 ? "fits" : "does not fit");
    return legal && gb <= 72;
}

/* The trainer's own plans, 32 micro-batches of a text, by EFA and TCP; times[0, 1]: one group on 4 nodes; 4 stages. */
static int simulate(double times[2])
{
    static const int degrees[][2] = {{8, 1}, {32, 1}, {8, 4}, {4, 8}};
    cost_catalogue c;
    double one = 0, speed[2];
    if (cost_open(&c, NULL)) return 0;
    printf("simulated, 32 texts a step, times as fast as one node          EFA    TCP   GB of a GPU\n");
    for (int i = 0; i < 4; i++) {
        int tp = degrees[i][0], pp = degrees[i][1];
        gpt g = {80, 8192, 64, 2048, 32, 32, tp * pp, 8, tp, pp, 0};
        simulation s;
        for (int tcp = 0; tcp < 2; tcp++) {
            sim_machine m;
            sim_machine_of(&m, cost_find(&c, "p4de", 4), DT_PRECISION_BF16);
            if (tcp) simulated_link(&m, 1, 50e-6, 12.5e9);
            s = simulated(&m, &g), one = i || tcp ? one : s.step, speed[tcp] = one / s.step;
        }
        if (i && i < 3) times[i - 1] = speed[0];
        printf("  tp %2d x pp %d on %2d GPUs, %6.1f GB cross in a step %6.2f %6.2f %13.1f\n", tp, pp, g.gpus,
               s.sent[1] / 1e9, speed[0], speed[1], s.memory / 1e9);
    }
    return times[0] < 1 && times[1] > 3;
}

/* The model and the type of the command line. */
static int own_model(const plan_job *j)
{
    const cost_type *t = plan_type(j, "p4d");
    cost_shape s = plan_shape(j);
    if (!t) return 2;
    weights = 1e9 * plan_or(j, in_params_b, 70), tokens = s.sequence * s.micro;
    if (s.layers > 0) layers = s.layers, width = s.hidden;
    gpus_of_a_node = t->count, inside = cost_inside(t), flops = t->teraflops * 1e10 * plan_or(j, in_mfu_pct, 50);
    printf("%g billion weights, %g tokens: a tensor group reduces %.3g GB, two stages pass %.3g MB\n", weights / 1e9,
           tokens, 4 * layers * passed() / 1e9, 2 * passed() / 1e6);
    printf("a tensor group on 4 x %s beside one on 1: %.2f times as fast, with TCP at 100 Gbit/s %.2f\n", cost_short(t),
           speed(cost_alpha(t), cost_outside(t)), speed(50e-6, 12.5e9));
    printf("one layer and its states on GPUs of %g GB: tp %d; for half the speed %.3g GB/s between nodes\n", t->gb,
           group_for(weights / layers, t->gb), rate_for(0.5, cost_alpha(t)) / 1e9);
    return printf("ok: %.0f GPUs; your numbers: not checked\n", 4.0 * t->count), 0;
}

int main(int argc, char **argv)
{
    static plan_job j;
    double efa = speed(20e-6, 50e9), tcp = speed(50e-6, 12.5e9), times[2];
    int good;
    if (!plan_arguments(&j, argc, argv)) return 2;
    if (argc > 1) return own_model(&j);
    printf("70 billion weights, 2048 tokens: a tensor group reduces %.1f GB, two stages pass %.0f MB\n",
           4 * layers * passed() / 1e9, 2 * passed() / 1e6);
    printf("a tensor group on 4 nodes beside one on 1: %.2f times as fast with EFA, %.2f with TCP\n", efa, tcp);
    printf("  30 %% is what TCP at %.1f GB/s gives; without exchange it would be 400 %%\n", rate_for(0.3, 50e-6) / 1e9);
    good = simulate(times);
    printf("one layer and its states on GPUs of 80 GB: 70 billion / 80 layers: tp %d; a layer of 10 billion: tp %d\n",
           group_for(weights / layers, 80), group_for(10e9, 80));
    good = mesh(70e9, 8, 2, 2, 32) && good && !mesh(70e9, 1, 8, 4, 32) && !mesh(70e9, 32, 1, 1, 32);
    good = mesh(175e9, 8, 8, 2, 128) && !mesh(175e9, 8, 1, 16, 128) && good;
    printf("  sharded over 128 GPUs instead: %.1f GB of states on each\n", 16 * 175.0 / 128);
    if (!good || tcp > 0.3 || efa < 0.7) return fprintf(stderr, "FAILED: a mesh or a speed differs\n"), 1;
    return printf("ok: on 4 nodes by EFA one tensor group is %.2f times as fast as on 1, with 4 stages %.2f times\n",
                  times[0], times[1]), 0;
}
