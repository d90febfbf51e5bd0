/* 64_hours_and_money: how long does a training run take, what does it cost, and how many nodes meet a deadline?
 *
 * What you learn
 *     - Training takes 6 operations per weight and token. Time is that divided by what the GPUs reach, their peak times
 *       the share that is used (the MFU). A share above 100 % shows that a claim is impossible.
 *     - GPUs for a deadline: hours of one / (deadline x efficiency), rounded up. Efficiency adds GPUs, not only hours.
 *     - n nodes cost n x hours. With perfect scaling the price of an epoch is the same for every n; what it rises by is
 *       the exchange. Beyond the knee more nodes buy little time for much money.
 *     - A model that fits on one GPU gets slower as a pipeline of 8: with one micro-batch the stages work one after the
 *       other, and 8 GPUs are paid for the speed of one. "8 times the price" is that case; more micro-batches mend it.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 64_hours_and_money.c -o 64_hours_and_money -lm -lpthread
 *     ./64_hours_and_money
 *     Your job instead: ./64_hours_and_money --params-b 13 --tokens-b 100 --instance p5 --deadline-h 72
 *
 * What it prints
 *     days of 70 billion weights at 40 % of 989 TFLOP/s   8 GPUs  64 GPUs  512 GPUs
 *          1 billion tokens                                   1.5      0.2      0.0
 *        300 billion tokens                                 460.8     57.6      7.2
 *       1000 billion tokens                                1536.0    192.0     24.0
 *     30 billion weights on 100 GB of text, 8 A100: 1252 hours at 40 %; 80 hours are 626 % of the peak
 *       80 hours at 40 % are 1.6 billion tokens; the weights alone are 60 GB for GPUs of 40
 *     50 hours on one GPU, due in 5: 10 GPUs at 100 %, 11 at 91 %, 13 at 80 %
 *     due by Friday, 40 hours: 2; every day, 20 hours: 3; no deadline: 1
 *     80 hours on 1 node and 22 on 4: 3.636 times as fast, efficiency 0.909, 1.10 times the node-hours
 *     nodes   hours of an epoch   times as fast   dollars
 *         1                2.22            1.00        49
 *         2                1.38            1.61        61
 *         4                0.96            2.33        84
 *         8                0.74            2.98       131
 *        16                0.64            3.48       225
 *        32                0.59            3.79       412
 *     the last n with at least half of n times the speed: 4
 *     a pipeline of 8 where one GPU is enough, times the price: 8.00 with 1 micro-batch, 1.875 with 8, 1.22 with 32
 *     ok: more nodes take less time and more money
 *
 * Predict first: at 400 Gbit/s instead of 25, on how many nodes is the epoch half as long as on one, and at what price?
 * Exercise: a discount makes the price of an hour depend on the deadline. Where does the cheapest plan move?
 *
 * Read on: 65_across_nodes.c for layouts across nodes, 79_spot_bill.c for discounts. */
#include "tools/plan.h"

static double hours(double weights, double tokens, double gpus, double teraflops, double mfu)
{
    return cost_computing(weights, tokens, gpus * teraflops * 1e12 * mfu) / 3600;
}

static void times(void)
{
    static const double tokens[] = {1e9, 300e9, 1e12};
    printf("days of 70 billion weights at 40 %% of 989 TFLOP/s   8 GPUs  64 GPUs  512 GPUs\n");
    for (int i = 0; i < 3; i++) {
        printf("%6.0f billion tokens %28s", tokens[i] / 1e9, "");
        for (int gpus = 8; gpus <= 512; gpus *= 8) printf(" %8.1f", hours(70e9, tokens[i], gpus, 989, 0.4) / 24);
        printf("\n");
    }
}

/* "30 billion weights, 100 GB of text, 80 hours on 8 A100": is that possible? A token is about 4 bytes. */
static int claim(void)
{
    double tokens = 100e9 / 4, real = hours(30e9, tokens, 8, 312, 0.4), mfu = hours(30e9, tokens, 8, 312, 1) / 80;
    printf("30 billion weights on 100 GB of text, 8 A100: %.0f hours at 40 %%; 80 hours are %.0f %% of the peak\n",
           real, 100 * mfu);
    printf("  80 hours at 40 %% are %.1f billion tokens; the weights alone are %.0f GB for GPUs of 40\n",
           tokens * 80 / real / 1e9, 2 * 30e9 / 1e9);
    return mfu > 1 && real > 80;
}

static int gpus_for(double alone, double deadline, double share) { return (int)cost_gpus(alone, deadline, share); }

static void deadlines(void)
{
    printf("50 hours on one GPU, due in 5: %d GPUs at 100 %%, %d at 91 %%, %d at 80 %%\n", gpus_for(50, 5, 1),
           gpus_for(50, 5, 0.91), gpus_for(50, 5, 0.8));
    printf("due by Friday, 40 hours: %d; every day, 20 hours: %d; no deadline: 1\n", gpus_for(50, 40, 0.91),
           gpus_for(50, 20, 0.91));
}

/* Seconds of a step on n nodes of 8 GPUs with a fixed batch: `work` seconds on one node, and a ring of so many bytes of
 * gradients over a network of so many bytes per second. Nothing is hidden. */
static double step(double n, double work, double bytes, double rate)
{
    return work / n + (n > 1 ? cost_ring(n, bytes, 50e-6, rate) : 0);
}

static int epochs(double steps, double work, double bytes, double rate, double dollars)
{
    double last = 0, one = steps * step(1, work, bytes, rate) / 3600;
    int rising = 1, knee = 1;
    printf("nodes   hours of an epoch   times as fast   dollars\n");
    for (int n = 1; n <= 32; n *= 2) {
        double t = steps * step(n, work, bytes, rate) / 3600, cost = n * t * dollars;
        printf("%5d %19.2f %15.2f %9.0f\n", n, t, one / t, cost);
        if (n > 1 && one / t >= 0.5 * n) knee = n;
        rising = rising && cost > last, last = cost;
    }
    printf("the last n with at least half of n times the speed: %d\n", knee);
    return rising;
}

/* 80 hours on one node became 22 on four. */
static void measured(void)
{
    double hours_of_one = 80, nodes = 4, took = 22, speedup = hours_of_one / took;
    printf("80 hours on 1 node and 22 on 4: %.3f times as fast, efficiency %.3f, %.2f times the node-hours\n", speedup,
           speedup / nodes, nodes * took / hours_of_one);
}

/* p GPUs paid for the time of a pipeline, where one GPU would do. */
static double pipeline_cost(int p, int m) { return cost_slowdown(p, m); }

/* The job of the command line: an epoch is all of its tokens, in steps of half a million. */
static int own_job(const plan_job *j)
{
    const cost_type *t = plan_type(j, "p4d");
    double weights = 1e9 * plan_or(j, in_params_b, 7), tokens = 1e9 * plan_or(j, in_tokens_b, 20), batch = 524288;
    double mfu = plan_or(j, in_mfu_pct, 40) / 100, alone, work, price;
    if (!t) return 2;
    price = plan_has(j, in_price_node_h) ? cost_number(j->text[in_price_node_h]) : t->dollars;
    alone = hours(weights, tokens, 1, t->teraflops, mfu);
    work = 3600 * hours(weights, batch, t->count, t->teraflops, mfu);
    printf("%g billion weights, %g billion tokens: %.4g hours on one %s at %g %%, %.4g on %s\n", weights / 1e9,
           tokens / 1e9, alone, t->accel, 100 * mfu, alone / t->count, cost_short(t));
    if (plan_has(j, in_deadline_h))
        printf("due in %g hours: %d GPUs at 100 %%, %d at 91 %%, %d at 80 %%\n", j->n[in_deadline_h],
               gpus_for(alone, j->n[in_deadline_h], 1), gpus_for(alone, j->n[in_deadline_h], 0.91),
               gpus_for(alone, j->n[in_deadline_h], 0.8));
    epochs(tokens / batch, work, 2 * weights, cost_outside(t), price);
    return printf("ok: by your numbers\n"), 0;
}

int main(int argc, char **argv)
{
    static plan_job j;
    int good;
    if (!plan_arguments(&j, argc, argv)) return 2;
    if (argc > 1) return own_job(&j);
    times();
    good = claim();
    deadlines();
    measured();
    good = epochs(1000, 8, 3e9, 3.125e9, 21.96) && good; /* 25 Gbit/s */
    printf("a pipeline of 8 where one GPU is enough, times the price: %.2f with 1 micro-batch, %.3f with 8, %.2f "
           "with 32\n", pipeline_cost(8, 1), pipeline_cost(8, 8), pipeline_cost(8, 32));
    good = good && pipeline_cost(8, 1) == 8 && gpus_for(50, 5, 0.8) == 13;
    if (!good) return fprintf(stderr, "FAILED: a price or a time is not what the formulas say\n"), 1;
    return printf("ok: more nodes take less time and more money\n"), 0;
}
