/* page.h: runs as one page of HTML with pictures in SVG, for report.c. The page needs nothing else and is also XML, so
 * that a parser can check it. What a picture shows by a colour it shows by a dash, a marker, a pattern or a word as
 * well, and a table beside it or a description in it has the numbers. */
#ifndef DTRAIN_PAGE_H
#define DTRAIN_PAGE_H

#include "runs.h"

enum { PAGE_RUNS = 8, PAGE_POINTS = 240, PAGE_BARS = 8 };

/* Markup with %s for a text of unknown origin, %d for an int, %f for a length with two decimals. */
static void put(FILE *f, const char *markup, ...)
{
    va_list args;
    va_start(args, markup);
    for (; *markup; markup++) {
        if (*markup != '%') fputc(*markup, f);
        else if (*++markup == 'd') fprintf(f, "%d", va_arg(args, int));
        else if (*markup == 'f') fprintf(f, "%.2f", va_arg(args, double));
        else
            for (const char *s = va_arg(args, const char *); *s; s += text_length(s) ? text_length(s) : 1)
                if (!text_length(s)) fputc('?', f);
                else if (strchr("&<>\"'", *s)) fprintf(f, "&#%d;", *s);
                else fwrite(s, 1, (size_t)text_length(s), f);
    }
    va_end(args);
}

/* A short text, good until 32 more are made. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
static const char *text(const char *format, ...)
{
    static char ring[32][160];
    static int next;
    char *to = ring[next++ % 32];
    va_list args;
    va_start(args, format);
    vsnprintf(to, sizeof *ring, format, args);
    va_end(args);
    return to;
}

/* Numbers in the largest unit of which there is one, before a space that does not break. */
static const char *in_units(double x, const char *const *units, int count)
{
    int k = 0;
    for (; x >= 1000 && k < count - 1; k++) x /= 1000;
    return x == x ? text("%.4g\xc2\xa0%s", x, units[k]) : "not known";
}
static const char *in_seconds(double x)
{
    static const char *const units[] = {"\xc2\xb5s", "ms", "s"};
    return in_units(1e6 * x, units, 3);
}
static const char *in_bytes(double x)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    return in_units(x, units, 5);
}
static const char *in_percent(double x) { return x == x ? text("%.1f\xc2\xa0%%", x) : "not known"; }
static const char *in_digits(double x)
{
    return !(x == x) ? "not known" : fabs(x) < 1e15 && x == floor(x) ? text("%.0f", x) : text("%.6g", x);
}

/* Eight looks: a colour for light and dark paper, the dash of a line, its marker, the hatch of an area. */
static const struct look {
    const char *colour, *dash, *marker, *hatch;
} looks[] = {{"#2f7ed8", "none", "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0", ""},
             {"#c8651b", "6 3", "m-3-3h6v6h-6z", "M-1 7L7-1"},
             {"#d6447f", "2 2", "m0-4l4 7h-8z", "M0 0L6 6M6 0L0 6"},
             {"#8a7a00", "9 3 2 3", "m0-4l4 4l-4 4l-4-4z", "M3 2.5v1"},
             {"#808080", "12 4", "m-3-3l6 6m0-6l-6 6", "M3 0v6"},
             {"#2e8b4a", "1 3", "m-4 0h8m-4-4v8", "M0 3h6"},
             {"#8f63d2", "6 2 1 2 1 2", "m0 4l4-7h-8z", "M0 3h6M3 0v6"},
             {"#008b94", "4 6", "m-4-1h8m-8 3h8", "M-1-1L7 7"}};
enum { LOOKS = 8, PLAIN = -1, HEAD = -2 };

/* A row of a table, with a sample of its look; the HEAD opens the table. */
static void row(FILE *f, int look, const char *const *cell, int count)
{
    put(f, look == HEAD ? "<div class=\"wide\"><table><thead><tr>" : "<tr>");
    for (int k = 0; k < count; k++) {
        if (k && look != HEAD) put(f, strlen(cell[k]) > 24 ? "<td class=\"long\">%s</td>" : "<td>%s</td>", cell[k]);
        else put(f, look == HEAD ? "<th scope=\"col\">" : "<th scope=\"row\">");
        if (!k && look >= 0)
            put(f, "<svg class=\"swatch\" viewBox=\"0 0 16 10\" aria-hidden=\"true\"><rect width=\"16\" height=\"10\" "
                "fill=\"url(#p%d)\"/></svg> ", look);
        if (!k || look == HEAD) put(f, "%s</th>", cell[k]);
    }
    put(f, look == HEAD ? "</tr></thead><tbody>\n" : "</tr>\n");
}
static void table_end(FILE *f) { put(f, "</tbody></table></div>\n"); }

/* ---- pictures, 360 units wide, so that their letters are readable on a telephone ---- */

enum { LEFT = 48, RIGHT = 352, TOP = 22, BOTTOM = 166, HEIGHT = 200, LANE = 30 };
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

typedef struct plot {
    double x0, x1, y0, y1; /* what the axes show */
} plot;
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
    step = plot_round((p->y1 - p->y0) / 5), p->y0 = step * floor(p->y0 / step), p->y1 = step * ceil(p->y1 / step);
    svg_open(f, HEIGHT, title, about);
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

static void plot_marker(FILE *f, int look, double x, double y)
{
    put(f, "<path class=\"mark r%d\" d=\"M%f %f%s\"/>", look, x, y, looks[look].marker);
}

/* A run in up to 240 groups of steps: a line of the mean loss or the longest time, or marks of the validation loss. */
static void plot_run(FILE *f, const plot *p, const run *r, int look, int column)
{
    int64_t each = (r->steps + PAGE_POINTS - 1) / PAGE_POINTS;
    const char *move = "M";
    if (column != c_validation) put(f, "<path class=\"line r%d\" d=\"", look);
    for (int64_t i = 0; i < r->steps;) {
        double sum = 0, most = 0, count = 0, x = 0, y;
        for (int64_t end = i + each; i < end && i < r->steps; i++) {
            if (!(fabs(y = r->step[i].of[column]) < 1e30)) continue;
            sum += y, most = fmax(most, y), count++, x = r->step[i].of[c_step];
        }
        if (!(count > 0)) continue;
        x = plot_x(p, x), y = plot_y(p, column == c_seconds ? most : sum / count);
        if (column == c_validation) plot_marker(f, look, x, y);
        else put(f, "%s%f %f", move, x, y), move = "L";
    }
    if (column != c_validation) put(f, "\"/>\n");
}

/* A number of the steps of all runs. A loss of more than twice the first one is drawn there. */
static void page_lines(FILE *f, const run *runs, int count, int column, const char *title, const char *y_name)
{
    plot p = {1e300, -1e300, column == c_loss ? 1e300 : 0, -1e300};
    char about[SENTENCE] = "";
    double first = 0;
    for (const run *r = runs; r < runs + count; r++) {
        say(about, "%s: ", r->name);
        for (int64_t i = 0; i < r->steps; i++) {
            const double *of = r->step[i].of, x = of[c_step], y = of[column];
            double other = column == c_loss && fabs(of[c_validation]) < 1e30 ? of[c_validation] : y;
            if (!(fabs(y) < 1e30)) continue;
            p.x0 = fmin(p.x0, x), p.x1 = fmax(p.x1, x);
            p.y0 = fmin(p.y0, fmin(y, other)), p.y1 = fmax(p.y1, fmax(y, other));
            if (!i) first = fmax(first, y);
            if (i % (r->steps / 6 + 1) == 0 || i + 1 == r->steps) say(about, "%.4g at step %.0f; ", y, x);
        }
    }
    if (!(p.x1 >= p.x0)) return;
    if (column == c_loss && first > 0) p.y1 = fmin(p.y1, 2 * first);
    put(f, "<div>"), plot_open(&p, f, title, about, "step", y_name);
    for (int k = 0; k < count; k++) {
        plot_run(f, &p, &runs[k], k, column);
        if (column == c_loss) plot_run(f, &p, &runs[k], k, c_validation);
    }
    put(f, "</svg><p>");
    for (int k = 0; k < count; k++) {
        put(f, "<svg class=\"key\" viewBox=\"0 0 40 10\" aria-hidden=\"true\">");
        put(f, "<path class=\"line r%d\" d=\"M1 5H39\"/>", k);
        plot_marker(f, k, 20, 5), put(f, "</svg> %s \n", runs[k].name);
    }
    put(f, "</p></div>\n");
}

/* Lanes below each other, from 0 to an end that is named. */
static void lanes_open(FILE *f, const char *title, const char *about, int lanes, const char *end)
{
    svg_open(f, 20 + LANE * lanes, title, about);
    put(f, "<path class=\"axis\" d=\"M2 %dH%d\"/>", 2 + LANE * lanes, RIGHT);
    svg_text(f, 2, 15 + LANE * lanes, "start", "0"), svg_text(f, RIGHT, 15 + LANE * lanes, "end", end);
}
static void lane_name(FILE *f, int lane, const char *name) { svg_text(f, 2, 11 + LANE * lane, "start", name); }
/* An area of this look between two shares of the lane. */
static void lane_bar(FILE *f, int lane, double from, double to, int look)
{
    double scale = RIGHT - 2;
    if (scale * (to - from) > 0.02)
        put(f, "<rect class=\"event\" x=\"%f\" y=\"%d\" width=\"%f\" height=\"13\" fill=\"url(#p%d)\"/>\n",
            2 + scale * from, 15 + LANE * lane, fmax(scale * (to - from), 0.2), look);
}

/* Up to 8 bars of the same parts, and a table where these are several. NaN: not known. */
typedef struct bars {
    const char *title;
    char bar[PAGE_BARS][NAME];
    const char *const *part;
    int count, parts;
    const char *(*in)(double);
    double of[PAGE_BARS][LOOKS];
} bars;

static void page_bars(FILE *f, const bars *b)
{
    const char *cell[PAGE_BARS + 1] = {""};
    double sum[PAGE_BARS] = {0}, most = 0;
    char about[SENTENCE] = "";
    for (int i = 0; i < b->count; i++) {
        for (int k = 0; k < b->parts; k++) sum[i] += known_or(b->of[i][k], 0);
        most = fmax(most, sum[i]), say(about, "%s %s. ", b->bar[i], b->in(sum[i])), cell[1 + i] = b->bar[i];
    }
    put(f, b->count > 4 ? "<div><div>" : "<div class=\"pair\"><div>");
    lanes_open(f, b->title, about, b->count, b->in(most));
    for (int i = 0; i < b->count; i++) {
        double from = 0, to;
        lane_name(f, i, text("%s, %s", b->bar[i], b->in(sum[i])));
        for (int k = 0; k < b->parts && most > 0; k++, from = to)
            to = from + known_or(b->of[i][k], 0) / most, lane_bar(f, i, from, to, k);
    }
    put(f, "</svg></div>");
    if (b->parts > 1) row(f, HEAD, cell, 1 + b->count);
    for (int k = 0; k < b->parts && b->parts > 1; k++) {
        cell[0] = b->part[k];
        for (int i = 0; i < b->count; i++) {
            double x = b->of[i][k];
            cell[1 + i] = x == x ? text("%s, %s", b->in(x), in_percent(sum[i] > 0 ? 100 * x / sum[i] : 0)) : "";
        }
        row(f, k, cell, 1 + b->count);
    }
    put(f, b->parts > 1 ? "</tbody></table></div></div>\n" : "</div>\n");
}

/* ---- sections ---- */

static void page_verdict(FILE *f, const run *r)
{
    static const char *const signs[] = {"\xe2\x9c\x93", "\xe2\x9c\x97", "!"};
    put(f, "<section class=\"card ill%d\"><h2><span aria-hidden=\"true\">%s</span>", r->ill, signs[r->ill]);
    put(f, " %s</h2><p class=\"what\">%s.</p><p>%s.</p><p><b>Next.</b> %s.</p><pre><code>%s</code></pre></section>\n",
        r->name, r->what, r->health, r->next, r->command);
}

static void page_facts(FILE *f, const run *runs, int count)
{
#define PAGE_FACT(name, what, in) {what, in},
    static const struct {
        const char *what, *(*in)(double);
    } facts[] = {RUN_FACTS(PAGE_FACT)};
    const char *cell[PAGE_RUNS + 1] = {"run"};
    int same = count > 1 && *runs->hash;
    put(f, "<h2>%s</h2>\n", count > 1 ? "Side by side" : "In numbers");
    for (int k = 0; k < count; k++) cell[1 + k] = runs[k].name, same = same && !strcmp(runs[k].hash, runs->hash);
    row(f, HEAD, cell, 1 + count);
    for (int n = 0; n < FACTS; n++) {
        cell[0] = facts[n].what;
        for (int k = 0; k < count; k++) cell[1 + k] = facts[n].in(runs[k].fact[n]);
        row(f, PLAIN, cell, 1 + count);
    }
    cell[0] = "SHA-256";
    for (int k = 0; k < count; k++) cell[1 + k] = *runs[k].hash ? runs[k].hash : "not known";
    row(f, PLAIN, cell, 1 + count), table_end(f);
    if (same) put(f, "<p>The hashes are equal: all runs have the same weights, to the last bit.</p>\n");
}

/* A histogram: steps by their seconds. What exceeds three medians is in the last bin. */
static void page_steps(FILE *f, const run *r)
{
    static const char *const parts[] = {"steps"};
    const double low = r->fact[FACT_SHORTEST], high = fmin(r->fact[FACT_LONGEST], 3 * r->fact[FACT_MEDIAN]);
    const double wide = fmax((high - low) / PAGE_BARS, 1e-9);
    bars b = {"Histogram of step times", {""}, parts, r->timed ? PAGE_BARS : 0, 1, in_digits, {{0}}};
    for (int k = 0; k < PAGE_BARS; k++) snprintf(b.bar[k], NAME, "steps from %s", in_seconds(low + k * wide));
    for (int64_t i = 0; i < r->timed; i++) b.of[(int)fmin((r->order[i] - low) / wide, PAGE_BARS - 1)][0]++;
    page_bars(f, &b);
}

static void page_where(FILE *f, const run *r)
{
    int shown = r->ranks < PAGE_BARS ? r->ranks : PAGE_BARS - 1;
    bars b = {"Where time goes", {"mean of the ranks"}, part_names, 1 + shown, PARTS, in_seconds, {{0}}};
    memcpy(b.of[0], r->part, sizeof r->part);
    for (int i = 1; i <= shown; i++) { /* the late rank among them */
        int q = i == shown && r->late > i ? r->late : i - 1;
        double rest = r->sum[q][RANK_SECONDS];
        for (int k = 0; k < PARTS; k++) b.of[i][k] = (double)NAN;
        for (int k = 0; k < PART_OTHER; k++) rest -= b.of[i][k] = r->sum[q][k];
        snprintf(b.bar[i], NAME, "rank %d", q), b.of[i][PART_OTHER] = fmax(0, rest);
    }
    page_bars(f, &b);
    if (r->ranks > shown) put(f, "<p>%d of %d ranks.</p>\n", shown, r->ranks);
}

/* The lanes of a trace on a scale of `end` microseconds. Bars of a class that touch are drawn as one. */
static void page_lanes(FILE *f, const trace *t, double end, const char *what)
{
    double from = 0, to = 0;
    int lane = 0, of = 0;
    put(f, "<p>%s, %s</p>", what, in_seconds(1e-6 * t->end));
    lanes_open(f, what, "A table has the numbers of rank 0.", t->lanes, in_seconds(1e-6 * end));
    for (int k = 0; k < t->lanes; k++) lane_name(f, k, t->name[k]);
    for (const trace_bar *b = t->bar; b < t->bar + t->bars; b++) {
        double begin = b->begin / end, until = b->end / end;
        if (b->lane == lane && b->of == of && begin >= from && begin < to + 0.0006) to = fmax(to, until);
        else lane_bar(f, lane, from, to, of), lane = b->lane, of = b->of, from = begin, to = until;
    }
    lane_bar(f, lane, from, to, of), put(f, "</svg>\n");
}

static void page_trace(FILE *f, const run *r)
{
    static const char *const names[] = {"measured", "simulated"};
    const trace *traces[] = {&r->measured, &r->simulated};
    double end = fmax(1e-3, fmax(r->measured.end, r->simulated.end));
    bars b = {"Rank 0 by class", {""}, trace_classes, 0, TRACE_CLASSES, in_seconds, {{0}}};
    for (int k = 0; k < 2; k++) {
        if (!traces[k]->bars) continue;
        page_lanes(f, traces[k], end, names[k]);
        strcpy(b.bar[b.count], names[k]), memcpy(b.of[b.count++], traces[k]->rank, sizeof traces[k]->rank);
    }
    if (r->measured.lanes == TRACE_LANES) put(f, "<p>Up to %d threads are shown.</p>\n", TRACE_LANES);
    if (b.count) page_bars(f, &b);
    else put(f, "<p>--timeline FILE of a run writes a trace of its last step, which report --timeline shows.</p>\n");
}

/* Bytes that rank 0 sent in the last step, by link. */
static void page_bytes(FILE *f, const run *r)
{
    static const char *const parts[] = {"gradients and weights", "activations and the rest"};
    const double *of = r->steps ? r->step[r->steps - 1].of : NULL;
    double far = of ? of[c_far_bytes] : 0, sent = of ? of[c_sent_bytes] : 0;
    double own = of ? known_or(of[c_gradient_bytes], sent) : 0, own_far = of ? known_or(of[c_gradient_far], far) : 0;
    const bars b = {"Bytes of a step by link", {"inside the node", "between nodes"}, parts, 2, 2, in_digits,
                    {{own - own_far, sent - far - (own - own_far)}, {own_far, far - own_far}}};
    page_bars(f, &b);
}

/* Bytes of a rank by formula, as planned, and as the system saw them. */
static void page_memory(FILE *f, const run *r)
{
    static const char *const parts[] = {"weights", "gradients", "optimizer", "activations", "buffers", "cache",
                                        "all, with the program"};
    slice planned = json_find(r->head, "memory");
    char word[SENTENCE];
    double n = r->fact[FACT_PARAMETERS], zero = run_option_number(r, "zero");
    double group = run_option_number(r, "zero-group");
    double cut = fmax(1, run_option_number(r, "tp")) * fmax(1, run_option_number(r, "pp"));
    double own = group >= 1 ? group : r->ranks / (cut * fmax(1, run_option_number(r, "cp"))), kept = 0;
    bars b = {"Memory of rank 0", {"formula", "planned", "resident"}, parts, 3, 7, in_bytes, {{0}}};
    run_option(r, "optimizer", word);
    if (!strncmp(word, "adam", 4)) kept = 8;
    else if (!strcmp(word, "lion") || run_option_number(r, "momentum") > 0) kept = 4;
    if (run_option_number(r, "ema") > 0) kept += 4;
    for (int k = 0; k < 7; k++) {
        b.of[0][k] = b.of[2][k] = (double)NAN;
        b.of[1][k] = json_number_of(planned, parts[k]);
    }
    b.of[0][0] = 4 * n / cut / (zero >= 3 ? own : 1), b.of[0][1] = 4 * n / cut / (zero >= 2 ? own : 1);
    b.of[0][2] = kept * n / cut / (zero >= 1 ? own : 1), b.of[2][6] = r->sum[0][RANK_MEMORY];
    page_bars(f, &b);
    put(f, "<p>Formula: 4 bytes for each weight, each gradient and each number of the optimizer, divided by the ranks "
        "that share them. A rank that sums several data shards keeps more gradients.</p>\n");
}

static void page_rules(FILE *f, const run *r)
{
    char command[SENTENCE];
    put(f, "<p>%d of %d rules fired. Rules about tensors need --rules.</p>\n", r->firings, DT_RULE_COUNT);
    for (int k = 0; k < DT_RULE_COUNT; k++) {
        const dt_firing *w = &r->fired[k];
        if (!w->times) continue;
        run_command(r, dt_rule_next(k), command);
        put(f, "<p><b>%s</b> at step %s", dt_rule_name(k), in_digits((double)w->step));
        if (w->rank >= 0) put(f, " of rank %d", (int)w->rank);
        if (w->value == w->value) put(f, ": %s, bound %s", in_digits(w->value), in_digits(w->bound));
        put(f, ". To fix it: %s.</p><pre><code>%s</code></pre>\n", dt_rule_advice(k), command);
    }
}

/* What the file says of the run, and options that are not the usual ones. */
static void page_recipe(FILE *f, const run *r)
{
    slice in = json_inside(r->head), key, value;
    double began = json_number_of(r->head, "time");
    time_t seconds = began > 0 && began < 4e9 ? (time_t)began : 0;
    char is[SENTENCE], name[NAME] = "began (UTC)";
    const char *head[] = {"file", r->path}, *cell[] = {name, is};
    int usual;
    row(f, HEAD, head, 2);
    if (strftime(is, sizeof is, "%Y-%m-%d %H:%M:%S", gmtime(&seconds))) row(f, PLAIN, cell, 2);
    while (json_next(&in, &key, &value))
        if (*value.at != '{') json_text(key, name, NAME), json_text(value, is, sizeof is), row(f, PLAIN, cell, 2);
    for (in = json_inside(json_find(r->head, "usual")); run_next_option(r, &in, name, is, &usual);)
        if (!usual) row(f, PLAIN, cell, 2);
    table_end(f), put(f, "<p>Only options that differ from the usual values are shown.</p>\n");
}

static void page_sample(FILE *f, const run *r)
{
    char sample[4096];
    slice s = {NULL, NULL};
    for (int64_t i = r->steps; i-- > 0 && !s.at;) s = r->step[i].sample;
    put(f, "<pre>%s</pre>\n", s.at ? json_text(s, sample, sizeof sample) : "none: use --sample-every N");
}

/* ---- the page ---- */

/* Paper and ink are the reader's own; what is grey is so on both. */
static const char page_style[] =
    "<style>:root{color-scheme:light dark}body{margin:0;background:Canvas;color:CanvasText;"
    "font:16px/1.45 system-ui,sans-serif}main{max-width:1080px;margin:auto;padding:12px}h1{font-size:1.35rem}"
    "h2{font-size:1.15rem;margin:1.6em 0 .5em}h3{font-size:1rem}p{margin:.5em 0;overflow-wrap:anywhere}"
    ".cards,.pair{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}\n"
    ".cards>*,.pair>*{min-width:0}"
    ".card,pre{background:#8881;border:1px solid #8886;padding:4px 14px;overflow-wrap:anywhere}"
    ".card{border-left:6px solid #2e8b4a}.ill1{border-left-color:#d93025}.ill2{border-left-color:#b8860b}"
    ".card h2{margin:.5em 0}.what{font-weight:600}pre{white-space:pre-wrap;font-size:.85rem;margin:.5em 0}"
    "table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;margin:.3em 0}"
    "th,td{border-bottom:1px solid #8886;padding:3px 10px 3px 0;text-align:left;vertical-align:top}"
    ".long{overflow-wrap:anywhere}th[scope=row]{font-weight:400;min-width:8em}.wide{overflow-x:auto}\n"
    ".plot{width:100%;max-width:560px;height:auto;display:block;stroke:CanvasText}.plot text{font-size:11px;"
    "fill:CanvasText;stroke:none}.grid{stroke:#8886;stroke-width:.6}.axis,.line{fill:none}.line{stroke-width:1.4}"
    ".event{stroke-width:.25}"
    ".hatch{stroke:CanvasText;stroke-width:.7;fill:none;stroke-linecap:square}"
    ".mark{fill:Canvas;stroke-width:1.3;stroke-dasharray:none!important}\n"
    ".key{width:40px;height:10px}.defs{position:absolute}.swatch{width:16px;height:10px;border:1px solid #888}\n"
    "@media print{:root{color-scheme:light}body{font-size:11pt}table{font-size:8.5pt}.wide{overflow:visible}"
    ".pair{grid-template-columns:1fr 1fr}section,.pair,tr,svg{break-inside:avoid}h2,h3{break-after:avoid}}\n";

/* Style and patterns. */
static void page_looks(FILE *f)
{
    fputs(page_style, f);
    for (int k = 0; k < LOOKS; k++) put(f, ".r%d{stroke:%s;stroke-dasharray:%s}", k, looks[k].colour, looks[k].dash);
    put(f, "</style></head><body>\n<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>");
    for (int k = 0; k < LOOKS; k++)
        put(f, "<pattern id=\"p%d\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><rect width=\"6\" "
            "height=\"6\" fill=\"%s\" fill-opacity=\"0.5\"/><path d=\"%s\" class=\"hatch\"/></pattern>",
            k, looks[k].colour, looks[k].hatch);
    put(f, "</defs></svg>\n");
}

/* What a page begins with: another file is not replaced. */
static const char page_first[] = "<!DOCTYPE html>\n<!-- dtrain report -->\n";

/* follow: the page loads itself again every 2 seconds. */
static void page_put(FILE *f, const run *runs, int count, int follow)
{
    static const struct {
        const char *title;
        void (*put)(FILE *, const run *);
    } sections[] = {{"Steps by their time", page_steps}, {"Where time goes", page_where}, {"Timeline", page_trace},
                    {"Bytes by link", page_bytes}, {"Memory", page_memory}, {"Rules", page_rules},
                    {"Recipe and hardware", page_recipe}, {"Last text sample", page_sample}};
    page_id = 0;
    fputs(page_first, f);
    put(f, "<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>");
    if (follow) put(f, "<meta http-equiv=\"refresh\" content=\"2\"/>");
    put(f, "<link rel=\"icon\" href=\"data:,\"/><title>Training report: %s</title>", runs->name), page_looks(f);
    put(f, "<main><h1>Training report</h1><div class=\"cards\">\n");
    for (int k = 0; k < count; k++) page_verdict(f, &runs[k]);
    put(f, "</div>\n"), page_facts(f, runs, count), put(f, "<h2>Loss and step time</h2><div class=\"pair\">\n");
    page_lines(f, runs, count, c_loss, "Loss over steps", "loss: line training, marks validation");
    page_lines(f, runs, count, c_seconds, "Seconds per step", "seconds of a step"), put(f, "</div>\n");
    for (int s = 0; s < 8; s++) {
        put(f, "<h2>%s</h2>\n", sections[s].title);
        for (int k = 0; k < count; k++) {
            if (count > 1) put(f, "<h3>%s</h3>\n", runs[k].name);
            sections[s].put(f, &runs[k]);
        }
    }
    put(f, "</main></body></html>\n");
}

#endif
