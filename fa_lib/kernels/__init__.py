"""Attention kernels by name: `get("tiled")`, and `register("mine", fn)` for the reader's own.

Every kernel is called `kernel(q, k, v, *, causal=False, scale=None, mask=None) -> o` on tensors of shape
(batch, heads, sequence, head_dim). The emulated ones also take a Precision, and `tiled` a Tiling.
"""

import inspect

from fa_lib.kernels.flash import flash
from fa_lib.kernels.reference import golden, reference
from fa_lib.kernels.tiled import rescales, tiled

__all__ = ["available", "emulates", "flash", "get", "golden", "reference", "register", "rescales", "tiled"]

_KERNELS = {"reference": reference, "tiled": tiled, "flash": flash}


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
    """The kernel registered under `name`.

    Raises:
        ValueError: there is none.
    """
    if name not in _KERNELS:
        raise ValueError(f"kernel: got {name!r}; accepted are {', '.join(_KERNELS)}, or register your own")
    return _KERNELS[name]


def available():
    """Names of the registered kernels."""
    return tuple(_KERNELS)


def emulates(fn):
    """True where a kernel takes a Precision, and so runs in any format; others run in their inputs' dtype."""
    return "precision" in inspect.signature(fn).parameters
