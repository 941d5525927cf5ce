"""FP16 and BF16 on LLVM's lanes, single numbers and packed pairs, with the bits of `ptx_machine.floats`."""

from collections.abc import Callable

from llvmlite import ir

from ptx_machine.float64_carrier import PAIRS
from ptx_machine.native import floats
from ptx_machine.native.emitter import NotNative
from ptx_machine.native.vectors import DOUBLE, FLOAT, HALF, I16, I32, I64, Builder, lanes
from ptx_machine.syntax import Instruction


def emit(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    """Emit add, sub, mul, fma, min, max, neg or abs on FP16 or BF16: the bits of the result."""
    name, kind = instruction.name, instruction.types[-1]
    if {*instruction.words[1:]} - {"rn", kind}:
        raise NotNative
    single = PAIRS.get(kind, kind)
    if kind == single:
        return b.trunc(_number(b, name, single, [_bits(b, each) for each in x]), lanes(I16))
    low = _number(b, name, single, [b.trunc(each, lanes(I16)) for each in x])
    high = _number(b, name, single, [b.trunc(b.lshr(each, b.all(16, each)), lanes(I16)) for each in x])
    return b.or_(b.shl(high, b.all(16, high)), low)


def _bits(b: Builder, x: ir.Value) -> ir.Value:
    """Emit a number's 16 bits."""
    return b.bitcast(x, lanes(I16)) if x.type.element == HALF else x


def _number(b: Builder, name: str, kind: str, bits: list[ir.Value]) -> ir.Value:
    """Emit the result of numbers, given as 16 bits each: 16 bits, as 32."""
    if name in ("neg", "abs"):
        turned = b.xor(bits[0], b.all(0x8000, bits[0])) if name == "neg" else b.and_(bits[0], b.all(0x7FFF, bits[0]))
        return b.zext(turned, lanes(I32))
    x = [_single(b, each, kind) for each in bits]
    if name in ("min", "max"):
        return _rounded(b, floats.greater(b, *x, largest=name == "max"), kind)
    if name not in SUMS:
        raise NotNative
    return _rounded(b, odd_single(b, SUMS[name](b, *(floats.wide(b, each) for each in x))), kind)


def _single(b: Builder, bits: ir.Value, kind: str) -> ir.Value:
    """Emit a number, given as 16 bits, in FP32."""
    if kind == "f16":
        floats.halves()
        return b.fpext(b.bitcast(bits, lanes(HALF)), lanes(FLOAT))
    wide = b.zext(bits, lanes(I32))
    return b.bitcast(b.shl(wide, b.all(16, wide)), lanes(FLOAT))


def _rounded(b: Builder, x: ir.Value, kind: str) -> ir.Value:
    """Emit FP32 x rounded to nearest: 16 bits, as 32."""
    return floats.to_f16(b, x) if kind == "f16" else floats.to_bf16(b, b.bitcast(x, lanes(I32)))


def odd_single(b: Builder, x: ir.Value) -> ir.Value:
    """Emit float64 x rounded to odd in FP32: toward zero, with its last bit set where x has more bits."""
    cut = floats.directed(b, x, "rz")
    bits = b.bitcast(cut, lanes(I32))
    inexact = b.fcmp_ordered("!=", floats.wide(b, cut), x)
    return b.bitcast(b.select(inexact, b.or_(bits, b.all(1, bits)), bits), lanes(FLOAT))


def _odd_sum(b: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Emit x + y of float64, rounded to odd, as `float64_carrier.odd_sum`."""
    s = b.fadd(x, y)
    part = b.fsub(s, x)
    error = b.fadd(b.fsub(x, b.fsub(s, part)), b.fsub(y, part))
    zero = b.all(0.0, s)
    bits = b.bitcast(s, lanes(I64))
    one = b.all(1, bits)
    finite = b.fcmp_ordered("<", b.intrinsic("fabs", [s]), b.all(float("inf"), s))
    even = b.icmp_unsigned("==", b.and_(bits, one), b.all(0, bits))
    inexact = b.and_(b.and_(finite, even), b.fcmp_ordered("!=", error, zero))
    same = b.icmp_unsigned("==", b.fcmp_ordered(">", error, zero), b.fcmp_ordered(">", s, zero))
    turned = b.select(same, b.add(bits, one), b.sub(bits, one))
    return b.bitcast(b.select(inexact, turned, bits), lanes(DOUBLE))


def _minus(b: Builder, x: ir.Value) -> ir.Value:
    bits = b.bitcast(x, lanes(I64))
    return b.bitcast(b.xor(bits, b.all(-(1 << 63), bits)), lanes(DOUBLE))


SUMS: dict[str, Callable[..., ir.Value]] = {  # of float64, in which products of these numbers are exact
    "add": _odd_sum,
    "sub": lambda b, x, y: _odd_sum(b, x, _minus(b, y)),
    "mul": lambda b, x, y: b.fmul(x, y),
    "fma": lambda b, x, y, z: _odd_sum(b, b.fmul(x, y), z),
}
SUMS["mad"] = SUMS["fma"]


def downward(b: Builder, name: str, exact: ir.Value, x: list[ir.Value]) -> ir.Value:
    """Emit a sum of SUMS that is rounded down: one that is exactly 0 is -0, but for +0 and +0."""
    terms = {"add": x, "sub": [x[0], _minus(b, x[-1])]}.get(name) or [b.fmul(x[0], x[1]), x[2]]
    signs = b.or_(*(b.bitcast(term, lanes(I64)) for term in terms))
    zero = b.and_(b.fcmp_ordered("==", exact, b.all(0.0, exact)), b.icmp_signed("<", signs, b.all(0, signs)))
    return b.select(zero, b.all(-0.0, exact), exact)
