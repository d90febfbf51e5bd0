/* 33_accumulation: is a batch in four micro-batches the same as one batch?
 *
 * What you learn
 *     - A batch that does not fit in memory is cut into micro-batches, whose gradients are added up before one update.
 *       The order of that sum belongs to the recipe. V is the number of data shards, which the ranks divide among
 *       themselves.
 *     - shard: each data shard has one sum that continues through all micro-batches and is reduced once per step
 *       (no_sync elsewhere). With V = 1 micro-batches do not change a bit: the one sum runs over the samples in order.
 *       With V = 2 each shard has other samples, so the bits differ.
 *     - each: every micro-batch is reduced by itself. Two micro-batches with V shards are one micro-batch with 2 V
 *       shards: the same tree. Neither kind is more exact; what matters is that the order is defined.
 *     - A reduction sends 2(n-1)/n 4 P bytes per rank for any batch. With `shard`, k micro-batches serve k times the
 *       samples: bytes per sample fall as 1/k. More is sent than the formula says, because the token table is used
 *       twice and each parameter is padded.
 *     - Accumulation multiplies the batch by k with the same memory, so the learning rate may have to change.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 33_accumulation.c -o 33_accumulation -lm -lpthread
 *     ./33_accumulation                          (V = 1)
 *     ./33_accumulation --ranks 2                (V = 2: as many shards as ranks at least)
 *
 * What it prints
 *       1  shard  V =  1  1 x 16 samples   loss 5.3353148  sha256 cdbdb3a4a82ba6aa..
 *       2  shard  V =  1  4 x  4 samples   loss 5.3353148  sha256 cdbdb3a4a82ba6aa..
 *       3  each   V =  1  2 x  8 samples   loss 5.3353148  sha256 4ded1d9fce27a571..
 *       4  shard  V =  2  1 x 16 samples   loss 5.3353148  sha256 4ded1d9fce27a571..
 *       1 and 2 are equal, 3 and 4 are equal, 1 and 3 differ
 *     ok: V = 1: 2 hashes of 4 runs, equal where the order of the sums is
 *
 * Predict first: which rows are equal with V = 2?
 * Exercise: add row 5, `each` with 4 x 4 samples and V shards, and row 6, 1 x 16 with 4 V. Are their bits the same?
 *
 * Read on: 34_overlap_by_hand.c for hiding what is sent, 37_growing_batch.c for how large a batch may be. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct result {
    char hash[65];
    float loss;
    int64_t sent;  /* bytes that this rank sent in a step */
    double reduce; /* seconds in reductions, in the fastest step: other programs may disturb some */
    int64_t weights;
    int root;
} result;

static dt_result train(const char *text, int64_t batch, int64_t micro, int64_t shards, int32_t kind, result *out)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = text;
    recipe.sequence = 32, recipe.steps = 5, recipe.validation = 0;
    recipe.batch = batch, recipe.micro_batch = micro, recipe.data_shards = shards, recipe.accumulation = kind;
    layout.output.quiet = 1, layout.threads = 1;
    e = dt_trainer_open(&t, &recipe, &layout);
    for (out->reduce = 1e9; !e && info.step < recipe.steps;) {
        e = dt_trainer_step(t, &info);
        if (info.comm_seconds < out->reduce) out->reduce = info.comm_seconds;
    }
    if (e) return dt_trainer_close(&t), e;
    memcpy(out->hash, dt_trainer_hash(t), sizeof out->hash);
    out->loss = info.loss;
    out->sent = info.sent_bytes;
    out->weights = dt_trainer_weights(t);
    out->root = dt_trainer_is_root(t);
    dt_trainer_close(&t);
    return e;
}

/* One batch of 16, cut in four ways. */
static dt_result bits(const char *text, int64_t v, int *good)
{
    static const char *const kinds[] = {"shard", "each "};
    const int64_t micro[] = {16, 4, 8, 16}, shards[] = {v, v, v, 2 * v};
    const int32_t kind[] = {DT_SHARD, DT_SHARD, DT_EACH, DT_SHARD};
    result r[4];
    dt_result e = DT_OK;
    for (int i = 0; i < 4 && !e; i++) {
        e = train(text, 16, micro[i], shards[i], kind[i], &r[i]);
        if (!e && r[i].root)
            printf("  %d  %s  V = %2lld  %lld x %2lld samples   loss %.7f  sha256 %.16s..\n", i + 1, kinds[kind[i]],
                   (long long)shards[i], (long long)(16 / micro[i]), (long long)micro[i], (double)r[i].loss, r[i].hash);
    }
    if (e) return e;
    *good = !strcmp(r[0].hash, r[1].hash) == (v == 1) && !strcmp(r[2].hash, r[3].hash) && strcmp(r[0].hash, r[2].hash);
    if (r[0].root) printf("  1 and 2 %s, 3 and 4 are equal, 1 and 3 differ\n\n", v == 1 ? "are equal" : "differ");
    return e;
}

/* The memory for 4 samples per shard; the batch grows by accumulation. */
static dt_result bytes(const char *text, int64_t v, int ranks)
{
    result r[2];
    dt_result e = DT_OK;
    for (int64_t k = 1; k <= 8 && !e; k *= 2) {
        double batch = (double)(4 * v * k);
        e = train(text, 4 * v * k, 4 * v, v, DT_SHARD, &r[0]);
        if (!e) e = train(text, 4 * v * k, 4 * v, v, DT_EACH, &r[1]);
        if (e || !r[0].root) continue;
        printf("  %lld  %3.0f", (long long)k, batch);
        for (int kind = 0; kind < 2; kind++) {
            double formula = 2.0 * (ranks - 1) / ranks * 4.0 * (double)(r[0].weights * (kind ? k : 1));
            printf("%*s%8.0f %8.0f %7.1f us", kind ? 14 : 12, "", formula / batch, (double)r[kind].sent / batch,
                   1e6 * r[kind].reduce / batch);
        }
        printf("\n");
    }
    return e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_comm *c = NULL;
    int ranks, root, good = 0;
    int64_t v = 1;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("33_accumulation");
    ranks = dt_comm_size(c), root = !dt_comm_rank(c);
    dt_comm_close(&c); /* the trainer opens its own */
    while (v < ranks) v *= 2;
    if (argc > 1 || v > 4) {
        if (root) fprintf(stderr, "33_accumulation: the option is --ranks N, N up to 4: a micro-batch has 4 samples\n");
        return dt_exit_code(DT_E_USAGE);
    }
    e = prose_temporary(text, 100000);
    if (!e && root) printf("five steps with a batch of 16 samples, on %d rank%s:\n", ranks, ranks > 1 ? "s" : "");
    if (!e) e = bits(text, v, &good);
    if (!e && root) {
        printf("bytes that a rank sends and microseconds in reductions, per sample:\n");
        printf("%s", ranks > 1 ? "" : "(0: a single rank has nobody to send to; see --ranks 2)\n");
        printf("  k batch      shard: formula     sent       time       each: formula     sent       time\n");
    }
    if (!e) e = bytes(text, v, ranks);
    remove(text);
    if (e) return dt_fail("33_accumulation");
    if (!good) return fprintf(stderr, "FAILED: the wrong hashes are equal\n"), 1;
    if (root) printf("ok: V = %d: %d hashes of 4 runs, equal where the order of the sums is\n", (int)v, v > 1 ? 3 : 2);
    return 0;
}
