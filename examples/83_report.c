/* 83_report: what does a profiler's report say of a run, and in which order?
 *
 * What you learn
 *     - First which part of the job was training, then whether steps are alike (percentiles and a histogram, because a
 *       mean hides one step of a second), where their time goes, whether ranks have equal work, how much memory they
 *       take and what they send, and which rules fired. SageMaker's ProfilerReport has these sections.
 *     - It needs a dozen numbers per step and rank. dt_step_info has most of them; the loop adds two: the time between
 *       steps, and the wait at a barrier before each. Without that barrier the others wait for a late rank inside the
 *       step, where waiting looks like work.
 *     - The rank that waits least is the one that the others wait for. With --slow load balance names it; with --late
 *       the histogram shows that it was one step.
 *     - Looking costs time. Ranks keep their numbers, one all-gather at the end collects them, and the report says
 *       what a step takes without it. The hash is the same.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 83_report.c -o 83_report -lm -lpthread
 *     ./83_report --ranks 2
 *     ./83_report --ranks 2 --slow               (the last rank is busy for 120 ms between steps)
 *     ./83_report --ranks 2 --late               (step 25 of rank 0 begins a second late)
 *
 * What it prints (of the report with --slow; ~: measured)
 *     where time goes, %  computing  between  exposed  waiting  data  saving  other
 *       rank 0               ~8.3     ~0.0     ~0.9    ~89.8     ~0.0     ~0.9     ~0.0
 *       rank 1               ~6.9    ~89.7     ~2.4     ~0.0     ~0.2     ~0.8     ~0.0
 *     load balance: work ~0.37 s ~3.92 s; waiting ~3.65 s ~0.10 s; the others wait for rank 1
 *       LoadBalancing             step 10  ~0.1058 (bound 0.5)  rank 1  x3
 *     sha256 6f50f35efb5f6489ee44c2be56af95f4ed611e255e4f5a42e0865e50665c2307
 *     ok: the parts of 60 steps sum to ~4.02 s of training loop per rank; the run without a profiler has this hash
 *
 * Predict first: with --slow, which rank has most of its time in "waiting", and which in "between"?
 * Exercise: let each save take half a second more on rank 0 (an fsync of your own). Which column and rule show it?
 *
 * Read on: 90_launchers.c for clusters, 09_saturation.c for the batch. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "rules.h"
#include <unistd.h>

enum { STEPS = 30, LATE = 25, MOST = 8, BINS = 8, BAR = 40, SEQUENCE = 32, BATCH = 32 };
enum { NONE, SLOW_RANK, LATE_STEP };
/* What is kept of a step: the parts of its duration, and more. */
enum { COMPUTING, BETWEEN, EXPOSED, WAITING, DATA, SAVING, OTHER, DURATION, PARTS = DURATION };
enum { AT = DURATION + 1, LOSS, MEMORY, SENT, KINDS };
typedef float numbers[STEPS][KINDS];

typedef struct job {
    double init, loop, final; /* seconds */
    int64_t planned;          /* bytes of memory */
    numbers own;
    char hash[65];
} job;

static const char *wrong; /* the first check that failed */
static void check(int holds, const char *sentence) { wrong = wrong || holds ? wrong : sentence; }

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Bytes of this process in memory; NaN where the system does not tell. */
static double resident(void)
{
    double pages = NAN;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%*s %lf", &pages) != 1) pages = NAN;
    if (f) fclose(f);
    return pages * (double)sysconf(_SC_PAGESIZE);
}

static dt_result fetch(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    (void)user, (void)split;
    for (int64_t i = 0; i < SEQUENCE; i++) {
        ((int32_t *)input)[i] = (int32_t)((sample * 31 + i * 7) % 100);
        ((int32_t *)target)[i] = (int32_t)((sample * 31 + i * 7 + 7) % 100);
    }
    return DT_OK;
}

/* One training run. collect: meet before each step, keep its numbers, and save; else the durations alone. */
static dt_result train(dt_comm *c, const char *place, int fault, int collect, job *out)
{
    int rank = dt_comm_rank(c), slow = fault == SLOW_RANK && rank == dt_comm_size(c) - 1;
    double opened = now(), began, begin;
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_source source;
    dt_result e;
    memset(&source, 0, sizeof source);
    source.fetch = fetch, source.samples[DT_TRAIN] = 640;
    source.inputs = source.targets = SEQUENCE, source.input_type = source.target_type = DT_I32;
    recipe.model = dt_model_gpt2("nano");
    recipe.model.vocabulary = 100;
    recipe.source = &source, recipe.steps = STEPS, recipe.batch = BATCH, recipe.data_shards = MOST;
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0;
    if (collect) layout.checkpoint.place = place, layout.checkpoint.interval = 10;
    e = dt_trainer_open(&t, &recipe, &layout);
    begin = began = now();
    for (int i = 0; i < STEPS && !e; i++) {
        float *x = out->own[i];
        double ready, met, end;
        if (slow) usleep(120000);
        if (fault == LATE_STEP && !rank && i + 1 == LATE) usleep(999999);
        ready = now();
        if (collect) e = dt_barrier(c);
        met = now();
        if (!e) e = dt_trainer_step(t, &info);
        end = now();
        x[DURATION] = (float)(end - begin), x[BETWEEN] = (float)(ready - begin), x[WAITING] = (float)(met - ready);
        begin = end; /* so that what keeping numbers takes is between the steps */
        if (!collect) continue;
        x[COMPUTING] = (float)(info.seconds - info.exposed_seconds - info.data_seconds);
        x[EXPOSED] = (float)info.exposed_seconds, x[DATA] = (float)info.data_seconds;
        x[SAVING] = (float)info.save_seconds, x[OTHER] = (float)(end - met - info.seconds - info.save_seconds);
        x[AT] = (float)(end - opened), x[LOSS] = info.loss;
        x[MEMORY] = (float)resident(), x[SENT] = (float)info.sent_bytes;
    }
    out->init = began - opened, out->loop = begin - began;
    if (!e) out->planned = dt_trainer_memory(t).total, memcpy(out->hash, dt_trainer_hash(t), 65);
    dt_trainer_close(&t);
    out->final = now() - begin;
    return e;
}

/* The least number that `percent` of n are not above, by counting. */
static float percentile(const float *x, int n, int percent)
{
    float found = INFINITY;
    for (int i = 0, below = 0; i < n; i++, below = 0) {
        for (int k = 0; k < n; k++) below += x[k] <= x[i];
        if (100 * below >= percent * n && x[i] < found) found = x[i];
    }
    return found;
}

static float median(const job *j)
{
    float x[STEPS];
    for (int i = 0; i < STEPS; i++) x[i] = j->own[i][DURATION];
    return percentile(x, STEPS, 50);
}

static int by_size(const void *a, const void *b)
{
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

static void job_summary(const job *j)
{
    const char *names[3] = {"initialisation", "training loop", "finalisation"};
    double seconds[3] = {j->init, j->loop, j->final}, all = j->init + j->loop + j->final, percents = 0;
    printf("job summary: %.2f s\n", all);
    for (int i = 0; i < 3; i++) {
        double percent = floor(1000 * seconds[i] / all + 0.5) / 10; /* as printed */
        printf("  %-16s %8.3f s %6.1f %%\n", names[i], seconds[i], percent);
        percents += percent;
    }
    check(fabs(percents - 100) < 0.16, "the percentages of the job do not sum to 100");
}

/* Of all ranks' steps. Returns the longest one, counted from 1. */
static int step_durations(numbers *of, int ranks)
{
    static const int percents[5] = {100, 99, 95, 50, 0};
    static const char *const names[5] = {"max", "p99", "p95", "p50", "min"};
    float x[MOST * STEPS], sorted[MOST * STEPS], p[5];
    int n = ranks * STEPS, bins[BINS] = {0}, longest = 0, all = 0;
    double mean = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        x[i] = sorted[i] = of[i / STEPS][i % STEPS][DURATION];
        mean += (double)x[i] / n;
        if (x[i] > x[longest]) longest = i;
    }
    qsort(sorted, (size_t)n, sizeof *sorted, by_size);
    printf("step durations, ms:");
    for (int i = 0, k; i < 5; i++) {
        p[i] = percentile(x, n, percents[i]), k = (percents[i] * n + 99) / 100;
        printf(" %s %.1f ", names[i], 1e3 * (double)p[i]);
        check(p[i] >= sorted[k ? k - 1 : 0] && p[i] <= sorted[k ? k - 1 : 0], "a percentile is not the sorted copy's");
        check(!i || p[i] <= p[i - 1], "the percentiles are not in order");
    }
    printf(" mean %.1f\n", 1e3 * mean);
    for (int i = 0; i < n; i++) {
        int bin = (int)(BINS * (x[i] - p[4]) / fmaxf(p[0] - p[4], 1e-9f));
        bins[bin < BINS ? bin : BINS - 1]++; /* the longest belongs to the last */
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    }
    for (int b = 0; b < BINS; b++) {
        int length = (bins[b] * BAR + n - 1) / n; /* one is seen, too */
        printf("  from %7.1f %4d %.*s\n", 1e3 * (double)(p[4] + (p[0] - p[4]) * (float)b / BINS), bins[b], length,
               "########################################");
        all += bins[b];
    }
    check(all == n, "the bins of the histogram do not hold all steps");
    if ((double)p[0] > mean + 3 * sqrt(squares / n))
        printf("  outlier: step %d, above mean + 3 standard deviations, %.1f ms\n", longest % STEPS + 1,
               1e3 * (mean + 3 * sqrt(squares / n)));
    return longest % STEPS + 1;
}

/* Returns the rank that waits least; its work against that of the one that has the least of it becomes *balance. */
static int shares_and_balance(numbers *of, int ranks, double loop, double *balance)
{
    double sum[MOST][PARTS + 1] = {{0}}, work[MOST], waits[MOST];
    int slow = 0, least = 0;
    printf("where time goes, %%  computing  between  exposed  waiting  data  saving  other\n");
    for (int q = 0; q < ranks; q++) {
        for (int i = 0; i < STEPS; i++) {
            const float *x = of[q][i];
            double parts = 0, slack = 1e-5 * (double)x[DURATION] + 1e-6;
            for (int k = 0; k < PARTS; k++) {
                parts += (double)x[k], sum[q][k] += (double)x[k];
                check((double)x[k] >= -slack, "a part of a step is below 0: others exceed what they are part of");
            }
            check(fabs(parts - (double)x[DURATION]) <= slack, "the parts of a step do not sum to its duration");
            sum[q][DURATION] += (double)x[DURATION];
        }
        work[q] = sum[q][COMPUTING] + sum[q][BETWEEN] + sum[q][SAVING] + sum[q][OTHER];
        waits[q] = sum[q][EXPOSED] + sum[q][WAITING];
        if (waits[q] < waits[slow]) slow = q;
        if (work[q] < work[least]) least = q;
        printf("  rank %-11d", q);
        for (int k = 0; k < PARTS; k++) printf("%8.1f", 100 * sum[q][k] / sum[q][DURATION]);
        printf("\n");
    }
    check(fabs(sum[0][DURATION] - loop) <= 1e-4 * loop, "the steps do not sum to the training loop");
    printf("load balance: work");
    for (int q = 0; q < ranks; q++) printf(" %.2f s", work[q]);
    printf("; waiting");
    for (int q = 0; q < ranks; q++) printf(" %.2f s", waits[q]);
    *balance = work[least] / work[slow];
    if (*balance < 0.5) printf("; the others wait for rank %d", slow);
    printf("\n");
    return slow;
}

/* Gives the rules what they ask for. */
static dt_result judge(dt_rules *rules, numbers *of, int ranks)
{
    dt_result e = DT_OK;
    for (int i = 0; i < STEPS && !e; i++) {
        e = dt_rules_loss(rules, i + 1, (double)of[0][i][LOSS]);
        for (int q = 0; q < ranks && !e; q++) {
            const float *x = of[q][i];
            dt_rank_step s;
            memset(&s, 0, sizeof s);
            s.step = i + 1, s.rank = q, s.seconds = (double)x[DURATION], s.at = (double)x[AT];
            s.waiting = (double)x[EXPOSED] + (double)x[WAITING], s.data = (double)x[DATA];
            s.memory = (double)x[MEMORY];
            e = dt_rules_step(rules, &s);
        }
    }
    return e;
}

static dt_result report(const job *j, const job *plain, numbers *of, int ranks, int fault)
{
    char text[DT_RULES_TEXT];
    double balance, bytes = 0, most = 0;
    const dt_firing *f;
    dt_rules *rules = NULL;
    int longest, slow;
    dt_result e = dt_rules_open(&rules, ranks);
    if (!e) e = judge(rules, of, ranks);
    if (!e) e = dt_rules_text(rules, text, (int64_t)sizeof text);
    if (e) return dt_rules_close(&rules), e;
    job_summary(j);
    longest = step_durations(of, ranks);
    slow = shares_and_balance(of, ranks, j->loop, &balance);
    for (int i = 0; i < ranks * STEPS; i++) {
        const float *x = of[i / STEPS][i % STEPS];
        bytes += (double)x[SENT], most = fmax(most, (double)x[MEMORY]);
        check(x[SENT] >= of[i / STEPS][1][SENT] && x[SENT] <= of[i / STEPS][1][SENT], "steps send different bytes");
    }
    printf("batch: %d samples, %.0f tokens per second\n", BATCH, BATCH * SEQUENCE * STEPS / j->loop);
    printf("memory of a rank: %.2f MB planned, at most %.2f MB resident, the program itself included\n",
           1e-6 * (double)j->planned, 1e-6 * most);
    printf("bytes sent: %.0f per step, all ranks together\n%s", bytes / STEPS, text);
    printf("the profiler's own cost: %.2f ms per step (p50) with it, %.2f without\nsha256 %s\n",
           1e3 * (double)median(j), 1e3 * (double)median(plain), j->hash);
    check(ranks > 1 ? bytes > 0 : bytes <= 0, "one rank sends, or several do not");
    check(!strcmp(j->hash, plain->hash), "the profiler has changed the weights");
    f = dt_rules_fired(rules, DT_RULE_LOAD_BALANCING);
    check(fault != SLOW_RANK || slow == ranks - 1, "the rank that is slow does not wait least");
    check(fault != SLOW_RANK || (balance < 0.5 && f && f->rank == ranks - 1), "load balance misses the slow rank");
    check(fault != LATE_STEP || longest == LATE, "the late step is not the longest");
    dt_rules_close(&rules);
    return DT_OK;
}

int main(int argc, char **argv)
{
    static numbers all[MOST];
    static job plain, profiled;
    char place[64], line[80];
    float id;
    dt_comm *c = NULL;
    double start = now(), launched;
    int root, ranks, fault = NONE;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("83_report");
    root = !dt_comm_rank(c), ranks = dt_comm_size(c), id = (float)(getpid() % 1000000);
    if (argc == 2) fault = !strcmp(argv[1], "--slow") && ranks > 1 ? SLOW_RANK : !strcmp(argv[1], "--late") * LATE_STEP;
    if (argc > 2 || (argc == 2 && !fault) || MOST % ranks)
        return root ? fprintf(stderr, "83_report: --ranks 1, 2, 4 or 8; --slow (of 2 or more) or --late\n"), 2 : 2;
    e = dt_broadcast(c, &id, 1, 0); /* one place for all ranks */
    snprintf(place, sizeof place, "/tmp/dtrain_report.%.0f", (double)id);
    snprintf(line, sizeof line, "rm -rf %s", place);
    launched = now() - start;
    if (!e) e = train(c, place, fault, 0, &plain);
    if (!e) e = train(c, place, fault, 1, &profiled);
    profiled.init += launched;
    if (!e) e = dt_all_gather(c, &profiled.own[0][0], &all[0][0][0], STEPS * KINDS);
    dt_comm_close(&c);
    if (root && system(line)) check(0, "cannot remove the checkpoints from /tmp");
    if (!e && root) e = report(&profiled, &plain, all, ranks, fault);
    if (e) return dt_fail("83_report");
    if (!root) return 0;
    if (wrong) return fprintf(stderr, "FAILED: %s\n", wrong), 1;
    return printf("ok: the parts of %d steps sum to %.2f s of training loop per rank; the run without a profiler has "
                  "this hash\n", ranks * STEPS, profiled.loop), 0;
}
