/* What the passes of the compiler and 16 bits do to the training step of the small GPT (L6 H6 C384 V256, B8 T256, AdamW,
 * one thread, 8 data shards): operations and groups after compiling, memory of activations and temporaries of a unit,
 * bytes that no longer go through memory, compile time, and the step's time as a ratio to op by op in fp32, medians of
 * rounds that take the rows in turn. Then the same on two threads at once and as two runs side by side. Where PyTorch is
 * installed its step stands beside, eager and by torch.compile. Usage: bench_compile-passes [ROUNDS [T]]. */
#define DTRAIN_IMPLEMENTATION
#define DT_COMPILER
#include "dtrain.h"
#include "../examples/prose.h"
#include "bench.h"

enum { STEPS = 3, MOST = 9 };
static const struct row { const char *name, *passes; int precision, numerics; } row[] = {
    {"op by op", NULL, DT_PRECISION_FP32, DT_EXACT},
    {"the usual passes", "", DT_PRECISION_FP32, DT_EXACT},
    {"fuse alone", "fuse", DT_PRECISION_FP32, DT_EXACT},
    {"recompute alone", "recompute", DT_PRECISION_FP32, DT_EXACT},
    {"all but recompute", "-recompute", DT_PRECISION_FP32, DT_EXACT},
    {"all but bias", "-bias", DT_PRECISION_FP32, DT_EXACT},
    {"bf16, op by op", NULL, DT_PRECISION_BF16, DT_EXACT},
    {"bf16, the usual passes", "", DT_PRECISION_BF16, DT_EXACT},
    {"bf16 fast, op by op", NULL, DT_PRECISION_BF16, DT_FAST},
    {"bf16 fast, the usual passes", "", DT_PRECISION_BF16, DT_FAST}};
enum { COUNT = sizeof row / sizeof *row };

/* What a child prints of a run. */
typedef struct outcome { double ms, ops, groups, memory, traffic, compiling, peak; } outcome;

static int train(const struct row *k, const char *data, int64_t threads, int64_t length)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_compilation_report c;
    double ms[STEPS];
    dt_trainer *t = NULL;
    dt_result r;
    memset(&c, 0, sizeof c);
    recipe.model = dt_model_gpt2("small"), recipe.data = data, recipe.batch = 8, recipe.sequence = length;
    recipe.steps = STEPS, recipe.validation = 0.0f, recipe.precision = k->precision, recipe.numerics = k->numerics;
    layout.threads = threads, layout.output.quiet = 1, layout.output.sample_length = 0;
    layout.compile.mode = DT_COMPILE_ON;
    layout.compile.passes = k->passes && *k->passes ? k->passes : NULL;
    if (!k->passes) layout.compile.mode = DT_COMPILE_OFF;
    r = dt_trainer_open(&t, &recipe, &layout);
    if (!r) r = dt_trainer_compilation(t, &c);
    for (int s = 0; s < STEPS && !r; s++) {
        r = dt_trainer_step(t, &info);
        ms[s] = 1e3 * info.seconds;
    }
    if (!r)
        printf("outcome %f %f %f %f %f %f %f\n", median(ms + 1, STEPS - 1), (double)c.ops, (double)c.groups,
               (double)c.memory, (double)c.traffic, c.compiling, info.gflops / info.peak_share);
    dt_trainer_close(&t);
    return r ? dt_fail("bench_compile-passes") : 0;
}

static int run(const char *command, outcome *o)
{
    char line[512];
    int got = 0;
    FILE *pipe = popen(command, "r");
    while (pipe && fgets(line, sizeof line, pipe))
        if (sscanf(line, "outcome %lf %lf %lf %lf %lf %lf %lf", &o->ms, &o->ops, &o->groups, &o->memory, &o->traffic,
                   &o->compiling, &o->peak) == 7) got++;
    return pipe && !pclose(pipe) ? got : 0;
}

/* Two runs of one thread at once, in ms: the slower one. */
static double side_by_side(const char *program, const char *data, int length)
{
    char command[1024];
    outcome o;
    snprintf(command, sizeof command, "%s --row 0 %s 1 %d >%s.other & %s --row 0 %s 1 %d; wait; cat %s.other", program, data,
             length, data, program, data, length, data);
    memset(&o, 0, sizeof o);
    double most = 0.0;
    char line[512];
    FILE *pipe = popen(command, "r");
    while (pipe && fgets(line, sizeof line, pipe))
        if (sscanf(line, "outcome %lf", &o.ms) == 1 && o.ms > most) most = o.ms;
    if (pipe) pclose(pipe);
    return most;
}

static double torch(const char *python, const char *how)
{
    char command[256], line[256];
    double ms[16], value;
    int n = 0, seen = 0;
    snprintf(command, sizeof command, "%s tests/bench_torch.py 1 %d %s 2>/dev/null", python, STEPS + 2, how);
    FILE *pipe = popen(command, "r");
    while (pipe && fgets(line, sizeof line, pipe))
        if (sscanf(line, "ms %lf", &value) == 1 && seen++ > 1 && n < 16) ms[n++] = value;
    return pipe && !pclose(pipe) && n ? median(ms, n) : 0.0;
}

int main(int argc, char **argv)
{
    static const char *const pythons[] = {"python3", "/usr/bin/python3"};
    static const char *const hows[] = {"fp32", "fp32 compile", "bf16", "bf16 compile"};
    static double ms[COUNT][MOST], both[3][MOST];
    static outcome last[COUNT];
    char command[512], data[64];
    const char *python = NULL;
    int rounds, length;
    if (dt_launch(&argc, &argv)) return dt_fail("start");
    if (argc == 6 && !strcmp(argv[1], "--row")) return train(&row[atoi(argv[2])], argv[3], atoi(argv[4]), atoi(argv[5]));
    rounds = argc > 1 ? atoi(argv[1]) : 3, length = argc > 2 ? atoi(argv[2]) : 256;
    if (rounds < 1 || rounds > MOST || length < 1)
        return fprintf(stderr, "usage: %s [ROUNDS 1..%d [T]]\n", argv[0], MOST), 2;
    snprintf(data, sizeof data, "/tmp/bench_passes.%d.txt", (int)getpid());
    if (prose_generate(data, 400000, 1)) return dt_fail("data");
    for (int k = 0; k < rounds; k++) {
        for (int i = 0; i < COUNT; i++) {
            snprintf(command, sizeof command, "%s --row %d %s 1 %d", argv[0], i, data, length);
            if (!run(command, &last[i])) return fprintf(stderr, "bench_compile-passes: %s failed\n", row[i].name), remove(data), 1;
            ms[i][k] = last[i].ms;
        }
        snprintf(command, sizeof command, "%s --row 0 %s 2 %d", argv[0], data, length);
        outcome two = last[0];
        run(command, &two);
        both[0][k] = two.ms, both[1][k] = side_by_side(argv[0], data, length);
    }
    double base = median(ms[0], rounds);
    printf("small GPT, B8 T%d, one thread, %s kernels, medians of %d rounds; GEMM peak %.1f GFLOP/s\n", length, dt_isa(), rounds, last[0].peak);
    printf("%-28s %8s %8s %6s %7s %10s %10s %9s\n", "", "ms", "x faster", "ops", "groups", "MB a unit", "MB saved", "compile s");
    for (int i = 0; i < COUNT; i++) {
        double m = median(ms[i], rounds);
        printf("%-28s %8.0f %8.3f", row[i].name, m, base / m);
        if (last[i].ops > 0) printf(" %6.0f %7.0f %10.1f %10.1f %9.3f\n", last[i].ops, last[i].groups, last[i].memory / 1e6, last[i].traffic / 1e6, last[i].compiling);
        else printf("\n");
    }
    double two = median(both[0], rounds), side = median(both[1], rounds);
    printf("two threads %.0f ms: %.2f times as fast as one; two runs side by side, a thread each, take %.0f ms: %.2f of their rate\n",
           two, base / two, side, side / two / 2.0);
    for (int i = 0; i < 2 && !python; i++) {
        snprintf(command, sizeof command, "%s -c 'import torch' 2>/dev/null", pythons[i]);
        if (!system(command)) python = pythons[i];
    }
    printf("PyTorch: %s\n", python ? "in the same run" : "not installed");
    for (int i = 0; i < 4 && python; i++) {
        double m = torch(python, hows[i]);
        if (m > 0.0) printf("PyTorch %-20s %8.0f: ours takes %.2f (fp32, compiled), %.2f (bf16 fast, compiled) of it\n", hows[i], m, median(ms[1], rounds) / m, median(ms[COUNT - 1], rounds) / m);
        else printf("PyTorch %-20s does not run here\n", hows[i]);
    }
    snprintf(command, sizeof command, "%s.other", data);
    return remove(command), remove(data), 0;
}
