#include "lab.h"

/* 1F1B. Until the first backward comes back, a stage makes one forward more than there are stages behind it. Then
 * backwards take turns with forwards. At the end only backwards are left. */
void schedule(int stages, int micros, int stage, lab_work *list)
{
    int behind = stages - 1 - stage, ahead = behind < micros ? behind : micros, forward = 0, backward = 0;
    for (int i = 0; i < 2 * micros; i++) {
        int forwards = forward < micros && forward - backward <= ahead; /* in flight afterwards: at most ahead + 1 */
        list[i].kind = forwards ? FORWARD : BACKWARD;
        list[i].micro = forwards ? forward++ : backward++;
    }
}
