/* 20_network: what does a message cost before it reaches a wire?
 *
 * What you learn
 *     - Through shared memory a message is a store by one rank and a load by the other. Through a socket it is at least
 *       one write() and one read(), a copy into the kernel and a copy out of it, and often two changes of process.
 *     - Small messages pay that each time: 8 bytes at a time make 250000 calls per MB, 64 kB at a time some 30.
 *     - A kernel bypass (libfabric over EFA, verbs over InfiniBand) does the same with a network card: the program puts
 *       a message into a queue that the card reads, and polls another queue. The kernel only sets up the queues.
 *     - A bypass does not bring "sub-microsecond latency between instances". Shared memory is that fast, inside one
 *       machine; light alone needs 0.5 us for 100 m of fibre. AWS promises that EFA's latency is lower and steadier
 *       than TCP's, and gives no number. Plan with 20 us until you have measured it.
 *     - The kernel counts bytes per interface in /proc/net/dev and calls per thread in /proc. These counters tell
 *       which way a job's bytes take; the bytes of a fast transport are missing there.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 20_network.c -o 20_network -lm -lpthread
 *     ./20_network --ranks 2
 *
 * What it prints (~: measured)
 *     0.320 MB in messages of 8 bytes, to and fro: half a round trip
 *                             us  best 1%  below 1    calls/MB     calls   counted  MB counted  switches/MB  MB by lo
 *       shared memory      ~0.08    ~0.08      yes           0         0         0       0.000           ~3    ~0.000
 *       TCP, loopback     ~15.62    ~9.82       no      250000     80000     80000       0.640       ~87500    ~2.400
 *     67.109 MB in messages of 65536 bytes, one way
 *       TCP, loopback                    ~1376         ~33     ~2212     ~2212     134.218           ~4   ~67.618
 *     ok: ~164314 calls of sockets, as the kernel counts; shared memory 0; lo carried TCP's 67.429 MB
 *
 * Predict first: which of the four ways need no read() and write(), and how many does 1 MB of 8-byte messages need by
 *     TCP?
 * Exercise: send 1500 bytes at a time, an Ethernet frame, instead of 8. How many calls per MB? Is a message slower?
 *
 * Read on: 21_data_sheet.c for the units in which networks are sold, 24_link.c for what they are worth by size. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MEMORY, MESSAGES, UNIX, TCP, WAYS };
enum { CHUNK = 65536, CHUNKS = 1024, SLOTS = 4, ROUNDS = 20000, SMALL = 8 };
static const char *const names[WAYS] = {"shared memory", "dt_send, dt_recv", "Unix socket", "TCP, loopback"};
static int64_t counted[3]; /* read() and write() without a socket and with one; bytes by TCP */

/* Of read() and write(): calls and bytes; changes of process; bytes that the loopback device has received. */
typedef struct tally {
    int64_t calls, bytes, switches, loopback;
} tally;

/* What a rank shares with the other one. seen: by the program's own count; told: by the kernel's. */
typedef struct board {
    unsigned filled, unused[31], emptied, unused_too[31]; /* on cache lines of their own: each has another writer */
    struct sockaddr_storage address;
    socklen_t length;
    tally seen, told;
    char slots[SLOTS][CHUNK];
} board;

typedef struct way {
    int kind, socket, peer;
    dt_comm *c;
    board *mine, *theirs;
    unsigned given, taken;
} way;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Until the other side has counted so far. Where cores are short, it must be let run: a call that moves nothing. */
static void await(const unsigned *word, unsigned count)
{
    for (unsigned polls = 1; (int)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - count) < 0; polls++)
        if (polls % 65536 == 0) sched_yield();
}

static dt_result through_socket(way *w, char *data, size_t bytes, int writes)
{
    while (bytes) {
        ssize_t n = writes ? write(w->socket, data, bytes) : read(w->socket, data, bytes);
        if (n <= 0) return perror(names[w->kind]), DT_E_SYSTEM;
        w->mine->seen.calls++, w->mine->seen.bytes += n, data += n, bytes -= (size_t)n;
    }
    return DT_OK;
}

static dt_result give(way *w, void *data, size_t bytes)
{
    if (w->kind == MESSAGES) return dt_send(w->c, (const float *)data, (int64_t)bytes / 4, w->peer);
    if (w->kind != MEMORY) return through_socket(w, data, bytes, 1);
    await(&w->mine->emptied, w->given + 1 - SLOTS);
    memcpy(w->mine->slots[w->given % SLOTS], data, bytes);
    __atomic_store_n(&w->mine->filled, ++w->given, __ATOMIC_RELEASE);
    return DT_OK;
}

static dt_result take(way *w, void *data, size_t bytes)
{
    if (w->kind == MESSAGES) return dt_recv(w->c, (float *)data, (int64_t)bytes / 4, w->peer);
    if (w->kind != MEMORY) return through_socket(w, data, bytes, 0);
    await(&w->theirs->filled, w->taken + 1);
    memcpy(data, w->theirs->slots[w->taken % SLOTS], bytes);
    __atomic_store_n(&w->theirs->emptied, ++w->taken, __ATOMIC_RELEASE);
    return DT_OK;
}

/* One socket between the two ranks: rank 0 waits for the other at an address that the kernel chooses. */
static dt_result open_socket(way *w)
{
    int yes = 1, family = w->kind == UNIX ? AF_UNIX : AF_INET, s = socket(family, SOCK_STREAM, 0);
    board *b = w->peer ? w->mine : w->theirs; /* rank 0's */
    struct sockaddr_in in;
    dt_result r = s < 0 ? DT_E_SYSTEM : DT_OK;
    memset(&in, 0, sizeof in);
    in.sin_family = (sa_family_t)family, in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (w->peer) b->length = sizeof b->address;
    if (w->peer && !r && (bind(s, (struct sockaddr *)&in, family == AF_UNIX ? sizeof(sa_family_t) : sizeof in) ||
                          listen(s, 1) || getsockname(s, (struct sockaddr *)&b->address, &b->length)))
        r = DT_E_SYSTEM;
    if (!r) r = dt_barrier(w->c);
    if (!w->peer && !r && connect(s, (struct sockaddr *)&b->address, b->length)) r = DT_E_SYSTEM;
    w->socket = w->peer && !r ? accept(s, NULL, NULL) : s;
    if (w->peer) close(s);
    if (w->kind == TCP && !r) (void)setsockopt(w->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (w->socket < 0 || r == DT_E_SYSTEM) return perror(names[w->kind]), DT_E_SYSTEM;
    return r;
}

/* A file of the kernel's counters, in one read(), which the kernel counts, too: ours adds these up. */
static void counters(const char *path, char *text, size_t size, tally *ours)
{
    int file = open(path, O_RDONLY);
    ssize_t n = file < 0 ? 0 : read(file, text, size - 1);
    text[n > 0 ? n : 0] = 0;
    ours->calls++, ours->bytes += n > 0 ? n : 0;
    if (file >= 0) close(file);
}

static int64_t counter(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? atoll(at + strlen(name)) : -1;
}

/* The kernel's counts so far, of this thread, process and machine, without our looking at them. 0: it tells. */
static int look(tally *t)
{
    static __thread tally ours;
    char device[4096], io[1024];
    tally before;
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    counters("/proc/self/net/dev", device, sizeof device, &ours);
    before = ours;
    counters("/proc/thread-self/io", io, sizeof io, &ours);
    t->calls = counter(io, "syscr:") + counter(io, "syscw:") - before.calls;
    t->bytes = counter(io, "rchar:") + counter(io, "wchar:") - before.bytes;
    t->switches = u.ru_nvcsw + u.ru_nivcsw, t->loopback = counter(device, "lo:");
    return counter(io, "syscr:") < 0 || t->loopback < 0;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* 8 bytes there and back: half of each round, sorted. */
static dt_result ping_pong(way *w, double *us, int *good)
{
    uint32_t ball[SMALL / 4] = {0, 0};
    dt_result r = DT_OK;
    for (uint32_t i = 0; i < ROUNDS && !r; i++) {
        double start = now();
        if (w->peer) ball[1] = i, r = give(w, ball, SMALL);
        if (!r) r = take(w, ball, SMALL);
        if (!w->peer && !r) ball[0]++, r = give(w, ball, SMALL);
        us[i] = 1e6 * (now() - start) / 2;
        *good = *good && ball[0] == i + 1 && ball[1] == i;
    }
    qsort(us, ROUNDS, sizeof *us, by_size);
    return r;
}

/* Rank 0 sends, rank 1 looks at every byte. */
static dt_result stream(way *w, uint32_t *data, uint32_t *inbox, int *good)
{
    dt_result r = DT_OK;
    for (uint32_t i = 0; i < CHUNK / 4; i++) data[i] = i * 2654435761u;
    for (uint32_t i = 0; i < CHUNKS && !r; i++) {
        data[0] = i;
        r = w->peer ? give(w, data, CHUNK) : take(w, inbox, CHUNK);
        if (!w->peer) *good = *good && !memcmp(inbox, data, CHUNK);
    }
    return r;
}

/* A line of the table: one way, with small messages or large ones; rank 0 prints what both did. */
static dt_result measure(way *w, int large, uint32_t *data, double *us, int *good)
{
    int64_t payload = large ? (int64_t)CHUNK * CHUNKS : 2 * SMALL * ROUNDS, calls, bytes;
    double megabytes = 1e-6 * (double)payload, start;
    board *m = w->mine, *t = w->theirs;
    dt_result r = dt_barrier(w->c); /* the board's last numbers are printed */
    int untold = look(&m->told);
    tally first = m->told;
    memset(&m->seen, 0, sizeof m->seen);
    if (!r) r = dt_barrier(w->c);
    start = now();
    if (!r) r = large ? stream(w, data, data + CHUNK / 4, good) : ping_pong(w, us, good);
    if (!r) r = dt_barrier(w->c);
    start = now() - start;
    (void)look(&m->told);
    m->told.calls -= first.calls, m->told.bytes -= first.bytes;
    m->told.switches -= first.switches, m->told.loopback -= first.loopback;
    if (!r) r = dt_barrier(w->c);
    if (r || !w->peer) return r;
    if (untold) return printf("%s: this kernel does not tell what it counts\n", names[w->kind]), *good = 0, r;
    calls = m->told.calls + t->told.calls, bytes = m->told.bytes + t->told.bytes;
    *good = *good && bytes == (w->kind < UNIX ? 0 : 2 * payload); /* each byte written and read */
    *good = *good && calls == m->seen.calls + t->seen.calls && bytes == m->seen.bytes + t->seen.bytes;
    *good = *good && (w->kind != TCP || m->told.loopback >= payload);
    counted[w->kind >= UNIX] += calls, counted[2] += w->kind == TCP ? payload : 0; /* all by lo, as checked */
    printf("  %-16s", names[w->kind]);
    if (large)
        printf("%26.0f", megabytes / start);
    else
        printf("%8.2f%9.2f%9s", us[ROUNDS / 2], us[ROUNDS / 100], us[ROUNDS / 100] < 1 ? "yes" : "no");
    printf("%12.0f%10lld%10lld%12.3f%13.0f%10.3f\n", (double)calls / megabytes,
           (long long)(m->seen.calls + t->seen.calls), (long long)calls, 1e-6 * (double)bytes,
           (double)(m->told.switches + t->told.switches) / megabytes, 1e-6 * (double)m->told.loopback);
    return r;
}

static dt_result ways(dt_comm *c, board *mine, board *theirs, int *good)
{
    uint32_t *data = (uint32_t *)malloc(2 * CHUNK);
    double *us = (double *)malloc(ROUNDS * sizeof *us);
    way w[WAYS];
    dt_result r = data && us ? DT_OK : DT_E_MEMORY;
    memset(w, 0, sizeof w);
    for (int k = 0; k < WAYS && !r; k++) {
        w[k].kind = k, w[k].peer = !dt_comm_rank(c), w[k].c = c, w[k].mine = mine, w[k].theirs = theirs;
        if (k >= UNIX) r = open_socket(&w[k]);
    }
    for (int large = 0; large < 2; large++) {
        if (w[0].peer)
            printf("%s%.3f MB in messages of %d bytes, %s\n  %42s%12s%10s%10s%12s%13s%10s\n", large ? "\n" : "",
                   1e-6 * (large ? 1.0 * CHUNK * CHUNKS : 2.0 * SMALL * ROUNDS), large ? CHUNK : SMALL,
                   large ? "one way" : "to and fro: half a round trip", large ? "MB/s" : "us  best 1%  below 1",
                   "calls/MB", "calls", "counted", "MB counted", "switches/MB", "MB by lo");
        for (int k = 0; k < WAYS && !r; k++) r = measure(&w[k], large, data, us, good);
    }
    for (int k = UNIX; k < WAYS; k++)
        if (w[k].socket > 0) close(w[k].socket);
    free(data), free(us);
    return r;
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    void *mine = NULL;
    cpu_set_t core;
    int rank, good = 1;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("20_network");
    rank = dt_comm_rank(c);
    CPU_ZERO(&core);
    CPU_SET((size_t)rank, &core);
    (void)sched_setaffinity(0, sizeof core, &core); /* a core each, where there are two for us */
    if (argc > 1 || dt_comm_size(c) != 2 || dt_comm_nodes(c) != 1)
        return rank ? 2 : (fprintf(stderr, "20_network: the option is --ranks 2, on one machine\n"), 2);
    r = dt_comm_alloc(c, sizeof(board), &mine);
    if (!r) r = ways(c, (board *)mine, (board *)dt_comm_peer(c, mine, !rank), &good);
    dt_comm_close(&c);
    if (r) return dt_fail("20_network");
    if (!good) return fprintf(stderr, "FAILED: a byte or a count of calls is wrong\n"), 1;
    if (!rank) printf("ok: %lld calls of sockets, as the kernel counts; shared memory %lld; lo carried TCP's %.3f MB\n",
                      (long long)counted[1], (long long)counted[0], 1e-6 * (double)counted[2]);
    return 0;
}
