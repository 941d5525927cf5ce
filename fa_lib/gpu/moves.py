"""mov, ld, st, cp.async, ldmatrix and their like: values from registers and memory to others. The text: PTX ISA, "Data
Movement and Conversion Instructions".

A copy that a kernel begins with cp.async is done at once: a kernel that waits for it as it must sees the same.
"""

import numpy as np

from fa_lib.gpu.block import Step, Warp
from fa_lib.gpu.floats import FLOATS as FLOAT_MEANINGS
from fa_lib.gpu.lanes import DTYPES, WARP, Lanes, raw, refuse
from fa_lib.gpu.memory import LOCAL, SHARED
from fa_lib.gpu.operands import Addresses, address, into_shared, parts, source, sources, targets, whole
from fa_lib.gpu.syntax import BITS, Instruction, Operand, Register, Vector

SPACES = ("param", "global", "shared", "local", "const")
HINTS = (  # of caches, order and visibility: a machine that does one thing after the other has nothing to do for them
    "volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys", "cluster", "nc", "ca", "cg",
    "cs", "lu", "cv", "wb", "wt", "L1", "L2", "unified", "async", "to",
)  # fmt: skip


def space_of(instruction: Instruction) -> str:
    found = [word.split("::")[0] for word in instruction.words if word.split("::")[0] in SPACES]
    return found[0] if found else "generic"


def check_hints(instruction: Instruction, *known: str) -> None:
    for word in instruction.words[1:]:
        plain = word.split("::")[0]
        if plain not in (*HINTS, *SPACES, *known, *BITS) and not word.startswith(("L1::", "L2::")):
            raise refuse(instruction, f"{word} is not modelled")


def move(instruction: Instruction, names: Addresses) -> Step:
    """mov: of a register, a constant, an address; packs and unpacks."""
    kind = instruction.types[-1]
    to, what = instruction.operands
    if isinstance(what, Vector):
        return _pack(instruction, names)
    if isinstance(to, Vector):
        return _unpack(instruction)
    value, (into,) = source(what, kind, instruction, names), targets(to, instruction)

    def step(warp, mask):
        warp.write(into, value(warp), mask)

    return step


def _pack(instruction: Instruction, names: Addresses) -> Step:
    to, what = instruction.operands
    kind, count = instruction.types[-1], len(parts(what))
    part = f"b{BITS[kind] // count}"
    values_of, (into,) = sources(what, part, instruction, names), targets(to, instruction)

    def step(warp, mask):
        values = np.stack([each(warp) for each in values_of], 1)
        warp.write(into, values.view(raw(kind))[:, 0], mask)

    return step


def _unpack(instruction: Instruction) -> Step:
    to, what = instruction.operands
    kind = instruction.types[-1]
    into = targets(to, instruction)
    value = source(what, kind, instruction, {})
    dtype = raw(f"b{BITS[kind] // len(into)}")

    def step(warp, mask):
        values = np.ascontiguousarray(value(warp)).view(raw(kind))[:, None].view(dtype)
        for i, register in enumerate(into):
            if register is not None:
                warp.write(register, np.ascontiguousarray(values[:, i]), mask)

    return step


def to_generic(instruction: Instruction, names: Addresses) -> Step:
    """cvta: between addresses of a space and generic ones."""
    kind, back = instruction.types[-1], "to" in instruction.words
    space = space_of(instruction)
    base = np.uint64({"shared": SHARED, "local": LOCAL}.get(space, 0))
    value, (into,) = (
        source(instruction.operands[1], "u64", instruction, names),
        targets(instruction.operands[0], instruction),
    )
    if kind != "u64":
        raise refuse(instruction, "addresses of 64 bits are modelled")

    def step(warp, mask):
        x = value(warp)
        warp.write(into, x - base if back else x + base, mask)

    return step


def load(instruction: Instruction, names: Addresses) -> Step:
    check_hints(instruction, "v2", "v4", "v8")
    kind, space = instruction.types[-1], space_of(instruction)
    into = targets(instruction.operands[0], instruction)
    at = address(instruction.operands[1], instruction, names)
    size = BITS[kind] // 8

    def step(warp, mask):
        found = warp.block.memory.load(space, at(warp), size * len(into), mask, warp.local)
        values = found.view(DTYPES[kind])
        for i, register in enumerate(into):
            if register is not None:
                warp.write(register, np.ascontiguousarray(values[:, i]), mask)

    return step


def store(instruction: Instruction, names: Addresses) -> Step:
    check_hints(instruction, "v2", "v4", "v8")
    kind, space = instruction.types[-1], space_of(instruction)
    at = address(instruction.operands[0], instruction, names)
    values = sources(instruction.operands[1], kind, instruction, names)

    def step(warp, mask):
        found = np.stack([np.ascontiguousarray(value(warp)) for value in values], 1)
        warp.block.memory.store(space, at(warp), found.view(np.uint8), mask, warp.local)

    return step


WAITS = ("commit_group", "wait_group", "wait_all")  # of cp.async: what is copied is there already


def bytes_read(instruction: Instruction) -> Operand:
    """The operand of cp.async that says how many bytes are read; None: all."""
    behind = instruction.operands[3:]
    more = [each for each in behind if not (isinstance(each, Register) and each.type == "b64")]  # a cache policy
    if more and isinstance(more[0], Register) and more[0].type == "pred":
        raise refuse(instruction, "a predicate that ignores the source is not modelled")
    return more[0] if more else None


def copy(instruction: Instruction, names: Addresses) -> Step:
    """cp.async: from global to shared memory; of fewer bytes than it writes the rest is zeros."""
    words, operands = instruction.words, instruction.operands
    if words[2] in WAITS:
        return lambda warp, mask: None
    if words[2] not in ("ca", "cg"):
        raise refuse(instruction, "of cp.async only copies of a thread are modelled, not bulk ones")
    to, of = (address(operand, instruction, names) for operand in operands[:2])
    size = whole(operands[2], instruction)
    count_of = bytes_read(instruction)
    given = source(count_of, "u32", instruction, names) if count_of is not None else None

    def step(warp, mask):
        memory, values = warp.block.memory, np.zeros((WARP, size), np.uint8)
        count = np.full(WARP, size) if given is None else np.minimum(given(warp), size)
        for each in np.unique(count[mask]):
            lanes = mask & (count == each)
            if each == size:
                values[lanes] = memory.load("global", of(warp), size, lanes, warp.local)[lanes]
            elif each:
                _load_bytes(warp, of(warp), int(each), lanes, values)
        memory.store("shared", into_shared(to(warp)), values, mask, warp.local)

    return step


def _load_bytes(warp: Warp, at: Lanes, count: int, mask: Lanes, values: np.ndarray) -> None:
    for i in range(count):
        values[mask, i] = warp.block.memory.load("global", at + np.uint64(i), 1, mask, warp.local)[mask, 0]


def matrices(instruction: Instruction, names: Addresses) -> Step:
    """ldmatrix and stmatrix: one, two or four matrices of 8 x 8 in 16 bits, whose rows' addresses are in the first
    lanes; a lane has two neighbours of a row, or, transposed, of a column."""
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

    def starts(warp):
        return into_shared(at(warp))[: 8 * count]

    def row_lanes(warp):
        rows = np.zeros(WARP, np.uint64)
        rows[: 8 * count] = starts(warp)
        return rows, np.arange(WARP) < 8 * count

    def load_step(warp, mask):
        rows, lanes = row_lanes(warp)
        found = warp.block.memory.load("shared", rows, 16, lanes, warp.local)[: 8 * count]
        halves = found.view(np.uint16).reshape(count, 8, 8)
        halves = halves.transpose(0, 2, 1) if transposed else halves
        for register, each in zip(into, np.ascontiguousarray(halves).reshape(count, WARP, 2).view(np.uint32)[..., 0]):
            if register is not None:
                warp.write(register, each, mask)

    def store_step(warp, mask):
        rows, lanes = row_lanes(warp)
        halves = np.stack([value(warp) for value in values])[..., None].view(np.uint16).reshape(count, 8, 8)
        halves = np.ascontiguousarray(halves.transpose(0, 2, 1) if transposed else halves)
        out = np.zeros((WARP, 16), np.uint8)
        out[: 8 * count] = halves.reshape(8 * count, 8).view(np.uint8)
        warp.block.memory.store("shared", rows, out, lanes, warp.local)

    return load_step if loads else store_step


ATOMIC = {  # on arrays
    "add": lambda old, x: old + x, "exch": lambda old, x: x, "and": lambda old, x: old & x,
    "or": lambda old, x: old | x, "xor": lambda old, x: old ^ x, "min": np.minimum, "max": np.maximum,
    "inc": lambda old, x: np.where(old >= x, old * 0, old + 1),
    "dec": lambda old, x: np.where((old == 0) | (old > x), x, old - 1),
    "cas": lambda old, x, new: np.where(old == x, new, old),
}  # fmt: skip


def atomic(instruction: Instruction, names: Addresses) -> Step:
    """atom and red: one lane after the other, in their order; at once where no two lanes have one address. Sums in FP32
    flush subnormal numbers in global memory and not in shared memory, as PTX says."""
    words, kind = instruction.words, instruction.types[-1]
    operation = next((word for word in words[1:] if word in ATOMIC), "")
    check_hints(instruction, *ATOMIC, "noftz", "v2", "v4", "v8")
    operands = instruction.operands if instruction.name == "atom" else (None, *instruction.operands)
    into = targets(operands[0], instruction)
    at = address(operands[1], instruction, names)
    values = [sources(each, kind, instruction, names) for each in operands[2:]]
    space, size, count = space_of(instruction), BITS[kind] // 8, len(values[0])
    floating = kind in ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")
    if operation == "" or (floating and operation not in ("add", "exch")):
        raise refuse(instruction, "that operation is not modelled")
    run = ATOMIC[operation]
    if floating and operation == "add":
        ftz = ("ftz",) if kind == "f32" and space == "global" else ()
        run = FLOAT_MEANINGS["add"](Instruction(("add", "rn", *ftz, kind), (), None, instruction.line)).run

    def step(warp, mask):
        memory, starts = warp.block.memory, at(warp)
        given = [[np.ascontiguousarray(each(warp)) for each in operand] for operand in values]
        before = [np.zeros(WARP, DTYPES[kind]) for _ in range(count)]
        lanes = np.flatnonzero(mask)
        alone = len({*starts[lanes].tolist()}) == len(lanes)
        for part in [mask] if alone else [np.arange(WARP) == lane for lane in lanes]:
            with memory.shared.together(starts[part]):
                old = memory.load(space, starts, size * count, part, warp.local).view(DTYPES[kind])  # (32, count)
                new = old.copy()
                for i in range(count):
                    new[:, i] = run(np.ascontiguousarray(old[:, i]), *(operand[i] for operand in given))
                    before[i][part] = old[part, i]
                memory.store(space, starts, new.view(np.uint8), part, warp.local)
        for register, old in zip(into, before):
            if register is not None:
                warp.write(register, old, mask)

    return step


def in_space(instruction: Instruction, names: Addresses) -> Step:
    """isspacep: whether a generic address lies in a space."""
    space = space_of(instruction)
    value = source(instruction.operands[1], "u64", instruction, names)
    (into,) = targets(instruction.operands[0], instruction)
    base = {"shared": SHARED, "local": LOCAL}

    def step(warp, mask):
        x = value(warp)
        window = {name: (x >= np.uint64(start)) & (x < np.uint64(start + (1 << 32))) for name, start in base.items()}
        found = window[space] if space in window else ~(window["shared"] | window["local"])
        warp.write(into, found, mask)

    return step


def nothing(instruction: Instruction, names: Addresses) -> Step:
    """Fences, prefetches, and what else has no effect where one thing is done after the other."""
    return lambda warp, mask: None


MOVES = {
    "mov": move, "cvta": to_generic, "ld": load, "ldu": load, "st": store, "cp": copy, "ldmatrix": matrices,
    "stmatrix": matrices, "atom": atomic, "red": atomic, "isspacep": in_space, "membar": nothing, "fence": nothing,
    "prefetch": nothing, "prefetchu": nothing, "discard": nothing, "applypriority": nothing,
    "createpolicy": nothing,
    "griddepcontrol": nothing,
}  # fmt: skip
