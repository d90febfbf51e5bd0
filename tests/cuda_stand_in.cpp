/* Stands in for libcuda.so.1, libnvrtc.so and libcublasLt.so where there is no GPU: kernels are the printed device text,
 * which is compiled with this file and runs on the emulation (cuda_emulation.h); products are sums of doubles. The device
 * text is the file DT__TEXT:
 *
 *     g++ -std=c++17 -O2 -ffp-contract=off -mfma -shared -fPIC -DDT__TEXT='"cuda.txt"' cuda_stand_in.cpp -o fast.so
 *     g++ -std=c++17 -O1 -g -ffp-contract=off -mfma -fsanitize=thread -fPIC -DDT__TEXT='"cuda.txt"' -c \
 *         cuda_stand_in.cpp -o checked.o && g++ -shared checked.o -o checked.so
 *
 * Device memory faults when the host touches it, starts as 0x7f bytes, and lies between bytes that must not change.
 * Work waits in its stream and runs when somebody waits, in a random order that streams and events allow. What a
 * program must not do ends with a sentence and abort(). Environment:
 *
 *     STAND_IN_GPUS=1  STAND_IN_ARCH=9.0  STAND_IN_MEMORY=1073741824  STAND_IN_NO_DEVICE=1
 *     STAND_IN_SEED=1       of the random orders
 *     STAND_IN_FAIL=n       the n-th call fails, STAND_IN_ERROR=code says how; an error of the device lasts
 *     STAND_IN_SAY=1        at exit: calls, launches, waits of the host, and what was not released; without it only if
 *                           something was not
 *     STAND_IN_UNWRITTEN=1  kernels of a checked build may read device memory that nothing has written
 *     STAND_IN_NO_KERNEL=1  cuBLASLt has no kernel for any product
 *     STAND_IN_FUSED=1      texts that allow fused multiply-adds are taken, too
 *
 * Where CUDA's headers are, the compiler compares the prototypes with them. */
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#if __has_include(<cuda.h>) && __has_include(<nvrtc.h>) && !defined(STAND_IN_NO_HEADERS)
#include <cuda.h>
#include <nvrtc.h>
#elif __has_include("/usr/local/cuda/include/nvrtc.h") && !defined(STAND_IN_NO_HEADERS)
#include "/usr/local/cuda/include/cuda.h"
#include "/usr/local/cuda/include/nvrtc.h"
#else
typedef int CUresult, CUdevice, CUdevice_attribute, CUfunction_attribute, nvrtcResult;
typedef unsigned long long CUdeviceptr;
typedef struct CUuuid { char bytes[16]; } CUuuid;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct _nvrtcProgram *nvrtcProgram;
enum { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_INITIALIZED };
enum { CUDA_ERROR_NO_DEVICE = 100, CUDA_ERROR_INVALID_DEVICE };
enum { CUDA_ERROR_INVALID_IMAGE = 200, CUDA_ERROR_INVALID_CONTEXT };
enum { CUDA_ERROR_NO_BINARY_FOR_GPU = 209, CUDA_ERROR_ECC_UNCORRECTABLE = 214, CUDA_ERROR_NOT_FOUND = 500 };
enum { CUDA_ERROR_NOT_READY = 600, CUDA_ERROR_ILLEGAL_ADDRESS = 700, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701 };
enum { CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED };
enum { CUDA_ERROR_LAUNCH_FAILED = 719, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803 };
enum { NVRTC_SUCCESS, NVRTC_ERROR_OUT_OF_MEMORY, NVRTC_ERROR_INVALID_INPUT = 3, NVRTC_ERROR_INVALID_OPTION = 5 };
enum { NVRTC_ERROR_COMPILATION = 6, NVRTC_ERROR_INTERNAL_ERROR = 11 };
enum { CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, CU_STREAM_NON_BLOCKING = 1 };
#define CUDAAPI
#define CU_LAUNCH_PARAM_END            ((void *)0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE    ((void *)2)
#define cuDeviceTotalMem               cuDeviceTotalMem_v2
#define cuDeviceGetUuid                cuDeviceGetUuid_v2
#define cuDevicePrimaryCtxRelease      cuDevicePrimaryCtxRelease_v2
#define cuMemGetInfo                   cuMemGetInfo_v2
#define cuMemAlloc                     cuMemAlloc_v2
#define cuMemFree                      cuMemFree_v2
#define cuMemHostRegister              cuMemHostRegister_v2
#define cuMemcpyHtoDAsync              cuMemcpyHtoDAsync_v2
#define cuMemcpyDtoHAsync              cuMemcpyDtoHAsync_v2
#define cuMemcpyDtoDAsync              cuMemcpyDtoDAsync_v2
#define cuStreamDestroy                cuStreamDestroy_v2
#define cuEventDestroy                 cuEventDestroy_v2
#endif
#include "cuda_emulation.h"
#pragma GCC diagnostic ignored "-Wunused-function" /* the text has functions that only some of its kernels call */
#include DT__TEXT
#ifndef DT__GIVEN /* the text that programs give; another one when the kernels are changed for a test */
#define DT__GIVEN DT__TEXT
#endif
__asm__(".pushsection .rodata\nstand_in_text: .incbin \"" DT__GIVEN "\"\nstand_in_text_end: .byte 0\n.popsection\n");
extern "C" __attribute__((visibility("hidden"))) const char stand_in_text[], stand_in_text_end[];

/* ---- what there is ---- */

/* What comes before a point of the program: of each stream, by number, so many jobs. */
struct moment : std::vector<long> {
    void join(const moment &other)
    {
        if (size() < other.size()) resize(other.size());
        for (size_t i = 0; i < other.size(); i++) (*this)[i] = std::max((*this)[i], other[i]);
    }
};
struct token { /* one record of an event */
    int uses;
    bool done;
    moment at;
};
enum kind { TO_DEVICE, TO_HOST, ON_DEVICE, SET, LAUNCH, PRODUCT, RECORD, WAIT, OTHER };
struct job {
    CUdeviceptr gives; /* memory that it gives back */
    kind what;
    CUdeviceptr to, from;
    void *host;
    size_t bytes; /* of a launch: dynamic shared memory */
    unsigned value, grid[3], threads;
    const emulation::kernel *f;
    std::string held; /* bytes of pageable memory, a kernel's argument */
    token *mark;
    moment at;
    std::function<void()> multiply;
    int (*go)(void *other, int end); /* OTHER: does what it can now; not 0: it has done all, and can be ended */
    void *other;
};
struct CUctx_st {
    int device, retained;
    CUstream legacy; /* of the calls that name none */
};
struct CUstream_st {
    CUcontext context;
    unsigned flags;
    bool destroyed;
    std::deque<job> queue;
    size_t number;
    moment at; /* of its last job */
};
struct CUevent_st {
    CUcontext context;
    token *last; /* NULL: never recorded */
};
struct CUfunc_st {
    CUmodule module;
    const emulation::kernel *f;
    int dynamic; /* the most dynamic shared memory */
};
struct CUmod_st {
    CUcontext context;
    int number;
    std::string lacks;
    std::deque<CUfunc_st> functions;
};
struct allocation {
    CUcontext context;
    size_t bytes, mapped;
    char *map;
};
struct registration {
    CUcontext context;
    size_t bytes;
    bool mapped; /* kernels may use it */
};
struct image { /* what stands for a cubin */
    char magic[16];
    uint64_t text;
    int arch, number;
    char lacks[4000]; /* kernels that the text's head leaves out, each between spaces */
};
struct _nvrtcProgram {
    std::string text, log;
    image made;
    bool compiled;
};
enum { DEVICES = 8, FIRST_DEVICE = 10, CANARY = 0xc5 };
static const char image_magic[16] = "STAND-IN CUBIN";

static std::recursive_mutex lock;
static CUctx_st contexts[DEVICES];
static std::set<CUstream> streams;
static std::set<CUevent> events;
static std::set<CUmodule> modules;
static std::map<CUdeviceptr, allocation> allocations;
static std::map<uintptr_t, registration> registrations;
static std::set<nvrtcProgram> programs;
static thread_local CUcontext current;
static bool initialized, running; /* running: this process's work, on `runner` */
static pthread_t runner;
static pid_t process;
static uintptr_t next_address;
static size_t used[DEVICES];
static long calls, launches, waits, jobs, fail_at; /* waits: of the host */
static int arch, gpus, last_error; /* an error of the device: all calls give it from then on */
static size_t capacity;

static long long setting(const char *name, long long otherwise)
{
    return getenv(name) ? atoll(getenv(name)) : otherwise;
}

[[noreturn]] __attribute__((format(printf, 1, 2))) static void misuse(const char *format, ...)
{
    va_list list;
    fflush(stdout);
    fputs("cuda stand-in: ", stderr);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputs("\n", stderr);
    abort();
}

static uint64_t hash(const char *text, size_t n)
{
    uint64_t h = 14695981039346656037ull;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)text[i]) * 1099511628211ull;
    return h;
}

/* An error that lasts: the device, or the context on it, is lost. */
static bool lasts(int code)
{
    return code == 214 || code == 700 || code == 702 || (code >= 710 && code <= 719 && code != 712 && code != 713) ||
           code == 999;
}

/* A call of the driver: one thread at a time, counted, and perhaps told to fail. */
enum { ANY, DRIVER, CONTEXT, RELEASE };
struct call {
    std::lock_guard<std::recursive_mutex> held;
    CUresult code;
    call(const char *name, int level, int error) : held(lock), code(CUDA_SUCCESS)
    {
        if (!calls++) {
            fail_at = setting("STAND_IN_FAIL", 0), gpus = (int)setting("STAND_IN_GPUS", 1),
            capacity = (size_t)setting("STAND_IN_MEMORY", 1 << 30);
            arch = getenv("STAND_IN_ARCH") ? (int)(10 * atof(getenv("STAND_IN_ARCH")) + 0.5) : 90;
            emulation::seed ^= (uint64_t)setting("STAND_IN_SEED", 1) * 0x9e3779b97f4a7c15ull;
            emulation::allow_unwritten = (int)setting("STAND_IN_UNWRITTEN", 0);
            if (gpus > DEVICES) misuse("STAND_IN_GPUS=%d: at most %d", gpus, DEVICES);
        }
        if (process && process != getpid())
            misuse("%s in a process that was forked after cuInit. Call cuInit in the child.", name);
        if (level != ANY && !initialized) misuse("%s before cuInit", name);
        if (level >= CONTEXT && !current)
            misuse("%s without a current context. Call cuCtxSetCurrent in each thread.", name);
        if (calls == fail_at) {
            code = (CUresult)setting("STAND_IN_ERROR", error);
            if (lasts((int)code) && level != ANY) last_error = (int)code;
        } else if (last_error && level >= CONTEXT)
            code = (CUresult)last_error;
    }
};
#define DRIVER_CALL extern "C" CUresult CUDAAPI
#define NVRTC_CALL  extern "C" nvrtcResult
#define ENTER(name, level, error) \
    call entered(name, level, error); \
    if (entered.code != CUDA_SUCCESS && level != RELEASE) return entered.code

/* ---- work in random order ---- */

static std::map<CUdeviceptr, allocation>::iterator find(CUdeviceptr at, size_t bytes, const char *what)
{
    auto a = allocations.upper_bound(at);
    if (a == allocations.begin() || at >= (--a)->first + a->second.bytes)
        misuse("%s: no allocation at %#llx (%zu bytes)", what, at, bytes);
    if (bytes > a->first + a->second.bytes - at)
        misuse("%s: %zu bytes from byte %llu of an allocation of %zu", what, bytes, at - a->first, a->second.bytes);
    return a;
}
static bool registered(const void *p, size_t bytes, const char *what)
{
    const uintptr_t at = (uintptr_t)p;
    auto r = registrations.upper_bound(at);
    if (emulation::device && at - emulation::device < emulation::device_span)
        misuse("%s: the host's address %p is device memory", what, p);
    if (r != registrations.end() && at + bytes > r->first)
        misuse("%s: %zu bytes at %p reach into registered memory", what, bytes, p);
    if (r == registrations.begin() || at >= (--r)->first + r->second.bytes) return false;
    if (bytes > r->first + r->second.bytes - at)
        misuse("%s: %zu bytes at %p end beyond registered memory", what, bytes, p);
    return true;
}

static void check_canaries(const allocation &a, CUdeviceptr at)
{
    for (char *p = a.map; p < a.map + a.mapped; p++) {
        if (p == (char *)at) p += a.bytes; /* at least one byte follows */
        if ((unsigned char)*p != CANARY)
            misuse("an allocation of %zu bytes at %#llx: byte %td was written (launch %ld or before)", a.bytes, at,
                   p - (char *)at, launches);
    }
}
static void on_fault(int number, siginfo_t *info, void *)
{
    if (pthread_equal(runner, pthread_self())) {
        if (emulation::running)
            emulation::fault("touches %p, which is not device memory in use (or a stack of %d bytes is full)",
                             info->si_addr, emulation::STACK);
        misuse("a copy touches %p", info->si_addr);
    }
    signal(number, SIG_DFL);
}
static void expose(bool on)
{
    static struct sigaction before[2];
    static stack_t stack_before;
    static char stack[1 << 16];
    struct sigaction action = {};
    stack_t own = {};
    for (auto &a : allocations) {
        if (!on) check_canaries(a.second, a.first);
        if (mprotect(a.second.map, a.second.mapped, on ? PROT_READ | PROT_WRITE : PROT_NONE)) misuse("mprotect failed");
    }
    runner = pthread_self(), running = on;
    own.ss_sp = stack, own.ss_size = sizeof stack;
    action.sa_sigaction = on_fault, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaltstack(on ? &own : &stack_before, on ? &stack_before : NULL);
    sigaction(SIGSEGV, on ? &action : &before[0], on ? &before[0] : NULL);
    sigaction(SIGBUS, on ? &action : &before[1], on ? &before[1] : NULL);
}

/* ---- which work comes before which: for the races of a checked build ---- */

struct past { /* a job that has run: its first tick, and its number in its stream */
    uint64_t tick;
    size_t stream;
    long number;
};
static std::vector<past> pasts;
static moment host, everything; /* what the program has waited for, what it has asked for */
static const moment *present;
static size_t stream_count;

static bool host_mapped(const void *p, size_t bytes)
{
    auto r = registrations.upper_bound((uintptr_t)p);
    return r != registrations.begin() && (--r)->second.mapped && (uintptr_t)p + bytes <= r->first + r->second.bytes;
}
static bool comes_before(uint64_t when)
{
    static size_t at; /* of the last answer: often of the next one, too */
    if (at + 1 >= pasts.size() || when < pasts[at].tick || when >= pasts[at + 1].tick) {
        size_t end = pasts.size();
        for (at = 0; end - at > 1;) (when < pasts[(at + end) / 2].tick ? end : at) = (at + end) / 2;
    }
    const past &p = pasts[at];
    return when < p.tick || (p.stream < present->size() && (*present)[p.stream] >= p.number);
}
static void describe(uintptr_t at, char *text, size_t room)
{
    auto a = allocations.upper_bound(at);
    if (a != allocations.begin())
        --a, snprintf(text, room, ", byte %lld of %zu that cuMemAlloc gave", (long long)(at - a->first),
                      a->second.bytes);
}
static void put(CUstream s, job &j)
{
    s->at.join(host);
    if (s->at.size() <= s->number) s->at.resize(s->number + 1);
    s->at[s->number]++;
    everything.join(s->at);
    j.at = s->at;
    s->queue.push_back(std::move(j));
}
static bool idle(void)
{
    for (auto s : streams)
        if (!s->queue.empty()) return false;
    return true;
}
static void waited(const moment &m)
{
    host.join(m);
    if (!idle()) return;
    for (auto &p : pasts)
        if (pasts.size() < 100000 && (p.stream >= host.size() || host[p.stream] < p.number)) return;
    pasts.clear();
    emulation::settled = emulation::ticks + 1;
}

static void drop(token *t)
{
    if (t && !--t->uses) delete t;
}
static void run(job &j, size_t stream)
{
    jobs++;
    present = &j.at;
    pasts.push_back({emulation::ticks + 1, stream, j.at[stream]});
    emulation::comes_before = comes_before, emulation::describe = describe, emulation::host_mapped = host_mapped;
    if (j.to && j.what != LAUNCH) find(j.to, j.bytes, "a copy whose memory was freed");
    if (j.from) find(j.from, j.bytes, "a copy whose memory was freed");
    if (j.what == TO_DEVICE) memcpy((void *)j.to, j.host ? j.host : j.held.data(), j.bytes);
    if (j.what == TO_HOST) memcpy(j.host, (const void *)j.from, j.bytes);
    if (j.what == ON_DEVICE) memcpy((void *)j.to, (const void *)j.from, j.bytes);
    if (j.what == SET)
        for (size_t i = 0; i < j.bytes / 4; i++) ((unsigned *)j.to)[i] = j.value;
    if (j.from) emulation::copied((const void *)j.from, j.bytes, false);
    if (j.to) emulation::copied((const void *)j.to, j.bytes, true);
    if (j.what == LAUNCH) emulation::half = j.value == 3; /* DT_F16 */
    if (j.what == LAUNCH) emulation::launch(j.f, j.grid, j.threads, j.bytes, j.held.data());
    if (j.what == PRODUCT) j.multiply();
    if (j.what == RECORD) j.mark->done = true;
    if (j.what == OTHER) j.go(j.other, 1);
    drop(j.mark);
}
/* Runs the first job of a random stream that does not wait for an event. False: all that could run waits for peers. */
static bool step(void)
{
    std::vector<CUstream> ready;
    bool others = false;
    for (auto s : streams) {
        if (s->queue.empty()) continue;
        job &j = s->queue.front();
        others |= j.what == OTHER;
        if (j.what == OTHER ? j.go(j.other, 0) : j.what != WAIT || j.mark->done) ready.push_back(s);
    }
    if (ready.empty() && others) return usleep(100), false;
    if (ready.empty()) misuse("streams wait for each other");
    CUstream s = ready[emulation::draw() % ready.size()];
    job j = std::move(s->queue.front());
    s->queue.pop_front();
    run(j, s->number);
    if (s->destroyed && s->queue.empty()) streams.erase(s), delete s;
    return true;
}
/* Runs work until a condition holds, and perhaps some more. `patient`: waits for peers. */
template <class C> static void run_until(C done, bool patient = true)
{
    unsigned more = emulation::draw() % 4;
    if (done() && (!more || idle())) return;
    expose(true);
    while (!done() && (step() || patient)) continue;
    for (; more && !idle(); more--) step();
    expose(false);
}

static token *record(CUstream s)
{
    job j = {};
    token *t = j.mark = new token{2, false, {}}; /* the job's, and whose it becomes */
    j.what = RECORD;
    put(s, j);
    t->at = s->at;
    return t;
}
static void wait_for(CUstream s, token *t)
{
    job j = {};
    if (!t) return;
    s->at.join(t->at);
    if (t->done) return;
    j.what = WAIT, j.mark = t, t->uses++;
    put(s, j);
}
/* The stream of a call; the one without a name waits for all others of its context, and they wait for it. */
static CUstream stream_of(CUstream s, const char *name)
{
    if (s && (!streams.count(s) || s->destroyed))
        misuse("%s: stream %p was destroyed, or never created", name, (void *)s);
    if (s && s->context != current) misuse("%s: a stream of another context than the current one", name);
    CUstream own = s ? s : current->legacy;
    for (auto other : streams) {
        if (other == own || other->context != current || other->queue.empty() || (s && other != current->legacy))
            continue;
        if ((other->flags | own->flags) & CU_STREAM_NON_BLOCKING) continue;
        token *t = record(other);
        wait_for(own, t);
        drop(t);
    }
    return own;
}
static CUresult enqueue(CUstream s, job &j)
{
    put(s, j);
    if (emulation::draw() % 128 == 0) run_until([] { return true; }); /* a device does not wait until somebody waits */
    return CUDA_SUCCESS;
}

static void wait_for_stream(CUstream s)
{
    waits++;
    run_until([s] { return s->queue.empty(); });
    waited(s->at);
}
static void wait_for_all(void)
{
    if (last_error) return;
    run_until(idle);
    waited(everything);
}

/* ---- the driver ---- */

DRIVER_CALL cuInit(unsigned flags)
{
    ENTER("cuInit", ANY, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (getenv("STAND_IN_NO_DEVICE")) return CUDA_ERROR_NO_DEVICE;
    initialized = true, process = getpid();
    return CUDA_SUCCESS;
}
DRIVER_CALL cuDriverGetVersion(int *version)
{
    ENTER("cuDriverGetVersion", ANY, CUDA_ERROR_INVALID_VALUE);
    *version = 13000;
    return CUDA_SUCCESS;
}
DRIVER_CALL cuDeviceGetCount(int *count)
{
    ENTER("cuDeviceGetCount", DRIVER, CUDA_ERROR_NOT_INITIALIZED);
    *count = gpus;
    return CUDA_SUCCESS;
}
DRIVER_CALL cuDeviceGet(CUdevice *device, int number)
{
    ENTER("cuDeviceGet", DRIVER, CUDA_ERROR_INVALID_DEVICE);
    if (number < 0 || number >= gpus) return CUDA_ERROR_INVALID_DEVICE;
    *device = FIRST_DEVICE + number; /* not its number: who mixes them up is told so */
    return CUDA_SUCCESS;
}
static int number_of(CUdevice device, const char *name)
{
    if (device < FIRST_DEVICE || device >= FIRST_DEVICE + gpus)
        misuse("%s: device %d did not come from cuDeviceGet", name, device);
    return device - FIRST_DEVICE;
}
DRIVER_CALL cuDeviceGetName(char *name, int room, CUdevice device)
{
    ENTER("cuDeviceGetName", DRIVER, CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, (size_t)room, "stand-in GPU %d", number_of(device, "cuDeviceGetName"));
    return CUDA_SUCCESS;
}
static int shared_of_block(void)
{
    return (arch == 80 || arch == 87 ? 163 : arch == 86 || arch == 89 || arch >= 120 ? 99 : 227) << 10;
}
DRIVER_CALL cuDeviceGetUuid(CUuuid *id, CUdevice device)
{
    ENTER("cuDeviceGetUuid", DRIVER, CUDA_ERROR_INVALID_DEVICE);
    memset(id, 0x55, sizeof *id);
    id->bytes[0] = (char)number_of(device, "cuDeviceGetUuid");
    return CUDA_SUCCESS;
}
DRIVER_CALL cuDeviceGetAttribute(int *value, CUdevice_attribute what, CUdevice device)
{
    static const int known[][2] = { /* CUdevice_attribute, its value on an H100 */
        {1, 1024}, {2, 1024}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 48 << 10}, {10, 32}, {12, 65536}, {13, 1980000},
        {14, 512}, {16, 132}, {18, 0}, {19, 1}, {31, 1}, {32, 1}, {33, 1}, {34, 0}, {36, 2619000}, {37, 5120}, {38, 50 << 20},
        {39, 2048}, {40, 3}, {41, 1}, {50, 0}, {81, 228 << 10}, {91, 1}};
    ENTER("cuDeviceGetAttribute", DRIVER, CUDA_ERROR_INVALID_DEVICE);
    number_of(device, "cuDeviceGetAttribute");
    if ((int)what == 75 || (int)what == 76) return *value = (int)what == 75 ? arch / 10 : arch % 10, CUDA_SUCCESS;
    if ((int)what == 97) return *value = shared_of_block(), CUDA_SUCCESS;
    for (auto &k : known)
        if (k[0] == (int)what) return *value = k[1], CUDA_SUCCESS;
    misuse("cuDeviceGetAttribute: attribute %d is not known here", (int)what);
}
DRIVER_CALL cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    ENTER("cuDeviceTotalMem", DRIVER, CUDA_ERROR_INVALID_DEVICE);
    number_of(device, "cuDeviceTotalMem");
    *bytes = capacity;
    return CUDA_SUCCESS;
}
DRIVER_CALL cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER("cuDevicePrimaryCtxRetain", DRIVER, CUDA_ERROR_OUT_OF_MEMORY);
    const int n = number_of(device, "cuDevicePrimaryCtxRetain");
    CUcontext c = &contexts[n];
    c->device = n;
    if (!c->retained++) streams.insert(c->legacy = new CUstream_st{c, 0, false, {}, stream_count++, {}});
    *context = c;
    return CUDA_SUCCESS;
}
DRIVER_CALL cuDevicePrimaryCtxRelease(CUdevice device)
{
    call entered("cuDevicePrimaryCtxRelease", DRIVER, CUDA_ERROR_INVALID_DEVICE);
    CUcontext c = &contexts[number_of(device, "cuDevicePrimaryCtxRelease")];
    if (!c->retained) misuse("cuDevicePrimaryCtxRelease: the context is not retained");
    if (!--c->retained) { /* what lives in it is counted at exit */
        wait_for_all();
        streams.erase(c->legacy);
        delete c->legacy;
        if (current == c) current = NULL;
    }
    return entered.code;
}
DRIVER_CALL cuCtxSetCurrent(CUcontext context)
{
    ENTER("cuCtxSetCurrent", DRIVER, CUDA_ERROR_INVALID_CONTEXT);
    if (context && (context < contexts || context >= contexts + DEVICES || !context->retained))
        misuse("cuCtxSetCurrent: context %p is not retained", (void *)context);
    current = context;
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

DRIVER_CALL cuMemGetInfo(size_t *free, size_t *total)
{
    ENTER("cuMemGetInfo", CONTEXT, CUDA_ERROR_ILLEGAL_ADDRESS);
    *free = capacity - used[current->device], *total = capacity;
    return CUDA_SUCCESS;
}
DRIVER_CALL cuMemAlloc(CUdeviceptr *at, size_t bytes)
{
    ENTER("cuMemAlloc", CONTEXT, CUDA_ERROR_OUT_OF_MEMORY);
    const size_t front = 256 * (emulation::draw() % 15 + 1), page = emulation::PAGE;
    const size_t mapped = (front + bytes + 64 + page - 1) / page * page;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > capacity - used[current->device]) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!emulation::device) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *all = mmap(NULL, emulation::device_span, PROT_NONE, flags, -1, 0), *cells = NULL;
#ifdef EMULATION_CHECKED
        cells = mmap(NULL, emulation::device_span / 4 * sizeof(emulation::cell), PROT_READ | PROT_WRITE, flags, -1, 0);
#endif
        if (all == MAP_FAILED || cells == MAP_FAILED) misuse("no addresses for device memory");
        emulation::device = next_address = (uintptr_t)all, emulation::device_cells = (emulation::cell *)cells;
    }
    char *map = (char *)next_address;
    if (next_address + mapped + page > emulation::device + emulation::device_span ||
        mprotect(map, mapped, PROT_READ | PROT_WRITE))
        return CUDA_ERROR_OUT_OF_MEMORY;
    next_address += mapped + page; /* no address is used twice, and a page after each faults */
    memset(map, CANARY, mapped);
    memset(map + front, 0x7f, bytes);
    emulation::set_cells(map + front, bytes, 1);
    if (!running) mprotect(map, mapped, PROT_NONE);
    *at = (CUdeviceptr)(map + front);
    allocations[*at] = {current, bytes, mapped, map};
    used[current->device] += bytes;
    return CUDA_SUCCESS;
}
static void give_back(CUdeviceptr at)
{
    auto a = allocations.find(at);
    if (a == allocations.end()) misuse("cuMemFree: no allocation starts at %#llx", at);
    const allocation gone = a->second;
    mprotect(gone.map, gone.mapped, PROT_READ | PROT_WRITE);
    check_canaries(gone, at);
    emulation::set_cells((void *)at, gone.bytes, 0);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(gone.map, gone.mapped, PROT_NONE, flags, -1, 0) == MAP_FAILED) misuse("mmap failed");
    used[gone.context->device] -= gone.bytes;
    allocations.erase(a);
}
DRIVER_CALL cuMemFree(CUdeviceptr at)
{
    ENTER("cuMemFree", RELEASE, CUDA_ERROR_ILLEGAL_ADDRESS);
    if (!at) return entered.code;
    wait_for_all(); /* the device's work, and with it the peers' that it waits for */
    give_back(at);
    return entered.code;
}
DRIVER_CALL cuMemAllocAsync(CUdeviceptr *at, size_t bytes, CUstream) { return cuMemAlloc(at, bytes); }
DRIVER_CALL cuMemFreeAsync(CUdeviceptr at, CUstream s)
{
    ENTER("cuMemFreeAsync", CONTEXT, CUDA_ERROR_ILLEGAL_ADDRESS);
    job j = {};
    j.what = PRODUCT, j.gives = at, j.multiply = [at] { give_back(at); };
    return enqueue(stream_of(s, "cuMemFreeAsync"), j);
}
DRIVER_CALL cuMemHostRegister(void *p, size_t bytes, unsigned flags)
{
    ENTER("cuMemHostRegister", CONTEXT, CUDA_ERROR_OUT_OF_MEMORY);
    const uintptr_t at = (uintptr_t)p;
    if (!p || !bytes) return CUDA_ERROR_INVALID_VALUE;
    auto next = registrations.upper_bound(at);
    if (next != registrations.end() && at + bytes > next->first) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (next != registrations.begin() && at < (--next)->first + next->second.bytes)
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    registrations[at] = {current, bytes, (flags & 2) != 0};
    return CUDA_SUCCESS;
}
DRIVER_CALL cuMemHostUnregister(void *p)
{
    ENTER("cuMemHostUnregister", RELEASE, CUDA_ERROR_ILLEGAL_ADDRESS);
    auto r = registrations.find((uintptr_t)p);
    if (r == registrations.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    for (auto s : streams)
        for (auto &j : s->queue)
            if (!last_error && j.host >= p && (char *)j.host < (char *)p + r->second.bytes)
                misuse("cuMemHostUnregister: a copy of this memory has not ended");
    registrations.erase(r);
    return entered.code;
}
/* Pageable bytes are taken at the call, registered ones when the copy runs. */
DRIVER_CALL cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream s)
{
    ENTER("cuMemcpyHtoDAsync", CONTEXT, CUDA_ERROR_ILLEGAL_ADDRESS);
    job j = {};
    CUstream own = stream_of(s, "cuMemcpyHtoDAsync");
    if (!bytes) return CUDA_SUCCESS;
    find(to, bytes, "cuMemcpyHtoDAsync");
    j.what = TO_DEVICE, j.to = to, j.bytes = bytes;
    if (registered(from, bytes, "cuMemcpyHtoDAsync")) j.host = (void *)(uintptr_t)from;
    else j.held.assign((const char *)from, bytes);
    return enqueue(own, j);
}
/* A copy to pageable memory has ended when the call returns. */
DRIVER_CALL cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream s)
{
    ENTER("cuMemcpyDtoHAsync", CONTEXT, CUDA_ERROR_ILLEGAL_ADDRESS);
    job j = {};
    CUstream own = stream_of(s, "cuMemcpyDtoHAsync");
    if (!bytes) return CUDA_SUCCESS;
    find(from, bytes, "cuMemcpyDtoHAsync");
    j.what = TO_HOST, j.from = from, j.host = to, j.bytes = bytes;
    const bool pinned = registered(to, bytes, "cuMemcpyDtoHAsync");
    enqueue(own, j);
    if (!pinned) wait_for_stream(own);
    return CUDA_SUCCESS;
}
DRIVER_CALL cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    ENTER("cuMemcpyDtoDAsync", CONTEXT, CUDA_ERROR_ILLEGAL_ADDRESS);
    job j = {};
    CUstream own = stream_of(s, "cuMemcpyDtoDAsync");
    if (!bytes) return CUDA_SUCCESS;
    find(to, bytes, "cuMemcpyDtoDAsync"), find(from, bytes, "cuMemcpyDtoDAsync");
    if (to < from + bytes && from < to + bytes)
        misuse("cuMemcpyDtoDAsync: %zu bytes from %#llx to %#llx overlap", bytes, from, to);
    j.what = ON_DEVICE, j.to = to, j.from = from, j.bytes = bytes;
    return enqueue(own, j);
}
/* The addresses say whose memory it is. */
DRIVER_CALL cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    const uintptr_t device = emulation::device, span = emulation::device_span;
    const bool write = to - device < span, read = from - device < span;
    if (!write && !read) misuse("cuMemcpyAsync: no memory of the device at %#llx or %#llx", to, from);
    if (!read) return cuMemcpyHtoDAsync(to, (const void *)(uintptr_t)from, bytes, s);
    return write ? cuMemcpyDtoDAsync(to, from, bytes, s) : cuMemcpyDtoHAsync((void *)(uintptr_t)to, from, bytes, s);
}
DRIVER_CALL cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream s)
{
    ENTER("cuMemsetD32Async", CONTEXT, CUDA_ERROR_ILLEGAL_ADDRESS);
    job j = {};
    CUstream own = stream_of(s, "cuMemsetD32Async");
    if (to % 4) return CUDA_ERROR_INVALID_VALUE;
    if (!count) return CUDA_SUCCESS;
    find(to, 4 * count, "cuMemsetD32Async");
    j.what = SET, j.to = to, j.value = value, j.bytes = 4 * count;
    return enqueue(own, j);
}

/* ---- streams and events ---- */

DRIVER_CALL cuStreamCreate(CUstream *s, unsigned flags)
{
    ENTER("cuStreamCreate", CONTEXT, CUDA_ERROR_OUT_OF_MEMORY);
    streams.insert(*s = new CUstream_st{current, flags, false, {}, stream_count++, {}});
    return CUDA_SUCCESS;
}
DRIVER_CALL cuStreamDestroy(CUstream s)
{
    ENTER("cuStreamDestroy", RELEASE, CUDA_ERROR_ILLEGAL_ADDRESS);
    if (!s) misuse("cuStreamDestroy: the default stream");
    stream_of(s, "cuStreamDestroy");
    s->destroyed = true; /* its work goes on; on a device that has failed only memory is given back */
    for (auto &j : s->queue)
        if (last_error && j.gives) give_back(j.gives);
    if (s->queue.empty() || last_error) streams.erase(s), delete s;
    return entered.code;
}
DRIVER_CALL cuStreamSynchronize(CUstream s)
{
    ENTER("cuStreamSynchronize", CONTEXT, CUDA_ERROR_ILLEGAL_ADDRESS);
    CUstream own = stream_of(s, "cuStreamSynchronize");
    wait_for_stream(own);
    return CUDA_SUCCESS;
}
DRIVER_CALL cuStreamQuery(CUstream s)
{
    ENTER("cuStreamQuery", CONTEXT, CUDA_ERROR_LAUNCH_FAILED);
    CUstream own = stream_of(s, "cuStreamQuery");
    const long before = jobs;
    run_until([own, before] { return own->queue.empty() || jobs > before; }, false);
    if (!own->queue.empty()) return CUDA_ERROR_NOT_READY;
    waited(own->at);
    return CUDA_SUCCESS;
}
static CUevent event_of(CUevent e, const char *name)
{
    if (!events.count(e)) misuse("%s: event %p was destroyed, or never created", name, (void *)e);
    return e;
}
DRIVER_CALL cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
    ENTER("cuStreamWaitEvent", CONTEXT, CUDA_ERROR_ILLEGAL_ADDRESS);
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    CUstream own = stream_of(s, "cuStreamWaitEvent");
    wait_for(own, event_of(e, "cuStreamWaitEvent")->last);
    return CUDA_SUCCESS;
}
DRIVER_CALL cuEventCreate(CUevent *e, unsigned)
{
    ENTER("cuEventCreate", CONTEXT, CUDA_ERROR_OUT_OF_MEMORY);
    events.insert(*e = new CUevent_st{current, NULL});
    return CUDA_SUCCESS;
}
DRIVER_CALL cuEventDestroy(CUevent e)
{
    ENTER("cuEventDestroy", RELEASE, CUDA_ERROR_ILLEGAL_ADDRESS);
    drop(event_of(e, "cuEventDestroy")->last);
    events.erase(e);
    delete e;
    return entered.code;
}
DRIVER_CALL cuEventRecord(CUevent e, CUstream s)
{
    ENTER("cuEventRecord", CONTEXT, CUDA_ERROR_ILLEGAL_ADDRESS);
    CUstream own = stream_of(s, "cuEventRecord");
    if (event_of(e, "cuEventRecord")->context != own->context)
        misuse("cuEventRecord: the event and the stream are of different contexts");
    drop(e->last);
    e->last = record(own);
    return CUDA_SUCCESS;
}
DRIVER_CALL cuEventSynchronize(CUevent e)
{
    ENTER("cuEventSynchronize", CONTEXT, CUDA_ERROR_ECC_UNCORRECTABLE);
    token *t = event_of(e, "cuEventSynchronize")->last;
    run_until([t] { return !t || t->done; });
    if (t) waited(t->at);
    return CUDA_SUCCESS;
}
DRIVER_CALL cuEventQuery(CUevent e)
{
    ENTER("cuEventQuery", CONTEXT, CUDA_ERROR_LAUNCH_FAILED);
    token *t = event_of(e, "cuEventQuery")->last;
    const long before = jobs;
    run_until([t, before] { return !t || t->done || jobs > before; });
    if (t && !t->done) return CUDA_ERROR_NOT_READY;
    if (t) waited(t->at);
    return CUDA_SUCCESS;
}

/* For what stands in for other libraries: work of theirs in a stream, and the device memory that it uses. */
extern "C" void stand_in_put(CUstream s, int (*go)(void *, int), void *other)
{
    call entered("a library's work", CONTEXT, CUDA_ERROR_ILLEGAL_ADDRESS);
    job j = {};
    CUstream own = stream_of(s, "a library's work");
    j.what = OTHER, j.go = go, j.other = other;
    put(own, j);
}
/* Runs some work, as a device does while its program waits for something else. */
static bool ended;
extern "C" void stand_in_go_on(void)
{
    std::lock_guard<std::recursive_mutex> held(lock);
    const long before = jobs;
    if (!ended && !last_error && !idle()) run_until([before] { return idle() || jobs > before; }, false);
}
extern "C" void stand_in_use(const void *at, size_t bytes, bool writes)
{
    find((CUdeviceptr)at, bytes, "a library's work");
    emulation::copied(at, bytes, writes);
}

/* ---- modules and launches ---- */

DRIVER_CALL cuModuleLoadData(CUmodule *m, const void *data)
{
    ENTER("cuModuleLoadData", CONTEXT, CUDA_ERROR_NO_BINARY_FOR_GPU);
    image i;
    if (memcmp(data, image_magic, sizeof image_magic)) return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&i, data, sizeof i);
    if (i.text != hash(stand_in_text, (size_t)(stand_in_text_end - stand_in_text))) return CUDA_ERROR_INVALID_IMAGE;
    if (i.arch != arch) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    modules.insert(*m = new CUmod_st{current, i.number, i.lacks, {}});
    return CUDA_SUCCESS;
}
DRIVER_CALL cuModuleUnload(CUmodule m)
{
    ENTER("cuModuleUnload", RELEASE, CUDA_ERROR_ILLEGAL_ADDRESS);
    if (!modules.erase(m)) misuse("cuModuleUnload: module %p is not loaded", (void *)m);
    wait_for_all();
    delete m;
    return entered.code;
}
DRIVER_CALL cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name)
{
    ENTER("cuModuleGetFunction", CONTEXT, CUDA_ERROR_NOT_FOUND);
    if (!modules.count(m)) misuse("cuModuleGetFunction: module %p is not loaded", (void *)m);
    for (auto k = emulation::kernels; k; k = k->next) {
        if (strcmp(k->name, name) || m->lacks.find(std::string(" ") + name + " ") != std::string::npos) continue;
        for (auto &known : m->functions)
            if (known.f == k) return *f = &known, CUDA_SUCCESS;
        m->functions.push_back({m, k, 48 << 10});
        *f = &m->functions.back();
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}
static void check_function(CUfunction f, const char *name)
{
    for (auto m : modules)
        for (auto &known : m->functions)
            if (f == &known && m->context == current) return;
    misuse("%s: function %p is not of a loaded module of the current context", name, (void *)f);
}
DRIVER_CALL cuFuncSetAttribute(CUfunction f, CUfunction_attribute what, int value)
{
    ENTER("cuFuncSetAttribute", CONTEXT, CUDA_ERROR_INVALID_VALUE);
    check_function(f, "cuFuncSetAttribute");
    if (what == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || value > shared_of_block()) return CUDA_ERROR_INVALID_VALUE;
        f->dynamic = value;
    }
    return CUDA_SUCCESS;
}
DRIVER_CALL cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                           unsigned shared, CUstream s, void **params, void **extra)
{
    ENTER("cuLaunchKernel", CONTEXT, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    job j = {};
    CUstream own = stream_of(s, "cuLaunchKernel");
    check_function(f, "cuLaunchKernel");
    const emulation::kernel *k = f->f;
    const void *argument = params ? params[0] : NULL;
    if (!gx || !gy || !gz || gx > 2147483647u || gy > 65535 || gz > 65535)
        misuse("%s: a grid of %u x %u x %u blocks", k->name, gx, gy, gz);
    if (!bx || by != 1 || bz != 1 || bx > k->threads)
        misuse("%s: a block of %u x %u x %u threads; it is made for %u", k->name, bx, by, bz, k->threads);
    if (shared > (unsigned)f->dynamic)
        misuse("%s: %u bytes of dynamic shared memory; %d are allowed (cuFuncSetAttribute)", k->name, shared,
               f->dynamic);
    if (extra) {
        size_t size = k->bytes;
        for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
            if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) argument = extra[1];
            if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *(size_t *)extra[1];
        }
        if (size != k->bytes) misuse("%s: an argument of %zu bytes; the kernel's has %zu", k->name, size, k->bytes);
    }
    if (!argument) misuse("%s: without its argument", k->name);
    j.what = LAUNCH, j.f = k, j.threads = bx, j.bytes = shared, j.value = (unsigned)f->module->number;
    j.grid[0] = gx, j.grid[1] = gy, j.grid[2] = gz;
    j.held.assign((const char *)argument, k->bytes);
    launches++;
    emulation::shared_limit = (size_t)shared_of_block();
    return enqueue(own, j);
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
static CUresult say_error(int code, const char **text, bool name)
{
    for (auto &e : errors)
        if (e.code == code) return *text = name ? e.name : e.text, CUDA_SUCCESS;
    return *text = NULL, CUDA_ERROR_INVALID_VALUE;
}
DRIVER_CALL cuGetErrorString(CUresult code, const char **text) { return say_error((int)code, text, false); }
DRIVER_CALL cuGetErrorName(CUresult code, const char **text) { return say_error((int)code, text, true); }

/* ---- NVRTC ---- */

#define COMPILE(name, error) \
    call entered(name, ANY, error); \
    if (entered.code != CUDA_SUCCESS) return (nvrtcResult)entered.code

NVRTC_CALL nvrtcVersion(int *major, int *minor)
{
    COMPILE("nvrtcVersion", NVRTC_ERROR_INVALID_INPUT);
    *major = 13, *minor = 0;
    return NVRTC_SUCCESS;
}
NVRTC_CALL nvrtcCreateProgram(nvrtcProgram *p, const char *text, const char *, int headers, const char *const *,
                              const char *const *)
{
    COMPILE("nvrtcCreateProgram", NVRTC_ERROR_OUT_OF_MEMORY);
    if (headers) misuse("nvrtcCreateProgram: with %d headers; the device text needs none", headers);
    programs.insert(*p = new _nvrtcProgram{text, "", {}, false});
    return NVRTC_SUCCESS;
}
static nvrtcProgram program_of(nvrtcProgram p, const char *name)
{
    if (!programs.count(p)) misuse("%s: program %p was destroyed, or never created", name, (void *)p);
    return p;
}
NVRTC_CALL nvrtcCompileProgram(nvrtcProgram p, int count, const char *const *options)
{
    call entered("nvrtcCompileProgram", ANY, NVRTC_ERROR_COMPILATION);
    bool fused = !setting("STAND_IN_FUSED", 0);
    int target = 0;
    program_of(p, "nvrtcCompileProgram")->log = "";
    if (entered.code != CUDA_SUCCESS)
        return p->log = "cuda.cu(1): error: the stand-in was told to fail", (nvrtcResult)entered.code;
    for (int i = 0; i < count; i++) {
        const char *is = strstr(options[i], "sm_");
        if (is) target = atoi(is + 3);
        fused = fused && !strstr(options[i], "fmad=false");
    }
    if (!target)
        return p->log = "nvrtc: error: the stand-in needs --gpu-architecture=sm_..", NVRTC_ERROR_INVALID_OPTION;
    if (fused) return p->log = "nvrtc: error: the stand-in needs -fmad=false", NVRTC_ERROR_INVALID_OPTION;
    std::string lacks;
    for (size_t at; (at = p->text.find(" DT__NO_ENTRY\n")) != std::string::npos;) {
        const size_t name = p->text.rfind("DT__IS_", at) + 7;
        lacks += " " + p->text.substr(name, at - name) + " ";
        p->text.erase(at + 5, 3);
    }
    std::string built(stand_in_text, (size_t)(stand_in_text_end - stand_in_text));
    const char begin[] = "#define DT__ON_DEVICE ";
    const size_t digit = sizeof begin - 1;
    if (!built.compare(0, digit, begin) && !p->text.compare(0, digit, begin))
        p->made.number = (built[digit] = p->text[digit]) - '0'; /* of the text's modules, which one */
    if (p->text != built) {
        size_t same = 0;
        while (same < built.size() && same < p->text.size() && built[same] == p->text[same]) same++;
        const size_t line = (size_t)std::count(built.begin(), built.begin() + (long)same, '\n') + 1;
        const size_t start = same ? built.rfind('\n', same - 1) + 1 : 0;
        p->log = "cuda.cu(" + std::to_string(line) +
                 "): error: not the text that the stand-in was built from, whose line is: " +
                 built.substr(start, built.find('\n', start) - start) +
                 "\nhere it is: " + p->text.substr(start, p->text.find('\n', start) - start);
        return NVRTC_ERROR_COMPILATION;
    }
    memcpy(p->made.magic, image_magic, sizeof image_magic);
    snprintf(p->made.lacks, sizeof p->made.lacks, "%s", lacks.c_str());
    p->made.text = hash(stand_in_text, built.size()), p->made.arch = target, p->compiled = true;
    return NVRTC_SUCCESS;
}
NVRTC_CALL nvrtcGetCUBINSize(nvrtcProgram p, size_t *bytes)
{
    COMPILE("nvrtcGetCUBINSize", NVRTC_ERROR_INTERNAL_ERROR);
    *bytes = program_of(p, "nvrtcGetCUBINSize")->compiled ? sizeof p->made : 0;
    return NVRTC_SUCCESS;
}
NVRTC_CALL nvrtcGetCUBIN(nvrtcProgram p, char *cubin)
{
    COMPILE("nvrtcGetCUBIN", NVRTC_ERROR_INTERNAL_ERROR);
    if (!program_of(p, "nvrtcGetCUBIN")->compiled) misuse("nvrtcGetCUBIN: the program was not compiled");
    memcpy(cubin, &p->made, sizeof p->made);
    return NVRTC_SUCCESS;
}
NVRTC_CALL nvrtcGetProgramLogSize(nvrtcProgram p, size_t *bytes)
{
    COMPILE("nvrtcGetProgramLogSize", NVRTC_ERROR_INTERNAL_ERROR);
    *bytes = program_of(p, "nvrtcGetProgramLogSize")->log.size() + 1;
    return NVRTC_SUCCESS;
}
NVRTC_CALL nvrtcGetProgramLog(nvrtcProgram p, char *log)
{
    COMPILE("nvrtcGetProgramLog", NVRTC_ERROR_INTERNAL_ERROR);
    strcpy(log, program_of(p, "nvrtcGetProgramLog")->log.c_str());
    return NVRTC_SUCCESS;
}
NVRTC_CALL nvrtcDestroyProgram(nvrtcProgram *p)
{
    call entered("nvrtcDestroyProgram", ANY, NVRTC_ERROR_INTERNAL_ERROR);
    programs.erase(program_of(*p, "nvrtcDestroyProgram"));
    delete *p;
    *p = NULL;
    return (nvrtcResult)entered.code;
}
extern "C" const char *nvrtcGetErrorString(nvrtcResult code)
{
    switch ((int)code) {
    case NVRTC_SUCCESS: return "NVRTC_SUCCESS";
    case NVRTC_ERROR_OUT_OF_MEMORY: return "NVRTC_ERROR_OUT_OF_MEMORY";
    case NVRTC_ERROR_INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case NVRTC_ERROR_INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
    case NVRTC_ERROR_COMPILATION: return "NVRTC_ERROR_COMPILATION";
    default: return "NVRTC_ERROR_INTERNAL_ERROR";
    }
}

/* ---- cuBLASLt: of its calls what a trainer uses ---- */

enum { LT_INVALID = 7, LT_FAILED = 13, LT_NOT_SUPPORTED = 15, LT_CLASSES = 4 };
struct lt_object { /* a handle, product, layout or wish for a kernel */
    int kind, type, turned[2], epilogue, sum, alignment[4];
    uint64_t rows, cols, room;
    int64_t ld;
    const void *bias;
};
struct lt_choice {
    uint64_t kernel[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
static std::set<lt_object *> lt_objects;
static const char *const lt_names[LT_CLASSES] = {"handle", "product", "layout", "preference"};

static int lt_width(int type) { return type ? 2 : 4; }
static lt_object *lt_at(void *p, int kind, const char *name)
{
    lt_object *o = (lt_object *)p;
    if (!lt_objects.count(o) || o->kind != kind) misuse("%s: %p is not a %s of cuBLASLt", name, p, lt_names[kind]);
    return o;
}
#define LT_CALL extern "C" int
#define LT_OBJECT(name, Name, number, arguments, ...) \
    LT_CALL name##Create arguments \
    { \
        ENTER(#name "Create", CONTEXT, (CUresult)3); \
        lt_object o = {}; \
        o.kind = number; \
        __VA_ARGS__; \
        lt_objects.insert((lt_object *)(*made = new lt_object(o))); \
        return 0; \
    } \
    LT_CALL name##Destroy(void *p) \
    { \
        ENTER(#name "Destroy", RELEASE, (CUresult)LT_FAILED); \
        lt_objects.erase(lt_at(p, number, #name "Destroy")), delete (lt_object *)p; \
        return (int)entered.code; \
    }
LT_OBJECT(cublasLt, handle, 0, (void **made), )
LT_OBJECT(cublasLtMatmulDesc, product, 1, (void **made, int sum, int scale),
          if (scale || (sum != 68 && sum != 77)) misuse("cublasLtMatmulDescCreate: sums %d, scale %d", sum, scale);
          o.sum = sum)
LT_OBJECT(cublasLtMatrixLayout, layout, 2, (void **made, int type, uint64_t rows, uint64_t cols, int64_t ld),
          if (type != 0 && type != 2 && type != 14) misuse("cublasLtMatrixLayoutCreate: type %d", type);
          if (!rows || !cols || ld < (int64_t)rows)
              misuse("cublasLtMatrixLayoutCreate: %llu rows, %llu columns, leading dimension %lld",
                     (unsigned long long)rows, (unsigned long long)cols, (long long)ld);
          o.type = type; o.rows = rows; o.cols = cols; o.ld = ld)
LT_OBJECT(cublasLtMatmulPreference, preference, 3, (void **made), for (int &a : o.alignment) a = 256)

LT_CALL cublasLtMatmulDescSetAttribute(void *p, int what, const void *value, size_t bytes)
{
    ENTER("cublasLtMatmulDescSetAttribute", CONTEXT, (CUresult)LT_INVALID);
    lt_object *o = lt_at(p, 1, "cublasLtMatmulDescSetAttribute");
    if ((what == 3 || what == 4) && bytes == 4) memcpy(&o->turned[what - 3], value, 4);
    else if (what == 7 && bytes == 4) memcpy(&o->epilogue, value, 4);
    else if (what == 8 && bytes == sizeof o->bias) memcpy(&o->bias, value, sizeof o->bias);
    else return LT_INVALID;
    return 0;
}
LT_CALL cublasLtMatmulPreferenceSetAttribute(void *p, int what, const void *value, size_t bytes)
{
    ENTER("cublasLtMatmulPreferenceSetAttribute", CONTEXT, (CUresult)LT_INVALID);
    lt_object *o = lt_at(p, 3, "cublasLtMatmulPreferenceSetAttribute");
    if (what == 1 && bytes == 8) memcpy(&o->room, value, 8);
    else if (what >= 5 && what <= 8 && bytes == 4) memcpy(&o->alignment[what - 5], value, 4);
    else return LT_INVALID;
    return 0;
}
/* D (m,n) = A (m,k) B (k,n), in columns. The sizes must fit; returns k. */
static uint64_t lt_fits(const lt_object *o, const lt_object *a, const lt_object *b, const lt_object *c,
                        const lt_object *d, const char *name)
{
    const uint64_t m = o->turned[0] ? a->cols : a->rows, k = o->turned[0] ? a->rows : a->cols;
    const uint64_t n = o->turned[1] ? b->rows : b->cols, deep = o->turned[1] ? b->cols : b->rows;
    if (k != deep || c->rows != m || c->cols != n || d->rows != m || d->cols != n || c->type != d->type)
        misuse("%s: (%llu,%llu) by (%llu,%llu) to (%llu,%llu)", name, (unsigned long long)m, (unsigned long long)k,
               (unsigned long long)deep, (unsigned long long)n, (unsigned long long)d->rows,
               (unsigned long long)d->cols);
    if (a->type != b->type || (d->type && d->type != a->type) || (a->type ? o->sum != 68 : o->sum != 77))
        misuse("%s: types %d and %d, sums %d, result %d", name, a->type, b->type, o->sum, d->type);
    return k;
}
LT_CALL cublasLtMatmulAlgoGetHeuristic(void *handle, void *p, void *a, void *b, void *c, void *d, void *wish, int wanted,
                                       lt_choice *choice, int *count)
{
    const char *name = "cublasLtMatmulAlgoGetHeuristic";
    ENTER(name, CONTEXT, (CUresult)LT_NOT_SUPPORTED);
    const lt_object *o = lt_at(p, 1, name), *x = lt_at(a, 2, name), *w = lt_at(wish, 3, name);
    lt_at(handle, 0, name);
    lt_fits(o, x, lt_at(b, 2, name), lt_at(c, 2, name), lt_at(d, 2, name), name);
    memset(choice, 0, sizeof *choice), *count = 0;
    if (wanted != 1) return LT_INVALID;
    if (getenv("STAND_IN_NO_KERNEL")) return LT_NOT_SUPPORTED;
    for (int i = 0; i < 4; i++) choice->kernel[i] = (uint64_t)w->alignment[i];
    choice->kernel[4] = (uint64_t)(uintptr_t)p, choice->workspace = std::min<uint64_t>(w->room, 4096), *count = 1;
    return 0;
}

static double lt_value(const void *at, int type, bool tf32)
{
    uint32_t bits = type ? *(const uint16_t *)at : *(const uint32_t *)at;
    float x;
    if (type == 2) {
        const int e = bits >> 10 & 31, m = bits & 1023;
        const double v = e == 31 ? m ? NAN : INFINITY : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        return bits >> 15 ? -v : v;
    }
    if (type == 14) bits <<= 16;
    if (tf32) bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&x, &bits, 4);
    return x;
}
static void lt_put(void *at, int type, double value)
{
    float x = (float)value;
    uint32_t bits;
    if (type == 2) {
        const int e = value == 0 ? -14 : std::min(std::max(ilogb(value), -14), 15);
        const int q = (int)nearbyint(ldexp(fabs(value), 10 - e)), whole = q == 2048; /* rounded up to the next power */
        bits = q < 1024 ? q : std::min(((e + 15 + whole) << 10) | (whole ? 0 : q & 1023), 0x7c00);
        *(uint16_t *)at = (uint16_t)(bits | (value < 0 ? 0x8000 : 0));
        return;
    }
    memcpy(&bits, &x, 4);
    if (type) *(uint16_t *)at = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    else *(float *)at = x;
}
LT_CALL cublasLtMatmul(void *handle, void *p, const float *alpha, const void *a, void *la, const void *b, void *lb,
                       const float *beta, const void *c, void *lc, void *d, void *ld, const uint64_t *kernel,
                       void *workspace, size_t bytes, CUstream s)
{
    const char *name = "cublasLtMatmul";
    ENTER(name, CONTEXT, (CUresult)LT_FAILED);
    lt_at(handle, 0, name);
    const lt_object o = *lt_at(p, 1, name), x = *lt_at(la, 2, name), y = *lt_at(lb, 2, name), z = *lt_at(lc, 2, name);
    const uint64_t k = lt_fits(&o, &x, &y, &z, lt_at(ld, 2, name), name);
    const float scale = *alpha, more = *beta;
    const void *at[4] = {a, b, c, d};
    if (c != d || la == NULL || kernel[4] != (uint64_t)(uintptr_t)p) misuse("%s: the kernel of another product", name);
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)at[i] % kernel[i]) misuse("%s: operand %d is not aligned to %d bytes", name, i, (int)kernel[i]);
    find((CUdeviceptr)workspace, bytes, name);
    for (int i = 0; i < 3; i++) {
        const lt_object &l = i == 0 ? x : i == 1 ? y : z;
        find((CUdeviceptr)at[i], ((l.cols - 1) * (size_t)l.ld + l.rows) * (size_t)lt_width(l.type), name);
    }
    if (o.epilogue == 4) find((CUdeviceptr)o.bias, z.rows * (size_t)lt_width(z.type), name);
    else if (o.epilogue) misuse("%s: epilogue %d", name, o.epilogue);
    job j = {};
    j.what = PRODUCT;
    j.multiply = [=] {
        for (int i = 0; i < 3; i++) {
            const lt_object &l = i == 0 ? x : i == 1 ? y : z;
            const size_t width = (size_t)lt_width(l.type);
            for (uint64_t col = 0; col < l.cols; col++)
                emulation::copied((const char *)at[i] + col * (size_t)l.ld * width, l.rows * width, i == 2);
        }
        const size_t wx = (size_t)lt_width(x.type), wz = (size_t)lt_width(z.type);
        for (uint64_t col = 0; col < z.cols; col++)
            for (uint64_t row = 0; row < z.rows; row++) {
                double sum = 0.0;
                char *to = (char *)d + (col * (size_t)z.ld + row) * wz;
                for (uint64_t i = 0; i < k; i++)
                    sum += lt_value((const char *)a + (o.turned[0] ? row * (size_t)x.ld + i : i * (size_t)x.ld + row) * wx,
                                    x.type, o.sum == 77) *
                           lt_value((const char *)b + (o.turned[1] ? i * (size_t)y.ld + col : col * (size_t)y.ld + i) * wx,
                                    y.type, o.sum == 77);
                sum *= scale;
                if (more != 0.0f) sum += more * lt_value(to, z.type, false);
                if (o.epilogue) sum += lt_value((const char *)o.bias + row * wz, z.type, false);
                lt_put(to, z.type, sum);
            }
    };
    return enqueue(stream_of(s, name), j);
}

/* ---- at exit ---- */

static struct farewell {
    ~farewell()
    {
        std::lock_guard<std::recursive_mutex> held(lock);
        size_t bytes = 0, queued = 0, kept = 0, own = 0;
        ended = true;
        if (process && process != getpid()) return;
        for (auto &a : allocations) {
            bytes += a.second.bytes;
            mprotect(a.second.map, a.second.mapped, PROT_READ);
            check_canaries(a.second, a.first);
        }
        for (auto &c : contexts) kept += (size_t)c.retained, own += c.retained > 0;
        for (auto s : streams) queued += s->queue.size();
        const size_t left = allocations.size() + modules.size() + streams.size() - own + events.size() +
                            registrations.size() + kept + programs.size() + queued + lt_objects.size();
        if (!getenv("STAND_IN_SAY") && !left) return;
        fprintf(stderr,
                "cuda stand-in: %ld calls, %ld launches, %ld waits; left: %zu allocations (%zu bytes), %zu modules, %zu streams, "
                "%zu events, %zu registrations, %zu contexts, %zu programs, %zu jobs\n",
                calls, launches, waits, allocations.size(), bytes, modules.size(), streams.size() - own, events.size(),
                registrations.size(), kept, programs.size(), queued);
    }
} at_exit;
