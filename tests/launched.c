/* The program of test_launch.t: README's, with a locale, a mask of signals or handlers of its own where the environment
 * asks for them. With DT_COMM_ONLY it only reduces, until it is stopped. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#ifndef DT_COMM_ONLY
#include "../examples/timeline.h"
#endif
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int asked(const char *name, const char *value) { return getenv(name) && !strcmp(getenv(name), value); }

static void own_handler(int sig) { _exit(40 + sig); }

static void locale(const char *when)
{
    char point[32];
    if (!asked("SETLOCALE", when)) return;
    if (!setlocale(LC_ALL, "")) exit(77);
    snprintf(point, sizeof point, "%.1f", 0.5);
    if (!strcmp(point, "0.5")) exit(78); /* not a locale that shows anything */
}

int main(int argc, char **argv)
{
    dt_result r = DT_OK;
    locale("before");
    if (asked("HANDLER", "own")) signal(SIGTERM, own_handler);
    if (dt_launch(&argc, &argv)) return dt_fail("start");
#ifdef DT_COMM_ONLY
    dt_comm *c = NULL;
    float x = 1.0f;
    if (dt_comm_open(&c, &argc, &argv)) return dt_fail("open");
    locale("after");
    for (int i = 0; !r && i < 20; i++) printf("line %d: a job prints here\n", i);
    fflush(stdout);
    for (int64_t i = 0; !r && i < atoll(argv[1]); i++) r = dt_all_reduce(c, &x, 1, DT_MAX);
    if (r) return dt_fail("all-reduce");
    dt_comm_close(&c);
    return x == 1.0f ? 0 : 3;
#else
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_probe timeline;
    dt_segment segment;
    dt_source source;
    memset(&segment, 0, sizeof segment);
    memset(&source, 0, sizeof source);
    recipe.model = dt_model_gpt2("nano");
    recipe.batch = 8, recipe.sequence = 16;
    if (asked("OWN", "1")) recipe.model.segments = &segment, recipe.model.segment_count = 1, recipe.source = &source;
    dt_timeline_attach(&layout, &timeline);
    if (dt_args(&argc, &argv, &recipe, &layout)) return dt_fail("options");
    r = dt_trainer_open(&t, &recipe, &layout);
    locale("after");
    while (!r && info.step < recipe.steps) r = dt_trainer_step(t, &info);
    if (!r && dt_trainer_is_root(t)) printf("sha256 %s\n", dt_trainer_hash(t));
    dt_trainer_close(&t);
    return r ? dt_fail("training") : 0;
#endif
}
