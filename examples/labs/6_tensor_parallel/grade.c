/* Grader of lab 6: the serial MLP's numbers, one all-reduce each way of what the ranks have, 1/n of the weights, and
 * one hash. */
#include "../grade.h"
#include "lab.h"
#include <math.h>

enum { BATCH = ROWS * C, ALL = C * HIDDEN, SLACK = 1024, STACK = 16384 };
enum { FORWARD, BACKWARD, NEITHER }; /* passes */

enum { Y, DX, DA, DB };
static const char *const names[] = {"y", "dx", "da", "db"};
typedef struct weights { /* what a rank gets */
    float a[ALL], b[ALL], x[BATCH], dy[BATCH];
} weights;
typedef struct numbers { /* what it returns: of y and dx, BATCH */
    float of[4][ALL];
} numbers;

static weights whole, in[SHARDS];
static numbers all[SHARDS], want;
static double part[2][SHARDS][BATCH];               /* of y and of dx: what a shard adds to them */
static int pass[SHARDS];                            /* at which a rank is; -1: at none */
static int64_t calls[SHARDS][3], floats[SHARDS][3]; /* messages or collectives, floats in all-reduces, up to a pass */
static struct {
    int rank, at;
    double has, want;
} odd[2]; /* a part that is not what its rank should have added; rank -1: none */

/* ---- what the lab offers ---- */

void lab_matmul(const float *a, const float *b, float *y, int n, int k, int m, int form)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            float sum = 0;
            for (int q = 0; q < k; q++)
                sum += a[form & LAB_TA ? q * n + i : i * k + q] * b[form & LAB_TB ? j * k + q : q * m + j];
            y[i * m + j] = sum;
        }
}

/* x Phi(x), Phi(x) = (1 + erf(x / sqrt 2)) / 2. */
float lab_gelu(float x) { return 0.5f * x * (1 + erff(x * 0.70710678f)); }
float lab_gelu_slope(float x) { return 0.5f * (1 + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x); }

/* ---- a rank, and what the grader sees of it ---- */

/* All arrays are lent: nothing can be read or kept beside them. */
static void learner(lab_comm *c, void *given, void *out)
{
    weights *w = given;
    numbers *to = out;
    float *a = lab_lend(w->a, sizeof w->a), *b = lab_lend(w->b, sizeof w->b);
    float *x = lab_lend(w->x, 4 * BATCH), *y = lab_lend(to->of[Y], 4 * BATCH);
    float *dy = lab_lend(w->dy, 4 * BATCH), *dx = lab_lend(to->of[DX], 4 * BATCH);
    mlp *m;
    memset(w, 0, sizeof *w);
    lab_counts_stack();
    m = LAB_ITS(mlp_open)(c, a, b);
    lab_unlend(a), lab_unlend(b);
    if (!m) lab_refuse("gets NULL from mlp_open");
    lab_ask(0, FORWARD, NULL, 0, NULL, 0);
    LAB_ITS(mlp_forward)(m, x, y);
    lab_ask(0, BACKWARD, NULL, 0, NULL, 0);
    LAB_ITS(mlp_backward)(m, dy, dx);
    lab_ask(0, NEITHER, NULL, 0, NULL, 0);
    memcpy(to->of[Y], y, 4 * BATCH), memcpy(to->of[DX], dx, 4 * BATCH);
    LAB_ITS(mlp_gradients)(m, to->of[DA], to->of[DB]);
    LAB_ITS(mlp_close)(m);
}

/* Messages and collectives of a rank so far. */
static int64_t made_by(int rank)
{
    int64_t made = lab_counted[rank].messages;
    for (int i = 0; i < 5; i++) made += lab_counted[rank].calls[i];
    return made;
}

/* A rank begins a pass. */
static int64_t answer(lab_question *q)
{
    if (!lab_fits(q, 0, NEITHER + 1)) return 0;
    if (q->number != pass[q->rank] + 1) return lab__nonsense(q->rank);
    pass[q->rank] = (int)q->number, calls[q->rank][q->number] = made_by(q->rank);
    floats[q->rank][q->number] = lab_counted[q->rank].call_floats[LAB_ALL_REDUCE];
    return 0;
}

/* Does a rank add what its own hidden units give? */
static void watch(int rank, lab_call call, const float *data, int64_t count)
{
    int own = SHARDS / lab__net.ranks, p = pass[rank];
    if (call != LAB_ALL_REDUCE || count != BATCH || p < 0 || p == NEITHER) return;
    for (int i = 0; i < BATCH && odd[p].rank < 0; i++) {
        double sum = 0;
        for (int s = rank * own; s < (rank + 1) * own; s++) sum += part[p][s][i];
        if (!(fabs((double)data[i] - sum) <= 1e-4))
            odd[p].rank = rank, odd[p].at = i, odd[p].has = (double)data[i], odd[p].want = sum;
    }
}

/* ---- the reference ---- */

/* By definition, in double; the parts of y and dx by shard. */
static void serial(void)
{
    const weights *w = &whole;
    for (int i = 0; i < ROWS; i++)
        for (int h = 0; h < HIDDEN; h++) {
            double before = 0, d = 0;
            for (int k = 0; k < C; k++) before += (double)w->x[i * C + k] * (double)w->a[k * HIDDEN + h];
            for (int k = 0; k < C; k++) {
                part[FORWARD][h / H][i * C + k] += (double)lab_gelu((float)before) * (double)w->b[h * C + k];
                d += (double)w->dy[i * C + k] * (double)w->b[h * C + k];
                want.of[DB][h * C + k] += lab_gelu((float)before) * w->dy[i * C + k];
            }
            d *= (double)lab_gelu_slope((float)before);
            for (int k = 0; k < C; k++) {
                part[BACKWARD][h / H][i * C + k] += d * (double)w->a[k * HIDDEN + h];
                want.of[DA][k * HIDDEN + h] += w->x[i * C + k] * (float)d;
            }
        }
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < BATCH; i++) for (int s = 0; s < SHARDS; s++) want.of[p][i] += (float)part[p][s][i];
}

/* What rank r gets: other numbers in place of the others' hidden units, so that no rank computes y alone. */
static void hand_out(int n)
{
    for (int r = 0; r < n; r++) {
        in[r] = whole;
        for (int i = 0; i < ALL; i++) {
            if (i % HIDDEN / (HIDDEN / n) != r) lab_numbers(&in[r].a[i], 1, 0.5f);
            if (i / C / (HIDDEN / n) != r) lab_numbers(&in[r].b[i], 1, 0.2f);
        }
    }
}

/* ---- tests ---- */

/* Is this number on all ranks that of the serial MLP? Of da and db, a rank has its hidden units. */
static void near(int what, int n)
{
    int rank = -1, at = 0;
    for (int r = 0; r < n; r++)
        for (int i = 0; i < (what < DA ? BATCH : ALL) && rank < 0; i++) {
            int unit = what == DA ? i % HIDDEN : i / C;
            if ((what < DA || unit / (HIDDEN / n) == r) && !(fabsf(all[r].of[what][i] - want.of[what][i]) <= 1e-4f))
                rank = r, at = i;
        }
    if (!lab_ok(rank < 0, "%s, ranks: %d; that of the serial MLP", names[what], n))
        lab_note("rank %d has %g at [%d], expected %g", rank, (double)all[rank < 0 ? 0 : rank].of[what][at], at,
                 (double)want.of[what][at]);
}

/* mlp_open belongs to forward, and all from backward on to backward: weights are not sent there, either. */
static void one_call(int p, int n)
{
    int made = 0, least = BATCH, most = 0;
    for (int r = 0; r < n; r++) {
        int k = (int)(p == FORWARD ? calls[r][BACKWARD] : made_by(r) - calls[r][BACKWARD]);
        int f = (int)(floats[r][p + 1] - floats[r][p]);
        made = k > made ? k : made, least = f < least ? f : least, most = f > most ? f : most;
    }
    if (lab_ok(n == 1 ? made <= 1 : made == 1 && least == BATCH && most == BATCH && odd[p].rank < 0,
               "%s, ranks: %d; one all-reduce of %d floats", p == BACKWARD ? "backward" : "forward", n, BATCH))
        return;
    if (made == 1 && odd[p].rank >= 0)
        lab_note("rank %d puts %g at [%d] into the all-reduce; its hidden units give %g to %s", odd[p].rank, odd[p].has,
                 odd[p].at, odd[p].want, names[p]);
    else lab_note("%d calls, %d floats in all-reduces", made, most);
}

/* Weights and gradients, two activations of the hidden units, x, and a part of the output per shard. */
static void memory(int n)
{
    int64_t most = 4 * (4 * ALL / n + 3 * ROWS * HIDDEN / n + (2 + SHARDS / n) * BATCH) + SLACK, peak = 0;
    int worst = 0;
    for (int r = 0; r < n; r++)
        if (lab_memory(r, STACK) > peak) peak = lab_memory(r, STACK), worst = r;
    if (!lab_ok(peak <= most, "memory, ranks: %d; %lld bytes, at most %lld: a rank keeps its share of the weights", n,
                (long long)peak, (long long)most))
        lab_note_memory(worst, STACK);
}

/* The bits of a run: y and dx of every rank, and everybody's gradients. */
static uint64_t bits(int n)
{
    static float da[ALL], db[ALL];
    uint64_t h[4] = {0};
    for (int i = 0; i < ALL; i++) {
        da[i] = all[i % HIDDEN / (HIDDEN / n)].of[DA][i];
        db[i] = all[i / C / (HIDDEN / n)].of[DB][i];
    }
    for (int r = 0; r < n; r++)
        for (int k = Y; k <= DX; k++) {
            uint64_t one = lab_hash(all[r].of[k], 4 * BATCH);
            if (r && one != h[k]) return 0;
            h[k] = one;
        }
    h[DA] = lab_hash(da, sizeof da), h[DB] = lab_hash(db, sizeof db);
    return lab_hash(h, sizeof h);
}

int main(int argc, char **argv)
{
    uint64_t hash[5] = {0};
    lab_begin("6_tensor_parallel", learner, argc, argv);
    lab_on_ask = answer, lab_options.watch = watch;
    lab_numbers(whole.a, ALL, 0.5f), lab_numbers(whole.b, ALL, 0.2f);
    lab_numbers(whole.x, BATCH, 1), lab_numbers(whole.dy, BATCH, 1);
    serial();
    for (int n = 1; n <= 4; n *= 2) {
        for (int r = 0; r < SHARDS; r++) pass[r] = -1;
        odd[0].rank = odd[1].rank = -1, hand_out(n);
        hash[n] = lab_run(n, in, sizeof in[0], all, sizeof all[0]) ? bits(n) : 0;
        for (int k = Y; k <= DB; k++) near(k, n);
        one_call(FORWARD, n), one_call(BACKWARD, n);
        memory(n);
    }
    lab_reached();
    if (lab_ok(hash[1] && hash[1] == hash[2] && hash[1] == hash[4], "one hash: the same bits on 1, 2 and 4 ranks")) {
    } else if (!hash[1] || !hash[2] || !hash[4]) lab_note("some run did not end, or its ranks have different bits");
    else
        lab_note("the hashes are %016llx, %016llx, %016llx; add %d shards in one tree on all of them",
                 (unsigned long long)hash[1], (unsigned long long)hash[2], (unsigned long long)hash[4], SHARDS);
    return lab_end(0, NULL);
}
