"""Branches, ends and barriers. The text: PTX ISA, "Control Flow Instructions", "Parallel Synchronization and
Communication Instructions"."""

import numpy as np

from ptx_machine.lanes import refuse
from ptx_machine.memory import BadAccess
from ptx_machine.operands import Addresses, source
from ptx_machine.syntax import Entry, Instruction, Register, Symbol
from ptx_machine.warp import ALL, Step


def branch(instruction: Instruction, entry: Entry) -> Step:
    """Make the step of bra, to a label.

    Raises:
        ValueError: there is no such label.
    """
    (to,) = instruction.operands
    if not isinstance(to, Symbol) or to.name not in entry.labels:
        raise refuse(instruction, f"there is no label {to}")
    target = entry.labels[to.name]

    def step(warp, mask):
        warp.at[mask] = target
        return True

    return step


def branch_by_table(instruction: Instruction, entry: Entry) -> Step:
    """Make the step of brx.idx, to the label of a list whose number is in a register.

    Raises:
        ValueError: there is no such list.
    """
    index, table = instruction.operands
    if not isinstance(table, Symbol) or table.name not in entry.tables:
        raise refuse(instruction, f"there is no list of labels {table}")
    labels = np.array([entry.labels[name] for name in entry.tables[table.name]])
    value = source(index, "u32", instruction, {})

    def step(warp, mask):
        number = value(warp).astype(np.int64)
        wrong = mask & (number >= len(labels))
        if wrong.any():
            raise BadAccess(int(wrong.argmax()), f"label {number[wrong][0]} of a list of {len(labels)}")
        warp.at[mask] = labels[number[mask]]
        return True

    return step


def end(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of ret and exit: the threads end."""

    def step(warp, mask):
        warp.alive &= ~mask
        warp.whole = False
        warp.block.ended()
        return True

    return step


def trap(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of trap: a Fault."""
    return _fails("the kernel ends itself")


def call(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of a call: no function runs here. Of printf nothing is printed; of others it is a Fault."""
    function = next(each for each in instruction.operands if isinstance(each, (Symbol, Register))).name
    if function == "vprintf":
        return lambda warp, mask: None
    if function == "__assertfail":
        return _fails("an assertion fails", asserted=True)
    return _fails(f"it calls the function {function}, and none is run here")


def _fails(reason: str, asserted: bool = False) -> Step:
    def step(warp, mask):
        raise BadAccess(int(mask.argmax()), reason, asserted)

    return step


def barrier(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of bar and barrier: sync and arrive. bar.warp.sync only brings lanes together."""
    words = instruction.words
    if words[:2] == ("bar", "warp"):
        return lambda warp, mask: None
    kind = next((word for word in words if word in ("sync", "arrive", "red")), "")
    if kind not in ("sync", "arrive") or "cluster" in words:
        raise refuse(instruction, "barriers that reduce, and those of clusters, are not modelled")
    number, *more = (source(operand, "u32", instruction, names) for operand in instruction.operands)

    def step(warp, mask):
        lane = int(mask.argmax())
        expected = int(more[0](warp)[lane]) if more else None
        warp.at[mask] += 1
        held = mask if mask is ALL else mask.copy()
        warp.block.arrive(int(number(warp)[lane]), expected, warp, held, wait=kind == "sync")
        return True

    return step


def sleep(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of nanosleep: the warp lets others run."""

    def step(warp, mask):
        warp.turn = False

    return step
