"""Whether rescaling makes the error: the same keys in the same order, with each row's maximum found tile by tile or
known beforehand."""

import torch

from fa_lib.execution.lookup import lookup
from fa_lib.experiments.problem import Problem
from fa_lib.kernels.algorithm import Algorithm
from fa_lib.kernels.inputs import draw
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import BF16

ORDERS = {"as_drawn": "keys as drawn", "every_tile": "largest keys last"}  # of the keys: key -> label
MAXIMA = {"online": "maximum found tile by tile", "known": "maximum known beforehand"}  # of a row: key -> label


def rescaling(
    order: str, tiles: int, distribution: str, seed: int, n: int = 2048, rows: int = 64, algorithm: str = "fa2"
) -> list[dict]:
    """A cell: compare the error of a kernel that finds each row's maximum tile by tile, and rescales, with that of one
    that knows the maximum, and never rescales.

    The row's largest score is subtracted from its scores by an additive mask, so that the maximum is 0 and both kernels
    round the same scores. "every_tile" puts the `tiles` largest scores of each row at the heads of the tiles,
    ascending, so that the maximum rises at nearly every tile. Every step is in BF16.

    Args:
        order: a key of ORDERS. tiles: of n / tiles keys each. distribution, seed: as of `inputs.draw`. n: keys.
        rows: queries. algorithm: as of `tiled`.

    Returns:
        rows: maximum, a key of MAXIMA; rescales, how many tiles raised a row's maximum, mean over rows; relative, the
        root mean square of O - golden over that of golden; bias, the mean signed error over its root mean square.

    Raises:
        ValueError: there is no such order.
    """
    lookup("order", order, ORDERS)
    q, k, v = (BF16(x) for x in draw(distribution, seed, (1, rows, 64), (1, n, 64)))  # head_dim 64
    if order == "every_tile":
        top = (q @ k.mT)[0].topk(tiles, dim=1).indices  # (rows, tiles), largest first
        rest = torch.ones(rows, n, dtype=torch.bool).scatter_(1, top, False)
        tails = torch.arange(n).repeat(rows, 1)[rest].reshape(rows, tiles, n // tiles - 1)
        at = torch.cat([top.flip(1)[..., None], tails], -1).reshape(rows, n)
        q, k, v = q[0][:, None], k[0][at], v[0][at]  # (rows, 1, 64), (rows, n, 64): each row is a head with its keys
    mask = -(q @ k.mT).amax(-1, keepdim=True).expand(*q.shape[:-1], n) / 8  # of the scores' shape
    problem, results = Problem(q, k, v, options=dict(mask=mask)), []
    kernel = Tiling(1, n // tiles), Precision.uniform(BF16)
    for maximum in MAXIMA:
        zero = (lambda S: torch.zeros_like(S[..., :1])) if maximum == "known" else None  # (rows, 1) of (rows, B_c)
        order_of_steps = Algorithm(algorithm, maximum=zero)
        d = problem.deviation(problem.tiled(*kernel, order_of_steps))
        rescales = problem.rescales(*kernel) if maximum == "online" else 0.0
        results.append(dict(maximum=maximum, rescales=rescales, relative=d.relative, bias=d.bias / d.rmse))
    return results
