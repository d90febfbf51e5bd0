/* Collectives by size, as nccl-tests and the OSU benchmarks print them: microseconds, algbw = bytes / time, and busbw,
 * which is algbw times what the busiest link carries for each byte: 2(n-1)/n for an all-reduce, (n-1)/n for reduce-
 * scatter, all-gather and all-to-all, 1 for a broadcast. Bytes are those of all sections together. All columns of a
 * line are measured in turns in one run; each is the median.
 *     ./bench_comm --ranks 2                         shared memory
 *     mpirun -np 2 ./bench_comm_nodes                shared memory, beside MPI's own
 *     DT_NODES=2 mpirun -np 2 ./bench_comm_nodes     the same ranks as two nodes: over MPI's messages
 *     tests/hosts.sh mpi - ./bench_comm_nodes        two hosts, over Open MPI; over libfabric, beside MPI's own:
 *     BENCH_FABRIC=net MASTER_ADDR=10.77.7.1 tests/hosts.sh mpi - ./bench_comm_nodes */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "bench.h"

enum { MOST = 1 << 26, ROUNDS = 15 };
enum { EXACT, EXACT_PRIVATE, ENGINE, COLUMNS };
enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL, CALLS };
enum { SIZES = 10 }; /* 8 B to 256 kB by 8, then by 4 */
static const char *const call_names[CALLS] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast", "all-to-all"};
static char *memory[2]; /* symmetric: in, out */
static char *own[2];

typedef struct collective {
    int call, root;
    int64_t count; /* floats of one section */
} collective;
static int has_sections(int call) { return call != ALL_REDUCE && call != BROADCAST; }

#ifdef DT_MPI
static int engine_does(const collective *w)
{
    int n = (int)w->count;
    void *in = own[0], *out = own[1];
    switch (w->call) {
    case ALL_REDUCE: return MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case REDUCE_SCATTER: return MPI_Reduce_scatter_block(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    case ALL_GATHER: return MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
    case BROADCAST: return MPI_Bcast(out, n, MPI_FLOAT, w->root, MPI_COMM_WORLD);
    default: return MPI_Alltoall(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
    }
}
static int has_engine(void)
{
    int there = 0;
    return !MPI_Initialized(&there) && there;
}

/* With BENCH_FABRIC mpirun is the launcher alone: the ranks talk over that provider of libfabric. */
static void leave_mpi(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK"};
    const char *fabric = getenv("BENCH_FABRIC");
    char rank[16], size[16];
    int r = 0, n = 0;
    if (!fabric || MPI_Init(NULL, NULL)) return;
    MPI_Comm_rank(MPI_COMM_WORLD, &r);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    snprintf(rank, sizeof rank, "%d", r);
    snprintf(size, sizeof size, "%d", n);
    setenv("RANK", rank, 1);
    setenv("WORLD_SIZE", size, 1);
    setenv("DT_FABRIC", fabric, 1);
    for (int i = 0; i < 4; i++) unsetenv(names[i]);
}
static void end_mpi(void)
{
    if (getenv("BENCH_FABRIC") && has_engine()) MPI_Finalize();
}
#else
static int engine_does(const collective *w) { return (void)w, 1; }
static int has_engine(void) { return 0; }
static void leave_mpi(void) {}
static void end_mpi(void) {}
#endif

static dt_result once(dt_comm *c, int column, const collective *w)
{
    char **at = column == EXACT ? memory : own;
    float *in = (float *)(void *)at[0], *out = (float *)(void *)at[1];
    if (column == ENGINE) return engine_does(w) ? DT_E_SYSTEM : DT_OK;
    switch (w->call) {
    case ALL_REDUCE: return dt_all_reduce(c, out, w->count, DT_SUM);
    case REDUCE_SCATTER: return dt_reduce_scatter(c, in, out, w->count, DT_SUM);
    case ALL_GATHER: return dt_all_gather(c, in, out, w->count);
    case BROADCAST: return dt_broadcast(c, out, w->count, w->root);
    default: return dt_all_to_all(c, in, out, w->count);
    }
}

/* Microseconds of so many calls, on the slowest rank. One root of all broadcasts would run ahead of the others: they
 * take turns. */
static int repeated(dt_comm *c, int column, const collective *what, int repeats, double *us)
{
    collective w = *what;
    double start;
    float most;
    if (dt_barrier(c)) return 1;
    start = dt__now();
    for (int i = 0; i < repeats; i++) {
        if (w.call == BROADCAST) w.root = i % dt_comm_size(c);
        if (once(c, column, &w)) return 1;
    }
    most = (float)((dt__now() - start) * 1e6 / repeats);
    if (dt_all_reduce(c, &most, 1, DT_MAX)) return 1;
    *us = (double)most;
    return 0;
}

/* Microseconds of each column; 0 where there is none. */
static int measure(dt_comm *c, const collective *w, int64_t bytes, double *us)
{
    static double time[COLUMNS][ROUNDS], first;
    int repeats = bytes <= 4096 ? 500 : bytes <= 1 << 18 ? 50 : bytes <= 1 << 22 ? 8 : 2;
    for (int k = 0; k < ROUNDS; k++)
        for (int column = 0; column < COLUMNS; column++) {
            if (column == ENGINE && !has_engine()) continue;
            if (repeated(c, column, w, 1, &first)) return 1; /* every column finds its own memory in the caches */
            if (repeated(c, column, w, repeats, &time[column][k])) return 1;
        }
    for (int column = 0; column < COLUMNS; column++)
        us[column] = column == ENGINE && !has_engine() ? 0.0 : median(time[column], ROUNDS);
    return 0;
}

static int64_t bytes_of(int size) { return (int64_t)8 << (size <= 5 ? 3 * size : 2 * size + 5); }

/* What is measured for a call of so many bytes; a count of 0 where that is less than an element of each section. */
static collective case_of(const dt_comm *c, int call, int size)
{
    collective w = {call, 0, bytes_of(size) / 4 / (has_sections(call) ? dt_comm_size(c) : 1)};
    return w;
}

static void line(const dt_comm *c, const collective *w, int64_t bytes, const double *us)
{
    static const char *units[] = {"B", "kB", "MB"};
    int n = dt_comm_size(c), unit = bytes >= 1 << 20 ? 2 : bytes >= 1024;
    double best = us[EXACT], bus = w->call == BROADCAST ? 1.0 : (w->call ? 1.0 : 2.0) * (n - 1) / n;
    if (us[EXACT_PRIVATE] < best) best = us[EXACT_PRIVATE];
    printf("%-15s %6lld %-2s %10.2f %10.2f", call_names[w->call], (long long)(bytes >> 10 * unit), units[unit],
           us[EXACT], us[EXACT_PRIVATE]);
    if (has_engine()) printf(" %10.2f %7.2f", us[ENGINE], us[ENGINE] / best);
    printf(" %6.2f GB/s %6.2f GB/s\n", (double)bytes / best * 1e-3, (double)bytes / best * 1e-3 * bus);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    double us[COLUMNS];
    dt_comm *c = NULL;
    void *p;
    int n, root;
    leave_mpi();
    if (dt_comm_open(&c, &argc, &argv)) return dt_fail("bench_comm");
    n = dt_comm_size(c), root = dt_comm_rank(c) == 0;
    for (int k = 0; k < 2; k++) {
        if (dt_comm_alloc(c, MOST, &p)) return dt_fail("bench_comm");
        memory[k] = (char *)p;
        if (!(own[k] = (char *)calloc(MOST, 1))) return 1;
    }
    if (root)
        printf("%d ranks on %d nodes%s%s; us, from symmetric and from private memory\n%-15s %9s %10s %10s %10s %7s %9s "
               "%9s\n",
               n, dt_comm_nodes(c), c->link ? ", " : "", c->link ? c->link->name : "", "", "bytes", "symmetric",
               "private", has_engine() ? "MPI" : "", has_engine() ? "ours/MPI" : "", "algbw", "busbw");
    for (int call = 0; call < CALLS; call++)
        for (int size = 0; size < SIZES; size++) {
            collective w = case_of(c, call, size);
            if (w.count < 1 || n == 1) continue;
            if (measure(c, &w, bytes_of(size), us)) return dt_fail("bench_comm");
            if (root) line(c, &w, bytes_of(size), us);
        }
    dt_comm_close(&c);
    free(own[0]), free(own[1]);
    end_mpi();
    return 0;
}
