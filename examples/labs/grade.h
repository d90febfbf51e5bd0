/* grade.h: what the graders of the labs share: tests in TAP, the score and its board, and the ranks of ranks.h, which
 * are forked processes with messages in shared memory. Include it once, in grade.c, before any system header.
 *
 * A deadlock is exact: every rank has returned or waits, and no message that a rank waits for has been sent. An endless
 * loop ends at a limit of processor time or of calls. */
#ifndef LAB_GRADE_H
#define LAB_GRADE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "ranks.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LAB_FN __attribute__((unused)) static
#define LAB_PRINTF(text, first) __attribute__((format(printf, text, first)))
enum { LAB_RANKS = 8, LAB_SLOTS = 1024, LAB_ARENA = 1 << 23, LAB_TEXT = 1200, LAB_STOPPED = 3, LAB_CANARY = 16 };
enum { LAB_CPU_SECONDS = 2, LAB_SECONDS = 60, LAB_CALLS = 5000 }; /* limits of a rank: computing, sleeping, messages */

/* ---- tests ---- */

static int lab__tests, lab__failures;

LAB_PRINTF(1, 2) LAB_FN void lab_note(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("# "), vprintf(format, list), printf("\n");
    va_end(list);
    fflush(stdout);
}

LAB_PRINTF(2, 3) LAB_FN int lab_ok(int pass, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("%s %d - ", pass ? "ok" : "not ok", ++lab__tests), vprintf(format, list), printf("\n");
    va_end(list);
    fflush(stdout); /* ranks are forked */
    lab__failures += !pass;
    return pass;
}

/* ---- score and board ---- */

/* What build.sh passes: the learner's file, the folder of the boards, the stub. */
static struct { const char *lab, *file, *boards, *stub; } lab__call;

LAB_FN void lab_begin(const char *lab, int argc, char **argv)
{
    lab__call.lab = lab, lab__call.file = argc > 1 ? argv[1] : "?", lab__call.boards = argc > 2 ? argv[2] : "";
    lab__call.stub = argc > 3 ? argv[3] : "";
    printf("lab %s: %s\n", lab, lab__call.file);
}

typedef struct lab_line {
    double score;
    char text[200];
} lab_line;

static int lab__better(const void *a, const void *b)
{
    double x = ((const lab_line *)a)->score, y = ((const lab_line *)b)->score;
    return (x > y) - (x < y);
}

/* Adds a line to the board and prints the best five. */
static void lab__board(double score, const char *unit)
{
    static lab_line lines[1000];
    const char *name = strrchr(lab__call.file, '/');
    char path[600], date[32];
    time_t now = time(NULL);
    int n = 0;
    FILE *f;
    snprintf(path, sizeof path, "%s/%s.board", lab__call.boards, lab__call.lab);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", localtime(&now));
    if (!(f = fopen(path, "a"))) return;
    fprintf(f, "%.0f %s, %s, %.80s\n", score, unit, date, name ? name + 1 : lab__call.file);
    fclose(f);
    if (!(f = fopen(path, "r"))) return;
    while (n < 1000 && fgets(lines[n].text, sizeof lines[n].text, f)) lines[n].score = atof(lines[n].text), n++;
    fclose(f);
    qsort(lines, (size_t)n, sizeof lines[0], lab__better);
    printf("board, best first (%s):\n", path);
    for (int i = 0; i < n && i < 5; i++) printf("  %d. %s", i + 1, lines[i].text);
}

/* Prints the plan, the score and, if all tests passed, the board; unit NULL: the lab has no board, and score does not
 * count. Returns the exit status. */
LAB_FN int lab_end(double score, const char *unit)
{
    printf("1..%d\nscore: %d of %d tests", lab__tests, lab__tests - lab__failures, lab__tests);
    if (unit && !lab__failures) printf(", %.0f %s", score, unit);
    printf("\n");
    if (unit && !lab__failures && *lab__call.boards) lab__board(score, unit);
    return lab__failures != 0;
}

/* ---- ranks ---- */

typedef enum lab_wait { LAB_MOVES, LAB_SENDS, LAB_RECEIVES, LAB_COLLECTIVE, LAB_RETURNED } lab_wait;
typedef enum lab_call { LAB_BARRIER, LAB_BROADCAST, LAB_ALL_REDUCE, LAB_REDUCE_SCATTER, LAB_ALL_GATHER } lab_call;
static const char *const lab__names[] = {"barrier", "broadcast", "all-reduce", "reduce-scatter", "all-gather"};

typedef struct lab_slot { /* a message on its way */
    int used, from, to;
    int64_t order, count, at, clock; /* at: place in the arena */
} lab_slot;

/* What the grader counts of a rank. Collectives count what a ring sends. */
typedef struct lab_counts {
    int64_t bytes, messages, clock, all_calls;      /* clock: of messages, in the unit of lab_options */
    int64_t calls[5], call_floats[5], call_bytes;   /* by lab_call */
    int64_t memory, peak;                           /* bytes of lab_alloc: now, and most */
} lab_counts;

typedef struct lab_world {
    pthread_mutex_t mutex;
    pthread_cond_t changed[LAB_RANKS]; /* of the rank that waits */
    int ranks, stopped, arrived, left;
    struct { lab_wait wait; int peer, root; lab_call call; int64_t count, at; } state[LAB_RANKS];
    lab_counts counts[LAB_RANKS];
    lab_slot slots[LAB_SLOTS];
    int64_t orders, generation, emptied, used[LAB_RANKS], in_use[LAB_RANKS];
    char verdict[LAB_TEXT];
    _Alignas(16) char arena[LAB_RANKS][LAB_ARENA]; /* of the sender */
} lab_world;

struct lab_comm {
    lab_world *w;
    int rank;
};

/* How messages behave in the next lab_run. */
static struct { int buffered; int64_t alpha, beta; } lab_options; /* clock: a message takes alpha + beta x floats */
static lab_counts lab_counted[LAB_RANKS];                         /* by the last lab_run */
static char lab_verdict[LAB_TEXT];                                /* why the last lab_run failed */

int lab_rank(const lab_comm *c) { return c->rank; }
int lab_size(const lab_comm *c) { return c->w->ranks; }

/* Memory that the ranks and the grader share: zeros. Never freed. */
LAB_FN void *lab_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) perror("mmap"), exit(1);
    return p;
}

/* Lets a rank go on, with the lock held. */
static void lab__wake(lab_world *w, int rank)
{
    if (w->state[rank].wait != LAB_RETURNED) w->state[rank].wait = LAB_MOVES;
    pthread_cond_signal(&w->changed[rank]);
}

__attribute__((noreturn)) static void lab__leave(lab_world *w)
{
    pthread_mutex_unlock(&w->mutex);
    fflush(stdout);
    _exit(LAB_STOPPED);
}

/* Ends the run, with the lock held. */
__attribute__((noreturn)) LAB_PRINTF(2, 3) static void lab__stop(lab_world *w, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (!w->stopped) vsnprintf(w->verdict, sizeof w->verdict, format, list);
    va_end(list);
    w->stopped = 1;
    for (int r = 0; r < w->ranks; r++) pthread_cond_signal(&w->changed[r]);
    lab__leave(w);
}

/* Ends the run from a lab's own calls: "rank 1 <sentence>". */
__attribute__((noreturn)) LAB_PRINTF(2, 3) LAB_FN void lab_refuse(lab_comm *c, const char *format, ...)
{
    char text[LAB_TEXT / 2];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    pthread_mutex_lock(&c->w->mutex);
    lab__stop(c->w, "rank %d %s", c->rank, text);
}

/* Takes the lock for a message or a collective. */
static void lab__begins(lab_comm *c)
{
    lab_world *w = c->w;
    pthread_mutex_lock(&w->mutex);
    if (w->stopped) lab__leave(w);
    if (++w->counts[c->rank].all_calls > LAB_CALLS)
        lab__stop(w, "rank %d makes more than %d calls: look for an endless loop", c->rank, LAB_CALLS);
}

static size_t lab__says(const lab_world *w, int r, char *to, size_t room)
{
    long long n = (long long)w->state[r].count, calls = 0;
    int peer = w->state[r].peer, length = 0;
    switch (w->state[r].wait) {
    case LAB_MOVES: length = snprintf(to, room, "rank %d runs", r); break;
    case LAB_SENDS: length = snprintf(to, room, "rank %d waits to send %lld floats to rank %d", r, n, peer); break;
    case LAB_RECEIVES: length = snprintf(to, room, "rank %d waits for %lld floats from rank %d", r, n, peer); break;
    case LAB_RETURNED: length = snprintf(to, room, "rank %d has returned", r); break;
    case LAB_COLLECTIVE:
        for (int k = 0; k < 5; k++) calls += (long long)w->counts[r].calls[k];
        length = snprintf(to, room, "rank %d waits in %s, its collective number %lld", r,
                          lab__names[w->state[r].call], calls);
        break;
    }
    return (size_t)length < room ? (size_t)length : room;
}

/* With the lock held, before a wait and at a return: can any rank still move? */
static void lab__check(lab_world *w)
{
    char text[LAB_TEXT] = "";
    size_t at = 0;
    int waiting = 0;
    for (int r = 0; r < w->ranks; r++) {
        if (w->state[r].wait == LAB_MOVES) return;
        waiting += w->state[r].wait != LAB_RETURNED;
    }
    if (!waiting) return;
    for (int r = 0; r < w->ranks && at + 100 < sizeof text; r++) {
        if (r) at += (size_t)snprintf(text + at, sizeof text - at, "; ");
        at += lab__says(w, r, text + at, sizeof text - at);
    }
    lab__stop(w, "deadlock: %s", text);
}

/* Waits until another rank sets this one to LAB_MOVES. */
static void lab__wait(lab_comm *c, lab_wait why)
{
    lab_world *w = c->w;
    w->state[c->rank].wait = why;
    lab__check(w);
    while (w->state[c->rank].wait != LAB_MOVES && !w->stopped) pthread_cond_wait(&w->changed[c->rank], &w->mutex);
    if (w->stopped) lab__leave(w);
}

/* Room in this rank's arena, with the lock held. The arena is empty again when all of the rank's messages are taken. */
static int64_t lab__room(lab_comm *c, int64_t bytes)
{
    lab_world *w = c->w;
    int64_t at, *used = &w->used[c->rank];
    if (!w->in_use[c->rank]) *used = 0;
    at = *used;
    if (bytes > LAB_ARENA - at)
        lab__stop(w, "rank %d: more than %d MiB of its messages wait for a receiver", c->rank, LAB_ARENA >> 20);
    *used += (bytes + 15) / 16 * 16, w->in_use[c->rank]++;
    return at;
}

static void lab__message(lab_comm *c, const char *what, int64_t count, int peer)
{
    lab_world *w = c->w;
    lab__begins(c);
    if (peer < 0 || peer >= w->ranks || peer == c->rank)
        lab__stop(w, "rank %d %s rank %d, but the ranks are 0 to %d, and a rank sends nothing to itself", c->rank, what,
                  peer, w->ranks - 1);
    if (count < 0) lab__stop(w, "rank %d %s rank %d: %lld floats", c->rank, what, peer, (long long)count);
    w->state[c->rank].peer = peer, w->state[c->rank].count = count;
}

void lab_send(lab_comm *c, const float *data, int64_t count, int to)
{
    lab_world *w = c->w;
    lab_counts *mine = &w->counts[c->rank];
    int64_t at, i = 0, takes = lab_options.alpha + lab_options.beta * count;
    lab__message(c, "sends to", count, to);
    at = lab__room(c, count * 4);
    pthread_mutex_unlock(&w->mutex);
    if (count)
        memcpy(w->arena[c->rank] + at, data, (size_t)count * 4); /* without the lock: a wrong pointer ends here */
    pthread_mutex_lock(&w->mutex);
    while (i < LAB_SLOTS && w->slots[i].used) i++;
    if (i == LAB_SLOTS) lab__stop(w, "rank %d: more than %d messages wait for a receiver", c->rank, LAB_SLOTS);
    mine->bytes += count * 4, mine->messages++;
    if (lab_options.buffered) mine->clock += takes;
    w->slots[i] = (lab_slot){1, c->rank, to, ++w->orders, count, at, mine->clock};
    if (w->state[to].wait == LAB_RECEIVES && w->state[to].peer == c->rank) lab__wake(w, to);
    if (!lab_options.buffered) lab__wait(c, LAB_SENDS);
    pthread_mutex_unlock(&w->mutex);
}

/* The oldest message between two ranks; -1: none. */
static int64_t lab__oldest(const lab_world *w, int from, int to)
{
    int64_t found = -1;
    for (int64_t i = 0; i < LAB_SLOTS; i++)
        if (w->slots[i].used && w->slots[i].from == from && w->slots[i].to == to &&
            (found < 0 || w->slots[i].order < w->slots[found].order))
            found = i;
    return found;
}

void lab_recv(lab_comm *c, float *data, int64_t count, int from)
{
    lab_world *w = c->w;
    int64_t i, *clock = &w->counts[c->rank].clock;
    lab__message(c, "receives from", count, from);
    while ((i = lab__oldest(w, from, c->rank)) < 0) lab__wait(c, LAB_RECEIVES);
    if (w->slots[i].count != count)
        lab__stop(w, "rank %d receives %lld floats from rank %d, but the message has %lld", c->rank, (long long)count,
                  from, (long long)w->slots[i].count);
    pthread_mutex_unlock(&w->mutex);
    if (count) memcpy(data, w->arena[from] + w->slots[i].at, (size_t)count * 4);
    pthread_mutex_lock(&w->mutex);
    if (w->slots[i].clock > *clock) *clock = w->slots[i].clock;
    if (!lab_options.buffered) {
        *clock += lab_options.alpha + lab_options.beta * count; /* both ends are busy */
        w->counts[from].clock = *clock;
        lab__wake(w, from);
    }
    w->slots[i].used = 0, w->in_use[from]--;
    pthread_mutex_unlock(&w->mutex);
}

/* ---- collectives ---- */

/* All ranks have come: have they made the same call? */
static void lab__same(lab_world *w)
{
    for (int r = 1; r < w->ranks; r++)
        if (w->state[r].call != w->state[0].call || w->state[r].count != w->state[0].count ||
            w->state[r].root != w->state[0].root)
            lab__stop(w, "rank 0 calls %s with %lld floats and root %d while rank %d calls %s with %lld floats and "
                      "root %d", lab__names[w->state[0].call], (long long)w->state[0].count, w->state[0].root, r,
                      lab__names[w->state[r].call], (long long)w->state[r].count, w->state[r].root);
}

/* Brings `given` floats of each rank into the arena. Ends with the lock free. */
static void lab__enter(lab_comm *c, lab_call call, const float *in, int64_t count, int64_t given, int root)
{
    lab_world *w = c->w;
    int64_t bytes, n = w->ranks, generation;
    lab__begins(c);
    if (count < 0 || root < 0 || root >= w->ranks)
        lab__stop(w, "rank %d calls %s with %lld floats and root %d", c->rank, lab__names[call], (long long)count,
                  root);
    w->state[c->rank].call = call, w->state[c->rank].count = count, w->state[c->rank].root = root;
    w->state[c->rank].at = lab__room(c, given * 4);
    pthread_mutex_unlock(&w->mutex);
    if (given) memcpy(w->arena[c->rank] + w->state[c->rank].at, in, (size_t)given * 4);
    pthread_mutex_lock(&w->mutex);
    bytes = call == LAB_ALL_REDUCE ? 8 * (n - 1) * count / n : call == LAB_BROADCAST ? 4 * (n - 1) * count / n
                                                                                    : 4 * (n - 1) * count;
    w->counts[c->rank].calls[call]++, w->counts[c->rank].call_floats[call] += count;
    w->counts[c->rank].call_bytes += bytes;
    generation = w->generation;
    if (++w->arrived == w->ranks) {
        lab__same(w);
        for (int r = 0; r < w->ranks; r++) lab__wake(w, r);
        w->generation++;
    }
    if (generation == w->generation) lab__wait(c, LAB_COLLECTIVE);
    pthread_mutex_unlock(&w->mutex);
}

/* Waits until all ranks have taken their results. */
static void lab__exit(lab_comm *c)
{
    lab_world *w = c->w;
    int64_t emptied;
    pthread_mutex_lock(&w->mutex);
    emptied = w->emptied;
    if (++w->left == w->ranks) {
        w->arrived = w->left = 0, w->emptied++;
        for (int r = 0; r < w->ranks; r++) w->in_use[r]--, pthread_cond_signal(&w->changed[r]);
    }
    while (emptied == w->emptied && !w->stopped) pthread_cond_wait(&w->changed[c->rank], &w->mutex);
    if (w->stopped) lab__leave(w);
    pthread_mutex_unlock(&w->mutex);
}

static const float *lab__given(const lab_comm *c, int r)
{
    return (const float *)(const void *)(c->w->arena[r] + c->w->state[r].at);
}

/* The sum over ranks of element i, as a tree. */
static float lab__sum(const lab_comm *c, int64_t i)
{
    float x[LAB_RANKS];
    int n = c->w->ranks;
    for (int r = 0; r < n; r++) x[r] = lab__given(c, r)[i];
    for (int step = 1; step < n; step *= 2)
        for (int r = 0; r + step < n; r += 2 * step) x[r] += x[r + step];
    return x[0];
}

void lab_barrier(lab_comm *c)
{
    lab__enter(c, LAB_BARRIER, NULL, 0, 0, 0);
    lab__exit(c);
}
void lab_broadcast(lab_comm *c, float *data, int64_t count, int root)
{
    lab__enter(c, LAB_BROADCAST, data, count, c->rank == root ? count : 0, root);
    if (count) memcpy(data, lab__given(c, root), (size_t)count * 4);
    lab__exit(c);
}
void lab_all_reduce(lab_comm *c, float *data, int64_t count)
{
    lab__enter(c, LAB_ALL_REDUCE, data, count, count, 0);
    for (int64_t i = 0; i < count; i++) data[i] = lab__sum(c, i);
    lab__exit(c);
}
void lab_reduce_scatter(lab_comm *c, const float *in, float *out, int64_t count)
{
    lab__enter(c, LAB_REDUCE_SCATTER, in, count, count * c->w->ranks, 0);
    for (int64_t i = 0; i < count; i++) out[i] = lab__sum(c, c->rank * count + i);
    lab__exit(c);
}
void lab_all_gather(lab_comm *c, const float *in, float *out, int64_t count)
{
    lab__enter(c, LAB_ALL_GATHER, in, count, count, 0);
    for (int r = 0; r < c->w->ranks && count; r++) memcpy(out + r * count, lab__given(c, r), (size_t)count * 4);
    lab__exit(c);
}

/* ---- memory that counts ---- */

typedef struct lab_header {
    int64_t bytes, unused;
} lab_header;

void *lab_alloc(lab_comm *c, int64_t bytes)
{
    lab_counts *k = &c->w->counts[c->rank];
    lab_header *h;
    if (bytes < 0 || bytes > 1 << 24) lab_refuse(c, "asks lab_alloc for %lld bytes", (long long)bytes);
    if (posix_memalign((void **)&h, 64, sizeof *h + (size_t)bytes + LAB_CANARY)) lab_refuse(c, "gets no memory");
    memset(h, 0, sizeof *h + (size_t)bytes), memset((char *)(h + 1) + bytes, 0x5a, LAB_CANARY);
    h->bytes = bytes, k->memory += bytes;
    if (k->memory > k->peak) k->peak = k->memory;
    return h + 1;
}

void lab_free(lab_comm *c, void *p)
{
    lab_header *h = p ? (lab_header *)p - 1 : NULL;
    if (!h) return;
    for (int i = 0; i < LAB_CANARY; i++)
        if (((char *)p)[h->bytes + i] != 0x5a)
            lab_refuse(c, "wrote behind the end of an array of %lld bytes", (long long)h->bytes);
    c->w->counts[c->rank].memory -= h->bytes;
    free(h);
}

/* ---- a run ---- */

static void lab__child(lab_world *w, int rank, void (*program)(lab_comm *c, void *user), void *user)
{
    struct rlimit limit = {LAB_CPU_SECONDS, LAB_CPU_SECONDS + 1}, no_core = {0, 0};
    lab_comm c = {w, rank};
    setrlimit(RLIMIT_CPU, &limit), setrlimit(RLIMIT_CORE, &no_core);
    alarm(LAB_SECONDS);
    program(&c, user);
    fflush(stdout);
    pthread_mutex_lock(&w->mutex);
    w->state[rank].wait = LAB_RETURNED;
    lab__check(w);
    pthread_mutex_unlock(&w->mutex);
    _exit(0);
}

/* Why a rank's process ended, if not by a return. */
static void lab__cause(const lab_world *w, int rank, int status)
{
    int at = snprintf(lab_verdict, sizeof lab_verdict, "rank %d ", rank);
    char *to = lab_verdict + at;
    size_t room = sizeof lab_verdict - (size_t)at;
    if (WIFEXITED(status) && WEXITSTATUS(status) == LAB_STOPPED) memcpy(lab_verdict, w->verdict, sizeof lab_verdict);
    else if (WIFEXITED(status)) snprintf(to, room, "called exit(%d): return instead", WEXITSTATUS(status));
    else if (WTERMSIG(status) == SIGXCPU)
        snprintf(to, room, "computed for %d seconds and did not return: look for an endless loop", LAB_CPU_SECONDS);
    else if (WTERMSIG(status) == SIGALRM)
        snprintf(to, room, "did not return within %d seconds", LAB_SECONDS);
    else
        snprintf(to, room, "crashed: %s (signal %d); look for an index or a pointer out of range",
                 strsignal(WTERMSIG(status)), WTERMSIG(status));
}

static int lab__collect(lab_world *w, pid_t *pids)
{
    int fine = 1, status;
    for (int left = w->ranks; left > 0; left--) {
        pid_t pid = waitpid(-1, &status, 0);
        int rank = 0;
        while (rank < w->ranks - 1 && pids[rank] != pid) rank++;
        pids[rank] = 0;
        if (!fine || (WIFEXITED(status) && !WEXITSTATUS(status) && w->state[rank].wait == LAB_RETURNED)) continue;
        fine = 0;
        lab__cause(w, rank, status);
        for (int r = 0; r < w->ranks; r++)
            if (pids[r]) kill(pids[r], SIGKILL);
    }
    return fine;
}

/* Runs the program on so many ranks. 1: all have returned. 0: lab_verdict says why not. */
LAB_FN int lab_run(int ranks, void (*program)(lab_comm *c, void *user), void *user)
{
    lab_world *w = lab_shared(sizeof *w);
    pthread_mutexattr_t mutex;
    pthread_condattr_t changed;
    pid_t pids[LAB_RANKS];
    int fine;
    pthread_mutexattr_init(&mutex), pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_condattr_init(&changed), pthread_condattr_setpshared(&changed, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&w->mutex, &mutex);
    for (int r = 0; r < LAB_RANKS; r++) pthread_cond_init(&w->changed[r], &changed);
    w->ranks = ranks;
    fflush(stdout);
    lab_verdict[0] = 0;
    for (int r = 0; r < ranks; r++) {
        pids[r] = fork();
        if (pids[r] < 0) perror("fork"), exit(1);
        if (!pids[r]) lab__child(w, r, program, user);
    }
    fine = lab__collect(w, pids);
    memcpy(lab_counted, w->counts, sizeof lab_counted);
    munmap(w, sizeof *w);
    return fine;
}

/* lab_run, where a failure is the failure of the test <what>. A success prints nothing: the test goes on. */
LAB_PRINTF(4, 5) LAB_FN int lab_runs(int ranks, void (*program)(lab_comm *c, void *user), void *user,
                                     const char *format, ...)
{
    char what[300];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    if (lab_run(ranks, program, user)) return 1;
    lab_ok(0, "%s", what);
    lab_note("%s", lab_verdict);
    return 0;
}

/* FNV-1a of 64 bits, over bytes. */
LAB_FN uint64_t lab_hash(const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++) h = (h ^ byte[i]) * 1099511628211u;
    return h;
}

#endif
