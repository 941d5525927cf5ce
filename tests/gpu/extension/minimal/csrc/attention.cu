// Two common forms: tiles of keys outside and queries inside, O, l and m in global memory (FP32); and wmma (FP16).
#include <mma.h>
using namespace nvcuda;

constexpr int TILE = 32, SIDE = 16, WIDE = 64;

template <int D>
__global__ void forward(const float* q, const float* k, const float* v, float* o, float* l, float* m, int n, float scale) {
  __shared__ float keys[TILE][D], values[TILE][D];
  const size_t head = size_t(blockIdx.x) * n;
  q += head * D, k += head * D, v += head * D, o += head * D, l += head, m += head;
  for (int first = 0; first < n; first += TILE) {
    const int count = min(TILE, n - first);
    for (int i = threadIdx.x; i < count * D; i += TILE)
      keys[i / D][i % D] = k[first * D + i], values[i / D][i % D] = v[first * D + i];
    __syncthreads();
    for (int row = threadIdx.x; row < n; row += TILE) {
      const float before = m[row], sum_before = l[row];  // line 18
      float p[TILE], top = before;
      for (int j = 0; j < count; j++) {
        p[j] = 0;
        for (int d = 0; d < D; d++) p[j] += q[row * D + d] * keys[j][d];
        top = fmaxf(top, p[j] *= scale);
      }
      const float old = sum_before * __expf(before - top);
      float sum = old;
      for (int j = 0; j < count; j++) sum += p[j] = __expf(p[j] - top);
      for (int d = 0; d < D; d++) {
        float total = old * o[row * D + d];
        for (int j = 0; j < count; j++) total += p[j] * values[j][d];
        o[row * D + d] = total / fmaxf(sum, SMALLEST);
      }
      m[row] = top, l[row] = sum;
    }
    __syncthreads();
  }
}

template <int D>
__device__ float dot(const float* x, const float* y) {
  float sum = 0;
  for (int d = 0; d < D; d++) sum += x[d] * y[d];
  return sum;
}
template <int D>
__global__ void backward(const float* g, const float* q, const float* k, const float* v, const float* o, const float* l,
                         const float* m, float* dq, float* dk, float* dv, int n, float scale) {
  const size_t head = size_t(blockIdx.x) * n;
  const int row = blockIdx.y * TILE + threadIdx.x;
  if (row >= n) return;
  g += head * D, q += head * D, k += head * D, v += head * D, o += head * D, l += head, m += head;
  dq += (head + row) * D, dk += (head + row) * D, dv += (head + row) * D;
  const float delta = dot<D>(g + row * D, o + row * D);
  for (int i = 0; i < n; i++) {  // as a query it meets key i, and as a key query i
    const float p = __expf(dot<D>(q + row * D, k + i * D) * scale - m[row]) / l[row];
    const float t = __expf(dot<D>(q + i * D, k + row * D) * scale - m[i]) / l[i];
    const float ds = scale * p * (dot<D>(g + row * D, v + i * D) - delta);
    const float dt = scale * t * (dot<D>(g + i * D, v + row * D) - dot<D>(g + i * D, o + i * D));
    for (int d = 0; d < D; d++) dq[d] += ds * k[i * D + d], dk[d] += dt * q[i * D + d], dv[d] += t * g[i * D + d];
  }
}

__global__ void half_forward(const __half* q, const __half* k, const __half* v, __half* o, int n, float scale) {
  __shared__ float scores[SIDE * SIDE], sums[SIDE * WIDE], l[SIDE];
  __shared__ __half p[SIDE * SIDE];
  const size_t head = size_t(blockIdx.y) * n * WIDE, rows = head + blockIdx.x * SIDE * WIDE;
  const int row = threadIdx.x % SIDE, side = threadIdx.x / SIDE;
  for (int i = threadIdx.x; i < SIDE * WIDE; i += 32) sums[i] = 0;
  float m = -INFINITY, sum = 0;
  for (int first = 0; first < n; first += SIDE) {
    wmma::fragment<wmma::accumulator, SIDE, SIDE, SIDE, float> total;
    wmma::fill_fragment(total, 0.0f);
    for (int d = 0; d < WIDE; d += SIDE) {
      wmma::fragment<wmma::matrix_a, SIDE, SIDE, SIDE, __half, wmma::row_major> a;
      wmma::fragment<wmma::matrix_b, SIDE, SIDE, SIDE, __half, wmma::col_major> b;
      wmma::load_matrix_sync(a, q + rows + d, WIDE);
      wmma::load_matrix_sync(b, k + head + first * WIDE + d, WIDE);
      wmma::mma_sync(total, a, b, total);
    }
    for (int i = 0; i < total.num_elements; i++) total.x[i] *= scale;
    wmma::store_matrix_sync(scores, total, SIDE, wmma::mem_row_major);
    __syncwarp();
    const float before = m;
    for (int j = 0; j < SIDE; j++) m = fmaxf(m, scores[row * SIDE + j]);
    const float old = __expf(before - m);
    sum *= old;
    for (int j = 0; j < SIDE; j++) {
      const float x = __expf(scores[row * SIDE + j] - m);
      sum += x;
      if (side == 0) p[row * SIDE + j] = __float2half(x);
    }
    for (int d = side * WIDE / 2; d < (side + 1) * WIDE / 2; d++) sums[row * WIDE + d] *= old;
    __syncwarp();
    wmma::fragment<wmma::matrix_a, SIDE, SIDE, SIDE, __half, wmma::row_major> a;
    wmma::load_matrix_sync(a, p, SIDE);
    for (int d = 0; d < WIDE; d += SIDE) {
      wmma::fragment<wmma::matrix_b, SIDE, SIDE, SIDE, __half, wmma::row_major> b;
      wmma::load_matrix_sync(b, v + head + first * WIDE + d, WIDE);
      wmma::load_matrix_sync(total, sums + d, WIDE, wmma::mem_row_major);
      wmma::mma_sync(total, a, b, total);
      wmma::store_matrix_sync(sums + d, total, WIDE, wmma::mem_row_major);
    }
    __syncwarp();
  }
  if (side == 0) l[row] = sum;
  __syncwarp();
  for (int i = threadIdx.x; i < SIDE * WIDE; i += 32) o[rows + i] = __float2half(sums[i] / l[i / WIDE]);
}

void launch_forward(const float* q, const float* k, const float* v, float* o, float* l, float* m, int heads, int n, int d,
                    float scale) {
  (d == 32 ? forward<32> : forward<64>)<<<heads, TILE>>>(q, k, v, o, l, m, n, scale);
}
void launch_backward(const float* g, const float* q, const float* k, const float* v, const float* o, const float* l,
                     const float* m, float* dq, float* dk, float* dv, int heads, int n, int d, float scale) {
  const dim3 grid(heads, (n + TILE - 1) / TILE);
  (d == 32 ? backward<32> : backward<64>)<<<grid, TILE>>>(g, q, k, v, o, l, m, dq, dk, dv, n, scale);
}
void launch_half(const void* q, const void* k, const void* v, void* o, int heads, int n, float scale) {
  half_forward<<<dim3(n / SIDE, heads), 32>>>((const __half*)q, (const __half*)k, (const __half*)v, (__half*)o, n, scale);
}
