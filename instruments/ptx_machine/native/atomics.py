"""atom on whole numbers in shared memory, on LLVM's lanes: one after the other, in their order."""

from collections.abc import Callable

from llvmlite import ir

from ptx_machine.native.emitter import Emitter
from ptx_machine.native.memory import addresses, each_lane, listed, place_of, window, written
from ptx_machine.native.vectors import I32, I64

ATOMIC = ("add", "min", "max", "exch")


def atomic(e: Emitter, operation: str, signed: bool, register: str, read: Callable[[Emitter], ir.Value]) -> None:
    """Emit atom.shared. Its slots are of the result, of the address, a register of type `register`, of its offset, and
    of the operand, which `read` reads."""
    at, operand = addresses(e, 1, register), read(e)
    start, flags, _ = window(e, "shared", at, 4, e.mask)
    place, operands, target = listed(e, at), listed(e, operand), e.place(0)
    written(e, flags, at, place, 4)

    def work(b, lane):
        here, offset = place_of(b, start, place, lane), b.mul(lane, I64(4))
        old, x = b.get(here, I32), b.get(b.at(operands, offset), I32)
        b.put(_result(b, operation, signed, old, x), here)
        b.put(old, b.at(target, offset))

    each_lane(e, e.mask, work)


def _result(b, operation, signed, old, x):
    if operation == "exch":
        return x
    if operation == "add":
        return b.add(old, x)
    compare = b.icmp_signed if signed else b.icmp_unsigned
    return b.select(compare("<" if operation == "min" else ">", x, old), x, old)
