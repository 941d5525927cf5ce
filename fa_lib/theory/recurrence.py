"""The error of the sums O and l, computed from two numbers a tile instead of counted.

The law takes roundings as independent, and significands as spread evenly in log. This program takes neither: it draws
what a row's tiles add to l and to O, and carries both from tile to tile with the kernel's roundings. So roundings that
repeat, ties, and an O / l near a power of two count as they are. Nothing of Q, K and V matters but these sums.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
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

    def first(self, tiles: int) -> "Tiles":
        """Return the first so many tiles of each row: those that `drawn` draws if it draws no more."""
        return Tiles(self.highest[:tiles], self.l[:tiles], self.O[:tiles])

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor]:
        """exp(m - m') of what a row has carried so far and of a tile, m' the row's new maximum; of all but the first
        tile, (tiles - 1, rows) each."""
        m = self.highest.cummax(0).values
        return torch.exp(m[:-1] - m[1:]), torch.exp(self.highest[1:] - m[1:])

    @cached_property
    def golden(self) -> Tensor:
        """O / l in float64, (rows,)."""
        weights = torch.exp(self.highest - self.highest.amax(0))
        return (weights * self.O).sum(0) / (weights * self.l).sum(0)


def drawn(values: str, tiles: int, rows: int, block_kv: int = 64, head_dim: int = 64, seed: int = 0) -> Tiles:
    """Draw the tiles of rows of Q on K and V, all uniform in [0, 1) or all normal. Given a row of Q, its scores are
    normal and independent.

    Args:
        values: a key of `rounding_counts.VALUES`. "one_sign": all uniform; "zero_mean": all normal; "one_sign_peaked":
            all normal, and V >= 0.
        tiles: of a row. rows: number of rows, each with keys of its own.
        block_kv: keys of a tile. head_dim: of Q and K. seed: of the draw.
    """
    highest, l, O, O_of_magnitudes = _sums(values == "one_sign", tiles, rows, block_kv, head_dim, seed)
    return Tiles(highest, l, O if values == "zero_mean" else O_of_magnitudes)


@lru_cache(maxsize=2)
def _sums(uniform, tiles, rows, block_kv, head_dim, seed):
    """Draw `highest`, `l` and `O` of Tiles, and O of |v|."""
    random = np.random.default_rng(seed)
    q = random.random((rows, head_dim)) if uniform else random.standard_normal((rows, head_dim))
    mean = q.sum(1, keepdims=True) / 2 if uniform else 0.0  # of q k, over k
    deviation = np.sqrt((q**2).sum(1, keepdims=True) / (12 if uniform else 1))
    highest, l, O, O_of_magnitudes = sums = np.empty((4, tiles, rows))
    S, v = np.empty((2, rows, block_kv))
    for t in range(tiles):
        random.standard_normal(out=S)
        S *= deviation
        S += mean
        S /= head_dim**0.5  # (rows, B_c)
        random.random(out=v) if uniform else random.standard_normal(out=v)
        S.max(1, out=highest[t])
        S -= highest[t][:, None]
        P = np.exp(S, out=S)
        P.sum(1, out=l[t])
        P *= v
        P.sum(1, out=O[t])
        if not uniform:
            np.abs(P, out=P).sum(1, out=O_of_magnitudes[t])
    return [torch.from_numpy(x) for x in (sums[[0, 1, 2, 2]] if uniform else sums)]


def carried(of: Tiles, precision: Precision, algorithm: str) -> Tensor:
    """Carry l and O over all tiles as a flash kernel does, rounded to precision's row_sum and accumulator, and O as
    stored to its output; its other formats do not count. Returns O / l, (rows,)."""
    row_sum, accumulator = precision.row_sum, precision.accumulator
    old, new = of.factors  # (tiles - 1, rows) each
    l, O = row_sum(of.l[0]), accumulator(of.O[0])
    l_terms, O_terms = of.l[1:], of.O[1:]
    if algorithm == "fa1":
        O, l_terms, O_terms = accumulator(O / l), row_sum(l_terms), accumulator(O_terms)
    l_terms, O_terms = row_sum.round_(new * l_terms), accumulator.round_(new * O_terms)
    for factor, l_term, O_term in zip(old, l_terms, O_terms):
        l_old = row_sum.round_(factor * l)
        l = row_sum.round_(l_old + l_term)
        if algorithm == "fa1":  # divides O by l at every tile, and multiplies it back at the next
            O = accumulator.round_(accumulator.round_(O * l_old).add_(O_term))
            O = accumulator.round_(O.div_(l))
        else:
            O = accumulator.round_(accumulator.round_(O * factor).add_(O_term))
    return precision.output(O if algorithm == "fa1" else accumulator(O / l))


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
    of: Tiles | None = None,
) -> float:
    """Compute the error to expect of O as `theory.expected` does, where O and l alone round: by `carried`, over random
    tiles. With 4,096 rows its own standard error is 1 to 2 %.

    Args:
        precision: its formats accumulator, row_sum and output count.
        tiles, algorithm, values, block_kv: as `theory.expected`; the algorithm is "fa1" or "fa2".
        rows: number of rows that are drawn. head_dim: of Q and K. seed: of the draw.
        of: the rows' tiles, where they are drawn already.

    Returns:
        The root mean square of O - golden over that of golden.

    Raises:
        ValueError: an argument is none of those accepted.
    """
    accepted_kernel(algorithm, values, tiles)
    if algorithm == "baseline":
        raise ValueError("algorithm: got 'baseline'; accepted are fa1, fa2: it has no tiles")
    of = of or drawn(values, tiles, rows, block_kv, head_dim, seed)
    error = carried(of, precision, algorithm) - of.golden
    return (error.square().mean() / of.golden.square().mean()).sqrt().item()


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
