"""flash-attn-triton's flash_attn_func, a stand-in for flash-attn's in Triton: `flash_attn_triton_package`, with
gradients."""

import sys
from functools import cache
from types import ModuleType

from attention_gallery.adapters import HALF, accepts, swapped
from attention_gallery.catalogue import pinned
from attention_gallery.source_modules import module

FLASH_ATTN_TRITON = pinned("flash-attn-triton", "0.1.1")
BLOCK = 128  # flash_attn_interface.py, line 12
WIDTHS = (16, 32, 64, 128, 256)  # head_dim: attention_kernel.py, line 577


@accepts(HALF, "flash-attn-triton")
def flash_attn_triton_package(q, k, v, causal=False, scale=None):
    """Call flash_attn_triton.flash_attn_func. It has gradients.

    Raises:
        NotImplementedError: n_q unlike n_kv, no causal mask with n no multiple of 128, or head_dim none of WIDTHS.
    """
    n_q, n_kv, width = q.shape[2], k.shape[2], q.shape[3]
    if n_q != n_kv:
        raise NotImplementedError(f"flash-attn-triton takes one length for queries and keys; got {n_q} and {n_kv}")
    if not causal and n_q % BLOCK:
        raise NotImplementedError(f"without a causal mask, flash-attn-triton has multiples of {BLOCK} keys; got {n_q}")
    if width not in WIDTHS:
        raise NotImplementedError(f"flash-attn-triton has head_dim {WIDTHS}; got {width}")
    return swapped(_interface().flash_attn_func(*map(swapped, (q, k, v)), softmax_scale=scale, causal=causal))


@cache
def _interface() -> ModuleType:
    """Import flash_attn_interface.py, once. A module of Triton's that it imports, and does not use, is gone in 3.7."""
    gone = "triton.tools.experimental_descriptor"
    sys.modules.setdefault(gone, ModuleType(gone))
    return module(FLASH_ATTN_TRITON, "flash_attn_triton.flash_attn_interface")
