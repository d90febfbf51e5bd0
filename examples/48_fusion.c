/* 48_fusion: what does a training compiler save, and what does it leave alone?
 *
 * What you learn
 *     - A chain of elementwise operations run one by one moves every value through memory at each step. Fused, it runs
 *       tile by tile: what stands between two operations stays in the first-level cache. The arithmetic is the same,
 *       and so are the bits.
 *     - A compiler finds such chains in a model's graph, forward and gradient (dt_layout.compile). Other passes put a
 *       bias into its matrix product, change the order, and compute cheap values again in backward instead of keeping
 *       them.
 *     - Operations without a rule, such as attention, run as their plain kernels. They are most of the time here, so
 *       the step becomes little faster. What falls is memory. It can also rise: plan it, do not assume it.
 *     - "20 to 50 % faster" is measured on accelerators, whose arithmetic is far ahead of their memory.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 48_fusion.c -o 48_fusion -lm -lpthread
 *     ./48_fusion
 *
 * What it prints (~: measured here)
 *     one by one  40 bytes through memory per element   ~0.88 ns
 *     in tiles    12 bytes through memory per element   ~0.50 ns: ~1.8 times as fast, the same bits
 *     passes        ops   groups   memory of a unit   less through memory
 *     none           85                    661.8 kB
 *     the usual      78        8           497.9 kB              262.1 kB
 *     without a rule, so run as plain kernels: matrix products, attention, embedding, cross-entropy
 *     ok: fewer bytes, the same bits, one hash
 *
 * Predict first: a chain of eight operations instead of four: which of the two times doubles?
 * Exercise: 06_train --compile on --compile-report, with one pass left out at a time. Which pass saves most memory?
 *
 * Read on: 49_compile_pays.c for when that is worth its time, 42_recompute_by_hand.c for the other way to keep less. */
#define DT_COMPILER
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { N = 1 << 22, TILE = 1024, OPS = 4 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef float four __attribute__((vector_size(16), may_alias)); /* so that memory, not arithmetic, is what takes time */

/* Operation `op` of the chain y = (x b / 2)^2 + b, on n elements. */
static void apply(int op, float *y, const float *x, const float *b, int64_t n)
{
    four *to = (four *)y;
    const four *from = (const four *)x, *with = (const four *)b;
    for (int64_t i = 0; op == 0 && i < n / 4; i++) to[i] = from[i] * with[i];
    for (int64_t i = 0; op == 1 && i < n / 4; i++) to[i] = from[i] * 0.5f;
    for (int64_t i = 0; op == 2 && i < n / 4; i++) to[i] = from[i] * from[i];
    for (int64_t i = 0; op == 3 && i < n / 4; i++) to[i] = from[i] + with[i];
}

/* The chain over N elements, `piece` at a time. Only the last operation writes y. */
static double chain(float *y, float *between, const float *x, const float *b, int64_t piece)
{
    double start = now();
    for (int64_t at = 0; at < N; at += piece)
        for (int op = 0; op < OPS; op++)
            apply(op, op == OPS - 1 ? y + at : between, op ? between : x + at, b + at, piece);
    return now() - start;
}

static int by_hand(void)
{
    float *memory = malloc(5 * sizeof(float) * N), *x = memory, *b = x + N, *y = b + N, *z = y + N, *between = z + N;
    double one_by_one, tiles;
    int same;
    if (!memory) return 0;
    memset(memory, 0, 5 * sizeof(float) * N);
    for (int i = 0; i < N; i++) x[i] = (float)(i % 1000 - 500), b[i] = (float)(i % 7);
    one_by_one = chain(y, between, x, b, N), tiles = chain(z, between, x, b, TILE);
    same = !memcmp(y, z, sizeof(float) * N);
    /* one by one, two operations read two arrays and two read one, and each writes one; in tiles x, b and y remain */
    printf("one by one  %d bytes through memory per element   %.2f ns\n", 4 * (2 * 2 + 2 + OPS), 1e9 * one_by_one / N);
    printf("in tiles    %d bytes through memory per element   %.2f ns: %.1f times as fast, %s bits\n\n", 4 * 3,
           1e9 * tiles / N, one_by_one / tiles, same ? "the same" : "OTHER");
    free(memory);
    return same;
}

/* Trains with these passes (NULL: none, "": the usual); keeps the hash and the report. */
static dt_result train(const char *text, const char *passes, char *hash, dt_compilation_report *c)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r;
    recipe.model = dt_model_gpt2("nano"), recipe.data = text, recipe.steps = 4, recipe.batch = 8, recipe.sequence = 64;
    layout.threads = 1, layout.output.quiet = 1;
    layout.compile.mode = passes ? DT_COMPILE_ON : DT_COMPILE_OFF;
    layout.compile.passes = passes && *passes ? passes : NULL;
    r = dt_trainer_open(&t, &recipe, &layout);
    while (!r && info.step < recipe.steps) r = dt_trainer_step(t, &info);
    if (!r) snprintf(hash, 65, "%s", dt_trainer_hash(t));
    if (!r) r = dt_trainer_compilation(t, c);
    dt_trainer_close(&t);
    return r;
}

int main(int argc, char **argv)
{
    static const char *const rows[][2] = {
        {"the usual", ""}, {"recompute", "recompute"}, {"fuse", "fuse"}, {"bias", "bias"},
        {"order", "order"}, {"logits", "logits"}};
    enum { ROWS = 6 };
    char text[64], plain[65] = "", hash[65];
    dt_compilation_report before, c;
    int64_t least = 0;
    int fused, equal = 1;
    dt_result r;
    if (dt_launch(&argc, &argv)) return dt_fail("start");
    snprintf(text, sizeof text, "/tmp/48_fusion.%d.txt", (int)getpid());
    fused = by_hand();
    if (prose_generate(text, 40000, 1)) return dt_fail("text");
    r = train(text, NULL, plain, &before);
    printf("passes        ops   groups   memory of a unit   less through memory\n");
    if (!r) printf("none         %4d %8s %15.1f kB\n", (int)before.ops, "", (double)before.memory / 1e3);
    for (int i = 0; i < ROWS && !r; i++) {
        r = train(text, rows[i][1], hash, &c);
        if (r) break;
        equal &= !strcmp(hash, plain);
        if (!i) least = c.memory;
        printf("%-12s %4d %8d %15.1f kB %18.1f kB\n", rows[i][0], (int)c.ops, (int)c.groups, (double)c.memory / 1e3,
               (double)c.traffic / 1e3);
    }
    remove(text);
    if (r) return dt_fail("training");
    printf("without a rule, so run as plain kernels: matrix products, attention, embedding, cross-entropy\n");
    printf("a cook who reads the whole recipe first walks to the pantry once: that is fusion\n");
    printf("sha256 of all seven %s\n", equal ? plain : "differ");
    if (!fused || !equal || least >= before.memory) return fprintf(stderr, "48_fusion: other bits, or no less memory\n"), 1;
    printf("ok: fewer bytes, the same bits, one hash\n");
    return 0;
}
