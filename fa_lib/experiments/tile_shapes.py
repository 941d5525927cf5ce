"""Tiles of other shapes for figure 6: swapped and square ones, and whether their rows change a bit."""

from collections.abc import Iterable

import pandas as pd

from fa_lib.experiments.microbenchmark import BenchmarkSettings
from fa_lib.experiments.problem import Problem
from fa_lib.kernels.precision import Precision
from fa_lib.kernels.tiling import Tiling
from fa_lib.numerics.formats import Format
from fa_lib.numerics.metrics import deviation, over_baseline


def tiles_of_sram(sram: Iterable[int], head_dim: int) -> pd.DataFrame:
    """List the tiles of figure 6: for each SRAM size M the paper's, the same with its sides swapped, and a square.

    Args:
        sram: sizes M, in elements. head_dim: of Q, K and V.

    Returns:
        table: sram, variant ("as_given", "swapped", "square"), block_q, block_kv, area (of the tile as given).
    """
    rows = []
    for elements in sram:
        tiling = Tiling.from_sram(elements, head_dim)
        for variant, t in (("as_given", tiling), ("swapped", tiling.swapped()), ("square", tiling.square())):
            tile = {"block_q": t.block_q, "block_kv": t.block_kv, "area": tiling.area}
            rows.append({"sram": elements, "variant": variant} | tile)
    return pd.DataFrame(rows)


def squared_by_rows(
    n: int, distribution: str, fmt, seed: int, *, block_q: int, block_kv: int, setup: BenchmarkSettings
) -> dict[str, float]:
    """A cell: compare the emulated kernel with tiles of block_q rows and with square ones, of block_kv rows.

    Args:
        n, distribution, fmt, seed, setup: as `microbenchmark.compare`.
        block_q, block_kv: B_r and B_c as given.

    Returns:
        times: the largest difference from Baseline with square tiles, over that with tiles as given; same: whether all
        outputs have the same bits.
    """
    fmt = Format.of(fmt)
    problem = Problem.drawn(distribution, seed, n, n, heads=setup.heads, head_dim=setup.head_dim)
    kernel = Precision.uniform(fmt), setup.algorithm
    outputs = [problem.tiled(Tiling(r, block_kv), *kernel, rows=r) for r in (block_q, block_kv)]
    baseline = problem.reference(Precision.materialized(fmt))
    as_given, square = (deviation(o, baseline).max for o in outputs)
    return dict(times=over_baseline(square, as_given), same=bool((outputs[0] == outputs[1]).all()))
