"""CUDA C++ into PTX, by nvcc from its package: `compile_cuda`. No GPU and no installed CUDA are needed."""

import hashlib
import importlib.metadata
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from ptx_machine.folders import build, digest, stored

PACKAGE = "nvidia-cuda-nvcc"
FLAGS = ("-O3", "-std=c++17", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-lineinfo")
MOST_LINES = 8  # of nvcc's words, in an error


@cache
def toolkit() -> Path:
    """Find the folder of bin/nvcc and include/.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    try:
        files = importlib.metadata.distribution(PACKAGE).files or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    program = next((file for file in files if file.name == "nvcc" and file.parent.name == "bin"), None)
    if program is None:
        raise FileNotFoundError(f"nvcc: {PACKAGE} is not installed; `make test-gpu` or fa_lib[gpu] installs it")
    return Path(str(program.locate())).parent.parent


def version() -> str:
    """Return the version of nvcc's package.

    Raises:
        FileNotFoundError: it is not installed.
    """
    toolkit()
    return importlib.metadata.version(PACKAGE)


def compile_cuda(
    source: str, *, capability: int = 80, include: Iterable[str | Path] = (), flags: Iterable[str] = ()
) -> str:
    """Compile a CUDA C++ text to PTX. Both are stored below build/ptx, by text, flags, compiler and included files.

    Args:
        source: the text. capability: 80 is sm_80. include: folders to include from.
        flags: of nvcc, in addition to FLAGS.

    Returns:
        The PTX.

    Raises:
        FileNotFoundError: nvcc is not installed.
        ValueError: the text does not compile; with nvcc's first errors.
    """
    folders, flags = [Path(folder) for folder in include], [*FLAGS, *flags]
    home, key = toolkit(), digest(source, str(capability), *flags, version(), *map(_digest, folders))
    text = build() / "ptx" / key / "kernel.cu"  # it stays: the PTX names its lines

    def compiled(target: Path) -> None:
        text.parent.mkdir(exist_ok=True)
        text.write_text(source)
        paths = [*folders, home / "include", home / "include" / "cccl"]
        command = [
            str(home / "bin" / "nvcc"), *flags, f"-gencode=arch=compute_{capability},code=compute_{capability}", "-ptx",
            *(f"-I{path}" for path in paths), str(text), "-o", str(target),
        ]  # fmt: skip
        process = subprocess.run(command, capture_output=True, text=True)
        if process.returncode:
            lines = [line for line in process.stderr.splitlines() if "error" in line] or process.stderr.splitlines()
            raise ValueError("source: nvcc does not compile it: " + " | ".join(lines[:MOST_LINES]))

    return stored(build() / "ptx" / f"{key}.ptx", compiled).read_text()


@cache
def _digest(folder: Path) -> str:
    """Hash the files of a folder, with their names."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
