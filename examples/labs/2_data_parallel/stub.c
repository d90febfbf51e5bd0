#include "lab.h"

void train(lab_comm *c, float *w)
{
    float x[BATCH * IN], y[BATCH], gradient[WEIGHTS], loss;
    (void)c;
    lab_weights(w);
    for (int step = 0; step < STEPS; step++) {
        lab_samples(step, 0, BATCH, x, y);
        loss = lab_backward(w, x, y, BATCH, gradient);
        lab_report(step, loss);
        for (int i = 0; i < WEIGHTS; i++) w[i] -= RATE * gradient[i];
    }
}
