/* Grader of lab 10: ten runs of job.h with a fault each. Shows what they show, then runs them again with the learner's
 * fixes. Do not read on before you have found them: the faults are in faulty(). */
#include "../grade.h"
#include "lab.h"
#include "job.h"

typedef struct task {
    job job;
    trace trace;
} task;

static task good, t;

static void program(lab_comm *c, void *in, void *out)
{
    memcpy(out, LAB_ITS(lab_answers), sizeof lab_answers);
}

static void run(task *of) { train(&of->job, &of->trace); }

/* The first seed has the runs of the handout's hints. Others shuffle them, and draw their numbers. */
static int order[LAB_RUNS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, slow_rank = 2, lost_shard = 5;
static float factor = 16; /* of the learning rate */

static void draw(void)
{
    if (lab_seed == 1) return;
    for (int i = LAB_RUNS - 1; i > 0; i--) {
        int k = lab_draw(0, i), swap = order[i];
        order[i] = order[k], order[k] = swap;
    }
    slow_rank = lab_draw(0, RANKS - 1), lost_shard = lab_draw(0, SHARDS - 1), factor = (float)lab_draw(12, 20);
}

/* ---- what a run shows ---- */

/* A line: a label, and so many numbers. */
static void line(const char *label, const char *format, const float *x, int n, int each)
{
    char text[LAB_TEXT];
    int at = snprintf(text, sizeof text, "  %s", label);
    for (int i = each - 1; i < n; i += each) at += snprintf(text + at, sizeof text - (size_t)at, format, (double)x[i]);
    lab_note("%s", text);
}

static void show(const char *name, const task *of)
{
    const trace *o = &of->trace;
    float waits[RANKS];
    lab_note("%s", name);
    line("loss, every 8th step  ", " %5.2f", o->loss, STEPS, EVERY);
    line("  of steps 16 to 25   ", " %5.2f", o->loss + 16, 10, 1);
    line("validation loss       ", " %5.2f", o->validation, STEPS / EVERY, 1);
    lab_note("  gradient norm, steps 0 to 2: %.3g %.3g %.3g; fp16: %.0f %% zeros, %d steps skipped",
             (double)o->gradient[0], (double)o->gradient[1], (double)o->gradient[2],
             100.0 * (double)o->zeros / (STEPS * RANKS * WEIGHTS), (int)o->overflows);
    line("update norm, steps 37 to 44 (resumed before 40):", " %.3f", o->update + 37, 8, 1);
    lab_note("  learning rate %.3g, batch %d; the recipe says 0.02 for a batch of %d, and in proportion for others",
             (double)of->job.rate, BATCH, SHARE);
    lab_note("  epoch: %d samples, %d distinct; by class %d %d %d %d; classes in a batch %.1f", o->samples, o->distinct,
             o->by_class[0], o->by_class[1], o->by_class[2], o->by_class[3],
             (double)o->classes_seen / (o->samples / BATCH));
    if (o->unread)
        lab_note("    %d samples are not read: the first is %d, the last %d", o->unread, o->unread_first,
                 o->unread_last);
    lab_note("  running means of the first and the last input: %.2f %.2f", (double)o->mean[0], (double)o->mean[1]);
    for (int when = 0; when < 2; when++)
        lab_note("  hash of the weights by rank, %s: %04x %04x %04x %04x", when ? "at the end" : "at step 0 ",
                 (unsigned)(o->hash[when][0] & 0xffff), (unsigned)(o->hash[when][1] & 0xffff),
                 (unsigned)(o->hash[when][2] & 0xffff), (unsigned)(o->hash[when][3] & 0xffff));
    for (int r = 0; r < RANKS; r++) waits[r] = (float)(o->waits[r] / STEPS);
    lab_note("  a step takes %d ticks", (int)(o->ticks / STEPS));
    line("  of these in the all-reduce, by rank:", " %.0f", waits, RANKS, 1);
    lab_note(" ");
}

/* ---- the faults ---- */

static lab_cause faulty(int r, job *j)
{
    *j = healthy();
    switch (order[r]) {
    case 0: j->broadcast = 0; return CAUSE_OTHER_INITIAL_WEIGHTS;
    case 1: j->scale = 1; return CAUSE_UNDERFLOW;
    case 2: j->by_rank = 0; return CAUSE_SAME_SAMPLES;
    case 3: j->slow_rank = slow_rank; return CAUSE_STRAGGLER;
    case 4: j->rate *= factor; return CAUSE_LEARNING_RATE;
    case 5: j->running = 0; return CAUSE_STALE_RUNNING_MEANS;
    case 6: j->divide = 1; return CAUSE_GRADIENTS_SUMMED;
    case 7: j->shuffle = 0; return CAUSE_NO_SHUFFLE;
    case 8: j->momentum = 0; return CAUSE_LOST_MOMENTUM;
    default: j->lost_shard = lost_shard; return CAUSE_LOST_SHARD;
    }
}

static void mend(job *j, const lab_answer *a)
{
    switch (a->fix) {
    case FIX_NOTHING: break;
    case FIX_SET_RATE: j->rate = (float)a->value; break;
    case FIX_DIVIDE_GRADIENTS: j->divide = (float)a->value; break;
    case FIX_SHARD_SAMPLER: j->by_rank = 1; break;
    case FIX_READ_SHARD:
        if (a->value == j->lost_shard) j->lost_shard = -1;
        break;
    case FIX_REPLACE_RANK:
        if (a->value == j->slow_rank) j->slow_rank = -1;
        break;
    case FIX_LOSS_SCALE: j->scale = (float)a->value; break;
    case FIX_BROADCAST_WEIGHTS: j->broadcast = 1; break;
    case FIX_UPDATE_RUNNING_MEANS: j->running = 1; break;
    case FIX_SHUFFLE: j->shuffle = 1; break;
    case FIX_RESTORE_MOMENTUM: j->momentum = 1; break;
    case FIX_RESTORE_SAMPLER: j->sampler = 1; break;
    }
}

/* Where the fix has a number to choose, the validation loss may differ a little; else the run is the healthy one. */
static int mended(lab_cause cause)
{
    float loss = t.trace.validation[STEPS / EVERY - 1], want = good.trace.validation[STEPS / EVERY - 1];
    if (cause == CAUSE_LEARNING_RATE || cause == CAUSE_UNDERFLOW) return loss <= want * 1.02f && t.trace.overflows <= 2;
    return !memcmp(t.trace.hash, good.trace.hash, sizeof t.trace.hash) && t.trace.ticks == good.trace.ticks &&
           !memcmp(t.trace.validation, good.trace.validation, sizeof t.trace.validation);
}

static void grade(int r, const lab_answer *a)
{
    lab_cause cause = faulty(r, &t.job);
    int name = 'A' + r;
    if (!lab_ok(a->cause == cause, "run %c: the cause", name))
        lab_note(a->cause == CAUSE_UNKNOWN ? "CAUSE_UNKNOWN"
                                           : "it is another one; compare the run with the healthy one");
    mend(&t.job, a);
    run(&t);
    if (!lab_ok(mended(cause), "run %c: mended, it is the healthy run%s", name,
                cause == CAUSE_LEARNING_RATE || cause == CAUSE_UNDERFLOW ? " within 2 % of its loss" : ""))
        lab_note("with your fix: validation loss %.3f, hash of rank 0 %04x, %d ticks; healthy: %.3f, %04x, %d",
                 (double)t.trace.validation[STEPS / EVERY - 1], (unsigned)(t.trace.hash[1][0] & 0xffff),
                 (int)t.trace.ticks, (double)good.trace.validation[STEPS / EVERY - 1],
                 (unsigned)(good.trace.hash[1][0] & 0xffff), (int)good.trace.ticks);
}

int main(int argc, char **argv)
{
    lab_answer answers[LAB_RUNS];
    lab_seed = 1;
    lab_begin("10_fault_hunt", program, argc, argv);
    draw();
    good.job = healthy();
    run(&good);
    show("a healthy run: 80 steps on 4 ranks", &good);
    for (int r = 0; r < LAB_RUNS; r++) {
        char name[16];
        snprintf(name, sizeof name, "run %c", 'A' + r);
        faulty(r, &t.job);
        run(&t);
        show(name, &t);
    }
    lab_run(1, "", 0, answers, sizeof answers);
    for (int r = 0; r < LAB_RUNS; r++) grade(r, &answers[r]);
    return lab_end(lab_tries, lab_tries == 1 ? "try" : "tries");
}
