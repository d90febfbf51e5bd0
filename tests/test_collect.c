/* Collectives at the borders: sizes that take several slices and messages, more than 2^31 bytes, what is not a number,
 * ranks that disagree, a slow link; the fit of alpha and beta. test_comm.c has the rest.
 * Without arguments this program starts itself with --ranks for every case and prints TAP. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/link.h"
#include "tap.h"

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "# rank %d, line %d: %s (%s) ", dt_comm_rank(c), __LINE__, #condition, dt_last_error());   \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\n");                                                                                     \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

typedef enum call { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL, CALLS } call;
static const char *const names[CALLS] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast", "all-to-all"};

static int has_sections(call k) { return k == REDUCE_SCATTER || k == ALL_GATHER || k == ALL_TO_ALL; }

/* count: elements of one section. The data of all-reduce and broadcast are in `in`. */
static dt_result collect(dt_comm *c, call k, float *in, float *out, int64_t count, dt_op op, int root)
{
    switch (k) {
    case ALL_REDUCE: return dt_all_reduce(c, in, count, op);
    case REDUCE_SCATTER: return dt_reduce_scatter(c, in, out, count, op);
    case ALL_GATHER: return dt_all_gather(c, in, out, count);
    case BROADCAST: return dt_broadcast(c, in, count, root);
    default: return dt_all_to_all(c, in, out, count);
    }
}

static uint32_t mix(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}
/* 0, 1 or 2: sums are exact in every order. */
static float whole(int rank, int64_t i)
{
    return (float)(mix((uint32_t)i * 2654435761u + (uint32_t)rank * 40503u) % 3u);
}
static float real(int rank, int64_t i)
{
    return (float)(int32_t)mix((uint32_t)i * 747796405u + (uint32_t)rank) * 0x1p-31f;
}
static float combined(dt_op op, int n, int64_t i)
{
    float v = whole(0, i);
    for (int r = 1; r < n; r++) {
        float w = whole(r, i);
        v = op == DT_SUM ? v + w : op == DT_MAX ? (v > w ? v : w) : (v < w ? v : w);
    }
    return v;
}

/* One call on whole numbers: the result, and that the input of calls with an output stays as it was. */
static int check_one(dt_comm *c, call k, int64_t count, dt_op op, int root, float *in, float *out)
{
    int n = dt_comm_size(c), me = dt_comm_rank(c), in_place = !has_sections(k);
    int64_t inputs = k == REDUCE_SCATTER || k == ALL_TO_ALL ? n * count : count;
    int64_t results = k == ALL_GATHER || k == ALL_TO_ALL ? n * count : count;
    const float *got = in_place ? in : out;
    for (int64_t i = 0; i < inputs; i++) in[i] = whole(me, i);
    memset(out, 0x55, (size_t)results * sizeof *out);
    CHECK(!collect(c, k, in, out, count, op, root), "%s of %lld", names[k], (long long)count);
    for (int64_t i = 0; i < results; i++) {
        float want = k == REDUCE_SCATTER ? combined(op, n, me * count + i)
                     : k == ALL_GATHER   ? whole((int)(i / count), i % count)
                     : k == BROADCAST    ? whole(root, i)
                     : k == ALL_TO_ALL   ? whole((int)(i / count), me * count + i % count)
                                         : combined(op, n, i);
        CHECK(got[i] == want, "%s of %lld, op %d, root %d: element %lld", names[k], (long long)count, (int)op, root,
              (long long)i);
    }
    for (int64_t i = 0; i < inputs && !in_place; i++) CHECK(in[i] == whole(me, i), "%s changes its input", names[k]);
    return 0;
}

/* Sizes that take several slices and messages; between two nodes several rounds, also of 4 MB each. */
static int work_large(dt_comm *c)
{
    int n = dt_comm_size(c), failed;
    int64_t most = n == 2 ? 2300003 : 1300001;
    float *in = (float *)malloc((size_t)most * sizeof *in), *out = (float *)malloc((size_t)most * sizeof *out);
    failed = !in || !out;
    for (int k = 0; k < CALLS && !failed; k++)
        failed = check_one(c, (call)k, has_sections((call)k) ? most / n : most, DT_SUM, n - 1, in, out);
    free(in), free(out);
    return failed;
}

/* More than 2^31 bytes, in one call of each kind. The numbers repeat after PERIOD, which divides no chunk. */
enum { PERIOD = 1000003 };
static int periodic(float *data, const float *period, int64_t from, int64_t count, int compare)
{
    for (int64_t at = 0, n; at < count; at += n) {
        int64_t phase = (from + at) % PERIOD;
        n = PERIOD - phase < count - at ? PERIOD - phase : count - at;
        if (!compare) memcpy(data + at, period + phase, (size_t)n * sizeof *data);
        else if (memcmp(data + at, period + phase, (size_t)n * sizeof *data)) return 0;
    }
    return 1;
}
static int huge_call(dt_comm *c, call k, float *in, float *out, float *period)
{
    int n = dt_comm_size(c), me = dt_comm_rank(c), sums = k == ALL_REDUCE || k == REDUCE_SCATTER;
    int cut = k == REDUCE_SCATTER || k == ALL_TO_ALL;
    int64_t count = (((int64_t)1 << 29) + 6) / (has_sections(k) ? n : 1);
    const float *got = has_sections(k) ? out : in;
    for (int64_t i = 0; i < PERIOD; i++) period[i] = whole(me, i);
    periodic(in, period, 0, cut ? n * count : count, 0);
    CHECK(!collect(c, k, in, out, count, DT_SUM, 0), "%s", names[k]);
    for (int r = 0; r < (has_sections(k) && !sums ? n : 1); r++) {
        for (int64_t i = 0; i < PERIOD; i++) period[i] = sums ? combined(DT_SUM, n, i) : whole(r, i);
        CHECK(periodic((float *)(intptr_t)got + r * count, period, cut ? me * count : 0, count, 1), "%s, part %d",
              names[k], r);
    }
    return 0;
}
static int work_huge(dt_comm *c)
{
    size_t room = ((size_t)1 << 31) + 64;
    float *in = (float *)malloc(room), *out = (float *)malloc(room), *period = (float *)malloc(4 * PERIOD);
    int failed = !in || !out || !period;
    for (int k = 0; k < CALLS && !failed; k++) failed = huge_call(c, (call)k, in, out, period);
    free(in), free(out), free(period);
    return failed;
}

/* Numbers that round: the same bits on all ranks and again, near the sum in double. */
static int work_real(dt_comm *c)
{
    enum { N = 5003 };
    float in[N], out[N], root[N];
    int n = dt_comm_size(c);
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < N; i++) in[i] = real(dt_comm_rank(c), i);
        CHECK(!dt_all_reduce(c, in, N, DT_SUM), " ");
        CHECK(!again || !memcmp(in, out, sizeof in), "twice");
        memcpy(out, in, sizeof in), memcpy(root, in, sizeof in);
        CHECK(!dt_broadcast(c, root, N, 0) && !memcmp(root, out, sizeof out), "ranks differ");
        for (int i = 0; i < N; i++) {
            double sum = 0;
            for (int r = 0; r < n; r++) sum += (double)real(r, i);
            CHECK(fabs(sum - (double)out[i]) < 1e-6 * n, "element %d", i);
        }
    }
    return 0;
}

/* What is not a number decides alike on all ranks, whatever side of an addition it comes from. */
static int work_nan(dt_comm *c)
{
    float x[3], all[3];
    for (int op = 1; op < 3; op++) {
        int me = dt_comm_rank(c);
        x[0] = me == 0 ? NAN : (float)me, x[1] = me == 1 ? NAN : 2.0f, x[2] = me % 2 ? 0.0f : -0.0f;
        CHECK(!dt_all_reduce(c, x, 3, (dt_op)op), " ");
        memcpy(all, x, sizeof x);
        CHECK(!dt_broadcast(c, all, 3, 0) && !memcmp(all, x, sizeof x), "op %d", op);
    }
    return 0;
}

static int work_usage(dt_comm *c)
{
    float x[4] = {0};
    CHECK(dt_all_reduce(c, x, 1, (dt_op)9) == DT_E_USAGE && strstr(dt_last_error(), "op is 9"), " ");
    CHECK(dt_all_reduce(c, x, -1, DT_SUM) == DT_E_USAGE && strstr(dt_last_error(), "a count is 0 or more"), " ");
    return 0;
}

/* Ranks that leave right after their last collective, while the link still delays what they sent, do not fail those who
 * wait for it. */
static int work_last(dt_comm *c)
{
    for (int i = 0; i < 20; i++) {
        dt_comm *one;
        float x = 1.0f;
        if (dt_comm_split(c, 0, &one) || dt_all_reduce(one, &x, 1, DT_SUM)) return 1;
        dt_comm_close(&one);
        if (!(x == (float)dt_comm_size(c))) return 1;
    }
    return 0;
}

/* Rank 0 leaves after its last message. Another thread of rank 1 takes the packet, and is interrupted before it says
 * that the message is done: rank 1 must not take rank 0 for gone. */
static dt_result poll_nothing(dt__link *f) { return (void)f, DT_OK; }
static void *poll_slowly(void *user)
{
    dt__link *f = ((dt_comm *)user)->link;
    dt__emulated *e = (dt__emulated *)f;
    dt__message *m;
    for (m = NULL; !__atomic_load_n(&dt__comm_slot(f->base, 0)->left, __ATOMIC_ACQUIRE) || !m; dt__nap()) {
        dt__link_enter(f);
        m = f->wanted;
        dt__link_leave(f);
    }
    usleep(60000);
    dt__link_enter(f);
    (void)dt__emulated_recv(e, 0);
    __atomic_store_n(&m->done, 0, __ATOMIC_RELEASE);
    usleep(100000);
    dt__message_finish(m, 1);
    dt__link_leave(f);
    return NULL;
}
static int work_poller(dt_comm *c)
{
    float x = 1.0f;
    pthread_t thread;
    dt_result r;
    if (dt_comm_rank(c) == 0) return dt_send(c, &x, 1, 1);
    c->link->poll = poll_nothing;
    if (pthread_create(&thread, NULL, poll_slowly, c)) return 1;
    x = 0.0f;
    r = dt_recv(c, &x, 1, 0);
    pthread_join(thread, NULL);
    CHECK(!r && x == 1.0f, " ");
    return 0;
}

/* A message needs its time between emulated nodes, and the data is right. */
static int work_delay(dt_comm *c)
{
    static __thread float x[100000];
    double start;
    for (int64_t count = 1; count <= 100000; count *= 100000) {
        for (int64_t i = 0; i < count; i++) x[i] = 1.0f;
        start = dt__now(); /* a peer sends its part after it has heard of this rank */
        CHECK(!dt_barrier(c) && !dt_all_reduce(c, x, count, DT_SUM), " ");
        CHECK(dt__now() - start >= 0.059, "%g s", dt__now() - start);
        for (int64_t i = 0; i < count; i++) CHECK(x[i] == (float)dt_comm_size(c), " ");
        if (count == 100000) break;
    }
    return 0;
}

/* Two ranks call something different: all are told. */
static int mismatch(dt_comm *c, call k, int64_t count, dt_op op, int root)
{
    static __thread float x[100000];
    dt_result r = DT_OK;
    for (int i = 0; i < 3 && !r; i++) r = collect(c, k, x, NULL, count, op, root);
    for (int i = 0; i < 1000 && !r; i++) r = dt_barrier(c); /* a rank that only sends learns it in a later call */
    CHECK(r == DT_E_PEER, "%d", (int)r);
    CHECK(strstr(dt_last_error(), "disagree") || strstr(dt_last_error(), "rank"), " ");
    fprintf(stderr, "# %s\n", dt_last_error());
    return 0;
}
static dt_op other_op(const dt_comm *c) { return dt_comm_rank(c) == 1 ? DT_MAX : DT_SUM; }
static int work_mismatch(dt_comm *c) /* of so many floats the call goes beside the data */
{
    return mismatch(c, ALL_REDUCE, 100000, other_op(c), 0);
}
static int work_mismatch_short(dt_comm *c) /* of so few the call begins each message; the messages are alike */
{
    return mismatch(c, ALL_REDUCE, 1000, other_op(c), 0);
}
static int work_mismatch_root(dt_comm *c) { return mismatch(c, BROADCAST, 1000, DT_SUM, dt_comm_rank(c) == 1); }
static int work_mismatch_sender(dt_comm *c) /* all only send: a message that nobody waits for tells */
{
    return mismatch(c, BROADCAST, 100000, DT_SUM, dt_comm_rank(c));
}
static int work_mismatch_count(dt_comm *c)
{
    return mismatch(c, ALL_REDUCE, dt_comm_rank(c) == 1 ? 100000 : 1000, DT_SUM, 0);
}

static int worker(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*work)(dt_comm *);
    } works[] = {{"large", work_large}, {"real", work_real}, {"nan", work_nan}, {"usage", work_usage},
                 {"delay", work_delay}, {"last", work_last}, {"poller", work_poller},
                 {"huge", work_huge},         {"mismatch", work_mismatch}, {"mismatch_short", work_mismatch_short},
                 {"mismatch_root", work_mismatch_root}, {"mismatch_count", work_mismatch_count},
                 {"mismatch_sender", work_mismatch_sender}};
    dt_comm *c = NULL;
    int failed = 1;
    if (dt_comm_open(&c, &argc, &argv)) return dt_fail("test_collect");
    for (size_t k = 0; k < sizeof works / sizeof *works; k++)
        if (!strcmp(argv[1], works[k].name)) failed = works[k].work(c);
    dt_comm_close(&c);
    return failed;
}

/* Bytes. */
static double memory_free(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    double kb = 0.0;
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %lf", &kb) != 1) continue;
    if (f) fclose(f);
    return kb * 1024.0;
}

/* The fit finds the line in points that lie on one, or 5 % beside it in turns; no line falls, nor begins below zero. */
static void test_fit(void)
{
    const double alpha = 4e-6, beta = 0.25e-9;
    for (int what = 0; what < 4; what++) {
        double bytes[8], seconds[8];
        dt_link link;
        int good;
        for (int i = 0; i < 8; i++) {
            bytes[i] = (double)(64 << 2 * i);
            seconds[i] = what == 3 ? beta * bytes[i] * bytes[i] : alpha + (what == 2 ? -1e-13 : beta) * bytes[i];
            if (what == 1) seconds[i] *= i % 2 ? 1.05 : 0.95;
        }
        link = dt_link_fit(bytes, seconds, 8);
        good = link.points == 8 && link.r2 <= 1.0 + 1e-12;
        if (what < 2) good &= fabs(link.alpha / alpha - 1) < (what ? 0.05 : 1e-9);
        if (what < 2) good &= fabs(link.beta / beta - 1) < (what ? 0.05 : 1e-9);
        if (what == 0) good &= link.r2 > 1 - 1e-12;
        if (what == 1) good &= link.r2 > 0.98 && link.r2 < 0.9999;
        if (what == 2) good &= link.beta <= 0.0 && fabs(link.alpha / alpha - 1) < 0.1;
        if (what == 3) good &= link.alpha <= 0.0 && link.beta > 0.0;
        seconds[what] = what % 2 ? 0 : NAN;
        good &= !dt_link_fit(bytes, seconds, 8).points && !dt_link_fit(bytes, seconds, 0).points;
        tap_ok(good, "least squares, case %d: alpha %g, beta %g, R^2 %.6f", what, link.alpha, link.beta, link.r2);
    }
}

static void run(const char *self, const char *words)
{
    char command[1024];
    snprintf(command, sizeof command, "timeout %d '%s' %s", strncmp(words, "huge", 4) ? 120 : 900, self, words);
    tap_ok(system(command) == 0, "%s", words);
}

int main(int argc, char **argv)
{
    static const char *const works[] = {"large", "nan", "real", "usage"};
    char words[200];
    int full = getenv("DT_FULL") != NULL;
    if (argc > 1) return worker(argc, argv);
    test_fit();
    for (int w = 0; w < 4; w++)
        for (int k = 0; k < 4; k++) {
            static const int ranks[] = {2, 3, 4, 5}, nodes[] = {2, 1, 2, 3};
            snprintf(words, sizeof words, "%s --ranks %d --nodes %d --launch %s", works[w], ranks[k], nodes[k],
                     k % 2 ? "threads" : "processes");
            run(argv[0], words);
        }
    for (int k = 0; k < 5; k++)
        for (int nodes = 1; nodes <= 3; nodes += 2) {
            static const char *const what[] = {"", "_short", "_root", "_count", "_sender"};
            snprintf(words, sizeof words, "mismatch%s --ranks 3 --nodes %d --timeout 2", what[k], nodes);
            run(argv[0], words);
        }
    if (full && memory_free() > 12e9) {
        run(argv[0], "huge --ranks 2 --timeout 100");
        run(argv[0], "huge --ranks 2 --nodes 2 --timeout 100");
    } else
        tap_skip(2, full ? "there are not 12 GB of memory free" : "more than 2^31 bytes: with DT_FULL=1");
    setenv("DT_LINK_DELAY", "0.03", 1);
    run(argv[0], "delay --ranks 4 --nodes 2");
    for (int i = 0; i < 3; i++) run(argv[0], "last --ranks 4 --nodes 2");
    run(argv[0], "poller --ranks 2 --nodes 2");
    setenv("DT_LINK_DELAY", "soon", 1);
    snprintf(words, sizeof words,
             "'%s' delay --ranks 2 --nodes 2 2>&1 | grep -q 'DT_LINK_DELAY=soon: it is the seconds'", argv[0]);
    tap_ok(system(words) == 0, "a delay that is no number");
    return tap_done();
}
