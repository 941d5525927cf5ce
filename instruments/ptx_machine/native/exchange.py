"""Exchanges of a warp on LLVM's lanes: shfl and movmatrix, where all lanes take part, and vote."""

from llvmlite import ir

from ptx_machine.native.emitter import Emitter
from ptx_machine.native.memory import each_lane
from ptx_machine.native.vectors import I8, I16, I32, I64, lanes


def shuffle(e: Emitter, mode: str, result: bool, inside: bool) -> None:
    """Emit shfl. Its slots are of the result and of the predicate, where there are such; of the value, of b, of c."""
    b = e.b
    e.needs(e.full)
    first = result + inside
    value, by, clamp = e.place(first), e.value(first + 1, "b32", "b32"), e.value(first + 2, "b32", "b32")
    lane = ir.Constant(lanes(I32), [I32(i) for i in range(32)])
    by = b.and_(by, b.all(31, by))
    segment, limit = b.and_(b.lshr(clamp, b.all(8, clamp)), b.all(31, clamp)), b.and_(clamp, b.all(31, clamp))
    low = b.and_(lane, segment)
    high = b.or_(low, b.and_(limit, b.not_(segment)))
    partner = {
        "up": lambda: b.sub(lane, by), "down": lambda: b.add(lane, by), "bfly": lambda: b.xor(lane, by),
        "idx": lambda: b.or_(low, b.and_(by, b.not_(segment))),
    }[mode]()  # fmt: skip
    good = b.icmp_signed(">=" if mode == "up" else "<=", partner, high)
    partner = b.select(good, partner, lane)
    place, out = b.room(lanes(I32)), b.room(lanes(I32))
    b.put(partner, place, 16)

    def work(b, i):
        at = b.zext(b.get(b.at(place, b.mul(i, I64(4))), I32), I64)
        b.put(b.get(b.at(value, b.mul(at, I64(4))), I32), b.at(out, b.mul(i, I64(4))))

    each_lane(e, e.mask, work)
    if result:
        b.put(b.get(out, lanes(I32)), e.place(0), 16)
    if inside:
        b.put(b.zext(good, lanes(I8)), e.place(int(result)), 16)


def vote(e: Emitter, mode: str, value: ir.Value) -> ir.Value:
    """Emit vote of a predicate: bits of the lanes for ballot, else a predicate, the same in every lane."""
    b, whole = e.b, ir.IntType(32)
    yes, every = (b.bitcast(mask, whole) for mask in (b.and_(value, e.mask), e.mask))
    if mode == "ballot":
        return b.splat(yes)
    none, all_of_them = b.icmp_unsigned("==", yes, whole(0)), b.icmp_unsigned("==", yes, every)
    return b.splat({"any": b.not_(none), "all": all_of_them, "uni": b.or_(none, all_of_them)}[mode])


def transpose(e: Emitter, value: ir.Value) -> ir.Value:
    """Emit movmatrix: it transposes a matrix of 8 x 8 in 16 bits, of which each lane has two, I32 lanes."""
    e.needs(e.full)
    halves = e.b.bitcast(value, lanes(I16, 64))
    turned = ir.Constant(lanes(I32, 64), [I32(8 * column + row) for row in range(8) for column in range(8)])
    return e.b.bitcast(e.b.shuffle_vector(halves, halves, turned), lanes(I32))
