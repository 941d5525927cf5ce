"""CUDA C++ into PTX, by nvcc from its package: `compile_cuda`. No GPU and no installed CUDA are needed."""

import hashlib
import importlib.metadata
import os
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from filelock import FileLock

from fa_lib.execution.paths import build

PACKAGE = "nvidia-cuda-nvcc"
FLAGS = ("-O3", "-std=c++17", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-lineinfo")
MOST_LINES = 8  # of nvcc's words, in an error


@cache
def toolkit() -> Path:
    """The folder of bin/nvcc and include/.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    try:
        files = importlib.metadata.distribution(PACKAGE).files or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    found = next((file for file in files if file.name == "nvcc" and file.parent.name == "bin"), None)
    if found is None:
        raise FileNotFoundError(
            f"nvcc: {PACKAGE} is not installed; `make test-gpu` installs it, pip install fa_lib[gpu]"
        )
    return Path(str(found.locate())).parent.parent


def version() -> str:
    """Of the package.

    Raises:
        FileNotFoundError: it is not installed.
    """
    toolkit()
    return importlib.metadata.version(PACKAGE)


def compile_cuda(
    source: str, *, capability: int = 80, include: Iterable[str | Path] = (), flags: Iterable[str] = ()
) -> str:
    """PTX of a CUDA C++ text. It is kept below build/ptx, by text, flags, compiler and the files to include.

    Args:
        capability: 80 is sm_80. include: folders. flags: more of them.

    Raises:
        FileNotFoundError: nvcc is not installed. ValueError: it does not compile, with nvcc's first errors.
    """
    folders, flags = [Path(folder) for folder in include], [*FLAGS, *flags]
    words = [source, str(capability), *flags, version(), *(_digest(each) for each in folders)]
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]
    kept = build() / "ptx" / f"{key}.ptx"
    if kept.is_file():
        return kept.read_text()
    kept.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(kept.with_suffix(".lock")):  # another process may be at it
        if not kept.is_file():
            with tempfile.TemporaryDirectory(dir=kept.parent) as part:
                (Path(part) / "kernel.cu").write_text(source)
                _run(Path(part), folders, flags, capability)
                os.replace(Path(part) / "kernel.ptx", kept)
    return kept.read_text()


def _run(folder: Path, include: list[Path], flags: list[str], capability: int) -> None:
    home = toolkit()
    folders = [*include, home / "include", home / "include" / "cccl"]
    command = [
        str(home / "bin" / "nvcc"), *flags, f"-gencode=arch=compute_{capability},code=compute_{capability}", "-ptx",
        *(f"-I{each}" for each in folders), "kernel.cu", "-o", "kernel.ptx",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise ValueError("source: nvcc does not compile it: " + " | ".join(lines[:MOST_LINES]))


@cache
def _digest(folder: Path) -> str:
    """Of the folder's files, with their names."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
