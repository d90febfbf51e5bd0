/* 08_generate: how do you use a trained model: continue a prompt, or measure a text?
 *
 * What you learn
 *     - A checkpoint holds the recipe, the shape of the model and the tokenizer as well as the weights. So nothing has
 *       to be given again, and no training text is needed.
 *     - A model is judged by its loss on a text that it has not seen: in nats per token; as perplexity, e to that
 *       power; or in bits per byte.
 *     - Only bits per byte compare models with different tokenizers. A model with larger tokens has fewer to predict,
 *       each of them harder, so its perplexity on the same text is higher.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 08_generate.c -o 08_generate -lm -lpthread
 *     ./08_generate     (trains a demo model first, and shows both)
 *     On a checkpoint of yours: ./08_generate CHECKPOINT --prompt TEXT, or --prompt-file FILE (- is stdin), and
 *         --bytes 400 --samples 1 --seed 0 --stop TEXT --temperature 0.7 --top-k 0 --top-p 0
 *     Measure a text with it: ./08_generate eval CHECKPOINT --data FILE
 *     --checkpoint CHECKPOINT means the same. With --ranks N and --pp N, or --tp N for a recipe with N tensor shards, N
 *     processes share the model. CHECKPOINT may also be a directory of Hugging Face with config.json and
 *     model.safetensors.
 *
 * What it prints (and two texts)
 *     a demo model: 60 steps on a generated text
 *     59999 tokens, 59999 bytes: loss 2.2798 nats per token, perplexity 9.77, 3.2891 bits per byte
 *     ok: a text and a loss from a checkpoint alone
 *
 * Predict first: what does --temperature 0 draw, and why are two samples then the same?
 * Exercise: print the five most likely next tokens with their probabilities (dt_trainer_predict).
 *
 * Read on: 09_saturation.c for batches and speed, 72_checkpoint_tool.c for what a checkpoint holds. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What the command line says. */
typedef struct command {
    const char *path, *otherwise, *prompt, *prompt_file, *stop[9]; /* otherwise: path, if none is given */
    int64_t bytes, samples, seed;
    int eval;
} command;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int number(const char *option, const char *text, int64_t *n)
{
    char *end;
    *n = strtoll(text, &end, 10);
    if (end != text && !*end && *n >= 0) return 1;
    return fprintf(stderr, "08_generate: %s %s: choose a whole number, 0 or more\n", option, text), 0;
}

/* Takes this program's own options out of argv; the rest is the library's. */
static int read_command(int *argc, char **argv, command *c)
{
    int kept = 1, stops = 0;
    memset(c, 0, sizeof *c);
    c->bytes = 400, c->samples = 1;
    for (int i = 1; i < *argc; i++) {
        const char *a = argv[i], *value = i + 1 < *argc ? argv[i + 1] : NULL;
        const char **text = !strcmp(a, "--prompt") ? &c->prompt : !strcmp(a, "--prompt-file") ? &c->prompt_file
                          : !strcmp(a, "--default") ? &c->otherwise : !strcmp(a, "--stop") ? &c->stop[stops] : NULL;
        int64_t *n = !strcmp(a, "--bytes") ? &c->bytes : !strcmp(a, "--samples") ? &c->samples
                   : !strcmp(a, "--seed") ? &c->seed : NULL;
        if (!text && !n) {
            argv[kept++] = argv[i];
            continue;
        }
        if (!value) return fprintf(stderr, "08_generate: %s needs a value\n", a), 0;
        if (text == &c->stop[stops] && ++stops == 9) return fprintf(stderr, "08_generate: at most 8 --stop\n"), 0;
        if (text) *text = value;
        if (n && !number(a, value, n)) return 0;
        i++;
    }
    argv[*argc = kept] = NULL;
    return 1;
}

/* What is left of argv: eval or nothing, and a checkpoint, unless --checkpoint gives it. */
static int read_words(int argc, char **argv, command *c, const char *place)
{
    int at = 1;
    c->path = place;
    if (at < argc && !strcmp(argv[at], "eval")) c->eval = 1, at++;
    if (at < argc && !place && argv[at][0] != '-') c->path = argv[at++];
    if (at < argc) fprintf(stderr, "08_generate: what is '%s'? ", argv[at]);
    else if (!c->path && !(c->path = c->otherwise && *c->otherwise ? c->otherwise : NULL))
        fprintf(stderr, "08_generate: no checkpoint is named. ");
    else return 1;
    fprintf(stderr, "Usage: 08_generate CHECKPOINT --prompt TEXT, or 08_generate eval CHECKPOINT --data FILE\n");
    return 0;
}

/* All of a file, or of standard input, with a NUL behind it. */
static char *read_all(const char *name)
{
    FILE *f = strcmp(name, "-") ? fopen(name, "rb") : stdin;
    size_t room = 1 << 16, used = 0, n;
    char *text = (char *)malloc(room);
    if (!f) perror(name);
    while (f && text && (n = fread(text + used, 1, room - used - 1, f)) > 0)
        if ((used += n) + 1 == room) text = (char *)realloc(text, room *= 2);
    if (f && f != stdin) fclose(f);
    if (!f) return free(text), (char *)NULL;
    while (used && text[used - 1] == '\n') used--; /* the line end of an editor is not part of a prompt */
    if (text) text[used] = 0;
    return text;
}

/* dt_generation.put: rank 0 prints. */
static void print(void *speaks, const char *text, int64_t bytes)
{
    if (*(const int *)speaks) fwrite(text, 1, (size_t)bytes, stdout), fflush(stdout);
}

static dt_result generate(dt_trainer *g, const command *c, const dt_layout *layout, const char *prompt, int speaks)
{
    dt_generation how = dt_generation_default();
    dt_result r = DT_OK;
    how.sampling = layout->output.sampling;
    how.bytes = c->bytes, how.put = print, how.user = &speaks;
    if (c->stop[0]) how.stop = c->stop;
    for (int64_t i = 0; i < c->samples && !r; i++) {
        double start = seconds();
        int64_t tokens;
        how.sampling.seed = c->seed + i;
        if (speaks) printf("%s%s", i ? "----\n" : "", prompt);
        r = dt_generate(g, prompt, &how, &tokens);
        if (!r && speaks) printf("\n"), fflush(stdout);
        if (!r && speaks)
            fprintf(stderr, "%lld tokens, %.0f tokens/s\n", (long long)tokens, (double)tokens / (seconds() - start));
    }
    return r;
}

static dt_result evaluate(dt_trainer *g, const char *data, int speaks)
{
    int64_t tokens = 0, bytes = 0;
    float loss = 0;
    dt_result r = dt_evaluate(g, data, &loss, &tokens, &bytes);
    if (!r && speaks)
        printf("%lld tokens, %lld bytes: loss %.4f nats per token, perplexity %.2f, %.4f bits per byte\n",
               (long long)tokens, (long long)bytes, (double)loss, exp((double)loss),
               (double)loss * (double)tokens / ((double)bytes * log(2)));
    if (!r && speaks) fprintf(stderr, "left out: the first token, which follows none\n");
    return r;
}

/* A model to show: 60 steps on a text about nothing. */
static int train(const char *folder, const char *text)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_trainer *t = NULL;
    dt_step_info info;
    dt_result r = prose_generate(text, 60000, 1) ? DT_E_FILE : DT_OK;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = text, recipe.steps = 60, recipe.batch = 8, recipe.sequence = 64, recipe.learning_rate = 5e-3f;
    layout.checkpoint.place = folder, layout.output.quiet = 1;
    if (!r) r = dt_trainer_open(&t, &recipe, &layout);
    if (!r) r = dt_trainer_run(t, &info);
    dt_trainer_close(&t);
    return !r;
}

int main(int argc, char **argv)
{
    dt_recipe given = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_trainer *g = NULL;
    command c;
    char folder[] = "/tmp/08_generate_XXXXXX", text[64] = "", remove[80], *prompt = NULL;
    dt_comm *ranks = NULL;
    int speaks, demo = argc == 1;
    dt_result r;
    if (dt_comm_open(&ranks, &argc, &argv)) return dt_fail("08_generate");
    speaks = dt_comm_rank(ranks) == 0;
    dt_comm_close(&ranks);
    if (!read_command(&argc, argv, &c)) return 2;
    if (dt_args(&argc, &argv, &given, &layout)) return dt_fail("08_generate");
    if (demo) { /* shows both, on one rank */
        if (!mkdtemp(folder)) return perror(folder), 1;
        printf("a demo model: 60 steps on a generated text\n");
        snprintf(text, sizeof text, "%s/text.txt", folder);
        if (!train(folder, text)) return dt_fail("08_generate: training");
        c.path = folder, c.prompt = "The ", c.bytes = 120, c.samples = 2;
    } else if (!read_words(argc, argv, &c, layout.checkpoint.place)) return 2;
    if (c.eval ? !given.data : !c.prompt == !c.prompt_file) {
        fprintf(stderr, "08_generate: %s\n",
                c.eval ? "eval needs --data FILE" : "give one of --prompt TEXT and --prompt-file FILE");
        return 2;
    }
    if (c.path == c.otherwise && speaks) fprintf(stderr, "08_generate: using %s\n", c.path);
    if (!c.eval && !(prompt = c.prompt ? strdup(c.prompt) : read_all(c.prompt_file))) return 1;
    r = dt_predictor_open(&g, c.path, NULL, &layout);
    if (!r && !c.eval) r = generate(g, &c, &layout, prompt, speaks);
    if (!r && (c.eval || demo)) r = evaluate(g, c.eval ? given.data : text, speaks);
    dt_trainer_close(&g);
    free(prompt);
    if (demo) {
        snprintf(remove, sizeof remove, "rm -r '%s'", folder);
        if (system(remove)) fprintf(stderr, "%s stays\n", folder);
        if (!r) printf("ok: a text and a loss from a checkpoint alone\n");
    }
    return r ? dt_fail("08_generate") : 0;
}
