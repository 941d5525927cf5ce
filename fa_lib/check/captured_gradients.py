"""A captured call's gradients: how far a kernel's dQ, dK and dV are from the golden value's, for the dO that came."""

import math
from collections.abc import Iterator
from functools import partial

import pandas as pd
import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.check.attempt import KernelError, guarded
from fa_lib.check.diagnose import FAR
from fa_lib.check.findings import Finding, Severity
from fa_lib.experiments.rule import ALLOWED, yardstick
from fa_lib.formats import Format
from fa_lib.metrics import deviation, over_baseline

TENSORS = ("dq", "dk", "dv")


def gradients(q: Tensor, k: Tensor, v: Tensor, dO: Tensor, options: dict, kernel: str) -> list[dict]:
    """How far the gradients of one kernel are from the golden value's.

    Args:
        q, k, v, dO: (batch, heads, sequence, head_dim), of a Capture. options: of a kernel.

    Returns:
        rows, one of TENSORS each: tensor, max and relative (of the Deviation), times_max (over Baseline's), outcome and
        problem (of `attempt`). A kernel without gradients is one row that says why, its numbers NaN.
    """

    def of(fn, dtype):
        given = [x.detach().to(dtype, copy=True).requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(fn(*given, **options), given, dO.to(dtype))

    fmt = Format.of(q.dtype)
    try:
        own = of(guarded(kernels.plain(kernel)), q.dtype)
    except KernelError as error:
        none = dict.fromkeys(("max", "relative", "times_max"), math.nan)
        return [dict(tensor="", **none, outcome=error.outcome, problem=str(error))]
    golden, baseline = of(partial(kernels.golden, inputs=fmt), torch.float64), of(yardstick(fmt), q.dtype)
    rows = []
    for tensor, x, exact, base in zip(TENSORS, own, golden, baseline):
        d = deviation(x, exact, fmt)
        times = over_baseline(d.max, deviation(base, exact, fmt).max)
        rows.append(dict(tensor=tensor, max=d.max, relative=d.relative, times_max=times, outcome="yes", problem=""))
    return rows


def of_gradients(table: pd.DataFrame) -> Iterator[Finding]:
    """What is found in a table of `gradients`: as in the judgement of a kernel, a gradient beyond the rule of three is
    told, and one that is another gradient counts against it."""
    if not len(table):
        return
    if (table.outcome != "yes").any():
        yield Finding("captured_gradients", Severity.NOTES, dict(problem=table.problem.iloc[0]))
        return
    wrong = table[~(table.relative <= FAR)]  # NaN too
    if len(wrong):
        worst = wrong.loc[wrong.relative.fillna(math.inf).idxmax()]
        where = dict(tensor=worst.tensor, wrong=True)
        yield Finding("captured_gradients", Severity.FAILS, where, worst.relative, FAR)
        return
    worst = table.loc[table.times_max.idxmax()]
    limit = ALLOWED[worst.tensor]
    severity = Severity.PASSES if worst.times_max <= limit else Severity.NOTES
    yield Finding("captured_gradients", severity, dict(tensor=worst.tensor), worst.times_max, limit)
