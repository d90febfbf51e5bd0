/* 42_growing_batch: how large a batch should be, and why it may grow.
 *
 * What you learn
 *     A batch's gradient is the true one plus noise, whose square falls as 1 / batch. Far from the goal the true
 *     gradient is large and a small batch points the right way: more samples per step are wasted. Near the goal noise
 *     is all that is left, and a small batch dances around the goal at a distance that its noise decides. The gradient
 *     noise scale, tr(Sigma) / |G|^2 in samples (McCandlish et al. 2018), tells where one is: far below it a batch of
 *     twice the size needs half as many steps, far above it as many. It is measured from norms of gradients that are
 *     there anyway, of parts of the batch and of the whole.
 *     It grows during training, so no fixed batch is right for all of it. With recipe.growth a step takes 2, 4, ..
 *     batches as the noise scale grows. That is also why many data-parallel ranks pay late in a run rather than early,
 *     and why both "a larger batch is faster" and "keep it small, that learns better" are half of the truth: per sample
 *     the small one wins first, the large one last.
 *     (AWS's SMDDP library is often said to do this. Its documentation has no such feature: it is a technique.)
 *     When it grows is decided by numbers that every layout has alike: the run has one hash, on 1 rank and on 4.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 42_growing_batch.c -o 42_growing_batch -lm -lpthread
 *     ./42_growing_batch
 *     ./42_growing_batch --ranks 2
 *
 * What you should see
 *     The loss above the noise of the data after so many samples. The batch of 4 falls fastest and stops at its floor;
 *     the batch of 64 has made a sixteenth of the updates: late, but lower; the growing one falls like the first and
 *     ends like the second. Beside it the batch that it has and the noise scale. One hash in every run.
 *
 * Read on: 06_accumulation.c for steps of several batches, 37_when_not.c for what a batch costs on many ranks. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <string.h>

#define HASH "2036eb11603f919693a0e488fe9005558eacf578f5c023536a2a63fd92540ce4"
enum { INPUTS = 16, ROWS = 5, BATCH = 4, GROWTH = 16 };
enum { SMALL, LARGE, GROWING, RUNS };

typedef struct run {
    double loss[ROWS];
    long long batch[ROWS], steps[ROWS];
    double scale[ROWS];
    int root;
    char hash[65];
} run;

static uint64_t word(uint64_t n) /* the finaliser of splitmix64 (Vigna 2015) */
{
    n = (n + 1) * 0x9e3779b97f4a7c15u;
    n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9u;
    n = (n ^ n >> 27) * 0x94d049bb133111ebu;
    return n ^ n >> 31;
}

/* A target that is linear in 16 whole numbers, plus four dice of 32 sides: a variance of 4 (32^2 - 1) / 12 / 32^2. */
static const double noise = 341.0 / 1024.0;
static dt_result sample(void *user, dt_split split, int64_t i, void *input, void *target)
{
    uint64_t key = ((uint64_t)i * 2 + (split == DT_VALIDATION)) << 8, dice = word(key + 128);
    int sum = 32 * ((int)((dice & 31) + (dice >> 8 & 31) + (dice >> 16 & 31) + (dice >> 24 & 31)) - 62);
    (void)user;
    for (int k = 0; k < INPUTS; k++) {
        int x = (int)(word(key + (uint64_t)k) & 127) - 64;
        ((float *)input)[k] = (float)x / 64.0f;
        sum += 16 * (k % 2 ? x : -x);
    }
    ((float *)target)[0] = (float)sum / 1024.0f;
    return DT_OK;
}

static dt_tensor as_it_is(dt_graph *g, dt_tensor x, const void *user) { return (void)g, (void)user, x; }
static dt_tensor line(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_error_loss(g, DT_MSE, dt_linear_with(g, x, "w", 1, 0.001f, 0), dt_targets(g));
}

/* Trains until so many samples are used, and looks after each power of four of them. */
static dt_result train(int which, run *out)
{
    static const dt_segment net[] = {{"in", as_it_is, NULL}, {"out", line, NULL}};
    dt_recipe r = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_source s;
    int64_t used = 0, next = 256;
    dt_result e;
    memset(&s, 0, sizeof s);
    s.samples[DT_TRAIN] = 1 << 19, s.samples[DT_VALIDATION] = 2048, s.inputs = INPUTS, s.targets = 1, s.fetch = sample;
    r.source = &s, r.model.segments = net, r.model.segment_count = 2;
    r.batch = which == LARGE ? BATCH * GROWTH : BATCH, r.data_shards = 4;
    r.steps = 1 << 17, r.warmup = 0, r.schedule = DT_CONSTANT;
    r.optimizer = DT_SGD, r.learning_rate = 0.1f, r.weight_decay = 0, r.clip = 0;
    r.growth = which == GROWING ? GROWTH : 1;
    l.threads = 1;
    l.output.quiet = 1, l.output.sample_length = 0, l.output.eval_every = 0, l.output.eval_batches = 0;
    l.output.noise_scale = 1;
    e = dt_trainer_open(&t, &r, &l);
    for (int row = 0; row < ROWS && !e;) {
        float loss = 0.0f;
        e = dt_trainer_step(t, &info);
        used += info.batch;
        if (e || used < next) continue;
        e = dt_trainer_evaluate(t, 0, &loss);
        out->loss[row] = (double)loss - noise;
        out->batch[row] = info.batch, out->steps[row] = info.step, out->scale[row] = info.noise_scale;
        row++;
        next *= 4;
    }
    if (!e) out->root = dt_is_root(t), snprintf(out->hash, sizeof out->hash, "%s", dt_trainer_hash(t));
    dt_trainer_close(&t);
    return e;
}

int main(int argc, char **argv)
{
    static run runs[RUNS];
    const run *small = &runs[SMALL], *large = &runs[LARGE], *growing = &runs[GROWING];
    int good, last = ROWS - 1;
    dt_result e = DT_OK;
    if (dt_launch(&argc, &argv)) return dt_fail("42_growing_batch");
    for (int k = 0; k < RUNS && !e; k++) e = train(k, &runs[k]);
    if (e || !small->root) return e ? dt_fail("42_growing_batch") : 0;
    printf("loss above the noise\n%8s %10s %10s %10s   %9s %6s %12s\n", "samples", "batch 4", "batch 64", "growing",
           "its batch", "steps", "noise scale");
    for (int row = 0; row <= last; row++) {
        printf("%8d %10.5f %10.5f %10.5f   %9lld %6lld", 256 << 2 * row, small->loss[row], large->loss[row],
               growing->loss[row], growing->batch[row], growing->steps[row]);
        if (growing->scale[row] > 0) printf(" %12.0f\n", growing->scale[row]);
        else printf(" %12s\n", "beyond"); /* of the gradient nothing is left above the noise */
    }
    printf("sha256 %s\n", growing->hash);
    good = growing->loss[0] < 0.1 * large->loss[0] && growing->loss[last] < 0.2 * small->loss[last];
    good = good && growing->loss[last] < 1.1 * large->loss[last] && !strcmp(growing->hash, HASH);
    if (good) return printf("ok: first as fast as the small batch, at last as low as the large one; one hash\n"), 0;
    return fprintf(stderr, "FAILED: a loss or the hash is not what it should be\n"), 1;
}
