"""The package flash-attn on CUDA: its compiled kernel, and the one in Triton that it also ships."""

from attention_gallery.adapters import accepts, repeated, swapped
from fa_lib import kernels


def flash_attn(q, k, v, causal=False, scale=None):
    """Call flash_attn.flash_attn_func, as `kernels.flash` does."""
    return kernels.flash(q, k, v, backend="flash_attn", causal=causal, scale=scale)


@accepts(top_left="flash-attn's Triton kernel")
def flash_attn_triton(q, k, v, causal=False, scale=None):
    """Call flash_attn.flash_attn_triton.flash_attn_func, with its tiles of 128 queries and 128 keys."""
    from flash_attn.flash_attn_triton import flash_attn_func  # pyright: ignore[reportMissingImports]

    return swapped(flash_attn_func(*map(swapped, (q, *repeated(q, k, v))), None, causal, scale))
