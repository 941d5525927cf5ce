// Flash attention: a thread has one query, and walks over the keys in tiles, with an online softmax in FP32.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int TILE = 32;  // queries of a block, and keys in shared memory at a time

template <typename T, int D>
__global__ void forward(const T* q, const T* k, const T* v, T* o, int n_q, int n_kv, bool causal, float scale) {
  __shared__ T keys[TILE][D], values[TILE][D];
  const size_t head = blockIdx.y;
  const int row = blockIdx.x * TILE + threadIdx.x, last = causal ? row + n_kv - n_q : n_kv - 1;
  q += (head * n_q + row) * D, o += (head * n_q + row) * D, k += head * n_kv * D, v += head * n_kv * D;
  float query[D], sum[D] = {}, m = -INFINITY, l = 0;
  for (int d = 0; d < D; d++) query[d] = row < n_q ? float(q[d]) * scale : 0;
  for (int first = 0; first < n_kv; first += TILE) {
    const int count = min(TILE, n_kv - first);
    for (int i = threadIdx.x; i < count * D; i += TILE)
      keys[i / D][i % D] = k[first * D + i], values[i / D][i % D] = v[first * D + i];
    __syncthreads();
    for (int j = 0; j < count && first + j <= last; j++) {
      float score = 0;
      for (int d = 0; d < D; d++) score += query[d] * float(keys[j][d]);
      const float before = m;
      m = fmaxf(m, score);
      const float old = __expf(before - m), p = __expf(score - m);
      l = l * old + p;
      for (int d = 0; d < D; d++) sum[d] = sum[d] * old + p * float(values[j][d]);
    }
    __syncthreads();
  }
  if (row < n_q)
    for (int d = 0; d < D; d++) o[d] = T(l > 0 ? sum[d] / l : 0.0f);  // a row that sees no key is 0
}

template <typename T, int D>
void launch(const void* q, const void* k, const void* v, void* o, int heads, int n_q, int n_kv, bool causal, float scale) {
  forward<T, D><<<dim3((n_q + TILE - 1) / TILE, heads), TILE>>>((const T*)q, (const T*)k, (const T*)v, (T*)o, n_q, n_kv,
                                                                causal, scale);
}

bool flash(bool half, const void* q, const void* k, const void* v, void* o, int heads, int n_q, int n_kv, int head_dim,
           bool causal, float scale) {
  const auto with = [&](auto fp16, auto bf16) { (half ? fp16 : bf16)(q, k, v, o, heads, n_q, n_kv, causal, scale); };
  if (head_dim == 32) with(launch<__half, 32>, launch<__nv_bfloat16, 32>);
  else if (head_dim == 64) with(launch<__half, 64>, launch<__nv_bfloat16, 64>);
  else if (head_dim == 128) with(launch<__half, 128>, launch<__nv_bfloat16, 128>);
  else return false;
  return true;
}
