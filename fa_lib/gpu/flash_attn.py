"""FlashAttention-2's own CUDA kernels, from flash-attn's source package, on a CPU in a GPU's arithmetic.

A kernel is compiled when it is first asked for: half a minute. `forward` chooses it as flash_fwd_launch_template.h of
flash-attn 2.8.3 does.
"""

from functools import cache
from math import e, log2

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from fa_lib.gpu.device import GPU
from fa_lib.gpu.launch import Kernel, Structure
from fa_lib.gpu.memory import NANS
from fa_lib.gpu.nvcc import compile_cuda
from fa_lib.gpu.sources import FLASH_ATTN, unpacked
from fa_lib.paths import PACKAGE

TYPES = {torch.bfloat16: "cutlass::bfloat16_t", torch.float16: "cutlass::half_t"}
HEAD_DIMS = (64, 128)
THREADS = 128
FIELDS = (  # of Flash_fwd_params, in flash.h
    *(f"{x}_{what}" for x in "qkvo" for what in ("ptr", "batch_stride", "row_stride", "head_stride")),
    *"h h_k h_h_k_ratio softmax_lse_ptr b seqlen_q seqlen_k d seqlen_q_rounded seqlen_k_rounded d_rounded".split(),
    *"scale_softmax scale_softmax_log2 p_dropout rp_dropout window_size_left window_size_right softcap".split(),
    *"is_bf16 is_causal num_splits".split(),
)
FLAGS = (  # as in flash-attn's setup.py
    "--use_fast_math", "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__", "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
)  # fmt: skip
INCLUDE = ("csrc/flash_attn", "csrc/flash_attn/src", "csrc/cutlass/include")
SOURCE = """#include "flash_fwd_launch_template.h"
#include <cstddef>

using namespace FLASH_NAMESPACE;
using Traits = Flash_fwd_kernel_traits<{head_dim}, {block_q}, {block_kv}, 4, false, false, {type}>;
template __global__ void FLASH_NAMESPACE::flash_fwd_kernel<
    Traits, false, {causal}, {local}, false, {even}, true, {softcap}, false>(__grid_constant__ const Flash_fwd_params);
extern "C" __device__ unsigned shared_bytes[] = {{Traits::kSmemSize}};
extern "C" __device__ unsigned layout[] = {{sizeof(Flash_fwd_params), {fields}}};
"""


def tile(head_dim: int, gpu: GPU, causal: bool) -> tuple[int, int]:
    """Queries and keys of a tile, without dropout."""
    if head_dim == 64:
        return 128, 128
    if gpu.capability == 89:
        return (64, 64) if causal else (128, 32)
    return 128, 64


@cache
def compiled(
    head_dim: int, dtype: torch.dtype, gpu: GPU, causal: bool, local: bool, even: bool, softcap: bool
) -> tuple[Kernel, dict[str, tuple[int, int]], int, int]:
    """The kernel, the layout of its parameters, their size, and its bytes of shared memory."""
    block_q, block_kv = tile(head_dim, gpu, causal)
    fields = ", ".join(f"offsetof(Flash_fwd_params, {each}), sizeof(Flash_fwd_params::{each})" for each in FIELDS)
    words = dict(head_dim=head_dim, block_q=block_q, block_kv=block_kv, type=TYPES[dtype], fields=fields)
    words |= {
        name: str(value).lower() for name, value in dict(causal=causal, local=local, even=even, softcap=softcap).items()
    }
    there = unpacked(FLASH_ATTN) / "csrc"
    include = [
        PACKAGE / "gpu" / "headers",
        there / "flash_attn",
        there / "flash_attn" / "src",
        there / "cutlass/include",
    ]
    kernel = Kernel(compile_cuda(SOURCE.format(**words), include=include, flags=FLAGS), gpu=gpu)
    size, *pairs = kernel.variable("layout").view(np.uint32).tolist()
    layout = {name: (pairs[2 * i], pairs[2 * i + 1]) for i, name in enumerate(FIELDS)}
    return kernel, layout, size, int(kernel.variable("shared_bytes").view(np.uint32)[0])


def forward(
    q: Float[Tensor, "batch heads n_q d"],
    k: Float[Tensor, "batch heads_kv n_kv d"],
    v: Float[Tensor, "batch heads_kv n_kv d"],
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    scale: float | None = None,
    gpu: str | GPU = "A100",
) -> tuple[Float[Tensor, "batch heads n_q d"], Float32[Tensor, "batch heads n_q"]]:
    """Attention by flash_fwd_kernel.

    Args:
        q, k, v: BF16 or FP16, head_dim 64 or 128, on the CPU; heads are a multiple of heads_kv.
        causal: aligned bottom-right. window: keys to the left and to the right that a query sees; -1: all.
        softcap: 0 is none. scale: None is 1 / sqrt(d).

    Returns:
        O in the inputs' type, and the log-sum-exp of each row.

    Raises:
        ValueError: the kernel takes no such call.
    """
    gpu = GPU.of(gpu)
    batch, heads, n_q, d = q.shape
    heads_kv, n_kv = k.shape[1:3]
    if q.dtype not in TYPES or {k.dtype, v.dtype} != {q.dtype}:
        raise ValueError(f"q, k, v: got {q.dtype}, {k.dtype}, {v.dtype}; accepted is BF16 or FP16, the same for all")
    if d not in HEAD_DIMS or k.shape[-1] != d or v.shape != k.shape or heads % heads_kv:
        got = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(
            f"q, k, v: got {got}; accepted is head_dim 64 or 128, heads that are a multiple of k's and v's"
        )
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    left, right = (-1, 0) if causal else window
    local = not causal and (left >= 0 or right >= 0)
    left, right = (n_kv if left < 0 <= right else left), (n_kv if right < 0 <= left else right)
    block_q, block_kv = tile(d, gpu, causal)
    even = n_q % block_q == 0 and n_kv % block_kv == 0 and not local
    kernel, layout, size, shared = compiled(d, q.dtype, gpu, causal, local, even, softcap > 0)
    o, lse = torch.empty_like(q, memory_format=torch.contiguous_format), torch.empty(batch, heads, n_q)
    single = float(np.float32(d**-0.5 if scale is None else scale))
    values = dict(
        h=heads, h_k=heads_kv, h_h_k_ratio=heads // heads_kv, softmax_lse_ptr=lse, b=batch, seqlen_q=n_q,
        seqlen_k=n_kv, d=d, seqlen_q_rounded=-(-n_q // 128) * 128, seqlen_k_rounded=-(-n_kv // 128) * 128, d_rounded=d,
        p_dropout=1.0, rp_dropout=1.0, window_size_left=left, window_size_right=right,
        is_bf16=q.dtype == torch.bfloat16, is_causal=causal, num_splits=1, **scales(single, softcap),
    )  # fmt: skip
    for name, x in zip("qkvo", (q, k, v, o)):
        values |= {f"{name}_ptr": x, f"{name}_batch_stride": x.stride(0), f"{name}_head_stride": x.stride(1)}
        values[f"{name}_row_stride"] = x.stride(2)
    grid = -(-n_q // block_q), batch, heads
    unwritten = (
        None if even else NANS
    )  # in a tile that is not full it reads keys that nobody wrote; it hides their scores
    kernel(grid, (THREADS,), shared, Structure(layout, size, values), unwritten=unwritten)
    return o, lse


def scales(scale: float, softcap: float) -> dict[str, float]:
    """As set_params_fprop of flash_api.cpp: FP32, times a double."""
    if softcap > 0:
        return dict(softcap=scale / softcap, scale_softmax=softcap, scale_softmax_log2=softcap * log2(e))
    return dict(softcap=0.0, scale_softmax=scale, scale_softmax_log2=scale * log2(e))
