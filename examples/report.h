/* report.h: what compiling did. A companion of dtrain.h: include it after that, with DT_COMPILER.
 *
 *     dt_probe report;
 *     dt_report_attach(&layout, &report);        before dt_args
 *
 * gives a program the option --compile-report: before the first step it prints operations, memory and measured times,
 * as recorded and compiled, when compiling pays, and which ops take longest: the numbers of dt_trainer_compilation. */
#ifndef DTRAIN_REPORT_H
#define DTRAIN_REPORT_H

#include <stdio.h>
#include <string.h>

static void report_print(const dt_compilation_report *r, const dt_layout *asked)
{
    double gain = r->before / r->seconds;
    printf("compiler %lld ops became %lld, of which %lld are groups of %lld ops; compiled in %.3f s%s\n",
           (long long)r->recorded, (long long)r->ops, (long long)r->groups, (long long)r->grouped, r->compiling,
           asked->compile.verify ? "; every bit is the same" : "");
    printf("         %lld graphs for %lld segments\n", (long long)r->plans, (long long)r->segments);
    printf("         memory of a unit %.1f MB before, %.1f MB compiled; %.1f MB less go through memory\n",
           (double)r->memory_before / 1e6, (double)r->memory / 1e6, (double)r->traffic / 1e6);
    printf("         time of a step %.2f ms before, %.2f ms compiled: %.3fx; ", 1e3 * r->before, 1e3 * r->seconds,
           gain);
    if (r->seconds < r->before)
        printf("pays from T* = c s/(s-1) = %.3g s on, %.0f steps\n", r->compiling * gain / (gain - 1.0),
               r->compiling / (r->before - r->seconds));
    else printf("it saves no time\n");
    for (int i = 0; i < 6 && r->slowest[i]; i++)
        printf("%s%s %.1f %%", i ? ", " : "         its time: ", r->slowest[i], 100.0 * r->share[i]);
    printf("\n");
    fflush(stdout);
}

/* dt_probe.call */
static dt_result report_call(dt_probe *p, dt_trainer *t, dt_moment when, const dt_step_info *info)
{
    dt_compilation_report report;
    (void)info;
    if (!p->option[0].value) return DT_OK;
    if (when == DT_AT_OPEN) p->layout->compile.report = 1;
    if (when == DT_AT_START && dt_trainer_is_root(t) && !dt_trainer_compilation(t, &report))
        report_print(&report, p->layout);
    return DT_OK;
}

/* Gives the programs of this layout the option --compile-report. *p must live as long as the trainer. */
static inline void dt_report_attach(dt_layout *layout, dt_probe *p)
{
    static const dt_probe_option report = {"compile-report", NULL, "print what compiling gained and cost", NULL};
    dt_probe **last = &layout->output.probes;
    memset(p, 0, sizeof *p);
    p->call = report_call, p->option[0] = report;
    while (*last) last = &(*last)->next;
    *last = p;
}

#endif
