/* 50_pipeline_by_hand: how do ranks that have different layers of one model work at the same time?
 *
 * What you learn
 *     - Rank s has stage s: some of the layers. A batch is cut into m micro-batches, which follow each other through
 *       the stages. A message forward is the input of the next stage, a message back its gradient: the same few
 *       numbers, however many layers a stage has.
 *     - GPipe: all forwards, then all backwards. 1F1B: stage s of p does p - 1 - s forwards in advance, then a backward
 *       after each forward. Both wait the same share of the time, the bubble (p-1)/(m+p-1). What 1F1B saves is memory:
 *       stage s keeps the inputs of p - s micro-batches instead of m. "1F1B has a smaller bubble" confuses the two.
 *     - A send ends when it is received, so two neighbours that both send first wait forever: odd stages receive first.
 *     - Each stage adds up the gradients of its micro-batches in order, so the schedule changes no bit.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 50_pipeline_by_hand.c -o 50_pipeline_by_hand -lm -lpthread
 *     ./50_pipeline_by_hand --ranks 4            (1, 2 or 4; compiled with -DMICROS=16: 16 micro-batches)
 *
 * What it prints
 *     stages: 4; micro-batches: 8; a forward takes 1, a backward 2
 *       GPipe  loss 0.01403  waits 27.3 %, (p-1)/(m+p-1) is 27.3 %  keeps 8 8 8 8
 *       1F1B   loss 0.01403  waits 27.3 %, (p-1)/(m+p-1) is 27.3 %  keeps 4 3 2 1
 *     ok: 4096 equal weights, one bubble; 1F1B keeps 4 of 8
 *
 * Predict first: with 16 micro-batches instead of 8, what becomes of the bubble, and of what each stage keeps?
 * Exercise: let the last stage of GPipe do each backward at once and send the gradients later. What changes?
 *
 * Read on: 51_pipeline.c for the trainer's schedules, drawn; 40_zero_by_hand.c for the other way to share weights. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "layers.h"
#include <stdlib.h>

#ifndef MICROS
#define MICROS 8
#endif
enum { ROWS = SAMPLES / MICROS, FLOATS = ROWS * WIDTH }; /* a message has one number more: the time */
enum { GPIPE, ONE_F_ONE_B };
static const char *const names[2] = {"GPipe", "1F1B"};

typedef struct stage {
    dt_comm *c;
    int rank, ranks, first, layers;                 /* of this stage */
    float w[WEIGHTS], g[WEIGHTS], m[WEIGHTS], v[WEIGHTS];
    float target[SAMPLES * WIDTH], loss, clock;     /* clock: when this stage is free */
    float *kept[MICROS][DEPTH + 1];                 /* inputs of the layers, from forward to backward */
    int keeps, most;
} stage;

/* One message each way between neighbours; NULL: none. */
static dt_result exchange(stage *s, int with, const float *out, float *in)
{
    dt_result r = DT_OK;
    for (int turn = 0; turn < 2 && !r; turn++) {
        int sends = (s->rank + turn) % 2 == 0;
        if (sends && out) r = dt_send(s->c, out, FLOATS + 1, with);
        if (!sends && in) r = dt_recv(s->c, in, FLOATS + 1, with);
    }
    return r;
}

/* Waits for the message's time, then works. */
static void works(stage *s, float arrived, float takes) { s->clock = fmaxf(s->clock, arrived) + takes; }

/* x: the input of micro-batch i, then what this stage makes of it. */
static dt_result forward(stage *s, int i, float *x)
{
    dt_result r = DT_OK;
    if (s->rank == 0) x[FLOATS] = 0;
    for (int k = 0; k < ROWS && s->rank == 0; k++)
        layers_sample(NULL, DT_TRAIN, i * ROWS + k, x + k * WIDTH, s->target);
    for (int l = 0; l < s->layers && !r; l++) {
        s->kept[i][l] = malloc(sizeof(float) * FLOATS);
        if (!s->kept[i][l]) return DT_E_MEMORY;
        memcpy(s->kept[i][l], x, sizeof(float) * FLOATS);
        r = layer_forward(s->w + (s->first + l) * LAYER, s->kept[i][l], ROWS, x);
    }
    if (++s->keeps > s->most) s->most = s->keeps;
    works(s, x[FLOATS], 1);
    x[FLOATS] = s->clock;
    return r;
}

/* d: the gradient of this stage's output, then of its input; in the last stage first the output itself. */
static dt_result backward(stage *s, int i, float *d)
{
    float y[FLOATS], dw[LAYER], ignored[WIDTH];
    dt_result r = DT_OK;
    if (s->rank == s->ranks - 1) {
        memcpy(y, d, sizeof y);
        for (int k = 0; k < ROWS; k++) layers_sample(NULL, DT_TRAIN, i * ROWS + k, ignored, s->target + k * WIDTH);
        s->loss += layers_error(y, s->target, ROWS, d) / MICROS;
        for (int k = 0; k < FLOATS; k++) d[k] /= MICROS;
    }
    for (int l = s->layers; l-- > 0 && !r;) {
        float *g = s->g + (s->first + l) * LAYER;
        r = layer_backward(s->w + (s->first + l) * LAYER, s->kept[i][l], d, ROWS, dw, d);
        for (int k = 0; k < LAYER; k++) g[k] += dw[k];
        free(s->kept[i][l]);
    }
    s->keeps--;
    works(s, d[FLOATS], 2);
    d[FLOATS] = s->clock;
    return r;
}

/* All micro-batches. In GPipe a stage is ahead by all of them. */
static dt_result schedule(stage *s, int kind)
{
    static float x[MICROS][FLOATS + 1]; /* an input, this stage's output, and then the gradient */
    int up = s->rank - 1, down = s->rank + 1 < s->ranks ? s->rank + 1 : -1;
    int ahead = kind == GPIPE ? MICROS : s->ranks - 1 - s->rank < MICROS ? s->ranks - 1 - s->rank : MICROS;
    dt_result r = DT_OK;
    for (int i = 0; i < ahead && !r; i++) {
        if (up >= 0) r = exchange(s, up, NULL, x[i]);
        if (!r) r = forward(s, i, x[i]);
        if (!r && down >= 0) r = exchange(s, down, x[i], NULL);
    }
    if (up >= 0 && ahead < MICROS && !r) r = exchange(s, up, NULL, x[ahead]);
    for (int b = 0; b < MICROS && !r; b++) {
        int f = ahead + b; /* the forward before this backward */
        float gradient[FLOATS + 1];
        if (f < MICROS) r = forward(s, f, x[f]);
        if (down >= 0 && !r) {
            r = exchange(s, down, f < MICROS ? x[f] : NULL, gradient);
            memcpy(x[b], gradient, sizeof gradient);
        }
        if (!r) r = backward(s, b, x[b]);
        if (up >= 0 && !r) r = exchange(s, up, x[b], f + 1 < MICROS ? x[f + 1] : NULL);
    }
    return r;
}

static dt_result train(stage *s, int kind, const float *first, float *end, float *idle)
{
    dt_result r = DT_OK;
    memcpy(s->w, first, sizeof s->w);
    memset(s->m, 0, sizeof s->m), memset(s->v, 0, sizeof s->v);
    s->layers = DEPTH / s->ranks, s->first = s->rank * s->layers, s->keeps = s->most = 0;
    for (int step = 1; step <= STEPS && !r; step++) {
        int64_t at = s->first * LAYER;
        memset(s->g, 0, sizeof s->g);
        s->loss = s->clock = 0;
        r = schedule(s, kind);
        adam(s->w + at, s->g + at, s->m + at, s->v + at, s->layers * LAYER, step);
    }
    float all = s->clock;
    if (!r) r = dt_all_reduce(s->c, &all, 1, DT_MAX);
    if (!r) r = dt_broadcast(s->c, &s->loss, 1, s->ranks - 1);
    if (!r) r = dt_all_gather(s->c, s->w + s->first * LAYER, end, s->layers * LAYER);
    *idle = 1 - 3 * MICROS / all;
    return r;
}

int main(int argc, char **argv)
{
    static float first[WEIGHTS], end[2][WEIGHTS];
    static stage s;
    float trainers, idle, bubble, most[DEPTH], own;
    dt_layout l = dt_layout_default();
    int good = 1;
    dt_result r = dt_comm_open(&s.c, &argc, &argv);
    if (r) return dt_fail("50_pipeline_by_hand");
    s.rank = dt_comm_rank(s.c), s.ranks = dt_comm_size(s.c);
    if (argc > 1 || s.ranks > DEPTH || DEPTH % s.ranks)
        return fprintf(stderr, "50_pipeline_by_hand: the option is --ranks 1, 2 or 4\n"), 2;
    l.pp = s.ranks;
    trainers = layers_trainers(&l, first);
    bubble = (float)(s.ranks - 1) / (float)(MICROS + s.ranks - 1);
    if (!s.rank) printf("stages: %d; micro-batches: %d; a forward takes 1, a backward 2\n", s.ranks, MICROS);
    for (int kind = 0; kind < 2 && !r; kind++) {
        r = train(&s, kind, first, end[kind], &idle);
        own = (float)s.most;
        if (!r) r = dt_all_gather(s.c, &own, most, 1);
        if (!s.rank)
            printf("  %-5s  loss %.5f  waits %.1f %%, (p-1)/(m+p-1) is %.1f %%  keeps", names[kind], (double)s.loss,
                   100 * (double)idle, 100 * (double)bubble);
        for (int q = 0; q < s.ranks; q++) {
            if (!s.rank) printf(" %.0f%s", (double)most[q], q + 1 < s.ranks ? "" : "\n");
            good = good && (int)most[q] == (kind == GPIPE ? MICROS : s.ranks - q);
        }
        good = good && fabsf(idle - bubble) < 1e-6f;
    }
    if (r) return dt_fail("50_pipeline_by_hand");
    good = good && !memcmp(end[0], end[1], sizeof end[0]) && fabsf(trainers - s.loss) < 1e-3f * trainers;
    if (!s.rank) printf("the trainer, on one stage and on %d: loss %.5f\n", s.ranks, (double)trainers);
    dt_comm_close(&s.c);
    if (!good) return fprintf(stderr, "FAILED: bits, waits or losses differ\n"), 1;
    if (!s.rank) printf("ok: %d equal weights, one bubble; 1F1B keeps %.0f of %d\n", WEIGHTS, (double)most[0], MICROS);
    return 0;
}
