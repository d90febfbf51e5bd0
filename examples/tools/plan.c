/* plan: which strategy, on which instances, at what cost, and which number decides?
 *
 *     ./build.sh plan --params-b 7 --optimizer adamw --instance 'p4d|p5' --tokens-b 20 --deadline-h 24
 *                                             one job: what, why, what was rejected, what would change the answer
 *     ./build.sh plan --cases FILE --check    many jobs against the columns x_..; the last line is N of M
 *
 * --help lists the options. What is not given is assumed, and the answer says so.
 * By hand, in the folder of dtrain.h:
 *     cc -O2 examples/tools/plan.c -o plan -lm */
#include "sweep.h"

/* ---- an answer as key=value and as JSON ---- */

static void print_quoted(const char *s)
{
    printf("\"");
    for (; *s; s++) printf((unsigned char)*s < 32 || *s == '"' || *s == '\\' ? "\\u%04x" : "%c", (unsigned char)*s);
    printf("\"");
}
static void print_texts(const char *name, const plan_list *l)
{
    printf(", \"%s\": [", name);
    for (int i = 0; i < l->count; i++) printf("%s", i ? ", " : ""), print_quoted(l->line[i]);
    printf("]");
}

static void print_pairs(const plan_answer *a, int json)
{
    char text[40];
    const char *between = "";
    for (int k = 0; k < PLAN_OUTS; k++) {
        const char *how = !json ? " %s=%s" : *plan_output[k][1] ? "\"%s\": \"%s\", " : "\"%s\": %s, ";
        printf(how, plan_output[k][0], plan_out_text(a, k, text));
        if (k == out_nodes && !json) printf(" instance=%s", a->instance);
    }
    printf(json ? "\"warn\": [" : a->warn ? " warn=" : " warn=-");
    for (int k = 0; k < PLAN_CODES; k++)
        if (plan_warned(a, k)) printf(json ? "%s\"%s\"" : "%s%s", between, plan_warning[k][0]), between = ",";
    printf(json ? "], \"num\": {" : " num="), between = "";
    for (int k = 0; k < PLAN_NUMS; k++)
        if (!isnan(a->num[k]) && !(json && isinf(a->num[k])))
            printf(json ? "%s\"%s\": %.10g" : "%s%s=%.6g", between, plan_number[k], a->num[k]),
                between = json ? "," : ";";
}

static void print_json(const plan_answer *a)
{
    printf("{"), print_pairs(a, 1), printf("}, \"instance\": "), print_quoted(a->instance);
    print_texts("why", &a->why), print_texts("rejected", &a->rejected), print_texts("assumed", &a->assumed);
    printf("}\n");
}

/* ---- case files ---- */

enum { COLUMNS = 160 };

/* Is an output what one part of its column says: n, >=n, <=n, low..high, or a word? */
static int same_output(const char *want, const char *is)
{
    const char *dots = strstr(want, "..");
    double n = cost_number(is);
    if (!strncmp(want, ">=", 2)) return n >= atof(want + 2);
    if (!strncmp(want, "<=", 2)) return n <= atof(want + 2);
    if (dots) return n >= atof(want) && n <= atof(dots + 2);
    return !strcmp(want, is) || cost_number(want) == n;
}

/* k=v+-tolerance */
static int same_number(const char *want, const plan_answer *a)
{
    char name[40] = "";
    double value = 0, tolerance = -1;
    int k, read = sscanf(want, " %39[^=;]=%lf+-%lf", name, &value, &tolerance);
    k = read > 1 ? plan_word(PLAN_NUMBERS(PLAN_NAMES), name) : -1;
    if (tolerance < 0) tolerance = 1e-6 * fabs(value);
    return !*want || (k >= 0 && fabs(a->num[k] - value) <= tolerance + 1e-9);
}

/* One column x_NAME of a case: one of its parts must hold, of codes and numbers all. */
static int agrees(const cost_catalogue *c, const char *name, const char *want, const plan_answer *a)
{
    char text[40] = "", part[PLAN_TEXT];
    int any = 0, all = 1, out = plan_word(PLAN_OUTPUTS(PLAN_NAMES), name), kind = plan_word("instance|warn|num", name);
    if (!*want || !strcmp(want, "*") || !strcmp(want, "-")) return 1;
    if (out >= 0) plan_out_text(a, out, text);
    const char separator = kind == 1 ? ',' : kind == 2 ? ';' : '|';
    for (int good; plan_part(want, separator, 0, part, sizeof part); want = plan_rest(want, separator)) {
        char *code = plan_trim(part);
        int fires = kind == 1 && *code && plan_code(code + 1) >= 0 && plan_warned(a, plan_code(code + 1));
        if (kind == 0) good = !strcmp(part, a->instance) || cost_find(c, part, strlen(part)) == a->type;
        else if (kind == 1) good = *code == '+' ? fires : *code != '!' || !fires;
        else good = kind == 2 ? same_number(part, a) : same_output(part, text);
        any |= good, all &= good;
    }
    return kind > 0 ? all : any;
}

static int run_case(const cost_catalogue *c, char **column, char **value, int count, int check)
{
    static plan_job j;
    static plan_answer a;
    char said[PLAN_TEXT];
    plan_list wrong;
    const char *id = "-";
    int good = 1;
    wrong.count = 0, plan_job_clear(&j);
    for (int k = 0; k < count; k++) {
        int f = plan_word(PLAN_FIELDS(PLAN_NAMES) "facts|id", column[k]);
        if (f == PLAN_INPUTS + 1) id = value[k];
        else if (f == PLAN_INPUTS) plan_job_facts(&j, value[k], &wrong);
        else if (f >= 0 && !plan_job_set(&j, f, value[k], said)) plan_say(&wrong, "%.160s: it is left out", said);
    }
    plan_answer_of(&j, c, &a);
    for (int i = 0; i < wrong.count; i++) fprintf(stderr, "plan: case %s: %s\n", id, wrong.line[i]);
    for (int k = 0; check && k < count; k++)
        if (!strncmp(column[k], "x_", 2) && !agrees(c, column[k] + 2, value[k], &a))
            printf("case %s: %s should be %s\n", id, column[k] + 2, value[k]), good = 0;
    if (!check || !good) printf("id=%s", id), print_pairs(&a, 0), printf("\n");
    return good;
}

/* Fields without the blanks around them. */
static int split(char *line, char **field)
{
    int count = 0;
    while (line && count < COLUMNS) field[count++] = plan_trim(cost_field(&line, '\t'));
    return count;
}

static int run_cases(const cost_catalogue *c, const char *name, int check)
{
    static char text[1 << 24];
    char *at = text, *line, *column[COLUMNS], *value[COLUMNS];
    int columns = 0, fields = 0, count, number = 0, good = 0, all = 0;
    if (!cost_load(name, text, sizeof text))
        return fprintf(stderr, "plan: cannot read %s as a text of 16 MB: check the file\n", name), 1;
    if (!strncmp(text, "\xef\xbb\xbf", 3)) at += 3;
    if ((line = cost_line(&at, &number)) != NULL) columns = split(line, column);
    for (int k = 0; k < columns; k++) {
        const int is = plan_word(PLAN_FIELDS(PLAN_NAMES) "facts|id", column[k]) >= 0;
        fields += is;
        if (!is && strncmp(column[k], "x_", 2))
            fprintf(stderr, "plan: column '%.40s' is not a field: it is left out\n", column[k]);
    }
    for (; fields && (line = cost_line(&at, &number)) != NULL; all++) {
        count = split(line, value);
        if (count != columns) fprintf(stderr, "plan: line %d has %d of %d columns\n", number, count, columns);
        good += run_case(c, column, value, count < columns ? count : columns, check);
    }
    if (!all) return fprintf(stderr, "plan: %s has no case: a row of fields, then a row for each case\n", name), 1;
    if (check) printf("%d of %d\n", good, all);
    return good < all;
}

/* ---- one job ---- */

/* Sets a field: does the answer become another one? *changed: the new answer. */
static int changes(plan_job *j, const cost_catalogue *c, int f, double value, const plan_answer *a,
                   plan_answer *changed)
{
    const int decide[] = {out_strategy, out_shard, out_tp, out_pp, out_nodes, out_act_ckpt, out_spot};
    const unsigned long long missed = 1ull << W_DEADLINE_MISS | 1ull << W_BUDGET_MISS;
    j->n[f] = value;
    plan_answer_of(j, c, changed);
    for (size_t i = 0; i < sizeof decide / sizeof *decide; i++)
        if (a->out[decide[i]] != changed->out[decide[i]]) return 1;
    return a->type != changed->type || ((a->warn ^ changed->warn) & missed);
}

/* The nearest value of a field, up or down, that changes the answer, up to 16 times as far; NAN: none does. */
static double nearest_change(const plan_job *job, const cost_catalogue *c, int f, int up, const plan_answer *a,
                             plan_answer *changed)
{
    static plan_job j;
    const double from = job->n[f], whole = plan_field[f].kind == 'i';
    double last = from;
    j = *job;
    for (double by = 1.05; by < 16; by *= 1.05) {
        double to = up ? from * by : from / by;
        if (whole > 0) to = up ? ceil(to) : floor(to);
        if (to < plan_field[f].low || to > plan_field[f].high) return (double)NAN;
        if (to == last || !changes(&j, c, f, to, a, changed)) continue;
        for (int i = 0; i < 12 && fabs(to - last) > whole; i++) {
            double middle = whole > 0 ? floor((to + last) / 2) : (to + last) / 2;
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
    for (int k = 0; k < 2 * PLAN_INPUTS; k++) { /* of each field down and up */
        int f = k / 2, number = strchr("ir", plan_field[f].kind) && plan_field[f].high > 1;
        double to = number && (f < in_layers || f > in_heads) ? j->n[f] : (double)NAN;
        if (isnan(to) || isnan(to = nearest_change(j, c, f, k % 2, a, &changed))) continue;
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
    const int tp = a->out[out_tp], pp = a->out[out_pp], dp = a->out[out_dp], s = a->out[out_strategy];
    double shards = exp2(ceil(log2(dp))), micro, units;
    cost_shape shape = plan_shape(j);
    if (s == NO_SCALE || s == INFEASIBLE) return;
    if (!optimizer || !precision || !(shape.layers > 0)) {
        printf("command    %s\n", optimizer && precision
                                      ? "give layers, hidden and heads for the options of our trainer"
                                      : "our trainer has no 8-bit Adam, LoRA or bf16 states");
        return;
    }
    micro = shape.micro * shards; /* the trainer's micro-batch is of all data-parallel ranks */
    units = plan_has(j, in_global_batch) ? j->n[in_global_batch] / micro : cost_least_micro(pp) * dp / shards;
    printf("command    ./build.sh run --layers %g --heads %g --width %g --sequence %g --precision %s --optimizer %s",
           shape.layers, shape.heads, shape.hidden, shape.sequence, precision, optimizer);
    printf(" --batch %g --micro-batch %g --data-shards %g --ranks %d", micro * fmax(1, ceil(units)), micro, shards,
           tp * pp * dp);
    if (a->out[out_shard]) printf(" --zero %d", a->out[out_shard]);
    if (a->out[out_shard] > 1 && units > 1) printf(" --accumulation each"); /* else a rank adds up all gradients */
    if (tp > 1) printf(" --tp %d --tensor-shards %d", tp, tp);
    if (pp > 1) printf(" --pp %d", pp);
    printf("%s\n", a->out[out_act_ckpt] ? " --recompute full" : "");
    if (a->out[out_nodes] > 1) printf("           on several nodes a launcher starts the ranks: examples/running.md\n");
}

static void print_answer(const plan_job *j, const cost_catalogue *c, const plan_answer *a)
{
    char text[3][40], said[PLAN_TEXT];
    const double *num = a->num;
    const int *out = a->out;
    printf("plan       %s\n", plan_summary(a, said));
    print_list("why", &a->why);
    printf("topology   %d x %d %s, tp %d x pp %d x dp %d, ", out[out_nodes], a->type->count, a->type->accel,
           out[out_tp], out[out_pp], out[out_dp]);
    printf("library %s, input %s, compiler %s\n", plan_out_text(a, out_library, text[0]),
           plan_out_text(a, out_input, text[1]), plan_out_text(a, out_compiler, text[2]));
    printf("failures   checkpoints: %s, %s, every %d minutes at most\n", plan_out_text(a, out_ckpt_required, text[0]),
           plan_out_text(a, out_ckpt, text[1]), out[out_ckpt_max_min]);
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

static void help(void)
{
    printf("Usage: plan --FIELD VALUE .. [--json]                 one job\n"
           "       plan --sweep scaling|cost|spot|compiler [--svg FILE]   one number varied\n"
           "       plan --cases FILE [--check]                    a job on each line\n"
           "       plan --list                                    the instances; --instances FILE replaces them\n"
           "A first job, in which the hours follow from the tokens (or give --ref-hours and --ref-gpus, measured):\n"
           "  plan --params-b 7 --instance 'p4d|p5' --max-nodes 16 --tokens-b 20 --deadline-h 24\n"
           "What is not given is assumed, and the answer says so. --facts 'NAME=VALUE;NAME=VALUE' sets fields, too,\n"
           "and in names - is _:\n");
    for (int f = 0; f < PLAN_INPUTS; f++) printf("  --%-22s %s\n", plan_field[f].name, plan_field[f].text);
}

int main(int argc, char **argv)
{
    enum { HELP, CHECK, JSON, LIST, FLAGS, CASES = FLAGS, SWEEP, SVG, INSTANCES, OPTIONS };
    static plan_job j;
    static plan_answer a;
    static cost_catalogue c;
    const char *given[OPTIONS] = {NULL}, *bad;
    plan_list wrong;
    wrong.count = 0, plan_job_clear(&j), cost_begin();
    for (int i = 1, n; i < argc; i += n) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        const char *name = strncmp(argv[i], "--", 2) ? "" : argv[i] + 2;
        int k = plan_word("help|check|json|list|cases|sweep|svg|instances", name);
        n = k < 0 ? plan_option(&j, argv[i], value, &wrong) : k < FLAGS ? 1 : 2;
        if (!n) return 2;
        if (k >= FLAGS && !value) return fprintf(stderr, "plan: %s needs a value\n", argv[i]), 2;
        if (k >= 0) given[k] = k < FLAGS ? argv[i] : value;
    }
    if (argc == 1 || given[HELP]) return help(), argc == 1 ? 2 : 0;
    if ((bad = cost_open(&c, given[INSTANCES]))) return fprintf(stderr, "plan: %s: %s\n", given[INSTANCES], bad), 2;
    if (given[LIST]) return printf("# on-demand dollars of EC2, us-east-1, %s\n%s", c.date, cost_instances), 0;
    if (given[SWEEP]) return sweep_run(given[SWEEP], &j, &c, given[SVG]);
    if (given[CASES]) return run_cases(&c, given[CASES], given[CHECK] != NULL);
    plan_answer_of(&j, &c, &a);
    for (int i = 0; i < wrong.count; i++) plan_say(&a.assumed, "%s", wrong.line[i]);
    given[JSON] ? print_json(&a) : print_answer(&j, &c, &a);
    return 0;
}
