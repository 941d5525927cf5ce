"""The law beside tables of `experiments.microbenchmark.compare`: the numbers of figures 4 and 5."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from fa_lib.kernels.precision import Precision
from fa_lib.numerics.formats import Format
from fa_lib.numerics.metrics import over_baseline
from fa_lib.theory.law import VALUES_OF, expected, largest_over_baseline

FAR = 0.1  # of the measured error: the law does not hold where it is further off


def times_by_tiles(table: pd.DataFrame, distribution: str) -> pd.DataFrame:
    """Divide Flash's largest error by Baseline's, on inputs of one distribution: tiles x seeds."""
    rows = table[(table.against == "golden") & (table.distribution == distribution)]
    of_kernels = (rows[rows.kernel == kernel] for kernel in ("flash", "baseline"))
    return over_baseline(*(own.pivot(index="tiles", columns="seed", values="max") for own in of_kernels))


def law_of_times(table: pd.DataFrame, outputs: pd.Series) -> pd.Series:
    """Predict `times_by_tiles` where V has one sign.

    Args:
        table: of one format.
        outputs: number of tiles -> number of outputs.
    """
    fmt, algorithm = table.fmt.iloc[0], table.algorithm.iloc[0]
    precision = Precision.uniform(fmt)
    return pd.Series({
        tiles: largest_over_baseline(precision, fmt, tiles=int(tiles), count=int(count), algorithm=algorithm)
        for tiles, count in outputs.items()
    })  # fmt: skip


def law_of_relative(rows: pd.DataFrame, fmt: str, tiles: Mapping[int, int]) -> pd.Series | None:
    """Predict Flash's relative error by length, in units of roundoff.

    Args:
        rows: of Flash, on inputs of one distribution. fmt: of the kernel. tiles: N -> number of tiles.

    Returns:
        N -> the error; None where the law knows neither the kernel nor its inputs.
    """
    values = VALUES_OF.get(rows.distribution.iloc[0])
    if not values or rows.flash.iloc[0] != "tiled":
        return None
    call: dict[str, Any] = dict(algorithm=rows.algorithm.iloc[0], values=values, block_kv=int(rows.block_kv.iloc[0]))
    precision, u = Precision.uniform(fmt), Format.of(fmt).unit_roundoff
    return pd.Series({n: expected(precision, tiles=count, **call) / u for n, count in tiles.items()})


def departs_from(measured: pd.Series, law: pd.Series, tiles: Mapping) -> int | None:
    """Find the number of tiles from which on the law is more than FAR off the measured error; None where it never is.

    Args:
        measured, law: by a key of `tiles`.
    """
    off = (measured / law - 1).abs().dropna() > FAR
    last = max((tiles[key] for key in off.index[~off]), default=0)
    return min((tiles[key] for key in off.index[off] if tiles[key] > last), default=None)
