/* 03_optimizers: four optimizers on one model, and what each keeps in memory.
 *
 * What you learn
 *     The gradient says which way is down; the optimizer says how far to go, for each weight, from what it remembers of
 *     earlier gradients. What it remembers costs memory beside the weights (4 bytes each) and their gradient (4):
 *       sgd       w = w - lr g                          nothing
 *       momentum  a running sum of gradients            4 bytes per weight
 *       adam(w)   running means of g and of g^2         8
 *       lion      a running mean of g, used by sign     4
 *     So fp32 training takes 8 (sgd) to 16 (adamw) bytes per weight before any activation: the saying "Adam doubles the
 *     memory" is right for weights, gradients and state together.
 *
 *     Adam and AdamW differ in where weight decay acts. Added to the gradient (Adam), it is divided by the root of v
 *     like the gradient, so weights with large gradients hardly decay; subtracted from the weight (AdamW), all decay at
 *     one rate. Steps have other sizes too: sgd moves by lr g, adam by about lr, lion by exactly lr, whatever g is.
 *     That is why each row of the table has a learning rate of its own, found by trying; compare memory, not the
 *     winners of so short a race.
 *
 *     All of them are exact here: every row has one hash for any --ranks N.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 03_optimizers.c -o 03_optimizers -lm -lpthread
 *     ./03_optimizers
 *     ./03_optimizers --ranks 2
 *
 * What you should see
 *     For each optimizer: loss before and after 60 steps (ln 256 = 5.55 is guessing), validation loss of the last
 *     weights and of their running average (ema), bytes of state per weight, kilobytes in all, and the beginning of the
 *     hash.
 *
 * Read on: 06_train.c takes the same choices as options: --optimizer, --momentum, --nesterov, --ema ... */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
enum { CHOICES = (int)(sizeof choices / sizeof *choices), STEPS = 60 };

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
    r.learning_rate = c->rate;
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
    out->bytes = 4.0 * (double)dt_trainer_memory(t).optimizer / (double)dt_trainer_memory(t).weights - 4; /* but for ema */
    out->root = dt_trainer_is_root(t);
    dt_trainer_close(&t);
    return e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX", first[65];
    result r[CHOICES];
    int file, good = 1;
    dt_result e = dt_launch(&argc, &argv);
    if (e) return dt_fail("03_optimizers");
    if (argc > 1) return fprintf(stderr, "03_optimizers: the options are --ranks N, up to 8, and the launcher's\n"), 2;
    file = mkstemp(text);
    if (file < 0) return perror("03_optimizers: no file in /tmp"), 1;
    close(file);
    e = prose_generate(text, 100000, 1); /* every rank writes its own copy, of the same bytes */
    for (int i = 0; i < CHOICES && !e; i++) {
        e = train(&choices[i], text, 0, &r[i]);
        memcpy(first, r[i].hash, sizeof first);
        if (!e) e = train(&choices[i], text, 1, &r[i]);
        if (e) break;
        good = good && !strcmp(first, r[i].hash) && r[i].after < r[i].before - 1.0f; /* validation trains nothing */
        if (!r[i].root) continue;
        if (!i)
            printf("%-14s %8s  %15s  %19s  %14s\n%-14s %8s  %7s %7s  %9s %9s  %9s %4s  %s\n", "", "learning",
                   "training loss", "validation loss of", "state", "optimizer", "rate", "first", "last", "weights",
                   "average", "B/weight", "kB", "sha256");
        printf("%-14s %8g  %7.3f %7.3f  %9.3f %9.3f  %9.0f %4.0f  %.12s..\n", choices[i].name,
               (double)choices[i].rate, (double)r[i].before, (double)r[i].after, (double)r[i].own,
               (double)r[i].averaged, r[i].bytes, 1e-3 * r[i].bytes * (double)r[i].weights, r[i].hash);
    }
    remove(text);
    if (e) return dt_fail("03_optimizers");
    good = good && r[0].bytes == 0 && r[3].bytes == 8 && r[4].bytes == 4;
    if (!good) return fprintf(stderr, "FAILED: a loss that does not fall, or bytes that are not the formula's\n"), 1;
    if (r[0].root) printf("ok: every optimizer learns, and lion keeps half of adamw's state\n");
    return 0;
}
