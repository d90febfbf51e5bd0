/* advice.h: the planner's warnings (tools/plan.h) for a recipe and a layout that are about to run. A companion of
 * dtrain.h: include it after that.
 *
 *     dt_probe advice;
 *     dt_advice_attach(&layout, &advice);        before dt_dry_run_attach and dt_args
 *
 * gives a program with --dry-run (dry_run.h) these warnings before the plan, and the option --facts 'k=v;k=v', with what
 * a layout does not say: instance (else this machine), procs_per_node, deadline_h, spot, .. (./build.sh plan --help). */
#ifndef DTRAIN_ADVICE_H
#define DTRAIN_ADVICE_H

#include "dry_run.h"
#include "tools/plan.h"

/* Bytes of weights, and of all, that a replica takes on a rank with one data shard; how often rank 0 of the layout
 * computes its first segment in a step. */
static dt_result advice_sizes(const dt_recipe *recipe, const dt_layout *layout, int ranks, double *weights, double *all,
                              double *units)
{
    dt_layout whole = *layout;
    dt_plan *its = NULL;
    int64_t count = 0;
    const dt_row *row;
    const dt_instr *instr;
    dt_result r;
    whole.tp = whole.pp = whole.cp = whole.ep = 1, whole.zero = whole.zero_group = 0;
    *weights = *all = *units = 0;
    if ((r = dt_plan_open(&its, recipe, &whole, (int)recipe->data_shards, 0)) != DT_OK) return r;
    row = dt_plan_memory(its, &count);
    for (int64_t i = 0; i < count; i++) {
        *all += (double)row[i].bytes;
        if (row[i].purpose == DT_FOR_WEIGHTS) *weights += (double)row[i].bytes;
    }
    dt_plan_close(&its);
    if ((r = dt_plan_open(&its, recipe, layout, ranks, 0)) != DT_OK) return r;
    instr = dt_plan_program(its, &count);
    for (int64_t i = 0, first = -1; i < count; i++) {
        if (instr[i].op != DT_FORWARD) continue;
        if (first < 0) first = instr[i].segment;
        *units += instr[i].segment == first;
    }
    dt_plan_close(&its);
    return DT_OK;
}

/* This machine as an instance of so many ranks that share its free memory. */
static cost_type advice_here(int ranks)
{
    cost_type t;
    char line[200];
    double kb = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %lf", &kb) != 1) continue;
    if (f) fclose(f);
    memset(&t, 0, sizeof t);
    strcpy(t.name, "this machine"), strcpy(t.accel, "rank");
    t.count = ranks, t.bf16 = 1, t.gb = kb > 0 ? kb * 1024e-9 / ranks : 1e9;
    t.teraflops = t.gbit = t.host_gib = t.nvme_gb = t.dollars = (double)NAN;
    return t;
}

/* What the layout says goes over what --facts says. */
static void advice_job(plan_job *j, const dt_recipe *recipe, const dt_layout *layout, int ranks)
{
    dt_mesh m;
    const dt_checkpoints *c = &layout->checkpoint;
    if (dt_mesh_of(layout, ranks, 0, &m) != DT_OK) return;
    j->n[in_given_gpus] = ranks, j->n[in_given_tp] = m.size[DT_AXIS_TENSOR], j->n[in_given_pp] = m.size[DT_AXIS_PIPELINE];
    j->n[in_micro_batch] = (double)(recipe->micro_batch ? recipe->micro_batch : recipe->batch) / m.size[DT_AXIS_DATA];
    j->n[in_global_batch] = (double)recipe->batch, j->n[in_seq_len] = (double)recipe->sequence;
    j->n[in_heads] = (double)recipe->model.heads;
    if (layout->zero && m.size[DT_AXIS_TENSOR] * m.size[DT_AXIS_PIPELINE] == 1) j->n[in_given_strategy] = SHARDED_DP;
    j->n[in_ckpt_cfg] = c->place != NULL;
    if (c->interval > 0 && recipe->steps > 0 && !plan_has(j, in_ckpt_interval_min)) /* minutes, where hours are known */
        j->n[in_ckpt_interval_min] = 60 * j->n[in_ref_hours] * (double)c->interval / (double)recipe->steps;
    j->n[in_offload] = layout->offload, j->n[in_act_ckpt] = layout->recompute != DT_RECOMPUTE_NONE;
}

static dt_result advice_print(const dt_recipe *recipe, const dt_layout *layout, int ranks, const char *facts)
{
    static plan_job j;
    static plan_answer a;
    static plan_list wrong;
    cost_type here;
    const cost_type *type = NULL;
    double weights, all, units;
    int fired = 0;
    dt_result r = advice_sizes(recipe, layout, ranks, &weights, &all, &units);
    if (r) return r;
    plan_job_clear(&j);
    if (facts) plan_job_facts(&j, facts, &wrong);
    here = advice_here((int)fmin(plan_or(&j, in_procs_per_node, ranks), ranks));
    if (*j.text[in_instance] && !(type = plan_type(&j, ""))) return dt_error(DT_E_USAGE, "--facts: choose another instance");
    if (!type) type = &here, j.n[in_delayed_init] = 1;
    advice_job(&j, recipe, layout, ranks);
    if (!plan_has(&j, in_cur_nodes)) j.n[in_cur_nodes] = ceil((double)ranks / type->count);
    j.n[in_params_b] = weights / 4e9, j.n[in_given_mb] = fmax(units, 1);
    j.n[in_replica_fits] = all <= cost_usable * 1e9 * type->gb;
    a.type = type, a.price = (double)NAN, plan_on(&j, &a);
    for (int i = 0; i < wrong.count; i++) printf("advice   %s\n", wrong.line[i]);
    for (int k = 0; k < PLAN_CODES; k++)
        if (k != W_MB_DIVIDE && plan_warned(&a, k)) /* units of a step always divide its batch */
            fired++, printf("advice   %s: %s\n", plan_warning[k][0], plan_warning[k][1]);
    if (!fired) printf("advice   no warning of the planner fires\n");
    return DT_OK;
}

/* dt_probe.call: when --dry-run is given, before its plan. */
static dt_result advice_call(dt_probe *p, dt_trainer *t, dt_moment when, const dt_step_info *info)
{
    const char *dry = NULL;
    dt_recipe recipe;
    dt_result r = DT_OK;
    int rank, ranks;
    (void)info;
    for (const dt_probe *q = p->layout->output.probes; q; q = q->next)
        if (q->option[0].name && !strcmp(q->option[0].name, "dry-run")) dry = q->option[0].value;
    if (when != DT_AT_OPEN || !dry || !dry_run_asked(dry, &rank, &ranks) || !dt_trainer_is_root(t)) return DT_OK;
    recipe = *p->recipe;
    if (!recipe.model.segments && !recipe.model.vocabulary && !recipe.source) r = dry_run_vocabulary(&recipe);
    return r ? r : advice_print(&recipe, p->layout, ranks, p->option[0].value);
}

static inline void dt_advice_attach(dt_layout *layout, dt_probe *p)
{
    static const dt_probe_option facts = {"facts", "K=V;..", "for the warnings of --dry-run: instance, deadline_h, spot, ..", NULL};
    dt_probe **last = &layout->output.probes;
    memset(p, 0, sizeof *p);
    p->call = advice_call, p->option[0] = facts;
    while (*last) last = &(*last)->next;
    *last = p;
}

#endif
