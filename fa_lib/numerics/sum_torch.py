"""The sums of `dots` in torch's operations, for devices on which no compiled loop runs: the same bits."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fa_lib.numerics.formats import Format, round_to

CHUNK = 1 << 25  # products at a time
NOTHING = -(1 << 20)  # the exponent of a zero: it aligns nothing


def tensor_core_sum(core: Any, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Compute c + a bᵀ as a `TensorCore` sums.

    Args:
        core: the TensorCore.
        a: float64 (batch, m, k).
        b: float64 (batch, n, k).
        c: float64 (batch, m, n).

    Returns:
        float64 (batch, m, n).
    """

    def sum_rows(a, b, c):
        d, total = (torch.zeros_like(c), c) if core.two_level else (c, torch.zeros_like(c))
        blocks = range(0, a.shape[-1], core.block)
        for i, first in enumerate(blocks):
            x, y = (factors[..., first : first + core.block] for factors in (a, b))
            products = x[:, :, None] * y[:, None]  # (batch, rows, n, block)
            e = exponents(x, core.inputs)[:, :, None] + exponents(y, core.inputs)[:, None]
            top = torch.maximum(e.amax(-1), exponents(d, core.result))
            nothing = top <= NOTHING // 2
            top = top.where(~nothing, 0)
            scale = power(core.F - top)
            terms = torch.trunc(d * scale) + torch.trunc(products * scale[..., None]).sum(-1)
            new = overflowing(terms * power(top - core.F), core.result, core.to_nearest)
            d = d.where(nothing | d.isinf(), new)
            if core.two_level and ((i + 1) % core.two_level == 0 or i + 1 == len(blocks)):
                total = (total + d).float().double()
                d = d.where(d.isinf(), 0.0)
        return total if core.two_level else d

    return in_chunks(sum_rows, a, b, c, core.block)


def with_exponents(x: Tensor, scale: Tensor, fmt: Any, group: int) -> Tensor:
    """Multiply elements by their scales, and append the exponents of their groups.

    Args:
        x: float64 (..., k), the elements.
        scale: float64 (..., k / size).
        fmt: one of `block_formats.BLOCKS`.
        group: number of elements whose products make one term.

    Returns:
        float64 (..., k + k / group): the k values, then the number that each group adds to the exponent of its term.
    """
    e = exponents(scale, fmt.scale).repeat_interleave(fmt.size // group, -1)
    e = e + exponents(x, fmt.element) if group == 1 else e
    return torch.cat([x * scale.repeat_interleave(fmt.size, -1), e.double()], -1)


def block_scaled_sum(core: Any, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Compute c + a bᵀ, float64 (batch, m, n), as a `ScaledCore` sums.

    Args:
        core: the ScaledCore.
        a, b: of `with_exponents`: (batch, m, k + k / group) and (batch, n, k + k / group).
        c: float64 (batch, m, n).
    """
    count = a.shape[-1] * core.group // (core.group + 1)  # of values

    def sum_rows(a, b, d):
        for first in range(0, count, core.block):
            last = min(first + core.block, count)
            x, y = (factors[..., first:last].unflatten(-1, (-1, core.group)) for factors in (a, b))
            products = x[:, :, None] * y[:, None]  # (batch, rows, n, groups, group)
            groups = slice(count + first // core.group, count + last // core.group)
            e_x, e_y = (factors[..., groups].long() for factors in (a, b))
            e = (e_x[:, :, None] + e_y[:, None]).where((products != 0).any(-1), NOTHING)
            top = torch.maximum(e.amax(-1), exponents(d, core.result).where(d != 0, core.zero))
            scale = power(core.F - top)
            terms = torch.trunc(d * scale) + torch.trunc(products.sum(-1) * scale[..., None]).sum(-1)
            d = d.where(d.isinf(), overflowing(terms * power(top - core.F), core.result, False))
        return d

    return in_chunks(sum_rows, a, b, c, core.block)


def ordered_sum(fmt: Format, order: str, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Compute c + a bᵀ as an `Ordered` of this format and order sums; shapes as of `tensor_core_sum`."""

    def sum_rows(a, b, c):
        if order == "sequential":
            for k in range(a.shape[-1]):
                c = fmt(c + fmt(a[:, :, None, k] * b[:, None, :, k]))
            return c
        terms = fmt(a[:, :, None] * b[:, None])  # (batch, rows, n, k)
        while terms.shape[-1] > 1:
            pairs = terms.shape[-1] // 2
            sums = fmt(terms[..., 0 : 2 * pairs : 2] + terms[..., 1 : 2 * pairs : 2])
            terms = torch.cat([sums, terms[..., 2 * pairs :]], -1)
        return fmt(c + terms.sum(-1))

    return in_chunks(sum_rows, a, b, c, 1 if order == "sequential" else a.shape[-1])


def in_chunks(some: Callable, a: Tensor, b: Tensor, c: Tensor, width: int) -> Tensor:
    """Call some(a, b, c) on so few rows of a at a time that the products fit in memory.

    Args:
        some: a function of rows of a, all of b, and the rows of c; it returns the sums, in c's shape.
        a: float64 (batch, m, k).
        b: float64 (batch, n, k).
        c: float64 (batch, m, n).
        width: products of one sum that `some` has in memory at once.

    Returns:
        float64 (batch, m, n); NaN and infinity as the exact sum has them.
    """
    rows = max(1, CHUNK // max(1, a.shape[0] * b.shape[1] * width))
    parts = [some(a[:, i : i + rows], b, c[:, i : i + rows]) for i in range(0, a.shape[1], rows)]
    return with_special(torch.cat(parts, 1), a, b, c)


def with_special(out: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Replace elements of out, float64 (batch, m, n), by the exact sum's NaN and infinity where a factor or c is not
    finite; shapes as of `in_chunks`."""
    if all(x.sum().isfinite() for x in (a, b, c)):  # a sum that overflows is looked at like infinity
        return out
    rows, columns = (~x.isfinite().all(-1) for x in (a, b))
    special = rows[:, :, None] | columns[:, None, :] | ~c.isfinite()
    return torch.where(special, c + a @ b.mT, out) if special.any() else out


def exponents(x: Tensor, fmt: Format) -> Tensor:
    """Compute floor(log2 |x|), int64 of x's shape, at least the format's emin; NOTHING of 0."""
    e = ((x.contiguous().view(torch.int64) >> 52 & 0x7FF) - 1023).clamp(min=fmt.emin)
    return e.where(x != 0, NOTHING)


def power(e: Tensor) -> Tensor:
    """Compute 2**e of int64 e, as float64 of e's shape."""
    return (e + 1023 << 52).view(torch.float64)


def overflowing(x: Tensor, fmt: Format, to_nearest: bool) -> Tensor:
    """Round x, float64 of any shape, to a format, to nearest or toward zero. A value beyond the largest number becomes
    infinity in both modes."""
    r = round_to(x, fmt, "nearest" if to_nearest else "toward_zero")
    return torch.copysign(r.abs().where(x.abs() < 2.0 ** (fmt.emax + 1), torch.inf), x)
