"""Scores that exceed FP16's largest number, 65,504, before they are scaled."""

from dataclasses import replace
from typing import Any

from fa_lib import kernels
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
    q, k, v = (
        mean + amplitude * (2 * x - 1) for x in draw("uniform", seed, (1, 1, rows, head_dim), (1, 1, n, head_dim))
    )
    call: dict[str, Any] = dict(tiling=Tiling(128, 128), precision=replace(Precision.kernel(FP16), scores=FP16))
    algorithms = {name: Algorithm(scale_in_exponent=in_exponent) for name, in_exponent in IN_EXPONENT.items()}
    outs = {name: kernels.tiled(q, k, v, algorithm=changed, **call) for name, changed in algorithms.items()}
    largest = (FP16(q) @ FP16(k).mT).abs().max().item() / FP16.max
    lost = {name: (~o.isfinite()).any(-1).double().mean().item() for name, o in outs.items()}
    return lost | dict(largest=largest)


IN_EXPONENT = {"unscaled": True, "scaled": False}
