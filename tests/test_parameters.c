/* test_parameters.c: where a rank is in the mesh of an open trainer, and which elements of each parameter it holds. In
 * every layout the ranks' own elements together are the parameters that one rank alone has, and no rank holds more than
 * its layout says. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/prose.h"
#include "tap.h"

#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 2, LARGEST = 65536 };

/* The largest over all ranks, where a rank that does not hold an element has -inf. */
static dt_result together(dt_trainer *t, const char *name, int64_t n, float *values, int64_t *held, dt__sha256 *h)
{
    dt_result r;
    const float *whole;
    int64_t count;
    for (int64_t i = 0; i < n; i++) values[i] = -__builtin_inff();
    r = dt_trainer_own(t, name, values, held);
    if (!r) r = dt_all_reduce(t->comm, values, n, DT_MAX);
    if (!r && *held == n && (whole = dt_trainer_parameter(t, name, &count)) != NULL)
        r = count == n && !memcmp(whole, values, 4 * (size_t)n) ? DT_OK : DT_E_DATA;
    dt__sha256_add(h, values, 4 * n);
    return r;
}

/* A rank of a run: prints the hash of all parameters, and for each rank its mesh and its share of the elements. */
static int rank_main(dt_recipe *recipe, dt_layout *layout)
{
    static float values[LARGEST];
    dt_trainer *t = NULL;
    dt_step_info info = dt_step_info_zero();
    dt_shape shape;
    dt_mesh m;
    dt__sha256 h;
    char hash[65];
    const char *name;
    float line[5] = {0}, all[5 * 16];
    int64_t held, total = 0;
    dt_result r = dt_trainer_open(&t, recipe, layout);
    if (!r) r = dt_trainer_run(t, &info);
    if (r) return dt_trainer_close(&t), dt_fail("rank");
    dt__sha256_begin(&h);
    for (int64_t i = 0; (name = dt_trainer_parameter_at(t, i, &shape)) != NULL && !r; i++) {
        r = together(t, name, dt_shape_count(shape), values, &held, &h);
        total += held;
    }
    dt__sha256_end(&h, hash);
    if (!r && dt_trainer_own(t, "nothing", values, &held) != DT_E_USAGE) r = DT_E_DATA;
    m = dt_plan_mesh(dt_trainer_plan(t));
    for (int i = 0; i < 4; i++) line[i] = (float)(100 * m.size[i] + m.at[i]);
    line[4] = (float)total;
    if (!r) r = dt_all_gather(t->comm, line, all, 5);
    if (!r && dt_trainer_is_root(t)) {
        printf("sha256 %s\n", hash);
        for (int i = 0; i < dt_comm_size(t->comm); i++, printf("\n"))
            for (int k = 0; k < 5; k++) printf("%s%.0f", k ? " " : "", (double)all[5 * i + k]);
    }
    dt_trainer_close(&t);
    return r ? dt_fail("rank") : 0;
}

static int run_job(const char *self, const char *options, char *text, size_t size)
{
    char command[1024];
    size_t n;
    FILE *f;
    snprintf(command, sizeof command, "'%s' train --data test_parameters.%d.txt --quiet --threads 1 --sample-length 0 "
             "--model nano --batch 8 --sequence 16 --steps %d --validation 0 --tensor-shards 2 --experts 2 %s 2>&1", self,
             (int)getpid(), (int)STEPS, options);
    f = popen(command, "r");
    if (!f) tap_bail("no job");
    n = fread(text, 1, size - 1, f);
    text[n] = 0;
    return pclose(f);
}

int main(int argc, char **argv)
{
    /* Layout; size and place on the axes of data, pipeline, tensor, context of the last rank; share of the elements that
     * all ranks hold together, in numbers of whole models, from and to. */
    static const struct { const char *options; int size[4], at[4]; double from, to; } job[] = {
        {"", {1, 1, 1, 1}, {0, 0, 0, 0}, 1, 1},
        {"--ranks 2", {2, 1, 1, 1}, {1, 0, 0, 0}, 2, 2},
        {"--ranks 2 --zero 3", {2, 1, 1, 1}, {1, 0, 0, 0}, 1, 1},
        {"--ranks 2 --tp 2", {1, 1, 2, 1}, {0, 0, 1, 0}, 1.001, 1.5},
        {"--ranks 2 --pp 2", {1, 2, 1, 1}, {0, 1, 0, 0}, 1, 1.5},
        {"--ranks 2 --ep 2", {2, 1, 1, 1}, {1, 0, 0, 0}, 1.001, 1.999},
        {"--ranks 4 --tp 2 --pp 2", {1, 2, 2, 1}, {0, 1, 1, 0}, 1.001, 1.9},
        {"--ranks 4 --tp 2 --zero 3", {2, 1, 2, 1}, {1, 0, 1, 0}, 1.001, 1.5},
        {"--ranks 4 --tp 2 --order TPD", {2, 1, 2, 1}, {1, 0, 1, 0}, 2.001, 3},
    };
    char text[4096], alone[80] = "", name[64];
    double whole = 0;
    if (argc > 1 && !strcmp(argv[1], "train")) {
        dt_recipe recipe = dt_recipe_default();
        dt_layout layout = dt_layout_default();
        if (dt_launch(&argc, &argv) || dt_args(&argc, &argv, &recipe, &layout)) return dt_fail("rank");
        return rank_main(&recipe, &layout);
    }
    snprintf(name, sizeof name, "test_parameters.%d.txt", (int)getpid());
    if (prose_generate(name, 20000, 1)) tap_bail("%s", dt_last_error());
    for (size_t i = 0; i < sizeof job / sizeof *job; i++) {
        int status = run_job(argv[0], job[i].options, text, sizeof text), lines = 0, fits = 1, value[4] = {0};
        double total = 0, held = 0;
        char *at = strchr(text, '\n');
        if (!i) snprintf(alone, sizeof alone, "%.71s", text);
        if (!tap_ok(!status && at && strlen(alone) == 71 && !strncmp(text, alone, 71), "%s: the ranks' elements are the "
                    "parameters", *job[i].options ? job[i].options : "1 rank"))
            tap_note("%s", text);
        for (; at && sscanf(at, "%d %d %d %d %lf", &value[0], &value[1], &value[2], &value[3], &held) == 5; lines++) {
            total += held;
            at = strchr(at + 1, '\n');
        }
        if (!i) whole = total;
        for (int k = 0; k < 4; k++) fits &= value[k] == 100 * job[i].size[k] + job[i].at[k];
        tap_ok(fits && lines == job[i].size[0] * job[i].size[1] * job[i].size[2] * job[i].size[3], "  its mesh");
        tap_ok(total >= job[i].from * whole && total <= job[i].to * whole, "  all ranks hold %.3f models", total / whole);
    }
    remove(name);
    return tap_done();
}
