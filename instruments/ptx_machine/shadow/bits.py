"""Rules of whole-number instructions that compilers use on floats: halves, signs, exponents."""

import numpy as np

from ptx_machine.operands import Addresses
from ptx_machine.shadow import values
from ptx_machine.shadow.policy import Policy
from ptx_machine.shadow.rules import Begin, found_in, moved, result_of, together
from ptx_machine.syntax import Immediate, Instruction, Operand, Register

HIGH, SIGN, PICKS = 0xFFFF0000, 0x80000000, {0x10: 0, 0x32: 1, 0x54: 2, 0x76: 3}  # two bytes of prmt -> a half


def bits(instruction: Instruction, names: Addresses, policy: Policy) -> Begin | None:
    """Make the rule of whole-number instructions that compilers use on floats: BF16 is the upper half of FP32, a sign
    is a bit, and a pair is joined of bytes. None: of others."""
    name, operands = instruction.name, instruction.operands
    number = next((x.value & 0xFFFFFFFF for x in operands[1:] if isinstance(x, Immediate)), None)
    register = next((x for x in operands[1:] if isinstance(x, Register)), None)
    if name == "prmt" and isinstance(operands[3], Immediate):
        picks = [PICKS[byte] for shift in (0, 8) if (byte := operands[3].value >> shift & 0xFF) in PICKS]
        if len(picks) < 2:
            return None
        return together(instruction, [_part(operands[1 + pick // 2], pick % 2) for pick in picks])
    if name in ("add", "sub") and instruction.types in (("s32",), ("u32",)):
        return _by_power(instruction)
    if register is None or number is None:
        return None
    if name == "shl" and number == 16:
        return moved(instruction, register, "half", "pair", by=_first, into="word")
    if name == "and" and number == HIGH:
        return moved(instruction, register, "pair", by=_second, into="word")
    if name == "shr" and number == 16:
        return moved(instruction, register, "pair", by=_second, into="half")
    if name == "and" and number == 0xFFFF:
        return moved(instruction, register, "pair", by=_first, into="half")
    if name == "xor" and number == SIGN:
        return moved(instruction, register, "word", by=np.negative)
    return None


def _by_power(instruction: Instruction) -> Begin:
    """Make the rule of a whole-number sum that changes a float's exponent: the shadows are multiplied by that power of
    two. Logarithms and exponentials of compilers do so."""
    into, operands = result_of(instruction), [x for x in instruction.operands[1:] if isinstance(x, Register)]

    def begin(warp, mask):
        for operand in operands:
            shadows = values.of(warp, operand, "word")
            if shadows is not None:
                break
        else:
            return None
        before = values.numbers(warp.read(operand, "f32"), "f32")

        def end():
            with np.errstate(all="ignore"):
                times = values.numbers(warp.read(into, "f32"), "f32") / before
                powers = np.frexp(times)[0] == 0.5
            values.put(warp, into, "word", np.where(powers, shadows * times, np.nan), mask)

        return end

    return begin


def _first(shadows: np.ndarray) -> np.ndarray:
    return shadows[:, :1]


def _second(shadows: np.ndarray) -> np.ndarray:
    return shadows[:, 1:]


def _part(operand: Operand, part: int):
    """Return the function of a warp that gives ("half", shadows (variants, 1, 32)) of a half of an operand; None:
    none."""
    pair = found_in(operand, "pair")

    def of(warp):
        found = pair(warp)
        return None if found is None else ("half", found[1][:, part : part + 1])

    return of
