/* Grader of lab 5: legal orders, the bubble of 1F1B, and micro-batches in flight. A forward takes 1, a backward 2. */
#include "../grade.h"
#include "lab.h"

enum { STAGES = 8, MICROS = 32, WORKS = 2 * MICROS, SHOWN = 34, DRAWN = 3 };

typedef struct works {
    lab_work list[STAGES][WORKS + 1]; /* one more: is anything written past the end? */
} works;
typedef struct task {
    int stages, micros;
    lab_work (*list)[WORKS + 1];
    int begin[STAGES][WORKS]; /* when a work begins */
    int total;
} task;

/* in: stages and micros. */
static void program(lab_comm *c, void *in, void *out)
{
    const int stages = ((int *)in)[0], micros = ((int *)in)[1];
    works *w = out;
    for (int s = 0; s < stages; s++) {
        for (int i = 0; i <= WORKS; i++) w->list[s][i] = (lab_work){FORWARD, -1};
        LAB_ITS(schedule)(stages, micros, s, w->list[s]);
    }
}

/* ---- legal ---- */

static const char *name(const lab_work *w) { return w->kind == FORWARD ? "forward" : "backward"; }

/* Every work once on each stage, and the forward first. */
static int complete(const task *t)
{
    for (int s = 0; s < t->stages; s++) {
        int done[2][MICROS] = {{0}};
        for (int i = 0; i < 2 * t->micros; i++) {
            const lab_work *w = &t->list[s][i];
            if (w->micro < 0 || w->micro >= t->micros || (w->kind != FORWARD && w->kind != BACKWARD))
                return lab_wrong("stage %d has no work at [%d]: write the works [0] to [%d]", s, i, 2 * t->micros - 1);
            if (done[w->kind][w->micro]++)
                return lab_wrong("stage %d does the %s of micro-batch %d twice", s, name(w), w->micro);
            if (w->kind == BACKWARD && !done[FORWARD][w->micro])
                return lab_wrong("stage %d does the backward of micro-batch %d before its forward", s, w->micro);
        }
        if (t->list[s][2 * t->micros].micro != -1)
            return lab_wrong("stage %d has more than %d works: it writes behind the end of the list", s, 2 * t->micros);
    }
    return 1;
}

/* When the input of a work is there: end[kind][stage][micro], or -1. */
static int arrives(const task *t, int end[2][STAGES][MICROS], int s, const lab_work *w)
{
    if (w->kind == FORWARD) return s ? end[FORWARD][s - 1][w->micro] : 0;
    return s == t->stages - 1 ? end[FORWARD][s][w->micro] : end[BACKWARD][s + 1][w->micro];
}

static void stuck(const task *t, const int *next)
{
    size_t at = (size_t)snprintf(lab_verdict, sizeof lab_verdict, "deadlock: ");
    for (int s = 0; s < t->stages && at < sizeof lab_verdict; s++) {
        const lab_work *w = &t->list[s][next[s]];
        int from = w->kind == FORWARD ? s - 1 : s + 1;
        if (next[s] == 2 * t->micros) continue;
        at += (size_t)snprintf(lab_verdict + at, sizeof lab_verdict - at,
                               "stage %d waits for the %s of micro-batch %d on stage %d; ", s, name(w), w->micro, from);
    }
}

/* Starts all work as early as possible; messages take no time. 0: the stages wait for each other forever. */
static int runs(task *t)
{
    int end[2][STAGES][MICROS], next[STAGES] = {0}, free_at[STAGES] = {0}, done = 0;
    memset(end, -1, sizeof end), t->total = 0;
    for (int moved = 1; moved;) {
        moved = 0;
        for (int s = 0; s < t->stages; s++)
            for (; next[s] < 2 * t->micros; next[s]++, moved = 1, done++) {
                const lab_work *w = &t->list[s][next[s]];
                int at = arrives(t, end, s, w);
                if (at < 0) break;
                if (at < free_at[s]) at = free_at[s];
                t->begin[s][next[s]] = at;
                free_at[s] = end[w->kind][s][w->micro] = at + (w->kind == FORWARD ? 1 : 2);
                if (free_at[s] > t->total) t->total = free_at[s];
            }
    }
    if (done == 2 * t->micros * t->stages) return 1;
    stuck(t, next);
    return 0;
}

/* ---- tests ---- */

static int in_flight(const task *t, int s)
{
    int now = 0, most = 0;
    for (int i = 0; i < 2 * t->micros; i++) {
        now += t->list[s][i].kind == FORWARD ? 1 : -1;
        if (now > most) most = now;
    }
    return most;
}

static void memory(const task *t)
{
    int stage = -1, has = 0, most = 0;
    for (int s = 0; s < t->stages && stage < 0; s++) {
        int after = t->stages - s;
        most = after < t->micros ? after : t->micros, has = in_flight(t, s);
        if (has > most) stage = s;
    }
    if (!lab_ok(stage < 0, "memory, p = %d, m = %d: stage s keeps at most p - s micro-batches", t->stages, t->micros))
        lab_note("stage %d keeps %d, at most %d", stage, has, most);
}

/* One line per stage, up to time SHOWN; a unit of time is three characters. */
static void draw(const task *t)
{
    for (int s = 0; s < t->stages; s++) {
        char line[3 * SHOWN + 4];
        memset(line, ' ', sizeof line);
        for (int i = 0; i < 2 * t->micros; i++)
            for (int k = 0; k < (t->list[s][i].kind == FORWARD ? 1 : 2) && t->begin[s][i] + k < SHOWN; k++) {
                char cell[16];
                snprintf(cell, sizeof cell, "%c%-2d", "FB"[t->list[s][i].kind], t->list[s][i].micro);
                memcpy(line + 3 * (t->begin[s][i] + k), cell, 3);
            }
        line[t->total < SHOWN ? 3 * t->total : 3 * SHOWN] = 0;
        lab_note("stage %d  %s", s, line);
    }
}

static void grade(int stages, int micros)
{
    static works w;
    static task t;
    int best = 3 * (micros + stages - 1), in[] = {stages, micros}, legal;
    memset(&t, 0, sizeof t);
    t.stages = stages, t.micros = micros, t.list = w.list;
    legal = lab_run(1, in, sizeof in, &w, sizeof w) && complete(&t) && runs(&t);
    if (!legal) lab_fails();
    lab_ok(legal, "legal, p = %d, m = %d: every stage does all works and gets what it waits for", stages, micros);
    lab_ok(t.total == best, "bubble, p = %d, m = %d: %.1f %%, (p-1)/(m+p-1) is %.1f %%", stages, micros,
           100 - 300.0 * micros / t.total, 100.0 * (stages - 1) / (micros + stages - 1));
    memory(&t);
    if (legal && stages == 4 && micros == 8) draw(&t);
}

int main(int argc, char **argv)
{
    static const int cases[][2] = {{1, 1}, {1, 4}, {2, 2}, {2, 8}, {3, 4}, {4, 2}, {4, 8}, {5, 7}, {8, 32}};
    lab_begin("5_pipeline", program, argc, argv);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) grade(cases[i][0], cases[i][1]);
    for (int i = 0; i < DRAWN; i++) grade(lab_draw(2, STAGES), lab_draw(9, MICROS));
    return lab_end(0, NULL);
}
