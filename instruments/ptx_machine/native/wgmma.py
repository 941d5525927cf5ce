"""wgmma on LLVM's lanes: eight columns of the result after the other, each as mma.sync has them, of factors that lie
in shared memory as `shared_matrices` says."""

from collections.abc import Callable
from functools import reduce

import numpy as np
from llvmlite import ir

from fa_lib.numerics.tensor_cores import TensorCore
from ptx_machine.matrix import WIDTHS, left
from ptx_machine.native import mma
from ptx_machine.native.emitter import Emitter, Memory
from ptx_machine.native.memory import asked
from ptx_machine.native.traced import Traced
from ptx_machine.native.vectors import DOUBLE, I8, I32, I64, POINTER, lanes
from ptx_machine.shared_matrices import LINES, Descriptor, place
from ptx_machine.warpgroup import ROWS, WARPS, Product

INTO, ZEROS, WARP_NUMBER, LEFT = range(4)  # slots; the first is of the places of the result's registers


def multiply(
    e: Emitter, product: Product, core: TensorCore, reads: list[Callable[[Emitter], Traced]],
) -> None:  # fmt: skip
    """Emit wgmma.mma_async. reads: the operands A, unless registers hold it, B, and whether C is added."""
    b, k, kind, sums = e.b, product.k, product.kind, len(product.into) * mma.COLUMNS // product.n
    *descriptors, kept = (b.extract_element(read(e).value, I32(0)) for read in reads)
    right = SharedMatrix(e, descriptors[-1], kind, product.b_turned)
    if product.left:
        A = mma.assembled(e, [e.place(LEFT + i) for i in range(len(product.left))], kind, k, left)
    else:
        of_warp = b.and_(b.zext(b.get(e.place(WARP_NUMBER), I32), I64), I64(WARPS - 1))
        A = _rows_of(SharedMatrix(e, descriptors[0], kind, product.a_turned), b.mul(of_warp, I64(ROWS)), k)
    places = mma.Places.of(b, k, A, b.room(DOUBLE, mma.COLUMNS * k))
    results = b.room(lanes(I32), len(product.into))

    def register(number):
        return b.at(e.registers, b.get(b.at(e.place(INTO), b.mul(number, I64(8))), I64, 8))

    with b.counted(product.n // mma.COLUMNS) as j:
        for line, x in enumerate(right.eight(b.mul(j, I64(mma.COLUMNS)), k)):
            b.put(x if product.signs[0] == product.signs[1] else b.fneg(x), b.at(places.B, 64 * line))
        numbers = [b.add(b.mul(j, I64(sums)), I64(i)) for i in range(sums)]
        before = [b.select(kept, register(number), e.place(ZEROS)) for number in numbers]
        mma.read_sums(b, before, product.gives, places.C)
        mma.add_product(e, core, k, places)
        mma.write_sums(b, [b.at(results, b.mul(number, I64(128))) for number in numbers], product.gives, places.D)
    with b.counted(len(product.into)) as number:
        b.put(b.get(b.at(results, b.mul(number, I64(128))), lanes(I32), 16), register(number), 16)


class SharedMatrix:
    """A matrix in shared memory, by the bits of its descriptor. turned: neighbours across the sum are neighbours in
    memory."""

    def __init__(self, e: Emitter, bits: ir.Value, kind: str, turned: bool):
        b = e.b
        self.e, self.kind, self.size, self.turned = e, kind, WIDTHS[kind] // 8, turned
        e.needs(b.icmp_unsigned("==", b.and_(bits, I64(7 << 49)), I64(0)))  # its base offset
        self.descriptor = Descriptor.fields(self._eight(bits))

    def _eight(self, number: ir.Value) -> Traced:
        return Traced(self.e.b, self.e.b.splat(number, LINES), np.dtype(np.int64))

    def eight(self, first: ir.Value, k: int) -> list[ir.Value]:
        """Emit the elements of eight rows, or columns of B, from `first` on: a vector for each of k along the sum."""
        e, b = self.e, self.e.b
        rows = self._eight(first) + np.arange(LINES)
        at = [place(self.descriptor, rows, i, self.size, not self.turned) for i in range(k)]
        end = b.add(b.intrinsic("vector.reduce.umax", [reduce(np.maximum, at).value], I64), I64(self.size))
        e.needs(b.icmp_unsigned("<=", end, e.of(Memory.SHARED_SIZE)))
        places = [each.value for each in at]
        with asked(e, e.of(Memory.WRITTEN)):
            written = reduce(b.and_, self._gathered(places, Memory.WRITTEN, I8))
            e.needs(b.icmp_unsigned("==", b.intrinsic("vector.reduce.and", [written], I8), I8(1)))
        bits = self._gathered(places, Memory.SHARED, ir.IntType(8 * self.size))
        return [mma.converted(b, each, self.kind) for each in bits]

    def _gathered(self, places: list[ir.Value], field: Memory, kind: ir.IntType) -> list[ir.Value]:
        b, start = self.e.b, self.e.of(field)
        vectors = []
        for at in places:
            vector = ir.Constant(lanes(kind, LINES), ir.Undefined)
            for i in range(LINES):
                pointer = b.inttoptr(b.add(start, b.extract_element(at, I32(i))), POINTER)
                vector = b.insert_element(vector, b.get(pointer, kind), I32(i))
            vectors.append(vector)
        return vectors


def _rows_of(matrix: SharedMatrix, first: ir.Value, k: int) -> ir.Value:
    """Assemble the 16 rows of A from `first` on."""
    b = matrix.e.b
    A = b.room(DOUBLE, ROWS * k)
    for half in range(2):
        for line, column in enumerate(matrix.eight(b.add(first, I64(LINES * half)), k)):
            for i in range(LINES):
                b.put(b.extract_element(column, I32(i)), b.at(A, 8 * (k * (LINES * half + i) + line)))
    return A
