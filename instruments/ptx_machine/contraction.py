"""Products that ptxas joins with a sum: in PTX a mul and an add, in the GPU's code one FMA, with one rounding.

PTX allows it where neither says how it is rounded. ptxas does it where the product goes into one sum alone, in FP32,
FP16 and BF16; tests/gpu counts the FMAs of its code. An approximate quotient a / b is a product too, of a and 1 / b:
ptxas joins it likewise, to what is called `div_add` here. Where b is a constant it multiplies by 1 / b, rounded to
nearest. An H100 gave these bits (docs/gpu/recorded.md).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ptx_machine.lanes import SIGNS
from ptx_machine.operands import constant
from ptx_machine.special_unit import LARGEST, SMALLEST
from ptx_machine.syntax import Address, Entry, Immediate, Instruction, Negated, Operand, Register, Symbol, parts

QUOTIENT = {"approx", "full"}  # a word of a div that is a product for ptxas


def contracted(entry: Entry) -> Entry:
    """Replace such products and sums of a kernel by fma.rn or div_add, and remove the instructions of the products."""
    entry = _by_constants(entry)
    count = Counter(register for instruction in entry.instructions for register in registers_of(instruction))
    starts = _starts(entry)
    products: dict[Register, int] = {}  # of this basic block, where their product stands
    joined: dict[int, Instruction] = {}
    removed: set[int] = set()
    for at, instruction in enumerate(entry.instructions):
        if at in starts or instruction.name in ("bra", "brx", "ret", "exit", "call"):
            products = {}
        if _loose(instruction, "add", "sub"):
            product = next((x for x in instruction.operands[1:] if x in products), None)
            if isinstance(product, Register):
                where = products[product]
                joined[at] = _fused(entry.instructions[where], instruction, product)
                removed.add(where)
        results = {*_items(instruction.operands[0])} if instruction.operands else set()
        products = {
            result: where for result, where in products.items()
            if not results & {result, *entry.instructions[where].operands[1:]}
        }  # fmt: skip
        if _loose(instruction, "mul", "div"):
            products |= {result: at for result in results if count[result] == 2}  # here, and where it is used
    places = [at for at in range(len(entry.instructions)) if at not in removed]
    labels = {name: bisect_left(places, old) for name, old in entry.labels.items()}
    return replace(entry, instructions=tuple(joined.get(at, entry.instructions[at]) for at in places), labels=labels)


def _starts(entry: Entry) -> set[int]:
    """The instructions that something branches to; a label that is only there for a debugger is none."""
    branched = {each.operands[0].name for each in entry.instructions
                if each.name == "bra" and isinstance(each.operands[0], Symbol)}  # fmt: skip
    listed = {name for labels in entry.tables.values() for name in labels}
    return {at for name, at in entry.labels.items() if name in branched | listed}


def _by_constants(entry: Entry) -> Entry:
    """Replace quotients by a constant by products."""
    written = Counter(result for each in entry.instructions if each.operands for result in _items(each.operands[0]))
    moved = (each.operands for each in entry.instructions if each.name == "mov" and len(each.operands) == 2)
    constants = {a: b for a, b in moved if isinstance(a, Register) and isinstance(b, Immediate) and written[a] == 1}

    def changed(instruction: Instruction) -> Instruction:
        if not _loose(instruction, "div"):
            return instruction
        result, a, b = instruction.operands
        b = constants.get(b, b) if isinstance(b, Register) else b
        value = float(constant(b, "f32")[0]) if isinstance(b, Immediate) else 0.0
        if not SMALLEST <= abs(value) <= LARGEST:
            return instruction
        words = tuple(word for word in ("mul", *instruction.words[1:]) if word not in QUOTIENT)
        reciprocal = Immediate(int(np.float32(1 / value).view(np.uint32)), "f32")
        return replace(instruction, words=words, operands=(result, a, reciprocal))

    return replace(entry, instructions=tuple(map(changed, entry.instructions)))


def _loose(instruction: Instruction, *names: str) -> bool:
    """Whether an instruction is one of some names, and PTX leaves its rounding to ptxas."""
    if instruction.name not in names or instruction.guard is not None:
        return False
    kind, *others = sorted({*instruction.words[1:]} - {"ftz"}, key=lambda word: word not in SIGNS)
    if instruction.name == "div":
        return kind == "f32" and len(others) == 1 and {*others} <= QUOTIENT
    return kind in SIGNS and not others


def _fused(product: Instruction, total: Instruction, result: Register) -> Instruction:
    a, b = product.operands[1:]
    first, second = total.operands[1:]
    c = second if first == result else first
    if total.name == "sub":
        kind = total.types[-1]
        a, c = (a, _minus(c, kind)) if first == result else (_minus(a, kind), c)
    words = ("div_add", *product.words[1:]) if product.name == "div" else ("fma", "rn", *total.words[1:])
    return replace(total, words=words, operands=(total.operands[0], a, b, c))


def _minus(operand: Operand, kind: str) -> Operand:
    if isinstance(operand, Immediate):
        return Immediate(operand.value ^ (1 << 63 if operand.type == "f64" else SIGNS[kind]), operand.type)
    if not isinstance(operand, Register):
        raise ValueError(f"got {operand} for a number of {kind}")
    return Negated(operand)


def registers_of(instruction: Instruction) -> Iterator[Register]:
    """Yield the registers that an instruction reads and writes; one that it names twice comes twice."""
    if instruction.guard is not None:
        yield instruction.guard[0]
    for operand in instruction.operands:
        yield from _items(operand)


def _items(operand: Operand) -> Iterator[Register]:
    for part in parts(operand):
        if isinstance(part, Register):
            yield part
        elif isinstance(part, Negated):
            yield part.register
        elif isinstance(part, Address):
            for item in (part.base, *part.coordinates):
                yield from _items(item)
