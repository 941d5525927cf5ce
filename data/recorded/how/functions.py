"""The special functions of a GPU: the tables that `ptx_machine.special_unit` reads, and samples of every instruction.

A table is a binade, 2^23 results. They are whole multiples of a power of two, and their differences take a byte each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

BINADE = 1 << 23


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: as `special_unit.table` takes it. key: its instruction in instructions.cu.
        exponent: of its operands, [2^exponent, 2^(exponent + 1)). halved: whether results are half of those of the next
            binade, as 2^x for x in [0, 1) is. scale: what its results are multiples of.
    """

    name: str
    key: str
    exponent: int
    scale: float
    halved: bool = False


TABLES = (
    Table("ex2", "ex2_ftz", 0, 2.0**-23, halved=True), Table("rcp", "rcp_ftz", 0, 2.0**-24),
    Table("rsqrt0", "rsqrt_ftz", 0, 2.0**-24), Table("rsqrt1", "rsqrt_ftz", 1, 2.0**-24),
    Table("sqrt0", "sqrt_ftz", 0, 2.0**-23), Table("sqrt1", "sqrt_ftz", 1, 2.0**-23),
    Table("lg2_0", "lg2_ftz", 0, 2.0**-36), Table("lg2_1", "lg2_ftz", -1, 2.0**-36),
)  # fmt: skip
SAMPLED = (
    "ex2_ftz", "ex2", "lg2_ftz", "lg2_f32", "rcp_ftz", "rcp_f32", "rsqrt_ftz", "rsqrt_f32", "sqrt_ftz", "sqrt_f32",
    "tanh_f32",
)  # fmt: skip
BINARY = ("div_ftz", "div_f32", "div_full_ftz", "div_full")
SHORT = {"ex2_f16": "ex2_f16", "ex2_ftz_bf16": "ex2_bf16", "tanh_f16": "tanh_f16", "tanh_bf16": "tanh_bf16"}
SAMPLES = 1 << 16


def binade(exponent: int, device: str) -> Tensor:
    """All FP32 numbers of [2^exponent, 2^(exponent + 1)): (2^23,)."""
    first = (exponent + 127) << 23
    return torch.arange(first, first + BINADE, dtype=torch.int32, device=device).view(torch.float32)


def packed(function: Callable[[Tensor], Tensor], table: Table, device: str) -> dict[str, Any]:
    """Make a table for the file of `special_unit`: <name>_steps, integers (2^23 - 1,), <name>_first and <name>_scale.

    Raises:
        ValueError: a result is no multiple of the table's scale.
    """
    y = function(binade(table.exponent, device)).cpu().double().numpy() / (2 if table.halved else 1)
    whole = np.rint(y / table.scale)
    if not np.array_equal(whole * table.scale, y):
        raise ValueError(f"{table.name}: results are no multiples of {table.scale}")
    steps = np.diff(whole.astype(np.int64))
    kind = next(kind for kind in (np.int8, np.int16, np.int32) if np.array_equal(steps.astype(kind), steps))
    return {f"{table.name}_steps": steps.astype(kind), f"{table.name}_first": whole[0].astype(np.int64),
            f"{table.name}_scale": table.scale}  # fmt: skip


def operands(count: int) -> list[np.ndarray]:
    """Draw `count` operands for `sampled`, float32 (2 SAMPLES,): first any bits, then sizes 2^-30 to 2^30."""
    chance, drawn = np.random.default_rng(0), []
    for _ in range(count):
        anything = chance.integers(0, 1 << 32, SAMPLES, dtype=np.uint32)
        sizes = np.ldexp(chance.uniform(1, 2, SAMPLES), chance.integers(-30, 30, SAMPLES)).astype(np.float32)
        usual = sizes * chance.choice([-1, 1], SAMPLES).astype(np.float32)
        drawn.append(np.concatenate([anything.view(np.float32), usual]))
    return drawn


def sampled(function: Callable[..., Tensor], count: int, device: str) -> np.ndarray:
    """Return the results' bits for `operands`, uint32 (2 SAMPLES,)."""
    y = function(*(torch.from_numpy(x).to(device) for x in operands(count)))
    return y.cpu().numpy().view(np.uint32)
