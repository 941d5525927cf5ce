"""Operands of an instruction: sources as functions of a warp, and the registers of results."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from ptx_machine.lanes import DTYPES, SIGNS, WARP, Lanes, raw, refuse
from ptx_machine.memory import SHARED
from ptx_machine.syntax import BITS, Address, Immediate, Instruction, Negated, Operand, Register, Symbol, parts
from ptx_machine.warp import Warp

Source: TypeAlias = Callable[[Warp], Lanes]
Addresses: TypeAlias = Mapping[str, int]  # of names


def constant(value: Immediate, kind: str) -> Lanes:
    """Return a number of the text as a type, (32,)."""
    if value.type == "f64" and kind in ("f32", "b32"):
        number = np.array([value.value], np.uint64).view(np.float64).astype(np.float32)
        return np.repeat(number.view(DTYPES[kind]), WARP)
    if kind == "pred":
        return np.full(WARP, value.value != 0)
    dtype = DTYPES[kind]
    bits = np.array([value.value % (1 << BITS[kind])], f"uint{8 * dtype.itemsize}")
    return np.repeat(bits.view(dtype), WARP)


def source(operand: Operand, kind: str, instruction: Instruction, names: Addresses) -> Source:
    """Return the function of a warp that reads an operand as a type, (32,)."""
    if isinstance(operand, Symbol):
        operand = Immediate(named(operand.name, instruction, names) + operand.offset)
    if isinstance(operand, Register):
        register = operand
        return lambda warp: warp.read(register, kind)
    if isinstance(operand, Immediate):
        lanes = constant(operand, kind)
        return lambda warp: lanes
    if isinstance(operand, Negated):
        register = operand.register
        return lambda warp: negated(warp.read(register, kind), kind)
    raise refuse(instruction, f"the operand {operand} is not modelled")


def negated(x: Lanes, kind: str) -> Lanes:
    """Return floats of a type (32,) with their signs changed; of predicates, the opposite."""
    return ~x if kind == "pred" else (x.view(raw(kind)) ^ np.array(SIGNS[kind], raw(kind))).view(DTYPES[kind])


def named(name: str, instruction: Instruction, names: Addresses) -> int:
    """Return the address of a name.

    Raises:
        ValueError: there is no such variable.
    """
    if name not in names:
        reason = f"there is no variable {name} (addresses of functions are not modelled)"
        raise refuse(instruction, f"{name} is not modelled" if name.startswith("%") else reason)
    return names[name]


def address(operand: Operand, instruction: Instruction, names: Addresses) -> Source:
    """Return the function of a warp that computes [base + offset], uint64 (32,).

    Raises:
        ValueError: the operand is no address.
    """
    if not isinstance(operand, Address):
        raise refuse(instruction, f"got {operand} for an address")
    base, offset = operand.base, operand.offset
    if isinstance(base, Register):
        register, add = base, np.uint64(offset % (1 << 64))
        wide = BITS[base.type] == 64

        def at(warp):
            sums = warp.bits(register).astype(np.uint64) + add
            return sums if wide else sums & np.uint64(0xFFFFFFFF)

        return at
    start = base.value if isinstance(base, Immediate) else named(base.name, instruction, names)
    lanes = np.full(WARP, (start + offset) % (1 << 64), np.uint64)
    return lambda warp: lanes


def targets(operand: Operand, instruction: Instruction) -> list[Register | None]:
    """Return the registers of results; None for a result that is dropped.

    Raises:
        ValueError: an operand is no register.
    """
    items = parts(operand)
    if not all(item is None or isinstance(item, Register) for item in items):
        raise refuse(instruction, f"got {operand} for a result")
    return [item for item in items if item is None or isinstance(item, Register)]


def both(operand: Operand, instruction: Instruction) -> list[Register | None]:
    """Return the registers of the two results of first | second; of a single result, its register and None."""
    return [*targets(operand, instruction), None][:2]


def whole(operand: Operand, instruction: Instruction) -> int:
    """Return the number of an immediate operand.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(operand, Immediate):
        raise refuse(instruction, f"got {operand}; accepted is a number")
    return operand.value


def sources(operand: Operand, kind: str, instruction: Instruction, names: Addresses) -> list[Source]:
    """Return the sources of the operands of {a, b, ...}, or of one operand, as `source` does."""
    return [source(item, kind, instruction, names) for item in parts(operand)]


def into_shared(addresses: Lanes) -> Lanes:
    """Convert generic addresses of shared memory, uint64 (32,), to addresses of shared memory; leave those as they
    are."""
    return np.where(addresses >= np.uint64(SHARED), addresses - np.uint64(SHARED), addresses)
