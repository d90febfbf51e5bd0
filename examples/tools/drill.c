/* drill: questions as the exam asks them, with the reason for each answer, until you know them.
 *
 *     ./build.sh drill                        ten questions; what you know comes back later, what you do not, soon
 *     ./build.sh drill --domain memory --count 20
 *     ./build.sh drill --export FILE          all of them for Anki (tab-separated)
 *
 * Answer with the letter or with a number; an empty line passes; q ends. Half of the questions are written by hand
 * (scenarios.tsv); the others are drawn from templates.tsv and answered by the planner. --seed N draws the same again.
 * --state FILE keeps what you know after each answer, in five boxes: a right answer moves a question into the next box
 * (a new one into the second), a wrong one into the first; box k returns after 2^(k-1) sessions. --cases prints what is
 * drawn as cases for plan --check. --folder DIR has files of your own. By hand, in the folder of dtrain.h:
 *     cc -O2 examples/tools/drill.c -o drill -lm */
#include "drill.h"
#include <time.h>
#include <unistd.h>

enum { BOXES = 5, DRAWS = 4 };

/* ---- what is known: a line of id, box, session of the last answer for each question ---- */

typedef struct state {
    struct { int box, last; } of[DRILL_ROWS]; /* box 0: never asked */
    int session;
} state;

/* A file that does not exist is the first session. Questions that are no longer asked are forgotten. */
static int read_state(state *s, const drill_deck *d, const char *name)
{
    char line[300], id[101];
    int number = 0, box = 0, last = 0, good = 1;
    FILE *f = fopen(name, "rb");
    if (!f) return 1;
    while (good && (fgets(line, sizeof line, f) || !number)) {
        if (!number++) good = sscanf(line, "drill %9d", &s->session) == 1 && s->session >= 0;
        else good = sscanf(line, "%100s %9d %9d", id, &box, &last) == 3 && box > 0 && box <= BOXES && last > 0;
        for (int i = 0; good && number > 1 && i < d->count; i++)
            if (!strcmp(d->row[i].cell[CELL_ID], id)) s->of[i].box = box, s->of[i].last = last;
    }
    if (!good)
        fprintf(stderr, "drill: %s, line %d: not an id, a box from 1 to %d and a session. Correct it\n", name, number,
                BOXES);
    return fclose(f), good;
}

/* A file is replaced when it is complete. */
static FILE *open_new(const char *name, char draft[PLAN_TEXT])
{
    struct stat is;
    FILE *f = NULL;
    const int good = stat(name, &is) ? *name : S_ISREG(is.st_mode); /* a device is not replaced */
    if (good && snprintf(draft, PLAN_TEXT, "%s.new", name) < PLAN_TEXT) f = fopen(draft, "wb");
    if (!f) fprintf(stderr, "drill: %s cannot be written. Name a file in a folder that exists\n", name);
    return f;
}
static int close_new(FILE *f, const char *draft, const char *name)
{
    if (cost_closed(f, draft) && !rename(draft, name)) return 1;
    fprintf(stderr, "drill: %s cannot be written completely. Is the disk full?\n", name);
    return remove(draft), 0;
}

static int write_state(const state *s, const drill_deck *d, const char *name)
{
    char draft[PLAN_TEXT];
    FILE *f = open_new(name, draft);
    if (!f) return 0;
    fprintf(f, "drill %d\n", s->session);
    for (int i = 0; i < d->count; i++)
        if (s->of[i].box) fprintf(f, "%s %d %d\n", d->row[i].cell[CELL_ID], s->of[i].box, s->of[i].last);
    return close_new(f, draft, name);
}

/* ---- a question and its answer, in the terminal or as a card ---- */

/* Prints a text after a title: into a card as HTML, else in lines of 100 columns. */
static void put(FILE *card, const char *title, const char *text)
{
    int left = (int)strlen(title), at = left;
    if (card && *title) fprintf(card, "<br>");
    fprintf(card ? card : stdout, "%s", title);
    for (; card && *text; text++)
        fprintf(card, *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '&' ? "&amp;" : "%c", *text);
    for (int n; !card && *text; text += n + (text[n] == ' ')) {
        n = (int)strcspn(text, " ");
        if (at + n >= 100) printf("\n%*s", at = left, "");
        else if (at > left) at += printf(" ");
        at += printf("%.*s", n, text);
    }
    if (!card) putchar('\n');
}

static void put_question(FILE *card, const drill_item *it)
{
    static const char *const letter[] = {"  a) ", "  b) ", "  c) ", "  d) "};
    put(card, "", it->question);
    for (int i = 0; i < it->options; i++) put(card, letter[i], it->choice[i].text);
}

static void put_answer(FILE *card, const drill_item *it, int given)
{
    const plan_answer *a = &it->answer;
    const int planned = it->row->kind != DRILL_SCENARIO && it->options && !card;
    char text[2 * DRILL_TEXT], title[40];
    if (it->options) snprintf(text, sizeof text, "%c) %s", 'a' + it->right, it->choice[it->right].text);
    else plan_digits(it->number, text);
    put(card, card ? "" : "The answer is ", text);
    for (int i = 0; i < it->options; i++) {
        const char *verdict = i == it->right ? "right" : i == given ? "wrong (yours)" : "wrong";
        snprintf(title, sizeof title, "  %c) %s: ", 'a' + i, verdict);
        if (*it->choice[i].reason) put(card, title, it->choice[i].reason);
    }
    put(card, "Rule: ", it->rule);
    for (int i = 0; planned && i < a->why.count; i++) put(card, "Plan: ", a->why.line[i]);
    for (int i = 0; planned && i < a->rejected.count && i < 3; i++) put(card, "Rejected: ", a->rejected.line[i]);
    if (*it->row->cell[CELL_EXAM] != '-') put(card, "The exam: ", it->row->cell[CELL_EXAM]);
    snprintf(text, sizeof text, "examples/%s.c (%s)", it->row->cell[CELL_PROGRAM], it->row->cell[CELL_CONCEPTS]);
    put(card, "Shown by ", text);
}

/* ---- a session ---- */

/* 1: right, 0: wrong or passed, -1: the session ends. */
static int ask(const drill_item *it, int n, int count)
{
    char line[DRILL_TEXT];
    int given = -1, good;
    printf("\n%d of %d, %s\n", n, count, it->row->cell[CELL_DOMAIN]);
    put_question(NULL, it);
    if (!it->options) printf("  (a number)\n");
    for (;;) {
        printf("> "), fflush(stdout);
        if (!fgets(line, sizeof line, stdin) || drill_same(line, "q|quit|exit|end")) return -1;
        line[strcspn(line, "\r\n")] = 0, given = drill_meant(it, line);
        if (!line[strspn(line, " \t?-")] || given >= 0 || !it->options) break;
        printf("Answer with a letter from a to d; an empty line passes\n");
    }
    good = it->options ? given == it->right : drill_number(line, it->number);
    printf("%s\n", good ? "Right." : "Not right.");
    put_answer(NULL, it, given);
    return good;
}

/* The questions of a session, in order: those that are due, the longest first; new ones; those that are not yet due. */
static int choose(const drill_deck *d, const state *s, const char *domain, unsigned long long *seed, int *chosen)
{
    double rank[DRILL_ROWS];
    int order[DRILL_ROWS], count = 0;
    drill_shuffle(seed, order, d->count);
    for (int i = 0; i < d->count; i++) {
        int row = order[i], box = s->of[row].box, at = count;
        double r = box ? s->of[row].last + (1 << (box - 1)) - s->session : 0.5;
        if (domain && strcmp(d->row[row].cell[CELL_DOMAIN], domain)) continue;
        for (; at && rank[at - 1] > r; at--) rank[at] = rank[at - 1], chosen[at] = chosen[at - 1];
        rank[at] = r, chosen[at] = row, count++;
    }
    return count;
}

static int run_session(const drill_deck *d, const cost_catalogue *c, const char *domain, int count,
                       unsigned long long seed, const char *file)
{
    static state s;
    static drill_item it;
    static int chosen[DRILL_ROWS], score[16][2];
    char word[40];
    int all, asked = 0, right = 0;
    if (file && !read_state(&s, d, file)) return 2;
    s.session++, all = choose(d, &s, domain, &seed, chosen);
    if (!all) return fprintf(stderr, "drill: there is no such question. Choose another domain or folder\n"), 1;
    if (count > all) count = all;
    for (; asked < count; asked++) {
        int i = chosen[asked], k = plan_word(DRILL_DOMAINS, d->row[i].cell[CELL_DOMAIN]), good;
        if (!drill_make(&it, &d->row[i], c, &seed))
            return fprintf(stderr, "drill: %s: no question\n", d->row[i].cell[CELL_ID]), 1;
        if ((good = ask(&it, asked + 1, count)) < 0) break;
        right += good, score[k][0] += good, score[k][1]++;
        s.of[i].box = !good ? 1 : !s.of[i].box ? 2 : s.of[i].box < BOXES ? s.of[i].box + 1 : BOXES;
        s.of[i].last = s.session;
        if (file && !write_state(&s, d, file)) return 1;
    }
    if (asked < count) printf("\nended after %d of %d questions\n", asked, count);
    printf("\n%d of %d right\n", right, asked);
    for (int k = 0; *plan_named(DRILL_DOMAINS, k, word); k++)
        if (score[k][1]) printf("  %-11s %d of %d\n", word, score[k][0], score[k][1]);
    return 0;
}

/* ---- all questions: cards for Anki, cases for the planner ---- */

/* Cases of the planner: id, facts, and what an output, warnings or numbers must be. Options that are facts are a
 * case each. */
static void print_cases(const drill_item *it)
{
    const drill_row *row = it->row;
    const int which = row->kind == DRILL_WHICH;
    const char *name = row->code >= 0 ? "warn" : row->out < 0 ? "num" : plan_output[row->out][0];
    char want[DRILL_TEXT] = "";
    if (row->kind == DRILL_NUMBER)
        snprintf(want, sizeof want, row->out < 0 ? "%s=%.17g" : "%.0s%.17g", row->cell[CELL_ASKED], it->number);
    if (row->kind == DRILL_WORD) strcpy(want, it->choice[it->right].value);
    for (int i = 0; i < 4; i++) {
        const drill_choice *o = &it->choice[i];
        const char *code = row->code < 0 ? "" : which ? plan_warning[row->code][0] : o->value;
        const size_t used = which ? 0 : strlen(want);
        if (*code) snprintf(want + used, sizeof want - used, ",%c%s", o->right != which ? '+' : '!', code);
        else if (which) plan_named(plan_output[row->out][1], o->right ? row->word : !row->word, want);
        if (!which && i < 3) continue;
        printf("%s\t%s%s", row->cell[CELL_ID], it->facts, which ? o->value : "");
        for (int k = 0; k < PLAN_OUTS; k++) printf("\t%s", strcmp(plan_output[k][0], name) ? "*" : want);
        printf("\t%s\t%s\n", strcmp(name, "warn") ? "*" : want, strcmp(name, "num") ? "*" : want);
    }
}

/* Up to DRAWS different questions of a row. How many; 0: no draw has one right answer, told. */
static int put_row(FILE *cards, const drill_row *row, const cost_catalogue *c, unsigned long long *seed)
{
    static drill_item it[DRAWS];
    const int drawing = row->kind != DRILL_SCENARIO;
    int count = 0;
    for (int tries = 0, twice = 0; count < (drawing ? DRAWS : 1) && tries < 3 * DRAWS; tries++, twice = 0) {
        if (!drill_make(&it[count], row, c, seed))
            return fprintf(stderr, "drill: %s: no draw has one right answer\n", row->cell[CELL_ID]), 0;
        for (int k = 0; k < count; k++) twice |= !strcmp(it[k].question, it[count].question);
        if (twice) continue;
        if (cards) {
            put_question(cards, &it[count]), fputs("\t", cards), put_answer(cards, &it[count], -1);
            fprintf(cards, "\t%s %s\n", row->cell[CELL_DOMAIN], row->cell[CELL_CONCEPTS]);
        } else if (drawing) print_cases(&it[count]);
        count++;
    }
    return count;
}

/* All questions: as cards in a file, or as cases. */
static int run_all(const drill_deck *d, const cost_catalogue *c, const char *domain, unsigned long long seed,
                   const char *file)
{
    char draft[PLAN_TEXT];
    int count[2] = {0, 0}, templates = 0, some = 1;
    FILE *f = file ? open_new(file, draft) : NULL;
    if (file && !f) return 1;
    if (f) fprintf(f, "#separator:tab\n#html:true\n#columns:Front\tBack\tTags\n#tags column:3\n");
    for (int k = 0; !f && k < PLAN_OUTS; k++) printf("%s\tx_%s", k ? "" : "id\tfacts", plan_output[k][0]);
    if (!f) printf("\tx_warn\tx_num\n");
    for (const drill_row *row = d->row; some && row < d->row + d->count; row++) {
        int drawing = row->kind != DRILL_SCENARIO;
        if (domain && strcmp(row->cell[CELL_DOMAIN], domain)) continue;
        some = put_row(f, row, c, &seed), count[drawing] += some, templates += drawing;
    }
    if (!f) return !some;
    if (!some) return fclose(f), remove(draft), 1;
    if (!close_new(f, draft, file)) return 1;
    return printf("%d questions written by hand, %d from %d templates\n", count[0], count[1], templates) < 0;
}

static int help(void)
{
    printf("Usage: drill [OPTION ..]. Answer with the letter or a number. An empty line passes, q ends.\n"
           "  --count N      number of questions (10)\n"
           "  --domain NAME  one domain: %s\n"
           "  --seed N       draw the same questions and numbers again\n"
           "  --state FILE   what you know, kept for the next session\n"
           "  --export FILE  all questions as cards for Anki; --cases: as cases for plan --check\n"
           "  --folder DIR   your own scenarios.tsv and templates.tsv\n",
           DRILL_DOMAINS);
    return 0;
}

int main(int argc, char **argv)
{
    enum { HELP, CASES, FLAGS, TOPIC = FLAGS, STATE, EXPORT, FOLDER, COUNT, SEED, OPTIONS };
    static drill_deck d;
    static cost_catalogue c;
    const char *given[OPTIONS] = {NULL};
    char folder[PLAN_TEXT];
    double n[] = {10, (double)(time(NULL) % 100000 * 7 + getpid())}; /* COUNT, SEED */
    unsigned long long seed;
    cost_begin();
    for (int i = 1; i < argc; i++) {
        const char *name = strncmp(argv[i], "--", 2) ? "" : argv[i] + 2;
        int k = plan_word("help|cases|domain|state|export|folder|count|seed", name);
        if (k < 0) return fprintf(stderr, "drill: what is '%.60s'? --help lists the options\n", argv[i]), 2;
        if (k >= FLAGS && i + 1 == argc) return fprintf(stderr, "drill: %s needs a value\n", argv[i]), 2;
        given[k] = argv[k < FLAGS ? i : ++i];
        if (k < COUNT) continue;
        n[k - COUNT] = cost_number(given[k]);
        if (!(n[k - COUNT] >= (k == COUNT) && n[k - COUNT] < 1e15 && n[k - COUNT] == floor(n[k - COUNT])))
            return fprintf(stderr, "drill: --%s '%.40s' is not a whole number from %d on. Correct it\n", name, given[k],
                           k == COUNT),
                   2;
    }
    if (given[HELP]) return help();
    if (given[TOPIC] && plan_word(DRILL_DOMAINS, given[TOPIC]) < 0)
        return fprintf(stderr, "drill: no domain '%.40s'. Choose one of %s\n", given[TOPIC], DRILL_DOMAINS), 2;
    snprintf(folder, sizeof folder, "%.*s", (int)(strlen(__FILE__) - strlen("drill.c")), __FILE__);
    if (given[FOLDER]) snprintf(folder, sizeof folder, "%s/", given[FOLDER]);
    if (cost_open(&c, NULL) || !drill_read(&d, folder, 0) || !drill_read(&d, folder, 1))
        return fprintf(stderr, "drill: %s\n", d.wrong), 1;
    seed = (unsigned long long)n[1];
    if (given[EXPORT] || given[CASES]) return run_all(&d, &c, given[TOPIC], seed, given[EXPORT]);
    printf("seed %llu\n", seed);
    return run_session(&d, &c, given[TOPIC], (int)fmin(n[0], DRILL_ROWS), seed, given[STATE]);
}
