"""Drift and scatter of a running sum of positive terms in few bits: the mean and the variance of its rounding errors.

Within one binade of the sum every addition is rounded on one grid, so what it adds to the error depends on the term
and not on the sum. The mean of that error is the drift: it has a sign. Its variance is the scatter. docs/law/theory.md
derives both, and says where FlashAttention-1 leaves them.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy import ndarray
from scipy import special

from fa_lib.kernels.precision import Precision
from fa_lib.theory.extremes import RMS
from fa_lib.theory.rounding_counts import VALUES, roundings

ROWS = 512  # of Q, that a walk follows
HEAD_DIM = 64
FLAT = 0.7  # ulp: terms that scatter so much leave 6e-5 of the first harmonic


class Rows(NamedTuple):
    """The tiles of ROWS rows, as a running sum meets them.

    Attributes:
        term: (tiles, ROWS), what a tile adds to l on average, relative to the maximum so far.
        spread_l, spread_o: (ROWS,), standard deviation over mean of what a tile adds to l, and to O.
        place: (ROWS,), standard normal: where a row's O lies around the mean of V.
    """

    term: ndarray
    spread_l: ndarray
    spread_o: ndarray
    place: ndarray


class Error(NamedTuple):
    """Mean and variance of a relative error, (ROWS,) each."""

    mean: ndarray
    variance: ndarray


@lru_cache(maxsize=4)
def rows(values: str, tiles: int, block_kv: int) -> Rows:
    """Spread ROWS rows evenly over their scores' deviations and maxima, and draw when the maxima rose. Arguments are
    those of `theory.expected`.

    A row's scores are g Z + const, with Z normal. The sum of exp over a tile, over that of the largest Z so far, z, is
    B_c exp(g^2 / 2 - g z). Tile t holds the maximum of the first t with a chance of 1 / t (Renyi 1962).
    """
    random, kind, strata = np.random.default_rng(0), VALUES[values], (np.arange(ROWS) + 0.5) / ROWS
    if kind.peaked:
        g2 = special.chdtri(HEAD_DIM, 1 - strata) / HEAD_DIM
    else:  # of 64 squares in [0, 1), with mean 1/3 and variance 4/45 each
        g2 = (1 / 3 + math.sqrt(4 / 45 / HEAD_DIM) * special.ndtri(strata)) / 12
    count = np.arange(2, tiles + 1)[:, None]
    risen = random.random((tiles - 1, ROWS)) < 1 / count
    step = np.where(risen, np.log(random.random((tiles - 1, ROWS))) / (count - 1), 0)
    last = np.log(random.permutation(strata)) / tiles  # of the largest of so many numbers in [0, 1), one a tile
    logs = last + np.concatenate([np.cumsum(step[::-1], 0)[::-1], np.zeros((1, ROWS))])
    z = special.ndtri(np.exp(logs / block_kv))
    term = block_kv * np.exp(g2 / 2 - np.sqrt(g2) * z)
    spread_o = np.sqrt((np.exp(g2) * (kind.square or 1.0) - 1) / block_kv)
    return Rows(term, np.sqrt(np.expm1(g2) / block_kv), spread_o, random.standard_normal(ROWS))


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
        spread: (rows,), their standard deviation over their mean.
        bits: significant bits of the sum.
        more: (tiles, rows), the other roundings of the sum so far at a tile, in squares of one, (RMS u)^2.
        own: (tiles,), how often a term is rounded before it is added.

    Returns:
        The error over the exact sum's mean.
    """
    error = both = np.zeros(term.shape[1])
    place, spread_of_exact = term[0], (spread * term[0]) ** 2
    variance = own[0] * ulp(term[0], bits) ** 2 / 12
    for t in range(1, len(term)):
        x, scale = term[t], term[t] / term[t - 1]
        place, error = place * scale, error * scale
        variance, both, spread_of_exact = (each * scale**2 for each in (variance, both, spread_of_exact))
        variance = variance + more[t] * (RMS * 2.0**-bits * place) ** 2
        # the binade that this addition ends in, or those next to it
        middle, small, noise = ulp(place + x, bits), ulp(x, bits), (spread * x) ** 2
        deviation = np.sqrt(np.maximum(variance + 2 * both + spread_of_exact, 0) + noise)
        edges = (middle * 2.0 ** np.array([[bits - 1], [bits]]) - place - x) / deviation
        below, above = special.ndtr(edges[0]) * (middle > small), special.ndtr(-edges[1])
        chance = np.stack([below, 1 - below - above, above])
        h = middle * np.array([[0.5], [1.0], [2.0]])
        mean, square, slope = one_addition(x / h, np.where(chance > 1e-4, spread * x / h, FLAT))
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
    """Follow l and O over the tiles of ROWS rows, to the error of O / l. Arguments as `theory.expected`. Where V has a
    mean of zero O has terms of all sizes, and its roundings are counted."""
    kind, of, count = VALUES[values], rows(values, tiles, block_kv), np.arange(1, tiles + 1)
    bits_l, bits_o = precision.row_sum.precision, precision.accumulator.precision
    raised = np.diff(of.term, axis=0, prepend=of.term[:1]) < 0
    fa1 = algorithm == "fa1"
    rounded = 2 - 1 / count if fa1 else np.ones(tiles)  # P V and l of a tile, and their product with exp(m_tile - m)
    l = summed(of.term, of.spread_l, bits_l, np.zeros_like(raised) if fa1 else raised, rounded)
    if kind.square is None:
        weight = float(roundings(tiles, algorithm, values, block_kv).accumulator.sum())
        carried, quotient = Error(np.zeros(ROWS), np.full(ROWS, weight * (RMS * 2.0**-bits_o) ** 2)), 0.0
    else:
        O = kind.mean * np.abs(1 + of.place * of.spread_o / np.sqrt(count)[:, None])  # (tiles, ROWS)
        more = np.where(raised, 2.0, back(O)) if fa1 else raised
        carried = summed(kind.mean * of.term, of.spread_o, bits_o, more, rounded)
        quotient = (ulp(O[-1], bits_o) / O[-1]) ** 2 / 12
    variance = (l.variance + carried.variance) / (1 + l.mean) ** 2 + quotient
    return Error((1 + carried.mean) / (1 + l.mean) - 1, variance)


def back(O: ndarray) -> ndarray:
    """Compute the square of the error of x / l * l, for x / l = O, over that of one rounding: l is even in log."""
    a = np.log2(O) % 1
    # in u^2 it is the integral of (1 - 2^-b) 4^(1 - a - b) over b from 0 to 1 - a
    return 32 * 4.0**-a * ((1 - 4.0 ** (a - 1)) / 2 - (1 - 8.0 ** (a - 1)) / 3)
