"""Our figure 9b: whether the error comes from rescaling."""

from itertools import product

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.experiments.ledger_rows import without_rescaling
from fa_lib.experiments.rescaling import MAXIMA, ORDERS
from fa_lib.numerics.formats import BF16
from fa_lib.plots.captions import BANDS, captioned
from fa_lib.plots.style import BASELINE, FLASH, INPUTS, band, by_seed, styled, tile_axis

_STYLES = {"online": (FLASH, "o"), "known": (BASELINE, "s")}
_LINES = {"as_drawn": {}, "every_tile": dict(ls="--", mfc="white")}


@styled
def rescaling(table: pd.DataFrame, caption: str) -> Figure:
    """Draw relative error against the number of tiles: maximum found tile by tile, or known beforehand; a row of panels
    for each algorithm.

    Args:
        table: of `experiments.rescaling.rescaling`.
    """
    distributions, algorithms = (list(dict.fromkeys(table[name])) for name in ("distribution", "algorithm"))
    size = (4.6 * len(distributions), 2.9 * len(algorithms))
    shape = len(algorithms), len(distributions)
    figure, axes = plt.subplots(*shape, figsize=size, sharex=True, sharey=True, squeeze=False)
    table = table.assign(relative=table.relative / BF16.unit_roundoff)
    tiles = sorted(table.tiles.unique())
    by = ["algorithm", "distribution", "order", "maximum"]
    for (algorithm, distribution), ax in zip(product(algorithms, distributions), axes.flat):
        for (order, line), (maximum, (color, marker)) in product(_LINES.items(), _STYLES.items()):
            rows = table[table[by].eq([algorithm, distribution, order, maximum]).all(axis=1)]
            label = f"{ORDERS[order]}; {MAXIMA[maximum]}"
            band(ax, by_seed(rows, "tiles", "relative"), color, marker, label, **line)
        ax.set_title(f"{algorithm.upper()}, {INPUTS[distribution]}")
        tile_axis(ax, tiles)
    for ax in axes[:, 0]:
        ax.set_ylabel("rms error / rms of O\n(units of roundoff u)")
    for ax in axes[-1]:
        ax.set_xlabel("tiles of K, V")
    axes[0][0].legend(loc="upper left", fontsize=7)
    drawn = (_without(table, "as_drawn") - 1).abs().max()
    most = (1 / _without(table, "every_tile")).max()
    title = f"Rescaling changes the error by at most {100 * drawn:.0f} % with keys as drawn,"
    title += f"\nand makes it up to {most:.1f} times as large with the largest keys last"
    return captioned(figure, title, caption + BANDS)


def _without(table, keys):
    """Return the error with nothing rescaled over that with rescales, mean over seeds, in an order of the keys."""
    return without_rescaling(table, keys).groupby(level=["algorithm", "tiles", "distribution"]).mean()
