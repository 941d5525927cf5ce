"""Instructions that do the same in every lane, on LLVM's lanes: the same bits as the numpy machine's."""

from llvmlite import ir

from fa_lib.gpu.conversions import limits
from fa_lib.gpu.native import fields, floats
from fa_lib.gpu.native.emitter import NotNative
from fa_lib.gpu.native.vectors import DOUBLE, FLOAT, I16, I32, I64, Builder, lanes
from fa_lib.gpu.syntax import BITS, Instruction

QUIET = {"rn", "ftz", "approx", "full", "f32"}  # words of FP32 instructions that are native
ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
NEAREST = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}  # of cvt, and LLVM's names
WHOLE = {**ORDERED, "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}


def emit(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    """The result of a lanewise instruction on its operands, each in its type.

    Raises:
        NotNative: the numpy machine does it.
    """
    name, types = instruction.name, instruction.types
    if name == "cvt":
        return convert(b, instruction, x)
    if name == "selp":
        return b.select(x[2], x[0], x[1])
    if types[-1] == "pred":
        return {"and": b.and_, "or": b.or_, "xor": b.xor, "not": b.not_}[name](*x)
    if types[-1] == "f32":
        return fp32(b, instruction, x)
    if types[-1] == "f64" and name in ("add", "sub", "mul", "div"):
        return {"add": b.fadd, "sub": b.fsub, "mul": b.fmul, "div": b.fdiv}[name](*x)
    if types[-1] in ("f16", "bf16", "f16x2", "bf16x2"):
        raise NotNative
    return whole(b, instruction, x)


def fp32(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    name, words = instruction.name, instruction.words
    ftz = "ftz" in words
    if name in ("neg", "abs") and not ftz:
        bits = b.bitcast(x[0], lanes(I32))
        return b.xor(bits, b.all(0x80000000, bits)) if name == "neg" else b.and_(bits, b.all(0x7FFFFFFF, bits))
    if name not in floats.SINGLE or {*words[1:]} - QUIET:
        raise NotNative
    x = [floats.flushed(b, each) if ftz else each for each in x]
    return floats.finished(b, floats.SINGLE[name](b, *x), ftz)


def whole(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    name, words, kind = instruction.name, instruction.words, instruction.types[0]
    signed, bits = kind[0] == "s", BITS[kind]
    simple = {"add": b.add, "sub": b.sub, "and": b.and_, "or": b.or_, "xor": b.xor}
    if "sat" in words:
        raise NotNative
    if name in simple:
        return simple[name](*x)
    if name == "not":
        return b.not_(x[0])
    if name == "neg":
        return b.neg(x[0])
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
    if name in fields.FIELDS and kind == "b32":
        return fields.FIELDS[name](b, *x)
    if name == "popc":
        found = b.intrinsic("ctpop", x)
        return found if bits == 32 else b.trunc(found, lanes(I32))
    if name in ("div", "rem") and bits == 32:
        return divided(b, *x, signed=signed, remainder=name == "rem")
    if name == "shf":
        n = b.and_(x[2], b.all(31, x[2])) if "wrap" in words else None
        if n is None:
            raise NotNative
        a, c = (b.zext(each, lanes(I64)) for each in x[:2])
        both = b.or_(a, b.shl(c, b.all(32, c)))
        wide = b.zext(n, lanes(I64))
        moved = b.lshr(b.shl(both, wide), b.all(32, both)) if "l" in words else b.lshr(both, wide)
        return b.trunc(moved, lanes(I32))
    raise NotNative


def product(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    words, kind = instruction.words, instruction.types[0]
    signed, bits = kind[0] == "s", BITS[kind]
    if "lo" in words:
        found = b.mul(x[0], x[1])
    elif bits == 64:
        raise NotNative
    else:
        double = lanes(ir.IntType(2 * bits))
        extend = b.sext if signed else b.zext
        found = b.mul(extend(x[0], double), extend(x[1], double))
        if "hi" in words:
            found = b.trunc(b.lshr(found, b.all(bits, found)), lanes(ir.IntType(bits)))
    return found if instruction.name == "mul" else b.add(found, x[2])


def divided(b: Builder, x: ir.Value, y: ir.Value, signed: bool, remainder: bool) -> ir.Value:
    """Of 32 bits, in 64, where no quotient is too large; of a divisor 0 all bits are set, and the remainder is x."""
    wide = lanes(I64)
    a, c = ((b.sext if signed else b.zext)(each, wide) for each in (x, y))
    none = b.icmp_unsigned("==", c, b.all(0, wide))
    c = b.select(none, b.all(1, wide), c)
    if remainder:
        found, without = (b.srem if signed else b.urem)(a, c), a
    else:
        found, without = (b.sdiv if signed else b.udiv)(a, c), b.all(-1, wide)
    return b.trunc(b.select(none, without, found), lanes(I32))


def shifted(b: Builder, x: ir.Value, n: ir.Value, bits: int, left: bool, signed: bool) -> ir.Value:
    """By the width and more, all bits go."""
    beyond = b.icmp_unsigned(">=", n, b.all(bits, n))
    near = b.select(beyond, b.all(bits - 1, n), n)
    near = b.zext(near, x.type) if bits > 32 else b.trunc(near, x.type) if bits < 32 else near
    if not left and signed:
        return b.ashr(x, near)
    return b.select(beyond, b.all(0, x), b.shl(x, near) if left else b.lshr(x, near))


def compared(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    """The comparison of setp, without what joins in."""
    word, kind = instruction.words[1], instruction.types[0]
    if kind == "f32":
        x = [floats.flushed(b, each) if "ftz" in instruction.words else each for each in x[:2]]
        if word in ORDERED:
            return b.fcmp_ordered(ORDERED[word], *x)
        if word[:-1] in ORDERED and word[-1] == "u":
            return b.fcmp_unordered(ORDERED[word[:-1]], *x)
        raise NotNative
    if kind[0] not in "bus" or word not in WHOLE:
        raise NotNative
    return (b.icmp_signed if kind[0] == "s" else b.icmp_unsigned)(WHOLE[word], *x[:2])


def convert(b: Builder, instruction: Instruction, x: list[ir.Value]) -> ir.Value:
    words, (gives, *kinds) = instruction.words, instruction.types
    kind = kinds[0]
    plain = {*words[1:]} <= {"rn", gives, kind}
    modes = [word for word in words if word in NEAREST]
    if kind == "f32" and gives[0] in "us" and BITS[gives] <= 32 and {*words[1:]} <= {*modes, "ftz", gives, kind}:
        return to_whole(b, floats.flushed(b, x[0]) if "ftz" in words else x[0], modes[0], gives)
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
        held = b.shl(b.zext(x[0], lanes(I32)), b.all(16, lanes(I32)))
        return floats.canonical(b, b.bitcast(held, lanes(FLOAT)))
    if (gives, kind) == ("f64", "f32"):
        return b.fpext(x[0], lanes(DOUBLE))
    if gives == "f32" and kind in ("s32", "u32"):
        return (b.sitofp if kind[0] == "s" else b.uitofp)(x[0], lanes(FLOAT))
    if gives[0] in "us" and kind[0] in "us":
        return resized(b, x[0], BITS[kind], BITS[gives], signed=kind[0] == "s")
    raise NotNative


def to_whole(b: Builder, x: ir.Value, mode: str, gives: str) -> ir.Value:
    """Of FP32; beyond the limits the limit, of NaN 0."""
    x = b.intrinsic(NEAREST[mode], [b.fpext(x, lanes(DOUBLE))])
    low, high = limits(gives)
    x = b.select(floats.not_a_number(b, x), b.all(0.0, x), x)
    x = b.select(b.fcmp_ordered("<", x, b.all(float(low), x)), b.all(float(low), x), x)
    x = b.select(b.fcmp_ordered(">", x, b.all(float(high), x)), b.all(float(high), x), x)
    return b.trunc(b.fptosi(x, lanes(I64)), lanes(ir.IntType(BITS[gives])))


def resized(b: Builder, x: ir.Value, bits: int, to: int, signed: bool) -> ir.Value:
    if to == bits:
        return x
    kind = lanes(ir.IntType(to))
    return b.trunc(x, kind) if to < bits else b.sext(x, kind) if signed else b.zext(x, kind)
