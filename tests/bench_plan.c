/* How long plans take: of the 124M model, T = 1024, for the first, a middle and the last of 1 to 1,024 ranks, tensor by
 * pipeline by data parallel with ZeRO 1. No rank runs. Usage: bench_plan; needs no other file. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "bench.h"

int main(void)
{
    static const struct { int ranks, tp, pp; } job[] = {{1, 1, 1}, {8, 1, 1}, {8, 2, 2}, {64, 4, 2}, {256, 4, 4}, {1024, 4, 4}, {1024, 8, 8}};
    printf("%6s %4s %4s %14s %14s %16s\n", "ranks", "tp", "pp", "instructions", "ms per plan", "MB of memory");
    for (int i = 0; i < (int)(sizeof job / sizeof *job); i++) {
        double ms[9];
        int64_t count = 0, rows = 0, bytes = 0;
        for (int k = 0; k < 9; k++) {
            dt_recipe recipe = dt_recipe_default();
            dt_layout layout = dt_layout_default();
            dt_plan *plan = NULL;
            double start = dt__now();
            recipe.model = dt_model_gpt2("124M");
            recipe.model.heads = 16, recipe.model.width = 768;
            recipe.model.vocabulary = 50257, recipe.sequence = 1024, recipe.data_shards = 128, recipe.batch = recipe.micro_batch = 128;
            recipe.tensor_shards = 8;
            layout.tp = job[i].tp, layout.pp = job[i].pp, layout.zero = job[i].ranks > 1;
            if (dt_plan_open(&plan, &recipe, &layout, job[i].ranks, k % 3 * (job[i].ranks - 1) / 2)) return dt_fail("bench_plan");
            ms[k] = 1e3 * (dt__now() - start);
            (void)dt_plan_program(plan, &count);
            bytes = 0;
            for (const dt_row *row = dt_plan_memory(plan, &rows), *end = row + rows; row < end; row++) bytes += row->most;
            dt_plan_close(&plan);
        }
        printf("%6d %4d %4d %14lld %14.2f %16.1f\n", job[i].ranks, job[i].tp, job[i].pp, (long long)count, median(ms, 9), (double)bytes / 1e6);
    }
    return 0;
}
