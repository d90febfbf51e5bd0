/* on_library: your ring on the messages of dtrain.h, between processes that know nothing of the lab.
 *
 * Build and run it, in this folder, with your file in place of stub.c
 *     cc -O2 -I../../.. on_library.c stub.c -o on_library -lm -lpthread
 *     ./on_library --ranks 4
 *
 * It compares the sums with those of dt_all_reduce, and the bytes that rank 0 sends with 2(n-1)/n of the vector. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "lab.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1000003 };

/* A lab_comm is a dt_comm here. */
static dt_comm *comm(const lab_comm *c) { return (dt_comm *)(uintptr_t)c; }

int lab_rank(const lab_comm *c) { return dt_comm_rank(comm(c)); }
int lab_size(const lab_comm *c) { return dt_comm_size(comm(c)); }
void lab_send(lab_comm *c, const float *data, int64_t count, int to)
{
    if (dt_send(comm(c), data, count, to)) exit(dt_fail("lab_send"));
}
void lab_recv(lab_comm *c, float *data, int64_t count, int from)
{
    if (dt_recv(comm(c), data, count, from)) exit(dt_fail("lab_recv"));
}

static int64_t sent(dt_comm *c)
{
    int64_t bytes = 0;
    for (int r = 0; r < dt_comm_size(c); r++) bytes += dt_comm_sent(c, r);
    return bytes;
}

int main(int argc, char **argv)
{
    static float ring[COUNT], tree[COUNT];
    dt_comm *c = NULL;
    double worst = 0;
    int64_t before, n;
    int rank;
    if (dt_comm_open(&c, &argc, &argv)) return dt_fail("on_library");
    rank = dt_comm_rank(c), n = dt_comm_size(c);
    if (argc > 1) return fprintf(stderr, "on_library: the option is --ranks N\n"), 2;
    for (int i = 0; i < COUNT; i++) ring[i] = tree[i] = 1.0f / (float)(rank * 31 + i % 1000 + 1);
    before = sent(c);
    ring_all_reduce((lab_comm *)c, ring, COUNT);
    before = sent(c) - before;
    if (dt_all_reduce(c, tree, COUNT, DT_SUM)) return dt_fail("on_library");
    for (int i = 0; i < COUNT; i++) worst = fmax(worst, fabs((double)ring[i] - (double)tree[i]));
    dt_comm_close(&c);
    if (!rank)
        printf("rank 0 of %d sends %lld bytes, 2(n-1)/n are %lld; the sums differ by at most %.1e\n", (int)n,
               (long long)before, (long long)(2 * (n - 1) * 4 * COUNT / n), worst);
    if (!(worst < 1e-5)) return fprintf(stderr, "FAILED: the sums differ by %.1e\n", worst), 1;
    if (!rank) printf("ok: the ring runs on the library's messages\n");
    return 0;
}
