/* 88_underflow: why does training in fp16 need a loss scale, and training in bf16 none?
 *
 * What you learn
 *     - fp16 has 5 bits of exponent: below 6e-8 everything becomes 0, above 65504 infinity. Gradients are small: the one
 *       of a logit is about its probability divided by the tokens of the batch.
 *     - The loss times 2^k makes every gradient 2^k times as large, before any of them is rounded. Dividing by 2^k in
 *       fp32 is exact. Nothing but the range changes.
 *     - Unscaled, two thirds of these gradients vanish, yet the gradient of the weights is wrong by only 0.15 %: the
 *       small ones are lost, and they weigh little. What is lost is all of one kind, though: tokens that the model has
 *       learnt. Late in training there is little else.
 *     - Too large a scale overflows. So a step whose gradients hold an infinity is skipped and the scale halves; after
 *       2,000 good steps it doubles. Skipped steps are counted: a few are how the scale finds its place.
 *     - bf16 has fp32's 8 bits of exponent, and 7 of mantissa instead of 10: no scale, a coarser grid.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 88_underflow.c -o 88_underflow -lm -lpthread
 *     ./88_underflow
 *
 * What it prints
 *     gradients of 8192 x 256 logits, rounded, and of the weights that they make
 *       format  loss scale  become 0  infinite  error of the weights' gradient
 *       fp16             1    64.64 %         0  0.00153
 *       fp16           256     7.81 %         0  0.00013
 *       fp16         65536     0.05 %         0  0.00013
 *       fp16    1073741824     0.00 %      9619  the step is skipped
 *       bf16             1     0.00 %         0  0.00085
 *     30 steps of the smallest GPT
 *       fp32                    loss 3.91,  0 steps skipped, the scale at the end 1
 *       fp16, adapts            loss 3.91,  0 steps skipped, the scale at the end 65536
 *       fp16, always 16777216   loss 5.52, 30 steps skipped, the scale at the end 16777216
 *     ok: scaled, fp16 keeps its gradients; without, it loses them; bf16 is coarser and needs no scale
 *
 * Predict first: ten times as many tokens in the batch. Do more gradients become 0, or fewer?
 * Exercise: with bf16, which loss scale changes the error? Try, then say why.
 *
 * Read on: 89_sixteen_bits.c for memory and messages, 44_fit.c for the memory that 16 bits save and do not save. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TOKENS = 8192, LOGITS = 256, WIDTH = 32 };

/* Numbers around 0 with a standard deviation of 1: sums of 12 even draws. */
static void normal(float *to, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = -6.0f;
        for (int k = 0; k < 12; k++) seed = seed * 1664525u + 1013904223u, to[i] += (float)(seed >> 8) / 16777216.0f;
    }
}

/* x (TOKENS,WIDTH), scores (TOKENS,LOGITS), and 1 at the right logit of each token, 0 elsewhere (TOKENS,LOGITS). */
typedef struct batch {
    float x[TOKENS * WIDTH], scores[TOKENS * LOGITS], right[TOKENS * LOGITS];
} batch;

/* The gradient of the logits, (softmax - one-hot) / TOKENS, times a scale, in a format: d (TOKENS,LOGITS). From it the
 * gradient of the weights, x^T d, with the scale taken out in fp32: dw (WIDTH,LOGITS). */
static dt_result gradients(const batch *b, dt_dtype format, float scale, float *d, float *dw)
{
    dt_graph *g = NULL;
    dt_result r = dt_graph_open(&g, 1);
    dt_tensor x, y;
    if (r) return r;
    x = dt_tensor_of(g, DT_F32, dt_shape2(TOKENS, WIDTH), b->x);
    y = dt_softmax(g, dt_tensor_of(g, DT_F32, dt_shape2(TOKENS, LOGITS), b->scores), 1u << 1);
    y = dt_sub(g, y, dt_tensor_of(g, DT_F32, dt_shape2(TOKENS, LOGITS), b->right));
    y = dt_scale(g, y, scale / TOKENS);
    if (format != DT_F32) y = dt_cast(g, dt_cast(g, y, format), DT_F32);
    x = dt_scale(g, dt_matmul(g, x, y, 1, 0), 1.0f / scale);
    r = dt_graph_result(g);
    if (!r) memcpy(d, dt_value(g, y), sizeof *d * TOKENS * LOGITS);
    if (!r) memcpy(dw, dt_value(g, x), sizeof *dw * WIDTH * LOGITS);
    dt_graph_close(&g);
    return r;
}

/* Prints a row of the table; returns the error: the distance to dw of fp32 over its length. */
static double row(const batch *b, const char *name, dt_dtype format, float scale, const float *want)
{
    static float d[TOKENS * LOGITS], dw[WIDTH * LOGITS];
    double gone = 0, infinite = 0, apart = 0, length = 0;
    if (gradients(b, format, scale, d, dw)) return -1.0;
    for (int64_t i = 0; i < TOKENS * LOGITS; i++) gone += d[i] == 0.0f, infinite += isinf(d[i]) != 0;
    for (int64_t i = 0; i < WIDTH * LOGITS; i++) {
        apart += (double)((dw[i] - want[i]) * (dw[i] - want[i]));
        length += (double)(want[i] * want[i]);
    }
    apart = sqrt(apart / length);
    printf("  %-6s  %10.0f  %7.2f %%  %8.0f  ", name, (double)scale, 100.0 * gone / (TOKENS * LOGITS), infinite);
    printf(apart - apart == 0.0 ? "%.5f\n" : "the step is skipped\n", apart);
    return apart;
}

/* Trains the smallest model and prints how it went. */
static dt_result train(const char *text, const char *name, int precision, float scale, dt_step_info *info)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_trainer *t = NULL;
    dt_result r;
    recipe.model = dt_model_gpt2("nano"), recipe.data = text, recipe.sequence = 32, recipe.batch = 8, recipe.steps = 30;
    recipe.validation = 0, recipe.precision = precision, recipe.loss_scale = scale;
    l.output.quiet = 1, l.output.sample_length = 0, l.threads = 1;
    r = dt_trainer_open(&t, &recipe, &l);
    if (!r) r = dt_trainer_run(t, info);
    if (!r)
        printf("  %-22s  loss %.2f, %2d steps skipped, the scale at the end %.0f\n", name, (double)info->loss,
               (int)info->skipped, (double)info->loss_scale);
    dt_trainer_close(&t);
    return r;
}

int main(void)
{
    static batch b;
    static float d[TOKENS * LOGITS], want[WIDTH * LOGITS];
    const char *text = "88_underflow.txt";
    double none, some, other, most;
    dt_step_info wide = dt_step_info_zero(), half = wide, much = wide;
    dt_result r;
    normal(b.x, TOKENS * WIDTH, 1), normal(b.scores, TOKENS * LOGITS, 2);
    for (int i = 0; i < TOKENS; i++) b.right[i * LOGITS + i * 7 % LOGITS] = 1.0f;
    for (int i = 0; i < TOKENS * LOGITS; i++) b.scores[i] *= 3.0f; /* a model that has learnt to prefer some */
    r = gradients(&b, DT_F32, 1.0f, d, want);
    if (r) return fprintf(stderr, "88_underflow: %s\n", dt_last_error()), 1;
    printf("gradients of %d x %d logits, rounded, and of the weights that they make\n", TOKENS, LOGITS);
    printf("  format  loss scale  become 0  infinite  error of the weights' gradient\n");
    none = row(&b, "fp16", DT_F16, 1.0f, want);
    row(&b, "fp16", DT_F16, 256.0f, want);
    some = row(&b, "fp16", DT_F16, 65536.0f, want);
    most = row(&b, "fp16", DT_F16, 1073741824.0f, want);
    other = row(&b, "bf16", DT_BF16, 1.0f, want);
    if (prose_generate(text, 20000, 1)) return 1;
    printf("30 steps of the smallest GPT\n");
    r = train(text, "fp32", DT_PRECISION_FP32, 0, &wide);
    if (!r) r = train(text, "fp16, adapts", DT_PRECISION_FP16, 0, &half);
    if (!r) r = train(text, "fp16, always 16777216", DT_PRECISION_FP16, 16777216.0f, &much);
    remove(text);
    if (r) return fprintf(stderr, "88_underflow: %s\n", dt_last_error()), 1;
    if (!(none > 10.0 * some && other > some && some >= 0.0 && most - most != 0.0) || half.skipped ||
        fabsf(half.loss - wide.loss) > 0.02f || !much.skipped)
        return printf("NOT as described\n"), 1;
    printf("ok: scaled, fp16 keeps its gradients; without, it loses them; bf16 is coarser and needs no scale\n");
    return 0;
}
