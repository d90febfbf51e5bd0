/* A directory of checkpoints survives every failing or interrupted operation. Each file operation of a save, of a save of
 * a step that is there already, of retention, of mirrors, of resuming and of converting fails, and in another run the
 * process is killed there. Afterwards every checkpoint is whole, no step that was there is lost, and the message says what
 * is there; the same command then reaches the hash of the run that nothing disturbed.
 * Also on file systems that cannot exchange two names, or have no locks. A random sample of the operations (DT_SEED=N
 * draws sample N), all of them with DT_FULL=1. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the disk ---- */

enum { NO_FAULT, DIE, FAIL, FAULTS };
static int broken, error_number = EIO, no_exchange, no_locks;
static int64_t broken_at;
static struct shared { /* what a process tells its parent */
    int64_t operations;
    char hash[80];
} *told;

int disk_allows(void);
int disk_allows(void) /* in place of that of disk.h */
{
    if (__atomic_add_fetch(&told->operations, 1, __ATOMIC_RELAXED) != broken_at) return 1;
    if (broken == DIE) raise(SIGKILL);
    errno = error_number;
    return broken != FAIL;
}

/* The linker puts these in front of two functions of the C library (--wrap=syscall,--wrap=flock). */
long __real_syscall(long number, ...), __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);
int __real_flock(int fd, int how), __wrap_flock(int fd, int how);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
    return number == SYS_renameat2 && no_exchange ? (errno = EINVAL, -1L) : __real_syscall(number, a, b, c, d, e, f);
}
int __wrap_flock(int fd, int how) { return no_locks ? (errno = ENOLCK, -1) : __real_flock(fd, how); }

#include "dtrain.h"
#include "tap.h"

/* ---- a run ---- */

enum { STEPS = 3, LENGTH = 4, WORDS = 7 };

static dt_result numbers(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    (void)user, (void)split;
    for (int i = 0; i < LENGTH; i++) {
        ((int32_t *)input)[i] = (int32_t)((sample * 3 + i * 2) % WORDS);
        ((int32_t *)target)[i] = (int32_t)((sample * 3 + (i + 1) * 2) % WORDS);
    }
    return DT_OK;
}
static const dt_source source = {NULL, {16, 0}, LENGTH, LENGTH, DT_I32, DT_I32, numbers};

typedef struct scenario {
    const char *name;
    int (*run)(const struct scenario *s, int calm); /* calm: without a fault, after it */
    int32_t kind, async, again, mirror, keep;       /* again: from step 1 of a complete run; mirror: 2: a command */
    int no_exchange, no_locks;
    int64_t had;                                    /* steps 1 to .. were there */
} scenario;

static char scratch[] = "/dev/shm/dtrain-disk-XXXXXX", place[200], mirror[200], second[200], command[700];

static int train(const scenario *s, int calm)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r;
    recipe.model = dt_model_gpt2("nano");
    recipe.model.layers = 1, recipe.model.width = 8, recipe.model.heads = 1, recipe.model.vocabulary = WORDS;
    recipe.source = &source, recipe.steps = STEPS, recipe.batch = 2, recipe.data_shards = 1;
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0, layout.no_memory_check = 1;
    layout.checkpoint.place = place, layout.checkpoint.kind = s->kind, layout.checkpoint.interval = 1;
    layout.checkpoint.async = s->async, layout.checkpoint.keep = s->keep;
    if (s->mirror) layout.checkpoint.mirror = s->mirror == 2 ? command : mirror;
    if (s->again && !calm) layout.checkpoint.step = 1;
    r = dt_trainer_open(&t, &recipe, &layout);
    if (!r) r = dt_trainer_run(t, &info);
    if (!r) snprintf(told->hash, sizeof told->hash, "%s", dt_trainer_hash(t));
    dt_trainer_close(&t);
    return r ? dt_fail("run") : 0;
}

/* Converts the newest step of the place, and writes a file of parameters; both may be there already. */
static int convert(const scenario *s, int calm)
{
    static float values[1000];
    dt_parameter list[1] = {{"values", {1, {1000}}, values, NULL}};
    char file[300];
    dt_checkpoint *c = NULL;
    dt_result r = dt_checkpoint_open(&c, place), other;
    snprintf(file, sizeof file, "%s/parameters", scratch);
    for (int i = 0; i < 1000; i++) values[i] = 1;
    other = dt_parameters_save(file, list, 1);
    if (!r) r = dt_checkpoint_convert(c, second, s->kind ? DT_SHARDED : DT_FULL);
    if (calm && r == DT_E_USAGE && strstr(dt_last_error(), "is there already")) r = DT_OK;
    dt_checkpoint_close(&c);
    return r || other ? dt_fail("convert") : 0;
}

/* Runs in a process of its own; the exit status, 128 + signal. What it says goes to the file `said`. */
static int in_process(const scenario *s, int calm)
{
    char said[300];
    int status;
    pid_t pid;
    memset(told, 0, sizeof *told);
    snprintf(said, sizeof said, "%s/said", scratch);
    if ((pid = fork()) == 0) {
        if (!freopen(said, "w", stderr)) _exit(99);
        if (calm) broken_at = 0;
        no_exchange = s->no_exchange, no_locks = s->no_locks;
        status = s->run(s, calm);
        fflush(stderr);
        _exit(status);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) tap_bail("fork");
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void shell(const char *format, ...)
{
    char line[1000];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (system(line)) tap_bail("%s", line);
}

static char *slurp(const char *folder, const char *name)
{
    static char text[4096];
    char path[600];
    size_t n = 0;
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if ((f = fopen(path, "r")) != NULL) n = fread(text, 1, sizeof text - 1, f), fclose(f);
    text[n] = 0;
    return text;
}

/* ---- what must be true afterwards ---- */

static char wrong[1000];
static void note(const char *format, ...)
{
    size_t n = strlen(wrong);
    va_list list;
    va_start(list, format);
    vsnprintf(wrong + n, sizeof wrong - n, format, list);
    va_end(list);
}

static int whole(const char *folder, const char *name)
{
    char path[600];
    dt_checkpoint *c = NULL;
    dt_result r;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    r = dt_checkpoint_open(&c, path);
    if (!r) r = dt_checkpoint_verify(c);
    dt_checkpoint_close(&c);
    return !r;
}

/* Returns the newest step. `had`: steps 1 to had were there and must be; or, with keep, the newest of them. aside: they
 * may have another name for the moment. */
static int look(const char *folder, int64_t had, int keep, int aside)
{
    char name[80];
    int newest = -1;
    for (int i = 0; i <= STEPS; i++) {
        char path[600];
        snprintf(name, sizeof name, "step-%09d", i);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (!access(path, F_OK)) {
            newest = i;
            if (!whole(folder, name)) note("%s is not whole; ", path);
        } else if (i && i <= had && !keep) {
            strcat(name, ".aside.tmp");
            if (!aside || !whole(folder, name)) note("%s is lost; ", path);
        }
    }
    if (had && newest < had && !(aside && newest == had - 1)) note("%s: step %d is the newest, %d was; ", folder, newest, (int)had);
    return newest;
}

static void check_message(int newest)
{
    const char *said = slurp(scratch, "said"), *at = strstr(said, " is not saved; ");
    int step;
    if (!strstr(said, ": cannot ")) note("no sentence; ");
    if (!at) return;
    if (sscanf(at, " is not saved; steps up to %d are saved", &step) != 1) step = -1;
    if (step != newest && !strstr(at, "nobody knows")) note("the message says %d, the newest is %d; ", step, newest);
}

static void tried(const scenario *s, int kind, int64_t n, const char *hash)
{
    static const char *const name[] = {"", "killed at", "error at"};
    char file[300];
    int status, newest, aside = s->no_exchange && kind == DIE, converts = s->run == convert;
    *wrong = 0;
    shell("cd %s && rm -rf place mirror second && cp -r start.%d place && cp -r start.%d mirror && cp -r start.0 second",
          scratch, (int)(s->mirror ? 0 : s->had), s->mirror ? (int)s->had : 0);
    broken = kind, broken_at = n;
    status = in_process(s, 0);
    broken = NO_FAULT;
    newest = look(place, s->mirror ? 0 : s->had, s->keep, aside);
    if (s->mirror) look(mirror, s->had, s->keep, aside);
    if (converts) look(second, 0, 0, aside);
    snprintf(file, sizeof file, "%s/parameters", scratch);
    if (kind == FAIL && status == 1) check_message(newest);
    else if (status != (kind == DIE ? 137 : 0) && status && !(status == 2 && s->again)) note("status %d; ", status);
    if (kind == FAIL && !status && !converts && strcmp(told->hash, hash)) note("another hash; ");
    if ((status = in_process(s, 1)) != 0) note("again: status %d; ", status);
    if (!converts && strcmp(told->hash, hash)) note("again: hash %s; ", told->hash);
    look(place, converts ? s->had : STEPS, s->keep || s->mirror, 0);
    if (converts) look(second, s->had, 1, 0);
    if (*wrong) tap_note("%s, %s operation %d: %s\n%s", s->name, name[kind], (int)n, wrong, slurp(scratch, "said"));
}

static void all_of(const scenario *s, const char *hash)
{
    static const char *const name[] = {"", "killed at", "an error at"};
    int64_t count;
    int full = getenv("DT_FULL") != NULL;
    shell("cd %s && rm -rf place mirror second && cp -r start.%d place && cp -r start.%d mirror && cp -r start.0 second",
          scratch, (int)(s->mirror ? 0 : s->had), s->mirror ? (int)s->had : 0);
    broken = NO_FAULT, broken_at = 0;
    if (in_process(s, 0)) tap_bail("%s: %s", s->name, slurp(scratch, "said"));
    count = told->operations;
    for (int kind = DIE; kind < FAULTS; kind++) {
        int bad = 0, done = 0;
        for (int64_t n = 1; n <= count; n++) {
            if (!full && rand() % (int)count >= 6) continue;
            done++;
            tried(s, kind, n, hash);
            bad += *wrong != 0;
        }
        tap_ok(!bad, "%s: %s %d of %d operations: nothing is lost", s->name, name[kind], done, (int)count);
    }
}

int main(void)
{
    static const scenario all[] = {
        {"save, keep 1", train, DT_SHARDED, 0, 0, 0, 1, 0, 0, 0},
        {"save whole tensors, keep 1, after a step", train, DT_FULL, 0, 0, 0, 1, 0, 0, 1},
        {"save steps that are there", train, DT_SHARDED, 0, 1, 0, 0, 0, 0, STEPS},
        {"the same where two names cannot be exchanged", train, DT_SHARDED, 0, 1, 0, 0, 1, 0, STEPS},
        {"during training", train, DT_SHARDED, 1, 1, 0, 0, 0, 0, STEPS},
        {"restored from a mirror, and mirrored", train, DT_SHARDED, 0, 0, 1, 1, 0, 0, 2},
        {"restored from a mirror by a command", train, DT_SHARDED, 0, 0, 2, 0, 0, 0, 2},
        {"without locks", train, DT_SHARDED, 0, 0, 0, 0, 0, 1, 1},
        {"converted", convert, DT_FULL, 0, 0, 0, 0, 0, 0, 2},
    };
    const scenario *none = &all[0];
    char hash[80];
    const char *seed = getenv("DT_SEED");
    unsigned draw = seed ? (unsigned)atoi(seed) : (unsigned)getpid();
    int which = getenv("DT_ONLY") ? atoi(getenv("DT_ONLY")) : -1;
    told = (struct shared *)mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (told == MAP_FAILED || !mkdtemp(scratch)) tap_bail("no memory for files");
    srand(draw);
    tap_note("DT_SEED=%u", draw);
    snprintf(place, sizeof place, "%s/place", scratch), snprintf(mirror, sizeof mirror, "%s/mirror", scratch);
    snprintf(second, sizeof second, "%s/second", scratch);
    snprintf(command, sizeof command, "%s mkdir -p $DT_TO && cp -r $DT_FROM/step-0000* $DT_TO", mirror);
    shell("mkdir %s/start.0", scratch);
    for (int i = 1; i <= STEPS; i++) {
        scenario s = *none;
        s.keep = 0;
        shell("rm -rf %s", place);
        if (in_process(&s, 0)) tap_bail("%s", slurp(scratch, "said"));
        snprintf(hash, sizeof hash, "%s", told->hash);
        shell("cd %s && cp -r place start.%d && cd start.%d && ls -d step-* | tail -n +%d | xargs rm -rf", scratch, i, i, i + 1);
    }
    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++)
        if (which < 0 || which == i) all_of(&all[i], hash);
    shell("rm -rf %s", scratch);
    return tap_done();
}
