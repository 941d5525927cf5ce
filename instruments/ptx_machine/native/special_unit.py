"""2^x of an H100's special function unit on LLVM's lanes, with the bits of `ptx_machine.special_unit.ex2`."""

from llvmlite import ir

from ptx_machine.lanes import WARP
from ptx_machine.native.floats import flushed, not_a_number, wide
from ptx_machine.native.vectors import DOUBLE, FLOAT, I32, I64, POINTER, Builder, lanes
from ptx_machine.special_unit import BINADE, FRACTION, table

FARTHEST = 512.0  # beyond which every operand gives 0 or infinity


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
    found = wide(b, _looked_up(b, b.and_(steps, b.all(FRACTION, steps))))
    exponent = b.shl(b.add(b.ashr(steps, b.all(23, steps)), b.all(1023, steps)), b.all(52, steps))
    power = b.fptrunc(b.fmul(found, b.bitcast(exponent, lanes(DOUBLE))), lanes(FLOAT))
    return b.select(nan, x, flushed(b, power))


def _looked_up(b: Builder, places: ir.Value) -> ir.Value:
    """Emit the table's numbers, FP32 lanes, at places, I64 lanes."""
    base = b.inttoptr(ir.Constant(I64, table("ex2").ctypes.data), POINTER)
    found = ir.Constant(lanes(FLOAT), ir.Undefined)
    for lane in range(WARP):
        place = b.extract_element(places, I32(lane))
        number = b.load(b.gep(base, [place], source_etype=FLOAT), typ=FLOAT, align=4)
        found = b.insert_element(found, number, I32(lane))
    return found
