"""How a GPU's matrix unit sums products: `TensorCore`, with its numbers for every unit in UNITS.

Factors with block scales (MXFP8, MXFP4 and NVFP4 on a B200) are summed by a `ScaledCore`.
"""

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fa_lib.numerics import sum_loops
from fa_lib.numerics.block_formats import BLOCKS, MXFP4, MXFP8, MXFP8_E5M2, NVFP4, Blocks
from fa_lib.numerics.dots import Dot
from fa_lib.numerics.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format, FormatLike
from fa_lib.numerics.sum_loops import NOTHING

E8M13 = replace(Format.of((8, 14)), name="E8M13")  # of FP8 products: FP32's exponents and 13 fraction bits
MEASURED = "arXiv 2511.10909; measured, arXiv 2512.07004"
BY_SOURCE = "arXiv 2511.10909"
SIMULATOR = "arXiv 2511.10909 and its simulator, github.com/microsoft/MMA-Sim"
Scales: TypeAlias = tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class TensorCore(Dot):
    """Sums c + sum_k a_k b_k as a GPU's matrix unit does, `block` products at a time.

    The products are exact. Every term, c among them, is aligned to the largest exponent (a product's exponent is the
    sum of its factors' exponents) and truncated F bits below it. The truncated terms are added exactly, and the sum is
    rounded to the result's format; it is the next block's c. An incomplete block at the end is filled with zeros.

    Attributes:
        unit: name of the GPU, "H100".
        inputs: the Format of a and b.
        block, F: as above.
        result: the Format of a sum.
        to_nearest: whether a sum is rounded to nearest, ties to even; else toward zero.
        two_level: after so many blocks the sum is added, in FP32, to another one, and begins anew; None: never.
        source: where block, F and result are from.
        measured: whether a model with these numbers has the bits of vectors that were measured on that GPU (arXiv
            2512.07004).
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
        cls, unit: str, inputs: FormatLike | Blocks, *, result: FormatLike | None = None, two_level: int | None = None
    ) -> "TensorCore":
        """Return the matrix unit of a GPU for a format.

        Args:
            unit: "V100", "A100", "L40S", "H100", "H200", "B200".
            inputs: the Format of a and b, of those in UNITS; with block scales "MXFP8", "MXFP8_E5M2", "MXFP4" or
                "NVFP4", of a B200: a `ScaledCore`.
            result: the Format of a sum. None is the instruction's default; for FP16 inputs FP16 is accepted too.
            two_level: blocks after which a sum is added to another in FP32, as DeepSeek-V3 (4) does for FP8.

        Raises:
            ValueError: there is no such unit, or it has no such inputs or no such result.
        """
        fmt = inputs if isinstance(inputs, Blocks) else BLOCKS.get(str(inputs)) or Format.of(inputs)
        by_inputs = {core_of_unit.inputs: core_of_unit for core_of_unit in UNITS if core_of_unit.unit == unit}
        if not by_inputs:
            raise ValueError(f"unit: got {unit!r}; accepted are {', '.join(dict.fromkeys(u.unit for u in UNITS))}")
        if fmt not in by_inputs:
            raise ValueError(f"inputs: got {fmt} for {unit}; accepted are {', '.join(map(str, by_inputs))}")
        core = by_inputs[fmt]
        is_scaled = isinstance(core, ScaledCore)
        if two_level is not None and (is_scaled or type(two_level) is not int or two_level < 1):
            accepted = f"{'' if is_scaled else 'a whole number from 1, or '}None"
            raise ValueError(f"two_level: got {two_level!r} for {fmt}; accepted is {accepted}")
        requested = core.result if result is None else Format.of(result)
        if requested == FP16 == fmt:
            core = replace(core, result=FP16, to_nearest=True)
        if requested != core.result:
            accepted = f"{core.result}{' and FP16' if fmt == FP16 else ''}"
            raise ValueError(f"result: got {requested} for {fmt} on {unit}; accepted is {accepted}")
        return replace(core, two_level=two_level)

    def summed(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Compute c + a b, (batch, m, n), as `Dot.summed`. An infinity may meet the opposite infinity of a sum that
        overflowed in an earlier block, which gives NaN: where there is one, blocks are summed one by one."""
        k, rule = a.shape[-1], (self.inputs.emin, self.block, self.F, self.two_level or 0)
        step = k if self.two_level or all(x.sum().isfinite() for x in (a, b, c)) else self.block
        for first in range(0, k, max(1, step)):
            factors = a[..., first : first + step], b[..., first : first + step, :]
            c = sum_loops.threaded(sum_loops.chained, *factors, c, rule, self.result.grid, self.to_nearest)
        return c


@dataclass(frozen=True)
class ScaledCore(TensorCore):
    """A TensorCore whose factors are elements with block scales. The rules are those of arXiv 2511.10909's simulator.

    MXFP8: a term is a product with both scales; its exponent is the sum of the elements' and the scales' exponents.
    MXFP4 and NVFP4: a term is the exact sum of `group` products with both scales; its exponent is the sum of the
    scales' exponents alone, whatever the elements and an E4M3 scale's own bits are. A group whose products cancel
    aligns the others all the same; one whose products are all zero does not.

    Subnormal elements and scales have the smallest exponent of their format. A c of 0 has the exponent `zero`.

    Open: where c's exponent is above the scales' and below the largest product's, another model, compared with a B200
    (github.com/sf-tensor/tcgen05), truncates groups 35 bits below the scales'. To differ, these must lie 2**27 apart.

    Attributes:
        inputs: one of BLOCKS.
        group, zero: as above.
    """

    inputs: Blocks
    group: int = 1
    zero: int = -133

    def __call__(self, a: Tensor, b: Tensor, c: Tensor | None = None, scales: Scales = None) -> Tensor:
        """Compute c + sum_k a_k b_k, float64 (...), of elements a and b, float64 (..., K), and c in FP32, (...) or None
        for 0. scales: a's and b's, float64 (..., K / size) each, >= 0. A ValueError: there are none, or a tensor is no
        float64 or does not fit."""
        a, b = self._with_exponents(a, b, scales)
        return super().__call__(a, b, c)

    def matmul(self, A: Tensor, B: Tensor, C: Tensor | None = None, scales: Scales = None) -> Tensor:
        """Compute C + A B, float64 (..., m, n), each element as `__call__` does, of A (..., m, K) and B (..., K, n).
        scales: A's, (..., m, K / size), and B's, (..., K / size, n)."""
        a, b = self._with_exponents(A, B.mT, scales and (scales[0], scales[1].mT))
        return super().matmul(a, b.mT, C)

    def _with_exponents(self, a: Tensor, b: Tensor, scales: Scales) -> list[Tensor]:
        fmt, k = self.inputs, a.shape[-1]
        if scales is None:
            raise ValueError("scales: got None; accepted are a's and b's, as kernels.quantized_attention has them")
        for name, x, scale in (("a", a, scales[0]), ("b", b, scales[1])):
            if not x.shape[-1] == k == scale.shape[-1] * fmt.size or scale.dtype != torch.float64:
                got = f"{name}: got {x.shape[-1]} elements with {scale.shape[-1]} scales in {scale.dtype}"
                raise ValueError(f"{got}; accepted are a's {k}, with a scale in float64 for every {fmt.size} of them")
        return [with_exponents(x, scale, fmt, self.group) for x, scale in zip((a, b), scales)]

    def summed(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Compute c + a b, (batch, m, n), as `Dot.summed`."""
        rule = self.block, self.group, self.F, self.zero
        return sum_loops.threaded(sum_loops.grouped, a, b, c, rule, self.result.grid)


def with_exponents(x: Tensor, scale: Tensor, fmt: Blocks, group: int) -> Tensor:
    """Multiply elements x, float64 (..., k), by their scales, float64 (..., k / size), and append the exponents of
    their groups, whose `group` products make one term.

    Returns float64 (..., k + k / group): the k values, then the number that each group adds to the exponent of its
    term.
    """
    e = _exponents(scale, fmt.scale).repeat_interleave(fmt.size // group, -1)
    e = e + _exponents(x, fmt.element) if group == 1 else e
    return torch.cat([x * scale.repeat_interleave(fmt.size, -1), e.double()], -1)


def _exponents(x: Tensor, fmt: Format) -> Tensor:
    """Compute floor(log2 |x|), int64 of x's shape, at least the format's emin; NOTHING of 0."""
    e = ((x.contiguous().view(torch.int64) >> 52 & 0x7FF) - 1023).clamp(min=fmt.emin)
    return e.where(x != 0, NOTHING)


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
