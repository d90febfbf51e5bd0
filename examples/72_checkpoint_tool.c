/* 72_checkpoint_tool: what is in a checkpoint, and what do its two kinds have in common?
 *
 * What you learn
 *     - A checkpoint is a directory of plain files: safetensors with numbers, a manifest.json with the recipe and the
 *       SHA-256 of every file, config.json for other programs.
 *     - Sharded (one file per rank with the runs of numbers that it owns) and full (whole tensors under the names that
 *       others know) hold the same state. One becomes the other without a trainer, tensor by tensor.
 *     - A sharded one has more tensors, since ranks cut them, and the same numbers: 3 of 4 bytes for each weight, which
 *       has AdamW's two moments beside it.
 *     - A run that resumes from the converted one ends with the SHA-256 of a run that was never stopped.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 72_checkpoint_tool.c -o 72_checkpoint_tool -lm -lpthread
 *     ./72_checkpoint_tool --ranks 2
 *     For checkpoints of yours: ./build.sh checkpoint show DIR, or verify, convert, diff (tools/checkpoint.c)
 *
 * What it prints
 *     tool.sharded/step-000000003: sharded, step 3 of 6
 *       114 tensors in these files, 84 arrays:
 *     tool.sharded/step-000000003: 3 files, 1436640 bytes, all as the manifest says
 *     tool.sharded (sharded) -> tool.full (full)
 *       84 tensors in these files, 84 arrays:
 *     tool.full/step-000000003: 3 files, 1431200 bytes, all as the manifest says
 *     tool.sharded and tool.full: 0 of 84 arrays differ
 *     undisturbed a11d366030778dba64d1ab979d1a31e4dc12bfe7ac07de74ebd81a9b96866dd0
 *     resumed     a11d366030778dba64d1ab979d1a31e4dc12bfe7ac07de74ebd81a9b96866dd0
 *     ok: 0 arrays differ between the two kinds; stopped at step 3 and resumed, the run has the undisturbed one's hash
 *
 * Predict first: one byte of a file is changed. Which of show, verify and diff notices, and what does the trainer say?
 * Exercise: stop a second run, with another seed, at the same step, and compare the two. Which arrays are equal?
 *
 * Read on: tools/checkpoint.h for the verbs, 73_forgetting.c for what may not be missing, 76_async_checkpoint.c for
 *     saving during training. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include "tools/checkpoint.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 6, STOP = 3 };

/* Trains until `last` and takes the hash there. Every rank runs this. */
static dt_result train(const char *directory, int64_t last, int *root, char hash[65])
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = "tool.txt";
    recipe.steps = STEPS, recipe.batch = 8, recipe.sequence = 32;
    layout.output.quiet = 1, layout.output.sample_length = 0, layout.output.eval_batches = 1;
    layout.checkpoint.place = directory;
    layout.checkpoint.interval = directory ? STOP : 0;
    r = dt_trainer_open(&t, &recipe, &layout);
    while (!r && info.step < last) r = dt_trainer_step(t, &info);
    if (!r) memcpy(hash, dt_trainer_hash(t), 65);
    if (!r) *root = dt_trainer_is_root(t);
    dt_trainer_close(&t);
    return r;
}

/* Rank 0 converts the checkpoint to the other kind and looks at both. */
static dt_result look(int64_t *differ)
{
    dt_result r = checkpoint_show("tool.sharded", 8);
    if (!r) r = checkpoint_verify("tool.sharded");
    if (!r) r = checkpoint_convert("tool.sharded", "tool.full", DT_FULL);
    if (!r) r = checkpoint_show("tool.full", 8);
    if (!r) r = checkpoint_verify("tool.full");
    return r ? r : checkpoint_diff("tool.sharded", "tool.full", differ);
}

int main(int argc, char **argv)
{
    char whole[65] = "", stopped[65] = "", resumed[65] = "";
    int64_t differ = 0;
    int root = 0;
    dt_result r;
    if (dt_launch(&argc, &argv)) return dt_fail("start");
    if (argc > 1) return fprintf(stderr, "72_checkpoint_tool: what is '%s'?\n", argv[1]), 2;
    if (system("rm -rf tool.sharded tool.full tool.go")) return 1;
    if (prose_generate("tool.txt", 20000, 1)) return dt_fail("the text");
    r = train(NULL, STEPS, &root, whole);
    if (!r) r = train("tool.sharded", STOP, &root, stopped);
    if (!r && root) r = look(&differ);
    if (!r && root) r = checkpoint_convert("tool.full", "tool.go", DT_FULL);
    if (!r) r = train("tool.go", STEPS, &root, resumed);
    if (r) return dt_fail("checkpoints");
    if (!root) return 0;
    printf("undisturbed %s\nresumed     %s\n", whole, resumed);
    if (strcmp(whole, resumed) || differ) return printf("not the same bits\n"), 1;
    printf("ok: %lld arrays differ between the two kinds; stopped at step %d and resumed, the run has the undisturbed "
           "one's hash\n", (long long)differ, STOP);
    return 0;
}
