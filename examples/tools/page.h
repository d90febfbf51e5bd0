/* page.h: runs as one page of HTML with pictures in SVG, for report.c. The page needs nothing else and is also XML, so
 * that a parser can check it. What a picture shows by a colour it shows by a dash, a marker, a pattern or a word as
 * well, and a table beside it has the numbers. */
#ifndef DTRAIN_PAGE_H
#define DTRAIN_PAGE_H

#include "runs.h"

enum { PAGE_RUNS = 8, PAGE_POINTS = 240, PAGE_BINS = 20, PAGE_ROWS = 16 };

/* A text of unknown origin: markup is escaped, what is not a character is replaced. */
static void page_text(FILE *f, const char *s)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + strlen(s);
    for (int n; p < end; p += n ? n : 1) {
        n = utf8_length(p, end);
        if (!n || (*p < 32 && *p != '\n' && *p != '\t') || *p == 127 || (n == 3 && !memcmp(p, "\xef\xbf", 2)))
            fputs("\xef\xbf\xbd", f);
        else if (strchr("&<>\"'", *p)) fprintf(f, "&#%d;", *p);
        else fwrite(p, 1, (size_t)n, f);
    }
}

/* Markup with %s for such a text, %d for an int, %f for a length with two decimals. */
static void put(FILE *f, const char *markup, ...)
{
    va_list args;
    va_start(args, markup);
    for (; *markup; markup++) {
        if (*markup != '%') fputc(*markup, f);
        else if (*++markup == 's') page_text(f, va_arg(args, const char *));
        else if (*markup == 'd') fprintf(f, "%d", va_arg(args, int));
        else fprintf(f, "%.2f", va_arg(args, double));
    }
    va_end(args);
}

/* A short text, good until 16 more are made. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
static const char *text(const char *format, ...)
{
    static char ring[16][160];
    static int next;
    char *to = ring[next++ % 16];
    va_list args;
    va_start(args, format);
    vsnprintf(to, sizeof *ring, format, args);
    va_end(args);
    return to;
}

static const char *in_seconds(double x)
{
    if (!(x == x)) return "not known";
    return x < 1e-3 ? text("%.4g \xc2\xb5s", 1e6 * x) : x < 1 ? text("%.4g ms", 1e3 * x) : text("%.4g s", x);
}
static const char *in_bytes(double x)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int k = 0;
    for (; x >= 1000 && k < 4; k++) x /= 1000;
    return x == x ? text("%.4g %s", x, units[k]) : "not known";
}
static const char *in_digits(double x)
{
    return !(x == x) ? "not known" : fabs(x) < 1e15 && x == floor(x) ? text("%.0f", x) : text("%.6g", x);
}

/* Opens a table with these titles, up to a NULL. */
static void table(FILE *f, ...)
{
    const char *title;
    va_list args;
    va_start(args, f);
    put(f, "<div class=\"wide\"><table><thead><tr>");
    while ((title = va_arg(args, const char *)) != NULL) put(f, "<th scope=\"col\">%s</th>", title);
    put(f, "</tr></thead><tbody>\n");
    va_end(args);
}
static void table_end(FILE *f) { put(f, "</tbody></table></div>\n"); }
static void cell(FILE *f, const char *s) { put(f, strlen(s) > 24 ? "<td class=\"long\">%s</td>" : "<td>%s</td>", s); }
/* Opens a row with this name, after a sample of pattern 0 to 7. */
static void row_open(FILE *f, int pattern, const char *name)
{
    put(f, "<tr><th scope=\"row\">");
    if (pattern >= 0)
        put(f, "<svg class=\"swatch\" viewBox=\"0 0 16 10\" aria-hidden=\"true\"><rect width=\"16\" height=\"10\" "
            "fill=\"url(#p%d)\"/></svg> ", pattern);
    put(f, "%s</th>", name);
}
/* A row with these cells, up to a NULL. */
static void row(FILE *f, int pattern, const char *name, ...)
{
    const char *s;
    va_list args;
    va_start(args, name);
    row_open(f, pattern, name);
    while ((s = va_arg(args, const char *)) != NULL) cell(f, s);
    put(f, "</tr>\n");
    va_end(args);
}

/* ---- pictures, 360 units wide, so that their letters are readable on a telephone ---- */

typedef struct plot {
    FILE *f;
    double x0, x1, y0, y1; /* what the axes show */
} plot;
enum { LEFT = 48, RIGHT = 352, TOP = 22, BOTTOM = 166, HEIGHT = 200 };
static int page_id; /* of the last picture */

static void svg_open(FILE *f, int height, const char *title, const char *about)
{
    int id = ++page_id;
    put(f, "<svg class=\"plot\" viewBox=\"0 0 360 %d\" role=\"img\" aria-labelledby=\"t%d d%d\">", height, id, id);
    put(f, "<title id=\"t%d\">%s</title><desc id=\"d%d\">%s</desc>\n", id, title, id, about);
}
static void svg_text(FILE *f, double x, double y, const char *anchor, const char *s)
{
    put(f, "<text x=\"%f\" y=\"%f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, s);
}

static double plot_x(const plot *p, double x) { return LEFT + (RIGHT - LEFT) * (x - p->x0) / (p->x1 - p->x0); }
static double plot_y(const plot *p, double y)
{
    return BOTTOM - (BOTTOM - TOP) * (fmin(y, p->y1) - p->y0) / (p->y1 - p->y0);
}

/* 1, 2 or 5 times a power of ten, at least x. */
static double plot_round(double x)
{
    double power = pow(10, floor(log10(x)));
    return power * (x <= power ? 1 : x <= 2 * power ? 2 : x <= 5 * power ? 5 : 10);
}

static void plot_open(plot *p, FILE *f, const char *title, const char *about, const char *x_name, const char *y_name)
{
    double step, at;
    if (!(p->x1 > p->x0)) p->x0 -= 1, p->x1 = p->x0 + 2;
    if (!(p->y1 > p->y0)) p->y1 = p->y0 + fmax(1e-9, fabs(p->y0) / 10);
    p->f = f, svg_open(f, HEIGHT, title, about);
    step = plot_round((p->y1 - p->y0) / 5), p->y0 = step * floor(p->y0 / step), p->y1 = step * ceil(p->y1 / step);
    for (int k = 0; k < 10 && (at = p->y0 + k * step) <= p->y1 + step / 2; k++) {
        put(f, "<path class=\"grid\" d=\"M%d %fH%d\"/>", LEFT, plot_y(p, at), RIGHT);
        svg_text(f, LEFT - 4, plot_y(p, at) + 4, "end", text("%.5g", fabs(at) < step / 1e6 ? 0 : at));
    }
    step = plot_round((p->x1 - p->x0) / 4.5);
    for (int k = 0; k < 10 && (at = step * (ceil(p->x0 / step) + k)) <= p->x1 + step / 1e6; k++)
        svg_text(f, plot_x(p, at), BOTTOM + 14, plot_x(p, at) > RIGHT - 16 ? "end" : "middle", text("%.7g", at));
    put(f, "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>", LEFT, TOP, BOTTOM, RIGHT);
    svg_text(f, 2, 10, "start", y_name), svg_text(f, RIGHT, BOTTOM + 29, "end", x_name);
}

static void plot_marker(FILE *f, int of, double x, double y)
{
    static const char *const shapes[] = {"m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0", "m-3-3h6v6h-6z", "m0-4l4 7h-8z",
                                         "m0-4l4 4l-4 4l-4-4z", "m-3-3l6 6m0-6l-6 6", "m-4 0h8m-4-4v8", "m0 4l4-7h-8z",
                                         "m-4-1h8m-8 3h8"};
    put(f, "<path class=\"mark r%d\" d=\"M%f %f%s\"/>", of, x, y, shapes[of % 8]);
}

/* A number of the steps as a line: of up to 240 groups of steps the mean or, `most`, the largest. */
static void plot_line(const plot *p, const run *r, int of, int column, int most)
{
    int64_t each = (r->steps + PAGE_POINTS - 1) / PAGE_POINTS;
    const char *move = "M";
    put(p->f, "<path class=\"line r%d\" d=\"", of);
    for (int64_t i = 0; i < r->steps;) {
        double sum = 0, count = 0, x = 0;
        for (int64_t k = 0; k < each && i < r->steps; k++, i++) {
            double y = r->step[i].of[column];
            if (!(y == y)) continue;
            sum = most ? fmax(sum, y) : sum + y, count++, x = r->step[i].of[c_step];
        }
        if (count > 0) put(p->f, "%s%f %f", move, plot_x(p, x), plot_y(p, most ? sum : sum / count)), move = "L";
    }
    put(p->f, "\"/>\n");
}

static void plot_legend(FILE *f, const run *runs, int count)
{
    put(f, "</svg><ul class=\"legend\">");
    for (int k = 0; k < count; k++) {
        put(f, "<li><svg class=\"key\" viewBox=\"0 0 40 10\" aria-hidden=\"true\">");
        put(f, "<path class=\"line r%d\" d=\"M1 5H39\"/>", k), plot_marker(f, k, 20, 5);
        put(f, "</svg> %s</li>", runs[k].name);
    }
    put(f, "</ul></div>\n");
}

/* The range of a column over all runs; 0: it has no number. */
static int plot_range(plot *p, const run *runs, int count, int column)
{
    for (int k = 0; k < count; k++)
        for (int64_t i = 0; i < runs[k].steps; i++) {
            double x = runs[k].step[i].of[c_step], y = runs[k].step[i].of[column];
            p->x0 = fmin(p->x0, x), p->x1 = fmax(p->x1, x);
            if (fabs(y) < 1e30) p->y0 = fmin(p->y0, y), p->y1 = fmax(p->y1, y);
        }
    return p->x1 >= p->x0 && p->y1 >= p->y0;
}

/* A bar of parts in patterns 0 to 7, as long as `width` for `all`. */
static void bar(FILE *f, double x, double y, double width, double height, const double *part, int parts, double all)
{
    for (int k = 0; k < parts; k++) {
        double w = all > 0 && part[k] > 0 ? width * part[k] / all : 0;
        if (w > 0.05)
            put(f, "<rect x=\"%f\" y=\"%f\" width=\"%f\" height=\"%f\" fill=\"url(#p%d)\"/>", x, y, w, height, k);
        x += w;
    }
}

/* ---- sections ---- */

static void page_verdict(FILE *f, const run *r)
{
    static const char *const signs[] = {"\xe2\x9c\x93", "\xe2\x9c\x97", "!"};
    put(f, "<section class=\"card ill%d\"><h2><span aria-hidden=\"true\">%s</span>", r->ill, signs[r->ill]);
    put(f, " %s</h2><p class=\"what\">%s.</p><p>%s.</p><p><b>Next.</b> %s.</p><pre><code>%s</code></pre></section>\n",
        r->name, r->what, r->health, r->next, r->command);
}

static void page_compare(FILE *f, const run *runs, int count)
{
    static const char *const rows[] = {"last step", "loss", "validation loss, last", "validation loss, lowest",
                                       "step, median", "steps, sum", "tokens per second", "share of the machine's peak",
                                       "bytes sent by rank 0, last step", "memory of a rank, most", "parameters",
                                       "SHA-256"};
    int same = count > 1 && *runs->hash;
    put(f, "<h2>%s</h2><div class=\"wide\"><table><thead><tr><th scope=\"col\">run</th>",
        count > 1 ? "Side by side" : "In numbers");
    for (int k = 0; k < count; k++) put(f, "<th scope=\"col\">%s</th>", runs[k].name);
    put(f, "</tr></thead><tbody>\n");
    for (int line = 0; line < 12; line++) {
        row_open(f, -1, rows[line]);
        for (int k = 0; k < count; k++) {
            const run *r = &runs[k];
            double last = (double)NAN, least = (double)NAN, seconds = 0, tokens = 0, peak = 0;
            const double *of = r->steps ? r->step[r->steps - 1].of : NULL;
            for (int64_t i = 0; i < r->steps; i++) {
                const double *s = r->step[i].of;
                if (s[c_validation] == s[c_validation]) last = s[c_validation], least = least <= last ? least : last;
                seconds += run_or(s[c_seconds], 0), tokens += run_or(s[c_tokens], 0);
                peak += run_or(s[c_peak_share], 0) * run_or(s[c_seconds], 0);
            }
            cell(f, line == 0 ? in_digits(of ? of[c_step] : 0) : line == 1 ? in_digits(of ? of[c_loss] : (double)NAN)
                 : line == 2 ? in_digits(last) : line == 3 ? in_digits(least) : line == 4 ? in_seconds(r->sorted[0])
                 : line == 5 ? in_seconds(seconds) : line == 6 ? in_digits(seconds > 0 ? tokens / seconds : (double)NAN)
                 : line == 7 ? text("%.4g %%", seconds > 0 ? 100 * peak / seconds : 0)
                 : line == 8 ? in_digits(of ? of[c_sent_bytes] : (double)NAN)
                 : line == 9 ? in_bytes(r->memory > 0 ? r->memory : (double)NAN)
                 : line == 10 ? in_digits(run_head(r, "parameters")) : *r->hash ? r->hash : "not known");
            same = same && !strcmp(r->hash, runs->hash);
        }
        put(f, "</tr>\n");
    }
    table_end(f);
    if (same) put(f, "<p>The hashes are equal: all runs have the same weights, to the last bit.</p>\n");
}

/* Rows for some of the steps, the last one among them. */
static void page_steps(FILE *f, const run *r, int open)
{
    int64_t each = r->steps > PAGE_ROWS ? (int64_t)plot_round((double)r->steps / PAGE_ROWS) : 1;
    put(f, open ? "<details open=\"\">" : "<details>"), put(f, "<summary>Numbers of %s</summary>", r->name);
    table(f, "step", "loss", "validation", "gradient norm", "seconds", NULL);
    for (int64_t i = 0; i < r->steps; i++) {
        const double *of = r->step[i].of;
        if ((i + 1) % each && i + 1 < r->steps) continue;
        row(f, -1, in_digits(of[c_step]), in_digits(of[c_loss]), of[c_validation] == of[c_validation]
            ? in_digits(of[c_validation]) : "", in_digits(of[c_norm]), in_digits(of[c_seconds]), NULL);
    }
    table_end(f), put(f, "</details>\n");
}

static void page_loss(FILE *f, const run *runs, int count)
{
    plot p = {f, 1e300, -1e300, 1e300, -1e300};
    char about[SENTENCE] = "";
    double first = 0;
    put(f, "<h2>Loss</h2>\n");
    if ((plot_range(&p, runs, count, c_validation), !plot_range(&p, runs, count, c_loss))) {
        put(f, "<p>No step has a loss.</p>\n");
        return;
    }
    for (int k = 0; k < count; k++)
        if (runs[k].steps) first = fmax(first, run_or(runs[k].step[0].of[c_loss], 0));
    if (first > 0 && p.y1 > 2 * first)
        p.y1 = 2 * first, say(about, "Losses above %.4g are drawn there. ", p.y1);
    for (const run *r = runs; r < runs + count; r++)
        if (r->steps)
            say(about, "%s: training loss %.4f at step %.0f, ", r->name, r->step->of[c_loss], r->step->of[c_step]),
                say(about, "%.4f at step %.0f. ", r->step[r->steps - 1].of[c_loss], r->step[r->steps - 1].of[c_step]);
    put(f, "<div class=\"pair\"><div>");
    plot_open(&p, f, "Loss over steps", about, "step", "loss: line training, marks validation");
    for (int k = 0; k < count; k++) {
        int64_t marks = 0, n = 0;
        plot_line(&p, &runs[k], k, c_loss, 0);
        for (int64_t i = 0; i < runs[k].steps; i++) marks += fabs(runs[k].step[i].of[c_validation]) < 1e30;
        for (int64_t i = 0; i < runs[k].steps; i++) {
            const double *of = runs[k].step[i].of;
            if (fabs(of[c_validation]) < 1e30 && ++n % (1 + marks / 40) == 0)
                plot_marker(f, k, plot_x(&p, of[c_step]), plot_y(&p, of[c_validation]));
        }
    }
    plot_legend(f, runs, count), put(f, "<div>");
    for (int k = 0; k < count; k++) page_steps(f, &runs[k], count == 1);
    put(f, "</div></div>\n");
}

/* Steps by their seconds. What exceeds three medians is in the last bin. */
static void page_histogram(FILE *f, const run *r)
{
    double low = r->timed ? r->order[0] : 0, high = r->timed ? fmin(r->order[r->timed - 1], 3 * r->sorted[0]) : 0;
    double unit = high < 1e-3 ? 1e6 : high < 1 ? 1e3 : 1;
    int64_t bin[PAGE_BINS] = {0}, most = 1;
    plot p = {f, unit * low, unit * high, 0, 0};
    if (!r->timed) return;
    if (!(high > low)) high = low + fmax(low / 10, 1e-9), p.x1 = unit * high;
    for (int64_t i = 0; i < r->timed; i++) {
        int b = (int)fmin(PAGE_BINS - 1, PAGE_BINS * (r->order[i] - low) / (high - low));
        most = ++bin[b] > most ? bin[b] : most;
    }
    p.y1 = (double)most;
    plot_open(&p, f, "Histogram of step times", text("Half of the steps take up to %s, 90 %% up to %s, 99 %% up to %s.",
              in_seconds(r->sorted[0]), in_seconds(r->sorted[1]), in_seconds(r->sorted[2])),
              unit > 1e3 ? "\xc2\xb5s per step" : unit > 1 ? "ms per step" : "seconds per step", "steps");
    for (int b = 0; b < PAGE_BINS; b++) {
        double wide = (double)(RIGHT - LEFT) / PAGE_BINS, y = plot_y(&p, (double)bin[b]);
        if (bin[b])
            put(f, "<rect class=\"bar\" x=\"%f\" y=\"%f\" width=\"%f\" height=\"%f\"/>", LEFT + wide * b + 0.5, y,
                wide - 1, BOTTOM - y);
    }
    for (int k = 0; k < 3; k++) {
        double x = plot_x(&p, unit * r->sorted[k]);
        if (x > RIGHT) continue;
        put(f, "<path class=\"rule\" d=\"M%f %dV%d\"/>", x, TOP + 12 * k + 2, BOTTOM);
        svg_text(f, x + (x > 300 ? -3 : 3), TOP + 12 * k + 10, x > 300 ? "end" : "start",
                 k == 0 ? "p50" : k == 1 ? "p90" : "p99");
    }
    put(f, "</svg>\n");
}

static void page_times(FILE *f, const run *runs, int count)
{
    plot p = {f, 1e300, -1e300, 0, -1e300};
    if (!plot_range(&p, runs, count, c_seconds)) return;
    put(f, "<h2>Step time</h2>\n<div class=\"pair\"><div>");
    plot_open(&p, f, "Seconds per step", "The time of each step, or the longest of a group. A table has percentiles.",
              "step", "seconds of a step");
    for (int k = 0; k < count; k++) plot_line(&p, &runs[k], k, c_seconds, 1);
    plot_legend(f, runs, count);
    for (int k = 0; k < count; k++) {
        put(f, count > 1 ? "<div><h3>%s</h3>" : "<div>", runs[k].name);
        page_histogram(f, &runs[k]), put(f, "</div>");
    }
    put(f, "</div>"), table(f, "run", "steps", "shortest", "median", "p90", "p99", "longest", "mean", NULL);
    for (const run *r = runs; r < runs + count; r++)
        row(f, -1, r->name, in_digits((double)r->timed), in_seconds(run_percentile(r->order, r->timed, 0)),
            in_seconds(r->sorted[0]), in_seconds(r->sorted[1]), in_seconds(r->sorted[2]),
            in_seconds(run_percentile(r->order, r->timed, 100)), in_seconds(r->mean), NULL);
    table_end(f);
}

static const char *const part_names[] = {"computing", "exposed communication", "waiting for late ranks",
                                         "waiting for data", "rest of the steps", "checkpoints",
                                         "validation, samples, rules", "start"};
enum { PARTS = sizeof part_names / sizeof *part_names };

static void page_where(FILE *f, const run *r)
{
    const run_part *p = &r->part;
    const double part[PARTS] = {p->work, p->exposed, p->agree, p->data, p->other, p->save, p->between, p->start};
    int shown = r->ranks < PAGE_ROWS ? r->ranks : PAGE_ROWS, slow = 0, known = 0;
    double sum[PAGE_ROWS][RANK_KINDS] = {{0}}, most = 0, mean = 0;
    char about[SENTENCE] = "";
    for (int q = 0; q < shown; q++) {
        for (int64_t i = 0; i < r->steps; i++)
            for (int k = 0; k < RANK_KINDS; k++) {
                double x = run_rank(r, i, k, q);
                known = known || (double)r->rank[(i * RANK_KINDS + RANK_WORK) * r->ranks + q] >= 0;
                sum[q][k] = k == RANK_MEMORY ? fmax(sum[q][k], x) : sum[q][k] + run_or(x, 0);
            }
        mean += sum[q][RANK_WORK] / shown, most = fmax(most, sum[q][RANK_SECONDS]);
        if (sum[q][RANK_WORK] > sum[slow][RANK_WORK]) slow = q;
    }
    for (int k = 0; k < PARTS; k++)
        say(about, "%s%s %.1f %%", k ? ", " : "", part_names[k], p->all > 0 ? 100 * part[k] / p->all : 0);
    put(f, "<div class=\"pair\"><div>"), svg_open(f, 44 + 20 * (known ? shown : 0), "Where time goes", about);
    svg_text(f, 2, 10, "start", "whole run"), bar(f, 2, 14, 356, 18, part, PARTS, p->all);
    for (int q = 0; q < shown && known; q++) {
        svg_text(f, 2, 55 + 20 * q, "start", text("rank %d", q));
        bar(f, LEFT + 8, 43 + 20 * q, RIGHT - LEFT - 8, 15, sum[q] + RANK_WORK, 4, most);
    }
    put(f, "</svg></div>"), table(f, "part", "seconds", "share", NULL);
    for (int k = 0; k < PARTS; k++)
        row(f, k, part_names[k], in_seconds(part[k]), text("%.1f %%", p->all > 0 ? 100 * part[k] / p->all : 0), NULL);
    table_end(f), put(f, "</div>\n");
    if (!known) return;
    table(f, "rank", "computing", "exposed", "late ranks", "data", "memory, most", NULL);
    for (int q = 0; q < shown; q++)
        row(f, -1, text("%d", q), in_seconds(sum[q][RANK_WORK]), in_seconds(sum[q][RANK_EXPOSED]),
            in_seconds(sum[q][RANK_AGREE]), in_seconds(sum[q][RANK_DATA]), in_bytes(sum[q][RANK_MEMORY]), NULL);
    table_end(f);
    if (r->ranks > shown) put(f, "<p>The first %d of %d ranks.</p>\n", shown, r->ranks);
    if (r->ranks > 1 && mean > 0)
        put(f, "<p>Rank %d computes longest, %s longer than the mean of the ranks%s.</p>\n", slow, text("%.1f %%", 100 *
            (sum[slow][RANK_WORK] / mean - 1)), sum[slow][RANK_WORK] > 1.1 * mean ? ": the others wait for it" : "");
}

/* The lanes of a trace on a scale of `end` microseconds. Bars of a class that touch are drawn as one. */
static void page_lanes(FILE *f, const trace *t, double end, const char *what)
{
    double scale = (RIGHT - 2.0) / fmax(end, 1e-3), from = 0, to = 0;
    char about[SENTENCE] = "rank 0: ";
    int lane = -1, of = -1;
    for (int k = 0; k < TRACE_CLASSES; k++)
        say(about, "%s%s %s", k ? ", " : "", trace_classes[k], in_seconds(t->rank[k]));
    svg_open(f, 34 + 26 * t->lanes, what, about), svg_text(f, 2, 10, "start", what);
    for (int k = 0; k < t->lanes; k++) svg_text(f, 2, 25 + 26 * k, "start", t->name[k]);
    for (int64_t i = 0; i <= t->bars; i++) {
        const trace_bar *b = i < t->bars ? &t->bar[i] : NULL;
        double x0 = b ? scale * b->begin : 0, x1 = b ? x0 + scale * b->length : 0;
        if (b && b->lane == lane && b->of == of && x0 >= from && x0 < to + 0.2) {
            to = fmax(to, x1);
            continue;
        }
        if (of >= 0 && to - from > 0.02)
            put(f, "<rect class=\"event\" x=\"%f\" y=\"%d\" width=\"%f\" height=\"12\" fill=\"url(#p%d)\"/>\n",
                2 + from, 28 + 26 * lane, fmax(to - from, 0.2), of);
        if (b) lane = b->lane, of = b->of, from = x0, to = x1;
    }
    put(f, "<path class=\"axis\" d=\"M2 %dH%d\"/>", 17 + 26 * t->lanes, RIGHT);
    svg_text(f, 2, 29 + 26 * t->lanes, "start", "0");
    svg_text(f, RIGHT, 29 + 26 * t->lanes, "end", in_seconds(1e-6 * end)), put(f, "</svg>\n");
}

static void page_trace(FILE *f, const trace *measured, const trace *simulated)
{
    int both = measured && simulated;
    const trace *t = measured ? measured : simulated;
    double end = fmax(measured ? measured->end : 0, simulated ? simulated->end : 0);
    put(f, "<div class=\"pair\"><div>");
    if (measured) page_lanes(f, measured, end, "measured: the last step");
    if (simulated) page_lanes(f, simulated, end, "simulated");
    put(f, "</div>"), table(f, "class", "rank 0", both ? "simulated" : "all ranks", both ? "ratio" : NULL, NULL);
    for (int k = 0; k < TRACE_CLASSES; k++) {
        double other = both ? simulated->rank[k] : t->sum[k];
        row(f, k, trace_classes[k], in_seconds(t->rank[k]), in_seconds(other),
            both ? t->rank[k] > 0 ? text("%.2f", other / t->rank[k]) : "" : NULL, NULL);
    }
    row(f, -1, "whole step", in_seconds(1e-6 * t->end), both ? in_seconds(1e-6 * simulated->end) : NULL,
        both ? text("%.2f", simulated->end / fmax(t->end, 1e-9)) : NULL, NULL);
    table_end(f), put(f, "</div>\n");
    if (t->left) put(f, "<p>The first %d threads are shown.</p>\n", TRACE_LANES);
}

/* Bytes of rank 0 by link, in the last step and in all. */
static void page_bytes(FILE *f, const run *r)
{
    static const char *const links[] = {"inside the node", "between nodes"};
    double last[4] = {0}, all[4] = {0};
    if (!r->steps || !(r->step[0].of[c_sent_bytes] == r->step[0].of[c_sent_bytes])) return;
    for (int64_t i = 0; i < r->steps; i++) {
        const double *of = r->step[i].of;
        double sent = run_or(of[c_sent_bytes], 0), far = run_or(of[c_far_bytes], 0);
        double own = run_or(of[c_gradient_bytes], sent), own_far = run_or(of[c_gradient_far], far);
        last[0] = own - own_far, last[1] = sent - far - last[0], last[2] = own_far, last[3] = far - own_far;
        for (int k = 0; k < 4; k++) all[k] += last[k];
    }
    put(f, "<div class=\"pair\"><div>"), svg_open(f, 80, "Bytes of a step by link",
        text("Rank 0 sends %.0f bytes inside its node and %.0f to other nodes.", last[0] + last[1], last[2] + last[3]));
    for (int k = 0; k < 2; k++) {
        svg_text(f, 2, 12 + 38 * k, "start", links[k]);
        bar(f, 2, 17 + 38 * k, 356, 15, last + 2 * k, 2, fmax(last[0] + last[1], last[2] + last[3]));
    }
    put(f, "</svg></div>"), table(f, "link", "what", "last step", "all steps", NULL);
    for (int k = 0; k < 4; k++)
        row(f, k % 2, links[k / 2], k % 2 ? "activations and the rest" : "gradients and weights", in_digits(last[k]),
            in_digits(all[k]), NULL);
    table_end(f), put(f, "</div>\n");
}

/* Bytes of a rank by formula, as planned, and as the system saw them. */
static void page_memory(FILE *f, const run *r)
{
    static const char *const names[] = {"weights", "gradients", "optimizer", "activations", "buffers", "cache"};
    static const char *const bars[] = {"formula", "planned", "resident"};
    slice planned = json_find(r->head, "memory");
    char word[NAME], about[SENTENCE] = "";
    double part[3][7] = {{0}}, sum[3] = {0}, most = 1, n = run_head(r, "parameters");
    double zero = run_option_number(r, "zero");
    double cut = fmax(1, run_option_number(r, "tp")) * fmax(1, run_option_number(r, "pp"));
    double group = run_option_number(r, "zero-group"), kept = run_option_number(r, "ema") > 0 ? 4 : 0;
    double own = group >= 1 ? group : r->ranks / (cut * fmax(1, run_option_number(r, "cp")));
    if (!planned.at || !(n > 0)) return;
    run_option(r, "optimizer", word, sizeof word);
    kept += !strncmp(word, "adam", 4) ? 8 : !strcmp(word, "lion") || run_option_number(r, "momentum") > 0 ? 4 : 0;
    part[0][0] = 4 * n / cut / (zero >= 3 ? own : 1), part[0][1] = 4 * n / cut / (zero >= 2 ? own : 1);
    part[0][2] = kept * n / cut / (zero >= 1 ? own : 1), part[2][6] = r->memory;
    for (int k = 0; k < 6; k++) part[1][k] = run_or(json_number_of(planned, names[k]), 0);
    for (int b = 0; b < 3; b++) {
        for (int k = 0; k < 7; k++) sum[b] += part[b][k];
        most = fmax(most, sum[b]), say(about, "%s %s. ", bars[b], in_bytes(sum[b]));
    }
    put(f, "<div class=\"pair\"><div>"), svg_open(f, 112, "Memory of a rank", about);
    for (int b = 0; b < 3; b++)
        svg_text(f, 2, 12 + 37 * b, "start", bars[b]), bar(f, 2, 17 + 37 * b, 356, 15, part[b], 7, most);
    put(f, "</svg></div>"), table(f, "memory of rank 0", "formula", "planned", NULL);
    for (int k = 0; k < 6; k++) row(f, k, names[k], k < 3 ? in_bytes(part[0][k]) : "", in_digits(part[1][k]), NULL);
    row(f, -1, "sum", in_bytes(sum[0]), in_bytes(sum[1]), NULL);
    row(f, 6, "resident, the program included", "", r->memory > 0 ? in_bytes(r->memory) : "not known", NULL);
    table_end(f), put(f, "</div><p>Formula: 4 bytes for each weight, each gradient and each number of the optimizer, "
                      "divided by the ranks that share them. A rank that sums several data shards keeps more "
                      "gradients.</p>\n");
}

static void page_rules(FILE *f, const run *r)
{
    char command[2 * SENTENCE], more[SENTENCE];
    if (!r->firings) {
        put(f, "<p>None of %d rules fired. Rules about tensors look only with --rules.</p>\n", DT_RULE_COUNT);
        return;
    }
    table(f, "rule", "where", "found (bound)", "what to do, and the command", NULL);
    for (const run_firing *w = r->fired; w < r->fired + r->firings; w++) {
        run_options(r, w->rule, more), run_command(r, more, command);
        row_open(f, -1, dt_rule_name(w->rule));
        cell(f, text(w->rank >= 0 ? "step %lld, rank %d" : "step %lld", (long long)w->step, w->rank));
        cell(f, w->value == w->value ? text("%.4g (%.4g)", w->value, w->bound) : text("by --rules (%.4g)", w->bound));
        put(f, "<td class=\"long\">%s<pre><code>%s</code></pre></td></tr>\n", dt_rule_advice(w->rule), command);
    }
    table_end(f);
}

static void page_options(FILE *f, const run *r)
{
    static const char *const head[] = {"version", "device", "cores", "nodes", "ranks", "peak_gflops", "parameters"};
    slice usual = json_find(r->head, "usual"), key, value;
    char name[NAME], is[400], was[400];
    double began = run_head(r, "time");
    time_t seconds = began > 0 && began < 4e9 ? (time_t)began : 0;
    put(f, "<div class=\"pair\">"), table(f, "name", "value", NULL), row(f, -1, "file", r->path, NULL);
    if (seconds && strftime(is, sizeof is, "%Y-%m-%d %H:%M:%S UTC", gmtime(&seconds))) row(f, -1, "began", is, NULL);
    for (int k = 0; k < 7; k++)
        if ((value = json_find(r->head, head[k])).at) row(f, -1, head[k], json_text(value, is, sizeof is), NULL);
    row(f, -1, "SHA-256 of the result", *r->hash ? r->hash : "none: the run did not end", NULL), table_end(f);
    put(f, "<div>"), table(f, "option", "value", NULL);
    for (int k = 0; k < 2 && usual.at; k++) {
        slice in = json_inside(json_find(r->head, k ? "layout" : "recipe"));
        while (json_member(&in, &key, &value)) {
            json_text(key, name, sizeof name), json_text(value, is, sizeof is);
            if (strcmp(is, json_text(json_find(usual, name), was, sizeof was))) row(f, -1, name, is, NULL);
        }
    }
    table_end(f), put(f, "<p>Options that are not the usual ones.</p></div></div>\n");
}

static void page_samples(FILE *f, const run *r)
{
    char sample[4096];
    int shown = 0;
    for (int64_t i = r->steps; i-- > 0 && shown < 3;)
        if (r->step[i].sample.at) {
            if (!shown++) put(f, "<h3>Text samples of %s</h3>\n", r->name);
            put(f, "<p>Step %s</p><pre>%s</pre>\n", in_digits(r->step[i].of[c_step]),
                json_text(r->step[i].sample, sample, sizeof sample));
        }
}

/* ---- the page ---- */

static const char page_style[] =
    ":root{color-scheme:light dark;--paper:#fff;--card:#f5f6f8;--ink:#1b1f24;--soft:#525a63;--line:#c9d0d8;"
    "--good:#17692f;--bad:#a8221a;--note:#7a5200;--q0:#8ab4e8;--q1:#f0b48a;--q2:#e79a9a;--q3:#e6d27a;--q4:#c5c9ce;"
    "--q5:#9fd3a8;--q6:#c9b0e6;--q7:#f5f6f8;--r0:#0a58a8;--r1:#a83e06;--r2:#1a6e36;--r3:#6d35a8;--r4:#8a1c5b;"
    "--r5:#4d5500;--r6:#006a73;--r7:#333}\n"
    "@media screen and (prefers-color-scheme:dark){:root{--paper:#14171b;--card:#1e2329;--ink:#e8ebee;"
    "--soft:#a9b2bc;--line:#3c444d;--good:#6fd08a;--bad:#ff9088;--note:#f0c060;--q0:#24507f;--q1:#7d4318;"
    "--q2:#7d2f2f;--q3:#6b5a10;--q4:#4a5058;--q5:#285f35;--q6:#533a78;--q7:#2a3038;--r0:#7db8f5;--r1:#ffa56b;"
    "--r2:#7ddb99;--r3:#cda6ff;--r4:#ff9dcb;--r5:#d5de7a;--r6:#6fd6de;--r7:#ccc}}\n"
    "body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.45 system-ui,sans-serif}"
    "main{max-width:1080px;margin:auto;padding:12px}h1{font-size:1.35rem}h2{font-size:1.15rem;margin:1.6em 0 .5em}"
    "h3{font-size:1rem}p{margin:.5em 0}.cards,.pair{display:grid;gap:14px;"
    "grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}.cards>*,.pair>*{min-width:0}\n"
    ".card{background:var(--card);border:1px solid var(--line);border-left:6px solid var(--good);padding:4px 14px}"
    ".card h2{margin:.5em 0;overflow-wrap:anywhere}.ill1{border-left-color:var(--bad)}"
    ".ill2{border-left-color:var(--note)}.what{font-weight:600}"
    "pre{background:var(--card);border:1px solid var(--line);padding:8px;white-space:pre-wrap;"
    "overflow-wrap:anywhere;font-size:.85rem;margin:.5em 0}table{border-collapse:collapse;font-size:.875rem;"
    "font-variant-numeric:tabular-nums;margin:.3em 0}th,td{border-bottom:1px solid var(--line);padding:3px 10px 3px 0;"
    "text-align:left;vertical-align:top}thead th,td{white-space:nowrap}.long{white-space:normal;overflow-wrap:anywhere}"
    "th[scope=row]{font-weight:400;color:var(--soft);min-width:7em}td pre{min-width:17em}.wide{overflow-x:auto}"
    "summary{cursor:pointer;color:var(--soft)}.plot{width:100%;max-width:560px;height:auto;display:block}"
    ".plot text{font-size:11px;fill:var(--ink)}.grid{stroke:var(--line);stroke-width:.6}"
    ".axis{stroke:var(--soft);fill:none}.line{fill:none;stroke-width:1.4}"
    ".bar{fill:var(--q0);stroke:var(--ink);stroke-width:.6}"
    ".rule{stroke:var(--ink);stroke-dasharray:2 2;stroke-width:.8}.event{stroke:var(--ink);stroke-width:.25}"
    ".hatch{stroke:var(--ink);stroke-width:.7;fill:none;stroke-linecap:square}\n"
    ".r0{stroke:var(--r0)}.r1{stroke:var(--r1);stroke-dasharray:6 3}.r2{stroke:var(--r2);stroke-dasharray:2 2}"
    ".r3{stroke:var(--r3);stroke-dasharray:9 3 2 3}.r4{stroke:var(--r4);stroke-dasharray:12 4}"
    ".r5{stroke:var(--r5);stroke-dasharray:1 3}.r6{stroke:var(--r6);stroke-dasharray:6 2 1 2 1 2}"
    ".r7{stroke:var(--r7);stroke-dasharray:4 6}.mark{fill:var(--paper);stroke-width:1.3;stroke-dasharray:none}\n"
    ".legend{list-style:none;margin:0;padding:0;display:flex;flex-wrap:wrap;gap:2px 16px;font-size:.875rem}"
    ".legend li{overflow-wrap:anywhere;min-width:0}.key{width:40px;height:10px}.defs{position:absolute}"
    ".swatch{width:16px;height:10px;border:1px solid var(--soft)}\n"
    "@media print{body{font-size:11pt}table{font-size:8.5pt}"
    ".wide{overflow:visible}thead th,td{white-space:normal}"
    ".pair{grid-template-columns:1fr 1fr}section,.pair,tr,svg{break-inside:avoid}h2,h3{break-after:avoid}}\n";

static void page_patterns(FILE *f)
{
    static const char *const marks[] = {"",       "M-1 7L7-1", "M0 0L6 6M6 0L0 6", "M3 2.5v1",
                                        "M3 0v6", "M0 3h6",    "M0 3h6M3 0v6",     "M-1-1L7 7"};
    put(f, "<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>");
    for (int k = 0; k < 8; k++)
        put(f, "<pattern id=\"p%d\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
            "<rect width=\"6\" height=\"6\" style=\"fill:var(--q%d)\"/><path d=\"%s\" class=\"hatch\"/></pattern>",
            k, k, marks[k]);
    put(f, "</defs></svg>\n");
}

/* What a page begins with: another file is not replaced. */
static const char page_first[] = "<!DOCTYPE html>\n<!-- dtrain report -->\n";

/* A section of each run, under its name where there are several. */
static void page_each(FILE *f, const char *title, const run *runs, int count, void (*section)(FILE *, const run *))
{
    put(f, "<h2>%s</h2>\n", title);
    for (int k = 0; k < count; k++) {
        if (count > 1) put(f, "<h3>%s</h3>\n", runs[k].name);
        section(f, &runs[k]);
    }
}

typedef struct page_traces {
    trace measured, simulated;
} page_traces;

/* follow: the page loads itself again every 2 seconds. */
static void page_put(FILE *f, const run *runs, const page_traces *traces, int count, int follow)
{
    int timelines = 0;
    page_id = 0;
    fputs(page_first, f);
    put(f, "<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>");
    if (follow) put(f, "<meta http-equiv=\"refresh\" content=\"2\"/>");
    put(f, "<link rel=\"icon\" href=\"data:,\"/><title>Training report: %s</title><style>\n", runs->name);
    fputs(page_style, f), put(f, "</style></head><body>\n"), page_patterns(f);
    put(f, "<main><h1>Training report</h1><div class=\"cards\">\n");
    for (int k = 0; k < count; k++) page_verdict(f, &runs[k]);
    put(f, "</div>\n"), page_compare(f, runs, count), page_loss(f, runs, count), page_times(f, runs, count);
    page_each(f, "Where time goes", runs, count, page_where);
    for (int k = 0; k < count; k++) {
        const trace *m = &traces[k].measured, *s = &traces[k].simulated;
        if (!m->bars && !s->bars) continue;
        if (!timelines++) put(f, "<h2>Timeline</h2>\n");
        if (count > 1) put(f, "<h3>%s</h3>\n", runs[k].name);
        page_trace(f, m->bars ? m : NULL, s->bars ? s : NULL);
    }
    page_each(f, "Bytes by link", runs, count, page_bytes), page_each(f, "Memory", runs, count, page_memory);
    page_each(f, "Rules", runs, count, page_rules), page_each(f, "Recipe and hardware", runs, count, page_options);
    for (int k = 0; k < count; k++) page_samples(f, &runs[k]);
    put(f, "</main></body></html>\n");
}

#endif
