"""cp.async and ldmatrix, on LLVM's lanes; faults are left to the numpy machine, as in `memory`."""

from llvmlite import ir

from ptx_machine.lanes import WARP
from ptx_machine.native.emitter import Emitter
from ptx_machine.native.memory import (
    addresses,
    asked,
    each_lane,
    filled,
    listed,
    mark,
    place_of,
    shared_addresses,
    window,
)
from ptx_machine.native.vectors import I1, I8, I16, I32, I64, lanes


def copy(e: Emitter, size: int, to: str, counted: bool) -> None:
    """Emit cp.async of all its bytes, or of none, which writes zeros."""
    b = e.b
    target = shared_addresses(e, 0, to)
    origin = addresses(e, 2, "b64")
    mask = e.mask
    if counted:
        byte_count = e.value(4, "b32", "b32")
        no_bytes = b.icmp_unsigned("==", byte_count, b.all(0, byte_count))
        all_bytes = b.icmp_unsigned(">=", byte_count, b.all(size, byte_count))
        e.needs(b.not_(b.any(b.and_(mask, b.not_(b.or_(no_bytes, all_bytes))))))
        mask = b.and_(mask, all_bytes)
    start, flags, _ = window(e, "shared", target, size, e.mask)
    target_place, place = listed(e, target), listed(e, origin)
    with b.if_then(b.any(mask)):
        filled(e, window(e, "global", origin, size, mask).fresh, I64(0), place, size, mask)
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
    mark(e, flags, target, target_place, size)


def matrices(e: Emitter, count: int, transposed: bool, register: str) -> None:
    """Emit ldmatrix. Its slots are of the results, then of the address and its offset."""
    b = e.b
    at = shared_addresses(e, count, register)
    first = ir.Constant(lanes(I1), [I1(i < 8 * count) for i in range(WARP)])
    start, flags, _ = window(e, "shared", at, 16, first)
    place = listed(e, at)
    _rows_written(e, flags, place, 8 * count)
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


def _rows_written(e: Emitter, flags: ir.Value, place: ir.Value, count: int) -> None:
    """Emit the check of `written`, for rows of 16 bytes."""
    b = e.b
    with asked(e, flags):
        all_written = b.all(1, lanes(I8, 16))
        for row in range(count):
            all_written = b.and_(all_written, b.get(place_of(b, flags, place, row), lanes(I8, 16)))
        e.needs(b.icmp_unsigned("==", b.intrinsic("vector.reduce.and", [all_written], I8), I8(1)))
