"""Where the machine keeps what it compiles and fetches."""

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from filelock import FileLock

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parents[1]  # of a checkout


def build() -> Path:
    """Return the folder for all that is made anew: build/ of the checkout, or of the current folder."""
    return (ROOT if (ROOT / "pyproject.toml").is_file() else Path.cwd()) / "build"


def digest(*words: str) -> str:
    """Return the key of what is made of some words."""
    return sha256("\0".join(words).encode()).hexdigest()[:32]


def stored(path: Path, make: Callable[[Path], object]) -> Path:
    """Return a path whose file make(another path) writes, if it is not there: once for all processes, and whole."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):  # another process may be at it
            if not path.exists():
                written(path, make)
    return path


def written(path: Path, make: Callable[[Path], object]) -> None:
    """Write a file by make(another path): whole, or not at all."""
    part = path.with_name(f"{os.getpid()}.{path.name}")
    make(part)
    part.replace(path)
