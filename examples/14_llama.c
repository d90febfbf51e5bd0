/* 14_llama: which parts of a GPT-2 does a Llama replace, and what does each replacement save?
 *
 * What you learn
 *     - RMSNorm replaces LayerNorm: C weights instead of 2 C. Rotary positions replace learned ones: queries and keys
 *       are turned by an angle that grows with the position, so there is no table (T,C). SwiGLU of width 8/3 C replaces
 *       a GELU MLP of width 4 C: three matrices, and about as many weights. There are no biases, and the head has a
 *       table of its own.
 *     - Grouped heads: each head of keys and values serves several heads of queries. Here 4 heads of queries share 4, 2
 *       or 1.
 *     - Grouped heads save few weights. They save memory while text is drawn: the model keeps the keys and values of
 *       all earlier tokens, 2 x layers x kv_heads x d numbers per token. llama3-8B with 8 of 32 heads keeps 128 KiB per
 *       token in 16 bits, 1 GiB for 8192 tokens; with 32 heads it would keep 4 GiB.
 *     - On so little data the order of the losses says nothing about larger models.
 *     - Related models change one part each: Mistral bounds what attention sees (--window), Qwen2 has biases on q, k
 *       and v (--qkv-bias), Qwen3 a norm on each head of q and k (--qk-norm) and heads of any width (--head-width).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 14_llama.c -o 14_llama -lm -lpthread
 *     ./14_llama                                (--heads 8: instead of 4)
 *     ./14_llama --ranks 2
 *
 * What it prints
 *     model                     weights  by formula  cache, bytes per token   loss
 *     GPT-2                      118528      118528                    1024  2.681
 *     Llama, 4 key heads         139584      139584                    1024  2.011
 *     Llama, 2 (llama-nano)      131392      131392                     512  1.959
 *     Llama, 1                   127296      127296                     256  1.923
 *     llama-nano, sha256 03250b0e45e0c534400205540930a7df98b7f8f53c74a33e213a016b996b9ec8
 *               expected 03250b0e45e0c534400205540930a7df98b7f8f53c74a33e213a016b996b9ec8
 *     ok: 4 models have the weights of the formula; the hash of llama-nano is the expected one
 *
 * Predict first: how many weights does a Llama with 8 heads of queries and 2 of keys have at the same width, and how
 *     many bytes per token?
 * Exercise: tie the head to the token table (dt_model.tied). How many weights disappear, and how does the loss change?
 *
 * Read on: 15_moe.c for models of many experts, 16_llama_by_hand.c for this one from single functions. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "prose.h"

#define EXPECTED "03250b0e45e0c534400205540930a7df98b7f8f53c74a33e213a016b996b9ec8"

enum { VOCABULARY = 256, SEQUENCE = 32 };

/* Weights by formula. Tables: GPT-2 has them for tokens and positions, Llama for tokens and the head. */
static long long count(const dt_model *m)
{
    long long C = m->width, kv = m->width / m->heads * m->kv_heads, H = 192; /* H: 8/3 of 64, up to a multiple of 32 */
    if (m->family == DT_LLAMA) return 2 * VOCABULARY * C + m->layers * (2 * C + 2 * C * C + 2 * C * kv + 3 * C * H) + C;
    return (VOCABULARY + SEQUENCE) * C + m->layers * (12 * C * C + 13 * C) + 2 * C;
}

static long long cache_bytes(const dt_model *m) /* per token, in fp32 */
{
    return 4LL * 2 * m->layers * (m->width / m->heads) * (m->family == DT_LLAMA ? m->kv_heads : m->heads);
}

static dt_recipe the_recipe(void)
{
    dt_recipe r = dt_recipe_default();
    r.model = dt_model_llama("llama-nano");
    r.steps = 100;
    r.batch = 8;
    r.data_shards = 2; /* up to 2 ranks */
    r.sequence = SEQUENCE;
    r.learning_rate = 1e-2f;
    r.warmup = 10;
    r.validation = 0;
    return r;
}

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

/* Trains a model and prints its line; *hash gets the hash. */
static dt_result train(const char *name, const dt_model *model, int *counted, char hash[65])
{
    dt_recipe recipe = the_recipe();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    layout.output.quiet = 1;
    layout.threads = 1;
    recipe.model = *model;
    e = open_trainer(&t, &recipe, &layout);
    if (!e) e = dt_trainer_run(t, &info);
    if (!e) snprintf(hash, 65, "%s", dt_trainer_hash(t));
    if (!e) *counted = *counted && dt_trainer_weights(t) == count(model);
    if (!e && dt_trainer_is_root(t))
        printf("%-24s %8lld  %10lld  %22lld  %5.3f\n", name,
               (long long)dt_trainer_weights(t), count(model), cache_bytes(model), (double)info.loss);
    fflush(stdout);
    dt_trainer_close(&t);
    return e;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"Llama, 4 key heads", "Llama, 2 (llama-nano)", "Llama, 1"};
    dt_model gpt2 = dt_model_gpt2("nano"), llama = dt_model_llama("llama-nano");
    char hash[4][65];
    double heads = 4;
    option list[] = {{"--heads", 4, 16, &heads}};
    int counted = 1, root;
    dt_result e = dt_launch(&argc, &argv);
    if (!options_read(argc, argv, list, 1)) return dt_exit_code(DT_E_USAGE);
    gpt2.heads = llama.heads = (int)heads;
    root = !getenv("RANK") || !strcmp(getenv("RANK"), "0");
    if (!e && root)
        printf("%-24s %8s  %10s  %22s  %5s\n", "model", "weights", "by formula", "cache, bytes per token", "loss");
    if (!e) e = train("GPT-2", &gpt2, &counted, hash[3]);
    for (int i = 0; i < 3 && !e; i++) {
        llama.kv_heads = 4 >> i;
        e = train(names[i], &llama, &counted, hash[i]);
    }
    if (e) return dt_fail("14_llama");
    if (root && heads <= 4) printf("llama-nano, sha256 %s\n          expected %s\n", hash[1], EXPECTED);
    if (!counted || (heads <= 4 && strcmp(hash[1], EXPECTED)))
        return fprintf(stderr, "FAILED: %s\n", counted ? "another hash" : "weights are not the formula's"), 1;
    if (root) printf("ok: 4 models have the weights of the formula; the hash of llama-nano is %s\n",
                     heads > 4 ? "of other heads, not checked" : "the expected one");
    return 0;
}
