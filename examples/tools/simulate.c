/* simulate: how long does a step of this model take on that cluster, and where does the time go?
 *
 *     ./build.sh simulate --nodes 64 --instance p5 --model 124M --tp 4 --pp 2 --precision bf16
 *                                             a step, from the trainer's own programs: time, MFU, messages, bubble
 *     ./build.sh simulate .. --search         the ten fastest layouts that fit, and what the planner says
 *     ./build.sh simulate .. --trace FILE --rank 5
 *                                             the timeline of a rank, as the trainer's --timeline writes it
 *     ./build.sh simulate --calibrate FILE    measures this machine; --calibration FILE simulates with it
 *
 * Recipe and layout are the trainer's options; --help lists the simulator's own. No rank runs and no data is read.
 * By hand, in the folder of dtrain.h:
 *     cc -O2 -I. examples/tools/simulate.c -o simulate -lm -lpthread */
#define DT_COMPILER
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../timeline.h"
#include "calibrate.h"
#include "plan.h"

/* ---- options ---- */

#define OPTIONS(F) \
    F(nodes, "N", "nodes of the cluster (1)") \
    F(instance, "TYPE", "type of a node: p5, p4d, .. (p5)") \
    F(instances, "FILE", "a catalogue in place of the built-in one") \
    F(calibration, "FILE", "measured rates in place of the catalogue's") \
    F(calibrate, "FILE", "measure this machine, write FILE, and end") \
    F(per_node, "N", "ranks of a node (the GPUs of the type; with --calibration 1)") \
    F(slow, "RANK=FACTOR", "a rank whose work takes FACTOR times as long; may be repeated") \
    F(rank, "R", "the rank of --trace (up to 8: all) and of the bytes in --json (0)") \
    F(trace, "FILE", "write a timeline for ui.perfetto.dev") \
    F(input_tokens_s, "X", "tokens per second that storage gives to a node (no limit)") \
    F(mtbf_h, "H", "hours between failures of a node (never)") \
    F(save_s, "S", "seconds of a checkpoint (60)") \
    F(interval_s, "S", "seconds between checkpoints (by Young's formula)") \
    F(restart_s, "S", "seconds of a restart (300)")
#define OPTION_ENUM(name, argument, help) OPTION_##name,
#define OPTION_ROW(name, argument, help)  {#name, argument, help},
enum { OPTIONS(OPTION_ENUM) OPTION_COUNT };
static const char *const option[][3] = {OPTIONS(OPTION_ROW)};

typedef struct ask {
    const char *text[OPTION_COUNT]; /* NULL: not given */
    int search, json, every, rank;
    double nodes, mtbf, save, interval, restart, input;
    dt_recipe recipe;
    dt_layout layout;
    sim_machine machine;
    cost_catalogue catalogue;
    const cost_type *type; /* NULL: calibrated */
    sim_job job;
} ask;

static int wrong(const char *format, const char *a, const char *b)
{
    fprintf(stderr, "simulate: "), fprintf(stderr, format, a, b), fprintf(stderr, "\n");
    return 2;
}

/* An option as the user writes it. */
static const char *dashed(int k)
{
    static char name[40];
    snprintf(name, sizeof name, "--%s", option[k][0]);
    for (char *c = name + 2; *c; c++) *c = *c == '_' ? '-' : *c;
    return name;
}

static int help(void)
{
    printf("Usage: simulate [RECIPE AND LAYOUT] [OPTION ..]; --help all adds the trainer's options\n");
    for (int k = 0; k < OPTION_COUNT; k++) {
        char name[60];
        snprintf(name, sizeof name, "%s %s", dashed(k), option[k][1]);
        printf("  %-24s %s\n", name, option[k][2]);
    }
    printf("  %-24s %s\n  %-24s %s\n  %-24s %s\n", "--search", "the ten fastest layouts that fit", "--every",
           "simulate every rank, even those with equal work", "--json", "one object");
    return 0;
}

/* The number of an option within its bounds, or `otherwise`. 0: it is wrong, told. */
static int number(const ask *a, int k, double low, double high, double otherwise, double *to)
{
    const int whole = *option[k][1] == 'N' || *option[k][1] == 'R';
    char range[120];
    *to = a->text[k] ? cost_number(a->text[k]) : otherwise;
    if (!a->text[k] || (*to >= low && *to <= high && (!whole || *to == floor(*to)))) return 1;
    snprintf(range, sizeof range, "%.40s is not a %snumber from %g to %g", a->text[k], whole ? "whole " : "", low, high);
    return wrong("%s %s", dashed(k), range), 0;
}

static int add_slow(ask *a, const char *text)
{
    sim_slow *s = &a->job.slow[a->job.slows];
    char end;
    if (a->job.slows == SIM_SLOW) return wrong("--slow %s: %s", text, "64 ranks at most"), 0;
    if (sscanf(text, "%9d=%lf%c", &s->rank, &s->factor, &end) != 2 || s->rank < 0 || !(s->factor > 0) || s->factor > 1e6)
        return wrong("--slow %s: it is RANK=FACTOR, e.g. 3=1.5%s", text, ""), 0;
    a->job.slows++;
    return 1;
}

/* Takes the simulator's own options out of argv. 0: one is wrong, told. */
static int own_options(ask *a, int *argc, char **argv)
{
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        int k = 0;
        while (k < OPTION_COUNT && strcmp(argv[i], dashed(k))) k++;
        if (!strcmp(argv[i], "--search")) a->search = 1;
        else if (!strcmp(argv[i], "--json")) a->json = 1;
        else if (!strcmp(argv[i], "--every")) a->every = 1;
        else if (k == OPTION_COUNT) argv[kept++] = argv[i];
        else if (i + 1 == *argc) return wrong("%s needs a value%s", argv[i], ""), 0;
        else if (k == OPTION_slow) {
            if (!add_slow(a, argv[++i])) return 0;
        } else a->text[k] = argv[++i];
    }
    argv[ *argc = kept] = NULL;
    return 1;
}

/* The machine: calibrated, or a type of the catalogue. */
static int machine_of(ask *a)
{
    const char *name = a->text[OPTION_instance] ? a->text[OPTION_instance] : "p5", *path = a->text[OPTION_calibration];
    const char *bad = cost_open(&a->catalogue, a->text[OPTION_instances]);
    double per_node;
    if (bad) return wrong("--instances %s: %s", a->text[OPTION_instances], bad), 0;
    if (path && (bad = sim_machine_read(&a->machine, path)) != NULL) return wrong("--calibration %s: %s", path, bad), 0;
    if (!path) {
        a->type = cost_find(&a->catalogue, name, strlen(name));
        if (!a->type || isnan(a->type->teraflops))
            return wrong("--instance %s is not in the catalogue, or has no peak%s: ./build.sh plan --list prints it",
                         name, ""),
                   0;
        sim_machine_of(&a->machine, a->type, a->recipe.precision);
    }
    if (!number(a, OPTION_per_node, 1, 1024, a->machine.gpus, &per_node)) return 0;
    a->machine.gpus = (int)per_node;
    return 1;
}

/* What the recipe lacks for so many ranks: shards of the data, of tensors and of the context, and a batch of whole
 * ones. */
static void assume(ask *a)
{
    dt_recipe *r = &a->recipe;
    const dt_layout *l = &a->layout;
    int64_t dp = dt__max(1, a->job.ranks / dt__max(1, l->tp * l->pp * l->cp)), least = 1;
    int64_t before[] = {r->data_shards, r->tensor_shards, r->context_shards, r->batch};
    while (least < dp) least *= 2;
    r->data_shards = dt__max(r->data_shards, least);
    r->tensor_shards = dt__max(r->tensor_shards, l->tp), r->context_shards = dt__max(r->context_shards, l->cp);
    r->batch = dt__round_up(r->batch, r->data_shards);
    if (r->micro_batch) r->micro_batch = dt__round_up(r->micro_batch, r->data_shards);
    if (r->micro_batch && r->batch % r->micro_batch) r->batch = dt__round_up(r->batch, r->micro_batch);
    if (!r->model.vocabulary) r->model.vocabulary = 50304;
    if (a->json || a->search) return;
    if (before[0] != r->data_shards || before[1] != r->tensor_shards || before[2] != r->context_shards ||
        before[3] != r->batch)
        printf("assumed    --data-shards %lld --tensor-shards %lld --context-shards %lld --batch %lld\n",
               (long long)r->data_shards, (long long)r->tensor_shards, (long long)r->context_shards,
               (long long)r->batch);
}

static int numbers_of(ask *a)
{
    double rank;
    if (!number(a, OPTION_nodes, 1, 16384, 1, &a->nodes) || !number(a, OPTION_rank, 0, 1e6, 0, &rank) ||
        !number(a, OPTION_mtbf_h, 1e-3, 1e9, 0, &a->mtbf) || !number(a, OPTION_save_s, 0, 1e6, 60, &a->save) ||
        !number(a, OPTION_interval_s, 1, 1e9, 0, &a->interval) ||
        !number(a, OPTION_restart_s, 0, 1e6, 300, &a->restart) ||
        !number(a, OPTION_input_tokens_s, 1, 1e18, 0, &a->input))
        return 0;
    a->rank = (int)rank, a->mtbf = a->mtbf * 3600 / a->nodes;
    if (!(a->interval > 0)) a->interval = a->mtbf > 0 ? fmax(1, cost_interval(a->save, a->mtbf)) : 1800;
    a->job.recipe = &a->recipe, a->job.layout = &a->layout, a->job.machine = &a->machine;
    a->job.per_node = a->machine.gpus, a->job.ranks = (int)a->nodes * a->machine.gpus;
    a->job.all = a->every || a->job.ranks <= SIM_ALL;
    if (a->job.ranks > 16384) return wrong("%s: 16384 ranks at most%s", "the cluster is too large", ""), 0;
    if (a->rank >= a->job.ranks)
        return wrong("--rank %s: it is beyond the last rank of the cluster%s", a->text[OPTION_rank], ""), 0;
    for (int k = 0; k < a->job.slows; k++)
        if (a->job.slow[k].rank >= a->job.ranks)
            return wrong("--slow: %s%s", "a rank is beyond the last one of the cluster", ""), 0;
    return 1;
}

/* ---- the answer ---- */

typedef struct answer {
    double step, goodput, tokens_s, dollars; /* dollars: of 1e9 tokens; NAN: no price */
    int starved;
} answer;

static answer answer_of(const ask *a, const simulation *s)
{
    answer w;
    double need = a->input > 0 ? s->tokens / a->nodes / a->input : 0;
    w.starved = need > s->step, w.step = fmax(s->step, need);
    w.goodput = a->mtbf > 0 ? sim_goodput(a->mtbf, a->save, a->interval, a->restart) : 1;
    w.tokens_s = s->tokens / w.step * w.goodput;
    w.dollars = 1e9 / w.tokens_s / 3600 * a->nodes * a->machine.dollars;
    return w;
}

static const sim_rank *rank_of(const simulation *s, int rank)
{
    int at[DT_AXES];
    const dt_mesh *m = &s->program[0].plan->mesh;
    for (int axis = 0; axis < DT_AXES; axis++) {
        int want = sim_at(m, rank, axis), k = 0, like = 0;
        for (; k < s->kept[axis] && s->coordinate[axis][k] != want; k++)
            if (axis != DT_AXIS_DATA ||
                sim_shards(s, m->size[axis], s->coordinate[axis][k]) == sim_shards(s, m->size[axis], want))
                if (s->weight[axis][k] > 1) like = k;
        at[axis] = k < s->kept[axis] ? k : like;
    }
    return &s->rank[sim_index(s, at, 0)];
}

static void print_answer(const ask *a, const simulation *s)
{
    const dt_mesh *m = &s->program[0].plan->mesh;
    answer w = answer_of(a, s);
    double percent = 100 / s->step, weights = (double)s->program[0].plan->net.weights;
    printf("cluster    %g x %d ranks, %s; data %d, pipeline %d, tensor %d, context %d; %d of %d ranks simulated\n",
           a->nodes, a->machine.gpus, a->machine.name, m->size[0], m->size[1], m->size[2], m->size[3], s->ranks,
           a->job.ranks);
    printf("model      %.4g parameters, %.4g tokens per step in %lld micro-batches of each of %lld data shards\n",
           weights, s->tokens, (long long)s->program[0].plan->micros, (long long)a->recipe.data_shards);
    printf("step       %.4g %s%s, %.4g tokens/s, MFU %.1f %%\n", w.step < 1 ? 1e3 * w.step : w.step,
           w.step < 1 ? "ms" : "s", w.starved ? ", input-bound" : "", w.tokens_s, 100 * s->mfu * s->step / w.step);
    printf("time       work %.1f %%, exposed communication %.1f %%, waiting for ranks (bubble) %.1f %%\n",
           percent * s->work, percent * s->exposed, percent * s->idle);
    printf("memory     %.3f GB on rank %d, which has the most%s\n", s->memory / 1e9, s->memory_rank,
           s->memory > 0.9e9 * a->machine.gb ? ": it does not fit" : "");
    printf("bytes      %.6g in nodes, %.6g between nodes, of all ranks in a step\n", s->sent[0], s->sent[1]);
    if (a->mtbf > 0) printf("failures   goodput %.1f %%, a checkpoint every %.0f s\n", 100 * w.goodput, a->interval);
    if (!isnan(w.dollars))
        printf("cost       $%.2f per 1e9 tokens at $%.2f an hour and node\n", w.dollars, a->machine.dollars);
}

static void print_json(const ask *a, const simulation *s)
{
    const sim_program *p = rank_of(s, a->rank)->program;
    answer w = answer_of(a, s);
    printf("{\"step_s\": %.9g, \"tokens_s\": %.9g, \"mfu\": %.9g, \"work_s\": %.9g, \"exposed_s\": %.9g, \"idle_s\": "
           "%.9g, ",
           w.step, w.tokens_s, s->mfu * s->step / w.step, s->work, s->exposed, s->idle);
    printf(
        "\"memory_bytes\": %.0f, \"near_bytes\": %.0f, \"far_bytes\": %.0f, \"rank\": %d, \"rank_sent_bytes\": %.0f, ",
        s->memory, s->sent[0], s->sent[1], a->rank, sim_sent(p, 0) + sim_sent(p, 1));
    printf("\"rank_far_bytes\": %.0f, \"goodput\": %.9g, \"ranks\": %d, \"simulated\": %d", sim_sent(p, 1), w.goodput,
           a->job.ranks, s->ranks);
    if (!isnan(w.dollars)) printf(", \"usd_per_1e9_tokens\": %.9g", w.dollars);
    printf("}\n");
}

/* ---- a trace ---- */

static int trace_rank(FILE *f, const ask *a, const simulation *s, int rank, double from, int first)
{
    const sim_rank *r = rank_of(s, rank);
    const sim_program *p = r->program;
    timeline_bar *bar = DT__NEW(timeline_bar, p->count + 1, "the trace");
    int64_t count = 0;
    for (int64_t k = 0; k < p->count && bar; k++)
        count += timeline_add(bar, count, &p->list[k], k ? &p->list[k - 1] : NULL, r->when + 2 * k);
    if (bar)
        timeline_put_rank(f, first ? "" : ",\n", rank, a->job.ranks, rank / a->job.per_node, bar, count,
                          p->plan->shape.overlap, from);
    dt__free(bar);
    return bar != NULL;
}

/* Of --rank; without it of all ranks, if they are few. */
static int write_trace(const ask *a, const simulation *s, const char *path)
{
    int one = a->text[OPTION_rank] || a->job.ranks > SIM_ALL, first = one ? a->rank : 0, good = 1;
    FILE *f = timeline_check(path) ? NULL : fopen(path, "w");
    if (!f) return wrong("cannot write --trace %s: %s", path, "name another file"), 0;
    timeline_begin(f);
    for (int rank = first; rank <= (one ? first : a->job.ranks - 1); rank++)
        good &= trace_rank(f, a, s, rank, s->begin, rank == first);
    timeline_end(f);
    return (cost_closed(f, path) && good) || (wrong("cannot write --trace %s: %s", path, "is the disk full?"), 0);
}

/* ---- search ---- */

enum { BEST = 10 };
typedef struct found {
    dt_recipe recipe;
    dt_layout layout;
    double step, mfu, memory, work, exposed, idle;
} found;

static void keep_best(found *best, int *count, const ask *a, const simulation *s)
{
    int k = *count < BEST ? (*count)++ : BEST;
    while (k > 0 && best[k - 1].step > s->step) {
        if (k < BEST) best[k] = best[k - 1];
        k--;
    }
    if (k == BEST) return;
    best[k].recipe = a->recipe, best[k].layout = a->layout, best[k].step = s->step, best[k].mfu = s->mfu;
    best[k].memory = s->memory, best[k].work = s->work, best[k].exposed = s->exposed, best[k].idle = s->idle;
}

/* Simulates one layout; keeps it if it fits, which rank 0 alone often tells. 0: not possible; 1: it does not fit; 2: it
 * does. */
static int try_layout(ask *a, found *best, int *count)
{
    simulation s;
    dt_plan *first = NULL;
    double room = isnan(a->machine.gb) ? INFINITY : 0.9e9 * a->machine.gb;
    int got = dt_plan_open(&first, &a->recipe, &a->layout, a->job.ranks, 0) ? 0 : 1;
    int fits = got && (double)dt__memory_of(first->row, first->rows_count).total <= room;
    dt_plan_close(&first);
    if (!fits) return got;
    got = sim_run(&s, &a->job) ? 0 : s.memory <= room ? 2 : 1;
    if (got == 2) keep_best(best, count, a, &s);
    sim_close(&s);
    return got;
}

/* With so many tensor ranks and stages: the levels of ZeRO, recompute, and sequences of a rank's micro-batch. */
static void search_in(ask *a, int64_t tp, int64_t pp, found *best, int *count, int tried[2])
{
    const int64_t dp = a->job.ranks / (tp * pp), batch = a->recipe.batch;
    const dt_recipe recipe = a->recipe;
    int64_t shards = 1;
    while (shards < dp) shards *= 2;
    if (batch % shards) return;
    for (int64_t rows = 1; rows <= 4 && batch % (shards * rows) == 0; rows *= 2)
        for (int full = 0, fits = 0; full < 2 && !fits; full++)
            for (int zero = 0; zero < (dp > 1 ? 4 : 1); zero++) {
                int got;
                a->recipe.data_shards = shards, a->recipe.micro_batch = shards * rows, a->recipe.tensor_shards = tp;
                a->layout.tp = tp, a->layout.pp = pp, a->layout.zero = zero,
                a->layout.recompute = full ? DT_RECOMPUTE_FULL : DT_RECOMPUTE_NONE;
                got = try_layout(a, best, count);
                tried[0] += got > 0, tried[1] += got == 1, fits |= got == 2;
                if (isatty(2)) fprintf(stderr, "\rsearch     %d layouts tried ..", tried[0]);
                a->recipe = recipe;
            }
}

static void print_planner(const ask *a, double weights)
{
    static plan_job j;
    static plan_answer p;
    char text[PLAN_TEXT];
    const dt_model *m = &a->recipe.model;
    plan_job_clear(&j);
    j.n[in_params_b] = weights / 1e9, j.n[in_layers] = (double)m->layers, j.n[in_hidden] = (double)m->width,
    j.n[in_heads] = (double)m->heads;
    j.n[in_seq_len] = (double)a->recipe.sequence, j.n[in_micro_batch] = 1,
    j.n[in_global_batch] = (double)a->recipe.batch;
    j.n[in_cur_nodes] = j.n[in_max_nodes] = a->nodes;
    j.n[in_precision] = a->recipe.precision == DT_PRECISION_BF16   ? COST_AMP_BF16
                        : a->recipe.precision == DT_PRECISION_FP16 ? COST_AMP_FP16
                                                                   : COST_FP32;
    snprintf(j.text[in_instance], sizeof j.text[in_instance], "%s", a->machine.name);
    plan_answer_of(&j, &a->catalogue, &p);
    printf("planner    %s\n", plan_summary(&p, text));
}

/* Why a layout is slower than the best one: what takes most of the difference. */
static const char *reason(const found *b, const found *best)
{
    double work = b->work - best->work, messages = b->exposed - best->exposed, waiting = b->idle - best->idle;
    if (b == best) return "the fastest";
    if (!(b->step > best->step)) return "as fast";
    if (work >= messages && work >= waiting) return "slower by work";
    return messages >= waiting ? "slower by messages" : "slower by waiting for stages and ranks";
}

static int search(ask *a)
{
    static found best[BEST];
    const int64_t heads = dt__max(1, a->recipe.model.heads);
    int count = 0, tried[2] = {0, 0};
    double weights = 0;
    a->job.all = 0;
    for (int64_t tp = 1; tp <= a->machine.gpus && heads % tp == 0 && a->job.ranks % tp == 0; tp *= 2)
        for (int64_t pp = 1; pp <= a->recipe.model.layers + 2 && a->job.ranks % (tp * pp) == 0; pp *= 2)
            search_in(a, tp, pp, best, &count, tried);
    if (isatty(2)) fprintf(stderr, "\r\033[K");
    printf("search     %d layouts tried, %d do not fit in 90 %% of the memory\n", tried[0], tried[1]);
    printf("    tp   pp   dp zero recompute micro-batch     step s   MFU %%  memory GB   reason\n");
    for (int k = 0; k < count; k++) {
        const found *b = &best[k];
        int64_t dp = a->job.ranks / (b->layout.tp * b->layout.pp);
        printf("%6d %4d %4d %4d %9s %11lld %10.4g %7.1f %10.2f   ", (int)b->layout.tp, (int)b->layout.pp, (int)dp,
               (int)b->layout.zero, b->layout.recompute ? "full" : "none",
               (long long)(b->recipe.micro_batch / b->recipe.data_shards), b->step, 100 * b->mfu, b->memory / 1e9);
        printf("%.0f %% work, %.0f %% messages, %.0f %% waiting; %s\n", 100 * b->work / b->step,
               100 * b->exposed / b->step, 100 * b->idle / b->step, reason(b, best));
    }
    if (!count) printf("           none: use more nodes, a smaller model or batch, or GPUs with more memory\n");
    if (count) {
        dt_plan *p = NULL;
        if (!dt_plan_open(&p, &best[0].recipe, &best[0].layout, a->job.ranks, 0)) weights = (double)p->net.weights;
        dt_plan_close(&p);
    }
    if (a->type && weights > 0) print_planner(a, weights);
    return 0;
}

/* ---- the program ---- */

static int run_calibration(const ask *a)
{
    char self[400];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    sim_machine m;
    struct stat is;
    const char *path = a->text[OPTION_calibrate];
    FILE *f;
    if (n < 0) return wrong("cannot find this program%s%s", "", "");
    self[n] = 0;
    if (!stat(path, &is) && is.st_size && sim_machine_read(&m, path))
        return wrong("%s exists and is not a calibration: %s", path, "name another file");
    if ((f = fopen(path, "a")) == NULL) return wrong("cannot write %s: %s", path, "check the folder");
    fclose(f);
    if (calibrate(self, &a->recipe, &m)) return dt_fail("simulate");
    if (!sim_machine_write(&m, path)) return wrong("cannot write %s: %s", path, "is the disk full?");
    printf("calibrated %s: %.4g GFLOP/s in products; a message takes %.3g us + %.3g us/MB in a node, %.3g us + %.3g "
           "us/MB between emulated nodes; two busy ranks work %.2f times as long\n",
           path, m.peak / 1e9, 1e6 * m.link[0].alpha, 1e12 * m.link[0].beta, 1e6 * m.link[1].alpha,
           1e12 * m.link[1].beta, m.busy);
    return 0;
}

int main(int argc, char **argv)
{
    static ask a;
    simulation s;
    int status = 0;
    if (argc > 2 && !strcmp(argv[1], "--links"))
        return dt_launch(&argc, &argv) ? dt_fail("start") : calibrate_links(argv[2]);
    if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) return help();
    a.recipe = dt_recipe_default(), a.layout = dt_layout_default(), cost_begin();
    if (!own_options(&a, &argc, argv)) return 2;
    if (dt_args(&argc, &argv, &a.recipe, &a.layout)) return dt_fail("simulate");
    if (argc > 1) return wrong("what is '%s'? --help lists the options%s", argv[1], "");
    if (a.search && (a.json || a.text[OPTION_trace])) return wrong("%s: leave out %s", "--search", "--json and --trace");
    if (a.text[OPTION_calibrate]) return run_calibration(&a);
    if (!machine_of(&a) || !numbers_of(&a)) return 2;
    assume(&a);
    if (a.search) return search(&a);
    if (sim_run(&s, &a.job)) status = dt_fail("simulate");
    else a.json ? print_json(&a, &s) : print_answer(&a, &s);
    if (!status && a.text[OPTION_trace] && !write_trace(&a, &s, a.text[OPTION_trace])) status = 1;
    sim_close(&s);
    return status;
}
