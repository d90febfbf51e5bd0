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

enum { DRILL_NUMBER, DRILL_WORD, DRILL_WARN, DRILL_WHICH, DRILL_SCENARIO };

typedef struct drill_row {
    char *cell[DRILL_CELLS];
    int kind, num, out, code, word; /* what a template asks for: places of a number, an output, a warning; -1: none */
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

/* Reads the kind of a template and what it asks for: a number or an output, an output, a warning, or of one option
 * "output=word" or "!WARNING". 0: the planner has no such thing. */
static inline int drill_asked(drill_row *row)
{
    const char *asked = row->cell[CELL_ASKED], *kind = row->cell[CELL_KIND], *equal = strchr(asked, '=');
    char name[40];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(asked, "="), asked);
    row->kind = plan_word("number|word|warn|which", kind);
    row->num = plan_word(PLAN_NUMBERS(PLAN_NAMES), name);
    row->out = plan_word(PLAN_OUTPUTS(PLAN_NAMES), name);
    row->code = plan_code(asked + (*asked == '!'));
    row->word = row->out < 0 || !equal ? -1 : plan_word(plan_output[row->out][1], equal + 1);
    return row->kind == DRILL_NUMBER  ? row->num >= 0 || row->out >= 0
           : row->kind == DRILL_WORD  ? row->out >= 0
           : row->kind == DRILL_WARN  ? row->code >= 0
           : row->kind == DRILL_WHICH ? *asked == '!' ? row->code >= 0 : row->word >= 0
                                      : 0;
}

/* Splits a line into the cells of a row. 0: wrong. */
static inline int drill_cells(drill_deck *d, const char *file, int number, char *line, int template_)
{
    drill_row *row = &d->row[d->count];
    int cells = template_ ? CELL_TEMPLATE : CELL_WHY + 4, count = 0;
    row->kind = DRILL_SCENARIO;
    for (char *at = line, *cell; (cell = cost_field(&at, '\t')); count++)
        if (count < DRILL_CELLS) row->cell[count] = cell;
    if (count != cells) return drill_wrong(d, file, number, "not as many cells as the head. Separate them by one tab");
    if (plan_word(DRILL_DOMAINS, row->cell[CELL_DOMAIN]) < 0)
        return drill_wrong(d, file, number, "no such domain. Choose one of " DRILL_DOMAINS);
    if (!template_ && (strlen(row->cell[CELL_RIGHT]) != 1 || !strchr("abcd", *row->cell[CELL_RIGHT])))
        return drill_wrong(d, file, number, "the right option is a, b, c or d");
    if (template_ && !drill_asked(row))
        return drill_wrong(d, file, number, "the planner has nothing of this kind and name. See plan --cases");
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
        else if (!drill_cells(d, name, number, line, template_)) return 0;
    }
    return 1;
}

/* ---- a question ---- */

typedef struct drill_choice {
    char text[DRILL_TEXT], reason[DRILL_TEXT], value[PLAN_TEXT]; /* value: of a template: word, warning or facts */
    int right;
} drill_choice;

typedef struct drill_item {
    const drill_row *row;
    char question[DRILL_TEXT], rule[DRILL_TEXT], facts[DRILL_TEXT];
    drill_choice choice[4];
    int options, right; /* no options: a number */
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
    return n > 1 ? (int)((z ^ z >> 31) % (unsigned)n) : 0;
}

static inline void drill_shuffle(unsigned long long *seed, int *order, int n)
{
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int k = drill_random(seed, i + 1), kept = order[i];
        order[i] = order[k], order[k] = kept;
    }
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
    size_t used = 0;
    for (d->count = 0; d->count < DRILL_FACTS && plan_part(facts, ';', d->count, fact, sizeof fact); d->count++) {
        char *from = fact + strcspn(fact, "="), *value = d->value[d->count], *words = d->words[d->count];
        int n = 0, low, high;
        if (*from) *from++ = 0;
        while (plan_part(from, '/', n, part, sizeof part)) n++;
        *value = 0, plan_part(from, '/', drill_random(seed, n), value, PLAN_TEXT);
        drill_words(value, words);
        if (sscanf(value, "%d..%d", &low, &high) == 2) {
            snprintf(value, PLAN_TEXT, "%d", low + drill_random(seed, high - low + 1));
            strcpy(words, value);
        }
        snprintf(d->name[d->count], sizeof d->name[0], "%.39s", fact);
        if (used < DRILL_TEXT)
            used += (size_t)snprintf(text + used, DRILL_TEXT - used, "%s%.39s=%s", used ? ";" : "", fact, value);
    }
}

/* A fact, a number or output of the planner, or memory of the instance. */
static inline void drill_value(const drill_draw *d, const plan_answer *a, const char *name, char value[PLAN_TEXT])
{
    int num = plan_word(PLAN_NUMBERS(PLAN_NAMES), name);
    int out = plan_word(PLAN_OUTPUTS(PLAN_NAMES), name);
    snprintf(value, PLAN_TEXT, "{%s}", name);
    if (num >= 0) plan_digits(a->num[num], value);
    if (out >= 0) plan_out_text(a, out, value);
    if (!strcmp(name, "gpus")) snprintf(value, PLAN_TEXT, "%d", a->type->count);
    if (!strcmp(name, "gb")) snprintf(value, PLAN_TEXT, "%g", a->type->gb);
    if (!strcmp(name, "disk")) snprintf(value, PLAN_TEXT, "%g", a->type->nvme_gb);
    for (int i = 0; i < d->count; i++)
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

/* Is an option what the row asks for? a: the planner's answer, for DRILL_WHICH to the facts of the option. */
static inline int drill_holds(const drill_row *row, const plan_answer *a, const char *value)
{
    if (row->kind == DRILL_WORD) return a->out[row->out] == plan_word(plan_output[row->out][1], value);
    if (row->kind == DRILL_WARN) return plan_warned(a, plan_code(value));
    return row->word < 0 ? !plan_warned(a, row->code) : a->out[row->out] == row->word;
}

/* One option of a template: its words, whether it is right, why. 0: a warning that the planner does not have. */
static inline int drill_option(drill_choice *o, const drill_item *it, const drill_draw *d, const cost_catalogue *c)
{
    static plan_answer own;
    char words[PLAN_TEXT];
    drill_words(o->value, words);
    drill_fill(o->text, words, d, &it->answer);
    *o->reason = 0;
    if (it->row->kind == DRILL_WARN) {
        int code = plan_code(o->value), fires = code >= 0 && plan_warned(&it->answer, code);
        if (code < 0) return 0;
        snprintf(o->text, DRILL_TEXT, "%s", plan_warning[code][1]);
        snprintf(o->reason, DRILL_TEXT, "%s here: %s", fires ? "true" : "not true", o->value);
        return o->right = fires, 1;
    }
    if (it->row->kind == DRILL_WORD) return o->right = drill_holds(it->row, &it->answer, o->value), 1;
    drill_plan(&own, c, it->facts, o->value, 1), o->right = drill_holds(it->row, &own, o->value);
    if (it->row->word < 0)
        snprintf(o->reason, DRILL_TEXT, "%s %s", plan_warning[it->row->code][0], o->right ? "does not fire" : "fires");
    else
        snprintf(o->reason, DRILL_TEXT, "%.4g GB of states on each GPU, which holds %.4g GB",
                 own.num[num_state_per_gpu_gb], cost_usable * own.type->gb);
    return 1;
}

/* Puts the four options in a drawn order. */
static inline int drill_mix(drill_item *it, unsigned long long *seed)
{
    static drill_choice from[4];
    int order[4];
    memcpy(from, it->choice, sizeof from);
    drill_shuffle(seed, order, it->options = 4);
    for (int i = 0; i < 4; i++)
        if ((it->choice[i] = from[order[i]]).right) it->right = i;
    return 1;
}

/* A right option and three wrong ones of a template. 0: there are too few of them. */
static inline int drill_choose(drill_item *it, const drill_draw *d, const cost_catalogue *c, unsigned long long *seed)
{
    static drill_choice o;
    int order[64], all = 0, wrongs = 0, rights = 0;
    while (all < 64 && plan_part(it->row->cell[CELL_OPTIONS], '/', all, o.value, sizeof o.value)) all++;
    drill_shuffle(seed, order, all);
    for (int i = 0; i < all; i++) {
        plan_part(it->row->cell[CELL_OPTIONS], '/', order[i], o.value, sizeof o.value);
        if (!drill_option(&o, it, d, c)) return 0;
        if (it->row->kind == DRILL_WARN && o.right && plan_code(o.value) != it->row->code) continue;
        if (o.right && !rights++) it->choice[0] = o;
        else if (!o.right && wrongs < 3) it->choice[++wrongs] = o;
    }
    return rights && wrongs == 3 && drill_mix(it, seed);
}

/* Is the answer the same for a model that is counted with 20 bytes a parameter and 85 % of the memory, or with 95 %? */
static inline int drill_robust(const drill_item *it, const cost_catalogue *c)
{
    static plan_answer a;
    int which = it->row->kind == DRILL_WHICH;
    if (it->row->kind == DRILL_WARN || !strstr(it->facts, "params_b")) return 1;
    for (int i = 0; i < 8; i++) {
        const drill_choice *o = &it->choice[i / 2];
        drill_plan(&a, c, it->facts, which ? o->value : "", i % 2 ? 0.947 : 1.33);
        if (drill_holds(it->row, &a, o->value) != o->right) return 0;
    }
    return 1;
}

/* One draw of a template. 0: it has no single right answer. */
static inline int drill_try(drill_item *it, const cost_catalogue *c, unsigned long long *seed)
{
    static drill_draw d;
    const drill_row *row = it->row;
    drill_drawn(&d, row->cell[CELL_FACTS], seed, it->facts);
    drill_plan(&it->answer, c, it->facts, "", 1);
    if (row->kind == DRILL_NUMBER) {
        it->number = row->num < 0 ? it->answer.out[row->out] : it->answer.num[row->num], it->options = 0;
        if (!(it->number > 0)) return 0;
    } else if (!drill_choose(it, &d, c, seed) || !drill_robust(it, c)) return 0;
    if (row->kind == DRILL_WHICH) drill_plan(&it->answer, c, it->facts, it->choice[it->right].value, 1);
    drill_fill(it->question, row->cell[CELL_QUESTION], &d, &it->answer);
    drill_fill(it->rule, row->cell[CELL_RULE], &d, &it->answer);
    return 1;
}

/* Makes the question of a row; its options come in a drawn order. 0: its numbers cannot be drawn. */
static inline int drill_make(drill_item *it, const drill_row *row, const cost_catalogue *c, unsigned long long *seed)
{
    it->row = row;
    for (int tries = 0; row->kind != DRILL_SCENARIO && tries < 200; tries++)
        if (drill_try(it, c, seed)) return 1;
    if (row->kind != DRILL_SCENARIO) return 0;
    for (int i = 0; i < 4; i++) {
        snprintf(it->choice[i].text, DRILL_TEXT, "%s", row->cell[CELL_A + i]);
        snprintf(it->choice[i].reason, DRILL_TEXT, "%s", row->cell[CELL_WHY + i]);
        it->choice[i].right = *row->cell[CELL_RIGHT] == 'a' + i;
    }
    snprintf(it->question, DRILL_TEXT, "%s", row->cell[CELL_QUESTION]);
    snprintf(it->rule, DRILL_TEXT, "%s", row->cell[CELL_RULE]);
    return drill_mix(it, seed);
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
        drill_plain(option, it->choice[i].text);
        digits = digits || isdigit((unsigned char)*option);
        if (!strcmp(option, given)) return i;
        if (strstr(option, given)) found = found == -1 ? i : -2;
    }
    if (!given[1] && *given >= 'a' && *given < 'a' + it->options) return *given - 'a';
    if (!given[1] && !digits && *given > '0' && *given <= '0' + it->options) return *given - '1';
    return found;
}

#endif
