/* Grader of lab 4: the bits of plain data parallel, a limit of memory, and a limit of bytes sent. */
#include "../grade.h"
#include "lab.h"

enum { SLACK = 1024, STACK = 4096 }; /* bytes: for struct zero; of the stack, for dy */

typedef struct task { /* what a rank gets; of the batch, its inputs and targets */
    int stage, rank;
    float first[WEIGHTS];
    lab_batch batch;
} task;
static task tasks[LAB_RANKS];
static float end[LAB_RANKS][WEIGHTS], want[WEIGHTS];

/* ---- a rank ---- */

void lab_error(lab_comm *c, const lab_batch *b, float *dy)
{
    layers_error(b->x[DEPTH], b->target, b->n, dy);
    for (int64_t i = 0; i < b->n * WIDTH; i++) dy[i] /= (float)lab_size(c);
}

static void learner(lab_comm *c, void *in, void *out)
{
    task *t = in;
    lab_batch *b = &t->batch;
    float *first, *dw = out;
    zero *z;
    layer_backward(t->first, b->x[0], b->x[1], b->n, dw, b->x[1]);
    lab_counts_stack();
    first = lab_lend(t->first, sizeof t->first);
    z = LAB_ITS(zero_open)(c, t->stage, first);
    lab_unlend(first), memset(t->first, 0, sizeof t->first);
    if (!z) lab_refuse("gets NULL from zero_open");
    for (int step = 1; step <= STEPS; step++) {
        b = lab_lend(&t->batch, sizeof *b);
        LAB_ITS(zero_step)(z, step, b);
        for (int l = 0; l <= DEPTH; l++)
            for (int64_t i = b->n * WIDTH; i < SAMPLES * WIDTH; i++)
                if (b->x[l][i] != 0) lab_refuse("writes past its %d samples in x[%d]", (int)b->n, l);
        lab_unlend(b);
    }
    LAB_ITS(zero_weights)(z, out);
    LAB_ITS(zero_close)(z);
}

/* ---- the reference ---- */

static void draw(void)
{
    lab_numbers(tasks[0].first, WEIGHTS, 0.2f);
    lab_numbers(tasks[0].batch.x[0], SAMPLES * WIDTH, 1);
    lab_numbers(tasks[0].batch.target, SAMPLES * WIDTH, 0.9f);
}

/* Gives each rank its share of all samples. */
static void share(const lab_batch *all, int n)
{
    for (int r = 0; r < n; r++) {
        lab_batch *b = &tasks[r].batch;
        memset(b, 0, sizeof *b);
        b->n = SAMPLES / n;
        memcpy(b->x[0], all->x[0] + r * b->n * WIDTH, 4 * (size_t)(b->n * WIDTH));
        memcpy(b->target, all->target + r * b->n * WIDTH, 4 * (size_t)(b->n * WIDTH));
        memcpy(tasks[r].first, tasks[0].first, sizeof tasks[0].first), tasks[r].rank = r;
    }
}

/* Plain data parallel: one rank after the other, and the sum as the tree of an all-reduce. */
static void plain(int n)
{
    static float g[LAB_RANKS][WEIGHTS], m[WEIGHTS], v[WEIGHTS], dy[SAMPLES * WIDTH];
    static lab_batch b;
    lab_comm c = {0, n};
    memcpy(want, tasks[0].first, sizeof want), memset(m, 0, sizeof m), memset(v, 0, sizeof v);
    for (int step = 1; step <= STEPS; step++) {
        for (int r = 0; r < n; r++) {
            b = tasks[r].batch;
            for (int l = 0; l < DEPTH; l++) layer_forward(want + l * LAYER, b.x[l], b.n, b.x[l + 1]);
            lab_error(&c, &b, dy);
            for (int l = DEPTH - 1; l >= 0; l--)
                layer_backward(want + l * LAYER, b.x[l], dy, b.n, g[r] + l * LAYER, dy);
        }
        for (int half = 1; half < n; half *= 2)
            for (int r = 0; r < n; r += 2 * half) for (int i = 0; i < WEIGHTS; i++) g[r][i] += g[r + half][i];
        adam(want, g[0], m, v, WEIGHTS, step);
    }
}

/* ---- tests ---- */

static void bits(int stage, int n)
{
    int i = 0;
    while (i < n * WIDTH * WIDTH * DEPTH - 1 && !memcmp(&end[i / WEIGHTS][i % WEIGHTS], &want[i % WEIGHTS], 4)) i++;
    if (!lab_ok(!memcmp(&end[i / WEIGHTS][i % WEIGHTS], &want[i % WEIGHTS], 4),
                "bits, stage %d, ranks: %d; those of plain data parallel", stage, n))
        lab_note("rank %d has %.9g at [%d], layer %d; plain data parallel has %.9g", i / WEIGHTS,
                 (double)end[i / WEIGHTS][i % WEIGHTS], i % WEIGHTS, i % WEIGHTS / LAYER, (double)want[i % WEIGHTS]);
}

/* Bytes of memory and of messages on the worst rank; returns their sum. at_end: in stage 3, zero_weights may gather. */
static int64_t costs(int stage, int n)
{
    int64_t peak = 0, most_sent = 0, left = 0, layer = 4 * LAYER, all = 4 * WEIGHTS;
    int64_t room = SLACK + (stage == 1 ? 2 * all + 2 * all / n + layer : 4 * all / n + 2 * layer);
    int64_t most = (stage == 1 ? 2 : 3) * (n - 1) * all / n, at_end = stage == 1 ? 0 : (n - 1) * all / n;
    int worst = 0;
    for (int r = 0; r < n; r++) {
        int64_t sent;
        if (lab_memory(r, STACK) > peak) peak = lab_memory(r, STACK), worst = r;
        sent = (lab_counted[r].call_bytes + lab_counted[r].bytes - at_end) / STEPS;
        if (sent > most_sent) most_sent = sent;
        left += lab_counted[r].memory;
    }
    if (!lab_ok(peak <= room, "memory, stage %d, ranks: %d; %lld bytes at most, the limit is %lld", stage, n,
                (long long)peak, (long long)room)) {
        lab_note("the limit has %s, and %s",
                 stage == 1 ? "weights, gradients, pieces of m and v" : "pieces of all four",
                 stage == 1 ? "one layer more" : "two layers more");
        lab_note_memory(worst, STACK);
    }
    lab_ok(most_sent <= most, "bytes, stage %d, ranks: %d; %lld sent per step, at most %lld", stage, n,
           (long long)most_sent, (long long)most);
    lab_ok(left == 0, "freed, stage %d, ranks: %d; %lld bytes are left", stage, n, (long long)left);
    return peak + most_sent;
}

int main(int argc, char **argv)
{
    static lab_batch all;
    int64_t cost = 0;
    lab_begin("4_zero", learner, argc, argv);
    draw(), all = tasks[0].batch;
    for (int n = 1; n <= 4; n *= 2) {
        share(&all, n), plain(n);
        for (int stage = 1; stage <= 3; stage += 2) {
            for (int r = 0; r < n; r++) tasks[r].stage = stage;
            lab_run(n, tasks, sizeof tasks[0], end, sizeof end[0]);
            bits(stage, n);
            cost = costs(stage, n);
        }
    }
    return lab_end((double)cost, "bytes: peak + sent per step, stage 3 on 4 ranks");
}
