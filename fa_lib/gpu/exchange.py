"""Instructions by which the threads of a warp see one another's values: shfl, vote, match, redux, movmatrix, mma.
The text: PTX ISA, "Warp-wide" instructions under data movement, parallel synchronization and matrices."""

from functools import reduce

import numpy as np

from fa_lib.gpu.block import Step, Warp
from fa_lib.gpu.device import GPU
from fa_lib.gpu.lanes import DTYPES, WARP, Lanes, refuse
from fa_lib.gpu.matrix import Product
from fa_lib.gpu.memory import BadAccess
from fa_lib.gpu.operands import Addresses, both, source, sources, targets
from fa_lib.gpu.syntax import Instruction, Operand

LANE = np.arange(WARP)


def lanes_of(mask: Lanes) -> Lanes:
    """Of 32 bits, the same in every lane that takes part, the lanes that are set."""
    return (mask.astype(np.uint64) >> LANE.astype(np.uint64)) & np.uint64(1) == 1


def as_bits(mask: Lanes) -> np.uint32:
    return np.uint32((mask.astype(np.uint64) << LANE.astype(np.uint64)).sum())


def shuffle(instruction: Instruction, names: Addresses) -> Step:
    """shfl: each lane has the value of another one, in segments of the warp; p says whether that lane is of its own."""
    mode = instruction.words[2]
    into, into_p = both(instruction.operands[0], instruction)
    value, by, clamp = (source(each, "u32", instruction, names) for each in instruction.operands[1:4])

    def step(warp, mask):
        b, c = by(warp).astype(np.int64) & 31, clamp(warp).astype(np.int64)
        segment, limit = c >> 8 & 31, c & 31
        low = LANE & segment
        high = low | (limit & ~segment)
        other = {"up": LANE - b, "down": LANE + b, "bfly": LANE ^ b, "idx": low | (b & ~segment)}[mode]
        inside = other >= high if mode == "up" else other <= high
        other = np.where(inside, other, LANE)
        absent = mask & ~mask[other]
        if absent.any():
            lane = int(absent.argmax())
            raise BadAccess(lane, f"it reads lane {other[lane]}, which takes no part")
        warp.write(into, value(warp)[other], mask)
        if into_p is not None:
            warp.write(into_p, inside, mask)

    if mode not in ("up", "down", "bfly", "idx"):
        raise refuse(instruction, f"{mode} is not modelled")
    return step


def vote(instruction: Instruction, names: Addresses) -> Step:
    mode = instruction.words[2]
    (into,) = targets(instruction.operands[0], instruction)
    value = source(instruction.operands[1], "pred", instruction, names)

    def step(warp, mask):
        x = value(warp) & mask
        found = {
            "all": x[mask].all(), "any": x.any(), "uni": x[mask].all() or not x.any(), "ballot": as_bits(x),
        }[mode]  # fmt: skip
        warp.write(into, np.full(WARP, found), mask)

    return step


def match(instruction: Instruction, names: Addresses) -> Step:
    """match: the lanes that have the same value; `all`: all lanes, if they all have it, else none."""
    mode, kind = instruction.words[1], instruction.types[-1]
    into, into_p = both(instruction.operands[0], instruction)
    value = source(instruction.operands[1], kind, instruction, names)

    def step(warp, mask):
        x = value(warp)
        same = np.array([as_bits(mask & (x == each)) for each in x], np.uint32)
        if mode == "all":
            everyone = bool((x[mask] == x[mask][0]).all())
            same = np.full(WARP, as_bits(mask) if everyone else 0, np.uint32)
            if into_p is not None:
                warp.write(into_p, np.full(WARP, everyone), mask)
        warp.write(into, same, mask)

    return step


def reduction(instruction: Instruction, names: Addresses) -> Step:
    """redux: of whole numbers, the same result in every lane."""
    operation, (kind,) = instruction.words[2], instruction.types
    whole = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
             "xor": np.bitwise_xor}  # fmt: skip
    if operation not in whole or kind[0] == "f":
        raise refuse(instruction, "that operation is not modelled")
    (into,) = targets(instruction.operands[0], instruction)
    value = source(instruction.operands[1], kind, instruction, names)

    def step(warp, mask):
        x = value(warp)[mask]
        warp.write(into, np.full(WARP, reduce(whole[operation], x[1:], x[0]), DTYPES[kind]), mask)

    return step


def active(instruction: Instruction, names: Addresses) -> Step:
    """activemask: the lanes that execute it together."""
    (into,) = targets(instruction.operands[0], instruction)

    def step(warp, mask):
        warp.write(into, np.full(WARP, as_bits(mask)), mask)

    return step


def elect(instruction: Instruction, names: Addresses) -> Step:
    """elect: one lane of those that take part, the first."""
    into, into_p = both(instruction.operands[0], instruction)

    def step(warp, mask):
        leader = int(mask.argmax())
        if into is not None:
            warp.write(into, np.full(WARP, leader, np.uint32), mask)
        warp.write(into_p, leader == LANE, mask)

    return step


def transpose(instruction: Instruction, names: Addresses) -> Step:
    """movmatrix: of a matrix of 8 x 8 in 16 bits."""
    (into,) = targets(instruction.operands[0], instruction)
    value = source(instruction.operands[1], "b32", instruction, names)

    def step(warp, mask):
        halves = np.ascontiguousarray(value(warp))[:, None].view(np.uint16).reshape(8, 8)
        warp.write(into, np.ascontiguousarray(halves.T).reshape(WARP, 2).view(np.uint32)[:, 0], mask)

    return step


def multiply(instruction: Instruction, names: Addresses, gpu: GPU) -> Step:
    product = Product(instruction, gpu)
    into = targets(instruction.operands[0], instruction)
    a, b, c = (sources(each, "b32", instruction, names) for each in instruction.operands[1:4])

    def step(warp, mask):
        results = product(*([np.ascontiguousarray(each(warp)) for each in of] for of in (a, b, c)))
        for register, bits in zip(into, results):
            if register is not None:
                warp.write(register, bits, mask)

    return step


def members(instruction: Instruction, names: Addresses):
    """The lanes that an instruction is for, together: by its last operand, or all; None: whoever comes."""
    name, words = instruction.name, instruction.words
    of_a_warp = words[:2] == ("bar", "warp")
    if "sync" not in words or (name in ("bar", "barrier", "mbarrier", "cp") and not of_a_warp):
        return None
    if "aligned" in words or name in ("mma", "ldmatrix", "stmatrix", "movmatrix"):
        return lambda warp: np.ones(WARP, bool)
    operand: Operand = instruction.operands[-1]
    mask = source(operand, "u32", instruction, names)

    def named(warp: Warp) -> Lanes:
        free = warp.alive & ~warp.blocked
        return lanes_of(np.full(WARP, mask(warp)[int(free.argmax())]))

    return named


EXCHANGES = {
    "shfl": shuffle, "vote": vote, "match": match, "redux": reduction, "activemask": active, "elect": elect,
    "movmatrix": transpose,
}  # fmt: skip
