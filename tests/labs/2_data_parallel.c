#include "lab.h"

/* Without the bonus: each rank's mean, then the mean over ranks. */
void train(lab_comm *c, float *w)
{
    int n = BATCH / lab_size(c);
    float x[BATCH * IN], y[BATCH], gradient[WEIGHTS], loss;
    lab_weights(w);
    lab_broadcast(c, w, WEIGHTS, 0);
    for (int step = 0; step < STEPS; step++) {
        lab_samples(step, n * lab_rank(c), n, x, y);
        loss = lab_backward(w, x, y, n, gradient) / (float)lab_size(c);
        lab_all_reduce(c, gradient, WEIGHTS);
        lab_all_reduce(c, &loss, 1);
        lab_report(step, loss);
        for (int i = 0; i < WEIGHTS; i++) w[i] -= RATE * gradient[i] / (float)lab_size(c);
    }
}
