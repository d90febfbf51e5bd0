/* simulate.h: how long a step takes, and why, on ranks that are not there. The step programs are the executor's own:
 * dt_plan_open makes them for any rank of any layout. Each instruction gets seconds by a model of the machine (seconds
 * per op, FLOP and byte; a message of s bytes takes alpha + beta s), and the ranks run against each other: a receive
 * waits for its send, a collective for its last rank, work for the reductions that it needs.
 *
 * Ranks that do the same work at the same time are simulated once. An axis of the mesh keeps one coordinate for each
 * number of data shards, and those of the ranks that are slow; stages all stay. Up to SIM_ALL ranks all are simulated.
 * Include it after dtrain.h with DTRAIN_IMPLEMENTATION. simulate.c is the program; tests/bench_simulate.c measures. */
#ifndef SIMULATE_H
#define SIMULATE_H

#include "cost.h"

/* ---- the machine ---- */

enum {
    SIM_UPDATE = DT__OP_COUNT,
    SIM_FOLD,
    SIM_SEGMENT,
    SIM_STEP,
    SIM_RATES,
    SIM_ALL = 8,
    SIM_SLOW = 64,
    SIM_STEPS = 2
};

typedef struct sim_rate { /* seconds of a call, of a FLOP, of a byte */
    double each, flop, byte;
} sim_rate;

/* A link: messages from point to point, and hops of collectives. beta is of a rank inside a node, of a node outside. */
typedef struct sim_link {
    double alpha, beta, hop, beta_all;
} sim_link;

typedef struct sim_machine {
    char name[40];
    sim_rate rate[SIM_RATES]; /* by op; then UPDATE and FOLD per byte, of each segment's work, of a step per token */
    sim_link link[2];         /* in a node; between nodes */
    double busy;              /* work takes times as long when the other ranks of the host work, too */
    int serial;               /* nothing moves while a rank works: bytes take time beside FLOPs, a receiver copies */
    int gpus;                 /* ranks of a node */
    double peak, gb, dollars; /* FLOP/s of a rank; memory of a rank in GB; dollars an hour of a node; NAN: not known */
} sim_machine;

static const char *sim_rate_name(int k)
{
    static const char *const more[] = {"update", "fold", "segment", "step"};
    return k < DT__OP_COUNT ? dt__op_of(k)->name : more[k - DT__OP_COUNT];
}

/* Of the catalogue. Assumed: 70 % of the peak in products, 35 % in attention, 80 % of the memory's bandwidth, 3 us per
 * kernel, fp32 at half the rate (TF32). */
static void sim_machine_of(sim_machine *m, const cost_type *t, int precision)
{
    static const struct {
        const char *accel;
        double gb_s;
    } memory[] = {{"V100", 900}, {"A100", 2039}, {"H100", 3350},   {"H200", 4800},
                  {"A10G", 600}, {"T4", 320},    {"Trainium", 820}};
    double bytes = 820e9;
    memset(m, 0, sizeof *m);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        if (!strcmp(t->accel, memory[i].accel)) bytes = memory[i].gb_s * 1e9;
    if (!strcmp(t->accel, "A100") && t->gb <= 40) bytes = 1555e9;
    snprintf(m->name, sizeof m->name, "%s", cost_short(t));
    m->peak = t->teraflops * 1e12 / (precision == DT_PRECISION_FP32 ? 2 : 1);
    for (int k = 0; k < SIM_RATES; k++) {
        int product = k < DT__OP_COUNT && dt__op_of(k)->class_of == DT__CLASS_GEMM;
        m->rate[k].each = 3e-6, m->rate[k].byte = 1 / (0.8 * bytes),
        m->rate[k].flop = 1 / ((product ? 0.7 : 0.35) * m->peak);
    }
    m->rate[SIM_SEGMENT].each = m->rate[SIM_STEP].byte = 0, m->rate[SIM_STEP].each = 1e-3;
    m->link[0].alpha = m->link[0].hop = 5e-6, m->link[0].beta = m->link[0].beta_all = 1 / cost_inside(t);
    m->link[1].alpha = m->link[1].hop = cost_alpha(t), m->link[1].beta = m->link[1].beta_all = 1 / cost_outside(t);
    m->busy = 1, m->gpus = t->count, m->gb = t->gb, m->dollars = t->dollars;
}

/* A calibration is a text of lines "NAME number ..", # begins a comment. Returns NULL, or what is wrong. */
static inline const char *sim_machine_read(sim_machine *m, const char *path)
{
    static char wrong[160];
    char line[200], name[40], seen[SIM_RATES] = {0};
    FILE *f = fopen(path, "r");
    memset(m, 0, sizeof *m);
    m->busy = 1, m->gpus = 1, m->dollars = m->gb = (double)NAN;
    if (!f) return "the file cannot be read";
    *wrong = 0;
    for (int row = 1; !*wrong && fgets(line, sizeof line, f); row++) {
        double n[4] = {0, 0, 0, 0};
        int k = 0, got = sscanf(line, "%39s %lf %lf %lf %lf", name, &n[0], &n[1], &n[2], &n[3]) - 1, good;
        if (got < 0 || *name == '#') continue;
        while (k < SIM_RATES && strcmp(name, sim_rate_name(k))) k++;
        good = got == (k < SIM_RATES ? 3 : !strcmp(name, "near") || !strcmp(name, "far") ? 4 : 1);
        for (int i = 0; i < got; i++) good = good && n[i] >= 0 && n[i] < 1e18;
        if (k < SIM_RATES) m->rate[k].each = n[0], m->rate[k].flop = n[1], m->rate[k].byte = n[2], seen[k] = 1;
        else if (!strcmp(name, "near") || !strcmp(name, "far")) {
            sim_link *l = &m->link[*name == 'f'];
            l->alpha = n[0], l->beta = n[1], l->hop = n[2], l->beta_all = n[3];
        } else if (!strcmp(name, "busy")) m->busy = n[0];
        else if (!strcmp(name, "serial")) m->serial = n[0] > 0;
        else if (!strcmp(name, "peak")) m->peak = n[0];
        else good = 0;
        if (!good) snprintf(wrong, sizeof wrong, "line %d is not a calibration's: %.60s", row, name);
    }
    fclose(f);
    for (int k = 0; k < DT__OP_COUNT; k++) /* an op that was not seen costs what an addition costs */
        if (!seen[k]) m->rate[k] = m->rate[DT__OP_ADD];
    snprintf(m->name, sizeof m->name, "calibrated");
    if (!*wrong && !(m->peak > 0)) snprintf(wrong, sizeof wrong, "it has no line 'peak'");
    return *wrong ? wrong : NULL;
}

static inline int sim_machine_write(const sim_machine *m, const char *path)
{
    FILE *f = fopen(path, "w");
    if (!f) return 0;
    fprintf(f, "# seconds of a call, a FLOP, a byte; of a message, its byte, a hop of a collective, its byte\n");
    for (int k = 0; k < SIM_RATES; k++)
        if (k >= DT__OP_COUNT || k == DT__OP_ADD || memcmp(&m->rate[k], &m->rate[DT__OP_ADD], sizeof m->rate[k]))
            fprintf(f, "%s %.6g %.6g %.6g\n", sim_rate_name(k), m->rate[k].each, m->rate[k].flop, m->rate[k].byte);
    for (int k = 0; k < 2; k++)
        fprintf(f, "%s %.6g %.6g %.6g %.6g\n", k ? "far" : "near", m->link[k].alpha, m->link[k].beta, m->link[k].hop,
                m->link[k].beta_all);
    fprintf(f, "busy %.6g\nserial %d\npeak %.6g\n", m->busy, m->serial, m->peak);
    return cost_closed(f, path);
}

/* ---- what an instruction costs ---- */

typedef struct sim_cost {
    double work, comm; /* seconds: on the rank; with others, once all are there */
    double sent[2];    /* bytes to ranks of this node, of others */
    int axes;          /* that take part; a bit each */
} sim_cost;

typedef struct sim_slow {
    int rank;
    double factor;
} sim_slow;

typedef struct sim_job {
    const dt_recipe *recipe;
    const dt_layout *layout;
    const sim_machine *machine;
    int ranks, per_node; /* ranks of a node */
    int all;             /* simulate every rank */
    sim_slow slow[SIM_SLOW];
    int slows;
} sim_job;

/* A group of a rank: its size and nodes, the ranks on this node, the index of this rank and of the node's first. */
typedef struct sim_group {
    int size, here, nodes, own, first, last;
} sim_group;

/* By dt_axis; data ranks that share a copy of the state (ZeRO); those with the same piece of other copies; ranks that
 * together have one copy; all ranks. */
enum { SIM_SHARDS = DT_AXES, SIM_REPLICAS, SIM_COPY, SIM_WORLD, SIM_GROUPS };

/* What a plan's rank sees: its groups, and how many ranks of its node communicate when it does: those of its stage. */
typedef struct sim_view {
    const sim_job *j;
    const dt_plan *p;
    sim_group group[SIM_GROUPS];
    int sharing;
} sim_view;

static int sim_at(const dt_mesh *m, int rank, int axis) { return rank / m->stride[axis] % m->size[axis]; }

static sim_view sim_view_of(const sim_job *j, const dt_plan *p)
{
    const dt_mesh *m = &p->mesh;
    int node = p->rank / j->per_node, most = (int)dt__max(p->store.shards, p->layout->ep);
    sim_view v;
    memset(&v, 0, sizeof v);
    v.j = j, v.p = p;
    for (int r = 0; r < j->ranks; r++) {
        int same[DT_AXES], differ = 0, d = sim_at(m, r, DT_AXIS_DATA), here = r / j->per_node == node;
        for (int axis = 0; axis < DT_AXES; axis++) differ += !(same[axis] = sim_at(m, r, axis) == m->at[axis]);
        v.sharing += here && same[DT_AXIS_PIPELINE];
        for (int k = 0; k < SIM_GROUPS; k++) {
            int run = k == SIM_COPY ? most : p->store.shards, others = differ;
            sim_group *g = &v.group[k];
            if (k < DT_AXES) others -= !same[k];
            else if (k == SIM_REPLICAS ? d % run == m->at[DT_AXIS_DATA] % run : d / run == m->at[DT_AXIS_DATA] / run)
                others -= !same[DT_AXIS_DATA];
            if (k == SIM_COPY) others -= !same[DT_AXIS_PIPELINE] + !same[DT_AXIS_TENSOR];
            if (others && k != SIM_WORLD) continue;
            if (!g->size || g->last != r / j->per_node) g->nodes++, g->last = r / j->per_node;
            if (here && !g->here++) g->first = g->size;
            if (r == p->rank) g->own = g->size;
            g->size++;
        }
    }
    return v;
}

/* Hops of a collective among n: a ring's, or up and down a tree. */
static double sim_hops(int n) { return n < 2 ? 0 : fmin(n - 1, 2 * ceil(log2(n))); }

/* Adds a collective in which this rank sends near and far bytes; times: 2 for an all-reduce, 1 else. */
static void sim_collective(const sim_view *v, int group, double times, double near, double far, sim_cost *c)
{
    const sim_link *in = &v->j->machine->link[0], *out = &v->j->machine->link[1];
    const sim_group *g = &v->group[group];
    c->sent[0] += near, c->sent[1] += far;
    c->comm += times * sim_hops(g->here) * in->hop + near * in->beta_all;
    if (g->nodes > 1) c->comm += times * sim_hops(g->nodes) * out->hop + far * v->sharing * out->beta_all;
}

/* Every rank gets `bytes` of each. */
static void sim_gather(const sim_view *v, int group, double bytes, sim_cost *c)
{
    const sim_group *g = &v->group[group];
    sim_collective(v, group, 1, (g->here - 1) * bytes, (g->nodes - 1) * bytes, c);
}

/* `bytes` to the other ranks, to each as many. */
static void sim_exchange(const sim_view *v, int group, double bytes, sim_cost *c)
{
    const sim_group *g = &v->group[group];
    double far = g->size > 1 ? bytes * (g->size - g->here) / (g->size - 1) : 0;
    sim_collective(v, group, 1, bytes - far, far, c);
}

/* A sum of `floats` from `parts` partial sums of this rank, as H13 sends it: to the rank of this node that adds a
 * range, and each range once to another node. cut: the ranges; NULL: even ones. all: the sum goes to every rank, else
 * each range to its owner. */
static void sim_reduce(const sim_view *v, int group, int64_t floats, int parts, const int64_t *cut, int all,
                       sim_cost *c)
{
    const sim_group *g = &v->group[group];
    int subtrees = g->here == 1 ? parts : g->here & (g->here - 1) ? 2 : 1;
    double near = 0, far = 0, own = 0;
    if (floats <= DT__EAGER && !cut && parts == 1 && group != DT_AXIS_DATA &&
        group != SIM_REPLICAS) { /* everything to everyone */
        sim_gather(v, group, 4.0 * (double)floats, c);
        return;
    }
    for (int i = 0; i < g->size; i++) {
        int here = i >= g->first && i < g->first + g->here, reader = here ? i : g->first + i % g->here;
        double n = 4.0 * (double)(cut ? cut[i + 1] - cut[i]
                                      : dt__piece(floats, g->size, i + 1) - dt__piece(floats, g->size, i));
        if (reader != g->own) near += n * parts;
        else if (!here)
            far += n * subtrees;
        if (i == g->own) own = n;
    }
    if (all) near += (g->here - 1) * own, far += (g->nodes - 1) * own;
    sim_collective(v, group, 1 + all, near, far, c);
}

/* Seconds of some calls, with FLOPs and bytes of all. */
static double sim_seconds(const sim_machine *m, int rate, double calls, double flops, double bytes)
{
    const sim_rate *r = &m->rate[rate];
    flops *= r->flop, bytes *= r->byte;
    return r->each * calls + (m->serial ? flops + bytes : fmax(flops, bytes));
}

/* The bytes of a node's inputs and output. Attention of context slices touches them for each pair of slices, and joins
 * what comes out with a sum. *pairs: those of this rank (else 1); the 2 slices of a leaf see 2 Vc + 1. */
static double sim_bytes(const dt__segment_plan *s, int32_t id, double *pairs)
{
    const dt_graph *g = s->g;
    const dt__node *n = &g->nodes[id];
    double bytes = (double)dt__touched(s, id);
    for (int k = 0; k < n->inputs; k++) bytes += (double)dt__touched(s, n->in[k]);
    *pairs = 1;
    if (!g->context_shards || (n->op != DT__OP_ATTENTION && n->op != DT__OP_ATTENTION_GRAD)) return bytes;
    *pairs = (double)(dt__leaves(g) * (2 * g->context_shards + 1));
    return (bytes + 2 * (double)dt__touched(s, id)) * (double)(2 * g->context_shards + 1) / 2;
}

/* Ops [from, from + count) of a segment, with the exchanges inside (compare dt__cost_ops). */
static void sim_ops(const sim_view *v, const dt__segment_plan *s, int32_t from, int32_t count, sim_cost *c)
{
    const dt_graph *g = s->g;
    const sim_machine *machine = v->j->machine;
    int ranks = v->group[DT_AXIS_TENSOR].size;
    c->work += machine->rate[SIM_SEGMENT].each;
    for (const int32_t *id = s->order + from; id < s->order + from + count; id++) {
        const dt__node *n = &g->nodes[*id], *x = &g->nodes[n->in[0]];
        int64_t floats = dt__count(x);
        for (int32_t m = *id; m == *id || (n->group && g->nodes[m].group == n->group); m--) {
            const dt__node *o = &g->nodes[m];
            double calls, bytes = sim_bytes(s, m, &calls);
            if (o->op == DT__OP_COMBINE || o->op == DT__OP_ALL_ROWS || o->op == DT__OP_MOE_EXCHANGE) continue;
            if (m != *id) calls = 0; /* a group of fused ops is one call */
            c->work += sim_seconds(machine, o->op, calls, dt__node_flops(g, m, 0), bytes);
        }
        if (n->op == DT__OP_COMBINE && n->i[1]) /* sequence parallel */
            sim_exchange(v, DT_AXIS_TENSOR, 4.0 * (ranks - 1) * (double)(floats / ranks), c);
        else if (n->op == DT__OP_COMBINE && n->i[0]) sim_reduce(v, DT_AXIS_TENSOR, floats, 1, NULL, 1, c);
        else if (n->op == DT__OP_ALL_ROWS) sim_gather(v, DT_AXIS_TENSOR, 4.0 * (double)floats, c);
        else if (n->op == DT__OP_CROSS_ENTROPY && n->i[3] * n->i[1] < n->i[0]) {
            int64_t rows = dt__count(&g->nodes[n->in[1]]);
            sim_reduce(v, DT_AXIS_TENSOR, rows, 1, NULL, 1, c);
            sim_reduce(v, DT_AXIS_TENSOR, (n->f > 0.0f ? 3 : 2) * rows, 1, NULL, 1, c);
        } else if ((n->op == DT__OP_ATTENTION || n->op == DT__OP_ATTENTION_GRAD) && v->group[DT_AXIS_CONTEXT].size > 1)
            sim_exchange(v, DT_AXIS_CONTEXT, (double)dt__sliced_bytes(g, n), c);
    }
}

/* Row slices of a leaf, which ranks of a tensor group share (compare dt__cost_fold). */
static void sim_slices(const sim_view *v, const dt_graph *g, sim_cost *c)
{
    for (int32_t k = 0; k < g->slot_count; k++) {
        const dt__param *p = &g->params[g->slots[k]];
        int64_t leaf = dt__leaf_slices(g, p);
        for (int64_t n = 0;
             leaf < g->tensor_shards && p->rows && n < dt__param_copies(p) * dt__ceil_div(dt__row_slices(g, p), leaf);
             n++)
            sim_reduce(v, DT_AXIS_TENSOR, dt__param_local(p), 1, NULL, 1, c);
    }
}

/* The sum of a bucket: to all ranks; or each piece to its owner (ZeRO), and then between groups of owners. */
static void sim_reduce_bucket(const sim_view *v, const dt_instr *i, sim_cost *c)
{
    const dt_plan *p = v->p;
    const dt__bucket *b = &p->store.bucket[i->bucket];
    int parts = p->part_count[p->mesh.at[DT_AXIS_DATA] % (p->store.shards > 1 ? p->store.shards : INT_MAX)];
    int64_t from, own;
    if (b->copies > 1) sim_exchange(v, DT_AXIS_DATA, (double)i->sent[DT_AXIS_DATA], c);
    else if (p->store.shards == 1) sim_reduce(v, DT_AXIS_DATA, b->floats, parts, NULL, 1, c);
    else {
        (void)dt__bucket_sum(p, i->bucket, &from, &own);
        sim_reduce(v, SIM_SHARDS, b->floats, parts, dt__store_cut(&p->store, i->bucket), 0, c);
        if (v->group[SIM_REPLICAS].size > 1) sim_reduce(v, SIM_REPLICAS, own, 1, NULL, 1, c);
    }
}

static sim_cost sim_instruction(const sim_view *v, const dt_instr *i)
{
    const sim_job *j = v->j;
    const dt_plan *p = v->p;
    const dt__segment_plan *s = i->segment < 0 ? NULL : p->net.segments[i->segment].plan;
    sim_cost c;
    int forward = i->op == DT_FORWARD || i->op == DT_RECOMPUTE;
    memset(&c, 0, sizeof c);
    c.axes = i->axes;
    switch (i->op) {
    case DT_FORWARD:
    case DT_RECOMPUTE:
    case DT_BACKWARD:
        sim_ops(v, s, forward ? 0 : s->forward_count, forward ? s->forward_count : s->backward_count, &c);
        break;
    case DT_WEIGHTS: sim_ops(v, s, s->forward_count + s->backward_count, s->weights_count, &c); break;
    case DT_SEND: { /* a copy to the outbox; the message itself takes comm */
        double bytes = (double)i->sent[DT_AXIS_PIPELINE];
        int far = i->peer / j->per_node != p->rank / j->per_node;
        const sim_link *l = &j->machine->link[far];
        c.work = sim_seconds(j->machine, SIM_FOLD, 1, 0, 2 * bytes), c.sent[far] = bytes;
        c.comm = l->alpha + bytes * l->beta * (far ? v->sharing : 1);
        break;
    }
    case DT_CONTEXT:
        sim_reduce(v, DT_AXIS_CONTEXT, p->store.bucket[i->bucket].floats * p->store.bucket[i->bucket].copies, 1, NULL,
                   1, &c);
        break;
    case DT_FOLD:
    case DT_TOTAL: c.work = sim_seconds(j->machine, SIM_FOLD, 1, 0, (double)i->touched); break;
    case DT_REDUCE: sim_reduce_bucket(v, i, &c); break;
    case DT_GATHER:
        if (p->store.shards > 1) sim_gather(v, SIM_SHARDS, (double)i->sent[DT_AXIS_DATA] / (p->store.shards - 1), &c);
        break;
    case DT_TIE: /* other stages go on after it as well: they meet at the update anyway */
        for (int32_t k = 0; k < p->net.param_count; k++)
            if (p->net.params[k].uses > 1) c.axes = 1 << DT_AXIS_PIPELINE;
        sim_exchange(v, DT_AXIS_PIPELINE, (double)i->sent[DT_AXIS_PIPELINE], &c);
        break;
    case DT_UPDATE:
        c.work = sim_seconds(j->machine, SIM_UPDATE, 1, 0, (double)i->touched);
        if (c.axes) sim_reduce(v, SIM_COPY, p->blocks, 1, NULL, 1, &c);
        break;
    default: break;
    }
    if (dt__is_work(i) && i->sent[DT_AXIS_DATA]) /* experts' tokens */
        sim_exchange(v, DT_AXIS_DATA, (double)i->sent[DT_AXIS_DATA], &c);
    if (i->completes) sim_slices(v, s->g, &c);
    return c;
}

/* ---- ranks that run against each other ---- */

typedef struct sim_program {
    dt_plan *plan;
    const dt_instr *list;
    sim_cost *cost; /* (count) */
    sim_cost agree; /* counts before a step, losses after it */
    int64_t count;
    int sends[2]; /* activations, gradients */
} sim_program;

typedef struct sim_message {
    double ready, takes, taken;
} sim_message;

typedef struct sim_rank {
    const sim_program *program;
    int at[DT_AXES]; /* index among the kept coordinates */
    int rank;
    double weight, slow;  /* ranks that it stands for; its work takes times as long */
    double *when;         /* (count, 2): begin and end of instructions in the last step */
    sim_message *mail[2]; /* sent in a step */
    int sent[2], taken[2];
    int64_t next[DT__STREAMS];
    int met[DT__STREAMS]; /* 1 + the meeting of its group for which it waits */
    double clock[DT__STREAMS];
    double work, exposed, idle; /* seconds of the last step */
    double came, all_came;      /* to the last collective of stream 1: when this rank and the last one had come */
} sim_rank;

/* Ranks that meet in collectives, one after another. */
typedef struct sim_meeting {
    int arrived, count;
    double latest, takes, finish, all_there;
} sim_meeting;

typedef struct simulation {
    const sim_job *j;
    int kept[DT_AXES];        /* coordinates of each axis that are simulated */
    int *coordinate[DT_AXES]; /* (kept) */
    double *weight[DT_AXES];  /* (kept): coordinates that one stands for */
    sim_program *program;
    sim_rank *rank;
    sim_meeting *meeting; /* (16 masks, streams, ranks) */
    int programs, ranks;
    /* the result: seconds; bytes of all ranks in a node and between nodes; of the rank with most memory */
    double step, begin, work, exposed, idle, sent[2], memory, mfu, tokens;
    int memory_rank;
} simulation;

static int sim_index(const simulation *s, const int at[DT_AXES], int mask)
{
    int index = 0;
    for (int axis = 0; axis < DT_AXES; axis++) index = index * s->kept[axis] + (mask >> axis & 1 ? 0 : at[axis]);
    return index;
}

static int64_t sim_shards(const simulation *s, int dp, int d)
{
    int64_t lo, hi;
    dt__run_of(s->j->recipe->data_shards, dp, d, &lo, &hi);
    return hi - lo;
}

/* Chooses the coordinates of an axis: all, or slow ones and one for each number of data shards. */
static dt_result sim_keep(simulation *s, const dt_mesh *m, int axis)
{
    int n = m->size[axis], all = s->j->all || axis == DT_AXIS_PIPELINE, *c;
    double *w;
    s->coordinate[axis] = c = DT__NEW(int, n, "the simulation");
    s->weight[axis] = w = DT__NEW(double, n, "the simulation");
    if (!c || !w) return DT_E_MEMORY;
    for (int i = 0; i < n; i++) {
        int own = all, k = 0;
        for (int q = 0; q < s->j->slows; q++) own |= sim_at(m, s->j->slow[q].rank, axis) == i;
        for (k = 0; k < s->kept[axis] && !own; k++)
            if (w[k] > 0 && (axis != DT_AXIS_DATA || sim_shards(s, n, c[k]) == sim_shards(s, n, i))) break;
        if (!own && k < s->kept[axis]) {
            w[k]++;
            continue;
        }
        c[s->kept[axis]] = i, w[s->kept[axis]++] = own ? -1 : 1; /* -1: for itself alone */
    }
    for (int k = 0; k < s->kept[axis]; k++) w[k] = fabs(w[k]);
    return DT_OK;
}

static sim_cost sim_agree(const sim_view *v)
{
    const dt_recipe *r = v->p->recipe;
    int64_t losses = r->data_shards * dt__max(1, v->p->net.context_shards);
    sim_cost c;
    memset(&c, 0, sizeof c);
    sim_gather(v, SIM_WORLD, 8, &c);
    sim_reduce(v, SIM_WORLD, losses, 1, NULL, 1, &c);
    if (v->p->net.watched) sim_reduce(v, SIM_WORLD, losses * v->p->net.count, 1, NULL, 1, &c);
    return c;
}

/* The program of a rank: opened, or that of a rank with the same stage and as many shards. */
static dt_result sim_program_of(simulation *s, const dt_mesh *m, sim_rank *r)
{
    sim_program *p = &s->program[s->programs];
    sim_view v;
    dt_result e;
    for (const sim_program *o = s->program; o < p && !s->j->all; o++)
        if (o->plan->mesh.at[DT_AXIS_PIPELINE] == sim_at(m, r->rank, DT_AXIS_PIPELINE) &&
            o->plan->hi - o->plan->lo == sim_shards(s, m->size[DT_AXIS_DATA], sim_at(m, r->rank, DT_AXIS_DATA)))
            return r->program = o, DT_OK;
    r->program = p;
    if ((e = dt_plan_open(&p->plan, s->j->recipe, s->j->layout, s->j->ranks, r->rank)) != DT_OK) return e;
    s->programs++;
    p->list = dt_plan_program(p->plan, &p->count);
    if (!(p->cost = DT__NEW(sim_cost, p->count, "the simulation"))) return DT_E_MEMORY;
    v = sim_view_of(s->j, p->plan), p->agree = sim_agree(&v);
    for (int64_t k = 0; k < p->count; k++) { /* the work of a segment costs the same each time */
        const dt_instr *i = &p->list[k];
        int64_t same = k;
        while (dt__is_work(i) && same-- > 0)
            if (p->list[same].op == i->op && p->list[same].segment == i->segment &&
                p->list[same].completes == i->completes)
                break;
        p->cost[k] = dt__is_work(i) && same >= 0 ? p->cost[same] : sim_instruction(&v, i);
        if (i->op == DT_SEND) p->sends[i->back]++;
    }
    return DT_OK;
}

static void sim_close(simulation *s)
{
    for (int i = 0; i < s->ranks && s->rank; i++) {
        dt__free(s->rank[i].when);
        for (int back = 0; back < 2; back++) dt__free(s->rank[i].mail[back]);
    }
    for (int i = 0; i < s->programs; i++) dt_plan_close(&s->program[i].plan), dt__free(s->program[i].cost);
    for (int axis = 0; axis < DT_AXES; axis++) dt__free(s->coordinate[axis]), dt__free(s->weight[axis]);
    dt__free(s->program), dt__free(s->rank), dt__free(s->meeting);
    memset(s, 0, sizeof *s);
}

static dt_result sim_open(simulation *s, const sim_job *j)
{
    dt_mesh m;
    dt_result r = dt_mesh_of(j->layout, j->ranks, 0, &m);
    memset(s, 0, sizeof *s);
    s->j = j;
    for (int axis = 0; axis < DT_AXES && !r; axis++) r = sim_keep(s, &m, axis);
    if (r) return r;
    s->ranks = s->kept[0] * s->kept[1] * s->kept[2] * s->kept[3];
    s->rank = DT__NEW(sim_rank, s->ranks, "the simulation");
    s->program = DT__NEW(sim_program, s->ranks, "the simulation");
    s->meeting = DT__NEW(sim_meeting, (int64_t)16 * DT__STREAMS * s->ranks, "the simulation");
    if (!s->rank || !s->program || !s->meeting) return DT_E_MEMORY;
    for (int i = 0; i < s->ranks && !r; i++) {
        sim_rank *k = &s->rank[i];
        k->weight = k->slow = 1;
        for (int axis = DT_AXES, rest = i; axis-- > 0; rest /= s->kept[axis]) {
            k->at[axis] = rest % s->kept[axis];
            k->rank += s->coordinate[axis][k->at[axis]] * m.stride[axis], k->weight *= s->weight[axis][k->at[axis]];
        }
        for (int q = 0; q < j->slows; q++)
            if (j->slow[q].rank == k->rank) k->slow = j->slow[q].factor;
        if (j->ranks > 1) k->slow *= j->machine->busy;
        r = sim_program_of(s, &m, k);
        if (r) return r;
        k->when = DT__NEW(double, 2 * k->program->count, "the simulation");
        for (int back = 0; back < 2; back++)
            k->mail[back] = DT__NEW(sim_message, k->program->sends[back], "the simulation");
        if (!k->when || !k->mail[0] || !k->mail[1]) return DT_E_MEMORY;
    }
    return r;
}

/* The rank that sends to, or receives from, another one: the neighbour of its stage. */
static sim_rank *sim_peer(const simulation *s, const sim_rank *r, const dt_instr *i)
{
    int at[DT_AXES], pp = s->kept[DT_AXIS_PIPELINE], ahead = (i->op == DT_SEND) == !i->back;
    memcpy(at, r->at, sizeof at);
    at[DT_AXIS_PIPELINE] = (at[DT_AXIS_PIPELINE] + (ahead ? 1 : pp - 1)) % pp;
    return &s->rank[sim_index(s, at, 0)];
}

/* A send waits for a place in the outbox. 0: the time is not known yet. */
static int sim_send(const simulation *s, sim_rank *r, const dt_instr *i, const sim_cost *c, double start, double *end)
{
    const sim_rank *to = sim_peer(s, r, i);
    int n = r->sent[i->back], full = n - DT__OUTBOX;
    sim_message *m = r->mail[i->back];
    double begin = start;
    if (full >= to->taken[i->back]) return 0;
    if (full >= 0) begin = fmax(start, m[full].taken);
    *end = begin + c->work * r->slow;
    m[n].ready = *end, m[n].takes = c->comm;
    r->sent[i->back]++, r->work += *end - begin, r->idle += begin - start;
    return 1;
}

static int sim_receive(const simulation *s, sim_rank *r, const dt_instr *i, double start, double *end)
{
    sim_rank *from = sim_peer(s, r, i);
    int n = r->taken[i->back];
    sim_message *m = &from->mail[i->back][n];
    double wait;
    if (n >= from->sent[i->back]) return 0;
    wait = fmax(0, m->ready - start);
    *end = s->j->machine->serial ? start + wait + m->takes : fmax(start, m->ready + m->takes);
    m->taken = *end, r->taken[i->back]++, r->idle += wait, r->exposed += *end - start - wait;
    return 1;
}

/* Meets the others of the group. They go on together when the last one has come and the exchange is over. */
static int sim_meet(const simulation *s, sim_rank *r, int stream, int axes, const sim_cost *c, double start,
                    double *end)
{
    sim_meeting *m = &s->meeting[(axes * DT__STREAMS + stream) * s->ranks + sim_index(s, r->at, axes)];
    double work = c->work * r->slow;
    int members = 1;
    for (int axis = 0; axis < DT_AXES; axis++) members *= axes >> axis & 1 ? s->kept[axis] : 1;
    if (!r->met[stream]) {
        r->met[stream] = 1 + m->count;
        m->latest = m->arrived++ ? fmax(m->latest, start + work) : start + work;
        m->takes = fmax(m->takes, c->comm);
        if (m->arrived == members)
            m->all_there = m->latest, m->finish = m->latest + m->takes, m->arrived = 0, m->takes = 0, m->count++;
    }
    if (m->count < r->met[stream]) return 0;
    r->met[stream] = 0, *end = m->finish;
    if (stream) r->came = start + work, r->all_came = m->all_there;
    if (!stream) r->work += work, r->idle += m->all_there - start - work, r->exposed += m->finish - m->all_there;
    return 1;
}

/* Runs the next instruction of a stream. 0: there is none, or it waits for another rank or stream. */
static int sim_next(simulation *s, sim_rank *r, int stream)
{
    const sim_program *p = r->program;
    int64_t k = r->next[stream], need;
    const dt_instr *i;
    const sim_cost *c;
    double start = r->clock[stream], end = start;
    int axes = 0;
    while (k < p->count && p->list[k].stream != stream) k++;
    r->next[stream] = k;
    if (k == p->count) return 0;
    i = &p->list[k], c = &p->cost[k], need = i->after[1];
    if (need >= 0 && need < k && r->next[!stream] <= need) return 0;
    if (need >= 0) start = fmax(start, r->when[2 * need + 1]); /* a later one is of the step before */
    for (int axis = 0; axis < DT_AXES; axis++)
        if (s->j->ranks > 1 && (i->op == DT_UPDATE ? c->axes : c->axes >> axis & 1) && p->plan->mesh.size[axis] > 1)
            axes |= 1 << axis;
    if (i->op == DT_SEND   ? !sim_send(s, r, i, c, start, &end)
        : i->op == DT_RECV ? !sim_receive(s, r, i, start, &end)
                           : axes && !sim_meet(s, r, stream, axes, c, start, &end))
        return 0;
    if (i->op != DT_SEND && i->op != DT_RECV && !axes) {
        end = start + c->work * r->slow;
        if (!stream) r->work += end - start;
    }
    if (!stream) { /* for stream 1, which may itself wait for other ranks */
        double waits = start - r->clock[0];
        double late = fmax(0, fmin(start, r->all_came) - fmax(r->clock[0], r->came));
        r->idle += late, r->exposed += waits - late;
    }
    r->when[2 * k] = start, r->when[2 * k + 1] = r->clock[stream] = end;
    r->next[stream] = k + 1;
    return 1;
}

/* One step of all ranks, from the meeting at its begin, where they agree on the batch, to its end. */
static dt_result sim_step(simulation *s)
{
    double begin = s->rank[0].clock[0], last = begin;
    int64_t done, left = 0;
    for (sim_rank *r = s->rank; r < s->rank + s->ranks; r++) {
        r->work = r->exposed = r->idle = 0;
        memset(r->sent, 0, sizeof r->sent), memset(r->taken, 0, sizeof r->taken);
        for (int stream = 0; stream < DT__STREAMS; stream++) r->next[stream] = 0;
    }
    do {
        done = 0;
        for (sim_rank *r = s->rank; r < s->rank + s->ranks; r++)
            while (sim_next(s, r, 0) || sim_next(s, r, 1)) done++;
    } while (done);
    for (const sim_rank *r = s->rank; r < s->rank + s->ranks; r++) {
        for (int stream = 0; stream < DT__STREAMS; stream++) left += r->next[stream] < r->program->count;
        last = fmax(last, r->clock[0]);
    }
    if (left) return dt__misuse("the simulated ranks wait for each other: this is a fault of the simulator");
    for (sim_rank *r = s->rank; r < s->rank + s->ranks; r++) r->idle += last - r->clock[0], r->clock[0] = last;
    s->step = last - begin, s->begin = begin;
    return DT_OK;
}

/* Bytes that a rank sends in a step, to its node or to others. */
static double sim_sent(const sim_program *p, int far)
{
    double sent = p->agree.sent[far];
    for (int64_t k = 0; k < p->count; k++) sent += p->cost[k].sent[far];
    return sent;
}

static void sim_sum_up(simulation *s)
{
    const sim_job *j = s->j;
    const dt_plan *p = s->program[0].plan;
    const sim_rate *rate = &j->machine->rate[SIM_STEP];
    double units = (double)(j->recipe->data_shards * p->micros), rest, flops, ranks = j->ranks;
    for (const sim_rank *r = s->rank; r < s->rank + s->ranks; r++) {
        double bytes = (double)dt__memory_of(r->program->plan->row, r->program->plan->rows_count).total;
        s->work += r->weight * r->work / ranks, s->exposed += r->weight * r->exposed / ranks,
            s->idle += r->weight * r->idle / ranks;
        if (bytes > s->memory) s->memory = bytes, s->memory_rank = r->rank;
        for (int far = 0; far < 2; far++) s->sent[far] += r->weight * sim_sent(r->program, far);
    }
    s->idle = fmax(0, s->idle), s->exposed += s->program[0].agree.comm;
    s->tokens = (double)(j->recipe->batch * j->recipe->sequence);
    rest = (rate->each + rate->byte * s->tokens / p->mesh.size[DT_AXIS_DATA]) * (ranks > 1 ? j->machine->busy : 1);
    s->work += rest;
    s->step = s->work + s->exposed + s->idle;
    flops = units * (p->net.forward_flops + p->net.backward_flops);
    s->mfu = flops / (s->step * ranks * j->machine->peak);
}

/* Simulates a step, after one before it. Close s also after an error. */
static dt_result sim_run(simulation *s, const sim_job *j)
{
    dt_result r = sim_open(s, j);
    for (int step = 0; step < SIM_STEPS && !r; step++) r = sim_step(s);
    if (!r) sim_sum_up(s);
    return r;
}

/* Share of the time that advances the job, with failures every mtbf seconds of the job, and where none is saved by
 * itself: a save every `interval` takes `save`, a restart `restart`. Daly 2006. */
static inline double sim_goodput(double mtbf, double save, double interval, double restart)
{
    return mtbf > 0 ? interval / (mtbf * exp(restart / mtbf) * expm1((interval + save) / mtbf))
                    : interval / (interval + save);
}

#endif
