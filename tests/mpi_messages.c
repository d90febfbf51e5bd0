/* The fabric over MPI: messages, cancelling. Run by test_mpi.t under mpirun; rank 0 prints TAP.
 *
 *     mpi_messages [all]      everything that ends well, on any number of ranks
 *     mpi_messages huge       one message of 2^31 + 4 bytes from rank 0 to rank 1
 *     mpi_messages expected   how many processes the environment says there are, without MPI
 *     mpi_messages mine       MPI belongs to the program, for one thread alone
 *     mpi_messages left       a communicator over nodes (DT_NODES) ends: the ranks then wait for each other without end
 *     mpi_messages abandoned  a send that nobody takes is cancelled; all ranks end well
 *     mpi_messages killed     rank 1 kills itself while the others wait for it
 *     mpi_messages frozen     rank 1 never comes to the end; the others do not wait for it for ever */
#define DTRAIN_IMPLEMENTATION
#ifndef DT_MPI
#define DT_MPI
#endif
#include "dtrain.h"
#include "tap.h"

enum { MARGIN = 8, PATIENCE = 60, ROUNDS = 1000 };

static dt__link *fabric;

/* ---- helpers ---- */

/* What a message holds is decided by who sends it to whom, and by its key. */
static void fill(char *data, int64_t bytes, int from, int to, int key)
{
    uint64_t x = (uint64_t)from * 2654435761u + (uint64_t)to * 40503u + (uint64_t)key * 97u + 1u;
    for (int64_t i = 0; i < bytes; i += 8) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        memcpy(data + i, &x, (size_t)(bytes - i < 8 ? bytes - i : 8));
    }
}

/* The ranks as a ring. */
static int next_rank(void) { return (fabric->rank + 1) % fabric->size; }
static int last_rank(void) { return (fabric->rank + fabric->size - 1) % fabric->size; }

/* A message with memory of its own and a margin behind it. */
static dt__message *message(int sends, int peer, uint32_t tag, int64_t bytes, int key)
{
    dt__message *m = (dt__message *)calloc(1, sizeof *m);
    if (m) m->data = (char *)malloc((size_t)bytes + MARGIN);
    if (!m || !m->data) tap_bail("no memory for a message");
    m->sends = sends;
    m->peer = peer;
    m->tag = tag;
    m->bytes = bytes;
    memset(m->data, 0x55, (size_t)bytes + MARGIN);
    if (sends) fill(m->data, bytes, fabric->rank, peer, key);
    return m;
}
static void drop(dt__message *m)
{
    free(m->data);
    free(m);
}

static dt_result start(dt__message *m)
{
    return dt__link_start(fabric, m, m->sends, m->peer, m->tag, m->data, m->bytes);
}
static dt__message *started(int sends, int peer, uint32_t tag, int64_t bytes, int key)
{
    dt__message *m = message(sends, peer, tag, bytes, key);
    if (start(m)) tap_bail("rank %d: %s", fabric->rank, dt_last_error());
    return m;
}

/* Waits for a message; 0 when it does not end in time. */
static int ended(dt__message *m)
{
    double until = dt__now() + PATIENCE;
    for (int turn = 0; !__atomic_load_n(&m->done, __ATOMIC_ACQUIRE); turn++) {
        if (dt__link_move(fabric)) tap_bail("rank %d: %s", fabric->rank, dt_last_error());
        if (turn > 200) usleep(50);
        if (dt__now() > until) return 0;
    }
    return 1;
}

/* Ends a message; 1 unless it went well: bytes of `key` came, and no byte behind them was written. */
static int wrong(dt__message *m, int64_t bytes, int key)
{
    int bad = !ended(m) || m->done != 1;
    if (!bad && !m->sends) {
        char *want = (char *)malloc((size_t)m->bytes + MARGIN);
        if (!want) tap_bail("no memory");
        memset(want, 0x55, (size_t)m->bytes + MARGIN);
        fill(want, bytes, m->peer, fabric->rank, key);
        bad = m->moved != bytes || memcmp(m->data, want, (size_t)m->bytes + MARGIN);
        free(want);
    }
    if (bad)
        fprintf(stderr, "rank %d: tag %u, %lld bytes %s rank %d: done %d, moved %lld\n", fabric->rank, m->tag,
                (long long)bytes, m->sends ? "to" : "from", m->peer, m->done, (long long)m->moved);
    drop(m);
    return bad;
}

/* A message to the next rank and one from the last; 1 unless both went well. */
static int exchanged(uint32_t tag, int64_t bytes)
{
    dt__message *out = started(1, next_rank(), tag, bytes, 0);
    int bad = wrong(started(0, last_rank(), tag, bytes, 0), bytes, 0);
    return wrong(out, bytes, 0) | bad;
}

/* One test of all ranks together. */
static void verdict(int bad, const char *what)
{
    int all = 0;
    MPI_Allreduce(&bad, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (fabric->rank == 0) tap_ok(all == 0, "%s", what);
}

/* ---- messages ---- */

static const int64_t sizes[] = { 0, 1, 17, 65536, (1 << 20) + 3 };

static void test_sizes(void)
{
    dt__message *in[5][16], *out[5][16];
    int bad = 0, n = fabric->size;
    for (int s = 0; s < 5; s++)
        for (int p = 0; p < n; p++) in[s][p] = started(0, p, (uint32_t)s, sizes[s] + (s & 1), s);
    for (int s = 4; s >= 0; s--)
        for (int p = 0; p < n; p++) out[s][p] = started(1, p, (uint32_t)s, sizes[s], s);
    for (int s = 0; s < 5; s++)
        for (int p = 0; p < n; p++) bad |= wrong(in[s][p], sizes[s], s) | wrong(out[s][p], sizes[s], s);
    verdict(bad, "0, 1, 17, 64 k and 1 M + 3 bytes between all ranks, with room to spare and without");
}

/* Of one tag: small and large by turns, `late`: the first receive is started when all are on the way, and something of
 * another tag, which came behind them, is there. */
static void test_order(int late)
{
    enum { COUNT = 40 };
    dt__message *in[COUNT], *out[COUNT];
    int bad = 0, to = next_rank(), from = last_rank();
    for (int i = 0; i < COUNT && !late; i++) in[i] = started(0, from, 7, 100000, i);
    for (int i = 0; i < COUNT; i++) out[i] = started(1, to, 7, sizes[1 + i % 3] + i, i);
    if (late) {
        bad |= exchanged(8, 17);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (int i = 0; i < COUNT && late; i++) in[i] = started(0, from, 7, 100000, i);
    for (int i = 0; i < COUNT; i++)
        bad |= wrong(in[i], sizes[1 + i % 3] + i, i) | wrong(out[i], sizes[1 + i % 3] + i, i);
    verdict(bad, late ? "40 messages of one tag come in order when the receives are late" : "and when they are early");
}

static void test_tags(void)
{
    dt__message *out[3];
    int bad = 0, to = next_rank(), from = last_rank();
    for (int i = 0; i < 3; i++) out[i] = started(1, to, (uint32_t)(100 + i), sizes[4 - 2 * (i & 1)], i);
    for (int i = 2; i >= 0; i--)
        bad |= wrong(started(0, from, (uint32_t)(100 + i), 1 << 21, i), sizes[4 - 2 * (i & 1)], i);
    for (int i = 0; i < 3; i++) bad |= wrong(out[i], sizes[4 - 2 * (i & 1)], i);
    bad |= exchanged((1u << 29) - 1, 17);
    verdict(bad, "tags are independent: the last is taken first, and the largest tag works");
}

static void test_any(void)
{
    int bad = 0, seen[16], n = fabric->size;
    memset(seen, 0, sizeof seen);
    if (fabric->rank) bad = wrong(started(1, 0, 9, 70000, 3), 70000, 3);
    for (int i = 1; i < n && !fabric->rank; i++) {
        dt__message *m = started(0, DT__FROM_ANY, 9, 80000, 3);
        if (!ended(m) || m->peer < 1 || m->peer >= n || seen[m->peer]++) bad = 1;
        bad |= wrong(m, 70000, 3);
    }
    verdict(bad, "from any rank: each comes once and is named");
}

static void test_too_long(void)
{
    static const struct {
        uint32_t tag;
        int64_t sent, asked;
    } list[] = { { 11, (1 << 20) + 3, 16 }, { 12, 17, 17 }, { 12, 100, 16 }, { 12, 17, 17 }, { 14, 65536, 16 },
                 { 15, 3072, 3071 }, { 15, 3073, 3072 }, { 16, 200000, 100000 }, { 16, 65536, 65536 } };
    enum { COUNT = sizeof list / sizeof *list };
    dt__message *out[COUNT], *in;
    int bad = 0, to = next_rank(), from = last_rank();
    for (int i = 0; i < COUNT; i++) out[i] = started(1, to, list[i].tag, list[i].sent, i);
    for (int i = 0; i < COUNT; i++) {
        in = started(0, from, list[i].tag, list[i].asked, i);
        if (list[i].sent <= list[i].asked) {
            bad |= wrong(in, list[i].sent, i);
            continue;
        }
        bad |= !ended(in) || in->done != DT__TOO_LONG || (in->moved && in->moved != list[i].sent);
        for (int k = 0; k < MARGIN; k++) bad |= in->data[list[i].asked + k] != 0x55;
        drop(in);
    }
    for (int i = 0; i < COUNT; i++) bad |= wrong(out[i], 0, i);
    verdict(bad, "too long a message is said to be so, writes nothing behind the receive, and the next one comes");
}

/* Large ones that nobody takes yet do not hold up another. */
static void test_many(void)
{
    enum { COUNT = 200 };
    static dt__message *in[COUNT], *out[COUNT];
    int bad = 0, to = next_rank(), from = last_rank();
    for (int i = 0; i < COUNT; i++) in[i] = started(0, from, (uint32_t)(1000 + i), 5000 + i, i);
    for (int i = COUNT - 1; i >= 0; i--) out[i] = started(1, to, (uint32_t)(1000 + i), 5000 + i, i);
    for (int i = 0; i < COUNT; i++) bad |= wrong(in[i], 5000 + i, i) | wrong(out[i], 5000 + i, i);
    for (int i = 0; i < COUNT / 2; i++) out[i] = started(1, to, (uint32_t)(1000 + i), 100000, i);
    bad |= exchanged(1, 65536);
    for (int i = 0; i < COUNT / 2; i++) bad |= wrong(started(0, from, (uint32_t)(1000 + i), 100000, i), 100000, i);
    for (int i = 0; i < COUNT / 2; i++) bad |= wrong(out[i], 100000, i);
    verdict(bad, "400 messages under way at once, and one past 100 that wait");
}

static void test_refused(void)
{
    dt__mpi *f = (dt__mpi *)(void *)fabric;
    dt__message *m = message(1, fabric->size, 0, 1, 0);
    int bad = start(m) != DT_E_USAGE, top = f->top;
    m->peer = DT__FROM_ANY;
    bad |= start(m) != DT_E_USAGE;
    m->peer = 0;
    m->bytes = -1;
    bad |= start(m) != DT_E_USAGE;
    m->bytes = 1;
    m->tag = 50;
    f->top = 50;
    bad |= start(m) != DT_E_USAGE || !strstr(dt_last_error(), "tags up to 49");
    f->top = top;
    drop(m);
    verdict(bad || top < 1 << 29, "wrong ranks, sizes and tags are refused");
}

/* A receive that is cancelled takes nothing; the next one gets the message. */
static void test_cancel(void)
{
    int bad = 0, to = next_rank(), from = last_rank();
    dt__message *never = started(0, from, 13, 65536, 0), *out;
    double began = dt__now();
    dt__link_move(fabric);
    dt__message_cancel(fabric, never);
    bad |= dt__now() - began > 2.0;
    MPI_Barrier(MPI_COMM_WORLD);
    out = started(1, to, 13, 65536, 4);
    bad |= wrong(started(0, from, 13, 65536, 4), 65536, 4) | wrong(out, 65536, 4);
    for (int i = 0; i < 65536 + MARGIN; i++) bad |= never->data[i] != 0x55;
    dt__message_cancel(fabric, never); /* not under way: nothing happens */
    drop(never);
    verdict(bad, "a cancelled receive takes nothing, the next one gets the message");
}

#ifndef DT_NO_THREADS
/* Rounds with both neighbours, of one thread, on tags of its own. */
static void *rounds(void *argument)
{
    int key = *(int *)argument, to = next_rank(), from = last_rank();
    intptr_t bad = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t bytes = i % 50 ? 100 + i : 200000 + i;
        dt__message *in = started(0, from, (uint32_t)key, bytes, i + key);
        dt__message *out = started(1, to, (uint32_t)key, bytes, i + key);
        bad |= wrong(in, bytes, i + key) | wrong(out, bytes, i + key);
    }
    return (void *)bad;
}

static void test_threads(void)
{
    pthread_t other;
    int key[2];
    void *bad[2];
    key[0] = 2000;
    key[1] = 3000;
    bad[1] = fabric;
    if (!pthread_create(&other, NULL, rounds, &key[1])) {
        bad[0] = rounds(&key[0]);
        pthread_join(other, &bad[1]);
    }
    verdict(bad[0] || bad[1], "two threads at once, 1000 rounds each");
}
#endif

static void test_rest(void)
{
    const dt__mpi *f = (const dt__mpi *)(const void *)fabric;
    verdict(fabric->wanted || f->active, "nothing is left of all that");
}

/* ---- what main() does ---- */

static void open_fabric(int *argc, char ***argv)
{
    if (dt__mpi_open(&fabric, argc, argv)) tap_bail("%s", dt_last_error());
}
static void close_fabric(void) { fabric->close(fabric); }

static void test_all(void)
{
    if (fabric->rank == 0) tap_note("%s, %d ranks", fabric->name, fabric->size);
    verdict(dt__mpi_expected() != (getenv("OMPI_COMM_WORLD_SIZE") ? fabric->size : 0),
            "the launcher says how many ranks there are");
    test_sizes();
    test_order(0);
    test_order(1);
    test_tags();
    test_any();
    test_too_long();
    test_many();
    test_refused();
#ifndef DT_NO_THREADS
    test_threads();
#endif
    test_rest();
    close_fabric();
    open_fabric(NULL, NULL);
    test_sizes();
    test_cancel();
}

static void test_huge(void)
{
    int64_t bytes = ((int64_t)1 << 31) + 4;
    double began;
    int bad;
    dt__message *m = message(fabric->rank == 0, 1 - fabric->rank, 1, bytes, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    began = dt__now();
    if (start(m)) tap_bail("%s", dt_last_error());
    ended(m);
    if (fabric->rank == 0) tap_note("%.2f s", dt__now() - began);
    bad = wrong(m, bytes, 1);
    verdict(bad, "2^31 + 4 bytes in one message");
}

#ifndef DT_NO_THREADS
static void *start_elsewhere(void *argument)
{
    dt__message *m = message(1, 0, 0, 1, 0);
    *(int *)argument = start(m) != DT_E_USAGE || dt__link_move(fabric) != DT_E_USAGE;
    drop(m);
    return NULL;
}
#endif

/* MPI_Init of the program promises nothing about threads. */
static void test_mine(int *argc, char ***argv)
{
    int over = 1, bad = 1;
    MPI_Init(argc, argv);
    open_fabric(NULL, NULL);
    test_sizes();
#ifndef DT_NO_THREADS
    {
        pthread_t other;
        if (!pthread_create(&other, NULL, start_elsewhere, &bad)) pthread_join(other, NULL);
    }
    verdict(bad, "a second thread is refused where MPI is for one");
#endif
    verdict(!strstr(fabric->name, ", one thread"), "and the name says so");
    bad = fabric->rank;
    close_fabric();
    MPI_Finalized(&over);
    if (!bad) tap_ok(!over, "MPI goes on after the fabric is closed");
    MPI_Finalize();
    over = dt__mpi_open(&fabric, NULL, NULL) != DT_E_USAGE || fabric;
    if (!bad) tap_ok(!over, "and cannot be opened again when it was finalised");
}

static void test_abandoned(void)
{
    dt__message *m = started(1, next_rank(), 1, 1 << 20, 0);
    double began = dt__now();
    dt__message_cancel(fabric, m);
    verdict(dt__now() - began > 2.0, "a send that nobody takes can be cancelled");
    drop(m);
}

/* Rank 1 is gone, or asleep for ever; the others wait for it. */
static void test_lost(int kill_it)
{
    dt__message *m;
    if (fabric->rank == 1) {
        if (kill_it) raise(SIGKILL);
        for (;;) pause();
    }
    m = started(0, 1, 7, 100, 0); /* not the tag of notices, whose receives nobody misses */
    for (double until = dt__now() + (kill_it ? 30 : 0.5); !m->done && dt__now() < until; usleep(50))
        dt__link_move(fabric);
    dt__message_cancel(fabric, m);
    fprintf(stderr, "rank %d gave up\n", fabric->rank);
    drop(m);
}

static void test_left(int *argc, char ***argv)
{
    dt_comm *c = NULL;
    float x = 1.0f;
    int rank, bad = dt_comm_open(&c, argc, argv) != DT_OK || dt_comm_nodes(c) != 2;
    rank = bad ? 0 : dt_comm_rank(c);
    bad = bad || dt_all_reduce(c, &x, 1, DT_SUM) || x != 2.0f;
    dt_comm_close(&c);
    if (rank == 0) tap_ok(!bad && !dt__mpi_trouble, "rank 0 may work on for long after dt_comm_close");
    else if (bad || dt__mpi_trouble) exit(1);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";
    int speaks;
    if (!strcmp(what, "expected")) {
        printf("%d\n", dt__mpi_expected());
        return 0;
    }
    if (!strcmp(what, "mine") || !strcmp(what, "left")) {
        if (!strcmp(what, "mine")) test_mine(&argc, &argv);
        else test_left(&argc, &argv);
        return tap__run ? tap_done() : 0;
    }
    open_fabric(&argc, &argv);
    speaks = fabric->rank == 0;
    if (!strcmp(what, "all")) test_all();
    else if (!strcmp(what, "huge")) test_huge();
    else if (!strcmp(what, "abandoned")) test_abandoned();
    else if (!strcmp(what, "killed")) test_lost(1);
    else if (!strcmp(what, "frozen")) test_lost(0);
    else tap_bail("what is %s?", what);
    close_fabric();
    return speaks && strcmp(what, "frozen") ? tap_done() : 0;
}
