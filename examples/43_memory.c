/* 43_memory: what can be done when activations do not fit, and what does it cost?
 *
 * What you learn
 *     - For b texts of s tokens, a GPT-2 block of width h with a attention heads keeps for backward, per token, 16 h
 *       numbers, 2 for each of 2 norms and 2 for each head: 4 s b (16 h + 2 a + 4) bytes in fp32.
 *     - Recompute full keeps the inputs of blocks, 4 s b h each, and the values of the one block that is computed
 *       again. That is one more forward of the blocks: at most a third more operations, not twice the time.
 *     - Selective recompute computes attention alone again. Where a block keeps attention's probabilities, that saves
 *       most (Korthikanti et al. 2022). This attention never keeps them, so a sixteenth is left to save.
 *     - Offload moves what `full` keeps to a second memory (a GPU's host; here another heap) and back `horizon`
 *       segments before its use. More horizon is more memory. All three cost time: use them when memory is short.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 43_memory.c -o 43_memory -lm -lpthread
 *     ./43_memory
 *     ./43_memory --ranks 2 --layers 16          (1, 2 or 4 ranks; 2 to 64 blocks)
 *
 * What it prints (~: measured)
 *     recompute   per block    formula       rest   8 blocks  CPU ms
 *     none           530432     530432     430656    4674112       ~36.1
 *     selective      493568     493568     467520    4416064       ~38.4
 *     full            32768      32768     759872    1022016       ~41.9
 *     offload without recompute:
 *       --offload moves the segment inputs that only --recompute full keeps. Set both.
 *     ok: 8 runs with one hash; bytes as computed: none 4674112, selective 4416064, full 1022016
 *
 * Predict first: with 16 blocks instead of 8, which of the columns double, and for which kinds?
 * Exercise: count the instructions FORWARD, RECOMPUTE and BACKWARD of a step (dt_plan_program), for each kind.
 *
 * Read on: 44_fit.c for the same formulas at 70 billion weights, 102_copy_and_compute.c for offload on a GPU. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "planned.h"
#include "prose.h"
#include <time.h>

enum { S = 64, B = 2, H = 64, A = 4, SHARDS = 4, VOCABULARY = 256, SBH = 4 * S * B * H };
#define EXPECTED "93ec1a1eace19445093717c173e8e95f31d8537652e6641af80054f578d6aac8"

typedef struct job {
    const char *text;
    int ranks, root, blocks, good, runs; /* good: all formulas and hashes so far */
    double seconds, cpu; /* of the last run's fastest step */
    char hash[65];  /* of all runs; "": not known yet */
} job;

/* Plans a run of fewer layers; makes the steps of one of all layers. */
static dt_result train(job *j, dt_layout l, int64_t layers, dt_memory *m)
{
    dt_recipe recipe = dt_recipe_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    int64_t sent;
    dt_result e;
    recipe.model = dt_model_gpt2("nano"), recipe.model.layers = layers, recipe.model.heads = A, recipe.model.width = H;
    recipe.data = j->text, recipe.sequence = S, recipe.steps = 2, recipe.validation = 0;
    recipe.data_shards = SHARDS, recipe.batch = SHARDS * B, recipe.model.vocabulary = VOCABULARY;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0;
    if (layers < j->blocks) return planned(&recipe, &l, j->ranks, &m->activations, &sent);
    if ((e = dt_trainer_open(&t, &recipe, &l))) return e;
    *m = dt_trainer_memory(t);
    for (j->seconds = j->cpu = 1e9; !e && info.step < recipe.steps;) {
        double cpu = (double)clock();
        e = dt_trainer_step(t, &info), cpu = ((double)clock() - cpu) / CLOCKS_PER_SEC;
        if (info.seconds < j->seconds) j->seconds = info.seconds;
        if (cpu < j->cpu) j->cpu = cpu;
    }
    if (!e && !*j->hash) strcpy(j->hash, dt_trainer_hash(t));
    if (!e) j->runs++, j->good = j->good && !strcmp(dt_trainer_hash(t), j->hash);
    return dt_trainer_close(&t), e;
}

/* m: of none, selective and full. With every block activations grow by the formula. */
static dt_result recompute(job *j, dt_memory m[3])
{
    static const char *const names[] = {"none", "selective", "full"};
    const int64_t row = 4 * S * B, formula[] = {row * (16 * H + 2 * A + 4), row * (15 * H + 4), row * H};
    int64_t values = (j->blocks - 1) * (formula[0] - SBH) + row * (H + VOCABULARY + 9); /* all but one block's, head */
    dt_layout l = dt_layout_default();
    dt_result e = train(j, l, j->blocks, &m[0]); /* the first run is slower than the others */
    if (j->root)
        printf("activations, bytes\nrecompute   per block    formula       rest %3d blocks  CPU ms\n", j->blocks);
    for (int i = 0; i < 3 && !e; i++) {
        l.recompute = i;
        e = train(j, l, j->blocks / 2, &m[i]);
        int64_t each = -m[i].activations;
        if (!e) e = train(j, l, j->blocks, &m[i]);
        each = (each + m[i].activations) / (j->blocks - j->blocks / 2);
        j->good = j->good && each == formula[i];
        if (!e && j->root)
            printf("%-9s  %10lld %10lld %10lld %10lld  %6.1f\n", names[i], (long long)each, (long long)formula[i],
                   (long long)(m[i].activations - j->blocks * each), (long long)m[i].activations, 1e3 * j->cpu);
    }
    if (j->root) printf("  the rest of full has the values of one block: %lld\n\n", (long long)(formula[0] - SBH));
    j->good = j->good && m[0].activations - m[2].activations == values;
    return e;
}

/* `full` whose inputs are elsewhere, over a link so slow that it is as busy as the rank. */
static dt_result offload(job *j, const dt_memory *full)
{
    const int64_t inputs = (j->blocks + 1) * SBH + 64; /* of blocks and head, and a place for the loss */
    dt_layout l = dt_layout_default();
    dt_result e = DT_OK;
    dt_memory m;
    l.recompute = DT_RECOMPUTE_FULL, l.offload = 1;
    l.offload_rate = (float)((double)(2 * inputs * SHARDS / j->ranks) / j->seconds); /* there and back */
    if (j->root)
        printf("offload over a link of %.0f MB/s, bytes\nhorizon   activations    formula    offloaded  ms a step\n",
               1e-6 * (double)l.offload_rate);
    for (l.horizon = 1; l.horizon <= 4 && !e; l.horizon++) {
        int64_t formula = full->activations - inputs + (l.horizon + 3) * SBH;
        e = train(j, l, j->blocks, &m);
        j->good = j->good && m.activations == formula && m.offloaded == inputs;
        if (!e && j->root)
            printf("%7lld    %10lld %10lld   %10lld  %9.1f\n", (long long)l.horizon, (long long)m.activations,
                   (long long)formula, (long long)m.offloaded, 1e3 * j->seconds);
    }
    l.recompute = DT_RECOMPUTE_NONE;
    j->good = (e || train(j, l, j->blocks, &m) == DT_E_USAGE) && j->good;
    if (j->root && !e) printf("offload without recompute:\n  %s\n", dt_last_error());
    return e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_comm *c = NULL;
    double layers = 8;
    option list[] = {{"--layers", 2, 64, &layers}};
    job j = {.text = text, .good = 1};
    dt_memory m[3];
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("43_memory");
    j.root = !dt_comm_rank(c), j.ranks = dt_comm_size(c);
    dt_comm_close(&c); /* the trainer opens its own */
    if (SHARDS % j.ranks) return j.root ? fprintf(stderr, "43_memory: --ranks is 1, 2 or 4\n"), 2 : 2;
    if (!options_read(argc, argv, list, 1)) return 2;
    if ((j.blocks = (int)layers) == 8) strcpy(j.hash, EXPECTED);
    if (!(e = prose_temporary(text, 50000))) e = recompute(&j, m);
    if (!e) e = offload(&j, &m[2]);
    remove(text);
    if (e) return dt_fail("43_memory");
    if (j.root && j.good)
        printf("sha256 %s\nok: %d runs with one hash; bytes as computed: none %lld, selective %lld, full %lld\n",
               j.hash, j.runs, (long long)m[0].activations, (long long)m[1].activations, (long long)m[2].activations);
    if (j.root && !j.good) fprintf(stderr, "FAILED: a formula or the hash does not hold\n");
    return !j.good;
}
