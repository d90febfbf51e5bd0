/* MPI as it is, beside the library's fabric over it; measured as bench_comm.c does. mpicc -O2; mpirun -np 2 ./bench_mpi
 *
 * Times of MPI_Allreduce, and of a message there and back, halved; then how much of an all-reduce overlaps with compute:
 * MPI moves data only while somebody calls it. */
#define DTRAIN_IMPLEMENTATION
#ifndef DT_MPI
#define DT_MPI
#endif
#include "dtrain.h"
#include "bench.h"

static dt__link *fabric;
static const int counts[] = { 0, 2, 250000, 25000000 };
static const int rounds[] = { 21, 21, 51, 21 }, repeats[] = { 20000, 20000, 20, 1 };
static float *data;

/* ---- collectives ---- */

static void finish(const dt__message *m)
{
    while (!__atomic_load_n(&m->done, __ATOMIC_ACQUIRE))
        if (dt__link_move(fabric)) exit(dt_fail("progress"));
}

static void by_mpi(int count)
{
    if (count) MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else MPI_Barrier(MPI_COMM_WORLD);
}

static void one_way(int sends, int64_t bytes)
{
    dt__message m;
    memset(&m, 0, sizeof m);
    if (dt__link_start(fabric, &m, sends, 1 - fabric->rank, 0, data, bytes)) exit(dt_fail("message"));
    finish(&m);
}
static void ping_fabric(int count)
{
    for (int i = 0; i < 2; i++) one_way(i == fabric->rank, 4 * (int64_t)count);
}
static void ping_mpi(int count)
{
    for (int i = 0; i < 2; i++)
        if (i == fabric->rank) MPI_Send(data, count, MPI_FLOAT, 1 - i, 0, MPI_COMM_WORLD);
        else MPI_Recv(data, count, MPI_FLOAT, i, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* Microseconds of one call. */
static double measure(void (*call)(int), int t)
{
    double time[101];
    for (int k = -2; k < rounds[t]; k++) {
        double start;
        MPI_Barrier(MPI_COMM_WORLD);
        start = MPI_Wtime();
        for (int i = 0; i < repeats[t]; i++) call(counts[t]);
        if (k >= 0) time[k] = (MPI_Wtime() - start) * 1e6 / repeats[t];
    }
    return median(time, rounds[t]);
}

static void bench_calls(void)
{
    static const char *names[] = { "barrier", "8 B", "1 MB", "100 MB" };
    if (fabric->rank == 0) printf("%-8s %16s %16s\n", "", "MPI, us", "fabric, us");
    for (int t = 0; t < 4; t++) {
        double mpi = measure(by_mpi, t);
        if (fabric->rank == 0) printf("%-8s %16.2f %16s  all-reduce\n", names[t], mpi, "");
    }
    for (int t = 0; t < 4 && fabric->size == 2; t++) {
        double mpi = measure(ping_mpi, t) / 2, ours = measure(ping_fabric, t) / 2;
        if (fabric->rank == 0) printf("%-8s %16.2f %16.2f  message\n", t ? names[t] : "0 B", mpi, ours);
    }
}

/* ---- overlap ---- */

enum { ALONE, COMPUTE, NOBODY, POLLS, WAITS, WAYS, OVERLAPPED = 4000000 };

/* A chain of so many multiplications, which needs a core and no memory. */
static volatile double sink;
static void compute(int64_t chain)
{
    double x = 0.5;
    for (int64_t i = 0; i < chain; i++) x = x * 0.999999999 + 1e-9;
    sink = x;
}

#ifndef DT_NO_THREADS
static void poll_until_done(MPI_Request *request, int nap_us)
{
    for (int done = 0; !done && !MPI_Test(request, &done, MPI_STATUS_IGNORE);)
        if (nap_us) usleep((useconds_t)nap_us);
}
static void *polling(void *request)
{
    poll_until_done((MPI_Request *)request, 50);
    return NULL;
}
static void *waiting(void *request)
{
    MPI_Wait((MPI_Request *)request, MPI_STATUS_IGNORE);
    return NULL;
}

/* Milliseconds of an all-reduce of 16 MB and of computing, one of them or both, until both are done. */
static double overlap(int way, int64_t chain)
{
    MPI_Request request;
    pthread_t thread;
    double start;
    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    if (way != COMPUTE) MPI_Iallreduce(MPI_IN_PLACE, data, OVERLAPPED, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
    if (way == POLLS) pthread_create(&thread, NULL, polling, &request);
    if (way == WAITS) pthread_create(&thread, NULL, waiting, &request);
    if (way != ALONE) compute(chain);
    if (way == POLLS || way == WAITS) pthread_join(thread, NULL);
    else if (way != COMPUTE) poll_until_done(&request, 0);
    return (MPI_Wtime() - start) * 1e3;
}

static void bench_overlap(void)
{
    static const char *names[] = { "all-reduce of 16 MB alone", "computing alone", "both, nobody polls",
                                   "both, a thread polls and sleeps 50 us", "both, a thread in MPI_Wait" };
    double time[WAYS][15], start;
    int64_t chain = 1 << 20;
    for (start = MPI_Wtime(); MPI_Wtime() - start < 0.2;) compute(chain); /* the clock rises */
    start = MPI_Wtime();
    compute(chain);
    chain = (int64_t)((double)chain * 0.033 / (MPI_Wtime() - start));
    MPI_Bcast(&chain, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
    for (int k = -1; k < 15; k++)
        for (int way = 0; way < WAYS; way++) {
            double ms = overlap(way, chain);
            if (k >= 0) time[way][k] = ms;
        }
    for (int way = 0; way < WAYS && fabric->rank == 0; way++)
        printf("%7.1f ms  %s\n", median(time[way], 15), names[way]);
}
#else
static void bench_overlap(void) { (void)compute; }
#endif

int main(int argc, char **argv)
{
    data = (float *)calloc(25000000, sizeof *data);
    if (!data || dt__mpi_open(&fabric, &argc, &argv)) return dt_fail("opening");
    if (fabric->rank == 0) printf("%s, %d ranks\n", fabric->name, fabric->size);
    bench_calls();
    bench_overlap();
    fabric->close(fabric);
    return 0;
}
