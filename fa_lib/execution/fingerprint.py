"""What a result depends on, as a digest: source found by walking imports, versions, hardware.

A function's sources are the module it is written in, and the modules that this one imports, and so on: imports inside
of functions count. Those of the standard library and of installed packages do not: versions stand for them. A package's
__init__ counts where something is imported from it by name, and outside of fa_lib wherever a module of it is imported.
A file counts with the module that names it, "template.cu", where it lies in a folder below that of the module.
"""

import ast
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch

from fa_lib.execution.machine import model
from fa_lib.execution.paths import PACKAGES

LIBRARIES = ("torch", "numpy", "gfloat", "numba")
SETTINGS = ("ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")  # of the environment, that change bits
NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # package.module:function
FILES = re.compile(r'"([\w-]+\.[a-z]+)"')  # that a source names


def digest(value: Any) -> str:
    """Compute the SHA-256 of a value as JSON holds it; a TypeError where JSON cannot."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def code_version(fn: Callable, cells: Iterable[dict] = (), uses: Iterable = ()) -> str:
    """Compute a digest of all that a function's results depend on, except its arguments.

    Args:
        fn: the function.
        cells: its calls: argument -> value. Texts in them that name code, "package.module:function", or a .yaml file
            count with its content; where one is "cuda", the GPU counts.
        uses: further functions, and paths of files, whose content counts.

    Raises:
        ValueError: a text names code that cannot be found or imported.
    """
    texts = sorted({text for cell in cells for text in _texts(cell)})
    code = [_named_code(text) for text in texts if NAMED.fullmatch(text)]
    paths = [Path(text) for text in texts if text.endswith(".yaml") and Path(text).is_file()]
    contents = [of_function(fn), *map(_content_of, uses), *code, *(path.read_text() for path in paths)]
    return digest([contents, versions(), hardware("cuda" in texts)])


def versions() -> list[str]:
    """List the versions of LIBRARIES, which compute."""
    return [importlib.metadata.version(library) for library in LIBRARIES]


def hardware(gpu: bool = False) -> list[str]:
    """List what of the machine may change bits: the instructions that torch uses, the processor's model (with the same
    instructions, oneDNN and MKL may compute other bits), the environment's SETTINGS, and, if asked, the GPU's name."""
    found = [torch.backends.cpu.get_cpu_capability(), model(), *(os.environ.get(name, "") for name in SETTINGS)]
    return found + ([torch.cuda.get_device_name()] if gpu and torch.cuda.is_available() else [])


def of_function(fn: Callable) -> str:
    """Compute a digest of a function's own text and of the sources it depends on."""
    inner = inspect.unwrap(fn)
    try:
        text = inspect.getsource(inner)
    except (TypeError, OSError):  # compiled, or of no file
        text = repr(fn) if getattr(fn, "__name__", "") else type(fn).__name__
    module = getattr(inner, "__module__", None)
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return digest([text, sources(file, module) if file and module else {}])


def of_notebook(cells: Iterable[str], parameters: dict, folder: str | Path) -> str:
    """Compute a digest of what a notebook depends on: the modules that its code imports, fa_lib's with the files beside
    them that are no code (configurations, styles), and the code that its texts name, "package.module:function".

    Args:
        cells: the code of each. parameters: of the run. folder: where cells run and find modules of the reader's.
    """
    folder, names, texts = Path(folder).resolve(), [], {*_texts(parameters)}
    for cell in cells:
        code = _python(cell)
        names += _imports(code, "", False)
        nodes = ast.walk(_tree(code))
        texts |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names += [(text.split(":")[0], "") for text in sorted(texts) if NAMED.fullmatch(text)]
    found = _walked(names, folder)
    rooms = {tuple(name.split(".")[:-1]) for name in found if name.split(".")[0] in PACKAGES} - {()}
    beside = {(first, path) for first, *inner in rooms for path in PACKAGES[first].joinpath(*inner).glob("[!.]*.*")}
    found |= {
        f"{first}/{path.relative_to(PACKAGES[first])}": _sha(path)
        for first, path in sorted(beside)
        if path.suffix != ".py" and path.is_file()
    }
    return digest(found)


def _python(cell):
    """Return the Python of a cell. Its magics become calls, and an operator % stays what it is; what follows a line of
    %%time or %%capture is code."""
    from IPython.core.inputtransformer2 import TransformerManager  # comes with notebooks, and only they need it

    while (cell := cell.lstrip()).startswith("%%"):
        cell = cell.partition("\n")[2]
    return TransformerManager().transform_cell(cell)


def sources(file: str, module: str) -> dict[str, str]:
    """Compute module -> SHA-256 of its source, for a module (its file, and its name with its packages) and for all
    modules of the reader's and of fa_lib that it imports."""
    path = Path(file).resolve()
    if module == "__main__" or path.suffix != ".py":
        module = path.stem
    package = path.name == "__init__.py"
    folder = path.parents[module.count(".") + package]
    reader = None if _is_own(path) or _installed(path) else folder
    return {module: _sha(path)} | _walked(_imports(_text(path), module, package), reader)


def _walked(names, reader):
    """Compute module -> SHA-256, for the modules of `names` and those that they import: fa_lib's, and, where `reader`
    is a folder, the reader's, in that folder or wherever Python finds them."""
    found, left, seen = {}, list(names), set()
    while left:
        module, inner = imported = left.pop()
        own = PACKAGES.get(module.partition(".")[0])
        if imported in seen or own is None and reader is None:
            continue
        seen.add(imported)
        candidates = (f"{module}.{inner}", module) if inner else (module,)  # the import may mean either
        paths = {each: _own_file(each, own.parent) if own else _readers_file(each, reader) for each in candidates}
        name = next((each for each, path in paths.items() if path), module)
        if own is None:
            parts = name.split(".")
            left += [(".".join(parts[:i]), "") for i in range(1, len(parts))]  # the packages that it is in
        if (path := paths[name]) and name not in found:
            found[name] = _sha(path)
            left += _imports(_text(path), name, path.name == "__init__.py") if path.suffix == ".py" else []
    return found


def _installed(file):
    """Say whether a file, or None, is one of an installed package."""
    return file is not None and bool({"site-packages", "dist-packages"} & set(Path(file).resolve().parts))


def _readers_file(module, folder):
    """Find the file of a module as `_file`, or else where Python does; None for one of the standard library or of an
    installed package."""
    first = module.partition(".")[0]
    if path := _file(module, folder):
        return path
    if not first or first in sys.stdlib_module_names or first in LIBRARIES or _installed(_located(first)):
        return None
    file = _located(module)
    return Path(file).resolve() if file and Path(file).is_file() and not _installed(file) else None


@cache
def _imports(text, module, package):
    """List what a source imports: (module, name or "") for `from module import name` and `import module`."""
    found = []
    for node in _statements(text):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            above = parts[: len(parts) - node.level + package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [(base, alias.name) for alias in node.names]
    return found


def _statements(text):
    """Yield a source's statements, at any depth, among which imports are; expressions, most of the tree, are
    skipped."""
    left = [_tree(text)]
    while left:
        node = left.pop()
        yield node
        for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, inner, ())


def _tree(text):
    """Return a source's syntax tree; an empty one for a text that is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _file(module, folder):
    """Find the file of a module below a folder; None where there is none."""
    at = folder.joinpath(*module.split("."))
    return next((path for path in (at.with_suffix(".py"), at / "__init__.py") if path.is_file()), None)


# fa_lib's own files as they were when first asked for, which is what this process runs
_own_file = cache(_file)


@cache
def _own_text(path):
    return path.read_text(errors="replace")


def _text(path):
    return _own_text(path) if _is_own(path) else path.read_text(errors="replace")


def _sha(path):
    """Compute the SHA-256 of a file, and of those that it names in folders below its own."""
    below = [path.parent.glob(f"[!._]*/{name}") for name in FILES.findall(_text(path))] if _is_own(path) else []
    texts = [_text(path), *(_text(file) for files in below for file in sorted(files))]
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def _is_own(path):
    return any(path.is_relative_to(package) for package in PACKAGES.values())


def _texts(value) -> Iterator[str]:
    """Yield the texts in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


def _named_code(text):
    """Compute a digest of the code that "package.module:function" names. Code that is not fa_lib's is not imported for
    that: its whole module counts."""
    module, function = text.split(":")
    if module.split(".")[0] not in PACKAGES:
        file = _located(module)
        if file is None:
            where = "in the current folder or on PYTHONPATH"
            raise ValueError(f"kernel: got {text!r}; there is no file of that module {where}")
        python = file.endswith(".py")
        return digest([text, sources(file, module) if python else hashlib.sha256(Path(file).read_bytes()).hexdigest()])
    try:
        return of_function(getattr(importlib.import_module(module), function))
    except Exception as error:
        raise ValueError(f"kernel: got {text!r}; it cannot be imported: {error!r}") from error


def _located(module):
    """Find the file of a module without importing it; None where there is none."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded:
        return loaded
    parts = module.split(".")
    spec = next(filter(None, (finder.find_spec(parts[0], None) for finder in sys.meta_path)), None)
    for i in range(1, len(parts)):  # a package's own code is not run for that
        places = spec and spec.submodule_search_locations
        spec = PathFinder.find_spec(".".join(parts[: i + 1]), places) if places else None
    return spec.origin if spec and spec.has_location else None


def _content_of(use):
    return Path(use).read_text() if isinstance(use, (str, Path)) else of_function(use)
