/* timetable.h: when the stages of a pipeline work, if messages take no time: dt_pipeline_order on a clock.
 *
 *     timetable t;
 *     e = timetable_open(&t, &layout, units);            layout.pp, .pipeline and .chunks; units of work
 *     printf("%.1f %% idle\n%s", 100 * t.idle, t.text);  a picture, one line per stage
 *     timetable_close(&t);
 *
 * A forward takes 1 and a backward 2; with zero-bubble each half of a backward takes 1. In the picture 1 is three
 * characters wide: F2 is the forward of unit 2, B backward, W the gradients of weights; odd chunks in small letters.
 * Include it after dtrain.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct timetable {
    int64_t stages, chunks, units, length; /* length: works of a stage */
    dt_work *work;                         /* (stages, length) */
    int64_t *begin;                        /* (stages, length) */
    int64_t total;                         /* when the last work ends; -1: the stages wait for each other forever */
    double idle;                           /* share of the time that stages wait */
    char *text;
} timetable;

static void timetable_close(timetable *t)
{
    free(t->work);
    free(t->begin);
    free(t->text);
    memset(t, 0, sizeof *t);
}

static int64_t timetable_takes(const timetable *t, int kind)
{
    return kind == DT_WORK_BACKWARD && t->length == 2 * t->units * t->chunks ? 2 : 1;
}

/* Starts all work as early as possible. end (kinds, runs of segments, units): when it ends, or -1. */
static void timetable_run(timetable *t, int64_t *end, int64_t *next, int64_t *free_at)
{
    int64_t runs = t->stages * t->chunks, all = runs * t->units, done = 0;
    for (int64_t i = 0; i < 3 * all; i++) end[i] = -1;
    for (int moved = 1; moved;) {
        moved = 0;
        for (int64_t s = 0; s < t->stages; s++)
            for (; next[s] < t->length; next[s]++, moved = 1, done++) {
                const dt_work *w = &t->work[s * t->length + next[s]];
                int64_t run = w->chunk * t->stages + s, at = run * t->units + w->unit, need = 0;
                if (w->kind == DT_WORK_FORWARD && run) need = end[at - t->units];
                if (w->kind == DT_WORK_BACKWARD) need = end[run == runs - 1 ? at : all + at + t->units];
                if (w->kind == DT_WORK_WEIGHTS) need = end[all + at];
                if (need < 0) break;
                if (need < free_at[s]) need = free_at[s];
                t->begin[s * t->length + next[s]] = need;
                free_at[s] = end[w->kind * all + at] = need + timetable_takes(t, w->kind);
                if (free_at[s] > t->total) t->total = free_at[s];
            }
    }
    if (done < t->length * t->stages) t->total = -1;
    t->idle = 1.0 - 3.0 * (double)(t->units * t->chunks) / (double)t->total;
}

static void timetable_draw(timetable *t)
{
    int64_t line = 9 + 3 * t->total + 1;
    char cell[32];
    memset(t->text, ' ', (size_t)(t->stages * line));
    for (int64_t i = 0; i < t->stages * t->length; i++) {
        const dt_work *w = &t->work[i];
        char *row = t->text + i / t->length * line;
        memcpy(row, cell, (size_t)snprintf(cell, sizeof cell, "stage %d", (int)(i / t->length)));
        row[line - 1] = '\n';
        for (int64_t k = 0; k < timetable_takes(t, w->kind); k++) {
            snprintf(cell, sizeof cell, "%c%-2d", (w->chunk % 2 ? "fbw" : "FBW")[w->kind], (int)(w->unit % 100));
            memcpy(row + 9 + 3 * (t->begin[i] + k), cell, 3);
        }
    }
    t->text[t->stages * line] = 0;
}

static dt_result timetable_open(timetable *t, const dt_layout *l, int64_t units)
{
    int64_t all, *scratch = NULL;
    dt_result e = DT_OK;
    memset(t, 0, sizeof *t);
    t->stages = l->pp, t->units = units, t->chunks = l->pipeline == DT_INTERLEAVED ? l->chunks : 1;
    all = t->stages * t->chunks * units;
    t->work = (dt_work *)calloc((size_t)(3 * all), sizeof *t->work);
    t->begin = (int64_t *)calloc((size_t)(3 * all), sizeof *t->begin);
    scratch = (int64_t *)calloc((size_t)(3 * all + 2 * t->stages), sizeof *scratch);
    if (!t->work || !t->begin || !scratch) e = DT_E_MEMORY;
    for (int64_t s = 0; s < t->stages && !e; s++)
        e = dt_pipeline_order(l, units, s, t->work + s * t->length, &t->length);
    if (!e) timetable_run(t, scratch, scratch + 3 * all, scratch + 3 * all + t->stages);
    if (!e && t->total > 0 && !(t->text = (char *)malloc((size_t)(t->stages * (10 + 3 * t->total) + 1)))) e = DT_E_MEMORY;
    if (t->text) timetable_draw(t);
    free(scratch);
    if (e) timetable_close(t);
    return e;
}
