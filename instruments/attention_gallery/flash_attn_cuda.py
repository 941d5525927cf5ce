"""FlashAttention-2's own CUDA kernels, from flash-attn's source package, on a CPU in a GPU's arithmetic."""

from torch import Tensor

from attention_check.gpu import on
from ptx_machine.device import GPU


def fa2_cuda(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None, *, gpu: str | GPU = "A100"
) -> Tensor:
    """Call flash_attn_func's kernels, with gradients: the split-KV ones, as many parts as it takes, where the rows of
    all heads fill less than 80 % of the GPU; else the plain one.

    q, o: (batch, heads, n_q, head_dim). k, v: (batch, heads_kv, n_kv, head_dim).
    """
    return on.flash_attention_2(GPU.of(gpu))(q, k, v, causal=causal, scale=scale)
