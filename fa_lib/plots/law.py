"""Our figure 13: the law for the error, and where it ends."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.style import BASELINE, FLASH, GREY, INPUTS, by_seed, dots, styled, tile_axis

_ALGORITHMS = {
    "fa1": (FLASH, "o", "FA1: O divided by l at every tile"),
    "fa2": (BASELINE, "s", "FA2: once, at the end"),
}


@styled
def law(table: pd.DataFrame, caption: str) -> Figure:
    """Draw measured and predicted error against tiles, for each kind of inputs: with many bits and with few.

    Args:
        table: of `experiments.law.law`.
    """
    distributions, bits = list(dict.fromkeys(table.distribution)), sorted(table.bits.unique())
    rows = [bits[-1], bits[0]]
    figure, axes = plt.subplots(2, len(distributions), figsize=(3.9 * len(distributions), 6.6), squeeze=False)
    for line, count in zip(axes, rows):
        for ax, distribution in zip(line, distributions):
            own = table[(table.distribution == distribution) & (table.bits == count)]
            _against_tiles(ax, own)
            ax.set(title=f"{INPUTS[distribution]}, O and l of {count} bits")
        line[0].set_ylabel("rms error of O / rms of O\n(units of roundoff u)")
    axes[0, 0].legend(loc="upper left")
    for ax in axes[-1]:
        ax.set(xlabel="tiles of K, V")
    means = table.groupby(["bits", "distribution", "algorithm", "tiles"])[["measured", "predicted", "simulated"]].mean()
    few, many = ((means.measured / means[name]).loc[[bits[0], bits[-1]]] for name in ("predicted", "simulated"))
    both = np.exp(np.log(many).abs().max())
    off = {count: np.exp(np.log(few.loc[count]).abs().max()) for count in (bits[-1], bits[0])}
    title = f"The law is off by up to {100 * off[bits[-1]] - 100:.0f} % with {bits[-1]} bits (top) and "
    title += f"{off[bits[0]]:.1f} times with {bits[0]} (bottom); the simulation by {100 * both - 100:.0f} %"
    return captioned(figure, title, caption + POINTS)


def _against_tiles(ax, table):
    for algorithm, (color, marker, label) in _ALGORITHMS.items():
        own = table[table.algorithm == algorithm]
        if own.empty:
            continue
        errors = by_seed(own, "tiles", "measured")
        dots(ax, errors.index, errors, color, marker, label)
        means = own.groupby("tiles")[["predicted", "simulated"]].mean()
        ax.plot(means.index, means.predicted, color=color, lw=1.2)
        ax.plot(means.index, means.simulated, color=color, lw=1.2, ls="--")
    ax.plot([], [], color=GREY, lw=1.2, label="the law: roundings counted")
    ax.plot([], [], color=GREY, lw=1.2, ls="--", label="the simulation")
    tile_axis(ax, sorted(table.tiles.unique()))
