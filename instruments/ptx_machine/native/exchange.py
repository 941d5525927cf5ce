"""shfl on LLVM's lanes, where all lanes of a warp take part."""

from llvmlite import ir

from ptx_machine.native.emitter import Emitter
from ptx_machine.native.memory import each_lane
from ptx_machine.native.vectors import I8, I32, I64, lanes


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
