"""Inputs of which several keys attain each row's maximum, with V of one sign or of both."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fa_lib.execution.lookup import lookup
from fa_lib.kernels.inputs import draw
from fa_lib.numerics.formats import BF16


class Sign(NamedTuple):
    """The sign of V's values: its label, as figures show it, and the factor of |V|; 0 leaves both signs."""

    label: str
    factor: int


SIGNS = {"positive": Sign("V > 0", 1), "negative": Sign("V < 0", -1), "both": Sign("both signs", 0)}


def draw_maxima(
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
