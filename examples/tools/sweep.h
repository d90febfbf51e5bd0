/* sweep.h: one number varied, as a table and as a plot (SVG): efficiency and price against nodes, Spot against
 * on-demand, the break-even of a compiler. Part of plan.c. */
#ifndef SWEEP_H
#define SWEEP_H

#include "plan.h"

enum { SWEEP_POINTS = 16, SWEEP_SERIES = 4 };

typedef struct sweep {
    char title[160], formula[240], note[200], name[SWEEP_SERIES][48];
    const char *x_name, *y_name;
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

/* ---- the plot ---- */

enum { LEFT = 64, TOP = 84, WIDTH = 560, HEIGHT = 280, BOTTOM = TOP + HEIGHT };

/* The smallest of 1, 2, 5, 10, 20, .. that is not below n. */
static double sweep_round(double n)
{
    double ten = pow(10, floor(log10(n)));
    return n <= ten ? ten : n <= 2 * ten ? 2 * ten : n <= 5 * ten ? 5 * ten : 10 * ten;
}

static void sweep_text(FILE *f, double x, double y, const char *how, const char *text)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, how);
    for (; *text; text++) fprintf(f, *text == '<' ? "&lt;" : *text == '&' ? "&amp;" : "%c", *text);
    fprintf(f, "</text>\n");
}

static double sweep_across(const sweep *s, int i) { return LEFT + WIDTH * (double)i / (s->points - 1); }

/* A series: a line of its own pattern, and marks of its own shape. */
static void sweep_line(FILE *f, const sweep *s, int k, double low, double high)
{
    static const char *const mark[] = {"M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-4-4h8v8h-8z", "M0-5l5 9h-10z",
                                       "M0-5l5 5l-5 5l-5-5z"};
    fprintf(f, "<g class=\"s%d\"><path class=\"line\" d=\"", k);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < s->points; i++) {
            double x = sweep_across(s, i), y = BOTTOM - HEIGHT * (s->y[k][i] - low) / (high - low);
            if (pass)
                fprintf(f, "<path d=\"%s\" transform=\"translate(%.1f %.1f)\"><title>%s: %.4g at %.4g</title></path>\n",
                        mark[k], x, y, s->name[k], s->y[k][i], s->x[i]);
            else fprintf(f, "%c%.1f %.1f", i ? 'L' : 'M', x, y);
        }
        fprintf(f, pass ? "</g>\n" : "\"/>\n");
    }
}

static void sweep_axes(FILE *f, const sweep *s, double low, double high, double step)
{
    char text[32];
    fprintf(f, "<rect class=\"back\" width=\"840\" height=\"420\"/>\n");
    sweep_text(f, 16, 26, "class=\"title\"", s->title);
    sweep_text(f, 16, 48, "", s->formula), sweep_text(f, 16, 72, "", s->y_name);
    for (double y = low; y <= high + step / 2; y += step) {
        double at = BOTTOM - HEIGHT * (y - low) / (high - low);
        fprintf(f, "<path class=\"grid\" d=\"M%d %.1fh%d\"/>\n", LEFT, at, WIDTH);
        sweep_text(f, LEFT - 8, at + 4, "text-anchor=\"end\"", sweep_number(y, text));
    }
    for (int i = 0; i < s->points; i++)
        sweep_text(f, sweep_across(s, i), BOTTOM + 20, "text-anchor=\"middle\"", sweep_number(s->x[i], text));
    sweep_text(f, LEFT + WIDTH, BOTTOM + 42, "text-anchor=\"end\"", s->x_name);
}

/* 0: the file cannot be written. */
static int sweep_svg(const sweep *s, const char *name)
{
    static const char *const colors[][2] = {
        {"1d4ed8", "93c5fd"}, {"b45309", "fbbf24"}, {"0f766e", "5eead4"}, {"7c3aed", "c4b5fd"}};
    double low = 0, high = 0, step, label[SWEEP_SERIES];
    FILE *f = fopen(name, "wb");
    if (!f) return 0;
    for (int k = s->plotted; k < s->series; k++)
        for (int i = 0; i < s->points; i++) low = fmin(low, s->y[k][i]), high = fmax(high, s->y[k][i]);
    step = sweep_round(fmax(high - low, 1e-9) / 6);
    low = step * floor(low / step), high = fmax(step * ceil(high / step), low + step);
    fprintf(
        f,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 840 420\" role=\"img\" aria-label=\"%s\">\n<style>\n"
        "text { font: 13px system-ui, sans-serif; fill: #334155 } .title { font-size: 16px; font-weight: 600 }\n"
        ".grid { stroke: #cbd5e1 } .back { fill: #ffffff } .line { fill: none; stroke-width: 2 }\n"
        ".s1 .line { stroke-dasharray: 8 4 } .s2 .line { stroke-dasharray: 2 4 } .s3 .line { stroke-dasharray: 12 4 2 "
        "4 }\n",
        s->title);
    for (int dark = 0; dark < 2; dark++) {
        if (dark)
            fprintf(f, "@media (prefers-color-scheme: dark) {\ntext { fill: #e2e8f0 } .grid { stroke: #475569 } .back "
                       "{ fill: #0f172a }\n");
        for (int k = 0; k < SWEEP_SERIES; k++)
            fprintf(f, ".s%d { stroke: #%s } .s%d > :not(.line) { fill: #%s }\n", k, colors[k][dark], k,
                    colors[k][dark]);
    }
    fprintf(f, "}\n</style>\n");
    sweep_axes(f, s, low, high, step);
    for (int k = s->plotted; k < s->series; k++) { /* a name stands beside the last point, lower where another one is */
        sweep_line(f, s, k, low, high);
        label[k] = BOTTOM - HEIGHT * (s->y[k][s->points - 1] - low) / (high - low) + 4;
        for (int again = 0; again < s->series; again++)
            for (int i = s->plotted; i < k; i++)
                if (fabs(label[k] - label[i]) < 15) label[k] = label[i] + 15;
        sweep_text(f, LEFT + WIDTH + 12, label[k], "", s->name[k]);
    }
    fprintf(f, "</svg>\n");
    return !fclose(f);
}

/* ---- the four sweeps ---- */

#define SWEEP_SAY(to, ...) snprintf(to, sizeof(to), __VA_ARGS__)

/* Numbers of a job, with what is assumed of those that are missing. */
typedef struct sweep_job {
    const cost_type *type;
    const char *name;
    double params, tokens, batch, flops, price;
} sweep_job;

static void sweep_assume(const plan_job *j, const cost_catalogue *c, sweep_job *w)
{
    plan_candidate list[COST_TYPES];
    static plan_list wrong;
    const cost_type *usual = cost_find(c, "p4d", 3);
    plan_candidates(j, c, list, &wrong);
    w->type = usual && !*j->text[in_instance] ? usual : list[0].type, w->name = cost_short(w->type);
    w->price = isnan(list[0].price) ? w->type->dollars : list[0].price;
    w->params = 1e9 * plan_or(j, in_params_b, 1.5);
    w->tokens = plan_or(j, in_seq_len, 2048) * plan_or(j, in_micro_batch, 4);
    w->batch = plan_has(j, in_global_batch) ? j->n[in_global_batch] * plan_or(j, in_seq_len, 2048) : 64 * w->tokens;
    w->flops = w->type->teraflops * 1e10 * plan_or(j, in_mfu_pct, 40);
}

static void sweep_nodes(sweep *s, const plan_job *j)
{
    double most = fmax(2, fmin(plan_or(j, in_max_nodes, 64), 1024));
    for (double n = 1; n <= most && s->points < SWEEP_POINTS; n *= 2) s->x[s->points++] = n;
    s->x_name = "nodes";
}

/* Efficiency against nodes, with the network of the type and two others. The batch grows with the nodes. */
static void sweep_scaling(sweep *s, const plan_job *j, const sweep_job *w)
{
    const cost_type *t = w->type;
    double alpha[] = {cost_alpha(t), 50e-6, 50e-6}, rate[] = {cost_outside(t), 12.5e9, 3.125e9};
    double work = cost_computing(w->params, w->tokens, w->flops);
    sweep_nodes(s, j), s->y_name = "efficiency, %", s->series = 3;
    for (int i = 0; i < s->points; i++)
        for (int k = 0; k < 3; k++) {
            double sum = cost_nodes_sum(t->count, s->x[i], 2 * w->params, cost_inside(t), alpha[k], rate[k]);
            s->y[k][i] = 100 * work / (work + sum);
        }
    SWEEP_SAY(s->title, "Efficiency of %.3gB parameters, %g tokens per GPU, %s", w->params / 1e9, w->tokens, w->name);
    SWEEP_SAY(s->formula,
              "E = c / (c + r), c = 6 P T / F = %.3g s, r = 2 (n-1) (alpha + 2P / (n B)) in and between nodes", work);
    SWEEP_SAY(s->name[0], "own, %g Gbit/s%s", t->gbit, t->efa ? ", EFA" : "");
    SWEEP_SAY(s->name[1], "TCP, 100 Gbit/s"), SWEEP_SAY(s->name[2], "TCP, 25 Gbit/s");
    SWEEP_SAY(s->note, "No message is hidden.");
}

/* Hours and dollars against nodes, with a fixed batch. */
static void sweep_cost(sweep *s, const plan_job *j, const sweep_job *w)
{
    const cost_type *t = w->type;
    double steps = 1e9 * plan_or(j, in_tokens_b, 30) / w->batch, knee = 1, first = 0;
    sweep_nodes(s, j), s->y_name = "multiples of one node", s->series = 4, s->plotted = 2;
    for (int i = 0; i < s->points; i++) {
        double n = s->x[i],
               sum = cost_nodes_sum(t->count, n, 2 * w->params, cost_inside(t), cost_alpha(t), cost_outside(t));
        double hours = steps * (cost_computing(w->params, w->batch, n * t->count * w->flops) + sum) / 3600;
        if (!i) first = hours;
        s->y[0][i] = hours, s->y[1][i] = n * hours * w->price, s->y[2][i] = first / hours,
        s->y[3][i] = n * hours / first;
        if (first / hours >= n / 2) knee = n;
    }
    SWEEP_SAY(s->title, "Speed and price of %.3gB parameters, %g tokens a step, %s", w->params / 1e9, w->batch,
              w->name);
    SWEEP_SAY(s->formula, "hours = steps (6 P tokens / (n GPUs F) + r(n)), dollars = n hours %.2f; %g steps", w->price,
              ceil(steps));
    SWEEP_SAY(s->name[0], "hours"), SWEEP_SAY(s->name[1], "dollars");
    SWEEP_SAY(s->name[2], "times as fast"), SWEEP_SAY(s->name[3], "times the price");
    SWEEP_SAY(s->note, "The last n with at least half of n times the speed: %g.", knee);
}

/* Spot against on-demand by the number of interruptions. */
static void sweep_spot(sweep *s, const plan_job *j, const sweep_job *w)
{
    double hours = plan_or(j, in_ref_hours, 24), nodes = plan_or(j, in_cur_nodes, 1),
           off = plan_or(j, in_spot_disc_pct, 60) / 100;
    double each = fmax(plan_or(j, in_rework_h, 0.25) + plan_or(j, in_restart_h, 0.25), 1e-3),
           rework = plan_or(j, in_rework_pct, 0);
    double even = hours * (1 / (1 - fmin(off, 0.99)) - 1 - rework / 100) / each;
    double late = (j->n[in_deadline_h] - hours * (1 + rework / 100)) / each, step = sweep_round(fmax(even, 5) / 8);
    for (; s->points < 11; s->points++) {
        double total = cost_spot_hours(hours, rework, s->points * step, each);
        s->x[s->points] = s->points * step;
        s->y[0][s->points] = hours * nodes * w->price, s->y[1][s->points] = total * nodes * w->price * (1 - off);
    }
    s->x_name = "interruptions", s->y_name = "dollars", s->series = 2;
    SWEEP_SAY(s->title, "Spot against on-demand: %g h on %g x %s, %g %% off", hours, nodes, w->name, 100 * off);
    SWEEP_SAY(s->formula, "dollars = (hours (1 + rework) + interruptions x %g h) x nodes x %.2f x (1 - discount)", each,
              w->price);
    SWEEP_SAY(s->name[0], "on-demand"), SWEEP_SAY(s->name[1], "Spot");
    if (isnan(late)) SWEEP_SAY(s->note, "Spot is cheaper below %.3g interruptions.", even);
    else SWEEP_SAY(s->note, "Spot is cheaper below %.3g interruptions, and in time up to %.3g.", even, fmax(late, 0));
}

/* What a compiler gains, by the length of a run. */
static void sweep_compiler(sweep *s, const plan_job *j, const sweep_job *w)
{
    double compile = fmax(plan_or(j, in_compile_min, 15), 1e-3), speedup = fmax(plan_or(j, in_speedup, 1.2), 1.001);
    double restarts = plan_or(j, in_interruptions, 3), even = cost_break_even(compile, speedup);
    (void)w;
    for (; s->points < 9; s->points++) {
        double minutes = s->x[s->points] = s->points * sweep_round(even * (1 + restarts)) / 8;
        s->y[0][s->points] = minutes * (1 - 1 / speedup) - compile;
        s->y[1][s->points] = minutes * (1 - 1 / speedup) - compile * (1 + restarts);
    }
    s->x_name = "minutes of the run", s->y_name = "minutes gained", s->series = 2;
    SWEEP_SAY(s->title, "A compiler: %g minutes to compile, %g times as fast", compile, speedup);
    SWEEP_SAY(s->formula, "gain = T (1 - 1/s) - c (1 + restarts); break-even T = c s / (s - 1) = %.4g min", even);
    SWEEP_SAY(s->name[0], "no restart"), SWEEP_SAY(s->name[1], "%g restarts", restarts);
    SWEEP_SAY(s->note, "Break-even: %.4g min, with %g restarts %.4g min. Messages get no faster.", even, restarts,
              even * (1 + restarts));
}

/* Prints a sweep, and draws it into `svg` unless that is NULL. The program's exit status. */
static int sweep_run(const char *name, const plan_job *j, const cost_catalogue *c, const char *svg)
{
    static void (*const run[])(sweep *, const plan_job *, const sweep_job *) = {sweep_scaling, sweep_cost, sweep_spot,
                                                                                sweep_compiler};
    static sweep s;
    sweep_job w;
    int k = plan_word("scaling|cost|spot|compiler", name, strlen(name));
    if (k < 0) return fprintf(stderr, "plan: --sweep %s: choose scaling, cost, spot or compiler\n", name), 2;
    sweep_assume(j, c, &w);
    if ((k == 1 || k == 2) && isnan(w.price))
        return fprintf(stderr, "plan: the catalogue has no price of %s. Give --price-node-h\n", w.name), 2;
    run[k](&s, j, &w);
    sweep_table(&s);
    if (svg && !sweep_svg(&s, svg)) return fprintf(stderr, "plan: cannot write %s: check the folder\n", svg), 1;
    return 0;
}

#endif
