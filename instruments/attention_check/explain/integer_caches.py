"""K and V as caches hold them in whole numbers: llama.cpp's Q8_0 and Q4_0, and rows with a scale each."""

import torch
from torch import Tensor

from fa_lib.numerics.formats import FP16, FP32, Format

GROUP = 32  # values with one scale, of llama.cpp's caches


def q8_0(x: Tensor) -> Tensor:
    """Values as llama.cpp's Q8_0 holds them: integers to 127, times a scale in FP16 for each GROUP of the last
    dimension."""
    return _integers(x.unflatten(-1, (-1, GROUP)), 127, FP16).flatten(-2)


def q4_0(x: Tensor) -> Tensor:
    """Values as llama.cpp's Q4_0 holds them: integers from -8 to 7, the largest value being -8 times its scale."""
    parts = x.unflatten(-1, (-1, GROUP))
    largest = parts.gather(-1, parts.abs().argmax(-1, keepdim=True))
    scale = FP32(largest / -8)  # as it is; FP16 is what is kept of it
    steps = (parts / scale.where(scale != 0, 1.0) + 8.5).floor().clamp(0, 15) - 8
    return (steps * FP16(scale)).flatten(-2)


def by_row(x: Tensor, most: int) -> Tensor:
    """Integers up to `most`, times a scale in FP32 for each row."""
    return _integers(x, most, FP32)


def in_blocks(x: Tensor, rows: int) -> Tensor:
    """x (n, features) as integers to 127, times a scale in FP32 for each block of so many rows."""
    return torch.cat([by_row(block.flatten(), 127).reshape(block.shape) for block in x.split(rows)])


def _integers(parts: Tensor, most: int, fmt: Format) -> Tensor:
    """Parts (..., values) as integers times a scale in a format."""
    scale = FP32(parts.abs().amax(-1, keepdim=True) / most)
    return (parts / scale.where(scale != 0, 1.0)).round().clamp(-most, most) * fmt(scale)
