"""One instruction as a function of LLVM: `int64 f(registers, slots, mask, full, memory)`.

registers: the warp's, in memory. slots: of this instruction, 64 bits each; from FIRST_SLOT on they are the places of
its operands' lanes among the registers, in bytes. mask: 32 bytes, the lanes that execute it; full: whether these are
all. memory: the fields of Memory. It returns an Outcome; with NOT_DONE it has changed nothing.
"""

from enum import IntEnum

from llvmlite import ir

from ptx_machine.lanes import DTYPES
from ptx_machine.native.vectors import I8, I64, POINTER, Builder, NotNative, element, lanes
from ptx_machine.syntax import BITS

SLOTS = 32  # of an instruction
FUNCTION, GUARD, SENSE, TOGETHER, FIRST_SLOT = range(5)  # what they hold; TOGETHER: whether all lanes must come to it
TYPE = ir.FunctionType(I64, [POINTER, POINTER, POINTER, ir.IntType(1), POINTER])


class Outcome(IntEnum):
    """The result of a function: NOT_DONE, for the numpy machine to execute; DONE; BRANCH, to the label in a slot;
    BARRIER, where the warp waits at the barrier whose number is in a slot; or END, of the threads."""

    NOT_DONE, DONE, BRANCH, BARRIER, END = range(5)


class Memory(IntEnum):
    """The fields of a block's memory, 64 bits each: pointers and sizes. SPANS: begin and end of each span of global
    memory, by address, and whether it may have bytes that nobody has written. WRITTEN: flags of the bytes of shared
    memory that were written; 0: there are none."""

    SPANS, SPAN_COUNT, SHARED, SHARED_SIZE, WRITTEN, PARAMETERS, PARAMETERS_SIZE = range(7)


class Emitter:
    """A function of LLVM that is being built.

    Attributes:
        b: the builder, at the place of the next operation.
        mask: 32 booleans, the lanes that execute the instruction. full: a boolean, whether these are all.
    """

    def __init__(self, module: ir.Module, name: str):
        self.function = ir.Function(module, TYPE, name)
        self.registers, self.slots, mask, self.full, self.memory = self.function.args
        self.b = Builder(self.function.append_basic_block())
        self.mask = self.b.masked(mask)

    def slot(self, index: int) -> ir.Value:
        """Read a slot."""
        return self.b.get(self.b.at(self.slots, 8 * (FIRST_SLOT + index)), I64, 8)

    def place(self, index: int) -> ir.Value:
        """Return the place of the lanes of the operand in a slot."""
        return self.b.at(self.registers, self.slot(index))

    def value(self, index: int, register: str, kind: str) -> ir.Value:
        """Read an operand as a type, the lower bits of a wider register.

        Args:
            index: of its slot. register: the register's own type. kind: the type."""
        b = self.b
        if kind == "pred":
            return b.masked(self.place(index))
        if BITS[register] < BITS[kind]:
            raise NotNative
        bits = b.get(self.place(index), lanes(ir.IntType(BITS[register])), 16)
        if BITS[register] > BITS[kind]:
            bits = b.trunc(bits, lanes(ir.IntType(BITS[kind])))
        number = element(DTYPES[kind])
        return bits if isinstance(number, ir.IntType) else b.bitcast(bits, lanes(number))

    def write(self, index: int, register: str, kind: str, value: ir.Value) -> None:
        """Write a result to the lanes of the mask; where the register is wider, it is extended, by its sign if it has
        one."""
        b = self.b
        if kind == "pred":
            value = b.zext(value, lanes(I8))
        else:
            bits = lanes(ir.IntType(BITS[kind]))
            value = value if value.type == bits else b.bitcast(value, bits)
            if BITS[register] > BITS[kind]:
                extend = b.sext if DTYPES[kind].kind == "i" else b.zext
                value = extend(value, lanes(ir.IntType(BITS[register])))
            elif BITS[register] < BITS[kind]:
                raise NotNative
        place = self.place(index)
        with b.if_else(self.full) as (then, otherwise):
            with then:
                b.put(value, place, 16)
            with otherwise:
                old = b.get(place, value.type, 16)
                b.put(b.select(self.mask, value, old), place, 16)

    def of(self, field: Memory, kind: ir.Type = I64) -> ir.Value:
        """Read a field of the block's memory."""
        return self.b.get(self.b.at(self.memory, 8 * field), kind, 8)

    def needs(self, condition: ir.Value) -> None:
        """Return NOT_DONE from the function unless the condition holds."""
        good, bad = self.b.append_basic_block(), self.b.append_basic_block()
        self.b.cbranch(condition, good, bad)
        self.b.position_at_end(bad)
        self.b.ret(I64(Outcome.NOT_DONE))
        self.b.position_at_end(good)

    def end(self, outcome: Outcome = Outcome.DONE) -> None:
        """Return an outcome from the function."""
        self.b.ret(I64(outcome))
