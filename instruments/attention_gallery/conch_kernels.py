"""Conch's Triton kernels over a paged cache of K and V: `conch_paged` decodes, `conch_varlen` takes any number of
queries."""

from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from attention_gallery.adapters import (
    HALF,
    accepts,
    from_tokens,
    lengths,
    padded,
    queries_at_a_time,
    starts,
    swapped,
    tokens,
)
from attention_gallery.catalogue import pinned
from attention_gallery.source_modules import module

CONCH = pinned("conch-triton-kernels", "1.3")
PAGE = 32  # keys of a page: the caller chooses; kernels/attention/paged_attention.py, line 495, takes 32 to be usual
ACCEPTED: dict[str, Any] = dict(dtypes=HALF, named="Conch", no_gradients="Conch's kernels have no gradients")


@accepts(**ACCEPTED)
def conch_paged(q, k, v, causal=False, scale=None):
    """Call conch.ops.attention.paged_attention, one query at a time: it cuts the keys into parts by their number."""
    return queries_at_a_time(_paged)(q, k, v, causal, scale)


def _paged(q, k, v, causal, scale):
    """Call it with one query of each sequence, (batch, heads, 1, head_dim)."""
    pages, table, sizes = _cache_of(k, v)
    o = _file("paged_attention").paged_attention(q[:, :, 0].contiguous(), *pages, table, sizes, scale=scale)
    return o[:, :, None]


@accepts(**ACCEPTED)
def conch_varlen(q, k, v, causal=False, scale=None):
    """Call conch.ops.attention.varlen_attention. It cuts the keys into parts for one query and 4,096 keys or more.

    Raises:
        NotImplementedError: causal with n_q unlike n_kv, and more than one query: varlen_attention.py, line 340,
            compares the number of a query among the queries with that of a key.
    """
    batch, n_q, n_kv = q.shape[0], q.shape[2], k.shape[2]
    if causal and n_q not in (1, n_kv):
        raise NotImplementedError(
            f"Conch aligns its causal mask top-left; it needs n_q = n_kv, or one query; got {n_q} and {n_kv}"
        )
    pages, table, sizes = _cache_of(k, v)
    o = _file("varlen_attention").varlen_attention(
        tokens(q), *pages, starts(batch, n_q), n_q, sizes, n_kv, table, causal=causal, scale=scale
    )
    return from_tokens(o, batch)


def _cache_of(k: Tensor, v: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """Lay K and V (batch, kv_heads, n_kv, head_dim) out in pages.

    Returns:
        ([K, V], each (pages, PAGE, kv_heads, head_dim); table of pages, int32 (batch, pages of a sequence); lengths,
        int32 (batch,)).
    """
    batch, _, n_kv, _ = k.shape
    count = -(-n_kv // PAGE)
    pages = [swapped(padded(x, PAGE)).unflatten(1, (count, PAGE)).flatten(0, 1).contiguous() for x in (k, v)]
    return pages, torch.arange(batch * count, dtype=torch.int32).reshape(batch, count), lengths(batch, n_kv)


@cache
def _file(name: str) -> ModuleType:
    return module(CONCH, f"conch.ops.attention.{name}")
