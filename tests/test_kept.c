/* Checkpoints that an earlier version wrote: a run resumed from them, in the layout of then and in others, ends with the
 * hash of the run that nothing disturbed. tests/checkpoints holds them, one directory per recipe, with the hashes in
 * hash.txt and the tokenizer of one recipe. All were written after step 2 of 4 by the header of commit dc2f1cc
 * (0.1.0, manifests of version 2), by this program:
 *
 *     mkdir -p build/old && git show dc2f1cc:dtrain.h >build/old/dtrain.h
 *     cc -std=gnu11 -O1 -DMAKE -Ibuild/old -Itests tests/test_kept.c -o build/old/make -lm -lpthread
 *     build/old/make tests/checkpoints
 *
 * Without arguments prints TAP. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tap.h"
#include <sys/stat.h>
#include <sys/wait.h>

enum { STEPS = 4, STOP = 2, LENGTH = 16, VOCABULARY = 31 };

/* ---- recipes ---- */

typedef struct kept {
    const char *name;      /* recipe and directory */
    const char *layout;    /* that wrote it */
    const char *others[3]; /* others, to resume in */
} kept;
static const kept all[] = {
    {"full", "--ranks 1 --checkpoint-kind full", {"--ranks 2", "--ranks 2 --pp 2", "--ranks 2 --zero 3"}},
    {"sharded", "--ranks 2 --zero 1 --checkpoint-kind sharded", {"--ranks 1", "--ranks 3 --zero 1", "--ranks 4 --zero 2"}},
    {"zero3", "--ranks 4 --zero 3 --checkpoint-kind sharded", {"--ranks 1", "--ranks 2 --pp 2 --zero 3", NULL}},
    {"tensor", "--ranks 4 --tp 2 --pp 2 --checkpoint-kind sharded", {"--ranks 1", "--ranks 2 --zero 3", NULL}},
    {"context", "--ranks 2 --cp 2 --checkpoint-kind full", {"--ranks 1", "--ranks 2", NULL}},
    {"bf16", "--ranks 2 --checkpoint-kind sharded", {"--ranks 1", "--ranks 2 --pp 2", NULL}},
    {"fp16", "--ranks 2 --zero 2 --checkpoint-kind full", {"--ranks 1", "--ranks 2 --pp 2", NULL}},
    {"experts", "--ranks 2 --ep 2 --checkpoint-kind sharded", {"--ranks 1", "--ranks 4 --zero 3", NULL}},
    {"segments", "--ranks 2 --zero 1 --checkpoint-kind sharded", {"--ranks 1", "--ranks 2 --pp 2", NULL}},
    {"text", "--ranks 1 --checkpoint-kind full", {"--ranks 2", NULL, NULL}},
};
enum { RECIPES = (int)(sizeof all / sizeof *all) };

static dt_result numbers(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    (void)user, (void)split;
    for (int i = 0; i < LENGTH; i++) {
        ((int32_t *)input)[i] = (int32_t)((sample * 7 + i * 5) % VOCABULARY);
        ((int32_t *)target)[i] = (int32_t)((sample * 7 + (i + 1) * 5) % VOCABULARY);
    }
    return DT_OK;
}
static const dt_source source = {NULL, {64, 0}, LENGTH, LENGTH, DT_I32, DT_I32, numbers};

static dt_tensor first_segment(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_embed(g, dt_param(g, "table", dt_shape2(VOCABULARY, 16), DT_INIT_NORMAL, 0.02f), x);
}
static dt_tensor middle_segment(dt_graph *g, dt_tensor x, const void *user)
{
    dt_tensor y = dt_gelu(g, dt_linear_with(g, x, "up", 24, 0.02f, DT_COLUMNS));
    (void)user;
    return dt_add(g, x, dt_linear_with(g, y, "down", 16, 0.02f, DT_ROWS));
}
static dt_tensor last_segment(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_cross_entropy(g, dt_linear(g, x, "head", VOCABULARY), dt_targets(g), 0.0f);
}
static const dt_segment own[] = {{"first", first_segment, NULL}, {"middle", middle_segment, NULL},
                                 {"last", last_segment, NULL}};

static int is(const char *name, const char *recipe) { return !strcmp(name, recipe); }

/* text and tokenizer: files for the recipe "text". */
static dt_recipe recipe_of(const char *name, const char *text, const char *tokenizer)
{
    dt_recipe r = dt_recipe_default();
    r.model = is(name, "sharded") || is(name, "context") ? dt_model_llama("llama-nano") : dt_model_gpt2("nano");
    r.model.layers = 1, r.model.width = 16, r.model.heads = 2, r.model.kv_heads = 0, r.model.hidden = 0;
    r.model.vocabulary = VOCABULARY;
    r.source = &source, r.sequence = LENGTH;
    r.steps = STEPS, r.batch = 8, r.data_shards = 4, r.warmup = 3, r.learning_rate = 1e-2f;
    if (is(name, "full")) r.dropout = 0.1f, r.ema = 0.5f;
    if (is(name, "sharded")) r.optimizer = DT_LION, r.model.tied = 1;
    if (is(name, "tensor")) r.tensor_shards = 2, r.optimizer = DT_SGD, r.momentum = 0.9f;
    if (is(name, "context")) r.context_shards = 2, r.optimizer = DT_ADAM;
    if (is(name, "bf16")) r.precision = DT_PRECISION_BF16;
    if (is(name, "fp16")) r.precision = DT_PRECISION_FP16;
    if (is(name, "experts")) r.model.experts = 4, r.model.active = 2, r.micro_batch = 8;
    if (is(name, "segments")) r.model = dt_model_segments(own, 3, VOCABULARY), r.tensor_shards = 2;
    if (is(name, "text")) r.source = NULL, r.model.vocabulary = 0, r.data = text, r.tokenizer = tokenizer, r.validation = 0;
    return r;
}

/* ---- a run: recipe, text, tokenizer, last step, then options of the layout ---- */

static int train(int argc, char **argv)
{
    dt_recipe recipe;
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    int64_t last;
    dt_result r = dt_launch(&argc, &argv);
    recipe = recipe_of(argv[1], argv[2], argv[3]), last = atoi(argv[4]);
    layout.threads = 1, layout.output.quiet = 1, layout.output.sample_length = 0;
    if (!r) r = dt_args(&argc, &argv, &recipe, &layout);
    if (!r) r = dt_trainer_open(&t, &recipe, &layout);
    while (!r && info.step < last) r = dt_trainer_step(t, &info);
    if (!r && last < STEPS) r = dt_trainer_save(t);
    if (!r && *dt_trainer_hash(t) && dt_trainer_is_root(t)) printf("%s\n", dt_trainer_hash(t));
    dt_trainer_close(&t);
    return r ? dt_fail("test_kept") : 0;
}

/* Runs this program; the hash that it prints, or "". */
static const char *hash_of(const char *name, const char *folder, const char *tokenizer, int last, const char *layout)
{
    static char line[2000], hash[80];
    FILE *f;
    snprintf(line, sizeof line, "/proc/%d/exe %s %s/words %s %d %s%s", (int)getpid(), name, folder, tokenizer, last, layout,
             strstr(getenv("DT_SANITIZE") ? getenv("DT_SANITIZE") : "", "thread") ? " --launch threads" : "");
    *hash = 0;
    f = popen(line, "r");
    if (f && !fgets(hash, sizeof hash, f)) *hash = 0;
    if (f && pclose(f)) *hash = 0;
    hash[strcspn(hash, "\n")] = 0;
    return hash;
}

static void write_text(const char *folder)
{
    static const char *const word[] = {"a checkpoint ", "that was written ", "by an older version ", "is read ",
                                       "by the newer one, ", "bit for bit. "};
    char path[600];
    uint32_t state = 1;
    FILE *f;
    snprintf(path, sizeof path, "%s/words", folder);
    if ((f = fopen(path, "w")) == NULL) tap_bail("cannot write %s", path);
    for (int i = 0; i < 400; i++) fputs(word[((state = state * 1664525 + 1013904223) >> 16) % 6], f);
    if (fclose(f)) tap_bail("cannot write %s", path);
}

/* ---- making them ---- */

#ifdef MAKE
static int make(const char *folder)
{
    dt_tokenizer *t = NULL;
    char path[600], options[700];
    FILE *list;
    mkdir(folder, 0777);
    write_text(folder);
    snprintf(path, sizeof path, "%s/words", folder);
    if (dt_tokenizer_train(&t, path, 280, DT_PRETOKENS_GPT2, NULL) || dt_tokenizer_save(t, folder)) return dt_fail("make");
    dt_tokenizer_close(&t);
    snprintf(path, sizeof path, "%s/hash.txt", folder);
    if ((list = fopen(path, "w")) == NULL) return 1;
    for (int i = 0; i < RECIPES; i++) {
        fprintf(list, "%s %s\n", all[i].name, hash_of(all[i].name, folder, folder, STEPS, "--ranks 1"));
        snprintf(options, sizeof options, "%s --checkpoint %s/%s", all[i].layout, folder, all[i].name);
        if (!*hash_of(all[i].name, folder, folder, STOP, options)) return 1;
    }
    snprintf(path, sizeof path, "%s/words", folder);
    return fclose(list) || unlink(path);
}
#endif

/* ---- resuming from them ---- */

static char scratch[] = "/tmp/dtrain-kept-XXXXXX";

/* Resumes in a layout from a copy. */
static void resume(const kept *k, const char *places, const char *layout, const char *hash)
{
    char line[1200];
    const char *got;
    if (!layout) return;
    snprintf(line, sizeof line, "rm -rf %s/%s && cp -r %s/%s %s", scratch, k->name, places, k->name, scratch);
    if (system(line)) tap_bail("cannot copy: %s", line);
    snprintf(line, sizeof line, "%s --resume only --checkpoint %s/%s", layout, scratch, k->name);
    got = hash_of(k->name, scratch, places, STEPS, line);
    if (!tap_ok(is(got, hash), "%s: resumed with %s", k->name, layout)) tap_note("%s instead of %s", got, hash);
}

/* Every file is whole, and the recipe is what it was. */
static void look(const kept *k, const char *places)
{
    dt_recipe now = recipe_of(k->name, NULL, NULL);
    dt_checkpoint *c = NULL;
    char path[600];
    dt_result r;
    snprintf(path, sizeof path, "%s/%s", places, k->name);
    r = dt_checkpoint_open(&c, path);
    if (!r) r = dt_checkpoint_verify(c);
    if (!tap_ok(!r && c->step == STOP && c->recipe.steps == STEPS && c->recipe.optimizer == now.optimizer &&
                    c->recipe.tensor_shards == now.tensor_shards, "%s: opened, whole, of this recipe", k->name))
        tap_note("%s", dt_last_error());
    dt_checkpoint_close(&c);
}

int main(int argc, char **argv)
{
    const char *places = access("tests/checkpoints", F_OK) ? "checkpoints" : "tests/checkpoints";
    char path[600], name[20], hash[80];
    FILE *list;
    if (argc > 4) return train(argc, argv);
#ifdef MAKE
    if (argc > 1) return make(argv[1]);
#endif
    snprintf(path, sizeof path, "%s/hash.txt", places);
    if ((list = fopen(path, "r")) == NULL) tap_bail("cannot open %s", path);
    if (!mkdtemp(scratch)) tap_bail("no scratch directory");
    write_text(scratch);
    for (int i = 0; i < RECIPES; i++) {
        if (fscanf(list, "%19s %79s", name, hash) != 2 || !is(name, all[i].name)) tap_bail("%s: another order", path);
        look(&all[i], places);
        resume(&all[i], places, all[i].layout, hash);
        for (int k = 0; k < 3; k++) resume(&all[i], places, all[i].others[k], hash);
    }
    fclose(list);
    snprintf(path, sizeof path, "rm -rf %s", scratch);
    if (system(path)) tap_note("%s is left", scratch);
    return tap_done();
}
