/* 85_flight_recorder: all ranks hang in a collective. Which one is somewhere else?
 *
 * What you learn
 *     - A rank that makes another call than the others stops all of them, often without a message. Here one has a batch
 *       less, and leaves its loop a step earlier.
 *     - A flight recorder helps: each rank writes down the number, name and size of a call before it makes it. When
 *       the job hangs or fails, the last entries of all ranks show which one is elsewhere. PyTorch has such a recorder
 *       for NCCL.
 *     - This library compares the calls itself, and its error is such an entry: it names the rank and both calls.
 *
 * Build and run it, in this folder
 *     cc -O2 -I.. 85_flight_recorder.c -o 85_flight_recorder -lm -lpthread
 *     ./85_flight_recorder --ranks 4             (--floats 99: rank 2's fifth all-reduce is shorter instead)
 *
 * What it prints
 *     last calls
 *       rank 0  #5 all-reduce of 100 floats: failed
 *       rank 1  #5 all-reduce of 100 floats: failed
 *       rank 2  #5 broadcast of 100 floats: failed
 *       rank 3  #5 all-reduce of 100 floats: failed
 *     ok: at call 5 the record and the library name rank 2
 *
 * Predict first: rank 2 has 99 floats in its fifth all-reduce instead of 100. What does the record show then?
 * Exercise: keep the last eight entries of each rank instead of one, and print the first that differs from rank 0's.
 *
 * Read on: 86_load_balance.c for a rule about ranks, 53_tensor_parallel.c for groups that must make the same calls. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "option.h"
#include <unistd.h>

enum { RANKS = 4, OTHER = 2, ALL = 100 };
static double floats = ALL; /* of rank OTHER's fifth all-reduce; ALL: it makes four */

typedef struct board { /* in memory that all ranks see */
    int calls, size; /* how many there were, and floats and name of the last */
    char name[16];
    int ended; /* it did, 1: well, 2: with an error */
} board;

/* Writes down, then calls. */
static dt_result call(dt_comm *c, board *mine, const char *name, float *data, int size)
{
    mine->calls++, mine->size = size;
    snprintf(mine->name, sizeof mine->name, "%s", name);
    return strcmp(name, "broadcast") ? dt_all_reduce(c, data, size, DT_SUM) : dt_broadcast(c, data, size, 0);
}

/* Five steps, the last one different on rank OTHER, then a broadcast. *other: whose last entry is not rank 0's. */
static void mismatched(dt_comm *c, board *mine, int *other, int *told)
{
    float gradient[ALL] = {0};
    char sentence[64];
    int four = dt_comm_rank(c) == OTHER && floats >= ALL, shorter = dt_comm_rank(c) == OTHER ? (int)floats : ALL;
    dt_result r = DT_OK;
    for (int step = 1; step <= 5 - four && !r; step++)
        r = call(c, mine, "all-reduce", gradient, step < 5 ? ALL : shorter);
    if (!r) r = call(c, mine, "broadcast", gradient, ALL);
    snprintf(sentence, sizeof sentence, "rank %d in %s", OTHER, floats < ALL ? "all-reduce" : "broadcast");
    *told = r == DT_E_PEER && strstr(dt_last_error(), sentence) != NULL;
    __atomic_store_n(&mine->ended, 1 + (r != DT_OK), __ATOMIC_RELEASE);
    if (dt_comm_rank(c)) return;
    printf("last calls\n");
    for (int q = 0; q < RANKS; q++) {
        board *b = (board *)dt_comm_peer(c, mine, q);
        for (int k = 0; k < 5000 && !__atomic_load_n(&b->ended, __ATOMIC_ACQUIRE); k++) usleep(1000);
        printf("  rank %d  #%d %s of %d floats%s\n", q, b->calls, b->name, b->size, b->ended > 1 ? ": failed" : "");
        if (b->calls != mine->calls || strcmp(b->name, mine->name) || b->size != mine->size)
            *other = *other < 0 ? q : RANKS;
    }
    printf("the library: %.*s\n", (int)strcspn(dt_last_error(), ";"), dt_last_error());
}

int main(int argc, char **argv)
{
    dt_comm *c = NULL;
    void *mine = NULL;
    option list[] = {{"--floats", 1, ALL - 1, &floats}};
    int other = -1, told = 0, calls, root;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r) return dt_fail("85_flight_recorder");
    root = dt_comm_rank(c) == 0;
    if (!options_read(argc, argv, list, 1)) return 2;
    if (dt_comm_size(c) != RANKS || dt_comm_nodes(c) != 1)
        return fprintf(stderr, "85_flight_recorder: run it with --ranks 4, on one node\n"), 2;
    r = dt_comm_alloc(c, sizeof(board), &mine);
    if (r) return dt_fail("85_flight_recorder");
    mismatched(c, (board *)mine, &other, &told);
    calls = ((board *)mine)->calls;
    dt_comm_close(&c);
    if (!root) return !told;
    if (other != OTHER || !told) return fprintf(stderr, "FAILED: the rank in another call\n"), 1;
    return printf("ok: at call %d the record and the library name rank %d\n", calls, other), 0;
}
