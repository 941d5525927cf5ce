"""Shadows on their way: between registers and memory, and from lane to lane."""

from collections.abc import Callable

import numpy as np

from ptx_machine.exchange import partners
from ptx_machine.lanes import WARP, Lanes
from ptx_machine.memory import Shared, Span
from ptx_machine.moves import WAITS, bytes_read, space_of
from ptx_machine.operands import Addresses, address, into_shared, parts, source, targets, whole
from ptx_machine.shadow import values
from ptx_machine.shadow.policy import Policy
from ptx_machine.shadow.rules import found_in, moved
from ptx_machine.shadow.values import Memories, Memory
from ptx_machine.syntax import BITS, Instruction, Register

KINDS = {16: ("half",), 32: ("word", "pair"), 64: ("words", "quad")}  # what registers of so many bits may hold


def places(warp, memories: Memories, space: str, at: Lanes, size: int, mask: Lanes, known: bool = False):
    """Yield, for each memory that lanes access, (its shadows, first bytes (32,), lanes, bool (32,)).

    Args:
        warp: of the lanes. memories: of the run. space: of PTX, or "generic".
        at: uint64 (32,), addresses. size: of an access. mask: bool (32,).
        known: whether memory without shadows is left out, as for loads; else it gets some.
    """
    for _, starts, lanes, memory in warp.block.memory.places(space, at, size, mask, warp.local):
        if isinstance(memory, Span):
            if not known or memory.base in memories.outer:
                yield memories.of_span(memory.base, memory.data.size), starts, lanes
        elif memory != "param":
            inner = "shared" if isinstance(memory, Shared) else "local"
            yield memories.of_block(warp.block, inner, warp), starts, lanes


def load(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Make the rule of ld: of registers of 16, 32 and 64 bits."""
    space, width = space_of(instruction), BITS[instruction.types[-1]]
    if space in ("param", "const") or width not in KINDS:
        return None
    into, at = targets(instruction.operands[0], instruction), address(instruction.operands[1], instruction, names)
    size = width // 8

    def begin(warp, mask):
        starts = at(warp)

        def end():
            for memory, first, lanes in places(warp, memories, space, starts, size * len(into), mask, known=True):
                for i, register in enumerate(into):
                    if register is not None:
                        take(warp, memory, first + np.uint64(size * i), register, width, lanes)

        return end

    return begin


def take(warp, memory: Memory, starts: Lanes, register: Register, width: int, lanes: Lanes) -> None:
    """Give a register that was loaded from starts (32,) the shadows of that memory."""
    bits = warp.bits(register)
    found = memory.get(starts[lanes], bits[lanes], width)
    if found is not None:
        kind, loaded = found
        full = np.full((*loaded.shape[:2], WARP), np.nan)
        full[..., lanes] = loaded
        values.put(warp, register, kind, full, lanes)


def store(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Make the rule of st: of registers of 16, 32 and 64 bits."""
    space, width = space_of(instruction), BITS[instruction.types[-1]]
    if width not in KINDS:
        return None
    at, size = address(instruction.operands[0], instruction, names), width // 8
    registers = parts(instruction.operands[1])

    def begin(warp, mask):
        starts, count = at(warp), len(registers)
        for i, register in enumerate(registers):
            if (found := found_in(register, *KINDS[width])(warp)) is not None:
                kind, shadows = found
                for memory, first, lanes in places(warp, memories, space, starts, size * count, mask):
                    begins = first[lanes] + np.uint64(size * i)
                    memory.put(begins, kind, warp.bits(register)[lanes], shadows[..., lanes])
        return None

    return begin


def copy(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Make the rule of cp.async: pieces of two bytes, of lanes that read as many bytes as they write."""
    if instruction.words[2] in WAITS:
        return None
    to, of = (address(operand, instruction, names) for operand in instruction.operands[:2])
    size, count_of = whole(instruction.operands[2], instruction), bytes_read(instruction)
    count = source(count_of, "u32", instruction, names) if count_of is not None else None
    pieces = np.arange(size // 2)

    def begin(warp, mask):
        mask = mask if count is None else mask & (count(warp) >= size)
        for outer, first, lanes in places(warp, memories, "global", of(warp), size, mask, known=True):
            target = memories.of_block(warp.block, "shared", warp)
            here = first[lanes].astype(np.int64)[:, None] // 2 + pieces
            there = into_shared(to(warp))[lanes].astype(np.int64)[:, None] // 2 + pieces
            for name in ("kinds", "bits", "values"):
                getattr(target, name)[there] = getattr(outer, name)[here]
        return None

    return begin


def matrices(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Make the rule of ldmatrix and stmatrix."""
    words, loads = instruction.words, instruction.name == "ldmatrix"
    count = next(int(word[1]) for word in words if word in ("x1", "x2", "x4"))
    place, registers = instruction.operands[:: 1 if not loads else -1]
    at, items = address(place, instruction, names), parts(registers)

    def begin(warp, mask):
        rows = into_shared(at(warp))[: 8 * count].reshape(count, 8)
        memory = memories.of_block(warp.block, "shared", warp)

        def of_lane(i):  # the first bytes of a lane's two neighbours in matrix i, (32,) each
            line, column = np.arange(WARP) // 4, 2 * (np.arange(WARP) % 4)
            if "trans" in words:
                return [rows[i][column + part] + np.uint64(2) * line.astype(np.uint64) for part in (0, 1)]
            return [rows[i][line] + np.uint64(2) * (column + part).astype(np.uint64) for part in (0, 1)]

        def end():
            for i, register in enumerate(items):
                if not isinstance(register, Register):
                    continue
                bits, places_of = warp.bits(register), of_lane(i)
                if "trans" not in words:  # the two neighbours may be a number of 32 bits
                    found = memory.get(places_of[0], bits, 32)
                else:
                    halves = [bits >> np.uint32(16 * part) & np.uint32(0xFFFF) for part in (0, 1)]
                    found = values.joined([memory.get(*each, 16) for each in zip(places_of, halves)])
                if found is not None:
                    values.put(warp, register, *found, mask)

        if loads:
            return end
        for i, register in enumerate(items):
            if (found := found_in(register, *("pair", "word")[: 1 if "trans" in words else 2])(warp)) is None:
                continue
            (kind, shadows), bits, places_of = found, warp.bits(register), of_lane(i)
            if "trans" not in words:
                memory.put(places_of[0], kind, bits, shadows)
                continue
            for part, first in enumerate(places_of):
                half = (bits >> np.uint32(16 * part) & np.uint32(0xFFFF)).astype(np.uint16)
                memory.put(first, "half", half, shadows[:, part : part + 1])
        return None

    return begin


def shuffle(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Make the rule of shfl: the shadows of another lane."""
    of, register = partners(instruction), instruction.operands[1]
    into, *_ = parts(instruction.operands[0])
    by, clamp = (source(operand, "u32", instruction, names) for operand in instruction.operands[2:4])
    if not isinstance(register, Register) or not isinstance(into, Register):
        return None
    look = found_in(register, *values.PARTS)

    def begin(warp, mask):
        partner, _ = of(by(warp), clamp(warp))
        found = look(warp)
        if found is None:
            return None
        kind, shadows = found
        turned = shadows[..., partner]
        return lambda: values.put(warp, into, kind, turned, mask)

    return begin


def transpose(instruction: Instruction, names: Addresses, policy: Policy, memories: Memories) -> Callable | None:
    """Make the rule of movmatrix."""

    def turned(shadows):  # (variants, 2, 32)
        square = shadows.transpose(0, 2, 1).reshape(-1, 8, 8).transpose(0, 2, 1)
        return square.reshape(-1, WARP, 2).transpose(0, 2, 1)

    return moved(instruction, instruction.operands[1], "pair", by=turned)
