#include "lab.h"
#include <stdlib.h>

void ring_all_reduce(lab_comm *c, float *data, int64_t count)
{
    (void)c, (void)data, (void)count; /* your code */
}
