"""Single instructions of a Hopper GPU as functions of tensors: products of its tensor cores, ex2, lg2 and rcp.

`compile` builds instructions.cu; `product(library, INSTRUCTIONS[0])` and `elementwise(library, "ex2_ftz")` are
functions.
"""

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fa_lib.experiments.hardware.cuda import cuda_home

SOURCE = Path(__file__).with_suffix(".cu")
TARGET = "arch=compute_90a,code=sm_90a"
TYPES = {
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "TF32": torch.float32,
    "E4M3": torch.float8_e4m3fn,
    "E5M2": torch.float8_e5m2,
}
OFFSETS = ((128, 256), (256, 128))  # bytes (leading, stride): along k and along rows, or the other way round

ELEMENTWISE = (  # <name>_ftz is <name>.approx.ftz.f32; others end with _f32 where C has a function of that name
    "ex2_ftz", "ex2", "lg2_ftz", "lg2_f32", "rcp_ftz", "rcp_f32", "rsqrt_ftz", "rsqrt_f32", "sqrt_ftz", "sqrt_f32",
    "tanh_f32",
)  # fmt: skip


@dataclass(frozen=True)
class Instruction:
    """A tensor-core instruction.

    Attributes:
        key: its launcher in instructions.cu. format: of a and b. k: products of one call.
        kind: "mma.sync" (a warp) or "wgmma" (a warpgroup). result: the format of c and d.
    """

    key: str
    format: str
    k: int
    kind: str
    result: str = "FP32"


INSTRUCTIONS = (
    Instruction("mma_fp16", "FP16", 16, "mma.sync"),
    Instruction("mma_bf16", "BF16", 16, "mma.sync"),
    Instruction("mma_tf32", "TF32", 8, "mma.sync"),
    Instruction("mma_e4m3", "E4M3", 32, "mma.sync"),
    Instruction("mma_e5m2", "E5M2", 32, "mma.sync"),
    Instruction("mma_fp16_fp16", "FP16", 16, "mma.sync", "FP16"),
    Instruction("wgmma_fp16", "FP16", 16, "wgmma"),
    Instruction("wgmma_bf16", "BF16", 16, "wgmma"),
    Instruction("wgmma_tf32", "TF32", 8, "wgmma"),
    Instruction("wgmma_e4m3", "E4M3", 32, "wgmma"),
    Instruction("wgmma_e5m2", "E5M2", 32, "wgmma"),
)


def compile(folder):
    """Build instructions.cu for sm_90a into a folder, and load it as a ctypes library.

    Raises:
        RuntimeError: there is no nvcc (`cuda_home`), or it failed; with its words.
    """
    built = Path(folder) / "hardware.so"
    built.parent.mkdir(parents=True, exist_ok=True)
    options = ["-gencode", TARGET, "-O2", "-shared", "-Xcompiler", "-fPIC"]
    command = [str(cuda_home() / "bin/nvcc"), *options, str(SOURCE), "-o", str(built)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"nvcc failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return ctypes.CDLL(str(built))


def product(library, instruction):
    """Make the function (a, b, c) -> d, d_i = c_i + sum_k a_ik b_ik, that runs an instruction once for each i.

    The function takes CUDA tensors a, b (n, k) and c (n,) of any floating-point type, with values on the grids of the
    instruction's formats, and returns d (n,) in FP32 when the GPU is done. It raises a ValueError for other shapes or
    devices, and a RuntimeError where CUDA reports an error.

    Args:
        library: of `compile`. instruction: one of INSTRUCTIONS.

    Raises:
        RuntimeError: dot products of small integers come out wrong; of a wgmma with both orders of OFFSETS.
    """
    for offsets in OFFSETS if instruction.kind == "wgmma" else [()]:
        function = _launcher(library, instruction, offsets)
        if _exact(function, instruction.k):
            return function
    raise RuntimeError(f"{instruction.key}: wrong dot products of small integers")


def on_arrays(function, device="cuda"):
    """Make of a function of tensors an `mma` of numpy arrays, as `tensor_cores` and `probes` take it.

    Args:
        function: of `product`. device: where its tensors are.

    Returns:
        function: (a, b, c) -> d; a, b: float64 (n, k); c: float64 (n,); d: float32 (n,).
    """

    def mma(a, b, c):
        tensors = [torch.from_numpy(np.ascontiguousarray(x, np.float64)).to(device) for x in (a, b, c)]
        return function(*tensors).cpu().numpy()

    return mma


def elementwise(library, key):
    """Make the function x -> y that runs one of ELEMENTWISE on each element of a CUDA tensor of any shape; y is FP32.

    Args:
        library: of `compile`. key: of ELEMENTWISE.
    """
    launch = getattr(library, key)

    def function(x):
        x = x.to(torch.float32).contiguous()
        y = torch.full_like(x, torch.nan)
        _run(launch, x, y, ctypes.c_longlong(x.numel()))
        return y

    return function


def binary(library, key):
    """Make the function (x, y) -> z that runs a division of instructions.cu on each pair of elements of two CUDA
    tensors in FP32, of one shape; z is FP32.

    Args:
        library: of `compile`. key: the division's launcher.
    """
    launch = getattr(library, key)

    def function(x, y):
        x, y = x.contiguous(), y.contiguous()
        z = torch.full_like(x, torch.nan)
        _run(launch, x, y, z, ctypes.c_longlong(x.numel()))
        return z

    return function


def short(library, key):
    """Make the function x -> y of bits of 16-bit numbers, int16 CUDA tensors, of an instruction of instructions.cu.

    Args:
        library: of `compile`. key: the instruction's launcher.
    """
    launch = getattr(library, key)

    def function(x):
        y = torch.zeros_like(x)
        _run(launch, x, y, ctypes.c_longlong(x.numel()))
        return y

    return function


def _launcher(library, instruction, offsets):
    launch, dtype, k = getattr(library, instruction.key), TYPES[instruction.format], instruction.k

    def function(a, b, c):
        if a.shape != b.shape or a.shape != (len(c), k):
            shapes = [tuple(x.shape) for x in (a, b, c)]
            raise ValueError(f"a, b, c: got {shapes}; accepted are (n, {k}) twice and (n,)")
        a, b = (x.to(torch.float32).to(dtype).contiguous() for x in (a, b))
        c = c.to(torch.float32).contiguous()
        d = torch.full_like(c, torch.nan)
        _run(launch, a, b, c, d, ctypes.c_int(len(c)), *map(ctypes.c_int, offsets))
        return d

    return function


def _run(launch, *arguments):
    """Call a launcher with tensors as pointers, on the current stream, and wait."""
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    if any(x.device.type != "cuda" for x in tensors):
        raise ValueError(f"tensors: got {[str(x.device) for x in tensors]}; accepted are CUDA tensors")
    if not tensors[0].numel():
        return
    pointers = [ctypes.c_void_p(x.data_ptr()) if isinstance(x, torch.Tensor) else x for x in arguments]
    error = launch(*pointers, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    torch.cuda.synchronize()  # raises what went wrong in the kernel
    if error:
        raise RuntimeError(f"CUDA error {error} at the launch")


def _exact(function, k):
    """Say whether dot products of small integers come out exact: every partial sum has less than 14 bits."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (2, 200, k)).astype(np.float64)
    c = rng.integers(-100, 101, 200).astype(np.float64)
    return bool((on_arrays(function)(a, b, c) == (a * b).sum(axis=1) + c).all())
