/* drill: questions as the exam asks them, with the reason for each answer, until you know them.
 *
 *     ./build.sh drill                        ten questions; what you know comes back later, what you do not, soon
 *     ./build.sh drill --domain memory --count 20
 *     ./build.sh drill --export FILE          all of them for Anki (tab-separated)
 *     ./build.sh drill --list                 all of them, one a line
 *
 * Answer with the letter, with words of an option (in any case; dp, PP and the like will do) or with a number; an empty
 * line passes; q ends. Half of the questions are written by hand (scenarios.tsv); the others are drawn from
 * templates.tsv and answered by the planner. --seed N draws the same again. --state FILE keeps what you know, in five
 * boxes: a right answer moves a question into the next box (a new one into the second), a wrong one into the first; box
 * k returns after 2^(k-1) sessions. --cases prints what was drawn as cases for plan --check. --folder DIR/ has files of
 * your own. By hand, in the folder of dtrain.h: cc -O2 examples/tools/drill.c -o drill -lm */
#include "drill.h"
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { BOXES = 5, DRAWS = 4 };

/* ---- what is known: a line of id, box, session of the last answer for each question ---- */

typedef struct box {
    int box, last; /* 0: never asked */
} box;

typedef struct state {
    box of[DRILL_ROWS];
    int session;
} state;

static int read_state(state *s, const drill_deck *d, const char *name)
{
    char line[300], id[101];
    int number = 1, place, last;
    FILE *f = fopen(name, "rb");
    memset(s, 0, sizeof *s);
    if (!f) return 1; /* the first session */
    if (!fgets(line, sizeof line, f) || sscanf(line, "drill %d", &s->session) != 1 || s->session < 0) {
        fprintf(stderr, "drill: %s is not a state of drill. Name another file, or delete it to begin again\n", name);
        return fclose(f), 0;
    }
    while (fgets(line, sizeof line, f)) {
        number++;
        if (sscanf(line, "%100s %d %d", id, &place, &last) != 3 || place < 1 || place > BOXES || last < 1 ||
            last > s->session) {
            fprintf(stderr,
                    "drill: %s, line %d: not an id, a box from 1 to %d and a session up to %d. Correct or delete it\n",
                    name, number, BOXES, s->session);
            return fclose(f), 0;
        }
        for (int i = 0; i < d->count; i++) /* questions that the files no longer have are forgotten */
            if (!strcmp(d->row[i].cell[CELL_ID], id)) s->of[i].box = place, s->of[i].last = last;
    }
    return fclose(f), 1;
}

static void write_state(FILE *f, const state *s, const drill_deck *d)
{
    fprintf(f, "drill %d\n", s->session);
    for (int i = 0; i < d->count; i++)
        if (s->of[i].box) fprintf(f, "%s %d %d\n", d->row[i].cell[CELL_ID], s->of[i].box, s->of[i].last);
}

/* A file is replaced when it is complete. */
static FILE *open_new(const char *name, char draft[PLAN_TEXT])
{
    FILE *f = NULL;
    if (snprintf(draft, PLAN_TEXT, "%s.new", name) < PLAN_TEXT) f = fopen(draft, "wb");
    if (!f) fprintf(stderr, "drill: %s cannot be written. Name a file in a folder that exists\n", name);
    return f;
}
static int close_new(FILE *f, const char *draft, const char *name)
{
    int bad = ferror(f);
    bad = fclose(f) || bad;
    if (!bad && !rename(draft, name)) return 1;
    fprintf(stderr, "drill: %s cannot be written completely. Is the disk full?\n", name);
    return remove(draft), 0;
}

/* ---- a session ---- */

static volatile sig_atomic_t stopped;
static void stop(int number) { (void)number, stopped = 1; }

/* Prints words after what stands in the line already, in lines of 100 columns. */
static void print_words(int column, int indent, const char *text)
{
    for (int n, first = 1; *text; text += n + (text[n] == ' '), first = 0) {
        n = (int)strcspn(text, " ");
        if (!first && column + n >= 100) printf("\n%*s", column = indent, "");
        else if (!first) putchar(' '), column++;
        printf("%.*s", n, text), column += n;
    }
    putchar('\n');
}

static void print_question(const drill_item *it, int n, int count)
{
    printf("\n%d of %d, %s\n", n, count, it->row->cell[CELL_DOMAIN]);
    print_words(0, 0, it->question);
    for (int i = 0; i < it->options; i++) printf("  %c) ", 'a' + i), print_words(5, 5, it->choice[i].text);
    if (!it->options) printf("  (a number)\n");
}

static void print_reasons(const drill_item *it, int given)
{
    const plan_answer *a = &it->answer;
    char text[32];
    if (!it->options) printf("The answer is %s.\n", plan_digits(it->number, text));
    for (int i = 0; i < it->options; i++) {
        if (!*it->choice[i].reason && i != it->right) continue;
        print_words(printf("  %c) %s%s", 'a' + i,
                           i == it->right ? "right"
                           : i == given   ? "wrong (yours)"
                                          : "wrong",
                           *it->choice[i].reason ? ": " : ""),
                    5, it->choice[i].reason);
    }
    print_words(printf("Rule: "), 6, it->rule);
    if (it->row->kind != DRILL_SCENARIO && it->options) {
        for (int i = 0; i < a->why.count; i++) print_words(printf("Plan: "), 6, a->why.line[i]);
        for (int i = 0; i < a->rejected.count && i < 3; i++) print_words(printf("Rejected: "), 6, a->rejected.line[i]);
    }
    if (*it->row->cell[CELL_EXAM] != '-') print_words(printf("The exam: "), 6, it->row->cell[CELL_EXAM]);
    printf("Shown by examples/%s.c (%s)\n", it->row->cell[CELL_PROGRAM], it->row->cell[CELL_CONCEPTS]);
}

/* 1: right, 0: wrong or passed, -1: the session ends. */
static int ask(const drill_item *it, int n, int count)
{
    char line[DRILL_TEXT];
    int given, good;
    print_question(it, n, count);
    for (;;) {
        printf("> "), fflush(stdout);
        if (stopped || !fgets(line, sizeof line, stdin) || stopped) return -1;
        line[strcspn(line, "\r\n")] = 0;
        if (drill_same(line, "q|quit|exit|end")) return -1;
        given = drill_meant(it, line);
        if (!line[strspn(line, " \t?-")] || given >= 0 || !it->options) break;
        printf("%s. Answer with a letter from a to d, or with words of one option; an empty line passes\n",
               given == -2 ? "That fits several options" : "No option has these words");
    }
    good = it->options ? given == it->right : drill_number(line, it->number);
    printf("%s\n", good ? "Right." : "Not right.");
    print_reasons(it, given);
    return good;
}

/* The questions of a session, in order: those that are due, the longest first; new ones; those that are not yet due. */
static int choose(const drill_deck *d, const state *s, const char *domain, unsigned long long *seed, int *chosen)
{
    double rank[DRILL_ROWS];
    int order[DRILL_ROWS], count = 0;
    drill_shuffle(seed, order, d->count);
    for (int i = 0; i < d->count; i++) {
        const drill_row *row = &d->row[order[i]];
        const box *b = &s->of[order[i]];
        double r = b->box ? b->last + (1 << (b->box - 1)) - s->session : 0.5;
        int at = count;
        if (domain && strcmp(row->cell[CELL_DOMAIN], domain)) continue;
        for (; at && rank[at - 1] > r; at--) rank[at] = rank[at - 1], chosen[at] = chosen[at - 1];
        rank[at] = r, chosen[at] = order[i], count++;
    }
    return count;
}

static void print_score(const int (*score)[2], const state *s, const drill_deck *d, int keeps)
{
    char word[40];
    int boxes[BOXES + 1] = {0}, good = 0, all = 0;
    for (int k = 0; *plan_named(DRILL_DOMAINS, k, word); k++) good += score[k][0], all += score[k][1];
    printf("\n%d of %d right\n", good, all);
    for (int k = 0; *plan_named(DRILL_DOMAINS, k, word); k++)
        if (score[k][1]) printf("  %-11s %d of %d\n", word, score[k][0], score[k][1]);
    if (!keeps) return;
    for (int i = 0; i < d->count; i++) boxes[s->of[i].box]++;
    printf("session %d; never asked %d", s->session, boxes[0]);
    for (int k = 1; k <= BOXES; k++) printf(", box %d: %d", k, boxes[k]);
    printf("\n");
}

static int run_session(const drill_deck *d, const cost_catalogue *c, const char *domain, int count,
                       unsigned long long seed, const char *file)
{
    static state s;
    static drill_item it;
    static int chosen[DRILL_ROWS], score[16][2];
    struct sigaction act;
    char draft[PLAN_TEXT];
    int all, asked = 0, good = 0;
    FILE *f;
    if (file && !read_state(&s, d, file)) return 2;
    memset(&act, 0, sizeof act), act.sa_handler = stop; /* without SA_RESTART: reading ends, too */
    sigaction(SIGINT, &act, NULL), sigaction(SIGTERM, &act, NULL), sigaction(SIGHUP, &act, NULL);
    s.session++;
    all = choose(d, &s, domain, &seed, chosen);
    if (count > all) count = all;
    for (int i = 0; i < count && good >= 0; i++) {
        const drill_row *row = &d->row[chosen[i]];
        int k = plan_word(DRILL_DOMAINS, row->cell[CELL_DOMAIN]);
        box *b = &s.of[chosen[i]];
        if (!drill_make(&it, row, c, &seed)) return fprintf(stderr, "drill: %s: no question\n", row->cell[CELL_ID]), 1;
        if ((good = ask(&it, i + 1, count)) < 0) break;
        asked++, score[k][0] += good, score[k][1]++;
        b->box = !good ? 1 : !b->box ? 2 : b->box < BOXES ? b->box + 1 : BOXES, b->last = s.session;
    }
    if (good < 0) printf("\nended after %d of %d questions\n", asked, count);
    print_score((const int(*)[2])score, &s, d, file != NULL);
    if (!file || !asked) return 0;
    if (!(f = open_new(file, draft))) return 1;
    write_state(f, &s, d);
    return !close_new(f, draft, file);
}

/* ---- all questions: a list, cards for Anki, cases for the planner ---- */

static void html(FILE *f, const char *text)
{
    for (; *text; text++)
        fprintf(f, *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '&' ? "&amp;" : "%c", *text);
}

static void print_card(FILE *f, const drill_item *it)
{
    char text[32];
    html(f, it->question);
    for (int i = 0; i < it->options; i++) fprintf(f, "<br>%c) ", 'a' + i), html(f, it->choice[i].text);
    fprintf(f, "\t");
    if (it->options) fprintf(f, "%c) ", 'a' + it->right), html(f, it->choice[it->right].text);
    else fprintf(f, "%s", plan_digits(it->number, text));
    for (int i = 0; i < it->options; i++)
        if (*it->choice[i].reason) fprintf(f, "<br>%c) ", 'a' + i), html(f, it->choice[i].reason);
    fprintf(f, "<br>Rule: "), html(f, it->rule);
    if (*it->row->cell[CELL_EXAM] != '-') fprintf(f, "<br>The exam: "), html(f, it->row->cell[CELL_EXAM]);
    fprintf(f, "<br>%s.c\t%s %s\n", it->row->cell[CELL_PROGRAM], it->row->cell[CELL_DOMAIN],
            it->row->cell[CELL_CONCEPTS]);
}

/* One case of the planner: id, facts, and what an output, the warnings or the numbers must be. */
static void print_case(const char *id, const char *facts, const char *more, const char *output, const char *want)
{
    printf("%s\t%s;%s", id, facts, more);
    for (int k = 0; k < PLAN_OUTS; k++) printf("\t%s", strcmp(plan_output[k][0], output) ? "*" : want);
    printf("\t%s\t%s\n", strcmp(output, "warn") ? "*" : want, strcmp(output, "num") ? "*" : want);
}

static void print_cases(const drill_item *it)
{
    const drill_row *row = it->row;
    const char *id = row->cell[CELL_ID];
    const char *name = row->code >= 0 ? "warn" : row->out < 0 ? "num" : plan_output[row->out][0];
    char want[DRILL_TEXT] = "";
    if (row->kind == DRILL_NUMBER)
        snprintf(want, sizeof want, row->out < 0 ? "%s=%.17g" : "%.0s%.17g", row->cell[CELL_ASKED], it->number);
    if (row->kind == DRILL_WORD) strcpy(want, it->choice[it->right].value);
    for (int i = 0; i < 4 && row->kind == DRILL_WARN; i++)
        snprintf(want + strlen(want), sizeof want - strlen(want), "%s%c%s", i ? "," : "", i == it->right ? '+' : '!',
                 it->choice[i].value);
    if (row->kind != DRILL_WHICH) print_case(id, it->facts, "", name, want);
    for (int i = 0; i < 4 && row->kind == DRILL_WHICH; i++) {
        int right = it->choice[i].right; /* an output of two words, or a warning */
        if (row->word < 0) snprintf(want, sizeof want, "%c%s", right ? '!' : '+', plan_warning[row->code][0]);
        else plan_named(plan_output[row->out][1], right ? row->word : !row->word, want);
        print_case(id, it->facts, it->choice[i].value, name, want);
    }
}

/* Up to DRAWS different questions of each template, and each scenario. */
static int run_all(const drill_deck *d, const cost_catalogue *c, const char *domain, unsigned long long seed,
                   FILE *cards, int cases)
{
    static drill_item it[DRAWS];
    int drawn = 0, written = 0, templates = 0;
    if (cards) fprintf(cards, "#separator:tab\n#html:true\n#columns:Front\tBack\tTags\n#tags column:3\n");
    if (cases) {
        printf("id\tfacts");
        for (int k = 0; k < PLAN_OUTS; k++) printf("\tx_%s", plan_output[k][0]);
        printf("\tx_warn\tx_num\n");
    }
    for (int i = 0; i < d->count; i++) {
        const drill_row *row = &d->row[i];
        int count = 0, drawing = row->kind != DRILL_SCENARIO;
        if (domain && strcmp(row->cell[CELL_DOMAIN], domain)) continue;
        for (int tries = 0; count < (drawing ? DRAWS : 1) && tries < 3 * DRAWS; tries++) {
            int twice = 0;
            if (!drill_make(&it[count], row, c, &seed))
                return fprintf(stderr, "drill: %s: no draw has one right answer\n", row->cell[CELL_ID]), 1;
            for (int k = 0; k < count; k++) twice = twice || !strcmp(it[k].question, it[count].question);
            if (twice) continue;
            if (cards) print_card(cards, &it[count]);
            else if (!cases) printf("%s\t%s\t%s\n", row->cell[CELL_ID], row->cell[CELL_DOMAIN], it[count].question);
            else if (drawing) print_cases(&it[count]);
            count++;
        }
        templates += drawing, *(drawing ? &drawn : &written) += count;
    }
    if (!cases)
        printf("%d questions: %d written by hand, %d from %d templates\n", written + drawn, written, drawn, templates);
    return 0;
}

static int run_export(const drill_deck *d, const cost_catalogue *c, const char *domain, unsigned long long seed,
                      const char *name)
{
    char draft[PLAN_TEXT];
    FILE *f = open_new(name, draft);
    if (!f) return 1;
    if (run_all(d, c, domain, seed, f, 0)) return fclose(f), remove(draft), 1;
    return !close_new(f, draft, name);
}

static void help(void)
{
    printf("Usage: drill [--count N] [--domain NAME] [--seed N] [--state FILE] | drill --export FILE | drill --list\n"
           "  --count N      so many questions (10)\n"
           "  --domain NAME  of one domain: %s\n"
           "  --seed N       draw the same questions and numbers again\n"
           "  --state FILE   what you know, kept for the next session\n"
           "  --export FILE  all questions as cards for Anki; --list prints them; --cases: as cases for plan --check\n"
           "  --folder DIR/  scenarios.tsv and templates.tsv of your own\n"
           "Answer with the letter, words of an option, or a number. An empty line passes, q ends.\n",
           DRILL_DOMAINS);
}

/* A whole number of an option. 0: it is not. */
static int whole(const char *option, const char *value, unsigned long long low, unsigned long long *n)
{
    char *end;
    *n = strtoull(value, &end, 10);
    if (end != value && !*end && *value != '-' && *n >= low) return 1;
    return fprintf(stderr, "drill: %s '%.40s' is not a whole number from %llu on. Correct it\n", option, value, low), 0;
}

int main(int argc, char **argv)
{
    static drill_deck d;
    static cost_catalogue c;
    const char *domain = NULL, *file = NULL, *cards = NULL;
    char folder[PLAN_TEXT];
    unsigned long long seed = (unsigned long long)time(NULL) % 100000 * 7 + (unsigned long long)getpid(), count = 10;
    int list = 0, cases = 0;
    snprintf(folder, sizeof folder, "%.*s", (int)(strlen(__FILE__) - strlen("drill.c")), __FILE__);
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(option, "--help") || !strcmp(option, "-h")) return help(), 0;
        if (!strcmp(option, "--list")) list = 1;
        else if (!strcmp(option, "--cases")) cases = 1;
        else if (strncmp(option, "--", 2) || plan_word("count|domain|seed|state|export|folder", option + 2) < 0)
            return fprintf(stderr, "drill: what is '%.60s'? ./build.sh drill --help lists the options\n", option), 2;
        else if (!value) return fprintf(stderr, "drill: %s needs a value\n", option), 2;
        else i++;
        if (!strcmp(option, "--count") && !whole(option, value, 1, &count)) return 2;
        if (!strcmp(option, "--seed") && !whole(option, value, 0, &seed)) return 2;
        if (!strcmp(option, "--domain")) domain = value;
        if (!strcmp(option, "--state")) file = value;
        if (!strcmp(option, "--export")) cards = value;
        if (!strcmp(option, "--folder")) snprintf(folder, sizeof folder, "%s", value);
    }
    if (domain && plan_word(DRILL_DOMAINS, domain) < 0)
        return fprintf(stderr, "drill: no domain '%.40s'. Choose one of %s\n", domain, DRILL_DOMAINS), 2;
    if (cost_open(&c, NULL) || !drill_read(&d, folder, 0) || !drill_read(&d, folder, 1))
        return fprintf(stderr, "drill: %s\n", d.wrong), 1;
    if (cards) return run_export(&d, &c, domain, seed, cards);
    if (list || cases) return run_all(&d, &c, domain, seed, NULL, cases);
    printf("seed %llu\n", seed);
    return run_session(&d, &c, domain, count > DRILL_ROWS ? DRILL_ROWS : (int)count, seed, file);
}
