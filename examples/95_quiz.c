/* 95_quiz: which words and numbers of the course do you know by heart?
 *
 * What you learn
 *     - Each card has a trigger, as exams and design reviews have them, and one answer: a word, or a number that the
 *       program computes.
 *     - Libraries have one official name. Texts also call SMDDP "SMDP" and SMP "SMMP"; "MPP" is not a library.
 *     - A picture (cooks, builders, an assembly line) is worth as much as the question where it breaks.
 *     - A wrong answer names the program that shows the right one, and something to read.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 95_quiz.c -o 95_quiz -lm -lpthread
 *     ./95_quiz
 *     ./95_quiz allreduce all-gather SMDP MPP          (your answers, in order; - to pass)
 *
 * What it prints
 *     words     averages gradients over ranks                            all-reduce  (22_ring)
 *     words     joins shards of weights before a layer                   all-gather  (40_zero_by_hand)
 *     names     AWS's data parallel library                              SMDDP  (91_distribution)
 *     names     AWS's model parallel library                             SMP  (91_distribution)
 *     names     ZeRO, often through Hugging Face                         DeepSpeed  (41_zero)
 *     names     replicas by MPI, nothing sharded                         Horovod  (62_rule_of_thumb)
 *     names     rules for trees of this library are not here             XGBoost  (82_rules)
 *     pictures  cooks make whole dishes, then compare notes              data  (31_data_parallel)
 *     pictures  starter, main course, dessert                            pipeline  (51_pipeline)
 *     pictures  four builders on one beam                                tensor  (52_tensor_parallel_by_hand)
 *     pictures  a photocopy of the plan every 15 minutes                 checkpoint  (74_interval)
 *     numbers   GB of states, 70 billion weights, AdamW                  1120  (44_fit)
 *     numbers   80 h on 1 node, 22 h on 4: times the rent                1.1  (61_scaling)
 *     numbers   600 GB/s beside 400 Gbit/s: times                        12  (21_data_sheet)
 *     numbers   50 h on a GPU, due in 5 h, efficiency 0.91: GPUs         11  (64_hours_and_money)
 *     numbers   % idle, 4 stages, 4 micro-batches                        42.86  (50_pipeline_by_hand)
 *     traps     8 stages, 1 micro-batch: times the price                 8  (64_hours_and_money)
 *     traps     a save 60 s, a failure every 2 h: minutes between saves  15.49  (74_interval)
 *     exam      % of MLA-C01 in the domain of model development          26  (README)
 *     ok: 19 cards
 *
 * Predict first: how many of the numbers can you work out without a calculator?
 * Exercise: write a card about the last mistake that cost you a day, and the program that would have shown it.
 *
 * Read on: 96_checklist.c for a job on several nodes; README.md, whose chapters are the topics of the cards. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Equal but for case, blanks and - ? Each of the words between | counts. */
static int same(const char *answer, const char *words)
{
    for (const char *w = words; *w; w += *w == '|') {
        const char *a = answer;
        int equal = 1;
        for (;; w++) {
            while (*a == '-' || *a == ' ') a++;
            while (*w == '-' || *w == ' ') w++;
            if (!*w || *w == '|') break;
            equal = equal && tolower((unsigned char)*a) == tolower((unsigned char)*w);
            a += *a != 0;
        }
        if (equal && !*a) return 1;
    }
    return 0;
}

static int right(const card *c, const char *answer)
{
    if (c->word) return same(answer, c->word);
    return fabs(atof(answer) - c->number) <= 0.01 * fabs(c->number);
}

static void print_answer(const card *c)
{
    if (c->word) printf("%.*s", (int)strcspn(c->word, "|"), c->word);
    else printf("%.4g", c->number);
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
        {"names", "replicas by MPI, nothing sharded", "Horovod", 0, "62_rule_of_thumb", "Sergeev and Del Balso 2018"},
        {"names", "rules for trees of this library are not here", "XGBoost", 0, "82_rules", "AWS's Debugger guide"},
        {"pictures", "cooks make whole dishes, then compare notes", "data|data parallel", 0, "31_data_parallel",
         "it breaks: not once a day, after every step"},
        {"pictures", "starter, main course, dessert", "pipeline|pipeline parallel", 0, "51_pipeline",
         "it breaks: the dish goes back the same way"},
        {"pictures", "four builders on one beam", "tensor|tensor parallel", 0, "52_tensor_parallel_by_hand",
         "it breaks: they meet in every layer"},
        {"pictures", "a photocopy of the plan every 15 minutes", "checkpoint", 0, "74_interval",
         "it breaks: the interval follows from two numbers"},
        {"numbers", "GB of states, 70 billion weights, AdamW", NULL, states(70), "44_fit", "Rajbhandari et al. 2020"},
        {"numbers", "80 h on 1 node, 22 h on 4: times the rent", NULL, rent(80, 4, 22), "61_scaling", "EC2 prices"},
        {"numbers", "600 GB/s beside 400 Gbit/s: times", NULL, links(600, 400), "21_data_sheet", "EC2 guide, EFA"},
        {"numbers", "50 h on a GPU, due in 5 h, efficiency 0.91: GPUs", NULL, gpus(50, 5, 0.91), "64_hours_and_money",
         "Well-Architected, machine learning"},
        {"numbers", "% idle, 4 stages, 4 micro-batches", NULL, idle(4, 4), "50_pipeline_by_hand", "Huang et al. 2019"},
        {"traps", "8 stages, 1 micro-batch: times the price", NULL, price(8, 1), "64_hours_and_money",
         "Huang et al. 2019"},
        {"traps", "a save 60 s, a failure every 2 h: minutes between saves", NULL, young(60, 7200), "74_interval",
         "Young 1974"},
        {"exam", "% of MLA-C01 in the domain of model development", NULL, 26, "README", "AWS's exam guide"}};
    int count = (int)(sizeof cards / sizeof *cards), hits = 0, asked = argc - 1 < count ? argc - 1 : count;
    if (argc > 1 && !strncmp(argv[1], "--", 2)) return fprintf(stderr, "95_quiz: there are no options\n"), 2;
    for (int i = 0; i < (argc > 1 ? asked : count); i++) {
        const card *c = &cards[i];
        int hit = argc > 1 && right(c, argv[i + 1]);
        hits += hit;
        printf("%-8s  %-56s ", c->topic, c->trigger);
        if (hit) printf("right: ");
        print_answer(c);
        if (!hit) printf("  (%s)%s%s", c->program, argc > 1 ? " read: " : "", argc > 1 ? c->read : "");
        printf("\n");
    }
    if (argc == 1) return printf("ok: %d cards\n", count), 0;
    return printf("ok: %d of %d right\n", hits, asked), 0;
}
