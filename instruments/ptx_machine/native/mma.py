"""mma.sync on LLVM's lanes, as a `TensorCore` sums: the same steps as `sum_loops.chained`, eight columns at a time.

Where a factor is NaN, or C is, so is the result. Infinite numbers, and results, are left to the numpy machine.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

from llvmlite import ir

from fa_lib.numerics.sum_loops import NOTHING
from fa_lib.numerics.tensor_cores import TensorCore
from ptx_machine.matrix import WHOLE, WIDTHS
from ptx_machine.native.emitter import Emitter
from ptx_machine.native.floats import halves, not_a_number
from ptx_machine.native.vectors import DOUBLE, FLOAT, HALF, I8, I16, I32, I64, Builder, lanes

COLUMNS = 8
D8, L8, E8 = lanes(DOUBLE, COLUMNS), lanes(I64, COLUMNS), lanes(I32, COLUMNS)
BY_TURNS = ir.Constant(lanes(I32, 64), [I32(i // 2 + 32 * (i % 2)) for i in range(64)])  # of two registers
FIELD = 0x7FF0000000000000  # of a float64's exponent
SIZES = {DOUBLE: 8, I32: 4}  # bytes of an element


def element_of(kind: str) -> ir.Type:
    """Return the type that carries an element of a matrix."""
    return I32 if kind in WHOLE else DOUBLE


def exponents(b: Builder, x: ir.Value, emin: int) -> ir.Value:
    """Emit floor(log2 |x|), at least emin; NOTHING of 0."""
    kind = x.type
    wide, short = (lanes(each, kind.count) for each in (I64, I32))
    field = b.and_(b.lshr(b.bitcast(x, wide), b.all(52, wide)), b.all(0x7FF, wide))
    e = b.sub(b.trunc(field, short), b.all(1023, short))
    e = b.select(b.icmp_signed("<", e, b.all(emin, e)), b.all(emin, e), e)
    return b.select(b.fcmp_unordered("ueq", x, b.all(0.0, x)), b.all(int(NOTHING), e), e)


def power_of_two(b: Builder, e: ir.Value) -> ir.Value:
    """Emit 2**e as float64."""
    return b.bitcast(b.shl(b.sext(b.add(e, b.all(1023, e)), L8), b.all(52, L8)), D8)


def clamp(b: Builder, x: ir.Value, low: int, high: int) -> ir.Value:
    """Emit whole numbers x limited to low .. high."""
    x = b.select(b.icmp_signed("<", x, b.all(low, x)), b.all(low, x), x)
    return b.select(b.icmp_signed(">", x, b.all(high, x)), b.all(high, x), x)


def rounded(b: Builder, x: ir.Value, core: TensorCore) -> ir.Value:
    """Emit x rounded to the core's result, as `rounding_loops.nearest` and `sum_loops._toward_zero` do."""
    precision, low, high, largest, over = core.result.grid
    field = clamp(b, b.and_(b.bitcast(x, L8), b.all(FIELD, L8)), int(low), int(high))
    add = ((53 - precision) << 52) + (1 << 51)
    c = b.bitcast(b.add(field, b.all(add, field)), D8)
    size = b.intrinsic("fabs", [x])
    r = b.intrinsic("fabs", [b.fsub(b.fadd(x, c), c)])
    if not core.to_nearest:
        step = b.bitcast(b.sub(field, b.all((precision - 1) << 52, field)), D8)
        r = b.fsub(r, b.select(b.fcmp_ordered(">", r, size), step, b.all(0.0, r)))
    r = b.select(b.fcmp_ordered(">", r, b.all(float(largest), r)), b.all(float(over), r), r)
    return b.intrinsic("copysign", [r, x])


def converted(b: Builder, bits: ir.Value, kind: str) -> ir.Value:
    """Emit the elements of a matrix, from vectors of their bits: float64, or 32 bits where they are whole."""
    count, wide = bits.type.count, lanes(I32, bits.type.count)
    if kind in WHOLE:
        return (b.sext if kind == "s8" else b.zext)(bits, wide)
    if kind == "tf32":
        x = b.bitcast(b.and_(bits, b.all(0xFFFFE000, bits)), lanes(FLOAT, count))
    elif kind == "bf16":
        x = b.bitcast(b.shl(b.zext(bits, wide), b.all(16, wide)), lanes(FLOAT, count))
    else:
        halves()
        x = b.bitcast(bits if kind == "f16" else _as_half(b, bits, kind), lanes(HALF, count))
    x = b.fpext(x, lanes(DOUBLE, count))
    if kind == "e4m3":  # its exponents are 2**8 times those of FP16, and it has no infinity
        nan = b.icmp_unsigned("==", b.and_(bits, b.all(0x7F, bits)), b.all(0x7F, bits))
        x = b.select(nan, b.all(float("nan"), x), b.fmul(x, b.all(2.0**8, x)))
    return x


def _as_half(b: Builder, bits: ir.Value, kind: str) -> ir.Value:
    """Emit 8 bits of a float as the 16 bits of FP16 with the same fields."""
    bits = b.zext(bits, lanes(I16, bits.type.count))
    if kind == "e5m2":
        return b.shl(bits, b.all(8, bits))
    size, sign = b.and_(bits, b.all(0x7F, bits)), b.and_(bits, b.all(0x80, bits))
    return b.or_(b.shl(size, b.all(7, bits)), b.shl(sign, b.all(8, bits)))


def _assembled(
    e: Emitter, registers: Sequence[ir.Value], kind: str, index: Callable[[int, int, int], int],
) -> ir.Value:  # fmt: skip
    """Assemble a matrix by rows from the places of its registers, laid out as the figures of PTX's text show. index:
    the number of an element, by its register's, and its place along the sum and across it."""
    b, element, per = e.b, element_of(kind), 32 // WIDTHS[kind]
    size, count = SIZES[element], 32 * per
    values, matrix = b.room(lanes(element, count)), b.room(element, count * len(registers))
    for r, register in enumerate(registers):
        b.put(converted(b, b.get(register, lanes(ir.IntType(WIDTHS[kind]), count), 16), kind), values)
        for lane, i in product(range(32), range(per)):
            value = b.get(b.at(values, size * (per * lane + i)), element)
            b.put(value, b.at(matrix, size * index(r, per * (lane % 4) + i, lane // 4)))
    return matrix


def left(e: Emitter, registers: Sequence[ir.Value], kind: str, k: int) -> ir.Value:
    """Assemble A (16, k)."""
    step = 4 * (32 // WIDTHS[kind])
    return _assembled(e, registers, kind, lambda r, along, across: k * (across + 8 * (r % 2)) + along + step * (r // 2))


def right(e: Emitter, registers: Sequence[ir.Value], kind: str) -> ir.Value:
    """Assemble B (k, 8)."""
    step = 4 * (32 // WIDTHS[kind])
    return _assembled(e, registers, kind, lambda r, along, across: COLUMNS * (along + step * r) + across)


def factors(e: Emitter, slot: int, shape: tuple[int, int, int], kinds: tuple[str, str]) -> tuple[ir.Value, ir.Value]:
    """Assemble A and B of mma.sync from the registers in slots from `slot` on."""
    m, n, k = shape
    of_a, of_b = m * k * WIDTHS[kinds[0]] // 1024, k * n * WIDTHS[kinds[1]] // 1024
    places = [e.place(slot + i) for i in range(of_a + of_b)]
    return left(e, places[:of_a], kinds[0], k), right(e, places[of_a:], kinds[1])


def two_registers(b: Builder, registers: Sequence[ir.Value]) -> ir.Value:
    """Read half of a matrix of 32 bits by rows, 64 elements, from the places of two registers, whose elements of one
    lane are neighbours."""
    first, second = (b.get(register, lanes(I32), 16) for register in registers)
    return b.shuffle_vector(first, second, BY_TURNS)


def to_two_registers(b: Builder, registers: Sequence[ir.Value], half: ir.Value) -> None:
    """Write half of a matrix to two registers, the reverse of `two_registers`."""
    for i, register in enumerate(registers):
        order = ir.Constant(lanes(I32), [I32(2 * j + i) for j in range(32)])
        b.put(b.shuffle_vector(half, half, order), register, 16)


def registers(shape: tuple[int, int, int], kind: str) -> int:
    """Return how many registers hold A and B."""
    m, n, k = shape
    return (m + n) * k * WIDTHS[kind] // 1024


def multiply(e: Emitter, core: TensorCore, shape: tuple[int, int, int], kind: str, result: str) -> None:
    """Emit mma.sync. Its slots are of the registers of the result, of A, of B and of C."""
    b, sums = e.b, 2 if result == "f16" else 4
    at_c = sums + registers(shape, kind)
    places = Places.of(b, shape[2], *factors(e, sums, shape, (kind, kind)))
    read_sums(b, [e.place(at_c + i) for i in range(sums)], result, places.C)
    add_product(e, core, shape[2], places)
    write_sums(b, [e.place(i) for i in range(sums)], result, places.D)


def read_sums(b: Builder, registers: Sequence[ir.Value], kind: str, C: ir.Value) -> None:
    """Read a matrix (16, 8) from the places of its registers to C, float64."""
    for half in range(2):
        if kind == "f16":
            halves()
            values = b.bitcast(b.get(registers[half], lanes(I32), 16), lanes(HALF, 64))
        else:
            values = b.bitcast(two_registers(b, registers[2 * half : 2 * half + 2]), lanes(FLOAT, 64))
        b.put(b.fpext(values, lanes(DOUBLE, 64)), b.at(C, 8 * 64 * half))


def write_sums(b: Builder, registers: Sequence[ir.Value], kind: str, D: ir.Value) -> None:
    """Write D to the places of its registers, the reverse of `read_sums`."""
    for half in range(2):
        values = b.fptrunc(b.get(b.at(D, 8 * 64 * half), lanes(DOUBLE, 64)), lanes(FLOAT, 64))
        if kind == "f16":
            b.put(b.bitcast(b.fptrunc(values, lanes(HALF, 64)), lanes(I32)), registers[half], 16)
        else:
            to_two_registers(b, registers[2 * half : 2 * half + 2], b.bitcast(values, lanes(I32, 64)))


class Places(NamedTuple):
    """The places of matrices, float64 by rows.

    Attributes:
        A, B, C, D: the factors, the matrix that the product is added to, and the result.
        exponents: of B, int32. unfit: a byte for each element of D, set where it is not finite.
        odd: one byte, set where an element of `unfit` is.
    """

    A: ir.Value
    B: ir.Value
    exponents: ir.Value
    C: ir.Value
    D: ir.Value
    unfit: ir.Value
    odd: ir.Value

    @classmethod
    def of(cls, b: Builder, k: int, A: ir.Value, B: ir.Value) -> "Places":
        """Make room beside the factors A (16, k) and B (k, 8)."""
        C, D, unfit = (b.room(kind, 16 * COLUMNS) for kind in (DOUBLE, DOUBLE, I8))
        return cls(A, B, b.room(I32, COLUMNS * k), C, D, unfit, b.room(I8))


def add_product(e: Emitter, core: TensorCore, k: int, places: Places) -> None:
    """Emit D = C + A B, or leave the instruction to the numpy machine where a result is infinite."""
    b = e.b
    b.put(I8(0), places.odd)
    for row in range(k):
        of_row = exponents(b, b.get(b.at(places.B, 64 * row), D8), core.inputs.emin)
        b.put(of_row, b.at(places.exponents, 32 * row))
    _rows(e, core, k, places)
    with b.if_then(b.icmp_unsigned("!=", b.get(places.odd, I8), I8(0)), likely=False):
        _not_numbers(b, k, places)
    e.needs(b.icmp_unsigned("==", b.get(places.odd, I8), I8(0)))


def _rows(e: Emitter, core: TensorCore, k: int, places: Places) -> None:
    """Emit a loop over the 16 rows."""
    A, B, eB, C, D, unfit, odd = places
    b, emin_d = e.b, (int(core.result.grid[1]) >> 52) - 1023
    with b.counted(16) as i:
        row = b.at(A, b.mul(i, I64(8 * k)))
        a = [b.splat(b.get(b.at(row, 8 * j), DOUBLE), COLUMNS) for j in range(k)]
        d = b.get(b.at(C, b.mul(i, I64(64))), D8)
        ever = None  # whether a result was not finite
        for first in range(0, k, core.block):
            last = min(first + core.block, k)
            top = exponents(b, d, emin_d)
            for j in range(first, last):
                t = b.add(exponents(b, a[j], core.inputs.emin), b.get(b.at(eB, 32 * j), E8))
                top = b.select(b.icmp_signed(">", t, top), t, top)
            top = b.select(b.icmp_signed("<", top, b.all(int(NOTHING) // 2, top)), b.all(0, top), top)
            scale = power_of_two(b, b.sub(b.all(core.F, top), top))
            terms = b.intrinsic("trunc", [b.fmul(d, scale)])
            for j in range(first, last):
                term = b.fmul(b.fmul(a[j], b.get(b.at(B, 64 * j), D8)), scale)
                terms = b.fadd(terms, b.intrinsic("trunc", [term]))
            d = rounded(b, b.fmul(terms, power_of_two(b, b.sub(top, b.all(core.F, top)))), core)
            size = b.intrinsic("fabs", [d])
            infinite = b.fcmp_unordered("uge", size, b.all(float("inf"), size))
            ever = infinite if ever is None else b.or_(ever, infinite)
        b.put(b.or_(b.get(odd, I8), b.zext(b.any(ever), I8)), odd)
        b.put(b.zext(ever, lanes(I8, COLUMNS)), b.at(unfit, b.mul(i, I64(COLUMNS))))
        b.put(d, b.at(D, b.mul(i, I64(64))))


def _not_numbers(b: Builder, k: int, places: Places) -> None:
    """Set results to NaN where a factor or C is NaN; `odd` stays set where another result is not finite."""
    b.put(I8(0), places.odd)
    in_columns = not_a_number(b, b.get(places.B, D8))
    for j in range(1, k):
        in_columns = b.or_(in_columns, not_a_number(b, b.get(b.at(places.B, 64 * j), D8)))
    with b.counted(16) as i:
        row, row_start = b.at(places.A, b.mul(i, I64(8 * k))), b.mul(i, I64(64))
        in_row = not_a_number(b, b.get(row, DOUBLE))
        for j in range(1, k):
            in_row = b.or_(in_row, not_a_number(b, b.get(b.at(row, 8 * j), DOUBLE)))
        nan = b.or_(b.or_(in_columns, b.splat(in_row, COLUMNS)), not_a_number(b, b.get(b.at(places.C, row_start), D8)))
        d = b.get(b.at(places.D, row_start), D8)
        flags = b.get(b.at(places.unfit, b.mul(i, I64(COLUMNS))), lanes(I8, COLUMNS))
        all_ones = b.bitcast(b.all(0x7FFFFFFFFFFFFFFF, lanes(I64, COLUMNS)), D8)  # becomes PTX's NaN of fewer bits
        b.put(b.select(nan, all_ones, d), b.at(places.D, row_start))
        unexplained = b.and_(b.icmp_unsigned("!=", flags, b.all(0, flags)), b.not_(nan))
        b.put(b.or_(b.get(places.odd, I8), b.zext(b.any(unexplained), I8)), places.odd)
