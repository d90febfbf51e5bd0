/* All-reduce of 8 B, 1 MB and 100 MB in symmetric and private memory, and the barrier: medians over rounds after warm-
 * up. Run: ./bench_comm --ranks 2. Compare with bench_mpi.c in the same session. */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "bench.h"

/* Median microseconds of one all-reduce (count > 0) or barrier. */
static double measure(dt_comm *c, float *data, int64_t count, int rounds, int repeats)
{
    double time[101];
    for (int k = -2; k < rounds; k++) {
        double start;
        if (dt_barrier(c)) return -1;
        start = dt__now();
        for (int i = 0; i < repeats; i++)
            if (count ? dt_all_reduce(c, data, count, DT_SUM) : dt_barrier(c)) return -1;
        if (k >= 0) time[k] = (dt__now() - start) * 1e6 / repeats;
    }
    return median(time, rounds);
}

int main(int argc, char **argv)
{
    static const int64_t counts[] = { 0, 2, 250000, 25000000 };
    static const char *names[] = { "barrier", "8 B", "1 MB", "100 MB" };
    static const int rounds[] = { 21, 21, 51, 21 }, repeats[] = { 20000, 20000, 20, 1 };
    dt_comm *c = NULL;
    void *shared;
    float *own = (float *)calloc(25000000, sizeof *own);
    if (dt_comm_init(&c, &argc, &argv) || dt_comm_alloc(c, 100000000, &shared)) return dt_fail("bench_comm");
    if (dt_comm_rank(c) == 0) printf("%d ranks      symmetric memory   private memory, us\n", dt_comm_size(c));
    for (int k = 0; k < 4; k++) {
        double a = measure(c, (float *)shared, counts[k], rounds[k], repeats[k]);
        double b = measure(c, own, counts[k], rounds[k], repeats[k]);
        if (dt_comm_rank(c) == 0) printf("%-8s %16.2f %16.2f\n", names[k], a, b);
    }
    dt_comm_free(&c);
    free(own);
    return 0;
}
