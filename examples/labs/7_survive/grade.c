/* Grader of lab 7: kills at chosen ticks of a logical clock. Each life is a process of its own; the clock and the disk
 * are in the grader, and nothing else survives a kill. */
#include "../grade.h"
#include "lab.h"
#include <math.h>

enum { LAST = 1500, KILLS = 20, FILES = 32, NAME = 40, BOOT_TICKS = 50, NEVER = 0x7fffffff, LARGE = 1 << 22 };
enum { CREATE, OPEN, WRITE, READ, SYNC, CLOSE, RENAME, REMOVE, TRAIN, SAVE }; /* questions */
enum { LIFE, TWO_SAVES, LOADS };                                              /* programs */

typedef struct plan { /* what a process gets */
    int program;
    int64_t interval; /* between saves */
    lab_state first, old;
} plan;
typedef struct result { /* what it returns */
    int loaded;
    int64_t interval;
    lab_state end;
} result;

static plan p;
static result got;
static lab_state want, new; /* new: after p.old */

/* ---- a process ---- */

static int64_t by_name(int what, const char *name, const char *to)
{
    char names[2][256] = {{0}};
    snprintf(names[0], sizeof names[0], "%s", name), snprintf(names[1], sizeof names[1], "%s", to);
    return lab_ask(what, 0, names, sizeof names, NULL, 0);
}
int lab_create(const char *name) { return (int)by_name(CREATE, name, "-"); }
int lab_open(const char *name) { return (int)by_name(OPEN, name, "-"); }
int lab_rename(const char *from, const char *to) { return (int)by_name(RENAME, from, to); }
int lab_remove(const char *name) { return (int)by_name(REMOVE, name, "-"); }
int64_t lab_write(int file, const void *data, int64_t bytes) { return lab_ask(WRITE, file, data, bytes, NULL, 0); }
int64_t lab_read(int file, void *data, int64_t bytes) { return lab_ask(READ, file, &bytes, sizeof bytes, data, bytes); }
int lab_sync(int file) { return (int)lab_ask(SYNC, file, NULL, 0, NULL, 0); }
int lab_close(int file) { return (int)lab_ask(CLOSE, file, NULL, 0, NULL, 0); }

/* Adam's step towards noisy targets: without v, m or the sampler's number the run goes on, to other bits. The noise of
 * a step comes from the grader. */
static void train_step(lab_state *s, uint64_t noise)
{
    float correct_m, correct_v;
    s->step++;
    s->random ^= s->random << 13, s->random ^= s->random >> 7, s->random ^= s->random << 17;
    correct_m = 1 - powf(0.9f, (float)s->step), correct_v = 1 - powf(0.95f, (float)s->step);
    for (int i = 0; i < WEIGHTS; i++) {
        float apart = (float)(((s->random ^ noise) >> (i % 40)) & 255) / 255.0f - 0.5f;
        float g = s->w[i] - (float)(i % 17) + apart;
        s->m[i] = 0.9f * s->m[i] + 0.1f * g, s->v[i] = 0.95f * s->v[i] + 0.05f * g * g;
        s->w[i] -= 0.05f * (s->m[i] / correct_m) / (sqrtf(s->v[i] / correct_v) + 1e-8f);
    }
}

static void program(lab_comm *c, void *in, void *out)
{
    const plan *task = in;
    result *r = out;
    lab_state *s = &r->end;
    uint64_t noise = 0;
    *s = task->first;
    if (task->program == TWO_SAVES) {
        if (!LAB_ITS(save_state)(&task->old)) lab_refuse("gets 0 from save_state");
        lab_ask(SAVE, 0, NULL, 0, s, sizeof *s);
        if (!LAB_ITS(save_state)(s)) lab_refuse("gets 0 from save_state");
        return;
    }
    r->loaded = LAB_ITS(load_state)(s);
    r->interval = LAB_ITS(save_interval)();
    while (task->program == LIFE && s->step < LAST) {
        lab_ask(TRAIN, 0, &s->step, sizeof s->step, &noise, sizeof noise);
        train_step(s, noise);
        if (task->interval > 0 && s->step % task->interval == 0) LAB_ITS(save_state)(s);
    }
}

/* ---- the disk ---- */

typedef struct file { /* name "": free */
    char name[NAME], *data;
    int64_t size, synced, place;
    int opened; /* 1: to read, 2: to write */
} file;

static struct {
    int64_t clock, die_at, ahead, steps; /* ahead: of the kill that is tried, after the beginning of the second save */
    int died, saved;
    file file[FILES];
} d;

/* 1: so many ticks pass. 0: the kill comes before. */
static int pass(int64_t ticks)
{
    if (d.clock + ticks > d.die_at) {
        d.clock = d.die_at, d.died = 1;
        return lab_stop("killed");
    }
    d.clock += ticks;
    return 1;
}

static int find(const char *name)
{
    for (int i = 0; i < FILES; i++)
        if (!strcmp(d.file[i].name, name)) return i;
    return -1;
}

static int has_name(const char *name)
{
    if (*name && !strchr(name, '/') && strlen(name) < NAME) return 1;
    return lab_stop("rank 0 names a file '%.60s': use 1 to %d characters without '/'", name, NAME - 1);
}

static int64_t open_as(const char *name, int how)
{
    int i = find(name);
    if (i < 0 && how == 1) return -1;
    if (i < 0) i = find("");
    if (i < 0) return lab_stop("rank 0 has more than %d files", FILES);
    if (d.file[i].opened) return -1;
    snprintf(d.file[i].name, NAME, "%s", name);
    d.file[i].opened = how, d.file[i].place = 0;
    if (how == 2) d.file[i].size = d.file[i].synced = 0;
    return i;
}

static int64_t rename_to(const char *from, const char *to)
{
    int i = find(from), replaced = find(to);
    if (i < 0) return -1;
    if (replaced >= 0 && replaced != i) d.file[replaced].name[0] = 0;
    snprintf(d.file[i].name, NAME, "%s", to);
    return 0;
}

static int64_t write_to(file *f, const lab_question *q)
{
    int64_t room = (d.die_at - d.clock) * 64, n = q->bytes < room ? q->bytes : room;
    if (f->opened != 2) return -1;
    if (f->size + n > LARGE) return lab_stop("rank 0 writes more than %d bytes to '%s'", LARGE, f->name);
    if (!(f->data = realloc(f->data, (size_t)(f->size + n + 1)))) perror("lab 7"), exit(1);
    memcpy(f->data + f->size, q->data, (size_t)n), f->size += n;
    return pass((q->bytes + 63) / 64) ? q->bytes : 0;
}

static int64_t read_from(file *f, lab_question *q)
{
    int64_t bytes;
    memcpy(&bytes, q->data, sizeof bytes);
    if (f->opened != 1 || bytes < 0) return -1;
    q->reply = f->data ? f->data + f->place : "";
    q->reply_bytes = bytes < f->size - f->place ? bytes : f->size - f->place, f->place += q->reply_bytes;
    return q->reply_bytes;
}

/* What a step adds to the gradients: drawn, so that nobody trains without a step's ticks. */
static uint64_t noise_of(int64_t step)
{
    uint64_t key[] = {lab_seed, (uint64_t)step};
    return lab_hash(key, sizeof key);
}

static int64_t by_file(lab_question *q)
{
    static const char *const names[] = {"", "", "lab_write", "lab_read", "lab_sync", "lab_close"};
    file *f = &d.file[q->number];
    if (!f->opened || !f->name[0])
        return lab_stop("rank 0 calls %s with %d, which is not an open file", names[q->what], (int)q->number);
    if (q->what == WRITE) return write_to(f, q);
    if (q->what == READ) return q->bytes == 8 ? read_from(f, q) : -1;
    if (q->what == CLOSE) f->opened = 0;
    else if (pass(SYNC_TICKS)) f->synced = f->size;
    return 0;
}

static int64_t answer(lab_question *q)
{
    static uint64_t noise;
    const char *name = q->data;
    int named = q->what <= OPEN || q->what == RENAME || q->what == REMOVE;
    if (q->what == TRAIN && lab_fits(q, 8, 1)) {
        int64_t step;
        memcpy(&step, q->data, sizeof step);
        noise = noise_of(step), q->reply = &noise, q->reply_bytes = sizeof noise;
        return d.steps += pass(STEP_TICKS);
    }
    if (q->what == SAVE) {
        if (d.saved++) return lab__nonsense(q->rank);
        d.die_at = d.clock + d.ahead, q->reply = &new, q->reply_bytes = sizeof new;
    }
    if (q->what >= TRAIN) return 0;
    if (!named) {
        if (q->number >= 0 && q->number < FILES) return by_file(q);
        return lab_stop("rank 0 uses file %lld, which it did not get from lab_create or lab_open",
                        (long long)q->number);
    }
    if (!lab_fits(q, 512, 1) || !has_name(name) || !has_name(name + 256)) return -1;
    if (q->what == OPEN) return open_as(name, 1);
    if (!pass(CALL_TICKS)) return -1;
    if (q->what == CREATE) return open_as(name, 2);
    if (q->what == RENAME) return rename_to(name, name + 256);
    return find(name) < 0 ? -1 : (d.file[find(name)].name[0] = 0);
}

/* After a kill. A power cut takes what was not synced. */
static void boot(int power_cut)
{
    for (int i = 0; i < FILES; i++) {
        if (power_cut) d.file[i].size = d.file[i].synced;
        d.file[i].synced = d.file[i].size, d.file[i].opened = 0;
    }
    d.died = 0, d.die_at = NEVER;
}

static void empty_disk(void)
{
    for (int i = 0; i < FILES; i++) d.file[i].name[0] = 0;
    boot(0);
}

/* ---- tests ---- */

static int same(const lab_state *a, const lab_state *b) { return !memcmp(a, b, sizeof *a); }

static int run(int what)
{
    p.program = what, d.saved = what != TWO_SAVES;
    return lab_run(1, &p, sizeof p, &got, sizeof got);
}

static int saves(int64_t ahead) /* of a kill in the second save */
{
    empty_disk();
    d.ahead = ahead;
    return run(TWO_SAVES);
}

/* A state survives if it is saved and loaded, and there is none on an empty disk. */
static int round_trip(void)
{
    int fine;
    empty_disk();
    fine = run(LOADS);
    p.interval = got.interval;
    if (fine && got.loaded) fine = lab_wrong("load_state returns 1 on an empty disk");
    fine = fine && saves(NEVER / 2);
    boot(0);
    fine = fine && run(LOADS);
    if (fine && !(got.loaded && same(&got.end, &new)))
        fine = lab_wrong(got.loaded
                             ? "the loaded state differs from the last one that was saved"
                             : "load_state returns 0 after two saves: only lab_create makes what survives a process");
    if (!fine) lab_fails();
    return lab_ok(fine, "round trip: the last state that was saved is loaded, and none from an empty disk");
}

/* Kills the second save at this tick of it; 1: then the first or the second state is loaded. */
static int survives(int64_t ahead, int power_cut)
{
    if (!saves(ahead) && !d.died) return 0;
    boot(power_cut);
    if (!run(LOADS)) return 0;
    if (got.loaded && (same(&got.end, &p.old) || same(&got.end, &new))) return 1;
    return lab_wrong("a %s %lld ticks after the beginning of a save: %s", power_cut ? "power cut" : "kill",
                     (long long)ahead,
                     got.loaded ? "load_state returns a state that was never saved"
                                : "neither the old state nor the new one is there");
}

/* At every 16th tick of a save, and at each of its last 40. */
static void every_moment(int fine)
{
    int64_t before = d.clock, takes;
    if (fine) saves(NEVER / 2);
    takes = (d.clock - before) / 2;
    for (int power_cut = 0; power_cut < 2; power_cut++)
        for (int64_t at = 0; at <= takes && fine; at += at < takes - 40 ? 16 : 1) fine = survives(at, power_cut);
    if (!lab_ok(fine, "any moment: a kill or a power cut inside a save leaves the old state or the new one"))
        lab_note("%s", lab_verdict);
}

/* Changes a file in one place, or cuts it there; what is loaded must be a state that was saved. */
static int refuses(file *f, int64_t at, int cut)
{
    if (cut) f->size = at;
    else f->data[at] = (char)(f->data[at] ^ 16);
    if (!run(LOADS)) return 0;
    if (!got.loaded || same(&got.end, &p.old) || same(&got.end, &new)) return 1;
    return lab_wrong("the file '%s' %s byte %lld: load_state returns a state that was never saved", f->name,
                     cut ? "was cut at" : "has another bit in", (long long)at);
}

static void torn(int fine, int cut)
{
    int tried = 0;
    lab_wrong("there is no file");
    for (int k = 0; k < 24; k++)
        for (int i = 0; i < FILES && fine; i++) {
            if (i && !(d.file[i].name[0] && d.file[i].size)) continue;
            saves(NEVER / 2), boot(0);
            if (!d.file[i].name[0] || !d.file[i].size) continue;
            fine = refuses(&d.file[i], k < 23 ? d.file[i].size * k / 23 : d.file[i].size - 1, cut), tried++;
        }
    if (!lab_ok(fine && tried,
                cut ? "torn file: a file that was cut is refused" : "changed file: a flipped bit is found"))
        lab_note("%s", lab_verdict);
}

/* The run that is killed, at ticks that are fixed for the score, or drawn. Returns its ticks. */
static int64_t kills(int fine, int drawn, int64_t most)
{
    int64_t lasted = LAST * STEP_TICKS, left = 0;
    const char *which = drawn ? " at drawn ticks" : "";
    int killed = 0;
    empty_disk();
    d.clock = 0, d.steps = 0;
    while (fine) {
        int after = drawn ? lab_draw(0, KILL_TICKS) : KILL_TICKS * (killed * 7 % 20) / 19;
        d.die_at = killed < KILLS ? d.clock + KILL_TICKS / 2 + after : NEVER;
        fine = run(LIFE);
        if (fine || !d.died) break;
        boot(drawn ? lab_draw(0, 1) : killed % 2);
        killed++, fine = 1;
        d.clock += BOOT_TICKS;
    }
    for (int i = 0; i < FILES; i++) left += d.file[i].name[0] != 0;
    if (!lab_ok(fine && same(&got.end, &want), "20 kills%s: the end has the bits of a run without a kill", which))
        lab_note("%s", fine ? "the bits differ" : lab_verdict);
    if (!lab_ok(fine && killed == KILLS && d.clock <= most,
                "time%s: %lld %% more ticks than without kills, at most %lld %%", which,
                (long long)((d.clock - lasted) * 100 / lasted), (long long)((most - lasted) * 100 / lasted)))
        lab_note("%lld of %d steps were trained twice", (long long)(d.steps - LAST), LAST);
    if (!drawn) lab_ok(fine && left <= 3, "files: %lld at the end, at most 3", (long long)left);
    return d.clock;
}

int main(int argc, char **argv)
{
    int64_t ticks;
    int fine;
    lab_begin("7_survive", program, argc, argv);
    lab_on_ask = answer;
    p.first.random = (uint64_t)lab_draw(1, 1 << 30), want = p.first;
    for (int i = 0; i < LAST; i++) {
        train_step(&want, noise_of(want.step));
        if (i == 9) p.old = want;
        if (i == 19) new = want;
    }
    fine = round_trip();
    every_moment(fine), torn(fine, 1), torn(fine, 0);
    ticks = kills(fine, 0, LAST * STEP_TICKS * 3 / 2);
    kills(fine, 1, ticks + ticks / 10); /* who knows the first kills has no more of it than this */
    return lab_end((double)ticks, "ticks with 20 kills");
}
