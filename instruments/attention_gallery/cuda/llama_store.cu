#include "common.cuh"
#include "cpy-utils.cuh"
extern "C" __global__ void store(const float * values, block_$kind * blocks, long long count) {
    const long long i = blockIdx.x * (long long) blockDim.x + threadIdx.x;
    if (i < count) quantize_f32_${kind}_block(values + $block * i, blocks + i);
}
