/* 46_budget: a model does not fit into its memory. What makes it fit, and does that change what it learns?
 *
 * What you learn
 *     - DT_MEM_LIMIT gives each rank a budget. The trainer plans its memory before the first step. If the plan is
 *       larger, the trainer refuses and says how much is missing and what takes most. Waiting does not help.
 *     - Recompute keeps fewer activations, ZeRO 1 shards the optimizer's state over the ranks. The plan says before a
 *       run what each saves.
 *     - Neither changes a bit of the loss: they are layouts, not recipes.
 *     - Recompute costs time, ZeRO 1 costs none, so ZeRO 1 comes first: the simulator says so for a model that needs
 *       them. Recompute costs more than a third there, because a backward takes less time than two forwards.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 46_budget.c -o 46_budget -lm -lpthread
 *     ./46_budget --ranks 2                      (1, 2 or 4 ranks for 4 data shards; one rank has nothing to shard)
 *
 * What it prints
 *     without a limit: 15123864 bytes; DT_MEM_LIMIT=14210840
 *     as it is: refused
 *     recompute full: 11471768 bytes fit, loss 5.464576
 *     ZeRO 1: 13198744 bytes fit, loss 5.464576
 *     both: 9546648 bytes fit, loss 5.464576
 *     1558M on 8 H100, simulated:
 *     as it is         51.0 GB per rank, 1.304 s a step
 *     recompute full   30.8 GB per rank, 1.792 s a step
 *     ZeRO 1           40.1 GB per rank, 1.291 s a step
 *     both             19.9 GB per rank, 1.779 s a step
 *     ok: 1 way refused, 3 fit with loss 5.464576; simulated time: recompute +37 %, ZeRO 1 -1 %
 *
 * Predict first: with 4 ranks instead of 2, which of the numbers of bytes fall?
 * Exercise: find, by trying, the smallest limit for 4 ranks with recompute, ZeRO 3 and offload. What does the plan say?
 *
 * Read on: 50_pipeline_by_hand.c for models cut over ranks, 43_memory.c for recompute and offload; ./build.sh simulate
 * does for any model and up to 16384 ranks what simulate() does here, --search finds the layouts that fit. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include "tools/simulate.h"

enum { SHARDS = 4 };
static const struct {
    const char *name;
    int recompute, zero;
} ways[4] = {{"as it is", DT_RECOMPUTE_NONE, 0},
             {"recompute full", DT_RECOMPUTE_FULL, 0},
             {"ZeRO 1", DT_RECOMPUTE_NONE, 1},
             {"both", DT_RECOMPUTE_FULL, 1}};

/* Trains two steps. *bytes: planned for this rank. */
static dt_result train(const char *text, int way, int64_t *bytes, float *loss)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.model.layers = 8, recipe.model.heads = 4, recipe.model.width = 64;
    recipe.data = text, recipe.sequence = 64, recipe.steps = 2, recipe.validation = 0;
    recipe.data_shards = SHARDS, recipe.batch = 2 * SHARDS;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0;
    l.recompute = ways[way].recompute, l.zero = ways[way].zero;
    e = dt_trainer_open(&t, &recipe, &l);
    if (e) return e;
    *bytes = dt_trainer_memory(t).total;
    e = dt_trainer_run(t, &info);
    *loss = info.loss;
    dt_trainer_close(&t);
    return e;
}

/* What each way costs the largest GPT-2 on a node of 8 H100, which the simulator computes from the same plans. */
static dt_result simulate(double step[4])
{
    static cost_catalogue c;
    dt_recipe recipe = dt_recipe_default();
    sim_machine m;
    dt_result e = cost_open(&c, NULL) ? DT_E_DATA : DT_OK;
    recipe.model = dt_model_gpt2("1558M"), recipe.model.vocabulary = 50304, recipe.precision = DT_PRECISION_BF16;
    recipe.sequence = 1024, recipe.data_shards = 8, recipe.batch = 256, recipe.micro_batch = 64;
    if (!e) sim_machine_of(&m, cost_find(&c, "p5", 2), recipe.precision);
    printf("1558M on 8 H100, simulated:\n");
    for (int way = 0; way < 4 && !e; way++) {
        dt_layout l = dt_layout_default();
        simulation s;
        sim_job job = {&recipe, &l, &m, 8, 8, 0, {{0, 0}}, 0};
        l.recompute = ways[way].recompute, l.zero = ways[way].zero;
        e = sim_run(&s, &job), step[way] = s.step;
        if (!e) printf("%-16s%5.1f GB per rank, %.3f s a step\n", ways[way].name, s.memory / 1e9, s.step);
        sim_close(&s);
    }
    return e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX", limit[32];
    dt_comm *c = NULL;
    int root, ranks, good = 1;
    double step[4];
    int64_t whole = 0, less, bytes;
    float loss = 0, first = 0;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("46_budget");
    root = !dt_comm_rank(c), ranks = dt_comm_size(c);
    dt_comm_close(&c); /* the trainer opens its own */
    if (argc > 1 || SHARDS % ranks) return fprintf(stderr, "46_budget: the option is --ranks 1, 2 or 4\n"), 2;
    e = prose_temporary(text, 50000);
    if (!e) e = train(text, 0, &whole, &first);
    if (!e) e = train(text, 1, &less, &loss);
    if (e) return dt_fail("46_budget");
    snprintf(limit, sizeof limit, "%lld", (long long)(whole - (whole - less) / 4));
    setenv("DT_MEM_LIMIT", limit, 1); /* or in the shell: DT_MEM_LIMIT=16M ./06_train .. */
    if (root) printf("without a limit: %lld bytes; DT_MEM_LIMIT=%s\n", (long long)whole, limit);
    for (int way = 0; way < (ranks > 1 ? 4 : 2) && !e; way++) {
        e = train(text, way, &bytes, &loss);
        good = good && (e == DT_E_MEMORY) == !way && (!way || (loss >= first && loss <= first));
        if (root && !way) printf("%s: refused\n", ways[way].name), fprintf(stderr, "%s\n", dt_last_error());
        else if (root && !e) printf("%s: %lld bytes fit, loss %.6f\n", ways[way].name, (long long)bytes, (double)loss);
        if (e == DT_E_MEMORY) e = DT_OK;
    }
    remove(text);
    if (!e && root) e = simulate(step), good = good && step[1] > step[0] && step[3] > step[2];
    if (e) return dt_fail("46_budget");
    if (!good) return fprintf(stderr, "FAILED: another way fits, another loss, or recompute costs no time\n"), 1;
    if (root)
        printf("ok: 1 way refused, %d fit with loss %.6f; simulated time: recompute %+.0f %%, ZeRO 1 %+.0f %%\n",
               ranks > 1 ? 3 : 1, (double)first, 100 * (step[1] / step[0] - 1), 100 * (step[2] / step[0] - 1));
    return 0;
}
