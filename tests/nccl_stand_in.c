/* Stands in for libnccl.so.2 and libcuda.so.1 where there is no GPU: "GPU memory" is the process's own, ranks are its
 * threads, and a collective is done when its last rank has called it. What is tried with it is our side: types, shapes,
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
enum { ncclSuccess, ncclInvalidArgument = 4, ncclInProgress = 7, ncclInt32 = 2, ncclFloat16 = 6, ncclFloat32, ncclBfloat16 = 9,
       ncclSum = 0, ncclMax = 2, CUDA_SUCCESS = 0, CUDA_ERROR_NOT_READY = 600 };
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#endif

enum { RANKS = 8, CALLS = 4096 };
enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL };

typedef struct call {
    int kind, type, op, root, here, done;
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
static __thread struct {
    int depth, sends, receives;
    size_t count;
    int type;
    const char *in;
    char *out;
    ncclComm_t comm;
    cudaStream_t stream;
} batch;

void stand_in_break(int nccl, int gpu) { broken = nccl, gpu_broken = gpu; }
void stand_in_count(int *open, int *aborts, int *kept) { *open = opened, *aborts = aborted, *kept = contexts; }

static size_t width(int type) { return type == ncclFloat32 || type == ncclInt32 ? 4 : type == ncclFloat16 || type == ncclBfloat16 ? 2 : 1; }

static float wide(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* out[0..count) = op over ranks of in[rank][from ..]; bf16 by cutting, which is exact for the small whole numbers here. */
static void reduce(const call *c, int ranks, size_t from, void *out)
{
    for (size_t i = 0; i < c->count; i++) {
        double sum = 0;
        for (int r = 0; r < ranks; r++) {
            double x = c->type == ncclFloat32 ? (double)((const float *)c->in[r])[from + i]
                     : c->type == ncclInt32 ? (double)((const int32_t *)c->in[r])[from + i]
                                      : (double)wide(((const uint16_t *)c->in[r])[from + i]);
            sum = !r ? x : c->op == ncclSum ? sum + x : (c->op == ncclMax) == (x > sum) ? x : sum;
        }
        if (c->type == ncclFloat32) ((float *)out)[i] = (float)sum;
        else if (c->type == ncclInt32) ((int32_t *)out)[i] = (int32_t)sum;
        else {
            float f = (float)sum;
            uint32_t bits;
            memcpy(&bits, &f, 4);
            ((uint16_t *)out)[i] = (uint16_t)(bits >> 16);
        }
    }
}

static void finish(call *c, int n)
{
    size_t bytes = c->count * width(c->type);
    char *sum = malloc(bytes + 1);
    if (!sum) abort();
    if (c->kind == ALL_REDUCE) reduce(c, n, 0, sum);
    for (int r = 0; r < n; r++) {
        if (c->kind == ALL_REDUCE) memcpy(c->out[r], sum, bytes);
        if (c->kind == REDUCE_SCATTER) reduce(c, n, (size_t)r * c->count, c->out[r]);
        if (c->kind == BROADCAST) memmove(c->out[r], c->in[c->root], bytes);
        for (int p = 0; p < n; p++) {
            if (c->kind == ALL_GATHER) memmove((char *)c->out[r] + (size_t)p * bytes, c->in[p], bytes);
            if (c->kind == ALL_TO_ALL) memcpy((char *)c->out[r] + (size_t)p * bytes, (const char *)c->in[p] + (size_t)r * bytes, bytes);
        }
    }
    free(sum);
    c->done = 1;
}

static ncclResult_t enter(ncclComm_t comm, int kind, const void *in, void *out, size_t count, int type, int op, int root, cudaStream_t stream)
{
    group *g = comm->group;
    call *c = &g->calls[comm->calls++ % CALLS];
    if (!in || !out) return ncclInvalidArgument;
    pthread_mutex_lock(&lock);
    if (c->here == g->size) memset(c, 0, sizeof *c); /* of an earlier round */
    c->kind = kind, c->type = type, c->op = op, c->root = root, c->count = count;
    c->in[comm->rank] = in, c->out[comm->rank] = out, c->stream[comm->rank] = stream;
    if (++c->here == g->size) finish(c, g->size);
    pthread_mutex_unlock(&lock);
    comm->polls = 2;
    return ncclInProgress;
}

/* ---- NCCL ---- */

ncclResult_t ncclGetVersion(int *version) { return *version = 21400, ncclSuccess; }
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
    return enter(comm, ALL_REDUCE, in, out, count, (int)type, (int)op, 0, stream);
}
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return enter(comm, REDUCE_SCATTER, in, out, count, (int)type, (int)op, 0, stream);
}
ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
    return enter(comm, ALL_GATHER, in, out, count, (int)type, 0, 0, stream);
}
ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)
{
    return enter(comm, BROADCAST, in, out, count, (int)type, 0, root, stream);
}

/* Sends and receives are known in a batch with one of each for every rank, in order: an all-to-all. */
ncclResult_t ncclGroupStart(void) { return batch.depth = 1, batch.sends = batch.receives = 0, ncclSuccess; }
ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    if (!batch.depth || peer != batch.sends++) return ncclInvalidArgument;
    if (!peer) batch.in = in, batch.count = count, batch.type = (int)type, batch.comm = comm, batch.stream = stream;
    return (const char *)in == batch.in + (size_t)peer * count * width((int)type) ? ncclSuccess : ncclInvalidArgument;
}
ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    if (!batch.depth || peer != batch.receives++ || comm != batch.comm || stream != batch.stream) return ncclInvalidArgument;
    if (!peer) batch.out = out;
    return (char *)out == batch.out + (size_t)peer * count * width((int)type) ? ncclSuccess : ncclInvalidArgument;
}
ncclResult_t ncclGroupEnd(void)
{
    batch.depth = 0;
    if (batch.sends != batch.comm->group->size || batch.receives != batch.sends) return ncclInvalidArgument;
    return enter(batch.comm, ALL_TO_ALL, batch.in, batch.out, batch.count, batch.type, 0, 0, batch.stream);
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
