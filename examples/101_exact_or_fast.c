/* 101_exact_or_fast: what does one hash on all processors cost on a GPU, and what do tensor cores change?
 *
 * What you learn
 *     - Exact numerics run on a GPU's lanes in the CPU's order: an element of a product is one chain of fused
 *       multiply-adds. The weights are the CPU's, bit by bit, in fp32, in bf16, and in fp16 with its loss scale.
 *     - Tensor cores add in an order and with a rounding of their own, which NVIDIA does not describe. Fast numerics
 *       use them, by cuBLASLt: tf32 keeps 10 bits of the fractions of fp32, bf16 keeps 7. The first loss moves by some
 *       millionths, and the hash belongs to one kind of GPU and one library.
 *     - In 16 bits, exact means that nothing but the operands is rounded: bf16 and fp16 have hashes of their own.
 *     - The price is a ratio of rates. Where products take most of a step, tensor cores make it several times as fast,
 *       and then everything else takes most of it.
 *     - V100 and T4 have no bf16. There fp16 with a loss scale is the only way to tensor cores (63_instances.c).
 *
 * Build and run it, in this folder
 *     cc -O2 -DDT_CUDA -I.. 101_exact_or_fast.c -o 101_exact_or_fast -lm -lpthread -ldl
 *     ./101_exact_or_fast                       (on a GPU; where none is found, on the CPU, and it says why)
 *     Layers, width and tokens of your own, for times that mean something on a GPU: ./101_exact_or_fast 12 768 1024
 *
 * What it prints (~: measured; ppm: of the loss of the first step, as far as it is from exact)
 *     numerics  precision  ms a step     loss  loss scale     ppm  sha256
 *     exact     fp32           ~11.9   5.0318           1     0.0  aac83d60cb305380
 *     fast      fp32           ~11.8  ~5.0318           1    ~0.0
 *     exact     bf16           ~21.2   5.0319           1     0.0  6bac8d23ff28e476
 *     fast      bf16           ~21.1  ~5.0319           1    ~0.0
 *     exact     fp16           ~22.0   5.0318       65536     0.0  0e77da71a1604fd7
 *     H200, GPT-2 124M, 8 x 1024 tokens, exact: 261 ms a step, 187 of them products at 37.5 TFLOP/s
 *       products at 300 TFLOP/s (tf32): 97 ms, 2.7 times as fast; 76 % of that is not products
 *       products at 650 TFLOP/s (bf16): 85 ms, 3.1 times as fast; 87 % of that is not products
 *     TFLOP/s by data sheets, dense        GB  lanes fp32  tensor tf32   fp16   bf16  tensor / lanes
 *       p3     V100                        16        15.7            -    125      -             8.0
 *       g4dn   T4                          16         8.1            -     65      -             8.0
 *       p4d    A100                        40        19.5          156    312    312            16.0
 *       p4de   A100                        80        19.5          156    312    312            16.0
 *       p5     H100                        80        67.0          494    989    989            14.8
 *       p5en   H200                       141        67.0          494    989    989            14.8
 *     ok: fast is within ~0.0 ppm of exact; the 3 hashes of exact are those of any processor
 *
 * Predict first: which of the five lines are the same on a GPU and on a CPU? Do two kinds of GPUs agree on the others?
 * Exercise: how far from exact is too little to matter? Train exact fp32 with another seed, too: compare the distance
 *     of its loss in ppm with that of bf16 and fp16.
 *
 * Read on: 102_copy_and_compute.c, the next program; 88_underflow.c for the loss scale, 87_other_bits.c for orders. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "prose.h"
#include "tools/cost.h"

static const struct {
    const char *numerics, *name, *hash; /* of the weights that exact numerics make, everywhere */
    int fast, precision;
} rows[] = {{"exact", "fp32", "aac83d60cb305380", DT_EXACT, DT_PRECISION_FP32},
            {"fast", "fp32", NULL, DT_FAST, DT_PRECISION_FP32},
            {"exact", "bf16", "6bac8d23ff28e476", DT_EXACT, DT_PRECISION_BF16},
            {"fast", "bf16", NULL, DT_FAST, DT_PRECISION_BF16},
            {"exact", "fp16", "0e77da71a1604fd7", DT_EXACT, DT_PRECISION_FP16}};

typedef struct run {
    double first, last, seconds; /* losses; the fastest step */
    float scale;
    char hash[17];
} run;

/* Trains as a row says, on a device ("cuda", "cpu"). size: layers, width, tokens. */
static dt_result train(const char *text, const char *device, int row, const int64_t size[3], run *x)
{
    dt_recipe recipe = dt_recipe_default();
    dt_layout l = dt_layout_default();
    dt_step_info info = dt_step_info_zero();
    dt_trainer *t = NULL;
    dt_result r;
    recipe.model = dt_model_gpt2("nano"), recipe.data = text, recipe.batch = 8, recipe.steps = 10;
    recipe.model.layers = size[0], recipe.model.width = size[1], recipe.sequence = size[2];
    recipe.validation = 0, recipe.precision = rows[row].precision, recipe.numerics = rows[row].fast;
    l.device = device, l.output.quiet = 1, l.output.sample_length = 0;
    r = dt_trainer_open(&t, &recipe, &l);
    for (x->seconds = 1e9; !r && info.step < recipe.steps;) {
        r = dt_trainer_step(t, &info);
        if (info.step == 1) x->first = (double)info.loss;
        x->seconds = fmin(x->seconds, info.seconds);
    }
    x->last = (double)info.loss, x->scale = info.loss_scale;
    if (!r) snprintf(x->hash, sizeof x->hash, "%s", dt_trainer_hash(t));
    dt_trainer_close(&t);
    return r;
}

/* A step of 261 ms on an H200, 187 of them in products at 35 to 40 TFLOP/s, with products at another rate. */
static void with_tensor_cores(const char *name, double rate)
{
    double other = 261 - 187, step = other + 187 * 37.5 / rate;
    printf("  products at %.0f TFLOP/s (%s): %.0f ms, %.1f times as fast; %.0f %% of that is not products\n", rate,
           name, step, 261 / step, 100 * other / step);
}

/* What exactness can cost at most: the quotient of the rates of tensor cores and lanes. The catalogue has the rates of
 * tensor cores in 16 bits; half of that in tf32, from A100 on; the lanes' are data sheets'. */
static void data_sheets(void)
{
    static const struct {
        const char *instance;
        double lanes;
    } of[] = {{"p3", 15.7}, {"g4dn", 8.1}, {"p4d", 19.5}, {"p4de", 19.5}, {"p5", 67}, {"p5en", 67}};
    static cost_catalogue c;
    if (cost_open(&c, NULL)) return;
    printf("TFLOP/s by data sheets, dense        GB  lanes fp32  tensor tf32   fp16   bf16  tensor / lanes\n");
    for (int i = 0; i < 6; i++) {
        const cost_type *t = cost_find(&c, of[i].instance, strlen(of[i].instance));
        printf("  %-6s %-22s %6.0f %11.1f", of[i].instance, t->accel, t->gb, of[i].lanes);
        if (t->bf16) printf(" %12.0f %6.0f %6.0f", floor(t->teraflops / 2), t->teraflops, t->teraflops);
        else printf(" %12s %6.0f %6s", "-", t->teraflops, "-");
        printf(" %15.1f\n", t->teraflops / of[i].lanes);
    }
}

int main(int argc, char **argv)
{
    const char *device = "cuda";
    char text[] = "/tmp/dtrain_XXXXXX";
    int64_t size[3] = {2, 64, 64};
    const int own = argc == 4;
    int hashes = 0;
    double most = 0;
    run x[5];
    dt_result r;
    for (int i = 0; i < 3 && own; i++) size[i] = atoi(argv[i + 1]);
    if ((argc > 1 && !own) || size[0] < 1 || size[1] < 4 || size[1] % 4 || size[2] < 2)
        return fprintf(stderr, "101_exact_or_fast: nothing, or layers, width (a multiple of 4) and tokens\n"), 2;
    if (prose_temporary(text, 200000)) return 1;
    memset(x, 0, sizeof x);
    r = train(text, device, 0, size, &x[0]);
    if (r) printf("no GPU, so the CPU computes: %s\n", dt_last_error()), device = "cpu";
    printf("numerics  precision  ms a step     loss  loss scale     ppm  sha256\n");
    for (int i = 0; i < 5; i++) {
        double ppm;
        if (i || r) r = train(text, device, i, size, &x[i]);
        if (r) break;
        ppm = 1e6 * fabs(x[i].first - x[i - rows[i].fast].first) / x[i].first;
        printf("%-9s %-9s %10.1f %8.4f %11.0f %7.1f  %s\n", rows[i].numerics, rows[i].name, 1e3 * x[i].seconds,
               x[i].last, (double)x[i].scale, ppm, rows[i].fast ? "" : x[i].hash);
        hashes += !rows[i].fast && !strcmp(x[i].hash, rows[i].hash), most = fmax(most, ppm);
    }
    remove(text);
    if (r) return fprintf(stderr, "101_exact_or_fast: %s\n", dt_last_error()), dt_exit_code(r);
    printf("H200, GPT-2 124M, 8 x 1024 tokens, exact: 261 ms a step, 187 of them products at 37.5 TFLOP/s\n");
    with_tensor_cores("tf32", 300), with_tensor_cores("bf16", 650);
    data_sheets();
    if (most >= 1000 || (!own && hashes < 3)) return fprintf(stderr, "FAILED: another hash, or a loss\n"), 1;
    return printf("ok: fast is within %.1f ppm of exact; %s\n", most,
                  own ? "hashes of other sizes: not checked" : "the 3 hashes of exact are those of any processor"), 0;
}
