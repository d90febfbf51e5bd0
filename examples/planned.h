/* planned.h: for examples, what the plan of rank 0 says before a run: bytes of activations that it keeps, and bytes
 * that it sends in a step along the pipeline. Neither other ranks nor data are needed; recipe->model.vocabulary must be
 * set. Include it after dtrain.h. */
#ifndef PLANNED_H
#define PLANNED_H

static dt_result planned(const dt_recipe *recipe, const dt_layout *layout, int ranks, int64_t *activations,
                         int64_t *sent)
{
    dt_plan *plan = NULL;
    int64_t rows = 0, count = 0;
    dt_result e = dt_plan_open(&plan, recipe, layout, ranks, 0);
    const dt_row *row = e ? NULL : dt_plan_memory(plan, &rows);
    const dt_instr *instr = e ? NULL : dt_plan_program(plan, &count);
    *activations = *sent = 0;
    for (int64_t i = 0; i < rows; i++)
        if (row[i].purpose == DT_FOR_ACTIVATIONS) *activations += row[i].bytes;
    for (int64_t i = 0; i < count; i++) *sent += instr[i].sent[DT_AXIS_PIPELINE];
    dt_plan_close(&plan);
    return e;
}

#endif
