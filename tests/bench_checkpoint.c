/* What checkpoints cost. The state of the small GPT (L6 H6 C384 V256; AdamW: 130 MB) on 2 ranks of one thread, each
 * save beside what dd writes of as many bytes with one fsync, in turn on the same disk: sharded, full, and asynchronous
 * (how long training stands still, and what it does to a step); then reading it back, beside dd. Medians, and ratios.
 * Hashing is part of it: the rate of one core's SHA-256 is printed, since it may be the bound.
 * Usage: bench_checkpoint [ROUNDS [DIRECTORY]]; needs dd. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/prose.h"
#include "bench.h"

enum { ROUNDS_MAX = 15 };

static dt_result open_one(dt_trainer **t, const char *data, const char *place, int32_t kind, int32_t behind)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    recipe.model = dt_model_gpt2("small");
    recipe.data = data;
    recipe.batch = 8, recipe.sequence = 256;
    recipe.data_shards = 2;
    recipe.steps = 1000;
    recipe.validation = 0.0f;
    layout.threads = 1;
    layout.output.quiet = 1;
    layout.output.sample_length = 0;
    layout.checkpoint.place = place;
    layout.checkpoint.kind = kind;
    layout.checkpoint.async = behind;
    layout.checkpoint.keep = 1;
    return dt_trainer_open(t, &recipe, &layout);
}

/* Seconds of one command of rank 0; the others wait. */
static double timed(dt_trainer *t, const char *command)
{
    double start;
    dt_barrier(t->comm);
    start = dt__now();
    if (dt_trainer_is_root(t) && system(command)) return 0.0;
    dt_barrier(t->comm);
    return dt__now() - start;
}

static void line(const dt_trainer *t, const char *name, double seconds, double dd, double bytes)
{
    if (!dt_trainer_is_root(t)) return;
    printf("%-26s %9.3f %10.0f %10.3f %10.2f\n", name, seconds, 1e-6 * bytes / seconds, dd, dd / seconds);
    fflush(stdout);
}

/* Saves in turn with dd; the median of the saves. */
static dt_result save(const char *data, const char *place, const char *name, int32_t kind, int rounds,
                      double *median_of)
{
    dt_trainer *t = NULL;
    double seconds[ROUNDS_MAX], dd[ROUNDS_MAX], bytes;
    char command[PATH_MAX];
    dt_result r = open_one(&t, data, place, kind, 0);
    if (r) return r;
    bytes = 12.0 * (double)dt_trainer_weights(t);
    snprintf(command, sizeof command, "mkdir -p %s && dd if=/dev/zero of=%s/dd bs=4M count=%lld iflag=count_bytes "
             "conv=fsync 2>/dev/null; rm -f %s/dd", place, place, (long long)bytes, place);
    for (int i = -1; i < rounds && !r; i++) {
        double start;
        t->e.step++; /* another checkpoint each time */
        dt_barrier(t->comm);
        start = dt__now();
        r = dt_trainer_save(t);
        if (i >= 0) seconds[i] = dt__now() - start;
        if (i >= 0) dd[i] = timed(t, command);
    }
    *median_of = median(seconds, rounds);
    if (!r) line(t, name, *median_of, median(dd, rounds), bytes);
    dt_trainer_close(&t);
    return r;
}

/* Steps with a save behind every second one. */
static dt_result behind(const char *data, const char *place, int rounds, double sync)
{
    dt_trainer *t = NULL;
    double still[ROUNDS_MAX], with[ROUNDS_MAX], without[ROUNDS_MAX];
    dt_step_info info = dt_step_info_zero();
    dt_result r = open_one(&t, data, place, DT_SHARDED, 1);
    for (int i = -1; i < rounds && !r; i++) {
        double before = t->save.blocked;
        r = dt__trainer_save(t, 1);
        if (!r) r = dt_trainer_step(t, &info);
        if (i >= 0) still[i] = t->save.blocked - before, with[i] = info.seconds;
        if (!r) r = dt__save_end(t);
        if (!r) r = dt_trainer_step(t, &info);
        if (i >= 0) without[i] = info.seconds;
    }
    if (!r && dt_trainer_is_root(t)) {
        double s = median(still, rounds), a = median(with, rounds), b = median(without, rounds);
        printf("asynchronous: training stands still for %.3f s, %.1f %% of the save in the foreground\n", s,
               100 * s / sync);
        printf("a step while it is written %.0f ms, without %.0f ms: %.1f %% slower\n", 1e3 * a, 1e3 * b,
               100 * (a / b - 1));
    }
    dt_trainer_close(&t);
    return r;
}

/* Reading and checking everything, beside dd, both from the page cache. */
static dt_result resume(const char *data, const char *place, int rounds)
{
    dt_trainer *t = NULL;
    double seconds[ROUNDS_MAX], dd[ROUNDS_MAX], bytes;
    char command[PATH_MAX];
    dt_result r = open_one(&t, data, place, DT_SHARDED, 0);
    if (r) return r;
    bytes = 12.0 * (double)dt_trainer_weights(t);
    snprintf(command, sizeof command, "cat %s/step-*/shard-* | dd of=/dev/null bs=4M iflag=fullblock 2>/dev/null",
             place);
    for (int i = -1; i < rounds && !r; i++) {
        double start;
        dt_barrier(t->comm);
        start = dt__now();
        r = dt__trainer_resume(t);
        if (i >= 0) seconds[i] = dt__now() - start;
        if (i >= 0) dd[i] = timed(t, command);
    }
    if (!r) line(t, "resume, sharded", median(seconds, rounds), median(dd, rounds), bytes);
    dt_trainer_close(&t);
    return r;
}

static void hash_rate(void)
{
    enum { N = 32 << 20 };
    char *data = (char *)calloc(1, N), hex[65];
    double start = dt__now();
    dt__sha256 h;
    dt__sha256_begin(&h);
    dt__sha256_add(&h, data, N);
    dt__sha256_end(&h, hex);
    printf("SHA-256 of one core: %.0f MB/s%s\n", 1e-6 * N / (dt__now() - start),
           dt__sha256_has() ? ", by the processor's instructions" : " (the processor has no instructions for it)");
    free(data);
}

int main(int argc, char **argv)
{
    char data[64], place[PATH_MAX], command[PATH_MAX + 300];
    int rounds, bad;
    if (dt_launch(&argc, &argv)) return dt_fail("start");
    if (argc == 5 && !strcmp(argv[1], "--rank")) {
        double sharded = 0, full = 0;
        dt_result r = save(argv[2], argv[3], "sharded save", DT_SHARDED, atoi(argv[4]), &sharded);
        if (!r) r = resume(argv[2], argv[3], atoi(argv[4]));
        if (!r) r = behind(argv[2], argv[3], atoi(argv[4]), sharded);
        if (!r) r = save(argv[2], argv[3], "full save", DT_FULL, atoi(argv[4]), &full);
        return r ? dt_fail("bench_checkpoint") : 0;
    }
    rounds = argc > 1 ? atoi(argv[1]) : 5;
    if (rounds < 1 || rounds > ROUNDS_MAX)
        return fprintf(stderr, "usage: %s [ROUNDS 1..%d [DIRECTORY]]\n", argv[0], ROUNDS_MAX), 2;
    snprintf(data, sizeof data, "/tmp/bench_checkpoint.%d.txt", (int)getpid());
    snprintf(place, sizeof place - 40, "%s/bench_checkpoint.%d", argc > 2 ? argv[2] : ".", (int)getpid());
    if (prose_generate(data, 200000, 1)) return dt_fail("data");
    hash_rate();
    printf("small GPT, 12 bytes a weight, 2 ranks, medians of %d rounds\n", rounds);
    printf("%-26s %9s %10s %10s %10s\n", "", "seconds", "MB/s", "dd, s", "dd/ours");
    fflush(stdout);
    snprintf(command, sizeof command, "%s --rank %s '%s' %d --ranks 2", argv[0], data, place, rounds);
    bad = system(command);
    snprintf(command, sizeof command, "rm -rf '%s'", place);
    bad = system(command) || bad;
    remove(data);
    return bad ? 1 : 0;
}
