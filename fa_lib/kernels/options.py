"""What a call asks for beside Q, K and V: the contract of every kernel, masks, and the scores that some rows see."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import chain
from numbers import Integral, Real
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fa_lib.numerics.dots import EXACT, Dot

# Of every kernel: any number of leading dimensions, heads the last of them; kv_heads is a divisor of heads (GQA).
Queries: TypeAlias = Float[Tensor, "*lead n_q d"]
Keys: TypeAlias = Float[Tensor, "*kv_lead n_kv d"]
Values: TypeAlias = Float[Tensor, "*kv_lead n_kv d_v"]
Outputs: TypeAlias = Float[Tensor, "*lead n_q d_v"]


@dataclass(frozen=True)
class CallOptions:
    """The options of a call, of every kernel: all arguments but Q, K and V.

    Attributes:
        causal: query i sees the keys up to i + n_kv - n_q (bottom-right, as flash-attn).
        scale: of Q Kᵀ; None is 1 / sqrt(head_dim).
        mask: broadcasts to (batch, heads, n_q, n_kv): boolean, True is visible, or floating-point, added to S.
        window: (left, right): query i sees the keys from i + n_kv - n_q - left to i + n_kv - n_q + right; a None has
            no limit. (flash-attn writes -1 for no limit.)
        softcap: S becomes softcap * tanh(S / softcap), before masks.
        keep: boolean, broadcasts to (batch, heads, n_q, n_kv): the entries of P that dropout leaves.
        dropout_p: the entries that dropout leaves are divided by 1 - dropout_p.
        sinks: (heads,), a logit for each head of Q: one more term of the softmax's sum, with no key and no value, as in
            gpt-oss. It is neither scaled nor capped, and no mask hides it.
    """

    causal: bool = False
    scale: float | None = None
    mask: Tensor | None = None
    window: tuple | None = None
    softcap: float | None = None
    keep: Tensor | None = None
    dropout_p: float = 0.0
    sinks: Tensor | None = None

    @classmethod
    def of(cls, **options) -> "CallOptions":
        """Make the CallOptions of a call's options; a ValueError where there is no such one."""
        accepted = [field.name for field in fields(cls)]
        for name in options:
            if name not in accepted:
                raise ValueError(f"{name}: got {options[name]!r}; accepted options are {', '.join(accepted)}")
        return cls(**options)

    def inside(self, q: Tensor, k: Tensor) -> Tensor:
        """Make the mask of causality and the window, bool (n_q, n_kv), True where a key of k is visible to a row of
        q."""
        left, right = self.window or (None, None)
        return within(q.shape[-2], k.shape[-2], left, 0 if self.causal else right, q.device)


def as_many_heads(x: Tensor, q: Tensor) -> Tensor:
    """Repeat each head of K or V, x (..., kv_heads, n_kv, features), for the heads of Q that share it: (..., heads,
    n_kv, features)."""
    return x if x.ndim < 3 else x.repeat_interleave(q.shape[-3] // x.shape[-3], -3)


def validate(q: Tensor, k: Tensor, v: Tensor, **options) -> CallOptions:
    """Check a call as every kernel must, and return its options: the shapes fit one another, and each option of
    `CallOptions` has an accepted value. A ValueError names the argument, its value and what is accepted."""
    settings = CallOptions.of(**options)
    for holds, message in chain(_rules_of_tensors(q, k, v), _rules_of_options(q, k, settings)):
        if not holds:
            raise ValueError(message)
    return settings


def _rules_of_tensors(q, k, v) -> Iterator[tuple[bool, str]]:
    """Yield whether a rule holds, and the error's message; a rule may count on those before it."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        accepted = "a floating-point tensor (batch, heads, sequence, head_dim)"
        is_accepted = isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 2
        yield is_accepted, f"{name}: got {_describe(x)}; accepted is {accepted}"
        yield 0 not in x.shape, f"{name}: got shape {tuple(x.shape)}; accepted are dimensions of at least 1"
        accepted = f"q's, {q.dtype} on {q.device}"
        yield (x.dtype, x.device) == (q.dtype, q.device), f"{name}: got {x.dtype} on {x.device}; accepted is {accepted}"
    accepted = f"k's {tuple(k.shape[:-1])} before head_dim"
    yield k.shape[:-1] == v.shape[:-1], f"v: got shape {tuple(v.shape)}; accepted is {accepted}"
    yield q.shape[-1] == k.shape[-1], f"k: got head_dim {k.shape[-1]}; accepted is q's, {q.shape[-1]}"
    accepted = f"q's leading dimensions, {tuple(q.shape[:-2])}"
    leads_agree = q.ndim == k.ndim and q.shape[:-3] == k.shape[:-3]
    yield leads_agree, f"k: got shape {tuple(k.shape)}; accepted are {accepted}"
    heads, kv_heads = (x.shape[-3] if x.ndim > 2 else 1 for x in (q, k))
    yield heads % kv_heads == 0, f"k: got {kv_heads} heads; accepted is a divisor of q's {heads} heads (GQA)"


def _rules_of_options(q, k, settings) -> Iterator[tuple[bool, str]]:
    """Yield the same for the options of a call whose tensors fit."""
    for name in ("scale", "softcap"):
        x = getattr(settings, name)
        is_accepted = x is None or _is_number(x) and math.isfinite(x) and x > 0
        yield is_accepted, f"{name}: got {x!r}; accepted is a finite number above 0, or None"
    causal, window, p = settings.causal, settings.window, settings.dropout_p
    yield isinstance(causal, (bool, np.bool_)), f"causal: got {causal!r}; accepted are True and False"
    is_accepted = isinstance(window, (tuple, list)) and len(window) == 2 and all(map(_is_side, window))
    accepted = "(left, right), keys from 0, or None for no limit"
    yield window is None or is_accepted, f"window: got {window!r}; accepted is {accepted}"
    is_accepted = _is_number(p) and 0 <= p < 1 and (p > 0) == (settings.keep is not None)
    yield is_accepted, f"dropout_p: got {p!r}; accepted is 0 <= p < 1, above 0 together with a keep mask"
    full, one_a_head = (*q.shape[:-1], k.shape[-2]), (q.shape[-3] if q.ndim > 2 else 1,)
    for name, kinds in (("mask", "boolean or floating-point"), ("keep", "boolean")):
        if (x := getattr(settings, name)) is not None:
            is_accepted = isinstance(x, Tensor) and (x.dtype == torch.bool or name == "mask" and x.is_floating_point())
            yield is_accepted, f"{name}: got {_describe(x)}; accepted is a {kinds} tensor"
            got = f"{name}: got shape {tuple(x.shape)}"
            yield _broadcasts(x.shape, full), f"{got}; accepted is what broadcasts to {full}"
    x, accepted = settings.sinks, f"a floating-point tensor of shape {one_a_head}, one a head"
    is_accepted = x is None or isinstance(x, Tensor) and x.is_floating_point() and tuple(x.shape) == one_a_head
    yield is_accepted, f"sinks: got {_describe(x)}; accepted is {accepted}"


def _is_number(x):
    return isinstance(x, Real) and not isinstance(x, bool)


def _is_side(x):
    """Whether x is one side of a window: None, or a number of keys."""
    return x is None or isinstance(x, Integral) and not isinstance(x, bool) and int(x) >= 0


def _broadcasts(shape, full):
    try:
        return np.broadcast_shapes(shape, full) == full
    except ValueError:
        return False


def within(n_q: int, n_kv: int, left: int | None, right: int | None, device: torch.device) -> Tensor:
    """Make the mask of a window, bool (n_q, n_kv), True where a key is visible. Query i stands at key i + n_kv - n_q,
    so the last at the last, and sees `left` keys before it and `right` after it; None is no limit."""
    visible = torch.ones(n_q, n_kv, dtype=torch.bool, device=device)
    if right is not None:
        visible = visible.tril(n_kv - n_q + right)
    return visible if left is None else visible.triu(n_kv - n_q - left)


def visible_rows(q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
    """Find the rows of a call that see a key: bool, broadcasts to (..., heads, n_q). Arguments as of `validate`."""
    settings = validate(q, k, v, **options)
    visible, mask = settings.inside(q, k), settings.mask
    if mask is not None:
        visible = visible & (mask if mask.dtype == torch.bool else mask > -math.inf)
    return visible.any(-1)


def _describe(x):
    return f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def finite(x: Tensor) -> bool:
    """Return whether all values of a tensor, of any shape, are finite, in one pass over it."""
    if not x.numel():
        return True
    low, high = x.aminmax()  # NaN, if there is one
    return bool(low.isfinite() & high.isfinite())


@dataclass(frozen=True)
class ResolvedOptions:
    """The options of a call, checked and expanded to its tensors; `rows` cuts out those of some rows of one head."""

    lead: tuple  # leading dimensions of q, the heads included
    n_q: int
    n_kv: int
    group: int  # Q heads that share a K/V head
    scale: float
    left: int | None  # a query sees the keys from its own - left to its own + right; None has no limit
    right: int | None
    mask: Tensor | None  # (*lead, n_q, n_kv), boolean or added to S
    softcap: float | None
    keep: Tensor | None  # (*lead, n_q, n_kv), the entries of P that dropout leaves
    dropout_p: float
    sinks: Tensor | None = None  # (heads of lead,)

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, **options) -> "ResolvedOptions":
        """Check the options of a call against its tensors, as `validate`, and expand them."""
        settings = validate(q, k, v, **options)
        lead, n_q, n_kv = tuple(q.shape[:-2]), q.shape[-2], k.shape[-2]
        left, right = settings.window or (None, None)
        if settings.causal:
            right = 0 if right is None else min(right, 0)

        def expanded(x: Tensor | None) -> Tensor | None:
            x = x if x is None or x.dtype == torch.bool else x.detach().double()
            return x if x is None else x.expand(*lead, n_q, n_kv)

        group = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
        scale = settings.scale or 1 / math.sqrt(q.shape[-1])
        mask, keep = expanded(settings.mask), expanded(settings.keep)
        sinks = None if settings.sinks is None else settings.sinks.detach().double().to(q.device)
        return cls(lead, n_q, n_kv, group, scale, left, right, mask, settings.softcap, keep, settings.dropout_p, sinks)

    def sink(self, heads: int | slice) -> Tensor | None:
        """Return the sink's logit (1, 1) of a flattened head, (heads, 1, 1) of several; None where there are no
        sinks."""
        every = self.sinks if self.sinks is None else self.sinks.repeat(math.prod(self.lead) // len(self.sinks))
        return every if every is None else every[heads][..., None, None]

    def rows(self, heads: int | slice, here: slice, products: Dot = EXACT, q_k: Tensor | None = None) -> "Scores":
        """Make the Scores of the rows `here` of a flattened head, or of several; products: the Dot of Q Kᵀ; q_k: it, or
        None."""

        def cut(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            some = [heads] if isinstance(heads, int) else range(math.prod(self.lead))[heads]
            found = [x[np.unravel_index(head, self.lead)][here] for head in some]  # of all heads it may be large
            return found[0] if isinstance(heads, int) else torch.stack(found)

        known = None if q_k is None else q_k[heads, here]
        return Scores(self, here, cut(self.mask), cut(self.keep), self.sink(heads), products, known)


class Scores:
    """Computes S of the rows `here` of one head, tile by tile: scaled, capped, masked, not yet rounded. mask and keep:
    (rows, n_kv) of these rows, or None; sink: (1, 1) or None; products: the Dot that sums Q Kᵀ; q_k: (rows, n_kv), Q Kᵀ
    where it is known, or None. Of several heads each has one dimension more."""

    def __init__(self, options: ResolvedOptions, here: slice, mask, keep, sink, products: Dot, q_k: Tensor | None):
        self.o, self.mask, self.keep_mask, self.sink, self.products, self.q_k = options, mask, keep, sink, products, q_k
        offset = options.n_kv - options.n_q  # bottom-right: the last query sees the last key
        self.first, self.last = here.start + offset, here.stop - 1 + offset  # the key that aligns with a row
        self.trivial = mask is None and options.left is None and options.right is None

    def sees(self, j: int, stop: int) -> bool:
        """Return whether causality and the window let a row see any of the keys j .. stop - 1."""
        left, right = self.o.left, self.o.right
        return (right is None or j <= self.last + right) and (left is None or stop > self.first - left)

    def __call__(self, q: Tensor, k: Tensor, j: int) -> Float64[Tensor, "*heads rows keys"]:
        """Compute S of the rows, q (rows, head_dim), against keys, k (keys, head_dim) from the j-th on: -inf where a
        key is hidden."""
        S = self.capped(q, k, j)
        if self.mask is not None:
            tile = self.mask[..., j : j + S.shape[-1]]
            S = S.masked_fill_(~tile, -math.inf) if tile.dtype == torch.bool else S.add_(tile)
        left, right, stop = self.o.left, self.o.right, j + S.shape[-1]
        if right is not None and stop - 1 > self.first + right:
            S.masked_fill_(self._distance(j, stop, S.device) > right, -math.inf)
        if left is not None and j < self.last - left:
            S.masked_fill_(self._distance(j, stop, S.device) < -left, -math.inf)
        return S

    def _distance(self, j, stop, device):
        """Of keys j .. stop - 1 from the key that aligns with a row: (rows, keys)."""
        own = torch.arange(self.first, self.last + 1, device=device)[:, None]
        return torch.arange(j, stop, device=device) - own

    def capped(self, q: Tensor, k: Tensor, j: int) -> Tensor:
        """Compute S (rows, keys) before masks, of q (rows, head_dim) and keys from the j-th on, k (keys, head_dim):
        scale * Q Kᵀ, and softcap * tanh(S / softcap) where there is one."""
        known, scale = self.q_k, self.o.scale
        S = self.products.scores(q, k).mul_(scale) if known is None else known[..., j : j + k.shape[-2]] * scale
        return S if self.o.softcap is None else S.div_(self.o.softcap).tanh_().mul_(self.o.softcap)

    def seen(self, S: Tensor) -> Tensor | Literal[True]:
        """Find the rows of an unrounded S (rows, keys) that see a key of it: bool (rows, 1), or True where nothing is
        masked. A score that overflows when rounded, or is NaN, is no hidden key."""
        return True if self.trivial else S.amax(-1, keepdim=True) != -math.inf

    @property
    def keeps_all(self) -> bool:
        """Whether `drop` leaves every P as it is."""
        return self.keep_mask is None

    def drop(self, P: Tensor, j: int) -> Tensor:
        """Apply dropout to P (rows, keys) of the keys from j on: dropped entries are 0, the rest divided by 1 - p."""
        if self.keep_mask is None:
            return P
        return P * self.keep_mask[..., j : j + P.shape[-1]] / (1 - self.o.dropout_p)
