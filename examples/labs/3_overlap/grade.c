/* Grader of lab 3: every gradient is sent once, after it is ready, in one order. Measures the exposed time. */
#include "../grade.h"
#include "lab.h"

enum { RANKS = 4, CALLS = 4 * LAYERS };

typedef struct call {
    int first, last;
    int64_t at;
} call;
typedef struct record { /* of a rank */
    int calls;
    call call[CALLS];
    int64_t end; /* of backward */
} record;
typedef struct task {
    const char *name;
    lab_job job;
    int swapped; /* odd ranks compute this layer before the one behind it; 0: none */
    record rank[RANKS];
} task;

/* ---- a rank ---- */

static lab_comm *comm;
static const lab_job *current;
static record *mine;
static int is_ready[LAYERS], started[LAYERS];

void lab_start(int first, int last)
{
    if (first < 0 || last > current->layers || first >= last)
        lab_refuse(comm, "starts layers %d to %d, but the layers are 0 to %d", first, last - 1, current->layers - 1);
    for (int l = first; l < last; l++) {
        if (!is_ready[l]) lab_refuse(comm, "starts layer %d before its gradient is there", l);
        if (started[l]++) lab_refuse(comm, "starts layer %d twice", l);
    }
    mine->call[mine->calls++] = (call){first, last, mine->end};
}

static void program(lab_comm *c, void *user)
{
    task *t = user;
    comm = c, mine = &t->rank[lab_rank(c)], current = &t->job;
    lab_job job = t->job;
    job.rank = lab_rank(c), job.ranks = RANKS;
    begin(&job);
    for (int i = job.layers - 1; i >= 0; i--) {
        int l = i;
        if (t->swapped && job.rank % 2) l = i == t->swapped ? i - 1 : i == t->swapped - 1 ? i + 1 : i;
        mine->end += job.backward[l], is_ready[l] = 1;
        ready(&job, l);
    }
    for (int l = 0; l < job.layers; l++)
        if (!started[l]) lab_refuse(comm, "never starts layer %d", l);
}

/* ---- the link ---- */

static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t takes(const lab_job *j, int first, int last)
{
    int64_t floats = 0;
    for (int l = first; l < last; l++) floats += j->floats[l];
    return j->alpha + (floats + j->rate - 1) / j->rate;
}

/* Do all ranks start the same calls? */
static int one_order(const task *t)
{
    for (int i = 0; i < CALLS; i++)
        for (int r = 1; r < RANKS; r++) {
            const call *a = &t->rank[0].call[i], *b = &t->rank[r].call[i];
            if (a->first == b->first && a->last == b->last) continue;
            snprintf(lab_verdict, sizeof lab_verdict,
                     "call %d: rank 0 starts layers %d to %d, rank %d starts layers %d to %d: these all-reduces never "
                     "end, or add what does not belong together",
                     i, a->first, a->last - 1, r, b->first, b->last - 1);
            return 0;
        }
    return 1;
}

/* Microseconds from the end of backward to the end of the last call. */
static int64_t exposed(const task *t)
{
    int64_t free_at = 0;
    for (int i = 0; i < t->rank[0].calls; i++) {
        int64_t at = free_at;
        for (int r = 0; r < RANKS; r++) at = max(at, t->rank[r].call[i].at);
        free_at = at + takes(&t->job, t->rank[0].call[i].first, t->rank[0].call[i].last);
    }
    return max(0, free_at - t->rank[0].end);
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

static int64_t grade(task *t)
{
    int64_t time = 0, least = best(&t->job), bound = least + least / 4;
    if (!lab_ok(lab_run(RANKS, program, t) && one_order(t), "gradients, %s: each layer once, in one order", t->name)) {
        lab_note("%s", lab_verdict);
        lab_ok(0, "exposed, %s", t->name);
        lab_note("not measured, because gradients are wrong");
        return 0;
    }
    time = exposed(t);
    lab_ok(time <= bound, "exposed, %s: %lld microseconds in %d calls, at most %lld", t->name, (long long)time,
           t->rank[0].calls, (long long)bound);
    lab_note("one call per layer: %lld; one call: %lld; the best buckets: %lld", (long long)by_layers(&t->job, 1),
             (long long)by_layers(&t->job, LAYERS), (long long)least);
    return time;
}

static void layers(lab_job *j, int n, int64_t floats, int64_t backward, int64_t alpha, int64_t rate)
{
    j->layers = n, j->alpha = alpha, j->rate = rate;
    for (int l = 0; l < n; l++) j->floats[l] = floats, j->backward[l] = backward;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"a wire that is slow", "calls that are slow to begin",
                                        "one layer that is large", "layers that grow", "odd ranks in another order"};
    task *t = lab_shared(5 * sizeof *t);
    int64_t all = 0;
    lab_begin("3_overlap", argc, argv);
    layers(&t[0].job, 24, 400000, 500, 20, 1000);
    layers(&t[1].job, 48, 50000, 200, 900, 1000);
    layers(&t[2].job, 12, 600000, 1000, 100, 1000), t[2].job.floats[0] = 6000000;
    layers(&t[3].job, 32, 0, 300, 150, 1000);
    for (int l = 0; l < 32; l++) t[3].job.floats[l] = 20000 * (l + 1);
    layers(&t[4].job, 16, 300000, 400, 200, 1000), t[4].swapped = 9;
    for (int i = 0; i < 5; i++) t[i].name = names[i], all += grade(&t[i]);
    return lab_end((double)all, "microseconds exposed");
}
