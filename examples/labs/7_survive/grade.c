/* Grader of lab 7: kills at chosen ticks of a logical clock, in processes of their own, with real files. */
#include "../grade.h"
#include "lab.h"
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

enum { LAST = 1500, KILLS = 20, FILES = 32, NAME = 40, BOOT_TICKS = 50, NEVER = 0x7fffffff };

/* What survives a kill: the clock, and how much of each file is on the disk. */
typedef struct disk {
    char folder[40];
    int64_t clock, die_at;
    int died;
    struct { char name[NAME]; int64_t size, synced; } file[FILES]; /* name "": free */
} disk;

static disk *d;
static lab_comm *comm;
static int opened[FILES]; /* file descriptor; 0: none. Its index is the learner's number, and that of disk.file */

/* ---- the disk ---- */

static void path_of(const char *name, char path[120])
{
    if (!*name || strchr(name, '/') || strlen(name) >= NAME)
        lab_refuse(comm, "names a file '%.60s': use 1 to %d characters without '/'", name, NAME - 1);
    snprintf(path, 120, "%s/%s", d->folder, name);
}

/* 1: so many ticks pass. 0: the kill comes before. */
static int pass(int64_t ticks)
{
    if (d->clock + ticks > d->die_at) return 0;
    d->clock += ticks;
    return 1;
}

__attribute__((noreturn)) static void die(void)
{
    d->clock = d->die_at, d->died = 1;
    fflush(stdout);
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static int find(const char *name)
{
    for (int i = 0; i < FILES; i++)
        if (!strcmp(d->file[i].name, name)) return i;
    return -1;
}

static int open_as(const char *name, int flags)
{
    char path[120];
    int i = find(name), fd;
    path_of(name, path);
    if (i < 0 && !(flags & O_CREAT)) return -1;
    if (i < 0) i = find("");
    if (i < 0) lab_refuse(comm, "has more than %d files", FILES);
    if (opened[i] || (fd = open(path, flags, 0666)) < 0) return -1;
    opened[i] = fd;
    if (flags & O_CREAT) d->file[i].size = d->file[i].synced = 0, snprintf(d->file[i].name, NAME, "%s", name);
    return i;
}

int lab_create(const char *name)
{
    if (!pass(CALL_TICKS)) die();
    return open_as(name, O_CREAT | O_TRUNC | O_WRONLY);
}
int lab_open(const char *name) { return open_as(name, O_RDONLY); }

static void check(int file, const char *what)
{
    if (file < 0 || file >= FILES || !opened[file])
        lab_refuse(comm, "calls %s with %d, which is not an open file", what, file);
}

int64_t lab_write(int file, const void *data, int64_t bytes)
{
    int64_t room = (d->die_at - d->clock) * 64, n = bytes < room ? bytes : room;
    check(file, "lab_write");
    if (n > 0 && write(opened[file], data, (size_t)n) != n) return -1;
    d->file[file].size += n;
    if (!pass((bytes + 63) / 64)) die();
    return bytes;
}
int64_t lab_read(int file, void *data, int64_t bytes)
{
    check(file, "lab_read");
    return (int64_t)read(opened[file], data, (size_t)bytes);
}
int lab_sync(int file)
{
    check(file, "lab_sync");
    if (!pass(SYNC_TICKS)) die();
    d->file[file].synced = d->file[file].size;
    return 0;
}
int lab_close(int file)
{
    check(file, "lab_close");
    close(opened[file]);
    opened[file] = 0;
    return 0;
}
int lab_rename(const char *from, const char *to)
{
    char old[120], new[120];
    int i = find(from), replaced = find(to);
    path_of(from, old), path_of(to, new);
    if (!pass(CALL_TICKS)) die();
    if (i < 0 || rename(old, new)) return -1;
    if (replaced >= 0 && replaced != i) d->file[replaced].name[0] = 0;
    snprintf(d->file[i].name, NAME, "%s", to);
    return 0;
}
int lab_remove(const char *name)
{
    char path[120];
    int i = find(name);
    path_of(name, path);
    if (!pass(CALL_TICKS)) die();
    if (i < 0 || unlink(path)) return -1;
    d->file[i].name[0] = 0;
    return 0;
}

/* After a kill. A power cut takes what was not synced. */
static void boot(int power_cut)
{
    for (int i = 0; i < FILES; i++) {
        char path[120];
        if (!d->file[i].name[0]) continue;
        path_of(d->file[i].name, path);
        if (power_cut && !truncate(path, d->file[i].synced)) d->file[i].size = d->file[i].synced;
        d->file[i].synced = d->file[i].size;
    }
    d->died = 0, d->die_at = NEVER;
}

static void empty_disk(void)
{
    for (int i = 0; i < FILES; i++) {
        char path[120];
        if (!d->file[i].name[0]) continue;
        path_of(d->file[i].name, path);
        unlink(path);
        d->file[i].name[0] = 0;
    }
    d->died = 0, d->die_at = NEVER;
}

/* ---- training ---- */

static void first_state(lab_state *s)
{
    memset(s, 0, sizeof *s);
    s->random = 1;
}

/* Adam's step towards noisy targets: without v, m or the sampler's number the run goes on, to other bits. */
static void train_step(lab_state *s)
{
    float correct_m, correct_v;
    s->step++;
    s->random ^= s->random << 13, s->random ^= s->random >> 7, s->random ^= s->random << 17;
    correct_m = 1 - powf(0.9f, (float)s->step), correct_v = 1 - powf(0.95f, (float)s->step);
    for (int i = 0; i < WEIGHTS; i++) {
        float noise = (float)((s->random >> (i % 40)) & 255) / 255.0f - 0.5f, g = s->w[i] - (float)(i % 17) + noise;
        s->m[i] = 0.9f * s->m[i] + 0.1f * g, s->v[i] = 0.95f * s->v[i] + 0.05f * g * g;
        s->w[i] -= 0.05f * (s->m[i] / correct_m) / (sqrtf(s->v[i] / correct_v) + 1e-8f);
    }
}

typedef struct task {
    int64_t interval, steps; /* between saves; trained by all processes */
    int64_t ahead;           /* of the kill that is tried: ticks after the beginning of the second save */
    int loaded;
    lab_state old, new, end;
} task;

/* One life of the program. */
static void life(lab_comm *c, void *user)
{
    task *t = user;
    lab_state s;
    comm = c;
    first_state(&s);
    load_state(&s);
    while (s.step < LAST) {
        if (!pass(STEP_TICKS)) die();
        train_step(&s), t->steps++;
        if (t->interval > 0 && s.step % t->interval == 0) save_state(&s);
    }
    t->end = s;
}
static void two_saves(lab_comm *c, void *user)
{
    task *t = user;
    comm = c;
    if (!save_state(&t->old)) lab_refuse(c, "gets 0 from save_state");
    d->die_at = d->clock + t->ahead;
    if (!save_state(&t->new)) lab_refuse(c, "gets 0 from save_state");
}
static void loads(lab_comm *c, void *user)
{
    task *t = user;
    comm = c;
    first_state(&t->end);
    t->loaded = load_state(&t->end);
}
static void asks(lab_comm *c, void *user)
{
    (void)c;
    ((task *)user)->interval = save_interval();
}

/* ---- tests ---- */

static int same(const lab_state *a, const lab_state *b) { return !memcmp(a, b, sizeof *a); }

/* A state survives if it is saved and loaded, and there is none on an empty disk. */
static int round_trip(task *t)
{
    int fine;
    empty_disk();
    fine = lab_run(1, loads, t);
    if (fine && t->loaded) fine = 0, snprintf(lab_verdict, sizeof lab_verdict, "load_state returns 1 on an empty disk");
    t->ahead = NEVER / 2;
    fine = fine && lab_run(1, two_saves, t) && lab_run(1, loads, t);
    if (fine && (!t->loaded || !same(&t->end, &t->new)))
        fine = 0, snprintf(lab_verdict, sizeof lab_verdict, "%s",
                           t->loaded ? "the loaded state differs from the last one that was saved"
                                     : "load_state returns 0 after two saves");
    if (!lab_ok(fine, "round trip: the last state that was saved is loaded, and none from an empty disk"))
        lab_note("%s", lab_verdict);
    return fine;
}

/* Kills the second save at this tick of it; 1: then the first or the second state is loaded. */
static int survives(task *t, int64_t ahead, int power_cut)
{
    empty_disk();
    t->ahead = ahead;
    if (!lab_run(1, two_saves, t) && !d->died) return 0;
    boot(power_cut);
    if (!lab_run(1, loads, t)) return 0;
    if (t->loaded && (same(&t->end, &t->old) || same(&t->end, &t->new))) return 1;
    snprintf(lab_verdict, sizeof lab_verdict, "a %s %lld ticks after the beginning of a save: %s",
             power_cut ? "power cut" : "kill", (long long)ahead,
             t->loaded ? "load_state returns a state that was never saved"
                       : "neither the old state nor the new one is there");
    return 0;
}

/* At every 16th tick of a save, and at each of its last 40. */
static void every_moment(task *t)
{
    int64_t before, takes;
    int power_cut = 0, fine = 1;
    empty_disk();
    t->ahead = NEVER / 2, before = d->clock;
    lab_run(1, two_saves, t);
    takes = (d->clock - before) / 2;
    for (; power_cut < 2 && fine; power_cut++)
        for (int64_t at = 0; at <= takes && fine; at += at < takes - 40 ? 16 : 1) fine = survives(t, at, power_cut);
    if (!lab_ok(fine, "any moment: a kill or a power cut inside a save leaves the old state or the new one"))
        lab_note("%s", lab_verdict);
}

/* Changes each file in one place after the other, or cuts it; what is loaded must be a state that was saved. */
static int refuses(task *t, int i, int64_t at, int cut)
{
    char path[120], byte = 0;
    int fd, fine;
    path_of(d->file[i].name, path);
    if ((fd = open(path, O_RDWR)) < 0 || pread(fd, &byte, 1, at) != 1) perror(path), exit(1);
    byte = (char)(byte ^ 16);
    if (cut ? ftruncate(fd, at) : pwrite(fd, &byte, 1, at) != 1) perror(path), exit(1);
    close(fd);
    fine = lab_run(1, loads, t);
    if (fine && t->loaded && !same(&t->end, &t->old) && !same(&t->end, &t->new)) {
        fine = 0;
        snprintf(lab_verdict, sizeof lab_verdict,
                 "the file '%s' %s byte %lld: load_state returns a state that was never saved", d->file[i].name,
                 cut ? "was cut at" : "has another bit in", (long long)at);
    }
    return fine;
}

static void torn(task *t, int cut)
{
    int fine = 1, tried = 0;
    t->ahead = NEVER / 2;
    for (int k = 0; k < 24 && fine; k++)
        for (int i = 0; i < FILES && fine; i++) {
            empty_disk();
            lab_run(1, two_saves, t);
            boot(0);
            if (!d->file[i].name[0] || !d->file[i].size) continue;
            fine = refuses(t, i, k < 23 ? d->file[i].size * k / 23 : d->file[i].size - 1, cut), tried++;
        }
    if (!lab_ok(fine && tried,
                cut ? "torn file: a file that was cut is refused" : "changed file: a flipped bit is found"))
        lab_note("%s", tried ? lab_verdict : "there is no file");
}

/* The run that is killed. Returns its ticks. */
static int64_t run(task *t, const lab_state *want)
{
    int64_t lasted = LAST * STEP_TICKS, overhead;
    int kills = 0, fine;
    empty_disk();
    d->clock = 0, t->steps = 0, t->end = t->old;
    for (;;) {
        d->die_at = kills < KILLS ? d->clock + KILL_TICKS / 2 + KILL_TICKS * (kills * 7 % 20) / 19 : NEVER;
        fine = lab_run(1, life, t);
        if (fine || !d->died) break;
        boot(kills++ % 2);
        d->clock += BOOT_TICKS;
    }
    overhead = (d->clock - lasted) * 100 / lasted;
    if (!lab_ok(fine && same(&t->end, want), "20 kills: the end has the bits of a run without a kill"))
        lab_note("%s", fine ? "the bits differ" : lab_verdict);
    if (!lab_ok(fine && kills == KILLS && overhead <= 50, "time: %lld %% more ticks than without kills, at most 50 %%",
                (long long)overhead))
        lab_note("%lld of %d steps were trained twice", (long long)(t->steps - LAST), LAST);
    return d->clock;
}

static int files_left(void)
{
    int n = 0;
    for (int i = 0; i < FILES; i++) n += d->file[i].name[0] != 0;
    return n;
}

int main(int argc, char **argv)
{
    task *t = lab_shared(sizeof *t);
    lab_state *want = lab_shared(sizeof *want);
    int64_t ticks = 0;
    lab_begin("7_survive", argc, argv);
    d = lab_shared(sizeof *d);
    snprintf(d->folder, sizeof d->folder, "/tmp/dtrain_lab7.XXXXXX");
    if (!mkdtemp(d->folder)) return perror(d->folder), 1;
    first_state(want);
    for (int i = 0; i < LAST; i++) {
        train_step(want);
        if (i == 9) t->old = *want;
        if (i == 19) t->new = *want;
    }
    if (lab_runs(1, asks, t, "save_interval returns") && round_trip(t)) {
        every_moment(t), torn(t, 1), torn(t, 0);
        ticks = run(t, want);
        lab_ok(files_left() <= 3, "files: %d at the end, at most 3", files_left());
    }
    empty_disk();
    rmdir(d->folder);
    return lab_end((double)ticks, "ticks with 20 kills");
}
