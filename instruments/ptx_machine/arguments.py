"""Arguments of a kernel as the bytes of its parameters: `Structure`."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ptx_machine.fake_cuda import is_fresh
from ptx_machine.memory import Span
from ptx_machine.syntax import Parameter

SIZES = (1, 2, 4, 8)  # of numbers and pointers, in bytes
POINTERS = ", a tensor, or None for no pointer"


@dataclass(frozen=True)
class Structure:
    """A structure that a kernel takes by value.

    Attributes:
        layout: field -> (offset, size) in bytes. size: of the structure, in bytes.
        values: field -> value; fields without one are 0, and tensors are pointers.
    """

    layout: Mapping[str, tuple[int, int]]
    size: int
    values: Mapping[str, Any] = field(default_factory=dict)


def _pointer(tensor: Tensor, name: str, storages: dict[int, Span]) -> int:
    with torch._C.DisableTorchFunction():  # inside, a tensor that pretends to be on a GPU is where it is
        if tensor.device.type != "cpu":
            raise ValueError(f"{name}: got a tensor on {tensor.device}; accepted is one on the CPU")
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        if storage.nbytes():
            data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            storages.setdefault(start, Span(start, data, name, is_fresh(start)))
        return tensor.data_ptr()


def fill(place: np.ndarray, structure: Structure, index: int, storages: dict[int, Span]) -> None:
    """Write the bytes of a structure to its place, uint8 (size,). index: the argument's number. storages: address ->
    memory that it points to, which are added.

    Raises:
        ValueError: it does not fit.
    """
    if structure.size != place.size:
        raise ValueError(f"argument {index}: got a structure of {structure.size} bytes; accepted are {place.size}")
    for name, value in structure.values.items():
        if name not in structure.layout:
            raise ValueError(f"argument {index}: got a field {name!r}; accepted are {', '.join(structure.layout)}")
        offset, size = structure.layout[name]
        parameter = Parameter(name, None, offset, size)
        place[offset : offset + size] = np.frombuffer(as_bytes(value, parameter, name, storages), np.uint8)


def as_bytes(value: Any, parameter: Parameter, name: str, storages: dict[int, Span]) -> bytes:
    """Convert a number or a tensor's pointer to the bytes of a parameter. storages: as of `fill`.

    Raises:
        ValueError: it does not fit.
    """
    size, kind = parameter.size, (parameter.type or "b")[0]
    if size == 8 and kind != "f" and (value is None or isinstance(value, Tensor)):
        value = 0 if value is None else _pointer(value, name, storages)
    floating = kind == "f" or kind == "b" and isinstance(value, float)  # Triton says b32 of a float
    if floating:
        fits = isinstance(value, (int, float)) and size in (2, 4, 8)
    else:
        fits = isinstance(value, int) and size in SIZES and -(1 << 8 * size - 1) <= value < 1 << 8 * size
    if not fits:
        what = f"{value!r}" if isinstance(value, (int, float, str)) else type(value).__name__
        accepted = "a number" if floating else f"a whole number of {size} bytes{POINTERS if size == 8 else ''}"
        raise ValueError(f"{name}: got {what} for a parameter of type {parameter.type}; accepted is {accepted}")
    if floating:
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], value)
    return (int(value) % (1 << 8 * size)).to_bytes(size, "little")
