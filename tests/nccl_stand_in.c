/* Stands in for libnccl.so.2 over cuda_stand_in.cpp: ranks are processes or threads, and what they send goes through a file
 * that all map. As on GPUs, calls are queued on a stream; those of a communicator run one group after the other; a send ends
 * when its message was received, and until then nothing that follows in its stream begins. The messages of two ranks are
 * received in the order in which they were sent. The first one waits for both ranks' calls before its group is queued.
 * A thread lets the device work while the program waits for something else.
 * Sums are in the order of falling ranks, unlike those of the tree. Where NCCL's header is, the compiler compares the
 * prototypes with it. Environment:
 *
 *     STAND_IN_NCCL_FAIL=n   the n-th group of calls fails     STAND_IN_NCCL_SAY=1   at exit: how many groups and bytes */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__has_include)
#if __has_include(<nccl.h>) && __has_include(<cuda.h>)
#include <cuda.h>
#include <nccl.h>
#define HAVE_HEADERS 1
#endif
#endif
#ifndef HAVE_HEADERS
typedef struct ncclComm *ncclComm_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { size_t size; unsigned magic, version; int blocking, cgaClusterSize, minCTAs, maxCTAs; } ncclConfig_t;
typedef int ncclResult_t, ncclDataType_t, ncclRedOp_t;
typedef void *cudaStream_t;
enum { ncclSuccess, ncclInternalError = 3, ncclInvalidArgument, ncclInProgress = 7, ncclFloat32 = 7, ncclSum = 0 };
#endif

enum { RANKS = 8, BOX = 1 << 14, CALLS = 4096 };
typedef struct box { /* from one rank to another: a part of a message */
    uint32_t full, bytes;
    uint64_t total;
    char data[BOX];
} box;
typedef struct meeting {
    int joined, left, asked[2][RANKS][RANKS]; /* by a rank for a receive of, or a send to, another */
    box box[RANKS][RANKS];
} meeting;
typedef struct call {
    int sends, peer;
    char *data;
    size_t bytes, at;
    int begun, done;
} call;
typedef struct group { /* of calls; with a reduction, whose addends the calls move */
    struct group *next; /* of this thread's that is open */
    ncclComm_t comm;
    cudaStream_t stream;
    long number;
    int count, room;
    call *calls;
    float *sum, *terms;
    size_t floats;
} group;
struct ncclComm {
    meeting *shared;
    int rank, size, polls, aborted, finalized;
    ncclResult_t failed;
    long given, turn; /* groups queued; ended */
};

static __thread group *open_group;
static __thread int depth;
static long groups;
static size_t moved;

static void stop(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "nccl stand-in: ");
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    abort();
}
static void *driver(const char *name)
{
    void *library = dlopen(getenv("DT_CUDA_LIBRARY"), RTLD_NOW), *f = library ? dlsym(library, name) : NULL;
    if (!f) stop("DT_CUDA_LIBRARY has no %s", name);
    return f;
}
static void use(const void *at, size_t bytes, int writes)
{
    static void (*f)(const void *, size_t, char);
    void *symbol = f ? NULL : driver("stand_in_use");
    if (symbol) memcpy(&f, &symbol, sizeof f);
    if (bytes) f(at, bytes, (char)writes);
}

/* Moves what can be moved of a call. */
static void move(group *g, call *c)
{
    ncclComm_t n = g->comm;
    box *b = c->sends ? &n->shared->box[n->rank][c->peer] : &n->shared->box[c->peer][n->rank];
    for (;;) {
        const int full = (int)__atomic_load_n(&b->full, __ATOMIC_SEQ_CST);
        size_t part = c->bytes - c->at < BOX ? c->bytes - c->at : BOX;
        if (full != !c->sends) return;
        if (c->at == c->bytes && c->sends) break;
        if (!c->sends && b->total != c->bytes)
            stop("rank %d receives %zu bytes of rank %d, which sends %zu", n->rank, c->bytes, c->peer, (size_t)b->total);
        if (c->sends) memcpy(b->data, c->data + c->at, part), b->bytes = (uint32_t)part, b->total = c->bytes;
        else memcpy(c->data + c->at, b->data, part = b->bytes);
        c->at += part, moved += part;
        __atomic_store_n(&b->full, (uint32_t)c->sends, __ATOMIC_SEQ_CST);
        if (c->at == c->bytes && !c->sends) break;
    }
    c->done = 1;
}
/* stand_in_put */
static int go(void *other, int end)
{
    group *g = other;
    int left = 0;
    if (g->comm->aborted) return 1; /* and what it holds is lost */
    if (g->number != g->comm->turn) return 0;
    for (int i = 0; i < g->count && !end; i++) {
        int waits = 0; /* for a call before, which has the same box */
        for (int k = 0; k < i; k++)
            waits |= !g->calls[k].done && g->calls[k].peer == g->calls[i].peer && g->calls[k].sends == g->calls[i].sends;
        if (!waits && !g->calls[i].done) move(g, &g->calls[i]);
        left |= !g->calls[i].done;
    }
    if (!end) return !left;
    for (int i = 0; i < g->count; i++)
        if (!g->terms || g->calls[i].sends) use(g->calls[i].data, g->calls[i].bytes, !g->calls[i].sends);
    if (g->sum) memcpy(g->terms + (size_t)g->comm->rank * g->floats, g->sum, 4 * g->floats);
    for (size_t i = 0; i < g->floats && g->sum; i++) {
        float sum = g->terms[(size_t)(g->comm->size - 1) * g->floats + i];
        for (int p = g->comm->size - 2; p >= 0; p--) sum = sum + g->terms[(size_t)p * g->floats + i];
        g->sum[i] = sum;
    }
    if (g->sum) use(g->sum, 4 * g->floats, 1);
    g->comm->turn++;
    free(g->calls), free(g->terms), free(g);
    return 1;
}

ncclResult_t ncclGroupStart(void) { return depth++, ncclSuccess; }
ncclResult_t ncclGroupEnd(void)
{
    static int fail_at = -1;
    group *g = open_group;
    void (*put)(cudaStream_t, int (*)(void *, int), void *);
    void *symbol = driver("stand_in_put");
    if (fail_at < 0) fail_at = getenv("STAND_IN_NCCL_FAIL") ? atoi(getenv("STAND_IN_NCCL_FAIL")) : 0;
    if (--depth || !g) return ncclSuccess;
    open_group = NULL;
    memcpy(&put, &symbol, sizeof put);
    if (__atomic_add_fetch(&groups, 1, __ATOMIC_SEQ_CST) == fail_at) g->comm->failed = ncclInternalError;
    for (int i = 0; i < g->count; i++)
        __atomic_store_n(&g->comm->shared->asked[g->calls[i].sends][g->comm->rank][g->calls[i].peer], 1, __ATOMIC_SEQ_CST);
    g->number = g->comm->given++;
    g->comm->polls = 2;
    put(g->stream, go, g);
    return ncclInProgress;
}
static group *in_group(ncclComm_t comm, cudaStream_t stream)
{
    if (!depth) stop("a call outside of a group");
    if (!open_group) {
        open_group = calloc(1, sizeof *open_group);
        open_group->comm = comm, open_group->stream = stream;
    }
    if (open_group->comm != comm || open_group->stream != stream) stop("a group of two communicators or streams");
    return open_group;
}
static void add(group *g, int sends, int peer, const void *data, size_t bytes)
{
    if (peer < 0 || peer >= g->comm->size || peer == g->comm->rank) stop("rank %d of %d", peer, g->comm->size);
    if (g->count == g->room) g->calls = realloc(g->calls, sizeof *g->calls * (size_t)(g->room = 2 * g->room + 8));
    memset(&g->calls[g->count], 0, sizeof *g->calls);
    g->calls[g->count].sends = sends, g->calls[g->count].peer = peer;
    g->calls[g->count].data = (char *)(uintptr_t)data, g->calls[g->count++].bytes = bytes;
}
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    if (!count || type != ncclFloat32) return ncclInvalidArgument;
    return add(in_group(comm, stream), 1, peer, from, 4 * count), ncclSuccess;
}
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    if (!count || type != ncclFloat32) return ncclInvalidArgument;
    return add(in_group(comm, stream), 0, peer, to, 4 * count), ncclSuccess;
}
ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    group *g = in_group(comm, stream);
    if (!count || type != ncclFloat32 || op != ncclSum || in != out) return ncclInvalidArgument;
    g->sum = out, g->floats = count, g->terms = malloc(4 * count * (size_t)comm->size);
    for (int p = 0; p < comm->size; p++) {
        if (p == comm->rank) continue;
        add(g, 1, p, out, 4 * count);
        add(g, 0, p, g->terms + (size_t)p * count, 4 * count);
    }
    return ncclSuccess;
}

static void *keep_going(void *unused)
{
    void (*go_on)(void);
    void *symbol = driver("stand_in_go_on");
    memcpy(&go_on, &symbol, sizeof go_on);
    for (;; usleep(1000)) go_on();
    return unused;
}
static void begin(void)
{
    pthread_t thread;
    if (!pthread_create(&thread, NULL, keep_going, NULL)) pthread_detach(thread);
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int number;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/dev/shm/nccl_stand_in_%d_%d", (int)getpid(),
             __atomic_add_fetch(&number, 1, __ATOMIC_SEQ_CST));
    return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int file;
    pthread_once(&once, begin);
    if (config->magic != 0xcafebeef || config->version != 21700 || config->size != 32 || config->blocking ||
        size > RANKS || rank < 0 || rank >= size)
        return ncclInvalidArgument;
    *comm = calloc(1, sizeof **comm);
    file = open(id.internal, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(meeting))) stop("%s cannot be made", id.internal);
    (*comm)->shared = mmap(NULL, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if ((*comm)->shared == MAP_FAILED) stop("%s cannot be mapped", id.internal);
    close(file);
    (*comm)->rank = rank, (*comm)->size = size, (*comm)->polls = 2;
    if (__atomic_add_fetch(&(*comm)->shared->joined, 1, __ATOMIC_SEQ_CST) == size) unlink(id.internal);
    return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    const meeting *m = comm->shared;
    int waits = __atomic_load_n(&m->joined, __ATOMIC_SEQ_CST) < comm->size;
    for (int i = 0; i < 2 * comm->size; i++) /* for what the peer of a first message must ask for, too */
        waits |= m->asked[i & 1][comm->rank][i / 2] && !__atomic_load_n(&m->asked[~i & 1][i / 2][comm->rank], __ATOMIC_SEQ_CST);
    if (comm->finalized) waits = __atomic_load_n(&m->left, __ATOMIC_SEQ_CST) < comm->size;
    *state = comm->failed ? comm->failed : waits || comm->polls-- > 0 ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    comm->finalized = 1;
    __atomic_add_fetch(&comm->shared->left, 1, __ATOMIC_SEQ_CST);
    return ncclInProgress;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) { return comm->aborted = 1, ncclSuccess; } /* jobs may name it */
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->turn != comm->given) stop("a communicator ends before %ld of its groups", comm->given - comm->turn);
    munmap(comm->shared, sizeof *comm->shared);
    free(comm);
    return ncclSuccess;
}
const char *ncclGetLastError(ncclComm_t comm) { return (void)comm, "the stand-in was told to fail"; }

__attribute__((destructor)) static void say(void)
{
    if (getenv("STAND_IN_NCCL_SAY")) fprintf(stderr, "nccl stand-in: %ld groups, %zu bytes\n", groups, moved);
}
