// Flash attention: a thread has one query, and walks over the keys in tiles with an online softmax in FP32.
#include <ATen/Dispatch.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

constexpr int TILE = 32;  // keys in shared memory at a time, and queries of a block

template <typename T, int D>
__global__ void flash(const T* q, const T* k, const T* v, T* o, int n_q, int n_kv, bool causal, float scale) {
  __shared__ float keys[TILE][D], values[TILE][D];
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
      for (int d = 0; d < D; d++) score += query[d] * keys[j][d];
      const float before = m;
      m = fmaxf(m, score);
      const float old = __expf(before - m), p = __expf(score - m);
      l = l * old + p;
      for (int d = 0; d < D; d++) sum[d] = sum[d] * old + p * values[j][d];
    }
    __syncthreads();
  }
  if (row < n_q)
    for (int d = 0; d < D; d++) o[d] = l > 0 ? sum[d] / l : 0;  // a row that sees no key is 0
}

template <typename T, int D>
void launch(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor o, bool causal, float scale) {
  const dim3 grid((q.size(2) + TILE - 1) / TILE, q.size(0) * q.size(1));
  flash<T, D><<<grid, TILE, 0, c10::cuda::getCurrentCUDAStream()>>>(
      q.data_ptr<T>(), k.data_ptr<T>(), v.data_ptr<T>(), o.data_ptr<T>(), q.size(2), k.size(2), causal, scale);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

torch::Tensor forward(torch::Tensor q, torch::Tensor k, torch::Tensor v, bool causal, double scale) {
  TORCH_CHECK(q.is_cuda() && k.is_cuda() && v.is_cuda(), "q, k and v must be on a GPU");
  TORCH_CHECK_NOT_IMPLEMENTED(k.sizes() == v.sizes() && q.size(1) == k.size(1), "q, k and v must have as many heads");
  auto o = torch::empty_like(q);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, q.scalar_type(), "forward", [&] {
    if constexpr (!std::is_same_v<scalar_t, double>) {
      switch (q.size(3)) {
        case 32: return launch<scalar_t, 32>(q, k, v, o, causal, scale);
        case 64: return launch<scalar_t, 64>(q, k, v, o, causal, scale);
        case 128: return launch<scalar_t, 128>(q, k, v, o, causal, scale);
      }
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, "head_dim must be 32, 64 or 128, and the dtype FP32, FP16 or BF16");
  });
  return o;
}
