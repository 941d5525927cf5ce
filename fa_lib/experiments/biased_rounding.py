"""Biased rounding: when several keys attain a row's maximum, P is exactly 1 there, and with V of one sign the rounding
of P V always errs to the same side (arXiv 2510.04212, "Why Low-Precision Transformer Training Fails").

Two BF16 values of one sign and size add up to a number half-way between two BF16 values half of the time. Alone, such
ties would round either way; what the other keys add, however small, tips all of them away from zero.

A kernel that carries O in FP32 rounds it once, after the division by the row sum l, and then l has a say: with P = 1 to
the last bit l is a little above the number of maxima, and tips ties the other way; torch's exponential at 0 is a little
below 1, and tips them outwards again.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fa_lib import kernels
from fa_lib.execution.lookup import lookup
from fa_lib.kernels.exponentials import dynamic_maximum, fast_exp
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.kernels.variants import Variant, by_key
from fa_lib.numerics.formats import BF16, FP32, FP64, stochastic


class Sign(NamedTuple):
    """The sign of V's values: its label, as figures show it, and the factor of |V|; 0 leaves both signs."""

    label: str
    factor: int


SIGNS = {"positive": Sign("V > 0", 1), "negative": Sign("V < 0", -1), "both": Sign("both signs", 0)}


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


def problem(
    repeats: int, sign: str, seed: int, gap: float = 16, n: int = 512, rows: int = 256, head_dim: int = 64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw Q, K, V and dO: in each row `repeats` keys attain the maximum; the other scores are N(0, 1) and below it.

    Args:
        repeats: keys that attain the maximum. sign: a key of SIGNS, for V's values and for dO's (a loss that pulls one
            way gives a dO of one sign). gap: the maximum. n: keys. rows: queries.

    Returns:
        q, k, v, dO: float64 on BF16's grid. q, dO: (1, 1, rows, head_dim); k, v: (1, 1, n, head_dim).

    Raises:
        ValueError: there is no such sign.
    """
    factor = lookup("sign", sign, SIGNS).factor
    draw_seed = seed + 10_000 * list(SIGNS).index(sign)  # else V < 0 would be V > 0 over again
    q, k, v = draw("normal", draw_seed, (1, 1, rows, head_dim), (1, 1, n, head_dim))
    dO, *_ = draw("normal", draw_seed + 1_000_000, (1, 1, rows, head_dim))
    along = torch.full((head_dim,), head_dim**-0.5, dtype=torch.float64)
    q = q + (4 - q @ along)[..., None] * along  # 4 along one direction
    k = k - (k @ along)[..., None] * along  # none along it: scores N(0, 1)
    at = torch.from_numpy(np.random.default_rng(draw_seed).permutation(n)[:repeats].copy())
    k[..., at, :] = along * gap / 4 * head_dim**0.5
    if factor:
        v, dO = factor * v.abs(), factor * dO.abs()
    return BF16(q), BF16(k), BF16(v), BF16(dO)


def bias(
    repeats: int, sign: str, cure: str, seed: int, gap: float = 16, n: int = 512, rows: int = 256, head_dim: int = 64
) -> dict[str, float]:
    """A cell: measure the signed error of O and of delta, for a kernel that carries O in BF16 or for one that is cured
    of that. All keys are one tile.

    Args:
        cure: a key of CURES; "carried_fp32" still writes O in BF16, as shipped kernels do.
        repeats, sign, seed, gap, n, rows, head_dim: as of `problem`.

    Returns:
        dict: error, the mean of O - golden, in ulp of BF16 at the golden value; outwards, the same, positive where O
        is further from zero; rmse, of O, in ulp; delta, the mean over rows of delta's error, in units of BF16's unit
        roundoff times rowsum |dO ∘ O|; delta_rmse, that error's root mean square.

    Raises:
        ValueError: there is no such cure, or no such sign.
    """
    q, k, v, dO = problem(repeats, sign, seed, gap, n, rows, head_dim)
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
