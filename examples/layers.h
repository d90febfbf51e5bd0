/* layers.h: a model for the programs that do by hand what the trainer does: DEPTH layers, x -> tanh(x W), and a squared
 * error after the last one. Every call is a graph of its own, so the program decides when a layer is computed, where
 * its weights are, and what is kept. layers_trainers() is the same model in the trainer. Include it after dtrain.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#ifndef DEPTH
#define DEPTH 4
#endif
enum { WIDTH = 32, LAYER = WIDTH * WIDTH, WEIGHTS = DEPTH * LAYER, SAMPLES = 16, STEPS = 20 };

/* Sample i: numbers in (-1, 1), and the same numbers in reverse order, to be learned. For dt_source, too. */
static inline dt_result layers_sample(void *user, dt_split split, int64_t i, void *x, void *target)
{
    (void)user, (void)split;
    for (int64_t k = 0; k < WIDTH; k++) {
        float value = sinf((float)(i * 37 + k * (k + 3)));
        ((float *)x)[k] = value, ((float *)target)[WIDTH - 1 - k] = 0.9f * value;
    }
    return DT_OK;
}

/* y (n,WIDTH) = tanh(x w). */
static inline dt_result layer_forward(const float *w, const float *x, int64_t n, float *y)
{
    dt_graph *g = NULL;
    dt_tensor out;
    dt_result r = dt_graph_open(&g, 1);
    if (r) return r;
    out = dt_tanh(g, dt_matmul(g, dt_tensor_of(g, DT_F32, dt_shape2(n, WIDTH), x),
                               dt_tensor_of(g, DT_F32, dt_shape2(WIDTH, WIDTH), w), 0, 0));
    r = dt_graph_result(g);
    if (!r) memcpy(y, dt_value(g, out), sizeof(float) * (size_t)(n * WIDTH));
    dt_graph_close(&g);
    return r;
}

/* The gradients of w and x, from that of y. What is inside the layer is computed again. */
static inline dt_result layer_backward(const float *w, const float *x, const float *dy, int64_t n, float *dw, float *dx)
{
    dt_graph *g = NULL;
    dt_tensor tx, tw, y;
    dt_result r = dt_graph_open(&g, 1);
    if (r) return r;
    tx = dt_tensor_of(g, DT_F32, dt_shape2(n, WIDTH), x);
    tw = dt_tensor_of(g, DT_F32, dt_shape2(WIDTH, WIDTH), w);
    y = dt_mul(g, dt_tanh(g, dt_matmul(g, tx, tw, 0, 0)), dt_tensor_of(g, DT_F32, dt_shape2(n, WIDTH), dy));
    r = dt_backward(g, dt_sum(g, y, 3u)); /* of sum(y dy), with respect to y, it is dy */
    if (!r) memcpy(dw, dt_value(g, dt_grad(g, tw)), sizeof(float) * LAYER);
    if (!r) memcpy(dx, dt_value(g, dt_grad(g, tx)), sizeof(float) * (size_t)(n * WIDTH));
    dt_graph_close(&g);
    return r;
}

/* The mean squared error of n samples, and its gradient. */
static inline float layers_error(const float *y, const float *target, int64_t n, float *dy)
{
    float sum = 0;
    for (int64_t i = 0; i < n * WIDTH; i++) {
        dy[i] = 2 * (y[i] - target[i]) / (float)(n * WIDTH);
        sum += (y[i] - target[i]) * (y[i] - target[i]);
    }
    return sum / (float)(n * WIDTH);
}

/* Adam's step number `step`, from 1, with the constants of dt_recipe_default(). */
static inline void adam(float *w, const float *g, float *m, float *v, int64_t n, int step)
{
    for (int64_t i = 0; i < n; i++) {
        m[i] = 0.9f * m[i] + 0.1f * g[i], v[i] = 0.95f * v[i] + 0.05f * g[i] * g[i];
        w[i] -= 1e-2f * (m[i] / (1 - powf(0.9f, (float)step))) / (sqrtf(v[i] / (1 - powf(0.95f, (float)step))) + 1e-8f);
    }
}

/* Bytes of this rank that have reached the others. */
static inline int64_t layers_sent(const dt_comm *c)
{
    int64_t bytes = 0;
    for (int q = 0; q < dt_comm_size(c); q++) bytes += dt_comm_sent(c, q);
    return bytes;
}

/* ---- the same in the trainer ---- */

static inline dt_tensor layers_one(dt_graph *g, dt_tensor x, const void *last)
{
    dt_tensor w = dt_param(g, "w", dt_shape2(WIDTH, WIDTH), DT_INIT_NORMAL, 0.2f);
    x = dt_tanh(g, dt_matmul(g, x, w, 0, 0));
    return last ? dt_error_loss(g, DT_MSE, x, dt_targets(g)) : x;
}

/* Trains on the ranks of the job. first, if not NULL: the weights of the layers before. *loss and hash: of the end. */
static inline dt_result layers_run(const dt_recipe *recipe, dt_layout l, float *first, float *loss, char hash[65])
{
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r;
    l.output.quiet = 1, l.threads = 1;
    r = dt_trainer_open(&t, recipe, &l);
    for (int i = 0; i < DEPTH && first && !r; i++) {
        char name[24];
        const float *w;
        int64_t n;
        snprintf(name, sizeof name, "%d.w", i);
        w = dt_trainer_parameter(t, name, &n);
        if (w) memcpy(first + i * LAYER, w, sizeof(float) * LAYER);
    }
    if (!r) r = dt_trainer_run(t, &info);
    if (!r) *loss = info.loss, memcpy(hash, dt_trainer_hash(t), 65);
    dt_trainer_close(&t);
    return r;
}

/* STEPS steps of the model. */
static inline dt_result layers_train(const dt_layout *layout, float *first, float *loss, char hash[65])
{
    char names[DEPTH][16];
    dt_segment list[DEPTH];
    dt_source source = {NULL, {SAMPLES, 0}, WIDTH, WIDTH, DT_F32, DT_F32, layers_sample};
    dt_recipe recipe = dt_recipe_default();
    for (int i = 0; i < DEPTH; i++) {
        dt_segment s = {names[i], layers_one, i == DEPTH - 1 ? names[i] : NULL};
        snprintf(names[i], sizeof names[i], "%d", i);
        list[i] = s;
    }
    recipe.model = dt_model_segments(list, DEPTH, 0), recipe.source = &source;
    recipe.batch = SAMPLES, recipe.micro_batch = SAMPLES, recipe.steps = STEPS, recipe.data_shards = 4;
    recipe.learning_rate = 1e-2f, recipe.schedule = DT_CONSTANT, recipe.warmup = 0;
    recipe.weight_decay = 0, recipe.clip = 0;
    return layers_run(&recipe, *layout, first, loss, hash);
}

/* Trains in a plain layout, and in another one. first: the weights before. Returns the loss of both; NAN: an error, or
 * their weights differ in a bit. */
static inline float layers_trainers(const dt_layout *other, float *first)
{
    char hash[2][65];
    float loss[2] = {0};
    dt_layout plain = dt_layout_default();
    if (layers_train(&plain, first, &loss[0], hash[0]) || layers_train(other, NULL, &loss[1], hash[1])) return NAN;
    return strcmp(hash[0], hash[1]) ? NAN : loss[0];
}
