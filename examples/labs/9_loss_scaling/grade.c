/* Grader of lab 9: what fp16 loses, the scale step by step, skipped steps, and the weights of the reference. */
#include "../grade.h"
#include "lab.h"
#include <math.h>

enum { STEPS = 400, SAMPLES = 8, LONG = 700, SHORT = 30 };
enum { USUAL, CALM, SPOILED }; /* spikes in some steps, in none, in all of them */

/* What a run leaves: of each rank its last state and what lab_backward saw. */
typedef struct trace {
    int kind, reference;
    mixed end[LAB_RANKS];
    float scale[LAB_RANKS][LONG];
    int calls[LAB_RANKS], unrounded[LAB_RANKS];
    int64_t numbers[LAB_RANKS], lost[LAB_RANKS];
} trace;
static trace *now;

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

static float best(int i) { return 1.5f + 0.4f * sinf(7.1f * (float)i); }
static void begin(float *first)
{
    for (int i = 0; i < WEIGHTS; i++) first[i] = best(i) + (i % 2 ? 0.02f : -0.03f) - 0.01f * (float)(i % 3);
}
static int spike(int step) { return step == 20 || step == 21 || (step >= 150 && step <= 152); }

/* A quadratic loss whose curvature falls from 2^-12 to 2^-27. The last sample makes the spikes. */
void lab_backward(lab_comm *c, const float *w, int step, float scale, float *g)
{
    int rank = lab_rank(c), n = lab_size(c), own = SAMPLES / n;
    if (now->calls[rank] >= LONG) lab_refuse(c, "calls lab_backward more than once per step");
    if (step != now->calls[rank]) lab_refuse(c, "asks for step %d, and is in step %d", step, now->calls[rank]);
    now->scale[rank][now->calls[rank]++] = scale;
    for (int i = 0; i < WEIGHTS; i++) {
        double sum = 0, apart = (double)w[i] - (double)best(i);
        if (w[i] != lab_half(w[i])) now->unrounded[rank]++;
        for (int b = rank * own; b < (rank + 1) * own; b++) {
            double one = apart * ldexp(1 + 0.5 * sin(step + 3 * b + i), -12 - i % 16) / SAMPLES;
            sum += now->kind == USUAL && spike(step) && b == SAMPLES - 1 ? ldexp(one, 30) : one;
        }
        g[i] = lab_half((float)(sum * (double)scale));
        if (now->kind == SPOILED && rank == n - 1 && i == WEIGHTS - 1) g[i] = -INFINITY;
        now->numbers[rank]++, now->lost[rank] += sum != 0 && g[i] == 0;
    }
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

/* ---- runs ---- */

static void reference_step(lab_comm *c, mixed *s, int step)
{
    float w[WEIGHTS], g[WEIGHTS];
    int fine = 1;
    for (int i = 0; i < WEIGHTS; i++) w[i] = lab_half(s->w[i]);
    lab_backward(c, w, step, s->scale, g);
    lab_all_reduce(c, g, WEIGHTS);
    for (int i = 0; i < WEIGHTS; i++) fine = fine && isfinite(g[i]);
    for (int i = 0; i < WEIGHTS; i++) g[i] /= s->scale;
    if (fine) lab_adam(s, g, ++s->updates);
    else s->skipped++;
    s->good = fine ? s->good + 1 : 0;
    if (!fine) s->scale = fmaxf(1, s->scale / 2);
    if (s->good == GROW) s->good = 0, s->scale = fminf(SCALE_MOST, 2 * s->scale);
}

static void program(lab_comm *c, void *user)
{
    static mixed s;
    float first[WEIGHTS];
    int steps = now->kind == CALM ? LONG : now->kind == SPOILED ? SHORT : STEPS, rank = lab_rank(c);
    (void)user;
    begin(first);
    memset(&s, now->reference ? 0 : 0x55, sizeof s); /* the learner sets all of it */
    if (now->reference) memcpy(s.w, first, sizeof first), s.scale = SCALE_FIRST;
    else mixed_open(&s, first);
    for (int step = 0; step < steps; step++) {
        if (now->reference) reference_step(c, &s, step);
        else mixed_step(c, &s, step);
        if (now->calls[rank] <= step) lab_refuse(c, "does not call lab_backward in step %d", step);
    }
    now->end[rank] = s;
}

static void expect(trace *want, int kind, int ranks)
{
    memset(want, 0, sizeof *want);
    want->kind = kind, want->reference = 1, now = want;
    if (!lab_run(ranks, program, NULL)) fprintf(stderr, "the reference: %s\n", lab_verdict), exit(1);
}
static int run(trace *got, int kind, int ranks, const char *what)
{
    memset(got, 0, sizeof *got);
    got->kind = kind, now = got;
    return lab_runs(ranks, program, NULL, "%s, ranks: %d", what, ranks);
}

/* ---- tests ---- */

/* Mean square distance to the best weights, as a share of the first one. */
static double distance(const mixed *s)
{
    float first[WEIGHTS];
    double sum = 0, of = 0;
    begin(first);
    for (int i = 0; i < WEIGHTS; i++) {
        sum += pow((double)s->w[i] - (double)best(i), 2), of += pow((double)first[i] - (double)best(i), 2);
    }
    return sum / of;
}

/* Is the scale of every step the one that it should be? */
static void scales(const trace *got, const trace *want, const char *what, int n)
{
    for (int step = 0; step < want->calls[0]; step++) {
        for (int r = 0; r < n; r++) {
            if (got->scale[r][step] == want->scale[0][step]) continue;
            lab_ok(0, "%s, ranks: %d; the scale of every step", what, n);
            lab_note("step %d has the scale %g on rank %d, expected %g", step, (double)got->scale[r][step], r,
                     (double)want->scale[0][step]);
            return;
        }
    }
    lab_ok(1, "%s, ranks: %d; the scale of every step", what, n);
}

static void compare(const trace *got, const trace *want, int n)
{
    const mixed *s = &got->end[0], *w = &want->end[0];
    int64_t lost = 0, numbers = 0, unrounded = 0;
    int same = 1, at = -1;
    double far = distance(s);
    for (int r = 0; r < n; r++) {
        lost += got->lost[r], numbers += got->numbers[r], unrounded += got->unrounded[r];
        same = same && !memcmp(s->w, got->end[r].w, sizeof s->w);
    }
    for (int i = 0; i < WEIGHTS && at < 0; i++)
        if (memcmp(&s->w[i], &w->w[i], sizeof *s->w)) at = i;
    if (!lab_ok(!unrounded, "rounded, ranks: %d; backward reads weights of fp16", n))
        lab_note("%lld of the numbers that lab_backward was given have more bits", (long long)unrounded);
    if (!lab_ok(lost * 10 < numbers, "underflow, ranks: %d; %.1f %% of the gradients became 0, at most 10 %%", n,
                100.0 * (double)lost / (double)numbers))
        lab_note("what is below 2^-25 before it is rounded is gone: scale the loss, not the gradient");
    scales(got, want, "scale", n);
    if (!lab_ok(s->skipped == w->skipped && s->updates == w->updates,
                "counts, ranks: %d; %d steps skipped, %d updates", n, w->skipped, w->updates))
        lab_note("yours has skipped %d and updated %d times", s->skipped, s->updates);
    if (!lab_ok(same, "replicas, ranks: %d; the same weights on every rank", n))
        lab_note("do all ranks skip the same steps?");
    if (!lab_ok(far < 0.05, "band, ranks: %d; %.2f %% of the distance is left, at most 5 %%", n, 100 * far))
        lab_note("an update moves a weight by 2^-12; next to 1.5 an fp16 number has steps of 2^-10");
    if (!lab_ok(at < 0, "weights, ranks: %d; the bits of the reference", n))
        lab_note("weight %d is %.9g, expected %.9g: skipped steps change nothing, moments and Adam's number included", at,
                 (double)s->w[at], (double)w->w[at]);
}

int main(int argc, char **argv)
{
    trace *got = lab_shared(sizeof *got), *want = lab_shared(sizeof *want);
    lab_begin("9_loss_scaling", argc, argv);
    for (int n = 1; n <= 4; n *= 2) {
        expect(want, USUAL, n);
        if (run(got, USUAL, n, "steps")) compare(got, want, n);
    }
    expect(want, CALM, 1);
    if (run(got, CALM, 1, "growth")) scales(got, want, "growth", 1);
    expect(want, SPOILED, 2);
    if (run(got, SPOILED, 2, "floor")) scales(got, want, "floor", 2);
    return lab_end(0, NULL);
}
