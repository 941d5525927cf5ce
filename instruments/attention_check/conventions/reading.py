"""A call as somebody has it, and its rows as a dialect reads them: layouts, roles, masks, windows."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_check.conventions.attention import SOFTMAX_OVER, Dialect, Rows
from attention_check.conventions.low_bits import OF_P, baseline_of, precision_of
from attention_check.tolerance import BLOCK
from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import Format

SAMPLED = 2, 8, 48  # entries of the batch, heads of each entry, rows of each head: so many are looked at
Places = tuple[Tensor, Tensor, Tensor]  # indices of entries, heads and rows
HIDDEN = -9e3  # of a mask of numbers, as far as which it hides: -1e4 does in FP16
LARGEST = 2**28  # bytes of k in float64 that are held at a time
ALL_ROWS = 2**22  # scores of a head, at most, where a softmax over queries is tried
LAYOUTS = {  # which tensors are (batch, sequence, heads, head_dim)
    "all_bshd": "qkvo", "inputs_bshd": "qkv", "o_bshd": "o", "q_bshd": "q", "kv_bshd": "kv", "k_bshd": "k",
    "v_bshd": "v",
}  # fmt: skip
RESHAPED = {"inputs": "qkv", "all": "qkvo"}
FLAT = "flat_"  # a layout: heads lie side by side in the last dimension, of so many features each
VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "v_transposed": lambda v: v.mT, "v_one_later": lambda v: v.roll(1, -2), "v_one_earlier": lambda v: v.roll(-1, -2),
}  # fmt: skip
KEYS = {"k_one_later": 1, "k_one_earlier": -1}  # moves K along the sequence, and not V
QUERIES = {"negative": (-1, -1), "first_half": (1, 0), "last_half": (0, 1)}  # times each half of a query's features
NORMS = {"l2": 0.0, "rms": 0.5}  # a norm -> the power of head_dim that the length of what it gives is
NORMED = {f"{of}_{norm}": (of, power) for of in ("qk", "q", "k") for norm, power in NORMS.items()}
ROPE = "rope_"  # a role, behind which stand a key of ROTATED, of PAIRS, and the base
ROTATED = {"both": "q and k, as if they were saved before it", "neither": "neither q nor k", "q": "q once more",
           "k": "k once more", "other": "q in other pairs of features than k's"}  # fmt: skip
FURTHER = "further"  # in place of a key of ROTATED, with a number of positions behind it: q is rotated so many more
BEFORE, FROM = "kbefore", "kfrom"  # the same, with a key behind it: "k" for the keys before it, or from it on
PAIRS = {"halves": "i and i + d/2", "neighbours": "2 i and 2 i + 1"}  # features that are rotated together
BASES = "1e4", "5e5", "1e6"
ROLES = {"q_and_k_swapped": "kqv", "k_and_v_swapped": "qvk", "q_and_v_swapped": "vkq"}


class Unfit(ValueError):
    """A dialect in which the shapes make no call."""


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
        how = dialect.layout, dialect.roles, dialect.heads, dialect.sources
        q, k, v, o, S, shape, places = self._tensors(*how, over)
        reading = dialect.causal, dialect.mask, dialect.window, dialect.keys, dialect.alibi
        options, heads = self.call.options, shape[1]
        sinks = torch.full((heads,), -math.inf, dtype=torch.float64)
        if options.get("sinks") is not None and dialect.sinks != "ignored":
            sinks = options["sinks"].double().cpu().reshape(-1)
            if len(sinks) != heads:
                raise Unfit(f"sinks: {len(sinks)} for {heads} heads")
        more = 0.0 if dialect.softmax == "plus_one" else dialect.sink  # softmax off by one: a sink of 0 more
        if more is not None:
            sinks = torch.logaddexp(sinks, torch.full_like(sinks, more))
        return Rows(
            q, k, v, o, S, self._biases(*reading, shape, over), sinks[places[1]].reshape(1, -1, 1, 1),
            _scale(options, dialect, q.shape[-1]), _softcap(options, dialect), places, shape, dialect,
        )  # fmt: skip

    def _places(self, shape, over):
        """Indices of entries, heads and rows; all of the dimension that the softmax is over."""
        if self.places is not None and over is None:
            return self.places
        if self.call.at is not None and over is not None:
            raise Unfit("softmax: over another dimension than keys a part is coupled to others")
        axes = zip(self.call.at or [torch.arange(count) for count in shape[:3]], self.most)
        entries, heads, rows = (x[spread(len(x), len(x) if i == over else most)] for i, (x, most) in enumerate(axes))
        return entries, heads, rows

    def _read(self, layout, roles, heads, sources, over):
        q, k, v, o = _laid_out(self.call, layout, roles)
        shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        if over == 2 and shape[2] * shape[3] > ALL_ROWS:
            raise Unfit(f"softmax: {shape[2]} queries and {shape[3]} keys are too many to take all rows")
        if self.call.at is not None and layout:
            raise Unfit("layout: in another one the places of a part hold other values")
        entries, at, rows = places = self._places(shape, over)
        of_key = at % k.shape[1] if heads == "interleaved" else at // (shape[1] // k.shape[1])
        of_key, of_entry = 0 * of_key if heads == "first" else of_key, entries[:, None]
        if sources is not None:
            if (len(sources), len(sources[0])) != shape[:2]:
                raise Unfit(f"sources: of {len(sources)} entries of {len(sources[0])} heads for {shape[:2]}")
            of_entry, of_key = torch.tensor(sources)[of_entry, at].unbind(-1)  # (entries, heads)
        of_output = shape[1] - 1 - at if heads == "reversed" else at
        of_output = torch.tensor(heads)[at] if isinstance(heads, tuple) else of_output
        q, o = (taken(x, entries, of, rows).double().cpu() for x, of in ((q, at), (o, of_output)))
        k, v = (x[of_entry, of_key].double().cpu() for x in (k, v))
        if roles.startswith(ROPE):
            q, k = (x.to(self.call.q.dtype).double() for x in _rotated(q, k, roles, rows + shape[3] - shape[2]))
        return q, k, v, o, q @ k.mT, shape, places

    def _bias(self, causal, mask, window, keys, alibi, shape, over):
        options = self.call.options | dict(mask=self.call.masks.get(mask, self.call.options.get("mask")))
        mask = "" if mask in self.call.masks else mask
        return _added(options, (causal, mask, window, keys, alibi), self._places(shape, over), shape)


def _rotated(q, k, roles, at):
    """q (..., rows, head_dim), of rows at positions, and k (..., n_kv, head_dim), with a rotary embedding that a role
    names (arXiv 2104.09864)."""
    what, pairs, base = roles.removeprefix(ROPE).split("_")

    def rotated(x, positions, pairs=pairs):
        d = x.shape[-1] // 2 * 2
        angles = positions[:, None] * float(base) ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        a, b = (x[..., : d // 2], x[..., d // 2 : d]) if pairs == "halves" else (x[..., :d:2], x[..., 1:d:2])
        turned = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
        found = torch.cat(turned, -1) if pairs == "halves" else torch.stack(turned, -1).flatten(-2)
        return torch.cat([found, x[..., d:]], -1)

    sign, keys = -1 if what == "neither" else 1, torch.arange(k.shape[-2])
    if what.startswith(FURTHER):
        return rotated(q, torch.full_like(at, int(what.removeprefix(FURTHER)))), k
    if side := next((side for side in (BEFORE, FROM) if what.startswith(side)), ""):
        part = (keys < int(what.removeprefix(side))) == (side == BEFORE)
        return q, rotated(k, keys).where(part[:, None], k)
    if what == "other":
        return rotated(rotated(q, -at), at, next(each for each in PAIRS if each != pairs)), k
    return q if what == "k" else rotated(q, sign * at), k if what == "q" else rotated(k, sign * keys)


def _laid_out(call, layout, roles):
    """q, k, v, o as (batch, heads, sequence, head_dim)."""
    tensors = dict(q=call.q, k=call.k, v=call.v, o=call.o)
    tensors = {name: as_read(x, name, layout) for name, x in tensors.items()}
    name, _, misread = layout.partition("_")
    for each in (RESHAPED.get(name) or name) if misread == "reshaped" else ():  # memory of (batch, sequence, heads,
        batch, heads, n, d = tensors[each].shape  # head_dim), taken for (batch, heads, sequence, head_dim)
        tensors[each] = tensors[each].reshape(batch, n, heads, d).transpose(1, 2)
    if misread == "column_major":  # memory of (batch, heads, head_dim, sequence)
        tensors[name] = tensors[name].mT.reshape(tensors[name].shape)
    q, k, v = (tensors[name] for name in ROLES.get(roles, "qkv"))
    if roles in VALUES:
        v = VALUES[roles](v)
    if roles.removeprefix("first_").isdigit():
        q = F.pad(q[..., : (of := int(roles.removeprefix("first_")))], (0, max(q.shape[-1] - of, 0)))
    if roles in NORMED:
        of, power = NORMED[roles]
        q, k = (_normed(x, power) if name in of else x for name, x in (("q", q), ("k", k)))
    if roles in KEYS:
        k = k.roll(KEYS[roles], -2)
    if roles in QUERIES:
        first, last = q.tensor_split([q.shape[-1] // 2], -1)
        q = torch.cat([times * x for times, x in zip(QUERIES[roles], (first, last))], -1)
    o = tensors["o"]
    if layout.startswith("o_flat"):
        heads, features = q.shape[1], v.shape[-1]
        if heads == 1 or o.shape[-1] != heads * features or o.numel() != q.shape[:-1].numel() * features:
            raise Unfit(f"layout: o {tuple(o.shape)} of {heads} heads")
        batch, n = q.shape[0], q.shape[2]
        flat = layout == "o_flat"
        o = o.reshape(batch, n, heads, features).transpose(1, 2) if flat else o.reshape(batch, heads, n, features)
    fits = q.shape[-1] == k.shape[-1] and k.shape[:-1] == v.shape[:-1] and q.shape[0] == k.shape[0]
    if not fits or q.shape[1] % k.shape[1] or o.shape != (*q.shape[:-1], v.shape[-1]):
        raise Unfit(f"layout: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}, o {tuple(o.shape)}")
    return q, k, v, o


def _normed(x, power):
    """A tensor whose rows have the length head_dim to a power, rounded as it is stored."""
    return (F.normalize(x.double(), dim=-1) * x.shape[-1] ** power).to(x.dtype)


def as_read(x: Tensor, name: str, layout: str) -> Tensor:
    """A tensor that is laid out as "q", "k", "v" or "o", as (batch, heads, sequence, features), of a Dialect's layout;
    raises Unfit where heads of so many features do not fill its last dimension."""
    if layout.startswith(FLAT):
        features = int(layout.removeprefix(FLAT))
        if x.shape[-1] % features:
            raise Unfit(f"layout: heads of {features} features in {name} {tuple(x.shape)}")
        return x.flatten(0, 1).unflatten(-1, (-1, features)).transpose(1, 2)
    return x.transpose(1, 2) if name in LAYOUTS.get(layout, "") else x


def _scale(options, dialect, d):
    d = max(d, 1)  # without any feature all scores are 0, whatever the scale
    believed = options.get("scale") or d**-0.5
    if isinstance(dialect.scale, float):
        return dialect.scale * believed
    return {
        "": believed, "default": d**-0.5, "one": 1.0, "one_over_d": 1 / d, "sqrt_d": d**0.5, "twice": believed**2,
        "log2_e": believed / math.log(2), "ln_2": believed * math.log(2),
    }[dialect.scale]  # fmt: skip


def _softcap(options, dialect):
    if isinstance(dialect.softcap, float):
        return dialect.softcap
    return None if dialect.softcap == "ignored" else options.get("softcap")


def _added(options, reading, places, shape):
    """What is added to the scores of the sampled rows, (entries, heads, rows, n_kv)."""
    causal, mask_choice, window, seen_keys, alibi = reading
    (entries, heads_at, rows), (_, heads, n_q, n_kv) = places, shape
    own = rows[:, None] + (n_kv - n_q)  # the key of a row, aligned bottom-right
    keys = torch.arange(n_kv)[None]
    distance = keys - own  # (rows, n_kv), above 0 for later keys
    near = torch.ones(len(rows), n_kv, dtype=torch.bool)
    if causal.startswith("tiles_of_"):
        size = int(causal.removeprefix("tiles_of_"))
        near &= keys < (own // size + 1) * size
        causal = "none"
    if causal.startswith("chunks_of_"):
        size, causal = int(causal.removeprefix("chunks_of_")), "bottom_right"
        near &= keys >= own // size * size
    near &= {
        "none": near, "bottom_right": distance <= 0, "top_left": keys <= rows[:, None], "strict": distance < 0,
        "one_later": distance <= 1, "reversed": distance >= 0,
    }[causal or ("bottom_right" if options.get("causal") else "none")]  # fmt: skip
    left, right = _window(options, window)
    near &= torch.ones_like(near) if left is None else distance >= -left
    near &= torch.ones_like(near) if right is None else distance <= right
    if seen_keys is not None:
        near &= (keys >= seen_keys[0]) & (keys < seen_keys[1])
    bias = torch.zeros(len(entries), len(heads_at), len(rows), n_kv, dtype=torch.float64)
    if options.get("mask") is not None and mask_choice != "ignored":
        bias = bias + _masked(options["mask"], mask_choice, entries, heads_at, rows, shape)
    if alibi:
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


def _window(options, choice):
    if isinstance(choice, tuple):
        return choice
    return choice != "ignored" and options.get("window") or (None, None)


def _masked(mask, choice, entries, heads_at, rows, shape):
    """What a mask adds to the scores of the sampled rows, as a choice reads it."""
    choice, times = ("", choice) if isinstance(choice, float) else (choice, None)
    if choice.startswith("triangle"):
        own = rows + (shape[3] - shape[2] if choice == "triangle_bottom_right" else 0)
        return _hiding(torch.arange(shape[3])[None] > own[:, None])
    if choice == "transposed":
        mask = mask.transpose(-1, -2)
    if choice == "entries_as_heads":
        mask = mask[(None,) * (4 - mask.ndim)].transpose(0, 1)
    try:
        mask = mask.expand(shape)
    except RuntimeError:
        raise Unfit(f"mask: {tuple(mask.shape)} for scores {shape}") from None
    if choice == "first_entry":
        mask = mask[:1].expand(shape)
    if choice == "first_head":
        mask = mask[:, :1].expand(shape)
    mask = taken(mask, entries, heads_at, rows).cpu()
    if times is not None:
        mask = mask.double()
        return (times * mask).where(mask > -math.inf, -math.inf)
    if choice == "shown":  # every key is seen
        return (mask.double() * 0.0 if mask.dtype == torch.bool else mask.double()).where(mask > HIDDEN, 0.0)
    if choice == "added":  # 0 and 1 added to the scores
        return mask.double()
    if choice in ("inverted", "hidden"):  # of numbers what is not 0 is hidden
        return _hiding(mask != 0)
    return _hiding(mask == 0) if mask.dtype == torch.bool or choice == "truth" else mask.double()


def _hiding(hidden):
    """What is added to scores where some are hidden, of the same shape."""
    return torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(hidden, -math.inf)


def taken(x: Tensor, entries: Tensor, heads: Tensor, rows: Tensor) -> Tensor:
    """Of a tensor (batch, heads, rows, ...), what stands at these indices: (entries, heads, rows, ...)."""
    return x[entries[:, None, None], heads[:, None], rows]


def spread(count: int, most: float) -> Tensor:
    """Indices of up to `most` of `count` things, evenly spread, the first and the last among them: int64."""
    if count <= most:
        return torch.arange(count)
    return torch.linspace(0, count - 1, int(most), dtype=torch.float64).round().long().unique()
