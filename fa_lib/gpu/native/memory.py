"""Loads, stores and matrices from memory, on LLVM's lanes. An access that is a fault, or whose lanes are in several
tensors, changes nothing and is left to the numpy machine."""

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from fa_lib.gpu.lanes import WARP
from fa_lib.gpu.memory import SHARED
from fa_lib.gpu.native.emitter import Emitter, Memory, NotNative
from fa_lib.gpu.native.vectors import I1, I8, I16, I32, I64, POINTER, Builder, lanes
from fa_lib.gpu.syntax import BITS

NONE = (1 << 64) - 1


def addresses(e: Emitter, slot: int, register: str) -> ir.Value:
    """Emit [register + offset], 64 bits; the offset is in the next slot."""
    b = e.b
    bits = e.value(slot, register, register)
    offset = b.splat(e.slot(slot + 1))
    if BITS[register] == 64:
        return b.add(bits, offset)
    return b.and_(b.add(b.zext(bits, lanes(I64)), offset), b.all(0xFFFFFFFF, lanes(I64)))


def into_shared(e: Emitter, at: ir.Value) -> ir.Value:
    """Emit `operands.into_shared`."""
    b = e.b
    return b.select(b.icmp_unsigned(">=", at, b.all(SHARED, at)), b.sub(at, b.all(SHARED, at)), at)


def base(e: Emitter, space: str, at: ir.Value, size: int, mask: ir.Value) -> ir.Value:
    """Emit the address of a space's byte 0, where all accesses are inside it and aligned; else leave the instruction to
    the numpy machine.

    Raises:
        NotNative: the space is another one.
    """
    b = e.b
    low = b.intrinsic("vector.reduce.umin", [b.select(mask, at, b.all(NONE, at))], I64)
    high = b.intrinsic("vector.reduce.umax", [b.select(mask, at, b.all(0, at))], I64)
    if size > 1:
        odd = b.intrinsic("vector.reduce.or", [b.select(mask, at, b.all(0, at))], I64)
        e.needs(b.icmp_unsigned("==", b.and_(odd, I64(size - 1)), I64(0)))
    end = b.add(high, I64(size))
    if space == "global":
        inside(e, low, end)
        return I64(0)
    field = {"shared": Memory.SHARED, "param": Memory.PARAMETERS}.get(space)
    if field is None:
        raise NotNative
    e.needs(b.and_(b.icmp_unsigned("<=", end, e.of(Memory(field + 1))), b.icmp_unsigned(">=", end, high)))
    return e.of(field)


def place_of(b: Builder, start: ir.Value, listed: ir.Value, lane: ir.Value | int) -> ir.Value:
    """Emit a pointer to the beginning of a lane's access. listed: all lanes' addresses, in memory."""
    offset = I64(8 * lane) if isinstance(lane, int) else b.mul(lane, I64(8))
    return b.inttoptr(b.add(start, b.get(b.at(listed, offset), I64, 8)), POINTER)


def inside(e: Emitter, low: ir.Value, end: ir.Value) -> None:
    """Return NOT_DONE from the function unless one span contains all bytes from low to end."""
    b = e.b
    spans, count = e.of(Memory.SPANS, POINTER), e.of(Memory.SPAN_COUNT)
    before = b.block
    loop, covered, next_one, out = (b.append_basic_block() for _ in range(4))
    b.branch(loop)
    b.position_at_end(loop)
    i = b.phi(I64)
    i.add_incoming(I64(0), before)
    more = b.icmp_unsigned("<", i, count)
    b.cbranch(more, next_one, out)
    b.position_at_end(next_one)
    start = b.get(b.at(spans, b.mul(i, I64(16))), I64, 8)
    stop = b.get(b.at(spans, b.add(b.mul(i, I64(16)), I64(8))), I64, 8)
    fits = b.and_(b.icmp_unsigned(">=", low, start), b.icmp_unsigned("<=", end, stop))
    i.add_incoming(b.add(i, I64(1)), next_one)
    b.cbranch(fits, covered, loop)
    b.position_at_end(out)
    b.ret(I64(0))
    b.position_at_end(covered)


def each_lane(e: Emitter, mask: ir.Value, work) -> None:
    """Emit a loop that does work(b, lane) for each lane of the mask; the lane's number is an int64."""
    b = e.b
    bits = b.bitcast(mask, I32)
    before, loop, body, behind, out = b.block, *(b.append_basic_block() for _ in range(4))
    b.branch(loop)
    b.position_at_end(loop)
    i = b.phi(I64)
    i.add_incoming(I64(0), before)
    is_active = b.trunc(b.lshr(bits, b.trunc(i, I32)), I1)
    b.cbranch(is_active, body, behind)
    b.position_at_end(body)
    work(b, i)
    b.branch(behind)
    b.position_at_end(behind)
    after = b.add(i, I64(1))
    i.add_incoming(after, behind)
    b.cbranch(b.icmp_unsigned("<", after, I64(WARP)), loop, out)
    b.position_at_end(out)


def listed(e: Emitter, at: ir.Value) -> ir.Value:
    """Store addresses in memory, for a loop over lanes."""
    place = e.b.room(at.type)
    e.b.put(at, place, 16)
    return place


def load(e: Emitter, space: str, kind: str, registers: list[str], of: str) -> None:
    """Emit ld. Its slots are of the results, then of the address, a register of type `of`, and its offset.

    A wider register is filled with zeros, or with the sign of a type that has one.

    Raises:
        NotNative: the space is generic, or a register is narrower than the type.
    """
    if space == "generic" or any(BITS[register] < BITS[kind] for register in registers):
        raise NotNative
    size, count = BITS[kind] // 8, len(registers)
    at = addresses(e, count, of)
    start = base(e, space, at, size * count, e.mask)
    place = listed(e, at)
    if space == "shared":
        written(e, place, size * count)
    element = ir.IntType(BITS[kind])
    targets = [(e.place(i), BITS[register]) for i, register in enumerate(registers)]

    def work(b, lane):
        start_of_lane = place_of(b, start, place, lane)
        for i, (target, bits) in enumerate(targets):
            value = b.get(b.at(start_of_lane, i * size), element)
            if bits > BITS[kind]:
                value = (b.sext if kind[0] == "s" else b.zext)(value, ir.IntType(bits))
            b.put(value, b.at(target, b.mul(lane, I64(bits // 8))))

    each_lane(e, e.mask, work)


@contextmanager
def asked(e: Emitter) -> Iterator[ir.Value]:
    """Emit operations that are done only where the block notes which bytes were written; yields the place of these
    flags."""
    b = e.b
    shadow = e.of(Memory.WRITTEN)
    inner, behind = b.append_basic_block(), b.append_basic_block()
    b.cbranch(b.icmp_unsigned("!=", shadow, I64(0)), inner, behind)
    b.position_at_end(inner)
    yield shadow
    b.branch(behind)
    b.position_at_end(behind)


def written(e: Emitter, place: ir.Value, size: int) -> None:
    """Return NOT_DONE from the function unless all bytes that are read were written."""
    with asked(e) as shadow:
        all_written = e.b.room(I8)
        e.b.put(I8(1), all_written)

        def work(b, lane):
            start_of_lane = place_of(b, shadow, place, lane)
            for i in range(size):
                b.put(b.and_(b.get(all_written, I8), b.get(b.at(start_of_lane, i), I8)), all_written)

        each_lane(e, e.mask, work)
        e.needs(e.b.icmp_unsigned("==", e.b.get(all_written, I8), I8(1)))


def mark(e: Emitter, place: ir.Value, size: int) -> None:
    """Note that the stored bytes were written."""
    ones = ir.Constant(lanes(I8, size), [I8(1)] * size)
    with asked(e) as shadow:
        each_lane(e, e.mask, lambda b, lane: b.put(ones, place_of(b, shadow, place, lane)))


def store(e: Emitter, space: str, kind: str, registers: list[str], to: str) -> None:
    """Emit st. Its slots are of the address, a register of type `to`, of its offset, then of the values, the lower bits
    of a wider register.

    Raises:
        NotNative: the space is generic, or a register is narrower than the type.
    """
    if space == "generic" or any(BITS[register] < BITS[kind] for register in registers):
        raise NotNative
    size, count = BITS[kind] // 8, len(registers)
    at = addresses(e, 0, to)
    start = base(e, space, at, size * count, e.mask)
    place = listed(e, at)
    element = ir.IntType(BITS[kind])
    values = [(e.place(2 + i), BITS[register] // 8) for i, register in enumerate(registers)]

    def work(b, lane):
        start_of_lane = place_of(b, start, place, lane)
        for i, (value, width) in enumerate(values):  # little-endian: the lower bits are first
            b.put(b.get(b.at(value, b.mul(lane, I64(width))), element), b.at(start_of_lane, i * size))

    each_lane(e, e.mask, work)
    if space == "shared":
        mark(e, place, size * count)


def copy(e: Emitter, size: int, to: str, counted: bool) -> None:
    """Emit cp.async of all its bytes, or of none, which writes zeros."""
    b = e.b
    target = into_shared(e, addresses(e, 0, to))
    origin = addresses(e, 2, "b64")
    mask = e.mask
    if counted:
        byte_count = e.value(4, "b32", "b32")
        no_bytes = b.icmp_unsigned("==", byte_count, b.all(0, byte_count))
        all_bytes = b.icmp_unsigned(">=", byte_count, b.all(size, byte_count))
        e.needs(b.not_(b.any(b.and_(mask, b.not_(b.or_(no_bytes, all_bytes))))))
        mask = b.and_(mask, all_bytes)
    start = base(e, "shared", target, size, e.mask)
    reads, checked = b.append_basic_block(), b.append_basic_block()
    b.cbranch(b.any(mask), reads, checked)
    b.position_at_end(reads)
    base(e, "global", origin, size, mask)
    b.branch(checked)
    b.position_at_end(checked)
    target_place, place = listed(e, target), listed(e, origin)
    element = lanes(I8, size)
    bits = b.bitcast(mask, I32)

    def work(b, lane):
        to = place_of(b, start, target_place, lane)
        is_active = b.trunc(b.lshr(bits, b.trunc(lane, I32)), I1)
        with b.if_else(is_active) as (then, otherwise):
            with then:
                b.put(b.get(place_of(b, I64(0), place, lane), element), to)
            with otherwise:
                b.put(ir.Constant(element, [I8(0)] * size), to)

    each_lane(e, e.mask, work)
    mark(e, target_place, size)


def matrices(e: Emitter, count: int, transposed: bool, register: str) -> None:
    """Emit ldmatrix. Its slots are of the results, then of the address and its offset."""
    b = e.b
    at = into_shared(e, addresses(e, count, register))
    first = ir.Constant(lanes(I1), [I1(i < 8 * count) for i in range(WARP)])
    start = base(e, "shared", at, 16, first)
    place = listed(e, at)
    _rows_written(e, place, 8 * count)
    for m in range(count):
        target = e.place(m)
        rows = [place_of(b, start, place, 8 * m + row) for row in range(8)]
        if not transposed:
            for row, start_of_row in enumerate(rows):  # of each row four lanes have two neighbours each
                b.put(b.get(start_of_row, lanes(I32, 4)), b.at(target, 16 * row), 4)
            continue
        for row, start_of_row in enumerate(rows):
            for column in range(8):
                b.put(b.get(b.at(start_of_row, 2 * column), I16), b.at(target, 2 * (8 * column + row)))


def _rows_written(e: Emitter, place: ir.Value, count: int) -> None:
    """Emit the check of `written`, for rows of 16 bytes."""
    b = e.b
    with asked(e) as shadow:
        all_written = b.all(1, lanes(I8, 16))
        for row in range(count):
            all_written = b.and_(all_written, b.get(place_of(b, shadow, place, row), lanes(I8, 16)))
        e.needs(b.icmp_unsigned("==", b.intrinsic("vector.reduce.and", [all_written], I8), I8(1)))
