/* test_growth.c: a step of several batches (recipe.growth). Two batches of 8 make the update of one batch of 16 with
 * accumulation `each`, bit for bit: samples, gradients, loss and norm. When the batch grows, from what the noise scale
 * says. test_noise.t trains with it in other layouts. TAP. */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
#include "../examples/prose.h"
#include "tap.h"

enum { STEPS = 3 };
typedef struct run {
    float loss[STEPS], norm[STEPS];
    int64_t batch, tokens;
    char hash[65];
} run;

static int train(const char *text, int64_t batch, int64_t factor, run *out)
{
    dt_recipe r = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    r.model = dt_model_llama("llama-nano"); /* not tied: uses are added before batches here (R8) */
    r.data = text, r.sequence = 16, r.batch = batch, r.micro_batch = 8, r.steps = STEPS, r.warmup = 2;
    r.accumulation = DT_EACH, r.validation = 0, r.growth = factor;
    l.output.quiet = 1, l.output.sample_length = 0, l.threads = 1;
    e = dt_trainer_open(&t, &r, &l);
    if (!e) t->e.grow.factor = factor;
    for (int i = 0; i < STEPS && !e; i++) {
        e = dt_trainer_step(t, &info);
        out->loss[i] = info.loss, out->norm[i] = info.norm, out->batch = info.batch, out->tokens = info.tokens;
    }
    if (!e) snprintf(out->hash, sizeof out->hash, "%s", dt_trainer_hash(t));
    else tap_note("%s", dt_last_error());
    dt_trainer_close(&t);
    return e == DT_OK;
}

/* The factor after so many steps at which the averages were these. */
static int64_t grows(int64_t steps, double variance, double square, int64_t most)
{
    dt_recipe r = dt_recipe_default();
    dt__engine e;
    memset(&e, 0, sizeof e);
    r.batch = 16, r.growth = most;
    e.recipe = &r;
    e.grow.factor = 1, e.grow.variance = variance, e.grow.square = square;
    for (int64_t i = 0; i < steps; i++) dt__grow_next(&e);
    return e.grow.factor;
}

int main(void)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    static run one, two, four, whole;
    int file = mkstemp(text);
    if (file < 0 || close(file) || prose_generate(text, 20000, 1)) return 1;
    tap_ok(train(text, 16, 1, &one) && train(text, 8, 2, &two), "one batch of 16, two of 8");
    tap_near(two.loss, one.loss, STEPS, 1e-6, "the same losses, whose sums have another order");
    tap_same_bits(two.norm, one.norm, STEPS, "and norms");
    tap_ok(!strcmp(one.hash, two.hash), "and weights and state");
    tap_ok(two.batch == 16 && two.tokens == one.tokens, "a step has %d sequences", (int)two.batch);
    tap_ok(train(text, 32, 1, &whole) && train(text, 8, 4, &four) && !strcmp(whole.hash, four.hash), "four of 8 are 32");
    tap_ok(strcmp(one.hash, whole.hash), "which is something else");
    remove(text);
    tap_ok(grows(19, 3200, 100, 8) == 1 && grows(20, 3200, 100, 8) == 2, "a scale of 32 doubles 16, after 20 steps");
    tap_ok(grows(200, 3200, 100, 8) == 2 && grows(200, 3199, 100, 8) == 1, "and not 32, nor does one of 31.99");
    tap_ok(grows(40, 1e9, 1, 8) == 4 && grows(60, 1e9, 1, 8) == 8 && grows(900, 1e9, 1, 8) == 8, "not beyond the limit");
    tap_ok(grows(99, 10, 0, 8) == 1 && grows(99, 10, -1, 8) == 1 && grows(99, 10, NAN, 8) == 1, "nor where |G|^2 is not above 0");
    return tap_done();
}
