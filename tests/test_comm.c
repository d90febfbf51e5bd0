/* Collectives against a plain reference, bit for bit: processes and threads, private and symmetric memory, 1 to 8
 * ranks. Without arguments this program starts itself with --ranks for every case and prints TAP. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "# rank %d, line %d: %s (%s)\n", dt_comm_rank(c), __LINE__, #condition, dt_last_error()); \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

static uint32_t mix(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* Values over many magnitudes, so that every order of adding has its own rounding. */
static float value(int rank, int64_t i, int salt)
{
    uint32_t h = mix((uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + (uint32_t)salt * 97u);
    float x = (float)(int32_t)h * 0x1p-31f;
    return (h & 7u) == 3u ? x * 0x1p20f : (h & 7u) == 5u ? x * 0x1p-140f : x;
}

static void fill(float *a, int64_t n, int rank, int salt)
{
    for (int64_t i = 0; i < n; i++) a[i] = value(rank, i, salt);
}

static float combine(dt_op op, float a, float b)
{
    volatile float sum = a + b;
    return op == DT_SUM ? sum : op == DT_MAX ? (a > b ? a : b) : (a < b ? a : b);
}

/* The definition: level by level, neighbours by index, an unpaired last one moves up. */
static float tree(const float *leaf, int n, dt_op op)
{
    float v[64];
    memcpy(v, leaf, (size_t)n * sizeof *v);
    for (; n > 1; n = (n + 1) / 2)
        for (int i = 0; i < (n + 1) / 2; i++) v[i] = 2 * i + 1 < n ? combine(op, v[2 * i], v[2 * i + 1]) : v[2 * i];
    return v[0];
}

static int all(void) { return getenv("DT_FULL") || getenv("DT_SANITIZE"); } /* the cases, else those that differ most */
static int same(const float *a, const float *b, int64_t n) { return n == 0 || !memcmp(a, b, (size_t)n * sizeof *a); }

/* One count, with a (size * count) and b (size * count) in the memory under test; want is private. The reference takes
 * long for many floats: there `only`, unless it is -1, is the operation that is tried. */
static int check_count(dt_comm *c, float *a, float *b, float *want, int64_t count, int salt, int only)
{
    static const dt_op ops[] = { DT_SUM, DT_MAX, DT_MIN };
    int n = dt_comm_size(c), rank = dt_comm_rank(c);
    float leaf[64];
    for (int k = 0; k < 3; k++) {
        if (count > 10000 && only >= 0 && k != only) continue;
        fill(a, count, rank, salt + k);
        for (int64_t i = 0; i < count; i++) {
            for (int r = 0; r < n; r++) leaf[r] = value(r, i, salt + k);
            want[i] = tree(leaf, n, ops[k]);
        }
        CHECK(!dt_all_reduce(c, a, count, ops[k]));
        CHECK(same(a, want, count));
        fill(a, n * count, rank, salt + k);
        for (int64_t i = 0; i < count; i++) {
            for (int r = 0; r < n; r++) leaf[r] = value(r, rank * count + i, salt + k);
            want[i] = tree(leaf, n, ops[k]);
        }
        CHECK(!dt_reduce_scatter(c, a, b, count, ops[k]));
        CHECK(same(b, want, count));
    }
    for (int root = 0; root < n; root += n > 2 ? 2 : 1) {
        fill(a, count, rank, salt);
        fill(want, count, root, salt);
        CHECK(!dt_broadcast(c, a, count, root));
        CHECK(same(a, want, count));
    }
    fill(a, count, rank, salt);
    for (int r = 0; r < n; r++) fill(want + r * count, count, r, salt);
    CHECK(!dt_all_gather(c, a, b, count));
    CHECK(same(b, want, n * count));
    memset(b, 0, (size_t)(n * count) * sizeof *b);
    fill(b + rank * count, count, rank, salt);
    CHECK(!dt_all_gather(c, b + rank * count, b, count));
    CHECK(same(b, want, n * count));
    fill(a, n * count, rank, salt);
    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < count; i++) want[r * count + i] = value(r, rank * count + i, salt);
    CHECK(!dt_all_to_all(c, a, b, count));
    CHECK(same(b, want, n * count));
    for (int step = 1; step < n; step++) { /* in a ring, the even ranks send first */
        int to = (rank + step) % n, from = (rank + n - step) % n;
        fill(a, count, rank, salt + step);
        fill(want, count, from, salt + step);
        for (int turn = 0; turn < n; turn++) {
            if (turn == rank) CHECK(!dt_send(c, a, count, to));
            if (turn == from) CHECK(!dt_recv(c, b, count, from));
        }
        CHECK(same(b, want, count));
    }
    return 0;
}

static int check_counts(dt_comm *c, int symmetric)
{
    static const int64_t counts[] = { 0, 1, 2, 31, 1023, 1024, 1025, 2049, 100003 };
    int64_t most = 100003 * (int64_t)dt_comm_size(c);
    float *want = (float *)malloc((size_t)most * sizeof *want), *a = NULL, *b = NULL;
    void *p = NULL;
    int bad = 0, only = all() ? -1 : (dt_comm_size(c) + symmetric) % 3;
    if (symmetric) {
        CHECK(!dt_comm_alloc(c, most * 4, &p));
        a = (float *)p;
        CHECK(!dt_comm_alloc(c, most * 4 + 12, &p));
        b = (float *)p;
        for (int64_t i = 0; i < most; i++) CHECK(a[i] == 0 && b[i] == 0);
        CHECK(dt_comm_peer(c, a + 5, dt_comm_rank(c)) == a + 5);
        CHECK(dt_comm_peer(c, want, 0) == NULL);
    } else {
        a = (float *)malloc((size_t)most * sizeof *a);
        b = (float *)malloc((size_t)most * sizeof *b);
    }
    for (int k = 0; k < (int)(sizeof counts / sizeof *counts) && !bad; k++)
        bad = check_count(c, a, b, want, counts[k], 100 * k, only);
    if (!symmetric) free(a), free(b);
    free(want);
    return bad;
}

/* Splits leaves low..high-1 into maximal aligned subtrees. */
static int cut(int64_t low, int64_t high, dt__part *part)
{
    int n = 0;
    while (low < high) {
        int level = 0;
        while (low % ((int64_t)2 << level) == 0 && low + ((int64_t)2 << level) <= high) level++;
        part[n].level = level;
        part[n].index = low >> level;
        low += (int64_t)1 << level;
        n++;
    }
    return n;
}

static float subtree(const dt__part *part, int64_t i, int salt)
{
    float leaf[64];
    int leaves = 1 << part->level;
    for (int k = 0; k < leaves; k++) leaf[k] = value((int)part->index * leaves + k, i, salt);
    return tree(leaf, leaves, DT_SUM);
}

static int check_parts(dt_comm *c, int V, int salt)
{
    enum { N = 40000, BEGIN = 1000, COUNT = 37123 };
    int n = dt_comm_size(c), rank = dt_comm_rank(c), counts[64], first = 0, at = 0, edge[65];
    int64_t cuts[65], sent[64];
    dt__part parts[64 * 12], all;
    void *p = NULL;
    float *mine, *whole, *sum;
    if (n > V) return 0;
    all.level = __builtin_ctz((unsigned)V);
    all.index = all.offset = 0;
    edge[0] = 0; /* uneven runs, at least one leaf each */
    for (int r = 0; r < n; r++) {
        uint32_t spare = (uint32_t)(V - edge[r] - (n - r - 1));
        edge[r + 1] = r + 1 == n ? V : edge[r] + 1 + (int)(mix((uint32_t)(salt + r)) % spare);
    }
    for (int r = 0; r < n; r++) {
        if (r == rank) first = at;
        counts[r] = cut(edge[r], edge[r + 1], parts + at);
        for (int j = 0; j < counts[r]; j++) parts[at + j].offset = (j + 1 + r % 2) * N;
        at += counts[r];
    }
    CHECK(!dt_comm_alloc(c, 12 * N * 4, &p));
    mine = (float *)p;
    sum = mine + parts[first].offset;
    whole = (float *)malloc(N * sizeof *whole);
    for (int pass = 0; pass < 2; pass++) {
        for (int j = 0; j < counts[rank]; j++)
            for (int64_t i = 0; i < N; i++) mine[parts[first + j].offset + i] = subtree(&parts[first + j], i, salt);
        for (int64_t i = 0; i < N; i++) whole[i] = subtree(&all, i, salt);
        for (int r = 0; r <= n; r++) cuts[r] = COUNT * r / n;
        for (int r = 0; r < n; r++) sent[r] = dt_comm_sent(c, r);
        CHECK(!dt__reduce_parts(c, mine, parts, counts, BEGIN, COUNT, pass ? cuts : NULL));
        CHECK(sum[BEGIN - 1] == subtree(&parts[first], BEGIN - 1, salt));
        if (pass) CHECK(same(sum + BEGIN + cuts[rank], whole + BEGIN + cuts[rank], cuts[rank + 1] - cuts[rank]));
        else CHECK(same(sum + BEGIN, whole + BEGIN, COUNT));
        for (int r = 0; r < n && pass && dt_comm_nodes(c) == 1; r++) /* each peer gets its piece of every part, no more */
            CHECK(r == rank || dt_comm_sent(c, r) - sent[r] == 4 * counts[rank] * (cuts[r + 1] - cuts[r]));
        CHECK(!dt_barrier(c));
    }
    free(whole);
    return 0;
}

/* Groups by parity and by halves, all alive at once, working on the whole communicator's memory. */
static int check_split(dt_comm *c)
{
    enum { N = 70001 };
    int n = dt_comm_size(c), rank = dt_comm_rank(c);
    void *p = NULL;
    float *a, leaf[64];
    CHECK(!dt_comm_alloc(c, N * 4, &p));
    a = (float *)p;
    for (int kind = 0; kind < 2; kind++) {
        dt_comm *g = NULL;
        int color = kind ? rank / ((n + 1) / 2) : rank % 2, members = 0, number = 0;
        int64_t before[64];
        CHECK(!dt_comm_split(c, color, &g));
        CHECK(*dt_comm_launcher(c) && !strcmp(dt_comm_launcher(g), dt_comm_launcher(c)));
        for (int r = 0; r < n; r++) {
            if ((kind ? r / ((n + 1) / 2) : r % 2) != color) continue;
            if (r == rank) number = members;
            if (r < rank) CHECK(dt_comm_peer(g, a + 3, members) == dt_comm_peer(c, a + 3, r));
            members++;
        }
        CHECK(dt_comm_size(g) == members && dt_comm_rank(g) == number);
        for (int r = 0; r < n; r++) before[r] = dt_comm_sent(c, r);
        for (int repeat = 0; repeat < 3; repeat++) {
            fill(a, N, rank, repeat);
            CHECK(!dt_all_reduce(g, a, N, DT_SUM));
            for (int64_t i = 0; i < N; i += 7) {
                int m = 0;
                float want;
                for (int r = 0; r < n; r++)
                    if ((kind ? r / ((n + 1) / 2) : r % 2) == color) leaf[m++] = value(r, i, repeat);
                want = tree(leaf, m, DT_SUM);
                CHECK(same(a + i, &want, 1));
            }
            CHECK(!dt_barrier(c));
        }
        for (int r = 0, m = 0; r < n; r++) /* what the group sent counts in the whole, too */
            CHECK(dt_comm_sent(c, r) - before[r] ==
                  ((kind ? r / ((n + 1) / 2) : r % 2) == color ? dt_comm_sent(g, m++) : 0));
        CHECK(members == 1 || dt_comm_nodes(c) > 1 || dt_comm_sent(g, number ? 0 : 1) > 0);
        dt_comm_close(&g);
        CHECK(g == NULL);
    }
    return 0;
}

/* Rows of `width` floats in bins of 0 to 6, of which every rank has BINS for each rank: the k-th row of bin b that goes
 * from one rank to another is value(from, 1000 to + 10 b + k). */
enum { BINS = 3 };
static int rows_of(int from, int to, int bin, int salt)
{
    return (int)(mix((uint32_t)(from * 64 + to * 8 + bin + salt * 4096)) % 7);
}
static int check_rows(dt_comm *c, int64_t width, int salt)
{
    int n = dt_comm_size(c), rank = dt_comm_rank(c);
    int32_t give[64 * BINS + 1], take[64 * BINS + 1];
    int64_t sent[64], most = 64 * BINS * 6 * width;
    float *from = (float *)malloc((size_t)most * 4), *to = (float *)malloc((size_t)most * 4);
    void *stage = NULL;
    CHECK(n > 1 && !dt_comm_alloc(c, 4 * (n * BINS * 6 * width + 80), &stage));
    give[0] = take[0] = 0;
    for (int i = 0; i < n * BINS; i++) {
        int peer = i / BINS, bin = i % BINS;
        give[i + 1] = give[i] + rows_of(rank, peer, bin, salt);
        take[i + 1] = take[i] + rows_of(peer, rank, bin, salt);
        for (int64_t k = give[i] * width; k < give[i + 1] * width; k++)
            from[k] = value(rank, 1000 * peer + 10 * bin + k - give[i] * width, salt);
    }
    memset(to, 0x5a, (size_t)most * 4);
    for (int r = 0; r < n; r++) sent[r] = dt_comm_sent(c, r);
    CHECK(!dt__all_to_all_rows(c, (float *)stage, to, take, from, give, BINS, width));
    memset(from, 0, (size_t)most * 4); /* is the sender's again */
    for (int i = 0; i < n * BINS; i++)
        for (int64_t k = take[i] * width; k < take[i + 1] * width; k++) {
            float want = value(i / BINS, 1000 * rank + 10 * (i % BINS) + k - take[i] * width, salt);
            CHECK(same(to + k, &want, 1));
        }
    for (int r = 0; r < n; r++) /* the rows that went to others, and nothing more */
        CHECK(dt_comm_sent(c, r) - sent[r] == (r == rank ? 0 : 4 * width * (give[(r + 1) * BINS] - give[r * BINS])));
    CHECK(dt__all_to_all_rows(c, from, to, take, from, give, BINS, width) == DT_E_USAGE); /* private memory */
    free(from);
    free(to);
    return 0;
}

/* Many short collectives of changing kind and size without any pause: every stale half or lost wake-up shows. */
static int check_races(dt_comm *c, int rounds)
{
    int n = dt_comm_size(c), rank = dt_comm_rank(c);
    float *a = (float *)malloc(40000 * sizeof *a * 2), *b = a + 40000, leaf[64];
    for (int k = 0; k < rounds; k++) {
        uint32_t h = mix((uint32_t)k);
        int64_t count = k % 50 == 7 ? 33000 : (int64_t)(h % 2600u) / (k % 3 ? 1 : 100);
        int64_t i = count ? (int64_t)(h >> 8) % count : 0;
        for (int64_t j = 0; j < count; j++) a[j] = value(rank, j, k);
        if (h % 5u < 3u) {
            CHECK(!dt_all_reduce(c, a, count, DT_SUM));
            for (int r = 0; r < n; r++) leaf[r] = value(r, i, k);
            leaf[0] = tree(leaf, n, DT_SUM);
            CHECK(count == 0 || same(a + i, leaf, 1));
        } else if (h % 5u == 3u) {
            int root = (int)(h >> 4) % n;
            CHECK(!dt_broadcast(c, a, count, root));
            leaf[0] = value(root, i, k);
            CHECK(count == 0 || same(a + i, leaf, 1));
        } else if (count * n <= 40000) {
            CHECK(!dt_all_gather(c, a, b, count));
            leaf[0] = value(k % n, i, k);
            CHECK(count == 0 || same(b + k % n * count + i, leaf, 1));
        }
    }
    free(a);
    return 0;
}

static int check_send_background(dt_comm *c)
{
    enum { N = 5000 };
    int n = dt_comm_size(c), rank = dt_comm_rank(c);
    uint32_t ticket[8];
    void *p = NULL;
    float *a, b[N], want[N];
    CHECK(!dt_comm_alloc(c, 8 * N * 4, &p));
    a = (float *)p;
    if (n == 1) return 0;
    for (int k = 0; k < 3; k++) fill(a + k * N, N, rank, k);
    for (int k = 0; k < 3; k++) CHECK(!dt__send_start(c, a + k * N, N - k, (rank + 1) % n, &ticket[k]));
    for (int k = 0; k < 3; k++) {
        CHECK(!dt_recv(c, b, N - k, (rank + n - 1) % n));
        fill(want, N, (rank + n - 1) % n, k);
        CHECK(same(b, want, N - k));
    }
    for (int k = 0; k < 3; k++) CHECK(!dt__send_finish(c, (rank + 1) % n, ticket[k]));
    return 0;
}

/* Expected failures: all ranks get the same code and a sentence with these words, and stay failed. */
static int check_failed(dt_comm *c, dt_result r, const char *word, const char *other)
{
    if (r) CHECK(r == DT_E_PEER);
    else CHECK(dt_comm_nodes(c) > 1 && !strcmp(word, "length")); /* the sender need not know */
    if (r) CHECK(strstr(dt_last_error(), word) && strstr(dt_last_error(), other));
    CHECK(dt_barrier(c) == DT_E_PEER);
    CHECK(strstr(dt_last_error(), word));
    return 0;
}

static int check_mismatch(dt_comm *c, const char *kind)
{
    float *a = (float *)calloc(100000, sizeof *a);
    int odd = dt_comm_rank(c) == dt_comm_size(c) - 1, first = dt_comm_rank(c) == 0, bad = 1;
    dt_result r = dt_all_reduce(c, a, 10, DT_SUM);
    CHECK(!r || (dt_comm_nodes(c) > 1 && r == DT_E_PEER)); /* what failed on another node may be seen before its end */
    if (!strcmp(kind, "op"))
        bad = check_failed(c, odd ? dt_broadcast(c, a, 50, 0) : dt_all_reduce(c, a, 50, DT_SUM), "all-reduce #2",
                           "broadcast #2");
    else if (!strcmp(kind, "count"))
        bad = check_failed(c, dt_all_reduce(c, a, odd ? 90000 : 80000, DT_SUM), "80000", "90000");
    else if (!strcmp(kind, "kind"))
        bad = check_failed(c, dt_all_reduce(c, a, 3, odd ? DT_SUM : DT_MAX), "all-reduce #2", "max");
    else if (!strcmp(kind, "length"))
        bad = check_failed(c, odd ? dt_send(c, a, 5, 0) : first ? dt_recv(c, a, 6, dt_comm_size(c) - 1) : dt_barrier(c),
                           first ? "5 floats" : "length", "rank 0");
    else if (!strcmp(kind, "deadlock"))
        bad = check_failed(c, dt_comm_rank(c) < 2 ? dt_send(c, a, 5, 1 - dt_comm_rank(c)) : dt_barrier(c),
                           "waits for a rank", "rank");
    else if (!strcmp(kind, "left") && odd) bad = 0;
    else if (!strcmp(kind, "left"))
        bad = check_failed(c, dt_all_reduce(c, a, 10, DT_SUM), "left", r ? "all-reduce" : "all-reduce #2");
    free(a);
    return bad;
}

static int check_usage(dt_comm *c)
{
    float a[4], megabytes = (float)(dt__memory_available() >> 20);
    void *p = &p;
    CHECK(dt_all_reduce(c, a, -1, DT_SUM) == DT_E_USAGE);
    CHECK(dt_broadcast(c, a, 1, dt_comm_size(c)) == DT_E_USAGE);
    CHECK(dt_send(c, a, 1, dt_comm_rank(c)) == DT_E_USAGE);
    CHECK(dt_comm_alloc(c, (int64_t)1 << 44, &p) == DT_E_MEMORY && p == NULL);
    CHECK(strstr(dt_last_error(), "free"));
    CHECK(!dt_broadcast(c, &megabytes, 1, 0)); /* each rank's share would fit, all together do not */
    CHECK(dt_comm_alloc(c, ((int64_t)megabytes << 20) / dt_comm_size(c) * 3 / 2, &p) == DT_E_MEMORY);
    CHECK(dt_comm_split(c, -1, (dt_comm **)&p) == DT_E_USAGE);
    CHECK(!dt_barrier(c));
    return 0;
}

static int worker(int argc, char **argv)
{
    const char *what = argv[1];
    dt_comm *c = NULL, *again = NULL;
    int bad = 1;
    if (dt_comm_open(&c, &argc, &argv)) return dt_fail("open");
    if (!strcmp(what, "private")) bad = check_counts(c, 0);
    else if (!strcmp(what, "symmetric")) bad = check_counts(c, 1);
    else if (!strcmp(what, "parts")) {
        bad = check_parts(c, 1, 5) || check_parts(c, 2, 6);
        for (int k = 0; k < (all() ? 6 : 4) && !bad; k++) bad = check_parts(c, k % 2 ? 8 : 16, k);
    } else if (!strcmp(what, "rows")) {
        bad = 0;
        for (int k = 0; k < 20 && !bad; k++) bad = check_rows(c, k % 2 ? 1 : 37, k);
    } else if (!strcmp(what, "split")) bad = check_split(c);
    else if (!strcmp(what, "races")) bad = check_races(c, argc > 2 ? atoi(argv[2]) : 2000);
    else if (!strcmp(what, "background")) bad = check_send_background(c);
    else if (!strcmp(what, "usage")) bad = check_usage(c);
    else if (!strcmp(what, "mismatch")) bad = check_mismatch(c, argv[2]);
    dt_comm_close(&c);
    if (bad || !strcmp(what, "mismatch")) return bad;
    for (int k = 0; k < 3 && !bad; k++) { /* communicators may be opened again */
        if (dt_comm_open(&again, NULL, NULL) || dt_comm_open(&c, NULL, NULL)) return dt_fail("open again");
        bad = check_races(again, 20) || check_races(c, 20);
        dt_comm_close(&c);
        dt_comm_close(&again);
    }
    return bad;
}

/* ---- the parent ---- */

static int tests, failures;

static void run(const char *self, const char *arguments, int want)
{
    char command[600];
    int status;
    snprintf(command, sizeof command, "timeout -k 1 120 %s %s", self, arguments);
    status = system(command);
    status = WIFEXITED(status) ? WEXITSTATUS(status) : 255;
    tests++;
    if (status != want) failures++;
    if (status == want) printf("ok %d - %s\n", tests, arguments);
    else printf("not ok %d - %s (exit status %d, not %d)\n", tests, arguments, status, want);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const int sizes[] = { 1, 2, 3, 4, 5, 8 };
    static const char *whats[] = { "private", "symmetric", "parts", "split", "races", "background", "usage", "rows" };
    static const char *wrong[] = { "op", "count", "kind", "length", "deadlock", "left" };
    static const char *launches[] = { "processes", "threads" };
    static const int nodes[][2] = { { 2, 2 }, { 4, 2 }, { 5, 3 }, { 6, 6 }, { 8, 3 } };
    char line[200];
    if (argc > 1 && argv[1][0] != '-') return worker(argc, argv);
    for (int l = 0; l < 2; l++) {
        if (argc > 1 && strcmp(argv[1] + 2, launches[l])) continue;
        for (int s = 0; s < 6; s++) {
            if (!all() && (l ? sizes[s] != 3 && sizes[s] != 8 : sizes[s] == 4)) continue;
            for (int w = 0; w < 8 - (sizes[s] == 1); w++) { /* rows are exchanged by two or more */
                snprintf(line, sizeof line, "%s --ranks %d --launch %s", whats[w], sizes[s], launches[l]);
                run(argv[0], line, 0);
            }
        }
        for (int s = 0; s < 5; s++) { /* ranks on nodes, among them uneven ones */
            if (!all() && (l ? nodes[s][0] != 5 : nodes[s][0] < 5)) continue;
            for (int w = 0; w < 8; w++) {
                snprintf(line, sizeof line, "%s --ranks %d --nodes %d --launch %s", whats[w], nodes[s][0], nodes[s][1],
                         launches[l]);
                run(argv[0], line, 0);
            }
        }
        for (int w = 0; w < 12; w++) {
            snprintf(line, sizeof line, "mismatch %s --ranks 4 --nodes %d --timeout 3 --launch %s", wrong[w % 6],
                     1 + w / 6, launches[l]);
            run(argv[0], line, 0);
        }
    }
    run(argv[0], "usage --ranks 0 2>/dev/null", 2);
    run(argv[0], "usage --ranks -3 2>/dev/null", 2);
    run(argv[0], "usage --ranks=two 2>/dev/null", 2);
    run(argv[0], "usage --ranks 10000 2>/dev/null", 2);
    run(argv[0], "usage --launch forks 2>/dev/null", 2);
    run(argv[0], "usage --ranks 2 --nodes 0 2>/dev/null", 2);
    run(argv[0], "usage --ranks 2 --nodes 3 2>/dev/null", 2);
    run(argv[0], "usage --ranks 2 --timeout never 2>/dev/null", 2);
    run(argv[0], "usage --ranks 2>/dev/null", 2);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "4", 1);
    run(argv[0], "usage 2>/dev/null", 2); /* a foreign launcher's rank */
    run(argv[0], "usage --ranks 2 2>/dev/null", 2); /* which numbers the ranks already */
    setenv("WORLD_SIZE", "1", 1);
    run(argv[0], "usage", 0);
    setenv("DT_TIMEOUT", "soon", 1);
    run(argv[0], "usage 2>/dev/null", 2);
    printf("1..%d\n", tests);
    return failures != 0;
}
