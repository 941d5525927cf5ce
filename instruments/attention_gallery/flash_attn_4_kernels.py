"""FlashAttention-4's kernels as its own code compiles them, without a GPU: `compiled`."""

import atexit
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from torch import Tensor

from attention_gallery.catalogue import pinned
from attention_gallery.entry import installed
from fa_lib.execution.files import replacing
from fa_lib.execution.paths import build
from ptx_machine.device import GPU
from ptx_machine.launch import Kernel
from ptx_machine.sources import unpacked

FLASH_ATTN_4 = pinned("flash-attn-4", "4.0.0b36")
NEEDS = ("nvidia-cutlass-dsl", "apache-tvm-ffi", "quack-kernels", "einops")
COMPILER = Path(__file__).with_name("flash_attn_4_compiler.py")
TARGETS = {90: "sm_90", 100: "sm_100"}  # by compute capability


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
    versions = [f"{name} {installed(name)}" for name in NEEDS]
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
