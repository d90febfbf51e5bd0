/* notebook.c: the library and the functions of notebook.h, in one shared object that the kernel compiles once, and
 * the loop that runs cells (nb_main). */
#define DTRAIN_IMPLEMENTATION
#define DT_COMPILER
#include "dtrain.h"
#include "notebook.h"
#include <dlfcn.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/time.h>

static sigjmp_buf nb_top;                 /* where an interrupted cell comes back to */
static volatile sig_atomic_t nb_inside;   /* 1: statements of a cell are running */
static volatile sig_atomic_t nb_ranks;    /* rank threads that are running */
static pthread_t nb_main_thread;
static volatile sig_atomic_t nb_interrupted;
static int nb_ok, nb_checks, nb_said, nb_not_ok; /* of the cell: checks that count; sentences; that one was not true */
/* Of the cell that runs, from the kernel: what its messages begin with, so that nothing which a cell prints is taken
 * for one; what its checks say, so that they count (0: none do); the state of drawn(). */
static char nb_mark[40];
static uint64_t nb_key, nb_state;

/* ---- the interpreter's side of a cell ---- */

/* Is this thread just taking or leaving the lock of a stream? After a jump nobody could unlock it. */
static int nb_between(FILE *stream)
{
    return ftrylockfile(stream) ? 1 : (funlockfile(stream), 0);
}

/* A jump out of a cell would leave rank threads behind: then the process ends, and the kernel starts another. SIGALRM
 * is an interrupt that comes again, a millisecond later. */
static void nb_interrupt(int number)
{
    struct itimerval later = {{0, 0}, {0, 1000}};
    if (!pthread_equal(pthread_self(), nb_main_thread)) {
        pthread_kill(nb_main_thread, number);
        return;
    }
    if (nb_ranks) _exit(128 + SIGINT);
    if (!nb_inside) return;
    if (nb_between(stdout) || nb_between(stderr)) setitimer(ITIMER_REAL, &later, NULL);
    else siglongjmp(nb_top, 1);
}

static void *nb_may_print(void *stream)
{
    return ftrylockfile((FILE *)stream) ? NULL : (funlockfile((FILE *)stream), stream);
}

/* An interrupt may jump out of printf, which then has not unlocked its stream for other threads. */
static void nb_unlock(FILE *stream)
{
    void *may = NULL;
    pthread_t other;
    while (!may && !pthread_create(&other, NULL, nb_may_print, stream)) {
        pthread_join(other, &may);
        if (!may) funlockfile(stream);
    }
}

/* Runs a cell. After an interrupt the rest of the cell is left out. */
static void nb_run(void (*cell)(void))
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = nb_interrupt, action.sa_flags = SA_RESTART; /* it may come when no cell runs */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    nb_main_thread = pthread_self();
    nb_interrupted = 0;
    if (sigsetjmp(nb_top, 1)) {
        nb_interrupted = 1;
        nb_unlock(stdout), nb_unlock(stderr);
    } else {
        nb_inside = 1;
        cell();
    }
    nb_inside = 0;
}

static void nb_not_loaded(long number, const char *error)
{
    const char *symbol = error ? strstr(error, "undefined symbol: ") : NULL;
    if (symbol) fprintf(stderr, "cell %ld: '%s' is declared, but no cell defines it\n", number, symbol + 18);
    else fprintf(stderr, "cell %ld: %s\n", number, error ? error : "it cannot be loaded");
}

/* Loads and runs cells: each line of standard input has the number of a cell, its mark, key and seed, and the path of
 * its shared object. At the end of a cell a message on both streams tells the kernel that it has read all output. */
DT_API int nb_main(void)
{
    char line[PATH_MAX + 128], path[PATH_MAX], name[48];
    FILE *cells = fdopen(dup(0), "r");
    if (!cells || !freopen("/dev/null", "r", stdin)) return 1; /* a cell that reads its input finds none */
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    while (fgets(line, sizeof line, cells)) {
        long number;
        const char *how;
        void *object;
        void (*cell)(void) = NULL;
        if (sscanf(line, "%ld %39s %" SCNx64 " %" SCNx64 " %4095[^\n]", &number, nb_mark, &nb_key, &nb_state, path) < 5)
            break;
        nb_ok = nb_checks = nb_said = nb_not_ok = 0;
        object = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        snprintf(name, sizeof name, "nb_cell_%ld", number);
        if (object) *(void **)&cell = dlsym(object, name);
        if (cell) nb_run(cell);
        else nb_not_loaded(number, dlerror());
        fflush(NULL);
        how = !cell ? "error" : nb_interrupted ? "interrupted" : nb_not_ok ? "failed" : "ok";
        printf("\x1e%s end %s %d %d\n", nb_mark, how, nb_ok, nb_checks);
        fflush(stdout);
        fprintf(stderr, "\x1e%s end\n", nb_mark);
    }
    fclose(cells);
    return 0;
}

/* ---- ranks ---- */

typedef struct nb_rank {
    pthread_t thread;
    struct dt__local_rank self;
    dt_result (*body)(dt_comm *c);
    dt_result result;
    char error[512];
} nb_rank;

static void *nb_rank_main(void *argument)
{
    nb_rank *k = (nb_rank *)argument;
    dt_comm *c = NULL;
    dt__thread.rank = &k->self;
    k->result = dt_comm_open(&c, NULL, NULL);
    if (!k->result) k->result = k->body(c);
    if (k->result)
        snprintf(k->error, sizeof k->error, "%s", *dt__thread.error ? dt_last_error() : dt_result_name(k->result));
    dt_comm_close(&c);
    dt__job_ended(k->self.job, k->self.rank, dt_exit_code(k->result) << 8);
    return NULL;
}

DT_API dt_result ranks(int n, dt_result (*body)(dt_comm *c))
{
    dt__launch_plan plan;
    nb_rank *all;
    dt__job *job;
    dt_result r = DT_OK;
    int started = 0;
    if (n < 1 || n > 16) return fprintf(stderr, "ranks(%d, ..): choose 1 to 16\n", n), DT_E_USAGE;
    memset(&plan, 0, sizeof plan);
    plan.ranks = n, plan.threads = 1, plan.timeout = 5;
    all = (nb_rank *)calloc((size_t)n, sizeof *all);
    job = (dt__job *)dt__alloc(dt__job_bytes(n), "the ranks' shared state");
    if (!all || !job) return free(all), dt__free(job), DT_E_MEMORY;
    dt__job_init(job, &plan);
    nb_ranks = n;
    for (; started < n; started++) {
        all[started].self.job = job, all[started].self.rank = started, all[started].body = body;
        if (pthread_create(&all[started].thread, NULL, nb_rank_main, &all[started])) break;
    }
    if (started < n) fprintf(stderr, "ranks: no thread for rank %d\n", started), r = DT_E_SYSTEM;
    for (int i = started; i < n; i++) dt__job_ended(job, i, 1 << 8);
    for (int i = 0; i < started; i++) {
        pthread_join(all[i].thread, NULL);
        if (all[i].result && !r) fprintf(stderr, "rank %d: %s\n", i, all[i].error), r = all[i].result;
    }
    nb_ranks = 0;
    free(all);
    dt__free(job);
    return r;
}

DT_API int64_t sent(dt_comm *c)
{
    int64_t bytes = 0;
    for (int q = 0; q < dt_comm_size(c); q++) bytes += dt_comm_sent(c, q);
    return bytes;
}

DT_API double seconds(void) { return dt__now(); }

/* ---- pictures ---- */

/* One message among the lines of standard output: its length in bytes, then the picture. No interrupt cuts it. */
DT_API void picture(const char *svg)
{
    sigset_t interrupt, before;
    sigemptyset(&interrupt), sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &before);
    flockfile(stdout);
    printf("\x1e%s picture %zu\n%s", nb_mark, strlen(svg), svg);
    fflush(stdout);
    funlockfile(stdout);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* *to = *to + text, by the format. */
__attribute__((format(printf, 2, 3))) static void nb_add(char **to, const char *format, ...)
{
    char *longer = NULL, *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) text = NULL;
    va_end(arguments);
    if (text && asprintf(&longer, "%s%s", *to ? *to : "", text) >= 0) free(*to), *to = longer;
    free(text);
}

static void chart_add(chart *c, const char *name, const char *style, const double *x, const double *y, int n)
{
    static int count;
    nb_add(&c->data, "$d%d << EOD\n", ++count);
    for (int i = 0; i < n; i++) nb_add(&c->data, "%.9g %.9g\n", x[i], y[i]);
    nb_add(&c->data, "EOD\n");
    nb_add(&c->plots, "%s $d%d with %s title \"%s\"", c->plots ? "," : "plot", count, style, name);
}
DT_API void chart_line(chart *c, const char *name, const double *x, const double *y, int n)
{
    chart_add(c, name, "lines lw 2", x, y, n);
}
DT_API void chart_points(chart *c, const char *name, const double *x, const double *y, int n)
{
    chart_add(c, name, "points pt 7 ps 0.7", x, y, n);
}

DT_API void chart_show(chart *c)
{
    char path[] = "/tmp/chart-XXXXXX", command[64], *svg;
    int fd = mkstemp(path);
    FILE *gnuplot;
    off_t size;
    if (fd < 0) return;
    snprintf(command, sizeof command, "gnuplot >%s 2>&1", path);
    gnuplot = popen(command, "w");
    if (gnuplot) {
        fprintf(gnuplot, "set terminal svg size 640,360 font 'sans-serif,12' background 'white'\nset title \"%s\"\n"
                         "set xlabel \"%s\"\nset ylabel \"%s\"\nset grid\n"
                         "set key outside top center horizontal\n%s%s%s%s\n",
                c->title ? c->title : "", c->x ? c->x : "", c->y ? c->y : "", c->log_x ? "set logscale x\n" : "",
                c->log_y ? "set logscale y\n" : "", c->data ? c->data : "", c->plots ? c->plots : "");
        pclose(gnuplot);
    }
    size = lseek(fd, 0, SEEK_END);
    svg = (char *)calloc(1, (size_t)size + 1);
    if (svg && pread(fd, svg, (size_t)size, 0) == size && strstr(svg, "</svg>")) picture(svg);
    else fprintf(stderr, "no chart: %s (Debian has gnuplot in the package gnuplot-nox)\n", svg ? svg : "no memory");
    free(svg);
    close(fd);
    unlink(path);
    free(c->data), free(c->plots);
    c->data = c->plots = NULL;
}

/* ---- grading ---- */

DT_API double drawn(double low, double high)
{
    nb_state = nb_state * 6364136223846793005u + 1442695040888963407u;
    return low + (high - low) * (double)(nb_state >> 11) / 9007199254740992.0;
}

DT_API void nb_check(uint64_t key, int is_true, const char *sentence, ...)
{
    va_list arguments;
    va_start(arguments, sentence);
    printf("%s %d - ", is_true ? "ok" : "not ok", ++nb_said);
    vprintf(sentence, arguments);
    printf("\n");
    va_end(arguments);
    nb_not_ok |= !is_true;
    if (key == nb_key && key) nb_checks++, nb_ok += is_true != 0;
}

/* A number as a check shows it: whole numbers with all digits. */
static const char *nb_number(char text[32], double x)
{
    snprintf(text, 32, fabs(x) < 1e15 && x == floor(x) ? "%.0f" : "%.6g", x);
    return text;
}

DT_API void nb_compare(uint64_t key, double yours, double expected, double within, const char *because,
                       const char *what, ...)
{
    char text[256], mine[32], right[32];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(text, sizeof text, what, arguments);
    va_end(arguments);
    if (yours == 0 || !isfinite(yours)) nb_check(key, 0, "%s: yours: %g, as without an answer", text, yours);
    else if (fabs(yours - expected) <= within)
        nb_check(key, 1, "%s: %s, because %s", text, nb_number(mine, yours), because);
    else
        nb_check(key, 0, "%s: yours: %s, expected: %s, because %s", text, nb_number(mine, yours),
                 nb_number(right, expected), because);
}
