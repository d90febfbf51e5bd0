#include "lab.h"

/* 1F1B in three phases. */
void schedule(int stages, int micros, int stage, lab_work *list)
{
    int warm_up = stages - 1 - stage, forward = 0, backward = 0;
    while (forward < warm_up && forward < micros) *list++ = (lab_work){FORWARD, forward++};
    while (forward < micros) {
        *list++ = (lab_work){FORWARD, forward++};
        *list++ = (lab_work){BACKWARD, backward++};
    }
    while (backward < micros) *list++ = (lab_work){BACKWARD, backward++};
}
