/* 47_shares: which part of a weight matrix is on which rank?
 *
 * What you learn
 *     - A layout decides where a number is, never what it is. Data parallel keeps every matrix on every rank. ZeRO 3
 *       cuts the numbers of a segment, such as a block with its matrices in their order, into one run per rank; tensor
 *       parallel cuts a matrix by columns or rows, a pipeline by layers.
 *     - dt_plan_mesh tells a rank's place along each axis; dt_trainer_own copies the elements that the rank holds to
 *       their places. Added up over the ranks, and divided by the number of copies, they are the whole matrix.
 *     - Parameters that tensor parallel does not cut (norms, positions) are on every rank of the tensor group.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 47_shares.c -o 47_shares -lm -lpthread
 *     ./47_shares --ranks 4
 *     ./47_shares --ranks 4 --matrix transformer.wpe.weight
 *
 * What it prints
 *     of 16384 elements of transformer.h.1.mlp.c_fc.weight; (data, stage, tensor) of each rank
 *       layout            rank 0          rank 1          rank 2          rank 3  copies
 *       data       16384 (0,0,0)   16384 (1,0,0)   16384 (2,0,0)   16384 (3,0,0)     4.0
 *       ZeRO 3         0 (0,0,0)    5120 (1,0,0)   11264 (2,0,0)       0 (3,0,0)     1.0
 *       tensor      8192 (0,0,0)    8192 (0,0,1)    8192 (1,0,0)    8192 (1,0,1)     2.0
 *       pipeline       0 (0,0,0)   16384 (0,1,0)       0 (1,0,0)   16384 (1,1,0)     2.0
 *       all            0 (0,0,0)       0 (0,0,1)    8192 (0,1,0)    8192 (0,1,1)     1.0
 *     ok: 5 layouts hold the same 16384 elements; copies: 4 1 2 2 1
 *
 * Predict first: in the row of ZeRO 3, which ranks hold elements of the attention's matrices of the same block?
 * Exercise: print which rows and columns each rank holds. Which layouts cut by columns, and how does ZeRO 3 cut?
 *
 * Read on: 50_pipeline_by_hand.c and 52_tensor_parallel_by_hand.c for the cuts, 71_shards_by_hand.c for saving them. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4, LAYOUTS = 5 };
static const struct choice {
    const char *name;
    int64_t zero, tp, pp;
} choices[LAYOUTS] = {
    {"data", 0, 1, 1}, {"ZeRO 3", 3, 1, 1}, {"tensor", 0, 2, 1}, {"pipeline", 0, 1, 2}, {"all", 3, 2, 2}};
static const char *matrix = "transformer.h.1.mlp.c_fc.weight";

/* One row of the table. sum: of the elements of all copies, divided by their number, the copies. */
static dt_result row(dt_comm *c, const char *text, const struct choice *k, double *sum, double *copies, int64_t *count)
{
    int rank = dt_comm_rank(c), n = dt_comm_size(c);
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_trainer *t = NULL;
    dt_shape shape = dt_shape0();
    const char *name;
    float mine[4], all[4 * MOST], *values = NULL;
    int64_t held = 0;
    dt_mesh m;
    dt_result r;
    recipe.model = dt_model_gpt2("nano"), recipe.data = text, recipe.sequence = 32, recipe.batch = 8, recipe.steps = 1;
    recipe.tensor_shards = 2;
    l.zero = k->zero, l.tp = k->tp, l.pp = k->pp, l.threads = 1, l.output.quiet = 1;
    r = dt_trainer_open(&t, &recipe, &l);
    if (r) return r;
    for (int64_t i = 0; (name = dt_trainer_parameter_at(t, i, &shape)) != NULL && strcmp(name, matrix); i++) continue;
    if (!name) return dt_trainer_close(&t), dt_error(DT_E_USAGE, "%s is not a parameter", matrix);
    *count = dt_shape_count(shape), m = dt_plan_mesh(dt_trainer_plan(t));
    values = (float *)calloc((size_t)*count, sizeof *values);
    r = values ? dt_trainer_own(t, matrix, values, &held) : DT_E_MEMORY;
    mine[0] = (float)held;
    for (int a = DT_AXIS_DATA; a <= DT_AXIS_TENSOR; a++) mine[1 + a] = (float)m.at[a];
    if (!r) r = dt_all_gather(c, mine, all, 4);
    for (int q = 0; q < n; q++) *copies += (double)all[4 * q] / (double)*count;
    if (!r) r = dt_all_reduce(c, values, *count, DT_SUM);
    for (int64_t i = 0; i < *count && !r; i++) *sum += (double)values[i] * (double)(i % 7 + 1) / *copies;
    if (!rank && !r && k == choices)
        printf("of %lld elements of %s; (data, stage, tensor) of each rank\n  layout  ", (long long)*count, matrix);
    for (int q = 0; q < n && !rank && !r && k == choices; q++) printf("          rank %d", q);
    if (!rank && !r && k == choices) printf("  copies\n");
    if (!rank && !r) printf("  %-8s", k->name);
    for (int q = 0; q < n && !rank && !r; q++)
        printf("  %6.0f (%.0f,%.0f,%.0f)", (double)all[4 * q], (double)all[4 * q + 1], (double)all[4 * q + 2],
               (double)all[4 * q + 3]);
    if (!rank && !r) printf("  %6.1f\n", *copies);
    free(values);
    dt_trainer_close(&t);
    return r;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    double sum[LAYOUTS] = {0}, copies[LAYOUTS] = {0};
    int64_t count = 0;
    int rank, n, file = -1, good = 1;
    dt_comm *c = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("47_shares");
    rank = dt_comm_rank(c), n = dt_comm_size(c);
    if (argc == 3 && !strcmp(argv[1], "--matrix")) matrix = argv[2], argc = 1;
    if (argc > 1 || n != MOST) return fprintf(stderr, "47_shares: give --ranks 4, and --matrix NAME or not\n"), 2;
    if ((file = mkstemp(text)) < 0 || prose_generate(text, 20000, 1)) r = DT_E_FILE;
    for (int i = 0; i < LAYOUTS && !r; i++) {
        r = row(c, text, &choices[i], &sum[i], &copies[i], &count);
        good = good && !r && sum[i] == sum[0];
    }
    if (file >= 0) close(file), remove(text);
    dt_comm_close(&c);
    if (r) return dt_fail("47_shares");
    if (!good) return fprintf(stderr, "FAILED: the parts are not the matrix\n"), 1;
    if (!rank) printf("ok: %d layouts hold the same %lld elements; copies:", LAYOUTS, (long long)count);
    for (int i = 0; i < LAYOUTS && !rank; i++) printf(" %g%s", copies[i], i < LAYOUTS - 1 ? "" : "\n");
    return 0;
}
