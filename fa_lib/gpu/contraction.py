"""Products that ptxas joins with a sum: in PTX a mul and an add, in the GPU's code one FMA, with one rounding.

PTX allows it where neither says how it is rounded. ptxas does it where the product goes into one sum alone;
tests/gpu counts the FMAs of its code.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from fa_lib.gpu.syntax import Address, Entry, Immediate, Instruction, Negated, Operand, Pair, Register, Vector

SIGN = 0x80000000  # of a float of 32 bits
LOOSE = ({"f32"}, {"ftz", "f32"})  # words behind the name of a mul or an add that may be joined


def contracted(entry: Entry) -> Entry:
    """Replace such products and sums of a kernel by fma.rn.f32, and remove the instructions of the products."""
    count = Counter(register for instruction in entry.instructions for register in registers_of(instruction))
    starts = {*entry.labels.values()}
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
        if _loose(instruction, "mul"):
            products |= {result: at for result in results if count[result] == 2}  # here, and where it is used
    places = [at for at in range(len(entry.instructions)) if at not in removed]
    labels = {name: bisect_left(places, old) for name, old in entry.labels.items()}
    return replace(entry, instructions=tuple(joined.get(at, entry.instructions[at]) for at in places), labels=labels)


def _loose(instruction: Instruction, *names: str) -> bool:
    return instruction.name in names and {*instruction.words[1:]} in LOOSE and instruction.guard is None


def _fused(product: Instruction, total: Instruction, result: Register) -> Instruction:
    a, b = product.operands[1:]
    first, second = total.operands[1:]
    c = second if first == result else first
    if total.name == "sub":
        a, c = (a, _minus(c)) if first == result else (_minus(a), c)
    words = ("fma", "rn", *total.words[1:])
    return replace(total, words=words, operands=(total.operands[0], a, b, c))


def _minus(operand: Operand) -> Operand:
    if isinstance(operand, Immediate):
        return Immediate(operand.value ^ SIGN, operand.type)
    if not isinstance(operand, Register):
        raise ValueError(f"got {operand} for a number of FP32")
    return Negated(operand)


def registers_of(instruction: Instruction) -> Iterator[Register]:
    """Yield the registers that an instruction reads and writes; one that it names twice comes twice."""
    if instruction.guard is not None:
        yield instruction.guard[0]
    for operand in instruction.operands:
        yield from _items(operand)


def _items(operand: Operand) -> Iterator[Register]:
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from _items(item)
    elif isinstance(operand, Pair):
        yield from _items(operand.first)
        yield from _items(operand.second)
    elif isinstance(operand, Negated):
        yield operand.register
    elif isinstance(operand, Address) and isinstance(operand.base, Register):
        yield operand.base
