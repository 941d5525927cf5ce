"""Whether `theory` predicts the measured error of kernels that round only their sums, over tiles, bits and inputs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fa_lib import kernels
from fa_lib.execution.lookup import lookup
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16, FP32, FP64, Format
from fa_lib.numerics.metrics import deviation
from fa_lib.theory.law import bound, expected, repeated

VALUES = {  # of V: distribution -> of `theory`
    "uniform": "one_sign",
    "normal": "zero_mean",
    "one-signed V": "one_sign_peaked",
}


def carried_in(count: int) -> Format:
    """Return the format with FP32's exponents and `count` significant bits, for a running sum."""
    return FP32 if count == 24 else BF16 if count == 8 else Format.of((8, count))


def only_sums(fmt: Format) -> Precision:
    """Make the Precision of a kernel that rounds only its running sums O and l, and O as stored, all to one format."""
    return replace(Precision.uniform(FP64), accumulator=fmt, row_sum=fmt, output=fmt)


def law(
    distribution: str,
    tiles: int,
    seed: int,
    *,
    bits: Sequence[int] = (8, 12, 16),
    algorithms: Sequence[str] = ("fa1", "fa2"),
    n_q: int = 128,
    block_kv: int = 64,
    head_dim: int = 64,
) -> list[dict]:
    """A cell: measure the error of kernels whose running sums have few bits, on one draw, and predict it.

    Args:
        distribution: a key of VALUES. tiles: of block_kv keys each. seed: of the draw. n_q: queries.
        bits: significant bits of O and l, one kernel for each. algorithms: as of `tiled`.

    Returns:
        rows: algorithm, bits; measured, the root mean square of O - golden over that of golden, in units of the sums'
        unit roundoff; predicted, the same by `theory.law.expected`; with_repeats, predicted with `theory.law.repeated`
        added; bias, the mean signed error over its root mean square; spread, `spread_of_tiles`.

    Raises:
        ValueError: there is no such distribution.
    """
    values = lookup("distribution", distribution, VALUES)
    q, k, v = (BF16(x) for x in draw(distribution, seed, (1, 1, n_q, head_dim), (1, 1, tiles * block_kv, head_dim)))
    golden = kernels.golden(q, k, v, inputs=FP64)
    spread, rows = spread_of_tiles(q, k, tiles), []
    for algorithm in algorithms:
        for count in bits:
            fmt = carried_in(count)
            precision, u = only_sums(fmt), fmt.unit_roundoff
            o = kernels.tiled(q, k, v, tiling=Tiling(n_q, block_kv), precision=precision, algorithm=algorithm)
            error = deviation(o, golden, fmt)
            predicted = expected(precision, tiles=tiles, algorithm=algorithm, values=values, block_kv=block_kv)
            more = repeated(fmt, tiles=tiles, spread=spread)
            found = dict(measured=error.relative / u, predicted=predicted / u)
            found |= dict(with_repeats=(predicted**2 + more**2) ** 0.5 / u, bias=error.bias / error.rmse, spread=spread)
            rows.append(dict(algorithm=algorithm, bits=count) | found)
    return rows


def spread_of_tiles(q: torch.Tensor, k: torch.Tensor, tiles: int) -> float:
    """Compute the standard deviation of a row's sums of P, one a tile, over their mean; the mean over rows.

    Args:
        q: (..., n_q, head_dim). k: (..., n_kv, head_dim). tiles: how many tiles of one size the keys are cut into.
    """
    S = q @ k.mT / q.shape[-1] ** 0.5  # (..., n_q, n_kv)
    sums = torch.exp(S - S.amax(-1, keepdim=True)).unflatten(-1, (tiles, -1)).sum(-1)  # (..., n_q, tiles)
    return (sums.std(-1) / sums.mean(-1)).mean().item() if tiles > 1 else 0.0


def bounds(seed: int, settings: int = 100) -> list[dict]:
    """A cell: compare the largest error of random kernels on random inputs with `theory.law.bound`.

    Shapes, formats of O, l and the factors, the algorithm, the inputs and the spread of the scores are all random.

    Args:
        seed: of the draws. settings: how many kernels.

    Returns:
        rows: algorithm, tiles, block_kv; kind, the distribution of the inputs; spread, the scores' factor; accumulator,
        row_sum and factors, their bits; deterministic and probable, the error over the bound (probable: with a failure
        probability of 1e-6), 0 where the bound is infinite; vacuous, whether the deterministic bound is infinite.
    """
    random, rows = np.random.default_rng(seed), []
    for index in range(settings):
        tiles, block_kv, algorithm = (
            int(random.integers(1, 65)),
            int(random.integers(1, 17)),
            random.choice(["fa1", "fa2"]),
        )
        bits = {step: int(random.integers(6, 17)) for step in ("accumulator", "row_sum", "factors")}
        formats = {step: carried_in(count) for step, count in bits.items()}
        kind, spread = (
            str(random.choice(["uniform", "normal", "one-signed V", "sink"])),
            float(2 ** random.uniform(-3, 3)),
        )
        q, k, v = draw(kind, seed * settings + index, (1, 1, 4, 8), (1, 1, tiles * block_kv, 8))
        q = q * spread
        golden = kernels.golden(q, k, v, inputs=FP64)
        size = kernels.golden(q, k, v.abs(), inputs=FP64)  # sum of P |v|
        precision = replace(Precision.uniform(FP64), **formats)
        o = kernels.tiled(q, k, v, tiling=Tiling(4, block_kv), precision=precision, algorithm=str(algorithm))
        found = ((o - golden).abs() / size).max().item()
        S = q @ k.mT / 8**0.5
        call: dict[str, Any] = dict(tiles=tiles, algorithm=str(algorithm), rise=(S.amax(-1) - S.amin(-1)).max().item())
        most = bound(precision, **call), bound(precision, **call, keys=k.shape[-2] * o.numel(), failure=1e-6)
        row = dict(algorithm=str(algorithm), tiles=tiles, block_kv=block_kv, kind=kind, spread=spread) | bits
        rows.append(row | dict(deterministic=found / most[0], probable=found / most[1], vacuous=most[0] == math.inf))
    return rows
