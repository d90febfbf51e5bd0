/* 51_pipeline: where is a model cut into stages, and what does each stage keep and send?
 *
 * What you learn
 *     - Each of p ranks has a run of layers, a stage. The most expensive stage sets the pace, so dt_partition cuts by
 *       cost. A cut by memory makes GPT-2's embedding a stage of its own, which has almost nothing to compute.
 *     - "Memory is divided by p" is nearly true of weights. It is wrong of activations: stage 0 has 1/p of the layers
 *       and keeps the values of m micro-batches with GPipe, of p with 1F1B.
 *     - A boundary passes b s h floats forward and as many back per micro-batch, so a pipeline tolerates a slower
 *       network than tensor parallel, which sends more, and in every layer (53_tensor_parallel.c).
 *     - A token table that is used at both ends is on two stages. They add up its gradients once a step.
 *     - Four schedules end with the same bits. 59_schedules.c draws them.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 51_pipeline.c -o 51_pipeline -lm -lpthread
 *     ./51_pipeline --ranks 4                    (1, 2 or 4 ranks: a stage each)
 *
 * What it prints
 *     segments, share of time and of weights of 4 stages; the most expensive / an even share
 *     100 equal layers            0-24 25 % 25 %  25-49 25 % 25 %  50-74 25 % 25 %  75-99 25 % 25 %  1.00
 *     GPT-2 124M, cut by time     0-4  23 % 42 %   5-8  23 % 17 %   9-12 23 % 17 %  13-13 31 % 24 %  1.25
 *     GPT-2 124M, cut by memory   0-0   0 % 24 %   1-6  34 % 26 %   7-12 34 % 26 %  13-13 31 % 24 %  1.38
 *     m = 16, stage 0 of 4: keeps bytes  micro-batches  formula   sends bytes  formula  rest
 *     GPipe                       3265536          16.00    16.00         85448    81920  3528
 *     1F1B                         832512           4.00     4.00         85448    81920  3528
 *     interleaved                 1256448           6.09     5.50        183752   180224  3528
 *     zero-bubble                 1382400           6.71     4.00         85448    81920  3528
 *     of these, gradients of the table that two stages share: 32768 bytes
 *     sha256 of all four a7c4d63c2f681bc82ddd288b4c7aa4494a36a5f1785f48b94546af019476f6ee
 *     ok: 4 schedules on 4 stages, one hash; of 16 micro-batches 1F1B keeps 4
 *
 * Predict first: with 2 stages instead of 4, which numbers of the second table double, halve, or stay?
 * Exercise: cut GPT-2 124M by time into 2 to 8 stages. How many times as fast can each be, and what limits it?
 *
 * Read on: 52_tensor_parallel_by_hand.c for layers that are cut, 59_schedules.c for the schedules drawn. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "planned.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECTED "a7c4d63c2f681bc82ddd288b4c7aa4494a36a5f1785f48b94546af019476f6ee"

enum { M = 16, LAYERS = 14, WIDTH = 32, LENGTH = 24, VOCABULARY = 256, CHUNKS = 2 };
static const int32_t kinds[] = {DT_GPIPE, DT_1F1B, DT_INTERLEAVED, DT_ZERO_BUBBLE};
static const char *const names[] = {"GPipe", "1F1B", "interleaved", "zero-bubble"};

/* Cuts n layers in four. 14 of them: GPT-2 124M as shares of its time and weights in %; the table of its embedding does
 * no arithmetic in segment 0, and is used again by the head. */
static void cut(const char *what, int n, double memory_weight)
{
    double time[100], weights[100], cost[100], most = 0;
    int64_t begin[5];
    for (int i = 0; i < n; i++) {
        time[i] = n == 100 ? 1 : i == 0 ? 0 : i < 13 ? 5.74 : 31.2;
        weights[i] = n == 100 ? 1 : i == 0 ? 24.1 : i < 13 ? 4.35 : 23.7;
        cost[i] = (1 - memory_weight) * time[i] + memory_weight * weights[i];
    }
    if (dt_partition(cost, n, 4, begin)) return;
    printf("%-26s", what);
    for (int s = 0; s < 4; s++) {
        double t = 0, w = 0;
        for (int64_t i = begin[s]; i < begin[s + 1]; i++) t += time[i], w += weights[i];
        printf(" %2d-%-2d %2.0f %% %2.0f %% ", (int)begin[s], (int)begin[s + 1] - 1, t, w);
        most = t > most ? t : most;
    }
    printf(" %.2f\n", most / 25);
}

typedef struct result {
    int64_t kept, sent; /* bytes of stage 0: activations; sent in a step */
    char hash[65];
} result;

/* Trains on p stages with m micro-batches of one sequence; steps 0: only plans the memory. */
static dt_result train(const char *text, int kind, int p, int64_t m, int64_t steps, result *out)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.model.layers = LAYERS, recipe.model.heads = 2, recipe.model.width = WIDTH;
    recipe.model.vocabulary = VOCABULARY, recipe.data = text, recipe.sequence = LENGTH, recipe.validation = 0;
    recipe.batch = m, recipe.micro_batch = recipe.data_shards = 1, recipe.steps = 5;
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0;
    layout.pp = p, layout.pipeline = kinds[kind], layout.chunks = CHUNKS;
    if (!steps) return planned(&recipe, &layout, p, &out->kept, &out->sent);
    e = dt_trainer_open(&t, &recipe, &layout);
    while (!e && info.step < steps) e = dt_trainer_step(t, &info);
    if (!e) snprintf(out->hash, sizeof out->hash, "%s", dt_trainer_hash(t));
    if (!e) out->kept = dt_trainer_memory(t).activations, out->sent = info.sent_bytes;
    dt_trainer_close(&t);
    return e;
}

/* What is kept is so much plus so much per micro-batch: two plans of GPipe tell. The rest of what is sent: norms,
 * losses. Runs keep and send what their plans say, and losses. */
static dt_result compare(const char *text, int p, int root, int *good)
{
    result r[4], plan[4], half;
    double units[4] = {M, p, p + (p - 1.0) / CHUNKS, p}, rest[4];
    dt_result e = train(text, 0, p, M / 2, 0, &half);
    for (int k = 0; k < 8 && !e; k++) e = train(text, k % 4, p, M, k < 4 ? 5 : 0, k < 4 ? &r[k] : &plan[k - 4]);
    if (e) return e;
    if (root)
        printf("\nm = %d, stage 0 of %d: keeps bytes  micro-batches  formula   sends bytes  formula  rest\n", M, p);
    for (int k = 0; k < 4; k++) {
        double messages = M * (k == 2 ? 2 * CHUNKS - 1 : 1), table = 4.0 * VOCABULARY * WIDTH;
        double formula = p > 1 ? messages * 4 * LENGTH * WIDTH + table : 0;
        double kept = M - (double)(r[0].kept - r[k].kept) * (M / 2) / (double)(r[0].kept - half.kept);
        rest[k] = (double)r[k].sent - formula;
        *good &= !root || (r[k].kept == plan[k].kept && r[k].sent - plan[k].sent == r[0].sent - plan[0].sent);
        *good = *good && !strcmp(r[k].hash, EXPECTED) && (!root || (rest[k] == rest[0] && (k > 1 || kept == units[k])));
        if (root)
            printf("%-12s %22lld %14.2f %8.2f %13lld %8.0f %5.0f\n", names[k], (long long)r[k].kept, kept, units[k],
                   (long long)r[k].sent, formula, rest[k]);
    }
    if (root && p > 1)
        printf("of these, gradients of the table that two stages share: %d bytes\n", 4 * VOCABULARY * WIDTH);
    if (root) printf("sha256 of all four %s\n", r[0].hash);
    if (root && *good)
        printf("ok: 4 schedules on %d stages, one hash; of %d micro-batches 1F1B keeps %.0f\n", p, M, units[1]);
    return e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_comm *c = NULL;
    int root, ranks, good = 1;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("51_pipeline");
    ranks = dt_comm_size(c), root = !dt_comm_rank(c);
    dt_comm_close(&c); /* the trainer opens its own */
    if (argc > 1 || ranks > 4) return fprintf(stderr, "51_pipeline: the option is --ranks 1, 2 or 4\n"), 2;
    if (root) {
        printf("segments, share of time and of weights of 4 stages; the most expensive / an even share\n");
        cut("100 equal layers", 100, 0);
        cut("GPT-2 124M, cut by time", 14, 0);
        cut("GPT-2 124M, cut by memory", 14, 1);
    }
    e = prose_temporary(text, 100000);
    if (!e) e = compare(text, ranks, root, &good);
    remove(text);
    if (e) return dt_fail("51_pipeline");
    if (!good) return fprintf(stderr, "FAILED: idle shares, memory, bytes or hashes are not as they should be\n"), 1;
    return 0;
}
