"""FlashInfer's CUDA kernels for an A100 (its FA2 backend): compiled from its wheel, and what it asks of a GPU before it
launches them.

Line numbers are those of flashinfer-python 0.7.2.post1, in flashinfer/data/include/flashinfer.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

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
