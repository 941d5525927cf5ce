"""Shadows of numbers in registers and memory.

A shadow has a value for each variant of a run. It belongs to bits: where a register or memory has other bits than those
it was made for, because some instruction wrote them that computes with no floats, it counts no more, and the number
itself takes its place.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ptx_machine import matrix
from ptx_machine.float64_carrier import PAIRS
from ptx_machine.floats import halves
from ptx_machine.lanes import Lanes
from ptx_machine.syntax import Register
from ptx_machine.warp import Warp

PARTS = {"word": 1, "half": 1, "pair": 2, "words": 2, "quad": 4}  # numbers in a register: of 32 bits, or of 16
SPLIT = {"pair": "half", "words": "word", "quad": "pair"}  # what the halves of a register hold
JOINED = {one: two for two, one in SPLIT.items()}
WORD, HALF, SECOND = 1, 2, 3  # a piece of two bytes begins a number of 32 bits, holds one of 16, or ends one of 32


@dataclass
class ShadowValue:
    """Shadows of a register.

    Attributes:
        kind: of PARTS. bits: (32,) of the register, when it was written.
        values: float64 (variants, parts, 32); NaN where there is none.
    """

    kind: str
    bits: Lanes
    values: np.ndarray


def put(warp: Warp, register: Register, kind: str, values: np.ndarray, mask: Lanes) -> None:
    """Give a register, which was just written in the lanes of mask, shadows (variants, parts, 32)."""
    old, bits = warp.shadow.get(register), warp.bits(register)
    if not mask.all():
        rest = old.values if old is not None and old.kind == kind else np.nan
        values = np.where(mask, values, rest)
        bits = np.where(mask, bits, old.bits if old is not None else bits)
    warp.shadow[register] = ShadowValue(kind, bits.copy(), values)


def of(warp: Warp, register: Register, kind: str) -> np.ndarray | None:
    """Return a register's shadows (variants, parts, 32) of a kind, NaN where there is none; None: it has none."""
    shadow = warp.shadow.get(register)
    if shadow is None or shadow.kind != kind:
        return None
    same = shadow.bits == warp.bits(register)
    return shadow.values if same.all() else np.where(same, shadow.values, np.nan)


def numbers(lanes: Lanes, kind: str) -> np.ndarray:
    """Return the numbers of lanes (32,) of a float type of PTX, float64 (parts, 32)."""
    return np.stack([matrix.numbers(np.array(half), PAIRS.get(kind, kind)) for half in halves(lanes, kind)])


@dataclass
class Memory:
    """Shadows of bytes, in pieces of two.

    Attributes:
        kinds: uint8 (pieces,), 0 where there is none. bits: uint16 (pieces,), when they were written.
        values: float64 (pieces, variants).
    """

    kinds: np.ndarray
    bits: np.ndarray
    values: np.ndarray

    @classmethod
    def of_size(cls, size: int, variants: int) -> "Memory":
        """Make the shadows of `size` bytes."""
        pieces = -(-size // 2) + 1
        return cls(np.zeros(pieces, np.uint8), np.zeros(pieces, np.uint16), np.empty((pieces, variants)))

    def put(self, starts: Lanes, kind: str, bits: Lanes, values: np.ndarray) -> None:
        """Store shadows of one register.

        Args:
            starts: (lanes,), of the first bytes. kind: of PARTS. bits: (lanes,), of the register.
            values: float64 (variants, parts, lanes).
        """
        if kind in ("words", "quad"):
            for i, half in enumerate(np.split(values, 2, 1)):
                self.put(starts + 4 * i, SPLIT[kind], bits >> np.uint64(32 * i) & np.uint64(0xFFFFFFFF), half)
            return
        at = starts.astype(np.int64) // 2
        low, high = (bits & 0xFFFF).astype(np.uint16), (bits >> 16).astype(np.uint16) if kind != "half" else None
        self.bits[at], self.values[at] = low, values[:, 0].T
        self.kinds[at] = WORD if kind == "word" else HALF
        if high is not None:
            self.bits[at + 1], self.kinds[at + 1] = high, SECOND if kind == "word" else HALF
            if kind == "pair":
                self.values[at + 1] = values[:, 1].T

    def get(self, starts: Lanes, bits: Lanes, width: int) -> tuple[str, np.ndarray] | None:
        """Return (kind, float64 (variants, parts, lanes)) of numbers in `width` bits, NaN where there is no shadow.

        Args:
            starts: (lanes,), of the first bytes. bits: (lanes,), what memory has there.
            width: 16, 32 or 64.
        """
        if width == 64:
            return joined(
                [self.get(starts + 4 * i, bits >> np.uint64(32 * i) & np.uint64(0xFFFFFFFF), 32) for i in (0, 1)]
            )
        at = starts.astype(np.int64) // 2
        same = self.bits[at] == (bits & 0xFFFF).astype(np.uint16)
        halves = same & (self.kinds[at] == HALF)
        if width == 16:
            return ("half", np.where(halves, self.values[at].T, np.nan)[:, None]) if halves.any() else None
        same_2 = self.bits[at + 1] == (bits >> 16).astype(np.uint16)
        words = same & same_2 & (self.kinds[at] == WORD) & (self.kinds[at + 1] == SECOND)
        if words.any():
            return "word", np.where(words, self.values[at].T, np.nan)[:, None]
        halves_2 = same_2 & (self.kinds[at + 1] == HALF)
        if not (halves | halves_2).any():
            return None
        first, second = np.where(halves, self.values[at].T, np.nan), np.where(halves_2, self.values[at + 1].T, np.nan)
        return "pair", np.stack([first, second], 1)


@dataclass
class Memories:
    """Shadows of all memory that kernels of a run write.

    Attributes:
        variants: their number. outer: address of a span of global memory -> its shadows.
        inner: shadows of a block's shared memory, and of its warps' local memory, by (space, warp).
        block: whose `inner` it is.
    """

    variants: int
    outer: dict[int, Memory] = field(default_factory=dict)
    inner: dict[tuple[str, int], Memory] = field(default_factory=dict)
    block: Any = None

    def of_block(self, block: Any, space: str, warp: Warp) -> Memory:
        """Return the shadows of a block's shared memory, or of a warp's local memory."""
        if self.block is not block:
            self.block, self.inner = block, {}
        key = space, warp.index if space == "local" else 0
        if key not in self.inner:
            size = warp.local.size if space == "local" else block.memory.shared.data.size
            self.inner[key] = Memory.of_size(size, self.variants)
        return self.inner[key]

    def of_span(self, base: int, size: int) -> Memory:
        """Return the shadows of a span of global memory."""
        known = self.outer.get(base)
        if known is None or known.kinds.size < -(-size // 2) + 1:
            self.outer[base] = Memory.of_size(size, self.variants)
        return self.outer[base]


def joined(halves: list[tuple[str, np.ndarray] | None]) -> tuple[str, np.ndarray] | None:
    """Join (kind, shadows (variants, parts, lanes)) of the two halves of a register, the lower one first; None: there
    are none."""
    known = [half for half in halves if half is not None]
    if not known or any(half[0] != known[0][0] or half[0] not in JOINED for half in known):
        return None
    none = np.full_like(known[0][1], np.nan)
    return JOINED[known[0][0]], np.concatenate([none if half is None else half[1] for half in halves], 1)
