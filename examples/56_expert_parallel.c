/* 56_expert_parallel: what does it cost to keep the experts of a mixture on different ranks?
 *
 * What you learn
 *     - Most weights of a mixture (15_moe.c) are in its experts. With expert parallel (Lepikhin et al. 2020) the ranks
 *       of a group of ep data-parallel ranks keep E / ep experts each. Each rank routes its own tokens; their rows
 *       travel to the ranks that have the experts (an all-to-all) and back: 2 exchanges forward, 2 backward per block.
 *     - A rank keeps X / ep of X weights of experts, and their state. Their gradients are summed over n / ep ranks:
 *       with ep = n no byte of them is sent.
 *     - Rows of C floats travel 4 times; N k (ep-1)/ep of them leave a rank if the choices are even. "Expert parallel
 *       saves arithmetic" is wrong: a token visits k experts either way.
 *     - All wait for the rank with the most popular experts, which needs room for all tokens of its group. A capacity
 *       limits both, and drops the rest.
 *     - The bits do not change: an owner keeps one gradient per rank whose tokens it got, and adds them in the fixed
 *       tree of data parallel.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 56_expert_parallel.c -o 56_expert_parallel -lm -lpthread
 *     ./56_expert_parallel
 *     ./56_expert_parallel --ranks 2
 *     ./56_expert_parallel --ranks 4               (the one to read; 8 works, too)
 *
 * What it prints
 *     X = 294912 weights in experts, D = 72704 others with padding. Bytes and formulas, on 4 ranks:
 *       visit         ep   weights 4(D+X/ep)     AdamW 8(D+X/ep)       sent   if even     rows  if even  room
 *       2 of 8         4    585728   585728   1171456  1171456    2546736   2549808   783360   786432   512
 *       2, capacity 1  4    585728   585728   1171456  1171456    2371632   2549808   608256   786432   128
 *       all 8          4    585728   585728   1171456  1171456    4909104   4909104  3145728  3145728   512
 *     Choices of the last step on the experts of the last block; the even share is 64:
 *       expert 5 on rank 2 of 4   143 ###################################
 *     ok: runs: 9, ranks: 4; bytes as computed, one hash for every ep
 *
 * Predict first: with ep = 8 on 8 ranks, how many bytes of experts does a rank keep, and how many bytes of their
 *     gradients does it send?
 * Exercise: place experts by their tokens, the most popular first, each on the rank with the fewest. What is gained?
 *
 * Read on: 57_mesh.c for all kinds of parallel at once, 58_nodes.c for what crosses a link. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <stdlib.h>

/* A Llama of two blocks; what is not a matrix of whole blocks of 1024 floats is padded to one: norms and routers. */
enum { C = 64, HIDDEN = 96, LAYERS = 2, E = 8, MOST = 8, BATCH = 8, LENGTH = 32 };
enum { X = LAYERS * E * 3 * C * HIDDEN, D = 2 * 256 * C + 1024 + LAYERS * (4 * C * C + 3 * 1024) };

static int shards = 4; /* of data; 8 on 8 ranks, which is another recipe with other hashes */
static const struct {
    const char *name;
    int active;
    float capacity;
    const char *hash;
} kinds[3] = {{"2 of 8", 2, 0.0f, "051f02bad0c80be781e6b5306c37f8fee2e639282afa04493b971f479cedd43c"},
              {"2, capacity 1", 2, 1.0f, "404d914a841dc5775528bd246eb822e7289bd87fb252b7303dd382d5dc0ab7e5"},
              {"all 8", E, 0.0f, "c942bbec66d07ab2fc08bda91bebafc144d8b5f1c49b04ab8eedf0a92f08e62f"}};
typedef struct result {
    int64_t weights, optimizer, sent; /* bytes; sent: of all ranks, in the first step */
    float tokens[E];                  /* choices of the last step on each expert of the last block */
    char hash[65];
} result;

static dt_result train(dt_comm *c, const char *text, int kind, int ep, result *out)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_memory memory;
    dt_trainer *t = NULL;
    int64_t all[MOST];
    dt_result e;
    recipe.model = dt_model_llama("llama-nano");
    recipe.model.layers = LAYERS, recipe.model.width = C, recipe.model.heads = 4, recipe.model.kv_heads = 4;
    recipe.model.hidden = HIDDEN, recipe.model.tied = 0, recipe.model.vocabulary = 256;
    recipe.model.experts = E, recipe.model.active = kinds[kind].active, recipe.model.capacity = kinds[kind].capacity;
    recipe.data = text, recipe.sequence = LENGTH, recipe.batch = recipe.micro_batch = BATCH;
    recipe.data_shards = shards, recipe.steps = 10, recipe.warmup = 2, recipe.validation = 0;
    layout.ep = ep;
    layout.output.quiet = 1, layout.threads = 1, layout.output.sample_length = 0;
    e = dt_trainer_open(&t, &recipe, &layout);
    if (e) return e;
    memory = dt_trainer_memory(t);
    out->weights = memory.weights, out->optimizer = memory.optimizer;
    e = dt_trainer_step(t, &info);
    out->sent = info.sent_bytes;
    if (!e) e = dt_trainer_run(t, &info);
    if (!e) e = dt_trainer_experts(t, LAYERS - 1, out->tokens);
    if (!e) memcpy(out->hash, dt_trainer_hash(t), sizeof out->hash);
    dt_trainer_close(&t);
    if (!e) e = dt_all_gather(c, (float *)(void *)&out->sent, (float *)(void *)all, 2); /* it keeps all bits */
    out->sent = 0;
    for (int i = 0; i < dt_comm_size(c) && !e; i++) out->sent += all[i];
    return e;
}

/* A line of the table for n ranks; returns whether its formulas hold. */
static int line(const result *r, int kind, int ep, int n)
{
    int64_t units = shards / n, tokens = BATCH / shards * LENGTH;
    int64_t choices = shards * tokens * kinds[kind].active; /* of all ranks, in a block */
    int64_t keeps = D + X / ep, gradients = 8 * (D * (n - 1) + X * (n / ep - 1));
    int64_t counts = ep > 1 ? (int64_t)4 * LAYERS * units * n * (ep - 1) * E / ep : 0;
    int64_t small = (int64_t)n * (n - 1) * (8 + 4 * shards + 4 * shards * (LAYERS + 2)); /* of losses */
    int64_t blocks = ep > 1 ? 4 * (ep - 1) * (int64_t)n * ((D + X) / 1024) : 0;          /* of the norm */
    int64_t even = 16 * C * LAYERS * choices * (ep - 1) / ep, rows = r->sent - gradients - counts - small - blocks;
    int64_t most = E / ep < kinds[kind].active ? E / ep : kinds[kind].active, room = tokens * most;
    if (kinds[kind].capacity > 0.0f && room > choices / shards / ep) room = choices / shards / ep;
    printf("  %-13s %2d  %8lld %8lld  %8lld %8lld  %9lld %9lld %8lld %8lld %5lld\n", kinds[kind].name, ep,
           (long long)r->weights, (long long)(4 * keeps), (long long)r->optimizer, (long long)(8 * keeps),
           (long long)r->sent, (long long)(gradients + counts + small + blocks + even), (long long)rows,
           (long long)even, (long long)(ep * room));
    if (r->weights != 4 * keeps || r->optimizer != 8 * keeps || rows % (16 * C) || rows < 0 || (ep == 1 && rows))
        return 0;
    return kinds[kind].active < E || rows == even;
}

int main(int argc, char **argv)
{
    static const char marks[] = "########################################################################";
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_comm *c = NULL;
    static result r[3][4];
    int good = 1, root, n, degrees;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (e) return dt_fail("56_expert_parallel");
    root = !dt_comm_rank(c), n = dt_comm_size(c);
    if (n == MOST) shards = MOST;
    if (argc > 1 || shards % n)
        return root ? fprintf(stderr, "56_expert_parallel: the option is --ranks 1, 2, 4 or 8\n"), 2 : 2;
    degrees = n > 4 ? 4 : n > 2 ? 3 : n; /* ep 1, 2, 4, 8 */
    e = prose_temporary(text, 50000);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < degrees && !e; i++) {
            e = train(c, text, k, 1 << i, &r[k][i]);
            good = good && !strcmp(r[k][i].hash, n == MOST ? r[k][0].hash : kinds[k].hash);
        }
    remove(text);
    dt_comm_close(&c);
    if (e || !root) return e ? dt_fail("56_expert_parallel") : !good;
    printf("X = %d weights in experts, D = %d others with padding. Bytes and formulas, on %d rank%s:\n", X, D, n,
           n > 1 ? "s" : "");
    printf("  visit         ep   weights 4(D+X/ep)     AdamW 8(D+X/ep)       sent   if even     rows  if even  room\n");
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < degrees; i++) good = line(&r[k][i], k, 1 << i, n) && good;
    printf("Choices of the last step on the experts of the last block; the even share is %d:\n", BATCH * LENGTH / 4);
    for (int x = 0; x < E; x++)
        printf("  expert %d on rank %d of %d %5d %.*s\n", x, x / (E >> (degrees - 1)), 1 << (degrees - 1),
               (int)r[0][0].tokens[x], (int)r[0][0].tokens[x] / 4, marks);
    for (int k = 0; k < 3; k++) printf("sha256 %s  %s\n", r[k][0].hash, kinds[k].name);
    if (good) return printf("ok: runs: %d, ranks: %d; bytes as computed, one hash for every ep\n", 3 * degrees, n), 0;
    return fprintf(stderr, "FAILED: a formula or a hash does not hold\n"), 1;
}
