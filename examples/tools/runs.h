/* runs.h: reads what --metrics and --timeline wrote, and says what happened. For report.c, which shows it.
 *
 * A file of --metrics has a line for the run, and one for each step; a resumed run appends both. Readers take what they
 * know, keep any other number of a step under its name, and leave out a line that is not whole: that of a run in
 * progress, or of one that was killed. Of dtrain.h this needs the declarations alone. */
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

/* ---- JSON: a text is read as it comes, and what is cut off or wrong ends it ---- */

typedef struct slice {
    const char *at, *end;
} slice;

static void json_blanks(slice *s, const char *skipped)
{
    while (s->at < s->end && strchr(skipped, *s->at)) s->at++;
}

/* Takes a value off the front of a text. */
static slice json_value(slice *s)
{
    slice v = {s->at, s->at};
    int depth = 0, quoted = 0;
    for (const char *p = s->at; p < s->end; p++) {
        if (quoted) {
            if (*p == '\\' && p + 1 < s->end) p++;
            else if (*p == '"') quoted = 0;
        } else if (*p == '"') quoted = 1;
        else if (*p == '{' || *p == '[') depth++;
        else if ((*p == '}' || *p == ']') && !depth) break;
        else if (*p == '}' || *p == ']') depth--;
        else if (*p == ',' && !depth) break;
        v.end = p + 1;
    }
    s->at = v.end;
    while (v.end > v.at && strchr(" \t\r\n", v.end[-1])) v.end--;
    return v;
}

/* The next element of a list that begins at s, whose brackets are off. */
static int json_element(slice *s, slice *value)
{
    json_blanks(s, " \t\r\n,");
    if (s->at >= s->end || *s->at == ']' || *s->at == '}') return 0;
    *value = json_value(s);
    return value->end > value->at;
}

/* The next member of an object. */
static int json_member(slice *s, slice *key, slice *value)
{
    json_blanks(s, " \t\r\n,");
    if (s->at >= s->end || *s->at != '"') return 0;
    for (key->at = key->end = s->at + 1; key->end < s->end && *key->end != '"'; key->end++)
        if (*key->end == '\\' && key->end + 1 < s->end) key->end++;
    if (key->end >= s->end) return 0;
    s->at = key->end + 1;
    json_blanks(s, " \t\r\n");
    if (s->at >= s->end || *s->at++ != ':') return 0;
    json_blanks(s, " \t\r\n");
    *value = json_value(s);
    return 1;
}

/* What is inside the brackets of a list or an object. */
static slice json_inside(slice v)
{
    v.at += v.at < v.end;
    return v;
}

static int json_is(slice key, const char *name)
{
    return (size_t)(key.end - key.at) == strlen(name) && !memcmp(key.at, name, strlen(name));
}

/* The member of this name; nothing: there is none. */
static slice json_find(slice object, const char *name)
{
    slice key, value, none = {NULL, NULL};
    object = json_inside(object);
    while (json_member(&object, &key, &value))
        if (json_is(key, name)) return value;
    return none;
}

/* A number; NaN: it is anything else. */
static double json_number(slice v)
{
    char text[40], *end;
    size_t n = (size_t)(v.end - v.at);
    double x;
    if (!n || n >= sizeof text || !strchr("-0123456789", *v.at)) return (double)NAN;
    memcpy(text, v.at, n), text[n] = 0;
    x = strtod(text, &end);
    return *end || !(x - x == 0.0) ? (double)NAN : x;
}
static double json_number_of(slice object, const char *name) { return json_number(json_find(object, name)); }

/* Length of the UTF-8 sequence at p; 0: it is not one. */
static int utf8_length(const unsigned char *p, const unsigned char *end)
{
    int n = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
    if (!n || n > end - p) return 0;
    for (int i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) || (*p == 0xf0 && p[1] < 0x90)) return 0;
    return *p == 0xf4 && p[1] > 0x8f ? 0 : n;
}

/* Adds a code point to a text of `size` bytes, if it fits. */
static size_t utf8_put(char *text, size_t used, size_t size, unsigned code)
{
    unsigned char b[4] = {(unsigned char)code};
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : 3;
    if (code >= 0xd800 && code < 0xe000) code = 0xfffd; /* half of a pair: the trainer writes none */
    if (n == 2) b[0] = (unsigned char)(0xc0 | code >> 6);
    if (n == 3) b[0] = (unsigned char)(0xe0 | code >> 12), b[1] = (unsigned char)(0x80 | (code >> 6 & 63));
    if (n > 1) b[n - 1] = (unsigned char)(0x80 | (code & 63));
    if (used + n >= size) return used;
    memcpy(text + used, b, n);
    return used + n;
}

/* A string, decoded, or a number as it stands, as UTF-8 without control characters but line breaks and tabs. */
static const char *json_text(slice v, char *text, size_t size)
{
    size_t used = 0;
    if (v.at < v.end && *v.at == '"') v.at++, v.end -= v.end > v.at && v.end[-1] == '"';
    while (v.at < v.end) {
        int n = utf8_length((const unsigned char *)v.at, (const unsigned char *)v.end);
        unsigned code = n == 1 ? (unsigned char)*v.at : 0xfffd;
        if (*v.at == '\\' && v.at + 1 < v.end) {
            static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
            const char *named = strchr(from, v.at[1]);
            code = named ? (unsigned char)to[named - from] : (unsigned char)v.at[1], n = 2;
            if (code >= 0x80) code = 0xfffd;
            if (v.at[1] == 'u' && v.end - v.at >= 6 && sscanf(v.at + 2, "%4x", &code) == 1) n = 6;
        } else if (n > 1) {
            if (used + (size_t)n < size) memcpy(text + used, v.at, (size_t)n), used += (size_t)n;
            v.at += n;
            continue;
        }
        if ((code < 32 && code != '\n' && code != '\t') || code == 127) code = 0xfffd;
        used = utf8_put(text, used, size, code);
        v.at += n ? n : 1;
    }
    text[used] = 0;
    return text;
}

/* ---- a run ---- */

#define RUN_COLUMNS(X) \
    X(step) X(loss) X(validation) X(norm) X(learning_rate) X(tokens) X(seconds) X(elapsed) X(gflops) X(peak_share) \
    X(comm_seconds) X(exposed_seconds) X(data_seconds) X(save_seconds) X(sent_bytes) X(far_bytes) X(reductions) \
    X(gradient_bytes) X(gradient_far) X(loss_scale) X(skipped) X(rules_fired)
#define RUN_COLUMN(name) c_##name,
enum { RUN_COLUMNS(RUN_COLUMN) RUN_KNOWN, RUN_MOST = RUN_KNOWN + 16 };
#define RUN_NAME(name) #name,
static const char *const run_names[] = {RUN_COLUMNS(RUN_NAME)};
enum { RANK_SECONDS, RANK_WORK, RANK_EXPOSED, RANK_AGREE, RANK_DATA, RANK_MEMORY, RANK_KINDS };
static const char *const rank_names[] = {"rank_seconds", "rank_work", "rank_exposed", "rank_agree", "rank_data",
                                         "rank_memory"};
enum { RUN_RANKS = 4096, NAME = 64, SENTENCE = 2000 };

typedef struct run_step {
    double of[RUN_MOST]; /* NaN: not known */
    double at;           /* seconds since 1970 at its end */
    slice sample;
} run_step;
typedef struct run_part { /* where time went: seconds, mean over ranks */
    double start, work, exposed, agree, data, other, save, between, all;
} run_part;
typedef struct run_firing {
    int rule, rank; /* rank -1: it is not about one */
    int64_t step;   /* 0: not known */
    double value, bound;
} run_firing;
enum { RUN_COMPLETE, RUN_RUNNING, RUN_STOPPED, RUN_FAILED };
typedef struct run {
    const char *path;
    char name[NAME], extra[RUN_MOST - RUN_KNOWN][NAME]; /* extra: names of other numbers */
    char *text;
    size_t bytes;
    slice head; /* the last line for a run */
    run_step *step;
    int64_t steps, room, timed; /* timed: steps that have seconds */
    int64_t goal, redone, broken; /* goal 0: not known; broken: lines that are not whole */
    int resumed, extras, ranks, state;
    float *rank;       /* (steps, RANK_KINDS, ranks): of each step; NaN: not known */
    char error[SENTENCE], hash[80];
    run_part part;
    double sorted[3];  /* p50, p90, p99 of seconds */
    double *order;     /* (timed): seconds, sorted */
    double mean, memory; /* of seconds; most bytes of a rank */
    run_firing fired[DT_RULE_COUNT];
    int firings, locked;
    char what[SENTENCE], health[SENTENCE], next[SENTENCE], command[SENTENCE];
    int ill;           /* 1: a fault, 2: a remark */
    int loss;          /* 0: it fell, 1: it rose or is not a number, 2: it stands still */
    int late;          /* the rank that waits least where one waits for more than 30 % of its time; -1: none */
} run;

static double run_head(const run *r, const char *name) { return json_number_of(r->head, name); }

/* An option of the recipe or the layout as a text; "": there is none. */
static const char *run_option(const run *r, const char *name, char *text, size_t size)
{
    slice v = json_find(json_find(r->head, "recipe"), name);
    if (!v.at) v = json_find(json_find(r->head, "layout"), name);
    return json_text(v, text, size);
}
static double run_option_number(const run *r, const char *name)
{
    char text[NAME], *end;
    double x = strtod(run_option(r, name, text, sizeof text), &end);
    return *text && !*end && x - x == 0.0 ? x : (double)NAN;
}

static void run_close(run *r)
{
    free(r->text), free(r->step), free(r->rank), free(r->order);
    r->text = NULL, r->step = NULL, r->rank = NULL, r->order = NULL;
}

/* The whole of a file with a NUL after it; NULL: it cannot be read. */
static char *file_read(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    size_t room = 0;
    *bytes = 0;
    for (size_t n = 1; f && n; *bytes += n) {
        char *more = *bytes + 65536 > room ? (char *)realloc(text, room = 2 * room + 65537) : text;
        if (!more) return free(text), fclose(f), (char *)NULL;
        text = more, n = fread(text + *bytes, 1, room - 1 - *bytes, f);
    }
    if (text) text[*bytes] = 0;
    if (f && ferror(f)) free(text), text = NULL;
    if (f) fclose(f);
    return text;
}

/* The column of a number, which gets one when it is new; -1: there is no room. */
static int run_column(run *r, slice key)
{
    char name[NAME];
    json_text(key, name, sizeof name);
    for (int c = 0; c < RUN_KNOWN; c++)
        if (!strcmp(run_names[c], name)) return c;
    for (int c = 0; c < r->extras; c++)
        if (!strcmp(r->extra[c], name)) return RUN_KNOWN + c;
    if (r->extras == RUN_MOST - RUN_KNOWN) return -1;
    memcpy(r->extra[r->extras], name, sizeof name);
    return RUN_KNOWN + r->extras++;
}
static const char *run_column_name(const run *r, int c)
{
    return c < RUN_KNOWN ? run_names[c] : r->extra[c - RUN_KNOWN];
}

static void run_ranks(run *r, slice list, int kind, float *to)
{
    slice value;
    list = json_inside(list);
    for (int q = 0; q < r->ranks && json_element(&list, &value); q++)
        to[kind * r->ranks + q] = (float)json_number(value);
}

/* Room for one more step, whose numbers are not known yet; 0: no memory. */
static int run_grow(run *r)
{
    size_t each = (size_t)(RANK_KINDS * r->ranks);
    int64_t room = r->room ? 2 * r->room : 64;
    run_step *s = NULL;
    float *q = NULL;
    if (r->steps == r->room) {
        if ((size_t)room * each > (size_t)1 << 27) return 0;
        s = (run_step *)realloc(r->step, (size_t)room * sizeof *s), r->step = s ? s : r->step;
        q = s ? (float *)realloc(r->rank, (size_t)room * each * sizeof *q) : NULL, r->rank = q ? q : r->rank;
        if (!q) return 0;
        r->room = room;
    }
    memset(&r->step[r->steps], 0, sizeof *r->step);
    for (int c = 0; c < RUN_MOST; c++) r->step[r->steps].of[c] = (double)NAN;
    for (size_t k = 0; k < each; k++) r->rank[(size_t)r->steps * each + k] = NAN;
    return 1;
}

/* A line for a step; 0: no memory. Steps that an earlier run made after its last checkpoint are replaced. */
static int run_line(run *r, slice line)
{
    slice in = json_inside(line), key, value, error = json_find(line, "error");
    double number = json_number_of(line, "step"), begun = run_head(r, "time");
    run_step *s;
    int kind;
    if (!(number >= 0 && number < 9e15)) return r->broken++, 1;
    if (error.at) return json_text(error, r->error, sizeof r->error), 1;
    while (r->steps && r->step[r->steps - 1].of[c_step] >= number) r->steps--, r->redone++;
    if (!run_grow(r)) return 0;
    s = &r->step[r->steps];
    while (json_member(&in, &key, &value)) {
        if (*value.at == '[') {
            for (kind = 0; kind < RANK_KINDS; kind++)
                if (json_is(key, rank_names[kind]))
                    run_ranks(r, value, kind, r->rank + r->steps * RANK_KINDS * r->ranks);
        } else if (*value.at == '"') {
            if (json_is(key, "sample")) s->sample = value;
            if (json_is(key, "sha256")) json_text(value, r->hash, sizeof r->hash);
        } else if ((kind = run_column(r, key)) >= 0) s->of[kind] = json_number(value);
    }
    if (s->of[c_elapsed] == s->of[c_elapsed]) s->at = s->of[c_elapsed] + (begun == begun ? begun : 0);
    r->steps++;
    return 1;
}

/* Does a process hold the lock that a trainer takes of its file of metrics? Where the system does not tell: is the file
 * less than a minute old? */
static int run_locked(const char *path)
{
    char line[256];
    unsigned long long inode;
    struct stat is;
    int found = 0;
    FILE *f = fopen("/proc/locks", "r");
    if (stat(path, &is)) found = -1;
    else if (!f) found = time(NULL) - is.st_mtime < 60;
    while (f && !found && fgets(line, sizeof line, f))
        found = strstr(line, "FLOCK") && sscanf(line, "%*s %*s %*s %*s %*s %*x:%*x:%llu", &inode) == 1 &&
                inode == (unsigned long long)is.st_ino;
    if (f) fclose(f);
    return found > 0;
}

static int run_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of n sorted numbers the least that `percent` of them do not exceed. */
static double run_percentile(const double *x, int64_t n, int percent)
{
    int64_t k = (n * percent + 99) / 100;
    return n ? x[k ? k - 1 : 0] : (double)NAN;
}

static double run_or(double x, double other) { return x == x ? x : other; }

/* A number of a rank at a step; where the file has none, rank 0's own. */
static double run_rank(const run *r, int64_t i, int kind, int q)
{
    const run_step *s = &r->step[i];
    double x = (double)r->rank[(i * RANK_KINDS + kind) * r->ranks + q], all = run_or(s->of[c_seconds], 0);
    double exposed = run_or(s->of[c_exposed_seconds], 0), data = run_or(s->of[c_data_seconds], 0);
    if (x == x) return x;
    return kind == RANK_SECONDS ? all : kind == RANK_EXPOSED ? exposed : kind == RANK_DATA ? data
           : kind == RANK_WORK ? all - exposed - data : kind == RANK_AGREE ? 0 : x;
}

/* Which rank is late? */
static int run_late(const run *r)
{
    double least = (double)INFINITY, most = 0;
    int late = -1;
    for (int q = 0; q < r->ranks; q++) {
        double waits = 0, all = 0;
        for (int64_t i = 0; i < r->steps; i++) {
            all += run_rank(r, i, RANK_SECONDS, q);
            waits += run_or(run_rank(r, i, RANK_EXPOSED, q), 0) + run_or(run_rank(r, i, RANK_AGREE, q), 0);
        }
        waits = all > 0 ? waits / all : 0, most = fmax(most, waits);
        if (waits < least) least = waits, late = q;
    }
    return most > 0.3 && least < most / 2 ? late : -1;
}

/* Percentiles, parts of the time, memory. */
static void run_measure(run *r)
{
    run_part *p = &r->part;
    double before = 0, n_ranks = r->ranks;
    memset(p, 0, sizeof *p);
    for (int64_t i = 0; i < r->steps; i++) {
        const double *of = r->step[i].of;
        double seconds = run_or(of[c_seconds], 0), save = run_or(of[c_save_seconds], 0), elapsed = of[c_elapsed];
        if (of[c_seconds] == of[c_seconds]) r->order[r->timed++] = seconds, r->mean += seconds;
        for (int q = 0; q < r->ranks; q++) {
            double own = run_rank(r, i, RANK_SECONDS, q), parts[4];
            for (int k = 0; k < 4; k++) parts[k] = run_or(run_rank(r, i, RANK_WORK + k, q), 0);
            p->work += parts[0] / n_ranks, p->exposed += parts[1] / n_ranks, p->agree += parts[2] / n_ranks;
            p->data += parts[3] / n_ranks;
            p->other += fmax(0, own - parts[0] - parts[1] - parts[2] - parts[3]) / n_ranks;
            r->memory = fmax(r->memory, run_rank(r, i, RANK_MEMORY, q));
        }
        p->save += save;
        if (!(elapsed == elapsed)) continue;
        if (!i || elapsed < before) p->start += fmax(0, elapsed - seconds); /* the first step of a start */
        else p->between += fmax(0, elapsed - before - seconds - save);
        before = elapsed;
    }
    qsort(r->order, (size_t)r->timed, sizeof *r->order, run_order);
    for (int k = 0; k < 3; k++) r->sorted[k] = run_percentile(r->order, r->timed, k == 0 ? 50 : k == 1 ? 90 : 99);
    r->mean = r->timed ? r->mean / (double)r->timed : (double)NAN;
    r->late = run_late(r);
    p->all = p->start + p->work + p->exposed + p->agree + p->data + p->other + p->save + p->between;
}

/* Passes the numbers of the run to the rules, as a trainer with --rules does, and adds those that it saw itself. */
static void run_rules(run *r)
{
    dt_rules *rules = NULL;
    double sum = 0, count = 0, bits = 0;
    int64_t first[DT_RULE_COUNT] = {0};
    if (dt_rules_open(&rules, r->ranks)) return;
    dt_rules_set(rules, DT_RULE_LOSS_NOT_DECREASING, 0, 50);
    for (int64_t i = 0; i < r->steps; i++) {
        const double *of = r->step[i].of;
        int validated = of[c_validation] == of[c_validation];
        sum += of[c_loss], count++;
        if (count >= 10 || validated) dt_rules_loss(rules, (int64_t)of[c_step], sum / count), sum = count = 0;
        if (validated) dt_rules_validation(rules, (int64_t)of[c_step], of[c_validation]);
        for (int q = 0; q < r->ranks; q++) {
            dt_rank_step s;
            memset(&s, 0, sizeof s);
            s.step = (int64_t)of[c_step], s.rank = q, s.seconds = run_rank(r, i, RANK_SECONDS, q);
            s.waiting = run_rank(r, i, RANK_EXPOSED, q) + run_rank(r, i, RANK_AGREE, q);
            s.data = run_rank(r, i, RANK_DATA, q), s.at = run_or(of[c_elapsed], 0);
            s.memory = i >= RULES_BLOCK ? run_or(run_rank(r, i, RANK_MEMORY, q), 0) : 0;
            dt_rules_step(rules, &s);
        }
        bits = run_or(of[c_rules_fired], bits);
        for (int k = 0; k < DT_RULE_COUNT; k++)
            if (!first[k] && bits >= 0 && bits < 4e9 && ((uint64_t)bits >> k & 1)) first[k] = (int64_t)of[c_step];
    }
    for (int k = 0; k < DT_RULE_COUNT; k++) {
        const dt_firing *f = dt_rules_fired(rules, k);
        run_firing *to = &r->fired[r->firings];
        if (!f && !first[k]) continue;
        to->rule = k, to->step = f ? f->step : first[k], to->rank = f ? f->rank : -1, r->firings++;
        to->value = f ? f->value : (double)NAN, to->bound = f ? f->bound : rules_at(k)->bound[0];
    }
    dt_rules_close(&rules);
}

/* ---- the verdict ---- */

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

/* Is a word of this name among words that blanks separate? */
static int has_word(const char *words, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = words; n && (p = strstr(p, name)) != NULL; p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || !p[n])) return 1;
    return 0;
}

/* The command of the run, with more options instead of its own of those names. */
static void run_command(const run *r, const char *more, char to[SENTENCE])
{
    static const char flags[] = "rope-untruncated tied nesterov evaluate-ema sequence-parallel offload verify-compiler "
                                "no-memory-check no-cache quiet checkpoint-async qkv-bias o-bias mlp-bias qk-norm";
    static const char always[] = "layers heads width sequence batch data-shards steps learning-rate warmup eval-every "
                                 "sample-every sample-length checkpoint-every"; /* build.sh run has its own values */
    static const char settled[] = "vocabulary threads micro-batch overlap metrics quiet"; /* by the trainer, or ours */
    slice usual = json_find(r->head, "usual"), key, value;
    char name[NAME], option[NAME + 3], is[400], was[400];
    double micro = run_option_number(r, "micro-batch");
    *to = 0;
    say(to, "./build.sh run");
    for (int k = 0; k < 2 && usual.at; k++) {
        slice in = json_inside(json_find(r->head, k ? "layout" : "recipe"));
        while (json_member(&in, &key, &value)) {
            json_text(key, name, sizeof name), snprintf(option, sizeof option, "--%s", name);
            json_text(value, is, sizeof is), json_text(json_find(usual, name), was, sizeof was);
            if (!strcmp(name, "micro-batch") && micro < run_option_number(r, "batch")) strcpy(was, "");
            else if (has_word(settled, name) || (!has_word(always, name) && !strcmp(is, was))) continue;
            if (has_word(more, option)) continue;
            say(to, " %s", option);
            if (!has_word(flags, name)) say_word(to, is);
        }
    }
    say(to, " --ranks %d", r->ranks);
    say(to, " --metrics");
    say_word(to, r->path);
    if (*more) say(to, " %s", more);
}

/* Options of a rule with the numbers of the run. */
static void run_options(const run *r, int rule, char to[SENTENCE])
{
    static const char *const names[] = {"LR*3", "LR/4", "BATCH*4", "BEST"};
    double rate = run_option_number(r, "learning-rate"), best = 0, least = (double)INFINITY;
    double number[] = {rate > 0 ? 3 * rate : 1e-3, rate / 4, 4 * run_option_number(r, "batch"), 0};
    const char *from = dt_rule_next(rule);
    for (int64_t i = 0; i < r->steps; i++)
        if (r->step[i].of[c_validation] < least) least = r->step[i].of[c_validation], best = r->step[i].of[c_step];
    number[3] = best;
    for (*to = 0; *from;) {
        int k = 0;
        while (k < 4 && strncmp(from, names[k], strlen(names[k]))) k++;
        if (k == 4) say(to, "%c", *from++);
        else say(to, "%.6g", number[k]), from += strlen(names[k]);
    }
}

/* What to do next: the first of these that applies. */
static void run_advise(run *r)
{
    /* rules in the order in which a fault makes others meaningless: numbers, learning, then time */
    static const int order[] = {
        DT_RULE_EXPLODING_TENSOR, DT_RULE_ALL_ZERO, DT_RULE_UNCHANGED, DT_RULE_VANISHING_GRADIENT, DT_RULE_UPDATE_RATIO,
        DT_RULE_POOR_INITIALIZATION, DT_RULE_OVERFIT, DT_RULE_OVERTRAINING, DT_RULE_LOSS_NOT_DECREASING,
        DT_RULE_STALLED, DT_RULE_DATALOADER, DT_RULE_LOAD_BALANCING, DT_RULE_MEMORY_INCREASE, DT_RULE_LOW_UTILIZATION,
        DT_RULE_STEP_OUTLIER, DT_RULE_INITIALIZATION_TIME};
    char more[SENTENCE] = "", place[200];
    const run_firing *f = NULL;
    for (size_t k = 0; k < sizeof order / sizeof *order && !f; k++)
        for (int i = 0; i < r->firings && !f; i++) f = r->fired[i].rule == order[k] ? &r->fired[i] : NULL;
    if (r->loss == 1 || (r->state == RUN_FAILED && strstr(r->error, "not finite"))) {
        run_options(r, DT_RULE_EXPLODING_TENSOR, more);
        say(r->next, "Train with a quarter of the learning rate, with warm-up and clipping");
    } else if (r->loss == 2) {
        run_options(r, DT_RULE_LOSS_NOT_DECREASING, more);
        say(r->next, "The loss stands still: %s", dt_rule_advice(DT_RULE_LOSS_NOT_DECREASING));
    } else if (r->state == RUN_STOPPED || r->state == RUN_FAILED) {
        if (!*run_option(r, "checkpoint", place, sizeof place))
            say(r->next, "No checkpoint was kept: start again, and keep some"),
                say(more, "--checkpoint build/runs/report --checkpoint-every 100");
        else say(r->next, "The same command again resumes from the newest checkpoint");
    } else if (f && (f->rule != DT_RULE_STEP_OUTLIER || r->state == RUN_COMPLETE)) {
        run_options(r, f->rule, more);
        say(r->next, "%s: %s", dt_rule_name(f->rule), dt_rule_advice(f->rule));
    } else if (r->state == RUN_RUNNING) {
        say(r->next, "Wait until the run ends; this page follows it"), say(r->command, "./build.sh report");
        say_word(r->command, r->path), say(r->command, " --follow");
        return;
    } else if (run_option_number(r, "steps") > 0) {
        say(r->next, "Train longer: no rule has found a reason to stop");
        say(more, "--steps %.0f", 2 * run_option_number(r, "steps"));
    }
    run_command(r, more, r->command);
}

static void run_judge(run *r)
{
    const run_step *last = r->steps ? &r->step[r->steps - 1] : NULL;
    int64_t tenth = r->steps / 10 + 1;
    double end = 0, share = r->part.all > 0 ? 100 * (r->part.exposed + r->part.agree) / r->part.all : 0;
    const char *words[] = {"Complete", "Running", "Stopped early", "Failed"};
    r->state = last && r->goal && last->of[c_step] >= (double)r->goal ? RUN_COMPLETE
               : *r->error ? RUN_FAILED : r->locked ? RUN_RUNNING : RUN_STOPPED;
    if (r->state == RUN_FAILED && !strncmp(r->error, "stopped ", 8)) r->state = RUN_STOPPED;
    say(r->what, "%s: ", words[r->state]);
    if (!last) say(r->what, "no step was made");
    else {
        say(r->what, "step %.0f", last->of[c_step]);
        if (r->goal) say(r->what, " of %lld", (long long)r->goal);
        say(r->what, ", loss %.4f to %.4f, %.4g s on %d rank%s", r->step[0].of[c_loss], last->of[c_loss], r->part.all,
            r->ranks, r->ranks == 1 ? "" : "s");
    }
    if (*r->error) say(r->what, ". It said: %s", r->error);
    if (r->resumed)
        say(r->what, ". Resumed %d time%s, %lld steps made twice", r->resumed, r->resumed == 1 ? "" : "s",
            (long long)r->redone);
    if (r->broken)
        say(r->what, ". %lld line%s not whole and left out", (long long)r->broken,
            r->broken == 1 ? " of the file is" : "s of the file are");
    for (int64_t i = r->steps - tenth; i >= 0 && i < r->steps; i++) end += r->step[i].of[c_loss] / (double)tenth;
    if (last) end /= r->step[0].of[c_loss], r->loss = !(end <= 1.02) ? 1 : r->steps >= 20 && end > 0.99 ? 2 : 0;
    r->ill = r->state == RUN_FAILED || r->loss;
    for (int i = 0; i < r->firings; i++) /* a loss that has fallen may stand still */
        if (r->fired[i].rule < DT_RULE_STEP_OUTLIER &&
            (r->fired[i].rule != DT_RULE_LOSS_NOT_DECREASING || end > 0.9))
            r->ill = 1;
    if (!r->ill && (r->firings || r->state == RUN_STOPPED)) r->ill = 2;
    say(r->health, "%s%s. %d of %d rules fired%s",
        r->ill == 1 ? "Not healthy" : r->ill == 2 ? "Healthy, with a remark" : "Healthy",
        r->loss == 1 ? ": the loss rose" : r->loss ? ": the loss stands still" : "", r->firings, DT_RULE_COUNT,
        r->firings ? ":" : "");
    for (int i = 0; i < r->firings; i++) say(r->health, "%s %s", i ? "," : "", dt_rule_name(r->fired[i].rule));
    if (last) say(r->health, ". Waiting for other ranks and messages took %.1f %% of the time", share);
    if (r->late >= 0) say(r->health, "; rank %d waits least: the others wait for it", r->late);
    run_advise(r);
}

/* Reads a file of --metrics. A sentence in `why` where it cannot be shown; then nothing is kept. */
static int run_open(run *r, const char *path, char why[SENTENCE])
{
    slice all, line;
    const char *base = strrchr(path, '/');
    memset(r, 0, sizeof *r);
    *why = 0;
    r->path = path, r->locked = run_locked(path); /* before the text: a lock may end while it is read */
    snprintf(r->name, sizeof r->name - 4, "%s", base ? base + 1 : path);
    if (strlen(r->name) > 6 && !strcmp(r->name + strlen(r->name) - 6, ".jsonl")) r->name[strlen(r->name) - 6] = 0;
    r->text = file_read(path, &r->bytes);
    if (!r->text) return say(why, "cannot read %s: check the name. --metrics FILE of a run writes one", path);
    if (!r->bytes) say(why, "%s is empty: the run has not begun, or the disk is full. --follow waits for it", path);
    all.at = r->text, all.end = r->text + r->bytes;
    for (int first = 1; all.at < all.end && !*why; all.at = line.end + 1) {
        const char *end = (const char *)memchr(all.at, '\n', (size_t)(all.end - all.at));
        int whole = end != NULL;
        line.at = all.at, line.end = end ? end : all.end;
        while (line.at < line.end && strchr(" \r\t", *line.at)) line.at++;
        if (line.at == line.end) continue;
        whole = whole && *line.at == '{' && (line.end[-1] == '}' || (line.end[-1] == '\r' && line.end[-2] == '}'));
        if (first && !json_find(line, "version").at && !json_find(line, "step").at)
            say(why, "%s is not a file of --metrics: its first line has no version. Name one that a run wrote", path);
        else if (!whole) r->broken++;
        else if (json_find(line, "version").at) {
            double ranks = json_number_of(line, "ranks");
            if (r->steps && ranks != r->ranks) ranks = r->ranks; /* resumed on others: those of the first count */
            r->resumed += r->steps > 0, r->head = line, *r->error = 0;
            r->ranks = ranks >= 1 && ranks <= RUN_RANKS ? (int)ranks : 1;
        } else {
            if (!r->ranks) r->ranks = 1;
            if (!run_line(r, line)) say(why, "no memory for the %zu bytes of %s: cut it", r->bytes, path);
        }
        first = 0;
    }
    if (!r->ranks) r->ranks = 1;
    r->order = (double *)malloc(sizeof(double) * (size_t)(r->steps + 1));
    if (!*why && !r->order) say(why, "no memory for %s: cut it", path);
    if (*why) return run_close(r), 0;
    r->goal = (int64_t)fmin(fmax(run_or(run_option_number(r, "steps"), 0), 0), 9e15);
    run_measure(r);
    run_rules(r);
    run_judge(r);
    return 1;
}

/* ---- a trace ---- */

enum { TRACE_OTHER = 5, TRACE_CLASSES, TRACE_LANES = 32 };
static const char *const trace_classes[] = {"forward", "backward", "recompute", "update", "exchange", "other"};
typedef struct trace_bar {
    double begin, length; /* microseconds */
    int lane, of;         /* of: class */
} trace_bar;
typedef struct trace {
    trace_bar *bar;
    int64_t bars, room;
    int lanes, left; /* left: lanes that are not kept */
    double id[TRACE_LANES], end;
    double sum[TRACE_CLASSES], rank[TRACE_CLASSES]; /* seconds of all lanes; of rank 0's */
    char name[TRACE_LANES][NAME];
} trace;

static int trace_class(const char *name)
{
    static const char *const words[] = {"FORWARD", "BACKWARD WEIGHTS", "RECOMPUTE", "UPDATE",
                                        "EXCHANGE SEND RECV CONTEXT REDUCE GATHER TIE"};
    int k = 0;
    while (k < TRACE_OTHER && !has_word(words[k], name)) k++;
    return *name ? k : TRACE_OTHER;
}

/* The lane of a thread, made at its first event; -1: there are too many. */
static int trace_lane(trace *t, double id)
{
    for (int k = 0; k < t->lanes; k++)
        if (t->id[k] == id) return k;
    if (t->lanes == TRACE_LANES) return -1;
    snprintf(t->name[t->lanes], NAME, "thread %.0f", id);
    t->id[t->lanes] = id;
    return t->lanes++;
}

static int trace_event(trace *t, slice e)
{
    char kind[8], cat[NAME];
    double id = json_number_of(e, "tid"), begin = json_number_of(e, "ts"), length = json_number_of(e, "dur");
    trace_bar *b;
    int lane, of;
    json_text(json_find(e, "ph"), kind, sizeof kind);
    if (!(id == id) || (strcmp(kind, "X") && strcmp(kind, "M"))) return 1;
    if ((lane = trace_lane(t, id)) < 0) return t->left = 1, 1;
    json_text(json_find(e, "name"), cat, sizeof cat);
    if (!strcmp(kind, "M")) {
        if (!strcmp(cat, "thread_name")) json_text(json_find(json_find(e, "args"), "name"), t->name[lane], NAME);
        return 1;
    }
    if (!(begin >= 0 && begin < 1e15 && length >= 0 && length < 1e15)) return 1;
    if (t->bars == t->room) {
        b = (trace_bar *)realloc(t->bar, (size_t)(t->room = t->room ? 2 * t->room : 256) * sizeof *b);
        if (!b) return 0;
        t->bar = b;
    }
    of = trace_class(json_text(json_find(e, "cat"), cat, sizeof cat));
    b = &t->bar[t->bars++];
    b->begin = begin, b->length = length, b->lane = lane, b->of = of;
    t->end = fmax(t->end, begin + length), t->sum[of] += 1e-6 * length;
    if (json_number_of(e, "pid") == 0) t->rank[of] += 1e-6 * length;
    return 1;
}

/* Reads a trace of --timeline or of a simulation. */
static int trace_open(trace *t, const char *path, char why[SENTENCE])
{
    size_t bytes;
    char *text = file_read(path, &bytes);
    slice all, list, event;
    memset(t, 0, sizeof *t);
    *why = 0;
    if (!text) return say(why, "cannot read %s: check the name. --timeline FILE of a run writes one", path);
    all.at = text, all.end = text + bytes;
    json_blanks(&all, " \t\r\n");
    list = all.at < all.end && *all.at == '[' ? all : json_find(all, "traceEvents");
    list = json_inside(list);
    while (!*why && list.at && json_element(&list, &event))
        if (*event.at == '{' && !trace_event(t, event)) say(why, "no memory for %s", path);
    if (!*why && !t->bars) say(why, "%s is not a trace, or is empty: name a file that --timeline wrote", path);
    free(text);
    if (*why) free(t->bar), t->bar = NULL;
    return !*why;
}

#endif
