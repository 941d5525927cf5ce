"""tcgen05: Blackwell's product of matrices, which one thread begins, and the tensor memory that holds its result. The
text: PTX ISA, "TensorCore 5th Generation Family Instructions".

Tensor memory has 128 lanes of 512 columns of 32 bits; an address has the lane in its upper half, the column in its
lower. Row i of a matrix of 128 rows lies in lane i; one of 64 rows has 16 in each quarter of the lanes, the first or
the last. Everything is done at once: a kernel that waits, as it must, sees no difference. The products are summed as a
`TensorCore` does.
"""

import re
from dataclasses import dataclass

import numpy as np

from ptx_machine.device import GPU
from ptx_machine.float64_carrier import bits_of
from ptx_machine.lanes import WARP, refuse
from ptx_machine.matrix import numbers, summed
from ptx_machine.memory import BadAccess
from ptx_machine.memory_barriers import change
from ptx_machine.operands import Addresses, address, into_shared, source, sources, targets, whole
from ptx_machine.shared_matrices import Descriptor, places, read
from ptx_machine.syntax import Address, Instruction, Operand
from ptx_machine.warp import Step, Warp

LANES, COLUMNS = 128, 512
ROWS = {  # the lane of each row, by the number of rows
    LANES: np.arange(LANES),
    64: np.arange(64) % 16 + WARP * (np.arange(64) // 16),
}
QUARTER = 4  # warps; each sees the lanes of its number modulo this
K_BYTES = 32  # of a line of A or B
RESULTS = {0: "f16", 1: "f32"}
FACTORS = {0: "f16", 1: "bf16"}  # of kind::f16
NOTHING = ("wait::ld", "wait::st", "relinquish_alloc_permit", "dealloc", "fence::before_thread_sync",
           "fence::after_thread_sync")  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """What an instruction descriptor of 32 bits says.

    Attributes:
        gives: type of the result. kind: type of the factors.
        a_turned, b_turned: whether a matrix in shared memory lies row-major. m, n: rows of A and of B.
    """

    gives: str
    kind: str
    a_turned: bool
    b_turned: bool
    m: int
    n: int

    @classmethod
    def of(cls, bits: int) -> "Shape":
        """Read the bits.

        Raises:
            ValueError: they are of a product that is not modelled.
        """
        gives, a, b = bits >> 4 & 3, bits >> 7 & 7, bits >> 10 & 7
        m, n = (bits >> 24 & 31) << 4, (bits >> 17 & 63) << 3
        others = bits & (0b1111 | 3 << 13 | 1 << 23 | 7 << 29)  # sparse, saturated, with signs changed, shifted
        if gives not in RESULTS or a not in FACTORS or a != b or m not in (64, LANES) or others:
            accepted = "64 or 128 rows of 16 bits"
            raise ValueError(f"the instruction descriptor {bits:#x} is not modelled: accepted are {accepted}")
        return cls(RESULTS[gives], FACTORS[a], bool(bits >> 15 & 1), bool(bits >> 16 & 1), m, n)


def fifth(instruction: Instruction, names: Addresses, gpu: GPU) -> Step:
    """Make the step of tcgen05: alloc, ld, st, mma, commit."""
    operation = instruction.words[1]
    if operation in NOTHING:
        return lambda warp, mask: None
    if "cta_group::2" in instruction.words or operation not in OPERATIONS:
        raise refuse(instruction, "it is not modelled")
    return OPERATIONS[operation](instruction, names, gpu)


def _allocate(instruction: Instruction, names: Addresses, gpu: GPU) -> Step:
    """Columns are given in order, and the address is written to shared memory."""
    at = address(instruction.operands[0], instruction, names)
    columns = source(instruction.operands[1], "u32", instruction, names)

    def step(warp, mask):
        block, lane = warp.block, int(mask.argmax())
        start = block.tensor_columns
        block.tensor_columns += int(columns(warp)[lane])
        if block.tensor_columns > COLUMNS:
            raise BadAccess(lane, f"{block.tensor_columns} columns of tensor memory; there are {COLUMNS}")
        values = np.full((WARP, 1), start, np.uint32).view(np.uint8)
        block.memory.store("shared", into_shared(at(warp)), values, np.arange(WARP) == lane, warp.local)

    return step


def _commit(instruction: Instruction, names: Addresses, gpu: GPU) -> Step:
    """The products are done: their arrival is counted by an mbarrier."""
    if "multicast::cluster" in instruction.words:
        raise refuse(instruction, "clusters are not modelled")
    at = address(instruction.operands[0], instruction, names)

    def step(warp, mask):
        for lane in np.flatnonzero(mask):
            change(warp, int(into_shared(at(warp))[lane]), int(lane), arrivals=1)

    return step


def _window(warp: Warp, start: int, columns: int) -> np.ndarray:
    """Return the tensor memory from the address `start` on that a warp sees, uint32 (lanes, columns), a view."""
    lane, column = start >> 16, start & 0xFFFF
    quarter = WARP * (warp.index % QUARTER)
    first = lane if lane >= WARP else quarter + lane
    if first // WARP * WARP != quarter or column + columns > COLUMNS:
        raise BadAccess(0, f"tensor memory from lane {lane}, column {column} on, {columns} columns: the warp has the "
                           f"{WARP} lanes from {quarter} on, of {COLUMNS} columns")  # fmt: skip
    return warp.block.tensor_memory[first : quarter + WARP, column : column + columns]


def _places(instruction: Instruction, packed: bool, split: list[Operand]) -> tuple[np.ndarray, np.ndarray]:
    """Where the threads' numbers lie in a warp's window: lanes (32, 1) and columns (32, count). Of the shape 32x32b
    each thread has its own lane; of 16x32bx2 the last 16 have the lanes of the first, `split` columns further on.
    packed: whether a register has the lower halves of two columns.

    Raises:
        ValueError: the shape is not modelled.
    """
    words = instruction.words
    times = [word for word in words if re.fullmatch(r"x\d+", word)]
    if not {"32x32b", "16x32bx2"} & {*words} or len(times) != 1:
        raise refuse(instruction, "accepted are the shapes 32x32b and 16x32bx2")
    lane, column = np.arange(WARP)[:, None], np.arange(int(times[0][1:]) * (2 if packed else 1))[None]
    if "32x32b" in words:
        return lane, column
    return lane % 16, column + whole(split[0] if split else None, instruction) * (lane // 16)


def _load(instruction: Instruction, names: Addresses, gpu: GPU) -> Step:
    """Each thread gets columns of a lane."""
    into, at, *split = instruction.operands
    packs = "pack::16b" in instruction.words
    lanes, columns = _places(instruction, packs, split)
    registers, starts = targets(into, instruction), address(at, instruction, names)

    def step(warp, mask):
        window = _window(warp, int(starts(warp)[0]), int(columns.max()) + 1)
        found = window[lanes, columns]  # (32, count)
        if packs:
            found = (found[:, ::2] & np.uint32(0xFFFF)) | found[:, 1::2] << np.uint32(16)
        warp.write_each(registers, found.T, mask)

    return step


def _store(instruction: Instruction, names: Addresses, gpu: GPU) -> Step:
    """Each thread writes columns of a lane."""
    at, *split, of = instruction.operands
    unpacks = "unpack::16b" in instruction.words
    lanes, columns = _places(instruction, unpacks, split)
    starts, values = address(at, instruction, names), sources(of, "b32", instruction, names)

    def step(warp, mask):
        window = _window(warp, int(starts(warp)[0]), int(columns.max()) + 1)
        bits = np.stack([value(warp) for value in values], 1)
        if unpacks:
            bits = np.stack([bits & np.uint32(0xFFFF), bits >> np.uint32(16)], 2).reshape(WARP, -1)
        window[lanes, columns] = bits

    return step


def _multiply(instruction: Instruction, names: Addresses, gpu: GPU) -> Step:
    """A in shared or tensor memory, B in shared memory, the result in tensor memory."""
    if {*instruction.words} != {"tcgen05", "mma", "cta_group::1", "kind::f16"} or len(instruction.operands) != 5:
        raise refuse(instruction, "accepted is kind::f16 of one block, without masks and scales")
    d, a, b, descriptor, keeps = instruction.operands
    from_tensor_memory = isinstance(a, Address)
    d_of = address(d, instruction, names)
    a_of = address(a, instruction, names) if from_tensor_memory else source(a, "b64", instruction, names)
    b_of, shape_of = source(b, "b64", instruction, names), source(descriptor, "b32", instruction, names)
    keeps_of = source(keeps, "pred", instruction, names)
    k = K_BYTES // 2

    def step(warp, mask):
        for lane in np.flatnonzero(mask):
            one(warp, int(lane))

    def one(warp, lane):
        shared, memory = warp.block.memory.shared, warp.block.tensor_memory
        try:
            shape = Shape.of(int(shape_of(warp)[lane]))
            core = gpu.core(shape.kind, shape.gives, "tcgen05.mma")
            at_b = places(Descriptor.of(int(b_of(warp)[lane]), True), shape.n, k, 2, not shape.b_turned)
            start = int(a_of(warp)[lane])
            if from_tensor_memory:
                part = _part(start, shape.m, K_BYTES // 4, lane)
                a_bits = np.ascontiguousarray(memory[part]).view(np.uint16)  # (m, k)
            else:
                a_bits = read(shared, places(Descriptor.of(start, True), shape.m, k, 2, not shape.a_turned), 2)
        except ValueError as error:
            raise BadAccess(lane, str(error)) from None
        A, B = numbers(a_bits, shape.kind), numbers(read(shared, at_b, 2), shape.kind)
        part = _part(int(d_of(warp)[lane]), shape.m, shape.n, lane)
        place = memory[part]  # (m, n), a copy; FP16 results have a column each too
        keep = bool(keeps_of(warp)[lane])
        old = place.view(np.float32) if shape.gives == "f32" else place.astype(np.uint16).view(np.float16)
        C = old.astype(np.float64) if keep else np.zeros(place.shape)
        D = summed(core, A, np.ascontiguousarray(B.T), C)
        bits = bits_of(D.reshape(-1), shape.gives)
        dtype = np.uint32 if shape.gives == "f32" else np.uint16
        memory[part] = bits.view(dtype).reshape(D.shape)

    return step


def _part(start: int, rows: int, columns: int, lane: int) -> tuple[np.ndarray, slice]:
    """Return the lanes and the columns of tensor memory that have a matrix, from the address `start` on."""
    first, column = start >> 16, start & 0xFFFF
    if first not in ((0,) if rows == LANES else (0, 16)) or column + columns > COLUMNS:
        raise BadAccess(lane, f"a matrix of {rows} rows and {columns} columns in tensor memory at lane {first}, "
                              f"column {column}")  # fmt: skip
    return ROWS[rows] + first, slice(column, column + columns)


OPERATIONS = {"alloc": _allocate, "commit": _commit, "ld": _load, "st": _store, "mma": _multiply}
