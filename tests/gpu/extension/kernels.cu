// Kernels that tests/gpu/test_torch_extension.py launches, right and wrong ones. No header of torch: it compiles fast.
#include <cuda_fp16.h>

__constant__ float factor;
__device__ int calls;

__global__ void scaled(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i == 0) calls++;
  if (i < n) y[i] = exp2f(factor * x[i]);
}
__global__ void calls_so_far(float* y) { *y = calls; }  // another kernel, the same variable
__global__ void behind(const float* x, float* y, int n) {
  y[threadIdx.x] = x[threadIdx.x + n];  // line 14: out of bounds
}
__global__ void in_shared(const float* x, float* y) {
  extern __shared__ float room[];
  room[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = room[threadIdx.x] + 1;
}
__global__ void first_half(const float* x, float* y, int n) {
  if (threadIdx.x < n / 2) y[threadIdx.x] = x[threadIdx.x];
}
__global__ void at_least(const float* x, float* y, float least) {
  y[threadIdx.x] = fmaxf(x[threadIdx.x], least);  // line 25: of NaN and a number it is the number
}

cudaError_t set_factor(float value) { return cudaMemcpyToSymbol(factor, &value, sizeof value); }
void launch_scaled(const float* x, float* y, int n) { scaled<<<(n + 63) / 64, 64>>>(x, y, n); }
void launch_calls(float* y) { calls_so_far<<<1, 1>>>(y); }
void launch_behind(const float* x, float* y, int n) { behind<<<1, n>>>(x, y, n); }
void launch_in_shared(const float* x, float* y, int threads, int bytes) { in_shared<<<1, threads, bytes>>>(x, y); }
void launch_half(const float* x, float* room, float* y, int n, float least) {
  first_half<<<1, n>>>(x, room, n);
  at_least<<<1, n>>>(room, y, least);
}
cudaError_t launch_with(const float* x, float* y, int n, int blocks, int attribute) {
  void* arguments[] = {&x, &y, &n};
  if (attribute < 0) return cudaLaunchCooperativeKernel((void*)scaled, blocks, 64, arguments, 0, 0);
  cudaLaunchAttribute one = {};
  one.id = cudaLaunchAttributeID(attribute), one.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config = {dim3(blocks), dim3(64), 0, 0, &one, 1};
  return cudaLaunchKernelEx(&config, scaled, x, y, n);
}
cudaError_t allow_shared(int bytes) {
  return cudaFuncSetAttribute(in_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}
cudaError_t attributes(cudaFuncAttributes* of) { return cudaFuncGetAttributes(of, scaled); }
int blocks_at_once(int threads) {
  int blocks;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scaled, threads, 0);
  return blocks;
}
