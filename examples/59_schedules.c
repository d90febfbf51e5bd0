/* 59_schedules: in which order do micro-batches pass through the stages of a pipeline, and what does each order cost?
 *
 * What you learn
 *     - GPipe: all forwards, then all backwards; (p-1)/(m+p-1) of the time is idle. 1F1B does a backward as soon as it
 *       can. Its bubble is the same, its memory is not: stage 0 keeps min(p,m) micro-batches instead of m.
 *     - Interleaved (Megatron): 1F1B over v runs of layers per stage; (p-1)/(v m+p-1) idle, v times the messages, and m
 *       is a multiple of p. What Amazon's SMP calls interleaved is 1F1B, and its "simple" is GPipe: the same bubble.
 *     - Zero-bubble cuts a backward in two: the half that the stage before waits for, and the gradients of weights. No
 *       stage waits for those, so they fill the gaps. Stages are idle for less time, and keep more.
 *     - With m = 1 the p ranks work one after the other. From m = 4p on less than 20 % of the time is idle.
 *     - A cap on the micro-batches in flight trades time for memory. Below p it costs time; above p it gains nothing.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 59_schedules.c -o 59_schedules -lm -lpthread
 *     ./59_schedules
 *     ./59_schedules --stages 8
 *
 * What it prints
 *     GPipe
 *       stage 0  F0  F1  F2  F3  F4  F5  ........................B0  B0  B1  B1  B2  B2  B3  B3  B4  B4  B5  B5
 *       stage 1  ....F0  F1  F2  F3  F4  F5  ............B0  B0  B1  B1  B2  B2  B3  B3  B4  B4  B5  B5  ........
 *       stage 2  ........F0  F1  F2  F3  F4  F5  B0  B0  B1  B1  B2  B2  B3  B3  B4  B4  B5  B5  ................
 *     1F1B
 *       stage 0  F0  F1  F2  ................B0  B0  F3  B1  B1  F4  B2  B2  F5  B3  B3  ....B4  B4  ....B5  B5
 *       stage 1  ....F0  F1  ........B0  B0  F2  B1  B1  F3  B2  B2  F4  B3  B3  F5  B4  B4  ....B5  B5  ........
 *       stage 2  ........F0  B0  B0  F1  B1  B1  F2  B2  B2  F3  B3  B3  F4  B4  B4  F5  B5  B5  ................
 *     interleaved
 *       stage 0  F0F1F2f0f1f2F3F4....b0b0F5b1b1f3b2b2f4B0B0f5B1B1..B2B2..b3b3..b4b4..b5b5B3B3B4B4B5B5
 *       stage 1  ..F0F1F2f0f1f2..b0b0F3b1b1F4b2b2F5B0B0f3B1B1f4B2B2f5b3b3..b4b4..b5b5B3B3B4B4B5B5....
 *       stage 2  ....F0F1F2f0b0b0f1b1b1f2b2b2F3B0B0F4B1B1F5B2B2f3b3b3f4b4b4f5b5b5B3B3B4B4B5B5........
 *     zero-bubble
 *       stage 0  F0  F1  F2  ........B0  W0  F3  B1  W1  F4  B2  W2  F5  B3  W3  B4  W4  B5  W5
 *       stage 1  ....F0  F1  ....B0  F2  B1  W0  F3  B2  W1  F4  B3  W2  F5  B4  W3  B5  W4  W5
 *       stage 2  ........F0  B0  F1  B1  F2  B2  W0  F3  B3  W1  F4  B4  W2  F5  B5  W3  W4  W5
 *     idle %, 4 stages: GPipe   1F1B  (p-1)/(m+p-1)  zero-bubble   v = 2  (p-1)/(2m+p-1)
 *     m =  1             75.0   75.0           75.0         66.7   m is not a multiple of p
 *     m =  2             60.0   60.0           60.0         45.5   m is not a multiple of p
 *     m =  4             42.9   42.9           42.9         20.0    27.3            27.3
 *     m =  8             27.3   27.3           27.3         11.1    15.8            15.8
 *     m = 16             15.8   15.8           15.8          5.9     8.6             8.6  m = 4p
 *     m = 32              8.6    8.6            8.6          3.0     4.5             4.5
 *     m = 64              4.5    4.5            4.5          1.5     2.3             2.3
 *     4 stages, 16 micro-batches, at most in flight, and idle %
 *        1: 75.0  2: 51.5  3: 33.3  4: 15.8  5: 15.8  6: 15.8  7: 15.8  8: 15.8
 *     ok: the formulas hold for 7 values of m; idle with m = 16: 1F1B 15.8 %, zero-bubble 5.9 %
 *
 * Predict first: which m makes 8 stages idle for less than 10 % of the time?
 * Exercise: print the caps as well for a forward that takes as long as a backward. Which cap costs nothing then?
 *
 * Read on: 60_when_not.c for when one rank is enough, 65_across_nodes.c for stages on different nodes. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include "timetable.h"
#include <math.h>

enum { CHUNKS = 2 };
static const int32_t kinds[] = {DT_GPIPE, DT_1F1B, DT_INTERLEAVED, DT_ZERO_BUBBLE};
static const char *const names[] = {"GPipe", "1F1B", "interleaved", "zero-bubble"};

static dt_result plan(timetable *t, int kind, int64_t p, int64_t m)
{
    dt_layout l = dt_layout_default();
    l.pp = p, l.pipeline = kinds[kind], l.chunks = CHUNKS;
    return timetable_open(t, &l, m);
}

/* One scale for all: a forward of a whole stage is 4 characters wide, of one of its two runs 2; dots are idle. */
static void draw(int kind)
{
    timetable t;
    if (plan(&t, kind, 3, 6)) return;
    printf("%s\n", names[kind]);
    for (char *line = strtok(t.text, "\n"); line; line = strtok(NULL, "\n")) {
        printf("  %.9s", line);
        for (const char *cell = line + 9; *cell; cell += 3)
            printf("%.2s%s", *cell == ' ' ? ".." : cell, kind == 2 ? "" : *cell == ' ' ? ".." : "  ");
        printf("\n");
    }
    timetable_close(&t);
}

/* Idle shares of p stages, those with m = 16 also in `at`; returns whether the formulas hold. */
static int sweep(int p, double at[4])
{
    int good = 1;
    printf("\nidle %%, %d stages: GPipe   1F1B  (p-1)/(m+p-1)  zero-bubble   v = 2  (p-1)/(2m+p-1)\n", p);
    for (int m = 1; m <= 64; m *= 2) {
        double idle[4], formula = (p - 1.0) / (m + p - 1), twice = (p - 1.0) / (2 * m + p - 1);
        int fits = 1;
        for (int k = 0; k < 4; k++) {
            timetable t;
            fits = !plan(&t, k, p, m) && fits;
            idle[k] = t.idle;
            timetable_close(&t);
        }
        printf("m = %2d %16.1f %6.1f %14.1f %12.1f", m, 100 * idle[0], 100 * idle[1], 100 * formula, 100 * idle[3]);
        if (fits)
            printf(" %7.1f %15.1f%s\n", 100 * idle[2], 100 * twice, m == 4 * p ? "  m = 4p" : "");
        else
            printf("   m is not a multiple of p\n");
        if (m == 16) memcpy(at, idle, sizeof idle);
        good = good && fabs(idle[0] - formula) < 1e-9 && fabs(idle[1] - formula) < 1e-9;
        good = good && fits == (m % p == 0) && (!fits || fabs(idle[2] - twice) < 1e-9);
    }
    return good;
}

/* 1F1B on p stages, of which at most `cap` micro-batches are in flight: a stage takes a backward where there is one,
 * else a forward. One turn is a forward; a backward takes two. Returns the idle share. */
static double capped(int p, int m, int cap)
{
    int forward[9] = {0}, backward[9] = {0}, busy[8] = {0}, doing[8] = {0}, time = 0;
    forward[0] = m; /* forward[s]: micro-batches that wait before stage s; backward[s + 1]: after it */
    for (int done = 0, flying = 0; done < m; time++) {
        for (int s = p; s-- > 0;) {
            if (busy[s]) continue;
            doing[s] = backward[s + 1] ? 2 : forward[s] && (s || flying < cap) ? 1 : 0;
            busy[s] = doing[s];
            if (doing[s] == 2) backward[s + 1]--;
            if (doing[s] == 1) forward[s]--, flying += !s;
        }
        for (int s = 0; s < p; s++)
            if (busy[s] && !--busy[s]) {
                if (doing[s] == 1) ++*(s == p - 1 ? &backward[p] : &forward[s + 1]);
                else if (s) backward[s]++;
                else done++, flying--;
            }
    }
    return 1 - 3.0 * m / time;
}

int main(int argc, char **argv)
{
    double last = 1, stages = 4, at[4] = {0};
    option list[] = {{"--stages", 2, 16, &stages}};
    int good = 1;
    if (!options_read(argc, argv, list, 1)) return 2;
    for (int k = 0; k < 4; k++) draw(k);
    good = sweep((int)stages, at);
    printf("\n4 stages, 16 micro-batches, at most in flight, and idle %%\n ");
    for (int cap = 1; cap <= 8; cap++) {
        double idle = capped(4, 16, cap);
        printf("  %d: %.1f%s", cap, 100 * idle, cap < 8 ? "" : "\n");
        good = good && idle <= last + 1e-9, last = idle;
    }
    if (!good || capped(4, 16, 1) < 0.74) return fprintf(stderr, "FAILED: idle shares are not the formulas'\n"), 1;
    return printf("ok: the formulas hold for 7 values of m; idle with m = 16: 1F1B %.1f %%, zero-bubble %.1f %%\n",
                  100 * at[1], 100 * at[3]), 0;
}
