/* sweep.h: one number varied, as a table and as a plot (SVG): efficiency and price against nodes, Spot against
 * on-demand, the break-even of a compiler. Part of plan.c. */
#ifndef SWEEP_H
#define SWEEP_H

#include "plan.h"

enum { SWEEP_POINTS = 16, SWEEP_SERIES = 4 };

typedef struct sweep {
    char title[160], formula[240], x_name[40], y_name[40], name[SWEEP_SERIES][48], note[200];
    double x[SWEEP_POINTS], y[SWEEP_SERIES][SWEEP_POINTS];
    int points, series, plotted; /* plotted: the first series of the plot; those before have other units */
} sweep;

/* At least three digits, and no exponent up to a million. */
static const char *sweep_number(double n, char text[32])
{
    double size = fabs(n);
    const char *how = size >= 1e6 ? "%.4g" : n == floor(n) || size >= 100 ? "%.0f" : size >= 10 ? "%.1f" : "%.3g";
    return snprintf(text, 32, how, size < 1e-9 ? 0 : n), text;
}

static void sweep_table(const sweep *s)
{
    char text[32];
    printf("%s: %s\n  %s\n%18s", s->title, s->y_name, s->formula, s->x_name);
    for (int k = 0; k < s->series; k++) printf("  %22s", s->name[k]);
    for (int i = 0; i < s->points; i++) {
        printf("\n%18s", sweep_number(s->x[i], text));
        for (int k = 0; k < s->series; k++) printf("  %22s", sweep_number(s->y[k][i], text));
    }
    printf("\n%s\n", s->note);
}

/* The smallest of 1, 2, 5, 10, 20, .. that is not below n. */
static double sweep_round(double n)
{
    double ten = pow(10, floor(log10(n)));
    return n <= ten ? ten : n <= 2 * ten ? 2 * ten : n <= 5 * ten ? 5 * ten : 10 * ten;
}

static void sweep_text(FILE *f, double x, double y, const char *how, const char *text)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, how);
    for (; *text; text++)
        fprintf(f, *text == '<' ? "&lt;" : *text == '&' ? "&amp;" : *text == '>' ? "&gt;" : "%c", *text);
    fprintf(f, "</text>\n");
}

/* A series: a line of its own pattern, marks of its own shape, and its name beside the last point. */
static void sweep_line(FILE *f, const sweep *s, int k, double left, double width, double bottom, double height,
                       double low, double high)
{
    static const char *const mark[] = {"M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-4-4h8v8h-8z", "M0-5l5 9h-10z",
                                       "M0-5l5 5l-5 5l-5-5z"};
    double x = 0, y = 0;
    fprintf(f, "<g class=\"s%d\"><path class=\"line\" d=\"", k);
    for (int i = 0; i < s->points; i++)
        fprintf(f, "%c%.1f %.1f", i ? 'L' : 'M', left + width * i / (s->points - 1),
                bottom - height * (s->y[k][i] - low) / (high - low));
    fprintf(f, "\"/>\n");
    for (int i = 0; i < s->points; i++) {
        x = left + width * i / (s->points - 1), y = bottom - height * (s->y[k][i] - low) / (high - low);
        fprintf(f, "<path d=\"%s\" transform=\"translate(%.1f %.1f)\"><title>%s: %.4g at %.4g</title></path>\n",
                mark[k], x, y, s->name[k], s->y[k][i], s->x[i]);
    }
    fprintf(f, "</g>\n");
}

/* 0: the file cannot be written. */
static int sweep_svg(const sweep *s, const char *name)
{
    double left = 64, width = 560, top = 84, height = 280, bottom = top + height, low = 0, high = 0, step,
           label[SWEEP_SERIES];
    char text[32];
    FILE *f = fopen(name, "wb");
    if (!f) return 0;
    for (int k = s->plotted; k < s->series; k++)
        for (int i = 0; i < s->points; i++) low = fmin(low, s->y[k][i]), high = fmax(high, s->y[k][i]);
    step = sweep_round(fmax(high - low, 1e-9) / 6), low = step * floor(low / step),
    high = fmax(step * ceil(high / step), low + step);
    fprintf(
        f,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 840 420\" role=\"img\" aria-label=\"%s\">\n<style>\n"
        "text { font: 13px system-ui, sans-serif; fill: #334155 } .grid { stroke: #cbd5e1 } .title { font-size: 16px; "
        "font-weight: 600 }\n"
        ".line { fill: none; stroke-width: 2 } .s0 { stroke: #1d4ed8; fill: #1d4ed8 } .s1 { stroke: #b45309; fill: "
        "#b45309 }\n"
        ".s2 { stroke: #0f766e; fill: #0f766e } .s3 { stroke: #7c3aed; fill: #7c3aed } .s1 .line { stroke-dasharray: 8 "
        "4 }\n"
        ".s2 .line { stroke-dasharray: 2 4 } .s3 .line { stroke-dasharray: 12 4 2 4 } .back { fill: #ffffff }\n"
        "@media (prefers-color-scheme: dark) { text { fill: #e2e8f0 } .grid { stroke: #475569 } .back { fill: #0f172a "
        "}\n"
        ".s0 { stroke: #93c5fd; fill: #93c5fd } .s1 { stroke: #fbbf24; fill: #fbbf24 } .s2 { stroke: #5eead4; fill: "
        "#5eead4 }\n"
        ".s3 { stroke: #c4b5fd; fill: #c4b5fd } }\n</style>\n<rect class=\"back\" width=\"840\" height=\"420\"/>\n",
        s->title);
    sweep_text(f, 16, 26, "class=\"title\"", s->title);
    sweep_text(f, 16, 48, "", s->formula);
    sweep_text(f, 16, 72, "", s->y_name);
    for (double y = low; y <= high + step / 2; y += step) {
        double at = bottom - height * (y - low) / (high - low);
        fprintf(f, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>\n", left, at, left + width);
        sweep_text(f, left - 8, at + 4, "text-anchor=\"end\"", sweep_number(y, text));
    }
    for (int i = 0; i < s->points; i++) {
        sweep_text(f, left + width * i / (s->points - 1), bottom + 20, "text-anchor=\"middle\"",
                   sweep_number(s->x[i], text));
    }
    sweep_text(f, left + width, bottom + 42, "text-anchor=\"end\"", s->x_name);
    for (int k = s->plotted; k < s->series; k++) {
        sweep_line(f, s, k, left, width, bottom, height, low, high);
        label[k] = bottom - height * (s->y[k][s->points - 1] - low) / (high - low) + 4;
    }
    for (int k = s->plotted; k < s->series; k++) { /* names move down where they would cover each other */
        for (int again = 0; again < s->series; again++)
            for (int i = s->plotted; i < k; i++)
                if (fabs(label[k] - label[i]) < 15) label[k] = label[i] + 15;
        sweep_text(f, left + width + 12, label[k], "", s->name[k]);
    }
    fprintf(f, "</svg>\n");
    return !fclose(f);
}

__attribute__((format(printf, 3, 4))) static void sweep_print(char *to, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(to, size, format, args);
    va_end(args);
}

/* ---- the four sweeps ----------------------------------------------------------------------------------------------
 */

/* Numbers of a job, with what is assumed of those that are missing. */
typedef struct sweep_job {
    const cost_type *type;
    double params, tokens, batch, flops, price;
    int most;
} sweep_job;

static void sweep_assume(const plan_job *j, const cost_catalogue *c, sweep_job *w)
{
    plan_candidate list[COST_TYPES];
    plan_list wrong;
    memset(&wrong, 0, sizeof wrong);
    plan_candidates(j, c, list, &wrong);
    w->type = *j->text[in_instance] ? list[0].type : cost_find(c, "p4d", 3);
    if (!w->type) w->type = list[0].type;
    w->price = isnan(list[0].price) ? w->type->dollars : list[0].price;
    w->params = 1e9 * plan_or(j, in_params_b, 1.5);
    w->tokens = plan_or(j, in_seq_len, 2048) * plan_or(j, in_micro_batch, 4);
    w->batch =
        plan_or(j, in_global_batch, 0) > 0 ? j->n[in_global_batch] * plan_or(j, in_seq_len, 2048) : 64 * w->tokens;
    w->flops = w->type->teraflops * 1e10 * plan_or(j, in_mfu_pct, 40);
    w->most = (int)fmin(plan_or(j, in_max_nodes, 64), 1024);
}

static int sweep_nodes(sweep *s, int most)
{
    for (int n = 1; n <= most && s->points < SWEEP_POINTS; n *= 2) s->x[s->points++] = n;
    if (s->points < 2) s->x[1] = 2, s->points = 2;
    return s->points;
}

/* Efficiency against nodes, with the network of the type and two others. The batch grows with the nodes. */
static void sweep_scaling(const plan_job *j, const cost_catalogue *c, sweep *s)
{
    sweep_job w;
    double work;
    sweep_assume(j, c, &w);
    work = cost_computing(w.params, w.tokens, w.flops);
    for (int i = 0, n = sweep_nodes(s, w.most); i < n; i++)
        for (int k = 0; k < 3; k++) {
            double alpha = k ? 50e-6 : cost_alpha(w.type), rate = k == 0   ? cost_outside(w.type)
                                                                  : k == 1 ? 12.5e9
                                                                           : 3.125e9;
            s->y[k][i] =
                100 * work /
                (work + cost_nodes_sum(w.type->count, s->x[i], 2 * w.params, cost_inside(w.type), alpha, rate));
        }
    sweep_print(s->title, sizeof s->title, "Efficiency of %.3gB parameters, %g tokens per GPU, %s", w.params / 1e9,
                w.tokens, cost_short(w.type));
    sweep_print(
        s->formula, sizeof s->formula,
        "E = c / (c + r), c = 6 P T / F = %.3g s, r(n) = 2 (n-1) (alpha + 2P / (n B)), inside and between nodes", work);
    strcpy(s->x_name, "nodes"), strcpy(s->y_name, "efficiency, %"), s->series = 3;
    sweep_print(s->name[0], 48, "own, %g Gbit/s%s", w.type->gbit, w.type->efa ? ", EFA" : "");
    strcpy(s->name[1], "TCP, 100 Gbit/s"), strcpy(s->name[2], "TCP, 25 Gbit/s");
    sweep_print(s->note, sizeof s->note, "On %g nodes: %.0f, %.0f and %.0f %%. No message is hidden.",
                s->x[s->points - 1], s->y[0][s->points - 1], s->y[1][s->points - 1], s->y[2][s->points - 1]);
}

/* Hours and dollars against nodes, with a fixed batch. */
static void sweep_cost(const plan_job *j, const cost_catalogue *c, sweep *s)
{
    sweep_job w;
    double steps, knee = 1, first = 0;
    sweep_assume(j, c, &w);
    steps = 1e9 * plan_or(j, in_tokens_b, 30) / w.batch;
    for (int i = 0, n = sweep_nodes(s, w.most); i < n; i++) {
        double nodes = s->x[i], gpus = nodes * w.type->count;
        double step = cost_computing(w.params, w.batch, gpus * w.flops) +
                      cost_nodes_sum(w.type->count, nodes, 2 * w.params, cost_inside(w.type), cost_alpha(w.type),
                                     cost_outside(w.type));
        double hours = steps * step / 3600;
        if (!i) first = hours;
        s->y[0][i] = hours, s->y[1][i] = nodes * hours * w.price;
        s->y[2][i] = first / hours, s->y[3][i] = nodes * hours / first;
        if (first / hours >= nodes / 2) knee = nodes;
    }
    sweep_print(s->title, sizeof s->title, "Speed and price of %.3gB parameters, %g tokens a step, %s", w.params / 1e9,
                w.batch, cost_short(w.type));
    sweep_print(s->formula, sizeof s->formula,
                "hours(n) = steps (6 P tokens / (n GPUs F) + r(n)), dollars = n hours(n) %.2f, %g steps", w.price,
                ceil(steps));
    strcpy(s->x_name, "nodes"), strcpy(s->y_name, "multiples of one node"), s->series = 4, s->plotted = 2;
    strcpy(s->name[0], "hours"), strcpy(s->name[1], "dollars");
    strcpy(s->name[2], "times as fast"), strcpy(s->name[3], "times the price");
    sweep_print(s->note, sizeof s->note, "The last n with at least half of n times the speed: %g.", knee);
}

/* Spot against on-demand by the number of interruptions. */
static void sweep_spot(const plan_job *j, const cost_catalogue *c, sweep *s)
{
    sweep_job w;
    double hours = plan_or(j, in_ref_hours, 24), nodes = plan_or(j, in_cur_nodes, 1),
           off = plan_or(j, in_spot_disc_pct, 60) / 100;
    double each = plan_or(j, in_rework_h, 0.25) + plan_or(j, in_restart_h, 0.25), rework = plan_or(j, in_rework_pct, 0);
    double even, late = (j->n[in_deadline_h] - hours * (1 + rework / 100)) / each;
    sweep_assume(j, c, &w);
    even = hours * (1 / (1 - fmin(off, 0.999)) - 1 - rework / 100) / each;
    for (s->points = 0; s->points < 11; s->points++) {
        double times = s->points * sweep_round(fmax(even, 5) * 1.2) / 10,
               total = cost_spot_hours(hours, rework, times, each);
        s->x[s->points] = times;
        s->y[0][s->points] = hours * nodes * w.price, s->y[1][s->points] = total * nodes * w.price * (1 - off);
    }
    sweep_print(s->title, sizeof s->title, "Spot against on-demand: %g h on %g x %s, %g %% off", hours, nodes,
                cost_short(w.type), 100 * off);
    sweep_print(s->formula, sizeof s->formula,
                "dollars = (hours (1 + rework) + interruptions x %g h) x nodes x %.2f x (1 - discount)", each, w.price);
    strcpy(s->x_name, "interruptions"), strcpy(s->y_name, "dollars"), strcpy(s->name[0], "on-demand"),
        strcpy(s->name[1], "Spot"), s->series = 2;
    sweep_print(s->note, sizeof s->note, "Spot is cheaper below %.3g interruptions%s", even,
                isnan(late) ? "."
                : late < 0  ? ", and always late."
                            : ", in time");
    if (late >= 0) sweep_print(s->note + strlen(s->note), sizeof s->note - strlen(s->note), " up to %.3g.", late);
}

/* What a compiler gains, by the length of a run. */
static void sweep_compiler(const plan_job *j, const cost_catalogue *c, sweep *s)
{
    double compile = plan_or(j, in_compile_min, 15), speedup = fmax(plan_or(j, in_speedup, 1.2), 1.001);
    double restarts = plan_or(j, in_interruptions, 3), even = cost_break_even(compile, speedup);
    (void)c;
    for (s->points = 0; s->points < 9; s->points++) {
        double minutes = s->x[s->points] = s->points * sweep_round(even * (1 + restarts)) / 8;
        s->y[0][s->points] = minutes * (1 - 1 / speedup) - compile;
        s->y[1][s->points] = minutes * (1 - 1 / speedup) - compile * (1 + restarts);
    }
    sweep_print(s->title, sizeof s->title, "A compiler: %g minutes to compile, %g times as fast", compile, speedup);
    sweep_print(s->formula, sizeof s->formula,
                "gain = T (1 - 1/s) - c (1 + restarts); break-even T = c s / (s - 1) = %.4g min", even);
    strcpy(s->x_name, "minutes of the run"), strcpy(s->y_name, "minutes gained"), s->series = 2;
    strcpy(s->name[0], "no restart"), sweep_print(s->name[1], 48, "%g restarts", restarts);
    sweep_print(s->note, sizeof s->note,
                "Break-even: %.4g min, with %g restarts %.4g min. Only computing gets faster, not messages.", even,
                restarts, even * (1 + restarts));
}

static const struct {
    const char *name;
    void (*run)(const plan_job *, const cost_catalogue *, sweep *);
} sweeps[] = {{"scaling", sweep_scaling}, {"cost", sweep_cost}, {"spot", sweep_spot}, {"compiler", sweep_compiler}};

/* Prints one of them, and draws it into `svg` unless that is NULL. The program's exit status. */
static int sweep_run(const char *name, const plan_job *j, const cost_catalogue *c, const char *svg)
{
    static sweep s;
    size_t k = 0, count = sizeof sweeps / sizeof *sweeps;
    while (k < count && strcmp(sweeps[k].name, name)) k++;
    if (k == count) return fprintf(stderr, "plan: --sweep %s: choose scaling, cost, spot or compiler\n", name), 2;
    sweeps[k].run(j, c, &s);
    sweep_table(&s);
    if (svg && !sweep_svg(&s, svg)) return fprintf(stderr, "plan: cannot write %s: check the folder\n", svg), 1;
    return 0;
}

#endif
