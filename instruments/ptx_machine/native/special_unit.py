"""2^x, log2 x, 1 / x and a / b of an H100's special function unit on LLVM's lanes, with the bits of
`ptx_machine.special_unit`."""

from collections.abc import Callable
from functools import partial

from llvmlite import ir

from ptx_machine.lanes import WARP
from ptx_machine.native.emitter import NotNative
from ptx_machine.native.floats import flushed, not_a_number, wide
from ptx_machine.native.vectors import DOUBLE, FLOAT, I32, I64, POINTER, Builder, lanes
from ptx_machine.special_unit import BINADE, CUT, DOWN, FRACTION, LARGEST, SMALLEST, table
from ptx_machine.syntax import Instruction

FARTHEST = 512.0  # beyond which every operand gives 0 or infinity


def function(instruction: Instruction) -> Callable[..., ir.Value]:
    """Return the function of a Builder and FP32 operands that emits an approximate instruction."""
    ftz, full = "ftz" in instruction.words, "full" in instruction.words
    known = {
        "ex2": partial(ex2, ftz=ftz),
        "lg2": partial(lg2, ftz=ftz),
        "rcp": partial(rcp, ftz=ftz),
        "div": partial(divided, ftz=ftz, full=full),
    }
    if instruction.name not in known:
        raise NotNative
    return known[instruction.name]


def ex2(b: Builder, x: ir.Value, ftz: bool) -> ir.Value:
    """Emit 2^x of FP32 x, with subnormal numbers flushed or, without ftz, as the square of 2^(x / 2)."""
    if ftz:
        return _unit(b, flushed(b, x))
    small = b.fcmp_ordered("<", x, b.all(-126.0, x))
    half = _unit(b, b.select(small, b.fmul(x, b.all(0.5, x)), x))
    return b.select(small, b.fmul(half, half), half)


def _unit(b: Builder, x: ir.Value) -> ir.Value:
    nan, zero = not_a_number(b, x), b.all(0, lanes(I64))
    size = b.intrinsic("fabs", [wide(b, b.select(nan, b.all(0.0, x), flushed(b, x)))])
    size = b.select(b.fcmp_ordered(">", size, b.all(FARTHEST, size)), b.all(FARTHEST, size), size)
    steps = b.fptosi(b.fmul(size, b.all(float(BINADE), size)), lanes(I64))
    whole = b.icmp_signed("==", b.and_(steps, b.all(FRACTION, steps)), zero)
    complement = b.select(whole, b.neg(steps), b.not_(steps))
    steps = b.select(b.fcmp_ordered("<", x, b.all(0.0, x)), complement, steps)
    found = wide(b, _looked_up(b, "ex2", b.and_(steps, b.all(FRACTION, steps))))
    exponent = b.shl(b.add(b.ashr(steps, b.all(23, steps)), b.all(1023, steps)), b.all(52, steps))
    power = b.fptrunc(b.fmul(found, b.bitcast(exponent, lanes(DOUBLE))), lanes(FLOAT))
    return b.select(nan, x, flushed(b, power))


def lg2(b: Builder, x: ir.Value, ftz: bool) -> ir.Value:
    """Emit log2 x of FP32 x; without ftz a subnormal number is multiplied by 2^24 first."""
    if ftz:
        return _lg2(b, x)
    small = b.fcmp_ordered("<", b.intrinsic("fabs", [x]), b.all(float(SMALLEST), x))
    y = _lg2(b, b.fmul(x, b.select(small, b.all(2.0**24, x), b.all(1.0, x))))
    return b.fadd(y, b.select(small, b.all(-24.0, y), b.all(0.0, y)))


def _lg2(b: Builder, x: ir.Value) -> ir.Value:
    x = flushed(b, x)
    bits = b.zext(b.bitcast(x, lanes(I32)), lanes(I64))
    exponent = b.sub(b.and_(b.lshr(bits, b.all(23, bits)), b.all(255, bits)), b.all(127, bits))
    significand, whole = b.and_(bits, b.all(FRACTION, bits)), b.sitofp(exponent, lanes(DOUBLE))
    above = b.fadd(whole, wide(b, _looked_up(b, "lg2_0", significand)))
    below = b.fsub(b.fsub(b.fneg(whole), b.all(1.0, whole)), wide(b, _looked_up(b, "lg2_1", significand)))
    above, below = (
        b.bitcast(b.and_(b.bitcast(y, lanes(I64)), b.all(int(CUT), bits)), lanes(DOUBLE)) for y in (above, below)
    )
    y = b.select(b.icmp_signed(">=", exponent, b.all(0, bits)), above, b.fneg(below))
    zero, infinite = b.all(0.0, x), b.all(float("inf"), y)
    y = b.select(b.fcmp_ordered("==", x, b.all(float("inf"), x)), infinite, y)
    y = b.select(b.fcmp_ordered("==", x, zero), b.fneg(infinite), y)
    y = b.select(b.fcmp_unordered("<", x, zero), b.all(float("nan"), y), y)
    return flushed(b, b.fptrunc(y, lanes(FLOAT)))


def rcp(b: Builder, x: ir.Value, ftz: bool) -> ir.Value:
    """Emit 1 / x of FP32 x."""
    return _rcp(b, x) if ftz else divided(b, b.all(1.0, x), x, ftz, True)


def _rcp(b: Builder, x: ir.Value) -> ir.Value:
    nan, x = not_a_number(b, x), flushed(b, x)
    bits = b.zext(b.bitcast(x, lanes(I32)), lanes(I64))
    exponent = b.and_(b.lshr(bits, b.all(23, bits)), b.all(255, bits))
    power = b.bitcast(b.shl(b.sub(b.all(1023 + 127, bits), exponent), b.all(52, bits)), lanes(DOUBLE))
    y = b.fmul(wide(b, _looked_up(b, "rcp", b.and_(bits, b.all(FRACTION, bits)))), power)
    size = b.intrinsic("fabs", [x])
    for special, result in ((0.0, float("inf")), (float("inf"), 0.0)):
        y = b.select(b.fcmp_ordered("==", size, b.all(special, size)), b.all(result, y), y)
    y = b.intrinsic("copysign", [b.fptrunc(y, lanes(FLOAT)), x])
    return b.select(nan, x, flushed(b, y))


def divided(b: Builder, x: ir.Value, y: ir.Value, ftz: bool, full: bool) -> ir.Value:
    """Emit x / y of FP32, div.full or div.approx."""
    if ftz:
        x, y = flushed(b, x), flushed(b, y)
    size, by = b.intrinsic("fabs", [y]), b.all(1.0, y)
    if not ftz:
        by = b.select(b.fcmp_ordered("<", size, b.all(float(SMALLEST), size)), b.all(2.0**24, y), by)
    if full:
        by = b.select(b.fcmp_ordered(">", size, b.all(float(LARGEST), size)), b.all(float(DOWN), y), by)
    x, y = b.fmul(x, by), b.fmul(y, by)
    quotient = b.fmul(flushed(b, x) if ftz else x, _rcp(b, y))
    return flushed(b, quotient) if ftz else quotient


def _looked_up(b: Builder, name: str, places: ir.Value) -> ir.Value:
    """Emit a table's numbers, FP32 lanes, at places, I64 lanes."""
    base = b.inttoptr(ir.Constant(I64, table(name).ctypes.data), POINTER)
    found = ir.Constant(lanes(FLOAT), ir.Undefined)
    for lane in range(WARP):
        place = b.extract_element(places, I32(lane))
        number = b.load(b.gep(base, [place], source_etype=FLOAT), typ=FLOAT, align=4)
        found = b.insert_element(found, number, I32(lane))
    return found
