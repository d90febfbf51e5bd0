/* 69_rank_tables: which ranks of a mesh share a node, and which degrees multiply to all ranks?
 *
 * What you learn
 *     - Ranks are places of a mesh with the axes data, pipeline and tensor. The order of the axes, slowest first, says
 *       who is near whom. With DPT ("cluster") neighbours share a tensor; with TPD ("spread") the halves of every
 *       tensor are on two nodes.
 *     - Amazon's SMP says mp for pp x tp, rdp ("reduced") for what is dp elsewhere, and dp for all ranks of one stage,
 *       tp x rdp.
 *     - So mp x rdp = n and pp x dp = n. mp x dp = n is often said, and true only if tp = 1.
 *     - A degree that does not divide the ranks is refused.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 69_rank_tables.c -o 69_rank_tables -lm -lpthread
 *     ./69_rank_tables
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
 *     ok: the slowest axis crosses the nodes, the fastest stays inside
 *
 * Predict first: in the order PDT, which pairs are on two nodes?
 * Exercise: print the table of 16 ranks on 2 nodes with tp 8. Which pairs share a node in each order?
 *
 * Read on: 70_checkpoints.c, the next chapter; 57_mesh.c for what each order sends. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>

enum { RANKS = 8, NODE = 4 };

/* The mesh of 8 ranks on 2 nodes: at[rank] becomes its node and its place on the data, pipeline and tensor axes. */
static int mesh(const char *order, int at[RANKS][4])
{
    dt_layout l = dt_layout_default();
    l.pp = l.tp = 2, l.order = order;
    for (int r = 0; r < RANKS; r++) {
        dt_mesh m;
        if (dt_mesh_of(&l, RANKS, r, &m)) return 0;
        at[r][0] = r / NODE;
        for (int axis = DT_AXIS_DATA; axis <= DT_AXIS_TENSOR; axis++) at[r][1 + axis] = m.at[axis];
    }
    return 1;
}

/* The pairs along an axis: ranks that differ in this place alone. Returns how many of the four share a node. */
static int pairs(const char *what, int axis, int at[RANKS][4])
{
    int shared = 0;
    printf("  %s", what);
    for (int a = 0; a < RANKS; a++)
        for (int b = a + 1; b < RANKS; b++) {
            int same = 0;
            for (int i = 1; i < 4; i++) same += i != axis && at[a][i] == at[b][i];
            if (same < 2) continue;
            printf(" %d-%d", a, b);
            shared += at[a][0] == at[b][0];
        }
    printf(shared ? " share a node\n" : " are on two nodes\n");
    return shared;
}

int main(void)
{
    const int pp = 2, tp = 2, rdp = RANKS / (pp * tp);
    int near[RANKS][4], far[RANKS][4], good;
    dt_mesh m;
    dt_layout l = dt_layout_default();
    if (!mesh("cluster", near) || !mesh("spread", far)) return dt_fail("69_rank_tables");
    printf("rank node   cluster (DPT): data pipe tensor   spread (TPD): data pipe tensor\n");
    for (int r = 0; r < RANKS; r++)
        printf("%4d %4d %19d %4d %6d %20d %4d %6d\n", r, near[r][0], near[r][1], near[r][2], near[r][3], far[r][1],
               far[r][2], far[r][3]);
    good = pairs("DPT, data:  ", 1, near) == 0 && pairs("DPT, pipe:  ", 2, near) == 4 &&
           pairs("DPT, tensor:", 3, near) == 4;
    good = pairs("TPD, data:  ", 1, far) == 4 && pairs("TPD, pipe:  ", 2, far) == 4 &&
           pairs("TPD, tensor:", 3, far) == 0 && good;
    printf("pp %d x tp %d x rdp %d = %d; mp %d x rdp %d = %d; pp %d x dp %d = %d; but mp %d x dp %d = %d\n", pp, tp,
           rdp, pp * tp * rdp, pp * tp, rdp, pp * tp * rdp, pp, tp * rdp, pp * tp * rdp, pp * tp, tp * rdp,
           pp * tp * tp * rdp);
    l.tp = 3;
    good = dt_mesh_of(&l, RANKS, 0, &m) && good;
    printf("refused: %s\n", dt_last_error());
    if (!good) return fprintf(stderr, "FAILED: other ranks share a node\n"), 1;
    return printf("ok: the slowest axis crosses the nodes, the fastest stays inside\n"), 0;
}
