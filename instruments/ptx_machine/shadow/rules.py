"""How an instruction's result gets its shadows from those of its operands: arithmetic, conversions, moves of bits.

Each rule is made once for an instruction. It is a function of a warp and a mask that reads the operands before the
instruction runs, and returns a function that gives the result its shadows afterwards.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ptx_machine.floats import EXACTLY
from ptx_machine.lanes import refuse
from ptx_machine.operands import Addresses, source, targets
from ptx_machine.shadow import values
from ptx_machine.shadow.policy import Line, Policy
from ptx_machine.syntax import Immediate, Instruction, Negated, Operand, Register, Vector

Begin: TypeAlias = Callable  # of (warp, mask); it returns a function without arguments, or None
KINDS = {"f32": "word", "f16": "half", "bf16": "half", "f16x2": "pair", "bf16x2": "pair"}


def _extreme(pick):
    return lambda a, b: np.where(np.isnan(a), b, np.where(np.isnan(b), a, pick(a, b)))


ARITHMETIC = {  # without rounding, on float64
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c, "mad": lambda a, b, c: a * b + c,
    "div_add": lambda a, b, c: a / b + c, "neg": lambda a: -a, "abs": np.abs,
    "min": _extreme(np.minimum), "max": _extreme(np.maximum),
    **{name: run for name, (_, run) in EXACTLY.items()},
}  # fmt: skip


def operand_of(operand: Operand, kind: str, instruction: Instruction, names: Addresses):
    """Return the function of a warp that gives an operand of a float type: float64 (parts, 32), and its shadows
    (variants, parts, 32), or the operand itself as (1, parts, 32) where it has none."""
    read = source(operand, kind, instruction, names)
    register = operand.register if isinstance(operand, Negated) else operand
    sign = -1.0 if isinstance(operand, Negated) else 1.0

    def of(warp):
        actual = values.numbers(read(warp), kind)
        shadows = values.of(warp, register, KINDS.get(kind, "word")) if isinstance(register, Register) else None
        return actual, actual[None] if shadows is None else np.where(np.isnan(shadows), actual, sign * shadows)

    return of


def result_of(instruction: Instruction) -> Register:
    """Return the register of an instruction's only result.

    Raises:
        ValueError: it has none, or more.
    """
    (register,) = targets(instruction.operands[0], instruction)
    if register is None:
        raise refuse(instruction, "its result is dropped")
    return register


def arithmetic(instruction: Instruction, names: Addresses, policy: Policy) -> Begin | None:
    """Make the rule of an instruction that computes with floats in every lane; None: it is none, or of FP64."""
    kind = instruction.types[-1] if instruction.types else ""
    if kind not in KINDS or instruction.name not in ARITHMETIC:
        return None
    run, words = ARITHMETIC[instruction.name], instruction.words

    def clamped(*operands):
        x = run(*operands)
        x = np.clip(x, 0.0, 1.0) if "sat" in words else x
        return np.maximum(x, 0.0) if "relu" in words else x

    operands = [operand_of(operand, kind, instruction, names) for operand in instruction.operands[1:]]
    return computed(instruction, operands, clamped, kind, policy)


def computed(instruction: Instruction, operands: list, run: Callable, kind: str, policy: Policy) -> Begin:
    """Make the rule of a result of a type: `run` of the operands (each of `operand_of`), and an error of its line."""
    into = result_of(instruction)
    line, what = Line(instruction.frames), f"{instruction.name}.{kind}"

    def begin(warp, mask):
        read = [operand(warp) for operand in operands]
        with np.errstate(all="ignore"):
            exact, shadows = (run(*(each[i] for each in read)) for i in (0, 1))

        def end():
            actual = values.numbers(warp.read(into, kind), kind)
            result = policy.result(line, what, actual, exact, shadows, mask)
            if result is not None:
                values.put(warp, into, KINDS[kind], result, mask)

        return end

    return begin


def conversion(instruction: Instruction, names: Addresses, policy: Policy) -> Begin | None:
    """Make the rule of cvt between floats, which rounds, and of 16 bits that become 32 or the reverse; None: of whole
    numbers."""
    gives, *takes = instruction.types
    whole = any(word in ("rni", "rzi", "rmi", "rpi") for word in instruction.words)
    if gives in KINDS and takes and takes[-1] in KINDS and not whole:
        kind = takes[-1]
        operands = [operand_of(operand, kind, instruction, names) for operand in instruction.operands[1:]]

        def joined(*x):  # the first operand is the upper half
            return np.concatenate(np.broadcast_arrays(*reversed(x)), -2)

        run = (lambda *x: np.maximum(joined(*x), 0.0)) if "relu" in instruction.words else joined
        return computed(instruction, operands, run, gives, policy)
    if {gives, *takes} <= {"u16", "u32", "b16", "b32"}:
        return moved(instruction, instruction.operands[1], "half")
    return None


def moved(
    instruction: Instruction, operand: Operand, *kinds: str, by: Callable = lambda x: x, into: str = ""
) -> Begin | None:
    """Make the rule of a result that is an operand as it is, or turned by `by` of (variants, parts, 32), of the
    operand's kind or the kind `into`."""
    target = targets(instruction.operands[0], instruction)[0]
    if not isinstance(operand, Register) or target is None:
        return None

    look = found_in(operand, *kinds)

    def begin(warp, mask):
        found = look(warp)
        if found is None:
            return None
        kind, shadows = found
        return lambda: values.put(warp, target, into or kind, by(shadows), mask)

    return begin


def move(instruction: Instruction, names: Addresses, policy: Policy) -> Begin | None:
    """Make the rule of mov: of a register, and of parts that become a register or come out of one."""
    to, of = instruction.operands
    if isinstance(of, Vector) and len(of.items) == 2 and isinstance(of.items[0], Immediate) and of.items[0].value == 0:
        return moved(instruction, of.items[1], "half", into="word")  # BF16 above 16 zeros is FP32
    if isinstance(of, Vector) and len(of.items) in (2, 4):
        return together(instruction, [found_in(item, "half", "word", "pair") for item in of.items])
    if isinstance(to, Vector) and len(to.items) == 2 and isinstance(of, Register):
        into = targets(to, instruction)

        def begin(warp, mask):
            found = found_in(of, "pair", "words", "quad")(warp)
            if found is None:
                return None
            parts = np.split(found[1], 2, 1)

            def end():
                for register, part in zip(into, parts):
                    if register is not None:
                        values.put(warp, register, values.SPLIT[found[0]], part, mask)

            return end

        return begin
    return moved(instruction, of, *values.PARTS)


def found_in(operand: Operand, *kinds: str):
    """Return the function of a warp that gives (kind, shadows (variants, parts, 32)) of an operand; None: none."""

    def of(warp):
        if isinstance(operand, Register):
            for kind in kinds:
                shadows = values.of(warp, operand, kind)
                if shadows is not None:
                    return kind, shadows
        return None

    return of


def together(instruction: Instruction, parts: list[Callable]) -> Begin | None:
    """Make the rule of a register that is joined of two or four parts, the lowest first; each of `found_in`."""
    into = targets(instruction.operands[0], instruction)[0]
    if into is None:
        return None

    def begin(warp, mask):
        found = [part(warp) for part in parts]
        while len(found) > 1:
            found = [values.joined(found[i : i + 2]) for i in range(0, len(found), 2)]
        if found[0] is None:
            return None
        kind, shadows = found[0]
        return lambda: values.put(warp, into, kind, shadows, mask)

    return begin


def selection(instruction: Instruction, names: Addresses, policy: Policy) -> Begin | None:
    """Make the rule of selp: the shadows of the operand that is chosen."""
    into = result_of(instruction)
    choices, condition = instruction.operands[1:3], source(instruction.operands[3], "pred", instruction, names)

    def begin(warp, mask):
        first = condition(warp)
        found = {}
        for i, operand in enumerate(choices):
            known = found_in(operand, *values.PARTS)(warp)
            if known is not None:
                found.setdefault(known[0], [np.nan, np.nan])[i] = known[1]
        if not found:
            return None
        (kind, (a, b)), *_ = found.items()
        return lambda: values.put(warp, into, kind, np.where(first, a, b), mask)

    return begin


def loses(instruction: Instruction, policy: Policy) -> Begin | None:
    """Make the rule of an instruction without one of its own: it notes that shadows end there."""
    line = Line(instruction.frames)
    registers = [operand for operand in instruction.operands[1:] if isinstance(operand, Register)]
    if not registers or instruction.name in ("setp", "bra"):
        return None

    def begin(warp, mask):
        if any(values.of(warp, register, kind) is not None for register in registers for kind in values.PARTS):
            counts = policy.lost.setdefault(line, {})
            counts[f"{instruction}"] = counts.get(f"{instruction}", 0) + int(mask.sum())
        return None

    return begin
