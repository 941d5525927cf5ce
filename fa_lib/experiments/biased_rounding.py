"""Biased rounding: when several keys attain a row's maximum, P is exactly 1 there, and with V of one sign the rounding
of P V always errs to the same side (arXiv 2510.04212, "Why Low-Precision Transformer Training Fails").

Two BF16 values of one sign and size add up to a number half-way between two BF16 values half of the time. Alone, such
ties would round either way; what the other keys add, however small, tips all of them away from zero.

A kernel that carries O in FP32 rounds it once, after the division by the row sum l, and then l has a say: with P = 1 to
the last bit l is a little above the number of maxima, and tips ties the other way; torch's exponential at 0 is a little
below 1, and tips them outwards again.
"""

from dataclasses import replace

import numpy as np
import torch

from fa_lib import kernels
from fa_lib.formats import BF16, FP32, FP64, stochastic
from fa_lib.inputs import draw
from fa_lib.kernels.exponentials import dynamic_maximum, fast_exp
from fa_lib.precision import Precision
from fa_lib.tiling import Tiling

SIGNS = {"V > 0": 1, "V < 0": -1, "both signs": 0}


_CARRIED = dict(accumulator=BF16)


_KERNELS = {  # what changes in Precision.kernel(BF16), and arguments of `tiled`
    "O carried in BF16": (_CARRIED, {}),
    "O carried in FP32": ({}, {}),
    "FP32, torch's exponential": ({}, dict(exp=fast_exp)),
    "O in FP32 to the end": (dict(output=FP32), {}),
    "delta from P and dP": (_CARRIED, {}),
    "dynamic maximum, beta = 2": (_CARRIED, dict(maximum=dynamic_maximum(2.0))),
    "dynamic maximum, beta = 8": (_CARRIED, dict(maximum=dynamic_maximum(8.0))),
    "stochastic rounding of O": ({}, {}),  # by the seed
}


CURES = tuple(_KERNELS)


def problem(repeats, sign, seed, gap=16, n=512, rows=256, head_dim=64):
    """Q, K, V, dO in BF16: each row's maximum is attained by `repeats` keys, the other scores are N(0, 1) and below it.

    Args:
        repeats: keys that attain the maximum. sign: of SIGNS, of V's values (and of dO's, which a loss that pulls one
            way gives). gap: the maximum.
    """
    own = seed + 10_000 * list(SIGNS).index(sign)  # else V < 0 would be V > 0 over again
    q, k, v = draw("normal", own, (1, 1, rows, head_dim), (1, 1, n, head_dim))
    dO, *_ = draw("normal", own + 1_000_000, (1, 1, rows, head_dim))
    along = torch.full((head_dim,), head_dim**-0.5, dtype=torch.float64)
    q = q + (4 - q @ along)[..., None] * along  # 4 along one direction
    k = k - (k @ along)[..., None] * along  # none along it: scores N(0, 1)
    at = torch.from_numpy(np.random.default_rng(own).permutation(n)[:repeats].copy())
    k[..., at, :] = along * gap / 4 * head_dim**0.5
    if SIGNS[sign]:
        v, dO = SIGNS[sign] * v.abs(), SIGNS[sign] * dO.abs()
    return tuple(BF16(x) for x in (q, k, v, dO))


def bias(repeats, sign, cure, seed, gap=16, n=512, rows=256, head_dim=64, block_kv=512):
    """A cell: the signed error of O and of delta of a kernel that carries O in BF16, or with a cure of that.

    Args:
        cure: of CURES; "O carried in FP32" still writes it in BF16, as shipped kernels do.
        repeats, sign, seed: of `problem`.

    Returns:
        dict. error: mean of O - golden, in ulp of BF16 at the golden value. outwards: the same, positive where it
        points away from zero. rmse: of O, in ulp. delta: mean over rows of the error of delta, in units of BF16's unit
        roundoff times rowsum |dO ∘ O|; delta_rmse: its root mean square.
    """
    q, k, v, dO = problem(repeats, sign, seed, gap, n, rows, head_dim)
    changes, given = _KERNELS[cure]
    if cure == "stochastic rounding of O":
        changes = dict(accumulator=stochastic(BF16, seed), output=stochastic(BF16, seed + 1))
    precision = replace(Precision.kernel(BF16), **changes)
    o = kernels.tiled(q, k, v, tiling=Tiling(64, block_kv), precision=precision, **given)
    golden = kernels.golden(q, k, v, inputs=FP64)
    error = (o - golden) / BF16.ulp(golden)
    exact, scale = (dO * golden).sum(-1), (dO * golden).abs().sum(-1)
    delta = (dO * o).sum(-1)
    if cure == "delta from P and dP":  # both as the backward pass has them: P in FP32, dP = dO Vᵀ in FP32
        S = FP32(q @ k.mT / head_dim**0.5)
        P = FP32(torch.exp(FP32(S - torch.logsumexp(S, -1, keepdim=True))))
        delta = (P * FP32(dO @ v.mT)).sum(-1)
    off = (delta - exact) / (scale * BF16.unit_roundoff)
    return dict(
        error=error.mean().item(), outwards=(error * golden.sign()).mean().item(),
        rmse=error.square().mean().sqrt().item(), delta=off.mean().item(), delta_rmse=off.square().mean().sqrt().item(),
    )  # fmt: skip
