/* 30_drop_in: how many lines make a training loop on plain float arrays data parallel?
 *
 * What you learn
 *     - You need neither the trainer nor the tensors of the library: open a communicator, give all ranks the same first
 *       weights, let each rank work on its own samples, add the gradients. Lines marked "dt" do this; the program
 *       counts them and fails when a line uses the communicator without a mark.
 *     - Easily forgotten: the first weights are broadcast; each sample belongs to one rank; the sum is divided by the
 *       samples of all ranks; all ranks make the same calls, even with fewer samples.
 *     - Then the weights stay equal, bit for bit, without being sent again: all ranks subtract the same sum.
 *     - A call per array waits once per array. Gradients that lie one after the other need one call.
 *     - All ranks have equal weights, but not those of a run on one rank, since the order of the sums is another one.
 *       31_data_parallel.c shows what it takes to get the same bits with any number of ranks.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 30_drop_in.c -o 30_drop_in -lm -lpthread
 *     ./30_drop_in --ranks 3                     (compiled with -DDIVISOR=200: each rank divides by its own samples)
 *     mpicc -O2 -DDT_MPI -I.. 30_drop_in.c -o 30_drop_in -lm -lpthread && mpirun --oversubscribe -n 3 ./30_drop_in
 *
 * What it prints
 *       step   0  loss 0.40457
 *       step 400  loss 0.08857
 *       step 800  loss 0.06968
 *     3 ranks: loss 0.053762; one rank: 0.053762
 *     ok: the weights of 3 ranks are equal to the bit, the loss is that of one rank; 11 lines know of the others
 *
 * Predict first: what does the loss do if each rank divides by its own number of samples instead of SAMPLES?
 * Exercise: give each rank different weights, and train without the broadcast, too. Do the ranks come together?
 *
 * Read on: 31_data_parallel.c for sums that do not depend on the ranks, 58_nodes.c for several machines. */
#define DTRAIN_IMPLEMENTATION /* dt */
#include "dtrain.h"           /* dt */
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { HIDDEN = 16, SAMPLES = 600, STEPS = 1000 };
#ifndef DIVISOR
#define DIVISOR SAMPLES
#endif
enum { ARRAYS = 4, MOST = 3 * HIDDEN }; /* two inputs and a bias to a hidden layer, its outputs, a bias; the loss */
static const int64_t counts[ARRAYS] = {3 * HIDDEN, HIDDEN, 1, 1};

/* A point of the plane in [-1, 1), and whether it lies in a ring. */
static void sample(int i, float x[2], float *y)
{
    unsigned a = (unsigned)i * 2654435761u, b = a * 2246822519u + 374761393u;
    x[0] = (float)(a >> 16) / 32768.0f - 1.0f, x[1] = (float)(b >> 16) / 32768.0f - 1.0f;
    *y = x[0] * x[0] + x[1] * x[1] > 0.16f && x[0] * x[0] + x[1] * x[1] < 0.64f ? 1.0f : 0.0f;
}

/* Adds the gradient of one sample's squared error to grad, and the error to grad[3]. */
static void backward(float w[ARRAYS][MOST], float grad[ARRAYS][MOST], const float x[2], float y)
{
    float h[HIDDEN], d = w[2][0] - y;
    for (int j = 0; j < HIDDEN; j++) {
        h[j] = tanhf(w[0][3 * j] * x[0] + w[0][3 * j + 1] * x[1] + w[0][3 * j + 2]);
        d += w[1][j] * h[j];
    }
    for (int j = 0; j < HIDDEN; j++) {
        float back = d * w[1][j] * (1 - h[j] * h[j]);
        grad[0][3 * j] += back * x[0], grad[0][3 * j + 1] += back * x[1], grad[0][3 * j + 2] += back;
        grad[1][j] += d * h[j];
    }
    grad[2][0] += d, grad[3][0] += 0.5f * d * d;
}

static int train(dt_comm *world, float w[ARRAYS][MOST], float losses[STEPS]) /* dt: world is new */
{
    float grad[ARRAYS][MOST], speed[ARRAYS][MOST] = {{0}};
    for (int a = 0; a < 3; a++)
        for (int k = 0; k < counts[a]; k++) w[a][k] = (float)((k * 37 + a * 23 + 11) % 64) / 32.0f - 1.0f;
    if (dt_broadcast(world, w[0], ARRAYS * MOST, 0)) return 1; /* dt */
    for (int step = 0; step < STEPS; step++) {
        memset(grad, 0, sizeof grad);
        for (int i = dt_comm_rank(world); i < SAMPLES; i += dt_comm_size(world)) { /* dt: was i = 0, i++ */
            float x[2], y;
            sample(i, x, &y);
            backward(w, grad, x, y);
        }
        if (dt_all_reduce(world, grad[0], ARRAYS * MOST, DT_SUM)) return 1; /* dt */
        for (int a = 0; a < 3; a++)
            for (int k = 0; k < counts[a]; k++)
                w[a][k] -= speed[a][k] = 0.9f * speed[a][k] + 0.3f * grad[a][k] / DIVISOR;
        losses[step] = grad[3][0] / SAMPLES;
    }
    return 0;
}

static int check(dt_comm *world, float w[ARRAYS][MOST], float loss); /* check */

int main(int argc, char **argv)
{
    float w[ARRAYS][MOST] = {{0}}, losses[STEPS];
    dt_comm *world = NULL; /* dt */
    int bad;
    if (dt_comm_open(&world, &argc, &argv)) return dt_fail("30_drop_in"); /* dt */
    if (argc > 1) return fprintf(stderr, "30_drop_in: the option is --ranks N\n"), 2;
    if (train(world, w, losses)) return dt_fail("30_drop_in"); /* dt: was train(w, losses) */
    for (int i = 0; i < STEPS; i += 200)
        if (dt_comm_rank(world) == 0) /* dt */
            printf("  step %3d  loss %.5f\n", i, (double)losses[i]);
    bad = check(world, w, losses[STEPS - 1]); /* check */
    dt_comm_close(&world);                     /* dt */
    return bad;
}

/* ---- That was the program. What follows looks at what it did. */

/* Lines above that are marked, and in *unmarked those that should be; -1: this file is not here. */
static int marked(int *unmarked)
{
    static const char *const words[] = {"dt_", "DT", "dtrain.h", "world"};
    char line[200];
    int count = 0;
    FILE *f = fopen(__FILE__, "r");
    if (!f) return -1;
    while (fgets(line, (int)sizeof line, f) && strncmp(line, "/* ----", 7)) {
        int mark = strstr(line, "/* dt") != NULL, knows = 0;
        if (!strncmp(line, " *", 2) || !strncmp(line, "/*", 2) || strstr(line, "/* check")) continue;
        for (int k = 0; k < 4; k++) knows = knows || strstr(line, words[k]);
        count += mark, *unmarked += knows && !mark;
    }
    fclose(f);
    return count;
}

static int check(dt_comm *world, float w[ARRAYS][MOST], float loss)
{
    float others[64][ARRAYS * MOST], alone[ARRAYS][MOST] = {{0}}, losses[STEPS];
    int equal = 1, good, unmarked = 0, lines = marked(&unmarked), ranks = dt_comm_size(world);
    dt_comm *own = NULL;
    if (ranks > 64) return fprintf(stderr, "30_drop_in: at most 64 ranks are compared\n"), 2;
    if (dt_comm_split(world, dt_comm_rank(world), &own) || train(own, alone, losses)) return dt_fail("30_drop_in");
    dt_comm_close(&own);
    if (dt_all_gather(world, w[0], others[0], ARRAYS * MOST)) return dt_fail("30_drop_in");
    for (int q = 0; q < ranks; q++) equal = equal && !memcmp(others[q], w, sizeof others[q]);
    good = equal && (DIVISOR != SAMPLES || fabsf(loss - losses[STEPS - 1]) <= 1e-3f * losses[STEPS - 1]);
    if (!good) return fprintf(stderr, "FAILED: weights or losses differ\n"), 1;
    if (unmarked || !lines) return fprintf(stderr, "FAILED: %d lines should be marked\n", unmarked), 1;
    if (dt_comm_rank(world)) return 0;
    printf("%d rank%s: loss %.6f; one rank: %.6f\n", ranks, ranks == 1 ? "" : "s", (double)loss,
           (double)losses[STEPS - 1]);
    if (DIVISOR != SAMPLES) return printf("ok: other inputs: not checked\n"), 0;
    printf("ok: the weights of %d ranks are equal to the bit, the loss is that of one rank", ranks);
    if (lines < 0) return printf("\n    (lines are counted where %s is)\n", __FILE__), 0;
    return printf("; %d lines know of the others\n", lines), 0;
}
