"""Scores that exceed FP16's largest number, 65,504, before they are scaled."""

from dataclasses import replace

from fa_lib.experiments.problem import Problem
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import FP16


def overflow(mean: float, amplitude: float, seed: int, *, n: int = 1407, rows: int = 512, head_dim: int = 128) -> dict:
    """A cell: measure overflow in Flash with S in FP16 and its statistics in FP32: the benchmark of PASA (arXiv
    2503.01873), with the lengths, tiles and head_dim of its code.

    Args:
        mean, amplitude: values of Q, K and V are uniform within `amplitude` of `mean`. n: keys. rows: queries of the
            one head.

    Returns:
        dict: unscaled, the share of rows that are not finite where S = Q Kᵀ is rounded and then scaled (with the
        exponential); scaled, where it is scaled and then rounded; largest, the largest |Q Kᵀ| over 65,504.
    """
    drawn = draw("uniform", seed, (1, 1, rows, head_dim), (1, 1, n, head_dim))
    problem, lost = Problem(*(mean + amplitude * (2 * x - 1) for x in drawn)), {}
    for name, in_exponent in dict(unscaled=True, scaled=False).items():
        precision = replace(Precision.kernel(FP16), scores=FP16)
        o = problem.tiled(Tiling(128, 128), precision, Algorithm(scale_in_exponent=in_exponent))
        lost[name] = (~o.isfinite()).any(-1).double().mean().item()
    return lost | dict(largest=(FP16(problem.q) @ FP16(problem.k).mT).abs().max().item() / FP16.max)
