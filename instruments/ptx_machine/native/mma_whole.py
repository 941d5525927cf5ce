"""mma.sync of whole numbers on LLVM's lanes: sums in 32 bits, which 32 products of 8 bits each do not fill."""

from ptx_machine.native.emitter import Emitter
from ptx_machine.native.mma import COLUMNS, factors, registers, to_two_registers, two_registers
from ptx_machine.native.vectors import I32, I64, lanes

ROW = lanes(I32, COLUMNS)


def product(e: Emitter, shape: tuple[int, int, int], kinds: tuple[str, str], saturated: bool) -> None:
    """Emit mma.sync of whole numbers. Its slots are of the result's 4 registers, of A's, of B's and of C's 4."""
    b, (_, _, k) = e.b, shape
    A, B = factors(e, 4, shape, kinds)
    C = b.room(lanes(I32, 64), 2)
    at_c = 4 + registers(shape, kinds[0])
    for half in range(2):
        b.put(two_registers(b, [e.place(at_c + 2 * half + i) for i in range(2)]), b.at(C, 256 * half))
    with b.counted(16) as i:
        row, c_row = b.at(A, b.mul(i, I64(4 * k))), b.at(C, b.mul(i, I64(32)))
        total = b.all(0, ROW)
        for j in range(k):
            a = b.splat(b.get(b.at(row, 4 * j), I32), COLUMNS)
            total = b.add(total, b.mul(a, b.get(b.at(B, 32 * j), ROW)))
        c = b.get(c_row, ROW)
        b.put(b.intrinsic("sadd.sat", [c, total]) if saturated else b.add(c, total), c_row)
    for half in range(2):
        to_two_registers(b, [e.place(2 * half + i) for i in range(2)], b.get(b.at(C, 256 * half), lanes(I32, 64)))
