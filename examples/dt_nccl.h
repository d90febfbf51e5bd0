/* dt_nccl.h: collectives on floats in the memory of NVIDIA GPUs, one GPU per rank, by NCCL. Include it after dtrain.h.
 *
 * NCCL 2.14 or newer and the driver are loaded at the first use, so nothing is linked and neither CUDA nor NCCL is needed
 * to compile; their few types and numbers are declared here, and tests/test_nccl.t compares them with the real headers.
 * NCCL is non-blocking here: its calls return, so this rank can watch its peers while it waits. Sums are in NCCL's order.
 * When a rank dies or leaves, a GPU fails, or a call takes too long, NCCL is aborted, and the dt_comm fails on all ranks,
 * for good: DT_E_PEER or DT_E_SYSTEM. */
#ifndef DT_NCCL_H
#define DT_NCCL_H
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum dt_call { DT_ALL_REDUCE, DT_REDUCE_SCATTER, DT_ALL_GATHER } dt_call;
enum { NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7, CUDA_NOT_READY = 600 };
enum { NCCL_SUM = 0, NCCL_MAX = 2, NCCL_MIN = 3, NCCL_F32 = 7 };
#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_CONFIG_VERSION 21400u /* of the configuration below; newer versions of NCCL accept it */

typedef struct nccl_id {
    char internal[128];
} nccl_id;
typedef struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
} nccl_config;

/* X(result, name, arguments); handles and streams are void *. */
#define NCCL_CALLS(X) \
    X(int, ncclGetUniqueId, (nccl_id *)) X(int, ncclCommGetAsyncError, (void *, int *)) \
    X(int, ncclCommInitRankConfig, (void **, int, nccl_id, int, nccl_config *)) \
    X(int, ncclCommFinalize, (void *)) X(int, ncclCommDestroy, (void *)) X(int, ncclCommAbort, (void *)) \
    X(const char *, ncclGetErrorString, (int)) X(const char *, ncclGetLastError, (void *)) \
    X(int, ncclAllReduce, (const void *, void *, size_t, int, int, void *, void *)) \
    X(int, ncclReduceScatter, (const void *, void *, size_t, int, int, void *, void *)) \
    X(int, ncclAllGather, (const void *, void *, size_t, int, void *, void *))
#define CUDA_CALLS(X) \
    X(int, cuInit, (unsigned)) X(int, cuDeviceGetCount, (int *)) X(int, cuDeviceGet, (int *, int)) \
    X(int, cuDevicePrimaryCtxRetain, (void **, int)) X(int, cuDevicePrimaryCtxRelease_v2, (int)) \
    X(int, cuCtxSetCurrent, (void *)) X(int, cuStreamQuery, (void *)) \
    X(int, cuGetErrorString, (int, const char **))
#define CALL_FIELD(result, name, arguments) result(*name) arguments;
#define CALL_FIND(result, name, arguments) nccl_symbol(library, #name, &f->name, &missing);

typedef struct nccl_calls {
    NCCL_CALLS(CALL_FIELD)
    CUDA_CALLS(CALL_FIELD)
} nccl_calls;

typedef struct dt_nccl {
    nccl_calls f;
    dt_comm *comm;
    void *handle;   /* NULL before the ranks have joined and after an abort */
    int gpu;        /* CUDA's number of the device; -1: no context is held */
    double timeout; /* seconds that a call may take: DT_TIMEOUT, else 10 */
    long long calls;
    char doing[64]; /* the last call, for error messages */
} dt_nccl;

/* The shared library that the environment variable names, or else `name`. It stays loaded. */
static inline void *nccl_library(const char *variable, const char *name)
{
    const char *other = getenv(variable);
    return dlopen(other && *other ? other : name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

static inline void nccl_symbol(void *library, const char *name, void *place, const char **missing)
{
    void *symbol = dlsym(library, name);
    if (symbol) memcpy(place, &symbol, sizeof symbol);
    else if (!*missing) *missing = name;
}

static inline dt_result nccl_load(nccl_calls *f)
{
    void *library = nccl_library("DT_NCCL_LIBRARY", "libnccl.so.2");
    const char *missing = NULL;
    if (!library)
        return dt_error(DT_E_SYSTEM, "NCCL cannot be loaded (%s). Install libnccl2, or name its file in "
                        "DT_NCCL_LIBRARY.", dlerror());
    NCCL_CALLS(CALL_FIND)
    if (missing) return dt_error(DT_E_SYSTEM, "NCCL has no %s here. Install NCCL 2.14 or newer.", missing);
    if (!(library = nccl_library("DT_CUDA_LIBRARY", "libcuda.so.1")))
        return dt_error(DT_E_SYSTEM, "NCCL is here, but the driver of a GPU is not (%s). Install it, or call "
                        "dt_all_reduce, which works on the CPU's memory.", dlerror());
    CUDA_CALLS(CALL_FIND)
    if (missing) return dt_error(DT_E_SYSTEM, "the driver has no %s. Install CUDA 11 or newer.", missing);
    return DT_OK;
}

/* Aborts NCCL and fails the communicator with the last error, which the peers receive. */
static inline dt_result nccl_fail(dt_nccl *n, dt_result code)
{
    if (n->handle) n->f.ncclCommAbort(n->handle);
    n->handle = NULL;
    return dt_comm_fail(n->comm, code);
}

static inline dt_result nccl_gpu_error(const dt_nccl *n, int code)
{
    const char *detail = NULL;
    n->f.cuGetErrorString(code, &detail);
    return dt_error(DT_E_SYSTEM, "the GPU failed in %s: %.200s (%d)", n->doing, detail ? detail : "unknown error", code);
}

static inline dt_result nccl_broke(dt_nccl *n, int code)
{
    const char *detail = n->f.ncclGetLastError(n->handle);
    return nccl_fail(n, dt_error(code == NCCL_REMOTE_ERROR ? DT_E_PEER : DT_E_SYSTEM,
                                 "%s failed: %.100s%s%.500s (NCCL_DEBUG=INFO says more)", n->doing,
                                 n->f.ncclGetErrorString(code), detail && *detail ? ": " : "", detail ? detail : ""));
}

static inline double nccl_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns when NCCL has queued its last call; with `queued`, when the stream has completed all of its work. */
static inline dt_result nccl_await(dt_nccl *n, int queued, void *stream)
{
    static const struct timespec nap = {0, 20000};
    double began = nccl_now();
    for (int polls = 0;; polls++) {
        int state = 0, gpu = 0, code = n->f.ncclCommGetAsyncError(n->handle, &state);
        if (!code) code = state;
        if (!code && queued) gpu = 1, code = n->f.cuStreamQuery(stream);
        if (!code) return DT_OK;
        if (code != (gpu ? CUDA_NOT_READY : NCCL_IN_PROGRESS))
            return gpu ? nccl_fail(n, nccl_gpu_error(n, code)) : nccl_broke(n, code);
        if ((code = dt_comm_alive(n->comm)) != DT_OK) {
            char why[800];
            snprintf(why, sizeof why, "%s", dt_last_error());
            return nccl_fail(n, dt_error((dt_result)code, "%s ended early: %s", n->doing, why));
        }
        if (nccl_now() - began > n->timeout)
            return nccl_fail(n, dt_error(DT_E_PEER, "%s has not ended after %g s: a rank does not take part, or a GPU is "
                                         "stuck. If the work that was queued before takes longer, raise DT_TIMEOUT.",
                                         n->doing, n->timeout));
        if (polls > 1000) nanosleep(&nap, NULL);
    }
}

/* Loads the libraries and makes the GPU current in this thread. Not collective. */
static inline dt_result nccl_prepare(dt_nccl *n, int gpu)
{
    int count = 0, code, rank = dt_comm_rank(n->comm), before = 0;
    void *context = NULL;
    dt_result r = nccl_load(&n->f);
    if (r) return r;
    for (int p = 0; p < rank; p++) before += dt_comm_node(n->comm, p) == dt_comm_node(n->comm, rank);
    if (!(code = n->f.cuInit(0))) code = n->f.cuDeviceGetCount(&count);
    if (!code && !count)
        return dt_error(DT_E_SYSTEM, "NCCL and a driver are here, but no GPU. Look at CUDA_VISIBLE_DEVICES.");
    if (!code && (gpu < -1 || gpu >= count))
        return dt_error(DT_E_USAGE, "GPU %d: the GPUs here are 0..%d. Choose one of them, or -1.", gpu, count - 1);
    if (!code) code = n->f.cuDeviceGet(&gpu, gpu < 0 ? before % count : gpu);
    if (!code) code = n->f.cuDevicePrimaryCtxRetain(&context, gpu);
    if (!code) n->gpu = gpu;
    if (!code) code = n->f.cuCtxSetCurrent(context);
    return code ? nccl_gpu_error(n, code) : DT_OK;
}

/* Rank 0 makes the id by which NCCL's ranks find each other. */
static inline dt_result nccl_join(dt_nccl *n)
{
    nccl_config config;
    nccl_id id;
    float carried[sizeof id / sizeof(float)];
    int code = 0;
    dt_result r;
    memset(&id, 0, sizeof id);
    config.size = sizeof config, config.magic = NCCL_CONFIG_MAGIC, config.version = NCCL_CONFIG_VERSION;
    config.blocking = 0;
    if (dt_comm_rank(n->comm) == 0) code = n->f.ncclGetUniqueId(&id);
    r = dt_comm_agree(n->comm, code ? dt_error(DT_E_SYSTEM, "ncclGetUniqueId failed: %.400s",
                                               n->f.ncclGetLastError(NULL)) : DT_OK);
    memcpy(carried, &id, sizeof id);
    if (!r) r = dt_broadcast(n->comm, carried, (int64_t)(sizeof id / sizeof(float)), 0);
    if (r) return r;
    memcpy(&id, carried, sizeof id);
    code = n->f.ncclCommInitRankConfig(&n->handle, dt_comm_size(n->comm), id, dt_comm_rank(n->comm), &config);
    if (code && code != NCCL_IN_PROGRESS) return nccl_broke(n, code);
    return nccl_await(n, 0, NULL);
}

/* Collective, unless c has failed. */
static inline void dt_nccl_close(dt_nccl **handle)
{
    dt_nccl *n = *handle;
    int code;
    *handle = NULL;
    if (!n) return;
    if (n->handle && !dt_comm_alive(n->comm)) {
        code = n->f.ncclCommFinalize(n->handle);
        if (code && code != NCCL_IN_PROGRESS) nccl_broke(n, code);
        else if (!nccl_await(n, 0, NULL)) n->f.ncclCommDestroy(n->handle);
    } else if (n->handle) {
        n->f.ncclCommAbort(n->handle);
    }
    if (n->gpu >= 0) n->f.cuDevicePrimaryCtxRelease_v2(n->gpu);
    free(n);
}

/* Joins the ranks of c, which must live longer; the dt_nccl belongs to its thread. Collective. gpu: the number of this
 * rank's GPU, -1: its rank on the node modulo the GPUs there. The GPU's primary context becomes this thread's, as by
 * cudaSetDevice. NCCL refuses two ranks on one GPU unless each has another NCCL_HOSTID in its environment. DT_E_USAGE: no
 * such GPU; DT_E_SYSTEM: NCCL, a driver or a GPU is missing on some rank. *handle is NULL on errors. */
static inline dt_result dt_nccl_open(dt_nccl **handle, dt_comm *c, int gpu)
{
    dt_nccl *n = *handle = (dt_nccl *)calloc(1, sizeof *n);
    const char *timeout = getenv("DT_TIMEOUT");
    dt_result r;
    if (n) {
        n->comm = c, n->gpu = -1, n->timeout = timeout ? atof(timeout) : 10.0;
        snprintf(n->doing, sizeof n->doing, "NCCL's opening");
    }
    r = dt_comm_agree(c, n ? nccl_prepare(n, gpu) : dt_error(DT_E_MEMORY, "no memory for NCCL's communicator"));
    if (!r) r = nccl_join(n);
    if (r) dt_nccl_close(handle);
    return r;
}

/* Queues a collective on floats in GPU memory on a CUDA stream (a cudaStream_t or CUstream, NULL: the default).
 * Collective. Shapes are those of dt_all_reduce (in may be out), dt_reduce_scatter, dt_all_gather (op is not used). */
static inline dt_result dt_nccl_collect(dt_nccl *n, dt_call call, const float *in, float *out, int64_t count, dt_op op,
                                        void *stream)
{
    static const char *const names[] = {"all-reduce", "reduce-scatter", "all-gather"};
    int code, how = op == DT_SUM ? NCCL_SUM : op == DT_MAX ? NCCL_MAX : NCCL_MIN;
    size_t floats = (size_t)count;
    if (!n->handle) return dt_comm_alive(n->comm);
    if ((unsigned)call > DT_ALL_GATHER || count < 0 || (count && (!in || !out)))
        return dt_error(DT_E_USAGE, "dt_nccl_collect: call %d on %lld floats, in %p, out %p: pass one of dt_call, 0 floats "
                        "or more, and addresses of GPU memory", (int)call, (long long)count, (const void *)in, (void *)out);
    if (!count) return DT_OK;
    snprintf(n->doing, sizeof n->doing, "NCCL's %s #%lld", names[call], ++n->calls);
    if (call == DT_ALL_REDUCE) code = n->f.ncclAllReduce(in, out, floats, NCCL_F32, how, n->handle, stream);
    else if (call == DT_ALL_GATHER) code = n->f.ncclAllGather(in, out, floats, NCCL_F32, n->handle, stream);
    else code = n->f.ncclReduceScatter(in, out, floats, NCCL_F32, how, n->handle, stream);
    if (code && code != NCCL_IN_PROGRESS) return nccl_broke(n, code);
    return code ? nccl_await(n, 0, NULL) : DT_OK;
}

/* Returns when all that was queued on the stream is done. */
static inline dt_result dt_nccl_wait(dt_nccl *n, void *stream)
{
    return n->handle ? nccl_await(n, 1, stream) : dt_comm_alive(n->comm);
}

#endif
