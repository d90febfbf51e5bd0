#include "lab.h"

/* The batch is always cut into SHARDS shards, and their sums follow one tree: so the number of ranks does not show in
 * the bits. The loss travels behind the gradient. */
enum { SHARDS = 8, SHARE = BATCH / SHARDS };

void train(lab_comm *c, float *w)
{
    int own = SHARDS / lab_size(c), first = own * lab_rank(c);
    float x[SHARE * IN], y[SHARE], sum[SHARDS][WEIGHTS + 1];
    lab_weights(w);
    lab_broadcast(c, w, WEIGHTS, 0);
    for (int step = 0; step < STEPS; step++) {
        for (int s = 0; s < own; s++) {
            lab_samples(step, (first + s) * SHARE, SHARE, x, y);
            sum[s][WEIGHTS] = lab_backward(w, x, y, SHARE, sum[s]);
        }
        for (int n = own / 2; n > 0; n /= 2) /* the lower part of the tree */
            for (int s = 0; s < n; s++)
                for (int i = 0; i <= WEIGHTS; i++) sum[s][i] = sum[2 * s][i] + sum[2 * s + 1][i];
        lab_all_reduce(c, sum[0], WEIGHTS + 1); /* the upper part */
        lab_report(step, sum[0][WEIGHTS] / SHARDS);
        for (int i = 0; i < WEIGHTS; i++) w[i] -= RATE * (sum[0][i] / SHARDS);
    }
}
