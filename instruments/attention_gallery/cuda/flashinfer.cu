#include <flashinfer/attention/$name.cuh>
#include <flashinfer/attention/default_${name}_params.cuh>
#include <flashinfer/attention/variants.cuh>
#include <cstddef>

using namespace flashinfer;
using T = $dtype;
struct Params : $parameters<T, T, T, int32_t> { double sm_scale; };  // FlashInfer's compiler of kernels has doubles
using Variant = DefaultAttention<false, false, false, false>;
$declared
template __global__ void flashinfer::$kernel(const __grid_constant__ Params);
template __global__ void flashinfer::PersistentVariableLengthMergeStatesKernel<$vector, $across, $rows, 4, T, T,
    int32_t>(T*, float*, int32_t*, T*, float*, uint32_t, uint32_t*, uint32_t);
template __global__ void flashinfer::MergeStateInPlaceKernel<$vector, T>(T*, float*, T*, float*, uint8_t*, uint32_t,
    uint32_t);

struct Divisor { cuda::fast_mod_div<uint32_t> division; uint32_t number; };
static_assert(sizeof(Divisor) == sizeof(uint_fastdiv));
extern "C" __global__ void divisor(uint32_t number, Divisor* result) {
  *result = Divisor{cuda::fast_mod_div<uint32_t>(number), number};
}
extern "C" __device__ unsigned shared_bytes[] = {$shared};
extern "C" __device__ unsigned layout[] = {sizeof(Params), sizeof(Divisor), $fields};
