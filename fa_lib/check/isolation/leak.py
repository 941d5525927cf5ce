"""Whether the process of a stranger's kernel holds more after each call."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

WARM = 8  # equal calls, before memory is looked at: allocators keep some
LEAK = 0.9  # of an output's bytes: a kernel that holds on to its outputs grows by 1 a call
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
        if min(sizes[half] - sizes[0], sizes[2 * half] - sizes[half]) >= due:  # a jump is in one half alone
            self.growth, self.calls = (sizes[2 * half] - sizes[0]) / (2 * half), 2 * half
