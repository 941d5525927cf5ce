"""llama.cpp's CUDA kernels of attention, compiled from llama-cpp-python's source package, and what their launches need:
configurations, shared memory, and how many blocks a multiprocessor holds.

Line numbers are of vendor/llama.cpp/ggml/src/ggml-cuda. All kernels are compiled for sm_80, as CMakeLists.txt (line 47)
does for an A100. The first compilation of a kernel takes half a minute; compile_cuda stores it.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from attention_gallery.catalogue import pinned
from ptx_machine.device import GPU
from ptx_machine.launch import Kernel, Structure
from ptx_machine.nvcc import compile_cuda
from ptx_machine.occupancy import occupancy
from ptx_machine.sources import unpacked

LLAMA_CPP = pinned("llama-cpp-python", "0.3.36")
FLAGS = ("-use_fast_math", "-extended-lambda")  # CMakeLists.txt, line 199
ADA = 89
WARP = 32
BLOCK = 32  # values that share a scale in q8_0 and q4_0
BLOCK_BYTES = {"q8_0": 34, "q4_0": 18}
SOURCE = """{includes}
const void * chosen[] = {{{kernels}}};
extern "C" __device__ int configuration[] = {{{configuration}}};
"""
STORE = """#include "common.cuh"
#include "cpy-utils.cuh"
extern "C" __global__ void store(const float * values, block_{kind} * blocks, long long count) {{
    const long long i = blockIdx.x * (long long) blockDim.x + threadIdx.x;
    if (i < count) quantize_f32_{kind}_block(values + {block} * i, blocks + i);
}}
"""


@dataclass(frozen=True)
class Kernels:
    """An attention kernel and those that its launch brings along.

    Attributes:
        text: the PTX.
        gpu: the GPU.
        name: a part of the attention kernel's name.
        rows: queries of a block, ncols1.
        heads: heads of Q that share K and V in a block, ncols2.
        streams: whether blocks share out the keys evenly (stream-k), and not each a fixed part of them.
        head_dim: of Q, K and V.
    """

    text: str
    gpu: GPU
    name: str
    rows: int
    heads: int
    streams: bool
    head_dim: int

    @cache  # noqa: B019 - few of them, and they live as long as the process
    def kernel(self, name: str) -> Kernel:
        """Return the kernel whose name contains `name`."""
        return Kernel(self.text, name, gpu=self.gpu)

    @cached_property
    def configuration(self) -> list[int]:
        """The numbers that SOURCE asks for: threads of a block, keys of a tile, then those of the shared memory."""
        return self.kernel(self.name).variable("configuration").view(np.int32).tolist()

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.configuration[0]

    @property
    def keys(self) -> int:
        """Keys of a tile, by which the keys are shared out."""
        return self.configuration[1]

    @cached_property
    def shared(self) -> int:
        """Bytes of dynamic shared memory: ggml_cuda_flash_attn_ext_mma_f16_case in fattn-mma-f16.cuh, none else."""
        if not self.streams:
            return 0
        threads, keys, k2, v2, combined, stages = self.configuration
        columns, swizzled = self.rows * self.heads, k2 % 32 == v2 % 32 == 0
        k_row, v_row = (width if swizzled else width + 4 for width in (k2, v2))
        pipelined = self.heads >= 2 and stages > 1
        tiles = keys * (k_row + v_row if pipelined else max(k_row, v_row))
        mask = self.rows * (keys // 2 + 4)
        parts = threads // WARP * min(columns, 16) * (combined + 4)
        return 4 * max(parts, columns * (self.head_dim // 2 + 4), tiles + mask)

    @cached_property
    def occupancy(self) -> int:
        """How many blocks a multiprocessor holds: cudaOccupancyMaxActiveBlocksPerMultiprocessor."""
        return occupancy(self.text, self.kernel(self.name).entry.name, self.threads, self.shared, self.gpu)


def mma_kernels(head_dim: int, rows: int, heads: int, gpu: GPU) -> Kernels:
    """Compile flash_attn_ext_f16 of fattn-mma-f16.cuh and the kernels that mend tiles which blocks share."""
    columns = f"{head_dim}, {rows}, {heads}"
    names = (
        f"flash_attn_ext_f16<{head_dim}, {columns}, false, false, false>",
        f"flash_attn_stream_k_fixup_uniform<{columns}>", f"flash_attn_stream_k_fixup_general<{columns}>",
        f"flash_attn_mask_to_KV_max<{rows}>",
    )  # fmt: skip
    config = f"ggml_cuda_fattn_mma_get_config_ampere({head_dim}, {head_dim}, {rows * heads})"
    fields = "nthreads nbatch_fa nbatch_K2 nbatch_V2 nbatch_combine nstages_target".split()
    text = _compiled("fattn-mma-f16.cuh", names, [f"{config}.{field}" for field in fields])
    return _kernels(text, gpu, "flash_attn_ext_f16", rows, heads, True, head_dim)


def vec_kernels(head_dim: int, kind: str, gpu: GPU) -> Kernels:
    """Compile flash_attn_ext_vec of fattn-vec.cuh for one query of a call and a cache of "F16", "q8_0" or "q4_0"."""
    kind = f"GGML_TYPE_{kind.upper()}"
    names = (
        f"flash_attn_ext_vec<{head_dim}, 1, {kind}, {kind}, false>", f"flash_attn_combine_results<{head_dim}>",
        "flash_attn_mask_to_KV_max<1>",
    )  # fmt: skip
    text = _compiled("fattn-vec.cuh", names, ["128", f"{head_dim}"])
    return _kernels(text, gpu, "flash_attn_ext_vec", 1, 1, False, head_dim)


def tile_kernels(head_dim: int, rows: int, heads: int, gpu: GPU) -> Kernels:
    """Compile flash_attn_tile of fattn-tile.cuh, which has no tensor cores."""
    columns = f"{head_dim}, {head_dim}, {rows * heads}"
    names = (
        f"flash_attn_tile<{head_dim}, {head_dim}, {rows}, {heads}, false>", f"flash_attn_combine_results<{head_dim}>",
        f"flash_attn_mask_to_KV_max<{rows}>",
    )  # fmt: skip
    config = f"ggml_cuda_fattn_tile_get_config_nvidia_fp16({columns})"
    text = _compiled("fattn-tile.cuh", names, [f"int({config} & 1023)", f"int({config} >> 14 & 511)"])
    return _kernels(text, gpu, "flash_attn_tile", rows, heads, False, head_dim)


@cache
def storing_kernel(kind: str, gpu: GPU) -> Kernel:
    """Compile a kernel that stores FP32 values in a KV cache of "q8_0" or "q4_0" by ggml's own function of
    cpy-utils.cuh, as set-rows.cu does: store(values, blocks, number of blocks)."""
    return Kernel(_ptx(STORE.format(kind=kind, block=BLOCK)), "store", gpu=gpu)


_kernels = cache(Kernels)


def _compiled(header: str, kernels: tuple[str, ...], configuration: list[str]) -> str:
    return _ptx(
        SOURCE.format(
            includes=f'#include "{header}"',
            kernels=", ".join(f"(const void *) {name}" for name in kernels),
            configuration=", ".join(configuration),
        )
    )


@cache
def _ptx(text: str) -> str:
    source = unpacked(LLAMA_CPP) / "vendor" / "llama.cpp" / "ggml"
    include = [Path(__file__).with_name("headers"), source / "include", source / "src", source / "src" / "ggml-cuda"]
    return compile_cuda(text, include=include, flags=FLAGS)


def blocks_of_streams(tiles: int, of_keys: int, most: int, gpu: GPU) -> int:
    """Compute the number of blocks that share out all tiles and keys evenly; as many as tiles: no sharing."""
    if gpu.capability < ADA and 100 * tiles // (most * -(-tiles // most)) >= 75:
        return tiles
    blocks = min(most, of_keys * tiles)
    even = blocks // tiles * tiles
    return even if even and 100 * (blocks - even) // blocks <= 5 else blocks


def parts_of_keys(tiles: int, of_keys: int, occupancy: int, gpu: GPU) -> int:
    """Compute into how many parts the keys are cut."""
    first, wave = min(occupancy, of_keys), gpu.processors * occupancy
    parts, best, best_waves = first, 0, 0
    for count in range(first, of_keys + 1):
        waves = -(-tiles * count // wave)
        efficiency = 100 * tiles * count // (waves * wave)
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
