/* Calls of NCCL, for test_nccl.t: nccl_calls SCENARIO [--ranks N --launch threads ..]. Each rank prints what it saw. */
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../examples/dt_nccl.h"
#include <dlfcn.h>
#if defined(__has_include)
#if __has_include(<nccl.h>) && __has_include(<cuda.h>)
#include <cuda.h>
#include <nccl.h>
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_MAX, ncclMax);
SAME(NCCL_MIN, ncclMin);
SAME(NCCL_F32, ncclFloat32);
SAME(CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(sizeof(nccl_id), sizeof(ncclUniqueId));
SAME(offsetof(nccl_config, magic), offsetof(ncclConfig_t, magic));
SAME(offsetof(nccl_config, version), offsetof(ncclConfig_t, version));
SAME(offsetof(nccl_config, blocking), offsetof(ncclConfig_t, blocking));
static const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
#define HEADERS (theirs.magic == NCCL_CONFIG_MAGIC ? "the same magic" : "another magic")
#endif
#endif
#ifndef HEADERS
#define HEADERS "no header to compare with"
#endif

static int is(const char *a, const char *b) { return !strcmp(a, b); }

static void *stand_in(const char *name) { return dlsym(dlopen(getenv("DT_NCCL_LIBRARY"), RTLD_NOW), name); }
static void break_it(int nccl, int gpu)
{
    void (*f)(int, int);
    void *symbol = stand_in("stand_in_break");
    memcpy(&f, &symbol, sizeof f);
    f(nccl, gpu);
}

/* Number i of rank r, small enough for exact sums in any order. */
static float value(int r, int64_t i) { return (float)((i * 7 + r * 3 + (i >> 5)) & 3); }
static float combined(dt_op op, int ranks, int64_t i)
{
    float v = value(0, i);
    for (int r = 1; r < ranks; r++) {
        float x = value(r, i);
        v = op == DT_SUM ? v + x : (op == DT_MAX) == (x > v) ? x : v;
    }
    return v;
}

/* One call of so many floats: 0 when the result is right in each bit. n is a name for the rank's stream. */
static int wrong(dt_nccl *n, dt_comm *c, dt_call call, dt_op op, int64_t count)
{
    int rank = dt_comm_rank(c), size = dt_comm_size(c);
    int64_t inputs = call == DT_REDUCE_SCATTER ? count * size : count, outputs = call == DT_ALL_GATHER ? count * size : count;
    float *in = calloc((size_t)inputs + 1, 4), *out = calloc((size_t)outputs + 1, 4), *want = calloc((size_t)outputs + 1, 4);
    int bad = 1;
    for (int64_t i = 0; in && i < inputs; i++) in[i] = value(rank, i);
    for (int64_t i = 0; want && i < outputs; i++)
        want[i] = call == DT_ALL_GATHER ? value((int)(i / count), i % count)
                                        : combined(op, size, call == DT_ALL_REDUCE ? i : rank * count + i);
    if (in && out && want && !dt_nccl_collect(n, call, in, out, count, op, n) && !dt_nccl_wait(n, n))
        bad = memcmp(out, want, 4 * (size_t)outputs) != 0;
    free(in), free(out), free(want);
    return bad;
}

static dt_result every(dt_nccl *n, dt_comm *c)
{
    static const int64_t counts[] = {0, 1, 5, 1000};
    int bad = 0, done = 0;
    for (int call = 0; call <= DT_ALL_GATHER; call++)
        for (int op = 0; op <= DT_MIN; op++)
            for (int k = 0; k < 4; k++, done++) bad += wrong(n, c, (dt_call)call, (dt_op)op, counts[k]);
    printf("rank %d: %d calls, %d wrong\n", dt_comm_rank(c), done, bad);
    return DT_OK;
}

/* What the ranks do after they have joined. */
static dt_result play(dt_nccl *n, dt_comm *c, const char *scenario)
{
    static __thread float x[8];
    dt_call call = is(scenario, "call") ? (dt_call)9 : DT_ALL_REDUCE;
    int last = dt_comm_rank(c) == dt_comm_size(c) - 1;
    dt_result r;
    if (is(scenario, "every")) return every(n, c);
    if ((r = dt_barrier(c)) != DT_OK) return r;
    if (is(scenario, "late") && last) {
        double until = nccl_now() + 1.7;
        while (nccl_now() < until) (void)dt_comm_alive(c); /* it works, but does not take part */
        return dt_barrier(c);
    }
    if (is(scenario, "leaves") && last) return DT_OK;
    if (is(scenario, "remote")) break_it(6, 0);
    if (is(scenario, "nccl")) break_it(3, 0);
    if (is(scenario, "gpu")) break_it(0, 700);
    r = dt_nccl_collect(n, call, is(scenario, "null") ? NULL : x, x, is(scenario, "negative") ? -1 : 8, DT_SUM, x);
    if (!r) r = dt_nccl_wait(n, x);
    if (r && dt_nccl_wait(n, x) != r && !is(scenario, "negative") && !is(scenario, "call") && !is(scenario, "null")) printf("it does not stay failed\n");
    return r;
}

int main(int argc, char **argv)
{
    int open = 0, aborted = 0, contexts = 0;
    void (*count)(int *, int *, int *);
    void *symbol;
    const char *scenario;
    dt_comm *c = NULL;
    dt_nccl *n = NULL;
    dt_result r = dt_comm_open(&c, &argc, &argv);
    if (r || argc < 2) return dt_fail("start");
    scenario = argv[1];
    if (is(scenario, "load")) {
        nccl_calls f;
        printf("%s: %s\n", HEADERS, nccl_load(&f) ? dt_last_error() : "fine");
        dt_comm_close(&c);
        return 0;
    }
    if (is(scenario, "killed") && dt_comm_rank(c) == 1) raise(SIGKILL);
    r = dt_nccl_open(&n, c, is(scenario, "number") && dt_comm_rank(c) == 1 ? 5 : -1);
    if (!r) r = play(n, c, scenario);
    printf("rank %d: %s: %s\n", dt_comm_rank(c), dt_result_name(r), r ? dt_last_error() : "fine");
    fflush(stdout);
    dt_nccl_close(&n);
    dt_nccl_close(&n);
    if (is(scenario, "leaves") && !r) {
        dt_comm_close(&c); /* before the others have what they wait for */
        return 0;
    }
    symbol = getenv("DT_NCCL_LIBRARY") ? stand_in("stand_in_count") : NULL;
    if (!dt_barrier(c) || r) {
        if (symbol) memcpy(&count, &symbol, sizeof count);
        for (int i = 0; symbol && i < 2000 && (!i || open || contexts); i++, usleep(1000)) count(&open, &aborted, &contexts);
        printf("rank %d: %d open, %d contexts\n", dt_comm_rank(c), open, contexts);
    }
    dt_comm_close(&c);
    return 0;
}
