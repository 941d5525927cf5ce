"""LLVM's operations on 32 lanes: types, constants, and access to memory."""

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from ptx_machine.lanes import WARP

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
HALF, FLOAT, DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
POINTER = ir.PointerType()


def element(dtype: np.dtype) -> ir.Type:
    """Return LLVM's type of a number."""
    if dtype.kind == "f":
        return {2: HALF, 4: FLOAT, 8: DOUBLE}[dtype.itemsize]
    return I1 if dtype.kind == "b" else ir.IntType(8 * dtype.itemsize)


def convert_halves() -> None:
    """Check that this processor converts between FP16 and FP32."""
    if platform.machine() in ("x86_64", "AMD64") and not llvm.get_host_cpu_features().get("f16c"):
        raise NotNative


def lanes(element: ir.Type, count: int = WARP) -> ir.VectorType:
    """Return the type of a vector."""
    return ir.VectorType(element, count)


class NotNative(Exception):
    """The numpy machine must execute this instruction."""


class Builder(ir.IRBuilder):
    """LLVM's builder, with constants and calls by name."""

    def all(self, value: int | float, like: ir.Value | ir.Type) -> ir.Constant:
        """Make a constant of a type, or of a value's type, the same in every lane."""
        kind = like if isinstance(like, ir.Type) else like.type
        if isinstance(kind, ir.VectorType):
            return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)
        return ir.Constant(kind, value)

    def splat(self, value: ir.Value, count: int = WARP) -> ir.Value:
        """Emit a vector with a scalar in every lane."""
        kind = lanes(value.type, count)
        first = self.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
        return self.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(lanes(I32, count), [0] * count))

    def intrinsic(self, name: str, arguments: Sequence[ir.Value], result: ir.Type | None = None) -> ir.Value:
        """Emit a call of llvm.<name>.<type of the first argument>."""
        kind = arguments[0].type
        full = f"llvm.{name}.{_suffix(kind)}"
        function = self.module.globals.get(full)
        if function is None:
            types = [argument.type for argument in arguments]
            function = ir.Function(self.module, ir.FunctionType(result or kind, types), full)
        return self.call(function, arguments)

    def room(self, kind: ir.Type, count: int = 1) -> ir.Value:
        """Emit memory for `count` values of a type, until the function ends."""
        memory = self.alloca(kind, size=count)
        memory.type = POINTER  # llvmlite's own is a pointer to that kind alone
        return memory

    def at(self, pointer: ir.Value, offset: int | ir.Value) -> ir.Value:
        """Emit a pointer `offset` bytes further."""
        return self.gep(pointer, [I64(offset) if isinstance(offset, int) else offset], source_etype=I8)

    def get(self, pointer: ir.Value, kind: ir.Type, align: int = 1) -> ir.Value:
        """Emit a load of a type."""
        return self.load(pointer, typ=kind, align=align)

    def put(self, value: ir.Value, pointer: ir.Value, align: int = 1) -> None:
        """Emit a store."""
        self.store(value, pointer, align=align)

    def is_nan(self, x: ir.Value) -> ir.Value:
        """Emit which numbers are NaN."""
        return self.fcmp_unordered("uno", x, x)

    def any(self, mask: ir.Value) -> ir.Value:
        """Emit whether a lane of a mask is set."""
        return self.icmp_unsigned("!=", self.bitcast(mask, ir.IntType(mask.type.count)), ir.IntType(mask.type.count)(0))

    @contextmanager
    def counted(self, count: int | ir.Value, first: ir.Value | None = None) -> Iterator[ir.Value]:
        """Emit a loop of what is emitted inside; it gives the number of the turn, an int64, from 0 or `first` to below
        `count`, which is more."""
        before, loop, out = self.block, self.append_basic_block(), self.append_basic_block()
        self.branch(loop)
        self.position_at_end(loop)
        i = self.phi(I64)
        i.add_incoming(first or I64(0), before)
        yield i
        following = self.add(i, I64(1))
        i.add_incoming(following, self.block)
        last = I64(count) if isinstance(count, int) else count
        self.cbranch(self.icmp_unsigned("<", following, last), loop, out)
        self.position_at_end(out)

    def masked(self, pointer: ir.Value) -> ir.Value:
        """Emit the mask that is stored as 32 bytes."""
        data = self.get(pointer, lanes(I8))
        return self.icmp_unsigned("!=", data, self.all(0, data))

    def keep(self, mask: ir.Value, pointer: ir.Value) -> None:
        """Emit a store of a mask as 32 bytes."""
        self.put(self.zext(mask, lanes(I8)), pointer)


def _suffix(kind: ir.Type) -> str:
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_suffix(kind.element)}"
    return {HALF: "f16", FLOAT: "f32", DOUBLE: "f64"}.get(kind) or f"i{kind.width}"
