/* 06_train: the trainer, for your own text.
 *
 * What you learn
 *     A whole training program is a recipe, a layout and a loop. The recipe (model, data, steps, learning rate, seed ...)
 *     decides every bit of the result. The layout (ranks, threads, buckets ...) decides only where and when the work is
 *     done. Both come from the command line here; --help lists the common options, --help all every one.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 06_train.c -o 06_train -lm -lpthread
 *     ./06_train --generate text.txt 200000
 *     ./06_train --data text.txt --model nano --steps 30 --batch 8 --ranks 2
 *
 *     --generate writes a text of so many bytes by a small grammar, for a machine without a better one. Any text file
 *     will do for --data: a byte is a token. A book of 1 MB and --model tiny give words after a few minutes.
 *
 * What you should see
 *     The plan first: model, data, recipe, layout, and what memory is needed for what. Then a line every two seconds:
 *     loss in nats per byte (it begins near ln 256 = 5.55, the loss of guessing; English text ends below 2), tokens/s,
 *     GFLOP/s and their share of what this machine's matrix product reaches. At the end the validation loss, a sample
 *     and the SHA-256 of all weights and of the optimizer's state. Repeat it with --ranks 1, 3 or 8, with --threads 2,
 *     with --launch threads, or with DT_ISA=portable in the environment: the same SHA-256.
 *
 * Read on: 31_data_parallel.c shows how the ranks work together. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ./06_train --generate FILE BYTES */
static int generate(const char *file, const char *bytes)
{
    long long n = atoll(bytes);
    if (n < 1) {
        fprintf(stderr, "generate: '%s' is no number of bytes: ./06_train --generate text.txt 200000\n", bytes);
        return dt_exit_code(DT_E_USAGE);
    }
    return prose_generate(file, n, 1) ? 1 : 0;
}

/* Every rank runs this. Only rank 0 prints. */
static dt_result train(const dt_recipe *recipe, const dt_layout *layout)
{
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r = dt_trainer_open(&t, recipe, layout);
    while (!r && info.step < recipe->steps) r = dt_trainer_step(t, &info); /* one step of the optimizer */
    if (!r && dt_trainer_is_root(t)) {
        printf("sha256 %s\n", dt_trainer_hash(t));
        printf("ok: %lld steps, loss %.3f nats per token\n", (long long)info.step, (double)info.loss);
    }
    dt_trainer_close(&t);
    return r;
}

int main(int argc, char **argv)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    if (argc == 4 && !strcmp(argv[1], "--generate")) return generate(argv[2], argv[3]);
    if (dt_launch(&argc, &argv)) return dt_fail("start"); /* with --ranks N: starts N copies of this program */
    if (dt_args(&argc, &argv, &recipe, &layout)) return dt_fail("options");
    if (argc > 2 || (argc > 1 && argv[1][0] == '-')) {
        const char *rank = getenv("RANK"); /* one rank says it for all */
        static int told;                   /* ranks may be threads */
        if ((!rank || !strcmp(rank, "0")) && !__atomic_exchange_n(&told, 1, __ATOMIC_SEQ_CST))
            fprintf(stderr, "options: what is '%s'? One word may name the data; options begin with --, and --help all "
                            "lists them\n", argv[argv[1][0] == '-' ? 1 : 2]);
        return 2;
    }
    if (argc > 1) recipe.data = argv[1]; /* ./06_train book.txt */
    return train(&recipe, &layout) ? dt_fail("training") : 0;
}
