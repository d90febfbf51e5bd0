/* One rank of a test of the engine for libfabric: ofi_messages SCENARIO .., started with a launcher's variables by
 * test_ofi.t. Says on standard error what is wrong, and ends with 1 then. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

static dt__link *fabric;
static int rank, size, failures;

static void check(int good, const char *what, long long detail)
{
    if (good) return;
    fprintf(stderr, "rank %d: %s (%lld)\n", rank, what, detail);
    failures++;
}

static void begin(dt__message *m, int sends, char *data, int64_t bytes, int peer, uint32_t tag)
{
    memset(m, 0, sizeof *m);
    if (dt__link_start(fabric, m, sends, peer, tag, data, bytes)) {
        fprintf(stderr, "rank %d: %s\n", rank, dt_last_error());
        exit(1);
    }
}

static int done(dt__message *m) { return __atomic_load_n(&m->done, __ATOMIC_ACQUIRE); }

/* Waits for the end of a message, at most so long. */
static int finish_within(dt__message *m, double seconds)
{
    double end = dt__now() + seconds;
    while (!done(m) && dt__now() < end) {
        if (dt__link_move(fabric)) {
            fprintf(stderr, "rank %d: %s\n", rank, dt_last_error());
            exit(1);
        }
        if (!done(m)) sched_yield();
    }
    return done(m);
}
static int finish(dt__message *m) { return finish_within(m, 20); }

/* Bytes that tell who sent them, how and when. */
static void fill(char *data, int64_t bytes, int from, uint32_t tag, int turn)
{
    uint32_t x = (uint32_t)from * 2654435761u + tag * 40503u + (uint32_t)turn * 69069u + 1u;
    for (int64_t i = 0; i < bytes; i++) {
        x = x * 1664525u + 1013904223u;
        data[i] = (char)(x >> 24);
    }
}
static int holds(const char *data, int64_t bytes, int from, uint32_t tag, int turn)
{
    char *want = (char *)malloc((size_t)bytes + 1);
    int same;
    fill(want, bytes, from, tag, turn);
    same = !memcmp(want, data, (size_t)bytes);
    free(want);
    return same;
}

static void meet(void)
{
    dt__message a, b;
    char none = 0;
    for (int step = 1; step < size; step *= 2) {
        begin(&a, 1, &none, 0, (rank + step) % size, 0x3f000000u);
        begin(&b, 0, &none, 0, (rank + size - step) % size, 0x3f000000u);
        check(finish(&a) == 1 && finish(&b) == 1, "no barrier", step);
    }
}

/* Every rank to the next one; the receive is longer than the message. */
static void sizes(void)
{
    static const int64_t bytes[] = {0, 1, 17, 4096, 20000, 65536, 1048579};
    char *out = (char *)malloc(1100000), *in = (char *)malloc(1100000);
    for (int turn = 0; turn < 7; turn++) {
        dt__message a, b;
        int to = (rank + 1) % size, from = (rank + size - 1) % size;
        fill(out, bytes[turn], rank, 7, turn);
        memset(in, 0x55, 1100000);
        begin(&b, 0, in, bytes[turn] + (turn & 1) * 100, from, 7);
        begin(&a, 1, out, bytes[turn], to, 7);
        check(finish(&a) == 1 && finish(&b) == 1, "not done", turn);
        check(b.moved == bytes[turn] && b.peer == from, "length or sender", b.moved);
        check(holds(in, bytes[turn], from, 7, turn), "content of size", bytes[turn]);
        for (int i = 0; i < 100; i++) check(in[bytes[turn] + i] == 0x55, "written behind the message", i);
    }
    free(out);
    free(in);
    meet();
}

/* Many messages with one tag, short and long in turn, come in their order; some before their receives are there. */
static void order(void)
{
    enum { COUNT = 300, LONG = 40000 };
    dt__message *m = (dt__message *)calloc(COUNT, sizeof *m);
    char *data = (char *)malloc((size_t)COUNT * LONG);
    for (int i = 0; i < COUNT && rank < 2; i++) {
        int64_t bytes = i % 3 ? 1 + i % 50 : LONG - i;
        if (rank == 0) fill(data + i * LONG, bytes, 0, 5, i);
        if (rank == 0) begin(&m[i], 1, data + i * LONG, bytes, 1, 5);
        else begin(&m[i], 0, data + i * LONG, LONG, 0, 5);
    }
    for (int i = 0; i < COUNT && rank < 2; i++) {
        int64_t bytes = i % 3 ? 1 + i % 50 : LONG - i;
        check(finish(&m[i]) == 1, "message not done", i);
        if (rank == 1) check(m[i].moved == bytes && holds(data + i * LONG, bytes, 0, 5, i), "out of order", i);
    }
    free(m);
    free(data);
    meet();
}

/* Tags are taken in the other order than they were sent, one receive at a time; long ones too. */
static void tags(void)
{
    enum { COUNT = 40, LONG = 300000 };
    dt__message *m = (dt__message *)calloc(COUNT, sizeof *m);
    char *data = (char *)malloc((size_t)COUNT * LONG);
    for (int i = 0; i < COUNT && rank == 0; i++) {
        fill(data + i * LONG, i % 2 ? LONG : 9, 0, 100u + (uint32_t)i, 0);
        begin(&m[i], 1, data + i * LONG, i % 2 ? LONG : 9, 1, 100u + (uint32_t)i);
    }
    for (int i = COUNT - 1; i >= 0 && rank < 2; i--) {
        if (rank == 1) begin(&m[i], 0, data + i * LONG, LONG, 0, 100u + (uint32_t)i);
        check(finish(&m[i]) == 1, "tag not done", i);
        if (rank == 1) check(holds(data + i * LONG, i % 2 ? LONG : 9, 0, 100u + (uint32_t)i, 0), "content of tag", i);
    }
    free(m);
    free(data);
    meet();
}

/* Rank 0 takes from anyone, twice from each of the others. */
static void any(void)
{
    char data[2000];
    int seen[64] = {0};
    dt__message m;
    for (int i = 0; i < 2 * (size - 1) && rank == 0; i++) {
        begin(&m, 0, data, sizeof data, DT__FROM_ANY, 9);
        check(finish(&m) == 1 && m.peer > 0 && m.peer < size, "from any", i);
        if (m.peer < 1 || m.peer >= size) break;
        check(m.moved == 1000 + m.peer && holds(data, m.moved, m.peer, 9, seen[m.peer]++), "content from", m.peer);
    }
    for (int turn = 0; turn < 2 && rank; turn++) {
        fill(data, 1000 + rank, rank, 9, turn);
        begin(&m, 1, data, 1000 + rank, 0, 9);
        check(finish(&m) == 1, "to rank 0", turn);
    }
    meet();
}

/* A message that is longer than its receive, short and long; the next ones come through. */
static void truncated(void)
{
    static const int64_t bytes[] = {100, 5000, 50000, 1000000};
    char *data = (char *)malloc(1000000);
    for (int i = 0; i < 4 && rank < 2; i++) {
        dt__message m;
        if (rank == 0) {
            fill(data, bytes[i], 0, 11, i);
            begin(&m, 1, data, bytes[i], 1, 11);
            check(finish(&m) == 1, "sender of one that is too long", bytes[i]);
            begin(&m, 1, data, 40, 1, 11);
            check(finish(&m) == 1, "sender after one that is too long", bytes[i]);
        } else {
            memset(data, 0x55, 1000000);
            begin(&m, 0, data, 60, 0, 11);
            check(finish(&m) == DT__TOO_LONG, "not found to be too long", m.done);
            check(data[60] == 0x55, "written behind the receive", bytes[i]);
            begin(&m, 0, data, 60, 0, 11);
            check(finish(&m) == 1 && m.moved == 40 && holds(data, 40, 0, 11, i), "the one behind it", bytes[i]);
        }
    }
    free(data);
    meet();
}

/* The same with memory registered, as some providers want it. */
static void registered(void)
{
    dt__ofi *f = (dt__ofi *)fabric;
    f->registers = 1;
    sizes();
    order();
    tags();
    f->registers = 0;
    meet();
}

/* Two threads on both sides, each with its tags. */
static void *one_thread(void *argument)
{
    int me = (int)(intptr_t)argument, peer = rank ^ 1;
    char *out = (char *)malloc(100000), *in = (char *)malloc(100000);
    for (int turn = 0; turn < 100 && peer < size; turn++) {
        dt__message a, b;
        int64_t bytes = turn % 7 ? 10 * turn : 100000;
        uint32_t tag = 20u + (uint32_t)me;
        fill(out, bytes, rank, tag, turn);
        begin(&a, 1, out, bytes, peer, tag);
        begin(&b, 0, in, 100000, peer, tag);
        if (finish(&a) != 1 || finish(&b) != 1 || !holds(in, bytes, peer, tag, turn))
            __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
    }
    free(out);
    free(in);
    return NULL;
}
static void threads(void)
{
    pthread_t t[2];
    for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, one_thread, (void *)(intptr_t)i);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    check(!failures, "with two threads", failures);
    meet();
}

/* A receive that is given up does not eat a message that comes later. */
static void cancelled(void)
{
    char data[100];
    dt__message m, n;
    if (rank == 1) {
        double start = dt__now();
        begin(&m, 0, data, 100, 0, 13);
        begin(&n, 0, data, 100, DT__FROM_ANY, 13);
        dt__link_move(fabric);
        dt__message_cancel(fabric, &m);
        dt__message_cancel(fabric, &n);
        check(dt__now() - start < 1, "cancel takes long", 0);
    }
    meet();
    memset(data, 0x55, sizeof data);
    if (rank == 0) fill(data, 50, 0, 13, 0);
    if (rank == 0) begin(&m, 1, data, 50, 1, 13);
    if (rank == 1) begin(&m, 0, data, 100, 0, 13);
    if (rank < 2) check(finish(&m) == 1, "after a cancel", m.done);
    if (rank == 1) check(m.moved == 50 && holds(data, 50, 0, 13, 0) && data[50] == 0x55, "content after a cancel", 0);
    meet();
}

/* A send whose receiver never takes it: after a cancel its memory may be freed. */
static void unsent(void)
{
    char *data = (char *)malloc(4000000);
    dt__message m, n;
    memset(data, 1, 4000000);
    if (rank == 0) {
        double start = dt__now();
        begin(&m, 1, data, 4000000, 1, 14);
        begin(&n, 1, data, 10, 1, 15);
        finish_within(&m, 0.2);
        dt__message_cancel(fabric, &m);
        check(dt__now() - start < 2, "cancel of a send takes long", 0);
        memset(data, 0x66, 4000000);
    } else if (rank == 1) {
        begin(&m, 0, data, 4000000, 0, 16);
        check(finish_within(&m, 5) != 1, "a message that nobody sent", m.done);
        dt__message_cancel(fabric, &m);
    }
    free(data);
}

/* A long message on its way to a rank that stands still: after a cancel its memory may be freed, and all else is lost.
 * Over shared memory it may have come at one blow. */
static void frozen(void)
{
    const int64_t bytes = 200000000;
    char *data = (char *)calloc(1, (size_t)bytes);
    dt__message m, n;
    double start;
    meet();
    if (rank == 0) {
        memset(data, 1, (size_t)bytes);
        begin(&m, 1, data, bytes, 1, 17);
        if (!finish_within(&m, 1)) {
            start = dt__now();
            dt__message_cancel(fabric, &m);
            check(dt__now() - start < 2 && m.done, "cancel of a message under way takes long", m.done);
            begin(&n, 1, data, 10, 1, 17);
            check(finish(&n) == DT__LOST, "a later message is not lost", n.done);
        }
    } else if (rank == 1) {
        pid_t child;
        begin(&m, 0, data, bytes, 0, 17);
        while (!finish_within(&m, 0.001) && !data[0]) continue;
        if ((child = fork()) == 0) {
            sleep(2);
            kill(getppid(), SIGCONT);
            _exit(0);
        }
        raise(SIGSTOP);
        waitpid(child, NULL, 0);
        check(finish(&m) != 0, "a message whose sender gave up", m.done);
    }
    free(data);
}

/* More than 2^31 bytes, in pieces of 1 GB. */
static void large(void)
{
    const int64_t bytes = ((int64_t)1 << 31) + 12345;
    char *data = (char *)malloc((size_t)bytes);
    dt__message m;
    if (rank == 0) {
        fill(data, bytes, 0, 18, 0);
        begin(&m, 1, data, bytes, 1, 18);
    } else if (rank == 1) begin(&m, 0, data, bytes, 0, 18);
    if (rank < 2) check(finish_within(&m, 100) == 1 && m.moved == bytes, "not done", m.done);
    if (rank == 1) check(holds(data, bytes, 0, 18, 0), "content", bytes);
    free(data);
    meet();
}

/* The last rank dies while all others send to it and receive from it: these messages never end, can be cancelled, and
 * hold up no message to anybody else. */
static void killed(void)
{
    char data[3][200000];
    dt__message m[3];
    double start;
    meet();
    if (rank == size - 1) {
        begin(&m[0], 1, data[0], 64, 0, 40);
        finish(&m[0]);
        raise(SIGKILL);
    }
    begin(&m[0], 0, data[0], 100, size - 1, 30);
    begin(&m[1], 0, data[1], 200000, size - 1, 31);
    begin(&m[2], 1, data[2], 200000, size - 1, 32);
    for (int i = 0; i < 3; i++) check(finish_within(&m[i], 0.3) != 1, "a message with a dead rank ended well", i);
    start = dt__now();
    for (int i = 0; i < 3; i++) dt__message_cancel(fabric, &m[i]);
    check(dt__now() - start < 1, "cancel takes long", 0);
    if (rank == 0) begin(&m[0], 0, data[0], 100, size - 1, 40);
    if (rank == 0) check(finish(&m[0]) == 1, "what it sent before it died", m[0].done);
    if (size == 3) {
        begin(&m[0], 1, data[0], 100000, rank ^ 1, 34);
        begin(&m[1], 0, data[1], 100000, rank ^ 1, 34);
        check(finish(&m[0]) == 1 && finish(&m[1]) == 1, "the others do not reach each other", m[1].done);
    }
}

static void named(void) { fprintf(stderr, "# %s\n", fabric->name); }

/* Half a round trip of so many bytes between ranks 0 and 1: the best of ten batches, since others use the cores too. */
static void time_trips(int64_t bytes, int turns)
{
    char *data = (char *)calloc(1, (size_t)bytes);
    double best = 1e9;
    for (int batch = 0; batch < 10; batch++) {
        double start = dt__now();
        for (int i = 0; i < 2 * turns; i++) {
            dt__message m;
            begin(&m, rank == i % 2, data, bytes, rank ^ 1, 50);
            check(finish(&m) == 1, "trip", i);
        }
        start = (dt__now() - start) / turns / 2;
        best = start < best ? start : best;
    }
    if (rank == 0)
        printf("# %-24s %9lld B %9.2f us %7.2f GB/s\n", fabric->name, (long long)bytes, best * 1e6,
               (double)bytes / best * 1e-9);
    free(data);
}
static void times(void)
{
    static const int64_t bytes[] = {8, 4096, 16000, 65536, 1 << 20, 16 << 20};
    for (int i = 0; i < 6 && rank < 2; i++) time_trips(bytes[i], bytes[i] > 1 << 20 ? 3 : bytes[i] > 16000 ? 30 : 300);
    meet();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenario[] = {{"sizes", sizes}, {"order", order}, {"tags", tags}, {"any", any},
                    {"truncated", truncated}, {"registered", registered}, {"threads", threads}, {"cancelled", cancelled},
                    {"unsent", unsent}, {"named", named}, {"frozen", frozen}, {"large", large}, {"killed", killed}, {"times", times}};
    dt__world world;
    int ran = 0;
    if (dt__world_detect(&world) || dt__ofi_open(&fabric, &world)) {
        fprintf(stderr, "%s\n", dt_last_error());
        return 2;
    }
    rank = fabric->rank;
    size = fabric->size;
    meet();
    for (int a = 1; a < argc; a++)
        for (size_t i = 0; i < sizeof scenario / sizeof *scenario; i++) {
            if (strcmp(argv[a], scenario[i].name)) continue;
            scenario[i].run();
            if (failures) fprintf(stderr, "rank %d: %s failed\n", rank, scenario[i].name);
            ran++;
        }
    fabric->close(fabric);
    return failures || ran != argc - 1;
}
