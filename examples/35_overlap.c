/* 35_overlap: how much of the communication can backward hide, and what stays exposed?
 *
 * What you learn
 *     - The gradient of a layer is complete long before the step is, and can be summed during backward of the layers
 *       before it (Li et al. 2020). What remains is exposed = max(0, t_comm - phi t_bwd), with phi the share of
 *       backward during which something can be sent. With accumulation phi is small.
 *     - Gradients travel in buckets. One bucket is complete when backward is over and hides nothing. Many small ones
 *       begin early, each at a fixed cost; the last one, the embedding's, is always exposed. The default is 25 MB, as
 *       in PyTorch.
 *     - ZeRO 1 and 2 gather new weights after the next forward has begun. ZeRO 3 gathers a segment's weights during the
 *       work on the segment before, into a second window: overlap costs memory.
 *     - A separate thread communicates, in the same order of calls on all ranks. If all cores are busy and sending is
 *       copying, the thread slows the work by as much as it hides; a network card sends by itself. So overlap is off
 *       by default inside a machine.
 *     - "Communication costs nothing when it overlaps" is true if backward takes longer, and never of the last bucket.
 *       With overlap the time of a communication includes waiting for its turn, so it is longer.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 35_overlap.c -o 35_overlap -lm -lpthread
 *     ./35_overlap
 *     ./35_overlap --ranks 2                     (the one to read)
 *
 * What it prints
 *     Milliseconds of the fastest step on a link of 1e8 bytes/s; sent / rate is what its bytes take:
 *       overlap                     step s./rate    comm exposed   share       MB
 *     sha256 5eee268eafb4b823daca7b3f84779efb429d03eb2fe16c7f4df677ba49f19880
 *     ok: 8 layouts, one hash; without overlap all of the communication is exposed, in 3 of 3
 *
 * Predict first: which of the layouts of the table hides least, and which needs most memory?
 * Exercise: add a column with the buckets of a step (the REDUCE instructions of dt_plan_program). Which row has most?
 *
 * Read on: 36_compression.c for sending less, 41_zero.c for what ZeRO sends. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECTED "5eee268eafb4b823daca7b3f84779efb429d03eb2fe16c7f4df677ba49f19880"
enum { SHARDS = 2, STEPS = 4, ONE = 1000000000 };

static const struct {
    const char *name;
    int64_t zero, bucket;
    int32_t overlap;
} runs[] = {{"off, one bucket", 0, ONE, DT_OVERLAP_OFF}, {"on,  one bucket", 0, ONE, DT_OVERLAP_ON},
            {"on,  1 MB", 0, 1000000, DT_OVERLAP_ON},    {"on,  a bucket per layer", 0, 1, DT_OVERLAP_ON},
            {"off, ZeRO 1", 1, 1, DT_OVERLAP_OFF},       {"on,  ZeRO 1", 1, 1, DT_OVERLAP_ON},
            {"off, ZeRO 3", 3, 1, DT_OVERLAP_OFF},       {"on,  ZeRO 3", 3, 1, DT_OVERLAP_ON}};
enum { RUNS = (int)(sizeof runs / sizeof *runs) };

typedef struct result {
    double seconds, comm, exposed; /* of the fastest step but the first */
    int64_t sent, memory;
    int ordered, root; /* 0 <= exposed <= comm, in every step */
    char hash[65];
} result;

static dt_result train(const char *text, int run, result *out)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.model.layers = 6, recipe.model.width = 128;
    recipe.data = text, recipe.sequence = 64, recipe.steps = STEPS, recipe.validation = 0;
    recipe.batch = 8, recipe.data_shards = SHARDS;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0;
    l.zero = runs[run].zero, l.bucket = runs[run].bucket, l.overlap = runs[run].overlap;
    e = dt_trainer_open(&t, &recipe, &l);
    if (e) return e;
    for (out->ordered = 1, out->seconds = 1e9; !e && info.step < STEPS;) {
        e = dt_trainer_step(t, &info);
        out->ordered = out->ordered && info.exposed_seconds >= 0 && info.exposed_seconds <= info.comm_seconds;
        if (info.step < 2 || info.seconds >= out->seconds) continue;
        out->seconds = info.seconds, out->comm = info.comm_seconds, out->exposed = info.exposed_seconds;
    }
    out->sent = info.sent_bytes, out->memory = dt_trainer_memory(t).total, out->root = dt_trainer_is_root(t);
    if (!e) memcpy(out->hash, dt_trainer_hash(t), sizeof out->hash);
    dt_trainer_close(&t);
    return e;
}

static void line(const result *r, int run, double rate)
{
    printf("  %-24s %7.1f %7.1f %7.1f %7.1f %5.0f %% %8.1f\n", runs[run].name, 1e3 * r->seconds,
           1e3 * (double)r->sent / rate, 1e3 * r->comm, 1e3 * r->exposed,
           r->comm > 0 ? 100.0 * r->exposed / r->comm : 0.0, 1e-6 * (double)r->memory);
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    const char *rate;
    result r[RUNS];
    int good = 1, off = 0, exposed = 0;
    dt_result e = DT_OK;
    setenv("DT_LINK_RATE", "1e8", 0);
    rate = getenv("DT_LINK_RATE");
    if (dt_launch(&argc, &argv)) return dt_fail("35_overlap");
    if (argc > 1) return fprintf(stderr, "35_overlap: the option is --ranks 1 or 2\n"), 2;
    memset(r, 0, sizeof r);
    e = prose_temporary(text, 50000);
    for (int i = 0; i < RUNS && !e; i++) {
        e = train(text, i, &r[i]);
        good = good && r[i].ordered && !strcmp(r[i].hash, EXPECTED);
    }
    remove(text);
    if (e || !r[0].root) return e ? dt_fail("35_overlap") : !good;
    printf("Milliseconds of the fastest step on a link of %s bytes/s; sent / rate is what its bytes take:\n", rate);
    printf("  %-24s %7s %7s %7s %7s %7s %8s\n", "overlap", "step", "s./rate", "comm", "exposed", "share", "MB");
    for (int i = 0; i < RUNS; i++) line(&r[i], i, atof(rate));
    /* without overlap all is exposed; with it the same bytes are sent */
    for (int i = 0; i < RUNS; i++) {
        int without = runs[i].overlap == DT_OVERLAP_OFF;
        off += without, exposed += without && r[i].exposed == r[i].comm;
        good = good && off == exposed && (without || r[i].sent == r[i - 1].sent || i == 2 || i == 3);
    }
    printf("sha256 %s\n", r[0].hash);
    if (good)
        return printf("ok: %d layouts, one hash; without overlap all of the communication is exposed, in %d of %d\n",
                      RUNS, exposed, off), 0;
    return fprintf(stderr, "FAILED: a time, a number of bytes or the hash is not what it should be\n"), 1;
}
