/* 80_doctor: many ranks are barely faster than one. Why?
 *
 * What you learn
 *     - Five questions, in this order, because a fault at one of them distorts the numbers of all later ones.
 *       1 transport: which engine carries the messages, and is the link as fast as it should be? 2 data: do ranks wait
 *       for samples? If so, more ranks wait as well.
 *     - 3 batch: a step has c seconds of work per rank and t of exchange, of which backward can hide 2/3 c. Ranks pay
 *       if c > exposed / (n-1). Else raise the batch, accumulate, or take fewer ranks. 4 overlap: is more
 *       exposed than necessary? 5 placement: do tensor groups cross nodes, do ranks share cores, is one rank slow?
 *     - The utilisation of the processor does not tell these apart: it is low in all five cases.
 *     - No monitoring service shows that EFA is on. The engine does: NCCL_DEBUG=INFO prints "Selected provider is efa",
 *       and line 1 says what this job uses, with measured microseconds and bytes per second.
 *     - doctor.h gives a program the option --doctor, which prints this after nine steps and changes no bit.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 80_doctor.c -o 80_doctor -lm -lpthread
 *     ./80_doctor --ranks 2
 *
 * What it prints (among the trees of the questions)
 *     1: a link of 1 MB/s between ranks of one machine (DT_LINK_RATE=1e6)
 *     2: samples that come ten times too late (a fetch that sleeps)
 *       question 2
 *     3: two samples of 8 tokens per step, on a link of 20 MB/s between two nodes
 *       question 3
 *     5: a tensor group across two nodes, on a link of 100 MB/s
 *       question 5
 *     ok: ~7 of 7 runs diagnosed, ~0 hidden by other programs; 4 runs of the same recipe have one hash
 *
 * Predict first: a link of 1 MB/s makes question 3 fire as well. Why is question 1 the finding?
 * Exercise: give the slow link late samples as well. What does the doctor say then, and after the link is fixed?
 *
 * Read on: 81_stragglers.c for the rank that is slow, 82_rules.c for what is wrong rather than slow. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "doctor.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Prints a text in lines of at most 100 columns. */
static void wrap(const char *first, const char *text)
{
    int column = printf("    %s", first);
    for (size_t n; *text; text += n + strspn(text + n, " "), column += (int)n + 1) {
        n = strcspn(text, " ");
        if (column + (int)n > 100) column = printf("\n      ") - 1;
        printf("%.*s ", (int)n, text);
    }
    printf("\n");
}

typedef struct fault {
    const char *what, *rate, *nodes, *isa; /* of the environment, isa of rank 1 alone; NULL: none */
    int64_t batch, sequence, tp, bucket;   /* bucket 0: the default */
    double late;                           /* seconds that a sample takes to come */
    double exchange;                       /* the link is so slow that it takes so much of the work; 0: as rate says */
    int expected;                          /* dt_branch; -1: none */
} fault;

/* A sample: a counter's digits, after a while. */
static dt_result fetch(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    const fault *f = (const fault *)user;
    struct timespec wait;
    (void)split;
    for (int64_t i = 0; i < f->sequence; i++) {
        ((int32_t *)input)[i] = (int32_t)((sample * 31 + i * 7) % 100);
        ((int32_t *)target)[i] = (int32_t)((sample * 31 + i * 7 + 7) % 100);
    }
    wait.tv_sec = (time_t)f->late;
    wait.tv_nsec = (long)(1e9 * (f->late - (double)wait.tv_sec));
    if (f->late > 0) nanosleep(&wait, NULL);
    return DT_OK;
}

static void environment(const char *name, const char *value)
{
    if (value) setenv(name, value, 1);
    else unsetenv(name);
}

/* Trains six steps with this fault, and asks after the fifth. weights: how many there are. */
static dt_result train(fault *f, int rank, dt_diagnosis *d, char *text, char hash[65], double *weights)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_probe doctor;
    dt_source source;
    dt_result r;
    memset(&source, 0, sizeof source);
    source.user = f, source.fetch = fetch, source.samples[DT_TRAIN] = 640;
    source.inputs = source.targets = f->sequence, source.input_type = source.target_type = DT_I32;
    recipe.model = dt_model_gpt2("nano");
    recipe.model.vocabulary = 100;
    recipe.source = &source, recipe.steps = 6, recipe.batch = f->batch, recipe.data_shards = recipe.tensor_shards = 2;
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0, layout.tp = f->tp;
    if (f->bucket) layout.bucket = f->bucket, layout.overlap = DT_OVERLAP_OFF;
    environment("DT_LINK_RATE", f->rate);
    environment("DT_NODES", f->nodes);
    environment("DT_ISA", rank ? f->isa : NULL);
    dt_doctor_attach(&layout, &doctor);
    r = dt_trainer_open(&t, &recipe, &layout);
    while (!r && info.step < 5) r = dt_trainer_step(t, &info);
    if (!r) r = dt_doctor(&doctor, t, d, text);
    if (!r) r = dt_trainer_step(t, &info);
    if (!r) *weights = (double)dt_trainer_weights(t);
    if (!r) memcpy(hash, dt_trainer_hash(t), 65);
    dt_trainer_close(&t);
    return r;
}

/* Chooses the link's rate by the work of a run without it. */
static dt_result choose_rate(fault *f, int rank, char *text, size_t size)
{
    fault even = *f;
    double weights = 0;
    dt_diagnosis d;
    char hash[65];
    dt_result r;
    even.rate = NULL;
    r = train(&even, rank, &d, NULL, hash, &weights);
    snprintf(text, size, "%.0f", 4 * weights / (f->exchange * d.work)); /* 2 (n-1)/n 4 P bytes */
    f->rate = text;
    return r;
}

static int hidden; /* runs whose ratio of work to exchange other programs have changed */

/* Other programs use this machine, so an unexpected finding is looked for again. tree: print all questions. */
static dt_result examine(fault *f, int rank, int tree, dt_diagnosis *d, char hash[65], int *good)
{
    char text[DT_DIAGNOSIS_TEXT], rate[32];
    double weights = 0;
    dt_result r = DT_OK;
    d->first = DT_BRANCH_COUNT;
    for (int tries = 0; tries < 8 && !r && d->first != f->expected; tries++) {
        if (f->exchange > 0) r = choose_rate(f, rank, rate, sizeof rate);
        if (!r) r = train(f, rank, d, text, hash, &weights);
    }
    if (r) return r;
    if (d->first != f->expected &&
        (f->expected < 0 || f->expected == DT_BRANCH_BATCH || f->expected == DT_BRANCH_OVERLAP))
        hidden++;
    else *good = *good && d->first == f->expected;
    if (rank) return r;
    printf("%s%s\n", d->first == f->expected ? "" : "UNEXPECTED (is the machine in use?): ", f->what);
    if (tree) printf("%s", text);
    else if (d->first < 0) printf("  none fires\n");
    else {
        printf("  question %d\n", d->first + 1);
        wrap("", d->finding[d->first].text);
        wrap("do: ", d->finding[d->first].advice);
    }
    printf("\n");
    fflush(stdout);
    return r;
}

static dt_result faults(int rank, int *good)
{
    fault healthy = {"healthy", NULL, NULL, NULL, 64, 64, 1, 0, 0.0, 0.0, -1};
    fault slow = healthy, late = healthy, few = healthy, naked = healthy, across = healthy, one = healthy;
    char hash[65] = "", first[65] = "";
    dt_diagnosis d;
    dt_result r = examine(&healthy, rank, 1, &d, first, good);
    if (r) return r;
    slow.what = "1: a link of 1 MB/s between ranks of one machine (DT_LINK_RATE=1e6)";
    slow.rate = "1e6", slow.expected = DT_BRANCH_TRANSPORT;
    late.what = "2: samples that come ten times too late (a fetch that sleeps)";
    late.late = 10 * d.work / 32, late.expected = DT_BRANCH_DATA;
    few.what = "3: two samples of 8 tokens per step, on a link of 20 MB/s between two nodes";
    few.rate = "2e7", few.nodes = "2", few.batch = 2, few.sequence = 8, few.expected = DT_BRANCH_BATCH;
    naked.what = "4: an exchange that backward could hide, and does not (--overlap off --bucket 1)";
    naked.nodes = "2", naked.batch = naked.sequence = 32, naked.bucket = 1, naked.expected = DT_BRANCH_OVERLAP;
    naked.exchange = 0.65;
    across.what = "5: a tensor group across two nodes, on a link of 100 MB/s";
    across.rate = "1e8", across.nodes = "2", across.tp = 2, across.expected = DT_BRANCH_PLACEMENT;
    one.what = "5: a rank that is slow (rank 1 without vectors, DT_ISA=portable)";
    one.isa = "portable", one.batch = 4, one.sequence = 8, one.expected = DT_BRANCH_PLACEMENT;
    r = examine(&slow, rank, 1, &d, hash, good);
    *good = *good && !strcmp(hash, first);
    if (!r) r = examine(&late, rank, 0, &d, hash, good);
    *good = *good && !strcmp(hash, first);
    if (!r) r = examine(&few, rank, 0, &d, hash, good);
    if (!r) r = examine(&naked, rank, 0, &d, hash, good);
    if (!r) r = examine(&across, rank, 0, &d, hash, good);
    *good = *good && !strcmp(hash, first);
    if (!r) r = examine(&one, rank, 0, &d, hash, good);
    if (!r && !rank) printf("sha256 %s\n", first);
    return r;
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    int rank, ranks, good = 1;
    if (dt_comm_open(&c, &argc, &argv)) return dt_fail("80_doctor");
    rank = dt_comm_rank(c), ranks = dt_comm_size(c);
    dt_comm_close(&c);
    if (argc > 1 || ranks != 2) return rank ? 2 : (fprintf(stderr, "80_doctor: the option is --ranks 2\n"), 2);
    if (faults(rank, &good)) return dt_fail("80_doctor");
    if (!good) return rank ? 1 : (fprintf(stderr, "FAILED: another branch fires, or a bit has changed\n"), 1);
    if (!rank)
        printf("ok: %d of 7 runs diagnosed, %d hidden by other programs; 4 runs of the same recipe have one hash\n",
               7 - hidden, hidden);
    return 0;
}
