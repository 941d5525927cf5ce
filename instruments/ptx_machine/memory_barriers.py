"""mbarrier: barriers in shared memory, which count threads that arrive and bytes that copies bring. The text: PTX ISA,
"Parallel Synchronization and Communication Instructions: mbarrier".

Their 64 bits are opaque in PTX. Here: bits 0 to 15 are arrivals that are still due in this phase, 16 to 31 those of
every phase, bit 32 is the phase's parity, and 33 to 63 are bytes that are still due, plus OFFSET.
"""

import numpy as np

from ptx_machine.lanes import WARP, refuse
from ptx_machine.memory import BadAccess
from ptx_machine.operands import Addresses, address, into_shared, source, targets
from ptx_machine.syntax import Instruction
from ptx_machine.warp import Step, Warp

OPERATIONS = ("init", "inval", "arrive", "expect_tx", "complete_tx", "test_wait", "try_wait")
PLAIN = {"mbarrier", "shared", "shared::cta", "shared::cluster", "b64", "parity", "acquire", "release", "relaxed",
         "cta", "cluster", "expect_tx"}  # fmt: skip
BYTES = 8
OFFSET = 1 << 30  # bytes may come before they are expected


def _bits(warp: Warp, start: int, lane: int, begins: bool = False) -> np.ndarray:
    """Return the bits of the barrier at byte `start` of shared memory, a view, uint64 (1,).

    Raises:
        BadAccess: there is none; it names the lane.
    """
    shared = warp.block.memory.shared
    if start % BYTES:
        raise BadAccess(lane, f"an mbarrier at {start} of shared memory, no multiple of {BYTES}")
    shared.check(np.uint64(start) + np.arange(BYTES, dtype=np.uint64), lane, "an mbarrier", begins)
    return shared.data[start : start + BYTES].view(np.uint64)


def change(warp: Warp, start: int, lane: int, arrivals: int = 0, expected: int = 0) -> int:
    """Let threads arrive at a barrier, and expect bytes (a negative number: bytes that have come). A new phase begins
    when no thread and no byte is due.

    Args:
        start: of its first byte. lane: that does so.
        arrivals: number of threads. expected: number of bytes.

    Returns:
        the barrier's bits before.
    """
    bits = _bits(warp, start, lane)
    state = int(bits[0])
    due, per_phase, parity, tx = state & 0xFFFF, state >> 16 & 0xFFFF, state >> 32 & 1, (state >> 33) + expected
    due -= arrivals
    if due == 0 and tx == OFFSET:
        due, parity = per_phase, parity ^ 1
    bits[0] = (due & 0xFFFF) | per_phase << 16 | parity << 32 | tx << 33
    return state


def memory_barrier(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of an mbarrier: OPERATIONS. A wait that fails lets other warps run."""
    words = instruction.words
    operation = words[1]
    if operation not in OPERATIONS or {*words} - PLAIN - {operation}:
        raise refuse(instruction, "that kind of mbarrier is not modelled")
    has_result = operation in ("arrive", "test_wait", "try_wait")
    into = targets(instruction.operands[0], instruction)[0] if has_result else None
    at = address(instruction.operands[has_result], instruction, names)
    kind = "u64" if "wait" in operation and "parity" not in words else "u32"  # of the first operand behind the address
    behind = instruction.operands[has_result + 1 :]
    more = [source(operand, kind if i == 0 else "u32", instruction, names) for i, operand in enumerate(behind)]

    def wait(warp, mask, starts):
        phases = more[0](warp).astype(np.uint64) >> np.uint64(0 if "parity" in words else 32) & np.uint64(1)
        for start in np.unique(starts[mask]):
            lanes = mask & (starts == start)
            passed = phases != int(_bits(warp, int(start), int(lanes.argmax()))[0]) >> 32 & 1
            warp.write(into, passed, lanes)
            warp.turn = warp.turn and bool(passed[lanes].all())

    def one_by_one(warp, mask, starts):
        counts, before = more[0](warp) if more else np.ones(WARP, np.uint32), np.zeros(WARP, np.uint64)
        for lane in map(int, np.flatnonzero(mask)):
            start, count = int(starts[lane]), int(counts[lane])
            if operation == "init":
                _bits(warp, start, lane, begins=True)[0] = count | count << 16 | OFFSET << 33
            elif operation == "arrive":
                arrivals, due = (1, count) if "expect_tx" in words else (count, 0)
                before[lane] = change(warp, start, lane, arrivals, due)
            elif operation != "inval":
                change(warp, start, lane, 0, count if operation == "expect_tx" else -count)
        if into is not None:
            warp.write(into, before, mask)

    what = wait if "wait" in operation else one_by_one

    def step(warp, mask):
        starts = into_shared(at(warp))
        with warp.block.memory.shared.together(np.unique(starts[mask])):
            what(warp, mask, starts)

    return step
