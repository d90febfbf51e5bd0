/* 34_drop_in: data parallelism in a program that has its own training loop.
 *
 * What you learn
 *     You need neither the trainer nor the tensors of the library to train on several ranks. A program with its own
 *     loop on plain float arrays becomes data parallel by a handful of lines: open a communicator, give every rank the
 *     same first weights, let each work on its own samples, add the gradients. They are marked with "dt" below, and the
 *     program counts them in its own text.
 *     What must be right, and is easily forgotten: all ranks begin with the same weights (the broadcast); every sample
 *     belongs to one rank; the sum is divided by the number of samples of all ranks, not of one; all ranks make the
 *     same calls, also when they have fewer samples than others. Then the weights stay equal, bit for bit, without ever
 *     being sent again: every rank adds the same sum to the same weights.
 *     Equal on all ranks does not mean equal to one rank's: here each rank adds its samples in an order of its own, so
 *     the last bits depend on how many there are. What it takes to avoid that is in 04_data_parallel.c.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 34_drop_in.c -o 34_drop_in -lm -lpthread
 *     ./34_drop_in
 *     ./34_drop_in --ranks 3                     (the one to read)
 *     mpicc -O2 -DDT_MPI -I.. 34_drop_in.c -o 34_drop_in -lm -lpthread && mpirun -n 3 ./34_drop_in
 *
 * What you should see
 *     The loss falls as it does on one rank, to within rounding; the ranks' weights are equal to the bit.
 *
 * Read on: 04_data_parallel.c for sums that do not depend on the ranks, 33_nodes.c for several machines. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { HIDDEN = 16, N = 4 * HIDDEN + 1, SAMPLES = 600, STEPS = 1000 }; /* two inputs, one hidden layer, one output */

/* A point of the plane in [-1, 1), and whether it lies in a ring. */
static void sample(int i, float x[2], float *y)
{
    unsigned a = (unsigned)i * 2654435761u, b = a * 2246822519u + 374761393u;
    x[0] = (float)(a >> 16) / 32768.0f - 1.0f, x[1] = (float)(b >> 16) / 32768.0f - 1.0f;
    *y = x[0] * x[0] + x[1] * x[1] > 0.16f && x[0] * x[0] + x[1] * x[1] < 0.64f ? 1.0f : 0.0f;
}

/* Adds the gradient of one sample's squared error to grad (N), and returns the error. */
static float backward(const float *w, float *grad, const float x[2], float y)
{
    float h[HIDDEN], out = w[4 * HIDDEN], d;
    for (int j = 0; j < HIDDEN; j++) {
        h[j] = tanhf(w[4 * j] * x[0] + w[4 * j + 1] * x[1] + w[4 * j + 2]);
        out += w[4 * j + 3] * h[j];
    }
    d = out - y;
    grad[4 * HIDDEN] += d;
    for (int j = 0; j < HIDDEN; j++) {
        float back = d * w[4 * j + 3] * (1 - h[j] * h[j]);
        grad[4 * j] += back * x[0], grad[4 * j + 1] += back * x[1], grad[4 * j + 2] += back;
        grad[4 * j + 3] += d * h[j];
    }
    return 0.5f * d * d;
}

/* The training loop that was there before. NULL: one rank, as before. */
static dt_result train(dt_comm *c, float *w, float *loss)
{
    int rank = c ? dt_comm_rank(c) : 0, ranks = c ? dt_comm_size(c) : 1; /* dt */
    float grad[N + 1], speed[N]; /* the last one is the loss */
    dt_result r = DT_OK;
    for (int k = 0; k < N; k++) w[k] = (float)((k * 37 + 11) % 64) / 32.0f - 1.0f, speed[k] = 0;
    if (c) r = dt_broadcast(c, w, N, 0); /* dt */
    for (int step = 0; step < STEPS && !r; step++) {
        memset(grad, 0, sizeof grad);
        for (int i = rank; i < SAMPLES; i += ranks) { /* dt: was i = 0, i++ */
            float x[2], y;
            sample(i, x, &y);
            grad[N] += backward(w, grad, x, y);
        }
        if (c) r = dt_all_reduce(c, grad, N + 1, DT_SUM); /* dt */
        for (int k = 0; k < N; k++) w[k] -= speed[k] = 0.9f * speed[k] + 0.3f * grad[k] / SAMPLES;
        *loss = grad[N] / SAMPLES;
        if (c && !rank && step % 200 == 0) printf("  step %3d  loss %.5f\n", step, (double)*loss);
    }
    return r;
}

/* Lines marked above, in this file where it lies beside the program; -1: not there. */
static int marked(void)
{
    char line[200];
    int count = 0;
    FILE *f = fopen(__FILE__, "r");
    if (!f) return -1;
    while (fgets(line, (int)sizeof line, f)) count += strstr(line, "/* d" "t") != NULL;
    fclose(f);
    return count;
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    float w[N], alone[N], all[64 * N], loss = 0, loss_alone = 0;
    int root, equal = 1, lines = marked();
    dt_result r = dt_comm_init(&c, &argc, &argv); /* dt */
    if (!r && (argc > 1 || dt_comm_size(c) > 64))
        return fprintf(stderr, "34_drop_in: the option is --ranks N, up to 64\n"), 2;
    if (!r) r = train(c, w, &loss);
    if (!r) r = dt_all_gather(c, w, all, N); /* only to see that they are equal */
    if (r) return dt_fail("34_drop_in"); /* dt */
    root = dt_comm_rank(c) == 0;
    for (int q = 0; q < dt_comm_size(c); q++) equal = equal && !memcmp(all + q * N, w, sizeof w);
    (void)train(NULL, alone, &loss_alone);
    if (root && lines >= 0) printf("%d lines know of the other ranks\n", lines);
    if (root) printf("%d ranks: loss %.6f; one rank: %.6f\n", dt_comm_size(c), (double)loss, (double)loss_alone);
    dt_comm_free(&c); /* dt */
    if (!equal || !(fabsf(loss - loss_alone) <= 1e-3f * loss_alone) || (lines >= 0 && lines != 7))
        return fprintf(stderr, "FAILED: weights or losses differ\n"), 1;
    if (root) printf("ok: the weights of all ranks are equal to the bit, the loss is that of one rank\n");
    return 0;
}
