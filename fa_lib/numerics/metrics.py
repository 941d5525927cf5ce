"""How far a result is from the golden value."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float64
from torch import Tensor

from fa_lib.numerics.formats import Format, FormatLike


@dataclass(frozen=True)
class Deviation:
    """Differences out - golden over all elements.

    Attributes:
        max, mean, std, rmse, p99: of the absolute difference (std: its standard deviation).
        relative: rmse over the root mean square of golden, by `over_baseline`'s rule for 0 / 0.
        bias: mean of the signed difference.
        bias_se: standard error of `bias` given K and V, from the spread of row means: the elements of one row share
            a softmax. The rows of a head share K and V, whose part it does not see: compare seeds for that.
        max_ulp, mean_ulp: the absolute difference in units in the last place of the format, at the golden value.
        nonfinite: NaN or infinite differences. If there are any, the numbers above are NaN or infinite too.
        count: elements compared.
    """

    max: float
    mean: float
    std: float
    rmse: float
    relative: float
    p99: float
    bias: float
    bias_se: float
    max_ulp: float
    mean_ulp: float
    nonfinite: int
    count: int


def deviation(
    out: Float[Tensor, "*shape"],
    golden: Float[Tensor, "*shape"],
    fmt: FormatLike | None = None,
    beyond: Float64[Tensor, "*shape"] | None = None,
) -> Deviation:
    """Compute the Deviation of `out` from `golden`, in float64.

    Args:
        out, golden: tensors of one shape (..., head_dim).
        fmt: the Format that ulp are counted in; None is that of out's dtype.
        beyond: float64 of that shape, the low part of the golden value, as `kernels.golden_pair` gives it; None is 0.

    Raises:
        ValueError: the shapes differ or are empty.
    """
    if out.shape != golden.shape or not out.numel():
        raise ValueError(f"out: got shape {tuple(out.shape)}; accepted is golden's, {tuple(golden.shape)}, not empty")
    fmt = Format.of(fmt or out.dtype)
    golden = golden.detach().double().cpu()
    signed = out.detach().double().cpu() - golden
    if beyond is not None:
        signed = signed - beyond.cpu()
    size = signed.abs()
    ulps = size / fmt.ulp(golden)
    rows = signed.reshape(-1, signed.shape[-1] if signed.ndim else 1).mean(-1)
    rmse = math.sqrt(size.square().mean().item())  # torch's sqrt is MKL's, and not always correctly rounded
    return Deviation(
        max=size.max().item(),
        mean=size.mean().item(),
        std=size.std(correction=0).item(),
        rmse=rmse,
        relative=over_baseline(rmse, math.sqrt(golden.square().mean().item())),
        p99=float(np.quantile(size.numpy(), 0.99)),
        bias=signed.mean().item(),
        bias_se=(rows.std() / len(rows) ** 0.5).item() if len(rows) > 1 else float("nan"),
        max_ulp=ulps.max().item(),
        mean_ulp=ulps.mean().item(),
        nonfinite=int((~signed.isfinite()).sum()),
        count=size.numel(),
    )


def over_baseline(error: Any, baseline: Any) -> Any:
    """Divide an error by Baseline's error, two numbers of at least 0 or two pandas objects of them: 1 where both are 0;
    infinite where Baseline's alone is 0; NaN where one is NaN. All quotients of two errors are computed here."""
    if np.ndim(error) == np.ndim(baseline) == 0:
        if baseline:
            return float(error / baseline)
        return math.nan if math.isnan(error) else 1.0 if error == 0 else math.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        return (error / baseline).where((error != 0) | (baseline != 0), 1.0)
