"""wgmma: Hopper's product of matrices, by four warps together, B (and A) in shared memory. The text: PTX ISA,
"Asynchronous Warpgroup Level Matrix Instructions".

Each warp of a group has 16 rows of A and of the result, so each computes its own part when it comes to the instruction;
a kernel that waits for the product, as it must, sees no difference. The products are summed as a `TensorCore` does.
"""

import re

import numpy as np

from ptx_machine.device import GPU
from ptx_machine.lanes import refuse
from ptx_machine.matrix import WHOLE, WIDTHS, assembled, from_result, left, numbers, summed, to_result
from ptx_machine.memory import BadAccess
from ptx_machine.operands import Addresses, source, targets, whole
from ptx_machine.shared_matrices import Descriptor, places, read
from ptx_machine.syntax import BITS, Instruction, Operand, Register, Vector, parts
from ptx_machine.warp import ALL, Step, Warp

WARPS = 4  # of a group
ROWS = 16  # of a warp
KNOWN = {"wgmma", "mma_async", "sync", "aligned"}


class Product:
    """What a wgmma.mma_async multiplies, and where it lies.

    Attributes:
        n, k: columns of the result, and length of the sum.
        gives, kind: types of the result and of the factors. size: bytes of a factor.
        into: registers of the result. left: registers of A; () where it is in shared memory.
        signs: 1 or -1, of A and B.
        a_turned, b_turned: whether a factor in shared memory has neighbours across the sum side by side."""

    def __init__(self, instruction: Instruction, names: Addresses):
        words = instruction.words
        shape = next((word for word in words if re.fullmatch(r"m64n\d+k\d+", word)), "")
        if not shape or {*words} - KNOWN - {shape, *instruction.types} or len(instruction.types) != 3:
            raise refuse(instruction, "its kind of matrices is not modelled")
        self.gives, self.kind, other = instruction.types
        self.n, self.k = (int(x) for x in re.findall(r"\d+", shape)[1:])
        results = ("s32",) if self.kind in WHOLE else ("f32", "f16")
        if self.kind != other or self.kind not in WIDTHS or self.gives not in results:
            raise refuse(instruction, "factors of these types are not modelled")
        d, a, b, keeps, *immediates = instruction.operands
        numbers_behind = [whole(each, instruction) for each in immediates]
        self.size = WIDTHS[self.kind] // 8
        self.into, in_registers = _registers(d, instruction), isinstance(a, Vector)
        self.left = _registers(a, instruction) if in_registers else ()
        self._a = source(a, "b64", instruction, names) if not in_registers else None
        self._b, self._keeps = source(b, "b64", instruction, names), source(keeps, "pred", instruction, names)
        due = self.n * BITS[self.gives] // 64, 4 if in_registers else 0
        if (len(self.into), len(self.left)) != due:
            got = len(self.into), len(self.left)
            raise refuse(instruction, f"got {got} registers of D and A; accepted are {due}")
        self.signs, turned = numbers_behind[:2] or [1, 1], numbers_behind[2:]
        self.a_turned, self.b_turned = len(turned) == 2 and bool(turned[0]), bool(turned) and bool(turned[-1])

    def keeps(self, warp: Warp) -> bool:
        """Return whether the product is added to what the result's registers have."""
        return bool(self._keeps(warp)[0])

    def left_places(self, warp: Warp) -> np.ndarray:
        """Return the addresses in shared memory of the warp's rows of A, int64 (16, k)."""
        assert self._a is not None
        own = ROWS * (warp.index % WARPS)
        return self._places(self._a(warp)[0], WARPS * ROWS, self.a_turned)[own : own + ROWS]

    def right_places(self, warp: Warp) -> np.ndarray:
        """Return the addresses in shared memory of B, int64 (n, k)."""
        return self._places(self._b(warp)[0], self.n, self.b_turned)

    def _places(self, bits: int, rows: int, turned: bool) -> np.ndarray:
        try:
            return places(Descriptor.of(int(bits)), rows, self.k, self.size, not turned)
        except ValueError as error:
            raise BadAccess(0, str(error)) from None

    def factors(self, warp: Warp) -> tuple[np.ndarray, np.ndarray]:
        """Return A (16, k) and B (n, k), float64."""
        shared = warp.block.memory.shared
        if self.left:
            A = assembled([warp.bits(register) for register in self.left], self.kind, (ROWS, self.k), left)
        else:
            A = numbers(read(shared, self.left_places(warp), self.size), self.kind)
        B = numbers(read(shared, self.right_places(warp), self.size), self.kind)
        return A if self.signs[0] == 1 else -A, B if self.signs[1] == 1 else -B

    def before(self, warp: Warp) -> np.ndarray:
        """Return C (16, n), float64."""
        if not self.keeps(warp):
            return np.zeros((ROWS, self.n))
        return from_result(np.stack([warp.bits(register) for register in self.into]), self.gives)


def multiply(instruction: Instruction, names: Addresses, gpu: GPU) -> Step:
    """Make the step of wgmma."""
    if instruction.words[1] != "mma_async":
        return lambda warp, mask: None  # fence, commit_group, wait_group: the product is there already
    product = Product(instruction, names)
    try:
        core = gpu.core(product.kind, product.gives, "wgmma") if product.kind not in WHOLE else None
    except ValueError as error:
        raise refuse(instruction, str(error)) from None

    def step(warp, mask):
        (A, B), C = product.factors(warp), product.before(warp)
        D = A @ B.T + C if core is None else summed(core, A, np.ascontiguousarray(B.T), C)
        warp.write_each(product.into, to_result(D, product.gives), ALL)

    return step


def _registers(operand: Operand, instruction: Instruction) -> tuple[Register, ...]:
    """The registers of {a, b, ...}, of 32 bits each."""
    registers = tuple(each for each in targets(operand, instruction) if each is not None and BITS[each.type] == 32)
    if len(registers) != len(parts(operand)):
        raise refuse(instruction, "accepted are registers of 32 bits")
    return registers
