/* 29_ring_or_servers: when are balanced servers faster than a ring, and by how much?
 *
 * What you learn
 *     - Both send 2(n-1)/n S bytes. A ring needs 2(n-1) rounds; servers whose n-1 messages are under way together need
 *       2: ring / servers = (2(n-1) alpha + 2(n-1)/n S / B) / (2 alpha + 2(n-1)/n S / B).
 *     - This is 1 for 2 ranks, near 1 for large S, and at most n-1, for small S and many ranks.
 *     - So "20 to 40 % faster" is true in one corner of the table. The ratio is largest for small messages, which cost
 *       least: the seconds saved are 2(n-2) alpha for any size, nothing on 2 ranks and 2.5 ms on 64. Servers pay where
 *       a step is short or has many such exchanges; on few machines use plain data parallel.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 29_ring_or_servers.c -o 29_ring_or_servers -lm -lpthread
 *     ./29_ring_or_servers
 *     ./29_ring_or_servers --alpha-us 5
 *
 * What it prints
 *     ring / balanced servers by the model, alpha 20 us, 50 GB/s
 *            bytes        2        4        8       16       32       64
 *            64000    1.000    2.908    6.682   14.208   29.249   59.325
 *          2560000    1.000    1.685    2.852    5.118    9.621   18.614
 *        102400000    1.000    1.026    1.066    1.144    1.299    1.609
 *       4096000000    1.000    1.001    1.002    1.004    1.008    1.015
 *        saved, ms    0.000    0.080    0.240    0.560    1.200    2.480
 *     ok: 24 ratios are 1 on 2 ranks and below n-1 on n; on 64 ranks servers save 2.480 ms for any size
 *
 * Predict first: with a latency of 5 us instead of 20, which rows get closer to 1?
 * Exercise: print the time of halving and doubling (2 log2 n rounds) over that of servers, too. Where do servers lose?
 *
 * Read on: 30_drop_in.c for a loop that uses such sums, 25_balanced_buffers.c for the servers by hand. */
#include "option.h"
#include <math.h>

static double alpha_us = 20; /* of a message */

static double seconds(double rounds, double n, double bytes)
{
    return rounds * 1e-6 * alpha_us + 2 * (n - 1) / n * bytes / 50e9;
}
static double ratio(double n, double bytes) { return seconds(2 * (n - 1), n, bytes) / seconds(2, n, bytes); }
static double saved(double n, double bytes) { return seconds(2 * (n - 1), n, bytes) - seconds(2, n, bytes); }

int main(int argc, char **argv)
{
    option list[] = {{"--alpha-us", 0.1, 100, &alpha_us}};
    int good = 1, ratios = 0;
    if (!options_read(argc, argv, list, 1)) return 2;
    printf("ring / balanced servers by the model, alpha %g us, 50 GB/s\n%12s", alpha_us, "bytes");
    for (int n = 2; n <= 64; n *= 2) printf("%9d", n);
    for (double bytes = 64e3; bytes < 1e10; bytes *= 40) {
        printf("\n%12.0f", bytes);
        for (int n = 2; n <= 64; n *= 2) {
            double now = ratio(n, bytes);
            printf("%9.3f", now);
            good = good && ++ratios && (n == 2 ? fabs(now - 1) < 1e-9 : now > ratio(n / 2, bytes) && now < n - 1);
        }
    }
    printf("\n%12s", "saved, ms");
    for (int n = 2; n <= 64; n *= 2) {
        printf("%9.3f", 1e3 * saved(n, 64e3));
        good = good && fabs(saved(n, 64e3) - saved(n, 4096e6)) < 1e-9;
    }
    printf("\n");
    good = good && fabs(ratio(64, 1e17) - 1) < 1e-4 && fabs(ratio(64, 1e-3) - 63) < 1e-3;
    if (!good) return fprintf(stderr, "FAILED: a ratio or the seconds saved are not what the model says\n"), 1;
    return printf("ok: %d ratios are 1 on 2 ranks and below n-1 on n; on 64 ranks servers save %.3f ms for any size\n",
                  ratios, 1e3 * saved(64, 64e3)), 0;
}
