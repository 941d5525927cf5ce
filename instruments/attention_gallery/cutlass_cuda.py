"""PyTorch's memory-efficient attention, the CUTLASS kernel that scaled_dot_product_attention takes for a mask and for
FP32, compiled from the headers of the torch that is installed.

Line numbers are of torch 2.13, ATen/native/transformers/cuda/mem_eff_attention.
"""

from functools import cache
from math import inf, nan
from pathlib import Path

import torch
from torch import Tensor

from attention_gallery.adapters import accepts, in_4_dims, repeated, swapped
from attention_gallery.catalogue import cuda_template
from ptx_machine.device import GPU
from ptx_machine.launch import Kernel, Structure
from ptx_machine.memory import NANS
from ptx_machine.nvcc import compile_cuda
from ptx_machine.sources import FLASH_ATTN, unpacked  # for CUTLASS: torch has no copy of it in its wheel

TYPES = {torch.bfloat16: "cutlass::bfloat16_t", torch.float16: "cutlass::half_t", torch.float32: "float"}
TILES = ((64, 64, 64), (64, 128, 128), (32, 128, 65536))  # queries, keys, largest head_dim: kernels/cutlassF.h, line 27
BOTTOM_RIGHT = 2  # CausalFromBottomRight: kernel_forward.h, line 95
BIAS_MULTIPLE = 16  # of keys, in memory, of a mask
FIELDS = (  # of Params: kernel_forward.h, line 133
    *"query_ptr key_ptr value_ptr attn_bias_ptr output_ptr output_accum_ptr scale head_dim head_dim_value".split(),
    *"num_queries num_keys custom_mask_type o_strideM num_batches num_heads".split(),
    *(f"{x}_stride{axis}" for x in ("q", "k", "v", "bias") for axis in "MHB"),
)
SOURCE = cuda_template("cutlass.cu")


@accepts(
    "torch's CUTLASS kernel, of which the backward one is not called here,", (*TYPES,), gradients=False, tall=False
)
def cutlass_fmha(q, k, v, causal=False, scale=None, mask=None, gpu="A100"):
    """Call the forward kernel as aten::_efficient_attention_forward does, without dropout and log-sum-exp, which
    inference does not ask for.

    A causal mask is the kernel's own, aligned bottom-right, as torch.nn.attention.bias.causal_lower_right asks for it.
    With more queries than keys it hides nothing in the first blocks of queries (kernel_forward.h, line 848, compares
    with a negative offset as if it had no sign). FP32 is multiplied as three products of TF32.

    Args:
        mask: bool or to be added to the scores, (..., n_q, n_kv), as scaled_dot_product_attention's attn_mask.
        gpu: a GPU, or its name.

    Raises:
        NotImplementedError: a head_dim for which torch has no such kernel.
    """
    kernel, tile = _compiled(q.dtype, q.shape[3], GPU.of(gpu))
    shared, warps, buffer, alignment, size = kernel.variables["sizes"].view("uint32").tolist()
    if q.shape[3] % alignment:
        raise NotImplementedError(f"torch has this kernel for a head_dim that is a multiple of {alignment} alone")
    (batch, heads, n_q, head_dim), n_kv = q.shape, k.shape[2]
    k, v = repeated(q, k, v)
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    o = torch.full((batch, n_q, heads, head_dim), nan, dtype=q.dtype)
    bias = None if mask is None else _bias(mask, q, n_kv)  # (batch, heads, n_q, n_kv), in q's dtype
    values = dict(
        query_ptr=q, key_ptr=k, value_ptr=v, attn_bias_ptr=bias, output_ptr=o, scale=scale,
        output_accum_ptr=torch.full(o.shape, nan) if buffer else None, head_dim=head_dim, head_dim_value=head_dim,
        num_queries=n_q, num_keys=n_kv, custom_mask_type=BOTTOM_RIGHT if causal else 0, o_strideM=o.stride(1),
        num_batches=batch, num_heads=heads,
    )  # fmt: skip
    for name, x in dict(q=q, k=k, v=v, bias=bias).items():
        if x is not None:
            values |= {f"{name}_stride{axis}": x.stride(dim) for dim, axis in enumerate("BHM")}
    numbers = kernel.variables["layout"].view("uint32").tolist()
    layout = dict(zip(FIELDS, zip(numbers[::2], numbers[1::2])))
    kernel((-(-n_q // tile[0]), heads, batch), (32, warps), shared, Structure(layout, size, values), unwritten=NANS)
    return swapped(o)


def _bias(mask: Tensor, q: Tensor, n_kv: int) -> Tensor:
    """Make of a mask what scaled_dot_product_attention gives the kernel: numbers to be added, in q's dtype, with room
    for a multiple of 16 keys; (batch, heads, n_q, n_kv), expanded from the mask's own shape."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, -inf)
    wide = in_4_dims(mask.to(q.dtype))
    assert wide is not None  # of a mask
    room = torch.nn.functional.pad(wide, (0, -n_kv % BIAS_MULTIPLE))[..., :n_kv]  # (1 or batch, 1 or heads, n_q, n_kv)
    return room.expand(*q.shape[:3], n_kv)


@cache
def _compiled(dtype: torch.dtype, head_dim: int, gpu: GPU) -> tuple[Kernel, tuple[int, ...]]:
    """Compile the first kernel of torch's list that a head_dim fits in; and return its tile."""
    tile = next(tile for tile in TILES if head_dim <= tile[2])
    fields = ", ".join(f"offsetof(Params, {field}), sizeof(Params::{field})" for field in FIELDS)
    sizes = ", ".join(map(str, tile))
    text = SOURCE.substitute(version=torch.__version__, dtype=TYPES[dtype], tile=sizes, fields=fields)
    cutlass = unpacked(FLASH_ATTN) / "csrc" / "cutlass" / "include"
    headers = Path(torch.__file__).parent / "include"  # not hashed: the text holds torch's version
    include = [Path(__file__).with_name("headers_torch"), cutlass]
    return Kernel(compile_cuda(text, include=include, flags=("-std=c++20", "-isystem", str(headers))), gpu=gpu), tile
