/* 02_gpt: what does a language model learn, and what does its loss mean?
 *
 * What you learn
 *     - A language model reads the tokens so far and gives a probability to each possible next token. Here a token is
 *       a byte, so there are 256.
 *     - The loss is -ln(probability of the byte that really came), averaged: the surprise in nats. A model that knows
 *       nothing gives each byte 1/256 and has loss ln 256 = 5.545.
 *     - A step takes a batch of sequences, runs the model forward, takes the gradient of the loss with respect to
 *       every weight (01_tensor.c), and lets AdamW move each weight a little against its gradient.
 *     - A recipe says what is computed, and the trainer does the rest. A loop of your own around dt_trainer_step sees
 *       each step.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 02_gpt.c -o 02_gpt -lm -lpthread
 *     ./02_gpt                                  (--layers 4, or --width 128: other models)
 *
 * What it prints
 *     weights: 256 tokens x 64 = 16384
 *              2 blocks x (attention 16640 + mlp 33088 + norms 256) = 99968
 *              together 120576; the trainer has 120576
 *              after 0 steps it writes: ..r....H...D^.0.....u.0y.l..%2...$...OA1.2.F....E..Dih.a.U.9.+8..._.^.33
 *     step   1  loss 5.520  (the right byte got a probability of about 1/250)
 *     step 100  loss 2.126  (the right byte got a probability of about 1/8)
 *     step 200  loss 1.880  (the right byte got a probability of about 1/7)
 *              after 200 steps it writes: bed the the r...The wan. the canded ave bunead Kla terabedo. "Whe is the
 *     loss 5.520 -> 1.880; on text that it never saw: 1.866
 *     ok: the loss began within 0.1 of ln 256 = 5.545 and fell to 1.866 on unseen text, by more than half
 *
 * Predict first: how many weights does a model with twice the blocks have, and how many one with twice the width?
 * Exercise: double `sequence` and halve `batch`. Does the loss on unseen text get better, with as many tokens per step?
 *
 * Read on: 03_optimizers.c for the step that moves the weights, 07_generation.c for the texts. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "prose.h"
#include <math.h>

static double layers = 2, width = 64;

static dt_recipe recipe(const char *text)
{
    dt_recipe r = dt_recipe_default();
    r.model = dt_model_gpt2("nano"); /* 2 blocks, 2 heads, 64 channels */
    r.model.layers = (int)layers, r.model.width = (int)width;
    r.data = text;
    r.sequence = 64;        /* T: the model sees up to 64 bytes */
    r.batch = 8;            /* B: sequences per step, so 512 tokens */
    r.steps = 200;
    r.learning_rate = 5e-3f; /* small models bear large steps */
    return r;
}

/* The weights of GPT-2 with C channels, L blocks, T positions, V tokens, beside what the trainer counts. */
static int count_weights(const dt_trainer *t, const dt_recipe *r)
{
    long long C = r->model.width, L = r->model.layers, T = r->sequence, V = 256;
    long long attention = C * 3 * C + 3 * C + C * C + C;  /* q, k, v in one matrix; then the output; with biases */
    long long mlp = C * 4 * C + 4 * C + 4 * C * C + C;    /* up to 4C, GELU, down to C */
    long long norms = 2 * 2 * C;                          /* two layer norms per block, a scale and a shift each */
    long long total = V * C + T * C + L * (attention + mlp + norms) + 2 * C;
    printf("weights: %lld tokens x %lld = %lld\n", V, C, V * C);
    printf("         %lld positions x %lld = %lld\n", T, C, T * C);
    printf("         %lld blocks x (attention %lld + mlp %lld + norms %lld) = %lld\n", L, attention, mlp, norms,
           L * (attention + mlp + norms));
    printf("         last norm %lld; the head uses the token table again\n", 2 * C);
    printf("         together %lld; the trainer has %lld\n\n", total, (long long)dt_trainer_weights(t));
    return total == (long long)dt_trainer_weights(t);
}

/* Control characters and bytes outside ASCII would spoil a terminal. */
static dt_result print_sample(dt_trainer *t, long long step)
{
    char text[72 + 1];
    dt_result r = dt_trainer_sample(t, "the ", 72, NULL, text);
    if (r) return r;
    for (int i = 0; i < 72; i++)
        if (text[i] < ' ' || text[i] > '~') text[i] = '.';
    printf("         after %lld steps it writes: %s\n", step, text);
    return r;
}

/* Trains to the end; the first and the last loss go to loss[0] and loss[1]. */
static dt_result train(dt_trainer *t, const dt_recipe *r, float loss[2])
{
    dt_step_info info = dt_step_info_zero();
    dt_result e = print_sample(t, 0);
    while (!e && info.step < r->steps) {
        e = dt_trainer_step(t, &info);
        if (info.step == 1) loss[0] = info.loss;
        if (info.step == 1 || info.step % 50 == 0)
            printf("step %3lld  loss %.3f  (the right byte got a probability of about 1/%.0f)\n", (long long)info.step,
                   (double)info.loss, exp((double)info.loss));
        if (!e && (info.step == 100 || info.step == r->steps)) e = print_sample(t, (long long)info.step);
    }
    loss[1] = info.loss;
    return e;
}

static dt_result teach(const char *text, int *good, float *validation)
{
    dt_recipe r = recipe(text);
    dt_layout layout = dt_layout_default();
    dt_trainer *t = NULL;
    float loss[2] = {0, 0};
    dt_result e;
    layout.output.quiet = 1; /* this program prints by itself */
    layout.output.eval_every = 0;
    e = dt_trainer_open(&t, &r, &layout);
    if (e) return e;
    *good = count_weights(t, &r);
    e = train(t, &r, loss);
    if (!e) e = dt_trainer_evaluate(t, 0, validation);
    printf("\nloss %.3f -> %.3f; on text that it never saw: %.3f\n", (double)loss[0], (double)loss[1],
           (double)*validation);
    *good = *good && fabsf(loss[0] - 5.545f) < 0.1f && *validation < loss[0] / 2;
    dt_trainer_close(&t);
    return e;
}

int main(int argc, char **argv)
{
    option list[] = {{"--layers", 1, 8, &layers}, {"--width", 64, 256, &width}};
    char text[] = "/tmp/dtrain_XXXXXX";
    float validation = 0;
    int good = 0;
    dt_result e;
    if (!options_read(argc, argv, list, 2)) return 2;
    e = prose_temporary(text, 200000);
    if (!e) e = teach(text, &good, &validation);
    remove(text);
    if (e) return dt_fail("02_gpt");
    if (!good) return fprintf(stderr, "FAILED: the number of weights is wrong, or the loss did not fall by half\n"), 1;
    return printf("ok: the loss began within 0.1 of ln 256 = %.3f and fell to %.3f on unseen text, by more than half\n",
                  log(256), (double)validation), 0;
}
