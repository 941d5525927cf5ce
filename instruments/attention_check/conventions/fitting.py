"""The numbers of a dialect, fitted to half of an output and confirmed on the other half: a scale, a softcap, a mask
times a factor, ALiBi's slope, one more score, a factor of the output; and which keys are seen: a range, a window."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.attention import Dialect, Rows, attend, changed, scores, weights
from attention_check.conventions.reading import CapturedCall, Reader, Unfit
from attention_check.conventions.search import FEW, FiniteMask, Fit, rounding_of

FEWEST = (1, 2, 8)  # entries, heads and rows on which every number of keys is tried
MANY = 2**20  # heads: all of them
BASES = 3  # dialects, the nearest, beside which numbers are fitted
OCTAVE = 2  # values of a number that are tried in each factor of 2, before the best is refined
WIDE = 6  # factors of 2 to each side of the believed value
COUNTED = 0.5  # of the rows, at least: a dialect that hides all keys of most rows says nothing
OFF = 4.0  # unit roundoffs that a fitted number changes the output by: less may be rounding to one side
HELD_OUT = 2.0  # times the residual that is rounding, on the half that was not fitted to: a factor rounds once more
TINY = 1e-300


@dataclass(frozen=True)
class Family:
    """Dialects that differ in one number, and with_factor in the output's, which is solved for.

    Attributes:
        aspect: of a Dialect, "" for the factor alone. signed: whether the number may be below 0.
        start: a call, rows -> the number around which values are tried; None where the call has no such thing.
    """

    aspect: str
    start: Callable[[CapturedCall, Rows], float | None]
    signed: bool = False
    with_factor: bool = False


def _numbers(call, rows):
    mask = call.options.get("mask")
    has = mask is not None and mask.dtype != torch.bool and bool((mask.isfinite() & (mask != 0)).any())
    return 1.0 if has and rows.dialect.mask == "" else None


def _largest(call, rows):
    """The size of scores, where a softcap bends them."""
    size = (rows.products * rows.scale).abs().amax().item()
    return size if 0 < size < math.inf else None


FAMILIES = (  # of fewer numbers first
    Family("", lambda call, rows: 1.0, with_factor=True),
    Family("scale", lambda call, rows: 1.0),
    Family("mask", _numbers, signed=True),
    Family("softcap", _largest),
    Family("sink", lambda call, rows: math.log(rows.shape[3]) + 1.0, signed=True),
    Family("alibi", lambda call, rows: None if call.options.get("mask") is not None else 1.0, signed=True),
    Family("scale", lambda call, rows: 1.0, with_factor=True),
)


class _Halves:
    """Sampled rows of a call, and the residual of a dialect on one half of their values and on the other: every other
    row where there are several, else every other feature."""

    def __init__(self, call: CapturedCall):
        self.call, self.reader = call, Reader(call, FEW)
        try:
            self.believed = self.rows(Dialect()).seen  # rows that see a key, as the caller believes
        except Unfit:
            self.believed = torch.ones((), dtype=torch.bool)

    def rows(self, dialect: Dialect) -> Rows:
        return self.reader.rows(replace(dialect, factor=1.0))

    def residuals(self, dialect: Dialect, solve: bool = False) -> tuple[float, float, float]:
        """The factor, the dialect's unless it is solved for, and the residuals on the first half and on the other."""
        rows = self.rows(dialect)
        golden, o = attend(rows), rows.o
        blind = ~rows.seen & o.isfinite().all(-1, keepdim=True)
        if blind.shape == self.believed.shape:  # attention is 0 there, and o must be where the caller expects a value
            blind = blind & self.believed
        counted = FiniteMask.of(rows, golden).counted[..., None] | blind
        if counted.double().mean() < COUNTED:
            return 1.0, math.inf, math.inf
        golden, o = (x.where(counted, 0.0) for x in (golden, o))
        entries, heads, n, features = golden.shape
        at = torch.arange(features)
        if entries * heads * n > 1:  # a chequerboard of rows and heads
            of_entries, of_heads, of_rows = (torch.arange(count) for count in (entries, heads, n))
            at = of_entries[:, None, None, None] + of_heads[:, None, None] + of_rows[:, None]
        half = (at % 2 == 0).expand_as(golden)
        factor = dialect.factor
        if solve:
            factor = ((o * golden)[half].sum() / golden[half].square().sum().clamp(min=TINY)).item()
        error = (o - factor * golden).square()
        size = o.square().sum().clamp(min=TINY)  # one size for all dialects, so that none gains by its own
        share = [(error[part].sum() / size * part.numel() / part.sum().clamp(min=1)).sqrt() for part in (half, ~half)]
        return factor, share[0].item(), share[1].item()


Rated = tuple[Dialect, float]  # a dialect, and its residual on the half of the values that it was not fitted to


def holding(call: CapturedCall, fits: Sequence[Fit]) -> tuple[list[Rated], Rated | None]:
    """The dialects in which an output is right to rounding, as `fitted`; fits: of `search`, one of which may be."""
    first = fits[0]
    if first.residual <= rounding_of(call, first.dialect):
        return [(first.dialect, first.residual)], (first.dialect, first.residual)
    near = sorted(fits, key=lambda each: each.residual)[:BASES]
    bases = [first.dialect, Dialect(), *(each.dialect for each in near)]
    mask = call.options.get("mask")
    bases += [Dialect(mask="ignored")] if mask is not None else []
    bases += [Dialect(mask="inverted")] if mask is not None and mask.dtype == torch.bool else []
    return fitted(call, [*dict.fromkeys(bases)])


def fitted(call: CapturedCall, bases: Sequence[Dialect]) -> tuple[list[Rated], Rated | None]:
    """Dialects with fitted numbers that hold on the half of the values that they were not fitted to, those of fewest
    changes first; and the nearest one, whether it holds or not.

    Args:
        bases: beside which the numbers are fitted, the likelier first.
    """
    halves, tried = _Halves(call), []
    for base in bases:
        try:
            coarse = [_coarse(halves, family, base) for family in FAMILIES if not _taken(base, family)]
        except Unfit:
            continue
        tried += [(*each, base) for each in coarse if each]
    chosen = {}  # of each number, beside the base that is nearest and beside the simplest
    for order in (_by_residual, _by_changes):
        first = {family: (base, value) for _, family, value, base in sorted(tried, key=order, reverse=True)}
        chosen |= {(family, base): value for family, (base, value) in first.items()}
    found = [_refined(halves, family, value, base) for (family, base), value in chosen.items()]
    for base in bases:
        found += [dialect for dialect in _seen_keys(call, base) if dialect != base]
    if call.options.get("softcap"):
        found += [_softcapped(halves, bases[0])]
    rated = []
    for dialect in dict.fromkeys(found):
        try:
            rated.append((dialect, halves.residuals(dialect)[2]))
        except Unfit:
            continue
    rated.sort(key=lambda each: (len(each[0].changes()), each[1]))
    holds = [each for each in rated if each[1] <= HELD_OUT * rounding_of(call, each[0])]
    return holds, min(rated, key=lambda each: each[1], default=None)


def _by_residual(each):
    return each[0]


def _by_changes(each):
    residual, _, _, base = each
    return len(base.changes()), residual


def _taken(base, family):
    return bool(family.aspect) and family.aspect in base.changes()


def _values(family, start):
    octaves = torch.arange(-WIDE * OCTAVE, WIDE * OCTAVE + 1).double() / OCTAVE
    if family.aspect == "sink":  # a score, and no factor
        return (start + torch.linspace(-12, 6, 37)).tolist()
    values = (start * octaves.exp2()).tolist()
    return values + [-x for x in values] if family.signed else values


def _coarse(halves, family, base):
    """The residual of the nearest of some values, the family and the value; None where it does not apply."""
    start = family.start(halves.call, halves.rows(base))
    if start is None:
        return None
    if not family.aspect:
        return halves.residuals(base, solve=True)[1], family, 1.0
    tried = [
        (halves.residuals(changed(base, family.aspect, x), family.with_factor)[1], x) for x in _values(family, start)
    ]
    residual, value = min((each for each in tried if each[0] == each[0]), default=(math.inf, start))
    return residual, family, value


def _refined(halves, family, value, base):
    """The dialect with the value that is nearest on the first half; the base itself where that is the believed one."""
    from scipy import optimize  # a quarter of a second that most judgements need not wait for

    dialect, off = base, OFF * halves.call.fmt.unit_roundoff
    if family.aspect:

        def at(x):
            return value + x if family.aspect == "sink" else value * 2.0**x

        def far(x):
            return halves.residuals(changed(base, family.aspect, at(x)), family.with_factor)[1]

        reach = 1 / OCTAVE
        best = at(optimize.minimize_scalar(far, bounds=(-reach, reach), method="bounded", options=dict(xatol=1e-9)).x)
        other = changed(base, family.aspect, float(best))
        due, found = (attend(halves.rows(each)).nan_to_num(0.0) for each in (base, other))
        if (found - due).square().sum() > off**2 * due.square().sum():
            dialect = other
    if family.with_factor:
        factor = halves.residuals(dialect, solve=True)[0]
        if math.isfinite(factor) and abs(factor - 1) > off and abs(factor) > off:
            dialect = replace(dialect, factor=factor)
    return dialect


def _softcapped(halves, base):
    """The dialect with a scale and a softcap together that are nearest: in c tanh(x / c) any part may be forgotten."""
    from scipy import optimize

    cap = halves.call.options["softcap"]

    def dialect(x):
        return replace(base, scale=2.0 ** float(x[0]), softcap=float(cap * 2.0 ** x[1]))

    def far(x):
        return halves.residuals(dialect(x))[1] if max(map(abs, x)) < 16 else math.inf

    own = math.log2(cap)
    starts = [(a, b) for a in (-own, -1.0, 0.0, 1.0, own) for b in (-own, 0.0)]
    best = min(starts, key=far)
    found = optimize.minimize(far, best, method="Nelder-Mead", options=dict(xatol=1e-6, fatol=1e-9, maxiter=200))
    return dialect(found.x)


def _seen_keys(call, base) -> Iterator[Dialect]:
    """The dialect with the range of keys, the window or the order of heads that is nearest."""
    try:
        yield _range(call, base)
        yield from _windows(call, base)
        yield _heads(call, base)
    except Unfit:
        return


def _range(call, base):
    """Keys before or from some place on alone are seen."""
    rows = call.rows(replace(base, keys=None), FEWEST)
    P, n_kv, best = _unnormalised(rows), rows.shape[3], (math.inf, base)
    order = torch.arange(n_kv).expand(rows.q.shape[2], -1)
    sums = _errors(P, rows, order).sum(0), _errors(P, rows, order.flip(-1)).sum(0).flip(0)
    for way, errors in enumerate(sums):
        at = int(errors.argmin())
        keys = (0, at + 1) if way == 0 else (at, n_kv)
        if errors[at] < best[0] and keys != (0, n_kv):
            best = (errors[at].item(), replace(base, keys=keys))
    return best[1]


def _windows(call, base):
    """Windows of so many keys before a row's own and none, as many, or all after it; or of so many after it alone."""
    rows = call.rows(replace(base, window=(None, None)), FEWEST)
    P, (n_q, n_kv) = _unnormalised(rows), rows.shape[2:]
    before = rows.places[2][:, None] + n_kv - n_q - torch.arange(n_kv)  # (rows, n_kv): keys from the row's own
    sides: dict[Any, Tensor] = {
        (True, 0): torch.where(before < 0, n_kv, before), (True, True): before.abs(),
        (True, None): before.clamp(min=0), (None, True): (-before).clamp(min=0),
    }  # fmt: skip
    for (left, right), far in sides.items():
        order = far.sort(dim=-1, stable=True).indices
        last = torch.searchsorted(far.gather(-1, order), torch.arange(n_kv).expand_as(far).contiguous(), right=True) - 1
        errors = _errors(P, rows, order).gather(-1, last.clamp(min=0)).sum(0)  # (n_kv,): of windows of 0, 1, ... keys
        size = int(errors.argmin())
        if size < n_kv - 1:
            yield replace(base, window=tuple(size if side is True else side for side in (left, right)))


def _heads(call, base):
    """Heads of the output in the order that is nearest, where each is nearest to another one."""
    rows = call.rows(base, (1, MANY, FEWEST[2]))
    heads = rows.shape[1]
    if base.heads or heads == 1 or rows.o.shape[1] < heads:
        return base
    due, found = (x[0].nan_to_num(0.0).flatten(1) for x in (attend(rows), rows.o))
    order = tuple(torch.cdist(due, found).argmin(1).tolist())
    other = len({*order}) == heads and order != tuple(range(heads))
    return replace(base, heads=order) if other else base


def _unnormalised(rows):
    """exp(S - m), (entries, heads, rows, n_kv)."""
    S = scores(rows)
    m = S.amax(-1, keepdim=True)
    return torch.exp(S - m.where(m > -math.inf, 0.0))


def _errors(P, rows, order):
    """(rows, n_kv): the squared error of each row's output over its first 1, 2, ... keys in its order (rows, n_kv)."""
    total = []
    for row, keys in enumerate(order):
        p = P[:, :, row, keys]  # (entries, heads, n_kv)
        O = (p[..., None] * rows.v[:, :, keys]).cumsum(2) / p.cumsum(-1).clamp(min=TINY)[..., None]
        total.append((O - rows.o[:, :, row, None]).nan_to_num(0.0).square().sum((0, 1, 3)))  # NaN sees no key
    return torch.stack(total)


def solved(rows: Rows) -> Tensor | None:
    """The weights that made an output, (entries, heads, rows, n_kv), by least squares; None where there are more keys
    than features, or the values do not tell the keys apart."""
    v = rows.v.nan_to_num(0.0, 0.0, 0.0)
    if v.shape[2] > v.shape[3] or (torch.linalg.matrix_rank(v) < v.shape[2]).any():
        return None
    return rows.o @ torch.linalg.pinv(v)


KEPT = 0.05  # of a weight: so near to 0, or to the one size that kept weights have, it is dropped, or kept
LARGE = 0.1  # of a row's largest weight: smaller ones drown in the output's rounding


def dropped(rows: Rows) -> float | None:
    """The share of weights that dropout took: the solved weights are 0, or all the same multiple of what they should
    be. None where they are not, or there is no solution."""
    P, found = weights(rows), solved(rows)
    if found is None or rows.dialect.softmax or not rows.o.isfinite().all():
        return None
    ratio = (found / P.clamp(min=TINY))[LARGE * P.amax(-1, keepdim=True) < P]
    gone = ratio.abs() < KEPT
    share = gone.double().mean().item()
    kept = ratio[~gone]
    if not 0 < share < 1 or ((kept / kept.median() - 1).abs() > KEPT).any():
        return None
    return 1 - 1 / kept.median().item()


ALONG = 0.1  # of the output, that an error has along it, at most: noise has no direction
ALIKE = 0.25  # of the mean over heads, that a head's error may be off: about a standard error for 32 independent values
MOST_ODDS = 20.0  # with more, there is nothing of the output left


def noise(rows: Rows) -> float | None:
    """The share of weights whose dropout would make an error of this size, where it is like noise: without bias, and of
    the size that independent errors of all weights have in every head. 0 where the weights show that it is no dropout;
    None where it is not like noise."""
    golden = attend(rows)
    mask = FiniteMask.of(rows, golden)
    if rows.dialect.softmax or mask.nan.any() or mask.hidden_nan.any() or not mask.counted.any():
        return None
    golden, o = (x.where(mask.counted[..., None], 0.0) for x in (golden, rows.o))
    error = o - golden
    due = (weights(rows).square() @ rows.v.square()).sum((0, 2, 3))  # (heads,)
    odds = error.square().sum((0, 2, 3)) / due.clamp(min=TINY)
    along = ((error * golden).sum() / golden.square().sum().clamp(min=TINY)).abs().item()
    mean = odds.mean().item()
    if not (odds - mean).abs().max() <= ALIKE * mean or mean >= MOST_ODDS or along > ALONG:
        return None
    return 0.0 if solved(rows) is not None else mean / (1 + mean)
