/* The parts that parallel modes are made of: meshes, partitions of segments, the schedules of pipelines, their
 * pictures, and who owns which piece of the state. One hash over all of them together is in test_layouts.t. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/timetable.h"
#include "tap.h"

enum { ORDERS = 10 };
static const char *const orders[ORDERS] = {"DPT", "DTP", "PDT", "PTD", "TDP", "TPD", "CDPT", "DPTC", "PCTD", "TPCD"};

/* Is the last error DT_E_USAGE, and does it say this? */
static void check_refused(dt_result r, const char *words, const char *what)
{
    int fine = r == DT_E_USAGE && strstr(dt_last_error(), words);
    if (!tap_ok(fine, "%s: refused", what)) tap_note("%s: %s", dt_result_name(r), r ? dt_last_error() : "");
}

/* ---- mesh ------------------------------------------------------------------------------------------------ */

static const char *const cluster_table = "rank node data pipe tensor\n"
                                         "   0    0    0    0      0\n"
                                         "   1    0    0    0      1\n"
                                         "   2    0    0    1      0\n"
                                         "   3    0    0    1      1\n"
                                         "   4    1    1    0      0\n"
                                         "   5    1    1    0      1\n"
                                         "   6    1    1    1      0\n"
                                         "   7    1    1    1      1\n";
static const char *const spread_table = "rank node data pipe tensor\n"
                                        "   0    0    0    0      0\n"
                                        "   1    0    1    0      0\n"
                                        "   2    0    0    1      0\n"
                                        "   3    0    1    1      0\n"
                                        "   4    1    0    0      1\n"
                                        "   5    1    1    0      1\n"
                                        "   6    1    0    1      1\n"
                                        "   7    1    1    1      1\n";

/* The mesh as a table, one line per rank. */
static const char *mesh_text(const dt_layout *l, int ranks, int per_node, char *text)
{
    int n = sprintf(text, "rank node data%s pipe tensor\n", l->cp > 1 ? " context" : "");
    for (int rank = 0; rank < ranks; rank++) {
        dt_mesh m;
        if (dt_mesh_of(l, ranks, rank, &m)) return dt_last_error();
        n += sprintf(text + n, "%4d %4d %4d ", rank, rank / per_node, m.at[DT_AXIS_DATA]);
        if (l->cp > 1) n += sprintf(text + n, "%7d ", m.at[DT_AXIS_CONTEXT]);
        n += sprintf(text + n, "%4d %6d\n", m.at[DT_AXIS_PIPELINE], m.at[DT_AXIS_TENSOR]);
    }
    return text;
}

static void check_table(const char *order, const char *want)
{
    char text[1024] = "";
    dt_layout l = dt_layout_default();
    l.pp = l.tp = 2;
    l.order = order;
    if (!tap_ok(!strcmp(mesh_text(&l, 8, 4, text), want), "8 ranks, pp 2, tp 2, order %s", order ? order : "left out"))
        tap_note("got\n%s", text);
}

/* Every rank has a place of its own, and the way from place to rank leads back. Returns what is wrong, or NULL. */
static const char *mesh_fault(const dt_layout *l, int ranks)
{
    char seen[64] = "", order[8] = "";
    int where = (int)strcspn(l->order, "D") + 1; /* C is inside D when it is not said */
    if (strchr(l->order, 'C')) snprintf(order, sizeof order, "%s", l->order);
    else snprintf(order, sizeof order, "%.*sC%s", where, l->order, l->order + where);
    for (int rank = 0; rank < ranks; rank++) {
        dt_mesh m;
        int place = 0, back = 0;
        if (dt_mesh_of(l, ranks, rank, &m)) return dt_last_error();
        if (m.size[DT_AXIS_DATA] * m.size[DT_AXIS_CONTEXT] * m.size[DT_AXIS_PIPELINE] * m.size[DT_AXIS_TENSOR] != ranks)
            return "dp cp pp tp is not the size";
        if (m.size[DT_AXIS_PIPELINE] != l->pp || m.size[DT_AXIS_TENSOR] != l->tp || m.size[DT_AXIS_CONTEXT] != l->cp)
            return "the degrees are others";
        for (int a = 0; a < DT_AXES; a++) {
            if (m.at[a] < 0 || m.at[a] >= m.size[a]) return "a place outside the mesh";
            place = place * m.size[a] + m.at[a];
        }
        if (seen[place]++) return "two ranks in one place";
        for (int a = 0; a < DT_AXES; a++) back += m.at[a] * m.stride[a];
        if (back != rank)
            return "no way back";
        for (int i = 0, stride = ranks; order[i]; i++) { /* the last letter is the axis of neighbours */
            static const char letters[] = "DPTC";
            int axis = (int)(strchr(letters, order[i]) - letters);
            if (m.stride[axis] != (stride /= m.size[axis])) return "the axes are not in this order";
        }
    }
    return NULL;
}

static void check_meshes(void)
{
    dt_layout l = dt_layout_default();
    int meshes = 0, wrong = 0;
    for (int ranks = 1; ranks <= 64; ranks++)
        for (l.tp = 1; l.tp <= ranks; l.tp++)
            for (l.pp = 1; l.pp <= ranks; l.pp++)
                for (int o = 0; o < 3 * ORDERS && ranks % (l.tp * l.pp) == 0; o++) {
                    const char *fault;
                    l.order = orders[o % ORDERS];
                    l.cp = 1 << o / ORDERS;
                    if (ranks / l.tp / l.pp % l.cp) break;
                    meshes++;
                    if ((fault = mesh_fault(&l, ranks)) == NULL) continue;
                    if (!wrong++)
                        tap_note("%d ranks, cp %d, pp %d, tp %d, %s: %s", ranks, (int)l.cp, (int)l.pp, (int)l.tp,
                                 l.order, fault);
                }
    tap_ok(!wrong, "%d meshes of up to 64 ranks: every rank has one place, every place one rank", meshes);
}

static void check_mesh_refusals(void)
{
    static const char *const bad[] = {"DPP", "DP", "DPTT", "dpt", "", "DPX", "DPTCC", "DPC"};
    char text[1024];
    dt_mesh m;
    dt_layout l = dt_layout_default();
    l.tp = 3;
    check_refused(dt_mesh_of(&l, 8, 0, &m), "--tp 3 does not divide 8 ranks. Set --tp to one of 1, 2, 4, 8.", "tp 3");
    l.tp = 0;
    check_refused(dt_mesh_of(&l, 6, 0, &m), "Set --tp to one of 1, 2.", "tp 0");
    l.tp = 2, l.pp = 4;
    check_refused(dt_mesh_of(&l, 12, 0, &m), "--pp 4 does not divide 6 tensor groups. Set --pp to one of 1, 2, 3, 6.",
                  "pp 4 of 12 / 2");
    l.tp = 1, l.pp = -1;
    check_refused(dt_mesh_of(&l, 4, 0, &m), "Set --pp to one of 1, 2, 4.", "pp -1");
    l.pp = 1, l.cp = 3;
    check_refused(dt_mesh_of(&l, 4, 0, &m), "--cp 3 does not divide 4 pipelines. Set --cp to one of 1, 2, 4.", "cp 3");
    l.cp = 2;
    tap_ok(!strcmp(mesh_text(&l, 4, 2, text), "rank node data context pipe tensor\n   0    0    0       0    0      0\n"
                             "   1    0    0       1    0      0\n   2    1    1       0    0      0\n"
                             "   3    1    1       1    0      0\n"),
           "4 ranks, cp 2: context ranks are neighbours");
    l.cp = 1;
    for (int i = 0; i < 8; i++) {
        char what[64];
        snprintf(what, sizeof what, "order '%s'", bad[i]);
        l.order = bad[i];
        check_refused(dt_mesh_of(&l, 4, 0, &m), "is not an order of the mesh", what);
    }
}

/* ---- partition --------------------------------------------------------------------------------------------- */

static double most_of(const double *cost, const int64_t *begin, int64_t parts, double *squares)
{
    double most = 0.0;
    *squares = 0.0;
    for (int64_t j = 0; j < parts; j++) {
        double sum = 0.0;
        for (int64_t i = begin[j]; i < begin[j + 1]; i++) sum += cost[i];
        most = sum > most ? sum : most;
        *squares += sum * sum;
    }
    return most;
}

/* The best of all cuts: bit i of `set` puts one before element i + 1. */
static double best_of(const double *cost, int64_t n, int64_t parts, double *squares)
{
    double best = -1.0;
    for (unsigned set = 0; set < 1u << (n - 1); set++) {
        int64_t begin[12] = {0}, count = 1;
        double most, sum;
        for (int64_t i = 0; i + 1 < n; i++)
            if (set >> i & 1u) begin[count++] = i + 1;
        if (count != parts) continue;
        begin[count] = n;
        most = most_of(cost, begin, parts, &sum);
        if (best >= 0.0 && (most > best || (most >= best && sum >= *squares))) continue;
        best = most;
        *squares = sum;
    }
    return best;
}

/* Costs are whole numbers times a scale: with 0.1 sums that are equal may round differently, which must not matter. */
static void check_partitions(double scale)
{
    uint64_t draw = 0;
    int trials = 0, wrong = 0;
    dt__rng rng = dt__rng_make(9, DT__RNG_INIT, 0, 0, 0);
    for (int64_t n = 1; n <= 10; n++)
        for (int64_t parts = 1; parts <= n; parts++)
            for (int again = 0; again < 20; again++, trials++) {
                double whole[10], cost[10], most, squares, want, least = 0.0;
                int64_t begin[12];
                for (int64_t i = 0; i < n; i++) {
                    whole[i] = floor(dt__uniform(&rng, draw++) * (again < 10 ? 1000.0 : 4.0));
                    cost[i] = scale * whole[i];
                }
                want = best_of(whole, n, parts, &least);
                if (dt_partition(cost, n, parts, begin)) tap_bail("%s", dt_last_error());
                most = most_of(whole, begin, parts, &squares);
                for (int64_t j = 0; j < parts; j++) wrong += begin[j] >= begin[j + 1];
                wrong += begin[0] != 0 || begin[parts] != n || most > want || squares > least;
            }
    tap_ok(!wrong, "%d partitions of costs in steps of %g are the best of all: dearest run, then sum of squares",
           trials, scale);
}

static void check_partition_shapes(void)
{
    double cost[100];
    int64_t begin[101];
    for (int i = 0; i < 100; i++) cost[i] = 0.1;
    tap_ok(!dt_partition(cost, 100, 4, begin) && begin[0] == 0 && begin[1] == 25 && begin[2] == 50 && begin[3] == 75 &&
               begin[4] == 100,
           "100 equal segments in 4 parts: 25 each");
    tap_ok(!dt_partition(cost, 100, 100, begin) && begin[1] == 1 && begin[99] == 99, "100 segments in 100 parts");
    tap_ok(!dt_partition(cost, 100, 1, begin) && begin[0] == 0 && begin[1] == 100, "100 segments in 1 part");
    check_refused(dt_partition(cost, 3, 4, begin), "3 segments cannot be cut into 4 parts", "more parts than segments");
    check_refused(dt_partition(cost, 3, 0, begin), "into 0 parts", "no parts");
    check_refused(dt_partition(cost, 0, 1, begin), "0 segments", "no segments");
}

/* ---- schedules --------------------------------------------------------------------------------------------- */

enum { STAGES = 8, UNITS = 24, CHUNKS = 4, LENGTH = 3 * UNITS * CHUNKS };
static dt__work work[STAGES * LENGTH];
static const char *const names[] = {"1f1b", "gpipe", "interleaved", "zero-bubble"};
static dt__pipe pipe_of(int kind, int stages, int chunks, int units)
{
    dt__pipe p;
    p.kind = kind, p.stages = stages, p.chunks = chunks, p.units = units;
    return p;
}

/* Every unit goes forward, back, and with zero-bubble through its weights, once per chunk and in this order; back and
 * weights in the order of units (R3). */
static int valid(const dt__pipe *p, const dt__work *list)
{
    int kinds = p->kind == DT_ZERO_BUBBLE ? 3 : 2, next[3][CHUNKS] = {{0}}, at[3][CHUNKS][UNITS];
    memset(at, -1, sizeof at);
    for (int i = 0; i < dt__pipe_length(p); i++) {
        const dt__work *w = &list[i];
        if (w->kind < 0 || w->kind >= kinds || w->chunk < 0 || w->chunk >= p->chunks || w->unit < 0 ||
            w->unit >= p->units)
            return 0;
        if (at[w->kind][w->chunk][w->unit] >= 0) return 0;
        if (w->kind && (at[w->kind - 1][w->chunk][w->unit] < 0 || w->unit != next[w->kind][w->chunk]++)) return 0;
        at[w->kind][w->chunk][w->unit] = i;
    }
    return 1; /* as many as the length, none twice: all of them */
}

/* How many units a stage has in flight at most, all chunks together; negative when two of a chunk share a slot, or
 * a slot is beyond slots[chunk]. */
static int most_in_flight(const dt__pipe *p, const dt__work *list, const int32_t *slots)
{
    int last = p->kind == DT_ZERO_BUBBLE ? DT__WORK_WEIGHTS : DT__WORK_BACKWARD, now = 0, most = 0;
    int holder[CHUNKS][UNITS]; /* 1 + the unit in a slot */
    memset(holder, 0, sizeof holder);
    for (int i = 0; i < dt__pipe_length(p); i++) {
        const dt__work *w = &list[i];
        int *in = &holder[w->chunk][w->slot];
        if (w->slot < 0 || w->slot >= slots[w->chunk]) return -1;
        if (*in != (w->kind == DT__WORK_FORWARD ? 0 : w->unit + 1)) return -1;
        if (w->kind == DT__WORK_FORWARD) *in = w->unit + 1, now++;
        most = now > most ? now : most;
        if (w->kind == last) *in = 0, now--;
    }
    return most;
}

/* What the papers say. Megatron's formula: warm-up forwards, and the one of the steady state. */
static int in_flight_formula(const dt__pipe *p, int stage)
{
    int total = p->units * p->chunks, warm = 2 * (p->stages - 1 - stage) + (p->chunks - 1) * p->stages;
    if (p->kind == DT_GPIPE) return p->units;
    if (p->chunks > 1) return warm + 1 < total ? warm + 1 : total;
    return p->stages - stage < p->units ? p->stages - stage : p->units;
}

static int check_slots(const dt__pipe *p, dt__work *list, int stage)
{
    int32_t slots[CHUNKS], live[CHUNKS];
    int most, sum = 0;
    dt__pipe_slots(p, list, slots, live);
    most = most_in_flight(p, list, slots);
    for (int c = 0; c < p->chunks; c++) sum += slots[c];
    if (p->chunks == 1 && sum != most) return 0;
    if (p->kind == DT_ZERO_BUBBLE) return most > 0 && most <= p->stages;
    return most == in_flight_formula(p, stage) && sum >= most;
}

/* The messages of one piece of work. Activations (way 0) go to the next stage round the ring, gradients (1) back. */
typedef struct messages {
    int takes, gives, way; /* way: of both */
    int from, to;
} messages;
static messages messages_of(const dt__pipe *p, const dt__work *w, int stage)
{
    messages m;
    int run = w->chunk * p->stages + stage, last = p->stages * p->chunks - 1;
    memset(&m, 0, sizeof m);
    if (p->stages == 1 || w->kind == DT__WORK_WEIGHTS) return m;
    m.way = w->kind == DT__WORK_BACKWARD;
    m.takes = m.way ? run < last : run > 0;
    m.gives = m.way ? run > 0 : run < last;
    m.from = (stage + (m.way ? 1 : p->stages - 1)) % p->stages;
    m.to = (stage + (m.way ? p->stages - 1 : 1)) % p->stages;
    return m;
}

/* A message: the run that gives it and its unit. */
static int message_name(const dt__pipe *p, const dt__work *w, int stage, int given)
{
    int run = w->chunk * p->stages + stage;
    if (!given) run += w->kind == DT__WORK_BACKWARD ? 1 : -1;
    return run * UNITS + w->unit;
}

/* Runs all stages with at most DT__OUTBOX messages under way from each in each direction. 1: all is done, 0: they wait
 * for each other for ever, -1: a stage took another message than it wanted. */
static int run_messages(const dt__pipe *p)
{
    static int sent[STAGES][2][LENGTH];
    int count[STAGES][2] = {{0}}, taken[STAGES][2] = {{0}}, next[STAGES] = {0}, giving[STAGES] = {0}, done = 0;
    int64_t length = dt__pipe_length(p);
    for (int moved = 1; moved;) {
        moved = 0;
        for (int s = 0; s < p->stages; s++)
            while (next[s] < length) {
                const dt__work *w = &work[s * length + next[s]];
                messages m = messages_of(p, w, s);
                if (m.takes && !giving[s]) {
                    if (taken[m.from][m.way] == count[m.from][m.way]) break;
                    if (sent[m.from][m.way][taken[m.from][m.way]++] != message_name(p, w, s, 0)) return -1;
                    moved = 1;
                }
                giving[s] = m.gives;
                if (m.gives && count[s][m.way] - taken[s][m.way] == DT__OUTBOX) break;
                if (m.gives) sent[s][m.way][count[s][m.way]++] = message_name(p, w, s, 1);
                giving[s] = 0;
                next[s]++, done++, moved = 1;
            }
    }
    return done == length * p->stages;
}

static double idle_formula(const dt__pipe *p)
{
    return (double)(p->stages - 1) / (double)(p->chunks * p->units + p->stages - 1);
}

/* Puts the schedule on a clock, as example 51 does; -1: its stages wait for each other forever. */
static double idle_of(const dt__pipe *p)
{
    timetable t;
    double idle;
    dt_layout l = dt_layout_default();
    l.pp = p->stages, l.pipeline = p->kind, l.chunks = p->chunks;
    if (timetable_open(&t, &l, p->units)) return -1.0;
    idle = t.total < 0 ? -1.0 : t.idle;
    timetable_close(&t);
    return idle;
}

typedef struct faults {
    int schedules, order, clock, idle, slots, messages, deadlock;
} faults;

/* Share of time that stages wait if a backward takes two forwards; zero-bubble: for as many units as stages or more. */
static double idle_share(const dt__pipe *p)
{
    double waits = (double)(p->stages - 1) / (p->kind == DT_ZERO_BUBBLE ? 3.0 : 1.0);
    return waits / ((double)p->chunks * (double)p->units + waits);
}

static void check_schedule(const dt__pipe *p, faults *f)
{
    int64_t length = dt__pipe_length(p);
    int bad_order = 0, bad_slots = 0, ran;
    double idle = idle_of(p), bubble = idle_formula(p);
    dt__pipe other = pipe_of(DT_1F1B, p->stages, 1, p->units);
    for (int s = 0; s < p->stages; s++) {
        dt__pipe_order(p, s, work + s * length);
        if (!valid(p, work + s * length))
            bad_order = 1;
        else if (!check_slots(p, work + s * length, s))
            bad_slots = 1;
    }
    f->schedules++;
    f->order += bad_order;
    f->slots += bad_slots;
    f->clock += idle < 0.0;
    if (p->kind != DT_ZERO_BUBBLE)
        f->idle += !(fabs(idle - bubble) <= 1e-12 && fabs(idle - idle_share(p)) <= 1e-12);
    else if (p->stages > 1 && p->units >= p->stages)
        f->idle += !(idle < idle_of(&other) && fabs(idle - idle_share(p)) <= 1e-12);
    else
        f->idle += !(idle >= 0.0 && idle <= bubble + 1e-12);
    ran = run_messages(p);
    f->messages += ran < 0;
    f->deadlock += ran == 0;
    if (bad_order || bad_slots || ran != 1)
        tap_note("%s, %d stages, %d units, %d chunks", names[p->kind], p->stages, p->units, p->chunks);
}

static void check_schedules(int kind)
{
    faults f;
    memset(&f, 0, sizeof f);
    for (int stages = 1; stages <= STAGES; stages++)
        for (int units = 1; units <= UNITS; units++)
            for (int chunks = 1; chunks <= (kind == DT_INTERLEAVED ? CHUNKS : 1); chunks++) {
                dt__pipe p = pipe_of(kind, stages, chunks, units);
                if (kind != DT_INTERLEAVED || units % stages == 0) check_schedule(&p, &f);
            }
    tap_ok(!f.order, "%s, %d schedules: every unit once, backward and weights in the order of units (R3)", names[kind],
           f.schedules);
    tap_ok(!f.clock, "%s: no stage waits for ever", names[kind]);
    tap_ok(!f.idle, "%s: the idle share %s", names[kind],
           kind == DT_ZERO_BUBBLE ? "is below that of 1f1b" : "is the formula's to 1e-12");
    tap_ok(!f.slots, "%s: as many units in flight as the formula says, each in a slot of its own", names[kind]);
    tap_ok(!f.messages, "%s: messages are taken in the order in which they are sent", names[kind]);
    tap_ok(!f.deadlock, "%s: %d messages under way are enough", names[kind], DT__OUTBOX);
}

/* ---- pictures ---------------------------------------------------------------------------------------------- */

static void check_grid(int kind, int64_t pp, int64_t chunks, int64_t units, const char *want)
{
    timetable t;
    dt_layout l = dt_layout_default();
    l.pp = pp, l.pipeline = kind, l.chunks = chunks;
    if (!tap_ok(!timetable_open(&t, &l, units) && !strcmp(t.text, want), "picture of %s, %d stages, %d units",
                names[kind], (int)pp, (int)units))
        tap_note("got\n%s", t.text ? t.text : "nothing");
    timetable_close(&t);
}

static void check_grids(void)
{
    check_grid(DT_1F1B, 2, 2, 4,
               "stage 0  F0 F1       B0 B0 F2 B1 B1 F3 B2 B2    B3 B3 \n"
               "stage 1     F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3       \n");
    check_grid(DT_1F1B, 3, 2, 4,
               "stage 0  F0 F1 F2             B0 B0 F3 B1 B1    B2 B2    B3 B3 \n"
               "stage 1     F0 F1       B0 B0 F2 B1 B1 F3 B2 B2    B3 B3       \n"
               "stage 2        F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3             \n");
    check_grid(DT_1F1B, 4, 2, 3,
               "stage 0  F0 F1 F2                      B0 B0    B1 B1    B2 B2 \n"
               "stage 1     F0 F1 F2             B0 B0    B1 B1    B2 B2       \n"
               "stage 2        F0 F1       B0 B0 F2 B1 B1    B2 B2             \n"
               "stage 3           F0 B0 B0 F1 B1 B1 F2 B2 B2                   \n");
    check_grid(DT_GPIPE, 2, 2, 3,
               "stage 0  F0 F1 F2          B0 B0 B1 B1 B2 B2 \n"
               "stage 1     F0 F1 F2 B0 B0 B1 B1 B2 B2       \n");
    check_grid(DT_GPIPE, 3, 2, 3,
               "stage 0  F0 F1 F2                   B0 B0 B1 B1 B2 B2 \n"
               "stage 1     F0 F1 F2          B0 B0 B1 B1 B2 B2       \n"
               "stage 2        F0 F1 F2 B0 B0 B1 B1 B2 B2             \n");
    check_grid(DT_GPIPE, 4, 2, 2,
               "stage 0  F0 F1                            B0 B0 B1 B1 \n"
               "stage 1     F0 F1                   B0 B0 B1 B1       \n"
               "stage 2        F0 F1          B0 B0 B1 B1             \n"
               "stage 3           F0 F1 B0 B0 B1 B1                   \n");
    check_grid(DT_INTERLEAVED, 2, 2, 4,
               "stage 0  F0 F1 f0 f1 F2    b0 b0 F3 b1 b1 f2 B0 B0 f3 B1 B1    b2 b2    b3 b3 B2 B2 B3 B3 \n"
               "stage 1     F0 F1 f0 b0 b0 f1 b1 b1 F2 B0 B0 F3 B1 B1 f2 b2 b2 f3 b3 b3 B2 B2 B3 B3       \n");
    check_grid(DT_INTERLEAVED, 3, 2, 3,
               "stage 0  F0 F1 F2 f0 f1 f2             b0 b0    b1 b1    b2 b2 B0 B0 B1 B1 B2 B2 \n"
               "stage 1     F0 F1 F2 f0 f1 f2    b0 b0    b1 b1    b2 b2 B0 B0 B1 B1 B2 B2       \n"
               "stage 2        F0 F1 F2 f0 b0 b0 f1 b1 b1 f2 b2 b2 B0 B0 B1 B1 B2 B2             \n");
    check_grid(
        DT_INTERLEAVED, 4, 2, 4,
        "stage 0  F0 F1 F2 F3 f0 f1 f2 f3                   b0 b0    b1 b1    b2 b2    b3 b3 B0 B0 B1 B1 B2 B2 B3 B3 \n"
        "stage 1     F0 F1 F2 F3 f0 f1 f2 f3          b0 b0    b1 b1    b2 b2    b3 b3 B0 B0 B1 B1 B2 B2 B3 B3       \n"
        "stage 2        F0 F1 F2 F3 f0 f1 f2    b0 b0 f3 b1 b1    b2 b2    b3 b3 B0 B0 B1 B1 B2 B2 B3 B3             \n"
        "stage 3           F0 F1 F2 F3 f0 b0 b0 f1 b1 b1 f2 b2 b2 f3 b3 b3 B0 B0 B1 B1 B2 B2 B3 B3                   "
        "\n");
    check_grid(DT_ZERO_BUBBLE, 2, 2, 3,
               "stage 0  F0 F1    B0 W0 F2 B1 W1 B2 W2 \n"
               "stage 1     F0 B0 F1 B1 W0 F2 B2 W1 W2 \n");
    check_grid(DT_ZERO_BUBBLE, 3, 2, 4,
               "stage 0  F0 F1 F2       B0 W0 F3 B1 W1 B2 W2 B3 W3 \n"
               "stage 1     F0 F1    B0 F2 B1 W0 F3 B2 W1 B3 W2 W3 \n"
               "stage 2        F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3 \n");
    check_grid(DT_ZERO_BUBBLE, 4, 2, 4,
               "stage 0  F0 F1 F2 F3          B0 W0 B1 W1 B2 W2 B3 W3 \n"
               "stage 1     F0 F1 F2       B0 F3 B1 W0 B2 W1 B3 W2 W3 \n"
               "stage 2        F0 F1    B0 F2 B1 F3 B2 W0 B3 W1 W2 W3 \n"
               "stage 3           F0 B0 F1 B1 F2 B2 F3 B3 W0 W1 W2 W3 \n");
}

static void check_order_refusals(void)
{
    dt_recipe r = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_plan *plan = NULL;
    r.model = dt_model_gpt2("nano"), r.model.vocabulary = 16;
    r.data_shards = r.micro_batch = 1, r.batch = 4, l.pp = 2;
    check_refused(dt_plan_open(&plan, &r, &l, 2, 2), "rank 2 of 2 ranks", "a stage beyond the last");
    l.chunks = 0;
    check_refused(dt_plan_open(&plan, &r, &l, 2, 0), "--chunks", "no chunks");
    l.chunks = 2, l.pipeline = 4;
    check_refused(dt_plan_open(&plan, &r, &l, 2, 0), "--pipeline", "another schedule");
    l.pipeline = DT_INTERLEAVED, r.batch = 3;
    check_refused(dt_plan_open(&plan, &r, &l, 2, 0), "in groups of 2, one per stage, and a rank has 3",
                  "3 units interleaved on 2 stages");
    tap_ok(!plan, "  and there is no plan");
}

/* ---- who owns what ------------------------------------------------------------------------------------------ */

enum { MOST_BUCKETS = 64, MOST_OWNERS = 8 };
typedef struct owned {
    const char *fault;
    int64_t tied_cut[8][MOST_OWNERS + 1]; /* of tied parameter i; [0] -1 before it is seen */
} owned;

static int tiles(const int64_t *from, const int64_t *count, int n, int64_t whole)
{
    int64_t covered = 0;
    for (int i = 0; i < n; i++) {
        if (from[i] < 0 || from[i] + count[i] > whole) return 0;
        for (int k = 0; k < i; k++)
            if (from[i] < from[k] + count[k] && from[k] < from[i] + count[i]) return 0;
        covered += count[i];
    }
    return covered == whole;
}

/* The pieces of one bucket: whole blocks, as even as blocks can be. */
static const char *cut_fault(const dt__store *s, int32_t b)
{
    const int64_t *cut = dt__store_cut(s, b);
    int64_t floats = s->bucket[b].floats, each = floats / DT__BLOCK / s->shards * DT__BLOCK;
    if (floats % DT__BLOCK) return "a bucket is not whole blocks";
    if (cut[0] != 0 || cut[s->shards] != floats) return "the owners' pieces are not the bucket";
    for (int j = 0; j < s->shards; j++) {
        int64_t piece = cut[j + 1] - cut[j], at = s->own[(int64_t)b * s->shards + j];
        if (cut[j] % DT__BLOCK) return "a piece begins inside a block (R11)";
        if (piece != each && piece != each + DT__BLOCK) return "pieces differ by more than one block";
        if (s->own[(int64_t)(b + 1) * s->shards + j] != at + (s->bucket[b].param >= 0 ? piece : 0))
            return "an owner's pieces do not lie one behind another";
    }
    return NULL;
}

/* The owners' loads differ by at most one block per bucket of parameters. */
static const char *load_fault(const dt__store *s)
{
    const int64_t *load = s->own + (int64_t)s->buckets * s->shards;
    int64_t most = load[0], least = load[0], sum = 0, buckets = 0;
    for (int32_t b = 0; b < s->buckets; b++) buckets += s->bucket[b].param >= 0;
    for (int j = 0; j < s->shards; j++) {
        most = load[j] > most ? load[j] : most;
        least = load[j] < least ? load[j] : least;
        sum += load[j];
    }
    if (sum != s->param_floats || most != s->most_params) return "the loads are not the parameters";
    if (load[s->piece] != s->own_params) return "the own load is another";
    return most - least <= buckets * DT__BLOCK ? NULL : "loads differ by more than one block per bucket";
}

static const char *tied_fault(const dt__store *s, owned *o)
{
    for (int32_t b = 0; b < s->buckets; b++) {
        const int64_t *cut = dt__store_cut(s, b);
        int64_t *seen = s->bucket[b].tied >= 0 ? o->tied_cut[s->bucket[b].tied % 8] : NULL;
        if (!seen) continue;
        if (seen[0] < 0) memcpy(seen, cut, 8 * (size_t)(s->shards + 1));
        if (memcmp(seen, cut, 8 * (size_t)(s->shards + 1)))
            return "uses of a tied parameter are cut in different places";
    }
    return NULL;
}

/* Buckets tile the slots, those with parameters the parameters, and those that are filled together the buffer. */
static const char *bucket_fault(const dt__store *s)
{
    int64_t slot[MOST_BUCKETS], param[MOST_BUCKETS], floats[MOST_BUCKETS], with[MOST_BUCKETS];
    int params = 0;
    if (s->buckets > MOST_BUCKETS) return "too many buckets for this test";
    for (int32_t b = 0; b < s->buckets; b++) {
        const dt__bucket *k = &s->bucket[b];
        slot[b] = k->slot, floats[b] = k->floats;
        if (k->param >= 0) param[params] = k->param, with[params++] = k->floats;
        if (k->buffer + k->floats > s->buffer_floats) return "a bucket goes beyond the buffer";
        for (int32_t o = 0; o < b; o++)
            if (s->bucket[o].group == k->group && s->bucket[o].buffer < k->buffer + k->floats &&
                k->buffer < s->bucket[o].buffer + s->bucket[o].floats)
                return "buckets that are filled together overlap in the buffer";
    }
    if (!tiles(slot, floats, s->buckets, s->slot_floats)) return "buckets do not tile the slots";
    return tiles(param, with, params, s->param_floats) ? NULL : "buckets do not tile the parameters";
}

static void check_store(dt__net *net, const dt__chunk *chunks, int count, int shards, int64_t bytes, owned *o)
{
    for (int piece = 0; piece < shards && !o->fault; piece++) {
        dt__store s;
        int64_t slots = 0;
        memset(&s, 0, sizeof s);
        s.shards = shards, s.piece = piece;
        if (dt__store_open(&s, net, chunks, count, bytes, piece % 2, piece % 2)) tap_bail("%s", dt_last_error());
        o->fault = bucket_fault(&s);
        for (int32_t b = 0; b < s.buckets && !o->fault; b++) {
            o->fault = cut_fault(&s, b);
            if (s.bucket[b].sum != slots) o->fault = "the own sums do not lie one behind another";
            slots += dt__store_cut(&s, b)[piece + 1] - dt__store_cut(&s, b)[piece];
        }
        if (!o->fault && slots != s.own_slots) o->fault = "the own sums are more or less";
        if (!o->fault) o->fault = load_fault(&s);
        if (!o->fault) o->fault = tied_fault(&s, o);
        dt__store_close(&s);
    }
}

/* A model over `stages` stages of `chunks` runs each, and what every stage shares among its owners. */
static void check_stages(dt__net *net, int stages, int chunks, int shards, int64_t bytes, owned *o)
{
    double cost[16];
    int64_t begin[17], runs = (int64_t)stages * chunks;
    for (int i = 0; i < 16; i++) cost[i] = 1.0;
    for (int i = 0; i < 8; i++) o->tied_cut[i][0] = -1;
    if (dt_partition(cost, net->count, runs, begin)) tap_bail("%s", dt_last_error());
    for (int stage = 0; stage < stages && !o->fault; stage++) {
        dt__chunk chunk[4];
        memset(chunk, 0, sizeof chunk);
        for (int c = 0; c < chunks; c++) {
            int64_t run = (int64_t)c * stages + stage;
            chunk[c].begin = (int32_t)begin[run], chunk[c].end = (int32_t)begin[run + 1];
        }
        check_store(net, chunk, chunks, shards, bytes, o);
    }
}

static void check_stores(dt_model m, int tied, const char *what)
{
    static const int64_t bytes[] = {1, 100000, 25000000};
    dt__net net;
    owned o;
    int stores = 0;
    memset(&net, 0, sizeof net);
    memset(&o, 0, sizeof o);
    m.vocabulary = 251; /* no multiple of anything */
    m.tied = tied;
    if (dt__net_open(&net, &m, 1, 8)) tap_bail("%s", dt_last_error());
    for (int shards = 1; shards <= MOST_OWNERS; shards++)
        for (int stages = 1; stages <= net.count; stages++)
            for (int chunks = 1; chunks <= 4 && chunks * stages <= net.count; chunks++)
                for (int k = 0; k < 3 && !o.fault; k++, stores++) {
                    check_stages(&net, stages, chunks, shards, bytes[k], &o);
                    if (o.fault)
                        tap_note("%d owners, %d stages of %d chunks, %lld bytes: %s", shards, stages, chunks,
                                 (long long)bytes[k], o.fault);
                }
    tap_ok(!o.fault,
           "%s: in %d layouts the owners have every block once, and one block per bucket more than others at most",
           what, stores);
    dt__net_close(&net);
}

/* ---- fewer ranks ------------------------------------------------------------------------------------------- */

enum { MOST_RANKS = 12 };

/* Whether a layout can be of so many ranks: the plan begins, as far as ranks count. */
static int opens(dt_plan *p, const dt_recipe *r, const dt_layout *l, int ranks)
{
    memset(p, 0, sizeof *p);
    p->recipe = r, p->layout = l, p->ranks = ranks;
    return !dt__layout_begin(p);
}

/* What a layout says of fewer ranks is what becomes of them. Returns the number of answers, or -1. */
static int fits_truly(const dt_recipe *r, const dt_layout *l)
{
    dt_plan *p = (dt_plan *)calloc(2, sizeof *p);
    int answers = 0;
    for (int ranks = 2; ranks <= MOST_RANKS && answers >= 0; ranks++)
        for (int n = 1; n < ranks && answers >= 0 && opens(p, r, l, ranks); n++, answers++) {
            int fits = dt__layout_fits(p, n);
            if (fits == opens(p + 1, r, l, n)) continue;
            tap_note("%d of %d ranks fit: %d; tp %d pp %d cp %d ep %d zero-group %d pipeline %d: %s", n, ranks, fits, (int)l->tp,
                     (int)l->pp, (int)l->cp, (int)l->ep, (int)l->zero_group, l->pipeline, fits ? dt_last_error() : "opens");
            answers = -2;
        }
    free(p);
    return answers;
}

static void check_fewer_ranks(void)
{
    dt_recipe r = dt_recipe_default();
    dt_layout l = dt_layout_default();
    int answers = 0, n = 0;
    r.tensor_shards = r.context_shards = 2;
    r.batch = 24, r.micro_batch = 8;
    for (int i = 0; i < 1 << 11 && n >= 0; i++, answers += n) {
        l.tp = 1 + (i & 1), l.cp = 1 + (i >> 1 & 1), l.pp = 1 + (i >> 2 & 3), l.ep = 1 << (i >> 4 & 3);
        l.zero = i >> 6 & 2, l.zero_group = l.zero ? i >> 8 & 7 : 0;
        l.pipeline = i >> 6 & 1 ? DT_INTERLEAVED : DT_1F1B;
        n = fits_truly(&r, &l);
    }
    tap_ok(n >= 0 && answers > 10000, "which fewer ranks a layout can be of: %d answers", answers);
}

int main(void)
{
    check_table("DPT", cluster_table);
    check_table("cluster", cluster_table);
    check_table(NULL, cluster_table);
    check_table("TPD", spread_table);
    check_table("spread", spread_table);
    check_meshes();
    check_mesh_refusals();
    check_fewer_ranks();
    check_partition_shapes();
    check_partitions(1.0);
    check_partitions(0.1);
    for (int kind = DT_1F1B; kind <= DT_ZERO_BUBBLE; kind++) check_schedules(kind);
    check_grids();
    check_order_refusals();
    check_stores(dt_model_gpt2("nano"), 1, "GPT-2 nano");
    check_stores(dt_model_llama("llama-nano"), 0, "llama-nano");
    check_stores(dt_model_llama("llama-micro"), 1, "llama-micro, tied");
    return tap_done();
}
