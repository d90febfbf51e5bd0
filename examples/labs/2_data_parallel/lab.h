/* Lab 2: a training loop for one rank, and what it calls. */
#include "../ranks.h"

enum { IN = 8, HIDDEN = 16, WEIGHTS = IN * HIDDEN + HIDDEN, BATCH = 64, STEPS = 30 };
#define RATE 0.2f

/* Random initial weights. Every rank draws its own, as a program does that seeds with the time. */
void lab_weights(float *w);
/* Samples first .. first + n - 1 of the BATCH samples of a step: x is (n, IN), y is (n). */
void lab_samples(int step, int first, int n, float *x, float *y);
/* The mean loss of n samples, and the gradient of that mean. */
float lab_backward(const float *w, const float *x, const float *y, int n, float *gradient);
/* The mean loss of all samples of the step; every rank reports it. */
void lab_report(int step, float loss);

/* Trains STEPS steps; w (WEIGHTS) receives the weights. Every rank calls it. */
void train(lab_comm *c, float *w);
