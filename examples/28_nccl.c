/* 28_nccl: who adds up the gradients when every rank has a GPU of its own?
 *
 * What you learn
 *     - NCCL is to GPUs what MPI is to processes. A call only queues work on a stream of the GPU, so a failure shows
 *       later, when the program waits for the stream. A GPU waits for a dead peer for ever, and a monitor shows the GPU
 *       as busy. So the trainer watches its peers while it waits for its GPU, and aborts NCCL when a peer has died.
 *     - An all-reduce of NCCL adds in an order that depends on the number of ranks: in a ring each chunk begins at
 *       a different rank. The sums of the same numbers then differ in their last bits.
 *     - An exact sum needs the addends, not partial sums. Each rank owns a piece of the gradient, receives that piece
 *       from all others, adds all pieces by the tree of the recipe, and sends the sum back. That takes as many bytes as
 *       a ring, two rounds instead of 2(n - 1), and room for the addends.
 *     - Ranks find each other by an id that one rank makes and the others need before NCCL can talk. The communicator
 *       of the processes carries the id, over shared memory, MPI or libfabric.
 *     - NCCL refuses two ranks on one GPU. Then, and where NCCL is missing, tensors go through the host's memory; the
 *       trainer says so at the start. (NCCL_HOSTID=rank-0, rank-1, .. makes NCCL take the ranks for two machines.)
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 28_nccl.c -o 28_nccl -lm -lpthread
 *     ./28_nccl --ranks 2                       (with -DDT_CUDA and -ldl on GPUs; else it says what is missing)
 *
 * What it prints (on a machine without GPUs)
 *     8 numbers have 7 sums in the orders of a ring, and 1 by the tree (12.2011719)
 *     bytes sent per byte of gradient, by 2, 4, 8 ranks: ring 1.00 1.50 1.75, exact 1.00 1.50 1.75
 *     sha256     bf10a551d659c86f4a5c0a5044f01e4229266cd58de0493a19554ed14c167051
 *     ok: CPU: the hash of the weights after 3 steps is bf10a551.. as expected
 *
 * Predict first: without a GPU, which sentence does the program print, and does the hash change?
 * Exercise: print the sum of each chunk of the ring, and how many units in the last place it is away from the tree's.
 *     How many sums are there if the addends are rounded to whole numbers?
 *
 * Read on: 30_drop_in.c for such sums in a loop of your own, 31_data_parallel.c for their use in training,
 *     32_one_hash.c for the tree. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 8 };
#define EXPECTED "bf10a551d659c86f4a5c0a5044f01e4229266cd58de0493a19554ed14c167051"

static const float addend[N] = {0.1f, 3e4f, -0.7f, 1e-3f, 12.5f, -3e4f, 0.3f, 5e-5f};

/* Chunk c of a ring: rank c + 1 adds to what rank c sends, and so on. */
static float by_ring(int c)
{
    float sum = addend[c];
    for (int i = 1; i < N; i++) sum = sum + addend[(c + i) % N];
    return sum;
}
static float by_tree(int begin, int count)
{
    return count == 1 ? addend[begin] : by_tree(begin, count / 2) + by_tree(begin + count / 2, count / 2);
}

/* How many different sums the chunks have. */
static int different(void)
{
    int count = 0;
    for (int c = 0; c < N; c++) {
        int known = 0;
        for (int before = 0; before < c; before++) known |= by_ring(before) == by_ring(c);
        count += !known;
    }
    return count;
}

static void print_sums(void)
{
    printf("%d numbers have %d sums in the orders of a ring, and 1 by the tree (%.9g)\n", N, different(),
           (double)by_tree(0, N));
    printf("bytes sent per byte of gradient, by 2, 4, 8 ranks: ring");
    for (int n = 2; n <= N; n *= 2) printf(" %.2f", (double)(2 * (n - 1)) / n); /* n - 1 rounds of a chunk, twice */
    printf(", exact");
    for (int n = 2; n <= N; n *= 2) printf(" %.2f", (double)(n - 1) / n + (double)(n - 1) / n); /* addends, sums */
    printf("\n");
}

/* The same steps on a device; the hash of their weights. */
static dt_result train(const char *text, const char *device, char hash[65])
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result e;
    recipe.model = dt_model_gpt2("nano");
    recipe.data = text, recipe.sequence = 32, recipe.steps = 3, recipe.warmup = 1, recipe.validation = 0;
    recipe.data_shards = recipe.micro_batch = recipe.batch = N;
    l.device = device, l.threads = 1, l.output.sample_length = 0;
    l.output.quiet = strcmp(device, "cpu") == 0; /* else the start says which GPU computes, and how GPUs talk */
    e = dt_trainer_open(&t, &recipe, &l);
    if (!e) e = dt_trainer_run(t, &info);
    if (!e) memcpy(hash, dt_trainer_hash(t), 65);
    dt_trainer_close(&t);
    return e;
}

int main(int argc, char **argv)
{
    char text[] = "/tmp/dtrain_XXXXXX", hash[65] = "";
    dt_comm *c = NULL;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    int root, gpu;
    if (e) return dt_fail("28_nccl");
    if (argc > 1) return fprintf(stderr, "28_nccl: the option is --ranks N\n"), 2;
    root = !dt_comm_rank(c);
    if (root) print_sums();
    e = prose_temporary(text, 50000);
    gpu = !e && !train(text, "cuda", hash);
    if (!e && !gpu && root) printf("no GPU: %s\n", dt_last_error());
    if (!e && !gpu) e = train(text, "cpu", hash);
    remove(text);
    dt_comm_close(&c);
    if (e || !root) return e ? dt_fail("28_nccl") : strcmp(hash, EXPECTED) != 0;
    printf("sha256     %s\n", hash);
    if (strcmp(hash, EXPECTED)) return fprintf(stderr, "FAILED: the hash is %s, expected %s\n", hash, EXPECTED), 1;
    printf("ok: %s: the hash of the weights after 3 steps is %.8s.. as expected\n", gpu ? "GPUs" : "CPU", hash);
    return 0;
}
