/* CUDA's execution model on one CPU thread: the device text runs where there is no GPU (cuda_stand_in.cpp launches it).
 *
 * Each thread of a block is a fiber. The lanes of a warp run in random order up to the next shuffle, barrier or end;
 * warps, and the blocks of a grid, follow each other in random order. Shared memory starts each block as NaNs. A
 * barrier that a thread cannot reach, a shuffle with a lane that has ended, too much shared memory: a sentence, and
 * abort().
 *
 * Compiled with -fsanitize=thread and linked without it (libtsan is not used), each access to memory calls a function
 * at the end of this file, which finds addresses outside arrays and allocations, misaligned addresses, reads of memory
 * that nothing has written, and races: two threads that touch a word, one of them writes, and no barrier is between.
 * __syncthreads orders the threads of a block, __syncwarp those of a warp, shuffles and ballots none. Lanes of a warp
 * may write the same value to the same place, as scalar statements of the text do. Include it before the device text.
 */
#ifndef CUDA_EMULATION_H
#define CUDA_EMULATION_H
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SANITIZE_THREAD__
#define EMULATION_CHECKED 1
#define EMULATION_PLAIN   __attribute__((no_sanitize("thread"))) /* code of the emulation, not of the text */
#else
#define EMULATION_PLAIN
#endif
#define EMULATION_OWN EMULATION_PLAIN static inline

struct emulated_index {
    unsigned x, y, z;
};
static emulated_index threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

enum { LANES = 32, WARPS = 32, THREADS = LANES * WARPS, STACK = 1 << 18, PAGE = 4096 };
enum {
    STATIC = 48 << 10,
    DYNAMIC = 228 << 10,
    GUARD = 64,
    ARRAYS = 32
}; /* shared memory, and what lies between arrays: bytes */
enum meeting { SHUFFLE, BALLOT, SYNC, PRODUCT, MATRICES };

/* What DT__KERNEL registers. threads: the most that a block may have (__launch_bounds__). */
struct kernel {
    const char *name;
    size_t bytes;
    void (*run)(const void *argument);
    unsigned threads;
    kernel *next;
    inline kernel(const char *name_, size_t bytes_, void (*run_)(const void *), unsigned threads_, unsigned blocks = 0);
};
static kernel *kernels;
inline kernel::kernel(const char *name_, size_t bytes_, void (*run_)(const void *), unsigned threads_, unsigned)
    : name(name_), bytes(bytes_), run(run_), threads(threads_), next(kernels)
{
    kernels = this;
}

/* Sets of lanes: not ended; not started; stopped by a switch, can go on; waiting for their warp; for their block. */
struct warp {
    uint32_t live, fresh, ready, waiting, blocked;
    int kind, turn;
    uint64_t phase;    /* the clock at its last __syncwarp */
    uint32_t given[2]; /* lanes that took part in the last two meetings, and their values */
    uint64_t value[2][LANES];
};
struct fiber {
    void *stack;
};

static const kernel *running;
static __thread bool inside __attribute__((tls_model("initial-exec"))); /* this thread of the program runs it */
static warp warps[WARPS];
static fiber caller, fibers[THREADS], *idle[THREADS], *now;
static fiber *on[THREADS]; /* of the threads that have started */
static int made, idling, this_warp, this_lane;
static uint32_t able; /* warps with a lane that can run */
static unsigned live, blocked;
static uint64_t seed = 88172645463325252ull;
static uint64_t ticks = 1, launched, started, separated; /* a clock; of the launch, the block, its last barrier */
static char *stacks;
alignas(256) static char argument[4096], shared[STATIC + GUARD * ARRAYS + DYNAMIC];
static char *const dynamic = shared + STATIC + GUARD * ARRAYS;
static size_t shared_limit = STATIC, dynamic_bytes;
static size_t shared_sum, shared_end; /* of static arrays: bytes, and bytes with guards */
static struct {
    const char *name, *at;
    size_t bytes;
} arrays[ARRAYS];
static int array_count;

/* What a checked build knows of each word of memory. */
struct cell {
    uint64_t write, read; /* the last ones: clock, thread, kind, bytes; 0: no memory, 1: never written */
};
static const uintptr_t device_span = (uintptr_t)1 << 38;
static uintptr_t device; /* all device memory lies in [device, device + device_span) */
[[maybe_unused]] static cell *device_cells;
[[maybe_unused]] static int allow_unwritten; /* device memory that nothing has written may be read */
/* Of streams: whether accesses of an earlier launch, at `settled` or later, come before the work that runs. */
[[maybe_unused]] static uint64_t settled;
[[maybe_unused]] static bool (*comes_before)(uint64_t when);
[[maybe_unused]] static bool (*host_mapped)(const void *at, size_t bytes); /* host memory that kernels may use */
[[maybe_unused]] static void (*describe)(uintptr_t at, char *text, size_t room); /* an address of device memory */
#ifdef EMULATION_CHECKED
static cell shared_cells[sizeof shared / 4];
EMULATION_OWN void compare_value(void);
EMULATION_OWN void set_cells(const void *at, size_t bytes, uint64_t write)
{
    const uintptr_t offset = (uintptr_t)at - (uintptr_t)shared;
    cell *c = offset < sizeof shared ? shared_cells + offset / 4 : device_cells + ((uintptr_t)at - device) / 4;
    for (size_t i = 0; i < (bytes + 3) / 4; i++) c[i].write = write, c[i].read = 0;
}
#else
EMULATION_OWN void compare_value(void) {}
EMULATION_OWN void copied(const void *, size_t, bool) {}
EMULATION_OWN void set_cells(const void *, size_t, uint64_t) {}
#endif

[[noreturn]] __attribute__((format(printf, 1, 2), noinline)) EMULATION_OWN void fault(const char *format, ...)
{
    va_list list;
    fflush(stdout);
    fprintf(stderr, "cuda emulation: %s, block (%u,%u,%u), thread %u: ", running ? running->name : "no kernel",
            blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputs("\n", stderr);
    abort();
}

EMULATION_OWN uint32_t draw(void)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (uint32_t)(seed >> 16);
}
/* One of a set that is not empty. */
EMULATION_OWN int pick(uint32_t set, uint32_t r)
{
    r &= 31;
    return (int)((unsigned)__builtin_ctz(set >> r | set << (-r & 31)) + r) & 31;
}

/* ---- fibers ---- */

#if defined(__x86_64__) && !defined(EMULATION_UCONTEXT)
/* Saves the registers that a call keeps on the stack, changes stacks, takes the registers from there. */
extern "C" __attribute__((visibility("hidden"))) void emulation_swap(void **save, void *load);
__asm__(".text\n.globl emulation_swap\n.hidden emulation_swap\n.type emulation_swap,@function\nemulation_swap:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\nmov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
EMULATION_OWN void *new_stack(char *top, void (*entry)(void))
{
    void **at = (void **)top;
    *--at = NULL; /* no return address: the entry never returns */
    *--at = (void *)entry;
    return at - 6;
}
#else
}
#include <ucontext.h>
namespace emulation {
static ucontext_t contexts[THREADS + 1];
EMULATION_OWN void emulation_swap(void **save, void *load)
{
    static int used;
    if (!*save) *save = &contexts[used++]; /* the caller's */
    swapcontext((ucontext_t *)*save, (ucontext_t *)load);
}
EMULATION_OWN void *new_stack(char *top, void (*entry)(void))
{
    ucontext_t *c = &contexts[THREADS - made];
    getcontext(c);
    c->uc_stack.ss_sp = top - STACK / 2, c->uc_stack.ss_size = STACK / 2, c->uc_link = NULL;
    makecontext(c, entry, 0);
    return c;
}
#endif

EMULATION_OWN void fiber_main(void);

EMULATION_OWN fiber *new_fiber(void)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (!stacks) stacks = (char *)mmap(NULL, (size_t)STACK * THREADS, PROT_NONE, flags, -1, 0);
    char *base = stacks + (size_t)STACK * (size_t)made;
    if (stacks == MAP_FAILED || mprotect(base + PAGE, STACK - PAGE, PROT_READ | PROT_WRITE))
        fault("no memory for a thread's stack");
    char *top = base + STACK - 64 * (made * 11 % 61 + 1); /* tops do not share one set of the cache */
    fibers[made].stack = new_stack(top, fiber_main);
    return &fibers[made++];
}

EMULATION_OWN void separate(void) /* __syncthreads: all threads of the block that have not ended are there */
{
    separated = ++ticks;
    for (int w = 0; w < WARPS; w++) {
        if (!warps[w].blocked) continue;
        warps[w].ready = warps[w].blocked, warps[w].blocked = 0;
        able |= 1u << w;
    }
    blocked = 0;
}

/* Chooses a lane that can run. Its fiber, or the caller when all have ended. */
EMULATION_OWN fiber *choose(void)
{
    const uint32_t r = draw();
    if (!able) {
        if (!live) return &caller;
        if (blocked < live) fault("deadlock: %u threads wait at __syncthreads, %u elsewhere", blocked, live - blocked);
        separate();
    }
    if (!(able >> this_warp & 1) || !(r >> 24)) this_warp = pick(able, r >> 8);
    warp *w = &warps[this_warp];
    const int lane = pick(w->fresh | w->ready, r), t = this_warp * LANES + lane;
    const uint32_t bit = 1u << lane;
    if (w->fresh & bit) on[t] = idling ? idle[--idling] : new_fiber();
    w->fresh &= ~bit, w->ready &= ~bit;
    if (!(w->fresh | w->ready)) able &= ~(1u << this_warp);
    this_lane = lane, threadIdx.x = (unsigned)t;
    return on[t];
}
EMULATION_OWN void go_on(void)
{
    fiber *from = now;
    compare_value();
    now = choose();
    if (now != from) emulation_swap(&from->stack, now->stack);
}

/* A meeting of a warp ends when all lanes that have not ended are there. */
EMULATION_OWN void settle(warp *w)
{
    if (!w->waiting || w->waiting != w->live) return;
    if (w->kind == SYNC) w->phase = ++ticks;
    w->given[w->turn] = w->ready = w->waiting;
    w->waiting = 0, w->turn ^= 1;
    able |= 1u << this_warp;
}
EMULATION_OWN int meet(int kind, unsigned mask, uint64_t value)
{
    warp *w = &warps[this_warp];
    const int turn = w->turn;
    if ((mask & w->live) != w->live)
        fault("the mask %08x of a warp's function leaves out lanes that run: %08x", mask, w->live & ~mask);
    if (w->waiting && w->kind != kind)
        fault("lanes of a warp wait at different functions (shuffle 0, ballot 1, __syncwarp 2, mma 3, ldmatrix 4: %d and %d)", kind,
              w->kind);
    w->kind = kind, w->value[turn][this_lane] = value;
    w->waiting |= 1u << this_lane;
    settle(w);
    go_on();
    return turn;
}

EMULATION_OWN void fiber_main(void)
{
    for (;;) {
        running->run(argument);
        compare_value();
        warp *w = &warps[this_warp];
        live--, w->live &= ~(1u << this_lane);
        settle(w);
        idle[idling++] = now; /* its next lane may well be one that has not started: then there is nothing to switch */
        go_on();
    }
}

/* ---- launches ---- */

/* An array of shared memory, which starts as NaNs. */
EMULATION_OWN void new_array(const char *name, char *at, size_t bytes)
{
    if (array_count == ARRAYS) fault("more than %d arrays of shared memory", ARRAYS);
    arrays[array_count].name = name, arrays[array_count].at = at, arrays[array_count++].bytes = bytes;
    memset(at, 0xff, bytes);
    set_cells(at, bytes, 1);
}

EMULATION_OWN void run_block(void)
{
    const int count = (int)(blockDim.x + LANES - 1) / LANES;
    for (int i = 0; i < array_count; i++) set_cells(arrays[i].at, arrays[i].bytes, 0);
    started = separated = ++ticks;
    array_count = 0, shared_end = shared_sum = 0;
    live = blockDim.x, blocked = 0, able = (uint32_t)((1ull << count) - 1);
    for (int w = 0; w < count; w++) {
        const unsigned lanes = blockDim.x - (unsigned)(w * LANES);
        warps[w].live = warps[w].fresh = lanes >= LANES ? ~0u : (1u << lanes) - 1;
        warps[w].ready = warps[w].waiting = warps[w].blocked = 0, warps[w].turn = 0;
        warps[w].phase = ticks;
    }
    now = &caller;
    go_on();
}

/* The caller has checked the sizes, and lets one thread at a time in. */
EMULATION_OWN void launch(const kernel *f, const unsigned grid[3], unsigned threads, size_t dynamic_size, const void *a)
{
    const uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    uint64_t step = blocks, b = draw() % blocks;
    for (uint64_t rest = 0; rest != 1 && blocks > 1;) { /* a step that reaches all blocks */
        step = draw() % blocks, rest = blocks;
        for (uint64_t x = step; x;) {
            const uint64_t y = rest % x;
            rest = x, x = y;
        }
    }
    memcpy(argument, a, f->bytes);
    running = f, gridDim = {grid[0], grid[1], grid[2]}, blockDim = {threads, 1, 1}, dynamic_bytes = dynamic_size;
    launched = ++ticks, inside = true;
    for (uint64_t i = 0; i < blocks; i++, b = (b + step) % blocks) {
        blockIdx = {(unsigned)(b % grid[0]), (unsigned)(b / grid[0] % grid[1]), (unsigned)(b / grid[0] / grid[1])};
        run_block();
    }
    running = NULL, inside = false;
}

/* A static array: the first thread of a block that comes here gives it a place. */
template <class T> struct shared_array {
    uint64_t block;
    T *at;
    EMULATION_PLAIN T *take(const char *name, size_t n)
    {
        if (block == started) return at;
        const size_t bytes = (n * sizeof(T) + 15) / 16 * 16;
        shared_sum += bytes;
        if (shared_sum > STATIC || shared_sum + dynamic_bytes > shared_limit)
            fault("%s: %zu bytes of shared memory, and %zu dynamic ones; at most %d static, %zu together", name,
                  shared_sum, dynamic_bytes, STATIC, shared_limit);
        block = started, at = (T *)(void *)(shared + shared_end);
        new_array(name, shared + shared_end, n * sizeof(T));
        shared_end += bytes + GUARD;
        return at;
    }
};
/* The next n elements of dynamic shared memory, which counts in floats. */
template <class T> EMULATION_OWN T *take_dynamic(const char *name, int &floats, size_t n)
{
    char *at = dynamic + 4 * (size_t)floats;
    if (4 * (size_t)floats + n * sizeof(T) > dynamic_bytes)
        fault("%s ends after %zu bytes of dynamic shared memory; the launch says %zu", name,
              4 * (size_t)floats + n * sizeof(T), dynamic_bytes);
    floats += (int)((n * sizeof(T) + 3) / 4);
    for (int i = 0; i < array_count; i++)
        if (arrays[i].at == at) return (T *)(void *)at;
    new_array(name, at, n * sizeof(T));
    return (T *)(void *)at;
}

} // namespace emulation

/* ---- what the device text calls ---- */

#define __device__
#define __global__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define DT__UNROLL
#define DT__ROLLED
#define DT__AHEAD
#define DT__KERNEL(name, type, ...) \
    static void name(const type &a); \
    static void name##_run(const void *a) { name(*(const type *)a); } \
    static emulation::kernel name##_entry(#name, sizeof(type), name##_run, __VA_ARGS__); \
    static void name(const type &a)
#define DT__SHARED(type, name, n) \
    static emulation::shared_array<type> name##_place; \
    type *const name = name##_place.take(#name, (size_t)(n))
#define DT__DYNAMIC(type, name, n) type *const name = emulation::take_dynamic<type>(#name, dynamic, (size_t)(n))

namespace emulation { EMULATION_OWN void clear(int &x) { x = 0; } }
EMULATION_OWN void __syncthreads(void)
{
    emulation::warps[emulation::this_warp].blocked |= 1u << emulation::this_lane;
    emulation::blocked++;
    emulation::go_on();
}
EMULATION_OWN void __syncwarp(unsigned mask = ~0u) { emulation::meet(emulation::SYNC, mask, 0); }
template <class T> EMULATION_OWN T __shfl_xor_sync(unsigned mask, T x, int with)
{
    const int from = emulation::this_lane ^ with;
    emulation::warp *const w = &emulation::warps[emulation::this_warp];
    uint64_t bits = 0;
    static_assert(sizeof x <= sizeof bits, "at most 64 bits");
    if ((unsigned)with >= emulation::LANES) emulation::fault("a shuffle with lane ^ %d", with);
    memcpy(&bits, &x, sizeof x);
    const int turn = emulation::meet(emulation::SHUFFLE, mask, bits);
    if (!(w->given[turn] >> from & 1)) emulation::fault("a shuffle reads lane %d, which does not take part", from);
    memcpy(&x, &w->value[turn][from], sizeof x);
    return x;
}
EMULATION_OWN unsigned __ballot_sync(unsigned mask, int predicate)
{
    emulation::warp *const w = &emulation::warps[emulation::this_warp];
    const int turn = emulation::meet(emulation::BALLOT, mask, predicate != 0);
    unsigned all = 0;
    for (int i = 0; i < emulation::LANES; i++) all |= (w->given[turn] >> i & (unsigned)w->value[turn][i]) << i;
    return all;
}
EMULATION_OWN int __popc(unsigned x) { return __builtin_popcount(x); }
EMULATION_OWN int __ffs(int x) { return __builtin_ffs(x); }
EMULATION_OWN int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
#define EMULATION_BITS(name, to, from) \
    EMULATION_OWN to name(from x) { to y; memcpy(&y, &x, sizeof y); return y; }
EMULATION_BITS(__float_as_int, int, float)
EMULATION_BITS(__int_as_float, float, int)
EMULATION_BITS(__float_as_uint, unsigned, float)
EMULATION_BITS(__uint_as_float, float, unsigned)
EMULATION_BITS(__double_as_longlong, long long, double)
EMULATION_BITS(__longlong_as_double, double, long long)

/* ---- tensor cores ----
 * The text's functions of PTX. Addresses of shared memory count from its begin; copies happen when they are waited for. */
#define DT__TENSOR_CORES 1
namespace emulation {
static uint32_t operands[2][WARPS][LANES][6]; /* of the last two products of a warp */
static struct copies {
    uint64_t block;
    int count;
    struct { uint32_t to; const void *from; } each[256];
} copies[THREADS];
static bool half; /* 16 bits are fp16, not bf16 */
EMULATION_OWN float wide_16(uint32_t bits)
{
    float x;
    if (!half) return bits <<= 16, __builtin_memcpy(&x, &bits, 4), x;
    const int exponent = (int)(bits >> 10 & 31), digits = (int)(bits & 1023);
    x = exponent == 31 ? (digits ? NAN : INFINITY) : ldexpf((float)(exponent ? digits + 1024 : digits), (exponent ? exponent : 1) - 25);
    return bits & 0x8000 ? -x : x;
}
EMULATION_OWN uint32_t narrow_16(float x)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return sign | 0x7fff;
    if (!half) return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    if (size >= 0x477ff000) return sign | 0x7c00;
    if (size < 0x38800000) return sign | (uint32_t)rintf(ldexpf(fabsf(x), 24)); /* subnormal */
    return sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
}
} // namespace emulation
EMULATION_OWN uint32_t dt__pair(float low, float high)
{
    return emulation::narrow_16(low) | emulation::narrow_16(high) << 16;
}
EMULATION_OWN void dt__mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    const int lane = emulation::this_lane, row = lane / 4, column = lane % 4 * 2;
    auto of = emulation::operands[emulation::warps[emulation::this_warp].turn][emulation::this_warp];
    for (int i = 0; i < 4; i++) of[lane][i] = a[i];
    of[lane][4] = b0, of[lane][5] = b1;
    emulation::meet(emulation::PRODUCT, ~0u, 0);
    float x[2][16], y[2][16];
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < 2; i++) { /* rows row, row + 8 of a; columns column, column + 1 of b */
            const uint32_t left = of[row * 4 + k % 8 / 2][i + k / 8 * 2], right = of[(column + i) * 4 + k % 8 / 2][4 + k / 8];
            x[i][k] = emulation::wide_16(k & 1 ? left >> 16 : left & 0xffff);
            y[i][k] = emulation::wide_16(k & 1 ? right >> 16 : right & 0xffff);
        }
    for (int e = 0; e < 4; e++)
        for (int k = 0; k < 16; k++) c[e] += x[e / 2][k] * y[e % 2][k];
}
template <int TURNED> static inline void dt__matrices(uint32_t x[4], uint32_t at)
{
    using namespace emulation;
    const int lane = this_lane;
    warp *const w = &warps[this_warp];
    if (at % 16) fault("ldmatrix from byte %u of shared memory: no multiple of 16", at);
    const int turn = meet(MATRICES, ~0u, at);
    for (int i = 0; i < 4; i++) {
        const int row = 8 * i + (TURNED ? lane % 4 * 2 : lane / 4), column = 2 * (TURNED ? lane / 4 : lane % 4 * 2);
        const char *const first = shared + w->value[turn][row] + column;
        const char *const second = TURNED ? shared + w->value[turn][row + 1] + column : first + 2;
        x[i] = *(const uint16_t *)(const void *)first | (uint32_t)*(const uint16_t *)(const void *)second << 16;
    }
}
EMULATION_OWN float dt__exp2(float x) { return exp2f(x); }
EMULATION_OWN uint32_t dt__shared_at(const void *p) { return (uint32_t)((const char *)p - emulation::shared); }
EMULATION_OWN void dt__copy_16(uint32_t to, const void *from, int there)
{
    auto &c = emulation::copies[threadIdx.x];
    if (c.count && c.block != emulation::started) emulation::fault("a thread of the last block left copies that it never waited for");
    if (c.count == 256) emulation::fault("more than 256 copies that a thread does not wait for");
    if (to % 16) emulation::fault("a copy of 16 bytes to byte %u of shared memory", to);
    c.block = emulation::started, c.each[c.count].to = to, c.each[c.count++].from = there ? from : NULL;
}
static inline void dt__copy_wait(void)
{
    auto &c = emulation::copies[threadIdx.x];
    struct alignas(16) line { uint64_t x[2]; };
    for (int i = 0; i < c.count; i++)
        *(line *)(void *)(emulation::shared + c.each[i].to) = c.each[i].from ? *(const line *)c.each[i].from : line{{0, 0}};
    emulation::clear(c.count);
}

/* ---- the accesses of a checked build ---- */

#ifdef EMULATION_CHECKED
namespace emulation {

/* Whose accesses a mark stands for. Of writes, OF_WARP: lanes that wrote the same value. */
enum { ONE, OF_WARP, OF_BLOCK, OF_GRID };
static struct { /* words that the write that follows must not change */
    const char *at, *site;
    uint64_t before;
    uint32_t value;
} rewritten[256];
static int rewritten_count;
static const char *site; /* the code that accesses memory */
extern "C" __attribute__((visibility("hidden"))) char __ehdr_start, _end; /* this object's own variables */

EMULATION_OWN uint64_t mark(int kind, unsigned bytes)
{
    return ticks << 16 | (uint64_t)threadIdx.x << 6 | (uint64_t)kind << 4 | bytes;
}
EMULATION_OWN int kind_of(uint64_t m) { return (int)(m >> 4 & 3); }
EMULATION_OWN unsigned thread_of(uint64_t m) { return (unsigned)(m >> 6) & (THREADS - 1); }
EMULATION_OWN bool by_this_warp(uint64_t m)
{
    return m >> 16 >= started && kind_of(m) <= OF_WARP && (int)thread_of(m) / LANES == this_warp;
}
/* The present access comes after those of a mark in all orders in which threads may run. */
EMULATION_OWN bool ordered(uint64_t m)
{
    const uint64_t when = m >> 16;
    if (when < launched) {
        if (when < settled || !comes_before) return true;
        inside = false;
        const bool before = comes_before(when);
        return inside = true, before;
    }
    if (when < started || kind_of(m) == OF_GRID) return false;
    if (when < separated) return true;
    if (!by_this_warp(m)) return false;
    return when < warps[this_warp].phase || (kind_of(m) == ONE && thread_of(m) == threadIdx.x);
}

/* The sentence names the code for `addr2line -i -e`. */
[[noreturn]] EMULATION_OWN void bad_access(const char *at, size_t size, bool writes, const char *why, uint64_t m)
{
    char where[200] = "", who[80] = "";
    for (int i = 0; i < array_count; i++)
        if (at >= arrays[i].at - GUARD && at < arrays[i].at + arrays[i].bytes + GUARD)
            snprintf(where, sizeof where, ", %s + %td bytes of %zu", arrays[i].name, at - arrays[i].at,
                     arrays[i].bytes);
    inside = false;
    if ((uintptr_t)at - device < device_span && describe) describe((uintptr_t)at, where, sizeof where);
    if (m > 1)
        snprintf(who, sizeof who, " by thread %u%s of %s", thread_of(m), kind_of(m) == ONE ? "" : " and others",
                 m >> 16 < launched  ? "other work, which no event or wait puts before"
                 : m >> 16 < started ? "another block"
                                     : "this block");
    fault("%s %zu bytes at %p%s (code %#tx): %s%s", writes ? "writes" : "reads", size, (const void *)at, where,
          site - &__ehdr_start - 1, why, who);
}

EMULATION_OWN void compare_value(void)
{
    for (int i = 0; i < rewritten_count; i++)
        if (memcmp(rewritten[i].at, &rewritten[i].value, 4)) {
            site = rewritten[i].site;
            bad_access(rewritten[i].at, 4, true, "a race in a warp: a new value where there was an access",
                       rewritten[i].before);
        }
    rewritten_count = 0;
}

EMULATION_OWN void touch_word(cell *c, const char *at, size_t size, unsigned bytes, bool writes)
{
    const bool wrote = (c->write & bytes) && c->write > 1 && !ordered(c->write);
    const bool read = (c->read & bytes) && !ordered(c->read);
    if (!c->write) bad_access(at, size, writes, "outside arrays and allocations", 0);
    if (!writes) {
        const uint64_t old = c->read;
        if (c->write == 1 && !allow_unwritten && (uintptr_t)at - device < device_span)
            bad_access(at, size, false, "nothing has written them", 0);
        if (wrote && !(by_this_warp(c->write) && kind_of(c->write) == OF_WARP))
            bad_access(at, size, false, "a race with the write", c->write);
        const bool of_grid = old >> 16 < started || kind_of(old) == OF_GRID;
        c->read = mark(!read ? ONE : of_grid ? OF_GRID : by_this_warp(old) ? OF_WARP : OF_BLOCK, bytes);
        return;
    }
    if (wrote && !by_this_warp(c->write)) bad_access(at, size, true, "a race with the write", c->write);
    if (read && !by_this_warp(c->read)) bad_access(at, size, true, "a race with the read", c->read);
    if ((wrote || read) && rewritten_count < (int)(sizeof rewritten / sizeof *rewritten)) {
        auto &r = rewritten[rewritten_count++];
        r.at = (const char *)((uintptr_t)at & ~(uintptr_t)3), r.site = site, r.before = wrote ? c->write : c->read;
        memcpy(&r.value, r.at, 4);
    }
    c->write = mark(wrote ? OF_WARP : ONE, bytes);
}

/* Called before each access. */
__attribute__((noinline)) EMULATION_OWN void touch(const void *p, size_t size, bool writes, size_t align)
{
    const uintptr_t at = (uintptr_t)p, in_shared = at - (uintptr_t)shared;
    if (rewritten_count) compare_value();
    if (at - (uintptr_t)stacks < (uintptr_t)STACK * THREADS) return;
    if (at - (uintptr_t)&__ehdr_start < (uintptr_t)&_end - (uintptr_t)&__ehdr_start && in_shared >= sizeof shared) {
        if (writes) bad_access((const char *)p, size, true, "a variable of the program", 0);
        return;
    }
    if (in_shared >= sizeof shared && at - device >= device_span) {
        inside = false;
        const bool mapped = host_mapped && host_mapped(p, size);
        inside = true;
        if (mapped) return;
        bad_access((const char *)p, size, writes, "no memory of the device", 0);
    }
    if (at % align) bad_access((const char *)p, size, writes, "not aligned", 0);
    cell *c = in_shared < sizeof shared ? shared_cells + in_shared / 4 : device_cells + (at - device) / 4;
    for (uintptr_t i = at, n; i < at + size; i += n, c++) {
        n = 4 - i % 4 < at + size - i ? 4 - i % 4 : at + size - i;
        touch_word(c, (const char *)i, size, ((1u << n) - 1) << i % 4, writes);
    }
}

/* A copy reads or writes device memory. */
static const kernel copy = {"a copy", 0, NULL, 1};
EMULATION_OWN void copied(const void *at, size_t bytes, bool writes)
{
    const int allowed = allow_unwritten;
    running = &copy, inside = true, allow_unwritten = 1, blockIdx = {0, 0, 0}, threadIdx.x = 0;
    launched = started = separated = ++ticks;
    touch(at, bytes, writes, 1);
    compare_value();
    running = NULL, inside = false, allow_unwritten = allowed;
}

} // namespace emulation

#define EMULATION_HOOK extern "C" EMULATION_PLAIN __attribute__((visibility("hidden"))) void
#define EMULATION_SITE if (emulation::inside) emulation::site = (const char *)__builtin_return_address(0)
#define EMULATION_HOOKS(n) \
    EMULATION_HOOK __tsan_read##n(void *p) { EMULATION_SITE, emulation::touch(p, n, false, n); } \
    EMULATION_HOOK __tsan_write##n(void *p) { EMULATION_SITE, emulation::touch(p, n, true, n); } \
    EMULATION_HOOK __tsan_unaligned_read##n(void *p) { EMULATION_SITE, emulation::touch(p, n, false, 1); } \
    EMULATION_HOOK __tsan_unaligned_write##n(void *p) { EMULATION_SITE, emulation::touch(p, n, true, 1); }
EMULATION_HOOKS(1)
EMULATION_HOOKS(2)
EMULATION_HOOKS(4)
EMULATION_HOOKS(8)
EMULATION_HOOKS(16)
EMULATION_HOOK __tsan_read_range(void *p, size_t n) { EMULATION_SITE, emulation::touch(p, n, false, 1); }
EMULATION_HOOK __tsan_write_range(void *p, size_t n) { EMULATION_SITE, emulation::touch(p, n, true, 1); }
EMULATION_HOOK __tsan_init(void) {}
EMULATION_HOOK __tsan_func_entry(void *) {}
EMULATION_HOOK __tsan_func_exit(void) {}
EMULATION_HOOK __tsan_vptr_update(void *, void *) {}
#define memset(p, v, n) (__tsan_write_range(p, n), memset(p, v, n))
#define memcpy(p, q, n) (__tsan_read_range((void *)(uintptr_t)(q), n), __tsan_write_range(p, n), memcpy(p, q, n))
#endif
#endif
