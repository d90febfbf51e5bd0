/* 49_compile_pays: when is compiling worth the time that it takes?
 *
 * What you learn
 *     - Compiling takes c minutes once and divides the time of a step by s. It is won back after T* = c s / (s - 1)
 *       minutes of training without it: 15 to 90 minutes for usual numbers. "Only jobs of 4 hours" is a safe rule, not
 *       the limit; below T* compiling makes the job slower.
 *     - A trial of a few steps with and without tells s. Every restart compiles again, and so does every new shape:
 *       batches padded to their own longest text have many.
 *     - The gain is in computing alone. On 8 ranks at 80 % efficiency a step that computes 1.3 times as fast gives 7.85
 *       times the speed of one, not 6.4 x 1.3 = 8.32: what is sent stays as it was.
 *     - Transformers are said to gain about 30 %, convolutions less. Measure your own.
 *     - SageMaker Training Compiler does not work together with the distribution libraries, whatever some slides say,
 *       and has no new releases.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 49_compile_pays.c -o 49_compile_pays -lm
 *     ./49_compile_pays
 *     ./49_compile_pays --compile-min 10 --gain 1.2
 *
 * What it prints
 *     minutes until compiling is won back, T* = c s / (s - 1)
 *         c    s = 1.1   1.2   1.3   1.5
 *         5         55    30    22    15
 *        15        165    90    65    45
 *     a trial: 420 ms a step without, 336 ms with, 9 minutes to compile: s = 1.25, T* = 45 minutes
 *     8 ranks at 80 %: 6.40x; computing 1.3 times as fast: 7.85x, and not 8.32x
 *     batches of 32 texts padded to the longest: 173 shapes to compile in 1000 steps; padded to 512: 1
 *     ok: T*, restarts, shapes and 8 ranks as computed
 *
 * Predict first: a job of 3 hours with c = 10 and s = 1.2 is reclaimed four times. Does compiling pay?
 * Exercise: round the padded length up to a multiple of 64. How many shapes are left, and what does the padding cost?
 *
 * Read on: 74_interval.c for restarts and their cost, 61_scaling.c for what ranks send. */
#include "option.h"
#include <math.h>
#include <stdint.h>

/* Minutes of training without compiling after which c minutes for a speed-up of s are won back. */
static double break_even(double c, double s) { return c * s / (s - 1.0); }

static void table(void)
{
    static const double minutes[] = {5, 10, 15}, gains[] = {1.1, 1.2, 1.3, 1.5};
    printf("minutes until compiling is won back, T* = c s / (s - 1)\n    c    s = 1.1   1.2   1.3   1.5\n");
    for (int i = 0; i < 3; i++) {
        printf("%5.0f    ", minutes[i]);
        for (int k = 0; k < 4; k++) printf(" %*.0f", k ? 5 : 6, break_even(minutes[i], gains[k]));
        printf("\n");
    }
    printf("5 to 15 minutes and 1.2 to 1.5: %.0f to %.0f minutes, so \"from 4 hours on\" is on the safe side\n\n",
           break_even(5, 1.5), break_even(15, 1.2));
}

/* A short trial decides; then the same job on machines that are taken away. */
static double restarts(double c, double s)
{
    double without = 420.0, with = without / s, job = 180.0, most = 0.0;
    printf("a trial: %.0f ms a step without, %.0f ms with, %.0f minutes to compile: s = %.2f, T* = %.0f minutes\n",
           without, with, c, s, break_even(c, s));
    printf("a job of 3 hours, which compiles again at each restart:");
    for (int k = 0; k < 5; k++) {
        double gain = job - job / s - c * (k + 1);
        printf(" %d: %+.0f%s", k, gain, k < 4 ? "," : " minutes\n");
        if (gain > 0.0) most = k;
    }
    printf("a job of half an hour: %+.0f minutes\n\n", 30.0 - 30.0 / s - c);
    return most;
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

int main(int argc, char **argv)
{
    double most, alone, faster, c = 9, s = 1.25;
    option list[] = {{"--compile-min", 0.1, 600, &c}, {"--gain", 1.01, 10, &s}};
    int shapes;
    if (!options_read(argc, argv, list, 2)) return 2;
    table();
    most = restarts(c, s);
    alone = speed(8, 0.8, 1.0), faster = speed(8, 0.8, 1.3);
    printf("8 ranks at 80 %%: %.2fx; computing 1.3 times as fast: %.2fx, and not %.2fx\n", alone, faster, alone * 1.3);
    shapes = compiled(1000, 32, 1);
    printf("batches of 32 texts padded to the longest: %d shapes to compile in 1000 steps; padded to 512: %d\n", shapes,
           compiled(1000, 32, 0));
    printf("\nwhat vendors say                                  what to do\n"
           "a Transformer becomes about 30 %% faster           take it as a guess: measure s by a trial\n"
           "a convolutional network gains less                likewise; its kernels are fused already\n"
           "compiler_config=TrainingCompilerConfig()          was the switch; distributed jobs needed pytorchxla\n"
           "it works beside the distribution libraries        it does not, by the vendor's own questions and answers\n"
           "there is a compiler to choose                     there are no new releases of this one\n");
    if (fabs(break_even(10, 1.3) - 43.3333) > 1e-3 || (argc == 1 && most != 2.0) || fabs(faster - 7.8491) > 1e-3 ||
        shapes < 50 || compiled(1000, 32, 0) != 1)
        return fprintf(stderr, "49_compile_pays: a number is not what it was\n"), 1;
    printf("ok: T*, %sshapes and 8 ranks as computed\n", argc == 1 ? "restarts, " : "");
    return 0;
}
