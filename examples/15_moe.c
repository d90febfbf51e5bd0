/* 15_moe: how can a model have more weights for the same arithmetic?
 *
 * What you learn
 *     - In a block most weights are in the MLP. A mixture of experts has E MLPs and a router, which gives each token a
 *       probability for each expert; the token visits the k most probable. Weights grow with E, arithmetic with k.
 *       Here E = 8, k = 2: experts of half the dense MLP's width.
 *     - An expert with more tokens learns faster, and so gets even more tokens. The balance loss works against this:
 *       E * sum f_e P_e, with the share f_e of choices and the mean probability P_e, is 1 when all get as many.
 *     - On one machine an uneven load means that some weights learn nothing. With experts on several machines all wait
 *       for the busiest; a capacity helps there, at the price of dropped tokens.
 *     - "Experts make a model better at the same cost" is true after long training. Here the dense model has less loss.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 15_moe.c -o 15_moe -lm -lpthread
 *     ./15_moe                                  (--active 1: one expert per token, of full width)
 *     ./15_moe --ranks 2
 *
 * What it prints
 *     model                        weights  GFLOP/step  loss: first, last  validation
 *     dense                         135168       0.365        5.539 2.231       2.182
 *     8 experts, no balance loss    332160       0.368        5.547 2.287       2.234
 *     8 experts, balance loss       332160       0.368        5.547 2.292       2.237
 *     8 experts, no balance loss: the busiest expert has 3.34 times the even share
 *     8 experts, balance loss: the busiest expert has 1.12 times the even share
 *     ok: 1.01 times the arithmetic of the dense model; the busiest expert has 1.12 instead of 3.34 even shares
 *
 * Predict first: with k = 1 and experts of full width, which columns of the first table stay the same?
 * Exercise: add rows with ten and a hundred times the balance loss. From which factor on does the validation loss rise?
 *
 * Read on: 16_llama_by_hand.c for a model from single functions, 56_expert_parallel.c for experts on several ranks. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "prose.h"

enum { EXPERTS = 8, WIDTH = 64, STEPS = 80, BATCH = 16, LENGTH = 32 };
static double active = 2; /* experts of a token */

/* tokens (B,T) -> (B,T,C) */
static dt_tensor embed(dt_graph *g, dt_tensor tokens, const void *user)
{
    dt_tensor table = dt_param(g, "table", dt_shape2(256, WIDTH), DT_INIT_NORMAL, 0.02f);
    (void)user;
    return dt_add(g, dt_embed(g, table, tokens),
                  dt_param(g, "places", dt_shape2(LENGTH, WIDTH), DT_INIT_NORMAL, 0.02f));
}

/* (B,T,C) -> (B,T,C): attention, then an MLP of 4C hidden units, or experts of 2C each */
static dt_tensor block(dt_graph *g, dt_tensor x, const void *user)
{
    const dt_moe_options *moe = (const dt_moe_options *)user; /* NULL: dense */
    const dt_attention_options how = {.heads = 2, .causal = 1};
    dt_tensor none = {0}, h = dt_linear(g, dt_layernorm(g, x, "norm_1", 1e-5f), "qkv", 3 * WIDTH);
    h = dt_attend(g, h, none, none, none, &how); /* the rows of h are [q | k | v] */
    x = dt_add(g, x, dt_linear(g, h, "mix", WIDTH));
    h = dt_layernorm(g, x, "norm_2", 1e-5f);
    if (moe) return dt_add(g, x, dt_moe(g, h, "moe", moe));
    return dt_add(g, x, dt_linear(g, dt_gelu(g, dt_linear(g, h, "up", 4 * WIDTH)), "down", WIDTH));
}

/* (B,T,C) -> scalar loss of the next bytes */
static dt_tensor head(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_cross_entropy(g, dt_linear(g, dt_layernorm(g, x, "norm", 1e-5f), "out", 256), dt_targets(g), 0.0f);
}

typedef struct result {
    float first, last, validation, auxiliary;
    float tokens[EXPERTS], most; /* choices of the last step on each expert of the last block, and on the busiest */
    int64_t weights;
    double gflop; /* of a step */
    int root;
} result;

static dt_result train(const char *text, const dt_moe_options *moe, result *out)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_segment net[] = {{"embed", embed, NULL}, {"block0", block, moe}, {"block1", block, moe}, {"head", head, NULL}};
    dt_result e;
    recipe.model = dt_model_segments(net, 4, 256);
    recipe.data = text;
    recipe.steps = STEPS, recipe.batch = BATCH, recipe.sequence = LENGTH;
    recipe.learning_rate = 3e-3f;
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0;
    e = dt_trainer_open(&t, &recipe, &layout);
    if (!e) e = dt_trainer_step(t, &info);
    out->first = info.loss;
    if (!e) e = dt_trainer_run(t, &info);
    if (!e && moe) e = dt_trainer_experts(t, 1, out->tokens); /* mixture 1: that of block 1, the last */
    if (e) return dt_trainer_close(&t), e;
    for (int i = 0; i < EXPERTS; i++) out->most = out->tokens[i] > out->most ? out->tokens[i] : out->most;
    out->last = info.loss;
    out->validation = info.validation;
    out->auxiliary = info.auxiliary;
    out->weights = dt_trainer_weights(t);
    out->gflop = info.gflops * info.seconds;
    out->root = dt_trainer_is_root(t);
    dt_trainer_close(&t);
    return e;
}

/* The busiest expert's, in even shares; one row per expert, a mark per eight tokens. */
static double share(const result *r) { return (double)r->most * EXPERTS / (BATCH * LENGTH * active); }
static void print_chart(const char *what, const result *r)
{
    static const char marks[] = "################################################################";
    printf("\n%s: the busiest expert has %.2f times the even share\n", what, share(r));
    for (int e = 0; e < EXPERTS; e++)
        printf("  expert %d %4d %.*s\n", e, (int)r->tokens[e], ((int)r->tokens[e] + 7) / 8, marks);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"dense", "8 experts, no balance loss", "8 experts, balance loss"};
    static const float balance[] = {0.0f, 0.0f, 0.05f};
    dt_moe_options moe;
    char text[] = "/tmp/dtrain_XXXXXX";
    option list[] = {{"--active", 1, EXPERTS, &active}};
    result r[3];
    dt_result e = dt_launch(&argc, &argv);
    if (e) return dt_fail("15_moe");
    if (!options_read(argc, argv, list, 1)) return 2;
    memset(r, 0, sizeof r), memset(&moe, 0, sizeof moe);
    moe.experts = EXPERTS, moe.active = (int)active;
    moe.width = 4 * WIDTH / (int)active; /* the hidden units of a token are those of the dense model */
    e = prose_temporary(text, 100000); /* every rank writes its own copy, of the same bytes */
    for (int i = 0; i < 3 && !e; i++) {
        moe.balance = balance[i];
        e = train(text, i ? &moe : NULL, &r[i]);
        if (e || !r[i].root) continue;
        if (!i) printf("model                        weights  GFLOP/step  loss: first, last  validation\n");
        printf("%-27s %8lld  %10.3f  %11.3f %5.3f  %10.3f\n", names[i], (long long)r[i].weights, r[i].gflop,
               (double)r[i].first, (double)r[i].last, (double)r[i].validation);
    }
    remove(text);
    if (e) return dt_fail("15_moe");
    for (int i = 1; i < 3 && r[0].root; i++) print_chart(names[i], &r[i]);
    if (r[0].root) printf("\nE * sum f P, mean of both blocks: %.3f (1: even)\n", (double)r[2].auxiliary / (2 * 0.05));
    if ((r[2].most >= r[1].most && active < EXPERTS) || r[2].last > r[2].first - 1.0f || r[2].gflop > 1.1 * r[0].gflop)
        return fprintf(stderr, "FAILED: the load is not more even, or the mixture does not learn\n"), 1;
    if (r[0].root) printf("ok: %.2f times the arithmetic of the dense model; the busiest expert has %.2f instead of "
                          "%.2f even shares\n", r[2].gflop / r[0].gflop, share(&r[2]), share(&r[1]));
    return 0;
}
