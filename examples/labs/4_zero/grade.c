/* Grader of lab 4: the bits of plain data parallel, a limit of memory, and a limit of bytes sent. */
#include "../grade.h"
#include "lab.h"

enum { SLACK = 1024 }; /* bytes: for struct zero */

typedef struct task {
    int stage;
    int64_t sent[LAB_RANKS]; /* bytes in all steps */
    float first[WEIGHTS], end[LAB_RANKS][WEIGHTS];
} task;

/* ---- runs ---- */

void lab_error(lab_comm *c, const lab_batch *b, float *dy)
{
    layers_error(b->x[DEPTH], b->target, b->n, dy);
    for (int64_t i = 0; i < b->n * WIDTH; i++) dy[i] /= (float)lab_size(c);
}

static void batch(lab_comm *c, lab_batch *b)
{
    memset(b, 0, sizeof *b);
    b->n = SAMPLES / lab_size(c);
    for (int64_t i = 0; i < b->n; i++)
        layers_sample(NULL, DT_TRAIN, b->n * lab_rank(c) + i, b->x[0] + i * WIDTH, b->target + i * WIDTH);
}

static void learner(lab_comm *c, void *user)
{
    static lab_batch b;
    task *t = user;
    const lab_counts *k = &c->w->counts[c->rank];
    zero *z = zero_open(c, t->stage, t->first);
    int64_t before = k->call_bytes + k->bytes;
    if (!z) lab_refuse(c, "gets NULL from zero_open");
    for (int step = 1; step <= STEPS; step++) {
        batch(c, &b);
        zero_step(z, step, &b);
    }
    t->sent[lab_rank(c)] = k->call_bytes + k->bytes - before;
    zero_weights(z, t->end[lab_rank(c)]);
    zero_close(z);
}

/* Plain data parallel. */
static void plain(lab_comm *c, void *user)
{
    static float g[WEIGHTS], m[WEIGHTS], v[WEIGHTS], dy[SAMPLES * WIDTH];
    static lab_batch b;
    task *t = user;
    float *w = t->end[lab_rank(c)];
    memcpy(w, t->first, sizeof t->first);
    for (int step = 1; step <= STEPS; step++) {
        batch(c, &b);
        for (int l = 0; l < DEPTH; l++) layer_forward(w + l * LAYER, b.x[l], b.n, b.x[l + 1]);
        lab_error(c, &b, dy);
        for (int l = DEPTH - 1; l >= 0; l--) layer_backward(w + l * LAYER, b.x[l], dy, b.n, g + l * LAYER, dy);
        lab_all_reduce(c, g, WEIGHTS);
        adam(w, g, m, v, WEIGHTS, step);
    }
}

/* ---- tests ---- */

static void bits(const task *t, const task *want, int n)
{
    for (int i = 0; i < n * WEIGHTS; i++) {
        float got = t->end[i / WEIGHTS][i % WEIGHTS], plain_has = want->end[0][i % WEIGHTS];
        if (!memcmp(&got, &plain_has, sizeof got)) continue;
        lab_ok(0, "bits, stage %d, ranks: %d; those of plain data parallel", t->stage, n);
        lab_note("rank %d has %.9g at [%d], layer %d; plain data parallel has %.9g", i / WEIGHTS, (double)got,
                 i % WEIGHTS, i % WEIGHTS / LAYER, (double)plain_has);
        return;
    }
    lab_ok(1, "bits, stage %d, ranks: %d; those of plain data parallel", t->stage, n);
}

/* Bytes of memory and of messages on the worst rank; returns their sum. */
static int64_t costs(const task *t, int n)
{
    int64_t peak = 0, sent = 0, left = 0, layer = 4 * LAYER, all = 4 * WEIGHTS;
    int64_t room = t->stage == 1 ? 2 * all + 2 * all / n + layer : 4 * all / n + 2 * layer;
    int64_t most = (t->stage == 1 ? 2 : 3) * (n - 1) * all / n;
    for (int r = 0; r < n; r++) {
        if (lab_counted[r].peak > peak) peak = lab_counted[r].peak;
        if (t->sent[r] / STEPS > sent) sent = t->sent[r] / STEPS;
        left += lab_counted[r].memory;
    }
    if (!lab_ok(peak <= room + SLACK, "memory, stage %d, ranks: %d; %lld bytes at most, the limit is %lld", t->stage, n,
                (long long)peak, (long long)(room + SLACK)))
        lab_note("the limit has %s, and %s",
                 t->stage == 1 ? "weights, gradients, pieces of m and v" : "pieces of all four",
                 t->stage == 1 ? "one layer more" : "two layers more");
    lab_ok(sent <= most, "bytes, stage %d, ranks: %d; %lld sent per step, at most %lld", t->stage, n, (long long)sent,
           (long long)most);
    lab_ok(left == 0, "freed, stage %d, ranks: %d; %lld bytes are left", t->stage, n, (long long)left);
    return peak + sent;
}

int main(int argc, char **argv)
{
    task *t = lab_shared(sizeof *t), *want = lab_shared(sizeof *want);
    int64_t cost = 0;
    lab_begin("4_zero", argc, argv);
    for (int i = 0; i < WEIGHTS; i++) t->first[i] = want->first[i] = 0.2f * sinf(12.9898f * (float)(i + 1));
    for (int n = 1; n <= 4; n *= 2) {
        if (!lab_run(n, plain, want)) return printf("Bail out! %s\n", lab_verdict), 1;
        for (t->stage = 1; t->stage <= 3; t->stage += 2) {
            memset(t->end, 0, sizeof t->end);
            if (!lab_runs(n, learner, t, "bits, stage %d, ranks: %d", t->stage, n)) continue;
            bits(t, want, n);
            cost = costs(t, n);
        }
    }
    return lab_end((double)cost, "bytes: peak + sent per step, stage 3 on 4 ranks");
}
