"""Shadows of sums: products of matrices, and atomic additions to memory."""

import re
from collections.abc import Callable, Sequence

import numpy as np

from ptx_machine.atomics import ATOMIC
from ptx_machine.lanes import WARP, Lanes
from ptx_machine.matrix import G, T, left, right
from ptx_machine.memory import SHARED, gather
from ptx_machine.moves import space_of
from ptx_machine.operands import Addresses, address, parts, targets
from ptx_machine.shadow import values
from ptx_machine.shadow.policy import Line, Policy
from ptx_machine.shadow.rules import KINDS, operand_of
from ptx_machine.shadow.transfers import places
from ptx_machine.shadow.values import Memories
from ptx_machine.shared_matrices import read
from ptx_machine.syntax import Instruction, Operand
from ptx_machine.warpgroup import ROWS, Product

IN_REGISTERS = {"f16": "f16x2", "bf16": "bf16x2", "tf32": "tf32", "f32": "f32"}  # how a register holds numbers


def multiply(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Make the rule of mma.sync in FP16, BF16 and TF32."""
    types = instruction.types
    if len(types) != 4 or types[1] not in IN_REGISTERS:
        return None
    gives, factor, _, takes = types
    shape = next(word for word in instruction.words if re.fullmatch(r"m\d+n\d+k\d+", word))
    m, n, k = map(int, re.findall(r"\d+", shape))
    a, b, c = (parts(operand) for operand in instruction.operands[1:4])
    per = 1 if factor == "tf32" else 2
    A = _in_registers(a, factor, [left(r, per) for r in range(len(a))], (m, k), instruction, names)
    B = _in_registers(b, factor, [right(r, per) for r in range(len(b))], (k, n), instruction, names)
    C = _in_registers(c, takes, _cells(gives, len(c)), (m, n), instruction, names)
    return _product(instruction, policy, f"mma.{factor}", gives, lambda warp: (A(warp), B(warp), C(warp)))


def multiply_shared(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Make the rule of wgmma in FP16 and BF16.

    Raises:
        ValueError: its factors or its result are of other types.
    """
    if instruction.words[1] != "mma_async":
        return None
    product = Product(instruction, names)
    if product.kind not in ("f16", "bf16") or product.gives != "f32":
        raise ValueError(f"{instruction}: its numbers have no shadows; accepted is wgmma of 16 bits in FP32")
    cells, shape = [left(r, 2) for r in range(len(product.left))], (ROWS, product.k)
    rows_of_a = _in_registers(product.left, product.kind, cells, shape, instruction, names)
    cells = _cells("f32", len(product.into))
    sums = _in_registers(product.into, "f32", cells, (ROWS, product.n), instruction, names)

    def operands(warp):
        (A, B), C = product.factors(warp), product.before(warp)
        memory, shared = memories.of_block(warp.block, "shared", warp), warp.block.memory.shared

        def shadows_of(X, at, sign):  # of a matrix at addresses (rows, k) in shared memory
            found = memory.get(at.reshape(-1), read(shared, at, 2).reshape(-1), 16)
            shadows = np.nan if found is None else sign * found[1][:, 0].reshape(-1, *at.shape)
            return np.where(np.isnan(shadows), X[None], shadows)

        if product.left:
            shadow_A = product.signs[0] * rows_of_a(warp)[1]
        else:
            shadow_A = shadows_of(A, product.left_places(warp), product.signs[0])
        shadow_B = shadows_of(B, product.right_places(warp), product.signs[1]).swapaxes(-1, -2)
        return (A, shadow_A), (B.T, shadow_B), sums(warp) if product.keeps(warp) else (C, C[None])

    return _product(instruction, policy, f"wgmma.{product.kind}", product.gives, operands)


def _product(instruction: Instruction, policy: Policy, what: str, gives: str, operands: Callable) -> Callable:
    """Make the rule of a product: the product of the shadows, and the error of the GPU's sum. operands: a function of a
    warp that gives A, B and C, each as of `_in_registers`."""
    line, kind = Line(instruction.frames), IN_REGISTERS[gives]
    held = KINDS[kind]
    into = targets(instruction.operands[0], instruction)
    given = [(register, cells) for register, cells in zip(into, _cells(gives, len(into))) if register is not None]
    rows, columns = (np.stack([cells[i].T for _, cells in given]) for i in (0, 1))  # (registers, 1 or parts, 32)

    def begin(warp, mask):
        (A, shadow_A), (B, shadow_B), (C, shadow_C) = operands(warp)
        with np.errstate(all="ignore"):
            exact, shadows = C + A @ B, shadow_C + shadow_A @ shadow_B  # (m, n), (variants or 1, m, n)

        def end():
            actual = np.stack([values.numbers(warp.read(register, kind), kind) for register, _ in given])
            result = policy.result(line, what, actual, exact[rows, columns], shadows[:, rows, columns], mask)
            if result is not None:
                for i, (register, _) in enumerate(given):
                    values.put(warp, register, held, result[:, i], mask)

        return end

    return begin


def _in_registers(
    registers: Sequence[Operand], kind: str, cells: list, shape: tuple[int, int], instruction: Instruction,
    names: Addresses,
) -> Callable:  # fmt: skip
    """Return the function of a warp that assembles (numbers of a matrix, their shadows (variants or 1, rows, columns)).
    cells: rows and columns of each register's numbers."""
    reads = [operand_of(register, IN_REGISTERS[kind], instruction, names) for register in registers]

    def assembled(warp):
        found = [of(warp) for of in reads]
        actual, full = np.zeros(shape), np.zeros((max(len(shadows) for _, shadows in found), *shape))
        for (x, shadows), (rows, columns) in zip(found, cells):
            actual[rows.T, columns.T], full[:, rows.T, columns.T] = x, shadows
        return actual, full

    return assembled


def _cells(gives: str, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return rows (32, 1) and columns (32, parts) in C and D of the numbers of each of `count` registers."""
    if gives == "f16":
        return [left(r, 2) for r in range(count)]
    return [((G + 8 * (r // 2 % 2))[:, None], (8 * (r // 4) + 2 * T + r % 2)[:, None]) for r in range(count)]


def add_to_memory(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Make the rule of red.add and atom.add of FP32: one lane after the other."""
    words = instruction.words
    if instruction.types[-1:] != ("f32",) or next((w for w in words[1:] if w in ATOMIC), "") != "add":
        return None
    place, operand = instruction.operands[-2:]
    at, reads = address(place, instruction, names), [operand_of(x, "f32", instruction, names) for x in parts(operand)]
    space, line = space_of(instruction), Line(instruction.frames)

    def begin(warp, mask):
        starts, each = at(warp), []
        for i, of in enumerate(reads):
            x, shadows = of(warp)
            for memory, first, lanes in places(warp, memories, space, starts, 4 * len(reads), mask):
                data = _bytes(warp, space, starts, lanes)
                each += [(memory, data, int(first[lane]) + 4 * i, x[0, lane], shadows[:, 0, lane])
                         for lane in np.flatnonzero(lanes)]  # fmt: skip
        sums: dict[tuple[int, int], np.float32] = {}  # of lanes that came before, by memory and place
        for memory, data, first, x, shadow in each:
            where = np.array([first])
            known = sums.get((id(memory), first))
            before = float(gather(data, where, 4).view(np.float32)[0, 0] if known is None else known)
            after = sums[id(memory), first] = np.float32(np.float32(before) + np.float32(x))
            old = memory.get(where, np.array([before], np.float32).view(np.uint32), 32)
            old_shadow = np.array([before]) if old is None or np.isnan(old[1]).any() else old[1][:, 0, 0]
            exact, total = np.full(WARP, before + x), (old_shadow + shadow)[:, None]
            actual, one = np.full(WARP, float(after)), np.arange(WARP) == 0
            result = policy.result(line, "red.f32", actual, exact, np.broadcast_to(total, (len(total), WARP)), one)
            if result is None:
                result = np.broadcast_to(actual, (policy.variants, WARP))
            memory.put(where, "word", np.array([after]).view(np.uint32), result[:, None, :1])
        return None

    return begin


def _bytes(warp, space: str, starts: Lanes, lanes: Lanes) -> np.ndarray:
    """Return the bytes of the memory that lanes access: of one span."""
    if space == "shared" or int(starts[lanes][0]) >= SHARED:
        return warp.block.memory.shared.data
    return warp.block.memory.outer.of(starts.astype(np.uint64), 4, lanes)[0][0].data


def refused(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Refuse what carries numbers without shadows: Blackwell's tensor memory and pairs of FP32, copies by tensor maps.

    Raises:
        ValueError: always, but for words that move nothing.
    """
    if instruction.name == "tcgen05" and instruction.words[1] not in ("mma", "ld", "st"):
        return None
    raise ValueError(f"{instruction}: its numbers have no shadows; accepted are kernels without it: choose another GPU")
