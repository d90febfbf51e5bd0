/* gpu.h: one GPU of NVIDIA, for programs that bring kernels of their own. The driver and NVRTC, CUDA's compiler, are
 * loaded when the program runs, so that it is compiled, and starts, where neither is installed:
 *
 *     gpu g;
 *     if (gpu_open(&g, text)) printf("no GPU: %s\n", g.why);    // text: kernels, CUDA C++
 *     at = gpu_memory(&g, bytes);
 *     gpu_launch(&g, 0, gpu_kernel(&g, "scale"), blocks, threads, &arguments);
 *     if (gpu_wait(&g)) printf("%s\n", g.why);                  // the first error since gpu_open
 *     gpu_close(&g);
 *
 * After an error the other functions do nothing. A kernel takes one struct of numbers and addresses, by value. */
#ifndef GPU_H
#define GPU_H
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GPU_STREAMS = 3, GPU_ARRAYS = 8 };
typedef unsigned long long gpu_address; /* of the GPU's memory: not for the host to read */

/* The calls that are used, X(name, arguments). Handles are void *. */
#define GPU_DRIVER(X) \
    X(cuInit, (unsigned)) X(cuDeviceGetCount, (int *)) X(cuDeviceGet, (int *, int)) \
    X(cuDeviceGetName, (char *, int, int)) X(cuDeviceGetAttribute, (int *, int, int)) \
    X(cuDevicePrimaryCtxRetain, (void **, int)) X(cuDevicePrimaryCtxRelease_v2, (int)) X(cuCtxSetCurrent, (void *)) \
    X(cuMemAlloc_v2, (gpu_address *, size_t)) X(cuMemFree_v2, (gpu_address)) \
    X(cuMemHostRegister_v2, (void *, size_t, unsigned)) X(cuMemHostUnregister, (void *)) \
    X(cuMemcpyHtoDAsync_v2, (gpu_address, const void *, size_t, void *)) \
    X(cuMemcpyDtoHAsync_v2, (void *, gpu_address, size_t, void *)) \
    X(cuMemsetD32Async, (gpu_address, unsigned, size_t, void *)) X(cuStreamCreate, (void **, unsigned)) \
    X(cuStreamDestroy_v2, (void *)) X(cuStreamSynchronize, (void *)) \
    X(cuModuleLoadData, (void **, const void *)) X(cuModuleUnload, (void *)) \
    X(cuModuleGetFunction, (void **, void *, const char *)) \
    X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, \
                       void **)) \
    X(cuGetErrorString, (int, const char **))
#define GPU_NVRTC(X) \
    X(nvrtcCreateProgram, (void **, const char *, const char *, int, const char *const *, const char *const *)) \
    X(nvrtcCompileProgram, (void *, int, const char *const *)) X(nvrtcGetCUBINSize, (void *, size_t *)) \
    X(nvrtcGetCUBIN, (void *, char *)) X(nvrtcGetProgramLogSize, (void *, size_t *)) \
    X(nvrtcGetProgramLog, (void *, char *)) X(nvrtcDestroyProgram, (void **))
#define GPU_MEMBER(name, arguments) int (*name) arguments;
#define GPU_NAME(name, arguments)   #name,

typedef struct gpu {
    GPU_DRIVER(GPU_MEMBER)
    GPU_NVRTC(GPU_MEMBER)
    int device, arch, processors, lanes; /* arch: 90 is compute capability 9.0; lanes: fp32 units of a multiprocessor */
    double hertz;                        /* the highest clock */
    char name[64], why[600];
    int failed;
    void *context, *module, *stream[GPU_STREAMS], *pinned[GPU_ARRAYS];
    gpu_address memory[GPU_ARRAYS];
} gpu;

static inline double gpu_now(void) /* seconds */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Keeps the first error. Returns whether there is one. */
static inline int gpu_check(gpu *g, int code, const char *doing)
{
    const char *text = NULL;
    if (!code || g->failed) return g->failed;
    g->cuGetErrorString(code, &text);
    snprintf(g->why, sizeof g->why, "%s failed: %s (%d)", doing, text ? text : "unknown error", code);
    return g->failed = 1;
}

/* Fills the functions `to`, called names[0], .. names[count - 1], from the first of the files that can be loaded. */
static inline int gpu_load(gpu *g, const char *variable, const char *const *files, const char *what,
                           const char *const *names, int count, char *to)
{
    const char *chosen = getenv(variable);
    void *library = chosen ? dlopen(chosen, RTLD_NOW) : NULL, *f = NULL;
    while (!chosen && !library && *files) library = dlopen(*files++, RTLD_NOW);
    for (int i = 0; library && i < count; i++, to += sizeof f) {
        if (!(f = dlsym(library, names[i]))) break;
        memcpy(to, &f, sizeof f);
    }
    if (library && f) return 0;
    snprintf(g->why, sizeof g->why, "%s cannot be loaded (%.300s). Install it, or name its file in %s", what, dlerror(),
             variable);
    return g->failed = 1;
}

/* Compiles the text for this GPU and loads what comes out. */
static inline void gpu_compile(gpu *g, const char *text)
{
    char target[40], *code = NULL;
    const char *options[2] = {target, "-default-device"};
    void *program = NULL;
    size_t bytes = 0;
    int bad, lost; /* the compilation; what it made, or said */
    snprintf(target, sizeof target, "--gpu-architecture=sm_%d", g->arch);
    if (gpu_check(g, g->nvrtcCreateProgram(&program, text, "kernels.cu", 0, NULL, NULL), "NVRTC")) return;
    bad = g->nvrtcCompileProgram(program, 2, options);
    lost = bad ? g->nvrtcGetProgramLogSize(program, &bytes) : g->nvrtcGetCUBINSize(program, &bytes);
    if (!lost) lost = (code = malloc(bytes + 1)) ? 0 : 2;
    if (!lost) lost = bad ? g->nvrtcGetProgramLog(program, code) : g->nvrtcGetCUBIN(program, code);
    if (!gpu_check(g, lost, "NVRTC") && bad)
        snprintf(g->why, sizeof g->why, "NVRTC refuses the kernels (%s): %.400s", target, code), g->failed = 1;
    if (!g->failed) gpu_check(g, g->cuModuleLoadData(&g->module, code), "loading the kernels");
    free(code);
    g->nvrtcDestroyProgram(&program);
}

static inline void gpu_close(gpu *g)
{
    for (int i = 0; i < GPU_STREAMS; i++)
        if (g->stream[i]) g->cuStreamSynchronize(g->stream[i]), g->cuStreamDestroy_v2(g->stream[i]);
    for (int i = 0; i < GPU_ARRAYS; i++) {
        if (g->memory[i]) g->cuMemFree_v2(g->memory[i]);
        if (g->pinned[i]) g->cuMemHostUnregister(g->pinned[i]), free(g->pinned[i]);
    }
    if (g->module) g->cuModuleUnload(g->module);
    if (g->context) g->cuDevicePrimaryCtxRelease_v2(g->device);
    g->module = g->context = NULL;
}

/* The first GPU, with the kernels of the text. Not 0: there is none, or it fails, and g->why says so. */
static inline int gpu_open(gpu *g, const char *text)
{
    static const char *const driver[] = {"libcuda.so.1", NULL}, *const calls[] = {GPU_DRIVER(GPU_NAME)};
    static const char *const nvrtc[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", NULL};
    static const char *const more[] = {GPU_NVRTC(GPU_NAME)};
    const int n = (int)(sizeof calls / sizeof *calls), m = (int)(sizeof more / sizeof *more);
    int count = 0, major = 0, minor = 0, kilohertz = 0;
    memset(g, 0, sizeof *g);
    if (gpu_load(g, "DT_CUDA_LIBRARY", driver, "NVIDIA's driver (libcuda)", calls, n, (char *)g) ||
        gpu_load(g, "DT_NVRTC_LIBRARY", nvrtc, "NVRTC, CUDA's compiler,", more, m, (char *)&g->nvrtcCreateProgram))
        return 1;
    if (gpu_check(g, g->cuInit(0), "the driver") || gpu_check(g, g->cuDeviceGetCount(&count), "the driver")) return 1;
    if (!count) return snprintf(g->why, sizeof g->why, "the driver sees no GPU"), g->failed = 1;
    gpu_check(g, g->cuDeviceGet(&g->device, 0), "the GPU");
    gpu_check(g, g->cuDeviceGetName(g->name, (int)sizeof g->name, g->device), "the GPU");
    gpu_check(g, g->cuDeviceGetAttribute(&major, 75, g->device), "the GPU");
    gpu_check(g, g->cuDeviceGetAttribute(&minor, 76, g->device), "the GPU");
    gpu_check(g, g->cuDeviceGetAttribute(&g->processors, 16, g->device), "the GPU");
    gpu_check(g, g->cuDeviceGetAttribute(&kilohertz, 13, g->device), "the GPU");
    g->arch = 10 * major + minor, g->hertz = 1e3 * kilohertz, g->lanes = g->arch <= 80 ? 64 : 128;
    if (!g->failed) gpu_check(g, g->cuDevicePrimaryCtxRetain(&g->context, g->device), "opening the GPU");
    if (!g->failed) gpu_check(g, g->cuCtxSetCurrent(g->context), "opening the GPU");
    for (int i = 0; i < GPU_STREAMS && !g->failed; i++) gpu_check(g, g->cuStreamCreate(&g->stream[i], 1), "a stream");
    if (!g->failed) gpu_compile(g, text);
    if (g->failed) gpu_close(g);
    return g->failed;
}

/* Memory of the GPU, and pinned memory of the host, which copies reach without a detour: until gpu_close. */
static inline gpu_address gpu_memory(gpu *g, size_t bytes)
{
    int i = 0;
    while (i < GPU_ARRAYS - 1 && g->memory[i]) i++;
    gpu_check(g, g->failed || g->memory[i] ? 2 : g->cuMemAlloc_v2(&g->memory[i], bytes), "memory of the GPU");
    return g->failed ? 0 : g->memory[i];
}
static inline void *gpu_pinned(gpu *g, size_t bytes)
{
    int i = 0;
    void *p = malloc(bytes);
    while (i < GPU_ARRAYS - 1 && g->pinned[i]) i++;
    if (gpu_check(g, !p || g->failed || g->pinned[i] ? 2 : g->cuMemHostRegister_v2(p, bytes, 0), "pinned memory"))
        return free(p), (void *)NULL;
    return g->pinned[i] = p;
}

static inline void *gpu_kernel(gpu *g, const char *name)
{
    void *f = NULL;
    if (!g->failed) gpu_check(g, g->cuModuleGetFunction(&f, g->module, name), name);
    return f;
}

/* Queue work on a stream: a kernel; numbers in memory, copies there and back. */
static inline void gpu_launch(gpu *g, int stream, void *kernel, long long blocks, int threads, void *arguments)
{
    void *list[1];
    list[0] = arguments;
    if (!g->failed)
        gpu_check(g, g->cuLaunchKernel(kernel, (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, 0, g->stream[stream],
                                       list, NULL), "a kernel");
}
static inline void gpu_fill(gpu *g, int stream, gpu_address to, float value, size_t count)
{
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    if (!g->failed) gpu_check(g, g->cuMemsetD32Async(to, bits, count, g->stream[stream]), "filling memory");
}
static inline void gpu_put(gpu *g, int stream, gpu_address to, const void *from, size_t bytes)
{
    if (!g->failed) gpu_check(g, g->cuMemcpyHtoDAsync_v2(to, from, bytes, g->stream[stream]), "a copy to the GPU");
}
static inline void gpu_get(gpu *g, int stream, void *to, gpu_address from, size_t bytes)
{
    if (!g->failed) gpu_check(g, g->cuMemcpyDtoHAsync_v2(to, from, bytes, g->stream[stream]), "a copy from the GPU");
}

/* Waits for all streams. Returns whether anything has failed. */
static inline int gpu_wait(gpu *g)
{
    for (int i = 0; i < GPU_STREAMS && !g->failed; i++)
        gpu_check(g, g->cuStreamSynchronize(g->stream[i]), "a kernel or a copy");
    return g->failed;
}
#endif
