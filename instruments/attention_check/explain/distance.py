"""How far an output is from a dialect: over its bound, over Baseline's error, over its size."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.attention import SOFTMAX_OVER, Dialect, Rows, weights
from attention_check.conventions.reading import CapturedCall, spread
from attention_check.conventions.search import ENOUGH, NEAR, UNITS, Fit, fit, rounding_of
from attention_check.explain.verdict import Explanation, Verdict
from attention_check.tolerance import tolerance
from fa_lib.kernels.rule import ALLOWED
from fa_lib.numerics.formats import Format
from fa_lib.numerics.metrics import over_baseline

EVEN = 8.0  # times the median row's error, of the worst row, where errors are spread evenly over rows
ROWS = 16  # rows, at least, whose factors tell how far row sums are off
BOUNDS = 30.0  # times the bound, up to which the rule of two may call an error rounding: eager code rounds more


@dataclass(frozen=True)
class Distance:
    """How far sampled rows of an output are from a dialect.

    Attributes:
        rows: with what they should be where a row does not count. fit: of them. fmt: of the inputs.
        times_bound: the largest error over its bound; None where there is none. times_rule: over Baseline's largest.
        nan_rows, hidden_nan, blind_rows: as of an Explanation. count: rows of the whole output.
        rounding: the residual of an error that is rounding. of_terms: the root mean square of the error over that of
            the larger of the output and of the terms that it sums, before they cancel. strict: the bound decides alone.
        of_rows: root mean square, over rows, of the error along a row of the output, over Baseline's: that of a wrong
            row sum is all there, and small in each value. 0 with fewer than ROWS rows.
    """

    rows: Rows
    fit: Fit
    fmt: Format
    times_bound: float | None
    times_rule: float
    nan_rows: int
    hidden_nan: int
    blind_rows: str
    count: int
    rounding: float
    of_terms: float
    strict: bool
    of_rows: float

    @classmethod
    def of(cls, call: CapturedCall, dialect: Dialect) -> "Distance":
        rows = call.rows(dialect)
        golden, counted, blind = rows.golden, rows.counted[..., None], _blind(rows)
        over, (rule, own, of_rows) = over_bound(rows, call), _beside_baseline(rows, call)
        nan, hidden = int(rows.nan.sum()), int(rows.hidden_nan.sum())
        bound = None if over is None else over.nan_to_num(0.0).max().item()
        rows = replace(rows, o=rows.o.where(counted, golden))
        rounding, count = max(rounding_of(call, dialect), ENOUGH * own), math.prod(rows.shape[:3])
        count = count if call.at is None else math.prod(map(len, call.at))
        terms = rows.dialect.factor**2 * (weights(rows).square() @ rows.v.nan_to_num(0.0, 0.0, 0.0).square())
        size = torch.maximum(golden.square(), terms).where(counted, 0.0).sum()
        error = (rows.o - golden).where(counted, 0.0).square().sum()
        off = (error / size).sqrt().nan_to_num(0.0).item()
        return cls(
            rows, fit(rows), call.fmt, bound, rule, nan, hidden, blind, count, rounding, off,
            call.declared is not None, of_rows,
        )  # fmt: skip

    @property
    def residual(self) -> float:
        return self.fit.residual

    @property
    def is_rounding(self) -> bool:
        """Within its derived bound, or about as near as attention written out step by step."""
        return not self.nan_rows and not self.hidden_nan and self.times_bound is not None and self.holds

    @property
    def holds(self) -> bool:
        """Whether the rows that count are within rounding of the dialect, or near enough where it has no bound."""
        if self.times_bound is None:
            return self.residual <= UNITS * self.fmt.unit_roundoff
        by_rule = self.times_rule <= ALLOWED["o"] and self.residual <= self.rounding
        by_rule = by_rule and not self.strict and self.of_rows <= ALLOWED["o"]
        by_rule = by_rule and self.of_terms <= UNITS * self.fmt.unit_roundoff
        return self.times_bound <= 1 or self.times_bound <= BOUNDS and by_rule

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

    def explained(
        self, verdict: Verdict, believed: float | None = None, looked_at: int | None = None, **more: Any
    ) -> Explanation:
        """An Explanation with these numbers, and more fields. believed: the residual as believed; None is this one.
        looked_at: rows; None are the sampled ones."""
        looked_at = self.fit.residual_by_row.numel() if looked_at is None else looked_at
        fields: dict[str, Any] = {name: getattr(self, name) for name in ("nan_rows", "hidden_nan", "blind_rows")} | more
        return Explanation(
            verdict, self.rows.dialect.changes(), self.fmt.name, self.times_bound, self.times_rule, self.residual,
            self.residual if believed is None else believed, rows=(looked_at, self.count), scale=self.rows.scale,
            **fields,
        )  # fmt: skip


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


PRODUCTS = 5e9  # multiplications of q k^T and P v together, for which all rows are looked at: some seconds
FEWEST_ROWS = 16  # of each head, where all are too many
SCORES = 2**23  # that are held at a time


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

    @property
    def count(self) -> int:
        return self.residual_by_row.numel()


def scan(call: CapturedCall, sample: Rows) -> Scan:
    """Look at all rows of all heads of a call in the dialect of a sample, or at evenly spread ones where these are too
    many; at the sampled ones where the softmax is over another dimension than keys."""
    places = places_of(call, sample)
    residuals, errors, nan_rows, hidden = [], [], 0, 0
    for rows in parts(call, sample, places):
        golden = rows.golden
        nan_rows, hidden = nan_rows + int(rows.nan.sum()), hidden + int(rows.hidden_nan.sum())
        residual = fit(rows).residual_by_row.masked_fill(rows.nan | rows.hidden_nan, math.inf)
        residuals.append(residual.flatten())
        size = golden.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-300)
        errors.append(((rows.o - golden).abs() / size).nan_to_num(math.inf).float().reshape(-1, golden.shape[-1]))
    shape = tuple(len(at) for at in places)
    return Scan(torch.cat(residuals).reshape(shape), torch.cat(errors).reshape(*shape, -1), nan_rows, hidden, places)


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
