"""FlashInfer's CUDA kernels on an A100 (its FA2 backend), compiled from its wheel: batches that decode, prefill and
share a prefix, over a paged cache of K and V.

Heads of K and V may be fewer. Each element of the batch is a request. Line numbers are those of flashinfer-python
0.7.2.post1; of files .cuh, in flashinfer/data/include/flashinfer.
"""

from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from math import nan, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention_gallery.adapters import accepts, from_tokens, lengths, page_table, pages, starts, tokens
from attention_gallery.catalogue import cuda_template, pinned
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
SOURCE = cuda_template("flashinfer.cu")
DECODE = "BatchDecodeWithPagedKVCacheKernel<PosEncodingMode::kNone, 2, {tile}, {vector}, {across}, {group}, {deep}"
PREFILL = """using Traits = KernelTraits<MaskMode::{mask}, {tile_q}, {mma_q}, {mma_kv}, {mma_d}, {mma_d}, {warps_q},
    {warps_kv}, PosEncodingMode::kNone, T, T, T, float, int32_t, Variant, kPrefillLauncherRepacksFp4>;
static_assert(!Traits::IsInvalid());"""
PAGE = 16  # keys of a page, as in the wrappers' docstrings (decode.py, line 1159)
LEAST_KEYS = 128  # of a part: scheduler.cuh, lines 199 and 579
GROUPS = (1, 2, 3, 4, 6, 8, 16)  # heads that share K and V, for decoding without the matrix units: utils.cuh, line 142
_kernel = cache(Kernel)
accepted = partial(accepts, "FlashInfer", (*TYPES,), HEAD_DIMS, gradients=False)


@dataclass(frozen=True)
class Kernels:
    """Kernels that were compiled together: one of attention, and two that merge partial results.

    Attributes:
        text: the PTX. name: of the attention kernel. gpu: where they run.
        block: threads of its blocks, in x, y, z. shared: bytes of their dynamic shared memory.
        fields: of its parameters. divided: of those, the ones that hold a number to divide by.
    """

    text: str
    name: str
    block: tuple[int, int, int]
    shared: int
    fields: tuple[str, ...]
    divided: tuple[str, ...]
    gpu: GPU

    def __getitem__(self, name: str) -> Kernel:
        """The kernel whose name contains `name`."""
        return _kernel(self.text, name, gpu=self.gpu)

    def launch(self, grid: tuple[int, ...], values: dict) -> None:
        """Run the attention kernel; values: of its parameters, by field, and others, which are left out."""
        kernel = self[self.name]
        size, words, *numbers = kernel.variables["layout"].view(np.uint32).tolist()
        layout = dict(zip((*self.fields, *self.divided), zip(numbers[::2], numbers[1::2])))
        for field in self.divided:
            (start, _), divisor = layout.pop(field), torch.zeros(words // 4, dtype=torch.int32)
            self["divisor"]((1,), (1,), 0, values[field], divisor)
            layout |= {f"{field}.{i}": (start + 4 * i, 4) for i in range(words // 4)}
            values = values | {f"{field}.{i}": word for i, word in enumerate(divisor.tolist())}
        structure = Structure(layout, size, {name: value for name, value in values.items() if name in layout})
        # behind the last key a tile of K is not filled (kNoFill); the kernels hide what comes of it
        kernel(grid, self.block, self.shared, structure, unwritten=NANS)

    @property
    def most(self) -> int:
        """How many blocks of the attention kernel the GPU holds at once."""
        entry = self[self.name].entry.name
        return occupancy(self.text, entry, prod(self.block), self.shared, self.gpu, 80) * self.gpu.processors


def lanes(head_dim: int) -> tuple[int, int]:
    """Return how many elements of a row of 16 bits a thread holds, and how many threads hold a row (vec_size, bdx)."""
    vector = max(8, head_dim // 32)
    return vector, head_dim // vector


@cache
def decode_kernels(head_dim: int, group: int, dtype: torch.dtype, gpu: GPU) -> Kernels:
    """Compile the kernel that decodes over a paged cache, as BatchDecodeWithPagedKVCacheDispatched of decode.cuh, line
    756; group: how many heads of Q share one of K and V."""
    vector, across = lanes(head_dim)
    threads = max(128, across * group)
    deep, tile = threads // (across * group), 4 if group == 1 else 1
    room = max(2 * 2 * tile * group * deep * head_dim * 2, deep * group * head_dim * 4)
    shared = room + max(tile * threads * 8, 2 * group * deep * 4)
    kernel = DECODE.format(tile=tile, vector=vector, across=across, group=group, deep=deep) + ", Variant, Params>"
    fields, divided = (*PAGED_FIELDS, *COMMON_FIELDS), ("paged_kv.page_size",)
    text = _text("decode", "BatchDecodeParams", kernel, head_dim, dtype, (*fields, *divided))
    return Kernels(text, kernel.partition("<")[0], (across, group, deep), shared, fields, divided, gpu)


@cache
def prefill_kernels(head_dim: int, tile_q: int, causal: bool, dtype: torch.dtype, gpu: GPU) -> Kernels:
    """Compile the kernel of prefill over a paged cache: BatchPrefillWithPagedKVCacheDispatched of prefill.cuh, line
    4574, with use_fp16_qk_reduction=False; tile_q: rows of a block, `tile_of`."""
    warps_q = 4 if tile_q > 16 else 1
    warps_kv, mma_q = 4 // warps_q, 2 if tile_q > 64 else 1
    fixed, of_tile = tile_q * head_dim * 2, 2 * head_dim * 16 * warps_kv * 2
    of_processor = gpu.shared_bytes + 1024
    room = min(of_processor // (2 if of_processor >= 2 * (fixed + of_tile) else 1), gpu.shared_bytes)
    most = min((room - fixed) // of_tile, 8 // mma_q)
    mma_kv = max(count for count in (1, 2, 4, 8) if count <= most)
    declared = PREFILL.format(
        mask="kCausal" if causal else "kNone", tile_q=tile_q, mma_q=mma_q, mma_kv=mma_kv, mma_d=head_dim // 16,
        warps_q=warps_q, warps_kv=warps_kv,
    )  # fmt: skip
    fields, divided = (*PAGED_FIELDS, *COMMON_FIELDS, *PREFILL_FIELDS), ("paged_kv.page_size", "group_size")
    name = "BatchPrefillWithPagedKVCacheKernel"
    kernel, shared = f"{name}<true, Traits, Params>", "sizeof(typename Traits::SharedStoragePaged)"
    text = _text("prefill", "BatchPrefillPagedParams", kernel, head_dim, dtype, (*fields, *divided), declared, shared)
    bytes_ = int(_kernel(text, name, gpu=gpu).variables["shared_bytes"].view(np.uint32)[0])
    return Kernels(text, name, (32, warps_q, warps_kv), bytes_, fields, divided, gpu)


def tile_of(rows: int, head_dim: int) -> int:
    """Return the rows of a block of the prefill kernel, for so many rows of Q in a request on average, heads that share
    K and V counted: FA2DetermineCtaTileQ of utils.cuh, line 411."""
    return 128 if rows > 64 and head_dim < 256 else 64 if rows > 16 else 16


def _text(name, parameters, kernel, head_dim, dtype, fields, declared="", shared="0") -> str:
    vector, across = lanes(head_dim)
    source = SOURCE.substitute(
        name=name, dtype=TYPES[dtype], parameters=parameters, declared=declared, kernel=kernel, shared=shared,
        vector=vector, across=across, rows=128 // across,
        fields=", ".join(f"offsetof(Params, {field}), sizeof(((Params*)nullptr)->{field})" for field in fields),
    )  # fmt: skip
    data = unpacked(FLASHINFER) / "flashinfer" / "data"
    return compile_cuda(source, include=(data / "include", data / "cccl" / "libcudacxx" / "include"), flags=FLAGS)


@accepted(queries=1)
def flashinfer_decode(q, k, v, causal=False, scale: Any = None, *, gpu="A100"):
    """Call BatchDecodeWithPagedKVCacheWrapper, with its defaults (no matrix units), with one query in each call:
    decode.py, line 1144, and csrc/batch_decode.cu, line 129. Refused: another head_dim, or another number of heads that
    share K and V."""
    group = q.shape[1] // k.shape[1]
    if group not in GROUPS:
        raise NotImplementedError(
            f"FlashInfer decodes with {GROUPS} heads that share K and V, unless it is told to use the matrix units"
        )
    kernels = decode_kernels(q.shape[3], group, q.dtype, GPU.of(gpu))
    return from_tokens(_attend(kernels, q, k, v, scale, 1, kernels.most), len(q))


@accepted(tall=False)
def flashinfer_prefill(q, k, v, causal=False, scale=None, *, gpu="A100"):
    """Call BatchPrefillWithPagedKVCacheWrapper with its defaults: use_fp16_qk_reduction=False, and parts of the keys
    where blocks are few. Refused: another head_dim."""
    return from_tokens(_prefill(q, k, v, causal, scale, GPU.of(gpu))[0], len(q))


@accepted()
def flashinfer_cascade(q, k, v, causal=False, scale=None, *, gpu="A100"):
    """Call MultiLevelCascadeAttentionWrapper with two levels: the first half of the keys as a prefix, and the others.
    With a causal mask the prefix is what all queries see, at most half of the keys. Refused: another head_dim, or there
    is no prefix."""
    gpu, n_q, n_kv = GPU.of(gpu), q.shape[2], k.shape[2]
    prefix = min(n_kv // 2, n_kv - n_q) if causal else n_kv // 2
    if prefix < 1:
        raise NotImplementedError(f"{n_q} queries and {n_kv} keys, causal={causal}: they share no prefix")
    o, lse, kernels = _prefill(q, k[:, :, prefix:], v[:, :, prefix:], causal, scale, gpu)
    other, other_lse, _ = _prefill(q, k[:, :, :prefix], v[:, :, :prefix], False, scale, gpu)
    rows, heads, d = o.shape  # MergeStateInPlace of cascade.cuh, line 611
    block = lanes(d)[1], heads
    kernels["MergeStateInPlaceKernel"]((rows,), block, 0, o, lse, other, other_lse, None, heads, d)
    return from_tokens(o, len(q))


def _prefill(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale, gpu: GPU) -> tuple[Tensor, Tensor, Kernels]:
    """Attend with all queries of each request: prefill.py, line 2570, and csrc/batch_prefill_paged.cuh, line 18.

    Returns:
        (o (all queries, heads, head_dim), log-sum-exp FP32 (all queries, heads) to base 2, the kernels).
    """
    (batch, heads, n_q, d), kv_heads = q.shape, k.shape[1]
    rows = n_q * (heads // kv_heads)
    tile = tile_of(rows, d)
    kernels, lse = prefill_kernels(d, tile, causal, q.dtype, gpu), torch.full((batch * n_q, heads), nan)
    return _attend(kernels, q, k, v, scale, -(-rows // tile), 2 * gpu.processors, lse), lse, kernels


def _attend(
    kernels: Kernels, q: Tensor, k: Tensor, v: Tensor, scale: float, tiles: int, most: int, lse: Tensor | None = None
) -> Tensor:  # fmt: skip
    """Run the attention kernel over a paged cache of K and V, and the one that merges where keys are split; partial O
    has o's type (16 bits).

    Args:
        q, k, v: (batch, heads, n, head_dim), one request behind the other.
        tiles: of Q, in a request. most: blocks at once.
        lse: log-sum-exp to base 2, FP32 (all queries, heads), which is written; None: nobody needs it.

    Returns:
        o: (all queries, heads, head_dim).
    """
    (batch, heads, n_q, d), (kv_heads, n_kv), rows = q.shape, k.shape[1:3], tokens(q)
    work, count = _plan(batch, tiles, -(-n_kv // PAGE), most // kv_heads)
    o, merged = torch.full_like(rows, nan), starts(len(rows), count)  # merged: int32 (all queries + 1,)
    values = _paged(k, v) | work | dict(
        q=rows, num_qo_heads=heads, q_stride_n=rows.stride(0), q_stride_h=rows.stride(1), window_left=-1,
        sm_scale=float(scale), q_indptr=starts(batch, n_q), group_size=heads // kv_heads,
        o_indptr=starts(batch, n_q * count), max_total_num_rows=len(rows), merge_indptr=merged if count > 1 else None,
    )  # fmt: skip
    blocks = len(work["request_indices"])
    grid = (blocks, 1, kv_heads) if "qo_tile_indices" in kernels.fields else (blocks, kv_heads)
    if count == 1:
        kernels.launch(grid, values | dict(o=o, lse=lse, partition_kv=0))
        return o
    parts = torch.full((len(rows) * count, heads, d), nan, dtype=o.dtype)
    lse_parts = torch.full(parts.shape[:2], nan)  # FP32, to base 2
    kernels.launch(grid, values | dict(o=parts, lse=lse_parts, partition_kv=1))
    # VariableLengthMergeStates of cascade.cuh, line 693: FlashInfer launches as many blocks as fit on the GPU at once,
    # and each goes over several rows: one block for each row and head computes the same
    across = lanes(d)[1]
    block, shared = (across, 128 // across), 4 * (128 // across) * d * 2 + 128 * 4
    kernels["VariableLengthMergeStates"](
        (len(rows) * heads,), block, shared, parts, lse_parts, merged, o, lse, len(rows), None, heads, unwritten=NANS
    )
    return o


def _plan(batch: int, tiles: int, pages: int, most: int) -> tuple[dict, int]:
    """Split the tiles of Q and the pages of each of `batch` requests among at most so many blocks, for one head of K
    and V: scheduler.cuh, lines 101, 150 and 545.

    Returns:
        ({field: value}, of what each block works on; the number of parts of a request's keys).
    """
    keys, high = LEAST_KEYS // PAGE, pages
    while keys < high:
        middle = (keys + high) // 2
        if batch * tiles * -(-pages // middle) > most:
            keys = middle + 1
        else:
            high = middle
    count = -(-pages // keys)
    requests, rows, parts = (_int32(of_blocks) for of_blocks in zip(*product(range(batch), range(tiles), range(count))))
    work = dict(request_indices=requests, qo_tile_indices=rows, kv_tile_indices=parts)
    return work | dict(padded_batch_size=len(requests), kv_chunk_size_ptr=_int32([keys * PAGE])), count


def _paged(k: Tensor, v: Tensor) -> dict:
    """Lay K and V (batch, kv_heads, n, head_dim) out in a paged cache, layout NHD: {field: value} of the parameters.
    Places that hold no key are NaN."""
    (batch, kv_heads, n, d), table = k.shape, page_table(k, PAGE)
    data = torch.stack([pages(k, PAGE, nan), pages(v, PAGE, nan)], 1)  # (pages, 2, PAGE, kv_heads, head_dim)
    strides = dict(stride_page=data.stride(0), stride_n=data.stride(2), stride_h=data.stride(3))
    paged = strides | {f"v_{name}": stride for name, stride in strides.items()} | dict(
        page_size=PAGE, num_heads=kv_heads, head_dim=d, batch_size=batch, k_data=data[:, 0], v_data=data[:, 1],
        indices=table.flatten(), indptr=starts(batch, table.shape[1]), last_page_len=lengths(batch, (n - 1) % PAGE + 1),
    )  # fmt: skip
    return {f"paged_kv.{name}": value for name, value in paged.items()}


def _int32(values) -> Tensor:
    return torch.tensor([*values], dtype=torch.int32)
