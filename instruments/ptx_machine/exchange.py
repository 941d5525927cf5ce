"""Instructions by which the threads of a warp see one another's values: shfl, vote, match, redux, movmatrix, mma.
The text: PTX ISA, "Warp-wide" instructions under data movement, parallel synchronization and matrices."""

from collections.abc import Callable
from functools import reduce

import numpy as np

from ptx_machine.device import GPU
from ptx_machine.floats import FLOATS
from ptx_machine.lanes import DTYPES, WARP, Lanes, Lanewise, looked_up, refuse
from ptx_machine.matrix import G, Product, T
from ptx_machine.memory import BadAccess
from ptx_machine.operands import Addresses, both, source, sources, targets
from ptx_machine.syntax import Instruction, Operand
from ptx_machine.warp import Step, Warp

LANE = np.arange(WARP)


def as_bits(mask: Lanes) -> np.uint32:
    """Turn lanes, bool (32,), into 32 bits."""
    return np.uint32((mask.astype(np.uint64) << LANE.astype(np.uint64)).sum())


def partners(instruction: Instruction) -> Callable[[Lanes, Lanes], tuple[Lanes, Lanes]]:
    """Return the function of shfl's last two operands, (32,) each, that gives the lane whose value each lane gets, and
    whether it lies in the lane's segment: a lane keeps its own value where it does not."""
    mode, lane = instruction.words[2], LANE.astype(np.int32)
    if mode not in ("up", "down", "bfly", "idx"):
        raise refuse(instruction, f"{mode} is not modelled")

    def of(b, c):
        b, c = b.astype(np.int32) & 31, c.astype(np.int32)
        segment, limit = c >> 8 & 31, c & 31
        low = lane & segment
        high = low | (limit & ~segment)
        partner = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": low | (b & ~segment)}[mode]
        inside = partner >= high if mode == "up" else partner <= high
        return np.where(inside, partner, lane), inside

    return of


def shuffled(instruction: Instruction) -> tuple[Lanewise, Lanewise]:
    """Make shfl's two results where all lanes take part: another lane's value, and whether there is such a lane."""
    of, takes = partners(instruction), ("u32",) * 3
    return (Lanewise(takes, "u32", lambda x, b, c: looked_up(x, of(b, c)[0])),
            Lanewise(takes, "pred", lambda x, b, c: of(b, c)[1]))  # fmt: skip


def shuffle(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of shfl: each lane gets the value of another one of its segment; p: whether there is one."""
    into, of = both(instruction.operands[0], instruction), partners(instruction)
    value, by, clamp = (source(operand, "u32", instruction, names) for operand in instruction.operands[1:4])

    def step(warp, mask):
        partner, inside = of(by(warp), clamp(warp))
        absent = mask & ~mask[partner]
        if absent.any():
            lane = int(absent.argmax())
            raise BadAccess(lane, f"it reads lane {partner[lane]}, which takes no part")
        warp.write_each(into, (value(warp)[partner], inside), mask)

    return step


def vote(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of vote: all, any, uni, ballot."""
    mode = instruction.words[2]
    (into,) = targets(instruction.operands[0], instruction)
    value = source(instruction.operands[1], "pred", instruction, names)

    def step(warp, mask):
        x = value(warp) & mask
        results = {
            "all": x[mask].all(), "any": x.any(), "uni": x[mask].all() or not x.any(), "ballot": as_bits(x),
        }[mode]  # fmt: skip
        warp.write(into, np.full(WARP, results), mask)

    return step


def match(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of match. any: the lanes with the same value; all: all lanes, if all have one value, else none."""
    mode, kind = instruction.words[1], instruction.types[-1]
    into = both(instruction.operands[0], instruction)
    value = source(instruction.operands[1], kind, instruction, names)

    def step(warp, mask):
        x = value(warp)
        everyone = bool((x[mask] == x[mask][0]).all())
        if mode == "all":
            lanes = np.full(WARP, as_bits(mask) if everyone else 0, np.uint32)
        else:
            lanes = np.array([as_bits(mask & (x == number)) for number in x], np.uint32)
        warp.write_each(into, (lanes, np.full(WARP, everyone)), mask)

    return step


def reduction(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of redux: every lane gets the same result. Of FP32 there are min and max: of a number and NaN the
    number, or with the word NaN it is NaN; +0 > -0."""
    operation, (kind,) = instruction.words[2], instruction.types
    operations = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
             "xor": np.bitwise_xor}  # fmt: skip
    if kind == "f32" and operation in ("min", "max") and "abs" not in instruction.words:
        words = (operation, *instruction.words[3:])
        of_two = FLOATS[operation](Instruction(words, (None,) * 3, None, instruction.line))

        def joined(x: Lanes) -> Lanes:
            return reduce(of_two.run, x[1:, None], x[:1])[0]
    elif operation not in operations or kind[0] == "f":
        raise refuse(instruction, "that operation is not modelled")
    else:

        def joined(x: Lanes) -> Lanes:
            return reduce(operations[operation], x[1:], x[0])

    (into,) = targets(instruction.operands[0], instruction)
    value = source(instruction.operands[1], kind, instruction, names)

    def step(warp, mask):
        warp.write(into, np.full(WARP, joined(value(warp)[mask]), DTYPES[kind]), mask)

    return step


def active(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of activemask: the lanes that execute it together."""
    (into,) = targets(instruction.operands[0], instruction)

    def step(warp, mask):
        warp.write(into, np.full(WARP, as_bits(mask)), mask)

    return step


def elect(instruction: Instruction, names: Addresses) -> Step:
    """Make the step of elect: the first of the lanes that take part."""
    into = both(instruction.operands[0], instruction)

    def step(warp, mask):
        leader = np.uint32(mask.argmax())
        warp.write_each(into, (np.full(WARP, leader), leader == LANE), mask)

    return step


def transpose(instruction: Instruction) -> Lanewise:
    """Make movmatrix, which transposes a matrix of 8 x 8 in 16 bits."""

    def run(x):
        def half(i):  # of column 2 T + i in row G: it comes from row 2 T + i, column G
            return looked_up(x, 4 * (2 * T + i) + G // 2) >> 16 * (G % 2) & 0xFFFF

        return (half(0) | half(1) << 16).astype(np.uint32)

    return Lanewise(("b32",), "b32", run)


def multiply(instruction: Instruction, names: Addresses, gpu: GPU) -> Step:
    """Make the step of mma.sync."""
    product = Product(instruction, gpu)
    into = targets(instruction.operands[0], instruction)
    a, b, c = (sources(operand, "b32", instruction, names) for operand in instruction.operands[1:4])
    got = tuple(map(len, (into, a, b, c)))
    if got != product.registers:
        raise refuse(instruction, f"got {got} registers of D, A, B and C; accepted are {product.registers}")

    def step(warp, mask):
        warp.write_each(into, product(*([value(warp) for value in values] for values in (a, b, c))), mask)

    return step


def members(instruction: Instruction, names: Addresses):
    """Return the function of a warp that gives the lanes which must execute an instruction together, bool (32,): those
    of its last operand, or all. None: it may be executed by any lanes."""
    name, words = instruction.name, instruction.words
    of_a_warp = words[:2] == ("bar", "warp")
    if "sync" not in words or (name in ("bar", "barrier", "mbarrier", "cp") and not of_a_warp):
        return None
    if "aligned" in words or name in ("mma", "ldmatrix", "stmatrix", "movmatrix"):
        return lambda warp: np.ones(WARP, bool)
    operand: Operand = instruction.operands[-1]
    mask = source(operand, "u32", instruction, names)

    def lanes_of_operand(warp: Warp) -> Lanes:
        free = warp.alive & ~warp.blocked
        return int(mask(warp)[int(free.argmax())]) >> LANE & 1 == 1

    return lanes_of_operand


EXCHANGES = {
    "shfl": shuffle, "vote": vote, "match": match, "redux": reduction, "activemask": active, "elect": elect,
}  # fmt: skip
