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
from dataclasses import dataclass
from functools import cache
from math import nan
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from attention_gallery.adapters import HALF, accepts, swapped
from attention_gallery.catalogue import MODELLED, pinned
from attention_gallery.entry import installed
from fa_lib.execution.files import replacing
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


@dataclass(frozen=True)
class Chosen:
    """The kernel that the project chooses for a call.

    Attributes:
        kernel: the kernel.
        scheduler: name of the class that gives tiles to blocks.
        tile: rows of Q that a block takes at a time.
        pack_gqa: whether a tile has rows of all heads that share K and V.
        maps: of Q, K, V and O, "box" (as PTX counts dimensions) and "width" of the tensor map.
    """

    kernel: Kernel
    scheduler: str
    tile: int
    pack_gqa: bool
    maps: list[dict[str, Any]]

    @property
    def block(self) -> tuple[int, ...]:
        """Threads of a block."""
        return self.kernel.entry.most or (1,)


def compiled(q: Tensor, k: Tensor, causal: bool, gpu: GPU) -> Chosen:
    """Return the kernel for q (batch, n_q, heads, head_dim) and k (batch, n_kv, heads_kv, head_dim).

    Raises:
        NotImplementedError: the GPU is another one, or the project has no kernel for the call.
        RuntimeError: the compiler does not run.
    """
    if gpu.capability not in TARGETS:
        raise NotImplementedError(f"FlashAttention-4's kernels are modelled on Hopper and Blackwell; {gpu.name} came")
    dtype = f"{q.dtype}".removeprefix("torch.")
    call = json.dumps(dict(dtype=dtype, q=[*q.shape], k=[*k.shape], causal=causal))
    answer = json.loads(_answer(call, TARGETS[gpu.capability], gpu.processors))
    if "error" in answer:
        raise NotImplementedError(f"FlashAttention-4 has no kernel for this call: {answer['error']}")
    if answer.pop("cluster") > 1:
        raise NotImplementedError("FlashAttention-4 takes a kernel of two blocks in a cluster, which is not modelled")
    return _chosen(json.dumps(answer), gpu)


@cache
def _chosen(answer: str, gpu: GPU) -> Chosen:
    facts = json.loads(answer)
    name, text = facts.pop("name"), facts.pop("ptx")
    return Chosen(Kernel(text, name, gpu=gpu), **facts)


@cache
def _answer(call: str, target: str, processors: int) -> str:
    """Ask the compiler for a call, or read what it answered before."""
    versions = [f"{name} {installed(name)}" for name in MODELLED["fa4_hopper"].needs]
    words = [call, target, str(processors), FLASH_ATTN_4.sha256, COMPILER.read_text(), *versions]
    stored = build() / "ptx" / f"{hashlib.sha256(chr(0).join(words).encode()).hexdigest()[:32]}.json"
    if not stored.is_file():
        answer = _server(target, processors).ask(call)
        stored.parent.mkdir(parents=True, exist_ok=True)
        with replacing(stored) as path:
            path.write_text(answer)
    return stored.read_text()


class Server:
    """The compiler's process.

    Raises:
        RuntimeError: it ends without an answer.
    """

    def __init__(self, target: str, processors: int):
        words = [sys.executable, str(COMPILER), str(unpacked(FLASH_ATTN_4)), target, str(processors)]
        self.words = tempfile.TemporaryFile("w+")  # noqa: SIM115  the compiler prints to it as long as it runs
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.words, text=True,
            env=os.environ | {"PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        self.lock = Lock()
        atexit.register(self.process.kill)

    def ask(self, call: str) -> str:
        """Return the answer to a call, as JSON."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with self.lock:
            try:
                self.process.stdin.write(call + "\n")
                self.process.stdin.flush()
                answer = self.process.stdout.readline()
            except BrokenPipeError:
                answer = ""
        if not answer:
            code = self.process.wait()
            self.words.seek(0)
            last = [line.strip() for line in self.words if line.strip()][-1:]
            raise RuntimeError(f"FlashAttention-4's compiler ended with {code}: {' '.join(last)}")
        return answer


_server = cache(Server)


@accepts(HALF, "FlashAttention-4", no_gradients="the backward kernels of FlashAttention-4 are not modelled")
def fa4(q, k, v, causal=False, scale: Any = None, *, gpu="H100"):
    """Call flash_attn.cute.flash_attn_func with its defaults.

    Raises:
        NotImplementedError: another head_dim, a GPU that is neither Hopper nor Blackwell, or a call for which the
            project chooses a kernel that is not modelled.
    """
    if q.shape[-1] not in HEAD_DIMS:
        raise NotImplementedError(f"of FlashAttention-4, head_dim {HEAD_DIMS} are modelled; {q.shape[-1]} came")
    gpu = GPU.of(gpu)
    q, k, v = (swapped(x).contiguous() for x in (q, k, v))  # (batch, n, heads, head_dim)
    chosen = compiled(q, k, causal, gpu)
    o = torch.full_like(q, nan)
    call = _Call(q, k, v, o, chosen, gpu)
    chosen.kernel(call.grid, chosen.block, gpu.shared_bytes, *call.arguments(scale))
    return swapped(o)


fa4_hopper = fa4


def fa4_blackwell(q, k, v, causal=False, scale=None, *, gpu="B200"):
    """Call `fa4` on a Blackwell GPU."""
    return fa4(q, k, v, causal, scale, gpu=gpu)


@dataclass(frozen=True)
class _Call:
    """What the project's host code computes for a launch.

    Attributes:
        q, k, v, o: (batch, n, heads, head_dim).
        chosen: the kernel. gpu: where it runs.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    chosen: Chosen
    gpu: GPU

    @property
    def group(self) -> int:
        """Heads of Q whose rows a tile holds together."""
        return self.q.shape[2] // self.k.shape[2] if self.chosen.pack_gqa else 1

    @property
    def tiles(self) -> tuple[int, int, int]:
        """The number of tiles of Q, of heads (of K and V, where rows of several are together), of the batch."""
        batch, n, heads, _ = self.q.shape
        return -(-n * self.group // self.chosen.tile), heads // self.group, batch

    @property
    def grid(self) -> tuple[int, ...]:
        """The grid: tile_scheduler.py, lines 314, 399 and 578."""
        blocks, heads, batch = self.tiles
        if self.chosen.scheduler == "SingleTileScheduler":
            return blocks, heads, batch
        total = blocks * heads * batch
        return (min(self.gpu.processors, total) if self.chosen.scheduler.startswith("StaticPersistent") else total,)

    def arguments(self, scale: float) -> list:
        """The kernel's arguments: four shapes, four tensor maps, the scale, two layouts that are constant, and what the
        scheduler needs."""
        parameters = self.chosen.kernel.entry.parameters
        log2_scale = float(torch.tensor(scale, dtype=torch.float32) * torch.tensor(LOG2_E, dtype=torch.float32))
        first = [*map(self._shape, (self.q, self.k, self.v, self.o)), *self._maps(), log2_scale]
        layouts = [Structure({}, each.size) for each in parameters[len(first) : len(first) + 2]]
        scheduling = self._scheduling()
        rest = parameters[len(first) + 2 + len(scheduling) :]  # divisors that only packed rows with masks use
        return [*first, *layouts, *scheduling, *(Structure({}, each.size) if each.type is None else 0 for each in rest)]

    def _shape(self, x: Tensor) -> Structure:
        """A tensor's shape (n, head_dim, heads, batch); the kernels read n alone."""
        batch, n, heads, d = x.shape
        return Structure(SHAPE, 16, dict(zip("0123", (n, d, heads, batch))))

    def _maps(self) -> list[Structure]:
        """Tensor maps of Q, K, V and O."""
        maps = []
        for x, drawn in zip((self.q, self.k, self.v, self.o), self.chosen.maps):
            batch, n, heads, d = x.shape
            packed = self.group > 1 and x.shape == self.q.shape
            if not packed:
                seen = x.permute(0, 2, 1, 3)
            elif len(drawn["box"]) == 4:
                seen = x
            else:
                seen = x.view(batch, n, heads // self.group, self.group, d).permute(0, 2, 1, 3, 4)
            maps.append(tensor_map(seen, drawn["box"][::-1], drawn["width"]))
        return maps

    def _scheduling(self) -> list:
        """The scheduler's parameters, in the order of its fields: tile_scheduler.py, lines 224, 354 and 460."""
        blocks, heads, batch = self.tiles
        total, name = blocks * heads * batch, self.chosen.scheduler
        if name == "SingleTileScheduler":
            return [blocks, heads, batch, *_divisor(1)]
        if name == "StaticPersistentTileScheduler":
            return [*_divisor(blocks), *_divisor(heads), total, 1]
        n_kv, d = self.k.shape[1], self.q.shape[-1]
        size = n_kv * 2 * d * self.q.element_size()
        near = 1 if size > CACHE_BYTES else 1 << int(math.log2(CACHE_BYTES // size))
        quotient, rest = divmod(heads * batch, near)
        splits = [1] if self.gpu.capability == 100 else []
        divisors = [*_divisor(heads), *_divisor(near), *_divisor(near * blocks), *_divisor(max(rest, 1))]
        return [total, *splits, blocks, heads, batch, near, *divisors, quotient, *_divisor(1)]


def _divisor(number: int) -> list:
    """A number to divide by: with the factor and the shifts by which CUTLASS divides (fast_math.h), and alone."""
    bits = (number - 1).bit_length()
    factor = (1 << 32) * ((1 << bits) - number) // number + 1
    values = dict(divisor=number, factor=factor, a=min(bits, 1), b=max(bits - 1, 0))
    return [Structure(DIVISOR, 12, values), number]
