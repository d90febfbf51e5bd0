/* report: what happened in a run, was it healthy, where did the time go, and what to do next?
 *
 *     ./build.sh report RUN.jsonl [MORE.jsonl ..] [-o FILE.html]        --help lists the options
 *
 * The page is complete at any time: it is written under another name, then renamed.
 * By hand, in the folder of dtrain.h:
 *     cc -O2 examples/tools/report.c -o report -lm */
#include "events.h"
#include "page.h"
#include <errno.h>
#include <signal.h>

static const char usage[] =
    "Usage: report RUN.jsonl [MORE.jsonl ..] [OPTION ..]; the files are those of --metrics, up to 8, side by side\n"
    "  -o FILE.html           the page, which needs only a browser (the name of the first file with .html)\n"
    "  --timeline FILE        the trace that --timeline wrote for the run named before it\n"
    "  --simulated FILE       a trace by ./build.sh simulate --trace, drawn beside the measured one\n"
    "  --tensorboard DIR      event files in DIR/RUN: every number of a step, and samples of text\n"
    "  --follow               keep page and event files up to date until the runs end, or Ctrl-C\n";

typedef struct job {
    const char *run[PAGE_RUNS], *timeline[PAGE_RUNS], *simulated[PAGE_RUNS], *folder;
    char page[4096];
    int runs, follow;
    events event[PAGE_RUNS];
} job;

static volatile sig_atomic_t stopped;
static void stop(int signal) { stopped = signal; }

static int fails(int status, const char *why) { return fprintf(stderr, "report: %s\n", why), status; }

/* Takes the arguments; 0 and a sentence: they are wrong. */
static int take(job *j, int count, char **word, char why[SENTENCE])
{
    const char *page = NULL, *base, *dot;
    memset(j, 0, sizeof *j), *why = 0;
    for (int i = 1; i < count; i++) {
        int at = j->runs ? j->runs - 1 : 0;
        const char *a = word[i], **to = !strcmp(a, "-o") ? &page : !strcmp(a, "--tensorboard") ? &j->folder : NULL;
        if (!strcmp(a, "--timeline")) to = &j->timeline[at];
        if (!strcmp(a, "--simulated")) to = &j->simulated[at];
        if (to && (i + 1 == count || !*word[i + 1])) return say(why, "%s needs a name after it", a);
        if (to) *to = word[++i];
        else if (!strcmp(a, "--follow")) j->follow = 1;
        else if (*a == '-') return say(why, "what is '%s'? --help lists the options", a);
        else if (j->runs == PAGE_RUNS) return say(why, "a page has up to %d runs: name fewer", PAGE_RUNS);
        else j->run[j->runs++] = a;
    }
    if (!j->runs) return say(why, "name a file that a run wrote with --metrics: ./build.sh report RUN.jsonl");
    base = strrchr(j->run[0], '/'), dot = strrchr(base ? base : j->run[0], '.');
    if (page) snprintf(j->page, sizeof j->page, "%s", page);
    else snprintf(j->page, sizeof j->page, "%.*s.html", dot ? (int)(dot - j->run[0]) : 4000, j->run[0]);
    return 1;
}

static int write_page(const job *j, const run *runs, int on, char why[SENTENCE])
{
    char next[4200], old[sizeof page_first] = "";
    struct stat is;
    int bad, there = !stat(j->page, &is);
    FILE *f = there && S_ISREG(is.st_mode) ? fopen(j->page, "rb") : NULL; /* a device is not replaced */
    size_t n = f ? fread(old, 1, sizeof old - 1, f) : 1;
    if (f) fclose(f);
    *why = 0;
    if (there && n && strcmp(old, page_first))
        return say(why, "%.500s exists and is not a page of report: -o names another", j->page);
    snprintf(next, sizeof next, "%s.%d.tmp", j->page, (int)getpid());
    if ((f = fopen(next, "wb")) == NULL) return say(why, "cannot write %.400s: %s", j->page, strerror(errno));
    page_put(f, runs, j->runs, on);
    bad = ferror(f);
    if (!(fclose(f) || bad) && !rename(next, j->page)) return 1;
    say(why, "cannot write %.400s: %s", j->page, strerror(errno)), remove(next);
    return 0;
}

/* Reads a run and what belongs to it, and brings its event file up to date; 0 and a sentence: it cannot be shown. */
static int read_run(job *j, run *runs, int at, char why[SENTENCE])
{
    run *r = &runs[at];
    char number[] = "-1";
    if (!run_open(r, j->run[at], why)) return 0;
    for (int k = 0; k < at; k++) /* equal names get a number */
        if (!strcmp(r->name, runs[k].name)) number[1] = (char)('1' + at), strcat(r->name, number);
    if ((!j->timeline[at] || trace_open(&r->measured, j->timeline[at], why) || j->follow) && /* written at the end */
        (!j->simulated[at] || trace_open(&r->simulated, j->simulated[at], why)) &&
        (!j->folder || events_update(&j->event[at], r, j->folder, why)))
        return 1;
    return run_close(r), 0;
}

/* Reads all files once, and writes. *going: does a run go on, or is it about to begin? */
static int report_once(job *j, int first, int *going, char why[SENTENCE])
{
    static run runs[PAGE_RUNS];
    int good = 1, opened = 0;
    *going = 0;
    while (opened < j->runs && (good = read_run(j, runs, opened, why)) != 0) {
        *going |= runs[opened].state == RUN_RUNNING || !runs[opened].steps;
        opened++;
    }
    good = good && write_page(j, runs, j->follow && *going, why);
    for (run *r = runs; r < runs + opened; r++) {
        if (good && (first || !*going))
            printf("%s  %s.\n  %s.\n  next: %s:\n  %s\n", r->name, r->what, r->health, r->next, r->command);
        run_close(r);
    }
    if (good && (first || !*going)) printf("page %s\n", j->page);
    return fflush(stdout) || ferror(stdout) ? say(why, "cannot write the verdict: is the disk full?") : good;
}

int main(int argc, char **argv)
{
    static job j;
    char why[SENTENCE];
    struct timespec pause = {0, 500000000};
    int going = 1, good, first = 1;
    if (!strcmp(argv[argc - 1], "--help")) return fputs(usage, stdout) < 0;
    if (!take(&j, argc, argv, why)) return fails(2, why);
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large fails as on a full disk */
    if (j.follow) signal(SIGINT, stop), signal(SIGTERM, stop);
    for (;;) {
        good = report_once(&j, first, &going, why);
        if (!j.follow) return good ? 0 : fails(1, why);
        if (!good && strstr(why, "cannot write")) return fails(1, why);
        if (!good && first == 1) printf("waiting: %s\n", why), fflush(stdout);
        first = first && !good ? 2 : 0;
        if ((good && !going) || stopped) return good ? 0 : 1;
        nanosleep(&pause, NULL);
    }
}
