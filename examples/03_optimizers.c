/* 03_optimizers: what does an optimizer remember of earlier gradients, and what does that cost?
 *
 * What you learn
 *     - The gradient says which way is down; the optimizer says how far to go. SGD remembers nothing, momentum and
 *       Lion one number per weight (4 bytes), Adam and AdamW two (8 bytes).
 *     - With the weight and its gradient, 4 bytes each, fp32 training takes 8 bytes per weight with SGD and 16 with
 *       AdamW, before any activation.
 *     - Adam adds weight decay to the gradient, so weights with large gradients hardly decay. AdamW subtracts it from
 *       the weight, so all weights decay at one rate.
 *     - Steps differ in size: SGD moves a weight by lr g, Adam by about lr, Lion by exactly lr. So each row has a
 *       learning rate of its own. Compare memory; so short a race has no winner.
 *     - Every row has one hash for any --ranks N.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 03_optimizers.c -o 03_optimizers -lm -lpthread
 *     ./03_optimizers
 *     ./03_optimizers --ranks 2                 (--rate-factor 0.1: every learning rate times that)
 *
 * What it prints
 *                    learning    training loss   validation loss of           state
 *     optimizer          rate    first    last    weights   average   B/weight   kB  sha256
 *     sgd                 0.5    5.533   3.189      3.103     3.137          0    0  a4e9111f3ce1..
 *     sgd, momentum       0.1    5.533   3.186      3.104     3.120          4  474  180674aedf43..
 *     adam              0.003    5.533   3.093      3.021     3.092          8  948  f6f512885d85..
 *     adamw             0.003    5.533   2.672      2.611     2.692          8  948  29e6b0e9f18b..
 *     lion              0.002    5.533   2.855      2.790     2.887          4  474  c9060c518d77..
 *     ok: every loss fell by 1 or more; adamw keeps 8 bytes of state per weight, lion 4, sgd 0
 *
 * Predict first: which row changes most if every learning rate is divided by ten?
 * Exercise: add Adam and AdamW without weight decay. Which old row do the two new rows resemble, and why?
 *
 * Read on: 04_own_loop.c for an optimizer in a loop of your own, 06_train.c for the same choices as options. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "prose.h"

typedef struct choice {
    const char *name;
    int32_t optimizer;
    float rate, momentum, beta2;
} choice;

static const choice choices[] = {
    {"sgd", DT_SGD, 0.5f, 0.0f, 0.95f},    {"sgd, momentum", DT_SGD, 0.1f, 0.9f, 0.95f},
    {"adam", DT_ADAM, 3e-3f, 0.0f, 0.95f}, {"adamw", DT_ADAMW, 3e-3f, 0.0f, 0.95f},
    {"lion", DT_LION, 2e-3f, 0.0f, 0.99f},
};
static double factor = 1; /* of the rates */
enum { CHOICES = (int)(sizeof choices / sizeof *choices), STEPS = 40 };

typedef struct result {
    float before, after, own, averaged; /* loss of the first and the last step; validation loss, of the average */
    double bytes;                       /* of state per weight, without the average */
    int64_t weights;
    char hash[65];
    int root;
} result;

static dt_recipe recipe_of(const choice *c, const char *text)
{
    dt_recipe r = dt_recipe_default();
    r.model = dt_model_gpt2("nano");
    r.data = text;
    r.steps = STEPS;
    r.batch = 16;
    r.sequence = 32;
    r.warmup = 5;
    r.optimizer = c->optimizer;
    r.learning_rate = c->rate * (float)factor;
    r.momentum = c->momentum;
    r.beta2 = c->beta2;
    return r;
}

/* Trains with one choice; `evaluate` asks for the validation loss of the average instead of the weights'. */
static dt_result train(const choice *c, const char *text, int evaluate, result *out)
{
    dt_recipe recipe = recipe_of(c, text);
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.ema = 0.9f; /* of the last ten steps or so; 0.999 and more is usual in long runs */
    recipe.evaluate_ema = evaluate;
    layout.output.quiet = 1;
    layout.threads = 1;
    layout.output.eval_every = 0; /* at the end, the whole validation part */
    layout.output.eval_batches = 0;
    layout.output.sample_length = 0;
    e = dt_trainer_open(&t, &recipe, &layout);
    if (!e) e = dt_trainer_step(t, &info);
    out->before = info.loss;
    if (!e) e = dt_trainer_run(t, &info);
    if (e) return dt_trainer_close(&t), e;
    out->after = info.loss;
    *(evaluate ? &out->averaged : &out->own) = info.validation;
    memcpy(out->hash, dt_trainer_hash(t), sizeof out->hash);
    out->weights = dt_trainer_weights(t);
    out->bytes = 4.0 * (double)dt_trainer_memory(t).optimizer / (double)dt_trainer_memory(t).weights - 4; /* ema */
    out->root = dt_trainer_is_root(t);
    dt_trainer_close(&t);
    return e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX", first[65];
    option list[] = {{"--rate-factor", 0.001, 2, &factor}};
    result r[CHOICES];
    int good = 1;
    dt_result e = dt_launch(&argc, &argv);
    if (e) return dt_fail("03_optimizers");
    if (!options_read(argc, argv, list, 1)) return 2;
    e = prose_temporary(text, 100000); /* every rank writes its own copy, of the same bytes */
    for (int i = 0; i < CHOICES && !e; i++) {
        e = train(&choices[i], text, 0, &r[i]);
        memcpy(first, r[i].hash, sizeof first);
        if (!e) e = train(&choices[i], text, 1, &r[i]);
        if (e) break;
        good = good && !strcmp(first, r[i].hash); /* validation trains nothing */
        good = good && (factor < 1 || factor > 1 || r[i].after < r[i].before - 1);
        if (!r[i].root) continue;
        if (!i)
            printf("%-14s %8s  %15s  %19s  %14s\n%-14s %8s  %7s %7s  %9s %9s  %9s %4s  %s\n", "", "learning",
                   "training loss", "validation loss of", "state", "optimizer", "rate", "first", "last", "weights",
                   "average", "B/weight", "kB", "sha256");
        printf("%-14s %8g  %7.3f %7.3f  %9.3f %9.3f  %9.0f %4.0f  %.12s..\n", choices[i].name,
               factor * (double)choices[i].rate, (double)r[i].before, (double)r[i].after, (double)r[i].own,
               (double)r[i].averaged, r[i].bytes, 1e-3 * r[i].bytes * (double)r[i].weights, r[i].hash);
    }
    remove(text);
    if (e) return dt_fail("03_optimizers");
    good = good && r[0].bytes == 0 && r[3].bytes == 8 && r[4].bytes == 4;
    if (!good) return fprintf(stderr, "FAILED: a loss did not fall, or bytes are not the formula's\n"), 1;
    if (!r[0].root) return 0;
    if (factor < 1 || factor > 1) return printf("ok: other rates: losses not checked\n"), 0;
    return printf("ok: every loss fell by 1 or more; adamw keeps %.0f bytes of state per weight, lion %.0f, sgd %.0f\n",
                  r[3].bytes, r[4].bytes, r[0].bytes), 0;
}
