// A profiler's begin and end, which do nothing: no time is measured.
#pragma once
#include <cuda_runtime_api.h>
static inline cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
static inline cudaError_t cudaProfilerStop(void) { return cudaSuccess; }
