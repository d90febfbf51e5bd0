/* 44_fit: how many bytes does training need, and which GPUs hold them?
 *
 * What you learn
 *     - With AdamW a weight costs 16 bytes: 4 + 4 + 8 in fp32, and 2 + 2 + 4 + 8 with 16-bit weights, because the fp32
 *       master copy takes what the 16-bit halves save. Mixed precision halves activations and messages, not the states.
 *       Some frameworks keep gradients in fp32 (18 bytes), others in both precisions (20).
 *     - "Below 10 billion weights data parallel fits" counts the weights alone. Nine tenths of a GPU's memory can be
 *       used. With their states, a GPU of 80 GB holds 4.5 billion weights and one of 16 GB 0.9 billion, without
 *       activations.
 *     - A pipeline of 8 stages puts 17.5 GB of a 70B model's weights on each GPU, and 140 GB of its states. So 2 GPUs
 *       of 80 GB hold the weights, and 16 hold a training run.
 *     - Recompute reduces activations from hundreds of GB to a dozen. It does not change the states.
 *     - Tensor parallel groups of the sizes that a vendor recommends hold the states only if the replicas of the model
 *       also shard the optimizer's state (ZeRO 1).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 44_fit.c -o 44_fit -lm -lpthread
 *     ./44_fit
 *     Your model instead: ./44_fit --params-b 13 --optimizer adam8 --layers 40 --hidden 5120 --seq-len 4096
 *
 * What it prints
 *     bytes of a weight              weights  gradients  master  moments  together
 *     fp32, SGD                            4          4       0        0         8
 *     fp32, AdamW                          4          4       0        8        16
 *     16 bits, AdamW                       2          2       4        8        16
 *     16 bits, AdamW, fp32 gradients       2          4       4        8        18
 *     16 bits, AdamW, both gradients       2          6       4        8        20
 *     16 bits, 8-bit Adam, no master       2          2       0        2         6
 *     billions of weights    16 GB   24 GB   40 GB   80 GB
 *     0.35                  states  states  states  states
 *     1.3                  weights  states  states  states
 *     3                    weights weights weights  states
 *     7                    weights weights weights weights
 *     10                         - weights weights weights
 *     at most, with states    0.90    1.35    2.25    4.50
 *     70 billion weights on 8 GPUs of 80 GB: weights 17.5 GB each, states 140.0 GB each: do not fit
 *       on 4 nodes of 8: 35.0 GB each: fit; 8-bit Adam without a master copy, one node: 52.5 GB each: fit
 *       GPUs for the weights: 2 of 80 GB or 4 of 40 GB; for the states: 16 or 32
 *       activations of a text of 4096 tokens: 521 GB kept, 11.9 GB with recompute
 *     175 billion weights: 350 GB in 16 bits, states 2800 GB (8 times), with both gradients 3500 GB (10)
 *     100 billion weights drawn by 8 processes on a host of 1237 GB: all by each 3200 GB, shards alone 400 GB
 *     recommended on p4d, GPUs of 40 GB    GB of states   with the optimizer sharded
 *      10 billion, tp 4, pp 1, 128 GPUs           40.0                          10.9
 *      30 billion, tp 8, pp 1, 128 GPUs           60.0                          17.8
 *      60 billion, tp 8, pp 2, 256 GPUs           60.0                          17.8
 *     ok: 70 billion on 8 GPUs of 80 GB: 17.5 GB of weights fit, 140.0 GB of states do not fit
 *
 * Predict first: which rows of the grid change if the optimizer is SGD without momentum?
 * Exercise: add a column for GPUs of 141 GB, and a row for LoRA that trains one weight in a hundred, with its own grid.
 *
 * Read on: 45_copies.c for what a lost rank takes away, 53_tensor_parallel.c for models that are cut. */
#include "tools/plan.h"

static const struct {
    const char *name;
    cost_bytes of;
} kinds[] = {{"fp32, SGD", {4, 4, 0, 0, 1}},
             {"fp32, AdamW", {4, 4, 0, 8, 1}},
             {"16 bits, AdamW", {2, 2, 4, 8, 1}},
             {"16 bits, AdamW, fp32 gradients", {2, 4, 4, 8, 1}},
             {"16 bits, AdamW, both gradients", {2, 6, 4, 8, 1}},
             {"16 bits, 8-bit Adam, no master", {2, 2, 0, 2, 1}}};
enum { FP32 = 1, MIXED = 2, BOTH = 4, SMALL = 5 };

static double together(int kind) { return cost_together(&kinds[kind].of); }
static int fits(double bytes, double gb) { return bytes <= cost_usable * 1e9 * gb; }
static const char *verdict(double bytes, double gb) { return fits(bytes, gb) ? "fit" : "do not fit"; }
static int gpus(double bytes, double gb) { return (int)ceil(bytes / (cost_usable * 1e9 * gb)); }

/* states, weights: bytes of a parameter. */
static void grid(const double *sizes, int count, double states, double weights)
{
    static const double memory[] = {16, 24, 40, 80};
    printf("\nbillions of weights ");
    for (int k = 0; k < 4; k++) printf(" %4.0f GB", memory[k]);
    for (int i = 0; i < count; i++) {
        printf("\n%-20g", sizes[i] / 1e9);
        for (int k = 0; k < 4; k++) {
            int all = fits(states * sizes[i], memory[k]), some = fits(weights * sizes[i], memory[k]);
            printf(" %7s", all ? "states" : some ? "weights" : "-");
        }
    }
    printf("\nat most, with states");
    for (int k = 0; k < 4; k++) printf(" %7.2f", cost_usable * memory[k] / states);
    printf("\n\n");
}

static void recommended(double weights, int tp, int pp, int ranks)
{
    double own = weights / (tp * pp) / 1e9;
    printf("%3.0f billion, tp %d, pp %d, %d GPUs %14.1f %29.1f\n", weights / 1e9, tp, pp, ranks,
           together(MIXED) * own, cost_zero(&kinds[MIXED].of, 1, ranks / (tp * pp)) * own);
}

/* The model of the command line. */
static int own_model(const plan_job *j)
{
    int optimizer = (int)plan_or(j, in_optimizer, COST_ADAMW);
    double p = 1e9 * j->n[in_params_b], share = plan_or(j, in_trainable_pct, optimizer == COST_LORA ? 1 : 100) / 100;
    cost_bytes of = cost_of((int)plan_or(j, in_precision, COST_AMP_BF16), optimizer, share);
    double weights = of.weights, states = cost_zero(&of, 0, 1);
    if (isnan(p)) return fprintf(stderr, "44_fit: the weights are missing. Give --params-b, in 1e9\n"), 2;
    printf("%g billion weights: %.4g GB of weights, %.4g GB of states, %.3g bytes of a weight\n", p / 1e9,
           weights * p / 1e9, states * p / 1e9, states);
    grid(&p, 1, states, weights);
    printf("GPUs for the weights: %d of 80 GB or %d of 40 GB; for the states: %d or %d\n", gpus(weights * p, 80),
           gpus(weights * p, 40), gpus(states * p, 80), gpus(states * p, 40));
    if (plan_has(j, in_layers) && plan_has(j, in_hidden)) {
        cost_shape s = plan_shape(j);
        printf("activations of %g x %g tokens: %.4g GB kept, %.4g GB with recompute\n", s.micro, s.sequence,
               cost_activations(&s, 1, 0) / 1e9, cost_activations(&s, 1, 1) / 1e9);
    }
    return printf("ok: the formulas with your numbers; other inputs: not checked\n"), 0;
}

int main(int argc, char **argv)
{
    static const double sizes[] = {0.35e9, 1.3e9, 3e9, 7e9, 10e9};
    static plan_job j;
    const double p70 = 70e9, p175 = 175e9, states = together(MIXED);
    cost_shape text = {80, 8192, 64, 4096, 1};
    if (!plan_arguments(&j, argc, argv)) return 2;
    if (argc > 1) return own_model(&j);
    printf("bytes of a weight              weights  gradients  master  moments  together\n");
    for (int i = 0; i < (int)(sizeof kinds / sizeof *kinds); i++)
        printf("%-30s %7g %10g %7g %8g %9g\n", kinds[i].name, kinds[i].of.weights, kinds[i].of.gradients,
               kinds[i].of.master, kinds[i].of.moments, together(i));
    grid(sizes, 5, states, 2);
    printf("70 billion weights on 8 GPUs of 80 GB: weights %.1f GB each, states %.1f GB each: %s\n", 2 * p70 / 8e9,
           states * p70 / 8e9, verdict(states * p70 / 8, 80));
    printf("  on 4 nodes of 8: %.1f GB each: %s; 8-bit Adam without a master copy, one node: %.1f GB each: %s\n",
           states * p70 / 32e9, verdict(states * p70 / 32, 80), together(SMALL) * p70 / 8e9,
           verdict(together(SMALL) * p70 / 8, 80));
    printf("  GPUs for the weights: %d of 80 GB or %d of 40 GB; for the states: %d or %d\n", gpus(2 * p70, 80),
           gpus(2 * p70, 40), gpus(states * p70, 80), gpus(states * p70, 40));
    printf("  activations of a text of 4096 tokens: %.0f GB kept, %.1f GB with recompute\n",
           cost_activations(&text, 1, 0) / 1e9, cost_activations(&text, 1, 1) / 1e9);
    printf("175 billion weights: %.0f GB in 16 bits, states %.0f GB (%.0f times), with both gradients %.0f GB (%.0f)\n",
           2 * p175 / 1e9, states * p175 / 1e9, states / 2, together(BOTH) * p175 / 1e9, together(BOTH) / 2);
    printf("100 billion weights drawn by 8 processes on a host of %.0f GB: all by each %.0f GB, shards alone %.0f GB\n",
           1152 * 1.073741824, 8 * 4 * 100e9 / 1e9, 4 * 100e9 / 1e9);
    printf("recommended on p4d, GPUs of 40 GB    GB of states   with the optimizer sharded\n");
    recommended(10e9, 4, 1, 128), recommended(30e9, 8, 1, 128), recommended(60e9, 8, 2, 256);
    if (together(FP32) != together(MIXED) || fits(states * p70 / 8, 80) || !fits(2 * p70 / 8, 80))
        return fprintf(stderr, "FAILED: a sum of bytes is not what the text says\n"), 1;
    printf("ok: 70 billion on 8 GPUs of 80 GB: %.1f GB of weights %s, %.1f GB of states %s\n", 2 * p70 / 8e9,
           verdict(2 * p70 / 8, 80), states * p70 / 8e9, verdict(states * p70 / 8, 80));
    return 0;
}
