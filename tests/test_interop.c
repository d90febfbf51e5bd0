/* Published directories against transformers, which made them and computed their logits (make_interop.py): config.json
 * becomes a model, model.safetensors its weights, in one file or several, in fp32, fp16 and bf16; the same logits within
 * 1e-5 of the largest, in several forms of the recipe. With arguments: those directories instead of golden/hub. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tap.h"

#define LIMIT 1e-5

static dt_recipe recipe;
static dt_layout layout;
static dt_source source;

static dt_result zeros(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    (void)user, (void)split, (void)sample;
    memset(input, 0, 4 * (size_t)source.inputs);
    memset(target, 0, 4 * (size_t)source.targets);
    return DT_OK;
}

/* A recipe for the model of a directory, from its weights, with sequences of `length`. */
static dt_result prepare(const char *folder, int64_t length)
{
    memset(&source, 0, sizeof source);
    source.samples[DT_TRAIN] = 4;
    source.inputs = source.targets = length;
    source.input_type = source.target_type = DT_I32;
    source.fetch = zeros;
    recipe = dt_recipe_default();
    recipe.source = &source;
    recipe.sequence = length;
    recipe.batch = recipe.micro_batch = 2, recipe.data_shards = 1, recipe.steps = 1;
    recipe.weights = folder;
    layout = dt_layout_default();
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0;
    return dt__model_read(&recipe.model, folder);
}

/* The logits (count) of the tokens, and the hash of what was loaded. */
static dt_result logits_of(const int32_t *tokens, int64_t samples, float *logits, int64_t count, char hash[65])
{
    dt_trainer *t = NULL;
    dt_result r = dt_trainer_open(&t, &recipe, &layout);
    if (!r) r = dt_trainer_predict(t, tokens, samples, logits, count / samples);
    if (!r) memcpy(hash, dt_trainer_hash(t), 65);
    dt_trainer_close(&t);
    return r;
}

static void compare(const char *folder, const char *weights, const char *name)
{
    static const struct form { int64_t tensor, context; const char *what; } forms[] = {
        { 1, 1, "whole" }, { 2, 1, "2 tensor shards" }, { 1, 2, "2 context shards" } };
    char path[PATH_MAX], what[256], hash[2][65];
    tap_golden *g;
    const tap_tensor *tokens, *logits;
    float *got;
    int64_t at;
    if ((size_t)snprintf(path, sizeof path, "%s/expected.safetensors", folder) >= sizeof path) tap_bail("a long name");
    g = tap_golden_open(path);
    tokens = tap_golden_find(g, "tokens"), logits = tap_golden_find(g, "logits");
    if (!tokens || !logits) tap_bail("%s has no tokens or no logits", path);
    got = (float *)malloc(4 * (size_t)logits->count);
    for (int i = 0; i < 3; i++) {
        dt_result r = prepare(weights, tokens->shape[1]);
        recipe.tensor_shards = forms[i].tensor, recipe.context_shards = forms[i].context;
        if (!r) r = logits_of((const int32_t *)tokens->data, tokens->shape[0], got, logits->count, hash[i > 0]);
        snprintf(what, sizeof what, "%s, %s: the logits of transformers", name, forms[i].what);
        if (r) tap_ok(0, "%s: %s", what, dt_last_error());
        else tap_near(got, (const float *)logits->data, logits->count, LIMIT, what);
        if (!r && i) tap_ok(!strcmp(hash[0], hash[1]), "%s, %s: the same weights", name, forms[i].what);
    }
    if (tap_error(got, (const float *)logits->data, logits->count, &at) > 0)
        tap_note("largest difference %.2e of %.3g", (double)got[at] - (double)((const float *)logits->data)[at],
                 (double)((const float *)logits->data)[at]);
    free(got);
    tap_golden_close(g);
}

static char hub[PATH_MAX], scratch[] = "/tmp/dtrain-interop-XXXXXX";

/* ---- what is refused ---- */

static void refused(dt_result r, dt_result code, const char *words, const char *what)
{
    if (!tap_ok(r == code && strstr(dt_last_error(), words), "%s", what)) tap_note("%d: %s", (int)r, dt_last_error());
}

static void spew(const char *name, const char *text)
{
    char path[PATH_MAX];
    FILE *f;
    snprintf(path, sizeof path, "%.100s/%.60s", scratch, name);
    f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) tap_bail("cannot write %s", path);
}

/* A model of a config.json with one more member, which counts where it stands for another one, too. */
static void config(const char *member, const char *words)
{
    char text[1024];
    dt_model m;
    int gpt2 = !strncmp(member, "gpt2 ", 5);
    snprintf(text, sizeof text, gpt2 ? "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 2, \"n_embd\": 8, \"vocab_size\": 9, %s}"
                                     : "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
                                       "\"hidden_size\": 8, \"intermediate_size\": 12, \"vocab_size\": 9, %s}",
             member + 5 * gpt2);
    spew("config.json", text);
    if (words) refused(dt__model_read(&m, scratch), DT_E_DATA, words, member);
    else if (!tap_ok(!dt__model_read(&m, scratch) && m.width == 8, "%s", member)) tap_note("%s", dt_last_error());
    else {
        snprintf(text, sizeof text, "%s/config.json", scratch);
        tap_ok(!dt_recipe_from(&recipe, text) && recipe.model.width == 8 && !recipe.weights, "  a recipe of the file");
    }
}

static void configs(void)
{
    dt_model m;
    config("\"hidden_act\": \"gelu\"", "hidden_act gelu: choose one of silu,swish");
    config("\"attention_bias\": true, \"mlp_bias\": true", NULL);
    config("\"attention_bias\": 1", "attention_bias 1: choose one of false,true");
    config("\"sliding_window\": 4096", NULL);
    config("\"sliding_window\": null", NULL);
    config("\"sliding_window\": 0", "sliding_window is a whole number");
    config("\"layer_types\": [\"full_attention\", \"full_attention\"]", NULL);
    config("\"layer_types\": [\"sliding_attention\"]", "layer_types: layers of sliding_attention");
    config("\"layer_types\": [\"sliding_attention\"], \"sliding_window\": 8", NULL);
    config("\"layer_types\": [\"linear_attention\"]", "layer_types: layers of linear_attention");
    config("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}", NULL);
    config("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}", "factor is 1 or more");
    config("\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2.0}", "there are original positions");
    config("\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2.0}, \"max_position_embeddings\": 64", NULL);
    config("\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2.0}, \"original_max_position_embeddings\": 64", NULL);
    config("\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2.0, \"mscale\": 1.0}", "mscale 1.0");
    config("\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2.0, \"beta_fast\": 0.5}", "factor is 1 or more");
    config("\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 2.0}", "factor is 1 or more");
    config("\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}", "of type dynamic; llama3, linear and yarn");
    config("\"rope_scaling\": {\"type\": \"longrope\"}", "of type longrope");
    config("\"rope_scaling\": {\"type\": \"default\"}", NULL);
    config("\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 500000.0}", NULL);
    config("\"partial_rotary_factor\": 0.5", "partial_rotary_factor 0.5");
    config("\"head_dim\": 8", NULL);
    config("\"quantization_config\": {}", "quantization_config");
    config("\"num_hidden_layers\": 3", "a second time");
    config("\"num_key_value_heads\": -1", "num_key_value_heads -1: choose a whole number");
    config("gpt2 \"activation_function\": \"relu\"", "activation_function relu");
    config("gpt2 \"n_inner\": 33", "n_inner");
    config("gpt2 \"n_inner\": 32", NULL);
    config("gpt2 \"layer_norm_epsilon\": 1e-6", "layer_norm_epsilon");
    config("gpt2 \"scale_attn_by_inverse_layer_idx\": true", "scale_attn_by_inverse_layer_idx");
    config("gpt2 \"tie_word_embeddings\": false", "tie_word_embeddings");
    config("gpt2 \"scale_attn_weights\": false", "scale_attn_weights false");
    config("gpt2 \"add_cross_attention\": true", "add_cross_attention true");
    config("gpt2 \"reorder_and_upcast_attn\": true", NULL); /* fp32 already */
    spew("config.json", "{\"model_type\": \"mamba\"}");
    refused(dt__model_read(&m, scratch), DT_E_DATA, "model_type mamba: choose one of gpt2,llama,mistral,qwen2,qwen3", "another family");
    for (int i = 0; i < 3; i++) {
        static const char *const type[] = { "mistral", "qwen2", "qwen3" };
        char text[512];
        for (int heads = 0; heads < 2; heads++) {
            snprintf(text, sizeof text, "{\"model_type\": \"%s\", \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"hidden_size\": 8, "
                     "\"intermediate_size\": 12, \"vocab_size\": 9, \"sliding_window\": 16%s}", type[i], heads ? ", \"num_key_value_heads\": 1" : "");
            spew("config.json", text);
            if (!heads) refused(dt__model_read(&m, scratch), DT_E_DATA, "num_key_value_heads is missing", type[i]);
            else
                tap_ok(!dt__model_read(&m, scratch) && m.window == (i ? 0 : 16) && m.qkv_bias == (i == 1) && m.qk_norm == (i == 2) &&
                           m.head == (i == 2 ? 128 : 0) && !m.o_bias && !m.mlp_bias, "%s: its own defaults", type[i]);
        }
    }
    spew("config.json", "{\"model_type\": \"gpt2\", \"n_layer\": 2");
    refused(dt__model_read(&m, scratch), DT_E_DATA, "cut or no JSON", "a config.json that is cut");
    refused(dt__model_read(&m, "/no/such"), DT_E_FILE, "/no/such", "no such place");
}

static void refuse(dt_result code, const char *words, const char *what)
{
    dt_trainer *t = NULL;
    refused(dt_trainer_open(&t, &recipe, &layout), code, words, what);
    dt_trainer_close(&t);
}

static void weights(void)
{
    char folder[PATH_MAX + 16];
    snprintf(folder, sizeof folder, "%s/gpt2", hub);
    if (prepare(folder, 8)) tap_bail("%s", dt_last_error());
    recipe.model.layers = 3;
    refuse(DT_E_USAGE, "does not hold transformer.h.2.ln_1.weight, of shape (12)", "a layer that is missing");
    recipe.model.layers = 1;
    refuse(DT_E_USAGE, "which this model does not have", "a layer too many");
    recipe.model.layers = 2, recipe.model.heads = 3;
    refuse(DT_E_USAGE, "config.json says n_head 2, the recipe 3", "config.json says other heads");
    recipe.model.heads = 2, recipe.model.vocabulary = 64;
    refuse(DT_E_USAGE, "wte.weight of shape (40,12) in F32, expected are (64,12) in F32, F16 or BF16", "a larger vocabulary");
    prepare(folder, 12);
    refuse(DT_E_USAGE, "wpe.weight of shape (10,12) in F32, expected are (12,12) in F32, F16 or BF16", "sequences longer than positions");
    prepare(folder, 8);
    recipe.weights = scratch;
    refuse(DT_E_DATA, "holds neither model.safetensors nor", "a directory without weights");
    spew("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../b.safetensors\"}}");
    refuse(DT_E_DATA, "lies elsewhere", "an index that leads elsewhere");
    spew("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"b.safetensors\"}}");
    refuse(DT_E_FILE, "b.safetensors", "a file of the index that is missing");
    char place[2][PATH_MAX + 32];
    static float numbers[40 * 12] = { 1 };
    const dt_parameter head = { "lm_head.weight", dt_shape2(40, 12), numbers, NULL };
    snprintf(place[0], sizeof place[0], "%s/gpt2/model.safetensors", hub);
    snprintf(place[1], sizeof place[1], "%s/b.safetensors", scratch);
    if (symlink(place[0], place[1])) tap_bail("cannot link %s", place[1]);
    snprintf(place[1], sizeof place[1], "%s/head.safetensors", scratch);
    if (dt_parameters_save(place[1], &head, 1)) tap_bail("%s", dt_last_error());
    spew("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"b.safetensors\", \"b\": \"head.safetensors\"}}");
    refuse(DT_E_USAGE, "head.safetensors holds lm_head.weight, which this model does not have: it is of another model than GPT-2, whose head is "
                       "its table", "a GPT-2 whose head is not its table");
    recipe.weights = "/no/such";
    refuse(DT_E_FILE, "/no/such", "weights that are not there");
    snprintf(folder, sizeof folder, "%s/llama_grouped", hub);
    prepare(folder, 8);
    recipe.model.tied = 1;
    refuse(DT_E_USAGE, "or leave --tied out", "tied here alone");
    prepare(folder, 8);
    recipe.model.rope_base = 20000.0f;
    refuse(DT_E_USAGE, "rope_theta", "another rotary base");
    snprintf(folder, sizeof folder, "%s/mistral", hub);
    prepare(folder, 10);
    refuse(DT_E_USAGE, "sequences of 10 tokens are longer than the window of 8", "sequences longer than the window");
    prepare(folder, 8);
    recipe.model.window = 0;
    refuse(DT_E_USAGE, "another sliding_window", "without its window");
    snprintf(folder, sizeof folder, "%s/llama_yarn", hub);
    prepare(folder, 8);
    recipe.model.rope_scaling.kind = DT_ROPE_LLAMA3;
    refuse(DT_E_USAGE, "or rope_type than the recipe", "another scaling");
    snprintf(folder, sizeof folder, "%s/qwen2", hub);
    prepare(folder, 8);
    recipe.model.qkv_bias = 0;
    refuse(DT_E_USAGE, "self_attn.k_proj.bias, which this model does not have: it is of another model", "without its biases");
    snprintf(folder, sizeof folder, "%s/qwen3", hub);
    prepare(folder, 8);
    recipe.model.head = 0;
    refuse(DT_E_USAGE, "expected are (16,16)", "another width of heads");
}

int main(int argc, char **argv)
{
    static const char *const names[] = { "gpt2", "llama_grouped", "llama_tied", "llama_biases", "llama_yarn", "mistral", "qwen2", "qwen3" };
    char folder[PATH_MAX + 32];
    for (int i = 1; i < argc; i++) compare(argv[i], argv[i], strrchr(argv[i], '/') ? strrchr(argv[i], '/') + 1 : argv[i]);
    if (argc > 1) return tap_done();
    if (!realpath(access("tests/golden", F_OK) ? "golden/hub" : "tests/golden/hub", hub)) tap_bail("no golden/hub");
    for (int i = 0; i < 8; i++) {
        snprintf(folder, sizeof folder, "%s/%s", hub, names[i]);
        compare(folder, folder, names[i]);
    }
    if (!mkdtemp(scratch)) tap_bail("no scratch directory");
    configs();
    weights();
    snprintf(folder, sizeof folder, "rm -r %s", scratch);
    return system(folder) ? 1 : tap_done();
}
