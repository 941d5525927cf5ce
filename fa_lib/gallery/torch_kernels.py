"""Torch's own attention kernels on CPU: scaled_dot_product_attention by backend, and flex_attention."""

from functools import cache

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fa_lib import kernels
from fa_lib.gallery.adapters import visible


def torch_flash(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """scaled_dot_product_attention held to FLASH_ATTENTION, as `kernels.flash`."""
    return kernels.flash(q, k, v, causal=causal, scale=scale)


def torch_math(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """scaled_dot_product_attention held to MATH, which computes 16-bit inputs in FP32."""
    mask = visible(q.shape[2], k.shape[2]) if causal else None
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


def torch_math_16_bit(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """MATH with torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True): S and P stay in 16 bits, on CPU too."""
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        return torch_math(q, k, v, causal, scale)
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


@cache
def _compiled():
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _flex(fn, q, k, v, causal, scale):
    """fn: flex_attention, as it is or compiled."""
    from torch.nn.attention.flex_attention import create_block_mask

    mask, n_q, n_kv = None, q.shape[2], k.shape[2]
    if causal:

        def seen(batch, head, i, j):
            return i + (n_kv - n_q) >= j

        mask = create_block_mask(seen, None, None, n_q, n_kv, device="cpu")
    return fn(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


def torch_flex(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """flex_attention without torch.compile: S and P are written out."""
    from torch.nn.attention.flex_attention import flex_attention

    return _flex(flex_attention, q, k, v, causal, scale)


def torch_flex_compiled(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """flex_attention compiled by inductor, into C++ on CPU: seconds for each new shape, and no gradients there."""
    if any(x.requires_grad for x in (q, k, v)):
        raise NotImplementedError("flex_attention compiled for CPU has no gradients")
    with torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=10_000):
        return _flex(_compiled(), q, k, v, causal, scale)
