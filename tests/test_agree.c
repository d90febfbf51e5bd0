/* test_agree.c: ranks with different recipes, layouts, data, models or callbacks refuse to train together: every rank
 * returns a sentence with what differs, both values and both ranks. Each option that --help all lists is tried, and what
 * only structs can say, this on threads as well. A rank that fails alone makes the others return. TAP. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tap.h"

enum { RANKS = 3, ODD = 2 };
typedef enum how { ALIKE, OP, SHAPE, NAME, NUMBER, VALUES, COUNT, RATE, STEP, SAMPLING, DROPOUT, SEGMENTS, HOWS } how;

/* ---- a model and samples of the program's own ---- */

static dt_tensor layer(dt_graph *g, dt_tensor x, const void *user)
{
    how h = *(const how *)user;
    x = dt_linear(g, x, h == NAME ? "away" : "up", h == SHAPE ? 8 : 4);
    x = dt_scale(g, x, h == NUMBER ? 2.0f : 3.0f);
    return dt_linear(g, h == OP ? dt_gelu(g, x) : dt_relu(g, x), "down", 2);
}
static dt_tensor head(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    return dt_error_loss(g, DT_MSE, dt_linear(g, x, "out", 1), dt_targets(g));
}
static dt_result values(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    float *x = (float *)input;
    (void)split;
    x[0] = (float)(sample % 7), x[1] = 1.0f;
    *(float *)target = *(how *)user == VALUES && sample == 32 ? 1.0f : 0.0f;
    return DT_OK;
}
static float rate(void *user, int64_t step)
{
    (void)user, (void)step;
    return 1e-3f;
}
static dt_result stop(dt_probe *p, dt_trainer *t, dt_moment when, const dt_step_info *info)
{
    (void)p, (void)t, (void)info;
    return when == DT_AT_STEP ? DT_E_STOPPED : DT_OK;
}

/* Trains two steps with one more argument, or the odd rank with another program. */
static dt_result train(const char *argument, const char *value, how h)
{
    char *list[4], **argv = list;
    int argc = 0;
    dt_segment net[3] = {{"one", layer, NULL}, {"two", head, NULL}, {"more", head, NULL}};
    dt_source source = {NULL, {64, 0}, 2, 1, DT_F32, DT_F32, values};
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_probe probe;
    dt_result r;
    list[argc++] = (char *)(uintptr_t) "test", list[1] = (char *)(uintptr_t)argument, list[2] = (char *)(uintptr_t)value;
    while (argc < 3 && list[argc]) argc++;
    list[argc] = NULL;
    net[0].user = net[1].user = source.user = &h;
    recipe.source = &source, recipe.model = dt_model_segments(net, h == SEGMENTS ? 1 : 2, 0);
    recipe.batch = 8, recipe.steps = 2, recipe.warmup = 0;
    layout.output.quiet = 1, layout.output.eval_batches = 0, layout.output.sample_length = 0, layout.threads = 1;
    if (h == COUNT) source.samples[0] = 63;
    if (h == RATE) recipe.rate = rate;
    memset(&probe, 0, sizeof probe);
    probe.call = stop;
    if (h == STEP) layout.output.probes = &probe;
    if (h == SAMPLING) layout.output.sampling.seed = 7;
    if (h == DROPOUT) recipe.model.dropout = 0.5f;
    r = dt_args(&argc, &argv, &recipe, &layout);
    if (!r) r = dt_trainer_open(&t, &recipe, &layout);
    if (!r) r = dt_trainer_run(t, &info);
    dt_trainer_close(&t);
    return r;
}

/* ---- what is refused, and what is advised ---- */

/* Does dt_args take a value? Else: is the sentence true, which names the bounds of a number or the words? */
static int answers(const char *name, const char *value)
{
    char *list[4], **argv = list, said[400], *end, *at;
    int argc = 3, closed = 0;
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    double v = strtod(value, &end), low = -9.3e18, high = 9.3e18;
    list[0] = list[1] = (char *)(uintptr_t)name, list[2] = (char *)(uintptr_t)value, list[3] = NULL;
    if (!dt_args(&argc, &argv, &recipe, &layout)) return 1;
    snprintf(said, sizeof said, "%s", dt_last_error());
    if (end == value || *end || strchr(value, 'x') || !(v - v == 0)) return !strncmp(said, name, strlen(name)); /* no number */
    if (strstr(said, "number") && v != (double)(int64_t)v && strstr(said, "whole")) return 1;
    if (strstr(said, "power of two") && (v < 1 || v != (double)(int64_t)v || ((int64_t)v & ((int64_t)v - 1)))) return 1;
    if ((at = strstr(said, " in ")) != NULL && (at[4] == '[' || at[4] == '('))
        sscanf(at + 5, "%lf,%lf", &low, &high), closed = at[4] == '[' && said[strlen(said) - 1] == ']';
    else if ((at = strstr(said, "not below ")) != NULL) sscanf(at + 10, "%lf", &low), closed = 1;
    else if ((at = strstr(said, "above ")) != NULL) sscanf(at + 6, "%lf", &low);
    else closed = strstr(said, "from -2^63") != NULL;
    if (!at && !closed) return strstr(said, "choose one of") != NULL || strstr(said, "no model") != NULL || strstr(said, "cannot") != NULL;
    if (strstr(said, "2^63 - 1") && !closed) return 0;
    return closed ? v < low || v > high || (strstr(said, "2^63 - 1") && (v >= 9.2233720368547758e18 || v <= -9.2233720368547758e18))
                  : v <= low || v >= high;
}
static void bounds(const char *help)
{
    static const char *const odd[] = {"-1", "0", "1", "2", "3", "1000000", "1000001", "65537", "1025", "0.5", "1.5", "9223372036854775807",
        "9223372036854775808", "-9223372036854775809", "18446744073709551616", "1e30", "1e39", "1e400", "-1e400", "0x10", "7x", "", " ", "nan", "inf", "-inf", "--"};
    FILE *f = fopen(help, "r");
    char line[600], name[40], argument[40];
    int wrong = 0, on = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (line[0] > ' ') on = !strncmp(line, "Recipe", 6) || !strncmp(line, "Layout", 6);
        if (!on || strncmp(line, "  --", 4) || sscanf(line, "%39s %39s", name, argument) != 2 || line[3 + strlen(name)] <= ' ') continue;
        if (strcmp(argument, "N") && strcmp(argument, "X") && strcmp(argument, "P") && strcmp(argument, "T") &&
            strcmp(argument, "BYTES") && strcmp(argument, "SECONDS") && strcmp(argument, "KIND")) continue;
        for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
            if (!answers(name, odd[i])) wrong++, printf("# %s '%s': %s\n", name, odd[i], dt_last_error());
    }
    if (f) fclose(f);
    tap_ok(f && !wrong, "every option answers truly to numbers within, at and beyond its bounds");
}

static dt_result words(void *user, dt_split split, int64_t sample, void *input, void *target)
{
    int64_t n = *(int64_t *)user;
    (void)split;
    for (int64_t i = 0; i < n; i++) ((int32_t *)input)[i] = ((int32_t *)target)[i] = (int32_t)((sample + i) % 7);
    return DT_OK;
}
static dt_result open_with(const char *options)
{
    char text[200], *list[24], **argv = list;
    int argc = 1;
    int64_t n = 21;
    dt_source source = {NULL, {64, 0}, 0, 0, DT_I32, DT_I32, words};
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_trainer *t = NULL;
    dt_result r;
    snprintf(text, sizeof text, "%s", options);
    list[0] = (char *)(uintptr_t) "test";
    for (char *w = strtok(text, " "); w && argc < 23; w = strtok(NULL, " ")) list[argc++] = w;
    list[argc] = NULL;
    recipe.model = dt_model_gpt2("nano"), recipe.model.vocabulary = 16, recipe.sequence = 16, layout.output.quiet = 1, layout.output.sample_length = 0;
    r = dt_args(&argc, &argv, &recipe, &layout);
    n = source.inputs = source.targets = recipe.sequence, source.user = &n, recipe.source = &source;
    if (!r) r = dt_trainer_open(&t, &recipe, &layout);
    dt_trainer_close(&t);
    return r;
}
/* Takes each advice of a sentence: "--OPTION one of 1, 2, 4". */
static void advice(void)
{
    static const char *const cases[] = {"--sequence 21 --context-shards 2", "--sequence 20 --context-shards 4", "--sequence 6 --context-shards 2",
        "--batch 16 --micro-batch 5", "--batch 16 --micro-batch 4", "--batch 48 --micro-batch 12", "--batch 12", "--batch 7", "--heads 5", "--heads 64 --width 96",
        "--model llama-nano --vocabulary 16 --heads 5", "--model llama-nano --vocabulary 16 --heads 64",
        "--model llama-nano --vocabulary 16 --heads 4 --kv-heads 3", "--tensor-shards 16", "--tp 3", "--cp 4"};
    int wrong = 0, taken = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char said[600], with[300], option[40] = "", *at = said;
        dt_result r = open_with(cases[i]);
        snprintf(said, sizeof said, "%s", dt_last_error());
        if (r != DT_E_USAGE) wrong++, printf("# %s: %d %s\n", cases[i], (int)r, said);
        at = strstr(said, " one of ");
        if (!at) continue;
        for (char *o = strstr(said, "--"); o && o < at; o = strstr(o + 2, "--")) sscanf(o, "%39[-a-z]", option);
        for (at += 8; *at >= '0' && *at <= '9'; at += strspn(at, ", ")) {
            snprintf(with, sizeof with, "%s %s %ld", cases[i], option, strtol(at, &at, 10));
            taken++;
            if (open_with(with)) wrong++, printf("# \"%s\" advises %s, which gives \"%s\"\n", said, with, dt_last_error());
        }
    }
    tap_ok(!wrong && taken > 25, "each of %d numbers that a sentence advises is right", taken);
}

/* ---- one rank ---- */

static int says(dt_result r, const char *begin, const char *value, const char *what)
{
    char end[300];
    const char *said = dt_last_error();
    snprintf(end, sizeof end, "%s on rank %d: ranks must agree, give all the same", value, (int)ODD);
    if (r == DT_E_USAGE && !strncmp(said, begin, strlen(begin)) && strstr(said, " on rank 0, but ") && strstr(said, end))
        return 0;
    printf("# %s: %d, \"%s\" (wanted %s .. %s)\n", what, (int)r, said, begin, end);
    return 1;
}

/* The options of --help all: name, whether it has a value, its default, what it takes. */
static int options(int rank, const char *help, int *wrong)
{
    FILE *f = fopen(help, "r");
    char line[600];
    int tried = 0, on = 0;
    if (!f) return *wrong += 1, 0;
    while (fgets(line, sizeof line, f)) {
        char name[40] = "", argument[40] = "", value[40] = "", begin[80], *rest;
        const char *numbers[5] = {"3", "2", "1", "0.25", "x"};
        if (line[0] > ' ') on = !strncmp(line, "Recipe", 6) || !strncmp(line, "Layout", 6);
        if (!on || strncmp(line, "  --", 4)) continue;
        sscanf(line + 2, "%39s", name);
        if (line[3 + strlen(name)] > ' ') sscanf(line + 3 + strlen(name), "%39s", argument);
        if (!strcmp(name, "--model") || !strcmp(name, "--data") || !strcmp(name, "--device") || !strcmp(name, "--offload-rate")) continue; /* --model sets the sizes; device and rate are a rank's own */
        rest = strchr(line + 2, ' ') ? line + 27 : line;
        if (!strcmp(argument, "KIND") || (*argument && strchr(rest, ':') && strcspn(rest, ",") < strcspn(rest, " ")))
            sscanf(strchr(rest, ',') + 1, "%39[^:]", value); /* all of its words but the first */
        if (strchr(value, ',')) memmove(value, strrchr(value, ',') + 1, strlen(strrchr(value, ','))); /* the last */
        tried++;
        if (!strcmp(name, "--threads") || !strcmp(name, "--quiet") || !strcmp(name, "--metrics")) {
            if (train(rank == ODD ? name : NULL, rank == ODD && *argument ? strcmp(name, "--threads") ? "/dev/null" : "2" : NULL, ALIKE)) {
                printf("# %s is an option of a rank: %s\n", name, dt_last_error());
                *wrong += 1;
            }
            continue;
        }
        for (int i = 0; i < 5 && *argument && !*value; i++) { /* the first that it takes and that is no default */
            char *list[4] = {name, name, (char *)(uintptr_t)numbers[i], NULL}, **argv = list, shown[16];
            int argc = 3;
            dt_recipe recipe = dt_recipe_default();
            dt_layout layout = dt_layout_default();
            snprintf(shown, sizeof shown, "[%s]", numbers[i]);
            if (!strstr(rest, shown) && !dt_args(&argc, &argv, &recipe, &layout)) snprintf(value, sizeof value, "%s", numbers[i]);
        }
        snprintf(begin, sizeof begin, "%s is ", name);
        *wrong += says(train(rank == ODD ? name : NULL, rank == ODD && *argument ? value : NULL, ALIKE), begin,
                       !*argument ? "1" : strcmp(argument, "FILE") && strcmp(argument, "PATH") ? value : "given", name);
    }
    fclose(f);
    return tried;
}

static int one_rank(dt_comm *c, const char *help)
{
    static const struct { how h; const char *begin, *value; } cases[] = {
        {OP, "op 8 of segment one is RELU of (1,4)", "GELU of (1,4)"}, {SHAPE, "op 3 of segment one is one.up.weight of (2,4)", "one.up.weight of (2,8)"},
        {NAME, "op 3 of segment one is one.up.weight", "one.away.weight"}, {NUMBER, "op 7 of segment one is SCALE of (1,4) 6, 3", "6, 2"}, {VALUES, "the SHA-256 of samples of the data is ", ""},
        {COUNT, "the number of samples is 64, ", "63, 0 for validation, of 2 inputs and 1 targets"}, {RATE, "recipe.rate is NULL", "set"},
        {STEP, "layout.output.probes is NULL", "set"}, {SAMPLING, "layout.output.sampling.seed is 0", "7"},
        {DROPOUT, "model.dropout is 0 ", "0.5"}, {SEGMENTS, "model.segment_count is 2", "1"}};
    int rank = dt_comm_rank(c), wrong = 0;
    float sum;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dt_result r = train(NULL, NULL, rank == ODD ? cases[i].h : ALIKE);
        const char *said = dt_last_error(), *both = strstr(said, ", but ");
        if (r != DT_E_USAGE || strncmp(said, cases[i].begin, strlen(cases[i].begin)) || !strstr(said, " on rank 0, but ") ||
            !both || !strstr(both, cases[i].value) || !strstr(both, " on rank 2: ranks must agree")) {
            printf("# case %d: %d, \"%s\" (wanted %s)\n", (int)cases[i].h, (int)r, said, cases[i].begin);
            wrong++;
        }
    }
    if (strcmp(help, "none") && options(rank, help, &wrong) < 75) wrong++, printf("# --help all lists fewer options than there are\n");
    if (!train(rank == ODD ? "--metrics" : NULL, rank == ODD ? "/nowhere/at/all" : NULL, ALIKE)) sum = 0; /* rank 0 writes */
    else wrong++, printf("# only rank 0 opens --metrics: %s\n", dt_last_error());
    if (!train(rank ? NULL : "--metrics", rank ? NULL : "/nowhere/at/all", ALIKE)) wrong++, printf("# rank 0 fails alone, rank %d goes on\n", rank);
    if (train(NULL, NULL, ALIKE)) wrong++, printf("# alike, they train: %s\n", dt_last_error());
    sum = (float)wrong;
    if (dt_all_reduce(c, &sum, 1, DT_SUM)) return 1;
    return sum > 0.0f;
}

int main(int argc, char **argv)
{
    char name[] = "/tmp/dt_agree_XXXXXX", command[600];
    const char *const launches[2] = {"", "--launch threads"};
    if (argc > 1 && !strcmp(argv[1], "help")) { /* prints --help all */
        dt_recipe recipe = dt_recipe_default();
        dt_layout layout = dt_layout_default();
        char *list[4] = {argv[0], (char *)(uintptr_t) "--help", (char *)(uintptr_t) "all", NULL}, **at = list;
        argc = 3;
        return dt_args(&argc, &at, &recipe, &layout) != DT_E_HELP;
    }
    if (argc > 1) {
        dt_comm *c = NULL;
        if (dt_comm_open(&c, &argc, &argv)) return dt_fail("ranks");
        argc = one_rank(c, argv[1]);
        dt_comm_close(&c);
        return argc;
    }
    if (!mkdtemp(name)) tap_bail("no directory");
    snprintf(command, sizeof command, "'%s' help >%s/help 2>&1", argv[0], name);
    if (system(command)) tap_note("no --help all");
    snprintf(command, sizeof command, "%s/help", name);
    bounds(command);
    advice();
    for (int i = 0; i < 2; i++) {
        snprintf(command, sizeof command, "'%s' %s%s --ranks %d %s", argv[0], i ? "" : name, i ? "none" : "/help", (int)RANKS, launches[i]);
        tap_ok(!system(command), "%s: what differs is named, with both values and both ranks", i ? "threads" : "processes");
    }
    snprintf(command, sizeof command, "rm -r %s", name);
    if (system(command)) tap_note("%s stays", name);
    return tap_done();
}
