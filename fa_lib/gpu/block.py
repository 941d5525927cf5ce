"""A thread block: its warps, the next instruction of each thread, its barriers, and the order of execution.

Of the threads of a warp that do not wait, those whose next instruction is first in the text execute it together. So
threads that took different branches join again behind them, and a warp needs no list of the places where they do.

Warps take turns in the order of their numbers; each runs until all its threads wait. So every run of a kernel has the
same order of atomic operations.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np

from fa_lib.gpu.lanes import WARP, Lanes, raw, read, write
from fa_lib.gpu.memory import BadAccess, Fault, View
from fa_lib.gpu.specials import Size, specials
from fa_lib.gpu.syntax import Instruction, Register

ALL = np.ones(WARP, bool)  # a mask that nothing writes to
IDLE = 10_000  # turns of warps that only look whether they may go on; then they are stuck
Step: TypeAlias = Callable[["Warp", Lanes], bool | None]  # in the lanes of a mask; True: it set their next instruction
Members: TypeAlias = Callable[["Warp"], Lanes]  # the lanes that must execute an instruction together


class Advances(Protocol):
    """The compiled machine of a warp: a call runs the warp, and returns the number of instructions that it executed.
    barrier() is the number of the barrier that the whole warp has come to, once; else negative."""

    def __call__(self) -> int: ...

    def barrier(self) -> int: ...


Compiled: TypeAlias = Callable[["Warp"], Advances] | None  # makes the compiled machine of a warp


@dataclass(frozen=True)
class Code:
    """A kernel as steps that a warp takes.

    Attributes:
        name: of the kernel.
        instructions, steps, members: one of each for every instruction; the last instruction is an added end.
        labels: label -> number of the instruction behind it.
        local: bytes of local memory of a thread.
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
        at: (32,), the number of each lane's next instruction.
        alive: bool (32,), lanes that have not ended.
        blocked: bool (32,), lanes that wait at a barrier.
        held: bool (32,), lanes that wait at an instruction until others of their warp come to it.
        local: uint8 (32, bytes) of local memory.
        turn: False when the warp should let others run.
        idle: whether it waits until a barrier lets it go on, or has ended.
        whole: whether none of its 32 threads has ended.
        advance: runs the warp as far as a compiled machine can; None without one.
        shadow: what an observer of the launch keeps beside the registers; None without one.
    """

    def __init__(self, block: "Block", index: int, threads: int):
        self.block, self.index = block, index
        self.registers: Mapping[Register, Lanes] = Registers()
        self.at = np.zeros(WARP, np.int64)
        self.alive = np.arange(WARP) + WARP * index < threads
        self.blocked, self.held = np.zeros(WARP, bool), np.zeros(WARP, bool)
        self.local = np.zeros((WARP, block.code.local), np.uint8)
        self.special = block.special(index)
        self.turn, self.idle, self.whole = True, False, bool(self.alive.all())
        self.advance = block.native(self) if block.native is not None else None
        self.shadow: Any = None

    def bits(self, register: Register) -> Lanes:
        """Return the bits of a register, (32,)."""
        return self.registers[register]

    def read(self, register: Register, kind: str) -> Lanes:
        """Return a register as values of a type of PTX, (32,)."""
        return read(self.bits(register), kind)

    def write(self, register: Register, values: Lanes, mask: Lanes) -> None:
        """Write values (32,) to a register in the lanes of mask, bool (32,)."""
        np.copyto(self.bits(register), write(values, register.type), where=mask)

    def bits_of_all(self, registers: tuple[Register, ...]) -> np.ndarray:
        """Return the bits of registers of one width, (count, 32)."""
        of = self.registers
        return np.stack([of[register] for register in registers])

    def write_all(self, registers: tuple[Register, ...], bits: np.ndarray) -> None:
        """Write bits (count, 32) to registers of their width, in all lanes."""
        of = self.registers
        for register, lanes in zip(registers, bits):
            of[register][:] = lanes

    def run(self) -> None:
        """Run until no thread can go on, or the warp gives up its turn."""
        code, self.turn, races = self.block.code, True, self.block.memory.shared.races
        if races is not None:
            races.now = self.index
        while self.turn and not self.idle:
            if self.advance is not None:
                self.block.steps += self.advance()
                barrier = self.advance.barrier()
                if barrier >= 0:
                    self.block.arrive(barrier, None, self, ALL, wait=True)
                    continue
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
            raise block.fault(bad.reason, code.instructions[at], self, bad.lane) from None
        if not jumped:
            self.at[mask] += 1  # an array that compiled code sees, so in place


@dataclass
class Barrier:
    """The threads at a barrier. expected: their number; None: all threads of the block that have not ended."""

    expected: int | None
    arrived: int = 0
    waiting: list[tuple[Warp, Lanes]] = field(default_factory=list)


class Block:
    """A thread block.

    Attributes:
        number: of the block in the grid, (x, y, z).
        grid: size of the grid in blocks, (x, y, z).
        size: of the block in threads, (x, y, z).
        steps: number of instructions that warps executed. living: number of threads that have not ended.
        tensor_columns: columns of tensor memory that were given to it.
        memory: the memory that they see.
    """

    def __init__(self, code: Code, memory: View, number: Size, grid: Size, size: Size, native: Compiled = None):
        self.code, self.memory, self.number, self.grid, self.size = code, memory, number, grid, size
        self.steps, self.native = 0, native
        self.threads = self.living = int(np.prod(size))
        self.barriers: dict[int, Barrier] = {}
        self.tensor_columns = 0
        self._number = {f"%ctaid.{axis}": np.full(WARP, at, np.uint32) for axis, at in zip("xyz", number)}
        self.warps = [Warp(self, index, self.threads) for index in range(-(-self.threads // WARP))]

    @cached_property
    def tensor_memory(self) -> np.ndarray:
        """Blackwell's memory of results, uint32 (128, 512); NaN before it is written."""
        return np.full((128, 512), 0xFFFFFFFF, np.uint32)

    def special(self, warp: int) -> dict[str, Lanes]:
        """Return the special registers of a warp: name of SPECIALS -> uint32 (32,)."""
        return specials(warp, self.size, self.grid) | self._number

    def run(self) -> None:
        """Run until all threads have ended.

        Raises:
            Fault: a thread does what it may not, or all threads wait and none can go on.
        """
        idle = 0
        while ready := [warp for warp in self.warps if not warp.idle]:
            before = self.steps
            for warp in ready:
                warp.run()
            idle = idle + 1 if all(not warp.turn for warp in ready) or self.steps == before else 0
            if idle > IDLE:
                break
        stuck = next((warp for warp in self.warps if warp.alive.any()), None)
        if stuck is not None:
            lane = int(stuck.alive.argmax())
            at = min(int(stuck.at[lane]), len(self.code.instructions) - 1)
            raise self.fault("threads wait for what never comes", self.code.instructions[at], stuck, lane)

    def arrive(self, number: int, expected: int | None, warp: Warp, mask: Lanes, wait: bool) -> None:
        """Let the lanes of mask come to a barrier. When as many threads as expected have come, all go on.

        Args:
            number: of the barrier.
            expected: number of threads; None: all of the block that have not ended.
            warp: of the lanes.
            mask: bool (32,).
            wait: whether the lanes wait there.
        """
        barrier = self.barriers.setdefault(number, Barrier(expected))
        barrier.arrived += WARP if mask is ALL else int(mask.sum())
        if self.memory.shared.races is not None:
            self.memory.shared.races.arrive(number)
        if wait:
            barrier.waiting.append((warp, mask))
            warp.blocked |= mask
            warp.idle = mask is ALL
        self.release(number)

    def ended(self) -> None:
        """Release barriers after threads have ended: barriers of all threads now expect fewer."""
        self.living = sum(int(warp.alive.sum()) for warp in self.warps)
        for number in [*self.barriers]:
            self.release(number)

    def release(self, number: int) -> None:
        """Let the threads at a barrier go on, if all that it expects have come."""
        barrier = self.barriers[number]
        expected = barrier.expected
        if expected is None:
            expected = self.living
        if barrier.arrived >= expected:
            for warp, mask in barrier.waiting:
                warp.blocked &= ~mask
                warp.idle = False
            if self.memory.shared.races is not None:
                self.memory.shared.races.released(number, {warp.index for warp, _ in barrier.waiting})
            del self.barriers[number]

    def fault(self, reason: str, instruction: Instruction, warp: Warp, lane: int) -> Fault:
        """Make a Fault that names the kernel, the line, the instruction, the block and the thread."""
        thread = WARP * warp.index + lane
        x, y, _ = self.size
        where = f"line {instruction.line} of its PTX"
        if instruction.source is not None:
            where = f"{instruction.source[0]}, line {instruction.source[1]} ({where})"
        thread_name = f"block {self.number}, thread {(thread % x, thread // x % y, thread // (x * y))}"
        return Fault(f"{self.code.name}: {where}: {instruction}: {thread_name}: {reason}")
