"""How a file is written whole, what of a text is renewed, and how a folder is held by one process."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def held(folder: str | Path, seconds: float = 20) -> Iterator[None]:
    """Hold a folder against every other process that asks, until the block or the process ends.

    The lock is a file beside the folder, `.<name>.lock`, and stays there.

    Raises:
        ValueError: another one holds it, and did so for that many seconds: one that was killed may take some to end.
    """
    folder = Path(folder).resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        words = f"folder: {folder} is in use by another process; wait for it, or end it"
        raise ValueError(words) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` that becomes it when the block ends well, and is removed when it does not.

    Raises:
        OSError: the disk is full, or `path` cannot be written; with its path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk names no file
        raise
    finally:
        Path(name).unlink(missing_ok=True)


def renewed(text: str, begin: str, end: str, inside: str, name: str) -> str:
    """A text with what stands between its two marks replaced.

    Args:
        name: of the text, for the error.

    Raises:
        ValueError: the marks are missing.
    """
    found, count = re.subn(
        re.escape(begin) + ".*?" + re.escape(end), lambda _: f"{begin}\n{inside}\n{end}", text, flags=re.S
    )
    if not count:
        raise ValueError(f"{name}: the marks {begin!r} and {end!r} are missing")
    return found
