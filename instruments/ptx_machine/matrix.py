"""mma.sync: how a warp's registers hold matrices, and the product. The text: PTX ISA, "Warp Level Matrix
Multiply-Accumulate Instructions", the figures of fragments.

Lane t of group g (t = lane % 4, g = lane // 4) holds, in register r, neighbours along the sum: of A in row
g + 8 (r % 2), of B in column g. How neighbours lie depends on how many a register holds.
"""

import re
from collections.abc import Callable

import numpy as np
import torch

from fa_lib.numerics import sum_loops
from fa_lib.numerics.tensor_cores import TensorCore
from ptx_machine.device import GPU
from ptx_machine.float64_carrier import bits_of, carried
from ptx_machine.lanes import WARP, Lanes, refuse
from ptx_machine.syntax import BITS, Instruction

SHAPES = {  # (M, N, K) by the bits of an element
    8: ((16, 8, 16), (16, 8, 32)),
    16: ((16, 8, 8), (16, 8, 16)),
    32: ((16, 8, 4), (16, 8, 8)),
}
WIDTHS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}
WHOLE = ("s8", "u8")  # types of whole numbers, whose sums are exact
RESULTS = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
T, G = np.arange(WARP) % 4, np.arange(WARP) // 4
ALLOWED = {"mma", "sync", "aligned", "row", "col", "satfinite", "kind::f8f6f4"}


def numbers(bits: np.ndarray, kind: str) -> np.ndarray:
    """Convert the bits of factors, of any shape, to float64 of that shape."""
    if kind in WHOLE:
        return bits.view(np.int8 if kind == "s8" else np.uint8).astype(np.float64)
    if kind == "tf32":  # the hardware leaves out what is below its 10 bits
        return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    return carried(bits.view(np.float16) if kind == "f16" else bits, kind)


def summed(core: TensorCore, A: np.ndarray, B: np.ndarray, C: np.ndarray) -> np.ndarray:
    """Compute C + A B, float64 (m, n), as a matrix unit sums, of float64 A (m, k), B (k, n), C (m, n)."""
    if A.shape[1] <= core.block and not core.two_level and np.isfinite(A.sum() + B.sum() + C.sum()):
        D = np.empty(C.shape)
        rule = core.inputs.emin, core.block, core.F, 0
        sum_loops.chained(A, B, C, D, rule, core.result.grid, core.to_nearest)
        return D
    return core.matmul(*(torch.from_numpy(np.ascontiguousarray(x)) for x in (A, B, C))).numpy()


class Product:
    """The product of one mma.sync instruction.

    Attributes:
        shape: (M, N, K). a, b: types of the factors.
        registers: numbers of registers of 32 bits that a lane has of D, A, B and C.
        gives, takes: types of the result, and of the matrix that the product is added to.

    Raises:
        ValueError: the instruction is not modelled on this GPU.
    """

    def __init__(self, instruction: Instruction, gpu: GPU):
        words = instruction.words
        shape = next((word for word in words if re.fullmatch(r"m\d+n\d+k\d+", word)), "")
        m, n, k = (int(x) for x in re.findall(r"\d+", shape)) if shape else (0, 0, 0)
        self.shape, self.gpu, self.saturated = (m, n, k), gpu, "satfinite" in words
        types = instruction.types
        if len(types) != 4 or {*words} - ALLOWED - {shape, *types}:
            raise refuse(instruction, "its kind of matrices is not modelled")
        self.gives, self.a, self.b, self.takes = types
        if self.a not in WIDTHS or self.b not in WIDTHS or self.shape not in SHAPES[WIDTHS[self.a]]:
            raise refuse(instruction, "matrices of that type and shape are not modelled")
        self.whole, (m, n, k) = self.a in WHOLE, self.shape
        elements = (m * n, self.gives), (m * k, self.a), (k * n, self.b), (m * n, self.takes)
        self.registers = tuple(count * BITS[kind] // (32 * WARP) for count, kind in elements)
        if self.whole != (self.gives == "s32") or self.gives != self.takes:
            raise refuse(instruction, "accepted is a result of the type that it is added to")
        if not self.whole:
            if self.a != self.b:
                raise refuse(instruction, "factors of two types are not modelled")
            try:
                self.core = gpu.core(self.a, self.gives)
            except ValueError as error:
                raise refuse(instruction, str(error)) from None

    def __call__(self, a: list[Lanes], b: list[Lanes], c: list[Lanes]) -> np.ndarray:
        """Compute the registers of the result, (count, 32), from those of A, B and C, (32,) each; all are bits."""
        m, n, k = self.shape
        A, B = assembled(a, self.a, (m, k), left), assembled(b, self.b, (k, n), right)
        C = from_result(np.stack(c), self.takes)
        if self.whole:
            D = A @ B + C  # exact
            return to_result(np.clip(D, -(1 << 31), (1 << 31) - 1) if self.saturated else D, self.gives)
        return to_result(summed(self.core, A, B, C), self.gives)


def left(r: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (32, 1) and columns (32, count) in A of the elements that register r holds, `count` in a lane."""
    return (G + 8 * (r % 2))[:, None], (count * T + 4 * count * (r // 2))[:, None] + np.arange(count)


def right(r: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (32, count) and columns (32, 1) in B of the elements that register r holds."""
    return (count * T + 4 * count * r)[:, None] + np.arange(count), G[:, None]


def assembled(registers: list[Lanes], kind: str, shape: tuple[int, int], places: Callable) -> np.ndarray:
    """Assemble a factor, float64, from its registers; places: `left` or `right`."""
    bits = np.stack(registers)[..., None]
    X = np.zeros(shape)
    for r, values in enumerate(numbers(bits.view(f"uint{WIDTHS[kind]}"), kind)):  # (32, elements of a register)
        X[places(r, values.shape[1])] = values
    return X


def from_result(registers: np.ndarray, kind: str) -> np.ndarray:
    """Assemble C (16, n), float64, from the bits of its registers, (count, 32): of eight columns, each lane has two
    neighbours in row g, then two in row g + 8."""
    values = np.ascontiguousarray(registers.T).view(RESULTS[kind]).astype(np.float64)  # (32, n / 2)
    return values.reshape(8, 4, -1, 2, 2).transpose(3, 0, 2, 1, 4).reshape(16, -1)


def to_result(D: np.ndarray, kind: str) -> np.ndarray:
    """Split the result (16, n) into the bits of its registers, (count, 32), the reverse of `from_result`."""
    if kind == "s32":
        bits = D.astype(np.int64).astype(np.uint32)  # a sum beyond 32 bits wraps round
    else:
        bits = bits_of(D.reshape(-1), kind).view(f"uint{BITS[kind]}")
    lanes = bits.reshape(2, 8, -1, 4, 2).transpose(1, 3, 2, 0, 4).reshape(WARP, -1)  # (32, n / 2)
    return np.ascontiguousarray(np.ascontiguousarray(lanes).view(np.uint32).T)
