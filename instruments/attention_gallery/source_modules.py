"""Modules of other projects, imported from their unpacked archive without the __init__ files of the folders around
them: those import all that a project needs, of which one file of kernels uses little.

    decode = module(SGLANG, "sglang.kernels.ops.attention.decode_attention", {"sglang.utils": dict(is_hip=...)})
"""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ptx_machine.sources import Package, unpacked

NOTHING: Mapping[str, Mapping[str, Any]] = {}


def module(package: Package, name: str, stubs: Mapping[str, Mapping[str, Any]] = NOTHING) -> ModuleType:
    """Import a file of a package, and what it imports, from its archive, once. Its packages, and the stubs, stay in
    sys.modules until the process ends.

    Args:
        package: to unpack; the file lies in one of its folders `keep`.
        name: of the module, "package.folder.file".
        stubs: name of a module that the file imports, and does not need -> its attributes.

    Raises:
        ImportError: the process has imported this project from elsewhere.
        RuntimeError: the archive cannot be fetched.
    """
    folder = unpacked(package)
    for stub, attributes in stubs.items():
        _packages(folder, stub)
        if stub not in sys.modules:
            sys.modules[stub] = ModuleType(stub)
            sys.modules[stub].__dict__.update(attributes)
    _packages(folder, name)
    return importlib.import_module(name)


def _packages(folder: Path, name: str) -> None:
    """Make the packages around a module, whose __init__ files do not run."""
    words = name.split(".")
    for count in range(1, len(words)):
        full, path = ".".join(words[:count]), str(folder.joinpath(*words[:count]))
        if full not in sys.modules:
            sys.modules[full] = ModuleType(full)
            sys.modules[full].__path__ = [path]
        elif count == 1 and path not in getattr(sys.modules[full], "__path__", [path]):
            raise ImportError(f"{full} is imported from elsewhere in this process: {sys.modules[full].__path__}")
