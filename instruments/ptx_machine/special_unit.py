"""The special function unit of an H100, to the last bit: what PTX calls approximate, as measured.

Its tables are whole binades, every result that an H100 gave (`data/recorded/how/functions.py` made them, and
found that all other binades follow from these). Around them ptxas writes a few products, which bring operands into the
unit's range; they are written here as nvdisasm shows them for sm_90.

2^x reads its operand as a whole number of 2^-23, the digits below cut off. The complement of a negative one is taken by
inverting its bits, which is one step of 2^-23 too low, but for whole x. log2 x of x below 1 has such a complement, too.
"""

from collections.abc import Callable
from functools import cache, wraps

import numpy as np

from ptx_machine.float64_carrier import PAIRS, bits_of, odd_sum
from ptx_machine.floats import halves, joined
from ptx_machine.folders import PACKAGE
from ptx_machine.lanes import Lanes, Lanewise, looked_up
from ptx_machine.syntax import Instruction

FILE = PACKAGE / "h100_functions.npz"  # its provenance lies beside it
MEASURED = ("H100",)  # GPUs whose tables there are
BINADE = 1 << 23
FRACTION = BINADE - 1
SMALLEST, LARGEST = np.float32(2.0**-126), np.float32(2.0**126)
DOWN, ONE = np.float32(0.25), np.float32(1)
CUT = ~np.int64((1 << 29) - 1)  # of float64's bits: those that FP32 has, too
SHORT = {("ex2", "f16"), ("ex2", "bf16"), ("tanh", "f16"), ("tanh", "bf16")}  # whose every result is in the file


def measured(instruction: Instruction, gpu: str) -> Lanewise | None:
    """Make the function of an approximate instruction of a GPU that was measured; None for all others."""
    if gpu not in MEASURED or not {"approx", "full"} & {*instruction.words} or not instruction.types:
        return None
    name, kind, ftz = instruction.name, instruction.types[-1], "ftz" in instruction.words
    single = PAIRS.get(kind, kind)
    if (name, single) in SHORT:
        results = short(f"{name}_{single}")

        def look(x: Lanes) -> Lanes:
            return joined([looked_up(results, each.view(np.uint16)).view(each.dtype) for each in halves(x, kind)])

        return Lanewise((kind,), kind, look)
    if kind != "f32":
        return None
    if name in ("div", "div_add"):
        full, run = "full" in instruction.words, divided if name == "div" else divided_and_added
        takes = (kind,) * (len(instruction.operands) - 1)
        return Lanewise(takes, kind, lambda *x: bits_of(run(*x, ftz=ftz, full=full), kind))
    if name in UNIT:
        of_one = (UNIT if ftz else WITH_SUBNORMALS)[name]
        return Lanewise((kind,), kind, lambda x: bits_of(of_one(x), kind))
    return None


@cache
def table(name: str) -> np.ndarray:
    """Return a table of the file, float32 (2^23,): results for each significand in [1, 2), of "ex2", "rcp", "rsqrt0"
    and "sqrt0" (even exponents), "rsqrt1" and "sqrt1" (odd ones), "lg2_0", and "lg2_1" (numbers of [1/2, 1), negative).
    """
    with np.load(FILE) as file:
        steps, first, scale = file[f"{name}_steps"], file[f"{name}_first"], float(file[f"{name}_scale"])
    whole = np.concatenate([[first], first + np.cumsum(steps, dtype=np.int64)])
    return (whole * scale).astype(np.float32)


@cache
def short(name: str) -> np.ndarray:
    """Return the bits of every result of an instruction on 16 bits, uint16 (2^16,), by the operand's."""
    with np.load(FILE) as file:
        return file[name]


def flushed(x: Lanes) -> Lanes:
    """Round floats to FP32, with zero of their sign for subnormal numbers, and the unit's NaN for NaN."""
    return bits_of(x, "f32", ftz=True)


def _unit(run: Callable[[Lanes], Lanes]) -> Callable[[Lanes], Lanes]:
    """Make a function of the unit, whose operands and results, float32 (n,), have no subnormal numbers. run: computes
    it of numbers, in float64."""

    @wraps(run)
    def unit(x: Lanes) -> Lanes:
        x = flushed(x)
        return flushed(np.where(np.isnan(x), np.nan, run(x)))

    return unit


def _found(name: str, places: Lanes) -> Lanes:
    return looked_up(table(name), places).astype(np.float64)


def _split(x: Lanes) -> tuple[Lanes, Lanes]:
    bits = x.view(np.uint32)
    return ((bits >> np.uint32(23)) & np.uint32(255)).astype(np.int64) - 127, bits & np.uint32(FRACTION)


@_unit
def ex2(x: Lanes) -> Lanes:
    """Compute 2^x as MUFU.EX2 does."""
    size = np.minimum(np.where(np.isnan(x), 0, np.abs(x)).astype(np.float64), 512.0)
    steps = (size * BINADE).astype(np.int64)
    steps = np.where(x < 0, np.where(steps & FRACTION, ~steps, -steps), steps)
    return np.ldexp(_found("ex2", steps & FRACTION), steps >> 23)


@_unit
def rcp(x: Lanes) -> Lanes:
    """Compute 1 / x as MUFU.RCP does."""
    exponent, significand = _split(x)
    y = np.ldexp(_found("rcp", significand), -exponent)
    y = np.where(x == 0, np.inf, np.where(np.isinf(x), 0.0, y))
    return np.copysign(y, x)


@_unit
def rsqrt(x: Lanes) -> Lanes:
    """Compute 1 / sqrt(x) as MUFU.RSQ does."""
    exponent, significand = _split(x)
    odd = exponent & 1
    y = np.where(odd, _found("rsqrt1", significand), _found("rsqrt0", significand))
    y = np.ldexp(y, (odd - exponent) >> 1)
    y = np.where(x == 0, np.copysign(np.inf, x), np.where(np.isinf(x), 0.0, y))
    return np.where(x < 0, np.nan, y)


@_unit
def sqrt(x: Lanes) -> Lanes:
    """Compute sqrt(x) as MUFU.SQRT does."""
    exponent, significand = _split(x)
    odd = exponent & 1
    y = np.where(odd, _found("sqrt1", significand), _found("sqrt0", significand))
    y = np.where((x == 0) | np.isinf(x), x, np.ldexp(y, (exponent - odd) >> 1))
    return np.where(x < 0, np.nan, y)


@_unit
def lg2(x: Lanes) -> Lanes:
    """Compute log2 x as MUFU.LG2 does: the exponent is added to the table's result and the sum is cut off."""
    exponent, significand = _split(x)
    above = exponent + _found("lg2_0", significand)
    below = -exponent - 1 - _found("lg2_1", significand)
    y = np.where(exponent >= 0, _cut(above), -_cut(below))
    y = np.where(x == 0, -np.inf, np.where(np.isinf(x), np.inf, y))
    return np.where(x < 0, np.nan, y)


def _cut(x: Lanes) -> Lanes:
    return (x.view(np.int64) & CUT).view(np.float64)


def _where_subnormal(x: Lanes, yes: float, no: float) -> Lanes:
    return np.where(np.abs(x) < SMALLEST, np.float32(yes), np.float32(no))


def _raised(x: Lanes) -> Lanes:
    """The factor that makes a subnormal number normal; 1 for all others."""
    return _where_subnormal(x, 2.0**24, 1)


def divided(a: Lanes, b: Lanes, ftz: bool, full: bool) -> Lanes:
    """Compute a / b as ptxas writes div.approx and div.full: a times MUFU.RCP of b, both scaled where b is extreme."""
    a, b = _factors(a, b, ftz, full)
    quotient = (a * b).astype(np.float32)
    return flushed(quotient) if ftz else quotient


def divided_and_added(a: Lanes, b: Lanes, c: Lanes, ftz: bool, full: bool) -> Lanes:
    """Compute a / b + c as ptxas joins div.approx and div.full with a sum: the product of `divided` is not rounded."""
    a, b = _factors(a, b, ftz, full)
    total = odd_sum(a.astype(np.float64) * b.astype(np.float64), (flushed(c) if ftz else c).astype(np.float64))
    return bits_of(total, "f32", ftz=ftz)


def _factors(a: Lanes, b: Lanes, ftz: bool, full: bool) -> tuple[Lanes, Lanes]:
    """The factors, FP32, whose product is a / b."""
    if ftz:
        a, b = flushed(a), flushed(b)
    by = ONE if ftz else _raised(b)
    if full:
        by = np.where(np.abs(b) > LARGEST, DOWN, by)
    a, b = (a * by).astype(np.float32), (b * by).astype(np.float32)
    if ftz:
        a, b = flushed(a), flushed(b)
    return a, rcp(b)


def _halved(x: Lanes) -> Lanes:
    half = ex2(np.where(x < -126, x * np.float32(0.5), x))
    return np.where(x < -126, half * half, half)


def _scaled_rcp(x: Lanes) -> Lanes:
    by = np.where(np.abs(x) > LARGEST, DOWN, _raised(x))
    return rcp((x * by).astype(np.float32)) * by


UNIT = {"ex2": ex2, "rcp": rcp, "rsqrt": rsqrt, "sqrt": sqrt, "lg2": lg2}  # with ftz
WITH_SUBNORMALS = {
    "ex2": _halved, "rcp": _scaled_rcp,
    "rsqrt": lambda x: rsqrt(x * _raised(x)) * _where_subnormal(x, 2.0**12, 1),
    "sqrt": lambda x: sqrt(x * _raised(x)) * _where_subnormal(x, 2.0**-12, 1),
    "lg2": lambda x: lg2(x * _raised(x)) - _where_subnormal(x, 24, 0),
}  # fmt: skip
