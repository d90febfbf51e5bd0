/* test_random.c: random graphs. Each is a short list of ops over an input, parameters and targets, built once as an eager
 * graph and once as a recorded segment, which is differentiated and planned. A plain scalar interpreter computes every
 * node of the recorded graph, gradients included; then the bits are compared (R5, R13): of the planned segment, on each
 * instruction set, with 1 and 2 threads, for several units whose gradients go on in the same slots, of the eager graph, and
 * of the compiled segment: by all passes together, by one alone, and by a random choice of them.
 * Where differences along a direction say what the slope is, the gradient must say the same.
 * A graph that fails is made smaller while it fails, and printed.
 *
 *     cc -O2 -I.. test_random.c -lm -lpthread && ./a.out
 *
 * DT_SEED: the seed (printed). DT_GRAPHS: how many graphs; DT_FULL=1: 100,000. DT_ONLY: the one graph of this number.
 *
 * A new op gets a row in `references` of interpreter.h (what a node of it computes) and, unless it
 * is a map op, one in `kinds` (how a graph comes to have it). */
#define DTRAIN_IMPLEMENTATION
#ifndef DT_COMPILER
#define DT_COMPILER
#endif
#include "dtrain.h"
#include "segment.h"
#include "interpreter.h"
#include "maps.h"
#include "tap.h"
#include "../examples/conv.h"

/* ---- a graph's values, as the references have them -------------------------------------------------- */

/* What one unit of work brings. */
typedef struct unit {
    float *x, *w;       /* the input (int32 tokens in a first segment), and the gradient of the output */
    int32_t *targets;
    int no_ties; /* in x */
    float *output, *grad_in, *slots; /* what the reference makes of it; slots: after this unit */
    float **value;                   /* per node of the recorded graph */
    float *room;
} unit;

static float *room_for(int64_t n)
{
    float *p = (float *)dt__alloc(4 * (n + 1), "a test");
    if (!p) tap_bail("%s", dt_last_error());
    for (int64_t i = 0; i < n; i++) p[i] = NAN; /* nothing may be read before it is written */
    return p;
}

/* The contract ends at a NaN (R14). */
static int has_nan(const dt_graph *g, float *const *value)
{
    for (int32_t id = 1; id < g->count; id++)
        for (int64_t v = 0; g->nodes[id].op != DT__OP_AUX && g->nodes[id].dtype == DT_F32 && v < dt__copies(g, &g->nodes[id]); v++)
            for (int64_t k = v * dt__node_step(g, id), end = k + dt__count(&g->nodes[id]); k < end; k++)
                if (value[id][k] != value[id][k]) return 1;
    return 0;
}

/* ---- one graph: recorded, planned and eager ----------------------------------------------------------- */

enum { MOST_STEPS = 20, MOST_UNITS = 2, WORDS = 6, SIZES = 4, MOST_COUNT = 8192, GIVEN = 2 };

/* One op: of which earlier values (0: the input, 1: the targets, 2 on: steps), and words that choose the rest among what
 * the shapes allow, so that a step makes sense with other shapes too. */
typedef struct step {
    int kind, name, in[3]; /* name: of its parameters; it stays when other steps go */
    uint32_t r[WORDS];
} step;

/* What a graph is made from. */
typedef struct recipe {
    uint64_t seed;                /* of parameters, dropout and the units' data */
    dt_shape x;                   /* axis 0 counts samples */
    int64_t size[SIZES], targets; /* sizes that shapes are drawn from; targets of a sample */
    int64_t shards;               /* Vt */
    int first, last, units, steps, ignored; /* ignored: a sample without targets */
    int precision;                /* dt_dtype of operands and activations (R18), or 0 */
    step step[MOST_STEPS];
} recipe;

static dt_tensor build_recipe(dt_graph *g, dt_tensor x, const void *user);

typedef struct rig {
    const recipe *recipe;
    dt__segment_plan *plan, *run; /* of the recorded graph; of the one that runs */
    unit unit[MOST_UNITS];
    float *params;
    int64_t param[2 * MOST_STEPS + 8], slot[3 * 128], slot_floats, input, outputs;
    uint8_t written[128]; /* a slot that some gradient goes to */
} rig;

typedef struct failure {
    char what[200], where[500];
} failure;

enum { PASSED, FAILED, ENDED, REFUSED }; /* ENDED: at a NaN */

static uint64_t next_word(uint64_t *state) /* SplitMix64 (Steele et al. 2014) */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static int64_t below(uint64_t *state, int64_t n) { return (int64_t)(next_word(state) % (uint64_t)n); }

/* Ordinary numbers; or few different ones, so that there are ties and zeros of both signs; or of many sizes. Returns
 * whether ties are unlikely. */
static int draw_numbers(uint64_t *state, float *x, int64_t n)
{
    int style = (int)below(state, 4);
    for (int64_t i = 0; i < n; i++) {
        float v = (float)below(state, 1 << 24) / 4194304.0f - 2.0f;
        if (style == 0) v = (float)(below(state, 5) - 2) * (below(state, 2) ? -0.5f : 0.5f);
        if (style == 1) v = v * ldexpf(1.0f, (int)below(state, 8) - 6);
        x[i] = v;
    }
    return style != 0;
}

/* Draws what unit u brings. */
static void unit_data(rig *r, int u)
{
    const recipe *c = r->recipe;
    unit *d = &r->unit[u];
    uint64_t state = c->seed + 77 * (uint64_t)u;
    int64_t tokens = c->x.n[0] * c->targets;
    d->x = room_for(r->input), d->w = room_for(r->outputs), d->targets = (int32_t *)room_for(tokens);
    if (c->first)
        for (int64_t i = 0; i < r->input; i++) ((int32_t *)d->x)[i] = (int32_t)below(&state, 5);
    else d->no_ties = draw_numbers(&state, d->x, r->input);
    if (r->outputs == 1) d->w[0] = u ? 0.37f : 1.0f;
    else draw_numbers(&state, d->w, r->outputs);
    for (int64_t i = 0; i < tokens; i++) d->targets[i] = (int32_t)below(&state, 4) - 1;
    for (int64_t i = 0; i < tokens && c->ignored; i++) d->targets[i] = i < c->targets ? -1 : d->targets[i];
    for (int64_t b = 0; b < c->x.n[0] && !c->ignored; b++) d->targets[b * c->targets] = (int32_t)below(&state, 3);
}

/* Runs the references over unit u; its gradients go on in those of the unit before. */
static void unit_reference(rig *r, int u)
{
    const dt_graph *g = r->plan->g;
    unit *d = &r->unit[u];
    const float **leaf = (const float **)dt__alloc(8 * g->count, "a test");
    d->value = (float **)dt__alloc(8 * g->count, "a test");
    if (!leaf || !d->value) tap_bail("%s", dt_last_error());
    d->room = room_for(all_floats(g));
    d->slots = room_for(r->slot_floats);
    if (u) memcpy(d->slots, r->unit[u - 1].slots, 4 * (size_t)r->slot_floats);
    for (int32_t id = 1; id < g->count; id++)
        if (g->nodes[id].op == DT__OP_PARAM) leaf[id] = r->params + r->param[g->nodes[id].param];
    leaf[g->input.id] = d->x, leaf[g->targets.id] = (const float *)d->targets, leaf[g->loss_seed.id] = d->w;
    interpret(g, g->count, leaf, d->value, d->room, d->slots, r->slot, u == 0, r->recipe->seed);
    d->output = d->value[r->plan->output.id];
    d->grad_in = r->recipe->first ? NULL : d->value[r->plan->grad_in.id];
    dt__free(leaf);
}

/* Records the segment; NULL: not compiled. */
static dt_result record(const recipe *c, dt__compiler *compiler, dt__segment_plan **plan)
{
    dt_segment segment;
    dt_graph *g = dt__graph_new(0, 0);
    if (!g) tap_bail("%s", dt_last_error());
    g->precision = c->precision;
    segment.name = "s", segment.build = build_recipe, segment.user = c;
    return segment_plan(g, &segment, c->x, dt_shape2(c->x.n[0], c->targets), c->first, c->last, compiler, plan);
}

static int rig_open(rig *r, const recipe *c)
{
    const dt_graph *g;
    int64_t n = 0;
    memset(r, 0, sizeof *r);
    r->recipe = c;
    if (record(c, NULL, &r->plan)) return 0;
    g = r->plan->g;
    for (int32_t i = 0; i < g->param_count; i++) r->param[i] = n, n += dt__param_local(&g->params[i]);
    r->params = room_for(n);
    for (int32_t i = 0; i < g->param_count; i++) dt__init_param(&g->params[i], c->seed, NULL, r->params + r->param[i]);
    for (int32_t i = 0; i < g->slot_count; i++) r->slot[i] = r->slot_floats, r->slot_floats += dt__param_local(&g->params[g->slots[i]]);
    for (int32_t i = 0; i < g->slot_count; i++) r->slot[g->slot_count + i] = -1; /* no row slices */
    for (int32_t id = 1; id < g->count; id++)
        if (g->nodes[id].slot >= 0) r->written[g->nodes[id].slot] = 1;
    r->input = dt_shape_count(c->x), r->outputs = dt__count(dt__at(g, r->plan->output));
    for (int u = 0; u < c->units; u++) unit_data(r, u), unit_reference(r, u);
    return 1;
}
static void rig_close(rig *r)
{
    for (int u = 0; u < MOST_UNITS; u++) {
        unit *d = &r->unit[u];
        dt__free(d->x), dt__free(d->w), dt__free(d->targets), dt__free(d->value), dt__free(d->room), dt__free(d->slots);
    }
    dt__free(r->params);
    dt__segment_close(&r->plan);
}

static const char *node_text(const dt_graph *g, int32_t id, char *text, size_t size);
/* With DT_SHOW=1: the graph that fails, as it was compiled. */
static void show(const dt__segment_plan *p)
{
    char text[400];
    for (int32_t id = 1; id < p->g->count; id++)
        printf("# %s; group %d%s, place %d at %d\n", node_text(p->g, id, text, sizeof text), (int)p->g->nodes[id].group, p->g->nodes[id].tile ? ", tile or view" : "",
               (int)p->home[id].place, (int)p->home[id].offset);
}
/* Says where got and want first differ. */
static int same(const void *got, const void *want, int64_t floats, failure *f, const char *format, ...)
{
    const uint32_t *a = (const uint32_t *)got, *b = (const uint32_t *)want;
    va_list args;
    int64_t at = 0;
    if (!memcmp(got, want, 4 * (size_t)floats)) return 1;
    while (a[at] == b[at]) at++;
    va_start(args, format);
    vsnprintf(f->what, sizeof f->what, format, args);
    va_end(args);
    snprintf(f->where, sizeof f->where, "element %d of %d is %.9g (0x%08x), not %.9g (0x%08x)", (int)at, (int)floats, (double)((const float *)got)[at], a[at],
             (double)((const float *)want)[at], b[at]);
    return 0;
}

/* Node `id` in words. */
static const char *node_text(const dt_graph *g, int32_t id, char *text, size_t size)
{
    const dt__node *n = &g->nodes[id];
    int used = snprintf(text, size, "node %d: %s %s of", (int)id, dt__op_of(n->op)->name, dt__show(&n->shape).at);
    for (int i = 0; i < n->inputs && used < (int)size; i++)
        used += snprintf(text + used, size - (size_t)used, " %d %s %s%s", (int)n->in[i], dt__op_of(g->nodes[n->in[i]].op)->name,
                         dt__show(&g->nodes[n->in[i]].shape).at, i + 1 < n->inputs ? "," : "");
    return text;
}

/* A planned run: where everything is. Each unit has its own SAVED memory, as units of a pipeline have. */
typedef struct planned {
    rig *r;
    dt__bind bind[MOST_UNITS];
    dt__env env;
    float *slots, *temp, *own[MOST_UNITS][3]; /* own: output, grad_in, saved */
    failure *failure;
    int stepwise;
} planned;

static void planned_open(planned *p, rig *r, const dt__kernels *k, dt_pool *pool, failure *f, int stepwise)
{
    int64_t samples = r->recipe->x.n[0];
    memset(p, 0, sizeof *p);
    p->r = r, p->failure = f, p->stepwise = stepwise;
    p->slots = room_for(r->slot_floats), p->temp = room_for(r->run->temp);
    p->env.k = k, p->env.pool = pool, p->env.loss_scale = 1.0f;
    p->env.rng = (dt__rng *)room_for(samples * (int64_t)(sizeof *p->env.rng / 4));
    for (int64_t i = 0; i < samples; i++) p->env.rng[i] = dt__rng_make(r->recipe->seed, DT__RNG_DROPOUT, (uint32_t)i, 0, 0);
    for (int32_t id = 1; id < r->run->g->count; id++)
        if (dt__pool_reserve(pool, dt__node_scratch(k, r->run->g, id))) tap_bail("%s", dt_last_error());
    if (r->run->fused && dt__pool_reserve(pool, r->run->fused->scratch)) tap_bail("%s", dt_last_error());
    for (int u = 0; u < r->recipe->units; u++) {
        dt__bind *b = &p->bind[u];
        b->params = r->params, b->param = r->param, b->slots = p->slots, b->slot = r->slot;
        b->at[DT__AT_INPUT] = r->unit[u].x, b->at[DT__AT_GRAD_OUT] = r->unit[u].w, b->at[DT__AT_TARGETS] = (float *)r->unit[u].targets;
        b->at[DT__AT_OUTPUT] = p->own[u][0] = room_for(r->outputs), b->at[DT__AT_GRAD_IN] = p->own[u][1] = room_for(r->input);
        b->at[DT__AT_SAVED] = p->own[u][2] = room_for(r->run->saved), b->at[DT__AT_TEMP] = p->temp;
    }
}
static void planned_close(planned *p)
{
    for (int u = 0; u < MOST_UNITS; u++)
        for (int i = 0; i < 3; i++) dt__free(p->own[u][i]);
    dt__free(p->slots), dt__free(p->temp), dt__free(p->env.rng);
}
/* Ops [begin, begin + count) of unit u's plan; stepwise: one by one, each result compared. Other units may have run in
 * between, so nothing is left in temporary memory. */
static int planned_part(planned *p, int u, int32_t begin, int32_t count)
{
    const dt__segment_plan *plan = p->r->run;
    unsigned saved = dt__fp_enter();
    int ok = 1;
    for (int64_t i = 0; i < plan->temp; i++) p->temp[i] = NAN;
    if (!p->stepwise) dt__segment_run(plan, begin, count, &p->bind[u], &p->env, u == 0);
    for (int32_t i = begin; ok && p->stepwise && i < begin + count; i++) {
        int32_t id = plan->order[i];
        const dt__node *n = &plan->g->nodes[id];
        char text[400];
        size_t bytes = (size_t)(dt__count(n) * dt__width(n));
        dt__segment_run(plan, i, 1, &p->bind[u], &p->env, u == 0);
        for (int64_t v = 0; v < dt__copies(plan->g, n); v++) {
            const float *got = dt__where(plan, &p->bind[u], id) + v * dt__node_step(plan->g, id), *want = p->r->unit[u].value[id] + v * dt__node_step(plan->g, id);
            failure at;
            if (!memcmp(got, want, bytes)) continue;
            same(got, want, (int64_t)(bytes / 4), &at, "%s", "");
            snprintf(p->failure->where, sizeof p->failure->where, "%.300s, unit %d: %.150s", node_text(plan->g, id, text, sizeof text), u, at.where);
            ok = 0;
        }
    }
    dt__fp_leave(saved);
    return ok;
}
/* Forward of all units, then their gradients, compared after each. */
static int planned_units(planned *p, const char *how)
{
    rig *r = p->r;
    int units = r->recipe->units, ok = 1;
    failure *f = p->failure;
    for (int u = 0; u < units && ok; u++) ok = planned_part(p, u, 0, r->run->forward_count);
    for (int u = 0; u < units && ok; u++) {
        ok = planned_part(p, u, r->run->forward_count, r->run->backward_count);
        ok = ok && same(p->own[u][0], r->unit[u].output, r->outputs, f, "planned (%s) is not the reference: output of unit %d", how, u);
        if (!r->recipe->first) ok = ok && same(p->own[u][1], r->unit[u].grad_in, r->input, f, "planned (%s) is not the reference: gradient of the input, unit %d", how, u);
        for (int32_t i = 0; ok && i < r->run->g->slot_count; i++) {
            const dt__param *param = &r->run->g->params[r->run->g->slots[i]];
            if (r->written[i])
                ok = same(p->slots + r->slot[i], r->unit[u].slots + r->slot[i], dt__param_local(param), f,
                          "planned (%s) is not the reference: gradient of %s, slot %d, after unit %d", how, param->name, (int)i, u);
        }
    }
    return ok;
}

static dt_pool *pools[2]; /* of 1 and 2 workers */
static int64_t grouped, by_rows; /* groups that the compiler made; of these, over rows of logits */

/* Temporary memory with the order as recorded, and with the smaller one: sums over graphs; graphs where it is smaller, and larger. */
static int64_t order_floats[2], order_helps, order_harms;
static void check_order(const recipe *c)
{
    int64_t floats[2];
    for (int i = 0; i < 2; i++) {
        dt_compilation how;
        dt__compiling compiling;
        dt__segment_plan *plan;
        memset(&how, 0, sizeof how), memset(&compiling, 0, sizeof compiling);
        how.passes = i ? "fuse,order" : "fuse";
        if (dt__compiling_open(&compiling, &how) || record(c, &compiling.base, &plan)) tap_bail("%s", dt_last_error());
        order_floats[i] += floats[i] = plan->temp;
        dt__segment_close(&plan);
    }
    order_helps += floats[1] < floats[0], order_harms += floats[1] > floats[0];
}

/* passes: of the compiler; 0: the plan of the recorded graph. */
static int check_planned(rig *r, int isa, int workers, unsigned passes, failure *f)
{
    const dt__kernels *k = dt__on_device(dt__isa_table(isa));
    dt_compilation all;
    dt__compiling compiling;
    planned p;
    char how[80];
    int ok;
    memset(&all, 0, sizeof all), memset(&compiling, 0, sizeof compiling);
    if (dt__compiling_open(&compiling, &all)) tap_bail("%s", dt_last_error());
    compiling.passes = passes, compiling.wide = 0;
    r->run = r->plan;
    if (passes && record(r->recipe, &compiling.base, &r->run)) tap_bail("%s", dt_last_error());
    if (r->run->forward_flops != r->plan->forward_flops || r->run->backward_flops != r->plan->backward_flops) {
        snprintf(f->what, sizeof f->what, "passes 0x%x: %g and %g FLOP count, not %g and %g", passes, r->run->forward_flops, r->run->backward_flops, r->plan->forward_flops, r->plan->backward_flops);
        return 0;
    }
    snprintf(how, sizeof how, "%s, %d thread%s, passes 0x%x", k->name, workers, workers > 1 ? "s" : "", passes);
    planned_open(&p, r, k, pools[workers - 1], f, 0);
    ok = planned_units(&p, how);
    planned_close(&p);
    for (int32_t id = 1; passes && id < r->run->g->count; id++) grouped += r->run->g->nodes[id].group == id;
    for (int32_t i = 0; passes && i < dt__fusion_of(r->run)->group_count; i++) by_rows += dt__fusion_of(r->run)->groups[i].blocked != 0;
    if (passes && !ok && getenv("DT_SHOW")) show(r->run);
    if (passes) dt__segment_close(&r->run);
    if (!ok && !passes) { /* once more, to find the node */
        failure node;
        memset(&node, 0, sizeof node);
        planned_open(&p, r, k, pools[workers - 1], &node, 1);
        if (!planned_units(&p, how)) snprintf(f->where, sizeof f->where, "%s", node.where);
        planned_close(&p);
    }
    return ok;
}

/* ---- the eager graph ---- */

/* The gradients of a parameter's uses in order, added. */
static const float *sum_of_uses(const rig *r, int u, int32_t param, float *sum)
{
    const dt_graph *g = r->plan->g;
    int64_t n = dt__param_local(&g->params[param]);
    int uses = 0;
    for (int32_t i = 0; i < g->slot_count; i++) {
        const float *use = r->unit[u].slots + r->slot[i];
        if (g->slots[i] != param || !r->written[i]) continue;
        for (int64_t k = 0; k < n; k++) sum[k] = uses ? sum[k] + use[k] : use[k];
        uses++;
    }
    return uses ? sum : NULL;
}

/* The first node of an eager graph that is not what its reference makes of its inputs' references. */
static void find_eager(const dt_graph *g, uint64_t seed, failure *f)
{
    const float **leaf = (const float **)dt__alloc(8 * g->count, "a test");
    float **value = (float **)dt__alloc(8 * g->count, "a test"), *room = room_for(all_floats(g));
    if (!leaf || !value) tap_bail("%s", dt_last_error());
    for (int32_t id = 1; id < g->count; id++)
        if (dt__is_leaf(g->nodes[id].op)) leaf[id] = g->nodes[id].data;
    interpret(g, g->count, leaf, value, room, NULL, NULL, 1, seed);
    for (int32_t id = 1; id < g->count; id++) {
        char text[400];
        for (int64_t v = 0, ok = 1; ok && g->nodes[id].op != DT__OP_AUX && v < dt__copies(g, &g->nodes[id]); v++) {
            int64_t at = v * dt__node_step(g, id);
            ok = !memcmp(value[id] + at, g->nodes[id].data + at, (size_t)(dt__count(&g->nodes[id]) * dt__width(&g->nodes[id])));
            if (ok) continue;
            same(g->nodes[id].data + at, value[id] + at, dt__floats(&g->nodes[id]), f, "eager %s", node_text(g, id, text, sizeof text));
            id = g->count - 1; /* the first one */
        }
    }
    dt__free(leaf), dt__free(value), dt__free(room);
}

static int compare_eager(const rig *r, const dt_graph *g, dt_tensor x, dt_tensor y, failure *f)
{
    static float sum[1 << 16];
    int ok = same(dt_value(g, y), r->unit[0].output, r->outputs, f, "eager (%s) is not the reference: output", g->kernels->name);
    if (!r->recipe->first && ok) {
        int32_t grad = dt__at(g, x)->grad;
        ok = grad && same(g->nodes[grad].data, r->unit[0].grad_in, r->input, f, "eager (%s) is not the reference: gradient of the input", g->kernels->name);
    }
    for (int32_t id = 1; ok && id < g->forward_count; id++) {
        const dt__node *n = &g->nodes[id];
        const float *want = n->op == DT__OP_PARAM ? sum_of_uses(r, 0, n->param, sum) : NULL;
        for (int64_t v = 0; want && ok && v < dt__copies(g, n); v++)
            ok = n->grad && same(g->nodes[n->grad].data + v * dt__node_step(g, n->grad), want + v * dt__node_step(g, id), dt__count(n), f,
                                 "eager (%s) is not the reference: gradient of %s", g->kernels->name, g->params[n->param].name);
    }
    return ok;
}

/* Unit 0 by an eager graph. */
static int check_eager(rig *r, int isa, int workers, failure *f)
{
    const recipe *c = r->recipe;
    const unit *d = &r->unit[0];
    dt_graph *g = NULL;
    dt_pool *own;
    dt_tensor x, y;
    int ok;
    if (dt_graph_open(&g, c->seed)) tap_bail("%s", dt_last_error());
    own = g->pool;
    g->pool = pools[workers - 1], g->kernels = dt__on_device(dt__isa_table(isa));
    snprintf(g->prefix, sizeof g->prefix, "s");
    x = c->first ? dt_tensor_of(g, DT_I32, c->x, (const int32_t *)d->x) : dt_tensor_of(g, DT_F32, c->x, d->x);
    g->targets = dt_tensor_of(g, DT_I32, dt_shape2(c->x.n[0], c->targets), d->targets);
    y = dt__computed(g, build_recipe(g, x, c));
    if (!g->result && r->outputs == 1) dt_backward(g, y);
    else if (!g->result) { /* a segment in a model: the gradient of y comes from the next one */
        g->forward_count = g->count;
        dt__differentiate(g, y, dt_tensor_of(g, DT_F32, dt_shape_of(g, y), d->w));
    }
    ok = !g->result;
    if (!ok) snprintf(f->what, sizeof f->what, "the eager graph is refused: %.150s", dt_last_error());
    ok = ok && compare_eager(r, g, x, y, f);
    if (!ok && !g->result) find_eager(g, c->seed, f);
    g->pool = own;
    dt_graph_close(&g);
    return ok;
}

/* ---- is the gradient the slope? ---- */

/* Ops whose gradient is not the derivative by design: it passes a rounding, and nothing passes a detach. */
static int passes_wrong_slope(const dt_graph *g)
{
    for (int32_t id = 1; id < g->forward_count; id++)
        if (g->nodes[id].op == DT__OP_DETACH || g->nodes[id].dtype > DT_I32) return 1;
    return 0;
}

/* A direction: one sign per element of the input and the parameters. */
static float sign_of(const rig *r, int64_t k)
{
    uint64_t state = r->recipe->seed ^ (uint64_t)k * 0x2545f4914f6cdd1du;
    return next_word(&state) & 1 ? 1.0f : -1.0f;
}
/* The sum of output w by the references, h along the direction. */
static double loss_at(const rig *r, float h)
{
    const dt_graph *g = r->plan->g;
    const unit *d = &r->unit[0];
    const float **leaf = (const float **)dt__alloc(8 * g->count, "a test");
    float **value = (float **)dt__alloc(8 * g->count, "a test"), *room = room_for(all_floats(g)), *moved = room_for(all_floats(g)), *next = moved;
    double loss = 0.0;
    int64_t at = r->input;
    if (!leaf || !value) tap_bail("%s", dt_last_error());
    leaf[g->targets.id] = (const float *)d->targets;
    for (int32_t id = 1; id < g->forward_count; id++) {
        const dt__node *n = &g->nodes[id];
        const float *from = id == g->input.id ? d->x : n->op == DT__OP_PARAM ? r->params + r->param[n->param] : NULL;
        int64_t first = id == g->input.id ? 0 : at;
        if (!from) continue;
        for (int64_t k = 0; k < dt__node_floats(g, id); k++) next[k] = from[k] + h * sign_of(r, first + k);
        leaf[id] = next, next += dt__node_floats(g, id), at += first ? dt__node_floats(g, id) : 0;
    }
    interpret(g, g->forward_count, leaf, value, room, NULL, NULL, 1, r->recipe->seed);
    for (int64_t k = 0; k < r->outputs; k++) loss += (double)value[r->plan->output.id][k] * (double)d->w[k];
    dt__free(leaf), dt__free(value), dt__free(room), dt__free(moved);
    return loss;
}
static double slope_of_gradient(const rig *r)
{
    static float sum[1 << 16];
    double slope = 0.0;
    int64_t at = r->input;
    for (int64_t k = 0; k < r->input; k++) slope += (double)r->unit[0].grad_in[k] * (double)sign_of(r, k);
    for (int32_t p = 0; p < r->plan->g->param_count; p++) {
        const dt__param *param = &r->plan->g->params[p];
        const float *grad = sum_of_uses(r, 0, p, sum);
        for (int64_t v = 0; grad && v < dt__param_shards(param); v++)
            for (int64_t k = v * dt__shard_step(param), end = k + dt__shard_floats(param); k < end; k++) slope += (double)grad[k] * (double)sign_of(r, at + k);
        at += dt__param_local(param);
    }
    return slope;
}
/* The slope, when differences at three steps from 2^-e on agree, and both sides at the smallest; else NaN: a bend is near,
 * or rounding is all that they see: of a slope like `got` a sum of outputs shows nothing that is 2^50 times larger. */
static double slope_by_differences(const rig *r, int e, double got)
{
    double slope[3], here = loss_at(r, 0.0f), bend = 0.0, most;
    for (int i = 0; i < 3; i++) {
        float h = ldexpf(1.0f, -e - i);
        double up = loss_at(r, h), down = loss_at(r, -h);
        slope[i] = (up - down) / (2.0 * (double)h);
        bend = fabs(up - here - (here - down)) / (double)h;
    }
    most = fmax(fabs(slope[0]), fmax(fabs(slope[1]), fabs(slope[2])));
    if (fabs(here) * 0x1p-50 > 0.01 * fmax(most, fabs(got)) * ldexp(1.0, -e - 2)) return NAN;
    return fabs(slope[0] - slope[1]) <= 0.01 * most && fabs(slope[1] - slope[2]) <= 0.01 * most && bend <= 0.05 * most ? slope[2] : NAN;
}
static int64_t slopes;
/* It is wrong when it is at every size of step: a bend may hide from one. */
static int check_slope(const rig *r, failure *f)
{
    static const int steps[] = { 5, 8, 10 };
    double want = 0.0, got;
    if (r->recipe->first || r->recipe->precision || !r->unit[0].no_ties || passes_wrong_slope(r->plan->g)) return 1;
    got = slope_of_gradient(r);
    for (int i = 0; i < 3; i++) {
        want = slope_by_differences(r, steps[i], got);
        if (want != want) return 1;
        slopes += i == 0;
        if (fabs(got - want) <= 0.03 * fmax(fabs(got), fabs(want)) + 1e-4) return 1;
    }
    snprintf(f->what, sizeof f->what, "the gradient says a slope of %.6g, differences %.6g", got, want);
    return 0;
}

/* A loss of an eager graph is a mean over samples with targets or not, that of a segment a sum: the latter here too. */
static dt_tensor as_segment(dt_graph *g, dt_tensor loss, int64_t terms, int64_t targets)
{
    if (!g->eager || !loss.id) return loss;
    if (dt__at(g, loss)->op == DT__OP_SCALE || dt__at(g, loss)->op == DT__OP_MUL) loss = dt__tensor(g, dt__at(g, loss)->in[0]);
    return terms == targets ? loss : dt_scale(g, loss, (float)targets / (float)terms);
}

static int uses_op(const dt_graph *g, int op)
{
    for (int32_t id = 1; id < g->count; id++)
        if (g->nodes[id].op == op) return 1;
    return 0;
}
static int64_t seen_ops[DT__OP_COUNT];

static int run_case(const recipe *c, failure *f)
{
    rig r;
    int result = PASSED, isas[DT__ISA_COUNT], count = 0;
    unsigned all = (1u << DT__PASS_COUNT) - 1u;
    memset(f, 0, sizeof *f);
    ref_misfit = NULL;
    if (!rig_open(&r, c)) {
        snprintf(f->what, sizeof f->what, "refused: %.150s", dt_last_error());
        return REFUSED;
    }
    for (int u = 0; u < c->units; u++)
        if (has_nan(r.plan->g, r.unit[u].value)) result = ENDED;
    if (ref_misfit) {
        result = FAILED;
        snprintf(f->what, sizeof f->what, "this shape is not one of its input's");
        node_text(r.plan->g, (int32_t)(ref_misfit - r.plan->g->nodes), f->where, sizeof f->where);
    }
    for (int isa = 0; isa < DT__ISA_COUNT; isa++)
        if (dt__isa_table(isa) && dt__isa_runs(isa)) isas[count++] = isa;
    for (int i = 0; i < count * 2 && result == PASSED; i++) {
        int workers = 1 + i % 2;
        if (!pools[workers - 1]) continue;
        if (!check_planned(&r, isas[i / 2], workers, 0, f) || !check_planned(&r, isas[i / 2], workers, all, f)) result = FAILED;
        else if ((int)(c->seed % (uint64_t)count) == i / 2 && (!check_planned(&r, isas[i / 2], workers, 1u << c->seed / 7 % DT__PASS_COUNT, f) ||
                                                               !check_planned(&r, isas[i / 2], workers, 1u + (unsigned)(c->seed >> 20) % all, f))) result = FAILED;
        /* on one instruction set; an eager LOSS knows no ignored samples */
        else if ((int)(c->seed % (uint64_t)count) == i / 2 && !c->precision && !(c->ignored && uses_op(r.plan->g, DT__OP_LOSS)) && !check_eager(&r, isas[i / 2], workers, f)) result = FAILED;
    }
    if (result == PASSED && !check_slope(&r, f)) result = FAILED;
    if (result == PASSED) check_order(c);
    for (int32_t i = 0; result == PASSED && i < r.plan->forward_count + r.plan->backward_count; i++) seen_ops[r.plan->g->nodes[r.plan->order[i]].op]++;
    for (int32_t id = 1; result == PASSED && id < r.plan->g->count; id++)
        if (dt__root(r.plan->g, id) != id) seen_ops[r.plan->g->nodes[id].op]++;
    rig_close(&r);
    return result;
}

/* ---- how a graph comes to have an op ------------------------------------------------------------------
 * A maker applies a step to its inputs, or gives nothing when they do not fit; what the shapes leave open it takes from
 * the step's words. It says what it calls, so that a graph can be printed. */

typedef struct maker {
    dt_graph *g;
    const recipe *c;
    const step *s;
    dt_tensor in[3];
    char name[3][12], *text; /* text: NULL, or what is called, of 400 bytes */
} maker;

/* Builders of the functions that have codes. */
#define BUILD_UNARY(name, operands, builder)
#define BUILD_BINARY(name, operands, builder)
#define BUILD_OWN(name, operands, builder)
#define BUILD_CODE(name, operands, code) BUILD_##operands(name, code)
#define BUILD_A(name, code) static dt_tensor of_##name(dt_graph *g, dt_tensor x) { return dt_map(g, code, x); }
#define BUILD_AB(name, code) static dt_tensor of_##name(dt_graph *g, dt_tensor a, dt_tensor b) { return dt_map2(g, code, a, b); }
#define BUILD(name, operands, kind, builder, expression, ...) BUILD_##kind(name, operands, builder)
DT__OPS(DT__SKIP, BUILD, DT__SKIP, DT__SKIP, DT__SKIP, DT__SKIP)

typedef struct kind {
    const char *name;
    dt_tensor (*make)(maker *m);
    dt_tensor (*one)(dt_graph *g, dt_tensor x);
    dt_tensor (*two)(dt_graph *g, dt_tensor a, dt_tensor b);
    dt_tensor (*axes)(dt_graph *g, dt_tensor x, unsigned axes);
} kind;
static const kind *kind_of(const maker *m);

__attribute__((format(printf, 2, 3))) static void say(maker *m, const char *format, ...)
{
    va_list args;
    if (!m->text) return;
    va_start(args, format);
    vsnprintf(m->text, 400, format, args);
    va_end(args);
}
static dt_tensor nothing(void) { return dt__none(); }
static int64_t choose(const maker *m, int i, int64_t n) { return (int64_t)(m->s->r[i] % (uint32_t)n); }
static dt_shape shape(const maker *m, int i) { return dt_shape_of(m->g, m->in[i]); }
static int64_t elements(const maker *m, int i) { return dt_shape_count(shape(m, i)); }
static int holds(const maker *m, int i, int dtype) { return m->in[i].id && dt__at(m->g, m->in[i])->dtype == dtype; }
/* Input 0 is fp32 with `low` to `high` axes. */
static int floats_of(const maker *m, int low, int high) { return holds(m, 0, DT_F32) && shape(m, 0).dims >= low && shape(m, 0).dims <= high; }
static const char *shape_c(dt_shape s) /* as C text; two may be in use */
{
    static char text[2][96];
    static int turn;
    int used;
    turn = !turn;
    used = snprintf(text[turn], 96, "dt_shape%d(", s.dims);
    for (int i = 0; i < s.dims; i++) used += snprintf(text[turn] + used, 96 - (size_t)used, i ? ", %d" : "%d", (int)s.n[i]);
    snprintf(text[turn] + used, 96 - (size_t)used, ")");
    return text[turn];
}

/* A parameter of this step: pN, pN_1. */
static dt_tensor parameter(maker *m, dt_shape s, const char *suffix)
{
    char name[24];
    snprintf(name, sizeof name, "p%d%s", m->s->name, suffix);
    return dt_param(m->g, name, s, DT_INIT_NORMAL, 1.0f);
}
static dt_tensor make_param(maker *m)
{
    dt_shape s = dt_shape0();
    s.dims = (int)choose(m, 0, 4);
    for (int i = 0; i < s.dims; i++) s.n[i] = m->c->size[choose(m, 1 + i, SIZES)];
    if (dt_shape_count(s) > 4096) return nothing();
    say(m, "dt_param(g, \"p%d\", %s, DT_INIT_NORMAL, 1.0f)", m->s->name, shape_c(s));
    return parameter(m, s, "");
}
static dt_tensor make_full(maker *m)
{
    static const float values[] = { 0.0f, -0.75f, 3.0f };
    dt_shape s = dt_shape1(m->c->size[choose(m, 0, SIZES)]);
    say(m, "dt_full(g, %s, %gf)", shape_c(s), (double)values[choose(m, 1, 3)]);
    return dt_full(m->g, s, values[choose(m, 1, 3)]);
}

/* ---- elementwise ---- */

/* x x + 0.25 */
static dt_tensor positive(maker *m, dt_tensor x) { return dt_add(m->g, dt_mul(m->g, x, x), dt_full(m->g, dt_shape1(1), 0.25f)); }
/* Does the op want positive numbers? */
static int of_positive(const maker *m)
{
    static dt_tensor (*const list[])(dt_graph *, dt_tensor) = { of_RECIPROCAL, of_SQRT, of_RSQRT, of_LOG };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (kind_of(m)->one == list[i]) return 1;
    return 0;
}
static dt_tensor make_one(maker *m)
{
    if (!holds(m, 0, DT_F32)) return nothing();
    if (!of_positive(m)) {
        say(m, "%s(g, %s)", kind_of(m)->name, m->name[0]);
        return kind_of(m)->one(m->g, m->in[0]);
    }
    say(m, "%s(g, dt_add(g, dt_mul(g, %s, %s), dt_full(g, dt_shape1(1), 0.25f)))", kind_of(m)->name, m->name[0], m->name[0]);
    return kind_of(m)->one(m->g, positive(m, m->in[0]));
}
static dt_tensor make_scale(maker *m)
{
    static const float by[] = { 0.5f, -1.75f, 0.3f, 1.0f };
    float s = by[choose(m, 0, 4)];
    if (!holds(m, 0, DT_F32)) return nothing();
    say(m, "dt_scale(g, %s, %gf)", m->name[0], (double)s);
    return dt_scale(m->g, m->in[0], s);
}
/* Input 1 where it broadcasts with input 0, else a parameter that does: axes of input 0 left out, or of size 1. */
static dt_tensor partner(maker *m, char *text)
{
    dt_shape a = shape(m, 0), b = a, both;
    snprintf(text, 160, "%s", m->name[1]);
    if (holds(m, 1, DT_F32) && choose(m, 0, 3) && dt__broadcast(&a, &dt__at(m->g, m->in[1])->shape, &both) && dt_shape_count(both) <= MOST_COUNT) return m->in[1];
    b.dims = (int)choose(m, 1, a.dims + 1);
    for (int i = 0; i < b.dims; i++) b.n[i] = choose(m, 2, 1 << 20) >> i & 1 ? 1 : a.n[i + a.dims - b.dims];
    snprintf(text, 160, "dt_param(g, \"p%d\", %s, DT_INIT_NORMAL, 1.0f)", m->s->name, shape_c(b));
    return parameter(m, b, "");
}
static dt_tensor make_two(maker *m)
{
    char other[160];
    dt_tensor b;
    if (!holds(m, 0, DT_F32)) return nothing();
    b = partner(m, other);
    if (kind_of(m)->two == of_DIV) {
        say(m, "dt_map2(g, DT_DIV, %s, dt_add(g, dt_mul(g, %s, %s), dt_full(g, dt_shape1(1), 0.25f)))", m->name[0], other, other);
        return of_DIV(m->g, m->in[0], positive(m, b));
    }
    if (choose(m, 3, 4) == 0) {
        say(m, "%s(g, %s, %s)", kind_of(m)->name, other, m->name[0]);
        return kind_of(m)->two(m->g, b, m->in[0]);
    }
    say(m, "%s(g, %s, %s)", kind_of(m)->name, m->name[0], other);
    return kind_of(m)->two(m->g, m->in[0], b);
}

static dt_tensor make_clamp(maker *m)
{
    if (!holds(m, 0, DT_F32)) return nothing();
    say(m, "dt_clamp(g, %s, -0.5f, 1.0f)", m->name[0]);
    return dt_clamp(m->g, m->in[0], -0.5f, 1.0f);
}

/* ---- moving: any type ---- */

static dt_tensor make_reshape(maker *m)
{
    dt_shape s = shape(m, 0);
    int64_t n = elements(m, 0), divisor = 1;
    int axis = (int)choose(m, 1, s.dims + 1);
    if (choose(m, 0, 3) == 0) s = dt_shape1(n);
    else if (choose(m, 0, 3) == 1 && s.dims < 4) { /* an axis of size 1 */
        for (int i = s.dims++; i > axis; i--) s.n[i] = s.n[i - 1];
        s.n[axis] = 1;
    } else {
        for (int64_t d = 2; d <= 8; d++) divisor = n % d == 0 && choose(m, 2, d) == 0 ? d : divisor;
        s = dt_shape2(divisor, n / divisor);
    }
    say(m, "dt_reshape(g, %s, %s)", m->name[0], shape_c(s));
    return dt_reshape(m->g, m->in[0], s);
}
static dt_tensor make_permute(maker *m)
{
    int axes[DT_MAX_DIMS], n = shape(m, 0).dims;
    for (int i = 0; i < n; i++) axes[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int j = (int)choose(m, i % WORDS, i + 1), t = axes[i];
        axes[i] = axes[j], axes[j] = t;
    }
    if (n < 2 || n > 4) return nothing();
    say(m, "dt_permute(g, %s, {%d, %d, %d, %d}) (%d axes)", m->name[0], axes[0], axes[1], n > 2 ? axes[2] : 0, n > 3 ? axes[3] : 0, n);
    return dt_permute(m->g, m->in[0], axes);
}
static int some_axis(const maker *m, int word) { return (int)choose(m, word, shape(m, 0).dims); }
static dt_tensor make_slice(maker *m)
{
    int axis;
    int64_t n, begin, end;
    if (!shape(m, 0).dims) return nothing();
    axis = some_axis(m, 0), n = shape(m, 0).n[axis];
    begin = choose(m, 1, n), end = begin + 1 + choose(m, 2, n - begin);
    say(m, "dt_slice(g, %s, %d, %d, %d)", m->name[0], axis, (int)begin, (int)end);
    return dt_slice(m->g, m->in[0], axis, begin, end);
}
/* Inputs 0 to 2 that fit, again and again. */
static dt_tensor make_concat(maker *m)
{
    dt_tensor list[9];
    char text[160] = "";
    int64_t n = 2 + choose(m, 0, 7), total = 0;
    int axis, used = 0;
    if (!shape(m, 0).dims) return nothing();
    axis = some_axis(m, 1);
    for (int64_t i = 0; i < n; i++) {
        int k = (int)choose(m, 2 + (int)(i % 3), 3);
        if (!dt__joins(dt__at(m->g, m->in[0]), dt__at(m->g, m->in[k]), axis)) k = 0;
        list[i] = m->in[k];
        total += elements(m, k);
        used += snprintf(text + used, sizeof text - (size_t)used, i ? ", %s" : "%s", m->name[k]);
    }
    if (total > MOST_COUNT) return nothing();
    say(m, "dt_concat(g, {%s}, %d, %d)", text, (int)n, axis);
    return dt_concat(m->g, list, n, axis);
}
static dt_tensor make_expand(maker *m)
{
    dt_shape s = shape(m, 0);
    for (int i = 0; i < s.dims; i++)
        if (s.n[i] == 1 && choose(m, 0, 1 << 20) >> i & 1) s.n[i] = m->c->size[choose(m, 1, SIZES)];
    if (s.dims < 4 && choose(m, 2, 2)) {
        for (int i = s.dims++; i > 0; i--) s.n[i] = s.n[i - 1];
        s.n[0] = m->c->size[choose(m, 3, SIZES)];
    }
    if (dt_shape_count(s) > MOST_COUNT) return nothing();
    say(m, "dt_expand(g, %s, %s)", m->name[0], shape_c(s));
    return dt_expand(m->g, m->in[0], s);
}
static dt_tensor make_detach(maker *m)
{
    say(m, "dt_detach(g, %s)", m->name[0]);
    return dt_detach(m->g, m->in[0]);
}
static const char *const dtype_c[] = { "DT_F32", "DT_I32", "DT_BF16", "DT_F16", "DT_F8_E4M3", "DT_F8_E5M2" };
static dt_tensor make_cast(maker *m)
{
    int to = (int)choose(m, 0, 6);
    if (choose(m, 1, 2)) to = DT_F32; /* and back */
    if (holds(m, 0, to)) return nothing();
    say(m, "dt_cast(g, %s, %s)", m->name[0], dtype_c[to]);
    return dt_cast(m->g, m->in[0], (dt_dtype)to);
}

/* ---- reductions and rows ---- */

static dt_tensor make_axes(maker *m)
{
    unsigned mask, all;
    if (!floats_of(m, 1, 4)) return nothing();
    all = (1u << shape(m, 0).dims) - 1u;
    mask = (unsigned)choose(m, 0, 1 << 20) & all;
    if (!mask) mask = all;
    if (choose(m, 1, 2)) mask |= DT_KEEP;
    say(m, "%s(g, %s, 0x%x%s)", kind_of(m)->name, m->name[0], mask & all, mask & DT_KEEP ? " | DT_KEEP" : "");
    return kind_of(m)->axes(m->g, m->in[0], mask);
}
static dt_tensor make_var(maker *m)
{
    unsigned mask;
    if (!floats_of(m, 1, 4)) return nothing();
    mask = 1u << choose(m, 0, shape(m, 0).dims) | DT_KEEP;
    say(m, "map_var(g, %s, 0x%x | DT_KEEP, 0)", m->name[0], mask & ~DT_KEEP);
    return map_var(m->g, m->in[0], mask, 0);
}
static dt_tensor make_combine(maker *m)
{
    int64_t parts = 1;
    if (!floats_of(m, 1, 4)) return nothing();
    while (2 * parts <= shape(m, 0).n[0] && parts < 32) parts *= 2;
    say(m, "dt_combine(g, dt_slice(g, %s, 0, 0, %d))", m->name[0], (int)parts);
    return dt_combine(m->g, dt_slice(m->g, m->in[0], 0, 0, parts));
}
static dt_tensor make_norm(maker *m)
{
    char name[12];
    int layer = (int)choose(m, 0, 2);
    if (!floats_of(m, 1, 4)) return nothing();
    snprintf(name, sizeof name, "n%d", m->s->name);
    say(m, "dt_%snorm_eps(g, %s, \"%s\", 0.125f)", layer ? "layer" : "rms", m->name[0], name);
    return layer ? dt_layernorm(m->g, m->in[0], name, 0.125f) : dt_rmsnorm(m->g, m->in[0], name, 0.125f);
}

/* ---- picking by index ---- */

/* Places in [0, n) out of numbers: a softmax says where. Its words: i axis. */
static dt_tensor places_of(maker *m, dt_tensor x, int64_t n, int i)
{
    int dims = dt__at(m->g, x)->shape.dims;
    return dt_cast(m->g, dt_scale(m->g, dt_softmax(m->g, x, 1u << (dims ? choose(m, i, dims) : 0)), (float)n - 0.01f), DT_I32);
}
#define PLACES "dt_cast(g, dt_scale(g, dt_softmax(g, %s, 1u << %d), %d - 0.01f), DT_I32)"

static dt_tensor make_gather(maker *m)
{
    int axis, a;
    int64_t n, take;
    dt_tensor x = m->in[0];
    if (!floats_of(m, 1, 4)) return nothing();
    axis = some_axis(m, 0), a = some_axis(m, 1), n = shape(m, 0).n[axis], take = 1 + choose(m, 2, n);
    if (choose(m, 3, 3) == 0) x = dt_cast(m->g, x, DT_BF16);
    say(m, "dt_gather(g, %s%s, %d, " PLACES ") sliced to %d", m->name[0], x.id == m->in[0].id ? "" : " as bf16", axis, m->name[0], a, (int)n, (int)take);
    return dt_gather(m->g, x, axis, dt_slice(m->g, places_of(m, m->in[0], n, 1), axis, 0, take));
}
static dt_tensor make_gather_param(maker *m)
{
    dt_shape s;
    int axis;
    if (!floats_of(m, 1, 4)) return nothing();
    s = shape(m, 0), axis = some_axis(m, 0), s.n[axis] = m->c->size[choose(m, 2, SIZES)];
    if (dt_shape_count(s) > MOST_COUNT) return nothing();
    say(m, "dt_gather(g, dt_param(g, \"p%d\", %s, ..), %d, " PLACES ")", m->s->name, shape_c(s), axis, m->name[0], some_axis(m, 1), (int)s.n[axis]);
    return dt_gather(m->g, parameter(m, s, ""), axis, places_of(m, m->in[0], s.n[axis], 1));
}
static dt_tensor make_top_k(maker *m)
{
    dt_tensor places, y;
    int64_t k;
    if (!floats_of(m, 1, 4) || dt_dim(m->g, m->in[0], -1) > 130) return nothing();
    k = 1 + choose(m, 0, dt_dim(m->g, m->in[0], -1));
    y = dt_top_k(m->g, m->in[0], k, &places);
    say(m, "dt_top_k(g, %s, %d, ..)%s", m->name[0], (int)k, choose(m, 1, 4) ? "" : ": the places");
    return choose(m, 1, 4) ? y : places;
}
static dt_tensor make_embed(maker *m)
{
    dt_shape table = dt_shape2(m->c->size[choose(m, 0, SIZES)], m->c->size[choose(m, 1, SIZES)]);
    int tokens = m->c->first && m->s->in[0] == 0;
    if (!tokens && !floats_of(m, 1, 3)) return nothing();
    if (tokens && table.n[0] < 5) table.n[0] = 5;
    if (elements(m, 0) * table.n[1] > MOST_COUNT || (tokens && shape(m, 0).dims > 3)) return nothing();
    if (tokens) say(m, "dt_embed(g, dt_param(g, \"p%d\", %s, ..), %s)", m->s->name, shape_c(table), m->name[0]);
    else say(m, "dt_embed(g, dt_param(g, \"p%d\", %s, ..), " PLACES ")", m->s->name, shape_c(table), m->name[0], some_axis(m, 2), (int)table.n[0]);
    return dt_embed(m->g, parameter(m, table, ""), tokens ? m->in[0] : places_of(m, m->in[0], table.n[0], 2));
}

/* ---- products ---- */

/* By input 1 where it fits, by itself, or by a parameter. */
static dt_tensor make_matmul(maker *m)
{
    int ta = (int)choose(m, 0, 2), tb = (int)choose(m, 1, 2);
    dt_shape a, b, out;
    if (!floats_of(m, 2, 4)) return nothing();
    a = shape(m, 0);
    for (int i = 0; i < 4 && choose(m, 2, 3) < 2; i++) {
        int k = choose(m, 2, 3) ? 1 : 0, t = tb ^ (i & 1), u = ta ^ (i >> 1);
        if (!holds(m, k, DT_F32)) continue;
        b = shape(m, k);
        if (!dt__matmul_shape(&a, &b, u, t, &out) || out.dims > 4 || dt_shape_count(out) > MOST_COUNT) continue;
        say(m, "dt_matmul(g, %s, %s, %d, %d)", m->name[0], m->name[k], u, t);
        return dt_matmul(m->g, m->in[0], m->in[k], u, t);
    }
    b = dt_shape2(a.n[a.dims - 1 - ta], m->c->size[choose(m, 3, SIZES)]);
    if (a.dims > 2 && choose(m, 4, 3) == 0) b = dt_shape3(choose(m, 5, 2) ? 1 : a.n[a.dims - 3], b.n[0], b.n[1]);
    if (tb) out = b, b.n[b.dims - 2] = out.n[b.dims - 1], b.n[b.dims - 1] = out.n[b.dims - 2];
    if (!dt__matmul_shape(&a, &b, ta, tb, &out) || dt_shape_count(out) > MOST_COUNT || dt_shape_count(b) > MOST_COUNT) return nothing();
    say(m, "dt_matmul(g, %s, dt_param(g, \"p%d\", %s, ..), %d, %d)", m->name[0], m->s->name, shape_c(b), ta, tb);
    return dt_matmul(m->g, m->in[0], parameter(m, b, ""), ta, tb);
}
/* One alone; or two, between which columns are cut over tensor shards. */
static dt_tensor make_linear(maker *m)
{
    char name[12], wide[12];
    int64_t width = m->c->size[choose(m, 0, SIZES)], form = choose(m, 1, 4), rows, between = m->c->shards * (1 + choose(m, 2, 5));
    dt_tensor h;
    if (!floats_of(m, 2, 3)) return nothing();
    rows = dt__rows(dt__at(m->g, m->in[0]));
    if (rows * width > MOST_COUNT) return nothing();
    snprintf(name, sizeof name, "l%d", m->s->name), snprintf(wide, sizeof wide, "m%d", m->s->name);
    if (form % 3 == 0 || rows * between > MOST_COUNT) {
        say(m, "dt_linear_with(g, %s, \"%s\", %d, 0.5f, %u)", m->name[0], name, (int)width, form == 3 ? DT_NO_BIAS : 0u);
        return dt_linear_with(m->g, m->in[0], name, width, 0.5f, form == 3 ? DT_NO_BIAS : 0u);
    }
    say(m, "dt_linear_with(g, %sdt_linear_with(g, %s, \"%s\", %d, 0.5f, DT_COLUMNS)%s, \"%s\", %d, 0.5f, DT_ROWS | DT_NO_BIAS)", form == 1 ? "dt_gelu(g, " : "", m->name[0], wide,
        (int)between, form == 1 ? ")" : "", name, (int)width);
    m->g->tensor_shards = m->c->shards; /* here alone, so that no other gradient is a sum of row slices (R7) */
    h = dt_linear_with(m->g, m->in[0], wide, between, 0.5f, DT_COLUMNS);
    h = dt_linear_with(m->g, form == 1 ? dt_gelu(m->g, h) : h, name, width, 0.5f, DT_ROWS | DT_NO_BIAS);
    m->g->tensor_shards = 1;
    return h;
}

/* ---- attention, dropout, rotation ---- */

static int axis_0_counts_samples(const maker *m) { return shape(m, 0).dims > 0 && shape(m, 0).n[0] == m->c->x.n[0]; }
static dt_tensor make_dropout(maker *m)
{
    if (!holds(m, 0, DT_F32) || !axis_0_counts_samples(m)) return nothing();
    say(m, "dt_dropout(g, %s, 0.3f)", m->name[0]);
    return dt_dropout(m->g, m->in[0], 0.3f);
}
static dt_tensor make_attention(maker *m)
{
    int64_t heads = 1 + choose(m, 0, 3), d = 1 + choose(m, 1, 9), causal = choose(m, 2, 2);
    float p = floats_of(m, 3, 3) && choose(m, 3, 2) && axis_0_counts_samples(m) ? 0.25f : 0.0f;
    dt_shape w;
    if (!floats_of(m, 3, 3) || shape(m, 0).n[1] > 130) return nothing();
    w = dt_shape2(shape(m, 0).n[2], 3 * heads * d);
    if (dt_shape_count(w) > MOST_COUNT || shape(m, 0).n[0] * shape(m, 0).n[1] * w.n[1] > MOST_COUNT) return nothing();
    say(m, "attention(g, dt_matmul(g, %s, dt_param(g, \"p%d\", %s, ..), 0, 0), %d, %d, %gf)", m->name[0], m->s->name, shape_c(w), (int)heads, (int)causal, (double)p);
    return attention(m->g, dt_matmul(m->g, m->in[0], parameter(m, w, ""), 0, 0), heads, (int)causal, p);
}
/* Queries and keys of input 0, keys of fewer positions; a mask may be the sign of a product with a parameter. */
static dt_tensor make_attend(maker *m)
{
    dt_attention_options o;
    dt_tensor q, k, v, mask = nothing();
    int64_t t, s, d = 1 + choose(m, 1, 5), width;
    if (!floats_of(m, 3, 3) || shape(m, 0).n[1] > 70) return nothing();
    memset(&o, 0, sizeof o);
    o.kv_heads = 1 + choose(m, 0, 2), o.heads = o.kv_heads * (1 + choose(m, 2, 2)), o.causal = (int)choose(m, 3, 2);
    o.dropout = choose(m, 4, 3) == 0 && axis_0_counts_samples(m) ? 0.25f : 0.0f;
    t = shape(m, 0).n[1], s = 1 + choose(m, 5, t), width = shape(m, 0).n[2];
    if (o.heads * d * width > MOST_COUNT || shape(m, 0).n[0] * t * o.heads * d > MOST_COUNT) return nothing();
    q = dt_matmul(m->g, m->in[0], parameter(m, dt_shape2(width, o.heads * d), "q"), 0, 0);
    k = dt_matmul(m->g, dt_slice(m->g, m->in[0], 1, 0, s), parameter(m, dt_shape2(width, o.kv_heads * d), "k"), 0, 0);
    v = dt_slice(m->g, dt_matmul(m->g, m->in[0], parameter(m, dt_shape2(width, o.kv_heads * d), "v"), 0, 0), 1, t - s, t);
    if (m->s->r[0] >> 8 & 1) {
        mask = dt_cast(m->g, parameter(m, dt_shape2(t, s), "m"), DT_I32);
        if (m->s->r[0] >> 9 & 1) mask = dt_cast(m->g, mask, DT_F32);
        if (m->s->r[0] >> 10 & 1) mask = dt_expand(m->g, dt_reshape(m->g, mask, dt_shape3(1, t, s)), dt_shape3(shape(m, 0).n[0], t, s));
    }
    say(m, "dt_attend(g, %s by p%dq (%d,%d), its first %d keys by p%dk, last by p%dv, %s, {%d heads, %d of keys, causal %d, dropout %g})", m->name[0], m->s->name, (int)width,
        (int)(o.heads * d), (int)s, m->s->name, m->s->name, mask.id ? "a mask of p..m" : "no mask", (int)o.heads, (int)o.kv_heads, o.causal, (double)o.dropout);
    return dt_attend(m->g, q, k, v, mask, &o);
}
static dt_tensor make_rope(maker *m)
{
    int64_t width, heads;
    if (!floats_of(m, 3, 3) || shape(m, 0).n[2] % 2) return nothing();
    width = shape(m, 0).n[2], heads = width % 4 == 0 && choose(m, 0, 2) ? 2 : 1;
    say(m, "dt_rope(g, %s, %d, 100.0, %d, NULL)", m->name[0], (int)heads, (int)choose(m, 1, 5));
    return dt_rope(m->g, m->in[0], heads, 100.0, choose(m, 1, 5), NULL);
}

/* ---- convolution and pooling ---- */

static int64_t windows(int64_t n, int64_t size, int64_t stride, int64_t padding, int64_t dilation)
{
    int64_t left = n + 2 * padding - dilation * (size - 1) - 1;
    return left < 0 ? 0 : left / stride + 1;
}
static dt_tensor make_conv(maker *m)
{
    conv_window w;
    dt_shape s = shape(m, 0), weight;
    dt_tensor bias;
    int64_t outputs, out = 1;
    if (!floats_of(m, 3, 4) || s.n[1] > 12) return nothing();
    memset(&w, 0, sizeof w);
    w.groups = s.n[1] % 2 == 0 && choose(m, 0, 2) ? 2 : 1;
    outputs = w.groups * (1 + choose(m, 1, 3));
    weight = s, weight.n[0] = outputs, weight.n[1] = s.n[1] / w.groups;
    for (int k = 0; k < s.dims - 2; k++) {
        weight.n[2 + k] = 1 + choose(m, 2, 3 + k);
        w.stride[k] = 1 + choose(m, 3, 2 + k), w.padding[k] = choose(m, 4, 3), w.dilation[k] = 1 + choose(m, 5, 2 + k);
        if (!windows(s.n[2 + k], weight.n[2 + k], w.stride[k], w.padding[k], w.dilation[k])) return nothing();
        out *= windows(s.n[2 + k], weight.n[2 + k], w.stride[k], w.padding[k], w.dilation[k]);
    }
    if (s.n[0] * outputs * out > 2048 || elements(m, 0) > 4096 || elements(m, 0) * outputs * out * dt__span(&weight, 2, weight.dims) > 2000000) return nothing();
    bias = choose(m, 1, 2) ? parameter(m, dt_shape1(outputs), "b") : nothing();
    say(m, "conv_of(g, %s, dt_param(g, \"p%d\", %s, ..), %s, {stride %d %d, padding %d %d, dilation %d %d, groups %d})", m->name[0], m->s->name, shape_c(weight),
        bias.id ? "a bias" : "none", (int)w.stride[0], (int)w.stride[1], (int)w.padding[0], (int)w.padding[1], (int)w.dilation[0], (int)w.dilation[1], (int)w.groups);
    return conv_of(m->g, m->in[0], parameter(m, weight, ""), bias, &w);
}
static dt_tensor make_pool(maker *m)
{
    conv_window w;
    dt_shape s = shape(m, 0);
    int max = (int)choose(m, 0, 2);
    if (!floats_of(m, 3, 4)) return nothing();
    memset(&w, 0, sizeof w);
    for (int k = 0; k < s.dims - 2; k++) {
        w.size[k] = 1 + choose(m, 1, 3 + k), w.stride[k] = 1 + choose(m, 2, 3), w.padding[k] = choose(m, 3, w.size[k] / 2 + 1);
        if (!windows(s.n[2 + k], w.size[k], w.stride[k], w.padding[k], 1)) return nothing();
    }
    say(m, "pool(g, %s, %s, {size %d %d, stride %d %d, padding %d %d})", m->name[0], max ? "0" : "1", (int)w.size[0], (int)w.size[1], (int)w.stride[0], (int)w.stride[1],
        (int)w.padding[0], (int)w.padding[1]);
    return pool(m->g, m->in[0], !max, &w);
}

/* ---- losses ---- */

static dt_tensor make_cross_entropy(maker *m)
{
    static const float smoothing[] = { 0.0f, 0.1f };
    float e = smoothing[choose(m, 0, 2)];
    int64_t rows, cols, all = m->c->x.n[0] * m->c->targets, width = m->c->size[choose(m, 1, SIZES)];
    dt_tensor targets = m->g->targets, y = m->in[0];
    char weight[40] = "";
    int given;
    if (!floats_of(m, 1, 4)) return nothing();
    rows = dt__rows(dt__at(m->g, y)), cols = dt_dim(m->g, y, -1);
    if (shape(m, 0).dims > 1 && choose(m, 2, 2) && rows * width <= MOST_COUNT && cols * width <= MOST_COUNT) { /* a head */
        snprintf(weight, sizeof weight, " times p%d (%d,%d)^T", m->s->name, (int)width, (int)cols);
        y = dt_matmul(m->g, y, parameter(m, dt_shape2(width, cols), ""), 0, 1), cols = width;
    }
    given = rows == all && cols >= 3;
    if (!given) targets = dt_reshape(m->g, places_of(m, dt_slice(m->g, m->in[0], -1, 0, 1), cols, 1), dt_shape1(rows));
    say(m, "dt_cross_entropy(g, %s%s, %s, %gf)", m->name[0], weight, given ? "targets" : "places of its first column", (double)e);
    return as_segment(m->g, dt_cross_entropy(m->g, y, targets, e), rows, all);
}
static dt_tensor make_loss(maker *m)
{
    int64_t all = m->c->x.n[0] * m->c->targets, which = choose(m, 0, 3);
    dt_tensor other = m->in[1], y;
    if (!holds(m, 0, DT_F32) || !axis_0_counts_samples(m)) return nothing();
    if (which && (!holds(m, 1, DT_F32) || !dt__same_shape(&dt__at(m->g, m->in[0])->shape, &dt__at(m->g, other)->shape))) other = dt_detach(m->g, dt_scale(m->g, m->in[0], 0.5f));
    say(m, "%s(g, %s%s%s)", which == 0 ? "dt_loss" : which == 1 ? "dt_error_loss DT_MSE" : "dt_error_loss DT_BCE", m->name[0], which ? ", " : "",
        !which ? "" : other.id == m->in[1].id ? m->name[1] : "half of it, detached");
    y = which == 0 ? dt_loss(m->g, m->in[0]) : which == 1 ? dt_error_loss(m->g, DT_MSE, m->in[0], other) : dt_error_loss(m->g, DT_BCE, m->in[0], other);
    return as_segment(m->g, y, elements(m, 0), all);
}
/* All of input 0, and the means of the others, so that more of the graph matters. */
static dt_tensor make_end(maker *m)
{
    dt_tensor y;
    int max = choose(m, 0, 3) == 0, third = holds(m, 2, DT_F32) && choose(m, 1, 2);
    if (!holds(m, 0, DT_F32) || !holds(m, 1, DT_F32)) return nothing();
    y = (max ? dt_max : dt_sum)(m->g, m->in[0], DT_ALL);
    y = dt_add(m->g, y, dt_mean(m->g, m->in[1], DT_ALL));
    if (third) y = dt_add(m->g, y, dt_mean(m->g, m->in[2], DT_ALL));
    say(m, "dt_%s(g, %s, DT_ALL) + dt_mean(g, %s, DT_ALL)%s%s%s", max ? "max" : "sum", m->name[0], m->name[1], third ? " + dt_mean(g, " : "", third ? m->name[2] : "", third ? ", DT_ALL)" : "");
    return y;
}

/* A kind that stands twice comes twice as often. */
#define ONE(f) { #f, make_one, f, NULL, NULL }
#define TWO(f) { #f, make_two, NULL, f, NULL }
#define AXES(f) { #f, make_axes, NULL, NULL, f }
#define OWN(f) { #f, make_##f, NULL, NULL, NULL }
#define OF_UNARY(name, operands, builder) ONE(builder),
#define OF_BINARY(name, operands, builder) TWO(builder),
#define OF_OWN(name, operands, builder)
#define OF_CODE(name, operands, code) CODE_##operands(of_##name),
#define CODE_A(f) ONE(f)
#define CODE_AB(f) TWO(f)
#define OF_TABLE(name, operands, kind, builder, expression, ...) OF_##kind(name, operands, builder)
static const kind kinds[] = {
    OWN(end), OWN(param), OWN(param), OWN(full), OWN(scale), OWN(clamp),
    DT__OPS(DT__SKIP, OF_TABLE, DT__SKIP, DT__SKIP, DT__SKIP, DT__SKIP) TWO(dt_add), TWO(dt_mul),
    OWN(reshape), OWN(permute), OWN(slice), OWN(concat), OWN(expand), OWN(detach), OWN(cast),
    OWN(cast), OWN(combine), AXES(dt_sum), AXES(dt_sum), AXES(dt_mean), AXES(dt_max), AXES(map_min), AXES(dt__logsumexp), OWN(var), AXES(dt_softmax),
    OWN(norm), OWN(norm), OWN(gather), OWN(gather_param), OWN(top_k), OWN(embed), OWN(matmul), OWN(matmul), OWN(linear),
    OWN(dropout), OWN(attention), OWN(attend), OWN(rope), OWN(conv), OWN(conv), OWN(pool), OWN(pool), OWN(cross_entropy), OWN(loss), OWN(loss), OWN(attend), OWN(rope),
};
enum { KINDS = (int)(sizeof kinds / sizeof *kinds), END = 0 };
static const kind *kind_of(const maker *m) { return &kinds[m->s->kind]; }

/* ---- a recipe's graph ---- */

static dt_tensor apply(dt_graph *g, const recipe *c, int i, const dt_tensor *value, char *text)
{
    maker m;
    memset(&m, 0, sizeof m);
    m.g = g, m.c = c, m.s = &c->step[i], m.text = text;
    for (int k = 0; k < 3; k++) {
        m.in[k] = value[m.s->in[k]];
        if (m.s->in[k] < GIVEN) snprintf(m.name[k], sizeof m.name[k], "%s", m.s->in[k] ? "targets" : "x");
        else snprintf(m.name[k], sizeof m.name[k], "v%d", m.s->in[k]);
    }
    return kinds[m.s->kind].make(&m);
}
static dt_tensor build_recipe(dt_graph *g, dt_tensor x, const void *user)
{
    const recipe *c = (const recipe *)user;
    dt_tensor value[GIVEN + MOST_STEPS];
    value[0] = x, value[1] = g->targets;
    g->own_shards = c->shards;
    for (int i = 0; i < c->steps; i++) {
        value[GIVEN + i] = apply(g, c, i, value, NULL);
        if (!value[GIVEN + i].id) return dt__poison(g, DT_E_USAGE, "step %d does not fit", i);
    }
    g->tensor_shards = c->shards; /* of the gradient */
    return value[GIVEN + c->steps - 1];
}
static void print_recipe(const recipe *c)
{
    dt_tensor value[GIVEN + MOST_STEPS];
    dt_graph *g = dt__graph_new(0, 0);
    char text[400];
    if (!g) tap_bail("%s", dt_last_error());
    g->input = value[0] = dt__leaf(g, DT__OP_INPUT, c->x, c->first ? DT_I32 : DT_F32);
    g->targets = value[1] = dt__leaf(g, DT__OP_INPUT, dt_shape2(c->x.n[0], c->targets), DT_I32);
    g->own_shards = c->shards, g->precision = c->precision;
    tap_note("    /* x: %s %s; targets: %d for each sample%s; parameters, data: seed %llu; Vt = %d; units: %d; operands %s */", c->first ? "int32" : "fp32", shape_c(c->x), (int)c->targets,
             c->ignored ? ", none for the first" : "", (unsigned long long)c->seed, (int)c->shards, c->units, dt__format_of[c->precision].name);
    for (int i = 0; i < c->steps; i++) {
        value[GIVEN + i] = apply(g, c, i, value, text);
        if (i + 1 < c->steps) tap_note("    v%d = %s;", GIVEN + i, text);
        else tap_note("    return %s;%s", text, c->last ? " /* the last segment */" : "");
    }
    dt_graph_close(&g);
}

/* ---- drawing recipes ---- */

static int64_t draw_size(uint64_t *state)
{
    static const int64_t small[] = { 1, 1, 2, 2, 3, 4, 4, 5, 6, 7 }, large[] = { 8, 11, 16, 17, 31, 32, 33, 63, 65, 97, 130, 257 };
    if (below(state, 200) == 0) return 1025 + below(state, 3000);
    return below(state, 4) ? small[below(state, 10)] : large[below(state, 12)];
}
static int draw_kind(uint64_t *state) /* the many elementwise ones are drawn less often */
{
    int which = 1 + (int)below(state, KINDS - 1);
    int elementwise = kinds[which].one || kinds[which].two;
    return elementwise && below(state, 2) ? 1 + (int)below(state, KINDS - 1) : which;
}
static void draw_step(uint64_t *state, step *s, int values, int which)
{
    s->kind = which, s->name = values;
    for (int k = 0; k < 3; k++) s->in[k] = (int)(below(state, 3) ? values - 1 - below(state, values > 4 ? 4 : values) : below(state, values)); /* mostly a late one */
    for (int k = 0; k < WORDS; k++) s->r[k] = (uint32_t)next_word(state) >> 2;
    if (which == END && below(state, 2)) s->in[1] = 0; /* so that more of them depend on the input */
}
/* Is a new value small enough and of a usual size? */
static int usual(const dt_graph *g, int32_t from, dt_tensor t)
{
    if (!t.id) return 0;
    for (int32_t id = from; id < g->count; id++)
        if (g->nodes[id].op != DT__OP_AUX && dt__count(&g->nodes[id]) > MOST_COUNT) return 0;
    for (int64_t k = 0; dt__at(g, t)->dtype == DT_F32 && k < dt__count(dt__at(g, t)); k++)
        if (!(fabsf(dt__at(g, t)->data[k]) <= 1000.0f)) return 0;
    return 1;
}
/* The steps one by one in an eager graph, which shows whether one fits and what it makes. */
static void draw_steps(recipe *c, uint64_t *state, int wanted)
{
    dt_tensor value[GIVEN + MOST_STEPS];
    dt_graph *g = NULL;
    int64_t input = dt_shape_count(c->x), tokens = c->x.n[0] * c->targets;
    float *x = room_for(input);
    int32_t *ids = (int32_t *)room_for(input + tokens);
    if (dt_graph_open(&g, c->seed)) tap_bail("%s", dt_last_error());
    snprintf(g->prefix, sizeof g->prefix, "s");
    g->own_shards = c->shards;
    draw_numbers(state, x, input);
    for (int64_t i = 0; i < input + tokens; i++) ids[i] = (int32_t)below(state, 3);
    g->input = value[0] = c->first ? dt_tensor_of(g, DT_I32, c->x, ids) : dt_tensor_of(g, DT_F32, c->x, x);
    g->targets = value[1] = dt_tensor_of(g, DT_I32, dt_shape2(c->x.n[0], c->targets), ids + input);
    for (int tries = 0; c->steps < wanted && tries < 40 * wanted; tries++) {
        int32_t before = g->count, params = g->param_count;
        int ending = c->steps == wanted - 1 && c->last;
        draw_step(state, &c->step[c->steps], GIVEN + c->steps, ending ? END : draw_kind(state));
        value[GIVEN + c->steps] = apply(g, c, c->steps, value, NULL);
        if (g->result) tap_bail("a maker's call is refused: %s: %s", kinds[c->step[c->steps].kind].name, dt_last_error());
        if (usual(g, before, value[GIVEN + c->steps])) c->steps++;
        else while (params < g->param_count) g->params[params++].name[0] = 0; /* the next try takes its names */
    }
    if (c->steps < wanted) c->last = 0;
    while (c->steps && !c->last && dt__at(g, value[GIVEN + c->steps - 1])->dtype != DT_F32) c->steps--; /* what a segment returns */
    dt_graph_close(&g);
    dt__free(x), dt__free(ids);
}
static recipe draw_recipe(uint64_t seed)
{
    uint64_t state = seed;
    recipe c;
    memset(&c, 0, sizeof c);
    c.seed = next_word(&state);
    c.first = below(&state, 6) == 0, c.last = below(&state, 4) != 0, c.units = 1 + (int)below(&state, 2), c.ignored = below(&state, 6) == 0;
    c.precision = below(&state, 3) ? 0 : below(&state, 3) ? DT_BF16 : DT_F16;
    c.shards = below(&state, 3) ? 1 : 2 + 2 * below(&state, 2);
    for (int i = 0; i < SIZES; i++) c.size[i] = draw_size(&state);
    c.targets = c.size[1] > 64 ? 2 : c.size[1];
    c.x = c.first ? dt_shape2(1 + below(&state, 4), c.targets) : dt__shape(1 + (int)below(&state, 4), 1 + below(&state, 4), c.size[1], c.size[2], c.size[3]);
    if (!c.first && below(&state, 3) == 0) { /* long rows: beyond lanes, vectors and grains */
        c.size[0] = 33 + below(&state, 400);
        c.x = below(&state, 2) ? dt_shape2(1 + below(&state, 5), c.size[0]) : dt_shape3(1 + below(&state, 3), 1 + below(&state, 4), c.size[0]);
    }
    if (dt_shape_count(c.x) > MOST_COUNT) c.x.dims = 2;
    draw_steps(&c, &state, 3 + (int)below(&state, MOST_STEPS - 3));
    return c;
}

/* ---- making a failure smaller ----------------------------------------------------------------------------- */

enum { MOST_RUNS = 4000 };
typedef struct shrinker {
    recipe best;
    failure failure;
    int runs, better; /* better: in this round */
} shrinker;

/* Takes `c` when it fails too. */
static int try_smaller(shrinker *s, const recipe *c)
{
    failure f;
    if (c->steps < 1 || !memcmp(c, &s->best, sizeof *c) || s->runs >= MOST_RUNS) return 0;
    s->runs++;
    if (run_case(c, &f) != FAILED) return 0;
    s->best = *c, s->failure = f, s->better = 1;
    return 1;
}
/* Step i is gone; who used its value uses value `instead`. */
static void drop_step(recipe *c, int i, int instead)
{
    for (int k = i; k + 1 < c->steps; k++) c->step[k] = c->step[k + 1];
    c->steps--;
    for (int k = i; k < c->steps; k++)
        for (int j = 0; j < 3; j++) {
            int *in = &c->step[k].in[j];
            if (*in == GIVEN + i) *in = instead;
            else if (*in > GIVEN + i) --*in;
        }
}
static void shrink_steps(shrinker *s)
{
    recipe c;
    for (int keep = 1; keep < s->best.steps; keep++) { /* the graph ends earlier */
        c = s->best, c.steps = keep, c.last = 0;
        if (try_smaller(s, &c)) break;
    }
    for (int i = s->best.steps - 2; i >= 0; i--)
        for (int k = 0; k < 4 && i < s->best.steps - 1; k++) {
            c = s->best;
            drop_step(&c, i, k < 3 ? s->best.step[i].in[k] : 0);
            if (try_smaller(s, &c)) break;
        }
}
static void replace_size(recipe *c, int64_t from, int64_t to)
{
    for (int i = 0; i < DT_MAX_DIMS; i++) c->x.n[i] = c->x.n[i] == from ? to : c->x.n[i];
    for (int i = 0; i < SIZES; i++) c->size[i] = c->size[i] == from ? to : c->size[i];
    c->targets = c->targets == from ? to : c->targets;
}
static void shrink_sizes(shrinker *s)
{
    for (int i = 0; i < DT_MAX_DIMS + SIZES + 1; i++)
        for (int how = 0; how < 8; how++) {
            recipe c = s->best;
            int64_t *n = i < DT_MAX_DIMS ? &c.x.n[i] : i < DT_MAX_DIMS + SIZES ? &c.size[i - DT_MAX_DIMS] : &c.targets;
            int64_t to = how / 2 == 0 ? 1 : how / 2 == 1 ? 2 : how / 2 == 2 ? *n / 2 : *n - 1;
            if (to < 1 || to >= *n) continue;
            if (how & 1) *n = to;
            else replace_size(&c, *n, to);
            try_smaller(s, &c);
        }
    for (recipe c = s->best; c.x.dims > 1; c = s->best) {
        c.x.dims--;
        if (!try_smaller(s, &c)) break;
    }
}
static void shrink_words(shrinker *s)
{
    recipe c = s->best;
    c.units = 1, try_smaller(s, &c);
    c = s->best, c.shards = 1, try_smaller(s, &c);
    c = s->best, c.ignored = 0, try_smaller(s, &c);
    c = s->best, c.last = 0, try_smaller(s, &c);
    for (int i = 0; i < s->best.steps; i++) {
        for (int k = 0; k < WORDS; k++)
            for (uint32_t word = 0; word < 2; word++) {
                c = s->best;
                if (c.step[i].r[k] <= word) break;
                c.step[i].r[k] = word;
                if (try_smaller(s, &c)) break;
            }
        for (int k = 0; k < 3; k++) {
            c = s->best;
            c.step[i].in[k] = 0;
            if (s->best.step[i].in[k]) try_smaller(s, &c);
        }
    }
}
/* Prints the smallest graph found that still fails, and the first element that differs. */
static void explain(const recipe *c, const failure *f, uint64_t seed, int64_t number)
{
    shrinker s;
    memset(&s, 0, sizeof s);
    s.best = *c, s.failure = *f;
    tap_note("graph %lld of DT_SEED=%llu, %d steps: %s: %s", (long long)number, (unsigned long long)seed, c->steps, f->what, f->where);
    do {
        s.better = 0;
        shrink_steps(&s);
        shrink_sizes(&s);
        shrink_words(&s);
    } while (s.better && s.runs < MOST_RUNS);
    tap_note("made smaller in %d runs, %d steps:", s.runs, s.best.steps);
    print_recipe(&s.best);
    tap_note("%s", s.failure.what);
    tap_note("%s", s.failure.where);
}

/* ---- the tests --------------------------------------------------------------------------------------------- */

static void test_table(void)
{
    char missing[400] = "";
    for (int op = 0; op < DT__OP_COUNT; op++) {
        int has = reference_of(op) != NULL;
        for (size_t i = 0; i < sizeof exempts / sizeof *exempts; i++) has += exempts[i].op == op;
        if (has != 1 && strlen(missing) < 300) snprintf(missing + strlen(missing), 100, " %s", dt__op_of(op)->name);
    }
    if (!tap_ok(!missing[0], "every op of the table has a scalar reference, or a reason to have none")) tap_note("missing:%s", missing);
}
static void test_coverage(void)
{
    char missing[400] = "";
    for (int op = 0; op < DT__OP_COUNT; op++)
        if (reference_of(op) && !seen_ops[op] && strlen(missing) < 300) snprintf(missing + strlen(missing), 100, " %s", dt__op_of(op)->name);
    if (!tap_ok(!missing[0], "every op was in one of the graphs")) tap_note("missing:%s", missing);
    tap_ok(order_helps > 100 && 4 * order_harms < order_helps && order_floats[1] < order_floats[0], "the pass order needs %.2f %% of the temporary memory; less in %lld graphs, more in %lld",
           100.0 * (double)order_floats[1] / (double)order_floats[0], (long long)order_helps, (long long)order_harms);
    tap_ok(by_rows > 20, "%lld groups went over logits some rows at a time", (long long)by_rows);
    for (int op = 0; op < DT__OP_COUNT && getenv("DT_VERBOSE"); op++) tap_note("%8lld %s", (long long)seen_ops[op], dt__op_of(op)->name);
}
static uint64_t recipe_seed(uint64_t seed, int64_t number)
{
    uint64_t state = seed;
    return next_word(&state) + (uint64_t)number;
}
static int64_t number_of(const char *name, int64_t usual)
{
    const char *text = getenv(name);
    return text && text[0] ? strtoll(text, NULL, 0) : usual;
}
static int test_graphs(uint64_t seed, int64_t wanted)
{
    int64_t number = 0, done[4] = { 0, 0, 0, 0 }, steps = 0;
    int only = getenv("DT_ONLY") != NULL;
    if (only) number = number_of("DT_ONLY", 0);
    for (; done[PASSED] + done[ENDED] < wanted && number < 100 + 4 * wanted + number_of("DT_ONLY", 0); number++) {
        recipe c = draw_recipe(recipe_seed(seed, number));
        failure f;
        int result = c.steps ? run_case(&c, &f) : REFUSED;
        if (only) print_recipe(&c), tap_note("%s", result == PASSED ? "passed" : result == ENDED ? "ended at a NaN" : f.what);
        done[result]++;
        if (result == PASSED) steps += c.steps;
        if (result == REFUSED && c.steps && !strstr(f.what, "does not depend on its input")) result = FAILED;
        if (result == FAILED) {
            explain(&c, &f, seed, number);
            tap_ok(0, "graph %lld: eager, planned and scalar reference have the same bits", (long long)number);
            return 0;
        }
        if (only) break;
    }
    tap_ok(only || done[PASSED] + done[ENDED] == wanted, "%lld random graphs: eager, planned and scalar reference have the same bits (DT_SEED=%llu)", (long long)wanted,
           (unsigned long long)seed);
    tap_note("%.1f steps on average; %lld ended at a NaN, %lld others could be no segment; the gradients of %lld are their slopes", (double)steps / (double)(done[PASSED] + !done[PASSED]), (long long)done[ENDED],
             (long long)done[REFUSED], (long long)slopes);
    tap_ok(only || 20 * done[ENDED] <= wanted, "few of them end at a NaN (R14)");
    return 1;
}

int main(void)
{
    const char *full = getenv("DT_FULL"), *sanitized = getenv("DT_SANITIZE");
    int64_t wanted = number_of("DT_GRAPHS", full && full[0] == '1' ? 100000 : sanitized && sanitized[0] ? 200 : 2000);
#ifdef DT_NO_THREADS
    enum { POOLS = 1 };
#else
    enum { POOLS = 2 };
#endif
    for (int i = 0; i < POOLS; i++)
        if (dt__pool_open(&pools[i], i + 1)) tap_bail("%s", dt_last_error());
    test_table();
    if (test_graphs((uint64_t)number_of("DT_SEED", 1), wanted) && wanted >= 2000) test_coverage();
    for (int i = 0; i < 2; i++) dt__pool_close(&pools[i]);
    return tap_done();
}
