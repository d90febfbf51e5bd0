/* 94_no_capacity: "insufficient capacity". Which of the usual answers helps, and what does it cost?
 *
 * What you learn
 *     - Trying again works if capacity comes and goes: k attempts that succeed with probability p fail all with
 *       (1-p)^k. Waiting between them matters more than their number: attempts in the same minute see the same pool.
 *     - SageMaker's RetryStrategy repeats a job after an internal error alone. Jobs that wait for machines need a loop
 *       of their own, or MaxPendingTime.
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
 *
 * What it prints
 *     there is capacity for 19 % of the time; a job gets its machines
 *     attempts  minutes apart  one region  two regions  if attempts were independent
 *            1              1        19 %         34 %                           19 %
 *           10              1        21 %         37 %                           88 %
 *            2            600        35 %         57 %                           35 %
 *           10             60        66 %         88 %                           88 %
 *           10            180        84 %         98 %                           88 %
 *     RetryStrategy after InternalServerError: tries again; after CapacityError: does not
 *     a month   hours in use     on demand    reserved   hours between   a warm pool   the next job finds it
 *              1           1 %        703 $      64123 $          722.00          88 $                      no
 *             22          24 %      15460 $      64123 $           25.18        1932 $                      no
 *             60          66 %      42163 $      64123 $            4.17        5270 $                      no
 *             91         100 %      63948 $      64123 $            0.02         176 $                     yes
 *     a Savings Plan at 60 % of the price: 9276 $ for 22 jobs, and 19 % of capacity, as before
 *     ok: hours between attempts help, minutes do not; only a reservation is certain
 *
 * Predict first: is it better to try ten times in ten minutes, or twice in ten hours?
 * Exercise: let the second region be short of machines whenever the first is. What is it worth then?
 *
 * Read on: 95_quiz.c for everything asked at once. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { MINUTES = 1000000, REGIONS = 2 };
static unsigned char room[REGIONS][MINUTES]; /* is there capacity for the job in this minute? */

static double uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((double)((z ^ z >> 31) >> 11) + 0.5) * 0x1p-53;
}

/* Pools are free for 2 hours and taken for 8, on average: a chain that changes its state now and then. */
static double fill(void)
{
    uint64_t state = 1;
    int open = 0, sum = 0;
    for (int region = 0; region < REGIONS; region++)
        for (int i = 0; i < MINUTES; i++) {
            if (uniform(&state) < (open ? 1 / 120.0 : 1 / 480.0)) open = !open;
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

/* Does SageMaker's RetryStrategy repeat a job that failed with this? */
static int retried(const char *error) { return !strcmp(error, "InternalServerError"); }

/* Dollars of a month of 730 hours: `runs` jobs of 8 hours, evenly spread, on 4 instances of 21.96 $/h. A reservation
 * bills the hours between the jobs, too, a warm pool at most one of each gap (KeepAlivePeriodInSeconds <= 3600). */
static void month(int runs)
{
    const double rate = 4 * 21.96, busy = 8.0 * runs * rate, all = 730 * rate;
    const double gap = (730 - 8.0 * runs) / runs, kept = fmin(gap, 1);
    printf("%10d %11.0f %% %10.0f $ %10.0f $ %15.2f %11.0f $ %23s\n", runs, 100 * busy / all, busy, all, gap,
           runs * kept * rate, gap <= 1 ? "yes" : "no");
}

int main(void)
{
    static const struct {
        int attempts, apart;
    } plans[] = {{1, 1}, {10, 1}, {2, 600}, {10, 60}, {10, 180}};
    double share = fill(), first = success(1, 1, 1), minute = success(10, 1, 1), hour = success(10, 60, 1);
    printf("there is capacity for %.0f %% of the time; a job gets its machines\n", 100 * share);
    printf("attempts  minutes apart  one region  two regions  if attempts were independent\n");
    for (int i = 0; i < 5; i++)
        printf("%8d %14d %9.0f %% %10.0f %% %28.0f %%\n", plans[i].attempts, plans[i].apart,
               100 * success(plans[i].attempts, plans[i].apart, 1), 100 * success(plans[i].attempts, plans[i].apart, 2),
               100 * (1 - pow(1 - share, plans[i].attempts)));
    printf("RetryStrategy after InternalServerError: %s; after CapacityError: %s\n",
           retried("InternalServerError") ? "tries again" : "does not",
           retried("CapacityError") ? "tries again" : "does not");
    printf("a month   hours in use     on demand    reserved   hours between   a warm pool   the next job finds it\n");
    month(1), month(22), month(60), month(91);
    printf("a Savings Plan at 60 %% of the price: %.0f $ for 22 jobs, and %.0f %% of capacity, as before\n",
           0.6 * 22 * 8 * 4 * 21.96, 100 * share);
    if (minute > first + 0.1 || hour < 0.6) return fprintf(stderr, "FAILED: attempts are worth something else\n"), 1;
    return printf("ok: hours between attempts help, minutes do not; only a reservation is certain\n"), 0;
}
