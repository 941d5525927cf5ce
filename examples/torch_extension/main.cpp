// Tensors in, tensors out. The kernel is in flash.cu, which includes none of torch's headers: so nvcc takes seconds.
#include <c10/cuda/CUDAException.h>
#include <torch/extension.h>

bool flash(bool half, const void* q, const void* k, const void* v, void* o, int heads, int n_q, int n_kv, int head_dim,
           bool causal, float scale);

torch::Tensor forward(torch::Tensor q, torch::Tensor k, torch::Tensor v, bool causal, double scale) {
  TORCH_CHECK(q.is_cuda() && k.is_cuda() && v.is_cuda(), "q, k and v must be on a GPU");
  const bool half = q.scalar_type() == torch::kHalf;
  TORCH_CHECK_NOT_IMPLEMENTED(half || q.scalar_type() == torch::kBFloat16, "the dtype must be FP16 or BF16");
  auto o = torch::empty_like(q);
  const bool there = flash(half, q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), q.size(0) * q.size(1), q.size(2),
                           k.size(2), q.size(3), causal, scale);
  TORCH_CHECK_NOT_IMPLEMENTED(there, "head_dim must be 32, 64 or 128");
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return o;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("forward", &forward); }
