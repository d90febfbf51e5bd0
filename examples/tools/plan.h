/* plan.h: from a model, data, hours, money and a deadline to a strategy, instances and settings, by rules and by the
 * arithmetic of cost.h. A job is a table of fields, most of which may be unknown; plan_job_set reads one,
 * plan_answer_of decides. plan.c is the program; 06_train applies the same warnings to a recipe and a layout. */
#ifndef PLAN_H
#define PLAN_H

#include "cost.h"
#include <ctype.h>
#include <stdarg.h>

/* ---- what is asked ------------------------------------------------------------------------------------------------
 * Name, kind, bounds, and what it is. Kinds: i whole number, r real number, w one of the words, t text. Facts, from
 * `query` on, may also come as k=v; in the field `facts`. */
#define PLAN_FIELDS(F) \
    F(params_b, 'r', 1e-6, 1e6, "parameters, in 1e9: 7, 7B or 350M") \
    F(trainable_pct, 'r', 0, 100, "percent of them that are trained (100; 1 with lora)") \
    F(precision, 'w', 0, 0, "fp32|amp_fp16|amp_bf16|bf16") \
    F(optimizer, 'w', 0, 0, "sgd|sgdm|adam|adamw|adam8|lora") \
    F(layers, 'i', 1, 1e5, "layers of a transformer, for its activations") \
    F(hidden, 'i', 1, 1e6, "its width") \
    F(heads, 'i', 1, 1e5, "its heads (hidden / 128)") \
    F(seq_len, 'i', 1, 1e8, "tokens of a text (2048)") \
    F(micro_batch, 'i', 1, 1e7, "texts that a GPU computes at once (1)") \
    F(global_batch, 'i', 1, 1e9, "texts of a step, all GPUs together") \
    F(dataset_gb, 'r', 0, 1e9, "size of the data, GB") \
    F(ref_hours, 'r', 0, 1e8, "hours that the training takes on ref_gpus") \
    F(ref_gpus, 'i', 1, 1e6, "GPUs of that measurement") \
    F(node_eff, 'r', 0.001, 1, "efficiency over several nodes, relative to linear (0.9)") \
    F(instance, 't', 0, 0, "instance type, or candidates: 'p4d|p5'") \
    F(max_nodes, 'i', 1, 1e5, "largest number of nodes") \
    F(cur_nodes, 'i', 1, 1e5, "nodes that are chosen already") \
    F(price_node_h, 't', 0, 0, "dollars an hour of a node; by candidate: '22|55'") \
    F(spot_disc_pct, 'r', 0, 100, "discount of Spot, percent (60)") \
    F(budget_usd, 'r', 0, 1e12, "dollars") \
    F(deadline_h, 'r', 0, 1e8, "hours until the deadline") \
    F(spot, 'w', 0, 0, "0|1|ask") \
    F(ckpt_cfg, 'i', 0, 1, "1: checkpoints are configured, 0: none") \
    F(gpu_util_pct, 'r', 0, 100, "utilisation of the GPUs, 95th percentile") \
    F(cpu_util_pct, 'r', 0, 10000, "utilisation of the CPUs, 95th percentile") \
    F(io_wait_pct, 'r', 0, 100, "share of the time spent waiting for data") \
    F(input_mode, 'w', 0, 0, "file|fastfile|pipe|fsx") \
    F(efa, 'i', 0, 1, "1: EFA is on, 0: off") \
    F(compiler, 'w', 0, 0, "0|1|ask") \
    F(mp_family, 'w', 0, 0, "any|shard|partition") \
    F(given_strategy, 'w', 0, 0, PLAN_STRATEGIES) \
    F(given_tp, 'i', 1, 1e6, "your tensor-parallel degree") \
    F(given_pp, 'i', 1, 1e6, "your stages") \
    F(given_mb, 'i', 1, 1e7, "your micro-batches per step") \
    F(n_trials, 'i', 1, 1e7, "independent trainings, as in a search for hyperparameters") \
    F(tokens_b, 'r', 0, 1e9, "tokens to train on, in 1e9 (20, 2T): estimates ref_hours on one GPU") \
    F(mfu_pct, 'r', 0.1, 100, "share of the peak for that estimate (40)") \
    F(query, 't', 0, 0, "what you ask") \
    F(claimed_hours, 'r', 0, 1e8, "hours that somebody promises") \
    F(gpumem_p95, 'r', 0, 100, "memory of the GPUs in use, percent, 95th percentile") \
    F(comm_pct, 'r', 0, 100, "share of a step that waits for messages") \
    F(given_gpus, 'i', 1, 1e6, "GPUs that you propose") \
    F(replica_fits, 'i', 0, 1, "1: a replica fits on a GPU, 0: it does not; overrules the arithmetic") \
    F(rework_pct, 'r', 0, 1e4, "percent of the hours that Spot repeats") \
    F(ckpt_interval_min, 'r', 0, 1e6, "minutes between checkpoints") \
    F(interruptions, 'r', 0, 1e6, "expected interruptions of the run") \
    F(rework_h, 'r', 0, 1e6, "hours repeated per interruption") \
    F(restart_h, 'r', 0, 1e6, "hours until work resumes after one") \
    F(want_library, 't', 0, 0, "library that you want: smddp, ddp, fsdp, smp, ..") \
    F(library, 't', 0, 0, "library that you use") \
    F(libs, 't', 0, 0, "frameworks for distribution in the job: 'smddp,horovod'") \
    F(launcher, 't', 0, 0, "launcher: torch_distributed, mpi, ..") \
    F(batch_factor, 'r', 1e-6, 1e6, "factor by which the global batch changes") \
    F(lr_scaled, 'i', 0, 1, "1: the learning rate changes with it") \
    F(offload, 'i', 0, 1, "1: activations are offloaded") \
    F(act_ckpt, 'i', 0, 1, "1: activations are recomputed, 0: not") \
    F(prev_nodes, 'i', 1, 1e5, "earlier nodes of a job that shrinks") \
    F(procs_per_node, 'i', 1, 1e4, "processes of a node (its GPUs)") \
    F(delayed_init, 'i', 0, 1, "1: each process draws only its own shard of the weights") \
    F(writer, 't', 0, 0, "who writes checkpoints: rank0 or all") \
    F(ckpt_kind, 'w', 0, 0, "full|partial") \
    F(purpose, 'w', 0, 0, "resume|inference|export|finetune|eval") \
    F(ckpt_pp, 'i', 1, 1e6, "stages of the run that wrote the checkpoint") \
    F(ckpt_filename, 't', 0, 0, "name of the file: same, or with the rank in it") \
    F(ckpt_has, 't', 0, 0, "what is in it: 'weights,optimizer,lr,step,rng'") \
    F(save_bytes_per_param, 'r', 0, 100, "bytes of a parameter in a checkpoint (14)") \
    F(writers, 'i', 1, 1e6, "processes that write at the same time (1)") \
    F(writer_gb_s, 'r', 1e-9, 1e6, "GB/s of each writer") \
    F(max_run_s, 'r', 0, 1e9, "MaxRuntimeInSeconds") \
    F(max_wait_s, 'r', 0, 1e9, "MaxWaitTimeInSeconds") \
    F(random_access, 'i', 0, 1, "1: samples are read in random order") \
    F(epochs, 'r', 0, 1e6, "epochs") \
    F(epoch_s, 'r', 1e-9, 1e9, "seconds of an epoch") \
    F(fs_gb_s, 'r', 0, 1e6, "GB/s that storage gives") \
    F(compile_min, 'r', 0, 1e6, "minutes to compile (15)") \
    F(speedup, 'r', 0, 1e3, "speed-up by the compiler (1.2)") \
    F(supported_model, 'i', 0, 1, "0: the compiler does not support the model") \
    F(dynamic_shapes, 'i', 0, 1, "1: shapes change from step to step") \
    F(keep_alive_s, 'r', 0, 1e7, "seconds that a warm pool stays") \
    F(capacity_error, 'i', 0, 1, "1: no instances were available") \
    F(fix_retry, 'i', 0, 1, "1: RetryStrategy is the remedy") \
    F(fix_savings_plan, 'i', 0, 1, "1: a savings plan is the remedy")

#define PLAN_STRATEGIES "single|job_parallel|dp|sharded_dp|tp|pp|tp+pp|tp+dp|pp+dp|tp+pp+dp|no_scale|infeasible"
enum { SINGLE, JOB_PARALLEL, DP, SHARDED_DP, TP, PP, TP_PP, TP_DP, PP_DP, TP_PP_DP, NO_SCALE, INFEASIBLE };

/* ---- what is answered: numbers, outputs and warnings, by formulas over names of plan_derive and plan_check ---- */
#define PLAN_NUMBERS(F) \
    F(states_gb, plan_states(p, 1, 1, 1, 0)) \
    F(weights_gb, p->params * p->bytes.weights) \
    F(weights_per_gpu_gb, num[num_weights_gb] / (tp * pp * (zero > 2 ? dp : 1))) \
    F(state_per_gpu_gb, plan_states(p, tp, pp, dp, zero)) \
    F(min_gpus_weights_80, ceil(num[num_weights_gb] / 80)) \
    F(min_gpus_weights_40, ceil(num[num_weights_gb] / 40)) \
    F(est_hours, hours) \
    F(spot_hours, cost_spot_hours(hours, plan_or(j, in_rework_pct, 0), plan_or(j, in_interruptions, 0), \
                                  plan_or(j, in_rework_h, 0) + plan_or(j, in_restart_h, 0))) \
    F(cost_od, hours * out[out_nodes] * p->price) \
    F(cost_spot, num[num_spot_hours] * out[out_nodes] * p->price * (1 - plan_or(j, in_spot_disc_pct, 60) / 100)) \
    F(lr_mult, n[in_batch_factor]) \
    F(pp_slowdown, piped && micro >= 1 ? cost_slowdown(stages, micro) : NAN) \
    F(bubble, piped && micro >= 1 ? cost_bubble(stages, micro) : NAN) \
    F(min_mb, piped ? cost_least_micro(stages) : NAN) \
    F(host_init_gb, 4 * p->params * plan_or(j, in_procs_per_node, g)) \
    F(save_s, p->params * plan_or(j, in_save_bytes_per_param, 14) / (plan_or(j, in_writers, 1) * n[in_writer_gb_s])) \
    F(need_gb_s, n[in_dataset_gb] / n[in_epoch_s]) \
    F(break_even_min, !p->compiles ? NAN \
                      : cost_break_even(plan_or(j, in_compile_min, 15), plan_or(j, in_speedup, 1.2))) \
    F(waves, num[num_waves])

/* Words, or "" for a number. The search has set the layout. */
#define PLAN_OUTPUTS(F) \
    F(strategy, PLAN_STRATEGIES, s) \
    F(shard, "none|zero1|zero2|zero3", out[out_shard]) \
    F(tp, "", out[out_tp]) F(pp, "", out[out_pp]) F(dp, "", out[out_dp]) F(nodes, "", out[out_nodes]) \
    F(library, "none|ddp_nccl|smddp|fsdp_nccl|smp|torchrun_neuron", library) \
    F(act_ckpt, "no|yes", out[out_act_ckpt]) \
    F(fit, "no|yes", plan_has(j, in_given_strategy) ? plan_user_fits(p) : p->fits) \
    F(ckpt, "none|rank0|sharded", s == INFEASIBLE ? 0 : s == SHARDED_DP || plan_partitions(s) ? 2 : 1) \
    F(ckpt_required, "no|recommended|yes", spot ? 2 : !(run <= 1)) \
    F(ckpt_max_min, "", fmax(1, fmin(spot ? 30 : 60, \
                                     cost_interval(num[num_save_s] / 60, 60 * run / n[in_interruptions])))) \
    F(input, "keep|fastfile|fsx", mode != 3 && ((p->slow && mode != 0) || ((p->slow || p->large) && again)) ? 2 \
                                  : mode == 0 && (p->slow || p->large)) \
    F(compiler, "off|optional", p->compiles && !p->sagemaker && !p->brief && n[in_supported_model] != 0) \
    F(spot, "0|1", spot)
enum { NO_LIBRARY, DDP_NCCL, SMDDP, FSDP_NCCL, SMP, TORCHRUN_NEURON };

/* Code, when, what is wrong and what to do. p->tp, pp, dp, zero, gpus are what the user proposes. */
#define PLAN_WARNINGS(F) \
    F(W_STATE_EXCEEDS_WEIGHTS, n[in_replica_fits] != 1 && !p->over && weights <= room && states > room, \
      "the weights fit, the training state does not. Count 16 bytes per parameter, not 2") \
    F(W_MP_UNNEEDED, p->fits && (plan_partitions(user) || p->tp * p->pp > 1), \
      "a replica fits on one GPU, so cutting the model only leaves GPUs idle. Use data parallel") \
    F(W_SHARD_DOWNSIZE, shares && now < n[in_prev_nodes] && !p->fits && !plan_fits(p, 1, 1, now * g, 3, 1), \
      "the shards of fewer GPUs are larger and do not fit. Keep the nodes, or recompute") \
    F(W_HOST_OOM, n[in_delayed_init] != 1 && num[num_host_init_gb] > t->host_gib * 1.073741824, \
      "each process draws the whole model in fp32, more than the host's memory. Delay initialisation") \
    F(W_BF16_UNSUPPORTED, !t->bf16 && precision >= COST_AMP_BF16, "V100 and T4 lack bf16. Use fp16, or other GPUs") \
    F(W_TP_CROSS_NODE, p->tp > g, "a tensor group leaves its node. Use tp = GPUs of a node, and stages across nodes") \
    F(W_TP_DEGREE, tp > 1 && (exp2(round(log2(tp))) != tp || fmod(n[in_heads], tp) > 0), \
      "tp must be a power of two that divides the heads. Choose such a degree") \
    F(W_BUBBLE, num[num_bubble] > 0.2 + 1e-9, "stages idle more than 20 %. Use at least 4 (pp - 1) micro-batches") \
    F(W_MB_DIVIDE, fmod(n[in_global_batch], micro) > 0, "the micro-batches do not divide the batch. Choose a divisor") \
    F(W_NO_EFA, nodes > 1 && t->efa && n[in_efa] == 0, \
      "several nodes of a type with EFA, and EFA is off. Turn it on: it costs nothing") \
    F(W_EFA_UNAVAILABLE, !t->efa && n[in_efa] == 1, "this type has no EFA. Leave it off, or choose a type with it") \
    F(W_SMDDP_UNSUPPORTED, wants && !t->smddp, "SMDDP supports p4d and p4de only. Use NCCL") \
    F(W_SMDDP_SINGLE_NODE, wants && plan_or(j, in_cur_nodes, nodes) <= 1, "SMDDP gains nothing on one node. Use NCCL") \
    F(W_MIXED_FRAMEWORKS, frameworks > 1, "a job has one framework for distribution. Choose one") \
    F(W_LAUNCHER, trn && *launcher && !plan_mentions(launcher, "torch_distributed|torchrun"), \
      "trn1 has one launcher. Use torch_distributed") \
    F(W_SMALL_MODEL_DIST, p->params < 0.1 && batch < 64 && gpus > 1, \
      "with fewer than 0.1e9 parameters and a batch below 64, messages cost more than GPUs gain. Use one GPU") \
    F(W_BATCH_TOO_SMALL, p->small_batch, "CPU, GPU and its memory are below 70 %. Raise the batch before adding GPUs") \
    F(W_IO_BOUND, p->slow, "GPUs wait for data. Speed up the input before adding GPUs") \
    F(W_CPU_BOUND, p->slow_cpu, "CPUs are full and GPUs idle. Move preprocessing offline or to a CPU group") \
    F(W_LINEAR_SCALING, n[in_claimed_hours] <= 1.02 * ideal && real > plan_or(j, in_deadline_h, n[in_claimed_hours]), \
      "the promised hours assume perfect scaling. Plan with the measured efficiency") \
    F(W_DEADLINE_MISS, plan_late(p, hours), "the plan is late. Allow more nodes, faster types, or less training") \
    F(W_LR_SCALING, plan_has(j, in_batch_factor) && n[in_batch_factor] != 1 && n[in_lr_scaled] != 1, \
      "the global batch changes and the learning rate does not. Scale it, with warm-up") \
    F(W_BUDGET_MISS, dollars > n[in_budget_usd], "the plan is over budget. Use Spot, fewer nodes or less training") \
    F(W_NO_CKPT_SPOT, spot && unsaved, "an interruption of Spot loses all work. Configure checkpoints") \
    F(W_NO_CKPT, !spot && out[out_ckpt_required] && unsaved, "a failure loses all work. Configure checkpoints") \
    F(W_CKPT_INTERVAL, interval > 30, "an interruption repeats more than 30 minutes. Save more often") \
    F(W_CKPT_PARTIAL, one && cuts && n[in_ckpt_kind] != 0, "rank 0 saves its own shard only. Let every rank save") \
    F(W_FULL_CKPT_NO_OPT, n[in_ckpt_kind] == 0 && n[in_purpose] == 0, \
      "a merged checkpoint has no optimizer state. Resume from a partial one") \
    F(W_REPARTITION, n[in_ckpt_kind] == 1 && fabs(n[in_ckpt_pp] - plan_or(j, in_given_pp, out[out_pp])) > 0, \
      "a partial checkpoint fits the degrees that wrote it. Keep them, or convert") \
    F(W_CKPT_OVERWRITE, *file && several && !one && !plan_mentions(file, "rank|{|%|$|per_|per-|unique|host|node"), \
      "instances overwrite each other's file. Put the rank into its name") \
    F(W_WARNING_WINDOW, num[num_save_s] > 120, "a save exceeds the notice of 120 s. Use more writers, on schedule") \
    F(W_MAXWAIT, n[in_max_wait_s] <= n[in_max_run_s], "MaxWaitTime must exceed MaxRuntime. Raise it") \
    F(W_SCHEDULE_RESUME, *has && !plan_mentions(has, "all|everything") && !schedule, \
      "the schedule restarts: the learning rate, step or RNG is not saved. Save all three") \
    F(W_COMPILER_SHORT_JOB, p->brief, "the run is shorter than the break-even of compiling. Leave the compiler off") \
    F(W_COMPILER_INCOMPAT, p->compiles && p->sagemaker, "the compiler does not work with SMDDP and SMP. Leave it off") \
    F(W_COMPILER_EOL, p->compiles, "SageMaker Training Compiler gets no new releases. Prefer torch.compile") \
    F(W_COMPILER_RECOMPILE, p->compiles && n[in_dynamic_shapes] == 1, \
      "each new shape compiles again. Pad to one length") \
    F(W_WARMPOOL_SPOT, n[in_keep_alive_s] > 0 && spot, "warm pools exclude Spot. Choose one") \
    F(W_RETRY_NOT_CAPACITY, n[in_fix_retry] == 1 && n[in_capacity_error] != 0, \
      "RetryStrategy retries internal errors, not missing capacity. Use training plans") \
    F(W_SAVINGS_NOT_CAPACITY, n[in_fix_savings_plan] == 1 && n[in_capacity_error] != 0, \
      "a savings plan lowers the price and reserves no capacity. Use training plans") \
    F(W_LOCAL_DISK, p->large && n[in_input_mode] == 0, \
      "file mode copies the data to the local disks, which are too small. Stream it, or use FSx") \
    F(W_OFFLOAD_NO_EFFECT, n[in_offload] == 1 && (micro == 1 || recompute < 1), \
      "offload works only with recompute and several micro-batches. Turn on both, or turn it off")

#define PLAN_NAMES(name, ...)                   #name "|"
#define PLAN_IN(name, kind, low, high, text)    in_##name,
#define PLAN_OUT(name, words, formula)          out_##name,
#define PLAN_NUM(name, formula)                 num_##name,
#define PLAN_CODE(name, when, text)             name,
#define PLAN_FIELD(name, kind, low, high, text) {#name, text, low, high, kind},
#define PLAN_NUMBER(name, formula)              #name,
#define PLAN_OUTPUT(name, words, formula)       {#name, words},
#define PLAN_WARNING(name, when, text)          {#name, text},
enum { PLAN_FIELDS(PLAN_IN) PLAN_INPUTS };
enum { PLAN_OUTPUTS(PLAN_OUT) PLAN_OUTS };
enum { PLAN_NUMBERS(PLAN_NUM) PLAN_NUMS };
enum { PLAN_WARNINGS(PLAN_CODE) PLAN_CODES };
static const struct plan_field {
    const char *name, *text;
    double low, high;
    char kind;
} plan_field[] = {PLAN_FIELDS(PLAN_FIELD)};
static const char *const plan_number[] = {PLAN_NUMBERS(PLAN_NUMBER)};
static const char *const plan_output[][2] = {PLAN_OUTPUTS(PLAN_OUTPUT)};
static const char *const plan_warning[][2] = {PLAN_WARNINGS(PLAN_WARNING)};

enum { PLAN_TEXT = 200, PLAN_NOTES = 24 };

typedef struct plan_job {
    double n[PLAN_INPUTS]; /* numbers, and words by index; NAN: not given */
    char text[PLAN_INPUTS][PLAN_TEXT];
} plan_job;

typedef struct plan_list { /* sentences; those beyond the last are left out */
    char line[PLAN_NOTES][PLAN_TEXT];
    int count;
} plan_list;

typedef struct plan_answer {
    int out[PLAN_OUTS];
    double num[PLAN_NUMS]; /* NAN: not known */
    const cost_type *type;
    double price;      /* of a node and hour, as given; NAN: the catalogue's */
    char instance[40]; /* as the user writes it */
    unsigned long long warn;
    plan_list why, rejected, assumed;
} plan_answer;

__attribute__((format(printf, 2, 3))) static inline void plan_say(plan_list *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (l->count < PLAN_NOTES) vsnprintf(l->line[l->count++], PLAN_TEXT, format, args);
    va_end(args);
}

/* ---- reading a job ---- */

static inline void plan_job_clear(plan_job *j)
{
    memset(j, 0, sizeof *j);
    for (int f = 0; f < PLAN_INPUTS; f++) j->n[f] = (double)NAN;
}

/* The k-th part of a text between separators; 0: there are fewer. */
static inline int plan_part(const char *text, char separator, int k, char *part, size_t room)
{
    char end[2] = {separator, 0};
    for (; k > 0 && (text = strchr(text, separator)) != NULL; k--) text++;
    if (!text || !*text) return 0;
    return snprintf(part, room, "%.*s", (int)strcspn(text, end), text), 1;
}

/* What follows the first part. */
static inline const char *plan_rest(const char *text, char separator)
{
    text = strchr(text, separator);
    return text ? text + 1 : "";
}

/* The k-th word of "a|b|c", as text. */
static inline const char *plan_named(const char *words, int k, char text[40])
{
    if (!plan_part(words, '|', k, text, 40)) *text = 0;
    return text;
}

/* The place of a word in "a|b|c", in which case, - and _ do not count; -1: none. */
static inline int plan_word(const char *words, const char *word)
{
    for (int k = 0; *words; k++) {
        size_t n = strcspn(words, "|"), i = 0;
        while (i < n && tolower(words[i] & 255) == tolower(word[i] == '-' ? '_' : word[i] & 255)) i++;
        if (i == n && !word[i]) return k;
        words += n + (words[n] == '|');
    }
    return -1;
}
static inline int plan_code(const char *name) { return plan_word(PLAN_WARNINGS(PLAN_NAMES), name); }

/* A text without the blanks around it. */
static inline char *plan_trim(char *text)
{
    text += strspn(text, " \t");
    for (size_t n = strlen(text); n && strchr(" \t", text[n - 1]); n--) text[n - 1] = 0;
    return text;
}

/* Sets a field from a text; "-" and "" leave it unknown. 0, and a sentence in `wrong`: that is not a value of it. */
static inline int plan_job_set(plan_job *j, int f, const char *value, char wrong[PLAN_TEXT])
{
    const struct plan_field *in = &plan_field[f];
    char *end, what[PLAN_TEXT] = "a text of at most 199 letters";
    double n = strtod(value, &end);
    int word = plan_word("no|yes|off|on|false|true", value), k = plan_word(in->text, value);
    if (!*value || !strcmp(value, "-")) return 1;
    if (word >= 0 && (!strncmp(in->text, "0|1", 3) || (in->kind == 'i' && in->high == 1)))
        return j->n[f] = word % 2, 1;
    if ((f == in_params_b || f == in_tokens_b) && end != value && *end && strchr("mMbBtT", *end) && !end[1])
        n *= strchr("mM", *end) ? 1e-3 : strchr("tT", *end) ? 1e3 : 1, end++; /* 350M, 7B, 2T */
    if (in->kind == 't' && strlen(value) < PLAN_TEXT) return strcpy(j->text[f], value), j->n[f] = 1, 1;
    if (in->kind == 'w' && k >= 0) return j->n[f] = k, 1;
    if (in->low < in->high && end != value && !*end && n >= in->low && n <= in->high)
        if (in->kind == 'r' || n == floor(n)) return j->n[f] = n, 1;
    if (in->kind == 'w') snprintf(what, sizeof what, "one of %s", in->text);
    if (in->low < in->high)
        snprintf(what, sizeof what, "a %snumber from %g to %g", in->kind == 'i' ? "whole " : "", in->low, in->high);
    snprintf(wrong, PLAN_TEXT, "%s: '%.20s' is not %.120s", in->name, value, what);
    return 0;
}

/* Sets what "k=v;k=v" says, k alone being k=1; what cannot be read becomes a sentence of `wrong`. */
static inline void plan_job_facts(plan_job *j, const char *facts, plan_list *wrong)
{
    char fact[2 * PLAN_TEXT], said[PLAN_TEXT];
    for (; plan_part(facts, ';', 0, fact, sizeof fact); facts = plan_rest(facts, ';')) {
        char *value = strchr(fact, '='), *name;
        int f;
        if (value) *value++ = 0;
        name = plan_trim(fact), f = plan_word(PLAN_FIELDS(PLAN_NAMES), name);
        if (f < 0 && *name && strcmp(name, "-"))
            plan_say(wrong, "facts: '%.40s' is not a fact: it is left out", name);
        if (f >= 0 && !plan_job_set(j, f, value ? plan_trim(value) : "1", said))
            plan_say(wrong, "%.160s: it is left out", said);
    }
}

/* ---- deciding: one job on one type ---- */

typedef struct plan {
    const plan_job *j;
    const cost_type *type;
    plan_answer *a;
    cost_bytes bytes;
    cost_shape shape;
    double params, price, ref_hours, ref_gpus, deadline; /* NAN: not known */
    double least, most;                                  /* nodes */
    double tp, pp, dp, gpus;                             /* what the user proposes; without it one GPU */
    int zero, given, over;                               /* over: it needs more GPUs than there are */
    int fits;                                            /* a replica, on one GPU */
    int waits, slow_cpu, small_batch;                    /* for data; idle GPUs; all idle */
    int slow, large;                                     /* storage for the GPUs; data for the local disks */
    int compiles, brief, sagemaker;                      /* a compiler; for too short a run; beside SMDDP or SMP */
} plan;

static inline int plan_has(const plan_job *j, int f) { return !isnan(j->n[f]); }
static inline double plan_or(const plan_job *j, int f, double otherwise)
{
    return plan_has(j, f) ? j->n[f] : otherwise;
}
static inline int plan_warned(const plan_answer *a, int code) { return a->warn >> code & 1; }
static inline int plan_partitions(int strategy) { return strategy >= TP && strategy <= TP_PP_DP; }

/* GB of states on the GPU with the largest share of a model cut tp x pp ways, whose dp copies share by ZeRO. */
static inline double plan_states(const plan *p, double tp, double pp, double dp, int zero)
{
    double layers = p->shape.layers, stage = layers > 0 && pp <= layers ? ceil(layers / pp) / layers : 1 / pp;
    return p->params * cost_zero(&p->bytes, zero, dp) * stage / tp;
}

static inline int plan_fits(const plan *p, double tp, double pp, double dp, int zero, int recompute)
{
    double wide = p->j->n[in_precision] == COST_FP32 ? 2 : 1;
    if (plan_has(p->j, in_replica_fits) && tp * pp * (zero ? dp : 1) <= 1) return p->j->n[in_replica_fits] == 1;
    if (isnan(p->params)) return 1;
    return plan_states(p, tp, pp, dp, zero) + wide * cost_activations(&p->shape, tp, recompute) / 1e9 <=
           cost_usable * p->type->gb;
}

/* Hours on so many GPUs: nothing is lost where the reference was measured and on one GPU. */
static inline double plan_hours(const plan *p, double gpus)
{
    double inside = gpus > p->type->count ? plan_or(p->j, in_node_eff, 0.9) : 0.9;
    return p->ref_hours * p->ref_gpus / (gpus * (gpus == p->ref_gpus || gpus == 1 ? 1 : inside));
}
static inline int plan_late(const plan *p, double hours) { return hours > p->deadline * (1 + 1e-9); }

static inline int plan_layout(plan *p, int strategy, int shard, double tp, double pp, double dp, double nodes)
{
    int *out = p->a->out;
    out[out_strategy] = strategy, out[out_shard] = shard;
    out[out_tp] = (int)tp, out[out_pp] = (int)pp, out[out_dp] = (int)dp, out[out_nodes] = (int)nodes;
    return 1;
}

/* A layout on n nodes that fits, the simplest first; 0: none does. */
static inline int plan_try_replicas(plan *p, double n) { return plan_layout(p, DP, 0, 1, 1, n * p->type->count, n); }
static inline int plan_try_shards(plan *p, double n)
{
    double gpus = n * p->type->count;
    for (int k = 0; k < 6; k++) /* stages 1, 2, 3; again with recompute */
        if (plan_fits(p, 1, 1, gpus, 1 + k % 3, k / 3))
            return p->a->out[out_act_ckpt] = k / 3, plan_layout(p, SHARDED_DP, 1 + k % 3, 1, 1, gpus, n);
    return 0;
}
static inline int plan_cut(plan *p, double tp, double pp, double n, int recompute)
{
    double dp = n * p->type->count / (tp * pp);
    int kind = tp > 1 ? pp > 1 ? dp > 1 ? TP_PP_DP : TP_PP : dp > 1 ? TP_DP : TP : dp > 1 ? PP_DP : PP;
    if (dp != floor(dp) || !plan_fits(p, tp, pp, 1, 0, recompute)) return 0;
    return p->a->out[out_act_ckpt] = recompute, plan_layout(p, kind, 0, tp, pp, dp, n);
}
static inline int plan_try_cuts(plan *p, double n)
{
    double layers = p->shape.layers, heads = layers > 0 ? p->shape.heads : 0, tp = 1, stages, least;
    while (2 * tp <= p->type->count && (heads <= 0 || fmod(heads, 2 * tp) == 0)) tp *= 2;
    stages = floor(n * p->type->count / tp), least = floor(plan_states(p, tp, 1, 1, 0) / (cost_usable * p->type->gb));
    if (layers > 0) stages = fmin(stages, layers);
    if (!plan_fits(p, tp, stages, 1, 0, 1)) return 0;
    for (int recompute = 0; recompute < 2; recompute++) {
        for (double few = 2; few <= tp; few *= 2)
            if (plan_cut(p, few, 1, n, recompute)) return 1;
        for (double pp = fmax(2, least); pp <= stages; pp++)
            if (plan_cut(p, tp, pp, n, recompute)) return 1;
    }
    return 0;
}
/* A tensor group that leaves its node becomes one per node, with the nodes as stages. */
static inline int plan_try_stages(plan *p, double n)
{
    return plan_cut(p, p->type->count, n, n, 0) || plan_cut(p, p->type->count, n, n, 1);
}

/* The fewest nodes, from `least` on, with a layout in time; if none is in time, the most with a layout; 0: nothing
 * fits. Nodes that cannot hold the states are not tried, nor those that are late: from the first n on to the nodes of
 * the reference and to those whose efficiency is enough. */
static inline int plan_scale(plan *p, int (*try_on)(plan *, double), double least)
{
    double g = p->type->count, held = floor(plan_states(p, 1, 1, 1, 0) / (cost_usable * p->type->gb * g));
    double same = floor(p->ref_gpus / g), alone = p->ref_hours * p->ref_gpus;
    double need = floor(alone / (p->deadline * g * plan_or(p->j, in_node_eff, 0.9)));
    int tries = 0; /* 1024 are enough for degrees that divide few numbers of nodes */
    if (try_on != plan_try_replicas) least = fmax(least, held);
    for (double n = least; n <= p->most && tries < 1024; tries++) {
        if (!plan_late(p, plan_hours(p, n * g)) && try_on(p, n)) return 1;
        n = n < same && same < need ? same : fmax(n + 1, need);
    }
    for (double n = p->most; n >= least && tries < 2048; n--, tries++)
        if (try_on(p, n)) return 1;
    return 0;
}

/* What the user proposes: degrees that are left open follow from the nodes. */
static inline void plan_propose(plan *p)
{
    const plan_job *j = p->j;
    int s = (int)plan_or(j, in_given_strategy, -1), g = p->type->count;
    int tensor = s == TP || s == TP_PP || s == TP_DP || s == TP_PP_DP;
    int stages = s == PP || s == TP_PP || s == PP_DP || s == TP_PP_DP;
    double tp = plan_or(j, in_given_tp, 1), pp = plan_or(j, in_given_pp, 1);
    double nodes = plan_or(j, in_cur_nodes, plan_or(j, in_max_nodes, ceil(tp * pp / g)));
    p->given = s >= 0 || tp > 1 || pp > 1 || plan_has(j, in_given_gpus);
    p->gpus = s == SINGLE || !p->given ? 1 : plan_or(j, in_given_gpus, nodes * g);
    if (!plan_has(j, in_given_tp) && tensor) tp = s == TP ? floor(p->gpus / pp) : fmin(g, p->gpus);
    if (!plan_has(j, in_given_pp) && stages)
        pp = s == PP || s == TP_PP ? floor(p->gpus / tp) : p->gpus > g ? ceil(p->gpus / g) : fmin(g, p->gpus);
    p->tp = fmax(tp, 1), p->pp = fmax(pp, 1), p->dp = fmax(floor(p->gpus / (p->tp * p->pp)), 1);
    p->over = p->tp * p->pp > p->gpus;
    p->zero = s == SHARDED_DP || (s < 0 && p->tp * p->pp == 1 && p->given) ? 3 : 0;
}

/* Does it fit? Copies of a cut model may share the optimizer's state; that counts where 20 bytes of a parameter, as
 * SageMaker's guide counts them, fit in 85 % of the memory. */
static inline int plan_user_fits(const plan *p)
{
    plan careful = *p;
    int recompute = p->j->n[in_act_ckpt] != 0, s = (int)plan_or(p->j, in_given_strategy, -1);
    if (p->over) return 0;
    if (plan_fits(p, p->tp, p->pp, p->dp, p->zero, recompute)) return 1;
    careful.bytes.gradients += 4, careful.params *= cost_usable / 0.85;
    return (s == TP_DP || s == PP_DP || s == TP_PP_DP) && p->dp > 1 &&
           plan_fits(&careful, p->tp, p->pp, p->dp, 1, recompute);
}

/* Is the run slow for a reason that more GPUs do not remove? */
static inline int plan_starved(plan *p)
{
    const double *n = p->j->n, gpu = n[in_gpu_util_pct], cpu = n[in_cpu_util_pct];
    int more = isnan(n[in_cur_nodes]) || n[in_max_nodes] != n[in_cur_nodes] || !isnan(n[in_deadline_h]);
    p->waits = gpu < 70 && n[in_io_wait_pct] >= 50;
    p->slow_cpu = cpu > 90 && gpu < 10;
    p->small_batch = cpu < 70 && gpu < 70 && n[in_gpumem_p95] < 70;
    if (!more || !(p->waits || p->slow_cpu || p->small_batch)) return 0;
    plan_say(&p->a->why, "More GPUs would wait as well: fix what the warnings name first, then measure again");
    return plan_layout(p, NO_SCALE, 0, 1, 1, 1, plan_or(p->j, in_cur_nodes, 1));
}

/* Without a deadline: has the user chosen several GPUs already? */
static inline int plan_wants_several(const plan *p)
{
    const plan_job *j = p->j;
    int s = (int)plan_or(j, in_given_strategy, -1), small = p->params < 0.1 && plan_or(j, in_micro_batch, 1) < 64;
    if (small || plan_partitions(s) || s == SINGLE) return 0;
    if (p->ref_gpus > 1 && (plan_has(j, in_ref_hours) || plan_has(j, in_ref_gpus))) return 1;
    return plan_has(j, in_cur_nodes) &&
           (p->least > 1 || s >= DP || *j->text[in_want_library] || plan_or(j, in_given_gpus, 1) > 1);
}

/* Independent trainings, each on a GPU, or sharded on a node; 0: one needs several nodes. */
static inline int plan_trials(plan *p)
{
    const plan_job *j = p->j;
    double trials = j->n[in_n_trials], each = p->fits ? p->type->count : 1;
    double nodes = plan_or(j, in_max_nodes, ceil(plan_or(j, in_given_gpus, 1) / p->type->count));
    if (!(trials > 1) || (!p->fits && !plan_try_shards(p, 1))) return 0;
    nodes = plan_or(j, in_cur_nodes, fmin(nodes, ceil(trials / each)));
    p->a->num[num_waves] = ceil(trials / (nodes * each));
    plan_say(&p->a->why, "%g trainings do not depend on each other: %g at a time, each on a %s, in %g rounds", trials,
             nodes * each, p->fits ? "GPU" : "node", p->a->num[num_waves]);
    return plan_layout(p, JOB_PARALLEL, p->fits ? 0 : p->a->out[out_shard], 1, 1, p->fits ? 1 : p->type->count, nodes);
}

/* A replica fits. */
static inline void plan_replicas(plan *p)
{
    plan_answer *a = p->a;
    double one = plan_hours(p, 1), g = p->type->count, least = p->least;
    int late = plan_late(p, one);
    a->out[out_act_ckpt] = !plan_fits(p, 1, 1, 1, 0, 0);
    if (late) plan_say(&a->rejected, "single: %.4g h on one GPU, the deadline is %g h", one, p->deadline);
    if (g * p->most > 1 && (isnan(p->deadline) || isnan(one) ? plan_wants_several(p) : late)) {
        if (isnan(p->deadline) && !plan_has(p->j, in_cur_nodes)) least = fmin(p->most, fmax(1, ceil(p->ref_gpus / g)));
        plan_scale(p, plan_try_replicas, least);
        plan_say(&a->why, "A replica fits on one GPU%s: data parallel on %d GPUs",
                 late ? " and one GPU is too slow" : "", a->out[out_dp]);
        return;
    }
    plan_layout(p, SINGLE, 0, 1, 1, 1, 1);
    plan_say(&a->why, "A replica fits on one GPU, %s",
             late                 ? "and there is no second one"
             : one <= p->deadline ? "which meets the deadline"
                                  : "and nothing asks for more");
    if (g > 1) plan_say(&a->rejected, "dp: %g GPUs are not needed", g);
}

/* A replica does not fit. */
static inline void plan_cuts(plan *p)
{
    plan_answer *a = p->a;
    int partition = p->j->n[in_mp_family] == 2, done = 0, *out = a->out;
    double room = cost_usable * p->type->gb, g = p->type->count;
    if (isnan(p->params)) plan_say(&a->rejected, "single, dp: replica_fits is 0");
    else
        plan_say(&a->rejected, "single, dp: %.4g GB of states on a GPU that holds %.4g GB", plan_states(p, 1, 1, 1, 0),
                 room);
    if (p->tp > g && p->j->n[in_mp_family] != 1)
        partition = 1, done = plan_scale(p, plan_try_stages, fmax(p->least, fmin(p->most, ceil(p->tp * p->pp / g))));
    if (!done && !plan_scale(p, partition ? plan_try_cuts : plan_try_shards, p->least)) {
        plan_layout(p, INFEASIBLE, 0, 1, 1, 1, p->most);
        plan_say(&a->why, "Nothing fits: %.4g GB of states on each of %g GPUs, which hold %.4g GB",
                 plan_states(p, 1, 1, p->most * g, 3), p->most * g, room);
        return;
    }
    for (int zero = 1; zero < out[out_shard]; zero++)
        plan_say(&a->rejected, "zero%d: %.4g GB of states on each GPU, which holds %.4g GB", zero,
                 plan_states(p, 1, 1, out[out_dp], zero), room);
    if (out[out_nodes] > p->least && !plan_late(p, plan_hours(p, g * (out[out_nodes] - 1))))
        plan_say(&a->rejected, "nodes %d: the states do not fit", out[out_nodes] - 1);
    plan_say(&a->why, "A replica does not fit: %s leaves %.4g GB of states on each GPU, which holds %.4g GB",
             partition ? "cutting the model" : "sharding the states",
             plan_states(p, out[out_tp], out[out_pp], out[out_dp], out[out_shard]), room);
}

/* How many of these words does a text name? */
static inline int plan_mentions(const char *text, const char *words)
{
    char low[PLAN_TEXT], word[40];
    int count = 0;
    size_t i = 0;
    for (; text[i]; i++) low[i] = (char)tolower((unsigned char)text[i]);
    low[i] = 0;
    for (int k = 0; *plan_named(words, k, word); k++) count += strstr(low, word) != NULL;
    return count;
}

#define PLAN_COUNT(name, formula)         num[num_##name] = (double)(formula);
#define PLAN_DECIDE(name, words, formula) out[out_##name] = (int)(formula);
#define PLAN_CHECK(name, when, text)      a->warn |= (unsigned long long)((when) != 0) << name;

/* Numbers and outputs, once the search has found a layout. The numbers are about the user's layout if there is one. */
static inline void plan_derive(plan *p)
{
    const plan_job *j = p->j;
    plan_answer *a = p->a;
    const double *n = j->n;
    double *num = a->num;
    int *out = a->out;
    const int s = out[out_strategy], g = p->type->count, zero = p->given ? p->zero : out[out_shard];
    const double tp = p->given ? p->tp : out[out_tp], pp = p->given ? p->pp : out[out_pp];
    const double dp = p->given ? p->dp : out[out_dp], stages = p->pp > 1 ? p->pp : out[out_pp];
    const double micro = plan_or(j, in_given_mb, floor(n[in_global_batch] / (plan_or(j, in_micro_batch, 1) * dp)));
    const int decided = s != NO_SCALE && s != INFEASIBLE, piped = stages > 1 || plan_has(j, in_given_pp);
    const double waves = s == JOB_PARALLEL ? num[num_waves] : 1, gpus = (double)out[out_tp] * out[out_pp] * out[out_dp];
    const double hours = decided ? plan_hours(p, gpus) * waves : (double)NAN;
    const int several = out[out_nodes] > 1 && p->type->smddp, trn = !strncmp(cost_short(p->type), "trn", 3);
    const int library = trn && decided       ? TORCHRUN_NEURON
                        : s == DP            ? several ? SMDDP : DDP_NCCL
                        : s == SHARDED_DP    ? several ? SMDDP : FSDP_NCCL
                        : plan_partitions(s) ? SMP
                                             : NO_LIBRARY;
    p->compiles =
        n[in_compiler] != 0 && (plan_has(j, in_compiler) || plan_has(j, in_compile_min) || plan_has(j, in_speedup));
    PLAN_NUMBERS(PLAN_COUNT)
    const double run = isnan(hours) ? plan_or(j, in_deadline_h, n[in_claimed_hours]) : hours;
    const double minutes = 60 * (isnan(hours) ? p->ref_hours : hours), od = num[num_cost_od], due = p->deadline;
    const int asks = n[in_spot] == 2, late = plan_late(p, num[num_spot_hours]);
    const int spot = asks ? !late && od > n[in_budget_usd] : n[in_spot] == 1;
    const int mode = (int)plan_or(j, in_input_mode, 0), again = n[in_random_access] == 1 && !(n[in_epochs] <= 1);
    const char *const texts[] = {j->text[in_library], j->text[in_want_library], j->text[in_libs]};
    p->slow = p->waits || n[in_fs_gb_s] < num[num_need_gb_s];
    p->large = p->type->nvme_gb > 0 && n[in_dataset_gb] > p->type->nvme_gb;
    p->brief = minutes < num[num_break_even_min], p->sagemaker = library == SMDDP || library == SMP;
    for (int k = 0; k < 3; k++)
        p->sagemaker |= plan_mentions(texts[k], "smddp|smp|smdistributed|dataparallel|modelparallel");
    PLAN_OUTPUTS(PLAN_DECIDE)
    if (asks && late) plan_say(&a->rejected, "spot: %.4g h, the deadline is %g h", num[num_spot_hours], due);
    else if (asks && od <= n[in_budget_usd])
        plan_say(&a->rejected, "spot: on-demand costs $%.0f of the budget of $%g", od, n[in_budget_usd]);
    if (p->brief)
        plan_say(&a->rejected, "compiler: the run takes %.4g min, the break-even is %.4g min", minutes,
                 num[num_break_even_min]);
    if (p->large)
        plan_say(&a->rejected, "file mode: %g GB of data, %g GB on local disks", n[in_dataset_gb], p->type->nvme_gb);
}

static inline void plan_check(const plan *p)
{
    const plan_job *j = p->j;
    plan_answer *a = p->a;
    const cost_type *t = p->type;
    const double *n = j->n, *num = a->num, room = cost_usable * t->gb;
    const int *out = a->out, g = t->count, spot = out[out_spot], s = out[out_strategy];
    const int user = (int)plan_or(j, in_given_strategy, -1), kind = user < 0 ? s : user;
    const char *launcher = j->text[in_launcher], *file = j->text[in_ckpt_filename], *has = j->text[in_ckpt_has];
    const double weights = p->params * p->bytes.weights / (p->zero ? p->gpus : p->tp * p->pp);
    const double states = plan_states(p, p->tp, p->pp, p->dp, p->zero), tp = p->given ? p->tp : out[out_tp];
    const double batch = plan_or(j, in_micro_batch, n[in_global_batch]), cur = plan_or(j, in_cur_nodes, 0);
    const double chosen = plan_or(j, in_cur_nodes, plan_or(j, in_max_nodes, 0)), nodes = fmax(out[out_nodes], cur);
    const double now = chosen > 0 ? chosen : ceil(p->gpus / g);
    const double claim = plan_or(j, in_given_gpus, g * (chosen > 0 ? chosen : out[out_nodes]));
    const double ideal = p->ref_hours * p->ref_gpus / claim;
    const double real = ideal / (claim > g ? plan_or(j, in_node_eff, 0.9) : 0.9);
    const double gpus = fmax(fmax(p->gpus, s == SINGLE ? 1 : out[out_nodes] * g), user == SINGLE ? 1 : cur * g);
    const double recompute = plan_or(j, in_act_ckpt, out[out_act_ckpt]), interval = spot ? n[in_ckpt_interval_min] : 0;
    const double hours = num[spot ? num_spot_hours : num_est_hours], dollars = num[spot ? num_cost_spot : num_cost_od];
    const double precision = n[in_precision], micro = n[in_given_mb];
    const int shares = user == SHARDED_DP || (user < 0 && !p->fits), unsaved = n[in_ckpt_cfg] == 0;
    const int cuts = kind == SHARDED_DP || plan_partitions(kind);
    const int several = fmax(nodes, plan_or(j, in_writers, 1)) > 1, trn = !strncmp(cost_short(t), "trn", 3);
    const int wants = plan_mentions(j->text[in_want_library], "smddp");
    const char *libs = j->text[in_libs]; /* FSDP over SMDDP's collectives is one, and so is SMP, which uses FSDP */
    const int frameworks = plan_mentions(libs, "horovod|hvd|deepspeed|smddp|dataparallel|smp|modelparallel|fsdp|"
                                               "megatron|ddp_nccl|torchddp|pytorchxla|parameter_server") -
                           (plan_mentions(libs, "smddp|smp") && plan_mentions(libs, "fsdp"));
    const int one = plan_mentions(j->text[in_writer], "rank0|rank_0|rank 0") || !strcmp(j->text[in_writer], "0");
    const int schedule = plan_mentions(has, "lr|sched|learning") && plan_mentions(has, "step|iter") &&
                         plan_mentions(has, "rng|seed|random");
    PLAN_WARNINGS(PLAN_CHECK)
}

/* The transformer of a job; 0 layers: not given. */
static inline cost_shape plan_shape(const plan_job *j)
{
    cost_shape s;
    s.layers = plan_has(j, in_hidden) ? plan_or(j, in_layers, 0) : 0, s.hidden = j->n[in_hidden];
    s.heads = plan_or(j, in_heads, fmax(1, round(s.hidden / 128)));
    s.sequence = plan_or(j, in_seq_len, 2048), s.micro = plan_or(j, in_micro_batch, 1);
    return s;
}

/* What is assumed of a field that is missing, where another one is given (-1: always) and a third one is not. */
static const struct plan_default {
    int field, with, without;
    const char *text;
} plan_default[] = {
    {in_params_b, -1, -1, "a replica fits on a GPU, unless replica_fits is 0"},
    {in_precision, in_params_b, -1, "16 bits with a master copy (AMP)"},
    {in_optimizer, in_params_b, -1, "AdamW"},
    {in_layers, in_params_b, -1, "activations are not counted"},
    {in_seq_len, in_layers, -1, "2048"},
    {in_micro_batch, in_layers, -1, "1"},
    {in_instance, -1, -1, "any GPU type of the catalogue"},
    {in_max_nodes, -1, in_cur_nodes, "up to 1024"},
    {in_ref_hours, in_deadline_h, in_tokens_b, "the deadline cannot be judged. Give tokens_b for an estimate"},
    {in_ref_hours, in_budget_usd, in_tokens_b, "the budget cannot be judged. Give tokens_b for an estimate"},
    {in_ref_gpus, in_ref_hours, -1, "ref_hours are of the chosen nodes, else of one GPU"},
    {in_node_eff, in_ref_hours, -1, "0.9"},
    {in_spot_disc_pct, in_spot, -1, "60"},
    {in_interruptions, in_spot, in_rework_pct, "none"}};

/* Says what is assumed, and where fields contradict each other. */
static inline void plan_assume(plan *p)
{
    const double *n = p->j->n, shaped = 12e-9 * n[in_layers] * n[in_hidden] * n[in_hidden];
    plan_list *l = &p->a->assumed;
    for (size_t i = 0; i < sizeof plan_default / sizeof *plan_default; i++) {
        const struct plan_default *d = &plan_default[i];
        if (isnan(n[d->field]) && (d->with < 0 || !isnan(n[d->with])) && (d->without < 0 || isnan(n[d->without])))
            plan_say(l, "%s not given: %s", plan_field[d->field].name, d->text);
    }
    if (isnan(p->a->price) && !isnan(p->ref_hours))
        plan_say(l, "price_node_h not given: %.2f dollars of the catalogue count", p->price);
    if (shaped > 2 * p->params || shaped < 0.4 * p->params)
        plan_say(l, "params_b %g contradicts layers and hidden (12 L h^2 is %.3g): params_b counts", p->params, shaped);
    if (fmod(p->shape.hidden, p->shape.heads) > 0)
        plan_say(l, "hidden %g is not a multiple of heads %g: both count", p->shape.hidden, p->shape.heads);
    if (n[in_micro_batch] > n[in_global_batch])
        plan_say(l, "micro_batch %g exceeds global_batch %g: both count", n[in_micro_batch], n[in_global_batch]);
    if (n[in_cur_nodes] > n[in_max_nodes])
        plan_say(l, "cur_nodes %g exceeds max_nodes %g: cur_nodes counts", n[in_cur_nodes], n[in_max_nodes]);
    if (p->over)
        plan_say(l, "given_tp x given_pp is %g, and there are %g GPUs: your layout does not fit",
                 p->tp * p->pp, p->gpus);
}

/* Decides for the type and the price of an answer, which are given. */
static inline void plan_on(const plan_job *j, plan_answer *a)
{
    plan p;
    const int optimizer = (int)plan_or(j, in_optimizer, COST_ADAMW);
    const double share = plan_or(j, in_trainable_pct, optimizer == COST_LORA ? 1 : 100) / 100;
    const double mfu = plan_or(j, in_mfu_pct, 40), peak = a->type->teraflops, tokens = j->n[in_tokens_b];
    memset(&p, 0, sizeof p), memset(a->out, 0, sizeof a->out);
    a->warn = 0, a->why.count = a->rejected.count = a->assumed.count = 0;
    for (int k = 0; k < PLAN_NUMS; k++) a->num[k] = (double)NAN;
    p.j = j, p.type = a->type, p.a = a, p.price = isnan(a->price) ? a->type->dollars : a->price;
    p.params = j->n[in_params_b], p.deadline = j->n[in_deadline_h], p.shape = plan_shape(j);
    p.bytes = cost_of((int)plan_or(j, in_precision, COST_AMP_BF16), optimizer, share);
    p.least = plan_or(j, in_cur_nodes, 1), p.most = plan_or(j, in_cur_nodes, plan_or(j, in_max_nodes, 1024));
    p.ref_hours = j->n[in_ref_hours];
    p.ref_gpus = plan_or(j, in_ref_gpus, plan_has(j, in_cur_nodes) ? p.least * a->type->count : 1);
    if (isnan(p.ref_hours) && p.params * tokens > 0 && peak > 0) {
        p.ref_gpus = 1, p.ref_hours = cost_computing(1e9 * p.params, 1e9 * tokens, peak * 1e10 * mfu) / 3600;
        plan_say(&a->assumed, "ref_hours not given: 6 x %g x %ge18 operations at %g %% of %g TFLOP/s: %.4g h on a GPU",
                 p.params, tokens, mfu, peak, p.ref_hours);
    }
    plan_propose(&p);
    plan_assume(&p);
    p.fits = plan_fits(&p, 1, 1, 1, 0, 0) || plan_fits(&p, 1, 1, 1, 0, 1);
    if (!plan_starved(&p) && !plan_trials(&p)) p.fits ? plan_replicas(&p) : plan_cuts(&p);
    plan_derive(&p);
    plan_check(&p);
}

/* ---- the answer to a job: the best of its candidates ---- */

/* The types that a job names, with their prices, or all GPUs of the catalogue. */
static inline int plan_candidates(const plan_job *j, const cost_catalogue *c, plan_answer *list, plan_list *wrong)
{
    char price[40] = "";
    int count = 0;
    plan_answer *to = list;
    for (int k = 0; count < COST_TYPES && plan_part(j->text[in_instance], '|', k, to->instance, 40); k++) {
        plan_part(j->text[in_price_node_h], '|', k, price, sizeof price); /* the last one counts on */
        to->type = cost_find(c, to->instance, strlen(to->instance)), to->price = cost_number(price);
        if (*price && strcmp(price, "-") && !(to->price > 0))
            plan_say(wrong, "price_node_h: '%s' is not a number above 0: the catalogue's price counts", price),
                to->price = (double)NAN;
        if (to->type) to = &list[++count];
        else plan_say(wrong, "instance: '%s' is not in the catalogue: it is left out", to->instance);
    }
    for (int i = 0, all = !count; all && i < c->count; i++) {
        to = &list[count];
        to->type = &c->type[i], to->price = cost_number(plan_named(j->text[in_price_node_h], 0, price));
        strcpy(to->instance, cost_short(to->type));
        count += i == 0 || strncmp(to->instance, "trn", 3); /* Trainium only where it is named */
    }
    return count;
}

/* An output as text. */
static inline const char *plan_out_text(const plan_answer *a, int k, char text[40])
{
    if (*plan_output[k][1]) return plan_named(plan_output[k][1], a->out[k], text);
    return snprintf(text, 40, "%d", a->out[k]), text;
}

/* At least four digits, and no exponent. */
static inline const char *plan_digits(double n, char text[32])
{
    return snprintf(text, 32, fabs(n) >= 1000 ? "%.0f" : "%.4g", n), text;
}

/* A plan in one line. */
static inline const char *plan_summary(const plan_answer *a, char text[PLAN_TEXT])
{
    static const char *const shards[] = {"", " zero1", " zero2", " zero3"};
    char word[40], cut[60] = "";
    const int *out = a->out;
    if (plan_partitions(out[out_strategy]))
        snprintf(cut, sizeof cut, ", tp %d x pp %d x dp %d", out[out_tp], out[out_pp], out[out_dp]);
    snprintf(text, PLAN_TEXT, "%s%s on %d x %s%s%s%s%s%s", plan_out_text(a, out_strategy, word), shards[out[out_shard]],
             out[out_nodes], a->instance, cut, out[out_act_ckpt] ? ", recompute" : "", out[out_spot] ? ", Spot" : "",
             plan_warned(a, W_DEADLINE_MISS) ? ", late" : "", plan_warned(a, W_BUDGET_MISS) ? ", over budget" : "");
    return text;
}

/* Of two plans the better one has the lower first difference: does it fit, is it in time, nodes (hours, where it is
 * late), the given price, how simple the strategy is, the catalogue's price. */
static inline void plan_rank(const plan_answer *a, double rank[6])
{
    int late = plan_warned(a, W_DEADLINE_MISS);
    rank[0] = a->out[out_strategy] == INFEASIBLE, rank[1] = late + plan_warned(a, W_BF16_UNSUPPORTED);
    rank[2] = late ? a->num[num_est_hours] : a->out[out_nodes], rank[3] = isnan(a->price) ? 0 : a->price;
    rank[4] = a->out[out_strategy], rank[5] = isnan(a->type->dollars) ? 1e9 : a->type->dollars;
}

static inline void plan_answer_of(const plan_job *j, const cost_catalogue *c, plan_answer *best)
{
    static plan_answer a[COST_TYPES]; /* of this thread alone: the programs here have one */
    plan_list wrong;
    double rank[COST_TYPES][6];
    char text[PLAN_TEXT];
    int count, first = 0;
    wrong.count = 0, count = plan_candidates(j, c, a, &wrong);
    for (int i = 0; i < count; i++) {
        plan_on(j, &a[i]), plan_rank(&a[i], rank[i]);
        for (int k = 0; k < 6 && rank[i][k] <= rank[first][k]; k++)
            if (rank[i][k] < rank[first][k]) first = i;
    }
    *best = a[first];
    for (int i = 0; i < wrong.count; i++) plan_say(&best->assumed, "%s", wrong.line[i]);
    for (int i = 0; i < count; i++) {
        double hours = a[i].num[a[i].out[out_spot] ? num_spot_hours : num_est_hours];
        double dollars = a[i].num[a[i].out[out_spot] ? num_cost_spot : num_cost_od];
        if (i == first) continue;
        if (isnan(hours + dollars)) plan_say(&best->rejected, "%s", plan_summary(&a[i], text));
        else plan_say(&best->rejected, "%.150s: %.4g h, $%.0f", plan_summary(&a[i], text), hours, dollars);
    }
}

/* The built-in type that a job names, or `otherwise`; NULL: none, told. For programs that show one formula. */
static inline const cost_type *plan_type(const plan_job *j, const char *otherwise)
{
    static cost_catalogue c;
    const char *name = *j->text[in_instance] ? j->text[in_instance] : otherwise;
    const cost_type *type = cost_open(&c, NULL) ? NULL : cost_find(&c, name, strlen(name));
    if (!type) fprintf(stderr, "instance: '%.40s' is not in the catalogue. ./build.sh plan --list prints it\n", name);
    return type;
}

/* The option of a field, or --facts: the next argument is its value, or what follows =. Returns how many arguments it
 * takes; 0: an error, told. */
static inline int plan_option(plan_job *j, const char *option, const char *value, plan_list *wrong)
{
    char said[PLAN_TEXT], name[40];
    const char *equal = strchr(option, '=');
    int f = -1;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(option, "="), option);
    if (equal) value = equal + 1;
    if (!strncmp(name, "--", 2)) f = plan_word(PLAN_FIELDS(PLAN_NAMES) "facts", name + 2);
    if (f < 0) return fprintf(stderr, "plan: what is '%s'? ./build.sh plan --help lists the fields\n", option), 0;
    if (!value) return fprintf(stderr, "plan: %s needs a value\n", option), 0;
    if (f == PLAN_INPUTS) plan_job_facts(j, value, wrong);
    else if (!plan_job_set(j, f, value, said)) return fprintf(stderr, "plan: %s. Correct it\n", said), 0;
    return equal ? 1 : 2;
}

/* A job from the arguments of a program. 0: one is wrong. */
static inline int plan_arguments(plan_job *j, int argc, char **argv)
{
    plan_list wrong;
    wrong.count = 0, plan_job_clear(j);
    for (int i = 1, n; i < argc; i += n)
        if (!(n = plan_option(j, argv[i], i + 1 < argc ? argv[i + 1] : NULL, &wrong))) return 0;
    for (int i = 0; i < wrong.count; i++) fprintf(stderr, "plan: %s\n", wrong.line[i]);
    return 1;
}

#endif
