"""How the products of a matrix product are added up: compiled loops over float64 arrays, on the grids of formats.

Each computes c + a b for a (m, k), b (k, n), c and out (m, n), a few columns at a time, so that a step is one operation
on all of them.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch
from torch import Tensor

from fa_lib.numerics.formats import EXPONENT_FIELD
from fa_lib.numerics.rounding_loops import nearest

LANES = 128  # columns at a time
SLICE = 1 << 16  # products that are worth a thread
NOTHING = -(1 << 20)  # the exponent of a zero: it aligns nothing


@numba.njit(nogil=True, error_model="numpy", inline="always")
def power_of_two(e):
    """Compute 2**e, a float64, for e from -1022 to 1023."""
    return np.int64(np.int64(e + 1023) << 52).view(np.float64)


@numba.njit(nogil=True, error_model="numpy", inline="always")
def _field(x):
    return np.float64(x).view(np.int64) & EXPONENT_FIELD


@numba.njit(nogil=True, error_model="numpy", inline="always")
def _toward_zero(x, grid):
    """Round one float64 toward zero. grid: of `Format.grid`."""
    precision, low, high, largest, over = grid
    field = min(max(_field(x), low), high)
    c = np.int64(field + ((53 - precision) << 52) + (1 << 51)).view(np.float64)
    r = abs((x + c) - c)
    r -= np.int64(field - ((precision - 1) << 52)).view(np.float64) if r > abs(x) else 0.0  # one step less
    return np.copysign(over if r > largest else r, x)


@numba.njit(nogil=True, error_model="numpy")
def exponents(x, emin):
    """Compute floor(log2 |x|), int32 (m, n), at least emin, as a format's exponent field has it; NOTHING of 0.

    Args:
        x: float64 (m, n), on the grid of a format.
        emin: of the format.
    """
    out = np.empty(x.shape, np.int32)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            e = max((_field(x[i, j]) >> 52) - 1023, emin)
            out[i, j] = NOTHING if x[i, j] == 0.0 else e
    return out


@numba.njit(nogil=True, error_model="numpy")
def chained(a, b, c, out, rule, grid, to_nearest):
    """Write c + a b to out, summed as a `TensorCore` sums.

    Args:
        a: float64 (m, k).
        b: float64 (k, n).
        c, out: float64 (m, n).
        rule: emin of the factors' format, block, F, and the number of blocks after which the sum is added to another
            in FP32 (0: never).
        grid: of the result's format.
        to_nearest: whether a sum is rounded to nearest; else toward zero.
    """
    emin, block, F, flush = rule
    m, n, k_all = a.shape[0], b.shape[1], a.shape[1]
    ea, eb, emin_d = exponents(a, emin), exponents(b, emin), (grid[1] >> 52) - 1023
    top, scale, terms = np.empty(LANES, np.int32), np.empty(LANES), np.empty(LANES)
    d, total = np.empty(LANES), np.empty(LANES)
    for j0 in range(0, n, LANES):
        width = min(LANES, n - j0)
        for i in range(m):
            for j in range(width):
                d[j], total[j] = (0.0, c[i, j0 + j]) if flush else (c[i, j0 + j], 0.0)
            for first in range(0, k_all, block):
                last = min(first + block, k_all)
                for j in range(width):
                    e = max((_field(d[j]) >> 52) - 1023, emin_d)
                    top[j] = NOTHING if d[j] == 0.0 else e
                for k in range(first, last):
                    e_k, row_e = ea[i, k], eb[k, j0 : j0 + width]
                    for j in range(width):
                        top[j] = max(top[j], np.int32(e_k + row_e[j]))
                for j in range(width):
                    t = 0 if top[j] < NOTHING // 2 else top[j]  # nothing but zeros
                    top[j] = t
                    scale[j] = power_of_two(F - t)
                    terms[j] = np.trunc(d[j] * scale[j])
                for k in range(first, last):
                    a_k, row = a[i, k], b[k, j0 : j0 + width]
                    for j in range(width):
                        terms[j] += np.trunc(a_k * row[j] * scale[j])  # whole numbers: exact in any order
                for j in range(width):
                    x = terms[j] * power_of_two(top[j] - F)
                    r = nearest(x, grid) if to_nearest else _toward_zero(x, grid)
                    d[j] = d[j] if np.isinf(d[j]) else r
                if flush and (last == k_all or (first // block + 1) % flush == 0):
                    for j in range(width):
                        total[j] = np.float64(np.float32(total[j] + d[j]))
                        d[j] = d[j] if np.isinf(d[j]) else 0.0
            for j in range(width):
                out[i, j0 + j] = total[j] if flush else d[j]


@numba.njit(nogil=True, error_model="numpy")
def sequential(a, b, c, out, grid):
    """Write c + a b to out, every product and addition rounded to nearest, in order, c first. A grid of 53 bits leaves
    float64's own rounding. Shapes: as of `chained`."""
    m, n = out.shape
    own, acc = grid[0] == 53, np.empty(LANES)
    for j0 in range(0, n, LANES):
        width = min(LANES, n - j0)
        for i in range(m):
            acc[:width] = c[i, j0 : j0 + width]
            for k in range(a.shape[1]):
                a_k, row = a[i, k], b[k, j0 : j0 + width]
                for j in range(width):
                    x = a_k * row[j]
                    acc[j] = acc[j] + x if own else nearest(acc[j] + nearest(x, grid), grid)
            out[i, j0 : j0 + width] = acc[:width]


def threaded(loop: Callable, a: Tensor, b: Tensor, c: Tensor, *args) -> Tensor:
    """Compute c + a b by one of the loops, on as many threads as torch uses where there is enough to do.

    Args:
        loop: a loop of this file, or `double_double.rounded`.
        a: float64 (batch, m, k).
        b: float64 (batch, k, n).
        c: float64 (batch, m, n).
        args: the loop's further arguments.

    Returns:
        float64 (batch, m, n).
    """
    out = torch.empty(c.shape, dtype=torch.float64)
    x, y, z, result = (tensor.contiguous().numpy() for tensor in (a, b, c, out))
    threads = 1 if out.numel() * a.shape[-1] < SLICE else torch.get_num_threads()
    size = max(1, -(-a.shape[1] // threads))
    tasks = [(t, slice(i, i + size)) for t in range(a.shape[0]) for i in range(0, a.shape[1], size)]

    def work(task):
        t, i = task
        loop(x[t, i], y[t], z[t, i], result[t, i], *args)

    if len(tasks) == 1 or threads == 1:
        for task in tasks:
            work(task)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, tasks))
    return _with_special(out, a, b, c)


def _with_special(out, a, b, c):
    """Replace elements of out by the exact sum's NaN and infinity where a factor or c is not finite."""
    if all(x.sum().isfinite() for x in (a, b, c)):  # a sum that overflows is looked at like infinity
        return out
    rows, columns = ~a.isfinite().all(-1), ~b.isfinite().all(-2)
    special = rows[:, :, None] | columns[:, None, :] | ~c.isfinite()
    return torch.where(special, c + a @ b, out) if special.any() else out
