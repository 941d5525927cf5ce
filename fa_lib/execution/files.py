"""How a file is written whole, and how a folder is held by one process."""

import fcntl
import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(folder, seconds=20):
    """Hold a folder against every other process that asks, until the block or the process ends.

    Raises:
        ValueError: another one holds it, and did so for that many seconds: one that was killed may take some to end.
    """
    path = Path(folder) / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    while (file := _locked(path)) is None:
        if time.monotonic() > deadline:
            raise ValueError(f"folder: {folder} is in use by another process; wait for it, or end it")
        time.sleep(0.2)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held
        file.close()


def _locked(path):
    """The file, open and locked; None where another process holds it."""
    file = open(path, "w")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # a file system without locks
        return file
    file.close()  # held, or let go and removed since it was opened
    return None


@contextmanager
def replacing(path):
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
