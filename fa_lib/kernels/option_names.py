"""The options of a call under the names that kernels give them: torch's is_causal, flash-attn's softmax_scale."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
    """The parameters of a function without a signature, such as torch's built-in ones, as its documentation begins with
    them: "name(query, key, ..., scale=None)"; None where it does not."""
    found = re.match(rf"\s*{re.escape(name)}\(([^()]*)\)", doc)
    names = [each.partition("=")[0].partition(":")[0].strip() for each in found[1].split(",")] if found else []
    return names if names and all(map(str.isidentifier, names)) else None


@dataclass(frozen=True)
class OwnNames:
    """What a kernel calls the options of a call.

    Attributes:
        options: option -> its name there, "" where it does not take it; empty where it takes any under fa_lib's names,
            or keeps its parameters to itself.
        shared_heads: it has to be told with enable_gqa where heads of Q share keys.
    """

    options: Mapping[str, str]
    shared_heads: bool

    @classmethod
    def of(cls, fn: Callable) -> "OwnNames":
        """Of a kernel's signature. Where that has another's name for an option, its **kwargs are no options."""
        names, takes_any = _parameters(fn)
        own = {option: next((each for each in given if each in names), "") for option, given in OPTION_NAMES.items()}
        if takes_any and all(each in ("", option) for option, each in own.items()):
            own = {}
        return cls(own, "enable_gqa" in names)

    @property
    def are_ours(self) -> bool:
        """Whether a call needs no other names than fa_lib's."""
        return not self.shared_heads and all(each in ("", option) for option, each in self.options.items())

    def given(self, options: Mapping[str, Any], shared: bool) -> dict[str, Any]:
        """The options of a call as the kernel takes them. shared: whether heads of Q share keys.

        Raises:
            TypeError: it does not take one.
        """
        found: dict[str, Any] = {}
        for option, x in options.items():
            name = self.options.get(option, option)
            if not name:
                raise TypeError(f"takes no option {option!r}")
            if name == "window_size" and x is not None:
                x = tuple(NO_LIMIT if side is None else side for side in x)
            found[name] = x
        return found | dict(enable_gqa=True) if self.shared_heads and shared else found


def renamed(fn: Callable, heads: int = -3) -> Callable:
    """A kernel whose options are asked for by fa_lib's names; the kernel itself where it has these, or takes any.

    Its signature has the options that it takes. heads: the dimension of its tensors that counts heads.
    """
    own = OwnNames.of(fn)
    if own.are_ours:
        return fn

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        shared = q.ndim >= -heads and q.shape[heads] != k.shape[heads]
        return fn(q, k, v, **own.given(options, shared))

    kernel.__name__ = getattr(fn, "__name__", type(fn).__name__)
    kernel.__module__ = getattr(fn, "__module__", None)
    kernel.__signature__ = _signature(own.options)  # pyright: ignore
    return kernel


def _parameters(fn) -> tuple[set[str], bool]:
    """The names of a kernel's parameters, and whether it takes others, or keeps its own to itself."""
    try:
        given = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        found = documented(getattr(fn, "__name__", ""), getattr(fn, "__doc__", None) or "")
        return {*(found or ())}, found is None
    return {*given}, any(p.kind is p.VAR_KEYWORD for p in given.values())


def _signature(own: Mapping[str, str]):
    """Of q, k, v and those options that a kernel takes; where `own` is empty, of any."""
    kinds = inspect.Parameter
    found = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in "qkv"]
    found += [kinds(option, kinds.KEYWORD_ONLY, default=None) for option, name in own.items() if name]
    return inspect.Signature(found if own else [*found, kinds("options", kinds.VAR_KEYWORD)])
