"""How a GPU's matrix unit sums products: `TensorCore`, with its numbers for every unit in UNITS."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fa_lib.numerics import sum_loops
from fa_lib.numerics.dots import Dot
from fa_lib.numerics.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format, FormatLike

E8M13 = replace(Format.of((8, 14)), name="E8M13")  # of FP8 products: FP32's exponents and 13 fraction bits
MEASURED = "arXiv 2511.10909; measured, arXiv 2512.07004"
BY_SOURCE = "arXiv 2511.10909"


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
        cls, unit: str, inputs: FormatLike, *, result: FormatLike | None = None, two_level: int | None = None
    ) -> "TensorCore":
        """Return the matrix unit of a GPU for a format.

        Args:
            unit: "V100", "A100", "L40S", "H100", "H200", "B200".
            inputs: the Format of a and b, of those in UNITS.
            result: the Format of a sum. None is the instruction's default; for FP16 inputs FP16 is accepted too.
            two_level: blocks after which a sum is added to another in FP32, as DeepSeek-V3 (4) does for FP8.

        Raises:
            ValueError: there is no such unit, or it has no such inputs or no such result.
        """
        fmt = Format.of(inputs)
        by_inputs = {core_of_unit.inputs: core_of_unit for core_of_unit in UNITS if core_of_unit.unit == unit}
        if not by_inputs:
            raise ValueError(f"unit: got {unit!r}; accepted are {', '.join(dict.fromkeys(u.unit for u in UNITS))}")
        if fmt not in by_inputs:
            raise ValueError(f"inputs: got {fmt} for {unit}; accepted are {', '.join(map(str, by_inputs))}")
        core = by_inputs[fmt]
        if two_level is not None and (type(two_level) is not int or two_level < 1):
            raise ValueError(f"two_level: got {two_level!r} for {fmt}; accepted is a whole number from 1, or None")
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
]  # fmt: skip
