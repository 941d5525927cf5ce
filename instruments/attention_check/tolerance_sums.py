"""Sums over keys: the values that weights meet, what parts of them add up to, and where their roundings repeat."""

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fa_lib.numerics.formats import FP64, Format

DITHER = 0.6  # ulp of a sum: terms that scatter by more have independent roundings (`repeated`)


def weighted_values(A: Tensor, v: Tensor) -> Tensor:
    """Sum values (keys, d_v), or (rows, keys, d_v) of each row, with weights (rows, keys). Returns (rows, d_v)."""
    return A @ v if v.ndim == 2 else (A[:, None] @ v)[:, 0]


def largest_partial_sum(apart: Tensor) -> Tensor:
    """Split the tiles into parts of 1, 2, 4, ... neighbours, sum the squares of the parts' sums, and take the largest:
    (rows, d_v), of the sums of tiles, (tiles, rows, d_v)."""
    tiles, sums = apart.shape[0], torch.cat([torch.zeros_like(apart[:1]), apart.cumsum(0)])
    largest, size = torch.zeros_like(apart[0]), 1
    while size < tiles:
        at = torch.tensor([*range(0, tiles, size), tiles], device=apart.device)
        largest, size = torch.maximum(largest, sums[at].diff(dim=0).square().sum(0)), 2 * size
    return largest


def repeats(fmt: Format, squares: Tensor, total: Tensor, terms: int) -> Tensor:
    """Compute the relative mean square error of a sum whose roundings repeat; 0 where its terms scatter enough.

    Args:
        fmt: of the sum. squares, total: (rows, d_v), sums of the terms' squares and of the terms. terms: how many.
    """
    over = terms * squares / total.square().where(total != 0, 1.0) - 1
    spread = over.clamp(min=0).sqrt().where(total != 0, 1.0)  # standard deviation of the terms over their mean
    at = torch.floor(torch.log2(spread.clamp(min=2.0**-60)))
    at = at.where(spread < DITHER * 2 * fmt.unit_roundoff * terms, 0.0)
    error = torch.zeros_like(spread)
    if fmt.precision < FP64.precision:
        for log_spread in at.unique().tolist():
            if log_spread < 0:
                error[at == log_spread] = repeated(fmt, terms, 2.0**log_spread) ** 2
    return error


@lru_cache
def repeated(fmt: Format, terms: int, spread: float) -> float:
    """Compute the relative root mean square error of a running sum of positive terms whose roundings repeat.

    Within one binade of the sum, terms that hardly differ are cut at the same place of the grid, so that their errors
    have one sign and add up. Terms that differ by a standard deviation of s ulp of the sum dither the rounding: of the
    error's k-th harmonic, of amplitude 1 / (pi k) ulp, exp(-2 pi^2 k^2 s^2) is left.

    Args:
        fmt: of the sum. terms: how many. spread: their standard deviation over their mean.
    """
    u, k = fmt.unit_roundoff, np.arange(1, 200)
    total = []
    for first in 2 ** np.linspace(0, 1, 33)[:-1]:  # the first term, anywhere in a binade
        t = np.arange(2, terms + 1)
        ulp, counts = np.unique(2 * u * 2.0 ** np.floor(np.log2(first * t)), return_counts=True)  # of each binade
        s = spread * first / ulp  # (binades,)
        amplitude = np.exp(-2 * (np.pi * k * s[:, None]) ** 2) / (np.pi * k) * ulp[:, None]  # (binades, harmonics)
        sums = amplitude * counts[:, None]  # a harmonic's error has one phase within a binade
        total.append(0.5 * np.sum(np.square(sums)) / (first * terms) ** 2)
    return math.sqrt(np.mean(total))
