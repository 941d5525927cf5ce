"""The catalogue of the gallery, as catalogue.toml lists it: kernels on a CPU, on a GPU, and GPU kernels on a CPU."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from attention_gallery.entry import Entry
from fa_lib.kernels.kernel_ref import KernelRef
from ptx_machine.sources import FLASH_ATTN, Package

_LISTED = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text())
FEW_QUERIES = (*_LISTED["few_queries"],)
SHARED: dict[str, str] = _LISTED["same_implementation"]
PACKAGES = {FLASH_ATTN.name: FLASH_ATTN} | {
    name: Package(name, keep=(*fields.pop("keep"),), **fields) for name, fields in _LISTED["packages"].items()
}
JUDGED = ("passes", "fails", "differs")  # verdicts of a call path that was judged; others say why it was not


def _entries(name, kernels, needs, package=None, module="", **fields):
    fields |= dict(project=name, module=module, needs=(*needs,), package=PACKAGES[package] if package else None)
    return [Entry(key=key, use=use, **fields) for key, use in kernels.items()]


_ALL = [entry for project in _LISTED["project"] for entry in _entries(**project)]
ENTRIES, ON_CUDA, MODELLED = (
    {entry.key: entry for entry in _ALL if entry.device == device} for device in ("cpu", "cuda", "modelled")
)
CATALOGUES = {"cpu": ENTRIES, "cuda": ON_CUDA, "modelled": MODELLED}


def pinned(name: str, version: str) -> Package:
    """Return the archive of a project, at the version that the line numbers of the caller's file are of. So its results
    depend on the version by its source.

    Raises:
        ValueError: catalogue.toml has another version.
    """
    if PACKAGES[name].version != version:
        raise ValueError(f"{name}: {version} is wanted; catalogue.toml has {PACKAGES[name].version}")
    return PACKAGES[name]


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
        first = f"gallery:{entry.key}{where} ({entry.project})"
        lines += [first, f"    {entry.archives}; {runs}", f"    in use: {entry.use}"]
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
    judged = [row for row in rows if row["verdict"] in JUDGED]
    failed = [row for row in judged if row["verdict"] == "fails"]
    implementation = {row["key"]: SHARED.get(row["key"], row["key"]) for row in judged}
    defects = {row.get("defect") or implementation[row["key"]] for row in failed}
    return Counts(
        len(judged), len({*implementation.values()}), len({project(row) for row in judged}), len(failed), len(defects),
        sum(row["verdict"] == "differs" for row in judged),
    )  # fmt: skip


def project(row: Mapping) -> str:
    """Name the project of a row, without the library that it brings along."""
    return row["project"].split(" (")[0]
