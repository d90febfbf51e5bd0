/* 38_parameter_server: what does it cost not to wait for the slowest worker?
 *
 * What you learn
 *     - Synchronous: all ranks send their gradients, wait, and get the sum. Whether servers or a ring compute the sum,
 *       the result is that of one rank with the whole batch, and each step takes as long as the slowest rank.
 *     - Asynchronous: a server applies each gradient when it arrives and sends the weights back. No worker waits, but
 *       its gradient belongs to weights that are some updates old (its staleness, about the number of other workers).
 *       Which weights depends on the clock, so no two runs are alike.
 *     - Staleness limits the learning rate. On a quadratic loss of curvature h, gradient descent is stable for rate h <
 *       2; with a staleness of s only for rate h < 2 sin(pi / (2 (2 s + 1))), which is 0.62 for s = 2.
 *     - More updates per second may train worse. This library trains synchronously.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 38_parameter_server.c -o 38_parameter_server -lm -lpthread
 *     ./38_parameter_server --ranks 4            (rank 0 serves, rank 1 is slow; --rate 0.3: the second rate)
 *
 * What it prints (~: of one run)
 *                    rate   updates  updates/s  staleness  worst       loss  again
 *     synchronous     0.1       150       ~411       0.00      0   0.004607  the same bits
 *     synchronous     1.0       150        ~35       0.00      0   0.004701  the same bits
 *     asynchronous    0.1       600      ~9020      ~1.99    ~32  ~0.004589  other bits
 *     asynchronous    1.0       600      ~8406      ~1.99    ~40     ~274.9  other bits
 *     ok: both synchronous runs have the same bits twice; with the rate 0.1 all end below 0.02
 *
 * Predict first: with --ranks 8, what is the staleness, and does the rate of 0.3 still converge?
 * Exercise: let the server refuse gradients that are more than two updates old. What becomes of rank 1's work?
 *
 * Read on: 25_balanced_buffers.c for servers in step, 78_elastic.c for ranks that are lost rather than slow. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include <math.h>
#include <time.h>
#include <unistd.h>

enum { D = 8, BATCH = 64, GRADIENTS = 600, SLOW_US = 2000 };

/* What a worker shares with the server, in symmetric memory: dt_comm_peer maps it there. */
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

static dt_result synchronous(dt_comm *c, float rate, outcome *o)
{
    int n = dt_comm_size(c), me = dt_comm_rank(c);
    float g[D];
    dt_result e = dt_barrier(c);
    double start = now();
    memset(o, 0, sizeof *o);
    for (int k = 0; k < GRADIENTS / n && !e; k++, o->updates++) {
        (void)loss_of(o->weights, (unsigned)(k * n + me), g);
        if (me == 1) usleep(SLOW_US);
        e = dt_all_reduce(c, g, D, DT_SUM);
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

static dt_result asynchronous(dt_comm *c, mailbox *mine, float rate, outcome *o)
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
    double rates[2] = {0.1, 1};
    option list[] = {{"--rate", 0.01, 10, &rates[1]}};
    dt_comm *c = NULL;
    void *mine = NULL;
    outcome o[2];
    int wrong = 0;
    dt_result e = dt_comm_open(&c, &argc, &argv);
    if (!e && !options_read(argc, argv, list, 1)) return 2;
    if (!e) e = dt_comm_alloc(c, sizeof(mailbox), &mine);
    if (!e && dt_comm_rank(c) == 0)
        printf("%-13s %5s %9s %10s %10s %6s %10s  %s\n", "", "rate", "updates", "updates/s", "staleness", "worst",
               "loss", "again");
    for (int way = 0; way < 2 && !e; way++)
        for (int k = 0; k < 2 && !e; k++) {
            float g[D], rate = (float)rates[k];
            double loss;
            int same;
            if (way && (dt_comm_size(c) < 2 || dt_comm_nodes(c) > 1)) continue; /* the mailboxes are in shared memory */
            for (int again = 0; again < 2 && !e; again++)
                e = way ? asynchronous(c, mine, rate, &o[again]) : synchronous(c, rate, &o[again]);
            if (e || dt_comm_rank(c) != 0) continue;
            loss = loss_of(o[0].weights, 4000000, g);
            same = !memcmp(o[0].weights, o[1].weights, sizeof o[0].weights);
            printf("%-13s %5.1f %9d %10.0f %10.2f %6d %10.4g  %s\n", way ? "asynchronous" : "synchronous",
                   rates[k], o[0].updates, o[0].updates / o[0].seconds, o[0].staleness, o[0].worst, loss,
                   same ? "the same bits" : "other bits");
            if (!way) wrong += !same || (k == 0 && !(loss < 0.01));
            if (way && k == 0) wrong += !(loss < 0.02) || o[0].updates != GRADIENTS;
        }
    if (!e && dt_comm_size(c) < 2) printf("asynchronous: needs --ranks 2 or more, a server and its clients\n");
    if (!e && dt_comm_rank(c) == 0)
        printf(wrong ? "%d outcomes are wrong\n"
                     : "ok: both synchronous runs have the same bits twice; with the rate 0.1 all end below 0.02\n",
               wrong);
    dt_comm_close(&c);
    return e ? dt_fail("38_parameter_server") : wrong != 0;
}
