/* job.h: a small training job with a switch for each fault: four ranks, one after the other in one process. A
 * classifier of 8 numbers, 16 hidden units and 4 classes; SGD with momentum; gradients in fp16; a checkpoint and a
 * resume in the middle. Include it after grade.h and lab.h. */
#include "dtrain.h"
#include <math.h>

enum { RANKS = 4, STEPS = 80, RESUME = 40, EVERY = 8, IN = 8, HIDDEN = 16, CLASSES = 4 };
enum { WEIGHTS = IN * HIDDEN + HIDDEN * CLASSES, SAMPLES = 512, VALIDATION = 128, SHARDS = 8 };
enum { SHARE = 16, BATCH = SHARE * RANKS, PER_SHARD = SAMPLES / SHARDS };
#define TOKENS 16777216.0f /* of a batch: gradients are means over them, and so are as small as those of large models */

/* The switches. */
typedef struct job {
    float rate, divide, scale;
    int by_rank, lost_shard, slow_rank, broadcast, running, shuffle, momentum, sampler; /* -1: no shard, no rank */
} job;

/* What a run shows. */
typedef struct trace {
    float loss[STEPS], gradient[STEPS], update[STEPS], validation[STEPS / EVERY], mean[2];
    int64_t zeros, overflows, ticks, waits[RANKS];
    int samples, distinct, by_class[CLASSES], classes_seen; /* of the first epoch; classes of all batches */
    int unread, unread_first, unread_last;
    uint64_t hash[2][RANKS];                                /* of the weights, before and after */
} trace;

static job healthy(void)
{
    job j = {0.08f, RANKS, TOKENS, 1, -1, -1, 1, 1, 1, 1, 1};
    return j;
}

/* ---- data ---- */

static float noise(uint64_t key) /* in (-1, 1) */
{
    key = (key + 1) * 0x9e3779b97f4a7c15u, key ^= key >> 29, key *= 0xbf58476d1ce4e5b9u, key ^= key >> 32;
    return (float)(int64_t)(key & 0xffffff) / 8388608.0f - 1;
}

/* The file has the classes one after the other. Samples from SAMPLES on are for validation. */
static int class_of(int i) { return i < SAMPLES ? i / (SAMPLES / CLASSES) : i % CLASSES; }

static void sample(int i, float x[IN])
{
    for (int k = 0; k < IN; k++) {
        float center = noise((uint64_t)(1000000 + class_of(i) * IN + k));
        x[k] = (float)(k - 3) * 2 + (1 + (float)k / 4) * (center + 1.1f * noise((uint64_t)(i * IN + k)));
    }
}

/* ---- the model ---- */

typedef struct worker {
    float w[WEIGHTS], momentum[WEIGHTS], gradient[WEIGHTS];
} worker;

static struct { float mean[IN], square[IN]; } running;

/* Normalizes features by the statistics of the batch, or by the running ones. */
static void normalize(float *x, int n, int train, int update)
{
    for (int k = 0; k < IN; k++) {
        float mean = 0, square = 0;
        for (int i = 0; i < n; i++)
            mean += x[i * IN + k] / (float)n, square += x[i * IN + k] * x[i * IN + k] / (float)n;
        if (!train) mean = running.mean[k], square = running.square[k];
        if (update) running.mean[k] += 0.1f * (mean - running.mean[k]);
        if (update) running.square[k] += 0.1f * (square - running.square[k]);
        for (int i = 0; i < n; i++) x[i * IN + k] = (x[i * IN + k] - mean) / sqrtf(fmaxf(square - mean * mean, 1e-3f));
    }
}

/* The mean loss; gradient NULL: no backward. */
static float model(const float *w, const float *x, const int32_t *y, int n, float *gradient)
{
    dt_graph *g = NULL;
    dt_tensor all, w1, w2, out;
    float loss = NAN;
    if (dt_graph_open(&g, 1)) return NAN;
    all = dt_tensor_of(g, DT_F32, dt_shape1(WEIGHTS), w);
    w1 = dt_reshape(g, dt_slice(g, all, 0, 0, IN * HIDDEN), dt_shape2(IN, HIDDEN));
    w2 = dt_reshape(g, dt_slice(g, all, 0, IN * HIDDEN, WEIGHTS), dt_shape2(HIDDEN, CLASSES));
    out = dt_tanh(g, dt_matmul(g, dt_tensor_of(g, DT_F32, dt_shape2(n, IN), x), w1, 0, 0));
    out = dt_cross_entropy(g, dt_matmul(g, out, w2, 0, 0), dt_tensor_of(g, DT_I32, dt_shape1(n), y), 0);
    if (!dt_graph_result(g)) loss = dt_value(g, out)[0];
    if (gradient && !dt_backward(g, out)) memcpy(gradient, dt_value(g, dt_grad(g, all)), sizeof(float) * WEIGHTS);
    dt_graph_close(&g);
    return loss;
}

static void initial(float *w, int rank)
{
    for (int i = 0; i < WEIGHTS; i++) w[i] = 0.4f * noise((uint64_t)(2000000 + rank * WEIGHTS + i));
}

/* Rounds to IEEE half: 11 bits, down to 2^-24, up to 65504. */
static float half(float x)
{
    int e;
    float quantum;
    if (!(fabsf(x) < 65520)) return x < 0 ? -INFINITY : x > 0 ? INFINITY : x;
    frexpf(x, &e);
    quantum = ldexpf(1, (e < -13 ? -13 : e) - 11);
    return rintf(x / quantum) * quantum;
}

/* ---- a step ---- */

/* The order of an epoch; returns how many samples it has. */
static int epoch_order(const job *j, int epoch, int order[SAMPLES])
{
    uint64_t random = (uint64_t)epoch + 88172645463325252u;
    int n = 0;
    for (int i = 0; i < SAMPLES; i++)
        if (i / PER_SHARD != j->lost_shard) order[n++] = i;
    for (int i = n - 1; i > 0 && j->shuffle; i--) {
        int k, swap = order[i];
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        k = (int)(random % (uint64_t)(i + 1)), order[i] = order[k], order[k] = swap;
    }
    return n;
}

/* The samples of a rank. */
static void pick(const job *j, int step, int rank, int to[SHARE])
{
    int order[SAMPLES], n = epoch_order(j, 0, order), steps = n / BATCH, seen = step;
    if (step >= RESUME && !j->sampler) seen = step - RESUME;
    n = epoch_order(j, seen / steps, order);
    for (int i = 0; i < SHARE; i++)
        to[i] = order[seen % steps * (j->by_rank ? BATCH : SHARE) + (j->by_rank ? rank * SHARE : 0) + i];
}

static float backward(const job *j, worker *r, const int *samples, trace *t)
{
    float x[SHARE * IN], loss;
    int32_t y[SHARE];
    for (int i = 0; i < SHARE; i++) sample(samples[i], x + i * IN), y[i] = class_of(samples[i]);
    normalize(x, SHARE, 1, j->running);
    loss = model(r->w, x, y, SHARE, r->gradient);
    for (int i = 0; i < WEIGHTS; i++) {
        float sent = half(r->gradient[i] / TOKENS * j->scale);
        t->zeros += sent == 0, r->gradient[i] = sent / j->scale * TOKENS;
    }
    return loss;
}

/* Sums the gradients; a step with an infinite one is skipped. */
static void update(const job *j, worker *ranks, int step, trace *t)
{
    double norm = 0, moved = 0;
    float sum[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++) {
        sum[i] =
            ((ranks[0].gradient[i] + ranks[1].gradient[i]) + (ranks[2].gradient[i] + ranks[3].gradient[i])) / j->divide;
        norm += (double)sum[i] * (double)sum[i];
    }
    t->gradient[step] = (float)sqrt(norm);
    if (!isfinite(t->gradient[step])) {
        t->overflows++;
        return;
    }
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < WEIGHTS; i++) {
            float *m = &ranks[r].momentum[i];
            *m = 0.8f * *m + sum[i];
            ranks[r].w[i] -= j->rate * *m;
            if (!r) moved += (double)(j->rate * *m) * (double)(j->rate * *m);
        }
    t->update[step] = (float)sqrt(moved);
}

/* Ticks of computing and of waiting for the slowest rank. */
static void clock_of(const job *j, int step, trace *t)
{
    int64_t takes[RANKS], most = 0;
    for (int r = 0; r < RANKS; r++) {
        takes[r] = 100 + (int64_t)(5 * noise((uint64_t)(3000000 + step * RANKS + r)));
        if (r == j->slow_rank) takes[r] *= 3;
        if (takes[r] > most) most = takes[r];
    }
    t->ticks += most + 12;
    for (int r = 0; r < RANKS; r++) t->waits[r] += most - takes[r] + 12;
}

static float validate(const worker *r)
{
    float x[VALIDATION * IN];
    int32_t y[VALIDATION];
    for (int i = 0; i < VALIDATION; i++) sample(SAMPLES + i, x + i * IN), y[i] = class_of(SAMPLES + i);
    normalize(x, VALIDATION, 0, 0);
    return model(r->w, x, y, VALIDATION, NULL);
}

/* What is counted of the samples: the first epoch, and classes per batch. */
static void count(const job *j, trace *t)
{
    int seen[SAMPLES] = {0}, order[SAMPLES], steps = epoch_order(j, 0, order) / BATCH, mine[SHARE];
    for (int step = 0; step < steps; step++) {
        int classes = 0;
        for (int r = 0; r < RANKS; r++) {
            pick(j, step, r, mine);
            for (int i = 0; i < SHARE; i++) {
                t->samples++, t->distinct += !seen[mine[i]]++, t->by_class[class_of(mine[i])]++;
                classes |= 1 << class_of(mine[i]);
            }
        }
        for (int c = 0; c < CLASSES; c++) t->classes_seen += classes >> c & 1;
    }
    for (int i = 0; i < SAMPLES; i++) {
        if (seen[i]) continue;
        if (!t->unread++) t->unread_first = i;
        t->unread_last = i;
    }
}

static void train(const job *j, trace *t)
{
    static worker ranks[RANKS];
    memset(t, 0, sizeof *t), memset(ranks, 0, sizeof ranks);
    for (int k = 0; k < IN; k++) running.mean[k] = 0, running.square[k] = 1;
    for (int r = 0; r < RANKS; r++) {
        initial(ranks[r].w, j->broadcast ? 0 : r);
        t->hash[0][r] = lab_hash(ranks[r].w, sizeof ranks[r].w);
    }
    for (int step = 0; step < STEPS; step++) {
        int mine[SHARE];
        for (int r = 0; r < RANKS; r++) {
            if (step == RESUME && !j->momentum) memset(ranks[r].momentum, 0, sizeof ranks[r].momentum);
            pick(j, step, r, mine);
            t->loss[step] += backward(j, &ranks[r], mine, t) / RANKS;
        }
        update(j, ranks, step, t);
        clock_of(j, step, t);
        if (step % EVERY == EVERY - 1) t->validation[step / EVERY] = validate(&ranks[0]);
    }
    count(j, t);
    for (int r = 0; r < RANKS; r++) t->hash[1][r] = lab_hash(ranks[r].w, sizeof ranks[r].w);
    t->mean[0] = running.mean[0], t->mean[1] = running.mean[IN - 1];
}
