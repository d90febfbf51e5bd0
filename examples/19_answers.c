/* 19_answers: how does a model learn to answer, with a loss on the answers alone?
 *
 * What you learn
 *     - Fine-tuning on instructions is the same training on other samples: a prompt, followed by its answer. The loss
 *       must not count the prompt, or the model learns to ask. A target below 0 is left out of the loss.
 *     - A dt_source gives such samples, and recipe.tokenizer says what its ids mean: checkpoints hold the tokenizer, so
 *       that dt_generate() takes and gives text.
 *     - Prompt and answer are encoded separately, as in use: no token contains parts of both.
 *     - An answer ends with a special token. Without it the model would write on. dt_generation.stop ends a text there.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 19_answers.c -o 19_answers -lm -lpthread
 *     ./19_answers
 *
 * What it prints
 *     "What is 3 + 4?" is 7 tokens, which are not targets; "It is 7." and its end are 5 targets
 *     loss of the answers: 0.0019 nats per token after 400 steps; without sums it would be 0.55
 *     What is 3 + 4? It is 7.
 *     What is 8 + 9? It is 17.
 *     ok: 100 of 100 answers are right
 *
 * Predict first: what is the loss of a model that knows the form of the answers, but no sums?
 * Exercise: leave 20 of the 100 questions out of the training. How many of them does the model answer?
 *
 * Read on: 05_tokenizer.c, 08_generate.c for text from any checkpoint, 110_fine_tune.c for tuning a published model. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tools/tokenizer.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { T = 16, NUMBERS = 10, QUESTIONS = NUMBERS * NUMBERS };

static void question(int64_t n, char *prompt, char *answer)
{
    int a = (int)(n / NUMBERS), b = (int)(n % NUMBERS);
    snprintf(prompt, 64, "What is %d + %d? ", a, b);
    snprintf(answer, 64, "It is %d.<|end|>", a + b);
}

/* Sample -> ids (T) of prompt and answer, and for each the next one (T), if it is one of the answer. */
static dt_result pairs(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    const dt_tokenizer *t = (const dt_tokenizer *)user;
    char prompt[64], answer[64];
    int32_t ids[128] = {0};
    int64_t asked = 0, answered = 0;
    (void)split;
    question(sample, prompt, answer);
    dt_result r = dt_tokenizer_encode(t, prompt, (int64_t)strlen(prompt), 0, ids, &asked);
    if (!r) r = dt_tokenizer_encode(t, answer, (int64_t)strlen(answer), 1, ids + asked, &answered);
    for (int64_t i = 0; i < T; i++) {
        ((int32_t *)input)[i] = ids[i];
        ((int32_t *)target)[i] = i + 1 >= asked && i + 1 < asked + answered ? ids[i + 1] : -1;
    }
    return r;
}

/* Nats per target of a model that knows the form of the answers and how often each sum occurs. */
static double form_alone(const dt_tokenizer *t)
{
    int64_t targets = 0, tokens = 0;
    double nats = 0;
    for (int64_t n = 0; n < QUESTIONS; n++, targets += tokens) {
        char prompt[64], answer[64];
        int32_t ids[64], sum = (int32_t)(n / NUMBERS + n % NUMBERS);
        question(n, prompt, answer);
        if (dt_tokenizer_encode(t, answer, (int64_t)strlen(answer), 1, ids, &tokens)) return 0;
        nats -= log((double)(NUMBERS - abs(sum - NUMBERS + 1)) / QUESTIONS); /* so many questions have this sum */
    }
    return nats / (double)targets;
}

/* Writes all questions and answers, and learns a tokenizer from them. */
static int learn(const char *folder, dt_tokenizer **t)
{
    static const char *const special[] = {"<|end|>", NULL};
    char path[64], prompt[64], answer[64];
    const char *text = path;
    tokenizer_learned learned;
    FILE *f;
    snprintf(path, sizeof path, "%s/text", folder);
    if (!(f = fopen(path, "w"))) return 1;
    for (int64_t n = 0; n < QUESTIONS; n++) question(n, prompt, answer), fprintf(f, "%s%s\n", prompt, answer);
    if (fclose(f) || tokenizer_learn(&text, 1, 280, DT_PRETOKENS_GPT2, special, folder, 1, &learned)) return 1;
    return dt_tokenizer_open(t, folder) ? dt_fail("19_answers") : 0;
}

static void append(void *user, const char *text, int64_t bytes) { strncat((char *)user, text, (size_t)bytes); }

/* Asks every question; how many answers are right. */
static int ask(dt_trainer *g)
{
    static const char *const end[] = {"<|end|>", NULL};
    dt_generation how = dt_generation_default();
    char prompt[64], answer[64], text[64];
    int right = 0;
    how.bytes = 30, how.stop = end, how.sampling.temperature = 0.0f, how.put = append, how.user = text;
    for (int64_t n = 0; n < QUESTIONS; n++) {
        question(n, prompt, answer);
        *strstr(answer, *end) = *text = 0;
        if (dt_generate(g, prompt, &how, NULL)) return dt_fail("19_answers"), 0;
        right += !strcmp(text, answer);
        if (n == 34 || n == 89 || n == 60) printf("%s%s\n", prompt, text);
    }
    return right;
}

int main(void)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_source source = {NULL, {QUESTIONS, 0}, T, T, DT_I32, DT_I32, pairs};
    char folder[] = "/tmp/dtrain_XXXXXX", runs[64], line[64];
    int32_t input[T], target[T];
    int right = 0, counted = 0, skipped = 0;
    dt_tokenizer *t = NULL;
    dt_trainer *trainer = NULL, *g = NULL;
    dt_result r = DT_E_FILE;
    if (!mkdtemp(folder)) return perror("19_answers: no directory in /tmp"), 1;
    snprintf(runs, sizeof runs, "%s/runs", folder);
    if (!learn(folder, &t)) {
        source.user = t;
        recipe.source = &source, recipe.tokenizer = folder, recipe.model = dt_model_gpt2("nano");
        recipe.steps = 400, recipe.batch = 40, recipe.learning_rate = 5e-3f;
        layout.threads = 1, layout.output.quiet = 1, layout.checkpoint.place = runs;
        pairs(t, DT_TRAIN, 34, input, target);
        while (target[skipped] < 0) skipped++;
        while (target[skipped + counted] >= 0) counted++;
        printf("\"What is 3 + 4?\" is %d tokens, which are not targets; \"It is 7.\" and its end are %d targets\n",
               skipped + 1, counted);
        r = dt_trainer_open(&trainer, &recipe, &layout);
        if (!r) r = dt_trainer_run(trainer, &info);
        dt_trainer_close(&trainer);
        if (!r) printf("loss of the answers: %.4f nats per token after %d steps; without sums it would be %.2f\n",
                       (double)info.loss, (int)info.step, form_alone(t));
        if (!r) r = dt_predictor_open(&g, runs, NULL, NULL);
        if (!r) right = ask(g);
        dt_trainer_close(&g);
        if (r) dt_fail("19_answers");
    }
    dt_tokenizer_close(&t);
    snprintf(line, sizeof line, "rm -r %s", folder);
    if (system(line) || r) return 1;
    printf("%s: %d of %d answers are right\n", right == QUESTIONS ? "ok" : "FAILED", right, QUESTIONS);
    return right != QUESTIONS;
}
