"""The package flash-attn on CUDA: its compiled kernel, and the one in Triton that it also ships.

q, k, v and o are (batch, heads, n, head_dim); o is in q's dtype.
"""

from torch import Tensor

from attention_gallery.adapters import repeated, softmax_scale, swapped
from fa_lib import kernels


def flash_attn(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """Call flash_attn.flash_attn_func, as `kernels.flash` does."""
    return kernels.flash(q, k, v, backend="flash_attn", causal=causal, scale=scale)


def flash_attn_triton(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """Call flash_attn.flash_attn_triton.flash_attn_func, with its tiles of 128 queries and 128 keys.

    Raises:
        NotImplementedError: causal with n_q unlike n_kv.
    """
    from flash_attn.flash_attn_triton import flash_attn_func  # pyright: ignore[reportMissingImports]

    if causal and q.shape[2] != k.shape[2]:
        raise NotImplementedError("flash-attn's Triton kernel aligns its causal mask top-left; it needs n_q = n_kv")
    o = flash_attn_func(*map(swapped, (q, *repeated(q, k, v))), None, causal, softmax_scale(q, scale))
    return swapped(o)
