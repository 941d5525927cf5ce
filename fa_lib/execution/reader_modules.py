"""Where Python looks for the modules of the reader's kernels and models.

In this process their folders come last, behind everything that is installed, so that no file of the reader's (a
token.py, a yaml.py) stands in for a library's. In the processes in which the reader's code runs they come first, as for
any script.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

ACCEPTED = "accepted is path/to/file.py:function"

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


@contextmanager
def in_front() -> Iterator[None]:
    """Let `path` be this process's sys.path until the block ends, so that the reader's code can run in it."""
    before = [*sys.path]
    sys.path[:] = path()
    try:
        yield
    finally:
        sys.path[:] = before


def module_name(named: str, what: str = "kernel") -> str:
    """Return package.module:function for a function that is named by its file, path/to/file.py:function, and any other
    name as it is. Nothing is imported; the folder that the module is imported from, the file's or the one around its
    packages, is added by `add`.

    what: the argument's name, for the ValueError: there is no such file or no function is named, it can be no module,
    or Python finds another module of its name.
    """
    file, _, function = named.rpartition(":")
    if named.endswith(".py"):
        raise ValueError(f"{what}: got {named!r}, a file without a function; {ACCEPTED}")
    if not file.endswith(".py"):
        return named
    path = Path(file).resolve()
    if not path.is_file():
        raise ValueError(f"{what}: got {named!r}; there is no file {file}; {ACCEPTED}")
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        folder, parts = folder.parent, [folder.name, *parts]
    if not all(map(str.isidentifier, parts)):
        raise ValueError(f"{what}: got {named!r}; {'.'.join(parts)} is no name of a module: rename the file or folder")
    first = folder / parts[0]
    own = {first.with_suffix(".py"), first / "__init__.py"}
    spec = find_spec(parts[0])
    if spec is None or spec.origin is None:
        add(str(folder))
    elif Path(spec.origin).resolve() not in own:
        where = spec.origin if spec.has_location else "Python's own"
        raise ValueError(f"{what}: got {named!r}; there is another module {parts[0]}, {where}: rename the file")
    return f"{'.'.join(parts)}:{function}"
