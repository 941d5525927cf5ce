"""Rounding of float64 values to a format's grid, compiled: the loops behind `formats.round_to`.

A grid is what `Format.grid` says: precision, limits of the exponent field, the largest value, what is beyond it.
"""

import ctypes
from collections.abc import Callable
from functools import cache

import numba
import numpy as np
from numba import carray, types  # pyright: ignore[reportPrivateImportUsage]

from fa_lib.numerics.formats import EXPONENT_FIELD


@numba.njit(nogil=True, error_model="numpy", inline="always")
def nearest(x, grid):
    """Round one float64 to nearest, ties to even, on a grid of `Format.grid`."""
    # Adding and subtracting c = 1.5 * 2**(e + 53 - precision), e the exponent of x held to the normal range,
    # leaves x rounded at its last kept bit by the adder's own round-to-nearest-even: normal and subnormal alike.
    precision, low, high, largest, over = grid
    field = min(max(np.float64(x).view(np.int64) & EXPONENT_FIELD, low), high)
    c = np.int64(field + ((53 - precision) << 52) + (1 << 51)).view(np.float64)
    r = abs((x + c) - c)
    return np.copysign(over if r > largest else r, x)


# Compiled anew in each process, in a fifth of a second each: numba's cache on disk carries no checksum, and of flipped
# bits in it some round wrongly in silence. It takes addresses because making an array of a tensor takes as long as
# rounding thousands of values. It is compiled twice because LLVM vectorises a loop from one array to another for arrays
# that do not overlap alone: in place that one is four times slower.
GRID = [types.int64] * 3 + [types.float64] * 2  # the types of Format.grid
C_GRID = [ctypes.c_int64] * 3 + [ctypes.c_double] * 2


@cache
def nearest_loop(in_place: bool) -> Callable:
    """Compile the loop that rounds many values, without holding the GIL.

    Returns:
        A function of two addresses, a count and a grid's five numbers. It reads `count` float64 values from the first
        address on, and writes them rounded from the second on; both are the same `in_place`, or they do not overlap.
    """

    @numba.cfunc(types.void(*[types.CPointer(types.float64)] * 2, types.int64, *GRID), error_model="numpy")
    def loop(start, to, count, precision, low, high, largest, over):
        rounded = carray(to, count)
        values = rounded if in_place else carray(start, count)
        for i in range(count):
            rounded[i] = nearest(values[i], (precision, low, high, largest, over))

    function = loop.ctypes
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, *C_GRID]
    return function
