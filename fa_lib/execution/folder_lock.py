"""Folders that one process locks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fa_lib.execution.files import refuse_link


@contextmanager
def locked_folder(folder: str | Path, seconds: float = 20) -> Iterator[None]:
    """Lock a folder against every other process that locks it, until the block or the process ends.

    The lock is a file beside the folder, `.<name>.lock`, and stays there.

    Args:
        folder: its path. seconds: how long to wait for the lock: a process that was killed may take a while to end.

    Raises:
        ValueError: the lock's file is a symbolic link, or another process held the lock all that time.
    """
    folder = Path(folder).resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f".{folder.name}.lock")
    refuse_link(path)  # a lock is opened empty
    lock = FileLock(path)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        raise ValueError(f"folder: {folder} is in use by another process; wait for it, or end it") from None
    try:
        yield
    finally:
        lock.release()
