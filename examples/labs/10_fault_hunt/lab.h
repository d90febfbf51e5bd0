/* Lab 10: what you find out about ten runs. */

typedef enum lab_cause {
    CAUSE_UNKNOWN,
    CAUSE_LEARNING_RATE,         /* it does not fit the batch */
    CAUSE_SAME_SAMPLES,          /* all ranks take the same samples */
    CAUSE_GRADIENTS_SUMMED,      /* over ranks, where they should be averaged */
    CAUSE_LOST_SHARD,            /* a shard of the data is never read */
    CAUSE_STRAGGLER,             /* one rank is slow */
    CAUSE_UNDERFLOW,             /* gradients vanish in fp16 */
    CAUSE_OVERFLOW,              /* gradients are too large for fp16 */
    CAUSE_OTHER_INITIAL_WEIGHTS, /* ranks begin with different weights */
    CAUSE_STALE_RUNNING_MEANS,   /* validation normalizes with means that training has not updated */
    CAUSE_NO_SHUFFLE,            /* samples come in the order of the file */
    CAUSE_LOST_MOMENTUM,         /* the resumed run begins with momentum 0 */
    CAUSE_RESTARTED_SAMPLER,     /* the resumed run sees the samples of the first steps again */
    CAUSE_SLOW_LINK,             /* messages take longer than they should */
    CAUSE_NONE                   /* the run is healthy */
} lab_cause;

typedef enum lab_fix {
    FIX_NOTHING,
    FIX_SET_RATE,          /* value: the learning rate */
    FIX_DIVIDE_GRADIENTS,  /* value: the sum over ranks is divided by it */
    FIX_SHARD_SAMPLER,     /* each rank takes its own share of a batch */
    FIX_READ_SHARD,        /* value: the number of a shard, 0 to 7, that is to be read */
    FIX_REPLACE_RANK,      /* value: the rank that moves to another machine */
    FIX_LOSS_SCALE,        /* value: the loss is multiplied by it before backward, gradients are divided by it after */
    FIX_BROADCAST_WEIGHTS, /* from rank 0, before step 0 */
    FIX_UPDATE_RUNNING_MEANS, /* in every step */
    FIX_SHUFFLE,              /* every epoch */
    FIX_RESTORE_MOMENTUM,     /* from the checkpoint */
    FIX_RESTORE_SAMPLER       /* from the checkpoint */
} lab_fix;

typedef struct lab_answer {
    lab_cause cause;
    lab_fix fix;
    double value; /* of the fixes that have one */
} lab_answer;

enum { LAB_RUNS = 10 };
extern const lab_answer lab_answers[LAB_RUNS]; /* runs A to J: you write it */
