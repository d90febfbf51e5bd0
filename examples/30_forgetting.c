/* 30_forgetting: what a checkpoint must hold, seen by leaving it out.
 *
 * What you learn
 *     "A checkpoint is the weights." Then training goes on, but not as it would have:
 *     - without the optimizer's state Adam knows no scale of the gradients: its first steps are as long as any,
 *       whatever the learning rate had learned, and the loss jumps. Merged "full" checkpoints of some libraries are
 *       like this.
 *     - without the schedule's step the warm-up comes again, and the decay later or never (trap 8: a job on spare
 *       capacity that is restarted every few hours may never leave its warm-up).
 *     - without the data cursor the first samples are seen again and the last ones never. The loss even looks better
 *       for a while: the model has met these samples before.
 *     - without the random streams dropout repeats itself. Nothing shows, but the run is another one, and a bug that
 *       appeared once cannot be had again.
 *     Nobody sees any of this in a curve that is drawn from the restart on. With everything in its place the bits are
 *     those of a run that was never stopped: that is the test to ask of a checkpoint, not "the loss goes on".
 *     Here the last three are one number, the step, because the order of samples, the learning rate and all random
 *     streams are functions of it; so the lab has to lose them on purpose (environment DT_FORGET).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 30_forgetting.c -o 30_forgetting -lm -lpthread
 *     ./30_forgetting
 *     ./30_forgetting --ranks 2
 *
 * What you should see
 *     Losses of the steps after a restart at step 24 of 48, beside those of the run that was left alone, and how far
 *     they are from them. Only the last line has none, and its hash.
 *
 * Read on: 26_checkpoints.c for what is in the files. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPECTED "86d48743e410e037c00d83b0ea4247effcdd18b8a588195d8ad9836dc6843e21"
enum { STEPS = 48, HALF = 24, RUNS = 6 };
static const char *const names[RUNS] = {"never stopped", "without optimizer", "without schedule", "without cursor",
                                        "without rng", "with all"};
static const char *const forget[RUNS] = {NULL, "optimizer", "schedule", "cursor", "rng", NULL};

/* Steps up to `until`, from the checkpoint in `place` if there is one; up to HALF they end with one. */
static dt_result train(const char *text, const char *place, int64_t until, float loss[STEPS + 1], char hash[65],
                       int *root)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = text, recipe.sequence = 32, recipe.steps = STEPS, recipe.warmup = 12, recipe.validation = 0;
    recipe.batch = 8, recipe.data_shards = 4, recipe.dropout = 0.1f, recipe.learning_rate = 3e-3f;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0, l.checkpoint.place = place, l.checkpoint.keep = 0;
    e = dt_trainer_open(&t, &recipe, &l);
    if (e) return e;
    *root = dt_trainer_is_root(t);
    while (!e && info.step < until) {
        e = dt_trainer_step(t, &info);
        if (info.step <= STEPS) loss[info.step] = info.loss;
    }
    if (!e && place && until == HALF) e = dt_trainer_save(t);
    if (!e) memcpy(hash, dt_trainer_hash(t), 65);
    dt_trainer_close(&t);
    return e;
}

static int shell(const char *format, const char *place)
{
    char line[200];
    snprintf(line, sizeof line, format, place);
    return system(line);
}

int main(int argc, char **argv)
{
    static float loss[RUNS][STEPS + 1];
    char text[] = "/tmp/dtrain_XXXXXX", place[64], hash[RUNS][65];
    float name[16], far, most[RUNS];
    dt_comm *c = NULL;
    int file, root = 0, good = 1;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("30_forgetting");
    snprintf(place, sizeof place, "/tmp/dtrain_forgetting.%ld", (long)getpid());
    memcpy(name, place, sizeof name);
    e = dt_broadcast(c, name, 16, 0); /* one place for all ranks */
    memcpy(place, name, sizeof name);
    dt_comm_close(&c);
    if (argc > 1) return fprintf(stderr, "30_forgetting: the option is --ranks 1 to 4\n"), 2;
    if ((file = mkstemp(text)) < 0) return perror("30_forgetting: no file in /tmp"), 1;
    close(file);
    if (!e) e = prose_generate(text, 50000, 1);
    if (!e) e = train(text, place, HALF, loss[1], hash[0], &root);
    for (int i = 0; i < RUNS && !e; i++) {
        if (forget[i]) setenv("DT_FORGET", forget[i], 1);
        else unsetenv("DT_FORGET");
        e = train(text, i ? place : NULL, STEPS, loss[i], hash[i], &root);
        if (i && root && shell("rm -rf '%s'/step-000000048", place)) e = DT_E_FILE; /* the next begins at HALF, too */
    }
    remove(text);
    if (e || !root) return e ? dt_fail("30_forgetting") : 0;
    shell("rm -rf '%s'", place);
    printf("%-18s", "loss at step");
    for (int s = HALF + 1; s <= STEPS; s += s < HALF + 4 ? 1 : 5) printf(" %7d", s);
    printf("   farthest\n");
    for (int i = 0; i < RUNS; i++) {
        most[i] = 0;
        for (int s = HALF + 1; s <= STEPS; s++) {
            far = fabsf(loss[i][s] - loss[0][s]);
            if (far > most[i]) most[i] = far;
        }
        printf("%-18s", names[i]);
        for (int s = HALF + 1; s <= STEPS; s += s < HALF + 4 ? 1 : 5) printf(" %7.4f", (double)loss[i][s]);
        printf("   %8.4f\n", (double)most[i]);
        good = good && (forget[i] ? most[i] > 0 : most[i] <= 0) && (!strcmp(hash[i], EXPECTED) == !forget[i]);
    }
    printf("sha256 %s\n", hash[RUNS - 1]);
    if (good) return printf("ok: each thing that is forgotten bends the curve; with all there is one hash\n"), 0;
    return fprintf(stderr, "FAILED: a run that forgot is like one that did not, or the other way round\n"), 1;
}
