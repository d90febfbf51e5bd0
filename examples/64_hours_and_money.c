/* 64_hours_and_money: how long does a training run take, what does it cost, and how many nodes meet a deadline?
 *
 * What you learn
 *     - Training takes 6 operations per weight and token. Time is that divided by what the GPUs reach, their peak times
 *       the share that is used (the MFU). A share above 100 % shows that a claim is impossible.
 *     - GPUs for a deadline: hours of one / (deadline x efficiency), rounded up. Efficiency adds GPUs, not only hours.
 *     - With perfect scaling an epoch costs the same on any number of nodes; any increase is the cost of communication.
 *       The trainer's own programs, simulated, hide it under backward until it takes longer than backward; from there
 *       on more nodes save nothing. On one node a simulated step takes 12.5 s; the formula is given 8 s.
 *     - Where a model fits on one GPU, a pipeline of 8 with one micro-batch is as slow as that GPU and costs 8 times as
 *       much. More micro-batches lower that.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 64_hours_and_money.c -o 64_hours_and_money -lm -lpthread
 *     ./64_hours_and_money
 *     ./64_hours_and_money --gbit 400            (between nodes)
 *     Your job instead: ./64_hours_and_money --params-b 13 --tokens-b 100 --instance p5 --deadline-h 72
 *
 * What it prints
 *     30 billion weights on 100 GB of text, 8 A100: 1252 hours at 40 %; 80 hours are 626 % of the peak
 *     nodes   hours of an epoch   times as fast   dollars   simulated: hours   times   dollars
 *         1                2.22            1.00        49               3.47    1.00        76
 *         4                0.96            2.33        84               1.25    2.79       109
 *        32                0.59            3.79       412               1.20    2.89       844
 *     a pipeline of 8 where one GPU is enough, times the price: 8.00 with 1 micro-batch, 1.875 with 8, 1.22 with 32
 *       simulated, a GPT-2 of 24 layers: 7.81, 2.05 and 1.45
 *     ok: at 25 Gbit/s 32 nodes are 3.79 times as fast as one, for 8.5 times the price
 *
 * Predict first: at 400 Gbit/s instead of 25, on how many nodes is the epoch half as long as on one, and at what price?
 * Exercise: print what each doubling of the nodes pays for an hour that it saves, by formula and simulated. Which
 *     doubling is the first to pay more than 100 dollars?
 *
 * Read on: 65_across_nodes.c for layouts across nodes, 79_spot_bill.c for discounts. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "tools/plan.h"
#include "tools/simulate.h"
#include "option.h"
#include "simulated.h"

static double hours(double weights, double tokens, double gpus, double teraflops, double mfu)
{
    return cost_computing(weights, tokens, gpus * teraflops * 1e12 * mfu) / 3600;
}

static void due_in(double alone, double left)
{
    printf("%g hours on one GPU, due in %g: %.0f GPUs at 100 %%, %.0f at 91 %%, %.0f at 80 %%\n", alone, left,
           cost_gpus(alone, left, 1), cost_gpus(alone, left, 0.91), cost_gpus(alone, left, 0.8));
}

/* "30 billion weights, 100 GB of text, 80 hours on 8 A100": is that possible? A token is about 4 bytes. */
static int formulas(void)
{
    double tokens = 100e9 / 4, real = hours(30e9, tokens, 8, 312, 0.4), mfu = hours(30e9, tokens, 8, 312, 1) / 80;
    printf("days of 70 billion weights at 40 %% of 989 TFLOP/s   8 GPUs  64 GPUs  512 GPUs\n");
    for (double t = 300e9; t < 1.1e12; t += 700e9)
        printf("%6.0f billion tokens %37.1f %8.1f %8.1f\n", t / 1e9, hours(70e9, t, 8, 989, 0.4) / 24,
               hours(70e9, t, 64, 989, 0.4) / 24, hours(70e9, t, 512, 989, 0.4) / 24);
    printf("30 billion weights on 100 GB of text, 8 A100: %.0f hours at 40 %%; 80 hours are %.0f %% of the peak\n",
           real, 100 * mfu);
    printf("  80 hours at 40 %% are %.1f billion tokens; the weights alone are %.0f GB for GPUs of 40\n",
           tokens * 80 / real / 1e9, 2 * 30e9 / 1e9);
    due_in(50, 5);
    printf("due by Friday, 40 hours: %.0f; every day, 20 hours: %.0f; no deadline: 1\n", cost_gpus(50, 40, 0.91),
           cost_gpus(50, 20, 0.91));
    printf("80 hours on 1 node and 22 on 4: %.3f times as fast, efficiency %.3f, %.2f times the node-hours\n",
           80.0 / 22, 80.0 / 22 / 4, 4 * 22 / 80.0);
    return mfu > 1 && real > 80;
}

/* Seconds of a step with a fixed batch, `work` seconds on one node, and a ring of gradients. Nothing is hidden. */
static double step(double n, double work, double bytes, double rate)
{
    return work / n + (n > 1 ? cost_ring(n, bytes, 50e-6, rate) : 0);
}

/* An epoch by formula, and by the trainer's plans, 1.6 billion weights, with overlap, on m, unless m is NULL. */
static int epochs(double steps, double work, double bytes, double rate, double dollars, const sim_machine *m)
{
    double last = 0, first = 0, one = steps * step(1, work, bytes, rate) / 3600;
    int rising = 1, knee = 1;
    printf("nodes   hours of an epoch   times as fast   dollars%s\n", m ? "   simulated: hours   times   dollars" : "");
    for (int n = 1; n <= 32; n *= 2) {
        double t = steps * step(n, work, bytes, rate) / 3600, cost = n * t * dollars;
        printf("%5d %19.2f %15.2f %9.0f", n, t, one / t, cost);
        if (m) {
            gpt g = {48, 1600, 25, 1024, 1024, 1, 8 * n, 8, 1, 1, 1};
            double s = steps * simulated(m, &g).step / 3600;
            first = n == 1 ? s : first, rising = rising && n * s >= first;
            printf("%19.2f %7.2f %9.0f", s, first / s, n * s * dollars);
        }
        knee = n > 1 && one / t >= 0.5 * n ? n : knee, printf("\n");
        rising = rising && cost > last, last = cost;
    }
    printf("the last n with at least half of n times the speed: %d\n", knee);
    return rising;
}

/* p GPUs paid for the time of a pipeline where one would do: times the price, by formula; by the trainer's plans. */
static int pipeline(const sim_machine *m)
{
    static const int micros[] = {1, 8, 32};
    double price[3];
    for (int i = 0; i < 3; i++) {
        gpt one = {24, 1024, 16, 1024, 4 * micros[i], micros[i], 1, 8, 1, 1, 0}, eight = one;
        eight.gpus = eight.pp = 8, price[i] = 8 * simulated(m, &eight).step / simulated(m, &one).step;
    }
    printf("a pipeline of 8 where one GPU is enough, times the price: %.2f with 1 micro-batch, %.3f with 8, %.2f "
           "with 32\n", cost_slowdown(8, 1), cost_slowdown(8, 8), cost_slowdown(8, 32));
    printf("  simulated, a GPT-2 of 24 layers: %.2f, %.2f and %.2f\n", price[0], price[1], price[2]);
    return price[0] > 7 && price[0] > price[1] && price[1] > price[2] && price[2] > 1;
}

/* The job of the command line, in steps of half a million tokens. */
static int own_job(const plan_job *j)
{
    const cost_type *t = plan_type(j, "p4d");
    double weights = 1e9 * plan_or(j, in_params_b, 7), tokens = 1e9 * plan_or(j, in_tokens_b, 20), batch = 524288;
    double mfu = plan_or(j, in_mfu_pct, 40) / 100, alone, work, price;
    if (!t) return 2;
    price = plan_has(j, in_price_node_h) ? cost_number(j->text[in_price_node_h]) : t->dollars;
    if (isnan(price)) return fprintf(stderr, "64_hours_and_money: the price is not known: --price-node-h N\n"), 2;
    alone = hours(weights, tokens, 1, t->teraflops, mfu);
    work = 3600 * hours(weights, batch, t->count, t->teraflops, mfu);
    printf("%g billion weights, %g billion tokens: %.4g hours on one %s at %g %%, %.4g on %s\n", weights / 1e9,
           tokens / 1e9, alone, t->accel, 100 * mfu, alone / t->count, cost_short(t));
    if (plan_has(j, in_deadline_h)) due_in(alone, j->n[in_deadline_h]);
    epochs(tokens / batch, work, 2 * weights, cost_outside(t), price, NULL);
    return printf("ok: %.4g GPU hours at %g %% of the peak; your numbers: not checked\n", alone, 100 * mfu), 0;
}

int main(int argc, char **argv)
{
    static plan_job j;
    static cost_catalogue c;
    double gbit = 25, ratio;
    const option list = {"--gbit", 0.1, 10000, &gbit};
    int good;
    sim_machine m;
    if (cost_open(&c, NULL) || !option_take(&argc, argv, &list) || !plan_arguments(&j, argc, argv)) return 2;
    if (argc > 1) return own_job(&j);
    sim_machine_of(&m, cost_find(&c, "p4d", 3), DT_PRECISION_BF16);
    simulated_link(&m, 1, 50e-6, gbit * 125e6); /* as by formula */
    good = formulas(), good = epochs(1000, 8, 3e9, gbit * 125e6, 21.96, &m) && good, good = pipeline(&m) && good;
    if (!good) return fprintf(stderr, "FAILED: a price or a time is not what the formulas say\n"), 1;
    ratio = step(1, 8, 3e9, gbit * 125e6) / step(32, 8, 3e9, gbit * 125e6);
    return printf("ok: at %g Gbit/s 32 nodes are %.2f times as fast as one, for %.1f times the price\n", gbit, ratio,
                  32 / ratio), 0;
}
