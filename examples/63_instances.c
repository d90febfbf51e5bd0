/* 63_instances: which instance for which job? A table of a dozen types, and the questions that it answers.
 *
 * What you learn
 *     - Four columns decide: memory of a GPU (how the model must be cut), links between the GPUs of a node, network of
 *       the node with or without EFA, and price. bfloat16 is a fifth: V100 and T4 lack it, so training in 16 bits there
 *       takes fp16 and loss scaling.
 *     - More memory per GPU is fewer dimensions of parallelism: the simplest configuration is the one with the fewest
 *       GPUs per copy of the model, and its price comes second.
 *     - Half the GPUs per copy are twice the copies in the same cluster, each with its own part of the batch.
 *     - One larger instance beats two smaller ones of the same price: the same GPUs, and no network between them.
 *     - No single instance holds every model. EFA adds nothing to a price.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 63_instances.c -o 63_instances -lm -lpthread
 *     ./63_instances
 *
 * What it prints
 *                    GPUs            GB  bf16  EFA  NVLink  Gbit/s  NVMe GB  $/hour
 *     p3.8xlarge      4 V100         16    no   no     yes      10        0   12.24
 *     p3.16xlarge     8 V100         16    no   no     yes      25        0   24.48
 *     p3dn.24xlarge   8 V100         32    no  yes     yes     100     1800   31.21
 *     p4d.24xlarge    8 A100         40   yes  yes     yes     400     8000   21.96
 *     p4de.24xlarge   8 A100         80   yes  yes     yes     400     8000   27.45
 *     p5.48xlarge     8 H100         80   yes  yes     yes    3200    30720   55.04
 *     p5en.48xlarge   8 H200        141   yes  yes     yes    3200    30720   63.30
 *     g5.12xlarge     4 A10G         24   yes  yes      no      40     3800    5.67
 *     g5.48xlarge     8 A10G         24   yes  yes      no     100     7600   16.29
 *     g4dn.12xlarge   4 T4           16    no  yes      no      50      900    3.91
 *     trn1.32xlarge  16 Trainium     32   yes  yes     yes     800     7600   21.50
 *     families: 9, p3 p3dn p4d p4de p5 p5en g5 g4dn trn1
 *        7 billion weights,  112 GB of states, one instance: p3.16 p3dn.24 p4d.24 p4de.24 p5.48 p5en.48 g5.48 trn1.32
 *       30 billion weights,  480 GB of states, one instance: p4de.24 p5.48 p5en.48
 *       70 billion weights, 1120 GB of states, one instance: none
 *      175 billion weights, 2800 GB of states, one instance: none
 *     30 billion weights, fewest GPUs per copy: 4 of p5en.48xlarge; p4de 7, p4d 14
 *     16-bit weights of 70 billion alone: 4 GPUs of p4d or 2 of p4de; copies on 32 GPUs: 8 or 16
 *     no bf16, so fp16 and loss scaling: p3.8 p3.16 p3dn.24 g4dn.12
 *     lowest price with NVLink: p3.8xlarge, 12.24 $/hour, EFA: no, 10 Gbit/s
 *     1 p3.16xlarge: 8 GPUs, 24.48 $/hour; 2 p3.8xlarge: 8 GPUs, 24.48 $/hour, and 1 GB between them takes 0.8 s
 *     10000 GB of data on local NVMe: p5.48 p5en.48; p4d has 8000: stream it, or cut it over nodes
 *     ok: memory first, links second, price third
 *
 * Predict first: which type holds the most memory per dollar, and is it a good choice for 70 billion weights?
 * Exercise: add price per hour of an EFLOP/s, and find where the cheapest memory and the cheapest arithmetic differ.
 *
 * Read on: 64_hours_and_money.c for how long such a job takes, 90_launchers.c for starting it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

/* EC2's figures: on-demand dollars an hour in us-east-1, July 2026. SageMaker's own prices are higher. */
typedef struct type {
    const char *name, *gpu;
    int gpus;
    double gb, teraflops, gbit;
    int bf16, efa, nvlink;
    double nvme, dollars;
} type;

static const type types[] = {{"p3.8xlarge", "V100", 4, 16, 125, 10, 0, 0, 1, 0, 12.24},
                             {"p3.16xlarge", "V100", 8, 16, 125, 25, 0, 0, 1, 0, 24.48},
                             {"p3dn.24xlarge", "V100", 8, 32, 125, 100, 0, 1, 1, 1800, 31.21},
                             {"p4d.24xlarge", "A100", 8, 40, 312, 400, 1, 1, 1, 8000, 21.96},
                             {"p4de.24xlarge", "A100", 8, 80, 312, 400, 1, 1, 1, 8000, 27.45},
                             {"p5.48xlarge", "H100", 8, 80, 989, 3200, 1, 1, 1, 30720, 55.04},
                             {"p5en.48xlarge", "H200", 8, 141, 989, 3200, 1, 1, 1, 30720, 63.30},
                             {"g5.12xlarge", "A10G", 4, 24, 70, 40, 1, 1, 0, 3800, 5.67},
                             {"g5.48xlarge", "A10G", 8, 24, 70, 100, 1, 1, 0, 7600, 16.29},
                             {"g4dn.12xlarge", "T4", 4, 16, 65, 50, 0, 1, 0, 900, 3.91},
                             {"trn1.32xlarge", "Trainium", 16, 32, 190, 800, 1, 1, 1, 7600, 21.50}};
enum { TYPES = sizeof types / sizeof *types, P3_8 = 0, P3_16 = 1, P4D = 3, P4DE = 4 };

/* GPUs for so many bytes: nine tenths of each GPU's memory hold states. */
static int gpus(const type *t, double bytes) { return (int)ceil(bytes / (0.9e9 * t->gb)); }

/* How many letters of a name to print: up to "xlarge". */
static int brief(const type *t) { return (int)strcspn(t->name, "x"); }

static void table(void)
{
    char families[100] = "";
    int count = 0;
    printf("%-14s GPUs            GB  bf16  EFA  NVLink  Gbit/s  NVMe GB  $/hour\n", "");
    for (int i = 0; i < TYPES; i++) {
        const type *t = &types[i];
        char family[8];
        snprintf(family, sizeof family, "%.*s ", (int)strcspn(t->name, "."), t->name);
        if (!strstr(families, family)) strcat(families, family), count++;
        printf("%-14s %2d %-10s %4.0f  %4s  %3s  %6s %7.0f %8.0f %7.2f\n", t->name, t->gpus, t->gpu, t->gb,
               t->bf16 ? "yes" : "no", t->efa ? "yes" : "no", t->nvlink ? "yes" : "no", t->gbit, t->nvme, t->dollars);
    }
    printf("families: %d, %s\n", count, families);
}

/* Which single instances hold so many bytes of states? */
static int holders(double weights)
{
    int count = 0;
    printf("%4.0f billion weights, %4.0f GB of states, one instance:", weights / 1e9, 16 * weights / 1e9);
    for (int i = 0; i < TYPES; i++)
        if (gpus(&types[i], 16 * weights) <= types[i].gpus) count++, printf(" %.*s", brief(&types[i]), types[i].name);
    printf("%s\n", count ? "" : " none");
    return count;
}

/* The type with the fewest GPUs per copy of the model, then the lowest price. */
static const type *simplest(double weights)
{
    const type *best = &types[0];
    for (const type *t = types; t < types + TYPES; t++) {
        int need = gpus(t, 16 * weights), least = gpus(best, 16 * weights);
        if (t->nvlink && (need < least || (need == least && t->dollars < best->dollars))) best = t;
    }
    return best;
}

int main(void)
{
    const type *best = simplest(30e9), *cheap = NULL, *small = &types[P3_8], *large = &types[P3_16];
    int good;
    table();
    good = holders(7e9) > 0 && holders(30e9) == 3 && !holders(70e9) && !holders(175e9);
    printf("30 billion weights, fewest GPUs per copy: %d of %s; p4de %d, p4d %d\n", gpus(best, 480e9), best->name,
           gpus(&types[P4DE], 480e9), gpus(&types[P4D], 480e9));
    printf("16-bit weights of 70 billion alone: %d GPUs of p4d or %d of p4de; copies on 32 GPUs: %d or %d\n",
           gpus(&types[P4D], 140e9), gpus(&types[P4DE], 140e9), 32 / gpus(&types[P4D], 140e9),
           32 / gpus(&types[P4DE], 140e9));
    printf("no bf16, so fp16 and loss scaling:");
    for (const type *t = types; t < types + TYPES; t++) {
        if (!t->bf16) printf(" %.*s", brief(t), t->name);
        if (t->nvlink && (!cheap || t->dollars < cheap->dollars)) cheap = t;
    }
    printf("\nlowest price with NVLink: %s, %.2f $/hour, EFA: %s, %.0f Gbit/s\n", cheap->name, cheap->dollars,
           cheap->efa ? "yes" : "no", cheap->gbit);
    printf("1 %s: %d GPUs, %.2f $/hour; 2 %s: %d GPUs, %.2f $/hour, and 1 GB between them takes %.1f s\n",
           large->name, large->gpus, large->dollars, small->name, 2 * small->gpus, 2 * small->dollars,
           8 / small->gbit);
    printf("10000 GB of data on local NVMe:");
    for (const type *t = types; t < types + TYPES; t++)
        if (t->nvme >= 10000) printf(" %.*s", brief(t), t->name);
    printf("; p4d has %.0f: stream it, or cut it over nodes\n", types[P4D].nvme);
    if (!good || 2 * small->gpus != large->gpus) return fprintf(stderr, "FAILED: the table answers otherwise\n"), 1;
    return printf("ok: memory first, links second, price third\n"), 0;
}
