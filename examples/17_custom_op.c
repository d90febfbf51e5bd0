/* 17_custom_op: how do I add an op that the library does not have, and what does it cost?
 *
 * What you learn
 *     - An op is two functions: forward, and for each input the gradient from the inputs and the gradient dy of the
 *       result. Neither knows about ranks, micro-batches or threads.
 *     - The library calls them with the samples of a unit of work, as many as the layout gives. So the sizes come with
 *       each call, and a sample's result must not depend on its neighbours. Then every layout has the same bits.
 *     - The compiler cannot look inside, so the op breaks a graph in two. The compiler fuses the ops before it and the
 *       ops after it, but not both into one, and the op reads and writes memory.
 *
 * Build and run it, in this folder
 *     cc -O2 -DDT_COMPILER -I.. 17_custom_op.c -o 17_custom_op -lm -lpthread
 *     ./17_custom_op
 *     ./17_custom_op --ranks 2
 *
 * What it prints
 *     largest difference of a slope to (f(x + h) - f(x - h)) / 2h: 0.000
 *     by the op              loss 0.52458  bef27541459402ad
 *     by the op, compiled    loss 0.52458  bef27541459402ad  1 groups of 2 ops
 *     by the library's ops   loss 0.52458  50096f0e339bd0dc  2 groups of 24 ops
 *     ok: the op has one hash, compiled or not; losses within 6.0e-08; 2 ops fused instead of 24
 *
 * Predict first: if the same function is made of the library's ops, does its loss change? Does its hash?
 * Exercise: train with a second op whose backward forgets the factor 2. Which of the three checks notices it?
 *
 * Read on: 48_fusion.c for what a compiler does between two such ops, 10_own_model.c for models of segments. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SAMPLES = 32, WIDTH = 16 };

/* y = x^2 inside (-1, 1), and 2|x| - 1 outside: Huber's function, element by element. */
static void huber(void *user, const float *const *in, const dt_shape *shape, float *y)
{
    (void)user;
    for (int64_t i = 0; i < dt_shape_count(shape[0]); i++) {
        float x = in[0][i], size = fabsf(x);
        y[i] = size < 1.0f ? x * x : 2.0f * size - 1.0f;
    }
}
/* in[1] is dy. */
static void huber_slope(void *user, const float *const *in, const dt_shape *shape, int i, float *dx)
{
    (void)user, (void)i;
    for (int64_t k = 0; k < dt_shape_count(shape[0]); k++) {
        float x = in[0][k];
        dx[k] = in[1][k] * (fabsf(x) < 1.0f ? 2.0f * x : x > 0.0f ? 2.0f : -2.0f);
    }
}
static const dt_custom_op op = {huber, huber_slope, NULL};

static dt_result sample(void *user, dt_split split, int64_t i, void *in, void *out)
{
    (void)user, (void)split;
    for (int k = 0; k < WIDTH; k++) ((float *)in)[k] = (float)((i * WIDTH + k) * 37 % 129 - 64) / 64.0f; /* exact */
    *(float *)out = (float)(i % 5) - 2.0f;
    return DT_OK;
}

/* Huber's loss, by the op between two chains of the library's ops, or by the library's ops alone. */
static dt_tensor segment(dt_graph *g, dt_tensor x, const void *own)
{
    dt_tensor d;
    x = dt_tanh(g, dt_linear_with(g, x, "hidden", WIDTH, 0.5f, 0));
    d = dt_sub(g, dt_linear_with(g, x, "out", 1, 0.5f, 0), dt_targets(g));
    d = dt_scale(g, d, 0.9f);
    if (own) d = dt_custom(g, &op, &d, 1, dt_shape_of(g, d));
    else {
        dt_tensor inside = dt_clamp(g, d, -1.0f, 1.0f), size = dt_map(g, DT_ABS, d);
        size = dt_sub(g, size, dt_map(g, DT_ABS, inside)); /* what is beyond 1 */
        d = dt_add(g, dt_map(g, DT_SQUARE, inside), dt_scale(g, size, 2.0f));
    }
    return dt_loss(g, dt_scale(g, d, 0.5f));
}

static dt_result train(const void *own, int compile, float *loss, char hash[65], dt_compilation_report *c)
{
    dt_segment one = {"", segment, own};
    dt_source source = {NULL, {SAMPLES, 0}, WIDTH, 1, DT_F32, DT_F32, sample};
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r;
    recipe.model = dt_model_segments(&one, 1, 0), recipe.source = &source;
    recipe.batch = SAMPLES, recipe.steps = 100, recipe.warmup = 0, recipe.weight_decay = 0;
    recipe.learning_rate = 0.01f;
    layout.threads = 1, layout.output.quiet = 1;
    layout.compile.mode = compile ? DT_COMPILE_ON : DT_COMPILE_OFF;
    r = dt_trainer_open(&t, &recipe, &layout);
    if (!r && compile) r = dt_trainer_compilation(t, c);
    if (!r) r = dt_trainer_run(t, &info);
    if (!r) *loss = info.loss, snprintf(hash, 65, "%s", dt_trainer_hash(t));
    dt_trainer_close(&t);
    return r;
}

/* The op's gradient against differences, at points inside and outside. */
static float slopes(void)
{
    float far = 0;
    for (int i = -20; i <= 20; i++) {
        float x = 0.13f * (float)i, h = 0.01f, up = x + h, down = x - h, y[2], one = 1, dx;
        const float *in[2] = {&x, &one}, *above = &up, *below = &down;
        dt_shape shape[2] = {dt_shape1(1), dt_shape1(1)};
        huber(NULL, &above, shape, &y[0]), huber(NULL, &below, shape, &y[1]);
        huber_slope(NULL, in, shape, 0, &dx);
        far = fmaxf(far, fabsf((y[0] - y[1]) / (2 * h) - dx));
    }
    return far;
}

int main(int argc, char **argv)
{
    char hash[3][65];
    float loss[3], far = slopes();
    dt_compilation_report own, plain;
    dt_comm *c = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    int root = !r && dt_comm_rank(c) == 0;
    if (!r && argc > 1) return fprintf(stderr, "17_custom_op: the option is --ranks N\n"), 2;
    if (!r) r = train(&op, 0, &loss[0], hash[0], NULL);
    if (!r) r = train(&op, 1, &loss[1], hash[1], &own);
    if (!r) r = train(NULL, 1, &loss[2], hash[2], &plain);
    dt_comm_close(&c);
    if (r) return fprintf(stderr, "17_custom_op: %s\n", dt_last_error()), dt_exit_code(r);
    if (!root) return 0;
    printf("largest difference of a slope to (f(x + h) - f(x - h)) / 2h: %.3f\n", (double)far);
    printf("by the op              loss %.5f  %.16s\n", (double)loss[0], hash[0]);
    printf("by the op, compiled    loss %.5f  %.16s  %lld groups of %lld ops\n", (double)loss[1], hash[1],
           (long long)own.groups, (long long)own.grouped);
    printf("by the library's ops   loss %.5f  %.16s  %lld groups of %lld ops\n", (double)loss[2], hash[2],
           (long long)plain.groups, (long long)plain.grouped);
    if (far > 0.02f || strcmp(hash[0], hash[1]) || fabsf(loss[0] - loss[2]) > 1e-4f || own.grouped >= plain.grouped)
        return fprintf(stderr, "FAILED: a slope, a hash, a loss or a number of fused ops is wrong\n"), 1;
    return printf("ok: the op has one hash, compiled or not; losses within %.1e; %lld ops fused instead of %lld\n",
                  (double)fabsf(loss[0] - loss[2]), (long long)own.grouped, (long long)plain.grouped), 0;
}
