/* What a step program costs by itself, and what a thread that communicates gives. First a step whose instructions do
 * nothing: microseconds per instruction, with one thread and with the second one. Then the small GPT (L6 H6 C384 V256,
 * B8 T256, AdamW; 138.9 GFLOP) on 2 ranks, overlap off and on in turn in one run, over memory and over an emulated link:
 * medians, and the ratio of the two. Usage: bench_overlap [STEPS]; needs no other file. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/prose.h"
#include "bench.h"

enum { STEPS_MAX = 25 };

static dt_result open_one(dt_trainer **t, const char *data, const char *model, int32_t overlap, int64_t micros)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    recipe.model = dt_model_gpt2(model);
    recipe.data = data;
    recipe.batch = 8, recipe.sequence = micros > 1 ? 32 : 256;
    recipe.micro_batch = 8 / micros;
    recipe.data_shards = 2; /* backward of the rank's shard goes on while buckets are reduced */
    recipe.steps = 1000;
    recipe.validation = 0.0f;
    layout.threads = 1;
    layout.bucket = micros > 1 ? 1 : 4000000;
    recipe.accumulation = DT_EACH;
    layout.output.quiet = 1;
    layout.output.sample_length = 0;
    layout.overlap = overlap;
    return dt_trainer_open(t, &recipe, &layout);
}

/* ---- instructions that do nothing ---- */

static void no_load(void *owner, int64_t shard, int64_t micro) { (void)owner, (void)shard, (void)micro; }
static dt_result no_job(void *owner, int64_t job) { return (void)owner, (void)job, DT_OK; }

static dt_result nothing(const char *data, int32_t overlap)
{
    enum { ROUNDS = 400 };
    dt_trainer *t = NULL;
    double best = 1e9, lines = 0.0;
    dt_result r = open_one(&t, data, "nano", overlap, 4);
    for (int32_t i = 0; i < t->e.p.program.count && !r; i++) {
        lines += t->e.p.program.list[i].stream;
        if (!t->e.p.program.list[i].stream) t->e.p.program.list[i].op = DT_LOAD;
    }
    t->e.queue.run = no_job;
    for (int i = 0; i < ROUNDS && !r; i++) {
        double start = dt__now();
        r = dt__engine_step(&t->e, no_load, t);
        if (!r) r = dt__engine_wait(&t->e);
        if (dt__now() - start < best) best = dt__now() - start;
    }
    if (!r && dt_trainer_is_root(t))
        printf("%-34s %9d %9.0f %12.3f\n", overlap == DT_OVERLAP_ON ? "two threads" : "one thread", t->e.p.program.count, lines, 1e6 * best / t->e.p.program.count);
    dt_trainer_close(&t);
    return r;
}

/* ---- off and on ---- */

static dt_result compare(const char *data, int steps, const char *link)
{
    dt_trainer *t[2] = {NULL, NULL};
    double seconds[2][STEPS_MAX], comm[2][STEPS_MAX], exposed[2][STEPS_MAX], rate = *link ? atof(link) : 0.0, m[2];
    dt_result r = DT_OK;
    for (int k = 0; k < 2 && !r; k++) r = open_one(&t[k], data, "small", k ? DT_OVERLAP_ON : DT_OVERLAP_OFF, 1);
    for (int k = 0; k < 2 && !r; k++) t[k]->e.ranks.data->rate = rate;
    for (int s = -1; s < steps && !r; s++)
        for (int k = 0; k < 2 && !r; k++) {
            dt_step_info info = dt_step_info_zero();
            r = dt_trainer_step(t[k], &info);
            if (s >= 0) seconds[k][s] = info.seconds, comm[k][s] = info.comm_seconds, exposed[k][s] = info.exposed_seconds;
        }
    for (int k = 0; k < 2 && !r && dt_trainer_is_root(t[0]); k++) {
        m[k] = median(seconds[k], steps);
        printf("%-24s %-9s %9.0f %9.0f %12.0f", *link ? link : "memory", k ? "on" : "off", 1e3 * m[k], 1e3 * median(comm[k], steps), 1e3 * median(exposed[k], steps));
        if (k) printf(" %11.3f\n", m[0] / m[1]);
        else printf("\n");
        fflush(stdout);
    }
    for (int k = 0; k < 2; k++) dt_trainer_close(&t[k]);
    return r;
}

static int child(const char *program, const char *what, const char *data, int steps, const char *link)
{
    char command[600];
    snprintf(command, sizeof command, "%s --rank %s %s %d '%s' --ranks 2", program, what, data, steps, link);
    fflush(stdout);
    return system(command);
}

int main(int argc, char **argv)
{
    char data[64];
    int steps, bad;
    if (dt_launch(&argc, &argv)) return dt_fail("start");
    if (argc == 6 && !strcmp(argv[1], "--rank")) {
        dt_result r = !strcmp(argv[2], "off") ? nothing(argv[3], DT_OVERLAP_OFF) : !strcmp(argv[2], "on") ? nothing(argv[3], DT_OVERLAP_ON) : compare(argv[3], atoi(argv[4]), argv[5]);
        return r ? dt_fail("bench_overlap") : 0;
    }
    steps = argc > 1 ? atoi(argv[1]) : 5;
    if (steps < 1 || steps > STEPS_MAX) return fprintf(stderr, "usage: %s [STEPS 1..%d]\n", argv[0], STEPS_MAX), 2;
    snprintf(data, sizeof data, "/tmp/bench_overlap.%d.txt", (int)getpid());
    if (prose_generate(data, 200000, 1)) return dt_fail("data");
    printf("A step of instructions that do nothing, best of 400; the target is 2 microseconds for each\n");
    printf("%-34s %9s %9s %12s\n", "", "number", "handed on", "us for each");
    bad = child(argv[0], "off", data, 0, "") || child(argv[0], "on", data, 0, "");
    printf("\nsmall GPT, B8 T256, 2 ranks x 1 thread on %ld cores, medians of %d steps\n", sysconf(_SC_NPROCESSORS_ONLN), steps);
    printf("%-24s %-9s %9s %9s %12s %11s\n", "link, bytes/s", "overlap", "ms", "comm ms", "exposed ms", "off/on");
    bad = bad || child(argv[0], "compare", data, steps, "") || child(argv[0], "compare", data, steps, "1e9") || child(argv[0], "compare", data, steps, "1e8");
    remove(data);
    return bad ? 1 : 0;
}
