/* Drawing text: logits against the cache of keys and values have the bits of the recomputed sequence, at every position;
 * a draw is what the doc of dt_sampling says, written down plainly here; texts are decided by their seeds. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "reference.h"
#include "../examples/prose.h"
#include "tap.h"

enum { VOCABULARY = 256, LENGTH = 70, TEXT = 150 };
static char data[] = "/tmp/dtrain_XXXXXX";

static dt_trainer *open_trainer(dt_model model, int64_t length, int64_t threads, int no_cache, int64_t shards)
{
    dt_recipe r = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_trainer *t = NULL;
    r.model = model;
    r.model.vocabulary = VOCABULARY;
    r.data = data;
    r.batch = r.data_shards = 1;
    r.sequence = length;
    r.tensor_shards = shards;
    r.validation = 0;
    l.output.quiet = 1;
    l.threads = threads;
    l.output.no_cache = no_cache;
    if (dt_trainer_open(&t, &r, &l)) tap_bail("%s", dt_last_error());
    return t;
}

/* Makes weights so large that attention is no plain mean, and that a token depends on those before. */
static void enlarge(dt_trainer *t)
{
    for (int32_t i = 0; i < t->e.p.net.param_count; i++) {
        const dt__net_param *p = &t->e.p.net.params[i];
        float *weight = dt__download(t->e.k, t->e.params + p->offset, p->count);
        for (int64_t j = 0; p->is.shape.dims > 1 && j < p->count; j++) weight[j] *= 8.0f;
        dt__upload(t->e.k, weight, p->count);
    }
}

/* Tokens that a device may read where they are. */
static void pin(dt_trainer *t, int32_t tokens[LENGTH]) { dt__mem_attach(t->e.k, DT__PINNED, tokens, 4 * LENGTH); }

/* ---- logits ---------------------------------------------------------------------------------------------- */

/* Every row after prompts of several lengths, against one pass over the whole sequence. */
static void check_logits(const char *what, dt_model model, int64_t length, int64_t threads, int64_t shards)
{
    static const int64_t prompts[] = {1, 31, 32, 33, 64, LENGTH};
    int32_t tokens[LENGTH], targets[LENGTH];
    dt_trainer *whole = open_trainer(model, length, threads, 1, shards), *cached = open_trainer(model, length, threads, 0, shards);
    const float *row;
    static float want[LENGTH * VOCABULARY];
    int64_t same = 0, all = 0;
    unsigned saved = dt__fp_enter();
    for (int64_t i = 0; i < length; i++) tokens[i] = (int32_t)(i * 7919 % 251), targets[i] = -1;
    enlarge(whole), enlarge(cached);
    pin(whole, tokens), pin(whole, targets);
    whole->e.target = dt__upload(whole->e.k, targets, 0);
    for (int64_t used = 1; used <= length; used++) {
        if (dt__logits(whole, &whole->generator.net[DT__WHOLE], tokens, used, 0, &row)) tap_bail("%s", dt_last_error());
        memcpy(want + (used - 1) * VOCABULARY, row, 4 * VOCABULARY);
    }
    tap_ok(cached->generator.cache && !whole->generator.cache, "%s: one of the two has a cache", what);
    for (int p = 0; p < 6; p++) {
        cached->generator.cached = 0;
        for (int64_t used = prompts[p]; used <= length; used++, all++)
            same += !dt__next_logits(cached, tokens, used, &row) && !memcmp(row, want + (used - 1) * VOCABULARY, 4 * VOCABULARY);
    }
    tap_ok(same == all && all > 0, "%s, %lld positions, %lld threads: %lld of %lld rows of logits have the bits of the whole sequence",
           what, (long long)length, (long long)threads, (long long)same, (long long)all);
    dt__fp_leave(saved);
    dt__mem_detach(whole->e.k, tokens), dt__mem_detach(whole->e.k, targets);
    dt_trainer_close(&whole);
    dt_trainer_close(&cached);
}

/* ---- draws ----------------------------------------------------------------------------------------------- */

static const float *order_by;
static int by_logit(const void *x, const void *y)
{
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    if (order_by[a] != order_by[b]) return order_by[a] > order_by[b] ? -1 : 1;
    return a < b ? -1 : 1;
}

static int32_t plain_draw(const dt_sampling *how, const float *logits, int64_t n, double uniform)
{
    static int32_t order[1000];
    static float weight[1000];
    static int keep[1000];
    float sum = 0.0f, at = 0.0f;
    int64_t most = how->top_k && how->top_k < n ? how->top_k : n;
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)i;
    order_by = logits;
    qsort(order, (size_t)n, sizeof *order, by_logit);
    if (how->temperature == 0.0f) return order[0];
    for (int64_t i = 0; i < n; i++) weight[i] = ref_expf((logits[i] - logits[order[0]]) / how->temperature), keep[i] = 0;
    for (int64_t i = 0; i < most; i++) keep[order[i]] = 1;
    for (int64_t i = 0; i < n; i++)
        if (keep[i]) sum = sum + weight[i];
    if (how->top_p > 0.0f && how->top_p < 1.0f)
        for (int64_t i = 0; i < most; i++) {
            if (at >= how->top_p * sum) keep[order[i]] = 0;
            at = at + weight[order[i]];
        }
    sum = at = 0.0f;
    for (int64_t i = 0; i < n; i++)
        if (keep[i]) sum = sum + weight[i];
    for (int64_t i = 0; i < n; i++)
        if (keep[i] && (at = at + weight[i]) >= (float)uniform * sum && weight[i] > 0.0f) return (int32_t)i;
    return -1;
}

static void check_draws(void)
{
    static const int64_t sizes[] = {1, 2, 3, 31, 32, 33, 1000}, tops[] = {0, 1, 2, 5, 32, 999, 5000};
    static const float ps[] = {0.0f, 1e-6f, 0.3f, 0.9f, 0.9999f, 1.0f}, temperatures[] = {0.0f, 0.1f, 1.0f, 3.0f};
    float logits[1000], weight[1000];
    dt__candidate order[1000];
    const dt__kernels *k;
    dt__generator d;
    dt_sampling how = dt_generation_default().sampling;
    dt__rng rng = dt__rng_make(3, DT__RNG_TEXT, 0, 0, 0);
    uint64_t at = 0;
    int64_t same = 0, all = 0;
    if (dt__choose_kernels(&k)) tap_bail("%s", dt_last_error());
    memset(&d, 0, sizeof d);
    d.weight = weight, d.order = order;
    for (int s = 0; s < 7; s++)
        for (int c = 0; c < 7 * 6 * 4; c++)
            for (int again = 0; again < 4; again++, all++) {
                double uniform = dt__uniform(&rng, at++);
                for (int64_t i = 0; i < sizes[s]; i++) /* halves: many are equal */
                    logits[i] = 0.5f * (float)(int)(16.0 * dt__uniform(&rng, at++)) - 3.0f;
                how.top_k = tops[c % 7], how.top_p = ps[c / 7 % 6], how.temperature = temperatures[c / 42];
                same += dt__draw(&d, k, &how, logits, sizes[s], uniform) == plain_draw(&how, logits, sizes[s], uniform);
            }
    how = dt_generation_default().sampling;
    tap_ok(how.temperature == 0.7f && how.top_k == 0 && how.top_p == 0.0f && how.seed == 0, "the usual draw: temperature 0.7 over all tokens, seed 0");
    tap_ok(same == all, "%lld of %lld draws with temperature, top-k, top-p are those of the plain text", (long long)same,
           (long long)all);
}

/* ---- texts ----------------------------------------------------------------------------------------------- */

static void text_of(dt_trainer *t, const char *prompt, dt_sampling how, char text[TEXT + 1])
{
    if (dt_trainer_sample(t, prompt, TEXT, &how, text)) tap_bail("%s", dt_last_error());
}

static void check_texts(dt_model model, const char *name)
{
    static const char prompt[] = "a prompt of so many letters that they need more than one step of the cache";
    dt_trainer *cached = open_trainer(model, LENGTH, 1, 0, 1), *whole = open_trainer(model, LENGTH, 1, 1, 1);
    dt_sampling how = dt_generation_default().sampling;
    char a[TEXT + 1], b[TEXT + 1];
    how.top_k = 50, how.top_p = 0.9f;
    for (int p = 0; p < 3; p++) { /* longer than the sequence too: it is moved on twice */
        const char *start = prompt + (p == 0 ? 0 : p == 1 ? 30 : sizeof prompt - 2);
        text_of(cached, start, how, a);
        text_of(whole, start, how, b);
        tap_ok(!memcmp(a, b, TEXT), "%s: %d letters of prompt, cached and recomputed, the same text", name, (int)strlen(start));
    }
    text_of(cached, "The ", how, b);
    text_of(cached, "The ", how, a);
    tap_ok(!memcmp(a, b, TEXT), "%s: a seed gives one text", name);
    how.seed = 1;
    text_of(cached, "The ", how, b);
    tap_ok(memcmp(a, b, TEXT) != 0, "%s: another seed gives another text", name);
    how.seed = ((int64_t)1 << 40) + 1;
    text_of(cached, "The ", how, a);
    tap_ok(memcmp(a, b, TEXT) != 0, "%s: a seed has 64 bits", name);
    how.temperature = 0.0f;
    text_of(cached, "The ", how, a);
    how = dt_generation_default().sampling;
    how.top_k = 1;
    text_of(cached, "The ", how, b);
    tap_ok(!memcmp(a, b, TEXT), "%s: temperature 0 is top-k 1", name);
    how.top_k = 0, how.top_p = 1e-6f, how.seed = 9;
    text_of(cached, "The ", how, b);
    tap_ok(!memcmp(a, b, TEXT), "%s: and a tiny top-p, whatever the seed", name);
    dt_trainer_close(&cached);
    dt_trainer_close(&whole);
}

/* R16: draw i of a text has the uniform number i of the stream of (recipe's seed, step, seed). A full sequence goes on from
 * its later half. */
static void check_streams(dt_model model)
{
    static const int64_t keys[][3] = {{1, 0, 0}, {((int64_t)1 << 33) + 5, 0, 0}, {1, 7, 0}, {1, 0, 3}, {1, 0, -((int64_t)3 << 40)}};
    enum { DRAWN = 120, KEPT = LENGTH - LENGTH / 2 };
    dt_trainer *t = open_trainer(model, LENGTH, 1, 0, 1);
    dt_sampling how = dt_generation_default().sampling;
    enlarge(t);
    dt__loader_close(t); /* its thread reads the recipe, which changes here */
    for (int k = 0; k < 5; k++) {
        int32_t tokens[LENGTH] = {'T', 'h', 'e', ' '}, targets[LENGTH], token;
        const float *row;
        int64_t used = 4;
        char text[DRAWN + 1], want[DRAWN];
        uint64_t seed = (uint64_t)keys[k][2];
        dt__rng rng = dt__rng_make((uint64_t)keys[k][0], DT__RNG_TEXT, (uint32_t)keys[k][1], (uint32_t)seed, (uint32_t)(seed >> 32));
        unsigned saved;
        t->recipe.seed = keys[k][0], t->e.step = keys[k][1], how.seed = keys[k][2];
        if (dt_trainer_sample(t, "The ", DRAWN, &how, text)) tap_bail("%s", dt_last_error());
        for (int i = 0; i < LENGTH; i++) targets[i] = -1;
        pin(t, tokens), pin(t, targets);
        t->e.target = dt__upload(t->e.k, targets, 0);
        t->generator.cached = 0;
        saved = dt__fp_enter();
        for (int i = 0; i < DRAWN; i++) {
            if (dt__next_logits(t, tokens, used, &row)) tap_bail("%s", dt_last_error());
            token = plain_draw(&how, row, VOCABULARY, dt__uniform(&rng, (uint64_t)i));
            if (used == LENGTH) {
                memmove(tokens, tokens + LENGTH - KEPT, KEPT * sizeof *tokens);
                used = KEPT, t->generator.cached = 0;
            }
            tokens[used++] = token;
            want[i] = (char)token;
        }
        dt__fp_leave(saved);
        dt__mem_detach(t->e.k, tokens), dt__mem_detach(t->e.k, targets);
        tap_ok(!memcmp(text, want, DRAWN), "R16 a text is drawn with seeds %lld and %lld at step %lld", (long long)keys[k][0], (long long)keys[k][2], (long long)keys[k][1]);
    }
    dt_trainer_close(&t);
}

static dt_tensor my_block(dt_graph *g, dt_tensor x, const void *user) { return dt__family_block(g, x, user); }

/* A model of one's own recomputes, and draws the family's text when it is the same model. */
static void check_own(void)
{
    static dt_model sizes;
    static const dt_segment list[] = {{"transformer", dt__family_embed, &sizes},
                                      {"transformer.h.0", my_block, &sizes},
                                      {"head", dt__family_head, &sizes}};
    dt_model family = dt_model_gpt2("nano");
    dt_trainer *own, *t;
    char a[TEXT + 1], b[TEXT + 1];
    family.layers = sizes.layers = 1, family.heads = sizes.heads = 2, family.width = sizes.width = 32;
    sizes.vocabulary = VOCABULARY;
    own = open_trainer(dt_model_segments(list, 3, VOCABULARY), LENGTH, 1, 0, 1);
    t = open_trainer(family, LENGTH, 1, 0, 1);
    text_of(own, "The ", dt_generation_default().sampling, a);
    text_of(t, "The ", dt_generation_default().sampling, b);
    tap_ok(!own->generator.cache && t->generator.cache && !memcmp(a, b, TEXT), "a model of one's own draws without a cache");
    dt_trainer_close(&own);
    dt_trainer_close(&t);
}

/* The plan counts the tables of rotary angles: cosines and sines of half a head each, for queries and keys, once per net
 * of blocks that share a plan. */
static void check_plan(dt_model model, const char *name, int64_t tables)
{
    dt_trainer *t = open_trainer(model, LENGTH, 1, 0, 1);
    int64_t with = dt_trainer_memory(t).buffers, without, floats = tables * LENGTH * (model.width / model.heads);
    dt__net *one = &t->generator.net[DT__ONE], *several = &t->generator.net[DT__SEVERAL];
    t->e.p.net.tables -= floats, several->tables -= floats, one->tables -= floats;
    dt__memory_rows(t);
    without = dt__memory_of(t->row, t->rows).buffers;
    tap_ok(with - without == 3 * 4 * floats && !t->e.p.net.tables && !one->tables && !several->tables,
           "%s: %lld bytes of rotary angles in the memory plan", name, (long long)(with - without));
    dt_trainer_close(&t);
}

static void check_refused(void)
{
    dt_trainer *t = open_trainer(dt_model_llama("llama-nano"), 16, 1, 0, 1);
    dt_sampling how[3];
    dt_result r;
    char text[8];
    for (int i = 0; i < 3; i++) {
        how[i] = dt_generation_default().sampling;
        if (i == 0) how[i].temperature = -1.0f;
        else if (i == 1) how[i].top_k = -3;
        else how[i].top_p = 1.5f;
        r = dt_trainer_sample(t, "a", 5, &how[i], text);
        tap_ok(r == DT_E_USAGE && strstr(dt_last_error(), "--top-p"), "refused: %s", dt_last_error());
    }
    r = dt_trainer_sample(t, "", 5, NULL, text);
    tap_ok(r == DT_E_USAGE && strstr(dt_last_error(), "prompt"), "refused: %s", dt_last_error());
    dt_trainer_close(&t);
}

int main(void)
{
    static const char *const isas[] = {"portable", "avx2", "avx512"};
    dt_model gpt2 = dt_model_gpt2("nano"), llama = dt_model_llama("llama-nano"), rich;
    int file = mkstemp(data);
    if (file < 0 || prose_generate(data, 20000, 1)) tap_bail("no file: %s", dt_last_error());
    close(file);
    gpt2.heads = 4, gpt2.width = 32, llama.width = 32, gpt2.dropout = 0.1f; /* dropout is off when text is drawn */
    llama.rope_scaling.factor = 4.0, llama.rope_scaling.original_context = 16;
    llama.rope_scaling.low_freq_factor = 1.0, llama.rope_scaling.high_freq_factor = 4.0, rich = llama;
    for (int i = 0; i < 3; i++) {
        setenv("DT_ISA", isas[i], 1);
        const dt__kernels *k;
        if (dt__choose_kernels(&k)) {
            tap_skip(4, "%s", dt_last_error());
            continue;
        }
        tap_note("%s", isas[i]);
        check_logits("GPT-2", gpt2, LENGTH, 1, 1);
        check_logits("GPT-2 in 2 tensor shards", gpt2, LENGTH, 1, 2);
        check_logits("Llama", llama, LENGTH, 2, 1);
        check_logits("Llama in 2 tensor shards", llama, LENGTH, 1, 2);
    }
    unsetenv("DT_ISA");
    check_logits("GPT-2, a short sequence in 4 tensor shards", gpt2, 20, 1, 4);
    check_logits("Llama, a sequence of one step", llama, DT__PREFILL, 1, 2);
    rich.head = 12, rich.qkv_bias = rich.o_bias = rich.mlp_bias = rich.qk_norm = 1, rich.rope_scaling.kind = DT_ROPE_YARN;
    check_logits("Llama with biases, norms of heads and YaRN", rich, LENGTH, 2, 1);
    check_logits("the same in 2 tensor shards", rich, LENGTH, 1, 2);
    check_draws();
    check_texts(gpt2, "GPT-2");
    check_texts(llama, "Llama");
    check_streams(gpt2);
    check_own();
    check_plan(gpt2, "GPT-2", 0);
    check_plan(llama, "Llama", 2);
    check_refused();
    remove(data);
    return tap_done();
}
