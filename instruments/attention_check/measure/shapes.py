"""A kernel's errors over shapes and masks."""

import math
from collections.abc import Callable, Sequence

import pandas as pd

from attention_check.isolation.calls import KernelError, with_kernel_errors
from attention_check.isolation.worker import Outcome
from attention_check.measure.capability import ALL_CAPABILITIES, Capabilities, kernel_fn
from attention_check.measure.draws import OF_SHAPES, redraw_failures
from attention_check.measure.reference_store import references
from fa_lib.execution.sweep import expand
from fa_lib.kernels.kernel_ref import KernelRef, in_table
from fa_lib.kernels.rule import ALLOWED, Case, exact, rule_rows


def grids_of(shapes: Sequence[str], head_dims: Sequence[int], formats: Sequence[str], seed: int) -> list[dict]:
    """Grids of `measure_shapes`, in which each shape has each head_dim, in one format after the other, so that every
    two of a shape, a head_dim and a format meet; in all formats where head_dims are too few for that."""
    turns = len(formats) if len(head_dims) >= len(formats) else 1
    return [
        dict(shape=own, head_dim=[head_dim], fmt=[fmt], seed=seed)
        for j, head_dim in enumerate(head_dims) for i, fmt in enumerate(formats)
        if (own := [shape for at, shape in enumerate(shapes) if (at + j - i) % turns == 0])
    ]  # fmt: skip


def cases_of(grids: Sequence[dict], device: str, able: Capabilities) -> list[Case]:
    """The Cases of grids, on normal inputs, in the order of `shapes_table`, which may ask for others as well: without
    gradients where a kernel has none, and of other draws."""
    return [
        Case(**cell, distribution="normal", gradients=able.gradients, device=device)
        for grid in grids for cell in expand(grid)
    ]  # fmt: skip


def shapes_table(grids: Sequence[dict], over: Callable, again: Callable) -> pd.DataFrame:
    """A table of `measure_shapes`, of over(grid) for each of `grids_of`. again: as of `redraw_failures`, of outputs."""
    if not grids:
        return pd.DataFrame()
    rows = pd.concat([over(grid) for grid in grids], ignore_index=True)
    outputs, others = rows[rows.tensor == "o"], rows[rows.tensor != "o"]
    return pd.concat([redraw_failures(outputs, OF_SHAPES, ALLOWED["o"], again), others], ignore_index=True)


def measure_shapes(
    shape: str, head_dim: int, distribution: str, fmt: str, seed: int, kernel: KernelRef | str | Callable,
    device: str = "cpu", able: Capabilities = ALL_CAPABILITIES,
) -> list[dict]:  # fmt: skip
    """A cell: `rule` of one kernel, whatever it does: rows of that, or one with what it did instead.

    Returns:
        rows: those of `rule`, and outcome and problem, as `call_kernel` has them.
    """
    fn = with_kernel_errors(kernel_fn(kernel, able.causal))
    for gradients in (True, False) if able.gradients else (False,):
        case = Case(shape, head_dim, distribution, fmt, seed, gradients, device)
        try:
            rows = rule_rows(fn, case, references().tensors(exact, case))
            return [row | dict(kernel=in_table(kernel), outcome=Outcome.ANSWERED, problem="") for row in rows]
        except KernelError as error:
            last = error
    return [dict(tensor="o", ratio=math.nan, passed=None, outcome=last.outcome, problem=str(last))]
