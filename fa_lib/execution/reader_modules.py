"""Where Python looks for the modules of the reader's kernels and models.

In this process their folders come last, behind everything that is installed, so that no file of the reader's (a
token.py, a yaml.py) stands in for a library's. In the processes in which the reader's code runs they come first, as for
any script.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_FOLDERS: list[str] = []


def add(folder: str) -> None:
    """Let Python look for modules in a folder too."""
    if folder in _FOLDERS:
        return
    _FOLDERS.append(folder)
    if folder not in sys.path:
        sys.path.append(folder)


def add_current_folder() -> None:
    """`add` the folder that the command was started in, and take it from the front, where `python -m` has put it."""
    folder = os.getcwd()
    if sys.path[0] in ("", folder):
        del sys.path[0]
    add(folder)


def path() -> list[str]:
    """Return the sys.path of a process in which the reader's code runs."""
    return [*reversed(_FOLDERS), *(each for each in sys.path if each not in _FOLDERS)]


def folders() -> tuple[str, ...]:
    """Return the folders that were added."""
    return tuple(_FOLDERS)


@contextmanager
def in_front() -> Iterator[None]:
    """Let `path` be this process's sys.path until the block ends, so that the reader's code can run in it."""
    before = [*sys.path]
    sys.path[:] = path()
    try:
        yield
    finally:
        sys.path[:] = before
