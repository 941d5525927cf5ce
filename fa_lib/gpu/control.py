"""Branches, ends and barriers. The text: PTX ISA, "Control Flow Instructions", "Parallel Synchronization and
Communication Instructions"."""

import numpy as np

from fa_lib.gpu.block import ALL, Step
from fa_lib.gpu.lanes import WARP, refuse
from fa_lib.gpu.memory import BadAccess
from fa_lib.gpu.operands import Addresses, address, both, into_shared, source, targets
from fa_lib.gpu.syntax import Entry, Instruction, Symbol


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


def end(instruction: Instruction) -> Step:
    """Make the step of ret and exit: the threads end."""

    def step(warp, mask):
        warp.alive &= ~mask
        warp.whole = False
        warp.block.ended()
        return True

    return step


def trap(instruction: Instruction, reason: str = "the kernel ends itself") -> Step:
    """Make the step of trap: a Fault for this reason."""

    def step(warp, mask):
        raise BadAccess(int(mask.argmax()), reason)

    return step


def barrier(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of bar and barrier: sync and arrive. bar.warp.sync only brings lanes together.

    Raises:
        ValueError: it is not modelled.
    """
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


def sleep(instruction: Instruction) -> Step:
    """Make the step of nanosleep: the warp lets others run."""

    def step(warp, mask):
        warp.turn = False

    return step


def memory_barrier(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of an mbarrier in shared memory: init, arrive, test_wait, try_wait, inval.

    Its 64 bits are opaque in PTX. Here: the lower 16 bits are arrivals that are still due in this phase, the next 16
    those of every phase, and bit 32 is the phase's parity.

    Raises:
        ValueError: it is not modelled.
    """
    words = instruction.words
    operation = words[1]
    plain = {"mbarrier", operation, "shared", "shared::cta", "b64", "parity", "acquire", "release", "cta", "relaxed"}
    if operation not in ("init", "inval", "arrive", "test_wait", "try_wait") or {*words} - plain:
        raise refuse(instruction, "that kind of mbarrier is not modelled")
    results = 1 if operation in ("arrive", "test_wait", "try_wait") else 0
    into = targets(instruction.operands[0], instruction)[0] if results else None
    at = address(instruction.operands[results], instruction, names)
    kind = "u64" if "wait" in operation and "parity" not in words else "u32"  # of the first operand behind the address
    behind = instruction.operands[results + 1 :]
    more = [source(operand, kind if i == 0 else "u32", instruction, names) for i, operand in enumerate(behind)]

    def get(warp, starts, only):
        return int(warp.block.memory.load("shared", starts, 8, only, warp.local).view(np.uint64)[only][0, 0])

    def put(warp, starts, only, value):
        values = np.full((WARP, 1), value, np.uint64).view(np.uint8)
        warp.block.memory.store("shared", starts, values, only, warp.local)

    def step(warp, mask):
        starts = into_shared(at(warp))
        for lane in np.flatnonzero(mask):
            with warp.block.memory.shared.together(starts[lane : lane + 1]):
                step_of_lane(warp, starts, int(lane))

    def step_of_lane(warp, starts, lane):
        only = np.arange(WARP) == lane
        if operation == "init":
            count = int(more[0](warp)[lane])
            put(warp, starts, only, count | count << 16)
        elif operation == "arrive":
            state, count = get(warp, starts, only), int(more[0](warp)[lane]) if more else 1
            due, per_phase, parity = state & 0xFFFF, state >> 16 & 0xFFFF, state >> 32 & 1
            due -= count
            if due == 0:
                due, parity = per_phase, parity ^ 1
            put(warp, starts, only, due | per_phase << 16 | parity << 32)
            if into is not None:
                warp.write(into, np.full(WARP, state, np.uint64), only)
        elif operation in ("test_wait", "try_wait"):
            phase = int(more[0](warp)[lane])
            phase = phase & 1 if "parity" in words else phase >> 32 & 1
            passed = (get(warp, starts, only) >> 32 & 1) != phase
            warp.write(into, np.full(WARP, passed), only)
            warp.turn = warp.turn and passed

    return step


def predicate_results(instruction: Instruction, meanings, names: Addresses) -> Step:
    """Make the step of setp, with one result or two; meanings: of `choices.set_predicate`."""
    into, into_2 = both(instruction.operands[0], instruction)
    operands = instruction.operands[1:]
    values = [source(operand, kind, instruction, names) for operand, kind in zip(operands, meanings[0].takes)]

    def step(warp, mask):
        x = [value(warp) for value in values]
        results = [meaning.run(*x) for meaning in meanings]
        for register, result in zip((into, into_2), results):
            if register is not None:
                warp.write(register, result, mask)

    return step


BARRIERS = {"bar": barrier, "barrier": barrier, "mbarrier": memory_barrier}
