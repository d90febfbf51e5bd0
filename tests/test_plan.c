/* test_plan.c: a plan is a function of recipe, layout, number of ranks and rank. Ranks of 60 drawn layouts (DT_FULL: 240)
 * execute the instructions, send the bytes (without those of experts' tokens) and have the rows of memory of plans that
 * another process opens; the engine executes what is in the plan and nothing else; plans of 1,024 ranks open without a
 * system call; refusals are the trainer's.
 *
 *     cc -O2 -I.. test_plan.c -lm -lpthread && ./a.out */
#include <stdint.h>
#include <stdlib.h>
#ifdef __linux__
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#endif
/* The allocator: malloc, or a slice of `arena` when there is one, because malloc may call the system. The 64 bytes before
 * an allocation have its size. */
static char *arena;
static size_t used;
void *test_malloc(size_t bytes)
{
    char *p = arena ? arena + used : (char *)malloc(bytes + 64);
    if (!p) return NULL;
    if (arena) used += (bytes + 127) / 64 * 64;
    *(size_t *)(void *)p = bytes;
    return p + 64;
}
void test_free(void *p)
{
    if (!arena && p) free((char *)p - 64);
}
#define DT_MALLOC(size) test_malloc(size)
#define DT_FREE(p)      test_free(p)
#ifndef DT_COMPILER
#define DT_COMPILER
#endif
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/dry_run.h"
#include "tap.h"

enum { REFUSED = 12, VOCABULARY = 60, LENGTH = 1000 };

#include "tokens.h"

typedef struct job {
    dt_recipe recipe;
    dt_layout layout;
    dt_source source;
    dt_probe dry_run;
} job;

static dt_result job_of(job *j, int *argc, char ***argv)
{
    dt_result e;
    memset(j, 0, sizeof *j);
    j->recipe = dt_recipe_default(), j->layout = dt_layout_default();
    j->recipe.model = dt_model_gpt2("nano");
    j->recipe.model.layers = 5, j->recipe.model.heads = 4, j->recipe.model.width = 32;
    j->recipe.model.vocabulary = VOCABULARY;
    j->recipe.batch = 16, j->recipe.sequence = 16, j->recipe.data_shards = 4;
    j->recipe.tensor_shards = j->recipe.context_shards = 2, j->recipe.warmup = 0;
    j->layout.threads = 1, j->layout.output.quiet = 1, j->layout.output.sample_length = 0, j->layout.overlap = DT_OVERLAP_OFF;
    dt_dry_run_attach(&j->layout, &j->dry_run);
    e = dt_args(argc, argv, &j->recipe, &j->layout);
    j->source.fetch = fetch, j->source.user = &j->recipe.sequence;
    j->source.samples[DT_TRAIN] = 64;
    j->source.inputs = j->source.targets = j->recipe.sequence;
    j->source.input_type = j->source.target_type = DT_I32;
    j->recipe.source = &j->source;
    return e;
}

/* A line about a plan: hashes of its instructions and rows, and the bytes that are sent. */
static void say_plan(char *line, const dt_plan *p, int rank, int64_t sent)
{
    char hash[2][65];
    int64_t count, rows;
    const dt_instr *list = dt_plan_program(p, &count);
    const dt_row *row = dt_plan_memory(p, &rows);
    dt__sha256 h;
    dt__sha256_begin(&h);
    dt__sha256_add(&h, list, count * (int64_t)sizeof *list);
    dt__sha256_end(&h, hash[0]);
    dt__sha256_begin(&h);
    for (int64_t i = 0; i < rows; i++) {
        dt__sha256_add(&h, row[i].name, (int64_t)strlen(row[i].name));
        dt__sha256_add(&h, &row[i].bytes, 2 * (int64_t)sizeof row[i].bytes + 2 * (int64_t)sizeof row[i].id);
    }
    dt__sha256_end(&h, hash[1]);
    snprintf(line, LENGTH, "rank %d: %lld instructions %.16s, %lld rows %.16s, %lld bytes sent", rank, (long long)count, hash[0], (long long)rows, hash[1],
             (long long)sent);
}

/* Without what the work of segments sends along the data axis: the tokens of experts, whose number depends on routing. */
static int64_t sent_by(const dt_instr *list, int64_t count)
{
    int64_t sent = 0;
    for (int64_t i = 0; i < count; i++)
        for (int axis = 0; axis < DT_AXES; axis++) sent += axis || !dt__is_work(&list[i]) ? list[i].sent[axis] : 0;
    return sent;
}

static int64_t sent_to_all(const dt_trainer *t)
{
    int64_t sent = 0;
    for (int p = 0; p < dt_comm_size(t->comm); p++) sent += dt_comm_sent(t->comm, p);
    return sent;
}

/* The exchange of experts' tokens, and the bytes that this rank sent in it. */
static dt__peers trade;
static dt_comm *traders;
static int64_t traded;
static void exchange(void *user, float *to, const int32_t *take, const float *from, const int32_t *give, int64_t bins, int64_t width)
{
    int ranks = dt_comm_size(traders), rank = dt_comm_rank(traders);
    traded += 4 * width * (give[ranks * bins] - give[(rank + 1) * bins] + give[rank * bins]);
    trade.exchange(user, to, take, from, give, bins, width);
}

/* Rows that the engine has allocated with another size than the plan's, of those that no other rank reads. */
static int misallocated(dt_trainer *t)
{
    int64_t count;
    int bad = 0;
    const dt_row *row = dt_plan_memory(dt_trainer_plan(t), &count);
    for (int64_t i = 0; i < count; i++) {
        char *memory, *raw; /* dt__alloc notes before its memory what the allocator gave, with room for that and to align */
        if (dt__row_readers(&t->e, &row[i])) continue;
        memcpy(&memory, dt__row_at(&t->e, &row[i]), sizeof memory);
        memcpy(&raw, memory - sizeof raw, sizeof raw);
        bad += *(size_t *)(void *)(raw - 64) != (size_t)dt__max(1, row[i].most) + 64 + sizeof raw;
    }
    return bad;
}

/* A rank: opens a trainer, makes a step to have samples, and one more of which it says what it did. */
static int run(int argc, char **argv)
{
    job j;
    dt_trainer *t = NULL;
    dt_step_info info = dt_step_info_zero();
    char line[LENGTH];
    int64_t count = 0, before = 0;
    const dt_instr *list = NULL;
    double last = 0.0;
    int late = 0, missed = 0;
    dt_result e = dt_launch(&argc, &argv);
    if (!e) e = job_of(&j, &argc, &argv);
    if (!e) e = dt_trainer_open(&t, &j.recipe, &j.layout);
    if (!e) e = dt_trainer_step(t, &info);
    if (!e) list = dt_plan_program(dt_trainer_plan(t), &count);
    if (!e) e = dt__engine_wait(&t->e); /* its thread reads `when`, too */
    if (!e) t->e.when = (double *)calloc((size_t)(2 * count), sizeof *t->e.when);
    if (!e) e = dt_barrier(t->comm);
    if (!e) before = sent_to_all(t), traders = t->e.expert, trade = t->e.env.peers, t->e.env.peers.exchange = exchange;
    if (!e) e = dt__engine_step(&t->e, dt__trainer_load, t);
    if (!e) e = dt__engine_wait(&t->e);
    for (int64_t i = 0; i < count && !e; i++) { /* all were executed, those of a stream in order */
        missed += !(t->e.when[2 * i] > 0.0) || t->e.when[2 * i + 1] < t->e.when[2 * i];
        if (list[i].stream) continue;
        late += t->e.when[2 * i] < last;
        last = t->e.when[2 * i + 1];
    }
    if (!e) say_plan(line, dt_trainer_plan(t), dt_comm_rank(t->comm), sent_to_all(t) - before - traded);
    if (!e) printf("%s%s\n", line, missed || late ? ", not all executed in order" : misallocated(t) ? ", rows of another size" : ""), fflush(stdout);
    if (t) free(t->e.when), t->e.when = NULL;
    dt_trainer_close(&t);
    return e ? dt_fail("run") : 0;
}

static uint64_t state = 7;
static int draw(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

/* Options of a layout, and its number of ranks. */
static int drawn(char *line)
{
    static const char *const pipeline[] = {"1f1b", "gpipe", "interleaved", "zero-bubble"}, *const recompute[] = {"none", "selective", "full"};
    int tp = 1 + draw(2), cp = 1 + draw(2), pp = 1 + draw(3), dp = 1 + draw(4), zero = draw(4), kind = draw(4), full = draw(3), experts = !draw(3);
    char shared[40] = "";
    while (tp * cp * pp * dp > 8) dp > 1 ? dp-- : pp > 1 ? pp-- : cp > 1 ? cp-- : tp--;
    if (experts) snprintf(shared, sizeof shared, " --experts 4 --ep %d", 1 << draw(3));
    snprintf(line, LENGTH, "--tp %d --cp %d --pp %d --zero %d --pipeline %s --recompute %s --bucket %d --micro-batch %d --accumulation %s --overlap %s --order %s%s%s%s%s%s",
             tp, cp, pp, zero, pipeline[kind], recompute[full], 1000 << draw(8), 4 << draw(3), draw(2) ? "each" : "shard", draw(2) ? "on" : "off",
             draw(2) ? "DPT" : "TPD", tp > 1 && draw(2) ? " --sequence-parallel" : "", full == 2 && draw(2) ? " --offload" : "",
             zero && dp == 4 && draw(2) ? " --zero-group 2" : "", draw(3) ? "" : " --ema 0.9 --evaluate-ema --optimizer lion", shared);
    return tp * cp * pp * dp;
}

/* Options in a line as arguments. */
static int split(char *line, char **argv)
{
    int argc = 0;
    argv[argc++] = line;
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    argv[argc] = NULL;
    return argc;
}

/* Does what the ranks say agree with plans that are opened here? */
static int agrees(const char *self, const char *options, int ranks)
{
    char command[3 * LENGTH], words[LENGTH], said[LENGTH], want[8][LENGTH], *argv[64], **at = argv;
    int seen = 0, good = 1, argc;
    job j;
    FILE *f;
    snprintf(words, sizeof words, "%s", options);
    argc = split(words, argv);
    if (job_of(&j, &argc, &at)) tap_bail("%s", dt_last_error());
    for (int rank = 0; rank < ranks; rank++) {
        dt_plan *p;
        int64_t count = 0;
        const dt_instr *list;
        if (dt_plan_open(&p, &j.recipe, &j.layout, ranks, rank)) return -1;
        list = dt_plan_program(p, &count);
        say_plan(want[rank], p, rank, sent_by(list, count));
        dt_plan_close(&p);
    }
    snprintf(command, sizeof command, "'%s' run --ranks %d %s 2>&1", self, ranks, options);
    f = popen(command, "r");
    while (f && fgets(said, sizeof said, f)) {
        int rank = -1;
        said[strcspn(said, "\n")] = 0;
        if (sscanf(said, "rank %d:", &rank) == 1 && rank >= 0 && rank < ranks && !strcmp(said, want[rank])) seen++;
        else good = 0, tap_note("%s\n    %s", said, rank >= 0 && rank < ranks ? want[rank] : ""), tap_note("--ranks %d %s", ranks, options);
    }
    if (f && pclose(f)) good = 0;
    return good && seen == ranks;
}

/* Does a trainer refuse what a plan refuses, with the same sentence? */
static int refuses(const char *self, const char *options, int ranks)
{
    char command[3 * LENGTH], said[LENGTH] = "", error[LENGTH];
    FILE *f;
    snprintf(error, sizeof error, "run: %s\n", dt_last_error());
    snprintf(command, sizeof command, "'%s' run --ranks %d %s 2>&1", self, ranks, options);
    f = popen(command, "r");
    if (f && !fgets(said, sizeof said, f)) *said = 0;
    if (f) (void)pclose(f);
    if (strcmp(said, error)) tap_note("%s    %s", said, error);
    return !strcmp(said, error);
}

static void check_layouts(const char *self)
{
    static const char *const bad[] = {"--tp 3", "--pp 9", "--cp 2 --tp 4", "--zero-group 2", "--ep 2", "--sequence-parallel", "--offload",
                                      "--pipeline zero-bubble --recompute full", "--batch 6", "--micro-batch 3", "--order PT", "--context-shards 16"};
    int layouts = getenv("DT_FULL") ? 240 : 60, done = 0, good = 0, refused = 0, same = 0, experts = 0;
    char options[LENGTH];
    while (done < layouts) {
        int ranks = drawn(options), fits = agrees(self, options, ranks);
        if (fits < 0 && refused < REFUSED) refused++, same += refuses(self, options, ranks);
        if (fits < 0) continue;
        done++, good += fits, experts += strstr(options, "--ep 2") || strstr(options, "--ep 4");
    }
    tap_ok(good == layouts, "in %d of %d drawn layouts ranks execute, send and allocate what plans of another process say", good, layouts);
    tap_ok(experts > layouts / 20, "%d of them share experts among ranks", experts);
    tap_ok(same == refused, "%d drawn layouts are refused by plan and trainer with one sentence", refused);
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        int ranks = i < 4 ? 4 : 2, fits = agrees(self, bad[i], ranks);
        tap_ok(fits == -1 && refuses(self, bad[i], ranks), "%s on %d ranks: %s", bad[i], ranks, dt_last_error());
    }
}

/* --dry-run prints what the plan says of any rank of any number, and no rank runs. */
static void check_printed(const char *self)
{
    char command[2 * LENGTH], line[LENGTH];
    int lines = 0, rank = -1, ranks = 0, headings = 0, rc;
    FILE *f;
    snprintf(command, sizeof command, "'%s' run --tp 2 --pp 2 --zero 1 --dry-run 37:64 --data-shards 16 2>&1", self);
    f = popen(command, "r");
    while (f && fgets(line, sizeof line, f)) {
        lines++;
        headings += !strncmp(line, "memory   ", 9) || strstr(line, "# stream  after  instruction");
        if (strstr(line, " of 64")) (void)sscanf(line, "rank %d of %d, data 9 of 16, pipeline 0 of 2, tensor 1 of 2", &rank, &ranks);
    }
    rc = f ? pclose(f) : -1;
    tap_ok(rank == 37 && ranks == 64 && headings == 2 && lines > 20 && !rc, "--dry-run 37:64 prints %d lines and ends well", lines);
    snprintf(command, sizeof command, "'%s' run --dry-run 8 2>&1", self);
    f = popen(command, "r");
    if (!f || !fgets(line, sizeof line, f)) *line = 0;
    rc = f ? pclose(f) : 0;
    tap_ok(rc && strstr(line, "it is RANK:RANKS"), "--dry-run 8: %s", line);
}

/* ---- the engine executes what is in the plan ---- */

static dt_trainer *open_alone(job *j)
{
    char word[] = "test", *argv[] = {word, NULL}, **at = argv;
    int argc = 1;
    dt_trainer *t = NULL;
    if (job_of(j, &argc, &at)) tap_bail("%s", dt_last_error());
    if (dt_trainer_open(&t, &j->recipe, &j->layout)) tap_bail("%s", dt_last_error());
    return t;
}

/* The loss and the norm of a step, with instructions of which `how` leaves out or exchanges some. Are weights new? */
static int step(int how, float *loss, float *norm)
{
    job j;
    dt_trainer *t = open_alone(&j);
    dt_step_info info = dt_step_info_zero();
    dt_instr *list = t->e.p.program.list, kept;
    int32_t k = 0, last = t->e.p.program.count - 1;
    float *before = (float *)malloc(4 * (size_t)t->e.p.store.param_floats);
    int changed;
    memcpy(before, t->e.params, 4 * (size_t)t->e.p.store.param_floats);
    if (how == 1) list[last].op = DT_LOAD, list[last].shard = list[last].micro = 0; /* no UPDATE */
    if (how == 2) { /* no FOLD of the last bucket */
        for (k = last; list[k].op != DT_FOLD;) k--;
        memmove(list + k, list + k + 1, (size_t)(last - k) * sizeof *list);
        t->e.p.program.count--;
    }
    if (how == 3) { /* the first two segments in the other order */
        while (list[k].op != DT_FORWARD) k++;
        kept = list[k], list[k] = list[k + 1], list[k + 1] = kept;
    }
    if (dt_trainer_step(t, &info)) tap_bail("%s", dt_last_error());
    *loss = info.loss, *norm = info.norm;
    changed = memcmp(before, t->e.params, 4 * (size_t)t->e.p.store.param_floats) != 0;
    free(before);
    dt_trainer_close(&t);
    return changed;
}

static void check_executed(void)
{
    float loss[4], norm[4];
    int changed[4];
    for (int how = 0; how < 4; how++) changed[how] = step(how, &loss[how], &norm[how]);
    tap_ok(changed[0] && !changed[1] && loss[1] == loss[0], "without the instruction UPDATE a step has its loss and changes no weight");
    tap_ok(changed[2] && loss[2] == loss[0] && norm[2] != norm[0], "without a FOLD the loss is the same and the gradient another one");
    tap_ok(changed[3] && loss[3] != loss[0], "two segments in the other order: another loss");
}

/* ---- what groups of the compiler compute ---- */

static double flops_of(int mode, const char *passes)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_plan *p = NULL;
    const dt_instr *list;
    double sum = 0.0;
    int64_t count = 0;
    recipe.model = dt_model_gpt2("nano");
    recipe.model.vocabulary = 9000, recipe.sequence = 64, recipe.batch = 8;
    layout.compile.mode = mode, layout.compile.passes = passes;
    if (dt_plan_open(&p, &recipe, &layout, 1, 0)) tap_bail("%s", dt_last_error());
    list = dt_plan_program(p, &count);
    for (int64_t i = 0; i < count; i++) sum += list[i].flops;
    dt_plan_close(&p);
    return sum;
}
static void check_flops(void)
{
    double plain = flops_of(DT_COMPILE_OFF, NULL), fused = flops_of(DT_COMPILE_ON, "-logits"), blocks = flops_of(DT_COMPILE_ON, NULL);
    double head = 2.0 * 8 * 64 * 9000 * 64;
    tap_ok(plain > 3.0 * head && fused == plain, "groups have the FLOPs of their members: %.0f and %.0f", fused, plain);
    tap_ok(blocks == plain + head, "logits by blocks are one more product of the head: %.0f and %.0f", blocks, plain + head);
}

/* ---- plans of many ranks ---- */

static void check_many(void)
{
#if defined(__linux__) && !defined(__SANITIZE_THREAD__) /* whose own thread would outlive the child's */
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    pid_t child;
    int status = 1;
    recipe.model = dt_model_gpt2("124M");
    recipe.model.vocabulary = 50257, recipe.sequence = 1024, recipe.batch = 512, recipe.data_shards = 64, recipe.micro_batch = 128;
    recipe.tensor_shards = 4;
    layout.tp = 4, layout.pp = 4, layout.zero = 1;
    fflush(stdout);
    child = fork();
    if (!child) {
        int64_t count = 0, sent = 0;
        arena = (char *)mmap(NULL, (size_t)1 << 32, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena == MAP_FAILED || prctl(PR_SET_SECCOMP, 1)) _exit(3); /* from here on a system call but write kills */
        for (int rank = 0; rank < 1024; rank += rank < 1008 ? 63 : 1) {
            dt_plan *p = NULL;
            const dt_instr *list;
            used = 0;
            if (dt_plan_open(&p, &recipe, &layout, 1024, rank)) syscall(SYS_exit, 4);
            list = dt_plan_program(p, &count);
            sent += sent_by(list, count) > 0;
        }
        syscall(SYS_exit, sent == 32 ? 0 : 5);
    }
    if (child > 0) (void)waitpid(child, &status, 0);
    tap_ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "32 plans of 1,024 ranks of the 124M model open without a system call (%d)", status);
#else
    tap_note("skipped: seccomp is Linux's, and of processes of one thread");
#endif
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "run")) return run(argc, argv);
    check_many();
    check_flops();
    check_executed();
    check_printed(argv[0]);
    check_layouts(argv[0]);
    return tap_done();
}
