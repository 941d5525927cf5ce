"""Shadows of Hopper's products of matrices in shared memory, and of the copies by tensor maps that bring and fetch
them."""

from collections.abc import Callable

import numpy as np

from ptx_machine.matrix import G, T, left
from ptx_machine.operands import Addresses
from ptx_machine.shadow import values
from ptx_machine.shadow.policy import Policy, line_of
from ptx_machine.shadow.values import Memories
from ptx_machine.shared_matrices import read
from ptx_machine.syntax import Instruction
from ptx_machine.warpgroup import ROWS, Product


def multiply(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Make the rule of wgmma in FP16 and BF16: the product of the shadows, and the error of the GPU's sum.

    Raises:
        ValueError: its factors or its result are of other types.
    """
    if instruction.words[1] != "mma_async":
        return None
    product = Product(instruction, names)
    if product.kind not in ("f16", "bf16") or product.gives != "f32":
        raise ValueError(f"{instruction}: its numbers have no shadows; accepted is wgmma of 16 bits in FP32")
    line, what = line_of(instruction), f"wgmma.{product.kind}"
    rows, columns = (np.stack(each)[:, None] for each in zip(*(_of_result(i) for i in range(len(product.into)))))

    def begin(warp, mask):
        memory = memories.of_block(warp.block, "shared", warp)
        (A, B), C = product.factors(warp), product.before(warp)

        def in_memory(at):  # shadows (variants, *at.shape), NaN where there is none; None
            bits = read(warp.block.memory.shared, at, 2)
            found = memory.get(at.reshape(-1), bits.reshape(-1), 16)
            return None if found is None else found[1][:, 0].reshape(-1, *at.shape)

        shadow_A = _known(A, _of_left(warp, product) if product.left else in_memory(product.left_places(warp)),
                          product.signs[0])  # fmt: skip
        shadow_B = _known(B, in_memory(product.right_places(warp)), product.signs[1])
        olds = [values.of(warp, register, "word") if product.keeps(warp) else None for register in product.into]
        shadow_C = _known(C, _sums(olds, rows, columns, C.shape), 1)
        with np.errstate(all="ignore"):
            exact = C + A @ B.T
            shadows = shadow_C + shadow_A @ shadow_B.swapaxes(-1, -2)  # (variants or 1, 16, n)

        def end():
            actual = np.stack([values.numbers(warp, register, "word", "f32") for register in product.into])
            result = policy.result(line, what, actual, exact[rows, columns], shadows[:, rows, columns], mask)
            if result is not None:
                for i, register in enumerate(product.into):
                    values.put(warp, register, "word", result[:, i], mask)

        return end

    return begin


def _known(numbers: np.ndarray, shadows: np.ndarray | None, sign: int) -> np.ndarray:
    """Return shadows (variants or 1, *shape), which are the numbers where there is none."""
    if shadows is None:
        return numbers[None]
    return np.where(np.isnan(shadows), numbers, sign * shadows)


def _of_left(warp, product: Product) -> np.ndarray | None:
    """Return the shadows of A (variants, 16, k) in registers, NaN where there is none; None: there are none."""
    known = [values.of(warp, register, "pair") for register in product.left]
    if (count := _variants(known)) == 0:
        return None
    full = np.full((count, ROWS, product.k), np.nan)
    for r, shadows in enumerate(known):
        if shadows is not None:
            rows, columns = left(r, 2)
            full[:, rows.T, columns.T] = shadows
    return full


def _of_result(i: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns, (32,) each, of the numbers that register i of the result has."""
    return G + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * T + i % 2


def _sums(olds: list, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> np.ndarray | None:
    """Assemble the shadows of registers, (variants, 1, 32) or None each, to (variants, *shape); None: no one has
    any."""
    if (count := _variants(olds)) == 0:
        return None
    full = np.full((count, *shape), np.nan)
    for i, shadows in enumerate(olds):
        if shadows is not None:
            full[:, rows[i, 0], columns[i, 0]] = shadows[:, 0]
    return full


def _variants(shadows: list[np.ndarray | None]) -> int:
    """The number of variants of registers' shadows; 0: no register has any."""
    return max((len(each) for each in shadows if each is not None), default=0)


def refused(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Refuse what carries numbers without shadows: Blackwell's tensor memory and pairs of FP32, copies by tensor maps.

    Raises:
        ValueError: always, but for words that move nothing.
    """
    if instruction.name == "tcgen05" and instruction.words[1] not in ("mma", "ld", "st"):
        return None
    raise ValueError(f"{instruction}: its numbers have no shadows; accepted are kernels without it: choose another GPU")
