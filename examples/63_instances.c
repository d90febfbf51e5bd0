/* 63_instances: which instance for which job? The planner's catalogue, and the questions that it answers.
 *
 * What you learn
 *     - Four columns decide: memory of a GPU (how the model must be cut), links between the GPUs of a node, network of
 *       the node with or without EFA, and price. bfloat16 is a fifth: V100 and T4 lack it, so training in 16 bits there
 *       takes fp16 and loss scaling.
 *     - With more memory per GPU a model needs fewer kinds of parallelism: the simplest configuration has the fewest
 *       GPUs per copy of the model. Its price comes second.
 *     - With half the GPUs per copy, a cluster holds twice the copies, each with its own part of the batch.
 *     - One larger instance beats two smaller ones of the same price: the same GPUs, and no network between them.
 *     - No single instance holds every model. EFA adds nothing to a price.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 63_instances.c -o 63_instances -lm -lpthread
 *     ./63_instances
 *     Your model and data instead: ./63_instances --params-b 13 --optimizer adam8 --dataset-gb 5000
 *
 * What it prints
 *                    GPUs            GB  bf16  EFA  NVLink  Gbit/s  NVMe GB  $/hour, 2026-07-20
 *     p3.2xlarge      1 V100         16    no   no      no      10        0    3.06
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
 *     families: 10, p3 p3dn p4d p4de p5 p5e p5en g5 g4dn trn1
 *       30 billion weights,  480 GB of states, one instance: p4de.24 p5.48 p5e.48 p5en.48
 *       70 billion weights, 1120 GB of states, one instance: none
 *      175 billion weights, 2800 GB of states, one instance: none
 *     30 billion weights, fewest GPUs per copy: 4 of p5en.48xlarge; p4de 7, p4d 14
 *     16-bit weights of 70 billion alone: 4 GPUs of p4d or 2 of p4de; copies on 32 GPUs: 8 or 16
 *     no bf16, so fp16 and loss scaling: p3.2 p3.8 p3.16 p3dn.24 g4dn.12
 *     lowest price with NVLink: p3.8xlarge, 12.24 $/hour, EFA: no, 10 Gbit/s
 *     1 p3.16xlarge: 8 GPUs, 24.48 $/hour; 2 p3.8xlarge: 8 GPUs, 24.48 $/hour, and 1 GB between them takes 0.8 s
 *     10000 GB of data on local NVMe: p5.48 p5e.48 p5en.48; p4d has 8000: stream it, or cut it over nodes
 *     ok: 4 of 13 types hold 30 billion weights, none holds 70; the fewest GPUs: 4 of p5en.48xlarge
 *
 * Predict first: which type holds the most memory per dollar, and is it a good choice for 70 billion weights?
 * Exercise: print the type with the cheapest memory, in dollars an hour per TB, and the one with the cheapest
 *     arithmetic, in dollars an hour per EFLOP/s of its peak. Do they differ?
 *
 * Read on: 64_hours_and_money.c for how long such a job takes, 90_launchers.c for starting it. */
#include "tools/plan.h"

/* GPUs for so many bytes: nine tenths of each GPU's memory hold states. */
static int gpus(const cost_type *t, double bytes) { return (int)ceil(bytes / (cost_usable * 1e9 * t->gb)); }
/* How many letters of a name to print: up to "xlarge". */
static int brief(const cost_type *t) { return (int)strcspn(cost_short(t), "x"); }

static int nvlink(const cost_type *t) { return t->intra[0] == 'N'; } /* or NVSwitch, or NeuronLink */

static int table(const cost_catalogue *c)
{
    char families[200] = "";
    int count = 0;
    printf("%-14s GPUs            GB  bf16  EFA  NVLink  Gbit/s  NVMe GB  $/hour, %s\n", "", c->date);
    for (int i = 0; i < c->count; i++) {
        const cost_type *t = &c->type[i];
        char family[34], price[16] = "?";
        snprintf(family, sizeof family, "%.*s ", (int)strcspn(cost_short(t), "."), cost_short(t));
        if (!strstr(families, family)) strcat(families, family), count++;
        if (!isnan(t->dollars)) snprintf(price, sizeof price, "%.2f", t->dollars);
        printf("%-14s %2d %-10s %4.0f  %4s  %3s  %6s %7.0f %8.0f %7s\n", cost_short(t), t->count, t->accel, t->gb,
               t->bf16 ? "yes" : "no", t->efa ? "yes" : "no", nvlink(t) ? "yes" : "no", t->gbit, t->nvme_gb, price);
    }
    return printf("families: %d, %s\n", count, families), count;
}

/* Which single instances hold so many bytes of states? */
static int holders(const cost_catalogue *c, double weights, double states)
{
    int count = 0;
    printf("%4.3g billion weights, %4.4g GB of states, one instance:", weights / 1e9, states / 1e9);
    for (const cost_type *t = c->type; t < c->type + c->count; t++)
        if (gpus(t, states) <= t->count) count++, printf(" %.*s", brief(t), cost_short(t));
    printf("%s\n", count ? "" : " none");
    return count;
}

/* The type with the fewest GPUs per copy of the model, then the lowest price. */
static const cost_type *simplest(const cost_catalogue *c, double states)
{
    const cost_type *best = NULL;
    for (const cost_type *t = c->type; t < c->type + c->count; t++) {
        int fewer = best ? gpus(best, states) - gpus(t, states) : 1;
        if (!isnan(t->dollars) && (fewer > 0 || (fewer == 0 && t->dollars < best->dollars))) best = t;
    }
    return best;
}

static void disks(const cost_catalogue *c, double gb)
{
    printf("%g GB of data on local NVMe:", gb);
    for (const cost_type *t = c->type; t < c->type + c->count; t++)
        if (t->nvme_gb >= gb) printf(" %.*s", brief(t), cost_short(t));
    printf("; p4d has %.0f: stream it, or cut it over nodes\n", cost_find(c, "p4d", 3)->nvme_gb);
}

/* The model and data of the command line. */
static int own_model(const cost_catalogue *c, const plan_job *j)
{
    int optimizer = (int)plan_or(j, in_optimizer, COST_ADAMW);
    double share = plan_or(j, in_trainable_pct, optimizer == COST_LORA ? 1 : 100) / 100;
    cost_bytes of = cost_of((int)plan_or(j, in_precision, COST_AMP_BF16), optimizer, share);
    double weights = 1e9 * plan_or(j, in_params_b, 7), states = weights * cost_zero(&of, 0, 1);
    const cost_type *best = simplest(c, states);
    holders(c, weights, states);
    printf("fewest GPUs per copy: %d of %s\n", gpus(best, states), cost_short(best));
    if (plan_has(j, in_dataset_gb)) disks(c, j->n[in_dataset_gb]);
    return printf("ok: by your numbers\n"), 0;
}

int main(int argc, char **argv)
{
    static cost_catalogue c;
    static plan_job j;
    const cost_type *best, *cheap = NULL, *small, *large, *p4d, *p4de;
    int good, fits;
    if (cost_open(&c, NULL) || !plan_arguments(&j, argc, argv)) return 2;
    if (argc > 1) return own_model(&c, &j);
    small = cost_find(&c, "p3.8", 4), large = cost_find(&c, "p3.16", 5);
    p4d = cost_find(&c, "p4d", 3), p4de = cost_find(&c, "p4de", 4);
    good = table(&c) == 10 && holders(&c, 7e9, 112e9) > 0, fits = holders(&c, 30e9, 480e9);
    good = !holders(&c, 70e9, 1120e9) && !holders(&c, 175e9, 2800e9) && good && fits == 4;
    best = simplest(&c, 480e9);
    printf("30 billion weights, fewest GPUs per copy: %d of %s; p4de %d, p4d %d\n", gpus(best, 480e9), cost_short(best),
           gpus(p4de, 480e9), gpus(p4d, 480e9));
    printf("16-bit weights of 70 billion alone: %d GPUs of p4d or %d of p4de; copies on 32 GPUs: %d or %d\n",
           gpus(p4d, 140e9), gpus(p4de, 140e9), 32 / gpus(p4d, 140e9), 32 / gpus(p4de, 140e9));
    printf("no bf16, so fp16 and loss scaling:");
    for (const cost_type *t = c.type; t < c.type + c.count; t++) {
        if (!t->bf16) printf(" %.*s", brief(t), cost_short(t));
        if (nvlink(t) && (!cheap || t->dollars < cheap->dollars)) cheap = t;
    }
    printf("\nlowest price with NVLink: %s, %.2f $/hour, EFA: %s, %.0f Gbit/s\n", cost_short(cheap), cheap->dollars,
           cheap->efa ? "yes" : "no", cheap->gbit);
    printf("1 %s: %d GPUs, %.2f $/hour; 2 %s: %d GPUs, %.2f $/hour, and 1 GB between them takes %.1f s\n",
           cost_short(large), large->count, large->dollars, cost_short(small), 2 * small->count, 2 * small->dollars,
           8 / small->gbit);
    disks(&c, 10000);
    if (!good || 2 * small->count != large->count) return fprintf(stderr, "FAILED: the table answers otherwise\n"), 1;
    return printf("ok: %d of %d types hold 30 billion weights, none holds 70; the fewest GPUs: %d of %s\n", fits,
                  c.count, gpus(best, 480e9), cost_short(best)), 0;
}
