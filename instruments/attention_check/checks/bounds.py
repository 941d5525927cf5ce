"""A kernel's outputs and their own bounds, on every kind of inputs: where few keys have most of the weight, Baseline's
own error is large, and the rule of two allows another attention."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from torch import Tensor

from attention_check.isolation.calls import call_kernel
from attention_check.isolation.worker import Outcome
from attention_check.judge.findings import Finding, Severity
from attention_check.measure.capability import ALL_CAPABILITIES, Capabilities, kernel_fn
from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.closeness import BoundCheck, WorstCall
from attention_check.measure.measurements import Measurements
from attention_check.measure.mistakes import ROUNDINGS
from attention_check.measure.reference_cache import Inputs
from fa_lib.kernels.inputs import DISTRIBUTIONS, UNEVEN
from fa_lib.kernels.kernel_ref import KernelRef

BOUNDED = 128  # rows of a call that have a bound, spread evenly
OF_BOUND = ("judged", "distribution", "n", "rows", "of", "key", "same", "share", "fmt", "tiles", "factor")


def bounds(
    kernel: KernelRef | str | Callable, judged: str, n: int, seed: int, head_dim: int, device: str = "cpu",
    able: Capabilities = ALL_CAPABILITIES,
) -> list[dict]:  # fmt: skip
    """A cell: of all DISTRIBUTIONS, the one on which an output is furthest beyond its bound (`BoundCheck`).

    Args:
        judged: the format of inputs and output. n: keys, and queries. able: of the kernel: one that always masks,
            aligned top-left, is not asked for more keys than queries.

    Returns:
        one row, as `closeness.closeness`, with its distribution; rows and of count those of all DISTRIBUTIONS. No row
        where the kernel gave nothing that is finite.
    """
    fn, furthest = kernel_fn(kernel, able.causal), WorstCall()
    for distribution in DISTRIBUTIONS:
        if distribution == UNEVEN and able.causal and able.top_left:
            continue
        inputs = Inputs(judged, distribution, n, seed, head_dim=head_dim, causal=able.causal, device=device)
        answer = call_kernel(fn, *inputs.tensors())
        if answer.outcome == Outcome.ANSWERED:
            tensors, options = _bounded(inputs)
            check = BoundCheck.of(answer.output[..., inputs.rows(BOUNDED).to(device), :], *tensors, options)
            furthest.add(check, distribution=distribution)
    return furthest.table()


def _bounded(inputs) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]:
    """The tensors and options of a call of these rows alone."""
    (q, k, v), rows = inputs.tensors(), inputs.rows(BOUNDED)
    if len(rows) == q.shape[-2]:
        return (q, k, v), dict(causal=inputs.causal)
    return (q[..., rows.to(q.device), :], k, v), inputs.options(rows, k.shape[-2])


def measured(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Compare outputs with their own bounds: rows of `bounds`. There are none in fewer bits than the format's."""
    settings: list[dict[str, Any]] = [
        dict(judged=fmt, n=checked.plan.troubled_n, seed=checked.plan.first_seed)
        for fmt in checked.judged if not checked.plan.arithmetic
    ]  # fmt: skip
    return checked.table(bounds, settings, able=checked.way.able, **checked.call)


def judged(close: pd.DataFrame, kernel: str) -> Iterator[Finding]:
    """A finding for each row of `closeness` or `bounds` that is beyond its bound, or one for the row that is
    nearest to it.

    Beyond its bound, with the very error of another attention, an output fails: the rule does not see that where
    Baseline's own error is large, as where few keys have most of the weight. Beyond it with the error of a rounding, or
    of nothing that was tried, it is reported: a kernel that carries less than FP32 is beyond it, too."""
    rows = close.sort_values("times", ascending=False).to_dict("records") if len(close) else []
    for row in [each for each in rows if each["times"] > 1] or rows[:1]:
        where = dict(kernel=kernel) | {name: x for name, x in row.items() if name in OF_BOUND}
        if row["times"] <= 1:
            yield Finding("bound", Severity.PASSES, where, row["times"], 1.0)
        elif row["same"] and row["key"] not in ROUNDINGS:
            yield Finding("mistake", Severity.FAILS, where, row["times"], 1.0)
        else:
            yield Finding("bound", Severity.REPORTED, where, row["times"], 1.0)
