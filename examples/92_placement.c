/* 92_placement: what does it change for a job whether its machines stand close together?
 *
 * What you learn
 *     - Placement decides time, not bits: the same job sends the same bytes and reaches the same hash on every link.
 *     - EC2's placement groups: cluster, close together in one zone, for training; partition, sets of racks that share
 *       nothing, at most 7 per zone, for systems that keep copies; spread, each instance on a rack of its own, at most
 *       7 running ones per zone. "Partition" names a strategy, not a part of a zone or a network that is cut.
 *     - The figures of the three links are invented; only their order is a cloud's. Delay slows small sums down,
 *       bandwidth slows gradients down.
 *     - SageMaker chooses the place of a training job. On EC2 you do: 96_checklist.c. 97_racks.c shows what fails
 *       together.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 92_placement.c -o 92_placement -lm -lpthread
 *     ./92_placement --ranks 4 --nodes 2
 *     The link of "spread", in seconds and bytes/s: ./92_placement --ranks 4 --nodes 2 --delay 5e-5 --rate 2e6
 *
 * What it prints (~: measured)
 *     A job on 2 nodes:
 *                 bytes/s  delay, s   steps/s   sum of 1, ms  bytes/step
 *     cluster         1e8      5e-5     ~59.0          ~1.54     1212576   90f4bee78650
 *     partition       2e7      2e-4     ~28.2          ~1.13     1212576   90f4bee78650
 *     spread          2e6      2e-3      ~5.7          ~5.16     1212576   90f4bee78650
 *     ok: 3 links, one hash, 1212576 bytes a step on each; no time below the link's
 *
 * Predict first: the delay of "spread" falls to that of "cluster", at the same rate. Which of the two measured columns
 *     follows?
 * Exercise: print what the bytes of rank 0 take on each link, bytes / rate, and which share of a step that is. On which
 *     link would a faster network help most?
 *
 * Read on: 93_capacity.c for waiting until there is room, 97_racks.c for failures. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "prose.h"
#include <time.h>

#define EXPECTED "90f4bee7865012458eddfda6c685f7dff6b17124d62127b980b816aa7b0597f3"
enum { STEPS = 6, SUMS = 20 };

typedef struct place {
    const char *name, *rate, *delay; /* of the link: bytes per second, seconds */
} place;
static place places[3] = {
    {"cluster", "1e8", "5e-5"}, {"partition", "2e7", "2e-4"}, {"spread", "2e6", "2e-3"}};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Trains: seconds of all steps, and bytes of each to other nodes, of this rank. */
static dt_result train(const char *text, double *seconds, int64_t *bytes, double *weights, char hash[65])
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = text, recipe.sequence = 32, recipe.batch = 8, recipe.steps = STEPS, recipe.validation = 0;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0;
    e = dt_trainer_open(&t, &recipe, &l);
    while (!e && info.step < STEPS) {
        e = dt_trainer_step(t, &info);
        *seconds += info.seconds, *bytes = info.far_bytes;
    }
    if (!e) *weights = (double)dt_trainer_weights(t), memcpy(hash, dt_trainer_hash(t), 65);
    dt_trainer_close(&t);
    return e;
}

/* The job on this link, and a line about it. bytes: of a step, of all ranks; they must stay what they are. */
static dt_result measure(const place *p, const char *text, float *bytes, int *good)
{
    double seconds = 0, weights = 0, each = now();
    float fine, all, one = 1;
    int64_t mine = 0;
    char hash[65] = "";
    dt_comm *c = NULL;
    dt_result e;
    setenv("DT_LINK_RATE", p->rate, 1), setenv("DT_LINK_DELAY", p->delay, 1);
    e = train(text, &seconds, &mine, &weights, hash);
    if (!e) e = dt_comm_open(&c, NULL, NULL);
    if (!e) e = dt_barrier(c);
    each = now();
    for (int i = 0; i < SUMS && !e; i++) e = dt_all_reduce(c, &one, 1, DT_SUM);
    each = (now() - each) / SUMS;
    /* The least times that the link allows: a busy machine only makes them longer. Some bytes are of small calls. */
    fine = seconds >= 0.95 * STEPS * (double)mine / atof(p->rate) && each >= 0.9 * atof(p->delay) &&
           !strcmp(hash, EXPECTED);
    all = (float)mine;
    if (!e) e = dt_all_reduce(c, &all, 1, DT_SUM);
    if (!e) e = dt_all_reduce(c, &fine, 1, DT_MIN);
    if (!e && *bytes <= 0) *bytes = all;
    /* the gradients: 2 (N-1)/N S of each of N nodes */
    if (!e && ((double)all < 8 * weights * (dt_comm_nodes(c) - 1) || all < *bytes || all > *bytes)) fine = 0;
    if (!(fine > 0)) *good = 0;
    if (!e && !dt_comm_rank(c))
        printf("%-10s %8s %9s %9.1f %14.2f %11.0f   %.12s\n", p->name, p->rate, p->delay, STEPS / seconds, 1e3 * each,
               (double)all, hash);
    dt_comm_close(&c);
    return e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    char rate_text[40], delay_text[40];
    dt_comm *c = NULL;
    int root, nodes, good = 1;
    float bytes = 0;
    double rate = 0, delay = -1;
    const option list[] = {{"--rate", 1e5, 1e12, &rate}, {"--delay", 0, 0.1, &delay}};
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("92_placement");
    root = !dt_comm_rank(c), nodes = dt_comm_nodes(c);
    dt_comm_close(&c);
    if (!options_read(argc, argv, list, 2)) return 2;
    if (nodes < 2) return fprintf(stderr, "92_placement: give --ranks N and --nodes N, 2 or more\n"), 2;
    snprintf(rate_text, sizeof rate_text, "%g", rate), snprintf(delay_text, sizeof delay_text, "%g", delay);
    if (rate > 0) places[2].rate = rate_text;
    if (delay >= 0) places[2].delay = delay_text;
    e = prose_temporary(text, 20000);
    if (root)
        printf("A job on %d nodes:\n%-10s %8s %9s %9s %14s %11s\n", nodes, "", "bytes/s", "delay, s", "steps/s",
               "sum of 1, ms", "bytes/step");
    for (int i = 0; i < 3 && !e; i++) e = measure(&places[i], text, &bytes, &good);
    remove(text);
    if (e) return dt_fail("92_placement");
    if (!root) return 0; /* what is wrong anywhere rank 0 knows */
    if (!good) return fprintf(stderr, "FAILED: a hash, bytes or a time is not what it should be\n"), 1;
    printf("ok: 3 links, one hash, %.0f bytes a step on each; no time below the link's\n", (double)bytes);
    return 0;
}
