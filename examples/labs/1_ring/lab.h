/* Lab 1: what you write. */
#include "../ranks.h"

/* Replaces data (count floats) by the sum over all ranks. Every rank calls it with the same count. */
void ring_all_reduce(lab_comm *c, float *data, int64_t count);
