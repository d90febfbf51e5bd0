/* Lab 9: training in fp16 with a loss scale that adapts. Numbers of fp16 are held in floats. */
#include "../ranks.h"

enum { WEIGHTS = 256, GROW = 50 }; /* GROW: good steps after which the scale doubles */
#define SCALE_FIRST 65536.0f
#define SCALE_MOST 16777216.0f

/* What a rank keeps between steps. */
typedef struct mixed {
    float w[WEIGHTS], m[WEIGHTS], v[WEIGHTS]; /* master weights and Adam's moments, in fp32 */
    float scale;                              /* of the next step: a power of two, 1 to SCALE_MOST */
    int good;                                 /* steps since the scale changed or a step was skipped */
    int skipped, updates;                     /* steps that changed no weight, and those that did */
} mixed;

/* The fp16 number nearest to x: infinite from 65520 on, 0 up to 2^-25. */
float lab_half(float x);
/* Forward and backward of this rank's samples of step `step`, in fp16. w (WEIGHTS) holds numbers of fp16. g (WEIGHTS)
 * becomes the gradient of scale times the loss, rounded to fp16; the sum over ranks is that of the whole batch. */
void lab_backward(lab_comm *c, const float *w, int step, float scale, float *g);
/* Adam's update number `number`, from 1, with the gradient g (WEIGHTS) of the loss itself. */
void lab_adam(mixed *s, const float *g, int number);

/* What you write: before the first step, with the weights `first` (WEIGHTS), which all ranks share; and a step. */
void mixed_open(mixed *s, const float *first);
void mixed_step(lab_comm *c, mixed *s, int step);
