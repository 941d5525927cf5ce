"""Conch's Triton kernels over a paged cache of K and V: `conch_paged` decodes, `conch_varlen` takes any number of
queries."""

from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from attention_gallery.adapters import only_dtypes, queries_at_a_time, softmax_scale, without_gradients
from attention_gallery.catalogue import pinned
from attention_gallery.source_modules import module

CONCH = pinned("conch-triton-kernels", "1.3")
PAGE = 32  # keys of a page: the caller chooses; kernels/attention/paged_attention.py, line 495, takes 32 to be usual


def conch_paged(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """Call conch.ops.attention.paged_attention, one query at a time: it cuts the keys into parts by their number.

    Args:
        q: (batch, heads, n_q, head_dim), BF16 or FP16.
        k, v: (batch, kv_heads, n_kv, head_dim).

    Raises:
        NotImplementedError: an input requires a gradient, or a query would see no key.
    """
    _supported(q, k, v)
    return queries_at_a_time(_paged, 1)(q, k, v, causal, scale)


def _paged(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    """Call it with one query of each sequence, (batch, heads, 1, head_dim)."""
    pages, table, lengths = _cache_of(k, v)
    fn = _file("paged_attention").paged_attention
    o = fn(q[:, :, 0].contiguous(), *pages, table, lengths, scale=softmax_scale(q, scale))  # (batch, heads, head_dim)
    return o[:, :, None]


def conch_varlen(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """Call conch.ops.attention.varlen_attention. It cuts the keys into parts for one query and 4,096 keys or more.

    Args:
        q: (batch, heads, n_q, head_dim), BF16 or FP16.
        k, v: (batch, kv_heads, n_kv, head_dim).

    Raises:
        NotImplementedError: an input requires a gradient, or causal with n_q unlike n_kv, and more than one query:
            varlen_attention.py, line 340, compares the number of a query among the queries with that of a key.
    """
    _supported(q, k, v)
    batch, _, n_q, _ = q.shape
    n_kv = k.shape[2]
    if causal and n_q not in (1, n_kv):
        raise NotImplementedError(
            f"Conch aligns its causal mask top-left; it needs n_q = n_kv, or one query; got {n_q} and {n_kv}"
        )
    pages, table, lengths = _cache_of(k, v)
    o = _file("varlen_attention").varlen_attention(
        q.transpose(1, 2).flatten(0, 1).contiguous(), *pages, torch.arange(batch + 1, dtype=torch.int32) * n_q, n_q,
        lengths, n_kv, table, causal=causal, scale=softmax_scale(q, scale),
    )  # fmt: skip
    return o.unflatten(0, (batch, n_q)).transpose(1, 2)


def _cache_of(k: Tensor, v: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """Lay K and V (batch, kv_heads, n_kv, head_dim) out in pages.

    Returns:
        ([K, V], each (pages, PAGE, kv_heads, head_dim); table of pages, int32 (batch, pages of a sequence); lengths,
        int32 (batch,)).
    """
    batch, _, n_kv, _ = k.shape
    count = -(-n_kv // PAGE)
    more = count * PAGE - n_kv
    whole = [torch.nn.functional.pad(x, (0, 0, 0, more)).transpose(1, 2) for x in (k, v)]
    pages = [x.unflatten(1, (count, PAGE)).flatten(0, 1).contiguous() for x in whole]
    table = torch.arange(batch * count, dtype=torch.int32).reshape(batch, count)
    return pages, table, torch.full((batch,), n_kv, dtype=torch.int32)


def _supported(q: Tensor, k: Tensor, v: Tensor) -> None:
    without_gradients(q, k, v, "Conch's kernels have no gradients")
    only_dtypes(q, (torch.bfloat16, torch.float16), "Conch")


@cache
def _file(name: str) -> ModuleType:
    return module(CONCH, f"conch.ops.attention.{name}")
