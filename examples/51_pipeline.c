/* 51_pipeline: a model cut into stages, and four orders in which micro-batches may go through them.
 *
 * What you learn
 *     Pipeline parallel: each of p ranks has a run of layers, a stage. A batch is cut into m micro-batches: while stage
 *     1 works on the first, stage 0 has the second. First later stages wait, in the end earlier ones: the bubble. The
 *     pace is that of the most expensive stage, so layers are cut by cost (dt_partition).
 *       GPipe        all forwards, then all backwards: (p-1)/(m+p-1) of the time is idle, m micro-batches are kept.
 *       1F1B         a backward as soon as one is there. It is often said to have a smaller bubble: it has the same. It
 *                    has less memory: stage 0 keeps min(p,m) micro-batches, the last stage one.
 *       interleaved  1F1B over v runs of layers per stage: (p-1)/(v m+p-1) idle, v times as many messages; m must be a
 *                    multiple of p. Two things have this name. This is Megatron's; what Amazon's SMP calls interleaved
 *                    is 1F1B: backward first, and the bubble of its "simple".
 *       zero-bubble  backward in two halves: the one that the stage before waits for, and the gradients of weights, for
 *                    which nobody waits and which fill the gaps. Less is idle, not nothing, and more is kept.
 *     m = 1 is a model laid out over p ranks of which one works at a time; m >= 4p leaves less than 20 % idle.
 *
 *     "Memory is divided by p" is true of weights, nearly: a tied table is on two stages, which exchange its gradients
 *     once a step. It is wrong of activations: stage 0 has 1/p of the layers and, with 1F1B, p micro-batches.
 *     A boundary passes b s h floats forward and as many back per micro-batch, so that a pipeline can do with a slower
 *     network than tensor parallelism, which sends more in every layer (53_tensor_parallel.c).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 51_pipeline.c -o 51_pipeline -lm -lpthread
 *     ./51_pipeline
 *     ./51_pipeline --ranks 2
 *     ./51_pipeline --ranks 4                    (as many stages as ranks)
 *
 * What you should see
 *     Two models cut in four; the four orders, to one scale of time; idle shares as the schedules have them beside the
 *     formulas; then a training run of as many stages as ranks: what stage 0 keeps and sends (rest: norms), one hash.
 *     Interleaved keeps a little more than its formula, since each run has memory for its own most.
 *     A schedule as it went, with the waiting, is a trace that 06_train --ranks 4 --pp 4 --timeline
 *     FILE.json writes; ui.perfetto.dev draws it.
 *
 * Read on: 53_tensor_parallel.c, every layer on every rank. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include "timetable.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static dt_result plan(timetable *t, int kind, int64_t p, int64_t m)
{
    dt_layout l = dt_layout_default();
    l.pp = p, l.pipeline = kinds[kind], l.chunks = CHUNKS;
    return timetable_open(t, &l, m);
}

/* One scale for all: a forward of a whole stage is 4 characters wide, of one of its two runs 2; dots are idle. */
static void draw(int kind)
{
    timetable t;
    if (plan(&t, kind, 3, 6)) return;
    printf("%s\n", names[kind]);
    for (char *line = strtok(t.text, "\n"); line; line = strtok(NULL, "\n")) {
        printf("  %.9s", line);
        for (const char *cell = line + 9; *cell; cell += 3)
            printf("%.2s%s", *cell == ' ' ? ".." : cell, kind == 2 ? "" : *cell == ' ' ? ".." : "  ");
        printf("\n");
    }
    timetable_close(&t);
}

/* Idle shares of 4 stages; returns whether the formulas hold. */
static int sweep(void)
{
    int good = 1;
    printf("\nidle %%, 4 stages: GPipe   1F1B  (p-1)/(m+p-1)  zero-bubble   v = 2  (p-1)/(2m+p-1)\n");
    for (int m = 1; m <= 64; m *= 2) {
        double idle[4], formula = 3.0 / (m + 3), twice = 3.0 / (2 * m + 3);
        int fits = 1;
        for (int k = 0; k < 4; k++) {
            timetable t;
            fits = !plan(&t, k, 4, m) && fits;
            idle[k] = t.idle;
            timetable_close(&t);
        }
        printf("m = %2d %16.1f %6.1f %14.1f %12.1f", m, 100 * idle[0], 100 * idle[1], 100 * formula, 100 * idle[3]);
        if (fits)
            printf(" %7.1f %15.1f%s\n", 100 * idle[2], 100 * twice, m == 16 ? "  m = 4p" : "");
        else
            printf("   m is no multiple of p\n");
        good = good && fabs(idle[0] - formula) < 1e-9 && fabs(idle[1] - formula) < 1e-9;
        good = good && fits == (m % 4 == 0) && (!fits || fabs(idle[2] - twice) < 1e-9);
    }
    return good;
}

typedef struct result {
    double kept, sent; /* bytes of stage 0: activations; sent in a step */
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
    recipe.data = text, recipe.sequence = LENGTH, recipe.validation = 0;
    recipe.batch = m, recipe.micro_batch = recipe.data_shards = 1, recipe.steps = 5;
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0;
    layout.pp = p, layout.pipeline = kinds[kind], layout.chunks = CHUNKS;
    e = dt_trainer_open(&t, &recipe, &layout);
    while (!e && info.step < steps) e = dt_trainer_step(t, &info);
    if (!e) snprintf(out->hash, sizeof out->hash, "%s", steps ? dt_trainer_hash(t) : "");
    if (!e) out->kept = (double)dt_trainer_memory(t).activations, out->sent = (double)info.sent_bytes;
    dt_trainer_close(&t);
    return e;
}

/* What is kept is so much plus so much per micro-batch: two plans of GPipe tell. The rest of what is sent: norms,
 * losses. */
static dt_result compare(const char *text, int p, int root, int *good)
{
    result r[4], half;
    double units[4] = {M, p, p + (p - 1.0) / CHUNKS, p}, rest[4];
    dt_result e = train(text, 0, p, M / 2, 0, &half);
    for (int k = 0; k < 4 && !e; k++) e = train(text, k, p, M, 5, &r[k]);
    if (e) return e;
    if (root)
        printf("\nm = %d, stage 0 of %d: keeps bytes  micro-batches  formula   sends bytes  formula  rest\n", M, p);
    for (int k = 0; k < 4; k++) {
        double messages = M * (k == 2 ? 2 * CHUNKS - 1 : 1), table = 4.0 * VOCABULARY * WIDTH;
        double formula = p > 1 ? messages * 4 * LENGTH * WIDTH + table : 0;
        double kept = M - (r[0].kept - r[k].kept) / ((r[0].kept - half.kept) / (M / 2));
        rest[k] = r[k].sent - formula;
        *good = *good && !strcmp(r[k].hash, EXPECTED) && (!root || (rest[k] == rest[0] && (k > 1 || kept == units[k])));
        if (root)
            printf("%-12s %22.0f %14.2f %8.2f %13.0f %8.0f %5.0f\n", names[k], r[k].kept, kept, units[k], r[k].sent,
                   formula, rest[k]);
    }
    if (root) printf("sha256 of all four %s\nexpected           %s\n", r[0].hash, EXPECTED);
    return e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_comm *c = NULL;
    int file, root, ranks, good = 1;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("51_pipeline");
    ranks = dt_comm_size(c), root = !dt_comm_rank(c);
    dt_comm_close(&c); /* the trainer opens its own */
    if (argc > 1 || ranks > 4) return fprintf(stderr, "51_pipeline: the option is --ranks 1, 2 or 4\n"), 2;
    file = mkstemp(text);
    if (file < 0) return perror("51_pipeline: no file in /tmp"), 1;
    close(file);
    if (root) {
        printf("segments, share of time and of weights of 4 stages; the most expensive beside an even share\n");
        cut("100 equal layers", 100, 0);
        cut("GPT-2 124M, cut by time", 14, 0);
        cut("GPT-2 124M, cut by memory", 14, 1);
        for (int k = 0; k < 4; k++) draw(k);
        good = sweep();
    }
    e = prose_generate(text, 100000, 1);
    if (!e) e = compare(text, ranks, root, &good);
    remove(text);
    if (e) return dt_fail("51_pipeline");
    if (!good) return fprintf(stderr, "FAILED: idle shares, memory, bytes or hashes are not as they should be\n"), 1;
    if (root) printf("ok: four orders, one hash\n");
    return 0;
}
