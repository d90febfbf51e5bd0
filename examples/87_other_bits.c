/* 87_other_bits: two runs have the same loss and other hashes. What makes that?
 *
 * What you learn
 *     - A sum of floats depends on its order. A product of matrices that is cut into two or four parts adds in another
 *       order, and most of its numbers get other last bits.
 *     - The same parts added in sequence instead of as a tree give a third order.
 *     - If the recipe fixes four parts and how they are added, then one rank, two or four make the same additions, and
 *       no bit differs. So look at what cuts a sum: ranks, threads, the width of vectors, the batch.
 *     - No order is more exact than the others. Equal hashes show that two runs did the same; different hashes do not
 *       show that one is wrong.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 87_other_bits.c -o 87_other_bits -lm -lpthread
 *     ./87_other_bits                            (--terms 8 instead of 256, 4 to 1024)
 *
 * What it prints
 *     sums of 256 terms: how many get other bits
 *       2 chains instead of 1                             88 %
 *       4 chains instead of 1                             89 %
 *       4 chains added in order instead of as a tree      31 %
 *       4 chains as a tree, on 2 ranks instead of 1        0 %
 *     ok: of 1024 sums 89 % change their bits with 4 chains; as a fixed tree on 2 ranks, 0 %
 *
 * Predict first: with sums of 8 terms instead of 256, does the first share rise or fall?
 * Exercise: draw numbers between 1 and 2 instead of around 0. How do the shares change, and why?
 *
 * Read on: 88_underflow.c for numbers of 16 bits, 32_one_hash.c for a run whose hash is known. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"

enum { ROWS = 32 };

/* x[:, from..to] w[from..to, :] */
static dt_tensor rows(dt_graph *g, dt_tensor x, dt_tensor w, int64_t from, int64_t to)
{
    return dt_matmul(g, dt_slice(g, x, 1, from, to), dt_slice(g, w, 0, from, to), 0, 0);
}

static double differ(const dt_graph *g, dt_tensor a, dt_tensor b)
{
    const float *x = dt_value(g, a), *y = dt_value(g, b);
    int count = 0;
    for (int i = 0; x && y && i < ROWS * ROWS; i++) count += memcmp(&x[i], &y[i], sizeof *x) != 0;
    return 100.0 * count / (ROWS * ROWS);
}

/* Sums over K terms, cut into one, two and four parts. */
int main(int argc, char **argv)
{
    double terms = 256, chains, ranks;
    option list[] = {{"--terms", 4, 1024, &terms}};
    int K;
    dt_graph *g = NULL;
    dt_tensor x, w, p[4], one, low, high, tree;
    if (!options_read(argc, argv, list, 1)) return 2;
    K = (int)terms / 4 * 4;
    if (dt_graph_open(&g, 1)) return dt_fail("87_other_bits");
    x = dt_param(g, "x", dt_shape2(ROWS, K), DT_INIT_NORMAL, 1.0f);
    w = dt_param(g, "w", dt_shape2(K, ROWS), DT_INIT_NORMAL, 1.0f), one = dt_matmul(g, x, w, 0, 0);
    for (int i = 0; i < 4; i++) p[i] = rows(g, x, w, i * K / 4, (i + 1) * K / 4);
    tree = dt_combine(g, dt_reshape(g, dt_concat(g, p, 4, 0), dt_shape3(4, ROWS, ROWS)));
    low = dt_add(g, p[0], p[1]), high = dt_add(g, p[2], p[3]); /* what each of two ranks adds */
    chains = differ(g, one, tree), ranks = differ(g, tree, dt_add(g, low, high));
    printf("sums of %d terms: how many get other bits\n"
           "  2 chains instead of 1                            %3.0f %%\n"
           "  4 chains instead of 1                            %3.0f %%\n"
           "  4 chains added in order instead of as a tree     %3.0f %%\n"
           "  4 chains as a tree, on 2 ranks instead of 1      %3.0f %%\n",
        K, differ(g, one, dt_add(g, rows(g, x, w, 0, K / 2), rows(g, x, w, K / 2, K))), chains,
        differ(g, tree, dt_add(g, dt_add(g, low, p[2]), p[3])), ranks);
    dt_graph_close(&g);
    if (chains <= 10 || ranks > 0)
        return fprintf(stderr, "FAILED: the tree depends on the ranks, or nothing depends on the order\n"), 1;
    return printf("ok: of %d sums %.0f %% change their bits with 4 chains; as a fixed tree on 2 ranks, %.0f %%\n",
                  ROWS * ROWS, chains, ranks), 0;
}
