"""Which dialect an output is in: every convention alone, then those that help together, then numbers that are fitted.

A number is fitted to half of an output and confirmed on the other half: a scale, a softcap, a mask times a factor,
ALiBi's slope, one more score, a factor of the output; and which keys are seen: a range, a window.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions import rope
from attention_check.conventions.attention import (
    SOFTMAX_OVER,
    Dialect,
    Rows,
    Unfit,
    attend,
    changed,
    scores,
    weights,
)
from attention_check.conventions.conventions import CONVENTIONS, NORMED
from attention_check.conventions.parts import nearest_part
from attention_check.conventions.reading import FEW, CapturedCall, Reader

NEAR = 0.1  # a residual of the right function, in coarse arithmetic
LIKELY = dict(
    layout=("all_bshd", "inputs_bshd", "o_bshd"), scale=("default", "one", "one_over_d"),
    causal=("none", "top_left", "bottom_right"), mask=("ignored", "inverted"),
)  # fmt: skip
BEAM = 5  # dialects that another convention is tried beside
DEPTH = 3  # conventions together, at most
SIMPLER = 1.25  # times the least residual: so near, the dialect of fewer conventions is taken
BELIEVED = 3.0  # times the least residual: so near, the believed dialect is taken
PART = 0.4  # of the rows
TINY = 1e-300

SCORES = 2**14  # of rows that numbers are fitted to
LEAST = (1, 2, 4)  # entries, heads and rows that are taken of a call with ever so many keys
FEWEST = (1, 2, 8)  # entries, heads and rows on which every number of keys is tried
FEATURES = 16  # of the output, in which keys and a first value are looked for
MANY = 2**20  # heads: all of them
MOST_MASKS = 2**27  # scores under all masks of a call, of FEWEST rows each
NEARLY = 1.25  # times the nearest residual: dialects in which other rows count
NEAREST = 3  # dialects beside which numbers are fitted, and beside those of BESIDE
IN_PARTS = (  # roles that are tried for a part of the keys
    "kv_of_0", "v_of_0", "v_one_later", "v_one_earlier",
    *(f"{rope.ROPE}k_{pairs}_{base}" for pairs, base in product(rope.PAIRS, rope.BASES)),
)  # fmt: skip
MOST_KEYS = 4096  # of more, none are sought that are not as believed
BESIDE = ("causal_none", "causal_bottom_right", "mask_ignored", "mask_inverted", "window_ignored")  # of conventions
LN_2 = math.log(2)
OCTAVE = 2  # values of a number that are tried in each factor of 2, before the best is refined
WIDE = 6  # factors of 2 to each side of the believed value
REACH = 1.0  # factors of 2 that a fit may go from where it begins
COUNTED = 0.5  # of the rows, at least: a dialect that hides all keys of most rows says nothing
MOVES = 3.0  # unit roundoffs that a fitted number changes the output by: less may be rounding to one side
AS_NEAR = 1.02  # times the least squared error: so near, the value from which the fit began is taken
HELD_OUT = 2.0  # times the residual that is rounding, on the half that was not fitted to: a factor rounds once more

FACTOR = "factor"
FAMILIES = (  # numbers that are fitted together, of fewer first
    (FACTOR,), ("scale",), ("mask",), ("softcap",), ("sinks",), ("sink",), ("hidden",), ("penalty",),
    ("alibi",), ("scale", FACTOR), ("scale", "softcap"),
)  # fmt: skip
SIGNED = ("mask", "alibi")  # whose number may be below 0
ADDED = ("sink", "hidden", "penalty")  # that are scores, and no factors
Rated = tuple[Dialect, float]  # a dialect, and its residual on the half of the values that it was not fitted to


@dataclass(frozen=True)
class Fit:
    """A dialect, and how far the output is from it.

    Attributes:
        residual: root mean square of the difference over that of the dialect's output, over all sampled rows that
            count: they see a key, and they and what they see are finite. Infinite where no row counts.
        residual_by_row: the same of each row, (entries, heads, rows); NaN where it does not count.
        hidden_nan: rows that are finite, though what they see is not. nan: those that are not, though what they see is.
    """

    dialect: Dialect
    residual: float
    residual_by_row: Tensor
    hidden_nan: int = 0
    nan: int = 0

    @property
    def counted(self) -> Tensor:
        """`residual_by_row` of the rows that count, (count,)."""
        return self.residual_by_row[self.residual_by_row.isfinite()]

    @property
    def share(self) -> float:
        """Of the rows that count, those that are nearer than NEAR."""
        return (self.counted <= NEAR).double().mean().item() if self.counted.numel() else 0.0


def fit(rows: Rows) -> Fit:
    """How far the output is from the rows' dialect."""
    golden, counted, nan = rows.golden, rows.counted, (int(rows.hidden_nan.sum()), int(rows.nan.sum()))
    error, size = (x.square().mean(-1) for x in (rows.o - golden, golden))
    if not counted.any():
        return Fit(rows.dialect, math.inf, torch.full_like(error, math.nan), *nan)
    floor = max(1e-3 * size[counted].mean().item(), TINY)  # where attention is 0, any error is large
    residual_by_row = (error / size.clamp(min=floor)).sqrt().where(counted, math.nan)
    total = size[counted].sum().clamp(min=TINY)
    return Fit(rows.dialect, (error[counted].sum() / total).sqrt().item(), residual_by_row, *nan)


def search(call: CapturedCall) -> list[Fit]:
    """The dialects that were tried, the nearest first, and of those about as near the simplest; the believed one is
    among them.

    Every convention alone comes first, then the products of the likely ones, then others beside the best so far.
    """
    reader, of_part = Reader(call, FEW), call.at is not None  # which says nothing of all heads
    choices = [each for each in CONVENTIONS if each.fits(call) and not (of_part and each.aspect == "heads")]
    found: dict[Dialect, Fit | None] = {}  # None where the shapes make no call, or it says nothing
    enough = call.rounding()

    def tried(dialects: Iterable[Dialect]) -> list[Fit]:
        """All that were tried, and these, the nearest first."""
        for dialect in dialects:
            if dialect not in found:
                try:
                    rows = reader.rows(dialect)
                    each = fit(rows)
                    found[dialect] = None if each.residual <= NEAR and is_flat(rows, enough) else each
                except Unfit:
                    found[dialect] = None
        return sorted(_fair([each for each in found.values() if each]), key=lambda each: each.residual)

    fits = tried([Dialect(), *(changed(Dialect(), each.aspect, each.choice) for each in choices)])
    if not fits or fits[0].residual > NEAR:
        fits = tried(_likely(choices))
    choices = [one for one in choices if one.choice not in SOFTMAX_OVER and not str(one.choice).startswith(rope.ROPE)]
    for _ in range(DEPTH - 1):
        if fits and fits[0].residual <= enough:
            break
        beam = [each.dialect for each in fits[:BEAM] if each.dialect.softmax not in SOFTMAX_OVER]
        fits = tried(
            changed(dialect, one.aspect, one.choice)
            for dialect in beam for one in choices if one.aspect not in dialect.changes()
        )  # fmt: skip
    return ranked([each for each in found.values() if each] or [Fit(Dialect(), math.inf, torch.zeros(0))])


def is_flat(rows: Rows, rounding: float) -> bool:
    """Whether an output in a dialect of other scores is as near without any: it says nothing of what they are."""
    flat = replace(rows, products=torch.zeros_like(rows.products))
    return bool(rows.dialect.scale not in ("", "zero") or rows.dialect.roles) and fit(flat).residual <= rounding


def _likely(choices):
    """Products of the conventions that are most often meant otherwise."""
    options: dict[str, list[Any]] = {aspect: [""] for aspect in LIKELY}
    for each in choices:
        if each.choice in LIKELY.get(each.aspect, ()):
            options[each.aspect].append(each.choice)
    return [replace(Dialect(), **dict(zip(options, chosen))) for chosen in product(*options.values())]


def ranked(fits: Sequence[Fit]) -> list[Fit]:
    """The nearest first; of those about as near, the one of fewest conventions, the believed one above all. Where none
    is near, the one that is near in most rows stands first, if it is so in PART of them."""
    fits = sorted(_fair(fits), key=lambda each: each.residual)
    least = fits[0].residual
    near = [each for each in fits if each.residual <= (SIMPLER if each.dialect.changes() else BELIEVED) * least]
    first = min(near, key=lambda each: (each.nan, len(each.dialect.changes()), each.residual))
    if first.residual > NEAR:
        best = max(fits, key=lambda each: (round(each.share, 2), -len(each.dialect.changes()), -each.residual))
        first = best if best.share >= PART else first
    return [first, *(each for each in fits if each is not first)]


def _fair(fits):
    """Dialects in which no more rows should be NaN and are not than in the believed one: these do not count, and a
    dialect must not gain by it."""
    believed = next((each.hidden_nan for each in fits if not each.dialect.changes()), math.inf)
    return [each for each in fits if each.hidden_nan <= believed]


class Sample:
    """Sampled rows of a call in a dialect, whose output is computed again and again with other numbers.

    Attributes:
        first: the values that numbers are fitted to, bool like o: every other row of every other head, where there are
            several, else every other feature. The others are held out.
    """

    def __init__(self, reader: Reader, base: Dialect, believed: Tensor | None):
        """believed: whether a row sees a key, as the caller believes, (entries, heads, rows, 1).

        Raises:
            Unfit: the shapes make no call of attention, or most rows see no key.
        """
        self.base, self.reader = replace(base, factor=1.0), reader
        rows = reader.rows(self.base)
        blind = ~rows.seen & rows.o.isfinite().all(-1, keepdim=True)
        if believed is not None and blind.shape == believed.shape:
            blind = blind & believed  # attention is 0 there; o must be where a value is due
        counted = rows.counted[..., None] | blind
        if counted.double().mean() < COUNTED:
            raise Unfit("most rows see no key")
        self.counted, self.o = counted, rows.o.where(counted, 0.0)
        self.size = self.o.square().sum().clamp(min=TINY)  # one size for all dialects, so that none gains by its own
        self.rows = rows
        entries, heads, n, features = self.o.shape
        at = torch.arange(features)
        if entries * heads * n > 1:  # a chequerboard of rows and heads
            of_entries, of_heads, of_rows = (torch.arange(count) for count in (entries, heads, n))
            at = of_entries[:, None, None, None] + of_heads[:, None, None] + of_rows[:, None]
        self.first = (at % 2 == 0).expand_as(self.o)

    def start(self, aspect: str) -> float | None:
        """The number around which values of an aspect are tried; None where the call has no such thing."""
        rows, mask = self.rows, self.reader.call.options.get("mask")
        if aspect != FACTOR and aspect in self.base.changes():
            return None
        if aspect == "mask":
            has = mask is not None and mask.dtype != torch.bool and bool((mask.isfinite() & (mask != 0)).any())
            return 1.0 if has else None
        if aspect == "alibi":
            return None if mask is not None else 1.0
        if aspect in ("hidden", "penalty"):
            return 0.0 if rows.bias.isneginf().any() else None
        if aspect == "sinks":
            return 1.0 if self.reader.call.options.get("sinks") is not None else None
        if aspect == "softcap":  # where the size of scores is, which it bends
            size = (rows.products * rows.scale).nan_to_num(0.0, 0.0, 0.0).abs().amax().item()
            return size if 0 < size < math.inf else None
        return math.log(rows.shape[3]) + 1.0 if aspect == "sink" else 1.0

    def output(self, numbers: Mapping[str, float], features: slice = slice(None)) -> Tensor:
        """What attention gives with numbers of a Dialect, without a factor; 0 in rows that do not count."""
        rows = self.reader.rows(replace(self.base, **numbers))
        P = weights(replace(rows, products=rows.products.nan_to_num(0.0, 0.0, 0.0)))
        return (P @ rows.v[..., features].nan_to_num(0.0, 0.0, 0.0)).where(self.counted, 0.0)

    def error(self, numbers: Mapping[str, float], solve: bool, features: slice = slice(None)) -> tuple[Tensor, float]:
        """What the output is off, and the factor that was used: 1, or solved for on the first half."""
        due, o, first = self.output(numbers, features), self.o[..., features], self.first[..., features]
        factor = 1.0
        if solve:
            factor = ((o * due)[first].sum() / due[first].square().sum().clamp(min=TINY)).item()
        return o - factor * due, factor

    def residual(self, error: Tensor) -> float:
        """The residual on the half that nothing is fitted to."""
        held = ~self.first
        return (error[held].square().sum() / self.size * held.numel() / held.sum().clamp(min=1)).sqrt().item()


def holding(call: CapturedCall, fits: Sequence[Fit], tried: list[Rated] | None = None) -> Iterator[Rated]:
    """The dialects in which an output is right to rounding on values that nothing was fitted to, those of fewest
    changes first.

    Args:
        fits: of `search`, one of which may be. tried: gets the fitted dialects that were tried, right or not.
    """
    first = fits[0]
    if first.residual <= call.rounding(first.dialect):
        yield first.dialect, first.residual  # if its bound refuses it, others or numbers may come nearer
    near = sorted(fits, key=lambda each: each.residual)
    as_near = [each for each in near if each.residual < NEARLY * first.residual and each is not first]
    as_near = [each for each in as_near if each.residual < call.rounding(each.dialect)]  # Baseline of it takes long
    yield from ((each.dialect, each.residual) for each in sorted(as_near, key=lambda each: len(each.dialect.changes())))
    bases = [Dialect(), first.dialect, *(each.dialect for each in near[:NEAREST])]
    bases += [each.dialect for each in near if each.dialect.roles in NORMED and len(each.dialect.changes()) == 1][:1]
    beside = [each for each in CONVENTIONS if each.key in BESIDE and each.fits(call)]
    bases += [changed(Dialect(), each.aspect, each.choice) for each in beside]
    bases = [each for each in dict.fromkeys(bases) if each.softmax not in SOFTMAX_OVER]  # they need all rows
    reader = Reader(call, _room(call))
    try:
        believed = reader.rows(Dialect()).seen
    except Unfit:
        believed = None
    samples = []
    for base in bases:
        try:
            samples.append(Sample(reader, base, believed))
        except Unfit:
            continue
    off, parts = (_read_off(reader, samples, believed, ways) for ways in (READ_OFF, (_part,)))
    for found in (off, _fitted(samples), parts):  # the first cost least, and the last have most numbers
        rated = [each for each in found if each[0] not in bases]
        if tried is not None:
            tried += rated
        held = [each for each in rated if each[1] <= NEAR and each[1] <= HELD_OUT * call.rounding(each[0])]
        yield from sorted(held, key=lambda each: len(each[0].changes()))


def _room(call):
    """Entries, heads and rows of FEW whose scores are about SCORES."""
    entries, heads, rows = FEW
    room, n_kv = SCORES, call.k.shape[2]
    rows = max(min(rows, room // (entries * heads * n_kv)), LEAST[2])
    entries = max(min(entries, room // (heads * rows * n_kv)), LEAST[0])
    return entries, max(min(heads, room // (entries * rows * n_kv)), LEAST[1]), rows


def _read_off(reader, samples, believed, ways) -> Iterator[Rated]:
    """Dialects beside the samples' that some ways give, as READ_OFF."""
    few = Reader(reader.call, FEWEST)
    for base in (sample.base for sample in samples):
        try:
            found = [dialect for find in ways for dialect in find(few, base) if dialect != base]
        except Unfit:
            continue
        for dialect in found:
            try:
                sample = Sample(reader, dialect, believed)
            except Unfit:
                continue
            yield dialect, sample.residual(sample.error({}, False)[0])


def _fitted(samples) -> Iterator[Rated]:
    """Dialects with the numbers of each family that are nearest, beside the sample that comes nearest with them, and
    beside that of fewest changes."""
    for family in FAMILIES:
        begun = [_coarse(sample, family) for sample in samples if _applies(sample, family)]
        if begun:
            simplest = min(begun, key=lambda each: (len(each[2].base.changes()), each[0]))
            chosen = min(begun, key=lambda each: each[0]), simplest
            for _, values, sample in {id(each[2]): each for each in chosen}.values():
                yield _refined(sample, family, values)


def _applies(sample, family):
    if family == ("scale", "softcap"):
        return bool(sample.reader.call.options.get("softcap")) and not {*family} & sample.base.changes().keys()
    return all(sample.start(aspect) is not None for aspect in family)


def _values(sample, aspect):
    """Values of a number that are tried first."""
    start = sample.start(aspect)
    if aspect in ADDED:
        return [start + x for x in range(-12, 7)]
    values = (start * (torch.arange(-WIDE * OCTAVE, WIDE * OCTAVE + 1).double() / OCTAVE).exp2()).tolist()
    if aspect == "scale":  # as where the scale of q or k in 8 bits is lost
        values += [1 / x for name, x in sample.reader.call.scales.items() if name != "v_scale" and x]
    return values + [-x for x in values] if aspect in SIGNED else values


def _coarse(sample, family) -> tuple[float, list[float], Sample]:
    """The residual of the nearest of some values on the first half, these values, and the sample."""
    numbers, solve = [aspect for aspect in family if aspect != FACTOR], FACTOR in family
    if family == ("scale", "softcap"):  # in c tanh(x / c) any part may be forgotten
        cap = sample.reader.call.options["softcap"]
        tried = product((1 / cap, 0.5, LN_2, 1.0, 1 / LN_2, 2.0, cap), (1.0, LN_2 * cap, cap, cap / LN_2))
    else:
        tried = product(*(_values(sample, aspect) for aspect in numbers))
    part = slice(None, None, max(sample.o.shape[-1] // FEATURES, 1))
    best, least = [1.0] * len(numbers), math.inf
    size = sample.size.item()
    for values in tried:
        error, _ = sample.error(dict(zip(numbers, values)), solve, part)
        far = error[sample.first[..., part]].square().sum().item() / size
        if far < least:
            best, least = [*values], far
    return least, best, sample


def _refined(sample, family, values) -> Rated:
    """The dialect with the numbers that are nearest on the first half, and its residual on the other; the base itself
    where they are the believed ones."""
    from scipy import optimize  # a quarter of a second that most judgements need not wait for

    aspects, solve = [aspect for aspect in family if aspect != FACTOR], FACTOR in family

    def at(x):
        x = [min(max(float(each), -REACH), REACH) for each in x]
        return {
            aspect: value + step if aspect in ADDED else value * 2.0**step
            for aspect, value, step in zip(aspects, values, x)
        }

    def far(x):
        return (sample.error(at(x), solve)[0][sample.first] / sample.size.sqrt()).numpy()

    numbers: dict[str, float] = {}
    if aspects:
        start = [0.0] * len(aspects)
        found = optimize.least_squares(far, start, method="lm", xtol=1e-10, max_nfev=60).x
        if (far(start) ** 2).sum() <= AS_NEAR * (far(found) ** 2).sum():
            found = found * 0  # the number from which it began is as near: a round one, or a known one
        if (abs(found) < REACH).all():  # else ever smaller or larger numbers come nearer, and none is the cause
            numbers = _kept(sample, at(found))
    error, factor = sample.error(numbers, solve)
    off = MOVES * sample.reader.call.fmt.unit_roundoff
    dialect = replace(sample.base, **numbers)
    if solve and math.isfinite(factor) and abs(factor - 1) > off and abs(factor) > off:
        dialect = replace(dialect, factor=factor)
    elif solve:
        error, _ = sample.error(numbers, False)
    return dialect, sample.residual(error)


def _kept(sample, numbers):
    """The numbers without which the output would be another one, by more than rounding to one side makes."""
    off = MOVES * sample.reader.call.fmt.unit_roundoff
    due = sample.output(numbers)
    kept = {}
    for aspect, x in numbers.items():
        without = sample.output({name: y for name, y in numbers.items() if name != aspect})
        if (due - without).square().sum() > off**2 * due.square().sum():
            kept[aspect] = x
    return kept


def _range(few, base):
    """Keys before or from some place on alone are seen."""
    rows = _narrow(few.rows(replace(base, keys=None)))
    P, n_kv = unnormalised(rows), rows.shape[3]
    order = torch.arange(n_kv).expand(rows.q.shape[2], -1)
    before, after = _errors(*P, rows, order).sum(0), _errors(*P, rows, order.flip(-1)).sum(0).flip(0)
    first, last = int(after.argmin()), int(before.argmin())
    tried = [(before[last], (0, last + 1)), (after[first], (first, n_kv))]
    if tried := [each for each in tried if each[1] != (0, n_kv)]:
        yield replace(base, keys=min(tried, key=lambda each: each[0])[1])


def _windows(few, base):
    """Windows of so many keys before a row's own and none, as many, all, or as many as believed after it; or of so many
    after it, and all or as many as believed before it."""
    rows = _narrow(few.rows(replace(base, window=(None, None))))
    P, (n_q, n_kv) = unnormalised(rows), rows.shape[2:]
    before = rows.places[2][:, None] + n_kv - n_q - torch.arange(n_kv)  # (rows, n_kv): keys from the row's own
    left, right = few.call.options.get("window") or (None, None)
    sides: list[tuple[Any, Any]] = [(True, 0), (True, True), (True, None), (None, True), (True, right), (left, True)]
    for left, right in dict.fromkeys(sides):
        far = torch.maximum(_reach(before, left, n_q + n_kv), _reach(-before, right, n_q + n_kv))
        order = far.sort(dim=-1, stable=True).indices
        last = torch.searchsorted(far.gather(-1, order), torch.arange(n_kv).expand_as(far).contiguous(), right=True) - 1
        errors = _errors(*P, rows, order).gather(-1, last.clamp(min=0)).sum(0)  # (n_kv,): of windows of 0, 1, ... keys
        size = int(errors.argmin())
        limit = n_kv // 2 if n_q == 1 and not few.call.options.get("window") else n_kv - 1  # else keys may be lost
        if size < limit:
            yield replace(base, window=tuple(size if side is True else side for side in (left, right)))


def _reach(keys, side, never):
    """The smallest window in which keys are seen, so many from a row's own to one side: True, the side is so long; else
    that long whatever the window, None without a limit."""
    return keys.clamp(min=0) if side is True else torch.where(keys > (never if side is None else side), never, 0)


def _heads(few, base):
    """Heads of the output in the order that is nearest, where each is nearest to another one."""
    rows = few.call.rows(base, (1, MANY, FEWEST[2]))
    heads = rows.shape[1]
    if not base.heads and heads > 1 and rows.o.shape[1] == heads:
        due, found = (x[0].nan_to_num(0.0).flatten(1) for x in (rows.golden, rows.o))
        order = tuple(torch.cdist(due, found).argmin(1).tolist())
        if len({*order}) == heads and order != tuple(range(heads)):
            yield replace(base, heads=order)


def _sinks(few, base):
    """Sinks in the order that brings each head nearest."""
    rows = few.call.rows(base, (1, MANY, FEWEST[2]))
    own, places = rows.sinks.flatten(), torch.arange(rows.shape[1])
    if base.sinks or not own.isfinite().all() or len(own) != len(places):
        return
    errors = torch.stack([(attend(replace(rows, sinks=x.expand_as(rows.sinks))) - rows.o).square().sum((0, 2, 3))
                          for x in own])  # (sinks, heads)  # fmt: skip
    order = errors.argmin(0)
    if not torch.equal(own[order], own):
        yield replace(base, sinks=tuple(order.tolist()))


def _masks(few, base):
    """The mask of another entry or head in each of them."""
    mask, (batch, heads, n_q, _), n_kv = few.call.options.get("mask"), few.call.q.shape, few.call.k.shape[2]
    own = mask.shape[:-2] if mask is not None and mask.ndim == 4 else (1, 1)
    if few.call.at or base != Dialect() or own == (1, 1):
        return
    of = " and ".join(name for name, count in zip(("entries", "heads"), own) if count > 1)
    for who, most in (("entries", (batch, 1)), ("heads", (1, heads)), ("entries and heads", (batch, heads))):
        if own[0] * own[1] * most[0] * most[1] * min(FEWEST[2], n_q) * n_kv > MOST_MASKS:
            continue
        reader, errors = Reader(few.call, (most[0], most[1], FEWEST[2])), []
        for i in range(own[0] * own[1]):
            rows = _narrow(reader.rows(replace(base, mask=("entries and heads", of, *(batch * heads * [i])))))
            errors.append((rows.golden - rows.o).square().sum((2, 3)))
        if errors[0].shape == most:  # else they are too many to be held
            yield replace(base, mask=(who, of, *torch.stack(errors).argmin(0).flatten().tolist()))


def _rope(few, base):
    """RoPE in other places, by a number."""
    few = Reader(few.call, (*FEWEST[:2], FEWEST[2] // 2))
    found = rope.read_off(_narrow(few.rows(base), FEATURES // 2)) if base == Dialect() else None
    if found:
        yield replace(base, roles=found[0], part=found[1])


def _part(few, base):
    """The keys before some place, or from there on, are not as believed: RoPE turns them once more, they or their
    values are of 0 or those of the next key, or k and v have another scale, as where one of 8 bits is lost."""
    if base != Dialect():
        return
    own, n_kv = _narrow(few.rows(base)), few.call.k.shape[2]
    if not 1 < n_kv <= MOST_KEYS:
        return
    tried = []
    for dialect in (replace(base, roles=each.choice) for each in CONVENTIONS if each.choice in IN_PARTS):
        rows = _narrow(few.rows(dialect))
        error, part, _, _ = nearest_part(own, scores(rows)[..., None], rows.v)
        tried.append((error, replace(dialect, part=part)))
    yield min(tried, key=lambda each: each[0])[1]
    scale, steps = 1.0, (torch.arange(-WIDE * OCTAVE, WIDE * OCTAVE + 1).double() / OCTAVE).exp2()
    more = Reader(few.call, FEW) if n_kv <= MOST_KEYS // 4 else few
    for reader, finer in ((few, 1.0), (few, 1 / 8), (more, 1 / 64), (more, 1 / 512)):
        own = _narrow(reader.rows(base), FEATURES // 4)
        tried = []
        for x in (scale * steps**finer).tolist():
            S = scores(replace(own, scale=own.scale * x))[..., None]
            tried.append((*nearest_part(own, S, own.v, solves=True), x))
        _, part, _, values, scale = min(tried)
    off = MOVES * few.call.fmt.unit_roundoff
    yield replace(base, scale=scale, part=part, values=values if abs(values - 1) > off else 1.0)


def narrow(x: Tensor, features: int = FEATURES) -> Tensor:
    """So many of the last dimension, or a few more."""
    return x[..., :: max(x.shape[-1] // features, 1)]


def _narrow(rows, features=FEATURES):
    return replace(rows, v=narrow(rows.v, features), o=narrow(rows.o, features))


def unnormalised(rows):
    """exp(S - m), (entries, heads, rows, n_kv), and exp(sink - m), (entries, heads, rows, 1)."""
    S = scores(rows)
    m = torch.maximum(S.amax(-1, keepdim=True), rows.sinks)
    m = m.where(m > -math.inf, 0.0)
    return torch.exp(S - m), torch.exp(rows.sinks - m)


def _errors(P, sinks, rows, order):
    """(rows, n_kv): the squared error of each row's output over its first 1, 2, ... keys, 0 where it sees none of them.

    Args:
        P, sinks: of `unnormalised`. order: of keys, (rows, n_kv).
    """
    total = []
    for row, keys in enumerate(order):
        p = P[:, :, row, keys]  # (entries, heads, n_kv)
        l = p.cumsum(-1) + sinks[:, :, row]
        O = (p[..., None] * rows.v[:, :, keys]).cumsum(2) / l.clamp(min=TINY)[..., None]
        total.append((O - rows.o[:, :, row, None]).square().sum((1, 3)))
    return torch.stack(total, 1).nan_to_num(0.0).sum(0)


# what gives dialects beside a base, read off some rows of the output
READ_OFF = (_windows, _range, _heads, _sinks, _masks, _rope)
