/* 45_copies: when a rank is lost, which parts of the model's states have no copy elsewhere?
 *
 * What you learn
 *     - Replicas are copies: when one is lost, the others still have every weight and every moment. A shard or a stage
 *       exists once: ZeRO over all ranks, or a pipeline or a tensor group without replicas, loses a part of the model
 *       with each rank.
 *     - So the layout decides what a checkpoint is for. With replicas the other ranks still have the whole model, and a
 *       checkpoint is for a job that ends. With shards it is the only copy of what a lost rank had.
 *     - Every layout stops, because a synchronous step needs all ranks. If one node fails every M days, some node of n
 *       fails every M / n days.
 *     - Hybrid groups shard the states inside a node, and other nodes have copies: a lost node loses nothing.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 45_copies.c -o 45_copies -lm -lpthread
 *     ./45_copies
 *     ./45_copies --nodes 4                      (2, 4 or 8)
 *
 * What it prints
 *     8 ranks on 2 nodes; % of the states
 *                               of a rank  lost with a rank  with a node
 *     data parallel                100.0               0.0          0.0
 *     ZeRO 3 over all ranks         12.5              12.5         50.0
 *     ZeRO 3 in each node           25.0               0.0          0.0
 *     pipeline over all ranks       12.5              12.5         50.0
 *     pipeline in each node         25.0               0.0          0.0
 *     2 stages, halves of ranks     50.0               0.0         50.0
 *     every layout stops with any node: after 1825 days on 1 node, 912 on 2, 3.6 on 512
 *     ok: 6 layouts hold every unit once per replica; 4 lose nothing with a rank, 3 nothing with a node
 *
 * Predict first: with 4 nodes instead of 2, what does "ZeRO 3 in each node" lose with a node?
 * Exercise: let each rank of ZeRO 3 also keep the shard of rank + 1, or of rank + 4. What is lost then?
 *
 * Read on: 50_pipeline_by_hand.c for stages, 71_shards_by_hand.c for checkpoints in shards. */
#include "option.h"

enum { RANKS = 8, UNITS = 24 }; /* the states of a model, in units that no layout cuts */

typedef struct layout {
    const char *name;
    int shard, stages, inside; /* ranks that share a stage's states; stages; is a pipeline inside a node? */
} layout;

/* Does a rank hold a unit? */
static int holds(const layout *l, int rank, int unit)
{
    int stage = l->inside ? rank % l->stages : rank / (RANKS / l->stages);
    return unit * l->stages / UNITS == stage && unit % l->shard == rank % l->shard;
}

static int held(const layout *l, int rank)
{
    int units = 0;
    for (int unit = 0; unit < UNITS; unit++) units += holds(l, rank, unit);
    return units;
}

/* Units that nobody holds any more when the ranks from `first` on are gone, `lost` of them. */
static int gone(const layout *l, int first, int lost)
{
    int units = 0;
    for (int unit = 0; unit < UNITS; unit++) {
        int copies = 0;
        for (int rank = 0; rank < RANKS; rank++)
            if (rank < first || rank >= first + lost) copies += holds(l, rank, unit);
        units += !copies;
    }
    return units;
}

int main(int argc, char **argv)
{
    const double share = 100.0 / UNITS, days = 5 * 365.0; /* a node's mean time between failures */
    double nodes = 2;
    option list[] = {{"--nodes", 2, RANKS, &nodes}};
    if (!options_read(argc, argv, list, 1)) return 2;
    if (RANKS % (int)nodes) return fprintf(stderr, "45_copies: --nodes is 2, 4 or 8\n"), 2;
    const int size = RANKS / (int)nodes; /* ranks of a node */
    const layout layouts[] = {{"data parallel", 1, 1, 0},
                              {"ZeRO 3 over all ranks", RANKS, 1, 0},
                              {"ZeRO 3 in each node", size, 1, 0},
                              {"pipeline over all ranks", 1, RANKS, 0},
                              {"pipeline in each node", 1, size, 1},
                              {"2 stages, halves of ranks", 1, 2, 0}};
    int good = 1, safe = 0, safer = 0, count = (int)(sizeof layouts / sizeof *layouts);
    printf("%d ranks on %.0f nodes; %% of the states\n", RANKS, nodes);
    printf("%-25s of a rank  lost with a rank  with a node\n", "");
    for (int i = 0; i < count; i++) {
        const layout *l = &layouts[i];
        int rank = gone(l, 1, 1), node = gone(l, size, size), all = 0;
        printf("%-25s %9.1f %17.1f %12.1f\n", l->name, share * held(l, 1), share * rank, share * node);
        for (int r = 0; r < RANKS; r++) all += held(l, r);
        good = good && all * l->shard * l->stages == RANKS * UNITS && !gone(l, 0, 0) && gone(l, 0, RANKS) == UNITS;
        good = good && (rank == 0) == (l->shard * l->stages < RANKS);
        safe += !rank, safer += !node;
    }
    printf("every layout stops with any node: after %.0f days on 1 node, %.0f on 2, %.1f on 512\n", days, days / 2,
           days / 512);
    if (!good) return fprintf(stderr, "FAILED: a layout holds a unit too often or not at all\n"), 1;
    printf("ok: %d layouts hold every unit once per replica; %d lose nothing with a rank, %d nothing with a node\n",
           count, safe, safer);
    return 0;
}
