/* 14_llama: a small Llama, and what it has that a GPT-2 has not.
 *
 * What you learn
 *     Both families are a stack of blocks on a table of embeddings; "Llama" names five exchanges in it:
 *       - LayerNorm -> RMSNorm: only the size of a row is normalised, not its mean; C weights instead of 2 C.
 *       - learned positions -> rotary ones: no table (T,C); queries and keys are turned by an angle that grows with the
 *         position, so that a score depends on the distance of two tokens. No weights.
 *       - as many keys and values as queries -> grouped heads: each head of the keys and values serves several heads of
 *         the queries (4 heads of queries on 4, 2 or 1 here).
 *       - GELU MLP of width 4 C -> SwiGLU: down(silu(gate(x)) * up(x)), three matrices instead of two, so the width is
 *         8/3 C, and the weights are about as many.
 *       - no biases; and the head has a table of its own unless the model is "tied", as GPT-2 is.
 *     Grouped heads save few weights. What they save is memory while text is drawn: the keys and values of all earlier
 *     tokens are kept, 2 x layers x kv_heads x d floats per token. For llama3-8B with 8 of 32 heads that is 128 KiB per
 *     token in 16 bits, 1 GiB for 8192 tokens; with 32 it would be 4 GiB, for every text that is drawn at a time.
 *
 *     The same model is built here once more, from the functions that are open to any model: dt_linear_with, dt_rope,
 *     dt_attend. Its first loss has the family's bits. Later losses differ, first in the last digits: the family adds the
 *     input gradients of q, k and v in one chain, three calls add three sums.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 14_llama.c -o 14_llama -lm -lpthread
 *     ./14_llama
 *     ./14_llama --ranks 2
 *
 * What you should see
 *     Five models of one width, their weights counted by formula and by the trainer, what their caches hold per token,
 *     and the loss after the same steps: on so little data the order of the losses says nothing about larger models.
 *
 * Read on: 07_generation.c, how text is drawn with that cache. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPECTED "03250b0e45e0c534400205540930a7df98b7f8f53c74a33e213a016b996b9ec8"

enum { VOCABULARY = 256, SEQUENCE = 32 };

/* Weights by formula. Tables: GPT-2 has one for tokens and one for positions, Llama one for tokens and one for the head. */
static long long count(const dt_model *m)
{
    long long C = m->width, kv = m->width / m->heads * m->kv_heads, H = 192; /* H: 8/3 of 64, up to a multiple of 32 */
    if (m->family == DT_LLAMA) return 2 * VOCABULARY * C + m->layers * (2 * C + 2 * C * C + 2 * C * kv + 3 * C * H) + C;
    return (VOCABULARY + SEQUENCE) * C + m->layers * (4 * C + C * 3 * C + 3 * C + C * C + C + 8 * C * C + 5 * C) + 2 * C;
}

static long long cache_bytes(const dt_model *m) /* per token, in fp32 */
{
    return 4LL * 2 * m->layers * (m->width / m->heads) * (m->family == DT_LLAMA ? m->kv_heads : m->heads);
}

/* llama-nano once more, from public functions: tokens (B,T) -> (B,T,C) */
static dt_tensor embed(dt_graph *g, dt_tensor tokens, const void *user)
{
    const dt_model *m = (const dt_model *)user;
    dt_shape shape = dt_shape2(VOCABULARY, m->width);
    return dt_embed(g, dt_param(g, "/model.embed_tokens.weight", shape, DT_INIT_NORMAL, 0.02f), tokens);
}

/* (B,T,C) -> (B,T,C): x + attention, then + SwiGLU; projections without biases, those into the residual smaller. */
static dt_tensor block(dt_graph *g, dt_tensor x, const void *user)
{
    const dt_model *m = (const dt_model *)user;
    int64_t kv = m->width / m->heads * m->kv_heads, hidden = 192;
    dt_attention_options o = {0};
    dt_tensor none = {0}, h = dt_rmsnorm(g, x, "input_layernorm", 1e-5f), q, k, v;
    o.heads = m->heads, o.kv_heads = m->kv_heads, o.causal = 1;
    q = dt_linear_with(g, h, "self_attn.q_proj", m->width, 0.02f, DT_NO_BIAS); /* (B,T,C) */
    k = dt_linear_with(g, h, "self_attn.k_proj", kv, 0.02f, DT_NO_BIAS);       /* (B,T,kv) */
    v = dt_linear_with(g, h, "self_attn.v_proj", kv, 0.02f, DT_NO_BIAS);
    q = dt_rope(g, q, m->heads, 10000.0, 0, NULL), k = dt_rope(g, k, m->kv_heads, 10000.0, 0, NULL);
    h = dt_attend(g, q, k, v, none, &o);
    x = dt_add(g, x, dt_linear_with(g, h, "self_attn.o_proj", m->width, 0.01f, DT_NO_BIAS));
    h = dt_rmsnorm(g, x, "post_attention_layernorm", 1e-5f);
    q = dt_silu(g, dt_linear_with(g, h, "mlp.gate_proj", hidden, 0.02f, DT_NO_BIAS)); /* (B,T,H) */
    h = dt_mul(g, q, dt_linear_with(g, h, "mlp.up_proj", hidden, 0.02f, DT_NO_BIAS));
    return dt_add(g, x, dt_linear_with(g, h, "mlp.down_proj", m->width, 0.01f, DT_NO_BIAS));
}

/* (B,T,C) -> scalar loss of the next bytes */
static dt_tensor head(dt_graph *g, dt_tensor x, const void *user)
{
    dt_shape shape = dt_shape2(VOCABULARY, ((const dt_model *)user)->width);
    dt_tensor table = dt_param(g, "/lm_head.weight", shape, DT_INIT_NORMAL, 0.02f);
    x = dt_matmul(g, dt_rmsnorm(g, x, "norm", 1e-5f), table, 0, 1); /* (B,T,V) */
    return dt_cross_entropy(g, x, dt_targets(g), 0.0f);
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
    int file = mkstemp(text);
    dt_result e;
    if (file < 0) return perror("14_llama: no file in /tmp"), DT_E_FILE;
    close(file);
    recipe->data = text;
    e = prose_generate(text, 100000, 1);
    if (!e) e = dt_trainer_open(t, recipe, layout);
    remove(text); /* open files live on without a name */
    return e;
}

/* Trains a model with as many weights as `like`, and prints its line; *hash gets the hash. */
static dt_result train(const char *name, dt_model model, const dt_model *like, int *counted, char hash[65], float *loss)
{
    dt_recipe recipe = the_recipe();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    layout.output.quiet = 1;
    layout.threads = 1;
    recipe.model = model;
    e = open_trainer(&t, &recipe, &layout);
    if (!e) e = dt_trainer_run(t, &info);
    if (!e) snprintf(hash, 65, "%s", dt_trainer_hash(t));
    if (!e) *counted = *counted && dt_trainer_weights(t) == count(like);
    if (!e && dt_trainer_is_root(t))
        printf("%-24s %8lld  %10lld  %22lld  %5.3f\n", name,
               (long long)dt_trainer_weights(t), count(like), cache_bytes(like), (double)info.loss);
    *loss = info.loss;
    fflush(stdout);
    dt_trainer_close(&t);
    return e;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"Llama, 4 key heads", "Llama, 2 (llama-nano)", "Llama, 1"};
    static dt_model gpt2, llama, nano;
    static const dt_segment own[] = {
        {"model", embed, &nano}, {"model.layers.0", block, &nano}, {"model.layers.1", block, &nano},
        {"model", head, &nano}};
    char hash[5][65];
    float loss[5];
    int counted = 1, root;
    dt_result e = dt_launch(&argc, &argv);
    if (argc > 1) return fprintf(stderr, "14_llama: the option is --ranks N\n"), dt_exit_code(DT_E_USAGE);
    gpt2 = dt_model_gpt2("nano"), llama = nano = dt_model_llama("llama-nano");
    gpt2.heads = llama.heads;
    root = !getenv("RANK") || !strcmp(getenv("RANK"), "0");
    if (!e && root)
        printf("%-24s %8s  %10s  %22s  %5s\n", "model", "weights", "by formula", "cache, bytes per token", "loss");
    if (!e) e = train("GPT-2", gpt2, &gpt2, &counted, hash[3], &loss[3]);
    for (int i = 0; i < 3 && !e; i++) {
        llama.kv_heads = 4 >> i;
        e = train(names[i], llama, &llama, &counted, hash[i], &loss[i]);
    }
    llama = dt_model_segments(own, 4, VOCABULARY);
    if (!e) e = train("llama-nano, own segments", llama, &nano, &counted, hash[4], &loss[4]);
    if (e) return dt_fail("14_llama");
    if (root) printf("llama-nano, sha256 %s\n          expected %s\n", hash[1], EXPECTED);
    counted = counted && loss[4] > 0.95f * loss[1] && loss[4] < 1.05f * loss[1];
    if (counted && !strcmp(hash[1], EXPECTED)) {
        if (root) printf("ok: a Llama, counted by formula, with the hash that everyone gets\n");
        return 0;
    }
    fprintf(stderr, "FAILED: %s\n", counted ? "another hash; right if you changed the recipe" : "weights, formula or losses differ");
    return 1;
}
