"""flash-attn-triton's flash_attn_func, a stand-in for flash-attn's in Triton: `flash_attn_triton_package`, with
gradients."""

import sys
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from attention_gallery.adapters import only_dtypes, softmax_scale, swapped
from attention_gallery.catalogue import pinned
from attention_gallery.source_modules import module

FLASH_ATTN_TRITON = pinned("flash-attn-triton", "0.1.1")
BLOCK = 128  # flash_attn_interface.py, line 12
WIDTHS = (16, 32, 64, 128, 256)  # head_dim: attention_kernel.py, line 577


def flash_attn_triton_package(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Call flash_attn_triton.flash_attn_func. It has gradients.

    Args:
        q: (batch, heads, n, head_dim), BF16 or FP16.
        k, v: (batch, kv_heads, n, head_dim).

    Raises:
        NotImplementedError: n_q unlike n_kv, no causal mask with n no multiple of 128, or head_dim none of WIDTHS.
    """
    only_dtypes(q, (torch.bfloat16, torch.float16), "flash-attn-triton")
    n_q, n_kv, width = q.shape[2], k.shape[2], q.shape[3]
    if n_q != n_kv:
        raise NotImplementedError(f"flash-attn-triton takes one length for queries and keys; got {n_q} and {n_kv}")
    if not causal and n_q % BLOCK:
        raise NotImplementedError(f"without a causal mask, flash-attn-triton has multiples of {BLOCK} keys; got {n_q}")
    if width not in WIDTHS:
        raise NotImplementedError(f"flash-attn-triton has head_dim {WIDTHS}; got {width}")
    tensors = [swapped(x) for x in (q, k, v)]  # (batch, n, heads, head_dim)
    return swapped(_interface().flash_attn_func(*tensors, softmax_scale=softmax_scale(q, scale), causal=causal))


@cache
def _interface() -> ModuleType:
    """Import flash_attn_interface.py, once. A module of Triton's that it imports, and does not use, is gone in 3.7."""
    gone = "triton.tools.experimental_descriptor"
    sys.modules.setdefault(gone, ModuleType(gone))
    return module(FLASH_ATTN_TRITON, "flash_attn_triton.flash_attn_interface")
