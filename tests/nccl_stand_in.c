/* Stands in for libnccl.so.2 and libcuda.so.1 where there is no GPU: "GPU memory" is the process's own, ranks are its
 * threads, and a collective is done when its last rank has called it. What is tried with it is our side: shapes,
 * order, waiting, errors, abort. Where NCCL's headers are, the compiler compares the prototypes with them. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__has_include)
#if __has_include(<nccl.h>) && __has_include(<cuda.h>)
#define HAVE_HEADERS 1
#endif
#endif
#ifdef HAVE_HEADERS
#include <cuda.h>
#include <nccl.h>
#else
typedef struct ncclComm *ncclComm_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { size_t size; unsigned magic, version; int blocking; } ncclConfig_t;
typedef int ncclResult_t, ncclDataType_t, ncclRedOp_t, CUresult, CUdevice;
typedef void *cudaStream_t, *CUstream, *CUcontext;
enum { ncclSuccess, ncclInvalidArgument = 4, ncclInProgress = 7, ncclFloat32 = 7,
       ncclSum = 0, ncclMax = 2, CUDA_SUCCESS = 0, CUDA_ERROR_NOT_READY = 600 };
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#endif

enum { RANKS = 8, CALLS = 4096 };
enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER };

typedef struct call {
    int kind, op, here, done;
    size_t count;
    const void *in[RANKS];
    void *out[RANKS];
    void *stream[RANKS];
} call;
typedef struct group {
    struct group *next;
    ncclUniqueId id;
    int size, joined;
    call calls[CALLS];
} group;
struct ncclComm {
    group *group;
    int rank, polls;
    long calls;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static group *groups;
static int broken, gpu_broken, opened, aborted, contexts; /* what a test sets and counts: stand_in_* */
void stand_in_break(int nccl, int gpu) { broken = nccl, gpu_broken = gpu; }
void stand_in_count(int *open, int *aborts, int *kept) { *open = opened, *aborts = aborted, *kept = contexts; }

/* out[0..count) = op over ranks of in[rank][from ..] */
static void reduce(const call *c, int ranks, size_t from, float *out)
{
    for (size_t i = 0; i < c->count; i++) {
        out[i] = ((const float *)c->in[0])[from + i];
        for (int r = 1; r < ranks; r++) {
            float x = ((const float *)c->in[r])[from + i];
            out[i] = c->op == ncclSum ? out[i] + x : (c->op == ncclMax) == (x > out[i]) ? x : out[i];
        }
    }
}

static void finish(call *c, int n)
{
    size_t bytes = 4 * c->count;
    float *sum = malloc(bytes + 1);
    if (!sum) abort();
    if (c->kind == ALL_REDUCE) reduce(c, n, 0, sum);
    for (int r = 0; r < n; r++) {
        if (c->kind == ALL_REDUCE) memcpy(c->out[r], sum, bytes);
        if (c->kind == REDUCE_SCATTER) reduce(c, n, (size_t)r * c->count, c->out[r]);
        for (int p = 0; p < n && c->kind == ALL_GATHER; p++) memmove((char *)c->out[r] + (size_t)p * bytes, c->in[p], bytes);
    }
    free(sum);
    c->done = 1;
}

static ncclResult_t enter(ncclComm_t comm, int kind, const void *in, void *out, size_t count, int type, int op, cudaStream_t stream)
{
    group *g = comm->group;
    call *c = &g->calls[comm->calls++ % CALLS];
    if (!in || !out || type != ncclFloat32) return ncclInvalidArgument;
    pthread_mutex_lock(&lock);
    if (c->here == g->size) memset(c, 0, sizeof *c); /* of an earlier round */
    c->kind = kind, c->op = op, c->count = count;
    c->in[comm->rank] = in, c->out[comm->rank] = out, c->stream[comm->rank] = stream;
    if (++c->here == g->size) finish(c, g->size);
    pthread_mutex_unlock(&lock);
    comm->polls = 2;
    return ncclInProgress;
}

/* ---- NCCL ---- */

const char *ncclGetErrorString(ncclResult_t code) { return code == 6 ? "remote process exited" : "unhandled error"; }
const char *ncclGetLastError(ncclComm_t comm) { return (void)comm, "the stand-in was told to fail"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int number;
    memset(id, 7, sizeof *id);
    pthread_mutex_lock(&lock);
    snprintf(id->internal, sizeof id->internal, "group %d", ++number);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    group *g;
    if (config->magic != 0xcafebeef || config->version != 21400 || config->size != 24 || config->blocking) return ncclInvalidArgument;
    pthread_mutex_lock(&lock);
    for (g = groups; g && memcmp(&g->id, &id, sizeof id); g = g->next) ;
    if (!g) {
        if (!(g = calloc(1, sizeof *g))) abort();
        g->id = id, g->size = size, g->next = groups, groups = g;
    }
    g->joined++;
    opened++;
    pthread_mutex_unlock(&lock);
    if (!(*comm = calloc(1, sizeof **comm))) abort();
    (*comm)->group = g, (*comm)->rank = rank, (*comm)->polls = 2;
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    pthread_mutex_lock(&lock);
    *state = broken ? (ncclResult_t)broken : comm->group->joined < comm->group->size || comm->polls > 0 ? ncclInProgress : ncclSuccess;
    if (comm->polls > 0) comm->polls--;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

static ncclResult_t leave(ncclComm_t comm, int abort)
{
    pthread_mutex_lock(&lock);
    opened--;
    aborted += abort;
    pthread_mutex_unlock(&lock);
    free(comm);
    return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return comm->polls = 1, ncclInProgress; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return leave(comm, 0); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return leave(comm, 1); }

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return enter(comm, ALL_REDUCE, in, out, count, (int)type, (int)op, stream);
}
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return enter(comm, REDUCE_SCATTER, in, out, count, (int)type, (int)op, stream);
}
ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
    return enter(comm, ALL_GATHER, in, out, count, (int)type, 0, stream);
}
/* ---- the driver ---- */

CUresult cuInit(unsigned flags) { return (CUresult)(flags || getenv("STAND_IN_NO_DEVICE") ? 100 : 0); }
CUresult cuDeviceGetCount(int *count) { return *count = atoi(getenv("STAND_IN_GPUS") ? getenv("STAND_IN_GPUS") : "2"), CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int number) { return *device = 10 + number, CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return context ? CUDA_SUCCESS : (CUresult)201; }
CUresult cuGetErrorString(CUresult code, const char **text) { return *text = code == 100 ? "no CUDA-capable device is detected" : "an illegal memory access", CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    *context = (CUcontext)(uintptr_t)(100 + device);
    __atomic_fetch_add(&contexts, 1, __ATOMIC_SEQ_CST);
    return device == 10 || device == 11 ? CUDA_SUCCESS : (CUresult)101;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    __atomic_fetch_sub(&contexts, 1, __ATOMIC_SEQ_CST);
    return device == 10 || device == 11 ? CUDA_SUCCESS : (CUresult)101;
}
CUresult cuStreamQuery(CUstream stream)
{
    int waits = 0;
    pthread_mutex_lock(&lock);
    for (group *g = groups; g; g = g->next)
        for (int k = 0; k < CALLS; k++)
            for (int r = 0; r < g->size && g->calls[k].here && !g->calls[k].done; r++) waits |= g->calls[k].stream[r] == stream;
    pthread_mutex_unlock(&lock);
    return gpu_broken ? (CUresult)gpu_broken : waits ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
