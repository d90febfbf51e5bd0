/* 55_ring_attention: how can ranks share one long text?
 *
 * What you learn
 *     - With a batch of one, data parallel has nothing to divide, and activations grow with the text. Context parallel
 *       cuts the sequence. Norms, products and losses work on each token alone; attention needs the keys and values
 *       of all tokens before it.
 *     - Blocks of keys and values travel in a ring (54_ring_attention_by_hand.c). After n - 1 rounds each rank has
 *       seen all of them. Backward they travel again, and the gradients of the keys go to their owners.
 *     - With a causal mask late tokens have more work. The sequence is cut into 2 n slices, and rank r has slices r and
 *       2n-1-r, so every rank has the same work in every round.
 *     - The order in which slices are added decides the bits. So the recipe cuts (context_shards), and a tree over the
 *       slices' positions fixes the order.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 55_ring_attention.c -o 55_ring_attention -lm -lpthread
 *     ./55_ring_attention
 *     ./55_ring_attention --drawn 2              (2 to 8 ranks in the picture)
 *     ./55_ring_attention --ranks 2
 *     ./55_ring_attention --ranks 4
 *
 * What it prints
 *         round 0:  rank 0 has 0+7 (2.0)  rank 1 has 1+6 (2.0)  rank 2 has 2+5 (2.0)  rank 3 has 3+4 (2.0)
 *         round 3:  rank 0 has 1+6 (2.0)  rank 1 has 2+5 (2.0)  rank 2 has 3+4 (2.0)  rank 3 has 0+7 (2.0)
 *       rounds wait for the slowest rank: 8.0 pairs, against 14.0
 *     shards  sent/step    formula   in the ring activations      loss  sha256
 *          4    1581128    1387008        589824     1155648  5.417265  760fd9ef5455..
 *     ok: ranks: 4, the hash of one rank; a ring of 4 takes 8.0 pairs instead of 14.0
 *
 * Predict first: with 2 ranks, how many rounds are there, and how much work does each rank have in each?
 * Exercise: leave the causal mask out of the picture. How long do the rounds take then, with each of the two cuts?
 *
 * Read on: 56_expert_parallel.c for tokens that travel, 57_mesh.c for all kinds at once. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "prose.h"

#define EXPECTED "760fd9ef5455e66e549ebd3c43a3d6dc33e5c616b71b0880203b3d98964e541c"

enum { LAYERS = 2, WIDTH = 64, LENGTH = 256, STEPS = 4 }; /* of the training run */
static double drawn = 4;                                 /* ranks of the picture */

/* Pairs of slices that see each other when a rank with the slices a and b works on those of another: half of a slice's
 * own pairs. */
static double pairs(const int own[2], const int keys[2])
{
    double sum = 0;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) sum += keys[j] < own[i] ? 1 : keys[j] == own[i] ? 0.5 : 0;
    return sum;
}

/* Each round of the ring: whose block a rank has, and the work; slices r and 2n-1-r, then 2r and 2r+1. Returns how long
 * all rounds take, where each round waits for the slowest. */
static double rounds(int n, int neighbours)
{
    double time = 0;
    for (int round = 0; round < n; round++) {
        double most = 0;
        printf("    round %d:", round);
        for (int r = 0; r < n; r++) {
            int owner = (r + n - round) % n, own[2], keys[2];
            double work;
            own[0] = neighbours ? 2 * r : r, own[1] = neighbours ? 2 * r + 1 : 2 * n - 1 - r;
            keys[0] = neighbours ? 2 * owner : owner, keys[1] = neighbours ? 2 * owner + 1 : 2 * n - 1 - owner;
            work = pairs(own, keys);
            most = work > most ? work : most;
            printf("  rank %d has %d+%d (%.1f)", r, keys[0], keys[1], work);
        }
        printf("\n");
        time += most;
    }
    return time;
}

/* Trains on one sequence per step, shared by n ranks. Sent per step: in each block of the model its keys and values
 * (2 T C / n floats) and those of others that it passes on, n - 1 times forward and n - 1 times backward, and as many
 * gradients; then an all-reduce of the gradients of all weights. The rest: the tied table's second gradient, padding to
 * blocks of 1024, losses and counts. */
static dt_result train(const char *text, int n, int64_t shards, int *good)
{
    double sent, ring = 3.0 * LAYERS * (n - 1) * 2 * LENGTH * WIDTH / n * 4, formula;
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.model.layers = LAYERS, recipe.model.heads = 4, recipe.model.width = WIDTH;
    recipe.data = text, recipe.sequence = LENGTH, recipe.validation = 0, recipe.steps = STEPS;
    recipe.batch = recipe.data_shards = 1;
    recipe.context_shards = shards; /* up to so many ranks */
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0;
    layout.cp = n;
    e = dt_trainer_open(&t, &recipe, &layout);
    if (!e) e = dt_trainer_run(t, &info);
    if (e) return dt_trainer_close(&t), e;
    sent = (double)info.sent_bytes;
    formula = ring + 2.0 * (n - 1) / n * 4 * (double)dt_trainer_weights(t);
    *good = *good && !strcmp(dt_trainer_hash(t), EXPECTED) == (shards > 1);
    *good = *good && sent >= formula && sent < 1.2 * formula + 1;
    if (dt_trainer_is_root(t)) {
        dt_memory m = dt_trainer_memory(t);
        printf("%6lld %10.0f %10.0f %13.0f %11lld  %.6f  %.12s..\n", (long long)shards, sent, formula, ring,
               (long long)m.activations, (double)info.loss, dt_trainer_hash(t));
    }
    dt_trainer_close(&t);
    return e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_comm *c = NULL;
    option list[] = {{"--drawn", 2, 8, &drawn}};
    double even = 0, uneven = 0;
    int root, ranks, good = 1;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("55_ring_attention");
    ranks = dt_comm_size(c), root = !dt_comm_rank(c);
    dt_comm_close(&c); /* the trainer opens its own */
    if (!options_read(argc, argv, list, 1)) return 2;
    e = prose_temporary(text, 100000);
    if (!e && root) {
        int n = (int)drawn;
        printf("a ring of %d ranks, slices r and %d-r: pairs of slices per round\n", n, 2 * n - 1);
        even = rounds(n, 0);
        printf("  and with neighbours, 2r and 2r+1:\n");
        uneven = rounds(n, 1);
        printf("  rounds wait for the slowest rank: %.1f pairs, against %.1f\n", even, uneven);
        good = even < 0.7 * uneven;
        printf("bytes: a rank sends the blocks of the ring and its gradients; the formula is the sum of both\n");
        printf("shards  sent/step    formula   in the ring activations      loss  sha256\n");
    }
    if (!e && ranks == 1) e = train(text, 1, 1, &good); /* the sequence whole: other bits, the same loss to 6 digits */
    if (!e) e = train(text, ranks, 4, &good);
    remove(text);
    if (e) return dt_fail("55_ring_attention");
    if (!good) return fprintf(stderr, "FAILED: balance, bytes or hashes are not as they should be\n"), 1;
    if (root)
        printf("expected %s\nok: ranks: %d, the hash of one rank; a ring of %.0f takes %.1f pairs instead of %.1f\n",
               EXPECTED, ranks, drawn, even, uneven);
    return 0;
}
