"""What has an error: a cause, and how much of the error a computation explains."""

import math
from dataclasses import dataclass

from torch import Tensor

ROUNDINGS = (
    "accumulator", "sums", "row_sum", "scores", "every_step", "inputs", "probs_truncated", "mask_rounded", "bias",
    "kernel", "products", "cut", "written", "written_k_scaled", "probs", "probs_shifted", "quantized", "quantized_qkv",
    "quantized_kv", "quantized_qk", "quantized_k", "quantized_v",
)  # fmt: skip
EXPLAINED = 0.8  # of the squared error: so much, or more, is the same where the cause is the same


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
