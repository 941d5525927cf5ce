"""Double-double: numbers of some 106 bits as a pair of float64, a sum high + low of which high is the rounding.

Every operation here is one of float64's + - × /, each rounded to nearest and in a fixed order, so that results are the
same bits on any processor, whichever instructions it offers. `add` and `multiply` take numbers, arrays and tensors.
"""

from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from fa_lib.numerics.sum_loops import LANES, power_of_two

SHIFT = 10
STEPS = 1 << SHIFT  # of exp's table, per factor of two
SPLITTER = 2.0**27 + 1
ROUNDER = 1.5 * 2.0**52  # added and subtracted, it leaves a whole number
APART = 520  # floats more between two arrays: at a distance of 1 MB a Zen 3 takes 2.6 times as long to write to both
SMALLEST, LARGEST = -746.0, 710.0  # where exp is 0 and infinity in float64


def add(a, b):
    """Add numbers, arrays or tensors of float64, which broadcast, without error: a + b is high + low. Knuth, The Art of
    Computer Programming, 4.2.2, theorem B."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def multiply(a, b):
    """Multiply them without error where nothing over- or underflows: a × b is high + low. Dekker (1971)."""
    t, u = SPLITTER * a, SPLITTER * b
    a_high, b_high = t - (t - a), u - (u - b)  # of at most 26 bits
    a_low, b_low = a - a_high, b - b_high
    p = a * b
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


inlined = numba.njit(nogil=True, error_model="numpy", inline="always")
_add = inlined(add)


def _fused(typing_context, a, b, c):
    """a b + c rounded once: an instruction of today's processors, and a function of the C library elsewhere."""
    number = types.float64
    return number(number, number, number), lambda context, builder, signature, of: builder.fma(*of)


_fma: Any = intrinsic(_fused)


@inlined
def _step(c, c_low, h, g, r, s):
    """c + h r of pairs."""
    p = h * r
    t, e = _add(c, p)
    return _add(t, ((_fma(h, r, -p) + (h * s + g * r)) + e) + c_low)


@inlined
def _onto(s, e, x, x_low, y):
    """(s + e) + (x + x_low) y of pairs; the sum of s and x y is without error."""
    p = x * y
    q = _fma(x, y, -p)
    s, r = _add(s, p)
    return s, (e + (q + r)) + x_low * y


@numba.njit(nogil=True, error_model="numpy")
def _matmul(a, a_low, b, c, high, low):
    m, n = c.shape
    s, e = np.empty(LANES), np.empty(LANES)
    full = b.shape[0] - b.shape[0] % 4
    for j0 in range(0, n, LANES):
        width = min(LANES, n - j0)
        rows = np.ascontiguousarray(b[:, j0 : j0 + width])
        for i in range(m):
            for j in range(width):
                s[j], e[j] = c[i, j0 + j], 0.0
            for k in range(0, full, 4):  # sums are loaded and stored once for four products
                row_0, row_1, row_2, row_3 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
                for j in range(width):
                    t, f = _onto(s[j], e[j], a[i, k], a_low[i, k], row_0[j])
                    t, f = _onto(t, f, a[i, k + 1], a_low[i, k + 1], row_1[j])
                    t, f = _onto(t, f, a[i, k + 2], a_low[i, k + 2], row_2[j])
                    s[j], e[j] = _onto(t, f, a[i, k + 3], a_low[i, k + 3], row_3[j])
            for k in range(full, rows.shape[0]):
                for j in range(width):
                    s[j], e[j] = _onto(s[j], e[j], a[i, k], a_low[i, k], rows[k, j])
            for j in range(width):
                high[i, j0 + j], low[i, j0 + j] = _add(s[j], e[j])


@numba.njit(nogil=True, error_model="numpy")
def _exp(x, y, high, low, values, values_low, constants):
    per, first, second, third, sixth_low, twenty_fourth_low = constants
    steps, r, s = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    v, v_low, half, rest = np.empty(LANES), np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for start in range(0, x.size, LANES):
        width = min(LANES, x.size - start)
        for i in range(width):  # x + y = k ln 2 / STEPS + r + s
            at = min(max(x[start + i], SMALLEST), LARGEST)
            k = (at * per + ROUNDER) - ROUNDER
            t, e1 = _add(at, -(k * first))
            t, e2 = _add(t, -(k * second))
            u, e3 = _add(y[start + i], -(k * third))
            t, e4 = _add(t, u)
            r[i], s[i] = _add(t, ((e1 + e2) + e3) + e4)
            steps[i] = k
        for i in range(width):
            step = np.int64(steps[i])
            v[i], v_low[i] = values[step & (STEPS - 1)], values_low[step & (STEPS - 1)]
            n = step >> SHIFT
            half[i], rest[i] = (power_of_two(n >> 1), power_of_two(n - (n >> 1)))  # 2**n, which may be no float64
        for i in range(width):  # its series, below r**4 in float64, times 2**(k / STEPS)
            t = r[i]
            h, g = _add(1 / 24, t * (1 / 120 + t * (1 / 720 + t * (1 / 5040 + t / 40320))))
            h, g = _step(1 / 6, sixth_low, h, g + twenty_fourth_low, t, s[i])
            h, g = _step(0.5, 0.0, h, g, t, s[i])
            h, g = _step(1.0, 0.0, h, g, t, s[i])
            h, g = _step(1.0, 0.0, h, g, t, s[i])
            h, g = _step(0.0, 0.0, h, g, v[i], v_low[i])
            high[start + i], low[start + i] = h * half[i] * rest[i], g * half[i] * rest[i]
        for i in range(start, start + width):
            if np.isnan(x[i]):
                high[i] = x[i]
            if high[i] == 0.0 or np.isinf(high[i]):
                low[i] = 0.0


def matmul(a, b, a_low=None, c=None):
    """Compute c + (a + a_low) b, (m, n), as high + low: products and sums in double-double, in order, c first; a, a_low
    (m, k), a_low below an ulp of a, and b (k, n) are float64, and None is 0.

    Its error is at most some k² 2**-106 of sum |a| |b| (Ogita, Rump, Oishi 2005, "Accurate sum and dot product",
    algorithm 5.3), and of the size of k**0.5 2**-106 where its roundings are independent.
    """
    shape = a.shape[0], b.shape[1]
    high, low = np.empty(shape), np.empty(shape)
    _matmul(a, np.zeros(a.shape) if a_low is None else a_low, b, np.zeros(shape) if c is None else c, high, low)
    return high, low


def rounded(a, b, c, out):
    """Write c + a b to out, the sum rounded to float64 once; a: (m, k), b: (k, n), c and out: (m, n)."""
    out[:] = matmul(a, b, c=c)[0]


def divide(a, a_low, b, b_low):
    """Divide a + a_low by b + b_low, numbers or arrays of float64 that broadcast: (high, low)."""
    first = a / b
    p, e = multiply(first, b)
    return add(first, (((a - p) - e) + a_low - first * b_low) / b)


def exp(x, y):
    """Compute exp(x + y) as high + low, to 2**-98 of its value, of float64 arrays of one shape, y below an ulp of x.

    high is the value rounded to float64, but in the subnormal range. It is NaN for NaN; beyond float64 it is 0 or
    infinity.
    """
    high, low = (row[: x.size].reshape(x.shape) for row in np.empty((2, x.size + APART)))
    _exp(x.ravel(), y.ravel(), high.ravel(), low.ravel(), *_table())
    return high, low


@lru_cache
def _table():
    """2**(j / STEPS) as pairs; and STEPS / ln 2, ln 2 / STEPS in three parts, the low parts of 1/6 and 1/24."""
    with localcontext() as context:
        context.prec = 60
        step = Decimal(2).ln() / STEPS
        powers = [(step * j).exp() for j in range(STEPS)]
        values = np.array([float(p) for p in powers])
        values_low = np.array([float(p - Decimal(v)) for p, v in zip(powers, values.tolist())])
        first = np.round(float(step) * 2.0**42) / 2.0**42  # 32 bits, so that k times it is exact
        second = np.round(float(step - Decimal(float(first))) * 2.0**75) / 2.0**75
        third = float(step - Decimal(float(first)) - Decimal(float(second)))
        lows = (float(1 / Decimal(n) - Decimal(1 / n)) for n in (6, 24))
        return values, values_low, (float(1 / step), float(first), float(second), third, *lows)
