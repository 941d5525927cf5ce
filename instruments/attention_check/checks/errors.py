"""Errors over Baseline's: over lengths, formats and numbers of queries, and on inputs that make trouble."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from attention_check.isolation.calls import call_kernel
from attention_check.isolation.worker import UNSUPPORTED, Outcome
from attention_check.judge.findings import Finding, Severity, within
from attention_check.measure.capability import crashed, kernel_fn
from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.draws import OF_LENGTHS, SIDE, redraw_failures, surely_broken, worst_draws
from attention_check.measure.measurements import Measurements
from attention_check.measure.reference_cache import (
    ORDINARY,
    TROUBLE,
    Inputs,
    bias_away_from_zero,
    bits,
    fitted,
    reference_values,
)
from fa_lib.kernels.inputs import UNEVEN
from fa_lib.kernels.kernel_ref import KernelRef, in_table
from fa_lib.kernels.rule import ALLOWED
from fa_lib.numerics.confidence import interval
from fa_lib.numerics.formats import Format
from fa_lib.numerics.metrics import deviation, over_baseline

NUMBERS = ("max", "rmse", "relative", "times_max", "times_rmse", "factor", "by_factor", "outwards", "bits")


def measure(kernel: KernelRef | str | Callable, inputs: Inputs) -> dict[str, Any]:
    """Measure the error of a kernel, and Baseline's, to the golden value from the same rounded inputs.

    Returns:
        a row of `lengths` or `inputs`, whose columns data/columns.csv explains. Where there is a problem the numbers
        are NaN.
    """
    fmt, (q, k, v) = Format.of(inputs.fmt), inputs.tensors()
    reference = reference_values(inputs)
    golden, (base_max, base_rmse, base_bias) = reference["golden"], reference["baseline"].tolist()
    answer = call_kernel(kernel_fn(kernel, inputs.causal), q, k, v)
    numbers = dict.fromkeys(NUMBERS, math.nan)
    if answer.outcome == Outcome.ANSWERED:
        o = answer.output[..., inputs.rows(), :].cpu()
        d = deviation(o, golden, fmt)
        factor, by_factor = fitted(o, golden)
        numbers = dict(
            max=d.max, rmse=d.rmse, relative=d.relative, times_max=over_baseline(d.max, base_max),
            times_rmse=over_baseline(d.rmse, base_rmse), factor=factor, by_factor=by_factor,
            outwards=bias_away_from_zero(o, golden, fmt), bits=bits(o, fmt),
        )  # fmt: skip
    answered = dict(outcome=answer.outcome, problem=answer.problem, finite=answer.finite)
    return dict(queries=q.shape[-2], kernel=in_table(kernel)) | numbers | dict(baseline_outwards=base_bias) | answered


def over_lengths(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Measure errors over N, formats, numbers of queries and draws: rows of `measure`. Further draws, and lengths that
    are drawn at random, the longest among them, are left out where a kernel fails at the first draws."""

    def again(call: pd.Series, seeds: range) -> pd.DataFrame:
        return _measured(checked, [replace(inputs_of(call), seed=seed) for seed in seeds])

    plan, rng = checked.plan, random.Random(checked.plan.drawn_seed)
    lengths = [] if plan.drawn_seed is None else [rng.randint(*ends) for ends in plan.drawn]
    seeds = range(plan.first_seed, plan.first_seed + plan.seeds)
    table = _in_any_order(checked, _ordinary(checked, plan.lengths, seeds[:1]), rng)
    others = _ordinary(checked, plan.lengths, seeds[1:]) + _ordinary(checked, lengths, [plan.drawn_seed])
    if others and not surely_broken(table, OF_LENGTHS, ALLOWED["o"]):
        table = pd.concat([table, _in_any_order(checked, others, rng)], ignore_index=True)
    return redraw_failures(table, OF_LENGTHS, ALLOWED["o"], again)


def on_trouble(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Measure errors on inputs that make trouble: rows of `measure`."""
    names = [name for name in TROUBLE if name != UNEVEN or not checked.top_left]
    seeds = range(checked.plan.first_seed, checked.plan.first_seed + checked.plan.bias_seeds)
    return _measured(checked, _drawn(checked, names, checked.plan.troubled_n, [None], seeds))


def _measured(checked, inputs: Sequence[Inputs]) -> pd.DataFrame:
    return checked.table(measure, [dict(inputs=each) for each in inputs], kernel=checked.way.kernel)


def _in_any_order(checked, inputs: Sequence[Inputs], rng: random.Random) -> pd.DataFrame:
    """Rows of Inputs in their order, measured in an order that is drawn at random, so that a kernel does not know it;
    the formats of one draw stay together."""
    size = len(checked.judged)
    blocks = [range(start, start + size) for start in range(0, len(inputs), size)]
    if checked.plan.drawn_seed is not None:
        rng.shuffle(blocks)
    order = [i for block in blocks for i in block]
    return _measured(checked, [inputs[i] for i in order]).set_axis(order).sort_index()


def _ordinary(checked, lengths, seeds) -> list[Inputs]:
    """Make the Inputs of `over_lengths`."""
    few, every = checked.queries, (*checked.queries, None)
    queries = {n: every if n <= checked.plan.square else few for n in lengths}
    return [each for n in queries for each in _drawn(checked, ORDINARY, n, queries[n], seeds)]


def _drawn(checked, distributions, n, queries, seeds) -> list[Inputs]:
    """Make the Inputs of n keys, the formats of one draw next to each other. queries: None is as many as keys."""
    way = checked.way
    settings: dict[str, Any] = dict(head_dim=way.head_dim, causal=way.able.causal, device=checked.device)
    settings |= dict(arithmetic=checked.plan.arithmetic)
    return [
        Inputs(fmt, distribution, n, seed, n_q, **settings)
        for distribution in distributions for n_q in queries for seed in seeds for fmt in checked.judged
    ]  # fmt: skip


def inputs_of(row: pd.Series) -> Inputs:
    """The Inputs of a row of `measure`."""
    settings: dict[str, Any] = {name: int(row[name]) for name in ("n", "seed", "head_dim")}
    settings |= dict(causal=bool(row.causal), device=row.device, arithmetic=row.arithmetic)
    return Inputs(row.fmt, row.distribution, queries=int(row.queries) if row.queries < row.n else None, **settings)


def growth(lengths: pd.DataFrame) -> Iterator[Finding]:
    """How the error over Baseline's goes with N, for the format, inputs and number of queries where it is largest."""
    few = lengths.queries.where(lengths.queries < lengths.n, 0).astype(int)  # 0: as many as keys
    mean = lengths.assign(few=few).groupby(["fmt", "distribution", "few", "n"]).times_max.mean().dropna().reset_index()
    groups = [rows for _, rows in mean.groupby(["fmt", "distribution", "few"], sort=False) if len(rows) > 1]
    if groups:
        rows = max(groups, key=lambda rows: rows.times_max.max())
        first, last = rows.iloc[0], rows.iloc[-1]
        where = dict(distribution=first.distribution, fmt=first.fmt, queries=int(first.few) or None, n=int(last.n))
        where |= dict(from_n=int(first.n), from_number=float(first.times_max))
        yield Finding("growth", Severity.REPORTED, where, last.times_max)


def largest(lengths: pd.DataFrame) -> Iterator[Finding]:
    """The largest error over lengths, numbers of queries, formats and ordinary inputs."""
    calls = worst_draws(lengths, OF_LENGTHS, ALLOWED["o"])
    if calls.times_max.notna().any():
        worst = calls.loc[calls.times_max.idxmax()]
        yield Finding("error", within(worst.times_max, ALLOWED["o"]), place(worst), worst.times_max, ALLOWED["o"])
        yield from chance(calls, "times_max", ALLOWED["o"], place)


def chance(calls: pd.DataFrame, times: str, allowed: float, at: Callable[[pd.Series], dict]) -> Iterator[Finding]:
    """Calls that one draw alone would fail: the one that is furthest. times: the column of what counts."""
    lucky = calls[(calls.alone > allowed) & (calls[times] <= allowed)]
    if len(lucky):
        worst = lucky.loc[lucky.alone.idxmax()]
        where = at(worst) | dict(draws=int(worst.draws), second=float(worst[times]))
        yield Finding("chance", Severity.REPORTED, where, worst.alone, allowed)


def place(row: pd.Series) -> dict:
    """Of a row of `measure`; queries is None where they are as many as keys."""
    queries = int(row.queries) if row.queries < row.n else None
    return dict(distribution=row.distribution, fmt=row.fmt, n=int(row.n), queries=queries)


def problems(table: pd.DataFrame) -> Iterator[Finding]:
    """A kernel that refuses inputs of a table of `measure` does not support them; anything else fails."""
    bad = table[table.outcome != Outcome.ANSWERED]
    for (outcome, crash), rows in bad.groupby(["outcome", bad.problem.map(crashed)]):
        severity = Severity.REPORTED if outcome in UNSUPPORTED and not crash else Severity.FAILS
        where = place(rows.iloc[0]) | dict(outcome=outcome, problem=rows.problem.iloc[0])
        yield Finding("problem", severity, where)


def biased(inputs: pd.DataFrame) -> Iterator[Finding]:
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
