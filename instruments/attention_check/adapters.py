"""Kernels of other layouts, few calls and other option names behind f(q, k, v, ...) on (batch, heads, sequence,
head_dim).

Each function that takes a kernel returns one of q, k, v and o (batch, heads, sequence, head_dim), `renamed` alone one
of the same tensors. What a kernel cannot do then, it refuses at a call: NotImplementedError.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from fa_lib.execution.lookup import lookup
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.registry import emulates
from fa_lib.kernels.tiling import Tiling

OPTION_NAMES = {  # option -> its names, the first fa_lib's own
    "causal": ("causal", "is_causal"),
    "scale": ("scale", "softmax_scale", "sm_scale", "scaling"),
    "mask": ("mask", "attn_mask", "attention_mask", "attn_bias"),
    "window": ("window", "window_size"),
    "softcap": ("softcap", "logit_softcap", "logits_soft_cap"),
    "sinks": ("sinks", "s_aux"),
}
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")  # in flash-attn's order
NO_LIMIT = -1  # of a window_size
NEIGHBOUR = 17  # rows of a sequence that is packed before each of the batch; in a cache, its keys beyond theirs
PAGE = 16  # keys of a page, as vLLM has them
LOUD = 64.0  # the value in places that a kernel must not read


def documented(name: str, doc: str) -> list[str] | None:
    """Read the names of the parameters of a function without a signature, such as torch's built-in ones, from its
    documentation, which may begin with "name(query, key, ..., scale=None)"; None where it does not."""
    match = re.match(rf"\s*{re.escape(name)}\(([^()]*)\)", doc)
    names = [word.partition("=")[0].partition(":")[0].strip() for word in match[1].split(",")] if match else []
    return names if names and all(map(str.isidentifier, names)) else None


def parameter_names(fn: Callable) -> tuple[set[str], bool]:
    """Read the names of a kernel's parameters, and whether it takes any other option too."""
    try:
        parameters = inspect.signature(fn).parameters
        return {*parameters}, any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    except (TypeError, ValueError):
        read = documented(getattr(fn, "__name__", ""), getattr(fn, "__doc__", None) or "")
        return {*(read or ())}, read is None


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
        names, takes_any = parameter_names(fn)
        own = {option: next((n for n in aliases if n in names), "") for option, aliases in OPTION_NAMES.items()}
        if takes_any and all(name in ("", option) for option, name in own.items()):
            own = {}
        return cls(own, "enable_gqa" in names)

    def given(self, options: Mapping[str, Any], shared: bool) -> dict[str, Any]:
        """Give the options of a call, fa_lib's name -> value, the kernel's names; shared: whether heads of Q share
        keys. A TypeError where the kernel does not take an option."""
        renamed_options: dict[str, Any] = {}
        for option, x in options.items():
            name = self.options.get(option, option)
            if not name:
                raise TypeError(f"takes no option {option!r}")
            if name == "window_size" and x is not None:
                x = tuple(NO_LIMIT if side is None else side for side in x)
            renamed_options[name] = x
        return renamed_options | dict(enable_gqa=True) if self.shared_heads and shared else renamed_options


def renamed(fn: Callable, heads: int = -3) -> Callable:
    """Wrap a kernel so that its options have fa_lib's names, and its signature those that it takes. A kernel that has
    these, or takes any, is returned as it is. heads: the dimension of its tensors that counts heads."""
    own = OwnNames.of(fn)
    if not own.shared_heads and all(name in ("", option) for option, name in own.options.items()):
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


def standard(fn: Callable, heads: int = -3) -> Callable:
    """Return a kernel without the arguments of an emulated one, such as a Precision, or else with fa_lib's names of
    options; heads: as of `renamed`."""
    return partial(_uniform, fn) if emulates(fn) else renamed(fn, heads)


def _uniform(fn, q, k, v, **options):
    defaults = dict(precision=Precision.uniform(q.dtype), tiling=Tiling(64, 64), algorithm="fa1")
    return fn(q, k, v, **{n: x for n, x in defaults.items() if n in inspect.signature(fn).parameters} | options)


def bshd(fn: Callable) -> Callable:
    """Adapt a kernel that takes and returns (batch, sequence, heads, head_dim). It gets contiguous tensors where ours
    are contiguous; others keep their strides."""

    def turned(x):
        return x.transpose(1, 2).contiguous() if x.is_contiguous() else x.transpose(1, 2)

    @wraps(fn)
    def kernel(q, k, v, **options):
        return _heads_before_rows(fn(*map(turned, (q, k, v)), **options))

    return kernel


def _heads_before_rows(o):
    """Turn o, alone or with more behind it; anything else is as it was."""
    if isinstance(o, (tuple, list)) and o and isinstance(o[0], Tensor):
        return o[0].transpose(1, 2), *o[1:]
    return o.transpose(1, 2) if isinstance(o, Tensor) and o.ndim == 4 else o


def varlen(fn: Callable) -> Callable:
    """Adapt a kernel of packed sequences, called as flash-attn's `flash_attn_varlen_func`: fn(q, k, v, cu_seqlens_q,
    cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=, causal=, window_size=) on tensors (rows of all sequences,
    heads, head_dim); cu_seqlens, int32 (sequences + 1,), say where each begins. The lengths are passed by name to a
    kernel that has these names, in whatever order, and to others by position.

    Each element of the batch becomes a sequence. Before each comes another sequence, NEIGHBOUR rows of LOUD, whose
    output is dropped. A TypeError, at a call, says that fn returns no tensor.
    """

    @wraps(fn)
    def kernel(q, k, v, **options):
        packed, starts = zip(*map(_packed, (q, k, v)))
        lengths = (*starts[:2], *(max(x.shape[2], NEIGHBOUR) for x in (q, k)))
        if {*LENGTHS} <= parameter_names(fn)[0]:
            lengths, options = (), options | dict(zip(LENGTHS, lengths))
        o = _tensor(fn(*packed, *lengths, **_flash_attns(options)))
        outputs = [o[i : i + q.shape[2]] for i in starts[0][1::2].tolist()]
        return torch.stack(outputs).transpose(1, 2)

    return kernel


def _packed(x):
    """Pack sequences, a neighbour and one of the batch in turn: (rows, heads, features), and where each begins."""
    parts = []
    for sequence in x:
        rows = sequence.transpose(0, 1)  # (n, heads, features)
        parts += [rows.new_full((NEIGHBOUR, *rows.shape[1:]), LOUD), rows]
    starts = torch.tensor([0, *(len(part) for part in parts)], device=x.device).cumsum(0).to(torch.int32)
    return torch.cat(parts), starts


def paged(fn: Callable) -> Callable:
    """Adapt a kernel of a paged cache, called as flash-attn's `flash_attn_with_kvcache`: fn(q, k_cache, v_cache,
    cache_seqlens=, block_table=, softmax_scale=, causal=, window_size=) on q (batch, rows, heads, head_dim), caches
    (pages, PAGE, kv_heads, head_dim), lengths (batch,) and page numbers (batch, pages of one), both int32.

    Before each sequence of the batch comes another, with NEIGHBOUR keys more, whose output is dropped. The pages lie in
    reverse order, with an unused page between any two. The table is two pages longer than the longest sequence. All
    places outside the batch's sequences are LOUD. It has no gradients. A TypeError as of `varlen`.
    """

    @wraps(fn)
    def kernel(q, k, v, **options):
        batch, heads, n, _ = k.shape
        lengths = torch.tensor([n + NEIGHBOUR, n] * batch, dtype=torch.int32, device=q.device)
        own_pages, rows = -(-n // PAGE), -(-(n + NEIGHBOUR) // PAGE) + 2  # pages of the batch's sequence, of the table
        pages = 2 * len(lengths) * rows
        table = torch.arange(pages - 1, -1, -2, dtype=torch.int32, device=q.device).reshape(len(lengths), rows)
        caches = []
        for x in (k, v):
            cache = x.new_full((pages, PAGE, heads, x.shape[-1]), LOUD)
            own_rows = x.new_full((batch, own_pages * PAGE, heads, x.shape[-1]), LOUD)
            own_rows[:, :n] = x.detach().transpose(1, 2)
            cache[table[1::2, :own_pages].long()] = own_rows.unflatten(1, (own_pages, PAGE))
            caches.append(cache)
        queries = torch.stack((torch.zeros_like(q), q), 1).flatten(0, 1)  # (sequences, heads, rows, head_dim)
        settings = dict(cache_seqlens=lengths, block_table=table) | _flash_attns(options)
        o = _tensor(fn(queries.transpose(1, 2).contiguous(), *caches, **settings))
        return o[1::2].transpose(1, 2)

    return kernel


def _flash_attns(options):
    """Give options flash-attn's names; options that it does not have keep theirs."""
    own = {option: option for option in options} | dict(window="window_size", scale="softmax_scale")
    given = {name: x for name, x in options.items() if name != "window" or x is not None}
    return OwnNames(own, False).given(given, False)


def first_output(given: Any) -> Any:
    """Return the output of a kernel's result: the first element of a tuple or list, such as (o, lse), or the result."""
    return given[0] if isinstance(given, (tuple, list)) and given else given


def _tensor(output):
    o = first_output(output)
    if not isinstance(o, Tensor):
        raise TypeError(f"the kernel returns {type(o).__name__}, where a tensor is due")
    return o


def one_query(fn: Callable) -> Callable:
    """Adapt a kernel that takes one query a call, as in decoding: it gets one after the other, with the keys up to the
    last that this may see, and of a window its left side. Refused: gradients, and a query that sees no key."""

    @wraps(fn)
    def kernel(q, k, v, causal: bool = False, mask: Tensor | None = None, **options: Any):
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            raise NotImplementedError("gradients, of one query at a time")
        (n_q, n_kv), outputs = (q.shape[2], k.shape[2]), []
        left, right = options.pop("window", None) or (None, None)
        for i in range(n_q):
            own = n_kv - n_q + i  # the key of the query's place
            keys = min(n_kv, n_kv if right is None and not causal else own + 1 + (0 if causal else right))
            if keys < 1:
                raise NotImplementedError("a query would see no key")
            if left is not None:
                options["window"] = (left + keys - 1 - own, 0)
            parts = (_part(q, slice(i, i + 1)), _part(k, slice(keys)), _part(v, slice(keys)))
            if mask is not None:
                options["mask"] = mask[..., i : i + 1, :keys] if mask.shape[-2] > 1 else mask[..., :keys]
            outputs.append(first_output(fn(*parts, **options)))
            if not isinstance(outputs[-1], Tensor):
                return outputs[-1]
        return torch.cat(outputs, 2)

    return kernel


def _part(x, rows):
    part = x[:, :, rows]
    return part.contiguous() if x.is_contiguous() else part


def values_at_a_time(fn: Callable, width: int) -> Callable:
    """Adapt a kernel whose V has a head_dim of its own, `width`: it gets so many values of a wider V at a time.
    Refused: a V with fewer."""

    @wraps(fn)
    def kernel(q, k, v, **options):
        d, outputs = v.shape[-1], []
        if d < width:
            raise NotImplementedError(f"{width} values")
        for first in range(0, d, width):
            start = min(first, d - width)
            o = first_output(fn(q, k, v[..., start : start + width].contiguous(), **options))
            if not isinstance(o, Tensor) or o.shape[-1] != width:
                return o
            outputs.append(o[..., first - start :])
        return torch.cat(outputs, -1)

    return kernel


LAYOUTS: dict[str, Callable[[Callable], Callable]] = {
    "bhsd": lambda fn: fn, "bshd": bshd, "varlen": varlen, "paged": paged,
}  # fmt: skip
READINGS: Mapping[str, Callable[[Callable], Callable]] = {  # of kernels that take few calls
    "one_query": one_query,
    "v_128": partial(values_at_a_time, width=128), "v_512": partial(values_at_a_time, width=512),
}  # fmt: skip


def is_layout(reading: str) -> bool:
    """Return whether a text is a key of LAYOUTS, and not of READINGS; a ValueError where it is of neither."""
    return reading not in READINGS and bool(lookup("layout", reading, LAYOUTS))


def read_as(fn: Callable, reading: str) -> Callable:
    """Return a kernel of another layout of LAYOUTS, or of few calls, of READINGS, adapted to what is asked for here; a
    ValueError where there is no such one."""
    if not is_layout(reading):
        return READINGS[reading](standard(fn))
    if reading in ("varlen", "paged"):  # called under flash-attn's names
        return LAYOUTS[reading](fn)
    return fn if reading == "bhsd" else LAYOUTS[reading](standard(fn, heads=-2))
