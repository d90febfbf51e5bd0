/* 75_spot: a machine is taken away with two minutes' notice. What is lost?
 *
 * What you learn
 *     - Spare capacity is sold at up to 90 % off and reclaimed at any time. Without checkpoints each interruption costs
 *       all work so far, and a long job never finishes (79_spot_bill.c).
 *     - The notice is SIGTERM; SIGKILL follows two minutes later (SageMaker; other clouds give 30 s to 2 min). On
 *       SIGTERM every rank ends its step, all write a checkpoint, and the job ends with an exit status of its own. The
 *       same command resumes from there.
 *     - "With a notice periodic checkpoints are unnecessary" is true only if a save fits between the two signals. A
 *       longer save is cut off and leaves nothing with a checkpoint's name. And a node that fails sends no SIGTERM.
 *     - The trainer measures its last save, and warns when that took longer than --deadline.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 75_spot.c -o 75_spot -lm -lpthread
 *     ./75_spot                                  (--every N: a save every N steps, 5 to 40)
 *
 * What it prints (~: differs)
 *     interrupted after step 17           steps status        then  twice
 *     SIGTERM, time for a save         1 to ~19     75  ~20 to 40       0   same hash
 *     SIGTERM, a save takes too long   1 to ~19    143   11 to 40      ~9   same hash
 *     sha256 4627fb720a05d5b07dfe21ebece598dc2cb4dad78e02803c7313aad053d53b20
 *     ok: steps done twice: 0 after a notice, ~7 without, ~8 after one too short for a save; one hash
 *
 * Predict first: with a save every 5 steps instead of 10, at most how many steps does a run without notice repeat?
 * Exercise: send SIGTERM before the first step has ended. Which checkpoint does the next start find?
 *
 * Read on: 76_async_checkpoint.c for saves that take long, 79_spot_bill.c for what it costs. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define EXPECTED "4627fb720a05d5b07dfe21ebece598dc2cb4dad78e02803c7313aad053d53b20"
enum { STEPS = 40, KILL_AT = 17 };
static const char *every = "10"; /* steps between saves */

/* An emulated slow disk: fsync takes a file's bytes / disk_rate seconds more. The header calls this one. */
static double disk_rate;
int fsync(int fd)
{
    struct stat is;
    if (disk_rate > 0 && !fstat(fd, &is) && S_ISREG(is.st_mode))
        usleep((useconds_t)(1e6 * (double)is.st_size / disk_rate));
    return (int)syscall(SYS_fsync, fd);
}

/* The job: any trainer looks like this. It prints each step's number, and its hash at the end. */
static int job(const char *text, const char *place, float deadline)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = text, recipe.sequence = 32, recipe.steps = STEPS, recipe.validation = 0;
    recipe.batch = 8, recipe.data_shards = 4;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0;
    l.checkpoint.place = place, l.checkpoint.interval = atoi(every), l.checkpoint.deadline = deadline;
    e = dt_trainer_open(&t, &recipe, &l);
    while (!e && info.step < STEPS) {
        e = dt_trainer_step(t, &info);
        if ((!e || e == DT_E_STOPPED) && dt_trainer_is_root(t))
            printf("step %lld\n", (long long)info.step), fflush(stdout);
    }
    if (!e && dt_trainer_is_root(t)) printf("sha256 %s\n", dt_trainer_hash(t));
    dt_trainer_close(&t);
    return e ? dt_fail("job") : 0;
}

typedef struct start {
    int first, last, status;
    char hash[80];
} start;

/* Starts the job once, and sends it `sig` after step KILL_AT, or never. */
static start run(const char *program, const char *text, const char *place, const char *deadline, const char *rate,
                 int sig)
{
    start s;
    int pipes[2], status = 0;
    char line[200];
    FILE *out;
    pid_t pid;
    memset(&s, 0, sizeof s);
    if (pipe(pipes)) return s.status = -1, s;
    if (!(pid = fork())) {
        dup2(pipes[1], 1), close(pipes[0]), close(pipes[1]);
        execl(program, program, "--job", text, place, deadline, rate, every, "--ranks", "2", (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    out = fdopen(pipes[0], "r");
    while (out && fgets(line, sizeof line, out)) {
        int step = 0;
        sscanf(line, "sha256 %70s", s.hash);
        if (sscanf(line, "step %d", &step) != 1) continue;
        if (!s.first) s.first = step;
        s.last = step;
        if (step == KILL_AT && sig) kill(pid, sig);
    }
    if (out) fclose(out);
    waitpid(pid, &status, 0);
    s.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return s;
}

/* One interruption, then the same command again. loses: the last save is old; *twice: steps done twice. */
static int story(const char *program, const char *text, const char *what, const char *deadline, const char *rate,
                 int sig, int loses, int *twice)
{
    char place[64], line[100];
    start a, b;
    int good;
    snprintf(place, sizeof place, "/tmp/dtrain_spot.%ld", (long)getpid());
    a = run(program, text, place, deadline, rate, sig);
    b = run(program, text, place, deadline, "0", 0);
    *twice = a.last - b.first + 1;
    good = !b.status && !strcmp(b.hash, EXPECTED) && b.last == STEPS && *twice >= 0;
    good = good && *twice <= loses * (atoi(every) + 2); /* a signal needs a moment to arrive */
    printf("%-30s %3d to %-3d %6d %4d to %-3d %6d   %s\n", what, a.first, a.last, a.status, b.first, b.last, *twice,
           strcmp(b.hash, EXPECTED) ? "OTHER BITS" : "same hash");
    snprintf(line, sizeof line, "rm -rf '%s'", place);
    return !system(line) && good;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    int good, twice[3];
    if (dt_launch(&argc, &argv)) return dt_fail("75_spot");
    if (argc == 7 && !strcmp(argv[1], "--job"))
        return disk_rate = atof(argv[5]), every = argv[6], job(argv[2], argv[3], (float)atof(argv[4]));
    if (argc == 3 && !strcmp(argv[1], "--every")) every = argv[2], argc = 1;
    if (argc > 1 || atoi(every) < 5 || atoi(every) > STEPS)
        return fprintf(stderr, "75_spot: the option is --every N, N from 5 to %d\n", STEPS), 2;
    if (prose_temporary(text, 50000)) return dt_fail("75_spot");
    printf("%-30s %10s %6s %11s %6s\n", "interrupted after step 17", "steps", "status", "then", "twice");
    good = story(argv[0], text, "SIGTERM, time for a save", "120", "0", SIGTERM, 0, &twice[0]);
    good = story(argv[0], text, "SIGKILL, no notice", "120", "0", SIGKILL, 1, &twice[1]) && good;
    good = story(argv[0], text, "SIGTERM, a save takes too long", "0.5", "2e5", SIGTERM, 1, &twice[2]) && good;
    remove(text);
    printf("sha256 %s\n", EXPECTED);
    if (!good) return fprintf(stderr, "FAILED: too many steps were done twice, or the hash is another one\n"), 1;
    return printf("ok: steps done twice: %d after a notice, %d without, %d after one too short for a save; one hash\n",
                  twice[0], twice[1], twice[2]), 0;
}
