// cuBLAS's types and common functions, so that code which includes its header compiles. None is modelled: a call is named
// when the extension is loaded.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <library_types.h>

typedef struct cublasContext* cublasHandle_t;
typedef enum {
  CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_INITIALIZED = 1, CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_INVALID_VALUE = 7, CUBLAS_STATUS_ARCH_MISMATCH = 8, CUBLAS_STATUS_MAPPING_ERROR = 11,
  CUBLAS_STATUS_EXECUTION_FAILED = 13, CUBLAS_STATUS_INTERNAL_ERROR = 14, CUBLAS_STATUS_NOT_SUPPORTED = 15,
  CUBLAS_STATUS_LICENSE_ERROR = 16
} cublasStatus_t;
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 } cublasOperation_t;
typedef enum { CUBLAS_POINTER_MODE_HOST = 0, CUBLAS_POINTER_MODE_DEVICE = 1 } cublasPointerMode_t;
typedef enum { CUBLAS_SIDE_LEFT = 0, CUBLAS_SIDE_RIGHT = 1 } cublasSideMode_t;
typedef enum { CUBLAS_FILL_MODE_LOWER = 0, CUBLAS_FILL_MODE_UPPER = 1, CUBLAS_FILL_MODE_FULL = 2 } cublasFillMode_t;
typedef enum { CUBLAS_DIAG_NON_UNIT = 0, CUBLAS_DIAG_UNIT = 1 } cublasDiagType_t;
typedef enum {
  CUBLAS_DEFAULT_MATH = 0, CUBLAS_TENSOR_OP_MATH = 1, CUBLAS_PEDANTIC_MATH = 2, CUBLAS_TF32_TENSOR_OP_MATH = 3
} cublasMath_t;
typedef enum {
  CUBLAS_COMPUTE_16F = 64, CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_PEDANTIC = 69, CUBLAS_COMPUTE_64F = 70,
  CUBLAS_COMPUTE_32I = 72, CUBLAS_COMPUTE_32F_FAST_16F = 74, CUBLAS_COMPUTE_32F_FAST_16BF = 75,
  CUBLAS_COMPUTE_32F_FAST_TF32 = 77
} cublasComputeType_t;
typedef enum { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99 } cublasGemmAlgo_t;

#ifdef __cplusplus
extern "C" {
#endif
cublasStatus_t cublasCreate_v2(cublasHandle_t* handle);
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle);
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream);
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode);
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode);
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t size);
const char* cublasGetStatusString(cublasStatus_t status);
const char* cublasGetStatusName(cublasStatus_t status);

#define VECTORS(letter, type)                                                                                       \
  cublasStatus_t cublas##letter##scal_v2(cublasHandle_t, int n, const type* alpha, type* x, int incx);              \
  cublasStatus_t cublas##letter##dot_v2(cublasHandle_t, int n, const type* x, int incx, const type* y, int incy,    \
                                        type* result);                                                              \
  cublasStatus_t cublas##letter##axpy_v2(cublasHandle_t, int n, const type* alpha, const type* x, int incx, type* y, \
                                         int incy);                                                                 \
  cublasStatus_t cublas##letter##gemv_v2(cublasHandle_t, cublasOperation_t, int m, int n, const type* alpha,        \
                                         const type* a, int lda, const type* x, int incx, const type* beta, type* y, \
                                         int incy);
#define PRODUCTS(name, letter, type)                                                                                \
  cublasStatus_t name(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const type* alpha,  \
                      const type* a, int lda, const type* b, int ldb, const type* beta, type* c, int ldc);          \
  cublasStatus_t cublas##letter##gemmStridedBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m,     \
      int n, int k, const type* alpha, const type* a, int lda, long long stride_a, const type* b, int ldb,          \
      long long stride_b, const type* beta, type* c, int ldc, long long stride_c, int count);                       \
  cublasStatus_t cublas##letter##gemmBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n,     \
      int k, const type* alpha, const type* const a[], int lda, const type* const b[], int ldb, const type* beta,    \
      type* const c[], int ldc, int count);
VECTORS(S, float)
VECTORS(D, double)
PRODUCTS(cublasSgemm_v2, S, float)
PRODUCTS(cublasDgemm_v2, D, double)
PRODUCTS(cublasHgemm, H, __half)
#undef VECTORS
#undef PRODUCTS
cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void* alpha,
                            const void* a, cudaDataType, int lda, const void* b, cudaDataType, int ldb, const void* beta,
                            void* c, cudaDataType, int ldc, cublasComputeType_t, cublasGemmAlgo_t);
cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void* alpha, const void* a, cudaDataType,
    int lda, long long stride_a, const void* b, cudaDataType, int ldb, long long stride_b, const void* beta, void* c,
    cudaDataType, int ldc, long long stride_c, int count, cublasComputeType_t, cublasGemmAlgo_t);
cublasStatus_t cublasGemmBatchedEx(
    cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void* alpha, const void* const a[],
    cudaDataType, int lda, const void* const b[], cudaDataType, int ldb, const void* beta, void* const c[], cudaDataType,
    int ldc, int count, cublasComputeType_t, cublasGemmAlgo_t);
#ifdef __cplusplus
}
#endif

#define cublasCreate cublasCreate_v2
#define cublasDestroy cublasDestroy_v2
#define cublasSetStream cublasSetStream_v2
#define cublasGetStream cublasGetStream_v2
#define cublasGetPointerMode cublasGetPointerMode_v2
#define cublasSetPointerMode cublasSetPointerMode_v2
#define cublasSetWorkspace cublasSetWorkspace_v2
#define cublasSscal cublasSscal_v2
#define cublasDscal cublasDscal_v2
#define cublasSdot cublasSdot_v2
#define cublasDdot cublasDdot_v2
#define cublasSaxpy cublasSaxpy_v2
#define cublasDaxpy cublasDaxpy_v2
#define cublasSgemv cublasSgemv_v2
#define cublasDgemv cublasDgemv_v2
#define cublasSgemm cublasSgemm_v2
#define cublasDgemm cublasDgemm_v2
