/* test_shards.c: tensor parallelism. Ranks are threads that own runs of a model's tensor shards and meet in a hook; one
 * rank with all shards computes the same bits: outputs, losses, every gradient, with and without sequence parallelism (R6,
 * R7, R8, R11, R16). What is sent is counted. The sharded loss, row slices and the walk over elements have plain references
 * (R5, R7, R11). Ranks that share experts compute the bits of one that has all, and keep a gradient for the tokens of each
 * (R3, R10). Values against PyTorch are in test_golden.c. TAP. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "reference.h"
#include "tap.h"
#include "slot.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

enum { RANKS = 4, MICROS = 2, BATCH = 2, LENGTH = 8, KINDS = 4, SEED = 5, LARGEST = 20000 };

/* ---- ranks that meet ---------------------------------------------------------------------------------------- */

typedef struct meeting {
    pthread_barrier_t barrier;
    int ranks;
    int experts, data; /* they share experts, not tensor shards; the first one's tokens are those of so many seeds on */
    const float *from[RANKS];
    const int32_t *give[RANKS];
} meeting;

typedef struct rank {
    meeting *at;
    int number;
    dt__net net;
    dt__store store;
    int64_t set_floats;
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
    int64_t rows; /* sent to other owners of experts, or back */
    const char *failed;
} rank;

/* TREE over ranks by number, like the contract of dt__peers says. */
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

/* The rows from every rank, one after another. */
static void trade(void *user, float *to, const int32_t *take, const float *from, const int32_t *give, int64_t bins, int64_t width)
{
    rank *r = (rank *)user;
    meeting *m = r->at;
    r->calls[r->busy][0]++;
    m->from[r->number] = from, m->give[r->number] = give;
    pthread_barrier_wait(&m->barrier);
    for (int k = 0; k < m->ranks; k++) {
        const int32_t *theirs = m->give[k] + r->number * bins, *mine = take + k * bins;
        if (theirs[bins] - theirs[0] != mine[bins] - mine[0]) r->failed = "a rank takes more or fewer rows than another gives";
        for (int64_t i = 0; i < (mine[bins] - mine[0]) * width; i++) to[mine[0] * width + i] = m->from[k][theirs[0] * width + i];
        if (k != r->number) r->rows += width > 1 ? m->give[r->number][(k + 1) * bins] - m->give[r->number][k * bins] : 0;
    }
    pthread_barrier_wait(&m->barrier);
}

/* ---- one rank: two micro-batches of a leaf, forward and backward --------------------------------------------- */

static dt__rng streams[MICROS][BATCH];

static void bind_segment(rank *r, int64_t s, int micro, dt__bind *b)
{
    const dt__net *net = &r->net;
    const dt__built *seg = &net->segments[s];
    float *at = r->memory;
    const int32_t *tokens = r->tokens[micro], *targets = r->targets[micro];
    memset(b, 0, sizeof *b);
    b->params = r->params, b->slots = r->set, b->slices = r->set + r->store.slot_floats;
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
            const dt__segment_plan *p = net->segments[s].plan;
            bind_segment(r, s, micro, &b);
            r->env.segment = (uint32_t)s, r->busy = (int)(2 * s);
            dt__segment_run(p, 0, p->forward_count, &b, &r->env, 0);
        }
        r->loss[micro] = b.at[DT__AT_OUTPUT][0];
        for (int64_t s = net->count - 1; s >= 0; s--) {
            const dt__segment_plan *p = net->segments[s].plan;
            bind_segment(r, s, micro, &b);
            if (s == net->count - 1) b.at[DT__AT_GRAD_OUT][0] = 0.037f;
            r->env.segment = (uint32_t)s, r->busy = (int)(2 * s + 1);
            dt__segment_run(p, p->forward_count, p->backward_count, &b, &r->env, micro == 0);
        }
    }
    r->busy = 63;
    dt__net_fold(net, 0, net->count, r->set, r->set + r->store.slot_floats, &r->env);
    dt__fp_leave(saved);
}

static void open_rank(rank *r, meeting *m, int number, const dt_model *model, int64_t shards, int split)
{
    int64_t memory;
    dt__chunk all;
    memset(r, 0, sizeof *r);
    r->at = m, r->number = number, r->model = *model;
    r->net.tensor_shards = shards;
    r->net.own_shards = shards, r->net.expert_ranks = m->ranks, r->net.expert_rank = number;
    if (!m->experts) r->net.own_shards = shards / m->ranks, r->net.first_shard = number * r->net.own_shards, r->net.expert_ranks = 1, r->net.expert_rank = 0;
    r->net.sequence_parallel = split;
    for (int micro = 0; micro < MICROS; micro++)
        for (int i = 0; i < BATCH * LENGTH; i++) {
            int seed = m->data + m->experts * number;
            r->tokens[micro][i] = (int32_t)((i * 7919 + micro * 31 + seed * 1009 * (i % 3)) % model->vocabulary);
            r->targets[micro][i] = i % 5 == 3 ? -1 : (int32_t)((i * 104729 + micro + 1 + seed) % model->vocabulary);
        }
    if (dt__choose_kernels(&r->env.k) || dt__pool_open(&r->pool, 1) || dt__net_open(&r->net, model, BATCH, LENGTH) ||
        dt__pool_reserve(r->pool, dt__net_scratch(&r->net, r->env.k)))
        tap_bail("%s", dt_last_error());
    r->env.pool = r->pool, r->env.unit_share = 0.25f, r->env.loss_scale = 1.0f;
    r->env.peers.combine = combine, r->env.peers.user = r;
    r->env.peers.exchange = trade;
    for (int64_t s = 0; s < r->net.count; s++) r->outputs += dt__round_up(r->net.segments[s].output, 16);
    memory = r->net.temp + r->net.saved + 2 * r->net.widest;
    memset(&all, 0, sizeof all);
    all.end = (int32_t)r->net.count;
    r->store.shards = 1;
    if (dt__store_open(&r->store, &r->net, &all, 1, 1000, 0, 0)) tap_bail("%s", dt_last_error());
    r->set_floats = r->store.slot_floats + r->store.slice_floats;
    r->params = (float *)dt__alloc(4 * r->store.param_floats, "weights");
    r->set = (float *)dt__alloc(4 * r->set_floats, "gradients");
    r->memory = (float *)dt__alloc(4 * memory, "activations");
    for (int i = 0; i < MICROS; i++) r->output[i] = (float *)dt__alloc(4 * r->outputs, "outputs");
    for (int32_t i = 0; i < r->net.param_count; i++) { /* larger than at the start of a training, biases too */
        const dt__net_param *p = &r->net.params[i];
        dt__param drawn = p->is;
        if (drawn.init != DT_INIT_NORMAL) drawn.std = 0.3f;
        else drawn.std *= 5.0f;
        drawn.init = DT_INIT_NORMAL;
        dt__init_shards(&drawn, SEED, r->pool, r->params + p->offset, 0, p->count);
        for (int64_t v = 0; v < dt__param_shards(&p->is); v++) /* and of every sign of 0 */
            for (int64_t e = 0; e < dt__shard_floats(&p->is); e++)
                if (dt__param_index(&p->is, dt__param_array(&p->is, v), e) % 13 == 4)
                    r->params[p->offset + v * dt__shard_step(&p->is) + e] = -0.0f;
    }
    memset(r->set, 0x55, 4 * (size_t)r->set_floats); /* fresh sums must not read what was there */
}

static void close_rank(rank *r)
{
    dt__net_close(&r->net);
    dt__store_close(&r->store);
    dt__pool_close(&r->pool);
    dt__free(r->params), dt__free(r->set), dt__free(r->memory);
    for (int i = 0; i < MICROS; i++) dt__free(r->output[i]);
}

static void *rank_main(void *user)
{
    run((rank *)user);
    return NULL;
}

/* Opens and runs `ranks` ranks that share `shards` tensor shards, or experts; they have the tokens of seeds from `data` on. */
static rank *run_sharing(const dt_model *model, int64_t shards, int ranks, int split, int experts, int data)
{
    meeting *m = (meeting *)calloc(1, sizeof *m);
    rank *r = (rank *)calloc((size_t)ranks, sizeof *r);
    pthread_t thread[RANKS];
    if (!r || !m) tap_bail("no memory");
    m->ranks = ranks, m->experts = experts, m->data = data;
    pthread_barrier_init(&m->barrier, NULL, (unsigned)ranks);
    for (int i = 0; i < ranks; i++) open_rank(&r[i], m, i, model, shards, split);
    for (int i = 0; i < ranks; i++)
        if (pthread_create(&thread[i], NULL, rank_main, &r[i])) tap_bail("no thread");
    for (int i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&m->barrier);
    return r;
}
static rank *run_ranks(const dt_model *model, int64_t shards, int ranks, int split) { return run_sharing(model, shards, ranks, split, 0, 0); }
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
    int64_t size = dt__shard_floats(&p->is), step = dt__shard_step(&p->is);
    for (int k = 0; k < ranks; k++) {
        const dt__net *net = &all[k].net;
        const dt__net_param *q = &net->params[i];
        for (int64_t v = 0; v < dt__param_shards(&q->is); v++) {
            int64_t shard = dt__param_array(&q->is, v);
            const float *want = one->set + slot_of(&one->net, p, u) + shard * step, *got = all[k].set + slot_of(net, q, u) + v * step;
            if (strcmp(p->is.name, q->is.name)) return 0;
            for (int64_t e = 0; e < size; e++)
                if (dt__param_index(&p->is, shard, e) >= 0 && memcmp(want + e, got + e, 4)) return 0;
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

/* ---- experts on several ranks --------------------------------------------------------------------------------- */

/* Is the gradient of parameter i for the tokens of rank `source` what that one computes alone? Experts' are with their owners. */
static int same_source(const rank *one, const rank *all, int ranks, int source, int32_t i, int u)
{
    const dt__net_param *p = &one->net.params[i];
    int64_t size = dt__shard_floats(&p->is), step = dt__shard_step(&p->is);
    for (int k = 0; k < ranks; k++) {
        const dt__net_param *q = &all[k].net.params[i];
        int64_t at = slot_of(&all[k].net, q, u);
        const float *got = all[k].set + at;
        int shared = q->is.own_experts < q->is.experts;
        if (!shared && k != source) continue;
        for (int32_t b = 0; shared && source && b < all[k].store.buckets; b++) /* the sums for the ranks lie one behind another */
            if (at >= all[k].store.bucket[b].slot && at < all[k].store.bucket[b].slot + all[k].store.bucket[b].floats)
                got += source * all[k].store.bucket[b].floats;
        for (int64_t a = 0; a < dt__param_shards(&q->is); a++, got += step) {
            const float *want = one->set + slot_of(&one->net, p, u) + dt__param_array(&q->is, a) * step;
            if (memcmp(want, got, 4 * (size_t)size)) return 0;
            for (int64_t e = size; shared && e < step; e++)
                if (got[e] != 0.0f || signbit(got[e])) return 0; /* padding, which the norm counts */
        }
    }
    return 1;
}

/* The blocks of layer s exchange rows twice forward, of each tensor shard back, and the counts; twice backward. */
static int right_trades(const rank *r, int64_t shards)
{
    for (int64_t s = 0; s < r->net.count; s++) {
        int64_t block = (s > 0 && s + 1 < r->net.count) * MICROS;
        if (r->calls[2 * s][0] != block * (2 + shards) || r->calls[2 * s + 1][0] != block * (1 + shards)) return 0;
    }
    return 1;
}

static void check_experts(const char *what, const dt_model *model, int64_t shards, int ranks)
{
    rank *all = run_sharing(model, shards, ranks, 0, 1, 0);
    int outputs = 1, gradients = 1, calls = 1;
    const char *first = "";
    int64_t rows = 0;
    for (int k = 0; k < ranks; k++) {
        rank *one = run_sharing(model, shards, 1, 0, 0, k);
        outputs = outputs && same_outputs(one, &all[k], 0) && !memcmp(one->loss, all[k].loss, sizeof one->loss);
        calls = calls && right_trades(&all[k], shards) && !all[k].failed;
        rows += all[k].rows;
        for (int32_t i = 0; i < one->net.param_count; i++)
            for (int u = 0; u < one->net.params[i].uses; u++)
                if (!same_source(one, all, ranks, k, i, u)) gradients = 0, first = first[0] ? first : one->net.params[i].is.name;
        close_ranks(one, 1);
    }
    tap_ok(outputs, "R10 %s, %d shards, experts on %d ranks: each has the outputs and losses of one with all experts", what, (int)shards, ranks);
    tap_ok(gradients, "R3 R10 and the gradients of its tokens, those of experts with their owners%s%s", first[0] ? ", not: " : "", first);
    tap_ok(calls && rows > 0, "rows go to their owners and back forward and backward, %d in all", (int)rows);
    close_ranks(all, ranks);
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

/* ---- one shard against several: the same function ------------------------------------------------------------ */

static void check_near(const char *what, const dt_model *model, int64_t shards)
{
    rank *one = run_ranks(model, 1, 1, 0), *cut = run_ranks(model, shards, 1, 0);
    static float got[LARGEST], want[LARGEST];
    const char *name = "";
    double worst = 0.0, error;
    for (int32_t i = 0; i < one->net.param_count; i++)
        for (int u = 0; u < one->net.params[i].uses; u++) {
            const dt__net_param *p = &cut->net.params[i];
            int64_t n = dt_shape_count(p->is.shape);
            if (n > LARGEST) tap_bail("a parameter is too large");
            dt__param_whole(&p->is, cut->set + slot_of(&cut->net, p, u), got);
            dt__param_whole(&one->net.params[i].is, one->set + slot_of(&one->net, &one->net.params[i], u), want);
            error = tap_error(got, want, n, NULL);
            if (strstr(p->is.name, "c_attn.bias")) error = tap_error(got + n / 3 * 2, want + n / 3 * 2, n / 3, NULL); /* the rest is noise */
            if (error > worst || error != error) worst = error, name = p->is.name;
        }
    tap_ok(worst <= 1e-5, "%s: gradients in %d shards and in one differ by %.1e at most (%s)", what, (int)shards, worst, name);
    tap_near(cut->loss, one->loss, MICROS, 1e-6, "losses");
    close_ranks(one, 1), close_ranks(cut, 1);
}

/* ---- where elements are (R11) ---------------------------------------------------------------------------------- */

/* A matrix (rows,cols) whose columns are groups: the column of the whole that is column c of a shard. */
static void check_columns(int64_t rows, int64_t cols, int64_t groups, int64_t vt)
{
    dt__param p, uncut;
    float *whole = (float *)malloc(4 * (size_t)(rows * cols)), *drawn = (float *)malloc(4 * (size_t)(rows * cols)), *cut;
    int64_t width = cols / vt, each = width / groups, right = 0;
    dt_pool *pool = NULL;
    memset(&p, 0, sizeof p);
    snprintf(p.name, sizeof p.name, "w");
    p.shape = dt_shape2(rows, cols), p.cut = 1, p.groups = groups, p.std = 1.0f, p.init = DT_INIT_NORMAL;
    uncut = p, uncut.shards = uncut.own_shards = 1, p.shards = p.own_shards = vt;
    cut = (float *)calloc((size_t)dt__param_local(&p), 4);
    if (!whole || !drawn || !cut || dt__pool_open(&pool, 2)) tap_bail("no memory");
    dt__init_param(&uncut, 3, NULL, whole);
    dt__init_param(&p, 3, pool, cut);
    for (int64_t v = 0; v < vt; v++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < width; c++) {
                int64_t at = r * cols + c / each * (cols / groups) + v * each + c % each;
                right += dt__param_index(&p, v, r * width + c) == at &&
                         !memcmp(cut + v * dt__shard_step(&p) + r * width + c, whole + at, 4);
            }
    dt__param_whole(&p, cut, drawn);
    tap_ok(right == rows * cols && !memcmp(whole, drawn, 4 * (size_t)(rows * cols)) && dt__shard_step(&p) % DT__BLOCK == 0,
           "R11 R16 (%d,%d) in %d groups, %d shards: every element is at its place, and drawn alike", (int)rows, (int)cols, (int)groups, (int)vt);
    memset(cut, 0, 4 * (size_t)dt__param_local(&p));
    cut_up(&p, whole, cut);
    dt__param_whole(&p, cut, drawn);
    tap_ok(!memcmp(whole, drawn, 4 * (size_t)(rows * cols)), "cut and put together again");
    free(whole), free(drawn), free(cut);
    dt__pool_close(&pool);
}

/* A padded table: rows behind the vocabulary are at no place, and stay +0. */
static void check_table(int64_t vocabulary, int64_t cols, int64_t vt)
{
    dt__param p;
    int64_t width = (vocabulary + vt - 1) / vt, right = 0, n;
    float *cut;
    memset(&p, 0, sizeof p);
    p.shape = dt_shape2(vocabulary, cols), p.groups = 1, p.pad = vt * width - vocabulary, p.init = DT_INIT_ONES;
    p.shards = p.own_shards = vt;
    n = dt__param_local(&p);
    cut = (float *)malloc(4 * (size_t)n);
    if (!cut) tap_bail("no memory");
    dt__init_param(&p, 3, NULL, cut);
    for (int64_t v = 0; v < vt; v++)
        for (int64_t i = 0; i < width * cols; i++) {
            int64_t row = v * width + i / cols;
            right += dt__param_index(&p, v, i) == (row < vocabulary ? row * cols + i % cols : -1) &&
                     cut[v * dt__shard_step(&p) + i] == (row < vocabulary ? 1.0f : 0.0f);
        }
    tap_ok(right == vt * width * cols, "R1 a table (%d,%d) in %d shards: padding is at no place", (int)vocabulary, (int)cols, (int)vt);
    free(cut);
}

/* ---- plain references: the sharded loss, row slices -------------------------------------------------------------- */

enum { WIDE = 12 };
static const float smoothing = 0.1f;

static dt_tensor table_segment(dt_graph *g, dt_tensor tokens, const void *user) /* (B,T) -> (B,T,C) */
{
    return dt_embed(g, dt__table_param(g, "in", *(const int64_t *)user, WIDE), tokens);
}
static dt_tensor smooth_segment(dt_graph *g, dt_tensor x, const void *user) /* (B,T,C) -> loss */
{
    dt_tensor table = dt__table_param(g, "out", *(const int64_t *)user, WIDE);
    return dt_cross_entropy(g, dt__matmul(g, x, table, 0, 1), dt_targets(g), smoothing);
}

/* 32 lanes and a butterfly. */
static float plain_sum(const float *x, int64_t n)
{
    float lane[32];
    memset(lane, 0, sizeof lane);
    for (int64_t i = 0; i < n; i++) lane[i % 32] = lane[i % 32] + x[i];
    for (int step = 16; step; step /= 2)
        for (int i = 0; i < step; i++) lane[i] = lane[i] + lane[i + step];
    return lane[0];
}
static float plain_tree(const float *x, int64_t n) { return n == 1 ? x[0] : plain_tree(x, n / 2) + plain_tree(x + n / 2, n / 2); }

static void check_entropy(int64_t vocabulary, int64_t shards)
{
    const dt_segment list[2] = { { "in", table_segment, &vocabulary }, { "out", smooth_segment, &vocabulary } };
    dt_model m = dt_model_segments(list, 2, vocabulary);
    rank *one = run_ranks(&m, shards, 1, 0);
    const dt__param *in = &one->net.params[0].is, *out = &one->net.params[1].is;
    float *tables = (float *)malloc(8 * (size_t)(vocabulary * WIDE)), *x = (float *)malloc(12 * (size_t)vocabulary), losses[BATCH * LENGTH], total;
    int64_t width = (vocabulary + shards - 1) / shards;
    if (!tables || !x || strcmp(in->name, "in.in") || out->shape.n[0] != vocabulary) tap_bail("not the model that was meant");
    dt__param_whole(&one->net.params[0].is, one->params + one->net.params[0].offset, tables);
    dt__param_whole(&one->net.params[1].is, one->params + one->net.params[1].offset, tables + vocabulary * WIDE);
    for (int r = 0; r < BATCH * LENGTH; r++) {
        const float *h = tables + one->tokens[0][r] * WIDE;
        float max = -1e30f, part[2][RANKS], log_sum, sum, even, *e = x + vocabulary, *d = e + vocabulary;
        int32_t target = one->targets[0][r];
        for (int64_t v = 0; v < vocabulary; v++) {
            x[v] = 0.0f;
            for (int c = 0; c < WIDE; c++) x[v] = dt__fmaf(h[c], tables[(vocabulary + v) * WIDE + c], x[v]);
            max = x[v] > max ? x[v] : max;
        }
        for (int64_t v = 0; v < vocabulary; v++) d[v] = x[v] - max, e[v] = ref_expf(d[v]);
        for (int64_t v = 0; v < shards; v++) {
            int64_t n = v * width + width > vocabulary ? vocabulary - v * width : width;
            part[0][v] = plain_sum(e + v * width, n), part[1][v] = plain_sum(d + v * width, n);
        }
        sum = plain_tree(part[0], shards);
        one->env.k->unary(DT__OP_LOG, &log_sum, &sum, 1, 0.0f);
        even = log_sum - plain_tree(part[1], shards) / (float)vocabulary;
        losses[r] = (1.0f - smoothing) * (log_sum - (x[target < 0 ? 0 : target] - max)) + smoothing * even;
        if (target < 0) losses[r] = 0.0f;
    }
    total = plain_sum(losses, BATCH * LENGTH);
    tap_ok(!memcmp(&total, one->loss, 4), "R5 R6 the loss over %d token ids in %d shards is that of the plain text: %g, %g", (int)vocabulary, (int)shards,
           (double)one->loss[0], (double)total);
    free(tables), free(x);
    close_ranks(one, 1);
    for (int ranks = 2; ranks <= shards; ranks *= 2) check_ranks("smoothed loss", &m, shards, ranks, 0);
}

/* loss = sum of x * (layernorm(x) + x W), x taken as a constant: their gradients are seed * x. */
static dt_tensor row_segment(dt_graph *g, dt_tensor x, const void *user)
{
    dt_tensor w = dt__param_rows(g, dt_param(g, "w", dt_shape2(WIDE, WIDE), DT_INIT_NORMAL, 0.1f), BATCH * LENGTH, 2);
    dt_tensor y = dt_add(g, dt_layernorm(g, x, "n", 1e-5f), dt_matmul(g, x, w, 0, 0));
    (void)user;
    return dt_loss(g, dt_mul(g, y, dt_detach(g, x)));
}

static void check_slices(int64_t shards)
{
    int64_t vocabulary = 37, rows = BATCH * LENGTH, each = rows / shards;
    const dt_segment list[2] = { { "in", table_segment, &vocabulary }, { "out", row_segment, NULL } };
    dt_model m = dt_model_segments(list, 2, vocabulary);
    rank *one = run_ranks(&m, shards, 1, 0);
    static float part[4][(2 + WIDE) * WIDE];
    float want[(2 + WIDE) * WIDE], stats[2 * BATCH * LENGTH], sink[WIDE], ones[WIDE], seed = 0.037f;
    int same = 1;
    memset(part, 0, sizeof part);
    for (int c = 0; c < WIDE; c++) ones[c] = 1.0f;
    seed = seed * ((float)rows / (float)(rows * WIDE)); /* the mean of as many terms as there are targets */
    for (int micro = 0; micro < MICROS; micro++) {
        const float *x = one->output[micro];
        for (int64_t r = 0; r < rows; r++) {
            const float *in[3] = { x + r * WIDE, ones, ones };
            float s[4] = { 0.0f, 0.0f, 1e-5f, 0.0f };
            one->env.k->row(DT__OP_LAYERNORM, sink, in, s, WIDE);
            memcpy(stats + 2 * r, s, 8);
        }
        for (int64_t r = 0; r < rows; r++)
            for (int c = 0; c < WIDE; c++) {
                float *to = part[r / each], dy = seed * x[r * WIDE + c], xhat = (x[r * WIDE + c] - stats[2 * r]) * stats[2 * r + 1];
                to[c] = dt__fmaf(dy, xhat, to[c]);
                to[WIDE + c] = to[WIDE + c] + dy;
                for (int i = 0; i < WIDE; i++) to[(2 + i) * WIDE + c] = dt__fmaf(x[r * WIDE + i], dy, to[(2 + i) * WIDE + c]);
            }
    }
    for (int i = 0; i < (2 + WIDE) * WIDE; i++) {
        float parts[4];
        for (int64_t v = 0; v < shards; v++) parts[v] = part[v][i];
        want[i] = plain_tree(parts, shards);
    }
    for (int32_t i = 1; i < one->net.param_count; i++) {
        const dt__net_param *p = &one->net.params[i];
        int place = strstr(p->is.name, "n.weight") ? 0 : strstr(p->is.name, "n.bias") ? WIDE : 2 * WIDE;
        same = same && p->slices == shards && !memcmp(one->set + slot_of(&one->net, p, 0), want + place, 4 * (size_t)dt_shape_count(p->is.shape));
    }
    tap_ok(same, "R7 gamma, beta and a router in %d row slices, chained over micro-batches, then TREE", (int)shards);
    close_ranks(one, 1);
}

/* ---- what is refused ------------------------------------------------------------------------------------------- */

static dt_tensor mixing_segment(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_linear_with(g, dt_softmax(g, dt_linear_with(g, x, "up", 8, 0.1f, DT_COLUMNS), DT_LAST), "down", WIDE, 0.1f, DT_ROWS);
}
static dt_tensor wide_segment(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_linear_with(g, x, "up", 8, 0.1f, DT_COLUMNS);
}
static dt_tensor end_segment(dt_graph *g, dt_tensor x, const void *user)
{
    return dt_cross_entropy(g, dt_linear(g, x, "out", *(const int64_t *)user), dt_targets(g), 0.0f);
}

static void refused(const dt_model *m, int64_t shards, int split, int64_t length, const char *says)
{
    dt__net net;
    dt_result r;
    memset(&net, 0, sizeof net);
    net.tensor_shards = shards, net.sequence_parallel = split;
    r = dt__net_open(&net, m, 1, length);
    tap_ok(r && strstr(dt_last_error(), says), "refused: %s", dt_last_error());
    dt__net_close(&net);
}

static void check_refused(void)
{
    int64_t vocabulary = 37;
    const dt_segment mixing[3] = { { "in", table_segment, &vocabulary }, { "mix", mixing_segment, NULL }, { "out", end_segment, &vocabulary } };
    const dt_segment wide[3] = { { "in", table_segment, &vocabulary }, { "wide", wide_segment, NULL }, { "out", end_segment, &vocabulary } };
    dt_model m = a_model(DT_GPT2), own = dt_model_segments(mixing, 3, 37), columns = dt_model_segments(wide, 3, 37);
    refused(&m, 8, 0, 8, "4 heads do not divide into 8 tensor shards: --tensor-shards one of 1, 2, 4");
    refused(&m, 3, 0, 8, "3 tensor shards: it is a power of two up to 1024");
    refused(&m, 4, 0, 7, "acts on 7 rows of a unit of work, which do not divide into 4 slices");
    m.vocabulary = 5;
    refused(&m, 4, 0, 8, "5 token ids are too few for 4 tensor shards");
    m = a_model(DT_LLAMA), m.kv_heads = 2;
    refused(&m, 4, 0, 8, "2 KV heads do not divide into 4 tensor shards: --tensor-shards one of 1, 2");
    m.kv_heads = 4, m.hidden = 38;
    refused(&m, 4, 0, 8, "38 hidden units do not divide into 4 tensor shards");
    m.experts = 2;
    refused(&m, 4, 0, 8, "38 hidden units of an expert do not divide into 4 tensor shards");
    refused(&own, 2, 0, 8, "SOFTMAX reads columns that are cut over tensor shards");
    refused(&columns, 2, 0, 8, "wide: a segment returns columns that are cut over tensor shards: end it with a linear with DT_ROWS");
    refused(&own, 2, 1, 8, "sequence parallelism and context shards cut the sequences of the model families");
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
    for (int64_t shards = 2; shards <= 4; shards *= 2) check_near("GPT-2 with experts", &m, shards);
    m.experts = 4, m.active = 2;
    for (int ranks = 2; ranks <= 4; ranks *= 2) check_experts("GPT-2", &m, 1, ranks);
    m.capacity = 0.7f;
    check_experts("GPT-2, drops", &m, 2, 2);
    m.capacity = 0.0f;
    m.dropout = 0.0f, m.experts = 0;
    for (int64_t shards = 2; shards <= 4; shards *= 2) check_near("GPT-2", &m, shards);
    m = a_model(DT_LLAMA);
    for (int64_t shards = 2; shards <= 4; shards *= 2) check_near("Llama", &m, shards);
    m.experts = 3, m.capacity = 1.1f;
    for (int64_t shards = 2; shards <= 4; shards *= 2) check_near("Llama with experts", &m, shards);
    m.experts = 8, m.active = 3;
    check_experts("Llama", &m, 4, 4);
    m.capacity = 0.0f, m.active = 1;
    check_experts("Llama", &m, 1, 2);
    for (int64_t vt = 1; vt <= 4; vt *= 2)
        for (int64_t groups = 1; groups <= 3; groups++) check_columns(31, 24 * groups, groups, vt);
    check_columns(1000, 12 * 96, 3, 4); /* more than one task, at odd places */
    check_table(37, 5, 2), check_table(37, 5, 4), check_table(1000, 33, 4);
    for (int64_t shards = 2; shards <= 4; shards *= 2) check_entropy(37, shards), check_entropy(1000, shards);
    for (int64_t shards = 2; shards <= 4; shards *= 2) check_slices(shards);
    check_refused();
    return tap_done();
}
