/* Lab 3: a backward pass and a link, both on a logical clock in microseconds. */
#include <stdint.h>

enum { LAYERS = 64 }; /* at most */

typedef struct lab_job {
    int layers, rank, ranks;
    int64_t floats[LAYERS];   /* gradient of a layer */
    int64_t backward[LAYERS]; /* microseconds of a layer's backward; the last layer comes first */
    int64_t alpha;            /* microseconds of an empty all-reduce */
    int64_t rate;             /* floats per microsecond of an all-reduce after that */
} lab_job;

/* Starts the all-reduce of layers first .. last - 1 and returns at once. The link makes one all-reduce after another,
 * each when all ranks have started it. All ranks must start the same ones in the same order. */
void lab_start(int first, int last);

/* What you write; both are called on every rank. begin: before a backward pass. ready: the gradient of a layer is
 * there. When the last call of ready has returned, every layer must have been started. */
void begin(const lab_job *job);
void ready(const lab_job *job, int layer);
