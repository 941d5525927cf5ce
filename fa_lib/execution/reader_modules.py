"""Where the modules of the reader's kernels and models are looked for.

In this process that is behind everything that is installed, so that no file of the reader's (a token.py, a yaml.py)
stands in for a library's. In the processes in which the reader's code runs it is in front, as for any script.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_FOLDERS: list[str] = []


def add(folder: str) -> None:
    """Look for modules in a folder, too."""
    if folder in _FOLDERS:
        return
    _FOLDERS.append(folder)
    if folder not in sys.path:
        sys.path.append(folder)


def add_current_folder() -> None:
    """`add` the folder that the command was started in. `python -m` has put it in front."""
    here = os.getcwd()
    if sys.path[0] in ("", here):
        del sys.path[0]
    add(here)


def path() -> list[str]:
    """The sys.path of a process in which the reader's code runs."""
    return [*reversed(_FOLDERS), *(each for each in sys.path if each not in _FOLDERS)]


def folders() -> tuple[str, ...]:
    """Those that were added."""
    return tuple(_FOLDERS)


@contextmanager
def in_front() -> Iterator[None]:
    """Inside, the reader's code runs in this process: `path` is its sys.path."""
    before = [*sys.path]
    sys.path[:] = path()
    try:
        yield
    finally:
        sys.path[:] = before
