/* 52_tensor_parallel_by_hand: how can several ranks compute one layer, each with a part of its weights?
 *
 * What you learn
 *     - An MLP is two products, y = gelu(x A) B. Cut A by columns and B by rows, at the same hidden units: a rank
 *       computes gelu(x A_r) B_r alone, because gelu looks at one hidden unit at a time. The sum over ranks is y: one
 *       all-reduce.
 *     - Backward is the mirror image. All ranks have dy; each computes the gradients of its A_r and B_r, and a part of
 *       dx. The sum over ranks is dx: the second all-reduce. Weights and their gradients are never sent.
 *     - What is sent is as large as x, for every layer, forward and back, and everybody waits for it. So tensor
 *       parallel wants the fastest link there is, inside a machine.
 *     - Cutting a sum changes its last bits. Here the weights are always cut into 4 shards, added as (0 + 1) + (2 +
 *       3), whether one rank has all four, two have two each, or four have one. So all of them end with the same bits.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 52_tensor_parallel_by_hand.c -o 52_tensor_parallel_by_hand -lm -lpthread
 *     ./52_tensor_parallel_by_hand --ranks 4     (1, 2 or 4)
 *
 * What it prints
 *     ranks  weights of a rank  all-reduces  floats in each     loss
 *         1               4096            0             256  0.09851
 *         2               2048            2             256  0.09851
 *         4               1024            2             256  0.09851
 *
 * Predict first: with a hidden layer twice as wide, which of the columns double?
 * Exercise: cut A by rows and x by columns instead. Where does the sum have to be, and what is wrong with gelu then?
 *
 * Read on: 53_tensor_parallel.c for whole models and sequence parallel, 22_ring.c for what an all-reduce sends. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 16, C = 16, HIDDEN = 128, SHARDS = 4, H = HIDDEN / SHARDS, STEPS = 30, BATCH = ROWS * C };
static const float rate = 0.5f;

/* A shard has columns of A (C,H) and rows of B (H,C). A rank that has 2 of 4 has the others' places empty. */
typedef struct shards {
    float a[SHARDS][C * H], b[SHARDS][H * C];
} shards;

/* Row i: numbers, and what is to be learned of them. For dt_source, too. */
static dt_result sample(void *user, dt_split split, int64_t i, void *x, void *target)
{
    (void)user, (void)split;
    for (int64_t k = 0; k < C; k++) ((float *)x)[k] = sinf((float)(i * 7 + k * k));
    for (int64_t k = 0; k < C; k++) ((float *)target)[k] = ((float *)x)[k] * ((float *)x)[(k + 1) % C];
    return DT_OK;
}

static void draw(shards *s)
{
    for (int v = 0; v < SHARDS; v++)
        for (int i = 0; i < C * H; i++) {
            s->a[v][i] = 0.5f * sinf((float)(1 + i + v * C * H) * 12.9898f);
            s->b[v][i] = 0.1f * sinf((float)(1 + i + v * C * H) * 78.233f);
        }
}

/* One shard. dy NULL: y = gelu(x A) B. Else the gradients, of A and B times the rate and taken away, and dx in y. */
static dt_result shard(float *a, float *b, const float *x, const float *dy, float *y)
{
    dt_graph *g = NULL;
    dt_tensor tx, ta, tb, out;
    dt_result r = dt_graph_open(&g, 1);
    if (r) return r;
    tx = dt_tensor_of(g, DT_F32, dt_shape2(ROWS, C), x);
    ta = dt_tensor_of(g, DT_F32, dt_shape2(C, H), a), tb = dt_tensor_of(g, DT_F32, dt_shape2(H, C), b);
    out = dt_matmul(g, dt_gelu(g, dt_matmul(g, tx, ta, 0, 0)), tb, 0, 0);
    if (dy) {
        out = dt_mul(g, out, dt_tensor_of(g, DT_F32, dt_shape2(ROWS, C), dy));
        r = dt_backward(g, dt_sum(g, out, 3u));
        for (int i = 0; i < C * H && !r; i++) {
            a[i] -= rate * dt_value(g, dt_grad(g, ta))[i];
            b[i] -= rate * dt_value(g, dt_grad(g, tb))[i];
        }
        out = dt_grad(g, tx);
    }
    if (!r) r = dt_graph_result(g);
    if (!r) memcpy(y, dt_value(g, out), sizeof(float) * BATCH);
    dt_graph_close(&g);
    return r;
}

/* The sum over all shards: a tree over this rank's, then over ranks. */
static dt_result all_shards(dt_comm *c, shards *s, const float *x, const float *dy, float *sum, int *calls)
{
    float part[SHARDS][BATCH] = {{0}};
    int own = SHARDS / dt_comm_size(c), first = own * dt_comm_rank(c);
    dt_result r = DT_OK;
    for (int v = 0; v < own && !r; v++) r = shard(s->a[first + v], s->b[first + v], x, dy, part[v]);
    for (int n = own; n > 1; n /= 2)
        for (int v = 0; v < n / 2; v++)
            for (int i = 0; i < BATCH; i++) part[v][i] = part[2 * v][i] + part[2 * v + 1][i];
    memcpy(sum, part[0], sizeof part[0]);
    *calls += dt_comm_size(c) > 1;
    return r ? r : dt_all_reduce(c, sum, BATCH, DT_SUM);
}

static dt_result train(dt_comm *c, shards *s, float dx[BATCH], float *loss, int *calls)
{
    float x[BATCH], target[BATCH], y[BATCH], dy[BATCH];
    dt_result r = DT_OK;
    draw(s);
    for (int64_t i = 0; i < ROWS; i++) sample(NULL, DT_TRAIN, i, x + i * C, target + i * C);
    for (int step = 0; step < STEPS && !r; step++) {
        *calls = 0, *loss = 0;
        r = all_shards(c, s, x, NULL, y, calls);
        for (int i = 0; i < BATCH; i++) dy[i] = 2 * (y[i] - target[i]) / BATCH;
        for (int i = 0; i < BATCH; i++) *loss += (y[i] - target[i]) * (y[i] - target[i]) / BATCH;
        if (!r) r = all_shards(c, s, x, dy, dx, calls);
    }
    return r;
}

/* ---- the same in the trainer ---- */

static dt_tensor mlp(dt_graph *g, dt_tensor x, const void *user)
{
    (void)user;
    x = dt_gelu(g, dt_linear_with(g, x, "up", HIDDEN, 0.3f, DT_NO_BIAS | DT_COLUMNS));
    return dt_error_loss(g, DT_MSE, dt_linear_with(g, x, "down", C, 0.1f, DT_NO_BIAS | DT_ROWS), dt_targets(g));
}
static dt_result by_trainer(int tp, char hash[65])
{
    dt_segment one = {"mlp", mlp, NULL};
    dt_source source = {NULL, {ROWS, 0}, C, C, DT_F32, DT_F32, sample};
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r;
    recipe.model = dt_model_segments(&one, 1, 0), recipe.source = &source;
    recipe.batch = ROWS, recipe.steps = STEPS, recipe.tensor_shards = SHARDS, recipe.data_shards = 4;
    l.tp = tp, l.output.quiet = 1, l.threads = 1;
    r = dt_trainer_open(&t, &recipe, &l);
    if (!r) r = dt_trainer_run(t, &info);
    if (!r) memcpy(hash, dt_trainer_hash(t), 65);
    dt_trainer_close(&t);
    return r;
}

int main(int argc, char **argv)
{
    static shards s[2];
    float dx[2][BATCH], loss[2];
    char hash[2][65];
    int rank, n, calls, good = 1;
    dt_comm *c = NULL, *part = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("52_tensor_parallel_by_hand");
    rank = dt_comm_rank(c), n = dt_comm_size(c);
    if (argc > 1 || SHARDS % n)
        return fprintf(stderr, "52_tensor_parallel_by_hand: the option is --ranks 1, 2 or 4\n"), 2;
    if (!rank) printf("ranks  weights of a rank  all-reduces  floats in each     loss\n");
    for (int ranks = 1, own; ranks <= n && !r; ranks *= 2) {
        int which = ranks > 1;
        r = dt_comm_split(c, rank / ranks, &part); /* groups of so many ranks, which all do the same */
        if (!r) r = train(part, &s[which], dx[which], &loss[which], &calls);
        own = SHARDS / ranks;
        for (int v = rank % ranks * own; v < (rank % ranks + 1) * own; v++)
            good = good && !memcmp(s[which].a[v], s[0].a[v], sizeof s[0].a[v]) &&
                   !memcmp(s[which].b[v], s[0].b[v], sizeof s[0].b[v]);
        good = good && !memcmp(dx[which], dx[0], sizeof dx[0]) && loss[which] == loss[0];
        if (!rank)
            printf("%5d  %17d  %11d  %14d  %.5f\n", ranks, 2 * C * HIDDEN / ranks, calls, BATCH, (double)loss[which]);
        dt_comm_close(&part);
    }
    if (!r) r = by_trainer(1, hash[0]);
    if (!r) r = by_trainer(n, hash[1]);
    dt_comm_close(&c);
    if (r) return dt_fail("52_tensor_parallel_by_hand");
    if (!good || strcmp(hash[0], hash[1])) return fprintf(stderr, "FAILED: a bit differs\n"), 1;
    if (!rank) printf("ok: any number of ranks, one result, here and in the trainer with --tp\n");
    return 0;
}
