"""Whole numbers and bits: the meaning of each instruction of PTX. The text: PTX ISA, "Integer Arithmetic
Instructions", "Logic and Shift Instructions"."""

from collections.abc import Callable

import numpy as np

from ptx_machine.lanes import DTYPES, WARP, Lanes, Lanewise, Meaning, refuse
from ptx_machine.syntax import BITS, Instruction

WIDER = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}


def _alike(count: int, run: Callable[..., Lanes]) -> Meaning:
    """Make the meaning of an instruction of `count` operands, with a result of their type."""

    def meaning(instruction: Instruction) -> Lanewise:
        (kind,) = instruction.types
        if "sat" in instruction.words:
            raise refuse(instruction, "saturated whole numbers are not modelled")
        return Lanewise((kind,) * count, kind, run)

    return meaning


def _high(a: Lanes, b: Lanes) -> Lanes:
    """Compute the upper half of a product."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{'int' if a.dtype.kind == 'i' else 'uint'}64")
        return (a.astype(wide) * b.astype(wide) >> bits).astype(a.dtype)
    products = [int(x) * int(y) >> 64 for x, y in np.broadcast(a, b)]
    return np.array([product % (1 << 64) for product in products], np.uint64).view(a.dtype)


def multiply(instruction: Instruction) -> Lanewise:
    """Make mul and mad; lo, hi, wide."""
    (kind,), words = instruction.types, instruction.words
    gives = WIDER[kind] if "wide" in words else kind

    def product(a: Lanes, b: Lanes) -> Lanes:
        return _high(a, b) if "hi" in words else a.astype(DTYPES[gives]) * b.astype(DTYPES[gives])

    if "lo" not in words and "hi" not in words and "wide" not in words:
        raise refuse(instruction, "accepted are lo, hi and wide")
    if instruction.name == "mul":
        return Lanewise((kind, kind), gives, product)
    return Lanewise((kind, kind, gives), gives, lambda a, b, c: product(a, b) + c)


def _divide(a: Lanes, b: Lanes) -> Lanes:
    """Divide toward zero. By zero: all bits set (PTX leaves it open; 32 bits are so on an H100). The lowest number by
    -1: itself."""
    safe = np.where(b == 0, a.dtype.type(1), b)
    q = a // safe
    q = q + ((q * safe != a) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, ~a.dtype.type(0), q)


def _remainder(a: Lanes, b: Lanes) -> Lanes:
    return np.where(b == 0, ~a.dtype.type(0), a - _divide(a, b) * b).astype(a.dtype)


def _shift(instruction: Instruction) -> Lanewise:
    """Make shl and shr; shifted by the width or more, no bit is left."""
    (kind,), left = instruction.types, instruction.name == "shl"
    bits = BITS[kind]

    def run(a, n):
        count = np.minimum(n, bits - 1).astype(a.dtype)
        shifted = a << count if left else a >> count
        empty = a.dtype.type(0) if left or a.dtype.kind == "u" else a >> a.dtype.type(bits - 1)
        return np.where(n >= bits, empty, shifted).astype(a.dtype)

    return Lanewise((kind, "u32"), kind, run)


def _field(pos: Lanes, length: Lanes, bits: int) -> tuple[Lanes, Lanes]:
    """Return position and length of a field as u64: their lower 8 bits, limited to the width of the number."""
    p, n = (np.minimum(x.astype(np.uint64) & np.uint64(255), np.uint64(bits)) for x in (pos, length))
    return p, np.minimum(n, np.uint64(bits) - p)


def _ones(n: Lanes) -> Lanes:
    """Make a u64 with its n lowest bits set."""
    all_set = np.uint64(0xFFFFFFFFFFFFFFFF)
    return np.where(n == 0, np.uint64(0), all_set >> (np.uint64(64) - np.maximum(n, np.uint64(1))))


def _extract(instruction: Instruction) -> Lanewise:
    """Make bfe, which extracts a field of bits; a signed field is extended by its highest bit."""
    (kind,) = instruction.types
    bits, signed = BITS[kind], kind[0] == "s"

    def run(a, pos, length):
        x = a.astype(np.uint64) & np.uint64((1 << bits) - 1)
        width = length.astype(np.uint64) & np.uint64(255)
        p, n = _field(pos, length, bits)
        out = np.where(n == 0, np.uint64(0), x >> np.minimum(p, np.uint64(63))) & _ones(n)
        if signed:
            top = np.minimum((pos.astype(np.uint64) & np.uint64(255)) + width - np.uint64(1), np.uint64(bits - 1))
            sign = (x >> np.where(width == 0, np.uint64(0), top)) & np.uint64(1)
            out = np.where((width > 0) & (sign == 1), out | ~_ones(n), out)
        return out.astype(f"uint{bits}").view(a.dtype)

    return Lanewise((kind, "u32", "u32"), kind, run)


def _insert(instruction: Instruction) -> Lanewise:
    """Make bfi, which inserts a's lower bits into b."""
    (kind,) = instruction.types
    bits = BITS[kind]

    def run(a, b, pos, length):
        p, n = _field(pos, length, bits)
        p = np.minimum(p, np.uint64(63))
        mask = _ones(n) << p
        return ((b.astype(np.uint64) & ~mask) | ((a.astype(np.uint64) << p) & mask)).astype(f"uint{bits}")

    return Lanewise((kind, kind, "u32", "u32"), kind, run)


def _permute(instruction: Instruction) -> Lanewise:
    """Make prmt: it selects four bytes of eight by number; with the number's fourth bit set, it repeats that byte's
    sign."""
    if instruction.words != ("prmt", "b32"):
        raise refuse(instruction, "of prmt's modes only the one without a name is modelled")

    def run(a, b, selectors):
        x = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
        out = np.zeros(WARP, np.uint32)
        for i in range(4):
            nibble = (selectors >> np.uint32(4 * i)) & np.uint32(15)
            byte = (x >> (np.uint64(8) * (nibble & np.uint32(7)).astype(np.uint64))).astype(np.uint32) & np.uint32(255)
            byte = np.where(nibble & np.uint32(8), np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0)), byte)
            out = out | (byte << np.uint32(8 * i))
        return out

    return Lanewise(("b32",) * 3, "b32", run)


def _table(instruction: Instruction) -> Lanewise:
    """Make lop3: any function of three bits, by its table."""
    if instruction.words != ("lop3", "b32"):
        raise refuse(instruction, "lop3 with a predicate is not modelled")

    def run(a, b, c, table):
        out = np.zeros(WARP, np.uint32)
        for row in range(8):
            row_bits = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
            out = out | np.where((table >> np.uint32(row)) & np.uint32(1), row_bits, np.uint32(0))
        return out

    return Lanewise(("b32",) * 4, "b32", run)


def _funnel(instruction: Instruction) -> Lanewise:
    """Make shf: it shifts b:a, 64 bits, left and returns the upper half, or right and returns the lower half."""
    left, wrap = "l" in instruction.words, "wrap" in instruction.words

    def run(a, b, n):
        n = (n & np.uint32(31) if wrap else np.minimum(n, np.uint32(32))).astype(np.uint64)
        x = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
        return (x << n >> np.uint64(32) if left else x >> n).astype(np.uint32)

    return Lanewise(("b32", "b32", "u32"), "b32", run)


def _count(instruction: Instruction) -> Lanewise:
    """Make popc, clz, bfind and brev."""
    kind, name = instruction.types[0], instruction.name
    bits = BITS[kind]

    def digits(a):
        """Return the bits of each value, the highest first: (32, bits)."""
        return (a.reshape(-1, 1).astype(np.uint64) >> np.arange(bits - 1, -1, -1, dtype=np.uint64)) & np.uint64(1)

    def run(a):
        if name == "popc":
            return np.bitwise_count(a).astype(np.uint32)
        if name == "brev":
            return (digits(a) << np.arange(bits, dtype=np.uint64)).sum(1).astype(f"uint{bits}")
        x = np.where(a < 0, ~a, a) if kind[0] == "s" else a
        zeros = np.where((digits(x) == 1).any(1), digits(x).argmax(1), bits).astype(np.uint32)
        if name == "clz":
            return zeros
        place = zeros if "shiftamt" in instruction.words else np.uint32(bits - 1) - zeros
        return np.where(zeros == bits, np.uint32(0xFFFFFFFF), place).astype(np.uint32)

    return Lanewise((kind,), kind if name == "brev" else "u32", run)


def _four_bytes(instruction: Instruction) -> Lanewise:
    """Make dp4a: c plus the products of four pairs of bytes."""
    first, second = instruction.types
    gives = "u32" if (first, second) == ("u32", "u32") else "s32"

    def run(a, b, c):
        for place in (0, 8, 16, 24):
            x, y = (z << 24 - place >> 24 for z in (a, b))  # a byte, extended by its sign if it has one
            c = c + x.view(c.dtype) * y.view(c.dtype)
        return c

    return Lanewise((first, second, gives), gives, run)


INTEGERS: dict[str, Meaning] = {
    "add": _alike(2, np.add), "sub": _alike(2, np.subtract), "mul": multiply, "mad": multiply,
    "div": _alike(2, _divide), "rem": _alike(2, _remainder), "min": _alike(2, np.minimum), "max": _alike(2, np.maximum),
    "neg": _alike(1, np.negative), "abs": _alike(1, np.abs), "not": _alike(1, np.invert),
    "sad": _alike(3, lambda a, b, c: c + np.where(a > b, a - b, b - a)),  # c + |a - b|
    "and": _alike(2, np.bitwise_and), "or": _alike(2, np.bitwise_or), "xor": _alike(2, np.bitwise_xor),
    "shl": _shift, "shr": _shift, "shf": _funnel, "bfe": _extract, "bfi": _insert, "prmt": _permute, "lop3": _table,
    "popc": _count, "clz": _count, "bfind": _count, "brev": _count, "dp4a": _four_bytes,
}  # fmt: skip
