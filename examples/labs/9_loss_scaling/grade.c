/* Grader of lab 9: what fp16 loses, the scale step by step, skipped steps, and the weights of the reference. */
#include "../grade.h"
#include "lab.h"
#include <math.h>

enum { STEPS = 400, SAMPLES = 8, LONG = 700, SHORT = 30 };
enum { USUAL, CALM, SPOILED }; /* spikes in some steps, in none, in all of them */

/* What a run leaves: of each rank its last state, and what lab_backward saw. */
typedef struct trace {
    mixed end[LAB_RANKS];
    float scale[LAB_RANKS][LONG];
    int calls[LAB_RANKS], unrounded[LAB_RANKS];
    int64_t numbers[LAB_RANKS], lost[LAB_RANKS];
} trace;
typedef struct task { /* what a rank gets */
    int steps;
    float first[WEIGHTS];
} task;
typedef struct query { /* what lab_backward asks */
    int32_t step;
    float scale, w[WEIGHTS];
} query;

static trace got, want, *now;
static task tasks[LAB_RANKS];
static int kind, spikes[2];                 /* spikes: the first of two steps, and of three */
static float best[WEIGHTS], phase[SAMPLES]; /* drawn */
static const int steps_of[] = {STEPS, LONG, SHORT};

/* ---- what the lab offers ---- */

float lab_half(float x)
{
    float size = fabsf(x), unit;
    int e;
    if (!(size < 65520)) return size >= 65520 ? copysignf(INFINITY, x) : x; /* NaN stays */
    (void)frexpf(size, &e);
    unit = ldexpf(1, e > -13 ? e - 11 : -24);
    return copysignf(rintf(size / unit) * unit, x);
}

void lab_backward(lab_comm *c, const float *w, int step, float scale, float *g)
{
    query q = {step, scale, {0}};
    memcpy(q.w, w, sizeof q.w);
    lab_ask(0, 0, &q, sizeof q, g, sizeof q.w);
}

void lab_adam(mixed *s, const float *g, int number)
{
    const float rate = 1.0f / 4096, first = 1 - powf(0.9f, (float)number), second = 1 - powf(0.99f, (float)number);
    for (int i = 0; i < WEIGHTS; i++) {
        s->m[i] = 0.9f * s->m[i] + 0.1f * g[i];
        s->v[i] = 0.99f * s->v[i] + 0.01f * g[i] * g[i];
        s->w[i] -= rate * (s->m[i] / first) / (sqrtf(s->v[i] / second) + 1e-18f);
    }
}

static void program(lab_comm *c, void *in, void *out)
{
    const task t = *(task *)in;
    mixed *s = out;
    memset(s, 0x55, sizeof *s); /* the learner sets all of it */
    LAB_ITS(mixed_open)(s, t.first);
    for (int step = 0; step < t.steps; step++) {
        LAB_ITS(mixed_step)(c, s, step);
        lab_ask(1, step, NULL, 0, NULL, 0);
    }
}

/* ---- the samples, which only the grader has ---- */

static int spike(int step)
{
    return (step >= spikes[0] && step < spikes[0] + 2) || (step >= spikes[1] && step < spikes[1] + 3);
}

/* A quadratic loss whose curvature falls from 2^-12 to 2^-27. The last sample makes the spikes. */
static void backward(int rank, int n, const query *q, float *g)
{
    int own = SAMPLES / n;
    now->scale[rank][now->calls[rank]++] = q->scale;
    for (int i = 0; i < WEIGHTS; i++) {
        double sum = 0, apart = (double)q->w[i] - (double)best[i];
        if (memcmp(&q->w[i], &(float){lab_half(q->w[i])}, sizeof *g)) now->unrounded[rank]++;
        for (int b = rank * own; b < (rank + 1) * own; b++) {
            double one = apart * ldexp(1 + 0.5 * sin(q->step + (double)phase[b] + i), -12 - i % 16) / SAMPLES;
            sum += kind == USUAL && spike(q->step) && b == SAMPLES - 1 ? ldexp(one, 30) : one;
        }
        g[i] = lab_half((float)(sum * (double)q->scale));
        if (kind == SPOILED && rank == n - 1 && i == WEIGHTS - 1) g[i] = -INFINITY;
        now->numbers[rank]++, now->lost[rank] += sum != 0 && g[i] == 0;
    }
}

static int64_t answer(lab_question *q)
{
    static float g[WEIGHTS];
    static query asks;
    int *calls = &now->calls[q->rank];
    if (!lab_fits(q, q->what ? 0 : sizeof asks, LONG)) return 0;
    if (q->what) {
        if (*calls > q->number) return 0;
        return lab_stop("rank %d does not call lab_backward in step %d", q->rank, (int)q->number);
    }
    memcpy(&asks, q->data, sizeof asks);
    if (*calls >= LONG) return lab_stop("rank %d calls lab_backward more than once per step", q->rank);
    if (asks.step != *calls) return lab_stop("rank %d asks for step %d, and is in step %d", q->rank, asks.step, *calls);
    backward(q->rank, lab__net.ranks, &asks, g);
    q->reply = g, q->reply_bytes = sizeof g;
    return 0;
}

static void draw(void)
{
    spikes[0] = lab_draw(10, 40), spikes[1] = lab_draw(120, 200);
    lab_numbers(best, WEIGHTS, 0.4f), lab_numbers(phase, SAMPLES, 50);
    for (int i = 0; i < WEIGHTS; i++) {
        best[i] += 1.5f;
        tasks[0].first[i] = best[i] + (i % 2 ? 0.02f : -0.03f) - 0.01f * (float)(i % 3);
    }
    for (int r = 1; r < LAB_RANKS; r++) tasks[r] = tasks[0];
}

/* ---- the reference: one rank after the other ---- */

static void reference_step(mixed *s, int n, int step)
{
    query q = {step, s->scale, {0}};
    float g[LAB_RANKS][WEIGHTS];
    int fine = 1;
    for (int i = 0; i < WEIGHTS; i++) q.w[i] = lab_half(s->w[i]);
    for (int r = 0; r < n; r++) backward(r, n, &q, g[r]);
    for (int half = 1; half < n; half *= 2)
        for (int r = 0; r < n; r += 2 * half) for (int i = 0; i < WEIGHTS; i++) g[r][i] += g[r + half][i];
    for (int i = 0; i < WEIGHTS; i++) fine = fine && isfinite(g[0][i]);
    for (int i = 0; i < WEIGHTS; i++) g[0][i] /= s->scale;
    if (fine) lab_adam(s, g[0], ++s->updates);
    else s->skipped++;
    s->good = fine ? s->good + 1 : 0;
    if (!fine) s->scale = fmaxf(1, s->scale / 2);
    if (s->good == GROW) s->good = 0, s->scale = fminf(SCALE_MOST, 2 * s->scale);
}

static void run(int of, int n)
{
    mixed *s = &want.end[0], end[LAB_RANKS];
    memset(&got, 0, sizeof got), memset(&want, 0, sizeof want);
    kind = of, now = &want;
    memcpy(s->w, tasks[0].first, sizeof s->w), s->scale = SCALE_FIRST;
    for (int step = 0; step < steps_of[kind]; step++) reference_step(s, n, step);
    for (int r = 0; r < n; r++) tasks[r].steps = steps_of[kind];
    now = &got;
    lab_run(n, tasks, sizeof tasks[0], end, sizeof end[0]);
    memcpy(got.end, end, sizeof end[0] * (size_t)n);
}

/* ---- tests ---- */

/* Mean square distance to the best weights, as a share of the first one. */
static double distance(const mixed *s)
{
    const float *first = tasks[0].first;
    double sum = 0, of = 0;
    for (int i = 0; i < WEIGHTS; i++)
        sum += pow((double)s->w[i] - (double)best[i], 2), of += pow((double)first[i] - (double)best[i], 2);
    return sum / of;
}

/* Is the scale of every step the one that it should be? */
static void scales(const char *what, int n)
{
    int rank = -1, at = 0;
    for (int step = 0; step < want.calls[0] && rank < 0; step++)
        for (int r = 0; r < n && rank < 0; r++)
            if (!(got.scale[r][step] == want.scale[0][step])) rank = r, at = step;
    if (!lab_ok(rank < 0, "%s, ranks: %d; the scale of every step", what, n))
        lab_note("step %d has the scale %g on rank %d, expected %g", at, (double)got.scale[rank < 0 ? 0 : rank][at],
                 rank, (double)want.scale[0][at]);
}

static void compare(int n)
{
    const mixed *s = &got.end[0], *w = &want.end[0];
    int64_t lost = 0, numbers = 0, unrounded = 0;
    int same = 1, at = -1;
    double far = distance(s);
    for (int r = 0; r < n; r++) {
        lost += got.lost[r], numbers += got.numbers[r], unrounded += got.unrounded[r];
        same = same && !memcmp(s->w, got.end[r].w, sizeof s->w);
    }
    for (int i = 0; i < WEIGHTS && at < 0; i++)
        if (memcmp(&s->w[i], &w->w[i], sizeof *s->w)) at = i;
    if (!lab_ok(!unrounded, "rounded, ranks: %d; backward reads weights of fp16", n))
        lab_note("%lld of the numbers that lab_backward was given have more bits", (long long)unrounded);
    if (!lab_ok(lost * 100 < numbers * 15, "underflow, ranks: %d; %.1f %% of the gradients became 0, at most 15 %%", n,
                100.0 * (double)lost / (double)(numbers ? numbers : 1)))
        lab_note("what is below 2^-25 before it is rounded is gone: scale the loss, not the gradient");
    scales("scale", n);
    if (!lab_ok(s->skipped == w->skipped && s->updates == w->updates, "counts, ranks: %d; %d steps skipped, %d updates",
                n, w->skipped, w->updates))
        lab_note("yours has skipped %d and updated %d times", s->skipped, s->updates);
    if (!lab_ok(same, "replicas, ranks: %d; the same weights on every rank", n))
        lab_note("do all ranks skip the same steps?");
    if (!lab_ok(far < 0.05, "band, ranks: %d; %.2f %% of the distance is left, at most 5 %%", n, 100 * far))
        lab_note("an update moves a weight by 2^-12; next to 1.5 an fp16 number has steps of 2^-10");
    if (!lab_ok(at < 0, "weights, ranks: %d; the bits of the reference", n))
        lab_note("weight %d is %.9g, expected %.9g: skipped steps change nothing, moments and Adam's number included",
                 at, (double)s->w[at < 0 ? 0 : at], (double)w->w[at < 0 ? 0 : at]);
}

int main(int argc, char **argv)
{
    lab_begin("9_loss_scaling", program, argc, argv);
    lab_on_ask = answer;
    draw();
    for (int n = 1; n <= 4; n *= 2) run(USUAL, n), compare(n);
    run(CALM, 1), scales("growth", 1);
    run(SPOILED, 2), scales("floor", 2);
    return lab_end(0, NULL);
}
