#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cublas_v2.h>
#include <cuda_profiler_api.h>
#include <nvToolsExt.h>
#include <torch/extension.h>

cudaError_t set_factor(float value);
void launch_scaled(const float* x, float* y, int n);
void launch_calls(float* y);
void launch_behind(const float* x, float* y, int n);
void launch_in_shared(const float* x, float* y, int threads, int bytes);
void launch_half(const float* x, float* room, float* y, int n, float least);
cudaError_t allow_shared(int bytes);
cudaError_t launch_with(const float* x, float* y, int n, int blocks, int attribute);
cudaError_t attributes(cudaFuncAttributes* of);
int blocks_at_once(int threads);

torch::Tensor scaled(torch::Tensor x, double factor) {
  TORCH_CHECK(x.is_cuda() && x.device().type() == torch::kCUDA, "x must be a CUDA tensor");
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto y = torch::zeros(x.sizes(), x.options());
  C10_CUDA_CHECK(set_factor(factor));
  launch_scaled(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
float calls() {
  auto y = torch::empty({1}, torch::TensorOptions().device(torch::kCUDA));
  launch_calls(y.data_ptr<float>());
  return y.cpu().item<float>();
}
torch::Tensor behind(torch::Tensor x, int then) {
  auto y = torch::empty_like(x);
  launch_behind(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  if (then == 1) exit(1);
  if (then == 2) abort();
  return y;
}
torch::Tensor launched_with(torch::Tensor x, int blocks, int attribute) {
  auto y = torch::zeros_like(x);
  C10_CUDA_CHECK(set_factor(1));
  C10_CUDA_CHECK(launch_with(x.data_ptr<float>(), y.data_ptr<float>(), x.numel(), blocks, attribute));
  return y;
}
torch::Tensor half_written(torch::Tensor x, float least, bool with_malloc) {
  auto y = torch::empty_like(x), room = torch::empty_like(x);
  float *at = room.data_ptr<float>(), *allocated = nullptr;
  if (with_malloc) C10_CUDA_CHECK(cudaMalloc(&allocated, x.nbytes()));
  launch_half(x.data_ptr<float>(), with_malloc ? allocated : at, y.data_ptr<float>(), x.numel(), least);
  if (with_malloc) C10_CUDA_CHECK(cudaFree(allocated));
  return y;
}
torch::Tensor in_shared(torch::Tensor x, int threads, int bytes, bool allow, bool look) {
  auto y = torch::empty_like(x);
  if (allow) C10_CUDA_CHECK(allow_shared(bytes));
  launch_in_shared(x.data_ptr<float>(), y.data_ptr<float>(), threads, bytes);
  if (look) C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
torch::Tensor through_malloc(torch::Tensor x) {
  auto y = torch::empty_like(x);
  float* room;
  C10_CUDA_CHECK(cudaMalloc(&room, x.nbytes()));
  launch_scaled(x.data_ptr<float>(), room, x.numel());
  C10_CUDA_CHECK(cudaMemcpy(y.data_ptr<float>(), room, x.nbytes(), cudaMemcpyDeviceToDevice));
  C10_CUDA_CHECK(cudaFree(room));
  return y;
}
int processors() { return at::cuda::getCurrentDeviceProperties()->multiProcessorCount; }
std::vector<size_t> told() {  // of the device, a kernel, and rows that are copied
  size_t free, total;
  int version, lowest, highest;
  cudaFuncAttributes of;
  char *p, from[] = "ab-cd-";
  nvtxRangePush("told"), at::cuda::CUDAEvent().record(at::cuda::getCurrentCUDAStream());
  auto memory = c10::cuda::CUDACachingAllocator::get()->allocate(64);
  for (auto error : {cudaMemGetInfo(&free, &total), cudaRuntimeGetVersion(&version), cudaStreamQuery(0), cudaEventQuery(0),
                     cudaDeviceGetStreamPriorityRange(&lowest, &highest), cudaProfilerStart(), attributes(&of),
                     cudaHostAlloc((void**)&p, 4, 0), cudaMemcpy2D(p, 2, from, 3, 2, 2, cudaMemcpyDefault)})
    C10_CUDA_CHECK(error);
  return {total, size_t(version), size_t(of.maxThreadsPerBlock), size_t(of.numRegs), std::string(p, 4) == "abcd"};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("scaled", &scaled);
  module.def("calls", &calls);
  module.def("behind", &behind);
  module.def("launched_with", &launched_with);
  module.def("half_written", &half_written);
  module.def("in_shared", &in_shared);
  module.def("through_malloc", &through_malloc);
  module.def("processors", &processors);
  module.def("blocks_at_once", &blocks_at_once);
  module.def("told", &told);
}
