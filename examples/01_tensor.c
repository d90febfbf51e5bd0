/* 01_tensor: what is a gradient, and how can you tell that it is right?
 *
 * What you learn
 *     - A graph holds tensors and the operations between them. An eager graph computes each operation as soon as it is
 *       added, so the program can look at every value.
 *     - dt_backward walks from the loss back to its inputs and applies the chain rule of each operation. Afterwards
 *       every tensor has a gradient: how much the loss changes when an element changes.
 *     - Three ways give a gradient: backward in fp32, the formula written by hand in double, and the difference
 *       (loss(w + h) - loss(w - h)) / 2h, which needs no calculus.
 *     - The difference is wrong by about h^2 when h is large, and by rounding, about 1e-7 / h, when h is small.
 *     - A mistake in a graph, such as shapes that do not fit, is reported once, at the end, with a sentence.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 01_tensor.c -o 01_tensor -lm -lpthread
 *     ./01_tensor
 *
 * What it prints
 *     x (4,3) times w (3,2), tanh, against y (4,2): loss = 0.9792724
 *       d loss / d w     backward      formula   difference (h = 1/128)
 *            w[0][0]   -0.1172834   -0.1172835   -0.1172943
 *            w[2][1]    0.0661367    0.0661367    0.0661354
 *     ok: the gradients of 6 weights are within 9.2e-09 of the formula and 1.1e-05 of the difference
 *
 * Predict first: at which h is the error of the difference smallest, given the two errors above?
 * Exercise: replace the mean by a sum. By which factor do the loss, the gradients and the errors change?
 *
 * Read on: 02_gpt.c, the same gradients inside a language model. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 4, IN = 3, OUT = 2 };

/* One pass: loss = mean((tanh(x w) - y)^2), and its gradient. */
typedef struct pass {
    float loss, h[ROWS * OUT], gradient[IN * OUT];
} pass;

/* Whole numbers divided by 4 are exact floats, so every machine starts from the same bits. */
static void quarters(float *to, int count, int step)
{
    for (int i = 0; i < count; i++) to[i] = (float)(i * step % 9 - 4) / 4.0f;
}

static dt_result run(const float *x, const float *w, const float *y, pass *p)
{
    dt_graph *g = NULL;
    dt_result r = dt_graph_open(&g, 1);
    dt_tensor tx, tw, ty, h, miss, loss;
    if (r) return r;
    tx = dt_tensor_of(g, DT_F32, dt_shape2(ROWS, IN), x);  /* (4,3) */
    tw = dt_tensor_of(g, DT_F32, dt_shape2(IN, OUT), w);   /* (3,2) */
    ty = dt_tensor_of(g, DT_F32, dt_shape2(ROWS, OUT), y); /* (4,2) */
    h = dt_tanh(g, dt_matmul(g, tx, tw, 0, 0));      /* (4,3) x (3,2) -> (4,2) */
    miss = dt_sub(g, h, ty);                         /* (4,2) */
    loss = dt_mean(g, dt_mul(g, miss, miss), DT_ALL); /* a scalar */
    r = dt_backward(g, loss);
    if (!r) {
        p->loss = dt_value(g, loss)[0];
        memcpy(p->h, dt_value(g, h), sizeof p->h);
        memcpy(p->gradient, dt_value(g, dt_grad(g, tw)), sizeof p->gradient); /* the gradient has the shape of w */
    }
    dt_graph_close(&g);
    return r;
}

/* By hand: d loss / d w[k][j] = sum over rows i of x[i][k] * (1 - h^2) * 2 (h - y) / (ROWS * OUT), h = h[i][j]. */
static double formula(const float *x, const float *y, const pass *p, int k, int j)
{
    double sum = 0;
    for (int i = 0; i < ROWS; i++) {
        double h = (double)p->h[i * OUT + j];
        sum += (double)x[i * IN + k] * (1 - h * h) * 2 * (h - (double)y[i * OUT + j]) / (ROWS * OUT);
    }
    return sum;
}

static double difference(const float *x, const float *w, const float *y, int at, float h)
{
    float moved[IN * OUT];
    pass up, down;
    memcpy(moved, w, sizeof moved);
    moved[at] = w[at] + h;
    if (run(x, moved, y, &up)) exit(dt_fail("difference"));
    moved[at] = w[at] - h;
    if (run(x, moved, y, &down)) exit(dt_fail("difference"));
    return ((double)up.loss - (double)down.loss) / (2 * (double)h);
}

/* Prints the three columns. worst: the largest distance from the formula, and from the difference. */
static void compare(const float *x, const float *w, const float *y, const pass *p, double worst[2])
{
    printf("\n  d loss / d w     backward      formula   difference (h = 1/128)\n");
    for (int at = 0; at < IN * OUT; at++) {
        double have = (double)p->gradient[at], want = formula(x, y, p, at / OUT, at % OUT);
        double slope = difference(x, w, y, at, 1.0f / 128);
        printf("       w[%d][%d]  %11.7f  %11.7f  %11.7f\n", at / OUT, at % OUT, have, want, slope);
        worst[0] = fmax(worst[0], fabs(have - want)), worst[1] = fmax(worst[1], fabs(have - slope));
    }
}

/* The error of the difference against the formula, for h = 1/2, 1/8, ... */
static void step_sizes(const float *x, const float *w, const float *y, const pass *p)
{
    double want = formula(x, y, p, 0, 0);
    printf("\n  how large should h be? error of the difference at w[0][0]:\n");
    for (int shift = 1; shift <= 19; shift += 3)
        printf("       h = 1/%-7d %.1e\n", 1 << shift, fabs(difference(x, w, y, 0, 1.0f / (float)(1 << shift)) - want));
}

/* A mistake does not crash: the failed op gives a poisoned tensor, later ops do nothing, the first error is kept. */
static int mistake_is_told(void)
{
    float six[6] = {1, 2, 3, 4, 5, 6};
    dt_graph *g = NULL;
    dt_tensor a, b;
    dt_result r;
    if (dt_graph_open(&g, 1)) return 0;
    a = dt_tensor_of(g, DT_F32, dt_shape2(2, 3), six);
    b = dt_tanh(g, dt_matmul(g, a, a, 0, 0)); /* (2,3) x (2,3): the inner sizes differ */
    r = dt_graph_result(g);
    printf("\n  a mistake: %s, \"%s\"\n", dt_result_name(r), dt_last_error());
    dt_graph_close(&g);
    return r == DT_E_SHAPE && b.id == 0;
}

int main(void)
{
    float x[ROWS * IN], w[IN * OUT], y[ROWS * OUT];
    pass p;
    double worst[2] = {0, 0};
    quarters(x, ROWS * IN, 5);
    quarters(w, IN * OUT, 7);
    quarters(y, ROWS * OUT, 2);
    if (run(x, w, y, &p)) return dt_fail("01_tensor");
    printf("x (%d,%d) times w (%d,%d), tanh, against y (%d,%d): loss = %.7f\n", ROWS, IN, IN, OUT, ROWS, OUT,
           (double)p.loss);
    compare(x, w, y, &p, worst);
    step_sizes(x, w, y, &p);
    if (worst[0] > 1e-7 || worst[1] > 1e-4) return fprintf(stderr, "FAILED: the gradients differ\n"), 1;
    if (!mistake_is_told()) return fprintf(stderr, "FAILED: the mistake was not seen\n"), 1;
    return printf("ok: the gradients of %d weights are within %.1e of the formula and %.1e of the difference\n",
                  IN * OUT, worst[0], worst[1]), 0;
}
