"""Our figure 9b: whether the error comes from rescaling."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.experiments.rescaling import MAXIMA, ORDERS
from fa_lib.numerics.formats import BF16
from fa_lib.plots.captions import BANDS, captioned
from fa_lib.plots.style import BASELINE, FLASH, INK, INPUTS, band, by_seed, log_ticks, styled

_STYLES = {"online": (FLASH, "o"), "known": (BASELINE, "s")}
_LINES = {"as_drawn": {}, "every_tile": dict(ls="--", mfc="white")}


@styled
def rescaling(table: pd.DataFrame, caption: str) -> Figure:
    """Draw relative error, and bias below, against the number of tiles: maximum found tile by tile, or known
    beforehand.

    Args:
        table: of `experiments.rescaling.rescaling`.
    """
    distributions = list(dict.fromkeys(table.distribution))
    size = (4.6 * len(distributions), 5.4)
    figure, axes = plt.subplots(2, len(distributions), figsize=size, sharex=True, sharey="row", height_ratios=(3, 2))
    table = table.assign(relative=table.relative / BF16.unit_roundoff)
    tiles = sorted(table.tiles.unique())
    for column, distribution in zip(axes.T, distributions):
        for order, line in _LINES.items():
            for maximum, (color, marker) in _STYLES.items():
                rows = table[table[["distribution", "order", "maximum"]].eq([distribution, order, maximum]).all(axis=1)]
                label = f"{ORDERS[order]}; {MAXIMA[maximum]}"
                for ax, value in zip(column, ("relative", "bias")):
                    band(ax, by_seed(rows, "tiles", value), color, marker, label, **line)
        column[0].set(xscale="log", yscale="log", title=INPUTS[distribution])
        column[1].axhline(0, color=INK, lw=0.9)
        column[1].set(xlabel="tiles of K, V")
        column[1].set_xticks(tiles, labels=[str(t) for t in tiles])
        column[1].minorticks_off()
        log_ticks(column[0].yaxis)
    axes[0][0].set_ylabel("rms error / rms of O\n(units of roundoff u)")
    axes[1][0].set_ylabel("mean signed error\n/ rms error")
    axes[0][0].legend(loc="upper left", fontsize=7)
    title = "Not the rescaling: of keys as drawn, a maximum known beforehand leaves the error as it is"
    return captioned(figure, title, caption + BANDS)
