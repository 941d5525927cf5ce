"""An instruction as slots, and as a function that LLVM compiles: `Encoding`. One function serves all instructions that
are spelt alike, on registers of the same types."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from llvmlite import ir

from ptx_machine.lanes import DTYPES, WARP
from ptx_machine.native.emitter import Emitter, NotNative, Outcome
from ptx_machine.native.traced import Traced
from ptx_machine.operands import Addresses, constant, named, negated
from ptx_machine.syntax import BITS, Address, Immediate, Instruction, Negated, Operand, Register, Symbol

ROW = 64  # bytes that every operand's lanes are aligned to


class Field(IntEnum):
    """Where a warp's memory has what the loop needs, in bytes from its beginning: the number of each lane's next
    instruction, and `alive`, `blocked` and `held`, as `warp.Warp` has them; the number of the barrier of all threads
    that the warp has come to, or NOWHERE; then local memory, one lane's after the other's."""

    AT, ALIVE, BLOCKED, HELD, BARRIER, LOCAL = 0, 8 * WARP, 8 * WARP + ROW, 8 * WARP + 2 * ROW, 8 * WARP + 3 * ROW, 512


NOWHERE = -1


@dataclass
class Layout:
    """The places of registers and constants in a warp's memory, in bytes from its beginning, behind the Fields."""

    names: Addresses
    size: int = 0
    registers: dict[Register, int] = field(default_factory=dict)
    constants: dict[bytes, int] = field(default_factory=dict)

    def row(self, size: int) -> int:
        """Reserve `size` bytes, aligned to ROW, and return their place."""
        start = self.size
        self.size += -(-size // ROW) * ROW
        return start

    def register(self, register: Register) -> int:
        """Return the place of a register, reserved at the first call."""
        if register not in self.registers:
            self.registers[register] = self.row(WARP * max(1, BITS[register.type] // 8))
        return self.registers[register]

    def constant(self, values: np.ndarray) -> int:
        """Return the place of a constant's lanes (32,), reserved at the first call."""
        data = np.ascontiguousarray(values).tobytes()
        if data not in self.constants:
            self.constants[data] = self.row(len(data))
        return self.constants[data]


@dataclass
class Encoding:
    """An instruction.

    Attributes:
        instruction, layout: of the kernel. slots: of its operands.
        shape: types of its operands; instructions with the same text and shape share a function.
        build: emits the operations of the function. outcome: of the function.
    """

    instruction: Instruction
    layout: Layout
    slots: list[int] = field(default_factory=list)
    shape: list[str] = field(default_factory=list)
    build: Callable[[Emitter], None] | None = None
    outcome: Outcome = Outcome.DONE

    @property
    def key(self) -> str:
        """The key of its function."""
        return f"{self.instruction} {' '.join(self.shape)}"

    def emit(self, function: Emitter) -> None:
        """Emit the function."""
        if self.build is None:
            raise NotNative
        self.build(function)
        function.end(self.outcome)

    def operand(self, operand: Operand, kind: str) -> Callable[[Emitter], Traced]:
        """Give an operand a slot, and return the function that reads it as a type."""
        index, negative = len(self.slots), isinstance(operand, Negated)
        register = operand.register if isinstance(operand, Negated) else operand
        own_kind = register.type if isinstance(register, Register) else kind
        if isinstance(register, Symbol):
            register = Immediate(named(register.name, self.instruction, self.layout.names) + register.offset)
        if isinstance(register, Register):
            self.slots.append(self.layout.register(register))
        elif isinstance(register, Immediate):
            self.slots.append(self.layout.constant(constant(register, kind)))
        else:
            raise NotNative
        self.shape.append(f"{'-' if negative else ''}{own_kind}:{kind}")

        def value(e: Emitter) -> Traced:
            x = Traced(e.b, e.value(index, own_kind, kind), DTYPES[kind])
            return negated(x, kind) if negative else x

        return value

    def result(self, operand: Operand, kind: str) -> Callable[[Emitter, ir.Value], None]:
        """Give a result a slot, and return the function that writes it."""
        if not isinstance(operand, Register):
            raise NotNative
        index, own_kind = len(self.slots), operand.type
        self.slots.append(self.layout.register(operand))
        self.shape.append(f"{own_kind}={kind}")
        return lambda e, value: e.write(index, own_kind, kind, value)

    def raw(self, operand: Operand) -> str:
        """Give a register a slot, and return its type."""
        if not isinstance(operand, Register):
            raise NotNative
        self.slots.append(self.layout.register(operand))
        self.shape.append(operand.type)
        return operand.type

    def address(self, operand: Operand) -> str:
        """Give an address two slots, of the base's lanes and of the offset, and return the base's type."""
        if not isinstance(operand, Address):
            raise NotNative
        base, offset = operand.base, operand.offset
        if isinstance(base, Register):
            kind = self.raw(base)
        else:
            start = base.value if isinstance(base, Immediate) else named(base.name, self.instruction, self.layout.names)
            self.slots.append(self.layout.constant(np.full(WARP, start % (1 << 64), np.uint64)))
            kind = "b64"
            self.shape.append(kind)
        self.slots.append(offset)
        return kind
