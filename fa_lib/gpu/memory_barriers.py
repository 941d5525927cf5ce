"""mbarrier: barriers in shared memory, which count threads that arrive and bytes that copies bring. The text: PTX ISA,
"Parallel Synchronization and Communication Instructions: mbarrier".

Their 64 bits are opaque in PTX. Here: bits 0 to 15 are arrivals that are still due in this phase, 16 to 31 those of
every phase, bit 32 is the phase's parity, and 33 to 63 are bytes that are still due, plus OFFSET.
"""

import numpy as np

from fa_lib.gpu.block import Step, Warp
from fa_lib.gpu.lanes import WARP, Lanes, refuse
from fa_lib.gpu.operands import Addresses, Source, address, into_shared, source, targets
from fa_lib.gpu.syntax import Instruction

OPERATIONS = ("init", "inval", "arrive", "expect_tx", "complete_tx", "test_wait", "try_wait")
PLAIN = {"mbarrier", "shared", "shared::cta", "shared::cluster", "b64", "parity", "acquire", "release", "relaxed", "cta",
         "cluster", "expect_tx"}  # fmt: skip
OFFSET = 1 << 30  # bytes may come before they are expected


def get(warp: Warp, at: Lanes, only: Lanes) -> int:
    """Read the barrier at at[lane] of the one lane of the mask `only`."""
    return int(warp.block.memory.load("shared", at, 8, only, warp.local).view(np.uint64)[only][0, 0])


def change(warp: Warp, at: Lanes, lane: int, arrivals: int = 0, expected: int = 0) -> int:
    """Let threads arrive at the barrier at at[lane], and expect bytes (a negative number: bytes that have come). A new
    phase begins when no thread and no byte is due.

    Returns:
        the barrier's bits before.
    """
    only = np.arange(WARP) == lane
    state = get(warp, at, only)
    due, per_phase, parity, tx = state & 0xFFFF, state >> 16 & 0xFFFF, state >> 32 & 1, (state >> 33) + expected
    due -= arrivals
    if due == 0 and tx == OFFSET:
        due, parity = per_phase, parity ^ 1
    _put(warp, at, only, due, per_phase, parity, tx)
    return state


def _put(warp: Warp, at: Lanes, only: Lanes, due: int, per_phase: int, parity: int, tx: int) -> None:
    bits = (due & 0xFFFF) | per_phase << 16 | parity << 32 | tx << 33
    warp.block.memory.store("shared", at, np.full((WARP, 1), bits, np.uint64).view(np.uint8), only, warp.local)


def memory_barrier(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of an mbarrier: OPERATIONS. A wait that fails lets other warps run.

    Raises:
        ValueError: it is not modelled.
    """
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

    def wait(warp, mask):
        starts, phases = into_shared(at(warp)), more[0](warp)
        for start in np.unique(starts[mask]):
            lanes = mask & (starts == start)
            with warp.block.memory.shared.together(starts[lanes][:1]):
                parity = get(warp, starts, np.arange(WARP) == int(lanes.argmax())) >> 32 & 1
            passed = (phases.astype(np.uint64) >> np.uint64(0 if "parity" in words else 32) & np.uint64(1)) != parity
            warp.write(into, passed, lanes)
            warp.turn = warp.turn and bool(passed[lanes].all())

    def step(warp, mask):
        starts = into_shared(at(warp))
        for lane in np.flatnonzero(mask):
            with warp.block.memory.shared.together(starts[lane : lane + 1]):
                of_lane(warp, starts, int(lane))

    def of_lane(warp, starts, lane):
        only, number = np.arange(WARP) == lane, _number(more, warp, lane)
        if operation == "init":
            _put(warp, starts, only, number, number, 0, OFFSET)
        elif operation == "arrive":
            expects = "expect_tx" in words
            before = change(warp, starts, lane, 1 if expects else number, number if expects else 0)
            if into is not None:
                warp.write(into, np.full(WARP, before, np.uint64), only)
        elif operation != "inval":
            change(warp, starts, lane, 0, number if operation == "expect_tx" else -number)

    return wait if "wait" in operation else step


def _number(more: list[Source], warp: Warp, lane: int) -> int:
    """The first operand behind the address; 1 without one."""
    return int(more[0](warp)[lane]) if more else 1
