"""A kernel compiled for this processor, `Native`, and the warps of a block that run it, `Warps`."""

import ctypes
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from ptx_machine.contraction import registers_of
from ptx_machine.device import GPU
from ptx_machine.lanes import WARP, Lanes, raw
from ptx_machine.memory import View
from ptx_machine.native.emitter import FIRST_SLOT, FUNCTION, GUARD, SENSE, SLOTS, TOGETHER, Emitter, NotNative
from ptx_machine.native.encode import NOWHERE, ROW, Encoding, Field, Layout
from ptx_machine.native.instructions import encode
from ptx_machine.native.loop import advance, turns
from ptx_machine.operands import Addresses
from ptx_machine.special_registers import SPECIAL_REGISTERS, Size, special_registers
from ptx_machine.syntax import Register
from ptx_machine.warp import Code

KEPT = 16  # sizes of launches whose beginnings a kernel keeps


class Native:
    """A kernel compiled for this processor.

    Attributes:
        layout: places of registers and constants in a warp's memory.
        local: bytes of local memory of a lane. slots: int64 (instructions, SLOTS).
        left: text of an instruction that the numpy machine executes -> how many there are.
    """

    def __init__(self, code: Code, names: Addresses, gpu: GPU):
        self.local = code.local
        self.layout = Layout(names)
        self.layout.row(Field.LOCAL + WARP * code.local)
        for instruction in code.instructions:
            for register in registers_of(instruction):
                self.layout.register(register)
        self.advance, self.turns = _loops()
        encodings = [encode(instruction, code, self.layout, gpu) for instruction in code.instructions]
        _compile({each.key: each for each in encodings if each is not None and each.key not in FUNCTIONS})
        self.left: dict[str, int] = {}
        always = self.layout.constant(np.ones(WARP, bool))
        self.slots = np.zeros((len(encodings), SLOTS), np.int64)
        for at, (instruction, encoding) in enumerate(zip(code.instructions, encodings)):
            guard = instruction.guard
            self.slots[at, GUARD] = always if guard is None else self.layout.register(guard[0])
            self.slots[at, SENSE] = 1 if guard is None or not guard[1] else 0
            self.slots[at, TOGETHER] = code.members[at] is not None
            if encoding is None or not FUNCTIONS[encoding.key]:
                self.left[str(instruction)] = self.left.get(str(instruction), 0) + 1
                continue
            self.slots[at, FUNCTION] = FUNCTIONS[encoding.key]
            self.slots[at, FIRST_SLOT : FIRST_SLOT + len(encoding.slots)] = encoding.slots
        self._begin = np.zeros(self.layout.size, np.uint8)
        for content, at in self.layout.constants.items():
            self._begin[at : at + len(content)] = np.frombuffer(content, np.uint8)
        self._begin[Field.BARRIER : Field.BARRIER + 8] = np.frombuffer(np.int64(NOWHERE).tobytes(), np.uint8)
        self._of_sizes: dict[tuple[Size, Size], np.ndarray] = {}

    def begin(self, size: Size, grid: Size) -> np.ndarray:
        """Return the memory of a block's warps before they begin, uint8 (warps, bytes), without the block's number."""
        if (size, grid) not in self._of_sizes:
            threads = int(np.prod(size))
            data = np.tile(self._begin, (-(-threads // WARP), 1))
            alive = np.arange(WARP * len(data)).reshape(-1, WARP) < threads
            data[:, Field.ALIVE : Field.ALIVE + WARP] = alive
            for index, warp in enumerate(data):
                for register, bits in special_registers(index, size, grid).items():
                    if register in self.layout.registers:
                        at = self.layout.registers[register]
                        warp[at : at + bits.itemsize * WARP] = np.ascontiguousarray(bits).view(np.uint8)
            if len(self._of_sizes) >= KEPT:
                self._of_sizes.clear()
            self._of_sizes[size, grid] = data
        return self._of_sizes[size, grid]


FUNCTIONS: dict[str, int] = {}  # of this process: Encoding.key -> address, or 0 where there is none
ENGINES: list[llvm.ExecutionEngine] = []  # they own the functions


@cache
def _loops():
    """The functions `loop.advance` and `loop.turns`."""
    module = ir.Module()
    turns(module, advance(module))
    engine, pointer, number = _engine(module), ctypes.c_void_p, ctypes.c_int64
    of_warp = ctypes.CFUNCTYPE(number, *[pointer] * 3)
    of_block = ctypes.CFUNCTYPE(number, *[pointer] * 3, *[number] * 3, pointer, ctypes.c_bool)
    return of_warp(engine.get_function_address("advance")), of_block(engine.get_function_address("turns"))


def _compile(encodings: dict[str, Encoding]) -> None:
    """Compile encodings, key -> Encoding, into FUNCTIONS."""
    module, names = ir.Module(), {}
    for key, encoding in encodings.items():
        function = Emitter(module, f"f{len(names)}")
        names[key] = function.function.name
        try:
            encoding.emit(function)
        except NotNative:
            del module.globals[names[key]]
            names[key] = ""
    if any(names.values()):
        engine = _engine(module)
        FUNCTIONS.update({key: engine.get_function_address(name) if name else 0 for key, name in names.items()})
    else:
        FUNCTIONS.update(dict.fromkeys(names, 0))


def _engine(module: ir.Module) -> llvm.ExecutionEngine:
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    ENGINES.append(engine)
    return engine


class Views(dict):
    """Register -> its lanes (32,), a view of a warp's memory."""

    def __init__(self, data: np.ndarray, layout: Layout):
        super().__init__()
        self.data, self.layout = data, layout

    def __missing__(self, register: Register) -> Lanes:
        at, dtype = self.layout.registers[register], raw(register.type)
        return self.setdefault(register, self.data[at : at + WARP * dtype.itemsize].view(dtype))


class Warps:
    """The warps of a block, whose memory compiled code works on; they serve one block of a launch after the other.

    Attributes:
        count: number of warps. data: uint8 (count, bytes), each one's memory.
        alive, blocked: bool (count, 32), views of it.
        barriers: int64 (count, 1), a view of it: the number of the barrier of all threads that a warp has come to.
        steps, moved: numbers of instructions that were executed, and of times that a warp came to a barrier or its end.
    """

    def __init__(self, native: Native, view: View, size: Size, grid: Size):
        self._begin = begin = native.begin(size, grid)
        room = np.empty(begin.size + ROW, np.uint8)
        start = -room.ctypes.data % ROW
        self.data = data = room[start : start + begin.size].reshape(begin.shape)
        self.count, self._native = len(data), native
        self.alive, self.blocked = self._of(Field.ALIVE, WARP, bool), self._of(Field.BLOCKED, WARP, bool)
        self.barriers = self._of(Field.BARRIER, 8, np.int64)
        fields, self._kept = of_memory(view)
        self._counts = np.zeros(2, np.int64)
        self._fields, self._size = fields, begin.shape[1]
        self._places = data.ctypes.data, fields.ctypes.data, native.slots.ctypes.data, self._counts.ctypes.data

    def begin(self, number: Size) -> None:
        """Be the warps of a block, by its number in the grid, before they begin."""
        self.data[:], self._counts[:] = self._begin, 0
        for axis, at in zip("xyz", number):
            place = self._native.layout.registers.get(SPECIAL_REGISTERS[f"%ctaid.{axis}"])
            if place is not None:
                self.data[:, place : place + 4 * WARP].view(np.uint32)[:] = at

    @property
    def steps(self) -> int:
        return int(self._counts[0])

    @property
    def moved(self) -> int:
        return int(self._counts[1])

    def turns(self, first: int, releases: bool) -> int:
        """Run the warps from `first` on, as `loop.turns`: the number of one that numpy must run, or `count`."""
        data, memory, slots, counts = self._places
        return self._native.turns(slots, data, memory, first, self.count, self._size, counts, releases)

    def advance(self, index: int) -> bool:
        """Run one warp until an instruction is not native; return whether it has come to a barrier of all threads."""
        data, memory, slots, _ = self._places
        self._counts[0] += self._native.advance(slots, data + index * self._size, memory)
        return self.barriers[index, 0] != NOWHERE

    def at_barriers(self) -> list[tuple[int, int]]:
        """Return (warp, number of its barrier) of those that wait at one of all threads, and let them forget it."""
        found = [(int(i), int(self.barriers[i, 0])) for i in np.flatnonzero(self.barriers[:, 0] != NOWHERE)]
        self.barriers[:] = NOWHERE
        return found

    def of(self, index: int) -> dict[str, Any]:
        """Return the attributes of a `warp.Warp` that lie in its memory."""
        at, held = self._of(Field.AT, 8 * WARP, np.int64)[index], self._of(Field.HELD, WARP, bool)[index]
        local = self.data[index, Field.LOCAL : Field.LOCAL + WARP * self._native.local].reshape(WARP, -1)
        shared = dict(alive=self.alive[index], blocked=self.blocked[index])
        return shared | dict(at=at, held=held, local=local, registers=Views(self.data[index], self._native.layout))

    def _of(self, field: Field, size: int, dtype: type) -> np.ndarray:
        return self.data[:, field : field + size].view(dtype)


def of_memory(view: View) -> tuple[np.ndarray, list]:
    """Return the fields of Memory, int64, of a block's memory; and the arrays that must stay alive with them."""
    spans = view.outer.edges
    shared, parameters, written = view.shared.data, view.parameters, view.shared.written
    flags = 0 if written is None else written.ctypes.data
    fields = [spans.ctypes.data, len(spans), shared.ctypes.data, shared.size, flags, parameters.ctypes.data,
              parameters.size]  # fmt: skip
    return np.array(fields, np.int64), [spans, shared, parameters, written]
