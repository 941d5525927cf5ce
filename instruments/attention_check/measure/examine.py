"""Somebody's kernel f(q, k, v, causal=..., scale=...) examined from outside: what it can do, how far it is from the
golden value, what it carries from tile to tile. It is called, never read; whatever it does becomes a row of a table."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from attention_check.isolation.calls import call_kernel
from attention_check.isolation.worker import Outcome
from attention_check.measure.bounds import bounded_inputs, bounds, tolerance_of
from attention_check.measure.capability import CAUSAL_FEWER, FEWER, kernel_fn
from attention_check.measure.carry import QUERIES, carried, carry
from attention_check.measure.contract import formats
from attention_check.measure.determinism import repeats
from attention_check.measure.draws import OF_LENGTHS, drawn_again, worst_draws
from attention_check.measure.measurements import Measurements
from attention_check.measure.plan import QUICK, CheckPlan, of_one_query
from attention_check.measure.reference_cache import (
    ORDINARY,
    ROWS,
    TROUBLE,
    WORST,
    Inputs,
    bias_away_from_zero,
    bits,
    cache_in,
    cached,
    fitted,
    reference_values,
)
from attention_check.measure.relations import relate
from attention_check.measure.rounding_mode import rounding_mode
from attention_check.measure.second_process import compute_ahead, result
from attention_check.measure.shapes import cases_of, grids_of, measure_shapes, shapes_table
from attention_check.measure.split_keys import SPLITS, rounded_splits
from attention_check.measure.way import ONE_QUERY, way_of
from fa_lib import kernels
from fa_lib.execution.sweep import sweep
from fa_lib.kernels.inputs import UNEVEN
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.kernels.rule import ALLOWED, CALLS, exact
from fa_lib.numerics.formats import Format
from fa_lib.numerics.metrics import deviation, over_baseline
from fa_lib.theory.worst_inputs import worst_inputs

REFERENCE_KERNELS = ("as_shipped", "every_step")  # emulated kernels beside the growth of the error
FEW = (1, 16)  # queries that errors are measured at, beside as many as keys: decoding takes other paths
# of `measure`
NUMBERS = ("max", "rmse", "relative", "times_max", "times_rmse", "factor", "by_factor", "outwards", "bits")


def examine(
    kernel: KernelRef | str, depth: CheckPlan = QUICK, device: str = "cpu", cache: str = "",
    beside: Sequence[str] = REFERENCE_KERNELS,
) -> Measurements:  # fmt: skip
    """Everything that `judge_kernel` needs.

    Args:
        kernel: a KernelRef, or the text of one.
        cache: as `sweep`; golden values are kept there too, and serve every kernel.
        beside: kernels whose errors stand beside the growth of this one's; an empty list spares their time.

    Returns:
        What was measured in BF16 and FP16, else in FP32; where the kernel has none of them, all but `asked` is empty.
        Splits are tried where an error breaks the rule and no sum is carried in low precision.

    Raises:
        ValueError: there is no such kernel. An error of the kernel's is a row; any other error is ours, and is raised.
    """
    way = way_of(KernelRef.of(kernel), device, depth.asked_queries, depth.asked_head_dims)
    conventions, asked, head_dim, able = way.conventions, way.asked, way.head_dim, way.able
    kernel = way.kernel
    assert isinstance(kernel, KernelRef)  # as it was given
    alone = ONE_QUERY in conventions  # several queries are the same calls again
    depth = of_one_query(depth) if alone else depth
    can = formats(asked[asked.head_dim == head_dim])
    judged = [fmt for fmt in can if fmt in ("BF16", "FP16")] or [fmt for fmt in can if fmt == "FP32"]
    if not judged:
        return Measurements(conventions, asked)

    def over(cell, grid, **fixed):
        return sweep(cell, grid, fixed=fixed, uses=[kernels.get(kernel)], cache=cache)

    def on(distributions, lengths, queries, seeds, first=depth.first_seed):
        settings: dict[str, Any] = dict(head_dim=head_dim, causal=able.causal, device=device)
        return [
            Inputs(fmt, distribution, n, seed, n_q, **settings)
            for distribution in distributions for n in lengths for n_q in queries
            for seed in range(first, first + (min(seeds, 2) if n_q == 1 else seeds)) for fmt in judged  # of one draw
        ]  # fmt: skip

    fewer = asked.asked.isin((FEWER, CAUSAL_FEWER))
    top_left = able.causal and (asked.note[fewer] == "top_left").any()
    few_queries = () if top_left else FEW[:1] if alone else FEW  # aligned top-left they would see few keys
    trouble = [each for each in TROUBLE if each != UNEVEN or not top_left]
    shapes = [shape for shape in depth.shapes if CALLS[shape].options.get("causal") or not able.causal]
    own = dict(kernel=kernel, head_dim=head_dim, device=device)
    troubled = on(trouble, [depth.troubled_n], [None], depth.bias_seeds)
    with cache_in(cache):
        chance = random.Random(depth.drawn_seed)
        random_lengths = [] if depth.drawn_seed is None else [chance.randint(*each) for each in depth.drawn]
        settings = [(n, depth.seeds, depth.first_seed) for n in depth.lengths]
        settings += [(n, 1, depth.drawn_seed or 0) for n in random_lengths]
        asked_for = [
            each for n, seeds, first in settings
            for each in on(ORDINARY, [n], (*few_queries, None) if n <= depth.square else few_queries, seeds, first)
        ]  # fmt: skip
        order = _order(len(asked_for), len(judged), None if depth.drawn_seed is None else chance)
        in_order = [asked_for[i] for i in order]
        others = tuple(name for name in beside if name != f"{kernel}")
        emulated = [] if not others else [  # no row of theirs knows of another: fewer will do
            each for n in depth.lengths for each in on(ORDINARY, [n], [min(n, ROWS)], min(2, depth.seeds))
        ]  # fmt: skip
        grids = grids_of(shapes, sorted({head_dim, *depth.head_dims}), judged, depth.first_seed)
        bounded = [
            each for fmt in judged
            for each in bounded_inputs(fmt, depth.troubled_n, depth.first_seed, head_dim, device, able)
        ]  # fmt: skip
        compute_ahead(_tasks(in_order, others, emulated, cases_of(grids, device, able), troubled, bounded))
        lengths = over(measure, dict(inputs=in_order), names=[kernel])
        lengths = lengths.iloc[pd.Index(order).argsort()].reset_index(drop=True)
        lengths = drawn_again(lengths, OF_LENGTHS, ALLOWED["o"], lambda call, seeds: over(
            measure, dict(inputs=[replace(_inputs(call), seed=seed) for seed in seeds]), names=[kernel],
        ))  # fmt: skip
        if emulated:
            more = sweep(measure_emulated, dict(inputs=emulated), fixed=dict(names=others), cache=cache)
            lengths = pd.concat([lengths, more], ignore_index=True)

        def over_shapes(grid, able=able):
            return over(measure_shapes, dict(distribution="normal", kernel=kernel, device=device) | grid, able=able)

        def again(call, seeds):
            grid = {name: call[name] for name in ("shape", "fmt")} | dict(head_dim=int(call.head_dim), seed=[*seeds])
            return over_shapes(grid, replace(able, gradients=False))

        asked_at = [count for count in (QUERIES[:1] if alone else QUERIES) if count <= depth.square]
        formats_of_sums = [fmt for fmt in judged if fmt != "FP32"] or ["BF16"]
        sums = over(carry, own | dict(fmt=formats_of_sums, queries=asked_at), causal=able.causal)
        return Measurements(
            conventions=conventions,
            asked=asked,
            shapes=shapes_table(grids, over_shapes, again),
            lengths=lengths,
            inputs=over(measure, dict(inputs=troubled), names=[kernel]),
            bounds=over(bounds, own | dict(judged=judged, n=depth.troubled_n, seed=depth.first_seed), able=able),
            sums=sums,
            splits=_splits(kernel, lengths, sums, over),
            repeats=over(repeats, own | dict(fmt=judged[0], runs=depth.runs), able=able),
            relations=over(
                relate, own | dict(key=[*depth.relations], fmt=judged[: depth.related_formats], seed=depth.first_seed,
                                   n=depth.related_n), able=able,
            ) if depth.relations else pd.DataFrame(),
            rounding=over(rounding_mode, own | dict(fmt=[fmt for fmt in can if fmt != "FP64"]), causal=able.causal),
        )  # fmt: skip


def _tasks(asked_for, others, emulated, cases, troubled, bounded):
    """What an examination asks `result` for, each once, in that order."""
    tasks = [
        *((reference_values, each) for each in asked_for),
        *((measure, others, each) for each in emulated),
        *((exact, case) for case in cases),
    ]
    for each in troubled:
        if each.distribution == WORST:  # they are searched for, before anything is computed on them
            tasks.append((worst_inputs, each.n, each.seed, each.head_dim))
        tasks.append((reference_values, each))
    tasks += [(tolerance_of, each) for each in bounded]
    return [*dict.fromkeys(tasks)]


def _order(count, block, chance):
    """Numbers up to a count, their blocks in an order of chance: the formats of one draw stay together."""
    blocks = [range(at, at + block) for at in range(0, count, block)]
    if chance is not None:
        chance.shuffle(blocks)
    return [i for each in blocks for i in each]


def _inputs(row):
    """Of a row of `measure`."""
    numbers = {name: int(row[name]) for name in ("n", "seed", "head_dim")}
    queries = int(row.queries) if row.queries < row.n else None
    return Inputs(row.fmt, row.distribution, queries=queries, causal=bool(row.causal), device=row.device, **numbers)


def _splits(kernel, lengths, sums, over):
    """The table of `rounded_splits` where the kernel is at its worst, if that needs a cause."""
    own = lengths[(lengths.kernel == f"{kernel}") & (lengths.fmt != "FP32")]
    calls = worst_draws(own, OF_LENGTHS, ALLOWED["o"])
    clean = all(one["low"] is not True for one in carried(sums))
    if not clean or not len(calls) or not (calls.times_max > ALLOWED["o"]).any():
        return pd.DataFrame()
    inputs = _inputs(calls.loc[calls.times_max.idxmax()])
    return over(rounded_splits, dict(splits=[*SPLITS], low_merge=[False, True], kernel=kernel), inputs=inputs)


def measure_emulated(names: Sequence[str], inputs: Inputs) -> list[dict]:
    """A cell: `measure` of emulated kernels, which the second process may have called."""
    return result(measure, tuple(names), inputs)


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
    known_here, rows = cached(reference_values, inputs), []
    golden, (base_max, base_rmse, base_outwards) = known_here["golden"], known_here["baseline"].tolist()
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
        outcome = dict(baseline_outwards=base_outwards, outcome=answer.outcome, problem=answer.problem)
        outcome |= dict(finite=answer.finite)
        named = f"{kernel}" if isinstance(kernel, KernelRef) else kernel
        rows.append(dict(queries=q.shape[-2], kernel=named) | numbers | outcome)
    return rows
