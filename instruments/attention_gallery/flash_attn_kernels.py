"""The package flash-attn on CUDA; and its CUDA kernels, from its source package, on a CPU in a GPU's arithmetic."""

from attention_check.gpu import on
from fa_lib import kernels
from ptx_machine.device import GPU


def flash_attn(q, k, v, causal=False, scale=None):
    """Call flash_attn.flash_attn_func, as `kernels.flash` does."""
    return kernels.flash(q, k, v, backend="flash_attn", causal=causal, scale=scale)


def fa2_cuda(q, k, v, causal=False, scale=None, *, gpu="A100"):
    """Call flash_attn_func's kernels, with gradients: the split-KV ones, as many parts as it takes, where the rows of
    all heads fill less than 80 % of the GPU; else the plain one."""
    return on.flash_attention_2(GPU.of(gpu))(q, k, v, causal=causal, scale=scale)
