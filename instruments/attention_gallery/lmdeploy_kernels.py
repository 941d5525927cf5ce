"""LMDeploy's Triton kernels over a paged cache of K and V, which may have 8 or 4 bits: `lmdeploy_decode`,
`lmdeploy_prefill`, `lmdeploy_decode_int8`, `lmdeploy_decode_int4`."""

import logging
from enum import IntEnum
from functools import cache, partial
from types import SimpleNamespace

import torch
from torch import Tensor

from attention_gallery.adapters import HALF, Kernel, accepts, from_tokens, lengths, page_table, starts, tokens
from attention_gallery.catalogue import pinned
from attention_gallery.source_modules import module

KERNELS = ("utils", "turbo_quant", "fill_kv_cache", "flatten_kv_cache", "pagedattention", "flashattention")
FOLDER = "lmdeploy/pytorch/kernels/cuda"
LMDEPLOY = pinned("lmdeploy", "0.18.0")
PAGE = 64  # keys of a page: block_size in messages.py, line 557
Policy = IntEnum("QuantPolicy", {"NONE": 0, "INT4": 4, "INT8": 8, "FP8": 16, "FP8_E5M2": 17, "TURBO_QUANT": 42})
accepted = partial(accepts, "LMDeploy", HALF, gradients=False)


def _decoding(policy: Policy) -> Kernel:
    """Make the kernel flash_attn_with_kvcache, which decodes, one query at a time: it cuts the keys into parts. (With
    several queries in a call, pagedattention.py, line 363, reads one of each sequence alone.)"""

    @accepted(queries=1)
    def decode(q, k, v, causal=False, scale=None):
        pages, scales, table, sizes = _cache_of(k, v, policy)
        o = _files().pagedattention.flash_attn_with_kvcache(
            tokens(q), *pages, cache_seqlens=sizes, page_table=table, max_seqlen_q=1, softmax_scale=scale,
            k_scales_zeros=scales[0], v_scales_zeros=scales[1], quant_policy=policy,
        )  # fmt: skip
        return from_tokens(o, len(q))

    return decode


lmdeploy_decode = _decoding(Policy.NONE)
# 8 or 4 bits for K and V: fill_kv_cache gives each key of each head a scale and a zero point, in q's dtype
lmdeploy_decode_int8, lmdeploy_decode_int4 = _decoding(Policy.INT8), _decoding(Policy.INT4)


@accepted(tall=False)
def lmdeploy_prefill(q, k, v, causal=False, scale=None):
    """Fill the cache, make K and V contiguous again, and call LMDeploy's flash_attn_varlen_func."""
    batch, n_q, n_kv = q.shape[0], q.shape[2], k.shape[2]
    files, (pages, _, table, sizes) = _files(), _cache_of(k, v, Policy.NONE)
    room = -(-batch * n_kv // PAGE) * PAGE + PAGE  # one page more, as LMDeploy has it
    flat = files.flatten_kv_cache.flatten_kv_cache(
        *pages, sizes, table, start_loc=starts(batch, n_kv)[:-1], out_size=room, out_dtype=q.dtype,
        quant_policy=Policy.NONE, flatten_kv_layout="hsd",
    )  # fmt: skip
    o = files.flashattention.flash_attn_varlen_func(
        tokens(q), *flat, cu_seqlens_q=starts(batch, n_q), cu_seqlens_k=starts(batch, n_kv), max_seqlen_q=n_q,
        max_seqlen_k=n_kv, softmax_scale=scale, causal=causal, kv_layout="hsd",
    )  # fmt: skip
    return from_tokens(o, batch)


def _cache_of(k: Tensor, v: Tensor, policy: Policy) -> tuple[list[Tensor], list[Tensor | None], Tensor, Tensor]:
    """Make a cache as cache_engine/schema.py lays it out, and let LMDeploy fill it with k and v (batch, kv_heads, n_kv,
    head_dim).

    Returns:
        pages: K and V, each (pages, PAGE, kv_heads, head_dim), or half as wide in 4 bits.
        scales: each (pages, PAGE, kv_heads, 2), scale and zero point; or None.
        table: int32 (batch, pages of a sequence). lengths: int32 (batch,).
    """
    (batch, kv_heads, n_kv, d), table = k.shape, page_table(k, PAGE)
    shape, bits = (table.numel(), PAGE, kv_heads), policy is not Policy.NONE
    dtype, width = torch.uint8 if bits else k.dtype, d // 2 if policy is Policy.INT4 else d
    pages = [torch.zeros(*shape, width, dtype=dtype) for _ in "kv"]
    scales = [torch.zeros(*shape, 2, dtype=k.dtype) if bits else None for _ in "kv"]
    sizes = lengths(batch, n_kv)
    _files().fill_kv_cache.fill_kv_cache(
        tokens(k), tokens(v), *pages, starts(batch, n_kv)[:-1], sizes, kv_seq_length=sizes, max_q_seq_length=n_kv,
        block_offsets=table, k_scales_zeros=scales[0], v_scales_zeros=scales[1], quant_policy=policy,
    )  # fmt: skip
    return pages, scales, table, sizes


def _files() -> SimpleNamespace:
    """Return LMDeploy's files of kernels by name, with nothing left of the GPU of the call before."""
    files = _imported()
    files.utils.get_device_props.cache_clear()
    return files


@cache
def _imported() -> SimpleNamespace:
    stubs = {"lmdeploy.messages": {"QuantPolicy": Policy}, "lmdeploy.utils": {"get_logger": logging.getLogger}}
    package = FOLDER.replace("/", ".")
    return SimpleNamespace(**{name: module(LMDEPLOY, f"{package}.{name}", stubs) for name in KERNELS})
