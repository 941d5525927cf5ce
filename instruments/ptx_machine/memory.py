"""Memory as a kernel sees it: global (tensors, module variables), shared, local, parameters, under one numbering of
addresses. An access that no GPU would allow is a Fault.

Global addresses are the process's own. Shared and local memory, and the parameters, have windows that no process has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ptx_machine.lanes import WARP, Lanes

NANS = 0xFF  # for unwritten bytes of shared memory, where reading them is allowed: all bits set are NaN in any float
SHARED, LOCAL, PARAMETERS = 1 << 60, 1 << 61, 1 << 62  # where the windows of generic addresses begin
WINDOW = 1 << 32  # their size
WORD = 4  # bytes that are looked at together, to tell whether somebody wrote them


class Fault(RuntimeError):
    """A kernel did what no GPU allows; the message has its name, line, block and thread, and the address."""

    malformed = True  # a judge takes it for an answer that is wrong, as NaN is, and not for a refusal


class Asserted(Fault):
    """An assertion of the kernel's own fails."""

    malformed = False


class Unwritten(Fault):
    """A result depends on memory of torch.empty that nobody wrote."""


class Endless(Fault):
    """A kernel does not end: it executes more instructions than any that does."""


class BadAccess(Exception):
    """A forbidden access of one lane, or, asserted, a failing assertion of the kernel's own; `Block` turns it into a
    Fault that says where."""

    def __init__(self, lane: int, reason: str, asserted: bool = False):
        super().__init__(reason)
        self.lane, self.reason, self.asserted = lane, reason, asserted


@dataclass(frozen=True)
class Span:
    """Bytes of memory.

    Attributes:
        base: address of the first byte. data: uint8 (size,).
        name: of the argument or variable that they belong to.
        fresh: whether there may be bytes that nobody has written: they are NANS.
    """

    base: int
    data: np.ndarray
    name: str
    fresh: bool = False

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.base + self.data.size


class Global:
    """The global memory that a launch may read and write: spans that do not overlap. watched: whether reads of bytes
    that nobody has written are noticed.

    Raises:
        ValueError: two spans overlap.
    """

    def __init__(self, spans: list[Span], watched: bool = False):
        self.spans = sorted((span for span in spans if span.data.size), key=lambda span: span.base)
        for first, second in pairwise(self.spans):
            if first.end > second.base:
                raise ValueError(f"{first.name} and {second.name}: got memory that overlaps; accepted is one storage")
        self.bases = np.array([span.base for span in self.spans], np.uint64)
        self.edges = np.array([(span.base, span.end, watched and span.fresh) for span in self.spans], np.uint64)

    def of(self, addresses: Lanes, size: int, mask: Lanes) -> list[tuple[Span, Lanes]]:
        """Find the spans of accesses.

        Args:
            addresses: uint64 (32,). size: bytes of an access.
            mask: bool (32,), the lanes that access memory.

        Returns:
            list of (span, its lanes, bool (32,)).

        Raises:
            BadAccess: an access lies in no span.
        """
        indices = np.searchsorted(self.bases, addresses, side="right").astype(int) - 1
        parts = []
        for index in np.unique(indices[mask]):
            lanes = mask & (indices == index)
            span = self.spans[index] if index >= 0 else None
            outside = lanes if span is None else lanes & (addresses > np.uint64(max(span.end - size, 0)))
            if span is not None and span.data.size < size:
                outside = lanes
            if outside.any():
                lane = int(outside.argmax())
                at = int(addresses[lane])
                raise BadAccess(lane, f"{size} bytes at {at:#x} are {self.near(at)}")
            parts.append((span, lanes))
        return parts

    def near(self, address: int) -> str:
        """Say where an address is that lies in no span."""
        if not self.spans:
            return "in no tensor: the launch was given none"
        span = min(self.spans, key=lambda span: min(abs(address - span.base), abs(address - span.end)))
        behind = address >= span.base
        off = address - span.end if behind else span.base - address
        if abs(off) > 1 << 24:
            return "in no tensor of the launch, and near none"
        if off < 0:
            return f"across the end of {span.name}"
        return f"outside of {span.name}, {off} bytes {'behind its end' if behind else 'before it begins'}"


class Shared:
    """A block's shared memory.

    Args:
        size: in bytes.
        unwritten: the value of bytes before they are written; None: reading them is a Fault.
        races: a Races of ptx_machine.races; None: races are not looked for.
    """

    def __init__(self, size: int, unwritten: int | None, races: Any = None):
        self.data, self.races, self._unwritten = np.empty(size, np.uint8), races, unwritten or 0
        self.written = None if unwritten is not None else np.empty(size, bool)
        self.begin()

    def begin(self) -> None:
        """Be the memory of a block in which nothing was written."""
        self.data.fill(self._unwritten)
        if self.written is not None:
            self.written.fill(False)

    def reads(self, starts: Lanes, size: int, lanes: Lanes) -> None:
        """Check reads of `size` bytes from starts (lanes,), by the lanes, bool (32,).

        Raises:
            BadAccess: a byte was never written, or a read races with a write.
        """
        if self.written is not None:
            unwritten = ~gather(self.written, starts, size).all(1)
            if unwritten.any():
                lane, at = int(np.flatnonzero(lanes)[unwritten.argmax()]), int(starts[unwritten.argmax()])
                reason = f"shared memory at {at} was never written ({size} bytes are read)"
                raise BadAccess(lane, reason)
        if self.races is not None:
            self.races.reads(starts, size, lanes)

    def writes(self, starts: Lanes, values: np.ndarray, lanes: Lanes) -> None:
        """Note writes of values (lanes, size) at starts (lanes,), by the lanes, bool (32,), before they are done.

        Raises:
            BadAccess: a write of other values than there are races with another access.
        """
        size = values.shape[1]
        if self.races is not None:
            changes = (gather(self.data, starts, size) != values).any(1)
            if self.written is not None:
                changes |= ~gather(self.written, starts, size).all(1)
            changing = lanes.copy()
            changing[lanes] = changes
            self.races.writes(starts[changes], size, changing)
        if self.written is not None:
            self.written[starts.astype(np.int64)[:, None] + np.arange(size)] = True

    def check(self, at: np.ndarray, lane: int, what: str, writes: bool = False) -> None:
        """Check the bytes, by their addresses in any shape, that a matrix, a copy or an mbarrier of a lane reads, or
        writes: these are written from now on.

        Raises:
            BadAccess: a byte lies outside, or is read and was never written.
        """
        if at.min() < 0 or at.max() >= self.data.size:
            reason = f"{what} reaches byte {at.max()} of shared memory, which has {self.data.size}"
            raise BadAccess(lane, reason)
        if self.written is not None and writes:
            self.written[at] = True
        elif self.written is not None and not self.written[at].all():
            missing = int(at[~self.written[at]][0])
            raise BadAccess(lane, f"shared memory at {missing} was never written ({what} is read)")

    @contextmanager
    def together(self, starts: Lanes) -> Iterator[None]:
        """Make accesses at starts atomic: inside the context they race with none."""
        if self.races is None:
            yield
            return
        for start in starts.tolist():
            self.races.through(start)
        self.races.aside = True
        try:
            yield
        finally:
            self.races.aside = False


def gather(data: np.ndarray, starts: Lanes, size: int) -> np.ndarray:
    """Read `size` bytes from each of starts (lanes,): uint8 (lanes, size)."""
    return data[starts.astype(np.int64)[:, None] + np.arange(size)]


class View:
    """The memory of one block, for loads and stores of a warp. In its methods `local` is uint8 (32, size), of the
    warp. unwritten: the lane and the place of reads of global memory that nobody has written, if they are watched."""

    def __init__(self, outer: Global, shared: Shared, parameters: np.ndarray, constants: Global):
        self.outer, self.shared, self.parameters, self.constants = outer, shared, parameters, constants
        self.unwritten: list[tuple[int, str]] = []

    def load(self, space: str, addresses: Lanes, size: int, mask: Lanes, local: np.ndarray) -> np.ndarray:
        """Load `size` bytes at addresses, uint64 (32,), of a space: uint8 (32, size), zeros where mask (32,) is False.

        Raises:
            BadAccess: a lane may not read there.
        """
        out = np.zeros((WARP, size), np.uint8)
        for where, at, lanes, memory in self.places(space, addresses, size, mask, local):
            out[lanes] = where(at[lanes], None)
            if isinstance(memory, Shared):
                memory.reads(at[lanes], size, lanes)
            elif isinstance(memory, Span) and memory.fresh and self.outer.edges[:, 2].any():
                words = out.view(f"u{min(size, WORD)}")
                seen = lanes & (words == np.iinfo(words.dtype).max).any(1)
                if seen.any():
                    lane = int(seen.argmax())
                    place = f"at {int(addresses[lane]):#x}, {int(at[lane]):,} bytes into {memory.name}"
                    self.unwritten.append((lane, f"reads {size} bytes {place}, that nobody wrote"))
        return out

    def store(self, space: str, addresses: Lanes, values: np.ndarray, mask: Lanes, local: np.ndarray) -> None:
        """Store values, uint8 (32, size), at addresses, uint64 (32,), in the lanes of mask. Where several lanes write
        to one address, the last one's values stay.

        Raises:
            BadAccess: a lane may not write there.
        """
        for where, at, lanes, memory in self.places(space, addresses, values.shape[1], mask, local):
            if isinstance(memory, Shared):
                memory.writes(at[lanes], values[lanes], lanes)
            where(at[lanes], values[lanes])

    def places(self, space, addresses, size, mask, local):
        """Yield, for each memory that lanes access, (function of starts and values that reads or writes, starts, lanes,
        the Shared, the Span of global memory, or else the name of its space)."""
        addresses = addresses.astype(np.uint64)
        wrong = mask & (addresses % np.uint64(size) != 0)
        if wrong.any():
            lane = int(wrong.argmax())
            reason = f"{int(addresses[lane]):#x} is no multiple of {size}, the size of the access"
            raise BadAccess(lane, reason)
        if space == "generic":
            window = addresses // np.uint64(WINDOW) * np.uint64(WINDOW)
            for base, inner in ((SHARED, "shared"), (LOCAL, "local"), (PARAMETERS, "param")):
                lanes = mask & (window == np.uint64(base))
                if lanes.any():
                    yield from self.places(inner, addresses - np.uint64(base), size, lanes, local)
                mask = mask & ~lanes
            if mask.any():
                yield from self.places("global", addresses, size, mask, local)
        elif space in ("global", "const"):
            outer = self.outer if space == "global" else self.constants
            for span, lanes in outer.of(addresses, size, mask):
                yield _access(span.data, size), addresses - np.uint64(span.base), lanes, span
        elif mask.any():
            data = {"shared": self.shared.data, "local": local, "param": self.parameters}[space]
            end = data.shape[-1] if space == "local" else data.size
            outside = mask & (addresses > np.uint64(max(end - size, 0))) if size <= end else mask
            if outside.any():
                lane = int(outside.argmax())
                reason = f"{size} bytes at {int(addresses[lane])} of {space} memory, which has {end}"
                raise BadAccess(lane, reason)
            if space == "local":
                starts = addresses + np.uint64(end) * np.arange(WARP, dtype=np.uint64)
                yield _access(local.reshape(-1), size), starts, mask, space
            else:
                yield _access(data, size), addresses, mask, self.shared if space == "shared" else space


def _access(data: np.ndarray, size: int):
    def access(starts: Lanes, values: np.ndarray | None):
        if values is None:
            return gather(data, starts, size)
        for start, value in zip(starts.astype(np.int64), values):  # in order: the last one stays
            data[start : start + size] = value
        return values

    return access
