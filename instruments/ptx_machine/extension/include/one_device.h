// What c10/cuda and ATen/cuda offer to extensions, with one device and one stream. A build of torch without CUDA lacks
// these headers; those of a build with CUDA call a library that asks the real runtime.
#pragma once
#include <ATen/ATen.h>
#include <cuda_runtime.h>

#define C10_CUDA_CHECK(expression)                                                          \
  do {                                                                                      \
    const cudaError_t error_of_cuda = (expression);                                         \
    TORCH_CHECK(error_of_cuda == cudaSuccess, "CUDA error: ", cudaGetErrorString(error_of_cuda)); \
  } while (0)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define C10_CUDA_IGNORE_ERROR(expression) (void)(expression)
#define C10_CUDA_CLEAR_ERROR() (void)cudaGetLastError()
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
}  // namespace at::cuda
