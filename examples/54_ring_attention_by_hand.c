/* 54_ring_attention_by_hand: how can ranks compute attention over a sequence that is too long for one of them?
 *
 * What you learn
 *     - Attention of T positions compares T x T pairs, but no rank needs all keys at once. Each of n ranks has the
 *       queries, keys and values of T / n positions. The queries stay; keys and values travel around a ring, and after
 *       n rounds every query has met every key.
 *     - A softmax can be added up block by block: keep the largest score, the sum of exponentials, and the weighted sum
 *       of values. A larger score rescales both sums (Milakov and Gimelshein 2018).
 *     - A rank sends 2 (n-1)/n T d floats, and computes T x T / n pairs: a longer sequence hides the ring more easily.
 *     - In a causal model the rank of the last slice has nearly all of the work. With 2n slices, and slices r and
 *       2n-1-r on rank r, all ranks have the same.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 54_ring_attention_by_hand.c -o 54_ring_attention_by_hand -lm -lpthread
 *     ./54_ring_attention_by_hand --ranks 4      (1, 2, 4 or 8; compiled with -DPOSITIONS=128: twice as long)
 *
 * What it prints
 *     64 positions, ranks: 4; 2 (n-1)/n T d is 6144 bytes
 *       slices          bytes sent  busiest rank / the mean  pairs of each rank
 *       in order              6144                     1.74  136 392 648 904
 *       from both ends        6144                     1.00  520 520 520 520
 *     ok: whole attention to 1e-5; 520 pairs on each rank; one hash
 *
 * Predict first: with 128 positions instead of 64, what becomes of the bytes, of the pairs, and of their ratio?
 * Exercise: skip the rounds in which all keys are later than all queries. How many are there, and what must be sent?
 *
 * Read on: 55_ring_attention.c for training with it, 22_ring.c for the ring that adds. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "layers.h"
#include "prose.h"
#include <stdlib.h>

#ifndef POSITIONS
#define POSITIONS 64
#endif
enum { T = POSITIONS, D = 16, MOST = 8, Q = 0, K, V };

/* Number d of the query, key or value at a position. */
static float number(int what, int position, int d) { return sinf((float)(1 + position * (what + 2) + d * (d + what))); }

/* The position of row i of rank r: slices in order, or two slices from both ends. */
static int position(int balanced, int r, int n, int i)
{
    int half = T / (2 * n);
    if (!balanced) return r * (T / n) + i;
    return i < half ? r * half + i : (2 * n - 1 - r) * half + i - half;
}

typedef struct row { /* what a query has met so far */
    float most, sum, out[D];
} row;

static void meet(row *o, const float *q, const float *k, const float *v)
{
    float score = 0, most, before, weight;
    for (int d = 0; d < D; d++) score += q[d] * k[d];
    score /= sqrtf((float)D), most = fmaxf(o->most, score);
    before = expf(o->most - most), weight = expf(score - most);
    for (int d = 0; d < D; d++) o->out[d] = o->out[d] * before + weight * v[d];
    o->sum = o->sum * before + weight, o->most = most;
}

/* Passes keys and values to the next rank. Those with even numbers send first, or all would wait for each other. */
static dt_result pass_on(dt_comm *c, float *kv, float *fresh, int64_t count)
{
    int r = dt_comm_rank(c), n = dt_comm_size(c);
    dt_result e = DT_OK;
    for (int turn = 0; turn < 2 && !e; turn++)
        e = (r + turn) % 2 == 0 ? dt_send(c, kv, count, (r + 1) % n) : dt_recv(c, fresh, count, (r + n - 1) % n);
    if (!e) memcpy(kv, fresh, sizeof(float) * (size_t)count);
    return e;
}

/* Causal attention of this rank's queries. *pairs: of queries and keys that it compared. */
static dt_result ring(dt_comm *c, int balanced, row *out, int64_t *pairs)
{
    static float q[T][D], kv[2 * T * D], fresh[2 * T * D];
    int rank = dt_comm_rank(c), n = dt_comm_size(c), rows = T / n;
    dt_result r = DT_OK;
    *pairs = 0;
    for (int i = 0; i < rows; i++) {
        int at = position(balanced, rank, n, i);
        for (int d = 0; d < D; d++) {
            q[i][d] = number(Q, at, d);
            kv[i * D + d] = number(K, at, d), kv[(rows + i) * D + d] = number(V, at, d);
        }
        memset(&out[i], 0, sizeof out[i]), out[i].most = -INFINITY;
    }
    for (int round = 0; round < n && !r; round++) {
        int from = (rank - round + n) % n; /* whose keys these are */
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < rows; j++) {
                if (position(balanced, from, n, j) > position(balanced, rank, n, i)) continue;
                meet(&out[i], q[i], kv + j * D, kv + (rows + j) * D);
                ++*pairs;
            }
        if (round + 1 < n) r = pass_on(c, kv, fresh, 2 * rows * D);
    }
    for (int i = 0; i < rows; i++)
        for (int d = 0; d < D; d++) out[i].out[d] /= out[i].sum;
    return r;
}

/* The same by the library, over the whole sequence. *far: the largest distance of this rank's rows from it. */
static dt_result compare(int balanced, int rank, int n, const row *out, float *far)
{
    static float x[3][T * D];
    dt_attention_options how = {1, 0, 1, 0, 0};
    dt_tensor t[3];
    const float *y;
    dt_graph *g = NULL;
    dt_result r = dt_graph_open(&g, 1);
    *far = 0;
    for (int what = Q; what <= V && !r; what++) {
        for (int i = 0; i < T * D; i++) x[what][i] = number(what, i / D, i % D);
        t[what] = dt_tensor_of(g, DT_F32, dt_shape3(1, T, D), x[what]);
    }
    if (!r) y = dt_value(g, dt_attend(g, t[Q], t[K], t[V], (dt_tensor){0}, &how)), r = dt_graph_result(g);
    for (int i = 0; i < T / n * D && !r; i++)
        *far = fmaxf(*far, fabsf(y[position(balanced, rank, n, i / D) * D + i % D] - out[i / D].out[i % D]));
    dt_graph_close(&g);
    return r;
}

/* Two steps of a GPT in the trainer; cp ranks share each sequence. The loss of the last step. */
static dt_result train(int cp, float *loss, char hash[65])
{
    char text[] = "/tmp/dtrain_XXXXXX";
    dt_recipe recipe = dt_recipe_default();
    dt_layout layout = dt_layout_default();
    dt_result r = prose_temporary(text, 20000);
    recipe.model = dt_model_gpt2("nano"), recipe.data = text, recipe.sequence = T;
    recipe.batch = MOST, recipe.steps = 2, recipe.context_shards = MOST;
    layout.cp = cp;
    if (!r) r = layers_run(&recipe, layout, NULL, loss, hash);
    remove(text);
    return r;
}

int main(int argc, char **argv)
{
    static const char *const names[2] = {"in order", "from both ends"};
    static row out[T];
    char hash[2][65] = {"", ""};
    float loss = 0;
    int64_t pairs, sent = 0, formula;
    int rank, n, good = 1;
    dt_comm *c = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("54_ring_attention_by_hand");
    rank = dt_comm_rank(c), n = dt_comm_size(c), formula = 4 * 2 * (n - 1) * T * D / n;
    if (argc > 1 || n > MOST || T % (2 * n))
        return fprintf(stderr, "54_ring_attention_by_hand: the option is --ranks 1, 2, 4 or 8\n"), 2;
    if (!rank)
        printf("%d positions, ranks: %d; 2 (n-1)/n T d is %lld bytes\n"
               "  slices          bytes sent  busiest rank / the mean  pairs of each rank\n", T, n, (long long)formula);
    for (int balanced = 0; balanced < 2 && !r; balanced++) {
        float mine, all[MOST], far, most = 0;
        int64_t before = dt_comm_sent(c, (rank + 1) % n);
        r = ring(c, balanced, out, &pairs);
        sent = dt_comm_sent(c, (rank + 1) % n) - before, mine = (float)pairs;
        if (!r) r = compare(balanced, rank, n, out, &far);
        if (!r) r = dt_all_gather(c, &mine, all, 1);
        if (!r) r = dt_all_reduce(c, &far, 1, DT_MAX);
        for (int q = 0; q < n; q++) most = fmaxf(most, all[q]);
        good = good && sent == formula && far < 1e-5f && (!balanced || most * (float)n == T * (T + 1) / 2);
        if (!rank)
            printf("  %-14s  %10lld  %23.2f ", names[balanced], (long long)sent,
                   (double)(most * (float)n / (T * (T + 1) / 2)));
        for (int q = 0; q < n && !rank; q++) printf(" %.0f%s", (double)all[q], q + 1 == n ? "\n" : "");
    }
    dt_comm_close(&c);
    for (int whole = 0; whole < 2 && !r; whole++) r = train(whole ? 1 : n, &loss, hash[whole]);
    if (r) return dt_fail("54_ring_attention_by_hand");
    good = good && !strcmp(hash[0], hash[1]);
    if (!rank) printf("the trainer, sequences cut and whole: loss %.5f\n", (double)loss);
    if (!good) return fprintf(stderr, "FAILED: bytes, balance, numbers or bits differ\n"), 1;
    if (!rank) printf("ok: whole attention to 1e-5; %lld pairs on each rank; one hash\n", (long long)pairs);
    return 0;
}
