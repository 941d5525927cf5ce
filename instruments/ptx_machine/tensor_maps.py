"""Copies of boxes of a tensor between global and shared memory by Hopper's copy engine (TMA): the tensor map, which
says where the tensor lies, and the instructions cp.async.bulk. The text: PTX ISA, "Data Movement and Conversion
Instructions: Asynchronous copy" and "Tensors".

A copy is done at once: a kernel that waits for it, as it must, sees no difference. The 128 bytes of a tensor map are
opaque in PTX; here they hold FIELDS.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from torch import Tensor

from ptx_machine.arguments import Structure
from ptx_machine.lanes import WARP, Lanes, refuse
from ptx_machine.memory import BadAccess
from ptx_machine.memory_barriers import change
from ptx_machine.operands import Addresses, address, into_shared, source
from ptx_machine.shared_matrices import PIECE, swizzled
from ptx_machine.syntax import Address, Instruction
from ptx_machine.warp import Step, Warp

MOST = 5  # dimensions
SIZE = 128  # bytes
ALIGNED = 128  # a multiple of it is where a box begins in shared memory
SWIZZLES = (16, 32, 64, 128)  # bytes of a line; 16 is without a swizzle
FIELDS = {"base": (0, 8), "size": (8, 4), "rank": (12, 4), "width": (16, 4)} | {
    f"{name}{i}": (first + each * i, each)
    for name, first, each in (("length", 24, 4), ("box", 44, 4), ("stride", 64, 8)) for i in range(MOST)
}  # fmt: skip


def tensor_map(tensor: Tensor, box: Sequence[int], width: int = PIECE) -> Structure:
    """Make the argument that a kernel takes as a tensor map.

    Args:
        tensor: on the CPU; its last dimension is contiguous. PTX counts dimensions from there.
        box: number of elements of a copy in each dimension of the tensor, in the tensor's order.
        width: of SWIZZLES, how a box's lines are laid out in shared memory.

    Raises:
        ValueError: an argument does not fit.
    """
    if tensor.ndim > MOST or len(box) != tensor.ndim or tensor.stride(-1) != 1:
        got = f"got {tensor.ndim} dimensions and a box of {len(box)}"
        raise ValueError(f"tensor: {got}; accepted are 1 to {MOST}, alike")
    if width not in SWIZZLES or width != PIECE and box[-1] * tensor.element_size() > width:
        raise ValueError(f"width: got {width} for lines of {box[-1] * tensor.element_size()} bytes; "
                         f"accepted are {SWIZZLES}, not below the line")  # fmt: skip
    values: dict = dict(base=tensor, size=tensor.element_size(), rank=tensor.ndim, width=width)
    dimensions = zip(reversed(tensor.shape), reversed(box), reversed(tensor.stride()))
    for i, (length, count, stride) in enumerate(dimensions):
        values |= {f"length{i}": length, f"box{i}": count, f"stride{i}": stride * tensor.element_size()}
    return Structure(FIELDS, SIZE, values)


def bulk_copy(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of cp.async.bulk.tensor: of a box from global to shared memory, or back.

    Elements outside of the tensor are zeros when they are read, and are not written."""
    words = instruction.words
    if "tensor" not in words:
        return _of_bytes(instruction, names)
    spaces = [word.split("::")[0] for word in words if word.split("::")[0] in ("shared", "global")]
    known = "tile" in words and "multicast::cluster" not in words
    if not known or spaces not in (["shared", "global"], ["global", "shared"]):
        raise refuse(instruction, "that kind of bulk copy is not modelled")
    loads = spaces[0] == "shared"
    here, there = (instruction.operands[:2])[:: 1 if loads else -1]  # in shared memory; the tensor
    if not isinstance(there, Address):
        raise refuse(instruction, f"got {there} for a tensor map and coordinates")
    at, map_at = address(here, instruction, names), address(there, instruction, names)
    coordinates = [source(each, "s32", instruction, names) for each in there.coordinates]
    barrier_at = address(instruction.operands[2], instruction, names) if loads else None

    def step(warp, mask):
        starts, maps = into_shared(at(warp)), map_at(warp)
        corners = np.stack([each(warp) for each in coordinates], 1).astype(np.int64)  # (32, rank)
        for lane in np.flatnonzero(mask):
            fields = _fields(warp, maps, int(lane))
            count = _move(warp, fields, corners[lane], int(starts[lane]), int(lane), loads)
            if barrier_at is not None:
                change(warp, int(into_shared(barrier_at(warp))[lane]), int(lane), expected=-count)

    return step


def _of_bytes(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of cp.async.bulk of bytes that lie together, and of its groups."""
    words = instruction.words
    if "commit_group" in words or "wait_group" in words:
        return lambda warp, mask: None
    if words[3:5] not in (("shared::cluster", "global"), ("shared::cta", "global")) or "multicast::cluster" in words:
        raise refuse(instruction, "that kind of bulk copy is not modelled")
    to, of, barrier = (address(instruction.operands[i], instruction, names) for i in (0, 1, 3))
    sizes = source(instruction.operands[2], "u32", instruction, names)

    def step(warp, mask):
        for lane in np.flatnonzero(mask):
            count, only = int(sizes(warp)[lane]), np.arange(WARP) == lane
            span, _ = warp.block.memory.outer.of(of(warp), count, only)[0]
            start = int(of(warp)[lane]) - span.base
            places = int(into_shared(to(warp))[lane]) + np.arange(count)
            _store(warp, places, span.data[start : start + count], int(lane))
            change(warp, int(into_shared(barrier(warp))[lane]), int(lane), expected=-count)

    return step


def _fields(warp: Warp, maps: Lanes, lane: int) -> dict[str, int]:
    """Read a tensor map at a generic address, or at one of a parameter."""
    only = np.arange(WARP) == lane
    pieces = [
        warp.block.memory.load("generic", maps + np.uint64(offset), 8, only, warp.local)[lane]
        for offset in range(0, SIZE, 8)
    ]
    data = np.concatenate(pieces).tobytes()
    return {name: int.from_bytes(data[at : at + size], "little") for name, (at, size) in FIELDS.items()}


def _move(warp: Warp, fields: dict[str, int], corner: np.ndarray, start: int, lane: int, loads: bool) -> int:
    """Copy a box, and return its number of bytes. corner: of its first element, dimensions counted as PTX does."""
    rank, size, width = fields["rank"], fields["size"], fields["width"]
    if rank != len(corner):
        raise BadAccess(lane, f"a box of {len(corner)} dimensions of a tensor that has {rank}")
    if start % ALIGNED:
        raise BadAccess(lane, f"a box at {start} of shared memory, which is no multiple of {ALIGNED}")
    box, lengths, strides = ([fields[f"{name}{i}"] for i in range(rank)] for name in ("box", "length", "stride"))
    low = np.maximum(corner, 0)
    high = np.minimum(corner + box, lengths)
    count = int(np.prod(box)) * size
    inside = tuple(slice(int(a - c), int(b - c)) for a, b, c in zip(low, high, corner))[::-1]
    places = _line_places(tuple(box), size, start, width)
    if (high <= low).any():
        if loads:
            _store(warp, places, np.zeros(count, np.uint8), lane)
        return count
    first = fields["base"] + int(low @ strides)
    last = fields["base"] + int((high - 1) @ strides) + size
    span, _ = warp.block.memory.outer.of(np.full(WARP, first, np.uint64), last - first, np.arange(WARP) == lane)[0]
    shape = [int(x) for x in (high - low)[::-1]]
    outer = np.ndarray(shape, f"uint{8 * size}", span.data, first - span.base, strides[::-1])
    whole = np.zeros(box[::-1], outer.dtype)
    if loads:
        whole[inside] = outer
        _store(warp, places, whole.reshape(-1).view(np.uint8), lane)
    else:
        shared = warp.block.memory.shared
        shared.check(places, lane, "a copy")
        whole.reshape(-1).view(np.uint8)[:] = shared.data[places]
        outer[...] = whole[inside]
    return count


@lru_cache(maxsize=1024)
def _line_places(box: tuple[int, ...], size: int, start: int, width: int) -> np.ndarray:
    """The addresses of a box's bytes in shared memory, int64."""
    return swizzled(start + np.arange(int(np.prod(box)) * size), width)


def _store(warp: Warp, places: np.ndarray, values: np.ndarray, lane: int) -> None:
    shared = warp.block.memory.shared
    shared.check(places, lane, "a copy", writes=True)
    shared.data[places] = values
