/* 58_nodes: which bytes leave a node, and how can there be fewer?
 *
 * What you learn
 *     - Ranks of a node share memory; between nodes everything is a message on a link that is ten to a hundred times
 *       slower. What counts is how many bytes leave a node.
 *     - An all-reduce of S bytes on N nodes of L ranks. Flat: every rank sends chunks to every other rank, and L times
 *       2 (N-1)/N S leave a node. Hierarchical: a node first adds up its own, and only the sum crosses: 2 (N-1)/N S.
 *       The library does this wherever a communicator spans nodes.
 *     - The bits are the same: a node adds whole branches of the one tree.
 *     - Tensor-parallel ranks exchange activations in every layer, data-parallel ranks gradients once per step. So
 *       tensor groups stay inside a node (DPT, "cluster"). "Spread", TPD, sends the activations across.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 58_nodes.c -o 58_nodes -lm -lpthread
 *     ./58_nodes --ranks 4                       (the one to read: 2 nodes of 2, played on this machine)
 *     ./58_nodes --ranks 8 --nodes 4
 *     mpicc -O2 -DDT_MPI -I.. 58_nodes.c -o 58_nodes -lm -lpthread && mpirun --oversubscribe -n 4 ./58_nodes
 *
 * What it prints
 *     All-reduce of S = 4.2 MB on 2 nodes of 2 ranks, MB that leave a node:
 *       flat             8.389   L 2 (N-1)/N S = 8.389
 *       hierarchical     4.194     2 (N-1)/N S = 4.194
 *       the same bits: yes
 *       data parallel         0.631   formula    0.482
 *       tensor 2, cluster     0.705   formula    0.631
 *       tensor 2, spread      5.269   formula    5.243
 *     sha256 ec021c315e91402f0d9efa264887731cdb61f146bc960530ecf81503f94e809f
 *     ok: flat sends 2.00 times as much out of a node; same bits
 *
 * Predict first: with 4 nodes of 2 ranks, how many MB leave a node, flat and hierarchical?
 * Exercise: count what both sums send inside a node as well. Does the hierarchical one pay for what it saves outside?
 *
 * Read on: 59_schedules.c for pipelines drawn, 65_across_nodes.c for tensor groups across nodes. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECTED "ec021c315e91402f0d9efa264887731cdb61f146bc960530ecf81503f94e809f"
enum { FLOATS = 1 << 20, STEPS = 4, BATCH = 32, LENGTH = 64 };

/* The sum of a number of bytes over the ranks of this node. */
static dt_result sum_of_node(dt_comm *c, double *bytes)
{
    float all[64], mine = (float)(*bytes / 1024);
    dt_result e = dt_all_gather(c, &mine, all, 1);
    *bytes = 0;
    for (int q = 0; q < dt_comm_size(c) && !e; q++)
        if (dt_comm_node(c, q) == dt_comm_node(c, dt_comm_rank(c))) *bytes += 1024.0 * (double)all[q];
    return e;
}

/* Bytes that have left this rank's node so far. */
static dt_result left_node(dt_comm *c, double *bytes)
{
    *bytes = 0;
    for (int q = 0; q < dt_comm_size(c); q++)
        if (dt_comm_node(c, q) != dt_comm_node(c, dt_comm_rank(c))) *bytes += (double)dt_comm_sent(c, q);
    return sum_of_node(c, bytes);
}

/* Counted bytes are the formula's, but for the few with which the ranks ask each other for them. */
static int near_to(double bytes, double formula) { return fabs(bytes - formula) <= 1e-3 * formula; }

/* By hand: rank q gets piece q of all, adds them in the tree of ranks, and sends the sum to everyone. data, inbox:
 * (n, count). */
static dt_result flat(dt_comm *c, float *data, float *inbox, int64_t count)
{
    int n = dt_comm_size(c);
    dt_result e = dt_all_to_all(c, data, inbox, count);
    for (int step = 1; step < n && !e; step *= 2) /* n is a power of two */
        for (int q = 0; q < n; q += 2 * step)
            for (int64_t i = 0; i < count; i++) inbox[q * count + i] += inbox[(q + step) * count + i];
    for (int q = 1; q < n && !e; q++) memcpy(inbox + q * count, inbox, (size_t)count * sizeof *inbox);
    return e ? e : dt_all_to_all(c, inbox, data, count);
}

/* Both ways, the bytes and the bits. times: as much leaves a node with the flat one. */
static dt_result sums(dt_comm *c, float *memory, double *times)
{
    int n = dt_comm_size(c), nodes = dt_comm_nodes(c), most = n / nodes, root = dt_comm_rank(c) == 0;
    float *a = memory, *b = memory + FLOATS, *inbox = memory + 2 * FLOATS;
    double start = 0, middle = 0, end = 0, each = 4.0 * FLOATS, formula = 2 * each * (nodes - 1) / nodes;
    dt_result e = left_node(c, &start);
    for (int64_t i = 0; i < FLOATS; i++) a[i] = b[i] = (float)((i * 7919 + dt_comm_rank(c) * 104729) % 65536) / 3;
    if (!e) e = flat(c, a, inbox, FLOATS / n);
    if (!e) e = left_node(c, &middle);
    if (!e) e = dt_all_reduce(c, b, FLOATS, DT_SUM);
    if (!e) e = left_node(c, &end);
    if (e) return e;
    if (!memcmp(a, b, sizeof *a * FLOATS) && near_to(middle - start, most * formula) && near_to(end - middle, formula))
        *times = nodes > 1 ? (middle - start) / (end - middle) : 1;
    if (!root) return e;
    printf("All-reduce of S = %.1f MB on %d nodes of %d ranks, MB that leave a node:\n", 1e-6 * each, nodes, most);
    printf("  flat          %8.3f   L 2 (N-1)/N S = %.3f\n", 1e-6 * (middle - start), 1e-6 * most * formula);
    printf("  hierarchical  %8.3f     2 (N-1)/N S = %.3f\n", 1e-6 * (end - middle), 1e-6 * formula);
    printf("  the same bits: %s\n", memcmp(a, b, sizeof *a * FLOATS) ? "NO" : "yes");
    return e;
}

/* Trains in one layout. bytes: what left rank 0's node in the last step. weights: how many the model has. */
static dt_result train(const char *text, const char *order, int64_t tp, double *bytes, double *weights, char hash[65])
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_comm *c = NULL;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = text, recipe.sequence = LENGTH, recipe.batch = BATCH, recipe.steps = STEPS, recipe.validation = 0;
    recipe.tensor_shards = 2;
    l.output.quiet = 1, l.threads = 1, l.output.sample_length = 0, l.order = order, l.tp = tp;
    e = dt_trainer_open(&t, &recipe, &l);
    while (!e && info.step < STEPS) e = dt_trainer_step(t, &info);
    if (!e) memcpy(hash, dt_trainer_hash(t), 65);
    if (!e) *weights = (double)dt_trainer_weights(t);
    dt_trainer_close(&t);
    if (!e) e = dt_comm_open(&c, NULL, NULL);
    *bytes = (double)info.far_bytes;
    if (!e) e = sum_of_node(c, bytes);
    dt_comm_close(&c);
    return e;
}

/* Padding to blocks, norms and losses come on top of the formulas: at most so many times as much. */
static const double slack[3] = {1.5, 1.25, 1.05};

/* What leaves a node by formula. Gradients as one tree of sums: G = 2 (N-1)/N 4P, P with its padding, so by what was
 * counted for data parallel. Spread: 4 sums of activations per layer and 2 more between the two halves of every tensor,
 * all on other nodes; and of gradients, halves among N/2 nodes: 2 (N/2-1)/(N/2) 4P/2. */
static double formula_of(int i, const double bytes[3], double weights, double nodes)
{
    dt_model m = dt_model_gpt2("nano");
    double activations = 4.0 * BATCH * LENGTH * (double)m.width, sums = 4.0 * (double)m.layers + 2;
    if (i == 0) return 2 * (nodes - 1) / nodes * 4 * weights;
    return i == 1 || nodes < 2 ? bytes[0] : sums * 2 * activations / nodes + bytes[0] * (nodes - 2) / (nodes - 1) / 2;
}

static dt_result layouts(int n, int nodes, int root, int *good)
{
    static const struct { const char *name, *order; int64_t tp; } runs[] = {
        {"data parallel", "DPT", 1}, {"tensor 2, cluster", "DPT", 2}, {"tensor 2, spread", "TPD", 2}};
    char text[] = "/tmp/dtrain_XXXXXX", hash[65] = "";
    double bytes[3] = {0, 0, 0}, weights = 0, formula;
    dt_result e = prose_temporary(text, 50000);
    if (root) printf("\nTraining, MB that leave a node in a step:\n");
    for (int i = 0; i < 3 && !e; i++) {
        int like = i == 1 && n == nodes ? 2 : i; /* with one rank per node the halves are on two nodes in any order */
        if (n % runs[i].tp) continue;
        e = train(text, runs[i].order, runs[i].tp, &bytes[i], &weights, hash);
        formula = formula_of(like, bytes, weights, nodes);
        *good = *good && !strcmp(hash, EXPECTED) && bytes[i] >= formula && bytes[i] <= slack[like] * formula;
        if (root && !e) printf("  %-18s %8.3f   formula %8.3f\n", runs[i].name, 1e-6 * bytes[i], 1e-6 * formula);
    }
    if (n > nodes && nodes > 1) *good = *good && bytes[1] < bytes[2];
    if (n == nodes && nodes > 1) *good = *good && near_to(bytes[1], bytes[2]);
    remove(text);
    if (root && !e) printf("sha256 %s\n", hash);
    return e;
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    void *memory = NULL;
    int root, n, nodes, good = 1;
    double times = 0; /* 0: a number of bytes or a bit is wrong */
    dt_result e;
    setenv("DT_NODES", "2", 0); /* two nodes, where nothing else is said */
    e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("58_nodes");
    root = dt_comm_rank(c) == 0, n = dt_comm_size(c), nodes = dt_comm_nodes(c);
    if (argc > 1 || (n & (n - 1)) || n > 8 || n % nodes)
        return root ? fprintf(stderr, "58_nodes: --ranks is a power of two up to 8, --nodes divides it\n"), 2 : 2;
    e = dt_comm_alloc(c, 3 * FLOATS * (int64_t)sizeof(float), &memory);
    if (!e) e = sums(c, (float *)memory, &times);
    dt_comm_close(&c);
    if (!e) e = layouts(n, nodes, root, &good);
    if (e) return dt_fail("58_nodes");
    if (!root) return !good || times < 1;
    if (good && times >= 1) return printf("ok: flat sends %.2f times as much out of a node; same bits\n", times), 0;
    return fprintf(stderr, "FAILED: a number of bytes or a bit is not what it should be\n"), 1;
}
