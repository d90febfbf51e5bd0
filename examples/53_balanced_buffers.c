/* 53_balanced_buffers: servers that sum gradients: a tensor each, or a part of everything; and both against a ring.
 *
 * What you learn
 *     n ranks are servers, too. Give each tensor to one of them, and each carries what it happens to get: the table of
 *     tokens alone is 31 % of a GPT-2, and all wait for its server. No other choice of servers helps much: with 8 of
 *     them that one tensor is 2.5 fair shares, and its server sends 1.6 times what it would in balance.
 *     Balanced fusion buffers (SageMaker's data parallel library has them) forget the tensors: gradients fill a buffer
 *     up to a threshold, the buffer is cut into n equal parts, part i goes to server i. Every rank then sends the bytes
 *     that a ring sends, 2 (n-1)/n S, but in 2 rounds instead of 2 (n-1). By the model, if n-1 messages on their way at
 *     once cost one alpha,
 *         ring / servers = (2 (n-1) alpha + 2 (n-1)/n S / B) / (2 alpha + 2 (n-1)/n S / B)
 *     which is exactly 1 on 2 ranks, near 1 for large S, and n-1 at most, for small S and many ranks. So the gain is
 *     one of large clusters and small messages: "faster than DDP" is right there, and the gap is none on 2 nodes. On a
 *     few machines without EFA, with a small model and a budget, take plain DDP.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 53_balanced_buffers.c -o 53_balanced_buffers -lm -lpthread
 *     ./53_balanced_buffers --ranks 4
 *     ./53_balanced_buffers --ranks 2           (with 2 ranks even a tensor each costs both the same)
 *
 * What you should see
 *     MB that each rank has sent, counted, for a small GPT both ways; the shares of 8 servers of a GPT-2 of 124 million
 *     weights by arithmetic; the ratio to a ring by size and ranks.
 *
 * Read on: 40_parameter_server.c for servers out of step, 38_race.c for these algorithms measured, 46_scaling.c. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 160 };

/* The tensors of a GPT-2, in their order: how many, and the elements of each. */
static int tensors(int64_t width, int layers, int64_t vocabulary, int64_t positions, int64_t *counts, int64_t *sum)
{
    const int64_t w = width, block[12] = {w, w, 3 * w * w, 3 * w, w * w, w, w, w, 4 * w * w, 4 * w, 4 * w * w, w};
    int n = 0;
    counts[n++] = vocabulary * w, counts[n++] = positions * w;
    for (int l = 0; l < layers; l++)
        for (int i = 0; i < 12; i++) counts[n++] = block[i];
    counts[n++] = w, counts[n++] = w;
    *sum = 0;
    for (int i = 0; i < n; i++) *sum += counts[i];
    return n;
}

static void bar(double part)
{
    static const char marks[] = "############################################################";
    printf("%s%.*s\n", part < 0.02 ? "" : "  ", (int)lround(40 * fmin(part, 1.5)), marks);
}

/* Each tensor to its server, its sum back. */
static dt_result a_tensor_each(dt_comm *c, float *data, float *inbox, const int64_t *counts, int count)
{
    int n = dt_comm_size(c), me = dt_comm_rank(c);
    dt_result r = DT_OK;
    for (int t = 0; t < count && !r; data += counts[t++]) {
        int server = t % n;
        if (me != server) r = dt_send(c, data, counts[t], server);
        for (int p = 0; p < n && !r && me == server; p++) {
            if (p == me) continue;
            r = dt_recv(c, inbox, counts[t], p);
            for (int64_t i = 0; i < counts[t]; i++) data[i] += inbox[i];
        }
        if (me != server && !r) r = dt_recv(c, data, counts[t], server);
        for (int p = 0; p < n && !r && me == server; p++)
            if (p != me) r = dt_send(c, data, counts[t], p);
    }
    return r;
}

static dt_result balanced(dt_comm *c, float *data, const int64_t *counts, int count, int64_t *calls)
{
    dt_collective how = dt_collective_of(DT_ALL_REDUCE, NULL, NULL, 0);
    void *list[MOST];
    for (int t = 0; t < count; data += counts[t++]) list[t] = data;
    how.algorithm = DT_SERVERS;
    return dt_collect_list(c, &how, list, counts, count, 1 << 18, calls);
}

/* Both ways on these ranks. Bytes are counted, and must be those of the formulas. */
static dt_result live(dt_comm *c, int *good)
{
    int n = dt_comm_size(c), me = dt_comm_rank(c), count;
    int64_t counts[MOST], sum, own = 0, calls = 0;
    float *data, *inbox;
    dt_result r = DT_OK;
    count = tensors(96, 4, 2048, 128, counts, &sum);
    for (int t = me; t < count; t += n) own += counts[t];
    data = (float *)malloc((size_t)sum * 2 * sizeof *data);
    if (!data) return DT_E_MEMORY;
    inbox = data + sum;
    for (int way = 0; way < 2 && !r; way++) {
        double formula = 4 * (way ? 2.0 * (n - 1) / n * (double)sum : (double)(sum + (n - 2) * own)), sent = 0;
        float all[64], mine;
        for (int64_t i = 0; i < sum; i++) data[i] = (float)(i % 97 + me);
        for (int q = 0; q < n; q++) sent -= (double)dt_comm_sent(c, q);
        r = way ? balanced(c, data, counts, count, &calls) : a_tensor_each(c, data, inbox, counts, count);
        for (int q = 0; q < n; q++) sent += (double)dt_comm_sent(c, q);
        for (int64_t i = 0; i < sum; i++) *good = *good && data[i] == (float)(n * (i % 97) + n * (n - 1) / 2);
        *good = *good && fabs(sent - formula) <= (way ? 1e-3 * formula : 0); /* parts are whole elements */
        mine = (float)(1e-6 * sent);
        if (!r) r = dt_all_gather(c, &mine, all, 1);
        if (me || r) continue;
        printf("%s, MB sent\n", way ? "balanced buffers of 256 kB" : "a tensor each");
        for (int q = 0; q < n; q++)
            printf("  rank %2d %8.3f", q, (double)all[q]), bar((double)all[q] / (1e-5 * (double)sum));
    }
    if (!me)
        printf("%d tensors, %.3f MB; balanced: %lld calls, 2 (n-1)/n S = %.3f MB\n", count, 4e-6 * (double)sum,
               (long long)calls, 8e-6 * (n - 1) / n * (double)sum);
    free(data);
    return r;
}

/* GPT-2 of 124 million weights on 8 servers: shares of the bytes. */
static int shares(void)
{
    int64_t counts[MOST], sum, part[8] = {0}, most = 0, given = 0;
    int count = tensors(768, 12, 50257, 1024, counts, &sum);
    for (int t = 0; t < count; t++) part[t % 8] += counts[t];
    printf("\nGPT-2, %lld weights in %d tensors, a tensor each on 8 servers: bytes in fair shares\n", (long long)sum,
           count);
    for (int q = 0; q < 8; q++) {
        printf("  server %d %6.2f", q, 8 * (double)part[q] / (double)sum), bar((double)part[q] / (double)sum);
        if (part[q] > most) most = part[q];
        given += part[q];
    }
    printf("  server 0 sends %.2f times what balanced ones send; with any choice one sends at least %.2f times that\n",
           (1 + 6 * (double)most / (double)sum) / 1.75, (1 + 6 * (double)counts[0] / (double)sum) / 1.75);
    return sum == 124439808 && count == 148 && given == sum && most >= counts[0];
}

static double ratio(double n, double bytes, double alpha, double rate)
{
    double move = 2 * (n - 1) / n * bytes / rate;
    return (2 * (n - 1) * alpha + move) / (2 * alpha + move);
}

static int against_ring(void)
{
    static const double sizes[4] = {64e3, 1e6, 25e6, 3e9};
    int good = 1;
    printf("\nring / balanced servers by the model, alpha 20 us, 50 GB/s\n%12s", "bytes");
    for (int n = 2; n <= 64; n *= 2) printf("%9d", n);
    for (int s = 0; s < 4; s++) {
        double last = 0;
        printf("\n%12.0f", sizes[s]);
        for (int n = 2; n <= 64; n *= 2) {
            double now = ratio(n, sizes[s], 20e-6, 50e9);
            printf("%9.3f", now);
            good = good && now > last && now < n - 1 + (n == 2) * 1e-9 && (n > 2 || now == 1);
            good = good && (!s || n == 2 || now < ratio(n, sizes[s - 1], 20e-6, 50e9));
            last = now;
        }
    }
    printf("\n\n");
    return good && fabs(ratio(64, 1e15, 20e-6, 50e9) - 1) < 1e-4 && fabs(ratio(64, 1, 20e-6, 50e9) - 63) < 1e-3;
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    int rank, n, good = 1;
    dt_result r = dt_comm_init(&c, &argc, &argv);
    if (r) return dt_fail("53_balanced_buffers");
    rank = dt_comm_rank(c), n = dt_comm_size(c);
    if (argc > 1 || n < 2 || n > 64)
        return rank ? 2 : (fprintf(stderr, "53_balanced_buffers: the option is --ranks N, 2 to 64\n"), 2);
    r = live(c, &good);
    dt_comm_free(&c);
    if (r) return dt_fail("53_balanced_buffers");
    if (!rank) good = shares() && against_ring() && good;
    if (!good) return fprintf(stderr, "FAILED: a sum, a number of bytes or a ratio is not what it should be\n"), 1;
    if (!rank) printf("ok: sums and bytes as by formula; on 2 ranks a ring and balanced servers cost the same\n");
    return 0;
}
