/* test_rules.c: the rules of examples/rules.h. For each a series that fires at a known step, and one just short of its bound that
 * does not; then sizes 0 and 1, NaN, bad input, actions, bounds of one's own, and the rules of a trainer. TAP. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/prose.h"
#include "../examples/rules.h"
#include "tap.h"

enum { MANY = 4000 };
static float x[MANY];

static dt_rules *open_rules(int ranks)
{
    dt_rules *r = NULL;
    if (dt_rules_open(&r, ranks)) tap_bail("%s", dt_last_error());
    return r;
}

/* Did this rule alone fire, first at this step? step -1: none did. Closes the rules. */
static int only(dt_rules *r, int rule, int64_t step, const char *what)
{
    const dt_firing *f = dt_rules_fired(r, rule);
    int good = rules_count(r) == (step >= 0) && (step < 0 || (f && f->step == step));
    char text[DT_RULES_TEXT];
    tap_ok(good, "%s: %s", dt_rule_name(rule), what);
    if (!good && !dt_rules_text(r, text, sizeof text)) tap_note("%s", text);
    dt_rules_close(&r);
    return good;
}

static void fill(float value, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = value;
}
/* Numbers that are spread between -size and size. */
static void spread(float size, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = size * ((float)((i * 37) % 101) / 50.0f - 1.0f);
}
static dt_result tensor(dt_rules *r, int64_t step, dt_tensor_kind kind, int64_t n, int64_t units)
{
    return dt_rules_tensor(r, step, "a", kind, x, n, units);
}

/* ---- tensors ---- */

static void test_gradients(void)
{
    for (int under = 0; under < 2; under++) {
        dt_rules *r = open_rules(1);
        for (int64_t step = 0; step < 4; step++) {
            spread(1.0f, 100);
            if (step == 2) fill(under ? 0.99e-7f : 1.01e-7f, 100);
            if (step == 2) x[3] = -x[3]; /* |g| counts */
            tensor(r, step, DT_KIND_GRADIENT, 100, 10);
        }
        only(r, DT_RULE_VANISHING_GRADIENT, under ? 2 : -1, under ? "0.99e-7" : "1.01e-7");
    }
    for (int kind = 0; kind < 3; kind++) {
        static const float bad[] = {NAN, INFINITY, -INFINITY};
        dt_rules *r = open_rules(1);
        for (int64_t step = 0; step < 3; step++) {
            spread(1.0f, 101);
            if (step == 1) x[100] = bad[kind]; /* the last one, behind whole lanes */
            tensor(r, step, kind ? DT_KIND_GRADIENT : DT_KIND_WEIGHT, 101, 0);
        }
        only(r, DT_RULE_EXPLODING_TENSOR, 1, "NaN or infinity in a tensor");
    }
    {
        dt_rules *r = open_rules(1);
        fill(3.402823466e38f, 100);
        x[0] = -x[0];
        tensor(r, 0, DT_KIND_GRADIENT, 100, 0);
        only(r, DT_RULE_EXPLODING_TENSOR, -1, "the largest floats are finite");
        r = open_rules(1);
        dt_rules_loss(r, 4, 1.0), dt_rules_loss(r, 5, (double)NAN), dt_rules_loss(r, 6, 0.9);
        tap_ok(!strcmp(dt_rules_fired(r, DT_RULE_EXPLODING_TENSOR)->name, "loss"), "a loss has a name");
        only(r, DT_RULE_EXPLODING_TENSOR, 5, "a loss of NaN");
    }
    for (int all = 0; all < 2; all++) {
        dt_rules *r = open_rules(1);
        dt_rules_set(r, DT_RULE_VANISHING_GRADIENT, 0, (double)NAN); /* which zeros are, too */
        fill(0.0f, 100);
        x[57] = all ? -0.0f : 1.0f;
        tensor(r, 3, DT_KIND_GRADIENT, 100, 0);
        only(r, DT_RULE_ALL_ZERO, all ? 3 : -1, all ? "all" : "99 of 100");
    }
}

/* rows x units: unit u is `on` in the first active[u] rows, else `off`. */
static void activate(int64_t rows, int64_t units, int64_t dead, int64_t active, float on, float off)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t u = 0; u < units; u++)
            x[i * units + u] = i < (u < dead ? active : rows / 2) ? on * (1.0f + 0.01f * (float)u) : off;
}
static void test_activations(void)
{
    for (int fires = 0; fires < 2; fires++) {
        dt_rules *r = open_rules(1);
        activate(200, 10, 5 + fires, 1, 1.0f, 0.0f); /* 1 of 200 rows is less than 1 % */
        tensor(r, 7, DT_KIND_RELU, 2000, 10);
        only(r, DT_RULE_DEAD_RELU, fires ? 7 : -1, fires ? "6 of 10 units" : "5 of 10 units");
        r = open_rules(1);
        activate(1000, 4, 4, 10 - fires, 1.0f, 0.0f);
        tensor(r, 7, DT_KIND_RELU, 4000, 4);
        only(r, DT_RULE_DEAD_RELU, fires ? 7 : -1, fires ? "active in 0.9 % of the rows" : "in 1 %");
        r = open_rules(1);
        activate(1000, 4, 4, 10 - fires, 1.0f, 99.0f);
        tensor(r, 7, DT_KIND_TANH, 4000, 4);
        only(r, DT_RULE_SATURATED_ACTIVATION, fires ? 7 : -1, fires ? "active in 0.9 % of the rows" : "in 1 %");
        r = open_rules(1);
        activate(200, 10, 5 + fires, 0, 1.0f, -99.0f);
        tensor(r, 7, DT_KIND_SIGMOID, 2000, 10);
        only(r, DT_RULE_SATURATED_ACTIVATION, fires ? 7 : -1, fires ? "6 of 10 units" : "5 of 10 units");
        r = open_rules(1);
        activate(200, 10, 6, 0, 1.0f, fires ? 9.5f : 9.499f);
        tensor(r, 7, DT_KIND_TANH, 2000, 10);
        only(r, DT_RULE_SATURATED_ACTIVATION, fires ? 7 : -1, fires ? "tanh of 9.5" : "tanh of 9.499");
        r = open_rules(1);
        activate(200, 10, 6, 0, 1.0f, fires ? -9.5f : -9.499f);
        tensor(r, 7, DT_KIND_TANH, 2000, 10);
        only(r, DT_RULE_SATURATED_ACTIVATION, fires ? 7 : -1, fires ? "tanh of -9.5" : "tanh of -9.499");
        r = open_rules(1);
        activate(200, 10, 6, 0, 1.0f, fires ? -23.5f : -22.5f);
        tensor(r, 7, DT_KIND_SIGMOID, 2000, 10);
        only(r, DT_RULE_SATURATED_ACTIVATION, fires ? 7 : -1, fires ? "sigmoid of -23.5" : "sigmoid of -22.5");
        r = open_rules(1);
        activate(200, 10, 6, 0, 1.0f, fires ? 17.0f : 16.99f);
        tensor(r, 7, DT_KIND_SIGMOID, 2000, 10);
        only(r, DT_RULE_SATURATED_ACTIVATION, fires ? 7 : -1, fires ? "sigmoid of 17" : "sigmoid of 16.99");
    }
}

static void test_initialization(void)
{
    for (int fires = 0; fires < 2; fires++) { /* variances 1 : size^2 */
        dt_rules *r = open_rules(1);
        spread(1.0f, 1000);
        dt_rules_tensor(r, 2, "one", DT_KIND_TANH, x, 1000, 10);
        spread(fires ? 3.17f : 3.15f, 1000);
        dt_rules_tensor(r, 2, "two", DT_KIND_TANH, x, 1000, 10);
        only(r, DT_RULE_POOR_INITIALIZATION, fires ? 2 : -1, fires ? "variances 1 : 10.05" : "1 : 9.92");
        r = open_rules(1);
        spread(fires ? 0.00055f : 0.00056f, 1010); /* the 5th to 95th percentile are 1.8 of 2 sizes */
        tensor(r, 10, DT_KIND_WEIGHT, 1010, 10);
        only(r, DT_RULE_POOR_INITIALIZATION, fires ? 10 : -1, fires ? "a range of 0.00099" : "of 0.00101");
    }
    {
        dt_rules *r = open_rules(1);
        spread(0.5f, 1000);
        dt_rules_tensor(r, 2, "one", DT_KIND_TANH, x, 1000, 10);
        spread(9.0f, 1000);
        dt_rules_tensor(r, 2, "two", DT_KIND_SIGMOID, x, 1000, 10); /* another kind */
        dt_rules_tensor(r, 3, "three", DT_KIND_TANH, x, 1000, 10);  /* another step */
        dt_rules_tensor(r, 11, "one", DT_KIND_TANH, x, 1000, 10);   /* too late */
        spread(0.5f, 1000);
        dt_rules_tensor(r, 11, "two", DT_KIND_TANH, x, 1000, 10);
        fill(0.1f, 100);
        dt_rules_tensor(r, 11, "late", DT_KIND_WEIGHT, x, 100, 10);
        dt_rules_tensor(r, 1, "bias", DT_KIND_WEIGHT, x, 100, 0);
        only(r, DT_RULE_POOR_INITIALIZATION, -1, "other kinds, steps, vectors");
        r = open_rules(1);
        fill(0.1f, 100);
        tensor(r, 1, DT_KIND_WEIGHT, 100, 10);
        only(r, DT_RULE_POOR_INITIALIZATION, 1, "a constant");
    }
}

static void test_updates(void)
{
    for (int fires = 0; fires < 2; fires++) { /* w becomes 11.1 w, which is a change of 10.1 w; or 10.9 w */
        dt_rules *r = open_rules(1);
        spread(0.5f, 1000), tensor(r, 1, DT_KIND_WEIGHT, 1000, 10);
        spread(fires ? 5.55f : 5.45f, 1000), tensor(r, 2, DT_KIND_WEIGHT, 1000, 10);
        only(r, DT_RULE_UPDATE_RATIO, fires ? 2 : -1, fires ? "10.1" : "9.9");
        r = open_rules(1); /* 8 or 9 of 100 ones move by their last bit, 1.19e-7 */
        fill(1.0f, 100), tensor(r, 11, DT_KIND_WEIGHT, 100, 10);
        fill(1.00000012f, fires ? 8 : 9), tensor(r, 12, DT_KIND_WEIGHT, 100, 10);
        only(r, DT_RULE_UPDATE_RATIO, fires ? 12 : -1, fires ? "0.95e-8" : "1.07e-8");
        r = open_rules(1);
        fill(0.0f, 100), x[0] = fires ? 1e-3f : 0.0f;
        dt_rules_set(r, DT_RULE_ALL_ZERO, 0, 2.0);
        tensor(r, 11, DT_KIND_WEIGHT, 100, 10);
        spread(0.5f, 100), tensor(r, 12, DT_KIND_WEIGHT, 100, 10);
        only(r, DT_RULE_UPDATE_RATIO, fires ? 12 : -1, fires ? "from nearly 0" : "from 0");
    }
    for (int way = 0; way < 4; way++) { /* as it was at steps 2, 3, perhaps 4: of 0.25 by 1e-5 of it, of 0 by 1e-8 */
        static const float first[] = {0.25f, 0.25f, 0.0f, 0.0f}, then[] = {0.2500027f, 0.2500024f, 1.1e-8f, 0.9e-8f};
        dt_rules *r = open_rules(1);
        dt_rules_set(r, DT_RULE_UPDATE_RATIO, 0, (double)NAN);
        for (int64_t step = 1; step < 7; step++) {
            spread(0.5f, 100);
            x[7] = step < 4 ? first[way] : step > 4 ? (float)step : then[way];
            tensor(r, step, DT_KIND_WEIGHT, 100, 10);
        }
        only(r, DT_RULE_UNCHANGED, way & 1 ? 4 : -1, way & 1 ? "three times" : "twice, then a little more");
    }
    for (int fires = 0; fires < 4; fires++) {
        dt_rules *r = open_rules(1);
        spread(1.0f, 101); /* variance 0.34 */
        if (fires > 1) dt_rules_set(r, DT_RULE_VARIANCE, 0, fires == 3 ? 0.341 : 0.339);
        else dt_rules_set(r, DT_RULE_VARIANCE, 1, fires ? 0.339 : 0.341);
        tensor(r, 5, DT_KIND_GRADIENT, 101, 0);
        only(r, DT_RULE_VARIANCE, fires & 1 ? 5 : -1, fires & 1 ? "outside of the bounds" : "inside");
    }
}

/* ---- losses and labels ---- */

static void test_losses(void)
{
    for (int fires = 0; fires < 2; fires++) {
        dt_rules *r = open_rules(1);
        double late = 0.5 * (fires ? 0.9991 : 0.9989);
        for (int64_t step = 1; step <= 30; step++)
            dt_rules_loss(r, step, step < 11 ? 1.0 : step < 21 ? 0.5 : late); /* it looks at 1, 11, 21 */
        only(r, DT_RULE_LOSS_NOT_DECREASING, fires ? 21 : -1, fires ? "0.09 % in 10 steps" : "0.11 %");
        r = open_rules(1);
        for (int64_t step = 0; step < 4; step++) dt_rules_loss(r, 9 * step, fires ? -1.0 : 1.0 / (double)(step + 1));
        only(r, DT_RULE_LOSS_NOT_DECREASING, fires ? 18 : -1, fires ? "given every 9 steps" : "falling");
        r = open_rules(1);
        dt_rules_loss(r, 0, 4.0), dt_rules_loss(r, 1, 2.0), dt_rules_validation(r, 1, fires ? 3.31 : 3.29);
        only(r, DT_RULE_OVERFIT, fires ? 1 : -1, fires ? "3.31 beside a mean of 3" : "3.29");
        r = open_rules(1);
        dt_rules_set(r, DT_RULE_OVERFIT, 1, 2);
        for (int64_t step = 0; step < 5; step++) { /* over at 0, 2, and 3 or 4 */
            dt_rules_loss(r, step, 4.0 - 0.1 * (double)step);
            dt_rules_validation(r, step, step == 0 || step == 2 || step == 4 - fires ? 5.0 : 3.0 - 0.1 * (double)step);
        }
        only(r, DT_RULE_OVERFIT, fires ? 3 : -1, fires ? "twice in a row, as was set" : "twice, not in a row");
        r = open_rules(1);
        dt_rules_set(r, DT_RULE_LOSS_NOT_DECREASING, 0, 1e9);
        for (int64_t step = 0; step < 11; step++) { /* the best validation loss is that of step 0, or one at 10 */
            dt_rules_loss(r, step, step < 6 ? 3.0 - 0.1 * (double)step : 2.491);
            dt_rules_validation(r, step, step == 10 ? (fires ? 1.991 : 1.989) : 2.0);
        }
        only(r, DT_RULE_OVERTRAINING, fires ? 10 : -1, fires ? "nothing better by 0.01" : "a better one");
        r = open_rules(1);
        dt_rules_set(r, DT_RULE_LOSS_NOT_DECREASING, 0, 1e9);
        for (int64_t step = 0; step < 11; step++) { /* 5 or 4 training losses after the best */
            dt_rules_loss(r, step, step <= 6 - fires ? 3.0 - 0.1 * (double)step : 2.5);
            dt_rules_validation(r, step, 2.0);
        }
        only(r, DT_RULE_OVERTRAINING, fires ? 10 : -1, fires ? "5 losses after the best" : "4 of them");
        r = open_rules(1);
        dt_rules_set(r, DT_RULE_LOSS_NOT_DECREASING, 0, 1e9);
        for (int64_t step = 0; step < 10 + fires; step++) {
            dt_rules_loss(r, step, 3.0);
            dt_rules_validation(r, step, 2.0);
        }
        only(r, DT_RULE_OVERTRAINING, fires ? 10 : -1, fires ? "10 validations" : "9 of them");
    }
    for (int fires = 0; fires < 2; fires++) {
        dt_rules *r = open_rules(1);
        int32_t label[250];
        for (int step = 0; step < 3; step++) { /* of 499, and of 501 */
            for (int i = 0; i < 250; i++) label[i] = i >= 227 + (fires && step == 0);
            label[1] = step ? 0 : -1; /* no label */
            dt_rules_labels(r, step, label, step < 2 ? 250 : 2, 2);
        }
        only(r, DT_RULE_CLASS_IMBALANCE, fires ? 2 : -1, fires ? "456 and 45 labels" : "455 and 46");
    }
}

/* ---- times ---- */

static dt_rank_step timed(int64_t step, double seconds, double waiting, double data)
{
    dt_rank_step s;
    memset(&s, 0, sizeof s);
    s.step = step, s.seconds = seconds, s.waiting = waiting, s.data = data;
    return s;
}

static void test_times(void)
{
    for (int fires = 0; fires < 2; fires++) {
        dt_rules *r = open_rules(1);
        dt_rank_step s;
        for (int64_t step = 0; step < 40; step++) { /* mean 1, deviation 0.1: the bound is 1.3; eleven outliers */
            int late = step >= 20 && step < 31;
            s = timed(step, late ? (fires || step < 30 ? 1.31 : 1.29) : step & 1 ? 1.1 : 0.9, 0, 0);
            dt_rules_step(r, &s);
        }
        only(r, DT_RULE_STEP_OUTLIER, fires ? 30 : -1, fires ? "11 steps of 1.31 s" : "10 of them");
        r = open_rules(2);
        for (int64_t step = 0; step < 20; step++)
            for (int rank = 0; rank < 2; rank++) {
                s = timed(step, 1.0, rank ? 0.0 : fires ? 0.51 : 0.49, 0);
                s.rank = rank;
                dt_rules_step(r, &s);
            }
        tap_ok(rules_count(r) && dt_rules_fired(r, fires ? DT_RULE_LOAD_BALANCING : DT_RULE_LOW_UTILIZATION)->rank == fires,
               fires ? "the busiest rank is named" : "in balance, the rank that waits");
        only(r, fires ? DT_RULE_LOAD_BALANCING : DT_RULE_LOW_UTILIZATION, 9,
             fires ? "0.49 of the work of another" : "0.51, which waits for half of its time");
        r = open_rules(1);
        for (int64_t step = 0; step < 20; step++)
            s = timed(step, 1.0, step < 10 ? 0.1 : fires ? 0.31 : 0.29, 0), dt_rules_step(r, &s);
        only(r, DT_RULE_LOW_UTILIZATION, fires ? 19 : -1, fires ? "waiting for 31 % of the time" : "for 29 %");
        r = open_rules(1);
        for (int64_t step = 0; step < 10; step++)
            s = timed(step, 1.0, 0, fires ? 0.21 : 0.19), dt_rules_step(r, &s);
        only(r, DT_RULE_DATALOADER, fires ? 9 : -1, fires ? "waiting for samples for 21 %" : "for 19 %");
        r = open_rules(1);
        for (int64_t step = 0; step < 30; step++) {
            s = timed(step, 1.0, 0, 0), s.memory = step < 20 ? 100.0 : fires ? 105.1 : 104.9;
            dt_rules_step(r, &s);
        }
        only(r, DT_RULE_MEMORY_INCREASE, fires ? 29 : -1, fires ? "5.1 %" : "4.9 %");
        r = open_rules(1);
        s = timed(1, 2.0, 0, 0), s.at = fires ? 1202.1 : 1201.9;
        dt_rules_step(r, &s);
        only(r, DT_RULE_INITIALIZATION_TIME, fires ? 1 : -1, fires ? "1200.1 s" : "1199.9 s");
        r = open_rules(1);
        s = timed(6, 2.0, 0, 0), s.at = 100.0;
        dt_rules_loss(r, 6, 1.0), dt_rules_step(r, &s), dt_rules_clock(r, 1000.0);
        dt_rules_clock(r, fires ? 1900.1 : 1899.9);
        only(r, DT_RULE_STALLED, fires ? 6 : -1, fires ? "1800.1 s" : "1799.9 s");
        r = open_rules(1);
        dt_rules_clock(r, 50.0), dt_rules_clock(r, fires ? 1851.0 : 1849.0);
        only(r, DT_RULE_STALLED, fires ? 0 : -1, "before a first step");
    }
}

/* ---- edges ---- */

static int refused(dt_result r, const char *words)
{
    int good = r == DT_E_USAGE && strstr(dt_last_error(), words);
    if (!good) tap_note("%s: %s", dt_result_name(r), dt_last_error());
    return good;
}

static void test_edges(void)
{
    static const int kinds = DT_KIND_COUNT;
    dt_rules *r = open_rules(1), *none = r;
    int fine = 1, good;
    char small[8];
    int32_t label = 5;
    dt_rank_step s = timed(0, 0, 0, 0);
    for (int k = 0; k < kinds; k++) {
        dt_tensor_kind kind = (dt_tensor_kind)k;
        fine = fine && !dt_rules_tensor(r, 0, "empty", kind, NULL, 0, 0);
        fine = fine && !dt_rules_tensor(r, 1, "empty", kind, x, 0, 4);
        x[0] = 0.5f;
        fine = fine && !dt_rules_tensor(r, 0, "one", kind, x, 1, 1);
        x[0] = 0.6f;
        fine = fine && !dt_rules_tensor(r, 1, "one", kind, x, 1, 1);
    }
    fine = fine && !dt_rules_labels(r, 0, NULL, 0, 3) && !dt_rules_step(r, &s);
    tap_ok(fine && !rules_count(r), "no numbers, one number, a step that took no time: fine, and nothing fires");
    x[0] = NAN;
    tap_ok(!dt_rules_tensor(r, 2, "one", DT_KIND_RELU, x, 1, 1) && rules_count(r) == 1, "one NaN fires one rule");
    good = refused(tensor(r, 1, DT_KIND_WEIGHT, -1, 1), "-1 elements") &&
           refused(tensor(r, 1, DT_KIND_WEIGHT, 10, 3), "of 3") &&
           refused(tensor(r, 1, DT_KIND_WEIGHT, 10, -1), "of -1") &&
           refused(dt_rules_tensor(r, 1, "a", DT_KIND_WEIGHT, NULL, 1, 1), "NULL") &&
           refused(dt_rules_tensor(r, 1, NULL, DT_KIND_WEIGHT, x, 1, 1), "name") &&
           refused(dt_rules_tensor(r, 1, "a", DT_KIND_COUNT, x, 1, 1), "dt_tensor_kind") &&
           refused(tensor(r, -1, DT_KIND_WEIGHT, 10, 10), "count from 0") &&
           refused(dt_rules_tensor(r, 2, "one", DT_KIND_RELU, x, 1, 1), "must rise") &&
           refused(dt_rules_tensor(r, 3, "one", DT_KIND_RELU, x, 2, 1), "had 1");
    tap_ok(good, "tensors of negative size, ragged, NULL, nameless, of no kind, of an earlier step, of another size");
    s.rank = 1;
    good = refused(dt_rules_step(r, &s), "rank 1 of 1");
    s = timed(1, -1.0, 0, 0);
    good = good && refused(dt_rules_step(r, &s), "times");
    s = timed(1, (double)NAN, 0, 0);
    good = good && refused(dt_rules_step(r, &s), "times");
    good = good && refused(dt_rules_labels(r, 1, &label, 1, 3), "label 5") &&
           refused(dt_rules_labels(r, 1, &label, 1, 6), "classes") &&
           refused(dt_rules_labels(r, 1, NULL, 1, 3), "an argument is NULL") &&
           refused(dt_rules_loss(NULL, 1, 1.0), "an argument is NULL") && refused(dt_rules_clock(r, (double)NAN), "finite") &&
           refused(dt_rules_text(r, small, 8), "does not fit into 8") &&
           refused(dt_rules_set(r, DT_RULE_COUNT, 0, 1), "no rule") && refused(dt_rules_set(r, 0, 5, 1), "bound 5") &&
           refused(dt_rules_open(&none, 0), "0 ranks") && !none;
    dt_rules_close(&r);
    dt_rules_close(&r);
    tap_ok(good, "ranks, times, labels, bounds, room: refused in a sentence");
}

typedef struct called {
    int times, rule;
    dt_result answer;
} called;
static dt_result note(void *user, dt_rule rule, const dt_firing *f)
{
    called *c = (called *)user;
    c->times++;
    c->rule = rule;
    return f->step == 3 ? c->answer : DT_OK;
}

static void test_use(void)
{
    dt_rules *r = open_rules(1);
    called c = {0, -1, DT_E_STOPPED};
    char text[DT_RULES_TEXT];
    int good = 1;
    for (int i = 0; i < DT_RULE_COUNT; i++)
        good = good && *dt_rule_name(i) && *dt_rule_advice(i);
    good = good && !strcmp(dt_rule_name(DT_RULE_VANISHING_GRADIENT), "VanishingGradient") &&
           !strcmp(dt_rule_name(DT_RULE_INITIALIZATION_TIME), "MaxInitializationTime");
    tap_ok(good && !strcmp(dt_rule_name(-1), "none"), "%d rules have names and advice", (int)DT_RULE_COUNT);
    dt_rules_on_fire(r, note, &c);
    x[0] = INFINITY;
    good = !dt_rules_loss(r, 2, 1.0) && tensor(r, 3, DT_KIND_GRADIENT, 1, 1) == DT_E_STOPPED && c.times == 1;
    tap_ok(good && c.rule == DT_RULE_EXPLODING_TENSOR, "an action is called, and its answer is the call's");
    tap_ok(!tensor(r, 4, DT_KIND_GRADIENT, 1, 1) && c.times == 1 && dt_rules_fired(r, c.rule)->times == 2, "once");
    tap_ok(!dt_rules_text(r, text, sizeof text) && strstr(text, "1 of 20 fired") && strstr(text, "ExplodingTensor") &&
               strstr(text, "step 3") && strstr(text, "do: "), "the table says rule, step and what to do");
    dt_rules_close(&r);
    for (int i = 0; i < DT_RULE_COUNT; i++) { /* the largest table there is */
        if (!r) r = open_rules(1);
        r->fired[i].times = INT64_MAX, r->fired[i].step = INT64_MAX;
        memset(r->fired[i].name, 'x', 95);
    }
    tap_ok(!dt_rules_text(r, text, sizeof text), "the largest table fits into DT_RULES_TEXT");
    dt_rules_close(&r);
}

/* ---- the trainer ---- */

static dt_result train(const char *data, const char *place, int rules, float rate, const char *stop_on, int64_t *step,
                       char hash[65])
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_probe probe;
    dt_result e;
    dt_rules_attach(&l, &probe);
    probe.option[RULES_ON].value = rules ? "1" : NULL, probe.option[RULES_STOP].value = stop_on;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = data, recipe.sequence = 32, recipe.batch = 8, recipe.steps = 16, recipe.learning_rate = rate;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0, l.checkpoint.place = place;
    e = dt_trainer_open(&t, &recipe, &l);
    if (!e) e = dt_trainer_run(t, &info);
    *step = info.step;
    if (!e) snprintf(hash, 65, "%s", dt_trainer_hash(t));
    dt_trainer_close(&t);
    return e;
}

static void test_trainer(void)
{
    char data[] = "/tmp/dtrain_XXXXXX", place[64], line[128], text[DT_RULES_TEXT], plain[65] = "", ruled[65] = "";
    int64_t step = 0;
    int file = mkstemp(data), kept;
    dt_result e;
    if (file < 0 || close(file) || prose_generate(data, 20000, 1)) tap_bail("no data");
    snprintf(place, sizeof place, "%s.place", data);
    kept = tap_print_begin();
    e = train(data, NULL, 0, 1e-3f, NULL, &step, plain);
    if (!e) e = train(data, NULL, 1, 1e-3f, NULL, &step, ruled);
    tap_printed(kept, text, sizeof text);
    tap_ok(!e && !strcmp(plain, ruled) && strstr(text, "of 20 fired"), "a trainer's rules print, and change no bit");
    kept = tap_print_begin();
    e = train(data, place, 0, 0.0f, "Overfit,UnchangedTensor", &step, ruled);
    tap_printed(kept, text, sizeof text);
    tap_ok(e == DT_E_STOPPED && step == 4 && dt_exit_code(e) == 75 &&
               strstr(dt_last_error(), "by rule UnchangedTensor"),
           "--stop-on stops and saves at the step where the rule fires");
    tap_ok(strstr(text, "UnchangedTensor") && strstr(text, "step 4"), "and prints");
    tap_ok(!train(data, place, 0, 0.0f, NULL, &step, ruled) && step == 16, "the run goes on from there");
    tap_ok(train(data, NULL, 0, 0.0f, "Overfit", &step, ruled) == DT_E_USAGE && strstr(dt_last_error(), "--checkpoint"),
           "without a place it is refused");
    tap_ok(train(data, place, 0, 0.0f, "Overfitt", &step, ruled) == DT_E_USAGE &&
               strstr(dt_last_error(), "Overfitt: no rule has this name. Choose from Vanish"), "and so is an unknown rule, with those there are");
    tap_ok(train(data, place, 0, 0.0f, "Overfit,DeadRelu", &step, ruled) == DT_E_USAGE &&
               strstr(dt_last_error(), "--stop-on DeadRelu: a trainer has no numbers"), "and one that could never fire");
    kept = tap_print_begin();
    e = train(data, NULL, 1, 1e9f, NULL, &step, ruled);
    tap_printed(kept, text, sizeof text);
    tap_ok(e == DT_E_NUMERIC && strstr(text, "ExplodingTensor"), "numbers that are not finite end with the table");
    snprintf(line, sizeof line, "rm -rf '%s' '%s'", data, place);
    if (system(line)) tap_note("cannot remove %s", place);
}

/* As a program of two ranks: rank 1 is late to each step, and rank 0 waits for it. 0: rank 0 is seen to wait, and nobody
 * takes that for work. */
static int late(int argc, char **argv)
{
    const struct timespec pause = {0, getenv("DT_SANITIZE") ? 300000000 : 60000000}; /* sanitizers make work longer */
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_probe probe;
    const dt_firing *f = NULL;
    int good = 0;
    dt_result e = dt_launch(&argc, &argv);
    recipe.model = dt_model_gpt2("nano");
    recipe.data = argv[1], recipe.sequence = 32, recipe.batch = 8, recipe.steps = 12;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0;
    dt_rules_attach(&l, &probe);
    probe.option[RULES_ON].value = "1";
    if (!e) e = dt_trainer_open(&t, &recipe, &l);
    for (int k = 0; k < 12 && !e; k++) {
        if (!dt_trainer_is_root(t)) nanosleep(&pause, NULL);
        e = dt_trainer_step(t, &info);
    }
    if (!e) f = dt_rules_fired(((rules_watch *)probe.user)->rules, DT_RULE_LOW_UTILIZATION);
    good = f && f->rank == 0;
    if (!e) f = dt_rules_fired(((rules_watch *)probe.user)->rules, DT_RULE_LOAD_BALANCING);
    good = f ? f->rank == 1 : good; /* a busy machine can make rank 1's work more, too */
    dt_trainer_close(&t);
    return !good;
}

static void test_late(const char *self)
{
    char data[] = "/tmp/dtrain_XXXXXX", line[1200];
    int file = mkstemp(data);
    if (file < 0 || close(file) || prose_generate(data, 20000, 1)) tap_bail("no data");
    snprintf(line, sizeof line, "'%.1000s' '%s' --ranks 2 >/dev/null", self, data);
    tap_ok(!system(line), "who waits for a late rank at the beginning of a step does not work");
    remove(data);
}

int main(int argc, char **argv)
{
    if (argc > 1) return late(argc, argv);
    test_gradients();
    test_activations();
    test_initialization();
    test_updates();
    test_losses();
    test_times();
    test_edges();
    test_use();
    test_trainer();
    test_late(argv[0]);
    return tap_done();
}
