/* 89_sixteen_bits: what becomes half as large in 16 bits, and what does not?
 *
 * What you learn
 *     - "Mixed precision halves the memory" is wrong: weights, gradients and Adam's moments stay in fp32, 16 bytes per
 *       weight. Activations shrink, but not to half, because the residual stream and norms stay in fp32.
 *     - What ranks send is a separate choice. Here gradients are added and sent in fp32, so that the bits do not depend
 *       on the number of ranks. A library that reduces gradients in 16 bits sends half, and also adds in 16 bits.
 *     - To send 16 bits and add in fp32, each rank needs the rounded numbers of all others: 2 P (N-1) bytes instead of
 *       8 P (N-1)/N for a sum in fp32. That is N/4 of it: half on 2 ranks, equal on 4, twice as much on 8.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 89_sixteen_bits.c -o 89_sixteen_bits -lm -lpthread
 *     ./89_sixteen_bits --ranks 4
 *     ./89_sixteen_bits --ranks 2               (the one to read)
 *
 * What it prints
 *     bytes of one of 2 ranks
 *       precision    weights  gradients  optimizer  activations  sent per step   loss
 *       fp32          548864    1843200    1097728       743744         614440  3.836
 *       bf16          548864    1843200    1097728       596288         614440  3.836
 *     a sum of bf16 in fp32 sends 0.50 of what a sum of fp32 sends; it is off by up to 0.1 %
 *     ok: bf16 takes 0.80 of fp32's activations and the same bytes of weights and moments, sends as much, loss 3.836
 *
 * Predict first: what is the share on 4 ranks, and what would it be for a ring that adds in 16 bits?
 * Exercise: send a byte per number and one scale for 256 of them (36_compression.c). Which share is sent then?
 *
 * Read on: 90_launchers.c for clusters, 36_compression.c for sending a 50th. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int precision;
} rows[2] = {{"fp32", DT_PRECISION_FP32}, {"bf16", DT_PRECISION_BF16}};

typedef struct result {
    dt_memory m;
    dt_step_info info;
    int64_t sent; /* in the last step */
} result;

static dt_result train(const char *text, int row, result *out)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_trainer *t = NULL;
    dt_result r;
    recipe.model = dt_model_gpt2("nano"), recipe.data = text, recipe.sequence = 64, recipe.batch = 8, recipe.steps = 30;
    recipe.validation = 0, recipe.precision = rows[row].precision;
    l.output.quiet = 1, l.output.sample_length = 0, l.threads = 1;
    r = dt_trainer_open(&t, &recipe, &l);
    out->info = dt_step_info_zero();
    if (!r) out->m = dt_trainer_memory(t);
    if (!r) r = dt_trainer_run(t, &out->info);
    out->sent = out->info.sent_bytes;
    dt_trainer_close(&t);
    return r;
}

enum { P = 4096, MOST = 16 }; /* numbers to add; ranks */
static uint32_t bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, 4);
    return b;
}

/* Adds P numbers of each rank, once in fp32, once rounded to bf16, gathered and added in fp32. *share: bytes that the
 * second way sends per byte of the first; *error: how far its sums are off, in shares of the largest addends. */
static dt_result add(dt_comm *c, double *share, double *error)
{
    static float x[P], sum[P], all[MOST * P / 2];
    static uint16_t half[P];
    int n = dt_comm_size(c), rank = dt_comm_rank(c);
    int64_t sent[3] = {0, 0, 0};
    dt_result r = DT_OK;
    *error = 0;
    for (int i = 0; i < P; i++) {
        x[i] = sum[i] = (float)((i * 7919 + rank * 104729) % 20011 - 10005) / 10005.0f; /* -1 to 1 */
        half[i] = (uint16_t)((bits(x[i]) + 0x7fff + (bits(x[i]) >> 16 & 1)) >> 16); /* nearest, of two the even */
    }
    for (int way = 0; way < 3; way++) { /* before, after the sum in fp32, after the gathering */
        if (way == 1 && !r) r = dt_all_reduce(c, sum, P, DT_SUM);
        if (way == 2 && !r) r = dt_all_gather(c, (const float *)(const void *)half, all, P / 2);
        for (int p = 0; p < n; p++) sent[way] += dt_comm_sent(c, p);
    }
    for (int i = 0; i < P; i++) {
        float total = 0, one;
        for (int p = 0; p < n; p++) {
            uint32_t b = (uint32_t)((const uint16_t *)(const void *)(all + p * P / 2))[i] << 16;
            memcpy(&one, &b, 4), total += one;
        }
        *error = fmax(*error, fabs((double)total - (double)sum[i]) / n);
    }
    *share = (double)(sent[2] - sent[1]) / (double)(sent[1] - sent[0]);
    return r;
}

int main(int argc, char **argv)
{
    const char *text = "89_sixteen_bits.txt";
    result x[2];
    double share = 0, error = 0;
    dt_comm *c = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    int rank = r ? 0 : dt_comm_rank(c), n = r ? 1 : dt_comm_size(c), fine;
    if (!r && !rank && prose_generate(text, 40000, 1)) return 1;
    if (!r) r = dt_barrier(c);
    if (!r && (argc > 1 || n > MOST)) return fprintf(stderr, "89_sixteen_bits: 1 to %d ranks\n", (int)MOST), 2;
    for (int i = 0; i < 2 && !r; i++) r = train(text, i, &x[i]);
    if (!r && n > 1) r = add(c, &share, &error);
    if (!r) r = dt_barrier(c);
    dt_comm_close(&c);
    if (!rank) remove(text);
    if (r) return fprintf(stderr, "89_sixteen_bits: %s\n", dt_last_error()), dt_exit_code(r);
    if (rank) return 0;
    printf("bytes of one of %d ranks\n", n);
    printf("  precision    weights  gradients  optimizer  activations  sent per step   loss\n");
    for (int i = 0; i < 2; i++)
        printf("  %-11s %8lld %10lld %10lld %12lld %14lld  %.3f\n", rows[i].name, (long long)x[i].m.weights,
               (long long)x[i].m.gradients, (long long)x[i].m.optimizer, (long long)x[i].m.activations,
               (long long)x[i].sent, (double)x[i].info.loss);
    fine = x[1].m.weights == x[0].m.weights && x[1].m.optimizer == x[0].m.optimizer &&
           x[1].m.activations < x[0].m.activations && 2 * x[1].m.activations > x[0].m.activations &&
           fabsf(x[1].info.loss - x[0].info.loss) < 0.02f;
    if (n > 1) {
        printf("a sum of bf16 in fp32 sends %.2f of what a sum of fp32 sends; it is off by up to %.1f %%\n", share,
               100 * error);
        fine = fine && fabs(share - n / 4.0) < 0.01 && x[0].sent == x[1].sent && error < 1.0 / 256;
    }
    if (!fine) return printf("NOT as described\n"), 1;
    printf("ok: bf16 takes %.2f of fp32's activations and the same bytes of weights and moments, sends as much, loss "
           "%.3f\n", (double)x[1].m.activations / (double)x[0].m.activations, (double)x[1].info.loss);
    return 0;
}
