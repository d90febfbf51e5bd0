/* on_gpu.h: graphs and plans of a test on the GPU's stand-in. Included before dtrain.h (cc -DDT_CUDA -include on_gpu.h), it
 * opens the GPU where the environment has DT_GPU, for each instruction set that a test chooses, and closes it at the end.
 * The memory of plans is a test's own, of the host, which the stand-in's kernels reach; so each op and kernel is waited for. */
#ifndef ON_GPU_H
#define ON_GPU_H
#define DT__DEVICE_HEADER "on_gpu.h"

#else /* inside of dtrain.h */
static struct {
    pthread_mutex_t lock;
    const dt__kernels *host[DT__ISA_COUNT], *k[DT__ISA_COUNT];
    int count;
} on_gpu = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_gpu_run(const dt__call *c)
{
    dt__cuda *d = (dt__cuda *)(void *)c->env->k->device;
    dt__gpu_run(c);
    if (dt__gpu_enter(d)) (void)dt__gpu_failed(d, d->f.cuStreamSynchronize(d->stream[DT__GPU_OPS]), "an op of a test");
    if (d->is.failed) fprintf(stderr, "on_gpu: %s\n", d->is.why), exit(1);
}
static int (*on_gpu_queue)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int on_gpu_launch(void *kernel, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments, void **more)
{
    int failed = on_gpu_queue(kernel, x, y, z, bx, by, bz, shared, stream, arguments, more);
    return failed ? failed : dt__gpu->f.cuStreamSynchronize(stream);
}
static void on_gpu_close(void)
{
    for (int i = 0; i < on_gpu.count; i++) dt__gpu_close(on_gpu.k[i]->device);
}
const dt__kernels *dt__on_device(const dt__kernels *k)
{
    int i = 0;
    if (!getenv("DT_GPU")) return k;
    pthread_mutex_lock(&on_gpu.lock);
    while (i < on_gpu.count && on_gpu.host[i] != k) i++;
    if (i == on_gpu.count) {
        on_gpu.host[i] = on_gpu.k[i] = k;
        if (dt__gpu_open(&on_gpu.k[i], -1, 0)) fprintf(stderr, "on_gpu: %s\n", dt_last_error()), exit(1);
        on_gpu_queue = ((dt__cuda *)(void *)on_gpu.k[i]->device)->f.cuLaunchKernel;
        ((dt__cuda *)(void *)on_gpu.k[i]->device)->f.cuLaunchKernel = on_gpu_launch;
        on_gpu.k[i]->device->run = on_gpu_run, on_gpu.k[i]->device->close = NULL; /* trainers share it */
        if (!on_gpu.count++) atexit(on_gpu_close);
    }
    pthread_mutex_unlock(&on_gpu.lock);
    return on_gpu.k[i];
}
#endif
