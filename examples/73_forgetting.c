/* 73_forgetting: what must a checkpoint hold? See it by leaving it out.
 *
 * What you learn
 *     - Without the optimizer's state Adam does not know the scale of the gradients, and the loss moves away. Merged
 *       checkpoints of some libraries lack that state.
 *     - Without the step the warm-up is repeated, and the decay comes later or never. A job that is restarted every few
 *       hours may never leave its warm-up.
 *     - Without the data cursor the first samples are seen again and the last ones never. The loss may look better for
 *       a while. Without the random streams dropout repeats its masks. Nothing looks wrong then, but a bug that
 *       appeared once cannot be reproduced.
 *     - A curve that begins at the restart shows none of this. The test of a checkpoint is equal bits, not a loss that
 *       looks as before.
 *     - The trainer cannot forget these: the order of samples, the learning rate and all random streams are functions
 *       of the step. So this program has a loop of its own, whose state is five things in two files.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 73_forgetting.c -o 73_forgetting -lm -lpthread
 *     ./73_forgetting
 *
 * What it prints
 *     loss at step            25      26      27      28      33      38      43      48   farthest
 *     never stopped       0.0927  0.1967  0.1456  0.1447  0.2039  0.2138  0.1346  0.0821     0.0000
 *     without optimizer   0.0927  0.2069  0.1577  0.1592  0.2291  0.2074  0.1394  0.0839     0.0416
 *     without step        0.0927  0.2008  0.1259  0.1546  0.2092  0.2181  0.1304  0.0889     0.0380
 *     without cursor      0.2672  0.0892  0.2151  0.1264  0.0852  0.1352  0.2381  0.1994     0.1745
 *     without streams     0.1117  0.1388  0.1288  0.1700  0.2236  0.1949  0.1179  0.0750     0.1101
 *     with all            0.0927  0.1967  0.1456  0.1447  0.2039  0.2138  0.1346  0.0821     0.0000
 *     ok: what is forgotten moves the loss by 0.0380 to 0.1745; with all of it the 24 losses have the same bits
 *
 * Predict first: which of the four losses shows at once, and which is hardest to notice?
 * Exercise: forget two things together. Is the distance the sum of the two?
 *
 * Read on: 74_interval.c for how often to save, 76_async_checkpoint.c for saving during training. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 48, HALF = 24, BATCH = 8, SAMPLES = 384, ROOM = 16 };
enum { NOTHING, OPTIMIZER, STEP, CURSOR, STREAMS };
static const char *const names[] = {"never stopped", "without optimizer", "without step", "without cursor",
                                    "without streams", "with all"};
static const int forget[] = {NOTHING, OPTIMIZER, STEP, CURSOR, STREAMS, NOTHING};
enum { RUNS = (int)(sizeof forget / sizeof *forget) };

/* Sample i: a point of a square, and the height of a wavy surface there. */
static void sample(int64_t i, float *in, float *out)
{
    float x = (float)(i * 37 % SAMPLES) / SAMPLES - 0.5f, y = (float)(i * 101 % SAMPLES) / SAMPLES - 0.5f;
    in[0] = x, in[1] = y;
    *out = x - y + 4.0f * x * y + 0.3f * sinf(9.0f * x);
}

/* Writes the state to two files (parameters and cursor; optimizer), or reads all of it but what is forgotten. */
static dt_result keep(int reads, const char *place, const dt_parameter *list, int64_t count, const dt_optimizer *o,
                      int forgotten)
{
    char path[80];
    dt_parameter state[2 * ROOM];
    int64_t kept = 0, all = dt_optimizer_parameters(o, state, 2 * ROOM);
    dt_result r;
    for (int64_t i = 0; i < all; i++) { /* first.NAME and second.NAME, and optimizer.step */
        int step = !strcmp(state[i].name, "optimizer.step");
        if (!reads || forgotten != (step ? STEP : OPTIMIZER)) state[kept++] = state[i];
    }
    snprintf(path, sizeof path, "%s.weights", place);
    r = reads ? dt_parameters_load(path, list, count) : dt_parameters_save(path, list, count);
    snprintf(path, sizeof path, "%s.optimizer", place);
    if (r) return r;
    return reads ? dt_parameters_load(path, state, kept) : dt_parameters_save(path, state, kept);
}

/* Steps up to `until`: from the start, or from `place`, without what is forgotten. At HALF it saves. */
static dt_result train(const char *place, int resumes, int forgotten, float loss[STEPS + 1])
{
    dt_recipe recipe = dt_recipe_default();
    dt_parameter list[ROOM];
    dt_graph *g = NULL;
    dt_optimizer *o = NULL;
    dt_tensor x, y, h, mean;
    float in[BATCH][2] = {{0}}, out[BATCH] = {0}, cursor = 0.0f;
    int64_t count = 0;
    dt_result r = dt_graph_record(&g, 1, 1);
    if (r) return r;
    x = dt_tensor_of(g, DT_F32, dt_shape2(BATCH, 2), in);
    y = dt_tensor_of(g, DT_F32, dt_shape2(BATCH, 1), out);
    h = dt_dropout(g, dt_tanh(g, dt_linear_with(g, x, "hidden", 32, 0.7f, 0)), 0.1f);
    mean = dt_error_loss(g, DT_MSE, dt_linear_with(g, h, "out", 1, 0.2f, 0), y);
    r = dt_backward(g, mean);
    count = dt_graph_parameters(g, list, ROOM - 1);
    recipe.steps = STEPS, recipe.warmup = 12, recipe.learning_rate = 0.02f;
    if (!r) r = dt_optimizer_open(&o, &recipe, list, count);
    list[count] = list[0], list[count].name = "cursor", list[count].shape = dt_shape1(1), list[count].values = &cursor;
    if (!r && resumes) r = keep(1, place, list, count + (forgotten != CURSOR), o, forgotten);
    for (int i = 0; i < HALF && resumes && forgotten != STREAMS && !r; i++) r = dt_graph_run(g); /* dropout goes on */
    for (int step = resumes ? HALF + 1 : 1; step <= STEPS && !r; step++, cursor += BATCH) {
        for (int i = 0; i < BATCH; i++) sample((int64_t)cursor + i, in[i], &out[i]);
        r = dt_graph_set(g, x, in);
        if (!r) r = dt_graph_set(g, y, out);
        if (!r) r = dt_graph_run(g);
        loss[step] = *dt_value(g, mean);
        if (!r) r = dt_optimizer_step(o, NULL, NULL);
        if (r || step != HALF) continue;
        cursor += BATCH; /* of the next step */
        r = keep(0, place, list, count + 1, o, NOTHING);
        cursor -= BATCH;
    }
    dt_optimizer_close(&o);
    dt_graph_close(&g);
    return r;
}

int main(void)
{
    static float loss[RUNS][STEPS + 1];
    char place[64], path[80];
    int good = 1;
    float least = INFINITY, farthest = 0.0f;
    dt_result r = DT_OK;
    snprintf(place, sizeof place, "/tmp/dtrain_forgetting.%ld", (long)getpid());
    for (int i = 0; i < RUNS && !r; i++) r = train(place, i > 0, forget[i], loss[i]);
    snprintf(path, sizeof path, "%s.weights", place), remove(path);
    snprintf(path, sizeof path, "%s.optimizer", place), remove(path);
    if (r) return dt_fail("73_forgetting");
    printf("%-18s", "loss at step");
    for (int s = HALF + 1; s <= STEPS; s += s < HALF + 4 ? 1 : 5) printf(" %7d", s);
    printf("   farthest\n");
    for (int i = 0; i < RUNS; i++) {
        float most = 0.0f;
        for (int s = HALF + 1; s <= STEPS; s++) most = fmaxf(most, fabsf(loss[i][s] - loss[0][s]));
        printf("%-18s", names[i]);
        for (int s = HALF + 1; s <= STEPS; s += s < HALF + 4 ? 1 : 5) printf(" %7.4f", (double)loss[i][s]);
        printf("   %8.4f\n", (double)most);
        good = good && (forget[i] ? most > 0.0f : most <= 0.0f);
        if (forget[i]) least = fminf(least, most), farthest = fmaxf(farthest, most);
    }
    if (!good) return fprintf(stderr, "FAILED: a run that forgot has the same losses, or the last one has not\n"), 1;
    printf("ok: what is forgotten moves the loss by %.4f to %.4f; with all of it the %d losses have the same bits\n",
           (double)least, (double)farthest, STEPS - HALF);
    return 0;
}
