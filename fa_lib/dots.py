"""Dot: how the products of a dot product are summed. Float64 in and out, values on the grids of their formats.

A matrix product of the emulator is, by default, the exact sum, rounded once (`EXACT`). Processors do otherwise: they
round each addition in some order (`SEQUENTIAL`, `PAIRWISE`), or, as tensor cores do, truncate (`TensorCore`). Float64's
own last bits of an exact sum belong to the machine; `DOUBLE_DOUBLE` defines them. Factors with block scales (MXFP8,
MXFP4 and NVFP4 on a B200) are summed by a `ScaledCore`.
"""

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fa_lib import adders, double_double, on_device
from fa_lib.block_formats import BLOCKS, MXFP4, MXFP8, MXFP8_E5M2, NVFP4, Blocks
from fa_lib.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format, FormatLike

E8M13 = replace(Format.of((8, 14)), name="E8M13")  # of FP8 products: FP32's exponents and 13 fraction bits
VANISHES, FEW = -746.0, 1 << 12  # below it exp(x) is 0 in float64; values that are not looked through for such
MEASURED = "arXiv 2511.10909; measured, arXiv 2512.07004"
BY_SOURCE = "arXiv 2511.10909"
SIMULATOR = "arXiv 2511.10909 and its simulator, github.com/microsoft/MMA-Sim"
Scales: TypeAlias = tuple[Tensor, Tensor] | None


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

    def scores(self, Q: Float64[Tensor, "... m d"], K: Float64[Tensor, "... n d"]) -> Float64[Tensor, "... m n"]:
        """Q Kᵀ. P V is a `matmul`: a Dot may quantise the operands of each product in its own way."""
        return self.matmul(Q, K.mT)

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
        return adders.threaded(double_double.rounded, a, b, c)

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
        return adders.threaded(adders.LOOPS[self.order], a, b, c, self.fmt.grid)

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
            unit: "V100", "A100", "L40S", "H100", "H200", "B200". inputs: the Format of a and b, of those in UNITS; with
                block scales "MXFP8", "MXFP8_E5M2", "MXFP4" or "NVFP4", of a B200: a `ScaledCore`.
            result: FP16 where the instruction gives FP16; otherwise what it has.
            two_level: blocks after which a sum is added to another in FP32, as DeepSeek-V3 (4) does for FP8.

        Raises:
            ValueError: there is no such unit, or it has no such inputs.
        """
        fmt, result = BLOCKS.get(str(inputs)) or Format.of(inputs), Format.of(result)
        there = [each for each in UNITS if each.unit == unit]
        if not there:
            raise ValueError(f"unit: got {unit!r}; accepted are {', '.join(dict.fromkeys(u.unit for u in UNITS))}")
        found = next((each for each in there if each.inputs == fmt), None)
        if found is None:
            raise ValueError(f"inputs: got {fmt} for {unit}; accepted are {', '.join(str(u.inputs) for u in there)}")
        if two_level is not None and (type(two_level) is not int or two_level < 1):
            raise ValueError(f"two_level: got {two_level!r}; accepted is a whole number from 1, or None")
        if two_level is not None and isinstance(found, ScaledCore):
            raise ValueError(f"two_level: got {two_level!r} for {fmt}; accepted is None")
        if result == FP16:
            if fmt != FP16:
                raise ValueError(f"result: got FP16 for {fmt}; accepted is FP32")
            found = replace(found, result=FP16, to_nearest=True)
        return replace(found, two_level=two_level)

    def compiled(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        rule = self.inputs.emin, self.block, self.F, self.two_level or 0
        return adders.threaded(adders.chained, a, b, c, rule, self.result.grid, self.to_nearest)

    def on_device(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return on_device.chained(self, a, b.mT, c)


@dataclass(frozen=True)
class ScaledCore(TensorCore):
    """A TensorCore whose factors are elements with block scales. The rules are those of arXiv 2511.10909's simulator:

    MXFP8: a term is a product with both scales; its exponent is the sum of the elements' and the scales' exponents.
    MXFP4 and NVFP4: a term is the exact sum of `group` products with both scales; its exponent is the sum of the
    scales' exponents alone, whatever the elements and an E4M3 scale's own bits are. A group whose products cancel
    aligns the others all the same; one whose products are all zero does not.

    Subnormal elements and scales have the smallest exponent of their format. A c of 0 has the exponent `zero`.

    Open: where c's exponent is above the scales' and below the largest product's, another model, held against a B200
    (github.com/sf-tensor/tcgen05), truncates groups 35 bits below the scales'. To differ, these must lie 2**27 apart.

    Attributes:
        inputs: one of BLOCKS. group, zero: as above.
    """

    inputs: Blocks
    group: int = 1
    zero: int = -133

    def __call__(self, a: Tensor, b: Tensor, c: Tensor | None = None, scales: Scales = None) -> Tensor:
        """c + sum_k a_k b_k, float64 (...).

        Args:
            a, b: float64 (..., K), elements. c: float64 (...), in FP32. scales: of each, float64 (..., K / size), >= 0.

        Raises:
            ValueError: there are no scales, or a tensor is no float64 or does not fit.
        """
        a, b = self._with_exponents(a, b, scales)
        return super().__call__(a, b, c)

    def matmul(self, A: Tensor, B: Tensor, C: Tensor | None = None, scales: Scales = None) -> Tensor:
        """C + A B, every element as `__call__` has it. scales: (..., m, K / size) and (..., K / size, n)."""
        a, b = self._with_exponents(A, B.mT, scales and (scales[0], scales[1].mT))
        return super().matmul(a, b.mT, C)

    def _with_exponents(self, a: Tensor, b: Tensor, scales: Scales) -> list[Tensor]:
        fmt, k = self.inputs, a.shape[-1]
        if scales is None:
            raise ValueError("scales: got None; accepted are a's and b's, as kernels.quantization has them")
        for name, x, scale in (("a", a, scales[0]), ("b", b, scales[1])):
            if not x.shape[-1] == k == scale.shape[-1] * fmt.size or scale.dtype != torch.float64:
                got = f"{name}: got {x.shape[-1]} elements with {scale.shape[-1]} scales in {scale.dtype}"
                raise ValueError(f"{got}; accepted are a's {k}, with a scale in float64 for every {fmt.size} of them")
        return [on_device.with_exponents(x, scale, fmt, self.group) for x, scale in zip((a, b), scales)]

    def compiled(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        rule = self.block, self.group, self.F, self.zero
        return adders.threaded(adders.grouped, a, b, c, rule, self.result.grid)

    def on_device(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return on_device.grouped(self, a, b.mT, c)


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
    *_units("B200", 32, 25, E4M3, to_nearest=True),  # the source: toward zero, as 2 of 3 measured vectors; nearest: all
    *_units("B200", 32, 25, E5M2, to_nearest=True, source=BY_SOURCE),
    *(ScaledCore("B200", fmt, 32, 25, source=SIMULATOR) for fmt in (MXFP8, MXFP8_E5M2)),
    *(ScaledCore("B200", fmt, 64, 35, source=SIMULATOR, group=16, zero=-139) for fmt in (MXFP4, NVFP4)),
]  # fmt: skip
