/* Restarts: ranks that are killed, freeze or fail start again, as often and as many as --max-restarts and --elastic
 * say; failures that would come again do not; a stop request ends the job in order, with its own status, when all have
 * saved. Counts and states are compared, never seconds. Without arguments prints TAP. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "job.h"
#include "tap.h"

/* ---- the ranks ---- */

/* The number behind "name=" among the arguments. */
static int number(char **argv, const char *name, int otherwise)
{
    for (size_t n = strlen(name); *argv; argv++)
        if (!strncmp(*argv, name, n) && (*argv)[n] == '=') return atoi(*argv + n + 1);
    return otherwise;
}

static int fail_with(const char *name)
{
    for (int code = 0; code < (int)DT__RESULT_COUNT; code++)
        if (!strcmp(name, dt_result_name((dt_result)code))) dt__error((dt_result)code, "made to fail with %s", name);
    return dt_fail("worker");
}

static int break_down(const char *how)
{
    fflush(stdout);
    if (!strcmp(how, "kill")) raise(SIGKILL);
    if (!strcmp(how, "freeze")) raise(SIGSTOP);
    return !strncmp(how, "DT_", 3) ? fail_with(how) : atoi(how);
}

/* Files of shared memory that the supervisor has open. */
static int memories(void)
{
    int found = 0;
    for (int fd = 0; fd < 100; fd++) {
        char path[64], target[64];
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getppid(), fd);
        ssize_t n = readlink(path, target, sizeof target);
        found += n > 0 && memmem(target, (size_t)n, "memfd:dtrain", 12) != NULL;
    }
    return found;
}

/* Goes on until all have agreed to stop, then saves, as it were. */
static dt_result until_stopped(dt_comm *c)
{
    float stop = 0;
    dt_result r = DT_OK;
    while (!r && stop == 0) {
        stop = (float)dt__comm_stop_requested(c);
        r = dt_all_reduce(c, &stop, 1, DT_MAX);
    }
    return r ? r : dt__error(DT_E_STOPPED, "stopped on request: saved");
}

/* argv[1] is what happens to rank number `victim` in the first `starts` starts, argv[2] what all do until then. */
static int worker(int argc, char **argv)
{
    int start = dt__environment_int("DT_RESTARTS", 0), victim, rank, size;
    float one = 1;
    dt_comm *c = NULL;
    dt_result r;
    if (dt_comm_open(&c, &argc, &argv)) return dt_fail("open");
    rank = dt_comm_rank(c);
    size = dt_comm_size(c);
    victim = rank == number(argv, "victim", 1) % size && start < number(argv, "starts", 1);
    if (c->job) DT__STORE(&c->job->grace_ms, (int32_t)number(argv, "grace", 60000));
    dt__comm_catch_stop(c);
    for (int n = 1; n < size; n++) __atomic_store_n(&dt__job_rank(c->job, n - 1)->unfit, n % number(argv, "unit", 1) != 0, __ATOMIC_RELAXED);
    if (number(argv, "step", -1) >= 0) dt__comm_progress(c, number(argv, "step", 0) + start * number(argv, "gain", 0));
    r = dt_barrier(c);
    printf("start %d, rank %d of %d\npid %d %d\n", start, rank, size, rank, (int)getpid());
    fflush(stdout);
    if (!r && !strcmp(argv[2], "stop")) r = until_stopped(c);
    if (!r && !strcmp(argv[2], "quit")) r = dt__error(DT_E_STOPPED, "time is up: saved");
    if (victim && (!r || r == DT_E_STOPPED) && strcmp(argv[1], "none")) return break_down(argv[1]);
    if (!strcmp(argv[2], "ignore") && start < number(argv, "starts", 1)) {
        while (!dt__comm_stop_requested(c)) usleep(1000);
        printf("asked\n");
        fflush(stdout);
        for (;;) sleep(1);
    }
    for (int round = 0; round < 5 && !r; round++) r = dt_all_reduce(c, &one, 1, DT_MAX);
    if (!r && rank == 0) printf("done by %d ranks, %d memories\n", size, memories());
    dt_comm_close(&c);
    return r ? dt_fail("worker") : 0;
}

/* ---- the parent ---- */

/* Whether the job says `text` within a minute. */
static int wait_for_text(job *j, const char *text)
{
    for (int tries = 0; tries < 6000 && !strstr(j->text, text); tries++)
        if (listen_to(j, 0.01)) break;
    return strstr(j->text, text) != NULL;
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)) != NULL; text++) n++;
    return n;
}

static void judge(job *j, int ready, const char *arguments, int want, int starts, const char *words)
{
    int status = finish(j, 120), got = count(j->text, ", rank 0 of "), left = !nothing_left(20), said = 1;
    char all[300], *word;
    snprintf(all, sizeof all, "%s", words);
    for (word = strtok(all, "|"); word; word = strtok(NULL, "|")) {
        int unsaid = *word == '!';
        said = said && (strstr(j->text, word + unsaid) == NULL) == unsaid;
    }
    if (!tap_ok(ready && status == want && got == starts && said && !left, "%s: exit %d after %d start%s", arguments,
                status, got, got == 1 ? "" : "s"))
        tap_note("ready %d, wanted exit %d after %d starts and '%s', left %d; it said\n%s", ready, want, starts, words,
                 left, j->text);
}

/* A job left to itself: its exit status, how often its ranks started, and what was said ("this|!not that"). */
static void runs(const char *self, const char *arguments, int want, int starts, const char *words)
{
    job j;
    start(&j, self, arguments);
    judge(&j, 1, arguments, want, starts, words);
}

enum { SUPERVISOR = -1, EVERYBODY = -2 };

/* A job that gets a signal once all ranks are ready and it has said `when`: a rank, SUPERVISOR or EVERYBODY. */
static void signalled(const char *self, const char *arguments, const char *when, int ranks, int rank, int sig, int want,
                      const char *words)
{
    job j;
    int ready;
    start(&j, self, arguments);
    ready = wait_for_ranks(&j, ranks) && wait_for_text(&j, when);
    if (ready) kill(rank >= 0 ? j.pid[rank] : rank == EVERYBODY ? -j.supervisor : j.supervisor, sig);
    judge(&j, ready, arguments, want, 1, words);
}

static void restarts(const char *self)
{
    runs(self, "kill - starts=2 --ranks 3 --max-restarts 3", 0, 3,
         "rank 1 was killed by signal 9 (Killed): restart 1 of 3 in 0.001 s\n|restart 2 of 3 in 0.002 s\n|"
         "start 2, rank 2 of 3|done by 3 ranks, 1 memories");
    runs(self, "kill - --max-restarts 1", 0, 2, "rank 0 was killed|done by 1 ranks");
    runs(self, "freeze - --ranks 3 --max-restarts 1 --timeout 1", 0, 2,
         "rank 1 has not moved for 1 s|restart 1 of 1|done by 3 ranks");
    runs(self, "7 - --ranks 2 --max-restarts 1", 0, 2, "rank 1 ended with status 7: restart 1 of 1");
    runs(self, "kill - starts=9 --ranks 2 --max-restarts 2", 137, 3, "2 restarts without a new checkpoint: giving up");
    runs(self, "kill - starts=9 step=7 --ranks 2 --max-restarts 2", 137, 3,
         "in 0.001 s, resuming at step 7\n|in 0.002 s, resuming at step 7\n|2 restarts without a new checkpoint");
    runs(self, "kill - starts=5 step=10 gain=10 --ranks 2 --max-restarts 1", 0, 6,
         "1 of 1 in 0.001 s, resuming at step 10\n|1 of 1 in 0.001 s, resuming at step 50\n|start 5, rank 1 of 2");
    runs(self, "kill - --ranks 2", 137, 1, "rank 1 (pid ");
}

static void lasting(const char *self)
{
    runs(self, "DT_E_USAGE - --ranks 2 --max-restarts 3", 2, 1, "made to fail");
    runs(self, "DT_E_USAGE - --max-restarts 3", 2, 1, "made to fail");
    runs(self, "DT_E_DATA - --ranks 2 --max-restarts 3", 1, 1, "made to fail");
    runs(self, "DT_E_NUMERIC - --ranks 2 --max-restarts 3", 1, 1, "made to fail");
    runs(self, "none quit --ranks 3 --max-restarts 3", 75, 1, "worker: time is up: saved\n|!ended with status");
    runs(self, "DT_E_FILE - --ranks 2 --max-restarts 3", 1, 1, "made to fail");
    runs(self, "DT_E_FILE - step=1 --ranks 2 --max-restarts 3", 0, 2, "made to fail|at step 1");
    runs(self, "DT_E_SYSTEM - --ranks 2 --max-restarts 3", 0, 2, "made to fail|restart 1 of 3");
}

static void elastic(const char *self)
{
    runs(self, "kill - starts=2 --max-restarts 3 --elastic 2:4", 0, 3,
         "start 0, rank 3 of 4|continuing with 3 of 4 ranks|continuing with 2 of 3 ranks|done by 2 ranks");
    runs(self, "kill - --ranks 3 --max-restarts 3 --elastic 2:4", 0, 2, "continuing with 2 of 3 ranks|done by 2 ranks");
    runs(self, "freeze - --max-restarts 3 --elastic 1:3 --timeout 1", 0, 2,
         "continuing with 2 of 3 ranks|done by 2 ranks");
    runs(self, "kill ignore --max-restarts 3 --elastic 2:4", 0, 2, "continuing with 3 of 4 ranks");
    runs(self, "kill - starts=9 --max-restarts 3 --elastic 3:4", 137, 2,
         "continuing with 3 of 4 ranks|2 of 3 ranks are left: too few for --elastic 3:4");
    runs(self, "kill - unit=2 --max-restarts 3 --elastic 2:4", 0, 2, "continuing with 2 of 4 ranks|done by 2 ranks");
    runs(self, "kill - unit=4 --max-restarts 3 --elastic 2:4", 137, 1,
         "3 of 4 ranks are left, of which the layout can use 0: too few for --elastic 2:4");
    runs(self, "7 - --max-restarts 3 --elastic 2:4", 0, 2, "done by 4 ranks"); /* a failure is no loss */
}

static void stops(const char *self)
{
    const char *saved = "worker: stopped on request: saved\n";
    signalled(self, "none stop --ranks 3", "", 3, SUPERVISOR, SIGTERM, 75, saved);
    signalled(self, "none stop --ranks 3", "", 3, SUPERVISOR, SIGINT, 75, saved);
    signalled(self, "none stop --ranks 3", "", 3, 1, SIGTERM, 75, saved);
    signalled(self, "none stop --ranks 3", "", 3, EVERYBODY, SIGTERM, 75, saved);
    signalled(self, "none stop --ranks 3", "", 3, EVERYBODY, SIGINT, 75, saved);
    signalled(self, "none stop --ranks 3 --launch threads", "", 3, SUPERVISOR, SIGTERM, 75, saved);
    signalled(self, "none stop --ranks 3 --max-restarts 2", "", 3, SUPERVISOR, SIGTERM, 75, saved);
    signalled(self, "none stop --max-restarts 2", "", 1, SUPERVISOR, SIGTERM, 75, saved);
    signalled(self, "0 stop --ranks 2", "", 2, SUPERVISOR, SIGTERM, 75, saved); /* one has nothing to save */
    signalled(self, "DT_E_FILE stop --ranks 3 --max-restarts 2", "", 3, SUPERVISOR, SIGTERM, 143, "by signal 15");
    signalled(self, "kill stop --ranks 3 --max-restarts 2", "", 3, SUPERVISOR, SIGINT, 130, "by signal 2");
    signalled(self, "none ignore grace=100 --ranks 2 --max-restarts 2", "", 2, SUPERVISOR, SIGTERM, 143, "asked");
    signalled(self, "none stop", "", 1, 0, SIGTERM, 75, saved);
    signalled(self, "none stop", "", 1, 0, SIGINT, 75, saved);
    setenv("DT_BACKOFF", "100000", 1);
    signalled(self, "kill - --ranks 2 --max-restarts 2", "100000 s\n", 2, SUPERVISOR, SIGTERM, 143, "by signal 15\n");
    signalled(self, "kill - --ranks 2 --max-restarts 2", "100000 s\n", 2, SUPERVISOR, SIGINT, 130, "by signal 2\n");
    setenv("DT_BACKOFF", "0.001", 1);
}

/* Alone, Ctrl-C is seen once; the second one ends the program. What it does about SIGTERM stays. */
static void alone(const char *self)
{
    struct sigaction now;
    dt_comm *c = NULL;
    int seen;
    job j;
    start(&j, self, "none ignore");
    seen = wait_for_ranks(&j, 1) && !kill(j.supervisor, SIGINT) && wait_for_text(&j, "asked");
    kill(j.supervisor, SIGINT);
    judge(&j, seen, "none ignore, two interrupts", 128 + SIGINT, 1, "asked");
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_DFL); /* a shell ignores it for what it runs in the background */
    if (dt_comm_open(&c, NULL, NULL)) tap_bail("%s", dt_last_error());
    dt__comm_catch_stop(c);
    sigaction(SIGTERM, NULL, &now);
    tap_ok(now.sa_handler == SIG_IGN && !dt__comm_stop_requested(c), "the program's own SIGTERM stays its own");
    raise(SIGINT);
    sigaction(SIGINT, NULL, &now);
    tap_ok(dt__comm_stop_requested(c) && now.sa_handler == SIG_DFL, "an interrupt is seen, once");
    dt_comm_close(&c);
    signal(SIGTERM, SIG_DFL); /* for the jobs that follow */
}

/* ---- cores of their own ---- */

typedef struct cores {
    unsigned char bits[128];
    int count;
} cores;

static cores cores_of(int pid)
{
    cores c;
    memset(&c, 0, sizeof c);
    syscall(SYS_sched_getaffinity, pid, sizeof c.bits, c.bits);
    for (int i = 0; i < 128; i++) c.count += __builtin_popcount(c.bits[i]);
    return c;
}

/* Starts two ranks; 1: they have cores of their own, equally many of this process's; 0: both have all of those. */
static int two_ranks(const char *self, const char *options, job *j)
{
    char arguments[100];
    cores all = cores_of(0), rank[2];
    int apart = 1, within = 1;
    snprintf(arguments, sizeof arguments, "none stop --ranks 2 %s", options);
    start(j, self, arguments);
    if (!wait_for_ranks(j, 2)) tap_bail("no ranks: %s", j->text);
    for (int r = 0; r < 2; r++) rank[r] = cores_of(j->pid[r]);
    rank[0].count *= !memcmp(&all, (cores[1]){cores_of(j->supervisor)}, sizeof all); /* the supervisor keeps its own */
    for (int i = 0; i < 128; i++) {
        apart &= !(rank[0].bits[i] & rank[1].bits[i]);
        within &= !((rank[0].bits[i] | rank[1].bits[i]) & ~all.bits[i]);
    }
    if (apart && within && rank[0].count == all.count / 2 && rank[1].count == all.count / 2) return 1;
    return memcmp(&rank[0], &all, sizeof all) || memcmp(&rank[1], &all, sizeof all) ? -1 : 0;
}

static void end(job *j)
{
    kill(j->supervisor, SIGTERM);
    finish(j, 20);
}

/* In a network of its own, so that no other job's claims count. */
static void binding(const char *self)
{
    job first, second;
    int apart;
    if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET)) {
        tap_skip(6, "no namespace of its own: %s", strerror(errno));
        return;
    }
    if (cores_of(0).count < 2) {
        tap_skip(6, "one core");
        return;
    }
    tap_ok(two_ranks(self, "", &first) == 1, "two ranks have cores of their own");
    tap_ok(two_ranks(self, "", &second) == 0, "those of a second job have all cores, because the first has claimed them");
    end(&second);
    tap_ok(two_ranks(self, "--bind none", &second) == 0, "--bind none: all cores");
    end(&second), end(&first);
    tap_ok(two_ranks(self, "--bind auto", &first) == 1, "when the first has ended, its cores can be claimed again");
    kill(first.supervisor, SIGKILL);
    finish(&first, 20);
    apart = nothing_left(20) ? two_ranks(self, "", &first) : -1;
    for (int tries = 0; tries < 100 && !apart; tries++) { /* a process that ends closes its claims after its memory is gone */
        end(&first);
        usleep(10000);
        apart = two_ranks(self, "", &first);
    }
    tap_ok(apart == 1, "and those of one that was killed");
    end(&first);
    tap_ok(two_ranks(self, "--launch threads", &first) == 0, "ranks that are threads share all cores");
    end(&first);
}

int main(int argc, char **argv)
{
    if (argc > 1) return worker(argc, argv);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* ranks that end in the middle leave what they had */
    setenv("DT_BACKOFF", "0.001", 1);
    restarts(argv[0]);
    lasting(argv[0]);
    elastic(argv[0]);
    stops(argv[0]);
    alone(argv[0]);
    binding(argv[0]);
    return tap_done();
}
