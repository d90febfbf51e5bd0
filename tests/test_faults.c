/* Ranks killed and frozen at random moments of a loop of collectives, supervisors killed and interrupted: every
 * survivor names the right rank, the exit status tells, and no process is left. Without arguments (or with --full)
 * prints TAP. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "job.h"

/* ---- the ranks ---- */

static dt_result one_round(dt_comm *c, float *data, int kind, int round)
{
    switch ((kind + round) % 4) {
    case 0: return dt_all_reduce(c, data, 3, DT_SUM);
    case 1: return dt_all_reduce(c, data, 200000, DT_SUM);
    case 2: return dt_broadcast(c, data, 50000, round % dt_comm_size(c));
    default: return dt_barrier(c);
    }
}

static void *left_open[2]; /* what a rank holds that ends in the middle: no leak in the eyes of a sanitizer */

static int worker(int argc, char **argv)
{
    const char *what = argv[1];
    dt_comm *c = NULL;
    void *p = NULL;
    float *own = (float *)calloc(200000, sizeof *own);
    dt_result r;
    int rank;
    if (dt_comm_open(&c, &argc, &argv) || dt_comm_alloc(c, 800000, &p)) return dt_fail("open");
    rank = dt_comm_rank(c);
    printf("pid %d %d\n", rank, (int)getpid());
    fflush(stdout);
    if (!strcmp(what, "status") && rank == 1) return left_open[0] = c, left_open[1] = own, 7;
    if (!strcmp(what, "grace") && c->job) DT__STORE(&c->job->grace_ms, 3000);
    r = DT_OK;
    for (int round = 0; !r; round++) {
        r = one_round(c, round % 2 ? own : (float *)p, atoi(argv[2]), round);
        if (!strcmp(what, "grace")) { /* agree on the stop, then end well */
            float stop = (float)dt__comm_stop_requested(c);
            if (!r) r = dt_all_reduce(c, &stop, 1, DT_MAX);
            if (!r && stop > 0) break;
        }
    }
    if (r) printf("end %d %s %s\n", rank, dt_result_name(r), dt_last_error());
    fflush(stdout);
    if (!strcmp(what, "stubborn")) for (;;) sleep(1);
    dt_comm_close(&c);
    free(own);
    return dt_exit_code(r);
}

/* ---- the parent ---- */

static int tests, failures;

static void check(int ok, const char *what, const job *j)
{
    tests++;
    failures += !ok;
    printf("%s %d - %s\n", ok ? "ok" : "not ok", tests, what);
    if (!ok && j) fprintf(stderr, "# output was:\n%s", j->text);
    fflush(stdout);
}

static int survivors_agree(const job *j, int ranks, int victim, const char *fate)
{
    char begin[64], cause[64];
    snprintf(cause, sizeof cause, " rank %d %s", victim, fate);
    for (int r = 0; r < ranks; r++) {
        const char *line, *end;
        if (r == victim) continue;
        snprintf(begin, sizeof begin, "end %d DT_E_PEER", r);
        if ((line = strstr(j->text, begin)) == NULL || (end = strchr(line, '\n')) == NULL) return 0;
        if (!memmem(line, (size_t)(end - line), cause, strlen(cause))) return 0;
    }
    return 1;
}

static uint32_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void random_fault(const char *self, int number, uint64_t *seed)
{
    int ranks = 2 + (int)(random_next(seed) % 4u), victim = (int)(random_next(seed) % (uint32_t)ranks);
    int freeze = number % 4 == 3, kind = (int)(random_next(seed) % 4u), status, named;
    char arguments[200], what[300];
    double began, took;
    job j;
    snprintf(arguments, sizeof arguments, "loop %d --ranks %d --timeout %s", kind, ranks, freeze ? "1" : "10");
    start(&j, self, arguments);
    if (!wait_for_ranks(&j, ranks)) {
        finish(&j, 0);
        check(0, arguments, &j);
        return;
    }
    usleep(random_next(seed) % 50000u);
    began = dt__now();
    kill(j.pid[victim], freeze ? SIGSTOP : SIGKILL);
    status = finish(&j, 12);
    took = dt__now() - began;
    named = survivors_agree(&j, ranks, victim, freeze ? "has not moved for 1 s" : "was killed by signal 9 (Killed)");
    snprintf(what, sizeof what, "%s: rank %d %s, exit %d after %.2f s", arguments, victim, freeze ? "frozen" : "killed",
             status, took);
    check(named && status == (freeze ? 1 : 137) && took < (freeze ? 6 : 3) && nothing_left(1), what, &j);
}

/* Sends a signal to the supervisor (rank < 0) or a rank of a running job and wants this exit status in time. */
static void signalled(const char *self, const char *arguments, int ranks, int rank, int sig, int want, double limit,
                      const char *words)
{
    char what[300];
    double began;
    int status, there;
    job j;
    start(&j, self, arguments);
    there = wait_for_ranks(&j, ranks);
    usleep(20000);
    began = dt__now();
    if (sig) kill(rank < 0 ? j.supervisor : rank == 100 ? -j.supervisor : j.pid[rank], sig);
    status = finish(&j, limit);
    snprintf(what, sizeof what, "%s: signal %d to %d, exit %d after %.2f s", arguments, sig, rank, status,
             dt__now() - began);
    check(there && status == want && dt__now() - began < limit && strstr(j.text, words) && nothing_left(1), what, &j);
}

int main(int argc, char **argv)
{
    int asked = argc > 1 && !strcmp(argv[1], "--full"), full = asked || getenv("DT_FULL");
    uint64_t seed = 20260101;
    if (argc > 1 && !asked) return worker(argc, argv);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* ranks that end in the middle leave what they had */
    for (int k = 0; k < (full ? 200 : 20); k++) random_fault(argv[0], k, &seed);
    signalled(argv[0], "loop 0 --ranks 4", 4, -1, SIGKILL, 137, 2, "pid");
    signalled(argv[0], "loop 1 --ranks 4", 4, -1, SIGINT, 130, 3, "end 3 DT_E_INTERRUPTED");
    signalled(argv[0], "loop 1 --ranks 4", 4, -1, SIGTERM, 143, 3, "end 0 DT_E_INTERRUPTED");
    signalled(argv[0], "loop 2 --ranks 3", 3, 100, SIGINT, 130, 3, "end 2 DT_E_INTERRUPTED");
    signalled(argv[0], "loop 2 --ranks 3", 3, 100, SIGTERM, 143, 3, "end 2 DT_E_INTERRUPTED");
    signalled(argv[0], "loop 2 --ranks 3", 3, 1, SIGTERM, 143, 3, "end 2 DT_E_INTERRUPTED");
    signalled(argv[0], "loop 2 --ranks 3 --launch threads", 3, -1, SIGINT, 130, 3, "end 2 DT_E_INTERRUPTED");
    signalled(argv[0], "grace 0 --ranks 3", 3, -1, SIGTERM, 0, 3, "stopped by signal 15");
    signalled(argv[0], "status 0 --ranks 3", 3, 0, 0, 7, 3, "rank 1 ended with status 7");
    signalled(argv[0], "status 0 --ranks 3 --launch threads", 3, 0, 0, 7, 3, "rank 1 ended with status 7");
    signalled(argv[0], "stubborn 0 --ranks 3", 3, 2, SIGKILL, 137, 6, "rank 2 was killed by signal 9");
    signalled(argv[0], "stubborn 0 --ranks 3 --launch threads", 3, -1, SIGINT, 130, 6, "did not end");
    printf("1..%d\n", tests);
    return failures != 0;
}
