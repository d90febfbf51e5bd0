/* 41_zero: what does each stage of ZeRO save, and what does it send?
 *
 * What you learn
 *     - Plain data parallel stores the same 16 P bytes on each of N ranks (P weights, fp32, AdamW). With ZeRO each rank
 *       owns an N-th (Rajbhandari et al. 2020): stage 1 shards the optimizer's state, stage 2 also the gradients, stage
 *       3 (FSDP) also the weights. So "every GPU holds the complete model" is true of plain data parallel alone.
 *     - "Sharding costs 50 % more traffic": only stage 3 does. An all-reduce is a reduce-scatter, P, and an
 *       all-gather, P. Stages 1 and 2 gather weights in place of gradients: 2 P. Stage 3 gathers weights twice: 3 P.
 *     - Hybrid groups (MiCS, HSDP) shard inside groups of g ranks and copy across groups: 16 P / g bytes per rank, the
 *       3 P on the group's fast links, and all-reduces of P / g across.
 *     - A rank with several data shards keeps a whole sum of gradients for each, to add them in the recipe's order. So
 *       with 2 ranks and 4 data shards ZeRO 2 and 3 save no gradients.
 *     - Stages 2 and 3 also need a bucket for a block's gradients, and stage 3 a window for a block's gathered weights.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 41_zero.c -o 41_zero -lm -lpthread
 *     ./41_zero --ranks 2
 *     ./41_zero --ranks 4                        (the one to read: a data shard per rank, and pairs; also 1 or 8)
 *
 * What it prints
 *       ZeRO          weights     gradients        optimizer       bucket  window  together
 *       0             2502656 4P    2502656  4P    5005312 8P          0       0  10010624 16.0P
 *       1             2502656 4P    2502656  4P    1251328 8P/4        0       0   6256640 10.0P
 *       2             2502656 4P     625664  4P/4  1251328 8P/4   745472       0   5125120  8.2P
 *       3              625664 4P/4   625664  4P/4  1251328 8P/4   745472  745472   3993600  6.4P
 *       3, pairs      1251328 4P/2  1251328  4P/2  2502656 8P/2   745472  745472   6496256 10.4P
 *     ok: runs: 5, ranks: 4; bytes kept and sent as computed, one hash
 *
 * Predict first: with 8 ranks and 8 data shards, what does a rank keep at stage 3, and with pairs?
 * Exercise: add groups of 4, and count what crosses between two nodes of 4 ranks each. Which groups send least there?
 *
 * Read on: 42_recompute_by_hand.c for activations, which ZeRO does not shard; 44_fit.c for 70 billion weights. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A Llama of matrices that are whole blocks of 1024 numbers, where ZeRO cuts; a norm of C weights is padded to one. */
enum { C = 128, HIDDEN = 352, LAYERS = 3, MOST = 8, PADDING = (1024 - C) * (2 * LAYERS + 1), EMBED = 256 * C };
enum { BLOCK = 3 * C * (C + HIDDEN) + 2 * 1024, HEAD = EMBED + 1024, P = EMBED + LAYERS * BLOCK + HEAD };
#define EXPECTED "a40c522ba0551596e99f4abd5836809c75afafc9dd083c33857b709c0b428385"
static int shards = 4; /* of data; 8 on 8 ranks, which is another recipe with another hash */

static const struct {
    const char *name;
    int stage, group; /* group 0: all ranks */
} runs[5] = {{"0", 0, 0}, {"1", 1, 0}, {"2", 2, 0}, {"3", 3, 0}, {"3, pairs", 3, 2}};
enum { WEIGHTS, GRADIENTS, STATE, BUFFERS, SENT, ACROSS, NUMBERS }; /* bytes; ACROSS: between pairs (0,1), (2,3) */
typedef struct result {
    int64_t n[NUMBERS]; /* sums over ranks */
    char hash[65];
} result;

static dt_result train(dt_comm *c, const char *text, int run, result *out)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_memory m;
    dt_trainer *t = NULL;
    int64_t all[MOST][NUMBERS];
    int n = dt_comm_size(c), pair = dt_comm_rank(c) / 2;
    dt_result e;
    recipe.model = dt_model_llama("llama-micro");
    recipe.data = text, recipe.sequence = 32, recipe.steps = 3, recipe.validation = 0;
    recipe.data_shards = recipe.micro_batch = recipe.batch = shards;
    l.zero = runs[run].stage, l.zero_group = runs[run].group, l.bucket = 1; /* a bucket per segment */
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0;
    l.overlap = DT_OVERLAP_OFF; /* on needs a second bucket and window (35_overlap.c) */
    e = dt_trainer_open(&t, &recipe, &l);
    if (e) return e;
    m = dt_trainer_memory(t);
    out->n[WEIGHTS] = m.weights, out->n[GRADIENTS] = m.gradients;
    out->n[STATE] = m.optimizer, out->n[BUFFERS] = m.buffers;
    for (int q = 0; q < n; q++) out->n[ACROSS] -= q / 2 == pair ? 0 : dt_comm_sent(dt_trainer_comm(t), q);
    e = dt_trainer_step(t, &info);
    for (int q = 0; q < n; q++) out->n[ACROSS] += q / 2 == pair ? 0 : dt_comm_sent(dt_trainer_comm(t), q);
    out->n[SENT] = info.sent_bytes;
    if (!e) e = dt_trainer_run(t, &info);
    if (!e) memcpy(out->hash, dt_trainer_hash(t), sizeof out->hash);
    dt_trainer_close(&t);
    if (!e) e = dt_all_gather(c, (float *)(void *)out->n, (float *)(void *)all, 2 * NUMBERS); /* it keeps all bits */
    for (int i = 0; i < NUMBERS; i++) out->n[i] = 0;
    for (int i = 0; i < NUMBERS * n && !e; i++) out->n[i % NUMBERS] += all[i / NUMBERS][i % NUMBERS];
    return e;
}

/* Of one rank of n, the mean; a run's line of the first table. Returns whether the formulas hold to the byte. */
static int kept(const result *r, int run, int n, int64_t buffers)
{
    int stage = runs[run].stage, g = runs[run].group ? runs[run].group : n, own = shards / n;
    int owners = own == 1 && stage > 1; /* they alone keep the sum */
    int64_t bucket = owners ? 4 * BLOCK : 0, window = stage > 2 ? (r->n[BUFFERS] - buffers) / n : 0;
    int64_t all = (r->n[WEIGHTS] + r->n[GRADIENTS] + r->n[STATE]) / n + window;
    int64_t sums = 4 * P * (own > 2 ? 3 : own); /* of the tree over its shards */
    char part[16];
    snprintf(part, sizeof part, "/%d", g);
    printf("  %-12s %8lld 4P%-2s %8lld %2dP%-2s %8lld 8P%-2s  %7lld %7lld  %8lld %4.1fP%s\n", runs[run].name,
           (long long)r->n[WEIGHTS] / n, stage > 2 ? part : "", (long long)(r->n[GRADIENTS] / n - bucket),
           (int)(owners ? 4 : sums / P), owners ? part : "", (long long)r->n[STATE] / n, stage > 0 ? part : "",
           (long long)bucket, (long long)window, (long long)all, (double)all / P,
           stage > 1 && !owners ? "  gradients: whole sums of its data shards" : "");
    return r->n[WEIGHTS] == 4 * P * n / (stage > 2 ? g : 1) && r->n[STATE] == 8 * P * n / (stage > 0 ? g : 1) &&
           r->n[GRADIENTS] == n * (owners ? 4 * P / g + bucket : sums) && window == (stage > 2 ? 4 * BLOCK : 0);
}

/* All ranks together; a line of the second table. */
static int sent(const result *r, int run, int n)
{
    int64_t stage = runs[run].stage, g = runs[run].group ? runs[run].group : n;
    int64_t others = 4 * (g - 1) * (n / g), book = (stage > 2 ? 3 : 2) * P * others + 2 * P * 4 * (n / g - 1);
    int64_t gathers = stage > 2 ? ((shards / n - 1) * (2 * P - HEAD - EMBED) - HEAD) * others : 0;
    int64_t norm = stage > 0 ? P / 1024 * g * others : 0, small = (int64_t)n * (n - 1) * (8 + 4 * shards);
    printf("  %-12s %9lld %10lld   %9lld %9lld %7lld   %9lld\n", runs[run].name, (long long)book, (long long)r->n[SENT],
           (long long)gathers, (long long)norm, (long long)small, (long long)r->n[ACROSS]);
    return r->n[SENT] == book + gathers + norm + small;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_comm *c = NULL;
    static result r[5];
    int good = 1, root, n, lines;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("41_zero");
    root = !dt_comm_rank(c), n = dt_comm_size(c);
    lines = n > 2 ? 5 : n > 1 ? 4 : 1; /* one rank shares nothing, and pairs need four */
    if (n == MOST) shards = MOST;
    if (argc > 1 || shards % n) return root ? fprintf(stderr, "41_zero: the option is --ranks 1, 2, 4 or 8\n"), 2 : 2;
    e = prose_temporary(text, 50000);
    for (int i = 0; i < lines && !e; i++) {
        e = train(c, text, i, &r[i]);
        good = good && !strcmp(r[i].hash, n == MOST ? r[0].hash : EXPECTED);
    }
    remove(text);
    dt_comm_close(&c);
    if (e || !root) return e ? dt_fail("41_zero") : !good;
    printf("P = %d: %d weights and the padding of norms; N = %d. Bytes per rank:\n", P, P - PADDING, n);
    printf("  ZeRO          weights     gradients        optimizer       bucket  window  together\n");
    for (int i = 0; i < lines; i++) good = kept(&r[i], i, n, r[0].n[BUFFERS]) && good;
    printf("Bytes that all ranks send in a step:\n");
    printf("  ZeRO          2P,2P,3P       sent     gathers      norm  losses   across pairs\n");
    for (int i = 0; i < lines; i++) good = sent(&r[i], i, n) && good;
    printf("sha256 %s\n", r[0].hash);
    if (good) return printf("ok: runs: %d, ranks: %d; bytes kept and sent as computed, one hash\n", lines, n), 0;
    return fprintf(stderr, "FAILED: a formula or the hash does not hold\n"), 1;
}
