"""FlashAttention-4's CuTe kernels, for Hopper (wgmma) and Blackwell (tcgen05), on a CPU in a GPU's arithmetic: compiled
by the project's own code without a GPU, by `compiled`.

Tensors are in BF16 or FP16; heads of K and V may be fewer. Line numbers are those of flash-attn-4 4.0.0b36, in
flash_attn/cute.
"""

import atexit
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from functools import cache
from math import nan
from pathlib import Path
from threading import Lock
from typing import IO, Any

import torch
from torch import Tensor

from attention_gallery.adapters import HALF, accepts, dtype_name, swapped
from attention_gallery.catalogue import MODELLED, pinned
from fa_lib.execution.files import replacing
from fa_lib.execution.machine import installed
from fa_lib.execution.paths import build
from ptx_machine.arguments import Structure
from ptx_machine.device import GPU
from ptx_machine.launch import Kernel
from ptx_machine.sources import unpacked
from ptx_machine.tensor_maps import tensor_map

FLASH_ATTN_4 = pinned("flash-attn-4", "4.0.0b36")
COMPILER = Path(__file__).with_name("flash_attn_4_compiler.py")
TARGETS = {90: "sm_90", 100: "sm_100"}  # by compute capability
HEAD_DIMS = (64, 128)  # of those that it accepts
LOG2_E = 1.44269504  # softmax_utils: the scale is multiplied by it in FP32
CACHE_BYTES = 50 << 20  # of the second-level cache, that LPT scheduling reckons with: tile_scheduler.py, line 503
SHAPE = {f"{i}": (4 * i, 4) for i in range(4)}
DIVISOR = {"divisor": (0, 4), "factor": (4, 4), "a": (8, 1), "b": (9, 1)}
ASKING = Lock()
_kernel = cache(Kernel)


@accepts("FlashAttention-4, as modelled,", HALF, HEAD_DIMS, gradients=False)
def fa4(q, k, v, causal=False, scale: Any = None, *, gpu="H100"):
    """Call flash_attn.cute.flash_attn_func with its defaults. Refused: another head_dim, a GPU that is neither Hopper
    nor Blackwell, or a call for which the project chooses a kernel that is not modelled."""
    gpu = GPU.of(gpu)
    q, k, v = (swapped(x).contiguous() for x in (q, k, v))  # (batch, n, heads, head_dim)
    kernel, choice = compiled(q, k, causal, gpu)
    o = torch.full_like(q, nan)
    group = q.shape[2] // k.shape[2] if choice["pack_gqa"] else 1  # heads of Q whose rows a tile holds together
    grid, scheduling = _scheduled(q, k, group, choice, gpu)
    maps = [_map(x, group if x.shape == q.shape else 1, **kind) for x, kind in zip((q, k, v, o), choice["maps"])]
    log2_scale = float(torch.tensor(scale, dtype=torch.float32) * torch.tensor(LOG2_E, dtype=torch.float32))
    first, parameters = [*map(_shape, (q, k, v, o)), *maps, log2_scale], kernel.entry.parameters
    layouts = [Structure({}, parameter.size) for parameter in parameters[len(first) : len(first) + 2]]  # constant
    unused = parameters[len(first) + 2 + len(scheduling) :]  # divisors that only packed rows with masks use
    zeros = [Structure({}, parameter.size) if parameter.type is None else 0 for parameter in unused]
    kernel(grid, kernel.entry.most or (1,), gpu.shared_bytes, *first, *layouts, *scheduling, *zeros)
    return swapped(o)


fa4_hopper = fa4_blackwell = fa4  # on an H100, on a B200


def compiled(q: Tensor, k: Tensor, causal: bool, gpu: GPU) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel that the project chooses for q (batch, n_q, heads, head_dim) and k (batch, n_kv, heads_kv,
    head_dim), and its choice: scheduler, the name of the class that gives tiles to blocks; tile, the rows of Q that a
    block takes at a time; pack_gqa, whether a tile has rows of all heads that share K and V; maps, of Q, K, V and O,
    "box" (as PTX counts dimensions) and "width" of the tensor map. Refused: another GPU, or the project has no kernel
    for the call. RuntimeError: the compiler does not run."""
    if gpu.capability not in TARGETS:
        raise NotImplementedError(f"FlashAttention-4's kernels are modelled on Hopper and Blackwell; {gpu.name} came")
    call = json.dumps(dict(dtype=dtype_name(q.dtype), q=[*q.shape], k=[*k.shape], causal=causal))
    answer = json.loads(_answer(call, TARGETS[gpu.capability], gpu.processors))
    if "error" in answer:
        raise NotImplementedError(f"FlashAttention-4 has no kernel for this call: {answer['error']}")
    if answer["cluster"] > 1:
        raise NotImplementedError("FlashAttention-4 takes a kernel of two blocks in a cluster, which is not modelled")
    return _kernel(answer["ptx"], answer["name"], gpu=gpu), answer


@cache
def _answer(call: str, target: str, processors: int) -> str:
    """Ask the compiler for a call, or read what it answered before."""
    versions = [f"{name} {installed(name)}" for name in MODELLED["fa4_hopper"].needs]
    words = [call, target, str(processors), FLASH_ATTN_4.sha256, COMPILER.read_text(), *versions]
    stored = build() / "ptx" / f"{hashlib.sha256(chr(0).join(words).encode()).hexdigest()[:32]}.json"
    if not stored.is_file():
        with ASKING:
            answer = _ask(call, *_compiler(target, processors))
        stored.parent.mkdir(parents=True, exist_ok=True)
        with replacing(stored) as path:
            path.write_text(answer)
    return stored.read_text()


@cache
def _compiler(target: str, processors: int) -> tuple[subprocess.Popen, IO[str]]:
    """Start the compiler's process; it prints to the file as long as it runs."""
    words = [sys.executable, str(COMPILER), str(unpacked(FLASH_ATTN_4)), target, str(processors)]
    printed = tempfile.TemporaryFile("w+")  # noqa: SIM115
    pipe, env = subprocess.PIPE, os.environ | {"PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=printed, text=True, env=env)
    atexit.register(process.kill)
    return process, printed


def _ask(call: str, process: subprocess.Popen, printed: IO[str]) -> str:
    """Return the compiler's answer to a call, as JSON; a RuntimeError where its process has ended."""
    try:
        print(call, file=process.stdin, flush=True)
        answer = process.stdout.readline() if process.stdout else ""
    except BrokenPipeError:
        answer = ""
    if not answer:
        code = process.wait()
        printed.seek(0)
        last = [line.strip() for line in printed if line.strip()][-1:]
        raise RuntimeError(f"FlashAttention-4's compiler ended with {code}: {' '.join(last)}")
    return answer


def _shape(x: Tensor) -> Structure:
    """A tensor's shape (n, head_dim, heads, batch); the kernels read n alone."""
    batch, n, heads, d = x.shape
    return Structure(SHAPE, 16, dict(zip("0123", (n, d, heads, batch))))


def _map(x: Tensor, group: int, box: list[int], width: int) -> Structure:
    """Make the tensor map of x (batch, n, heads, head_dim), where the rows of `group` heads lie together in a tile."""
    if group == 1:
        x = x.permute(0, 2, 1, 3)
    elif len(box) != 4:
        x = x.unflatten(2, (-1, group)).permute(0, 2, 1, 3, 4)
    return tensor_map(x, box[::-1], width)


def _scheduled(q: Tensor, k: Tensor, group: int, choice: dict, gpu: GPU) -> tuple[tuple[int, ...], list]:
    """Compute what the project's host code computes for a launch: the grid (tile_scheduler.py, lines 314, 399 and 578),
    and the scheduler's parameters, in the order of its fields (lines 224, 354 and 460)."""
    batch, n, heads, d = q.shape
    blocks, heads = -(-n * group // choice["tile"]), heads // group  # tiles of Q; heads, of K and V where packed
    total = blocks * heads * batch
    if choice["scheduler"] == "SingleTileScheduler":
        return (blocks, heads, batch), [blocks, heads, batch, *_divisor(1)]
    if choice["scheduler"] == "StaticPersistentTileScheduler":
        return (min(gpu.processors, total),), [*_divisor(blocks), *_divisor(heads), total, 1]
    size = k.shape[1] * 2 * d * q.element_size()
    near = 1 if size > CACHE_BYTES else 1 << int(math.log2(CACHE_BYTES // size))
    quotient, rest = divmod(heads * batch, near)
    splits = [1] if gpu.capability == 100 else []
    divisors = [*_divisor(heads), *_divisor(near), *_divisor(near * blocks), *_divisor(max(rest, 1))]
    return (total,), [total, *splits, blocks, heads, batch, near, *divisors, quotient, *_divisor(1)]


def _divisor(number: int) -> list:
    """A number to divide by: with the factor and the shifts by which CUTLASS divides (fast_math.h), and alone."""
    bits = (number - 1).bit_length()
    factor = (1 << 32) * ((1 << bits) - number) // number + 1
    values = dict(divisor=number, factor=factor, a=min(bits, 1), b=max(bits - 1, 0))
    return [Structure(DIVISOR, 12, values), number]
