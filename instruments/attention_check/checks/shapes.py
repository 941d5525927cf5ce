"""The rule over shapes and masks: outputs and gradients, over Baseline's."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from attention_check.checks.errors import chance
from attention_check.conventions.low_bits import baseline_in
from attention_check.isolation.calls import KernelError, with_kernel_errors
from attention_check.isolation.worker import UNSUPPORTED, Outcome
from attention_check.judge.findings import Finding, Severity
from attention_check.measure.capability import ALL_CAPABILITIES, PAST_THE_END, Capabilities, crashed, kernel_fn
from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.draws import OF_SHAPES, redraw_failures, worst_draws
from attention_check.measure.measurements import Measurements
from attention_check.measure.wrong_answers import FAR, furthest
from fa_lib.kernels.kernel_ref import KernelRef, in_table
from fa_lib.kernels.rule import ALLOWED, CALLS, Case, exact, rule_rows


def measure_shapes(
    shape: str, head_dim: int, distribution: str, fmt: str, seed: int, kernel: KernelRef | str | Callable,
    device: str = "cpu", able: Capabilities = ALL_CAPABILITIES, arithmetic: str = "",
) -> list[dict]:  # fmt: skip
    """A cell: `rule` of one kernel, whatever it does: rows of that, or one with what it did instead.

    Returns:
        rows: those of `rule`, and outcome and problem, as `call_kernel` has them; of gradients that it has not, one of
        dQ, where what it raises is no refusal.
    """
    fn, found = with_kernel_errors(kernel_fn(kernel, able.causal)), []
    for gradients in (True, False) if able.gradients else (False,):
        case = Case(shape, head_dim, distribution, fmt, seed, gradients, device)
        try:
            rows = rule_rows(fn, case, exact(case, baseline_in(arithmetic, fmt)))
            return found + [row | dict(kernel=in_table(kernel), outcome=Outcome.ANSWERED, problem="") for row in rows]
        except KernelError as error:
            failed = dict(ratio=math.nan, passed=None, outcome=error.outcome, problem=str(error))
            found = [dict(tensor="dq") | failed] if crashed(str(error)) else []
    return [dict(tensor="o") | failed]


def calls_of(shapes: Sequence[str], head_dims: Sequence[int], formats: Sequence[str], seed: int) -> list[dict]:
    """List the calls of `measure_shapes`, in which each shape has each head_dim, in one format after the other, so that
    every two of a shape, a head_dim and a format meet; in all formats where head_dims are too few for that."""
    turns = len(formats) if len(head_dims) >= len(formats) else 1
    return [
        dict(shape=shape, head_dim=head_dim, fmt=fmt, seed=seed)
        for j, head_dim in enumerate(head_dims) for i, fmt in enumerate(formats)
        for at, shape in enumerate(shapes) if (at + j - i) % turns == 0
    ]  # fmt: skip


def measured(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Measure errors over shapes and masks: rows of `measure_shapes`."""
    fixed: dict[str, Any] = dict(distribution="normal", device=checked.device, arithmetic=checked.plan.arithmetic)
    fixed |= dict(kernel=checked.way.kernel)

    def redrawn(call, seeds):
        own = dict(shape=call["shape"], head_dim=int(call.head_dim), fmt=call.fmt)
        able = replace(checked.way.able, gradients=False)
        return checked.table(measure_shapes, [own | dict(seed=seed) for seed in seeds], able=able, **fixed)

    plan, causal = checked.plan, checked.way.able.causal
    shapes = [shape for shape in plan.shapes if CALLS[shape].options.get("causal") or not causal]
    calls = calls_of(shapes, sorted({checked.way.head_dim, *plan.head_dims}), checked.judged, plan.first_seed)
    table = checked.table(measure_shapes, calls, able=checked.way.able, **fixed)
    if not len(table):
        return table
    outputs, others = table[table.tensor == "o"], table[table.tensor != "o"]
    table = pd.concat([redraw_failures(outputs, OF_SHAPES, ALLOWED["o"], redrawn), others], ignore_index=True)
    asked = checked.way.asked
    answered = {*asked.asked[asked.outcome == Outcome.ANSWERED]}
    takes = table["shape"].map({
        shape: {*call.options, *(["gqa"] if call.heads != call.kv_heads else [])} <= answered
        for shape, call in CALLS.items()
    })  # fmt: skip
    outcome = table.outcome.mask(takes & table.problem.map(crashed), Outcome.MALFORMED)
    return table.assign(outcome=outcome.mask(~takes & table.problem.str.contains(PAST_THE_END), Outcome.REFUSED))


def judged(shapes: pd.DataFrame) -> Iterator[Finding]:
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
        yield from chance(
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
        wrong = failed[~(failed.relative <= FAR)]  # NaN, too; Baseline's own is that far off where one nearly cancels
        if what == "gradients" and len(wrong):
            worst = furthest(wrong)
            where = {name: worst[name] for name in ("tensor", "shape", "fmt")} | dict(head_dim=int(worst.head_dim))
            yield Finding("wrong_gradient", Severity.FAILS, where, worst.relative, FAR)


def counted(found: Measurements) -> pd.DataFrame:
    """Select the rows of `shapes` that count: where a causal mask is aligned top-left, those that this leaves as they
    are."""
    if not found.top_left or not len(found.shapes):
        return found.shapes
    calls = found.shapes["shape"].map(CALLS)
    return found.shapes[[not call.options.get("causal") or call.n_q == call.n_kv for call in calls]]
