/* Collectives by algorithm: every one, for every call, type and number of ranks, against whole numbers whose sums are
 * exact in every order (bit for bit) and against double; what they cost against the formulas; fusion buffers; tuning.
 * Without arguments this program starts itself with --ranks for every case and prints TAP. */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
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

enum { CALLS = 5 };
static const int64_t widths[] = {4, 4, 2, 2, 1, 1};

static uint32_t mix(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}
/* 0, 1 or 2 (0 or 1 in 8 bits), so that sums of 9 are whole numbers that every type has; the last rank of 9 has 0. */
static int whole(int rank, int64_t i, int bits)
{
    int v = (int)(mix((uint32_t)i * 2654435761u + (uint32_t)rank * 40503u) % 3u);
    return rank == 8 || (bits == 8 && v == 2) ? 0 : v;
}
static float real(int rank, int64_t i)
{
    return (float)(int32_t)mix((uint32_t)i * 747796405u + (uint32_t)rank) * 0x1p-31f;
}

/* Whole numbers up to 16 as bits of a type. */
static void put(void *to, dt_dtype type, int64_t i, int value)
{
    float x = (float)value;
    uint32_t u;
    memcpy(&u, &x, 4);
    if (type == DT_F32)
        ((float *)to)[i] = x;
    else if (type == DT_I32)
        ((int32_t *)to)[i] = value;
    else if (type == DT_BF16)
        ((uint16_t *)to)[i] = (uint16_t)(u >> 16);
    else if (type == DT_F16)
        ((uint16_t *)to)[i] = (uint16_t)(value ? ((u >> 13) - (112u << 10)) : 0);
    else if (type == DT_F8_E4M3)
        ((uint8_t *)to)[i] = (uint8_t)(value ? ((u >> 20) - (120u << 3)) : 0);
    else
        ((uint8_t *)to)[i] = (uint8_t)(value ? ((u >> 21) - (112u << 2)) : 0);
}
static int combined(dt_op op, int n, int64_t i, int bits)
{
    int v = whole(0, i, bits);
    for (int r = 1; r < n; r++) {
        int w = whole(r, i, bits);
        v = op == DT_SUM ? v + w : op == DT_MAX ? (v > w ? v : w) : (v < w ? v : w);
    }
    return v;
}

/* Input, and what must come out, of one call on whole numbers. Returns elements of in; *result those of want. */
static int64_t prepare(dt_comm *c, const dt_collective *w, void *in, void *want, int64_t *result)
{
    int n = dt_comm_size(c), me = dt_comm_rank(c), bits = widths[w->type] == 1 ? 8 : 32;
    int64_t count = w->count, inputs = w->call == DT_REDUCE_SCATTER || w->call == DT_ALL_TO_ALL ? n * count : count;
    *result = w->call == DT_ALL_GATHER || w->call == DT_ALL_TO_ALL ? n * count : count;
    for (int64_t i = 0; i < inputs; i++) put(in, w->type, i, whole(me, i, bits));
    for (int64_t i = 0; i < *result; i++) {
        int v;
        switch (w->call) {
        case DT_ALL_REDUCE: v = combined(w->op, n, i, bits); break;
        case DT_REDUCE_SCATTER: v = combined(w->op, n, me * count + i, bits); break;
        case DT_ALL_GATHER: v = whole((int)(i / count), i % count, bits); break;
        case DT_BROADCAST: v = whole(w->root, i, bits); break;
        default: v = whole((int)(i / count), me * count + i % count, bits); break;
        }
        put(want, w->type, i, v);
    }
    return inputs;
}

static int check_one(dt_comm *c, dt_collective *w, char *in, char *out, char *want)
{
    int64_t result, inputs = prepare(c, w, in, want, &result), unit = widths[w->type];
    int in_place = w->count % 2 && (w->call == DT_ALL_REDUCE || w->call == DT_BROADCAST);
    uint32_t before, after;
    memset(out, 0x55, (size_t)(result * unit));
    before = 0;
    for (int64_t i = 0; i < inputs * unit; i++) before = before * 31 + (uint8_t)in[i];
    w->in = in, w->out = in_place ? in : out;
    CHECK(!dt_collect(c, w), "%s %s of %lld %d", dt_algorithm_name(w->algorithm), dt_call_name(w->call),
          (long long)w->count, w->type);
    CHECK(!memcmp(w->out, want, (size_t)(result * unit)), "%s %s of %lld, type %d, op %d, root %d, servers %d",
          dt_algorithm_name(w->algorithm), dt_call_name(w->call), (long long)w->count, w->type, w->op, w->root,
          w->servers);
    after = 0;
    for (int64_t i = 0; i < inputs * unit; i++) after = after * 31 + (uint8_t)in[i];
    CHECK(in_place || before == after, "%s %s changes its input", dt_algorithm_name(w->algorithm),
          dt_call_name(w->call));
    return 0;
}

static const dt_algorithm algorithms[] = {DT_EXACT, DT_RING,      DT_DOUBLING, DT_HALVING,
                                          DT_TREE,  DT_HIERARCHY, DT_SERVERS,  DT_NATIVE};
enum { KINDS = 7 };
/* With the engine's own, where it has them. */
static int kinds(const dt_comm *c) { return c->fabric && c->fabric->native ? KINDS + 1 : KINDS; }
/* MPI does not add small types. */
static int knows(const dt_collective *w)
{
    return w->algorithm != DT_NATIVE || w->type < DT_BF16 || (w->call != DT_ALL_REDUCE && w->call != DT_REDUCE_SCATTER);
}

static int does(dt_algorithm a, dt_call call)
{
    if (a == DT_DOUBLING) return call == DT_ALL_REDUCE;
    if (a == DT_TREE) return call == DT_ALL_REDUCE || call == DT_BROADCAST;
    return call != DT_ALL_TO_ALL || (a != DT_HALVING && a != DT_HIERARCHY);
}

/* Every algorithm, call, type and operation. */
static int work_all(dt_comm *c)
{
    static const int64_t counts[] = {0, 1, 2, 15, 17, 33, 600, 4099};
    int n = dt_comm_size(c);
    int64_t room = 4 * n * counts[7];
    char *in = (char *)malloc((size_t)room), *out = (char *)malloc((size_t)room), *want = (char *)malloc((size_t)room);
    int failed = !in || !out || !want;
    for (int call = 0; call < CALLS && !failed; call++)
        for (int k = 0; k < kinds(c) && !failed; k++)
            for (int type = 0; type < 6 && !failed; type++)
                for (int i = 0; i < 8 && !failed; i++) {
                    dt_collective w = dt_collective_of((dt_call)call, NULL, NULL, counts[i]);
                    w.algorithm = algorithms[k];
                    w.type = (dt_dtype)type;
                    w.op = (dt_op)((i + type) % 3);
                    w.root = (i + type) % n;
                    w.servers = i % (n + 1);
                    if (does(w.algorithm, w.call) && knows(&w)) failed = check_one(c, &w, in, out, want);
                }
    free(in), free(out), free(want);
    return failed;
}

/* Sizes that take several slices and messages; of the exact ones between two nodes several rounds, also of 4 MB each. */
static int work_large(dt_comm *c)
{
    int n = dt_comm_size(c);
    int64_t most = n == 2 ? 2300003 : 1300001, room = 4 * most + 64;
    char *in = (char *)malloc((size_t)room), *out = (char *)malloc((size_t)room), *want = (char *)malloc((size_t)room);
    int failed = !in || !out || !want;
    for (int call = 0; call < CALLS && !failed; call++)
        for (int k = 0; k < kinds(c) && !failed; k++) {
            int sections = call != DT_ALL_REDUCE && call != DT_BROADCAST;
            dt_collective w = dt_collective_of((dt_call)call, NULL, NULL, sections ? most / n : most);
            w.algorithm = algorithms[k];
            w.type = k % 2 ? DT_F32 : DT_BF16;
            w.root = n - 1;
            if (does(w.algorithm, w.call) && knows(&w)) failed = check_one(c, &w, in, out, want);
        }
    free(in), free(out), free(want);
    return failed;
}

/* More than 2^31 bytes, in one call of each kind; of the one-byte types more than 2^31 elements. The numbers come again
 * after PERIOD, which no cut into pieces knows. */
enum { PERIOD = 1000003 };
static int periodic(char *data, const char *period, int64_t from, int64_t count, int64_t unit, int compare)
{
    for (int64_t at = 0, n; at < count; at += n) {
        int64_t phase = (from + at) % PERIOD;
        n = PERIOD - phase < count - at ? PERIOD - phase : count - at;
        if (!compare) memcpy(data + at * unit, period + phase * unit, (size_t)(n * unit));
        else if (memcmp(data + at * unit, period + phase * unit, (size_t)(n * unit))) return 0;
    }
    return 1;
}
static int huge_call(dt_comm *c, dt_call call, dt_algorithm a, dt_dtype type, char *in, char *out, char *period)
{
    int n = dt_comm_size(c), me = dt_comm_rank(c), bits = widths[type] == 1 ? 8 : 32;
    int sections = call != DT_ALL_REDUCE && call != DT_BROADCAST, sums = call == DT_ALL_REDUCE || call == DT_REDUCE_SCATTER;
    int64_t unit = widths[type], count = (((int64_t)1 << 31) / unit + 6) / (sections ? n : 1);
    dt_collective w = dt_collective_of(call, in, sections ? out : in, count);
    w.algorithm = a;
    w.type = type;
    for (int64_t i = 0; i < PERIOD; i++) put(period, type, i, whole(me, i, bits));
    periodic(in, period, 0, call == DT_REDUCE_SCATTER || call == DT_ALL_TO_ALL ? n * count : count, unit, 0);
    CHECK(!dt_collect(c, &w), "%s %s", dt_algorithm_name(a), dt_call_name(call));
    for (int r = 0; r < (sections && !sums ? n : 1); r++) {
        int from = call == DT_BROADCAST ? 0 : r;
        for (int64_t i = 0; i < PERIOD; i++) put(period, type, i, sums ? combined(DT_SUM, n, i, bits) : whole(from, i, bits));
        CHECK(periodic((char *)w.out + r * count * unit, period, call == DT_REDUCE_SCATTER || call == DT_ALL_TO_ALL ? me * count : 0,
                       count, unit, 1), "%s %s, part %d", dt_algorithm_name(a), dt_call_name(call), r);
    }
    return 0;
}
static int work_huge(dt_comm *c)
{
    static const struct {
        dt_call call;
        dt_algorithm algorithm;
        dt_dtype type;
    } cases[] = {{DT_ALL_REDUCE, DT_EXACT, DT_F32},      {DT_ALL_REDUCE, DT_RING, DT_F32},    {DT_REDUCE_SCATTER, DT_HALVING, DT_BF16},
                 {DT_ALL_GATHER, DT_RING, DT_F8_E4M3},   {DT_ALL_GATHER, DT_EXACT, DT_F32},   {DT_BROADCAST, DT_TREE, DT_F8_E5M2},
                 {DT_BROADCAST, DT_EXACT, DT_F32},       {DT_ALL_TO_ALL, DT_EXACT, DT_F32},   {DT_ALL_TO_ALL, DT_SERVERS, DT_I32},
                 {DT_REDUCE_SCATTER, DT_EXACT, DT_F32}};
    size_t room = ((size_t)1 << 31) + 64;
    char *in = (char *)malloc(room), *out = (char *)malloc(room), *period = (char *)malloc(4 * PERIOD);
    int failed = !in || !out || !period;
    for (int k = 0; k < 10 && !failed; k++)
        failed = huge_call(c, cases[k].call, cases[k].algorithm, cases[k].type, in, out, period);
    free(in), free(out), free(period);
    return failed;
}

/* Numbers that round: the same bits on all ranks and again, near the sum in double; exact: the bits of dt_all_reduce.
 */
static int work_real(dt_comm *c)
{
    enum { N = 5003 };
    static __thread float in[N], out[N], again[N], root[N]; /* ranks may be threads */
    int n = dt_comm_size(c);
    for (int i = 0; i < N; i++) in[i] = real(dt_comm_rank(c), i);
    for (int k = 0; k < kinds(c); k++) {
        dt_collective w = dt_collective_of(DT_ALL_REDUCE, in, out, N);
        w.algorithm = algorithms[k];
        CHECK(!dt_collect(c, &w), "%s", dt_algorithm_name(w.algorithm));
        memcpy(root, out, sizeof out);
        CHECK(!dt_broadcast(c, root, N, 0), " ");
        CHECK(!memcmp(root, out, sizeof out), "%s: ranks differ", dt_algorithm_name(w.algorithm));
        w.out = again;
        CHECK(!dt_collect(c, &w) && !memcmp(again, out, sizeof out), "%s: twice", dt_algorithm_name(w.algorithm));
        for (int i = 0; i < N; i++) {
            double sum = 0;
            for (int r = 0; r < n; r++) sum += (double)real(r, i);
            CHECK(fabs(sum - (double)out[i]) < 1e-6 * n, "%s: element %d", dt_algorithm_name(w.algorithm), i);
        }
        if (k) continue;
        memcpy(again, in, sizeof in);
        CHECK(!dt_all_reduce(c, again, N, DT_SUM) && !memcmp(again, out, sizeof out), "exact");
    }
    return 0;
}

/* What is not a number decides alike on all ranks, whatever side of an addition it comes from. */
static int work_nan(dt_comm *c)
{
    float x[3], all[3];
    for (int k = 1; k < KINDS; k++)
        for (int op = 1; op < 3; op++) {
            dt_collective w = dt_collective_of(DT_ALL_REDUCE, x, x, 3);
            int me = dt_comm_rank(c);
            w.algorithm = algorithms[k], w.op = (dt_op)op;
            x[0] = me == 0 ? NAN : (float)me, x[1] = me == 1 ? NAN : 2.0f, x[2] = me % 2 ? 0.0f : -0.0f;
            CHECK(!dt_collect(c, &w), " ");
            memcpy(all, x, sizeof x);
            CHECK(!dt_broadcast(c, all, 3, 0) && !memcmp(all, x, sizeof x), "%s, op %d", dt_algorithm_name(w.algorithm),
                  op);
        }
    return 0;
}

/* Sent bytes are the price's, and that the formula's. */
static int work_price(dt_comm *c)
{
    enum { UNIT = 5040 * 16 }; /* divided evenly by 1 .. 9 ranks */
    static __thread float x[UNIT], y[9 * UNIT];
    int n = dt_comm_size(c), nodes = dt_comm_nodes(c), me = dt_comm_rank(c), logarithm = 0;
    int64_t s = UNIT * 4;
    dt_tuning t;
    while (1 << (logarithm + 1) <= n) logarithm++;
    CHECK(!dt_comm_tune(c, &t), " ");
    CHECK((t.near.points == 7) == (nodes < n) && (t.far.points == 7) == (nodes > 1), "%d %d", (int)t.near.points,
          (int)t.far.points);
    CHECK(nodes == n || (t.near.alpha >= 0 && t.near.beta >= 0 && t.near.r2 <= 1), "%g %g %g", t.near.alpha,
          t.near.beta, t.near.r2);
    CHECK(nodes == 1 || (t.far.alpha >= 0 && t.far.beta >= 0 && t.far.r2 <= 1), "%g %g %g", t.far.alpha, t.far.beta,
          t.far.r2);
    for (int call = 0; call < CALLS; call++)
        for (int k = 1; k < KINDS; k++) {
            int64_t before = 0, after = 0, far = 0, most[2];
            float mine[2], all[2];
            dt_price price;
            dt_collective w = dt_collective_of((dt_call)call, x, y, UNIT);
            w.algorithm = algorithms[k];
            if (!does(w.algorithm, w.call)) continue;
            if (call != DT_ALL_REDUCE && call != DT_BROADCAST) w.count = UNIT / n;
            CHECK(!dt_comm_price(c, &w, &price), " ");
            for (int p = 0; p < n; p++)
                before += dt_comm_sent(c, p), far -= dt_comm_node(c, p) != dt_comm_node(c, me) ? dt_comm_sent(c, p) : 0;
            CHECK(!dt_collect(c, &w), " ");
            for (int p = 0; p < n; p++)
                after += dt_comm_sent(c, p), far += dt_comm_node(c, p) != dt_comm_node(c, me) ? dt_comm_sent(c, p) : 0;
            mine[0] = (float)(after - before), mine[1] = (float)far;
            memcpy(all, mine, sizeof mine);
            CHECK(!dt_all_reduce(c, all, 2, DT_MAX), " ");
            most[0] = (int64_t)all[0], most[1] = (int64_t)all[1];
            CHECK(most[0] == price.bytes && most[1] == price.far_bytes, "%s %s: sent %lld (%lld), price %lld (%lld)",
                  dt_algorithm_name(w.algorithm), dt_call_name(w.call), (long long)most[0], (long long)most[1],
                  (long long)price.bytes, (long long)price.far_bytes);
            CHECK(n == 1 || (price.seconds > 0 && price.rounds > 0 && price.messages > 0), "%s %g",
                  dt_algorithm_name(w.algorithm), price.seconds);
            if (call != DT_ALL_REDUCE) continue;
            if (w.algorithm == DT_RING)
                CHECK(price.rounds == 2 * (n - 1) && price.bytes == 2 * (n - 1) * s / n &&
                          price.messages == 2 * (n - 1),
                      "%lld", (long long)price.bytes);
            if (w.algorithm == DT_SERVERS)
                CHECK(price.rounds == 2 && price.bytes == 2 * (n - 1) * s / n, "%lld", (long long)price.bytes);
            if (w.algorithm == DT_HALVING && n == 1 << logarithm)
                CHECK(price.rounds == 2 * logarithm && price.bytes == 2 * (n - 1) * s / n, "%lld",
                      (long long)price.bytes);
            if (w.algorithm == DT_DOUBLING && n == 1 << logarithm)
                CHECK(price.rounds == logarithm && price.bytes == logarithm * s, "%lld", (long long)price.bytes);
            if (w.algorithm == DT_TREE && n > 2)
                CHECK(price.bytes <= 3 * s && price.bytes >= s, "%lld", (long long)price.bytes);
            if (w.algorithm == DT_HIERARCHY && n % nodes == 0) /* over the n / nodes ranks of a node: 2 (N-1)/N S */
                CHECK(price.far_bytes == 2 * (nodes - 1) * s / nodes / (n / nodes), "%lld", (long long)price.far_bytes);
        }
    return 0;
}

/* In the middle of each span of sizes the choice is what has the least price there. */
static int cheapest(dt_comm *c)
{
    for (int call = 0; call < CALLS && dt_comm_rank(c) == 0; call++)
        for (int e = 3; e < DT__TUNED_SIZES; e++) {
            dt_collective w = dt_collective_of((dt_call)call, NULL, NULL, ((int64_t)3 << e) / 8);
            dt_price chosen, other;
            if (call != DT_ALL_REDUCE && call != DT_BROADCAST) w.count = dt__max(w.count / dt_comm_size(c), 1);
            if (dt__price_bytes(c, &w) >> e != 1) continue; /* rounding has put it into another span */
            w.algorithm = DT_TUNED;
            CHECK(!dt_comm_price(c, &w, &chosen), " ");
            for (int k = 0; k < KINDS; k++) {
                w.algorithm = algorithms[k];
                if (!does(w.algorithm, w.call)) continue;
                CHECK(!dt_comm_price(c, &w, &other) && chosen.seconds <= other.seconds, "%s of %lld: %s for %g, %s %g",
                      dt_call_name(w.call), (long long)w.count, dt_algorithm_name(chosen.algorithm), chosen.seconds,
                      dt_algorithm_name(w.algorithm), other.seconds);
            }
        }
    return 0;
}

/* After tuning: the same choice on all ranks, the cheapest, and right results. */
static int work_tuned(dt_comm *c)
{
    static const int64_t counts[] = {1, 100, 5000, 300000};
    char *in = (char *)malloc(16 * 300000), *out = (char *)malloc(16 * 300000), *want = (char *)malloc(16 * 300000);
    int failed = !in || !out || !want;
    dt_price price;
    for (int call = 0; call < CALLS && !failed; call++)
        for (int k = 0; k < 4 && !failed; k++) {
            dt_collective w = dt_collective_of((dt_call)call, in, out, dt_comm_size(c) > 4 ? counts[k] / 4 : counts[k]);
            float mine, root;
            w.algorithm = DT_TUNED;
            if (call == 0 && k == 0) {
                CHECK(dt_comm_price(c, &w, &price) == DT_E_USAGE, "a price before anything was measured");
                w.algorithm = DT_RING;
                CHECK(!dt_collect(c, &w), " ");
                w.algorithm = DT_TUNED;
                CHECK(!dt_collect(c, &w) && !dt_comm_price(c, &w, &price) && price.algorithm == DT_EXACT,
                      "before tuning");
                CHECK(!dt_comm_tune(c, NULL), " ");
            }
            CHECK(!dt_comm_price(c, &w, &price), " ");
            mine = root = (float)price.algorithm;
            CHECK(!dt_broadcast(c, &root, 1, 0) && mine == root && price.algorithm != DT_TUNED, "%g %g", (double)mine,
                  (double)root);
            failed = check_one(c, &w, in, out, want);
        }
    free(in), free(out), free(want);
    return failed ? failed : cheapest(c);
}

/* Arrays of all lengths in buffers. */
static int work_list(dt_comm *c)
{
    static const int64_t counts[] = {3, 0, 1000, 1, 77, 5000, 0, 12};
    static const int64_t thresholds[] = {0, 4, 28, 4000, 1 << 20}, calls[] = {8, 6093, 871, 7, 1};
    static __thread int32_t data[8][5000];
    void *list[8];
    int n = dt_comm_size(c);
    for (int t = 0; t < 5; t++)
        for (int k = 1; k < KINDS; k += t == 1 ? KINDS : 1) { /* many calls: of one algorithm */
            dt_collective how = dt_collective_of(DT_ALL_REDUCE, NULL, NULL, 0);
            int64_t made = -1;
            how.type = DT_I32, how.algorithm = algorithms[k];
            for (int a = 0; a < 8; a++)
                for (int64_t i = 0; i < counts[a]; i++)
                    data[a][i] = (int32_t)(mix((uint32_t)(a * 10000 + i)) * (uint32_t)(dt_comm_rank(c) + 1));
            for (int a = 0; a < 8; a++) list[a] = data[a];
            CHECK(!dt_collect_list(c, &how, list, counts, 8, thresholds[t], &made), " ");
            CHECK(made == calls[t], "%lld calls for %lld", (long long)made, (long long)thresholds[t]);
            for (int a = 0; a < 8; a++)
                for (int64_t i = 0; i < counts[a]; i++) {
                    uint32_t want = mix((uint32_t)(a * 10000 + i)) * (uint32_t)(n * (n + 1) / 2);
                    CHECK((uint32_t)data[a][i] == want, "array %d, element %d", a, (int)i);
                }
        }
    return 0;
}

static int refused(dt_comm *c, const dt_collective *w, const char *words)
{
    CHECK(dt_collect(c, w) == DT_E_USAGE && strstr(dt_last_error(), words), "no \"%s\"", words);
    return 0;
}
static int work_usage(dt_comm *c)
{
    float x[4] = {0}, y[16] = {0};
    void *list[1];
    int64_t counts[1] = {-1};
    dt_collective w = dt_collective_of(DT_ALL_TO_ALL, x, y, 1), good = dt_collective_of(DT_ALL_REDUCE, x, y, 1);
    int bad = 0;
    list[0] = x;
    w.algorithm = DT_HALVING,
    bad |= refused(c, &w, "halving does no all-to-all: choose one of exact, tuned, ring, servers, native");
    w = good, w.algorithm = DT_NATIVE, w.type = DT_BF16;
    bad |= refused(c, &w, c->fabric && c->fabric->native ? "MPI does not add bf16" : "has no collectives of its own");
    w = good, w.algorithm = (dt_algorithm)99, bad |= refused(c, &w, "? does no all-reduce");
    w = good, w.call = (dt_call)9, bad |= refused(c, &w, "call 9");
    w = good, w.type = (dt_dtype)9, bad |= refused(c, &w, "type 9");
    w = good, w.op = (dt_op)9, bad |= refused(c, &w, "operation 9");
    w = good, w.root = dt_comm_size(c), bad |= refused(c, &w, "the ranks are");
    w = good, w.servers = dt_comm_size(c) + 1, bad |= refused(c, &w, "servers");
    w = good, w.algorithm = DT_RING, w.count = -1, bad |= refused(c, &w, "negative");
    CHECK(dt_collect_list(c, &good, list, counts, 1, 0, NULL) == DT_E_USAGE, " ");
    counts[0] = 1;
    CHECK(dt_collect_list(c, &good, list, counts, 1, 3, NULL) == DT_E_USAGE && strstr(dt_last_error(), "threshold"),
          " ");
    CHECK(!strcmp(dt_algorithm_name((dt_algorithm)-1), "?") && !strcmp(dt_call_name((dt_call)7), "?"), " ");
    CHECK(!bad, "a sentence");
    return 0;
}

/* A message needs its time between played nodes, and the data is right. */
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
static int mismatch(dt_comm *c, dt_collective w)
{
    static __thread float x[100000];
    dt_result r = DT_OK;
    w.in = w.out = x;
    for (int k = 0; k < 3 && !r; k++) r = dt_collect(c, &w);
    for (int k = 0; k < 1000 && !r; k++) r = dt_barrier(c); /* who only sends hears of it later; over MPI, now and then */
    CHECK(r == DT_E_PEER, "%d", (int)r);
    CHECK(strstr(dt_last_error(), "disagree") || strstr(dt_last_error(), "rank"), " ");
    fprintf(stderr, "# %s\n", dt_last_error());
    return 0;
}
static int work_mismatch(dt_comm *c) /* in the algorithm; of so many floats the call goes beside the data */
{
    dt_collective w = dt_collective_of(DT_ALL_REDUCE, NULL, NULL, 100000);
    w.algorithm = dt_comm_rank(c) == 1 ? DT_RING : DT_HALVING;
    return mismatch(c, w);
}
static int work_mismatch_short(dt_comm *c) /* in the operation; of so few the call begins each message */
{
    dt_collective w = dt_collective_of(DT_ALL_REDUCE, NULL, NULL, 1000);
    w.algorithm = DT_RING, w.op = dt_comm_rank(c) == 1 ? DT_MAX : DT_SUM; /* the messages are alike */
    return mismatch(c, w);
}
static int work_mismatch_root(dt_comm *c)
{
    dt_collective w = dt_collective_of(DT_BROADCAST, NULL, NULL, 1000);
    w.algorithm = DT_TREE, w.root = dt_comm_rank(c) == 1;
    return mismatch(c, w);
}
static int work_mismatch_sender(dt_comm *c) /* two who only send: a message that nobody waits for tells */
{
    dt_collective w = dt_collective_of(DT_BROADCAST, NULL, NULL, 100000);
    w.algorithm = DT_RING, w.root = dt_comm_rank(c);
    return mismatch(c, w);
}
static int work_mismatch_count(dt_comm *c)
{
    dt_collective w = dt_collective_of(DT_ALL_REDUCE, NULL, NULL, dt_comm_rank(c) == 1 ? 100000 : 1000);
    w.algorithm = DT_RING;
    return mismatch(c, w);
}

static int worker(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*work)(dt_comm *);
    } works[] = {{"all", work_all},           {"large", work_large}, {"real", work_real}, {"nan", work_nan},
                 {"price", work_price},       {"tuned", work_tuned}, {"list", work_list}, {"usage", work_usage},
                 {"mismatch", work_mismatch}, {"delay", work_delay}, {"huge", work_huge},
                 {"mismatch_short", work_mismatch_short}, {"mismatch_root", work_mismatch_root},
                 {"mismatch_count", work_mismatch_count}, {"mismatch_sender", work_mismatch_sender}};
    dt_comm *c = NULL;
    int failed = 1;
    if (dt_comm_init(&c, &argc, &argv)) return dt_fail("test_collect");
    for (size_t k = 0; k < sizeof works / sizeof *works; k++)
        if (!strcmp(argv[1], works[k].name)) failed = works[k].work(c);
    dt_comm_free(&c);
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
        dt__fit_link(&link, bytes, seconds, 8);
        good = link.points == 8 && link.r2 <= 1.0 + 1e-12;
        if (what < 2) good &= fabs(link.alpha / alpha - 1) < (what ? 0.05 : 1e-9);
        if (what < 2) good &= fabs(link.beta / beta - 1) < (what ? 0.05 : 1e-9);
        if (what == 0) good &= link.r2 > 1 - 1e-12;
        if (what == 1) good &= link.r2 > 0.98 && link.r2 < 0.9999;
        if (what == 2) good &= link.beta <= 0.0 && fabs(link.alpha / alpha - 1) < 0.1;
        if (what == 3) good &= link.alpha <= 0.0 && link.beta > 0.0;
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
    static const char *const works[] = {"large", "nan", "tuned", "list", "usage"};
    char words[200];
    int full = getenv("DT_FULL") != NULL;
    if (argc > 1) return worker(argc, argv);
    test_fit();
    for (int n = 1; n <= 9; n++) /* one node, one rank on each, and between */
        for (int k = 0; k < 3; k++) {
            int nodes = k == 0 ? 1 : k == 1 ? n : (n + 1) / 2;
            if (k > 0 && (n == 1 || nodes == 1 || (k == 2 && n % 2 == 0 && n != 4 && !full))) continue;
            snprintf(words, sizeof words, "all --ranks %d --nodes %d --launch %s", n, nodes,
                     (n + k) % 2 ? "threads" : "processes");
            run(argv[0], words);
            snprintf(words, sizeof words, "real --ranks %d --nodes %d --launch %s", n, nodes,
                     (n + k) % 2 ? "processes" : "threads");
            run(argv[0], words);
            snprintf(words, sizeof words, "price --ranks %d --nodes %d", n, nodes);
            if (n > 1 && (full || n < 5)) run(argv[0], words);
        }
    for (int w = 0; w < 5; w++)
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
    setenv("DT_LINK_DELAY", "soon", 1);
    snprintf(words, sizeof words,
             "'%s' delay --ranks 2 --nodes 2 2>&1 | grep -q 'DT_LINK_DELAY=soon: it is the seconds'", argv[0]);
    tap_ok(system(words) == 0, "a delay that is no number");
    return tap_done();
}
