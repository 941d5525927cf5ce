"""Loads and stores, on LLVM's lanes. An access that is a fault, or whose lanes are in several tensors, changes nothing
and is left to the numpy machine."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
from llvmlite import ir

from ptx_machine.lanes import WARP
from ptx_machine.memory import SHARED, WORD
from ptx_machine.native.emitter import Emitter, Memory, NotNative
from ptx_machine.native.encode import Field
from ptx_machine.native.traced import Traced
from ptx_machine.native.vectors import I1, I8, I32, I64, POINTER, Builder, lanes
from ptx_machine.operands import into_shared
from ptx_machine.syntax import BITS

NONE = (1 << 64) - 1


def addresses(e: Emitter, slot: int, register: str) -> ir.Value:
    """Emit [register + offset], 64 bits; the offset is in the next slot."""
    b = e.b
    bits = e.value(slot, register, register)
    offset = b.splat(e.slot(slot + 1))
    if BITS[register] == 64:
        return b.add(bits, offset)
    return b.and_(b.add(b.zext(bits, lanes(I64)), offset), b.all(0xFFFFFFFF, lanes(I64)))


def shared_addresses(e: Emitter, slot: int, register: str) -> ir.Value:
    """Emit `addresses` of shared memory, which may be generic."""
    return into_shared(Traced(e.b, addresses(e, slot, register), np.dtype(np.uint64))).value


class Window(NamedTuple):
    """Where the accesses of an instruction lie: the address of byte 0 as they count it, and that of its flag among the
    bytes that were written, or 0 where there are no flags; whether global memory may be unwritten, or 0."""

    start: ir.Value
    flags: ir.Value
    fresh: ir.Value = I64(0)


def window(e: Emitter, space: str, at: ir.Value, size: int, mask: ir.Value) -> Window:
    """Emit the window of a space, where all accesses are inside it and aligned; else leave the instruction to the numpy
    machine. Generic accesses must all lie in shared memory, or all in one tensor."""
    low = e.b.intrinsic("vector.reduce.umin", [e.b.select(mask, at, e.b.all(NONE, at))], I64)
    end = _end(e, at, size, mask)
    if space == "global":
        return Window(I64(0), I64(0), inside(e, low, end))
    if space == "generic":
        return _generic(e, low, end)
    field = {"shared": Memory.SHARED, "param": Memory.PARAMETERS}.get(space)
    if field is None:
        raise NotNative
    e.needs(e.b.icmp_unsigned("<=", end, e.of(Memory(field + 1))))
    return Window(e.of(field), e.of(Memory.WRITTEN) if space == "shared" else I64(0))


def _end(e: Emitter, at: ir.Value, size: int, mask: ir.Value) -> ir.Value:
    """Emit the address behind all accesses; where one is misaligned, leave the instruction to the numpy machine."""
    b = e.b
    counting = b.select(mask, at, b.all(0, at))
    high = b.intrinsic("vector.reduce.umax", [counting], I64)
    if size > 1:
        odd = b.intrinsic("vector.reduce.or", [counting], I64)
        e.needs(b.icmp_unsigned("==", b.and_(odd, I64(size - 1)), I64(0)))
    end = b.add(high, I64(size))
    e.needs(b.icmp_unsigned(">=", end, high))
    return end


def _generic(e: Emitter, low: ir.Value, end: ir.Value) -> Window:
    b, first = e.b, I64(SHARED)
    in_shared, in_global, behind = (b.append_basic_block() for _ in range(3))
    b.cbranch(b.icmp_unsigned(">=", low, first), in_shared, in_global)
    b.position_at_end(in_shared)
    e.needs(b.icmp_unsigned("<=", b.sub(end, first), e.of(Memory.SHARED_SIZE)))
    flags = e.of(Memory.WRITTEN)
    flags = b.select(b.icmp_unsigned("!=", flags, I64(0)), b.sub(flags, first), I64(0))
    found = [(Window(b.sub(e.of(Memory.SHARED), first), flags), b.block)]
    b.branch(behind)
    b.position_at_end(in_global)
    found.append((Window(I64(0), I64(0), inside(e, low, end)), b.block))
    b.branch(behind)
    b.position_at_end(behind)
    result = Window(b.phi(I64), b.phi(I64), b.phi(I64))
    for one, block in found:
        for phi, value in zip(result, one):
            phi.add_incoming(value, block)
    return result


def accesses(e: Emitter, space: str, slot: int, register: str, size: int, local: int) -> tuple[ir.Value, Window]:
    """Emit the addresses of a load or store, and their window. slot: of the address; local: of the bytes of local
    memory of a lane."""
    b, at = e.b, addresses(e, slot, register)
    if space != "local":
        return at, window(e, space, at, size, e.mask)
    of_lane = e.slot(local)
    e.needs(b.icmp_unsigned("<=", _end(e, at, size, e.mask), of_lane))
    lane = ir.Constant(lanes(I64), [I64(i) for i in range(WARP)])
    start = b.add(b.ptrtoint(e.registers, I64), I64(Field.LOCAL))
    return b.add(at, b.mul(lane, b.splat(of_lane))), Window(start, I64(0))


def place_of(b: Builder, start: ir.Value, listed: ir.Value, lane: ir.Value | int) -> ir.Value:
    """Emit a pointer to the beginning of a lane's access. listed: all lanes' addresses, in memory."""
    offset = I64(8 * lane) if isinstance(lane, int) else b.mul(lane, I64(8))
    return b.inttoptr(b.add(start, b.get(b.at(listed, offset), I64, 8)), POINTER)


def inside(e: Emitter, low: ir.Value, end: ir.Value) -> ir.Value:
    """Return NOT_DONE from the function unless one span has all bytes from low to end; emit whether it is fresh."""
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
    span = b.at(spans, b.mul(i, I64(24)))
    start, stop = b.get(span, I64, 8), b.get(b.at(span, 8), I64, 8)
    fits = b.and_(b.icmp_unsigned(">=", low, start), b.icmp_unsigned("<=", end, stop))
    i.add_incoming(b.add(i, I64(1)), next_one)
    b.cbranch(fits, covered, loop)
    b.position_at_end(out)
    b.ret(I64(0))
    b.position_at_end(covered)
    return b.get(b.at(span, 16), I64, 8)


def each_lane(e: Emitter, mask: ir.Value, work) -> None:
    """Emit a loop that does work(b, lane) for each lane of the mask; the lane's number is an int64."""
    b = e.b
    bits = b.bitcast(mask, I32)
    with b.counted(WARP) as lane, b.if_then(b.trunc(b.lshr(bits, b.trunc(lane, I32)), I1)):
        work(b, lane)


def together(
    e: Emitter, at: ir.Value, start: ir.Value, apart: int, work: Callable[[Builder, ir.Value], None] | None,
    otherwise: Callable[[], None],
) -> None:  # fmt: skip
    """Emit work(b, pointer to the first lane's access) where all 32 lanes access what lies `apart` bytes apart; else
    what `otherwise` emits."""
    if work is None:
        return otherwise()
    b, first = e.b, e.b.extract_element(at, I32(0))
    expected = b.add(b.splat(first), ir.Constant(lanes(I64), [I64(apart * i) for i in range(WARP)]))
    odd = b.any(b.icmp_unsigned("!=", at, expected))
    with b.if_else(b.and_(e.full, b.not_(odd))) as (then, other):
        with then:
            work(b, b.inttoptr(b.add(start, first), POINTER))
        with other:
            otherwise()


def listed(e: Emitter, at: ir.Value) -> ir.Value:
    """Store addresses in memory, for a loop over lanes."""
    place = e.b.room(at.type)
    e.b.put(at, place, 16)
    return place


def load(e: Emitter, space: str, kind: str, registers: list[str], of: str) -> None:
    """Emit ld. Its slots are of the results, then of the address, a register of type `of`, of its offset, and of the
    bytes of local memory.

    A wider register is filled with zeros, or with the sign of a type that has one."""
    if any(BITS[register] < BITS[kind] for register in registers):
        raise NotNative
    size, count = BITS[kind] // 8, len(registers)
    at, (start, flags, fresh) = accesses(e, space, count, of, size * count, count + 2)
    place = listed(e, at)
    written(e, flags, at, place, size * count)
    if space in ("global", "generic"):
        filled(e, fresh, start, place, size * count, e.mask)
    element = ir.IntType(BITS[kind])
    targets = [(e.place(i), BITS[register]) for i, register in enumerate(registers)]

    def extended(value, bits):
        wide = lanes(ir.IntType(bits)) if isinstance(value.type, ir.VectorType) else ir.IntType(bits)
        return value if value.type == wide else (e.b.sext if kind[0] == "s" else e.b.zext)(value, wide)

    def work(b, lane):
        start_of_lane = place_of(b, start, place, lane)
        for i, (target, bits) in enumerate(targets):
            value = extended(b.get(b.at(start_of_lane, i * size), element), bits)
            b.put(value, b.at(target, b.mul(lane, I64(bits // 8))))

    def apart():
        with e.b.if_else(e.full) as (then, otherwise):
            with then:
                for lane in range(WARP):
                    work(e.b, I64(lane))
            with otherwise:
                each_lane(e, e.mask, work)

    def at_once(b, first):
        for i, (target, bits) in enumerate(targets):
            b.put(extended(b.splat(b.get(b.at(first, i * size), element)), bits), target, 16)

    def in_a_row(b, first):
        for target, bits in targets:
            b.put(extended(b.get(first, lanes(element)), bits), target, 16)

    together(e, at, start, 0, at_once, lambda: together(
        e, at, start, size, in_a_row if count == 1 else None, apart))  # fmt: skip


def asked(e: Emitter, flags: ir.Value) -> AbstractContextManager:
    """Emit operations that are done only where there are flags of the bytes that were written: they are not at 0."""
    return e.b.if_then(e.b.icmp_unsigned("!=", flags, I64(0)))


def written(e: Emitter, flags: ir.Value, at: ir.Value, place: ir.Value, size: int) -> None:
    """Return NOT_DONE from the function unless all bytes that are read were written. place: of the addresses `at`."""
    with asked(e, flags):
        kind = ir.IntType(8 * size)  # the flags of an access at once
        ones, all_written = kind(int.from_bytes(b"\1" * size, "little")), e.b.room(kind)
        e.b.put(ones, all_written)

        def work(b, lane):
            b.put(b.and_(b.get(all_written, kind), b.get(place_of(b, flags, place, lane), kind)), all_written)

        def at_once(b, first):
            b.put(b.get(first, kind), all_written)

        def in_a_row(b, first):
            b.put(b.intrinsic("vector.reduce.and", [b.get(first, lanes(kind))], kind), all_written)

        together(e, at, flags, 0, at_once, lambda: together(
            e, at, flags, size, in_a_row, lambda: each_lane(e, e.mask, work)))  # fmt: skip
        e.needs(e.b.icmp_unsigned("==", e.b.get(all_written, kind), ones))


def filled(e: Emitter, fresh: ir.Value, start: ir.Value, place: ir.Value, size: int, mask: ir.Value) -> None:
    """Return NOT_DONE from the function if a word that is read may be one that nobody has written."""
    width = min(size, WORD)
    kind = ir.IntType(8 * width)
    with asked(e, fresh):
        empty = e.b.room(I8)
        e.b.put(I8(0), empty)

        def work(b, lane):
            first = place_of(b, start, place, lane)
            for i in range(0, size, width):
                all_set = b.icmp_signed("==", b.get(b.at(first, i), kind), kind(-1))
                b.put(b.or_(b.get(empty, I8), b.zext(all_set, I8)), empty)

        each_lane(e, mask, work)
        e.needs(e.b.icmp_unsigned("==", e.b.get(empty, I8), I8(0)))


def mark(e: Emitter, flags: ir.Value, at: ir.Value, place: ir.Value, size: int) -> None:
    """Note that the stored bytes were written. place: of the addresses `at`."""

    def in_a_row(b, first):
        b.put(b.all(1, lanes(I8, WARP * size)), first)

    def work(b, lane):
        b.put(b.all(1, lanes(I8, size)), place_of(b, flags, place, lane))

    with asked(e, flags):
        together(e, at, flags, size, in_a_row, lambda: each_lane(e, e.mask, work))


def store(e: Emitter, space: str, kind: str, registers: list[str], to: str) -> None:
    """Emit st. Its slots are of the address, a register of type `to`, of its offset, of the values, the lower bits of a
    wider register, and of the bytes of local memory."""
    if any(BITS[register] < BITS[kind] for register in registers):
        raise NotNative
    size, count = BITS[kind] // 8, len(registers)
    at, (start, flags, _) = accesses(e, space, 0, to, size * count, count + 2)
    place = listed(e, at)
    element = ir.IntType(BITS[kind])
    values = [(e.place(2 + i), BITS[register] // 8) for i, register in enumerate(registers)]

    def work(b, lane):
        start_of_lane = place_of(b, start, place, lane)
        for i, (value, width) in enumerate(values):  # little-endian: the lower bits are first
            b.put(b.get(b.at(value, b.mul(lane, I64(width))), element), b.at(start_of_lane, i * size))

    def in_a_row(b, first):
        bits = b.get(e.place(2), lanes(ir.IntType(BITS[registers[0]])), 16)
        b.put(b.trunc(bits, lanes(element)) if BITS[registers[0]] > BITS[kind] else bits, first)

    together(e, at, start, size, in_a_row if count == 1 else None, lambda: each_lane(e, e.mask, work))
    mark(e, flags, at, place, size * count)
