"""A thread block: its warps, its barriers, and the order of execution.

Warps take turns in the order of their numbers; each runs until all its threads wait, or until it has come to a barrier.
So every run of a kernel has the same order of atomic operations, in numpy and in compiled code.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from ptx_machine.lanes import WARP, Lanes
from ptx_machine.memory import Asserted, Fault, View
from ptx_machine.special_registers import SPECIAL_REGISTERS, Size, special_registers
from ptx_machine.syntax import Instruction, Register
from ptx_machine.warp import ALL, Code, Warp

if TYPE_CHECKING:
    from ptx_machine.native.compiled import Warps

NAME = 120  # characters of a kernel's name
IDLE = 10_000  # turns of warps that only look whether they may go on; then they are stuck


@dataclass
class Barrier:
    """The threads at a barrier. expected: their number; None: all threads of the block that have not ended."""

    expected: int | None
    arrived: int = 0
    waiting: list[tuple[Warp, Lanes]] = field(default_factory=list)


class Block:
    """A thread block.

    Attributes:
        number: of the block in the grid, (x, y, z). grid: size of the grid in blocks, (x, y, z).
        size: of the block in threads, (x, y, z).
        compiled: its warps in compiled code; None: numpy runs everything.
        steps: number of instructions that warps executed; those of compiled code are added when the block has ended.
        living: number of threads that have not ended.
        tensor_columns: columns of tensor memory that were given to it. memory: the memory that they see.
        unwritten: place in a source, or instruction -> its first read of memory that nobody has written, where reads
            are watched.
    """

    def __init__(
        self, code: Code, memory: View, number: Size, grid: Size, size: Size, compiled: "Warps | None" = None
    ):  # fmt: skip
        self.code, self.memory, self.number, self.grid, self.size = code, memory, number, grid, size
        self.steps, self.compiled = 0, compiled
        self.threads = self._living = int(np.prod(size))
        self.barriers: dict[int, Barrier] = {}
        self.tensor_columns = 0
        self.unwritten: dict[object, Fault] = {}
        if compiled is not None:
            compiled.begin(number)

    @cached_property
    def warps(self) -> list[Warp]:
        """The warps, made when numpy first runs one of them."""
        return [Warp(self, index, self.threads) for index in range(-(-self.threads // WARP))]

    @property
    def living(self) -> int:
        return self._living if self.compiled is None else int(self.compiled.alive.sum())

    @property
    def executed(self) -> int:
        """The instructions that its warps have executed, while it runs."""
        return self.steps + (self.compiled.steps if self.compiled is not None else 0)

    @cached_property
    def tensor_memory(self) -> np.ndarray:
        """Blackwell's memory of results, uint32 (128, 512); NaN before it is written."""
        return np.full((128, 512), 0xFFFFFFFF, np.uint32)

    def special(self, warp: int) -> dict[Register, Lanes]:
        """Return the bits (32,) of a warp's special registers."""
        own = {SPECIAL_REGISTERS[f"%ctaid.{axis}"]: np.full(WARP, at, np.uint32)
               for axis, at in zip("xyz", self.number)}  # fmt: skip
        return special_registers(warp, self.size, self.grid) | own

    def run(self) -> None:
        """Run until all threads have ended.

        Raises:
            Fault: a thread does what it may not, or all threads wait and none can go on.
        """
        idle, turns = 0, self._turns if self.compiled is None else partial(self._compiled_turns, self.compiled)
        while (moved := turns()) is not None:
            idle = 0 if moved else idle + 1
            if idle > IDLE:
                break
        if self.compiled is not None:
            self.steps += self.compiled.steps
            if not self.compiled.alive.any():
                return
        stuck = next((warp for warp in self.warps if warp.alive.any()), None)
        if stuck is not None:
            lane = int(stuck.alive.argmax())
            at = min(int(stuck.at[lane]), len(self.code.instructions) - 1)
            raise self.fault("threads wait for what never comes", self.code.instructions[at], stuck, lane)

    def _turns(self) -> bool | None:
        """Let each warp that can go on run once. Return whether one of them did more than look whether it may go on;
        None: none can."""
        ready, before = [warp for warp in self.warps if not warp.idle], self.steps
        for warp in ready:
            warp.run()
        return any(warp.turn for warp in ready) and self.steps != before if ready else None

    def _compiled_turns(self, compiled: "Warps") -> bool | None:
        """The same in compiled code, and in numpy where that stops. Warps that wait at a barrier of all threads go on
        there, or, where others wait at barriers in numpy, come to it here."""
        if not (compiled.alive & ~compiled.blocked).any():
            return None
        before = compiled.moved
        turned, at = False, compiled.turns(0, not self.barriers)
        while at < compiled.count:
            self.warps[at].run()
            turned = turned or self.warps[at].turn
            at = compiled.turns(at + 1, False)
        if self.barriers:
            for index, number in compiled.at_barriers():
                self.arrive(number, None, self.warps[index], ALL, wait=True)
            self._release()  # compiled code may have ended threads
        return turned or compiled.moved != before

    def arrive(self, number: int, expected: int | None, warp: Warp, mask: Lanes, wait: bool) -> None:
        """Let the lanes of mask come to a barrier. When as many threads as expected have come, all go on.

        Args:
            number: of the barrier.
            expected: number of threads; None: all of the block that have not ended. warp: of the lanes.
            mask: bool (32,). wait: whether the lanes wait there.
        """
        barrier = self.barriers.setdefault(number, Barrier(expected))
        barrier.arrived += WARP if mask is ALL else int(mask.sum())
        if self.memory.shared.races is not None:
            self.memory.shared.races.arrive(number)
        if wait:
            barrier.waiting.append((warp, mask))
            warp.blocked |= mask
            warp.waited, warp.idle = True, mask is ALL
        self.release(number)

    def ended(self) -> None:
        """Release barriers after threads have ended: barriers of all threads now expect fewer."""
        if self.compiled is None:
            self._living = sum(int(warp.alive.sum()) for warp in self.warps)
        self._release()

    def _release(self) -> None:
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

    def fault(self, reason: str, instruction: Instruction, warp: Warp, lane: int, asserted: bool = False) -> Fault:
        """Make a Fault that names the kernel, the line, the instruction, the block and the thread."""
        thread = WARP * warp.index + lane
        x, y, _ = self.size
        where = f"line {instruction.line} of its PTX"
        if instruction.frames:
            file, line = instruction.frames[0]
            where = f"{file}, line {line} ({where})"
        thread_name = f"block {self.number}, thread {(thread % x, thread // x % y, thread // (x * y))}"
        message = f"{readable(self.code.name)}: {where}: {instruction}: {thread_name}: {reason}"
        return (Asserted if asserted else Fault)(message)


@cache
def readable(name: str) -> str:
    """Return the name that a kernel has in its source, with its templates' arguments, but not with theirs."""
    if name.startswith("_Z") and shutil.which("c++filt"):  # of binutils, which comes with g++
        name = subprocess.run(["c++filt", "-p", name], capture_output=True, text=True, check=True).stdout.strip()
        while (shorter := re.sub(r"(<[^<>]*)<[^<>]*>", r"\1", name)) != name:
            name = shorter
    return re.sub(r"_GLOBAL__N__\w+::", "", name.removeprefix("void "))[:NAME]  # of no namespace with a name
