"""Errors beside Baseline's: over lengths, over shapes and masks, on inputs that make trouble; what counts."""

from collections.abc import Callable, Iterator

import pandas as pd

from attention_check.isolation.worker import UNSUPPORTED, Outcome
from attention_check.judge.findings import Finding, Severity, within
from attention_check.measure.draws import OF_LENGTHS, OF_SHAPES, worst_draws
from attention_check.measure.wrong_answers import FAR, furthest
from fa_lib.kernels.rule import ALLOWED
from fa_lib.numerics.confidence import interval

SIDE = 0.05  # ulp: outputs that are rounded once scatter by 0.29, so that a smaller mean shows over 33 outputs or more


def growth(lengths: pd.DataFrame) -> Iterator[Finding]:
    """How the error over Baseline's goes with N, for the format, inputs and number of queries where it is largest."""
    mean = _by_queries(lengths).groupby(["fmt", "distribution", "few", "n"]).times_max.mean().dropna().reset_index()
    groups = [rows for _, rows in mean.groupby(["fmt", "distribution", "few"], sort=False) if len(rows) > 1]
    if groups:
        rows = max(groups, key=lambda rows: rows.times_max.max())
        first, last = rows.iloc[0], rows.iloc[-1]
        where = dict(distribution=first.distribution, fmt=first.fmt, queries=int(first.few) or None, n=int(last.n))
        where |= dict(from_n=int(first.n), from_number=float(first.times_max))
        yield Finding("growth", Severity.REPORTED, where, last.times_max)


def _by_queries(lengths):
    """With a column few: queries, and 0 where they are as many as keys."""
    return lengths.assign(few=lengths.queries.where(lengths.queries < lengths.n, 0).astype(int))


def largest(lengths: pd.DataFrame) -> Iterator[Finding]:
    """The largest error over lengths, numbers of queries, formats and ordinary inputs."""
    calls = worst_draws(lengths, OF_LENGTHS, ALLOWED["o"])
    if calls.times_max.notna().any():
        worst = calls.loc[calls.times_max.idxmax()]
        yield Finding("error", within(worst.times_max, ALLOWED["o"]), place(worst), worst.times_max, ALLOWED["o"])
        yield from _chance(calls, "times_max", ALLOWED["o"], place)


def _chance(calls: pd.DataFrame, times: str, allowed: float, at: Callable[[pd.Series], dict]) -> Iterator[Finding]:
    """Calls that one draw alone would fail: the one that is furthest."""
    lucky = calls[(calls.alone > allowed) & (calls[times] <= allowed)]
    if len(lucky):
        worst = lucky.loc[lucky.alone.idxmax()]
        where = at(worst) | dict(draws=int(worst.draws), second=float(worst[times]))
        yield Finding("chance", Severity.REPORTED, where, worst.alone, allowed)


def place(row: pd.Series) -> dict:
    """Of a row of `examine.measure`; queries is None where they are as many as keys."""
    queries = int(row.queries) if row.queries < row.n else None
    return dict(distribution=row.distribution, fmt=row.fmt, n=int(row.n), queries=queries)


def over_shapes(shapes: pd.DataFrame) -> Iterator[Finding]:
    """The rule over shapes and masks: outputs count, gradients are reported, unless they are no gradients of attention.
    What is no answer counts, but for a refusal, which is no support."""
    if not len(shapes):
        return
    ran = shapes[shapes.outcome == Outcome.ANSWERED]
    for outcome, rows in shapes[~shapes.outcome.isin([Outcome.ANSWERED, *UNSUPPORTED])].groupby("outcome"):
        first = rows.iloc[0]
        where = dict(shape=first["shape"], fmt=first.fmt, outcome=outcome, problem=first.problem)
        yield Finding("problem", Severity.FAILS, where)
    for tensors, what in ((("o",), "outputs"), (("dq", "dk", "dv"), "gradients")):
        draws = ran[ran.tensor.isin(tensors)]
        if not len(draws):
            continue
        limit = draws.allowed.max()
        rows = worst_draws(draws, OF_SHAPES, limit)
        yield from _chance(
            rows, "ratio", limit, lambda call: {name: call[name] for name in ("shape", "head_dim", "fmt")}
        )
        failed = rows[rows.ratio > limit]
        counts = dict(failed=len(failed), of=len(rows))
        if not len(failed):
            yield Finding(what, Severity.PASSES, counts, rows.ratio.max(), limit)
            continue
        worst = failed.loc[failed.ratio.idxmax()]
        where = counts | dict(tensor=worst.tensor, shape=worst["shape"], fmt=worst.fmt)
        severity = Severity.FAILS if what == "outputs" else Severity.REPORTED
        yield Finding(what, severity, where, worst.ratio, limit)
        wrong = wrong_gradients(failed, "ratio", limit) if what == "gradients" else failed[:0]
        if len(wrong):
            worst = furthest(wrong)
            where = {name: worst[name] for name in ("tensor", "shape", "fmt")} | dict(head_dim=int(worst.head_dim))
            yield Finding("wrong_gradient", Severity.FAILS, where, worst.relative, FAR)


def wrong_gradients(rows: pd.DataFrame, times: str, limit: float) -> pd.DataFrame:
    """The rows of gradients that are not attention's: more than FAR off, and beyond the rule of three, as Baseline's
    own may be that far off where a gradient nearly cancels. NaN is beyond both.

    Args:
        times: the column of the largest error over Baseline's. limit: up to which that is within the rule.
    """
    return rows[~(rows[times] <= limit) & ~(rows.relative <= FAR)]


def problems(table: pd.DataFrame) -> Iterator[Finding]:
    """A kernel that raises on inputs of a table of `examine.measure` does not support them; anything else fails."""
    for outcome, rows in table[table.outcome != Outcome.ANSWERED].groupby("outcome"):
        severity = Severity.REPORTED if outcome in UNSUPPORTED else Severity.FAILS
        where = place(rows.iloc[0]) | dict(outcome=outcome, problem=rows.problem.iloc[0])
        yield Finding("problem", severity, where)


def on_trouble(inputs: pd.DataFrame) -> Iterator[Finding]:
    """The worst of the inputs that make trouble, and the bias that is furthest from Baseline's."""
    if not inputs.times_max.notna().any():
        return
    worst = inputs.groupby(["fmt", "distribution"]).times_max.mean().dropna().sort_values()
    fmt, distribution = worst.index[-1]
    yield Finding("worst_input", Severity.REPORTED, dict(fmt=fmt, distribution=distribution), worst.iloc[-1])
    groups = inputs.groupby(["fmt", "distribution"])
    level, sure = 1 - 0.05 / len(groups), []  # each group is a chance to find one
    for at, rows in groups:
        mean, low, high = interval(rows.outwards, level)
        if (low > 0 or high < 0) and abs(mean) >= SIDE:
            sure.append((at, mean, low, high, rows.baseline_outwards[rows.outwards.notna()].mean()))
    if sure:
        (fmt, distribution), mean, low, high, baseline = max(sure, key=lambda one: abs(one[1] - one[4]))
        where = dict(fmt=fmt, distribution=distribution, low=float(low), high=float(high), baseline=float(baseline))
        yield Finding("outwards", Severity.REPORTED, where, mean, SIDE)
