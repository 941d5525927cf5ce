// A stand-in for cuBLAS, which ggml's headers name and its attention kernels do not call.
#pragma once

#include <cuda_runtime.h>

using cublasHandle_t = void *;
using cublasStatus_t = int;
using cublasOperation_t = int;
using cublasComputeType_t = int;

enum {
    CUBLAS_STATUS_SUCCESS, CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_TF32_TENSOR_OP_MATH, CUBLAS_GEMM_DEFAULT_TENSOR_OP,
    CUBLAS_COMPUTE_16F, CUBLAS_COMPUTE_32F
};

inline const char * cublasGetStatusString(cublasStatus_t) { return ""; }
inline cublasStatus_t cublasCreate(cublasHandle_t *) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasDestroy(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, int) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *, size_t) { return CUBLAS_STATUS_SUCCESS; }
