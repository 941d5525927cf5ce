"""Conch's Triton kernels over a paged cache of K and V: `conch_paged` decodes, `conch_varlen` takes any number of
queries."""

from functools import partial
from types import ModuleType

from attention_gallery.adapters import HALF, accepts, from_tokens, lengths, page_table, pages, starts, tokens
from attention_gallery.catalogue import pinned
from attention_gallery.source_modules import module

CONCH = pinned("conch-triton-kernels", "1.3")
PAGE = 32  # keys of a page: the caller chooses; kernels/attention/paged_attention.py, line 495, takes 32 to be usual
accepted = partial(accepts, "Conch", HALF, gradients=False)


@accepted(queries=1)
def conch_paged(q, k, v, causal=False, scale=None):
    """Call conch.ops.attention.paged_attention, one query at a time: it cuts the keys into parts by their number."""
    queries, sizes = q[:, :, 0].contiguous(), lengths(len(q), k.shape[2])  # (batch, heads, head_dim)
    attention = _file("paged_attention").paged_attention
    return attention(queries, pages(k, PAGE), pages(v, PAGE), page_table(k, PAGE), sizes, scale=scale)[:, :, None]


@accepted()
def conch_varlen(q, k, v, causal=False, scale=None):
    """Call conch.ops.attention.varlen_attention. It cuts the keys into parts for one query and 4,096 keys or more.
    Refused: causal with n_q unlike n_kv, and more than one query: varlen_attention.py, line 340, compares the number of
    a query among the queries with that of a key."""
    batch, n_q, n_kv = q.shape[0], q.shape[2], k.shape[2]
    if causal and n_q not in (1, n_kv):
        raise NotImplementedError(
            f"Conch aligns its causal mask top-left; it needs n_q = n_kv, or one query; got {n_q} and {n_kv}"
        )
    o = _file("varlen_attention").varlen_attention(
        tokens(q), pages(k, PAGE), pages(v, PAGE), starts(batch, n_q), n_q, lengths(batch, n_kv), n_kv,
        page_table(k, PAGE), causal=causal, scale=scale,
    )  # fmt: skip
    return from_tokens(o, batch)


def _file(name: str) -> ModuleType:
    return module(CONCH, f"conch.ops.attention.{name}")
