// What torch's attention kernels name of cuRAND, for dropout alone, which nothing here uses.
#pragma once
#include <cuda_runtime.h>

struct curandStatePhilox4_32_10_t {};

__device__ inline void curand_init(unsigned long long, unsigned long long, unsigned long long,
                                   curandStatePhilox4_32_10_t *) {}
__device__ inline void skipahead(unsigned long long, curandStatePhilox4_32_10_t *) {}
__device__ inline float4 curand_uniform4(curandStatePhilox4_32_10_t *) { return {}; }
