/* Prints the device's text of dtrain.h (./build.sh cuda-text): cuda_text [NUMBER [MODULE]], as dt__cuda_print takes them.
 * Where CUDA's header is, the compiler compares numbers. */
#ifndef DT_CUDA
#define DT_CUDA
#endif
#ifndef DT_COMPILER
#define DT_COMPILER
#endif
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
SAME(DT__GPU_NO_TIMES, CU_EVENT_DISABLE_TIMING);
SAME(sizeof(void *), sizeof(CUdeviceptr));
#endif
#if __has_include(<nccl.h>)
#include <nccl.h>
#include <stddef.h>
static const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
SAME(DT__GPU_BUSY, CUDA_ERROR_NOT_READY);
SAME(DT__NCCL_REMOTE, ncclRemoteError);
SAME(DT__NCCL_BUSY, ncclInProgress);
SAME(DT__NCCL_F32, ncclFloat32);
SAME(sizeof(dt__nccl_id), sizeof(ncclUniqueId));
SAME(offsetof(dt__nccl_config, magic), offsetof(ncclConfig_t, magic));
SAME(offsetof(dt__nccl_config, version), offsetof(ncclConfig_t, version));
SAME(offsetof(dt__nccl_config, blocking), offsetof(ncclConfig_t, blocking));
SAME(offsetof(dt__nccl_config, most), offsetof(ncclConfig_t, maxCTAs));
SAME(INT32_MIN, NCCL_CONFIG_UNDEF_INT);
#endif
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <stddef.h>
SAME(DT__LT_F32, CUDA_R_32F);
SAME(DT__LT_F16, CUDA_R_16F);
SAME(DT__LT_BF16, CUDA_R_16BF);
SAME(DT__LT_SUM, CUBLAS_COMPUTE_32F);
SAME(DT__LT_SUM_TF32, CUBLAS_COMPUTE_32F_FAST_TF32);
SAME(DT__LT_TRANSPOSE, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(DT__LT_TRANSPOSE + 1, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(DT__LT_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(DT__LT_BIAS, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(DT__LT_ADD_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(DT__LT_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(DT__LT_ALIGNMENT, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(DT__LT_ALIGNMENT + 3, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(CUBLAS_OP_N, 0);
SAME(CUBLAS_OP_T, 1);
SAME(sizeof(dt__lt_choice), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(dt__lt_choice, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
SAME(sizeof(cublasComputeType_t), 4);
#endif
#endif

int main(int argc, char **argv)
{
    dt__text text = DT__ZERO;
    dt__cuda_print(&text, argc > 1 ? atoi(argv[1]) : 1, argc > 2 ? atoi(argv[2]) : -1);
#ifdef NCCL_CONFIG_INITIALIZER
    if (theirs.magic != (unsigned)DT__NCCL_MAGIC) return 1;
#endif
    if (text.failed) return 1;
    fputs(text.at, stdout);
    dt__free(text.at);
    return 0;
}
