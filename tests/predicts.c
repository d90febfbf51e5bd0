/* Trains a small model and predicts with it, or opens its checkpoint and predicts, for test_use.t: "predicts MODEL train
 * PLACE", "predicts MODEL use PLACE", "predicts MODEL from PLACE" (a trainer of the recipe of PLACE, before its first
 * step); MODEL: own, wide, renamed, more, tokens, gpt2, llama, experts. Prints a hash of the predictions for 1, 7 and
 * 1000 samples. Other options are the trainer's. */
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUTS = 5, TOKENS = 16, SAMPLES = 1000 };
static int width = 24, more;

static dt_tensor hidden(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_tanh(g, dt_linear(g, x, "one", width));
}
static dt_tensor out(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    if (more) x = dt_relu(g, dt_linear(g, x, "more", width));
    x = dt_linear(g, x, "two", 1);
    dt_prediction(g, x);
    return dt_error_loss(g, DT_MSE, x, dt_targets(g));
}

/* A model of tokens, whose logits are its prediction. */
static dt_tensor table(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_embed(g, dt_param(g, "table", dt_shape2(256, 16), DT_INIT_NORMAL, 0.02f), x);
}
static dt_tensor head(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_cross_entropy(g, dt_linear(g, x, "head", 256), dt_targets(g), 0.0f);
}

static float value(int64_t sample, int i) { return (float)((sample * 31 + i * 17) % 64 - 32) / 32.0f; }
static dt_result fetch(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    (void)user;
    for (int i = 0; i < INPUTS; i++) ((float *)input)[i] = value(sample + 7 * (int)split, i);
    *(float *)target = value(sample, 0) * value(sample, 1);
    return DT_OK;
}

static uint64_t hash_of(const float *x, int64_t count)
{
    uint64_t h = 14695981039346656037u;
    const unsigned char *byte = (const unsigned char *)x;
    for (int64_t i = 0; i < 4 * count; i++) h = (h ^ byte[i]) * 1099511628211u;
    return h;
}

static int failed(const char *what) { return fprintf(stderr, "%s: ", what), dt_fail("predicts"); }

int main(int argc, char **argv)
{
    static const int64_t counts[] = {1, 7, SAMPLES};
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_source source = {NULL, {64, 0}, INPUTS, 1, DT_F32, DT_F32, fetch};
    dt_segment mine[2] = {{"hidden", hidden, NULL}, {"out", out, NULL}}, words[2] = {{"words", table, NULL}, {"head", head, NULL}};
    dt_trainer *t = NULL;
    dt_step_info info;
    int own, tokens, root;
    int64_t inputs, each;
    float *in, *to;
    if (dt_launch(&argc, &argv)) return failed("start");
    if (dt_args(&argc, &argv, &recipe, &layout)) return failed("options");
    if (argc != 4) return 2;
    tokens = !strcmp(argv[1], "tokens");
    own = tokens || strchr("owrm", *argv[1]);
    if (!strcmp(argv[1], "wide")) width = 32;
    if (!strcmp(argv[1], "renamed")) mine[1].name = "other";
    more = !strcmp(argv[1], "more");
    inputs = own && !tokens ? INPUTS : TOKENS, each = own && !tokens ? 1 : TOKENS * 256;
    if (own) recipe.model = dt_model_segments(tokens ? words : mine, 2, 0);
    else if (*argv[1] == 'l') recipe.model = dt_model_llama("llama-nano");
    else recipe.model = dt_model_gpt2("nano"), recipe.model.experts = *argv[1] == 'e' ? 4 : 0;
    layout.output.quiet = 1, layout.output.sample_length = 0;
    if (!strcmp(argv[2], "use")) {
        if (dt_predictor_open(&t, argv[3], own ? &recipe.model : NULL, &layout)) return failed("use");
        if (dt_trainer_step(t, &info) != DT_E_USAGE || dt_trainer_run(t, &info) != DT_E_USAGE) return failed("a step");
    } else {
        dt_model model = recipe.model;
        const char *data = recipe.data;
        if (!strcmp(argv[2], "from")) {
            if (dt_recipe_from(&recipe, argv[3])) return failed("from");
            if (own) recipe.model = model;
            recipe.data = data;
        } else {
            recipe.steps = 5, recipe.batch = 16, recipe.sequence = TOKENS, recipe.learning_rate = 0.01f, recipe.warmup = 1;
            layout.checkpoint.place = argv[3];
        }
        if (own && !tokens) recipe.source = &source, recipe.data = NULL;
        if (dt_trainer_open(&t, &recipe, &layout)) return failed("open");
        if (strcmp(argv[2], "from") && dt_trainer_run(t, &info)) return failed("train");
    }
    root = dt_trainer_is_root(t);
    in = (float *)malloc(4 * (size_t)(SAMPLES * inputs)), to = (float *)malloc(4 * (size_t)(SAMPLES * each));
    for (int64_t i = 0; i < SAMPLES * inputs; i++)
        if (own && !tokens) in[i] = value(i / inputs, (int)(i % inputs));
        else ((int32_t *)(void *)in)[i] = (int32_t)(i * 7 % 251);
    for (int k = 0; k < 3; k++) {
        if (dt_trainer_predict(t, in, counts[k], to, each)) return failed("predict");
        if (root) printf("%lld: %016llx\n", (long long)counts[k], (unsigned long long)hash_of(to, counts[k] * each));
    }
    free(in);
    free(to);
    dt_trainer_close(&t);
    return 0;
}
