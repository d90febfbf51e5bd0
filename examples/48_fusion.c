/* 48_fusion: what does a training compiler save, and what does it leave alone?
 *
 * What you learn
 *     - A chain of elementwise operations that run one by one moves every value through memory for each operation.
 *       Fused, the chain runs tile by tile, and values between two operations stay in the first-level cache. The
 *       arithmetic is the same, and so are the bits.
 *     - A compiler finds such chains in a model's graph, forward and gradient (dt_layout.compile). Other passes add a
 *       bias inside its matrix product, change the order, and compute cheap values again in backward instead of
 *       keeping them.
 *     - Operations that the compiler cannot fuse, such as attention, run as before. They take most of the time here, so
 *       the step is only slightly faster. Memory falls here; elsewhere it can rise, so look at the plan.
 *     - "20 to 50 % faster" is measured on accelerators, whose arithmetic is far faster than their memory.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 48_fusion.c -o 48_fusion -lm -lpthread
 *     ./48_fusion                                (--ops 8: twice as many operations in the chain by hand)
 *
 * What it prints (~: measured here)
 *     one by one  40 bytes through memory per element   ~0.88 ns
 *     in tiles    12 bytes through memory per element   ~0.50 ns: ~1.8 times as fast, the same bits
 *     passes        ops   groups   memory of a unit   less through memory
 *     none           85                    661.8 kB
 *     the usual      78        8           497.9 kB              262.1 kB
 *     8 groups; 70 plain kernels: matrix products, attention, embedding, cross-entropy and the like
 *     ok: 40 and 12 bytes per element, the same bits; 497.9 kB of 661.8 kB kept; 7 runs with one hash
 *
 * Predict first: a chain of eight operations instead of four: which of the two times doubles?
 * Exercise: the table has each pass alone. Leave out one pass at a time instead. Which one saves the memory?
 *
 * Read on: 49_compile_pays.c for when that is worth its time, 103_four_passes.c for layout and precision, too. */
#define DT_COMPILER
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "prose.h"
#include <time.h>
#include <unistd.h>

enum { N = 1 << 22, TILE = 1024 };
static double ops = 4; /* of the chain by hand */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef float four __attribute__((vector_size(16), may_alias)); /* so that memory, not arithmetic, is what takes time */

/* Operation `op` of the chain y = (x b / 2)^2 + b, which begins again after four, on n elements. */
static void apply(int op, float *y, const float *x, const float *b, int64_t n)
{
    four *to = (four *)y;
    const four *from = (const four *)x, *with = (const four *)b;
    for (int64_t i = 0; op % 4 == 0 && i < n / 4; i++) to[i] = from[i] * with[i];
    for (int64_t i = 0; op % 4 == 1 && i < n / 4; i++) to[i] = from[i] * 0.5f;
    for (int64_t i = 0; op % 4 == 2 && i < n / 4; i++) to[i] = from[i] * from[i];
    for (int64_t i = 0; op % 4 == 3 && i < n / 4; i++) to[i] = from[i] + with[i];
}

/* The chain over N elements, `piece` at a time. Only the last operation writes y. */
static double chain(float *y, float *between, const float *x, const float *b, int64_t piece)
{
    double start = now();
    for (int64_t at = 0; at < N; at += piece)
        for (int op = 0; op < (int)ops; op++)
            apply(op, op == (int)ops - 1 ? y + at : between, op ? between : x + at, b + at, piece);
    return now() - start;
}

/* The bytes one by one; 0: other bits. */
static int by_hand(void)
{
    float *memory = malloc(5 * sizeof(float) * N), *x = memory, *b = x + N, *y = b + N, *z = y + N, *between = z + N;
    double one_by_one, tiles;
    int same, bytes = 0;
    if (!memory) return 0;
    memset(memory, 0, 5 * sizeof(float) * N);
    for (int i = 0; i < N; i++) x[i] = (float)(i % 1000 - 500), b[i] = (float)(i % 7);
    one_by_one = chain(y, between, x, b, N), tiles = chain(z, between, x, b, TILE);
    same = !memcmp(y, z, sizeof(float) * N);
    /* of four operations two read two arrays, two read one; each writes one. In tiles x, b and y remain. */
    for (int op = 0; op < (int)ops; op++) bytes += 4 * (op % 4 == 0 || op % 4 == 3 ? 3 : 2);
    printf("one by one %3d bytes through memory per element   %.2f ns\n", bytes, 1e9 * one_by_one / N);
    printf("in tiles   %3d bytes through memory per element   %.2f ns: %.1f times as fast, %s bits\n\n", 4 * 3,
           1e9 * tiles / N, one_by_one / tiles, same ? "the same" : "OTHER");
    free(memory);
    return same ? bytes : 0;
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
    dt_compilation_report before, usual, c;
    option list[] = {{"--ops", 2, 64, &ops}};
    int fused, equal = 1;
    dt_result r;
    if (dt_launch(&argc, &argv)) return dt_fail("start");
    if (!options_read(argc, argv, list, 1)) return 2;
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
        if (!i) usual = c;
        printf("%-12s %4d %8d %15.1f kB %18.1f kB\n", rows[i][0], (int)c.ops, (int)c.groups, (double)c.memory / 1e3,
               (double)c.traffic / 1e3);
    }
    remove(text);
    if (r) return dt_fail("training");
    printf("%d groups; %d plain kernels: matrix products, attention, embedding, cross-entropy and the like\n",
           (int)usual.groups, (int)(usual.ops - usual.groups));
    printf("sha256 of all seven %s\n", equal ? plain : "differ");
    if (!fused || !equal || usual.memory >= before.memory)
        return fprintf(stderr, "FAILED: other bits, or no less memory\n"), 1;
    printf("ok: %d and 12 bytes per element, the same bits; %.1f kB of %.1f kB kept; %d runs with one hash\n", fused,
           (double)usual.memory / 1e3, (double)before.memory / 1e3, ROWS + 1);
    return 0;
}
