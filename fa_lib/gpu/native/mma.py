"""mma.sync on LLVM's lanes, as a `TensorCore` sums: the same steps as `adders.chained`, eight columns at a time.

Where a factor is NaN, or C is, so is the result. Infinite numbers, and results, are left to the numpy machine.
"""

from collections.abc import Callable
from typing import NamedTuple

from llvmlite import ir

from fa_lib.gpu.matrix import WIDTHS
from fa_lib.gpu.native.emitter import Emitter, NotNative
from fa_lib.gpu.native.floats import halves
from fa_lib.gpu.native.vectors import DOUBLE, FLOAT, HALF, I8, I16, I32, I64, Builder, lanes
from fa_lib.on_device import NOTHING
from fa_lib.tensor_cores import TensorCore

COLUMNS = 8
D8, L8, E8 = lanes(DOUBLE, COLUMNS), lanes(I64, COLUMNS), lanes(I32, COLUMNS)
BY_TURNS = ir.Constant(lanes(I32, 64), [I32(i // 2 + 32 * (i % 2)) for i in range(64)])  # of two registers
FIELD = 0x7FF0000000000000  # of a float64's exponent


def exponents(b: Builder, x: ir.Value, emin: int) -> ir.Value:
    """floor(log2 |x|), at least emin; NOTHING of 0."""
    kind = x.type
    wide, short = (lanes(each, kind.count) for each in (I64, I32))
    field = b.and_(b.lshr(b.bitcast(x, wide), b.all(52, wide)), b.all(0x7FF, wide))
    e = b.sub(b.trunc(field, short), b.all(1023, short))
    e = b.select(b.icmp_signed("<", e, b.all(emin, e)), b.all(emin, e), e)
    return b.select(b.fcmp_unordered("ueq", x, b.all(0.0, x)), b.all(int(NOTHING), e), e)


def power_of_two(b: Builder, e: ir.Value) -> ir.Value:
    return b.bitcast(b.shl(b.sext(b.add(e, b.all(1023, e)), L8), b.all(52, L8)), D8)


def clamp(b: Builder, x: ir.Value, low: int, high: int) -> ir.Value:
    x = b.select(b.icmp_signed("<", x, b.all(low, x)), b.all(low, x), x)
    return b.select(b.icmp_signed(">", x, b.all(high, x)), b.all(high, x), x)


def rounded(b: Builder, x: ir.Value, core: TensorCore) -> ir.Value:
    """As `rounding_loops.nearest` and `adders._toward_zero` do."""
    precision, low, high, largest, beyond = core.result.grid
    field = clamp(b, b.and_(b.bitcast(x, L8), b.all(FIELD, L8)), int(low), int(high))
    add = ((53 - precision) << 52) + (1 << 51)
    c = b.bitcast(b.add(field, b.all(add, field)), D8)
    size = b.intrinsic("fabs", [x])
    r = b.intrinsic("fabs", [b.fsub(b.fadd(x, c), c)])
    if not core.to_nearest:
        step = b.bitcast(b.sub(field, b.all((precision - 1) << 52, field)), D8)
        r = b.fsub(r, b.select(b.fcmp_ordered(">", r, size), step, b.all(0.0, r)))
    r = b.select(b.fcmp_ordered(">", r, b.all(float(largest), r)), b.all(float(beyond), r), r)
    return b.intrinsic("copysign", [r, x])


def elements(e: Emitter, slot: int, count: int, kind: str) -> ir.Value:
    """Of registers in slots from `slot` on: where their elements are, one register's after another's, as float64."""
    b = e.b
    per = 32 // WIDTHS[kind]
    place = b.room(lanes(DOUBLE, 32 * per), count)
    for r in range(count):
        held = b.get(e.place(slot + r), lanes(I32), 16)
        if kind == "tf32":
            x = b.bitcast(b.and_(held, b.all(0xFFFFE000, held)), lanes(FLOAT))
        elif kind == "bf16":
            pairs = b.bitcast(held, lanes(I16, 64))
            x = b.bitcast(b.shl(b.zext(pairs, lanes(I32, 64)), b.all(16, lanes(I32, 64))), lanes(FLOAT, 64))
        elif kind == "f16":
            halves()
            x = b.bitcast(held, lanes(HALF, 64))
        else:
            raise NotNative
        b.put(b.fpext(x, lanes(DOUBLE, 32 * per)), b.at(place, 8 * 32 * per * r))
    return place


def product(e: Emitter, core: TensorCore, shape: tuple[int, int, int], kind: str, result: str) -> None:
    """Slots: of the result's registers, of A's, B's and C's."""
    b, (m, n, k) = e.b, shape
    per = 32 // WIDTHS[kind]
    counts = m * k * WIDTHS[kind] // 1024, k * n * WIDTHS[kind] // 1024
    sums = 2 if result == "f16" else 4
    a_place, b_place = elements(e, sums, counts[0], kind), elements(e, sums + counts[0], counts[1], kind)
    c_slot = sums + sum(counts)
    A, B = b.room(DOUBLE, m * k), b.room(DOUBLE, k * n)

    def element(place, r, lane, i):
        return b.at(place, 8 * (32 * per * r + per * lane + i))

    for r in range(counts[0]):  # into rows, as the figures of PTX's text say
        for lane in range(32):
            for i in range(per):
                row, column = lane // 4 + 8 * (r % 2), per * (lane % 4) + 4 * per * (r // 2) + i
                b.put(b.get(element(a_place, r, lane, i), DOUBLE), b.at(A, 8 * (k * row + column)))
    for r in range(counts[1]):
        for lane in range(32):
            for i in range(per):
                row, column = per * (lane % 4) + 4 * per * r + i, lane // 4
                b.put(b.get(element(b_place, r, lane, i), DOUBLE), b.at(B, 8 * (n * row + column)))
    C = b.room(DOUBLE, m * n)
    for half in range(2):
        rows = b.at(C, 8 * 64 * half)
        if result == "f16":
            halves()
            held = b.get(e.place(c_slot + half), lanes(I32), 16)
            b.put(b.fpext(b.bitcast(held, lanes(HALF, 64)), lanes(DOUBLE, 64)), rows)
        else:
            pair = [b.bitcast(b.get(e.place(c_slot + 2 * half + i), lanes(I32), 16), lanes(FLOAT)) for i in range(2)]
            mixed = b.shuffle_vector(*pair, BY_TURNS)
            b.put(b.fpext(mixed, lanes(DOUBLE, 64)), rows)
    D, unfit, odd = b.room(DOUBLE, m * n), b.room(I8, m * n), b.room(I8)
    eB = b.room(I32, k * n)
    b.put(I8(0), odd)
    for row in range(k):
        b.put(exponents(b, b.get(b.at(B, 64 * row), D8), core.inputs.emin), b.at(eB, 32 * row))
    places = Places(A, B, eB, C, D, unfit, odd)
    _rows(e, core, k, places)
    with b.if_then(b.icmp_unsigned("!=", b.get(odd, I8), I8(0)), likely=False):
        _not_numbers(b, k, places)
    e.needs(b.icmp_unsigned("==", b.get(odd, I8), I8(0)))
    for half in range(2):
        held = b.fptrunc(b.get(b.at(D, 8 * 64 * half), lanes(DOUBLE, 64)), lanes(FLOAT, 64))
        if result == "f16":
            b.put(b.bitcast(b.fptrunc(held, lanes(HALF, 64)), lanes(I32)), e.place(half), 16)
            continue
        for i in range(2):
            chosen = b.shuffle_vector(held, held, ir.Constant(lanes(I32), [I32(2 * j + i) for j in range(32)]))
            b.put(b.bitcast(chosen, lanes(I32)), e.place(2 * half + i), 16)


class Places(NamedTuple):
    """Where matrices are, as float64 by rows: A, B and the exponents of B, C, and the result D; unfit: a byte for each
    of D, set where it is not finite; odd: one byte, set where one of them is."""

    A: ir.Value
    B: ir.Value
    exponents: ir.Value
    C: ir.Value
    D: ir.Value
    unfit: ir.Value
    odd: ir.Value


def _rows(e: Emitter, core: TensorCore, k: int, places: Places) -> None:
    """A loop over the 16 rows."""
    A, B, eB, C, D, unfit, odd = places
    b, emin_d = e.b, (int(core.result.grid[1]) >> 52) - 1023
    i, after = _loop(b)
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
        beyond = b.fcmp_unordered("uge", size, b.all(float("inf"), size))
        ever = beyond if ever is None else b.or_(ever, beyond)
    b.put(b.or_(b.get(odd, I8), b.zext(b.any(ever), I8)), odd)
    b.put(b.zext(ever, lanes(I8, COLUMNS)), b.at(unfit, b.mul(i, I64(COLUMNS))))
    b.put(d, b.at(D, b.mul(i, I64(64))))
    after()


def _loop(b: Builder) -> tuple[ir.Value, Callable[[], None]]:
    """A loop over the 16 rows begins: the row's number, and what ends it."""
    before, loop, out = b.block, b.append_basic_block(), b.append_basic_block()
    b.branch(loop)
    b.position_at_end(loop)
    i = b.phi(I64)
    i.add_incoming(I64(0), before)

    def after():
        following = b.add(i, I64(1))
        i.add_incoming(following, b.block)
        b.cbranch(b.icmp_unsigned("<", following, I64(16)), loop, out)
        b.position_at_end(out)

    return i, after


def _not_numbers(b: Builder, k: int, places: Places) -> None:
    """NaN where a factor or C is; odd stays set where that does not explain a result."""

    def is_nan(x):
        return b.fcmp_unordered("uno", x, x)

    b.put(I8(0), places.odd)
    in_columns = is_nan(b.get(places.B, D8))
    for j in range(1, k):
        in_columns = b.or_(in_columns, is_nan(b.get(b.at(places.B, 64 * j), D8)))
    i, after = _loop(b)
    row, here = b.at(places.A, b.mul(i, I64(8 * k))), b.mul(i, I64(64))
    in_row = is_nan(b.get(row, DOUBLE))
    for j in range(1, k):
        in_row = b.or_(in_row, is_nan(b.get(b.at(row, 8 * j), DOUBLE)))
    nan = b.or_(b.or_(in_columns, b.splat(in_row, COLUMNS)), is_nan(b.get(b.at(places.C, here), D8)))
    d, held = b.get(b.at(places.D, here), D8), b.get(b.at(places.unfit, b.mul(i, I64(COLUMNS))), lanes(I8, COLUMNS))
    all_ones = b.bitcast(b.all(0x7FFFFFFFFFFFFFFF, lanes(I64, COLUMNS)), D8)  # becomes PTX's NaN of fewer bits
    b.put(b.select(nan, all_ones, d), b.at(places.D, here))
    left = b.and_(b.icmp_unsigned("!=", held, b.all(0, held)), b.not_(nan))
    b.put(b.or_(b.get(places.odd, I8), b.zext(b.any(left), I8)), places.odd)
    after()
