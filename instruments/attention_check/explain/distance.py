"""How far an output is from a dialect, in a sample or in all rows: over its bound, Baseline's error, and its size."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attention_check.conventions.attention import SOFTMAX_OVER, Dialect, Rows, weights
from attention_check.conventions.reading import ENOUGH, UNITS, CapturedCall, spread
from attention_check.conventions.search import NEAR, Fit, fit
from attention_check.tolerance import tolerance
from fa_lib.kernels.rule import ALLOWED
from fa_lib.numerics.metrics import over_baseline

EVEN = 8.0  # times the median row's error, of the worst row, where errors are spread evenly over rows
ROWS = 16  # rows, at least, whose factors tell how far row sums are off
BOUNDS = 30.0  # times the bound, up to which the rule of two may call an error rounding: eager code rounds more
ALIKE = 1.25  # times Baseline's root mean square error: the same arithmetic, in another order
PRODUCTS = 5e9  # multiplications of q k^T and P v together, for which all rows are looked at: some seconds
FEWEST_ROWS = 16  # of each head, where all are too many
SCORES = 2**23  # that are held at a time


@dataclass(frozen=True, eq=False)
class Distance:
    """How far rows of an output are from a dialect.

    Attributes:
        call: the call. rows: sampled ones, with what they should be where a row does not count. fit: of them.
        times_bound: the largest error over its bound; None where there is none. times_rule: over Baseline's largest.
        of_rows: root mean square, over rows, of the error along a row of the output, over Baseline's: that of a wrong
            row sum is all there, and small in each value. 0 with fewer than ROWS rows.
        nan_rows, hidden_nan, blind_rows: as of an Explanation. rounding: the residual of an error that is rounding.
    """

    call: CapturedCall
    rows: Rows
    fit: Fit
    times_bound: float | None
    times_rule: float
    of_rows: float
    nan_rows: int
    hidden_nan: int
    blind_rows: str
    rounding: float

    @classmethod
    def of(cls, call: CapturedCall, dialect: Dialect) -> "Distance":
        """Raises Unfit where the shapes make no call in the dialect."""
        rows = call.rows(dialect)
        over, (rule, own, of_rows) = over_bound(rows, call), _beside_baseline(rows, call)
        bound = None if over is None else over.nan_to_num(0.0).max().item()
        nan, hidden, blind = int(rows.nan.sum()), int(rows.hidden_nan.sum()), _blind(rows)
        rows = replace(rows, o=rows.o.where(rows.counted[..., None], rows.golden))
        rounding = max(call.rounding(dialect), ENOUGH * own)
        return cls(call, rows, fit(rows), bound, rule, of_rows, nan, hidden, blind, rounding)

    def is_same(self, other: "Distance") -> bool:
        """Whether the dialect is another name of the other one, as of a window that shows what a causal mask does; or
        differs in rows alone that are not finite, which show nothing of it."""
        own, others = (torch.stack([each.rows.golden, each.rows.o]) for each in (self, other))
        if own.shape != others.shape:
            return False
        finite = (own.isfinite() & others.isfinite()).all(-1, keepdim=True)
        return torch.equal(own.where(finite, 0.0), others.where(finite, 0.0))

    @property
    def residual(self) -> float:
        return self.fit.residual

    @property
    def is_rounding(self) -> bool:
        """Within its derived bound, or about as near as attention written out step by step."""
        return not self.nan_rows and not self.hidden_nan and self.times_bound is not None and self.holds

    @cached_property
    def holds(self) -> bool:
        """Whether the rows that count are within rounding of the dialect, or near enough where it has no bound. Where a
        kernel declares its precision, the bound alone decides."""
        units = UNITS * self.call.fmt.unit_roundoff
        if self.times_bound is None:
            return self.residual <= (self.rounding if self.rows.dialect.part else units)
        by_rule = self.times_rule <= ALLOWED["o"] and self.residual <= self.rounding and self.call.declared is None
        if self.times_bound <= 1 or not by_rule or self.of_rows > ALLOWED["o"]:
            return self.times_bound <= 1
        if self.times_bound <= BOUNDS and of_terms(self.rows) <= units:
            return True
        own = replace(self.rows, o=self.call.baseline(self.rows) * self.rows.dialect.factor)
        far = over_bound(own, self.call)
        assert far is not None  # the dialect has a bound
        most = max(ALLOWED["o"] * far.nan_to_num(0.0).max().item(), BOUNDS)
        return self.times_bound <= most and of_terms(self.rows) <= max(ALIKE * of_terms(own), units)

    @property
    def is_counted(self) -> bool:
        """Whether most rows see a key, or those that see none hold nothing that is strange."""
        counted = self.fit.residual_by_row.isfinite().double().mean().item()
        return counted >= 0.5 or self.blind_rows != "other"

    @property
    def is_even(self) -> bool:
        """Whether no row is much worse than most."""
        counted = self.fit.counted
        return bool(counted.max() <= EVEN * counted.median().clamp(min=1e-300))

    @cached_property
    def scan(self) -> "Scan":
        """All rows of all heads, or evenly spread ones where these are too many; the sampled ones where the softmax is
        over another dimension than keys."""
        places = places_of(self.call, self.rows)
        residuals, errors, nan_rows, hidden = [], [], 0, 0
        for rows in parts(self.call, self.rows, places):
            golden = rows.golden
            nan_rows, hidden = nan_rows + int(rows.nan.sum()), hidden + int(rows.hidden_nan.sum())
            residual = fit(rows).residual_by_row.masked_fill(rows.nan | rows.hidden_nan, math.inf)
            residuals.append(residual.flatten())
            size = golden.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-300)
            off = ((rows.o - golden).abs() / size).nan_to_num(math.inf).float()
            errors.append(off.reshape(-1, golden.shape[-1]))
        shape = tuple(len(at) for at in places)
        return Scan(
            torch.cat(residuals).reshape(shape), torch.cat(errors).reshape(*shape, -1), nan_rows, hidden, places
        )


def of_terms(rows: Rows) -> float:
    """The root mean square of the error of rows.o over that of the larger of the output and of the terms that it sums,
    before they cancel."""
    golden = rows.golden
    terms = rows.dialect.factor**2 * (weights(rows).square() @ rows.v.nan_to_num(0.0, 0.0, 0.0).square())
    size, error = torch.maximum(golden.square(), terms), (rows.o - golden).square()
    error, size = (x.where(rows.counted[..., None], 0.0).sum() for x in (error, size))
    return (error / size).sqrt().nan_to_num(0.0).item()


def over_bound(rows: Rows, call: CapturedCall) -> Tensor | None:
    """The largest error of each row over its bound (`attention_check.tolerance`), (entries, heads, rows), NaN where a
    row does not count; None where the dialect has no bound."""
    if not rows.dialect.is_standard or not rows.q.numel():
        return None
    tensors = (x.nan_to_num(0.0, 0.0, 0.0).to(call.q.dtype) for x in (rows.q, rows.k, rows.v))  # of rows that count
    about = tolerance(*tensors, precision=call.precision, **rows.options())
    counted = rows.counted
    o = (rows.o / rows.dialect.factor).where(counted[..., None], about.golden)
    return torch.cat(about.times(o), -1).amax(-1).where(counted, math.nan)


def _beside_baseline(rows, call):
    """The largest error of a head over Baseline's largest there, in the worst head; Baseline's residual on these rows;
    and `Distance.of_rows`."""
    counted = rows.counted[..., None]
    if not rows.dialect.is_standard or not rows.q.numel() or not counted.any():
        return math.inf, 0.0, 0.0
    own, golden = call.baseline(rows), rows.golden / rows.dialect.factor
    errors = [(x - golden).where(counted, 0.0) for x in (rows.o / rows.dialect.factor, own)]
    ours, baseline = (error.abs().amax((2, 3)).flatten().tolist() for error in errors)
    size = golden.where(counted, 0.0).square().sum()
    residual = (errors[1].square().sum() / size).sqrt().nan_to_num(0.0, 0.0).item()
    along = [((error * golden).sum(-1) / golden.square().sum(-1).clamp(min=1e-300))[rows.counted] for error in errors]
    first, other = (x.square().sum().sqrt().item() for x in along)
    of_rows = first / other if other and len(along[0]) >= ROWS else 0.0
    return max(over_baseline(a, b) for a, b in zip(ours, baseline)), residual, of_rows


def _blind(rows):
    """What rows hold that see no key."""
    seen = rows.seen[..., 0]
    if seen.all():
        return ""
    found, mean = (x[~seen] for x in (rows.o, rows.v.mean(2, keepdim=True).expand_as(rows.o)))
    if not found.isfinite().all():
        return "nan"
    if not found.any():
        return "zero"
    return "mean" if (found - mean).square().mean() <= NEAR**2 * mean.square().mean() else "other"


@dataclass(frozen=True)
class Scan:
    """Rows of all entries and heads.

    Attributes:
        residual_by_row: their relative residuals (`search.Fit`), (batch, heads, rows); NaN where a row does not count,
            and infinite where o is finite and should not be, or is not and should be.
        errors: |o - attention| over the root mean square of the row of attention, (batch, heads, rows, d_v), float32.
        nan_rows: those that are not finite though they should be. hidden_nan: those that are, and should not be.
        places: the indices of entries, heads and rows.
    """

    residual_by_row: Tensor
    errors: Tensor
    nan_rows: int
    hidden_nan: int
    places: tuple[Tensor, Tensor, Tensor]


def places_of(call: CapturedCall, sample: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """The indices of entries, heads and rows that are looked at."""
    if sample.dialect.softmax in SOFTMAX_OVER:
        return sample.places
    entries, heads, rows = call.at or [torch.arange(count) for count in sample.shape[:3]]
    products = len(entries) * len(heads) * sample.shape[3] * (call.q.shape[-1] + call.v.shape[-1])
    return entries, heads, rows[spread(len(rows), max(int(PRODUCTS / max(products, 1)), FEWEST_ROWS))]


def parts(call: CapturedCall, sample: Rows, places: tuple[Tensor, Tensor, Tensor]) -> Iterator[Rows]:
    """The rows at places, of one head after the other; all sampled ones together where the softmax couples them."""
    if sample.dialect.softmax in SOFTMAX_OVER:
        yield call.rows(sample.dialect)
        return
    entries, heads, rows_at = places
    chunk = max(SCORES // sample.shape[3], 1)
    for entry in entries.split(1):
        for head in heads.split(1):
            for part in rows_at.split(chunk):
                yield call.rows(sample.dialect, places=(entry, head, part))
