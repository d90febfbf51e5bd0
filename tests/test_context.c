/* test_context.c: attention over context slices (R2, R9) against plain scalar text, bit for bit, forward and backward:
 * each way to share the context leaves among ranks, causal and not, grouped heads, odd sizes, dropout, each instruction
 * set, one and two threads; ranks are threads that hand each other blocks, and what they send is counted. Then against
 * attention over the whole sequence, which rounds differently. And a trainer whose losses and predictions do not depend
 * on the layout.
 *
 *     cc -O2 -I.. test_context.c -lm -lpthread && ./a.out */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "reference.h"
#include "tap.h"

enum { MOST_RANKS = 8, MOST_SLICES = 32, MOST_WIDTH = 40 };

static __thread uint32_t seed = 12345;
static int64_t below(int64_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (int64_t)((seed >> 8) % (uint32_t)n);
}
static float *values(int64_t n)
{
    float *x = (float *)malloc(4 * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) x[i] = (float)(below(2001) - 1000) / 700.0f;
    return x;
}

typedef struct shape {
    int64_t vc, b, n, h, hk, d; /* context shards, samples, rows of a slice, heads, heads of the keys, their width */
    int causal, drop;
} shape;
static int64_t slices_of(const shape *z) { return 2 * z->vc; }
static int64_t length_of(const shape *z) { return slices_of(z) * z->n; }

/* Whole sequences: q, o, dout, dq (b,T,h*d), k, v, dk, dv (b,T,hk*d), max, sum (b,h,T). */
typedef struct whole {
    float *q, *k, *v, *o, *dout, *dq, *dk, *dv, *max, *sum;
    dt__rng rng[4];
} whole;

static whole open_whole(const shape *z)
{
    whole w;
    int64_t rows = z->b * length_of(z), c = z->h * z->d, kc = z->hk * z->d;
    w.q = values(rows * c), w.o = values(rows * c), w.dout = values(rows * c), w.dq = values(rows * c);
    w.k = values(rows * kc), w.v = values(rows * kc), w.dk = values(rows * kc), w.dv = values(rows * kc);
    w.max = values(rows * z->h), w.sum = values(rows * z->h);
    for (int i = 0; i < 4; i++) w.rng[i] = dt__rng_make(7, 3, (uint32_t)i + 5, 2, 1);
    return w;
}
static void close_whole(whole *w)
{
    free(w->q), free(w->k), free(w->v), free(w->o), free(w->dout), free(w->dq), free(w->dk), free(w->dv);
    free(w->max), free(w->sum);
}

/* ---- the reference ---- */

static const float *row_of(const shape *z, const float *x, int64_t heads, int64_t b, int64_t head, int64_t t)
{
    return x + ((b * length_of(z) + t) * heads + head) * z->d;
}
static int drops(const shape *z, const whole *w, int64_t b, int64_t h, int64_t i, int64_t j)
{
    int64_t t = length_of(z);
    return z->drop && dt__rng_word(&w->rng[b], (uint64_t)((h * t + i) * t + j)) < 0x40000000u;
}
static float dot(const float *x, const float *y, int64_t n)
{
    float sum = 0.0f;
    for (int64_t c = 0; c < n; c++) sum = fmaf(x[c], y[c], sum);
    return sum;
}
static const float scale = 0.3f, drop_scale = 1.0f / 0.75f;

/* A node of a tree over slices; absent: nothing is seen there. */
typedef struct node {
    int there;
    float max, sum, x[2 * MOST_WIDTH];
} node;

static void slice_of_keys(const shape *z, const whole *w, int64_t b, int64_t h, int64_t i, int64_t slice, node *to)
{
    int64_t first = slice * z->n, end = first + z->n, kh = h / (z->h / z->hk);
    float score[64], p[64];
    memset(to, 0, sizeof *to);
    if (z->causal && end > i + 1) end = i + 1;
    if (!(to->there = end > first)) return;
    for (int64_t j = first; j < end; j++)
        score[j - first] = dot(row_of(z, w->q, z->h, b, h, i), row_of(z, w->k, z->hk, b, kh, j), z->d) * scale;
    to->max = ref_row_max(score, end - first);
    for (int64_t j = 0; j < end - first; j++) p[j] = ref_exp(score[j] - to->max);
    to->sum = ref_row_sum(p, end - first);
    for (int64_t j = first; j < end; j++) {
        float keep = drops(z, w, b, h, i, j) ? 0.0f : z->drop ? p[j - first] * drop_scale : p[j - first];
        for (int64_t c = 0; c < z->d; c++) to->x[c] = fmaf(keep, row_of(z, w->v, z->hk, b, kh, j)[c], to->x[c]);
    }
}

/* The right one of two neighbours joins the left one. */
static void join(node *left, const node *right, int softmax)
{
    float max = left->max > right->max ? left->max : right->max, x, y;
    if (!right->there) return;
    if (!left->there) {
        *left = *right;
        return;
    }
    x = softmax ? ref_exp(left->max - max) : 1.0f, y = softmax ? ref_exp(right->max - max) : 1.0f;
    left->max = max;
    left->sum = fmaf(y, right->sum, x * left->sum);
    for (int c = 0; c < 2 * MOST_WIDTH; c++)
        left->x[c] = softmax ? fmaf(y, right->x[c], x * left->x[c]) : left->x[c] + right->x[c];
}
static void tree(node *nodes, int64_t count, int softmax)
{
    for (int64_t near = 1; near < count; near *= 2)
        for (int64_t i = 0; i < count; i += 2 * near) join(&nodes[i], &nodes[i + near], softmax);
}

static void forward_reference(const shape *z, whole *w)
{
    static node nodes[MOST_SLICES];
    for (int64_t r = 0; r < z->b * z->h * length_of(z); r++) {
        int64_t i = r % length_of(z), h = r / length_of(z) % z->h, b = r / length_of(z) / z->h;
        for (int64_t s = 0; s < slices_of(z); s++) slice_of_keys(z, w, b, h, i, s, &nodes[s]);
        tree(nodes, slices_of(z), 1);
        w->max[r] = nodes[0].max, w->sum[r] = nodes[0].sum;
        for (int64_t c = 0; c < z->d; c++)
            w->o[((b * length_of(z) + i) * z->h + h) * z->d + c] = nodes[0].x[c] / nodes[0].sum;
    }
}

/* Of query i and key j: the dropped probability, and the gradient of the score. */
static void pair_of(const shape *z, const whole *w, int64_t b, int64_t h, int64_t i, int64_t j, float *p, float *ds)
{
    int64_t kh = h / (z->h / z->hk), at = (b * z->h + h) * length_of(z) + i;
    const float *dout = row_of(z, w->dout, z->h, b, h, i);
    float score = dot(row_of(z, w->q, z->h, b, h, i), row_of(z, w->k, z->hk, b, kh, j), z->d) * scale;
    float prob = ref_exp(score - w->max[at]) / w->sum[at], grad = dot(dout, row_of(z, w->v, z->hk, b, kh, j), z->d);
    int drop = drops(z, w, b, h, i, j);
    if (z->drop) grad = drop ? 0.0f : grad * drop_scale;
    *ds = prob * (grad - ref_row_dot(dout, row_of(z, w->o, z->h, b, h, i), z->d)) * scale;
    *p = z->drop ? drop ? 0.0f : prob * drop_scale : prob;
}

static void backward_reference(const shape *z, whole *w)
{
    static node nodes[MOST_SLICES];
    int64_t t = length_of(z), group = z->h / z->hk;
    for (int64_t r = 0; r < z->b * z->h * t; r++) { /* dq: partials over slices of keys */
        int64_t i = r % t, h = r / t % z->h, b = r / t / z->h;
        memset(nodes, 0, sizeof nodes);
        for (int64_t j = 0; j < (z->causal ? i + 1 : t); j++) {
            node *to = &nodes[j / z->n];
            float p, ds;
            pair_of(z, w, b, h, i, j, &p, &ds);
            to->there = 1;
            for (int64_t c = 0; c < z->d; c++) to->x[c] = fmaf(ds, row_of(z, w->k, z->hk, b, h / group, j)[c], to->x[c]);
        }
        tree(nodes, slices_of(z), 0);
        memcpy(w->dq + ((b * t + i) * z->h + h) * z->d, nodes[0].x, 4 * (size_t)z->d);
    }
    for (int64_t r = 0; r < z->b * z->hk * t; r++) { /* dk, dv: over slices of queries, in each a chain over heads */
        int64_t j = r % t, kh = r / t % z->hk, b = r / t / z->hk;
        memset(nodes, 0, sizeof nodes);
        for (int64_t s = 0; s < slices_of(z); s++)
            for (int64_t k = 0; k < group * z->n; k++) {
                int64_t h = kh * group + k / z->n, i = s * z->n + k % z->n;
                float p, ds;
                if (z->causal && j > i) continue;
                pair_of(z, w, b, h, i, j, &p, &ds);
                nodes[s].there = 1;
                for (int64_t c = 0; c < z->d; c++) {
                    nodes[s].x[c] = fmaf(ds, row_of(z, w->q, z->h, b, h, i)[c], nodes[s].x[c]);
                    nodes[s].x[MOST_WIDTH + c] = fmaf(p, row_of(z, w->dout, z->h, b, h, i)[c], nodes[s].x[MOST_WIDTH + c]);
                }
            }
        tree(nodes, slices_of(z), 0);
        memcpy(w->dk + ((b * t + j) * z->hk + kh) * z->d, nodes[0].x, 4 * (size_t)z->d);
        memcpy(w->dv + ((b * t + j) * z->hk + kh) * z->d, nodes[0].x + MOST_WIDTH, 4 * (size_t)z->d);
    }
}

/* ---- ranks: threads that read each other's blocks ---- */

typedef struct parcel {
    const float *data;
    int64_t count;
    int taken;
} parcel;
typedef struct group {
    pthread_mutex_t lock;
    pthread_cond_t change;
    parcel parcel[MOST_RANKS][MOST_RANKS][4 * MOST_RANKS];
    int posted[MOST_RANKS][MOST_RANKS], taken[MOST_RANKS][MOST_RANKS];
} group;

typedef struct rank {
    const shape *z;
    const whole *in;
    whole *out;
    group *g;
    const dt__kernels *k;
    int number, ranks, workers;
    int64_t sent[2]; /* floats, forward and backward */
    int backward, wrong, under_way; /* messages: one of keys and values, one of gradients */
    pthread_t thread;
} rank;

static parcel *sent_parcel(const rank *r, const dt__sendrecv *x) { return &r->g->parcel[r->number][x->dest][x->ticket]; }
static void post(rank *r, dt__sendrecv *x)
{
    parcel *p;
    pthread_mutex_lock(&r->g->lock);
    r->wrong |= x->dest == r->number || r->under_way == 2;
    r->under_way++, x->ticket = (uint32_t)r->g->posted[r->number][x->dest]++;
    p = sent_parcel(r, x);
    p->data = x->from, p->count = x->given, p->taken = 0;
    r->sent[r->backward] += x->given;
    pthread_cond_broadcast(&r->g->change);
    pthread_mutex_unlock(&r->g->lock);
}
static void settle(rank *r, dt__sendrecv *x)
{
    pthread_mutex_lock(&r->g->lock);
    while (!sent_parcel(r, x)->taken) pthread_cond_wait(&r->g->change, &r->g->lock);
    r->under_way--;
    pthread_mutex_unlock(&r->g->lock);
}
static void take(rank *r, float *to, int64_t count, int from)
{
    group *g = r->g;
    parcel *p;
    pthread_mutex_lock(&g->lock);
    while (g->taken[from][r->number] == g->posted[from][r->number]) pthread_cond_wait(&g->change, &g->lock);
    p = &g->parcel[from][r->number][g->taken[from][r->number]++];
    r->wrong |= p->count != count;
    memcpy(to, p->data, 4 * (size_t)(p->count < count ? p->count : count));
    p->taken = 1;
    pthread_cond_broadcast(&g->change);
    pthread_mutex_unlock(&g->lock);
}
static void message(void *user, int finish, dt__sendrecv *x)
{
    rank *r = (rank *)user;
    if (finish) take(r, x->to, x->taken, x->source), settle(r, x);
    else post(r, x);
}

/* Rows of this rank, (leaves, b, two slices), from or to the rows of whole sequences; width floats each. */
static void move_rows(const rank *r, float *own, int64_t ld, float *all, int64_t width, int give)
{
    const shape *z = r->z;
    int64_t leaves = z->vc / r->ranks, n = z->n;
    for (int64_t i = 0; i < leaves * z->b * 2 * n; i++) {
        int64_t leaf = r->number * leaves + i / (2 * n) / z->b, b = i / (2 * n) % z->b, k = i % (2 * n);
        int64_t t = k < n ? leaf * n + k : (slices_of(z) - 1 - leaf) * n + k - n;
        float *a = own + i * ld, *w = all + (b * length_of(z) + t) * width;
        memcpy(give ? w : a, give ? a : w, 4 * (size_t)width);
    }
}

static void *run_rank(void *context)
{
    rank *r = (rank *)context;
    const shape *z = r->z;
    int64_t leaves = z->vc / r->ranks, rows = leaves * z->b * 2 * z->n, c = z->h * z->d, kc = z->hk * z->d;
    int64_t ld = c + 2 * kc + 3, floats;
    float *x = values(rows * ld), *dx = values(rows * ld), *o = values(rows * c), *dout = values(rows * c), *stats;
    dt__attention a;
    dt__rng rng[64];
    dt_graph g;
    dt__env env;
    dt__call call;
    dt__node op;
    dt__sliced sizes;
    memset(&op, 0, sizeof op), memset(&a, 0, sizeof a), memset(&g, 0, sizeof g), memset(&env, 0, sizeof env), memset(&call, 0, sizeof call);
    g.context_shards = z->vc, g.own_leaves = leaves, g.first_leaf = leaves * r->number, g.tensor_shards = 1;
    for (int64_t i = 0; i < leaves * z->b; i++) rng[i] = r->in->rng[i % z->b];
    stats = values(2 * rows * z->h);
    a.b = leaves * z->b, a.t = a.s = a.room = 2 * z->n, a.h = z->h, a.hk = z->hk, a.d = z->d;
    a.q = x, a.k = x + c, a.v = a.k + kc, a.ld = a.ldk = a.lddq = a.lddk = ld, a.o = o, a.ldo = a.lddo = c;
    a.row_max = stats, a.row_sum = stats + rows * z->h;
    a.scale = scale, a.causal = z->causal;
    a.drop_threshold = z->drop ? 0x40000000u : 0, a.drop_scale = drop_scale, a.rng = rng;
    move_rows(r, x, ld, r->in->q, c, 0);
    move_rows(r, x + c, ld, r->in->k, kc, 0);
    move_rows(r, x + c + kc, ld, r->in->v, kc, 0);
    move_rows(r, dout, c, r->in->dout, c, 0);
    env.k = r->k, env.peers.message = message, env.peers.user = r;
    floats = dt__sliced_of(&sizes, &g, &a, NULL, 0);
    floats = dt__max(floats, dt__sliced_of(&sizes, &g, &a, NULL, 1));
    env.sliced = values(floats);
    if (dt__pool_open(&env.pool, r->workers) || dt__pool_reserve(env.pool, r->k->attention_scratch(a.s, a.d)))
        tap_bail("%s", dt_last_error());
    call.g = &g, call.n = &op, call.env = &env;
    dt__sliced_run(&call, &a);
    r->backward = 1;
    a.dout = dout, a.dq = dx, a.dk = dx + c, a.dv = a.dk + kc;
    dt__sliced_run(&call, &a);
    move_rows(r, o, c, r->out->o, c, 1);
    move_rows(r, dx, ld, r->out->dq, c, 1);
    move_rows(r, dx + c, ld, r->out->dk, kc, 1);
    move_rows(r, dx + c + kc, ld, r->out->dv, kc, 1);
    dt__pool_close(&env.pool);
    free(x), free(dx), free(o), free(dout), free(stats), free(env.sliced);
    return NULL;
}

/* Floats that a rank sends: its block and those that it passes on; back from it two nodes of half a block each to every
 * owner, or of all of it where no mask hides any. */
static void check_sent(const rank *r)
{
    const shape *z = r->z;
    int64_t block = 2 * z->vc / r->ranks * z->b * z->n * 2 * z->hk * z->d, others = r->ranks - 1;
    if (r->sent[0] != others * block || r->sent[1] != others * block * (z->causal ? 2 : 3) || r->wrong)
        tap_ok(0, "rank %d of %d sends %lld and %lld floats", r->number, r->ranks, (long long)r->sent[0],
               (long long)r->sent[1]);
}

static int same_bits(const float *a, const float *b, int64_t n) { return !memcmp(a, b, 4 * (size_t)n); }

/* All ranks of a group on one instruction set. */
static int run_group(const shape *z, const whole *in, const dt__kernels *k, int ranks, int workers)
{
    static rank r[MOST_RANKS];
    group *g = (group *)calloc(1, sizeof *g);
    whole out = open_whole(z);
    int64_t rows = z->b * length_of(z), c = z->h * z->d, kc = z->hk * z->d;
    int ok;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->change, NULL);
    memset(r, 0, sizeof r);
    for (int i = 0; i < ranks; i++) {
        r[i].z = z, r[i].in = in, r[i].out = &out, r[i].g = g, r[i].k = k;
        r[i].number = i, r[i].ranks = ranks, r[i].workers = workers;
        if (pthread_create(&r[i].thread, NULL, run_rank, &r[i])) tap_bail("no thread");
    }
    for (int i = 0; i < ranks; i++) pthread_join(r[i].thread, NULL), check_sent(&r[i]);
    ok = same_bits(out.o, in->o, rows * c) && same_bits(out.dq, in->dq, rows * c) &&
         same_bits(out.dk, in->dk, rows * kc) && same_bits(out.dv, in->dv, rows * kc);
    if (!ok)
        tap_note("%s: o %d dq %d dk %d dv %d", k->name, same_bits(out.o, in->o, rows * c),
                 same_bits(out.dq, in->dq, rows * c), same_bits(out.dk, in->dk, rows * kc),
                 same_bits(out.dv, in->dv, rows * kc));
    close_whole(&out);
    free(g);
    return ok;
}

/* The largest difference to attention over whole sequences, over the largest value. */
static double far(const float *a, const float *b, int64_t n)
{
    double most = 0.0, top = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double difference = fabs((double)a[i] - (double)b[i]);
        most = difference > most ? difference : most;
        top = fabs((double)a[i]) > top ? fabs((double)a[i]) : top;
    }
    return most / top;
}
static double far_from_whole(const shape *z, const whole *in)
{
    whole w = open_whole(z);
    dt__attention a;
    dt_pool *pool = NULL;
    const dt__kernels *k;
    int64_t rows = z->b * length_of(z), c = z->h * z->d, kc = z->hk * z->d;
    double most, next;
    memset(&a, 0, sizeof a);
    a.b = z->b, a.t = a.s = a.room = length_of(z), a.h = z->h, a.hk = z->hk, a.d = z->d;
    a.q = in->q, a.k = in->k, a.v = in->v, a.ld = a.ldo = a.lddo = a.lddq = c, a.ldk = a.lddk = kc;
    a.o = w.o, a.row_max = w.max, a.row_sum = w.sum, a.scale = scale, a.causal = z->causal;
    a.drop_threshold = z->drop ? 0x40000000u : 0, a.drop_scale = drop_scale, a.rng = in->rng;
    a.dq = w.dq, a.dk = w.dk, a.dv = w.dv;
    if (dt__choose_kernels(&k) || dt__pool_open(&pool, 1) || dt__pool_reserve(pool, k->attention_scratch(a.s, a.d)))
        tap_bail("%s", dt_last_error());
    k->attention(pool, &a);
    a.dout = in->dout;
    k->attention(pool, &a);
    dt__pool_close(&pool);
    most = far(w.o, in->o, rows * c);
    next = far(w.dq, in->dq, rows * c), most = next > most ? next : most;
    next = far(w.dk, in->dk, rows * kc), most = next > most ? next : most;
    next = far(w.dv, in->dv, rows * kc), most = next > most ? next : most;
    close_whole(&w);
    return most;
}

static void check(const shape *z, int small)
{
    whole in = open_whole(z);
    double distance;
    forward_reference(z, &in);
    backward_reference(z, &in);
    for (int i = 0; i < DT__ISA_COUNT; i++) {
        const dt__kernels *k = dt__isa_table(i);
        if (!k || !dt__isa_runs(i)) continue;
        for (int ranks = 1; ranks <= z->vc && ranks <= MOST_RANKS; ranks *= 2)
            for (int workers = 1; workers <= (small ? 2 : 1); workers++)
                tap_ok(run_group(z, &in, k, ranks, workers),
                       "R9 %s: Vc %d, %d x %d rows, %d heads (%d) of %d, %s%s: %d ranks x %d threads", k->name, (int)z->vc,
                       (int)z->b, (int)z->n, (int)z->h, (int)z->hk, (int)z->d, z->causal ? "causal" : "full",
                       z->drop ? ", dropout" : "", ranks, workers);
    }
    distance = far_from_whole(z, &in);
    tap_ok(distance < 1e-5, "as attention over the whole sequence: %.1e", distance);
    close_whole(&in);
}

/* ---- the trainer: the program calls itself with: train [launcher's options] -------------------------------------- */

enum { LENGTH = 16, VOCABULARY = 50, ASKED = 5 };

static dt_result fetch(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    (void)user;
    for (int64_t i = 0; i < LENGTH; i++) {
        ((int32_t *)input)[i] = (int32_t)((sample * 31 + i * 7 + split) % VOCABULARY);
        ((int32_t *)target)[i] = (sample + i) % 6 ? (int32_t)((sample * 17 + i * 5 + 3) % VOCABULARY) : -1;
    }
    return DT_OK;
}

/* Losses, validation loss, logits of samples, tokens of the second mixture's experts and the hash. */
static int train(int argc, char **argv)
{
    dt_recipe r = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_source s;
    dt_trainer *t = NULL;
    float logits[ASKED][LENGTH][VOCABULARY];
    int32_t ids[ASKED][LENGTH], targets[LENGTH];
    uint32_t sum = 0, bits;
    float tokens[8] = {0};
    dt_result e = dt_launch(&argc, &argv);
    memset(&s, 0, sizeof s);
    s.samples[DT_TRAIN] = 100, s.samples[DT_VALIDATION] = 21, s.inputs = s.targets = LENGTH;
    s.input_type = s.target_type = DT_I32, s.fetch = fetch;
    r.source = &s, r.model.vocabulary = VOCABULARY;
    r.model.layers = 2, r.model.heads = 4, r.model.width = 32;
    r.batch = 8, r.micro_batch = 4, r.data_shards = 2, r.tensor_shards = 2, r.context_shards = 4, r.steps = 4;
    l.output.quiet = 1, l.threads = 1;
    if (!e) e = dt_args(&argc, &argv, &r, &l);
    if (!e) e = dt_trainer_open(&t, &r, &l);
    if (!e) e = dt_trainer_run(t, &info);
    for (int i = 0; i < ASKED && !e; i++) e = fetch(NULL, DT_VALIDATION, 3 * i, ids[i], targets);
    if (!e) e = dt_trainer_predict(t, ids, ASKED, logits[0][0], LENGTH * VOCABULARY);
    if (!e && r.model.experts) e = dt_trainer_experts(t, 1, tokens);
    if (e) return dt_trainer_close(&t), dt_fail("train");
    for (int i = 0; i < ASKED * LENGTH * VOCABULARY; i++) memcpy(&bits, logits[0][0] + i, 4), sum = sum * 31 + bits;
    if (dt_trainer_is_root(t))
        printf("loss %a validation %a logits %g %u auxiliary %a tokens %g %g %g %g sha256 %s\n", (double)info.loss,
               (double)info.validation, (double)logits[ASKED - 1][LENGTH - 1][VOCABULARY - 1], sum,
               (double)info.auxiliary, (double)tokens[0], (double)tokens[1], (double)tokens[2], (double)tokens[3],
               dt_trainer_hash(t));
    dt_trainer_close(&t);
    return 0;
}

static void said(const char *self, const char *options, char *text, size_t size)
{
    char command[1024];
    FILE *p;
    snprintf(command, sizeof command, "timeout 60 '%s' train %s 2>&1", self, options);
    if (!(p = popen(command, "r"))) tap_bail("cannot run %s", command);
    text[fread(text, 1, size - 1, p)] = 0;
    pclose(p);
}

/* Two recipes, with context shards and without, whose bits differ but whose numbers are near. */
static void check_near(const char *self, const char *options, const char *what)
{
    char text[2][512], words[128];
    double number[2][3];
    for (int i = 0; i < 2; i++) {
        snprintf(words, sizeof words, "--ranks 2 %s %s", options, i ? "--context-shards 1" : "--cp 2");
        said(self, words, text[i], sizeof text[i]);
        if (sscanf(text[i], "loss %la validation %la logits %lf", &number[i][0], &number[i][1], &number[i][2]) != 3)
            tap_note("%s", text[i]);
    }
    tap_ok(strcmp(text[0], text[1]) && fabs(number[0][0] - number[1][0]) < 1e-5 &&
               fabs(number[0][1] - number[1][1]) < 1e-5 && fabs(number[0][2] - number[1][2]) < 1e-4,
           "%swithout context shards other bits, but loss %g, %g, validation %g, %g, last logit %g, %g", what,
           number[0][0], number[1][0], number[0][1], number[1][1], number[0][2], number[1][2]);
}

static void check_layouts(const char *self, const char *recipe, const char *const *layouts, size_t count)
{
    char want[512], got[512], words[256];
    snprintf(words, sizeof words, "--ranks 1 %s", recipe);
    said(self, words, want, sizeof want);
    tap_ok(strstr(want, "sha256 ") != NULL, "1 rank %s: %.70s", recipe, want);
    for (size_t i = 0; i < count; i++) {
        snprintf(words, sizeof words, "%s %s", layouts[i], recipe);
        said(self, words, got, sizeof got);
        if (!tap_ok(!strcmp(got, want), "R12 %s: the same losses, predictions and hash", words)) tap_note("%s", got);
    }
}

static void check_trainer(const char *self)
{
    static const char *const layouts[] = {
        "--ranks 2 --cp 2", "--ranks 4 --cp 4", "--ranks 4 --cp 2", "--ranks 4 --cp 2 --tp 2 --sequence-parallel",
        "--ranks 4 --cp 2 --pp 2", "--ranks 8 --cp 2 --zero 3 --tp 2", "--ranks 4 --cp 4 --recompute full --offload",
        "--ranks 2", "--ranks 4 --cp 2 --order CPTD",
#ifndef DT_NO_THREADS
        "--ranks 2 --cp 2 --launch threads",
#endif
    };
    static const char *const mixtures[] = {
        "--ranks 2 --cp 2",
        "--ranks 2 --ep 2",
        "--ranks 4 --cp 2 --ep 2",
        "--ranks 4 --cp 4 --recompute full",
        "--ranks 4 --cp 2 --pp 2 --zero 1",
        "--ranks 8 --cp 2 --ep 2 --tp 2 --sequence-parallel --zero 3",
    };
    check_layouts(self, "", layouts, sizeof layouts / sizeof *layouts);
    check_layouts(self, "--experts 4 --capacity 1.1 --balance 0.1", mixtures, sizeof mixtures / sizeof *mixtures);
    check_near(self, "", "");
    check_near(self, "--dropout 0.2", "R16 dropout, ");
    check_near(self, "--experts 4 --balance 0", "R10 experts with room for all, ");
}

int main(int argc, char **argv)
{
    static const shape shapes[] = {
        {2, 2, 3, 2, 2, 7, 1, 0}, {2, 1, 5, 3, 1, 13, 0, 1}, {4, 2, 1, 4, 2, 16, 1, 1},
        {4, 1, 7, 2, 1, 33, 0, 0}, {8, 3, 2, 1, 1, 1, 1, 0}, {8, 1, 4, 6, 3, 5, 1, 1},
        {16, 1, 1, 2, 2, 3, 0, 1}, {2, 1, 33, 2, 2, 31, 1, 1}, {4, 1, 17, 3, 3, 8, 1, 0},
    };
    unsigned saved;
    if (argc > 1 && !strcmp(argv[1], "train")) return train(argc, argv);
    check_trainer(argv[0]);
    saved = dt__fp_enter();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check(&shapes[i], i < 3);
    dt__fp_leave(saved);
    return tap_done();
}
