/* 95_quiz: which words and numbers of the course do you know by heart?
 *
 * What you learn
 *     - Each card has a trigger, as exams and design reviews have them, and one answer: a word, or a number that the
 *       program computes.
 *     - Libraries have one official name. Texts also call SMDDP "SMDP" and SMP "SMMP"; "MPP" is not a library.
 *     - An analogy (cooks, builders, an assembly line) is useful only if you can say where it fails.
 *     - A wrong answer names the program that shows the right one, and something to read.
 *     - A scenario has one right option and three that sound right; each has a reason.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 95_quiz.c -o 95_quiz -lm -lpthread
 *     ./95_quiz                                        asks; an empty line passes, the end of the input ends it
 *     ./95_quiz --scenarios                            asks those of tools/scenarios.tsv (./build.sh drill has more)
 *     ./95_quiz allreduce all-gather SMDP MPP          your answers, in order; - to pass
 *     ./95_quiz --answers                              the answers
 *
 * What it prints
 *     words     averages gradients over ranks                            all-reduce  (22_ring)
 *     words     joins shards of weights before a layer                   all-gather  (40_zero_by_hand)
 *     names     AWS's data parallel library                              SMDDP  (91_distribution)
 *     names     AWS's model parallel library                             SMP  (91_distribution)
 *     names     replicas by MPI, nothing sharded                         Horovod  (91_distribution)
 *     pictures  cooks make whole dishes, then compare notes              data  (31_data_parallel)
 *     pictures  four builders on one beam                                tensor  (52_tensor_parallel_by_hand)
 *     numbers   GB of states, 70 billion weights, AdamW                  1120  (44_fit)
 *     numbers   50 h on a GPU, due in 5 h, efficiency 0.91: GPUs         11  (64_hours_and_money)
 *     numbers   % idle, 4 stages, 4 micro-batches                        42.86  (50_pipeline_by_hand)
 *     traps     8 stages, 1 micro-batch: times the price                 8  (64_hours_and_money)
 *     traps     a save 60 s, a failure every 2 h: minutes between saves  15.49  (74_interval)
 *     exam      % of MLA-C01 in the domain of model development          26  (README)
 *     ok: 19 cards
 *
 * Predict first: how many of the numbers can you work out without a calculator?
 * Exercise: ask missed cards again at the end, until each was right once. How many questions is that with one miss?
 *
 * Read on: 96_checklist.c for a job on several nodes; README.md, whose chapters are the topics of the cards. */
#include "tools/drill.h"

typedef struct card {
    const char *topic, *trigger, *word; /* word NULL: a number; | between words that count as the same */
    double number;
    const char *program, *read;
} card;

/* GB of 70 billion weights with AdamW; share of the price; 600 GB/s beside 400 Gbit/s; GPUs; idle; minutes. */
static double states(double billions) { return 16 * billions; }
static double rent(double alone, double nodes, double hours) { return nodes * hours / alone; }
static double links(double gigabytes, double gigabits) { return gigabytes / (gigabits / 8); }
static double gpus(double alone, double due, double efficiency) { return ceil(alone / (due * efficiency)); }
static double idle(double p, double m) { return 100 * (p - 1) / (m + p - 1); }
static double price(double p, double m) { return (m + p - 1) / m; }
static double young(double save, double mean) { return sqrt(2 * save * mean) / 60; }

/* A word in one of its spellings, or a number; GB also as TB. */
static int right(const card *c, const char *answer)
{
    if (c->word) return drill_same(answer, c->word);
    return drill_number(answer, strncmp(c->trigger, "GB", 2) || !strpbrk(answer, "tT") ? c->number : c->number / 1000);
}

/* The answer, or what is right and where it stands. */
static void print_answer(const card *c, int hit, int asked)
{
    if (hit) printf("right: ");
    if (c->word) printf("%.*s", (int)strcspn(c->word, "|"), c->word);
    else printf("%.4g", c->number);
    if (!hit) printf("  (%s)%s%s", c->program, asked ? " read: " : "", asked ? c->read : "");
    printf("\n");
}

/* The next line of the input; 0: it has ended. */
static int reads(char *line, int room)
{
    printf("? "), fflush(stdout);
    if (!fgets(line, room, stdin)) return 0;
    return line[strcspn(line, "\r\n")] = 0, 1;
}

/* Asks the scenarios in the order of their file. */
static int scenarios(void)
{
    static drill_deck deck;
    static drill_item it;
    char line[200];
    unsigned long long seed = 95;
    int hits = 0, asked = 0;
    if (!drill_read(&deck, "tools/", 0)) return fprintf(stderr, "95_quiz: %s\n", deck.wrong), 1;
    for (; asked < deck.count && drill_make(&it, &deck.row[asked], NULL, &seed); asked++) {
        printf("\n%s\n", it.question);
        for (int i = 0; i < 4; i++) printf("  %c) %s\n", 'a' + i, it.choice[i].text);
        if (!reads(line, sizeof line)) break;
        hits += drill_meant(&it, line) == it.right;
        printf("%s. %s\n", drill_meant(&it, line) == it.right ? "Right" : "Not right", it.rule);
        for (int i = 0; i < 4; i++)
            printf("  %c) %s: %s\n", 'a' + i, i == it.right ? "right" : "wrong", it.choice[i].reason);
        if (*it.row->cell[CELL_EXAM] != '-') printf("  the exam: %s\n", it.row->cell[CELL_EXAM]);
        printf("  (%s)\n", it.row->cell[CELL_PROGRAM]);
    }
    return printf("\nok: %d of %d right, of %d scenarios\n", hits, asked, deck.count), 0;
}

int main(int argc, char **argv)
{
    const card cards[] = {
        {"words", "averages gradients over ranks", "all-reduce", 0, "22_ring", "Patarasuk and Yuan 2009"},
        {"words", "joins shards of weights before a layer", "all-gather", 0, "40_zero_by_hand",
         "Rajbhandari et al. 2020"},
        {"names", "AWS's data parallel library", "SMDDP|SMDP", 0, "91_distribution", "SageMaker guide, SMDDP"},
        {"names", "AWS's model parallel library", "SMP|SMMP", 0, "91_distribution", "SageMaker guide, SMP"},
        {"names", "ZeRO, often through Hugging Face", "DeepSpeed", 0, "41_zero", "Rajbhandari et al. 2020"},
        {"names", "replicas by MPI, nothing sharded", "Horovod", 0, "91_distribution", "Sergeev and Del Balso 2018"},
        {"names", "rules for trees of this library are not here", "XGBoost", 0, "82_rules", "AWS's Debugger guide"},
        {"pictures", "cooks make whole dishes, then compare notes", "data|data parallel|data parallelism|DP", 0,
         "31_data_parallel", "it breaks: not once a day, after every step"},
        {"pictures", "starter, main course, dessert", "pipeline|pipeline parallel|pipeline parallelism|PP", 0,
         "51_pipeline", "it breaks: the dish goes back the same way"},
        {"pictures", "four builders on one beam", "tensor|tensor parallel|tensor parallelism|TP", 0,
         "52_tensor_parallel_by_hand", "it breaks: they meet in every layer"},
        {"pictures", "a photocopy of the plan every 15 minutes", "checkpoint|checkpoints|checkpointing", 0,
         "74_interval", "it breaks: the interval follows from two numbers"},
        {"numbers", "GB of states, 70 billion weights, AdamW", NULL, states(70), "44_fit", "Rajbhandari et al. 2020"},
        {"numbers", "80 h on 1 node, 22 h on 4: times the rent", NULL, rent(80, 4, 22), "64_hours_and_money",
         "EC2 prices"},
        {"numbers", "600 GB/s beside 400 Gbit/s: times", NULL, links(600, 400), "21_data_sheet", "EC2 guide, EFA"},
        {"numbers", "50 h on a GPU, due in 5 h, efficiency 0.91: GPUs", NULL, gpus(50, 5, 0.91), "64_hours_and_money",
         "Well-Architected, machine learning"},
        {"numbers", "% idle, 4 stages, 4 micro-batches", NULL, idle(4, 4), "50_pipeline_by_hand", "Huang et al. 2019"},
        {"traps", "8 stages, 1 micro-batch: times the price", NULL, price(8, 1), "64_hours_and_money",
         "Huang et al. 2019"},
        {"traps", "a save 60 s, a failure every 2 h: minutes between saves", NULL, young(60, 7200), "74_interval",
         "Young 1974"},
        {"exam", "% of MLA-C01 in the domain of model development", NULL, 26, "README", "AWS's exam guide"}};
    char line[200];
    int count = (int)(sizeof cards / sizeof *cards), hits = 0, n = 0, all = argc == 2 && !strcmp(argv[1], "--answers");
    if (argc == 2 && !strcmp(argv[1], "--scenarios")) return scenarios();
    if (!all && argc > 1 && !strncmp(argv[1], "--", 2))
        return fprintf(stderr, "95_quiz: what is '%s'? The options are --answers and --scenarios\n", argv[1]), 2;
    for (; n < count && (all || argc == 1 || n + 1 < argc); n++) {
        const card *c = &cards[n];
        int hit;
        printf("%-8s  %-56s ", c->topic, c->trigger);
        if (argc == 1 && !reads(line, sizeof line)) break;
        hit = !all && right(c, argc == 1 ? line : argv[n + 1]);
        hits += hit;
        print_answer(c, hit, !all);
    }
    if (all) return printf("ok: %d cards\n", count), 0;
    return printf("%sok: %d of %d right\n", n < count && argc == 1 ? "\n" : "", hits, n), 0;
}
