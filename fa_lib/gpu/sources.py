"""Other projects' sources, from their packages: downloaded by pip with a pinned SHA-256, unpacked below build/."""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from fa_lib.execution.paths import build


@dataclass(frozen=True)
class Package:
    """A source package.

    Attributes:
        name, version, sha256: of the archive.
        keep: the folders of the archive to unpack.
        settings: environment variables for its setup.py, which pip runs to learn its name.
    """

    name: str
    version: str
    sha256: str
    keep: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)


FLASH_ATTN = Package(
    "flash-attn",
    "2.8.3",
    "1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d",
    ("csrc/flash_attn", "csrc/cutlass/include"),
    {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"},
)


def unpacked(package: Package) -> Path:
    """Download and unpack a package, once, and return its folder, build/sources/<name>-<version>.

    Raises:
        RuntimeError: pip cannot download it, or the archive has another hash; with the last line of pip's message.
    """
    folder = build() / "sources"
    target = folder / f"{package.name}-{package.version}"
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{target.name}.lock"):
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                _unpack(_download(package, Path(temporary)), Path(temporary) / "kept", package.keep)
                os.replace(Path(temporary) / "kept", target)
    return target


def _download(package: Package, folder: Path) -> Path:
    requirements = folder / "wanted.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    words = ["download", "--no-deps", "--no-build-isolation", "--no-binary", package.name, "--require-hashes"]
    command = [sys.executable, "-m", "pip", *words, "--dest", str(folder), "--requirement", str(requirements)]
    process = subprocess.run(command, capture_output=True, text=True, env=os.environ | package.settings)
    archives = [*folder.glob("*.tar.gz")]
    if process.returncode or len(archives) != 1:
        words = (process.stderr or process.stdout).strip().splitlines()[-1:] or ["no archive"]
        raise RuntimeError(f"{package.name} {package.version}: pip did not download its source: {words[0]}")
    return archives[0]


def _unpack(archive: Path, folder: Path, keep: tuple[str, ...]) -> None:
    """Unpack the folders `keep`, which lie in the only folder of the archive."""
    with tarfile.open(archive) as file:
        file.extractall(folder / ".all", filter="data")
    (top,) = (folder / ".all").iterdir()
    for name in keep:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(top / name, folder / name)
    shutil.rmtree(folder / ".all")
