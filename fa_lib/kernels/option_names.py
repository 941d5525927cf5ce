"""The options of a call under the names that kernels give them: torch's is_causal, flash-attn's softmax_scale."""

import inspect
import re
from collections.abc import Callable, Mapping
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


def renamed(fn: Callable) -> Callable:
    """A kernel whose options are asked for by fa_lib's names; the kernel itself where it has these, or takes any.

    Its signature has the options that it takes. With enable_gqa among its parameters, that is set where heads differ.
    """
    names = _parameters(fn)
    if names is None:
        return fn
    own, gqa = own_names(fn), "enable_gqa" in names
    if not gqa and all(name in ("", option) for option, name in own.items()):
        return fn

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        given = {own[name] if own.get(name) else name: _as(own.get(name), x) for name, x in options.items()}
        if gqa and q.shape[-3] != k.shape[-3]:
            given["enable_gqa"] = True
        return fn(q, k, v, **given)

    kernel.__name__ = getattr(fn, "__name__", type(fn).__name__)
    kernel.__module__ = getattr(fn, "__module__", None)
    kernel.__signature__ = _signature([option for option, name in own.items() if name])  # pyright: ignore
    return kernel


def own_names(fn: Callable) -> dict[str, str]:
    """option -> the name that a kernel gives it, "" where it does not take it; nothing where it takes any, or keeps its
    parameters to itself."""
    names = _parameters(fn)
    if names is None:
        return {}
    return {option: next((name for name in given if name in names), "") for option, given in OPTION_NAMES.items()}


def _as(name, x):
    """An option as a kernel that names it so takes it."""
    if name == "window_size" and x is not None:
        return tuple(NO_LIMIT if side is None else side for side in x)
    return x


def _parameters(fn) -> Mapping[str, Any] | set[str] | None:
    """The names of a kernel's parameters; None where it takes any, or keeps them to itself."""
    try:
        given = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        found = documented(getattr(fn, "__name__", ""), getattr(fn, "__doc__", None) or "")
        return None if found is None else set(found)
    return None if any(p.kind is p.VAR_KEYWORD for p in given.values()) else given


def _signature(options):
    tensors = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in "qkv"]
    return inspect.Signature(
        tensors + [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in options]
    )
