/* plan: which strategy, on which instances, at what cost, and which number decides?
 *
 *     ./build.sh plan --params-b 7 --optimizer adamw --instance 'p4d|p5' --tokens-b 20 --deadline-h 24
 *                                             one job: what, why, what was rejected, what would change the answer
 *     ./build.sh plan --sweep scaling|cost|spot|compiler --svg FILE
 *                                             one number varied: a table, and a plot where --svg names a file
 *     ./build.sh plan --cases FILE            a line of key=value for each job of a tab-separated file
 *     ./build.sh plan --cases FILE --check    the same against its columns x_..; the last line is N of M
 *
 * Every field of a job is an option, with - or _ in its name; --help lists them. What is not given is assumed, and the
 * answer says so. --json prints one object. --instances FILE replaces the catalogue, which --list prints.
 * By hand, in the folder of dtrain.h:
 *     cc -O2 examples/tools/plan.c -o plan -lm */
#include "sweep.h"

/* ---- a job's answer as key=value and as JSON ---- */

static void print_line(const char *id, const plan_answer *a)
{
    char text[40];
    const char *between = "";
    printf("id=%s", id);
    for (int k = 0; k < PLAN_OUTS; k++) {
        printf(" %s=%s", plan_output[k][0], plan_out_text(a, k, text));
        if (k == out_nodes) printf(" instance=%s", a->instance);
    }
    printf(" warn=%s", a->warn ? "" : "-");
    for (int k = 0; k < PLAN_CODES; k++)
        if (plan_warned(a, k)) printf("%s%s", between, plan_warning[k][0]), between = ",";
    printf(" num="), between = "";
    for (int k = 0; k < PLAN_NUMS; k++)
        if (!isnan(a->num[k])) printf("%s%s=%.6g", between, plan_number[k], a->num[k]), between = ";";
    printf("\n");
}

/* ---- case files ---- */

enum { COLUMNS = 160, LINE = 1 << 14 };

/* Does a value match "*", "a|b", ">=n", "<=n" or "lo..hi"? */
static int matches(const char *want, const char *value)
{
    const char *dots;
    double n = strtod(value, NULL), low;
    char word[PLAN_TEXT];
    if (!strcmp(want, "*") || !strcmp(want, "-") || !*want) return 1;
    if (sscanf(want, ">=%lf", &low) == 1) return n >= low;
    if (sscanf(want, "<=%lf", &low) == 1) return n <= low;
    if ((dots = strstr(want, ".."))) return n >= strtod(want, NULL) && n <= strtod(dots + 2, NULL);
    while (*want) {
        char *end;
        size_t m = strcspn(want, "|");
        snprintf(word, sizeof word, "%.*s", (int)m, want);
        if (!strcmp(word, value) || (strtod(word, &end) == n && end != word && !*end)) return 1;
        want += m + (want[m] == '|');
    }
    return 0;
}

static int same_type(const cost_catalogue *c, const char *want, const plan_answer *a)
{
    if (matches(want, a->instance)) return 1;
    for (size_t m; *want; want += m + (want[m] == '|'))
        if (m = strcspn(want, "|"), cost_find(c, want, m) == a->type) return 1;
    return 0;
}

static int same_codes(const char *want, const plan_answer *a)
{
    int good = 1;
    for (size_t m; *(want += strspn(want, ", ")); want += m) {
        int k = (m = strcspn(want, ", ")) ? plan_code(want + 1, m - 1) : -1, fires = k >= 0 && plan_warned(a, k);
        if (*want == '+' || *want == '!') good = good && fires == (*want == '+');
    }
    return good;
}

/* k=v+-tolerance, joined by ; */
static int same_numbers(const char *want, const plan_answer *a)
{
    int good = 1;
    if (!strcmp(want, "*") || !strcmp(want, "-")) return 1;
    for (size_t m; *want; want += m + (want[m] == ';')) {
        char name[40] = "";
        double value = 0, tolerance = -1;
        int k;
        if (!(m = strcspn(want, ";"))) continue;
        sscanf(want, " %39[^=;]=%lf+-%lf", name, &value, &tolerance);
        k = plan_place(plan_number, 1, PLAN_NUMS, name, strlen(name));
        if (tolerance < 0) tolerance = 1e-6 * fabs(value);
        good = good && k >= 0 && fabs(a->num[k] - value) <= tolerance + 1e-9;
    }
    return good;
}

/* One column x_NAME of a case. */
static int agrees(const cost_catalogue *c, const char *name, const char *want, const plan_answer *a)
{
    char text[40];
    int k = plan_place(plan_output[0], 2, PLAN_OUTS, name, strlen(name));
    if (!strcmp(name, "instance")) return same_type(c, want, a);
    if (!strcmp(name, "warn")) return same_codes(want, a);
    if (!strcmp(name, "num")) return same_numbers(want, a);
    return matches(want, k < 0 ? "" : plan_out_text(a, k, text));
}

/* Reads a case's inputs; returns its id. */
static const char *read_case(plan_job *j, char **column, char **value, int count, plan_list *wrong)
{
    const char *id = "-";
    char said[PLAN_TEXT];
    plan_job_clear(j);
    for (int k = 0; k < count; k++) {
        int f = plan_find(column[k], strlen(column[k]));
        if (!strcmp(column[k], "id")) id = value[k];
        else if (!strcmp(column[k], "facts")) plan_job_facts(j, value[k], wrong);
        else if (f >= 0 && !plan_job_set(j, f, value[k], said)) plan_say(wrong, "%s: it is left out", said);
    }
    return id;
}

/* Fields without the blanks around them. */
static int split(char *line, char **field)
{
    int count = 0;
    for (char *at = line; at && count < COLUMNS; count++) {
        char *text = cost_field(&at);
        text += strspn(text, " "), field[count] = text;
        for (size_t i = strlen(text); i && text[i - 1] == ' '; i--) text[i - 1] = 0;
    }
    return count;
}

static int run_case(const cost_catalogue *c, char **column, char **value, int count, int check)
{
    static plan_job j;
    static plan_answer a;
    plan_list wrong;
    const char *id;
    int good = 1;
    memset(&wrong, 0, sizeof wrong);
    id = read_case(&j, column, value, count, &wrong);
    plan_answer_of(&j, c, &a);
    for (int i = 0; i < wrong.count; i++) fprintf(stderr, "plan: case %s: %s\n", id, wrong.line[i]);
    for (int k = 0; check && k < count; k++)
        if (!strncmp(column[k], "x_", 2) && !agrees(c, column[k] + 2, value[k], &a))
            printf("case %s: %s should be %s\n", id, column[k] + 2, value[k]), good = 0;
    if (!check || !good) print_line(id, &a);
    return good;
}

static int run_cases(const cost_catalogue *c, const char *name, int check)
{
    static char head[LINE], line[LINE];
    char *column[COLUMNS], *value[COLUMNS];
    int columns = 0, good = 0, all = 0;
    FILE *f = fopen(name, "rb");
    if (!f) return fprintf(stderr, "plan: cannot read %s: check the name\n", name), 1;
    while (fgets(line, sizeof line, f)) {
        int count;
        if (!strchr(line, '\n') && !feof(f)) {
            fprintf(stderr, "plan: %s has a line of more than %d bytes: shorten it\n", name, LINE - 1);
            return fclose(f), 2;
        }
        line[strcspn(line, "\r\n")] = 0;
        if (!*line || *line == '#') continue;
        if (!columns) {
            columns = split(strcpy(head, strncmp(line, "\xef\xbb\xbf", 3) ? line : line + 3), column);
            continue;
        }
        count = split(line, value);
        all++, good += run_case(c, column, value, count < columns ? count : columns, check);
    }
    fclose(f);
    if (check) printf("%d of %d\n", good, all);
    return good < all;
}

/* ---- one job ---- */

static int same_answer(const plan_answer *a, const plan_answer *b)
{
    const int decide[] = {out_strategy, out_shard, out_tp, out_pp, out_nodes, out_act_ckpt, out_spot};
    for (size_t i = 0; i < sizeof decide / sizeof *decide; i++)
        if (a->out[decide[i]] != b->out[decide[i]]) return 0;
    return a->type == b->type && plan_warned(a, W_DEADLINE_MISS) == plan_warned(b, W_DEADLINE_MISS) &&
           plan_warned(a, W_BUDGET_MISS) == plan_warned(b, W_BUDGET_MISS);
}

/* Does another value of a field change the answer? *changed: the new answer. */
static int changes(plan_job *j, const cost_catalogue *c, int f, double value, const plan_answer *a,
                   plan_answer *changed)
{
    j->n[f] = value;
    plan_answer_of(j, c, changed);
    return !same_answer(a, changed);
}

/* The nearest value of a field, up or down, that changes the answer, up to 16 times as far; NAN: none does. */
static double nearest_change(const plan_job *job, const cost_catalogue *c, int f, int up, const plan_answer *a,
                             plan_answer *changed)
{
    static plan_job j;
    double from = job->n[f], last = from, low = plan_field[f].low, high = plan_field[f].high;
    int whole = plan_field[f].kind == 'i';
    j = *job;
    for (double by = 1.05; by < 16; by *= 1.05) {
        double to = up ? from * by : from / by;
        if (whole) to = up ? ceil(to) : floor(to);
        if (to < low || to > high) return (double)NAN;
        if (to == last || !changes(&j, c, f, to, a, changed)) continue;
        for (int i = 0; i < 12 && !(whole && fabs(to - last) <= 1); i++) {
            double middle = whole ? floor((to + last) / 2) : (to + last) / 2;
            *(changes(&j, c, f, middle, a, changed) ? &to : &last) = middle;
        }
        return changes(&j, c, f, to, a, changed), to;
    }
    return (double)NAN;
}

static void print_changes(const plan_job *j, const cost_catalogue *c, const plan_answer *a)
{
    static plan_answer changed;
    char said[PLAN_TEXT], from[32], till[32];
    int count = 0;
    for (int f = 0; f < PLAN_INPUTS; f++)
        for (int up = 0; up < 2 && (f < in_layers || f > in_heads) && !isnan(j->n[f]) &&
                         strchr("ir", plan_field[f].kind) && plan_field[f].high > 1;
             up++) {
            double to = nearest_change(j, c, f, up, a, &changed);
            if (isnan(to)) continue;
            printf("%-10s %s %s -> %s (%+.0f %%): %s\n", count++ ? "" : "changes", plan_field[f].name,
                   plan_digits(j->n[f], from), plan_digits(to, till), 100 * (to / j->n[f] - 1),
                   plan_summary(&changed, said));
        }
    if (!count) printf("%-10s no number that you gave changes it within a factor of 16\n", "changes");
}

static void print_list(const char *title, const plan_list *l)
{
    for (int i = 0; i < l->count; i++) printf("%-10s %s\n", i ? "" : title, l->line[i]);
}

/* The options of our trainer that run this layout, where it can. */
static void print_command(const plan_job *j, const plan_answer *a)
{
    static const char *const optimizers[] = {"sgd", "sgd --momentum 0.9", "adam", "adamw", NULL, NULL};
    static const char *const precisions[] = {"fp32", "fp16", "bf16", NULL};
    const char *optimizer = optimizers[(int)plan_or(j, in_optimizer, COST_ADAMW)];
    const char *precision = precisions[(int)plan_or(j, in_precision, COST_AMP_BF16)];
    double tp = a->out[out_tp], pp = a->out[out_pp], dp = a->out[out_dp], micro, units;
    double shards = exp2(ceil(log2(dp)));
    cost_shape shape = plan_shape(j);
    int s = a->out[out_strategy];
    if (s == NO_SCALE || s == INFEASIBLE) return;
    if (!optimizer || !precision) {
        printf("command    our trainer has no 8-bit Adam, LoRA or bf16 states\n");
        return;
    }
    if (!(shape.layers > 0)) {
        printf("command    give layers, hidden and heads for the options of our trainer\n");
        return;
    }
    micro = shape.micro * shards; /* the trainer's micro-batch is of all data-parallel ranks */
    units = plan_has(j, in_global_batch) ? j->n[in_global_batch] / micro : cost_least_micro(pp) * dp / shards;
    printf("command    ./build.sh run --layers %g --heads %g --width %g --sequence %g --precision %s --optimizer %s",
           shape.layers, shape.heads, shape.hidden, shape.sequence, precision, optimizer);
    printf(" --batch %g --micro-batch %g --data-shards %g --ranks %g", micro * fmax(1, ceil(units)), micro, shards,
           tp * pp * dp);
    if (a->out[out_shard]) printf(" --zero %d", a->out[out_shard]);
    if (tp > 1) printf(" --tp %g --tensor-shards %g", tp, tp);
    if (pp > 1) printf(" --pp %g", pp);
    printf("%s\n", a->out[out_act_ckpt] ? " --recompute full" : "");
    if (a->out[out_nodes] > 1) printf("           on several nodes a launcher starts the ranks: examples/running.md\n");
}

static void print_answer(const plan_job *j, const cost_catalogue *c, const plan_answer *a)
{
    char text[3][40], said[PLAN_TEXT];
    const double *num = a->num;
    printf("plan       %s\n", plan_summary(a, said));
    print_list("why", &a->why);
    printf("topology   %d x %d %s, tp %d x pp %d x dp %d, ", a->out[out_nodes], a->type->count, a->type->accel,
           a->out[out_tp], a->out[out_pp], a->out[out_dp]);
    printf("library %s, input %s, compiler %s\n", plan_out_text(a, out_library, text[0]),
           plan_out_text(a, out_input, text[1]), plan_out_text(a, out_compiler, text[2]));
    printf("failures   checkpoints: %s, %s, every %d minutes at most\n", plan_out_text(a, out_ckpt_required, text[0]),
           plan_out_text(a, out_ckpt, text[1]), a->out[out_ckpt_max_min]);
    if (!isnan(num[num_est_hours]))
        printf("cost       %s h, $%.0f on demand; Spot %s h, $%.0f\n", plan_digits(num[num_est_hours], text[0]),
               num[num_cost_od], plan_digits(num[num_spot_hours], text[1]), num[num_cost_spot]);
    printf("observe    measure a short run (--doctor, --metrics), then plan again with gpu_util_pct, io_wait_pct and "
           "node_eff\n");
    for (int k = 0, count = 0; k < PLAN_NUMS; k++)
        if (!isnan(num[k])) printf("%-10s %-20s %.6g\n", count++ ? "" : "numbers", plan_number[k], num[k]);
    print_list("rejected", &a->rejected);
    for (int k = 0, count = 0; k < PLAN_CODES; k++)
        if (plan_warned(a, k))
            printf("%-10s %s: %s\n", count++ ? "" : "warnings", plan_warning[k][0], plan_warning[k][1]);
    print_list("assumed", &a->assumed);
    print_changes(j, c, a);
    print_command(j, a);
}

static void json_text(const char *s)
{
    printf("\"");
    for (; *s; s++) printf((unsigned char)*s < 32 || *s == '"' || *s == '\\' ? "\\u%04x" : "%c", (unsigned char)*s);
    printf("\"");
}
static void json_list(const char *name, const plan_list *l)
{
    printf(", \"%s\": [", name);
    for (int i = 0; i < l->count; i++) printf("%s", i ? ", " : ""), json_text(l->line[i]);
    printf("]");
}
static void print_json(const plan_answer *a)
{
    char text[40];
    const char *between = "";
    printf("{\"instance\": "), json_text(a->instance);
    for (int k = 0; k < PLAN_OUTS; k++)
        printf(*plan_output[k][1] ? ", \"%s\": \"%s\"" : ", \"%s\": %s", plan_output[k][0], plan_out_text(a, k, text));
    printf(", \"warn\": [");
    for (int k = 0; k < PLAN_CODES; k++)
        if (plan_warned(a, k)) printf("%s\"%s\"", between, plan_warning[k][0]), between = ", ";
    printf("], \"num\": {"), between = "";
    for (int k = 0; k < PLAN_NUMS; k++)
        if (isfinite(a->num[k])) printf("%s\"%s\": %.10g", between, plan_number[k], a->num[k]), between = ", ";
    printf("}"), json_list("why", &a->why), json_list("rejected", &a->rejected), json_list("assumed", &a->assumed);
    printf("}\n");
}

static void help(void)
{
    static const struct { int field; const char *title; } groups[] = {
        {in_params_b, "The model, and how it is trained"}, {in_dataset_gb, "Data, hours, instances, money"},
        {in_ckpt_cfg, "The run as it is"}, {in_given_strategy, "What you have in mind"},
        {in_n_trials, "More, which --facts 'NAME=VALUE;NAME=VALUE' sets as well"}, {PLAN_INPUTS, NULL}};
    printf("Usage: plan --FIELD VALUE .. [--json]                 one job\n"
           "       plan --sweep scaling|cost|spot|compiler [--svg FILE]   one number varied\n"
           "       plan --cases FILE [--check]                    a job on each line\n"
           "       plan --list                                    the instances; --instances FILE replaces them\n"
           "A first job, in which the hours follow from the tokens (or give --ref-hours and --ref-gpus, measured):\n"
           "  plan --params-b 7 --instance 'p4d|p5' --max-nodes 16 --tokens-b 20 --deadline-h 24\n"
           "What is not given is assumed, and the answer says so.\n");
    for (int f = 0, k = 0; f < PLAN_INPUTS; f++) {
        if (f == groups[k].field) printf("%s\n", groups[k++].title);
        printf("  --%-22s %s\n", plan_field[f].name, plan_field[f].text);
    }
}

int main(int argc, char **argv)
{
    static plan_job j;
    static plan_answer a;
    static cost_catalogue c;
    const char *cases = NULL, *instances = NULL, *varied = NULL, *svg = NULL, *bad;
    int check = 0, json = 0, list = 0;
    plan_list wrong;
    memset(&wrong, 0, sizeof wrong);
    plan_job_clear(&j);
    if (argc == 1) return help(), 2;
    for (int i = 1, n; i < argc; i += n) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        n = 1;
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return help(), 0;
        if (!value && plan_word("--cases|--sweep|--svg|--instances", argv[i], strlen(argv[i])) >= 0)
            return fprintf(stderr, "plan: %s needs a value\n", argv[i]), 2;
        if (!strcmp(argv[i], "--check")) check = 1;
        else if (!strcmp(argv[i], "--json")) json = 1;
        else if (!strcmp(argv[i], "--list")) list = 1;
        else if (!strcmp(argv[i], "--cases") && value) cases = value, n = 2;
        else if (!strcmp(argv[i], "--sweep") && value) varied = value, n = 2;
        else if (!strcmp(argv[i], "--svg") && value) svg = value, n = 2;
        else if (!strcmp(argv[i], "--instances") && value) instances = value, n = 2;
        else if (!(n = plan_option(&j, argv[i], value, &wrong))) return 2;
    }
    if ((bad = cost_open(&c, instances))) return fprintf(stderr, "plan: %s: %s\n", instances, bad), 2;
    if (list) return printf("# on-demand dollars of EC2, us-east-1, %s\n%s", c.date, cost_instances), 0;
    if (varied) return sweep_run(varied, &j, &c, svg);
    if (cases) return run_cases(&c, cases, check);
    plan_answer_of(&j, &c, &a);
    for (int i = 0; i < wrong.count; i++) plan_say(&a.assumed, "%s", wrong.line[i]);
    json ? print_json(&a) : print_answer(&j, &c, &a);
    return 0;
}
