"""FlashInfer's CUDA kernels on an A100 (its FA2 backend), compiled from its wheel: batches that decode, prefill and
share a prefix, over a paged cache of K and V.

Heads of K and V may be fewer. Each element of the batch is a request. Line numbers are those of flashinfer-python
0.7.2.post1; of files .cuh, in flashinfer/data/include/flashinfer.
"""

from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from math import nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention_gallery.adapters import accepts, from_tokens, lengths, queries_at_a_time, starts, swapped, tokens
from attention_gallery.catalogue import pinned
from ptx_machine.device import GPU
from ptx_machine.launch import Kernel, Structure
from ptx_machine.memory import NANS
from ptx_machine.nvcc import compile_cuda
from ptx_machine.occupancy import occupancy
from ptx_machine.sources import unpacked

FLASHINFER = pinned("flashinfer-python", "0.7.2.post1")
TYPES = {torch.bfloat16: "nv_bfloat16", torch.float16: "half"}
HEAD_DIMS = (64, 128, 256)  # of 16 bits, that the merging kernel has, too: utils.cuh, line 200; 512 is not built here
FLAGS = (  # jit/core.py, line 737, and common_nvcc_flags, line 152
    "-use_fast_math", "-DNDEBUG", "-DFLASHINFER_ENABLE_F16", "-DFLASHINFER_ENABLE_BF16",
    "-DFLASHINFER_ENABLE_FP8_E4M3", "-DFLASHINFER_ENABLE_FP8_E5M2", "-DFLASHINFER_ENABLE_FP8_E8M0",
    "-DFLASHINFER_ENABLE_FP4_E2M1",
)  # fmt: skip
PAGED = "num_heads head_dim batch_size stride_page stride_n stride_h v_stride_page v_stride_n v_stride_h k_data v_data"
PAGED_FIELDS = tuple(f"paged_kv.{name}" for name in f"{PAGED} indices indptr last_page_len rope_pos_offset".split())
COMMON = "q o lse padded_batch_size num_qo_heads q_stride_n q_stride_h window_left sm_scale request_indices"
COMMON_FIELDS = tuple(f"{COMMON} kv_tile_indices o_indptr kv_chunk_size_ptr block_valid_mask partition_kv".split())
PREFILL_FIELDS = ("q_indptr", "qo_tile_indices", "merge_indptr", "max_total_num_rows", "total_num_rows")
SOURCE = """#include <flashinfer/attention/{name}.cuh>
#include <flashinfer/attention/default_{name}_params.cuh>
#include <flashinfer/attention/variants.cuh>
#include <cstddef>

using namespace flashinfer;
using T = {dtype};
struct Params : {parameters}<T, T, T, int32_t> {{ double sm_scale; }};  // FlashInfer's compiler of kernels has doubles
using Variant = DefaultAttention<false, false, false, false>;
{declared}
template __global__ void flashinfer::{kernel}(const __grid_constant__ Params);
template __global__ void flashinfer::PersistentVariableLengthMergeStatesKernel<{vector}, {across}, {rows}, 4, T, T,
    int32_t>(T*, float*, int32_t*, T*, float*, uint32_t, uint32_t*, uint32_t);
template __global__ void flashinfer::MergeStateInPlaceKernel<{vector}, T>(T*, float*, T*, float*, uint8_t*, uint32_t,
    uint32_t);

struct Divisor {{ cuda::fast_mod_div<uint32_t> division; uint32_t number; }};
static_assert(sizeof(Divisor) == sizeof(uint_fastdiv));
extern "C" __global__ void divisor(uint32_t number, Divisor* result) {{
  *result = Divisor{{cuda::fast_mod_div<uint32_t>(number), number}};
}}
extern "C" __device__ unsigned shared_bytes[] = {{{shared}}};
extern "C" __device__ unsigned layout[] = {{sizeof(Params), sizeof(Divisor), {fields}}};
"""
DECODE = "BatchDecodeWithPagedKVCacheKernel<PosEncodingMode::kNone, 2, {tile}, {vector}, {across}, {group}, {deep}"
PREFILL = """using Traits = KernelTraits<MaskMode::{mask}, {tile_q}, {mma_q}, {mma_kv}, {mma_d}, {mma_d}, {warps_q},
    {warps_kv}, PosEncodingMode::kNone, T, T, T, float, int32_t, Variant, kPrefillLauncherRepacksFp4>;
static_assert(!Traits::IsInvalid());"""
PAGE = 16  # keys of a page, as in the wrappers' docstrings (decode.py, line 1159)
LEAST_KEYS = 128  # of a part: scheduler.cuh, lines 199 and 579
ACCEPTED: dict[str, Any] = dict(
    dtypes=(*TYPES,), named="FlashInfer", no_gradients="FlashInfer's kernels have no gradients"
)
GROUPS = (1, 2, 3, 4, 6, 8, 16)  # heads that share K and V, for decoding without the matrix units: utils.cuh, line 142


@dataclass(frozen=True)
class Kernels:
    """Kernels that were compiled together: one of attention, and two that merge partial results.

    Attributes:
        text: the PTX.
        name: of the attention kernel.
        block: its threads, in x, y, z.
        shared: bytes of dynamic shared memory of its blocks.
        head_dim: of Q, K and V.
        fields: of its parameters.
        divided: field -> of those, the ones that hold a number to divide by.
        gpu: the GPU.
    """

    text: str
    name: str
    block: tuple[int, int, int]
    shared: int
    head_dim: int
    fields: tuple[str, ...]
    divided: tuple[str, ...]
    gpu: GPU

    def launch(self, grid: tuple[int, ...], values: dict) -> None:
        """Run the attention kernel with its parameters, field -> value."""
        kernel = _kernel(self.text, self.name, self.gpu)
        size, words, *pairs = kernel.variable("layout").view(np.uint32).tolist()
        layout = {field: (pairs[2 * i], pairs[2 * i + 1]) for i, field in enumerate((*self.fields, *self.divided))}
        for field in self.divided:
            (start, _), divisor = layout.pop(field), torch.zeros(words // 4, dtype=torch.int32)
            _kernel(self.text, "divisor", self.gpu)((1,), (1,), 0, values[field], divisor)
            layout |= {f"{field}.{i}": (start + 4 * i, 4) for i in range(words // 4)}
            values = values | {f"{field}.{i}": word for i, word in enumerate(divisor.tolist())}
        structure = Structure(layout, size, {name: value for name, value in values.items() if name in layout})
        # behind the last key a tile of K is not filled (kNoFill); the kernels hide what comes of it
        kernel(grid, self.block, self.shared, structure, unwritten=NANS)

    def merge(self, parts: Tensor, lse_parts: Tensor, indptr: Tensor, o: Tensor, lse: Tensor | None) -> None:
        """Merge parts (all parts, heads, head_dim) of each row into o (rows, heads, head_dim), as
        VariableLengthMergeStates of cascade.cuh, line 693.

        Args:
            parts: in o's type.
            lse_parts: FP32 (all parts, heads), to base 2.
            indptr: int32 (rows + 1,), the first part of each row.
            o, lse: what is written; lse is FP32 (rows, heads).
        """
        rows, heads, _ = o.shape
        vector, across = lanes(self.head_dim)
        shared = 4 * (128 // across) * self.head_dim * 2 + 128 * 4
        kernel = _kernel(self.text, "VariableLengthMergeStates", self.gpu)
        # FlashInfer launches as many blocks as fit on the GPU at once, and each goes over several rows: one block for
        # each row and head computes the same
        block = across, 128 // across
        kernel((rows * heads,), block, shared, parts, lse_parts, indptr, o, lse, rows, None, heads, unwritten=NANS)

    def merge_in_place(self, o: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
        """Merge another result into o (rows, heads, head_dim) and its log-sum-exp, FP32 (rows, heads) to base 2:
        MergeStateInPlace of cascade.cuh, line 611."""
        rows, heads, d = o.shape
        kernel = _kernel(self.text, "MergeStateInPlaceKernel", self.gpu)
        kernel((rows,), (lanes(d)[1], heads), 0, o, lse, other, other_lse, None, heads, d)

    def blocks(self) -> int:
        """Return how many blocks of the attention kernel the GPU holds at once, as
        cudaOccupancyMaxActiveBlocksPerMultiprocessor says, times its multiprocessors."""
        entry, threads = _kernel(self.text, self.name, self.gpu).entry.name, int(np.prod(self.block))
        return occupancy(self.text, entry, threads, self.shared, self.gpu, 80) * self.gpu.processors


def lanes(head_dim: int) -> tuple[int, int]:
    """Return how many elements of a row of 16 bits a thread holds, and how many threads hold a row (vec_size, bdx)."""
    vector = max(8, head_dim // 32)
    return vector, head_dim // vector


@cache
def decode_kernels(head_dim: int, group: int, dtype: torch.dtype, gpu: GPU) -> Kernels:
    """Compile the kernel that decodes over a paged cache, as BatchDecodeWithPagedKVCacheDispatched of decode.cuh, line
    756.

    Args:
        head_dim: of HEAD_DIMS.
        group: how many heads of Q share one of K and V: 1, 2, 3, 4, 6, 8 or 16.
        dtype: of TYPES.
        gpu: the GPU.
    """
    vector, across = lanes(head_dim)
    threads = max(128, across * group)
    deep, tile = threads // (across * group), 4 if group == 1 else 1
    room = max(2 * 2 * tile * group * deep * head_dim * 2, deep * group * head_dim * 4)
    shared = room + max(tile * threads * 8, 2 * group * deep * 4)
    kernel = DECODE.format(tile=tile, vector=vector, across=across, group=group, deep=deep) + ", Variant, Params>"
    fields, divided = (*PAGED_FIELDS, *COMMON_FIELDS), ("paged_kv.page_size",)
    text = _text("decode", "BatchDecodeParams", kernel, head_dim, dtype, (*fields, *divided))
    name = "BatchDecodeWithPagedKVCacheKernel"
    return Kernels(text, name, (across, group, deep), shared, head_dim, fields, divided, gpu)


@cache
def prefill_kernels(head_dim: int, tile_q: int, causal: bool, dtype: torch.dtype, gpu: GPU) -> Kernels:
    """Compile the kernel of prefill over a paged cache: BatchPrefillWithPagedKVCacheDispatched of prefill.cuh, line
    4574, with use_fp16_qk_reduction=False.

    Args:
        head_dim: of HEAD_DIMS.
        tile_q: rows of a block, `tile_of`.
        causal: whether there is a causal mask.
        dtype: of TYPES.
        gpu: the GPU.
    """
    warps_q = 4 if tile_q > 16 else 1
    warps_kv, mma_q = 4 // warps_q, 2 if tile_q > 64 else 1
    fixed, each = tile_q * head_dim * 2, 2 * head_dim * 16 * warps_kv * 2
    of_processor = gpu.shared_bytes + 1024
    room = min(of_processor // (2 if of_processor >= 2 * (fixed + each) else 1), gpu.shared_bytes)
    most = min((room - fixed) // each, 8 // mma_q)
    mma_kv = max(count for count in (1, 2, 4, 8) if count <= most)
    declared = PREFILL.format(
        mask="kCausal" if causal else "kNone", tile_q=tile_q, mma_q=mma_q, mma_kv=mma_kv, mma_d=head_dim // 16,
        warps_q=warps_q, warps_kv=warps_kv,
    )  # fmt: skip
    fields, divided = (*PAGED_FIELDS, *COMMON_FIELDS, *PREFILL_FIELDS), ("paged_kv.page_size", "group_size")
    kernel = "BatchPrefillWithPagedKVCacheKernel<true, Traits, Params>"
    shared = "sizeof(typename Traits::SharedStoragePaged)"
    text = _text("prefill", "BatchPrefillPagedParams", kernel, head_dim, dtype, (*fields, *divided), declared, shared)
    name = "BatchPrefillWithPagedKVCacheKernel"
    bytes_ = int(_kernel(text, name, gpu).variable("shared_bytes").view(np.uint32)[0])
    return Kernels(text, name, (32, warps_q, warps_kv), bytes_, head_dim, fields, divided, gpu)


def tile_of(rows: int, head_dim: int) -> int:
    """Return the rows of a block of the prefill kernel, for so many rows of Q in a request on average, heads that share
    K and V counted: FA2DetermineCtaTileQ of utils.cuh, line 411."""
    return 128 if rows > 64 and head_dim < 256 else 64 if rows > 16 else 16


def _text(name, parameters, kernel, head_dim, dtype, fields, declared="", shared="0") -> str:
    vector, across = lanes(head_dim)
    source = SOURCE.format(
        name=name, dtype=TYPES[dtype], parameters=parameters, declared=declared, kernel=kernel, shared=shared,
        vector=vector, across=across, rows=128 // across,
        fields=", ".join(f"offsetof(Params, {field}), sizeof(((Params*)nullptr)->{field})" for field in fields),
    )  # fmt: skip
    data = unpacked(FLASHINFER) / "flashinfer" / "data"
    return compile_cuda(source, include=(data / "include", data / "cccl" / "libcudacxx" / "include"), flags=FLAGS)


@cache
def _kernel(text: str, name: str, gpu: GPU) -> Kernel:
    return Kernel(text, name, gpu=gpu)


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
        count: parts of a request's keys; partial results of more than one are merged.
    """

    requests: tuple[int, ...]
    tiles: tuple[int, ...]
    parts: tuple[int, ...]
    keys: int
    count: int


@accepts(**ACCEPTED)
def flashinfer_decode(q, k, v, causal=False, scale=None, *, gpu="A100"):
    """Call BatchDecodeWithPagedKVCacheWrapper, with its defaults (no matrix units), with one query in each call.

    Raises:
        NotImplementedError: another head_dim, or another number of heads that share K and V.
    """
    _has_head_dim(q)
    if q.shape[1] // k.shape[1] not in GROUPS:
        raise NotImplementedError(
            f"FlashInfer decodes with {GROUPS} heads that share K and V, unless it is told to use the matrix units"
        )
    return queries_at_a_time(partial(_decode, gpu=GPU.of(gpu)))(q, k, v, causal, scale)


@accepts(**ACCEPTED, tall=False)
def flashinfer_prefill(q, k, v, causal=False, scale=None, *, gpu="A100"):
    """Call BatchPrefillWithPagedKVCacheWrapper with its defaults: use_fp16_qk_reduction=False, and parts of the keys
    where blocks are few.

    Raises:
        NotImplementedError: another head_dim.
    """
    _has_head_dim(q)
    return _prefill(q, _paged(k, v), causal, scale, GPU.of(gpu))[0]


@accepts(**ACCEPTED)
def flashinfer_cascade(q, k, v, causal=False, scale=None, *, gpu="A100"):
    """Call MultiLevelCascadeAttentionWrapper with two levels: the first half of the keys as a prefix, and the others.
    With a causal mask the prefix is what all queries see, at most half of the keys.

    Raises:
        NotImplementedError: another head_dim, or there is no prefix.
    """
    _has_head_dim(q)
    gpu = GPU.of(gpu)
    n_q, n_kv = q.shape[2], k.shape[2]
    prefix = min(n_kv // 2, n_kv - n_q) if causal else n_kv // 2
    if prefix < 1:
        raise NotImplementedError(f"{n_q} queries and {n_kv} keys, causal={causal}: they share no prefix")
    rest, shared = (_paged(k[:, :, part], v[:, :, part]) for part in (slice(prefix, None), slice(prefix)))
    o, lse, kernels = _prefill(q, rest, causal, scale, gpu)
    other, other_lse, _ = _prefill(q, shared, False, scale, gpu)
    rows, other_rows = (tokens(x) for x in (o, other))  # (all queries, heads, head_dim)
    kernels.merge_in_place(rows, lse, other_rows, other_lse)
    return from_tokens(rows, q.shape[0])


def _decode(q, k, v, causal, scale, gpu):
    """Decode one query of each request: decode.py, line 1144, and csrc/batch_decode.cu, line 129."""
    (batch, heads, _, d), kv_heads = q.shape, k.shape[1]
    kernels = decode_kernels(d, heads // kv_heads, q.dtype, gpu)
    pages = _paged(k, v)
    work = _plan(batch, 1, len(pages.indices) // batch, kernels.blocks() // kv_heads)
    rows = tokens(q)  # (batch, heads, head_dim)
    o, merged = torch.full_like(rows, nan), starts(batch, work.count)
    values = _values(rows, pages, work, scale) | dict(o_indptr=merged)
    _launch(kernels, values, work, kv_heads, o, None, merged)
    return from_tokens(o, batch)


def _prefill(q: Tensor, pages: Pages, causal: bool, scale, gpu: GPU) -> tuple[Tensor, Tensor, Kernels]:
    """Attend with all queries of each request: prefill.py, line 2570, and csrc/batch_prefill_paged.cuh, line 18.

    Returns:
        (o (batch, heads, n_q, head_dim), log-sum-exp FP32 (all queries, heads) to base 2, the kernels).
    """
    (batch, heads, n_q, d), kv_heads = q.shape, pages.data.shape[3]
    group = heads // kv_heads
    tile = tile_of(n_q * group, d)
    kernels = prefill_kernels(d, tile, causal, q.dtype, gpu)
    blocks = 2 * gpu.processors // kv_heads
    work = _plan(batch, -(-n_q * group // tile), len(pages.indices) // batch, blocks)
    rows = tokens(q)  # (all queries, heads, head_dim)
    o, lse = torch.full_like(rows, nan), torch.full(rows.shape[:2], nan)
    merged = starts(batch * n_q, work.count)  # (all queries + 1,)
    values = _values(rows, pages, work, scale) | dict(
        q_indptr=starts(batch, n_q), qo_tile_indices=_int32(work.tiles), group_size=group,
        o_indptr=starts(batch, n_q * work.count), max_total_num_rows=len(rows),
        merge_indptr=merged if work.count > 1 else None,
    )  # fmt: skip
    _launch(kernels, values, work, kv_heads, o, lse, merged)
    return from_tokens(o, batch), lse, kernels


def _launch(kernels: Kernels, values: dict, work: Work, kv_heads: int, o: Tensor, lse: Tensor | None, merged: Tensor):
    """Run the attention kernel, and the one that merges where keys are split. Partial O has o's type (16 bits)."""
    grid = (len(work.requests), kv_heads) if "qo_tile_indices" not in values else (len(work.requests), 1, kv_heads)
    if work.count == 1:
        kernels.launch(grid, values | dict(o=o, lse=lse, partition_kv=0))
        return
    count = int(merged[-1])
    parts = torch.full((count, *o.shape[1:]), nan, dtype=o.dtype)
    lse_parts = torch.full((count, o.shape[1]), nan)
    kernels.launch(grid, values | dict(o=parts, lse=lse_parts, partition_kv=1))
    kernels.merge(parts, lse_parts, merged, o, lse)


def _plan(batch: int, tiles: int, pages: int, most: int) -> Work:
    """Split the tiles of Q and the pages of each of `batch` requests among at most so many blocks, for one head of K
    and V: scheduler.cuh, lines 101, 150 and 545."""
    keys, high = LEAST_KEYS // PAGE, pages
    while keys < high:
        middle = (keys + high) // 2
        if batch * tiles * -(-pages // middle) > most:
            keys = middle + 1
        else:
            high = middle
    count = -(-pages // keys)
    requests, rows, parts = zip(*product(range(batch), range(tiles), range(count)))
    return Work(requests, rows, parts, keys * PAGE, count)


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
    data[:, :n] = torch.stack([swapped(k), swapped(v)], 2)
    data = data.view(batch * each, PAGE, 2, kv_heads, d).transpose(1, 2).contiguous()  # (pages, 2, PAGE, kv_heads, d)
    return Pages(data, starts(batch, each), _int32(range(batch * each)), lengths(batch, (n - 1) % PAGE + 1))


def _int32(values) -> Tensor:
    return torch.tensor([*values], dtype=torch.int32)


def _has_head_dim(q: Tensor) -> None:
    if q.shape[-1] not in HEAD_DIMS:
        raise NotImplementedError(
            f"FlashInfer merges parts with head_dim {HEAD_DIMS} (and 512, not built here); {q.shape[-1]} came"
        )
