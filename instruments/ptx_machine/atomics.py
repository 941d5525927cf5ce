"""atom and red: atomic operations on memory. The text: PTX ISA, "Parallel Synchronization and Communication
Instructions"."""

import numpy as np

from ptx_machine.floats import FLOATS as FLOAT_MEANINGS
from ptx_machine.lanes import DTYPES, WARP, Lanes, refuse
from ptx_machine.moves import check_hints, space_of
from ptx_machine.operands import Addresses, address, sources, targets
from ptx_machine.syntax import BITS, Instruction
from ptx_machine.warp import Step

ATOMIC = {  # on arrays
    "add": lambda old, x: old + x, "exch": lambda old, x: x, "and": lambda old, x: old & x,
    "or": lambda old, x: old | x, "xor": lambda old, x: old ^ x, "min": np.minimum, "max": np.maximum,
    "inc": lambda old, x: np.where(old >= x, old * 0, old + 1),
    "dec": lambda old, x: np.where((old == 0) | (old > x), x, old - 1),
    "cas": lambda old, x, new: np.where(old == x, new, old),
}  # fmt: skip


def atomic(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of atom and red: lanes with one address one after the other, in their order. Sums in FP32 flush
    subnormal numbers in global memory and not in shared memory, as PTX says."""
    words, kind = instruction.words, instruction.types[-1]
    operation = next((word for word in words[1:] if word in ATOMIC), "")
    check_hints(instruction, *ATOMIC, "noftz", "v2", "v4", "v8")
    operands = instruction.operands if instruction.name == "atom" else (None, *instruction.operands)
    into = targets(operands[0], instruction)
    at = address(operands[1], instruction, names)
    values = [sources(value, kind, instruction, names) for value in operands[2:]]
    space, size, count = space_of(instruction), BITS[kind] // 8, len(values[0])
    floating = kind in ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")
    if operation == "" or (floating and operation not in ("add", "exch")):
        raise refuse(instruction, "that operation is not modelled")
    run = ATOMIC[operation]
    if floating and operation == "add":
        ftz = ("ftz",) if kind == "f32" and space == "global" else ()
        run = FLOAT_MEANINGS["add"](Instruction(("add", "rn", *ftz, kind), (), None, instruction.line)).run

    def step(warp, mask):
        memory, starts = warp.block.memory, at(warp)
        arguments = [[np.ascontiguousarray(value(warp)) for value in operand] for operand in values]
        before = [np.zeros(WARP, DTYPES[kind]) for _ in range(count)]
        for group in _in_turn(starts, mask):
            with memory.shared.together(starts[group]):
                old = memory.load(space, starts, size * count, group, warp.local).view(DTYPES[kind])  # (32, count)
                new = old.copy()
                for i in range(count):
                    new[:, i] = run(np.ascontiguousarray(old[:, i]), *(operand[i] for operand in arguments))
                    before[i][group] = old[group, i]
                memory.store(space, starts, new.view(np.uint8), group, warp.local)
        warp.write_each(into, before, mask)

    return step


def _in_turn(starts: Lanes, mask: Lanes) -> list[Lanes]:
    """Split the lanes of a mask (32,) into groups, each a mask, that come one after the other: no two of a group have
    one address, and lanes with one address keep their order."""
    turns, seen = np.zeros(WARP, np.int64), {}
    for lane in np.flatnonzero(mask).tolist():
        start = int(starts[lane])
        turns[lane] = seen[start] = seen.get(start, -1) + 1
    return [mask & (turns == turn) for turn in range(max(seen.values(), default=-1) + 1)]
