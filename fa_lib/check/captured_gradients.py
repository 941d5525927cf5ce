"""A captured call's gradients: how far a kernel's dQ, dK and dV are from the golden value's, for the dO that came."""

import math
from collections.abc import Iterator
from functools import partial

import pandas as pd
import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.check.attempt import UNASKED, KernelError, guarded
from fa_lib.check.diagnose import FAR
from fa_lib.check.findings import Finding, Severity
from fa_lib.check.tensors import FINITE, yardstick_of
from fa_lib.experiments.rule import ALLOWED, yardstick
from fa_lib.formats import Format
from fa_lib.metrics import deviation, over_baseline

TENSORS = ("dq", "dk", "dv")
NUMBERS = ("max", "relative", "times_max")


def gradients(q: Tensor, k: Tensor, v: Tensor, dO: Tensor, options: dict, kernel: str) -> list[dict]:
    """How far the gradients of one kernel are from the golden value's.

    Args:
        q, k, v, dO: (batch, heads, sequence, head_dim), of a Capture. options: of a kernel.

    Returns:
        rows, one of TENSORS each: tensor, max and relative (of the Deviation), times_max (over Baseline's), yardstick
        (of `tensors.YARDSTICKS`; where it is not finite, the numbers are NaN), outcome and problem (of `attempt`). A
        kernel that gives no gradients is one row that says why.
    """

    def of(fn, dtype):
        given = [x.detach().to(dtype, copy=True).requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(fn(*given, **options), given, dO.to(dtype))

    fmt, none = Format.of(q.dtype), dict.fromkeys(NUMBERS, math.nan)
    try:
        own = of(guarded(kernels.plain(kernel)), q.dtype)
    except KernelError as error:
        return [dict(tensor="", **none, yardstick="", outcome=error.outcome, problem=str(error))]
    golden, baseline = of(partial(kernels.golden, inputs=fmt), torch.float64), of(yardstick(fmt), q.dtype)
    rows = []
    for tensor, x, exact, base in zip(TENSORS, own, golden, baseline):
        stick, largest, _ = yardstick_of(base, exact, fmt)
        numbers = none
        if stick == FINITE:
            d = deviation(x, exact, fmt)
            numbers = dict(max=d.max, relative=d.relative, times_max=over_baseline(d.max, largest))
        rows.append(dict(tensor=tensor) | numbers | dict(yardstick=stick, outcome="yes", problem=""))
    return rows


def of_gradients(table: pd.DataFrame) -> Iterator[Finding]:
    """What is found in a table of `gradients`: as in the judgement of a kernel, a gradient beyond the rule of three is
    told, and one that is another gradient counts against it. A gradient without a yardstick is told, and no other one
    passes beside it."""
    if not len(table):
        return
    if (table.outcome != "yes").any():
        row = table.iloc[0]
        severity = Severity.NOTES if row.outcome in ("no", UNASKED) else Severity.FAILS
        yield Finding("captured_gradients", severity, dict(problem=row.problem))
        return
    held, without = table[table.yardstick == FINITE], [*table.tensor[table.yardstick != FINITE]]
    if without:
        yield Finding("captured_gradients", Severity.NOTES, dict(without=without))
    wrong = held[~(held.relative <= FAR)]  # NaN too
    if len(wrong):
        worst = wrong.loc[wrong.relative.fillna(math.inf).idxmax()]
        where = dict(tensor=worst.tensor, wrong=True)
        yield Finding("captured_gradients", Severity.FAILS, where, worst.relative, FAR)
    elif len(held):
        worst = held.loc[held.times_max.idxmax()]
        limit = ALLOWED[worst.tensor]
        passes = worst.times_max <= limit and not without
        severity = Severity.PASSES if passes else Severity.NOTES
        yield Finding("captured_gradients", severity, dict(tensor=worst.tensor), worst.times_max, limit)
