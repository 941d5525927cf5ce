"""Races in shared memory: two accesses of a byte by different warps, one of them a write, that no barrier puts in
order; and reads of what cp.async brings before its thread has waited for it.

They are found by vector clocks: each warp has a clock, and learns the others' clocks at barriers. An access is in order
with an earlier one if its warp has learnt the other warp's clock of that time. A copy counts as written at its wait.
"""

import numpy as np

from ptx_machine.lanes import WARP, Lanes
from ptx_machine.memory import BadAccess

ARRIVED = -1  # of a byte that no cp.async is bringing


class Races:
    """Finds races in a block's shared memory.

    Args:
        size: bytes of shared memory. warps: of the block.

    Attributes:
        now: number of the warp whose turn it is.
        aside: whether accesses belong to an atomic operation or an mbarrier, and so race with none.
        copying: whether writes are those of cp.async.
    """

    def __init__(self, size: int, warps: int):
        self.now, self.aside, self.copying = 0, False, False
        self.clocks = np.eye(warps, dtype=np.int64)  # (warp, the clock that it knows of each warp)
        self.writer, self.written = np.full(size, -1), np.zeros(size, np.int64)
        self.read = np.zeros((warps, size), np.int64)
        self.groups = np.zeros((warps, WARP), np.int64)  # of copies, that each thread has closed
        self.group, self.lane = np.full(size, ARRIVED), np.zeros(size, np.int64)  # of the copy that brings a byte
        self.places: dict[object, np.ndarray] = {}  # barrier or atomic variable -> the clocks left there

    def reads(self, starts: Lanes, size: int, lanes: Lanes) -> None:
        """Note reads of `size` bytes from starts (lanes,), by the lanes, bool (32,).

        Raises:
            BadAccess: a read races with a write.
        """
        if self.aside:
            return
        at = starts.astype(np.int64)[:, None] + np.arange(size)
        self._written_before(at, lanes, "reads")
        if (late := self.group[at] != ARRIVED).any():
            event = f"reads what a cp.async of warp {self.writer[at][late][0]} brings"
            raise self._race(late.any(1), at, lanes, event, "its thread has not waited for it")
        self.read[self.now, at] = self.clocks[self.now, self.now]

    def writes(self, starts: Lanes, size: int, lanes: Lanes) -> None:
        """Note writes of `size` bytes from starts (lanes,), by the lanes, bool (32,).

        Raises:
            BadAccess: a write races with a write or a read.
        """
        if self.aside:
            return
        at = starts.astype(np.int64)[:, None] + np.arange(size)
        self._written_before(at, lanes, "writes")
        for warp in range(len(self.clocks)):
            early = (self.read[warp, at] > self.clocks[self.now, warp]).any(1)
            if warp != self.now and early.any():
                raise self._race(early, at, lanes, f"writes what warp {warp} reads")
        self.writer[at], self.written[at] = self.now, self.clocks[self.now, self.now]
        self.lane[at] = np.flatnonzero(lanes)[:, None]
        self.group[at] = self.groups[self.now, self.lane[at]] if self.copying else ARRIVED

    def closes(self, lanes: Lanes) -> None:
        """Close the lanes' group of copies by cp.async: the next ones belong to another."""
        self.groups[self.now, lanes] += 1

    def waits(self, lanes: Lanes, left: int | None) -> None:
        """Let the lanes wait for their copies, but for those of the last `left` groups that they have closed, and of
        the open one; None: for all."""
        at = np.flatnonzero((self.group != ARRIVED) & (self.writer == self.now))
        at = at[lanes[self.lane[at]]]
        if left is not None:
            at = at[self.group[at] < self.groups[self.now, self.lane[at]] - left]
        self.group[at], self.written[at] = ARRIVED, self.clocks[self.now, self.now]

    def arrive(self, place: object) -> None:
        """Leave the clocks that the warp knows at a barrier."""
        clocks = self.places.setdefault(place, np.zeros(len(self.clocks), np.int64))
        np.maximum(clocks, self.clocks[self.now], out=clocks)
        self.clocks[self.now, self.now] += 1

    def released(self, place: object, warps: set[int]) -> None:
        """Give the clocks left at a barrier to the warps that go on."""
        clocks = self.places.pop(place)
        for warp in warps:
            np.maximum(self.clocks[warp], clocks, out=self.clocks[warp])

    def through(self, address: int) -> None:
        """Exchange clocks at an address, in an atomic operation or an mbarrier's: the warp takes and leaves clocks."""
        clocks = self.places.setdefault(("atomic", address), np.zeros(len(self.clocks), np.int64))
        np.maximum(self.clocks[self.now], clocks, out=self.clocks[self.now])
        np.copyto(clocks, self.clocks[self.now])
        self.clocks[self.now, self.now] += 1

    def _written_before(self, at: np.ndarray, lanes: Lanes, does: str) -> None:
        writer = self.writer[at]
        early = (writer >= 0) & (writer != self.now) & (self.written[at] > self.clocks[self.now, writer])
        if early.any():
            raise self._race(early.any(1), at, lanes, f"{does} what warp {writer[early][0]} wrote")

    def _race(
        self, early: np.ndarray, at: np.ndarray, lanes: Lanes, event: str, missing: str = "no barrier between"
    ) -> BadAccess:
        row = int(early.argmax())
        where = f"shared memory at {int(at[row, 0])}"
        reason = f"a race: warp {self.now} {event}, {where}, {missing}"
        return BadAccess(int(np.flatnonzero(lanes)[row]), reason)
