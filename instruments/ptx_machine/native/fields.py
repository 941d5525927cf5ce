"""Bits of whole numbers on LLVM's lanes: fields, bytes, tables, counts; the same as `ptx_machine.integers`."""

from collections.abc import Callable

from llvmlite import ir

from ptx_machine.native.vectors import I32, I64, Builder, lanes

WIDE, NARROW = lanes(I64), lanes(I32)


def _field(b: Builder, pos: ir.Value, length: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return position and length of a field of 32 bits, limited to them, of the lower 8 bits of both, as 64 bits."""
    p, n = (b.and_(b.zext(x, WIDE), b.all(255, WIDE)) for x in (pos, length))
    p = _least(b, p, b.all(32, WIDE))
    return p, _least(b, n, b.sub(b.all(32, WIDE), p))


def _least(b: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.icmp_unsigned("<", x, y), x, y)


def _ones(b: Builder, n: ir.Value) -> ir.Value:
    """Make a number with its n lowest bits set, n <= 32."""
    return b.sub(b.shl(b.all(1, WIDE), n), b.all(1, WIDE))


def extract(b: Builder, signed: bool, x: ir.Value, pos: ir.Value, length: ir.Value) -> ir.Value:
    """Emit bfe, as `integers._extract`."""
    x = b.zext(x, WIDE)
    p, n = _field(b, pos, length)
    out = b.and_(b.lshr(x, p), _ones(b, n))
    if signed:
        start, width = (b.and_(b.zext(y, WIDE), b.all(255, WIDE)) for y in (pos, length))
        empty = b.icmp_unsigned("==", width, b.all(0, WIDE))
        top = _least(b, b.sub(b.add(start, width), b.all(1, WIDE)), b.all(31, WIDE))
        sign = b.and_(b.lshr(x, b.select(empty, b.all(0, WIDE), top)), b.all(1, WIDE))
        negative = b.and_(b.not_(empty), b.icmp_unsigned("==", sign, b.all(1, WIDE)))
        out = b.select(negative, b.or_(out, b.not_(_ones(b, n))), out)
    return b.trunc(out, NARROW)


def insert(b: Builder, x: ir.Value, y: ir.Value, pos: ir.Value, length: ir.Value) -> ir.Value:
    """Emit bfi: x's lowest bits into y, as `integers._insert`."""
    p, n = _field(b, pos, length)
    mask = b.shl(_ones(b, n), p)
    into = b.and_(b.zext(y, WIDE), b.not_(mask))
    return b.trunc(b.or_(into, b.and_(b.shl(b.zext(x, WIDE), p), mask)), NARROW)


def permute(b: Builder, x: ir.Value, y: ir.Value, selectors: ir.Value) -> ir.Value:
    """Emit prmt, as `integers._permute`."""
    bytes_of_both = b.or_(b.zext(x, WIDE), b.shl(b.zext(y, WIDE), b.all(32, WIDE)))
    out = b.all(0, NARROW)
    for i in range(4):
        nibble = b.and_(b.lshr(selectors, b.all(4 * i, NARROW)), b.all(15, NARROW))
        at = b.zext(b.shl(b.and_(nibble, b.all(7, NARROW)), b.all(3, NARROW)), WIDE)
        byte = b.and_(b.trunc(b.lshr(bytes_of_both, at), NARROW), b.all(255, NARROW))
        negative = b.icmp_unsigned(">", byte, b.all(127, NARROW))
        sign = b.select(negative, b.all(255, NARROW), b.all(0, NARROW))
        of_sign = b.icmp_unsigned(">", nibble, b.all(7, NARROW))
        out = b.or_(out, b.shl(b.select(of_sign, sign, byte), b.all(8 * i, NARROW)))
    return out


def four_bytes(b: Builder, x: ir.Value, y: ir.Value, total: ir.Value, signed: list[bool]) -> ir.Value:
    """Emit dp4a, as `integers._four_bytes`. signed: whether the bytes of x and of y are."""
    for i in range(4):
        bytes_of_both = []
        for word, has_sign in zip((x, y), signed):
            high = b.shl(word, b.all(24 - 8 * i, NARROW))  # the byte, as the highest
            bytes_of_both.append((b.ashr if has_sign else b.lshr)(high, b.all(24, NARROW)))
        total = b.add(total, b.mul(*bytes_of_both))
    return total


def by_table(b: Builder, x: ir.Value, y: ir.Value, z: ir.Value, table: ir.Value) -> ir.Value:
    """Emit lop3, as `integers._table`."""
    out = b.all(0, NARROW)
    for row in range(8):
        row_bits = b.and_(b.and_(x if row & 4 else b.not_(x), y if row & 2 else b.not_(y)), z if row & 1 else b.not_(z))
        bit = b.and_(b.lshr(table, b.all(row, NARROW)), b.all(1, NARROW))
        out = b.or_(out, b.and_(row_bits, b.neg(bit)))
    return out


FIELDS: dict[str, Callable[..., ir.Value]] = {"bfi": insert, "prmt": permute, "lop3": by_table}  # of 32 bits
