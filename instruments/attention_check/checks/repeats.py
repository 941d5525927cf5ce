"""Whether a call that is made again gives the same bits."""

import math
from collections.abc import Callable, Iterator

import pandas as pd
import torch

from attention_check.checks.relations.subject import digest
from attention_check.isolation.calls import KernelError, call_kernel, with_kernel_errors
from attention_check.judge.findings import Finding, Severity
from attention_check.measure.capability import ALL_CAPABILITIES, Capabilities, kernel_fn
from attention_check.measure.checked_kernel import CheckedKernel
from attention_check.measure.measurements import Measurements
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.kernel_ref import KernelRef
from fa_lib.numerics.formats import BF16, FP32, Format


def repeats(
    kernel: KernelRef | str | Callable,
    fmt: str,
    runs: int,
    n: int = 256,
    head_dim: int = 64,
    device: str = "cpu",
    able: Capabilities = ALL_CAPABILITIES,
) -> dict:
    """A cell: how many different outputs, and gradients, one call gives when it is made again and again.

    Returns:
        a row of `repeats`, whose columns data/columns.csv explains.
    """
    form, fn = Format.of(fmt), kernel_fn(kernel, able.causal)
    tensors = [form(x).to(device, form.dtype) for x in draw("normal", 0, (1, 2, n, head_dim))]
    outputs, gradients = {}, set()
    for _ in range(runs):
        if (o := call_kernel(fn, *tensors).o) is not None:
            outputs.setdefault(digest(o), o.double().cpu())
    try:
        tensors = [x.requires_grad_() for x in tensors]
        for _ in range(runs if able.gradients else 0):
            grads = torch.autograd.grad(with_kernel_errors(fn)(*tensors).float().sum(), tensors)
            gradients.add(tuple(map(digest, grads)))
    except KernelError:  # it has none: `contract` says why
        gradients.clear()
    counts = dict(runs=runs, outputs=len(outputs) or None, gradients=len(gradients) or None)
    return counts | dict(apart=_apart([*outputs.values()], BF16 if form == FP32 else form))


def _apart(answers, fmt):
    if not answers:
        return math.nan
    first = answers[0]
    ulp = fmt.ulp(first.abs().clamp(min=first.square().mean().sqrt().item()))
    worst = 0.0
    for o in answers[1:]:
        same = (o == first) | (o.isnan() & first.isnan())
        apart = ((o - first).abs() / ulp).masked_fill(same, 0)
        worst = max(worst, apart.nan_to_num(math.inf, math.inf).max().item())  # NaN beside a number is as far
    return worst


def measured(checked: CheckedKernel, found: Measurements) -> pd.DataFrame:
    """Make one call again and again: rows of `repeats`."""
    settings = [dict(fmt=checked.judged[0], runs=checked.plan.runs)]
    return checked.table(repeats, settings, able=checked.way.able, **checked.call)


def judged(table: pd.DataFrame) -> Iterator[Finding]:
    """Different outputs and gradients of one call."""
    row = table.iloc[0]
    for what in ("outputs", "gradients"):
        if pd.notna(row[what]):
            yield Finding("repeats", Severity.REPORTED, dict(of=what, runs=int(row.runs)), row[what])
