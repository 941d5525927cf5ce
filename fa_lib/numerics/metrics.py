"""How far a result is from the golden value, and two sets of weights from each other."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fa_lib.numerics.formats import Format, FormatLike
from fa_lib.numerics.sorting import sorted_values

MANY = 1 << 21  # values that are sorted in less time than the half second in which `sorted_values` is compiled


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
    """Divide an error by Baseline's error. All quotients of two errors are computed here.

    Args:
        error, baseline: two numbers of at least 0, or two pandas objects of them.

    Returns:
        error / baseline; 1 where both are 0; infinite where Baseline's alone is 0; NaN where one is NaN.
    """
    if np.ndim(error) == np.ndim(baseline) == 0:
        if baseline:
            return float(error / baseline)
        return math.nan if math.isnan(error) else 1.0 if error == 0 else math.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        return (error / baseline).where((error != 0) | (baseline != 0), 1.0)


def wasserstein(a: Tensor | np.ndarray, b: Tensor | np.ndarray) -> float:
    """Compute the 1-D Wasserstein distance between the values of two tensors: the area between their distribution
    functions.

    For equal sizes it is the mean of |sort(a) - sort(b)|. It does not see which value moved where.

    Args:
        a, b: tensors or arrays of any shape, not empty.

    Returns:
        float; NaN where an input holds NaN.

    Raises:
        ValueError: one is empty.
    """
    a, b = (_values(x) for x in (a, b))
    if not a.size or not b.size:
        raise ValueError(f"a, b: got {a.size} and {b.size} values; accepted is at least one each")
    if a.size + b.size < 1 << 16:  # threads take longer to start
        a, b = np.sort(a), np.sort(b)
    else:
        with ThreadPoolExecutor(2) as pool:  # both sorts let go of the GIL, and are faster than torch's
            a, b = pool.map(_sorted, (a, b), (_space(a), _space(b)))
    if a.size == b.size:
        return float(_mean_distance(a, b))
    merged = np.concatenate((a, b))
    merged = _sorted(merged, _space(merged))
    share_a, share_b = (np.searchsorted(x, merged[:-1], side="right") / x.size for x in (a, b))
    return float(np.abs(share_a - share_b) @ np.diff(merged).astype(np.float64))


def _values(x):
    x = x.detach().cpu() if isinstance(x, torch.Tensor) else torch.as_tensor(np.asarray(x))
    x = x if x.dtype in (torch.float32, torch.float64) else x.double()
    return x.reshape(-1).numpy()


def _space(x):
    """What `_sorted` works in; None where it takes numpy's sort."""
    return np.empty((2, x.size), np.float32) if x.dtype == np.float32 and x.size >= MANY else None


def _sorted(x, space):
    return np.sort(x) if space is None else sorted_values(x, space)


def _mean_distance(a, b, block=1 << 16):
    total = 0.0
    for i in range(0, a.size, block):
        total += np.abs(a[i : i + block].astype(np.float64) - b[i : i + block]).sum()
    return total / a.size
