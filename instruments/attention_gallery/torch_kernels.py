"""Torch's own attention kernels, on CPU and CUDA: scaled_dot_product_attention by backend, flex_attention, varlen."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from attention_gallery.adapters import seen, swapped
from fa_lib import kernels


def torch_flash(q, k, v, causal=False, scale=None, mask=None):
    """Call scaled_dot_product_attention restricted to FLASH_ATTENTION, as `kernels.flash` does."""
    return kernels.flash(q, k, v, causal=causal, scale=scale, mask=mask)


def _by_backend(q, k, v, causal=False, scale=None, mask=None, *, backend):
    """Call scaled_dot_product_attention by one backend. Its `is_causal` aligns top-left and goes with no mask, so that
    other lengths, and calls with a mask, get the causal mask as a tensor."""
    own = causal and mask is None and q.shape[2] == k.shape[2]
    mask = None if own else seen(q, k, causal, mask)
    with sdpa_kernel(backend):
        shared_heads = q.shape[1] != k.shape[1]
        return scaled_dot_product_attention(q, k, v, mask, is_causal=own, scale=scale, enable_gqa=shared_heads)


def torch_cudnn(q, k, v, causal=False, scale=None):
    """Call scaled_dot_product_attention restricted to CUDNN_ATTENTION, NVIDIA's library; on CUDA alone."""
    return _by_backend(q, k, v, causal, scale, backend=SDPBackend.CUDNN_ATTENTION)


def torch_efficient(q, k, v, causal=False, scale=None):
    """Call scaled_dot_product_attention restricted to EFFICIENT_ATTENTION, xformers' CUTLASS kernel; on CUDA alone."""
    return _by_backend(q, k, v, causal, scale, backend=SDPBackend.EFFICIENT_ATTENTION)


def torch_math(q, k, v, causal=False, scale=None, mask=None):
    """Call scaled_dot_product_attention restricted to MATH, which computes 16-bit inputs in FP32."""
    return _by_backend(q, k, v, causal, scale, mask, backend=SDPBackend.MATH)


def torch_math_16_bit(q, k, v, causal=False, scale=None, mask=None):
    """Call MATH with torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True): S and P stay in 16 bits, on CPU
    too."""
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        return torch_math(q, k, v, causal, scale, mask)
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


@cache
def _compiled():
    return torch.compile(flex_attention, dynamic=False)


@cache
def _sees(offset: int) -> Callable:
    """Make a causal mask_mod; the same function for the same offset, so that Dynamo knows it again."""
    return lambda batch, head, i, j: i + offset >= j


def flex(fn, q, k, v, causal, scale, **options):
    """Call fn, flex_attention as it is or compiled. A causal mask is a BlockMask, aligned bottom-right."""
    n_q, n_kv = q.shape[2], k.shape[2]
    mask = create_block_mask(_sees(n_kv - n_q), None, None, n_q, n_kv, device=q.device) if causal else None
    return fn(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1], **options)


def torch_flex(q, k, v, causal=False, scale=None):
    """Call flex_attention without torch.compile: S and P are written out."""
    return flex(flex_attention, q, k, v, causal, scale)


def torch_flex_compiled(q, k, v, causal=False, scale=None):
    """Call flex_attention compiled by inductor, into C++ on CPU and into Triton on CUDA: seconds for each new shape.
    Refused: on a CPU, where an input requires a gradient or the CPU has no AVX2."""
    if q.device.type == "cpu" and any(x.requires_grad for x in (q, k, v)):
        raise NotImplementedError("flex_attention compiled for CPU has no gradients")
    if q.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        raise NotImplementedError("inductor compiles no flex_attention for a CPU without AVX2 (ATEN_CPU_CAPABILITY)")
    with torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=10_000):
        return flex(_compiled(), q, k, v, causal, scale)


def torch_varlen(q, k, v, causal=False, scale=None):
    """Call torch.nn.attention.varlen, sequences of one length packed one behind another; causal aligns bottom-right."""
    from torch.nn.attention.varlen import varlen_attn

    (batch, heads, n_q, d), n_kv = q.shape, k.shape[2]
    q_rows, k_rows, v_rows = (swapped(x).reshape(-1, x.shape[1], d) for x in (q, k, v))  # (batch * n, heads, d)
    q_ends, k_ends = (torch.arange(0, batch * n + 1, n, dtype=torch.int32, device=q.device) for n in (n_q, n_kv))
    has = inspect.signature(varlen_attn).parameters  # they differ between torch 2.11 and 2.13
    how: dict[str, Any] = dict(is_causal=causal) if "is_causal" in has else dict(window_size=(-1, 0 if causal else -1))
    if scale is not None:
        how["scale"] = scale
    o = varlen_attn(q_rows, k_rows, v_rows, q_ends, k_ends, n_q, n_kv, **how)
    assert isinstance(o, Tensor)  # a pair only where return_aux asks for it
    return swapped(o.reshape(batch, n_q, heads, d))
