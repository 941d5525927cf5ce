"""Matrices in shared memory, as wgmma and tcgen05.mma find them: a descriptor of 64 bits names the first byte, two
strides and a swizzle. The text: PTX ISA, "Matrix Descriptor" and "Shared Memory Matrix Layout"; the figures of strides
are those of CUTLASS (cute/arch/mma_sm90_desc.hpp, cute/atom/mma_traits_sm90_gmma.hpp).

A matrix has rows (M or N) and, along the sum, K columns. It lies K-major, where neighbours along the sum are neighbours
in memory, or row-major ("MN-major"). Its cores are 8 lines of 16, 32, 64 or 128 bytes. A swizzle moves the pieces of 16
bytes of a line: bits 4 to 6 of an address are changed by bits 7 to 9.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ptx_machine.lanes import looked_up
from ptx_machine.memory import Shared

PIECE = 16  # bytes
LINES = 8  # of a core
WIDTHS = np.array((16, 128, 64, 32))  # bytes of a line, by a descriptor's swizzle


class Descriptor(NamedTuple):
    """Where a matrix lies.

    Attributes:
        start: its first byte.
        leading, stride: the leading dimension's and the stride dimension's offset, in bytes.
        width: bytes of a line; 16 is without a swizzle.
    """

    start: int
    leading: int
    stride: int
    width: int

    @classmethod
    def of(cls, bits: int, fifth: bool = False) -> "Descriptor":
        """Read the bits of a descriptor; fifth: of tcgen05, else of wgmma.

        Raises:
            ValueError: its swizzle, or a base offset, is not modelled.
        """
        if bits >> 49 & 7 or fifth and bits & (1 << 61 | 1 << 52):
            raise ValueError(f"the matrix descriptor {bits:#x} has a swizzle or a base offset that is not modelled")
        return cls.fields(bits)

    @classmethod
    def fields(cls, bits) -> "Descriptor":
        """Read the fields of a number, or of lanes that compiled code has."""
        start, leading, stride = ((bits >> shift & 0x3FFF) * PIECE for shift in (0, 16, 32))
        return cls(start, leading, stride, looked_up(WIDTHS, bits >> 62 & 3))


def swizzled(at: np.ndarray, width: int) -> np.ndarray:
    """Move addresses, int64, as the swizzle of lines of `width` bytes does."""
    return at ^ ((at >> 7 & ((width >> 4) - 1)) << 4)


@lru_cache(maxsize=4096)
def places(descriptor: Descriptor, rows: int, k: int, size: int, k_major: bool) -> np.ndarray:
    """Compute the addresses of a matrix's elements, int64 (rows, k).

    Args:
        descriptor: where it lies. rows, k: its shape. size: bytes of an element.
        k_major: whether neighbours along the sum are neighbours in memory.
    """
    return place(descriptor, np.arange(rows)[:, None], np.arange(k)[None], size, k_major)


def place(descriptor: Descriptor, row, column, size: int, k_major: bool):
    """Compute the addresses of elements by their rows and columns, arrays; or by rows that compiled code has, and one
    column."""
    start, leading, stride, width = descriptor
    plain = width == PIECE
    if k_major:
        at, along = (row & LINES - 1) * width + (row >> 3) * stride, size * column  # lines are eight
        at = at + np.where(plain, along // PIECE * leading + along % PIECE, along)
    else:
        along, far, deep = size * row, np.where(plain, stride, leading), np.where(plain, leading, stride)
        outer = (along >> np.bitwise_count(width - 1)) * far  # width is a power of two
        at = (along & width - 1) + outer + column % LINES * width + column // LINES * deep
    return swizzled(start + at, width)


def read(shared: Shared, at: np.ndarray, size: int) -> np.ndarray:
    """Read elements of `size` bytes at addresses, int64 of any shape: unsigned numbers of that shape.

    Raises:
        BadAccess: an element lies outside, or was never written.
    """
    shared.check(np.stack([at, at + size - 1]), 0, "a matrix")
    return shared.data[: shared.data.size // size * size].view(f"uint{8 * size}")[at // size]
