/* calibrate.h: measures the machine model of simulate.h here: one rank, whose ops are timed in small models of several
 * shapes, and two ranks that exchange messages, in one node and between two emulated nodes. Part of simulate.c. */
#ifndef CALIBRATE_H
#define CALIBRATE_H

#include "../link.h"
#include "simulate.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALIBRATE_SHAPES = 24, CALIBRATE_STEPS = 9, CALIBRATE_SIZES = 7 };

/* What the shapes showed of each rate: 1, FLOPs and bytes of a call, and its seconds. */
typedef struct calibration {
    double call[SIM_RATES][CALIBRATE_SHAPES][3], seconds[SIM_RATES][CALIBRATE_SHAPES];
    int count[SIM_RATES];
} calibration;

static dt_result calibrate_fetch(void *user, dt_split part, int64_t index, void *input, void *target)
{
    int64_t n = ((const dt_source *)user)->inputs;
    (void)part;
    for (int64_t i = 0; i < n; i++) {
        ((int32_t *)input)[i] = (int32_t)((index * 7919 + i * 31) % 251);
        ((int32_t *)target)[i] = (int32_t)((index * 7919 + i * 31 + 31) % 251);
    }
    return DT_OK;
}

/* Gives a recipe tokens from nowhere. *source must live as long as the trainer. */
static void calibrate_source(dt_recipe *recipe, dt_source *source)
{
    memset(source, 0, sizeof *source);
    source->fetch = calibrate_fetch, source->user = source, source->samples[DT_TRAIN] = 1 << 20;
    source->inputs = source->targets = recipe->sequence, source->input_type = source->target_type = DT_I32;
    recipe->source = source;
}

typedef struct calibrate_shape {
    const char *model;
    int64_t layers, heads, width, sequence, batch, experts;
} calibrate_shape;
static const calibrate_shape calibrate_shapes[] = {
    {"nano", 2, 2, 32, 32, 4, 0},       {"nano", 2, 2, 64, 64, 4, 0},         {"nano", 3, 4, 96, 64, 16, 0},
    {"nano", 2, 4, 128, 128, 4, 0},     {"nano", 2, 4, 128, 64, 32, 0},       {"nano", 2, 4, 192, 128, 8, 0},
    {"nano", 2, 8, 256, 128, 8, 0},     {"nano", 2, 8, 384, 64, 8, 0},        {"nano", 1, 2, 64, 256, 4, 0},
    {"nano", 2, 4, 128, 16, 32, 0},     {"nano", 1, 4, 128, 512, 4, 0},
    {"llama-nano", 2, 4, 64, 64, 8, 0}, {"llama-nano", 2, 4, 128, 128, 8, 0}, {"llama-nano", 2, 8, 256, 64, 8, 0},
    {"nano", 2, 2, 64, 64, 8, 4},       {"nano", 2, 4, 128, 64, 16, 4}};

/* A recipe of a shape, and a layout of one quiet rank. *source must live as long as the trainer. */
static dt_result calibrate_recipe(const calibrate_shape *s, const dt_recipe *like, dt_source *source, dt_recipe *recipe,
                                  dt_layout *layout)
{
    dt_result r;
    *recipe = dt_recipe_default(), *layout = dt_layout_default();
    if ((r = dt__model_named(s->model, &recipe->model)) != DT_OK) return r;
    recipe->model.layers = s->layers, recipe->model.heads = s->heads, recipe->model.width = s->width;
    recipe->model.kv_heads = 0, recipe->model.experts = s->experts, recipe->model.vocabulary = 256;
    recipe->precision = like->precision, recipe->numerics = like->numerics;
    recipe->sequence = s->sequence, recipe->batch = s->batch, recipe->micro_batch = s->batch, recipe->data_shards = 4;
    recipe->validation = 0, recipe->steps = 1000000;
    calibrate_source(recipe, source);
    layout->threads = 1, layout->overlap = DT_OVERLAP_OFF;
    layout->output.quiet = layout->output.events = 1, layout->output.sample_length = 0;
    return DT_OK;
}

static int calibrate_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double calibrate_median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, calibrate_by_value);
    return x[n / 2];
}

/* seen: calls, FLOPs and bytes of all. */
static void calibrate_add(calibration *c, int rate, const double *seen, double seconds)
{
    int n = c->count[rate];
    if (seen[0] <= 0 || seconds <= 0 || n == CALIBRATE_SHAPES) return;
    for (int i = 0; i < 3; i++) c->call[rate][n][i] = seen[i] / seen[0];
    c->seconds[rate][n] = seconds / seen[0], c->count[rate]++;
}

/* Counts calls, FLOPs and bytes of the ops of a segment's instruction. */
static void calibrate_ops(const dt__segment_plan *s, const dt_instr *i, double (*seen)[3])
{
    int32_t from = i->op == DT_FORWARD ? 0 : s->forward_count, count = from ? s->backward_count : s->forward_count;
    for (const int32_t *id = s->order + from; id < s->order + from + count; id++) {
        double pairs, *n = seen[s->g->nodes[*id].op];
        n[0]++, n[1] += dt__node_flops(s->g, *id, 0), n[2] += sim_bytes(s, *id, &pairs);
    }
}

/* One rank trains a shape for some steps. *step: median seconds. c NULL: only that. */
static dt_result calibrate_train(const calibrate_shape *shape, const dt_recipe *like, calibration *c, double *step)
{
    static double spent[SIM_RATES][CALIBRATE_STEPS], by_op[DT__OP_COUNT + 1];
    double seen[SIM_RATES][3], whole[CALIBRATE_STEPS];
    dt_source source;
    dt_recipe recipe;
    dt_layout layout;
    dt_trainer *t = NULL;
    int64_t count = 0;
    const dt_instr *list;
    dt_result r = calibrate_recipe(shape, like, &source, &recipe, &layout);
    if (!r) r = dt_trainer_open(&t, &recipe, &layout);
    list = r ? NULL : dt_plan_program(dt_trainer_plan(t), &count);
    for (int n = -1; n < CALIBRATE_STEPS && !r; n++) {
        dt_step_info info = dt_step_info_zero();
        double sum = 0;
        memset(by_op, 0, sizeof by_op), memset(seen, 0, sizeof seen);
        t->e.env.by_op = c ? by_op : NULL;
        r = dt_trainer_step(t, &info);
        if (n < 0) continue;
        for (int k = SIM_UPDATE; k < SIM_RATES; k++) spent[k][n] = 0;
        for (int64_t k = 0; k < count; k++) {
            const dt_instr *i = &list[k];
            double when[2] = {0, 0};
            int rate = dt__is_work(i)                          ? SIM_SEGMENT
                       : i->op == DT_UPDATE                    ? SIM_UPDATE
                       : i->op == DT_FOLD || i->op == DT_TOTAL ? SIM_FOLD
                                                               : SIM_STEP;
            dt_trainer_event(t, k, when);
            if (dt__is_work(i)) calibrate_ops(t->e.p.net.segments[i->segment].plan, i, seen);
            if (rate != SIM_STEP) spent[rate][n] += when[1] - when[0], sum += when[1] - when[0];
            seen[rate][0]++, seen[rate][2] += (double)i->touched;
        }
        for (int k = 0; k < DT__OP_COUNT; k++) spent[k][n] = by_op[k], spent[SIM_SEGMENT][n] -= by_op[k];
        spent[SIM_STEP][n] = info.seconds - sum, whole[n] = info.seconds;
    }
    seen[SIM_STEP][0] = 1, seen[SIM_STEP][2] = (double)(recipe.batch * recipe.sequence), seen[SIM_SEGMENT][2] = 0;
    for (int k = 0; k < SIM_RATES && c && !r; k++)
        calibrate_add(c, k, seen[k], calibrate_median(spent[k], CALIBRATE_STEPS));
    *step = r ? 0 : calibrate_median(whole, CALIBRATE_STEPS);
    dt_trainer_close(&t);
    return r;
}

/* Solves the normal equations of the terms in a set (a bit each) for relative errors; w: 0 for the others. Returns the
 * sum of squared errors; INFINITY where a weight would be below 0. */
static double calibrate_solve(const double (*call)[3], const double *seconds, int count, int set, double w[3])
{
    double a[3][4] = {{0}}, sum = 0;
    for (int n = 0; n < count; n++)
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 4; j++)
                a[i][j] += call[n][i] / seconds[n] * (j < 3 ? call[n][j] / seconds[n] : 1);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 4; j++)
            if (!(set >> i & 1) || (j < 3 && !(set >> j & 1))) a[i][j] = i == j;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            double times = a[k][i] / a[i][i];
            for (int j = i; j < 4 && k != i; j++) a[k][j] -= times * a[i][j];
        }
    for (int i = 0; i < 3; i++)
        if (!((w[i] = a[i][3] / a[i][i]) >= 0)) return INFINITY;
    for (int n = 0; n < count; n++)
        sum += pow(1 - (w[0] * call[n][0] + w[1] * call[n][1] + w[2] * call[n][2]) / seconds[n], 2);
    return sum;
}

/* Fits what the shapes showed, by terms of 0 and more. What was not seen costs what an addition of as many bytes does. */
static void calibrate_fit(const calibration *c, sim_machine *m)
{
    for (int k = 0; k < SIM_RATES; k++) {
        double least = INFINITY, w[3];
        for (int set = 1; set < 8; set++) {
            double off = calibrate_solve(c->call[k], c->seconds[k], c->count[k], set, w);
            if (off < least) least = off, m->rate[k].each = w[0], m->rate[k].flop = w[1], m->rate[k].byte = w[2];
        }
    }
    for (int k = 0; k < DT__OP_COUNT; k++)
        if (!c->count[k]) m->rate[k] = m->rate[DT__OP_ADD];
    m->peak = 1 / m->rate[DT__OP_MATMUL].flop;
}

/* How much longer a step takes when another process trains, too: a copy of this one. */
static dt_result calibrate_busy(const dt_recipe *like, sim_machine *m)
{
    const calibrate_shape *shape = &calibrate_shapes[5];
    double alone, with, again;
    pid_t other;
    dt_result r = calibrate_train(shape, like, NULL, &alone);
    if (r) return r;
    if ((other = fork()) == 0)
        for (;;)
            if (calibrate_train(shape, like, NULL, &again)) _exit(1);
    if (other < 0) return dt__error(DT_E_SYSTEM, "cannot start a second process to calibrate with");
    r = calibrate_train(shape, like, NULL, &with);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    if (!r) r = calibrate_train(shape, like, NULL, &again);
    m->busy = fmax(1, with / fmin(alone, again));
    return r;
}

/* ---- two ranks ---- */

/* What each of two ranks does, to time messages of some floats: half a round trip; all-reduces. */
static double calibrate_message(dt_comm *c, float *data, int64_t floats, int all, int times)
{
    double start;
    int rank = dt_comm_rank(c);
    dt_barrier(c);
    start = dt__now();
    for (int n = 0; n < times; n++) {
        if (all) dt_all_reduce(c, data, floats, DT_MAX);
        else if ((n + rank) & 1) dt_recv(c, data, floats, 1 - rank);
        else dt_send(c, data, floats, 1 - rank);
    }
    return (dt__now() - start) / times;
}

/* Two ranks print a line of a calibration: a link's four numbers. The process is one of them. */
static int calibrate_links(const char *name)
{
    double size[2][CALIBRATE_SIZES], seconds[2][CALIBRATE_SIZES], tries[5];
    dt_link fit[2];
    dt_comm *c = NULL;
    void *data = NULL;
    int root;
    if (dt_comm_open(&c, NULL, NULL) || dt_comm_alloc(c, 8 << 20, &data)) return dt_fail("the links");
    root = !dt_comm_rank(c);
    memset(data, 0, 8 << 20);
    for (int all = 0; all < 2; all++) {
        for (int k = 0; k < CALIBRATE_SIZES; k++) {
            int64_t floats = k ? (int64_t)4096 << (k - 1) * 3 / 2 : 16;
            int times = floats > 100000 ? 6 : floats > 10000 ? 40 : 300;
            for (int n = 0; n < 5; n++) tries[n] = calibrate_message(c, (float *)data, floats, all, times);
            size[all][k] = 4.0 * (double)floats, seconds[all][k] = calibrate_median(tries, 5);
        }
        fit[all] = dt_link_fit(size[all], seconds[all], CALIBRATE_SIZES);
    }
    if (root) printf("%s %.6g %.6g %.6g %.6g\n", name, fit[0].alpha, fit[0].beta, fit[1].alpha / 2, fit[1].beta);
    dt_comm_close(&c);
    return 0;
}

/* Runs this program again as two ranks, and reads their line. */
static dt_result calibrate_link(const char *self, int far, sim_link *l)
{
    char command[600], line[200] = "";
    FILE *f;
    snprintf(command, sizeof command, "'%s' --links %s --ranks 2%s", self, far ? "far" : "near",
             far ? " --nodes 2" : "");
    f = popen(command, "r");
    if (f && !fgets(line, sizeof line, f)) *line = 0;
    if (!f || pclose(f) || sscanf(line, "%*s %lf %lf %lf %lf", &l->alpha, &l->beta, &l->hop, &l->beta_all) != 4)
        return dt__error(DT_E_SYSTEM, "two ranks could not measure their link: run %s", command);
    return DT_OK;
}

static dt_result calibrate(const char *self, const dt_recipe *like, sim_machine *m)
{
    static calibration c;
    double step;
    dt_result r = DT_OK;
    memset(m, 0, sizeof *m), memset(&c, 0, sizeof c);
    m->serial = m->gpus = 1, m->gb = m->dollars = (double)NAN;
    for (size_t k = 0; k < sizeof calibrate_shapes / sizeof *calibrate_shapes && !r; k++)
        r = calibrate_train(&calibrate_shapes[k], like, &c, &step);
    if (!r) calibrate_fit(&c, m), r = calibrate_busy(like, m);
    for (int far = 0; far < 2 && !r; far++) r = calibrate_link(self, far, &m->link[far]);
    return r;
}

#endif
