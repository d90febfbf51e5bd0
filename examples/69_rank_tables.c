/* 69_rank_tables: which ranks of a mesh share a node, and which degrees multiply to all ranks?
 *
 * What you learn
 *     - Ranks are places of a mesh with the axes data, pipeline and tensor. The order of the axes, slowest first, says
 *       who is near whom. With DPT ("cluster") neighbours share a tensor; with TPD ("spread") the halves of every
 *       tensor are on two nodes.
 *     - A place is the rank divided by the axis's stride, the product of the faster axes' degrees, modulo its degree.
 *     - Amazon's SMP says mp for pp x tp, rdp ("reduced") for what is dp elsewhere, and dp for all ranks of one stage,
 *       tp x rdp.
 *     - So mp x rdp = n and pp x dp = n. mp x dp = n is often said, and true only if tp = 1.
 *     - A degree that does not divide the ranks is refused.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 69_rank_tables.c -o 69_rank_tables -lm -lpthread
 *     ./69_rank_tables
 *     ./69_rank_tables PDT
 *     ./69_rank_tables DPT --ranks 16 --node 8 --tp 8 --pp 1
 *
 * What it prints
 *     rank node   cluster (DPT): data pipe tensor   spread (TPD): data pipe tensor
 *        0    0                   0    0      0                    0    0      0
 *        5    1                   1    0      1                    1    0      1
 *       DPT, data:   0-4 1-5 2-6 3-7 are on two nodes
 *       DPT, pipe:   0-2 1-3 4-6 5-7 share a node
 *       DPT, tensor: 0-1 2-3 4-5 6-7 share a node
 *       TPD, data:   0-1 2-3 4-5 6-7 share a node
 *       TPD, tensor: 0-4 1-5 2-6 3-7 are on two nodes
 *     pp 2 x tp 2 x rdp 2 = 8; mp 4 x rdp 2 = 8; pp 2 x dp 4 = 8; but mp 4 x dp 4 = 16
 *     refused: --tp 3 does not divide 8 ranks. Set --tp to one of 1, 2, 4, 8.
 *     ok: 48 places as by hand; across nodes: DPT data, TPD tensor
 *
 * Predict first: in the order PDT, which pairs are on two nodes?
 * Exercise: a step of 8 micro-batches, as in 65_across_nodes.c: a tensor pair sums 8 x 10.7 GB, a pair of stages passes
 *     8 x 67 MB, a data pair sums 35 GB of gradients. Which of the six orders sends least between nodes, which most?
 *
 * Read on: 70_checkpoints.c, the next chapter; 57_mesh.c for what each order sends. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include <math.h>

enum { MOST = 64 };
static const char axes[] = "DPT";
static double ranks = 8, node = 4, tp = 2, pp = 2;

static int degree(int axis) { return (int)(axis == 0 ? ranks / (tp * pp) : axis == 1 ? pp : tp); }

/* at[rank]: places on the axes data, pipeline and tensor, by hand. The last letter of the order is the fastest axis. */
static void by_hand(const char *order, int at[MOST][3])
{
    for (int k = 2, stride = 1; k >= 0; k--) {
        int axis = (int)(strchr(axes, order[k]) - axes);
        for (int r = 0; r < (int)ranks; r++) at[r][axis] = r / stride % degree(axis);
        stride *= degree(axis);
    }
}

/* Whether the library has the same places. *count: those that were compared. */
static int same(const char *order, int at[MOST][3], int *count)
{
    dt_layout l = dt_layout_default();
    dt_mesh m;
    int good = 1;
    l.pp = (int)pp, l.tp = (int)tp, l.order = order;
    for (int r = 0; r < (int)ranks && good; r++) {
        if (dt_mesh_of(&l, (int)ranks, r, &m)) return fprintf(stderr, "69_rank_tables: %s\n", dt_last_error()), 0;
        for (int axis = 0; axis < 3; axis++) good = good && m.at[DT_AXIS_DATA + axis] == at[r][axis], ++*count;
    }
    return good;
}

/* The groups along an axis: ranks that differ in this place alone. Whether any of them is on several nodes. */
static int groups(const char *order, int axis, int at[MOST][3])
{
    static const char *const names[3] = {"data:", "pipe:", "tensor:"};
    int nodes = 1; /* of the group with the most; its ranks ascend */
    printf("  %s, %-7s", order, names[axis]);
    for (int a = 0; a < (int)ranks; a++) {
        int here = 1, last = a / (int)node;
        if (at[a][axis]) continue; /* a group is printed with its first rank */
        printf(" %d", a);
        for (int b = a + 1; b < (int)ranks; b++) {
            int others = 0;
            for (int i = 0; i < 3; i++) others += i != axis && at[a][i] == at[b][i];
            if (others < 2) continue;
            printf("-%d", b), here += b / (int)node != last, last = b / (int)node;
        }
        nodes = here > nodes ? here : nodes;
    }
    return printf(nodes > 1 ? " are on %s nodes\n" : " share a node\n", nodes > 2 ? "several" : "two"), nodes > 1;
}

int main(int argc, char **argv)
{
    const option list[] = {{"--ranks", 1, MOST, &ranks}, {"--node", 1, MOST, &node}, {"--tp", 1, MOST, &tp},
                           {"--pp", 1, MOST, &pp}};
    const char *orders[2] = {"DPT", "TPD"};
    int at[2][MOST][3], own = argc > 1 && argv[1][0] != '-', shown = own ? 1 : 2, count = 0, good = 1;
    char across[80] = "";
    dt_mesh m;
    dt_layout l = dt_layout_default();
    if (own) orders[0] = argv[1], argv[1] = argv[0], argc--, argv++;
    if (!options_read(argc, argv, list, 4)) return 2;
    if (strlen(orders[0]) != 3 || !strchr(orders[0], 'D') || !strchr(orders[0], 'P') || !strchr(orders[0], 'T'))
        return fprintf(stderr, "69_rank_tables: '%s' is not an order: D, P and T once each\n", orders[0]), 2;
    if (fmod(ranks, tp * pp) > 0)
        return fprintf(stderr, "69_rank_tables: tp %g x pp %g does not divide %g ranks\n", tp, pp, ranks), 2;
    for (int k = 0; k < shown; k++) by_hand(orders[k], at[k]), good = same(orders[k], at[k], &count) && good;
    if (!own) printf("rank node   cluster (DPT): data pipe tensor   spread (TPD): data pipe tensor\n");
    for (int r = 0; r < (int)ranks && !own; r++)
        printf("%4d %4d %19d %4d %6d %20d %4d %6d\n", r, r / (int)node, at[0][r][0], at[0][r][1], at[0][r][2],
               at[1][r][0], at[1][r][1], at[1][r][2]);
    for (int k = 0; k < shown; k++) {
        snprintf(across + strlen(across), sizeof across - strlen(across), "%s %s", k ? "," : "", orders[k]);
        for (int axis = 0; axis < 3; axis++)
            if (groups(orders[k], axis, at[k])) snprintf(across + strlen(across), sizeof across - strlen(across), " %s",
                                                         axis == 0 ? "data" : axis == 1 ? "pipe" : "tensor");
    }
    printf("pp %g x tp %g x rdp %d = %g; mp %g x rdp %d = %g; pp %g x dp %g = %g; but mp %g x dp %g = %g\n", pp, tp,
           degree(0), ranks, pp * tp, degree(0), ranks, pp, ranks / pp, ranks, pp * tp, ranks / pp, tp * ranks);
    l.tp = 3, good = (dt_mesh_of(&l, 8, 0, &m) || own) && good;
    if (!own) printf("refused: %s\n", dt_last_error());
    if (!good) return fprintf(stderr, "FAILED: other places than by hand\n"), 1;
    return printf("ok: %d places as by hand; across nodes:%s\n", count, across), 0;
}
