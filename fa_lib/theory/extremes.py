"""The largest of many sums of rounding errors, where the errors are few and bounded, or many and normal."""

import math
from collections.abc import Sequence

import numpy as np

RMS = 1 / math.sqrt(8 * math.log(2))  # 0.425: of a rounding's relative error over u, for values spread evenly in log
CELLS = 2**13  # of the grid that a density is computed on
SMOOTHED = 0.01  # of a sum's standard deviation: what makes the transform of a density with edges end
WIDEST = 24  # the widest roundings of a sum count one by one; all smaller ones together are normal


def largest(count: int, spread: float = 1.0, widths: Sequence[float] = ()) -> float:
    """Compute the median of the largest magnitude among `count` independent sums of independent errors.

    A rounding's relative error is uniform within u / f, for a value f 2^e with f spread evenly in log over [1, 2), so
    that its characteristic function is the mean of sinc(s u / f) over f. Those of a sum multiply; the transform of the
    product is its density. A sum of few roundings has a largest value that no normal law knows: one has u.

    Args:
        count: number of sums.
        spread: standard deviation of a sum's normal part.
        widths: u of each rounding times its share of the sum.

    Returns:
        The median, in the unit of spread and widths.
    """
    wide = np.sort(np.asarray(widths, dtype=float))[::-1]
    spread = math.hypot(spread, RMS * float(np.linalg.norm(wide[WIDEST:])))
    wide = wide[:WIDEST]
    deviation = math.hypot(spread, RMS * float(np.linalg.norm(wide)))
    if not deviation:
        return 0.0
    half = 10 * deviation  # of the grid
    x = (np.arange(CELLS) - CELLS // 2) * (2 * half / CELLS)
    s = 2 * np.pi * np.fft.rfftfreq(CELLS, 2 * half / CELLS)  # 0 and up suffice: the transform is even
    f = 2 ** ((np.arange(16) + 0.5) / 16)
    transform = np.exp(-0.5 * s**2 * (spread**2 + (SMOOTHED * deviation) ** 2))
    for width in wide:
        transform = transform * np.sinc(np.outer(width / f, s) / np.pi).mean(0)
    density = np.fft.fftshift(np.fft.irfft(transform, CELLS)).clip(0)  # (CELLS,)
    above = np.cumsum(density[::-1])[::-1] / density.sum()  # the chance of x or more
    tail = 1 - 0.5 ** (1 / count)  # the chance that a sum exceeds the median of the largest, to either side
    return float(np.interp(-tail / 2, -above[x > 0], x[x > 0]))
