"""llama.cpp's flash attention on CUDA, compiled from llama-cpp-python's source package, on a CPU in a GPU's arithmetic.

Calls are made as llama.cpp makes them with flash attention on: Q is FP32, K and V lie in a KV cache of FP16, q8_0 or
q4_0, whose part in use is padded to 256 keys, a mask in FP16 hides the padding, and O is FP32. A batch is a number of
sequences with a cache of their own each. Line numbers are of vendor/llama.cpp/ggml/src/ggml-cuda, where no other folder
is named. All kernels are compiled for sm_80, as CMakeLists.txt (line 47) does for an A100, in half a minute the first
time; compile_cuda stores them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention_gallery.adapters import HALF, accepts, calls_of, swapped
from attention_gallery.catalogue import cuda_template, pinned
from ptx_machine.device import GPU
from ptx_machine.launch import Kernel, Structure
from ptx_machine.memory import NANS
from ptx_machine.nvcc import compile_cuda
from ptx_machine.occupancy import occupancy
from ptx_machine.sources import unpacked

LLAMA_CPP = pinned("llama-cpp-python", "0.3.36")
FLAGS = ("-use_fast_math", "-extended-lambda")  # CMakeLists.txt, line 199
ADA = 89
BLOCK = 32  # values that share a scale in q8_0 and q4_0
BLOCK_BYTES = {"q8_0": 34, "q4_0": 18}
SOURCE = cuda_template("llama.cu")
STORE = cuda_template("llama_store.cu")
PADDED = 256  # keys that the cache grows by (src/llama-kv-cache.cpp, line 1265), also FATTN_KQ_STRIDE
PROMPT = 512  # queries of a call: n_ubatch, llama.cpp's default and llama-cpp-python's (llama_cpp/llama.py, line 77)
SPARE = 64  # the most queries of a tile
MANY = 1024  # queries from which each tile of them learns first how many keys it sees (fattn-common.cuh, line 1117)
WIDTHS = {  # kernel -> its head_dims, where all heads of Q, K and V have one
    "mma": (64, 80, 96, 112, 128, 256), "vec": (64, 128, 256), "tile": (40, 64, 72, 80, 96, 112, 128, 256),
}  # fmt: skip
_kernel = cache(Kernel)
STORING = 256  # threads of a block that stores values in the cache (set-rows.cu)


@dataclass(frozen=True)
class Kernels:
    """An attention kernel and those that its launch brings along.

    Attributes:
        text: the PTX. name: a part of the attention kernel's name. gpu: where they run.
        rows, heads: of a block, its queries (ncols1), and the heads of Q that share K and V (ncols2).
        threads: of a block. keys: of a tile. shared: bytes of dynamic shared memory of a block.
        most: blocks that the GPU holds at once.
    """

    text: str
    name: str
    gpu: GPU
    rows: int
    heads: int
    threads: int
    keys: int
    shared: int
    most: int

    def __getitem__(self, name: str) -> Kernel:
        """The kernel whose name contains `name`."""
        return _kernel(self.text, name, gpu=self.gpu)


@cache
def compiled(kernel: str, head_dim: int, rows: int, heads: int, kind: str, gpu: GPU) -> Kernels:
    """Compile an attention kernel: "mma", flash_attn_ext_f16 of fattn-mma-f16.cuh; "vec", for one query of a call;
    "tile", which has no tensor cores. kind: of the cache, for "vec" "F16", "q8_0" or "q4_0"."""
    d, columns, kind = head_dim, rows * heads, f"GGML_TYPE_{kind.upper()}"
    name, instance, others = {
        "mma": (
            "flash_attn_ext_f16", f"{d}, {d}, {rows}, {heads}, false, false, false",
            [f"flash_attn_stream_k_fixup_{how}<{d}, {rows}, {heads}>" for how in ("uniform", "general")],
        ),
        "vec": ("flash_attn_ext_vec", f"{d}, 1, {kind}, {kind}, false", [f"flash_attn_combine_results<{d}>"]),
        "tile": ("flash_attn_tile", f"{d}, {d}, {rows}, {heads}, false", [f"flash_attn_combine_results<{d}>"]),
    }[kernel]  # fmt: skip
    names = [f"{name}<{instance}>", *others, f"flash_attn_mask_to_KV_max<{rows}>"]
    mma = f"ggml_cuda_fattn_mma_get_config_ampere({d}, {d}, {columns})"
    tile = f"ggml_cuda_fattn_tile_get_config_nvidia_fp16({d}, {d}, {columns})"
    fields = "nthreads nbatch_fa nbatch_K2 nbatch_V2 nbatch_combine nstages_target".split()
    configuration = {  # threads of a block, keys of a tile; then what shared memory depends on
        "mma": [f"{mma}.{field}" for field in fields], "vec": ["128", f"{d}"],
        "tile": [f"int({tile} & 1023)", f"int({tile} >> 14 & 511)"],
    }[kernel]  # fmt: skip
    header = "fattn-mma-f16.cuh" if kernel == "mma" else f"fattn-{kernel}.cuh"
    kernels = ", ".join(f"(const void *) {each}" for each in names)
    text = _ptx(SOURCE.substitute(header=header, kernels=kernels, configuration=", ".join(configuration)))
    attention = _kernel(text, name, gpu=gpu)
    threads, keys, *numbers = attention.variables["configuration"].view(np.int32).tolist()
    shared = _shared(d, rows, heads, threads, keys, *numbers) if numbers else 0
    resident = occupancy(text, attention.entry.name, threads, shared, gpu)
    return Kernels(text, name, gpu, rows, heads, threads, keys, shared, resident * gpu.processors)


def _shared(head_dim, rows, heads, threads, keys, k2, v2, combined, stages):
    """Bytes of dynamic shared memory: ggml_cuda_flash_attn_ext_mma_f16_case in fattn-mma-f16.cuh."""
    columns, swizzled = rows * heads, k2 % 32 == v2 % 32 == 0
    k_row, v_row = (width if swizzled else width + 4 for width in (k2, v2))
    pipelined = heads >= 2 and stages > 1
    tiles = keys * (k_row + v_row if pipelined else max(k_row, v_row))
    parts = threads // 32 * min(columns, 16) * (combined + 4)
    return 4 * max(parts, columns * (head_dim // 2 + 4), tiles + rows * (keys // 2 + 4))


@cache
def _ptx(text: str) -> str:
    source = unpacked(LLAMA_CPP) / "vendor" / "llama.cpp" / "ggml"
    include = [Path(__file__).with_name("headers"), source / "include", source / "src", source / "src" / "ggml-cuda"]
    return compile_cuda(text, include=include, flags=FLAGS)


def blocks_of_streams(tiles: int, of_keys: int, kernels: Kernels) -> int:
    """Compute the number of blocks that share out all tiles and keys evenly; as many as tiles: no sharing."""
    if kernels.gpu.capability < ADA and 100 * tiles // (kernels.most * -(-tiles // kernels.most)) >= 75:
        return tiles
    blocks = min(kernels.most, of_keys * tiles)
    even = blocks // tiles * tiles
    return even if even and 100 * (blocks - even) // blocks <= 5 else blocks


def parts_of_keys(tiles: int, of_keys: int, kernels: Kernels) -> int:
    """Compute into how many parts the keys are cut."""
    first = min(kernels.most // kernels.gpu.processors, of_keys)
    parts, best, best_waves = first, 0, 0
    for count in range(first, of_keys + 1):
        waves = -(-tiles * count // kernels.most)
        efficiency = 100 * tiles * count // (waves * kernels.most)
        if best >= 95 and waves > best_waves:
            break
        if efficiency > best:
            parts, best, best_waves = count, efficiency, waves
    return parts


def divisor(d: int) -> Structure:
    """Make the numbers by which kernels divide without dividing: init_fastdiv_values of common.cuh."""
    shift = (d - 1).bit_length()
    layout = {"factor": (0, 4), "shift": (4, 4), "divisor": (8, 4)}
    return Structure(layout, 12, dict(factor=((1 << 32) * ((1 << shift) - d) // d + 1), shift=shift, divisor=d))


def flash_attn_ext(
    cache: str = "F16", kernel: str | None = None, decodes: bool = False, crowded: bool = False
) -> Callable:
    """Make a way to call llama.cpp's ggml_cuda_flash_attn_ext, f(q, k, v, causal=False, scale=None, gpu="A100"): o
    (batch, heads, n_q, head_dim), FP32 rounded to q's dtype, of q, k, v (batch, heads, n, head_dim) in FP16, with a
    quantised cache also BF16, which is stored from FP32. Refused: a dtype, head_dim or gradient that llama.cpp does not
    have, and a query that sees no key. gpu: a GPU, or its name.

    Args:
        cache: the type of K and V in the cache: "F16", "q8_0" or "q4_0".
        kernel: "mma", "vec" or "tile"; None is what ggml_cuda_get_best_fattn_kernel (fattn.cu) chooses.
        decodes: whether each call has one query, causal or not. Else a call has PROMPT queries where the mask is
            causal; without, llama.cpp wants all in one call.
        crowded: whether a block of fattn-mma-f16 works on all keys of its queries, as in a call with many heads; else
            blocks share the keys out where the call alone does not fill the GPU.
    """
    dtypes = (torch.float16,) if cache == "F16" else HALF  # its kernels convert BF16: fattn.cu, line 522

    @accepts(f"llama.cpp's CUDA attention with a cache of {cache}", dtypes, gradients=False)
    def attention(q, k, v, causal=False, scale=None, *, gpu="A100"):
        if v.shape != k.shape or q.shape[-1] != k.shape[-1] or q.shape[1] % k.shape[1]:
            raise NotImplementedError("llama.cpp wants one head_dim for Q, K and V here, and heads that share K evenly")
        batch, n_q, n_kv, gpu = q.shape[0], q.shape[2], k.shape[2], GPU.of(gpu)
        rows = [_stored(x, cache, gpu) for x in (k, v)]
        caches = [x.new_zeros(batch, n_kv + -n_kv % PADDED, *x.shape[2:]) for x in rows]  # heads_kv, head_dim or bytes
        outputs, filled = [], 0
        for which, keys in calls_of(n_q, n_kv, 1 if decodes else PROMPT if causal else n_q, causal):
            for stored, x in zip(caches, rows):  # unused places stay zero, as in llama.cpp's cache
                stored[:, filled:keys] = x[:, filled:keys]
            filled = keys
            part = swapped(q[:, :, which]).float().contiguous()  # (batch, queries, heads, head_dim), FP32
            mask = _mask(batch, part.shape[1], keys, causal)
            outputs.append(_called(part, caches, mask, scale, cache, kernel, crowded, gpu))
        return swapped(torch.cat(outputs, 1)).contiguous().to(q.dtype)

    return attention


def _called(q, caches, mask, scale, cache, kernel, crowded, gpu):
    """Make one call: o (batch, n_q, heads, head_dim), FP32, of q in that layout and mask (batch, 1, n_q, keys)."""
    (_, n_q, heads, d), heads_kv = q.shape, caches[0].shape[2]
    kernel = kernel or chosen(heads // heads_kv, n_q, d, cache, gpu)
    if d not in WIDTHS[kernel]:
        raise NotImplementedError(f"llama.cpp's {kernel} kernel has head_dim {WIDTHS[kernel]}; {d} came")
    if kernel != "vec" and cache != "F16":
        caches = [_halved(x, cache) for x in caches]  # launch_fattn converts them, need_f16_K and need_f16_V
    kind = cache if kernel == "vec" else "F16"
    kernels = compiled(kernel, d, *_columns(kernel, n_q, heads // heads_kv), kind, gpu)
    return _launch(kernels, q, caches, mask, scale, crowded)


def chosen(shared: int, n_q: int, head_dim: int, cache: str, gpu: GPU) -> str:
    """Choose "mma", "vec" or "tile", as ggml_cuda_get_best_fattn_kernel of fattn.cu does with a padded cache, a mask
    and one sequence, for a GPU from Ampere on.

    Args:
        shared: heads of Q that share one of K and V. n_q: queries of a call. cache: its type of K and V.
    """
    if head_dim in (40, 72):
        return "tile"
    if head_dim not in WIDTHS["vec"]:
        return "mma"
    newer = gpu.capability >= ADA
    if cache != "F16" and n_q <= (2 if newer else 1):
        return "vec"
    if cache == "F16" and newer and n_q == 1 and not (shared > 4 and head_dim >= 256):
        return "vec"
    return "vec" if shared == n_q == 1 else "mma"


def _columns(kernel: str, n_q: int, shared: int) -> tuple[int, int]:
    """Queries and heads of a block: ggml_cuda_flash_attn_ext_mma_f16_switch_ncols2 and _ncols1 in fattn.cu;
    launch_fattn_tile_switch_ncols2 and _ncols1 in fattn-tile.cuh."""
    if kernel == "vec":
        return 1, 1
    if kernel == "mma":
        heads, sizes = 8 if shared > 4 else 4 if shared > 2 else 2 if shared > 1 else 1, (8, 16, 32, 64)
    else:
        few = shared > 4 or n_q <= 16
        heads = next(count for count in (8, 4, 2, 1) if shared % count == 0) if few else 1
        sizes = [columns for columns in (2, 4, 8, 16, 32) if columns >= heads]
    return next(columns for columns in sizes if n_q <= columns // heads or columns == sizes[-1]) // heads, heads


def _launch(kernels: Kernels, q: Tensor, caches: list[Tensor], mask: Tensor, scale: float, crowded: bool) -> Tensor:
    """Launch an attention kernel and what belongs to it: launch_fattn in fattn-common.cuh."""
    (batch, n_q, heads, d), heads_kv, n_kv = q.shape, caches[0].shape[2], mask.shape[-1]
    of_rows, of_heads = -(-n_q // kernels.rows), -(-heads // heads_kv // kernels.heads)
    tiles, of_keys = of_rows * of_heads * heads_kv * batch, -(-n_kv // kernels.keys)
    streams = kernels.name == "flash_attn_ext_f16"  # blocks share out the keys evenly; else each has a fixed part
    o = torch.full((batch, n_q, heads, d), math.nan)
    out, meta, counts, parts = o, None, None, 1
    if n_q >= MANY or batch > 1:
        counts = torch.full((of_rows * batch,), -1, dtype=torch.int32)
        strides = mask.stride(2) // 2, mask.stride(0) // 2  # in pairs
        kernels["flash_attn_mask_to_KV_max"](
            (of_rows, batch), (PADDED // 2,), 0, mask, counts, n_kv // PADDED, *strides
        )
    if streams:
        grid = (tiles if crowded else blocks_of_streams(tiles, of_keys, kernels),)
        if tiles % grid[0]:
            meta = torch.full((grid[0] * kernels.rows * kernels.heads * (2 + d // 2), 2), math.nan)
    else:
        parts = parts_of_keys(tiles, of_keys, kernels)
        grid = of_rows, parts, of_heads * heads_kv * batch
        if parts > 1:
            out, meta = (torch.full((batch, n_q, heads, parts, width), math.nan) for width in (d, 2))
    arguments: list[Any] = [q, *caches, mask, None, counts, out, meta]
    arguments += [scale, 0.0, 1.0, 1.0, 1 << int(math.log2(heads)), 0.0]  # no ALiBi, no softcap
    arguments += [d, divisor(n_q), heads, batch, *_bytes(q)]
    arguments += [d, n_kv, heads_kv, batch, *_bytes(caches[0]), *_bytes(caches[1])]
    arguments += [n_q, 1, batch, 2 * mask.stride(2), 2 * mask.stride(1), 2 * mask.stride(0)]
    # tiles of V read a little behind their last row, where head_dim is no multiple of 64, and drop what they read
    unwritten = None if d % 64 == 0 else NANS
    kernels[kernels.name](grid, (32, kernels.threads // 32), kernels.shared, *arguments, unwritten=unwritten)
    if streams:
        _mend(kernels, o, meta, grid[0], (of_keys, of_rows, of_heads, heads_kv))
    elif parts > 1:
        kernels["flash_attn_combine_results"]((n_q, heads, batch), (d,), 8 * parts, out, meta, o, parts)
    return o


def _mend(kernels: Kernels, o: Tensor, meta: Tensor | None, blocks: int, counts: tuple[int, ...]) -> None:
    """Combine the parts of tiles that several blocks worked on. counts: of the tiles of keys, rows and heads, and of
    the heads of K."""
    (batch, n_q, heads, d), (of_keys, of_rows, of_heads, heads_kv) = o.shape, counts
    tiles, shared, grid = of_rows * of_heads * heads_kv * batch, heads // heads_kv, (kernels.rows, kernels.heads)
    by = of_rows * of_heads * heads_kv, of_rows * of_heads, of_rows
    if blocks % tiles == 0 and blocks > tiles:
        numbers = n_q, heads, heads_kv, blocks, shared, blocks // tiles
        fixup = kernels["flash_attn_stream_k_fixup_uniform"]
        fixup((tiles, *grid), (d,), 0, o, meta, *numbers, *map(divisor, by))
    elif tiles % blocks:
        by = *(of_keys * number for number in by), of_keys
        fixup = kernels["flash_attn_stream_k_fixup_general"]
        fixup((blocks, *grid), (d,), 0, o, meta, n_q, heads, shared, of_keys * tiles, *map(divisor, by))


def _bytes(x: Tensor) -> tuple[int, int, int]:
    """Return the strides of (batch, n, heads, head_dim) in bytes: of n, of heads, of batch."""
    batch, n, heads, _ = (step * x.element_size() for step in x.stride())
    return n, heads, batch


def _mask(batch: int, n_q: int, n_kv: int, causal: bool) -> Tensor:
    """Make the mask, FP16 (batch, 1, n_q, n_kv up to a multiple of PADDED): 0 where a key is visible, else -inf.

    SPARE rows of zeros lie behind it: flash_attn_mask_to_KV_max (fattn-common.cuh, line 698) reads whole tiles of
    queries, past the end of the mask. llama.cpp has other tensors of its buffer there, which hide nothing.
    """
    keys = torch.arange(n_kv + -n_kv % PADDED)
    last = torch.arange(n_kv - n_q, n_kv) if causal else torch.full((n_q,), n_kv - 1)
    rows = torch.zeros(batch * n_q + SPARE, len(keys), dtype=torch.float16)
    mask = rows[: batch * n_q].view(batch, 1, n_q, -1)
    return mask.masked_fill_(keys[None] > last[:, None], -math.inf)


def _stored(x: Tensor, cache: str, gpu: GPU) -> Tensor:
    """Store x (batch, heads, n, head_dim) in a cache's type: (batch, n, heads, head_dim) FP16, or bytes for it, by
    ggml's own function of cpy-utils.cuh, as set-rows.cu does."""
    x = x.detach().float().transpose(1, 2).contiguous()
    if cache == "F16":
        return x.half()
    if x.shape[-1] % BLOCK:
        raise NotImplementedError(f"ggml quantises blocks of {BLOCK} values: head_dim is {x.shape[-1]}, no multiple")
    blocks = x.numel() // BLOCK
    data = torch.zeros(blocks * BLOCK_BYTES[cache], dtype=torch.uint8)
    store = _kernel(_ptx(STORE.substitute(kind=cache, block=BLOCK)), "store", gpu=gpu)
    store((-(-blocks // STORING),), (STORING,), 0, x, data, blocks)
    return data.view(*x.shape[:3], -1)


def _halved(x: Tensor, cache: str) -> Tensor:
    """Convert a quantised cache to FP16, (batch, n, heads, head_dim): ggml_get_to_fp16_cuda of convert.cu."""
    blocks = x.unflatten(-1, (-1, BLOCK_BYTES[cache]))
    factor = blocks[..., :2].contiguous().view(torch.float16).float()
    codes = blocks[..., 2:].contiguous()
    numbers = codes.view(torch.int8).float() if cache == "q8_0" else torch.cat((codes & 15, codes >> 4), -1) - 8.0
    return (numbers * factor).half().flatten(-2)


llama_cuda_mma = flash_attn_ext(kernel="mma")  # for prompts, 512 queries in each causal call
# as where a call has so many heads that no blocks share the keys of a query: on an A100, 24 heads of head_dim 64 with
# 512 queries (fattn-common.cuh, should_use_stream_k)
llama_cuda_mma_crowded = flash_attn_ext(kernel="mma", crowded=True)
# on an A100 fattn-mma-f16 where heads share K and V, and fattn-vec where not
llama_cuda_decode = flash_attn_ext(decodes=True)
llama_cuda_q8_0, llama_cuda_q4_0 = (flash_attn_ext(kind, decodes=True) for kind in ("q8_0", "q4_0"))
# without tensor cores: for head_dim 40 and 72, and on Volta for few queries. It adds up O in FP16, but on a GTX 10 in
# FP32 (common.cuh, line 271)
llama_cuda_tile = flash_attn_ext(kernel="tile")
