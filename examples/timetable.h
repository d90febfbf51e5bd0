/* timetable.h: when the stages of a pipeline work, if messages take no time: plans (dt_plan_open) on a clock.
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

/* The work of a stage on a unit, in one of the stage's runs of segments. WEIGHTS is zero-bubble's half of backward. */
enum { WORK_FORWARD, WORK_BACKWARD, WORK_WEIGHTS };
typedef struct timetable_work {
    int32_t kind, unit, chunk;
} timetable_work;

typedef struct timetable {
    int64_t stages, chunks, units, length; /* length: works of a stage */
    timetable_work *list;                  /* (stages, length) */
    int64_t *begin;                        /* (stages, length) */
    int64_t total;                         /* when the last work ends; -1: the stages wait for each other forever */
    double idle;                           /* share of the time that stages wait */
    char *text;
} timetable;

static void timetable_close(timetable *t)
{
    free(t->list);
    free(t->begin);
    free(t->text);
    memset(t, 0, sizeof *t);
}

static int64_t timetable_takes(const timetable *t, int kind)
{
    return kind == WORK_BACKWARD && t->length == 2 * t->units * t->chunks ? 2 : 1;
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
                const timetable_work *w = &t->list[s * t->length + next[s]];
                int64_t run = w->chunk * t->stages + s, at = run * t->units + w->unit, need = 0;
                if (w->kind == WORK_FORWARD && run) need = end[at - t->units];
                if (w->kind == WORK_BACKWARD) need = end[run == runs - 1 ? at : all + at + t->units];
                if (w->kind == WORK_WEIGHTS) need = end[all + at];
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
        const timetable_work *w = &t->list[i];
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

/* The works of a stage, in the order of its plan: consecutive instructions of one kind, unit and chunk are one. */
static dt_result timetable_works(const dt_layout *l, int64_t units, int64_t stage, timetable_work *list,
                                 int64_t *count)
{
    dt_recipe r = dt_recipe_default();
    dt_plan *plan = NULL;
    int64_t instructions = 0;
    const dt_instr *i = NULL;
    dt_result e;
    r.model = dt_model_gpt2("nano");
    r.model.layers = l->pp * l->chunks, r.model.heads = 1, r.model.width = r.model.vocabulary = r.sequence = 4;
    r.batch = units, r.micro_batch = r.data_shards = 1;
    e = dt_plan_open(&plan, &r, l, (int)l->pp, (int)stage);
    if (!e) i = dt_plan_program(plan, &instructions);
    *count = 0;
    for (const dt_instr *end = i + instructions; i < end; i++) {
        timetable_work w = {i->op == DT_FORWARD ? WORK_FORWARD : i->op == DT_BACKWARD ? WORK_BACKWARD : WORK_WEIGHTS,
                            i->micro, i->chunk};
        if (i->op != DT_FORWARD && i->op != DT_BACKWARD && i->op != DT_WEIGHTS) continue;
        if (!*count || memcmp(&list[*count - 1], &w, sizeof w)) list[(*count)++] = w;
    }
    if (!e) dt_plan_close(&plan);
    return e;
}

static dt_result timetable_open(timetable *t, const dt_layout *l, int64_t units)
{
    int64_t all, *scratch = NULL;
    dt_result e = DT_OK;
    memset(t, 0, sizeof *t);
    t->stages = l->pp, t->units = units, t->chunks = l->pipeline == DT_INTERLEAVED && l->pp > 1 ? l->chunks : 1;
    all = t->stages * t->chunks * units;
    t->list = (timetable_work *)calloc((size_t)(3 * all), sizeof *t->list);
    t->begin = (int64_t *)calloc((size_t)(3 * all), sizeof *t->begin);
    scratch = (int64_t *)calloc((size_t)(3 * all + 2 * t->stages), sizeof *scratch);
    if (!t->list || !t->begin || !scratch) e = DT_E_MEMORY;
    for (int64_t s = 0; s < t->stages && !e; s++)
        e = timetable_works(l, units, s, t->list + s * t->length, &t->length);
    if (!e) timetable_run(t, scratch, scratch + 3 * all, scratch + 3 * all + t->stages);
    if (!e && t->total > 0) t->text = (char *)malloc((size_t)(t->stages * (10 + 3 * t->total) + 1));
    if (!e && t->total > 0 && !t->text) e = DT_E_MEMORY;
    if (t->text) timetable_draw(t);
    free(scratch);
    if (e) timetable_close(t);
    return e;
}
