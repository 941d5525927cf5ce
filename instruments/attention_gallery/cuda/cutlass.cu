// torch $version
#include <ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h>
#include <cstddef>

using Attention = PyTorchMemEffAttention::AttentionKernel<$dtype, cutlass::arch::Sm80, true, $tile, true, true>;
using Params = Attention::Params;
__global__ void __launch_bounds__(Attention::kNumThreads, Attention::kMinBlocksPerSm) fmha(Params p) {
    if (p.advance_to_block()) Attention::attention_kernel(p);
}
extern "C" __device__ unsigned sizes[] = {
    sizeof(Attention::SharedStorage), Attention::kNumWarpsPerBlock, Attention::kNeedsOutputAccumulatorBuffer,
    Attention::kAlignmentQ, sizeof(Params)};
extern "C" __device__ unsigned layout[] = {$fields};
