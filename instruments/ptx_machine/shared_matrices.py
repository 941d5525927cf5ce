"""Matrices in shared memory, as wgmma and tcgen05.mma find them: a descriptor of 64 bits names the first byte, two
strides and a swizzle. The text: PTX ISA, "Matrix Descriptor" and "Shared Memory Matrix Layout"; the figures of strides
are those of CUTLASS (cute/arch/mma_sm90_desc.hpp, cute/atom/mma_traits_sm90_gmma.hpp).

A matrix has rows (M or N) and, along the sum, K columns. It lies K-major, where neighbours along the sum are neighbours
in memory, or row-major ("MN-major"). Its cores are 8 lines of 16, 32, 64 or 128 bytes. A swizzle moves the pieces of 16
bytes of a line: bits 4 to 6 of an address are changed by bits 7 to 9.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ptx_machine.memory import BadAccess, Shared, Trouble

PIECE = 16  # bytes
LINES = 8  # of a core
WIDTHS_WGMMA = {0: 16, 1: 128, 2: 64, 3: 32}  # a descriptor's swizzle -> bytes of a line
WIDTHS_TCGEN05 = {0: 16, 2: 128, 4: 64, 6: 32}


@dataclass(frozen=True)
class Descriptor:
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
        swizzle, widths = (bits >> 61, WIDTHS_TCGEN05) if fifth else (bits >> 62, WIDTHS_WGMMA)
        if swizzle not in widths or bits >> 49 & 7 or fifth and bits >> 52 & 1:
            raise ValueError(f"the matrix descriptor {bits:#x} has a swizzle or a base offset that is not modelled")
        start, leading, stride = ((bits >> shift & 0x3FFF) * PIECE for shift in (0, 16, 32))
        return cls(start, leading, stride, widths[swizzle])


def swizzled(at: np.ndarray, width: int) -> np.ndarray:
    """Move addresses, int64, as the swizzle of lines of `width` bytes does."""
    return at ^ ((at >> 7 & (width // PIECE - 1)) << 4)


@lru_cache(maxsize=4096)
def places(descriptor: Descriptor, rows: int, k: int, size: int, k_major: bool) -> np.ndarray:
    """Compute the addresses of a matrix's elements, int64 (rows, k).

    Args:
        descriptor: where it lies. rows, k: its shape. size: bytes of an element.
        k_major: whether neighbours along the sum are neighbours in memory.
    """
    row, column = np.arange(rows)[:, None], size * np.arange(k)[None]  # the column in bytes
    width, start = descriptor.width, descriptor.start
    if k_major and width == PIECE:
        at = row % LINES * PIECE + row // LINES * descriptor.stride + column // PIECE * descriptor.leading
        at = at + column % PIECE
    elif k_major:
        at = row % LINES * width + row // LINES * descriptor.stride + column
    else:
        along, line = size * np.arange(rows)[:, None], np.arange(k)[None]
        far, deep = (descriptor.stride, descriptor.leading)[:: 1 if width == PIECE else -1]
        at = along % width + along // width * far + line % LINES * width + line // LINES * deep
    return swizzled(start + at, width)


def read(shared: Shared, at: np.ndarray, size: int) -> np.ndarray:
    """Read elements of `size` bytes at addresses, int64 of any shape: unsigned numbers of that shape.

    Raises:
        BadAccess: an element lies outside, or was never written.
    """
    if at.min() < 0 or at.max() + size > shared.data.size:
        reason = f"a matrix reaches byte {at.max() + size} of shared memory, which has {shared.data.size}"
        raise BadAccess(0, reason, Trouble.ACCESS)
    if shared.written is not None and not shared.written[at].all():
        missing = int(at[~shared.written[at]][0])
        raise BadAccess(0, f"shared memory at {missing} was never written (a matrix is read)", Trouble.UNWRITTEN)
    return shared.data[: shared.data.size // size * size].view(f"uint{8 * size}")[at // size]
