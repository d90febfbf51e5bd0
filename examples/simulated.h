/* simulated.h: for examples, a step of a GPT-2 on a cluster of the catalogue: the trainer's own programs, run against
 * each other by tools/simulate.h, which must be included before it. Gradients are fp32, computing is in bf16. */
#ifndef SIMULATED_H
#define SIMULATED_H

typedef struct gpt { /* batch: texts of a step, in `micros` micro-batches; GPUs, and those of a node */
    int64_t layers, width, heads, sequence, batch, micros;
    int gpus, per_node, tp, pp, overlap;
} gpt;

/* The links inside nodes (outside 0) or between them: seconds of a message, bytes per second. */
static inline void simulated_link(sim_machine *m, int outside, double alpha, double bytes)
{
    m->link[outside].alpha = m->link[outside].hop = alpha;
    m->link[outside].beta = m->link[outside].beta_all = 1 / bytes;
}

/* Only the numbers of the result are left, not its ranks. step NAN: it failed, with a sentence. */
static simulation simulated(const sim_machine *m, const gpt *g)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    sim_job job = {&recipe, &layout, m, g->gpus, g->per_node, 0, {{0, 0}}, 0};
    simulation s, numbers;
    recipe.model = dt_model_gpt2("124M"), recipe.model.vocabulary = 50304;
    recipe.model.layers = g->layers, recipe.model.width = g->width, recipe.model.heads = g->heads;
    recipe.precision = DT_PRECISION_BF16, recipe.sequence = g->sequence;
    recipe.batch = g->batch, recipe.micro_batch = g->batch / g->micros;
    recipe.data_shards = g->gpus / (g->tp * g->pp), recipe.tensor_shards = g->tp;
    layout.tp = g->tp, layout.pp = g->pp, layout.overlap = g->overlap ? DT_OVERLAP_ON : DT_OVERLAP_OFF;
    if (sim_run(&s, &job)) s.step = (double)NAN, fprintf(stderr, "simulated: %s\n", dt_last_error());
    numbers = s;
    sim_close(&s);
    return numbers;
}

#endif
