"""The sums of `dots` in torch's operations, for devices on which no compiled loop runs: the same bits."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fa_lib.numerics.formats import Format, round_to

CHUNK = 1 << 25  # products at a time
NOTHING = -(1 << 20)  # the exponent of a zero: it aligns nothing


def tensor_core_sum(core: Any, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """c + a bᵀ as a `TensorCore` has it. a: (batch, m, k), b: (batch, n, k), c: (batch, m, n), float64."""

    def some(a, b, c):
        d, total = (torch.zeros_like(c), c) if core.two_level else (c, torch.zeros_like(c))
        blocks = range(0, a.shape[-1], core.block)
        for i, first in enumerate(blocks):
            x, y = (each[..., first : first + core.block] for each in (a, b))
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

    return in_chunks(some, a, b, c, core.block)


def with_exponents(x: Tensor, scale: Tensor, fmt: Any, group: int) -> Tensor:
    """The values of elements x (..., k) with their scales (..., k / size), and beside them (..., k / group) what each
    group adds to the exponent of its term. fmt: one of `block_formats.BLOCKS`."""
    e = exponents(scale, fmt.scale).repeat_interleave(fmt.size // group, -1)
    e = e + exponents(x, fmt.element) if group == 1 else e
    return torch.cat([x * scale.repeat_interleave(fmt.size, -1), e.double()], -1)


def block_scaled_sum(core: Any, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """c + a bᵀ as a `ScaledCore` has it; shapes as of `tensor_core_sum`, a and b as of `with_exponents`."""
    count = a.shape[-1] * core.group // (core.group + 1)  # of values

    def some(a, b, d):
        for first in range(0, count, core.block):
            last = min(first + core.block, count)
            x, y = (each[..., first:last].unflatten(-1, (-1, core.group)) for each in (a, b))
            products = x[:, :, None] * y[:, None]  # (batch, rows, n, groups, group)
            e_x, e_y = (each[..., count + first // core.group : count + last // core.group].long() for each in (a, b))
            e = (e_x[:, :, None] + e_y[:, None]).where((products != 0).any(-1), NOTHING)
            top = torch.maximum(e.amax(-1), exponents(d, core.result).where(d != 0, core.zero))
            scale = power(core.F - top)
            terms = torch.trunc(d * scale) + torch.trunc(products.sum(-1) * scale[..., None]).sum(-1)
            d = d.where(d.isinf(), overflowing(terms * power(top - core.F), core.result, False))
        return d

    return in_chunks(some, a, b, c, core.block)


def ordered_sum(fmt: Format, order: str, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """c + a bᵀ as an `Ordered` has it; shapes as of `tensor_core_sum`."""

    def some(a, b, c):
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

    return in_chunks(some, a, b, c, 1 if order == "sequential" else a.shape[-1])


def in_chunks(some: Callable, a: Tensor, b: Tensor, c: Tensor, width: int) -> Tensor:
    """some(a, b, c) of a few rows of a at a time, and what is not finite as the exact sum has it; a: (batch, m, k), b:
    (batch, n, k), c and the result: (batch, m, n)."""
    rows = max(1, CHUNK // max(1, a.shape[0] * b.shape[1] * width))
    parts = [some(a[:, i : i + rows], b, c[:, i : i + rows]) for i in range(0, a.shape[1], rows)]
    return with_special(torch.cat(parts, 1), a, b, c)


def with_special(out: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """`out` (batch, m, n) with the exact sum's NaN and infinity where a factor or c is one; shapes as of
    `in_chunks`."""
    if all(x.sum().isfinite() for x in (a, b, c)):  # a sum that overflows is looked at like infinity
        return out
    rows, columns = (~x.isfinite().all(-1) for x in (a, b))
    special = rows[:, :, None] | columns[:, None, :] | ~c.isfinite()
    return torch.where(special, c + a @ b.mT, out) if special.any() else out


def exponents(x: Tensor, fmt: Format) -> Tensor:
    """floor(log2 |x|) as int64 in x's shape, at least the format's emin; NOTHING of 0."""
    e = ((x.contiguous().view(torch.int64) >> 52 & 0x7FF) - 1023).clamp(min=fmt.emin)
    return e.where(x != 0, NOTHING)


def power(e: Tensor) -> Tensor:
    """2**e of int64, as float64, in e's shape."""
    return (e + 1023 << 52).view(torch.float64)


def overflowing(x: Tensor, fmt: Format, to_nearest: bool) -> Tensor:
    """x, of any shape, rounded to a format, to nearest or toward zero; what is beyond the largest number then is
    infinity."""
    r = round_to(x, fmt, "nearest" if to_nearest else "toward_zero")
    return torch.copysign(r.abs().where(x.abs() < 2.0 ** (fmt.emax + 1), torch.inf), x)
