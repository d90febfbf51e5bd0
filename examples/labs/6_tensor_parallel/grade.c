/* Grader of lab 6: the serial MLP's numbers, one all-reduce each way, 1/n of the weights, and one hash. */
#include "../grade.h"
#include "lab.h"
#include <math.h>

enum { BATCH = ROWS * C, ALL = C * HIDDEN, SLACK = 1024 };

enum { Y, DX, DA, DB };
static const char *const names[] = {"y", "dx", "da", "db"};
typedef struct numbers {
    float of[4][ALL];            /* y and dx: BATCH of them */
    int64_t calls[2], floats[2]; /* forward and backward: messages or collectives, floats in all-reduces */
} numbers;

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

/* ---- runs ---- */

/* Numbers in (-scale, scale). */
static float number(int i, float scale) { return scale * sinf(12.9898f * (float)(i + 1)); }

static void inputs(float *a, float *b, float *x, float *dy)
{
    for (int i = 0; i < ALL; i++) a[i] = number(i, 0.5f), b[i] = number(i + ALL, 0.2f);
    for (int i = 0; i < BATCH; i++) x[i] = number(i + 2 * ALL, 1), dy[i] = number(i + 3 * ALL, 1);
}

/* Adds what a rank has called so far, with this sign. */
static void count(const lab_comm *c, numbers *to, int pass, int sign)
{
    const lab_counts *k = &c->w->counts[c->rank];
    to->calls[pass] += sign * k->messages;
    for (int i = 0; i < 5; i++) to->calls[pass] += sign * k->calls[i];
    to->floats[pass] += sign * k->call_floats[LAB_ALL_REDUCE];
}

static void learner(lab_comm *c, void *user)
{
    static float a[ALL], b[ALL], x[BATCH], dy[BATCH];
    numbers *to = (numbers *)user + lab_rank(c);
    mlp *m;
    inputs(a, b, x, dy);
    m = mlp_open(c, a, b);
    if (!m) lab_refuse(c, "gets NULL from mlp_open");
    memset(a, 0, sizeof a), memset(b, 0, sizeof b); /* they are not the learner's to keep */
    count(c, to, 0, -1);
    mlp_forward(m, x, to->of[Y]);
    count(c, to, 0, 1), count(c, to, 1, -1);
    mlp_backward(m, dy, to->of[DX]);
    count(c, to, 1, 1);
    mlp_gradients(m, to->of[DA], to->of[DB]);
    mlp_close(m);
}

/* By definition, in double. */
static void serial(numbers *to)
{
    static float a[ALL], b[ALL], x[BATCH], dy[BATCH];
    static double y[BATCH], dx[BATCH];
    inputs(a, b, x, dy);
    memset(to, 0, sizeof *to);
    for (int i = 0; i < ROWS; i++)
        for (int h = 0; h < HIDDEN; h++) {
            double before = 0, d = 0;
            for (int k = 0; k < C; k++) before += (double)x[i * C + k] * (double)a[k * HIDDEN + h];
            for (int k = 0; k < C; k++) {
                y[i * C + k] += (double)lab_gelu((float)before) * (double)b[h * C + k];
                d += (double)dy[i * C + k] * (double)b[h * C + k];
                to->of[DB][h * C + k] += lab_gelu((float)before) * dy[i * C + k];
            }
            d *= (double)lab_gelu_slope((float)before);
            for (int k = 0; k < C; k++) {
                dx[i * C + k] += d * (double)a[k * HIDDEN + h];
                to->of[DA][k * HIDDEN + h] += x[i * C + k] * (float)d;
            }
        }
    for (int i = 0; i < BATCH; i++) to->of[Y][i] = (float)y[i], to->of[DX][i] = (float)dx[i];
}

/* ---- tests ---- */

/* Is this number on all ranks that of the serial MLP? Of da and db, a rank has its hidden units. */
static void near(const numbers *all, const numbers *want, int what, int n)
{
    for (int r = 0; r < n; r++)
        for (int i = 0; i < (what < DA ? BATCH : ALL); i++) {
            int unit = what == DA ? i % HIDDEN : i / C;
            if ((what >= DA && unit / (HIDDEN / n) != r) || fabsf(all[r].of[what][i] - want->of[what][i]) <= 1e-4f)
                continue;
            lab_ok(0, "%s, ranks: %d; that of the serial MLP", names[what], n);
            lab_note("rank %d has %g at [%d], expected %g", r, (double)all[r].of[what][i], i,
                     (double)want->of[what][i]);
            return;
        }
    lab_ok(1, "%s, ranks: %d; that of the serial MLP", names[what], n);
}

static void one_call(const numbers *all, int pass, int n)
{
    int calls = (int)all[0].calls[pass], floats = (int)all[0].floats[pass];
    if (!lab_ok(n == 1 ? calls <= 1 : calls == 1 && floats == BATCH, "%s, ranks: %d; one all-reduce of %d floats",
                pass ? "backward" : "forward", n, BATCH))
        lab_note("%d calls, %d floats in all-reduces", calls, floats);
}

/* Weights and gradients, two activations of the hidden units, x, and a part of the output per shard. */
static void memory(int n)
{
    int64_t most = 4 * (4 * ALL / n + 3 * ROWS * HIDDEN / n + (2 + SHARDS / n) * BATCH) + SLACK, peak = 0;
    for (int r = 0; r < n; r++)
        if (lab_counted[r].peak > peak) peak = lab_counted[r].peak;
    lab_ok(peak <= most, "memory, ranks: %d; %lld bytes, at most %lld: a rank keeps its share of the weights", n,
           (long long)peak, (long long)most);
}

/* The bits of a run: y and dx of every rank, and everybody's gradients. */
static uint64_t bits(const numbers *all, int n)
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
    numbers *all = lab_shared(LAB_RANKS * sizeof *all), *want = lab_shared(sizeof *want);
    uint64_t hash[5] = {0};
    lab_begin("6_tensor_parallel", argc, argv);
    serial(want);
    for (int n = 1; n <= 4; n *= 2) {
        memset(all, 0, LAB_RANKS * sizeof *all);
        if (!lab_runs(n, learner, all, "y, ranks: %d", n)) continue;
        for (int k = Y; k <= DB; k++) near(all, want, k, n);
        one_call(all, 0, n), one_call(all, 1, n);
        memory(n);
        hash[n] = bits(all, n);
    }
    if (!lab_ok(hash[1] && hash[1] == hash[2] && hash[1] == hash[4], "one hash: the same bits on 1, 2 and 4 ranks"))
        lab_note("the hashes are %016llx, %016llx, %016llx; add %d shards in one tree on all of them",
                 (unsigned long long)hash[1], (unsigned long long)hash[2], (unsigned long long)hash[4], SHARDS);
    return lab_end(0, NULL);
}
