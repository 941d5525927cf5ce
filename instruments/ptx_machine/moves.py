"""mov, ld, st, cp.async, ldmatrix and their like: values from registers and memory to others. The text: PTX ISA, "Data
Movement and Conversion Instructions".

A copy by cp.async is done at once: a kernel that waits for it, as it must, sees no difference. Races knows if it waits.
"""

from functools import reduce

import numpy as np

from ptx_machine.lanes import DTYPES, WARP, Lanewise, Meanings, refuse
from ptx_machine.memory import LOCAL, PARAMETERS, SHARED, WINDOW
from ptx_machine.operands import Addresses, address, into_shared, source, sources, targets, whole
from ptx_machine.syntax import BITS, Instruction, Operand, Register, parts
from ptx_machine.warp import Step

SPACES = ("param", "global", "shared", "local", "const")
HINTS = (  # of caches, order and visibility: a machine that executes in order ignores them
    "volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys", "cluster", "nc", "ca", "cg",
    "cs", "lu", "cv", "wb", "wt", "L1", "L2", "unified", "async", "to",
)  # fmt: skip


def space_of(instruction: Instruction) -> str:
    """Return the space of memory that an instruction names, or "generic"."""
    spaces = [word.split("::")[0] for word in instruction.words if word.split("::")[0] in SPACES]
    return spaces[0] if spaces else "generic"


def check_hints(instruction: Instruction, *known: str) -> None:
    """Check that all words of an instruction are hints, spaces, types, or of `known`.

    Raises:
        ValueError: a word is not.
    """
    for word in instruction.words[1:]:
        plain = word.split("::")[0]
        if plain not in (*HINTS, *SPACES, *known, *BITS) and not word.startswith(("L1::", "L2::")):
            raise refuse(instruction, f"{word} is not modelled")


def move(instruction: Instruction) -> tuple[Lanewise, ...]:
    """Make mov: of a register, a constant or an address; it also packs and unpacks vectors."""
    kind, (into, of) = instruction.types[-1], map(parts, instruction.operands)
    if len(into) == len(of) == 1:
        return (Lanewise((kind,), kind, lambda x: x),)
    width = BITS[kind] // max(len(into), len(of))
    full, part = f"b{BITS[kind]}", f"b{width}"
    if len(into) == 1:

        def packed(*values):
            return reduce(np.bitwise_or, (x.astype(DTYPES[full]) << width * i for i, x in enumerate(values)))

        return (Lanewise((part,) * len(of), full, packed),)

    def unpacked(i):
        return lambda x: (x >> width * i).astype(DTYPES[part])

    return tuple(Lanewise((full,), part, unpacked(i)) for i in range(len(into)))


def to_generic(instruction: Instruction) -> Lanewise:
    """Make cvta: between addresses of a space and generic ones."""
    base = {"shared": SHARED, "local": LOCAL, "param": PARAMETERS}.get(space_of(instruction), 0)
    if instruction.types[-1] != "u64":
        raise refuse(instruction, "addresses of 64 bits are modelled")
    if "to" in instruction.words:
        return Lanewise(("u64",), "u64", lambda x: x - base)
    return Lanewise(("u64",), "u64", lambda x: x + base)


def in_space(instruction: Instruction) -> Lanewise:
    """Make isspacep: whether a generic address lies in a space."""

    def inside(base):
        return lambda x: (x >= base) & (x < base + WINDOW)

    shared, local = inside(SHARED), inside(LOCAL)
    outside = lambda x: ~(shared(x) | local(x))  # noqa: E731
    return Lanewise(("u64",), "pred", {"shared": shared, "local": local}.get(space_of(instruction), outside))


def load(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of ld."""
    check_hints(instruction, "v2", "v4", "v8")
    kind, space = instruction.types[-1], space_of(instruction)
    into = targets(instruction.operands[0], instruction)
    at = address(instruction.operands[1], instruction, names)
    size = BITS[kind] // 8

    def step(warp, mask):
        data = warp.block.memory.load(space, at(warp), size * len(into), mask, warp.local)
        warp.write_each(into, data.view(DTYPES[kind]).T, mask)

    return step


def store(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of st."""
    check_hints(instruction, "v2", "v4", "v8")
    kind, space = instruction.types[-1], space_of(instruction)
    at = address(instruction.operands[0], instruction, names)
    values = sources(instruction.operands[1], kind, instruction, names)

    def step(warp, mask):
        data = np.stack([np.ascontiguousarray(value(warp)) for value in values], 1)
        warp.block.memory.store(space, at(warp), data.view(np.uint8), mask, warp.local)

    return step


WAITS = ("commit_group", "wait_group", "wait_all")  # of cp.async


def bytes_read(instruction: Instruction) -> Operand:
    """Return the operand of cp.async that has the number of bytes to read; None: all are read.

    Raises:
        ValueError: a predicate says it, which is not modelled.
    """
    behind = instruction.operands[3:]
    more = [x for x in behind if not (isinstance(x, Register) and x.type == "b64")]  # that is a cache policy
    if more and isinstance(more[0], Register) and more[0].type == "pred":
        raise refuse(instruction, "a predicate that ignores the source is not modelled")
    return more[0] if more else None


def copy(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of cp.async, from global to shared memory; zeros follow where it reads less than it writes."""
    words, operands = instruction.words, instruction.operands
    if words[2] in WAITS:
        return _wait(words[2], whole(operands[0], instruction) if words[2] == "wait_group" else None)
    if words[2] not in ("ca", "cg"):
        raise refuse(instruction, "of cp.async only copies of a thread are modelled, not bulk ones")
    to, of = (address(operand, instruction, names) for operand in operands[:2])
    size = whole(operands[2], instruction)
    count_of = bytes_read(instruction)
    byte_count = source(count_of, "u32", instruction, names) if count_of is not None else None

    def step(warp, mask):
        memory, values = warp.block.memory, np.zeros((WARP, size), np.uint8)
        count = np.full(WARP, size) if byte_count is None else np.minimum(byte_count(warp), size)
        for length in np.unique(count[mask]):
            lanes = mask & (count == length)
            if length == size:
                values[lanes] = memory.load("global", of(warp), size, lanes, warp.local)[lanes]
            else:
                for i in range(int(length)):
                    byte = memory.load("global", of(warp) + np.uint64(i), 1, lanes, warp.local)
                    values[lanes, i] = byte[lanes, 0]
        if (races := memory.shared.races) is not None:
            races.copying = True
        memory.store("shared", into_shared(to(warp)), values, mask, warp.local)
        if races is not None:
            races.copying = False

    return step


def _wait(word: str, left: int | None) -> Step:
    def step(warp, mask):
        if (races := warp.block.memory.shared.races) is not None:
            races.closes(mask) if word == "commit_group" else races.waits(mask, left)

    return step


def matrices(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of ldmatrix and stmatrix: one, two or four matrices of 8 x 8 in 16 bits. The first lanes have the
    addresses of the rows; each lane gets two neighbours of a row, or, transposed, of a column."""
    words = instruction.words
    check_hints(instruction, "sync", "aligned", "x1", "x2", "x4", "trans", "m8n8")
    count = next(int(word[1]) for word in words if word in ("x1", "x2", "x4"))
    transposed, loads = "trans" in words, instruction.name == "ldmatrix"
    place, registers = instruction.operands[:: 1 if not loads else -1]
    at = address(place, instruction, names)
    if loads:
        into = targets(registers, instruction)
    else:
        values = sources(registers, "b32", instruction, names)

    lanes = np.arange(WARP) < 8 * count

    def rows(warp):
        return np.where(lanes, into_shared(at(warp)), np.uint64(0))

    def load_step(warp, mask):
        data = warp.block.memory.load("shared", rows(warp), 16, lanes, warp.local)[: 8 * count]
        halves = data.view(np.uint16).reshape(count, 8, 8)
        halves = halves.transpose(0, 2, 1) if transposed else halves
        warp.write_each(into, np.ascontiguousarray(halves).reshape(count, WARP, 2).view(np.uint32)[..., 0], mask)

    def store_step(warp, mask):
        halves = np.stack([value(warp) for value in values])[..., None].view(np.uint16).reshape(count, 8, 8)
        halves = np.ascontiguousarray(halves.transpose(0, 2, 1) if transposed else halves)
        out = np.zeros((WARP, 16), np.uint8)
        out[: 8 * count] = halves.reshape(8 * count, 8).view(np.uint8)
        warp.block.memory.store("shared", rows(warp), out, lanes, warp.local)

    return load_step if loads else store_step


def nothing(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of fences, prefetches and others without effect in a machine that executes in order."""
    return lambda warp, mask: None


REGISTER_MOVES: dict[str, Meanings] = {"mov": move, "cvta": to_generic, "isspacep": in_space}
MOVES = {
    "ld": load, "ldu": load, "st": store, "cp": copy, "ldmatrix": matrices, "stmatrix": matrices,
    **dict.fromkeys(("membar", "fence", "prefetch", "prefetchu", "discard", "applypriority", "createpolicy",
                     "griddepcontrol", "setmaxnreg"), nothing),
}  # fmt: skip
