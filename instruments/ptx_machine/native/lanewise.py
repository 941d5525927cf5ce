"""Lanewise instructions on LLVM's lanes, with the bits of the numpy machine. Functions emit operations on vectors of 32
lanes, and raise NotNative where the numpy machine must execute the instruction."""

from dataclasses import replace
from functools import partial, reduce

from llvmlite import ir

from ptx_machine.conversions import limits
from ptx_machine.native import fields, floats, halves
from ptx_machine.native.emitter import NotNative
from ptx_machine.native.vectors import DOUBLE, FLOAT, I16, I32, I64, Builder, lanes
from ptx_machine.syntax import BITS, Instruction

QUIET = {"rn", "ftz", "approx", "full", "f32"}  # words of FP32 instructions that are native
ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
NEAREST = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}  # of cvt, and LLVM's names
WHOLE = {**ORDERED, "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}


def emit(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    """Emit a lanewise instruction on its operands x, each of its type."""
    name, types = instruction.name, instruction.types
    if name == "cvt":
        return convert(b, instruction, x)
    if name == "selp":
        return b.select(x[2], x[0], x[1])
    if types[-1] == "pred":
        return {"and": b.and_, "or": b.or_, "xor": b.xor, "not": b.not_}[name](*x)
    if len(types) > 1 and types[0] == "f32":  # a sum of two types
        raise NotNative
    if types[-1] == "f32":
        return fp32(b, instruction, x)
    if types[-1] == "f32x2":
        return two(b, instruction, x)
    if types[-1] == "f64" and name in ("add", "sub", "mul", "div"):
        return {"add": b.fadd, "sub": b.fsub, "mul": b.fmul, "div": b.fdiv}[name](*x)
    if types[-1] == "f64" and name == "fma" and {*instruction.words[1:]} == {"rn", "f64"}:
        return b.intrinsic("fma", x)
    if types[-1] in ("f16", "bf16", "f16x2", "bf16x2"):
        return halves.emit(b, instruction, x)
    if types[-1] == "f64":
        raise NotNative
    return whole(b, instruction, x)


def fp32(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    """Emit an instruction on FP32."""
    name, words = instruction.name, instruction.words
    ftz = "ftz" in words
    x = [floats.flushed(b, each) if ftz else each for each in x]
    if name in ("neg", "abs"):
        bits = floats.canonical(b, x[0])
        turned = b.xor(bits, b.all(0x80000000, bits)) if name == "neg" else b.and_(bits, b.all(0x7FFFFFFF, bits))
        return b.select(floats.not_a_number(b, x[0]), bits, turned)
    if name == "copysign":
        sign, size = (b.bitcast(each, lanes(I32)) for each in x)
        return b.or_(b.and_(sign, b.all(0x80000000, sign)), b.and_(size, b.all(0x7FFFFFFF, size)))
    if "sat" in words:
        plain = fp32(b, replace(instruction, words=tuple(word for word in words if word != "sat")), x)
        return b.bitcast(floats.saturated(b, b.bitcast(plain, lanes(FLOAT))), lanes(I32))
    mode, exactly = {*words[1:]} - {"ftz", "f32"}, (floats.WIDE | halves.SUMS).get(name)
    if exactly and mode in ({"rz"}, {"rm"}, {"rp"}):
        exact = exactly(b, *(terms := [floats.wide(b, each) for each in x]))
        if mode == {"rm"} and name in halves.SUMS and name != "mul":
            exact = halves.downward(b, name, exact, terms)
        return floats.finished(b, floats.directed(b, exact, *mode), ftz)
    if name == "div_add":
        a, d, c = (floats.wide(b, each) for each in x)
        return floats.finished(b, floats.narrow(b, halves.SUMS["add"](b, b.fdiv(a, d), c)), ftz)
    if name not in floats.SINGLE or {*words[1:]} - QUIET:
        raise NotNative
    if name in ("min", "max"):
        return floats.finished(b, reduce(partial(floats.SINGLE[name], b), x), ftz)
    return floats.finished(b, floats.SINGLE[name](b, *x), ftz)


def two(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    """Emit an instruction on pairs of FP32."""
    single = replace(instruction, words=tuple("f32" if word == "f32x2" else word for word in instruction.words))

    def half(shift):
        parts = [b.trunc(b.lshr(each, b.all(shift, each)), lanes(I32)) for each in x]
        result = fp32(b, single, [b.bitcast(each, lanes(FLOAT)) for each in parts])
        bits = result if result.type == lanes(I32) else b.bitcast(result, lanes(I32))
        return b.zext(bits, lanes(I64))

    low, high = half(0), half(32)
    return b.or_(low, b.shl(high, b.all(32, high)))


def whole(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    """Emit an instruction on whole numbers."""
    name, words, kind = instruction.name, instruction.words, instruction.types[0]
    signed, bits = kind[0] == "s", BITS[kind]
    simple = {"add": b.add, "sub": b.sub, "and": b.and_, "or": b.or_, "xor": b.xor, "not": b.not_, "neg": b.neg}
    if "sat" in words:
        raise NotNative
    if name in simple:
        return simple[name](*x)
    if name == "abs":
        return b.select(b.icmp_signed("<", x[0], b.all(0, x[0])), b.neg(x[0]), x[0])
    if name in ("mul", "mad"):
        return product(b, instruction, x)
    if name in ("min", "max"):
        test = "<" if name == "min" else ">"
        less = b.icmp_signed(test, *x) if signed else b.icmp_unsigned(test, *x)
        return b.select(less, *x)
    if name in ("shl", "shr"):
        return shifted(b, x[0], x[1], bits, left=name == "shl", signed=signed)
    if name == "bfe" and bits == 32:
        return fields.extract(b, signed, *x)
    if name == "dp4a":
        return fields.four_bytes(b, *x, signed=[each[0] == "s" for each in instruction.types])
    if name in fields.FIELDS and kind == "b32":
        return fields.FIELDS[name](b, *x)
    if name == "popc":
        count = b.intrinsic("ctpop", x)
        return count if bits == 32 else b.trunc(count, lanes(I32))
    if name in ("div", "rem") and bits == 32:
        return divided(b, *x, signed=signed, remainder=name == "rem")
    if name == "shf" and "wrap" in words:
        a, c = (b.zext(each, lanes(I64)) for each in x[:2])
        pair = b.or_(a, b.shl(c, b.all(32, c)))
        wide = b.zext(b.and_(x[2], b.all(31, x[2])), lanes(I64))
        window = b.lshr(b.shl(pair, wide), b.all(32, pair)) if "l" in words else b.lshr(pair, wide)
        return b.trunc(window, lanes(I32))
    raise NotNative


def product(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    """Emit mul or mad of whole numbers."""
    words, kind = instruction.words, instruction.types[0]
    signed, bits = kind[0] == "s", BITS[kind]
    if "lo" in words:
        result = b.mul(x[0], x[1])
    elif bits == 64:
        raise NotNative
    else:
        double = lanes(ir.IntType(2 * bits))
        extend = b.sext if signed else b.zext
        result = b.mul(extend(x[0], double), extend(x[1], double))
        if "hi" in words:
            result = b.trunc(b.lshr(result, b.all(bits, result)), lanes(ir.IntType(bits)))
    return result if instruction.name == "mul" else b.add(result, x[2])


def divided(b: Builder, x: ir.Value, y: ir.Value, signed: bool, remainder: bool) -> ir.Value:
    """Emit a quotient or remainder of 32 bits, in 64, where none overflows. By 0, quotient and remainder have
    all bits set."""
    wide = lanes(I64)
    a, c = ((b.sext if signed else b.zext)(each, wide) for each in (x, y))
    by_zero = b.icmp_unsigned("==", c, b.all(0, wide))
    c = b.select(by_zero, b.all(1, wide), c)
    name = f"{'s' if signed else 'u'}{'rem' if remainder else 'div'}"
    result = getattr(b, name)(a, c)
    return b.trunc(b.select(by_zero, b.all(-1, wide), result), lanes(I32))


def shifted(b: Builder, x: ir.Value, n: ir.Value, bits: int, left: bool, signed: bool) -> ir.Value:
    """Emit shl or shr; shifted by the width or more, no bit is left."""
    too_far = b.icmp_unsigned(">=", n, b.all(bits, n))
    count = b.select(too_far, b.all(bits - 1, n), n)
    count = b.zext(count, x.type) if bits > 32 else b.trunc(count, x.type) if bits < 32 else count
    if not left and signed:
        return b.ashr(x, count)
    return b.select(too_far, b.all(0, x), b.shl(x, count) if left else b.lshr(x, count))


def compared(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    """Emit the comparison of setp, without the predicate that it is combined with."""
    word, kind = instruction.words[1], instruction.types[0]
    if kind == "f32":
        x = [floats.flushed(b, each) if "ftz" in instruction.words else each for each in x[:2]]
        if word in ORDERED:
            return b.fcmp_ordered(ORDERED[word], *x)
        if word[:-1] in ORDERED and word[-1] == "u":
            return b.fcmp_unordered(ORDERED[word[:-1]], *x)
        if word in ("num", "nan"):
            return (b.fcmp_ordered if word == "num" else b.fcmp_unordered)("ord" if word == "num" else "uno", *x)
        raise NotNative
    if kind[0] not in "bus" or word not in WHOLE:
        raise NotNative
    return (b.icmp_signed if kind[0] == "s" else b.icmp_unsigned)(WHOLE[word], *x[:2])


def convert(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    """Emit cvt."""
    words, (gives, *kinds) = instruction.words, instruction.types
    kind = kinds[0]
    plain = {*words[1:]} <= {"rn", gives, kind}
    modes = [word for word in words if word in NEAREST]
    if kind == "f32" and gives[0] in "us" and BITS[gives] <= 32 and {*words[1:]} <= {*modes, "ftz", gives, kind}:
        return to_whole(b, floats.flushed(b, x[0]) if "ftz" in words else x[0], modes[0], gives)
    if (gives, kind) == ("f32", "f32") and modes and {*words[1:]} <= {*modes, "ftz", "f32"}:
        ftz = "ftz" in words
        return floats.finished(b, b.intrinsic(NEAREST[modes[0]], [floats.flushed(b, x[0]) if ftz else x[0]]), ftz)
    if words[1:] in (("sat", "f32", "f32"), ("sat", "ftz", "f32", "f32"), ("ftz", "sat", "f32", "f32")):
        return floats.finished(b, floats.saturated(b, x[0]), "ftz" in words)
    if gives in ("bf16x2", "f16x2") and {*words[1:]} <= {"rn", gives, "f32"}:
        if gives == "bf16x2":
            high, low = (floats.to_bf16(b, b.bitcast(each, lanes(I32))) for each in x)
        else:
            high, low = (floats.to_f16(b, each) for each in x)
        return b.or_(b.shl(high, b.all(16, high)), low)
    if not plain or len(kinds) != 1:
        raise NotNative
    if (gives, kind) == ("bf16", "f32"):
        return b.trunc(floats.to_bf16(b, b.bitcast(x[0], lanes(I32))), lanes(I16))
    if (gives, kind) == ("f16", "f32"):
        return b.trunc(floats.to_f16(b, x[0]), lanes(I16))
    if (gives, kind) == ("f32", "f16"):
        floats.halves()
        return floats.canonical(b, b.fpext(x[0], lanes(FLOAT)))
    if (gives, kind) == ("f32", "bf16"):
        return b.shl(b.zext(x[0], lanes(I32)), b.all(16, lanes(I32)))
    if (gives, kind) == ("f64", "f32"):
        return b.fpext(x[0], lanes(DOUBLE))
    if gives == "f32" and kind[0] in "us":
        return (b.sitofp if kind[0] == "s" else b.uitofp)(x[0], lanes(FLOAT))
    if gives == "f16" and kind[0] in "us" and BITS[kind] <= 32:  # exact in float64
        exact = (b.sitofp if kind[0] == "s" else b.uitofp)(x[0], lanes(DOUBLE))
        return b.trunc(floats.to_f16(b, halves.odd_single(b, exact)), lanes(I16))
    if gives[0] in "us" and kind[0] in "us":
        return resized(b, x[0], BITS[kind], BITS[gives], signed=kind[0] == "s")
    raise NotNative


def to_whole(b: Builder, x: ir.Value, mode: str, gives: str) -> ir.Value:
    """Emit FP32 x as whole numbers of a type; a number beyond the limits becomes the limit, and NaN 0."""
    x = b.intrinsic(NEAREST[mode], [b.fpext(x, lanes(DOUBLE))])
    low, high = limits(gives)
    x = b.select(floats.not_a_number(b, x), b.all(0.0, x), x)
    x = b.select(b.fcmp_ordered("<", x, b.all(float(low), x)), b.all(float(low), x), x)
    x = b.select(b.fcmp_ordered(">", x, b.all(float(high), x)), b.all(float(high), x), x)
    return b.trunc(b.fptosi(x, lanes(I64)), lanes(ir.IntType(BITS[gives])))


def resized(b: Builder, x: ir.Value, bits: int, to: int, signed: bool) -> ir.Value:
    """Emit whole numbers of so many bits with `to` bits."""
    if to == bits:
        return x
    kind = lanes(ir.IntType(to))
    return b.trunc(x, kind) if to < bits else b.sext(x, kind) if signed else b.zext(x, kind)
