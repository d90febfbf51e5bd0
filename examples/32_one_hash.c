/* 32_one_hash: everybody gets the same hash.
 *
 * What you learn
 *     A recipe (model, data, seed, batch, steps, ...) decides every bit of a training run. A layout (ranks, threads,
 *     instruction set, compiler) only decides where and when. So one number, the SHA-256 of the final weights and of
 *     the optimizer's state, can stand in this file, and your machine must print it.
 *
 *     People say that parallel training is "mathematically equivalent" to training on one device. Mathematics is not
 *     what runs: fp32 addition rounds, and (a + b) + c is not a + (b + c). With most libraries another number of
 *     workers means another order of additions, then other bits, and after a few hundred steps another model. It is not
 *     a law of nature:
 *       - the batch is always cut into data_shards parts, here 8, and the gradient is a sum over these parts by one
 *         fixed tree; ranks only share out the parts, evenly or not (3 ranks have 2, 3 and 3 of them);
 *       - inside a part every sum has one written-down order, at any number of threads and any width of the processor's
 *         vectors; exp and tanh are the library's own;
 *       - random numbers (weights, order of the data, dropout) depend on (seed, step, sample, element), not on a rank.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 32_one_hash.c -o 32_one_hash -lm -lpthread
 *     ./32_one_hash
 *     ./32_one_hash --ranks 2
 *     ./32_one_hash --ranks 3 --threads 2
 *     ./32_one_hash --ranks 8 --tp 2 --pp 2 --zero 1
 *     DT_ISA=avx2 ./32_one_hash --ranks 8 --launch threads
 *     DT_ISA=portable (plain C: fmaf without the processor's help) needs up to a minute; the others a few seconds.
 *
 * What you should see
 *     The layout that was used, the loss, the hash, and that it is the expected one. Change the recipe, by a seed or by
 *     one step, and you see another hash: ./32_one_hash --seed 2
 *     one_hash.sh runs six layouts and draws them with their hashes: one_hash.svg, the picture in the project's README.
 *
 * Read on: 33_accumulation.c, which choices are a recipe's and do change bits. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    int file = mkstemp(text);
    dt_result e;
    if (file < 0) return perror("32_one_hash: no file in /tmp"), DT_E_FILE;
    close(file);
    recipe->data = text;
    e = prose_generate(text, 100000, 1);
    if (!e) e = dt_trainer_open(t, recipe, layout);
    remove(text); /* open files live on without a name */
    recipe->data = NULL;
    return e;
}

/* Rank 0 says what came out; returns the exit status. */
static int report(dt_trainer *t, const dt_step_info *info)
{
    const char *hash = dt_trainer_hash(t); /* the same on every rank */
    int same = !strcmp(hash, EXPECTED);
    if (!dt_trainer_is_root(t)) return !same;
    printf("loss       %.6f after %lld steps, %s kernels\n", (double)info->loss, (long long)info->step, dt_isa());
    printf("sha256     %s\n", hash);
    printf("expected   %s\n", EXPECTED);
    if (same) return printf("ok: the hash that everyone gets\n"), 0;
    fprintf(stderr, "FAILED: another hash; right if you changed the recipe, else please report it\n");
    return 1;
}

int main(int argc, char **argv)
{
    dt_recipe recipe = the_recipe();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e = dt_launch(&argc, &argv);
    int status;
    layout.output.sample_length = layout.output.eval_every = 0;
    if (e || dt_args(&argc, &argv, &recipe, &layout)) return dt_fail("32_one_hash");
    if (recipe.data || argc > 1) return fprintf(stderr, "32_one_hash: the data is generated here\n"), 2;
    e = open_trainer(&t, &recipe, &layout);
    if (!e) e = dt_trainer_run(t, &info);
    status = e ? dt_fail("32_one_hash") : report(t, &info);
    dt_trainer_close(&t);
    return status;
}
