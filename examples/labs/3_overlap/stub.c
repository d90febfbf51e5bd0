#include "lab.h"

static int missing; /* layers without a gradient */

void begin(const lab_job *job) { missing = job->layers; }

/* Sends everything at the end: right, but nothing is overlapped with backward. */
void ready(const lab_job *job, int layer)
{
    (void)layer;
    if (--missing == 0) lab_start(0, job->layers);
}
