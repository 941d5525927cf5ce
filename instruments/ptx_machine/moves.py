"""mov, ld, st, cp.async, ldmatrix and their like: values from registers and memory to others. The text: PTX ISA, "Data
Movement and Conversion Instructions".

A copy by cp.async is done at once: a kernel that waits for it, as it must, sees no difference. Races knows if it waits.
"""

import numpy as np

from ptx_machine.lanes import DTYPES, WARP, refuse
from ptx_machine.memory import LOCAL, PARAMETERS, SHARED
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


def move(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of mov: of a register, a constant or an address; it also packs and unpacks vectors."""
    kind = instruction.types[-1]
    to, operand = instruction.operands
    into, count = targets(to, instruction), len(parts(operand))
    values_of = sources(operand, kind if count == 1 else f"b{BITS[kind] // count}", instruction, names)
    dtype = f"uint{BITS[kind] // len(into)}"

    def step(warp, mask):
        values = [value(warp) for value in values_of]
        packed = len(values) > 1 or len(into) > 1
        warp.write_each(into, np.stack(values, 1).view(dtype).T if packed else values, mask)

    return step


def to_generic(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of cvta: between addresses of a space and generic ones.

    Raises:
        ValueError: addresses are not of 64 bits.
    """
    kind, back = instruction.types[-1], "to" in instruction.words
    space = space_of(instruction)
    base = np.uint64({"shared": SHARED, "local": LOCAL, "param": PARAMETERS}.get(space, 0))
    to, operand = instruction.operands
    value, (into,) = source(operand, "u64", instruction, names), targets(to, instruction)
    if kind != "u64":
        raise refuse(instruction, "addresses of 64 bits are modelled")

    def step(warp, mask):
        x = value(warp)
        warp.write(into, x - base if back else x + base, mask)

    return step


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


def in_space(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of isspacep: whether a generic address lies in a space."""
    space = space_of(instruction)
    value = source(instruction.operands[1], "u64", instruction, names)
    (into,) = targets(instruction.operands[0], instruction)
    base = {"shared": SHARED, "local": LOCAL}

    def step(warp, mask):
        x = value(warp)
        window = {name: (x >= np.uint64(start)) & (x < np.uint64(start + (1 << 32))) for name, start in base.items()}
        inside = window[space] if space in window else ~(window["shared"] | window["local"])
        warp.write(into, inside, mask)

    return step


def nothing(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of fences, prefetches and others without effect in a machine that executes in order."""
    return lambda warp, mask: None


MOVES = {
    "mov": move, "cvta": to_generic, "ld": load, "ldu": load, "st": store, "cp": copy, "ldmatrix": matrices,
    "stmatrix": matrices, "isspacep": in_space, "membar": nothing, "fence": nothing,
    "prefetch": nothing, "prefetchu": nothing, "discard": nothing, "applypriority": nothing,
    "createpolicy": nothing,
    "griddepcontrol": nothing, "setmaxnreg": nothing,
}  # fmt: skip
