"""Inputs that kernels are measured on, and the golden value and Baseline's error there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention_check.conventions.low_bits import baseline_in
from fa_lib import kernels
from fa_lib.kernels.equal_maxima import draw_maxima
from fa_lib.kernels.inputs import DISTRIBUTIONS, draw
from fa_lib.numerics.formats import BF16, FP16, FP32, Format
from fa_lib.numerics.metrics import deviation
from fa_lib.theory.worst_inputs import worst_inputs

BIASED = "two maxima"  # V > 0: the inputs that make a BF16 accumulator drift
WORST = "worst found"  # the worst that a search found for a kernel that carries BF16
ORDINARY = ("uniform", "normal")
TROUBLE = (*(name for name in DISTRIBUTIONS if name not in ORDINARY), BIASED, WORST)
OUTPUTS = 1024  # compared at least: the largest error of a few could be small by luck, Baseline's too
ROWS = 256  # of O that are compared at most, spread evenly: with head_dim 64, of 16,384 outputs


@dataclass(frozen=True)
class Inputs:
    """Q, K, V that kernels are measured on, rounded to a format.

    With one query and head_dim 64 there would be 64 outputs, so that there are 16 heads then: always as many as make
    OUTPUTS outputs.

    Attributes:
        fmt: name of the format. distribution: of `inputs.DISTRIBUTIONS`, or BIASED or WORST. n: keys.
        queries: None is as many as keys; fewer are for kernels the last ones. seed, head_dim, device: as always.
        causal: whether kernels mask.
        arithmetic: of Baseline, as of `low_bits.baseline_in`.

    Raises:
        ValueError: BIASED or WORST with fewer queries than keys, which they have not.
    """

    fmt: str
    distribution: str
    n: int
    seed: int
    queries: int | None = None
    head_dim: int = 64
    causal: bool = False
    device: str = "cpu"
    arithmetic: str = ""

    def __post_init__(self):
        if self.queries is not None and self.distribution in (BIASED, WORST):
            raise ValueError(f"queries: got {self.queries}; accepted with {self.distribution!r} is None")

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Q (1, heads, queries, head_dim), K and V (1, heads, n, head_dim) in the format's dtype."""
        q, k, v = _drawn(self)
        return q.clone(), k.clone(), v.clone()  # a kernel may change its own

    def rows(self, most: int = ROWS) -> Tensor:
        """The rows of O that are compared: int64 (rows,)."""
        n_q = self.queries or self.n
        return torch.linspace(0, n_q - 1, min(n_q, most), dtype=torch.float64).round().long()

    def options(self, rows: Tensor, n_kv: int) -> dict[str, Any]:
        """What a kernel with a mask is told, so that some rows alone see what they see in the call."""
        if not self.causal:
            return {}
        last = rows + n_kv - (self.queries or self.n)  # aligned bottom-right
        return dict(mask=(torch.arange(n_kv) <= last[:, None]).to(self.device))

    def compared(self, kernel: Callable, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Those rows (1, heads, rows, d_v) of what a kernel with a mask gives, and no other ones computed."""
        rows = self.rows()
        return kernel(q[..., rows.to(q.device), :], k, v, **options, **self.options(rows, k.shape[-2]))


@lru_cache(maxsize=1)
def _drawn(inputs):
    fmt, d = Format.of(inputs.fmt), inputs.head_dim
    heads = -(-OUTPUTS // ((inputs.queries or inputs.n) * d))
    found = _before_rounding(inputs.distribution, inputs.seed, inputs.n, d, inputs.queries, heads)
    if inputs.distribution in DISTRIBUTIONS and fmt in (BF16, FP16, FP32):  # draws are on FP32's grid: torch's rounding
        return tuple(x.to(inputs.device, fmt.dtype) for x in found)  # is one, and that of fmt, five times faster
    return tuple(fmt(x).to(inputs.device, fmt.dtype) for x in found)


def draw_inputs(distribution: str, seed: int, n: int, head_dim: int, queries: int | None = None, heads: int = 1):
    """Q (1, heads, queries, head_dim), K and V (1, heads, n, head_dim), float64, of a name of `inputs.DISTRIBUTIONS`,
    or of BIASED or WORST, which have one head and as many queries as keys."""
    if distribution == WORST:
        return worst_inputs(n, seed, head_dim)
    if distribution == BIASED:
        return draw_maxima(2, "positive", seed, n=n, rows=n, head_dim=head_dim)[:3]
    return draw(distribution, seed, (1, heads, queries or n, head_dim), (1, heads, n, head_dim))


_before_rounding = lru_cache(maxsize=1)(draw_inputs)  # one draw serves every format


@lru_cache(maxsize=1)  # of inputs that several emulations are tried on
def reference_values(inputs: Inputs) -> dict[str, Tensor]:
    """What every kernel is held to on some Inputs: `golden`, the golden value's rows (1, heads, rows, head_dim), and
    `baseline`: max, rmse and outwards (`bias_away_from_zero`) of Baseline on the same rows."""
    fmt, tensors = Format.of(inputs.fmt), inputs.tensors()
    golden = inputs.compared(kernels.golden, *tensors, inputs=fmt)
    baseline = inputs.compared(baseline_in(inputs.arithmetic, fmt), *tensors)
    d = deviation(baseline, golden, fmt)
    numbers = torch.tensor([d.max, d.rmse, bias_away_from_zero(baseline, golden, fmt)], dtype=torch.float64)
    return dict(golden=golden.cpu(), baseline=numbers)


def bias_away_from_zero(o: Tensor, golden: Tensor, fmt: Format) -> float:
    """Mean signed difference of o to the golden value, of one shape, rounded to fmt, the best an output can be (some
    inputs make that rounding biased itself); positive where it points away from zero; in ulp at the golden value's
    root mean square."""
    golden = golden.cpu()
    error = (o.detach().double().cpu() - fmt(golden)) / fmt.ulp(golden.square().mean().sqrt())
    return (error * golden.sign()).mean().item()


def fitted(o: Tensor, golden: Tensor) -> tuple[float, float]:
    """The factor of the golden value that is nearest to an output of its shape, and the share of its squared error
    that this factor makes; 1 and 0 where there is no error."""
    o, golden = o.detach().double().cpu(), golden.cpu()
    error = (o - golden).square().sum().item()
    if not error:
        return 1.0, 0.0
    factor = ((o * golden).sum() / golden.square().sum()).item()
    return factor, 1 - (o - factor * golden).square().sum().item() / error


def bits(o: Tensor, fmt: Format) -> int:
    """The fewest significant bits that hold every output, finite numbers of a format; 0 where all are 0. Among some
    hundred outputs of a kernel one has all the bits of the format, unless it computes in a coarser one."""
    significands, _ = torch.frexp(o.detach().double().cpu())
    integers = (significands.abs() * 2.0**fmt.precision).round().long().flatten().numpy()
    any_set = int(np.bitwise_or.reduce(integers))
    return fmt.precision - ((any_set & -any_set).bit_length() - 1) if any_set else 0
