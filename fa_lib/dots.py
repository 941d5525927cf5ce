"""Dot: how the products of a dot product are summed. Float64 in and out, values on the grids of their formats.

A matrix product of the emulator is, by default, the exact sum, rounded once (`EXACT`). Processors do otherwise: they
round each addition in some order (`SEQUENTIAL`, `PAIRWISE`), or, as tensor cores do, truncate (`TensorCore`). Float64's
own last bits of an exact sum belong to the machine; `DOUBLE_DOUBLE` defines them.

No TensorCore has block scales (MXFP8, MXFP4 and NVFP4 on a B200). Widths are known (arXiv 2511.10909: 32 products at 25
bits; 64 in exact groups of 16 at 35 bits). But there are no measured vectors to hold a model against, and it is open
how the exponents of scales and of subnormal elements, and an E4M3 scale's own bits, enter the alignment.
`kernels.quantization` sums such products exactly.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fa_lib import adders, double_double, on_device
from fa_lib.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format, FormatLike

E8M13 = replace(Format.of((8, 14)), name="E8M13")  # of FP8 products: FP32's exponents and 13 fraction bits
VANISHES, FEW = -746.0, 1 << 12  # below it exp(x) is 0 in float64; values that are not looked through for such
SLICE = 1 << 16  # products that are worth a thread
MEASURED = "arXiv 2511.10909; measured, arXiv 2512.07004"
BY_SOURCE = "arXiv 2511.10909"


class Dot:
    """A way to sum the products of a dot product."""

    def __call__(
        self, a: Float64[Tensor, "... k"], b: Float64[Tensor, "... k"], c: Float64[Tensor, "..."] | None = None
    ) -> Float64[Tensor, "..."]:
        """c + sum_k a_k b_k.

        Args:
            a, b: (..., k), that broadcast. c: (...), what the sum begins with; None is 0.

        Returns:
            float64 (...).

        Raises:
            ValueError: a tensor is no float64, or does not fit.
        """
        for name, x in (("a", a), ("b", b), ("c", c)):
            if x is not None and x.dtype != torch.float64:
                raise ValueError(f"{name}: got {x.dtype}; accepted is torch.float64, with values of the format")
        if a.shape[-1] != b.shape[-1]:
            raise ValueError(f"b: got {b.shape[-1]} factors; accepted are as many as a's, {a.shape[-1]}")
        a, b = torch.broadcast_tensors(a, b)
        c = a.new_zeros(a.shape[:-1]) if c is None else c.expand(a.shape[:-1])
        rows = a.reshape(-1, 1, a.shape[-1]), b.reshape(-1, a.shape[-1], 1), c.reshape(-1, 1, 1)
        return self.on_device(*rows).reshape(a.shape[:-1])

    def matmul(
        self, A: Float64[Tensor, "... m k"], B: Float64[Tensor, "... k n"], C: Float64[Tensor, "... m n"] | None = None
    ) -> Float64[Tensor, "... m n"]:
        """C + A B, every element as `__call__` has it."""
        lead = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
        m, n = A.shape[-2], B.shape[-1]
        C = A.new_zeros(*lead, m, n) if C is None else C.expand(*lead, m, n)
        A, B, C = (x.expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (A, B, C))
        product = self.compiled if A.device.type == "cpu" else self.on_device
        return product(A, B, C).reshape(*lead, m, n)

    def compiled(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """c + a b on a CPU; a: (batch, m, k), b: (batch, k, n), c: (batch, m, n)."""
        raise NotImplementedError

    def on_device(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """The same in torch's operations, on any device."""
        raise NotImplementedError

    def totals(self, P: Tensor) -> Tensor:
        """The sum of each row, (..., keys) -> (..., 1): exact, but for float64's own last bits."""
        return P.sum(-1, keepdim=True)

    def exp_(self, x: Tensor) -> Tensor:
        """exp(x), x overwritten: torch's, whose last bit of float64 changes with the processor's instructions."""
        if not x.is_cpu or x.numel() < FEW or not x.amin() < VANISHES:
            return torch.exp_(x)
        hidden = x < VANISHES  # on a CPU, torch takes twenty times as long and more where exp(x) is 0
        return x.masked_fill_(hidden, 0.0).exp_().masked_fill_(hidden, 0.0)


@dataclass(frozen=True)
class Exact(Dot):
    """The exact sum, but for float64's own last bits: whoever stores it rounds it, once."""

    def matmul(self, A: Tensor, B: Tensor, C: Tensor | None = None) -> Tensor:
        return A @ B if C is None else C + A @ B

    def on_device(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return c + a @ b


@dataclass(frozen=True)
class DoubleDouble(Dot):
    """The sum with twice float64's bits, added up in order and rounded to float64 once. Row sums too, and exp is good
    to 2**-98 before it is rounded; so that attention has the same bits on any machine, in FP64 and in FP32. What a
    softcap, merged splits, a folded scale and the backward pass take from torch (tanh, exp, exp2) stays the machine's.

    Factors of 2**996 and more overflow where they are split, and give NaN.
    """

    def compiled(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return _threaded(double_double.rounded, a, b, c)

    def on_device(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.compiled(*(x.cpu() for x in (a, b, c))).to(a.device)  # on a CPU, whatever the device

    def totals(self, P: Tensor) -> Tensor:
        return self.matmul(P.new_ones(1, P.shape[-1]), P.mT).mT

    def exp_(self, x: Tensor) -> Tensor:
        values = x.cpu().contiguous().numpy()  # of any device: there is no other exp of so many bits
        high, _ = double_double.exp(values, np.zeros_like(values))
        return torch.from_numpy(high).to(x.device)


@dataclass(frozen=True)
class Ordered(Dot):
    """Every product and every addition is rounded to a format, in an order: "sequential", c first; or "pairwise":
    neighbours, then neighbours of these sums, what is left over last, then c."""

    fmt: Format
    order: str = "sequential"

    def compiled(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return _threaded(adders.LOOPS[self.order], a, b, c, self.fmt.grid)

    def on_device(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return on_device.ordered(self.fmt, self.order, a, b.mT, c)


@dataclass(frozen=True)
class TensorCore(Dot):
    """c + sum_k a_k b_k as a GPU's matrix unit has it, `block` products at a time:

    the products are exact; every term, c among them, is aligned to the largest exponent (of a product the sum of its
    factors' exponents) and truncated F bits below it; the truncated terms are added exactly; and the sum is rounded to
    the result's format, by which it is the next block's c. What is no block at the end is filled with zeros.

    Attributes:
        unit, inputs: "H100", and the Format of a and b. block, F: as above.
        result, to_nearest: the Format of a sum, and whether it is rounded to nearest, ties to even; else toward zero.
        two_level: after so many blocks the sum is added, in FP32, to another one, and begins anew; None: never.
        source: where block, F and result are from. measured: a model with them has the bits of vectors that were
            measured on that GPU (arXiv 2512.07004).
    """

    unit: str
    inputs: Format
    block: int
    F: int
    result: Format = FP32
    to_nearest: bool = False
    two_level: int | None = None
    source: str = BY_SOURCE
    measured: bool = False

    @classmethod
    def of(
        cls, unit: str, inputs: FormatLike, *, result: FormatLike = FP32, two_level: int | None = None
    ) -> "TensorCore":
        """The matrix unit of a GPU.

        Args:
            unit: "V100", "A100", "L40S", "H100", "H200", "B200". inputs: the Format of a and b, of those in UNITS.
            result: FP16 where the instruction gives FP16; otherwise what it has.
            two_level: blocks after which a sum is added to another in FP32, as DeepSeek-V3 (4) does for FP8.

        Raises:
            ValueError: there is no such unit, or it has no such inputs.
        """
        fmt, result = Format.of(inputs), Format.of(result)
        there = [each for each in UNITS if each.unit == unit]
        if not there:
            raise ValueError(f"unit: got {unit!r}; accepted are {', '.join(dict.fromkeys(u.unit for u in UNITS))}")
        found = next((each for each in there if each.inputs == fmt), None)
        if found is None:
            raise ValueError(f"inputs: got {fmt} for {unit}; accepted are {', '.join(str(u.inputs) for u in there)}")
        if two_level is not None and (type(two_level) is not int or two_level < 1):
            raise ValueError(f"two_level: got {two_level!r}; accepted is a whole number from 1, or None")
        if result == FP16:
            if fmt != FP16:
                raise ValueError(f"result: got FP16 for {fmt}; accepted is FP32")
            found = replace(found, result=FP16, to_nearest=True)
        return replace(found, two_level=two_level)

    def compiled(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        rule = self.inputs.emin, self.block, self.F, self.two_level or 0
        return _threaded(adders.chained, a, b, c, rule, self.result.grid, self.to_nearest)

    def on_device(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return on_device.chained(self, a, b.mT, c)


EXACT, DOUBLE_DOUBLE = Exact(), DoubleDouble()


def SEQUENTIAL(fmt: FormatLike) -> Ordered:
    """Every product and addition rounded to fmt, in order: one thread of a processor without fused multiply-add."""
    return Ordered(Format.of(fmt))


def PAIRWISE(fmt: FormatLike) -> Ordered:
    """Every product and addition rounded to fmt, neighbours first."""
    return Ordered(Format.of(fmt), "pairwise")


def _units(unit: str, block: int, F: int, *inputs: Format, source: str = MEASURED, **more) -> list[TensorCore]:
    return [TensorCore(unit, fmt, block, F, source=source, measured=source == MEASURED, **more) for fmt in inputs]


_FP8: dict[str, Any] = dict(result=E8M13)
UNITS = [
    *_units("V100", 4, 23, FP16),
    *_units("A100", 8, 24, FP16, BF16),
    *_units("A100", 4, 24, TF32),
    *_units("L40S", 8, 24, FP16),
    *_units("L40S", 8, 24, BF16, source=BY_SOURCE),
    *_units("L40S", 4, 24, TF32, source=BY_SOURCE),
    *_units("L40S", 16, 13, E4M3, E5M2, **_FP8),
    *(row for unit in ("H100", "H200") for row in (
        *_units(unit, 16, 25, FP16, BF16),
        *_units(unit, 8, 25, TF32),
        *_units(unit, 32, 13, E4M3, E5M2, **_FP8),  # measured with c = 0 alone
    )),
    *_units("B200", 16, 25, FP16, BF16),
    *_units("B200", 8, 25, TF32, source=BY_SOURCE),
    *_units("B200", 32, 25, E4M3, to_nearest=True),  # by the source toward zero, which 1 of 3 measured vectors is not
    *_units("B200", 32, 25, E5M2, to_nearest=True, source=BY_SOURCE),
]  # fmt: skip


def _threaded(loop: Callable, a: Tensor, b: Tensor, c: Tensor, *args) -> Tensor:
    """c + a b by a loop of `adders`, on as many threads as torch uses where there is enough to do."""
    out = torch.empty(c.shape, dtype=torch.float64)
    x, y, z, there = (each.contiguous().numpy() for each in (a, b, c, out))
    size = a.shape[1] if out.numel() * a.shape[-1] < SLICE else -(-a.shape[1] // torch.get_num_threads())
    parts = [(t, slice(i, i + size)) for t in range(a.shape[0]) for i in range(0, a.shape[1], size)]

    def work(part):
        t, i = part
        loop(x[t, i], y[t], z[t, i], there[t, i], *args)

    if len(parts) == 1 or torch.get_num_threads() == 1:
        for part in parts:
            work(part)
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(work, parts))
    return on_device.with_special(out, a, b.mT, c)
