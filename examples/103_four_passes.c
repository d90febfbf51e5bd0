/* 103_four_passes: fusion, layout, precision, order: what does each pass of a compiler save, and do the gains multiply?
 *
 * What you learn
 *     - Fusion runs a chain of operations element by element: what lies between them never goes through memory.
 *     - Layout stores an array in the order in which it is read. Memory moves lines of 64 bytes; whoever reads 4 bytes
 *       of each pays for 64.
 *     - Precision stores 2 bytes per number instead of 4. It is the only one of the four that changes bits, so dtrain.h
 *       has it in the recipe, not among the compiler's passes.
 *     - Order computes a value shortly before it is used, so that less is kept at a time. It moves no fewer bytes.
 *     - Gains multiply where passes save different bytes, as fusion and precision do. Else they do not.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 103_four_passes.c -o 103_four_passes -lm
 *     ./103_four_passes
 *     ./103_four_passes --cache-kb 1024          (16 to 4096; else 32)
 *
 * What it prints
 *     with a cache of 32 kB        before  after   gain  bits
 *     fusion     bytes moved         40.0   12.0   3.33  the same
 *     layout     bytes moved         64.0    4.0  16.00  the same
 *     precision  bytes moved         12.0    6.0   2.00  within 0.0080
 *     order      bytes kept           8.0    4.0   2.00  the same
 *     fusion and precision           40.0    6.0   6.67  3.33 x 2.00
 *     ok: bytes per element; gains 3.33, 16.00, 2.00 and 2.00; three passes keep the bits, precision does not
 *
 * Predict first: with a cache of 1024 kB, which holds all of the arrays, which of the four gains are left?
 * Exercise: fuse each sum of `branches` with the product that it adds up. What is left for the order to save?
 *
 * Read on: 100_roofline.c for when moving bytes takes the time, 110_fine_tune.c, the next chapter. */
#include "cache.h"
#include "option.h"
#include <math.h>

enum { ROWS = 64, COLUMNS = N / ROWS };

/* y = (x b / 2)^2 + b */
static double chain(array *x, array *b, array *y, int fused)
{
    array t = {0};
    begin();
    if (!fused) t = array_new(4);
    for (int i = 0; i < N && fused; i++) {
        float p = get(x, i) * get(b, i) * 0.5f;
        put(y, i, p * p + get(b, i));
    }
    for (int i = 0; i < N && !fused; i++) put(&t, i, get(x, i) * get(b, i));
    for (int i = 0; i < N && !fused; i++) put(&t, i, get(&t, i) * 0.5f);
    for (int i = 0; i < N && !fused; i++) put(&t, i, get(&t, i) * get(&t, i));
    for (int i = 0; i < N && !fused; i++) put(y, i, get(&t, i) + get(b, i));
    if (!fused) array_free(&t);
    return end();
}

/* The sum of each column of (ROWS,COLUMNS), whose element (r,c) is at r by_row + c by_column. */
static double columns(const array *m, int by_row, int by_column, float *sum)
{
    begin();
    for (int c = 0; c < COLUMNS; c++)
        for (int r = 0; r < ROWS; r++) sum[c] += get(m, r * by_row + c * by_column);
    return end();
}

static void product(array *to, const array *x, const array *b)
{
    *to = array_new(4);
    for (int i = 0; i < N; i++) put(to, i, get(x, i) * get(b, i));
}
static float total(array *of)
{
    float sum = 0;
    for (int i = 0; i < N; i++) sum += get(of, i);
    array_free(of);
    return sum;
}

/* The sums of x x and x b; the bytes per element that are kept. early: both products come first. */
static double branches(const array *x, const array *b, int early, float sum[2])
{
    array square, other;
    begin();
    product(&square, x, x);
    if (early) product(&other, x, b);
    sum[0] = total(&square);
    if (!early) product(&other, x, b);
    sum[1] = total(&other);
    return (double)most / N;
}

static double line(const char *name, double before, double after, const char *bits)
{
    printf("%-25s %8.1f %6.1f %6.2f  %s\n", name, before, after, before / after, bits);
    return before / after;
}

int main(int argc, char **argv)
{
    static float by_columns[COLUMNS], stored[COLUMNS];
    double kb = 32, apart, fused, half, before, after, gain[5], worst = 0;
    option list[] = {{"--cache-kb", 16, 4096, &kb}};
    array x, b, y, z, m, x16, b16, y16;
    float sums[2][2];
    char text[40];
    int same;
    if (!options_read(argc, argv, list, 1)) return 2;
    ways = (int)kb / 4;
    x = array_new(4), b = array_new(4), y = array_new(4), z = array_new(4), m = array_new(4);
    x16 = array_new(2), b16 = array_new(2), y16 = array_new(2);
    for (int i = 0; i < N; i++) {
        put(&x, i, (float)(i % 1000) / 1000 + 0.5f), put(&b, i, (float)(i % 7) + 1);
        put(&x16, i, x.x[i]), put(&b16, i, b.x[i]);
    }
    for (int r = 0; r < ROWS; r++) for (int c = 0; c < COLUMNS; c++) put(&m, c * ROWS + r, x.x[r * COLUMNS + c]);
    printf("with a cache of %d kB        before  after   gain  bits\n", (int)kb);
    apart = chain(&x, &b, &y, 0), fused = chain(&x, &b, &z, 1), same = !memcmp(y.x, z.x, N * sizeof(float));
    gain[0] = line("fusion     bytes moved", apart, fused, same ? "the same" : "OTHER");
    before = columns(&x, COLUMNS, 1, by_columns), after = columns(&m, 1, ROWS, stored);
    same &= !memcmp(stored, by_columns, sizeof stored);
    gain[1] = line("layout     bytes moved", before, after, same ? "the same" : "OTHER");
    half = chain(&x16, &b16, &y16, 1);
    for (int i = 0; i < N; i++) worst = fmax(worst, fabs((double)(y16.x[i] - y.x[i]) / (double)y.x[i]));
    snprintf(text, sizeof text, "within %.4f", worst);
    gain[2] = line("precision  bytes moved", fused, half, text);
    before = branches(&x, &b, 1, sums[0]), after = branches(&x, &b, 0, sums[1]), same &= !memcmp(sums[0], sums[1], 8);
    gain[3] = line("order      bytes kept", before, after, same ? "the same" : "OTHER");
    snprintf(text, sizeof text, "%.2f x %.2f", gain[0], gain[2]);
    gain[4] = line("fusion and precision", apart, half, text);
    if (!same || worst == 0 || worst > 0.02 || fabs(gain[4] - gain[0] * gain[2]) > 1e-9)
        return fprintf(stderr, "FAILED: other bits, or gains that do not multiply\n"), 1;
    printf("ok: bytes per element; gains %.2f, %.2f, %.2f and %.2f; three passes keep the bits, precision does not\n",
           gain[0], gain[1], gain[2], gain[3]);
    return 0;
}
