/* 89_sixteen_bits: what becomes half as large in 16 bits, and what does not?
 *
 * What you learn
 *     - "Mixed precision halves the memory" is not true: weights, gradients and Adam's moments stay in fp32, 16 bytes
 *       of each weight. Activations shrink, and not to a half: the residual stream and norms stay in fp32.
 *     - What ranks send is a choice of its own. Here gradients are sums in fp32 and travel so, since the bits must not
 *       depend on the number of ranks. A library that reduces gradients in 16 bits sends half, and adds in 16 bits.
 *     - --wire bf16 adds in fp32, so each rank needs the rounded gradients of all: 2 P (N-1) bytes instead of the ring's
 *       8 P (N-1)/N. That is N/4 of it: half on 2 ranks, all on 4, twice as much on 8.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 89_sixteen_bits.c -o 89_sixteen_bits -lm -lpthread
 *     ./89_sixteen_bits --ranks 2               (the one to read)
 *     ./89_sixteen_bits --ranks 4
 *
 * What it prints
 *     bytes of one of 2 ranks
 *       precision           weights  gradients  optimizer  activations  sent per step   loss
 *       fp32                 548864    1843200    1097728       743744         614440  3.836
 *       bf16                 548864    1843200    1097728       596288         614440  3.836
 *       bf16, --wire bf16    548864    1843200    1097728       596288         307240  3.836
 *     gradients by --wire bf16 are 0.50 of what they are in fp32; without it they are the same
 *     ok: activations shrink, weights and moments do not, and what is sent is a choice of its own
 *
 * Predict first: how many bytes does --wire bf16 send on 4 ranks, and how many would a ring in 16 bits send?
 * Exercise: add a row with --wire int8. Which column changes, and by how much?
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
    int precision, wire;
} rows[3] = {{"fp32", DT_PRECISION_FP32, DT_WIRE_FP32},
             {"bf16", DT_PRECISION_BF16, DT_WIRE_FP32},
             {"bf16, --wire bf16", DT_PRECISION_BF16, DT_WIRE_BF16}};

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
    recipe.validation = 0, recipe.precision = rows[row].precision, recipe.wire = rows[row].wire;
    l.output.quiet = 1, l.output.sample_length = 0, l.threads = 1;
    r = dt_trainer_open(&t, &recipe, &l);
    out->info = dt_step_info_zero();
    if (!r) out->m = dt_trainer_memory(t);
    if (!r) r = dt_trainer_run(t, &out->info);
    out->sent = out->info.sent_bytes;
    dt_trainer_close(&t);
    return r;
}

int main(int argc, char **argv)
{
    const char *text = "89_sixteen_bits.txt";
    result x[3];
    dt_comm *c = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    int rank = r ? 0 : dt_comm_rank(c), n = r ? 1 : dt_comm_size(c), fine;
    if (!r && !rank && prose_generate(text, 40000, 1)) return 1;
    if (!r) r = dt_barrier(c);
    for (int i = 0; i < 3 && !r; i++) r = train(text, i, &x[i]);
    if (!r) r = dt_barrier(c);
    dt_comm_close(&c);
    if (!rank) remove(text);
    if (r) return fprintf(stderr, "89_sixteen_bits: %s\n", dt_last_error()), dt_exit_code(r);
    if (rank) return 0;
    printf("bytes of one of %d ranks\n", n);
    printf("  precision           weights  gradients  optimizer  activations  sent per step   loss\n");
    for (int i = 0; i < 3; i++)
        printf("  %-18s %8lld %10lld %10lld %12lld %14lld  %.3f\n", rows[i].name, (long long)x[i].m.weights,
               (long long)x[i].m.gradients, (long long)x[i].m.optimizer, (long long)x[i].m.activations,
               (long long)x[i].sent, (double)x[i].info.loss);
    fine = x[1].m.weights == x[0].m.weights && x[1].m.optimizer == x[0].m.optimizer &&
           x[1].m.activations < x[0].m.activations && 2 * x[1].m.activations > x[0].m.activations &&
           fabsf(x[2].info.loss - x[0].info.loss) < 0.02f;
    if (n > 1) {
        double half = (double)x[2].info.wire_bytes / (double)x[2].info.wire_plain;
        printf("gradients by --wire bf16 are %.2f of what they are in fp32; without it they are the same\n", half);
        fine = fine && fabs(half - n / 4.0) < 0.01 && x[0].sent == x[1].sent;
    }
    if (!fine) return printf("NOT as described\n"), 1;
    printf("ok: activations shrink, weights and moments do not, and what is sent is a choice of its own\n");
    return 0;
}
