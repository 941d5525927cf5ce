"""Changes of a kernel's formats or algorithm that may make its error on captured tensors smaller."""

import math

import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.kernels.variants import Variant, by_key
from fa_lib.numerics.formats import FP16, FP32, TF32, Format

CHANGES = by_key([  # cheapest first
    Variant("reverse", "keys in the other order", algorithm=dict(reverse=True), cost="nothing"),
    Variant("offset", "P raised by 2^4", algorithm=dict(p_exponent_offset=4), cost="a constant"),
    Variant("splits", "8 splits, merged", algorithm=dict(splits=8), cost="a merge at the end"),
    Variant("row_sum", "l in FP32", dict(row_sum=FP32), cost="a register a row"),
    Variant("accumulator", "O in FP32", dict(accumulator=FP32), cost="head_dim registers a row"),
    Variant("carried", "O and l in FP32", dict(accumulator=FP32, row_sum=FP32), cost="head_dim + 1 registers a row"),
    Variant("scores", "scores in FP32", dict(scores=FP32, exponent=FP32), cost="the scores' registers twice"),
    Variant("as_shipped", "scores, O and l in FP32",
            dict(scores=FP32, exponent=FP32, accumulator=FP32, row_sum=FP32), cost="nearly what shipped kernels hold"),
    Variant("probs_fp16", "P and V in FP16", dict(probs=FP16), cost="a cast of V"),
    Variant("probs_tf32", "P in TF32", dict(probs=TF32), cost="P V at half the speed"),
    Variant("output", "output in FP32", dict(output=FP32), cost="twice the bytes of O"),
])  # fmt: skip
UNCHANGED = Variant("nothing", "nothing")
CARRIES = {"as_shipped": (Precision.kernel, "fa2"), "every_step": (Precision.uniform, "fa1")}
BETTER = 0.75  # of the error before: a change that saves less is none


def changes(q, k, v, options: dict, base: str) -> list[dict]:
    """What each of CHANGES makes of the error of a kernel.

    Args:
        base: of CARRIES: a kernel that carries FP32, or q's format.

    Returns:
        rows, cheapest first: change (a key of CHANGES; "nothing" first), times_less: root mean square error with
        nothing changed over that with the change, geometric mean over heads; infinite where the change makes an output
        finite that was not.
    """
    fmt = Format.of(q.dtype)
    make, name = CARRIES[base]
    precision, algorithm, rows, before = make(fmt), Algorithm.of(name), [], torch.zeros(0)
    golden = kernels.golden(q, k, v, inputs=fmt, **options)
    for change in (UNCHANGED, *CHANGES.values()):
        if not _changes_something(change, precision, algorithm):
            continue
        changed = change.of(precision, algorithm)
        o = kernels.tiled(q.double(), k.double(), v.double(), tiling=Tiling(64, 64), **changed, **options)
        rmse = by_head(o - golden).square().mean((1, 2)).sqrt().nan_to_num(nan=math.inf)  # (heads,)
        before = before if rows else rmse
        wrong = ((rmse > 0) & (before > 0) | ~before.isfinite()) & (rmse.isfinite() | before.isfinite())
        less = (before[wrong] / rmse[wrong]).log().mean().exp().item() if wrong.any() else 1.0
        rows.append(dict(change=change.key, times_less=less))
    return rows


def _changes_something(change, precision, algorithm):
    """Whether a kernel has not got a Variant's formats already, and can be given its algorithm."""
    if "p_exponent_offset" in change.algorithm and algorithm.name == "fa1":
        return False
    finer = [getattr(precision, step).precision < fmt.precision for step, fmt in change.steps.items()]
    return any(finer) or not finer


def cheapest(rows: list[dict]) -> dict | None:
    """The first of `changes` that brings the error below BETTER of what it was, or None."""
    return next((row for row in rows[1:] if row["times_less"] > 1 / BETTER), None)


def by_head(x: Tensor) -> Tensor:
    """(heads, batch * rows, features) of (batch, heads, rows, features), whatever dimensions lead."""
    x = x.reshape(-1, *x.shape[-3:]) if x.ndim > 3 else x.reshape(1, -1, *x.shape[-2:])
    return x.transpose(0, 1).flatten(1, 2)
