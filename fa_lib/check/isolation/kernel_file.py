"""A kernel that is named by its file, path/to/file.py:function, as the module that it is."""

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from fa_lib.check.isolation.untrusted import message, type_name
from fa_lib.execution import reader_modules

ACCEPTED = "accepted is path/to/file.py:function"


def module_name(named: str, what: str = "kernel") -> str:
    """package.module:function of a function that is named by its file; any other name as it is.

    Args:
        named: path/to/file.py:function, or another name. what: the argument's name, for errors.

    `reader_modules.add` is told of the folder that the module is imported from: the file's, or the one around its
    packages. Nothing is imported.

    Raises:
        ValueError: there is no such file or no function is named, it can be no module, or Python finds another module
            of its name.
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
        reader_modules.add(str(folder))
    elif Path(spec.origin).resolve() not in own:
        where = spec.origin if spec.has_location else "Python's own"
        raise ValueError(f"{what}: got {named!r}; there is another module {parts[0]}, {where}: rename the file")
    return f"{'.'.join(parts)}:{function}"


def function_of(name: str) -> Callable:
    """The function that "package.module:function" names."""
    accepted = "accepted is package.module:function, a function without arguments that runs the model"
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"function: got {name!r}; {accepted}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        where = "modules are looked for in the current folder and on PYTHONPATH"
        raised = f"{type_name(error)}: {message(error)}"
        raise ValueError(f"function: got {name!r}; it cannot be had: {raised} ({where})") from error
    if not callable(found):
        raise ValueError(f"function: got {name!r}, a {type(found).__name__}; {accepted}")
    return found
