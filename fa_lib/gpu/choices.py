"""Comparisons and choices: setp, set, selp, slct. The text: PTX ISA, "Comparison and Selection Instructions"."""

import numpy as np

from fa_lib.gpu.carriers import PAIRS, carried
from fa_lib.gpu.floats import halves, joined
from fa_lib.gpu.lanes import DTYPES, FLOATS, Lanes, Lanewise, Meaning, refuse
from fa_lib.gpu.syntax import Instruction

COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
UNORDERED = {f"{name}u": name for name in ("eq", "ne", "lt", "le", "gt", "ge")}  # true where one is no number
COMBINED = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def compared(instruction: Instruction, kind: str):
    """The function of two operands of a type that says whether they compare so."""
    word = instruction.words[1]
    ftz = "ftz" in instruction.words
    if kind not in FLOATS:
        if word not in COMPARISONS:
            raise refuse(instruction, f"{word} does not compare whole numbers")
        return COMPARISONS[word]
    if word not in COMPARISONS and word not in UNORDERED and word not in ("num", "nan"):
        raise refuse(instruction, f"{word} does not compare floats")

    def run(a, b):
        x, y = (z if kind == "f64" else carried(z, kind, ftz) for z in (a, b))
        nan = np.isnan(x) | np.isnan(y)
        if word in ("num", "nan"):
            return nan == (word == "nan")
        if word in UNORDERED:
            return COMPARISONS[UNORDERED[word]](x, y) | nan
        return COMPARISONS[word](x, y) & ~nan

    return run


def combination(instruction: Instruction):
    """How a third operand, a predicate, joins in; None: there is none."""
    return next((COMBINED[word] for word in instruction.words[2:] if word in COMBINED), None)


def set_predicate(instruction: Instruction) -> tuple[Lanewise, Lanewise]:
    """setp's two results: of p|q the first, and the second, which has the opposite comparison."""
    kind = instruction.types[0]
    if kind in PAIRS:
        raise refuse(instruction, "packed pairs are not modelled")
    compare, combine = compared(instruction, kind), combination(instruction)
    takes = (kind, kind) if combine is None else (kind, kind, "pred")

    def result(opposite):
        def run(a, b, c=None):
            found = compare(a, b) != opposite
            return found if combine is None else combine(found, c)

        return Lanewise(takes, "pred", run)

    return result(False), result(True)


def set_number(instruction: Instruction) -> Lanewise:
    """set: all bits, or 1.0, where it is true; else 0."""
    gives, kind = instruction.types
    single = PAIRS.get(kind, kind)
    compare, combine = compared(instruction, single), combination(instruction)
    takes = (kind, kind) if combine is None else (kind, kind, "pred")
    one = PAIRS.get(gives, gives)
    true = {"f32": np.float32(1), "f16": np.float16(1), "bf16": np.uint16(0x3F80)}.get(one)
    dtype = DTYPES[one]
    true = dtype.type(-1) if dtype.kind == "i" else np.array(-1).astype(dtype)[()] if true is None else true

    def run(a, b, c=None):
        found = [compare(x, y) for x, y in zip(halves(a, kind), halves(b, kind))]
        if combine is not None:
            found = [combine(each, c) for each in found]
        return joined([np.where(each, true, np.zeros((), dtype)) for each in found])

    if (kind in PAIRS) and gives in ("u32", "s32", "b32"):
        raise refuse(instruction, "pairs that become whole numbers are not modelled")
    return Lanewise(takes, gives, run)


def select(instruction: Instruction) -> Lanewise:
    (kind,) = instruction.types
    return Lanewise((kind, kind, "pred"), kind, lambda a, b, p: np.where(p, a, b))


def select_by_sign(instruction: Instruction) -> Lanewise:
    """slct: the first where the third is 0 or more; of -0 too, and not of NaN."""
    gives, kind = instruction.types
    return Lanewise((gives, gives, kind), gives, lambda a, b, c: np.where(c >= 0, a, b))


def copy_sign(instruction: Instruction) -> Lanewise:
    """The second operand's size with the first's sign."""
    (kind,) = instruction.types

    def run(a: Lanes, b: Lanes) -> Lanes:
        return np.copysign(b, a)

    return Lanewise((kind, kind), kind, run)


CHOICES: dict[str, Meaning] = {
    "set": set_number, "selp": select, "slct": select_by_sign, "copysign": copy_sign,
}  # fmt: skip
