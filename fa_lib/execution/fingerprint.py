"""What a result depends on, as a digest: source, versions, hardware."""

import hashlib
import importlib.metadata
import inspect
import json
import re
from pathlib import Path

import torch

from fa_lib import kernels

_HERE = Path(__file__).parent.parent


_AROUND = [  # no number of a sweep depends on them
    _HERE / f"{name}.py"
    for name in ("claims", "paths", "panel", "training/plots")
]  # fmt: skip


CORE = [p.read_text() for p in sorted([*_HERE.rglob("*.py"), *_HERE.rglob("*.yaml")]) if p not in _AROUND]


def code_version(fn, cells=()):
    """A digest of what a cell's numbers depend on: the core of fa_lib as it was loaded, the libraries' versions, the
    processor's instructions and, where cells name it, the GPU; fn and its module; what the cells name."""
    versions = [importlib.metadata.version(library) for library in ("torch", "numpy", "gfloat", "numba")]
    hardware = [torch.backends.cpu.get_cpu_capability()]
    if torch.cuda.is_available() and any("cuda" in cell.values() for cell in cells):
        hardware.append(torch.cuda.get_device_name())
    registered = [_module_text(kernels.get(name)) for name in _names(cells) if name in kernels.available()]
    parts = [*CORE, *versions, *hardware, _module_text(fn), *registered, *own_files(cells)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def own_files(cells):
    """Texts of the reader's own files that cells name: kernels as package.module:function, configurations as .yaml."""
    names = _names(cells)
    own = [_module_text(kernels.get(name)) for name in names if re.fullmatch(r"[\w.]+:\w+", name)]
    return own + [Path(name).read_text() for name in names if name.endswith(".yaml") and Path(name).is_file()]


def _names(cells):
    """The texts in cells, and their words, sorted: one may name several kernels."""
    texts = {value for cell in cells for value in cell.values() if isinstance(value, str)}
    return sorted(texts | {word for text in texts for word in text.split()})


def _module_text(fn):
    """A kernel's own text, and the file it comes from, which it may call; its name where it has none."""
    try:
        text = inspect.getsource(inspect.unwrap(fn))
    except (TypeError, OSError):  # compiled
        text = repr(fn)
    path = getattr(inspect.getmodule(inspect.unwrap(fn)), "__file__", None)
    return text + (Path(path).read_bytes().hex() if path else "")


def digest(value):
    """SHA-256 of a value as JSON holds it: the checksum of what is kept."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
