/* dry_run.h: the plan of any rank of any number of ranks. A companion of dtrain.h: include it after that.
 *
 *     dt_probe dry;
 *     dt_dry_run_attach(&layout, &dry);          before dt_args
 *
 * gives a program the option --dry-run RANK:RANKS: dt_trainer_open prints the memory and the step program of this rank,
 * by dt_plan_open, and is DT_E_HELP. No rank runs. With --vocabulary no data is read, either. */
#ifndef DTRAIN_DRY_RUN_H
#define DTRAIN_DRY_RUN_H

#include <stdio.h>
#include <string.h>

#define DRY_RUN_NAME(name) #name,
static const char *const dry_run_names[] = {DT_INSTRUCTIONS(DRY_RUN_NAME)};

/* By dt_purpose; what is only bookkeeping is not shown. */
static const char *const dry_run_purposes[] = {NULL, "weights", "gradients", "optimizer", "activations", "buffers", "cache",
                                               "offloaded"};

/* Token ids of the data: those of its tokenizer, 256 for bytes, else the largest id + 1. */
static dt_result dry_run_vocabulary(dt_recipe *recipe)
{
    dt_tokenizer *t = NULL;
    dt_data *d = NULL;
    int32_t token = 0, next = 0, most = 255;
    dt_result r = recipe->tokenizer ? dt_tokenizer_open(&t, recipe->tokenizer)
                                    : dt_data_open(&d, recipe->data ? recipe->data : "", NULL, 1, 0.0);
    for (int64_t i = 0; d && i < dt_data_samples(d, DT_TRAIN); i++) {
        (void)dt_data_fetch(d, DT_TRAIN, i, &token, &next);
        most = token > most ? token : next > most ? next : most;
    }
    recipe->model.vocabulary = t ? dt_tokenizer_size(t) : most + 1;
    dt_tokenizer_close(&t);
    dt_data_close(&d);
    return r;
}

static void dry_run_memory(const dt_plan *plan)
{
    int64_t rows = 0, sum[DT_PURPOSES] = {0}, gpu[4] = {0}, total = 0;
    const dt_row *row = dt_plan_memory(plan, &rows);
    for (int64_t i = 0; i < rows; i++) sum[row[i].purpose] += row[i].bytes, gpu[row[i].kind] += row[i].most;
    for (int p = DT_FOR_WEIGHTS; p < DT_FOR_OFFLOADED; p++) total += sum[p];
    printf("memory   %.3f MB without a trainer's scratch, samples and text\n", (double)total / 1e6);
    for (int p = DT_FOR_WEIGHTS; p < DT_PURPOSES; p++) {
        if (sum[p]) printf("         %-11s %12.3f MB ", dry_run_purposes[p], (double)sum[p] / 1e6);
        for (int64_t i = 0; i < rows; i++)
            if (row[i].purpose == p && row[i].bytes) printf(" %s %.3f", row[i].name, (double)row[i].bytes / 1e6);
        if (sum[p]) putchar('\n');
    }
    printf("         with a GPU %13.3f MB on it, as much on the host, where %.3f MB are pinned as well\n",
           (double)(gpu[1] + gpu[3]) / 1e6, (double)(gpu[2] + gpu[3]) / 1e6);
}

static void dry_run_print(const dt_plan *plan, int ranks, int rank)
{
    static const char *const axes[] = {"data", "pipeline", "tensor", "context"};
    int64_t count = 0;
    const dt_instr *list = dt_plan_program(plan, &count);
    dt_mesh m = dt_plan_mesh(plan);
    printf("rank %d of %d", rank, ranks);
    for (int axis = 0; axis < DT_AXES; axis++) printf(", %s %d of %d", axes[axis], m.at[axis], m.size[axis]);
    putchar('\n');
    dry_run_memory(plan);
    printf("    # stream  after  instruction   segment shard micro bucket        FLOPs        bytes         sent\n");
    for (const dt_instr *i = list; i < list + count; i++) {
        printf("%5d %6d %6d  %s%-9s %7d %5d %5d %6d %12.0f %12lld %12lld", (int)(i - list), (int)i->stream,
               (int)i->after[1], i->back ? "back " : "     ", dry_run_names[i->op], (int)i->segment, (int)i->shard,
               (int)i->micro, (int)i->bucket, i->flops, (long long)i->touched,
               (long long)(i->sent[0] + i->sent[1] + i->sent[2] + i->sent[3]));
        for (int axis = 0; axis < DT_AXES; axis++)
            if (i->axes >> axis & 1) printf(" %s", axes[axis]);
        if (i->peer >= 0) printf(" with rank %d", (int)i->peer);
        putchar('\n');
    }
}

/* Reads RANK:RANKS. 0: it is something else. */
static int dry_run_asked(const char *text, int *rank, int *ranks)
{
    char end;
    return sscanf(text, "%9d:%9d%c", rank, ranks, &end) == 2 && *rank >= 0 && *rank < *ranks;
}

/* dt_probe.call */
static dt_result dry_run_call(dt_probe *p, dt_trainer *t, dt_moment when, const dt_step_info *info)
{
    const char *asked = p->option[0].value;
    dt_recipe recipe;
    dt_plan *plan = NULL;
    dt_result r = DT_OK;
    int rank, ranks;
    (void)info;
    if (!asked || when != DT_AT_OPEN) return DT_OK;
    recipe = *p->recipe;
    if (!dry_run_asked(asked, &rank, &ranks))
        return dt_error(DT_E_USAGE, "--dry-run %s: it is RANK:RANKS, e.g. 0:8 for the first of 8 ranks", asked);
    if (!recipe.model.segments && !recipe.model.vocabulary && !recipe.source) r = dry_run_vocabulary(&recipe);
    if (!r) r = dt_plan_open(&plan, &recipe, p->layout, ranks, rank);
    if (!r && dt_trainer_is_root(t)) dry_run_print(plan, ranks, rank);
    dt_plan_close(&plan);
    return r ? r : dt_error(DT_E_HELP, "the plan was printed");
}

/* Gives the programs of this layout the option --dry-run. *p must live as long as the trainer. */
static inline void dt_dry_run_attach(dt_layout *layout, dt_probe *p)
{
    static const dt_probe_option dry_run = {"dry-run", "RANK:RANKS",
                                            "print a rank's memory and program, and end; with --vocabulary no data is read",
                                            NULL};
    dt_probe **last = &layout->output.probes;
    memset(p, 0, sizeof *p);
    p->call = dry_run_call, p->option[0] = dry_run;
    while (*last) last = &(*last)->next;
    *last = p;
}

#endif
