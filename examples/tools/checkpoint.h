/* checkpoint.h: shows what is in a checkpoint, verifies it, converts it into another kind, and compares two. checkpoint.c
 * is the program; 72_checkpoint_tool.c shows what the two kinds have in common. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const checkpoint_kinds[] = {"sharded", "full", "bf16"}; /* by dt_checkpoint_kind */

static const char *checkpoint_shape(const dt_shape *s, char text[96])
{
    int used = snprintf(text, 96, "(");
    for (int i = 0; i < s->dims; i++)
        used += snprintf(text + used, 96 - (size_t)used, i ? ",%lld" : "%lld", (long long)s->n[i]);
    snprintf(text + used, 96 - (size_t)used, ")");
    return text;
}

/* `most`: how many arrays are listed. */
static dt_result checkpoint_show(const char *path, int64_t most)
{
    dt_checkpoint *c = NULL;
    char text[96];
    dt_result r = dt_checkpoint_open(&c, path);
    if (r) return r;
    printf("%s: %s, step %lld of %lld\n", c->path, checkpoint_kinds[c->kind], (long long)c->step,
           (long long)c->recipe.steps);
    printf("  --layers %lld --width %lld --batch %lld --sequence %lld --seed %lld --learning-rate %g\n",
           (long long)c->recipe.model.layers, (long long)c->recipe.model.width, (long long)c->recipe.batch,
           (long long)c->recipe.sequence, (long long)c->recipe.seed, (double)c->recipe.learning_rate);
    for (const dt_checkpoint_entry *f = c->file; f < c->file + c->files; f++)
        printf("  %-24s %10lld bytes  sha256 %.16s..\n", f->name, (long long)f->bytes, f->sha256);
    printf("  %lld tensors in these files, %lld arrays:\n", (long long)c->tensors, (long long)c->arrays);
    for (int64_t i = 0; i < c->arrays && i < most; i++)
        printf("  %-64s %s\n", c->array[i].name, checkpoint_shape(&c->array[i].shape, text));
    if (c->arrays > most) printf("  .. and %lld more\n", (long long)(c->arrays - most));
    dt_checkpoint_close(&c);
    return DT_OK;
}

static dt_result checkpoint_verify(const char *path)
{
    dt_checkpoint *c = NULL;
    dt_result r = dt_checkpoint_open(&c, path);
    if (!r) r = dt_checkpoint_verify(c);
    if (!r) printf("%s: %lld files, %lld bytes, all as the manifest says\n", c->path, (long long)c->files,
                   (long long)c->bytes);
    dt_checkpoint_close(&c);
    return r;
}

static dt_result checkpoint_convert(const char *path, const char *to, dt_checkpoint_kind kind)
{
    dt_checkpoint *c = NULL;
    dt_result r = dt_checkpoint_open(&c, path);
    if (!r) r = dt_checkpoint_convert(c, to, kind);
    if (!r) printf("%s (%s) -> %s (%s)\n", path, checkpoint_kinds[c->kind], to, checkpoint_kinds[kind]);
    dt_checkpoint_close(&c);
    return r;
}

/* Prints how array `index` differs between two checkpoints, and counts it in *differ. */
static dt_result checkpoint_compare(dt_checkpoint *a, dt_checkpoint *b, int64_t index, int64_t *differ)
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
static dt_result checkpoint_diff(const char *one, const char *other, int64_t *differ)
{
    dt_checkpoint *a = NULL, *b = NULL;
    int64_t arrays = 0;
    dt_result r = dt_checkpoint_open(&a, one);
    if (!r) r = dt_checkpoint_open(&b, other);
    if (!r) arrays = a->arrays;
    *differ = 0;
    if (!r && (!arrays || arrays != b->arrays)) {
        fprintf(stderr, "checkpoint: %s and %s are of different models or optimizers, or too old to compare\n", one, other);
        r = DT_E_USAGE;
    }
    for (int64_t i = 0; !r && i < arrays; i++) r = checkpoint_compare(a, b, i, differ);
    if (!r) printf("%s and %s: %lld of %lld arrays differ\n", one, other, (long long)*differ, (long long)arrays);
    dt_checkpoint_close(&a);
    dt_checkpoint_close(&b);
    return r;
}

#endif
