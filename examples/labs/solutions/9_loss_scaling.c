#include "lab.h"
#include <math.h>
#include <string.h>

void mixed_open(mixed *s, const float *first)
{
    memset(s, 0, sizeof *s);
    memcpy(s->w, first, sizeof s->w);
    s->scale = SCALE_FIRST;
}

/* A number that is not finite on any rank makes the sum so on all of them: they decide alike without another message. */
static int fits(const float *g)
{
    for (int i = 0; i < WEIGHTS; i++)
        if (!isfinite(g[i])) return 0;
    return 1;
}

void mixed_step(lab_comm *c, mixed *s, int step)
{
    float w[WEIGHTS], g[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++) w[i] = lab_half(s->w[i]);
    lab_backward(c, w, step, s->scale, g);
    lab_all_reduce(c, g, WEIGHTS);
    if (!fits(g)) {
        s->skipped++, s->good = 0;
        if (s->scale > 1) s->scale /= 2;
        return;
    }
    for (int i = 0; i < WEIGHTS; i++) g[i] /= s->scale;
    lab_adam(s, g, ++s->updates);
    if (++s->good < GROW) return;
    s->good = 0;
    if (s->scale < SCALE_MOST) s->scale *= 2;
}
