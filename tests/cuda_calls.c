/* Calls a driver and NVRTC as the header does, for test_cuda_stand_in.t: cuda_calls TEXT SCENARIO [KERNEL WHAT]. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long address;
#define CALLS(X) \
    X(cuInit, (unsigned)) X(cuDriverGetVersion, (int *)) X(cuDeviceGetCount, (int *)) X(cuDeviceGet, (int *, int)) X(cuDeviceGetName, (char *, int, int)) \
    X(cuDeviceGetAttribute, (int *, int, int)) X(cuDeviceTotalMem_v2, (size_t *, int)) X(cuDevicePrimaryCtxRetain, (void **, int)) \
    X(cuDevicePrimaryCtxRelease_v2, (int)) X(cuCtxSetCurrent, (void *)) X(cuMemGetInfo_v2, (size_t *, size_t *)) X(cuMemAlloc_v2, (address *, size_t)) \
    X(cuMemFree_v2, (address)) X(cuMemHostRegister_v2, (void *, size_t, unsigned)) X(cuMemHostUnregister, (void *)) \
    X(cuMemcpyHtoDAsync_v2, (address, const void *, size_t, void *)) X(cuMemcpyDtoHAsync_v2, (void *, address, size_t, void *)) \
    X(cuMemcpyDtoDAsync_v2, (address, address, size_t, void *)) X(cuMemsetD32Async, (address, unsigned, size_t, void *)) X(cuStreamCreate, (void **, unsigned)) \
    X(cuStreamDestroy_v2, (void *)) X(cuStreamSynchronize, (void *)) X(cuStreamQuery, (void *)) X(cuStreamWaitEvent, (void *, void *, unsigned)) \
    X(cuEventCreate, (void **, unsigned)) X(cuEventRecord, (void *, void *)) X(cuEventSynchronize, (void *)) X(cuEventQuery, (void *)) X(cuEventDestroy_v2, (void *)) \
    X(cuModuleLoadData, (void **, const void *)) X(cuModuleUnload, (void *)) X(cuModuleGetFunction, (void **, void *, const char *)) X(cuFuncSetAttribute, (void *, int, int)) \
    X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)) X(cuGetErrorString, (int, const char **))
#define COMPILES(X) \
    X(nvrtcVersion, (int *, int *)) X(nvrtcCreateProgram, (void **, const char *, const char *, int, const char *const *, const char *const *)) \
    X(nvrtcCompileProgram, (void *, int, const char *const *)) X(nvrtcGetCUBINSize, (void *, size_t *)) X(nvrtcGetCUBIN, (void *, char *)) \
    X(nvrtcGetProgramLogSize, (void *, size_t *)) X(nvrtcGetProgramLog, (void *, char *)) X(nvrtcDestroyProgram, (void **))
#define FIELD(name, arguments) int(*name) arguments;
static struct { CALLS(FIELD) COMPILES(FIELD) } cu;

typedef struct args { address out, in; long long n; int what; } args;
enum { N = 4096 };
static void *context, *module, *stream[2], *event;
static address memory[3];
static int device;
static float host[2][N];

/* Ends the program at the first failure: releases what was made before, as a library has to. */
static void release(void)
{
    for (int i = 0; i < 2; i++) if (stream[i]) cu.cuStreamDestroy_v2(stream[i]);
    if (event) cu.cuEventDestroy_v2(event);
    for (int i = 0; i < 3; i++) if (memory[i]) cu.cuMemFree_v2(memory[i]);
    if (module) cu.cuModuleUnload(module);
    if (context) cu.cuDevicePrimaryCtxRelease_v2(device);
    exit(0);
}
static void check(int code, const char *call)
{
    const char *text = "?";
    if (!code) return;
    cu.cuGetErrorString(code, &text);
    printf("%s: %s (%d)\n", call, text, code);
    release();
}
#define DO(call, ...) check(cu.call(__VA_ARGS__), #call)

/* The cubin of a text, or NULL with NVRTC's log printed. */
static char *compile(const char *text, const char *target)
{
    const char *options[] = {target, "-default-device", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", "-std=c++17"};
    void *program;
    size_t bytes = 0;
    char *out = NULL;
    int major, minor, code = cu.nvrtcVersion(&major, &minor);
    if (!code) code = cu.nvrtcCreateProgram(&program, text, "cuda.cu", 0, NULL, NULL);
    if (code) return printf("NVRTC: error %d\n", code), NULL;
    code = cu.nvrtcCompileProgram(program, 7, options);
    if (code) {
        if (!cu.nvrtcGetProgramLogSize(program, &bytes) && (out = malloc(bytes)) && !cu.nvrtcGetProgramLog(program, out)) printf("NVRTC: error %d: %s\n", code, out);
        free(out), out = NULL;
    } else {
        code = cu.nvrtcGetCUBINSize(program, &bytes);
        if (!code && (out = malloc(bytes))) code = cu.nvrtcGetCUBIN(program, out);
        if (code) printf("NVRTC: error %d\n", code), free(out), out = NULL;
    }
    cu.nvrtcDestroyProgram(&program);
    return out;
}

static void *function(const char *name)
{
    void *f;
    DO(cuModuleGetFunction, &f, module, name);
    return f;
}
static void launch(const char *name, unsigned blocks, unsigned threads, unsigned shared, void *s, address out, address in, int what)
{
    args a = {out, in, N, what};
    void *params[] = {&a};
    DO(cuLaunchKernel, function(name), blocks, 1, 1, threads, 1, 1, shared, s, params, NULL);
}
static void load(const char *text)
{
    int major, minor, count, version;
    size_t free_bytes, total;
    char target[40], name[80], *cubin;
    DO(cuInit, 0);
    DO(cuDriverGetVersion, &version);
    DO(cuDeviceGetCount, &count);
    DO(cuDeviceGet, &device, 0);
    DO(cuDeviceGetName, name, sizeof name, device);
    DO(cuDeviceGetAttribute, &major, 75, device);
    DO(cuDeviceGetAttribute, &minor, 76, device);
    DO(cuDeviceTotalMem_v2, &total, device);
    snprintf(target, sizeof target, "--gpu-architecture=sm_%d%d", major, minor);
    if (!(cubin = compile(text, target))) exit(0);
    DO(cuDevicePrimaryCtxRetain, &context, device);
    DO(cuCtxSetCurrent, context);
    DO(cuMemGetInfo_v2, &free_bytes, &total);
    DO(cuModuleLoadData, &module, cubin);
    free(cubin);
    for (int i = 0; i < 2; i++) DO(cuStreamCreate, &stream[i], 1);
    DO(cuEventCreate, &event, 0);
    for (int i = 0; i < 3; i++) DO(cuMemAlloc_v2, &memory[i], sizeof host[0]);
    for (int i = 0; i < N; i++) host[0][i] = (float)(i * 7 % 31);
}
static void upload(void *s) { DO(cuMemcpyHtoDAsync_v2, memory[0], host[0], sizeof host[0], s); }
static void download(int from, void *s) { DO(cuMemcpyDtoHAsync_v2, host[1], memory[from], sizeof host[1], s); }

static int differ(float (*want)(int))
{
    int n = 0;
    for (int i = 0; i < N; i++) n += host[1][i] != want(i);
    return n;
}
static float reversed(int i) { return (float)((i / 256 * 256 + 255 - i % 256) * 7 % 31); }
static float neighbor(int i) { return (float)((i ^ 1) * 7 % 31) + 1; }
static float added(int i) { return (float)(i * 7 % 31) + 2; }
static float summed(int i) /* warp i / 32: lane i % 32 prints one result */
{
    float sum[32], total = 0;
    int odd = 0, at = i / 32 * 32;
    for (int k = 0; k < 32; k++) sum[k] = (float)((at + k) * 7 % 31), odd += (at + k) * 7 % 31 % 2, total += sum[k];
    return i % 4 == 0 ? total : i % 4 == 1 ? (float)odd : i % 4 == 2 ? (float)((at + (i % 32 ^ 5)) * 7 % 31) : (float)(i % 32 ^ 9);
}

static sigjmp_buf back;
static void fault(int number) { siglongjmp(back, number); }
static void *thread(void *which)
{
    void *own;
    address at[2];
    static float result[4][N];
    float *out = result[(intptr_t)which];
    DO(cuCtxSetCurrent, context);
    DO(cuStreamCreate, &own, 1);
    for (int i = 0; i < 2; i++) DO(cuMemAlloc_v2, &at[i], sizeof host[0]);
    for (int round = 0; round < 20; round++) {
        DO(cuMemcpyHtoDAsync_v2, at[0], host[0], sizeof host[0], own);
        launch("check_tile", N / 256, 256, 1024, own, at[1], at[0], 0);
        memset(out, 0, sizeof host[0]);
        DO(cuMemcpyDtoHAsync_v2, out, at[1], sizeof host[0], own);
        for (int i = 0; i < N; i++) if (out[i] != reversed(i)) return which;
    }
    for (int i = 0; i < 2; i++) DO(cuMemFree_v2, at[i]);
    DO(cuStreamDestroy_v2, own);
    return NULL;
}

int main(int count, char **word)
{
    static char text[1 << 20];
    const char *library = getenv("DT_CUDA_LIBRARY"), *compiler = getenv("DT_NVRTC_LIBRARY"), *what = count > 2 ? word[2] : "";
    void *driver = dlopen(library ? library : "libcuda.so.1", RTLD_NOW), *nvrtc = dlopen(compiler ? compiler : "libnvrtc.so", RTLD_NOW);
    FILE *file = fopen(word[1], "r");
    if (!file || fread(text, 1, sizeof text - 1, file) < 1 || !nvrtc) return printf("no text or no NVRTC: %s\n", dlerror()), 1;
    fclose(file);
#define FIND(from, name) { void *p = dlsym(from, #name); if (!p) return printf("no %s\n", #name), 1; memcpy(&cu.name, &p, sizeof p); }
#define IN_NVRTC(name, arguments) FIND(nvrtc, name)
#define IN_DRIVER(name, arguments) FIND(driver, name)
    COMPILES(IN_NVRTC)
    if (!strcmp(what, "compile")) {
        char *cubin = compile(text, word[3]);
        return printf(cubin ? "compiled\n" : "not compiled\n"), free(cubin), 0;
    }
    CALLS(IN_DRIVER)
    if (!strcmp(what, "no context")) { cu.cuInit(0); cu.cuMemAlloc_v2(memory, 4); }
    load(!strcmp(what, "other text") ? "another\n" : text);
    if (!strcmp(what, "run")) { /* everything, rightly */
        upload(stream[0]);
        launch("check_tile", N / 256, 256, 1024, stream[0], memory[1], memory[0], 0);
        download(1, stream[0]);
        printf("tile: %d differ\n", differ(reversed));
        launch("check_warp", N / 128, 128, 0, stream[0], memory[1], memory[0], 0);
        download(1, stream[0]);
        printf("warp: %d differ\n", differ(neighbor));
        launch("check_lanes", N / 128, 128, 0, stream[0], memory[1], memory[0], 0);
        download(1, stream[0]);
        printf("lanes: %d differ\n", differ(summed));
        DO(cuMemcpyDtoDAsync_v2, memory[2], memory[0], sizeof host[0], stream[0]);
        DO(cuMemsetD32Async, memory[1], 0x40000000, N, stream[0]);
        DO(cuEventRecord, event, stream[0]);
        DO(cuStreamWaitEvent, stream[1], event, 0);
        launch("check_add", N / 128, 128, 0, stream[1], memory[2], memory[1], 0);
        DO(cuEventRecord, event, stream[1]);
        DO(cuEventSynchronize, event);
        download(2, stream[1]);
        printf("copies: %d differ\n", differ(added));
        DO(cuStreamSynchronize, stream[0]);
        int code;
        while ((code = cu.cuEventQuery(event)) == 600 || (!code && (code = cu.cuStreamQuery(stream[1])) == 600)) ;
        check(code, "query");
    } else if (!strcmp(what, "kernel")) { /* one kernel, whose error is the emulation's to find */
        upload(stream[0]);
        launch(word[3], 2, 256, 1024, stream[0], memory[1], count > 5 ? (address)(uintptr_t)host[0] : memory[0], atoi(word[4]));
        DO(cuStreamSynchronize, stream[0]);
        printf("ended\n");
    } else if (!strcmp(what, "streams")) { /* five additions on two streams by turns, with events or without */
        DO(cuMemsetD32Async, memory[2], 0, N, stream[0]);
        upload(stream[0]);
        for (int i = 0; i < 6; i++) {
            launch("check_add", N / 128, 128, 0, stream[i % 2], memory[i % 2 ? 0 : 2], memory[i % 2 ? 2 : 0], 0);
            if (!atoi(word[3])) continue;
            DO(cuEventRecord, event, stream[i % 2]);
            DO(cuStreamWaitEvent, stream[(i + 1) % 2], event, 0);
        }
        download(0, stream[1]);
        double sum = 0;
        for (int i = 0; i < N; i++) sum += host[1][i];
        printf("sum %g\n", sum);
    } else if (!strcmp(what, "host")) {
        upload(stream[0]);
        DO(cuStreamSynchronize, stream[0]);
        signal(SIGSEGV, fault);
        if (!sigsetjmp(back, 1)) printf("device memory has %g\n", *(volatile float *)(uintptr_t)memory[0]);
        else printf("device memory faults\n");
    } else if (!strcmp(what, "fresh")) {
        download(1, stream[0]);
        printf("%x\n", ((unsigned *)host[1])[N - 1]);
    } else if (!strcmp(what, "pinned")) { /* registered memory is read when the copy runs, other memory at the call */
        static float pinned[N];
        DO(cuMemHostRegister_v2, pinned, sizeof pinned, 0);
        printf("again: %d\n", cu.cuMemHostRegister_v2(pinned + 1, 4, 0));
        DO(cuMemcpyHtoDAsync_v2, memory[0], host[0], sizeof pinned, stream[0]);
        DO(cuMemcpyHtoDAsync_v2, memory[1], pinned, sizeof pinned, stream[0]);
        host[0][5] = pinned[5] = 99;
        download(0, stream[0]);
        printf("pageable: %g\n", host[1][5]);
        download(1, stream[0]);
        printf("registered: %g\n", host[1][5]);
        DO(cuMemcpyDtoHAsync_v2, pinned, memory[0], sizeof pinned, stream[0]);
        printf("before: %g\n", pinned[5]);
        DO(cuStreamSynchronize, stream[0]);
        printf("after: %g\n", pinned[5]);
        DO(cuMemHostUnregister, pinned);
    } else if (!strcmp(what, "memory")) {
        size_t before, after, total;
        address more = 0;
        DO(cuMemGetInfo_v2, &before, &total);
        printf("all of it: %d\n", cu.cuMemAlloc_v2(&more, total));
        DO(cuMemAlloc_v2, &more, before);
        DO(cuMemGetInfo_v2, &after, &total);
        printf("left: %zu of %zu\n", after, total);
        DO(cuMemFree_v2, more);
    } else if (!strcmp(what, "threads")) {
        pthread_t t[4];
        void *bad = NULL, *result;
        for (intptr_t i = 0; i < 4; i++) pthread_create(&t[i], NULL, thread, (void *)i);
        for (int i = 0; i < 4; i++) pthread_join(t[i], &result), bad = bad ? bad : result;
        printf(bad ? "threads: a result differs\n" : "threads: fine\n");
    } else if (!strcmp(what, "contexts")) { /* another device: its own memory and streams */
        void *other, *own;
        int second;
        address there;
        DO(cuDeviceGet, &second, 1);
        DO(cuDevicePrimaryCtxRetain, &other, second);
        DO(cuDevicePrimaryCtxRetain, &own, device);
        printf("same context: %d, no third device: %d\n", own == context, cu.cuDeviceGet(&second, 2));
        DO(cuDevicePrimaryCtxRelease_v2, device);
        DO(cuCtxSetCurrent, other);
        DO(cuMemAlloc_v2, &there, 400);
        if (count > 3) DO(cuStreamSynchronize, stream[0]);
        DO(cuMemFree_v2, there);
        DO(cuDeviceGet, &second, 1);
        DO(cuDevicePrimaryCtxRelease_v2, second);
        DO(cuCtxSetCurrent, context);
    } else if (!strcmp(what, "leak")) {
        exit(0);
    } else if (!strcmp(what, "stays")) { /* an error of the device: later calls fail as well */
        void *f = function("check_add");
        upload(stream[0]);
        printf("wait %d", cu.cuStreamSynchronize(stream[0]));
        printf(", launch %d", cu.cuLaunchKernel(f, 1, 1, 1, 128, 1, 1, 0, stream[0], NULL, NULL));
        printf(", free %d\n", cu.cuMemFree_v2(memory[1]));
        memory[1] = 0;
    } else if (!strcmp(what, "shared")) {
        if (count > 3) printf("too much: %d\n", cu.cuFuncSetAttribute(function("check_tile"), 8, 1 << 20)), DO(cuFuncSetAttribute, function("check_tile"), 8, 60000);
        upload(stream[0]);
        launch("check_tile", 1, 256, 60000, stream[0], memory[1], memory[0], 0);
        DO(cuStreamSynchronize, stream[0]);
        printf("ended\n");
    } else if (!strcmp(what, "block")) launch("check_tile", 1, 512, 1024, stream[0], memory[1], memory[0], 0);
    else if (!strcmp(what, "beyond")) DO(cuMemcpyDtoHAsync_v2, host[1], memory[0] + 4, sizeof host[1], stream[0]);
    else if (!strcmp(what, "freed")) { DO(cuMemFree_v2, memory[0]); upload(stream[0]); }
    else if (!strcmp(what, "unloaded")) {
        void *f = function("check_add");
        DO(cuModuleUnload, module);
        cu.cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream[0], NULL, NULL);
    } else if (!strcmp(what, "argument")) {
        args a = {memory[1], memory[0], N, 0};
        size_t bytes = sizeof a - 8;
        void *extra[] = {(void *)1, &a, (void *)2, &bytes, NULL};
        DO(cuLaunchKernel, function("check_add"), 1, 1, 1, 128, 1, 1, 0, stream[0], NULL, extra);
    } else if (!strcmp(what, "forked")) {
        int status;
        if (!fork()) { cu.cuStreamQuery(stream[0]); _exit(0); }
        wait(&status);
        printf("the child ended by signal %d\n", WTERMSIG(status));
    } else printf("no scenario %s\n", what);
    release();
}
