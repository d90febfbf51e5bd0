/* How the ways to share the work compare. The small GPT (L6 H6 C384 V256, T256; batch 16 in 16 units of one sequence,
 * 277.9 GFLOP a step) on 2 ranks of one thread: data parallel, tensor parallel without and with sequence parallelism,
 * and a pipeline of 2 stages under each schedule, all of one recipe, in one process pair, a step of each in turn.
 * Medians, and tokens per second against data parallel. Then one rank, recipes of 1, 2 and 4 tensor shards.
 * Usage: bench_modes [STEPS]; needs no other file. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/prose.h"
#include "bench.h"

enum { STEPS_MAX = 25, MODES = 7 };

static const struct { const char *name; int64_t tp, pp; int32_t sequence_parallel, pipeline; int64_t chunks; } mode[MODES] = {
    {"dp=2", 1, 1, 0, DT_1F1B, 1},
    {"tp=2", 2, 1, 0, DT_1F1B, 1},
    {"tp=2 sequence parallel", 2, 1, 1, DT_1F1B, 1},
    {"pp=2 GPipe", 1, 2, 0, DT_GPIPE, 1},
    {"pp=2 1F1B", 1, 2, 0, DT_1F1B, 1},
    {"pp=2 interleaved, 2 chunks", 1, 2, 0, DT_INTERLEAVED, 2},
    {"pp=2 zero-bubble", 1, 2, 0, DT_ZERO_BUBBLE, 1}};

static dt_recipe recipe_of(const char *data, int64_t tensor_shards)
{
    dt_recipe recipe = dt_recipe_default();
    recipe.model = dt_model_gpt2("small");
    recipe.data = data;
    recipe.batch = 16, recipe.micro_batch = 2, recipe.sequence = 256;
    recipe.data_shards = 2, recipe.tensor_shards = tensor_shards;
    recipe.steps = 1000;
    recipe.validation = 0.0f;
    return recipe;
}

static dt_layout layout_of(int i)
{
    dt_layout layout = dt_layout_default();
    layout.tp = mode[i].tp, layout.sequence_parallel = mode[i].sequence_parallel;
    layout.pp = mode[i].pp, layout.pipeline = mode[i].pipeline, layout.chunks = mode[i].chunks;
    layout.threads = 1;
    layout.output.quiet = 1;
    layout.output.sample_length = 0;
    return layout;
}

/* A step of each of n trainers in turn, so that what else the machine does meets all of them alike. */
static dt_result race(dt_trainer **t, int n, int steps, double seconds[][STEPS_MAX])
{
    dt_result r = DT_OK;
    for (int s = -1; s < steps && !r; s++)
        for (int i = 0; i < n && !r; i++) {
            dt_step_info info = dt_step_info_zero();
            r = dt_trainer_step(t[i], &info);
            if (s >= 0) seconds[i][s] = info.seconds;
        }
    return r;
}

static void show(const char *name, double seconds, double base)
{
    printf("%-28s %9.0f %10.0f %10.1f %12.3f\n", name, 1e3 * seconds, 4096.0 / seconds, 277.9 / seconds, base / seconds);
}

static int modes(const char *data, int steps)
{
    static double seconds[MODES][STEPS_MAX];
    dt_trainer *t[MODES] = {NULL};
    dt_recipe recipe = recipe_of(data, 2);
    double base;
    dt_result r = DT_OK;
    for (int i = 0; i < MODES && !r; i++) {
        dt_layout layout = layout_of(i);
        r = dt_trainer_open(&t[i], &recipe, &layout);
    }
    if (!r) r = race(t, MODES, steps, seconds);
    base = median(seconds[0], steps);
    for (int i = 0; i < MODES && !r && dt_trainer_is_root(t[0]); i++) show(mode[i].name, median(seconds[i], steps), base);
    for (int i = 0; i < MODES; i++) dt_trainer_close(&t[i]);
    return r ? dt_fail("bench_modes") : 0;
}

static int shards(const char *data, int steps)
{
    static double seconds[3][STEPS_MAX];
    dt_trainer *t[3] = {NULL};
    dt_layout layout = layout_of(0);
    double base;
    dt_result r = DT_OK;
    for (int i = 0; i < 3 && !r; i++) {
        dt_recipe recipe = recipe_of(data, (int64_t)1 << i);
        recipe.model.heads = 8; /* which 4 shards divide, as they do not the usual 6 */
        r = dt_trainer_open(&t[i], &recipe, &layout);
    }
    if (!r) r = race(t, 3, steps, seconds);
    base = median(seconds[0], steps);
    for (int i = 0; i < 3 && !r; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d tensor shard%s", 1 << i, i ? "s" : "");
        show(name, median(seconds[i], steps), base);
    }
    for (int i = 0; i < 3; i++) dt_trainer_close(&t[i]);
    return r ? dt_fail("bench_modes") : 0;
}

/* One rank's program, with the options behind it. */
static int child(const char *program, const char *what, const char *data, int steps, const char *options)
{
    char command[600];
    snprintf(command, sizeof command, "%s --rank %s %s %d %s", program, what, data, steps, options);
    fflush(stdout);
    return system(command);
}

int main(int argc, char **argv)
{
    char data[64];
    int steps, bad;
    if (dt_launch(&argc, &argv)) return dt_fail("start");
    if (argc == 5 && !strcmp(argv[1], "--rank")) return (!strcmp(argv[2], "modes") ? modes : shards)(argv[3], atoi(argv[4]));
    steps = argc > 1 ? atoi(argv[1]) : 7;
    if (steps < 1 || steps > STEPS_MAX) return fprintf(stderr, "usage: %s [STEPS 1..%d]\n", argv[0], STEPS_MAX), 2;
    snprintf(data, sizeof data, "/tmp/bench_modes.%d.txt", (int)getpid());
    if (prose_generate(data, 200000, 1)) return dt_fail("data");
    printf("small GPT, T256, 16 units of one sequence, medians of %d steps in turn\n", steps);
    printf("%-28s %9s %10s %10s %12s\n", "2 ranks x 1 thread", "ms", "tokens/s", "GFLOP/s", "against dp");
    bad = child(argv[0], "modes", data, steps, "--ranks 2");
    printf("%-28s %9s %10s %10s %12s\n", "1 rank, 8 heads", "ms", "tokens/s", "GFLOP/s", "against 1");
    bad = bad || child(argv[0], "shards", data, steps, "");
    remove(data);
    return bad ? 1 : 0;
}
