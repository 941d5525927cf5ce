"""Floating point on LLVM's lanes, with the bits of `ptx_machine.floats`. The numpy machine executes all other
instructions. Values are vectors of 32 lanes."""

import platform
from collections.abc import Callable

import llvmlite.binding as llvm
from llvmlite import ir

from ptx_machine import series
from ptx_machine.float64_carrier import NAN
from ptx_machine.native.emitter import NotNative
from ptx_machine.native.vectors import DOUBLE, FLOAT, HALF, I16, I32, I64, Builder, lanes


def not_a_number(b: Builder, x: ir.Value) -> ir.Value:
    """Emit whether x is NaN."""
    return b.fcmp_unordered("uno", x, x)


def canonical(b: Builder, x: ir.Value) -> ir.Value:
    """Emit the bits of FP32 x; of any NaN, those of the one that PTX names."""
    bits = b.bitcast(x, lanes(I32))
    return b.select(not_a_number(b, x), b.all(int(NAN["f32"]), bits), bits)


def flushed(b: Builder, x: ir.Value) -> ir.Value:
    """Emit FP32 x with subnormal numbers replaced by zero of their sign."""
    bits = b.bitcast(x, lanes(I32))
    size, sign = b.and_(bits, b.all(0x7FFFFFFF, bits)), b.and_(bits, b.all(0x80000000, bits))
    return b.bitcast(b.select(b.icmp_unsigned("<", size, b.all(0x00800000, bits)), sign, bits), lanes(FLOAT))


def finished(b: Builder, x: ir.Value, ftz: bool) -> ir.Value:
    """Emit the bits of a result of FP32, flushed with ftz."""
    return canonical(b, flushed(b, x) if ftz else x)


def saturated(b: Builder, x: ir.Value) -> ir.Value:
    """Emit FP32 x in [0, 1]; NaN is 0."""
    x = b.select(b.fcmp_ordered(">", x, b.all(0.0, x)), x, b.all(0.0, x))
    return b.select(b.fcmp_ordered("<", x, b.all(1.0, x)), x, b.all(1.0, x))


def greater(b: Builder, x: ir.Value, y: ir.Value, largest: bool) -> ir.Value:
    """Emit max or min of FP32: of a number and NaN the number; +0 > -0."""
    bits = b.bitcast(x, lanes(I32))
    positive = b.icmp_signed(">=", bits, b.all(0, bits))
    above = b.or_(b.fcmp_ordered(">", x, y), b.and_(b.fcmp_ordered("==", x, y), positive))
    extreme = b.select(above, x, y) if largest else b.select(above, y, x)
    return b.select(not_a_number(b, x), y, b.select(not_a_number(b, y), x, extreme))


def polynomial(b: Builder, coefficients, x: ir.Value) -> ir.Value:
    """Emit `series.polynomial`, in the same order."""
    total = b.fadd(b.fmul(x, b.all(0.0, x)), b.all(float(coefficients[-1]), x))
    for c in coefficients[-2::-1]:
        total = b.fadd(b.fmul(total, x), b.all(float(c), x))
    return total


def exp2(b: Builder, x: ir.Value) -> ir.Value:
    """Emit 2**x of float64, as `ptx_machine.floats.exp2`."""
    nan = not_a_number(b, x)
    clipped = b.select(nan, b.all(0.0, x), x)
    for limit, test in ((-1000.0, "<"), (1000.0, ">")):
        clipped = b.select(b.fcmp_ordered(test, clipped, b.all(limit, x)), b.all(limit, x), clipped)
    n = b.intrinsic("rint", [clipped])
    power = polynomial(b, series.EXP2, b.fsub(clipped, n))
    exponent = b.shl(b.add(b.fptosi(n, lanes(I64)), b.all(1023, lanes(I64))), b.all(52, lanes(I64)))
    return b.select(nan, b.all(float("nan"), x), b.fmul(power, b.bitcast(exponent, lanes(DOUBLE))))


def log2(b: Builder, x: ir.Value) -> ir.Value:
    """Emit log2 x of float64 that FP32 holds, as `ptx_machine.floats.log2`."""
    bits = b.bitcast(x, lanes(I64))
    fraction = b.or_(b.and_(bits, b.all((1 << 52) - 1, bits)), b.all(1022 << 52, bits))  # of [1/2, 1)
    m, e = b.bitcast(fraction, lanes(DOUBLE)), b.sub(b.lshr(bits, b.all(52, bits)), b.all(1022, bits))
    low, one, infinity = b.fcmp_ordered("<", m, b.all(series.SQRT_HALF, m)), b.all(1.0, m), b.all(float("inf"), m)
    m, e = b.select(low, b.fmul(b.all(2.0, m), m), m), b.select(low, b.sub(e, b.all(1, e)), e)
    z = b.fdiv(b.fsub(m, one), b.fadd(m, one))
    y = b.fadd(b.sitofp(e, lanes(DOUBLE)), b.fmul(z, polynomial(b, series.ATANH, b.fmul(z, z))))
    y = b.select(b.fcmp_ordered("==", x, infinity), infinity, y)
    zero, positive = (b.fcmp_ordered(test, x, b.all(0.0, x)) for test in ("==", ">"))
    return b.select(positive, y, b.select(zero, b.all(float("-inf"), x), b.all(float("nan"), x)))


def wide(b: Builder, x: ir.Value) -> ir.Value:
    """Emit FP32 x as float64."""
    return b.fpext(x, lanes(DOUBLE))


def narrow(b: Builder, x: ir.Value) -> ir.Value:
    """Emit float64 x rounded to FP32."""
    return b.fptrunc(x, lanes(FLOAT))


def directed(b: Builder, x: ir.Value, mode: str) -> ir.Value:
    """Emit float64 x rounded to FP32 toward zero ("rz"), down ("rm") or up ("rp")."""
    near = narrow(b, x)
    bits, one = b.bitcast(near, lanes(I32)), b.all(1, lanes(I32))
    farther, nearer = b.add(bits, one), b.sub(bits, one)
    negative = b.icmp_signed("<", bits, b.all(0, bits))
    low, high = b.fcmp_ordered("<", wide(b, near), x), b.fcmp_ordered(">", wide(b, near), x)
    wrong = {"rz": b.select(negative, low, high), "rm": high, "rp": low}[mode]
    moved = nearer if mode == "rz" else b.select(negative, *((farther, nearer) if mode == "rm" else (nearer, farther)))
    return b.bitcast(b.select(wrong, moved, bits), lanes(FLOAT))


SINGLE: dict[str, Callable[..., ir.Value]] = {  # on FP32, of the builder and FP32 lanes
    "add": lambda b, x, y: b.fadd(x, y),
    "sub": lambda b, x, y: b.fsub(x, y),
    "mul": lambda b, x, y: b.fmul(x, y),
    "fma": lambda b, x, y, z: b.intrinsic("fma", [x, y, z]),
    "mad": lambda b, x, y, z: b.intrinsic("fma", [x, y, z]),
    "div": lambda b, x, y: b.fdiv(x, y),
    "min": lambda b, x, y: greater(b, x, y, largest=False),
    "max": lambda b, x, y: greater(b, x, y, largest=True),
    "rcp": lambda b, x: narrow(b, b.fdiv(b.all(1.0, lanes(DOUBLE)), wide(b, x))),
    "sqrt": lambda b, x: b.intrinsic("sqrt", [x]),
    "rsqrt": lambda b, x: narrow(b, b.fdiv(b.all(1.0, lanes(DOUBLE)), b.intrinsic("sqrt", [wide(b, x)]))),
    "ex2": lambda b, x: narrow(b, exp2(b, wide(b, x))),
    "lg2": lambda b, x: narrow(b, log2(b, wide(b, x))),
}


WIDE: dict[str, Callable[..., ir.Value]] = {  # in float64: no quotient or root is so near to a number of FP32 that its
    "div": lambda b, x, y: b.fdiv(x, y),  # own rounding matters
    "rcp": lambda b, x: b.fdiv(b.all(1.0, x), x),
    "sqrt": lambda b, x: b.intrinsic("sqrt", [x]),
}


def to_bf16(b: Builder, bits: ir.Value) -> ir.Value:
    """Emit FP32, given as bits, rounded to BF16, to nearest, ties to even: its 16 bits as 32."""
    x = b.bitcast(bits, lanes(FLOAT))
    odd = b.and_(b.lshr(bits, b.all(16, bits)), b.all(1, bits))
    rounded = b.lshr(b.add(bits, b.add(odd, b.all(0x7FFF, bits))), b.all(16, bits))
    return b.select(not_a_number(b, x), b.all(int(NAN["bf16"]), bits), rounded)


def halves() -> None:
    """Check that this processor converts between FP16 and FP32."""
    if platform.machine() in ("x86_64", "AMD64") and not llvm.get_host_cpu_features().get("f16c"):
        raise NotNative


def to_f16(b: Builder, x: ir.Value) -> ir.Value:
    """Emit FP32 x rounded to FP16, to nearest, ties to even: its 16 bits as 32."""
    halves()
    bits = b.zext(b.bitcast(b.fptrunc(x, lanes(HALF)), lanes(I16)), lanes(I32))
    return b.select(not_a_number(b, x), b.all(int(NAN["f16"]), bits), bits)
