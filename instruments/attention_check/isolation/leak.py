"""Whether the process of a stranger's kernel holds more after each call."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

WARM = 8  # equal calls, before memory is looked at: allocators keep some
LEAK = 0.9  # of an output's bytes: a kernel that holds on to its outputs grows by 1 a call
PARTS = 8  # of the calls, in each of which the process has to grow
LEAST = 2**19  # bytes of growth in each half of the calls: less may be an allocator's


class Memory:
    """Whether a process grows where equal calls follow each other. growth: bytes a call, 0 where it does not; calls:
    those that were looked at."""

    def __init__(self):
        self.growth, self.calls, self.key, self.sizes = 0.0, 0, None, []

    def seen(self, key: Any, results: Sequence[Tensor], resident: int | None) -> None:
        """A call, and what the process holds after it."""
        if key != self.key:
            self.key, self.sizes = key, []
        if resident is None:
            return
        self.sizes.append(resident)
        sizes = self.sizes[WARM:]
        half = (len(sizes) - 1) // 2
        if half < WARM:
            return
        due = max(LEAST, LEAK * half * sum(x.numel() * x.element_size() for x in results))
        parts = [sizes[2 * half * i // PARTS] for i in range(PARTS + 1)]
        steady = all(b > a for a, b in pairwise(parts))  # an allocator grows by a few jumps
        if steady and min(sizes[half] - sizes[0], sizes[2 * half] - sizes[half]) >= due:
            self.growth, self.calls = (sizes[2 * half] - sizes[0]) / (2 * half), 2 * half
