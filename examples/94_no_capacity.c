/* 94_no_capacity: "insufficient capacity". Which of the usual answers helps, and what does it cost?
 *
 * What you learn
 *     - Trying again works if capacity comes and goes: k independent attempts that succeed with probability p all fail
 *       with (1-p)^k. Waiting between them matters more than their number: attempts in the same minute see the same
 *       pool. SageMaker's RetryStrategy repeats a job after an internal error alone, so the loop is yours.
 *     - A second region helps as far as its pool is empty at other times. Data and images must be there.
 *     - A Savings Plan lowers the price; it reserves no capacity. What reserves is a capacity reservation (for training
 *       jobs: a training plan). It costs its hours whether they are used or not, so it pays for schedules and not for
 *       one job.
 *     - A warm pool keeps the machines of a job for an hour at most and bills them at the full rate, used or not. So it
 *       helps jobs that follow each other within the hour, and does nothing for tomorrow's.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 94_no_capacity.c -o 94_no_capacity -lm -lpthread
 *     ./94_no_capacity
 *     ./94_no_capacity --free 1 --taken 4        (hours that a pool is, on average)
 *
 * What it prints
 *     there is capacity for 19 % of the time; a job gets its machines
 *     attempts  minutes apart  one region  two regions  if attempts were independent
 *            1              1        19 %         34 %                           19 %
 *           10              1        21 %         37 %                           88 %
 *            2            600        35 %         57 %                           35 %
 *           10             60        66 %         88 %                           88 %
 *           10            180        84 %         98 %                           88 %
 *     remedy: RetryStrategy: W_RETRY_NOT_CAPACITY
 *     remedy: a loop of your own: no warning
 *     a month   hours in use     on demand    reserved   hours between   a warm pool   the next job finds it
 *              1           1 %        703 $      64123 $          722.00          88 $                      no
 *             22          24 %      15460 $      64123 $           25.18        1932 $                      no
 *             60          66 %      42163 $      64123 $            4.17        5270 $                      no
 *             91         100 %      63948 $      64123 $            0.02         176 $                     yes
 *     a Savings Plan at 60 % of the price: 9276 $ for 22 jobs, and 19 % of capacity, as before
 *     ok: ten attempts a minute apart: 21 % of the jobs, an hour apart: 66 %; 3 of 4 remedies refused
 *
 * Predict first: is it better to try ten times in ten minutes, or twice in ten hours?
 * Exercise: let both regions be short of machines at the same time on weekdays, five days of seven. What is the second
 *     one worth then?
 *
 * Read on: 95_quiz.c for everything asked at once. */
#include "tools/plan.h"
#include "option.h"
#include <stdint.h>

enum { MINUTES = 1000000, REGIONS = 2 };
static unsigned char room[REGIONS][MINUTES]; /* is there capacity for the job in this minute? */

static double uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((double)((z ^ z >> 31) >> 11) + 0.5) * 0x1p-53;
}

/* Pools are free and taken for so many hours, on average: a chain that changes its state now and then. */
static double fill(double is_free, double taken)
{
    uint64_t state = 1;
    int open = 0, sum = 0;
    for (int region = 0; region < REGIONS; region++)
        for (int i = 0; i < MINUTES; i++) {
            if (uniform(&state) < 1 / (60 * (open ? is_free : taken))) open = !open;
            room[region][i] = (unsigned char)open;
            sum += open;
        }
    return (double)sum / (REGIONS * MINUTES);
}

/* The share of jobs that get their machines in `attempts`, so many minutes apart, in so many regions. */
static double success(int attempts, int apart, int regions)
{
    int jobs = 0, started = 0;
    for (int at = 0; at + attempts * apart < MINUTES; at += 97, jobs++) {
        int got = 0;
        for (int k = 0; k < attempts && !got; k++)
            for (int region = 0; region < regions; region++) got |= room[region][at + k * apart];
        started += got;
    }
    return (double)started / jobs;
}

/* What the planner's rules say of a remedy for a job that got no machines. Returns whether they refuse it. */
static int remedy(const char *name, const char *facts)
{
    static cost_catalogue c;
    static plan_job j;
    static plan_answer a;
    static plan_list wrong;
    int refused = 0;
    if (cost_open(&c, NULL)) return 0;
    plan_job_clear(&j), plan_job_facts(&j, "params_b=1;instance=p4d;cur_nodes=4;efa=1;capacity_error=1", &wrong);
    plan_job_facts(&j, facts, &wrong), plan_answer_of(&j, &c, &a);
    printf("remedy: %s:", name);
    for (int k = 0; k < PLAN_CODES; k++)
        if ((k == W_RETRY_NOT_CAPACITY || k == W_SAVINGS_NOT_CAPACITY || k == W_WARMPOOL_SPOT) && plan_warned(&a, k))
            refused = 1, printf(" %s\n    %s", plan_warning[k][0], plan_warning[k][1]);
    return printf(refused ? "\n" : " no warning\n"), refused;
}

/* Dollars of a month of 730 hours: `runs` jobs of 8 hours, evenly spread, on 4 instances of 21.96 $/h. A reservation
 * bills the hours between the jobs, too, a warm pool at most one of each gap (KeepAlivePeriodInSeconds <= 3600). */
static void month(int runs)
{
    const double rate = 4 * 21.96, busy = 8.0 * runs * rate, all = 730 * rate;
    const double gap = (730 - 8.0 * runs) / runs, kept = fmin(gap, 1);
    printf("%10d %11.0f %% %10.0f $ %10.0f $ %15.2f %11.0f $ %23s\n", runs, 100 * busy / all, busy, all, gap,
           runs * kept * rate, gap <= 1 ? "yes" : "no");
}

int main(int argc, char **argv)
{
    static const int plans[][2] = {{1, 1}, {10, 1}, {2, 600}, {10, 60}, {10, 180}}; /* attempts, minutes apart */
    double is_free = 2, taken = 8, share, minute, hour;
    const option list[] = {{"--free", 0.1, 100, &is_free}, {"--taken", 0.1, 100, &taken}};
    int refused;
    if (!options_read(argc, argv, list, 2)) return 2;
    share = fill(is_free, taken), minute = success(10, 1, 1), hour = success(10, 60, 1);
    printf("there is capacity for %.0f %% of the time; a job gets its machines\n", 100 * share);
    printf("attempts  minutes apart  one region  two regions  if attempts were independent\n");
    for (int i = 0; i < 5; i++)
        printf("%8d %14d %9.0f %% %10.0f %% %28.0f %%\n", plans[i][0], plans[i][1],
               100 * success(plans[i][0], plans[i][1], 1), 100 * success(plans[i][0], plans[i][1], 2),
               100 * (1 - pow(1 - share, plans[i][0])));
    refused = remedy("RetryStrategy", "fix_retry=1") + remedy("a Savings Plan", "fix_savings_plan=1");
    refused += remedy("a warm pool of Spot instances", "keep_alive_s=3600;spot=1") + remedy("a loop of your own", "");
    printf("a month   hours in use     on demand    reserved   hours between   a warm pool   the next job finds it\n");
    month(1), month(22), month(60), month(91);
    printf("a Savings Plan at 60 %% of the price: %.0f $ for 22 jobs, and %.0f %% of capacity, as before\n",
           0.6 * 22 * 8 * 4 * 21.96, 100 * share);
    if (hour < minute || refused != 3) return fprintf(stderr, "FAILED: an attempt or a remedy\n"), 1;
    return printf("ok: ten attempts a minute apart: %.0f %% of the jobs, an hour apart: %.0f %%; %d of 4 remedies "
                  "refused\n", 100 * minute, 100 * hour, refused), 0;
}
