/* Grader of lab 12: jobs are drawn, the learner's process answers them all, and then the planner does. */
#include "../grade.h"
#include "../../tools/plan.h"
#include "lab.h"

enum { RULES = 10, JOBS = 40 };
enum { ONE, TIME, LATE, SHARD, NOTHING, TRIALS, STARVED, CUT, TYPES, ALL };
static const char *const rule_names[RULES] = {
    "one GPU is enough", "replicas in time", "too late on all nodes", "shards",
    "nothing fits",      "trials",           "starved or not",        "cuts",
    "several types",     "all rules"};
static const char *const type_names[] = {"p4d", "p4de", "p5", "g5.12xlarge", "g5.48xlarge", "p5en"};
static const char *const strategy_names[] = {"nothing", "one GPU", "replicas", "shards", "cuts", "jobs", "no more"};

static lab_job jobs[RULES][JOBS];
static lab_answer answers[RULES][JOBS];
static int names[RULES][JOBS][3]; /* types by place in type_names */

/* A job of a rule. Odd parts of numbers keep both sides of a comparison apart. */
static void draw_job(int rule, lab_job *j, int *name, const cost_catalogue *c)
{
    int kind = rule == ALL ? lab_draw(ONE, TYPES) : rule == TYPES ? lab_draw(0, 1) ? TIME : SHARD : rule;
    int large = kind == SHARD || kind == CUT;
    memset(j, 0, sizeof *j);
    j->params_b = kind == NOTHING ? lab_draw(250, 400)
                  : large         ? lab_draw(50, 600) / 10.0 + 0.0371
                                  : lab_draw(2, 11) / 10.0 + 0.0171;
    j->hours = lab_draw(20, 300) + 0.137, j->efficiency = lab_draw(60, 95) / 100.0;
    j->deadline = kind == ONE ? j->hours * lab_draw(101, 300) / 100.0 : kind == LATE ? 0.71 : lab_draw(3, 90) + 0.0613;
    j->max_nodes = kind == LATE || kind == CUT ? 1 << lab_draw(0, 4) : kind == NOTHING ? 1 : lab_draw(1, 40);
    j->trials = kind == TRIALS ? lab_draw(2, 90) : 1, j->may_shard = kind != CUT;
    j->gpu_use = j->io_wait = -1;
    if (kind == STARVED) j->gpu_use = lab_draw(40, 95), j->io_wait = lab_draw(20, 80);
    j->types = rule == TYPES || (rule == ALL && lab_draw(0, 1)) ? 3 : 1;
    for (int i = 0; i < j->types; i++) {
        const cost_type *t;
        name[i] = (lab_draw(0, 1) + 2 * i) % 6;
        t = cost_find(c, type_names[name[i]], strlen(type_names[name[i]]));
        j->type[i].gpus = t->count, j->type[i].gb = t->gb, j->type[i].price = 10 * (i + lab_draw(1, 3)) + i + 0.5;
    }
}

static void program(lab_comm *c, void *in, void *out)
{
    for (int k = 0; k < RULES * JOBS; k++) {
        lab_job job = ((lab_job *)in)[k];
        lab_answer answer = {0};
        LAB_ITS(decide)(&job, &answer);
        ((lab_answer *)out)[k] = answer;
    }
}

/* The planner's answer. */
static void expect(const lab_job *j, const int *name, const cost_catalogue *c, lab_answer *a, plan_answer *its)
{
    static const lab_strategy of[] = {USE_ONE_GPU, USE_JOBS, USE_REPLICAS, USE_SHARDS, USE_CUTS,    USE_CUTS,
                                      USE_CUTS,    USE_CUTS, USE_CUTS,     USE_CUTS,   USE_NO_MORE, USE_NOTHING};
    static plan_job job;
    char *types = job.text[in_instance], *prices = job.text[in_price_node_h];
    plan_job_clear(&job);
    for (int i = 0; i < j->types; i++) {
        size_t t = strlen(types), p = strlen(prices);
        snprintf(types + t, PLAN_TEXT - t, "%s%s", i ? "|" : "", type_names[name[i]]);
        snprintf(prices + p, PLAN_TEXT - p, "%s%.17g", i ? "|" : "", j->type[i].price);
    }
    job.n[in_params_b] = j->params_b, job.n[in_ref_hours] = j->hours, job.n[in_ref_gpus] = 1;
    job.n[in_deadline_h] = j->deadline, job.n[in_node_eff] = j->efficiency, job.n[in_max_nodes] = j->max_nodes;
    job.n[in_n_trials] = j->trials, job.n[in_mp_family] = j->may_shard ? 1 : 2;
    if (j->gpu_use >= 0) job.n[in_gpu_util_pct] = j->gpu_use, job.n[in_io_wait_pct] = j->io_wait;
    plan_answer_of(&job, c, its);
    memset(a, 0, sizeof *a);
    a->strategy = of[its->out[out_strategy]];
    for (int i = 0; i < j->types; i++)
        if (!strcmp(its->instance, type_names[name[i]])) a->type = i;
    a->nodes = its->out[out_nodes], a->zero = its->out[out_shard], a->dp = its->out[out_dp];
    a->tp = its->out[out_tp], a->pp = its->out[out_pp], a->hours = its->num[num_est_hours];
    a->late = plan_warned(its, W_DEADLINE_MISS);
}

static int same(const lab_answer *x, const lab_answer *y)
{
    if (x->strategy != y->strategy || y->strategy == USE_NOTHING || y->strategy == USE_NO_MORE)
        return x->strategy == y->strategy;
    return x->type == y->type && x->nodes == y->nodes && x->zero == y->zero && x->tp == y->tp && x->pp == y->pp &&
           x->dp == y->dp && !!x->late == y->late && fabs(x->hours - y->hours) <= 1e-6 * y->hours;
}

static void tell(const char *whose, const lab_answer *a)
{
    unsigned s = (unsigned)a->strategy;
    lab_note("%-9s %s, type %d, %d nodes, zero %d, tp %d x pp %d x dp %d, %.6g h%s", whose,
             s <= USE_NO_MORE ? strategy_names[s] : "?", a->type, a->nodes, a->zero, a->tp, a->pp, a->dp, a->hours,
             a->late ? ", late" : "");
}

static void grade(int rule, const cost_catalogue *c)
{
    static plan_answer its;
    lab_answer want;
    int good = 0, first = -1;
    for (int k = 0; k < JOBS; k++) {
        expect(&jobs[rule][k], names[rule][k], c, &want, &its);
        if (same(&answers[rule][k], &want)) good++;
        else if (first < 0) first = k;
    }
    if (lab_ok(first < 0, "%s: %d of %d jobs", rule_names[rule], good, JOBS)) return;
    const lab_job *j = &jobs[rule][first];
    lab_note(
        "job: %.6g billion parameters, %.6g h on a GPU, due in %.6g h, efficiency %g, at most %d nodes, trials %d%s",
        j->params_b, j->hours, j->deadline, j->efficiency, j->max_nodes, j->trials,
        j->may_shard ? "" : ", must be cut");
    if (j->gpu_use >= 0) lab_note("GPUs used to %g %%, io wait %g %%", j->gpu_use, j->io_wait);
    for (int i = 0; i < j->types; i++)
        lab_note("type %d: %d GPUs of %g GB, %g dollars an hour", i, j->type[i].gpus, j->type[i].gb, j->type[i].price);
    tell("yours:", &answers[rule][first]);
    expect(j, names[rule][first], c, &want, &its);
    tell("expected:", &want);
    for (int i = 0; i < its.why.count; i++) lab_note("because: %s", its.why.line[i]);
    for (int i = 0; i < its.rejected.count && i < 3; i++) lab_note("not: %s", its.rejected.line[i]);
}

int main(int argc, char **argv)
{
    static cost_catalogue c;
    lab_begin("12_plan", program, argc, argv);
    if (cost_open(&c, NULL)) return 1;
    for (int r = 0; r < RULES; r++) for (int k = 0; k < JOBS; k++) draw_job(r, &jobs[r][k], names[r][k], &c);
    lab_run(1, jobs, sizeof jobs, answers, sizeof answers);
    for (int r = 0; r < RULES; r++) grade(r, &c);
    return lab_end(0, NULL);
}
