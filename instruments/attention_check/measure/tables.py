"""Every table of `Measurements`, measured of a kernel: it is called, never read; whatever it does becomes a row."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from torch import Tensor

from attention_check.conventions.low_bits import baseline_in
from attention_check.isolation.calls import KernelError, call_kernel, with_kernel_errors
from attention_check.isolation.worker import Outcome
from attention_check.measure.capability import ALL_CAPABILITIES, PAST_THE_END, Capabilities, crashed, kernel_fn
from attention_check.measure.carry import carried, carry
from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.closeness import bounded_inputs, bounds, tolerance_of
from attention_check.measure.determinism import repeats
from attention_check.measure.draws import (
    BIAS_DRAWS,
    OF_LENGTHS,
    OF_SHAPES,
    certainly_unbiased,
    redraw_failures,
    surely_broken,
    undecided,
    worst_draws,
)
from attention_check.measure.measurements import Measurements
from attention_check.measure.reference_cache import (
    TROUBLE,
    WORST,
    Inputs,
    bias_away_from_zero,
    bits,
    fitted,
    reference_values,
)
from attention_check.measure.reference_worker import compute
from attention_check.measure.relations import relate
from attention_check.measure.rounding_mode import rounding_mode
from attention_check.measure.split_keys import SPLITS, rounded_splits
from fa_lib.execution.sweep import expand
from fa_lib.kernels.inputs import UNEVEN
from fa_lib.kernels.kernel_ref import KernelRef, in_table
from fa_lib.kernels.rule import ALLOWED, CALLS, Case, exact, rule_rows
from fa_lib.numerics.formats import Format
from fa_lib.numerics.metrics import deviation, over_baseline
from fa_lib.theory.worst_inputs import worst_inputs

NUMBERS = ("max", "rmse", "relative", "times_max", "times_rmse", "factor", "by_factor", "outwards", "bits")


def over_lengths(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Measure errors over N, formats, numbers of queries and draws: rows of `measure`. A call
    is drawn until it is certainly within the rule (`draws`), and at most as often as the plan says. Lengths that are
    drawn at random, the longest among them, are left out where a kernel fails at those of the plan."""

    def measured(inputs: Sequence[Inputs]) -> pd.DataFrame:
        return checked.sweep(measure, dict(inputs=[*inputs]), names=[checked.kernel])

    def again(call: pd.Series, seeds: range) -> pd.DataFrame:
        return measured([replace(_inputs(call), seed=seed) for seed in seeds])

    inputs, order = checked.over_lengths()
    planned = [i for i in order if inputs[i].n in checked.plan.lengths]
    table = measured([inputs[i] for i in planned]).set_axis(planned)
    others = [] if surely_broken(table, OF_LENGTHS, ALLOWED["o"]) else [i for i in order if i not in {*planned}]
    if others:
        table = pd.concat([table, measured([inputs[i] for i in others]).set_axis(others)])
    table = table.sort_index().reset_index(drop=True)
    for _ in range(1, checked.plan.seeds):
        calls = undecided(table[table.n.isin(checked.plan.lengths)], ALLOWED["o"])
        if not len(calls):
            break
        more = [_inputs(call) for _, call in calls.iterrows()]
        table = pd.concat([table, measured([replace(each, seed=each.seed + 1) for each in more])], ignore_index=True)
    return redraw_failures(table, OF_LENGTHS, ALLOWED["o"], again)


def sums(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Measure what it carries from tile to tile: rows of `carry`."""
    grid = dict(
        fmt=[fmt for fmt in checked.judged if fmt != "FP32"] or ["BF16"],
        queries=[count for count in checked.sum_queries if count <= checked.plan.square],
    )
    return checked.sweep(carry, checked.call | grid, causal=checked.able.causal)


def over_shapes(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Measure errors over shapes and masks: rows of `measure_shapes`."""

    def rows(grid, able=checked.able):
        call = checked.call | dict(distribution="normal", arithmetic=checked.plan.arithmetic)
        return checked.sweep(measure_shapes, call | grid, able=able)

    def redrawn(call, seeds):
        grid = {name: call[name] for name in ("shape", "fmt")} | dict(head_dim=int(call.head_dim), seed=[*seeds])
        return rows(grid, replace(checked.able, gradients=False))

    table = shapes_table(_grids(checked), rows, redrawn)
    if not len(table):
        return table
    asked = checked.way.asked
    answered = {*asked.asked[asked.outcome == Outcome.ANSWERED]}
    calls = {shape: CALLS[shape] for shape in table["shape"].unique()}
    takes = table["shape"].map({
        shape: {*call.options, *(["gqa"] if call.heads != call.kv_heads else [])} <= answered
        for shape, call in calls.items()
    })  # fmt: skip
    outcome = table.outcome.mask(takes & table.problem.map(crashed), Outcome.MALFORMED)
    return table.assign(outcome=outcome.mask(~takes & table.problem.str.contains(PAST_THE_END), Outcome.REFUSED))


def on_trouble(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Measure errors on inputs that make trouble: rows of `measure`. Inputs are drawn BIAS_DRAWS times, and as often as
    the plan says where that leaves a doubt whether outputs are biased (`draws.certainly_unbiased`)."""
    few = min(BIAS_DRAWS, checked.plan.bias_seeds)
    table = checked.sweep(measure, dict(inputs=_troubled(checked, few)), names=[checked.kernel])
    in_doubt = {at for at, rows in table.groupby(["fmt", "distribution"]) if not certainly_unbiased(rows.outwards)}
    rest = _troubled(checked, checked.plan.bias_seeds - few, checked.plan.first_seed + few)
    more = [each for each in rest if (each.fmt, each.distribution) in in_doubt]
    if not more:
        return table
    return pd.concat([table, checked.sweep(measure, dict(inputs=more), names=[checked.kernel])], ignore_index=True)


def within_bounds(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Compare outputs with their own bounds: rows of `bounds`. There are none in fewer bits than the format's."""
    if checked.plan.arithmetic:
        return pd.DataFrame()
    grid = dict(judged=[*checked.judged], n=checked.plan.troubled_n, seed=checked.plan.first_seed)
    return checked.sweep(bounds, checked.call | grid, able=checked.able)


def splits(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Emulate rounded splits where the kernel is at its worst, if that needs a cause: rows of `rounded_splits`."""
    calls = worst_draws(found.lengths[found.lengths.fmt != "FP32"], OF_LENGTHS, ALLOWED["o"])
    clean = all(one["low"] is not True for one in carried(found.sums))
    if not clean or not len(calls) or not (calls.times_max > ALLOWED["o"]).any():
        return pd.DataFrame()
    grid = dict(splits=[*SPLITS], low_merge=[False, True], kernel=checked.kernel)
    return checked.sweep(rounded_splits, grid, inputs=_inputs(calls.loc[calls.times_max.idxmax()]))


def same_call(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Make one call again and again: rows of `repeats`."""
    return checked.sweep(repeats, checked.call | dict(fmt=checked.judged[0], runs=checked.plan.runs), able=checked.able)


def relations(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Ask for what every kernel keeps: rows of `relate`."""
    plan = checked.plan
    if not plan.relations:
        return pd.DataFrame()
    of = dict(key=[*plan.relations], fmt=[*checked.judged[: plan.related_formats]])
    grid = of | dict(seed=plan.first_seed, n=plan.related_n, arithmetic=plan.arithmetic)
    return checked.sweep(relate, checked.call | grid, able=checked.able)


def casts(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """See how its casts round: rows of `rounding_mode`."""
    grid = checked.call | dict(fmt=[*checked.cast_formats])
    return checked.sweep(rounding_mode, grid, causal=checked.able.causal)


def _grids(checked):
    """Of `over_shapes`: the shapes that the kernel has."""
    plan, causal = checked.plan, checked.able.causal
    shapes = [shape for shape in plan.shapes if CALLS[shape].options.get("causal") or not causal]
    return grids_of(shapes, sorted({checked.way.head_dim, *plan.head_dims}), checked.judged, plan.first_seed)


def _troubled(checked, draws, first=None):
    """Inputs of `on_trouble`."""
    names = [name for name in TROUBLE if name != UNEVEN or not checked.top_left]
    return checked.inputs_for(names, checked.plan.troubled_n, [None], draws, first)


def reference_tasks(checked: CheckedKernel) -> list[tuple]:
    """List the reference values that the tables of most kernels `compute`, each once, in their order. Others
    are computed as well, without gradients where a kernel has none for example."""
    plan, able, device = checked.plan, checked.able, checked.device
    inputs, order = checked.over_lengths()
    order = sorted(order, key=lambda i: inputs[i].n not in plan.lengths)  # stable: as `over_lengths` measures them
    tasks: list[tuple] = [(reference_values, inputs[i]) for i in order]
    normal = [each for each in inputs if each.n in plan.lengths and each.distribution == "normal"]
    more = range(1, plan.seeds)  # draws: uniform inputs decide at once
    tasks += [(reference_values, replace(each, seed=each.seed + i)) for i in more for each in normal]
    call: dict[str, Any] = dict(distribution="normal", gradients=able.gradients and not plan.arithmetic, device=device)
    call |= dict(arithmetic=plan.arithmetic)
    tasks += [(exact_of, Ruled(**cell, **call)) for grid in _grids(checked) for cell in expand(grid)]
    for each in _troubled(checked, min(BIAS_DRAWS, plan.bias_seeds)):
        if each.distribution == WORST:  # they are searched for, before anything is computed on them
            tasks.append((worst_inputs, each.n, each.seed, each.head_dim))
        tasks.append((reference_values, each))
    for fmt in () if plan.arithmetic else checked.judged:
        bounded = bounded_inputs(fmt, plan.troubled_n, plan.first_seed, checked.way.head_dim, device, able)
        tasks += [(tolerance_of, each) for each in bounded]
    return [*dict.fromkeys(tasks)]


def _inputs(row):
    """Of a row of `measure`."""
    settings: dict[str, Any] = {name: int(row[name]) for name in ("n", "seed", "head_dim")}
    settings |= dict(causal=bool(row.causal), device=row.device, arithmetic=row.arithmetic)
    return Inputs(row.fmt, row.distribution, queries=int(row.queries) if row.queries < row.n else None, **settings)


def measure(names: Sequence[KernelRef | str | Callable], inputs: Inputs) -> list[dict]:
    """A cell: the errors of kernels, and Baseline's, to the golden value from the same rounded inputs.

    Returns:
        rows, one a kernel: queries, kernel, max, rmse and relative (of the Deviation), times_max and times_rmse (over
        Baseline's on the same outputs), factor and by_factor (`reference_cache.fitted`), bits (`reference_cache.bits`),
        outwards (`reference_cache.bias_away_from_zero`) and baseline_outwards (Baseline's own); outcome and problem
        (of `call_kernel`), and finite: False where the output holds NaN or infinite values. Where there is a problem
        the numbers are NaN.
    """
    fmt, (q, k, v) = Format.of(inputs.fmt), inputs.tensors()
    reference, rows = compute(reference_values, inputs), []
    golden, (base_max, base_rmse, base_bias) = reference["golden"], reference["baseline"].tolist()
    for kernel in names:
        answer = call_kernel(kernel_fn(kernel, inputs.causal), q, k, v)
        numbers = dict.fromkeys(NUMBERS, math.nan)
        if answer.outcome == Outcome.ANSWERED:
            o = answer.output[..., inputs.rows(), :].cpu()
            d = deviation(o, golden, fmt)
            times = dict(times_max=over_baseline(d.max, base_max), times_rmse=over_baseline(d.rmse, base_rmse))
            factor, by_factor = fitted(o, golden)
            numbers = dict(max=d.max, rmse=d.rmse, relative=d.relative) | times
            numbers |= dict(
                factor=factor, by_factor=by_factor, outwards=bias_away_from_zero(o, golden, fmt), bits=bits(o, fmt)
            )
        outcome = dict(baseline_outwards=base_bias, outcome=answer.outcome, problem=answer.problem)
        outcome |= dict(finite=answer.finite)
        rows.append(dict(queries=q.shape[-2], kernel=in_table(kernel)) | numbers | outcome)
    return rows


def grids_of(shapes: Sequence[str], head_dims: Sequence[int], formats: Sequence[str], seed: int) -> list[dict]:
    """Grids of `measure_shapes`, in which each shape has each head_dim, in one format after the other, so that every
    two of a shape, a head_dim and a format meet; in all formats where head_dims are too few for that."""
    turns = len(formats) if len(head_dims) >= len(formats) else 1
    return [
        dict(shape=own, head_dim=[head_dim], fmt=[fmt], seed=seed)
        for j, head_dim in enumerate(head_dims) for i, fmt in enumerate(formats)
        if (own := [shape for at, shape in enumerate(shapes) if (at + j - i) % turns == 0])
    ]  # fmt: skip


def shapes_table(grids: Sequence[dict], over: Callable, again: Callable) -> pd.DataFrame:
    """A table of `measure_shapes`, of over(grid) for each of `grids_of`. again: as of `redraw_failures`, of outputs."""
    if not grids:
        return pd.DataFrame()
    rows = pd.concat([over(grid) for grid in grids], ignore_index=True)
    outputs, others = rows[rows.tensor == "o"], rows[rows.tensor != "o"]
    return pd.concat([redraw_failures(outputs, OF_SHAPES, ALLOWED["o"], again), others], ignore_index=True)


@dataclass(frozen=True)
class Ruled(Case):
    """A Case, and the arithmetic of Baseline, as of `low_bits.baseline_in`."""

    arithmetic: str = ""


def exact_of(case: Ruled) -> dict[str, Tensor]:
    """`rule.exact` of a Case, with the errors of its Baseline."""
    return exact(case, baseline_in(case.arithmetic, case.fmt))


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
        case = Ruled(shape, head_dim, distribution, fmt, seed, gradients, device, arithmetic)
        try:
            rows = rule_rows(fn, case, compute(exact_of, case))
            return found + [row | dict(kernel=in_table(kernel), outcome=Outcome.ANSWERED, problem="") for row in rows]
        except KernelError as error:
            failed = dict(ratio=math.nan, passed=None, outcome=error.outcome, problem=str(error))
            found = [dict(tensor="dq") | failed] if crashed(str(error)) else []
    return [dict(tensor="o") | failed]


MEASURED = {  # table of Measurements -> what measures it, in their order
    "lengths": over_lengths, "sums": sums, "shapes": over_shapes, "inputs": on_trouble, "bounds": within_bounds,
    "splits": splits, "repeats": same_call, "relations": relations, "rounding": casts,
}  # fmt: skip
