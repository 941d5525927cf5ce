"""Values of a warp's 32 threads as numpy arrays: how the bits of registers are read and written as a type.

A register holds bits only, an unsigned array of its width. The type of an instruction gives them a meaning. BF16, 8-bit
floats and packed pairs stay bits: numpy has no type for them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ptx_machine.syntax import BITS, Instruction

WARP = 32
Lanes: TypeAlias = np.ndarray  # (32,)
_KINDS = {"u": "uint", "b": "uint", "s": "int"}
DTYPES: dict[str, np.dtype] = {
    name: np.dtype(f"{_KINDS.get(name[0], 'uint')}{bits}") for name, bits in BITS.items() if 8 <= bits <= 64
} | {"pred": np.dtype(bool), "f16": np.dtype("float16"), "f32": np.dtype("float32"), "f64": np.dtype("float64")}
DTYPES |= {name: np.dtype(f"uint{BITS[name]}") for name in ("bf16", "bf16x2", "f16x2", "tf32", "f32x2")}
SIGNS = {"f32": 1 << 31, "f16": 1 << 15, "bf16": 1 << 15, "f16x2": 0x80008000, "bf16x2": 0x80008000}  # bits of signs
FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f32x2", "f64")


@dataclass(frozen=True)
class Lanewise:
    """A result that an instruction computes in every thread, from that thread's values or from all of its warp's.

    Attributes:
        takes, gives: types of the operands and of the result.
        run: a function of arrays (32,) of DTYPES; its result is one too. It is compiled by what it does with them:
            `native.traced`.
    """

    takes: tuple[str, ...]
    gives: str
    run: Callable[..., Lanes]


Meaning: TypeAlias = Callable[[Instruction], Lanewise]  # it raises a ValueError for words without a meaning
Meanings: TypeAlias = Callable[[Instruction], Lanewise | tuple[Lanewise, ...]]  # of all results


def raw(kind: str) -> np.dtype:
    """Return the unsigned dtype of the bits of a register of a type."""
    return DTYPES["pred"] if kind == "pred" else np.dtype(f"uint{BITS[kind]}")


def read(bits: Lanes, kind: str) -> Lanes:
    """Return the bits of a register (32,), the lower ones of a wider register, as values of a type (32,)."""
    dtype = DTYPES[kind]
    if bits.dtype == dtype:
        return bits
    if bits.dtype.itemsize > dtype.itemsize:
        bits = bits.astype(raw(kind))
    return bits.view(dtype)


def write(values: Lanes, kind: str) -> Lanes:
    """Return values (32,) as the bits (32,) of a register of a type. Where it is wider, signed values are extended by
    their sign."""
    dtype = raw(kind)
    if values.dtype.itemsize == dtype.itemsize:
        return values.view(dtype)
    return values.astype(np.dtype(f"int{BITS[kind]}") if values.dtype.kind == "i" else dtype).view(dtype)


def looked_up(results: np.ndarray, places: Any) -> Any:
    """Return the results (n,) at places (32,)."""
    if isinstance(places, (int, np.ndarray)):
        return results[places]
    return places.looked_up(results)  # compiled code has an operation for it


def refuse(instruction: Instruction, reason: str) -> ValueError:
    """Make the error of an instruction that is not modelled, or does not fit, with the reason."""
    return ValueError(f"{instruction}: {reason}")
