/* page.h: runs as one page of HTML with pictures in SVG, for report.c. The page needs nothing else and is also XML, so
 * that a parser can check it. What a picture shows by a colour it shows by a dash, a marker, a pattern or a word as well,
 * and a table beside it has the numbers. */
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
        if (!n || (*p < 32 && *p != '\n' && *p != '\t') || *p == 127 || (n == 3 && *p == 0xef && p[1] == 0xbf && p[2] > 0xbd))
            fputs("\xef\xbf\xbd", f);
        else if (strchr("&<>\"'", *p)) fprintf(f, "&#%d;", *p);
        else fwrite(p, 1, (size_t)n, f);
    }
}

static const char *in_seconds(double x, char text[40])
{
    if (!(x == x)) return strcpy(text, "not known");
    if (x < 1) snprintf(text, 40, x < 1e-3 ? "%.4g \xc2\xb5s" : "%.4g ms", x * (x < 1e-3 ? 1e6 : 1e3));
    else snprintf(text, 40, "%.4g s", x);
    return text;
}
static const char *in_bytes(double x, char text[40])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int k = 0;
    if (!(x == x)) return strcpy(text, "not known");
    for (; x >= 1000 && k < 4; k++) x /= 1000;
    return snprintf(text, 40, "%.4g %s", x, units[k]), text;
}
static const char *in_digits(double x, const char *unit, char text[40])
{
    if (!(x == x)) return strcpy(text, "not known");
    return snprintf(text, 40, "%.6g%s", x, unit), text;
}

static void page_head(FILE *f, const char *const *titles)
{
    fputs("<table><thead><tr>", f);
    for (; *titles; titles++) fputs("<th scope=\"col\">", f), page_text(f, *titles), fputs("</th>", f);
    fputs("</tr></thead><tbody>\n", f);
}
static void page_end(FILE *f) { fputs("</tbody></table>\n", f); }
static void page_cell(FILE *f, const char *text)
{
    fputs(strlen(text) > 24 ? "<td class=\"long\">" : "<td>", f), page_text(f, text), fputs("</td>", f);
}
/* Opens a row that is named; class "p3" shows pattern 3 in front. */
static void page_row(FILE *f, const char *name, int pattern)
{
    fputs("<tr><th scope=\"row\">", f);
    if (pattern >= 0)
        fprintf(f, "<svg class=\"swatch\" viewBox=\"0 0 16 10\" aria-hidden=\"true\"><rect width=\"16\" height=\"10\" "
                "fill=\"url(#p%d)\"/></svg> ", pattern);
    page_text(f, name), fputs("</th>", f);
}

/* ---- pictures, 360 units wide, so that their letters are readable on a telephone ---- */

typedef struct plot {
    FILE *f;
    double x0, x1, y0, y1; /* what the axes show */
} plot;
enum { LEFT = 48, RIGHT = 352, TOP = 22, BOTTOM = 166, HEIGHT = 200 };
static int page_id; /* of the next picture */

static void svg_open(FILE *f, double height, const char *title, const char *about)
{
    page_id++;
    fprintf(f, "<svg class=\"plot\" viewBox=\"0 0 360 %.0f\" role=\"img\" aria-labelledby=\"t%d d%d\"><title id=\"t%d\">", height, page_id, page_id, page_id);
    page_text(f, title), fprintf(f, "</title><desc id=\"d%d\">", page_id), page_text(f, about), fputs("</desc>\n", f);
}

static void svg_text(FILE *f, double x, double y, const char *anchor, const char *text)
{
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor), page_text(f, text), fputs("</text>\n", f);
}

static double plot_x(const plot *p, double x) { return LEFT + (RIGHT - LEFT) * (x - p->x0) / (p->x1 - p->x0); }
static double plot_y(const plot *p, double y) { return BOTTOM - (BOTTOM - TOP) * (y - p->y0) / (p->y1 - p->y0); }

/* 1, 2 or 5 times a power of ten, at least x. */
static double plot_round(double x)
{
    double power = pow(10, floor(log10(x)));
    return power * (x <= power ? 1 : x <= 2 * power ? 2 : x <= 5 * power ? 5 : 10);
}

static void plot_open(plot *p, FILE *f, const char *title, const char *about, const char *x_name, const char *y_name)
{
    double step;
    char text[40];
    if (!(p->x1 > p->x0)) p->x0 -= 1, p->x1 = p->x0 + 2;
    if (!(p->y1 > p->y0)) p->y1 = p->y0 + fmax(1e-9, fabs(p->y0) / 10);
    p->f = f, svg_open(f, HEIGHT, title, about);
    step = plot_round((p->y1 - p->y0) / 5), p->y0 = step * floor(p->y0 / step), p->y1 = step * ceil(p->y1 / step);
    for (int k = 0; k < 10 && p->y0 + k * step <= p->y1 + step / 2; k++) {
        double y = p->y0 + k * step;
        fprintf(f, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>", LEFT, plot_y(p, y), RIGHT);
        snprintf(text, sizeof text, "%.5g", fabs(y) < step / 1e6 ? 0 : y), svg_text(f, LEFT - 4, plot_y(p, y) + 4, "end", text);
    }
    step = plot_round((p->x1 - p->x0) / 4.5);
    for (int k = 0; k < 10 && step * (ceil(p->x0 / step) + k) <= p->x1 + step / 1e6; k++) {
        double x = step * (ceil(p->x0 / step) + k);
        snprintf(text, sizeof text, "%.7g", fabs(x) < step / 1e6 ? 0 : x),
            svg_text(f, plot_x(p, x), BOTTOM + 14, plot_x(p, x) > RIGHT - 16 ? "end" : "middle", text);
    }
    fprintf(f, "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>", LEFT, TOP, BOTTOM, RIGHT);
    svg_text(f, 2, 10, "start", y_name), svg_text(f, RIGHT, BOTTOM + 29, "end", x_name);
}

static void plot_marker(FILE *f, int of, double x, double y)
{
    static const char *const shapes[] = {"m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0", "m-3-3h6v6h-6z", "m0-4l4 7h-8z", "m0-4l4 4l-4 4l-4-4z",
                                         "m-3-3l6 6m0-6l-6 6", "m-4 0h8m-4-4v8", "m0 4l4-7h-8z", "m-4-1h8m-8 3h8"};
    fprintf(f, "<path class=\"mark r%d\" d=\"M%.1f %.1f%s\"/>", of, x, y, shapes[of % 8]);
}

/* A number of the steps as a line: of up to 240 groups of steps the mean or, `most`, the largest. */
static void plot_line(plot *p, const run *r, int of, int column, int most)
{
    int64_t each = (r->steps + PAGE_POINTS - 1) / PAGE_POINTS;
    const char *move = "M";
    fprintf(p->f, "<path class=\"line r%d\" d=\"", of);
    for (int64_t i = 0, n = 0; i < r->steps; n++) {
        double sum = 0, count = 0, x = 0;
        for (int64_t k = 0; k < each && i < r->steps; k++, i++) {
            double y = r->step[i].of[column];
            if (!(y == y)) continue;
            sum = most && count ? fmax(sum, y) : sum + y, count += !(most && count), x = r->step[i].of[c_step];
        }
        if (count > 0) fprintf(p->f, "%s%.1f %.1f", move, plot_x(p, x), plot_y(p, fmin(p->y1, sum / count))), move = "L";
    }
    fputs("\"/>\n", p->f);
}

static void page_legend(FILE *f, const run *runs, int count, const char *what)
{
    fputs("<ul class=\"legend\">", f);
    for (int k = 0; k < count; k++) {
        fprintf(f, "<li><svg class=\"key\" viewBox=\"0 0 40 10\" aria-hidden=\"true\"><path class=\"line r%d\" d=\"M1 5H39\"/>", k);
        plot_marker(f, k, 20, 5), fputs("</svg> ", f), page_text(f, runs[k].name), page_text(f, what), fputs("</li>", f);
    }
    fputs("</ul>\n", f);
}

/* The range of a column over all runs. */
static void plot_range(plot *p, const run *runs, int count, int column)
{
    for (int k = 0; k < count; k++)
        for (int64_t i = 0; i < runs[k].steps; i++) {
            double x = runs[k].step[i].of[c_step], y = runs[k].step[i].of[column];
            p->x0 = fmin(p->x0, x), p->x1 = fmax(p->x1, x);
            if (fabs(y) < 1e30) p->y0 = fmin(p->y0, y), p->y1 = fmax(p->y1, y);
        }
}

/* ---- sections ---- */

static void page_verdict(FILE *f, const run *r)
{
    static const char *const signs[] = {"\xe2\x9c\x93", "\xe2\x9c\x97", "!"};
    fprintf(f, "<section class=\"card ill%d\"><h2><span aria-hidden=\"true\">%s</span> ", r->ill, signs[r->ill]);
    page_text(f, r->name), fputs("</h2><p class=\"what\">", f), page_text(f, r->what), fputs(".</p><p>", f);
    page_text(f, r->health), fputs(".</p><p><b>Next.</b> ", f), page_text(f, *r->next ? r->next : "Name a file with its first line");
    fputs(".</p><pre><code>", f), page_text(f, r->command), fputs("</code></pre></section>\n", f);
}

static void page_compare(FILE *f, const run *runs, int count)
{
    static const char *const rows[] = {"last step", "loss", "validation loss, last", "validation loss, lowest", "step, median", "steps, sum", "tokens per second",
                                       "share of the machine's peak", "bytes sent by rank 0, last step", "memory of a rank, most", "parameters", "SHA-256"};
    char text[120];
    int same = count > 1 && *runs->hash;
    fputs(count > 1 ? "<h2>Side by side</h2>" : "<h2>In numbers</h2>", f), fputs("<div class=\"wide\"><table><thead><tr><th scope=\"col\">run</th>", f);
    for (int k = 0; k < count; k++) fputs("<th scope=\"col\">", f), page_text(f, runs[k].name), fputs("</th>", f);
    fputs("</tr></thead><tbody>\n", f);
    for (int row = 0; row < 12; row++) {
        page_row(f, rows[row], -1);
        for (int k = 0; k < count; k++) {
            const run *r = &runs[k];
            double last = (double)NAN, least = (double)NAN, seconds = 0, tokens = 0, peak = 0;
            const double *of = r->steps ? r->step[r->steps - 1].of : NULL;
            for (int64_t i = 0; i < r->steps; i++) {
                double v = r->step[i].of[c_validation];
                if (v == v) last = v, least = least <= v ? least : v;
                seconds += run_or(r->step[i].of[c_seconds], 0), tokens += run_or(r->step[i].of[c_tokens], 0);
                peak += run_or(r->step[i].of[c_peak_share], 0) * run_or(r->step[i].of[c_seconds], 0);
            }
            if (row == 0) in_digits(of ? of[c_step] : 0, "", text);
            if (row == 1) in_digits(of ? of[c_loss] : (double)NAN, "", text);
            if (row == 2 || row == 3) in_digits(row == 2 ? last : least, "", text);
            if (row == 4 || row == 5) in_seconds(row == 4 ? r->sorted[0] : seconds, text);
            if (row == 6) in_digits(seconds > 0 ? tokens / seconds : (double)NAN, "", text);
            if (row == 7) in_digits(seconds > 0 ? 100 * peak / seconds : (double)NAN, " %", text);
            if (row == 8) in_digits(of ? of[c_sent_bytes] : (double)NAN, "", text);
            if (row == 9) in_bytes(r->memory > 0 ? r->memory : (double)NAN, text);
            if (row == 10) snprintf(text, 40, "%.0f", run_or(run_head(r, "parameters"), 0));
            if (row == 11) snprintf(text, sizeof text, "%s", *r->hash ? r->hash : "not known"), same = same && !strcmp(r->hash, runs->hash);
            page_cell(f, text);
        }
        fputs("</tr>\n", f);
    }
    page_end(f);
    fputs("</div>", f);
    if (same) fputs("<p>The hashes are equal: all runs have the same weights, to the last bit.</p>\n", f);
}

/* Rows for up to 16 steps, evenly spaced, the last one among them. */
static void page_steps(FILE *f, const run *r, int open)
{
    static const char *const titles[] = {"step", "loss", "validation", "gradient norm", "seconds", NULL};
    static const int columns[] = {c_step, c_loss, c_validation, c_norm, c_seconds};
    int64_t each = (r->steps + PAGE_ROWS - 1) / PAGE_ROWS;
    char text[40];
    fputs(open ? "<details open=\"\"><summary>Numbers of " : "<details><summary>Numbers of ", f), page_text(f, r->name), fputs("</summary><div class=\"wide\">", f), page_head(f, titles);
    for (int64_t i = (r->steps - 1) % (each ? each : 1); i >= 0 && i < r->steps; i += each) {
        page_row(f, in_digits(r->step[i].of[c_step], "", text), -1);
        for (int k = 1; k < 5; k++) page_cell(f, r->step[i].of[columns[k]] == r->step[i].of[columns[k]] ? in_digits(r->step[i].of[columns[k]], "", text) : "");
        fputs("</tr>\n", f);
    }
    page_end(f), fputs("</div></details>\n", f);
}

static void page_loss(FILE *f, const run *runs, int count)
{
    plot p = {f, 1e300, -1e300, 1e300, -1e300};
    char about[SENTENCE] = "";
    double first = 0;
    plot_range(&p, runs, count, c_loss), plot_range(&p, runs, count, c_validation);
    fputs("<h2>Loss</h2>\n", f);
    if (!(p.x1 >= p.x0) || !(p.y1 >= p.y0)) {
        fputs("<p>No step has a loss.</p>\n", f);
        return;
    }
    for (int k = 0; k < count; k++)
        if (runs[k].steps) first = fmax(first, run_or(runs[k].step[0].of[c_loss], 0));
    if (first > 0 && p.y1 > 2 * first) p.y1 = 2 * first, say(about, sizeof about, "Losses above %.4g are drawn there. ", p.y1);
    for (int k = 0; k < count; k++)
        if (runs[k].steps)
            say(about, sizeof about, "%s: training loss %.4f at step %.0f, %.4f at step %.0f. ", runs[k].name, runs[k].step[0].of[c_loss], runs[k].step[0].of[c_step],
                runs[k].step[runs[k].steps - 1].of[c_loss], runs[k].step[runs[k].steps - 1].of[c_step]);
    fputs("<div class=\"pair\"><div>", f), plot_open(&p, f, "Loss over steps", about, "step", "loss: line training, marks validation");
    for (int k = 0; k < count; k++) {
        int64_t marks = 0, n = 0;
        plot_line(&p, &runs[k], k, c_loss, 0);
        for (int64_t i = 0; i < runs[k].steps; i++) marks += runs[k].step[i].of[c_validation] == runs[k].step[i].of[c_validation];
        for (int64_t i = 0; i < runs[k].steps; i++) {
            const double *of = runs[k].step[i].of;
            if (of[c_validation] == of[c_validation] && ++n % (1 + marks / 40) == 0)
                plot_marker(f, k, plot_x(&p, of[c_step]), plot_y(&p, fmin(p.y1, of[c_validation])));
        }
    }
    fputs("</svg>", f), page_legend(f, runs, count, ""), fputs("</div><div>", f);
    for (int k = 0; k < count; k++) page_steps(f, &runs[k], count == 1);
    fputs("</div></div>\n", f);
}

/* Steps by their seconds. What exceeds three medians is in the last bin. */
static void page_histogram(FILE *f, const run *r, int64_t n)
{
    double low = n ? r->order[0] : 0, high = n ? fmin(r->order[n - 1], 3 * r->sorted[0]) : 0, unit = high < 1e-3 ? 1e6 : high < 1 ? 1e3 : 1;
    int64_t bin[PAGE_BINS] = {0}, most = 1;
    char text[SENTENCE], part[3][40];
    plot p = {f, 0, 0, 0, 0};
    if (!n) return;
    if (!(high > low)) high = low + fmax(low / 10, 1e-9);
    for (int64_t i = 0; i < n; i++) {
        int b = (int)fmin(PAGE_BINS - 1, PAGE_BINS * (r->order[i] - low) / (high - low));
        most = ++bin[b] > most ? bin[b] : most;
    }
    p.x0 = unit * low, p.x1 = unit * high, p.y1 = (double)most;
    snprintf(text, sizeof text, "%s: of %lld steps half take up to %s, 90 %% up to %s, 99 %% up to %s.", r->name, (long long)n, in_seconds(r->sorted[0], part[0]),
             in_seconds(r->sorted[1], part[1]), in_seconds(r->sorted[2], part[2]));
    plot_open(&p, f, "Histogram of step times", text, unit > 1e3 ? "\xc2\xb5s per step" : unit > 1 ? "ms per step" : "seconds per step", "steps");
    for (int b = 0; b < PAGE_BINS; b++) {
        double x0 = plot_x(&p, p.x0 + (p.x1 - p.x0) * b / PAGE_BINS), x1 = plot_x(&p, p.x0 + (p.x1 - p.x0) * (b + 1) / PAGE_BINS);
        if (bin[b]) fprintf(f, "<rect class=\"bar\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>", x0 + 0.5, plot_y(&p, (double)bin[b]), x1 - x0 - 1, BOTTOM - plot_y(&p, (double)bin[b]));
    }
    for (int k = 0; k < 3; k++) {
        double x = plot_x(&p, unit * r->sorted[k]);
        if (x > RIGHT) continue;
        fprintf(f, "<path class=\"rule\" d=\"M%.1f %dV%d\"/>", x, TOP + 12 * k + 2, BOTTOM);
        svg_text(f, x + (x > 300 ? -3 : 3), TOP + 12 * k + 10, x > 300 ? "end" : "start", k == 0 ? "p50" : k == 1 ? "p90" : "p99");
    }
    fputs("</svg>\n", f);
}

static void page_times(FILE *f, const run *runs, int count)
{
    plot p = {f, 1e300, -1e300, 0, -1e300};
    static const char *const titles[] = {"run", "steps", "shortest", "median", "p90", "p99", "longest", "mean", NULL};
    char text[40];
    plot_range(&p, runs, count, c_seconds);
    if (!(p.x1 >= p.x0) || !(p.y1 >= 0)) return;
    fputs("<h2>Step time</h2>\n<div class=\"pair\"><div>", f);
    plot_open(&p, f, "Seconds per step", "The time of each step, or of the longest of a group of steps. The table has percentiles.", "step", "seconds of a step");
    for (int k = 0; k < count; k++) plot_line(&p, &runs[k], k, c_seconds, 1);
    fputs("</svg>", f), page_legend(f, runs, count, ""), fputs("</div>", f);
    for (int k = 0; k < count; k++) {
        int64_t n = 0;
        for (int64_t i = 0; i < runs[k].steps; i++) n += runs[k].step[i].of[c_seconds] == runs[k].step[i].of[c_seconds];
        fputs("<div>", f);
        if (count > 1) fputs("<h3>", f), page_text(f, runs[k].name), fputs("</h3>", f);
        page_histogram(f, &runs[k], n), fputs("</div>", f);
    }
    fputs("</div><div class=\"wide\">", f), page_head(f, titles);
    for (int k = 0; k < count; k++) {
        const run *r = &runs[k];
        int64_t n = 0;
        for (int64_t i = 0; i < r->steps; i++) n += r->step[i].of[c_seconds] == r->step[i].of[c_seconds];
        page_row(f, r->name, -1), page_cell(f, in_digits((double)n, "", text));
        page_cell(f, in_seconds(n ? r->order[0] : (double)NAN, text));
        for (int i = 0; i < 3; i++) page_cell(f, in_seconds(r->sorted[i], text));
        page_cell(f, in_seconds(n ? r->order[n - 1] : (double)NAN, text)), page_cell(f, in_seconds(r->mean, text)), fputs("</tr>\n", f);
    }
    page_end(f), fputs("</div>\n", f);
}

/* A bar of parts that fill `width`. */
static void page_bar(FILE *f, double x, double y, double width, double height, const double *part, const int *pattern, int parts, double all)
{
    for (int k = 0; k < parts; k++) {
        double w = all > 0 && part[k] == part[k] ? width * part[k] / all : 0;
        if (w > 0.05) fprintf(f, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"url(#p%d)\"/>", x, y, w, height, pattern[k]);
        x += w;
    }
}

enum { PARTS = 8 };
static const char *const part_names[PARTS] = {"computing", "exposed communication", "waiting for late ranks", "waiting for data", "rest of the steps",
                                              "checkpoints", "validation, samples, rules", "start"};
static const int part_pattern[PARTS] = {0, 1, 2, 3, 4, 5, 6, 7};

static void page_where(FILE *f, const run *r)
{
    static const char *const titles[] = {"part", "seconds", "share", NULL}, *const ranks[] = {"rank", "computing", "exposed", "late ranks", "data", "memory, most", NULL};
    const run_part *p = &r->part;
    const double part[PARTS] = {p->work, p->exposed, p->agree, p->data, p->other, p->save, p->between, p->start};
    int shown = r->ranks < PAGE_ROWS ? r->ranks : PAGE_ROWS, slow = 0, known = 0;
    double sum[PAGE_ROWS][RANK_KINDS], most = 0, mean = 0;
    char text[SENTENCE] = "", name[40];
    memset(sum, 0, sizeof sum);
    for (int q = 0; q < shown; q++)
        for (int64_t i = 0; i < r->steps; i++)
            for (int k = 0; k < RANK_KINDS; k++) {
                double x = run_rank(r, i, k, q);
                known += k == RANK_AGREE && (double)r->rank[(i * RANK_KINDS + k) * r->ranks + q] >= 0;
                sum[q][k] = k == RANK_MEMORY ? fmax(sum[q][k], x) : sum[q][k] + run_or(x, 0);
            }
    for (int q = 0; q < shown; q++) {
        mean += sum[q][RANK_WORK] / shown, most = fmax(most, sum[q][RANK_SECONDS]);
        if (sum[q][RANK_WORK] > sum[slow][RANK_WORK]) slow = q;
    }
    for (int k = 0; k < PARTS; k++) say(text, sizeof text, "%s%s %.1f %%", k ? ", " : "", part_names[k], p->all > 0 ? 100 * part[k] / p->all : 0);
    fputs("<div class=\"pair\"><div>", f), svg_open(f, 44 + 20 * (known ? shown : 0), "Where time goes", text);
    svg_text(f, 2, 10, "start", "whole run"), page_bar(f, 2, 14, 356, 18, part, part_pattern, PARTS, p->all);
    for (int q = 0; q < shown && known; q++) {
        snprintf(name, sizeof name, "rank %d", q), svg_text(f, 2, 55 + 20 * q, "start", name);
        page_bar(f, LEFT + 8, 43 + 20 * q, RIGHT - LEFT - 8, 15, sum[q] + RANK_WORK, part_pattern, 4, most);
    }
    fputs("</svg></div><div class=\"wide\">", f), page_head(f, titles);
    for (int k = 0; k < PARTS; k++) {
        page_row(f, part_names[k], part_pattern[k]), page_cell(f, in_seconds(part[k], name));
        page_cell(f, in_digits(p->all > 0 ? floor(1000 * part[k] / p->all + 0.5) / 10 : 0, " %", name)), fputs("</tr>\n", f);
    }
    page_end(f), fputs("</div></div>\n", f);
    if (!known) return;
    fputs("<div class=\"wide\">", f), page_head(f, ranks);
    for (int q = 0; q < shown; q++) {
        snprintf(name, sizeof name, "%d", q), page_row(f, name, -1);
        for (int k = RANK_WORK; k <= RANK_MEMORY; k++) page_cell(f, k == RANK_MEMORY ? in_bytes(sum[q][k], name) : in_seconds(sum[q][k], name));
        fputs("</tr>\n", f);
    }
    page_end(f), fputs("</div>\n", f);
    if (r->ranks > shown) fprintf(f, "<p>The first %d of %d ranks.</p>\n", shown, r->ranks);
    if (r->ranks > 1 && mean > 0)
        fprintf(f, "<p>Rank %d computes longest, %.1f %% longer than the mean of the ranks%s.</p>\n", slow,
                100 * (sum[slow][RANK_WORK] / mean - 1), sum[slow][RANK_WORK] > 1.1 * mean ? ": the others wait for it" : "");
}

/* The lanes of a trace on a scale of `end` microseconds. */
static void page_lanes(FILE *f, const trace *t, double end, const char *what)
{
    double scale = (RIGHT - 2.0) / fmax(end, 1e-3), from = -1, to = -1;
    char text[SENTENCE] = "", name[40];
    int lane = -1, of = -1;
    for (int k = 0; k < TRACE_CLASSES; k++) say(text, sizeof text, "%s%s %s", k ? ", " : "", trace_classes[k], in_seconds(t->rank[k], name));
    svg_open(f, 34 + 26 * t->lanes, what, text), svg_text(f, 2, 10, "start", what);
    for (int k = 0; k < t->lanes; k++) svg_text(f, 2, 25 + 26 * k, "start", t->name[k]);
    for (int64_t i = 0; i <= t->bars; i++) { /* bars of a class that touch are one */
        const trace_bar *b = i < t->bars ? &t->bar[i] : NULL;
        double x0 = b ? scale * b->begin : 0, x1 = b ? x0 + scale * b->length : 0;
        if (b && b->lane == lane && b->of == of && x0 >= from && x0 < to + 0.2) {
            to = fmax(to, x1);
            continue;
        }
        if (of >= 0 && to - from > 0.02) fprintf(f, "<rect class=\"event\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"12\" fill=\"url(#p%d)\"/>\n", 2 + from, 28 + 26 * lane, fmax(to - from, 0.2), of);
        if (b) lane = b->lane, of = b->of, from = x0, to = x1;
    }
    fprintf(f, "<path class=\"axis\" d=\"M2 %dH%d\"/>", 14 + 26 * t->lanes + 3, RIGHT);
    svg_text(f, 2, 29 + 26 * t->lanes, "start", "0"), svg_text(f, RIGHT, 29 + 26 * t->lanes, "end", in_seconds(1e-6 * end, name));
    fputs("</svg>\n", f);
}

static void page_trace(FILE *f, const trace *measured, const trace *simulated)
{
    static const char *const one[] = {"class", "all ranks", "rank 0", NULL}, *const two[] = {"class", "rank 0", "simulated", "ratio", NULL};
    int both = measured && simulated;
    const trace *t = measured ? measured : simulated;
    double end = fmax(measured ? measured->end : 0, simulated ? simulated->end : 0);
    char text[40];
    fputs("<div class=\"pair\"><div>", f);
    if (measured) page_lanes(f, measured, end, "measured: the last step");
    if (simulated) page_lanes(f, simulated, end, "simulated");
    fputs("</div><div class=\"wide\">", f), page_head(f, both ? two : one);
    for (int k = 0; k < TRACE_CLASSES; k++) {
        page_row(f, trace_classes[k], k);
        if (!both) page_cell(f, in_seconds(t->sum[k], text));
        page_cell(f, in_seconds(t->rank[k], text));
        if (both) page_cell(f, in_seconds(simulated->rank[k], text)), page_cell(f, in_digits(t->rank[k] > 0 ? floor(100 * simulated->rank[k] / t->rank[k] + 0.5) / 100 : (double)NAN, "", text));
        fputs("</tr>\n", f);
    }
    page_row(f, "whole step", -1);
    if (!both) page_cell(f, "");
    page_cell(f, in_seconds(1e-6 * t->end, text));
    if (both) page_cell(f, in_seconds(1e-6 * simulated->end, text)), page_cell(f, in_digits(floor(100 * simulated->end / t->end + 0.5) / 100, "", text));
    fputs("</tr>\n", f), page_end(f), fputs("</div></div>\n", f);
    if (t->left) fprintf(f, "<p>The first %d threads are shown.</p>\n", TRACE_LANES);
}

/* Bytes by link: rank 0's, in the last step and in all. */
static void page_bytes(FILE *f, const run *r)
{
    static const char *const titles[] = {"link", "what", "last step", "all steps", NULL}, *const links[] = {"inside the node", "between nodes"};
    static const int pattern[] = {0, 1};
    double last[2][2] = {{0}}, all[2][2] = {{0}}, most = 1;
    char text[SENTENCE];
    if (!r->steps || !(r->step[0].of[c_sent_bytes] == r->step[0].of[c_sent_bytes])) return;
    for (int64_t i = 0; i < r->steps; i++) {
        const double *of = r->step[i].of;
        double sent = run_or(of[c_sent_bytes], 0), far = run_or(of[c_far_bytes], 0), own = run_or(of[c_gradient_bytes], sent), own_far = run_or(of[c_gradient_far], far);
        last[0][0] = own - own_far, last[0][1] = sent - far - last[0][0], last[1][0] = own_far, last[1][1] = far - own_far;
        for (int k = 0; k < 4; k++) all[k / 2][k % 2] += last[k / 2][k % 2];
    }
    for (int k = 0; k < 2; k++) most = fmax(most, last[k][0] + last[k][1]);
    snprintf(text, sizeof text, "Rank 0 sends %.0f bytes inside its node and %.0f to other nodes in a step.", last[0][0] + last[0][1], last[1][0] + last[1][1]);
    fputs("<div class=\"pair\"><div>", f), svg_open(f, 80, "Bytes of a step by link", text);
    for (int k = 0; k < 2; k++) svg_text(f, 2, 12 + 38 * k, "start", links[k]), page_bar(f, 2, 17 + 38 * k, 356, 15, last[k], pattern, 2, most);
    fputs("</svg></div><div class=\"wide\">", f), page_head(f, titles);
    for (int k = 0; k < 4; k++) {
        page_row(f, links[k / 2], pattern[k % 2]), page_cell(f, k % 2 ? "activations and the rest" : "gradients and weights");
        snprintf(text, sizeof text, "%.0f", last[k / 2][k % 2]), page_cell(f, text);
        snprintf(text, sizeof text, "%.0f", all[k / 2][k % 2]), page_cell(f, text), fputs("</tr>\n", f);
    }
    page_end(f), fputs("</div></div>\n", f);
}

/* Bytes of a rank by formula (FORMULAS: 4 bytes per weight, gradient and number that the optimizer keeps), as planned, as
 * the system saw them. */
static void page_memory(FILE *f, const run *r)
{
    static const char *const names[] = {"weights", "gradients", "optimizer", "activations", "buffers", "cache"}, *const titles[] = {"memory of rank 0", "formula", "planned", NULL};
    static const char *const bars[] = {"formula", "planned", "resident"};
    static const int pattern[] = {0, 1, 2, 3, 4, 5, 6};
    slice planned = json_find(r->head, "memory");
    char word[NAME], text[SENTENCE] = "";
    double part[3][7] = {{0}}, sum[3] = {0}, n = run_head(r, "parameters"), zero = run_option_number(r, "zero"), most = 1;
    double cut = fmax(1, run_option_number(r, "tp")) * fmax(1, run_option_number(r, "pp")), own = r->ranks / (cut * fmax(1, run_option_number(r, "cp")));
    double kept = run_option_number(r, "ema") > 0 ? 4 : 0, group = run_option_number(r, "zero-group");
    if (!planned.at || !(n > 0)) return;
    run_option(r, "optimizer", word, sizeof word);
    kept += !strncmp(word, "adam", 4) ? 8 : !strcmp(word, "lion") || run_option_number(r, "momentum") > 0 ? 4 : 0;
    if (group >= 1) own = group;
    part[0][0] = 4 * n / cut / (zero >= 3 ? own : 1), part[0][1] = 4 * n / cut / (zero >= 2 ? own : 1), part[0][2] = kept * n / cut / (zero >= 1 ? own : 1);
    for (int k = 0; k < 6; k++) part[1][k] = run_or(json_number_of(planned, names[k]), 0);
    part[2][6] = r->steps ? r->memory : 0;
    for (int b = 0; b < 3; b++) {
        for (int k = 0; k < 7; k++) sum[b] += part[b][k];
        most = fmax(most, sum[b]), say(text, sizeof text, "%s %s. ", bars[b], in_bytes(sum[b], word));
    }
    fputs("<div class=\"pair\"><div>", f), svg_open(f, 112, "Memory of a rank", text);
    for (int b = 0; b < 3; b++) svg_text(f, 2, 12 + 37 * b, "start", bars[b]), page_bar(f, 2, 17 + 37 * b, 356, 15, part[b], pattern, 7, most);
    fputs("</svg></div><div class=\"wide\">", f), page_head(f, titles);
    for (int k = 0; k < 6; k++) {
        page_row(f, names[k], k), page_cell(f, k < 3 ? in_bytes(part[0][k], word) : "");
        snprintf(word, sizeof word, "%.0f", part[1][k]), page_cell(f, word), fputs("</tr>\n", f);
    }
    page_row(f, "sum", -1), page_cell(f, in_bytes(sum[0], word)), page_cell(f, in_bytes(sum[1], word));
    fputs("</tr>\n", f), page_row(f, "resident, the program included", 6), page_cell(f, ""), page_cell(f, in_bytes(part[2][6] > 0 ? part[2][6] : (double)NAN, word));
    fputs("</tr>\n", f), page_end(f), fputs("</div></div><p>Formula: 4 bytes for each weight and gradient and for each number of the optimizer, divided by the ranks that share them. "
                                            "Planned gradients are more where a rank sums several data shards.</p>\n", f);
}

static void page_rules(FILE *f, const run *r)
{
    static const char *const titles[] = {"rule", "where", "found (bound)", "what to do, and the command", NULL};
    char text[2 * SENTENCE], more[SENTENCE];
    if (!r->firings) {
        fprintf(f, "<p>None of %d rules fired. Rules about tensors look only with --rules.</p>\n", DT_RULE_COUNT);
        return;
    }
    fputs("<div class=\"wide\">", f), page_head(f, titles);
    for (int i = 0; i < r->firings; i++) {
        const run_firing *w = &r->fired[i];
        page_row(f, dt_rule_name(w->rule), -1);
        snprintf(text, sizeof text, w->rank >= 0 ? "step %lld, rank %d" : "step %lld", (long long)w->step, w->rank), page_cell(f, text);
        if (w->value == w->value) snprintf(text, sizeof text, "%.4g (%.4g)", w->value, w->bound);
        else snprintf(text, sizeof text, "by --rules (%.4g)", w->bound);
        page_cell(f, text), run_options(r, rules_at(w->rule)->next, more, sizeof more), run_command(r, more, text, sizeof text);
        fputs("<td class=\"long\">", f), page_text(f, dt_rule_advice(w->rule)), fputs("<pre><code>", f), page_text(f, text), fputs("</code></pre></td></tr>\n", f);
    }
    page_end(f), fputs("</div>\n", f);
}

static void page_samples(FILE *f, const run *r)
{
    char text[4096];
    int64_t shown = 0;
    for (int64_t i = r->steps; i-- > 0 && shown < 3;) {
        if (!r->step[i].sample.at) continue;
        if (!shown++) fputs("<h3>Text samples</h3>\n", f);
        fprintf(f, "<p>Step %.0f</p><pre>", r->step[i].of[c_step]), page_text(f, json_text(r->step[i].sample, text, sizeof text)), fputs("</pre>\n", f);
    }
}

static void page_options(FILE *f, const run *r)
{
    static const char *const titles[] = {"name", "value", NULL}, *const head[] = {"version", "device", "cores", "nodes", "ranks", "peak_gflops", "parameters"};
    slice usual = json_find(r->head, "usual"), key, value;
    char name[NAME], is[400], was[400];
    time_t began = (time_t)run_or(run_head(r, "time"), 0);
    struct tm *utc = began > 0 && began < INT64_C(1) << 32 ? gmtime(&began) : NULL;
    fputs("<div class=\"pair\"><div class=\"wide\">", f), page_head(f, titles);
    page_row(f, "file", -1), page_cell(f, r->path), fputs("</tr>\n", f);
    if (utc && strftime(is, sizeof is, "%Y-%m-%d %H:%M:%S UTC", utc)) page_row(f, "began", -1), page_cell(f, is), fputs("</tr>\n", f);
    for (int k = 0; k < 7; k++) {
        value = json_find(r->head, head[k]);
        if (value.at) page_row(f, head[k], -1), page_cell(f, json_text(value, is, sizeof is)), fputs("</tr>\n", f);
    }
    page_row(f, "SHA-256 of the result", -1), page_cell(f, *r->hash ? r->hash : "none: the run did not end"), fputs("</tr>\n", f), page_end(f);
    fputs("</div><div class=\"wide\">", f), page_head(f, titles);
    for (int k = 0; k < 2 && usual.at; k++) {
        slice in = json_inside(json_find(r->head, k ? "layout" : "recipe"));
        while (json_member(&in, &key, &value)) {
            json_text(key, name, sizeof name), json_text(value, is, sizeof is), json_text(json_find(usual, name), was, sizeof was);
            if (strcmp(is, was)) page_row(f, name, -1), page_cell(f, is), fputs("</tr>\n", f);
        }
    }
    page_end(f), fputs("<p>Options that are not the usual ones.</p></div></div>\n", f);
}

static const char page_style[] =
    ":root{color-scheme:light dark;--paper:#fff;--card:#f5f6f8;--ink:#1b1f24;--soft:#525a63;--line:#c9d0d8;--good:#17692f;--bad:#a8221a;--note:#7a5200;"
    "--q0:#8ab4e8;--q1:#f0b48a;--q2:#e79a9a;--q3:#e6d27a;--q4:#c5c9ce;--q5:#9fd3a8;--q6:#c9b0e6;--q7:#f5f6f8;"
    "--r0:#0a58a8;--r1:#a83e06;--r2:#1a6e36;--r3:#6d35a8;--r4:#8a1c5b;--r5:#4d5500;--r6:#006a73;--r7:#333}\n"
    "@media screen and (prefers-color-scheme:dark){:root{--paper:#14171b;--card:#1e2329;--ink:#e8ebee;--soft:#a9b2bc;--line:#3c444d;--good:#6fd08a;--bad:#ff9088;--note:#f0c060;"
    "--q0:#24507f;--q1:#7d4318;--q2:#7d2f2f;--q3:#6b5a10;--q4:#4a5058;--q5:#285f35;--q6:#533a78;--q7:#2a3038;"
    "--r0:#7db8f5;--r1:#ffa56b;--r2:#7ddb99;--r3:#cda6ff;--r4:#ff9dcb;--r5:#d5de7a;--r6:#6fd6de;--r7:#ccc}}\n"
    "body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.45 system-ui,sans-serif}main{max-width:1080px;margin:auto;padding:12px}\n"
    "h1{font-size:1.35rem}h2{font-size:1.15rem;margin:1.6em 0 .5em}h3{font-size:1rem}p{margin:.5em 0}\n"
    ".cards,.pair{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}.cards>*,.pair>*{min-width:0}\n"
    ".card{background:var(--card);border:1px solid var(--line);border-left:6px solid var(--good);padding:4px 14px}.card h2{margin:.5em 0;overflow-wrap:anywhere}.ill1{border-left-color:var(--bad)}.ill2{border-left-color:var(--note)}\n"
    ".what{font-weight:600}pre{background:var(--card);border:1px solid var(--line);padding:8px;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem;margin:.5em 0}\n"
    "table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;margin:.3em 0}th,td{border-bottom:1px solid var(--line);padding:3px 10px 3px 0;text-align:left;vertical-align:top}thead th{white-space:nowrap}td{white-space:nowrap}.long{white-space:normal;overflow-wrap:anywhere}"
    "th[scope=row]{font-weight:400;color:var(--soft);min-width:7em}td pre{min-width:17em}.wide{overflow-x:auto}summary{cursor:pointer;color:var(--soft)}\n"
    ".plot{width:100%;max-width:560px;height:auto;display:block}.plot text{font-size:11px;fill:var(--ink)}.grid{stroke:var(--line);stroke-width:.6}.axis{stroke:var(--soft);fill:none}\n"
    ".line{fill:none;stroke-width:1.4}.mark{fill:var(--paper);stroke-width:1.3}.bar{fill:var(--q0);stroke:var(--ink);stroke-width:.6}.rule{stroke:var(--ink);stroke-dasharray:2 2;stroke-width:.8}.event{stroke:var(--ink);stroke-width:.25}\n"
    ".r0{stroke:var(--r0)}.r1{stroke:var(--r1);stroke-dasharray:6 3}.r2{stroke:var(--r2);stroke-dasharray:2 2}.r3{stroke:var(--r3);stroke-dasharray:9 3 2 3}.r4{stroke:var(--r4);stroke-dasharray:12 4}"
    ".r5{stroke:var(--r5);stroke-dasharray:1 3}.r6{stroke:var(--r6);stroke-dasharray:6 2 1 2 1 2}.r7{stroke:var(--r7);stroke-dasharray:4 6}.mark{stroke-dasharray:none}\n"
    ".legend{list-style:none;margin:0;padding:0;display:flex;flex-wrap:wrap;gap:2px 16px;font-size:.875rem}.legend li{overflow-wrap:anywhere;min-width:0}.key{width:40px;height:10px}.swatch{width:16px;height:10px;border:1px solid var(--soft)}.defs{position:absolute}\n"
    "@media print{body{font-size:11pt}.pair{grid-template-columns:1fr 1fr}section,.pair,tr,svg{break-inside:avoid}h2{break-after:avoid}}\n";

static void page_patterns(FILE *f)
{
    static const char *const marks[] = {"", "M-1 7L7-1", "M0 0L6 6M6 0L0 6", "M3 2.5v1", "M3 0v6", "M0 3h6", "M0 3h6M3 0v6", "M-1-1L7 7"};
    fputs("<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>", f);
    for (int k = 0; k < 8; k++)
        fprintf(f, "<pattern id=\"p%d\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><rect width=\"6\" height=\"6\" style=\"fill:var(--q%d)\"/>"
                "<path d=\"%s\" style=\"stroke:var(--ink);stroke-width:%s;fill:none;stroke-linecap:square\"/></pattern>", k, k, marks[k], k == 3 ? "1.2" : ".7");
    fputs("</defs></svg>\n", f);
}

/* What a page begins with: another file is not replaced. */
static const char page_first[] = "<!DOCTYPE html>\n<!-- dtrain report -->\n";

/* Sections of one run are repeated under the names of the runs. */
static void page_each(FILE *f, const char *title, const run *runs, int count, void (*section)(FILE *, const run *))
{
    fprintf(f, "<h2>%s</h2>\n", title);
    for (int k = 0; k < count; k++) {
        if (count > 1) fputs("<h3>", f), page_text(f, runs[k].name), fputs("</h3>\n", f);
        section(f, &runs[k]);
    }
}

typedef struct page_traces {
    trace measured, simulated;
} page_traces;

/* follow: the page loads itself again every 2 seconds. */
static void page_put(FILE *f, const run *runs, const page_traces *traces, int count, int follow)
{
    page_id = 0;
    fputs(page_first, f);
    fputs("<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>", f);
    if (follow) fputs("<meta http-equiv=\"refresh\" content=\"2\"/>", f);
    fputs("<link rel=\"icon\" href=\"data:,\"/><title>Training report: ", f), page_text(f, runs->name), fprintf(f, "</title><style>\n%s</style></head><body>\n", page_style);
    page_patterns(f);
    fprintf(f, "<main><h1>Training report</h1><div class=\"cards\">\n");
    for (int k = 0; k < count; k++) page_verdict(f, &runs[k]);
    fputs("</div>\n", f);
    page_compare(f, runs, count), page_loss(f, runs, count), page_times(f, runs, count);
    page_each(f, "Where time goes", runs, count, page_where);
    for (int k = 0, first = 1; k < count; k++) {
        const trace *m = traces[k].measured.bars ? &traces[k].measured : NULL, *s = traces[k].simulated.bars ? &traces[k].simulated : NULL;
        if (!m && !s) continue;
        if (first) fputs("<h2>Timeline</h2>\n", f), first = 0;
        if (count > 1) fputs("<h3>", f), page_text(f, runs[k].name), fputs("</h3>\n", f);
        page_trace(f, m, s);
    }
    page_each(f, "Bytes by link", runs, count, page_bytes), page_each(f, "Memory", runs, count, page_memory);
    page_each(f, "Rules", runs, count, page_rules), page_each(f, "Recipe and hardware", runs, count, page_options);
    for (int k = 0; k < count; k++) page_samples(f, &runs[k]);
    fputs("</main></body></html>\n", f);
}

#endif
