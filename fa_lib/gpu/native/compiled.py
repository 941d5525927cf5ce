"""A kernel compiled for this processor, `Native`, and a warp that runs it, `Advance`."""

import ctypes
from functools import cache

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from fa_lib.gpu.block import Code, Warp
from fa_lib.gpu.contraction import registers_of
from fa_lib.gpu.device import GPU
from fa_lib.gpu.lanes import WARP, Lanes, raw
from fa_lib.gpu.memory import View
from fa_lib.gpu.native.emitter import FIRST_SLOT, FUNCTION, GUARD, SENSE, SLOTS, TOGETHER, Emitter, NotNative
from fa_lib.gpu.native.encode import Encoding, Layout
from fa_lib.gpu.native.instructions import encode
from fa_lib.gpu.native.loop import NOWHERE, State, advance
from fa_lib.gpu.operands import Addresses
from fa_lib.gpu.syntax import Instruction, Register


class Native:
    """A kernel compiled for this processor.

    Attributes:
        layout: places of registers and constants in a warp's memory.
        begin: uint8, a warp's memory with constants alone.
        slots: int64 (instructions, SLOTS).
        left: text of an instruction that the numpy machine executes -> how many there are.
    """

    def __init__(self, code: Code, names: Addresses, gpu: GPU):
        self.layout = Layout(names)
        for instruction in code.instructions:
            for register in registers_of(instruction):
                self.layout.register(register)
        self.advance = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 3)(_advance())
        encodings = [_encoding(instruction, code, self.layout, gpu) for instruction in code.instructions]
        _compile({each.key: each for each in encodings if each is not None and each.key not in FUNCTIONS})
        self.left: dict[str, int] = {}
        self.slots = np.zeros((len(encodings), SLOTS), np.int64)
        for at, (instruction, encoding) in enumerate(zip(code.instructions, encodings)):
            guard = instruction.guard
            self.slots[at, GUARD] = -1 if guard is None else self.layout.register(guard[0])
            self.slots[at, SENSE] = 1 if guard is None or not guard[1] else 0
            self.slots[at, TOGETHER] = code.members[at] is not None
            address = FUNCTIONS[encoding.key] if encoding is not None else 0
            if encoding is None or not address:
                self.left[str(instruction)] = self.left.get(str(instruction), 0) + 1
                continue
            self.slots[at, FUNCTION] = address
            self.slots[at, FIRST_SLOT : FIRST_SLOT + len(encoding.slots)] = encoding.slots
        self.begin = np.zeros(self.layout.size, np.uint8)
        for content, at in self.layout.constants.items():
            self.begin[at : at + len(content)] = np.frombuffer(content, np.uint8)


def _encoding(instruction: Instruction, code: Code, layout: Layout, gpu: GPU) -> Encoding | None:
    try:
        return encode(instruction, code, layout, gpu)
    except (NotNative, ValueError, LookupError):  # the numpy machine executes it, or refuses it
        return None


FUNCTIONS: dict[str, int] = {}  # of this process: Encoding.key -> address, or 0 where there is none
ENGINES: list[llvm.ExecutionEngine] = []  # they own the functions


@cache
def _advance() -> int:
    module = ir.Module()
    advance(module)
    return _engine(module).get_function_address("advance")


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


class Advance:
    """Runs a warp as far as its instructions are native."""

    def __init__(self, native: Native, memory: np.ndarray, warp: Warp):
        layout = native.layout
        self._data = np.empty(layout.size + 64, np.uint8)
        start = -self._data.ctypes.data % 64
        data = self._data[start : start + layout.size]
        data[:] = native.begin
        for name, at in layout.specials.items():
            data[at : at + 128] = np.ascontiguousarray(warp.special[name]).view(np.uint8)
        warp.registers = Views(data, layout)
        arrays = (data, warp.at, warp.alive, warp.blocked, warp.held)
        self._state = np.array([*(each.ctypes.data for each in arrays), NOWHERE], np.int64)
        self._native, self._memory, self._kept = native, memory, arrays
        self._arguments = native.slots.ctypes.data, self._state.ctypes.data, memory.ctypes.data

    def __call__(self) -> int:
        """Run the warp, and return the number of instructions that it executed."""
        return self._native.advance(*self._arguments)

    def barrier(self) -> int:
        """Return the number of the barrier of all threads that the whole warp has come to, once; else NOWHERE."""
        number = int(self._state[State.BARRIER])
        self._state[State.BARRIER] = NOWHERE
        return number


def of_memory(view: View) -> tuple[np.ndarray, list]:
    """Return the fields of Memory, int64, of a block's memory; and the arrays that must stay alive with them."""
    spans = np.array([edge for span in view.outer.spans for edge in (span.base, span.end)], np.uint64)
    shared, parameters, written = view.shared.data, view.parameters, view.shared.written
    flags = 0 if written is None else written.ctypes.data
    fields = [spans.ctypes.data, spans.size // 2, shared.ctypes.data, shared.size, flags, parameters.ctypes.data,
              parameters.size]  # fmt: skip
    return np.array(fields, np.int64), [spans, shared, parameters, written]
