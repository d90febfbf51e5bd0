/* 49_compile_pays: when is compiling worth the time that it takes?
 *
 * What you learn
 *     - Compiling takes c minutes once and divides the time of a step by s. It is won back after T* = c s / (s - 1)
 *       minutes of training without it: 15 to 90 minutes for usual numbers. Below T* compiling makes the job slower.
 *       "Only jobs of 4 hours" is a safe rule, not the limit. A trial of a few steps with and without it measures s.
 *     - Every restart compiles again, and so does every new shape: batches padded to their longest text have many.
 *     - Only computing gets faster; what is sent stays the same. On 8 ranks at 80 % efficiency, computing 1.3 times as
 *       fast gives 7.85 times the speed of one rank, not 6.4 x 1.3 = 8.32.
 *     - Fusion speeds up operations that wait for memory. They take 39 % of a Transformer's time (Ivanov et al. 2021),
 *       and less of a convolutional network's. So Transformers gain more.
 *     - SageMaker Training Compiler does not work with SageMaker's distribution libraries, and gets no new releases.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 49_compile_pays.c -o 49_compile_pays -lm
 *     ./49_compile_pays
 *     ./49_compile_pays --compile-min 10 --speedup 1.2
 *
 * What it prints
 *     minutes until compiling is won back, T* = c s / (s - 1)
 *         c    s = 1.1   1.2   1.3   1.5
 *         5         55    30    22    15
 *        15        165    90    65    45
 *     a trial: 420 ms a step without, 336 ms with, 9 minutes to compile: s = 1.25, T* = 45 minutes
 *     8 ranks at 80 %: 6.40x; computing 1.3 times as fast: 7.85x, and not 8.32x
 *     batches of 32 texts padded to the longest: 173 shapes to compile in 1000 steps; padded to 512: 1
 *     memory-bound 39 % of the time, made 2.5 times as fast: 1.31 times; 10 %: 1.06 times
 *     with compiler_config=TrainingCompilerConfig() the planner warns of
 *       SMDDP, 3 hours        W_COMPILER_INCOMPAT W_COMPILER_EOL
 *       DDP, half an hour     W_COMPILER_SHORT_JOB W_COMPILER_EOL
 *     ok: at T* = 45 minutes nothing is won or lost; 3 hours with 0 to 4 restarts: 3 of 5 pay
 *
 * Predict first: a job of 3 hours with c = 10 and s = 1.2 is reclaimed four times. Does compiling pay?
 * Exercise: pad to the next multiple of 64 instead. How many shapes are left, and how much more is computed?
 *
 * Read on: 74_interval.c for restarts and their cost, 61_scaling.c for what ranks send. */
#include "tools/plan.h"
#include <stdint.h>

static void table(void)
{
    static const double minutes[] = {5, 10, 15}, gains[] = {1.1, 1.2, 1.3, 1.5};
    printf("minutes until compiling is won back, T* = c s / (s - 1)\n    c    s = 1.1   1.2   1.3   1.5\n");
    for (int i = 0; i < 3; i++) {
        printf("%5.0f    ", minutes[i]);
        for (int k = 0; k < 4; k++) printf(" %*.0f", k ? 5 : 6, cost_break_even(minutes[i], gains[k]));
        printf("\n");
    }
    printf("5 to 15 minutes and 1.2 to 1.5: %.0f to %.0f minutes\n", cost_break_even(5, 1.5), cost_break_even(15, 1.2));
}

/* A short trial decides; then the same job on machines that are taken away. In how many cases compiling pays. */
static int restarts(double c, double s)
{
    double without = 420.0, with = without / s, job = 180.0;
    int pays = 0;
    printf("a trial: %.0f ms a step without, %.0f ms with, %.0f minutes to compile: s = %.2f, T* = %.0f minutes\n",
           without, with, c, s, cost_break_even(c, s));
    printf("a job of 3 hours, which compiles again at each restart:");
    for (int k = 0; k < 5; k++) {
        double gain = job - job / s - c * (k + 1);
        printf(" %d: %+.0f%s", k, gain, k < 4 ? "," : " minutes\n");
        pays += gain > 0.0;
    }
    printf("a job of half an hour: %+.0f minutes\n\n", 30.0 - 30.0 / s - c);
    return pays;
}

/* n ranks at this efficiency, and after computing became s times as fast: speed in times of one rank as it was. */
static double speed(int n, double efficiency, double s)
{
    double sent = 1.0 / efficiency - 1.0; /* what a step waits for, in times of its computing */
    return n / (1.0 / s + sent);
}

/* Lengths 1 to 512, most of them short: the least of two draws of a linear congruential generator (Knuth). */
static int length(uint64_t *state)
{
    int draw[2];
    for (int i = 0; i < 2; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        draw[i] = 1 + (int)(*state >> 55);
    }
    return draw[0] < draw[1] ? draw[0] : draw[1];
}

/* A cache of compiled shapes: how many are compiled for `steps` batches, padded to the longest text or to 512. */
static int compiled(int steps, int batch, int to_longest)
{
    char seen[513];
    int count = 0;
    uint64_t state = 1;
    memset(seen, 0, sizeof seen);
    for (int step = 0; step < steps; step++) {
        int longest = to_longest ? 0 : 512;
        for (int i = 0; i < batch; i++) {
            int l = length(&state);
            longest = l > longest ? l : longest;
        }
        count += !seen[longest], seen[longest] = 1;
    }
    return count;
}

/* The planner's (./build.sh plan) warnings for jobs with a compiler. */
static int planner(plan_job *j)
{
    static const char *const jobs[][2] = {{"DDP, 3 hours", "library=ddp;ref_hours=3"},
                                          {"SMDDP, 3 hours", "want_library=smddp;cur_nodes=2;ref_hours=3"},
                                          {"DDP, half an hour", "library=ddp;ref_hours=0.5"},
                                          {"DDP, new shapes", "library=ddp;ref_hours=3;dynamic_shapes=1"}};
    static cost_catalogue catalogue;
    static plan_answer a;
    static plan_list wrong;
    int good = !cost_open(&catalogue, NULL);
    printf("with compiler_config=TrainingCompilerConfig() the planner warns of\n");
    for (int i = 0; i < 4; i++) {
        plan_job_clear(j), plan_job_facts(j, "params_b=0.5;instance=p4d;compiler=1", &wrong);
        plan_job_facts(j, jobs[i][1], &wrong), plan_answer_of(j, &catalogue, &a);
        printf("  %-20s ", jobs[i][0]);
        for (int code = W_COMPILER_SHORT_JOB; code <= W_COMPILER_RECOMPILE; code++)
            if (plan_warned(&a, code)) printf(" %s", plan_warning[code][0]);
        printf("\n");
        good &= plan_warned(&a, W_COMPILER_INCOMPAT) == (i == 1) && plan_warned(&a, W_COMPILER_SHORT_JOB) == (i == 2);
    }
    return good;
}

int main(int argc, char **argv)
{
    static plan_job j;
    double faster, c, s, even;
    int shapes, pays;
    if (!plan_arguments(&j, argc, argv)) return 2;
    c = plan_or(&j, in_compile_min, 9), s = plan_or(&j, in_speedup, 1.25);
    if (c <= 0 || s <= 1) return fprintf(stderr, "49_compile_pays: give minutes above 0 and a speed-up above 1\n"), 2;
    table();
    pays = restarts(c, s), even = cost_break_even(c, s);
    faster = speed(8, 0.8, 1.3);
    printf("8 ranks at 80 %%: %.2fx; computing 1.3 times as fast: %.2fx, and not %.2fx\n", 6.4, faster, 6.4 * 1.3);
    shapes = compiled(1000, 32, 1);
    printf("batches of 32 texts padded to the longest: %d shapes to compile in 1000 steps; padded to 512: %d\n", shapes,
           compiled(1000, 32, 0));
    printf("memory-bound 39 %% of the time, made 2.5 times as fast: %.2f times; 10 %%: %.2f times\n",
           1 / (1 - 0.39 + 0.39 / 2.5), 1 / (1 - 0.1 + 0.1 / 2.5));
    if (fabs(even - even / s - c) > 1e-9 * even || fabs(faster - 7.8491) > 1e-3 || shapes < 50 || !planner(&j))
        return fprintf(stderr, "FAILED: a gain at T*, another speed, or another warning\n"), 1;
    printf("ok: at T* = %.0f minutes nothing is won or lost; 3 hours with 0 to 4 restarts: %d of 5 pay\n", even, pays);
    return 0;
}
