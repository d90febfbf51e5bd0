/* 82_rules: which rule finds which fault of a training run?
 *
 * What you learn
 *     - Most failed trainings fail in one of two dozen ways, and their numbers show it long before the final loss:
 *       gradients of 1e-9, ReLUs that are all off, a loss that does not fall.
 *     - A rule has a quantity, a bound, and advice. It only reads; an action can stop the program at the step where the
 *       rule fires. Names and bounds are those of Amazon SageMaker Debugger. That service is closed to new customers,
 *       but the rules do not need it.
 *     - Rules have false alarms. AWS's bound for the spread of the first gradients is exceeded by every large model, so
 *       here the rule looks at weights; LossNotDecreasing needs means of noisy losses. Overfit is blind if the
 *       validation set has been trained on.
 *     - Looking costs time, once per number. Attached to a trainer, rules.h gives a program the options --rules and
 *       --stop-on Overfit,LossNotDecreasing, which saves a checkpoint and ends with status 75.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 82_rules.c -o 82_rules -lm -lpthread
 *     ./82_rules --ranks 2
 *
 * What it prints (some of it)
 *     healthy                    step 60  no rule is expected to fire
 *     12 layers of sigmoids      step  1  VanishingGradient         3.18e-08 (1e-07)  layer 0
 *         do: use ReLU or GELU, residual connections, norms, or larger initial weights
 *     learning rate x 1000       step  3  ExplodingTensor                256 (0)  layer 0
 *     biases of -10              step  1  DeadRelu                         1 (0.5)  layer 0
 *     learning rate 0            step 11  LossNotDecreasing                0 (0.001)  loss
 *     all first weights 0.1      step  0  PoorWeightInitialization         0 (0.001)  layer 0
 *     four samples               step 20  Overfit                      0.323 (0.1)  validation loss
 *     ok: 7 bugs were stopped by their rules; no rule fired in 60 healthy steps
 *
 * Predict first: biases of -10 switch every ReLU off. Which three rules fire beside DeadRelu?
 * Exercise: write a rule for a validation loss that rises for three evaluations, and a run that makes it fire.
 *
 * Read on: 83_report.c for a report of a whole run, 86_load_balance.c for a rule about ranks. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "rules.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { UNITS = 16, SAMPLES = 4096, LAYERS = 12, STEPS = 60 };
typedef struct program {
    const char *what;
    int expected; /* the rule; -1: none */
    dt_tensor_kind kind;
    int64_t layers, samples;
    float rate, scale, constant, bias; /* of the first weights: standard deviation, and what is added */
} program;
static float w[LAYERS + 1][UNITS * UNITS], b[LAYERS][UNITS], input[2][SAMPLES * UNITS], target[2][SAMPLES];
static const char *const names[LAYERS] = {"layer 0", "layer 1", "layer 2", "layer 3", "layer 4", "layer 5",
                                          "layer 6", "layer 7", "layer 8", "layer 9", "layer 10", "layer 11"};
static float error[2];         /* the first loss and the last */
static double looked, trained; /* seconds */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One random-looking number for each n (splitmix64, Vigna 2015): mean 0, variance 1. */
static float draw(uint64_t n)
{
    n = (n + 1) * 0x9e3779b97f4a7c15u;
    n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9u;
    n = (n ^ n >> 27) * 0x94d049bb133111ebu;
    return (float)((int64_t)((n ^ n >> 31) >> 40) - (1 << 23)) * (1.7320508f / (1 << 23));
}

static void start(const program *p)
{
    for (int64_t l = 0; l <= p->layers; l++)
        for (int64_t i = 0; i < UNITS * UNITS; i++)
            w[l][i] = p->constant + p->scale * draw((uint64_t)(l * UNITS * UNITS + i)) / 4; /* 1/4: 16 inputs */
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < UNITS; i++) b[l][i] = p->bias;
    for (int64_t i = 0; i < 2 * SAMPLES; i++) {
        float *x = &input[0][0] + i * UNITS;
        for (int64_t k = 0; k < UNITS; k++) x[k] = draw((uint64_t)(100000 + i * UNITS + k));
        (&target[0][0])[i] = (x[0] - x[1] + x[2]) / 2;
    }
}

/* Of each layer: weights, biases, and what rules look at: what a ReLU gives, what another function takes. */
typedef struct tensors {
    dt_tensor weight[LAYERS + 1], bias[LAYERS], seen[LAYERS];
} tensors;

/* The mean squared error on training or validation samples. */
static dt_tensor network(dt_graph *g, const program *p, int validation, tensors *t)
{
    int64_t n = validation ? SAMPLES : p->samples;
    dt_tensor x = dt_tensor_of(g, DT_F32, dt_shape2(n, UNITS), input[validation]), y;
    for (int64_t l = 0; l < p->layers; l++) {
        t->weight[l] = dt_tensor_of(g, DT_F32, dt_shape2(UNITS, UNITS), w[l]);
        t->bias[l] = dt_tensor_of(g, DT_F32, dt_shape1(UNITS), b[l]);
        y = dt_add(g, dt_matmul(g, x, t->weight[l], 0, 0), t->bias[l]);
        if (p->kind == DT_KIND_RELU) x = dt_relu(g, y);
        else x = p->kind == DT_KIND_TANH ? dt_tanh(g, y) : dt_map(g, DT_SIGMOID, y);
        t->seen[l] = p->kind == DT_KIND_RELU ? x : y;
    }
    t->weight[p->layers] = dt_tensor_of(g, DT_F32, dt_shape2(UNITS, 1), w[p->layers]);
    y = dt_sub(g, dt_matmul(g, x, t->weight[p->layers], 0, 0),
               dt_tensor_of(g, DT_F32, dt_shape2(n, 1), target[validation]));
    return dt_mean(g, dt_mul(g, y, y), DT_ALL);
}

static void descend(float *to, const float *gradient, int64_t n, float rate)
{
    for (int64_t i = 0; i < n; i++) to[i] -= rate * gradient[i];
}

/* One step, by gradient descent on all samples; the rules are given what it has. */
static dt_result step(const program *p, dt_rules *rules, int64_t number)
{
    tensors t;
    dt_tensor loss;
    dt_graph *g = NULL;
    double begin = now(), seen;
    dt_result r = dt_graph_open(&g, 1);
    if (r) return r;
    loss = network(g, p, 0, &t);
    r = dt_backward(g, loss);
    for (int64_t l = 0; l < p->layers && !r; l++) {
        const float *gradient = dt_value(g, dt_grad(g, t.weight[l]));
        descend(w[l], gradient, UNITS * UNITS, p->rate);
        descend(b[l], dt_value(g, dt_grad(g, t.bias[l])), UNITS, p->rate);
        seen = now();
        r = dt_rules_tensor(rules, number, names[l], DT_KIND_GRADIENT, gradient, UNITS * UNITS, UNITS);
        if (!r) r = dt_rules_tensor(rules, number, names[l], DT_KIND_WEIGHT, w[l], UNITS * UNITS, UNITS);
        if (!r)
            r = dt_rules_tensor(rules, number, names[l], p->kind, dt_value(g, t.seen[l]), p->samples * UNITS, UNITS);
        looked += now() - seen;
    }
    if (!r) descend(w[p->layers], dt_value(g, dt_grad(g, t.weight[p->layers])), UNITS, p->rate);
    if (!r) error[number > 1] = dt_value(g, loss)[0];
    if (!r) r = dt_rules_loss(rules, number, (double)error[number > 1]);
    trained += now() - begin;
    dt_graph_close(&g);
    if (r || number % 5) return r;
    r = dt_graph_open(&g, 1);
    if (!r) loss = network(g, p, 1, &t), r = dt_graph_result(g);
    if (!r) r = dt_rules_validation(rules, number, (double)dt_value(g, loss)[0]);
    dt_graph_close(&g);
    return r;
}

/* The action: the expected rule stops the program. */
static dt_result stop(void *user, dt_rule rule, const dt_firing *f)
{
    (void)f;
    return (int)rule == ((const program *)user)->expected ? DT_E_STOPPED : DT_OK;
}

/* What the expected rule found, and which others fired. */
static void tell(const char *what, int expected, const dt_rules *rules, int64_t steps)
{
    const dt_firing *f = dt_rules_fired(rules, expected);
    printf("%-27s", what);
    if (f)
        printf("step %2d  %-24s  %8.3g (%g)  %s\n    do: %s\n", (int)f->step, dt_rule_name(expected), f->value,
               f->bound, f->name, dt_rule_advice(expected));
    else printf("step %2d  no rule is expected to fire\n", (int)steps);
    for (int32_t i = 0; i < DT_RULE_COUNT; i++)
        if (i != expected && (f || expected < 0) && dt_rules_fired(rules, i)) printf("    also: %s\n", dt_rule_name(i));
}

static dt_result run(program *p, int *good)
{
    dt_rules *rules = NULL;
    int64_t number = 0;
    int fired = 0;
    const dt_firing *f;
    dt_result r = dt_rules_open(&rules, 1);
    if (!r) r = dt_rules_on_fire(rules, stop, p);
    start(p);
    for (int64_t l = 0; l < p->layers && !r; l++) /* the first weights, before anything is learned */
        r = dt_rules_tensor(rules, 0, names[l], DT_KIND_WEIGHT, w[l], UNITS * UNITS, UNITS);
    while (!r && number < STEPS) r = step(p, rules, ++number);
    f = dt_rules_fired(rules, p->expected);
    for (int i = 0; i < DT_RULE_COUNT; i++) fired += dt_rules_fired(rules, i) != NULL;
    if (p->expected < 0) *good = *good && !r && !fired && error[1] < error[0] / 4; /* it learns */
    else *good = *good && r == DT_E_STOPPED && f && f->step == number;
    if (!r || r == DT_E_STOPPED) tell(p->what, p->expected, rules, number);
    dt_rules_close(&rules);
    return r == DT_E_STOPPED ? DT_OK : r;
}

int main(void)
{
    static program programs[] = {
        {"healthy", -1, DT_KIND_RELU, 3, SAMPLES, 0.06f, 1.4f, 0, 0},
        {"12 layers of sigmoids", DT_RULE_VANISHING_GRADIENT, DT_KIND_SIGMOID, 12, SAMPLES, 0.06f, 1.4f, 0, 0},
        {"learning rate x 1000", DT_RULE_EXPLODING_TENSOR, DT_KIND_RELU, 3, SAMPLES, 60.0f, 1.4f, 0, 0},
        {"biases of -10", DT_RULE_DEAD_RELU, DT_KIND_RELU, 3, SAMPLES, 0.06f, 1.4f, 0, -10},
        {"learning rate 0", DT_RULE_LOSS_NOT_DECREASING, DT_KIND_RELU, 3, SAMPLES, 0, 1.4f, 0, 0},
        {"all first weights 0.1", DT_RULE_POOR_INITIALIZATION, DT_KIND_RELU, 3, SAMPLES, 0.06f, 0, 0.1f, 0},
        {"first weights x 1000, tanh", DT_RULE_SATURATED_ACTIVATION, DT_KIND_TANH, 3, SAMPLES, 0.06f, 1400, 0, 0},
        {"four samples", DT_RULE_OVERFIT, DT_KIND_RELU, 3, 4, 0.06f, 1.4f, 0, 0}};
    int good = 1, bugs = (int)(sizeof programs / sizeof *programs) - 1;
    dt_result r = DT_OK;
    for (int i = 0; i <= bugs && !r; i++) {
        r = run(&programs[i], &good);
        if (!i)
            printf("    loss %.2f to %.2f; its rules take %.0f of the %.0f us of a step, %.1f ns for each number\n",
                   (double)error[0], (double)error[1], 1e6 * looked / STEPS, 1e6 * trained / STEPS,
                   1e9 * looked / STEPS / (3 * UNITS * (SAMPLES + 2 * UNITS)));
    }
    if (r) return dt_fail("82_rules");
    if (!good) return fprintf(stderr, "FAILED: a rule fired without its bug, or did not fire with it\n"), 1;
    return printf("ok: %d bugs were stopped by their rules; no rule fired in %d healthy steps\n", bugs, STEPS), 0;
}
