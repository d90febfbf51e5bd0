/* Prints the device's text of dtrain.h (./build.sh cuda-text). Where CUDA's header is, the compiler compares numbers. */
#define DT_CUDA
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#if defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(DT__GPU_NO_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(DT__GPU_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(DT__GPU_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(DT__GPU_PROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(DT__GPU_MAPS, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
SAME(DT__GPU_MAPPED, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(DT__GPU_DYNAMIC, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(DT__GPU_UNTIED, CU_STREAM_NON_BLOCKING);
SAME(sizeof(dt__gpu_address), sizeof(CUdeviceptr));
#endif
#endif

int main(void)
{
    dt__text text = DT__ZERO;
    dt__cuda_print(&text);
    if (text.failed) return 1;
    fputs(text.at, stdout);
    dt__free(text.at);
    return 0;
}
