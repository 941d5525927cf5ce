"""Kernels by name: `get("tiled")`, `get("package.module:function")`, and `register("mine", fn)` for a reader's own."""

import importlib
import inspect
from functools import partial

from fa_lib.kernels.eager import stepwise, unfused
from fa_lib.kernels.flash import flash
from fa_lib.kernels.presets import as_shipped, baseline, every_step
from fa_lib.kernels.reference import reference
from fa_lib.kernels.tiled import tiled
from fa_lib.precision import Precision
from fa_lib.tiling import Tiling

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
    """The kernel registered under `name`, or the function that "package.module:function" names; a function is itself.

    Raises:
        ValueError: there is none.
    """
    if callable(name):
        return name
    if name in _KERNELS:
        return _KERNELS[name]
    if ":" not in str(name):
        accepted = f"{', '.join(_KERNELS)}, what was registered, or package.module:function"
        raise ValueError(f"kernel: got {name!r}; accepted are {accepted}")
    module, function = name.split(":", 1)
    try:
        found = getattr(importlib.import_module(module), function)
    except (Exception, SystemExit) as error:  # a module may end the process that imports it
        where = "modules are looked for in the current folder and on PYTHONPATH"
        raise ValueError(f"kernel: got {name!r}; it cannot be had: {error!r} ({where})") from error
    if not callable(found):
        raise ValueError(f"kernel: got {name!r}, a {type(found).__name__}; accepted is a function f(q, k, v, ...)")
    return found


def plain(name):
    """The kernel of a name, to be called f(q, k, v, **options): one that takes a Precision runs with every step in its
    inputs' format, in tiles of 64, by fa1, as in the paper."""
    fn = get(name)
    if not emulates(fn):
        return fn
    return partial(_uniform, fn)


def _uniform(fn, q, k, v, **options):
    given = dict(precision=Precision.uniform(q.dtype), tiling=Tiling(64, 64), algorithm="fa1")
    return fn(q, k, v, **{n: x for n, x in given.items() if n in inspect.signature(fn).parameters} | options)


def available():
    """Names of the registered kernels."""
    return tuple(_KERNELS)


def emulates(fn):
    """True where a kernel has to be given a Precision, and so runs in any format; others run in their inputs' dtype."""
    try:
        precision = inspect.signature(fn).parameters.get("precision")
        return precision is not None and precision.default is precision.empty
    except ValueError:  # compiled, and keeps its signature to itself
        return False
