"""Drift and scatter of a running sum of positive terms in few bits: the mean and the variance of its rounding errors.

Within one binade of the sum every addition is rounded on one grid, so what it adds to the error depends on the term
and not on the sum. The mean of that error is the drift: it has a sign. Its variance is the scatter. docs/law/theory.md
derives both. FlashAttention-1 divides and multiplies back at every tile, for which no series is known: where V has one
sign, its sums are drawn.
"""

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy import ndarray
from scipy import special

from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import FP64, Format
from fa_lib.theory import recurrence
from fa_lib.theory.extremes import RMS
from fa_lib.theory.rounding_counts import VALUES, roundings

ROWS = 512  # of Q, that a walk follows
DRAWN = 4096  # of Q at most, whose sums are drawn: the root mean square of their errors is within 1 %
HEAD_DIM = 64
FLAT = 0.7  # ulp: terms that scatter so much leave 6e-5 of the first harmonic


class Rows(NamedTuple):
    """The tiles of ROWS rows, as a running sum meets them.

    Attributes:
        term: (tiles, ROWS), what a tile adds to l on average, relative to the maximum so far.
        spread_l, spread_o: (tiles, ROWS), standard deviation over mean of what a tile adds to l, and to O.
        place: (ROWS,), standard normal: where a row's O lies around the mean of V.
    """

    term: ndarray
    spread_l: ndarray
    spread_o: ndarray
    place: ndarray


class Error(NamedTuple):
    """Mean and variance of a relative error, (rows,) each."""

    mean: ndarray
    variance: ndarray


@lru_cache(maxsize=4)
def rows(values: str, tiles: int, block_kv: int) -> Rows:
    """Spread ROWS rows evenly over their scores' deviations and maxima, and draw when the maxima rose. Arguments are
    those of `theory.expected`.

    A row's scores are g Z + const, with Z normal and no larger than the largest so far. Tile t holds the maximum of the
    first t with a chance of 1 / t (Renyi 1962).
    """
    random, strata = np.random.default_rng(0), (np.arange(ROWS) + 0.5) / ROWS
    count = np.arange(2, tiles + 1)[:, None]
    risen = random.random((tiles - 1, ROWS)) < 1 / count
    step = np.where(risen, np.log(random.random((tiles - 1, ROWS))) / (count - 1), 0)
    last = np.log(random.permutation(strata)) / tiles  # of the largest of so many numbers in [0, 1), one a tile
    logs = last + np.concatenate([np.cumsum(step[::-1], 0)[::-1], np.zeros((1, ROWS))])
    z = special.ndtri(np.exp(logs / block_kv))
    mean, square = moments(z, spread_of_scores(values, strata))
    of_l, of_o = square / mean**2, square / mean**2 * (VALUES[values].square or 1.0)
    return Rows(
        block_kv * mean, np.sqrt((of_l - 1) / block_kv), np.sqrt((of_o - 1) / block_kv), random.standard_normal(ROWS)
    )


def spread_of_scores(values: str, strata: ndarray) -> ndarray:
    """Compute the standard deviation g of the scores of rows at these shares of all rows."""
    if VALUES[values].peaked:
        return np.sqrt(special.chdtri(HEAD_DIM, 1 - strata) / HEAD_DIM)
    # of 64 squares in [0, 1), with mean 1/3 and variance 4/45 each
    return np.sqrt((1 / 3 + math.sqrt(4 / 45 / HEAD_DIM) * special.ndtri(strata)) / 12)


def moments(z: ndarray, g: ndarray) -> tuple[ndarray, ndarray]:
    """Compute the means of P = exp(g (Z - z)) and of P^2, for a normal Z <= z."""
    return tuple(np.exp(a * a / 2 - a * z) * special.ndtr(z - a) / special.ndtr(z) for a in (g, 2 * g))


@lru_cache(maxsize=4)
def normal_tiles(values: str, tiles: int, block_kv: int) -> recurrence.Tiles:
    """Draw what tiles add to l and O, with V of one sign: normal sums, with the means and spreads of `rows`."""
    random, count = np.random.default_rng(0), min(DRAWN, max(ROWS, 2**20 // tiles))
    g = spread_of_scores(values, (np.arange(count) + 0.5) / count)
    z = special.ndtri(random.random((tiles, count)) ** (1 / block_kv))  # (tiles, count), the largest of a tile
    mean, square = moments(z, g)  # of its other keys
    of_P, of_V = random.standard_normal((2, tiles, count))
    l = 1 + (block_kv - 1) * mean + np.sqrt((block_kv - 1) * (square - mean**2)) * of_P
    O = l + np.sqrt((1 + (block_kv - 1) * square) * (VALUES[values].square - 1)) * of_V  # pyright: ignore
    l, O = np.maximum(l, 1), VALUES[values].mean * O
    return recurrence.Tiles(*(torch.from_numpy(x) for x in (g * z, l, O)))


def one_addition(x: ndarray, spread: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """Compute what rounding to whole numbers adds to a sum of whole numbers, for a normal term.

    The Fourier series of x - round(x), whose k-th harmonic keeps exp(-2 pi^2 k^2 spread^2) of its amplitude.

    Args:
        x, spread: mean and standard deviation of the term, in ulp of the sum.

    Returns:
        The mean of round(x) - x, its mean square, and the slope of the mean over x.
    """
    mean, square, slope = np.zeros(x.shape), np.full(x.shape, 1 / 12), np.zeros(x.shape)
    sharp = spread < FLAT
    k = np.arange(1, min(64, math.ceil(FLAT / spread.min())) + 1)
    kept = (-1.0) ** k * np.exp(-2 * (np.pi * k * spread[sharp][:, None]) ** 2)
    angle = 2 * np.pi * k * (x[sharp] % 1)[:, None]
    sine, cosine = kept * np.sin(angle), kept * np.cos(angle)
    mean[sharp] = (sine / (np.pi * k)).sum(1)
    square[sharp] += (cosine / (np.pi * k) ** 2).sum(1)
    slope[sharp] = 2 * cosine.sum(1)
    return mean, square, slope


def summed(term: ndarray, spread: ndarray, bits: int, more: ndarray, own: ndarray) -> Error:
    """Follow a running sum of rounded terms: its mean, and to first order its scatter.

    The place of the sum decides the binade, and so the next drift: a sum that is ahead meets another one earlier. So
    the error's variance grows with the `gain`, the drift's slope over the place, and with `both`, its covariance with
    the exact sum.

    Args:
        term: (tiles, rows), means of the terms, relative to a scale that falls where the maximum rises.
        spread: (tiles, rows), their standard deviation over their mean.
        bits: significant bits of the sum.
        more: (tiles, rows), the other roundings of the sum so far at a tile, in squares of one, (RMS u)^2.
        own: (tiles,), how often a term is rounded before it is added.

    Returns:
        The error over the exact sum's mean.
    """
    error = both = np.zeros(term.shape[1])
    place, spread_of_exact = term[0], (spread[0] * term[0]) ** 2
    variance = own[0] * ulp(term[0], bits) ** 2 / 12
    for t in range(1, len(term)):
        x, scale = term[t], term[t] / term[t - 1]
        place, error = place * scale, error * scale
        variance, both, spread_of_exact = (each * scale**2 for each in (variance, both, spread_of_exact))
        variance = variance + more[t] * (RMS * 2.0**-bits * place) ** 2
        # the binade that this addition ends in, or those next to it
        middle, small, noise = ulp(place + x, bits), ulp(x, bits), (spread[t] * x) ** 2
        deviation = np.sqrt(np.maximum(variance + 2 * both + spread_of_exact, 0) + noise)
        edges = (middle * 2.0 ** np.array([[bits - 1], [bits]]) - place - x) / deviation
        below, above = special.ndtr(edges[0]) * (middle > small), special.ndtr(-edges[1])
        chance = np.stack([below, 1 - below - above, above])
        h = middle * np.array([[0.5], [1.0], [2.0]])
        mean, square, slope = one_addition(x / h, np.where(chance > 1e-4, spread[t] * x / h, FLAT))
        finer = small / h  # the term's own ulp: a sum on the same grid is exact, one on the next has ties
        scatter = np.maximum(square - mean**2 + np.where(finer < 1, finer**2 / 6, -1 / 12), 0) * h**2
        mean = mean * h
        step = (chance * mean).sum(0)
        scatter = (chance * (scatter + mean**2)).sum(0) - step**2 + own[t] * small**2 / 12
        density = np.exp(-(edges**2) / 2) / (math.sqrt(2 * np.pi) * deviation)
        gain = density[1] * (mean[2] - mean[1]) + density[0] * (middle > small) * (mean[1] - mean[0])
        follows = (chance * slope).sum(0) * noise
        variance = (1 + gain) ** 2 * variance + 2 * gain * (1 + gain) * both + gain**2 * spread_of_exact + scatter
        both = (1 + gain) * both + gain * spread_of_exact + follows
        spread_of_exact = spread_of_exact + noise
        place, error = place + x + step, error + step
    total = len(term) * term[-1]
    return Error(error / total, variance / total**2)


def ulp(x: ndarray, bits: int) -> ndarray:
    """Return the distance of x's neighbours among numbers of so many significant bits."""
    return 2.0 ** (np.floor(np.log2(x)) - bits + 1)


@lru_cache(maxsize=256)
def of_output(precision: Precision, tiles: int, algorithm: str, values: str, block_kv: int) -> Error:
    """Follow l and O over the tiles of rows, to the error of O / l. Arguments as `theory.expected`. Where V has a mean
    of zero O has terms of all sizes, and its roundings are counted."""
    kind, fa1 = VALUES[values], algorithm == "fa1"
    if fa1 and kind.square is not None:
        return drawn_error(normal_tiles(values, tiles, block_kv), precision)
    of, count = rows(values, tiles, block_kv), np.arange(1, tiles + 1)
    bits_l, bits_o = precision.row_sum.precision, precision.accumulator.precision
    raised = np.diff(of.term, axis=0, prepend=of.term[:1]) < 0
    rounded = 2 - 1 / count if fa1 else np.ones(tiles)  # P V and l of a tile, and their product with exp(m_tile - m)
    l = summed(of.term, of.spread_l, bits_l, np.zeros_like(raised) if fa1 else raised, rounded)
    if kind.square is None:
        weight = float(roundings(tiles, algorithm, values, block_kv).accumulator.sum())
        carried, quotient = Error(np.zeros(ROWS), np.full(ROWS, weight * (RMS * 2.0**-bits_o) ** 2)), 0.0
    else:
        O = kind.mean * np.abs(1 + of.place * of.spread_o / np.sqrt(count)[:, None])  # (tiles, ROWS)
        carried = summed(kind.mean * of.term, of.spread_o, bits_o, raised, rounded)
        quotient = (ulp(O[-1], bits_o) / O[-1]) ** 2 / 12
    variance = (l.variance + carried.variance) / (1 + l.mean) ** 2 + quotient
    return Error((1 + carried.mean) / (1 + l.mean) - 1, variance)


def drawn_error(of: recurrence.Tiles, precision: Precision) -> Error:
    """Carry l and O as FlashAttention-1 does, with FP32's exponents: no sum overflows. Each row has one error."""
    formats = precision.row_sum, precision.accumulator
    finer = max(0, min(fmt.precision for fmt in formats) - 24)  # bits that float64 cannot emulate; errors scale
    l, O = (FP64 if fmt.precision - finer > 24 else Format.of((8, fmt.precision - finer)) for fmt in formats)
    carried = recurrence.carried(of, replace(precision, row_sum=l, accumulator=O, output=O), "fa1")
    error = 2.0**-finer * (carried / of.golden - 1).numpy()
    return Error(error, np.zeros(error.shape))
