"""With how many bits the running sums O and l must be carried, by the law."""

import math
from bisect import bisect_left
from dataclasses import replace
from typing import Any

import numpy as np

from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import Format, FormatLike
from fa_lib.theory.law import largest_over_baseline
from fa_lib.theory.rounding_counts import roundings


def bits(stored: FormatLike, *, tiles: int, values: str = "one_sign", algorithm: str = "fa2") -> float:
    """Compute with how many significant bits O and l must be carried for carrying to make an error as large as storing
    the answer does: the stored bits and about half of log2(tiles) more.

    Args:
        stored: the format that the answer is stored in.
        tiles, values, algorithm: as `expected`.
    """
    return Format.of(stored).precision + 0.5 * math.log2(roundings(tiles, algorithm, values).carried())


def bits_for(times: float, stored: FormatLike, **options) -> float:
    """Compute with how many significant bits of O and l the largest error of a kernel as shipped is `times` Baseline's.

    Args:
        times: the kernel's largest error over Baseline's.
        stored: the format of Baseline.
        options: as `largest_over_baseline`: tiles, algorithm (default "fa2"), values, count, block_kv.
    """
    of_flash: dict[str, Any] = dict(algorithm="fa2") | options

    def over(count):
        fmt = Format.of((8, count))
        precision = replace(Precision.kernel(stored), accumulator=fmt, row_sum=fmt)
        return math.log2(largest_over_baseline(precision, stored, **of_flash))

    counts, limit = range(2, 25), math.log2(times)  # halved, since the error falls with every bit
    enough = bisect_left(counts, -limit, key=lambda count: -over(count))
    neighbours = counts[max(0, enough - 1) : enough + 1]
    return float(np.interp(-limit, [-over(count) for count in neighbours], neighbours))
