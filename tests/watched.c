/* watched.c KIND [OPTION..]: trains two steps of a small model whose blocks have what a trainer reads beside the output: 0 an
 * auxiliary loss that ends in cheap ops, 1 one number of 16 bits, 2 two mixtures of experts side by side; 3 is 400 products
 * of a value with itself, 4 logits that the pass of that name may make by blocks, 5 those of a large vocabulary. Prints losses, counts and predictions: the same, compiled or not. test_compiler.t runs it. */
#define DT_COMPILER
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 32, MOST = 9000, LENGTH = 32, ASKED = 3 };
static int kind, vocabulary = 256;

static dt_tensor embed(dt_graph *g, dt_tensor tokens, const void *user)
{
    (void)user;
    return dt_embed(g, dt_param(g, "table", dt_shape2(vocabulary, WIDTH), DT_INIT_NORMAL, 0.02f), tokens);
}
static dt_tensor auxiliary(dt_graph *g, dt_tensor x)
{
    dt_tensor gate = dt_tanh(g, dt_linear(g, x, "gate", 16));
    dt_tensor loss = dt_scale(g, dt_map(g, DT_EXP, dt_mean(g, dt_mul(g, gate, gate), DT_ALL)), 0.5f);
    x = dt_auxiliary_loss(g, x, loss, 0.1f);
    return dt_add(g, x, dt_linear(g, dt_gelu(g, dt_linear(g, x, "up", 2 * WIDTH)), "down", WIDTH));
}
static dt_tensor one_number(dt_graph *g, dt_tensor x)
{
    dt_tensor sums = dt_cast(g, dt_sum(g, dt_mul(g, x, x), 3), DT_BF16); /* (WIDTH) */
    dt_tensor one = dt_cast(g, dt_slice(g, sums, 0, 3, 4), DT_F32);
    return dt_mul(g, x, dt_tanh(g, dt_scale(g, one, 0.5f)));
}
static dt_tensor mixtures(dt_graph *g, dt_tensor x)
{
    dt_moe_options big = {0}, small = {0};
    dt_tensor a = dt_linear(g, x, "a", 512), b = dt_linear(g, x, "b", 256); /* recorded before both, and of different size */
    big.experts = small.experts = 4, big.active = 1, small.active = 2, big.width = 256, small.width = 16;
    big.balance = 0.01f, small.balance = 0.02f, big.z_loss = 0.003f, small.z_loss = 0.001f;
    a = dt_linear(g, dt_moe(g, dt_slice(g, a, 2, 0, 8), "big", &big), "from_big", WIDTH);
    b = dt_linear(g, dt_moe(g, dt_slice(g, b, 2, 0, 8), "small", &small), "from_small", WIDTH);
    return dt_add(g, x, dt_add(g, a, b));
}
static dt_tensor block(dt_graph *g, dt_tensor x, const void *user)
{
    dt_tensor y = x = dt_add(g, x, dt_linear(g, dt_layernorm(g, x, "norm", 1e-5f), "linear", WIDTH));
    (void)user;
    if (kind == 0) return auxiliary(g, x);
    if (kind == 1) return one_number(g, x);
    if (kind == 2) return mixtures(g, x);
    if (kind >= 4) return x;
    for (int i = 0; i < 400; i++) y = dt_mul(g, y, dt_map(g, DT_SIGMOID, y));
    return dt_add(g, x, y);
}
static dt_tensor head(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    if (kind >= 4) return dt_cross_entropy(g, dt_linear_with(g, x, "out", vocabulary, 0.02f, DT_NO_BIAS), dt_targets(g), 0.0f);
    return dt_cross_entropy(g, dt_linear(g, dt_layernorm(g, x, "norm", 1e-5f), "out", vocabulary), dt_targets(g), 0.0f);
}

int main(int argc, char **argv)
{
    static const dt_segment net[] = {{"embed", embed, NULL}, {"block0", block, NULL}, {"block1", block, NULL}, {"head", head, NULL}};
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r = dt_launch(&argc, &argv);
    static float logits[ASKED * LENGTH * MOST];
    int32_t tokens[ASKED * LENGTH];
    int64_t each;
    float counts[4];
    if (argc > 1) kind = atoi(argv[1]), argv[1] = argv[0], argc--, argv++;
    if (kind == 5) vocabulary = MOST;
    each = LENGTH * vocabulary;
    recipe.model = dt_model_segments(net, 4, vocabulary), recipe.batch = 8, recipe.sequence = LENGTH, recipe.steps = 2, recipe.warmup = 1;
    recipe.validation = 0.0f, layout.output.sample_length = 0, layout.threads = 1;
    if (!r) r = dt_args(&argc, &argv, &recipe, &layout);
    if (!r) r = dt_trainer_open(&t, &recipe, &layout);
    while (!r && info.step < recipe.steps) {
        r = dt_trainer_step(t, &info);
        if (!r) printf("step %d: loss %.9g, auxiliary %.9g\n", (int)info.step, (double)info.loss, (double)info.auxiliary);
    }
    for (int m = 0; !r && kind == 2 && m < 4; m++) {
        r = dt_trainer_experts(t, m, counts);
        if (!r) printf("mixture %d: %g %g %g %g\n", m, (double)counts[0], (double)counts[1], (double)counts[2], (double)counts[3]);
    }
    for (int i = 0; i < ASKED * LENGTH; i++) tokens[i] = i * i % vocabulary;
    if (!r && kind >= 4) r = dt_trainer_predict(t, tokens, ASKED, logits, each);
    for (int64_t i = 0; !r && kind >= 4 && i < ASKED * each; i += each / 9) printf("logit %d: %.9g\n", (int)i, (double)logits[i]);
    if (!r) printf("%s\n", dt_trainer_hash(t));
    dt_trainer_close(&t);
    return r ? dt_fail("watched") : 0;
}
