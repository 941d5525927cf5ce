"""Shadows of sums: matrix products of mma.sync, and atomic additions to memory."""

import re
from collections.abc import Callable

import numpy as np

from ptx_machine.atomics import ATOMIC
from ptx_machine.float64_carrier import carried
from ptx_machine.lanes import WARP, Lanes
from ptx_machine.matrix import G, T, left, right
from ptx_machine.memory import SHARED, gather
from ptx_machine.moves import space_of
from ptx_machine.operands import Addresses, address, parts, source, targets
from ptx_machine.shadow import values
from ptx_machine.shadow.policy import Policy, line_of
from ptx_machine.shadow.transfers import places
from ptx_machine.shadow.values import Memories
from ptx_machine.syntax import Instruction, Register

FACTORS = {"f16": "pair", "bf16": "pair", "tf32": "word", "f32": "word"}  # how a register holds them


def multiply(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Make the rule of mma.sync in FP16, BF16 and TF32: the product of the shadows, and the error of the GPU's sum."""
    types = instruction.types
    if len(types) != 4 or types[1] not in FACTORS:
        return None
    gives, factor, _, takes = types
    line, what = line_of(instruction), f"mma.{factor}"
    shape = next(word for word in instruction.words if re.fullmatch(r"m\d+n\d+k\d+", word))
    m, n, k = map(int, re.findall(r"\d+", shape))
    into = targets(instruction.operands[0], instruction)
    a, b, c = (parts(operand) for operand in instruction.operands[1:4])
    per = values.PARTS[FACTORS[factor]]
    of_a, of_b, sums = [left(r, per) for r in range(len(a))], [right(r, per) for r in range(len(b))], _of_result(gives)
    held = "pair" if gives == "f16" else "word"

    def matrix(warp, registers, kind, type_name, at, shape):
        """Assemble (numbers of a matrix, its shadows (variants, rows, columns))."""
        actual = np.zeros(shape)
        read = [_numbers(warp, register, kind, type_name, instruction, names) for register in registers]
        count = max(len(shadows) for _, shadows in read)
        full = np.zeros((count, *shape))
        for (x, shadows), (rows, columns) in zip(read, at):
            actual[rows.T, columns.T], full[:, rows.T, columns.T] = x, shadows
        return actual, full

    def begin(warp, mask):
        A, shadow_A = matrix(warp, a, FACTORS[factor], factor, of_a, (m, k))
        B, shadow_B = matrix(warp, b, FACTORS[factor], factor, of_b, (k, n))
        C, shadow_C = matrix(warp, c, held, takes, sums, (m, n))
        with np.errstate(all="ignore"):
            exact, shadows = C + A @ B, shadow_C + shadow_A @ shadow_B  # (m, n), (variants or 1, m, n)

        def end():
            rows, columns = (np.stack([x.T for x in each]) for each in zip(*sums))  # (registers, 1 or parts, 32)
            pick = lambda x: x[..., rows, columns]  # noqa: E731
            given = {i: register for i, register in enumerate(into) if register is not None}
            actual = np.stack([values.numbers(warp, register, held, gives) for register in given.values()])
            chosen, chosen_shadows = (pick(x)[..., [*given], :, :] for x in (exact, shadows))
            result = policy.result(line, what, actual, chosen, chosen_shadows, mask)
            if result is not None:
                for place, register in enumerate(given.values()):
                    values.put(warp, register, held, result[:, place], mask)

        return end

    return begin


def _numbers(warp, operand, kind: str, type_name: str, instruction: Instruction, names: Addresses):
    """Return an operand's numbers (parts, 32) and their shadows (variants or 1, parts, 32)."""
    if not isinstance(operand, Register):
        bits = source(operand, "b32", instruction, names)(warp)
        x = carried(bits.view(np.float32), "f32")[None] if kind == "word" else np.zeros((2, WARP))
        return x, x[None]
    if type_name == "tf32":
        x = (warp.bits(operand) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)[None]
    else:
        x = values.numbers(warp, operand, kind, type_name)
    shadows = values.of(warp, operand, kind)
    return x, x[None] if shadows is None else np.where(np.isnan(shadows), x, shadows)


def _of_result(gives: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return rows (32, 1) and columns (32, parts) in C and D of each register's numbers."""
    if gives == "f16":
        return [left(r, 2) for r in (0, 1)]
    return [((G + 8 * (r // 2))[:, None], (2 * T + r % 2)[:, None]) for r in range(4)]


def add_to_memory(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Make the rule of red.add and atom.add of FP32: one lane after the other."""
    words = instruction.words
    if instruction.types[-1:] != ("f32",) or next((w for w in words[1:] if w in ATOMIC), "") != "add":
        return None
    place, operand = instruction.operands[-2:]
    at, registers = address(place, instruction, names), parts(operand)
    space, line = space_of(instruction), line_of(instruction)

    def begin(warp, mask):
        starts, each = at(warp), []
        for i, register in enumerate(registers):
            x, shadows = _numbers(warp, register, "word", "f32", instruction, names)
            for memory, first, lanes in places(warp, memories, space, starts, 4 * len(registers), mask):
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
