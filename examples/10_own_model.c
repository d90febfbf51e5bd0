/* 10_own_model: what does a model have to say so that the trainer can train it?
 *
 * What you learn
 *     - A model is a list of segments. A segment is a function that builds a part of the graph: it gets x and returns
 *       its output. The first segment gets the tokens, the last one returns the loss. The trainer derives gradient,
 *       memory, data shards, ranks and hash from the graph.
 *     - The same function may stand in the list several times under different names. It is planned once; each name has
 *       weights of its own.
 *     - This model is not a GPT-2. GPT-2 makes queries, keys and values with a (C,3C) matrix; here they are three
 *       copies of x, each channel scaled by a learned number: 3C weights instead of 3C*C. A small network then mixes
 *       the channels, as in an MLP-mixer.
 *     - Parameters have names, and a program can read one while it trains.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 10_own_model.c -o 10_own_model -lm -lpthread
 *     ./10_own_model
 *     ./10_own_model --ranks 2                   (up to 8; --width 64: another model)
 *
 * What it prints
 *     model    4 segments of the program's own: 45856 parameters
 *     recipe   100 steps of 16 sequences, micro-batch 16, 8 data shards, seed 1
 *     step 100/100  validation loss 2.2104 nats, 3.189 bits per token
 *     block0.time.scale, queries  1 became 0.926 .. 1.097
 *     sha256   be4d5b87918a1a348c69ba18e98d5756fccbec75a91d5659a9b94df4de8b5327
 *     expected be4d5b87918a1a348c69ba18e98d5756fccbec75a91d5659a9b94df4de8b5327
 *     ok: 45856 weights of 4 segments of this program have the expected hash after 100 steps
 *
 * Predict first: in a model of width 64 with two blocks, how many weights are scales?
 * Exercise: give each of the 4 heads a scale instead of each channel. How many weights remain? Does the loss rise?
 *
 * Read on: 11_mlp.c for data of your own; "To add an op" in tests/README.md, if one is missing. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "prose.h"
#include <math.h>

#define EXPECTED "be4d5b87918a1a348c69ba18e98d5756fccbec75a91d5659a9b94df4de8b5327"

typedef struct sizes {
    int64_t vocabulary, width;
} sizes;

/* tokens (B,T) -> (B,T,C): a row of a table for each byte, and one for its position */
static dt_tensor embed(dt_graph *g, dt_tensor tokens, const void *user)
{
    const sizes *s = (const sizes *)user;
    int64_t T = dt_dim(g, tokens, 1);
    dt_tensor table = dt_param(g, "table", dt_shape2(s->vocabulary, s->width), DT_INIT_NORMAL, 0.02f); /* (V,C) */
    dt_tensor places = dt_param(g, "places", dt_shape2(T, s->width), DT_INIT_NORMAL, 0.02f);           /* (T,C) */
    return dt_add(g, dt_embed(g, table, tokens), places); /* (B,T,C) + (T,C): the second is repeated over B */
}

/* (B,T,C) -> (B,T,C): x + mix over time, then + mix over channels. Errors are sticky: no checks are needed here. */
static dt_tensor block(dt_graph *g, dt_tensor x, const void *user)
{
    int64_t B = dt_dim(g, x, 0), T = dt_dim(g, x, 1), C = ((const sizes *)user)->width;
    dt_tensor h = dt_layernorm(g, x, "time.norm", 1e-5f);
    dt_tensor none = {0}; /* q, k and v are one tensor, and there is no mask */
    dt_attention_options how = {.heads = 4, .causal = 1};
    h = dt_expand(g, dt_reshape(g, h, dt_shape4(B, T, 1, C)), dt_shape4(B, T, 3, C));            /* three copies */
    h = dt_mul(g, h, dt_param(g, "time.scale", dt_shape2(3, C), DT_INIT_ONES, 0));               /* (B,T,3,C) * (3,C) */
    x = dt_add(g, x, dt_attend(g, dt_reshape(g, h, dt_shape3(B, T, 3 * C)), none, none, none, &how));
    h = dt_layernorm(g, x, "channels.norm", 1e-5f);
    h = dt_gelu(g, dt_linear(g, h, "channels.up", 2 * C)); /* (B,T,2C) */
    return dt_add(g, x, dt_linear(g, h, "channels.down", C));
}

/* (B,T,C) -> scalar loss of the next bytes */
static dt_tensor head(dt_graph *g, dt_tensor x, const void *user)
{
    dt_tensor h = dt_layernorm(g, x, "norm", 1e-5f);
    dt_tensor logits = dt_linear(g, h, "out", ((const sizes *)user)->vocabulary); /* (B,T,V) */
    return dt_cross_entropy(g, logits, dt_targets(g), 0.0f);
}

static sizes all = {256, 48};
static const dt_segment net[] = {
    {"embed", embed, &all}, {"block0", block, &all}, {"block1", block, &all}, {"head", head, &all}};

/* Every rank writes its own copy of the text: the same seed, the same bytes. */
static dt_result open_trainer(dt_trainer **t, dt_recipe *recipe, const dt_layout *layout)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_result e;
    recipe->data = text;
    e = prose_temporary(text, 100000);
    if (!e) e = dt_trainer_open(t, recipe, layout);
    remove(text); /* open files live on without a name */
    return e;
}

/* What block 0 made of its 3C numbers, which all began at 1. */
static void print_scales(const dt_trainer *t)
{
    static const char *const names[] = {"queries", "keys", "values"};
    int64_t count = 0;
    const float *scale = dt_trainer_parameter(t, "block0.time.scale", &count);
    for (int64_t i = 0; scale && i < 3; i++) {
        float low = scale[i * all.width], high = low;
        for (int64_t c = 1; c < all.width; c++) {
            low = fminf(low, scale[i * all.width + c]);
            high = fmaxf(high, scale[i * all.width + c]);
        }
        printf("block0.time.scale, %-8s 1 became %.3f .. %.3f\n", names[i], (double)low, (double)high);
    }
}

int main(int argc, char **argv)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    double width = 48;
    option list[] = {{"--width", 4, 256, &width}};
    int same = 0;
    dt_result e = dt_launch(&argc, &argv);
    if (!options_read(argc, argv, list, 1)) return dt_exit_code(DT_E_USAGE);
    all.width = (int64_t)width;
    recipe.model = dt_model_segments(net, (int64_t)(sizeof net / sizeof *net), all.vocabulary);
    recipe.sequence = 32;
    recipe.steps = 100;
    recipe.learning_rate = 5e-3f;
    layout.output.sample_length = 60;
    layout.threads = 1;
    if (!e) e = open_trainer(&t, &recipe, &layout);
    if (!e) e = dt_trainer_run(t, &info);
    if (e) return dt_trainer_close(&t), dt_fail("10_own_model");
    same = !strcmp(dt_trainer_hash(t), EXPECTED);
    if (dt_trainer_is_root(t)) {
        print_scales(t);
        printf("sha256   %s\nexpected %s\n", dt_trainer_hash(t), all.width == 48 ? EXPECTED : "(of width 48 alone)");
        if (all.width != 48) printf("ok: another width: hash not checked\n");
        else if (same)
            printf("ok: %lld weights of 4 segments of this program have the expected hash after %lld steps\n",
                   (long long)dt_trainer_weights(t), (long long)info.step);
        else fprintf(stderr, "FAILED: another hash; right if you changed the model, else please report it\n");
    }
    dt_trainer_close(&t);
    return all.width == 48 && !same;
}
