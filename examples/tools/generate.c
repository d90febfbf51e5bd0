/* generate: continues a text with a trained model, or measures a text with it.
 *
 *     ./build.sh generate CHECKPOINT --prompt TEXT           or --prompt-file FILE (- is stdin)
 *     ./build.sh eval CHECKPOINT --data FILE                 loss, perplexity and bits per byte of a text
 *
 * CHECKPOINT may be sharded or full, of any layout, or a directory of Hugging Face with config.json and
 * model.safetensors; --checkpoint CHECKPOINT means the same. It holds the recipe, the model's shape and the tokenizer, so
 * nothing else is given; --help lists the options. With --ranks N and --pp N, or --tp N for a recipe with N tensor
 * shards, N processes share the model.
 *
 * What the numbers mean: 08_generate.c. By hand, in the folder of dtrain.h:
 *     cc -O2 -I. examples/tools/generate.c -o generate -lm -lpthread */
#define DTRAIN_IMPLEMENTATION
#include "generate.h"
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: generate CHECKPOINT --prompt TEXT, or generate eval CHECKPOINT --data FILE\n";
static const char help[] =
    "  --prompt-file FILE       a prompt from a file; - is standard input\n"
    "  --bytes N                length of the continuation [400]\n"
    "  --samples N              continuations, each with its own seed [1]\n"
    "  --seed N                 seed of the first one [0]\n"
    "  --stop TEXT              ends the text before these words; up to 8 times\n"
    "  --temperature X          0: always the most likely token [0.7]\n"
    "  --top-k N, --top-p X     draw from the N most likely tokens, or those with this total probability; 0: all [0]\n"
    "--help all adds the trainer's options, such as --ranks.\n";

/* What the command line says. */
typedef struct command {
    const char *path, *otherwise, *prompt, *prompt_file, *stop[9]; /* otherwise: path, if none is given */
    int64_t bytes, samples, seed;
    int eval;
} command;

static int number(const char *option, const char *text, int64_t *n)
{
    char *end;
    *n = strtoll(text, &end, 10);
    if (end != text && !*end && *n >= 0) return 1;
    return fprintf(stderr, "generate: %s %s: choose a whole number, 0 or more\n", option, text), 0;
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
        if (!value) return fprintf(stderr, "generate: %s needs a value\n", a), 0;
        if (text == &c->stop[stops] && ++stops == 9) return fprintf(stderr, "generate: at most 8 --stop\n"), 0;
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
    if (at < argc) fprintf(stderr, "generate: what is '%s'? ", argv[at]);
    else if (!c->path && !(c->path = c->otherwise && *c->otherwise ? c->otherwise : NULL))
        fprintf(stderr, "generate: no checkpoint is named. ");
    else return 1;
    return fputs(usage, stderr), 0;
}

/* All of a file, or of standard input, and a NUL. */
static char *read_all(const char *name)
{
    FILE *f = strcmp(name, "-") ? fopen(name, "rb") : stdin;
    size_t room = 1 << 16, used = 0, n;
    char *text = (char *)malloc(room);
    if (!f) perror(name);
    while (f && text && (n = fread(text + used, 1, room - used - 1, f)) > 0)
        if ((used += n) + 1 == room) text = (char *)realloc(text, room *= 2);
    if (text) text[used] = 0;
    if (f && text && (ferror(f) || strlen(text) != used))
        fprintf(stderr, "generate: %s is not a text: name another --prompt-file\n", name), free(text), text = NULL;
    if (f && f != stdin) fclose(f);
    if (!f) free(text), text = NULL;
    while (text && used && text[used - 1] == '\n') text[--used] = 0; /* an editor's line end is not part of a prompt */
    return text;
}

int main(int argc, char **argv)
{
    dt_recipe given = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_generation how = dt_generation_default();
    dt_trainer *g = NULL;
    command c;
    char *prompt = NULL;
    dt_comm *ranks = NULL;
    int speaks;
    dt_result r;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") && (i + 1 == argc || strcmp(argv[i + 1], "all")))
            return fputs(usage, stdout) < 0 || fputs(help, stdout) < 0;
    if (dt_comm_open(&ranks, &argc, &argv)) return dt_fail("generate");
    speaks = dt_comm_rank(ranks) == 0;
    dt_comm_close(&ranks);
    if (!read_command(&argc, argv, &c)) return 2;
    if (dt_args(&argc, &argv, &given, &layout)) return dt_fail("generate");
    if (!read_words(argc, argv, &c, layout.checkpoint.place)) return 2;
    if (c.eval ? !given.data : !c.prompt == !c.prompt_file) {
        fprintf(stderr, "generate: %s\n",
                c.eval ? "eval needs --data FILE" : "give one of --prompt TEXT and --prompt-file FILE");
        return 2;
    }
    if (c.path == c.otherwise && speaks) fprintf(stderr, "generate: using %s\n", c.path);
    if (!c.eval && !(prompt = c.prompt ? strdup(c.prompt) : read_all(c.prompt_file))) return 1;
    how.sampling = layout.output.sampling, how.sampling.seed = c.seed, how.bytes = c.bytes;
    if (c.stop[0]) how.stop = c.stop;
    r = dt_predictor_open(&g, c.path, NULL, &layout);
    if (!r) r = c.eval ? generate_loss(g, given.data, speaks) : generate_text(g, prompt, how, c.samples, speaks);
    dt_trainer_close(&g);
    if (!r && (fflush(stdout) || ferror(stdout))) r = dt_error(DT_E_FILE, "cannot write the output: is the disk full?");
    free(prompt);
    return r ? dt_fail("generate") : 0;
}
