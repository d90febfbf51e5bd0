/* 88_underflow: why does training in fp16 need a loss scale, and training in bf16 none?
 *
 * What you learn
 *     - fp16 has 5 bits of exponent: numbers below 3e-8 become 0, above 65504 infinity. Gradients are small: that of
 *       a logit is about its probability divided by the tokens of the batch.
 *     - The loss times 2^k makes every gradient 2^k times as large before any of them is rounded. Dividing by 2^k in
 *       fp32 is exact, so only the range changes.
 *     - Unscaled, two thirds of these gradients vanish, yet the gradient of the weights is wrong by only 0.15 %: small
 *       ones weigh little. But they are of one kind, what the model has learnt; late in training few others are left.
 *     - Too large a scale overflows. So a step whose gradients hold an infinity is skipped and the scale halves; after
 *       2,000 good steps it doubles. A few skipped steps are normal: they find the scale.
 *     - bf16 has fp32's 8 bits of exponent, and 7 of mantissa instead of 10: it needs no scale and is coarser.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 88_underflow.c -o 88_underflow -lm -lpthread
 *     ./88_underflow                             (--batches 10: of so many times the tokens, up to 100)
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
 *     ok: fp16 loses 64.64 % of the gradients, scaled by 65536 0.05 %, bf16 0.00 %; the scale that adapts skips 0 steps
 *
 * Predict first: ten times as many tokens in the batch. Do more gradients become 0, or fewer?
 * Exercise: with bf16, which loss scale changes the error? Try, then say why.
 *
 * Read on: 89_sixteen_bits.c for memory and messages, 44_fit.c for the memory that 16 bits save and do not save. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "prose.h"
#include <math.h>

enum { TOKENS = 8192, LOGITS = 256, WIDTH = 32 };
static double batches = 1; /* like this one, of which the gradient is the mean */

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
    y = dt_scale(g, y, scale / (float)(TOKENS * batches));
    if (format != DT_F32) y = dt_cast(g, dt_cast(g, y, format), DT_F32);
    x = dt_scale(g, dt_matmul(g, x, y, 1, 0), 1.0f / scale);
    r = dt_graph_result(g);
    if (!r) memcpy(d, dt_value(g, y), sizeof *d * TOKENS * LOGITS);
    if (!r) memcpy(dw, dt_value(g, x), sizeof *dw * WIDTH * LOGITS);
    dt_graph_close(&g);
    return r;
}

/* Prints a row of the table; returns the error: the distance to dw of fp32 over its length. *gone: zeros, in %. */
static double row(const batch *b, const char *name, dt_dtype format, float scale, const float *want, double *gone)
{
    static float d[TOKENS * LOGITS], dw[WIDTH * LOGITS];
    double infinite = 0, apart = 0, length = 0;
    if (gradients(b, format, scale, d, dw)) return -1.0;
    *gone = 0;
    for (int64_t i = 0; i < TOKENS * LOGITS; i++) *gone += d[i] == 0.0f, infinite += isinf(d[i]) != 0;
    *gone *= 100.0 / (TOKENS * LOGITS);
    for (int64_t i = 0; i < WIDTH * LOGITS; i++) {
        apart += (double)((dw[i] - want[i]) * (dw[i] - want[i]));
        length += (double)(want[i] * want[i]);
    }
    apart = sqrt(apart / length);
    printf("  %-6s  %10.0f  %7.2f %%  %8.0f  ", name, (double)scale, *gone, infinite);
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

int main(int argc, char **argv)
{
    option list[] = {{"--batches", 1, 100, &batches}};
    static batch b;
    static float d[TOKENS * LOGITS], want[WIDTH * LOGITS];
    const char *text = "88_underflow.txt";
    static const float scales[5] = {1, 256, 65536, 1073741824, 1}; /* the last one of bf16 */
    double error[5], gone[5];
    dt_step_info wide = dt_step_info_zero(), half = wide, much = wide;
    dt_result r;
    if (!options_read(argc, argv, list, 1)) return 2;
    normal(b.x, TOKENS * WIDTH, 1), normal(b.scores, TOKENS * LOGITS, 2);
    for (int i = 0; i < TOKENS; i++) b.right[i * LOGITS + i * 7 % LOGITS] = 1.0f;
    for (int i = 0; i < TOKENS * LOGITS; i++) b.scores[i] *= 3.0f; /* a model that has learnt to prefer some */
    r = gradients(&b, DT_F32, 1.0f, d, want);
    if (r) return fprintf(stderr, "88_underflow: %s\n", dt_last_error()), 1;
    printf("gradients of %d x %d logits, rounded, and of the weights that they make\n", TOKENS, LOGITS);
    printf("  format  loss scale  become 0  infinite  error of the weights' gradient\n");
    for (int i = 0; i < 5; i++)
        error[i] = row(&b, i < 4 ? "fp16" : "bf16", i < 4 ? DT_F16 : DT_BF16, scales[i], want, &gone[i]);
    if (prose_generate(text, 20000, 1)) return 1;
    printf("30 steps of the smallest GPT\n");
    r = train(text, "fp32", DT_PRECISION_FP32, 0, &wide);
    if (!r) r = train(text, "fp16, adapts", DT_PRECISION_FP16, 0, &half);
    if (!r) r = train(text, "fp16, always 16777216", DT_PRECISION_FP16, 16777216.0f, &much);
    remove(text);
    if (r) return fprintf(stderr, "88_underflow: %s\n", dt_last_error()), 1;
    if (!(error[0] > 10 * error[2] && error[4] > error[2] && error[2] >= 0.0) || half.skipped || !much.skipped ||
        fabsf(half.loss - wide.loss) > 0.02f || (batches < 2 && error[3] - error[3] <= 0.0))
        return printf("NOT as described\n"), 1;
    return printf("ok: fp16 loses %.2f %% of the gradients, scaled by 65536 %.2f %%, bf16 %.2f %%; the scale that "
                  "adapts skips %d steps\n", gone[0], gone[2], gone[4], (int)half.skipped), 0;
}
