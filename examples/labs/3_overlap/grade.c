/* Grader of lab 3: every gradient is sent once, after it is ready, in one order. Measures the exposed time. */
#include "../grade.h"
#include "lab.h"

enum { RANKS = 4, CALLS = LAYERS, JOBS = 5, DRAWN = 3 }; /* drawn: after the handout's, and not for the score */
enum { READY, START };                                   /* questions */

typedef struct call {
    int first, last;
    int64_t at;
} call;
typedef struct record { /* of a rank */
    int calls, readied, is_ready[LAYERS], started[LAYERS];
    call call[CALLS];
    int64_t end; /* of backward so far */
} record;
typedef struct task { /* what a rank gets */
    lab_job job;
    int order[LAYERS]; /* of backward */
} task;
static task tasks[RANKS];
static record ranks[RANKS];

/* ---- a rank ---- */

void lab_start(int first, int last)
{
    int32_t which[] = {first, last};
    lab_ask(START, 0, which, sizeof which, NULL, 0);
}

/* Each call gets a copy of the job. */
static void program(lab_comm *c, void *in, void *out)
{
    const task t = *(task *)in;
    static lab_job job;
    job = t.job;
    LAB_ITS(begin)(&job);
    for (int i = 0; i < t.job.layers; i++) {
        lab_ask(READY, t.order[i], NULL, 0, NULL, 0);
        job = t.job;
        LAB_ITS(ready)(&job, t.order[i]);
    }
}

/* The grader has the clock, and sees each call. */
static int64_t answer(lab_question *q)
{
    const lab_job *j = &tasks[q->rank].job;
    record *mine = &ranks[q->rank];
    int32_t which[2];
    if (!lab_fits(q, q->what == READY ? 0 : sizeof which, j->layers)) return 0;
    if (q->what == READY) {
        if (mine->readied == j->layers || q->number != tasks[q->rank].order[mine->readied++])
            return lab__nonsense(q->rank);
        mine->end += j->backward[q->number], mine->is_ready[q->number] = 1;
        return 0;
    }
    memcpy(which, q->data, sizeof which);
    if (which[0] < 0 || which[1] > j->layers || which[0] >= which[1])
        return lab_stop("rank %d starts layers %d to %d, but the layers are 0 to %d", q->rank, which[0], which[1] - 1,
                        j->layers - 1);
    for (int l = which[0]; l < which[1]; l++) {
        if (!mine->is_ready[l]) return lab_stop("rank %d starts layer %d before its gradient is there", q->rank, l);
        if (mine->started[l]++) return lab_stop("rank %d starts layer %d twice", q->rank, l);
    }
    mine->call[mine->calls++] = (call){which[0], which[1], mine->end};
    return 0;
}

/* ---- the link ---- */

static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t takes(const lab_job *j, int first, int last)
{
    int64_t floats = 0;
    for (int l = first; l < last; l++) floats += j->floats[l];
    return j->alpha + (floats + j->rate - 1) / j->rate;
}

/* Do all ranks start all layers, in the same calls? */
static int one_order(void)
{
    for (int r = 0; r < RANKS; r++)
        for (int l = 0; l < tasks[0].job.layers; l++)
            if (!ranks[r].started[l]) return lab_wrong("rank %d never starts layer %d", r, l);
    for (int i = 0; i < CALLS; i++)
        for (int r = 1; r < RANKS; r++) {
            const call *a = &ranks[0].call[i], *b = &ranks[r].call[i];
            if (a->first != b->first || a->last != b->last)
                return lab_wrong(
                    "call %d: rank 0 starts layers %d to %d, rank %d starts layers %d to %d: these all-reduces "
                    "never end, or add what does not belong together",
                    i, a->first, a->last - 1, r, b->first, b->last - 1);
        }
    return 1;
}

/* Microseconds from the end of backward to the end of the last call. */
static int64_t exposed(void)
{
    int64_t free_at = 0;
    for (int i = 0; i < ranks[0].calls; i++) {
        int64_t at = free_at;
        for (int r = 0; r < RANKS; r++) at = max(at, ranks[r].call[i].at);
        free_at = at + takes(&tasks[0].job, ranks[0].call[i].first, ranks[0].call[i].last);
    }
    return max(0, free_at - ranks[0].end);
}

/* The same for buckets of `each` layers. */
static int64_t by_layers(const lab_job *j, int each)
{
    int64_t free_at = 0, now = 0;
    for (int last = j->layers; last > 0; last -= each) {
        int first = last > each ? last - each : 0;
        for (int l = first; l < last; l++) now += j->backward[l];
        free_at = max(free_at, now) + takes(j, first, last);
    }
    return max(0, free_at - now);
}

/* The same for the best buckets. */
static int64_t best(const lab_job *j)
{
    int64_t sent[LAYERS + 1] = {0}, now = 0;
    sent[j->layers] = 0;
    for (int first = j->layers - 1; first >= 0; first--) {
        now += j->backward[first], sent[first] = INT64_MAX;
        for (int last = first + 1; last <= j->layers; last++) {
            int64_t end = max(sent[last], now) + takes(j, first, last);
            if (end < sent[first]) sent[first] = end;
        }
    }
    return sent[0] - now;
}

/* swapped: odd ranks compute this layer before the one after it; 0: none. */
static int64_t grade(const char *name, const lab_job *j, int swapped)
{
    int64_t time = 0, least = best(j), bound = (least + (swapped > 0 ? j->backward[swapped] : 0)) * 5 / 4;
    int fine;
    char nothing[RANKS];
    memset(ranks, 0, sizeof ranks);
    for (int r = 0; r < RANKS; r++) {
        tasks[r].job = *j, tasks[r].job.rank = r, tasks[r].job.ranks = RANKS;
        for (int i = 0; i < j->layers; i++) tasks[r].order[i] = j->layers - 1 - i;
        if (swapped && r % 2) tasks[r].order[j->layers - 1 - swapped]--, tasks[r].order[j->layers - swapped]++;
    }
    fine = lab_run(RANKS, tasks, sizeof tasks[0], nothing, 0) && one_order();
    if (!fine) lab_fails();
    lab_ok(fine, "gradients, %s: each layer once, in one order", name);
    time = fine ? exposed() : 0;
    lab_ok(time <= bound, "exposed, %s: %lld microseconds in %d calls, at most %lld", name, (long long)time,
           ranks[0].calls, (long long)bound);
    lab_note("one call per layer: %lld; one call: %lld; the best buckets: %lld", (long long)by_layers(j, 1),
             (long long)by_layers(j, LAYERS), (long long)least);
    return time;
}

static void layers(lab_job *j, int n, int64_t floats, int64_t backward, int64_t alpha, int64_t rate)
{
    j->layers = n, j->alpha = alpha, j->rate = rate;
    for (int l = 0; l < n; l++) j->floats[l] = floats, j->backward[l] = backward;
}

static void draw(lab_job *j)
{
    layers(j, lab_draw(8, LAYERS), 0, 0, lab_draw(10, 900), lab_draw(500, 2000));
    for (int l = 0; l < j->layers; l++) j->floats[l] = 1000 * lab_draw(1, 800), j->backward[l] = lab_draw(50, 1200);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"a wire that is slow", "calls that are slow to begin",
                                        "one layer that is large", "layers that grow", "odd ranks in another order"};
    static lab_job jobs[JOBS], drawn;
    int64_t all = 0;
    lab_begin("3_overlap", program, argc, argv);
    lab_on_ask = answer;
    layers(&jobs[0], 24, 400000, 500, 20, 1000);
    layers(&jobs[1], 48, 50000, 200, 900, 1000);
    layers(&jobs[2], 12, 600000, 1000, 100, 1000), jobs[2].floats[0] = 6000000;
    layers(&jobs[3], 32, 0, 300, 150, 1000);
    for (int l = 0; l < 32; l++) jobs[3].floats[l] = 20000 * (l + 1);
    layers(&jobs[4], 16, 300000, 400, 200, 1000);
    for (int i = 0; i < JOBS; i++) all += grade(names[i], &jobs[i], i == 4 ? 9 : 0);
    for (int i = 1; i <= DRAWN; i++) {
        char name[24];
        snprintf(name, sizeof name, "a drawn job, %d of %d", i, DRAWN);
        draw(&drawn);
        grade(name, &drawn, i == DRAWN ? lab_draw(1, drawn.layers - 1) : 0);
    }
    return lab_end((double)all, "microseconds exposed");
}
