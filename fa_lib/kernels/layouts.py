"""Kernels of other layouts behind f(q, k, v, ...) on (batch, heads, sequence, head_dim): heads last, packed, paged."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

NEIGHBOUR = 17  # rows of a sequence that is packed before each of the batch; in a cache, its keys beyond theirs
PAGE = 16  # keys of a page, as vLLM has them
LOUD = 64.0  # the value in places that a kernel must not read


def bshd(fn: Callable) -> Callable:
    """Adapt a kernel that takes and returns (batch, sequence, heads, head_dim). It gets contiguous tensors where ours
    are contiguous; others keep their strides.

    Returns:
        A kernel of q, k, v and o (batch, heads, sequence, head_dim).
    """

    def turned(x):
        return x.transpose(1, 2).contiguous() if x.is_contiguous() else x.transpose(1, 2)

    @wraps(fn)
    def kernel(q, k, v, **options):
        return heads_before_rows(fn(*map(turned, (q, k, v)), **options))

    return kernel


def heads_before_rows(o: Any) -> Any:
    """Turn what a kernel returns, o (batch, sequence, heads, head_dim) or o with more behind it, to (batch, heads,
    sequence, head_dim); anything else is as it was."""
    if isinstance(o, (tuple, list)) and o and isinstance(o[0], Tensor):
        return o[0].transpose(1, 2), *o[1:]
    return o.transpose(1, 2) if isinstance(o, Tensor) and o.ndim == 4 else o


def varlen(fn: Callable) -> Callable:
    """Adapt a kernel of packed sequences, called as flash-attn's `flash_attn_varlen_func`: fn(q, k, v, cu_seqlens_q,
    cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=, causal=, window_size=) on tensors (rows of all sequences,
    heads, head_dim); cu_seqlens, int32 (sequences + 1,), say where each begins.

    Each element of the batch becomes a sequence. Before each comes another sequence, NEIGHBOUR rows of LOUD, whose
    output is dropped.

    Returns:
        A kernel of q, k, v and o (batch, heads, sequence, head_dim).

    Raises:
        TypeError: at a call, where fn returns no tensor.
    """

    @wraps(fn)
    def kernel(q, k, v, **options):
        lengths = [(n, NEIGHBOUR) for n in (q.shape[2], k.shape[2], k.shape[2])]
        packed, starts = zip(*(_packed(x, n) for x, n in zip((q, k, v), lengths)))
        longest = [max(n) for n in lengths[:2]]
        o = _tensor(fn(*packed, *starts[:2], *longest, **_flash_attns(options)))
        outputs = [o[i : i + q.shape[2]] for i in starts[0][1::2].tolist()]
        return torch.stack(outputs).transpose(1, 2)

    return kernel


def paged(fn: Callable) -> Callable:
    """Adapt a kernel of a paged cache, called as flash-attn's `flash_attn_with_kvcache`: fn(q, k_cache, v_cache,
    cache_seqlens=, block_table=, softmax_scale=, causal=, window_size=) on q (batch, rows, heads, head_dim), caches
    (pages, PAGE, kv_heads, head_dim), lengths (batch,) and page numbers (batch, pages of one), both int32.

    Before each sequence of the batch comes another, with NEIGHBOUR keys more, whose output is dropped. The pages lie in
    reverse order, with an unused page between any two. The table is two pages longer than the longest sequence. All
    places outside the batch's sequences are LOUD. It has no gradients.

    Returns:
        A kernel of q, k, v and o (batch, heads, sequence, head_dim).

    Raises:
        TypeError: at a call, where fn returns no tensor.
    """

    @wraps(fn)
    def kernel(q, k, v, **options):
        batch, heads, n, _ = k.shape
        lengths = torch.tensor([n + NEIGHBOUR, n] * batch, dtype=torch.int32, device=q.device)
        own_pages, rows = -(-n // PAGE), -(-(n + NEIGHBOUR) // PAGE) + 2  # pages of the batch's sequence, of the table
        pages = 2 * len(lengths) * rows
        table = torch.arange(pages - 1, -1, -2, dtype=torch.int32, device=q.device).reshape(len(lengths), rows)
        caches = []
        for x in (k, v):
            cache = x.new_full((pages, PAGE, heads, x.shape[-1]), LOUD)
            own_rows = x.new_full((batch, own_pages * PAGE, heads, x.shape[-1]), LOUD)
            own_rows[:, :n] = x.detach().transpose(1, 2)
            cache[table[1::2, :own_pages].long()] = own_rows.unflatten(1, (own_pages, PAGE))
            caches.append(cache)
        queries = torch.stack((torch.zeros_like(q), q), 1).flatten(0, 1)  # (sequences, heads, rows, head_dim)
        settings = dict(cache_seqlens=lengths, block_table=table) | _flash_attns(options)
        o = _tensor(fn(queries.transpose(1, 2).contiguous(), *caches, **settings))
        return o[1::2].transpose(1, 2)

    return kernel


def _packed(x, lengths):
    """Pack sequences, a neighbour and one of the batch in turn: (rows, heads, features), and where each begins."""
    parts = []
    for sequence in x:
        rows = sequence.transpose(0, 1)  # (n, heads, features)
        parts += [rows.new_full((lengths[1], *rows.shape[1:]), LOUD), rows]
    starts = torch.tensor([0, *(len(part) for part in parts)], device=x.device).cumsum(0).to(torch.int32)
    return torch.cat(parts), starts


def _flash_attns(options):
    """Give options flash-attn's names; options that it does not have keep theirs."""
    options = dict(options)
    if options.get("window") is not None:
        options["window_size"] = tuple(-1 if side is None else side for side in options.pop("window"))
    return {"softmax_scale" if name == "scale" else name: x for name, x in options.items()}


def first_output(given: Any) -> Any:
    """Return the output of a kernel's result: the first element of a tuple or list, such as (o, lse), or the result."""
    return given[0] if isinstance(given, (tuple, list)) and given else given


def _tensor(output):
    o = first_output(output)
    if not isinstance(o, Tensor):
        raise TypeError(f"the kernel returns {type(o).__name__}, where a tensor is due")
    return o


LAYOUTS: dict[str, Callable[[Callable], Callable]] = {
    "bhsd": lambda fn: fn, "bshd": bshd, "varlen": varlen, "paged": paged,
}  # fmt: skip
