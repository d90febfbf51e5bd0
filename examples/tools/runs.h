/* runs.h: reads what --metrics and --timeline wrote, and says what happened. For report.c, which shows it.
 *
 * A file of --metrics has a line for the run, and one for each step; a resumed run appends both. Readers take what they
 * know, and leave out a line that is not whole. Of dtrain.h this needs the declarations alone. */
#ifndef DTRAIN_RUNS_H
#define DTRAIN_RUNS_H

#include "../../dtrain.h"
/* What rules.h and the check of versions need of the implementation. */
const int DT__LINK_VERSION = 0;
dt_result dt_error(dt_result code, const char *format, ...) { return (void)format, code; }
#include "../rules.h"
#include <ctype.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME = 64, SENTENCE = 2000 };

/* Adds to a text, and returns 0. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static int say(char text[SENTENCE], const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, SENTENCE - used, format, args);
    va_end(args);
    return 0;
}

/* Is a word of this name among words that blanks separate? */
static int has_word(const char *words, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = words; n && (p = strstr(p, name)) != NULL; p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || !p[n])) return 1;
    return 0;
}

static double known_or(double x, double other) { return x == x ? x : other; }

/* ---- JSON: a text is read as it comes, and what is cut off or wrong ends it ---- */

typedef struct slice {
    const char *at, *end;
} slice;

/* Takes a value off the front of what is inside a list or an object, with the comma or colon before it. */
static slice json_value(slice *s)
{
    slice v;
    int depth = 0, quoted = 0;
    while (s->at < s->end && strchr(" \t\r\n,:", *s->at)) s->at++;
    for (v = *s; s->at < s->end && (quoted || depth || !strchr(",:]}", *s->at)); s->at++) {
        if (quoted && *s->at == '\\' && s->at + 1 < s->end) s->at++;
        else if (*s->at == '"') quoted = !quoted;
        else if (!quoted) depth += (*s->at == '{' || *s->at == '[') - (*s->at == '}' || *s->at == ']');
    }
    for (v.end = s->at; v.end > v.at && strchr(" \t\r\n", v.end[-1]);) v.end--;
    return v;
}

/* What is inside the brackets of a list or an object. */
static slice json_inside(slice v)
{
    v.at += v.at < v.end;
    return v;
}

/* The next element of a list, or with a key the next member of an object; 0: that was all. */
static int json_next(slice *in, slice *key, slice *value)
{
    if (key) *key = json_value(in);
    *value = json_value(in);
    return value->at < value->end;
}

static int json_is(slice key, const char *name)
{
    size_t n = strlen(name);
    return (size_t)(key.end - key.at) == n + 2 && !memcmp(key.at + 1, name, n);
}

/* The member of this name; nothing: there is none. */
static slice json_find(slice object, const char *name)
{
    slice key, value, none = {NULL, NULL};
    for (object = json_inside(object); json_next(&object, &key, &value);)
        if (json_is(key, name)) return value;
    return none;
}

/* A number; NaN: it is anything else. */
static double json_number(slice v)
{
    char *end = NULL;
    double x = v.at < v.end && strchr("-0123456789", *v.at) ? strtod(v.at, &end) : 0;
    return end && end == v.end && x - x == 0.0 ? x : (double)NAN;
}
static double json_number_of(slice object, const char *name) { return json_number(json_find(object, name)); }

/* Bytes of the character at p; 0: it is not well-formed UTF-8, or a control character but line break and tab. */
static int text_length(const char *at)
{
    const unsigned char *p = (const unsigned char *)at;
    int n = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
    for (int i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (n == 1 && (*p < 32 || *p == 127)) return *p == '\n' || *p == '\t';
    if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) || (*p == 0xf0 && p[1] < 0x90)) return 0;
    return (*p == 0xf4 && p[1] > 0x8f) || (*p == 0xef && p[1] == 0xbf && p[2] > 0xbd) ? 0 : n;
}

/* A string, decoded, or a number as it stands; what is not a character becomes a question mark. */
static const char *json_text(slice v, char *text, size_t size)
{
    size_t n = 0;
    if (v.at < v.end && *v.at == '"') v.at++, v.end -= v.end > v.at && v.end[-1] == '"';
    while (v.at < v.end && n + 1 < size) {
        char c = *v.at++;
        unsigned code = 0;
        if (c == '\\' && v.at < v.end) {
            c = *v.at++;
            if (c == 'u' && v.end - v.at >= 4 && sscanf(v.at, "%4x", &code) == 1) v.at += 4;
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'u' && code < 128 ? (char)code : strchr("urbf", c) ? 0 : c;
        }
        text[n++] = c;
    }
    text[n] = 0;
    for (char *p = text; p < text + n; p += text_length(p) ? text_length(p) : 1)
        if (!text_length(p)) *p = '?';
    return text;
}

/* The whole of a file with a NUL after it; NULL: it cannot be read. */
static char *file_read(const char *path, size_t *bytes)
{
    struct stat is;
    FILE *f = stat(path, &is) || !S_ISREG(is.st_mode) ? NULL : fopen(path, "rb");
    char *text = f ? (char *)malloc((size_t)is.st_size + 1) : NULL;
    *bytes = text ? fread(text, 1, (size_t)is.st_size, f) : 0;
    if (text) text[*bytes] = 0;
    if (f) fclose(f);
    return text;
}

/* ---- a trace ---- */

enum { TRACE_OTHER = 5, TRACE_CLASSES, TRACE_LANES = 32 };
static const char *const trace_classes[] = {"forward", "backward", "recompute", "update", "exchange", "other"};
static const char *const trace_words[] = {"FORWARD", "BACKWARD WEIGHTS", "RECOMPUTE", "UPDATE",
                                          "EXCHANGE SEND RECV CONTEXT REDUCE GATHER TIE"};
typedef struct trace_bar {
    double begin, end; /* microseconds */
    int lane, of;      /* of: class */
} trace_bar;
typedef struct trace {
    trace_bar *bar;
    int64_t bars, room;
    int lanes;
    double id[TRACE_LANES], end, rank[TRACE_CLASSES]; /* rank: seconds of rank 0 */
    char name[TRACE_LANES][NAME];
} trace;

/* Takes an event: the name of a thread, which makes its lane, or a bar; 0: no memory. */
static int trace_event(trace *t, slice e)
{
    char name[NAME];
    double id = json_number_of(e, "tid"), begin = json_number_of(e, "ts"), end = begin + json_number_of(e, "dur");
    int lane = 0, bar = json_is(json_find(e, "ph"), "X");
    trace_bar *b;
    while (lane < t->lanes && t->id[lane] != id) lane++;
    if (json_is(json_find(e, "name"), "thread_name") && lane == t->lanes && lane < TRACE_LANES)
        json_text(json_find(json_find(e, "args"), "name"), t->name[lane], NAME), t->id[t->lanes++] = id;
    if (!bar || lane == t->lanes || !(begin >= 0 && end >= begin && end < 1e15)) return 1;
    if (!rules_reserve((void **)&t->bar, &t->room, t->bars + 1, sizeof *b)) return 0;
    b = &t->bar[t->bars++];
    b->begin = begin, b->end = end, b->lane = lane, b->of = 0;
    json_text(json_find(e, "cat"), name, sizeof name);
    while (b->of < TRACE_OTHER && !has_word(trace_words[b->of], name)) b->of++;
    t->end = fmax(t->end, end);
    if (json_number_of(e, "pid") == 0) t->rank[b->of] += 1e-6 * (end - begin);
    return 1;
}

/* Reads a trace of --timeline or of a simulation. */
static int trace_open(trace *t, const char *path, char why[SENTENCE])
{
    size_t bytes;
    char *text = file_read(path, &bytes);
    slice list, event;
    memset(t, 0, sizeof *t);
    *why = 0;
    if (!text) return say(why, "cannot read %s: check the name. --timeline FILE of a run writes one", path);
    list.at = text + strspn(text, " \t\r\n"), list.end = text + bytes;
    list = json_inside(*list.at == '[' ? list : json_find(list, "traceEvents"));
    while (!*why && json_next(&list, NULL, &event))
        if (*event.at == '{' && !trace_event(t, event)) say(why, "no memory for %s", path);
    if (!*why && !t->bars) say(why, "%s is not a trace, or is empty: name a file that --timeline wrote", path);
    free(text);
    if (*why) free(t->bar), t->bar = NULL;
    return !*why;
}

/* ---- a run ---- */

/* What is read of a line: numbers, lists of the ranks, texts. */
#define RUN_COLUMNS(X) \
    X(step) X(loss) X(validation) X(norm) X(seconds) X(tokens) X(elapsed) X(peak_share) X(save_seconds) X(sent_bytes) \
    X(far_bytes) X(gradient_bytes) X(gradient_far) X(rules_fired) X(rank_work) X(rank_exposed) X(rank_agree) \
    X(rank_data) X(rank_seconds) X(rank_memory) X(sample) X(sha256) X(error) X(version)
#define RUN_COLUMN(name) c_##name,
enum { RUN_COLUMNS(RUN_COLUMN) COLUMNS, NUMBERS = c_rank_work };
#define RUN_NAME(name) #name,
static const char *const run_columns[] = {RUN_COLUMNS(RUN_NAME)};
/* Where time goes. The first parts, seconds and memory are listed of each rank at a step. */
enum { PART_WORK, PART_EXPOSED, PART_AGREE, PART_DATA, PART_OTHER, PART_SAVE, PART_BETWEEN, PART_START, PARTS };
enum { RANK_SECONDS = PART_OTHER, RANK_MEMORY, RANK_KINDS };
static const char *const part_names[] = {"computing", "exposed communication", "waiting for late ranks",
                                         "waiting for data", "rest of the steps", "checkpoints",
                                         "validation, samples, rules", "start"};
/* Numbers of a whole run, and how page.h writes them. */
#define RUN_FACTS(F) \
    F(STEP, "last step", in_digits) F(LOSS, "loss", in_digits) F(VALIDATION, "validation loss, last", in_digits) \
    F(BEST, "validation loss, lowest", in_digits) F(SHORTEST, "step, shortest", in_seconds) \
    F(MEDIAN, "step, median", in_seconds) F(P90, "step, p90", in_seconds) F(P99, "step, p99", in_seconds) \
    F(LONGEST, "step, longest", in_seconds) F(MEAN, "step, mean", in_seconds) F(SUM, "steps, sum", in_seconds) \
    F(SPEED, "tokens per second", in_digits) F(PEAK, "share of the machine's peak", in_percent) \
    F(SENT, "bytes sent by rank 0", in_digits) F(MEMORY, "memory of a rank, most", in_bytes) \
    F(PARAMETERS, "parameters", in_digits)
#define RUN_FACT(name, what, in) FACT_##name,
enum { RUN_FACTS(RUN_FACT) FACTS };

typedef struct run_step {
    double of[NUMBERS]; /* NaN: not known */
    slice line, list[RANK_KINDS], sample;
} run_step;
enum { RUN_COMPLETE, RUN_RUNNING, RUN_STOPPED, RUN_FAILED };
typedef struct run {
    const char *path;
    char name[NAME], *text;
    size_t bytes;
    slice head; /* the last line for a run */
    trace measured, simulated;
    run_step *step;
    int64_t steps, timed, goal;                 /* goal 0: not known */
    int ranks, resumed, redone, broken, locked, state, firings; /* broken: lines that are not whole */
    double *order, (*sum)[RANK_KINDS];          /* (timed): seconds of steps, sorted; (ranks): of all steps */
    double part[PARTS], all, fact[FACTS], best; /* part: mean over ranks; best: step of the lowest validation loss */
    dt_firing fired[DT_RULE_COUNT];             /* times 0: it has not */
    char error[SENTENCE], hash[80], what[SENTENCE], health[SENTENCE], next[SENTENCE], command[SENTENCE];
    int ill;  /* 1: a fault, 2: a remark */
    int loss; /* 0: it fell, 1: it rose or is not a number, 2: it stands still */
    int late; /* the rank that waits least where one waits for more than 30 % of its time; -1: none */
} run;

/* An option of the recipe or the layout as a text; "": there is none. */
static const char *run_option(const run *r, const char *name, char text[SENTENCE])
{
    slice v = json_find(json_find(r->head, "recipe"), name);
    return json_text(v.at ? v : json_find(json_find(r->head, "layout"), name), text, SENTENCE);
}
static double run_option_number(const run *r, const char *name)
{
    char text[SENTENCE], *end;
    double x = strtod(run_option(r, name, text), &end);
    return *text && !*end && x - x == 0.0 ? x : (double)NAN;
}

/* The next of the usual options, its value in this run, and whether that is the usual one; 0: that was all. */
static int run_next_option(const run *r, slice *in, char name[NAME], char is[SENTENCE], int *usual)
{
    char was[SENTENCE];
    slice key, value;
    if (!json_next(in, &key, &value)) return 0;
    run_option(r, json_text(key, name, NAME), is), *usual = !strcmp(is, json_text(value, was, sizeof was));
    return 1;
}

static void run_close(run *r)
{
    free(r->text), free(r->step), free(r->order), free(r->sum), free(r->measured.bar), free(r->simulated.bar);
    memset(r, 0, sizeof *r);
}

/* Does a trainer lock its file of metrics? Where the system does not tell: is the file less than a minute old? */
static int run_locked(const char *path)
{
    char line[256], inode[32];
    struct stat is;
    int found = 0;
    FILE *f = fopen("/proc/locks", "r");
    if (stat(path, &is)) is.st_ino = 0, is.st_mtime = 0;
    snprintf(inode, sizeof inode, ":%llu ", (unsigned long long)is.st_ino);
    while (f && !found && fgets(line, sizeof line, f)) found = strstr(line, "FLOCK") && strstr(line, inode);
    if (!f) return time(NULL) - is.st_mtime < 60;
    fclose(f);
    return found;
}

/* Takes a line. Steps that an earlier run made after its last checkpoint are replaced. */
static void run_line(run *r, slice line)
{
    slice in = json_inside(line), key, value, at[COLUMNS];
    double number;
    memset(at, 0, sizeof at);
    while (json_next(&in, &key, &value))
        for (int c = 0; c < COLUMNS; c++)
            if (json_is(key, run_columns[c])) at[c] = value;
    number = json_number(at[c_step]);
    if (at[c_version].at) r->resumed += r->steps > 0, r->head = line, *r->error = 0;
    else if (!(number >= 0 && number < 9e15)) r->broken++;
    else if (at[c_error].at) json_text(at[c_error], r->error, sizeof r->error);
    else {
        run_step *s;
        while (r->steps && r->step[r->steps - 1].of[c_step] >= number) r->steps--, r->redone++;
        s = &r->step[r->steps++], s->line = line, s->sample = at[c_sample];
        for (int c = 0; c < NUMBERS; c++) s->of[c] = json_number(at[c]);
        for (int k = 0; k < RANK_KINDS; k++) s->list[k] = json_inside(at[c_rank_work + k]);
        json_text(at[c_sha256], r->hash, sizeof r->hash);
    }
}

/* Adds up the time of each rank, and passes it to the rules as a trainer with --rules does. */
static void run_add(run *r, const run_step *s, dt_rules *rules)
{
    slice list[RANK_KINDS], value;
    memcpy(list, s->list, sizeof list);
    for (int q = 0; q < r->ranks; q++) {
        double of[RANK_KINDS], *sum = r->sum[q];
        dt_rank_step now;
        for (int k = 0; k < RANK_KINDS; k++) {
            of[k] = json_next(&list[k], NULL, &value) ? known_or(json_number(value), 0) : 0;
            sum[k] = k == RANK_MEMORY ? fmax(sum[k], of[k]) : sum[k] + of[k];
        }
        memset(&now, 0, sizeof now);
        now.step = (int64_t)s->of[c_step], now.rank = q, now.seconds = of[RANK_SECONDS], now.data = of[PART_DATA];
        now.waiting = of[PART_EXPOSED] + of[PART_AGREE], now.at = known_or(s->of[c_elapsed], 0);
        now.memory = s - r->step >= RULES_BLOCK ? of[RANK_MEMORY] : 0;
        dt_rules_step(rules, &now);
    }
}

/* Passes all steps to the rules, and adds the rules that fired in the trainer; 0: no memory. */
static int run_rules(run *r)
{
    dt_rules *rules = NULL;
    double sum = 0, count = 0;
    if (dt_rules_open(&rules, r->ranks)) return 0;
    dt_rules_set(rules, DT_RULE_LOSS_NOT_DECREASING, 0, 50);
    for (const run_step *s = r->step; s < r->step + r->steps; s++) {
        int64_t step = (int64_t)s->of[c_step];
        double validation = s->of[c_validation], bits = s->of[c_rules_fired];
        sum += s->of[c_loss], count++;
        if (count >= 10 || validation == validation) dt_rules_loss(rules, step, sum / count), sum = count = 0;
        if (validation == validation) dt_rules_validation(rules, step, validation);
        run_add(r, s, rules);
        for (int k = 0; k < DT_RULE_COUNT; k++) {
            dt_firing *f = &r->fired[k];
            if (f->times || !(bits >= 0 && bits < 4e9) || !((uint64_t)bits >> k & 1)) continue;
            f->times = 1, f->step = step, f->rank = -1, f->value = (double)NAN, f->bound = rules_at(k)->bound[0];
        }
    }
    for (int k = 0; k < DT_RULE_COUNT; k++) {
        if (dt_rules_fired(rules, k)) r->fired[k] = *dt_rules_fired(rules, k);
        r->firings += r->fired[k].times > 0;
    }
    dt_rules_close(&rules);
    return 1;
}

/* Where the time went, and which rank was late. */
static void run_parts(run *r)
{
    double *part = r->part, before = 0, least = (double)INFINITY, most = 0;
    for (int q = 0; q < r->ranks; q++) {
        const double *sum = r->sum[q];
        double all = sum[RANK_SECONDS], waits = all > 0 ? (sum[PART_EXPOSED] + sum[PART_AGREE]) / all : 0;
        for (int k = 0; k < PART_OTHER; k++) part[k] += sum[k] / r->ranks, all -= sum[k];
        part[PART_OTHER] += fmax(0, all) / r->ranks;
        most = fmax(most, waits);
        if (waits < least) least = waits, r->late = q;
    }
    if (most <= 0.3 || least >= most / 2) r->late = -1;
    for (int64_t i = 0; i < r->steps; i++) {
        const double *of = r->step[i].of;
        double save = known_or(of[c_save_seconds], 0), outside = of[c_elapsed] - known_or(of[c_seconds], 0);
        int first = !i || of[c_elapsed] < before; /* of a start */
        part[PART_SAVE] += save;
        if (!(outside == outside)) continue;
        part[first ? PART_START : PART_BETWEEN] += fmax(0, first ? outside : outside - before - save);
        before = of[c_elapsed];
    }
    for (int k = 0; k < PARTS; k++) r->all += part[k];
}

static int run_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run_facts(run *r)
{
    static const int percent[] = {0, 50, 90, 99, 100};
    double *fact = r->fact, seconds = 0, tokens = 0, peak = 0;
    for (int k = 0; k < FACTS; k++) fact[k] = (double)NAN;
    for (int64_t i = 0; i < r->steps; i++) {
        const double *of = r->step[i].of, own = known_or(of[c_seconds], 0);
        if (of[c_seconds] == of[c_seconds]) r->order[r->timed++] = own;
        seconds += own, tokens += known_or(of[c_tokens], 0), peak += known_or(of[c_peak_share], 0) * own;
        fact[FACT_STEP] = of[c_step], fact[FACT_LOSS] = of[c_loss];
        fact[FACT_SENT] = known_or(fact[FACT_SENT], 0) + of[c_sent_bytes];
        fact[FACT_VALIDATION] = known_or(of[c_validation], fact[FACT_VALIDATION]);
        if (of[c_validation] < known_or(fact[FACT_BEST], (double)INFINITY))
            fact[FACT_BEST] = of[c_validation], r->best = of[c_step];
    }
    qsort(r->order, (size_t)r->timed, sizeof *r->order, run_order);
    for (int k = 0; k < 5 && r->timed; k++) { /* the least that so many do not exceed */
        int64_t up_to = (r->timed * percent[k] + 99) / 100;
        fact[FACT_SHORTEST + k] = r->order[up_to ? up_to - 1 : 0];
    }
    if (seconds > 0) fact[FACT_SPEED] = tokens / seconds, fact[FACT_PEAK] = 100 * peak / seconds;
    if (r->timed) fact[FACT_MEAN] = seconds / (double)r->timed, fact[FACT_SUM] = seconds;
    for (int q = 0; q < r->ranks; q++)
        if (r->sum[q][RANK_MEMORY] > 0) fact[FACT_MEMORY] = fmax(fact[FACT_MEMORY], r->sum[q][RANK_MEMORY]);
    fact[FACT_PARAMETERS] = json_number_of(r->head, "parameters");
}

/* ---- the verdict ---- */

/* A word for a shell. */
static void say_word(char text[SENTENCE], const char *word)
{
    int plain = *word && *word != '-';
    for (const char *p = word; *p && plain; p++) plain = isalnum((unsigned char)*p) || strchr("_./,:=+-", *p) != NULL;
    say(text, plain ? " %s" : " '", word);
    if (plain) return;
    for (; *word; word++) say(text, "%s%c", *word == '\'' ? "'\\'" : "", *word);
    say(text, "'");
}

/* A name, or for another run one beside it. */
static void say_beside(char text[SENTENCE], const char *name, int other)
{
    char is[SENTENCE] = "";
    size_t n = strlen(name), end = n > 6 && !strcmp(name + n - 6, ".jsonl") ? n - 6 : n;
    while (end > 1 && name[end - 1] == '/') end--;
    say(is, "%.*s%s%s", (int)end, name, other ? "-next" : "", name + end), say_word(text, is);
}

/* The command of the run, or with options of a rule that of another run beside it. Words in them stand for numbers. */
static void run_command(const run *r, const char *more, char to[SENTENCE])
{
    static const char flags[] = "rope-untruncated tied nesterov evaluate-ema sequence-parallel offload verify-compiler "
                                "no-memory-check no-cache quiet checkpoint-async qkv-bias o-bias mlp-bias qk-norm";
    static const char always[] = "layers heads width sequence batch data-shards steps learning-rate warmup eval-every "
                                 "sample-every sample-length checkpoint-every"; /* build.sh run has its own values */
    static const char settled[] = "vocabulary threads micro-batch overlap metrics quiet"; /* by the trainer, or ours */
    static const char *const words[] = {"LR*3", "LR/4", "BATCH*4", "STEPS*2", "BEST"};
    double rate = run_option_number(r, "learning-rate"), batch = run_option_number(r, "batch");
    const double number[] = {rate > 0 ? 3 * rate : 1e-3, rate / 4, 4 * batch, 2 * (double)r->goal, r->best};
    char name[NAME], option[NAME + 3], is[SENTENCE];
    int usual;
    *to = 0, say(to, "./build.sh run");
    for (slice in = json_inside(json_find(r->head, "usual")); run_next_option(r, &in, name, is, &usual);) {
        int own = !strcmp(name, "micro-batch") ? strtod(is, NULL) < batch
                  : !has_word(settled, name) && (has_word(always, name) || !usual);
        snprintf(option, sizeof option, "--%s", name);
        if (!own || has_word(more, option) || (*more && has_word("resume resume-step mirror", name))) continue;
        say(to, " %s", option);
        if (!has_word(flags, name)) say_beside(to, is, *more && !strcmp(name, "checkpoint"));
    }
    say(to, " --ranks %d --metrics", r->ranks), say_beside(to, r->path, *more), say(to, *more ? " " : "");
    while (*more) {
        int k = 0;
        while (k < 5 && strncmp(more, words[k], strlen(words[k]))) k++;
        if (k == 5) say(to, "%c", *more++);
        else say(to, "%.6g", number[k]), more += strlen(words[k]);
    }
}

/* The first rule that fired, rather one that other faults do not cause; -1: none. */
static int run_cause(const run *r)
{
    int cause = -1;
    for (int k = 0; k < DT_RULE_COUNT; k++)
        if (r->fired[k].times && (cause < 0 || cause == DT_RULE_LOSS_NOT_DECREASING || cause == DT_RULE_STEP_OUTLIER))
            cause = k;
    return cause;
}

/* What to do next: the first row that applies. */
static void run_advise(run *r)
{
    char place[SENTENCE], fired[NAME];
    int over = r->state == RUN_STOPPED || r->state == RUN_FAILED, cause = run_cause(r);
    const struct {
        int applies;
        const char *whose, *what, *options; /* options NULL: look again */
    } rows[] = {
        {r->loss == 1 || (r->state == RUN_FAILED && strstr(r->error, "not finite")), "",
         "Train with a quarter of the learning rate, with warm-up and clipping",
         dt_rule_next(DT_RULE_EXPLODING_TENSOR)},
        {r->loss == 2, "The loss stands still: ", dt_rule_advice(DT_RULE_LOSS_NOT_DECREASING),
         dt_rule_next(DT_RULE_LOSS_NOT_DECREASING)},
        {over && !*run_option(r, "checkpoint", place), "", "No checkpoint was kept: start again, and keep some",
         "--checkpoint build/runs/report --checkpoint-every 100"},
        {over, "", "The same command again resumes from the newest checkpoint", ""},
        {cause >= 0, fired, dt_rule_advice(cause), dt_rule_next(cause)},
        {r->state == RUN_RUNNING, "", "Wait until the run ends; this page follows it", NULL},
        {1, "", "Train longer: no rule has found a reason to stop", r->goal ? "--steps STEPS*2" : ""}};
    int k = 0;
    snprintf(fired, sizeof fired, "%s: ", dt_rule_name(cause));
    while (!rows[k].applies) k++;
    say(r->next, "%s%s", rows[k].whose, rows[k].what);
    if (rows[k].options) run_command(r, rows[k].options, r->command);
    else say(r->command, "./build.sh report"), say_word(r->command, r->path), say(r->command, " --follow");
}

/* How did it go? */
static void run_judge(run *r)
{
    int64_t tenth = r->steps / 10 + 1;
    double end = 0, first = r->steps ? r->step->of[c_loss] : 0;
    r->state = r->goal && r->fact[FACT_STEP] >= (double)r->goal ? RUN_COMPLETE
               : *r->error ? strncmp(r->error, "stopped ", 8) ? RUN_FAILED : RUN_STOPPED
               : r->locked ? RUN_RUNNING : RUN_STOPPED;
    for (int64_t i = r->steps - tenth; i >= 0 && i < r->steps; i++) end += r->step[i].of[c_loss] / (double)tenth;
    if (r->steps) r->loss = !(end <= 1.02 * first) ? 1 : r->steps >= 20 && end > 0.99 * first ? 2 : 0;
    r->ill = r->state == RUN_FAILED || r->loss ? 1 : r->firings || r->state == RUN_STOPPED ? 2 : 0;
    for (int k = 0; k < DT_RULE_STEP_OUTLIER; k++) /* a loss that has fallen may stand still */
        if (r->fired[k].times && (k != DT_RULE_LOSS_NOT_DECREASING || end > 0.9 * first)) r->ill = 1;
}

/* The verdict in words. */
static void run_tell(run *r)
{
    static const char *const states[] = {"Complete", "Running", "Stopped early", "Failed"};
    static const char *const ills[] = {"Healthy", "Not healthy", "Healthy, with a remark"};
    static const char *const losses[] = {"", ": the loss rose", ": the loss stands still"};
    const char *comma = ":";
    say(r->what, r->steps ? "%s: step %.0f" : "%s: no step was taken", states[r->state], r->fact[FACT_STEP]);
    if (r->steps && r->goal) say(r->what, " of %lld", (long long)r->goal);
    if (r->steps)
        say(r->what, ", loss %.4f to %.4f, %.4g s on %d rank%s", r->step->of[c_loss], r->fact[FACT_LOSS], r->all,
            r->ranks, r->ranks == 1 ? "" : "s");
    if (*r->error) say(r->what, ". Error: %s", r->error);
    if (r->resumed) say(r->what, ". Times resumed: %d; steps repeated: %d", r->resumed, r->redone);
    if (r->broken) say(r->what, ". Incomplete lines of the file, left out: %d", r->broken);
    say(r->health, "%s%s. %d of %d rules fired", ills[r->ill], losses[r->loss], r->firings, DT_RULE_COUNT);
    for (int k = 0; k < DT_RULE_COUNT; k++)
        if (r->fired[k].times) say(r->health, "%s %s", comma, dt_rule_name(k)), comma = ",";
    if (r->all > 0)
        say(r->health, ". Waiting for other ranks and messages took %.1f %% of the time",
            100 * (r->part[PART_EXPOSED] + r->part[PART_AGREE]) / r->all);
    if (r->late >= 0) say(r->health, "; rank %d waits least: the others wait for it", r->late);
}

/* Reads a file of --metrics. A sentence in `why` where it cannot be shown; then nothing is kept. */
static int run_open(run *r, const char *path, char why[SENTENCE])
{
    const char *base = strrchr(path, '/'), *next;
    size_t n, lines = 1;
    double ranks;
    memset(r, 0, sizeof *r);
    *why = 0;
    r->path = path, r->locked = run_locked(path); /* before the text: a lock may end while it is read */
    snprintf(r->name, sizeof r->name - 4, "%s", base ? base + 1 : path), n = strlen(r->name);
    if (n > 6 && !strcmp(r->name + n - 6, ".jsonl")) r->name[n - 6] = 0;
    r->text = file_read(path, &r->bytes);
    if (!r->text) return say(why, "cannot read %s: check the name. --metrics FILE of a run writes one", path);
    if (!r->bytes) say(why, "%s is empty: the run has not begun, or the disk is full. --follow waits for it", path);
    for (const char *at = r->text; at < r->text + r->bytes; at++) lines += !*at || *at == '\n';
    r->step = (run_step *)malloc(lines * sizeof *r->step), r->order = (double *)malloc(lines * sizeof *r->order);
    for (const char *at = r->text; r->step && at < r->text + r->bytes && !*why; at = next + 1) {
        slice line;
        line.at = at + strspn(at, " \t\r"), next = line.end = line.at + strcspn(line.at, "\n");
        while (line.end > line.at && line.end[-1] == '\r') line.end--;
        if (line.at == line.end) continue;
        if (!r->head.at && !r->steps && !json_find(line, "version").at && !json_find(line, "step").at)
            say(why, "%s is not a file of --metrics: its first line has no version. Name one that a run wrote", path);
        else if (*next != '\n' || *line.at != '{' || line.end[-1] != '}') r->broken++;
        else run_line(r, line);
    }
    ranks = json_number_of(r->head, "ranks"), r->ranks = ranks >= 1 && ranks <= 4096 ? (int)ranks : 1;
    r->sum = (double(*)[RANK_KINDS])calloc((size_t)r->ranks, sizeof *r->sum);
    if (!*why && (!r->step || !r->order || !r->sum || !run_rules(r))) say(why, "no memory for %s: cut it", path);
    if (*why) return run_close(r), 0;
    r->goal = (int64_t)fmin(fmax(known_or(run_option_number(r, "steps"), 0), 0), 9e15);
    run_parts(r), run_facts(r), run_judge(r), run_tell(r), run_advise(r);
    return 1;
}

#endif
