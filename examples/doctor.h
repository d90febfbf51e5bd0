/* doctor.h: why are many ranks barely faster than one? A companion of dtrain.h: include it after that.
 *
 *     dt_probe doctor;
 *     dt_doctor_attach(&layout, &doctor);        before dt_args
 *
 * gives a program the option --doctor: after step 9, or the last step of 4 or more, it prints the answers to five
 * questions, in order, because an earlier answer makes the later ones wrong; then it trains on, to the same bits. The
 * bounds are in section Doctor of reference.md. dt_doctor() gives the numbers to a program (80_doctor.c). */
#ifndef DTRAIN_DOCTOR_H
#define DTRAIN_DOCTOR_H

#include <ctype.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum dt_branch {
    DT_BRANCH_TRANSPORT, DT_BRANCH_DATA, DT_BRANCH_BATCH, DT_BRANCH_OVERLAP, DT_BRANCH_PLACEMENT, DT_BRANCH_COUNT
} dt_branch;
static const char *const doctor_branches[] = {"none", "transport", "data", "batch", "overlap", "placement"}; /* -1 .. */
enum { DOCTOR_TEXT = 480 };
typedef struct dt_finding {
    int32_t fires;
    int32_t rank;             /* the rank it is about; -1: all */
    double measured, bound;   /* the number that decides, and its bound */
    char text[DOCTOR_TEXT];   /* what was measured */
    char advice[DOCTOR_TEXT]; /* what to do; empty when it does not fire */
} dt_finding;

/* Times are medians over steps, in seconds per step. */
typedef struct dt_diagnosis {
    int32_t first; /* dt_branch: the first that fires is the main finding; -1: none does */
    int32_t ranks, nodes, steps;
    double seconds;  /* of a step */
    double work;     /* of the median rank */
    double data;     /* of the rank that waits longest for samples */
    double exposed;  /* waiting for gradients and weights, of the rank that waits least: others wait for it */
    double exchange; /* 2 (n-1) alpha for each 25 MB, and bytes sent / rate, inside nodes and between */
    double alpha[2], rate[2]; /* inside a node, between nodes: seconds per message, bytes per second; 0: no such link */
    double speedup;           /* work of all ranks / seconds */
    double break_even; /* batch from which n data-parallel ranks beat one: work = exchange / (n-1); 0: no exchange */
    double worthwhile; /* batch from which 80 % of their time is work: work per rank = 4 exchange */
    double alone, together; /* GFLOP/s of rank 0 on a matrix product, alone and while all ranks compute one */
    dt_finding finding[DT_BRANCH_COUNT];
} dt_diagnosis;
enum { DT_DIAGNOSIS_TEXT = 6000 };

/* ---- what is measured ---- */

/* Of one step, seconds: all; waiting for data; work; waiting for gradients and gathered weights; sending inside
 * segments. Bytes: of gradients and weights; of these to other nodes; of tensor groups to other nodes. */
enum { DOCTOR_STEP, DOCTOR_DATA, DOCTOR_WORK, DOCTOR_EXPOSED, DOCTOR_WITHIN, DOCTOR_SENT, DOCTOR_FAR, DOCTOR_CROSSED,
       DOCTOR_KINDS };
enum { DOCTOR_STEPS = 8 };
typedef struct doctor_steps {
    double pulse[DOCTOR_STEPS][DOCTOR_KINDS]; /* a ring of the last steps: where their time went */
    int64_t steps, buckets;                   /* so far, the first, which is cold, included; sums of the last one */
} doctor_steps;

static double doctor_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void doctor_keep(doctor_steps *s, const dt_step_info *i)
{
    double *pulse = s->pulse[(s->steps + DOCTOR_STEPS - 1) % DOCTOR_STEPS];
    s->buckets = i->reductions;
    if (!s->steps++) return;
    pulse[DOCTOR_STEP] = i->seconds, pulse[DOCTOR_DATA] = i->data_seconds, pulse[DOCTOR_WORK] = i->work_seconds;
    pulse[DOCTOR_EXPOSED] = i->gradient_seconds, pulse[DOCTOR_WITHIN] = i->within_seconds;
    pulse[DOCTOR_SENT] = (double)i->gradient_bytes, pulse[DOCTOR_FAR] = (double)i->gradient_far;
    pulse[DOCTOR_CROSSED] = (double)i->tensor_far;
}

/* Best rate of one thread in GFLOP/s on a 384^3 product, in a quarter of a second. */
static dt_result doctor_product(double *gflops)
{
    enum { SIDE = 384 };
    double best = 1e9, begin = doctor_now();
    dt_result r = DT_OK;
    for (int i = 0; i < 8 && !r && (!i || doctor_now() < begin + 0.25); i++) {
        dt_graph *g = NULL;
        dt_tensor x;
        double start;
        if ((r = dt_graph_open(&g, 1)) != DT_OK) break;
        x = dt_full(g, dt_shape2(SIDE, SIDE), 1.0f);
        start = doctor_now();
        dt_matmul(g, x, x, 0, 0);
        if (doctor_now() - start < best) best = doctor_now() - start;
        r = dt_graph_result(g);
        dt_graph_close(&g);
    }
    *gflops = 2e-9 * (double)SIDE * (double)SIDE * (double)SIDE / best;
    return r;
}

/* Seconds of an all-reduce of `count` floats: the fastest of several, on the slowest rank. */
static dt_result doctor_link_time(dt_comm *c, float *data, int64_t count, int tries, float *seconds)
{
    dt_result r = DT_OK;
    *seconds = 1e30f;
    for (int i = 0; i < tries && !r; i++) {
        double start;
        r = dt_barrier(c);
        start = doctor_now();
        if (!r) r = dt_all_reduce(c, data, count, DT_MAX);
        if (doctor_now() - start < (double)*seconds) *seconds = (float)(doctor_now() - start);
    }
    return r ? r : dt_all_reduce(c, seconds, 1, DT_MAX);
}

/* The link of a communicator: an all-reduce of S bytes over n ranks is 2 (n - 1) messages of S / n bytes. */
static dt_result doctor_link_measure(dt_comm *c, double *alpha, double *beta)
{
    enum { LARGE = 8192, LARGER = 262144 };
    float few = 0, many = 0;
    int64_t count = LARGE, n = dt_comm_size(c);
    double bytes[2], seconds[2];
    void *memory = NULL;
    dt_result r = dt_comm_alloc(c, 4 * LARGER, &memory);
    if (!r) r = doctor_link_time(c, (float *)memory, 1, 8, &few);
    if (!r) r = doctor_link_time(c, (float *)memory, count, 2, &many);
    if (!r && many < 5e-3f) r = doctor_link_time(c, (float *)memory, count = LARGER, 5, &many);
    if (r) return r;
    bytes[0] = 4.0 / (double)n, bytes[1] = 4.0 * (double)count / (double)n;
    seconds[0] = (double)few / (2.0 * (double)(n - 1)), seconds[1] = (double)many / (2.0 * (double)(n - 1));
    *beta = (seconds[1] - seconds[0]) / (bytes[1] - bytes[0]);
    if (*beta < 1e-12) *beta = 1e-12;
    *alpha = seconds[0] - *beta * bytes[0];
    if (*alpha < 0) *alpha = 0;
    return r;
}

/* The link inside nodes, then the one between the first ranks of nodes; the slowest of several links. */
static dt_result doctor_links_measure(dt_comm *c, dt_diagnosis *d)
{
    float link[4] = {0, 0, 0, 0}; /* alpha, beta inside nodes; alpha, beta between them */
    int rank = dt_comm_rank(c), first = 1;
    dt_result r = DT_OK;
    for (int q = 0; q < rank; q++) first = first && dt_comm_node(c, q) != dt_comm_node(c, rank);
    for (int far = 0; far < 2 && !r; far++) {
        dt_comm *some = NULL;
        double alpha, beta;
        r = dt_comm_split(c, far ? !first : dt_comm_node(c, rank), &some);
        if (!r && dt_comm_size(some) > 1 && (!far || first) && (r = doctor_link_measure(some, &alpha, &beta)) == DT_OK)
            link[2 * far] = (float)alpha, link[2 * far + 1] = (float)beta;
        dt_comm_close(&some);
        if (!r) r = dt_barrier(c);
    }
    if (!r) r = dt_all_reduce(c, link, 4, DT_MAX);
    for (int i = 0; i < 2; i++) {
        d->alpha[i] = (double)link[2 * i];
        d->rate[i] = link[2 * i + 1] > 0.0f ? 1.0 / (double)link[2 * i + 1] : 0.0;
    }
    return r;
}

/* What a rank reports to all. */
typedef struct doctor_rank {
    double pulse[DOCTOR_STEPS][DOCTOR_KINDS];
    double gflops, alone; /* rate of matrix products: while all ranks compute one; on rank 0 alone */
    char machine[8];    /* the same on ranks of one machine */
    char engine[64];    /* between nodes */
    uint64_t cores[16]; /* cores that it may use; none: not known */
    int32_t node, threads, stage, buckets, units, overlap;
    int32_t efa, limited; /* 1: there is an adapter; an emulated link */
} doctor_rank;

/* The first `bytes` bytes of a file, or fewer; returns how many. */
static size_t doctor_read(const char *path, char *text, size_t bytes)
{
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, bytes, f) : 0;
    if (f) fclose(f);
    return n;
}

/* Is there an Elastic Fabric Adapter among the devices of this folder? Amazon's number as a vendor is 0x1d0f. */
static int doctor_has_efa(const char *folder)
{
    char path[1000], vendor[6];
    glob_t all;
    int found = 0;
    snprintf(path, sizeof path, "%.900s/*/device/vendor", folder);
    if (glob(path, 0, NULL, &all)) return 0;
    for (size_t i = 0; i < all.gl_pathc && !found; i++)
        found = doctor_read(all.gl_pathv[i], vendor, 6) == 6 && !memcmp(vendor, "0x1d0f", 6);
    globfree(&all);
    return found;
}

/* The cores that this rank may use, from a mask in hexadecimal whose last digit has cores 0 to 3. */
static void doctor_cores(uint64_t cores[16])
{
    FILE *f = fopen("/proc/thread-self/status", "r");
    char line[4096] = "";
    int bit = 0;
    while (f && fgets(line, sizeof line, f) && strncmp(line, "Cpus_allowed:", 13)) continue;
    if (f) fclose(f);
    if (strncmp(line, "Cpus_allowed:", 13)) return;
    for (size_t at = strlen(line); at-- > 13 && bit < 1024;) {
        char digit[2] = {line[at], 0};
        if (!isxdigit((unsigned char)*digit)) continue;
        cores[bit / 64] |= (uint64_t)strtoul(digit, NULL, 16) << bit % 64;
        bit += 4;
    }
}

/* This rank's report. */
static dt_result doctor_look(const dt_probe *p, dt_trainer *t, dt_comm *c, doctor_rank *v)
{
    const doctor_steps *s = (const doctor_steps *)p->user;
    const char *rate = getenv("DT_LINK_RATE");
    dt_mesh m = dt_plan_mesh(dt_trainer_plan(t));
    int64_t shards = p->recipe->data_shards, ranks = m.size[DT_AXIS_DATA];
    dt_result r = dt_barrier(c);
    memset(v, 0, sizeof *v);
    memcpy(v->pulse, s->pulse, sizeof v->pulse);
    v->node = dt_comm_node(c, dt_comm_rank(c)), v->stage = m.at[DT_AXIS_PIPELINE], v->buckets = (int32_t)s->buckets;
    v->threads = (int32_t)p->layout->threads, v->overlap = p->layout->overlap == DT_OVERLAP_ON;
    v->units = (int32_t)((shards / ranks + (m.at[DT_AXIS_DATA] < shards % ranks)) * p->recipe->batch /
                         p->recipe->micro_batch);
    v->limited = rate && strtod(rate, NULL) > 0.0, v->efa = doctor_has_efa("/sys/class/infiniband");
    snprintf(v->engine, sizeof v->engine, "%s", dt_comm_network(c));
    if (doctor_read("/proc/sys/kernel/random/boot_id", v->machine, sizeof v->machine) < sizeof v->machine)
        snprintf(v->machine, sizeof v->machine, "%d", v->node);
    doctor_cores(v->cores);
    return r ? r : doctor_product(&v->gflops); /* all ranks compute one */
}

/* ---- what follows; every rank has the same numbers and so the same findings ---- */

typedef struct doctor_case {
    const doctor_rank *rank; /* (ranks) */
    int ranks, steps;
    int data;             /* parallel ranks */
    int emulated;         /* are the nodes emulated on one machine? */
    double batch, bucket; /* samples per step, bytes */
    double idle;          /* share of a pipeline's time, by formula */
    double left;          /* seconds of an exchange that the backward pass, two thirds of the work, cannot hide */
    double crowd;         /* threads per core on the machine with the most of them, which has so many */
    int threads, cores;
    double *scratch; /* (ranks) */
    dt_diagnosis *d;
} doctor_case;

static int doctor_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* The lower median of n numbers, which are sorted. */
static double doctor_middle(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, doctor_order);
    return x[(n - 1) / 2];
}

enum { DOCTOR_OF_LEAST = -4, DOCTOR_OF_MIDDLE, DOCTOR_OF_MOST, DOCTOR_OF_ALL };

/* The median over steps of a rank, or of one statistic over the ranks: least, median, most or sum. */
static double doctor_pulse(const doctor_case *x, int kind, int of)
{
    double step[DOCTOR_STEPS];
    for (int s = 0; s < x->steps; s++) {
        double sum = 0.0;
        if (of >= 0) step[s] = x->rank[of].pulse[s][kind];
        if (of >= 0) continue;
        for (int q = 0; q < x->ranks; q++) sum += x->scratch[q] = x->rank[q].pulse[s][kind];
        step[s] = doctor_middle(x->scratch, x->ranks);
        if (of == DOCTOR_OF_LEAST) step[s] = x->scratch[0];
        if (of == DOCTOR_OF_MOST) step[s] = x->scratch[x->ranks - 1];
        if (of == DOCTOR_OF_ALL) step[s] = sum;
    }
    return doctor_middle(step, x->steps);
}

/* Bytes to other nodes through one link: a node's, but an emulated link is one of each rank. */
static double doctor_far(const doctor_case *x)
{
    double most = 0.0;
    for (int q = 0; q < x->ranks; q++) {
        double bytes = 0.0;
        for (int p = x->emulated ? q : 0; p < (x->emulated ? q + 1 : x->ranks); p++)
            if (x->rank[p].node == x->rank[q].node) bytes += doctor_pulse(x, DOCTOR_FAR, p);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static void doctor_times(doctor_case *x)
{
    dt_diagnosis *d = x->d;
    double sent = doctor_pulse(x, DOCTOR_SENT, DOCTOR_OF_MOST), far = doctor_far(x);
    double near = sent - doctor_pulse(x, DOCTOR_FAR, DOCTOR_OF_MOST);
    double rounds = 1.0 + (double)(int64_t)(sent / 25e6);
    d->seconds = doctor_pulse(x, DOCTOR_STEP, DOCTOR_OF_MOST);
    d->work = doctor_pulse(x, DOCTOR_WORK, DOCTOR_OF_MIDDLE);
    d->data = doctor_pulse(x, DOCTOR_DATA, DOCTOR_OF_MOST);
    d->exposed = doctor_pulse(x, DOCTOR_EXPOSED, DOCTOR_OF_LEAST);
    d->speedup = doctor_pulse(x, DOCTOR_WORK, DOCTOR_OF_ALL) / d->seconds;
    d->together = x->rank[0].gflops, d->alone = x->rank[0].alone;
    x->left = 0.0;
    if (x->data == 1) return;
    d->exchange = rounds * (2.0 * (x->data - 1) * d->alpha[far > 0.0]);
    if (near > 0.0 && d->rate[0] > 0.0) d->exchange += near / d->rate[0];
    if (far > 0.0 && d->rate[1] > 0.0) d->exchange += far / d->rate[1];
    d->break_even = x->batch * d->exchange / ((x->data - 1) * d->work);
    d->worthwhile = x->batch * 4.0 * d->exchange / d->work;
    if (d->exchange > 2.0 / 3.0 * d->work) x->left = d->exchange - 2.0 / 3.0 * d->work;
}

static void doctor_crowd(doctor_case *x)
{
    x->crowd = 0.0, x->threads = x->cores = 0;
    for (int q = 0; q < x->ranks; q++) {
        uint64_t set[16] = {0};
        int works = 0, has = 0;
        for (int p = 0; p < x->ranks; p++) {
            if (memcmp(x->rank[p].machine, x->rank[q].machine, sizeof x->rank->machine)) continue;
            works += x->rank[p].threads;
            for (int i = 0; i < 16; i++) set[i] |= x->rank[p].cores[i];
        }
        for (int i = 0; i < 16; i++) has += __builtin_popcountll((unsigned long long)set[i]);
        if (has && (double)works / has > x->crowd) x->crowd = (double)works / has, x->threads = works, x->cores = has;
    }
}

/* Writes what a finding says. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void doctor_say(char text[DOCTOR_TEXT], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(text, DOCTOR_TEXT, format, args);
    va_end(args);
}

static dt_finding *doctor_find(doctor_case *x, int branch, int fires, int rank, double measured, double bound)
{
    dt_finding *f = &x->d->finding[branch];
    f->fires = fires, f->rank = rank, f->measured = measured, f->bound = bound;
    return f;
}

static void doctor_judge_transport(doctor_case *x)
{
    static const double bounds[2] = {2e7, 1.25e7};
    const dt_diagnosis *d = x->d;
    const doctor_rank *first = x->rank;
    const char *engine = first->engine;
    int worst = d->rate[1] > 0.0 && !(d->rate[0] > 0.0 && d->rate[0] / bounds[0] < d->rate[1] / bounds[1]);
    int slow = d->rate[worst] > 0.0 && d->rate[worst] < bounds[worst], one = -1;
    int efa = strstr(engine, "libfabric") && !strstr(engine, "efa");
    char link[2][DOCTOR_TEXT] = {"", ""};
    dt_finding *f;
    for (const doctor_rank *v = first; v < first + x->ranks; v++) {
        efa = efa && v->efa;
        if (!x->emulated && v->node != first->node && !memcmp(v->machine, first->machine, sizeof v->machine))
            one = (int)(v - first);
    }
    for (int i = 0; i < 2; i++)
        if (d->rate[i] > 0.0)
            doctor_say(link[i], "; %s %.1f us, %.4g MB/s (bound %g MB/s)", i ? "between nodes" : "inside a node",
                      1e6 * d->alpha[i], 1e-6 * d->rate[i], 1e-6 * bounds[i]);
    f = doctor_find(x, DT_BRANCH_TRANSPORT, slow || efa || one >= 0, slow || efa ? -1 : one, d->rate[worst],
                 bounds[worst]);
    doctor_say(f->text, "selected provider is %s%s%s%s",
              *engine ? engine : x->ranks > 1 ? "shared memory" : "none, there is one rank",
              *engine ? ", shared memory inside nodes" : "", link[0], link[1]);
    if (efa)
        doctor_say(f->advice, "an Elastic Fabric Adapter is present but not used: set DT_FABRIC=efa, and run `fi_info "
                  "-p efa` (the container needs its software, and the security group must admit itself). Try "
                  "DT_FABRIC=efa in front of the same command");
    else if (slow)
        doctor_say(f->advice, "the link is far slower than a machine's: look for %sa slow interface (DT_INTERFACE), "
                  "and a limit of the instance or the container. Try the same command with%s",
                  first->limited ? "DT_LINK_RATE, which is set, " : "",
                  first->limited ? "out DT_LINK_RATE" : " DT_INTERFACE=NAME in front of it");
    else if (one >= 0)
        doctor_say(f->advice, "ranks 0 and %d are on one machine, but on two nodes: start them in one container, "
                  "without DT_NODES, so that they share memory. Try --nodes 1", one);
}

static void doctor_judge_data(doctor_case *x)
{
    const dt_diagnosis *d = x->d;
    double share = d->data / d->seconds;
    int who = 0;
    dt_finding *f;
    for (int q = 1; q < x->ranks; q++)
        if (doctor_pulse(x, DOCTOR_DATA, q) > doctor_pulse(x, DOCTOR_DATA, who)) who = q;
    f = doctor_find(x, DT_BRANCH_DATA, share > 0.2 && d->data > 1e-3, who, share, 0.2);
    doctor_say(f->text, "rank %d waits longest for samples: %.2f ms of a step of %.2f, %.0f %% (bound 20 %%)", who,
              1e3 * d->data, 1e3 * d->seconds, 100.0 * share);
    if (f->fires)
        doctor_say(f->advice, "load samples faster: token shards (./build.sh tokenizer) for text, a local disk or a "
                  "streaming file system, less work in the source's fetch. Try ./build.sh tokenizer TEXT "
                  "-o DIR --shards DIR/NAME.bin, then --data DIR/NAME.bin");
}

static void doctor_judge_batch(doctor_case *x)
{
    const dt_diagnosis *d = x->d;
    double share = d->work / (d->work + x->left);
    int idle = x->idle > 0.5;
    dt_finding *f = doctor_find(x, DT_BRANCH_BATCH, idle || share < 0.5, -1, idle ? 1.0 - x->idle : share, 0.5);
    if (x->data == 1) doctor_say(f->text, "no ranks are data parallel: nothing is exchanged once per step");
    else
        doctor_say(f->text, "%.2f ms of work per rank and step, %.2f of exchange by alpha and beta: with the best "
                  "overlap work is %.0f %% (bound 50 %%). %d ranks beat one above %.1f samples a step, and work 80 %% "
                  "of their time above %.1f; now %g", 1e3 * d->work, 1e3 * d->exchange, 100.0 * share, x->data,
                  d->break_even, d->worthwhile, x->batch);
    if (idle)
        doctor_say(f->advice, "the pipeline is idle for (p-1)/(m+p-1) = %.0f %% of the time: use more units m, by a "
                  "larger --batch in micro-batches of the same size. Try --batch %.0f", 100.0 * x->idle,
                  2.0 * x->batch);
    else if (f->fires)
        doctor_say(f->advice, "do more work per exchange: --batch %.0f, or %.0f micro-batches of %g (a recipe choice: "
                  "other bits); or use fewer ranks", d->worthwhile,
                  (double)(int64_t)(d->worthwhile / x->batch) + 1.0, x->batch);
}

static void doctor_judge_overlap(doctor_case *x)
{
    const dt_diagnosis *d = x->d;
    double extra = d->exposed > x->left ? d->exposed - x->left : 0.0, share = extra / d->seconds, each;
    int buckets = 0, crowded = x->crowd > 1.0, on = x->rank[0].overlap;
    dt_finding *f = doctor_find(x, DT_BRANCH_OVERLAP, x->data > 1 && share > 0.2 && extra > 1e-3 && !crowded, -1, share,
                             0.2);
    if (x->data == 1) {
        doctor_say(f->text, "nothing to overlap");
        return;
    }
    for (int q = 0; q < x->ranks; q++) buckets = x->rank[q].buckets > buckets ? x->rank[q].buckets : buckets;
    each = 2.0 * (x->data - 1) * d->alpha[d->rate[1] > 0.0];
    doctor_say(f->text, "%.2f ms of exchange exposed, %.2f by max(0, %.2f - 2/3 x %.2f): %.0f %% of the step too much "
              "(bound 20 %%%s). Overlap is %s; %d buckets of up to %.0f bytes, %.2f ms each for alpha",
              1e3 * d->exposed, 1e3 * x->left, 1e3 * d->exchange, 1e3 * d->work, 100.0 * share,
              crowded ? ", not meaningful while ranks share cores" : "", on ? "on" : "off", buckets, x->bucket,
              1e3 * each);
    if (f->fires)
        doctor_say(f->advice, "%s%s%s", on ? "smaller buckets let sums begin earlier: try --bucket 1000000"
                  : "hide it: try --overlap on, with a core for it on each rank",
                  buckets * each > 0.3 * d->exposed ? "; messages are too small for alpha: --bucket 25000000" : "",
                  d->exposed > 3.0 * d->exchange ? "; it takes over 3 times what the links need: ranks are late" : "");
}

/* Slowdown of the slowest rank: its time over the median time, of the work within its stage or of a matrix product. */
static double doctor_slowest(const doctor_case *x, int *who)
{
    double most = 1.0;
    *who = 0;
    for (int q = 0; q < x->ranks; q++) {
        double work = doctor_pulse(x, DOCTOR_WORK, q) / x->rank[q].units, product = 1.0 / x->rank[q].gflops;
        int peers = 0;
        for (int p = 0; p < x->ranks; p++)
            if (x->rank[p].stage == x->rank[q].stage)
                x->scratch[peers++] = doctor_pulse(x, DOCTOR_WORK, p) / x->rank[p].units;
        work /= doctor_middle(x->scratch, peers);
        for (int p = 0; p < x->ranks; p++) x->scratch[p] = 1.0 / x->rank[p].gflops;
        product /= doctor_middle(x->scratch, x->ranks);
        if (product > work) work = product;
        if (work > most) most = work, *who = q;
    }
    return most;
}

static void doctor_judge_placement(doctor_case *x)
{
    const dt_diagnosis *d = x->d;
    double crossed = doctor_pulse(x, DOCTOR_CROSSED, DOCTOR_OF_MOST);
    double within = doctor_pulse(x, DOCTOR_WITHIN, DOCTOR_OF_LEAST) / d->seconds;
    int who;
    double slowest = doctor_slowest(x, &who);
    dt_finding *f;
    if (crossed > 0.0) f = doctor_find(x, DT_BRANCH_PLACEMENT, 1, -1, crossed, 0.0);
    else if (x->crowd > 1.0) f = doctor_find(x, DT_BRANCH_PLACEMENT, 1, -1, x->crowd, 1.0);
    else f = doctor_find(x, DT_BRANCH_PLACEMENT, slowest > 3.0, who, slowest, 3.0);
    doctor_say(f->text, "tensor groups send %.3g MB a step to other nodes (bound 0), exchanges inside layers take %.0f "
              "%% of it; %d threads on %d cores (bound 1 each); rank %d takes %.1f times as long as the median rank "
              "(bound 3); rank 0 computes %.3g GFLOP/s alone, %.3g with all others", 1e-6 * crossed, 100.0 * within,
              x->threads, x->cores, who, slowest, d->alone, d->together);
    if (crossed > 0.0)
        doctor_say(f->advice, "keep tensor groups inside nodes: --order DPT, and a --tp that divides the ranks of a "
                  "node; put pipeline stages or data-parallel ranks between nodes. Try --order DPT");
    else if (x->crowd > 1.0)
        doctor_say(f->advice, "ranks share cores: use fewer ranks or --threads, or bind them (mpirun --bind-to core, "
                  "srun --cpu-bind). Try --threads 1");
    else if (f->fires)
        doctor_say(f->advice, "all wait for rank %d: look for another program on its cores, a slow or hot processor, "
                  "DT_ISA; or leave that machine out. Try `top -d 1` there, beside the same command", who);
}

/* A pipeline's share of idle time, by formula. */
static double doctor_idle(const dt_probe *p, int data)
{
    const dt_layout *l = p->layout;
    int64_t units = (p->recipe->data_shards + data - 1) / data * p->recipe->batch / p->recipe->micro_batch;
    int64_t chunks = l->pipeline == DT_INTERLEAVED && l->pp > 1 ? l->chunks : 1;
    double bubble = (double)(l->pp - 1) / (l->pipeline == DT_ZERO_BUBBLE ? 3.0 : 1.0);
    return bubble / ((double)chunks * (double)units + bubble);
}

static void doctor_judge(doctor_case *x)
{
    dt_diagnosis *d = x->d;
    doctor_times(x);
    doctor_crowd(x);
    doctor_judge_transport(x);
    doctor_judge_data(x);
    doctor_judge_batch(x);
    doctor_judge_overlap(x);
    doctor_judge_placement(x);
    d->first = -1;
    for (int i = DT_BRANCH_COUNT; i-- > 0;)
        if (d->finding[i].fires) d->first = i;
}

/* A text of DT_DIAGNOSIS_TEXT bytes that grows; what does not fit is left out. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void doctor_add(char *text, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, DT_DIAGNOSIS_TEXT - used, format, args);
    va_end(args);
}

/* Adds words in lines of at most 118 columns. */
static void doctor_wrap(char *text, int indent, const char *words)
{
    for (int n, column = indent; *words; words += n, words += strspn(words, " ")) {
        n = (int)strcspn(words, " ");
        if (column + 1 + n > 118) doctor_add(text, "\n%*s", indent, ""), column = indent;
        doctor_add(text, "%s%.*s", column > indent ? " " : "", n, words);
        column += (column > indent) + n;
    }
    doctor_add(text, "\n");
}

static void doctor_text(const dt_diagnosis *d, char *text)
{
    enum { INDENT = 22 };
    *text = 0;
    doctor_add(text, "doctor   %d rank%s on %d node%s, %d steps of %.2f ms: %.2f of work, %.2f of exchange exposed, "
               "%.2f waiting for data;\n         the work of %.2f ranks\n", d->ranks, d->ranks == 1 ? "" : "s",
               d->nodes, d->nodes == 1 ? "" : "s", d->steps, 1e3 * d->seconds, 1e3 * d->work, 1e3 * d->exposed,
               1e3 * d->data, d->speedup);
    for (int i = 0; i < DT_BRANCH_COUNT; i++) {
        const dt_finding *f = &d->finding[i];
        doctor_add(text, "  %d %-9s  %-5s   ", i + 1, doctor_branches[1 + i], f->fires ? "FIRES" : "ok");
        doctor_wrap(text, INDENT, f->text);
        if (!f->fires) continue;
        doctor_add(text, "%*sdo: ", INDENT, "");
        doctor_wrap(text, INDENT + 4, f->advice);
    }
    doctor_add(text, "finding  %s\n", doctor_branches[1 + d->first]);
}

/* Looks at up to 8 last steps, without the trainer's first, and measures the links by all-reduces of up to 1 MB, for a
 * second or two. text (NULL: none) has room for DT_DIAGNOSIS_TEXT bytes: a line per branch with what was measured, the
 * bound and the verdict, then what to do. Collective, between steps; changes no bit. DT_E_USAGE: fewer than 4 steps. */
static inline dt_result dt_doctor(dt_probe *p, dt_trainer *t, dt_diagnosis *d, char *text)
{
    const doctor_steps *s = p ? (const doctor_steps *)p->user : NULL;
    dt_comm *c;
    doctor_rank own, *all;
    doctor_case x;
    int ranks;
    dt_result r;
    if (!s || !t || !d) return dt_error(DT_E_USAGE, "dt_doctor: pass an attached probe, its trainer and a diagnosis");
    memset(d, 0, sizeof *d);
    memset(&x, 0, sizeof x);
    if (s->steps < 4)
        return dt_error(DT_E_USAGE, "dt_doctor: %lld steps were made: make 4 or more, it looks at all but the first",
                        (long long)s->steps);
    if ((c = dt_trainer_comm(t)) == NULL) return DT_E_PEER;
    ranks = dt_comm_size(c);
    all = (doctor_rank *)calloc((size_t)ranks, sizeof own + sizeof *x.scratch);
    if (!all) return dt_error(DT_E_MEMORY, "no memory for the diagnosis of %d ranks: ask fewer", ranks);
    x.d = d, x.rank = all;
    x.scratch = (double *)(void *)(all + ranks);
    d->ranks = x.ranks = ranks;
    d->nodes = dt_comm_nodes(c);
    d->steps = x.steps = s->steps > DOCTOR_STEPS ? (int)DOCTOR_STEPS : (int)s->steps - 1;
    x.data = dt_plan_mesh(dt_trainer_plan(t)).size[DT_AXIS_DATA];
    x.emulated = !strcmp(dt_comm_network(c), "an emulated network");
    x.batch = (double)p->recipe->batch, x.bucket = (double)p->layout->bucket;
    x.idle = doctor_idle(p, x.data);
    r = doctor_look(p, t, c, &own);
    if (!r) r = doctor_links_measure(c, d);
    if (!r && !dt_comm_rank(c)) r = doctor_product(&own.alone); /* the others wait */
    if (!r) r = dt_all_gather(c, (float *)(void *)&own, (float *)(void *)all, (int64_t)sizeof own / 4);
    if (!r) doctor_judge(&x);
    free(all);
    if (!r && text) doctor_text(d, text);
    return r;
}

/* ---- --doctor ---- */

static dt_result doctor_open(dt_probe *p)
{
    if (p->option[0].value && p->recipe->steps < 4)
        return dt_error(DT_E_USAGE, "--doctor looks at 3 steps after the first: --steps %lld is below 4",
                        (long long)p->recipe->steps);
    p->user = calloc(1, sizeof(doctor_steps));
    return p->user ? DT_OK : dt_error(DT_E_MEMORY, "no memory for the doctor");
}

/* Keeps the step, and once enough steps have been measured says what they show. */
static dt_result doctor_step(dt_probe *p, dt_trainer *t, const dt_step_info *info)
{
    doctor_steps *s = (doctor_steps *)p->user;
    char text[DT_DIAGNOSIS_TEXT];
    dt_diagnosis d;
    dt_result r;
    int last = info->step == p->recipe->steps && s->steps >= 3 && s->steps < DOCTOR_STEPS;
    doctor_keep(s, info);
    if (!p->option[0].value || (s->steps != DOCTOR_STEPS + 1 && !last)) return DT_OK;
    r = dt_doctor(p, t, &d, text);
    if (r || !dt_trainer_is_root(t)) return r;
    printf("%s", text);
    fflush(stdout);
    return DT_OK;
}

/* dt_probe.call */
static dt_result doctor_call(dt_probe *p, dt_trainer *t, dt_moment when, const dt_step_info *info)
{
    if (when == DT_AT_OPEN) return doctor_open(p);
    if (when == DT_AT_STEP) return doctor_step(p, t, info);
    if (when == DT_AT_CLOSE) free(p->user), p->user = NULL;
    return DT_OK;
}

/* Gives the programs of this layout the option --doctor. *p must live as long as the trainer. */
static inline void dt_doctor_attach(dt_layout *layout, dt_probe *p)
{
    static const dt_probe_option doctor = {
        "doctor", NULL, "after 9 steps, say why ranks are hardly faster than one", NULL};
    dt_probe **last = &layout->output.probes;
    memset(p, 0, sizeof *p);
    p->call = doctor_call, p->option[0] = doctor;
    while (*last) last = &(*last)->next;
    *last = p;
}

#endif
