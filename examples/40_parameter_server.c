/* 40_parameter_server: gradients to a server that updates the weights, in step and out of step.
 *
 * What you learn
 *     In step (synchronous): all ranks send their gradients, wait, and get the sum of all. Whether the sum is made by
 *     servers, each for a part, or by a ring, the numbers are those of one rank with the whole batch. Balanced servers
 *     move as many bytes as a ring in two rounds (38_race.c); one server for all is the bottleneck, not the idea.
 *     Out of step (asynchronous): a server takes each gradient when it comes, updates, and sends the weights back.
 *     Nobody waits for the slowest. But a gradient belongs to weights that are some updates old by then (its staleness,
 *     about as many as there are other workers), and which ones, the clock decides: no two runs are alike.
 *     Staleness costs learning rate. On a quadratic loss of curvature h plain descent is stable for rate h < 2; with a
 *     staleness of s only for rate h < 2 sin(pi / (2 (2 s + 1))): 0.62 for s = 2. The rate that is good in step makes
 *     the run out of step explode.
 *     "Asynchronous is faster" counts updates per second, not what they are worth. That is why this library, and
 *     all-reduce as a whole, trains in step.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 40_parameter_server.c -o 40_parameter_server -lm -lpthread
 *     ./40_parameter_server --ranks 4           (rank 0 serves; rank 1 is slow; two more make two updates old)
 *
 * What you should see
 *     In step: both rates reach the floor of the noise, twice with the same bits, each round as slow as rank 1. Out of
 *     step: several times the updates per second, staleness about 2, the floor again with the small rate (the bits
 *     differ), and with the large one a loss that explodes.
 *
 * Read on: 03_ring.c for all-reduce, 31_elastic.c for ranks that are lost rather than slow. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { D = 8, BATCH = 64, GRADIENTS = 600, SLOW_US = 2000 };

/* What a rank shares with the server; ranks are processes, this lies in memory that both see. */
typedef struct mailbox {
    unsigned posted, answered; /* counts of gradients */
    int version;               /* of the weights that the gradient belongs to, then of those sent back */
    int stop;
    float gradient[D], weights[D];
} mailbox;

typedef struct outcome {
    double seconds, staleness;
    int worst, updates;
    float weights[D];
} outcome;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A number of variance 1, decided by its index. */
static float noise(unsigned i)
{
    i = (i ^ (i >> 16)) * 0x7feb352du;
    i = (i ^ (i >> 15)) * 0x846ca68bu;
    return (float)((double)(i ^ (i >> 16)) / 4294967296.0 * 3.4641016 - 1.7320508);
}

/* Half the mean squared error of a batch, and its gradient: y = sum of (d+1) x_d + noise. */
static double loss_of(const float *w, unsigned batch, float *gradient)
{
    double loss = 0;
    memset(gradient, 0, D * sizeof *gradient);
    for (unsigned b = 0; b < BATCH; b++) {
        unsigned at = (batch * BATCH + b) * (D + 1);
        float x[D], error = 0.1f * noise(at + D);
        for (int d = 0; d < D; d++) x[d] = noise(at + (unsigned)d), error += (w[d] - (float)(d + 1)) * x[d];
        for (int d = 0; d < D; d++) gradient[d] += error * x[d] / BATCH;
        loss += (double)error * (double)error / 2 / BATCH;
    }
    return loss;
}

/* Everyone computes, everyone waits. */
static dt_result in_step(dt_comm *c, float rate, outcome *o)
{
    int n = dt_comm_size(c), me = dt_comm_rank(c);
    float g[D];
    dt_collective sum = dt_collective_of(DT_ALL_REDUCE, g, g, D);
    dt_result e = dt_barrier(c);
    double start = now();
    memset(o, 0, sizeof *o);
    sum.algorithm = DT_SERVERS;
    for (int k = 0; k < GRADIENTS / n && !e; k++, o->updates++) {
        (void)loss_of(o->weights, (unsigned)(k * n + me), g);
        if (me == 1) usleep(SLOW_US);
        e = dt_collect(c, &sum);
        for (int d = 0; d < D; d++) o->weights[d] -= rate * g[d] / (float)n;
    }
    o->seconds = now() - start;
    return e;
}

static void work(mailbox *m, int me, unsigned *batch)
{
    for (unsigned count = 1; !__atomic_load_n(&m->stop, __ATOMIC_ACQUIRE); count++) {
        (void)loss_of(m->weights, *batch, m->gradient);
        *batch += 1;
        if (me == 1) usleep(SLOW_US);
        __atomic_store_n(&m->posted, count, __ATOMIC_RELEASE);
        while (__atomic_load_n(&m->answered, __ATOMIC_ACQUIRE) != count && !__atomic_load_n(&m->stop, __ATOMIC_ACQUIRE))
            usleep(20);
    }
}

static void serve(dt_comm *c, mailbox *mine, float rate, outcome *o)
{
    for (int p = 1; o->updates < GRADIENTS; p = p % (dt_comm_size(c) - 1) + 1) {
        mailbox *m = (mailbox *)dt_comm_peer(c, mine, p);
        unsigned count = __atomic_load_n(&m->posted, __ATOMIC_ACQUIRE);
        int age = o->updates - m->version;
        if (count == m->answered) {
            usleep(5);
            continue;
        }
        for (int d = 0; d < D; d++) o->weights[d] -= rate * m->gradient[d];
        o->updates++;
        o->staleness += (double)age / GRADIENTS;
        if (age > o->worst) o->worst = age;
        memcpy(m->weights, o->weights, sizeof m->weights);
        m->version = o->updates;
        __atomic_store_n(&m->answered, count, __ATOMIC_RELEASE);
    }
    for (int p = 1; p < dt_comm_size(c); p++)
        __atomic_store_n(&((mailbox *)dt_comm_peer(c, mine, p))->stop, 1, __ATOMIC_RELEASE);
}

static dt_result out_of_step(dt_comm *c, mailbox *mine, float rate, outcome *o)
{
    unsigned batch = (unsigned)dt_comm_rank(c) * 100000;
    dt_result e = dt_barrier(c);
    double start = now();
    memset(o, 0, sizeof *o);
    memset(mine, 0, sizeof *mine);
    if (!e) e = dt_barrier(c);
    if (!e && dt_comm_rank(c) == 0)
        serve(c, mine, rate, o);
    else if (!e)
        work(mine, dt_comm_rank(c), &batch);
    if (!e) e = dt_barrier(c);
    o->seconds = now() - start;
    return e;
}

int main(int argc, char **argv)
{
    static const float rates[2] = {0.1f, 1.0f};
    dt_comm *c = NULL;
    void *mine = NULL;
    outcome o[2];
    int wrong = 0;
    dt_result e = dt_comm_init(&c, &argc, &argv);
    if (!e) e = dt_comm_alloc(c, sizeof(mailbox), &mine);
    if (!e && dt_comm_rank(c) == 0)
        printf("%-12s %5s %9s %10s %12s %7s %12s  %s\n", "", "rate", "updates", "updates/s", "staleness", "worst",
               "loss", "again");
    for (int way = 0; way < 2 && !e; way++)
        for (int k = 0; k < 2 && !e; k++) {
            float g[D];
            double loss;
            int same;
            if (way && (dt_comm_size(c) < 2 || dt_comm_nodes(c) > 1)) continue; /* the mailboxes are in shared memory */
            for (int again = 0; again < 2 && !e; again++)
                e = way ? out_of_step(c, (mailbox *)mine, rates[k], &o[again]) : in_step(c, rates[k], &o[again]);
            if (e || dt_comm_rank(c) != 0) continue;
            loss = loss_of(o[0].weights, 4000000, g);
            same = !memcmp(o[0].weights, o[1].weights, sizeof o[0].weights);
            printf("%-12s %5.1f %9d %10.0f %12.2f %7d %12.4g  %s\n", way ? "out of step" : "in step", (double)rates[k],
                   o[0].updates, o[0].updates / o[0].seconds, o[0].staleness, o[0].worst, loss,
                   same ? "the same bits" : "other bits");
            if (!way) wrong += !same || !(loss < 0.01);
            if (way && k == 0) wrong += !(loss < 0.02) || o[0].updates != GRADIENTS;
        }
    if (!e && dt_comm_rank(c) == 0)
        printf(wrong ? "%d outcomes are not as they should be\n"
                     : "ok: in step every run has the same bits and reaches the floor\n",
               wrong);
    dt_comm_free(&c);
    return e ? dt_fail("40_parameter_server") : wrong != 0;
}
