"""Other projects' sources, from their packages: fetched from the index that pip uses, with a pinned SHA-256, unpacked
below build/sources.

Nothing of a package runs here: pip would run a source package's setup.py to learn its name.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

from filelock import FileLock

from ptx_machine.folders import build

LISTING = "application/vnd.pypi.simple.v1+json"  # of an index: PEP 691
WAIT_S = 60  # for the next bytes of an archive


@dataclass(frozen=True)
class Package:
    """A package's archive, a source package or a wheel.

    Attributes:
        name, version: of the project. archive: name of the file. sha256: of the file.
        keep: folders and files of the archive to unpack.
    """

    name: str
    version: str
    archive: str
    sha256: str
    keep: tuple[str, ...]


FLASH_ATTN = Package(
    "flash-attn", "2.8.3", "flash_attn-2.8.3.tar.gz",
    "1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d", ("csrc/flash_attn", "csrc/cutlass/include"),
)  # fmt: skip


def unpacked(package: Package) -> Path:
    """Fetch and unpack a package, once, and return its folder, build/sources/<name>-<version>.

    Raises:
        RuntimeError: the index does not have the archive, or it has another hash.
    """
    folder = build() / "sources"
    target = folder / f"{package.name}-{package.version}"
    if _whole(target, package):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{target.name}.lock"):
        if not _whole(target, package):
            shutil.rmtree(target, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                archive = _fetch(package, Path(temporary))
                _unpack(archive, Path(temporary) / "kept", package.keep)
                os.replace(Path(temporary) / "kept", target)
    return target


def _whole(target: Path, package: Package) -> bool:
    """Return whether a folder has all that is kept of a package: more may be kept than when it was unpacked."""
    return all((target / name).exists() for name in package.keep)


def _fetch(package: Package, folder: Path) -> Path:
    """Fetch the archive into a folder."""
    index = _index()
    try:
        request = urllib.request.Request(f"{index}/{package.name}/", headers={"Accept": LISTING})
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            files = {file["filename"]: file["url"] for file in json.load(answer)["files"]}
        if package.archive not in files:
            raise ValueError(f"the index has no {package.archive}")
        url = urljoin(f"{index}/{package.name}/", files[package.archive])
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer, (folder / package.archive).open("wb") as file:
            shutil.copyfileobj(answer, file)
    except (OSError, ValueError, KeyError) as error:
        raise RuntimeError(f"{package.name} {package.version}: its archive cannot be fetched: {error}") from error
    archive = folder / package.archive
    with archive.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != package.sha256:
        raise RuntimeError(f"{package.archive}: its SHA-256 is {got}; accepted is {package.sha256}")
    return archive


def _index() -> str:
    """Return the address of the index that pip uses."""
    words = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    configured = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    address = os.environ.get("PIP_INDEX_URL") or configured
    if not address:
        from pip._internal.models.index import PyPI  # the only place that knows pip's default

        address = PyPI.simple_url
    return address.rstrip("/")


def _unpack(archive: Path, folder: Path, keep: tuple[str, ...]) -> None:
    """Unpack folders and files of an archive; a source package's lie in its only folder."""
    everything = folder / ".all"
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            file.extractall(everything)
        top = everything
    else:
        with tarfile.open(archive) as file:
            file.extractall(everything, filter="data")
        (top,) = everything.iterdir()
    for name in keep:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(top / name, folder / name)
    shutil.rmtree(everything)
