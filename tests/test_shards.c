/* test_shards.c: tensor parallelism. Ranks are threads that own runs of a model's tensor shards and meet in a hook; one
 * rank with all shards computes the same bits: outputs, losses, every gradient, with and without sequence parallelism (R6,
 * R7, R8, R11, R16). What is sent is counted. The sharded loss, row slices and the walk over elements have plain references
 * (R5, R7, R11). Values against PyTorch are in test_golden.c. TAP. */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "tap.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

enum { RANKS = 4, MICROS = 2, BATCH = 2, LENGTH = 8, KINDS = 4, SEED = 5 };

/* ---- ranks that meet ---------------------------------------------------------------------------------------- */

typedef struct meeting {
    pthread_barrier_t barrier;
    int ranks;
    const float *from[RANKS];
    float *sum[RANKS];
} meeting;

typedef struct rank {
    meeting *at;
    int number;
    dt__net net;
    dt__env env;
    dt_pool *pool;
    dt_model model;
    float *params, *set, *memory;
    float *output[MICROS]; /* of every segment, one behind another */
    float loss[MICROS];
    int64_t outputs;
    int64_t calls[64][KINDS]; /* per segment, forward; backward behind */
    int32_t tokens[MICROS][BATCH * LENGTH], targets[MICROS][BATCH * LENGTH];
    int busy; /* 2 * segment + backward */
    const char *failed;
} rank;

/* TREE over ranks by number, like the contract of dt__tp says. */
static void combine(void *user, int kind, float *to, const float *from, int64_t count)
{
    rank *r = (rank *)user;
    meeting *m = r->at;
    int64_t n = kind == DT__TP_SCATTER ? count / m->ranks : count, first = kind == DT__TP_SCATTER ? r->number * n : 0;
    float *mine = (float *)malloc(4 * (size_t)(count * RANKS));
    r->calls[r->busy][kind]++;
    m->from[r->number] = from;
    pthread_barrier_wait(&m->barrier);
    for (int64_t i = 0; kind != DT__TP_GATHER && i < n; i++) {
        float part[RANKS];
        for (int k = 0; k < m->ranks; k++) part[k] = m->from[k][first + i];
        for (int step = 1; step < m->ranks; step *= 2)
            for (int k = 0; k + step < m->ranks; k += 2 * step)
                part[k] = kind == DT__TP_MAX ? (part[k] > part[k + step] ? part[k] : part[k + step]) : part[k] + part[k + step];
        mine[i] = part[0];
    }
    for (int k = 0; kind == DT__TP_GATHER && k < m->ranks; k++) memcpy(mine + k * count, m->from[k], 4 * (size_t)count);
    pthread_barrier_wait(&m->barrier);
    memcpy(to, mine, 4 * (size_t)(kind == DT__TP_GATHER ? count * m->ranks : n));
    free(mine);
}

/* ---- one rank: two micro-batches of a leaf, forward and backward --------------------------------------------- */

static dt__rng streams[MICROS][BATCH];

static void bind(rank *r, int64_t s, int micro, dt__bind *b)
{
    const dt__net *net = &r->net;
    const dt__built *seg = &net->segments[s];
    float *at = r->memory;
    const int32_t *tokens = r->tokens[micro], *targets = r->targets[micro];
    memset(b, 0, sizeof *b);
    b->params = r->params, b->slots = r->set;
    b->param = seg->param, b->slot = seg->slot;
    b->at[DT__AT_TEMP] = at;
    at += net->temp;
    b->at[DT__AT_GRAD_OUT] = at + (s & 1) * net->widest;
    b->at[DT__AT_GRAD_IN] = at + (~s & 1) * net->widest;
    at += 2 * net->widest;
    for (int64_t i = 0; i < s; i++) at += net->segments[i].plan->saved;
    b->at[DT__AT_SAVED] = at;
    at = r->output[micro];
    for (int64_t i = 0; i < s; i++) b->at[DT__AT_INPUT] = at, at += dt__round_up(net->segments[i].output, 16);
    b->at[DT__AT_OUTPUT] = at;
    if (!s) memcpy(&b->at[DT__AT_INPUT], &tokens, sizeof tokens);
    memcpy(&b->at[DT__AT_TARGETS], &targets, sizeof targets);
}

static void run(rank *r)
{
    const dt__net *net = &r->net;
    unsigned saved = dt__fp_enter();
    dt__bind b;
    for (int micro = 0; micro < MICROS; micro++) {
        dt__rng rng[BATCH];
        memcpy(rng, streams[micro], sizeof rng);
        r->env.rng = rng;
        for (int64_t s = 0; s < net->count; s++) {
            const dt__plan *p = net->segments[s].plan;
            bind(r, s, micro, &b);
            r->env.segment = (uint32_t)s, r->busy = (int)(2 * s);
            dt__plan_run(p, 0, p->forward_count, &b, &r->env, 0);
        }
        r->loss[micro] = b.at[DT__AT_OUTPUT][0];
        for (int64_t s = net->count - 1; s >= 0; s--) {
            const dt__plan *p = net->segments[s].plan;
            bind(r, s, micro, &b);
            if (s == net->count - 1) b.at[DT__AT_GRAD_OUT][0] = 0.037f;
            r->env.segment = (uint32_t)s, r->busy = (int)(2 * s + 1);
            dt__plan_run(p, p->forward_count, p->backward_count, &b, &r->env, micro == 0);
        }
    }
    r->busy = 63;
    dt__net_fold(net, 0, net->count, r->set, &r->env);
    dt__fp_leave(saved);
}

static void open_rank(rank *r, meeting *m, int number, const dt_model *model, int64_t shards, int split)
{
    int64_t memory;
    memset(r, 0, sizeof *r);
    r->at = m, r->number = number, r->model = *model;
    r->net.tensor_shards = shards;
    r->net.own_shards = shards / m->ranks, r->net.first_shard = number * r->net.own_shards;
    r->net.sequence_parallel = split;
    for (int micro = 0; micro < MICROS; micro++)
        for (int i = 0; i < BATCH * LENGTH; i++) {
            r->tokens[micro][i] = (int32_t)((i * 7919 + micro * 31) % model->vocabulary);
            r->targets[micro][i] = i % 5 == 3 ? -1 : (int32_t)((i * 104729 + micro + 1) % model->vocabulary);
        }
    if (dt__choose_kernels(&r->env.k) || dt__pool_open(&r->pool, 1) || dt__net_open(&r->net, model, BATCH, LENGTH) ||
        dt__pool_reserve(r->pool, dt__net_scratch(&r->net, r->env.k)))
        tap_bail("%s", dt_last_error());
    r->env.pool = r->pool, r->env.unit_share = 0.25f;
    r->env.tp.combine = combine, r->env.tp.user = r;
    r->outputs = r->net.boundary;
    memory = r->net.temp + r->net.saved + 2 * r->net.widest;
    r->params = (float *)dt__alloc(4 * r->net.param_floats, "weights");
    r->set = (float *)dt__alloc(4 * r->net.set_floats, "gradients");
    r->memory = (float *)dt__alloc(4 * memory, "activations");
    for (int i = 0; i < MICROS; i++) r->output[i] = (float *)dt__alloc(4 * r->outputs, "outputs");
    for (int32_t i = 0; i < r->net.param_count; i++) { /* larger than at the start of a training, biases too */
        const dt__net_param *p = &r->net.params[i];
        dt__param drawn = p->is;
        if (drawn.init != DT_INIT_NORMAL) drawn.std = 0.3f;
        else drawn.std *= 5.0f;
        drawn.init = DT_INIT_NORMAL;
        dt__init_shards(&drawn, shards, r->net.first_shard, r->net.own_shards, SEED, r->pool, r->params + p->offset);
    }
    memset(r->set, 0x55, 4 * (size_t)r->net.set_floats); /* fresh sums must not read what was there */
}

static void close_rank(rank *r)
{
    dt__net_close(&r->net);
    dt__pool_close(&r->pool);
    dt__free(r->params), dt__free(r->set), dt__free(r->memory);
    for (int i = 0; i < MICROS; i++) dt__free(r->output[i]);
}

static void *rank_main(void *user)
{
    run((rank *)user);
    return NULL;
}

/* Opens and runs `ranks` ranks over `shards` shards. */
static rank *run_ranks(const dt_model *model, int64_t shards, int ranks, int split)
{
    meeting *m = (meeting *)calloc(1, sizeof *m);
    rank *r = (rank *)calloc((size_t)ranks, sizeof *r);
    pthread_t thread[RANKS];
    if (!r || !m) tap_bail("no memory");
    m->ranks = ranks;
    pthread_barrier_init(&m->barrier, NULL, (unsigned)ranks);
    for (int i = 0; i < ranks; i++) open_rank(&r[i], m, i, model, shards, split);
    for (int i = 0; i < ranks; i++)
        if (pthread_create(&thread[i], NULL, rank_main, &r[i])) tap_bail("no thread");
    for (int i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&m->barrier);
    return r;
}
static void close_ranks(rank *r, int ranks)
{
    free(r->at);
    for (int i = 0; i < ranks; i++) close_rank(&r[i]);
    free(r);
}

/* ---- many ranks against one -------------------------------------------------------------------------------- */

/* Is every rank's gradient (or, with `weights`, weight) of parameter i, use u, that of its shards in the one rank's? */
static int same_param(const rank *one, const rank *all, int ranks, int32_t i, int u)
{
    const dt__net_param *p = &one->net.params[i];
    int64_t vt = one->net.tensor_shards, size = dt__shard_floats(&p->is, vt), step = dt__shard_step(&p->is, vt);
    for (int k = 0; k < ranks; k++) {
        const dt__net *net = &all[k].net;
        const dt__net_param *q = &net->params[i];
        for (int64_t v = 0; v < dt__param_shards(&q->is, vt, net->own_shards); v++) {
            int64_t shard = dt__param_is_cut(&p->is, vt) ? net->first_shard + v : 0;
            const float *want = one->set + p->slot[u] + shard * step, *got = all[k].set + q->slot[u] + v * step;
            if (strcmp(p->is.name, q->is.name)) return 0;
            for (int64_t e = 0; e < size; e++)
                if (dt__param_index(&p->is, vt, shard, e) >= 0 && memcmp(want + e, got + e, 4)) return 0;
        }
    }
    return 1;
}

/* The outputs of every segment: whole, or the rank's rows of them. */
static int same_outputs(const rank *one, const rank *r, int split)
{
    for (int micro = 0; micro < MICROS; micro++) {
        const float *want = one->output[micro], *got = r->output[micro];
        for (int64_t s = 0; s < one->net.count; s++) {
            int64_t n = one->net.segments[s].output, m = r->net.segments[s].output;
            int parted = split && s < one->net.count - 1;
            if (m != (parted ? n / r->at->ranks : n)) return 0;
            if (memcmp(parted ? want + r->number * m : want, got, 4 * (size_t)m)) return 0;
            want += dt__round_up(n, 16), got += dt__round_up(m, 16);
        }
    }
    return 1;
}

/* Per block exactly 2 all-reduces each way; split rows: 2 reduce-scatters and 2 all-gathers. */
static int right_calls(const rank *r, int split, int extra)
{
    for (int64_t s = 1; s + 1 < r->net.count; s++)
        for (int back = 0; back < 2; back++) {
            const int64_t *n = r->calls[2 * s + back];
            int64_t twice = 2 * MICROS, more = back * extra * MICROS;
            if (n[DT__TP_MAX] || n[DT__TP_SUM] != (split ? 0 : twice) + more) return 0;
            if (n[DT__TP_SCATTER] != (split ? twice : 0) || n[DT__TP_GATHER] != (split ? twice : 0)) return 0;
        }
    return 1;
}

static void check_ranks(const char *what, const dt_model *model, int64_t shards, int ranks, int split)
{
    rank *one = run_ranks(model, shards, 1, 0), *all = run_ranks(model, shards, ranks, split);
    int outputs = 1, losses = 1, gradients = 1, calls = 1;
    const char *first = "";
    for (int k = 0; k < ranks; k++) {
        outputs = outputs && same_outputs(one, &all[k], split && ranks > 1);
        losses = losses && !memcmp(one->loss, all[k].loss, sizeof one->loss);
        calls = calls && (ranks == 1 || right_calls(&all[k], split, model->experts > 0));
    }
    for (int32_t i = 0; i < one->net.param_count; i++)
        for (int u = 0; u < one->net.params[i].uses; u++)
            if (!same_param(one, all, ranks, i, u)) gradients = 0, first = first[0] ? first : one->net.params[i].is.name;
    tap_ok(outputs && losses, "R6 R16 %s, %d shards on %d ranks%s: the outputs and losses of one rank", what, (int)shards, ranks,
           split ? ", rows split" : "");
    tap_ok(gradients, "R6 R7 R8 and its gradients%s%s", first[0] ? ", not: " : "", first);
    tap_ok(calls, "two exchanges forward and two backward per block");
    tap_ok(one->loss[0] > 0.5f && one->loss[0] == one->loss[0], "the loss is a number: %g", (double)one->loss[0]);
    close_ranks(one, 1), close_ranks(all, ranks);
}

static void check_model(const char *what, const dt_model *model)
{
    for (int64_t shards = 2; shards <= 4; shards *= 2)
        for (int ranks = 1; ranks <= shards; ranks *= 2)
            for (int split = 0; split < 2; split++) check_ranks(what, model, shards, ranks, split);
}

static dt_model a_model(int family)
{
    dt_model m;
    memset(&m, 0, sizeof m);
    m.family = family;
    m.layers = 2, m.heads = 4, m.width = 24, m.vocabulary = 37, m.balance = 0.01f; /* 37: the last shards are padded */
    if (family == DT_LLAMA) m.width = 32, m.hidden = 36, m.kv_heads = 4, m.heads = 8;
    return m;
}

int main(void)
{
    dt_model m = a_model(DT_GPT2);
    for (int micro = 0; micro < MICROS; micro++)
        for (int b = 0; b < BATCH; b++) streams[micro][b] = dt__rng_make(SEED, DT__RNG_DROPOUT, (uint32_t)b, (uint32_t)micro, 0);
    check_model("GPT-2", &m);
    m.dropout = 0.2f;
    check_model("GPT-2 with dropout", &m);
    m = a_model(DT_LLAMA);
    check_model("Llama", &m);
    m.tied = 1;
    check_model("tied Llama", &m);
    m.experts = 3, m.active = 2, m.capacity = 1.1f;
    check_model("Llama with experts", &m);
    m = a_model(DT_GPT2);
    m.experts = 5, m.active = 1, m.dropout = 0.1f;
    check_model("GPT-2 with experts", &m);
    return tap_done();
}
