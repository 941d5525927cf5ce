"""Attention kernels by name: `get("tiled")`, and `register("mine", fn)` for the reader's own.

Every kernel is called `kernel(q, k, v, *, causal=False, scale=None, mask=None) -> o` on tensors of shape
(batch, heads, sequence, head_dim). The emulated ones also take a Precision, and `tiled` a Tiling.
"""

import importlib
import inspect

from fa_lib.kernels.eager import stepwise, unfused
from fa_lib.kernels.flash import flash
from fa_lib.kernels.presets import as_shipped, baseline, every_step
from fa_lib.kernels.reference import golden, reference
from fa_lib.kernels.tiled import rescales, tiled

__all__ = [
    "as_shipped", "available", "baseline", "emulates", "every_step", "flash", "get", "golden", "reference", "register",
    "rescales", "stepwise", "tiled", "unfused",
]  # fmt: skip

_KERNELS = {f.__name__: f for f in (reference, tiled, flash, unfused, stepwise, baseline, as_shipped, every_step)}


def register(name, fn):
    """Add a kernel under a name, for `get` and for every notebook.

    Args:
        name: not taken yet.
        fn: called `fn(q, k, v, *, causal=False, scale=None, mask=None)`, returns o in q's dtype and shape.

    Raises:
        ValueError: the name is taken or no text, or fn cannot be called.
    """
    if not isinstance(name, str) or not name or name in _KERNELS:
        raise ValueError(f"name: got {name!r}; accepted is a text other than {', '.join(_KERNELS)}")
    if not callable(fn):
        raise ValueError(f"fn: got {type(fn).__name__}; accepted is a callable kernel(q, k, v, *, causal, scale, mask)")
    _KERNELS[name] = fn


def get(name):
    """The kernel registered under `name`, or the function that "package.module:function" names.

    Raises:
        ValueError: there is none.
    """
    if name in _KERNELS:
        return _KERNELS[name]
    if ":" not in str(name):
        accepted = f"{', '.join(_KERNELS)}, what was registered, or package.module:function"
        raise ValueError(f"kernel: got {name!r}; accepted are {accepted}")
    module, function = name.split(":", 1)
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"kernel: got {name!r}; it cannot be had: {error}") from error


def available():
    """Names of the registered kernels."""
    return tuple(_KERNELS)


def emulates(fn):
    """True where a kernel takes a Precision, and so runs in any format; others run in their inputs' dtype."""
    return "precision" in inspect.signature(fn).parameters
