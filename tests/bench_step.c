/* Training step of the small GPT (L6 H6 C384 V256, B8 T256, AdamW; 138.9 GFLOP): ms per step, tokens per second and the
 * share of the GEMM rate, exact numerics, on 1 and 2 threads and on 2 ranks. Where PyTorch is installed the same step runs
 * there in turn, in rounds, and the ratio of the medians is printed. Usage: bench_step [ROUNDS]; needs no other file. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/prose.h"
#include "bench.h"

enum { STEPS = 3, ROUNDS_MAX = 9 };

/* One child prints "ms <value>" lines; the median of those after the first. */
static double child(const char *command)
{
    char line[256];
    double ms[16], value;
    int n = 0, skipped = 0;
    FILE *pipe = popen(command, "r");
    if (!pipe) return 0.0;
    while (fgets(line, sizeof line, pipe))
        if (sscanf(line, "ms %lf", &value) == 1 && skipped++ && n < 16) ms[n++] = value;
    return pclose(pipe) == 0 && n ? median(ms, n) : 0.0;
}

static int train(const char *data, int64_t threads, int64_t shards)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r;
    recipe.model = dt_model_gpt2("small");
    recipe.data = data;
    recipe.batch = 8;
    recipe.sequence = 256;
    recipe.data_shards = shards;
    recipe.steps = STEPS;
    recipe.validation = 0.0f;
    layout.threads = threads;
    layout.output.quiet = 1;
    layout.output.sample_length = 0;
    r = dt_trainer_open(&t, &recipe, &layout);
    for (int s = 0; s < STEPS && !r; s++) {
        r = dt_trainer_step(t, &info);
        if (!r && dt_trainer_is_root(t)) printf("ms %.3f share %.3f\n", 1e3 * info.seconds, info.peak_share);
    }
    dt_trainer_close(&t);
    return r ? dt_fail("bench_step") : 0;
}

int main(int argc, char **argv)
{
    static const struct { const char *name, *options; int torch_threads; } row[] = {
        {"1 thread, 1 data shard", "--step 1 1", 1}, {"1 thread, 8 data shards", "--step 1 8", 1},
        {"2 threads, 1 data shard", "--step 2 1", 2}, {"2 ranks, 2 data shards", "--step 1 2 --ranks 2", 2}};
    char command[512], data[64];
    int rounds, torch;
    if (dt_launch(&argc, &argv)) return dt_fail("start");
    if (argc == 5 && !strcmp(argv[1], "--step")) return train(argv[4], atoi(argv[2]), atoi(argv[3]));
    rounds = argc > 1 ? atoi(argv[1]) : 3;
    if (rounds < 1 || rounds > ROUNDS_MAX) return fprintf(stderr, "usage: %s [ROUNDS 1..%d]\n", argv[0], ROUNDS_MAX), 2;
    snprintf(data, sizeof data, "/tmp/bench_step.%d.txt", (int)getpid());
    if (prose_generate(data, 200000, 1)) return dt_fail("data");
    torch = !system("python3 -c 'import torch' 2>/dev/null") ? 1 : !system("/usr/bin/python3 -c 'import torch' 2>/dev/null") ? 2 : 0;
    printf("small GPT, B8 T256, fp32 exact, %s kernels, medians of %d rounds; PyTorch: %s\n", dt_isa(), rounds, torch ? "live, in the same run" : "not installed");
    printf("%-26s %10s %10s %10s %14s\n", "", "ms", "tokens/s", "GFLOP/s", "PyTorch/ours");
    for (int i = 0; i < 4; i++) {
        double ours[ROUNDS_MAX], theirs[ROUNDS_MAX], a, b;
        for (int k = 0; k < rounds; k++) {
            snprintf(command, sizeof command, "%s %s %s", argv[0], row[i].options, data);
            ours[k] = child(command);
            snprintf(command, sizeof command, "%s tests/bench_torch.py %d %d", torch == 1 ? "python3" : "/usr/bin/python3", row[i].torch_threads, STEPS);
            theirs[k] = torch ? child(command) : 0.0;
        }
        a = median(ours, rounds), b = median(theirs, rounds);
        if (a <= 0.0) return fprintf(stderr, "bench_step: the step failed\n"), remove(data), 1;
        printf("%-26s %10.0f %10.0f %10.1f", row[i].name, a, 2048e3 / a, 138.9e3 / a);
        if (b > 0.0) printf(" %14.2f\n", b / a);
        else printf(" %14s\n", "-");
        fflush(stdout);
    }
    remove(data);
    return 0;
}
