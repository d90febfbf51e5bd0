/* 98_lost_rank: what becomes of a job when one of its ranks dies?
 *
 * What you learn
 *     - Launchers differ. An mpirun job is aborted as a whole, and who submitted it submits it again. torchrun starts
 *       the group of workers again (elastic): --max-restarts here.
 *     - A job has four parts: the launcher starts ranks, ranks meet, they work, and the launcher ends all of them. The
 *       last part is the one that is forgotten: a rank that is left behind keeps memory, ports and a GPU.
 *     - The exit status is that of the rank that failed, 128 + 9 for SIGKILL, so that a scheduler knows a failure from
 *       an end.
 *     - A restart starts all ranks, not the lost one alone: the others are inside a collective that cannot be
 *       finished.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 98_lost_rank.c -o 98_lost_rank -lm -lpthread
 *     ./98_lost_rank
 *
 * What it prints
 *     rank 1 of 2 dies      exit status  processes started  sums  processes left
 *     no restarts                   137                  2     0               0
 *     --max-restarts 1                0                  4     2               0
 *     ok: the job ends as a whole or starts again as a whole; nothing stays behind
 *
 * Predict first: rank 1 dies at every start. How many processes are started with --max-restarts 3?
 * Exercise: let the job save a checkpoint before rank 1 dies, and read it at the second start.
 *
 * Read on: 100_roofline.c, the next chapter; 78_elastic.c for going on with fewer ranks. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 16 };

/* The training program: the ranks meet, rank 1 dies at the first start, the others add up their numbers. */
static int job(int argc, char **argv)
{
    const char *restarts = getenv("DT_RESTARTS");
    dt_comm *c = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    float sum = r ? 0 : (float)dt_comm_rank(c) + 1;
    if (r) return dt_exit_code(r);
    printf("process %ld\n", (long)getpid()), fflush(stdout);
    if (!dt_barrier(c) && dt_comm_rank(c) == 1 && (!restarts || !atoi(restarts))) raise(SIGKILL);
    r = dt_all_reduce(c, &sum, 1, DT_SUM);
    if (!r) printf("rank %d of %d: the sum is %g\n", dt_comm_rank(c), dt_comm_size(c), (double)sum), fflush(stdout);
    dt_comm_close(&c);
    return dt_exit_code(r);
}

/* Runs the job; returns its exit status. *left: processes that were started and live when it is over. */
static int run(const char *program, const char *options, int *started, int *sums, int *left)
{
    char line[1200];
    pid_t processes[MOST];
    FILE *out;
    int status;
    *started = *sums = *left = 0;
    snprintf(line, sizeof line, "DT_BACKOFF=0 '%.1000s' --job --ranks 2 %s 2>/dev/null", program, options);
    fflush(NULL);
    out = popen(line, "r");
    while (out && fgets(line, sizeof line, out)) {
        if (!strncmp(line, "process ", 8) && *started < MOST) processes[(*started)++] = (pid_t)atol(line + 8);
        *sums += strstr(line, "the sum is 3") != NULL;
    }
    status = out ? pclose(out) : -1;
    for (int i = 0; i < *started; i++) *left += !kill(processes[i], 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int argc, char **argv)
{
    static const char *const options[2] = {"", "--max-restarts 1"};
    static const int expected[2][4] = {{128 + SIGKILL, 2, 0, 0}, {0, 4, 2, 0}};
    int good = 1;
    if (argc > 1 && !strcmp(argv[1], "--job")) return job(argc, argv);
    if (argc > 1) return fprintf(stderr, "98_lost_rank: there are no options\n"), 2;
    printf("rank 1 of 2 dies      exit status  processes started  sums  processes left\n");
    for (int i = 0; i < 2; i++) {
        int got[4];
        got[0] = run(argv[0], options[i], &got[1], &got[2], &got[3]);
        printf("%-20s %12d %18d %5d %15d\n", i ? options[i] : "no restarts", got[0], got[1], got[2], got[3]);
        good = good && !memcmp(got, expected[i], sizeof got);
    }
    if (!good) return fprintf(stderr, "FAILED: a status, a number of starts, or a process that stays\n"), 1;
    return printf("ok: the job ends as a whole or starts again as a whole; nothing stays behind\n"), 0;
}
