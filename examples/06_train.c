/* 06_train: what does a whole training program need beside a recipe, a layout and a loop?
 *
 * What you learn
 *     - The recipe (model, data, steps, learning rate, seed) decides every bit of the result. The layout (ranks,
 *       threads, buckets) decides where and when the work is done. Both come from the command line; --help lists the
 *       common options, --help all lists all.
 *     - The plan comes first: model, data, recipe, layout, and what memory is used for. Then a line every two seconds:
 *       loss in nats per byte (it begins near ln 256 = 5.55; English text ends below 2), tokens/s, communication.
 *     - The last line but one is the SHA-256 of all weights and of the optimizer's state. It is the same with --ranks
 *       1, 3 or 8, with --threads 2, with --launch threads, and with DT_ISA=portable in the environment.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 06_train.c -o 06_train -lm -lpthread
 *     ./06_train --generate text.txt 200000
 *     ./06_train --data text.txt --model nano --steps 30 --batch 8 --ranks 2
 *     --generate writes a text by a small grammar. Any text file will do for --data: a byte is a token.
 *
 * What it prints
 *     model    GPT-2, 2 layers, 2 heads, width 64, vocabulary 256: 124672 parameters
 *     data     text.txt: 1484 training sequences of 128 tokens, 78 for validation
 *     recipe   30 steps of 8 sequences, micro-batch 8, 8 data shards, seed 1
 *     step 30/30  validation loss 3.8393 nats, 5.539 bits per token
 *     sha256 0ea82904cb500b982b8ca0d0a7c1a16911cc9c6ee7055f45c7b421937a7986b6
 *     ok: 30 steps, loss 3.837 nats per token
 *
 * Predict first: which of these options change the hash: --ranks, --threads, --seed, --batch, --bucket?
 * Exercise: end the run after five validations in a row without a new best. At which step does that happen with a text
 *     of 4000 bytes and --model nano --steps 300 --batch 8 --sequence 32 --learning-rate 0.01 --eval-every 10?
 *
 * Read on: 07_generation.c for the sample at the end, 31_data_parallel.c for how ranks work together. */
#define DT_COMPILER
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "advice.h"
#include "doctor.h"
#include "dry_run.h"
#include "prose.h"
#include "rules.h"
#include "timeline.h"
#include "trial.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ./06_train --generate FILE BYTES */
static int generate(const char *file, const char *bytes)
{
    char *end;
    long long n = strtoll(bytes, &end, 10);
    if (n < 1 || *end) {
        fprintf(stderr, "generate: '%s' is not a number of bytes: ./06_train --generate text.txt 200000\n", bytes);
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
    if (!r && dt_trainer_is_root(t) && !*dt_trainer_hash(t)) r = DT_E_SYSTEM; /* the state cannot be read */
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
    dt_probe rules, doctor, timeline, trial, advice, dry_run;
    if (argc == 4 && !strcmp(argv[1], "--generate")) return generate(argv[2], argv[3]);
    if (dt_launch(&argc, &argv)) return dt_fail("start"); /* with --ranks N: starts N copies of this program */
    dt_rules_attach(&layout, &rules), dt_doctor_attach(&layout, &doctor);
    dt_timeline_attach(&layout, &timeline), dt_trial_attach(&layout, &trial);
    dt_advice_attach(&layout, &advice), dt_dry_run_attach(&layout, &dry_run);
    if (dt_args(&argc, &argv, &recipe, &layout)) return dt_fail("options");
    if (argc > 2) {
        const char *rank = getenv("RANK"); /* one rank says it for all */
        static int told;                   /* ranks may be threads */
        if ((!rank || !strcmp(rank, "0")) && !__atomic_exchange_n(&told, 1, __ATOMIC_SEQ_CST))
            fprintf(stderr, "options: what is '%s'? One word may name the data; --help lists the options\n", argv[2]);
        return 2;
    }
    if (argc > 1) recipe.data = argv[1]; /* ./06_train book.txt */
    return train(&recipe, &layout) ? dt_fail("training") : 0;
}
