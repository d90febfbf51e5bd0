/* 57_mesh: with data, pipeline and tensor parallel at once, which ranks should be near each other?
 *
 * What you learn
 *     - Degrees multiply to the number of ranks, dp x pp x tp = n. The order of the axes says who is near whom
 *       (69_rank_tables.c). With DPT ("cluster") gradients cross the network. With TPD ("spread") sums of tensor
 *       parallel cross it. With PDT only what passes between stages crosses.
 *     - "Tensor and pipeline inside a node, data across" and "tensor inside, pipeline across" are both taught. Both
 *       keep tensor groups inside. PDT sends less between nodes; DPT can send it in a few large messages.
 *     - Two wrong choices run here: model parallel for a model that fits ("pipeline" leaves ranks idle, "tensor" waits
 *       in each block, "data" waits once a step), and tensor parallel across nodes (the line of TPD).
 *     - Data parallel does not help a model that does not fit: the column of MB/rank is what each rank needs, and only
 *       layouts that cut the model need less. Every layout ends with one hash.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 57_mesh.c -o 57_mesh -lm -lpthread
 *     ./57_mesh
 *     ./57_mesh --ranks 2
 *     ./57_mesh --ranks 8                        (2 x 2 x 2)
 *     ./57_mesh --ranks 4                        (the one to read)
 *
 * What it prints
 *     MB sent in a step  dp  pp  tp   inside  between formulas of both     idle MB/rank  sha256
 *     data                4   1   1    10.85    21.71    10.17    20.34    0.0 %   30.48  d9a34408ac4c..
 *     mesh DPT, cluster   1   2   2    13.67     1.09    13.63     1.05    5.9 %   11.97  d9a34408ac4c..
 *     mesh TPD, spread    1   2   2     1.07    13.69     1.05    13.63    5.9 %   11.97  d9a34408ac4c..
 *     mesh PDT            1   2   2    13.67     1.09    13.63     1.05    5.9 %   11.97  d9a34408ac4c..
 *     pipeline            1   4   1     1.07     0.57     1.05     0.52   15.8 %   16.82  d9a34408ac4c..
 *     tensor              1   1   4    13.68    27.35    13.63    27.26    0.0 %   11.82  d9a34408ac4c..
 *     ok: layouts: 6, ranks: 4, one hash; between nodes 0.57 to 27.35 MB a step
 *
 * Predict first: with 8 ranks and the order PDT, what crosses between the nodes, and is it more than with DPT?
 * Exercise: add tp = 4 with pp = 2 on 8 ranks, in the order PDT. Which columns get worse than with 2 x 2 x 2?
 *
 * Read on: 58_nodes.c for what crosses a link, 69_rank_tables.c for who is near whom. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECTED "d9a34408ac4ca8bfa58f266845af1fb3096458a2f5e77d09797345cc0c834d68"

enum { LAYERS = 6, WIDTH = 128, BATCH = 16, MICRO = 8, LENGTH = 32, SHARDS = 8 };

/* Ways to use n ranks: tensor groups and stages of 2, if there are so many ranks, or one kind of parallel alone. */
enum { DATA, MESH, STAGES, TENSOR };
static const struct choice {
    const char *name, *order;
    int kind;
} choices[] = {{"data", "DPT", DATA},     {"mesh DPT, cluster", "DPT", MESH}, {"mesh TPD, spread", "TPD", MESH},
               {"mesh PDT", "PDT", MESH}, {"pipeline", "DPT", STAGES},        {"tensor", "DPT", TENSOR}};
enum { COUNT = sizeof choices / sizeof *choices };

/* Bytes that all ranks send in a step: 2 (n-1) S for each sum over n ranks, and S for each message. crossing: those of
 * the two halves of the ranks to each other. The slowest axis lies across, and only that one: of a sum over n ranks
 * each tells n-1 others, n/2 of them across; of n-1 boundaries between stages one is. */
static double formula(const dt_layout *l, const char *order, double dp, double weights, double *crossing)
{
    double tp = (double)l->tp, pp = (double)l->pp, stream = 4.0 * BATCH * LENGTH * WIDTH; /* between two layers */
    double size[3] = {dp, pp, tp}, bytes[3];
    bytes[0] = 2 * (dp - 1) * 4 * weights;
    bytes[1] = 2 * (pp - 1) * tp * stream;
    bytes[2] = 2 * (tp - 1) * (4 * LAYERS + 2) * stream;
    *crossing = 0;
    for (int k = 0; k < 3 && *crossing <= 0; k++) {
        int axis = !strcmp(order, "TPD") ? 2 - k : !strcmp(order, "PDT") && k < 2 ? 1 - k : k;
        if (size[axis] > 1) *crossing = bytes[axis] * (axis == 1 ? 1 : size[axis] / 2) / (size[axis] - 1);
    }
    return bytes[0] + bytes[1] + bytes[2];
}

/* Tables, padding to blocks of 1024 floats, norms, and losses come on top. */
static int near_to(double bytes, double computed, int n)
{
    return bytes >= computed && bytes <= 1.1 * computed + 3e4 * n;
}

/* Trains, the ranks on two nodes, and prints what all of them sent in the first step. memory: the most of a rank;
 * far: MB between nodes. */
static dt_result train(dt_comm *c, const char *text, const struct choice *m, float *memory, float *far, int *good)
{
    double all, crossing;
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    int n = dt_comm_size(c), me = dt_comm_rank(c), half = (n + 1) / 2, dp;
    float sent[2] = {0, 0}; /* bytes inside nodes, between them */
    double idle;
    dt_result e;
    recipe.model = dt_model_llama("llama-nano"); /* without biases, which would be mostly padding here */
    recipe.model.layers = LAYERS, recipe.model.heads = recipe.model.kv_heads = 8, recipe.model.width = WIDTH;
    recipe.data = text, recipe.sequence = LENGTH, recipe.validation = 0, recipe.steps = 2;
    recipe.batch = BATCH, recipe.micro_batch = MICRO, recipe.data_shards = recipe.tensor_shards = SHARDS;
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0;
    layout.tp = m->kind == TENSOR ? n : m->kind == MESH && n > 1 ? 2 : 1;
    layout.pp = m->kind == STAGES ? n : m->kind == MESH && n > 3 ? 2 : 1;
    layout.order = m->order;
    dp = n / (int)(layout.tp * layout.pp);
    e = dt_trainer_open(&t, &recipe, &layout);
    for (int p = 0; p < n && !e; p++) sent[p / half != me / half] -= (float)dt_comm_sent(dt_trainer_comm(t), p);
    if (!e) e = dt_trainer_step(t, &info);
    for (int p = 0; p < n && !e; p++) sent[p / half != me / half] += (float)dt_comm_sent(dt_trainer_comm(t), p);
    if (!e) e = dt_trainer_run(t, &info);
    if (e) return dt_trainer_close(&t), e;
    *memory = (float)dt_trainer_memory(t).total;
    e = dt_all_reduce(c, sent, 2, DT_SUM), *far = sent[1] / 1e6f;
    if (!e) e = dt_all_reduce(c, memory, 1, DT_MAX);
    idle = (double)(layout.pp - 1) / (BATCH / MICRO * SHARDS / dp + (double)layout.pp - 1); /* 1F1B */
    all = formula(&layout, m->order, dp, (double)dt_trainer_weights(t), &crossing);
    *good = *good && !strcmp(dt_trainer_hash(t), EXPECTED) && near_to((double)sent[0] + (double)sent[1], all, n) &&
            near_to((double)sent[1], crossing, n);
    if (!me && !e)
        printf("%-18s %2d %3d %3d %8.2f %8.2f %8.2f %8.2f %6.1f %% %7.2f  %.12s..\n", m->name, dp, (int)layout.pp,
               (int)layout.tp, (double)sent[0] / 1e6, (double)sent[1] / 1e6, (all - crossing) / 1e6, crossing / 1e6,
               100 * idle, (double)*memory / 1e6, dt_trainer_hash(t));
    dt_trainer_close(&t);
    return e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_comm *c = NULL;
    float memory[COUNT], least = 1e9f, most = 0, far = 0;
    int root, n, good = 1;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("57_mesh");
    n = dt_comm_size(c), root = !dt_comm_rank(c);
    if (argc > 1 || n > 8) return fprintf(stderr, "57_mesh: the option is --ranks 1, 2, 4 or 8\n"), 2;
    e = prose_temporary(text, 100000);
    if (root) printf("MB sent in a step  dp  pp  tp   inside  between formulas of both     idle MB/rank  sha256\n");
    for (int k = 0; k < (n > 1 ? COUNT : 1) && !e; k++) {
        e = train(c, text, &choices[k], &memory[k], &far, &good);
        least = far < least ? far : least, most = far > most ? far : most;
    }
    remove(text);
    dt_comm_close(&c);
    if (e) return dt_fail("57_mesh");
    if (!good) return fprintf(stderr, "FAILED: bytes or hashes are not as they should be\n"), 1;
    if (root)
        printf("ok: layouts: %d, ranks: %d, one hash; between nodes %.2f to %.2f MB a step\n", n > 1 ? COUNT : 1, n,
               (double)least, (double)most);
    return 0;
}
