/* MPI_Allreduce of 8 B, 1 MB and 100 MB, measured as bench_comm.c does. mpicc -O2; mpirun -np 2 ./bench_mpi */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include "bench.h"

int main(int argc, char **argv)
{
    static const int counts[] = { 0, 2, 250000, 25000000 };
    static const int rounds[] = { 21, 21, 51, 21 }, repeats[] = { 20000, 20000, 20, 1 };
    static const char *names[] = { "barrier", "8 B", "1 MB", "100 MB" };
    float *data = (float *)calloc(25000000, sizeof *data);
    double time[101];
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int t = 0; t < 4; t++) {
        for (int k = -2; k < rounds[t]; k++) {
            double start;
            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
            for (int i = 0; i < repeats[t]; i++) {
                if (counts[t]) MPI_Allreduce(MPI_IN_PLACE, data, counts[t], MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                else MPI_Barrier(MPI_COMM_WORLD);
            }
            if (k >= 0) time[k] = (MPI_Wtime() - start) * 1e6 / repeats[t];
        }
        if (rank == 0) printf("%-8s %16.2f us (Open MPI)\n", names[t], median(time, rounds[t]));
    }
    MPI_Finalize();
    return 0;
}
