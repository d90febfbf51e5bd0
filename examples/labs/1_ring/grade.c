/* Grader of lab 1: sums, bytes and deadlocks of a ring all-reduce, and the time of its messages on a logical clock. */
#include "../grade.h"
#include "lab.h"

enum { MOST = 1 << 14 };
typedef struct task {
    int64_t count;
    float (*first)(int rank, int64_t i);
    float end[LAB_RANKS][MOST];
} task;

static float whole(int rank, int64_t i) { return (float)(rank + 1) * (float)(i % 7 + 1); }     /* exact in any order */
static float broken(int rank, int64_t i) { return 1.0f / (float)(rank * 31 + i % 1000 + 1); } /* rounded */

static void program(lab_comm *c, void *user)
{
    task *t = user;
    float *data = t->end[lab_rank(c)];
    for (int64_t i = 0; i < MOST; i++) data[i] = i < t->count ? t->first(lab_rank(c), i) : -1;
    ring_all_reduce(c, data, t->count);
}

/* Is it the sum of whole numbers on all ranks, and nothing behind the vector? */
static int right(const task *t, int n)
{
    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < MOST; i++) {
            float want = i < t->count ? (float)(n * (n + 1) / 2) * (float)(i % 7 + 1) : -1;
            if (t->end[r][i] == want) continue;
            snprintf(lab_verdict, sizeof lab_verdict, "rank %d has %g at [%lld], expected %g%s", r,
                     (double)t->end[r][i], (long long)i, (double)want,
                     i < t->count ? "" : ": that is behind the end of the vector");
            return 0;
        }
    return 1;
}

static int sums(task *t, int n, int64_t count, const char *how)
{
    t->count = count, t->first = whole;
    if (lab_ok(lab_run(n, program, t) && right(t, n), "sums on %d ranks, %lld floats (%s)", n, (long long)count, how))
        return 1;
    lab_note("%s", lab_verdict);
    return 0;
}

/* Bytes of each rank: those of 2(n-1) chunks, the smallest or the largest. */
static void bytes(int n, int64_t count, int summed)
{
    int64_t rounds = 2 * (n - 1), all = 0, low = 4 * rounds * (count / n), high = 4 * rounds * ((count + n - 1) / n);
    int wrong = -1;
    for (int r = 0; r < n; r++) {
        all += lab_counted[r].bytes;
        if (lab_counted[r].bytes < low || lab_counted[r].bytes > high) wrong = r;
    }
    if (lab_ok(summed && wrong < 0 && all == 4 * rounds * count,
               "bytes on %d ranks: each sends 2(n-1)/n of %lld floats", n, (long long)count))
        return;
    if (!summed) lab_note("not counted, because the sums are wrong");
    else if (wrong >= 0)
        lab_note("rank %d sends %lld bytes, expected %lld to %lld", wrong, (long long)lab_counted[wrong].bytes,
                 (long long)low, (long long)high);
    else lab_note("all ranks together send %lld bytes, expected %lld", (long long)all, (long long)(4 * rounds * count));
}

/* Rounded sums: near the true ones, and the same bits on all ranks. */
static void replicas(task *t, int n, int64_t count)
{
    t->count = count, t->first = broken;
    if (!lab_runs(n, program, t, "same bits on all of %d ranks", n)) return;
    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < count; i++) {
            double want = 0;
            for (int q = 0; q < n; q++) want += (double)broken(q, i);
            if (t->end[r][i] == t->end[0][i] && (double)t->end[r][i] > want - 1e-5 &&
                (double)t->end[r][i] < want + 1e-5)
                continue;
            lab_ok(0, "same bits on all of %d ranks", n);
            lab_note("at [%lld] rank %d has %.9g, rank 0 has %.9g, the sum is %.9g: finish each chunk on one rank, "
                     "then copy it", (long long)i, r, (double)t->end[r][i], (double)t->end[0][i], want);
            return;
        }
    lab_ok(1, "same bits on all of %d ranks", n);
}

/* The time of the slowest rank, in times of one chunk, if a message keeps both its ends busy. */
static int64_t chunk_times(task *t)
{
    int64_t most = 0;
    lab_options.beta = 1, t->count = 8 * 100, t->first = whole;
    if (!lab_run(8, program, t)) return 0;
    for (int r = 0; r < 8; r++)
        if (lab_counted[r].clock > most) most = lab_counted[r].clock;
    return most / 100;
}

int main(int argc, char **argv)
{
    task *t = lab_shared(sizeof *t);
    lab_begin("1_ring", argc, argv);
    lab_options.buffered = 1;
    sums(t, 4, 840, "a send does not wait");
    lab_options.buffered = 0;
    for (int n = 2; n <= 8; n++) bytes(n, 840, sums(t, n, 840, "a send waits for its receive"));
    for (int n = 3; n <= 8; n += 5) bytes(n, 1003, sums(t, n, 1003, "no multiple of the ranks"));
    sums(t, 5, 3, "fewer floats than ranks");
    sums(t, 4, 0, "nothing to sum");
    replicas(t, 6, 10000);
    return lab_end((double)chunk_times(t), "chunk times on 8 ranks");
}
