/* 32_one_hash: can a training run have the same bits on 1, 2, 3 and 8 ranks?
 *
 * What you learn
 *     - Floating-point sums depend on their order. Here the order belongs to the recipe: the batch is always cut into
 *       data_shards shards, and the gradient is a sum over these shards by one fixed tree. Ranks only divide the shards
 *       among themselves, evenly or not (3 ranks have 2, 3 and 3 of 8).
 *     - Inside a shard every sum has one defined order, for any number of threads and any width of the processor's
 *       vectors. exp and tanh are the library's own.
 *     - Random numbers (weights, order of the data, dropout) depend on seed, step, sample and element, not on a rank.
 *     - So "parallel training is equal up to rounding" is a choice, not a law of nature. A changed recipe, such as
 *       another seed or one step more, has another hash.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 32_one_hash.c -o 32_one_hash -lm -lpthread
 *     ./32_one_hash
 *     ./32_one_hash --ranks 2
 *     ./32_one_hash --ranks 3 --threads 2
 *     ./32_one_hash --ranks 8 --tp 2 --pp 2 --zero 1
 *     DT_ISA=avx2 ./32_one_hash --ranks 8 --launch threads
 *     DT_ISA=portable, plain C, needs up to a minute; the others a few seconds.
 *
 * What it prints
 *     model    GPT-2, 2 layers, 2 heads, width 32, vocabulary 256: 34688 parameters
 *     recipe   60 steps of 16 sequences, micro-batch 8, 8 data shards, 2 tensor shards, 2 context shards, seed 1
 *     step 60/60  validation loss 2.6272 nats, 3.790 bits per token
 *     sha256     37894c45e3d68ca2624b391e6c52dcb701982fd2d9a2eb35981b393e7799a5f6
 *     expected   37894c45e3d68ca2624b391e6c52dcb701982fd2d9a2eb35981b393e7799a5f6
 *     ok: the hash that everyone gets
 *
 * Predict first: which of these change the hash: --ranks 5, --threads 2, --seed 2, DT_ISA=portable?
 * Exercise: train with two seeds, step by step. After which step do the losses differ, and in which digit first?
 *
 * Read on: 33_accumulation.c for which choices are a recipe's, 40_zero_by_hand.c for layouts that keep less and change
 *     no bit. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The hash of the recipe below. It changes only when the recipe or the definition of an operation changes. */
#define EXPECTED "37894c45e3d68ca2624b391e6c52dcb701982fd2d9a2eb35981b393e7799a5f6"

static dt_recipe the_recipe(void)
{
    dt_recipe r = dt_recipe_default();
    r.model.layers = 2;
    r.model.heads = 2;
    r.model.width = 32; /* so small that plain C without a fused multiply-add in hardware needs less than a minute */
    r.steps = 60;
    r.batch = 16;
    r.micro_batch = 8; /* two micro-batches per step */
    r.data_shards = 8; /* up to 8 ranks can share a micro-batch, */
    r.tensor_shards = r.context_shards = 2; /* 2 a layer, and 2 a sequence */
    r.sequence = 32;
    r.learning_rate = 7e-3f;
    r.warmup = 10;
    r.dropout = 0.1f; /* random, and yet the same everywhere */
    return r;
}

/* Every rank writes its own copy of the text: the same seed, the same bytes. */
static dt_result open_trainer(dt_trainer **t, dt_recipe *recipe, const dt_layout *layout)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_result e;
    recipe->data = text;
    e = prose_temporary(text, 100000);
    if (!e) e = dt_trainer_open(t, recipe, layout);
    remove(text); /* open files live on without a name */
    recipe->data = NULL;
    return e;
}

/* Rank 0 says what came out; returns the exit status. other: by options of the recipe. */
static int report(dt_trainer *t, const dt_step_info *info, int other)
{
    const char *hash = dt_trainer_hash(t); /* the same on every rank */
    int same = !strcmp(hash, EXPECTED);
    if (!dt_trainer_is_root(t)) return same == other;
    printf("loss       %.6f after %lld steps, %s kernels\n", (double)info->loss, (long long)info->step, dt_isa());
    printf("sha256     %s\n", hash);
    printf("expected   %s\n", EXPECTED);
    if (same && !other) return printf("ok: the hash that everyone gets\n"), 0;
    if (!same && other) return printf("ok: another recipe, another hash; other inputs: not checked\n"), 0;
    fprintf(stderr, "FAILED: the hash is not that of the recipe. Please report it\n");
    return 1;
}

int main(int argc, char **argv)
{
    dt_recipe recipe = the_recipe();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e = dt_launch(&argc, &argv);
    int status, other;
    dt_recipe here;
    layout.output.sample_length = layout.output.eval_every = 0;
    memcpy(&here, &recipe, sizeof here);
    if (e || dt_args(&argc, &argv, &recipe, &layout)) return dt_fail("32_one_hash");
    other = memcmp(&here, &recipe, sizeof here) != 0;
    if (recipe.data || argc > 1) return fprintf(stderr, "32_one_hash: the data is generated here\n"), 2;
    e = open_trainer(&t, &recipe, &layout);
    if (!e) e = dt_trainer_run(t, &info);
    status = e ? dt_fail("32_one_hash") : report(t, &info, other);
    dt_trainer_close(&t);
    return status;
}
