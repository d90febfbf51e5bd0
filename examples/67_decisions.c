/* 67_decisions: a model, its hours on one GPU and a deadline: how many GPUs, and which kind of parallel?
 *
 * What you learn
 *     - The order of decisions, cheapest first: one GPU; if the model fits and is too slow, data parallel in one node,
 *       then over nodes.
 *     - If the states do not fit, they are sharded or the model is cut, in as few nodes as hold it. Here 16 bytes per
 *       weight count, and nine tenths of a GPU of 80 GB.
 *     - Between plain data parallel and cut models there are shards (41_zero.c): the texts that jump from one to the
 *       other leave out the step that changes least.
 *     - "Horovod, for extreme scale" is not a further step: it only has replicas. DeepSpeed shards. SMDDP makes sums
 *       fast and does not shard: for 50 billion weights on 64 GPUs it is half of an answer.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 67_decisions.c -o 67_decisions -lm -lpthread
 *     ./67_decisions
 *
 * What it prints
 *        weights   hours, 1 GPU  deadline
 *        2.5e+07              3         5   fits, in time: one GPU
 *        1.5e+09             30         5   fits, too slow: data parallel in one node
 *        1.5e+09             50         5   fits, too slow in one node: data parallel on 2 nodes
 *          7e+09            400        72   112 GB of states do not fit: sharded or cut, nodes: 1
 *          7e+10           4000       500   1120 GB of states do not fit: sharded or cut, nodes: 2
 *       1.75e+11           9000       500   2800 GB of states do not fit: sharded or cut, nodes: 5
 *     50 billion weights on 64 GPUs: 800 GB of states on each as replicas, 12.5 GB sharded
 *     ok: one GPU, one node, several nodes; shards or cuts where the states do not fit
 *
 * Predict first: with GPUs of 141 GB, which lines end elsewhere?
 * Exercise: add the price of the answer, at 55 dollars an hour for a node. Which deadline is the most expensive hour?
 *
 * Read on: 68_hiding.c for what hiding costs, 70_checkpoints.c for what such a job saves. */
#include <math.h>
#include <stdio.h>

/* Bytes: weights, gradients and AdamW's state in mixed precision; nine tenths of a GPU of 80 GB for them. */
static double states(double weights) { return 16 * weights; }
static const double gpu_memory = 0.9 * 80e9;

/* Nodes of 8 GPUs. */
static int decide(double weights, double hours, double deadline, char *text, size_t size)
{
    int nodes = (int)ceil(states(weights) / (8 * gpu_memory));
    if (states(weights) <= gpu_memory) {
        int gpus = 8;
        if (hours <= deadline) return snprintf(text, size, "fits, in time: one GPU"), 1;
        if (hours / (0.9 * 8) <= deadline) return snprintf(text, size, "fits, too slow: data parallel in one node"), 8;
        while (hours / (0.8 * gpus) > deadline) gpus += 8;
        return snprintf(text, size, "fits, too slow in one node: data parallel on %d nodes", gpus / 8), gpus;
    }
    snprintf(text, size, "%.0f GB of states do not fit: sharded or cut, nodes: %d", 1e-9 * states(weights), nodes);
    return 8 * nodes;
}

int main(void)
{
    static const struct {
        double weights, hours, deadline;
        int gpus;
    } jobs[] = {{25e6, 3, 5, 1},    {1.5e9, 30, 5, 8},      {1.5e9, 50, 5, 16},
                {7e9, 400, 72, 8}, {70e9, 4000, 500, 16}, {175e9, 9000, 500, 40}};
    int good = 1;
    printf("%10s %14s %9s\n", "weights", "hours, 1 GPU", "deadline");
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        char text[100];
        good = good && decide(jobs[i].weights, jobs[i].hours, jobs[i].deadline, text, sizeof text) == jobs[i].gpus;
        printf("%10g %14.0f %9.0f   %s\n", jobs[i].weights, jobs[i].hours, jobs[i].deadline, text);
    }
    printf("50 billion weights on 64 GPUs: %.0f GB of states on each as replicas, %.1f GB sharded\n",
           1e-9 * states(50e9), 1e-9 * states(50e9) / 64);
    good = good && states(50e9) > gpu_memory && states(50e9) / 64 < gpu_memory;
    if (!good) return fprintf(stderr, "FAILED: a decision ends elsewhere\n"), 1;
    return printf("ok: one GPU, one node, several nodes; shards or cuts where the states do not fit\n"), 0;
}
