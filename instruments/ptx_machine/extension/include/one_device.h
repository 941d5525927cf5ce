// What c10/cuda and ATen/cuda offer to extensions, with one device and one stream. A build of torch without CUDA lacks
// these headers; those of a build with CUDA call a library that asks the real runtime.
#pragma once
#include <ATen/ATen.h>
#include <c10/cuda/CUDAMacros.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <string.h>

#define C10_CUDA_CHECK(expression)                                                          \
  do {                                                                                      \
    const cudaError_t error_of_cuda = (expression);                                         \
    if (error_of_cuda != cudaSuccess) (void)cudaGetLastError();                             \
    TORCH_CHECK(error_of_cuda == cudaSuccess, "CUDA error: ", cudaGetErrorString(error_of_cuda)); \
  } while (0)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define C10_CUDA_CHECK_WARN(expression)                                                     \
  do {                                                                                      \
    const cudaError_t error_of_cuda = (expression);                                         \
    if (error_of_cuda != cudaSuccess) TORCH_WARN("CUDA warning: ", cudaGetErrorString(error_of_cuda)); \
  } while (0)
#define C10_CUDA_ERROR_HANDLED(expression) (expression)
#define C10_CUDA_IGNORE_ERROR(expression) (void)(expression)
#define C10_CUDA_CLEAR_ERROR() (void)cudaGetLastError()
#define TORCH_CUDABLAS_CHECK(expression) TORCH_CHECK((expression) == CUBLAS_STATUS_SUCCESS, "an error of cuBLAS")
#define AT_CUDA_CHECK(expression) C10_CUDA_CHECK(expression)

namespace c10::cuda {
struct CUDAStream {
  cudaStream_t stream() const { return nullptr; }
  operator cudaStream_t() const { return nullptr; }
  int64_t id() const { return 0; }
  DeviceIndex device_index() const { return 0; }
  Device device() const { return Device(kCUDA, 0); }
  void synchronize() const { C10_CUDA_CHECK(cudaDeviceSynchronize()); }
};
inline CUDAStream getCurrentCUDAStream(DeviceIndex = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(DeviceIndex = -1) { return {}; }
inline CUDAStream getStreamFromPool(bool = false, DeviceIndex = -1) { return {}; }
inline DeviceIndex current_device() { return 0; }
inline DeviceIndex device_count() { return 1; }
inline void set_device(DeviceIndex) {}
inline void device_synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }
struct CUDAGuard {
  explicit CUDAGuard(DeviceIndex) {}
  explicit CUDAGuard(Device) {}
  void set_device(Device) {}
  void set_index(DeviceIndex) {}
};
struct OptionalCUDAGuard {
  OptionalCUDAGuard() {}
  template <class T> explicit OptionalCUDAGuard(T) {}
};
struct CUDAStreamGuard {
  explicit CUDAStreamGuard(CUDAStream) {}
};

namespace CUDACachingAllocator {  // takes memory of cudaMalloc, and keeps none
inline void* raw_alloc(size_t n) {
  void* p;
  C10_CUDA_CHECK(cudaMalloc(&p, n));
  return p;
}
inline void* raw_alloc_with_stream(size_t n, cudaStream_t) { return raw_alloc(n); }
inline void raw_delete(void* p) { C10_CUDA_CHECK_WARN(cudaFree(p)); }
struct CUDAAllocator : Allocator {
  DataPtr allocate(size_t n) override {
    void* p = raw_alloc(n);
    return {p, p, &raw_delete, Device(kCUDA, 0)};
  }
  DeleterFnPtr raw_deleter() const override { return &raw_delete; }
  void copy_data(void* to, const void* from, size_t n) const override { memcpy(to, from, n); }
};
inline CUDAAllocator* get() {
  static CUDAAllocator allocator;
  return &allocator;
}
inline void emptyCache() {}
inline void recordStream(const DataPtr&, CUDAStream) {}
}  // namespace CUDACachingAllocator
}  // namespace c10::cuda

namespace at::cuda {
using namespace c10::cuda;
inline cudaDeviceProp* getDeviceProperties(DeviceIndex = 0) {
  static cudaDeviceProp properties = [] {
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, 0);
    return p;
  }();
  return &properties;
}
inline cudaDeviceProp* getCurrentDeviceProperties() { return getDeviceProperties(); }
inline int warp_size() { return 32; }
inline bool is_available() { return true; }
inline int64_t getNumGPUs() { return 1; }
inline cublasHandle_t getCurrentCUDABlasHandle() { return nullptr; }
inline Allocator* getCUDADeviceAllocator() { return CUDACachingAllocator::get(); }
struct CUDAEvent {
  CUDAEvent(unsigned = 0) {}
  void record() {}
  void record(const CUDAStream&) {}
  void recordOnce(const CUDAStream&) {}
  void block(const CUDAStream&) {}
  bool query() const { return true; }
  bool isCreated() const { return true; }
  void synchronize() const { C10_CUDA_CHECK(cudaDeviceSynchronize()); }
  float elapsed_time(const CUDAEvent&) const {
    float ms = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&ms, nullptr, nullptr));
    return ms;
  }
  cudaEvent_t event() const { return nullptr; }
};
}  // namespace at::cuda
