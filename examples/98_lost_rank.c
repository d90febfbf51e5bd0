/* 98_lost_rank: what becomes of a job when one of its ranks dies?
 *
 * What you learn
 *     - Launchers differ. mpirun aborts the job as a whole, and somebody must submit it again. torchrun starts all
 *       workers again (elastic), as --max-restarts does here.
 *     - A job has four parts: the launcher starts ranks, ranks meet, they work, and the launcher ends all of them. The
 *       last part is easily forgotten: a rank that survives its job keeps memory, ports and a GPU.
 *     - The exit status is that of the rank that failed, 128 + 9 for SIGKILL, so a scheduler can tell a failure from a
 *       normal end.
 *     - A restart starts all ranks, not the lost one alone: the others are inside a collective that can never finish.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 98_lost_rank.c -o 98_lost_rank -lm -lpthread
 *     ./98_lost_rank
 *     ./98_lost_rank --deaths 9 --restarts 3     (rank 1 dies at the first 9 starts)
 *
 * What it prints
 *     rank 1 of 2 dies      exit status  processes started  sums  processes left
 *     --max-restarts 0              137                  2     0               0
 *     --max-restarts 1                0                  4     2               0
 *     ok: 6 processes started, 0 left; with restarts the job ends with status 0
 *
 * Predict first: rank 1 dies at every start. How many processes are started with --max-restarts 3?
 * Exercise: let the job add up its numbers 4 times and rank 0 save the number of finished sums after each. Rank 1 dies
 *     before the third. Where does the second start resume?
 *
 * Read on: 100_roofline.c, the next chapter; 78_elastic.c for going on with fewer ranks. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 32 };

/* The training program: the ranks meet, rank 1 dies at the first DEATHS starts, the others add up their numbers. */
static int job(int argc, char **argv)
{
    const char *restarts = getenv("DT_RESTARTS"), *deaths = getenv("DEATHS");
    dt_comm *c = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    float sum = r ? 0 : (float)dt_comm_rank(c) + 1;
    if (r) return dt_exit_code(r);
    printf("process %ld\n", (long)getpid()), fflush(stdout);
    if (!dt_barrier(c) && dt_comm_rank(c) == 1 && atoi(restarts ? restarts : "0") < atoi(deaths ? deaths : "1"))
        raise(SIGKILL);
    r = dt_all_reduce(c, &sum, 1, DT_SUM);
    if (!r) printf("rank %d of %d: the sum is %g\n", dt_comm_rank(c), dt_comm_size(c), (double)sum), fflush(stdout);
    dt_comm_close(&c);
    return dt_exit_code(r);
}

/* Runs the job; returns its exit status. *left: processes that were started and live when it is over. */
static int run(const char *program, int deaths, int restarts, int *started, int *sums, int *left)
{
    char line[1200];
    pid_t processes[MOST];
    FILE *out;
    int status;
    *started = *sums = *left = 0;
    snprintf(line, sizeof line, "DEATHS=%d DT_BACKOFF=0 '%.1000s' --job --ranks 2 --max-restarts %d 2>/dev/null",
             deaths, program, restarts);
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
    double deaths = 1, restarts = 1;
    const option list[] = {{"--deaths", 0, 15, &deaths}, {"--restarts", 0, 15, &restarts}};
    int good = 1, started = 0, left = 0, last = 0;
    if (argc > 1 && !strcmp(argv[1], "--job")) return job(argc, argv);
    if (!options_read(argc, argv, list, 2)) return 2;
    deaths = floor(deaths), restarts = floor(restarts);
    printf("rank 1 of 2 dies      exit status  processes started  sums  processes left\n");
    for (int i = 0; i < 2; i++) {
        const int allowed = i ? (int)restarts : 0, ends = deaths <= allowed; /* well */
        const int expected[4] = {ends ? 0 : 128 + SIGKILL, 2 * (1 + (int)fmin(deaths, allowed)), ends ? 2 : 0, 0};
        int got[4];
        got[0] = run(argv[0], (int)deaths, allowed, &got[1], &got[2], &got[3]);
        printf("--max-restarts %-5d %12d %18d %5d %15d\n", allowed, got[0], got[1], got[2], got[3]);
        good = good && !memcmp(got, expected, sizeof got), started += got[1], left += got[3], last = got[0];
    }
    if (!good) return fprintf(stderr, "FAILED: a status, a number of starts, or a process that stays\n"), 1;
    printf("ok: %d processes started, %d left; with restarts the job ends with status %d\n", started, left, last);
    return 0;
}
