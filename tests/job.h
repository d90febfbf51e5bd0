/* job.h: for tests that start this very program as the supervisor of ranks and watch it from outside: what it says, how
 * it ends, what it leaves behind. Include it behind the implementation of dtrain.h. */
#ifndef JOB_H
#define JOB_H

#include <dirent.h>
#include <poll.h>

#define MARKER "DT_TEST_JOB" /* in the environment of the supervisor and its ranks: the number of the test's process */

typedef struct job {
    pid_t supervisor;
    int fd;
    pid_t pid[8]; /* by rank */
    char text[8192];
    int length;
} job;

static void start(job *j, const char *self, const char *arguments)
{
    char *argv[20], line[300], mark[32], *word;
    int n = 1, pipe_fd[2];
    memset(j, 0, sizeof *j);
    snprintf(line, sizeof line, "%s", arguments);
    snprintf(mark, sizeof mark, "%d", (int)getpid());
    argv[0] = strdup(self);
    for (word = strtok(line, " "); word; word = strtok(NULL, " ")) argv[n++] = word;
    argv[n] = NULL;
    if (pipe(pipe_fd)) exit(2);
    j->supervisor = fork();
    if (j->supervisor == 0) {
        setpgid(0, 0);
        signal(SIGINT, SIG_DFL); /* a shell ignores both for what it runs in the background, and programs inherit that */
        signal(SIGQUIT, SIG_DFL);
        dup2(pipe_fd[1], 1);
        dup2(pipe_fd[1], 2);
        close(pipe_fd[0]);
        close(pipe_fd[1]);
        setenv(MARKER, mark, 1);
        execv(self, argv);
        _exit(127);
    }
    free(argv[0]);
    close(pipe_fd[1]);
    j->fd = pipe_fd[0];
}

/* Reads what the job says, for at most `seconds`; ends early at the end of the pipe. Returns 1 at the end. */
static int listen_to(job *j, double seconds)
{
    double until = dt__now() + seconds;
    struct pollfd p;
    p.fd = j->fd;
    p.events = POLLIN;
    for (;;) {
        double left = until - dt__now();
        ssize_t n;
        if (left < 0 || poll(&p, 1, (int)(left * 1e3) + 1) <= 0) return 0;
        n = read(j->fd, j->text + j->length, sizeof j->text - 1 - (size_t)j->length);
        if (n <= 0) return 1;
        j->length += (int)n;
        if (j->length == (int)sizeof j->text - 1) j->length = 0;
    }
}

/* Each rank prints "pid RANK PROCESS" when it is ready. */
static int wait_for_ranks(job *j, int ranks)
{
    for (int tries = 0; tries < 200; tries++) {
        int found = 0;
        listen_to(j, 0.01);
        for (const char *s = j->text; (s = strstr(s, "pid ")) != NULL; s++) {
            int rank, pid;
            if (sscanf(s, "pid %d %d\n", &rank, &pid) == 2 && rank >= 0 && rank < 8) j->pid[rank] = pid;
        }
        for (int r = 0; r < ranks; r++) found += j->pid[r] != 0;
        if (found == ranks) return 1;
    }
    return 0;
}

/* The job's exit status within `seconds`, 128 + signal when it was killed, or -1. */
static int finish(job *j, double seconds)
{
    double until = dt__now() + seconds;
    int status = 0;
    listen_to(j, seconds);
    while (waitpid(j->supervisor, &status, WNOHANG) != j->supervisor) {
        if (dt__now() > until + 1) {
            kill(j->supervisor, SIGKILL);
            waitpid(j->supervisor, &status, 0);
            close(j->fd);
            return -1;
        }
        dt__nap();
    }
    close(j->fd);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Processes other than this one whose environment has the marker. */
static int left_behind(void)
{
    DIR *proc = opendir("/proc");
    struct dirent *e;
    char mark[64];
    size_t length = (size_t)snprintf(mark, sizeof mark, MARKER "=%d", (int)getpid()) + 1;
    int found = 0;
    while (proc && (e = readdir(proc)) != NULL) {
        char path[300], text[65536];
        size_t n;
        FILE *f;
        if (e->d_name[0] < '0' || e->d_name[0] > '9' || atoi(e->d_name) == (int)getpid()) continue;
        snprintf(path, sizeof path, "/proc/%s/environ", e->d_name);
        if ((f = fopen(path, "r")) == NULL) continue;
        n = fread(text, 1, sizeof text, f);
        fclose(f);
        found += memmem(text, n, mark, length) != NULL;
    }
    if (proc) closedir(proc);
    return found;
}

/* A killed process may need a moment to go. */
static int nothing_left(double seconds)
{
    double until = dt__now() + seconds;
    while (left_behind())
        if (dt__now() > until) return 0;
        else usleep(10000);
    return 1;
}

#endif
