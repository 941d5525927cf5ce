"""FlashInfer's CUDA kernels on an A100: batches that decode, prefill and share a prefix, over a paged cache of K and V.

q, k, v and o are (batch, heads, n, head_dim) in BF16 or FP16; heads of K and V may be fewer. Each element of the batch
is a request. Line numbers are those of flashinfer-python 0.7.2.post1.
"""

from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor

from attention_gallery.adapters import only_dtypes, queries_at_a_time, softmax_scale, without_gradients
from attention_gallery.flashinfer_cuda_kernels import (
    HEAD_DIMS,
    TYPES,
    Kernels,
    decode_kernels,
    prefill_kernels,
    tile_of,
)
from ptx_machine.device import GPU

PAGE = 16  # keys of a page, as in the wrappers' docstrings (decode.py, line 1159)
LEAST_KEYS = 128  # of a part: scheduler.cuh, lines 199 and 579
GROUPS = (1, 2, 3, 4, 6, 8, 16)  # heads that share K and V, for decoding without the matrix units: utils.cuh, line 142


@dataclass(frozen=True)
class Pages:
    """A paged cache.

    Attributes:
        data: (pages, 2, PAGE, kv_heads, head_dim), K and V, layout NHD. Places that hold no key are NaN.
        indptr: int32 (requests + 1,), the first page of each request in `indices`.
        indices: int32, the pages.
        last: int32 (requests,), keys of the last page.
    """

    data: Tensor
    indptr: Tensor
    indices: Tensor
    last: Tensor


@dataclass(frozen=True)
class Work:
    """What the blocks do, one entry each, and where partial results go.

    Attributes:
        requests, tiles, parts: of each block its request, its tile of Q, and its part of the keys.
        keys: of a part.
        split: whether there are partial results to merge.
        counts: number of parts of each request.
    """

    requests: list[int]
    tiles: list[int]
    parts: list[int]
    keys: int
    split: bool
    counts: list[int]


def flashinfer_decode(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None, *, gpu: str | GPU = "A100"
) -> Tensor:
    """Call BatchDecodeWithPagedKVCacheWrapper, with its defaults (no matrix units), with one query in each call.

    Raises:
        NotImplementedError: an input requires a gradient, another dtype or head_dim, another number of heads that share
            K and V, or a query that would see no key.
    """
    gpu = GPU.of(gpu)
    _accepted(q, k, v)
    if q.shape[1] // k.shape[1] not in GROUPS:
        raise NotImplementedError(
            f"FlashInfer decodes with {GROUPS} heads that share K and V, unless it is told to use the matrix units"
        )

    def call(q, k, v, causal, scale):
        return _decode(q, k, v, softmax_scale(q, scale), gpu)

    return queries_at_a_time(call, 1)(q, k, v, causal, scale)


def flashinfer_prefill(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None, *, gpu: str | GPU = "A100"
) -> Tensor:
    """Call BatchPrefillWithPagedKVCacheWrapper with its defaults: use_fp16_qk_reduction=False, and parts of the keys
    where blocks are few.

    Raises:
        NotImplementedError: an input requires a gradient, another dtype or head_dim, or causal with more queries than
            keys.
    """
    _accepted(q, k, v)
    if causal and q.shape[2] > k.shape[2]:
        raise NotImplementedError(f"causal with {q.shape[2]} queries and {k.shape[2]} keys: a query would see no key")
    lengths = [q.shape[2]] * q.shape[0]
    return _prefill(q, _paged(k, v), lengths, causal, softmax_scale(q, scale), GPU.of(gpu))[0]


def flashinfer_cascade(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None, *, gpu: str | GPU = "A100"
) -> Tensor:
    """Call MultiLevelCascadeAttentionWrapper with two levels: the first half of the keys as a prefix, and the others.
    With a causal mask the prefix is what all queries see, at most half of the keys.

    Raises:
        NotImplementedError: as flashinfer_prefill, or there is no prefix.
    """
    gpu = GPU.of(gpu)
    _accepted(q, k, v)
    n_q, n_kv = q.shape[2], k.shape[2]
    prefix = min(n_kv // 2, n_kv - n_q) if causal else n_kv // 2
    if prefix < 1:
        raise NotImplementedError(f"{n_q} queries and {n_kv} keys, causal={causal}: they share no prefix")
    scale, lengths = softmax_scale(q, scale), [n_q] * q.shape[0]
    rest, shared = (_paged(k[:, :, part], v[:, :, part]) for part in (slice(prefix, None), slice(prefix)))
    o, lse, kernels = _prefill(q, rest, lengths, causal, scale, gpu)
    other, other_lse, _ = _prefill(q, shared, lengths, False, scale, gpu)
    rows, other_rows = (_rows(x) for x in (o, other))  # (all queries, heads, head_dim)
    kernels.merge_in_place(rows, lse, other_rows, other_lse)
    return _unrows(rows, q.shape[0])


def _decode(q: Tensor, k: Tensor, v: Tensor, scale: float, gpu: GPU) -> Tensor:
    """Decode one query of each request: decode.py, line 1144, and csrc/batch_decode.cu, line 129."""
    (batch, heads, _, d), kv_heads = q.shape, k.shape[1]
    kernels = decode_kernels(d, heads // kv_heads, q.dtype, gpu)
    pages = _paged(k, v)
    work = _plan_decode(pages.indptr.diff().tolist(), kv_heads, kernels.blocks())
    rows = _rows(q)  # (batch, heads, head_dim)
    o = torch.full_like(rows, nan)
    values = _values(rows, pages, work, scale)
    starts = _starts(work.counts)
    values |= dict(o_indptr=starts)
    _launch(kernels, values, work, kv_heads, o, None, starts)
    return _unrows(o, batch)


def _prefill(
    q: Tensor, pages: Pages, lengths: list[int], causal: bool, scale: float, gpu: GPU
) -> tuple[Tensor, Tensor, Kernels]:
    """Attend with all queries of each request: prefill.py, line 2570, and csrc/batch_prefill_paged.cuh, line 18.

    Returns:
        (o (batch, heads, n_q, head_dim), log-sum-exp FP32 (all queries, heads) to base 2, the kernels).
    """
    (batch, heads, _, d), kv_heads = q.shape, pages.data.shape[3]
    group = heads // kv_heads
    tile = tile_of(sum(lengths) * group // batch, d)
    kernels = prefill_kernels(d, tile, causal, q.dtype, gpu)
    work = _plan_prefill(lengths, pages.indptr.diff().tolist(), group, tile, 2 * gpu.processors // kv_heads)
    rows = _rows(q)  # (all queries, heads, head_dim)
    o, lse = torch.full_like(rows, nan), torch.full(rows.shape[:2], nan)
    merged = _starts([count for count, n in zip(work.counts, lengths) for _ in range(n)])  # (all queries + 1,)
    values = _values(rows, pages, work, scale) | dict(
        q_indptr=_starts(lengths), qo_tile_indices=_int32(work.tiles), group_size=group,
        o_indptr=_starts([count * n for count, n in zip(work.counts, lengths)]), max_total_num_rows=len(rows),
        merge_indptr=merged if work.split else None,
    )  # fmt: skip
    _launch(kernels, values, work, kv_heads, o, lse, merged)
    return _unrows(o, batch), lse, kernels


def _launch(kernels: Kernels, values: dict, work: Work, kv_heads: int, o: Tensor, lse: Tensor | None, starts: Tensor):
    """Run the attention kernel, and the one that merges where keys are split. Partial O has o's type (16 bits)."""
    grid = (len(work.requests), kv_heads) if "qo_tile_indices" not in values else (len(work.requests), 1, kv_heads)
    if not work.split:
        kernels.launch(grid, values | dict(o=o, lse=lse, partition_kv=0))
        return
    count = int(starts[-1])
    parts = torch.full((count, *o.shape[1:]), nan, dtype=o.dtype)
    lse_parts = torch.full((count, o.shape[1]), nan)
    kernels.launch(grid, values | dict(o=parts, lse=lse_parts, partition_kv=1))
    kernels.merge(parts, lse_parts, starts, o, lse)


def _plan_decode(pages: list[int], kv_heads: int, most: int) -> Work:
    """Split the keys of requests with so many pages among at most so many blocks: scheduler.cuh, line 150."""
    keys = max(LEAST_KEYS // PAGE, 1)
    if len(pages) * kv_heads >= most:
        keys, split = max(*pages, 1, 1), False
    else:
        high = max(pages)
        while keys < high:
            middle = (keys + high) // 2
            if sum(-(-n // middle) for n in pages) * kv_heads > most:
                keys = middle + 1
            else:
                high = middle
        split = sum(-(-max(n, 1) // keys) for n in pages) != len(pages)
    counts = [-(-max(n, 1) // keys) for n in pages]
    requests = [request for request, count in enumerate(counts) for _ in range(count)]
    parts = [part for count in counts for part in range(count)]
    return Work(requests, [0] * len(parts), parts, keys * PAGE, split, counts)


def _plan_prefill(lengths: list[int], pages: list[int], group: int, tile: int, most: int) -> Work:
    """Split tiles of Q and keys among at most so many blocks, one head of K and V each: scheduler.cuh, lines 101 and
    545."""
    tiles = [-(-n * group // tile) for n in lengths]
    keys, high = max(LEAST_KEYS // PAGE, 1), max(*pages, 1, 1)
    longest = high
    while keys < high:
        middle = (keys + high) // 2
        if sum(rows * -(-max(n, 1) // middle) for rows, n in zip(tiles, pages)) > most:
            keys = middle + 1
        else:
            high = middle
    counts = [-(-max(n, 1) // keys) for n in pages]
    blocks = [
        (request, row, part)
        for request, (rows, count) in enumerate(zip(tiles, counts)) for row in range(rows) for part in range(count)
    ]  # fmt: skip
    requests, rows, parts = (list(each) for each in zip(*blocks))
    return Work(requests, rows, parts, keys * PAGE, keys < longest, counts)


def _values(rows: Tensor, pages: Pages, work: Work, scale: float) -> dict:
    """The parameters that both kernels have, field -> value; rows: Q (all queries, heads, head_dim)."""
    data = pages.data
    strides = dict(stride_page=data.stride(0), stride_n=data.stride(2), stride_h=data.stride(3))
    strides |= {f"v_{name}": stride for name, stride in strides.items()}
    paged = strides | dict(
        page_size=PAGE, num_heads=data.shape[3], head_dim=data.shape[4], batch_size=len(pages.last),
        k_data=data[:, 0], v_data=data[:, 1], indices=pages.indices, indptr=pages.indptr, last_page_len=pages.last,
    )  # fmt: skip
    return {f"paged_kv.{name}": value for name, value in paged.items()} | dict(
        q=rows, num_qo_heads=rows.shape[1], q_stride_n=rows.stride(0), q_stride_h=rows.stride(1), window_left=-1,
        sm_scale=float(scale), padded_batch_size=len(work.requests), request_indices=_int32(work.requests),
        kv_tile_indices=_int32(work.parts), kv_chunk_size_ptr=_int32([work.keys]),
    )  # fmt: skip


def _paged(k: Tensor, v: Tensor) -> Pages:
    """Lay K and V (batch, kv_heads, n, head_dim) out in pages, one request behind the other."""
    batch, kv_heads, n, d = k.shape
    each = -(-n // PAGE)
    data = k.new_full((batch, each * PAGE, 2, kv_heads, d), nan)
    data[:, :n] = torch.stack([x.transpose(1, 2) for x in (k, v)], 2)
    data = data.view(batch * each, PAGE, 2, kv_heads, d).transpose(1, 2).contiguous()  # (pages, 2, PAGE, kv_heads, d)
    return Pages(data, _starts([each] * batch), _int32(range(batch * each)), _int32([(n - 1) % PAGE + 1] * batch))


def _rows(x: Tensor) -> Tensor:
    """Lay queries (batch, heads, n, head_dim) out as (batch * n, heads, head_dim)."""
    return x.transpose(1, 2).flatten(0, 1).contiguous()


def _unrows(x: Tensor, batch: int) -> Tensor:
    """Lay (batch * n, heads, head_dim) out as (batch, heads, n, head_dim)."""
    return x.unflatten(0, (batch, -1)).transpose(1, 2)


def _starts(counts: list[int]) -> Tensor:
    """Sum counts up, int32 (len(counts) + 1,), from 0."""
    return torch.tensor([0, *counts]).cumsum(0).to(torch.int32)


def _int32(values) -> Tensor:
    return torch.tensor([*values], dtype=torch.int32)


def _accepted(q: Tensor, k: Tensor, v: Tensor) -> None:
    without_gradients(q, k, v, "FlashInfer's kernels have no gradients")
    only_dtypes(q, tuple(TYPES), "FlashInfer")
    if q.shape[-1] not in HEAD_DIMS:
        raise NotImplementedError(
            f"FlashInfer merges parts with head_dim {HEAD_DIMS} (and 512, not built here); {q.shape[-1]} came"
        )
