/* report.h: what compiling does. A companion of dtrain.h: include it after that, with DT_COMPILER.
 *
 *     dt_probe report;
 *     dt_report_attach(&layout, &report);        before dt_args
 *
 * gives a program the options --compile-report and --verify-compiler. Before the first step two trainers, the second of
 * them compiled, take the first steps of the run, one trainer after the other. The report prints operations, memory and
 * times of both, and when compiling pays. With --verify-compiler the run is refused unless both end with the same
 * weights, bit by bit. A trial needs the memory of a second trainer. */
#ifndef DTRAIN_REPORT_H
#define DTRAIN_REPORT_H

#include <stdio.h>
#include <string.h>

enum { REPORT_PRINT, REPORT_VERIFY, REPORT_STEPS = 3 };
typedef struct report_trial {
    dt_compilation_report is;
    double seconds; /* of the fastest step, on the slowest rank */
    char hash[65];
} report_trial;

static void report_print(const report_trial *plain, const report_trial *compiled, int verified)
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
static dt_result report_try(const dt_probe *p, int mode, report_trial *trial)
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
    for (int64_t i = 0; i < REPORT_STEPS && i < recipe.steps && !r; i++) {
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
static dt_result report_call(dt_probe *p, dt_trainer *t, dt_moment when, const dt_step_info *info)
{
    int verify = p->option[REPORT_VERIFY].value != NULL, print = p->option[REPORT_PRINT].value != NULL;
    report_trial trial[2];
    dt_result r = DT_OK;
    (void)info;
    if (!verify && !print) return r;
    if (when == DT_AT_OPEN && p->layout->compile.mode == DT_COMPILE_OFF)
        return dt_error(DT_E_USAGE, "--compile-report and --verify-compiler need --compile on");
    if (when != DT_AT_START) return r;
    for (int mode = DT_COMPILE_OFF; mode <= DT_COMPILE_ON && !r; mode++) r = report_try(p, mode, &trial[mode]);
    if (!r && verify && strcmp(trial[0].hash, trial[1].hash))
        r = dt_error(DT_E_SELFCHECK, "--verify-compiler: after the first steps the weights have other bits compiled "
                     "than op by op: a fault of the compiler. Train with --compile off, and report it.");
    if (!r && print && dt_trainer_is_root(t)) report_print(&trial[0], &trial[1], verify);
    return r;
}

/* Gives the programs of this layout the options. *p must live as long as the trainer. */
static inline void dt_report_attach(dt_layout *layout, dt_probe *p)
{
    static const dt_probe_option report = {"compile-report", NULL, "print what compiling gained and cost", NULL};
    static const dt_probe_option verify = {"verify-compiler", NULL,
                                           "compare bits of the first steps, compiled and op by op", NULL};
    dt_probe **last = &layout->output.probes;
    memset(p, 0, sizeof *p);
    p->call = report_call, p->option[REPORT_PRINT] = report, p->option[REPORT_VERIFY] = verify;
    while (*last) last = &(*last)->next;
    *last = p;
}

#endif
