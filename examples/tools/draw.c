/* draw: the pictures of the course as SVG, from what the library answers.
 *
 *     ./build.sh draw -o DIR                  all pictures, into a folder that exists
 *     ./build.sh draw ring mesh -o DIR        these two
 *
 * Schedules, memory, meshes and the tree of a sum come from plans and dt_mesh_of, curves from the formulas of cost.h,
 * the ring from its rounds. Where a formula says what a picture must show, a difference is an error. Pictures are 480
 * units wide, so that their letters are readable on a telephone; they are light or dark as the browser is, and what a
 * colour says, a pattern, a letter or a dash says as well. By hand, in the folder of dtrain.h:
 *     cc -O2 -I. examples/tools/draw.c -o draw -lm -lpthread */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../timetable.h"
#include "cost.h"
#include <stdarg.h>

/* ---- a page of SVG ---- */

enum { WIDE = 480, EDGE = 8, LOOKS = 5, SENTENCE = 2000 };

/* Five looks: a colour for light and for dark paper, and a hatch, which repeats every 6 units. */
static const char *const looks[LOOKS][3] = {{"#bfdbfe", "#1d4f91", ""},
                                            {"#fed7aa", "#8a4208", "M-1 1L1-1M0 6L6 0M5 7L7 5"},
                                            {"#bbf7d0", "#166534", "M3 2.2v1.6"},
                                            {"#ddd6fe", "#5b21b6", "M0 0L6 6M6 0L0 6"},
                                            {"#e2e8f0", "#475569", "M0 3h6"}};

/* The picture in work. about: what is read to people who do not see it. */
static struct {
    FILE *body;
    char title[80], about[SENTENCE];
    double height;
} page;

/* Appends to `about`. */
static void tell(const char *format, ...)
{
    size_t n = strlen(page.about);
    va_list args;
    va_start(args, format);
    vsnprintf(page.about + n, SENTENCE - n, format, args);
    va_end(args);
}

/* A text; `classes`: b bold, s small, m from its middle, e from its end. */
static void say(const char *classes, double x, double y, const char *format, ...)
{
    va_list args;
    page.height = fmax(page.height, y + 10);
    if (*classes) fprintf(page.body, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", classes, x, y);
    else fprintf(page.body, "<text x=\"%.1f\" y=\"%.1f\">", x, y);
    va_start(args, format);
    vfprintf(page.body, format, args);
    va_end(args);
    fprintf(page.body, "</text>\n");
}

/* A path; faint ones are dotted. */
static void path(const char *classes, const char *format, ...)
{
    va_list args;
    fprintf(page.body, "<path class=\"%s\" d=\"", classes);
    va_start(args, format);
    vfprintf(page.body, format, args);
    va_end(args);
    fprintf(page.body, "\"/>\n");
}

/* A rectangle with one of the looks, or empty (-1); a sample of it with its name. */
static void box(int look, double x, double y, double wide, double high)
{
    char fill[24] = "none";
    if (look >= 0) snprintf(fill, sizeof fill, "url(#p%d)", look);
    fprintf(page.body, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y, wide, high,
            fill);
}
static void sample(int look, double x, double y, const char *name)
{
    box(look, x, y - 12, 16, 15), say("", x + 22, y, "%s", name);
}

static void head(FILE *f)
{
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"560\" role=\"img\" "
               "aria-labelledby=\"title about\">\n<title id=\"title\">%s</title>\n<desc id=\"about\">%s</desc>\n"
               "<style>\nsvg { max-width: 100%%; height: auto; background: var(--paper); color: var(--ink);\n"
               "    --ink: #1e293b; --paper: #ffffff; --faint: #94a3b8", WIDE, page.height, page.title, page.about);
    for (int k = 0; k < LOOKS; k++) fprintf(f, "; --p%d: %s", k, looks[k][0]);
    fprintf(f, " }\n@media (prefers-color-scheme: dark) { svg { --ink: #e2e8f0; --paper: #0f172a; --faint: #64748b");
    for (int k = 0; k < LOOKS; k++) fprintf(f, "; --p%d: %s", k, looks[k][1]);
    fprintf(f, " } }\ntext { font: 13px system-ui, -apple-system, \"Segoe UI\", sans-serif; fill: currentColor }\n"
               ".b { font-size: 15px; font-weight: 600 } .m { text-anchor: middle } .e { text-anchor: end }\n"
               ".s { font-size: 11px } rect { stroke: var(--faint) } path { fill: none; stroke: currentColor }\n"
               ".faint { stroke: var(--faint); stroke-dasharray: 2 3 } .line { stroke-width: 2 }\n"
               ".d1 { stroke-dasharray: 8 4 } .d2 { stroke-dasharray: 2 4 } .hatch { stroke-opacity: 0.45 }\n"
               "</style>\n<defs>\n");
    for (int k = 0; k < LOOKS; k++)
        fprintf(f, "<pattern id=\"p%d\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><rect width=\"6\" "
                   "height=\"6\" style=\"fill: var(--p%d); stroke: none\"/><path class=\"hatch\" d=\"M0 0%s\"/>"
                   "</pattern>\n", k, k, looks[k][2]);
    fprintf(f, "</defs>\n<text class=\"b\" x=\"%d\" y=\"22\">%s</text>\n", EDGE, page.title);
}

/* 1, or 0 after saying what was expected. */
static int expect(int holds, const char *what)
{
    if (!holds) fprintf(stderr, "draw: FAILED: %s\n", what);
    return holds;
}

/* ---- schedules ---- */

static int open_schedule(timetable *t, int64_t stages, int kind, int64_t units)
{
    dt_layout l = dt_layout_default();
    l.pp = stages, l.pipeline = kind, l.chunks = 2;
    return !timetable_open(t, &l, units);
}

/* The most forwards on a stage without their last backward, in units of the work of a whole stage. */
static double in_flight(const timetable *t, int64_t stage)
{
    int now = 0, most = 0, last = t->length > 2 * t->units * t->chunks ? WORK_WEIGHTS : WORK_BACKWARD;
    for (const timetable_work *w = t->list + stage * t->length, *end = w + t->length; w < end; w++) {
        now += (w->kind == WORK_FORWARD) - (w->kind == last);
        if (now > most) most = now;
    }
    return most / (double)t->chunks;
}

/* The pictures of all schedules have one scale of time. */
static int schedule(int kind, const char *name, const char *formula)
{
    enum { STAGES = 3, UNITS = 6, LEFT = 62, TOP = 38, HIGH = 34 };
    double one, y = TOP + STAGES * HIGH + 24, bubble;
    timetable t;
    int good;
    if (!open_schedule(&t, STAGES, kind, UNITS)) return dt_fail("draw"), 0;
    one = (WIDE - LEFT - EDGE) / (3.0 * (UNITS + STAGES - 1)) / (double)t.chunks;
    bubble = cost_bubble(STAGES, (double)(UNITS * t.chunks));
    good = kind == DT_ZERO_BUBBLE ? t.idle < bubble : fabs(t.idle - bubble) < 1e-9;
    snprintf(page.title, sizeof page.title, "%s: %.1f %% idle", name, 100 * t.idle);
    for (int s = 0; s < STAGES; s++) {
        say("", EDGE, TOP + HIGH * s + 20, "stage %d", s);
        path("faint", "M%d %dH%.1f", LEFT, TOP + HIGH * s + 15, LEFT + one * (double)t.total);
        tell("%sstage %d:", s ? "; " : "", s);
        for (int64_t i = s * t.length; i < (s + 1) * t.length; i++) {
            const timetable_work *w = &t.list[i];
            double x = LEFT + one * (double)t.begin[i], wide = one * (double)timetable_takes(&t, w->kind);
            box(w->kind, x, TOP + HIGH * s, wide, 30);
            if (w->chunk % 2) path("line", "M%.1f %dh%.1f", x + 1, TOP + HIGH * s + 27, wide - 2);
            say("m s", x + wide / 2, TOP + HIGH * s + 19, "%d", w->unit);
            tell(" %c%d", (w->chunk % 2 ? "fbw" : "FBW")[w->kind], w->unit);
        }
    }
    sample(0, EDGE, y, "forward"), sample(1, 98, y, "backward");
    if (kind == DT_ZERO_BUBBLE) sample(2, 196, y, "gradients of weights");
    path("faint", "M376 %.1fh24", y - 4), say("", 406, y, "idle");
    if (t.chunks > 1) say("", EDGE, y += 22, "A line below the number: the stage's second run of layers.");
    say("", EDGE, y + 22, "%d stages, %d micro-batches: %s = %.1f %%", STAGES, UNITS, formula, 100 * bubble);
    say("", EDGE, y + 43, "At most in flight on stages 0, 1, 2: %g, %g, %g micro-batches", in_flight(&t, 0),
        in_flight(&t, 1), in_flight(&t, 2));
    timetable_close(&t);
    return expect(good, "the idle share of a schedule is its formula's");
}
static int draw_gpipe(void) { return schedule(DT_GPIPE, "GPipe", "(p-1)/(m+p-1)"); }
static int draw_1f1b(void) { return schedule(DT_1F1B, "1F1B", "(p-1)/(m+p-1)"); }
static int draw_interleaved(void) { return schedule(DT_INTERLEAVED, "Interleaved 1F1B", "(p-1)/(2m+p-1)"); }
static int draw_zero_bubble(void)
{
    return schedule(DT_ZERO_BUBBLE, "Zero-bubble", "less than (p-1)/(m+p-1)");
}

/* ---- curves ---- */

enum { LINES = 3, POINTS = 9 };
typedef struct chart { /* points at equal distances; NAN is left out */
    const char *x, *y, *name[LINES], *mark; /* mark: what is at point 4 */
    int points;
    double top, at[LINES][POINTS], tick[POINTS];
} chart;

/* Lines differ by their dashes and by a letter at their ends. */
static void draw_chart(const chart *c)
{
    enum { LEFT = 46, RIGHT = 448, TOP = 58, BOTTOM = 238, KEY = 292 };
    static const char *const classes[LINES] = {"line", "line d1", "line d2"};
    double across = (RIGHT - LEFT) / (c->points - 1.0), high = (BOTTOM - TOP) / c->top, end[LINES];
    char line[16 * POINTS];
    say("", EDGE, 44, "%s", c->y), say("e", RIGHT, BOTTOM + 34, "%s", c->x);
    for (int k = 0; k <= 4; k++) {
        path("faint", "M%d %.1fH%d", LEFT, BOTTOM - high * c->top * k / 4, RIGHT);
        say("e", LEFT - 6, BOTTOM - high * c->top * k / 4 + 4, "%g", c->top * k / 4);
    }
    for (int i = 0; i < c->points; i++) say("m", LEFT + across * i, BOTTOM + 16, "%.0f", c->tick[i]);
    if (c->mark) path("faint", "M%.1f %dV%d", LEFT + across * 4, TOP, BOTTOM);
    if (c->mark) say("", LEFT + across * 4 + 6, TOP + 14, "%s", c->mark);
    tell("%s by %s.", c->y, c->x);
    for (int k = 0; k < LINES; k++) {
        int n = 0;
        tell(" %c, %s:", 'a' + k, c->name[k]);
        for (int i = 0; i < c->points; i++) {
            if (isnan(c->at[k][i])) continue;
            end[k] = BOTTOM - high * c->at[k][i];
            tell("%s %.1f at %.0f", n ? "," : "", c->at[k][i], c->tick[i]);
            n += snprintf(line + n, sizeof line - (size_t)n, "%c%.1f %.1f", n ? 'L' : 'M', LEFT + across * i, end[k]);
        }
        tell("."), path(classes[k], "%s", line), path(classes[k], "M%d %dh34", EDGE, KEY + 21 * k - 4);
        say("", EDGE + 42, KEY + 21 * k, "%c  %s", 'a' + k, c->name[k]);
    }
    for (int k = LINES; k-- > 0;) {
        for (int i = LINES; i-- > k + 1;) /* a letter is higher where another one is */
            if (fabs(end[k] - end[i]) < 14) end[k] = end[i] - 14, i = LINES;
        say("", RIGHT + 8, end[k] + 4, "%c", 'a' + k);
    }
}

static int draw_bubble(void)
{
    enum { STAGES = 4 };
    static const int kinds[] = {DT_1F1B, DT_INTERLEAVED, DT_ZERO_BUBBLE, DT_GPIPE};
    chart c = {"micro-batches m", "idle, % of the time",
               {"1F1B and GPipe, (p-1)/(m+p-1)", "interleaved, two runs a stage, (p-1)/(2m+p-1)", "zero-bubble"},
               "m = 4p: below 20 %", 7, 80, {{0}}, {0}};
    int good = 1;
    snprintf(page.title, sizeof page.title, "The bubble of %d stages", STAGES);
    for (int i = 0; i < c.points; i++) {
        double m = c.tick[i] = 1 << i, formula[2] = {100 * cost_bubble(STAGES, m), 100 * cost_bubble(STAGES, 2 * m)};
        for (int k = 0; k < 4; k++) {
            timetable t;
            int fits = open_schedule(&t, STAGES, kinds[k], 1 << i); /* interleaved needs a multiple of the stages */
            double idle = fits ? 100 * t.idle : (double)NAN;
            if (k < LINES) c.at[k][i] = idle;
            good = good && fits == (k != 1 || (1 << i) % STAGES == 0);
            if (fits && k != 2) good = good && fabs(idle - formula[k == 1]) < 1e-6;
            if (fits) timetable_close(&t);
        }
    }
    draw_chart(&c);
    return expect(good && c.at[0][4] < 20, "the idle shares are their formulas'");
}

static int draw_scaling(void)
{
    chart c = {"nodes", "efficiency, %",
               {"own network, 400 Gbit/s with EFA", "TCP, 100 Gbit/s", "TCP, 25 Gbit/s"}, NULL, 7, 100, {{0}}, {0}};
    static cost_catalogue all;
    const double weights = 1.5e9, tokens = 8192; /* of a GPU; at 40 % of its FLOPs, as in 61_scaling.c */
    const cost_type *t = cost_open(&all, NULL) ? NULL : cost_find(&all, "p4d", 3);
    snprintf(page.title, sizeof page.title, "1.5 billion weights on 1 to 64 nodes of p4d");
    for (int i = 0; i < c.points && t; i++) {
        double work = cost_computing(weights, tokens, 0.4 * t->teraflops * 1e12);
        c.tick[i] = 1 << i;
        for (int k = 0; k < LINES; k++) {
            double rate = k == 0 ? cost_outside(t) : k == 1 ? 12.5e9 : 3.125e9, alpha = k ? 50e-6 : cost_alpha(t);
            double sum = cost_nodes_sum(t->count, c.tick[i], 2 * weights, cost_inside(t), alpha, rate);
            c.at[k][i] = 100 * work / (work + sum);
        }
    }
    draw_chart(&c);
    return expect(t && c.at[0][6] >= 80 && c.at[1][1] < 80, "64 nodes keep 80 % with EFA, and 2 do not without it");
}

static int draw_interval(void)
{
    chart c = {"seconds T between saves", "wasted share of the time, %",
               {"together", "saves, C/T", "work done again and restarts, (T/2 + R)/M"}, "T = sqrt(2 C M)", POINTS, 20,
               {{0}}, {0}};
    const double save = 60, restart = 300, failures = 6 * 3600; /* seconds, as in 74_interval.c */
    int least = 0;
    snprintf(page.title, sizeof page.title, "A save of C = %.0f s, a failure every M = %.0f h", save, failures / 3600);
    for (int i = 0; i < POINTS; i++) {
        double t = c.tick[i] = cost_interval(save, failures) * pow(2, (i - 4) / 2.0);
        c.at[1][i] = 100 * save / t, c.at[2][i] = 100 * (t / 2 + restart) / failures;
        c.at[0][i] = c.at[1][i] + c.at[2][i];
        if (c.at[0][i] < c.at[0][least]) least = i;
    }
    draw_chart(&c);
    return expect(least == 4, "the least waste is at sqrt(2 C M)");
}

/* ---- memory ---- */

enum { KINDS = 5 };
typedef struct bar {
    char name[24];
    double mb[KINDS], total;
} bar;

/* The rows of a rank's plan, by what they are for: a GPT-2 of 85 million weights, whose tokens are bytes. */
static int kept(bar *b, const dt_layout *layout, int batch, int micro, int shards, int ranks, int rank)
{
    dt_plan *plan = NULL;
    dt_recipe r = dt_recipe_default();
    int64_t count = 0;
    const dt_row *row;
    r.model = dt_model_gpt2("124M"), r.model.vocabulary = 256, r.sequence = 256;
    r.batch = batch, r.micro_batch = micro, r.data_shards = shards;
    row = dt_plan_open(&plan, &r, layout, ranks, rank) ? NULL : dt_plan_memory(plan, &count);
    b->total = 0, memset(b->mb, 0, sizeof b->mb);
    for (int64_t i = 0; i < count; i++) {
        int kind = row[i].purpose - DT_FOR_WEIGHTS;
        if (kind < 0 || kind >= KINDS) continue;
        b->mb[kind] += (double)row[i].bytes / 1e6, b->total += (double)row[i].bytes / 1e6;
    }
    dt_plan_close(&plan);
    return row || (dt_fail("draw"), 0);
}

static void draw_bars(const char *what, const bar *bars, int count)
{
    static const char *const kinds[KINDS] = {"weights", "gradients", "optimizer", "activations", "buffers"};
    enum { LEFT = 88, RIGHT = 404, TOP = 58, HIGH = 26 };
    double most = 0;
    say("", EDGE, 44, "%s", what), tell("%s; in MB:", what);
    for (int i = 0; i < count; i++) most = fmax(most, bars[i].total);
    for (int i = 0; i < count; i++) {
        double x = LEFT, y = TOP + HIGH * i;
        say("", EDGE, y + 15, "%s", bars[i].name), tell(" %s:", bars[i].name);
        for (int k = 0; k < KINDS; k++) {
            double wide = (RIGHT - LEFT) * bars[i].mb[k] / most;
            tell(" %s %.0f%s", kinds[k], bars[i].mb[k], k + 1 < KINDS ? "," : ".");
            if (wide > 0) box(k, x, y, wide, 21), x += wide;
        }
        say("", x + 6, y + 15, "%.0f MB", bars[i].total);
    }
    for (int k = 0; k < KINDS; k++)
        sample(k, EDGE + 150 * (k % 3), TOP + HIGH * count + 20 + 22 * (k / 3), kinds[k]);
}

static int draw_zero(void)
{
    enum { RANKS = 8 };
    bar b[4];
    int good = 1;
    snprintf(page.title, sizeof page.title, "ZeRO on %d ranks: what one of them keeps", RANKS);
    for (int stage = 0; stage < 4; stage++) {
        dt_layout l = dt_layout_default();
        l.zero = stage;
        snprintf(b[stage].name, sizeof b->name, stage ? "ZeRO %d" : "no sharing", stage);
        if (!kept(&b[stage], &l, RANKS, RANKS, RANKS, RANKS, 0)) return 0;
        good = good && (stage == 0 || b[stage].total < b[stage - 1].total);
    }
    draw_bars("85M weights, AdamW in fp32, a sample of 256 tokens a rank", b, 4);
    good = good && fabs(b[1].mb[2] / b[0].mb[2] * RANKS - 1) < 0.01 && fabs(b[3].mb[0] / b[0].mb[0] * RANKS - 1) < 0.01;
    return expect(good, "ZeRO 1 divides the optimizer state by the ranks, ZeRO 3 the weights");
}

static int draw_stages(void)
{
    enum { STAGES = 4, UNITS = 8 };
    bar b[2 * STAGES];
    snprintf(page.title, sizeof page.title, "Memory of %d stages, %d micro-batches", STAGES, UNITS);
    for (int i = 0; i < 2 * STAGES; i++) {
        dt_layout l = dt_layout_default();
        l.pp = STAGES, l.pipeline = i < STAGES ? DT_GPIPE : DT_1F1B;
        snprintf(b[i].name, sizeof b->name, "%s %d", i < STAGES ? "GPipe" : "1F1B", i % STAGES);
        if (!kept(&b[i], &l, UNITS, 1, 1, STAGES, i % STAGES)) return 0;
    }
    draw_bars("stages 0 to 3 of 85M weights, micro-batches of 256 tokens", b, 2 * STAGES);
    return expect(b[STAGES].mb[3] < b[0].mb[3], "1F1B keeps fewer activations than GPipe");
}

/* ---- ranks ---- */

static int draw_mesh(void)
{
    static const char *const orders[2] = {"cluster", "spread"}, *const letters[2] = {"DPT", "TPD"};
    static const char *const axes[] = {"data", "pipeline", "tensor"};
    enum { RANKS = 8, NODE = 4, CELL = 55 };
    int inside[2] = {0, 0}; /* is the tensor axis in one node? */
    snprintf(page.title, sizeof page.title, "%d ranks on %d nodes, in two orders", RANKS, RANKS / NODE);
    for (int k = 0; k < 2; k++) {
        int y = 46 + 184 * k;
        dt_layout l = dt_layout_default();
        dt_mesh m;
        l.pp = l.tp = 2, l.order = orders[k];
        say("", EDGE, y, "--order %s (%s); arcs join ranks that share a tensor", orders[k], letters[k]);
        for (int r = 0; r < RANKS; r++) {
            double x = EDGE + 4 + CELL * (r % NODE) + 236 * (r / NODE), mid = x + CELL / 2.0, to;
            if (dt_mesh_of(&l, RANKS, r, &m)) return dt_fail("draw"), 0;
            if (r % NODE == 0) box(-1, x - 4, y + 52, 228, 80), say("m", x + 110, y + 125, "node %d", r / NODE);
            box(m.at[DT_AXIS_TENSOR], x, y + 60, CELL, 46), say("m", mid, y + 79, "rank %d", r);
            say("m s", mid, y + 97, "d%d p%d t%d", m.at[DT_AXIS_DATA], m.at[DT_AXIS_PIPELINE], m.at[DT_AXIS_TENSOR]);
            if (m.at[DT_AXIS_TENSOR]) continue;
            to = m.stride[DT_AXIS_TENSOR] % NODE * CELL + m.stride[DT_AXIS_TENSOR] / NODE * 236;
            path("line", "M%.1f %dq%.1f %.1f %.1f 0", mid, y + 60, to / 2, -fmin(80, 24 + to / 5), to);
        }
        tell("%s%s:", k ? " " : "", letters[k]);
        for (int axis = DT_AXIS_DATA; axis <= DT_AXIS_TENSOR; axis++) {
            const char *where = (inside[k] = m.stride[axis] < NODE) ? "inside a node" : "between nodes";
            tell("%s %s %s", axis ? "," : "", axes[axis], where);
            say("", EDGE + (axis ? 162 * axis - 8 : 0), y + 150, "%s %s", axes[axis], where);
        }
        tell(".");
    }
    return expect(inside[0] && !inside[1], "a tensor is inside a node in the order DPT, between nodes in TPD");
}

/* Round i = 1 .. 2(n-1): rank q sends chunk q - i + 1 to the right (22_ring.c); the first n-1 rounds add. */
static int draw_ring(void)
{
    enum { N = 4, ROUNDS = 2 * (N - 1), LEFT = 90, TOP = 62, HIGH = 28, CELL = 22, BLOCK = 98, END = TOP + HIGH * 7 };
    int has[N][N] = {{0}}, before[N][N], good = 1; /* bits: ranks whose numbers are in a chunk */
    snprintf(page.title, sizeof page.title, "Ring all-reduce: %d ranks, %d rounds", N, ROUNDS);
    tell("How many ranks' numbers are in chunks 0 to 3 of ranks 0 to 3.");
    for (int round = 0; round <= ROUNDS; round++) {
        int y = TOP + HIGH * round;
        say("", EDGE, y + 16, !round ? "before" : round < N ? "%d: adds" : "%d: copies", round);
        tell(" Round %d:", round);
        memcpy(before, has, sizeof has);
        for (int q = 0; q < N; q++) {
            int left = (q + N - 1) % N, fresh = (left - round + 1 + 2 * N) % N; /* the chunk that came */
            if (!round) say("m", LEFT + BLOCK * q + 2 * CELL, TOP - 10, "rank %d", q);
            else has[q][fresh] = before[left][fresh] | (round < N ? before[q][fresh] : 0);
            for (int k = 0; k < N; k++) {
                double x = LEFT + BLOCK * q + CELL * k;
                int ranks = 0;
                if (!round) has[q][k] = 1 << q;
                for (int bit = 0; bit < N; bit++) ranks += has[q][k] >> bit & 1;
                box(round && k == fresh ? 1 : ranks == N ? 0 : -1, x, y, CELL, 23);
                say("m", x + CELL / 2.0, y + 16, "%d", ranks), tell("%s%d", k ? "" : " ", ranks);
                good = good && (round < ROUNDS || ranks == N);
            }
        }
        tell(".");
    }
    sample(1, EDGE, END + 18, "arrived in this round from the left"), sample(0, 280, END + 18, "complete");
    say("", EDGE, END + 41, "A number: how many ranks' numbers are in a chunk.");
    say("", EDGE, END + 62, "A rank sends %d chunks of S/%d: 2(n-1)/n S = %g S.", ROUNDS, N, (double)ROUNDS / N);
    return expect(good, "after 2(n-1) rounds every rank has the sum of all");
}

/* Which rank compares which keys with which queries: slices in order, and slices r and 2n-1-r on rank r (54, 55). */
static int draw_zigzag(void)
{
    static const char *const names[2] = {"slices in order", "slices r and 2n-1-r"};
    enum { N = 4, SLICES = 2 * N, TOKENS = 64, S = TOKENS / SLICES, CELL = 22, TOP = 84, END = TOP + CELL * SLICES };
    int good = 1;
    snprintf(page.title, sizeof page.title, "Causal ring attention: which rank has which work");
    say("", EDGE, END + 20, "A row is a slice of queries, the number in a square a rank.");
    say("", EDGE, END + 41, "Pairs of queries and keys of each rank, %d tokens:", TOKENS);
    for (int k = 0; k < 2; k++) {
        int x = 30 + 244 * k, pairs[N] = {0}, all = 0;
        say("", x, TOP - 36, "%s", names[k]), say("", x, TOP - 18, "keys of slice");
        tell("%s%s:", k ? " " : "", names[k]);
        for (int q = 0; q < SLICES; q++) {
            int owner = !k ? q / 2 : q < N ? q : SLICES - 1 - q;
            pairs[owner] += q * S * S + S * (S + 1) / 2; /* earlier slices, and its own */
            all += q * S * S + S * (S + 1) / 2;
            say("e", x - 6, TOP + CELL * q + 16, "%d", q), say("m", x + CELL * (q + 0.5), TOP - 3, "%d", q);
            tell(" slice %d on rank %d%s", q, owner, q + 1 < SLICES ? "," : ";");
            for (int key = 0; key <= q; key++) {
                box(owner, x + CELL * key, TOP + CELL * q, CELL, CELL);
                say("m", x + CELL * (key + 0.5), TOP + CELL * q + 16, "%d", owner);
            }
        }
        tell(" pairs of the ranks %d %d %d %d.", pairs[0], pairs[1], pairs[2], pairs[3]);
        say("", x, END + 62, "%d %d %d %d", pairs[0], pairs[1], pairs[2], pairs[3]);
        say("", x, END + 83, "busiest: %.2f times the mean", pairs[N - 1] * (double)N / all);
        for (int r = 0; r < N && k; r++) good = good && pairs[r] * N == all;
    }
    return expect(good, "slices from both ends give every rank the same work");
}

enum { LEAVES = 8, LEAF_LEFT = 72, LEAF = 50, LEAF_TOP = 178 };
static double node_x(int first, int last) { return LEAF_LEFT + LEAF * (first + last + 1) / 2.0; }
static double node_y(int first, int last) { return LEAF_TOP - 42 * log2(last - first + 1); }

/* The tree over data shards, from the folds of a rank that has all of them; owners, from plans of 1 to 3 ranks. */
static int draw_tree(void)
{
    dt_recipe r = dt_recipe_default();
    const dt_layout l = dt_layout_default();
    int owner[3][LEAVES], run[LEAVES][2] = {{0}}, sums = 0, leaf = -1; /* run: the shards that a set is the sum of */
    snprintf(page.title, sizeof page.title, "The gradient of %d data shards: one tree of sums", LEAVES);
    r.model = dt_model_gpt2("nano"), r.model.vocabulary = 256, r.batch = r.micro_batch = r.data_shards = LEAVES;
    for (int ranks = 1, rank = 0; ranks <= 3; rank = (rank + 1) % ranks, ranks += !rank) {
        dt_plan *plan = NULL;
        int64_t n = 0;
        const dt_instr *i = dt_plan_open(&plan, &r, &l, ranks, rank) ? NULL : dt_plan_program(plan, &n);
        if (!i) return dt_fail("draw"), 0;
        for (const dt_instr *end = i + n; i < end; i++) {
            int *to, *from;
            if (i->op == DT_LOAD) owner[ranks - 1][i->shard] = rank;
            if (ranks == 1 && i->op == DT_BACKWARD && i->shard != leaf)
                leaf = run[i->set][0] = run[i->set][1] = i->shard;
            if (ranks > 1 || i->op != DT_FOLD || i->bucket) continue;
            to = run[i->set], from = run[i->from], sums++;
            tell("%s%d-%d and %d-%d", sums > 1 ? ", " : "Sums of data shards: ", to[0], to[1], from[0], from[1]);
            path("line", "M%.1f %.1fL%.1f %.1fL%.1f %.1f", node_x(to[0], to[1]), node_y(to[0], to[1]),
                 node_x(to[0], from[1]), node_y(to[0], from[1]), node_x(from[0], from[1]), node_y(from[0], from[1]));
            to[1] = from[1];
            say("m", node_x(to[0], to[1]), node_y(to[0], to[1]) - 4, "+");
        }
        dt_plan_close(&plan);
    }
    for (int row = 0; row <= 3; row++) {
        say("", EDGE, LEAF_TOP + 16 + 28 * row, row > 1 ? "%d ranks" : row ? "%d rank" : "shard", row);
        for (int k = 0; k < LEAVES; k++) {
            box(row ? owner[row - 1][k] : -1, LEAF_LEFT + LEAF * k + 3, LEAF_TOP + 28 * row, LEAF - 6, 22);
            say("m", node_x(k, k), LEAF_TOP + 16 + 28 * row, "%d", row ? owner[row - 1][k] : k);
        }
    }
    say("", EDGE, LEAF_TOP + 134, "Rows below the shards: the rank that has each of them.");
    say("", EDGE, LEAF_TOP + 155, "Each row has the same tree, and so the same bits.");
    return expect(sums == LEAVES - 1 && run[0][1] == LEAVES - 1, "7 sums make one of 8 data shards");
}

/* ---- the program ---- */

static const struct picture {
    const char *name;
    int (*draw)(void);
} pictures[] = {{"gpipe", draw_gpipe}, {"1f1b", draw_1f1b}, {"interleaved", draw_interleaved},
                {"zero-bubble", draw_zero_bubble}, {"bubble", draw_bubble}, {"zero", draw_zero},
                {"stages", draw_stages}, {"mesh", draw_mesh}, {"ring", draw_ring}, {"zigzag", draw_zigzag},
                {"tree", draw_tree}, {"scaling", draw_scaling}, {"interval", draw_interval}};
enum { PICTURES = sizeof pictures / sizeof *pictures };

/* Draws into memory first: a picture that cannot be drawn leaves no file. 0: said why. */
static int write_picture(const struct picture *p, const char *folder)
{
    char name[4096], *body = NULL;
    size_t length = 0;
    FILE *f = NULL;
    int good, written = 0;
    memset(&page, 0, sizeof page);
    page.body = open_memstream(&body, &length);
    good = page.body && p->draw();
    if (!page.body || fclose(page.body)) good = expect(0, "there is memory for a picture");
    snprintf(name, sizeof name, "%s/%s.svg", folder, p->name);
    if (good && (f = fopen(name, "wb")) != NULL) {
        head(f), fprintf(f, "%s</svg>\n", body);
        written = cost_closed(f, name);
    }
    if (good && !written) fprintf(stderr, "draw: cannot write %s. Name a folder that exists after -o\n", name);
    free(body);
    return written;
}

static const char usage[] = "Usage: draw [NAME ..] -o DIR; without a name all pictures\n";

int main(int argc, char **argv)
{
    const char *folder = NULL;
    int wanted[PICTURES] = {0}, named = 0, good = 1;
    cost_begin();
    for (int i = 1; i < argc; i++) {
        int k = 0, is_folder = !strcmp(argv[i], "-o") && i + 1 < argc;
        if (!strcmp(argv[i], "--help")) return fputs(usage, stdout) < 0;
        while (k < PICTURES && strcmp(argv[i], pictures[k].name)) k++;
        if (is_folder) folder = argv[++i];
        else if (k < PICTURES) wanted[k] = named = 1;
        else {
            fprintf(stderr, "draw: there is no picture '%s'. Choose from", argv[i]);
            for (k = 0; k < PICTURES; k++) fprintf(stderr, " %s", pictures[k].name);
            return fprintf(stderr, "\n"), 2;
        }
    }
    if (!folder) return fputs(usage, stderr), 2;
    for (int k = 0; k < PICTURES; k++)
        if (wanted[k] || !named) good = write_picture(&pictures[k], folder) && good;
    return !good;
}
