"""Floating point: the meaning of each instruction of PTX. The text: PTX ISA, "Floating Point Instructions" and
"Half Precision Floating Point Instructions".

A result in FP32, FP16 or BF16 that is no number is the one NaN that the text names. Where an instruction says ftz,
subnormal operands are zero of their sign, and so are results that are subnormal after rounding.

The approximate instructions (ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh, div) are rounded correctly here; an H100's own
are in `special_unit`. PTX documents how far off each of them may be on a GPU: `approximate`.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import reduce

import numpy as np

from ptx_machine import series
from ptx_machine.float64_carrier import NAN, PAIRS, ROUNDINGS, bits_of, carried, clamped, flushed, numbers, odd_sum
from ptx_machine.lanes import DTYPES, Lanes, Lanewise, Meaning, refuse
from ptx_machine.syntax import Instruction

KNOWN = {*ROUNDINGS, "ftz", "sat", "approx", "full", "NaN", "relu", "f16", "bf16", "f16x2", "bf16x2", "f32", "f32x2",
         "f64"}  # fmt: skip


def halves(bits: Lanes, kind: str) -> list[Lanes]:
    """Split a packed pair (32,) into its two numbers, the lower half first; any other type gives one."""
    if kind not in PAIRS:
        return [bits]
    dtype = DTYPES[PAIRS[kind]]
    width = 8 * dtype.itemsize
    return [(bits >> shift).astype(f"uint{width}").view(dtype) for shift in (0, width)]


def joined(parts: list[Lanes]) -> Lanes:
    """Pack the two numbers of `halves` into a pair (32,); return one number as it is."""
    if len(parts) == 1:
        return parts[0]
    width = 8 * parts[0].dtype.itemsize
    low, high = (x.view(f"uint{width}").astype(f"uint{2 * width}") for x in parts)
    return low | high << width


TERMS = {  # of a sum
    "add": lambda a, b: (a, b), "sub": lambda a, b: (a, -b), "fma": lambda a, b, c: (a * b, c),
    "mad": lambda a, b, c: (a * b, c),
}  # fmt: skip


def elementwise(count: int, run: Callable[..., Lanes], nearest: Callable[..., Lanes] | None = None) -> Meaning:
    """Make the meaning of an instruction of `count` operands; of sums in FP32 all but the last may be of 16 bits.

    Args:
        count: number of operands.
        run: a function of float64 (32,), whose result is exact, rounded to odd, or good to 2**-50.
        nearest: the same of FP32 or of FP64, rounded to nearest in that format; None: `run` does that.

    Returns:
        A function of an Instruction that returns a Lanewise. It raises a ValueError for words that are not modelled.
    """

    def meaning(instruction: Instruction) -> Lanewise:
        words = {*instruction.words[1:]}
        if words - KNOWN:
            raise refuse(instruction, f"{', '.join(sorted(words - KNOWN))} is not modelled")
        mode = next((word for word in instruction.words if word in ROUNDINGS), "rn")
        kind, *others = instruction.types
        takes = (*others * (count - 1), kind) if others else (kind,) * count
        sum_of_two_types = kind == "f32" and others in (["f16"], ["bf16"]) and instruction.name in ("add", "sub", "fma")
        if others and not (sum_of_two_types and words <= {*ROUNDINGS, kind, *others}):
            raise refuse(instruction, "its types are not modelled together")
        if kind == "f64":
            if mode != "rn":
                raise refuse(instruction, "FP64 is modelled to nearest alone")
            return Lanewise(takes, kind, nearest or run)
        ftz, single_kind = "ftz" in words, PAIRS.get(kind, kind)
        at_once = nearest if single_kind == "f32" and mode == "rn" and not others else None

        def single(*bits):
            as_numbers = carried if at_once is None else numbers
            values = [as_numbers(x, PAIRS.get(each, each), ftz) for x, each in zip(bits, takes)]
            x = (at_once or run)(*values)
            if mode == "rm" and instruction.name in TERMS:  # downward a sum that is exactly 0 is -0, but for +0 and +0
                negative = reduce(np.logical_or, map(np.signbit, TERMS[instruction.name](*values)))
                x = np.where((x == 0) & negative, -0.0, x)
            return bits_of(clamped(x, words), single_kind, mode, ftz)

        def lanes(*operands):
            return joined([single(*bits) for bits in zip(*map(halves, operands, takes))])

        return Lanewise(takes, kind, lanes)

    return meaning


def fused(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Compute a b + c in FP32 or FP64, rounded once."""
    if not isinstance(a, np.ndarray):  # compiled code has an operation for it
        return a.fused(b, c)
    if a.dtype == np.float32:
        return odd_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)).astype(np.float32)
    plain = a * b + c
    sums = [
        p if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)) or p == 0 == x * y
        else _near64(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)), p)
        for x, y, z, p in zip(a, b, c, plain)
    ]  # fmt: skip
    return np.array(sums, np.float64)


def _near64(exact: Fraction, plain: float) -> float:
    if exact == 0:
        return 0.0 if plain == 0 and not np.signbit(plain) else plain * 0.0
    try:
        return float(exact)  # rounded to nearest, ties to even
    except OverflowError:
        return np.copysign(np.inf, float(exact > 0) - 0.5)


def _extreme(largest: bool) -> Meaning:
    """Make the meaning of min and max, of two operands or three: of a number and NaN it is the number, or with the
    word NaN it is NaN; +0 > -0."""

    def meaning(instruction: Instruction) -> Lanewise:
        nan_wins = "NaN" in instruction.words

        def of_two(a, b):
            above = (a > b) | ((a == b) & ~np.signbit(a))
            extreme = np.where(above == largest, a, b)
            number = np.where(np.isnan(a), b, np.where(np.isnan(b), a, extreme))
            return np.where(np.isnan(a) | np.isnan(b), np.nan, extreme) if nan_wins else number

        def run(a, *others):
            return reduce(of_two, others, a)

        return elementwise(len(instruction.operands) - 1, run, run)(instruction)

    return meaning


def _sign(flip: bool) -> Meaning:
    """Make the meaning of neg and abs, which change only the sign's bit. NaN of FP32 becomes the one NaN, as an H100
    has it."""

    def meaning(instruction: Instruction) -> Lanewise:
        (kind,) = instruction.types
        single = PAIRS.get(kind, kind)
        dtype = np.dtype(f"uint{8 * DTYPES[single].itemsize}")
        sign = dtype.type(1 << (8 * dtype.itemsize - 1))
        ftz = "ftz" in instruction.words

        def change(x):
            if ftz:
                x = bits_of(flushed(carried(x, single), single), single)
            bits = x.view(dtype)
            turned = (bits ^ sign if flip else bits & ~sign).view(x.dtype)
            same = single != "f32"
            return turned if same else np.where(np.isnan(x), NAN["f32"], turned.view(np.uint32)).view(x.dtype)

        return Lanewise((kind,), kind, lambda a: joined([change(x) for x in halves(a, kind)]))

    return meaning


def exp2(x: Lanes) -> Lanes:
    """Compute 2**x, float64 (32,). x is clipped to +-1000: FP64 has no such instruction, and shorter types have 0 or
    infinity there."""
    clipped = np.clip(np.where(np.isnan(x), 0.0, x), -1000.0, 1000.0)
    n = np.rint(clipped)
    power = np.ldexp(series.polynomial(series.EXP2, clipped - n), n.astype(np.int64))
    return np.where(np.isnan(x), np.nan, power)


def log2(x: Lanes) -> Lanes:
    """Compute log2 x, float64 (32,); of 1 it is exactly 0."""
    m, e = np.frexp(np.where((x > 0) & np.isfinite(x), x, 1.0))
    low = m < series.SQRT_HALF
    m, e = np.where(low, 2 * m, m), np.where(low, e - 1, e)
    z = (m - 1) / (m + 1)
    y = e + z * series.polynomial(series.ATANH, z * z)
    return np.where(x > 0, np.where(np.isinf(x), np.inf, y), np.where(x == 0, -np.inf, np.nan))


def tanh(x: Lanes) -> Lanes:
    """Compute tanh x, float64 (32,): of small arguments by its series, of others by an exponential."""
    z = np.minimum(np.abs(x), 20.0)
    t = exp2(z * (-2 / np.log(2)))
    small = z * series.polynomial(series.TANH, z * z)
    y = np.where(z < 0.125, small, (1 - t) / (1 + t))
    return np.where(np.isnan(x), np.nan, np.copysign(y, x))


def _turn(x: Lanes, quarter: int) -> Lanes:
    """Compute sin(x), or cos(x) with quarter 1."""
    n = np.rint(np.where(np.isfinite(x), x, 0.0) * series.TWO_OVER_PI)
    r = (np.where(np.isfinite(x), x, 0.0) - n * series.HALF_PI[0]) - n * series.HALF_PI[1]
    sine, cosine = r * series.polynomial(series.SINE, r * r), series.polynomial(series.COSINE, r * r)
    quadrant = (n.astype(np.int64) + quarter) & 3
    y = np.where(quadrant & 1, cosine, sine)
    return np.where(np.isfinite(x), np.where(quadrant & 2, -y, y), np.nan)


EXACTLY: dict[str, tuple[int, Callable[..., Lanes]]] = {  # approximate: number of operands, value in float64
    "div": (2, lambda a, b: a / b), "rcp": (1, lambda a: 1 / a), "sqrt": (1, np.sqrt),
    "rsqrt": (1, lambda a: 1 / np.sqrt(a)), "ex2": (1, exp2), "lg2": (1, log2), "tanh": (1, tanh),
    "sin": (1, lambda a: _turn(a, 0)), "cos": (1, lambda a: _turn(a, 1)),
}  # fmt: skip
FUSED = elementwise(3, lambda a, b, c: odd_sum(a * b, c), fused)
FLOATS: dict[str, Meaning] = {
    **{name: elementwise(*each) for name, each in EXACTLY.items()},
    "add": elementwise(2, odd_sum, np.add), "sub": elementwise(2, lambda a, b: odd_sum(a, -b), np.subtract),
    "mul": elementwise(2, lambda a, b: a * b, np.multiply), "fma": FUSED, "mad": FUSED,
    "div": elementwise(*EXACTLY["div"], np.divide), "sqrt": elementwise(*EXACTLY["sqrt"], np.sqrt),
    "div_add": elementwise(3, lambda a, b, c: odd_sum(a / b, c)),
    "min": _extreme(False), "max": _extreme(True), "neg": _sign(True), "abs": _sign(False),
}  # fmt: skip
