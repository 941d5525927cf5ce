"""mma.sync on LLVM's lanes, as a `TensorCore` sums: the same steps as `sum_loops.chained`, eight columns at a time.

Where a factor is NaN, or C is, so is the result. Infinite numbers, and results, are left to the numpy machine.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
from llvmlite import ir

from fa_lib.numerics.formats import EXPONENT_FIELD
from fa_lib.numerics.sum_loops import NOTHING
from fa_lib.numerics.tensor_cores import TensorCore
from ptx_machine.matrix import RESULTS, WIDTHS, Product, left, numbers, right
from ptx_machine.native.emitter import Emitter
from ptx_machine.native.traced import Traced
from ptx_machine.native.vectors import DOUBLE, I8, I16, I32, I64, Builder, lanes
from ptx_machine.syntax import BITS

COLUMNS = 8
D8, E8 = lanes(DOUBLE, COLUMNS), lanes(I32, COLUMNS)
BY_TURNS = ir.Constant(lanes(I32, 64), [I32(i // 2 + 32 * (i % 2)) for i in range(64)])  # of two registers


def exponents(x: Traced, emin: int) -> Traced:
    """Emit floor(log2 |x|), at least emin; NOTHING of 0."""
    e = (x.view(np.int64) >> 52 & 0x7FF).astype(np.int32) - 1023
    return np.where(x == 0, NOTHING, np.maximum(e, emin))


def power_of_two(e: Traced) -> Traced:
    """Emit 2**e as float64."""
    return ((e + 1023).astype(np.int64) << 52).view(np.float64)


def rounded(x: Traced, core: TensorCore) -> Traced:
    """Emit x rounded to the core's result, as `rounding_loops.nearest` and `sum_loops._toward_zero` do."""
    precision, low, high, largest, over = core.result.grid
    field = np.clip(x.view(np.int64) & EXPONENT_FIELD, low, high)
    c = (field + (53 - precision << 52) + (1 << 51)).view(np.float64)
    r = abs((x + c) - c)
    if not core.to_nearest:
        r = r - np.where(r > abs(x), (field - (precision - 1 << 52)).view(np.float64), 0.0)  # one step less
    return np.copysign(np.where(r > largest, over, r), x)


def converted(b: Builder, bits: ir.Value, kind: str) -> ir.Value:
    """Emit the elements of a matrix, float64, from vectors of their bits."""
    return numbers(Traced(b, bits, np.dtype(f"u{WIDTHS[kind] // 8}")), kind).value


def assembled(
    e: Emitter, registers: Sequence[ir.Value], kind: str, columns: int, places: Callable
) -> ir.Value:  # fmt: skip
    """Assemble a factor of so many columns, by rows, from the places of its registers, as `matrix.assembled`."""
    b, per = e.b, 32 // WIDTHS[kind]
    count = 32 * per
    values, matrix = b.room(lanes(DOUBLE, count)), b.room(DOUBLE, count * len(registers))
    for r, register in enumerate(registers):
        b.put(converted(b, b.get(register, lanes(ir.IntType(WIDTHS[kind]), count), 16), kind), values)
        rows, across = places(r, per)  # (32, elements of a lane)
        for i, at in enumerate((columns * rows + across).reshape(-1).tolist()):
            b.put(b.get(b.at(values, 8 * i), DOUBLE), b.at(matrix, 8 * at))
    return matrix


def factors(e: Emitter, product: Product) -> tuple[ir.Value, ir.Value]:
    """Assemble A (16, k) and B (k, 8) of mma.sync from their registers, which are behind those of D."""
    d, a, b, _ = product.registers
    places = [e.place(i) for i in range(d, d + a + b)]
    return (assembled(e, places[:a], product.a, product.shape[2], left),
            assembled(e, places[a:], product.b, COLUMNS, right))  # fmt: skip


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


def multiply(e: Emitter, product: Product) -> None:
    """Emit mma.sync. Its slots are of the registers of the result, of A, of B and of C."""
    sums, k = product.registers[0], product.shape[2]
    results, before = ([e.place(first + i) for i in range(sums)] for first in (0, sum(product.registers[:3])))
    places = Places.of(e.b, k, *factors(e, product))
    read_sums(e.b, before, product.gives, places.C)
    if product.whole:
        _add_whole(e.b, k, places, product.saturated)
    else:
        add_product(e, product.core, k, places)
    write_sums(e.b, results, product.gives, places.D)


def read_sums(b: Builder, registers: Sequence[ir.Value], kind: str, C: ir.Value) -> None:
    """Read a matrix (16, 8) from the places of its registers to C, float64."""
    for half in range(2):
        if kind == "f16":
            bits = b.bitcast(b.get(registers[half], lanes(I32), 16), lanes(I16, 64))
        else:
            bits = two_registers(b, registers[2 * half : 2 * half + 2])
        x = Traced(b, bits, np.dtype(f"i{BITS[kind] // 8}")).view(RESULTS[kind])
        b.put(x.astype(np.float64).value, b.at(C, 8 * 64 * half))


def write_sums(b: Builder, registers: Sequence[ir.Value], kind: str, D: ir.Value) -> None:
    """Write D to the places of its registers, the reverse of `read_sums`."""
    for half in range(2):
        x = Traced(b, b.get(b.at(D, 8 * 64 * half), lanes(DOUBLE, 64)), np.dtype(np.float64))
        x = x.astype(np.int64 if kind == "s32" else np.float32).astype(RESULTS[kind])
        if kind == "f16":
            b.put(b.bitcast(x.value, lanes(I32)), registers[half], 16)
        else:
            to_two_registers(b, registers[2 * half : 2 * half + 2], x.view(np.int32).value)


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


def _add_whole(b: Builder, k: int, places: Places, saturated: bool) -> None:
    """Emit D = C + A B of whole numbers, exact in float64."""
    with b.counted(16) as i:
        row, line = b.at(places.A, b.mul(i, I64(8 * k))), b.mul(i, I64(64))
        d = _eight(b, b.get(b.at(places.C, line), D8))
        for j in range(k):
            d = d + _eight(b, b.get(b.at(row, 8 * j), DOUBLE)) * _eight(b, b.get(b.at(places.B, 64 * j), D8))
        b.put((np.clip(d, -(1 << 31), (1 << 31) - 1) if saturated else d).value, b.at(places.D, line))


def add_product(e: Emitter, core: TensorCore, k: int, places: Places) -> None:
    """Emit D = C + A B, or leave the instruction to the numpy machine where a result is infinite."""
    b = e.b
    b.put(I8(0), places.odd)
    for row in range(k):
        of_row = exponents(_eight(b, b.get(b.at(places.B, 64 * row), D8)), core.inputs.emin)
        b.put(of_row.value, b.at(places.exponents, 32 * row))
    _rows(e, core, k, places)
    with b.if_then(b.icmp_unsigned("!=", b.get(places.odd, I8), I8(0)), likely=False):
        _not_numbers(b, k, places)
    e.needs(b.icmp_unsigned("==", b.get(places.odd, I8), I8(0)))


def _eight(b: Builder, numbers: ir.Value) -> Traced:
    """Trace eight numbers of float64 or int32, or one that is repeated."""
    if not isinstance(numbers.type, ir.VectorType):
        numbers = b.splat(numbers, COLUMNS)
    return Traced(b, numbers, np.dtype(np.float64 if numbers.type == D8 else np.int32))


def _rows(e: Emitter, core: TensorCore, k: int, places: Places) -> None:
    """Emit a loop over the 16 rows."""
    A, B, eB, C, D, unfit, odd = places
    b, emin_d = e.b, (int(core.result.grid[1]) >> 52) - 1023
    with b.counted(16) as i:
        row = b.at(A, b.mul(i, I64(8 * k)))
        a = [_eight(b, b.get(b.at(row, 8 * j), DOUBLE)) for j in range(k)]
        d = _eight(b, b.get(b.at(C, b.mul(i, I64(64))), D8))
        fit = []  # whether results are finite
        for first in range(0, k, core.block):
            last = min(first + core.block, k)
            top = exponents(d, emin_d)
            for j in range(first, last):
                of_term = exponents(a[j], core.inputs.emin) + _eight(b, b.get(b.at(eB, 32 * j), E8))
                top = np.maximum(top, of_term)
            top = np.where(top < NOTHING // 2, 0, top)  # nothing but zeros
            scale = power_of_two(core.F - top)
            terms = np.trunc(d * scale)
            for j in range(first, last):
                terms = terms + np.trunc(a[j] * _eight(b, b.get(b.at(B, 64 * j), D8)) * scale)
            d = rounded(terms * power_of_two(top - core.F), core)
            fit.append(np.isfinite(d))
        ever = (~reduce(np.logical_and, fit)).value
        b.put(b.or_(b.get(odd, I8), b.zext(b.any(ever), I8)), odd)
        b.put(b.zext(ever, lanes(I8, COLUMNS)), b.at(unfit, b.mul(i, I64(COLUMNS))))
        b.put(d.value, b.at(D, b.mul(i, I64(64))))


def _not_numbers(b: Builder, k: int, places: Places) -> None:
    """Set results to NaN where a factor or C is NaN; `odd` stays set where another result is not finite."""
    b.put(I8(0), places.odd)
    in_columns = b.is_nan(b.get(places.B, D8))
    for j in range(1, k):
        in_columns = b.or_(in_columns, b.is_nan(b.get(b.at(places.B, 64 * j), D8)))
    with b.counted(16) as i:
        row, row_start = b.at(places.A, b.mul(i, I64(8 * k))), b.mul(i, I64(64))
        in_row = b.is_nan(b.get(row, DOUBLE))
        for j in range(1, k):
            in_row = b.or_(in_row, b.is_nan(b.get(b.at(row, 8 * j), DOUBLE)))
        nan = b.or_(b.or_(in_columns, b.splat(in_row, COLUMNS)), b.is_nan(b.get(b.at(places.C, row_start), D8)))
        d = b.get(b.at(places.D, row_start), D8)
        flags = b.get(b.at(places.unfit, b.mul(i, I64(COLUMNS))), lanes(I8, COLUMNS))
        all_ones = b.bitcast(b.all(0x7FFFFFFFFFFFFFFF, lanes(I64, COLUMNS)), D8)  # becomes PTX's NaN of fewer bits
        b.put(b.select(nan, all_ones, d), b.at(places.D, row_start))
        unexplained = b.and_(b.icmp_unsigned("!=", flags, b.all(0, flags)), b.not_(nan))
        b.put(b.or_(b.get(places.odd, I8), b.zext(b.any(unexplained), I8)), places.odd)
