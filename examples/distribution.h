/* distribution.h: what the `distribution` of a SageMaker estimator starts, or what is wrong with it. decide() reads the
 * dictionary as JSON, asks whether the instance type and a line of the script suit it, and answers with a verdict, what
 * the job starts, and a sentence. Nothing of dtrain.h is needed. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON, strictly: values in a list, each with the number of the one it stands in ---- */

#define DIGITS "0123456789"
enum { VALUES = 64 };
typedef struct value { int parent; char kind, name[64]; } value; /* kind: { [ " t f n, or 0 for a number */
typedef struct json { const char *text, *at; value value[VALUES]; int count; char error[200]; } json;

static inline int fail(json *j, const char *what)
{
    snprintf(j->error, sizeof j->error, "not JSON, byte %d: %s", (int)(j->at - j->text) + 1, what);
    return 0;
}

static inline char next(json *j) { return *(j->at += strspn(j->at, " \t\r\n")); }

/* A string, its escapes left as they are: no name that counts has one. */
static inline int string(json *j, char *to, size_t room)
{
    size_t n = 0;
    if (*j->at == '\'') return fail(j, "strings stand in \" and not in '");
    if (*j->at != '"') return fail(j, "a string in \" is missing");
    for (j->at++; *j->at != '"'; j->at++) {
        if (!*j->at) return fail(j, "a string without an end");
        if ((unsigned char)*j->at < 0x20) return fail(j, "a control character in a string");
        if (n + 1 < room) to[n++] = *j->at;
        if (*j->at != '\\') continue;
        j->at++;
        if (*j->at == 'u' && strspn(j->at + 1, DIGITS "abcdefABCDEF") >= 4) j->at += 4;
        else if (!*j->at || !strchr("\"\\/bfnrt", *j->at)) return fail(j, "behind \\ is one of \"\\/bfnrt, or uXXXX");
    }
    to[n] = 0;
    return j->at++, 1;
}

/* The length of the number that stands here; 0: there is none. */
static inline size_t number(const char *s)
{
    size_t n = *s == '-', more = strspn(s + n, DIGITS), sign;
    if (!more || (s[n] == '0' && more > 1)) return 0;
    n += more;
    if (s[n] == '.' && !(more = strspn(s + n + 1, DIGITS))) return 0;
    if (s[n] == '.') n += 1 + more;
    if (s[n] != 'e' && s[n] != 'E') return n;
    sign = s[n + 1] == '+' || s[n + 1] == '-';
    more = strspn(s + n + 1 + sign, DIGITS);
    return more ? n + 1 + sign + more : 0;
}

static inline int read_value(json *j, int parent, const char *name);

/* Items up to the closing bracket. */
static inline int items(json *j, int me, char open, char close)
{
    char name[64] = "";
    j->at++;
    if (next(j) == close) return j->at++, 1;
    for (;; j->at++) {
        next(j);
        if (open == '{' && !string(j, name, sizeof name)) return 0;
        if (open == '{' && next(j) != ':') return fail(j, "a : is missing behind the name");
        j->at += open == '{';
        if (!read_value(j, me, name)) return 0;
        if (next(j) == close) return j->at++, 1;
        if (*j->at != ',') return fail(j, "a comma is missing, or the closing bracket");
    }
}

static inline int read_value(json *j, int parent, const char *name)
{
    static const char *const words[] = {"true", "false", "null", "True", "False", "None"};
    char unused[64], c = next(j);
    size_t length = number(j->at);
    for (int i = 0; i < j->count && *name; i++)
        if (j->value[i].parent == parent && !strcmp(j->value[i].name, name)) return fail(j, "this name stands twice");
    if (j->count == VALUES) return fail(j, "more values than any distribution has");
    j->value[j->count].parent = parent, j->value[j->count].kind = (char)(length ? 0 : c);
    snprintf(j->value[j->count++].name, sizeof j->value->name, "%s", name);
    if (length) return j->at += length, 1;
    if (c == '"') return string(j, unused, sizeof unused);
    if (c == '{' || c == '[') return items(j, j->count - 1, c, c == '{' ? '}' : ']');
    for (int i = 0; i < 6; i++)
        if (!strncmp(j->at, words[i], length = strlen(words[i])))
            return i < 3 ? (j->at += length, 1) : fail(j, "this is Python: JSON has true, false and null");
    return fail(j, c ? "a value is missing" : "the text ends here");
}

static inline int read_json(json *j, const char *text)
{
    memset(j, 0, sizeof *j);
    j->text = j->at = text;
    return read_value(j, -1, "") && (!next(j) || fail(j, "something stands behind the end"));
}

static inline const value *find(const json *j, const value *in, const char *name)
{
    for (int i = 0; i < j->count && in; i++)
        if (j->value[i].parent == (int)(in - j->value) && !strcmp(j->value[i].name, name)) return &j->value[i];
    return NULL;
}

/* ---- what it means ---- */

typedef enum verdict { FINE, WARNING, WRONG } verdict;
typedef struct answer { verdict verdict; char starts[80], text[1200]; } answer;
typedef struct machines { const char *instance, *script; int instances; } machines; /* NULL and 0: not told */
typedef struct strategy { const char *name, *starts, *parameters[4]; } strategy;
enum { DDP, TORCH, MPI, XLA, SERVER, MIRRORED, OUTER, DATA = OUTER, MODEL, STRATEGIES };
static const strategy known[STRATEGIES] = {
    {"pytorchddp", "mpirun, PyTorch DDP", {"enabled", "custom_mpi_options"}},
    {"torch_distributed", "torchrun, PyTorch", {"enabled"}},
    {"mpi", "mpirun, Horovod or other MPI", {"enabled", "processes_per_host", "custom_mpi_options"}},
    {"pytorchxla", "PyTorch/XLA, Training Compiler", {"enabled"}},
    {"parameter_server", "TensorFlow parameter servers", {"enabled"}},
    {"multi_worker_mirrored_strategy", "TensorFlow", {"enabled"}},
    {"dataparallel", "mpirun, SMDDP", {"enabled", "custom_mpi_options"}},
    {"modelparallel", "SMP", {"enabled", "parameters"}}};
static const char *const top[] = {"pytorchddp", "torch_distributed", "mpi", "pytorchxla", "parameter_server",
                                  "multi_worker_mirrored_strategy", "smdistributed", "instance_groups", NULL};
static const char *const inside[] = {"dataparallel", "modelparallel", NULL};
static const char *const told[][2] = { /* names that are told, and what they mean */
    {"smdistributed_dataparallel", "write {\"smdistributed\":{\"dataparallel\":{\"enabled\":true}}}"},
    {"smdistributed_modelparallel", "write {\"smdistributed\":{\"modelparallel\":{..}},\"mpi\":{..}}"},
    {"dataparallel", "it stands inside of \"smdistributed\""},
    {"smddp", "the library is called SMDDP, its key is {\"smdistributed\":{\"dataparallel\":{\"enabled\":true}}}"},
    {"pytorchx", "DDP is \"pytorchddp\"; \"pytorchxla\" is the Training Compiler's"},
    {"horovod", "Horovod is {\"mpi\":{\"enabled\":true,\"processes_per_host\":8}}"},
    {"torchrun", "torchrun is \"torch_distributed\""}};

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static inline verdict say(answer *a, verdict v, const char *format, ...)
{
    size_t n = strlen(a->text);
    va_list list;
    if (v > a->verdict) a->verdict = v;
    n += (size_t)snprintf(a->text + n, sizeof a->text - n, "%s", n ? "; " : "");
    va_start(list, format);
    if (n < sizeof a->text) vsnprintf(a->text + n, sizeof a->text - n, format, list);
    va_end(list);
    return a->verdict;
}

/* How many letters to change, leave out or add (Levenshtein). */
static inline int distance(const char *a, const char *b)
{
    int row[65], n = (int)strlen(b), corner;
    for (int k = 0; k <= n; k++) row[k] = k;
    for (int i = 0; a[i]; i++) {
        corner = row[0], row[0] = i + 1;
        for (int k = 1; k <= n; k++) {
            int change = corner + (a[i] != b[k - 1]), other = (row[k] < row[k - 1] ? row[k] : row[k - 1]) + 1;
            corner = row[k], row[k] = change < other ? change : other;
        }
    }
    return row[n];
}

/* Are all names in `in` of the list? Else says what is meant; hints: it may be one of those that are told. */
static inline int names(const json *j, const value *in, const char *const *list, int hints, answer *a)
{
    int good = 1;
    for (int i = 0; i < j->count; i++) {
        const char *name = j->value[i].name, *hint = NULL, *nearest = "";
        int least = (int)strlen(name) / 2 + 1, d;
        if (j->value[i].parent != (int)(in - j->value)) continue;
        for (int k = 0; list[k]; k++)
            if ((d = distance(name, list[k])) < least) least = d, nearest = list[k];
        for (size_t k = 0; k < sizeof told / sizeof *told && hints; k++)
            if ((d = distance(name, told[k][0])) < least) least = d, hint = told[k][1];
        if (!least && !hint) continue;
        good = 0;
        if (hint) say(a, WRONG, "\"%s\" is not a key: %s", name, hint);
        else if (*nearest) say(a, WRONG, "\"%s\" is not a key here: the nearest is \"%s\"", name, nearest);
        else say(a, WRONG, "\"%s\" is not a key here: try \"%s\", \"%s\", ..", name, list[0], list[1] ? list[1] : "");
    }
    return good;
}

/* Is a strategy there, well-formed and switched on? */
static inline int enabled(const json *j, const value *in, const strategy *s, answer *a)
{
    const value *v = find(j, in, s->name), *on;
    if (v && v->kind != '{') say(a, WRONG, "\"%s\" is a dictionary: {\"enabled\":true}", s->name);
    if (!v || v->kind != '{' || !names(j, v, s->parameters, 0, a)) return 0;
    on = find(j, v, "enabled");
    if (on && !strchr("tf", on->kind)) return say(a, WRONG, "\"enabled\" is true or false"), 0;
    if (!on || on->kind == 'f') return say(a, WARNING, "\"%s\" is not enabled, so it is left out", s->name), 0;
    return 1;
}

/* Do machines and script suit the strategies that are on? smddp: the library does the collectives. */
static inline void suits(const int on[STRATEGIES], const machines *m, answer *a)
{
    const char *t = m->instance ? m->instance : "", *script = m->script ? m->script : "";
    int old = strstr(script, "smdistributed.dataparallel.torch.distributed") != NULL;
    int smddp = on[DATA] || old || strstr(script, "smddp") != NULL;
    if (!strncmp(t, "ml.trn", 6) && !on[TORCH])
        say(a, WRONG, "Trainium allows torch_distributed alone");
    else if (on[TORCH] && *t && strncmp(t, "ml.trn", 6) != 0 && strncmp(t, "ml.p", 4) != 0 &&
             strncmp(t, "ml.g", 4) != 0)
        say(a, WRONG, "torch_distributed takes instances with GPUs or Trainium");
    if (on[DATA] && !strcmp(t, "ml.p5.48xlarge"))
        say(a, WRONG, "the SDK refuses SMDDP on p5: take torch_distributed, with NCCL over EFA");
    else if (smddp && (!strcmp(t, "ml.p3.16xlarge") || !strcmp(t, "ml.p3dn.24xlarge")))
        say(a, WARNING, "p3 is on the SDK's old list, but no longer in the guide (p4d, p4de)");
    else if (smddp && *t && strcmp(t, "ml.p4d.24xlarge") != 0 && strcmp(t, "ml.p4de.24xlarge") != 0)
        say(a, WARNING, "SMDDP is for p4d and p4de: %s", on[DATA] ? "most versions of the SDK refuse it here, and "
            "nothing falls back: take pytorchddp or torch_distributed, with NCCL" : "take backend=\"nccl\"");
    if (smddp && m->instances == 1) say(a, WARNING, "SMDDP gains nothing on one instance: NVLink is fast enough");
    if (old)
        say(a, WARNING, "this wrapper is deprecated since SMDDP 1.4.0: import smdistributed.dataparallel.torch."
                        "torch_smddp, then init_process_group(backend=\"smddp\")");
    else if (smddp && on[TORCH])
        say(a, WARNING, "under torchrun SMDDP has its all-gather alone: for its all-reduce take pytorchddp");
    else if (on[DATA] && strstr(script, "\"nccl\""))
        say(a, WARNING, "backend=\"nccl\" leaves SMDDP unused: backend=\"smddp\"");
}

static inline verdict decide(const char *text, const machines *m, answer *a)
{
    const value *smd, *parameters;
    int on[STRATEGIES], count = 0, launchers = 0, first = -1;
    json j;
    memset(a, 0, sizeof *a);
    snprintf(a->starts, sizeof a->starts, "nothing");
    if (!read_json(&j, text)) return say(a, WRONG, "%s", j.error);
    if (j.value[0].kind != '{') return say(a, WRONG, "a distribution is a dictionary, {..}");
    names(&j, &j.value[0], top, 1, a);
    smd = find(&j, &j.value[0], "smdistributed");
    if (smd && smd->kind != '{') say(a, WRONG, "\"smdistributed\" is a dictionary: {\"dataparallel\":{..}}");
    else if (smd) names(&j, smd, inside, 0, a);
    if (find(&j, smd, "dataparallel") && find(&j, smd, "modelparallel"))
        say(a, WRONG, "two strategies in \"smdistributed\", of which the SDK takes one: SMDDP or SMP");
    for (int i = 0; i < STRATEGIES; i++) {
        on[i] = enabled(&j, i < OUTER ? &j.value[0] : smd, &known[i], a);
        count += on[i], launchers += on[i] && i != MODEL;
        if (on[i] && first < 0) first = i;
    }
    if (a->verdict == WRONG) return WRONG;
    if (launchers > 1) return say(a, WRONG, "%d launchers at once, a job has one: keep \"%s\" or another", launchers,
                                  known[first].name);
    if (!count) return say(a, WARNING, "no strategy: one process on each machine, and none knows of the others");
    if (on[MODEL] && !on[MPI] && !on[TORCH])
        return say(a, WRONG, "SMP takes a launcher: add \"mpi\" (SMP 1) or \"torch_distributed\" (SMP 2)");
    parameters = find(&j, find(&j, smd, "modelparallel"), "parameters");
    if (on[MODEL] && on[MPI] && !find(&j, parameters, "partitions") &&
        !find(&j, parameters, "pipeline_parallel_degree"))
        return say(a, WRONG, "SMP 1 takes \"parameters\":{\"pipeline_parallel_degree\":N}");
    if (on[MODEL] && on[TORCH] && find(&j, parameters, "pipeline_parallel_degree"))
        return say(a, WRONG, "SMP 2 has no pipeline: hybrid_shard_degree, tensor_, context_, expert_parallel_degree");
    if (on[MODEL] && on[MPI] && find(&j, parameters, "sharded_data_parallel_degree") &&
        (find(&j, parameters, "tensor_parallel_degree") || find(&j, parameters, "shard_optimizer_state")))
        return say(a, WRONG, "SMP 1 shards data parallel or cuts the model, not both");
    suits(on, m, a);
    if (on[MODEL]) snprintf(a->starts, sizeof a->starts, "%s, SMP", on[MPI] ? "mpirun" : "torchrun");
    else snprintf(a->starts, sizeof a->starts, "%s", known[first].starts);
    if (a->verdict == WRONG) snprintf(a->starts, sizeof a->starts, "nothing");
    return a->verdict;
}
