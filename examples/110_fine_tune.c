/* 110_fine_tune: how do you train a model further from weights that somebody has published?
 *
 * What you learn
 *     - A published model is config.json and model.safetensors, with weights in bf16: 2 of a checkpoint's 12 bytes per
 *       weight. The optimizer's state is missing, so its moments begin at zero, and a warm-up keeps steps small.
 *     - dt_recipe_from reads the model, dt_recipe.weights names the file of its weights; the rest is an ordinary run.
 *     - From a base that knows the language, a few steps on a short text reach a loss that random weights do not.
 *     - A model forgets what it no longer sees. A smaller rate with a warm-up forgets less of the old text.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 110_fine_tune.c -o 110_fine_tune -lm -lpthread
 *     ./110_fine_tune
 *     ./110_fine_tune --ranks 2                  (up to 8)
 *
 * What it prints
 *     nats per token of new texts    steps   rate  notices   prose
 *     the base: prose                  200   0.01    3.224   1.127
 *     from the base: notices            40  0.003    0.737   1.565
 *         LOST: a old bell, across from the key
 *     at the base's rate, no warm-up    40   0.01    0.630   2.114
 *     from random weights: notices      40   0.01    1.601   2.456
 *     ok: 40 steps from the base reach 0.737 nats on notices, from random weights 1.601
 *
 * Predict first: what becomes of the loss on prose while the model learns notices, and which rate keeps more of it?
 * Exercise: give the tuned run 4 kB of prose as well (recipe.data is a list with commas). How do both losses change?
 *
 * Read on: 111_lora.c for a few numbers instead of all, 19_answers.c for questions, running.md for published models. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPECTED "60dc54a4f3cec494e5123ef3e5c40421fbc406aae04f0df8ba7863d2590022ab"
#define PUBLISHED "published/step-000000200"
enum { BASE, TUNED, FAST, SCRATCH, RUNS, LEARN = 200, TUNE = 40 };

static const struct run {
    const char *name, *data, *weights, *place;
    int64_t steps, warmup;
    float rate;
} runs[] = {{"the base: prose", "prose.txt", NULL, "base", LEARN, 20, 1e-2f},
            {"from the base: notices", "notices.txt", PUBLISHED, "tuned", TUNE, 10, 3e-3f},
            {"at the base's rate, no warm-up", "notices.txt", PUBLISHED, "fast", TUNE, 1, 1e-2f},
            {"from random weights: notices", "notices.txt", NULL, "scratch", TUNE, 10, 1e-2f}};

/* Another kind of text, with words of prose.h. */
static dt_result notices(const char *path, int count, uint64_t seed)
{
    static const char form[] = "LOST: a $a $o, $i the $b. Ask $n!\n";
    FILE *f = fopen(path, "w");
    prose p;
    memset(&p, 0, sizeof p);
    for (p.seed = seed; f && count; count--, p.length = 0) {
        for (const char *c = form; *c; c++)
            if (*c == '$') prose_expand(&p, *++c);
            else p.text[p.length++] = *c;
        fwrite(p.text, 1, p.length, f);
    }
    return !f || fclose(f) ? dt_error(DT_E_FILE, "%s cannot be written: free space in /tmp", path) : DT_OK;
}

/* A folder with texts to learn from, and others of the same kinds to measure with. */
static dt_result prepare(const char *place)
{
    dt_result r = DT_OK;
    if (mkdir(place, 0700) || chdir(place)) r = dt_error(DT_E_FILE, "%s cannot be made: free space in /tmp", place);
    if (!r) r = prose_generate("prose.txt", 100000, 1);
    if (!r) r = prose_generate("new-prose.txt", 5000, 2);
    if (!r) r = notices("notices.txt", 200, 3);
    return r ? r : notices("new-notices.txt", 100, 4);
}

static dt_result train(const struct run *is, char hash[65])
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r = DT_OK;
    recipe.model = dt_model_llama("llama-nano"), recipe.sequence = 64;
    if (is->weights) r = dt_recipe_from(&recipe, is->weights); /* the model, its weights and its longest sequence */
    recipe.data = is->data, recipe.steps = is->steps, recipe.batch = 8, recipe.validation = 0;
    recipe.learning_rate = is->rate, recipe.warmup = is->warmup;
    layout.threads = 1, layout.output.quiet = 1, layout.checkpoint.place = is->place, layout.checkpoint.kind = DT_FULL;
    if (!r) r = dt_trainer_open(&t, &recipe, &layout);
    if (!r) r = dt_trainer_run(t, &info);
    if (!r) snprintf(hash, 65, "%s", dt_trainer_hash(t));
    dt_trainer_close(&t);
    return r;
}

static void append(void *user, const char *text, int64_t bytes) { strncat((char *)user, text, (size_t)bytes); }

/* The losses of both kinds of text, and a line that the model writes. */
static dt_result measure(const struct run *is, const char *path, float loss[2], int speaks)
{
    static const char *const end[] = {"\n", NULL};
    dt_generation how = dt_generation_default();
    char line[64] = "";
    dt_trainer *t = NULL;
    dt_result r = dt_predictor_open(&t, path, NULL, NULL);
    how.bytes = 60, how.stop = end, how.put = append, how.user = line;
    if (!r) r = dt_evaluate(t, "new-notices.txt", &loss[0], NULL, NULL);
    if (!r) r = dt_evaluate(t, "new-prose.txt", &loss[1], NULL, NULL);
    if (!r) r = dt_generate(t, "LOST:", &how, NULL);
    if (!r && speaks)
        printf("%-30s %5d %6g %8.3f %7.3f\n    LOST:%s\n", is->name, (int)is->steps, (double)is->rate, (double)loss[0],
               (double)loss[1], line);
    dt_trainer_close(&t);
    return r;
}

int main(int argc, char **argv)
{
    char place[64], line[80], hash[RUNS][65];
    float loss[RUNS][2], name = (float)getpid();
    dt_checkpoint *base = NULL;
    dt_comm *c = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    int root = !r && !dt_comm_rank(c);
    if (r) return dt_fail("110_fine_tune");
    if (argc > 1) return fprintf(stderr, "110_fine_tune: the option is --ranks N\n"), 2;
    r = dt_broadcast(c, &name, 1, 0); /* one folder for all ranks */
    snprintf(place, sizeof place, "/tmp/110_fine_tune.%.0f", (double)name);
    r = dt_comm_agree(c, !r && root ? prepare(place) : r);
    if (!r && chdir(place)) r = dt_error(DT_E_FILE, "%s is not there: run all ranks on one machine", place);
    if (!r && root) printf("nats per token of new texts    steps   rate  notices   prose\n");
    for (int i = 0; i < RUNS && !r; i++) {
        r = train(&runs[i], hash[i]);
        if (!r && root && i == BASE) r = dt_checkpoint_open(&base, "base");
        if (base) r = dt_checkpoint_convert(base, "published", DT_EXPORT_BF16); /* config.json, weights in bf16 */
        dt_checkpoint_close(&base);
        r = dt_comm_agree(c, r);
        if (!r) r = measure(&runs[i], i == BASE ? PUBLISHED : runs[i].place, loss[i], root);
    }
    dt_comm_close(&c);
    snprintf(line, sizeof line, "rm -rf %s", place);
    if (root && (chdir("/") || system(line))) fprintf(stderr, "%s stays\n", place);
    if (r || !root) return r ? dt_fail("110_fine_tune") : 0;
    printf("sha256 of the tuned model %s\n", hash[TUNED]);
    if (strcmp(hash[TUNED], EXPECTED) || loss[TUNED][0] > loss[SCRATCH][0] || loss[TUNED][1] > loss[FAST][1])
        return fprintf(stderr, "FAILED: another hash, expected " EXPECTED ", or another order of losses\n"), 1;
    printf("ok: %d steps from the base reach %.3f nats on notices, from random weights %.3f\n", TUNE,
           (double)loss[TUNED][0], (double)loss[SCRATCH][0]);
    return 0;
}
