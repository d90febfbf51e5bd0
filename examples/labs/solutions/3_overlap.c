#include "lab.h"

static int next[LAYERS], is_ready[LAYERS]; /* next[k]: where the bucket that begins at layer k ends */
static int sent;                           /* layers from here on have been started */

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* sent_at[k] is the earliest time at which layers k, k + 1, .. can all be sent: the last of their buckets is
 * k .. j - 1, which waits for layer k and for the link. Try every j. */
static void plan(const lab_job *job)
{
    int64_t sent_at[LAYERS + 1], ready_at = 0;
    sent_at[job->layers] = 0;
    for (int k = job->layers - 1; k >= 0; k--) {
        int64_t floats = 0;
        ready_at += job->backward[k], sent_at[k] = INT64_MAX;
        for (int j = k + 1; j <= job->layers; j++) {
            floats += job->floats[j - 1];
            int64_t end = later(sent_at[j], ready_at) + job->alpha + (floats + job->rate - 1) / job->rate;
            if (end < sent_at[k]) sent_at[k] = end, next[k] = j;
        }
    }
}

void begin(const lab_job *job)
{
    plan(job);
    sent = job->layers;
    for (int k = 0; k < job->layers; k++) is_ready[k] = 0;
}

/* Layers become ready in any order; buckets leave in the order of the plan, which all ranks share. */
void ready(const lab_job *job, int layer)
{
    (void)job;
    is_ready[layer] = 1;
    for (int first = 0; sent > 0; first = 0) {
        while (next[first] < sent) first = next[first];
        for (int k = first; k < sent; k++)
            if (!is_ready[k]) return;
        lab_start(first, sent);
        sent = first;
    }
}
