/* mirror.h: a device whose memory host code cannot touch. Included before dtrain.h (cc -include tests/mirror.h), it is used
 * where the environment has DT_MIRROR=N. Tensors then have addresses that are reserved and not mapped; the device sees
 * their memory MIRROR_SPACE bytes further on, and runs ops and verbs there by the host's functions. An eighth of the ops,
 * which N draws, and ops of the program's own are left to the host. What the device writes becomes garbage in the host's
 * copy: host code that forgets a download computes nonsense, and host code that uses a tensor's address dies of a SIGSEGV
 * after the functions and lines on the way to it were printed. With DT_MIRROR_SAY each process prints at its end how
 * often the host ran which op. */
#ifndef MIRROR_H
#define MIRROR_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#define DT__DEVICE_HEADER "mirror.h"

#else /* inside of dtrain.h */
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#define MIRROR_SPACE ((size_t)1 << 37) /* addresses of tensors */
#define MIRROR_PAGE ((size_t)4096)
enum { MIRROR_FRAMES = 12 };

/* A block: the address that tensors carry, the host's and the device's. PINNED memory has one for all. */
typedef struct mirror_block {
    char *mem, *host, *own;
    size_t bytes;
} mirror_block;

static struct {
    dt__device is;
    dt__kernels k;
    pthread_mutex_t lock;
    mirror_block *block;
    int64_t blocks, room, runs[DT__OP_COUNT];
    char *space;
    size_t used;
    unsigned long draw;
} mirror_device = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The block that holds an address of tensors, or of the host; bytes 0: none does. */
static mirror_block mirror_find(const void *address, int host)
{
    mirror_block found = {0};
    const char *at = (const char *)address;
    pthread_mutex_lock(&mirror_device.lock);
    for (int64_t i = 0; i < mirror_device.blocks && !found.bytes; i++) {
        const mirror_block *b = &mirror_device.block[i];
        const char *begin = host ? b->host : b->mem;
        if (at >= begin && at < begin + b->bytes) found = *b;
    }
    pthread_mutex_unlock(&mirror_device.lock);
    return found;
}

/* Where the device sees tensor memory; other memory is where it is. */
static float *mirror_see(const float *mem)
{
    mirror_block b = mirror_find(mem, 0);
    return b.bytes ? (float *)(void *)(b.own + ((const char *)mem - b.mem)) : (float *)(uintptr_t)mem;
}
/* The device wrote n words: the host's copy of them is old. */
static void mirror_wrote(const float *mem, int64_t n)
{
    mirror_block b = mirror_find(mem, 0);
    if (b.bytes && b.own != b.host)
        memset(b.host + ((const char *)mem - b.mem), 0x7f, 4 * (size_t)n);
}

static void *mirror_open(dt__device *d, int kind, void *host, int64_t bytes)
{
    size_t least = (size_t)dt__max(bytes, 1), size = (least + MIRROR_PAGE - 1) / MIRROR_PAGE * MIRROR_PAGE;
    mirror_block b = {(char *)host, (char *)host, (char *)host, least};
    (void)d;
    pthread_mutex_lock(&mirror_device.lock);
    if (kind != DT__PINNED) {
        b.mem = mirror_device.space + mirror_device.used, b.own = b.mem + MIRROR_SPACE;
        mirror_device.used += size + MIRROR_PAGE;
        if (mirror_device.used > MIRROR_SPACE || mprotect(b.own, size, PROT_READ | PROT_WRITE)) b.mem = NULL;
    }
    if (mirror_device.blocks == mirror_device.room) {
        mirror_device.room = 2 * mirror_device.room + 64;
        mirror_device.block = (mirror_block *)realloc(mirror_device.block, (size_t)mirror_device.room * sizeof b);
    }
    if (b.mem) mirror_device.block[mirror_device.blocks++] = b;
    pthread_mutex_unlock(&mirror_device.lock);
    if (!b.mem) dt__error(DT_E_MEMORY, "the mirror has no memory left");
    return b.mem;
}
static void mirror_close(dt__device *d, void *mem)
{
    int64_t i = 0;
    (void)d;
    pthread_mutex_lock(&mirror_device.lock);
    while (i < mirror_device.blocks && mirror_device.block[i].mem != (char *)mem) i++;
    if (i < mirror_device.blocks) {
        mirror_block b = mirror_device.block[i];
        if (b.own != b.host)
            mmap(b.own, (b.bytes + MIRROR_PAGE - 1) / MIRROR_PAGE * MIRROR_PAGE, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        mirror_device.block[i] = mirror_device.block[--mirror_device.blocks];
    }
    pthread_mutex_unlock(&mirror_device.lock);
}

/* Copies n words of the block that holds an address; the address in the other memory. */
static float *mirror_copy(const void *address, int64_t n, int host)
{
    mirror_block b = mirror_find(address, host);
    size_t at = (size_t)((const char *)address - (host ? b.host : b.mem));
    if (!b.bytes) return (float *)(uintptr_t)address;
    if (b.own != b.host && at + 4 * (size_t)n > b.bytes) {
        fprintf(stderr, "mirror: %lld words at byte %zu of a block of %zu bytes\n", (long long)n, at, b.bytes);
        abort();
    }
    if (n && b.own != b.host) memcpy((host ? b.own : b.host) + at, (host ? b.host : b.own) + at, 4 * (size_t)n);
    return (float *)(void *)((host ? b.mem : b.host) + at);
}
static float *mirror_download(dt__device *d, const void *mem, int64_t n) { return (void)d, mirror_copy(mem, n, 0); }
static float *mirror_upload(dt__device *d, const void *host, int64_t n) { return (void)d, mirror_copy(host, n, 1); }

static void mirror_verb(dt__device *d, dt_pool *pool, const dt__verb *v)
{
    dt__verb own = *v;
    dt__kernels k = *v->k;
    int64_t n = v->kind == DT__VERB_SQUARES ? dt__ceil_div(v->n, DT__BLOCK) : v->n;
    (void)d;
    k.device = NULL, own.k = &k;
    own.to = mirror_see(v->to), own.from = mirror_see(v->from);
    for (int i = 0; i < DT__STATE_COUNT; i++) own.state[i] = mirror_see(v->state[i]);
    dt__verb_run(pool, &own);
    mirror_wrote(v->to, n);
}

static int mirror_supports(const dt__call *c)
{
    return dt__op_of(c->n->op)->domain != DT__OVER_HOST && ((unsigned long)c->n->op * 2654435761u + mirror_device.draw * 40503u) / 64 % 8 != 0;
}
/* In a trainer's plan the device reads and writes its own memory and pinned memory, never the host's. */
static float *mirror_operand(const dt__call *c, const float *mem, const char *what)
{
    if (mem && c->env->peers.user && !mirror_find(mem, 0).bytes) {
        fprintf(stderr, "mirror: the device runs %s, whose %s is memory of the host\n", dt__op_of(c->n->op)->name, what);
        abort();
    }
    return mirror_see(mem);
}
/* Ranks exchange tensors by their addresses, not where the mirror sees them; `user`: the trainer's functions. */
static float *mirror_mem(const float *own)
{
    const char *at = (const char *)own, *begin = mirror_device.space + MIRROR_SPACE;
    return (float *)(uintptr_t)(at >= begin && at < begin + MIRROR_SPACE ? at - MIRROR_SPACE : at);
}
static void mirror_combine(void *user, int kind, float *to, const float *from, int64_t count)
{
    const dt__peers *p = (const dt__peers *)user;
    p->combine(p->user, kind, mirror_mem(to), mirror_mem(from), count);
}
static void mirror_exchange(void *user, float *to, const int32_t *take, const float *from, const int32_t *give,
                            int64_t bins, int64_t width)
{
    const dt__peers *p = (const dt__peers *)user;
    p->exchange(p->user, mirror_mem(to), take, mirror_mem(from), give, bins, width);
}
static void mirror_message(void *user, int finish, dt__sendrecv *x)
{
    const dt__peers *p = (const dt__peers *)user;
    x->from = mirror_mem(x->from), x->to = mirror_mem(x->to);
    p->message(p->user, finish, x);
}
static void mirror_run(const dt__call *c)
{
    dt__call own = *c;
    dt__env env = *c->env;
    dt__kernels k = *env.k;
    k.device = NULL, env.k = &k, own.env = &env;
    for (int i = 0; i < c->n->inputs; i++) own.in[i] = mirror_operand(c, c->in[i], "input");
    own.out = mirror_operand(c, c->out, "output"), own.aux = mirror_operand(c, c->aux, "second output");
    own.slices = mirror_operand(c, c->slices, "row slices"), env.sliced = mirror_see(env.sliced);
    env.rng = (dt__rng *)(void *)mirror_see((const float *)(const void *)env.rng);
    env.peers.combine = mirror_combine, env.peers.exchange = mirror_exchange, env.peers.message = mirror_message;
    env.peers.user = (void *)(uintptr_t)&c->env->peers;
    dt__host_run(&own);
    mirror_wrote(c->out, dt__written(c, 0));
    __atomic_fetch_add(&mirror_device.runs[c->n->op], 1, __ATOMIC_RELAXED);
}

/* Prints where host code touched a tensor's address. */
static void mirror_fault(int signal, siginfo_t *info, void *context)
{
    const char *at = (const char *)info->si_addr;
    char command[2048], exe[512] = "";
    void *frame[MIRROR_FRAMES];
    int n = backtrace(frame, MIRROR_FRAMES), used;
    Dl_info in;
    (void)context;
    if (at >= mirror_device.space && at < mirror_device.space + MIRROR_SPACE &&
        readlink("/proc/self/exe", exe, sizeof exe - 1) > 0) {
        fprintf(stderr, "mirror: host code uses the address of a tensor. Download before reading, upload after writing:\n");
        used = snprintf(command, sizeof command, "addr2line -fpe '%s'", exe);
        for (int i = 2; i < n && used < (int)sizeof command - 32; i++) /* after this function and the signal's frame */
            if (dladdr(frame[i], &in))
                used += snprintf(command + used, sizeof command - (size_t)used, " %#lx",
                                 (unsigned long)((char *)frame[i] - (char *)in.dli_fbase) - (i > 2));
        fflush(stderr);
        if (system(strcat(command, " >&2"))) fprintf(stderr, "mirror: addr2line (binutils) names the lines\n");
    }
    sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    raise(signal);
}

static void mirror_say(void)
{
    int64_t device = 0, host = 0;
    for (int i = 0; i < DT__OP_COUNT; i++) device += mirror_device.runs[i];
    for (int i = 0; i <= DT__OP_COUNT; i++) host += mirror_device.is.on_host[i];
    fprintf(stderr, "mirror: %lld calls on the device, %lld on the host:", (long long)device, (long long)host);
    for (int i = 0; i <= DT__OP_COUNT; i++)
        if (mirror_device.is.on_host[i])
            fprintf(stderr, " %s %lld", i < DT__OP_COUNT ? dt__op_of(i)->name : "groups",
                    (long long)mirror_device.is.on_host[i]);
    fprintf(stderr, "\n");
}

const dt__kernels *dt__on_device(const dt__kernels *k)
{
    const char *draw = getenv("DT_MIRROR");
    if (!draw || !draw[0]) return k;
    pthread_mutex_lock(&mirror_device.lock);
    if (!mirror_device.space) {
        mirror_device.space = (char *)mmap(NULL, 2 * MIRROR_SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mirror_device.space == MAP_FAILED) abort();
        mirror_device.draw = strtoul(draw, NULL, 10);
        mirror_device.is.name = "mirror", mirror_device.is.attach = mirror_open, mirror_device.is.detach = mirror_close;
        mirror_device.is.download = mirror_download, mirror_device.is.upload = mirror_upload;
        mirror_device.is.verb = mirror_verb, mirror_device.is.supports = mirror_supports, mirror_device.is.run = mirror_run;
        mirror_device.k = *k, mirror_device.k.device = &mirror_device.is;
        sigaction(SIGSEGV, &(struct sigaction){.sa_sigaction = mirror_fault, .sa_flags = SA_SIGINFO}, NULL);
        if (getenv("DT_MIRROR_SAY")) atexit(mirror_say);
    }
    pthread_mutex_unlock(&mirror_device.lock);
    return &mirror_device.k;
}
#endif
