"""How bad can it get? A search, tile by tile, for inputs on which the roundings of a kernel all err to one side."""

import numpy as np
import torch

from fa_lib import kernels
from fa_lib.formats import FP64, Format, FormatLike
from fa_lib.precision import Precision
from fa_lib.theory import bound, expected
from fa_lib.tiling import Tiling


def worst(
    fmt: FormatLike,
    tiles: int,
    seed: int,
    *,
    algorithm: str = "fa1",
    block_kv: int = 64,
    spread: float = 1.0,
    candidates: int = 512,
) -> dict[str, float]:
    """A cell: the largest relative error found for a kernel with every step in one format.

    All keys of a tile have one score, from -spread to 0, and one value, from 1/2 to 1: with V of one sign |O| is not
    small by cancellation, so that the error counts against O itself. The search is greedy: of many random next tiles it
    takes the one after which O is furthest above, or below, the golden value.

    Args:
        fmt: of every step. tiles: of block_kv keys. seed: of the search. candidates: for each tile.

    Returns:
        dict: found, the largest |O - golden| / golden, in u; over_baseline, over Baseline's on the same inputs or over
        the most that rounding the answer costs, u, whichever is larger; over_expected, over `theory.expected`;
        of_bound, over `theory.bound`, which takes P as given.
    """
    fmt, random, best = Format.of(fmt), np.random.default_rng(seed), None
    for side in (1, -1):
        x = np.zeros((2, 0, candidates))
        for _ in range(tiles):
            drawn = random.uniform(size=(2, 1, candidates)) * [[[-spread]], [[0.5]]] + [[[0.0]], [[0.5]]]
            x = np.concatenate([x, drawn], 1)  # scores and values (2, tiles so far, candidates)
            flash, _ = _errors(x, fmt, algorithm, block_kv)
            x = np.repeat(x[:, :, [int((side * flash).argmax())]], candidates, 2)
        flash, baseline = (error[0].abs().item() for error in _errors(x[:, :, :1], fmt, algorithm, block_kv))
        best = max(best or (0.0, 0.0), (flash, baseline))
    flash, baseline = best
    uniform, u = Precision.uniform(fmt), fmt.unit_roundoff
    given = dict(tiles=tiles, algorithm=algorithm)
    return dict(
        found=flash / u, over_baseline=flash / max(baseline, u), over_expected=flash / expected(uniform, **given),
        of_bound=flash / bound(uniform, **given, rise=spread),
    )  # fmt: skip


def _errors(x, fmt, algorithm, block_kv):
    """Flash's and Baseline's signed relative errors, of each candidate."""
    tiles = x.shape[1]
    scores, values = torch.from_numpy(x)
    which = torch.arange(tiles).repeat_interleave(block_kv)  # the tile of each key (n_kv,)
    k = torch.nn.functional.one_hot(which, tiles).double()[None, None]  # (1, 1, n_kv, tiles)
    q = fmt(scores.T)[None, None]  # (1, 1, candidates, tiles): a candidate's score in every tile
    v = fmt(values)[which][None, None]  # (1, 1, n_kv, candidates)
    options = dict(scale=1.0)
    golden = _own(kernels.golden(q, k, v, inputs=FP64, **options))
    baseline = _own(kernels.reference(q, k, v, precision=Precision.materialized(fmt), **options))
    given = dict(tiling=Tiling(64, block_kv), precision=Precision.uniform(fmt), algorithm=algorithm)
    return tuple((o - golden) / golden for o in (_own(kernels.tiled(q, k, v, **given, **options)), baseline))


def _own(out):
    """Of all candidates' scores with all candidates' values, each with its own (candidates,)."""
    return out[0, 0].diagonal()
