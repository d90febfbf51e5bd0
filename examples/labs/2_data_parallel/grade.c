/* Grader of lab 2: equal replicas that train as one rank does, each sample on one rank, and few lines. */
#include "../grade.h"
#include "dtrain.h"
#include "lab.h"
#include <ctype.h>
#include <math.h>

enum { LINES_ALLOWED = 15, LINES = 400 };
enum { SAMPLES_OF, REPORT }; /* questions */

typedef struct outcome {
    float w[WEIGHTS], loss[STEPS];
    int visits[STEPS][BATCH]; /* of each sample */
} outcome;
typedef struct drawn { /* samples: x, then y */
    float x[BATCH][IN], y[BATCH];
} drawn;

static float first[LAB_RANKS][WEIGHTS];
static drawn batch[STEPS];
static outcome all[LAB_RANKS], want;

/* ---- what the lab offers, in the process of a rank ---- */

static const float *my_weights;

/* A graph failed: that is the lab's fault, not the learner's. */
static void broken(void)
{
    fprintf(stderr, "lab 2: %s\n", dt_last_error());
    exit(1);
}

void lab_weights(float *w) { memcpy(w, my_weights, sizeof first[0]); }

void lab_samples(int step, int from, int n, float *x, float *y)
{
    int32_t which[] = {step, from, n};
    drawn d;
    lab_ask(SAMPLES_OF, 0, which, sizeof which, &d, sizeof d);
    memcpy(x, d.x, sizeof d.x[0] * (size_t)n), memcpy(y, d.y, sizeof d.y[0] * (size_t)n);
}

void lab_report(int step, float loss)
{
    if (step >= 0 && step < STEPS) lab_ask(REPORT, step, &loss, sizeof loss, NULL, 0);
}

/* The mean over samples of (tanh(x W1) W2 - y)^2, on the library's tensors. */
float lab_backward(const float *w, const float *x, const float *y, int n, float *gradient)
{
    dt_graph *g = NULL;
    dt_tensor weights, out, w1, w2, miss, mean;
    float loss;
    if (dt_graph_open(&g, 1)) broken();
    weights = dt_tensor_of(g, DT_F32, dt_shape1(WEIGHTS), w);
    w1 = dt_reshape(g, dt_slice(g, weights, 0, 0, IN * HIDDEN), dt_shape2(IN, HIDDEN));
    w2 = dt_reshape(g, dt_slice(g, weights, 0, IN * HIDDEN, WEIGHTS), dt_shape2(HIDDEN, 1));
    out = dt_tanh(g, dt_matmul(g, dt_tensor_of(g, DT_F32, dt_shape2(n, IN), x), w1, 0, 0));
    miss = dt_sub(g, dt_matmul(g, out, w2, 0, 0), dt_tensor_of(g, DT_F32, dt_shape2(n, 1), y));
    mean = dt_mean(g, dt_mul(g, miss, miss), DT_ALL);
    if (dt_backward(g, mean)) broken();
    loss = dt_value(g, mean)[0];
    memcpy(gradient, dt_value(g, dt_grad(g, weights)), sizeof(float) * WEIGHTS);
    dt_graph_close(&g);
    return loss;
}

/* ---- runs ---- */

static void learner(lab_comm *c, void *in, void *out)
{
    my_weights = in;
    LAB_ITS(train)(c, out);
}

/* The grader has the samples, so that it sees who takes which. */
static int64_t answer(lab_question *q)
{
    static drawn d;
    int32_t which[3];
    float loss;
    if (!lab_fits(q, q->what == REPORT ? sizeof loss : sizeof which, STEPS)) return 0;
    if (q->what == REPORT) {
        memcpy(&loss, q->data, sizeof loss), all[q->rank].loss[q->number] = loss;
        return 0;
    }
    memcpy(which, q->data, sizeof which);
    int step = which[0], from = which[1], n = which[2];
    if (step < 0 || step >= STEPS || from < 0 || n < 1 || n > BATCH - from)
        return lab_stop(
            "rank %d asks for samples %d to %d of step %d: a step has samples 0 to %d, and the steps are 0 to %d",
            q->rank, from, from + n - 1, step, BATCH - 1, STEPS - 1);
    memset(&d, 0, sizeof d); /* no other rank's samples */
    memcpy(d.x, batch[step].x[from], sizeof d.x[0] * (size_t)n);
    memcpy(d.y, batch[step].y + from, sizeof d.y[0] * (size_t)n);
    for (int i = from; i < from + n; i++) all[q->rank].visits[step][i]++;
    q->reply = &d, q->reply_bytes = sizeof d;
    return 0;
}

/* y is the sign of a sum. No sample fits into fewer bytes than its share of a gradient has. */
static void draw(void)
{
    for (int r = 0; r < LAB_RANKS; r++) lab_numbers(first[r], WEIGHTS, 0.8f);
    for (int i = 0; i < STEPS * BATCH; i++) {
        float *x = batch[i / BATCH].x[i % BATCH];
        lab_numbers(x, IN, 1.7f);
        batch[i / BATCH].y[i % BATCH] = x[0] + x[1] + x[2] > 0 ? 1 : -1;
    }
}

/* The loop of the stub. */
static void serial(void)
{
    float gradient[WEIGHTS];
    memcpy(want.w, first[0], sizeof want.w);
    for (int step = 0; step < STEPS; step++) {
        want.loss[step] = lab_backward(want.w, batch[step].x[0], batch[step].y, BATCH, gradient);
        for (int i = 0; i < WEIGHTS; i++) want.w[i] -= RATE * gradient[i];
    }
}

static double farthest(const float *a, const float *b, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= most)) most = d; /* NaN, too */
    }
    return most;
}

static void samples(int n)
{
    int visits = 0, own = 0, step = 0, i = 0;
    for (int at = 0; at < STEPS * BATCH; at++) {
        step = at / BATCH, i = at % BATCH, visits = 0;
        for (int r = 0; r < n; r++) visits += all[r].visits[step][i];
        if (visits != 1) break;
    }
    for (int k = 0; k < BATCH; k++) own += all[0].visits[0][k];
    if (lab_ok(visits == 1 && own == BATCH / n, "samples, ranks: %d; each on one rank, %d of a step per rank", n,
               BATCH / n))
        return;
    if (visits != 1) lab_note("%d ranks take sample %d of step %d", visits, i, step);
    else lab_note("rank 0 takes %d samples of a step", own);
}

static void replicas(int n)
{
    int other = 0;
    while (other < n - 1 && !memcmp(all[other].w, all[0].w, sizeof all[0].w)) other++;
    if (lab_ok(!memcmp(all[other].w, all[0].w, sizeof all[0].w), "replicas, ranks: %d; the same bits on all", n))
        return;
    lab_note("the weights of ranks 0 and %d differ by up to %.1e: did they begin with the same ones?", other,
             farthest(all[other].w, all[0].w, WEIGHTS));
}

static void near(int n)
{
    double w = farthest(all[0].w, want.w, WEIGHTS), loss = 0;
    int worst = 0;
    for (int r = 0; r < n; r++) {
        double d = farthest(all[r].loss, want.loss, STEPS);
        if (!(d <= loss)) loss = d, worst = r;
    }
    if (!lab_ok(w <= 1e-4, "weights, ranks: %d; those of one rank, within 1e-4", n))
        lab_note("they differ by %.1e; is the gradient the mean over the whole batch?", w);
    if (!lab_ok(loss <= 1e-4, "loss, ranks: %d; every rank reports the mean over the whole batch", n))
        lab_note("a loss that rank %d reports is %.1e away", worst, loss);
}

static void sent(int n)
{
    const lab_counts *k = &lab_counted[0];
    int64_t most = STEPS * (WEIGHTS + 1), once = k->call_floats[LAB_BROADCAST], messages = 0;
    int64_t whole = k->call_floats[LAB_ALL_GATHER] + k->call_floats[LAB_REDUCE_SCATTER], reduced;
    for (int r = 0; r < n; r++)
        if (lab_counted[r].bytes > messages) messages = lab_counted[r].bytes;
    reduced = k->call_floats[LAB_ALL_REDUCE] + whole * n + messages / 8; /* a ring sends each float twice */
    if (lab_ok(reduced <= most && once <= WEIGHTS, "bytes, ranks: %d; a gradient and a loss per step, the weights once",
               n))
        return;
    lab_note("floats in sums: %lld, allowed %lld; floats in broadcasts: %lld, allowed %d", (long long)reduced,
             (long long)most, (long long)once, (int)WEIGHTS);
}

static void on(int n)
{
    float w[LAB_RANKS][WEIGHTS];
    memset(all, 0, sizeof all);
    lab_run(n, first, sizeof first[0], w, sizeof w[0]);
    for (int r = 0; r < n; r++) memcpy(all[r].w, w[r], sizeof w[r]);
    samples(n), replicas(n), near(n), sent(n);
}

/* ---- lines ---- */

/* A line without comments and blanks. Returns the statements that it has; 0: a brace or less. */
static int code(const char *line, char *to, int *comment)
{
    int statements = 0, depth = 0, words = 0;
    for (; *line; line++) {
        if (*comment) {
            if (line[0] == '*' && line[1] == '/') *comment = 0, line++;
        } else if (line[0] == '/' && line[1] == '*') *comment = 1, line++;
        else if (line[0] == '/' && line[1] == '/') break;
        else if (!isspace((unsigned char)*line)) {
            depth = *line == '{' ? 0 : depth + (*line == '(') - (*line == ')' && depth > 0);
            statements += *line == ';' && !depth;
            words |= isalnum((unsigned char)*line), *to++ = *line;
        }
    }
    *to = 0;
    return !words ? 0 : statements ? statements : 1;
}

static int read_code(const char *path, char (*lines)[400], int *statements)
{
    char line[400];
    int n = 0, comment = 0;
    FILE *f = fopen(path, "r");
    while (f && n < LINES && fgets(line, sizeof line, f)) {
        statements[n] = code(line, lines[n], &comment);
        n += statements[n] > 0;
    }
    if (f) fclose(f);
    return n;
}

/* Statements of the learner's file that are not in the stub: all, less the longest common subsequence. */
static int lines_added(void)
{
    static char old[LINES][400], new[LINES][400];
    static int common[LINES + 1][LINES + 1], of_old[LINES], of_new[LINES];
    int n_old = read_code(lab__call.stub, old, of_old), n_new = read_code(lab__call.file, new, of_new), sum = 0;
    for (int i = 1; i <= n_old; i++)
        for (int j = 1; j <= n_new; j++) {
            int *to = &common[i][j];
            *to = common[i - 1][j] > common[i][j - 1] ? common[i - 1][j] : common[i][j - 1];
            if (!strcmp(old[i - 1], new[j - 1]) && common[i - 1][j - 1] + of_new[j - 1] > *to)
                *to = common[i - 1][j - 1] + of_new[j - 1];
        }
    for (int j = 0; j < n_new; j++) {
        int macro = strstr(new[j], "define") && strchr(new[j], ';'), goes_on = strchr(new[j], 0)[-1] == '\\';
        sum += macro || goes_on ? LINES : of_new[j]; /* nobody knows how many statements that makes */
    }
    return sum - common[n_old][n_new];
}

int main(int argc, char **argv)
{
    uint64_t hash = 0;
    int one_hash = 1, lines;
    lab_begin("2_data_parallel", learner, argc, argv);
    lab_on_ask = answer;
    draw(), serial();
    for (int n = 1; n <= 8; n *= 2) {
        on(n);
        if (n == 1) hash = lab_hash(all[0].w, sizeof all[0].w);
        one_hash = one_hash && lab_hash(all[0].w, sizeof all[0].w) == hash;
    }
    lab_reached();
    lines = lines_added();
    lab_ok(lines <= LINES_ALLOWED, "lines: %d are added to the stub or changed, at most %d", lines, LINES_ALLOWED);
    if (!lab__failures)
        lab_note(one_hash ? "bonus: one hash on 1, 2, 4 and 8 ranks" : "no bonus: other ranks, other bits");
    return lab_end(lines, one_hash ? "lines, one hash" : "lines");
}
