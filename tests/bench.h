/* What the benchmarks share. */
#ifndef BENCH_H
#define BENCH_H
#include <stdlib.h>

static int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts x. */
static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, bench_by_value);
    return x[n / 2];
}
#endif
