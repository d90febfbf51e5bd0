/* 34_overlap_by_hand: how can gradients be sent while others are still being computed?
 *
 * What you learn
 *     - Backward computes gradients from the last layer to the first. The gradient of the last layer is ready when most
 *       of the work is still to come. If gradients are reduced only after backward, the network is idle during backward
 *       and the processor is idle during the reduction.
 *     - A second thread, with its own communicator, reduces each layer's gradient when it is ready. What it has not
 *       done when backward ends is exposed: the step waits for it. The gradient of the first layer always is.
 *     - With several layers in a bucket there are fewer calls, each of which costs the delay of the link, but a bucket
 *       is ready later. All layers in one bucket are the loop without overlap again.
 *     - All ranks must make the calls of a communicator in one order. Layers are ready in the same order on all ranks.
 *     - The sums are the same, so no bit changes.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 34_overlap_by_hand.c -o 34_overlap_by_hand -lm -lpthread
 *     ./34_overlap_by_hand --ranks 2 --nodes 2   (a link of 1 MB/s, emulated; --backward-ms 2: less work)
 *
 * What it prints
 *     backward of a layer 8 ms, its gradient on the link 4.1 ms and 1 ms of delay; 8 layers on 2 ranks
 *       layers a call   calls   step, ms   exposed, ms
 *       8, after            1     ~100.0         ~35.3
 *       1                   8      ~69.0          ~4.3
 *       2                   4      ~73.1          ~8.4
 *       4                   2      ~83.9         ~19.3
 *     ok: 1, 8, 4 and 2 calls make the same 8192 sums to the bit, as the trainer does
 *
 * Predict first: what is exposed if backward takes 2 ms a layer instead of 8?
 * Exercise: begin the next forward with the layers whose sums are done. How long does it wait, and for which layer?
 *
 * Read on: 35_overlap.c for the trainer's buckets, 24_link.c for alpha and beta of a link. */
#define DEPTH 8
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "layers.h"
#include "option.h"
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { TURNS = 4 };
static double work = 8; /* milliseconds that a layer's backward takes, a sleep: two cores are enough */

/* What the two threads share. Layers [ready, DEPTH) have gradients; layers [sent, DEPTH) have sums. */
typedef struct shared {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    dt_comm *c;
    float *g;
    int bucket, ready, sent, calls;
    dt_result r;
} shared;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The thread that communicates: a bucket at a time, from the last layer to the first. */
static void *communicate(void *argument)
{
    shared *s = argument;
    for (int end = DEPTH; end > 0; end -= s->bucket) {
        int begin = end - s->bucket;
        dt_result r;
        pthread_mutex_lock(&s->mutex);
        while (s->ready > begin) pthread_cond_wait(&s->changed, &s->mutex);
        pthread_mutex_unlock(&s->mutex);
        r = dt_all_reduce(s->c, s->g + begin * LAYER, s->bucket * LAYER, DT_SUM);
        pthread_mutex_lock(&s->mutex);
        s->sent = begin, s->calls++;
        if (!s->r) s->r = r;
        pthread_cond_signal(&s->changed);
        pthread_mutex_unlock(&s->mutex);
    }
    return NULL;
}

/* A backward pass and the sums of its gradients. after: without the thread. *exposed: seconds after backward. */
static dt_result backward(shared *s, int after, const float *w, float x[DEPTH + 1][SAMPLES * WIDTH], double *exposed)
{
    float d[SAMPLES * WIDTH];
    pthread_t thread;
    double computed;
    dt_result r = DT_OK;
    memcpy(d, x[DEPTH], sizeof d);
    s->ready = s->sent = DEPTH, s->calls = 0;
    if (!after && pthread_create(&thread, NULL, communicate, s)) return DT_E_SYSTEM;
    for (int l = DEPTH; l-- > 0;) {
        if (!r) r = layer_backward(w + l * LAYER, x[l], d, SAMPLES, s->g + l * LAYER, d);
        usleep((useconds_t)(1e3 * work));
        pthread_mutex_lock(&s->mutex);
        s->ready = l;
        pthread_cond_signal(&s->changed);
        pthread_mutex_unlock(&s->mutex);
    }
    computed = now();
    if (after) communicate(s);
    else pthread_join(thread, NULL);
    *exposed = now() - computed;
    return r ? r : s->r;
}

int main(int argc, char **argv)
{
    static const struct { const char *name; int bucket, after; } runs[4] = {
        {"8, after", 8, 1}, {"1", 1, 0}, {"2", 2, 0}, {"4", 4, 0}};
    static float w[WEIGHTS], g[4][WEIGHTS], x[DEPTH + 1][SAMPLES * WIDTH], unused[WIDTH];
    shared s = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    dt_layout overlapped = dt_layout_default();
    dt_comm *c = NULL;
    option list[] = {{"--backward-ms", 0, 100, &work}};
    float trainers;
    int rank, good = 1;
    dt_result r;
    setenv("DT_LINK_RATE", "1e6", 0), setenv("DT_LINK_DELAY", "0.001", 0); /* bytes per second, seconds */
    r = dt_comm_open(&c, &argc, &argv);
    if (!r) r = dt_comm_split(c, 0, &s.c); /* for the other thread */
    if (r) return dt_fail("34_overlap_by_hand");
    if (!options_read(argc, argv, list, 1)) return 2;
    rank = dt_comm_rank(c);
    overlapped.overlap = DT_OVERLAP_ON, overlapped.bucket = 1;
    trainers = layers_trainers(&overlapped, w);
    for (int64_t i = 0; i < SAMPLES; i++) layers_sample(NULL, DT_TRAIN, rank * SAMPLES + i, x[0] + i * WIDTH, unused);
    for (int l = 0; l < DEPTH && !r; l++) r = layer_forward(w + l * LAYER, x[l], SAMPLES, x[l + 1]);
    if (!rank)
        printf("backward of a layer %g ms, its gradient on the link 4.1 ms and 1 ms of delay; %d layers on %d rank%s\n"
               "  layers a call   calls   step, ms   exposed, ms\n", work, DEPTH, dt_comm_size(c),
               dt_comm_size(c) > 1 ? "s" : "");
    for (int i = 0; i < 4 && !r; i++) {
        double best = 1e9, exposed = 0, start, waited = 0;
        s.g = g[i], s.bucket = runs[i].bucket;
        for (int turn = 0; turn < TURNS && !r; turn++) {
            r = dt_barrier(c);
            start = now();
            if (!r) r = backward(&s, runs[i].after, w, x, &waited);
            if (now() - start < best) best = now() - start, exposed = waited;
        }
        good = good && s.calls == DEPTH / runs[i].bucket && !memcmp(g[i], g[0], sizeof g[0]);
        if (!rank) printf("  %-13s  %6d     %6.1f        %6.1f\n", runs[i].name, s.calls, 1e3 * best, 1e3 * exposed);
    }
    dt_comm_close(&s.c), dt_comm_close(&c);
    if (r) return dt_fail("34_overlap_by_hand");
    if (!good || !(trainers > 0)) return fprintf(stderr, "FAILED: bits or calls differ\n"), 1;
    if (!rank) printf("ok: 1, 8, 4 and 2 calls make the same %d sums to the bit, as the trainer does\n", WEIGHTS);
    return 0;
}
