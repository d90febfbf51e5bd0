/* 70_checkpoints: who writes what into a checkpoint, and who can resume from it?
 *
 * What you learn
 *     - A checkpoint is all that the next step needs: weights, the optimizer's state, and the position in the data, the
 *       schedule and the random streams. With Adam in fp32 that is 12 bytes per weight; here the positions follow from
 *       the number of the step.
 *     - Replicas are alike. If each of n ranks writes its own, n times the bytes go to the disk, and files of the same
 *       name overwrite each other. Full: rank 0 writes whole tensors and collects what other ranks own, a megabyte at
 *       a time. Sharded: every rank writes what it owns.
 *     - "A sharded checkpoint needs as many ranks as wrote it" is true if a file means "what rank 3 had". Here each run
 *       of numbers has an address (parameter, array, offset), and a rank of any layout reads what it needs.
 *     - "Rank 0's file is enough" is true of replicas only. With ZeRO, rank 0 has a part of the optimizer's state; with
 *       tensor or pipeline parallelism, it also has only a part of the weights.
 *     - A directory is written under a temporary name and renamed when all of its files are on the disk.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 70_checkpoints.c -o 70_checkpoints -lm -lpthread
 *     ./70_checkpoints
 *     ./70_checkpoints --ranks 2
 *     ./70_checkpoints --ranks 4
 *
 * What it prints
 *     checkpoint                 files      bytes    largest  a weight   resumed
 *     data parallel, full            2    1430656     953856     12.07   same hash as data parallel, sharded
 *     data parallel, sharded         4    1444352     382528     12.19   same hash as ZeRO 1, sharded
 *     ZeRO 1, sharded                4    1438784     388096     12.14   same hash as ZeRO 3, sharded
 *     ZeRO 3, sharded                4    1439872     397376     12.15   same hash as tensor parallel, full
 *     every rank writing all of it: 5689344 bytes
 *     ok: 6 checkpoints of 12.07 to 12.19 bytes a weight, each resumed in another layout; one hash
 *
 * Predict first: which line grows with the number of ranks, and which of its numbers?
 * Exercise: how often do the ranks together read a checkpoint's bytes to resume from it? (rchar of /proc/self/io)
 *
 * Read on: 71_shards_by_hand.c for the algorithm, 74_interval.c for how often to save. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHARDS = 4, STEPS = 6 };
#define EXPECTED "fbef4478b8dfa444b1c6bb0ca000f2581120cfbe32d2935150e0b95cab642394"

static const struct {
    const char *name;
    int64_t zero, tp;
    int32_t kind;
} runs[] = {{"data parallel, full", 0, 1, DT_FULL},   {"data parallel, sharded", 0, 1, DT_SHARDED},
            {"ZeRO 1, sharded", 1, 1, DT_SHARDED},    {"ZeRO 3, sharded", 3, 1, DT_SHARDED},
            {"tensor parallel, full", 0, 2, DT_FULL}, {"tensor parallel, sharded", 0, 2, DT_SHARDED}};
enum { RUNS = (int)(sizeof runs / sizeof *runs) };

typedef struct job {
    const char *text, *place;
    int ranks, root, good;
    double weights, least, most; /* how many; bytes of a checkpoint */
    char hash[65];
} job;

/* Trains up to step `until` in layout `run`, from the checkpoint that is there, if any. */
static dt_result train(job *j, int run, int64_t until)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = j->text, recipe.sequence = 32, recipe.steps = STEPS, recipe.warmup = 4, recipe.validation = 0;
    recipe.batch = 8, recipe.data_shards = SHARDS, recipe.tensor_shards = 2;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0;
    l.zero = runs[run].zero, l.tp = j->ranks > 1 ? runs[run].tp : 1;
    l.checkpoint.place = j->place, l.checkpoint.kind = runs[run].kind;
    e = dt_trainer_open(&t, &recipe, &l);
    if (e) return e;
    while (!e && info.step < until) e = dt_trainer_step(t, &info);
    if (!e && until < STEPS) e = dt_trainer_save(t); /* the last step saves by itself */
    if (!e && until == STEPS) memcpy(j->hash, dt_trainer_hash(t), sizeof j->hash);
    j->weights = (double)dt_trainer_weights(t);
    dt_trainer_close(&t);
    return e;
}

/* The files of the checkpoint in the middle: how many hold numbers, their bytes, and the largest. */
static int files(const job *j, double *bytes, double *largest)
{
    char folder[200], name[500];
    struct dirent *entry;
    struct stat is;
    DIR *dir;
    int count = 0;
    *bytes = *largest = 0;
    snprintf(folder, sizeof folder, "%s/step-%09d", j->place, STEPS / 2);
    for (dir = opendir(folder); dir && (entry = readdir(dir)) != NULL;) {
        snprintf(name, sizeof name, "%s/%s", folder, entry->d_name);
        if (!strstr(name, ".safetensors") || stat(name, &is)) continue;
        count++, *bytes += (double)is.st_size;
        *largest = (double)is.st_size > *largest ? (double)is.st_size : *largest;
    }
    if (dir) closedir(dir);
    return count;
}

/* Half in layout `run`, the rest in the next one. */
static dt_result there_and_on(job *j, int run)
{
    char line[300];
    double bytes, largest;
    int next = (run + 1) % RUNS, fine;
    dt_result e = train(j, run, STEPS / 2);
    int count = files(j, &bytes, &largest);
    if (!e) e = train(j, next, STEPS);
    fine = !strcmp(j->hash, EXPECTED) && bytes > 12.0 * j->weights && bytes < 12.4 * j->weights;
    j->good = j->good && (fine || !j->root);
    j->least = run && j->least < bytes ? j->least : bytes, j->most = j->most > bytes ? j->most : bytes;
    if (!e && j->root)
        printf("%-26s %5d %10.0f %10.0f %9.2f   %s as %s\n", runs[run].name, count, bytes, largest,
               bytes / j->weights, fine ? "same hash" : "NOT", runs[next].name);
    snprintf(line, sizeof line, "rm -rf '%s'", j->place);
    return !e && j->root && system(line) ? DT_E_FILE : e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX", place[64];
    float id = (float)getpid();
    dt_comm *c = NULL;
    job j;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("70_checkpoints");
    memset(&j, 0, sizeof j);
    j.text = text, j.place = place, j.root = !dt_comm_rank(c), j.ranks = dt_comm_size(c), j.good = 1;
    e = dt_broadcast(c, &id, 1, 0); /* one place for all ranks */
    snprintf(place, sizeof place, "/tmp/dtrain_checkpoints.%.0f", (double)id);
    dt_comm_close(&c);
    if (argc > 1 || SHARDS % j.ranks) return fprintf(stderr, "70_checkpoints: the option is --ranks 1, 2 or 4\n"), 2;
    if (!e) e = prose_temporary(text, 50000);
    if (j.root) printf("%-26s %5s %10s %10s %9s   resumed\n", "checkpoint", "files", "bytes", "largest", "a weight");
    for (int i = 0; i < RUNS && !e; i++) e = there_and_on(&j, i);
    remove(text);
    if (e || !j.root) return e ? dt_fail("70_checkpoints") : !j.good;
    printf("every rank writing all of it: %.0f bytes\nsha256 %s\n", 12.0 * j.weights * j.ranks, j.hash);
    if (!j.good) return fprintf(stderr, "FAILED: the bytes or the hash are not what they should be\n"), 1;
    return printf("ok: %d checkpoints of %.2f to %.2f bytes a weight, each resumed in another layout; one hash\n", RUNS,
                  j.least / j.weights, j.most / j.weights), 0;
}
