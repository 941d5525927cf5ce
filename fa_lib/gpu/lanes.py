"""Values of a warp's 32 threads as numpy arrays: how the bits of registers are read and written as a type.

A register holds bits alone, an unsigned array of its width. An instruction's type says what they mean. BF16, 8-bit
floats and packed pairs stay bits: numpy has no type for them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fa_lib.gpu.syntax import BITS, Instruction

WARP = 32
Lanes: TypeAlias = np.ndarray  # (32,)
_KINDS = {"u": "uint", "b": "uint", "s": "int"}
DTYPES: dict[str, np.dtype] = {
    name: np.dtype(f"{_KINDS.get(name[0], 'uint')}{bits}") for name, bits in BITS.items() if 8 <= bits <= 64
} | {"pred": np.dtype(bool), "f16": np.dtype("float16"), "f32": np.dtype("float32"), "f64": np.dtype("float64")}
DTYPES |= {name: np.dtype(f"uint{BITS[name]}") for name in ("bf16", "bf16x2", "f16x2", "tf32")}
FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")


@dataclass(frozen=True)
class Lanewise:
    """An instruction that does the same in every thread, from the values of that thread alone.

    Attributes:
        takes, gives: types of its operands and of its result.
        run: of arrays (32,) of DTYPES; so is the result.
    """

    takes: tuple[str, ...]
    gives: str
    run: Callable[..., Lanes]


Meaning: TypeAlias = Callable[[Instruction], Lanewise]  # ValueError: it has none for these words


def raw(kind: str) -> np.dtype:
    """The unsigned type of the bits of a register."""
    return DTYPES["pred"] if kind == "pred" else np.dtype(f"uint{BITS[kind]}")


def read(bits: Lanes, kind: str) -> Lanes:
    """The bits of a register, of which the lower ones are taken, as a type."""
    dtype = DTYPES[kind]
    if bits.dtype == dtype:
        return bits
    if bits.dtype.itemsize > dtype.itemsize:
        bits = bits.astype(raw(kind))
    return bits.view(dtype)


def write(values: Lanes, kind: str) -> Lanes:
    """The bits of a register of a type that may be wider than the values' own: these are extended by their sign."""
    dtype = raw(kind)
    if values.dtype.itemsize == dtype.itemsize:
        return values.view(dtype)
    return values.astype(np.dtype(f"int{BITS[kind]}") if values.dtype.kind == "i" else dtype).view(dtype)


def refuse(instruction: Instruction, reason: str) -> ValueError:
    return ValueError(f"{instruction}: {reason}")
