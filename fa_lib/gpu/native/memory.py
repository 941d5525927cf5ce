"""Loads, stores and matrices from memory, on LLVM's lanes. An access that is no plain one (it is a fault, or lanes are
in several tensors) changes nothing and is left to the numpy machine."""

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
    """Of [register + offset], whose number of bytes is in the next slot."""
    b = e.b
    held = e.value(slot, register, register)
    offset = b.splat(e.slot(slot + 1))
    if BITS[register] == 64:
        return b.add(held, offset)
    return b.and_(b.add(b.zext(held, lanes(I64)), offset), b.all(0xFFFFFFFF, lanes(I64)))


def into_shared(e: Emitter, at: ir.Value) -> ir.Value:
    b = e.b
    return b.select(b.icmp_unsigned(">=", at, b.all(SHARED, at)), b.sub(at, b.all(SHARED, at)), at)


def base(e: Emitter, space: str, at: ir.Value, size: int, mask: ir.Value) -> ir.Value:
    """The address of a space's byte 0, where all accesses are in it and aligned; else the numpy machine looks."""
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
    """Where a lane's access begins. listed: all lanes' addresses, in memory."""
    offset = I64(8 * lane) if isinstance(lane, int) else b.mul(lane, I64(8))
    return b.inttoptr(b.add(start, b.get(b.at(listed, offset), I64, 8)), POINTER)


def inside(e: Emitter, low: ir.Value, end: ir.Value) -> None:
    """Whether one span has them all."""
    b = e.b
    spans, count = e.of(Memory.SPANS, POINTER), e.of(Memory.SPAN_COUNT)
    before = b.block
    loop, found, next_one, out = (b.append_basic_block() for _ in range(4))
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
    b.cbranch(fits, found, loop)
    b.position_at_end(out)
    b.ret(I64(0))
    b.position_at_end(found)


def each_lane(e: Emitter, mask: ir.Value, work) -> None:
    """work(b, lane) for each lane of the mask, one after the other; the lane's number is an int64."""
    b = e.b
    bits = b.bitcast(mask, I32)
    before, loop, body, behind, out = b.block, *(b.append_basic_block() for _ in range(4))
    b.branch(loop)
    b.position_at_end(loop)
    i = b.phi(I64)
    i.add_incoming(I64(0), before)
    taken = b.trunc(b.lshr(bits, b.trunc(i, I32)), I1)
    b.cbranch(taken, body, behind)
    b.position_at_end(body)
    work(b, i)
    b.branch(behind)
    b.position_at_end(behind)
    after = b.add(i, I64(1))
    i.add_incoming(after, behind)
    b.cbranch(b.icmp_unsigned("<", after, I64(WARP)), loop, out)
    b.position_at_end(out)


def listed(e: Emitter, at: ir.Value) -> ir.Value:
    """Addresses in memory, for a loop over lanes."""
    place = e.b.room(at.type)
    e.b.put(at, place, 16)
    return place


def load(e: Emitter, space: str, kind: str, registers: list[str], of: str) -> None:
    """ld: slots of the results, then the address, in a register of type `of`, and its offset."""
    if space == "generic" or any(BITS[register] != BITS[kind] for register in registers):
        raise NotNative
    size, count = BITS[kind] // 8, len(registers)
    at = addresses(e, count, of)
    start = base(e, space, at, size * count, e.mask)
    place = listed(e, at)
    if space == "shared":
        written(e, place, size * count)
    element = ir.IntType(BITS[kind])
    targets = [e.place(i) for i in range(count)]

    def work(b, lane):
        here = place_of(b, start, place, lane)
        for i, target in enumerate(targets):
            b.put(b.get(b.at(here, i * size), element), b.at(target, b.mul(lane, I64(size))))

    each_lane(e, e.mask, work)


@contextmanager
def asked(e: Emitter) -> Iterator[ir.Value]:
    """Where it is kept what was written: what is emitted inside is done where somebody asks for that."""
    b = e.b
    shadow = e.of(Memory.WRITTEN)
    inner, behind = b.append_basic_block(), b.append_basic_block()
    b.cbranch(b.icmp_unsigned("!=", shadow, I64(0)), inner, behind)
    b.position_at_end(inner)
    yield shadow
    b.branch(behind)
    b.position_at_end(behind)


def written(e: Emitter, place: ir.Value, size: int) -> None:
    """Whether all that is read was written."""
    with asked(e) as shadow:
        known = e.b.room(I8)
        e.b.put(I8(1), known)

        def work(b, lane):
            here = place_of(b, shadow, place, lane)
            for i in range(size):
                b.put(b.and_(b.get(known, I8), b.get(b.at(here, i), I8)), known)

        each_lane(e, e.mask, work)
        e.needs(e.b.icmp_unsigned("==", e.b.get(known, I8), I8(1)))


def mark(e: Emitter, place: ir.Value, size: int) -> None:
    """What is stored is written."""
    ones = ir.Constant(lanes(I8, size), [I8(1)] * size)
    with asked(e) as shadow:
        each_lane(e, e.mask, lambda b, lane: b.put(ones, place_of(b, shadow, place, lane)))


def store(e: Emitter, space: str, kind: str, registers: list[str], to: str) -> None:
    """st: the address, in a register of type `to`, and its offset, then slots of the values."""
    if space == "generic" or any(BITS[register] != BITS[kind] for register in registers):
        raise NotNative
    size, count = BITS[kind] // 8, len(registers)
    at = addresses(e, 0, to)
    start = base(e, space, at, size * count, e.mask)
    place = listed(e, at)
    element = ir.IntType(BITS[kind])
    values = [e.place(2 + i) for i in range(count)]

    def work(b, lane):
        here = place_of(b, start, place, lane)
        for i, value in enumerate(values):
            b.put(b.get(b.at(value, b.mul(lane, I64(size))), element), b.at(here, i * size))

    each_lane(e, e.mask, work)
    if space == "shared":
        mark(e, place, size * count)


def copy(e: Emitter, size: int, to: str, counted: bool) -> None:
    """cp.async of all its bytes, or of none: then zeros."""
    b = e.b
    target = into_shared(e, addresses(e, 0, to))
    origin = addresses(e, 2, "b64")
    mask = e.mask
    if counted:
        given = e.value(4, "b32", "b32")
        none = b.icmp_unsigned("==", given, b.all(0, given))
        whole = b.icmp_unsigned(">=", given, b.all(size, given))
        e.needs(b.not_(b.any(b.and_(mask, b.not_(b.or_(none, whole))))))
        mask = b.and_(mask, whole)
    start = base(e, "shared", target, size, e.mask)
    reads, checked = b.append_basic_block(), b.append_basic_block()
    b.cbranch(b.any(mask), reads, checked)
    b.position_at_end(reads)
    base(e, "global", origin, size, mask)
    b.branch(checked)
    b.position_at_end(checked)
    there, place = listed(e, target), listed(e, origin)
    element = lanes(I8, size)
    bits = b.bitcast(mask, I32)

    def work(b, lane):
        to = place_of(b, start, there, lane)
        taken = b.trunc(b.lshr(bits, b.trunc(lane, I32)), I1)
        with b.if_else(taken) as (then, otherwise):
            with then:
                b.put(b.get(place_of(b, I64(0), place, lane), element), to)
            with otherwise:
                b.put(ir.Constant(element, [I8(0)] * size), to)

    each_lane(e, e.mask, work)
    mark(e, there, size)


def matrices(e: Emitter, count: int, transposed: bool, register: str) -> None:
    """ldmatrix: slots of the results, then the address and its offset."""
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
            for row, here in enumerate(rows):  # of each row four lanes have two neighbours each
                b.put(b.get(here, lanes(I32, 4)), b.at(target, 16 * row), 4)
            continue
        for row, here in enumerate(rows):
            for column in range(8):
                b.put(b.get(b.at(here, 2 * column), I16), b.at(target, 2 * (8 * column + row)))


def _rows_written(e: Emitter, place: ir.Value, count: int) -> None:
    """As `written`, for rows of 16 bytes."""
    b = e.b
    with asked(e) as shadow:
        known = b.all(1, lanes(I8, 16))
        for row in range(count):
            known = b.and_(known, b.get(place_of(b, shadow, place, row), lanes(I8, 16)))
        e.needs(b.icmp_unsigned("==", b.intrinsic("vector.reduce.and", [known], I8), I8(1)))
