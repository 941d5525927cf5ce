"""The options of a call under the names that kernels give them: torch's is_causal, flash-attn's softmax_scale."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.registry import emulates, get
from fa_lib.kernels.tiling import Tiling

OPTION_NAMES = {  # option -> its names, the first fa_lib's own
    "causal": ("causal", "is_causal"),
    "scale": ("scale", "softmax_scale", "sm_scale", "scaling"),
    "mask": ("mask", "attn_mask", "attention_mask", "attn_bias"),
    "window": ("window", "window_size"),
    "softcap": ("softcap", "logit_softcap", "logits_soft_cap"),
    "sinks": ("sinks", "s_aux"),
}
NO_LIMIT = -1  # of a window_size


def documented(name: str, doc: str) -> list[str] | None:
    """Read the parameters of a function without a signature, such as torch's built-in ones, from its documentation.

    Args:
        name: of the function.
        doc: its documentation, which may begin with "name(query, key, ..., scale=None)".

    Returns:
        The parameters' names; None where the documentation does not begin so.
    """
    match = re.match(rf"\s*{re.escape(name)}\(([^()]*)\)", doc)
    names = [word.partition("=")[0].partition(":")[0].strip() for word in match[1].split(",")] if match else []
    return names if names and all(map(str.isidentifier, names)) else None


@dataclass(frozen=True)
class OwnNames:
    """A kernel's names for the options of a call.

    Attributes:
        options: option -> the kernel's name for it, "" where it does not take it; empty where it takes any option under
            fa_lib's names, or has no readable signature.
        shared_heads: whether it needs enable_gqa=True where heads of Q share keys.
    """

    options: Mapping[str, str]
    shared_heads: bool

    @classmethod
    def of(cls, fn: Callable) -> "OwnNames":
        """Read the names from a kernel's signature. Where it has another library's name for an option, its **kwargs are
        not taken as options."""
        names, takes_any = _parameters(fn)
        own = {option: next((n for n in aliases if n in names), "") for option, aliases in OPTION_NAMES.items()}
        if takes_any and all(name in ("", option) for option, name in own.items()):
            own = {}
        return cls(own, "enable_gqa" in names)

    @property
    def are_ours(self) -> bool:
        """Whether fa_lib's names are all that a call needs."""
        return not self.shared_heads and all(name in ("", option) for option, name in self.options.items())

    def given(self, options: Mapping[str, Any], shared: bool) -> dict[str, Any]:
        """Give the options of a call the kernel's names.

        Args:
            options: fa_lib's name -> value.
            shared: whether heads of Q share keys.

        Returns:
            dict of the kernel's name -> value.

        Raises:
            TypeError: the kernel does not take an option.
        """
        renamed_options: dict[str, Any] = {}
        for option, x in options.items():
            name = self.options.get(option, option)
            if not name:
                raise TypeError(f"takes no option {option!r}")
            if name == "window_size" and x is not None:
                x = tuple(NO_LIMIT if side is None else side for side in x)
            renamed_options[name] = x
        return renamed_options | dict(enable_gqa=True) if self.shared_heads and shared else renamed_options


def plain(kernel: str | KernelRef | Callable) -> Callable:
    """Find a kernel and make it callable as f(q, k, v, **options) on (batch, heads, sequence, head_dim).

    A kernel that takes a Precision runs with every step in its inputs' format, in tiles of 64, by fa1, as in the paper.
    A kernel with other names for its options takes fa_lib's.
    """
    return standard(get(kernel))


def standard(fn: Callable, heads: int = -3) -> Callable:
    """Return a function that `plain` returns for a kernel's function; heads: as of `renamed`."""
    return with_precision(fn) if emulates(fn) else renamed(fn, heads)


def with_precision(fn: Callable) -> Callable:
    """Return a kernel without the arguments of an emulated one, such as a Precision; another one is returned as it
    is."""
    return partial(_uniform, fn) if emulates(fn) else fn


def _uniform(fn, q, k, v, **options):
    defaults = dict(precision=Precision.uniform(q.dtype), tiling=Tiling(64, 64), algorithm="fa1")
    return fn(q, k, v, **{n: x for n, x in defaults.items() if n in inspect.signature(fn).parameters} | options)


def renamed(fn: Callable, heads: int = -3) -> Callable:
    """Wrap a kernel so that its options have fa_lib's names. A kernel that has these, or takes any, is returned as it
    is.

    Args:
        fn: the kernel, fn(q, k, v, **options), on tensors of any layout.
        heads: the dimension of its tensors that counts heads.

    Returns:
        A kernel of the same tensors. Its signature has the options that fn takes.
    """
    own = OwnNames.of(fn)
    if own.are_ours:
        return fn

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        shared = q.ndim >= -heads and q.shape[heads] != k.shape[heads]
        return fn(q, k, v, **own.given(options, shared))

    kernel.__name__ = getattr(fn, "__name__", type(fn).__name__)
    kernel.__module__ = getattr(fn, "__module__", None)
    kinds = inspect.Parameter
    parameters = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in "qkv"]
    parameters += [kinds(option, kinds.KEYWORD_ONLY, default=None) for option, name in own.options.items() if name]
    parameters += [] if own.options else [kinds("options", kinds.VAR_KEYWORD)]  # it takes any
    kernel.__signature__ = inspect.Signature(parameters)  # pyright: ignore
    return kernel


def _parameters(fn) -> tuple[set[str], bool]:
    """Return the names of a kernel's parameters, and whether it takes others or has no readable signature."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        names = documented(getattr(fn, "__name__", ""), getattr(fn, "__doc__", None) or "")
        return {*(names or ())}, names is None
    return {*parameters}, any(p.kind is p.VAR_KEYWORD for p in parameters.values())
