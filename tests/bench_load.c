/* Training beside two busy loops: tokens per second of 2 ranks x 1 thread and of 1 rank x 2 threads, as shares of what
 * they do alone, in turns. Two loops on two cores leave half of the machine: 0.45 of the speed alone or more is the
 * goal, since a rank that waits for a rank without a core must not spin its own time away. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "bench.h"

enum { TURNS = 5, STEPS = 60, LOOPS = 2 };
static const char *const layouts[] = {"--ranks 2 --threads 1", "--ranks 1 --threads 2"};

/* Samples of random bytes. */
static dt_result bytes(void *user, dt_split split, int64_t i, void *input, void *target)
{
    (void)user, (void)split;
    for (int64_t k = 0; k < 64; k++) {
        ((int32_t *)input)[k] = (int32_t)((i * 131 + k * k * 17) & 255);
        ((int32_t *)target)[k] = (int32_t)((i * 131 + (k + 1) * (k + 1) * 17) & 255);
    }
    return DT_OK;
}

/* A run: its tokens per second, the median over steps. */
static int work(int argc, char **argv)
{
    static double seconds[STEPS];
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_source source = {NULL, {4096, 0}, 64, 64, DT_I32, DT_I32, bytes};
    dt_trainer *t = NULL;
    recipe.model = dt_model_gpt2("micro"), recipe.model.vocabulary = 256, recipe.source = &source;
    recipe.batch = 16, recipe.data_shards = 2, recipe.steps = STEPS;
    layout.output.quiet = 1, layout.output.eval_batches = 0, layout.output.sample_length = 0;
    if (dt_launch(&argc, &argv) || dt_args(&argc, &argv, &recipe, &layout)) return dt_fail("bench_load");
    if (dt_trainer_open(&t, &recipe, &layout)) return dt_fail("bench_load");
    for (int i = 0; i < STEPS; i++) {
        if (dt_trainer_step(t, &info)) return dt_fail("bench_load");
        seconds[i] = info.seconds;
    }
    if (dt_trainer_is_root(t)) {
        double sum = 0.0;
        for (int i = 5; i < STEPS; i++) sum += seconds[i];
        printf("%g\n", (double)info.tokens * (STEPS - 5) / sum);
    }
    dt_trainer_close(&t);
    return 0;
}

static double speed(const char *program, const char *layout, int loops)
{
    char command[PATH_MAX], line[64] = "0";
    pid_t busy[LOOPS];
    FILE *f;
    for (int i = 0; i < loops; i++) {
        busy[i] = fork();
        for (volatile unsigned n = 0; !busy[i]; n++) continue;
    }
    snprintf(command, sizeof command, "'%s' work %s", program, layout);
    f = popen(command, "r");
    if (!f || !fgets(line, sizeof line, f)) printf("%s failed\n", command);
    if (f) pclose(f);
    for (int i = 0; i < loops; i++)
        if (busy[i] > 0) kill(busy[i], SIGKILL), waitpid(busy[i], NULL, 0);
    return atof(line);
}

int main(int argc, char **argv)
{
    if (argc > 1 || getenv("DT_MEMFD")) return argv[1] = argv[0], work(argc - 1, argv + 1);
    printf("%-24s %12s %12s %7s   (tokens/s, medians of %d turns; goal 0.45)\n", "", "alone", "beside two", "share", TURNS);
    for (int k = 0; k < 2; k++) {
        double alone[TURNS], beside[TURNS], share[TURNS];
        for (int i = 0; i < TURNS; i++) {
            alone[i] = speed(argv[0], layouts[k], 0);
            beside[i] = speed(argv[0], layouts[k], LOOPS);
            share[i] = beside[i] / alone[i];
        }
        printf("%-24s %12.0f %12.0f %7.2f\n", layouts[k], median(alone, TURNS), median(beside, TURNS), median(share, TURNS));
    }
    return 0;
}
