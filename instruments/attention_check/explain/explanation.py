"""Is an output rounding or a bug, and why: which attention it is, in which arithmetic, and where it is wrong."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.attention import SOFTMAX_OVER, Dialect, attend
from attention_check.conventions.conventions import BY_CHOICE, Kind
from attention_check.conventions.evidence import Evidence, spread
from attention_check.conventions.reading import Reader, Unfit
from attention_check.conventions.search import (  # fmt: skip
    FEW,
    NEAR,
    PART,
    SIMPLER,
    UNITS,
    Fit,
    dropout,
    first_keys,
    fit,
    fitted_factor,
    fitted_heads,
    fitted_window,
    rounding_of,
    search,
)
from attention_check.explain.arithmetic import NOT_ARITHMETIC, computation
from attention_check.explain.distance import Distance, over_bound
from attention_check.explain.scan import Scan, scan
from attention_check.explain.verdict import Explanation, Verdict
from attention_check.explain.whereabouts import Whereabouts, whereabouts
from fa_lib.numerics.formats import Format

UNLIKE = 4.0  # times the median row's error: a row that is looked at again; times the sample's: that is none of it
SUSPECTS = 256  # rows of a head, at most, that are looked at again
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
    outcome = Distance.of(evidence, Dialect()) if _fits(evidence, Dialect()) else None
    if outcome is not None and outcome.is_rounding and outcome.is_counted:  # or no row counts, and none is strange
        return _everywhere(evidence, outcome, Verdict.ROUNDING, outcome.residual)
    fits = search(evidence)
    nearest = sorted(fits, key=lambda each: each.residual)[:SHOWN]
    tried = tuple((each.dialect.changes(), each.residual) for each in nearest)
    return replace(_not_as_believed(evidence, outcome, fits), tried=tried)


def _not_as_believed(evidence: Evidence, outcome: Distance | None, fits: list[Fit]) -> Explanation:
    """Explain an output that is no rounding as believed.

    Args:
        outcome: of the believed dialect; None where its shapes make no call. fits: of `search`.
    """
    if outcome is None and not any(each.of_rows.numel() for each in fits):
        raise Unfit("q, k, v and o: their shapes make no call of attention in any layout that is tried")
    best = fits[0].dialect
    if fits[0].residual > rounding_of(evidence, best):
        best = _fitted(evidence, fits[0])
    numbers = outcome if outcome and best == Dialect() else Distance.of(evidence, best)
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
            return Distance.of(evidence, dialect).explained(Verdict.BUG, believed, dropout=share)
    if numbers.residual > NEAR and fits[0].share < PART:  # no dialect is near: what the nearest one is says nothing
        numbers = outcome or numbers
    value = evidence.o.flatten()[0].item()
    if not math.isnan(value) and (evidence.o == value).all():
        return numbers.explained(Verdict.BUG, believed, constant=value)
    found = scan(evidence, numbers.rows)
    where, part = _located(evidence, found, _wrong(found.of_rows, numbers.rounding), numbers, fits)
    return numbers.explained(Verdict.BUG, believed, found.count, where=where, part=part)


def _everywhere(evidence, numbers, verdict, believed, arithmetic=None):
    """The verdict on the sampled rows, where all others are like them; else BUG, and where it is."""
    found = scan(evidence, numbers.rows)
    if found.nan_rows or found.hidden_nan:
        return _not_finite(found, numbers, believed)
    wrong = _beyond(evidence, found, numbers)
    if wrong.any():
        where, part = _located(evidence, found, wrong, numbers, [])
        return numbers.explained(Verdict.BUG, believed, found.count, where=where, part=part)
    return numbers.explained(verdict, believed, found.count, arithmetic=arithmetic)


def _not_finite(found: Scan, numbers: Distance, believed: float) -> Explanation:
    """An output that is not finite where it should be, or the other way; and where."""
    wrong = found.of_rows.isinf()[..., None].expand_as(found.errors)
    (batch, heads, n_q, _), features = numbers.rows.shape, wrong.shape[-1]
    where = whereabouts(wrong, found.places, (batch, heads, n_q, features))
    counts = dict(nan_rows=found.nan_rows, hidden_nan=found.hidden_nan)
    return numbers.explained(Verdict.BUG, believed, found.count, where=where, **counts)


def _fits(evidence, dialect):
    try:
        Reader(evidence, (1, 1, 1)).rows(dialect)
    except Unfit:
        return False
    return True


def _fitted(evidence, nearest):
    """The nearest dialect, or it with some keys alone, a window, or a factor, where that is right."""
    found = [nearest]
    changed = [change(evidence, nearest.dialect) for change in (fitted_window, first_keys, fitted_heads, fitted_factor)]
    if _fits(evidence, Dialect()):
        changed.append(fitted_factor(evidence, Dialect()))
    found += [fit(Reader(evidence).rows(dialect)) for dialect in changed]
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


def _beyond(evidence: Evidence, found: Scan, numbers: Distance) -> Tensor:
    """Which rows of a scan are wrong where the sampled ones are not, bool like `found.of_rows`: their error is far
    above that of most, and beyond their bound as those of the sample are not."""
    finite = found.of_rows[found.of_rows.isfinite()]
    usual = finite.median().item() if finite.numel() else 0.0
    suspect = found.of_rows > max(UNLIKE * usual, numbers.fmt.unit_roundoff)
    if numbers.times_bound is None:
        worst = numbers.fit.counted.max().item() if numbers.fit.counted.numel() else 0.0
        return suspect & (found.of_rows > max(UNLIKE * worst, numbers.rounding))
    wrong, (entries, heads, rows_at) = torch.zeros_like(suspect), found.places
    for i, j in suspect.any(-1).nonzero().tolist():
        at = suspect[i, j].nonzero().flatten()
        at = at[spread(len(at), SUSPECTS)]
        rows = Reader(evidence, places=(entries[i : i + 1], heads[j : j + 1], rows_at[at])).rows(numbers.rows.dialect)
        over = over_bound(rows, attend(rows), evidence)
        if over is not None:
            wrong[i, j, at] = over[0, 0] > max(1.0, UNLIKE * numbers.times_bound)
    return wrong


def _located(
    evidence: Evidence, found: Scan, wrong_rows: Tensor, numbers: Distance, fits: list[Fit]
) -> tuple[Whereabouts | None, dict[str, Any] | None]:
    """The wrong part of an output, and the dialect in which it is right.

    Args:
        wrong_rows: bool, like `found.of_rows`. fits: of `search`.
    """
    if not wrong_rows.any() or wrong_rows[found.of_rows.isfinite()].all():
        return None, None
    least, (batch, heads, n_q, _) = min(numbers.rounding, UNITS * numbers.fmt.unit_roundoff), numbers.rows.shape
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
