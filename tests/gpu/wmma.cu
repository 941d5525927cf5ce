// D = A B + s C by nvcuda::wmma, for tests/gpu/test_wmma.py: A through shared memory, C scaled element by element.
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda;

template <typename T, typename R, int M, int N, int K, typename LA, typename LB>
__device__ void product(const T* a, const T* b, const R* c, R* d, float s, int lda, int ldb, wmma::layout_t layout, int ldc) {
  __shared__ T room[M * K];
  for (int i = threadIdx.x; i < M * K; i += 32) room[i] = a[i];
  __syncwarp();
  wmma::fragment<wmma::matrix_a, M, N, K, T, LA> fa;
  wmma::fragment<wmma::matrix_b, M, N, K, T, LB> fb;
  wmma::fragment<wmma::accumulator, M, N, K, R> fc, fd;
  wmma::load_matrix_sync(fa, room, lda);
  wmma::load_matrix_sync(fb, b, ldb);
  wmma::load_matrix_sync(fc, c, ldc, layout);
  for (int i = 0; i < fc.num_elements; i++) fc.x[i] = R(float(fc.x[i]) * s);
  wmma::mma_sync(fd, fa, fb, fc);
  wmma::store_matrix_sync(d, fd, ldc, layout);
}
#define BOTH(name, T, R, M, N, K)                                                                                   \
  extern "C" __global__ void name##_rows(const T* a, const T* b, const R* c, R* d, float s) {                       \
    product<T, R, M, N, K, wmma::row_major, wmma::col_major>(a, b, c, d, s, K, K, wmma::mem_row_major, N);          \
  }                                                                                                                 \
  extern "C" __global__ void name##_columns(const T* a, const T* b, const R* c, R* d, float s) {                    \
    product<T, R, M, N, K, wmma::col_major, wmma::row_major>(a, b, c, d, s, M, N, wmma::mem_col_major, M);          \
  }
#define SHAPES(name, T, R) \
  BOTH(name##_16_16, T, R, 16, 16, 16) BOTH(name##_32_8, T, R, 32, 8, 16) BOTH(name##_8_32, T, R, 8, 32, 16)
SHAPES(f16_f32, __half, float)
SHAPES(f16_f16, __half, __half)
SHAPES(bf16_f32, __nv_bfloat16, float)
