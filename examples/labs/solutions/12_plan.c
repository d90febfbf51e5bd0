#include "lab.h"
#include <math.h>

static double hours_of(const lab_job *job, int gpus, int nodes)
{
    return gpus == 1 ? job->hours : job->hours / (gpus * (nodes > 1 ? job->efficiency : 0.9));
}

static int fits(const lab_job *job, const lab_type *t, double bytes) { return job->params_b * bytes <= 0.9 * t->gb; }

/* A layout of n nodes in *a. 0: it does not fit. */
static int on_nodes(const lab_job *job, const lab_type *t, int n, lab_answer *a)
{
    int gpus = n * t->gpus;
    double sharded[] = {16, 4 + 12.0 / gpus, 2 + 14.0 / gpus, 16.0 / gpus};
    a->nodes = n, a->zero = 0, a->tp = a->pp = 1, a->dp = gpus;
    if (a->strategy == USE_REPLICAS) return 1;
    if (a->strategy == USE_SHARDS) {
        for (a->zero = 1; a->zero < 4; a->zero++)
            if (fits(job, t, sharded[a->zero])) return 1;
        return 0;
    }
    for (a->tp = 2; a->tp < t->gpus && !fits(job, t, 16.0 / a->tp);) a->tp *= 2;
    if (!fits(job, t, 16.0 / a->tp)) {
        for (a->pp = 2; a->pp <= n && (n % a->pp || !fits(job, t, 16.0 / (a->tp * a->pp)));) a->pp++;
        if (a->pp > n) return 0;
    }
    a->dp = gpus / (a->tp * a->pp);
    return 1;
}

/* The fewest nodes that are in time, else the most that fit. */
static void scale(const lab_job *job, const lab_type *t, lab_answer *a)
{
    lab_answer last = *a;
    last.strategy = USE_NOTHING;
    for (int n = 1; n <= job->max_nodes; n++) {
        if (!on_nodes(job, t, n, a)) continue;
        a->hours = hours_of(job, n * t->gpus, n), a->late = a->hours > job->deadline;
        last = *a;
        if (!a->late) break;
    }
    *a = last;
}

static void on_type(const lab_job *job, const lab_type *t, lab_answer *a)
{
    int whole = fits(job, t, 16);
    a->nodes = a->tp = a->pp = a->dp = 1;
    if (job->gpu_use >= 0 && job->gpu_use < 70 && job->io_wait >= 50) a->strategy = USE_NO_MORE;
    else if (job->trials > 1 && whole) {
        int nodes = (job->trials + t->gpus - 1) / t->gpus;
        a->strategy = USE_JOBS, a->nodes = nodes < job->max_nodes ? nodes : job->max_nodes;
        a->hours = job->hours * ceil((double)job->trials / (a->nodes * t->gpus)), a->late = a->hours > job->deadline;
    } else if (whole && job->hours <= job->deadline) a->strategy = USE_ONE_GPU, a->hours = job->hours;
    else {
        a->strategy = whole ? USE_REPLICAS : job->may_shard ? USE_SHARDS : USE_CUTS;
        scale(job, t, a);
    }
}

/* Is x better than y? */
static int better(const lab_job *job, const lab_answer *x, const lab_answer *y)
{
    if ((x->strategy == USE_NOTHING) != (y->strategy == USE_NOTHING)) return y->strategy == USE_NOTHING;
    if (x->late != y->late) return y->late;
    if (x->late && x->hours != y->hours) return x->hours < y->hours;
    if (!x->late && x->nodes != y->nodes) return x->nodes < y->nodes;
    return job->type[x->type].price < job->type[y->type].price;
}

void decide(const lab_job *job, lab_answer *answer)
{
    for (int i = 0; i < job->types; i++) {
        lab_answer a = {0};
        a.type = i;
        on_type(job, &job->type[i], &a);
        if (!i || better(job, &a, answer)) *answer = a;
    }
}
