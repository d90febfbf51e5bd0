/* 45_copies: a rank is lost. Which states of the model does nobody else have?
 *
 * What you learn
 *     - Replicas are copies: after one loss the others have every weight and every moment. A shard and a stage are the
 *       only one of their kind: ZeRO over all ranks, a pipeline, or a tensor group without replicas loses a part of the
 *       model with each rank.
 *     - So the layout decides what a checkpoint is for. With replicas it restores time; with shards it restores states.
 *     - Every layout stops: a synchronous step needs all ranks. The job fails as often as any of its n nodes, M / n.
 *     - Hybrid groups share the states inside a node and keep a copy on the next one: a lost node loses nothing.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 45_copies.c -o 45_copies -lm -lpthread
 *     ./45_copies
 *
 * What it prints
 *     8 ranks on 2 nodes; % of the states
 *                              of a rank  lost with a rank  with a node
 *     data parallel                100.0               0.0          0.0
 *     ZeRO 3 over all ranks         12.5              12.5         50.0
 *     ZeRO 3 in each node           25.0               0.0          0.0
 *     pipeline over all ranks       12.5              12.5         50.0
 *     pipeline in each node         25.0               0.0          0.0
 *     2 stages, one per node        50.0               0.0         50.0
 *     every layout stops with any node: after 1825 days on 1 node, 912 on 2, 3.6 on 512
 *     ok: what has a copy is not lost; all have to stop
 *
 * Predict first: with 4 nodes instead of 2, what does "ZeRO 3 in each node" lose with a node?
 * Exercise: let a rank of ZeRO 3 also keep its right neighbour's shard. What do a lost rank and a lost node cost then?
 *
 * Read on: 50_pipeline_by_hand.c for stages, 71_shards_by_hand.c for checkpoints in shards. */
#include <stdio.h>

enum { RANKS = 8, NODE = 4, UNITS = 24 }; /* the states of a model, in units that no layout cuts */

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

int main(void)
{
    static const layout layouts[] = {{"data parallel", 1, 1, 0},
                                     {"ZeRO 3 over all ranks", RANKS, 1, 0},
                                     {"ZeRO 3 in each node", NODE, 1, 0},
                                     {"pipeline over all ranks", 1, RANKS, 0},
                                     {"pipeline in each node", 1, NODE, 1},
                                     {"2 stages, one per node", 1, 2, 0}};
    const double share = 100.0 / UNITS, days = 5 * 365.0; /* a node's mean time between failures */
    int good = 1;
    printf("%d ranks on %d nodes; %% of the states\n", RANKS, RANKS / NODE);
    printf("%-24s of a rank  lost with a rank  with a node\n", "");
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const layout *l = &layouts[i];
        int rank = gone(l, 1, 1), node = gone(l, NODE, NODE), all = 0;
        printf("%-24s %9.1f %17.1f %12.1f\n", l->name, share * held(l, 1), share * rank, share * node);
        for (int r = 0; r < RANKS; r++) all += held(l, r);
        good = good && all * l->shard * l->stages == RANKS * UNITS && !gone(l, 0, 0) && gone(l, 0, RANKS) == UNITS;
        good = good && (rank == 0) == (l->shard * l->stages < RANKS);
    }
    printf("every layout stops with any node: after %.0f days on 1 node, %.0f on 2, %.1f on 512\n", days, days / 2,
           days / 512);
    if (!good) return fprintf(stderr, "FAILED: a layout holds a unit too often or not at all\n"), 1;
    return printf("ok: what has a copy is not lost; all have to stop\n"), 0;
}
