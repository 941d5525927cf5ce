"""The error of the sums O and l, computed from two numbers a tile instead of counted.

The law takes roundings as independent, and significands as spread evenly in log. This program takes neither: it draws
what a row's tiles add to l and to O, and carries both from tile to tile with the kernel's roundings. So roundings that
repeat, ties, and an O / l near a power of two count as they are. Nothing of Q, K and V matters but these sums.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import Format, FormatLike
from fa_lib.theory.rounding_counts import accepted_kernel


@dataclass(frozen=True)
class Tiles:
    """What the tiles of some rows are to a flash kernel, float64 (tiles, rows) each.

    Attributes:
        highest: the largest score of the tile.
        l: the sum of P over the tile's keys, P = exp(S - highest).
        O: the sum of P v over the tile's keys, for one column of V.
    """

    highest: Tensor
    l: Tensor
    O: Tensor


@lru_cache(maxsize=2)
def drawn(values: str, tiles: int, rows: int, block_kv: int = 64, head_dim: int = 64, seed: int = 0) -> Tiles:
    """Draw the tiles of rows of Q on K and V, all uniform in [0, 1) or all normal. Given a row of Q, its scores are
    normal and independent.

    Args:
        values: a key of `rounding_counts.VALUES`. "one_sign": all uniform; "zero_mean": all normal; "one_sign_peaked":
            all normal, and V >= 0.
        tiles: of a row. rows: number of rows, each with keys of its own.
        block_kv: keys of a tile. head_dim: of Q and K. seed: of the draw.
    """
    random, uniform = np.random.default_rng(seed), values == "one_sign"
    q = random.random((rows, head_dim)) if uniform else random.standard_normal((rows, head_dim))
    mean = q.sum(1, keepdims=True) / 2 if uniform else 0.0  # of q k, over k
    deviation = np.sqrt((q**2).sum(1, keepdims=True) / (12 if uniform else 1))
    highest, l, O = np.empty((3, tiles, rows))
    for t in range(tiles):
        S = (mean + deviation * random.standard_normal((rows, block_kv))) / head_dim**0.5  # (rows, B_c)
        v = random.random((rows, block_kv)) if uniform else random.standard_normal((rows, block_kv))
        highest[t] = S.max(1)
        P = np.exp(S - highest[t][:, None])
        l[t], O[t] = P.sum(1), (P * (v if values == "zero_mean" else abs(v))).sum(1)
    return Tiles(*map(torch.from_numpy, (highest, l, O)))


def carried(of: Tiles, precision: Precision, algorithm: str) -> Tensor:
    """Carry l and O over all tiles as a flash kernel does, rounded to precision's row_sum and accumulator, and O as
    stored to its output; its other formats do not count. Returns O / l, (rows,)."""
    row_sum, accumulator = precision.row_sum, precision.accumulator
    m, l, O = of.highest[0], row_sum(of.l[0]), accumulator(of.O[0])
    if algorithm == "fa1":
        O = accumulator(O / l)
    for highest, l_tile, O_tile in zip(of.highest[1:], of.l[1:], of.O[1:]):
        m_new = torch.maximum(m, highest)
        old, new = torch.exp(m - m_new), torch.exp(highest - m_new)
        if algorithm == "fa1":  # divides O by l at every tile, and multiplies it back at the next
            l_old = row_sum(old * l)
            l = row_sum(l_old + row_sum(new * row_sum(l_tile)))
            O = accumulator(accumulator(O * l_old) + accumulator(new * accumulator(O_tile)))
            O = accumulator(O / l)
        else:
            l = row_sum(row_sum(old * l) + row_sum(new * l_tile))
            O = accumulator(accumulator(old * O) + accumulator(new * O_tile))
        m = m_new
    return precision.output(O if algorithm == "fa1" else accumulator(O / l))


def golden(of: Tiles) -> Tensor:
    """Compute O / l in float64, (rows,)."""
    weights = torch.exp(of.highest - of.highest.amax(0))
    return (weights * of.O).sum(0) / (weights * of.l).sum(0)


def simulated(
    precision: Precision,
    *,
    tiles: int,
    algorithm: str = "fa1",
    values: str = "one_sign",
    rows: int = 4096,
    block_kv: int = 64,
    head_dim: int = 64,
    seed: int = 0,
) -> float:
    """Compute the error to expect of O as `theory.expected` does, where O and l alone round: by `carried`, over random
    tiles. With 4,096 rows its own standard error is 1 to 2 %.

    Args:
        precision: its formats accumulator, row_sum and output count.
        tiles, algorithm, values, block_kv: as `theory.expected`; the algorithm is "fa1" or "fa2".
        rows: number of rows that are drawn. head_dim: of Q and K. seed: of the draw.

    Returns:
        The root mean square of O - golden over that of golden.

    Raises:
        ValueError: an argument is none of those accepted.
    """
    accepted_kernel(algorithm, values, tiles)
    if algorithm == "baseline":
        raise ValueError("algorithm: got 'baseline'; accepted are fa1, fa2: it has no tiles")
    of = drawn(values, tiles, rows, block_kv, head_dim, seed)
    exact = golden(of)
    error = carried(of, precision, algorithm) - exact
    return (error.square().mean() / exact.square().mean()).sqrt().item()


def repeated(fmt: FormatLike, *, tiles: int, spread: float) -> float:
    """Compute the relative root mean square error of a running sum of positive terms whose roundings repeat.

    Within one binade of the sum, terms that hardly differ are cut at the same place of the grid, so that their errors
    have one sign and add up. Terms that differ by a standard deviation of s ulp of the sum dither the rounding: of the
    error's k-th harmonic, of amplitude 1 / (pi k) ulp, exp(-2 pi^2 k^2 s^2) is left.

    Args:
        fmt: of the sum.
        tiles: number of terms.
        spread: the terms' standard deviation over their mean.

    Raises:
        ValueError: an argument is none of those accepted.
    """
    accepted_kernel("fa2", "one_sign", tiles)
    if not (isinstance(spread, Real) and 0 <= spread < math.inf):
        raise ValueError(f"spread: got {spread!r}; accepted is a number from 0")
    u, k = Format.of(fmt).unit_roundoff, np.arange(1, 200)
    total = []
    for first in 2 ** np.linspace(0, 1, 33)[:-1]:  # the first term, anywhere in a binade
        t = np.arange(2, tiles + 1)
        ulp, terms = np.unique(2 * u * 2.0 ** np.floor(np.log2(first * t)), return_counts=True)  # of each binade
        s = spread * first / ulp  # (binades,)
        amplitude = np.exp(-2 * (np.pi * k * s[:, None]) ** 2) / (np.pi * k) * ulp[:, None]  # (binades, harmonics)
        sums = amplitude * terms[:, None]  # a harmonic's error has one phase within a binade
        total.append(0.5 * np.sum(np.square(sums)) / (first * tiles) ** 2)
    return math.sqrt(np.mean(total))
