/* 08_generate: how do you use a trained model: continue a prompt, or measure a text?
 *
 * What you learn
 *     - A checkpoint holds the recipe, the shape of the model and the tokenizer as well as the weights. So a program
 *       that uses the model needs the checkpoint alone, without options and without the training text.
 *     - A model is judged by its loss on a text that it has not seen: in nats per token; as perplexity, e to that
 *       power; or in bits per byte.
 *     - Only bits per byte compare models with different tokenizers. A model with larger tokens predicts fewer tokens,
 *       and each is harder to predict, so its perplexity on the same text is higher.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 08_generate.c -o 08_generate -lm -lpthread
 *     ./08_generate                             (--temperature 0: the likeliest token each time)
 *     With a checkpoint of yours, or a directory of Hugging Face: ./build.sh generate CHECKPOINT --prompt TEXT, or eval
 *     CHECKPOINT --data FILE (tools/generate.c)
 *
 * What it prints (and two texts of the model)
 *     a demo model: 60 steps on a generated text
 *     59999 tokens, 59999 bytes: loss 2.2936 nats per token, perplexity 9.91, 3.3089 bits per byte
 *     ok: the checkpoint predicts unseen text with 2.2936 nats per byte; chance is ln 256 = 5.5452
 *
 * Predict first: what does the model write with --temperature 0, and why are two samples then the same?
 * Exercise: print the five most likely next bytes after "The " with their probabilities (dt_trainer_predict).
 *
 * Read on: tools/generate.h, which does both; 09_saturation.c for batches and speed, 72_checkpoint_tool.c for what a
 *     checkpoint holds. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "prose.h"
#include "tools/generate.h"
#include <unistd.h>

/* A model to show: 60 steps on a generated text. */
static int train(const char *folder, const char *text)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_trainer *t = NULL;
    dt_step_info info;
    dt_result r = prose_generate(text, 60000, 1) ? DT_E_FILE : DT_OK;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = text, recipe.steps = 60, recipe.batch = 8, recipe.sequence = 64, recipe.learning_rate = 5e-3f;
    layout.checkpoint.place = folder, layout.output.quiet = 1;
    if (!r) r = dt_trainer_open(&t, &recipe, &layout);
    if (!r) r = dt_trainer_run(t, &info);
    dt_trainer_close(&t);
    return !r;
}

int main(int argc, char **argv)
{
    dt_generation how = dt_generation_default();
    double temperature = (double)how.sampling.temperature;
    option list[] = {{"--temperature", 0, 2, &temperature}};
    float loss = 0;
    dt_trainer *g = NULL;
    char folder[] = "/tmp/08_generate_XXXXXX", text[64], remove[80];
    dt_result r;
    if (!options_read(argc, argv, list, 1)) return 2;
    if (!mkdtemp(folder)) return perror(folder), 1;
    printf("a demo model: 60 steps on a generated text\n");
    snprintf(text, sizeof text, "%s/text.txt", folder);
    if (!train(folder, text)) return dt_fail("08_generate: training");
    how.bytes = 120, how.sampling.temperature = (float)temperature;
    r = dt_predictor_open(&g, folder, NULL, NULL);
    if (!r) r = generate_text(g, "The ", how, 2, 1);
    if (!r && prose_generate(text, 60000, 2)) r = DT_E_FILE; /* a text that the model has not seen */
    if (!r) r = generate_loss(g, text, 1);
    if (!r) r = dt_evaluate(g, text, &loss, NULL, NULL);
    dt_trainer_close(&g);
    snprintf(remove, sizeof remove, "rm -r '%s'", folder);
    if (system(remove)) fprintf(stderr, "%s stays\n", folder);
    if (r) return dt_fail("08_generate");
    if (loss > 0.5f * (float)log(256)) return fprintf(stderr, "FAILED: hardly better than chance\n"), 1;
    return printf("ok: the checkpoint predicts unseen text with %.4f nats per byte; chance is ln 256 = %.4f\n",
                  (double)loss, log(256)), 0;
}
