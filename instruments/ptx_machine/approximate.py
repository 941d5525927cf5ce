"""Instructions that PTX calls approximate, with errors up to the bounds of its text: which value a GPU gives within a
bound is not documented. A machine with a `wobble` draws it, so that a result can be shown not to depend on it.

As on a GPU the value is a function of the operands: the same ones give the same value, everywhere in a kernel.
"""

from dataclasses import dataclass

import numpy as np

from ptx_machine.float64_carrier import PAIRS, odd_sum
from ptx_machine.floats import EXACTLY, elementwise
from ptx_machine.lanes import Lanes, Lanewise
from ptx_machine.syntax import Instruction

DIGITS = {"f32": 23, "f16": 10, "bf16": 7}  # behind the first, of a significand


@dataclass(frozen=True)
class Bound:
    """The largest error of an instruction: the largest of three bounds. ulps: units in the last place."""

    ulps: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0

    def of(self, y: Lanes, digits: int) -> Lanes:
        """Compute the bound of results y, float64 (32,), of a type with so many digits: float64 (32,)."""
        return np.maximum.reduce([self.ulps * _ulp(y, digits), self.relative * np.abs(y), y * 0 + self.absolute])


BOUNDS = {  # PTX ISA, section 9.7.3 and 9.7.4, of .approx, and of div.full
    ("ex2", "f32"): Bound(ulps=2), ("ex2", "f16"): Bound(relative=2**-9.9), ("ex2", "bf16"): Bound(relative=2**-7),
    ("lg2", "f32"): Bound(relative=2**-22, absolute=2**-22), ("rcp", "f32"): Bound(ulps=1),
    ("rsqrt", "f32"): Bound(relative=2**-22.9), ("sqrt", "f32"): Bound(relative=2**-23), ("div", "f32"): Bound(ulps=2),
    ("sin", "f32"): Bound(absolute=2**-20.5), ("cos", "f32"): Bound(absolute=2**-20.5),
    ("tanh", "f32"): Bound(relative=2**-11), ("tanh", "f16"): Bound(absolute=2**-10.987),
    ("tanh", "bf16"): Bound(relative=2**-8),
}  # fmt: skip


def wobbling(instruction: Instruction, seed: int) -> Lanewise | None:
    """Make the function of an approximate instruction, with errors within its bound, drawn from `seed`; None for
    another instruction."""
    if not {"approx", "full"} & {*instruction.words} or not instruction.types:
        return None
    kind = PAIRS.get(instruction.types[-1], instruction.types[-1])
    name = "div" if instruction.name == "div_add" else instruction.name  # the sum behind it has no error of its own
    bound = BOUNDS.get((name, kind))
    if bound is None:
        return None
    count, exactly = EXACTLY[name]
    salt = np.uint64(seed * 1_000_003 + sum(name.encode()))

    def off(*operands: Lanes) -> Lanes:
        y = exactly(*operands)
        room = np.maximum(bound.of(y, DIGITS[kind]) - _ulp(y, DIGITS[kind]) / 2, 0.0)  # it is rounded afterwards
        special = ~np.isfinite(y) | (y == 0) | np.any([x == 0 for x in operands], axis=0)
        return np.where(special, y, y + room * _chance(operands, salt))

    if name != instruction.name:
        return elementwise(count + 1, lambda *operands: odd_sum(off(*operands[:count]), operands[count]))(instruction)
    return elementwise(count, off)(instruction)


def _ulp(y: Lanes, digits: int) -> Lanes:
    _, exponent = np.frexp(np.where(np.isfinite(y), y, 1.0))
    return np.ldexp(1.0, exponent - 1 - digits)


def _chance(operands: tuple[Lanes, ...], salt: np.uint64) -> Lanes:
    """A number from -1 to 1 for each lane, by its operands: the finalizer of SplitMix64."""
    state = np.full(operands[0].shape, salt, np.uint64)
    with np.errstate(over="ignore"):
        for x in operands:
            state = (state ^ (x + 0.0).view(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
