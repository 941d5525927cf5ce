"""A call as somebody has it, and its rows as a dialect reads them: layouts, roles, masks, windows."""

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.attention import SOFTMAX_OVER, Dialect, Rows, Unfit, with_hidden
from attention_check.conventions.conventions import BY_CHOICE, filled
from attention_check.conventions.low_bits import OF_P, baseline_of, precision_of
from attention_check.conventions.rope import ROPE, rotated
from attention_check.tolerance import BLOCK
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import Format

SAMPLED = 2, 8, 48  # entries of the batch, heads of each entry, rows of each head: so many are looked at
FEW = 2, 3, 16  # the same, on which dialects are tried
ENOUGH = 2.0  # times Baseline's residual: rounding, where nothing more is looked for
UNITS = 8.0  # unit roundoffs, where Baseline cannot be asked
Places = tuple[Tensor, Tensor, Tensor]  # indices of entries, heads and rows
KEPT = 8  # readings of a call's tensors in a layout and roles, that are kept
LARGEST = 2**28  # bytes of k in float64 that are held at a time
HIDES = -6e4  # a number of a mask, as FP16's least, that hides a key
ONE_KEY = dict(one_less=(0, -math.inf), one_more=(1, 0.0))  # of a mask: from its last key, which one, and its score
ALL_ROWS = 2**22  # scores of a head, at most, where a softmax over queries is tried


@dataclass(frozen=True)
class CapturedCall:
    """A call of attention, and an output that is said to be its.

    Attributes:
        q: (batch, heads, n_q, head_dim). k, v: (batch, kv_heads, n_kv, head_dim), V with head_dim d_v.
        o: (batch, heads, n_q, d_v), or in another order of its dimensions.
        options: what the caller believes: causal, scale, mask, window, softcap, sinks of `kernels.options`.
        others: what else is there of the call: lse, the log-sum-exp of each row's scores (batch, heads, n_q); dO, the
            gradient of o, like it; dlse, of lse; dq, dk and dv, like q, k and v. In another order of dimensions, too.
        stated: a key of `low_bits.OF_P`, or a format's name: that of a kernel whose q, k and v are held in a wider one,
            as they are of 8 bits and their scales. "" is that of q.
        scales: those of q, k and v in 8 bits that are one number, by which they are multiplied already.
        declared: the Precision that a kernel declares, whose bound alone decides; None: that of a kernel in `fmt`, or
            of attention written out step by step. block: keys of its tiles.
        masks: choices of a Dialect's mask -> what they are, where only who made the mask can tell.
        starts: of packed sequences: the rows at which they start, and the end.
        at: the entries, heads and rows of it that are looked at, a part; None: all.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    options: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Tensor] = field(default_factory=dict)
    stated: str = ""
    scales: dict[str, float] = field(default_factory=dict)
    declared: Precision | None = None
    block: int = BLOCK
    masks: dict[str, Tensor] = field(default_factory=dict)
    starts: tuple[int, ...] = ()
    at: Places | None = None
    _roundings: dict[Dialect, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _laid_out: dict[tuple[str, str], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def fmt(self) -> Format:
        """The format in which a kernel computes: that of the inputs, if no other is stated."""
        return OF_P.get(self.stated) or Format.of(self.stated or self.q.dtype)

    @property
    def precision(self) -> Precision:
        """Of a right kernel."""
        return self.declared or precision_of(self.fmt, Format.of(self.q.dtype), Format.of(self.o.dtype))

    def baseline(self, rows: Rows) -> Tensor:
        """Baseline's output of rows in a dialect that a kernel computes, without its factor, float64."""
        q, k, v = (x.nan_to_num(0.0, 0.0, 0.0).float() for x in (rows.q, rows.k, rows.v))
        if self.fmt.precision > 24:
            q, k, v = (x.nan_to_num(0.0, 0.0, 0.0) for x in (rows.q, rows.k, rows.v))
        return baseline_of(self.fmt, Format.of(self.o.dtype))(q, k, v, **rows.options()).double()

    def rows(self, dialect: Dialect, most: tuple[int, int, int] = SAMPLED, places: Places | None = None) -> Rows:
        """The sampled rows in a dialect; most, places: as of a Reader. Raises Unfit where the shapes make no call."""
        return Reader(self, most, places).rows(dialect)

    def rounding(self, dialect: Dialect | None = None) -> float:
        """The relative residual up to which an error is rounding in a dialect, None as believed: ENOUGH times that of
        Baseline on FEW rows, and UNITS where Baseline does not compute the dialect."""
        dialect = replace(dialect or Dialect(), factor=1.0)
        if dialect not in self._roundings:
            self._roundings[dialect] = self._rounding(dialect)
        return self._roundings[dialect]

    def _rounding(self, dialect):
        units = UNITS * self.fmt.unit_roundoff
        if not dialect.is_standard and not dialect.part:
            return units
        try:
            rows = self.rows(dialect, FEW)
            own = self.baseline(rows)
        except ValueError:  # the shapes do not fit, Unfit among them
            return units
        counted = (rows.seen & rows.golden.isfinite() & own.isfinite()).all(-1)
        size, error = (x.square().mean(-1)[counted] for x in (rows.golden, own - rows.golden))
        return ENOUGH * (error.sum() / size.sum()).sqrt().item() if size.sum() > 0 else units


class Reader:
    """Samples the rows of a call, read in one dialect after the other.

    Args:
        call: the call. most: entries of the batch, heads and rows that are sampled at most.
        places: the indices of those that are taken instead.
    """

    def __init__(self, call: CapturedCall, most: tuple[int, int, int] = SAMPLED, places: Places | None = None):
        self.places = places
        k = call.k
        size = max(k.numel() * 8 // max(k.shape[0] * k.shape[1], 1), 1)  # of a head of k in float64
        room = max(LARGEST // size, 1)  # heads of all entries
        entries, heads, rows = most
        self.call, self.most = call, (max(min(entries, room // heads), 1), max(min(heads, room), 1), rows)
        self._tensors, self._biases = lru_cache(2)(self._read), lru_cache(4)(self._bias)

    def rows(self, dialect: Dialect) -> Rows:
        """The sampled rows in a dialect; raises Unfit where the shapes make no call of attention."""
        over = SOFTMAX_OVER.get(dialect.softmax)
        tensors = self._tensors(dialect.layout, dialect.roles, dialect.heads, dialect.part, over)
        q, k, v, o, S, shape, places = _scaled(*tensors, dialect) if dialect.part else tensors
        reading = dialect.causal, dialect.mask, dialect.window, dialect.keys, dialect.alibi
        options, heads = self.call.options, shape[1]
        cap = dialect.softcap if isinstance(dialect.softcap, float) else options.get("softcap")
        cap = None if dialect.softcap == "ignored" else cap
        sinks = torch.full((heads,), -math.inf, dtype=torch.float64)
        if options.get("sinks") is not None:
            sinks = options["sinks"].double().cpu().reshape(-1)
            if len(sinks) != heads:
                raise Unfit(f"sinks: {len(sinks)} for {heads} heads")
            if isinstance(dialect.sinks, float):
                sinks = sinks + math.log(dialect.sinks)
            if isinstance(dialect.sinks, str) and dialect.sinks:
                sinks = BY_CHOICE["sinks", dialect.sinks].how(sinks, _scale(options, dialect, q))
            sinks = sinks[[*dialect.sinks]] if isinstance(dialect.sinks, tuple) else sinks
        more = 0.0 if dialect.softmax == "plus_one" else dialect.sink  # softmax off by one: a sink of 0 more
        if more is not None:
            sinks = torch.logaddexp(sinks, torch.full_like(sinks, more))
        rows = Rows(
            q, k, v, o, S, self._biases(*reading, shape, over), sinks[places[1]].reshape(1, -1, 1, 1),
            _scale(options, dialect, q), cap, places, shape, dialect,
        )  # fmt: skip
        if dialect.penalty is not None:
            rows = replace(rows, bias=rows.bias.where(rows.bias > -math.inf, dialect.penalty))
        return rows if dialect.hidden is None else with_hidden(rows, dialect.hidden)

    def _places(self, shape, over):
        """Indices of entries, heads and rows; all of the dimension that the softmax is over."""
        if self.places is not None and over is None:
            return self.places
        if self.call.at is not None and over is not None:
            raise Unfit("softmax: over another dimension than keys a part is coupled to others")
        axes = zip(self.call.at or [torch.arange(count) for count in shape[:3]], self.most)
        entries, heads, rows = (x[spread(len(x), len(x) if i == over else most)] for i, (x, most) in enumerate(axes))
        return entries, heads, rows

    def _read(self, layout, roles, heads, part, over):
        q, k, v, o = _laid_out(self.call, layout, roles)
        shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        if over == 2 and shape[2] * shape[3] > ALL_ROWS:
            raise Unfit(f"softmax: {shape[2]} queries and {shape[3]} keys are too many to take all rows")
        if self.call.at is not None and layout:
            raise Unfit("layout: in another one the places of a part hold other values")
        entries, at, rows = places = self._places(shape, over)
        of_key = at % k.shape[1] if heads == "interleaved" else at // (shape[1] // k.shape[1])
        of_key = 0 * of_key if heads == "first" else of_key
        of_output = torch.tensor(heads)[at] if isinstance(heads, tuple) else at
        q, o = (taken(x, entries, of, rows).double().cpu() for x, of in ((q, at), (o, of_output)))
        k, v = (x[entries[:, None], of_key].double().cpu() for x in (k, v))
        if roles.startswith(ROPE):
            q, k = (x.to(self.call.q.dtype).double() for x in rotated(q, k, roles, rows + shape[3] - shape[2]))
        if part and roles:
            own, first, end = self._read(layout, "", heads, None, over), *part
            q, k, v = own[0], *(torch.cat([x[:, :, :first], y[:, :, first:end], x[:, :, end:]], 2)
                                for x, y in zip(own[1:3], (k, v)))  # fmt: skip
        return q, k, v, o, q @ k.mT, shape, places

    def _bias(self, causal, mask, window, keys, alibi, shape, over):
        options = self.call.options | dict(mask=self.call.masks.get(mask, self.call.options.get("mask")))
        mask = "" if mask in self.call.masks else mask
        return _added(options, (causal, mask, window, keys, alibi), self._places(shape, over), shape)


def _scaled(q, k, v, o, S, shape, places, dialect):
    """What `Reader._read` gives, with the scale and the values of a dialect's part."""
    of_k, of_v = torch.ones(2, shape[3], dtype=torch.float64)
    of_k[slice(*dialect.part)], of_v[slice(*dialect.part)] = dialect.scale or 1.0, dialect.values
    return q, k * of_k[:, None], v * of_v[:, None], o, S * of_k, shape, places


def _laid_out(call, layout, roles):
    """q, k, v, o as (batch, heads, sequence, head_dim); the last KEPT readings are kept."""
    if found := call._laid_out.get((layout, roles)):
        return found
    tensors = dict(q=call.q, k=call.k, v=call.v, o=call.o)
    q, k, v, o = (BY_CHOICE["layout", layout].how(tensors) if layout else tensors).values()
    if roles and not roles.startswith(ROPE):
        q, k, v = BY_CHOICE["roles", roles].how(q, k, v)
    fits = q.shape[-1] == k.shape[-1] and k.shape[:-1] == v.shape[:-1] and q.shape[0] == k.shape[0]
    if not fits or q.shape[1] % k.shape[1] or o.shape != (*q.shape[:-1], v.shape[-1]):
        raise Unfit(f"layout: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}, o {tuple(o.shape)}")
    if len(call._laid_out) == KEPT:
        call._laid_out.pop(next(iter(call._laid_out)))
    call._laid_out[layout, roles] = q, k, v, o
    return q, k, v, o


def as_read(x: Tensor, name: str, layout: str) -> Tensor:
    """A tensor that is laid out as "q", "k", "v" or "o", as (batch, heads, sequence, features), of a Dialect's layout;
    raises Unfit where heads of so many features do not fill its last dimension."""
    return BY_CHOICE["layout", layout].how({name: x})[name] if layout else x


def _scale(options, dialect, q):
    d = max(q.shape[-1], 1)  # without any feature all scores are 0, whatever the scale
    believed = options.get("scale") or d**-0.5
    if isinstance(dialect.scale, float):
        return believed if dialect.part else dialect.scale * believed
    return BY_CHOICE["scale", dialect.scale].how(believed, d, filled(q)) if dialect.scale else believed


def _added(options, reading, places, shape):
    """What is added to the scores of the sampled rows, (entries, heads, rows, n_kv)."""
    causal, mask_choice, window, seen_keys, alibi = reading
    (entries, heads_at, rows), (_, heads, n_q, n_kv) = places, shape
    own = rows[:, None] + (n_kv - n_q)  # the key of a row, aligned bottom-right
    keys = torch.arange(n_kv)[None]
    distance = keys - own  # (rows, n_kv), above 0 for later keys
    causal = BY_CHOICE["causal", causal or ("bottom_right" if options.get("causal") else "none")]
    near = causal.how(rows[:, None], keys, own).expand(len(rows), n_kv).clone()
    believed = window != "ignored" and options.get("window") or (None, None)
    left, right = window if isinstance(window, tuple) else believed
    near &= torch.ones_like(near) if left is None else distance >= -left
    near &= torch.ones_like(near) if right is None else distance <= right
    if seen_keys is not None:
        near &= (keys >= seen_keys[0]) & (keys < seen_keys[1])
    bias = torch.zeros(len(entries), len(heads_at), len(rows), n_kv, dtype=torch.float64)
    if options.get("mask") is not None and mask_choice not in ("ignored", "together"):
        bias = bias + _masked(options["mask"], mask_choice, entries, heads_at, rows, shape)
    if alibi:
        numbers = options.get("mask") is not None and options["mask"].dtype != torch.bool and mask_choice != "ignored"
        if numbers and ((options["mask"] > HIDES) & (options["mask"] != 0)).any():
            raise Unfit("alibi: the mask's numbers may be ALiBi's")
        slopes = _slopes(heads)[heads_at, None, None]
        times = alibi if isinstance(alibi, float) else 1 if alibi == "falling" else -1
        bias = bias - times * slopes * distance.abs()
    return bias.masked_fill(~near, -math.inf)


def _slopes(heads):
    """ALiBi's, (heads,), of arXiv 2108.12409; where they are no power of 2, those of the power below, and every other
    of those of the power above, as its authors' code has it."""
    below = 2 ** int(math.log2(heads))
    powers = 2.0 ** (-8 * torch.arange(1, below + 1).double() / below)
    between = 2.0 ** (-4 * torch.arange(1, 2 * below, 2).double() / below)
    return torch.cat([powers, between])[:heads]


def _masked(mask, choice, entries, heads_at, rows, shape):
    """What a mask adds to the scores of the sampled rows, as a choice reads it."""
    choice, times = ("", choice) if isinstance(choice, float) else (choice, None)
    if choice in ONE_KEY:
        bias = _masked(mask, "", entries, heads_at, rows, shape)
        last = shape[3] - 1 - (bias > -math.inf).double().flip(-1).argmax(-1, keepdim=True) + ONE_KEY[choice][0]
        return bias.scatter(-1, last.clamp(max=shape[3] - 1), ONE_KEY[choice][1])
    if isinstance(choice, tuple):
        mask = mask[(None,) * (4 - mask.ndim)]
        count = [size if name in choice[0] else 1 for name, size in zip(("entries", "heads"), shape)]
        mask, choice = mask.flatten(0, 1)[torch.tensor(choice[2:]).view(count)], ""
    if choice.startswith("triangle"):
        own = rows + (shape[3] - shape[2] if choice == "triangle_bottom_right" else 0)
        return _hiding(torch.arange(shape[3])[None] > own[:, None])
    if choice == "transposed":
        mask = mask.transpose(-1, -2)
    try:
        mask = mask.expand(shape)
    except RuntimeError:
        raise Unfit(f"mask: {tuple(mask.shape)} for scores {shape}") from None
    mask = taken(mask, entries, heads_at, rows).cpu()
    if times is not None:
        mask = mask.double()
        return (times * mask).where(mask > -math.inf, -math.inf)
    if choice == "added":  # 0 and 1 added to the scores
        return mask.double()
    if choice in ("inverted", "hidden"):  # of numbers what is not 0 is hidden
        return _hiding(mask != 0)
    if mask.dtype == torch.bool or choice == "truth":
        return _hiding(mask == 0)
    return mask.double().masked_fill(mask <= HIDES, -math.inf)


def _hiding(hidden):
    """What is added to scores where some are hidden, of the same shape."""
    return torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(hidden, -math.inf)


def taken(x: Tensor, entries: Tensor, heads: Tensor, rows: Tensor) -> Tensor:
    """Of a tensor (batch, heads, rows, ...), what stands at these indices: (entries, heads, rows, ...)."""
    return x[entries[:, None, None], heads[:, None], rows]


def in_four_dimensions(x: Tensor) -> Tensor:
    """A tensor (..., sequence, features) as (batch, heads, sequence, features)."""
    return x[(None,) * (4 - x.ndim)].flatten(0, -4)


def spread(count: int, most: float) -> Tensor:
    """Indices of up to `most` of `count` things, evenly spread, the first and the last among them: int64."""
    if count <= most:
        return torch.arange(count)
    return torch.linspace(0, count - 1, int(most), dtype=torch.float64).round().long().unique()
