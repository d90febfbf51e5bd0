#include "lab.h"
#include <math.h>
#include <string.h>

/* Training in fp16 without a scale, and with weights in fp16. */
void mixed_open(mixed *s, const float *first)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < WEIGHTS; i++) s->w[i] = lab_half(first[i]);
    s->scale = 1;
}

void mixed_step(lab_comm *c, mixed *s, int step)
{
    float g[WEIGHTS];
    lab_backward(c, s->w, step, 1, g);
    lab_all_reduce(c, g, WEIGHTS);
    lab_adam(s, g, ++s->updates);
    for (int i = 0; i < WEIGHTS; i++) s->w[i] = lab_half(s->w[i]);
}
