"""Is an output rounding or a bug, and why: which attention it is, in which arithmetic, and where it is wrong."""

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fa_lib.check.dialect.attention import SOFTMAX_OVER, Dialect, Rows, attend
from fa_lib.check.dialect.conventions import BY_CHOICE, Kind
from fa_lib.check.dialect.evidence import Evidence, spread
from fa_lib.check.dialect.reading import Reader, Unfit
from fa_lib.check.dialect.search import (
    FEW,
    NEAR,
    PART,
    SIMPLER,
    UNITS,
    Fit,
    Standing,
    dropout,
    first_keys,
    fit,
    fitted_factor,
    fitted_window,
    rounding_of,
    search,
)  # fmt: skip
from fa_lib.check.explain.arithmetic import NOT_ARITHMETIC, computation
from fa_lib.check.explain.scan import Scan, scan
from fa_lib.check.explain.verdict import Explanation, Verdict
from fa_lib.check.explain.whereabouts import Whereabouts, whereabouts
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.rule import ALLOWED, baseline_for
from fa_lib.numerics.formats import Format
from fa_lib.numerics.metrics import over_baseline
from fa_lib.theory.tolerance import tolerance

EVEN = 8.0  # times the median row's error, of the worst row, where errors are spread evenly over rows
UNLIKE = 4.0  # times the worst sampled row's error: a row that is none of them
BOUNDS = 30.0  # times the bound, up to which the rule of two may call an error rounding: eager code rounds more
COARSE = 0.4  # a residual of 4 bits; with more, no arithmetic is looked for
SHOWN = 8  # dialects that were tried, the nearest
CANDIDATES = 20  # dialects that are tried on the wrong part
EXPLAINS = 0.9  # of the wrong rows, that are right in another dialect
WRONG = 8.0  # times the root mean square error of right rows, at least; and twice what is rounding


def explanation(evidence: Evidence) -> Explanation:
    """Explain an output.

    Raises:
        Unfit: the tensors make no call of attention in any layout.
    """
    outcome = _Numbers.of(evidence, Dialect()) if _fits(evidence, Dialect()) else None
    if outcome is not None and outcome.is_rounding and outcome.is_counted:
        return _everywhere(evidence, outcome, Verdict.ROUNDING, outcome.residual)
    fits = search(evidence)
    nearest = sorted(fits, key=lambda each: each.residual)[:SHOWN]
    tried = tuple((each.dialect.changes(), each.residual) for each in nearest)
    return replace(_not_as_believed(evidence, outcome, fits), tried=tried)


def _not_as_believed(evidence: Evidence, outcome: "_Numbers | None", fits: list[Fit]) -> Explanation:
    """Explain an output that is no rounding as believed.

    Args:
        outcome: of the believed dialect; None where its shapes make no call. fits: of `search`.
    """
    if outcome is None and not any(math.isfinite(each.residual) for each in fits):
        raise Unfit("q, k, v and o: their shapes make no call of attention in any layout that is tried")
    best = fits[0].dialect
    if fits[0].residual > rounding_of(evidence, best):
        best = _fitted(evidence, fits[0])
    numbers = outcome if outcome and best == Dialect() else _Numbers.of(evidence, best)
    believed = outcome.residual if outcome else math.inf
    if numbers.nan_rows or numbers.hidden_nan:
        return _not_finite(scan(evidence, numbers.rows), numbers, believed)
    if numbers.is_rounding or numbers.is_right:
        return _everywhere(evidence, numbers, _of_conventions(best), believed)
    if numbers.residual <= COARSE:
        found = computation(numbers.rows, evidence.fmt, Format.of(evidence.o.dtype))
        if found and found.key in NOT_ARITHMETIC and not numbers.is_even:  # of the worst head alone
            found = None
        if found or numbers.is_even and numbers.residual <= NEAR:
            wrong = found and found.key in NOT_ARITHMETIC or _of_conventions(best) == Verdict.BUG
            verdict = Verdict.BUG if wrong else Verdict.PRECISION
            return _everywhere(evidence, numbers, verdict, believed, found)
    for dialect in dict.fromkeys((Dialect(), best) if outcome else (best,)):
        if fits[0].share < PART and (share := dropout(Reader(evidence).rows(dialect))):
            return _Numbers.of(evidence, dialect).explained(Verdict.BUG, believed, dropout=share)
    if numbers.residual > NEAR and fits[0].share < PART:  # no dialect is near: what the nearest one is says nothing
        numbers = outcome or numbers
    value = evidence.o.flatten()[0].item()
    if not math.isnan(value) and (evidence.o == value).all():
        return numbers.explained(Verdict.BUG, believed, constant=value)
    found = scan(evidence, numbers.rows)
    where, part = _located(evidence, found, numbers, fits)
    more = dict(rows=(found.count, numbers.count))
    return replace(numbers.explained(Verdict.BUG, believed, where=where, part=part), **more)


def _everywhere(evidence, numbers, verdict, believed, arithmetic=None):
    """The verdict on the sampled rows, where all others are like them; else BUG, and where it is."""
    found, counted = scan(evidence, numbers.rows), numbers.fit.counted
    worst = counted.max().item() if counted.numel() else 0.0
    if found.nan_rows or found.hidden_nan:
        return _not_finite(found, numbers, believed)
    more = dict(rows=(found.count, numbers.count))
    if (found.of_rows > max(UNLIKE * worst, numbers.rounding)).any():
        where, part = _located(evidence, found, numbers, [])
        return replace(numbers.explained(Verdict.BUG, believed, where=where, part=part), **more)
    return replace(numbers.explained(verdict, believed, arithmetic=arithmetic), **more)


def _not_finite(found: Scan, numbers: "_Numbers", believed: float) -> Explanation:
    """An output that is not finite where it should be, or the other way; and where."""
    wrong = found.of_rows.isinf()[..., None].expand_as(found.errors)
    (batch, heads, n_q, _), features = numbers.rows.shape, wrong.shape[-1]
    where = whereabouts(wrong, found.places, (batch, heads, n_q, features))
    counts = dict(rows=(found.count, numbers.count), nan_rows=found.nan_rows, hidden_nan=found.hidden_nan)
    return replace(numbers.explained(Verdict.BUG, believed, where=where), **counts)


def _fits(evidence, dialect):
    try:
        Reader(evidence, (1, 1, 1)).rows(dialect)
    except Unfit:
        return False
    return True


def _fitted(evidence, nearest):
    """The nearest dialect, or it with some keys alone, a window, or a factor, where that is right."""
    found = [nearest]
    for change in (first_keys, fitted_window, fitted_factor):
        dialect = change(evidence, nearest.dialect)
        found.append(fit(Reader(evidence).rows(dialect)))
    best = min(found, key=lambda each: each.residual)
    return best.dialect if best.residual <= min(NEAR, nearest.residual / SIMPLER) else nearest.dialect


def _of_conventions(dialect: Dialect) -> Verdict:
    """The verdict on an output that is right in a dialect."""
    changes = dialect.changes()
    named = {change: BY_CHOICE[change].kind for change in changes.items() if change in BY_CHOICE}
    fitted = changes.keys() - {aspect for aspect, _ in named} - {"window"}  # keys, or a factor: nobody means them
    if fitted or Kind.FAULT in named.values():
        return Verdict.BUG
    return Verdict.CONVENTION if changes else Verdict.ROUNDING


@dataclass(frozen=True)
class _Numbers:
    """How far an output is from a dialect."""

    rows: Rows
    fit: Fit
    fmt: Format
    times_bound: float | None
    times_rule: float
    nan_rows: int
    hidden_nan: int
    blind_rows: str
    count: int
    rounding: float  # residual of an error that is rounding

    @classmethod
    def of(cls, evidence: Evidence, dialect: Dialect) -> "_Numbers":
        rows = Reader(evidence).rows(dialect)
        golden = attend(rows)
        standing, blind = Standing.of(rows, golden), _blind(rows)
        rows = replace(rows, o=rows.o.where(standing.counted[..., None], golden))
        return cls(
            rows, fit(rows, golden), evidence.fmt, *_times(rows, evidence, golden), int(standing.nan.sum()),
            int(standing.hidden_nan.sum()), blind, evidence.o.shape[:-1].numel(), rounding_of(evidence, dialect),
        )  # fmt: skip

    @property
    def residual(self) -> float:
        return self.fit.residual

    @property
    def is_rounding(self) -> bool:
        """Within its derived bound, or about as near as attention written out step by step."""
        if self.nan_rows or self.hidden_nan:
            return False
        if self.times_bound is None:
            return False
        by_rule = self.times_rule <= ALLOWED["o"] and self.residual <= self.rounding
        return self.times_bound <= 1 or self.times_bound <= BOUNDS and by_rule

    @property
    def is_counted(self) -> bool:
        """Whether most rows see a key, or those that see none hold nothing that is strange."""
        counted = self.fit.of_rows.isfinite().double().mean().item()
        return counted > 0 and (counted >= 0.5 or self.blind_rows != "other")

    @property
    def is_right(self) -> bool:
        """Near enough, in a dialect that has no bound."""
        return self.times_bound is None and self.residual <= UNITS * self.fmt.unit_roundoff

    @property
    def is_even(self) -> bool:
        """Whether no row is much worse than most."""
        counted = self.fit.counted
        return bool(counted.max() <= EVEN * counted.median().clamp(min=1e-300))

    def explained(self, verdict: Verdict, believed: float | None = None, **more: Any) -> Explanation:
        looked_at = self.fit.of_rows.numel()
        return Explanation(
            verdict, self.rows.dialect.changes(), self.fmt.name, self.times_bound, self.times_rule, self.residual,
            self.residual if believed is None else believed, nan_rows=self.nan_rows, hidden_nan=self.hidden_nan,
            blind_rows=self.blind_rows, rows=(looked_at, self.count), **more,
        )  # fmt: skip


def _times(rows, evidence, golden):
    """The largest error over its bound, None where there is none, and over Baseline's."""
    fmt, error, options = evidence.fmt, (rows.o - golden).abs(), rows.options()
    q, k, v = (x.nan_to_num(0.0, 0.0, 0.0).to(fmt.dtype) for x in (rows.q, rows.k, rows.v))
    if not rows.dialect.is_standard or not q.numel() or not golden[rows.seen[..., 0]].isfinite().all():
        return None, math.inf
    own = baseline_for(fmt)(q, k, v, **options).double()
    seen = rows.seen
    baseline = (own - golden / rows.dialect.factor).abs().where(seen, 0.0).amax((2, 3)).flatten()  # of each head
    largest = error.where(seen, 0.0).amax((2, 3)).flatten() / abs(rows.dialect.factor)
    rule = max(over_baseline(a, b) for a, b in zip(largest.tolist(), baseline.tolist()))
    if rows.dialect.factor != 1:
        return None, rule
    precision = replace(Precision.kernel(fmt), output=Format.of(evidence.o.dtype))
    about = tolerance(q, k, v, precision=precision, **options)
    outputs, along = about.times(rows.o.where(seen, about.golden))
    return max(outputs.max().item(), along.max().item()), rule


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


def _located(
    evidence: Evidence, found: Scan, numbers: _Numbers, fits: list[Fit]
) -> tuple[Whereabouts | None, dict[str, Any] | None]:
    """The wrong part of an output, and the dialect in which it is right."""
    least, (batch, heads, n_q, _) = numbers.rounding, numbers.rows.shape
    wrong_rows = _wrong(found.of_rows, least)
    if not wrong_rows.any() or wrong_rows[found.of_rows.isfinite()].all():
        return None, None
    wrong = (found.errors > 3 * least) & wrong_rows[..., None]
    where = whereabouts(wrong, found.places, (batch, heads, n_q, wrong.shape[-1]))
    at = [indices.unique() for indices in wrong_rows.nonzero(as_tuple=True)]
    entries, heads_at, rows_at = (
        each[on_axis[spread(len(on_axis), most)]] for each, on_axis, most in zip(found.places, at, FEW)
    )
    places = entries, heads_at, rows_at
    others = sorted(fits, key=lambda each: (len(each.dialect.changes()), each.residual))[:CANDIDATES]
    for each in others:
        same = each.dialect == numbers.rows.dialect
        if same or each.dialect.layout != numbers.rows.dialect.layout or each.dialect.softmax in SOFTMAX_OVER:
            continue  # in another layout the places are other values
        try:
            other = fit(Reader(evidence, places=places).rows(each.dialect)).of_rows
        except Unfit:
            continue
        if (other <= NEAR).double().mean() >= EXPLAINS:
            return where, each.dialect.changes()
    return where, None


def _wrong(of_rows: Tensor, least: float) -> Tensor:
    """Rows whose relative error is far above that of most, and no rounding."""
    finite = of_rows[of_rows.isfinite()]
    lowest = finite.quantile(0.1).item() if 0 < finite.numel() < 2**24 else 0.0
    return of_rows > max(WRONG * lowest, 2 * least)
