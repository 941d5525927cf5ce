// The state of torch's random numbers, as flash-attn's parameters hold it; dropout is not used here.
#pragma once
#include <cstdint>
#include <tuple>

namespace at {

struct PhiloxCudaState {
    uint64_t seed = 0;
    uint64_t offset = 0;
};

namespace cuda::philox {

__host__ __device__ inline std::tuple<uint64_t, uint64_t> unpack(PhiloxCudaState state) {
    return {state.seed, state.offset};
}

}  // namespace cuda::philox
}  // namespace at
