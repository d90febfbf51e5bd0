/* 25_balanced_buffers: if ranks are servers that add up gradients, who adds what: a tensor each, or equal parts?
 *
 * What you learn
 *     - With one tensor per server, sizes differ, and all ranks wait for the server with the most bytes. The token
 *       table alone is 31 % of a GPT-2: with 8 servers that is 2.5 fair shares.
 *     - Balanced fusion buffers (SageMaker's data parallel library): gradients of all tensors fill a buffer up to a
 *       threshold. The buffer is cut into n equal parts, and part i goes to server i.
 *     - Every rank then sends as many bytes as in a ring, 2(n-1)/n S, in 2 rounds instead of 2(n-1).
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 25_balanced_buffers.c -o 25_balanced_buffers -lm -lpthread
 *     ./25_balanced_buffers --ranks 4
 *     ./25_balanced_buffers --ranks 2           (one tensor per server is even on two ranks)
 *
 * What it prints (4 ranks)
 *     one tensor per server, MB sent
 *       rank  0    6.266  ######################################
 *       rank  3    2.645  ################
 *     balanced buffers of 256 kB, MB sent; 2(n-1)/n S is 3.939
 *       rank  3    3.939  ########################
 *     ok: the busiest rank sends 6.266 MB with a tensor per server, 3.939 MB with equal parts
 *
 * Predict first: with 3 ranks and one tensor per server, which rank sends most? (`tensors` has their order.)
 * Exercise: assign tensors to the server with the fewest bytes so far, largest first. What does the busiest of 4 send?
 *
 * Read on: 29_ring_or_servers.c for which is faster, 38_parameter_server.c for servers that do not wait. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 160, THRESHOLD = 1 << 16 }; /* tensors; floats of a fusion buffer */
static double busiest[2]; /* MB that the busiest rank sends: a tensor each, equal parts */

/* The tensors of a GPT-2 in their order: how many, and the elements of each. */
static int tensors(int64_t w, int layers, int64_t vocabulary, int64_t positions, int64_t *counts, int64_t *sum)
{
    const int64_t block[12] = {w, w, 3 * w * w, 3 * w, w * w, w, w, w, 4 * w * w, 4 * w, 4 * w * w, w};
    int n = 0;
    counts[n++] = vocabulary * w, counts[n++] = positions * w;
    for (int i = 0; i < 12 * layers; i++) counts[n++] = block[i % 12];
    counts[n++] = w, counts[n++] = w;
    *sum = 0;
    for (int i = 0; i < n; i++) *sum += counts[i];
    return n;
}

/* The server sums data[0, count) of all ranks and sends the sum back. */
static dt_result serve(dt_comm *c, int server, float *data, float *inbox, int64_t count)
{
    int n = dt_comm_size(c), me = dt_comm_rank(c);
    dt_result r = me == server ? DT_OK : dt_send(c, data, count, server);
    if (me != server) return r ? r : dt_recv(c, data, count, server);
    for (int p = 0; p < n && !r; p++) {
        if (p != me) r = dt_recv(c, inbox, count, p);
        for (int64_t i = 0; i < count && p != me; i++) data[i] += inbox[i];
    }
    for (int p = 0; p < n && !r; p++)
        if (p != me) r = dt_send(c, data, count, p);
    return r;
}

static dt_result a_tensor_each(dt_comm *c, float *data, float *inbox, const int64_t *counts, int count)
{
    dt_result r = DT_OK;
    for (int t = 0; t < count && !r; data += counts[t++]) r = serve(c, t % dt_comm_size(c), data, inbox, counts[t]);
    return r;
}

/* The tensors lie one after the other, so a fusion buffer is a range of them; otherwise it would be a copy. The parts
 * are served in turn here. With non-blocking messages all parts are under way together, in 2 rounds. */
static dt_result balanced(dt_comm *c, float *data, float *inbox, int64_t sum)
{
    int n = dt_comm_size(c);
    dt_result r = DT_OK;
    for (int64_t at = 0, size; at < sum; at += size) {
        size = sum - at < THRESHOLD ? sum - at : THRESHOLD;
        for (int i = 0; i < n && !r; i++)
            r = serve(c, i, data + at + size * i / n, inbox, size * (i + 1) / n - size * i / n);
    }
    return r;
}

static void bar(const char *who, int i, double value, double part)
{
    static const char marks[] = "############################################################";
    printf("  %s %2d %8.3f  %.*s\n", who, i, value, (int)lround(40 * fmin(part, 1.5)), marks);
}

/* Both ways on these ranks. Bytes are counted, and must be those of the formulas. */
static dt_result live(dt_comm *c, int *good)
{
    int n = dt_comm_size(c), me = dt_comm_rank(c);
    int64_t counts[MOST], sum, own = 0;
    int count = tensors(96, 4, 2048, 128, counts, &sum);
    float *data = (float *)malloc((size_t)sum * 2 * sizeof *data), all[64];
    dt_result r = data ? DT_OK : DT_E_MEMORY;
    for (int t = me; t < count; t += n) own += counts[t];
    for (int way = 0; way < 2 && !r; way++) {
        double formula = 4 * (way ? 2.0 * (n - 1) / n * (double)sum : (double)(sum + (n - 2) * own)), sent = 0;
        float mine;
        for (int64_t i = 0; i < sum; i++) data[i] = (float)(i % 97 + me);
        for (int q = 0; q < n; q++) sent -= (double)dt_comm_sent(c, q);
        r = way ? balanced(c, data, data + sum, sum) : a_tensor_each(c, data, data + sum, counts, count);
        for (int q = 0; q < n; q++) sent += (double)dt_comm_sent(c, q);
        for (int64_t i = 0; i < sum; i++) *good = *good && data[i] == (float)(n * (i % 97) + n * (n - 1) / 2);
        *good = *good && fabs(sent - formula) <= (way ? 1e-3 * formula : 0); /* parts are whole elements */
        mine = (float)(1e-6 * sent);
        if (!r) r = dt_all_gather(c, &mine, all, 1);
        if (me || r) continue;
        printf(way ? "balanced buffers of 256 kB, MB sent; 2(n-1)/n S is %.3f\n" : "one tensor per server, MB sent\n",
               1e-6 * formula);
        for (int q = 0; q < n; busiest[way] = fmax(busiest[way], (double)all[q++]))
            bar("rank", q, (double)all[q], (double)all[q] / (1e-5 * (double)sum));
    }
    free(data);
    return r;
}

/* GPT-2 of 124 million weights, one tensor per server, 8 servers: bytes in fair shares. */
static int shares(void)
{
    int64_t counts[MOST], sum, part[8] = {0};
    int count = tensors(768, 12, 50257, 1024, counts, &sum);
    for (int t = 0; t < count; t++) part[t % 8] += counts[t];
    printf("GPT-2, %lld weights in %d tensors, one tensor per server: fair shares\n", (long long)sum, count);
    for (int q = 0; q < 8; q++) bar("server", q, 8 * (double)part[q] / (double)sum, (double)part[q] / (double)sum);
    return sum == 124439808 && count == 148 && part[0] >= counts[0];
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    int rank, good = 1;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("25_balanced_buffers");
    rank = dt_comm_rank(c);
    if (argc > 1 || dt_comm_size(c) < 2 || dt_comm_size(c) > 64)
        return rank ? 2 : (fprintf(stderr, "25_balanced_buffers: use --ranks 2 to 64\n"), 2);
    r = live(c, &good);
    dt_comm_close(&c);
    if (r) return dt_fail("25_balanced_buffers");
    if ((!rank && !shares()) || !good) return fprintf(stderr, "FAILED: a sum or a number of bytes is wrong\n"), 1;
    if (!rank) printf("ok: the busiest rank sends %.3f MB with a tensor per server, %.3f MB with equal parts\n",
                      busiest[0], busiest[1]);
    return 0;
}
