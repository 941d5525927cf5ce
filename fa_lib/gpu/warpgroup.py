"""wgmma: Hopper's product of matrices, by four warps together, B (and A) in shared memory. The text: PTX ISA,
"Asynchronous Warpgroup Level Matrix Instructions".

Each warp of a group has 16 rows of A and of the result, so each computes its own part when it comes to the instruction;
a kernel that waits for the product, as it must, sees no difference. The products are summed as a `TensorCore` does.
"""

import re
from functools import cache

import numpy as np
import torch

from fa_lib.gpu.block import Step
from fa_lib.gpu.carriers import bits_of, carried
from fa_lib.gpu.device import GPU
from fa_lib.gpu.lanes import WARP, refuse
from fa_lib.gpu.matrix import WIDTHS, G, T, summed
from fa_lib.gpu.memory import BadAccess
from fa_lib.gpu.operands import Addresses, source, targets, whole
from fa_lib.gpu.shared_matrices import Descriptor, places, read
from fa_lib.gpu.syntax import BITS, Instruction, Operand, Register, Vector, parts

WARPS = 4  # of a group
ROWS = 16  # of a warp
RESULTS = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
WHOLE = ("s8", "u8")  # types of whole numbers, whose sums are exact
KNOWN = {"wgmma", "mma_async", "sync", "aligned"}


def numbers(bits: np.ndarray, kind: str) -> np.ndarray:
    """Convert the bits of factors, of any shape, to float64 of that shape."""
    if kind in WHOLE:
        return bits.view(np.int8 if kind == "s8" else np.uint8).astype(np.float64)
    if kind in ("e4m3", "e5m2"):
        dtype = torch.float8_e4m3fn if kind == "e4m3" else torch.float8_e5m2
        return torch.from_numpy(bits).view(dtype).to(torch.float64).numpy()
    if kind == "tf32":  # the hardware leaves out what is below its 10 bits
        return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    return carried(bits if kind == "bf16" else bits.view(np.float16), kind)


def multiply(instruction: Instruction, names: Addresses, gpu: GPU) -> Step:
    """Make the step of wgmma.

    Raises:
        ValueError: it is not modelled.
    """
    words = instruction.words
    if words[1] != "mma_async":
        return lambda warp, mask: None  # fence, commit_group, wait_group: the product is there already
    shape = next((word for word in words if re.fullmatch(r"m64n\d+k\d+", word)), "")
    if not shape or {*words} - KNOWN - {shape, *instruction.types} or len(instruction.types) != 3:
        raise refuse(instruction, "its kind of matrices is not modelled")
    gives, a_kind, b_kind = instruction.types
    n, k = (int(x) for x in re.findall(r"\d+", shape)[1:])
    if a_kind != b_kind or a_kind not in WIDTHS or gives not in (("s32",) if a_kind in WHOLE else ("f32", "f16")):
        raise refuse(instruction, "factors of these types are not modelled")
    try:
        core = gpu.core(a_kind, gives, "wgmma") if a_kind not in WHOLE else None
    except ValueError as error:
        raise refuse(instruction, str(error)) from None
    d, a, b, keeps, *immediates = instruction.operands
    scales = [whole(each, instruction) for each in immediates]
    into, in_registers = _registers(d, instruction), isinstance(a, Vector)
    a_in = _registers(a, instruction) if in_registers else ()
    a_of = source(a, "b64", instruction, names) if not in_registers else None
    b_of, keeps_of = source(b, "b64", instruction, names), source(keeps, "pred", instruction, names)
    signs, turned = scales[:2] or [1, 1], scales[2:]  # turned: whether a matrix in shared memory lies row-major
    b_turned = bool(turned[-1]) if turned else False
    a_turned = bool(turned[0]) if len(turned) == 2 else False
    size = WIDTHS[a_kind] // 8

    def where(bits, rows, is_turned):
        try:
            return places(Descriptor.of(int(bits)), rows, k, size, not is_turned)
        except ValueError as error:
            raise BadAccess(0, str(error)) from None

    def step(warp, mask):
        shared = warp.block.memory.shared
        if a_of is None:
            A = numbers(_left(warp.bits_of_all(a_in), k, size), a_kind)
        else:
            own = slice(ROWS * (warp.index % WARPS), ROWS * (warp.index % WARPS) + ROWS)
            A = numbers(read(shared, where(a_of(warp)[0], WARPS * ROWS, a_turned)[own], size), a_kind)
        B = numbers(read(shared, where(b_of(warp)[0], n, b_turned), size), b_kind)  # (n, k)
        C = _result_of(warp.bits_of_all(into), gives) if keeps_of(warp)[0] else np.zeros((ROWS, n))
        A = A * signs[0] if signs[0] != 1 else A
        B = B * signs[1] if signs[1] != 1 else B
        D = A @ B.T + C if core is None else summed(core, A, np.ascontiguousarray(B.T), C)
        warp.write_all(into, _registers_of(D, gives))

    return step


def _registers(operand: Operand, instruction: Instruction) -> tuple[Register, ...]:
    """The registers of {a, b, ...}, of 32 bits each."""
    registers = tuple(each for each in targets(operand, instruction) if each is not None and BITS[each.type] == 32)
    if len(registers) != len(parts(operand)):
        raise refuse(instruction, "accepted are registers of 32 bits")
    return registers


def _left(registers: np.ndarray, k: int, size: int) -> np.ndarray:
    """Assemble A (16, k) from registers (count, 32), as the bits of its elements: as `matrix.Product` does."""
    return registers.reshape(-1).view(f"uint{8 * size}")[_left_places(k, size)]


@cache
def _left_places(k: int, size: int) -> np.ndarray:
    """Where the elements of A (16, k) are among those of the registers, one register after the other."""
    per = 4 // size
    at = np.arange(k * ROWS).reshape(-1, WARP, per)  # (registers, lanes, elements of one)
    A = np.zeros((ROWS, k), np.int64)
    for r, places_of in enumerate(at):
        A[(G + 8 * (r % 2))[:, None], (per * T + 4 * per * (r // 2))[:, None] + np.arange(per)] = places_of
    return A


def _result_of(registers: np.ndarray, kind: str) -> np.ndarray:
    """Assemble C (16, n), float64, from registers (count, 32): of eight columns, each lane has two neighbours in row g,
    then two in row g + 8."""
    stacked = np.ascontiguousarray(registers.T)  # (32, count)
    values = stacked.view(RESULTS[kind]).astype(np.float64)  # (32, n / 2)
    return values.reshape(8, 4, -1, 2, 2).transpose(3, 0, 2, 1, 4).reshape(ROWS, -1)


def _registers_of(D: np.ndarray, kind: str) -> np.ndarray:
    """Split the result (16, n) into registers (count, 32), the reverse of `_result_of`."""
    if kind == "s32":
        bits = D.astype(np.int64).astype(np.uint32)  # a sum beyond 32 bits wraps round
    else:
        bits = bits_of(D.reshape(-1), kind).view(f"uint{BITS[kind]}")
    lanes = bits.reshape(2, 8, -1, 4, 2).transpose(1, 3, 2, 0, 4).reshape(WARP, -1)  # (32, n / 2)
    return np.ascontiguousarray(np.ascontiguousarray(lanes).view(np.uint32).T)
