"""FlashAttention-2's own CUDA kernels, from flash-attn's source package, on a CPU in a GPU's arithmetic."""

from attention_check.gpu import on
from ptx_machine.device import GPU


def fa2_cuda(q, k, v, causal=False, scale=None, *, gpu="A100"):
    """Call flash_attn_func's kernels, with gradients: the split-KV ones, as many parts as it takes, where the rows of
    all heads fill less than 80 % of the GPU; else the plain one."""
    return on.flash_attention_2(GPU.of(gpu))(q, k, v, causal=causal, scale=scale)
