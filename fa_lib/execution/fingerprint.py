"""What a result depends on, as a digest: source found by walking imports, versions, hardware.

A function's sources are the module it is written in, and the modules that this one imports of its own project, and so
on: imports inside of functions count. A package's __init__ counts where something is imported from it by name.
"""

import ast
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch

PACKAGE = Path(__file__).resolve().parent.parent  # fa_lib
LIBRARIES = ("torch", "numpy", "gfloat", "numba")
NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # package.module:function


def digest(value: Any) -> str:
    """SHA-256 of a value as JSON holds it: the checksum of what is kept."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def code_version(fn: Callable, cells: Iterable[dict] = (), uses: Iterable = ()) -> str:
    """A digest of what the results of a function depend on, beside its arguments.

    Args:
        fn: the function.
        cells: its arguments. Texts in them that name code, "package.module:function", or a .yaml file count with what
            they name; where one is "cuda", the GPU counts.
        uses: further functions, and paths of files, whose content counts.

    Raises:
        ValueError: a text names code that is not to be found.
    """
    texts = sorted({text for cell in cells for text in _texts(cell)})
    named = [_named(text) for text in texts if NAMED.fullmatch(text)]
    paths = [Path(text) for text in texts if text.endswith(".yaml") and Path(text).is_file()]
    held = [of_function(fn), *map(_of, uses), *named, *(path.read_text() for path in paths)]
    return digest([held, versions(), hardware("cuda" in texts)])


def versions() -> list[str]:
    """Of the libraries that compute."""
    return [importlib.metadata.version(library) for library in LIBRARIES]


def hardware(gpu: bool = False) -> list[str]:
    """The processor's instructions as torch uses them, and the GPU where it counts."""
    found = [torch.backends.cpu.get_cpu_capability()]
    return found + ([torch.cuda.get_device_name()] if gpu and torch.cuda.is_available() else [])


def of_function(fn: Callable) -> str:
    """A digest of a function's own text and of the sources it depends on."""
    inner = inspect.unwrap(fn)
    try:
        text = inspect.getsource(inner)
    except (TypeError, OSError):  # compiled, or of no file
        text = repr(fn) if getattr(fn, "__name__", "") else type(fn).__name__
    module = getattr(inner, "__module__", None)
    file = getattr(sys.modules.get(module), "__file__", None)
    return digest([text, sources(file, module) if file and module else {}])


def of_source(text: str) -> str:
    """A digest of the sources in fa_lib that a piece of code depends on, the code of a notebook for instance."""
    return digest(_walked(_imports(text, "", False), PACKAGE.parent, {PACKAGE.name}))


def sources(file: str, module: str) -> dict[str, str]:
    """module -> SHA-256 of its source: of a module, and of those of its own project and of fa_lib that it imports."""
    path = Path(file).resolve()
    if module == "__main__" or path.suffix != ".py":
        module = path.stem
    package = path.name == "__init__.py"
    folder = path.parents[module.count(".") + package]
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    own = None if not installed else {PACKAGE.name}  # of an installed library its own text is enough
    found = {module: _sha(path)}
    if PACKAGE not in path.parents:
        found |= _walked(_imports(_text(path), module, package), folder, own)
    return found | _walked(_imports(_text(path), module, package), PACKAGE.parent, {PACKAGE.name})


def _walked(names, folder, own):
    """module -> SHA-256, of the modules of `names` below a folder, and of what they import there; `own` are the
    packages that count, None is all."""
    found, left = {}, list(names)
    while left:
        name, path = _file(left.pop(), folder)
        if path is None or name in found or (own is not None and name.split(".")[0] not in own):
            continue
        found[name] = _sha(path)
        left += _imports(_text(path), name, path.name == "__init__.py")
    return found


@cache
def _imports(text, module, package):
    """What a source imports: (module, name or "") for `from module import name` and `import module`."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            above = parts[: len(parts) - node.level + package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [(base, alias.name) for alias in node.names]
    return found


def _file(imported, folder):
    """Module and file of an import below a folder: the module `module.name` where there is one, else `module`;
    (module, None) where neither is there."""
    module, name = imported
    for each in (f"{module}.{name}", module) if name else (module,):
        at = folder.joinpath(*each.split("."))
        for path in (at.with_suffix(".py"), at / "__init__.py"):
            if path.is_file():
                return each, path
    return module, None


@cache
def _as_loaded(path):
    return path.read_text()


def _text(path):
    """The text of a file; of fa_lib's own as it was when first asked for, which is what this process runs."""
    return _as_loaded(path) if PACKAGE in path.parents else path.read_text(errors="replace")


def _sha(path):
    return hashlib.sha256(_text(path).encode()).hexdigest()


def _texts(value):
    """The texts in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


def _named(text):
    """A digest of the code that "package.module:function" names. What is not fa_lib's is a stranger's, and not imported
    for that: the whole module counts."""
    module, function = text.split(":")
    if module.split(".")[0] != PACKAGE.name:
        file = _located(module)
        if file is None:
            raise ValueError(
                f"kernel: got {text!r}; there is no file of that module in the current folder or on PYTHONPATH"
            )
        return digest(
            [
                text,
                sources(file, module) if file.endswith(".py") else hashlib.sha256(Path(file).read_bytes()).hexdigest(),
            ]
        )
    try:
        return of_function(getattr(importlib.import_module(module), function))
    except Exception as error:
        raise ValueError(f"kernel: got {text!r}; it cannot be imported: {error!r}") from error


def _located(module):
    """The file of a module that need not be imported; None where there is none."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded:
        return loaded
    places, spec, parts = None, None, module.split(".")
    for i in range(len(parts)):  # a package's own code is not run for that
        spec = PathFinder.find_spec(".".join(parts[: i + 1]), places)
        if spec is None:
            return None
        places = spec.submodule_search_locations
    return spec.origin


def _of(used):
    return Path(used).read_text() if isinstance(used, (str, Path)) else of_function(used)
