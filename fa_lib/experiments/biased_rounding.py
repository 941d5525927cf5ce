"""Biased rounding: when several keys attain a row's maximum, P is exactly 1 there, and with V of one sign the rounding
of P V always errs to the same side (arXiv 2510.04212, "Why Low-Precision Transformer Training Fails").

Two BF16 values of one sign and size add up to a number half-way between two BF16 values half of the time. Alone, such
ties would round either way; what the other keys add, however small, tips all of them away from zero.

A kernel that carries O in FP32 rounds it once, after the division by the row sum l, and then l has a say: with P = 1 to
the last bit l is a little above the number of maxima, and tips ties the other way; torch's exponential at 0 is a little
below 1, and tips them outwards again.
"""

from dataclasses import dataclass, replace

import torch

from fa_lib import kernels
from fa_lib.execution.lookup import lookup
from fa_lib.kernels.equal_maxima import draw_maxima
from fa_lib.kernels.exponentials import dynamic_maximum, fast_exp
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.kernels.variants import Variant, by_key
from fa_lib.numerics.formats import BF16, FP32, FP64, stochastic


@dataclass(frozen=True)
class Cure(Variant):
    """A change to the kernel of `Precision.kernel(BF16)`, which carries O in FP32 and writes it in BF16.

    Attributes:
        stochastic: whether O is rounded up or down at random, by the cell's seed.
        delta_from_probs: whether delta is rowsum(P ∘ dP), instead of rowsum(dO ∘ O).
    """

    stochastic: bool = False
    delta_from_probs: bool = False


_IN_BF16 = dict(accumulator=BF16)
CURES = by_key((  # the first is the kernel to be cured
    Cure("carried_bf16", "O carried in BF16", _IN_BF16),
    Cure("carried_fp32", "O carried in FP32"),
    Cure("fast_exp", "FP32, torch's exponential", algorithm=dict(exp=fast_exp)),
    Cure("output_fp32", "O in FP32 to the end", dict(output=FP32)),
    Cure("delta_from_probs", "delta from P and dP", _IN_BF16, delta_from_probs=True),
    Cure("dynamic_2", "dynamic maximum, beta = 2", _IN_BF16, dict(maximum=dynamic_maximum(2.0))),
    Cure("dynamic_8", "dynamic maximum, beta = 8", _IN_BF16, dict(maximum=dynamic_maximum(8.0))),
    Cure("stochastic", "stochastic rounding of O", stochastic=True),
))  # fmt: skip


def bias(
    repeats: int, sign: str, cure: str, seed: int, gap: float = 16, n: int = 512, rows: int = 256, head_dim: int = 64
) -> dict[str, float]:
    """A cell: measure the signed error of O and of delta, for a kernel that carries O in BF16 or for one that is cured
    of that. All keys are one tile.

    Args:
        cure: a key of CURES; "carried_fp32" still writes O in BF16, as shipped kernels do.
        repeats, sign, seed, gap, n, rows, head_dim: as of `draw_maxima`.

    Returns:
        dict: error, the mean of O - golden, in ulp of BF16 at the golden value; outwards, the same, positive where O
        is further from zero; rmse, of O, in ulp; delta, the mean over rows of delta's error, in units of BF16's unit
        roundoff times rowsum |dO ∘ O|; delta_rmse, that error's root mean square.

    Raises:
        ValueError: there is no such cure, or no such sign.
    """
    q, k, v, dO = draw_maxima(repeats, sign, seed, gap, n, rows, head_dim)
    variant, precision = lookup("cure", cure, CURES), Precision.kernel(BF16)
    if variant.stochastic:
        precision = replace(precision, accumulator=stochastic(BF16, seed), output=stochastic(BF16, seed + 1))
    o = kernels.tiled(q, k, v, tiling=Tiling(64, n), **variant.of(precision))
    golden = kernels.golden(q, k, v, inputs=FP64)
    error = (o - golden) / BF16.ulp(golden)
    exact, scale = (dO * golden).sum(-1), (dO * golden).abs().sum(-1)
    delta = (dO * o).sum(-1)
    if variant.delta_from_probs:  # both as the backward pass has them: P in FP32, dP = dO Vᵀ in FP32
        S = FP32(q @ k.mT / head_dim**0.5)
        P = FP32(torch.exp(FP32(S - torch.logsumexp(S, -1, keepdim=True))))
        delta = (P * FP32(dO @ v.mT)).sum(-1)
    delta_error = (delta - exact) / (scale * BF16.unit_roundoff)
    return dict(
        error=error.mean().item(), outwards=(error * golden.sign()).mean().item(),
        rmse=error.square().mean().sqrt().item(), delta=delta_error.mean().item(),
        delta_rmse=delta_error.square().mean().sqrt().item(),
    )  # fmt: skip
