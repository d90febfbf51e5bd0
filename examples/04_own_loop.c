/* 04_own_loop: what is in a training loop, and which lines make it data parallel?
 *
 * What you learn
 *     - A step is two calls: the graph runs forward and backward, and the optimizer makes its step. The graph is built
 *       once, with the shapes of a batch; dt_graph_run() computes it again in each step.
 *     - Data parallel changes three lines: each rank takes its share of the samples, and gradients and losses become
 *       means over the ranks.
 *     - The trainer does the same with any model that is given as segments. It adds what long runs need: checkpoints,
 *       pipelines, shards, one hash in every layout.
 *     - Parameters and moments have names. After they are saved and loaded, training resumes with the same bits.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 04_own_loop.c -o 04_own_loop -lm -lpthread
 *     ./04_own_loop
 *     ./04_own_loop --ranks 4                    (1, 2, 4 or 8)
 *
 * What it prints
 *     own loop, 4 ranks:  loss 0.5459 at the first step, 0.0015 at step 200, 66 numbers sent to a rank per step
 *     the trainer:        loss 0.0015
 *     saved and loaded:   the steps that follow have the same bits
 *     ok: the losses of loop and trainer are 1.3e-07 apart
 *
 * Predict first: with 4 ranks, how many samples does each rank have, and which numbers travel between ranks?
 * Exercise: train on other points in each step, given to the graph by dt_graph_set(). Is the loss at step 200 the same?
 *
 * Read on: 10_own_model.c for larger models as segments, 31_data_parallel.c for what happens between ranks. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLES = 64, STEPS = 200 };

/* A surface over a square: sample i is the point in[0], in[1]; out is its height. */
static dt_result sample(void *user, dt_split split, int64_t i, void *in, void *out)
{
    float x = (float)(i % 8) / 4.0f - 0.875f, y = (float)(i / 8) / 4.0f - 0.875f;
    (void)user, (void)split;
    ((float *)in)[0] = x, ((float *)in)[1] = y;
    *(float *)out = x - y + x * y;
    return DT_OK;
}

static dt_tensor network(dt_graph *g, dt_tensor x) /* (B,2) -> (B,1) */
{
    x = dt_tanh(g, dt_linear_with(g, x, "hidden", 16, 0.7f, 0));
    return dt_linear_with(g, x, "out", 1, 0.25f, 0);
}

/* A loop of one's own. first and last: the losses of its first and last step. */
static dt_result own_loop(const dt_recipe *recipe, dt_comm *comm, float *first, float *last)
{
    int64_t n = SAMPLES / dt_comm_size(comm), begin = n * dt_comm_rank(comm); /* data parallel: this rank's samples */
    float in[SAMPLES][2], out[SAMPLES];
    dt_parameter list[4];
    dt_graph *g = NULL;
    dt_optimizer *o = NULL;
    dt_tensor x, y, loss;
    dt_result r = dt_graph_record(&g, (uint64_t)recipe->seed, 1);
    if (r) return r;
    for (int64_t i = 0; i < n; i++) sample(NULL, DT_TRAIN, begin + i, in[i], &out[i]);
    x = dt_tensor_of(g, DT_F32, dt_shape2(n, 2), in[0]);
    y = dt_tensor_of(g, DT_F32, dt_shape2(n, 1), out);
    loss = dt_error_loss(g, DT_MSE, network(g, x), y);
    r = dt_backward(g, loss);
    if (!r) r = dt_optimizer_open(&o, recipe, list, dt_graph_parameters(g, list, 4));
    for (int step = 0; step < STEPS && !r; step++) {
        r = dt_graph_run(g);
        *last = *dt_value(g, loss) / (float)dt_comm_size(comm);
        if (!r) r = dt_all_reduce(comm, last, 1, DT_SUM); /* data parallel: the mean of the ranks' losses */
        if (!r) r = dt_optimizer_step(o, comm, NULL);     /* data parallel: and of their gradients */
        if (!step) *first = *last;
    }
    dt_optimizer_close(&o);
    dt_graph_close(&g);
    return r;
}

/* The same as a segment. */
static dt_tensor segment(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_error_loss(g, DT_MSE, network(g, x), dt_targets(g));
}
static dt_result by_trainer(dt_recipe recipe, const dt_layout *layout, float *loss)
{
    dt_segment one = {"", segment, NULL};
    dt_source source = {NULL, {SAMPLES, 0}, 2, 1, DT_F32, DT_F32, sample};
    dt_trainer *t = NULL;
    dt_step_info info = dt_step_info_zero();
    dt_result r;
    recipe.model = dt_model_segments(&one, 1, 0);
    recipe.source = &source;
    r = dt_trainer_open(&t, &recipe, layout);
    if (!r) r = dt_trainer_run(t, &info);
    *loss = info.loss;
    dt_trainer_close(&t);
    return r;
}

/* Two arrays of a program's own, without a graph: saved, loaded, and updated with the same bits. */
static dt_result saved_and_loaded(const dt_recipe *recipe, int *same)
{
    float w[2][3] = {{1, 2, 3}, {4, 5, 6}}, gradient[2][3], after[2][3];
    dt_parameter list[8] = {{"one", dt_shape1(3), w[0], gradient[0]}, {"two", dt_shape1(3), w[1], gradient[1]}};
    char path[64];
    int64_t n = 2;
    dt_optimizer *o = NULL;
    dt_result r = dt_optimizer_open(&o, recipe, list, n);
    snprintf(path, sizeof path, "/tmp/04_own_loop.%ld.safetensors", (long)getpid());
    if (!r) n += dt_optimizer_parameters(o, list + n, 6);
    for (int step = 0; step < 9 && !r; step++) {
        if (step == 3) r = dt_parameters_save(path, list, n);
        if (step == 6) memcpy(after, w, sizeof w), r = dt_parameters_load(path, list, n); /* back to step 3 */
        for (int i = 0; i < 6; i++) gradient[i / 3][i % 3] = w[i / 3][i % 3] - (float)i; /* of (w - i)^2 / 2 */
        if (!r) r = dt_optimizer_step(o, NULL, NULL);
    }
    *same = !memcmp(after, w, sizeof w);
    unlink(path), dt_optimizer_close(&o);
    return r;
}

int main(int argc, char **argv)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_comm *comm = NULL;
    float first = 0, own = 0, trained = 0;
    int same = 0, ranks, speaks;
    dt_result r = dt_comm_open(&comm, &argc, &argv);
    if (r) return dt_fail("04_own_loop");
    if (argc > 1) return fprintf(stderr, "04_own_loop: the option is --ranks 1, 2, 4 or 8\n"), 2;
    recipe.batch = SAMPLES, recipe.steps = STEPS, recipe.sequence = 2;
    recipe.learning_rate = 0.01f, recipe.validation = 0, layout.output.quiet = 1;
    ranks = dt_comm_size(comm), speaks = !dt_comm_rank(comm), r = own_loop(&recipe, comm, &first, &own);
    double sent = (double)dt_comm_sent(comm, ranks - 1) / 4 / STEPS;
    if (!r) r = by_trainer(recipe, &layout, &trained);
    if (!r) r = saved_and_loaded(&recipe, &same);
    dt_comm_close(&comm);
    if (r || !speaks) return r ? dt_fail("04_own_loop") : 0;
    printf("own loop, %d rank%s  loss %.4f at the first step, %.4f at step %d, %.0f numbers sent to a rank per step\n",
           ranks, ranks > 1 ? "s:" : ": ", (double)first, (double)own, STEPS, sent);
    printf("the trainer:        loss %.4f\n", (double)trained);
    printf("saved and loaded:   the steps that follow %s\n", same ? "have the same bits" : "DIFFER");
    same = same && fabsf(own - trained) < 1e-5f && own < 0.01f * first;
    if (!same) return fprintf(stderr, "FAILED: the three ways differ\n"), 1;
    return printf("ok: the losses of loop and trainer are %.1e apart\n", (double)fabsf(own - trained)), 0;
}
