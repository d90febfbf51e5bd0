/* 43_memory: what can be done when activations do not fit, and what does it cost?
 *
 * What you learn
 *     - A GPT-2 block keeps 16 numbers per row and channel for backward, and per row 2 for each norm and head: 4 s b
 *       (16 h + 2 a + 4) bytes, for b texts of s rows of h channels in a heads.
 *     - Recompute full keeps the inputs of blocks, 4 s b h each, and the values of the one block that is computed
 *       again. That is one more forward: a third more operations, not twice the time. The last segment is spared.
 *     - Selective recompute computes attention alone again. Elsewhere that saves most, because a block keeps
 *       attention's probabilities (Korthikanti et al. 2022). Here they are never kept, so a sixteenth is left to save.
 *     - Offload moves what `full` keeps to a second memory (a GPU's host; here another heap) and back `horizon`
 *       segments before its use. More horizon is more memory. Without recompute offload is refused.
 *     - All of them cost time: use them when memory is short, not before (46_budget.c).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 43_memory.c -o 43_memory -lm -lpthread
 *     ./43_memory
 *     ./43_memory --ranks 2                      (1, 2 or 4; with several ZeRO helps, too)
 *
 * What it prints (~: measured)
 *     none           530432     530432     430656    4674112       ~22.3
 *     selective      493568     493568     467520    4416064       ~17.5
 *     full            32768      32768     759872    1022016       ~20.1
 *     offload without recompute:
 *       --offload moves the segment inputs that only --recompute full keeps. Set both.
 *     sha256 93ec1a1eace19445093717c173e8e95f31d8537652e6641af80054f578d6aac8
 *     ok: the formulas hold, and all of it gives one hash
 *
 * Predict first: with 16 blocks instead of 8, which of the columns double, and for which kinds?
 * Exercise: draw a step: 06_train --data text.txt --recompute full --timeline t.json shows a rank's work, RECOMPUTE
 *     and all.
 *
 * Read on: 44_fit.c for the same formulas at 70 billion weights, 102_copy_and_compute.c for offload on a GPU. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "planned.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { S = 64, B = 2, H = 64, A = 4, LAYERS = 8, SHARDS = 4, VOCABULARY = 256, SBH = 4 * S * B * H };
#define EXPECTED "93ec1a1eace19445093717c173e8e95f31d8537652e6641af80054f578d6aac8"

typedef struct job {
    const char *text;
    int ranks, root, good; /* good: all formulas and hashes so far */
    double seconds;        /* of the last run's fastest step */
} job;

/* Plans a run of fewer layers; with LAYERS of them makes its steps, whose hash is known. */
static dt_result train(job *j, dt_layout l, int64_t layers, dt_memory *m)
{
    dt_recipe recipe = dt_recipe_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    int64_t sent;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.model.layers = layers, recipe.model.heads = A, recipe.model.width = H;
    recipe.data = j->text, recipe.sequence = S, recipe.steps = 2, recipe.validation = 0;
    recipe.data_shards = SHARDS, recipe.batch = SHARDS * B;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0;
    recipe.model.vocabulary = VOCABULARY;
    if (layers < LAYERS) return planned(&recipe, &l, j->ranks, &m->activations, &sent);
    e = dt_trainer_open(&t, &recipe, &l);
    if (e) return e;
    *m = dt_trainer_memory(t);
    for (j->seconds = 1e9; !e && info.step < recipe.steps;) {
        e = dt_trainer_step(t, &info);
        if (info.seconds < j->seconds) j->seconds = info.seconds;
    }
    if (!e) j->good = j->good && !strcmp(dt_trainer_hash(t), EXPECTED);
    dt_trainer_close(&t);
    return e;
}

/* m: of none, selective and full. With every block activations grow by the formula. */
static dt_result recompute(job *j, dt_memory m[3])
{
    static const char *const names[] = {"none", "selective", "full"};
    const int64_t row = 4 * S * B, formula[] = {row * (16 * H + 2 * A + 4), row * (15 * H + 4), row * H};
    int64_t within = (LAYERS - 1) * (formula[0] - SBH) + row * (H + VOCABULARY + 9); /* of blocks but one, and head */
    dt_layout l = dt_layout_default();
    dt_result e = DT_OK;
    if (j->root)
        printf("activations, bytes\nrecompute   per block    formula       rest   %d blocks  ms a step\n", LAYERS);
    for (int i = 0; i < 3 && !e; i++) {
        int64_t each;
        l.recompute = i;
        e = train(j, l, LAYERS / 2, &m[i]);
        each = -m[i].activations;
        if (!e) e = train(j, l, LAYERS, &m[i]);
        each = (each + m[i].activations) / (LAYERS - LAYERS / 2);
        j->good = j->good && each == formula[i];
        if (!e && j->root)
            printf("%-9s  %10lld %10lld %10lld %10lld  %9.1f\n", names[i], (long long)each, (long long)formula[i],
                   (long long)(m[i].activations - LAYERS * each), (long long)m[i].activations, 1e3 * j->seconds);
    }
    if (j->root) printf("  the rest of full has the values of one block: %lld\n\n", (long long)(formula[0] - SBH));
    j->good = j->good && m[0].activations - m[2].activations == within;
    return e;
}

/* `full` whose inputs are elsewhere, over a link so slow that it is as busy as the rank. */
static dt_result offload(job *j, const dt_memory *full)
{
    const int64_t inputs = (LAYERS + 1) * SBH + 64; /* of blocks and head, and a place for the loss */
    dt_layout l = dt_layout_default();
    dt_memory m;
    dt_result e = DT_OK;
    l.recompute = DT_RECOMPUTE_FULL, l.offload = 1;
    l.offload_rate = (float)((double)(2 * inputs * SHARDS / j->ranks) / j->seconds); /* there and back */
    if (j->root)
        printf("offload over a link of %.0f MB/s, bytes\nhorizon   activations    formula    offloaded  ms a step\n",
               1e-6 * (double)l.offload_rate);
    for (l.horizon = 1; l.horizon <= 4 && !e; l.horizon++) {
        int64_t formula = full->activations - inputs + (l.horizon + 3) * SBH;
        e = train(j, l, LAYERS, &m);
        j->good = j->good && m.activations == formula && m.offloaded == inputs;
        if (!e && j->root)
            printf("%7lld    %10lld %10lld   %10lld  %9.1f\n", (long long)l.horizon, (long long)m.activations,
                   (long long)formula, (long long)m.offloaded, 1e3 * j->seconds);
    }
    l.recompute = DT_RECOMPUTE_NONE;
    j->good = (e || train(j, l, LAYERS, &m) == DT_E_USAGE) && j->good;
    if (j->root && !e) printf("offload without recompute:\n  %s\n", dt_last_error());
    return e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_comm *c = NULL;
    job j;
    dt_memory m[3];
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("43_memory");
    j.text = text, j.root = !dt_comm_rank(c), j.ranks = dt_comm_size(c), j.good = 1, j.seconds = 0;
    dt_comm_close(&c); /* the trainer opens its own */
    if (argc > 1 || SHARDS % j.ranks)
        return j.root ? fprintf(stderr, "43_memory: the option is --ranks 1, 2 or 4\n"), 2 : 2;
    e = prose_temporary(text, 50000);
    if (!e) e = recompute(&j, m);
    if (!e) e = offload(&j, &m[2]);
    remove(text);
    if (e) return dt_fail("43_memory");
    if (j.root && j.good) printf("sha256 %s\nok: the formulas hold, and all of it gives one hash\n", EXPECTED);
    if (j.root && !j.good) fprintf(stderr, "FAILED: a formula or the hash does not hold\n");
    return !j.good;
}
