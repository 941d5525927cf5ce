"""Files that are written whole, and texts that are renewed between two marks."""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`: it becomes `path` when the block ends well, and is removed otherwise. The
    umask decides who may read it.

    Raises:
        OSError: the disk is full, or `path` cannot be written; with its path.
        ValueError: `path` is a symbolic link.
    """
    path = Path(path)
    refuse_link(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.with_name(f".{path.stem}.{secrets.token_hex(8)}{path.suffix}")
    handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    mode = os.fstat(handle).st_mode & 0o777
    os.close(handle)
    try:
        yield name
        os.chmod(name, mode)  # some writers put a file of their own there
        os.replace(name, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk names no file
        raise
    finally:
        name.unlink(missing_ok=True)


def refuse_link(path: Path) -> None:
    """Refuse a path that is a symbolic link, with a ValueError."""
    if path.is_symlink():
        raise ValueError(f"{path}: is a symbolic link to {os.readlink(path)}; accepted is a path of its own")


def renewed(text: str, begin: str, end: str, inside: str, name: str) -> str:
    """Replace the part of a text between its two marks, which stay, by `inside`. A ValueError, with the text's name,
    says that the marks are missing."""
    found, count = re.subn(
        re.escape(begin) + ".*?" + re.escape(end), lambda _: f"{begin}\n{inside}\n{end}", text, flags=re.S
    )
    if not count:
        raise ValueError(f"{name}: the marks {begin!r} and {end!r} are missing")
    return found
