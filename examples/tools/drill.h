/* drill.h: questions of the exam's kind, for drill.c and 95_quiz. scenarios.tsv has questions written by hand; a row of
 * templates.tsv becomes a question when its numbers are drawn, and the planner (plan.h) answers it. */
#ifndef DRILL_H
#define DRILL_H

#include "plan.h"

enum { DRILL_ROWS = 400, DRILL_CELLS = 16, DRILL_TEXT = 1000, DRILL_FACTS = 24 };

#define DRILL_DOMAINS "strategy|memory|parallel|libraries|instances|cost|failures|input|compiler|operations"

/* ---- the two files ---- */

enum { CELL_ID, CELL_DOMAIN, CELL_CONCEPTS, CELL_PROGRAM, CELL_QUESTION, CELL_RULE, CELL_EXAM, CELL_OWN };
enum { CELL_A = CELL_OWN, CELL_RIGHT = CELL_A + 4, CELL_WHY };                      /* of a scenario */
enum { CELL_KIND = CELL_OWN, CELL_ASKED, CELL_FACTS, CELL_OPTIONS, CELL_TEMPLATE }; /* of a template */

static const char *const drill_heads[] = {
    "id\tdomain\tconcepts\tprogram\tquestion\trule\texam\ta\tb\tc\td\tright\twhy_a\twhy_b\twhy_c\twhy_d",
    "id\tdomain\tconcepts\tprogram\tquestion\trule\texam\tkind\tasked\tfacts\toptions"};

typedef struct drill_row {
    char *cell[DRILL_CELLS];
    int template_; /* else a scenario */
} drill_row;

typedef struct drill_deck {
    drill_row row[DRILL_ROWS];
    int count;
    char text[2][1 << 18], wrong[2 * PLAN_TEXT];
} drill_deck;

static inline int drill_wrong(drill_deck *d, const char *file, int line, const char *what)
{
    return snprintf(d->wrong, sizeof d->wrong, "%.180s, line %d: %s", file, line, what), 0;
}

/* Splits a line into the cells of a row. 0: wrong. */
static inline int drill_cells(drill_deck *d, const char *file, int number, char *line, int template_)
{
    drill_row *row = &d->row[d->count];
    int cells = template_ ? CELL_TEMPLATE : CELL_WHY + 4, count = 0;
    row->template_ = template_;
    for (char *at = line, *cell; (cell = cost_field(&at)); count++)
        if (count < DRILL_CELLS) row->cell[count] = cell;
    if (count != cells) return drill_wrong(d, file, number, "not as many cells as the head. Separate them by one tab");
    if (plan_word(DRILL_DOMAINS, row->cell[CELL_DOMAIN], strlen(row->cell[CELL_DOMAIN])) < 0)
        return drill_wrong(d, file, number, "no such domain. Choose one of " DRILL_DOMAINS);
    if (!template_ && (strlen(row->cell[CELL_RIGHT]) != 1 || !strchr("abcd", *row->cell[CELL_RIGHT])))
        return drill_wrong(d, file, number, "the right option is a, b, c or d");
    return d->count++, 1;
}

/* Adds the rows of a file. 0, and d->wrong: it cannot. */
static inline int drill_read(drill_deck *d, const char *folder, int template_)
{
    char name[PLAN_TEXT], *text = d->text[template_], *line, *next;
    size_t size;
    int number = 0, head = 0;
    FILE *f;
    snprintf(name, sizeof name, "%s%s", folder, template_ ? "templates.tsv" : "scenarios.tsv");
    if (!(f = fopen(name, "rb")))
        return snprintf(d->wrong, sizeof d->wrong, "%s cannot be read. --folder names the folder that it is in", name),
               0;
    size = fread(text, 1, sizeof d->text[0], f);
    fclose(f);
    if (size == sizeof d->text[0]) return drill_wrong(d, name, 1, "the file is too large. Shorten it to 256 kB");
    text[size] = 0;
    for (line = text; line && *line; line = next) {
        size_t n = strcspn(line, "\r\n");
        next = line[n] ? line + n + 1 + (line[n] == '\r' && line[n + 1] == '\n') : NULL;
        line[n] = 0, number++;
        if (!n || *line == '#') continue;
        if (!head++) {
            if (strcmp(line, drill_heads[template_]))
                return drill_wrong(d, name, number, "not the head that the first lines of the file describe");
        } else if (d->count == DRILL_ROWS)
            return drill_wrong(d, name, number, "too many rows");
        else if (!drill_cells(d, name, number, line, template_))
            return 0;
    }
    return 1;
}

/* ---- a question ---- */

typedef struct drill_item {
    const drill_row *row;
    char question[DRILL_TEXT], rule[DRILL_TEXT], facts[DRILL_TEXT];
    char option[4][DRILL_TEXT], reason[4][DRILL_TEXT], changes[4][PLAN_TEXT]; /* changes: option as facts */
    int options, right, code[4]; /* no options: a number; code: the warning that an option names */
    double number;
    plan_answer answer;
} drill_item;

typedef struct drill_draw { /* the facts of a template, drawn: name, value, and the words for it */
    char name[DRILL_FACTS][40], value[DRILL_FACTS][PLAN_TEXT], words[DRILL_FACTS][PLAN_TEXT];
    int count;
} drill_draw;

/* Splitmix64: 0 .. n-1. */
static inline int drill_random(unsigned long long *seed, int n)
{
    unsigned long long z = *seed += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull, z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (int)((z ^ z >> 31) % (unsigned)n);
}

static inline void drill_shuffle(unsigned long long *seed, int *order, int n)
{
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int k = drill_random(seed, i + 1), kept = order[i];
        order[i] = order[k], order[k] = kept;
    }
}

/* The parts of a text between separators, the k-th one; 0: there are fewer. */
static inline int drill_part(const char *text, char separator, int k, char *part, size_t room)
{
    char ends[2] = {separator, 0};
    for (; k > 0 && (text = strchr(text, separator)); k--) text++;
    if (!text || !*text) return 0;
    return snprintf(part, room, "%.*s", (int)strcspn(text, ends), text), 1;
}

/* "value:words", in which the words may be missing. */
static inline void drill_words(char part[PLAN_TEXT], char words[PLAN_TEXT])
{
    char *colon = strchr(part, ':');
    strcpy(words, colon ? colon + 1 : part);
    if (colon) *colon = 0;
}

/* Draws the facts "name=a/b/c;name=low..high;name=value:words". */
static inline void drill_drawn(drill_draw *d, const char *facts, unsigned long long *seed, char *text)
{
    char fact[DRILL_TEXT], part[PLAN_TEXT];
    *text = 0;
    for (d->count = 0; d->count < DRILL_FACTS && drill_part(facts, ';', d->count, fact, sizeof fact); d->count++) {
        char *from = strchr(fact, '='), *dots = strstr(fact, ".."), *value = d->value[d->count];
        int n = 0;
        if (!from)
            from = fact + strlen(fact);
        else
            *from++ = 0;
        snprintf(d->name[d->count], sizeof d->name[0], "%.39s", fact);
        while (drill_part(from, '/', n, part, sizeof part)) n++;
        if (n)
            drill_part(from, '/', drill_random(seed, n), value, PLAN_TEXT);
        else
            *value = 0;
        drill_words(value, d->words[d->count]);
        if (dots) {
            int low = atoi(from), high = atoi(dots + 2);
            snprintf(value, PLAN_TEXT, "%d", low + drill_random(seed, high - low + 1));
            strcpy(d->words[d->count], value);
        }
        snprintf(text + strlen(text), DRILL_TEXT - strlen(text), "%s%s=%s", *text ? ";" : "", d->name[d->count], value);
    }
}

/* At least four digits, and no exponent. */
static inline const char *drill_digits(double n, char text[32])
{
    return snprintf(text, 32, fabs(n) >= 1000 ? "%.0f" : "%.4g", n), text;
}

static inline void drill_value(const drill_draw *d, const plan_answer *a, const char *name, char value[PLAN_TEXT])
{
    char text[40];
    snprintf(value, PLAN_TEXT, "{%s}", name);
    for (int k = 0; k < PLAN_NUMS; k++)
        if (!strcmp(plan_number[k], name)) strcpy(value, drill_digits(a->num[k], text));
    for (int k = 0; k < PLAN_OUTS; k++)
        if (!strcmp(plan_output[k][0], name) && *plan_output[k][1])
            strcpy(value, plan_named(plan_output[k][1], a->out[k], text));
        else if (!strcmp(plan_output[k][0], name))
            snprintf(value, PLAN_TEXT, "%d", a->out[k]);
    if (!strcmp(name, "gpus")) snprintf(value, PLAN_TEXT, "%d", a->type->count);
    if (!strcmp(name, "gb")) snprintf(value, PLAN_TEXT, "%g", a->type->gb);
    if (!strcmp(name, "disk")) snprintf(value, PLAN_TEXT, "%g", a->type->nvme_gb);
    for (int i = 0; i < d->count; i++) /* a fact before an output of its name */
        if (!strcmp(d->name[i], name)) strcpy(value, d->words[i]);
}

/* Copies a text with its {names} replaced. */
static inline void drill_fill(char to[DRILL_TEXT], const char *text, const drill_draw *d, const plan_answer *a)
{
    char name[40], value[PLAN_TEXT];
    size_t n = 0;
    while (*text && n < DRILL_TEXT - 1) {
        size_t m = strcspn(text, "{");
        n += (size_t)snprintf(to + n, DRILL_TEXT - n, "%.*s", (int)m, text);
        if (*(text += m) != '{') continue;
        m = strcspn(text, "}");
        snprintf(name, sizeof name, "%.*s", (int)m - 1, text + 1);
        drill_value(d, a, name, value);
        if (n < DRILL_TEXT) n += (size_t)snprintf(to + n, DRILL_TEXT - n, "%s", value);
        text += m + (text[m] == '}');
    }
}

/* The planner's answer to facts, and more facts, of a model `times` as large. */
static inline void drill_plan(plan_answer *a, const cost_catalogue *c, const char *facts, const char *more,
                              double times)
{
    static plan_job j;
    plan_list wrong;
    wrong.count = 0;
    plan_job_clear(&j);
    plan_job_facts(&j, facts, &wrong), plan_job_facts(&j, more, &wrong);
    j.n[in_params_b] *= times;
    plan_answer_of(&j, c, a);
}

static inline int drill_find(const char *const *names, size_t step, int count, const char *name)
{
    for (int k = 0; k < count; k++)
        if (!strcmp(names[(size_t)k * step], name)) return k;
    return -1;
}
static inline int drill_code(const char *name) { return drill_find(plan_warning[0], 2, PLAN_CODES, name); }
static inline int drill_output(const char *name) { return drill_find(plan_output[0], 2, PLAN_OUTS, name); }

/* Is what a template of the kind `which` asks for true of an answer? "output=word" or "!CODE", which must not fire. */
static inline int drill_holds(const char *asked, const plan_answer *a)
{
    char name[40], text[40];
    int out;
    if (*asked == '!') return !plan_warned(a, drill_code(asked + 1));
    snprintf(name, sizeof name, "%.*s", (int)strcspn(asked, "="), asked);
    out = drill_output(name);
    return !strcmp(plan_named(plan_output[out][1], a->out[out], text), asked + strlen(name) + 1);
}

/* Keeps the right option and three others of those that were collected, in a drawn order. 0: there are too few. */
static inline int drill_choose(drill_item *it, const drill_item *all, const int *is_right, int count,
                               unsigned long long *seed)
{
    int order[64], place[4], rights = 0, wrongs = 0;
    drill_shuffle(seed, order, count), drill_shuffle(seed, place, 4);
    it->options = 4, it->right = place[0];
    for (int i = 0; i < count; i++) {
        int from = order[i], to = is_right[from] ? place[0] : wrongs < 3 ? place[1 + wrongs] : -1;
        if (is_right[from] ? rights++ : wrongs++ > 2) continue;
        strcpy(it->option[to], all[from].option[0]), strcpy(it->reason[to], all[from].reason[0]);
        strcpy(it->changes[to], all[from].changes[0]), it->code[to] = all[from].code[0];
    }
    return rights >= 1 && wrongs >= 3;
}

/* What one option of a template is: its words, whether it is right, why. */
static inline int drill_option(drill_item *o, const drill_item *it, const drill_draw *d, const cost_catalogue *c,
                               char *part)
{
    const char *asked = it->row->cell[CELL_ASKED];
    char words[PLAN_TEXT], text[40];
    static plan_answer a;
    drill_words(part, words);
    drill_fill(o->option[0], words, d, &it->answer);
    *o->reason[0] = 0, snprintf(o->changes[0], PLAN_TEXT, "%s", part), o->code[0] = -1;
    if (!strcmp(it->row->cell[CELL_KIND], "warn")) {
        o->code[0] = drill_code(part);
        snprintf(o->option[0], DRILL_TEXT, "%s", plan_warning[o->code[0]][1]);
        snprintf(o->reason[0], DRILL_TEXT, "%s %s", part,
                 plan_warned(&it->answer, o->code[0]) ? "fires" : "does not fire");
        return plan_warned(&it->answer, o->code[0]);
    }
    if (!strcmp(it->row->cell[CELL_KIND], "word")) {
        int out = drill_output(asked);
        return !strcmp(plan_named(plan_output[out][1], it->answer.out[out], text), part);
    }
    drill_plan(&a, c, it->facts, part, 1);
    if (*asked == '!')
        snprintf(o->reason[0], DRILL_TEXT, "%s %s", asked + 1, drill_holds(asked, &a) ? "does not fire" : "fires");
    else
        snprintf(o->reason[0], DRILL_TEXT, "%.4g GB of states on each GPU, which holds %.4g GB",
                 a.num[num_state_per_gpu_gb], cost_usable * a.type->gb);
    return drill_holds(asked, &a);
}

/* Is the answer the same for a model that is counted with 20 bytes a parameter and 85 % of the memory, or with 95 %? */
static inline int drill_robust(const drill_item *it, const cost_catalogue *c)
{
    const double times[] = {0.947, 1.33};
    static plan_answer a;
    int which = !strcmp(it->row->cell[CELL_KIND], "which"), out = which ? 0 : drill_output(it->row->cell[CELL_ASKED]);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < (which ? 4 : 1); i++) {
            drill_plan(&a, c, it->facts, which ? it->changes[i] : "", times[k]);
            if (which ? drill_holds(it->row->cell[CELL_ASKED], &a) != (i == it->right)
                      : a.out[out] != it->answer.out[out])
                return 0;
        }
    return 1;
}

/* One draw of a template. 0: it has no single right answer. */
static inline int drill_try(drill_item *it, const cost_catalogue *c, unsigned long long *seed)
{
    static drill_item all[64];
    static drill_draw d;
    const char *asked = it->row->cell[CELL_ASKED], *kind = it->row->cell[CELL_KIND];
    char part[PLAN_TEXT];
    int is_right[64], count = 0, k;
    drill_drawn(&d, it->row->cell[CELL_FACTS], seed, it->facts);
    drill_plan(&it->answer, c, it->facts, "", 1);
    if (!strcmp(kind, "number")) {
        k = drill_find(plan_number, 1, PLAN_NUMS, asked);
        it->number = k < 0 ? it->answer.out[drill_output(asked)] : it->answer.num[k], it->options = 0;
        if (!(it->number > 0)) return 0;
    } else {
        for (; count < 64 && drill_part(it->row->cell[CELL_OPTIONS], '/', count, part, sizeof part); count++)
            is_right[count] = drill_option(&all[count], it, &d, c, part);
        if (!strcmp(kind, "warn") && !plan_warned(&it->answer, drill_code(asked))) return 0;
        if (!drill_choose(it, all, is_right, count, seed)) return 0;
        if (!strcmp(kind, "warn") && it->code[it->right] != drill_code(asked)) return 0;
        if (strcmp(kind, "warn") && strstr(it->facts, "params_b") && !drill_robust(it, c)) return 0;
        if (!strcmp(kind, "which")) drill_plan(&it->answer, c, it->facts, it->changes[it->right], 1);
    }
    drill_fill(it->question, it->row->cell[CELL_QUESTION], &d, &it->answer);
    drill_fill(it->rule, it->row->cell[CELL_RULE], &d, &it->answer);
    return 1;
}

/* Makes the question of a row; its options come in a drawn order. 0: its numbers cannot be drawn. */
static inline int drill_make(drill_item *it, const drill_row *row, const cost_catalogue *c, unsigned long long *seed)
{
    int place[4];
    it->row = row;
    if (row->template_) {
        for (int tries = 0; tries < 200; tries++)
            if (drill_try(it, c, seed)) return 1;
        return 0;
    }
    drill_shuffle(seed, place, 4);
    for (int i = 0; i < 4; i++) {
        snprintf(it->option[place[i]], DRILL_TEXT, "%s", row->cell[CELL_A + i]);
        snprintf(it->reason[place[i]], DRILL_TEXT, "%s", row->cell[CELL_WHY + i]);
        if (*row->cell[CELL_RIGHT] == 'a' + i) it->right = place[i];
    }
    it->options = 4, *it->facts = 0;
    snprintf(it->question, DRILL_TEXT, "%s", row->cell[CELL_QUESTION]);
    snprintf(it->rule, DRILL_TEXT, "%s", row->cell[CELL_RULE]);
    return 1;
}

/* ---- an answer ---- */

/* Small letters and digits alone, with abbreviations in full: "Tensor-Parallel", "TP" and "tp " are the same. */
static inline void drill_plain(char *to, const char *text)
{
    static const char *const full[][2] = {{"dp", "dataparallel"},
                                          {"ddp", "dataparallel"},
                                          {"tp", "tensorparallel"},
                                          {"tensor", "tensorparallel"},
                                          {"pp", "pipelineparallel"},
                                          {"pipeline", "pipelineparallel"},
                                          {"sdp", "shardeddataparallel"},
                                          {"fsdp", "shardeddataparallel"},
                                          {"sharded", "shardeddataparallel"},
                                          {"data", "dataparallel"},
                                          {"smdp", "smddp"},
                                          {"smmp", "smp"},
                                          {"checkpointing", "checkpoint"},
                                          {"checkpoints", "checkpoint"}};
    size_t n = 0;
    for (; *text && n < DRILL_TEXT - 1; text++)
        if (isalnum((unsigned char)*text) || (*text == '.' && isdigit((unsigned char)text[1])))
            to[n++] = (char)tolower((unsigned char)*text);
    to[n] = 0;
    for (size_t k = 0; k < sizeof full / sizeof *full; k++)
        if (!strcmp(to, full[k][0])) strcpy(to, full[k][1]);
}

/* The same words, one of "a|b|c"? */
static inline int drill_same(const char *answer, const char *words)
{
    char want[DRILL_TEXT], given[DRILL_TEXT], word[40];
    drill_plain(given, answer);
    for (int k = 0; *plan_named(words, k, word); k++)
        if (drill_plain(want, word), !strcmp(want, given)) return 1;
    return 0;
}

/* Is it the number? Within 2 %; with or without unit, sign of dollars, commas; 0.43 and 43 % are the same. */
static inline int drill_number(const char *answer, double number)
{
    char plain[DRILL_TEXT], *end;
    size_t n = 0;
    double given;
    for (; *answer && n < DRILL_TEXT - 1; answer++)
        if (!strchr("$,~ =", *answer)) plain[n++] = *answer;
    plain[n] = 0, given = strtod(plain, &end);
    if (end == plain) return 0;
    if (tolower((unsigned char)*end) == 't' && tolower((unsigned char)end[1]) == 'b') given *= 1000;
    if (tolower((unsigned char)*end) == 'm' && tolower((unsigned char)end[1]) == 'b') given /= 1000;
    return fabs(given - number) <= 0.02 * fabs(number) ||
           (number < 1 && (*end == '%' || given > 1) && fabs(given / 100 - number) <= 0.02 * fabs(number));
}

/* The option that an answer means: its words, its letter, its place, or words of it alone; -1: none, -2: several. */
static inline int drill_meant(const drill_item *it, const char *answer)
{
    char given[DRILL_TEXT], option[DRILL_TEXT];
    int found = -1, digits = 0;
    drill_plain(given, answer);
    if (!*given) return -1;
    for (int i = 0; i < it->options; i++) {
        drill_plain(option, it->option[i]);
        digits = digits || isdigit((unsigned char)*option);
        if (!strcmp(option, given)) return i;
        if (strstr(option, given)) found = found == -1 ? i : -2;
    }
    if (!given[1] && *given >= 'a' && *given < 'a' + it->options) return *given - 'a';
    if (!given[1] && !digits && *given > '0' && *given <= '0' + it->options) return *given - '1';
    return found;
}

#endif
