/* 67_decisions: a model, its hours on one GPU and a deadline: which strategy, on how many nodes?
 *
 * What you learn
 *     - The order of decisions, cheapest first: independent trainings, one GPU, data parallel in one node, over nodes,
 *       sharded states, a cut model. Sharding changes least (41_zero.c); Horovod and SMDDP have replicas alone.
 *     - Memory and deadline both ask for nodes; the larger number counts.
 *     - Search first, then scale. Stopping the worse trainings early saves most hours, but leaves GPUs idle at the end.
 *     - A plan rests on a guess, the efficiency: run, measure, plan again.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 67_decisions.c -o 67_decisions -lm -lpthread
 *     ./67_decisions                             (--instance p5e: the first part with another type)
 *     Your job instead: ./67_decisions --params-b 13 --ref-hours 900 --deadline-h 48 --instance 'p4d|p5'
 *
 * What it prints
 *     70 billion, 4000 h, due in 500: sharded_dp zero3 on 2 x p4de, 312 h
 *       A replica does not fit: sharding the states leaves 70 GB of states on each GPU, which holds 72 GB
 *     first 27 trainings of 9 h: job_parallel on 1 x p4de, 36 h
 *       stopped after 1 and 3 h but for the best third: 14 h, 63 GPU hours of 243; at the end 3 GPUs work
 *     plan 3, streamed, measured efficiency 0.7: dp on 4 x p4d, input keep
 *     ok: jobs on one GPU: 1, with replicas: 2, with shards: 4; 6 of 8 combinations refused
 *
 * Predict first: with GPUs of 141 GB (p5e), which lines change?
 * Exercise: plan the job of 7 billion weights for deadlines of 80, 40, 20, 10 and 5 hours. What does an hour earlier
 *     cost, and why is that too good to be true?
 *
 * Read on: 68_hiding.c for what hiding costs, 70_checkpoints.c for what such a job saves. */
#include "tools/plan.h"

static cost_catalogue catalogue;
static char cluster[300] = "ref_gpus=1;node_eff=0.8;max_nodes=64;instance=p4de"; /* of the first part */

/* The answer to a job that is written as facts, k=v;k=v; later ones count. */
static const plan_answer *plan_of(const char *common, const char *facts)
{
    static plan_answer a;
    static plan_job j;
    static plan_list wrong;
    plan_job_clear(&j), plan_job_facts(&j, common, &wrong), plan_job_facts(&j, facts, &wrong);
    return plan_answer_of(&j, &catalogue, &a), &a;
}

static int decisions(int kinds[INFEASIBLE + 1])
{
    static const struct { const char *name, *facts; int strategy, nodes; } jobs[] = {
        {"25 million weights, 3 h on one GPU, due in 5", "params_b=0.025;ref_hours=3;deadline_h=5", SINGLE, 1},
        {"1.5 billion, 30 h, due in 5", "params_b=1.5;ref_hours=30;deadline_h=5", DP, 1},
        {"1.5 billion, 50 h, due in 5", "params_b=1.5;ref_hours=50;deadline_h=5", DP, 2},
        {"7 billion, 400 h, due in 72", "params_b=7;ref_hours=400;deadline_h=72", SHARDED_DP, 1},
        {"7 billion, 400 h, due in 5", "params_b=7;ref_hours=400;deadline_h=5", SHARDED_DP, 13},
        {"70 billion, 4000 h, due in 500", "params_b=70;ref_hours=4000;deadline_h=500", SHARDED_DP, 2},
        {"175 billion, 9000 h, due in 500", "params_b=175;ref_hours=9000;deadline_h=500", SHARDED_DP, 5}};
    char text[PLAN_TEXT];
    int good = 1, judged = strstr(cluster, "=p4de") != NULL;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        const plan_answer *a = plan_of(cluster, jobs[i].facts);
        printf("%s: %s, %.3g h\n  %s\n", jobs[i].name, plan_summary(a, text), a->num[num_est_hours], a->why.line[0]);
        kinds[a->out[out_strategy]]++;
        good = good && (!judged || (a->out[out_strategy] == jobs[i].strategy && a->out[out_nodes] == jobs[i].nodes));
    }
    printf("50 billion weights on 64 GPUs: %.0f GB of states on each as replicas, %.1f GB sharded\n",
           plan_of("params_b=50;instance=p4d;cur_nodes=8", "given_strategy=dp")->num[num_state_per_gpu_gb],
           plan_of("params_b=50;instance=p4d;cur_nodes=8", "given_strategy=sharded_dp")->num[num_state_per_gpu_gb]);
    return good;
}

/* A search of 27 trainings of 9 hours on 8 GPUs; then the best one is scaled. */
static int search(void)
{
    char text[PLAN_TEXT];
    double all = ceil(27 / 8.0) * 9, thirds = ceil(27 / 8.0) * 1 + ceil(9 / 8.0) * 2 + ceil(3 / 8.0) * 6;
    const char *model = "params_b=1.5;ref_gpus=1;instance=p4de";
    const plan_answer *a = plan_of(model, "n_trials=27;ref_hours=9;max_nodes=1");
    int good = a->out[out_strategy] == JOB_PARALLEL && a->num[num_est_hours] == all;
    printf("first 27 trainings of 9 h: %s, %.0f h\n  %s\n", plan_summary(a, text), all, a->why.line[0]);
    printf("  stopped after 1 and 3 h but for the best third: %.0f h, %d GPU hours of %d; at the end 3 GPUs work\n",
           thirds, 27 * 1 + 9 * 2 + 3 * 6, 27 * 9);
    a = plan_of(model, "ref_hours=400;deadline_h=24;node_eff=0.8;max_nodes=8");
    printf("then the best one on all data, 400 h: %s, %.3g h\n", plan_summary(a, text), a->num[num_est_hours]);
    return good && a->out[out_strategy] == DP && thirds < all;
}

/* A plan, what its run measures, the next plan. */
static int loop(void)
{
    static const char *const rounds[][2] = {
        {"guessed efficiency 0.9", "node_eff=0.9"},
        {"the run waits for data", "node_eff=0.9;gpu_util_pct=40;io_wait_pct=60;input_mode=file;cur_nodes=3"},
        {"streamed, measured efficiency 0.7", "node_eff=0.7;gpu_util_pct=92;io_wait_pct=4;input_mode=fastfile"}};
    char text[PLAN_TEXT], word[3][40];
    int good = 1;
    for (int i = 0; i < 3; i++) {
        const plan_answer *a = plan_of("params_b=1.5;ref_hours=80;ref_gpus=8;deadline_h=30;instance=p4d", rounds[i][1]);
        good = good && a->out[out_nodes] == (i < 2 ? 3 : 4);
        printf("plan %d, %s: %s, input %s\n", i + 1, rounds[i][0], plan_summary(a, text),
               plan_named("keep|fastfile|fsx", a->out[out_input], word[0]));
        if (i == 2)
            printf("  topology %d GPUs, %s; failures: checkpoints by %s, %s; cost $%.0f; observe gpu_util_pct again\n",
                   a->out[out_dp], plan_named(plan_output[out_library][1], a->out[out_library], word[0]),
                   plan_named("none|rank0|sharded", a->out[out_ckpt], word[1]),
                   plan_named("no|recommended|yes", a->out[out_ckpt_required], word[2]), a->num[num_cost_od]);
    }
    return good;
}

/* What may be combined, by the planner's own rules: how many of *count it refuses. */
static int combinations(int *count)
{
    static const struct { const char *name, *facts; int code; } pairs[] = {
        {"compiler and SMDDP", "compiler=1;want_library=smddp;cur_nodes=2", W_COMPILER_INCOMPAT},
        {"compiler and SMP", "compiler=1;library=smp;cur_nodes=2", W_COMPILER_INCOMPAT},
        {"compiler and DDP", "compiler=1;library=ddp;cur_nodes=1", W_COMPILER_INCOMPAT},
        {"SMDDP and Horovod", "libs=smddp,horovod;cur_nodes=2", W_MIXED_FRAMEWORKS},
        {"FSDP and SMDDP", "libs=fsdp,smddp;cur_nodes=2", W_MIXED_FRAMEWORKS},
        {"warm pool and Spot", "keep_alive_s=600;spot=1", W_WARMPOOL_SPOT},
        {"SMDDP on p5", "instance=p5;want_library=smddp;cur_nodes=2", W_SMDDP_UNSUPPORTED},
        {"bf16 on V100", "instance=p3.16;precision=bf16", W_BF16_UNSUPPORTED}};
    int refused = 0;
    for (*count = 0; *count < (int)(sizeof pairs / sizeof *pairs); ++*count) {
        int i = *count, no = plan_warned(plan_of("params_b=0.5;instance=p4d", pairs[i].facts), pairs[i].code);
        refused += no, printf("%-20s %s\n", pairs[i].name, no ? plan_warning[pairs[i].code][0] : "together");
    }
    return refused;
}

static int own_job(const plan_job *j)
{
    static plan_answer a;
    char text[PLAN_TEXT];
    plan_answer_of(j, &catalogue, &a), printf("%s\n", plan_summary(&a, text));
    for (int i = 0; i < a.why.count; i++) printf("  because: %s\n", a.why.line[i]);
    for (int i = 0; i < a.rejected.count; i++) printf("  rejected: %s\n", a.rejected.line[i]);
    return printf("ok: %d plans rejected; ./build.sh plan says more\n", a.rejected.count), 0;
}

int main(int argc, char **argv)
{
    static plan_job j;
    int good, refused, count, kinds[INFEASIBLE + 1] = {0};
    if (cost_open(&catalogue, NULL) || !plan_arguments(&j, argc, argv)) return 2;
    if (argc == 3 && *j.text[in_instance]) {
        if (!plan_type(&j, "p4de")) return 2;
        snprintf(strstr(cluster, "p4de"), 200, "%s", j.text[in_instance]);
    } else if (argc > 1) return own_job(&j);
    good = decisions(kinds), good = search() && good, good = loop() && good, refused = combinations(&count);
    if (!good || refused != 6) return fprintf(stderr, "FAILED: a decision ends elsewhere\n"), 1;
    return printf("ok: jobs on one GPU: %d, with replicas: %d, with shards: %d; %d of %d combinations refused%s\n",
                  kinds[SINGLE], kinds[DP], kinds[SHARDED_DP], refused, count,
                  strstr(cluster, "=p4de") ? "" : "; jobs: not checked"), 0;
}
