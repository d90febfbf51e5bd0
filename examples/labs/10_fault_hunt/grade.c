/* Grader of lab 10: ten runs of job.h with a fault each. Shows what they show, then runs them again with the learner's
 * fixes. Do not read on before you have found them: the faults are in faulty(). */
#include "../grade.h"
#include "lab.h"
#include "job.h"

typedef struct task {
    job job;
    trace trace;
} task;

static void program(lab_comm *c, void *user)
{
    task *t = user;
    (void)c;
    train(&t->job, &t->trace);
}

static void run(task *t)
{
    if (lab_run(1, program, t)) return;
    printf("Bail out! %s\n", lab_verdict);
    exit(1);
}

/* ---- what a run shows ---- */

static void show(const char *name, const task *t)
{
    const trace *o = &t->trace;
    int epoch = o->samples / BATCH;
    lab_note("%s", name);
    printf("#   loss, every 8th step  ");
    for (int i = EVERY - 1; i < STEPS; i += EVERY) printf(" %5.2f", (double)o->loss[i]);
    printf("\n#     of steps 16 to 25   ");
    for (int i = 16; i < 26; i++) printf(" %5.2f", (double)o->loss[i]);
    printf("\n#   validation loss       ");
    for (int i = 0; i < STEPS / EVERY; i++) printf(" %5.2f", (double)o->validation[i]);
    printf("\n#   gradient norm, steps 0 to 2: %.3g %.3g %.3g; fp16: %.0f %% zeros, %d steps skipped",
           (double)o->gradient[0], (double)o->gradient[1], (double)o->gradient[2],
           100.0 * (double)o->zeros / (STEPS * RANKS * WEIGHTS), (int)o->overflows);
    printf("\n#   update norm, steps 37 to 44 (resumed before 40):");
    for (int i = 37; i < 45; i++) printf(" %.3f", (double)o->update[i]);
    printf("\n#   learning rate %.3g, batch %d; the recipe says 0.02 for a batch of %d, and in proportion for others",
           (double)t->job.rate, BATCH, SHARE);
    printf("\n#   epoch: %d samples, %d distinct; by class %d %d %d %d; classes in a batch %.1f", o->samples,
           o->distinct, o->by_class[0], o->by_class[1], o->by_class[2], o->by_class[3],
           (double)o->classes_seen / epoch);
    if (o->unread)
        printf("\n#     %d samples are not read: the first is %d, the last %d", o->unread, o->unread_first,
               o->unread_last);
    printf("\n#   running means of the first and the last input: %.2f %.2f", (double)o->mean[0], (double)o->mean[1]);
    for (int when = 0; when < 2; when++) {
        printf("\n#   hash of the weights by rank, %s:", when ? "at the end" : "at step 0 ");
        for (int r = 0; r < RANKS; r++) printf(" %04x", (unsigned)(o->hash[when][r] & 0xffff));
    }
    printf("\n#   a step takes %d ticks; in its all-reduce are, by rank:", (int)(o->ticks / STEPS));
    for (int r = 0; r < RANKS; r++) printf(" %d", (int)(o->waits[r] / STEPS));
    printf("\n#\n");
}

/* ---- the faults ---- */

static lab_cause faulty(int run, job *j)
{
    *j = healthy();
    switch (run) {
    case 0: j->broadcast = 0; return CAUSE_OTHER_INITIAL_WEIGHTS;
    case 1: j->scale = 1; return CAUSE_UNDERFLOW;
    case 2: j->by_rank = 0; return CAUSE_SAME_SAMPLES;
    case 3: j->slow_rank = 2; return CAUSE_STRAGGLER;
    case 4: j->rate = 1.28f; return CAUSE_LEARNING_RATE;
    case 5: j->running = 0; return CAUSE_STALE_RUNNING_MEANS;
    case 6: j->divide = 1; return CAUSE_GRADIENTS_SUMMED;
    case 7: j->shuffle = 0; return CAUSE_NO_SHUFFLE;
    case 8: j->momentum = 0; return CAUSE_LOST_MOMENTUM;
    default: j->lost_shard = 5; return CAUSE_LOST_SHARD;
    }
}

static void mend(job *j, const lab_answer *a)
{
    switch (a->fix) {
    case FIX_NOTHING: break;
    case FIX_SET_RATE: j->rate = (float)a->value; break;
    case FIX_DIVIDE_GRADIENTS: j->divide = (float)a->value; break;
    case FIX_SHARD_SAMPLER: j->by_rank = 1; break;
    case FIX_READ_SHARD: if ((int)a->value == j->lost_shard) j->lost_shard = -1; break;
    case FIX_REPLACE_RANK: if ((int)a->value == j->slow_rank) j->slow_rank = -1; break;
    case FIX_LOSS_SCALE: j->scale = (float)a->value; break;
    case FIX_BROADCAST_WEIGHTS: j->broadcast = 1; break;
    case FIX_UPDATE_RUNNING_MEANS: j->running = 1; break;
    case FIX_SHUFFLE: j->shuffle = 1; break;
    case FIX_RESTORE_MOMENTUM: j->momentum = 1; break;
    case FIX_RESTORE_SAMPLER: j->sampler = 1; break;
    }
}

/* Where the fix has a number to choose, the validation loss may differ a little; else the run is the healthy one. */
static int mended(const task *t, const task *good, lab_cause cause)
{
    float loss = t->trace.validation[STEPS / EVERY - 1], want = good->trace.validation[STEPS / EVERY - 1];
    if (cause == CAUSE_LEARNING_RATE || cause == CAUSE_UNDERFLOW)
        return loss <= want * 1.02f && t->trace.overflows <= 2;
    return !memcmp(t->trace.hash, good->trace.hash, sizeof t->trace.hash) && t->trace.ticks == good->trace.ticks &&
           !memcmp(t->trace.validation, good->trace.validation, sizeof t->trace.validation);
}

static void grade(int r, task *t, const task *good)
{
    const lab_answer *a = &lab_answers[r];
    lab_cause cause = faulty(r, &t->job);
    char name[16];
    snprintf(name, sizeof name, "run %c", 'A' + r);
    if (!lab_ok(a->cause == cause, "%s: the cause", name))
        lab_note(a->cause == CAUSE_UNKNOWN ? "CAUSE_UNKNOWN"
                                           : "it is another one; compare the run with the healthy one");
    mend(&t->job, a);
    run(t);
    if (!lab_ok(mended(t, good, cause), "%s: mended, it is the healthy run%s", name,
                cause == CAUSE_LEARNING_RATE || cause == CAUSE_UNDERFLOW ? " within 2 % of its loss" : ""))
        lab_note("with your fix: validation loss %.3f, hash of rank 0 %04x, %d ticks; healthy: %.3f, %04x, %d",
                 (double)t->trace.validation[STEPS / EVERY - 1], (unsigned)(t->trace.hash[1][0] & 0xffff),
                 (int)t->trace.ticks, (double)good->trace.validation[STEPS / EVERY - 1],
                 (unsigned)(good->trace.hash[1][0] & 0xffff), (int)good->trace.ticks);
}

int main(int argc, char **argv)
{
    task *good = lab_shared(sizeof *good), *t = lab_shared(sizeof *t);
    lab_begin("10_fault_hunt", argc, argv);
    good->job = healthy();
    run(good);
    show("a healthy run: 80 steps on 4 ranks", good);
    for (int r = 0; r < LAB_RUNS; r++) {
        char name[16];
        snprintf(name, sizeof name, "run %c", 'A' + r);
        faulty(r, &t->job);
        run(t);
        show(name, t);
    }
    for (int r = 0; r < LAB_RUNS; r++) grade(r, t, good);
    return lab_end(0, NULL);
}
