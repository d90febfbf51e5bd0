/* drill.h: questions of the exam's kind, for drill.c and 95_quiz. scenarios.tsv has questions written by hand; a row of
 * templates.tsv becomes a question when its numbers are drawn, and the planner (plan.h) answers it. */
#ifndef DRILL_H
#define DRILL_H

#include "plan.h"

enum { DRILL_ROWS = 400, DRILL_CELLS = 16, DRILL_TEXT = 1000 };

#define DRILL_DOMAINS "strategy|memory|parallel|libraries|instances|cost|failures|input|compiler|operations"

/* ---- the two files ---- */

enum { CELL_ID, CELL_DOMAIN, CELL_CONCEPTS, CELL_PROGRAM, CELL_QUESTION, CELL_RULE, CELL_EXAM, CELL_OWN };
enum { CELL_A = CELL_OWN, CELL_RIGHT = CELL_A + 4, CELL_WHY };                      /* of a scenario */
enum { CELL_KIND = CELL_OWN, CELL_ASKED, CELL_FACTS, CELL_OPTIONS, CELL_TEMPLATE }; /* of a template */

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

/* Reads what a template asks for: a number or an output, an output, a warning, or of one option "output=word" or
 * "!WARNING". 0: the planner has no such thing. */
static inline int drill_asked(drill_row *row)
{
    const char *asked = row->cell[CELL_ASKED];
    char name[40], word[40] = "";
    plan_part(asked, '=', 0, name, sizeof name), plan_part(asked, '=', 1, word, sizeof word);
    row->kind = plan_word("number|word|warn|which", row->cell[CELL_KIND]);
    row->num = plan_word(PLAN_NUMBERS(PLAN_NAMES), name), row->out = plan_word(PLAN_OUTPUTS(PLAN_NAMES), name);
    row->code = plan_code(asked + (*asked == '!'));
    row->word = row->out < 0 ? -1 : plan_word(plan_output[row->out][1], word);
    return row->kind == DRILL_NUMBER  ? row->num >= 0 || row->out >= 0
           : row->kind == DRILL_WORD  ? row->out >= 0
           : row->kind == DRILL_WARN  ? row->code >= 0
           : row->kind == DRILL_WHICH ? *asked == '!' ? row->code >= 0 : row->word >= 0
                                      : 0;
}

/* Adds a row. NULL, or what is wrong with it. */
static inline const char *drill_add(drill_deck *d, char *line, int template_)
{
    drill_row *row = &d->row[d->count];
    int count = 0;
    if (d->count == DRILL_ROWS) return "too many rows";
    row->kind = DRILL_SCENARIO;
    while (line && count < DRILL_CELLS) row->cell[count++] = cost_field(&line, '\t');
    if (line || count != (template_ ? CELL_TEMPLATE : CELL_WHY + 4))
        return "not as many cells as the head. Separate them by one tab";
    if (plan_word(DRILL_DOMAINS, row->cell[CELL_DOMAIN]) < 0)
        return "no such domain. Choose one of " DRILL_DOMAINS;
    if (!template_ && plan_word("a|b|c|d", row->cell[CELL_RIGHT]) < 0) return "the right option is a, b, c or d";
    if (template_ && !drill_asked(row)) return "the planner has nothing of this kind and name. See plan --cases";
    return d->count++, NULL;
}

/* Adds the rows of a file. 0, and d->wrong: it cannot. */
static inline int drill_read(drill_deck *d, const char *folder, int template_)
{
    char name[PLAN_TEXT], *at = d->text[template_], *line;
    const char *bad = NULL;
    int number = 0;
    snprintf(name, sizeof name, "%s%s", folder, template_ ? "templates.tsv" : "scenarios.tsv");
    if (!cost_load(name, at, sizeof d->text[0])) {
        snprintf(d->wrong, sizeof d->wrong,
                 "%s cannot be read. Run 95_quiz in the folder examples, or give drill a --folder", name);
        return 0;
    }
    cost_line(&at, &number); /* the titles */
    while (!bad && (line = cost_line(&at, &number)) != NULL) bad = drill_add(d, line, template_);
    if (bad) snprintf(d->wrong, sizeof d->wrong, "%.180s, line %d: %s", name, number, bad);
    return !bad;
}

/* ---- a question ---- */

typedef struct drill_choice {
    char text[DRILL_TEXT], reason[DRILL_TEXT], value[PLAN_TEXT]; /* value: of a template: word, warning or facts */
    int right;
} drill_choice;

typedef struct drill_item {
    const drill_row *row;
    char question[DRILL_TEXT], rule[DRILL_TEXT];
    char facts[DRILL_TEXT], words[DRILL_TEXT]; /* of a template: "name=value;" as drawn, and as the question says it */
    drill_choice choice[4];
    int options, right; /* no options: a number */
    double number;
    plan_answer answer;
} drill_item;

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

/* Cuts "value:words" after the value; returns the words, which may be missing: then the value. */
static inline const char *drill_words(char *part)
{
    char *colon = strchr(part, ':');
    return colon ? *colon = 0, colon + 1 : part;
}

/* Draws the facts "name=value:words/value/..;name=.." of a template. */
static inline void drill_draw(drill_item *it, unsigned long long *seed)
{
    char fact[DRILL_TEXT], value[PLAN_TEXT];
    it->facts[0] = it->words[0] = 0;
    for (int k = 0; plan_part(it->row->cell[CELL_FACTS], ';', k, fact, sizeof fact); k++) {
        size_t f = strlen(it->facts), w = strlen(it->words), name = strcspn(fact, "=");
        const char *values = fact + name + (fact[name] == '='), *words;
        int n = 0;
        while (plan_part(values, '/', n, value, sizeof value)) n++;
        if (!plan_part(values, '/', drill_random(seed, n), value, sizeof value)) *value = 0;
        words = drill_words(value);
        snprintf(it->facts + f, DRILL_TEXT - f, "%.*s=%s;", (int)name, fact, value);
        snprintf(it->words + w, DRILL_TEXT - w, "%.*s=%s;", (int)name, fact, words);
    }
}

/* Copies a text with each {name} replaced: a drawn fact, a number or output of the planner, memory of the instance. */
static inline void drill_fill(char to[DRILL_TEXT], const char *text, const drill_item *it)
{
    const plan_answer *a = &it->answer;
    size_t n = 0;
    while (*text && n < DRILL_TEXT - 1) {
        char name[40], part[PLAN_TEXT], value[PLAN_TEXT];
        size_t m = strcspn(text, "{");
        n += (size_t)snprintf(to + n, DRILL_TEXT - n, "%.*s", (int)m, text);
        if (*(text += m) != '{') break;
        if (!plan_part(text + 1, '}', 0, name, sizeof name)) *name = 0;
        int num = plan_word(PLAN_NUMBERS(PLAN_NAMES), name), out = plan_word(PLAN_OUTPUTS(PLAN_NAMES), name);
        int own = plan_word("gpus|gb|disk", name);
        const double of[] = {a->type->count, a->type->gb, a->type->nvme_gb};
        snprintf(value, sizeof value, "{%s}", name);
        if (num >= 0) plan_digits(a->num[num], value);
        if (out >= 0) plan_out_text(a, out, value);
        if (own >= 0) plan_digits(of[own], value);
        for (int i = 0; plan_part(it->words, ';', i, part, sizeof part); i++)
            if (!strncmp(part, name, strlen(name)) && part[strlen(name)] == '=') strcpy(value, strchr(part, '=') + 1);
        if (n < DRILL_TEXT) n += (size_t)snprintf(to + n, DRILL_TEXT - n, "%s", value);
        text += strcspn(text, "}"), text += *text == '}';
    }
}

/* The planner's answer to facts, and more facts, of a model `times` as large. */
static inline void drill_plan(plan_answer *a, const cost_catalogue *c, const char *facts, const char *more,
                              double times)
{
    static plan_job j;
    plan_list wrong;
    wrong.count = 0, plan_job_clear(&j);
    plan_job_facts(&j, facts, &wrong), plan_job_facts(&j, more, &wrong);
    j.n[in_params_b] *= times;
    plan_answer_of(&j, c, a);
}

/* Is an option what the row asks for? a: the planner's answer, for DRILL_WHICH to the facts of the option. */
static inline int drill_holds(const drill_row *row, const plan_answer *a, const char *value)
{
    if (row->kind == DRILL_WORD) return a->out[row->out] == plan_word(plan_output[row->out][1], value);
    if (row->kind == DRILL_WARN) return plan_code(value) >= 0 && plan_warned(a, plan_code(value));
    return row->word < 0 ? !plan_warned(a, row->code) : a->out[row->out] == row->word;
}

/* One option of a template: its words, whether it is right, why. 0: the planner does not have it, or it would not be so
 * for a model that is counted with 20 bytes a parameter and 85 % of the memory, or with 95 %. */
static inline int drill_option(drill_choice *o, const drill_item *it, const cost_catalogue *c)
{
    static plan_answer a;
    static const double times[] = {1.33, 0.947, 1};
    const drill_row *row = it->row;
    const char *words = drill_words(o->value);
    const int code = plan_code(o->value), which = row->kind == DRILL_WHICH, warn = row->kind == DRILL_WARN;
    if (warn && code < 0) return 0;
    for (int i = warn ? 2 : 0; i < 3; i++) {
        int before = o->right;
        drill_plan(&a, c, it->facts, which ? o->value : "", times[i]);
        o->right = drill_holds(row, &a, o->value);
        if (!warn && i && o->right != before) return 0;
    }
    drill_fill(o->text, warn ? plan_warning[code][1] : words, it);
    *o->reason = 0;
    if (warn || (which && row->word < 0))
        snprintf(o->reason, DRILL_TEXT, "%s %s", warn ? o->value : plan_warning[row->code][0],
                 (o->right != 0) == warn ? "fires" : "does not fire");
    else if (which)
        snprintf(o->reason, DRILL_TEXT, "%.4g GB of states on each GPU, which holds %.4g GB",
                 a.num[num_state_per_gpu_gb], cost_usable * a.type->gb);
    return 1;
}

/* A right option and three wrong ones of a template. 0: there are too few of them. */
static inline int drill_choose(drill_item *it, const cost_catalogue *c, unsigned long long *seed)
{
    static drill_choice o;
    const char *options = it->row->cell[CELL_OPTIONS];
    int order[64], all = 0, wrongs = 0, rights = 0;
    while (all < 64 && plan_part(options, '/', all, o.value, sizeof o.value)) all++;
    drill_shuffle(seed, order, all);
    for (int i = 0; i < all; i++) {
        plan_part(options, '/', order[i], o.value, sizeof o.value);
        if (!drill_option(&o, it, c)) continue;
        if (it->row->kind == DRILL_WARN && o.right && plan_code(o.value) != it->row->code) continue;
        if (o.right && !rights++) it->choice[0] = o;
        else if (!o.right && wrongs < 3) it->choice[++wrongs] = o;
    }
    return rights && wrongs == 3;
}

/* One draw of a template. 0: it has no single right answer. */
static inline int drill_try(drill_item *it, const cost_catalogue *c, unsigned long long *seed)
{
    const drill_row *row = it->row;
    drill_draw(it, seed);
    drill_plan(&it->answer, c, it->facts, "", 1);
    it->number = row->num < 0 ? it->answer.out[row->out < 0 ? 0 : row->out] : it->answer.num[row->num];
    if (row->kind == DRILL_NUMBER ? !(it->number > 0) : !drill_choose(it, c, seed)) return 0;
    if (row->kind == DRILL_WHICH) drill_plan(&it->answer, c, it->facts, it->choice[0].value, 1);
    drill_fill(it->question, row->cell[CELL_QUESTION], it);
    drill_fill(it->rule, row->cell[CELL_RULE], it);
    return 1;
}

/* Makes the question of a row; its options come in a drawn order. 0: its numbers cannot be drawn. */
static inline int drill_make(drill_item *it, const drill_row *row, const cost_catalogue *c, unsigned long long *seed)
{
    static drill_choice from[4];
    int order[4], tries = 0;
    it->row = row, it->options = row->kind == DRILL_NUMBER ? 0 : 4;
    while (row->kind != DRILL_SCENARIO && !drill_try(it, c, seed))
        if (++tries == 200) return 0;
    for (int i = 0; row->kind == DRILL_SCENARIO && i < 4; i++) {
        snprintf(it->choice[i].text, DRILL_TEXT, "%s", row->cell[CELL_A + i]);
        snprintf(it->choice[i].reason, DRILL_TEXT, "%s", row->cell[CELL_WHY + i]);
        it->choice[i].right = *row->cell[CELL_RIGHT] == 'a' + i;
        snprintf(it->question, DRILL_TEXT, "%s", row->cell[CELL_QUESTION]);
        snprintf(it->rule, DRILL_TEXT, "%s", row->cell[CELL_RULE]);
    }
    memcpy(from, it->choice, sizeof from);
    drill_shuffle(seed, order, it->options);
    for (int i = 0; i < it->options; i++)
        if ((it->choice[i] = from[order[i]]).right) it->right = i;
    return 1;
}

/* ---- an answer ---- */

/* Small letters and digits alone. */
static inline void drill_plain(char to[DRILL_TEXT], const char *text)
{
    size_t n = 0;
    for (; *text && n < DRILL_TEXT - 1; text++)
        if (isalnum((unsigned char)*text)) to[n++] = (char)tolower((unsigned char)*text);
    to[n] = 0;
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

/* Is it the number? Within 2 %; with or without unit, sign of dollars, commas; 0.43, 0,43 and 43 % are the same. */
static inline int drill_number(const char *answer, double number)
{
    char plain[DRILL_TEXT], *end;
    size_t n = 0;
    double given;
    const char *comma = strchr(answer, ','); /* before 3 digits it groups them */
    if (comma && (strspn(comma + 1, "0123456789") == 3 || strpbrk(comma + 1, ".,"))) comma = NULL;
    for (; *answer && n < DRILL_TEXT - 1; answer++)
        if (answer == comma) plain[n++] = '.';
        else if (!strchr("$,~ =", *answer)) plain[n++] = *answer;
    plain[n] = 0, given = strtod(plain, &end);
    if (number < 1 && (*end == '%' || given > 1)) given /= 100;
    return end != plain && fabs(given - number) <= 0.02 * fabs(number);
}

/* The option of a letter, or of a place from 1 on; -1: none. */
static inline int drill_meant(const drill_item *it, const char *answer)
{
    char given[DRILL_TEXT];
    int place;
    drill_plain(given, answer), place = *given - (isdigit((unsigned char)*given) ? '1' : 'a');
    return *given && !given[1] && place >= 0 && place < it->options ? place : -1;
}

#endif
