/* Checkpoints without a trainer: what a trainer wrote in one kind, converted, is byte for byte what it writes in the
 * other; training goes on from it with the same hash; differences are found where they are; damage is refused. And
 * what trainers of any layout hold while they save and read a full one: less than its largest tensor; and a slow disk. */
#include <stdint.h>
#include <stdlib.h>

/* Bytes that are allocated now, and at most since the last look. */
enum { COUNTED_HEAD = 64 };
static int64_t alive_bytes, peak_bytes;
void *test_malloc(size_t size)
{
    char *p = (char *)malloc(size + COUNTED_HEAD);
    int64_t now;
    if (!p) return NULL;
    *(size_t *)(void *)p = size;
    now = __atomic_add_fetch(&alive_bytes, (int64_t)size, __ATOMIC_RELAXED);
    if (now > __atomic_load_n(&peak_bytes, __ATOMIC_RELAXED)) __atomic_store_n(&peak_bytes, now, __ATOMIC_RELAXED);
    return p + COUNTED_HEAD;
}
void test_free(void *p)
{
    if (!p) return;
    __atomic_sub_fetch(&alive_bytes, (int64_t) * (size_t *)(void *)((char *)p - COUNTED_HEAD), __ATOMIC_RELAXED);
    free((char *)p - COUNTED_HEAD);
}
#define DT_MALLOC(size) test_malloc(size)
#define DT_FREE(p)      test_free(p)
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tap.h"
#include <sys/syscall.h>

/* A disk that takes its time, in seconds of the environment's SLOW_DISK. */
int fsync(int fd)
{
    const char *slow = getenv("SLOW_DISK");
    if (slow) usleep((useconds_t)(1e6 * atof(slow)));
    return (int)syscall(SYS_fsync, fd);
}

enum { STEPS = 4, STOP = 2, LENGTH = 16 };

static char scratch[] = "/tmp/dtrain-convert-XXXXXX";
static dt_source source;

static dt_result numbers(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    (void)user, (void)split;
    for (int i = 0; i < LENGTH; i++) {
        ((int32_t *)input)[i] = (int32_t)((sample * 7 + i * 5) % 61);
        ((int32_t *)target)[i] = (int32_t)((sample * 7 + (i + 1) * 5) % 61);
    }
    return DT_OK;
}

static void source_of_numbers(void)
{
    memset(&source, 0, sizeof source);
    source.samples[DT_TRAIN] = 64;
    source.inputs = source.targets = LENGTH;
    source.input_type = source.target_type = DT_I32;
    source.fetch = numbers;
}

static const char *in(const char *name)
{
    static char path[4][PATH_MAX];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], PATH_MAX, "%s/%s", scratch, name);
    return path[turn];
}

/* Segments of the program's own: of their parameters no option and no config.json knows. */
static dt_tensor first_segment(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_embed(g, dt_param(g, "table", dt_shape2(61, 24), DT_INIT_NORMAL, 0.02f), x);
}
static dt_tensor middle_segment(dt_graph *g, dt_tensor x, const void *user)
{
    dt_moe_options moe = {.experts = 5, .active = 2, .width = 16, .gated = 1, .bias = 1};
    dt_tensor y = dt_gelu(g, dt_linear_with(g, x, "up", 48, 0.02f, DT_COLUMNS));
    (void)user;
    x = dt_add(g, x, dt_linear_with(g, y, "down", 24, 0.02f, DT_ROWS));
    return dt_add(g, x, dt_moe(g, x, "mixture of \"five\"", &moe));
}
static dt_tensor last_segment(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_cross_entropy(g, dt_linear(g, x, "head", 61), dt_targets(g), 0.0f);
}
static const dt_segment own[] = { { "first", first_segment, NULL }, { "middle", middle_segment, NULL },
                                  { "last", last_segment, NULL } };

/* A recipe by number: families, a model of its own, optimizers, shards of tensors that a vocabulary of 61 does not
 * divide into. */
static dt_recipe recipe_of(int which)
{
    dt_recipe r = dt_recipe_default();
    r.model = which == 0 ? dt_model_gpt2("nano") : dt_model_llama(which == 1 ? "llama-nano" : "llama3.2-1B");
    r.model.layers = 2, r.model.vocabulary = 61;
    if (which == 2) r.model.width = 64, r.model.heads = 4, r.model.kv_heads = 2, r.model.hidden = 96;
    if (which == 0) r.optimizer = DT_SGD, r.momentum = 0.9f;
    if (which == 1) r.optimizer = DT_LION, r.ema = 0.5f;
    if (which == 3) r.model = dt_model_segments(own, 3, 61), r.model.family = DT_LLAMA; /* means nothing here */
    r.tensor_shards = which == 2 ? 1 : 2;
    r.source = &source;
    r.steps = STEPS, r.batch = 4, r.data_shards = 2;
    return r;
}

static void okay(int pass, const char *name, const char *what)
{
    if (!tap_ok(pass, "%s: %s", name, what)) tap_note("%s", dt_last_error());
}

/* Trains until `last` from what is in the directory; the hash there. */
static const char *train(int which, const char *directory, int32_t kind, int64_t last)
{
    static char hash[65];
    dt_recipe recipe = recipe_of(which);
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r;
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0;
    layout.checkpoint.place = directory, layout.checkpoint.kind = kind;
    r = dt_trainer_open(&t, &recipe, &layout);
    while (!r && info.step < last) r = dt_trainer_step(t, &info);
    if (!r && last < STEPS) r = dt_trainer_save(t);
    if (r) tap_bail("%s", dt_last_error());
    snprintf(hash, sizeof hash, "%s", dt_trainer_hash(t));
    dt_trainer_close(&t);
    return hash;
}

static dt_result convert(const char *from, const char *to, dt_checkpoint_kind kind)
{
    dt_checkpoint *c = NULL;
    dt_result r = dt_checkpoint_open(&c, from);
    if (!r) r = dt_checkpoint_convert(c, to, kind);
    dt_checkpoint_close(&c);
    return r;
}

/* Have two directories of checkpoints the same files, but for the manifest? */
static int same_files(const char *a, const char *b)
{
    dt_checkpoint *x = NULL, *y = NULL;
    int same = !dt_checkpoint_open(&x, a) && !dt_checkpoint_open(&y, b) && !dt_checkpoint_verify(x) &&
               !dt_checkpoint_verify(y) && x->files == y->files;
    for (int64_t i = 0; same && i < x->files; i++) {
        const dt_checkpoint_entry *f = &x->file[i], *g = &y->file[i];
        same = !strcmp(f->name, g->name) && !strcmp(f->sha256, g->sha256) && f->bytes == g->bytes;
    }
    dt_checkpoint_close(&x);
    dt_checkpoint_close(&y);
    return same;
}

/* How many arrays of two checkpoints differ; *arrays: of how many. */
static int64_t differences(const char *a, const char *b, int64_t *arrays)
{
    dt_checkpoint *x = NULL, *y = NULL;
    int64_t count = 0;
    if (dt_checkpoint_open(&x, a) || dt_checkpoint_open(&y, b)) tap_bail("%s", dt_last_error());
    *arrays = x->arrays;
    for (int64_t i = 0; i < *arrays; i++) {
        const dt_checkpoint_entry *s = &x->array[i], *t = &y->array[i];
        int64_t n = dt_shape_count(s->shape);
        float *values = (float *)malloc(8 * (size_t)n);
        if (!values || strcmp(s->name, t->name) || dt_checkpoint_read(x, i, values) || dt_checkpoint_read(y, i, values + n))
            tap_bail("%s: %s", s->name, dt_last_error());
        count += memcmp(values, values + n, 4 * (size_t)n) != 0;
        free(values);
    }
    dt_checkpoint_close(&x);
    dt_checkpoint_close(&y);
    return count;
}

static void round_trip(int which)
{
    static const char *const names[] = { "GPT-2, SGD, 2 tensor shards", "Llama, 8-bit AdamW, an average, 2 tensor shards",
                                         "tied Llama, AdamW", "segments of its own" };
    char line[64], whole[65];
    int64_t arrays, differ;
    snprintf(line, sizeof line, "rm -rf %.40s/*", scratch);
    if (system(line)) tap_bail("cannot clean");
    snprintf(whole, sizeof whole, "%s", train(which, NULL, 0, STEPS));
    train(which, in("sharded"), DT_SHARDED, STOP);
    train(which, in("full"), DT_FULL, STOP);
    okay(!convert(in("sharded"), in("a"), DT_FULL) && same_files(in("a"), in("full")), names[which],
         "sharded to full, the bytes of the trainer");
    okay(!convert(in("full"), in("b"), DT_SHARDED) && same_files(in("b"), in("sharded")), names[which],
         "full to sharded, the bytes of the trainer");
    differ = differences(in("sharded"), in("full"), &arrays);
    tap_ok(!differ && arrays > 20 && arrays == (which == 3 ? 36 : arrays), "%s: no difference in %lld arrays", names[which], (long long)arrays);
    okay(!strcmp(train(which, in("a"), DT_FULL, STEPS), whole), names[which], "on from the full one, the same hash");
    okay(!strcmp(train(which, in("b"), DT_SHARDED, STEPS), whole), names[which], "on from the sharded one");
    differ = differences(in("b"), in("full"), &arrays);
    tap_ok(differ == arrays, "%s: after two more steps all arrays differ", names[which]);
}

static void refused(dt_result r, dt_result code, const char *words, const char *what)
{
    if (!tap_ok(r == code && strstr(dt_last_error(), words), "%s", what)) tap_note("%d: %s", (int)r, dt_last_error());
}

/* A bit of a file changes. */
static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    int c;
    if (!f || fseek(f, at, SEEK_SET) || (c = fgetc(f)) == EOF || fseek(f, at, SEEK_SET) || fputc(c ^ 1, f) == EOF || fclose(f))
        tap_bail("cannot change %s", path);
}

/* The arrays of a model of its own have the names, shapes and numbers of the trainer's parameters. */
/* The weights of a full checkpoint in bf16: each number is rounded, others load them, and no run resumes from them. */
static void exported(void)
{
    dt_recipe recipe = recipe_of(2);
    dt_layout layout = dt_layout_default();
    dt_parameter list = DT__ZERO;
    dt_checkpoint *c = NULL;
    dt_trainer *t = NULL;
    char path[300];
    uint16_t half;
    int64_t wrong = 0;
    float *both, back;
    train(2, in("own"), DT_SHARDED, STOP);
    okay(!convert(in("own"), in("whole"), DT_FULL) && !convert(in("own"), in("half"), DT_EXPORT_BF16), "bf16", "an export");
    if (dt_checkpoint_open(&c, in("own"))) tap_bail("%s", dt_last_error());
    list.name = "model.embed_tokens.weight", list.shape = c->array[0].shape;
    both = (float *)malloc(2 * (size_t)c->array[0].bytes);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/step-000000002/model.safetensors", in(i ? "half" : "whole"));
        list.values = both + i * dt_shape_count(list.shape);
        if (dt_parameters_load(path, &list, 1)) tap_bail("%s", dt_last_error());
    }
    for (int64_t i = 0, n = dt_shape_count(list.shape); i < n; i++) {
        dt__isa_table(0)->convert(DT_BF16, &half, DT_F32, both + i, 1);
        dt__isa_table(0)->convert(DT_F32, &back, DT_BF16, &half, 1);
        wrong += memcmp(&back, both + n + i, 4) != 0;
    }
    okay(!wrong, "bf16", "every number is the weight, rounded to nearest even");
    okay(access(in("half/step-000000002/config.json"), F_OK) == 0 && access(in("half/step-000000002/optimizer.safetensors"), F_OK) != 0,
         "bf16", "with config.json, and without the optimizer's state");
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0;
    recipe.weights = in("half/step-000000002");
    okay(!dt_trainer_open(&t, &recipe, &layout), "bf16", "weights to begin with");
    dt_trainer_close(&t);
    recipe.weights = NULL, layout.checkpoint.place = in("half"), layout.checkpoint.resume = DT_RESUME_ONLY;
    refused(dt_trainer_open(&t, &recipe, &layout), DT_E_DATA, "holds no intact checkpoint", "no run resumes from it");
    dt_trainer_close(&t);
    dt_checkpoint_close(&c);
    free(both);
}

static void own_arrays(void)
{
    dt_recipe recipe = recipe_of(3);
    dt_layout layout = dt_layout_default();
    dt_trainer *generator = NULL;
    dt_checkpoint *c = NULL;
    dt_trainer *t = NULL;
    const char *name;
    dt_shape shape;
    int64_t i = 0;
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0;
    layout.checkpoint.place = in("mine");
    if (dt_trainer_open(&t, &recipe, &layout) || dt_trainer_save(t) || dt_checkpoint_open(&c, in("mine")))
        tap_bail("%s", dt_last_error());
    for (; i < c->arrays && (name = dt_trainer_parameter_at(t, i, &shape)) != NULL; i++) {
        int64_t n = dt_shape_count(shape), held;
        float *a = (float *)malloc(8 * (size_t)n);
        okay(a && !strcmp(name, c->array[i].name) && dt__same_shape(&c->array[i].shape, &shape) &&
             !dt_checkpoint_read(c, i, a) && !dt_trainer_own(t, name, a + n, &held) && held == n &&
             !memcmp(a, a + n, 4 * (size_t)n), name, "has the numbers of the trainer");
        free(a);
    }
    tap_ok(i == 12, "%d parameters", (int)i);
    tap_ok(c->recipe.model.segment_count == 3 && !c->recipe.model.segments, "the recipe tells of three segments");
    dt_checkpoint_close(&c);
    dt_trainer_close(&t);
    refused(dt_predictor_open(&generator, in("mine"), NULL, NULL), DT_E_USAGE, "of custom segments", "no generator of it");
}

static void trouble(void)
{
    dt_checkpoint *c = NULL;
    int64_t arrays;
    float *values;
    train(0, in("one"), DT_SHARDED, STOP);
    train(2, in("two"), DT_SHARDED, STOP);
    if (dt_checkpoint_open(&c, in("one"))) tap_bail("%s", dt_last_error());
    arrays = c->arrays;
    values = (float *)malloc((size_t)c->array[0].bytes);
    refused(dt_checkpoint_read(c, arrays, values), DT_E_USAGE, "there is no array", "an array too far");
    refused(dt_checkpoint_convert(c, in("two"), DT_FULL), DT_E_USAGE, "is there already", "a step that is there");
    tap_ok(c->recipe.momentum == 0.9f && c->recipe.model.layers == 2 && !c->recipe.data, "the recipe");
    tap_ok(c->step == STOP && c->kind == DT_SHARDED, "step and kind");
    tap_ok(!strcmp(c->array[arrays - 1].name, "first.transformer.ln_f.bias"), "the last array is %s",
           c->array[arrays - 1].name);
    flip(in("one/step-000000002/shard-000.safetensors"), 100000);
    refused(dt_checkpoint_verify(c), DT_E_DATA, "shard-000.safetensors is damaged", "a flipped bit is found");
    refused(dt_checkpoint_convert(c, in("three"), DT_FULL), DT_E_DATA, "is damaged", "and not converted");
    tap_ok(access(in("three/step-000000002"), F_OK) != 0, "nothing was made of it");
    dt_checkpoint_close(&c);
    flip(in("two/step-000000002/manifest.json"), 100);
    refused(dt_checkpoint_open(&c, in("two")), DT_E_DATA, "SHA-256", "a changed manifest");
    refused(dt_checkpoint_open(&c, scratch), DT_E_FILE, "holds no checkpoint", "a directory without steps");
    tap_ok(!c, "no checkpoint after an error");
    free(values);
}

/* ---- what a full save and its reading hold ---- */

/* A Llama of one block, whose weights are cut, with 2 shards, and turned in the file. */
enum { WIDTH = 384, HIDDEN = 1024, LARGEST = 4 * WIDTH * HIDDEN };

/* One rank of a job: saves the first weights, reads them again, and says how many bytes more it held meanwhile. */
static int hold(int *argc, char ***argv)
{
    dt_recipe recipe = recipe_of(1);
    dt_layout layout = dt_layout_default();
    dt_trainer *t = NULL;
    int64_t before[3], held[3];
    dt_result r;
    recipe.model.layers = 1, recipe.model.width = WIDTH, recipe.model.hidden = HIDDEN;
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0, layout.checkpoint.kind = DT_FULL;
    r = dt_args(argc, argv, &recipe, &layout);
    if (!r) r = dt_trainer_open(&t, &recipe, &layout);
    for (int i = 0; i < 3 && !r; i++) {
        before[i] = peak_bytes = alive_bytes;
        if (i == 0) r = dt_trainer_save(t);
        if (i == 1) r = dt__trainer_resume(t);
        if (i == 2) t->hashed = -1, r = *dt_trainer_hash(t) ? DT_OK : DT_E_PEER;
        held[i] = peak_bytes - before[i];
    }
    if (r) return dt_fail("hold");
    printf("save %lld load %lld hash %lld %s\n", (long long)held[0], (long long)held[1], (long long)held[2], dt_trainer_hash(t));
    fflush(stdout);
    dt_trainer_close(&t);
    return 0;
}

/* All ranks of all layouts hold less than the largest tensor, and all layouts write the same files. */
static void bounds(const char *self)
{
    static const char *const layouts[] = {"--ranks 1", "--ranks 2 --tp 2", "--ranks 4 --tp 2 --zero 3", "--ranks 2 --zero 1",
                                          "--ranks 2 --pp 2"};
    char hash[65] = "";
    for (int i = 0; i < 5; i++) {
        char command[PATH_MAX], line[256], other[65];
        int ranks = 0, fine = 1;
        long long held[3], at_most = 0;
        FILE *f;
        snprintf(command, sizeof command, "%s hold --checkpoint %s %s", self, in(i ? "held" : "first"), layouts[i]);
        f = popen(command, "r");
        while (f && fgets(line, sizeof line, f)) {
            if (sscanf(line, "save %lld load %lld hash %lld %64s", &held[0], &held[1], &held[2], other) != 4) continue;
            if (!*hash) snprintf(hash, sizeof hash, "%s", other);
            fine = fine && !strcmp(hash, other);
            for (int k = 0; k < 3; k++) at_most = held[k] > at_most ? held[k] : at_most;
            ranks++;
        }
        if (!f || pclose(f)) fine = 0;
        tap_ok(fine && ranks == layouts[i][8] - '0' && at_most < LARGEST, "%s: %lld bytes are held to save, read or hash, the largest tensor has %d", layouts[i], at_most, (int)LARGEST);
        tap_ok(!i || same_files(in("first"), in("held")), "%s: the same files", layouts[i]);
        snprintf(line, sizeof line, "rm -rf %s", in("held"));
        if (system(line)) tap_bail("cannot clean");
    }
}

/* Ranks that wait for the one that writes see that it lives. */
static void slow_disk(const char *self)
{
    char command[PATH_MAX];
    for (int full = 0; full < 2; full++) {
        snprintf(command, sizeof command, "SLOW_DISK=1.5 %s hold --checkpoint %s --checkpoint-kind %s --ranks 2 --tp 2 --timeout 1 >/dev/null",
                 self, in("slow"), full ? "full" : "sharded");
        tap_ok(!system(command), "a disk that takes longer than --timeout for a %s save", full ? "full" : "sharded");
        snprintf(command, sizeof command, "rm -rf %s", in("slow"));
        if (system(command)) tap_bail("cannot clean");
    }
}

int main(int argc, char **argv)
{
    char line[64];
    if (dt_launch(&argc, &argv)) return dt_fail("start");
    if (argc > 1 && !strcmp(argv[1], "hold")) {
        source_of_numbers();
        argv[1] = argv[0], argc--, argv++;
        return hold(&argc, &argv);
    }
    if (!mkdtemp(scratch)) tap_bail("no scratch directory");
    source_of_numbers();
    for (int i = 0; i < 4; i++) round_trip(i);
    own_arrays();
    exported();
    trouble();
    bounds(argv[0]);
    slow_disk(argv[0]);
    snprintf(line, sizeof line, "rm -rf %.40s", scratch);
    return system(line) ? 1 : tap_done();
}
