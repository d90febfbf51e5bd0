/* rules.h: the usual faults of a training run, by its numbers. A companion of dtrain.h: include it after that.
 *
 * A program passes losses, tensors, labels and the times of its ranks, step by step; rules compare them with bounds and
 * record which rules fired (82_rules.c). Or a trainer passes them: with the two lines
 *
 *     dt_probe rules;
 *     dt_rules_attach(&layout, &rules);          before dt_args
 *
 * a program has the options --rules (look for faults, and report at the end) and --stop-on RULE,.. (save and stop).
 * Lines of --metrics then have rules_fired: bit r is set from the step on where rule r of dt_rule fired.
 *
 * Names and bounds are those of the built-in rules of Amazon SageMaker Debugger, where Debugger has the rule; section
 * Rules of reference.md says when each one fires. Matrices are judged, vectors (units 0: biases) are not. */
#ifndef DTRAIN_RULES_H
#define DTRAIN_RULES_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum dt_rule {
    DT_RULE_VANISHING_GRADIENT, DT_RULE_EXPLODING_TENSOR, DT_RULE_DEAD_RELU, DT_RULE_SATURATED_ACTIVATION,
    DT_RULE_LOSS_NOT_DECREASING, DT_RULE_OVERFIT, DT_RULE_OVERTRAINING, DT_RULE_POOR_INITIALIZATION,
    DT_RULE_UPDATE_RATIO, DT_RULE_ALL_ZERO, DT_RULE_VARIANCE, DT_RULE_UNCHANGED, DT_RULE_CLASS_IMBALANCE,
    DT_RULE_STALLED, DT_RULE_STEP_OUTLIER, DT_RULE_LOAD_BALANCING, DT_RULE_LOW_UTILIZATION, DT_RULE_DATALOADER,
    DT_RULE_MEMORY_INCREASE, DT_RULE_INITIALIZATION_TIME, DT_RULE_COUNT
} dt_rule;

/* What a rule found when it fired first, and how often it did. */
typedef struct dt_firing {
    int64_t step, times;
    double value, bound; /* what was compared */
    int32_t rank;        /* -1: it is not about one */
    char name[96];       /* of the tensor, or "loss", "validation loss"; else empty */
} dt_firing;
/* Called when a rule fires for the first time. The call that passed the number returns its result, if not DT_OK, after
 * all rules have seen the number. It must not pass numbers itself. */
typedef dt_result (*dt_rule_action)(void *user, dt_rule rule, const dt_firing *f);
/* What a tensor is: weights after the step's update, gradients, outputs of a ReLU, inputs of a tanh, of a sigmoid. */
typedef enum dt_tensor_kind {
    DT_KIND_WEIGHT, DT_KIND_GRADIENT, DT_KIND_RELU, DT_KIND_TANH, DT_KIND_SIGMOID, DT_KIND_COUNT
} dt_tensor_kind;
/* A step of a rank. Set it to zeros first: `at` and `memory` of 0 are not known. */
typedef struct dt_rank_step {
    int64_t step;
    int32_t rank;
    double seconds;  /* that it took */
    double waiting;  /* of these, for other ranks */
    double data;     /* of these, for samples */
    double at;       /* when it ended, in seconds since the program began */
    double memory;   /* bytes, or any other unit */
} dt_rank_step;

enum { RULES_BOUNDS = 5, RULES_BLOCK = 10 }; /* block: steps that are judged together */
typedef struct rules_row {
    const char *name;
    double bound[RULES_BOUNDS];
    const char *advice, *next;
} rules_row;
/* In the order of dt_rule. */
static const rules_row rules_table[DT_RULE_COUNT + 1] = {
    {"VanishingGradient", {1e-7}, "use ReLU or GELU, residual connections, norms, or larger initial weights",
     "--precision fp32 --learning-rate LR*3"},
    {"ExplodingTensor", {0}, "lower the learning rate, clip the gradient norm, warm up; look for bad samples",
     "--learning-rate LR/4 --clip 1 --warmup 100"},
    {"DeadRelu", {0.5, 0.01}, "lower the learning rate, start biases at 0, or use GELU or a leaky ReLU",
     "--learning-rate LR/4 --warmup 100"},
    {"SaturatedActivation", {0.5, 0.01, 9.4999, -23, 16.999999}, "use smaller initial weights, scaled inputs, norms",
     "--learning-rate LR/4 --warmup 100"},
    {"LossNotDecreasing", {10, 0.001}, "raise the learning rate, or lower it if the loss jumps; check the labels",
     "--learning-rate LR*3"},
    {"Overfit", {0.1, 1}, "use more data, dropout, weight decay or a smaller model; or stop here",
     "--weight-decay 0.3"},
    {"Overtraining", {5, 10, 0.01}, "stop, and take the checkpoint with the lowest validation loss",
     "--steps BEST"},
    {"PoorWeightInitialization", {10, 10, 0.001}, "draw weights of variance 1 or 2 over a unit's inputs",
     "--seed 2 --warmup 100"},
    {"WeightUpdateRatio", {1e-8, 10}, "choose a learning rate by which a step changes weights by about 0.1 %",
     "--learning-rate LR/4 --warmup 100"},
    {"AllZero", {1}, "check its connection to the loss, inputs, masks and initial weights",
     "--precision fp32 --seed 2"},
    {"TensorVariance", {0}, "check initialization and normalization",
     "--seed 2 --warmup 100"},
    {"UnchangedTensor", {3, 1e-5, 1e-8}, "check that the optimizer has it, its gradient, and the learning rate",
     "--learning-rate LR*3 --precision fp32"},
    {"ClassImbalance", {500, 10}, "draw rare classes more often, or weight their loss",
     "--batch BATCH*4"},
    {"StalledTraining", {1800}, "a rank hangs or waits for data: stop the job, and resume from a checkpoint",
     "--timeout 60 --max-restarts 3"},
    {"StepOutlier", {3, 10}, "look for what else runs then: checkpoints, validation, slow files, other jobs",
     "--eval-every 0 --sample-every 0"},
    {"LoadBalancing", {0.5}, "give the busiest rank less work, or look for what slows its machine",
     "--doctor"},
    {"LowUtilization", {0.7}, "more work between two exchanges, overlap, fewer ranks; dt_doctor tells which",
     "--doctor"},
    {"Dataloader", {0.2}, "read ahead, preprocess samples, keep them on a local disk",
     "--doctor"},
    {"MemoryIncrease", {0.05}, "look for what accumulates from step to step: lists of losses, graphs, buffers",
     "--sample-length 0 --eval-every 0"},
    {"MaxInitializationTime", {1200}, "copy less at the start: stream the data, keep images and caches warm",
     "--steps 5"},
    {"none", {0}, "", ""}};

static const rules_row *rules_at(int32_t i) { return &rules_table[i >= 0 && i < DT_RULE_COUNT ? i : DT_RULE_COUNT]; }
/* Its name, and what to do about it ("none" and "" where there is no such rule). */
static inline const char *dt_rule_name(int32_t rule) { return rules_at(rule)->name; }
static inline const char *dt_rule_advice(int32_t rule) { return rules_at(rule)->advice; }
/* Options to try first, after those of the run. LR and BATCH are its own; BEST has the lowest validation loss. */
static inline const char *dt_rule_next(int32_t rule) { return rules_at(rule)->next; }

typedef struct rules_tensor {
    char name[96];
    int32_t kind;
    int64_t step, count, unchanged; /* last step; elements; updates in a row that changed nothing */
    float *before;                  /* matrices of weights: (count) at the last step, else NULL */
} rules_tensor;
typedef struct rules_rank {
    int64_t step, steps, usual, outliers; /* step: the last one, -1: none. usual: steps that are not outliers */
    double mean, squares;                 /* of the usual steps' seconds: mean, and sum of squared distances */
    double seconds, data, work, memory;   /* sums over the current block */
    double first_memory;                  /* mean over the first block where it is known */
    double done, took;                    /* work and seconds of the last complete block */
} rules_rank;
typedef struct rules_spread { /* variances of a step's activations of one kind */
    int64_t step;
    double least, most;
} rules_spread;

/* The rules of one run. */
typedef struct dt_rules {
    double bound[DT_RULE_COUNT][RULES_BOUNDS];
    dt_firing fired[DT_RULE_COUNT], now; /* now: step, rank and name of the current call's numbers */
    dt_rule_action action;
    void *user;
    dt_result answer; /* of the action, in the current call */
    int64_t step[2], stale[2]; /* of training and validation loss: the last step, -1: none; losses since the best */
    double best[2], looked, sum, summed; /* looked: the loss compared last; sum, number since the last validation */
    int64_t looked_step, over;
    rules_tensor *tensor;
    int64_t tensors, room, cursor; /* cursor: where the next one probably is */
    int32_t *units;                /* scratch */
    int64_t *classes, units_room, labels; /* number of labels of each class, and of all */
    rules_spread spread[DT_KIND_COUNT];
    rules_rank *rank;
    double progress; /* when the last step ended; NaN: unknown */
    int32_t class_count, ranks, began;
} dt_rules;

static dt_result rules_no_memory(void) { return dt_error(DT_E_MEMORY, "no memory for the rules: use a smaller model"); }
static dt_result rules_null(const char *call) { return dt_error(DT_E_USAGE, "%s: an argument is NULL", call); }

/* Makes room for `need` elements of `size` bytes in *list, which has *room; 0 without memory. */
static int rules_reserve(void **list, int64_t *room, int64_t need, size_t size)
{
    int64_t more = need > 2 * *room ? need : 2 * *room;
    void *bigger = need > *room ? realloc(*list, (size_t)more * size) : *list;
    if (!bigger) return 0;
    if (need > *room) *list = bigger, *room = more;
    return 1;
}

/* Fires a rule if its number is below ('<') or above ('>') its bound, or has reached it ('='). */
static void rules_if(dt_rules *r, int rule, double value, char compares, int bound)
{
    dt_firing *f = &r->fired[rule], *now = &r->now;
    dt_result answer;
    now->times = 1, now->value = value, now->bound = r->bound[rule][bound];
    if (!(compares == '<' ? value < now->bound : compares == '>' ? value > now->bound : value >= now->bound)) return;
    if (f->times++) return;
    *f = *now;
    answer = r->action ? r->action(r->user, (dt_rule)rule, f) : DT_OK;
    if (!r->answer) r->answer = answer;
}

/* ranks: their number in dt_rules_step. *rules is NULL after an error, and once closed. One thread at a time. */
static inline dt_result dt_rules_open(dt_rules **rules, int32_t ranks)
{
    dt_rules *r;
    if (!rules) return rules_null("dt_rules_open");
    *rules = NULL;
    if (ranks < 1) return dt_error(DT_E_USAGE, "dt_rules_open: %d ranks. Give 1 or more.", (int)ranks);
    r = (dt_rules *)calloc(1, sizeof *r);
    if (r) r->rank = (rules_rank *)calloc((size_t)ranks, sizeof *r->rank);
    if (!r || !r->rank) return free(r), rules_no_memory();
    for (int i = 0; i < DT_RULE_COUNT; i++) memcpy(r->bound[i], rules_table[i].bound, sizeof r->bound[i]);
    for (int32_t i = 0; i < ranks; i++) r->rank[i].step = -1;
    for (int i = 0; i < DT_KIND_COUNT; i++) r->spread[i].step = -1;
    r->step[0] = r->step[1] = -1;
    r->best[0] = r->best[1] = (double)INFINITY;
    r->progress = r->looked = r->bound[DT_RULE_VARIANCE][0] = r->bound[DT_RULE_VARIANCE][1] = (double)NAN;
    r->ranks = ranks;
    *rules = r;
    return DT_OK;
}

static inline void dt_rules_close(dt_rules **rules)
{
    dt_rules *r = rules ? *rules : NULL;
    if (!r) return;
    for (int64_t i = 0; i < r->tensors; i++) free(r->tensor[i].before);
    free(r->tensor);
    free(r->units);
    free(r->classes);
    free(r->rank);
    free(r);
    *rules = NULL;
}

/* Sets bound [index] of a rule; a comparison with NaN never fires. */
static inline dt_result dt_rules_set(dt_rules *r, int32_t rule, int32_t index, double value)
{
    if (!r) return rules_null("dt_rules_set");
    if (rule < 0 || rule >= DT_RULE_COUNT || index < 0 || index >= RULES_BOUNDS)
        return dt_error(DT_E_USAGE, "dt_rules_set: there is no rule %d with a bound %d", (int)rule, (int)index);
    r->bound[rule][index] = value;
    return DT_OK;
}
static inline dt_result dt_rules_on_fire(dt_rules *r, dt_rule_action action, void *user)
{
    if (!r) return rules_null("dt_rules_on_fire");
    r->action = action, r->user = user;
    return DT_OK;
}

/* Begins a call. The steps of a series must rise. */
static dt_result rules_begin(dt_rules *r, const char *call, int64_t last, int64_t step, int32_t rank, const char *name)
{
    if (step < 0 || step <= last)
        return dt_error(DT_E_USAGE, "%s: step %lld after step %lld. Steps count from 0 and must rise.", call,
                        (long long)step, (long long)last);
    r->answer = DT_OK;
    r->now.step = step, r->now.rank = rank;
    snprintf(r->now.name, sizeof r->now.name, "%s", name);
    return DT_OK;
}

/* Notes a loss of one kind, 0 training, 1 validation: is it finite, is it the best so far? */
static int rules_finite(dt_rules *r, int kind, double loss)
{
    int finite = loss - loss == 0.0;
    r->step[kind] = r->now.step;
    rules_if(r, DT_RULE_EXPLODING_TENSOR, !finite, '>', 0);
    r->stale[kind] += finite;
    if (loss < r->best[kind] - r->bound[DT_RULE_OVERTRAINING][2]) r->best[kind] = loss, r->stale[kind] = 0;
    return finite;
}

/* The mean training loss of a step. Steps rise from 0 or above. */
static inline dt_result dt_rules_loss(dt_rules *r, int64_t step, double loss)
{
    dt_result e = r ? rules_begin(r, "dt_rules_loss", r->step[0], step, -1, "loss") : rules_null("dt_rules_loss");
    if (e || !rules_finite(r, 0, loss)) return e ? e : r->answer;
    r->sum += loss, r->summed += 1.0;
    if (r->looked == r->looked && !((double)(step - r->looked_step) >= r->bound[DT_RULE_LOSS_NOT_DECREASING][0]))
        return r->answer;
    rules_if(r, DT_RULE_LOSS_NOT_DECREASING, (r->looked - loss) / fabs(r->looked), '<', 1);
    r->looked = loss, r->looked_step = step;
    return r->answer;
}

/* The validation loss after a step, which follows its training loss. */
static inline dt_result dt_rules_validation(dt_rules *r, int64_t step, double loss)
{
    const double *fit;
    double mean, over;
    dt_result e;
    if (!r) return rules_null("dt_rules_validation");
    e = rules_begin(r, "dt_rules_validation", r->step[1], step, -1, "validation loss");
    if (e || !rules_finite(r, 1, loss)) return e ? e : r->answer;
    fit = r->bound[DT_RULE_OVERFIT];
    mean = r->summed > 0.0 ? r->sum / r->summed : (double)NAN;
    over = (loss - mean) / fabs(mean);
    r->over = over > fit[0] ? r->over + 1 : 0;
    if ((double)r->over >= fit[1]) rules_if(r, DT_RULE_OVERFIT, over, '>', 0);
    if ((double)r->stale[0] >= r->bound[DT_RULE_OVERTRAINING][0])
        rules_if(r, DT_RULE_OVERTRAINING, (double)r->stale[1], '=', 1);
    r->sum = r->summed = 0.0;
    return r->answer;
}

/* ---- rules about tensors ---- */
/* The share of a tensor's units that lie between two limits in too few rows, and the variances of a step's tensors. */
static dt_result rules_activation(dt_rules *r, int32_t kind, const float *x, int64_t rows, int64_t units,
                                      double variance)
{
    int rule = kind == DT_KIND_RELU ? DT_RULE_DEAD_RELU : DT_RULE_SATURATED_ACTIVATION;
    const double *b = r->bound[rule];
    float low = (float)(kind == DT_KIND_RELU ? 0.0 : kind == DT_KIND_TANH ? -b[2] : b[3]);
    float high = (float)(kind == DT_KIND_RELU ? (double)INFINITY : kind == DT_KIND_TANH ? b[2] : b[4]);
    rules_spread *w = &r->spread[kind];
    int64_t idle = 0;
    if (!rules_reserve((void **)&r->units, &r->units_room, units, sizeof *r->units)) return rules_no_memory();
    memset(r->units, 0, (size_t)units * sizeof *r->units);
    for (int64_t i = 0; i < rows; i++, x += units)
        for (int64_t u = 0; u < units; u++) r->units[u] += (x[u] > low) & (x[u] < high);
    for (int64_t u = 0; u < units; u++) idle += (double)r->units[u] < b[1] * (double)rows;
    rules_if(r, rule, (double)idle / (double)units, '>', 0);
    if (!((double)r->now.step <= r->bound[DT_RULE_POOR_INITIALIZATION][0])) return DT_OK;
    if (w->step != r->now.step) w->least = w->most = variance;
    w->step = r->now.step;
    if (variance < w->least) w->least = variance;
    if (variance > w->most) w->most = variance;
    rules_if(r, DT_RULE_POOR_INITIALIZATION, w->most / w->least, '>', 1);
    return DT_OK;
}

static int rules_order(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The first weights: the range between percentiles of up to 65536 of them, evenly spaced. */
static void rules_first(dt_rules *r, float *scratch, const float *x, int64_t count)
{
    int64_t n = count < 65536 ? count : 65536, stride = count / n;
    if (n < 2 || !((double)r->now.step <= r->bound[DT_RULE_POOR_INITIALIZATION][0])) return;
    for (int64_t i = 0; i < n; i++) scratch[i] = x[i * stride];
    qsort(scratch, (size_t)n, sizeof *scratch, rules_order);
    rules_if(r, DT_RULE_POOR_INITIALIZATION,
                (double)scratch[(95 * n + 99) / 100 - 1] - (double)scratch[(5 * n + 99) / 100 - 1], '<', 2);
}

/* Compares a matrix of weights with its values at the previous step. */
static void rules_update(dt_rules *r, rules_tensor *t, const float *x)
{
    const double *same = r->bound[DT_RULE_UNCHANGED];
    double change = 0.0, size = 0.0, ratio;
    int64_t others = 0;
    for (int64_t i = 0; i < t->count; i++) {
        double was = (double)fabsf(t->before[i]), d = fabs((double)x[i] - (double)t->before[i]);
        change += d, size += was;
        others += !(d <= same[2] + same[1] * was);
    }
    ratio = size > 0.0 ? change / (size + 1e-9 * (double)t->count) : (double)NAN;
    rules_if(r, DT_RULE_UPDATE_RATIO, ratio, '<', 0);
    rules_if(r, DT_RULE_UPDATE_RATIO, ratio, '>', 1);
    t->unchanged = others ? 0 : t->unchanged + 1;
    if (t->unchanged) rules_if(r, DT_RULE_UNCHANGED, (double)t->unchanged, '=', 0);
}

static dt_result rules_weight(dt_rules *r, rules_tensor *t, const float *x)
{
    if (t->before) rules_update(r, t, x);
    else if (!(t->before = (float *)malloc(4 * (size_t)t->count))) return rules_no_memory();
    else rules_first(r, t->before, x, t->count);
    memcpy(t->before, x, 4 * (size_t)t->count);
    return DT_OK;
}

/* The tensor of this kind and name, added at its first use; NULL: no memory. Tensors usually come in the same order. */
static rules_tensor *rules_find(dt_rules *r, const char *name, int32_t kind)
{
    rules_tensor *t;
    for (int64_t i = 0; i < r->tensors; i++) {
        int64_t at = (r->cursor + i) % r->tensors;
        t = &r->tensor[at];
        if (t->kind != kind || strcmp(t->name, name)) continue;
        r->cursor = at + 1;
        return t;
    }
    if (!rules_reserve((void **)&r->tensor, &r->room, r->tensors + 1, sizeof *t)) return NULL;
    t = &r->tensor[r->tensors++];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->kind = kind;
    t->step = t->count = -1;
    return t;
}

static dt_result rules_check(const char *name, int32_t kind, const float *x, int64_t count, int64_t units)
{
    if (!name || !*name || strlen(name) > 95 || kind < 0 || kind >= DT_KIND_COUNT)
        return dt_error(DT_E_USAGE, "dt_rules_tensor: a tensor needs a name of 1 to 95 bytes, and a dt_tensor_kind");
    if (count >= 0 && units >= 0 && !(units && count % units) && (x || !count)) return DT_OK;
    return dt_error(DT_E_USAGE, "dt_rules_tensor: %s has %lld elements%s in rows of %lld. Give 0 or more whole rows.",
                      name, (long long)count, x ? "" : " at NULL", (long long)units);
}

/* A tensor of `count` elements in rows of `units`; units 0: a vector. name has up to 95 bytes; a kind and name stand
 * for a tensor of one size. The rules keep a copy of matrices of weights. */
static inline dt_result dt_rules_tensor(dt_rules *r, int64_t step, const char *name, dt_tensor_kind kind,
                                        const float *values, int64_t count, int64_t units)
{
    rules_tensor *t;
    double n = (double)count, size = 0.0, moved = 0.0, squares = 0.0, zeros = 0.0, bad = 0.0, variance;
    dt_result e = r ? rules_check(name, (int32_t)kind, values, count, units) : rules_null("dt_rules_tensor");
    if (e) return e;
    if (!(t = rules_find(r, name, (int32_t)kind))) return rules_no_memory();
    if ((e = rules_begin(r, "dt_rules_tensor", t->step, step, -1, name)) != DT_OK) return e;
    if (t->count >= 0 && t->count != count)
        return dt_error(DT_E_USAGE, "dt_rules_tensor: %s had %lld elements and now has %lld. Give it another name.",
                          name, (long long)t->count, (long long)count);
    t->step = step, t->count = count;
    for (int64_t i = 0; i < count; i++) {
        double v = (double)values[i], d = v - (double)values[0];
        size += fabs(v), moved += d, squares += d * d;
        zeros += v == 0.0, bad += !(v - v == 0.0);
    }
    rules_if(r, DT_RULE_EXPLODING_TENSOR, bad, '>', 0);
    if (!count || bad > 0.0) return r->answer;
    variance = (squares - moved / n * moved) / n;
    if (variance < 0.0) variance = 0.0; /* rounding */
    if (kind == DT_KIND_GRADIENT) rules_if(r, DT_RULE_VANISHING_GRADIENT, size / n, '<', 0);
    if (kind != DT_KIND_WEIGHT || units) rules_if(r, DT_RULE_ALL_ZERO, zeros / n, '=', 0);
    rules_if(r, DT_RULE_VARIANCE, variance, '<', 0);
    rules_if(r, DT_RULE_VARIANCE, variance, '>', 1);
    if (!units && kind != DT_KIND_WEIGHT) units = count;
    if (kind >= DT_KIND_RELU) e = rules_activation(r, (int32_t)kind, values, count / units, units, variance);
    if (kind == DT_KIND_WEIGHT && units) e = rules_weight(r, t, values);
    return e ? e : r->answer;
}

/* Classes (0 to classes - 1) of `count` samples that were trained on; those below 0 do not count. */
static inline dt_result dt_rules_labels(dt_rules *r, int64_t step, const int32_t *labels, int64_t count,
                                        int32_t classes)
{
    int64_t most = 0, least = INT64_MAX;
    dt_result e = !r || (count > 0 && !labels) ? rules_null("dt_rules_labels")
                                               : rules_begin(r, "dt_rules_labels", -1, step, -1, "labels");
    if (e) return e;
    if (count < 0 || classes < 1 || (r->class_count && r->class_count != classes))
        return dt_error(DT_E_USAGE, "dt_rules_labels: %lld labels of %d classes. Give a list of 0 or more labels, and "
                          "always the same number of classes.", (long long)count, (int)classes);
    for (int64_t i = 0; i < count; i++)
        if (labels[i] >= classes)
            return dt_error(DT_E_USAGE, "dt_rules_labels: label %d is not below %d classes", (int)labels[i],
                              (int)classes);
    if (!r->classes) r->classes = (int64_t *)calloc((size_t)classes, 8);
    if (!r->classes) return rules_no_memory();
    r->class_count = classes;
    for (int64_t i = 0; i < count; i++)
        if (labels[i] >= 0) r->classes[labels[i]]++, r->labels++;
    for (int32_t c = 0; c < classes; c++) {
        if (r->classes[c] > most) most = r->classes[c];
        if (r->classes[c] < least) least = r->classes[c];
    }
    if ((double)r->labels >= r->bound[DT_RULE_CLASS_IMBALANCE][0])
        rules_if(r, DT_RULE_CLASS_IMBALANCE, (double)most / (double)least, '>', 1);
    return r->answer;
}

/* ---- rules about the steps of ranks ---- */
static void rules_outlier(dt_rules *r, rules_rank *k, double seconds)
{
    const double *b = r->bound[DT_RULE_STEP_OUTLIER];
    double far = seconds - k->mean, deviations = far / sqrt(k->squares / (double)k->usual);
    if (k->usual >= RULES_BLOCK && deviations > b[0]) {
        if ((double)++k->outliers > b[1]) rules_if(r, DT_RULE_STEP_OUTLIER, deviations, '>', 0);
        return;
    }
    k->mean += far / (double)++k->usual; /* Welford 1962 */
    k->squares += far * (seconds - k->mean);
}

/* What LoadBalancing finds makes the other ranks wait, so LowUtilization is asked only when it finds nothing. */
static void rules_balance(dt_rules *r, int64_t steps)
{
    int32_t least = 0, most = 0;
    double balance;
    for (int32_t i = 0; i < r->ranks; i++) {
        if (r->rank[i].steps != steps) return; /* the rank is still in the block */
        if (r->rank[i].done < r->rank[least].done) least = i;
        if (r->rank[i].done > r->rank[most].done) most = i;
    }
    r->now.rank = most, balance = r->rank[least].done / r->rank[most].done;
    rules_if(r, DT_RULE_LOAD_BALANCING, balance, '<', 0);
    for (int32_t i = 0; i < r->ranks && !(balance < r->bound[DT_RULE_LOAD_BALANCING][0]); i++)
        r->now.rank = i, rules_if(r, DT_RULE_LOW_UTILIZATION, r->rank[i].done / r->rank[i].took, '<', 0);
}

/* A block of steps of a rank is complete. */
static void rules_block(dt_rules *r, rules_rank *k)
{
    double memory = k->memory / (double)RULES_BLOCK;
    if (!(k->first_memory > 0.0)) k->first_memory = memory;
    rules_if(r, DT_RULE_DATALOADER, k->data / k->seconds, '>', 0);
    rules_if(r, DT_RULE_MEMORY_INCREASE, memory / k->first_memory - 1.0, '>', 0);
    k->done = k->work, k->took = k->seconds;
    k->seconds = k->data = k->work = k->memory = 0.0;
    rules_balance(r, k->steps);
}

static inline dt_result dt_rules_step(dt_rules *r, const dt_rank_step *s)
{
    rules_rank *k;
    double work;
    dt_result e;
    if (!r || !s) return rules_null("dt_rules_step");
    if (s->rank < 0 || s->rank >= r->ranks)
        return dt_error(DT_E_USAGE, "dt_rules_step: rank %d of %d. Give dt_rules_open() the number of ranks.",
                          (int)s->rank, (int)r->ranks);
    k = &r->rank[s->rank];
    if ((e = rules_begin(r, "dt_rules_step", k->step, s->step, s->rank, "")) != DT_OK) return e;
    if (!(s->seconds >= 0.0 && s->waiting >= 0.0 && s->data >= 0.0 && s->seconds < 1e300))
        return dt_error(DT_E_USAGE, "dt_rules_step: rank %d, step %lld: %g seconds, %g waiting, %g for data: give "
                          "times of 0 or more", (int)s->rank, (long long)s->step, s->seconds, s->waiting, s->data);
    work = s->seconds - s->waiting - s->data;
    k->step = s->step;
    if (!r->began) rules_if(r, DT_RULE_INITIALIZATION_TIME, s->at - s->seconds, '>', 0);
    r->began = 1;
    rules_outlier(r, k, s->seconds);
    k->seconds += s->seconds, k->data += s->data, k->work += work > 0.0 ? work : 0.0;
    k->memory += s->memory > 0.0 ? s->memory : (double)NAN; /* NaN: that of the block is not known */
    if (++k->steps % RULES_BLOCK == 0) rules_block(r, k);
    r->now.rank = -1;
    rules_if(r, DT_RULE_STALLED, s->at - r->progress, '>', 0);
    if (s->at > 0.0) r->progress = s->at;
    return r->answer;
}

/* It is `at` seconds since the program began: for a monitor of a run that may have stalled. */
static inline dt_result dt_rules_clock(dt_rules *r, double at)
{
    dt_result e;
    if (!r) return rules_null("dt_rules_clock");
    if (!(at - at == 0.0)) return dt_error(DT_E_USAGE, "dt_rules_clock: at is %g: pass a finite number", at);
    e = rules_begin(r, "dt_rules_clock", -1, r->step[0] < 0 ? 0 : r->step[0], -1, "");
    rules_if(r, DT_RULE_STALLED, at - r->progress, '>', 0);
    if (!(r->progress == r->progress)) r->progress = at; /* the first look */
    return e ? e : r->answer;
}

/* What a rule found, owned by rules; NULL while it has not fired. */
static inline const dt_firing *dt_rules_fired(const dt_rules *r, int32_t rule)
{
    return r && rule >= 0 && rule < DT_RULE_COUNT && r->fired[rule].times ? &r->fired[rule] : NULL;
}
static int32_t rules_count(const dt_rules *r)
{
    int32_t count = 0;
    for (int32_t i = 0; i < DT_RULE_COUNT; i++) count += r->fired[i].times > 0;
    return count;
}

/* Adds to a text of `size` bytes; *used counts on where it is full. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
static void rules_add(char *text, int64_t size, int64_t *used, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    *used += vsnprintf(*used < size ? text + *used : NULL, *used < size ? (size_t)(size - *used) : 0, format, args);
    va_end(args);
}

/* A table of the rules that fired: where and when, and what to do. DT_E_USAGE: `size` bytes are too few. */
enum { DT_RULES_TEXT = 8000 };
static inline dt_result dt_rules_text(const dt_rules *r, char *text, int64_t size)
{
    int64_t used = 0;
    if (!r || !text || size < 0) return rules_null("dt_rules_text");
    rules_add(text, size, &used, "rules    %d of %d fired\n", (int)rules_count(r), DT_RULE_COUNT);
    for (int32_t i = 0; i < DT_RULE_COUNT; i++) {
        const dt_firing *f = &r->fired[i];
        if (!f->times) continue;
        rules_add(text, size, &used, "  %-24s  step %lld  %.4g (bound %.4g)  %s%s", dt_rule_name(i), (long long)f->step,
                  f->value, f->bound, f->name, *f->name ? "  " : "");
        if (f->rank >= 0) rules_add(text, size, &used, "rank %d  ", (int)f->rank);
        rules_add(text, size, &used, "x%lld\n    do: %s\n    try: the same command with %s\n",
                  (long long)f->times, dt_rule_advice(i), dt_rule_next(i));
    }
    if (used < size) return DT_OK;
    return dt_error(DT_E_USAGE, "a text of %lld bytes does not fit into %lld. Give it room for %lld.", (long long)used,
                    (long long)size, (long long)used + 1);
}

/* ---- a trainer's rules: --rules and --stop-on ---- */
enum { RULES_ON, RULES_STOP }; /* options */
typedef struct rules_watch {
    dt_rules *rules;     /* the same on all ranks, which give them the same numbers */
    uint32_t stops;      /* bit: rule that stops the run */
    double losses[2];    /* sum and number of losses since the rules got their last mean */
    double opened;       /* seconds of the clock */
    float *times, *gradient; /* (ranks, 5) of a step; of a parameter */
    int64_t room, steps; /* of gradient; steps so far */
} rules_watch;

static double rules_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Kilobytes of memory of this process; 0: not known. */
static float rules_memory(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long long kb = 0;
    while (f && !kb && fgets(line, sizeof line, f)) (void)sscanf(line, "VmRSS: %lld", &kb);
    if (f) fclose(f);
    return (float)kb;
}

/* The rules of --stop-on. Activations, bounds and labels come from programs, never from a trainer. */
static dt_result rules_stops(rules_watch *w, const char *list)
{
    const uint32_t never = 1u << DT_RULE_DEAD_RELU | 1u << DT_RULE_SATURATED_ACTIVATION | 1u << DT_RULE_VARIANCE |
                           1u << DT_RULE_CLASS_IMBALANCE;
    char all[600] = "";
    for (size_t n; *list; list += n + (list[n] == ',')) {
        int32_t rule = 0;
        n = strcspn(list, ",");
        while (rule < DT_RULE_COUNT && (strlen(dt_rule_name(rule)) != n || strncmp(list, dt_rule_name(rule), n)))
            rule++;
        for (int32_t i = 0; i < DT_RULE_COUNT && rule == DT_RULE_COUNT; i++)
            if (!(never >> i & 1u))
                snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", *all ? ", " : "", dt_rule_name(i));
        if (rule == DT_RULE_COUNT)
            return dt_error(DT_E_USAGE, "--stop-on %.*s: no rule has this name. Choose from %s.", (int)n, list, all);
        if (never >> rule & 1u)
            return dt_error(DT_E_USAGE, "--stop-on %s: a trainer has no numbers for that rule. Give them to dt_rules "
                            "in a loop of your own (examples/82_rules.c)", dt_rule_name(rule));
        w->stops |= 1u << rule;
    }
    return DT_OK;
}

static dt_result rules_begin_watch(dt_probe *p, dt_trainer *t)
{
    int ranks = dt_comm_size(dt_trainer_comm(t));
    rules_watch *w;
    dt_result r;
    if (!p->option[RULES_ON].value && !p->option[RULES_STOP].value) return DT_OK;
    if (p->option[RULES_STOP].value && !p->layout->checkpoint.place)
        return dt_error(DT_E_USAGE, "--stop-on saves before it stops: --checkpoint DIR names a place");
    p->user = w = (rules_watch *)calloc(1, sizeof *w);
    if (w) w->times = (float *)malloc(5 * sizeof(float) * (size_t)ranks);
    if (!w || !w->times) return rules_no_memory();
    p->metric = "rules_fired", w->opened = rules_now();
    r = p->option[RULES_STOP].value ? rules_stops(w, p->option[RULES_STOP].value) : DT_OK;
    if (!r) r = dt_rules_open(&w->rules, ranks);
    return r ? r : dt_rules_set(w->rules, DT_RULE_LOSS_NOT_DECREASING, 0, 50); /* 10 fits losses without noise */
}

/* Weights and gradients of all parameters, where each rank has all of them. */
static dt_result rules_tensors(dt_probe *p, dt_trainer *t, int64_t step)
{
    rules_watch *w = (rules_watch *)p->user;
    dt_mesh m = dt_plan_mesh(dt_trainer_plan(t));
    const char *name;
    dt_shape shape;
    dt_result r = DT_OK;
    if (m.size[DT_AXIS_PIPELINE] > 1 || m.size[DT_AXIS_TENSOR] > 1) return r;
    if (m.size[DT_AXIS_DATA] > 1 && (p->layout->zero || p->layout->ep > 1)) return r;
    for (int64_t i = 0; !r && (name = dt_trainer_parameter_at(t, i, &shape)) != NULL; i++) {
        int64_t count = dt_shape_count(shape), units = shape.dims < 2 ? 0 : shape.n[shape.dims - 1];
        const float *values = dt_trainer_parameter(t, name, NULL);
        if (strlen(name) > 95) continue;
        if (!values || !rules_reserve((void **)&w->gradient, &w->room, count, sizeof(float))) return rules_no_memory();
        r = dt_trainer_gradient(t, name, w->gradient);
        if (!r) r = dt_rules_tensor(w->rules, step, name, DT_KIND_GRADIENT, w->gradient, count, units);
        if (!r) r = dt_rules_tensor(w->rules, step, name, DT_KIND_WEIGHT, values, count, units);
    }
    return r;
}

/* What a step did, on all ranks. The first ten steps still allocate memory. */
static dt_result rules_watch_step(dt_probe *p, dt_trainer *t, const dt_step_info *info)
{
    rules_watch *w = (rules_watch *)p->user;
    dt_comm *c = dt_trainer_comm(t);
    int validated = info->validation == info->validation;
    float own[5];
    dt_rank_step s;
    dt_result r = DT_OK;
    w->losses[0] += (double)info->loss, w->losses[1] += 1.0;
    if (w->losses[1] >= 10.0 || validated) {
        r = dt_rules_loss(w->rules, info->step, w->losses[0] / w->losses[1]);
        w->losses[0] = w->losses[1] = 0.0;
    }
    if (!r && validated) r = dt_rules_validation(w->rules, info->step, (double)info->validation);
    own[0] = (float)info->seconds, own[1] = (float)(info->exposed_seconds + info->agree_seconds);
    own[2] = (float)info->data_seconds, own[3] = ++w->steps > 10 ? rules_memory() : 0.0f;
    own[4] = (float)(rules_now() - w->opened);
    if (!r) r = dt_all_gather(c, own, w->times, 5);
    memset(&s, 0, sizeof s);
    for (s.step = info->step; s.rank < dt_comm_size(c) && !r; s.rank++) {
        const float *x = w->times + 5 * (int64_t)s.rank;
        s.seconds = (double)x[0], s.waiting = (double)x[1], s.data = (double)x[2], s.memory = (double)x[3];
        s.at = (double)w->times[4];
        r = dt_rules_step(w->rules, &s);
    }
    if (!r && info->norm - info->norm == 0.0f) r = rules_tensors(p, t, info->step); /* else the step was skipped */
    p->number = 0.0;
    for (int32_t i = 0; i < DT_RULE_COUNT; i++) p->number += w->rules->fired[i].times ? (double)(1u << i) : 0.0;
    for (int32_t i = 0; i < DT_RULE_COUNT && !r; i++)
        if ((w->stops >> i & 1u) && dt_rules_fired(w->rules, i))
            return dt_error(DT_E_STOPPED, "by rule %s", dt_rule_name(i));
    return r;
}

static void rules_print(const dt_rules *rules)
{
    char text[DT_RULES_TEXT];
    if (!dt_rules_text(rules, text, (int64_t)sizeof text)) printf("%s", text);
    fflush(stdout);
}

/* dt_probe.call */
static dt_result rules_call(dt_probe *p, dt_trainer *t, dt_moment when, const dt_step_info *info)
{
    rules_watch *w = (rules_watch *)p->user;
    float none = NAN;
    if (when == DT_AT_OPEN) return rules_begin_watch(p, t);
    if (!w) return DT_OK;
    if (when == DT_AT_STEP) return rules_watch_step(p, t, info);
    if (when == DT_AT_FAULT)
        (void)dt_rules_tensor(w->rules, info->step + 1, "loss or gradients", DT_KIND_GRADIENT, &none, 1, 0);
    if ((when == DT_AT_FAULT || when == DT_AT_END) && dt_trainer_is_root(t)) rules_print(w->rules);
    if (when != DT_AT_CLOSE) return DT_OK;
    dt_rules_close(&w->rules);
    free(w->times);
    free(w->gradient);
    free(w);
    p->user = NULL;
    return DT_OK;
}

/* Gives the programs of this layout the options --rules and --stop-on. *p must live as long as the trainer. */
static inline void dt_rules_attach(dt_layout *layout, dt_probe *p)
{
    static const dt_probe_option on = {"rules", NULL, "look for the usual faults, and report at the end", NULL};
    static const dt_probe_option stop = {"stop-on", "RULE,..", "save and stop when one of these rules fires", NULL};
    dt_probe **last = &layout->output.probes;
    memset(p, 0, sizeof *p);
    p->call = rules_call, p->option[RULES_ON] = on, p->option[RULES_STOP] = stop;
    while (*last) last = &(*last)->next;
    *last = p;
}

#endif
