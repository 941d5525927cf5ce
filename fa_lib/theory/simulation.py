"""The error of the sums O and l, simulated: what a row's tiles add to both is drawn, and carried as a kernel does."""

from functools import lru_cache

import numpy as np
import torch

from fa_lib.kernels.precision import Precision
from fa_lib.theory.recurrence import Tiles, carried


def drawn(values: str, tiles: int, rows: int, block_kv: int = 64, head_dim: int = 64, seed: int = 0) -> Tiles:
    """Draw the tiles of rows of Q on K and V. Given a row of Q, its scores are normal and independent.

    Args:
        values: a key of `rounding_counts.VALUES`. "one_sign": all uniform; "zero_mean": all normal; "one_sign_peaked":
            all normal, and V >= 0.
        tiles: of a row. rows: number of rows, each with keys of its own.
        block_kv: keys of a tile. head_dim: of Q and K. seed: of the draw.
    """
    highest, l, O, O_of_magnitudes = _sums(values == "one_sign", tiles, rows, block_kv, head_dim, seed)
    return Tiles(highest, l, O if values == "zero_mean" else O_of_magnitudes)


@lru_cache(maxsize=2)
def _sums(uniform, tiles, rows, block_kv, head_dim, seed):
    """Draw `highest`, `l` and `O` of Tiles, and O of |v|."""
    random = np.random.default_rng(seed)
    q = random.random((rows, head_dim)) if uniform else random.standard_normal((rows, head_dim))
    mean = q.sum(1, keepdims=True) / 2 / head_dim**0.5 if uniform else 0.0  # of a score, q k / sqrt(head_dim), over k
    deviation = np.sqrt((q**2).sum(1, keepdims=True) / (12 if uniform else 1)) / head_dim**0.5
    highest, l, O, O_of_magnitudes = sums = np.empty((4, tiles, rows))
    S, v = np.empty((2, rows, block_kv))
    for t in range(tiles):
        random.standard_normal(out=S)
        S *= deviation
        S += mean  # (rows, B_c)
        random.random(out=v) if uniform else random.standard_normal(out=v)
        S.max(1, out=highest[t])
        S -= highest[t][:, None]
        P = torch.exp_(torch.from_numpy(S)).numpy()  # as S in memory; twice as fast as numpy's
        P.sum(1, out=l[t])
        P *= v
        P.sum(1, out=O[t])
        if not uniform:
            np.abs(P, out=P).sum(1, out=O_of_magnitudes[t])
    return [torch.from_numpy(x) for x in (sums[[0, 1, 2, 2]] if uniform else sums)]


def simulated(precision: Precision, of: Tiles, algorithm: str = "fa1") -> tuple[float, float]:
    """Simulate the error of O where O and l alone round, over drawn tiles: with those of 4,096 rows to 1 or 2 %.

    Args:
        precision: its formats accumulator, row_sum and output count. of: of `drawn`. algorithm: "fa1" or "fa2".

    Returns:
        (the root mean square of O - golden over that of golden, the mean of O / golden - 1).
    """
    error = carried(of, precision, algorithm) - of.golden
    return (error.square().mean() / of.golden.square().mean()).sqrt().item(), (error / of.golden).mean().item()
