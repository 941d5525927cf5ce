"""LMDeploy's Triton kernels over a paged cache of K and V, which may have 8 or 4 bits: `lmdeploy_decode`,
`lmdeploy_prefill`, `lmdeploy_decode_int8`, `lmdeploy_decode_int4`."""

import logging
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from types import SimpleNamespace

import torch
from torch import Tensor

from attention_gallery.adapters import only_dtypes, queries_at_a_time, softmax_scale, without_gradients
from attention_gallery.catalogue import pinned
from attention_gallery.source_modules import module

KERNELS = ("utils", "turbo_quant", "fill_kv_cache", "flatten_kv_cache", "pagedattention", "flashattention")
FOLDER = "lmdeploy/pytorch/kernels/cuda"
LMDEPLOY = pinned("lmdeploy", "0.18.0")
PAGE = 64  # keys of a page: block_size in messages.py, line 557
Policy = IntEnum("QuantPolicy", {"NONE": 0, "INT4": 4, "INT8": 8, "FP8": 16, "FP8_E5M2": 17, "TURBO_QUANT": 42})


def lmdeploy_decode(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """Call LMDeploy's flash_attn_with_kvcache, which decodes, one query at a time: it cuts the keys into parts.

    Args:
        q: (batch, heads, n_q, head_dim), BF16 or FP16.
        k, v: (batch, kv_heads, n_kv, head_dim).

    Raises:
        NotImplementedError: an input requires a gradient, or a query would see no key.
    """
    return _decode(q, k, v, causal, scale, Policy.NONE)


def lmdeploy_decode_int8(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """Call the same with 8 bits for K and V, quant_policy=8: fill_kv_cache gives each key of each head a scale and a
    zero point, in q's dtype.

    Args:
        q, k, v: as `lmdeploy_decode`. (With several queries in a call, pagedattention.py, line 363, reads one of each
            sequence alone.)

    Raises:
        NotImplementedError: as `lmdeploy_decode`.
    """
    return _decode(q, k, v, causal, scale, Policy.INT8)


def lmdeploy_decode_int4(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """Call the same with 4 bits for K and V, quant_policy=4.

    Args:
        q, k, v: as `lmdeploy_decode`.

    Raises:
        NotImplementedError: as `lmdeploy_decode`.
    """
    return _decode(q, k, v, causal, scale, Policy.INT4)


def lmdeploy_prefill(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """Fill the cache, make K and V contiguous again, and call LMDeploy's flash_attn_varlen_func.

    Args:
        q: (batch, heads, n_q, head_dim), BF16 or FP16.
        k, v: (batch, kv_heads, n_kv, head_dim).

    Raises:
        NotImplementedError: an input requires a gradient, or causal with more queries than keys.
    """
    _supported(q, k, v)
    batch, _, n_q, _ = q.shape
    n_kv = k.shape[2]
    if causal and n_q > n_kv:
        raise NotImplementedError(f"causal with {n_q} queries and {n_kv} keys: a query would see no key")
    files, paged = _files(), _cache_of(k, v, Policy.NONE)
    starts = torch.arange(batch + 1, dtype=torch.int32)
    room = -(-batch * n_kv // PAGE) * PAGE + PAGE  # one page more, as LMDeploy has it
    flat = files.flatten_kv_cache.flatten_kv_cache(
        *paged.pages, paged.lengths, paged.table, start_loc=starts[:-1] * n_kv, out_size=room, out_dtype=q.dtype,
        quant_policy=Policy.NONE, flatten_kv_layout="hsd",
    )  # fmt: skip
    o = files.flashattention.flash_attn_varlen_func(
        _tokens(q), *flat, cu_seqlens_q=starts * n_q, cu_seqlens_k=starts * n_kv, max_seqlen_q=n_q, max_seqlen_k=n_kv,
        softmax_scale=softmax_scale(q, scale), causal=causal, kv_layout="hsd",
    )  # fmt: skip
    return o.unflatten(0, (batch, n_q)).transpose(1, 2)


def _decode(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, policy: Policy) -> Tensor:
    _supported(q, k, v)
    return queries_at_a_time(partial(_one_query, policy=policy), 1)(q, k, v, causal, scale)


def _one_query(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, policy: Policy) -> Tensor:
    """Decode with one query of each sequence, (batch, heads, 1, head_dim)."""
    batch, _, n_q, _ = q.shape
    paged = _cache_of(k, v, policy)
    o = _files().pagedattention.flash_attn_with_kvcache(
        _tokens(q), *paged.pages, cache_seqlens=paged.lengths, page_table=paged.table, max_seqlen_q=n_q,
        softmax_scale=softmax_scale(q, scale), k_scales_zeros=paged.scales[0], v_scales_zeros=paged.scales[1],
        quant_policy=policy,
    )  # fmt: skip
    return o.unflatten(0, (batch, n_q)).transpose(1, 2)


@dataclass(frozen=True)
class _Paged:
    """A filled cache.

    Attributes:
        pages: K and V, each (pages, PAGE, kv_heads, head_dim), or half as wide in 4 bits.
        scales: each (pages, PAGE, kv_heads, 2), scale and zero point; or None.
        table: int32 (batch, pages of a sequence).
        lengths: int32 (batch,).
    """

    pages: list[Tensor]
    scales: list[Tensor | None]
    table: Tensor
    lengths: Tensor


def _cache_of(k: Tensor, v: Tensor, policy: Policy) -> _Paged:
    """Make a cache as cache_engine/schema.py lays it out, and let LMDeploy fill it; k, v: (batch, kv_heads, n_kv,
    head_dim)."""
    batch, kv_heads, n_kv, _ = k.shape
    count = -(-n_kv // PAGE)
    pages, scales = [], []
    for x in (k, v):
        width = x.shape[3] // 2 if policy is Policy.INT4 else x.shape[3]
        dtype = x.dtype if policy is Policy.NONE else torch.uint8
        shape = (batch * count, PAGE, kv_heads)
        pages.append(torch.zeros(*shape, width, dtype=dtype))
        scales.append(None if policy is Policy.NONE else torch.zeros(*shape, 2, dtype=x.dtype))
    table = torch.arange(batch * count, dtype=torch.int32).reshape(batch, count)
    lengths = torch.full((batch,), n_kv, dtype=torch.int32)
    starts = torch.arange(batch, dtype=torch.int32) * n_kv
    _files().fill_kv_cache.fill_kv_cache(
        _tokens(k), _tokens(v), *pages, starts, lengths, kv_seq_length=lengths, max_q_seq_length=n_kv,
        block_offsets=table, k_scales_zeros=scales[0], v_scales_zeros=scales[1], quant_policy=policy,
    )  # fmt: skip
    return _Paged(pages, scales, table, lengths)


def _tokens(x: Tensor) -> Tensor:
    """Turn (batch, heads, n, head_dim) into (batch * n, heads, head_dim)."""
    return x.transpose(1, 2).flatten(0, 1).contiguous()


def _supported(q: Tensor, k: Tensor, v: Tensor) -> None:
    without_gradients(q, k, v, "LMDeploy's kernels have no gradients")
    only_dtypes(q, (torch.bfloat16, torch.float16), "LMDeploy")


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
