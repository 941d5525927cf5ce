"""An instruction as slots, and as a function that LLVM compiles: `Encoding`. One function serves all instructions that
are spelt alike, on registers of the same types."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from llvmlite import ir

from fa_lib.gpu.block import SPECIALS
from fa_lib.gpu.lanes import WARP
from fa_lib.gpu.native.emitter import Emitter, NotNative, Outcome
from fa_lib.gpu.operands import Addresses, constant, named
from fa_lib.gpu.syntax import BITS, Address, Immediate, Instruction, Negated, Operand, Register, Special, Symbol

ROW = 64  # bytes that every operand's lanes are aligned to


@dataclass
class Layout:
    """Where registers and constants are in a warp's memory: bytes from its beginning."""

    names: Addresses
    size: int = 0
    registers: dict[Register, int] = field(default_factory=dict)
    constants: dict[bytes, int] = field(default_factory=dict)
    specials: dict[str, int] = field(default_factory=dict)

    def row(self, size: int) -> int:
        start = self.size
        self.size += -(-size // ROW) * ROW
        return start

    def register(self, register: Register) -> int:
        if register not in self.registers:
            self.registers[register] = self.row(WARP * max(1, BITS[register.type] // 8))
        return self.registers[register]

    def constant(self, values: np.ndarray) -> int:
        data = np.ascontiguousarray(values).tobytes()
        if data not in self.constants:
            self.constants[data] = self.row(len(data))
        return self.constants[data]

    def special(self, name: str) -> int:
        if name not in self.specials:
            self.specials[name] = self.row(4 * WARP)
        return self.specials[name]


@dataclass
class Encoding:
    """An instruction.

    Attributes:
        slots: of its operands. key: of the function that it is. build: puts that function's operations together.
    """

    instruction: Instruction
    layout: Layout
    slots: list[int] = field(default_factory=list)
    shape: list[str] = field(default_factory=list)
    build: Callable[[Emitter], None] | None = None
    outcome: Outcome = Outcome.DONE

    @property
    def key(self) -> str:
        return f"{self.instruction} {' '.join(self.shape)}"

    def emit(self, function: Emitter) -> None:
        """Raises:
        NotNative: the numpy machine does it."""
        if self.build is None:
            raise NotNative
        self.build(function)
        function.end(self.outcome)

    def operand(self, operand: Operand, kind: str) -> Callable[[Emitter], ir.Value]:
        """Gives it a slot; how it is read as a type."""
        index, negative = len(self.slots), isinstance(operand, Negated)
        register = operand.register if isinstance(operand, Negated) else operand
        if isinstance(register, Register):
            self.slots.append(self.layout.register(register))
            held = register.type
        elif isinstance(register, Immediate):
            self.slots.append(self.layout.constant(constant(register, kind)))
            held = kind
        elif isinstance(register, Symbol):
            at = named(register.name, self.instruction, self.layout.names) + register.offset
            self.slots.append(self.layout.constant(constant(Immediate(at), kind)))
            held = kind
        elif isinstance(register, Special) and register.name in SPECIALS and BITS[kind] == 32:
            self.slots.append(self.layout.special(register.name))
            held = kind
        else:
            raise NotNative
        self.shape.append(f"{'-' if negative else ''}{held}:{kind}")

        def value(e: Emitter) -> ir.Value:
            found = e.value(index, held, kind)
            if not negative:
                return found
            return e.b.not_(found) if kind == "pred" else e.b.fneg(found)

        return value

    def result(self, operand: Operand, kind: str) -> Callable[[Emitter, ir.Value], None]:
        """Gives it a slot; how it is written."""
        if not isinstance(operand, Register):
            raise NotNative
        index, held = len(self.slots), operand.type
        self.slots.append(self.layout.register(operand))
        self.shape.append(f"{held}={kind}")
        return lambda e, value: e.write(index, held, kind, value)

    def raw(self, operand: Operand) -> str:
        """Gives a register a slot; its type."""
        if not isinstance(operand, Register):
            raise NotNative
        self.slots.append(self.layout.register(operand))
        self.shape.append(operand.type)
        return operand.type

    def address(self, operand: Operand) -> str:
        """Gives an address two slots: the lanes of its base, and what is added; the base's type."""
        if not isinstance(operand, Address):
            raise NotNative
        base, offset = operand
        if isinstance(base, Register):
            kind = self.raw(base)
        else:
            start = base.value if isinstance(base, Immediate) else named(base.name, self.instruction, self.layout.names)
            self.slots.append(self.layout.constant(np.full(WARP, start % (1 << 64), np.uint64)))
            kind = "b64"
            self.shape.append(kind)
        self.slots.append(offset)
        return kind
