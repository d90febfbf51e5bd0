#include "lab.h"

const lab_answer lab_answers[LAB_RUNS] = {
    /* A: the hashes differ between ranks from step 0 on. */
    {CAUSE_OTHER_INITIAL_WEIGHTS, FIX_BROADCAST_WEIGHTS, 0},
    /* B: all gradients are zeros in fp16, and nothing is learned. They are means over 2^24 tokens: scale them back. */
    {CAUSE_UNDERFLOW, FIX_LOSS_SCALE, 16777216},
    /* C: an epoch has 512 samples, but only 128 different ones. */
    {CAUSE_SAME_SAMPLES, FIX_SHARD_SAMPLER, 0},
    /* D: the numbers are healthy, a step takes three times as long. All wait in the all-reduce but rank 2. */
    {CAUSE_STRAGGLER, FIX_REPLACE_RANK, 2},
    /* E: 64 / 16 times 0.02 is 0.08; the run has 1.28. The first gradient is healthy. */
    {CAUSE_LEARNING_RATE, FIX_SET_RATE, 0.08},
    /* F: the weights are those of the healthy run, only validation is bad: its running means are still 0. */
    {CAUSE_STALE_RUNNING_MEANS, FIX_UPDATE_RUNNING_MEANS, 0},
    /* G: the learning rate is right, but the first gradient has 4 times its norm. */
    {CAUSE_GRADIENTS_SUMMED, FIX_DIVIDE_GRADIENTS, 4},
    /* H: a batch has one class. */
    {CAUSE_NO_SHUFFLE, FIX_SHUFFLE, 0},
    /* I: the healthy run up to step 39; the first update behind the resume is half as long. */
    {CAUSE_LOST_MOMENTUM, FIX_RESTORE_MOMENTUM, 0},
    /* J: an epoch has 448 samples; 320 to 383 are missing, which is shard 5 of 64 samples each. */
    {CAUSE_LOST_SHARD, FIX_READ_SHARD, 5},
};
