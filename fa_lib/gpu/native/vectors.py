"""Building LLVM's operations on 32 lanes: types, constants, and where lanes are in memory."""

from collections.abc import Sequence

from llvmlite import ir

from fa_lib.gpu.lanes import WARP
from fa_lib.gpu.syntax import BITS

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
HALF, FLOAT, DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
POINTER = ir.PointerType()
FLOATS = {"f16": HALF, "f32": FLOAT, "f64": DOUBLE}


def scalar(kind: str) -> ir.Type:
    """Of a type of PTX; a predicate is a byte, in memory."""
    return FLOATS.get(kind) or (I8 if kind == "pred" else ir.IntType(BITS[kind]))


def lanes(element: ir.Type, count: int = WARP) -> ir.VectorType:
    return ir.VectorType(element, count)


class Builder(ir.IRBuilder):
    """LLVM's builder, with constants and calls by name."""

    def all(self, value: int | float, like: ir.Value | ir.Type) -> ir.Constant:
        """A constant in every lane of a type."""
        kind = like if isinstance(like, ir.Type) else like.type
        if isinstance(kind, ir.VectorType):
            return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)
        return ir.Constant(kind, value)

    def splat(self, value: ir.Value, count: int = WARP) -> ir.Value:
        """A scalar in every lane."""
        kind = lanes(value.type, count)
        one = self.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
        return self.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(lanes(I32, count), [0] * count))

    def intrinsic(self, name: str, arguments: Sequence[ir.Value], result: ir.Type | None = None) -> ir.Value:
        """llvm.<name>.<type of the first argument>."""
        kind = arguments[0].type
        full = f"llvm.{name}.{_suffix(kind)}"
        found = self.module.globals.get(full)
        if found is None:
            types = [argument.type for argument in arguments]
            found = ir.Function(self.module, ir.FunctionType(result or kind, types), full)
        return self.call(found, arguments)

    def room(self, kind: ir.Type, count: int = 1) -> ir.Value:
        """Memory for so many, until the function ends."""
        found = self.alloca(kind, size=count)
        found.type = POINTER  # llvmlite's own is a pointer to that kind alone
        return found

    def at(self, pointer: ir.Value, offset: int | ir.Value) -> ir.Value:
        """A pointer so many bytes further."""
        return self.gep(pointer, [I64(offset) if isinstance(offset, int) else offset], source_etype=I8)

    def get(self, pointer: ir.Value, kind: ir.Type, align: int = 1) -> ir.Value:
        return self.load(pointer, typ=kind, align=align)

    def put(self, value: ir.Value, pointer: ir.Value, align: int = 1) -> None:
        self.store(value, pointer, align=align)

    def any(self, mask: ir.Value) -> ir.Value:
        return self.icmp_unsigned("!=", self.bitcast(mask, ir.IntType(mask.type.count)), ir.IntType(mask.type.count)(0))

    def masked(self, pointer: ir.Value) -> ir.Value:
        """A mask, kept as 32 bytes."""
        held = self.get(pointer, lanes(I8))
        return self.icmp_unsigned("!=", held, self.all(0, held))

    def keep(self, mask: ir.Value, pointer: ir.Value) -> None:
        self.put(self.zext(mask, lanes(I8)), pointer)


def _suffix(kind: ir.Type) -> str:
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_suffix(kind.element)}"
    return {HALF: "f16", FLOAT: "f32", DOUBLE: "f64"}.get(kind) or f"i{kind.width}"
