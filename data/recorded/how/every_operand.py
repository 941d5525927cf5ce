"""`ptx_machine.special_unit` in torch, so that a GPU can be asked for every FP32 operand: 2^32 of each function."""

from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor

from ptx_machine.special_unit import CUT, FRACTION, table

NAN = 0x7FFFFFFF
SLICE = 1 << 25  # operands at a time
COUNT = 1 << 32


def models(device: str) -> dict[str, Callable[[Tensor], Tensor]]:
    """Make the functions by their launchers in instructions.cu: FP32 tensors (n,) -> (n,), on `device`."""
    names = ("ex2", "rcp", "rsqrt0", "rsqrt1", "sqrt0", "sqrt1", "lg2_0", "lg2_1")
    tables = {name: torch.from_numpy(table(name)).to(device) for name in names}

    def rounded(x: Tensor, y: Tensor, wrong: Tensor) -> Tensor:
        return flushed(torch.where(wrong | x.isnan(), torch.nan, y).float())

    def ex2(x: Tensor) -> Tensor:
        x = flushed(x)
        steps = (torch.where(x.isnan(), 0, x.abs()).double().clamp(max=512.0) * (FRACTION + 1)).long()
        steps = torch.where(x < 0, torch.where((steps & FRACTION) != 0, ~steps, -steps), steps)
        return rounded(x, tables["ex2"][steps & FRACTION] * power(steps >> 23), x.isnan())

    def rcp(x: Tensor) -> Tensor:
        x = flushed(x)
        exponent, significand = split(x)
        y = tables["rcp"][significand] * power(-exponent)
        y = torch.where(x == 0, torch.inf, torch.where(x.isinf(), 0.0, y))
        return rounded(x, torch.copysign(y, x.double()), x.isnan())

    def root(x: Tensor, name: str, sign: int) -> Tensor:
        exponent, significand = split(x)
        odd = exponent & 1
        found = torch.where(odd == 1, tables[f"{name}1"][significand], tables[f"{name}0"][significand])
        return found * power(sign * (exponent - odd) // 2)

    def rsqrt(x: Tensor) -> Tensor:
        x = flushed(x)
        infinite = torch.copysign(torch.full_like(x, torch.inf), x).double()
        y = torch.where(x == 0, infinite, torch.where(x.isinf(), 0.0, root(x, "rsqrt", -1)))
        return rounded(x, y, x < 0)

    def sqrt(x: Tensor) -> Tensor:
        x = flushed(x)
        return rounded(x, torch.where((x == 0) | x.isinf(), x.double(), root(x, "sqrt", 1)), x < 0)

    def lg2(x: Tensor) -> Tensor:
        x = flushed(x)
        exponent, significand = split(x)
        above = cut(exponent + tables["lg2_0"][significand].double())
        below = -cut(-exponent - 1 - tables["lg2_1"][significand].double())
        y = torch.where(x == 0, -torch.inf, torch.where(x.isinf(), torch.inf, torch.where(exponent >= 0, above, below)))
        return rounded(x, y, x < 0)

    def small(x: Tensor, yes: float, no: float) -> Tensor:
        return torch.where(x.abs() < 2.0**-126, yes, no).float()

    def halved(x: Tensor) -> Tensor:
        y = ex2(torch.where(x < -126, x * 0.5, x))
        return torch.where(x < -126, y * y, y)

    def scaled_rcp(x: Tensor) -> Tensor:
        by = torch.where(x.abs() > 2.0**126, 0.25, small(x, 2.0**24, 1.0)).float()
        return rcp(x * by) * by

    return {
        "ex2_ftz": ex2, "rcp_ftz": rcp, "rsqrt_ftz": rsqrt, "sqrt_ftz": sqrt, "lg2_ftz": lg2,
        "ex2": halved, "rcp_f32": scaled_rcp,
        "rsqrt_f32": lambda x: rsqrt(x * small(x, 2.0**24, 1.0)) * small(x, 2.0**12, 1.0),
        "sqrt_f32": lambda x: sqrt(x * small(x, 2.0**24, 1.0)) * small(x, 2.0**-12, 1.0),
        "lg2_f32": lambda x: lg2(x * small(x, 2.0**24, 1.0)) - small(x, 24.0, 0.0),
    }  # fmt: skip


def flushed(x: Tensor) -> Tensor:
    """Replace subnormal numbers by zero of their sign."""
    return torch.where(x.abs() < 2.0**-126, torch.copysign(torch.zeros_like(x), x), x)


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return exponent and fraction, int64 (n,), of FP32 numbers (n,)."""
    bits = x.view(torch.int32).long()
    return ((bits >> 23) & 255) - 127, bits & FRACTION


def power(exponent: Tensor) -> Tensor:
    """Compute 2^exponent in FP64."""
    return torch.pow(torch.tensor(2.0, dtype=torch.float64, device=exponent.device), exponent.double())


def cut(x: Tensor) -> Tensor:
    """Cut FP64 numbers off behind FP32's last digit."""
    return (x.view(torch.int64) & int(CUT)).view(torch.float64)


def different(function: Callable[[Tensor], Tensor], model: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Count the operands x, FP32 (n,), for which a function does not give the model's bits; NaN is one."""
    due = model(x)
    return int((function(x).view(torch.int32) != torch.where(due.isnan(), NAN, due.view(torch.int32))).sum())


def every_operand(functions: dict[str, Callable[[Tensor], Tensor]], device: str) -> pd.DataFrame:
    """Ask for every operand: function, different, operands. functions: launcher -> function, of `models`' keys."""
    rows = []
    for key, model in models(device).items():
        wrong = 0
        for first in range(-(COUNT // 2), COUNT // 2, SLICE):
            bits = torch.arange(SLICE, dtype=torch.int64, device=device) + first
            wrong += different(functions[key], model, bits.to(torch.int32).view(torch.float32))
        rows.append(dict(function=key, different=wrong, operands=COUNT))
    return pd.DataFrame(rows)
