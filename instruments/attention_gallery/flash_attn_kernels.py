"""The package flash-attn on CUDA: its compiled kernel, and the one in Triton that it also ships; and its own CUDA
kernels, from its source package, on a CPU in a GPU's arithmetic."""

from attention_check.gpu import on
from attention_gallery.adapters import accepts, repeated, swapped
from fa_lib import kernels
from ptx_machine.device import GPU


def flash_attn(q, k, v, causal=False, scale=None):
    """Call flash_attn.flash_attn_func, as `kernels.flash` does."""
    return kernels.flash(q, k, v, backend="flash_attn", causal=causal, scale=scale)


@accepts("flash-attn's Triton kernel", top_left=True)
def flash_attn_triton(q, k, v, causal=False, scale=None):
    """Call flash_attn.flash_attn_triton.flash_attn_func, with its tiles of 128 queries and 128 keys."""
    from flash_attn.flash_attn_triton import flash_attn_func  # pyright: ignore[reportMissingImports]

    return swapped(flash_attn_func(*map(swapped, (q, *repeated(q, k, v))), None, causal, scale))


def fa2_cuda(q, k, v, causal=False, scale=None, *, gpu="A100"):
    """Call flash_attn_func's kernels, with gradients: the split-KV ones, as many parts as it takes, where the rows of
    all heads fill less than 80 % of the GPU; else the plain one."""
    return on.flash_attention_2(GPU.of(gpu))(q, k, v, causal=causal, scale=scale)
