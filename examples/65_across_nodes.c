/* 65_across_nodes: what does a tensor group lose when it leaves its node, and a pipeline not?
 *
 * What you learn
 *     - A tensor group sends in every layer: two all-reduces forward and two backward of what the layer passes on. A
 *       pipeline sends at its boundaries alone, once forward and once back.
 *     - For 70 billion weights that is 10.7 GB against 67 MB per micro-batch. So "30 % of the speed of one node" with a
 *       tensor group over four nodes is what arithmetic gives for a network of about 15 GB/s.
 *     - The remedy is in the order: tensor inside a node, pipeline across nodes, data parallel on top. Degrees multiply
 *       to the number of GPUs.
 *     - Tensor parallel is for layers, not for models: a model needs it when one layer with its states does not fit on
 *       a GPU.
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
 *       boundaries between nodes instead: 5369 us of 774 ms by TCP at 12.5 GB/s
 *     one layer and its states on GPUs of 80 GB: 70 billion / 80 layers: tp 1; a layer of 10 billion: tp 4
 *     70 billion weights, GPUs of 80 GB
 *       tp  8 x pp 2 x dp 2 on 32 GPUs:  70.0 GB of states on each, fits
 *       tp  1 x pp 8 x dp 4 on 32 GPUs: 140.0 GB of states on each, does not fit
 *       tp 32 x pp 1 x dp 1 on 32 GPUs:  35.0 GB of states on each, refused
 *     175 billion weights, GPUs of 80 GB
 *       tp  8 x pp 8 x dp 2 on 128 GPUs:  43.8 GB of states on each, fits
 *       tp  8 x pp 1 x dp 16 on 128 GPUs: 350.0 GB of states on each, does not fit
 *       sharded over 128 GPUs instead: 21.9 GB of states on each
 *     ok: tensor groups stay inside nodes, pipelines may leave them
 *
 * Predict first: with texts of 8192 tokens instead of 2048, does a tensor group across nodes lose more, less, or the
 *     same share of its speed?
 * Exercise: let half of the exchange hide behind computing. At which bandwidth does the group keep 90 %?
 *
 * Read on: 70_checkpoints.c for what such a job has to save. */
#include "tools/plan.h"

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
    for (int i = 0; i < 100; i++) {
        double middle = sqrt(low * high);
        *(speed(alpha, middle) < wanted ? &low : &high) = middle;
    }
    return low;
}

/* Does one layer with 16 bytes a weight fit on a GPU? Else the smallest tensor group that makes it fit. */
static int group_for(double layer_weights, double gb)
{
    int tp = 1;
    while (16 * layer_weights / tp > cost_usable * 1e9 * gb && tp < 1 << 20) tp *= 2;
    return tp;
}

/* Does a mesh fit? It is legal if tensor groups are inside a node of 8 and the degrees multiply to all GPUs. */
static int mesh(double p, int tp, int pp, int dp, int gpus)
{
    double gb = 16 * p / (tp * pp) / 1e9;
    int legal = tp <= 8 && tp * pp * dp == gpus;
    printf("  tp %2d x pp %d x dp %d on %d GPUs: %5.1f GB of states on each, %s\n", tp, pp, dp, gpus, gb,
           !legal ? "refused" : gb <= 72 ? "fits" : "does not fit");
    return legal && gb <= 72;
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
    return printf("ok: by your numbers\n"), 0;
}

int main(int argc, char **argv)
{
    static plan_job j;
    double tensor = 4 * layers * passed(), pipe = 2 * passed(), efa = speed(20e-6, 50e9), tcp = speed(50e-6, 12.5e9);
    int good;
    if (!plan_arguments(&j, argc, argv)) return 2;
    if (argc > 1) return own_model(&j);
    printf("70 billion weights, 2048 tokens: a tensor group reduces %.1f GB, two stages pass %.0f MB\n", tensor / 1e9,
           pipe / 1e6);
    printf("a tensor group on 4 nodes beside one on 1: %.2f times as fast with EFA, %.2f with TCP\n", efa, tcp);
    printf("  30 %% is what TCP at %.1f GB/s gives; without exchange it would be 400 %%\n", rate_for(0.3, 50e-6) / 1e9);
    printf("  boundaries between nodes instead: %.0f us of %.0f ms by TCP at 12.5 GB/s\n", 1e6 * pipe / 12.5e9,
           1e3 * step(8, 5e-6, 300e9));
    printf("one layer and its states on GPUs of 80 GB: 70 billion / 80 layers: tp %d; a layer of 10 billion: tp %d\n",
           group_for(weights / layers, 80), group_for(10e9, 80));
    printf("70 billion weights, GPUs of 80 GB\n");
    good = mesh(70e9, 8, 2, 2, 32) && !mesh(70e9, 1, 8, 4, 32) && !mesh(70e9, 32, 1, 1, 32);
    printf("175 billion weights, GPUs of 80 GB\n");
    good = mesh(175e9, 8, 8, 2, 128) && !mesh(175e9, 8, 1, 16, 128) && good;
    printf("  sharded over 128 GPUs instead: %.1f GB of states on each\n", 16 * 175.0 / 128);
    if (!good || tcp > 0.3 || efa < 0.7) return fprintf(stderr, "FAILED: a mesh or a speed differs\n"), 1;
    return printf("ok: tensor groups stay inside nodes, pipelines may leave them\n"), 0;
}
