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
        name, version, sha256: of the archive. keep: the folders of it that are unpacked.
        settings: environment variables, for its setup.py, which pip asks for its name.
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
    """The folder with what it keeps: build/sources/<name>-<version>.

    Raises:
        RuntimeError: pip cannot download it, or what it downloads has another hash; with pip's last words.
    """
    folder = build() / "sources"
    whole = folder / f"{package.name}-{package.version}"
    if whole.is_dir():
        return whole
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{whole.name}.lock"):
        if not whole.is_dir():
            with tempfile.TemporaryDirectory(dir=folder) as part:
                _unpack(_download(package, Path(part)), Path(part) / "kept", package.keep)
                os.replace(Path(part) / "kept", whole)
    return whole


def _download(package: Package, folder: Path) -> Path:
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    words = ["download", "--no-deps", "--no-build-isolation", "--no-binary", package.name, "--require-hashes"]
    command = [sys.executable, "-m", "pip", *words, "--dest", str(folder), "--requirement", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | package.settings)
    found = [*folder.glob("*.tar.gz")]
    if done.returncode or len(found) != 1:
        words = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no archive"]
        raise RuntimeError(f"{package.name} {package.version}: pip did not download its source: {words[0]}")
    return found[0]


def _unpack(archive: Path, folder: Path, keep: tuple[str, ...]) -> None:
    """What is below the folders `keep` of the archive's one folder."""
    with tarfile.open(archive) as file:
        file.extractall(folder / ".all", filter="data")
    (top,) = (folder / ".all").iterdir()
    for each in keep:
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        os.replace(top / each, folder / each)
    shutil.rmtree(folder / ".all")
