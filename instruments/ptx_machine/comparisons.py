"""Comparisons and selections: setp, set, selp, slct. The text: PTX ISA, "Comparison and Selection Instructions"."""

import numpy as np

from ptx_machine.float64_carrier import PAIRS, numbers
from ptx_machine.floats import halves, joined
from ptx_machine.lanes import DTYPES, FLOATS, Lanewise, Meanings, refuse
from ptx_machine.syntax import Instruction

COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
UNORDERED = {f"{name}u": name for name in ("eq", "ne", "lt", "le", "gt", "ge")}  # true where one is no number
COMBINED = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def compared(instruction: Instruction, kind: str):
    """Make the function of two operands of a type, (32,) each, that compares them: bool (32,).

    Raises:
        ValueError: the type has no such comparison.
    """
    word = instruction.words[1]
    ftz = "ftz" in instruction.words
    if kind not in FLOATS:
        if word not in COMPARISONS:
            raise refuse(instruction, f"{word} does not compare whole numbers")
        return COMPARISONS[word]
    if word not in COMPARISONS and word not in UNORDERED and word not in ("num", "nan"):
        raise refuse(instruction, f"{word} does not compare floats")

    def run(a, b):
        x, y = (numbers(z, kind, ftz) for z in (a, b))
        nan = np.isnan(x) | np.isnan(y)
        if word in ("num", "nan"):
            return nan == (word == "nan")
        if word in UNORDERED:
            return COMPARISONS[UNORDERED[word]](x, y) | nan
        return COMPARISONS[word](x, y) & ~nan

    return run


def combination(instruction: Instruction):
    """Return the function that combines the comparison with a third operand, a predicate; None: there is none."""
    return next((COMBINED[word] for word in instruction.words[2:] if word in COMBINED), None)


def set_predicate(instruction: Instruction) -> tuple[Lanewise, Lanewise]:
    """Make setp's two results: p of p|q, and q, whose comparison is the opposite."""
    kind = instruction.types[0]
    if kind in PAIRS:
        raise refuse(instruction, "packed pairs are not modelled")
    compare, combine = compared(instruction, kind), combination(instruction)
    takes = (kind, kind) if combine is None else (kind, kind, "pred")

    def result(opposite):
        def run(a, b, c=None):
            truth = compare(a, b) != opposite
            return truth if combine is None else combine(truth, c)

        return Lanewise(takes, "pred", run)

    return result(False), result(True)


def set_number(instruction: Instruction) -> Lanewise:
    """Make set: all bits, or 1.0, where the comparison is true; else 0."""
    gives, kind = instruction.types
    single = PAIRS.get(kind, kind)
    compare, combine = compared(instruction, single), combination(instruction)
    takes = (kind, kind) if combine is None else (kind, kind, "pred")
    single_result = PAIRS.get(gives, gives)
    true = {"f32": np.float32(1), "f16": np.float16(1), "bf16": np.uint16(0x3F80)}.get(single_result)
    dtype = DTYPES[single_result]
    true = dtype.type(-1) if dtype.kind == "i" else np.array(-1).astype(dtype)[()] if true is None else true

    def run(a, b, c=None):
        truths = [compare(x, y) for x, y in zip(halves(a, kind), halves(b, kind))]
        if combine is not None:
            truths = [combine(truth, c) for truth in truths]
        return joined([np.where(truth, true, np.zeros((), dtype)) for truth in truths])

    if (kind in PAIRS) and gives in ("u32", "s32", "b32"):
        raise refuse(instruction, "pairs that become whole numbers are not modelled")
    return Lanewise(takes, gives, run)


def select(instruction: Instruction) -> Lanewise:
    """Make selp: the first operand where the predicate is true, else the second."""
    (kind,) = instruction.types
    return Lanewise((kind, kind, "pred"), kind, lambda a, b, p: np.where(p, a, b))


def select_by_sign(instruction: Instruction) -> Lanewise:
    """Make slct: the first operand where the third is 0 or more (-0 too, NaN not), else the second."""
    gives, kind = instruction.types
    return Lanewise((gives, gives, kind), gives, lambda a, b, c: np.where(c >= 0, a, b))


def copy_sign(instruction: Instruction) -> Lanewise:
    """Make copysign: the second operand's magnitude with the first's sign."""
    (kind,) = instruction.types
    return Lanewise((kind, kind), kind, lambda a, b: np.copysign(b, a))


SELECTIONS: dict[str, Meanings] = {
    "setp": set_predicate, "set": set_number, "selp": select, "slct": select_by_sign, "copysign": copy_sign,
}  # fmt: skip
