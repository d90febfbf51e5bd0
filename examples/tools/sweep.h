/* sweep.h: one number varied, as a table and as a plot (SVG): efficiency and price against nodes, Spot against
 * on-demand, the break-even of a compiler. Part of plan.c. */
#ifndef SWEEP_H
#define SWEEP_H

#include "plan.h"

enum { SWEEP_POINTS = 11, SWEEP_SERIES = 4, SWEEP_FIELDS = 8 };

/* The k-th number at x, of a type and the fields of a job. The efficiency of n nodes: with the network of the type, and
 * with TCP at 100 and 25 Gbit/s. */
static double sweep_scaling(const cost_type *t, const double *n, double nodes, int k)
{
    double rate = k == 0 ? cost_outside(t) : k == 1 ? 12.5e9 : 3.125e9, alpha = k ? 50e-6 : cost_alpha(t);
    double flops = t->teraflops * 1e10 * n[in_mfu_pct], weights = 1e9 * n[in_params_b];
    double work = cost_computing(weights, n[in_seq_len] * n[in_micro_batch], flops);
    return 100 * work / (work + cost_nodes_sum(t->count, nodes, 2 * weights, cost_inside(t), alpha, rate));
}
static double sweep_cost(const cost_type *t, const double *n, double nodes, int k)
{
    double flops = t->teraflops * 1e10 * n[in_mfu_pct], weights = 1e9 * n[in_params_b];
    double batch = n[in_seq_len] * n[in_global_batch], work = cost_computing(weights, batch, nodes * t->count * flops);
    double sum = cost_nodes_sum(t->count, nodes, 2 * weights, cost_inside(t), cost_alpha(t), cost_outside(t));
    double hours = 1e9 * n[in_tokens_b] / batch * (work + sum) / 3600;
    if (k < 2) return k ? nodes * hours * n[in_price_node_h] : hours;
    return k == 2 ? sweep_cost(t, n, 1, 0) / hours : nodes * hours / sweep_cost(t, n, 1, 0);
}
static double sweep_spot(const cost_type *t, const double *n, double interruptions, int k)
{
    double lost = n[in_rework_h] + n[in_restart_h], dollars = n[in_cur_nodes] * n[in_price_node_h];
    (void)t;
    if (k == 0) return n[in_ref_hours] * dollars;
    dollars *= 1 - n[in_spot_disc_pct] / 100;
    return cost_spot_hours(n[in_ref_hours], n[in_rework_pct], interruptions, lost) * dollars;
}
static double sweep_compiler(const cost_type *t, const double *n, double minutes, int k)
{
    (void)t;
    if (k == 0) return 0;
    return minutes * (1 - 1 / fmax(n[in_speedup], 1)) - n[in_compile_min] * (k > 1 ? 1 + n[in_interruptions] : 1);
}

static const struct sweep_row {
    const char *title, *formula, *x, *y, *series[SWEEP_SERIES];
    double (*at)(const cost_type *, const double *, double, int);
    int count, plotted; /* series; the first one of the plot: those before have other units */
    int doubles;        /* x is 1, 2, 4, ..; else it goes beyond the place where the last series meets the first */
    struct { int field; double usual; } uses[SWEEP_FIELDS]; /* ends at a 0 after the first; the price is the type's */
} sweep_rows[] = {
    {"Efficiency against nodes; no message is hidden",
     "E = c / (c + r), c = 6 P T / F, r = 2 (n-1) (alpha + 2P / (n B)) in and between nodes", "nodes", "efficiency, %",
     {"own network", "TCP, 100 Gbit/s", "TCP, 25 Gbit/s"}, sweep_scaling, 3, 0, 1,
     {{in_params_b, 1.5}, {in_seq_len, 2048}, {in_micro_batch, 4}, {in_mfu_pct, 40}}},
    {"Speed and price against nodes", "hours = steps (6 P batch / (n GPUs F) + r(n)), dollars = n x hours x price",
     "nodes", "multiples of one node", {"hours", "dollars", "times as fast", "times the price"}, sweep_cost, 4, 2, 1,
     {{in_params_b, 1.5}, {in_tokens_b, 30}, {in_seq_len, 2048}, {in_global_batch, 256}, {in_mfu_pct, 40},
      {in_price_node_h, 0}}},
    {"Spot against on-demand",
     "dollars = (hours (1 + rework) + interruptions (rework_h + restart_h)) x nodes x price x (1 - discount)",
     "interruptions", "dollars", {"on-demand", "Spot"}, sweep_spot, 2, 0, 0,
     {{in_ref_hours, 24}, {in_rework_pct, 0}, {in_rework_h, 0.25}, {in_restart_h, 0.25}, {in_cur_nodes, 1},
      {in_spot_disc_pct, 60}, {in_price_node_h, 0}}},
    {"Minutes that a compiler gains", "gain = T (1 - 1/s) - c (1 + restarts); break-even T = c s / (s - 1)",
     "minutes of the run", "minutes gained", {"not compiled", "compiled", "with restarts"}, sweep_compiler, 3, 0, 0,
     {{in_compile_min, 15}, {in_speedup, 1.2}, {in_interruptions, 3}}}};

typedef struct sweep {
    const struct sweep_row *row;
    double x[SWEEP_POINTS], y[SWEEP_SERIES][SWEEP_POINTS];
    int points;
} sweep;

/* The table, and where a series meets the first one that is plotted. */
static void sweep_table(const sweep *s)
{
    char text[32];
    const struct sweep_row *r = s->row;
    printf("%18s", r->x);
    for (int k = 0; k < r->count; k++) printf("  %16s", r->series[k]);
    for (int i = 0; i < s->points; i++) {
        printf("\n%18s", plan_digits(s->x[i], text));
        for (int k = 0; k < r->count; k++) printf("  %16s", plan_digits(s->y[k][i], text));
    }
    printf("\n");
    for (int k = r->plotted + 1; k < r->count; k++)
        for (int i = 1; i < s->points; i++) {
            double from = s->y[k][i - 1] - s->y[r->plotted][i - 1], to = s->y[k][i] - s->y[r->plotted][i];
            if (from * to > 0 || from == 0) continue;
            printf("%s = %s: %.4g %s\n", r->series[k], r->series[r->plotted],
                   s->x[i - 1] + (s->x[i] - s->x[i - 1]) * from / (from - to), r->x);
        }
}

/* ---- the plot ---- */

enum { LEFT = 64, TOP = 84, WIDTH = 560, HEIGHT = 280, BOTTOM = TOP + HEIGHT };

/* The smallest of 1, 2, 5, 10, 20, .. that is not below n. */
static double sweep_round(double n)
{
    double ten = pow(10, floor(log10(n)));
    return n <= ten ? ten : n <= 2 * ten ? 2 * ten : n <= 5 * ten ? 5 * ten : 10 * ten;
}

static void sweep_text(FILE *f, double x, double y, const char *anchor, const char *text)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text);
}

/* Lines differ by their dashes, and the name of each is at its end. 0: the file cannot be written. */
static int sweep_svg(const sweep *s, const char *name)
{
    static const char *const dashes[] = {"none", "8 4", "2 4", "12 4 2 4"};
    const struct sweep_row *r = s->row;
    const double across = WIDTH / (s->points - 1.0);
    double low = 0, high = 0, step, label[SWEEP_SERIES];
    char text[32];
    FILE *f = fopen(name, "wb");
    if (!f) return 0;
    for (int k = r->plotted; k < r->count; k++)
        for (int i = 0; i < s->points; i++) low = fmin(low, s->y[k][i]), high = fmax(high, s->y[k][i]);
    step = sweep_round(fmax(high - low, 1e-9) / 6), low = step * floor(low / step);
    high = fmax(step * ceil(high / step), low + step);
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 780 420\" role=\"img\" aria-label=\"%s\">\n"
               "<style>svg { background: #fff; color: #334155 } text { font: 13px sans-serif; fill: currentColor }\n"
               "path { fill: none; stroke: currentColor; stroke-width: 2 } .grid { opacity: 0.3; stroke-width: 1 }\n"
               "@media (prefers-color-scheme: dark) { svg { background: #0f172a; color: #e2e8f0 } }</style>\n",
            r->title);
    sweep_text(f, 16, 26, "start", r->title), sweep_text(f, 16, 48, "start", r->formula);
    sweep_text(f, 16, 72, "start", r->y), sweep_text(f, LEFT + WIDTH, BOTTOM + 42, "end", r->x);
    for (double y = low; y <= high + step / 2; y += step) {
        double at = BOTTOM - HEIGHT * (y - low) / (high - low);
        fprintf(f, "<path class=\"grid\" d=\"M%d %.1fh%d\"/>\n", LEFT, at, WIDTH);
        sweep_text(f, LEFT - 8, at + 4, "end", plan_digits(fabs(y) < step / 2 ? 0 : y, text));
    }
    for (int i = 0; i < s->points; i++)
        sweep_text(f, LEFT + across * i, BOTTOM + 20, "middle", plan_digits(s->x[i], text));
    for (int k = r->plotted; k < r->count; k++) {
        fprintf(f, "<path stroke-dasharray=\"%s\" d=\"", dashes[k - r->plotted]);
        for (int i = 0; i < s->points; i++) {
            label[k] = BOTTOM - HEIGHT * (s->y[k][i] - low) / (high - low);
            fprintf(f, "%c%.1f %.1f", i ? 'L' : 'M', LEFT + across * i, label[k]);
        }
        for (int i = r->plotted; i < k; i++) /* a name is lower where another one is */
            if (fabs(label[k] - label[i]) < 15) label[k] = label[i] + 15, i = r->plotted - 1;
        fprintf(f, "\"/>\n"), sweep_text(f, LEFT + WIDTH + 12, label[k] + 4, "start", r->series[k]);
    }
    fprintf(f, "</svg>\n");
    return cost_closed(f, name);
}

/* Prints a sweep, and draws it into `svg` unless that is NULL. The program's exit status. */
static int sweep_run(const char *name, const plan_job *job, const cost_catalogue *c, const char *svg)
{
    static sweep s;
    static plan_job j;
    static plan_list wrong;
    static plan_answer list[COST_TYPES];
    const cost_type *usual = cost_find(c, "p4d", 3), *t;
    int k = plan_word("scaling|cost|spot|compiler", name), last;
    double step;
    char used[PLAN_INPUTS] = {0};
    if (k < 0) return fprintf(stderr, "plan: --sweep %s: choose scaling, cost, spot or compiler\n", name), 2;
    s.row = &sweep_rows[k], last = s.row->count - 1, j = *job;
    plan_candidates(&j, c, list, &wrong);
    for (int i = 0; i < wrong.count; i++) fprintf(stderr, "plan: %s\n", wrong.line[i]);
    t = usual && !*j.text[in_instance] ? usual : list[0].type;
    j.n[in_price_node_h] = isnan(list[0].price) ? t->dollars : list[0].price;
    printf("%s: %s\n  %s\n  on %s with", s.row->title, s.row->y, s.row->formula, cost_short(t));
    for (int i = 0, f; (f = s.row->uses[i].field) || !i; i++) {
        if (f == in_price_node_h && isnan(j.n[f]))
            return fprintf(stderr, "plan: the catalogue has no price of %s. Give --price-node-h\n", cost_short(t)), 2;
        j.n[f] = plan_or(&j, f, s.row->uses[i].usual), used[f] = 1;
        printf("%s %s %g", i ? "," : "", plan_field[f].name, j.n[f]);
    }
    printf("\n");
    used[in_instance] = 1, used[in_max_nodes] = (char)s.row->doubles;
    for (int f = 0; f < PLAN_INPUTS; f++)
        if (plan_has(job, f) && !used[f]) printf("  %s is not used here\n", plan_field[f].name);
    if (s.row->doubles)
        for (double x = 1; x <= fmax(2, fmin(plan_or(&j, in_max_nodes, 64), 1024)); x *= 2) s.x[s.points++] = x;
    else {
        double from = s.row->at(t, j.n, 0, last) - s.row->at(t, j.n, 0, 0);
        double slope = s.row->at(t, j.n, 1, last) - s.row->at(t, j.n, 1, 0) - from;
        step = sweep_round(fmin(fmax(-from / slope, 5), 1e6) / 8);
        for (; s.points < SWEEP_POINTS; s.points++) s.x[s.points] = s.points * step;
    }
    for (k = 0; k <= last; k++)
        for (int i = 0; i < s.points; i++) s.y[k][i] = s.row->at(t, j.n, s.x[i], k);
    sweep_table(&s);
    if (svg && !sweep_svg(&s, svg)) return fprintf(stderr, "plan: cannot write %s: check the folder\n", svg), 1;
    return 0;
}

#endif
