/* 16_llama_by_hand: which functions make a Llama?
 *
 * What you learn
 *     - A block is a norm, three projections, two rotations, one attention, one projection back; a norm, a gate, an up
 *       and a down projection. dt_linear_with, dt_rope, dt_attend and dt_silu are open to any model.
 *     - The name of a parameter decides its initial weights: with the family's names the segments draw the family's
 *       numbers, and the first loss has the same bits.
 *     - Later losses differ, at first in their last digits: the family adds the input gradients of q, k and v in one
 *       chain, three calls add three sums. Neither is more exact.
 *     - The projections into the residual start smaller, so that a block hardly changes x at first.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 16_llama_by_hand.c -o 16_llama_by_hand -lm -lpthread
 *     ./16_llama_by_hand --ranks 2              (1 or 2; --until 10: ends at step 10)
 *
 * What it prints
 *                     weights  tensors  first loss  last loss
 *     the family       131392       21    5.557486  1.9592586
 *     from functions   131392       21    5.557486  2.0040658
 *     ok: both first losses are 5.5574861, to the bit; by the order of sums the last ones differ by 0.0448072
 *
 * Predict first: after ten steps, which digit of the two losses is the first to differ, and does it matter?
 * Exercise: leave the rotations out. Does the first loss change, and how much larger is the last one?
 *
 * Read on: 22_ring.c for several ranks, 52_tensor_parallel_by_hand.c for a layer that is cut. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "prose.h"
#include <math.h>

enum { VOCABULARY = 256, STEPS = 100 };
static double until = STEPS;

/* Tokens (B,T) -> (B,T,C). */
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
    x = dt_matmul(g, dt_rmsnorm(g, x, "/model.norm", 1e-5f), table, 0, 1); /* (B,T,V) */
    return dt_cross_entropy(g, x, dt_targets(g), 0.0f);
}

/* Trains one of the two: first and last loss, weights and tensors. Every rank writes its own copy of the text. */
static dt_result train(dt_model model, float loss[2], int64_t count[2], int *root)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.model = model, recipe.data = text, recipe.steps = STEPS, recipe.batch = 8, recipe.sequence = 32;
    recipe.data_shards = 2, recipe.learning_rate = 1e-2f, recipe.warmup = 10, recipe.validation = 0;
    layout.output.quiet = 1, layout.threads = 1;
    e = prose_temporary(text, 100000);
    if (!e) e = dt_trainer_open(&t, &recipe, &layout);
    remove(text); /* open files live on without a name */
    if (!e) e = dt_trainer_step(t, &info);
    loss[0] = info.loss;
    while (!e && info.step < (int64_t)until) e = dt_trainer_step(t, &info);
    loss[1] = info.loss;
    count[1] = 0;
    for (dt_shape shape; !e && dt_trainer_parameter_at(t, count[1], &shape);) count[1]++;
    if (!e) count[0] = dt_trainer_weights(t), *root = dt_trainer_is_root(t);
    dt_trainer_close(&t);
    return e;
}

int main(int argc, char **argv)
{
    static dt_model nano;
    static const dt_segment own[] = {{"model", embed, &nano},
                                     {"model.layers.0", block, &nano},
                                     {"model.layers.1", block, &nano},
                                     {"head", head, &nano}};
    option list[] = {{"--until", 1, STEPS, &until}};
    float family[2], mine[2];
    int64_t count[2][2];
    int root = 0;
    dt_result e = dt_launch(&argc, &argv);
    if (!options_read(argc, argv, list, 1)) return dt_exit_code(DT_E_USAGE);
    nano = dt_model_llama("llama-nano");
    if (!e) e = train(nano, family, count[0], &root);
    if (!e) e = train(dt_model_segments(own, 4, VOCABULARY), mine, count[1], &root);
    if (e) return dt_fail("16_llama_by_hand");
    if (root) {
        printf("                weights  tensors  first loss  last loss\n");
        printf("the family      %7d  %7d  %10.6f  %9.7f\n", (int)count[0][0], (int)count[0][1], (double)family[0],
               (double)family[1]);
        printf("from functions  %7d  %7d  %10.6f  %9.7f\n", (int)count[1][0], (int)count[1][1], (double)mine[0],
               (double)mine[1]);
    }
    if (count[0][0] != count[1][0] || mine[0] != family[0] || mine[1] > 1.05f * family[1])
        return fprintf(stderr, "FAILED: the two are not one model\n"), 1;
    if (root) printf("ok: both first losses are %.7f, to the bit; by the order of sums the last ones differ by %.7f\n",
                     (double)mine[0], (double)fabsf(mine[1] - family[1]));
    return 0;
}
