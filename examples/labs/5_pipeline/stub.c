#include "lab.h"

/* One micro-batch after the other: legal, and most stages idle most of the time. */
void schedule(int stages, int micros, int stage, lab_work *list)
{
    (void)stages, (void)stage;
    for (int i = 0; i < micros; i++) {
        list[2 * i].kind = FORWARD, list[2 * i].micro = i;
        list[2 * i + 1].kind = BACKWARD, list[2 * i + 1].micro = i;
    }
}
