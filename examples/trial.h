/* trial.h: what compiling does, by a trial. A companion of dtrain.h: include it after that, with DT_COMPILER.
 *
 *     dt_probe trial;
 *     dt_trial_attach(&layout, &trial);        before dt_args
 *
 * gives a program the options --compile-report and --verify-compiler. Before the first step two trainers, the second of
 * them compiled, take the first steps of the run, one trainer after the other. The report prints operations, memory and
 * times of both, and when compiling pays. With --verify-compiler the run is refused unless both end with the same
 * weights, bit by bit. A trial needs the memory of a second trainer. */
#ifndef DTRAIN_TRIAL_H
#define DTRAIN_TRIAL_H

#include <stdio.h>
#include <string.h>

enum { TRIAL_PRINT, TRIAL_VERIFY, TRIAL_STEPS = 3 };
typedef struct trial_result {
    dt_compilation_report is;
    double seconds; /* of the fastest step, on the slowest rank */
    char hash[65];
} trial_result;

static void trial_print(const trial_result *plain, const trial_result *compiled, int verified)
{
    const dt_compilation_report *r = &compiled->is;
    double gain = plain->seconds / compiled->seconds;
    printf("compiler %lld ops became %lld, of which %lld are groups of %lld ops; compiled in %.3f s%s\n",
           (long long)plain->is.ops, (long long)r->ops, (long long)r->groups, (long long)r->grouped, r->compiling,
           verified ? "; every bit is the same" : "");
    printf("         %lld graphs for %lld segments\n", (long long)r->plans, (long long)r->segments);
    printf("         memory of a unit %.1f MB before, %.1f MB compiled; %.1f MB less go through memory\n",
           (double)plain->is.memory / 1e6, (double)r->memory / 1e6, (double)r->traffic / 1e6);
    printf("         time of a step %.2f ms before, %.2f ms compiled: %.3fx; ", 1e3 * plain->seconds,
           1e3 * compiled->seconds, gain);
    if (gain > 1.0)
        printf("pays from T* = c s/(s-1) = %.3g s on, %.0f steps\n", r->compiling * gain / (gain - 1.0),
               r->compiling / (plain->seconds - compiled->seconds));
    else printf("it saves no time\n");
    fflush(stdout);
}

/* The first steps of a run, which leave no trace (collective). */
static dt_result trial_run(const dt_probe *p, int mode, trial_result *trial)
{
    const dt_layout usual = dt_layout_default();
    dt_recipe recipe = *p->recipe;
    dt_layout layout = *p->layout;
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    float seconds = 0;
    dt_result r;
    layout.output = usual.output, layout.checkpoint = usual.checkpoint;
    layout.output.quiet = 1, layout.output.sample_length = 0, layout.output.eval_every = 0;
    layout.compile.mode = mode;
    if (mode == DT_COMPILE_OFF) layout.compile.passes = NULL;
    r = dt_trainer_open(&t, &recipe, &layout);
    for (int64_t i = 0; i < TRIAL_STEPS && i < recipe.steps && !r; i++) {
        r = dt_trainer_step(t, &info);
        if (!i || (float)info.seconds < seconds) seconds = (float)info.seconds;
    }
    if (!r) r = dt_all_reduce(dt_trainer_comm(t), &seconds, 1, DT_MAX);
    if (!r) r = dt_trainer_compilation(t, &trial->is);
    if (!r) snprintf(trial->hash, sizeof trial->hash, "%s", dt_trainer_hash(t));
    trial->seconds = (double)seconds;
    dt_trainer_close(&t);
    return r;
}

/* dt_probe.call */
static dt_result trial_call(dt_probe *p, dt_trainer *t, dt_moment when, const dt_step_info *info)
{
    int verify = p->option[TRIAL_VERIFY].value != NULL, print = p->option[TRIAL_PRINT].value != NULL;
    trial_result trial[2];
    dt_result r = DT_OK;
    (void)info;
    if (!verify && !print) return r;
    if (when == DT_AT_OPEN && p->layout->compile.mode == DT_COMPILE_OFF)
        return dt_error(DT_E_USAGE, "--compile-report and --verify-compiler need --compile on");
    if (when != DT_AT_START) return r;
    for (int mode = DT_COMPILE_OFF; mode <= DT_COMPILE_ON && !r; mode++) r = trial_run(p, mode, &trial[mode]);
    if (!r && verify && strcmp(trial[0].hash, trial[1].hash))
        r = dt_error(DT_E_SELFCHECK, "--verify-compiler: after the first steps the weights have other bits compiled "
                     "than op by op: a fault of the compiler. Train with --compile off, and report it.");
    if (!r && print && dt_trainer_is_root(t)) trial_print(&trial[0], &trial[1], verify);
    return r;
}

/* Gives the programs of this layout the options. *p must live as long as the trainer. */
static inline void dt_trial_attach(dt_layout *layout, dt_probe *p)
{
    static const dt_probe_option report = {"compile-report", NULL, "print what compiling gained and cost", NULL};
    static const dt_probe_option verify = {"verify-compiler", NULL,
                                           "compare bits of the first steps, compiled and op by op", NULL};
    dt_probe **last = &layout->output.probes;
    memset(p, 0, sizeof *p);
    p->call = trial_call, p->option[TRIAL_PRINT] = report, p->option[TRIAL_VERIFY] = verify;
    while (*last) last = &(*last)->next;
    *last = p;
}

#endif
