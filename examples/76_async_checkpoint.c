/* 76_async_checkpoint: can a run save without stopping training?
 *
 * What you learn
 *     - A save in the foreground stops all ranks until the last byte is on the slowest disk. During training, ranks
 *       stop only while the state is copied in memory; a thread writes the copy while the next steps compute.
 *     - It is not free: the copy takes as much memory as what this rank saves (12 bytes per weight of its part), and
 *       the writing thread takes a core and bandwidth from the steps.
 *     - The next save waits for the one before, so a disk that is too slow for the interval stops training, too.
 *     - "An asynchronous checkpoint can be half of one step and half of the next" is true only without the copy. A run
 *       that is resumed from one has the hash of a run that was never stopped.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 76_async_checkpoint.c -o 76_async_checkpoint -lm -lpthread
 *     ./76_async_checkpoint                      (--every N: a save every N steps, 1 to 10)
 *     ./76_async_checkpoint --ranks 2
 *
 * What it prints (~: measured)
 *     saves                     seconds  stood still   memory, MB
 *     in the foreground            ~2.42        ~1.537        ~16.19
 *     during training              ~1.45        ~0.586        ~17.64
 *     sha256 1f952aac00107e5fee7bbd995d65f52dd384995c6fa2e34907438359a676af8f
 *     ok: 3 runs, one hash; saved during training, it stands still for ~0.586 s instead of ~1.537, for ~1.45 MB
 *
 * Predict first: with a save after every step, which of the two is faster, and why?
 * Exercise: run the first two with a disk of 1 MB/s as well. How much of a save stays hidden?
 *
 * Read on: 77_mirror.c for a second place, 74_interval.c for how often one pays. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "prose.h"
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPECTED "1f952aac00107e5fee7bbd995d65f52dd384995c6fa2e34907438359a676af8f"
enum { STEPS = 20, HALF = 10 };
static double every = 5; /* steps between saves */

/* An emulated slow disk: fsync takes a file's bytes / disk_rate seconds more. The header calls this one. */
static double disk_rate = 3e6;
int fsync(int fd)
{
    struct stat is;
    if (disk_rate > 0 && !fstat(fd, &is) && S_ISREG(is.st_mode))
        usleep((useconds_t)(1e6 * (double)is.st_size / disk_rate));
    return (int)syscall(SYS_fsync, fd);
}

typedef struct result {
    double all, blocked;
    int64_t memory;
    int root;
    char hash[65];
} result;

/* Trains to the end, from the beginning or from the checkpoint of step `from`. async: saves during training. */
static dt_result train(const char *text, const char *place, int async, int step, result *out)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    struct timespec from, to;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = text, recipe.sequence = 64, recipe.steps = STEPS, recipe.validation = 0;
    recipe.batch = 64, recipe.data_shards = 4;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0, l.checkpoint.keep = 0;
    l.checkpoint.place = place, l.checkpoint.interval = (int64_t)every, l.checkpoint.async = async;
    l.checkpoint.step = step;
    e = dt_trainer_open(&t, &recipe, &l);
    if (e) return e;
    timespec_get(&from, TIME_UTC);
    to = from;
    for (out->blocked = 0; !e && info.step < STEPS;) {
        e = dt_trainer_step(t, &info);
        if (info.step == STEPS) break; /* whose save is always waited for */
        timespec_get(&to, TIME_UTC);
        out->blocked += info.save_seconds;
    }
    if (!e) memcpy(out->hash, dt_trainer_hash(t), sizeof out->hash);
    out->all = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    out->memory = dt_trainer_memory(t).total, out->root = dt_trainer_is_root(t);
    dt_trainer_close(&t);
    return e;
}

static void clear(const char *place)
{
    char line[100];
    snprintf(line, sizeof line, "rm -rf '%s'", place);
    if (system(line)) fprintf(stderr, "%s stays\n", place);
}

int main(int argc, char **argv)
{
    static const char *const names[3] = {"in the foreground", "during training", "resumed"};
    option list[] = {{"--every", 1, HALF, &every}};
    char text[] = "/tmp/dtrain_XXXXXX", place[64];
    float id = (float)getpid();
    result r[3];
    dt_comm *c = NULL;
    int good = 1;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("76_async_checkpoint");
    if (!options_read(argc, argv, list, 1)) return 2;
    e = dt_broadcast(c, &id, 1, 0);
    snprintf(place, sizeof place, "/tmp/dtrain_async.%.0f", (double)id); /* one place for all ranks */
    if (!e) e = prose_temporary(text, 50000);
    for (int i = 0; i < 3 && !e; i++) {
        e = train(text, place, i > 0, i == 2 ? HALF / (int)every * (int)every : 0, &r[i]);
        if (!e) e = dt_barrier(c);
        if (!e && r[i].root && !i) clear(place);
        if (!e) e = dt_barrier(c);
        good = good && !e && !strcmp(r[i].hash, EXPECTED);
    }
    remove(text);
    dt_comm_close(&c);
    if (e || !r[0].root) return e ? dt_fail("76_async_checkpoint") : !good;
    clear(place);
    printf("%-22s %10s %12s %12s\n", "saves", "seconds", "stood still", "memory, MB");
    for (int i = 0; i < 3; i++)
        printf("%-22s %10.2f %12.3f %12.2f\n", names[i], r[i].all, r[i].blocked, 1e-6 * (double)r[i].memory);
    printf("sha256 %s\n", r[0].hash);
    good = good && r[1].memory > r[0].memory;
    if (!good) return fprintf(stderr, "FAILED: the hash or the memory is not what it should be\n"), 1;
    printf("ok: 3 runs, one hash; saved during training, it stands still for %.3f s instead of %.3f, for %.2f MB\n",
           r[1].blocked, r[0].blocked, 1e-6 * (double)(r[1].memory - r[0].memory));
    return 0;
}
