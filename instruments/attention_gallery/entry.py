"""A kernel of the gallery: whose it is, the packages it needs, the call that reaches it in real use."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import torch

from fa_lib.execution.machine import installed
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.registry import get
from ptx_machine.sources import Package

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


@dataclass(frozen=True)
class Entry:
    """A kernel of the gallery.

    Attributes:
        key: of ENTRIES, and the name of its function.
        project: whose kernel it is.
        module: the file of attention_gallery that has its function.
        needs: distributions, the kernel's own first; those that fa_lib does not install are pinned in requirements.txt.
        use: which call, and which defaults, lead to it in real use.
        cannot: why it cannot run on its device, with its version; "" where it can.
        device: "cpu" or "cuda", where it is called, or "modelled": on a CPU, in the arithmetic of `gpu`.
        gpu: the name of that GPU.
        package: the archive that a modelled kernel comes from; None: the first of `needs`.
        as_used: "yes" where users run this code on this device; else what is different, in a few words.
    """

    key: str
    project: str
    module: str
    needs: tuple[str, ...]
    use: str
    cannot: str = ""
    device: str = "cpu"
    gpu: str = ""
    package: Package | None = None
    as_used: str = "yes"

    @property
    def problem(self) -> str:
        """Why it cannot run here, in a sentence; "" where nothing speaks against it before it is called."""
        absent = [name for name in self.needs if installed(name) is None]
        if self.device == "cuda" and not torch.cuda.is_available():
            return "it needs a CUDA device, and there is none here"
        if self.cannot or not absent:
            return self.cannot
        if self.device == "cuda":
            return f"it needs {' and '.join(absent)}, not installed here: see docs/gpu/recorded.md"
        if self.device == "modelled":
            return f"it needs {' and '.join(absent)}, not installed here; `make gallery-gpu` installs it, on Linux"
        requirements = " and ".join(f"{name} {pins().get(name, '')}".rstrip() for name in absent)
        extra = "gallery" if set(absent) <= pins().keys() else "train"
        how = f"{'`make gallery` or ' if extra == 'gallery' else ''}pip install 'fa_lib[{extra}]' installs"
        return f"it needs {requirements}, not installed here; {how} {'it' if len(absent) == 1 else 'them'}"

    @property
    def ref(self) -> KernelRef:
        """The kernel's identity."""
        return KernelRef(f"attention_gallery.{self.module}" if self.gpu else "attention_gallery", self.key, self.gpu)

    @property
    def version(self) -> str:
        """The version of the project; "" where it is not installed."""
        return self.package.version if self.package else installed(self.needs[0]) or ""

    @property
    def archives(self) -> str:
        """Its package and the distributions that it needs, with the versions that are installed, in words."""
        words = [f"{name} {installed(name) or 'not installed'}" for name in self.needs]
        return ", ".join(words) if self.package is None else f"{self.package.name} {self.version}; {', '.join(words)}"

    def kernel(self) -> Callable:
        """Import its function f(q, k, v, causal=False, scale=None), with mask=None where it takes one; q, k, v and o
        are (batch, heads, n, head_dim).

        Raises:
            ImportError: it cannot run here; it says why.
        """
        if self.problem:
            raise ImportError(f"{self.key} cannot run: {self.problem}")
        return get(self.ref) if self.gpu else getattr(import_module(f"attention_gallery.{self.module}"), self.key)


@cache
def pins() -> dict[str, str]:
    """Read requirements.txt: a dict of distribution -> version."""
    return dict(re.findall(r"^([\w.-]+)(?:\[\w+\])?==([\w.]+)$", REQUIREMENTS.read_text(), re.MULTILINE))
