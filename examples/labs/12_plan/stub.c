#include "lab.h"

/* One GPU of the first type, whatever the question is. */
void decide(const lab_job *job, lab_answer *answer)
{
    answer->strategy = USE_ONE_GPU;
    answer->nodes = answer->tp = answer->pp = answer->dp = 1;
    answer->hours = job->hours;
}
