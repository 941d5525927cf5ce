"""What would explain an error: emulated mistakes on the same rows."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attention_check.conventions.attention import Rows
from fa_lib import kernels
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP16, FP32, FP64, TF32, truncated

BLOCKS = (16, 32, 64, 128, 256, 512)  # keys of a tile that are tried beside the declared ones
STEPS = {  # of a Precision, that are in 16 bits
    "accumulator": ("accumulator",),
    "sums": ("accumulator", "row_sum"),
    "row_sum": ("row_sum",),
    "scores": ("scores",),
    "inputs": ("inputs",),
    "every_step": ("scores", "exponent", "probs", "maximum", "factors", "row_sum", "accumulator"),
}
ROUNDINGS = (
    "accumulator", "sums", "row_sum", "scores", "every_step", "inputs", "probs_truncated", "mask_rounded", "bias",
    "kernel", "products", "cut", "written", "written_k_scaled", "probs", "probs_shifted", "quantized", "quantized_qkv",
    "quantized_kv", "quantized_qk", "quantized_k", "quantized_v",
)  # fmt: skip
CARRIED = ("accumulator", "sums", "row_sum", "every_step")  # of these, mistakes whose error tells the tiles
FITTED = 0.02  # of the share that a mistake with a number fitted to the error must explain more than one without
EXPLAINED = 0.8  # of the squared error: so much, or more, is the same where the cause is the same
BIASES = 2.0  # unit roundoffs that outputs are off at most, in the mean, where P and they are rounded to one side


@dataclass(frozen=True)
class Cause:
    """A mistake that makes an error.

    Attributes:
        key: of ROUNDINGS, or "keep_missing", "dropout", or of `conventions.keys_of`. "bias" is a factor that roundings
            to one side make.
        same: it makes this very error; else most of it.
        fmt, tiles: of what is carried, where that is the mistake.
        share: of the squared error that the mistake explains.
        factor: the number that was fitted, of the output or the scale for example, where that is the mistake.
    """

    key: str
    same: bool
    share: float
    fmt: str = ""
    tiles: int = 0
    factor: float = 1.0


def explained_share(o: Tensor, golden: Tensor | float, emulated: Tensor) -> float:
    """The share of an output's squared error that an emulation explains: 1 - |o - emulated|² / |o - golden|². 1 is all
    of it; errors that have nothing to do with each other give less than 0; NaN where the output has no error."""
    error = (o - golden).square().sum().item()
    return 1 - (o - emulated).square().sum().item() / error if error else math.nan


@dataclass(frozen=True)
class Worst:
    """The worst rows of one head, and what a kernel gave for them.

    Attributes:
        q (rows, d), k (n_kv, d), v (n_kv, d_v), o, golden (rows, d_v): float64. options: of `CallOptions`, for these
            rows; the mask is what is added to S, (rows, n_kv).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    golden: Tensor
    options: dict[str, Any]

    def cause(self, key: str, o: Tensor, fmt: str = "", tiles: int = 0, factor: float = 1.0) -> Cause:
        """Score a computation that may have made the output by what it gives for the rows, o (rows, d_v); a number that
        was fitted to them must earn its place."""
        share = explained_share(self.o, self.golden, o)
        return Cause(key, share >= EXPLAINED, share - FITTED * (factor != 1), fmt, tiles, factor)

    @classmethod
    def of(cls, rows: Rows, golden: Tensor, entry: int, head: int, at: Tensor) -> "Worst":
        """Some rows of a head, by their places among the sampled ones; golden: as `rows.o`."""
        q, o, golden, bias = (x[entry, head, at] for x in (rows.q, rows.o, golden, rows.bias))
        k, v = (x[entry, head].nan_to_num(0.0, 0.0, 0.0) for x in (rows.k, rows.v))  # they see nothing but numbers
        options = rows.options() | dict(mask=bias)
        if "sinks" in options:
            options["sinks"] = options["sinks"][head : head + 1]
        return cls(q, k, v, o, golden, options)


def mistakes(rows: Worst, precision: Precision, block: int) -> Iterator[Cause]:
    """Computations that differ from a declared one in a step.

    Args:
        precision: as declared. block: keys of a tile, as declared.
    """
    n_kv, narrow, mask, tensors = rows.k.shape[0], precision.inputs, rows.options["mask"], (rows.q, rows.k, rows.v)
    rounded = narrow(mask)
    if not torch.equal(rounded, mask):
        due = kernels.golden(*tensors, inputs=narrow, **rows.options | dict(mask=rounded))
        yield rows.cause("mask_rounded", due)
    factor = ((rows.o * rows.golden).sum() / rows.golden.square().sum().clamp(min=1e-300)).item()
    if abs(factor - 1) <= BIASES * precision.probs.unit_roundoff:
        yield rows.cause("bias", factor * rows.golden, factor=factor)
    exact = replace(precision, output=FP64)  # else the rounding of the answer hides what makes the error

    def emulated(changed: Precision, **kernel_options) -> Tensor:
        o = kernels.tiled(*tensors, precision=changed, **rows.options, **kernel_options)
        return precision.output(o)

    coarser = {FP16: (FP16, BF16)}.get(narrow, (narrow,)) if narrow.precision < FP32.precision else (TF32, BF16, FP16)
    for fmt in coarser:
        for key, steps in STEPS.items():
            if all(getattr(precision, step).precision <= fmt.precision for step in steps):
                continue
            changed = replace(exact, **dict.fromkeys(steps, fmt))
            carried = key in CARRIED
            blocks = dict.fromkeys((block, *(size for size in BLOCKS if size < n_kv))) if carried else (block,)
            for size in blocks:
                tiles = -(-n_kv // size) if carried else 0
                for algorithm in ("fa2", "fa1") if carried else ("fa2",):
                    o = emulated(changed, tiling=Tiling(64, size), algorithm=algorithm)
                    yield rows.cause(key, o, fmt.name, tiles)
    least = mask.masked_fill(mask == -math.inf, math.inf).amin(-1, keepdim=True)
    if (mask.isfinite() & (mask != 0)).any():  # as ALiBi is that counts from the first key
        counted = narrow(mask - least.where(least < math.inf, 0.0))
        o = kernels.tiled(
            *tensors, precision=replace(exact, scores=narrow), tiling=Tiling(64, block),
            **rows.options | dict(mask=counted),
        )  # fmt: skip
        yield rows.cause("scores", precision.output(o), narrow.name)
    cut = replace(exact, probs=truncated(precision.probs))
    o = emulated(cut, tiling=Tiling(64, block), algorithm="fa2")
    yield rows.cause("probs_truncated", o, precision.probs.name)
