"""The catalogue of the gallery, as catalogue.toml lists it: kernels on a CPU, on a GPU, and GPU kernels on a CPU."""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from string import Template

import torch

from fa_lib.execution.machine import installed
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.registry import get
from ptx_machine.sources import FLASH_ATTN, Package

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
JUDGED = ("passes", "fails", "differs")  # verdicts of a call path that was judged; others say why it was not


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
        extra, how = ("gallery", "`make gallery` or ") if set(absent) <= pins().keys() else ("train", "")
        it = "it" if len(absent) == 1 else "them"
        return f"it needs {requirements}, not installed here; {how}pip install 'fa_lib[{extra}]' installs {it}"

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
        words = ", ".join(f"{name} {installed(name) or 'not installed'}" for name in self.needs)
        return words if self.package is None else f"{self.package.name} {self.version}; {words}"

    def kernel(self) -> Callable:
        """Import its function f(q, k, v, causal=False, scale=None), with mask=None where it takes one; q, k, v and o
        are (batch, heads, n, head_dim). Where it cannot run here, an ImportError says why."""
        if self.problem:
            raise ImportError(f"{self.key} cannot run: {self.problem}")
        return get(self.ref) if self.gpu else getattr(import_module(f"attention_gallery.{self.module}"), self.key)


@cache
def pins() -> dict[str, str]:
    """Read requirements.txt: a dict of distribution -> version."""
    return dict(re.findall(r"^([\w.-]+)(?:\[\w+\])?==([\w.]+)$", REQUIREMENTS.read_text(), re.MULTILINE))


def _entries(name, kernels, needs, package=None, module="", **fields):
    fields |= dict(project=name, module=module, needs=(*needs,), package=PACKAGES[package] if package else None)
    return [Entry(key=key, use=use, **fields) for key, use in kernels.items()]


_LISTED = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text())
FEW_QUERIES = (*_LISTED["few_queries"],)
PLANNED = _LISTED["judging"]  # how thoroughly kernels are judged
SHARED: dict[str, str] = _LISTED["same_implementation"]
PACKAGES = {FLASH_ATTN.name: FLASH_ATTN} | {
    name: Package(name, keep=(*fields.pop("keep"),), **fields) for name, fields in _LISTED["packages"].items()
}
_ALL = [entry for project in _LISTED["project"] for entry in _entries(**project)]
ENTRIES, ON_CUDA, MODELLED = (
    {entry.key: entry for entry in _ALL if entry.device == device} for device in ("cpu", "cuda", "modelled")
)
CATALOGUES = {"cpu": ENTRIES, "cuda": ON_CUDA, "modelled": MODELLED}


def pinned(name: str, version: str) -> Package:
    """Return the archive of a project, at the version that the line numbers of the caller's file are of. So its results
    depend on the version by its source. A ValueError says that catalogue.toml has another version."""
    if PACKAGES[name].version != version:
        raise ValueError(f"{name}: {version} is wanted; catalogue.toml has {PACKAGES[name].version}")
    return PACKAGES[name]


def cuda_template(name: str) -> Template:
    """Read a CUDA text of cuda/ with $words to fill in. The results of the file that names it depend on it, too."""
    return Template(Path(__file__).parent.joinpath("cuda", name).read_text())


def project_of(kernel: KernelRef) -> str:
    """Return the name and version of the project that wrote a kernel of the gallery; "" for another kernel."""
    entry = {**MODELLED, **ENTRIES}.get(kernel.function)
    return f"{entry.package.name if entry.package else entry.needs[0]} {entry.version}" if entry else ""


def listing() -> str:
    """List every kernel in three lines: its key and project; the packages it needs, and whether it runs here; its
    use."""
    lines = []
    for entry in _ALL:
        runs = f"cannot run here: {entry.problem}" if entry.problem else "runs here"
        where = {"cpu": "", "cuda": " on cuda"}.get(entry.device, f" in the arithmetic of an {entry.gpu}")
        lines += [f"gallery:{entry.key}{where} ({entry.project})", f"    {entry.archives}; {runs}"]
        lines += [f"    in use: {entry.use}"]
    return "\n".join(lines)


@dataclass(frozen=True)
class Counts:
    """How many call paths were judged, of how many implementations and projects; how many fail, by how many distinct
    defects; how many differ."""

    paths: int
    implementations: int
    projects: int
    fail: int
    defects: int
    differ: int

    def __str__(self):
        return (f"{self.paths} call paths, {self.implementations} implementations, of {self.projects} projects; "
                f"{self.fail} call paths fail, by {self.defects} distinct defects; {self.differ} differ")  # fmt: skip


def counted(rows: Iterable[Mapping]) -> Counts:
    """Count rows of `causes.explained` that have a verdict. A failure whose source nobody has read is a defect of its
    own implementation."""
    judged = [dict(row, own=SHARED.get(row["key"], row["key"])) for row in rows if row["verdict"] in JUDGED]
    failed, differ = ([row for row in judged if row["verdict"] == verdict] for verdict in ("fails", "differs"))
    implementations, projects = {row["own"] for row in judged}, {project(row) for row in judged}
    defects = {row.get("defect") or row["own"] for row in failed}
    return Counts(len(judged), len(implementations), len(projects), len(failed), len(defects), len(differ))


def project(row: Mapping) -> str:
    """Name the project of a row, without the library that it brings along."""
    return row["project"].split(" (")[0]
