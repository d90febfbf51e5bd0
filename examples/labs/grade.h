/* grade.h: what the graders of the labs share: tests in TAP or JSON, the verdict, the board, and the ranks of ranks.h.
 * Include it once, in grade.c, before any system header.
 *
 * The learner's file is a shared object that the grader never loads. Each rank is a process of its own: the grader's
 * program, started again with --rank, which loads the object. It gets its inputs as a copy, computes, prints, and
 * returns its outputs; other system calls fail. All messages go over a socket to the grader, which is the network: it
 * matches sends with receives, adds, counts, and sees a deadlock exactly: every rank has returned or waits. */
#ifndef LAB_GRADE_H
#define LAB_GRADE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "ranks.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define LAB_FN __attribute__((unused)) static
#define LAB_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define LAB_FORMAT(to, format) /* the arguments after format, as text */ \
    do { \
        va_list list; \
        va_start(list, format); \
        vsnprintf(to, sizeof(to), format, list); \
        va_end(list); \
    } while (0)
#pragma GCC diagnostic ignored "-Wunused-parameter" /* a function of ranks.h or of a table need not use its comm */
enum { LAB_RANKS = 8, LAB_SLOTS = 1024, LAB_MOST = 1 << 23, LAB_TEXT = 1200 };
enum { LAB_GIVEN = 500, LAB_CANARY = 16, LAB_KNOWN = 0x3a }; /* arrays; bytes at the end of one, in floats 0.0007 */
enum { LAB_CPU_SECONDS = 2, LAB_SECONDS = 60, LAB_CALLS = 5000, LAB_LINES = 40 }; /* of a rank; lines: of a run */
enum { LAB_PAINTED = 1 << 20, LAB_STATIC_FREE = 1024 }; /* bytes: of a rank's stack; of a file without data */

typedef void lab_program(lab_comm *c, void *in, void *out); /* what a rank does; in and out are its own */

/* What build.sh passes: the learner's file, the folder of the boards, the stub, the shared object. */
static struct {
    const char *lab, *file, *boards, *stub, *object;
} lab__call;
static unsigned long long lab_seed;         /* of all that is drawn */
static int lab_tries;                       /* how often this file was graded, with this time */
static int lab__filtered = 1, lab__endless; /* system calls are; runs that did not end */

/* FNV-1a of 64 bits, over bytes. */
LAB_FN uint64_t lab_hash(const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++) h = (h ^ byte[i]) * 1099511628211u;
    return h;
}

/* ---- drawn numbers ---- */

static uint64_t lab__random;

LAB_FN int lab_draw(int low, int high)
{
    lab__random = lab__random * 6364136223846793005u + 1442695040888963407u;
    return low + (int)((lab__random >> 33) % (unsigned)(high - low + 1));
}

/* Numbers in (-scale, scale). */
LAB_FN void lab_numbers(float *to, int64_t n, float scale)
{
    for (int64_t i = 0; i < n; i++) to[i] = scale * (float)lab_draw(-999999, 999999) / 1e6f;
}

/* ---- tests ---- */

static int lab__tests, lab__failures, lab__json, lab__notes; /* notes: of this test */
static int lab__unreached;                                   /* 1: the last run failed; 2: and a test has told why */
static int lab__same, lab__noted;                            /* how often the last note has come again; its test */
static char lab__note[LAB_TEXT];
static char lab_verdict[LAB_TEXT]; /* why the last run, or a lab's check, failed */

LAB_PRINTF(1, 2) LAB_FN int lab_wrong(const char *format, ...) /* sets lab_verdict */
{
    LAB_FORMAT(lab_verdict, format);
    return 0;
}

/* A learner's text could hold a line that looks like one of ours, or what JSON does not take. */
static void lab__clean(char *text)
{
    const unsigned last = lab__json ? 126 : 255;
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127 || (unsigned char)*text > last) *text = '?';
}

static void lab__quote(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        putchar((unsigned char)*text < ' ' ? '?' : *text);
    }
    putchar('"');
}

static void lab__said_once(void)
{
    if (lab__same) printf("# the note of test %d holds for %d more test%s\n", lab__noted, lab__same,
                           lab__same == 1 ? "" : "s");
    lab__same = 0;
}

LAB_PRINTF(1, 2) LAB_FN void lab_note(const char *format, ...)
{
    char text[LAB_TEXT];
    LAB_FORMAT(text, format);
    lab__clean(text);
    if (lab__unreached == 2 || (lab__json && !lab__tests)) return;
    if (lab__json) {
        printf("%s", lab__notes++ ? ", " : "");
        lab__quote(text);
    } else if (!strcmp(text, lab__note)) lab__same++;
    else {
        lab__said_once();
        memcpy(lab__note, text, sizeof text), lab__noted = lab__tests;
        printf("# %s\n", text);
    }
    fflush(stdout);
}

static void lab__opens(void)
{
    printf("{\"lab\": \"%s\", \"file\": ", lab__call.lab);
    lab__quote(lab__call.file);
    printf(", \"seed\": %llu, \"tests\": [", lab_seed);
}

/* After a run that failed, all tests fail until the next run: the first tells why, the others are not reached. */
LAB_PRINTF(2, 3) LAB_FN int lab_ok(int pass, const char *format, ...)
{
    char name[LAB_TEXT];
    LAB_FORMAT(name, format);
    if (lab__unreached) pass = 0;
    if (lab__unreached == 2) {
        char *end = strchr(name, ';') ? strchr(name, ';') : strchr(name, ':') ? strchr(name, ':') : strchr(name, 0);
        strcpy(end, ": not reached"); /* the numbers of a name come first here */
    }
    lab__tests++, lab__failures += !pass;
    if (lab__json) {
        if (lab__tests > 1) printf("]}, ");
        else lab__opens();
        printf("{\"name\": ");
        lab__quote(name);
        printf(", \"pass\": %s, \"notes\": [", pass ? "true" : "false");
        lab__notes = 0;
    } else printf("%s %d - %s\n", pass ? "ok" : "not ok", lab__tests, name);
    fflush(stdout);
    if (lab__unreached == 1) lab_note("%s", lab_verdict);
    if (lab__unreached) lab__unreached = 2;
    return pass;
}

/* ---- score, board and verdict ---- */

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
    if (lab__json || !(f = fopen(path, "r"))) return;
    while (n < 1000 && fgets(lines[n].text, sizeof lines[n].text, f)) lines[n].score = atof(lines[n].text), n++;
    fclose(f);
    qsort(lines, (size_t)n, sizeof lines[0], lab__better);
    printf("board, best first (%s):\n", path);
    for (int i = 0; i < n && i < 5; i++) printf("  %d. %s", i + 1, lines[i].text);
}

static char lab__nonce[100]; /* of build.sh, which no rank sees; then the verdict */

/* Prints the plan, the score, the board if all tests passed, and the verdict; unit NULL: the lab has no board, and
 * score does not count. Returns the exit status. */
LAB_FN int lab_end(double score, const char *unit)
{
    int passed = lab__tests - lab__failures, scored = unit && !lab__failures;
    char verdict[100], *end = lab__nonce + strlen(lab__nonce);
    int length = snprintf(verdict, 70, "%d of %d, seed %llu", passed, lab__tests, lab_seed);
    memcpy(end, verdict, (size_t)length + 1);
    if (end > lab__nonce)
        snprintf(verdict + length, 20, ", %016llx", (unsigned long long)lab_hash(lab__nonce, strlen(lab__nonce)));
    if (!lab__json) {
        lab__said_once();
        if (!lab__filtered)
            printf("# this machine cannot filter system calls: a wrong file may leave files and processes\n");
        printf("1..%d\nscore: %d of %d tests", lab__tests, passed, lab__tests);
        if (scored) printf(", %.0f %s", score, unit);
        printf("\n");
    }
    if (scored) lab__board(score, unit);
    if (!lab__json) printf("verdict: %s\n", verdict);
    else {
        printf("]}], \"passed\": %d, \"total\": %d, \"score\": ", passed, lab__tests);
        if (scored) printf("%.0f, \"unit\": \"%s\"", score, unit);
        else printf("null, \"unit\": null");
        printf(", \"tries\": %d, \"filtered\": %s, \"verdict\": \"%s\"}\n", lab_tries, lab__filtered ? "true" : "false",
               verdict);
    }
    return lab__failures != 0;
}

/* ---- a rank: what its process does ---- */

/* What goes to the grader, and back: this, and then so many bytes. */
typedef struct lab_packet {
    int32_t what, peer; /* peer: of a message; the root; a lab's question */
    int64_t count, bytes;
} lab_packet;
typedef enum lab_call { /* the first five are collectives */
    LAB_BARRIER, LAB_BROADCAST, LAB_ALL_REDUCE, LAB_REDUCE_SCATTER, LAB_ALL_GATHER,
    LAB_SEND, LAB_RECEIVE, LAB_ALLOC, LAB_FREE, LAB_ASK, LAB_READY, LAB_REFUSE, LAB_LOAD, LAB_RETURN
} lab_call;
enum { LAB_NONCE = 3, LAB_SOCKET = 3 }; /* file descriptors: of the grader, of a rank */

struct lab_comm {
    int rank, size;
};

static void *lab__loaded; /* the learner's object */
static char lab__scratch[sizeof(lab_packet) + LAB_MOST];

/* 1: all bytes have been read or written. 0: the other end has gone, or does not listen. */
static int lab__transfer(int socket, int writes, void *data, size_t bytes)
{
    char *at = data;
    while (bytes) {
        ssize_t n = writes ? write(socket, at, bytes) : read(socket, at, bytes);
        if (n <= 0) return 0;
        at += n, bytes -= (size_t)n;
    }
    return 1;
}

/* Bytes of floats; -1: no message has so many. */
static int64_t lab__bytes(int64_t count) { return count < 0 || count > LAB_MOST / 4 ? -1 : count * 4; }

static void lab__look(void);

/* Asks the grader, and waits for its answer, of which `room` bytes go to `out`. Copies to and from the learner's arrays
 * outside of system calls: a wrong pointer ends here. */
static int64_t lab__ask(lab_call what, int peer, int64_t count, const void *data, int64_t bytes, void *out,
                        int64_t room)
{
    lab_packet p = {(int32_t)what, peer, count, bytes < 0 || bytes > LAB_MOST ? 0 : bytes};
    if (what <= LAB_RECEIVE) lab__look();
    memcpy(lab__scratch, &p, sizeof p);
    if (p.bytes) memcpy(lab__scratch + sizeof p, data, (size_t)p.bytes);
    if (!lab__transfer(LAB_SOCKET, 1, lab__scratch, sizeof p + (size_t)p.bytes) ||
        !lab__transfer(LAB_SOCKET, 0, &p, sizeof p) || !lab__transfer(LAB_SOCKET, 0, lab__scratch, (size_t)p.bytes))
        _exit(0); /* the grader has ended the run */
    if (p.bytes && room) memcpy(out, lab__scratch, (size_t)(p.bytes < room ? p.bytes : room));
    return p.count;
}

int lab_rank(const lab_comm *c) { return c->rank; }
int lab_size(const lab_comm *c) { return c->size; }
void lab_send(lab_comm *c, const float *data, int64_t count, int to)
{
    lab__ask(LAB_SEND, to, count, data, lab__bytes(count), NULL, 0);
}
void lab_recv(lab_comm *c, float *data, int64_t count, int from)
{
    lab__ask(LAB_RECEIVE, from, count, NULL, 0, data, lab__bytes(count));
}
void lab_barrier(lab_comm *c) { lab__ask(LAB_BARRIER, 0, 0, NULL, 0, NULL, 0); }
void lab_broadcast(lab_comm *c, float *data, int64_t count, int root)
{
    int64_t bytes = lab__bytes(count);
    lab__ask(LAB_BROADCAST, root, count, data, c->rank == root ? bytes : 0, data, c->rank == root ? 0 : bytes);
}
void lab_all_reduce(lab_comm *c, float *data, int64_t count)
{
    lab__ask(LAB_ALL_REDUCE, 0, count, data, lab__bytes(count), data, lab__bytes(count));
}
void lab_reduce_scatter(lab_comm *c, const float *in, float *out, int64_t count)
{
    lab__ask(LAB_REDUCE_SCATTER, 0, count, in, lab__bytes(count) * c->size, out, lab__bytes(count));
}
void lab_all_gather(lab_comm *c, const float *in, float *out, int64_t count)
{
    lab__ask(LAB_ALL_GATHER, 0, count, in, lab__bytes(count), out, lab__bytes(count) * c->size);
}

/* A lab's own calls: the grader's lab_on_ask gets them. */
LAB_FN int64_t lab_ask(int question, int64_t number, const void *data, int64_t bytes, void *out, int64_t room)
{
    return lab__ask(LAB_ASK, question, number, data, bytes, out, room);
}

/* Ends the run: "rank 1 <sentence>". */
__attribute__((noreturn)) LAB_PRINTF(1, 2) LAB_FN void lab_refuse(const char *format, ...)
{
    char text[LAB_TEXT / 2];
    LAB_FORMAT(text, format);
    lab__ask(LAB_REFUSE, 0, 0, text, (int64_t)sizeof text, NULL, 0);
    _exit(0);
}

/* Memory that the learner is given: pages of its own, so that what is freed cannot be used any more. Known bytes fill
 * the last page, and are looked at when the rank talks to others: nothing is kept there. */
static struct {
    unsigned char *at; /* NULL: free */
    size_t bytes, whole;
} lab__given[LAB_GIVEN];

static void *lab__give(size_t bytes)
{
    int i = 0;
    size_t whole = (bytes + LAB_CANARY + 4095) / 4096 * 4096;
    void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    while (i < LAB_GIVEN && lab__given[i].at) i++;
    if (p == MAP_FAILED || i == LAB_GIVEN) lab_refuse("gets no memory: it has %d arrays", i);
    memset((char *)p + bytes, LAB_KNOWN, whole - bytes);
    lab__given[i].at = p, lab__given[i].bytes = bytes, lab__given[i].whole = whole;
    return p;
}

static void lab__look(void)
{
    for (int i = 0; i < LAB_GIVEN; i++)
        for (size_t k = lab__given[i].bytes; lab__given[i].at && k < lab__given[i].whole; k++)
            if (lab__given[i].at[k] != LAB_KNOWN)
                lab_refuse("wrote past the end of an array of %zu bytes", lab__given[i].bytes);
}

/* Returns its bytes. */
static int64_t lab__take(void *p)
{
    int i = 0;
    lab__look();
    while (i < LAB_GIVEN && lab__given[i].at != p) i++;
    if (i == LAB_GIVEN)
        lab_refuse("gives lab_free an address that lab_alloc did not return, or one that is free already");
    munmap(p, lab__given[i].whole), lab__given[i].at = NULL;
    return (int64_t)lab__given[i].bytes;
}

void *lab_alloc(lab_comm *c, int64_t bytes)
{
    if (bytes < 0) lab_refuse("asks lab_alloc for %lld bytes", (long long)bytes);
    lab__ask(LAB_ALLOC, 0, bytes, NULL, 0, NULL, 0);
    return lab__give((size_t)bytes);
}

void lab_free(lab_comm *c, void *p)
{
    if (p) lab__ask(LAB_FREE, 0, lab__take(p), NULL, 0, NULL, 0);
}

/* A copy that the learner may use until lab_unlend: nothing can be kept there or be read beside it. */
LAB_FN void *lab_lend(const void *data, size_t bytes) { return memcpy(lab__give(bytes), data, bytes); }
LAB_FN void lab_unlend(void *p) { lab__take(p); }

/* LAB_ITS(train)(c, w) calls the learner's train. */
#define LAB_ITS(name) (*(__typeof__(&name))(uintptr_t)lab__symbol(#name))

static void lab__cannot_load(const char *text)
{
    lab__ask(LAB_LOAD, 0, 0, text, (int64_t)strlen(text) + 1, NULL, 0);
    _exit(0);
}

LAB_FN void *lab__symbol(const char *name)
{
    void *p = dlsym(lab__loaded, name);
    char text[200];
    snprintf(text, sizeof text, "%s is missing", name);
    if (!p) lab__cannot_load(text);
    return p;
}

static int lab__object; /* the file of the learner's object, open */

/* The loader opens one file, and gets the object. Every later open fails: there is a seed to read. */
static void lab__opens_file(int signal, siginfo_t *info, void *context)
{
    static int opened;
    const int result = opened++ ? -EPERM : lab__object;
    ucontext_t *u = context;
#if defined(__x86_64__)
    u->uc_mcontext.gregs[REG_RAX] = result;
#elif defined(__aarch64__)
    u->uc_mcontext.regs[0] = (unsigned long long)result;
#endif
}

/* From here on the process can compute, allocate, write to what it has open, start threads, and end itself. All other
 * calls of the kernel fail: there is no file, shared memory, socket, process or signal for what has to stay in this
 * life. Returns 0 where the machine has no such filter. */
static int lab__filter(void)
{
    const struct sigaction opens = {.sa_sigaction = lab__opens_file, .sa_flags = SA_SIGINFO};
#if defined(__x86_64__)
    const unsigned machine = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
    const unsigned machine = AUDIT_ARCH_AARCH64;
#else
    const unsigned machine = 0;
#endif
    static const int fine[] = {
        SYS_read, SYS_readv, SYS_write, SYS_writev, SYS_pread64, SYS_close, SYS_fstat, SYS_newfstatat, SYS_lseek,
        SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_brk, SYS_futex, SYS_rt_sigaction,
        SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sigaltstack, SYS_exit, SYS_exit_group, SYS_clock_gettime,
        SYS_clock_nanosleep, SYS_nanosleep, SYS_getrandom, SYS_getpid, SYS_gettid, SYS_sched_yield,
        SYS_sched_getaffinity, SYS_set_robust_list, SYS_rseq};
    enum { N = sizeof fine / sizeof fine[0] };
#define LAB_LOADS(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define LAB_RETURNS(value) BPF_STMT(BPF_RET | BPF_K, value)
#define LAB_IF(test, value, skip) BPF_JUMP(BPF_JMP | (test) | BPF_K, (unsigned)(value), 0, skip)
#define LAB_CASE(call, argument, test, value, yes, no) \
    LAB_IF(BPF_JEQ, call, 4), LAB_LOADS(args[argument]), LAB_IF(test, value, 1), LAB_RETURNS(yes), LAB_RETURNS(no)
    enum { YES = SECCOMP_RET_ALLOW, NO = SECCOMP_RET_ERRNO | EPERM };
    struct sock_filter code[2 * N + 30] = {LAB_LOADS(arch), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, machine, 1, 0),
                                           LAB_RETURNS(NO), LAB_LOADS(nr)};
    const struct sock_filter rest[] = {LAB_IF(BPF_JEQ, SYS_openat, 1),
                                       LAB_RETURNS(SECCOMP_RET_TRAP),
                                       LAB_CASE(SYS_clone, 0, BPF_JSET, CLONE_THREAD, YES, NO),
                                       LAB_CASE(SYS_tgkill, 0, BPF_JEQ, getpid(), YES, NO),
                                       LAB_IF(BPF_JEQ, SYS_clone3, 1),
                                       LAB_RETURNS(SECCOMP_RET_ERRNO | ENOSYS),
                                       LAB_RETURNS(NO)};
    struct sock_fprog program = {4 + 2 * N + sizeof rest / sizeof rest[0], code};
    for (size_t i = 0; i < N; i++) {
        code[4 + 2 * i] = (struct sock_filter)LAB_IF(BPF_JEQ, fine[i], 1);
        code[5 + 2 * i] = (struct sock_filter)LAB_RETURNS(YES);
    }
    memcpy(code + 4 + 2 * N, rest, sizeof rest);
    return machine && !sigaction(SIGSYS, &opens, NULL) && !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
           !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static volatile char *lab__painted; /* the lowest byte of the stack that was painted */
static int64_t lab__stack_before;

__attribute__((noinline)) static void lab__paint(void)
{
    lab__painted = __builtin_alloca(LAB_PAINTED);
    for (int i = 0; i < LAB_PAINTED; i++) lab__painted[i] = LAB_KNOWN;
}

/* How deep the stack has gone since lab__paint. */
static int64_t lab__stack(void)
{
    int64_t clean = 0;
    while (clean < LAB_PAINTED && lab__painted[clean] == LAB_KNOWN) clean++;
    return LAB_PAINTED - clean;
}

/* The stack counts from here on: the library has been called once, which goes deep. */
LAB_FN void lab_counts_stack(void) { lab__stack_before = lab__stack(); }

/* What is below the painted bytes is out of reach: the stack ends there. `top` is at its other end. */
static void lab__limits_stack(const char *top)
{
    const rlim_t deep = (rlim_t)(top - (const char *)__builtin_frame_address(0)) + LAB_PAINTED + 8192;
    setrlimit(RLIMIT_STACK, &(struct rlimit){deep, deep});
}

/* The process of a rank, started with: --rank, the learner's object. */
__attribute__((noreturn)) static void lab__rank(lab_program *program, const char *object)
{
    lab_packet hello;
    lab_comm c;
    void *in, *out;
    int filtered;
    lab__transfer(LAB_SOCKET, 0, &hello, sizeof hello);
    c.rank = hello.what, c.size = hello.peer;
    in = calloc(1, (size_t)hello.bytes + 1), out = calloc(1, (size_t)hello.count + 1);
    if (!in || !out) _exit(1);
    lab__transfer(LAB_SOCKET, 0, in, (size_t)hello.bytes);
    setvbuf(stdout, NULL, _IONBF, 0); /* a crash leaves nothing unsaid */
    lab__limits_stack(object);
    lab__object = open(object, O_RDONLY);
    filtered = lab__filter();
    if (!(lab__loaded = dlopen(object, RTLD_NOW))) lab__cannot_load(dlerror());
    lab__ask(LAB_READY, filtered, 0, NULL, 0, NULL, 0);
    lab__paint();
    program(&c, in, out);
    hello.what = (int)(lab__stack() - lab__stack_before);
    lab__ask(LAB_RETURN, hello.what, 0, out, hello.count, NULL, 0);
    _exit(0);
}

/* ---- the network: what the grader does ---- */

typedef enum lab_wait { LAB_MOVES, LAB_SENDS, LAB_RECEIVES, LAB_COLLECTIVE, LAB_RETURNED } lab_wait;
static const char *const lab__names[] = {"barrier", "broadcast", "all-reduce", "reduce-scatter", "all-gather"};

/* What the grader counts of a rank. Collectives count what a ring sends. */
typedef struct lab_counts {
    int64_t bytes, messages, clock, all_calls;    /* clock: of messages, in the unit of lab_options */
    int64_t calls[5], call_floats[5], call_bytes; /* by lab_call */
    int64_t memory, peak, stack;                  /* bytes: of lab_alloc now, and at most; depth */
} lab_counts;

typedef struct lab_process {
    pid_t pid;
    int socket, prints, loaded, length;
    lab_wait wait;
    lab_packet packet;           /* that arrives, or for which the rank waits */
    size_t got;                  /* bytes of it, head and body */
    char *body, *out, line[160]; /* body: and a zero. line: what it prints */
} lab_process;

typedef struct lab_message { /* on its way */
    int from, to;
    int64_t count, clock;
    char *data;
} lab_message;

/* For the next lab_run: how messages behave, and who looks at what goes into collectives. */
static struct {
    int buffered;
    int64_t alpha, beta; /* clock: a message takes alpha + beta x floats */
    void (*watch)(int rank, lab_call call, const float *data, int64_t count);
} lab_options;
typedef struct lab_question { /* of lab_ask */
    int rank, what;
    int64_t number, bytes, reply_bytes;
    const char *data;
    const void *reply; /* with reply_bytes; it stays until the next question */
} lab_question;
static int64_t (*lab_on_ask)(lab_question *q); /* of the lab */
static lab_counts lab_counted[LAB_RANKS];      /* by the last lab_run */

static struct {
    int ranks, stopped, arrived, returned, lines;
    size_t out_bytes;
    lab_process rank[LAB_RANKS];
    lab_message slot[LAB_SLOTS]; /* in the order of their sends */
    int slots;
} lab__net;

/* Ends the run. */
LAB_PRINTF(1, 2) LAB_FN int lab_stop(const char *format, ...)
{
    if (!lab__net.stopped++) LAB_FORMAT(lab_verdict, format);
    return 0;
}

static int lab__nonsense(int r) { return lab_stop("rank %d talks to the grader in a way that lab.h does not", r); }

/* For lab_on_ask: is the question of this size, and its number of 0 .. below - 1? */
LAB_FN int lab_fits(const lab_question *q, int64_t bytes, int64_t below)
{
    return (q->bytes == bytes && q->number >= 0 && q->number < below) || lab__nonsense(q->rank);
}

/* Answers a rank's call: it goes on. */
static void lab__reply(int r, int64_t count, const void *data, int64_t bytes)
{
    lab_packet p = {0, 0, count, bytes};
    lab__net.rank[r].wait = LAB_MOVES;
    if (bytes) memmove(lab__scratch + sizeof p, data, (size_t)bytes);
    memcpy(lab__scratch, &p, sizeof p);
    lab__transfer(lab__net.rank[r].socket, 1, lab__scratch, sizeof p + (size_t)bytes); /* its end is seen elsewhere */
}

static size_t lab__says(int r, char *to, size_t room)
{
    const lab_process *p = &lab__net.rank[r];
    long long n = (long long)p->packet.count, calls = 0;
    int length;
    for (int k = 0; k < 5; k++) calls += (long long)lab_counted[r].calls[k];
    if (p->wait == LAB_RETURNED) length = snprintf(to, room, "rank %d has returned", r);
    else if (p->wait == LAB_COLLECTIVE)
        length = snprintf(to, room, "rank %d waits in %s, its collective number %lld", r, lab__names[p->packet.what],
                          calls);
    else
        length = snprintf(to, room, p->wait == LAB_SENDS ? "rank %d waits to send %lld floats to rank %d"
                                                         : "rank %d waits for %lld floats from rank %d",
                          r, n, p->packet.peer);
    return (size_t)length < room ? (size_t)length : room;
}

/* After a rank has begun to wait or has returned: can any rank still move? */
static void lab__check(void)
{
    char text[LAB_TEXT] = "";
    size_t at = 0;
    for (int r = 0; r < lab__net.ranks; r++)
        if (lab__net.rank[r].wait == LAB_MOVES) return;
    if (lab__net.returned == lab__net.ranks) return;
    for (int r = 0; r < lab__net.ranks && at + 100 < sizeof text; r++) {
        if (r) at += (size_t)snprintf(text + at, sizeof text - at, "; ");
        at += lab__says(r, text + at, sizeof text - at);
    }
    lab_stop("deadlock: %s", text);
}

/* ---- messages ---- */

/* Gives message i to its receiver, which waits for it. */
static void lab__deliver(int i)
{
    lab_message m = lab__net.slot[i];
    int64_t *clock = &lab_counted[m.to].clock, wants = lab__net.rank[m.to].packet.count;
    if (m.count != wants) {
        lab_stop("rank %d receives %lld floats from rank %d, but the message has %lld", m.to, (long long)wants, m.from,
                 (long long)m.count);
        return;
    }
    if (m.clock > *clock) *clock = m.clock;
    if (!lab_options.buffered) {
        *clock += lab_options.alpha + lab_options.beta * m.count; /* both ends are busy */
        lab_counted[m.from].clock = *clock;
        lab__reply(m.from, 0, NULL, 0);
    }
    lab__reply(m.to, 0, m.data, m.count * 4);
    free(m.data);
    memmove(&lab__net.slot[i], &lab__net.slot[i + 1], sizeof m * (size_t)(--lab__net.slots - i));
}

/* The oldest message between two ranks; -1: none. */
static int lab__oldest(int from, int to)
{
    for (int i = 0; i < lab__net.slots; i++)
        if (lab__net.slot[i].from == from && lab__net.slot[i].to == to) return i;
    return -1;
}

static int lab__is_message(int r, const char *what)
{
    const lab_packet *q = &lab__net.rank[r].packet;
    if (q->peer < 0 || q->peer >= lab__net.ranks || q->peer == r)
        lab_stop("rank %d %s rank %d, but the ranks are 0 to %d, and a rank sends nothing to itself", r, what, q->peer,
                 lab__net.ranks - 1);
    else if (q->count < 0 || q->count > LAB_MOST / 4)
        lab_stop("rank %d %s rank %d: %lld floats, but a message has 0 to %d", r, what, q->peer, (long long)q->count,
                 LAB_MOST / 4);
    return !lab__net.stopped;
}

static void lab__sends(int r)
{
    lab_process *p = &lab__net.rank[r];
    const lab_packet q = p->packet;
    lab_counts *mine = &lab_counted[r];
    if (!lab__is_message(r, "sends to")) return;
    if (lab__net.slots == LAB_SLOTS) lab_stop("rank %d: more than %d messages wait for a receiver", r, LAB_SLOTS);
    if (q.bytes != q.count * 4) lab__nonsense(r);
    if (lab__net.stopped) return;
    mine->bytes += q.bytes, mine->messages++;
    if (lab_options.buffered) mine->clock += lab_options.alpha + lab_options.beta * q.count;
    lab__net.slot[lab__net.slots++] = (lab_message){r, q.peer, q.count, mine->clock, p->body};
    p->body = NULL, p->wait = LAB_SENDS;
    if (lab_options.buffered) lab__reply(r, 0, NULL, 0);
    if (lab__net.rank[q.peer].wait == LAB_RECEIVES && lab__net.rank[q.peer].packet.peer == r)
        lab__deliver(lab__oldest(r, q.peer));
}

static void lab__receives(int r)
{
    lab_process *p = &lab__net.rank[r];
    int i;
    if (!lab__is_message(r, "receives from")) return;
    p->wait = LAB_RECEIVES;
    if ((i = lab__oldest(p->packet.peer, r)) >= 0) lab__deliver(i);
}

/* ---- collectives ---- */

static const char *lab__called(int r, char (*text)[100])
{
    const lab_packet *q = &lab__net.rank[r].packet;
    int n = snprintf(*text, sizeof *text, "rank %d calls %s", r, lab__names[q->what]);
    if (q->what != LAB_BARRIER)
        n += snprintf(*text + n, sizeof *text - (size_t)n, " with %lld floats", (long long)q->count);
    if (q->what == LAB_BROADCAST) snprintf(*text + n, sizeof *text - (size_t)n, " and root %d", q->peer);
    return *text;
}

/* All ranks have come: have they made the same call? */
static int lab__agree(void)
{
    char one[100], other[100];
    const lab_packet *a = &lab__net.rank[0].packet;
    for (int r = 1; r < lab__net.ranks; r++) {
        const lab_packet *b = &lab__net.rank[r].packet;
        if (a->what == b->what && a->count == b->count && a->peer == b->peer) continue;
        return lab_stop("%s while %s", lab__called(0, &one), lab__called(r, &other));
    }
    return 1;
}

/* Adds the vectors of all ranks, as a tree, into that of rank 0. */
static void lab__add(int64_t count)
{
    for (int step = 1; step < lab__net.ranks; step *= 2)
        for (int r = 0; r + step < lab__net.ranks; r += 2 * step) {
            float *x = (float *)(void *)lab__net.rank[r].body;
            const float *y = (const float *)(const void *)lab__net.rank[r + step].body;
            for (int64_t i = 0; i < count; i++) x[i] += y[i];
        }
}

static void lab__answers_all(void)
{
    const lab_packet q = lab__net.rank[0].packet;
    int n = lab__net.ranks;
    int64_t bytes = q.count * 4;
    char *first = lab__net.rank[q.what == LAB_BROADCAST ? q.peer : 0].body;
    if (q.what == LAB_ALL_REDUCE || q.what == LAB_REDUCE_SCATTER)
        lab__add(q.what == LAB_ALL_REDUCE ? q.count : q.count * n);
    if (q.what == LAB_ALL_GATHER) {
        first = lab__scratch + sizeof(lab_packet);
        for (int r = 0; r < n && bytes; r++) memcpy(first + r * bytes, lab__net.rank[r].body, (size_t)bytes);
    }
    for (int r = 0; r < n; r++)
        if (q.what == LAB_ALL_GATHER) lab__reply(r, 0, first, n * bytes);
        else lab__reply(r, 0, q.what == LAB_REDUCE_SCATTER ? first + r * bytes : first, bytes);
    for (int r = 0; r < n; r++) free(lab__net.rank[r].body), lab__net.rank[r].body = NULL;
    lab__net.arrived = 0;
}

static void lab__collective(int r)
{
    lab_process *p = &lab__net.rank[r];
    const lab_packet q = p->packet;
    lab_counts *mine = &lab_counted[r];
    int64_t n = lab__net.ranks, given = q.what == LAB_BROADCAST && q.peer != r ? 0 : q.count;
    const int fits = q.count >= 0 && q.count <= LAB_MOST / 4 / n && q.peer >= 0 && q.peer < n;
    if (fits && q.what == LAB_REDUCE_SCATTER) given *= n;
    if (!fits || q.bytes != given * 4) {
        lab_stop("rank %d calls %s with %lld floats and root %d: at most %lld floats, and a root below %lld", r,
                 lab__names[q.what], (long long)q.count, q.peer, (long long)(LAB_MOST / 4 / n), (long long)n);
        return;
    }
    mine->calls[q.what]++, mine->call_floats[q.what] += q.count;
    mine->call_bytes += q.what == LAB_ALL_REDUCE  ? 8 * (n - 1) * q.count / n
                        : q.what == LAB_BROADCAST ? 4 * (n - 1) * q.count / n
                                                  : 4 * (n - 1) * q.count;
    if (lab_options.watch) lab_options.watch(r, (lab_call)q.what, (const float *)(const void *)p->body, given);
    p->wait = LAB_COLLECTIVE;
    if (++lab__net.arrived == n && lab__agree()) lab__answers_all();
}

/* ---- what a rank asks ---- */

/* lab_alloc, or with a negative number lab_free. */
static void lab__allocates(int r, int64_t bytes)
{
    lab_counts *mine = &lab_counted[r];
    if (bytes < -mine->memory || bytes > 1 << 24)
        lab_stop("rank %d asks lab_alloc for %lld bytes, and gets 0 to %d", r, (long long)bytes, 1 << 24);
    mine->memory += bytes;
    if (mine->memory > mine->peak) mine->peak = mine->memory;
    if (!lab__net.stopped) lab__reply(r, 0, NULL, 0);
}

/* A lab's file does not fit its lab.h: there is nothing to grade. */
__attribute__((noreturn)) static void lab__misfit(char *text)
{
    fflush(stdout), lab__clean(text);
    fprintf(stderr, "%s: %s. Define all that examples/labs/%s/lab.h asks for.\n", lab__call.file, text, lab__call.lab);
    exit(1);
}

static void lab__loads(int r)
{
    const lab_packet *q = &lab__net.rank[r].packet;
    lab__net.rank[r].loaded = 1, lab__filtered &= q->peer;
    lab__reply(r, 0, NULL, 0);
}

/* A whole packet is there. */
static void lab__handle(int r)
{
    lab_process *p = &lab__net.rank[r];
    const lab_packet q = p->packet;
    lab_question asked = {r, q.peer, q.count, q.bytes, 0, p->body, NULL};
    if (q.what <= LAB_RECEIVE && ++lab_counted[r].all_calls > LAB_CALLS)
        lab_stop("rank %d makes more than %d calls: look for an endless loop", r, LAB_CALLS);
    else if (q.what >= LAB_BARRIER && q.what <= LAB_ALL_GATHER) lab__collective(r);
    else if (q.what == LAB_SEND) lab__sends(r);
    else if (q.what == LAB_RECEIVE) lab__receives(r);
    else if (q.what == LAB_ALLOC && q.count >= 0) lab__allocates(r, q.count);
    else if (q.what == LAB_FREE && q.count >= 0) lab__allocates(r, -q.count);
    else if (q.what == LAB_READY && !p->loaded) lab__loads(r);
    else if (q.what == LAB_ASK && lab_on_ask) {
        int64_t number = lab_on_ask(&asked);
        if (!lab__net.stopped) lab__reply(r, number, asked.reply, asked.reply_bytes);
    } else if (q.what == LAB_REFUSE && q.bytes) lab_stop("rank %d %s", r, p->body);
    else if (q.what == LAB_LOAD && q.bytes && !lab__tests) lab__misfit(p->body);
    else if (q.what == LAB_RETURN && p->loaded && (size_t)q.bytes == lab__net.out_bytes) {
        lab_counted[r].stack = q.peer, p->out = p->body, p->body = NULL;
        p->wait = LAB_RETURNED, lab__net.returned++;
    } else lab__nonsense(r);
    if (p->wait != LAB_COLLECTIVE) free(p->body), p->body = NULL;
    if (!lab__net.stopped) lab__check();
}

/* ---- a run ---- */

/* One line of what a rank prints; the first so many of a run, and of all runs, are shown. */
static void lab__line(int r)
{
    static int all;
    lab_process *p = &lab__net.rank[r];
    p->line[p->length] = 0, p->length = 0;
    lab__clean(p->line);
    if (lab__json || lab__net.lines > LAB_LINES || all > 5 * LAB_LINES) return;
    if (lab__net.lines++ == LAB_LINES || all++ == 5 * LAB_LINES) printf("# the ranks print more: it is not shown\n");
    else printf("# rank %d prints: %s\n", r, p->line);
}

static void lab__prints(int r)
{
    lab_process *p = &lab__net.rank[r];
    char text[4096];
    ssize_t n = read(p->prints, text, sizeof text);
    if (n == 0) close(p->prints), p->prints = -1;
    for (ssize_t i = 0; i < n; i++) {
        if (text[i] != '\n') p->line[p->length++] = text[i];
        if (text[i] == '\n' || p->length == sizeof p->line - 1) lab__line(r);
    }
}

/* Why a rank's process ended, if not by a return. */
static void lab__ended(int r, int status)
{
    lab__net.rank[r].pid = 0;
    if (WIFEXITED(status) && !lab__net.rank[r].loaded)
        lab_stop("rank %d ended with status %d while your file was loaded: remove the constructor that ends it", r,
                 WEXITSTATUS(status));
    else if (WIFEXITED(status)) lab_stop("rank %d called exit(%d): return instead", r, WEXITSTATUS(status));
    else if (WTERMSIG(status) == SIGXCPU)
        lab_stop("rank %d computed for %d seconds and did not return: look for an endless loop", r, LAB_CPU_SECONDS);
    else
        lab_stop("rank %d crashed: %s (signal %d); look for %s", r, strsignal(WTERMSIG(status)), WTERMSIG(status),
                 WTERMSIG(status) == SIGFPE    ? "a division of whole numbers by zero"
                 : WTERMSIG(status) == SIGABRT ? "an assert, or an array that was written past its end"
                                               : "an index or a pointer out of range, endless recursion, or local "
                                                 "arrays of more than 1 MB");
    lab__endless += WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU;
}

static void lab__hears(int r)
{
    lab_process *p = &lab__net.rank[r];
    int status;
    while (!lab__net.stopped && p->wait != LAB_RETURNED) {
        size_t head = sizeof p->packet, whole = p->got < head ? head : head + (size_t)p->packet.bytes;
        char *to = p->got < head ? (char *)&p->packet + p->got : p->body + (p->got - head);
        ssize_t n = recv(p->socket, to, whole - p->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n <= 0) { /* its process has ended, or wants to */
            kill(p->pid, SIGKILL);
            waitpid(p->pid, &status, 0);
            lab__ended(r, status);
            return;
        }
        p->got += (size_t)n;
        if (p->got == head) {
            int fits = p->wait == LAB_MOVES && p->packet.bytes >= 0 && p->packet.bytes <= LAB_MOST;
            if (!fits || !(p->body = calloc(1, (size_t)p->packet.bytes + 1))) lab__nonsense(r);
            whole = head + (size_t)p->packet.bytes;
        }
        if (p->got == whole && p->got >= head && !lab__net.stopped) p->got = 0, lab__handle(r);
    }
}

static void lab__start(int r, const char *in, size_t in_bytes)
{
    const struct rlimit cpu = {LAB_CPU_SECONDS, LAB_CPU_SECONDS + 1}, none = {0, 0};
    const struct rlimit memory = {(rlim_t)1 << 30, (rlim_t)1 << 30};
    const struct timeval late = {5, 0};
    lab_process *p = &lab__net.rank[r];
    const char *args[] = {"rank", "--rank", lab__call.object, NULL};
    lab_packet hello = {r, lab__net.ranks, (int64_t)lab__net.out_bytes, (int64_t)in_bytes};
    int pair[2], prints[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) || pipe2(prints, O_CLOEXEC)) perror("lab"), exit(1);
    if ((p->pid = fork()) < 0) perror("fork"), exit(1);
    if (!p->pid) {
        dup2(open("/dev/null", O_RDONLY), 0), dup2(prints[1], 1), dup2(prints[1], 2), dup2(pair[1], LAB_SOCKET);
        for (int fd = LAB_SOCKET + 1; fd < 256; fd++) close(fd);
        for (int cap = 0; cap < 64; cap++) prctl(PR_CAPBSET_DROP, cap, 0, 0, 0); /* root's rights, too, end here */
        setrlimit(RLIMIT_CPU, &cpu), setrlimit(RLIMIT_CORE, &none), setrlimit(RLIMIT_FSIZE, &none);
        setrlimit(RLIMIT_AS, &memory);
        execve("/proc/self/exe", (char *const *)(uintptr_t)args, (char *[]){NULL});
        _exit(127);
    }
    close(pair[1]), close(prints[1]);
    p->socket = pair[0], p->prints = prints[0];
    setsockopt(p->socket, SOL_SOCKET, SO_SNDTIMEO, &late, sizeof late);
    if (lab__transfer(p->socket, 1, &hello, sizeof hello)) lab__transfer(p->socket, 1, (void *)(uintptr_t)in, in_bytes);
}

/* Waits for packets, prints and ends until the run is over. */
static void lab__serve(void)
{
    struct timespec now;
    struct pollfd fds[2 * LAB_RANKS];
    time_t begin;
    int n = lab__net.ranks, status;
    clock_gettime(CLOCK_MONOTONIC, &now), begin = now.tv_sec;
    while (!lab__net.stopped && lab__net.returned < n) {
        for (int r = 0; r < n; r++) {
            lab_process *p = &lab__net.rank[r];
            fds[2 * r] = (struct pollfd){p->wait == LAB_RETURNED ? -1 : p->socket, POLLIN, 0};
            fds[2 * r + 1] = (struct pollfd){p->prints, POLLIN, 0};
        }
        if (!poll(fds, (nfds_t)(2 * n), 200)) /* a process that has left its socket to another one */
            for (int r = 0; r < n; r++)
                if (lab__net.rank[r].wait != LAB_RETURNED && waitpid(lab__net.rank[r].pid, &status, WNOHANG) > 0)
                    lab__ended(r, status);
        for (int r = 0; r < n; r++) {
            if (fds[2 * r + 1].revents) lab__prints(r);
            if (fds[2 * r].revents) lab__hears(r);
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        for (int r = 0; r < n && now.tv_sec - begin > LAB_SECONDS; r++)
            if (lab__net.rank[r].wait == LAB_MOVES)
                lab__endless++, lab_stop("rank %d did not return within %d seconds", r, LAB_SECONDS);
    }
}

static void lab__finish(int r)
{
    lab_process *p = &lab__net.rank[r];
    if (p->pid) kill(p->pid, SIGKILL), waitpid(p->pid, NULL, 0);
    if (p->prints >= 0 && !fcntl(p->prints, F_SETFL, O_NONBLOCK))
        for (struct pollfd more = {p->prints, POLLIN, 0}; p->prints >= 0 && poll(&more, 1, 0) > 0;) lab__prints(r);
    if (p->length) lab__line(r);
    close(p->socket), free(p->body), free(p->out);
    if (p->prints >= 0) close(p->prints);
}

/* Runs the lab's program on so many ranks. Each gets in_bytes of `in` and returns out_bytes of `out`. 1: all have
 * returned. 0: lab_verdict says why not, `out` is zeros, and the tests up to the next run are not reached. */
LAB_FN int lab_run(int ranks, const void *in, size_t in_bytes, void *out, size_t out_bytes)
{
    int started = 0;
    memset(&lab__net, 0, sizeof lab__net), memset(lab_counted, 0, sizeof lab_counted);
    memset(out, 0, out_bytes * (size_t)ranks);
    lab__net.ranks = ranks, lab__net.out_bytes = out_bytes;
    lab__unreached = 0;
    if (lab__endless > 1) lab_stop("is not started, because two runs before did not end");
    fflush(stdout);
    for (; started < ranks && !lab__net.stopped; started++)
        lab__start(started, (const char *)in + in_bytes * (size_t)started, in_bytes);
    lab__serve();
    for (int r = 0; r < started; r++) {
        const lab_process *p = &lab__net.rank[r];
        if (!lab__net.stopped) memcpy((char *)out + out_bytes * (size_t)r, p->out, out_bytes);
        lab__finish(r);
    }
    while (lab__net.slots) free(lab__net.slot[--lab__net.slots].data);
    lab__unreached = lab__net.stopped;
    return !lab__net.stopped;
}

/* The outputs of the last run are no good, and lab_verdict says why: as if the run had failed. */
LAB_FN void lab_fails(void) { lab__unreached += !lab__unreached; }

/* After tests of a run: the next ones need no run. */
LAB_FN void lab_reached(void) { lab__unreached = 0; }

/* ---- the learner's object, and the start ---- */

/* Bytes of the segments of the learner's object that can be written, beyond those of a file without data. */
static int64_t lab__statics(void)
{
    int64_t bytes = -LAB_STATIC_FREE;
    ElfW(Ehdr) head;
    ElfW(Phdr) part;
    int object = open(lab__call.object, O_RDONLY | O_CLOEXEC);
    if (object < 0 || read(object, &head, sizeof head) != sizeof head) perror(lab__call.object), exit(1);
    for (int i = 0; i < head.e_phnum; i++)
        if (pread(object, &part, sizeof part, (off_t)(head.e_phoff + (unsigned)i * sizeof part)) == sizeof part &&
            ((part.p_type == PT_LOAD && part.p_flags & PF_W) || part.p_type == PT_TLS))
            bytes += (int64_t)part.p_memsz;
    close(object);
    return bytes > 0 ? bytes : 0;
}

/* Bytes that a rank has used at most: lab_alloc, static variables, and the stack from so many bytes on. */
LAB_FN int64_t lab_memory(int rank, int64_t stack_free)
{
    int64_t stack = lab_counted[rank].stack - stack_free;
    return lab_counted[rank].peak + lab__statics() + (stack > 0 ? stack : 0);
}

/* Of a test about memory: says where it is, if not in lab_alloc. */
LAB_FN void lab_note_memory(int rank, int64_t stack_free)
{
    if (lab__statics()) lab_note("%lld bytes of it are static variables", (long long)lab__statics());
    if (lab_counted[rank].stack > stack_free)
        lab_note("%lld bytes of it are local variables: the first %lld do not count",
                 (long long)(lab_counted[rank].stack - stack_free), (long long)stack_free);
}

static void lab__options(int argc, char **argv)
{
    for (int i = 5; i < argc; i++) {
        const char *number = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--json")) lab__json = 1;
        else if (!strcmp(argv[i], "--tries")) lab_tries = atoi(number), i++;
        else if (!strcmp(argv[i], "--nonce")) {
            ssize_t n = read(LAB_NONCE, lab__nonce, 20);
            lab__nonce[n > 0 ? n : 0] = 0, close(LAB_NONCE);
        } else if (!strcmp(argv[i], "--seed")) {
            size_t digits = strspn(number, "0123456789");
            if (!digits || number[digits] || digits > 18)
                fprintf(stderr, "--seed '%s': not a whole number of at most 18 digits. Write --seed 7.\n", number),
                    exit(2);
            lab_seed = strtoull(number, NULL, 10), i++;
        } else
            fprintf(stderr, "'%s' is not an option of a lab. The options are --seed N and --json.\n", argv[i]), exit(2);
    }
}

/* What main begins with. In the process of a rank it does not return. Unless the lab has set lab_seed, it is
 * drawn: so large that no rank finds it by trying. */
LAB_FN void lab_begin(const char *lab, lab_program *program, int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--rank")) lab__rank(program, argv[2]);
    if (argc < 5) fprintf(stderr, "Grade a file with ./build.sh lab %d FILE.\n", atoi(lab)), exit(2);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* no rank reads this process */
    signal(SIGPIPE, SIG_IGN);
    lab__call.lab = lab, lab__call.file = argv[1], lab__call.boards = argv[2], lab__call.stub = argv[3];
    lab__call.object = argv[4];
    if (!lab_seed && getrandom(&lab_seed, sizeof lab_seed, 0) > 0) lab_seed = lab_seed % 1000000000000 + 1;
    lab__options(argc, argv);
    lab__random = lab_seed;
    if (!lab__json) printf("lab %s: %s, seed %llu\n", lab, lab__call.file, lab_seed);
}

#endif
