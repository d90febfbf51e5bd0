/* 21_data_sheet: is a link of 600 GB/s 1.5 times as fast as one of 400 Gbit/s?
 *
 * What you learn
 *     - Two rates of data sheets differ in three units. Networks are sold in Gbit/s, NVLink in GB/s: a factor of 8.
 *       NVLink's number adds both directions: 2. NVLink's number is per GPU, the network's is for the node's GPUs
 *       together: 8.
 *     - A p4d's 400 Gbit/s are 50 GB/s, so NVLink is nominally 12 times as fast. But one GPU sends 300 GB/s inside the
 *       node and 6.25 GB/s outside: 48 times. GPUs of two nodes do not work "as if side by side". If the GPUs of a node
 *       add up first (58_nodes.c), each sends an eighth of the bytes outside, and 6 of the 48 times remain.
 *     - EFA is AWS's network card with a kernel bypass. p3dn, p4d, p4de and p5 have EFA; so have the larger g5 and
 *       g4dn, whose GPUs have no NVLink. p3.16xlarge does not.
 *     - EFA costs nothing extra. Several p4d without EFA cost the same rent, with a network that is several times
 *       slower. The factor depends on what TCP reaches: 12.5 GB/s per node is assumed here; measure yours.
 *     - EFA has to be switched on: 96_checklist.c lists what it needs, 80_doctor.c finds out whether a job uses it.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 21_data_sheet.c -o 21_data_sheet -lm -lpthread
 *     ./21_data_sheet
 *     ./21_data_sheet "3200 Gbps" "900 GB/s"    (reads a data sheet to you)
 *
 * What it prints
 *                         |         NVLink of a GPU |                            network | NVLink : network
 *                     EFA |  both ways    one, GB/s |         node       GB/s   of a GPU |   quoted one GPU, one way
 *     p4d.24xlarge    yes |   600 GB/s          300 |   400 Gbit/s     50.000      6.250 |   12.00x              48x
 *     p5.48xlarge     yes |   900 GB/s          450 |  3200 Gbit/s    400.000     50.000 |    2.25x               9x
 *     g5.48xlarge     yes |       none            0 |   100 Gbit/s     12.500      1.562 |        -                -
 *     Seconds of an all-reduce of 14 GB (7 billion gradients in 16 bits)
 *     nodes                           2        4        8       32
 *     p4d, TCP at 12.5 GB/s       1.202    1.762    2.042    2.253
 *     p4d, EFA                    0.362    0.502    0.572    0.625
 *     p4d without EFA: 3.3 to 3.6 times as long for the same rent
 *     ok: p4d's quoted ratio of 12 is 48 for one GPU that sends; times rise with nodes and fall with the link
 *
 * Predict first: the network of a p5 node has 3200 Gbit/s. How many GB/s is one GPU's share?
 * Exercise: read "16 x 200 Gbit/s", the cards of a p5en, and add p5en. Which ratio differs from those of p5, with its
 *     32 x 100 Gbit/s?
 *
 * Read on: 22_ring.c for the all-reduce that is timed here, 61_scaling.c for how many nodes such links can serve. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As the data sheets have it. nvlink: of a GPU, both ways, NULL: none; network: of the node, each way. */
typedef struct machine {
    const char *name;
    int gpus;
    const char *nvlink, *network;
    int efa;
} machine;

static const machine machines[] = {
    {"p3.16xlarge", 8, "300 GB/s", "25 Gbit/s", 0},    {"p3dn.24xlarge", 8, "300 GB/s", "100 Gbit/s", 1},
    {"p4d.24xlarge", 8, "600 GB/s", "400 Gbit/s", 1},  {"p4de.24xlarge", 8, "600 GB/s", "400 Gbit/s", 1},
    {"p5.48xlarge", 8, "900 GB/s", "3200 Gbit/s", 1},  {"g5.48xlarge", 8, NULL, "100 Gbit/s", 1}};
enum { MACHINES = sizeof machines / sizeof *machines, P3 = 0, P4D = 2, P5 = 4 };

/* "400 Gbit/s" or "600 GB/s", in GB/s; -1: no such number. A small b, or "bit", is a bit. */
static double gigabytes(const char *text)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"GB/s", 1},           {"Gbit/s", 1.0 / 8},   {"Gbps", 1.0 / 8},       {"Gb/s", 1.0 / 8},
                 {"MB/s", 1.0 / 1000},  {"Mbit/s", 1.0 / 8000}, {"Mbps", 1.0 / 8000},    {"TB/s", 1000},
                 {"Tbit/s", 1000.0 / 8}, {"Tbps", 1000.0 / 8}};
    char *end;
    double number = strtod(text, &end);
    while (end != text && *end == ' ') end++;
    for (size_t i = 0; end != text && i < sizeof units / sizeof *units; i++)
        if (!strcmp(end, units[i].unit)) return number * units[i].factor;
    return -1;
}

static double one_way(const machine *m) { return m->nvlink ? gigabytes(m->nvlink) / 2 : 0; }
static double of_gpu(const machine *m) { return gigabytes(m->network) / m->gpus; }

/* Seconds of an all-reduce of `gb`: reduce-scatter inside each node, all-reduce between the nodes, all-gather inside.
 * A message takes 5 us inside and 20 us between; node: GB/s of a node. */
static double all_reduce(const machine *m, int nodes, double gb, double node)
{
    double g = m->gpus, k = nodes;
    return 2 * (g - 1) * 5e-6 + 2 * (g - 1) / g * gb / one_way(m) + 2 * (k - 1) * 20e-6 + 2 * (k - 1) / k * gb / node;
}

static int table(void)
{
    int good = 1;
    printf("%-14s %4s | %23s | %34s | %s\n", "", "", "NVLink of a GPU", "network", "NVLink : network");
    printf("%-14s %4s | %10s %12s | %12s %10s %10s | %8s %16s\n", "", "EFA", "both ways", "one, GB/s", "node", "GB/s",
           "of a GPU", "quoted", "one GPU, one way");
    for (int i = 0; i < MACHINES; i++) {
        const machine *m = &machines[i];
        double quoted = m->nvlink ? gigabytes(m->nvlink) / gigabytes(m->network) : 0, really = one_way(m) / of_gpu(m);
        printf("%-14s %4s | %10s %12.0f | %12s %10.3f %10.3f | ", m->name, m->efa ? "yes" : "no",
               m->nvlink ? m->nvlink : "none", one_way(m), m->network, gigabytes(m->network), of_gpu(m));
        if (m->nvlink)
            printf("%7.2fx %15.0fx\n", quoted, really);
        else
            printf("%8s %16s\n", "-", "-");
        good = good && really == quoted * m->gpus / 2; /* two of the three factors; the third is the 8 of a byte */
    }
    good = good && one_way(&machines[P4D]) / of_gpu(&machines[P4D]) == 48;
    return good && gigabytes("25 Gbps") == 3.125 && gigabytes("0.1 Tbit/s") == 12.5 && gigabytes("400 Gb") == -1;
}

/* 7 billion gradients in 16 bits. */
static int sums(void)
{
    static const int nodes[4] = {2, 4, 8, 32};
    static const struct {
        const char *what;
        int machine;
        double node; /* GB/s of a node; 0: the data sheet's */
    } rows[] = {
        {"p3.16xlarge, no EFA", P3, 0}, {"p4d, TCP at 12.5 GB/s", P4D, 12.5}, {"p4d, EFA", P4D, 0}, {"p5, EFA", P5, 0}};
    double seconds[4][4];
    int good = 1;
    printf("\nSeconds of an all-reduce of 14 GB (7 billion gradients in 16 bits)\n%-24s", "nodes");
    for (int k = 0; k < 4; k++) printf("%9d", nodes[k]);
    for (int i = 0; i < 4; i++) {
        const machine *m = &machines[rows[i].machine];
        printf("\n%-24s", rows[i].what);
        for (int k = 0; k < 4; k++) {
            seconds[i][k] = all_reduce(m, nodes[k], 14, rows[i].node > 0 ? rows[i].node : gigabytes(m->network));
            printf("%9.3f", seconds[i][k]);
            good = good && (!k || seconds[i][k] > seconds[i][k - 1]) && (!i || seconds[i][k] < seconds[i - 1][k]);
        }
    }
    printf("\np4d without EFA: %.1f to %.1f times as long for the same rent\n", seconds[1][0] / seconds[2][0],
           seconds[1][3] / seconds[2][3]);
    return good;
}

int main(int argc, char **argv)
{
    int good = 1;
    for (int i = 1; i < argc; i++) {
        double gb = gigabytes(argv[i]);
        if (gb < 0) return fprintf(stderr, "21_data_sheet: %s: not like \"400 Gbit/s\" or \"600 GB/s\"\n", argv[i]), 2;
        printf("%s = %g GB/s = %g Gbit/s; if it adds both directions, %g GB/s each; shared by 8 GPUs, %g GB/s each\n",
               argv[i], gb, 8 * gb, gb / 2, gb / 8);
    }
    if (argc > 1) return printf("ok: rates read: %d\n", argc - 1), 0;
    good = table();
    good = sums() && good;
    if (!good) return fprintf(stderr, "FAILED: a ratio or a time is not what the arithmetic says\n"), 1;
    printf("ok: p4d's quoted ratio of %g is %g for one GPU that sends; times rise with nodes and fall with the link\n",
           gigabytes("600 GB/s") / gigabytes("400 Gbit/s"), one_way(&machines[P4D]) / of_gpu(&machines[P4D]));
    return 0;
}
