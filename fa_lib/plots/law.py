"""Our figure 13: the law for the error, over tiles and their size."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fa_lib.plots.captions import POINTS, captioned
from fa_lib.plots.style import BASELINE, FLASH, GREEN, GREY, INPUTS, by_seed, dots, styled, tile_axis

_ALGORITHMS = {
    "fa1": (FLASH, "o", "FA1: O divided by l at every tile"),
    "fa2": (BASELINE, "s", "FA2: once, at the end"),
}


@styled
def law(table: pd.DataFrame, blocks: pd.DataFrame, caption: str) -> Figure:
    """Draw measured and predicted error against tiles, with many bits and with few, and against the tile's size.

    Args:
        table: of `experiments.law.measured`, joined with `experiments.law.predicted`.
        blocks: of `experiments.law.predicted` for several block_kv, with rows drawn; those of FA2 are drawn.
    """
    distributions, bits = list(dict.fromkeys(table.distribution)), sorted(table.bits.unique())
    widest = blocks[(blocks.algorithm == "fa2") & (blocks.tiles >= blocks.tiles.max() / 8)]
    figure, axes = plt.subplots(3, 3, figsize=(11.7, 9.9), squeeze=False)
    for line, count in zip(axes, (bits[-1], bits[0])):
        for ax, distribution in zip(line, distributions):
            _against_tiles(ax, table[(table.distribution == distribution) & (table.bits == count)])
            ax.set(title=f"{INPUTS[distribution]}, O and l of {count} bits", xlabel="tiles of K, V")
        line[0].set_ylabel("rms error of O / rms of O\n(units of roundoff u)")
    axes[0, 0].legend(loc="upper left")
    for ax, (count, own) in zip(axes[2], widest.groupby("bits")):
        _against_blocks(ax, own)
        ax.set(title=f"FA2, uniform inputs, {count} bits", xlabel="keys of a tile")
    axes[2, 0].set_ylabel("rms error of O / rms of O\n(units of roundoff u)")
    axes[2, 0].legend(loc="upper left", ncols=2)
    means = table.groupby(["algorithm", "distribution", "bits", "tiles"])[["measured", "predicted", "counted"]].mean()
    off = {name: np.exp(np.log(means.measured / means[name]).abs().groupby("algorithm").max()) for name in means}
    title = f"The law is off by up to {off['predicted'].fa2:.1f} times for FA2 and {off['predicted'].fa1:.1f} for FA1; "
    title += f"roundings counted as independent by {off['counted'].fa2:.1f} and {off['counted'].fa1:.1f}"
    return captioned(figure, title, caption + POINTS)


def _against_tiles(ax, table):
    for algorithm, (color, marker, label) in _ALGORITHMS.items():
        own = table[table.algorithm == algorithm]
        if own.empty:
            continue
        errors = by_seed(own, "tiles", "measured")
        dots(ax, errors.index, errors, color, marker, label)
        means = own.groupby("tiles")[["predicted", "counted"]].mean()
        ax.plot(means.index, means.predicted, color=color, lw=1.2)
        ax.plot(means.index, means.counted, color=color, lw=1, ls=":")
    ax.plot([], [], color=GREY, lw=1.2, label="the law: drift and scatter")
    ax.plot([], [], color=GREY, lw=1, ls=":", label="independent roundings, counted")
    tile_axis(ax, sorted(table.tiles.unique()))


def _against_blocks(ax, table):
    """Draw the simulated error over the keys of a tile, and the law's."""
    for (count, own), color, marker in zip(table.groupby("tiles"), (GREY, BASELINE, GREEN, FLASH), "o^sD"):
        ax.plot(own.block_kv, own.simulated, marker, color=color, label=f"{count} tiles")
        ax.plot(own.block_kv, own.predicted, color=color, lw=1.2)
        ax.plot(own.block_kv, own.counted, color=color, lw=1, ls=":")
    tile_axis(ax, sorted(table.block_kv.unique()))
