/* How far examples/tools/simulate.c is from what this machine does. In each of 7 rounds it is calibrated anew, with one
 * rank and two links, because the speed of a shared machine changes in minutes; then each layout below trains once.
 * Printed are median and spread (highest less lowest) of a step's time, beside the median of the simulated ones, and
 * that of the trivial model: FLOPs over the peak, plus bytes over bandwidth. Layouts with more ranks than cores are
 * marked and do not count. Last, the catalogue's machines beside published runs. Usage: bench_simulate [RUNS]; needs no
 * other file. */
#define DT_COMPILER
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/tools/calibrate.h"
#include "bench.h"

enum { RUNS_MAX = 9, LAYOUTS = 31 };

enum { GPT, WIDE, LLAMA, MODELS };
static const struct {
    const char *name, *options;
} model[MODELS] = {{"gpt", "--model nano --layers 4 --heads 4 --width 128 --sequence 64 --batch 32"},
                   {"wide", "--model nano --layers 2 --heads 4 --width 256 --sequence 128 --batch 16"},
                   {"llama", "--model llama-nano --layers 4 --heads 4 --width 128 --sequence 64 --batch 32"}};
static const struct {
    int ranks, nodes, model;
    const char *options;
} layout[LAYOUTS] = {
    {1, 1, GPT, ""}, {1, 1, GPT, "--micro-batch 8"}, {1, 1, GPT, "--recompute full"}, {1, 1, WIDE, ""}, {1, 1, LLAMA, ""},
    {2, 1, GPT, ""}, {2, 1, GPT, "--micro-batch 8"}, {2, 1, GPT, "--zero 1"}, {2, 1, GPT, "--zero 2"}, {2, 1, GPT, "--zero 3"},
    {2, 1, GPT, "--zero 3 --micro-batch 8 --recompute full"}, {2, 1, WIDE, ""}, {2, 1, WIDE, "--zero 2"},
    {2, 1, LLAMA, "--zero 1"}, {2, 2, GPT, ""}, {2, 2, GPT, "--zero 1"}, {2, 2, GPT, "--zero 3"}, {2, 2, WIDE, ""},
    {2, 1, GPT, "--tensor-shards 2 --tp 2"}, {2, 1, GPT, "--tensor-shards 2 --tp 2 --sequence-parallel"},
    {2, 2, GPT, "--tensor-shards 2 --tp 2"}, {2, 1, GPT, "--context-shards 2 --cp 2"},
    {2, 1, GPT, "--pp 2 --micro-batch 16"}, {2, 1, GPT, "--pp 2 --micro-batch 8"},
    {2, 1, GPT, "--pp 2 --micro-batch 8 --pipeline gpipe"}, {2, 1, GPT, "--pp 2 --micro-batch 8 --pipeline zero-bubble"},
    {2, 1, LLAMA, "--pp 2 --micro-batch 8 --pipeline interleaved --chunks 2"}, {2, 2, GPT, "--pp 2 --micro-batch 8"},
    {2, 1, GPT, "--experts 4 --ep 2"}, {4, 1, GPT, ""}, {4, 2, GPT, "--pp 2 --micro-batch 8"}};

/* A layout's options, with those of its model. */
static const char *options_of(int k)
{
    static char text[300];
    snprintf(text, sizeof text, "%s %s", model[layout[k].model].options, layout[k].options);
    return text;
}

/* A recipe and a layout of options, of tokens from nowhere. */
static dt_result prepare(const char *options, dt_source *source, dt_recipe *recipe, dt_layout *l)
{
    static char text[400];
    char *argv[60] = {NULL}, **list = argv;
    int argc = 1;
    dt_result r;
    snprintf(text, sizeof text, "%s", options);
    argv[0] = text + sizeof text - 1;
    for (char *at = strtok(text, " "); at; at = strtok(NULL, " ")) argv[argc++] = at;
    *recipe = dt_recipe_default(), *l = dt_layout_default();
    recipe->data_shards = 4, recipe->validation = 0;
    l->threads = 1, l->overlap = DT_OVERLAP_OFF, l->output.quiet = 1, l->output.sample_length = 0;
    if ((r = dt_args(&argc, &list, recipe, l)) != DT_OK) return r;
    if (!recipe->model.vocabulary) recipe->model.vocabulary = 256;
    calibrate_source(recipe, source);
    return DT_OK;
}

/* A process of a run: rank 0 prints the median of the steps' seconds. */
static int train(int k, int steps)
{
    static double seconds[1000];
    dt_source source;
    dt_recipe recipe;
    dt_layout l;
    dt_trainer *t = NULL;
    dt_result r = prepare(options_of(k), &source, &recipe, &l);
    if (!r) r = dt_trainer_open(&t, &recipe, &l);
    for (int n = -1; n < steps && !r; n++) {
        dt_step_info info = dt_step_info_zero();
        r = dt_trainer_step(t, &info);
        if (n >= 0) seconds[n] = info.seconds;
    }
    if (!r && dt_trainer_is_root(t)) printf("%.9g\n", median(seconds, steps));
    dt_trainer_close(&t);
    return r ? dt_fail("bench_simulate") : 0;
}

static double run(const char *self, int k, int steps)
{
    char command[500], line[100] = "";
    FILE *f;
    snprintf(command, sizeof command, "'%s' --one %d %d --ranks %d --nodes %d", self, k, steps, layout[k].ranks,
             layout[k].nodes);
    f = popen(command, "r");
    if (f && !fgets(line, sizeof line, f)) *line = 0;
    return f && !pclose(f) && atof(line) > 0 ? atof(line) : (double)NAN;
}

/* Simulated seconds, those of the trivial model, and the share of the peak. */
static dt_result predict(const char *options, int ranks, int nodes, const sim_machine *m, double *simulated,
                         double *trivial, double *mfu)
{
    dt_source source;
    dt_recipe recipe;
    dt_layout l;
    simulation s;
    sim_job j;
    dt_result r = prepare(options, &source, &recipe, &l);
    memset(&j, 0, sizeof j);
    j.recipe = &recipe, j.layout = &l, j.machine = m, j.ranks = ranks, j.per_node = ranks / nodes,
    j.all = ranks <= SIM_ALL;
    if (r) return r;
    r = sim_run(&s, &j);
    *simulated = s.step, *mfu = s.mfu;
    *trivial = s.mfu * s.step + s.sent[0] / ranks * m->link[0].beta_all + s.sent[1] / ranks * m->link[1].beta_all;
    sim_close(&s);
    return r;
}

/* What others reached on machines of the catalogue, beside what this trainer would on the assumptions of
 * sim_machine_of. */
static dt_result published(void)
{
    static const struct {
        const char *name, *type;
        int nodes;
        double mfu;
        const char *options;
    } list[] = {
        {"llm.c, 1.5B on 8 H100", "p5", 1, 47.4,
         "--layers 48 --heads 25 --width 1600 --sequence 1024 --vocabulary 50304 --precision bf16 --batch 1024 "
         "--micro-batch 128 --data-shards 8 --zero 1 --overlap on"},
        {"llm.c, 124M on 8 A100", "p4de", 1, 56,
         "--model 124M --sequence 1024 --vocabulary 50304 --precision bf16 --batch 512 --micro-batch 512 "
         "--data-shards 8 --zero 1 --overlap on"},
        {"Megatron on 6144 H100 (model assumed)", "p5", 768, 47.5,
         "--layers 110 --heads 144 --width 18432 --sequence 4096 --vocabulary 131072 --precision bf16 --tp 8 "
         "--tensor-shards 8 --sequence-parallel --pp 16 --data-shards 64 --batch 6144 --micro-batch 64 --zero 1 "
         "--overlap on"}};
    static cost_catalogue c;
    double step, plain, mfu, fused;
    dt_result r = cost_open(&c, NULL) ? DT_E_DATA : DT_OK;
    printf("MFU %%   published  simulated  with --compile on\n");
    for (size_t k = 0; k < sizeof list / sizeof *list && !r; k++) {
        char more[500];
        sim_machine m;
        sim_machine_of(&m, cost_find(&c, list[k].type, strlen(list[k].type)), DT_PRECISION_BF16);
        snprintf(more, sizeof more, "%s --compile on", list[k].options);
        r = predict(list[k].options, list[k].nodes * m.gpus, list[k].nodes, &m, &step, &plain, &mfu);
        if (!r) r = predict(more, list[k].nodes * m.gpus, list[k].nodes, &m, &step, &plain, &fused);
        if (!r)
            printf("%15.1f %10.1f %10.1f  %s: %s\n", list[k].mfu, 100 * mfu, 100 * fused, list[k].name,
                   list[k].options);
    }
    return r;
}

static int campaign(const char *self, int runs)
{
    static double seconds[3][LAYOUTS][RUNS_MAX], error[2][LAYOUTS], peak[RUNS_MAX], busy[RUNS_MAX];
    const dt_recipe like = dt_recipe_default();
    sim_machine m;
    double share;
    int count = 0;
    for (int n = 0; n < runs; n++) {
        dt_result r = calibrate(self, &like, &m);
        peak[n] = m.peak, busy[n] = m.busy;
        for (int k = 0; k < LAYOUTS && !r; k++) {
            r = predict(options_of(k), layout[k].ranks, layout[k].nodes, &m, &seconds[1][k][n], &seconds[2][k][n],
                        &share);
            if (!r) seconds[0][k][n] = run(self, k, (int)fmin(100, fmax(5, 0.4 / seconds[1][k][n])));
        }
        if (r) return dt_fail("bench_simulate");
        fprintf(stderr, "round %d of %d\n", n + 1, runs);
    }
    printf("products %.1f GFLOP/s (%.1f to", median(peak, runs) / 1e9, peak[0] / 1e9);
    printf(" %.1f), busy neighbour x %.2f (%.2f to", peak[runs - 1] / 1e9, median(busy, runs), busy[0]);
    printf(" %.2f); ms per step, medians of %d rounds\n", busy[runs - 1], runs);
    for (int k = 0; k < MODELS; k++) printf("%s: %s\n", model[k].name, model[k].options);
    printf("ranks nodes   measured spread  simulated  error   trivial  error  layout\n");
    for (int k = 0; k < LAYOUTS; k++) {
        double measured = median(seconds[0][k], runs), simulated = median(seconds[1][k], runs);
        double spread = (seconds[0][k][runs - 1] - seconds[0][k][0]) / measured, trivial = median(seconds[2][k], runs);
        double off = simulated / measured - 1, plain = trivial / measured - 1;
        int over = layout[k].ranks > 2;
        printf("%5d %5d %10.3f %5.0f%% %10.3f %+5.0f%% %9.3f %+5.0f%%  %s %s%s\n", layout[k].ranks, layout[k].nodes,
               1e3 * measured, 100 * spread, 1e3 * simulated, 100 * off, 1e3 * trivial, 100 * plain,
               model[layout[k].model].name, layout[k].options, over ? " (oversubscribed)" : "");
        if (!over) error[0][count] = fabs(off), error[1][count++] = fabs(plain);
    }
    for (int k = 0; k < 2; k++) {
        double middle = median(error[k], count); /* sorts them */
        printf("%s: error of %d layouts: median %.1f %%, worst %.1f %%\n", k ? "trivial" : "simulated", count,
               100 * middle, 100 * error[k][count - 1]);
    }
    return 0;
}

int main(int argc, char **argv)
{
    char self[400];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    int runs = argc > 1 ? atoi(argv[1]) : 7;
    if (argc > 2 && (!strcmp(argv[1], "--links") || !strcmp(argv[1], "--one"))) {
        if (dt_launch(&argc, &argv)) return dt_fail("bench_simulate");
        return argv[1][2] == 'l' ? calibrate_links(argv[2]) : train(atoi(argv[2]), atoi(argv[3]));
    }
    if (n < 0 || runs < 1 || runs > RUNS_MAX)
        return fprintf(stderr, "bench_simulate: the argument is the number of runs, up to 9\n"), 2;
    self[n] = 0;
    return campaign(self, runs) || published();
}
