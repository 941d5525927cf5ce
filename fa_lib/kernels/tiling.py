"""Tiling: B_r rows of Q against B_c columns of K and V."""

import math
from dataclasses import dataclass
from numbers import Integral


@dataclass(frozen=True)
class Tiling:
    """Tile sizes in rows of Q and in keys: (block_q, block_kv) = (B_r, B_c).

    Raises:
        ValueError: a size is not a whole number of at least 1.
    """

    block_q: int
    block_kv: int

    def __post_init__(self):
        for name in ("block_q", "block_kv"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                raise ValueError(f"{name}: got {value!r}; accepted is a whole number of at least 1")

    @classmethod
    def from_sram(cls, elements: int, head_dim: int) -> "Tiling":
        """Choose as FlashAttention does for an SRAM of M elements (arXiv 2205.14135, Algorithm 1, line 1):
        B_c = ceil(M / 4d), B_r = min(ceil(M / 4d), d).

        Args:
            elements: M.
            head_dim: d.

        Raises:
            ValueError: elements or head_dim is below 1.
        """
        if elements < 1 or head_dim < 1:
            raise ValueError(f"elements, head_dim: got {elements}, {head_dim}; accepted are whole numbers from 1")
        block_kv = math.ceil(elements / (4 * head_dim))
        return cls(min(block_kv, head_dim), block_kv)

    @property
    def area(self) -> int:
        """B_r * B_c, the elements of one tile of S."""
        return self.block_q * self.block_kv

    def swapped(self) -> "Tiling":
        """Exchange the two sizes."""
        return Tiling(self.block_kv, self.block_q)

    def square(self) -> "Tiling":
        """Return the square tile of the same area, to the nearest whole side."""
        side = round(math.sqrt(self.area))
        return Tiling(side, side)
