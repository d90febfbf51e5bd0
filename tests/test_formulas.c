/* test_formulas.c: bytes of memory and bytes sent, of every rank, against formulas that are written here from the
 * model's sizes alone; calls of tensor parallelism counted; what is allocated against what was planned; ranks that
 * disagree.
 *
 *     cc -O2 -I.. test_formulas.c -lm -lpthread && ./a.out */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Allocations that are alive, in bytes without what dt__alloc adds to each for its alignment. */
enum { COUNTED = 16, ALIGNMENT = 64 + (int)sizeof(void *) };
static int64_t alive;
void *test_malloc(size_t size)
{
    char *p = (char *)malloc(size + COUNTED);
    if (!p) return NULL;
    *(size_t *)(void *)p = size;
    __atomic_add_fetch(&alive, (int64_t)size - ALIGNMENT, __ATOMIC_RELAXED);
    return p + COUNTED;
}
void test_free(void *p)
{
    if (!p) return;
    __atomic_sub_fetch(&alive, (int64_t) * (size_t *)(void *)((char *)p - COUNTED) - ALIGNMENT, __ATOMIC_RELAXED);
    free((char *)p - COUNTED);
}
#define DT_MALLOC(size) test_malloc(size)
#define DT_FREE(p)      test_free(p)
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tap.h"

/* The model of all runs, a GPT-2 with tied tables, is of the recipe's sizes; ids are below VOCABULARY. */
enum { VOCABULARY = 100, MOST_RANKS = 8, SEGMENTS = 8, KINDS = 4 };

#include "tokens.h"

/* ---- one rank: the program calls itself with: measure [options of recipe and layout] [launcher's options] ---- */

/* dt__peers.combine and .exchange, counted. rows: those with channels, not counts, that went to other ranks. */
typedef struct hook {
    dt__peers real;
    int ranks, rank; /* that share experts */
    int64_t calls[KINDS], floats[KINDS], trades, rows;
} hook;
static void counted_trade(void *user, float *to, const int32_t *take, const float *from, const int32_t *give,
                          int64_t bins, int64_t width)
{
    hook *h = (hook *)user;
    h->trades++;
    for (int p = 0; p < h->ranks && width > 1; p++)
        h->rows += p == h->rank ? 0 : give[(p + 1) * bins] - give[p * bins];
    h->real.exchange(h->real.user, to, take, from, give, bins, width);
}
static void counted_combine(void *user, int kind, float *to, const float *from, int64_t count)
{
    hook *h = (hook *)user;
    h->calls[kind]++;
    h->floats[kind] += count;
    h->real.combine(h->real.user, kind, to, from, count);
}

static void passed_message(void *user, int finish, dt__sendrecv *x)
{
    hook *h = (hook *)user;
    h->real.message(h->real.user, finish, x);
}

/* What dt_comm_alloc gave this rank, in all communicators. */
static int64_t shared_bytes(const dt_trainer *t)
{
    const dt__engine *e = &t->e;
    const dt_comm *all[14];
    int64_t bytes = 0;
    all[0] = e->comm, all[1] = e->ranks.data, all[2] = e->ranks.group, all[3] = e->ranks.replicas;
    all[4] = e->tensor, all[5] = e->copy, all[6] = e->out[0].comm, all[7] = e->out[1].comm, all[8] = e->expert;
    all[9] = e->expert_ranks.data, all[10] = e->expert_ranks.group, all[11] = e->expert_ranks.replicas;
    all[12] = e->same, all[13] = e->context;
    for (int i = 0; i < 14; i++) {
        int seen = !all[i];
        for (int k = 0; k < i; k++) seen = seen || all[k] == all[i];
        for (const dt__region *g = seen ? NULL : all[i]->regions; g; g = g->next)
            if ((const char *)all[i]->area != g->base) bytes += g->stride;
    }
    return bytes;
}

static void say_rank(const dt_trainer *t, int64_t allocated, const int64_t *sent, const int64_t *rows,
                     const hook *forward, const hook *step)
{
    static const char *const kinds[KINDS] = {"sum", "max", "scatter", "gather"};
    const dt__engine *e = &t->e;
    dt_memory m = dt_trainer_memory(t);
    char line[4000];
    int n = 0;
#define SAY(...) n += snprintf(line + n, sizeof line - (size_t)n, __VA_ARGS__)
    SAY("rank %d: weights=%lld gradients=%lld optimizer=%lld activations=%lld buffers=%lld cache=%lld total=%lld ",
        dt_comm_rank(t->comm), (long long)m.weights, (long long)m.gradients, (long long)m.optimizer,
        (long long)m.activations, (long long)m.buffers, (long long)m.cache, (long long)m.total);
    SAY("offloaded=%lld allocated=%lld sent=%lld again=%lld temp=%lld scratch=%lld ", (long long)m.offloaded,
        (long long)allocated, (long long)sent[0], (long long)sent[1], (long long)e->p.net.temp,
        (long long)dt__net_scratch(&e->p.net, e->k) * t->pool->workers);
    for (int c = 0; c < e->p.shape.pipe.chunks; c++)
        SAY("begin%d=%d end%d=%d slots%d=%d ", c, e->p.chunks[c].begin, c, e->p.chunks[c].end, c, e->p.chunks[c].slots);
    for (int q = 0; q < e->p.net.count; q++) {
        int gathers = 0;
        for (int32_t i = 0; i < e->p.program.count; i++)
            gathers +=
                e->p.program.list[i].op == DT_GATHER && e->p.program.list[i].bucket < 0 && e->p.program.list[i].segment == q;
        SAY("gathers%d=%d ", q, gathers);
    }
    for (int k = 0; k < KINDS; k++)
        SAY("forward_%s=%lld step_%s=%lld floats_%s=%lld ", kinds[k], (long long)forward->calls[k], kinds[k],
            (long long)(step->calls[k] - forward->calls[k]), kinds[k],
            (long long)(step->floats[k] - forward->floats[k]));
    SAY("trades=%lld rows=%lld rows_again=%lld ", (long long)(step->trades - forward->trades), (long long)rows[0],
        (long long)rows[1]);
#undef SAY
    printf("%s\n", line);
    fflush(stdout);
}

typedef struct setup {
    dt_recipe recipe;
    dt_layout layout;
    dt_source source;
    dt_trainer *t;
    int64_t allocated; /* since it began to open; counts where ranks are processes */
} setup;

static dt_result open_rank(setup *s, int argc, char **argv)
{
    dt_result e = dt_launch(&argc, &argv);
    memset(s, 0, sizeof *s);
    s->recipe = dt_recipe_default();
    s->layout = dt_layout_default();
    s->recipe.model = dt_model_gpt2("nano");
    s->recipe.model.vocabulary = VOCABULARY;
    s->recipe.source = &s->source;
    s->recipe.steps = 100;
    s->layout.threads = 1, s->layout.output.quiet = 1, s->layout.output.sample_length = 0;
    if (!e) e = dt_args(&argc, &argv, &s->recipe, &s->layout);
    s->source.user = &s->recipe.sequence;
    s->source.samples[DT_TRAIN] = 64;
    s->source.samples[DT_VALIDATION] =
        (s->recipe.micro_batch ? s->recipe.micro_batch : s->recipe.batch) / s->recipe.data_shards;
    s->source.inputs = s->source.targets = s->recipe.sequence;
    s->source.input_type = s->source.target_type = DT_I32;
    s->source.fetch = fetch;
    s->allocated = -__atomic_load_n(&alive, __ATOMIC_RELAXED);
    if (!e) e = dt_trainer_open(&s->t, &s->recipe, &s->layout);
    if (!e) s->allocated += __atomic_load_n(&alive, __ATOMIC_RELAXED) + shared_bytes(s->t);
    return e;
}

/* One unit of validation, so that calls of forward are known, then two steps, then a line of names and numbers. */
static int measure(int argc, char **argv)
{
    setup s;
    dt_trainer *t;
    dt_step_info info = dt_step_info_zero();
    hook forward, step;
    int64_t sent[2] = {0, 0}, rows[2] = {0, 0};
    float loss;
    dt_result e = open_rank(&s, argc, argv);
    if (e) return dt_fail("open");
    memset(&step, 0, sizeof step);
    t = s.t;
    step.real = t->e.env.peers;
    t->e.env.peers.combine = counted_combine;
    step.ranks = (int)t->layout.ep, step.rank = t->e.p.mesh.at[DT_AXIS_DATA] % step.ranks;
    t->e.env.peers.exchange = counted_trade, t->e.env.peers.message = passed_message;
    t->e.env.peers.user = &step;
    e = dt_trainer_evaluate(t, 0, &loss);
    forward = step;
    for (int i = 0; i < 2 && !e; i++) {
        if (i) step = forward;
        e = dt_trainer_step(t, &info);
        sent[i] = info.sent_bytes;
        rows[i] = step.rows - forward.rows;
    }
    if (e) return dt_trainer_close(&t), dt_fail("step");
    say_rank(t, s.allocated, sent, rows, &forward, &step);
    dt_trainer_close(&t);
    return 0;
}

/* A rank of a pipeline of 2 stages whose program differs from that of its partner: the first reduction is a gather. */
static int disagree(int argc, char **argv)
{
    setup s;
    dt_step_info info = dt_step_info_zero();
    dt_result e = open_rank(&s, argc, argv);
    if (e) return dt_fail("open");
    for (int32_t i = 0; i < s.t->e.p.program.count && dt_comm_rank(s.t->comm) == 3; i++) {
        dt_instr *k = &s.t->e.p.program.list[i];
        if (k->op != DT_REDUCE) continue;
        k->op = DT_GATHER;
        break;
    }
    e = dt_trainer_step(s.t, &info);
    printf("rank %d: %s: %s\n", dt_comm_rank(s.t->comm), dt_result_name(e), e ? dt_last_error() : "");
    fflush(stdout);
    dt_trainer_close(&s.t);
    return e != DT_E_PEER;
}

/* Ranks 0 and 2, 1 and 3 have a communicator together. The latter differ, or rank 3 is in the communicator of all. */
static int split(int argc, char **argv)
{
    const char *kind = argv[2];
    dt_comm *all = NULL, *pair = NULL;
    float data[64];
    int rank;
    dt_result e = dt_comm_open(&all, &argc, &argv);
    if (e) return dt_fail("open");
    rank = dt_comm_rank(all);
    memset(data, 0, sizeof data);
    e = dt_comm_split(all, rank % 2, &pair);
    if (!e) e = dt_all_reduce(pair, data, 10, DT_SUM);
    if (e) return dt_fail("split");
    if (!strcmp(kind, "op"))
        e = rank == 3 ? dt_broadcast(pair, data, 50, 0) : dt_all_reduce(pair, data, 50, DT_SUM);
    else if (!strcmp(kind, "count"))
        e = dt_all_gather(pair, data, data + 32, rank == 3 ? 7 : 5);
    else if (!strcmp(kind, "across"))
        e = rank == 1 ? dt_all_reduce(pair, data, 50, DT_SUM) : dt_barrier(all);
    printf("rank %d: %s: %s\n", rank, dt_result_name(e), e ? dt_last_error() : "");
    fflush(stdout);
    dt_comm_close(&pair);
    dt_comm_close(&all);
    return 0;
}

/* ---- the parent ---- */

typedef struct run {
    int status;
    char options[400], text[40000];
} run;

static const char *self;

static run *start(const char *words)
{
    run *r = (run *)calloc(1, sizeof *r);
    char command[1000];
    size_t used;
    FILE *p;
    snprintf(r->options, sizeof r->options, " %s ", words);
    snprintf(command, sizeof command, "timeout 60 '%s' %s 2>&1", self, words);
    p = popen(command, "r");
    if (!p) tap_bail("cannot run %s", command);
    used = fread(r->text, 1, sizeof r->text - 1, p);
    r->text[used] = 0;
    r->status = WEXITSTATUS(pclose(p));
    return r;
}

/* What a rank said under a name; -1: nothing. */
static int64_t said(const run *r, int rank, const char *name)
{
    char word[64];
    const char *line, *end, *at;
    snprintf(word, sizeof word, "rank %d: ", rank);
    line = strstr(r->text, word);
    if (!line) return -1;
    end = strchr(line, '\n');
    snprintf(word, sizeof word, " %s=", name);
    at = strstr(line, word);
    return at && (!end || at < end) ? strtoll(at + strlen(word), NULL, 10) : -1;
}
static int64_t said_of(const run *r, int rank, const char *name, int number)
{
    char word[64];
    snprintf(word, sizeof word, "%s%d", name, number);
    return said(r, rank, word);
}

/* ---- the formulas ----
 * Every parameter is padded to whole blocks of 1024 floats, and so is each tensor shard of one that is cut (R11). */
enum { BLOCK = 1024, FLOAT = 4, MOMENTS = 8 }; /* AdamW: two floats of state per weight */

static int64_t padded(int64_t floats, int64_t to) { return (floats + to - 1) / to * to; }

/* Sizes and degrees of a run, as its options give them, and the place of a rank. */
typedef struct layout {
    const run *r;
    int64_t layers, heads, width, length, rows, micros, shards, vt, vc; /* of the recipe */
    int64_t tokens, leaves; /* of a unit of work here: those of this rank's context leaves */
    int each, sp, zero, recompute, offload, horizon, zero_bubble, bytes_of_bucket, overlap;
    int ranks, dp, cp, pp, tp, group, chunks;
    int rank, d, c, p, t; /* order DCPT */
    int64_t lo, hi;    /* this rank's data shards */
    int64_t experts, active, room; /* of a block, of a token; tokens of a context leaf of a unit that an expert takes */
    int ep;
} layout;

static int64_t option(const run *r, const char *name, int64_t otherwise)
{
    char word[64];
    const char *at;
    snprintf(word, sizeof word, " --%s ", name);
    at = strstr(r->options, word);
    return at ? strtoll(at + strlen(word), NULL, 10) : otherwise;
}
static int given(const run *r, const char *words) { return strstr(r->options, words) != NULL; }

static layout layout_of(const run *r, int rank)
{
    layout l;
    int64_t batch = option(r, "batch", 0), micro = option(r, "micro-batch", batch), each, more;
    memset(&l, 0, sizeof l);
    l.r = r;
    l.layers = option(r, "layers", 2), l.heads = option(r, "heads", 2), l.width = option(r, "width", 64);
    l.length = option(r, "sequence", 0), l.shards = option(r, "data-shards", 0), l.vt = option(r, "tensor-shards", 1);
    l.rows = micro / l.shards, l.micros = batch / micro;
    l.each = given(r, "--accumulation each") && l.micros > 1;
    l.sp = given(r, "--sequence-parallel");
    l.recompute = given(r, "--recompute full") ? 2 : given(r, "--recompute selective");
    l.offload = given(r, "--offload"), l.horizon = (int)option(r, "horizon", 1);
    l.zero_bubble = given(r, "zero-bubble");
    l.chunks = given(r, "interleaved") ? (int)option(r, "chunks", 2) : 1;
    l.bytes_of_bucket = (int)option(r, "bucket", 25000000);
    l.ranks = (int)option(r, "ranks", 1), l.tp = (int)option(r, "tp", 1), l.pp = (int)option(r, "pp", 1);
    l.vc = option(r, "context-shards", 1), l.cp = (int)option(r, "cp", 1), l.leaves = l.vc / l.cp;
    l.tokens = l.rows * l.length / l.cp;
    l.dp = l.ranks / l.tp / l.pp / l.cp;
    l.zero = l.dp > 1 ? (int)option(r, "zero", 0) : 0;
    l.overlap = l.dp > 1 && given(r, "--overlap on");
    l.group = l.zero ? (int)option(r, "zero-group", l.dp) : 1;
    l.rank = rank, l.t = rank % l.tp, l.p = rank / l.tp % l.pp, l.c = rank / l.tp / l.pp % l.cp;
    l.d = rank / l.tp / l.pp / l.cp;
    l.experts = option(r, "experts", 0), l.active = option(r, "active", 2), l.ep = (int)option(r, "ep", 1);
    l.room = l.rows * l.length / l.vc;
    if (given(r, "--capacity 0.5")) l.room = (l.room * l.active + 2 * l.experts - 1) / (2 * l.experts);
    each = l.shards / l.dp, more = l.shards % l.dp; /* R1: longer runs first */
    l.lo = l.d * each + (l.d < more ? l.d : more), l.hi = l.lo + each + (l.d < more);
    return l;
}

/* R1: the branches of the tree over shards that a run [lo, hi) of them is made of. */
static int64_t partial_sums(int64_t lo, int64_t hi)
{
    int64_t n = 0, branch;
    for (; lo < hi; lo += branch, n++)
        for (branch = 1; lo % (2 * branch) == 0 && lo + 2 * branch <= hi;) branch *= 2;
    return n;
}

/* Floats of what a rank has of a parameter: of all tensor shards (whole) or of its own. cut: of a dimension of `over`
 * that is cut, of width each / over; 0: the parameter is not cut. */
static int64_t of_param(const layout *l, int64_t floats, int64_t over, int whole)
{
    int64_t own = whole ? l->vt : l->vt / l->tp;
    if (!over || l->vt == 1) return padded(floats, BLOCK);
    return own * padded(floats / over * ((over + l->vt - 1) / l->vt), BLOCK);
}
static int64_t of_table(const layout *l, int whole) { return of_param(l, VOCABULARY * l->width, VOCABULARY, whole); }

/* Experts of a block, in two products with biases: each is stored alone (R11); all, or those of a rank. */
static int64_t of_experts(const layout *l, int64_t q, int whole)
{
    int64_t c = l->width, one = 2 * padded(4 * c * c, BLOCK) + padded(4 * c, BLOCK) + padded(c, BLOCK);
    if (!l->experts || q == 0 || q == l->layers + 1) return 0;
    return l->experts / (whole ? 1 : l->ep) * one;
}

/* Parameters of segment q without the table of tokens, which segments 0 and last share, and without experts. */
static int64_t of_segment(const layout *l, int64_t q, int whole)
{
    int64_t c = l->width, norm = of_param(l, c, 0, whole);
    if (q == 0) return of_param(l, l->length * c, 0, whole); /* positions */
    if (q == l->layers + 1) return 2 * norm;
    if (l->experts) /* the router in the place of the MLP */
        return 2 * norm + of_param(l, 3 * c * c, 3 * c, whole) + of_param(l, 3 * c, 3 * c, whole) +
               of_param(l, c * c, c, whole) + norm + 2 * norm + of_param(l, c * l->experts, 0, whole);
    return 2 * norm + of_param(l, 3 * c * c, 3 * c, whole) + of_param(l, 3 * c, 3 * c, whole) + /* q, k, v */
           of_param(l, c * c, c, whole) + norm + 2 * norm +                          /* its projection; norm */
           of_param(l, 4 * c * c, 4 * c, whole) + of_param(l, 4 * c, 4 * c, whole) + /* up */
           of_param(l, 4 * c * c, 4 * c, whole) + norm;                              /* down */
}
static int is_tied(const layout *l, int64_t q) { return q == 0 || q == l->layers + 1; }

/* R2: every gradient is a sum per context leaf. R7: those of gamma, beta and the biases of row-parallel products are
 * sums over row slices, of which a rank has all, or with sequence parallelism its own. Sums but the first are beside the
 * set, once: of all segments, or where a leaf is complete after a unit of one at a time. */
static int64_t of_slices(const layout *l, int64_t q)
{
    int64_t slices = l->sp ? l->vt / l->tp : l->vt;
    int64_t params = q == 0 ? 0 : q == l->layers + 1 ? 2 : 6;
    int64_t leaf = of_segment(l, q, 0) + (is_tied(l, q) ? of_table(l, 0) : 0);
    leaf += l->ep * of_experts(l, q, 0); /* a sum for the tokens of each rank that shares them */
    return (l->leaves - 1) * leaf + l->leaves * (slices - 1) * params * padded(l->width, BLOCK);
}

/* Gradients are reduced in buckets, from the end of the model: a stage's segments together, up to --bucket bytes and
 * with ZeRO 3 one segment each, and a bucket for each use of the table. */
typedef struct bucket {
    int64_t floats;
    int param, tied, group; /* param: the parameters are here, not only a later use of them */
    int copies;             /* of experts that ranks share: one sum for the tokens of each */
} bucket;
typedef struct store {
    bucket b[4 * SEGMENTS];
    int count;
    int64_t params, slots, once, buffer, slices, window; /* floats; once: one sum of everything */
} store;

static void add_bucket(store *s, int64_t floats, int param, int tied, int group, int copies)
{
    bucket *b = &s->b[s->count++];
    b->floats = floats, b->param = param, b->tied = tied, b->group = group, b->copies = copies;
    s->slots += floats * copies;
    s->once += floats;
    s->params += param ? floats : 0;
}

static store store_of(const layout *l)
{
    store s;
    int has_table = 0;
    memset(&s, 0, sizeof s);
    for (int c = l->chunks - 1; c >= 0; c--) {
        int64_t begin = said_of(l->r, l->rank, "begin", c), end = said_of(l->r, l->rank, "end", c), open = end;
        for (int64_t q = end - 1; q >= begin; q--) {
            int64_t floats = 0, experts = 0, window = of_segment(l, q, 0) + of_experts(l, q, 0);
            window += is_tied(l, q) ? of_table(l, 0) : 0;
            for (int64_t k = q; k < open; k++) floats += of_segment(l, k, 0), experts += of_experts(l, k, 0);
            s.window = window > s.window ? window : s.window;
            if (FLOAT * (floats + experts) < (l->zero > 2 ? 1 : l->bytes_of_bucket) && q > begin) continue;
            add_bucket(&s, floats + (l->ep > 1 ? 0 : experts), 1, 0, (int)q, 1);
            if (experts && l->ep > 1) add_bucket(&s, experts, 1, 0, (int)q, l->ep);
            for (int64_t k = open - 1; k >= q; k--)
                if (is_tied(l, k)) add_bucket(&s, of_table(l, 0), !has_table, 1, (int)q, 1), has_table = 1;
            open = q;
        }
        for (int64_t q = begin; q < end; q++) {
            if (!l->each && l->micros > 1)
                s.slices += of_slices(l, q);
            else if (of_slices(l, q) > s.slices)
                s.slices = of_slices(l, q);
        }
    }
    for (int i = 0; i < s.count; i++) {
        int64_t together = 0;
        for (int k = 0; k < s.count; k++) together += s.b[k].group == s.b[i].group ? s.b[k].floats * s.b[k].copies : 0;
        s.buffer = together > s.buffer ? together : s.buffer;
    }
    /* With overlap the next segments' gradients go to a second buffer while those of the first are reduced, and the next
     * segment's weights to a second window. */
    if (l->overlap && s.b[0].group != s.b[s.count - 1].group) s.buffer *= 2;
    if (l->overlap && l->zero > 2) s.window *= 2;
    return s;
}

/* Members of a group of n that have pieces of bucket i: of experts, those with the same ones. */
static int members(const store *s, int i, int n) { return n > s->b[i].copies ? n / s->b[i].copies : 1; }

/* The piece of bucket i that member j of a group of n has: its blocks as even as they can be, those that are left over
 * with another member in each bucket; of tied ones with the first, so that all uses are cut alike. */
static int64_t piece(const store *s, int i, int j, int n)
{
    int64_t blocks = s->b[i].floats / BLOCK;
    int among = members(s, i, n), turn = s->b[i].tied ? 0 : i % among;
    j = among > 1 ? j / s->b[i].copies : 0;
    return (blocks / among + ((j - turn + among) % among < blocks % among)) * BLOCK;
}
static int64_t own_floats(const layout *l, const store *s, int params)
{
    int64_t floats = 0;
    for (int i = 0; i < s->count; i++)
        if (!params || s->b[i].param) floats += piece(s, i, l->d % l->group, l->group);
    return floats;
}

/* The most rows that a rank's experts get in a unit: of a token as many as it has experts here, of all ranks that share
 * them; with a capacity at most as many as they take. */
static int64_t rows_of_owner(const layout *l)
{
    int64_t own = l->experts / l->ep, most = l->active < own ? l->active : own, room = l->leaves * own * l->room;
    return l->ep * (l->tokens * most < room ? l->tokens * most : room);
}

/* Values of one unit that segment q keeps for backward, n tokens of width h, in floats. A block: what its norms give (n
 * h each, and mean and deviation of a row), q, k, v (3 n h), attention's output and per row and head two numbers for
 * its backward, what is added to the residual (n h), both sides of the GELU (4 n h each); its probabilities are not
 * kept. Of this only norms and residual are whole on all ranks of a tensor group: n (3 h + 4 + (12 h + 2 a) / t) which
 * in bytes is the 10 + 24/t of Korthikanti et al. for fp32 without masks of dropout and without 5 a s / h (their 10:
 * inputs of norms, which are outputs of segments here, and masks). With sequence parallelism norms are split, but the
 * rows that their products gather are kept whole: n (2 h + (13 h + 4 + 2 a) / t). Head: its norm, or the gathered rows,
 * the logits, and 7 numbers per row. Zero-bubble also keeps gradients that those of
 * weights need later: of both sides of the block (n h each), the residual (n h), q, k, v (3 n h), the GELU (4 n h); in
 * the head of the logits and the norm. Here only with t = 1. */
static int64_t kept(const layout *l, int64_t q)
{
    int64_t n = l->tokens, h = l->width, a = l->heads, t = l->tp, wide = VOCABULARY;
    if (q == 0) return l->vc > 1 ? padded(n, 16) : 0; /* positions; the tokens are with the batch */
    if (q <= l->layers) {
        int64_t again = l->recompute == 1 ? (n * h + 2 * n * a) / t : 0; /* attention */
        int64_t later = l->zero_bubble ? 10 * n * h : 0;
        if (l->experts) { /* the rows of the MLP are those of this rank's experts: of k experts per token, or more */
            int64_t e = l->leaves * l->experts, k = l->active, here = rows_of_owner(l); /* e: experts, once for each leaf */
            int64_t rows = n * k < e * l->room ? n * k : e * l->room;
            int64_t table = padded(2 * e + 1 + 3 * n * k, 16) + (l->ep > 1 ? padded(3 * e + 1, 16) : 0);
            /* probabilities, how they came to be weights, the balance loss's two, and what came back */
            return 7 * n * h + 4 * n + 2 * n * a + table + n * l->experts + n + 2 * n * k + 16 + 16 + 9 * here * h +
                   rows * h;
        }
        if (l->sp) return 2 * n * h + (13 * n * h + 4 * n + 2 * n * a) / t - again;
        return 3 * n * h + 4 * n + (12 * n * h + 2 * n * a) / t - again + later;
    }
    if (l->vt > 1) wide = (VOCABULARY + l->vt - 1) / l->vt * (l->vt / t);
    return n * h + 2 * n / (l->sp ? t : 1) + n * wide + 7 * n +
           (l->zero_bubble ? n * wide + n * h : 0);
}

/* Output of segment q in floats; each place begins at a multiple of 16. */
static int64_t output(const layout *l, int64_t q)
{
    return q > l->layers ? 16 : l->tokens * l->width / (l->sp ? l->tp : 1);
}

/* Units in flight at a stage: GPipe has all, 1F1B and zero-bubble at most as many as stages from here on. */
static int64_t in_flight(const layout *l, int chunk)
{
    int64_t units = (l->hi - l->lo) * l->micros;
    if (l->chunks > 1) return said_of(l->r, l->rank, "slots", chunk);
    if (l->zero_bubble) return said_of(l->r, l->rank, "slots", 0);
    if (given(l->r, "gpipe")) return units;
    return l->pp - l->p < units ? l->pp - l->p : units;
}

/* ---- memory ---- */

/* Complete branches of a tree of n leaves, 1 where a leaf has come. */
static int branches(const char *come, int64_t n)
{
    int all = 1;
    for (int64_t i = 0; i < n; i++) all &= come[i];
    return all ? 1 : n == 1 ? 0 : branches(come, n / 2) + branches(come + n / 2, n / 2);
}
/* Nodes of a tree over 2 x ranks runs of slices that are there together, a new one included, the most on any rank. The
 * runs of rank r come r steps after those of the own one or before: `each` leaves early in the sequence, as many late. */
static int nodes(int ranks, int64_t each, int after)
{
    int most = 0;
    for (int at = 0; at < ranks; at++) {
        char come[64];
        memset(come, 0, sizeof come);
        for (int64_t i = 0; i < 2 * each * ranks; i++) {
            int rank = (at + (after ? 1 : ranks - 1) * (int)(i / (2 * each))) % ranks;
            int64_t k = i % (2 * each), leaf = rank * each + k;
            int there = branches(come, 2 * each * ranks) + 1;
            if (k >= each) leaf = 2 * each * ranks - (rank + 1) * each + k - each;
            come[leaf] = 1;
            most = there > most ? there : most;
        }
    }
    return most;
}

/* What attention over context slices works in, of the heads of one tensor shard: blocks of keys and values, two where
 * they travel; forward nodes (o, and maximum and sum of each row and head) of the tree over slices of keys; backward
 * those of dq; of dk and dv a sum per level inside a block, nodes of the tree over ranks' queries, and messages of up to
 * three halves of a block: one on its way and one that came. */
static int64_t of_context(const layout *l)
{
    int64_t w = l->width / l->vt, block = 2 * l->tokens * w, forward, backward, levels = 0, over_keys;
    if (l->vc == 1) return 0;
    while ((int64_t)1 << levels < l->leaves) levels++;
    over_keys = nodes(l->cp, l->leaves, 0);
    forward = block * (l->cp > 1 ? 2 : 1) + over_keys * l->tokens * (w + 2 * l->heads / l->vt);
    backward = block * (l->cp > 1 ? 2 : 1) + block * 3 / 2 * (l->cp > 1 ? 2 : 1) + levels * block / (2 * l->leaves) +
               nodes(l->cp, 1, 1) * block + over_keys * l->tokens * w;
    return forward > backward ? forward : backward;
}

/* Sets of gradients, the same on every rank: the most partial sums that a run of shards has when the sum of its newest
 * shard joins them. That is 1 + log2(Vd / dp) where runs are branches of the tree (R4). */
static int64_t sets(const layout *of)
{
    int64_t most = 1;
    for (int rank = 0; rank < of->ranks; rank++) {
        layout l = layout_of(of->r, rank);
        for (int64_t shard = l.lo; shard < l.hi; shard++) {
            int64_t together = partial_sums(l.lo, shard) + 1;
            most = together > most ? together : most;
        }
    }
    return most;
}

static dt_memory expected(const layout *l)
{
    dt_memory m;
    store s = store_of(l);
    int64_t widest = l->tokens * l->width / (l->sp ? l->tp : 1), most = 0, blocks = 0, units = 0, tables = 0;
    int buffered = l->shards == l->dp && (l->each || (l->micros == 1 && l->zero > 1)), total = buffered || l->each;
    memset(&m, 0, sizeof m);
    m.weights = FLOAT * (l->zero > 2 ? own_floats(l, &s, 1) : s.params);
    m.gradients = FLOAT * ((buffered ? s.buffer : s.slots * sets(l)) + s.slices);
    if (total) m.gradients += FLOAT * (l->zero > 1 ? own_floats(l, &s, 0) : s.once);
    m.optimizer = MOMENTS * (l->zero ? own_floats(l, &s, 1) : s.params);
    for (int64_t q = 0; q < l->layers + 2; q++) {
        most = kept(l, q) > most ? kept(l, q) : most;
        blocks += (of_segment(l, q, 1) + of_experts(l, q, 1)) / BLOCK;
    }
    blocks += of_table(l, 1) / BLOCK;
    for (int c = 0; c < l->chunks; c++) {
        int64_t begin = said_of(l->r, l->rank, "begin", c), end = said_of(l->r, l->rank, "end", c), slot = 0;
        if (begin) slot += output(l, begin - 1); /* the input comes from another stage */
        for (int64_t q = begin; q < end; q++) {
            slot += output(l, q) * (l->zero_bubble ? 2 : 1) + (l->recompute < 2 ? kept(l, q) : 0);
            tables += is_tied(l, q);
        }
        units += FLOAT * slot * in_flight(l, c);
    }
    *(l->offload ? &m.offloaded : &m.activations) = units;
    if (l->offload) m.activations += FLOAT * (l->horizon + 3) * widest; /* the ring */
    if (l->recompute == 2) m.activations += FLOAT * most;
    m.activations += FLOAT * (said(l->r, l->rank, "temp") + 2 * widest); /* scratch of the plans; two gradients */
    m.activations += FLOAT * of_context(l);
    m.buffers = said(l->r, l->rank, "scratch") + FLOAT * blocks;
    if (l->vc > 1) m.buffers += 2 * FLOAT * l->tokens; /* tokens and targets of the own leaves */
    if (l->zero > 2) m.buffers += FLOAT * s.window;
    if (l->pp > 1) m.buffers += 2 * FLOAT * DT__OUTBOX * widest;
    if (tables) m.buffers += 2 * FLOAT * of_table(l, 0); /* two uses while they are added */
    m.buffers +=
        2 * FLOAT * l->length * l->rows * (3 * (l->hi - l->lo) * l->micros + 1); /* 3 batches, 1 unit: validation */
    if (l->vt > 1) {                                                             /* a parameter put together */
        int64_t longest = 4 * l->width * l->width;
        m.buffers += FLOAT * (longest > VOCABULARY * l->width ? longest : VOCABULARY * l->width);
    }
    if (l->experts) m.buffers += FLOAT * 4 * l->width * l->width * l->experts; /* likewise */
    if (l->ep > 1) /* rows on their way: of a unit, or of a sample of text, which is a whole sequence */
        m.buffers += FLOAT * (padded(l->ep + 1, 16) + (l->cp + l->rows - 1) / l->rows * rows_of_owner(l) * l->width);
    m.total = m.weights + m.gradients + m.optimizer + m.activations + m.buffers;
    return m;
}

/* Planned, but not to the byte what is allocated: shared memory comes in pages (4 arrays at most), the pieces of ZeRO 3
 * as large as the largest of the group (a block per bucket), the threads' scratch in 4096 bytes. Allocated, but not
 * planned: lists, whose length depends on the number of segments, parameters, instructions and samples, not on their
 * width: graphs and plans, parameters, program, data, threads. */
enum { LISTS = 240000 }; /* with two locks of stores, of 5 kB each, and a name of the engine for each parameter */
static int64_t unplanned(const run *r, int rank)
{
    return said(r, rank, "allocated") - said(r, rank, "total") - said(r, rank, "offloaded");
}

static int same_number(const layout *l, const char *what, int64_t want)
{
    int64_t got = said(l->r, l->rank, what);
    if (got != want) tap_note("rank %d, %s: %lld, not %lld", l->rank, what, (long long)got, (long long)want);
    return got == want;
}

static const char common[] = "measure --layers 3 --heads 4 --launch processes --overlap off"; /* the last word counts */

static run *measured(const char *options)
{
    char words[400];
    run *r;
    snprintf(words, sizeof words, "%s %s", common, options);
    r = start(words);
    if (r->status) tap_note("status %d: %s", r->status, r->text);
    return r;
}

static void check_memory(const run *r, const char *options)
{
    int fine = !r->status, ranks = (int)option(r, "ranks", 1);
    int64_t most = 0;
    for (int rank = 0; rank < ranks && !r->status; rank++) {
        layout l = layout_of(r, rank);
        dt_memory m = expected(&l);
        int64_t lists = unplanned(r, rank);
        fine &= same_number(&l, "weights", m.weights);
        fine &= same_number(&l, "gradients", m.gradients);
        fine &= same_number(&l, "optimizer", m.optimizer);
        fine &= same_number(&l, "activations", m.activations);
        fine &= same_number(&l, "buffers", m.buffers);
        fine &= same_number(&l, "offloaded", m.offloaded);
        fine &= same_number(&l, "total", m.total);
        most = lists > most ? lists : most;
        fine &= lists >= 0 && lists <= LISTS;
    }
    if (!tap_ok(fine, "memory: %s", options)) tap_note("up to %lld bytes are not in the plan", (long long)most);
}

/* ---- traffic ----
 * Bytes that a rank sends, summed over its peers. An all-reduce of S is a reduce-scatter and an all-gather: each peer
 * gets the piece that it adds up and the sum of this rank's piece, (n - 2) piece + S, which is 2 S (n-1)/n where pieces
 * are equal; at most 2048 floats go whole to each peer, S (n-1), which saves a round. */
enum { EAGER = 2048 };
static int64_t reduced_piece(int64_t floats, int n, int j)
{
    int64_t blocks = padded(floats, BLOCK) / BLOCK, low = blocks * j / n * BLOCK, high = blocks * (j + 1) / n * BLOCK;
    return (high < floats ? high : floats) - (low < floats ? low : floats);
}
static int64_t all_reduce_bytes(int64_t floats, int n, int j, int eager)
{
    if (n == 1) return 0;
    if (eager && floats <= EAGER) return FLOAT * (n - 1) * floats;
    return FLOAT * (floats + (n - 2) * reduced_piece(floats, n, j));
}

/* Of gradients: all-reduces of every bucket, or reduce-scatters in the group and all-reduces of the own piece across
 * groups; once a step, or with accumulation `each` once a micro-batch. A rank that has several partial sums sends all
 * of them (R1). */
static int64_t gradient_bytes(const layout *l, const store *s)
{
    int64_t bytes = 0, parts = partial_sums(l->lo, l->hi), n = l->group, j = l->d % l->group;
    for (int i = 0; i < s->count && l->dp > 1; i++) {
        int among = l->dp / s->b[i].copies, place = l->d / s->b[i].copies; /* those with the same experts */
        int64_t floats = s->b[i].floats, own = reduced_piece(floats, among, place);
        if (members(s, i, (int)n) == 1)
            bytes += FLOAT * (parts * (floats - own) + (among - 1) * own);
        else
            bytes += FLOAT * parts * (floats - piece(s, i, (int)j, (int)n)) +
                     all_reduce_bytes(piece(s, i, (int)j, (int)n), l->dp / l->group, l->d / l->group, 0);
    }
    return bytes * (l->each ? l->micros : 1);
}

/* Of weights: after the update each member's pieces of them to the others (ZeRO 1, 2), or before a segment's work its
 * piece of the segment's (ZeRO 3), as often as the step program gathers. */
static int64_t weight_bytes(const layout *l, const store *s)
{
    int64_t floats = 0, n = l->group, j = l->d % l->group;
    for (int i = 0; i < s->count && l->zero && l->zero < 3; i++)
        if (s->b[i].param) floats += (members(s, i, (int)n) - 1) * piece(s, i, (int)j, (int)n);
    for (int i = 0; i < s->count && l->zero > 2; i++) {
        int64_t sent = (members(s, i, (int)n) - 1) * piece(s, i, (int)j, (int)n);
        if (!s->b[i].tied)
            floats += said_of(l->r, l->rank, "gathers", s->b[i].group) * sent;
        else if (s->b[i].param) /* every use gathers it from here */
            for (int k = 0; k < s->count; k++)
                if (s->b[k].tied) floats += said_of(l->r, l->rank, "gathers", s->b[k].group) * sent;
    }
    return FLOAT * floats;
}

/* Of activations and gradients between stages, b s h floats per unit, boundary and direction; and the gradient of the
 * table's use here to the stage that has the other. */
static int64_t pipeline_bytes(const layout *l, const store *s)
{
    int64_t units = (l->hi - l->lo) * l->micros, bytes = 0, uses = 0;
    for (int c = 0; c < l->chunks && l->pp > 1; c++) {
        int first = c == 0 && l->p == 0, last = c == l->chunks - 1 && l->p == l->pp - 1;
        bytes += units * FLOAT * output(l, 1) * (!first + !last);
    }
    for (int i = 0; i < s->count; i++) uses += s->b[i].tied;
    for (int i = 0; i < s->count && uses == 1 && l->pp > 1; i++)
        if (s->b[i].tied) bytes += FLOAT * piece(s, i, l->d % l->group, l->group);
    return bytes;
}

/* Of context parallelism: per unit and block of the model, the keys and values (2 b s h / (cp tp)) that a rank has and
 * those that it passes on, forward and backward, and as many floats of their gradients to their owners; and per data
 * shard an all-reduce of every bucket. */
static int64_t context_bytes(const layout *l, const store *s)
{
    int64_t units = (l->hi - l->lo) * l->micros, leaves = (l->hi - l->lo) * (l->each ? l->micros : 1), bytes = 0;
    int64_t block = FLOAT * 2 * l->tokens * l->width / l->tp, times = 3 + (l->recompute == 1);
    for (int k = 0; k < l->chunks; k++)
        for (int64_t q = said_of(l->r, l->rank, "begin", k); q < said_of(l->r, l->rank, "end", k); q++)
            bytes += is_tied(l, q) ? 0 : units * times * (l->cp - 1) * block;
    for (int i = 0; i < s->count; i++) bytes += leaves * all_reduce_bytes(s->b[i].floats * s->b[i].copies, l->cp, l->c, 1);
    return bytes;
}

/* Of tensor parallelism, per unit: b s h floats in 2 all-reduces forward and 2 backward per block, 1 after the table of
 * tokens, 1 for the gradient of the head's input; of the loss 1 maximum and 2 sums per row. With sequence parallelism
 * each is a reduce-scatter and an all-gather, but the table's is a sum of which a rank keeps its rows; and per leaf the
 * gradients of parameters that acted on its rows alone are summed (R7). */
static int64_t tensor_bytes(const layout *l)
{
    int64_t units = (l->hi - l->lo) * l->micros, n = l->tokens, bytes = 0, blocks = 0, ends[2] = {0, 0},
            c = n * l->width;
    int64_t leaves = l->hi - l->lo, half = FLOAT * c / l->tp * (l->tp - 1);
    if (l->tp == 1) return 0;
    leaves *= l->leaves * (l->each ? l->micros : 1);
    for (int k = 0; k < l->chunks; k++)
        for (int64_t q = said_of(l->r, l->rank, "begin", k); q < said_of(l->r, l->rank, "end", k); q++)
            *(is_tied(l, q) ? &ends[q > 0] : &blocks) += 1;
    bytes += blocks * 4 * (l->sp ? 2 * half : all_reduce_bytes(c, l->tp, l->t, 1));
    bytes += ends[0] * all_reduce_bytes(c, l->tp, l->t, 1) + ends[0] * (l->sp ? half : 0);
    bytes += ends[1] * (l->sp ? 2 * half : all_reduce_bytes(c, l->tp, l->t, 1));
    bytes += ends[1] * (all_reduce_bytes(n, l->tp, l->t, 1) + all_reduce_bytes(2 * n, l->tp, l->t, 1));
    bytes *= units;
    if (l->sp) bytes += leaves * (6 * blocks + 2 * ends[1]) * all_reduce_bytes(l->width, l->tp, l->t, 1);
    return bytes;
}

/* Of experts, per unit and block: each row to its owner and back, forward and backward, C floats, where the owner is
 * another rank; forward, which full recompute does twice, the rows of each expert first. */
static int64_t expert_bytes(const layout *l, const char *rows)
{
    int64_t units = (l->hi - l->lo) * l->micros, blocks = 0, tables = l->recompute == 2 ? 2 : 1;
    if (l->ep == 1) return 0;
    for (int k = 0; k < l->chunks; k++)
        for (int64_t q = said_of(l->r, l->rank, "begin", k); q < said_of(l->r, l->rank, "end", k); q++)
            blocks += !is_tied(l, q);
    return FLOAT * (said(l->r, l->rank, rows) * l->width +
                    units * blocks * tables * (l->ep - 1) * l->leaves * l->experts / l->ep);
}

/* And the step's own: the number of valid targets (8 bytes to each rank), the losses of the data shards, with experts
 * their auxiliary losses of every segment, and the sums
 * of blocks of which the norm is made, where a rank has not all of the gradient. */
static int64_t step_bytes(const layout *l)
{
    int64_t blocks = of_table(l, 1) / BLOCK;
    int most = l->group > l->ep ? l->group : l->ep, copy = most * l->pp * l->tp;
    int place = (l->d % most * l->pp + l->p) * l->tp + l->t;
    for (int64_t q = 0; q < l->layers + 2; q++) blocks += (of_segment(l, q, 1) + of_experts(l, q, 1)) / BLOCK;
    return 8 * (l->ranks - 1) + all_reduce_bytes(l->shards * l->vc, l->ranks, l->rank, 1) +
           (l->experts ? all_reduce_bytes(l->shards * l->vc * (l->layers + 2), l->ranks, l->rank, 1) : 0) +
           all_reduce_bytes(blocks, copy, place, 1);
}

/* In all: what a step sends beside the step's own numbers, over all ranks. */
static int64_t check_traffic(const run *r, const char *options)
{
    int fine = !r->status, ranks = (int)option(r, "ranks", 1);
    int64_t all = 0;
    for (int rank = 0; rank < ranks && !r->status; rank++) {
        layout l = layout_of(r, rank);
        store s = store_of(&l);
        int64_t sent = gradient_bytes(&l, &s) + weight_bytes(&l, &s) + pipeline_bytes(&l, &s) + tensor_bytes(&l) +
                       context_bytes(&l, &s);
        fine &= same_number(&l, "sent", sent + expert_bytes(&l, "rows") + step_bytes(&l));
        fine &= same_number(&l, "again", sent + expert_bytes(&l, "rows_again") + step_bytes(&l));
        all += said(r, rank, "sent") - step_bytes(&l);
    }
    tap_ok(fine, "traffic: %s", options);
    return all;
}

/* ---- layouts ---- */

static const char *const layouts[] = {
    /* data parallel, ZeRO: each with dp = Vd; several partial sums; groups; small buckets */
    "--ranks 4 --data-shards 4 --batch 16 --micro-batch 8 --sequence 16 --accumulation each",
    "--ranks 4 --data-shards 4 --batch 16 --micro-batch 8 --sequence 16 --accumulation each --zero 1",
    "--ranks 4 --data-shards 4 --batch 16 --micro-batch 8 --sequence 16 --accumulation each --zero 2",
    "--ranks 4 --data-shards 4 --batch 16 --micro-batch 8 --sequence 16 --accumulation each --zero 3",
    "--ranks 3 --data-shards 8 --batch 8 --sequence 16",
    "--ranks 3 --data-shards 8 --batch 8 --sequence 16 --zero 3",
    "--ranks 4 --data-shards 8 --batch 16 --micro-batch 8 --sequence 16 --accumulation shard --zero 1 --zero-group 2",
    "--ranks 4 --data-shards 4 --batch 8 --sequence 16 --zero 2 --zero-group 2 --bucket 40000",
    "--ranks 4 --data-shards 4 --batch 16 --micro-batch 8 --sequence 16 --accumulation each --zero 3 --zero-group 2",
    /* the same bytes while ranks compute, but two buckets, two windows */
    "--ranks 3 --data-shards 8 --batch 8 --sequence 16 --overlap on",
    "--ranks 4 --data-shards 4 --batch 16 --micro-batch 8 --sequence 16 --accumulation each --bucket 40000 --overlap "
    "on",
    "--ranks 4 --data-shards 4 --batch 16 --micro-batch 8 --sequence 16 --accumulation each --zero 1 --overlap on",
    "--ranks 4 --data-shards 4 --batch 16 --micro-batch 8 --sequence 16 --accumulation each --zero 3 --overlap on",
    "--ranks 8 --tp 2 --pp 2 --tensor-shards 2 --data-shards 2 --batch 4 --sequence 16 --zero 2 --overlap on",
    /* pipelines */
    "--ranks 2 --pp 2 --data-shards 2 --batch 8 --micro-batch 4 --sequence 16 --pipeline gpipe --accumulation shard",
    "--ranks 2 --pp 2 --data-shards 2 --batch 8 --micro-batch 4 --sequence 16 --pipeline interleaved --accumulation "
    "each",
    "--ranks 2 --pp 2 --data-shards 2 --batch 8 --micro-batch 4 --sequence 16 --pipeline zero-bubble",
    "--ranks 4 --pp 2 --data-shards 2 --batch 8 --micro-batch 4 --sequence 16 --accumulation each --zero 3",
    /* tensor groups */
    "--ranks 2 --tp 2 --tensor-shards 2 --data-shards 1 --batch 4 --micro-batch 2 --sequence 32",
    "--ranks 2 --tp 2 --tensor-shards 4 --data-shards 1 --batch 4 --micro-batch 2 --sequence 32 --accumulation each",
    "--ranks 4 --tp 4 --tensor-shards 4 --data-shards 1 --batch 4 --micro-batch 2 --sequence 32",
    "--ranks 2 --tp 2 --tensor-shards 4 --data-shards 1 --batch 4 --micro-batch 2 --sequence 32 --sequence-parallel",
    "--ranks 4 --tp 4 --tensor-shards 4 --data-shards 1 --batch 4 --micro-batch 2 --sequence 32 --sequence-parallel",
    "--ranks 4 --tp 2 --tensor-shards 2 --data-shards 2 --batch 8 --micro-batch 4 --sequence 16 --accumulation each "
    "--zero 3",
    "--ranks 8 --tp 2 --pp 2 --tensor-shards 2 --data-shards 2 --batch 4 --sequence 16 --zero 2 --sequence-parallel",
    /* experts on several ranks: one copy of them; two, without a limit; a capacity; with each mode */
    "--ranks 2 --experts 4 --active 4 --ep 2 --data-shards 2 --batch 4 --sequence 16",
    "--ranks 4 --experts 4 --ep 2 --data-shards 8 --batch 16 --micro-batch 8 --sequence 16 --accumulation shard",
    "--ranks 4 --experts 8 --active 8 --capacity 0.5 --ep 4 --data-shards 4 --batch 8 --micro-batch 4 --sequence 16 "
    "--accumulation each",
    "--ranks 4 --experts 4 --ep 2 --data-shards 4 --batch 8 --micro-batch 4 --sequence 16 --accumulation each --zero 3",
    "--ranks 4 --experts 4 --ep 4 --data-shards 4 --batch 4 --sequence 16 --zero 2 --bucket 40000",
    "--ranks 4 --experts 4 --ep 4 --data-shards 4 --batch 4 --sequence 16 --zero 1 --zero-group 2 --recompute full",
    "--ranks 8 --experts 4 --ep 2 --data-shards 8 --batch 8 --sequence 16 --zero 3 --zero-group 4",
    "--ranks 4 --experts 4 --active 4 --ep 2 --pp 2 --data-shards 2 --batch 8 --micro-batch 4 --sequence 16 --accumulation "
    "shard",
    "--ranks 1 --experts 4 --data-shards 1 --batch 2 --sequence 16",
    "--ranks 6 --experts 4 --ep 2 --data-shards 8 --batch 16 --micro-batch 8 --sequence 16 --accumulation shard --zero 3",
    /* context groups */
    "--ranks 1 --context-shards 4 --data-shards 1 --batch 4 --micro-batch 2 --sequence 32",
    "--ranks 2 --cp 2 --context-shards 2 --data-shards 1 --batch 4 --micro-batch 2 --sequence 32",
    "--ranks 4 --cp 4 --context-shards 4 --data-shards 2 --batch 4 --sequence 32",
    "--ranks 4 --cp 2 --context-shards 8 --data-shards 2 --batch 8 --micro-batch 4 --sequence 32 --accumulation each "
    "--zero 2",
    "--ranks 4 --cp 2 --context-shards 4 --data-shards 2 --batch 8 --micro-batch 4 --sequence 32 --accumulation shard "
    "--overlap on",
    "--ranks 8 --cp 8 --context-shards 8 --data-shards 1 --batch 2 --sequence 64 --recompute selective",
    "--ranks 8 --cp 2 --tp 2 --pp 2 --context-shards 4 --tensor-shards 2 --data-shards 1 --batch 4 --micro-batch 2 "
    "--sequence 32 --sequence-parallel",
    /* experts on several ranks of a context group: all, an odd number of rows for a sample of text, and in groups */
    "--ranks 4 --experts 4 --active 4 --ep 2 --cp 2 --context-shards 4 --data-shards 2 --batch 4 --sequence 32",
    "--ranks 4 --experts 8 --active 8 --capacity 0.5 --ep 2 --cp 2 --context-shards 2 --data-shards 4 --batch 8 "
    "--micro-batch 4 --sequence 32 --accumulation each",
    "--ranks 8 --experts 4 --ep 2 --cp 2 --context-shards 4 --data-shards 4 --batch 8 --micro-batch 4 --sequence 32 "
    "--accumulation shard --zero 3",
    /* values of forward */
    "--ranks 1 --data-shards 2 --batch 4 --sequence 32 --recompute selective",
    "--ranks 2 --data-shards 2 --batch 4 --sequence 32 --recompute full",
    "--ranks 1 --data-shards 2 --batch 4 --sequence 32 --recompute full --offload",
    "--ranks 2 --pp 2 --data-shards 2 --batch 8 --micro-batch 4 --sequence 16 --recompute full --offload --horizon 2",
};
enum { LAYOUTS = (int)(sizeof layouts / sizeof *layouts) };

/* ---- the formulas as papers have them ---- */

static int64_t over_ranks(const run *r, const char *what)
{
    int64_t sum = 0;
    for (int rank = 0; rank < option(r, "ranks", 1); rank++) sum += said(r, rank, what);
    return sum;
}

/* FORMULAS per rank, and in all: a rank's is the mean to a block per bucket, which is in the tests above. */
static void check_zero(const run *r, const char *options, int64_t sent)
{
    layout l = layout_of(r, 0);
    store s = store_of(&l);
    int64_t n = l.ranks, m = l.micros, g = l.group, more = n / g, once = 0, tied = of_table(&l, 0), again;
    int64_t gradients = FLOAT * (l.zero ? (g - 1) * more + 2 * (more - 1) : 2 * (n - 1)) * s.slots * m;
    for (int64_t q = 0; q < l.layers + 2; q++) once += of_segment(&l, q, 0) + (is_tied(&l, q) ? tied : 0);
    /* forward and backward of each unit, but a segment that is still there: the head, and the first before the next
     * unit */
    again = (of_segment(&l, l.layers + 1, 0) + tied) * m + (of_segment(&l, 0, 0) + tied) * (m - 1);
    if (l.zero > 2)
        once = 2 * once * m - again;
    else
        once = l.zero ? s.params : 0;
    tap_ok(sent == gradients + FLOAT * (g - 1) * more * once && l.shards == l.dp, "%s: %s", options,
           l.zero > 2 ? "3P (N-1)/N per rank and micro-batch, less the gathers of segments that are there"
           : l.zero   ? "2P (N-1)/N per rank: reduce-scatter per micro-batch, all-gather"
                      : "2P (N-1)/N per rank and micro-batch: all-reduce");
    if (more == 1)
        tap_ok(over_ranks(r, "weights") == FLOAT * s.params * (l.zero > 2 ? 1 : n) &&
                   over_ranks(r, "gradients") == FLOAT * (n * s.buffer + s.slots * (l.zero > 1 ? 1 : n)) &&
                   over_ranks(r, "optimizer") == MOMENTS * s.params * (l.zero ? 1 : n),
               "  4 P%s, 4 P%s and a bucket, 8 P%s", l.zero > 2 ? " / N" : "", l.zero > 1 ? " / N" : "",
               l.zero ? " / N" : "");
}

/* 2 all-reduces forward and 2 backward per block; beside them one of the table's rows, one for the gradient of the
 * head's input, and of the loss a maximum and a sum per row. Split rows: 4 reduce-scatters, 4 all-gathers. */
static void check_calls(const run *r, const char *options)
{
    layout l = layout_of(r, 0);
    int64_t units = (l.hi - l.lo) * l.micros, leaves = l.each ? units : l.hi - l.lo, blocks = l.layers;
    int64_t whole = l.rows * l.length * l.width;
    int fine = same_number(&l, "forward_max", 1) & same_number(&l, "step_max", units);
    fine &= same_number(&l, "forward_sum", (l.sp ? 0 : 2 * blocks) + 2);
    fine &= same_number(&l, "forward_scatter", l.sp ? 2 * blocks : 0) &
            same_number(&l, "forward_gather", l.sp ? 2 * blocks + 1 : 0);
    fine &= same_number(&l, "step_sum", l.sp ? 2 * units + leaves * (6 * blocks + 2) : units * (4 * blocks + 3));
    fine &= same_number(&l, "step_scatter", l.sp ? units * (4 * blocks + 1) : 0);
    fine &=
        same_number(&l, "step_gather", l.sp ? units * (4 * blocks + 2) : 0); /* the gradient of the table's rows, too */
    if (l.sp)
        fine &= said(r, 0, "floats_scatter") == units * (4 * blocks + 1) * whole &&
                said(r, 0, "floats_gather") == units * (4 * blocks + 2) * whole / l.tp;
    else
        fine &= said(r, 0, "floats_sum") == units * ((4 * blocks + 2) * whole + 2 * l.rows * l.length);
    tap_ok(fine, "%s: 2 %s forward and 2 backward per block and unit", options,
           l.sp ? "reduce-scatters and all-gathers" : "all-reduces");
}

static void check_pipeline(const run *r, const char *options, int64_t sent)
{
    layout l = layout_of(r, 0);
    int64_t boundaries = l.chunks * l.pp - 1, units = (l.hi - l.lo) * l.micros;
    int64_t uses = l.chunks > 1 || l.pp > 1 ? 2 * of_table(&l, 0) : 0;
    tap_ok(sent == FLOAT * (2 * boundaries * units * l.rows * l.length * l.width + uses),
           "%s: b s h per boundary (%d), unit and direction, and the table's gradients", options, (int)boundaries);
}

/* A token that visits all experts sends one row for each of those on other ranks, 2 times forward and 2 backward. */
static void check_rows(const run *r, const char *options)
{
    layout l = layout_of(r, 0);
    int64_t tokens = l.leaves * l.room, blocks = 0, rows;
    int fine = 1;
    for (int64_t q = said_of(r, 0, "begin", 0); q < said_of(r, 0, "end", 0); q++) blocks += !is_tied(&l, q);
    rows = 4 * (l.hi - l.lo) * l.micros * blocks * tokens * (l.experts - l.experts / l.ep);
    for (int rank = 0; rank < (l.pp > 1 ? 1 : l.ranks); rank++) {
        layout k = layout_of(r, rank);
        fine &= same_number(&k, "rows", rows);
        fine &= same_number(&k, "trades", 5 * (l.hi - l.lo) * l.micros * blocks);
    }
    tap_ok(fine, "%s: rows x C to and from other ranks, 2 exchanges forward, 2 backward, and one of counts", options);
}

static void check_layouts(void)
{
    int64_t whole = -1;
    for (int i = 0; i < LAYOUTS; i++) {
        run *r = measured(layouts[i]);
        int64_t sent;
        check_memory(r, layouts[i]);
        sent = check_traffic(r, layouts[i]);
        if (!r->status && given(r, "--accumulation each") && given(r, "--data-shards 4") && !given(r, "--experts"))
            check_zero(r, layouts[i], sent);
        if (!r->status && given(r, "--active ")) check_rows(r, layouts[i]);
        if (!r->status && given(r, "--pp 2") && option(r, "ranks", 1) == 2) check_pipeline(r, layouts[i], sent);
        if (!r->status && given(r, "--tp") && given(r, "--data-shards 1") && !given(r, "--cp")) check_calls(r, layouts[i]);
        if (!r->status && given(r, "--tp 4")) { /* 1 + 1 for the table whose gradient is gathered, and R7 */
            layout l = layout_of(r, 0);
            int64_t table = FLOAT * l.rows * l.length * l.width * (l.tp - 1) * l.micros;
            int64_t rows = FLOAT * (6 * l.layers + 2) * l.width * (l.tp - 1) * l.tp;
            if (l.sp)
                tap_ok(sent == whole + table + rows,
                       "sequence parallelism sends the bytes of tensor parallelism, and %lld",
                       (long long)(table + rows));
            whole = sent;
        }
        free(r);
    }
}

/* What is not in the plan does not grow with the model and the data. */
static void check_growth(void)
{
    static const char *const sizes[3] = {"--width 64 --sequence 16", "--width 256 --sequence 16",
                                         "--width 64 --sequence 128"};
    static const char *const kinds[3] = {"--ranks 1", "--ranks 2 --zero 3", "--ranks 2 --tp 2 --tensor-shards 2"};
    for (int k = 0; k < 3; k++) {
        int64_t lists[3];
        char words[200];
        for (int i = 0; i < 3; i++) {
            run *r;
            snprintf(words, sizeof words, "%s --data-shards 2 --batch 2 %s", kinds[k], sizes[i]);
            r = measured(words);
            lists[i] = r->status ? 1 << 30 : unplanned(r, 0);
            free(r);
        }
        tap_ok(llabs(lists[1] - lists[0]) < 20000 && llabs(lists[2] - lists[0]) < 20000,
               "%s: besides the plan %lld bytes; with 4 times the width %lld, 8 times the sequence %lld", kinds[k],
               (long long)lists[0], (long long)lists[1], (long long)lists[2]);
    }
}

/* ---- ranks that disagree ---- */

static const char *said_by(const run *r, int rank)
{
    static char line[1000];
    char word[64];
    const char *at;
    snprintf(word, sizeof word, "rank %d: ", rank);
    at = strstr(r->text, word);
    snprintf(line, sizeof line, "%.*s", at ? (int)strcspn(at, "\n") : 0, at ? at : "");
    return line;
}

static void check_disagree(const char *launch, const char *overlap)
{
    static const char *const kinds[3] = {"op", "count", "across"};
    static const char *const sentences[2] = {"DT_E_PEER: ranks disagree: rank 1 is in all-reduce #2 (50 floats, "
                                             "sum), rank 3 in broadcast #2 (50 floats, root 0)",
                                             "DT_E_PEER: ranks disagree: rank 1 is in all-gather #2 (5 floats), "
                                             "rank 3 in all-gather #2 (7 floats)"};
    char words[300];
    run *r;
    for (int k = 0; k < 3 && !strcmp(overlap, "off"); k++) {
        int fine;
        snprintf(words, sizeof words, "split %s --ranks 4 --timeout 1 --launch %s", kinds[k], launch);
        r = start(words);
        fine = !r->status;
        for (int rank = 0; rank < 4; rank++) {
            const char *s = said_by(r, rank);
            if (k < 2)
                fine = fine && strstr(s, rank % 2 ? sentences[k] : "DT_OK");
            else
                fine = fine && strstr(s, "DT_E_PEER") && strstr(s, "waits for a rank that waits for it") &&
                       strstr(s, "different communicators") &&
                       strstr(s, rank == 1 ? "was in all-reduce #2" : "was in barrier #2");
        }
        if (!tap_ok(fine, "%s: %s", words, k < 2 ? "both calls are named, others go on" : "the circle is named"))
            tap_note("%d: %s", r->status, r->text);
        free(r);
    }
    snprintf(words, sizeof words,
             "disagree --ranks 4 --pp 2 --zero 2 --data-shards 2 --batch 4 --sequence 16 --timeout 2 --launch %s "
             "--overlap %s",
             launch, overlap);
    r = start(words);
    tap_ok(!r->status && strstr(said_by(r, 0), "DT_E_PEER") && strstr(said_by(r, 2), "DT_E_PEER"), "%s: all ranks stop",
           words);
    for (int rank = 1; rank < 4; rank += 2) {
        long long a = 0, b = 1, floats[2];
        const char *at = strstr(said_by(r, rank), "ranks disagree");
        int n = at ? sscanf(at,
                            "ranks disagree: rank 1 is in reduce-parts #%lld (%lld floats, kind 1), rank 3 in "
                            "all-gather #%lld (%lld floats",
                            &a, &floats[0], &b, &floats[1])
                   : 0;
        if (!tap_ok(n == 4 && a == b && a > 0, "  rank %d names both, number %lld", rank, a)) tap_note("%s", r->text);
    }
    free(r);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "measure")) return measure(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "disagree")) return disagree(argc, argv);
    if (argc > 2 && !strcmp(argv[1], "split")) return split(argc, argv);
    self = argv[0];
    check_layouts();
    check_growth();
    check_disagree("processes", "off");
#ifndef DT_NO_THREADS
    check_disagree("threads", "off");
    check_disagree("processes", "on");
    check_disagree("threads", "on");
#endif
    return tap_done();
}
