"""Is it the rescaling? Keys reordered so that it happens at every tile, or never."""

import torch

from fa_lib import kernels
from fa_lib.experiments.variant import known
from fa_lib.formats import BF16, FP64
from fa_lib.inputs import draw
from fa_lib.metrics import deviation
from fa_lib.precision import Precision
from fa_lib.tiling import Tiling

ORDERS = {"as_drawn": "as drawn", "never": "never", "every_tile": "every tile"}  # when a row is rescaled: key -> label


def rescaling(
    order: str,
    tiles: int,
    distribution: str,
    seed: int,
    n: int = 2048,
    rows: int = 64,
    head_dim: int = 64,
    algorithm: str = "fa2",
) -> dict[str, float]:
    """A cell: rows whose largest keys are put where the running maximum rises at every tile, never, or as drawn.

    The `tiles` largest scores of each row stand at the heads of the tiles: ascending ("every_tile"), so that each tile
    rescales; descending ("never"), so that none does; the rest as drawn. "as_drawn" leaves all keys where they were.
    Every step is in BF16.

    Args:
        order: a key of ORDERS. tiles: of n / tiles keys each.

    Returns:
        dict: rescales (that raised a row's maximum, mean), max, rmse.
    """
    known("order", order, ORDERS)
    q, k, v = (BF16(x) for x in draw(distribution, seed, (1, rows, head_dim), (1, n, head_dim)))
    scores = (q @ k.mT)[0]  # (rows, n)
    at = torch.arange(n).repeat(rows, 1)
    if order != "as_drawn":
        top = scores.topk(tiles, dim=1).indices  # largest first
        rest = torch.ones(rows, n, dtype=torch.bool).scatter_(1, top, False)
        heads = top.flip(1) if order == "every_tile" else top
        tails = at[rest].reshape(rows, tiles, n // tiles - 1)
        at = torch.cat([heads[..., None], tails], -1).reshape(rows, n)
    q, k, v = q[0][:, None], k[0][at], v[0][at]  # (rows, 1, head_dim), (rows, n, head_dim): an order for each row
    precision, tiling = Precision.uniform(BF16), Tiling(1, n // tiles)
    golden = kernels.golden(q, k, v, inputs=FP64)
    d = deviation(kernels.tiled(q, k, v, tiling=tiling, precision=precision, algorithm=algorithm), golden, BF16)
    rescales = kernels.rescales(q, k, tiling=tiling, precision=precision).double().mean().item()
    return dict(rescales=rescales, max=d.max, rmse=d.rmse)
