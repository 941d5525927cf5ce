"""wmma, of `nvcuda::wmma`, as mma.sync, loads and stores. The text: PTX ISA, "Matrix Fragments for wmma".

PTX leaves open which elements of a matrix a lane holds. Here they are those of m16n8k16: on Ampere and later, ptxas
makes two of it of a product 16 x 16 x 16. A matrix of 8 rows is the upper half of a tile.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ptx_machine.special_registers import SPECIAL_REGISTERS
from ptx_machine.syntax import BITS, Address, Immediate, Instruction, Operand, Register, Vector, parts

TILE = "m16n8k16"
SHAPES = ("m16n16k16", "m32n8k16", "m8n32k16")
SIZES = {"f16": 2, "bf16": 2, "f32": 4}
GROUP, PAIR, STRIDE, INDEX = (Register(f"wmma {name}", "b32") for name in ("group", "pair", "stride", "index"))
BASE = Register("wmma base", "b64")
HALVES = Register("wmma half 0", "b16"), Register("wmma half 1", "b16")


def lowered(instruction: Instruction) -> Iterator[Instruction]:
    """Yield the instructions that do what one of wmma does; of another one, or one that is not modelled, itself."""
    words = [word for word in instruction.words[1:] if word not in ("sync", "aligned", "row", "col")]
    shape = next((word for word in words if word in SHAPES), None)
    if shape is None or instruction.name != "wmma" or "satfinite" in words:
        yield instruction
    elif words[0] == "mma":
        yield from _product(instruction, shape, words[2:])
    elif words[-1] in SIZES:
        yield from _moves(instruction, words[1], shape, words[-1])
    else:
        yield instruction


def elements(matrix: str, shape: str, kind: str) -> list[list[tuple[int, int]]]:
    """Return, for each register of a fragment, the rows and columns of its elements that lane 0 has of it.

    Args:
        matrix: "a", "b", "c" or "d". shape: of SHAPES. kind: the type of the elements.
    """
    m, n, _ = _sizes(shape)
    halves, tiles = range(0, min(m, 16), 8), product(range(0, m, 16), range(0, n, 8))
    if matrix == "a":
        return [[(i + h, k), (i + h, k + 1)] for i in range(0, m, 16) for k in (0, 8) for h in halves]
    if matrix == "b":
        return [[(k, j), (k + 1, j)] for j in range(0, n, 8) for k in (0, 8)]
    pairs = [[(i + h, j), (i + h, j + 1)] for i, j in tiles for h in halves]
    return pairs if kind == "f16" else [[each] for pair in pairs for each in pair]


def _sizes(shape: str) -> tuple[int, int, int]:
    m, n, k = map(int, re.findall(r"\d+", shape))
    return m, n, k


def _product(instruction: Instruction, shape: str, kinds: list[str]) -> Iterator[Instruction]:
    """Yield an mma.sync of each tile. Of a matrix of 8 rows the lower half is 0, and goes nowhere."""
    m, n, _ = _sizes(shape)
    factor = kinds[1] if len(kinds) == 4 else "f16"
    words = ("mma", "sync", "aligned", TILE, "row", "col", kinds[0], factor, factor, kinds[-1])
    d, a, b, c = (parts(operand) for operand in instruction.operands)
    tiles = [*product(range(0, m, 16), range(0, n, 8))]
    count, zeros = len(d) // len(tiles), (Immediate(0),) * (len(d) // len(tiles))
    for number, (row, column) in enumerate(tiles):
        own, right = slice(count * number, count * (number + 1)), b[column // 4 : column // 4 + 2]
        if m == 8:
            operands = (*d[own], *[None] * count), (a[0], zeros[0], a[1], zeros[0]), right, (*c[own], *zeros)
        else:
            operands = d[own], a[row // 4 : row // 4 + 4], right, c[own]
        yield replace(instruction, words=words, operands=tuple(map(Vector, operands)))


def _moves(instruction: Instruction, matrix: str, shape: str, kind: str) -> Iterator[Instruction]:
    """Yield the loads or stores of a fragment's elements, and what their addresses are computed by."""

    def do(words: str, *operands: Operand) -> Instruction:
        return replace(instruction, words=(*words.split("."),), operands=operands)

    words, operands, size = instruction.words, instruction.operands, SIZES[kind]
    loads, by_columns = words[1] == "load", "col" in words
    fragment, place = operands[:2] if loads else operands[1::-1]
    assert isinstance(place, Address)
    m, n, k = _sizes(shape)
    rows, columns = {"a": (m, k), "b": (k, n)}.get(matrix, (m, n))
    stride = operands[2] if len(operands) > 2 else Immediate(rows if by_columns else columns)
    space = "".join(f".{word}" for word in words if word.split("::")[0] in ("global", "shared"))
    move = f"{'ld' if loads else 'st'}{space}.b"
    wide = not isinstance(place.base, Register) or BITS[place.base.type] == 64
    yield do("mov.u64" if wide else "cvt.u64.u32", BASE, place.base)
    yield do("mov.b32", STRIDE, stride)
    yield do("mov.u32", PAIR, SPECIAL_REGISTERS["%laneid"])
    yield do("shr.u32", GROUP, PAIR, Immediate(2))
    yield do("and.b32", PAIR, PAIR, Immediate(3))
    yield do("shl.b32", PAIR, PAIR, Immediate(1))
    # of element (r, c) of lane 0, another lane has (r + its group, c + its pair), or of B the reverse
    outer, inner = (GROUP, PAIR) if (matrix == "b") == by_columns else (PAIR, GROUP)
    own = elements(matrix, shape, kind)
    places = [(own[i % len(own)], register) for i, register in enumerate(parts(fragment))]
    majors = sorted({cell[by_columns] for cells in own for cell in cells})
    at = {major: Register(f"wmma at {major}", "b64") for major in majors}
    for major in majors:
        yield do("add.u32", INDEX, outer, Immediate(major))
        yield do("mad.lo.u32", INDEX, INDEX, STRIDE, inner)
        yield do("mad.wide.u32", at[major], INDEX, Immediate(size), BASE)

    def moved(bits: int, value: Operand, cell: tuple[int, int]) -> Instruction:
        address = Address(at[cell[by_columns]], place.offset + size * cell[not by_columns])
        return do(f"{move}{bits}", *((value, address) if loads else (address, value)))

    for cells, register in places:
        if cells[0][by_columns] == cells[-1][by_columns]:  # one number, or neighbours in memory
            yield moved(32, register, cells[0])
        else:
            halves = [moved(16, half, cell) for half, cell in zip(HALVES, cells)]
            pack = do("mov.b32", *((register, Vector(HALVES)) if loads else (Vector(HALVES), register)))
            yield from (*halves, pack) if loads else (pack, *halves)
