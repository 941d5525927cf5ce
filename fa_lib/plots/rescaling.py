"""Figure 9b: is it the rescaling?"""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn
from matplotlib.figure import Figure

from fa_lib.experiments.rescaling import ORDERS
from fa_lib.plots.captions import BANDS, captioned
from fa_lib.plots.style import BASELINE, FLASH, GREY, INK, INPUTS, band, by_seed, log_ticks, styled

_STYLES = {"every_tile": (FLASH, "^"), "as_drawn": (GREY, "o"), "never": (BASELINE, "v")}
_MARKERS = "soDP"  # of distributions


@styled
def rescaling(table: pd.DataFrame, caption: str) -> Figure:
    """The deviation against the number of tiles, for rows that rescale at every tile, as drawn, or never.

    Args:
        table: of `experiments.rescaling.rescaling`.
    """
    distributions = list(dict.fromkeys(table.distribution))
    columns = 1 + len(distributions)
    figure, axes = plt.subplots(1, columns, figsize=(3.7 * columns, 3.6))
    for ax, distribution in zip(axes, distributions):
        for order, (color, marker) in _STYLES.items():
            rows = table[(table.distribution == distribution) & (table.order == order)]
            band(ax, by_seed(rows, "tiles", "rmse") * 1e3, color, marker, f"rescaled: {ORDERS[order]}")
        ax.set(xscale="log", yscale="log", xlabel="tiles of K, V", title=INPUTS[distribution])
        tiles = sorted(table.tiles.unique())
        ax.set_xticks(tiles, labels=[str(t) for t in tiles])
        ax.minorticks_off()
        log_ticks(ax.yaxis)
    axes[0].set_ylabel("root mean square of the error (1/1000)")
    axes[0].legend(loc="upper left", fontsize=7)
    most = table[table.tiles == table.tiles.max()]
    drawn = most[most.order == "as_drawn"].groupby("distribution").rmse.mean()
    seaborn.scatterplot(
        data=most.assign(times=most.rmse / most.distribution.map(drawn)),
        x="rescales",
        y="times",
        hue="order",
        palette={order: color for order, (color, _) in _STYLES.items()},
        style="distribution",
        markers=dict(zip(distributions, _MARKERS)),
        s=28,
        alpha=0.7,
        legend=False,
        ax=axes[-1],
    )
    for distribution, marker in zip(distributions, _MARKERS):
        axes[-1].plot([], [], marker, color=GREY, label=f"{distribution} inputs")
    axes[-1].legend(loc="lower right", title="colours as at the left", title_fontsize=7)
    axes[-1].axhline(1, color=INK, lw=0.9)
    axes[-1].set(ylim=(0, 2), xlabel="rescales that raised a row's maximum", ylabel="error / mean error as drawn")
    axes[-1].set_title(f"at {most.tiles.iloc[0]} tiles")
    return captioned(figure, "Not the rescale: rows that never rescale are as far off", caption + BANDS)
