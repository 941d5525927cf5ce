"""A captured call's gradients: how far a kernel's dQ, dK and dV are from the golden value's, for the dO that came."""

import math
from functools import partial

import torch
from torch import Tensor

from attention_check.isolation.calls import KernelError, with_kernel_errors
from attention_check.isolation.worker import Outcome
from attention_check.measure.captured import FINITE, yardstick_of
from fa_lib import kernels
from fa_lib.kernels.rule import baseline_for
from fa_lib.numerics.formats import Format
from fa_lib.numerics.metrics import deviation, over_baseline

TENSORS = ("dq", "dk", "dv")
NUMBERS = ("max", "relative", "times_max")


def gradients(q: Tensor, k: Tensor, v: Tensor, dO: Tensor, options: dict, kernel: str) -> list[dict]:
    """How far the gradients of one kernel are from the golden value's.

    Args:
        q, k, v, dO: (batch, heads, sequence, head_dim), of a Capture. options: of a kernel.

    Returns:
        rows, one of TENSORS each: tensor, max and relative (of the Deviation), times_max (over Baseline's), yardstick
        (of `captured.YARDSTICKS`; where it is not finite, the numbers are NaN), outcome and problem (of
        `call_kernel`). A kernel that gives no gradients is one row that says why.
    """

    def of(fn, dtype):
        inputs = [x.detach().to(dtype, copy=True).requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(fn(*inputs, **options), inputs, dO.to(dtype))

    fmt, none = Format.of(q.dtype), dict.fromkeys(NUMBERS, math.nan)
    try:
        own = of(with_kernel_errors(kernels.plain(kernel)), q.dtype)
    except KernelError as error:
        return [dict(tensor="", **none, yardstick="", outcome=error.outcome, problem=str(error))]
    golden, baseline = of(partial(kernels.golden, inputs=fmt), torch.float64), of(baseline_for(fmt), q.dtype)
    rows = []
    for tensor, x, exact, base in zip(TENSORS, own, golden, baseline):
        stick, largest, _ = yardstick_of(base, exact, fmt)
        numbers = none
        if stick == FINITE:
            d = deviation(x, exact, fmt)
            numbers = dict(max=d.max, relative=d.relative, times_max=over_baseline(d.max, largest))
        rows.append(dict(tensor=tensor) | numbers | dict(yardstick=stick, outcome=Outcome.ANSWERED, problem=""))
    return rows
