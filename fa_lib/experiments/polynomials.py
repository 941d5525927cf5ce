"""The errors of FlashAttention-4's polynomials for 2**x."""

import torch

from fa_lib.kernels.polynomials import polynomial_exp2
from fa_lib.numerics.formats import BF16


def polynomial_error(degree: int, *, points: int = 1 << 20) -> dict[str, float]:
    """A cell: compute the largest relative error of a polynomial at evenly spaced fractions in [0, 1).

    Args:
        degree: 3, 4 or 5. points: how many fractions.

    Returns:
        dict: fp32, the error of the polynomial evaluated in FP32; bf16, the same when it is rounded to BF16, as P is
        for P V.
    """
    f = torch.arange(points, dtype=torch.float64) / points
    exact, ours = torch.exp2(f), polynomial_exp2(degree)(f)
    return {name: (x / exact - 1).abs().max().item() for name, x in (("fp32", ours), ("bf16", BF16(ours)))}


def polynomial_curve(degree: int, *, bins: int = 256, points: int = 1 << 8) -> list[dict[str, float]]:
    """A cell: compute the largest relative error of a polynomial in FP32 in each of `bins` equal parts of [0, 1).

    Args:
        degree: as of `polynomial_error`. points: fractions in each part.

    Returns:
        rows: x, the middle of the part; error.
    """
    f = torch.arange(bins * points, dtype=torch.float64) / (bins * points)
    errors = (polynomial_exp2(degree)(f) / torch.exp2(f) - 1).abs().reshape(bins, points).amax(1)
    return [dict(x=(i + 0.5) / bins, error=error) for i, error in enumerate(errors.tolist())]
