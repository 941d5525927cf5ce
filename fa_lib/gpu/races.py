"""Races between warps in shared memory: two accesses of a byte, one of them a write, that no barrier puts in order.

Each warp has a clock, and knows of the others' clocks what barriers have told it: vector clocks. An access is in order
with an earlier one if its warp knows the other's clock of that time.
"""

import numpy as np

from fa_lib.gpu.lanes import Lanes
from fa_lib.gpu.memory import BadAccess


class Races:
    """Of a block.

    Attributes:
        now: the number of the warp whose turn it is. aside: whether accesses are of an atomic operation or an mbarrier,
            which no other access tears.
    """

    def __init__(self, size: int, warps: int):
        self.now, self.aside = 0, False
        self.clocks = np.eye(warps, dtype=np.int64)  # (warp, what it knows of each)
        self.writer, self.written = np.full(size, -1), np.zeros(size, np.int64)
        self.read = np.zeros((warps, size), np.int64)
        self.places: dict[object, np.ndarray] = {}  # barriers and atomic variables: what those who came there knew

    def reads(self, starts: Lanes, size: int, lanes: Lanes) -> None:
        """Raises:
        BadAccess: it races with a write."""
        if self.aside:
            return
        at = starts.astype(np.int64)[:, None] + np.arange(size)
        self._written_before(at, lanes, "reads")
        self.read[self.now, at] = self.clocks[self.now, self.now]

    def writes(self, starts: Lanes, size: int, lanes: Lanes) -> None:
        """Raises:
        BadAccess: it races with a write or a read."""
        if self.aside:
            return
        at = starts.astype(np.int64)[:, None] + np.arange(size)
        self._written_before(at, lanes, "writes")
        for warp in range(len(self.clocks)):
            early = (self.read[warp, at] > self.clocks[self.now, warp]).any(1)
            if warp != self.now and early.any():
                raise self._race(early, at, lanes, f"writes what warp {warp} reads")
        self.writer[at], self.written[at] = self.now, self.clocks[self.now, self.now]

    def arrive(self, place: object) -> None:
        """The warp tells at a barrier what it knows."""
        known = self.places.setdefault(place, np.zeros(len(self.clocks), np.int64))
        np.maximum(known, self.clocks[self.now], out=known)
        self.clocks[self.now, self.now] += 1

    def released(self, place: object, warps: set[int]) -> None:
        """All have come; these go on."""
        known = self.places.pop(place)
        for warp in warps:
            np.maximum(self.clocks[warp], known, out=self.clocks[warp])

    def through(self, address: int) -> None:
        """An atomic operation, or an mbarrier's: the warp learns and tells."""
        known = self.places.setdefault(("atomic", address), np.zeros(len(self.clocks), np.int64))
        np.maximum(self.clocks[self.now], known, out=self.clocks[self.now])
        np.copyto(known, self.clocks[self.now])
        self.clocks[self.now, self.now] += 1

    def _written_before(self, at: np.ndarray, lanes: Lanes, does: str) -> None:
        writer = self.writer[at]
        early = (writer >= 0) & (writer != self.now) & (self.written[at] > self.clocks[self.now, writer])
        if early.any():
            raise self._race(early.any(1), at, lanes, f"{does} what warp {writer[early][0]} wrote")

    def _race(self, early: np.ndarray, at: np.ndarray, lanes: Lanes, what: str) -> BadAccess:
        row = int(early.argmax())
        where = f"shared memory at {int(at[row, 0])}"
        return BadAccess(
            int(np.flatnonzero(lanes)[row]), f"a race: warp {self.now} {what}, {where}, no barrier between"
        )
