"""Kernels by name: `get("tiled")`, `get("package.module:function")`, and `register("mine", fn)` for a reader's own."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fa_lib.execution.lookup import lookup
from fa_lib.kernels.eager import stepwise, unfused
from fa_lib.kernels.flash import flash
from fa_lib.kernels.kernel_ref import KernelRef, simulated
from fa_lib.kernels.layouts import LAYOUTS
from fa_lib.kernels.option_names import renamed
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.presets import as_shipped, baseline, every_step
from fa_lib.kernels.readings import READINGS
from fa_lib.kernels.reference import reference
from fa_lib.kernels.tiled import tiled
from fa_lib.kernels.tiling import Tiling

_BUILT_IN = (reference, tiled, flash, unfused, stepwise, baseline, as_shipped, every_step)
_KERNELS: dict[str, Callable] = {fn.__name__: fn for fn in _BUILT_IN}


def register(name: str, fn: Callable) -> None:
    """Add a kernel under a name, for `get`, in this process.

    A notebook's kernel, a worker and a job are processes of their own and do not have the name: in a grid with an
    executor, in a notebook's parameters and on the command line, say package.module:function.

    Args:
        name: not taken yet.
        fn: called `fn(q, k, v, *, causal=False, scale=None, mask=None)`, returns o in q's dtype and shape.

    Raises:
        ValueError: the name is taken or no text, or fn cannot be called.
    """
    if not isinstance(name, str) or not name or name in _KERNELS or {":", "@"} & {*name}:
        raise ValueError(f"name: got {name!r}; accepted is a text without : and @, other than {', '.join(_KERNELS)}")
    if not callable(fn):
        raise ValueError(f"fn: got {type(fn).__name__}; accepted is a callable kernel(q, k, v, *, causal, scale, mask)")
    _KERNELS[name] = fn


def get(kernel: str | KernelRef | Callable, gpu: str = "") -> Callable:
    """Find a kernel.

    Args:
        kernel: a KernelRef, or the text of one: a registered kernel's name, "package.module:function" or
            "path/to/file.py:function"; "NAME@bshd" for a kernel whose tensors have this layout of LAYOUTS, or this
            convention of READINGS: it is adapted to what is asked for here. A function is returned as it is.
        gpu: "A100", "L40S", "H100" or "B200" for a kernel that launches Triton kernels, or "fa2", FlashAttention-2's
            own: it runs on the CPU in this GPU's arithmetic (docs/gpu/machine.md). "": the kernel as it is.

    Returns:
        A function of q, k, v (batch, heads, sequence, head_dim) and options.

    Raises:
        ValueError: there is no such kernel or layout.
    """
    if isinstance(kernel, str) and kernel in _KERNELS and not gpu:
        return _KERNELS[kernel]
    if isinstance(kernel, str):
        kernel = KernelRef.of(kernel, gpu)
    elif not isinstance(kernel, KernelRef):
        return simulated(kernel, gpu) if gpu else kernel
    elif gpu:
        kernel = replace(kernel, gpu=gpu)
    fn = kernel.fn or _function(kernel)
    for reading in kernel.readings:
        fn = read_as(fn, reading)
    return fn


def _function(kernel):
    """Return the function of a KernelRef, adapted to nothing.

    Raises:
        ValueError: there is no such kernel.
    """
    if not kernel.is_named:
        return kernel.imported()
    if kernel.function not in _KERNELS:
        accepted = f"{', '.join(_KERNELS)}, package.module:function or path/to/file.py:function"
        words = "a name that was registered is known in its own process alone, and not in workers, jobs and notebooks"
        raise ValueError(f"kernel: got {kernel.function!r}; accepted are {accepted} ({words})")
    return _KERNELS[kernel.function]


def read_as(fn: Callable, reading: str) -> Callable:
    """Return a kernel of another layout of LAYOUTS, or of another convention of READINGS, adapted to what is asked for
    here.

    Raises:
        ValueError: there is no such layout.
    """
    if reading in READINGS:
        return READINGS[reading](_plain(fn))
    adapted = lookup("layout", reading, LAYOUTS)
    if reading in ("varlen", "paged"):  # called under flash-attn's names
        return adapted(_with_precision(fn))
    return fn if reading == "bhsd" else adapted(_plain(fn, heads=-2))


def plain(kernel: str | KernelRef | Callable) -> Callable:
    """Find a kernel and make it callable as f(q, k, v, **options) on (batch, heads, sequence, head_dim).

    A kernel that takes a Precision runs with every step in its inputs' format, in tiles of 64, by fa1, as in the paper.
    A kernel with other names for its options takes fa_lib's (`option_names`).
    """
    return _plain(get(kernel))


def _plain(fn, heads=-3):
    return _with_precision(fn) if emulates(fn) else renamed(fn, heads)


def _with_precision(fn):
    return partial(_uniform, fn) if emulates(fn) else fn


def _uniform(fn, q, k, v, **options):
    defaults = dict(precision=Precision.uniform(q.dtype), tiling=Tiling(64, 64), algorithm="fa1")
    return fn(q, k, v, **{n: x for n, x in defaults.items() if n in inspect.signature(fn).parameters} | options)


def available() -> tuple[str, ...]:
    """List the names of the registered kernels."""
    return tuple(_KERNELS)


def emulates(fn: Callable) -> bool:
    """Return whether a kernel requires a Precision, and so runs in any format; others run in their inputs' dtype."""
    try:
        precision = inspect.signature(fn).parameters.get("precision")
        return precision is not None and precision.default is precision.empty
    except ValueError:  # compiled, and keeps its signature to itself
        return False
