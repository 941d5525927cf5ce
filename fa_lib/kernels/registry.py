"""Kernels by name: `get("tiled")`, `get("package.module:function")`, and `register("mine", fn)` for a reader's own."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from fa_lib.kernels.kernel_ref import ADAPTERS, KernelRef, simulated

_BUILT_IN = {  # name -> the module of fa_lib.kernels that `get` imports it from
    "reference": "reference", "tiled": "tiled", "flash": "compiled", "unfused": "eager", "stepwise": "eager",
    "baseline": "presets", "as_shipped": "presets", "every_step": "presets",
}  # fmt: skip
_REGISTERED: dict[str, Callable] = {}


def register(name: str, fn: Callable) -> None:
    """Add a kernel under a name, for `get`, in this process.

    A notebook's kernel, a worker and a job are processes of their own and do not have the name: in a grid with an
    executor, in a notebook's parameters and on the command line, say package.module:function.

    fn is called `fn(q, k, v, *, causal=False, scale=None, mask=None)` and returns o in q's dtype and shape. A
    ValueError says that the name is taken or no text, or that fn cannot be called.
    """
    if not isinstance(name, str) or not name or name in available() or {":", "@"} & {*name}:
        raise ValueError(f"name: got {name!r}; accepted is a text without : and @, other than {', '.join(available())}")
    if not callable(fn):
        raise ValueError(f"fn: got {type(fn).__name__}; accepted is a callable kernel(q, k, v, *, causal, scale, mask)")
    _REGISTERED[name] = fn


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
    if isinstance(kernel, str):
        kernel = KernelRef.of(kernel, gpu)
    elif not isinstance(kernel, KernelRef):
        return simulated(kernel, gpu) if gpu else kernel
    elif gpu:
        kernel = replace(kernel, gpu=gpu)
    return kernel.adapted(kernel.fn or (_named(kernel.function) if kernel.is_named else kernel.imported()))


def _named(name):
    """Return the built-in or registered kernel of a name; a ValueError where there is none."""
    if name in _BUILT_IN:
        return getattr(import_module(f"fa_lib.kernels.{_BUILT_IN[name]}"), name)
    if name not in _REGISTERED:
        accepted = f"{', '.join(available())}, package.module:function or path/to/file.py:function"
        words = "a name that was registered is known in its own process alone, and not in workers, jobs and notebooks"
        raise ValueError(f"kernel: got {name!r}; accepted are {accepted} ({words})")
    return _REGISTERED[name]


def available() -> tuple[str, ...]:
    """List the names of the built-in and the registered kernels."""
    return (*_BUILT_IN, *_REGISTERED)


def emulates(fn: Callable) -> bool:
    """Return whether a kernel requires a Precision, and so runs in any format; others run in their inputs' dtype."""
    try:
        precision = inspect.signature(fn).parameters.get("precision")
        return precision is not None and precision.default is precision.empty
    except ValueError:  # compiled, and keeps its signature to itself
        return False


def plain(kernel: str | KernelRef | Callable) -> Callable:
    """Find a kernel and make it callable as f(q, k, v, **options) on (batch, heads, sequence, head_dim).

    A kernel that takes a Precision runs with every step in its inputs' format, in tiles of 64, by fa1, as in the paper.
    A kernel with other names for its options takes fa_lib's.
    """
    return import_module(ADAPTERS).standard(get(kernel))
