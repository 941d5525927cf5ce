"""A warp: 32 threads, the next instruction of each, and the order in which they execute.

Of the threads that do not wait, those whose next instruction is first in the text execute it together. So threads that
took different branches join again behind them, and a warp needs no list of the places where they do.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ptx_machine.lanes import WARP, Lanes, raw, read, write
from ptx_machine.memory import BadAccess, Endless
from ptx_machine.syntax import Instruction, Register

LONGEST = 1 << 28  # instructions that a warp may execute between barriers
ALL = np.ones(WARP, bool)  # a mask that nothing writes to
Step: TypeAlias = Callable[["Warp", Lanes], bool | None]  # in the lanes of a mask; True: it set their next instruction
Members: TypeAlias = Callable[["Warp"], Lanes]  # the lanes that must execute an instruction together


@dataclass(frozen=True)
class Code:
    """A kernel as steps that a warp takes.

    Attributes:
        name: of the kernel.
        instructions, steps, members: one of each for every instruction; the last instruction is an added end.
        labels: label -> number of the instruction behind it. local: bytes of local memory of a thread.
        dynamic: the first byte of the shared memory whose size the launch gives.
    """

    name: str
    instructions: tuple[Instruction, ...]
    steps: tuple[Step, ...]
    members: tuple[Members | None, ...]
    labels: Mapping[str, int]
    local: int
    dynamic: int


class Registers(dict):
    """Register -> its lanes (32,), which are zeros until something is written."""

    def __missing__(self, register: Register) -> Lanes:
        return self.setdefault(register, np.zeros(WARP, raw(register.type)))


class Warp:
    """32 threads that execute together.

    Attributes:
        block: the `block.Block` that it is a part of. index: its number there.
        at: (32,), the number of each lane's next instruction. alive: bool (32,), lanes that have not ended.
        blocked: bool (32,), lanes that wait at a barrier.
        held: bool (32,), lanes that wait at an instruction until others of their warp come to it.
        local: uint8 (32, bytes) of local memory. turn: False when the warp should let others run.
        waited: whether it has come to a barrier in this turn, which ends there.
        idle: whether it waits until a barrier lets it go on, or has ended.
        whole: whether none of its 32 threads has ended.
        shadow: what an observer of the launch keeps beside the registers.
    """

    def __init__(self, block: Any, index: int, threads: int):
        self.block, self.index = block, index
        self.registers: Mapping[Register, Lanes] = Registers(block.special(index))
        self.at = np.zeros(WARP, np.int64)
        self.alive = np.arange(WARP) + WARP * index < threads
        self.blocked, self.held = np.zeros(WARP, bool), np.zeros(WARP, bool)
        self.local = np.zeros((WARP, block.code.local), np.uint8)
        if block.compiled is not None:
            for name, value in block.compiled.of(index).items():
                setattr(self, name, value)
        self.turn, self.waited, self.idle, self.whole = True, False, False, bool(self.alive.all())
        self.shadow: dict[Register, Any] = {}

    def bits(self, register: Register) -> Lanes:
        """Return the bits of a register, (32,)."""
        return self.registers[register]

    def read(self, register: Register, kind: str) -> Lanes:
        """Return a register as values of a type of PTX, (32,)."""
        return read(self.bits(register), kind)

    def write(self, register: Register, values: Lanes, mask: Lanes) -> None:
        """Write values (32,) to a register in the lanes of mask, bool (32,)."""
        np.copyto(self.bits(register), write(values, register.type), where=mask)

    def write_each(self, registers: Iterable[Register | None], values: Iterable[Lanes], mask: Lanes) -> None:
        """Write values, (32,) for each register, in the lanes of mask; None: a result that is dropped."""
        for register, lanes in zip(registers, values):
            if register is not None:
                self.write(register, lanes, mask)

    def run(self) -> None:
        """Run until no thread can go on, or the warp gives up its turn, or threads of it have come to a barrier."""
        code, races = self.block.code, self.block.memory.shared.races
        self.turn, self.waited = True, False
        if races is not None:
            races.now = self.index
        compiled, begun = self.block.compiled, self.block.executed
        while self.turn and not self.waited and not self.idle:
            if self.block.executed - begun > LONGEST:
                lane, reason = int(self.alive.argmax()), f"{LONGEST:,} instructions of a warp, and it does not end"
                fault = self.block.fault(reason, code.instructions[int(self.at[lane])], self, lane)
                raise Endless(f"{fault}")
            if compiled is not None:
                if compiled.advance(self.index):
                    return
                self.whole = bool(self.alive.all())
            if self.whole and not (self.blocked.any() or self.held.any()):
                at = int(self.at[0])
                if code.instructions[at].guard is None and (self.at == at).all():
                    self.execute(at, ALL)
                    continue
            free = self.alive & ~self.blocked
            if not free.any():
                self.idle = True
                return
            first = free & ~self.held
            at = int(self.at[first if first.any() else free].min())
            lanes = free & (self.at == at)
            mask = lanes
            guard = code.instructions[at].guard
            if guard is not None:
                register, false = guard
                mask = lanes & (self.bits(register) != false)
                self.at[lanes & ~mask] += 1
            if mask.any():
                self.step(at, mask, bool((first & ~lanes).any()))

    def step(self, at: int, mask: Lanes, others: bool) -> None:
        """Execute one instruction in the lanes of mask, bool (32,). others: whether lanes at other instructions can go
        on.

        Raises:
            Fault: the instruction may not do what it does, or lanes that must execute it do not come.
        """
        code, block = self.block.code, self.block
        members = code.members[at]
        absent = members(self) & self.alive & ~mask if members is not None else None
        if absent is not None and absent.any():
            self.held |= mask
            if not others:
                lane, numbers = int(mask.argmax()), ", ".join(map(str, np.flatnonzero(absent)))
                raise block.fault(f"lanes {numbers} do not come to it", code.instructions[at], self, lane)
            return
        self.held[mask] = False
        self.execute(at, mask)

    def execute(self, at: int, mask: Lanes) -> None:
        """Execute an instruction in the lanes of mask, bool (32,), that must not wait for others.

        Raises:
            Fault: the instruction may not do what it does.
        """
        code, block = self.block.code, self.block
        block.steps += 1
        try:
            jumped = code.steps[at](self, mask)
        except BadAccess as bad:
            raise block.fault(bad.reason, code.instructions[at], self, bad.lane, bad.asserted) from None
        for lane, place in block.memory.unwritten:
            line = code.instructions[at].frames or at
            block.unwritten.setdefault(line, block.fault(place, code.instructions[at], self, lane))
        block.memory.unwritten.clear()
        if not jumped:
            self.at[mask] += 1  # an array that compiled code sees, so in place
