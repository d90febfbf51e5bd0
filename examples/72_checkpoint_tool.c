/* 72_checkpoint_tool: what is in a checkpoint, is it whole, and how do two differ?
 *
 * What you learn
 *     - A checkpoint is a directory of plain files: safetensors with numbers, a manifest.json with the recipe and the
 *       SHA-256 of every file, config.json for other programs.
 *     - Sharded (one file per rank with the runs of numbers that it owns) and full (whole tensors under the names that
 *       others know) hold the same state. One becomes the other without a trainer, tensor by tensor.
 *     - A sharded one has more tensors, since ranks cut them, and the same bytes: weights x 4 bytes x 3, for AdamW's
 *       two moments beside each weight.
 *     - A run that goes on from the converted one ends with the SHA-256 of a run that was never stopped.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 72_checkpoint_tool.c -o 72_checkpoint_tool -lm -lpthread
 *     ./72_checkpoint_tool --ranks 2
 *     ./72_checkpoint_tool show tool.sharded
 *     ./72_checkpoint_tool verify tool.full
 *     ./72_checkpoint_tool diff tool.sharded tool.full
 *     Also: convert DIR TO KIND (sharded, full, or bf16: weights to export). DIR may hold several: the newest counts.
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
 *     ok: both kinds hold the same state, and training goes on from it with the same bits
 *
 * Predict first: one byte of a file is changed. Which of the verbs notices, and what does the trainer say?
 * Exercise: train two runs that differ by --seed and diff their checkpoints. Which tensors are equal?
 *
 * Read on: 73_forgetting.c for what may not be missing, 76_async_checkpoint.c for saving while training goes on. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 6, STOP = 3 };
static const char *const kinds[] = {"sharded", "full", "bf16"};

static const char *shape_text(const dt_shape *s, char text[96])
{
    int used = snprintf(text, 96, "(");
    for (int i = 0; i < s->dims; i++)
        used += snprintf(text + used, 96 - (size_t)used, i ? ",%lld" : "%lld", (long long)s->n[i]);
    snprintf(text + used, 96 - (size_t)used, ")");
    return text;
}

/* ---- the verbs ---- */

static dt_result show(const char *path, int64_t most)
{
    dt_checkpoint *c = NULL;
    char text[96];
    dt_result r = dt_checkpoint_open(&c, path);
    if (r) return r;
    printf("%s: %s, step %lld of %lld\n", c->path, kinds[c->kind], (long long)c->step, (long long)c->recipe.steps);
    printf("  --layers %lld --width %lld --batch %lld --sequence %lld --seed %lld --learning-rate %g\n",
           (long long)c->recipe.model.layers, (long long)c->recipe.model.width, (long long)c->recipe.batch,
           (long long)c->recipe.sequence, (long long)c->recipe.seed, (double)c->recipe.learning_rate);
    for (const dt_checkpoint_entry *f = c->file; f < c->file + c->files; f++)
        printf("  %-24s %10lld bytes  sha256 %.16s..\n", f->name, (long long)f->bytes, f->sha256);
    printf("  %lld tensors in these files, %lld arrays:\n", (long long)c->tensors, (long long)c->arrays);
    for (const dt_checkpoint_entry *a = c->array; a < c->array + c->arrays && a < c->array + most; a++)
        printf("  %-64s %s\n", a->name, shape_text(&a->shape, text));
    if (c->arrays > most) printf("  .. and %lld more\n", (long long)(c->arrays - most));
    dt_checkpoint_close(&c);
    return DT_OK;
}

static dt_result verify(const char *path)
{
    dt_checkpoint *c = NULL;
    dt_result r = dt_checkpoint_open(&c, path);
    if (!r) r = dt_checkpoint_verify(c);
    if (!r) printf("%s: %lld files, %lld bytes, all as the manifest says\n", c->path, (long long)c->files,
                   (long long)c->bytes);
    dt_checkpoint_close(&c);
    return r;
}

static dt_result convert(const char *path, const char *to, dt_checkpoint_kind kind)
{
    dt_checkpoint *c = NULL;
    dt_result r = dt_checkpoint_open(&c, path);
    if (!r) r = dt_checkpoint_convert(c, to, kind);
    if (!r) printf("%s (%s) -> %s (%s)\n", path, kinds[c->kind], to, kinds[kind]);
    dt_checkpoint_close(&c);
    return r;
}

/* Prints how array `index` differs between two checkpoints, and counts it in *differ. */
static dt_result compare(dt_checkpoint *a, dt_checkpoint *b, int64_t index, int64_t *differ)
{
    const dt_checkpoint_entry *t = &a->array[index];
    int64_t count = dt_shape_count(t->shape), others = 0, first = 0;
    double most = 0;
    float *x = (float *)malloc(8 * (size_t)count), *y = x + count;
    dt_result r = !x ? DT_E_MEMORY : dt_checkpoint_read(a, index, x);
    if (!r) r = dt_checkpoint_read(b, index, y);
    for (int64_t i = 0; !r && i < count; i++) {
        double by = (double)x[i] - (double)y[i];
        if (!memcmp(&x[i], &y[i], sizeof *x)) continue; /* bits: -0 is not 0, and a NaN may be the same */
        if (!others++) first = i;
        most = by > most ? by : -by > most ? -by : most;
    }
    *differ += others > 0;
    if (others)
        printf("  %-56s %8lld of %lld differ, by up to %.3g; the first at %lld: %.9g and %.9g\n", t->name,
               (long long)others, (long long)count, most, (long long)first, (double)x[first], (double)y[first]);
    free(x);
    return r;
}

/* Compares two checkpoints of any kind. *differ: arrays that have another number. */
static dt_result diff(const char *one, const char *other, int64_t *differ)
{
    dt_checkpoint *a = NULL, *b = NULL;
    int64_t arrays = 0;
    dt_result r = dt_checkpoint_open(&a, one);
    if (!r) r = dt_checkpoint_open(&b, other);
    if (!r) arrays = a->arrays;
    *differ = 0;
    if (!r && !arrays) r = dt_checkpoint_read(a, 0, NULL); /* says why there are none */
    if (!r && arrays != b->arrays) {
        fprintf(stderr, "diff: %s and %s are of different models or optimizers\n", one, other);
        r = DT_E_USAGE;
    }
    for (int64_t i = 0; !r && i < arrays; i++) r = compare(a, b, i, differ);
    if (!r) printf("%s and %s: %lld of %lld arrays differ\n", one, other, (long long)*differ, (long long)arrays);
    dt_checkpoint_close(&a);
    dt_checkpoint_close(&b);
    return r;
}

/* ---- a run to look at ---- */

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

/* What rank 0 does with the checkpoint: into the other kind, and look at both. */
static dt_result look(int64_t *differ)
{
    dt_result r = show("tool.sharded", 8);
    if (!r) r = verify("tool.sharded");
    if (!r) r = convert("tool.sharded", "tool.full", DT_FULL);
    if (!r) r = show("tool.full", 8);
    if (!r) r = verify("tool.full");
    return r ? r : diff("tool.sharded", "tool.full", differ);
}

static int demonstrate(void)
{
    char whole[65] = "", stopped[65] = "", resumed[65] = "";
    int64_t differ = 0;
    int root = 0;
    dt_result r;
    if (system("rm -rf tool.sharded tool.full tool.go")) return 1;
    if (prose_generate("tool.txt", 20000, 1)) return dt_fail("the text");
    r = train(NULL, STEPS, &root, whole);
    if (!r) r = train("tool.sharded", STOP, &root, stopped);
    if (!r && root) r = look(&differ);
    if (!r && root) r = convert("tool.full", "tool.go", DT_FULL);
    if (!r) r = train("tool.go", STEPS, &root, resumed);
    if (r) return dt_fail("checkpoints");
    if (!root) return 0;
    printf("undisturbed %s\nresumed     %s\n", whole, resumed);
    if (strcmp(whole, resumed) || differ) return printf("not the same bits\n"), 1;
    printf("ok: both kinds hold the same state, and training goes on from it with the same bits\n");
    return 0;
}

int main(int argc, char **argv)
{
    int64_t differ, kind = 2;
    const char *verb;
    if (dt_launch(&argc, &argv)) return dt_fail("start");
    verb = argc > 1 ? argv[1] : "";
    if (argc == 1) return demonstrate();
    while (kind >= 0 && (argc < 5 || strcmp(argv[4], kinds[kind]))) kind--;
    if (argc == 3 && !strcmp(verb, "show")) {
        if (show(argv[2], 1 << 30)) return dt_fail("show");
    } else if (argc == 3 && !strcmp(verb, "verify")) {
        if (verify(argv[2])) return dt_fail("verify");
    } else if (argc == 5 && !strcmp(verb, "convert") && kind >= 0) {
        if (convert(argv[2], argv[3], (dt_checkpoint_kind)kind)) return dt_fail("convert");
    } else if (argc == 4 && !strcmp(verb, "diff")) {
        if (diff(argv[2], argv[3], &differ)) return dt_fail("diff");
        if (differ) return 1;
    } else {
        fprintf(stderr, "72_checkpoint_tool [show DIR | verify DIR | convert DIR TO sharded|full|bf16 | diff DIR DIR]\n");
        return dt_exit_code(DT_E_USAGE);
    }
    printf("ok\n");
    return 0;
}
