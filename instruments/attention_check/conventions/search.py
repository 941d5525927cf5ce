"""Which dialect an output is in: every convention alone, then those that help together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.attention import Dialect, Rows, attend, changed, scores, weights
from attention_check.conventions.conventions import CONVENTIONS
from attention_check.conventions.reading import CapturedCall, Reader, Unfit
from fa_lib.kernels.rule import baseline_for

FEW = (2, 3, 16)  # entries, heads and rows on which dialects are tried
FEWEST = (1, 2, 8)  # of these on which every number of keys is tried
MANY = 2**20  # heads: all of them
NEAR = 0.1  # a residual of the right function, in coarse arithmetic
LIKELY = dict(
    layout=("all_bshd", "inputs_bshd", "o_bshd"), scale=("default", "one", "one_over_d"),
    causal=("none", "top_left", "bottom_right"), mask=("ignored", "inverted"),
)  # fmt: skip
BEAM = 5  # dialects that another convention is tried beside
DEPTH = 3  # conventions together, at most
ENOUGH = 2.0  # times Baseline's residual: rounding, where nothing more is looked for
UNITS = 8.0  # unit roundoffs, where Baseline cannot be asked
SIMPLER = 1.25  # times the least residual: so near, the dialect of fewer conventions is taken
BELIEVED = 3.0  # times the least residual: so near, the believed dialect is taken
PART = 0.4  # of the rows
LEAST_ODDS = 0.04  # of dropout that is named: less may be a coarse v
ALIKE = 0.25  # of the mean over heads, that a head's odds of dropout may be off
TINY = 1e-300
OFF = 0.01  # of a factor from 1, and from 0, that is named


@dataclass(frozen=True)
class Fit:
    """A dialect, and how far the output is from it.

    Attributes:
        residual: root mean square of the difference over that of the dialect's output, over all sampled rows that
            count: they see a key, and they and what they see are finite. Infinite where no row counts.
        residual_by_row: the same of each row, (entries, heads, rows); NaN where it does not count.
        hidden_nan: rows that are finite, though what they see is not.
    """

    dialect: Dialect
    residual: float
    residual_by_row: Tensor
    hidden_nan: int = 0

    @property
    def counted(self) -> Tensor:
        """`residual_by_row` of the rows that count, (count,)."""
        return self.residual_by_row[self.residual_by_row.isfinite()]

    @property
    def share(self) -> float:
        """Of the rows that count, those that are nearer than NEAR."""
        return (self.counted <= NEAR).double().mean().item() if self.counted.numel() else 0.0


@dataclass(frozen=True)
class FiniteMask:
    """Which rows count, and which do not, (entries, heads, rows) each.

    Attributes:
        counted: they see a key, and they and what they see are finite. nan: they are not finite, though what they see
            is. hidden_nan: they are, though what they see is not.
    """

    counted: Tensor
    nan: Tensor
    hidden_nan: Tensor

    @classmethod
    def of(cls, rows: Rows, golden: Tensor) -> "FiniteMask":
        seen, due, finite = rows.seen[..., 0], golden.isfinite().all(-1), rows.o.isfinite().all(-1)
        return cls(seen & due & finite, seen & due & ~finite, seen & ~due & finite)


def fit(rows: Rows, golden: Tensor | None = None) -> Fit:
    """How far the output is from a dialect, whose own is `golden`, where it is at hand."""
    golden = attend(rows) if golden is None else golden
    mask = FiniteMask.of(rows, golden)
    counted, hidden = mask.counted, int(mask.hidden_nan.sum())
    error, size = (x.square().mean(-1) for x in (rows.o - golden, golden))
    if not counted.any():
        return Fit(rows.dialect, math.inf, torch.full_like(error, math.nan), hidden)
    floor = max(1e-3 * size[counted].mean().item(), TINY)  # where attention is 0, any error is large
    residual_by_row = (error / size.clamp(min=floor)).sqrt().where(counted, math.nan)
    total = size[counted].sum().clamp(min=TINY)
    return Fit(rows.dialect, (error[counted].sum() / total).sqrt().item(), residual_by_row, hidden)


def search(call: CapturedCall) -> list[Fit]:
    """The dialects that were tried, the nearest first, and of those about as near the simplest; the believed one is
    among them.

    Every convention alone comes first, then the products of the likely ones, then others beside the best so far.
    """
    reader, choices = Reader(call, FEW), [each for each in CONVENTIONS if each.fits(call)]
    fits = FitCache(reader)
    fits.of([Dialect()])
    enough = rounding_of(call)
    singles = [changed(Dialect(), each.aspect, each.choice) for each in choices]
    for more in (singles, _likely(choices)):
        if fits.least() > enough:
            fits.of(more)
        if fits.least() <= NEAR:
            break
    for _ in range(DEPTH - 1):
        if fits.least() <= enough:
            break
        beam = [each.dialect for each in fits.nearest(BEAM)]
        fits.of(
            changed(dialect, one.aspect, one.choice)
            for dialect in beam for one in choices if one.aspect not in dialect.changes()
        )  # fmt: skip
    return ranked(fits.found or [Fit(Dialect(), math.inf, torch.zeros(0))])


def rounding_of(call: CapturedCall, dialect: Dialect | None = None) -> float:
    """The relative residual up to which an error is rounding: ENOUGH times that of Baseline on the sampled rows, and
    UNITS where Baseline does not compute the dialect."""
    units, dialect = UNITS * call.fmt.unit_roundoff, replace(dialect or Dialect(), factor=1.0)
    if not dialect.is_standard:
        return units
    try:
        rows = call.rows(dialect, FEW)
        q, k, v = (x.nan_to_num(0.0).to(call.fmt.dtype) for x in (rows.q, rows.k, rows.v))
        own = baseline_for(call.fmt)(q, k, v, **rows.options()).double()
    except ValueError:  # the shapes do not fit, Unfit among them
        return units
    golden = attend(rows)
    counted = rows.seen & golden.isfinite() & own.isfinite()
    size, error = (x.square().mean(-1)[counted.all(-1)] for x in (golden, own - golden))
    if not size.sum() > 0:
        return units
    return ENOUGH * (error.sum() / size.sum()).sqrt().item()


def _likely(choices):
    """Products of the conventions that are most often meant otherwise."""
    options: dict[str, list[Any]] = {aspect: [""] for aspect in LIKELY}
    for each in choices:
        if each.choice in LIKELY.get(each.aspect, ()):
            options[each.aspect].append(each.choice)
    return [replace(Dialect(), **dict(zip(options, chosen))) for chosen in product(*options.values())]


class FitCache:
    """Dialects that were tried."""

    def __init__(self, reader):
        self.reader, self.found, self.dialects = reader, [], set()

    def of(self, dialects):
        """Try them, without those that were tried before, or in which the shapes make no call."""
        for dialect in dialects:
            if dialect in self.dialects:
                continue
            self.dialects.add(dialect)
            try:
                self.found.append(fit(self.reader.rows(dialect)))
            except Unfit:
                continue

    def nearest(self, count):
        return sorted(_fair(self.found), key=lambda each: each.residual)[:count]

    def least(self):
        return min((each.residual for each in _fair(self.found)), default=math.inf)


def ranked(fits: Sequence[Fit]) -> list[Fit]:
    """The nearest first; of those about as near, the one of fewest conventions, the believed one above all. Where none
    is near, the one that is near in most rows stands first, if it is so in PART of them."""
    fits = sorted(_fair(fits), key=lambda each: each.residual)
    least = fits[0].residual
    near = [each for each in fits if each.residual <= (SIMPLER if each.dialect.changes() else BELIEVED) * least]
    first = min(near, key=lambda each: (len(each.dialect.changes()), each.residual))
    if first.residual > NEAR:
        best = max(fits, key=lambda each: (round(each.share, 2), -len(each.dialect.changes()), -each.residual))
        first = best if best.share >= PART else first
    return [first, *(each for each in fits if each is not first)]


def _fair(fits):
    """Dialects in which no more rows should be NaN and are not than in the believed one: these do not count, and a
    dialect must not gain by it."""
    believed = next((each.hidden_nan for each in fits if not each.dialect.changes()), math.inf)
    return [each for each in fits if each.hidden_nan <= believed]


def fitted_factor(call: CapturedCall, dialect: Dialect) -> Dialect:
    """The dialect whose output times a factor is nearest; the dialect itself where the factor is 1 to OFF, or does not
    help."""
    rows = call.rows(dialect)
    golden = attend(rows)
    counted = FiniteMask.of(rows, golden).counted
    o, golden = rows.o[counted], golden[counted]
    factor = ((o * golden).sum() / golden.square().sum()).item()
    if not math.isfinite(factor) or abs(factor - 1) <= OFF or abs(factor) <= OFF:
        return dialect
    return replace(dialect, factor=factor)


def first_keys(call: CapturedCall, dialect: Dialect) -> Dialect:
    """The dialect in which keys before or from some place on alone are seen, where that is nearest."""
    rows = call.rows(replace(dialect, keys=None), FEWEST)
    P, n_kv, best = _unnormalised(rows), rows.shape[3], (math.inf, dialect)
    order = torch.arange(n_kv).expand(rows.q.shape[2], -1)
    sums = _errors(P, rows, order).sum(0), _errors(P, rows, order.flip(-1)).sum(0).flip(0)
    for way, errors in enumerate(sums):
        at = int(errors.argmin())
        keys = (0, at + 1) if way == 0 else (at, n_kv)
        if errors[at] < best[0]:
            best = (errors[at].item(), replace(dialect, keys=keys))
    return dialect if best[1].keys == (0, n_kv) else best[1]


def fitted_heads(call: CapturedCall, dialect: Dialect) -> Dialect:
    """The dialect with the heads of the output in the order that is nearest, where each is nearest to another one."""
    rows = call.rows(dialect, (1, MANY, FEWEST[2]))
    heads = rows.shape[1]
    if dialect.heads or heads == 1 or rows.o.shape[1] < heads:
        return dialect
    due, found = (x[0].nan_to_num(0.0).flatten(1) for x in (attend(rows), rows.o))
    order = tuple(torch.cdist(due, found).argmin(1).tolist())
    other = len({*order}) == heads and order != tuple(range(heads))
    return replace(dialect, heads=order) if other else dialect


def fitted_window(call: CapturedCall, dialect: Dialect) -> Dialect:
    """The dialect with the window that is nearest, of so many keys before a row's own, and none or as many after it."""
    rows = call.rows(replace(dialect, window=(None, None)), FEWEST)
    P, (n_q, n_kv), best = _unnormalised(rows), rows.shape[2:], (math.inf, dialect)
    before = rows.places[2][:, None] + n_kv - n_q - torch.arange(n_kv)  # (rows, n_kv): keys from the row's own
    for alike in (False, True):  # those after it are in no window, or as far as those before it
        far = before.abs() if alike else torch.where(before < 0, n_kv, before)
        order = far.sort(dim=-1, stable=True).indices
        last = torch.searchsorted(far.gather(-1, order), torch.arange(n_kv).expand_as(far).contiguous(), right=True) - 1
        errors = _errors(P, rows, order).gather(-1, last.clamp(min=0)).sum(0)  # (n_kv,): of windows of 0, 1, ... keys
        left = int(errors.argmin())
        if errors[left] < best[0] and left < n_kv - 1:
            best = (errors[left].item(), replace(dialect, window=(left, left if alike else 0)))
    return best[1]


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
        O = (p[..., None] * rows.v[:, :, keys]).cumsum(2) / p.cumsum(-1).clamp(min=1e-300)[..., None]
        total.append((O - rows.o[:, :, row, None]).nan_to_num(0.0).square().sum((0, 1, 3)))  # NaN sees no key
    return torch.stack(total)


def dropout(rows: Rows) -> float | None:
    """The share of weights that dropout took, where the error is that of dropout: without it the output would be right,
    and the error's variance in every head is p / (1 - p) times that of P V with each weight alone. None where it is
    not."""
    golden = attend(rows)
    mask = FiniteMask.of(rows, golden)
    if rows.dialect.softmax or mask.nan.any() or mask.hidden_nan.any() or not mask.counted.any():
        return None
    golden, o = (x.where(mask.counted[..., None], 0.0) for x in (golden, rows.o))
    error = o - golden
    odds = error.square().sum((0, 2, 3)) / (weights(rows).square() @ rows.v.square()).sum((0, 2, 3))  # (heads,)
    along = ((error * golden).sum() / golden.square().sum()).abs().item()
    mean = odds.mean().item()
    if not LEAST_ODDS < mean < 20 or (odds - mean).abs().max() > ALIKE * mean or along > NEAR:
        return None
    return mean / (1 + mean)
