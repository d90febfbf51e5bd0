/* Grader of lab 1: sums, bytes and deadlocks of a ring all-reduce, and the time of its messages on a logical clock. */
#include "../grade.h"
#include "lab.h"

enum { MOST = 1 << 14 };
typedef struct task { /* of a rank; the learner's vector is a part of data */
    int64_t count;
    float data[MOST];
} task;
static task first[LAB_RANKS], end[LAB_RANKS];

static void program(lab_comm *c, void *in, void *out)
{
    memcpy(out, in, sizeof(task));
    LAB_ITS(ring_all_reduce)(c, ((task *)out)->data, ((task *)in)->count);
}

/* Whole numbers, whose sums are exact in any order, or fractions, whose sums are rounded. */
static int run(int n, int64_t count, int whole)
{
    for (int r = 0; r < n; r++) {
        first[r].count = count;
        for (int64_t i = 0; i < MOST; i++)
            first[r].data[i] = i >= count ? -1 : whole ? (float)lab_draw(-999, 999) : 1 / (float)lab_draw(1, 9999);
    }
    return lab_run(n, first, sizeof *first, end, sizeof *end);
}

static double sum(int n, int64_t i)
{
    double all = 0;
    for (int r = 0; r < n; r++) all += (double)first[r].data[i];
    return i < first[0].count ? all : -1;
}

/* Is it the sum of whole numbers on all ranks, and nothing past the vector? */
static int right(int n)
{
    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < MOST; i++)
            if ((double)end[r].data[i] != sum(n, i))
                return lab_wrong("rank %d has %g at [%lld], expected %g%s", r, (double)end[r].data[i], (long long)i,
                                 sum(n, i), i < first[0].count ? "" : ": that is past the end of the vector");
    return 1;
}

static void sums(int n, int64_t count, const char *how)
{
    int fine = run(n, count, 1) && right(n);
    if (!fine) lab_fails();
    lab_ok(fine, "sums on %d ranks, %lld floats (%s)", n, (long long)count, how);
}

/* Bytes of each rank: those of 2(n-1) chunks, the smallest or the largest. */
static void bytes(int n, int64_t count)
{
    int64_t rounds = 2 * (n - 1), all = 0, low = 4 * rounds * (count / n), high = 4 * rounds * ((count + n - 1) / n);
    int wrong = -1, collective = 0;
    for (int r = 0; r < n; r++) {
        all += lab_counted[r].bytes;
        if (lab_counted[r].bytes < low || lab_counted[r].bytes > high) wrong = r;
        for (int k = 0; k < 5; k++) collective |= lab_counted[r].calls[k] > 0;
    }
    if (lab_ok(wrong < 0 && all == 4 * rounds * count,
               "bytes on %d ranks: each sends 2(n-1)/n of %lld floats", n, (long long)count))
        return;
    if (collective) lab_note("the sum comes from a collective of ranks.h: build it from lab_send and lab_recv");
    else if (wrong >= 0)
        lab_note("rank %d sends %lld bytes, expected %lld to %lld", wrong, (long long)lab_counted[wrong].bytes,
                 (long long)low, (long long)high);
    else lab_note("all ranks together send %lld bytes, expected %lld", (long long)all, (long long)(4 * rounds * count));
}

/* Rounded sums: near the true ones, and the same bits on all ranks. */
static void replicas(int n, int64_t count)
{
    int rank = -1;
    int64_t at = 0;
    run(n, count, 0);
    for (int r = 0; r < n && rank < 0; r++)
        for (int64_t i = 0; i < count && rank < 0; i++) {
            double off = (double)end[r].data[i] - sum(n, i);
            if (end[r].data[i] != end[0].data[i] || !(off > -1e-5 && off < 1e-5)) rank = r, at = i;
        }
    if (lab_ok(rank < 0, "same bits on all of %d ranks", n) || rank < 0) return;
    if (!memcmp(&end[rank].data[at], &end[0].data[at], sizeof(float)))
        lab_note("rank %d has %.9g at [%lld], expected %.9g", rank, (double)end[rank].data[at], (long long)at,
                 sum(n, at));
    else
        lab_note(
            "at [%lld] rank %d has %.9g, rank 0 has %.9g, the sum is %.9g: finish each chunk on one rank, then copy it",
            (long long)at, rank, (double)end[rank].data[at], (double)end[0].data[at], sum(n, at));
}

/* The time of the slowest rank in the last run, in times of one chunk, if a message keeps both its ends busy. */
static int64_t chunk_times(int64_t chunk)
{
    int64_t most = 0;
    for (int r = 0; r < LAB_RANKS; r++)
        if (lab_counted[r].clock > most) most = lab_counted[r].clock;
    return most / chunk;
}

int main(int argc, char **argv)
{
    int64_t time;
    lab_begin("1_ring", program, argc, argv);
    lab_options.buffered = 1;
    sums(4, 840, "a send does not wait");
    lab_options.buffered = 0, lab_options.beta = 1;
    for (int n = 2; n <= 8; n++) sums(n, 840, "a send waits for its receive"), bytes(n, 840);
    time = chunk_times(840 / 8);
    for (int n = 3; n <= 8; n += 5) sums(n, 1003, "not a multiple of the ranks"), bytes(n, 1003);
    sums(5, 3, "fewer floats than ranks");
    sums(4, 0, "nothing to sum");
    replicas(6, 10000);
    return lab_end((double)time, "chunk times on 8 ranks");
}
